//! The coordinator is killed and started again with its journal: workers and servers go on without it, and
//! what needs it is done once or is an error.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Output, Stdio};
use std::sync::MutexGuard;
use std::time::Duration;

use rustix::process::Signal;
use tempfile::TempDir;
use tidewater::{Client, ClientError, JoinOptions, PullOptions, SyncMode, Table, TableBuilder};
use tidewater_launch::TransportChoice;
use tidewater_protocol::table::PushOp;
use tidewater_protocol::wire::handshake::JobToken;
use tidewater_runtime::clock::{self, Deadline};
use tidewater_runtime::sync::{AtomicBool, AtomicU64, Ordering};
use tidewater_tasks::{QueueOptions, Tasks};

use crate::by_hand::{TOKEN, write_token};
use crate::proc::Process;
use crate::rig::{Run, command, new_mark, tidewater, turn};

/// Longer than any call here takes on a busy machine.
const LONG: Duration = Duration::from_secs(40);
const SERVERS: u32 = 2;

/// A coordinator with a journal, and its servers. Dropping it kills them.
struct Cluster {
    coordinator: Child,
    address: String,
    servers: Vec<Child>,
    workers: u32,
    folder: TempDir,
    mark: String,
    _turn: MutexGuard<'static, ()>,
}

impl Cluster {
    fn start(workers: u32) -> Self {
        let turn = turn();
        let folder = tempfile::tempdir().unwrap();
        write_token(&folder, "token", TOKEN);
        let (mark, _) = new_mark();
        let (coordinator, address) = start(&folder, &mark, workers, "state");
        let servers = (0..SERVERS).map(|number| {
            let mut server = command(&tidewater(), &mark);
            server.args([
                "server",
                "--coordinator",
                &address,
                "--appliers",
                "1",
                "--number",
            ]);
            server.arg(number.to_string()).arg("--token-file");
            server.arg(folder.path().join("token")).spawn().unwrap()
        });
        let servers = servers.collect();
        Self {
            coordinator,
            address,
            servers,
            workers,
            folder,
            mark,
            _turn: turn,
        }
    }

    fn kill(&mut self) {
        self.coordinator.kill().unwrap();
        self.coordinator.wait().unwrap();
    }

    fn restart(&mut self) {
        self.restart_with("state");
    }

