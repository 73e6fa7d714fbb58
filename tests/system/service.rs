//! `tidewater serve` with changing jobs: one after another under one name, concurrently under several,
//! and one that dies.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::MutexGuard;
use std::time::Duration;

use rustix::process::Signal;
use tempfile::TempDir;
use tidewater_runtime::clock::Deadline;

use crate::by_hand::{TOKEN, write_token};
use crate::model::{Rows, rows};
use crate::proc::Process;
use crate::rig::{LIMIT, Run, command, data, new_mark, tidewater, trainer, turn};

const SERVERS: &str = "2";

/// A service process. Dropping it kills it.
pub(crate) struct Service {
    pub(crate) process: Child,
    address: String,
    token: PathBuf,
    /// The only thing that its workers are given, if there is one.
    job_file: Option<PathBuf>,
    /// Servers with processes of their own.
    servers: Vec<Worker>,
    pub(crate) folder: TempDir,
    mark: String,
    _turn: MutexGuard<'static, ()>,
}

impl Service {
    fn start(options: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let token = write_token(&folder, "token", TOKEN);
        let own = ["--token-file", token.to_str().unwrap()];
        Self::of(folder, token.clone(), None, &[&own, options].concat())
    }

    /// Starts a service that writes a job file, from which its workers know everything.
    pub(crate) fn published(options: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.job");
        let own = ["--job-file", file.to_str().unwrap()];
        let options = [&own, options].concat();
        Self::of(folder, PathBuf::new(), Some(file.clone()), &options)
    }

    /// Starts a service of namespaces with servers and secrets of their own.
    pub(crate) fn apart(names: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &&str| format!("{name}={}/{name}.job", folder.path().display());
        let files: Vec<String> = names.iter().map(file).collect();
        let options = files.iter().flat_map(|file| ["--namespace", file]);
        let options: Vec<&str> = ["serve", "--servers", SERVERS]
            .into_iter()
            .chain(options)
            .collect();
        Self::started(folder, PathBuf::new(), None, &options)
    }

    /// Starts a coordinator that stays, and servers without numbers, each a process.
    pub(crate) fn of_processes(servers: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("service.job");
        let count = servers.to_string();
        let options = [
            "coordinator",
            "--servers",
            &count,
            "--job-file",
            file.to_str().unwrap(),
        ];
        let mut it = Self::started(folder, PathBuf::new(), Some(file.clone()), &options);
        it.servers = (0..servers).map(|_| it.server()).collect();
        it
    }

    /// Starts a server of the job file, to which the coordinator gives its number.
    pub(crate) fn server(&self) -> Worker {
        let log = tempfile::NamedTempFile::new_in(self.folder.path()).unwrap();
        let (file, log) = log.keep().unwrap();
        let process = command(&tidewater(), &self.mark)
            .args(["server", "--hugepages", "off", "--job-file"])
            .arg(self.job_file())
            .stderr(file)
            .spawn()
            .unwrap();
        Worker { process, log }
    }

    /// Path of the job file of a namespace.
    pub(crate) fn job_file_of(&self, name: &str) -> PathBuf {
        self.folder.path().join(format!("{name}.job"))
    }

    fn of(folder: TempDir, token: PathBuf, job_file: Option<PathBuf>, options: &[&str]) -> Self {
        let options = [&["serve", "--servers", SERVERS], options].concat();
        Self::started(folder, token, job_file, &options)
    }

    fn started(
        folder: TempDir,
        token: PathBuf,
        job_file: Option<PathBuf>,
        options: &[&str],
    ) -> Self {
        let turn = turn();
        let (mark, _) = new_mark();
        let stderr = File::create(folder.path().join("service")).unwrap();
        let mut process = command(&tidewater(), &mark)
            .args(options)
            .stderr(stderr)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdout = BufReader::new(process.stdout.take().unwrap());
        let mut line = String::new();
        // Each namespace says that it is ready.
        for _ in 0..options
            .iter()
            .filter(|o| **o == "--namespace")
            .count()
            .max(1)
        {
            line.clear();
            stdout.read_line(&mut line).unwrap();
        }
        let address = line.trim().rsplit(' ').next().unwrap().to_owned();
        Self {
            process,
            address,
            token,
            job_file,
            servers: Vec::new(),
            folder,
            mark,
            _turn: turn,
        }
    }

