//! A running `tidewater run`, under a deadline.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{LazyLock, Mutex, MutexGuard};
use std::time::Duration;

use tempfile::TempDir;
use tidewater_runtime::clock::Deadline;
use tidewater_runtime::sync::{AtomicU32, Ordering};

use crate::proc::{Process, marked, socket_exists};
use crate::program::program;

/// Longer than any wait in these tests, on a machine that is ten times too busy.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);

const MARK: &str = "SYSTEM_TEST_MARK";
/// Training rows: enough that an epoch takes a while, few enough to read at once.
const TRAIN_ROWS: u32 = 3_000;

/// Path of the program `tidewater-train`.
pub(crate) fn trainer() -> &'static Path {
    static PATH: LazyLock<PathBuf> = LazyLock::new(|| program("tidewater-train"));
    &PATH
}

/// Path of the program `tidewater`.
pub(crate) fn tidewater() -> PathBuf {
    program("tidewater")
}

/// A command without the variables of this process's job, if it is in one, and with `mark`.
pub(crate) fn command(program: &Path, mark: &str) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        let is_of_a_job = name.as_encoded_bytes().starts_with(b"TIDEWATER_");
        // A mutant belongs to the test: its programs need it too.
        if is_of_a_job && name != "TIDEWATER_MUTANT" {
            command.env_remove(name);
        }
    }
    command.env(MARK, mark).stdin(Stdio::null());
    command
}

/// As [`command`], with a limit of open files, which the program cannot raise.
pub(crate) fn limited(program: &Path, mark: &str, files: usize) -> Command {
    let mut shell = command(Path::new("/bin/sh"), mark);
    let line = format!("ulimit -n {files}; exec \"$0\" \"$@\"");
    shell.args(["-c", &line]).arg(program);
    shell
}

/// A unique mark, and the variable that holds it.
pub(crate) fn new_mark() -> (String, String) {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let mark = format!("{}-{number}", std::process::id());
    let variable = format!("{MARK}={mark}");
    (mark, variable)
}

/// Runs a program; returns its output and exit code.
pub(crate) fn output(program: &Path, arguments: &[&str]) -> Output {
    let (mark, _) = new_mark();
    command(program, &mark).args(arguments).output().unwrap()
}

/// Training and test file, generated once for all tests, with equal bytes on every machine.
pub(crate) fn data() -> (String, String) {
    static FILES: LazyLock<(String, String)> = LazyLock::new(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        fs::create_dir_all(folder).unwrap();
        let train = generate(&folder.join("system-train.libsvm"), TRAIN_ROWS, 0);
        let test = generate(&folder.join("system-test.libsvm"), 1_000, TRAIN_ROWS);
        (train, test)
    });
    FILES.clone()
}

/// Replaces the file atomically, because another run of these tests may be reading it.
fn generate(path: &Path, rows: u32, first: u32) -> String {
    let (rows, first) = (rows.to_string(), first.to_string());
    let new = path.with_extension(std::process::id().to_string());
    let arguments = ["generate", "--features", "500", "--rows", &rows];
    let rest = ["--first", &first, "--out", new.to_str().unwrap()];
    let done = output(trainer(), &[&arguments[..], &rest[..]].concat());
    assert!(done.status.success(), "{done:?}");
    fs::rename(&new, path).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Lock of the jobs, which use all cores: one at a time.
pub(crate) fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    match TURN.lock() {
        Ok(guard) => guard,
        Err(poisoned) => poisoned.into_inner(),
    }
}

/// A running job. Dropping it kills the launcher, and so the job.
pub(crate) struct Run {
    launcher: Child,
    variable: String,
    folder: TempDir,
    sockets: BTreeSet<String>,
    _turn: MutexGuard<'static, ()>,
}

/// Result of an ended run.
#[derive(Debug)]
pub(crate) struct Ended {
    /// Exit code; -n for a launcher killed by signal n.
    pub(crate) code: i32,
    pub(crate) stderr: String,
    pub(crate) took: Duration,
}

impl Run {
    /// Starts `tidewater run OPTIONS -- PROGRAM` in a separate folder.
    pub(crate) fn start(options: &[&str], program: &[&str]) -> Self {
        let turn = turn();
        let folder = tempfile::tempdir().unwrap();
        let (mark, variable) = new_mark();
        let stderr = File::create(folder.path().join("stderr")).unwrap();
        let launcher = command(&tidewater(), &mark)
            .arg("run")
            .args(options)
            .arg("--")
            .args(program)
            .current_dir(folder.path())
            .env("TMPDIR", folder.path())
            .env("XDG_RUNTIME_DIR", folder.path())
            .stdout(stderr.try_clone().unwrap())
            .stderr(stderr)
            .spawn()
            .unwrap();
        Self {
            launcher,
            variable,
            folder,
            sockets: BTreeSet::new(),
            _turn: turn,
        }
    }