    fn restart_with(&mut self, state: &str) {
        let address;
        (self.coordinator, address) = start(&self.folder, &self.mark, self.workers, state);
        assert_eq!(address, self.address, "its processes know this address");
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A worker under BSP.
    fn client(&self, rank: u32, transport: TransportChoice) -> Client {
        let options = JoinOptions {
            coordinator: Some(self.address.clone()),
            token: Some(JobToken::new([TOKEN; 32])),
            rank: Some(rank),
            transport: Some(transport),
            ..JoinOptions::default()
        };
        let job = options.join().unwrap().into_job().unwrap();
        let mut client = job.client(SyncMode::Bsp).unwrap();
        client.set_timeout(LONG);
        client.set_clock_timeout(LONG);
        client
    }

    fn clients(&self, transport: TransportChoice) -> Vec<Client> {
        std::thread::scope(|scope| {
            let join = |rank| scope.spawn(move || self.client(rank, transport));
            let joining: Vec<_> = (0..self.workers).map(join).collect();
            let joined = joining.into_iter().map(|thread| thread.join().unwrap());
            joined.collect()
        })
    }

    /// Waits for the end of all processes, which must be a success.
    fn ends(mut self) {
        let limit = Deadline::after(LONG);
        let all = self.servers.iter_mut().chain([&mut self.coordinator]);
        for child in all {
            let status = loop {
                if let Some(status) = child.try_wait().unwrap() {
                    break status;
                }
                assert!(!limit.passed(), "a process does not end");
                std::thread::sleep(Duration::from_millis(5));
            };
            assert!(status.success(), "{status}");
        }
        assert!(
            !self.path("state/journal").exists(),
            "the cluster has ended"
        );
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for child in self.servers.iter_mut().chain([&mut self.coordinator]) {
            // It may have exited, or have been waited for.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn coordinator(folder: &TempDir, mark: &str, workers: u32, state: &str) -> std::process::Command {
    let mut coordinator = command(&tidewater(), mark);
    coordinator.args(["coordinator", "--servers", &SERVERS.to_string()]);
    coordinator.args(["--workers", &workers.to_string(), "--token-file"]);
    coordinator.arg(folder.path().join("token")).arg("--state");
    coordinator.arg(folder.path().join(state));
    coordinator
}

fn start(folder: &TempDir, mark: &str, workers: u32, state: &str) -> (Child, String) {
    let mut coordinator = coordinator(folder, mark, workers, state);
    let mut child = coordinator.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let stdout = child.stdout.take().unwrap();
    BufReader::new(stdout).read_line(&mut line).unwrap();
    let address = line.trim().rsplit(' ').next().unwrap().to_owned();
    (child, address)
}

const DIM: usize = 4;
const KEYS: u64 = 32;

fn ledger(client: &mut Client) -> Table<f32> {
    let spec = TableBuilder::sparse::<f32>("ledger", DIM as u32);
    client.create_table(spec.spec()).unwrap()
}

/// One iteration: a push of 1 to each key, a pull, a tick.
fn step(client: &mut Client, table: &Table<f32>) {
    let keys: Vec<u64> = (0..KEYS).collect();
    let ones = vec![1.0; keys.len() * DIM];
    let pushed = client.push_rows(table, &keys, &ones, PushOp::Sum).unwrap();
    client.tick().unwrap();
    client.wait_applied(&pushed).unwrap();
    let mut out = vec![0.0; keys.len() * DIM];
    let options = PullOptions::default();
    client.pull_rows(table, &keys, &mut out, options).unwrap();
    assert!(out.iter().all(|&value| value >= 1.0), "{out:?}");
}

/// All pushes count once: `pushes` in each element.
fn check_ledger(client: &mut Client, table: &Table<f32>, pushes: u64) {
    let keys: Vec<u64> = (0..KEYS).collect();
    let mut out = vec![0.0; keys.len() * DIM];
    let options = PullOptions::default();
    client.pull_rows(table, &keys, &mut out, options).unwrap();
    assert_eq!(out, vec![pushes as f32; keys.len() * DIM]);
}

/// What needs the coordinator, in round `round`: a barrier, a table of its own, its release, a save.
fn round(client: &mut Client, round: u64, arrived: &AtomicU64, workers: u64, model: &Path) {
    arrived.fetch_add(1, Ordering::SeqCst);
    client.barrier("round", LONG).unwrap();
    let there = arrived.load(Ordering::SeqCst);
    assert!(
        there >= (round + 1) * workers,
        "barrier {round} opened for {there} arrivals"
    );
    let name = format!("round {}", round % 3);
    let spec = TableBuilder::sparse::<f32>(&name, 1);
    let table: Table<f32> = client.create_table(spec.spec()).unwrap();
    let pushed = client.push_rows(&table, &[7], &[1.0], PushOp::Sum);
    client.wait_applied(&pushed.unwrap()).unwrap();
    client.barrier("pushed", LONG).unwrap();
    let mut seen = [0.0];
    let options = PullOptions::default();
    client.pull_rows(&table, &[7], &mut seen, options).unwrap();
    assert_eq!(seen, [workers as f32], "one table for all, made once");
    client.barrier("seen", LONG).unwrap();
    if client.rank().0 == 0 {
        let rows = client.save(model.to_str().unwrap(), LONG).unwrap().rows;
        assert_eq!(rows, KEYS + 1);
        client.release_table(table).unwrap();
    }
}

/// Workers push, pull and tick, and use the coordinator all the time, while it is killed again and again.
fn killed_again_and_again(transport: TransportChoice, kills: u32) {
    const WORKERS: u32 = 2;
    let mut cluster = Cluster::start(WORKERS);
    let clients = cluster.clients(transport);
    let (over, arrived) = (AtomicBool::new(false), AtomicU64::new(0));
    let rounds = AtomicU64::new(u64::MAX);
    let model = cluster.path("model");
    std::thread::scope(|scope| {
        let (over, arrived, rounds, model) = (&over, &arrived, &rounds, &model);
        let work = |mut client: Client| {
            let table = ledger(&mut client);
            let mut done = 0;
            // All workers end after the round that the first one has said is the last.
            while done <= rounds.load(Ordering::SeqCst) {
                if client.rank().0 == 0 && over.load(Ordering::SeqCst) {
                    rounds.fetch_min(done, Ordering::SeqCst);
                }
                round(&mut client, done, arrived, u64::from(WORKERS), model);
                for _ in 0..3 {
                    step(&mut client, &table);
                }
                done += 1;
            }
            client.barrier("end", LONG).unwrap();
            check_ledger(&mut client, &table, 3 * done * u64::from(WORKERS));
            client.finish().unwrap();
            done
        };
        let working: Vec<_> = clients
            .into_iter()
            .map(|client| scope.spawn(move || work(client)))
            .collect();
        kill_again_and_again(&mut cluster, kills, 17);
        over.store(true, Ordering::SeqCst);
        let done: Vec<u64> = working.into_iter().map(|w| w.join().unwrap()).collect();
        println!("{transport:?}: {kills} kills, rounds {done:?}");
    });
    cluster.ends();
}

/// Kills the coordinator and starts it again, `kills` times, after pauses that follow from `seed`.
fn kill_again_and_again(cluster: &mut Cluster, kills: u32, mut seed: u64) {
    for _ in 0..kills {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        std::thread::sleep(Duration::from_millis(40 + (seed >> 33) % 200));
        cluster.kill();
        std::thread::sleep(Duration::from_millis((seed >> 40) % 100));
        cluster.restart();
    }
}

fn kills(usual: u32) -> u32 {
    match std::env::var_os("TIDEWATER_TEST_FULL") {
        Some(_) => usual * 5,
        None => usual,
    }
}

#[test]
fn coordinator_killed_again_and_again() {
    killed_again_and_again(TransportChoice::Shm, kills(6));
    killed_again_and_again(TransportChoice::Tcp, kills(4));
}

/// Calls that need the coordinator, which is absent, end at their deadline with an error that names it.
fn short_waits_end(client: &mut Client, cluster: &Cluster) {
    const WAIT: Duration = Duration::from_millis(300);
    // An attempt to reach the coordinator may be under way at the deadline; none takes so long.
    const LIMIT: Duration = Duration::from_secs(2);
    let model = cluster.path("model");
    let spec = TableBuilder::sparse::<f32>("short", 1);
    client.set_timeout(WAIT);
    for op in ["barrier", "create table", "save"] {
        let began = clock::now();
        let error = match op {
            "barrier" => client.barrier("alone", WAIT).unwrap_err(),
            "save" => client.save(model.to_str().unwrap(), WAIT).unwrap_err(),
            _ => client.create_table::<f32>(spec.spec()).unwrap_err(),
        };
        let took = began.elapsed();
        assert!(took < LIMIT, "{op} took {took:?}");
        let text = error.to_string();
        assert!(
            matches!(&error, ClientError::Deadline { op: of, .. } if *of == op),
            "{text}"
        );
        let names_it = text.contains(&cluster.address) && text.contains("--state");
        assert!(names_it, "{text}");
    }
    client.set_timeout(LONG);
}

/// Workers take tasks while the coordinator is killed: each record counts once in each pass.
#[test]
fn tasks_count_once_while_coordinator_is_killed() {
    const RECORDS: u64 = 400;
    const EPOCHS: u32 = 12;
    let mut cluster = Cluster::start(2);
    let clients = cluster.clients(TransportChoice::Shm);
    let keys: Vec<u64> = (0..RECORDS).collect();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (keys, over) = (&keys, &over);
        let work = |mut client: Client| {
            let spec = TableBuilder::sparse::<f64>("records", 1);
            let table: Table<f64> = client.create_table(spec.spec()).unwrap();
            let options = QueueOptions::new("records", 8).epochs(EPOCHS);
            let mut tasks = Tasks::count(&mut client, RECORDS, &options).unwrap();
            while let Some(task) = tasks.next(&mut client).unwrap() {
                let shard = task.shard();
                for record in shard.first..shard.end {
                    let pushed = client.push_rows(&table, &[record], &[1.0], PushOp::Sum);
                    drop(pushed.unwrap());
                }
                // The coordinator is to be killed at each step of a task.
                std::thread::sleep(Duration::from_micros(500));
                tasks.done(&mut client, task, shard.size()).unwrap();
            }
            client.barrier("end", LONG).unwrap();
            let mut counts = vec![0.0; keys.len()];
            let options = PullOptions::default();
            client
                .pull_rows(&table, keys, &mut counts, options)
                .unwrap();
            let mut all = keys.iter().zip(&counts);
            let wrong = all.find(|(_, count)| **count != f64::from(EPOCHS));
            assert_eq!(wrong, None, "a record and how often it counts");
            let status = tasks.status(&mut client).unwrap();
            assert_eq!(status.counters.records, u64::from(EPOCHS) * RECORDS);
            assert_eq!(status.counters.failures, 0);
            client.barrier("seen", LONG).unwrap();
            // The coordinator ends with its job.
            while !over.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(1));
            }
            client.finish().unwrap();
        };
        let working: Vec<_> = clients
            .into_iter()
            .map(|client| scope.spawn(move || work(client)))
            .collect();
        kill_again_and_again(&mut cluster, kills(4), 29);
        over.store(true, Ordering::SeqCst);
        working
            .into_iter()
            .for_each(|worker| worker.join().unwrap());
    });
    cluster.ends();
}

