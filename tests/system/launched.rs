//! Processes of a launcher, which is the test: its variables, and processes that start late, twice or
//! never. `ci/launch.sh` tests real launchers.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::MutexGuard;
use std::time::Duration;

use tempfile::TempDir;
use tidewater_launch::{BootstrapRecord, directory};
use tidewater_protocol::wire::handshake::JobToken;
use tidewater_runtime::clock::{self, Deadline};

use crate::proc::marked;
use crate::rig::{LIMIT, command, data, new_mark, tidewater, trainer, turn};

/// Processes as a launcher starts them, in a separate folder. Dropping it kills them.
pub(crate) struct Started {
    processes: Vec<(u32, Child)>,
    pub(crate) folder: TempDir,
    mark: String,
    variable: String,
    /// Standard input of the next process.
    input: Option<OwnedFd>,
    _turn: MutexGuard<'static, ()>,
}

impl Started {
    pub(crate) fn new() -> Self {
        let turn = turn();
        let (mark, variable) = new_mark();
        Self {
            processes: Vec::new(),
            folder: tempfile::tempdir().unwrap(),
            mark,
            variable,
            input: None,
            _turn: turn,
        }
    }

    /// Starts a process; `vars` are lines `NAME=value` in which `%` stands for its rank.
    fn start(&mut self, rank: u32, program: &Path, arguments: &[&str], vars: &str) {
        let log = self
            .folder
            .path()
            .join(format!("log.{}", self.processes.len()));
        let log = fs::File::create(log).unwrap();
        let mut started: Command = command(program, &self.mark);
        started
            .args(arguments)
            .current_dir(self.folder.path())
            .stdout(Stdio::null())
            .stderr(log);
        if let Some(input) = self.input.take() {
            started.stdin(input);
        }
        for pair in vars.split_whitespace() {
            let (name, value) = pair.split_once('=').unwrap();
            started.env(name, value.replace('%', &rank.to_string()));
        }
        self.processes.push((rank, started.spawn().unwrap()));
    }

    pub(crate) fn server(&mut self, rank: u32, vars: &str, more: &[&str]) {
        let arguments = ["server", "--hugepages", "off"];
        self.start(rank, &tidewater(), &[&arguments, more].concat(), vars);
    }

    fn train(&mut self, rank: u32, vars: &str, more: &[&str]) {
        let (train, test) = data();
        let arguments = ["lr", "--train", &train, "--test", &test, "--epochs", "2"];
        self.start(rank, trainer(), &[&arguments, more].concat(), vars);
    }

    /// Waits for all processes; returns exit code and output of each, in start order.
    pub(crate) fn end(mut self) -> (Vec<(i32, String)>, TempDir) {
        let deadline = Deadline::after(LIMIT);
        let mut ended = Vec::new();
        for (number, (rank, process)) in self.processes.iter_mut().enumerate() {
            let log = self.folder.path().join(format!("log.{number}"));
            let status = loop {
                if let Some(status) = process.try_wait().unwrap() {
                    break status;
                }
                let said = || fs::read_to_string(&log).unwrap();
                assert!(!deadline.passed(), "rank {rank} does not end: {}", said());
                std::thread::sleep(Duration::from_millis(5));
            };
            ended.push((
                status.code().unwrap_or(-1),
                fs::read_to_string(&log).unwrap(),
            ));
            fs::remove_file(&log).unwrap();
        }
        let left = marked(&self.variable);
        assert!(left.is_empty(), "left {left:?}");
        let folder = std::mem::replace(&mut self.folder, tempfile::tempdir().unwrap());
        (ended, folder)
    }

