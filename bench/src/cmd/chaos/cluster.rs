//! A cluster of processes that the run starts one by one, and the judgement of its ledgers.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::Pid;
use tidewater::{JoinOptions, PullOptions, Table};
use tidewater_launch::{TransportChoice, token};
use tidewater_runtime::clock::Deadline;

use super::faults::Setup;
use super::host::{descendants, has_option, processes, time_until, until, wait_for};
use super::ledger::{Counts, system};
use super::worker::{self, ROWS, TABLE};
use crate::error::BenchError;

/// Time limit of a start, an end, and a recovery.
pub(super) const LIMIT: Duration = Duration::from_secs(30);
/// File name of the coordinator's log.
pub(super) const COORDINATOR_LOG: &str = "coordinator.log";

/// Numbers and programs of a cluster.
#[derive(Debug, Clone)]
pub(super) struct Shape {
    pub(super) setup: Setup,
    pub(super) program: PathBuf,
    pub(super) servers: u32,
    pub(super) workers: u32,
    pub(super) transport: TransportChoice,
}

/// A worker process with its ledger.
#[derive(Debug)]
struct Worker {
    child: Child,
    file: File,
    key: u64,
}

/// Coordinator, servers and workers as processes. Dropping it kills them.
#[derive(Debug)]
pub(super) struct FaultCluster {
    shape: Shape,
    /// Logs, token, ledgers, journal, saves.
    pub(super) dir: PathBuf,
    coordinator: Child,
    address: String,
    /// Servers by number, or their holders.
    servers: Vec<Child>,
    workers: Vec<Worker>,
    /// Counts of workers that were killed, by the number of their process.
    ended: BTreeMap<u64, Counts>,
    next_key: u64,
}

impl FaultCluster {
    /// Starts a cluster in a directory, and waits until each worker has pushed.
    pub(super) fn start(shape: &Shape, dir: &Path) -> Result<Self, BenchError> {
        for name in ["state", "saves"] {
            fs::create_dir_all(dir.join(name)).map_err(system("make the run's directory"))?;
        }
        let secret = token::random().map_err(|error| BenchError::Store(error.into()))?;
        let mut options = File::options();
        let options = options.write(true).create_new(true).mode(0o600);
        let file = options.open(dir.join("token"));
        let mut file = file.map_err(system("make the token file"))?;
        writeln!(file, "{}", secret.to_hex()).map_err(system("write the token file"))?;
        let (coordinator, address) = start_coordinator(shape, dir)?;
        let mut cluster = Self {
            shape: shape.clone(),
            dir: dir.to_owned(),
            coordinator,
            address,
            servers: Vec::new(),
            workers: Vec::new(),
            ended: BTreeMap::new(),
            next_key: 0,
        };
        for number in 0..shape.servers {
            let server = cluster.start_server(number)?;
            cluster.servers.push(server);
        }
        for rank in 0..shape.workers {
            let worker = cluster.start_worker(rank)?;
            cluster.workers.push(worker);
        }
        match cluster.until_all_acked(0, LIMIT)? {
            Some(_) => Ok(cluster),
            None => Err(cluster.failed("its workers do not push")),
        }
    }

    pub(super) fn failed(&self, why: &str) -> BenchError {
        BenchError::process(format!("the cluster in {}", self.dir.display()), why)
    }

    fn start_server(&self, number: u32) -> Result<Child, BenchError> {
        let mut server = Command::new(&self.shape.program);
        server
            .args(["server", "--appliers", "1", "--number"])
            .arg(number.to_string())
            .args(["--coordinator", &self.address, "--token-file"])
            .arg(self.dir.join("token"));
        if self.shape.setup.has_holders() {
            server.args(["--restarts", "1000000"]);
        }
        let log = append(&self.dir.join(server_log(number)))?;
        let server = server
            .env("RUST_LOG", "warn")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        server.map_err(system("start a server"))
    }

