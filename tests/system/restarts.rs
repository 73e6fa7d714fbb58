//! `kill -9` of servers with a holder (`tidewater server --restarts N`): each worker gets an error that names
//! the dead process and its successor, or goes on; in no table are rows missing; the job begins again in its
//! processes.

use std::sync::mpsc;
use std::time::Duration;

use rustix::process::Signal;
use tidewater::{Client, ClientError, JoinOptions, PullOptions, SyncMode, Table, TableBuilder};
use tidewater_launch::TransportChoice;
use tidewater_protocol::ids::Incarnation;
use tidewater_protocol::limits::REQUESTS_STARTED_MAX;
use tidewater_protocol::table::PushOp;
use tidewater_protocol::wire::hello::NAMESPACE_DEFAULT;
use tidewater_runtime::clock::{self, Deadline};

use crate::by_hand::Cluster;
use crate::proc::Process;
use crate::rig::{LIMIT, Run};

const ROWS: u64 = 64;
/// Each call ends within this time, or later by a busy machine.
const CALL: Duration = Duration::from_secs(20);
/// Options of a server with a holder.
pub(crate) const RESTARTS: [&str; 2] = ["--restarts", "1000"];

/// A cluster of two servers with holders.
pub(crate) fn held_cluster(workers: u32) -> Cluster {
    held_cluster_of(2, workers)
}

/// A cluster of servers with holders.
pub(crate) fn held_cluster_of(servers: u32, workers: u32) -> Cluster {
    let mut cluster = Cluster::of_workers(servers, workers);
    for number in 0..servers {
        let server = cluster.server(number).args(RESTARTS).spawn().unwrap();
        cluster.servers.push(server);
    }
    cluster
}