    /// Checks that all succeeded and left only `files` in the folder; returns their outputs.
    fn succeed(self, files: &[&str]) -> Vec<String> {
        let (ended, folder) = self.end();
        for (code, said) in &ended {
            assert_eq!(*code, 0, "{ended:#?}\n{said}");
        }
        let left = fs::read_dir(folder.path()).unwrap().flatten();
        let mut left: Vec<_> = left.map(|entry| entry.file_name()).collect();
        left.sort();
        assert_eq!(left, files);
        ended.into_iter().map(|(_, said)| said).collect()
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        for (_, process) in &mut self.processes {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

pub(crate) const FLUX: &str = "FLUX_TASK_RANK=% FLUX_JOB_SIZE=4 FLUX_TASK_LOCAL_ID=% FLUX_JOB_ID=f2xY \
                    TIDEWATER_INTERFACE=lo";
const TORCH: &str = "RANK=% WORLD_SIZE=4 LOCAL_RANK=% LOCAL_WORLD_SIZE=4 MASTER_ADDR=localhost \
                     MASTER_PORT=29500 TORCHELASTIC_RUN_ID=none";
const SRUN: &str = "SLURM_JOB_ID=12 SLURM_STEP_ID=0 SLURM_PROCID=% SLURM_STEP_NUM_TASKS=4 \
                    SLURM_LOCALID=% SLURM_NODEID=0 SLURM_STEP_TASKS_PER_NODE=4 \
                    SLURM_STEP_NODELIST=localhost";

/// Fingerprint of the model that rank 0 of the workers has written.
fn fingerprint(folder: &Path) -> String {
    let text = fs::read_to_string(folder.join("out.json")).unwrap();
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    fs::remove_file(folder.join("out.json")).unwrap();
    report["fingerprint"].as_str().unwrap().to_owned()
}

#[test]
fn launchers_that_are_not_at_hand_by_their_variables() {
    let mut models = Vec::new();
    for (vars, name) in [(FLUX, "Flux"), (TORCH, "torchrun"), (SRUN, "Slurm")] {
        let mut job = Started::new();
        // Workers first: rank 0, a worker, runs the coordinator.
        for rank in [2, 0, 1] {
            job.train(rank, vars, &["--json", "out.json"]);
        }
        job.server(3, vars, &[]);
        let (ended, folder) = job.end();
        for (code, said) in &ended {
            assert_eq!(*code, 0, "{name}: {said}");
            assert!(said.contains(&format!("(by {name})")), "{said}");
        }
        for (at, part) in [
            (1, "rank 0 of 4"),
            (1, "worker 0 of 3"),
            (3, "server 0 of 1"),
        ] {
            assert!(
                ended[at].1.contains(part),
                "{name}: no {part}: {}",
                ended[at].1
            );
        }
        models.push(fingerprint(folder.path()));
        assert_eq!(
            fs::read_dir(folder.path()).unwrap().count(),
            0,
            "{name} left something"
        );
    }
    assert!(models.iter().all(|model| *model == models[0]), "{models:?}");
}

pub(crate) const BY_HAND: &str = "TIDEWATER_RANK=% TIDEWATER_SIZE=3 TIDEWATER_RENDEZVOUS=meet \
                       TIDEWATER_INTERFACE=lo";

#[test]
fn one_program_for_all() {
    let mut job = Started::new();
    for rank in 0..3 {
        job.train(rank, BY_HAND, &["--servers", "1"]);
    }
    let said = job.succeed(&[]);
    assert!(said[0].contains("is server 0 of 1"), "{}", said[0]);
    assert!(said[2].contains("is worker 1 of 2"), "{}", said[2]);
}

#[test]
fn servers_inside_all_ranks_train_the_model_of_servers_beside() {
    let mut models = Vec::new();
    for beside in [true, false] {
        let mut job = Started::new();
        let vars = BY_HAND.replace("SIZE=3", if beside { "SIZE=4" } else { "SIZE=3" });
        let more: &[&str] = if beside { &[] } else { &["--servers-in-ranks"] };
        for rank in 0..3 {
            job.train(rank, &vars, &[more, &["--json", "out.json"]].concat());
        }
        if beside {
            job.server(3, &vars, &[]);
        }
        let (ended, folder) = job.end();
        for (rank, (code, said)) in ended.iter().enumerate() {
            assert_eq!(*code, 0, "{said}");
            let expected = format!("is server and worker {rank} of 3");
            assert!(beside || said.contains(&expected), "{said}");
        }
        models.push(fingerprint(folder.path()));
    }
    assert_eq!(models[0], models[1], "they differ in bits");
}

/// Ranks that serve and work at once, and one that only works: each has its number among the workers.
#[test]
fn servers_inside_some_ranks_train() {
    let mut job = Started::new();
    for rank in 0..3 {
        let vars = format!(
            "{BY_HAND} TIDEWATER_SERVERS_IN_RANKS={}",
            u32::from(rank != 1)
        );
        job.train(rank, &vars, &[]);
    }
    let (ended, _) = job.end();
    for (rank, (code, said)) in ended.iter().enumerate() {
        assert_eq!(*code, 0, "{said}");
        let part = if rank == 1 {
            "worker"
        } else {
            "server and worker"
        };
        assert!(said.contains(&format!("is {part} {rank} of 3")), "{said}");
    }
}

#[test]
fn a_card_that_an_earlier_job_left_is_no_harm() {
    for size_before in [3, 4] {
        let mut job = Started::new();
        let closed = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = closed.local_addr().unwrap().to_string();
        drop(closed);
        let old = BootstrapRecord::new(size_before, JobToken::new([1; 32]), [address]);
        std::mem::forget(directory::post(&job.folder.path().join("meet"), &old).unwrap());
        for rank in [1, 2] {
            job.train(rank, BY_HAND, &[]);
        }
        // By now they have found the old bootstrap record, and no listener at its address.
        std::thread::sleep(Duration::from_millis(300));
        job.server(0, BY_HAND, &[]);
        job.succeed(&[]);
    }
}

/// Without a rank 0 of this job, the record of another one is reported at the deadline.
#[test]
fn record_of_other_size_named_at_deadline() {
    let mut job = Started::new();
    let old = BootstrapRecord::new(4, JobToken::new([1; 32]), ["127.0.0.1:9".to_owned()]);
    std::mem::forget(directory::post(&job.folder.path().join("meet"), &old).unwrap());
    let began = clock::now();
    job.server(2, BY_HAND, &["--join-timeout", "1s"]);
    let (ended, _) = job.end();
    assert!(began.elapsed() >= Duration::from_millis(900));
    let (code, said) = &ended[0];
    assert_eq!(*code, 4, "{said}");
    let text = "is of a job of 4 processes, this one is one of 3";
    assert!(said.contains(text), "{said}");
}

#[test]
fn who_does_not_come_is_named_in_time() {
    let mut job = Started::new();
    for rank in [0, 2] {
        job.server(rank, BY_HAND, &["--join-timeout", "2s"]);
    }
    let (ended, _) = job.end();
    for (code, said) in ended {
        assert_eq!(code, 4, "{said}");
        assert!(
            said.contains("2 of 3 processes have come; missing: rank 1"),
            "{said}"
        );
    }
    let mut job = Started::new();
    job.server(2, BY_HAND, &["--join-timeout", "1s"]);
    let (ended, _) = job.end();
    let (code, said) = &ended[0];
    assert_eq!(*code, 4, "{said}");
    assert!(
        said.contains("no bootstrap record of rank 0 in") && said.contains("meet"),
        "{said}"
    );
}

/// A PMI-1 launcher that waits for one process more than exist: it reads every process's commands, and
/// no process leaves the barrier.
fn endless_barrier() -> OwnedFd {
    let (theirs, ours) = UnixStream::pair().unwrap();
    std::thread::spawn(move || {
        for line in BufReader::new(&ours).lines().map_while(Result::ok) {
            let answer = match line.split(' ').next() {
                Some("cmd=init") => "cmd=response_to_init rc=0",
                Some("cmd=get_my_kvsname") => "cmd=my_kvsname kvsname=kvs_1_0_2_host",
                Some("cmd=put") => "cmd=put_result rc=0",
                _ => continue,
            };
            // An exited process reads no answer.
            let _ = (&ours).write_all(format!("{answer}\n").as_bytes());
        }
    });
    theirs.into()
}

#[test]
fn who_does_not_come_to_the_launchers_barrier_is_named_too() {
    let pmi = "PMI_FD=0 PMI_RANK=% PMI_SIZE=3 MPI_LOCALNRANKS=3 MPI_LOCALRANKID=%";
    let job = |ranks: [u32; 2]| {
        let mut job = Started::new();
        for rank in ranks {
            job.input = Some(endless_barrier());
            job.server(rank, pmi, &["--join-timeout", "3s"]);
        }
        let (ended, folder) = job.end();
        assert_eq!(
            fs::read_dir(folder.path()).unwrap().count(),
            0,
            "a bootstrap record is left"
        );
        ended
    };
    for (code, said) in job([0, 2]) {
        assert_eq!(code, 4, "{said}");
        let expected = "2 of 3 processes have come; missing: rank 1; on host ";
        assert!(said.contains(expected), "{said}");
    }
    for (code, said) in job([1, 2]) {
        assert_eq!(code, 4, "{said}");
        assert!(
            said.contains("rank 0 has left no bootstrap record in .tidewater/pmi-kvs_1_0_2_host"),
            "{said}"
        );
    }
}

#[test]
fn two_processes_with_one_rank_both_end_and_so_does_a_second_job_in_one_place() {
    let mut job = Started::new();
    job.server(0, BY_HAND, &[]);
    job.train(1, BY_HAND, &[]);
    job.train(1, BY_HAND, &[]);
    let (ended, folder) = job.end();
    for (code, said) in ended {
        assert_eq!(code, 4, "{said}");
        assert_eq!(
            said.matches("rank 1 (pid").count(),
            2,
            "both are named: {said}"
        );
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);

    let mut job = Started::new();
    job.server(0, BY_HAND, &[]);
    let deadline = Deadline::after(LIMIT);
    while !job.folder.path().join("meet/card").exists() {
        assert!(!deadline.passed(), "no bootstrap record");
        std::thread::sleep(Duration::from_millis(5));
    }
    job.server(0, BY_HAND, &[]);
    let second = &mut job.processes[1].1;
    let status = second.wait().unwrap();
    assert_eq!(status.code(), Some(4));
    let said = fs::read_to_string(job.folder.path().join("log.1")).unwrap();
    assert!(
        said.contains("another job meets in") && said.contains("pid"),
        "{said}"
    );
    // The first job is not disturbed.
    for rank in [1, 2] {
        job.train(rank, BY_HAND, &[]);
    }
    let (ended, _) = job.end();
    let codes: Vec<i32> = ended.iter().map(|(code, _)| *code).collect();
    assert_eq!(codes, [0, 4, 0, 0], "{ended:?}");
}

#[test]
fn at_an_address_with_a_token_that_all_have_over_ipv6_too() {
    for host in ["127.0.0.1", "[::1]", "localhost"] {
        if host == "[::1]" && TcpListener::bind("[::1]:0").is_err() {
            println!("no IPv6 here");
            continue;
        }
        let mut job = Started::new();
        let free = TcpListener::bind(format!("{host}:0")).unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        let mut token = fs::File::options()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(job.folder.path().join("token"))
            .unwrap();
        std::io::Write::write_all(&mut token, "5a".repeat(32).as_bytes()).unwrap();
        let vars = format!(
            "TIDEWATER_RANK=% TIDEWATER_SIZE=2 TIDEWATER_RENDEZVOUS={host}:{port} \
             TIDEWATER_TOKEN_FILE=token SLURM_JOB_ID=3"
        );
        // The interface is loopback with IPv4 as its first address; the address selects the family.
        let local = if host == "[::1]" {
            ""
        } else {
            " TIDEWATER_INTERFACE=lo"
        };
        let vars = vars + local;
        job.train(1, &vars, &[]);
        job.server(0, &vars, &[]);
        let said = job.succeed(&["token"]);
        assert!(
            said[0].contains(&format!("coordinator at {host}:{port}")),
            "{}",
            said[0]
        );
    }
}

#[test]
fn alone_without_servers_or_without_a_way_to_meet_is_said_and_never_a_silent_job_of_one() {
    let mut job = Started::new();
    for rank in 0..2 {
        job.train(rank, &BY_HAND.replace("SIZE=3", "SIZE=2"), &[]);
    }
    let (ended, _) = job.end();
    for (code, said) in ended {
        assert_eq!(code, 4, "{said}");
        assert!(said.contains("mpirun -n 2 tidewater server :"), "{said}");
    }
    let mut job = Started::new();
    let ompi = "OMPI_COMM_WORLD_RANK=% OMPI_COMM_WORLD_SIZE=2";
    job.train(1, ompi, &[]);
    job.train(0, "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1", &[]);
    let (ended, _) = job.end();
    assert_eq!(ended[0].0, 3, "{}", ended[0].1);
    assert!(
        ended[0].1.contains("Give --rendezvous DIRECTORY"),
        "{}",
        ended[0].1
    );
    assert_eq!(ended[1].0, 0, "one process is a job of one: {}", ended[1].1);
}