    fn start_worker(&mut self, rank: u32) -> Result<Worker, BenchError> {
        let key = self.next_key;
        self.next_key += 1;
        let path = self.dir.join(format!("ledger-{key}"));
        let file = Counts::open(&path)?;
        let program = std::env::current_exe().map_err(system("find this program"))?;
        let mut command = Command::new(program);
        command
            .arg(worker::ROLE)
            .args(["--coordinator", &self.address, "--token-file"])
            .arg(self.dir.join("token"))
            .arg("--ledger")
            .arg(&path)
            .args(["--rank", &rank.to_string(), "--key", &key.to_string()])
            .args(["--transport", self.shape.transport.name()]);
        if rank == 0 {
            command.arg("--saves").arg(self.saves());
        }
        if self.shape.setup == Setup::Warm {
            command.arg("--warm");
        }
        let log = append(&self.dir.join(worker_log(rank)))?;
        let child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        let child = child.map_err(system("start a worker"))?;
        Ok(Worker { child, file, key })
    }

    /// Directory of the saves of the first worker.
    pub(super) fn saves(&self) -> PathBuf {
        self.dir.join("saves")
    }

    /// Counts of the workers by rank; of a killed worker its last ones, until it is replaced.
    pub(super) fn counts(&self) -> Result<Vec<Counts>, BenchError> {
        let workers = self.workers.iter();
        workers.map(|worker| Counts::read(&worker.file)).collect()
    }

    /// Waits until every worker has an acknowledgement that is later than `since`, in ns of the monotonic clock.
    /// Returns the time from `since` until then; `None`: `limit` has passed.
    pub(super) fn until_all_acked(
        &self,
        since: u64,
        limit: Duration,
    ) -> Result<Option<Duration>, BenchError> {
        self.until_counts(since, limit, |counts| {
            counts.iter().all(|counts| counts.acked_at > since)
        })
    }

    /// Waits until a call of the first worker, which alone calls the coordinator, has returned later than
    /// `since`, in ns of the monotonic clock. Returns the time from `since` until then; `None`: `limit` has
    /// passed.
    pub(super) fn until_called(
        &self,
        since: u64,
        limit: Duration,
    ) -> Result<Option<Duration>, BenchError> {
        self.until_counts(since, limit, |counts| {
            counts.first().is_some_and(|first| first.called_at > since)
        })
    }

    /// Waits until `are` accepts the counts of the workers by rank. Returns the time from `since`, in ns of the
    /// monotonic clock, until then; `None`: `limit` has passed.
    pub(super) fn until_counts(
        &self,
        since: u64,
        limit: Duration,
        are: impl Fn(&[Counts]) -> bool,
    ) -> Result<Option<Duration>, BenchError> {
        time_until(since, limit, || Ok(are(&self.counts()?)))
    }

    /// Number of times that the log file `name` has a text; 0 without the file.
    pub(super) fn logged(&self, name: &str, text: &str) -> usize {
        occurrences(&self.dir.join(name), text)
    }

    pub(super) fn kill_coordinator(&mut self) -> Result<(), BenchError> {
        end(&mut self.coordinator)
    }

    /// Starts the coordinator again with its journal. An error if it has another address than before.
    pub(super) fn restart_coordinator(&mut self) -> Result<(), BenchError> {
        let (coordinator, address) = start_coordinator(&self.shape, &self.dir)?;
        self.coordinator = coordinator;
        match address == self.address {
            true => Ok(()),
            false => Err(self.failed("the coordinator has another address")),
        }
    }

    /// Waits until the coordinator has ended by itself; `None`: `limit` has passed.
    pub(super) fn coordinator_ends(
        &mut self,
        limit: Duration,
    ) -> Result<Option<ExitStatus>, BenchError> {
        wait_for(&mut self.coordinator, limit)
    }

    /// Kills a worker and waits for its end. Its ledger still counts.
    pub(super) fn kill_worker(&mut self, rank: u32) -> Result<(), BenchError> {
        let worker = &mut self.workers[rank as usize];
        end(&mut worker.child)?;
        self.ended.insert(worker.key, Counts::read(&worker.file)?);
        Ok(())
    }

    /// Starts a worker in place of one that was killed, again while its rank is not free yet. Returns when the
    /// new worker has pushed; an error after [`LIMIT`].
    pub(super) fn replace_worker(&mut self, rank: u32) -> Result<(), BenchError> {
        let limit = Deadline::after(LIMIT);
        loop {
            let mut worker = self.start_worker(rank)?;
            let pushed = until(limit.left(), || {
                let ended = worker.child.try_wait();
                let ended = ended.map_err(system("wait for a worker"))?.is_some();
                let acked = Counts::read(&worker.file)?.acked > 0;
                Ok((ended || acked).then_some(acked))
            })?;
            self.workers[rank as usize] = worker;
            match pushed {
                Some(true) => return Ok(()),
                // It was refused.
                Some(false) if !limit.passed() => {}
                _ => return Err(self.failed("no worker is admitted in place of a killed one")),
            }
        }
    }

