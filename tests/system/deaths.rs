//! `kill -9` of any process of a training job ends the job: soon, with the process's name, and without
//! leftovers.

use std::time::Duration;

use rustix::process::Signal;
use tidewater_runtime::clock::Deadline;

use crate::proc::marked;
use crate::rig::{Ended, Run};

/// Kills process `rank` of a role in the middle of a training.
fn kill(role: &str, rank: usize, transport: &str) -> (Ended, i32) {
    let options = ["--servers", "2", "--workers", "3", "--transport", transport];
    let mut run = Run::train(&options, &["--epochs", "100000", "--sync", "ssp:2"]);
    run.until_training();
    let victim = run.of(role).remove(rank);
    victim.signal(Signal::KILL);
    let ended = run.end();
    println!(
        "{role} {rank} over {transport}: {:?} to the end",
        ended.took
    );
    (ended, victim.pid)
}

fn check(ended: &Ended, name: &str, pid: i32) {
    let said = &ended.stderr;
    let verdict = format!("{name} (pid {pid} on ");
    assert!(said.contains(&verdict), "no {verdict:?}: {said}");
    assert!(said.contains("was killed by signal 9 (SIGKILL)"), "{said}");
    assert_eq!(ended.code, 128 + 9, "{said}");
    // The other processes got the notice, and exited by themselves.
    assert!(!said.contains("did not end within"), "{said}");
    assert!(!said.contains("panicked"), "{said}");
}

#[test]
fn of_a_worker() {
    for (transport, rank) in [("shm", 0), ("shm", 2), ("tcp", 1)] {
        let (ended, pid) = kill("worker", rank, transport);
        check(&ended, &format!("worker {rank}"), pid);
    }
}

#[test]
fn of_a_server() {
    for (transport, number) in [("shm", 1), ("tcp", 0)] {
        let (ended, pid) = kill("server", number, transport);
        check(&ended, &format!("server {number}"), pid);
    }
}

/// A server's connections close before its exit can be observed. All workers may exit before that, each
/// because another process has failed (code 4).
#[test]
fn of_a_server_that_is_seen_after_all_workers() {
    let workers = ["sh", "-c", "sleep 0.5; exit 4"];
    let run = Run::start(&["--servers", "1", "--workers", "2"], &workers);
    let deadline = Deadline::after(crate::rig::LIMIT);
    let (mut server, mut came) = (None, false);
    while server.is_none() || !came || !run.of("worker").is_empty() {
        assert!(!deadline.passed(), "{}", run.said());
        came |= !run.of("worker").is_empty();
        server = run.of("server").pop().or(server);
    }
    let server = server.unwrap();
    server.signal(Signal::KILL);
    check(&run.end(), "server 0", server.pid);
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn of_a_worker_and_of_a_server_over_verbs() {
    let (ended, pid) = kill("worker", 1, "verbs");
    check(&ended, "worker 1", pid);
    let (ended, pid) = kill("server", 1, "verbs");
    check(&ended, "server 1", pid);
}

#[test]
fn of_the_coordinator() {
    let (ended, pid) = kill("coordinator", 0, "shm");
    check(&ended, "coordinator", pid);
}

#[test]
fn of_the_launcher() {
    for transport in ["shm", "tcp"] {
        let options = ["--servers", "2", "--workers", "3", "--transport", transport];
        let mut run = Run::train(&options, &["--epochs", "100000"]);
        run.until_training();
        run.launcher().signal(Signal::KILL);
        // `end` waits until no process is left.
        let ended = run.end();
        assert_eq!(ended.code, -9, "{}", ended.stderr);
    }
}

/// The search by mark, on which the tests above rely, finds running processes.
#[test]
fn a_running_job_is_found_by_its_mark() {
    let run = Run::start(&["--servers", "2", "--workers", "2"], &["sleep", "1000"]);
    let deadline = Deadline::after(crate::rig::LIMIT);
    let counts = || ["server", "worker", "coordinator"].map(|role| run.of(role).len());
    while counts() != [2, 2, 1] {
        assert!(!deadline.passed(), "{:?}: {}", counts(), run.said());
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(marked("SYSTEM_TEST_MARK=nobody's"), []);
    run.launcher().signal(Signal::TERM);
    assert_eq!(run.end().code, 128 + 15);
}