    /// Starts workers of a job: logistic regression on the generated data.
    fn starts(&self, name: &str, ranks: Range<u32>, workers: u32, arguments: &[&str]) -> Job {
        let (train, _) = data();
        let begin = |rank: u32| {
            let log = self.folder.path().join(format!("{name}-{rank}"));
            let stderr = File::create(&log).unwrap();
            let mut process = command(trainer(), &self.mark);
            match &self.job_file {
                Some(file) => process.env("TIDEWATER_JOB", file),
                None => process
                    .env("TIDEWATER_COORDINATOR", &self.address)
                    .env("TIDEWATER_TOKEN_FILE", &self.token)
                    .env("TIDEWATER_SERVERS", SERVERS),
            };
            let process = process
                .env("TIDEWATER_RANK", rank.to_string())
                .args(["lr", "--train", &train, "--namespace", name])
                .args(["--workers", &workers.to_string()])
                .args(arguments)
                .stderr(stderr)
                .spawn()
                .unwrap();
            Worker { process, log }
        };
        Job(ranks.map(begin).collect())
    }

    /// Starts all workers of a job.
    pub(crate) fn job(&self, name: &str, workers: u32, arguments: &[&str]) -> Job {
        self.starts(name, 0..workers, workers, arguments)
    }

    /// Runs a job to the end of training and saves; returns the model.
    fn trains(&self, workers: u32, arguments: &[&str]) -> Rows {
        let model = self.folder.path().join("model");
        let save = ["--save", model.to_str().unwrap()];
        self.job("job", workers, &[arguments, &save].concat())
            .succeeds();
        rows(&model)
    }

    /// Number of its open descriptors.
    fn descriptors(&self) -> usize {
        let fds = format!("/proc/{}/fd", self.process.id());
        fs::read_dir(fds).unwrap().count()
    }