    /// Kills the process that serves: with a holder the child of the holder, which stays.
    pub(super) fn kill_server(&mut self, number: u32) -> Result<(), BenchError> {
        match self.shape.setup.has_holders() {
            true => super::host::signal(self.server_pid(number)?, rustix::process::Signal::KILL),
            false => self.kill_holder(number),
        }
    }

    /// Kills the process that the run has started for a server: the holder, if there is one, or the server.
    pub(super) fn kill_holder(&mut self, number: u32) -> Result<(), BenchError> {
        end(&mut self.servers[number as usize])
    }

    /// Forgets the ledgers of killed workers: the tables are new.
    pub(super) fn forget_ended(&mut self) {
        self.ended.clear();
    }

    /// Sum of the acknowledged pushes of all workers, killed ones included.
    pub(super) fn acked(&self) -> Result<u64, BenchError> {
        Ok(self.ledgers()?.values().map(|counts| counts.acked).sum())
    }

    /// Waits until every worker has ended, for at most `limit` in all. Returns the exit statuses by rank;
    /// `None` for a worker that has not ended.
    pub(super) fn workers_end(
        &mut self,
        limit: Duration,
    ) -> Result<Vec<Option<ExitStatus>>, BenchError> {
        let limit = Deadline::after(limit);
        let workers = self.workers.iter_mut();
        workers
            .map(|worker| wait_for(&mut worker.child, limit.left()))
            .collect()
    }

    pub(super) fn coordinator_pid(&self) -> Pid {
        Pid::from_child(&self.coordinator)
    }

    /// The process that serves. With a holder this is a child of the holder, which may be starting it: waits
    /// for the child for at most [`LIMIT`].
    pub(super) fn server_pid(&self, number: u32) -> Result<Pid, BenchError> {
        let own = Pid::from_child(&self.servers[number as usize]);
        if !self.shape.setup.has_holders() {
            return Ok(own);
        }
        let found = until(LIMIT, || {
            let children = descendants(&processes()?, own);
            Ok(children.first().map(|child| child.pid))
        })?;
        found.ok_or_else(|| self.failed(&format!("holder {number} has no server")))
    }

    pub(super) fn worker_pid(&self, rank: u32) -> Pid {
        Pid::from_child(&self.workers[rank as usize].child)
    }

    /// Compares the table with all ledgers: an observer pulls each row. Returns the number of pushes that were
    /// acknowledged before, or a text that names the first row with a lost or doubled push.
    pub(super) fn check_ledger(&self) -> Result<Result<u64, String>, BenchError> {
        let secret = token::read_file(&self.dir.join("token"));
        let secret = secret.map_err(|error| BenchError::Store(error.into()))?;
        let options = JoinOptions {
            coordinator: Some(self.address.clone()),
            token: Some(secret),
            transport: Some(self.shape.transport),
            observer: true,
            ..JoinOptions::default()
        };
        let job = options.join()?.into_job();
        let mut observer = job.ok_or_else(|| self.failed("no job"))?.observer()?;
        let table: Table<i64> = observer.open_table(TABLE)?;
        let before = self.ledgers()?;
        let keys: Vec<u64> = before.keys().flat_map(|key| worker::rows(*key)).collect();
        let mut values = vec![0; keys.len()];
        observer.pull_rows(&table, &keys, &mut values, PullOptions::default())?;
        let after = self.ledgers()?;
        observer.finish()?;
        let mut sum = 0;
        for (row, value) in keys.iter().zip(&values) {
            let key = row / ROWS;
            let [before, after] =
                [&before, &after].map(|all| all.get(&key).copied().unwrap_or_default());
            match judge(*value, before.acked, after.begun) {
                Some(verdict) => return Ok(Err(format!("row {row} of process {key}: {verdict}"))),
                None => sum += before.acked,
            }
        }
        Ok(Ok(sum / ROWS))
    }

    fn ledgers(&self) -> Result<BTreeMap<u64, Counts>, BenchError> {
        let mut all = self.ended.clone();
        for worker in &self.workers {
            all.insert(worker.key, Counts::read(&worker.file)?);
        }
        Ok(all)
    }