/// The server of a holder, which may be starting it.
pub(crate) fn held(holder: &Process) -> Process {
    let deadline = Deadline::after(LIMIT);
    loop {
        if let [server] = &holder.children()[..] {
            return server.clone();
        }
        assert!(!deadline.passed(), "holder {} has no server", holder.pid);
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn create(client: &mut Client) -> Result<Table<f32>, ClientError> {
    client.create_table(TableBuilder::rows::<f32>("ledger", ROWS, 1).spec())
}

fn push(client: &mut Client, table: &Table<f32>) -> Result<(), ClientError> {
    let keys: Vec<u64> = (0..ROWS).collect();
    let ticket = client.push_rows(table, &keys, &[1.0; ROWS as usize], PushOp::Sum)?;
    client.wait_applied(&ticket)
}

fn pull(client: &mut Client, table: &Table<f32>) -> Result<[f32; ROWS as usize], ClientError> {
    let keys: Vec<u64> = (0..ROWS).collect();
    let mut out = [-1.0; ROWS as usize];
    client.pull_rows(table, &keys, &mut out, PullOptions::default())?;
    Ok(out)
}

/// Pushes and pulls until the restart of a server is reported; every pull until then sees each acknowledged
/// push once.
fn until_restart(client: &mut Client, table: &Table<f32>, mut acked: u32) -> ClientError {
    let limit = Deadline::after(LIMIT);
    loop {
        let began = clock::now();
        let done = push(client, table).and_then(|()| {
            acked += 1;
            let seen = pull(client, table)?;
            assert_eq!(
                seen, [acked as f32; ROWS as usize],
                "a lost or doubled push"
            );
            Ok(())
        });
        assert!(
            began.elapsed() < 2 * CALL,
            "a call takes {:?}",
            began.elapsed()
        );
        match done {
            Err(error @ ClientError::ServerRestarted { .. }) => return error,
            other => other.unwrap(),
        }
        assert!(!limit.passed(), "a killed server is not reported");
    }
}

fn kill_servers(transport: TransportChoice, kills: u32) {
    let cluster = held_cluster(1);
    let mut client = cluster.client(transport);
    client.set_timeout(CALL);
    let holders = cluster.server_processes();
    let (mut slowest, mut total) = (Duration::ZERO, Duration::ZERO);
    let mut last: [Option<Incarnation>; 2] = [None; 2];
    for kill in 0..kills {
        let victim = (kill % 2) as usize;
        let table = create(&mut client).unwrap();
        assert_eq!(pull(&mut client, &table).unwrap(), [0.0; ROWS as usize]);
        push(&mut client, &table).unwrap();
        let server = held(&holders[victim]);
        let (sender, killed) = mpsc::channel();
        let error = std::thread::scope(|scope| {
            let server = &server;
            scope.spawn(move || {
                // At another place of the loop each time.
                std::thread::sleep(Duration::from_micros(u64::from(kill) * 977 % 5_000));
                sender.send(clock::now()).unwrap();
                server.signal(Signal::KILL);
            });
            until_restart(&mut client, &table, 1)
        });
        let at: std::time::Instant = killed.recv().unwrap();
        let said = error.to_string();
        let verdict = format!("server {victim} (pid {} on ", server.pid);
        assert!(said.contains(&verdict), "no {verdict:?}: {said}");
        assert!(said.contains("was killed by signal 9 (SIGKILL)"), "{said}");
        let ClientError::ServerRestarted { before, after, .. } = error else {
            unreachable!("matched before");
        };
        assert_ne!(before, after);
        let expected = last[victim].replace(after);
        assert!(
            expected.is_none_or(|it| it == before),
            "{expected:?}: {said}"
        );
        // Nothing of before is used again, also after the client has rejoined.
        assert!(push(&mut client, &table).is_err() && pull(&mut client, &table).is_err());
        client.rejoin().unwrap();
        assert!(push(&mut client, &table).is_err() && pull(&mut client, &table).is_err());
        let table = create(&mut client).unwrap();
        push(&mut client, &table).unwrap();
        let again = at.elapsed();
        (slowest, total) = (slowest.max(again), total + again);
        client.release_table(table).unwrap();
    }
    println!(
        "{transport:?}: {kills} kills, {:?} each, at most {slowest:?} to the report",
        total / kills
    );
    client.finish().unwrap();
}

/// Number of kills: 10 for both transports together, 100 with `--full`.
fn kills(shm: u32, tcp: u32) -> [(TransportChoice, u32); 2] {
    let times = if std::env::var_os("TIDEWATER_TEST_FULL").is_some() {
        10
    } else {
        1
    };
    [
        (TransportChoice::Shm, shm * times),
        (TransportChoice::Tcp, tcp * times),
    ]
}

#[test]
fn killed_server_is_named_and_the_job_begins_again() {
    for (transport, times) in kills(6, 4) {
        kill_servers(transport, times);
    }
}

/// A worker that creates tables all the time learns of each restart by the restart: not by a connection that its
/// server no longer takes.
#[test]
fn created_tables_name_the_restart() {
    for (transport, times) in kills(1, 1) {
        let cluster = held_cluster(1);
        let mut client = cluster.client(transport);
        client.set_timeout(CALL);
        let holders = cluster.server_processes();
        for kill in 0..times {
            // A job without tables goes on, as one with warm tables only.
            let kept = TableBuilder::rows::<f32>("kept", ROWS, 1);
            client.create_table::<f32>(kept.spec()).unwrap();
            let server = held(&holders[(kill % 2) as usize]);
            let error = std::thread::scope(|scope| {
                let server = &server;
                scope.spawn(move || {
                    std::thread::sleep(Duration::from_micros(
                        2_000 + u64::from(kill) * 977 % 5_000,
                    ));
                    server.signal(Signal::KILL);
                });
                let limit = Deadline::after(LIMIT);
                loop {
                    let made = create(&mut client).and_then(|table| client.release_table(table));
                    if let Err(error) = made {
                        break error;
                    }
                    assert!(!limit.passed(), "a killed server is not reported");
                }
            });
            assert!(
                matches!(error, ClientError::ServerRestarted { .. }),
                "{transport:?}, kill {kill}: {error}"
            );
            client.rejoin().unwrap();
        }
        client.finish().unwrap();
    }
}

/// Jobs of a service differ in size. The successor of a server, which starts while they run, takes the number of
/// workers of each from its workers.
#[test]
fn jobs_of_other_sizes_begin_again() {
    const JOBS: [(&str, u32); 2] = [(NAMESPACE_DEFAULT, 2), ("b", 1)];
    let cluster = held_cluster_of(1, 0);
    let holders = cluster.server_processes();
    let mut clients: Vec<(Client, Table<f32>)> = std::thread::scope(|scope| {
        let join = |(namespace, workers, rank): (&str, u32, u32)| {
            let options = JoinOptions {
                namespace: Some(namespace.into()),
                workers: Some(workers),
                rank: Some(rank),
                ..cluster.options(TransportChoice::Auto)
            };
            let job = options.join().unwrap().into_job().unwrap();
            let mut client = job.client(SyncMode::Asp).unwrap();
            client.set_timeout(CALL);
            let table = create(&mut client).unwrap();
            (client, table)
        };
        let all = JOBS.into_iter().flat_map(|(namespace, workers)| {
            (0..workers).map(move |rank| (namespace, workers, rank))
        });
        let joining: Vec<_> = all.map(|one| scope.spawn(move || join(one))).collect();
        let joined = joining.into_iter().map(|thread| thread.join().unwrap());
        joined.collect()
    });
    held(&holders[0]).signal(Signal::KILL);
    std::thread::scope(|scope| {
        for (client, table) in &mut clients {
            scope.spawn(move || {
                let limit = Deadline::after(LIMIT);
                while !matches!(
                    push(client, table),
                    Err(ClientError::ServerRestarted { .. })
                ) {
                    assert!(!limit.passed(), "a killed server is not reported");
                }
                client.rejoin().unwrap();
                let table = create(client).unwrap();
                push(client, &table).unwrap();
                client.barrier("again", CALL).unwrap();
            });
        }
    });
    for (mut client, _) in clients {
        client.finish().unwrap();
    }
}

/// Calls that are under way at a restart leave no answers in the connection, which keeps a limited number of them.
#[test]
fn started_calls_end_with_the_restart() {
    let many = REQUESTS_STARTED_MAX * 2 / 3;
    let cluster = held_cluster_of(1, 1);
    let mut client = cluster.client(TransportChoice::Auto);
    client.set_timeout(CALL);
    let spec = TableBuilder::rows::<f32>("ledger", ROWS, 1);
    for _ in 0..2 {
        let started = (0..many).map(|_| client.start_create_table(spec.spec()).unwrap());
        let mut started: Vec<_> = started.collect();
        let table = client.finish_create_table::<f32>(started.pop().unwrap());
        let table = table.unwrap();
        held(&cluster.server_processes()[0]).signal(Signal::KILL);
        until_restart(&mut client, &table, 0);
        client.rejoin().unwrap();
        let refused = client.test_call(&mut started[0]).unwrap_err();
        assert!(matches!(refused, ClientError::Argument { .. }), "{refused}");
    }
    let table = create(&mut client).unwrap();
    push(&mut client, &table).unwrap();
    client.finish().unwrap();
}

/// Workers at a barrier, in a tick and in a pull all learn of it, and meet again.
#[test]
fn workers_in_every_call_learn_of_a_restart() {
    const WORKERS: u32 = 3;
    let cluster = held_cluster(WORKERS);
    let options = |rank| JoinOptions {
        rank: Some(rank),
        ..cluster.options(TransportChoice::Auto)
    };
    let holders = cluster.server_processes();
    std::thread::scope(|scope| {
        let work = |rank: u32| {
            let job = options(rank).join().unwrap().into_job().unwrap();
            let mut client = job.client(SyncMode::Bsp).unwrap();
            client.set_timeout(CALL);
            client.set_clock_timeout(CALL);
            let table = create(&mut client).unwrap();
            client.barrier("begin", CALL).unwrap();
            if rank == 0 {
                held(&holders[1]).signal(Signal::KILL);
            }
            let error = loop {
                let done = match rank {
                    0 => push(&mut client, &table),
                    1 => client.barrier("never complete", CALL),
                    // The others do not tick: under BSP the next iteration waits for them.
                    _ => client
                        .tick()
                        .and_then(|()| pull(&mut client, &table).map(drop)),
                };
                if let Err(error) = done {
                    break error;
                }
            };
            assert!(
                matches!(&error, ClientError::ServerRestarted { server, .. } if server.0 == 1),
                "worker {rank}: {error}"
            );
            client.rejoin().unwrap();
            assert_eq!(client.clock(), 0);
            let table = create(&mut client).unwrap();
            client.barrier("again", CALL).unwrap();
            push(&mut client, &table).unwrap();
            client.tick().unwrap();
            client.barrier("pushed", CALL).unwrap();
            assert_eq!(
                pull(&mut client, &table).unwrap(),
                [WORKERS as f32; ROWS as usize]
            );
            client.finish().unwrap();
        };
        for rank in 1..WORKERS {
            scope.spawn(move || work(rank));
        }
        work(0);
    });
}

/// A program that knows nothing of restarts ends with the name of the dead server, and with it its job.
#[test]
fn program_without_restarts_ends_and_names_the_server() {
    let options = ["--servers", "2", "--workers", "2", "--server-restarts", "3"];
    let mut run = Run::train(&options, &["--epochs", "100000", "--sync", "ssp:2"]);
    run.until_training();
    let mut servers = run.of("server");
    // Of a holder and its server the holder is the older one.
    let pids: Vec<i32> = servers.iter().map(|server| server.pid).collect();
    servers.retain(|server| server.rank == 1 && pids.iter().any(|&pid| server.is_child_of(pid)));
    let victim = servers.pop().unwrap();
    victim.signal(Signal::KILL);
    let ended = run.end();
    let verdict = format!("server 1 (pid {} on ", victim.pid);
    assert!(ended.stderr.contains(&verdict), "{}", ended.stderr);
    assert!(
        ended.stderr.contains("was killed by signal 9 (SIGKILL)"),
        "{}",
        ended.stderr
    );
    assert!(
        ended.stderr.contains("the tables of the job are gone"),
        "{}",
        ended.stderr
    );
    assert_ne!(ended.code, 0);
    assert!(
        !ended.stderr.contains("did not end within"),
        "{}",
        ended.stderr
    );
}

/// Silence is no death: with its server stopped a client goes on to pull over shared memory, its push waits, and
/// all goes on when the server does.
#[test]
fn stopped_server_with_a_holder_loses_nothing() {
    let stop = match std::env::var_os("TIDEWATER_TEST_FULL") {
        Some(_) => Duration::from_secs(30),
        None => Duration::from_millis(600),
    };
    for transport in [TransportChoice::Shm, TransportChoice::Tcp] {
        let cluster = held_cluster(1);
        let mut client = cluster.client(transport);
        client.set_timeout(stop * 4 + CALL);
        let table = create(&mut client).unwrap();
        push(&mut client, &table).unwrap();
        assert_eq!(pull(&mut client, &table).unwrap(), [1.0; ROWS as usize]);
        let servers: Vec<Process> = cluster.server_processes().iter().map(held).collect();
        servers[1].signal(Signal::STOP);
        while servers[1].state() != Some('T') {
            std::thread::sleep(Duration::from_millis(2));
        }
        let until = Deadline::after(stop);
        let keys: Vec<u64> = (0..ROWS).collect();
        let waiting = client.push_rows(&table, &keys, &[1.0; ROWS as usize], PushOp::Sum);
        let waiting = waiting.unwrap();
        let mut pulls = 0;
        while !until.passed() {
            if transport == TransportChoice::Shm {
                let seen = pull(&mut client, &table).unwrap();
                assert!(
                    seen.iter().all(|&value| value == 1.0 || value == 2.0),
                    "{seen:?}"
                );
                pulls += 1;
            }
            assert!(
                !client.try_applied(&waiting).unwrap(),
                "a stopped server applies nothing"
            );
            std::thread::sleep(Duration::from_millis(10));
        }
        servers[1].signal(Signal::CONT);
        client.wait_applied(&waiting).unwrap();
        push(&mut client, &table).unwrap();
        assert_eq!(pull(&mut client, &table).unwrap(), [3.0; ROWS as usize]);
        assert_eq!(
            held(&cluster.server_processes()[1]),
            servers[1],
            "it is the same process"
        );
        println!("{transport:?}: {pulls} pulls while its server was stopped");
        client.finish().unwrap();
    }
}

/// What a worker does while another process is killed.
const STEPS: [&str; 6] = ["join", "create", "push", "barrier", "save", "finish"];
/// The processes that are killed: a server without and with a holder, a holder, and the coordinator.
const VICTIMS: [&str; 4] = ["server", "held server", "holder", "coordinator"];

/// Takes a step; `Ok` is for a step that the death did not concern.
fn take_step(
    cluster: &Cluster,
    step: &str,
    client: Option<&mut Client>,
) -> Result<(), ClientError> {
    const SHORT: Duration = Duration::from_millis(800);
    let Some(client) = client else {
        let options = JoinOptions {
            join_timeout: Some(SHORT),
            ..cluster.options(TransportChoice::Auto)
        };
        let job = options.join()?.into_job().unwrap();
        return job.client(SyncMode::Asp).map(drop);
    };
    client.set_timeout(SHORT);
    let dir = cluster.directory.join("model");
    match step {
        "create" => (0..100).try_for_each(|n| {
            let spec = TableBuilder::rows::<f32>(&format!("t{n}"), 10_000, 4);
            client.create_table::<f32>(spec.spec()).map(drop)
        }),
        "push" => {
            let table = create(client)?;
            (0..1000).try_for_each(|_| push(client, &table))
        }
        "barrier" => (0..100).try_for_each(|_| client.barrier("b", SHORT)),
        "save" => {
            create(client)?;
            (0..20).try_for_each(|_| client.save(dir.to_str().unwrap(), SHORT).map(drop))
        }
        _ => client.finish(),
    }
}

/// `kill -9` of each process at each step: the worker's call succeeds, or fails within its deadline with an
/// error that names the dead one.
#[test]
fn every_process_killed_at_every_step_is_named_in_time() {
    let cases = VICTIMS
        .iter()
        .flat_map(|victim| STEPS.map(|step| (*victim, step)));
    // After the end of a holder a call waits for a successor until its deadline.
    let is_short =
        |&(victim, step): &(&str, &str)| victim != "holder" || ["push", "barrier"].contains(&step);
    let cases = cases.filter(is_short);
    for (number, (victim, step)) in cases.enumerate() {
        let mut cluster = Cluster::of_workers(2, 1);
        for number in 0..2 {
            let mut server = cluster.server(number);
            if victim != "server" {
                server.args(RESTARTS);
            }
            cluster.servers.push(server.spawn().unwrap());
        }
        let mut client = (step != "join").then(|| cluster.client(TransportChoice::Auto));
        let processes = cluster.processes();
        let dies = match victim {
            "held server" => held(&processes[1]),
            "coordinator" => processes[2].clone(),
            _ => processes[1].clone(),
        };
        let began = clock::now();
        let done = std::thread::scope(|scope| {
            let dies = &dies;
            scope.spawn(move || {
                std::thread::sleep(Duration::from_micros(number as u64 * 771 % 3_000));
                // A job that is over ends its servers.
                dies.kill_if_there();
            });
            take_step(&cluster, step, client.as_mut())
        });
        let took = began.elapsed();
        let said = done.map_or_else(|error| error.to_string(), |()| "went on".into());
        println!("{victim} killed in {step}: {said}, after {took:?}");
        // Its deadline, and time for a busy machine.
        assert!(
            took < Duration::from_secs(40),
            "{victim} in {step}: {took:?}"
        );
        let names: &[&str] = match victim {
            "coordinator" => &["coordinator"],
            _ if step == "join" => &["server 1", "servers have joined; missing among others:"],
            _ => &["server 1"],
        };
        let is_named = names.iter().any(|name| said.contains(name));
        assert!(said == "went on" || is_named, "{victim} in {step}: {said}");
    }
}