/// A refusal that has arrived stands, although its caller has not asked for it and the coordinator is restarted: the
/// barrier is not entered a second time.
#[test]
fn refused_barrier_not_repeated_after_restart() {
    const SHORT: Duration = Duration::from_millis(300);
    let mut cluster = Cluster::start(2);
    let clients = cluster.clients(TransportChoice::Shm);
    let Ok([mut first, mut second]) = <[Client; 2]>::try_from(clients) else {
        panic!("not two workers")
    };
    let use_coordinator = |name: &str, client: &mut Client| {
        let spec = TableBuilder::sparse::<f32>(name, 1);
        client.create_table::<f32>(spec.spec()).unwrap();
    };
    let refused = first.start_barrier("x", SHORT).unwrap();
    std::thread::sleep(2 * SHORT);
    // The connection reads the refusal together with the answer of this call.
    use_coordinator("before", &mut first);
    let mut waiting = second.start_barrier("x", LONG).unwrap();
    use_coordinator("before", &mut second);
    cluster.kill();
    cluster.restart();
    use_coordinator("after", &mut second);
    use_coordinator("after", &mut first);
    let until = Deadline::after(SHORT);
    while !until.passed() {
        assert!(!second.test_call(&mut waiting).unwrap(), "it is alone");
    }
    let error = first.finish_barrier(refused).unwrap_err();
    assert!(matches!(error, ClientError::Refused(_)), "{error:?}");
    first.barrier("x", LONG).unwrap();
    second.finish_barrier(waiting).unwrap();
    first.finish().unwrap();
    second.finish().unwrap();
    cluster.ends();
}