    /// Ends the workers, and with them the cluster. The inner error names the first process that ends with an
    /// error, or does not end within [`LIMIT`].
    pub(super) fn finish(&mut self) -> Result<Result<(), String>, BenchError> {
        for worker in &mut self.workers {
            worker.child.stdin = None;
        }
        for (rank, status) in (0..).zip(self.workers_end(LIMIT)?) {
            if !status.is_some_and(|status| status.success()) {
                return Ok(Err(format!("worker {rank} ends with {status:?}")));
            }
        }
        for process in self.servers.iter_mut().chain([&mut self.coordinator]) {
            let status = wait_for(process, LIMIT)?;
            if !status.is_some_and(|status| status.success()) {
                let text = format!("a server or the coordinator ends with {status:?}");
                return Ok(Err(text));
            }
        }
        Ok(Ok(()))
    }
}

impl Drop for FaultCluster {
    fn drop(&mut self) {
        let workers = self.workers.iter_mut().map(|worker| &mut worker.child);
        let others = self.servers.iter_mut().chain([&mut self.coordinator]);
        for process in workers.chain(others) {
            // It may have ended.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// What is wrong with a row that counts `value` pushes; `None` if `value` is from `acked` to `begun`.
pub(super) fn judge(value: i64, acked: u64, begun: u64) -> Option<String> {
    match u64::try_from(value) {
        Ok(value) if value < acked => Some(format!(
            "{value} pushes, and {acked} were acknowledged: lost"
        )),
        Ok(value) if value <= begun => None,
        _ => Some(format!("{value} pushes, and {begun} were begun: doubled")),
    }
}

/// Kills a process and waits for it.
fn end(child: &mut Child) -> Result<(), BenchError> {
    child.kill().map_err(system("kill a process"))?;
    child.wait().map_err(system("wait for a process"))?;
    Ok(())
}

pub(super) fn server_log(number: u32) -> String {
    format!("server-{number}.log")
}

pub(super) fn worker_log(rank: u32) -> String {
    format!("worker-{rank}.log")
}

/// Opens a log to append to it; creates the file if it is missing.
pub(super) fn append(path: &Path) -> Result<File, BenchError> {
    let file = File::options().create(true).append(true).open(path);
    file.map_err(system(format!("open the log {}", path.display())))
}

/// Number of times that a file has a text; 0 for a file that is not there yet.
pub(super) fn occurrences(path: &Path, text: &str) -> usize {
    let log = fs::read(path).unwrap_or_default();
    String::from_utf8_lossy(&log).matches(text).count()
}

fn start_coordinator(shape: &Shape, dir: &Path) -> Result<(Child, String), BenchError> {
    let mut command = Command::new(&shape.program);
    command
        .args(["coordinator", "--on-lost", "go-on", "--servers"])
        .arg(shape.servers.to_string())
        .args(["--workers", &shape.workers.to_string(), "--token-file"])
        .arg(dir.join("token"));
    if shape.setup.has_journal() && has_option(&shape.program, "coordinator", "--state") {
        command.arg("--state").arg(dir.join("state"));
        // A worker that dies before it has come back to a restarted coordinator is lost after this time. One that
        // pushes comes back within 5 s.
        command.args(["--return-timeout", "12s"]);
    }
    let log = append(&dir.join(COORDINATOR_LOG))?;
    command
        .env("RUST_LOG", "info")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log);
    let mut child = command.spawn().map_err(system("start the coordinator"))?;
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        let read = BufReader::new(stdout).read_line(&mut line);
        read.map_err(system("read the coordinator's address"))?;
    }
    match line.trim().rsplit(' ').next() {
        Some(address) if address.contains(':') => Ok((child, address.to_owned())),
        _ => {
            let text = format!("no address in {line:?}; see {}", dir.display());
            Err(BenchError::process("the coordinator", text))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ledger_allows_open_push_only() {
        for value in [5, 6] {
            assert_eq!(judge(value, 5, 6), None);
        }
        assert!(judge(4, 5, 6).unwrap().contains("lost"));
        assert!(judge(7, 5, 6).unwrap().contains("doubled"));
        assert!(judge(-1, 0, 6).unwrap().contains("doubled"));
    }
}