    /// Waits until its open descriptors are back at the initial number.
    fn is_as_before(&self, descriptors: usize) {
        let deadline = Deadline::after(LIMIT);
        while self.descriptors() > descriptors {
            let now = self.descriptors();
            assert!(
                !deadline.passed(),
                "{now} descriptors, {descriptors} before"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// What the service has printed on stderr.
    pub(crate) fn said(&self) -> String {
        fs::read_to_string(self.folder.path().join("service")).unwrap()
    }

    /// Path of the job file.
    pub(crate) fn job_file(&self) -> &Path {
        self.job_file.as_deref().unwrap()
    }

    /// Ends the service by its signal.
    pub(crate) fn ends(&mut self) {
        Process::of(&self.process).signal(Signal::TERM);
        let status = wait(&mut self.process, Path::new("/dev/null"));
        assert!(status.success(), "{status}");
        for server in &mut self.servers {
            let (code, said) = server.ends();
            assert_eq!(code, Some(0), "{said}");
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // They may have exited.
        for server in &mut self.servers {
            let _ = server.process.kill();
            let _ = server.process.wait();
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The workers of one job. Dropping it kills them.
pub(crate) struct Job(pub(crate) Vec<Worker>);

pub(crate) struct Worker {
    pub(crate) process: Child,
    log: PathBuf,
}

impl Worker {
    fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    /// Waits for the end of the job; returns exit code and output.
    pub(crate) fn ends(&mut self) -> (Option<i32>, String) {
        let code = wait(&mut self.process, &self.log).code();
        (code, self.said())
    }
}

impl Job {
    /// Checks that all workers succeed.
    fn succeeds(mut self) {
        for worker in &mut self.0 {
            let (code, said) = worker.ends();
            assert_eq!(code, Some(0), "{said}");
        }
    }

    /// Waits until the second epoch is over: every worker pulls and pushes.
    pub(crate) fn until_training(&mut self) {
        let deadline = Deadline::after(LIMIT);
        while !self.0[0].said().contains("epoch 2/") {
            let ended = self.0[0].process.try_wait().unwrap();
            let over = deadline.passed() || ended.is_some();
            assert!(!over, "{ended:?}: {}", self.0[0].said());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        for worker in &mut self.0 {
            // It may have exited.
            let _ = worker.process.kill();
            let _ = worker.process.wait();
        }
    }
}

fn wait(process: &mut Child, log: &Path) -> ExitStatus {
    let deadline = Deadline::after(LIMIT);
    loop {
        if let Some(status) = process.try_wait().unwrap() {
            return status;
        }
        let said = || fs::read_to_string(log).unwrap_or_default();
        assert!(!deadline.passed(), "it does not end: {}", said());
        std::thread::sleep(Duration::from_millis(5));
    }
}

const BSP: &[&str] = &["--sync", "bsp", "--epochs", "2", "--seed", "1"];

/// Trains the model with three workers under `tidewater run`.
fn launched() -> Rows {
    let scratch = tempfile::tempdir().unwrap();
    let model = scratch.path().join("model");
    let save = ["--save", model.to_str().unwrap()];
    Run::train(
        &["--servers", SERVERS, "--workers", "3"],
        &[BSP, &save].concat(),
    )
    .succeeds();
    let rows = rows(&model);
    assert!(rows.len() > 100, "{} rows", rows.len());
    rows
}

#[test]
fn jobs_one_after_another_begin_anew_each() {
    let due = launched();
    let mut service = Service::start(&[]);
    let before = service.descriptors();
    for transport in ["shm", "tcp"] {
        let transport = ["--transport", transport];
        assert!(service.trains(3, &[BSP, &transport].concat()) == due);
        // Another number of workers, another kind of table of the same name.
        let ssp = ["--sync", "ssp:2", "--optimizer", "adam"];
        let other = service.trains(2, &[&ssp[..], &transport].concat());
        assert!(other.len() > 100 && other != due);
    }
    service.is_as_before(before);
    service.ends();
}

#[test]
fn jobs_of_a_service_for_so_many_workers_come_one_after_another_too() {
    let due = launched();
    let mut service = Service::start(&["--workers", "3"]);
    for _ in 0..2 {
        assert!(service.trains(3, BSP) == due);
    }
    // A worker with another number gets an error.
    let mut job = service.job("wrong", 2, BSP);
    for worker in &mut job.0 {
        let (code, said) = worker.ends();
        assert_eq!(code, Some(4), "{said}");
        assert!(said.contains("this job has 3 workers, not 2"), "{said}");
    }
    service.ends();
}

#[test]
fn jobs_at_a_time_do_not_disturb_each_other() {
    let due = launched();
    let mut service = Service::start(&[]);
    let model = |name| service.folder.path().join(format!("model-{name}"));
    let start = |name, ranks| {
        let model = model(name);
        let save = ["--save", model.to_str().unwrap()];
        service.starts(name, ranks, 3, &[BSP, &save].concat())
    };
    // Two of them run while the workers of a third wait for their last.
    let mut waiting = start("one", 0..2);
    for job in ["two", "three"].map(|name| start(name, 0..3)) {
        job.succeeds();
    }
    for worker in &mut waiting.0 {
        let ended = worker.process.try_wait().unwrap();
        assert!(ended.is_none(), "{ended:?}: {}", worker.said());
    }
    waiting.0.append(&mut start("one", 2..3).0);
    waiting.succeeds();
    for name in ["one", "two", "three"] {
        assert!(rows(&model(name)) == due, "job {name}");
    }
    service.ends();
}

#[test]
fn a_job_that_dies_takes_nobody_along_and_leaves_its_name() {
    let due = launched();
    let mut service = Service::start(&[]);
    let before = service.descriptors();
    let mut other = service.job("other", 1, &["--epochs", "100000"]);
    let mut dying = service.job("job", 2, &["--epochs", "100000"]);
    other.until_training();
    dying.until_training();
    Process::of(&dying.0[1].process).signal(Signal::KILL);
    let (code, said) = dying.0[0].ends();
    assert_eq!(code, Some(4), "{said}");
    assert!(said.contains("worker 1"), "{said}");
    drop(dying);
    // Its table, never released, does not belong to the next job of its name.
    assert!(service.trains(3, BSP) == due);
    let worker = &mut other.0[0];
    assert!(
        worker.process.try_wait().unwrap().is_none(),
        "{}",
        worker.said()
    );
    Process::of(&worker.process).signal(Signal::TERM);
    let (code, said) = worker.ends();
    assert_eq!(code, Some(128 + Signal::TERM.as_raw()), "{said}");
    service.is_as_before(before);
    service.ends();
}