/// Without a coordinator workers push, pull and tick without an error or a wait; a barrier fails at its
/// deadline and names the coordinator. When it is back, all goes on.
#[test]
fn workers_go_on_without_a_coordinator() {
    let mut cluster = Cluster::start(1);
    let mut client = cluster.client(0, TransportChoice::Shm);
    let table = ledger(&mut client);
    cluster.kill();
    let began = clock::now();
    let mut slowest = Duration::ZERO;
    let mut steps = 0;
    while began.elapsed() < Duration::from_millis(1_200) {
        let at = clock::now();
        step(&mut client, &table);
        client.progress().unwrap();
        slowest = slowest.max(at.elapsed());
        steps += 1;
    }
    println!("{steps} steps, the slowest in {slowest:?}");
    short_waits_end(&mut client, &cluster);
    cluster.restart();
    client.barrier("alone", LONG).unwrap();
    check_ledger(&mut client, &table, steps);
    client.finish().unwrap();
    cluster.ends();
}

fn failure(mut second: std::process::Command) -> Output {
    let output = second
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .output();
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    output
}

/// A second coordinator over the same directory is refused and names the first. One with an older journal
/// gets no process: both starts are named.
#[test]
fn second_and_older_coordinators_are_refused() {
    let mut cluster = Cluster::start(1);
    let mut client = cluster.client(0, TransportChoice::Shm);
    let table = ledger(&mut client);
    let second = coordinator(&cluster.folder, &cluster.mark, 1, "state");
    let said = String::from_utf8(failure(second).stderr).unwrap();
    let holder = format!("pid {} on ", cluster.coordinator.id());
    assert!(said.contains(&holder), "{said}");
    fs::create_dir(cluster.path("older")).unwrap();
    fs::copy(cluster.path("state/journal"), cluster.path("older/journal")).unwrap();
    cluster.kill();
    cluster.restart();
    // Every server has seen the second start.
    let spec = TableBuilder::sparse::<f32>("there", 1);
    client.create_table::<f32>(spec.spec()).unwrap();
    cluster.kill();
    cluster.restart_with("older");
    let error = client.barrier("there", LONG).unwrap_err().to_string();
    assert!(
        error.contains("start 2") && error.contains("its state is older"),
        "{error}"
    );
    for server in &mut cluster.servers {
        assert_eq!(server.wait().unwrap().code(), Some(4));
    }
    drop((client, table));
}

