//! A cluster started by hand: `tidewater coordinator`, then servers; the test is its worker.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::MutexGuard;
use std::time::Duration;

use rustix::process::Signal;
use tempfile::TempDir;
use tidewater::{Client, JoinOptions, SyncMode};
use tidewater_launch::TransportChoice;
use tidewater_protocol::wire::handshake::JobToken;

use crate::proc::Process;
use crate::rig::{command, limited, new_mark, tidewater, turn};

/// Byte that the job's token in the file consists of.
pub(crate) const TOKEN: u8 = 0x5a;

/// Processes of the cluster. Dropping it kills them.
pub(crate) struct Cluster {
    coordinator: Child,
    pub(crate) address: String,
    pub(crate) servers: Vec<Child>,
    folder: TempDir,
    /// Working directory of the processes.
    pub(crate) directory: PathBuf,
    pub(crate) mark: String,
    _turn: MutexGuard<'static, ()>,
}

impl Cluster {
    /// Starts a coordinator of `servers` servers and one worker, and no server yet.
    pub(crate) fn coordinator(servers: u32) -> Self {
        Self::of_workers(servers, 1)
    }

    /// As [`Self::coordinator`], with this number of workers; 0 for a service, where each job reports its own.
    pub(crate) fn of_workers(servers: u32, workers: u32) -> Self {
        Self::coordinator_by(servers, workers, &[], |mark| command(&tidewater(), mark))
    }

    /// As [`Self::of_workers`]; the job goes on without a lost worker.
    pub(crate) fn going_on(servers: u32, workers: u32) -> Self {
        let options = ["--on-lost", "go-on"];
        Self::coordinator_by(servers, workers, &options, |mark| {
            command(&tidewater(), mark)
        })
    }

    /// As [`Self::coordinator`], with a limit of open files.
    pub(crate) fn limited(servers: u32, files: usize) -> Self {
        Self::coordinator_by(servers, 1, &[], |mark| limited(&tidewater(), mark, files))
    }

    fn coordinator_by(
        servers: u32,
        workers: u32,
        options: &[&str],
        program: impl FnOnce(&str) -> Command,
    ) -> Self {
        let turn = turn();
        let folder = tempfile::tempdir().unwrap();
        let token = write_token(&folder, "token", TOKEN);
        // Deeper than this process's: a relative path resolves differently there, one of "../" too.
        let depth = std::env::current_dir().unwrap().components().count();
        let directory = folder.path().join("d/".repeat(depth));
        fs::create_dir_all(&directory).unwrap();
        let (mark, _) = new_mark();
        let mut coordinator = program(&mark);
        coordinator
            .current_dir(&directory)
            .args(["coordinator", "--servers", &servers.to_string()])
            .arg("--token-file")
            .arg(token)
            .args(options);
        if workers > 0 {
            coordinator.args(["--workers", &workers.to_string()]);
        }
        let mut coordinator = coordinator.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let stdout = coordinator.stdout.take().unwrap();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        let address = line.trim().rsplit(' ').next().unwrap().to_owned();
        Self {
            coordinator,
            address,
            servers: Vec::new(),
            folder,
            directory,
            mark,
            _turn: turn,
        }
    }

    /// Starts a coordinator and its servers.
    pub(crate) fn start(servers: u32) -> Self {
        let mut cluster = Self::coordinator(servers);
        for number in 0..servers {
            let server = cluster.server(number).spawn().unwrap();
            cluster.servers.push(server);
        }
        cluster
    }

    /// The command line of a server.
    pub(crate) fn server(&self, number: u32) -> Command {
        let mut command = command(&tidewater(), &self.mark);
        command.current_dir(&self.directory);
        command.args(self.server_arguments(number, &self.token_file()));
        command
    }

    /// The arguments of a server with this token.
    pub(crate) fn server_arguments(&self, number: u32, token: &Path) -> Vec<String> {
        let (number, token) = (number.to_string(), token.to_str().unwrap());
        let coordinator = ["server", "--coordinator", &self.address];
        let rest = ["--number", &number, "--token-file", token];
        let all = coordinator.into_iter().chain(rest);
        all.map(str::to_owned).collect()
    }

    pub(crate) fn token_file(&self) -> PathBuf {
        self.folder.path().join("token")
    }

    /// Writes a file with a token of another job.
    pub(crate) fn other_token_file(&self) -> PathBuf {
        write_token(&self.folder, "other", TOKEN + 1)
    }

    /// The secret of the cluster.
    pub(crate) fn token(&self) -> JobToken {
        token()
    }

    /// The worker's options for the join.
    pub(crate) fn options(&self, transport: TransportChoice) -> JoinOptions {
        JoinOptions {
            coordinator: Some(self.address.clone()),
            token: Some(self.token()),
            rank: Some(0),
            transport: Some(transport),
            ..JoinOptions::default()
        }
    }

    pub(crate) fn client(&self, transport: TransportChoice) -> Client {
        let joined = self.options(transport).join().unwrap();
        let job = joined.into_job().unwrap();
        let mut client = job.client(SyncMode::Asp).unwrap();
        client.set_timeout(Duration::from_secs(60));
        client
    }

    pub(crate) fn server_processes(&self) -> Vec<Process> {
        self.servers.iter().map(Process::of).collect()
    }

    /// The processes of coordinator and servers.
    pub(crate) fn processes(&self) -> Vec<Process> {
        let mut all = self.server_processes();
        all.push(Process::of(&self.coordinator));
        all
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for process in self.processes() {
            // It may have exited.
            if process.state().is_some() {
                process.signal(Signal::KILL);
            }
        }
        for child in self.servers.iter_mut().chain([&mut self.coordinator]) {
            let _ = child.wait();
        }
    }
}

/// The secret of every cluster.
pub(crate) fn token() -> JobToken {
    JobToken::new([TOKEN; 32])
}

pub(crate) fn write_token(folder: &TempDir, name: &str, byte: u8) -> PathBuf {
    use std::io::Write as _;
    let path = folder.path().join(name);
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let mut file = options.open(&path).unwrap();
    writeln!(file, "{}", format!("{byte:02x}").repeat(32)).unwrap();
    path
}