    /// Starts logistic regression on the generated data.
    pub(crate) fn train(options: &[&str], arguments: &[&str]) -> Self {
        let (train, _) = data();
        let program = [trainer().to_str().unwrap(), "lr", "--train", &train];
        Self::start(options, &[&program[..], arguments].concat())
    }

    pub(crate) fn said(&self) -> String {
        let bytes = fs::read(self.folder.path().join("stderr")).unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Waits until the output holds `text`.
    pub(crate) fn until(&mut self, text: &str) {
        let deadline = Deadline::after(LIMIT);
        while !self.said().contains(text) {
            let ended = self.launcher.try_wait().unwrap();
            let over = deadline.passed() || ended.is_some();
            assert!(!over, "no {text:?}, {ended:?}: {}", self.said());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until the second epoch is over: every worker pulls and pushes. Notes its sockets.
    pub(crate) fn until_training(&mut self) {
        self.until("epoch 2/");
        for server in self.of("server") {
            self.sockets.extend(server.abstract_sockets());
        }
        assert!(!self.sockets.is_empty(), "servers listen on sockets");
    }

    /// Waits until no process of the run is left, including the launcher. One scan is not enough: a process
    /// may end after it has started another, and a slow scan may miss both.
    pub(crate) fn until_nothing_is_left(&self) {
        const LOOKS: u32 = 4;
        let deadline = Deadline::after(LIMIT);
        let mut empty = 0;
        while empty < LOOKS {
            let left = marked(&self.variable);
            empty = if left.is_empty() { empty + 1 } else { 0 };
            assert!(!deadline.passed(), "left {left:?}: {}", self.said());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The process of the launcher.
    pub(crate) fn launcher(&self) -> Process {
        Process::of(&self.launcher)
    }

    /// The run's processes of one role, in order of their rank.
    pub(crate) fn of(&self, role: &str) -> Vec<Process> {
        let mut found = marked(&self.variable);
        found.retain(|process| process.role == role);
        found.sort_by_key(|process| process.rank);
        found
    }

    /// Waits for the end. Then no process is left, no socket, and only the test's own files.
    pub(crate) fn end(mut self) -> Ended {
        let began = tidewater_runtime::clock::now();
        let status = self.wait();
        let took = began.elapsed();
        let code = status.code().unwrap_or_else(|| -status.signal().unwrap());
        // Killed processes may be exiting; the launcher's reaper removes their leftovers.
        if code < 0 {
            let deadline = Deadline::after(LIMIT);
            while !marked(&self.variable).is_empty() && !deadline.passed() {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        let stderr = self.said();
        let left = marked(&self.variable);
        assert!(left.is_empty(), "left {left:?}: {stderr}");
        // The kernel closes a process's resources with its last thread: a moment after its end.
        let deadline = Deadline::after(LIMIT);
        let is_left = |socket: &&String| socket_exists(socket);
        while self.sockets.iter().any(|socket| is_left(&socket)) && !deadline.passed() {
            std::thread::sleep(Duration::from_millis(5));
        }
        let left = self.sockets.iter().find(is_left);
        assert!(left.is_none(), "left {left:?}: {stderr}");
        let ended = Ended { code, stderr, took };
        let files: Vec<_> = fs::read_dir(self.folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .filter(|name| name != "stderr")
            .collect();
        assert!(files.is_empty(), "left {files:?}: {ended:?}");
        ended
    }

    /// Waits for the end, which must be a success; returns the output.
    pub(crate) fn succeeds(self) -> String {
        let ended = self.end();
        assert_eq!(ended.code, 0, "{}", ended.stderr);
        ended.stderr
    }

    fn wait(&mut self) -> std::process::ExitStatus {
        let deadline = Deadline::after(LIMIT);
        loop {
            if let Some(status) = self.launcher.try_wait().unwrap() {
                return status;
            }
            assert!(!deadline.passed(), "it does not end: {}", self.said());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        // It may have exited; then the kill has no effect.
        let _ = self.launcher.kill();
        let _ = self.launcher.wait();
    }
}