/// A stopped coordinator is not a lost one: calls wait, and nothing is repeated.
#[test]
fn stopped_coordinator_is_awaited() {
    let cluster = Cluster::start(1);
    let mut client = cluster.client(0, TransportChoice::Shm);
    let table = ledger(&mut client);
    let process = Process::of(&cluster.coordinator);
    process.signal(Signal::STOP);
    for _ in 0..50 {
        step(&mut client, &table);
    }
    let error = client
        .barrier("late", Duration::from_millis(200))
        .unwrap_err();
    assert!(matches!(error, ClientError::Deadline { .. }), "{error}");
    process.signal(Signal::CONT);
    client.barrier("late", LONG).unwrap();
    check_ledger(&mut client, &table, 50);
    client.finish().unwrap();
    cluster.ends();
}

/// Kills the coordinator of a run; returns its process id.
fn kill_coordinator(run: &Run) -> i32 {
    let [coordinator] = &run.of("coordinator")[..] else {
        panic!("{:?}: {}", run.of("coordinator"), run.said())
    };
    coordinator.signal(Signal::KILL);
    coordinator.pid
}

/// Waits until workers have ended ten epochs more.
fn until_epochs_more(run: &mut Run) {
    let said = run.said();
    let last = said.rsplit("epoch ").find_map(|rest| {
        let (number, _) = rest.split_once('/')?;
        number.parse::<u64>().ok()
    });
    run.until(&format!("epoch {}/", last.unwrap() + 10));
}

/// `tidewater run` starts its coordinator again as often as it was asked to, and workers that know nothing of it go on.
/// The end after that ends the job. The journal goes with the job, also where the launcher is killed.
#[test]
fn run_starts_its_coordinator_again() {
    let start = || {
        let options = [
            "--servers",
            "2",
            "--workers",
            "2",
            "--coordinator-restarts",
            "2",
        ];
        let mut run = Run::train(&options, &["--epochs", "100000", "--sync", "ssp:2"]);
        run.until_training();
        run
    };
    let mut run = start();
    for left in [1, 0] {
        let pid = kill_coordinator(&run);
        run.until(&format!(
            "coordinator (pid {pid}) was killed by signal 9 (SIGKILL); it is started again, {left} more may follow"
        ));
        until_epochs_more(&mut run);
    }
    let pid = kill_coordinator(&run);
    let ended = run.end();
    let verdict = format!("coordinator (pid {pid} on ");
    assert!(ended.stderr.contains(&verdict), "{}", ended.stderr);
    assert_ne!(ended.code, 0);
    let mut run = start();
    kill_coordinator(&run);
    until_epochs_more(&mut run);
    run.launcher().signal(Signal::KILL);
    assert_eq!(run.end().code, -9);
}

/// A worker that finishes while its coordinator starts again has finished, and the job ends well.
#[test]
fn run_ends_well_after_a_restart_of_its_coordinator() {
    let options = [
        "--servers",
        "1",
        "--workers",
        "2",
        "--coordinator-restarts",
        "1",
    ];
    let mut run = Run::train(&options, &["--epochs", "300"]);
    run.until_training();
    kill_coordinator(&run);
    let said = run.succeeds();
    assert!(said.contains("it is started again"), "{said}");
    assert!(said.contains("epoch 300/300"), "{said}");
}
