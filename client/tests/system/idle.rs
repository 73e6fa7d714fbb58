//! What a job costs that has nothing to do: its lanes are open, its threads asleep.

use std::time::Duration;

use rustix::process::Signal;

use crate::proc::Process;
use crate::rig::Run;

const WATCHED: Duration = Duration::from_secs(5);
/// 2 % of one core.
const CPU_MS_MAX: u64 = 100;

/// Voluntary context switches of each applier.
fn switches(servers: &[Process]) -> Vec<(i32, u32, u64)> {
    let mut found = Vec::new();
    for server in servers {
        let appliers = server.threads().into_iter();
        found.extend(
            appliers
                .filter(|(_, name, _)| name.starts_with("tw-applier-"))
                .map(|(tid, _, switches)| (server.pid, tid, switches)),
        );
    }
    found
}

#[test]
fn a_job_that_waits_uses_no_processor() {
    waiting_uses_no_processor(&["shm", "tcp"]);
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn a_job_over_verbs_that_waits_uses_no_processor() {
    waiting_uses_no_processor(&["verbs"]);
}

/// In a bulk synchronous job all wait for a worker that does not go on: with every lane open and in
/// the middle of the training.
fn waiting_uses_no_processor(transports: &[&str]) {
    for transport in transports {
        let options = ["--servers", "2", "--workers", "3", "--transport", transport];
        let mut run = Run::train(&options, &["--epochs", "100000"]);
        run.until_training();
        let (servers, workers) = (run.of("server"), run.of("worker"));
        assert_eq!((servers.len(), workers.len()), (2, 3));
        workers[2].signal(Signal::STOP);
        // The others come to where they wait.
        std::thread::sleep(Duration::from_secs(2));

        let all = [&servers[..], &workers, &run.of("coordinator")].concat();
        let cpu = |all: &[Process]| all.iter().map(Process::cpu_ms).sum::<u64>();
        let (cpu_before, before) = (cpu(&all), switches(&servers));
        std::thread::sleep(WATCHED);
        let (cpu_used, after) = (cpu(&all) - cpu_before, switches(&servers));
        println!("{transport}: {cpu_used} ms of processor time in {WATCHED:?}, {after:?}");
        assert!(before.len() >= 2, "{before:?}");
        assert_eq!(after, before, "an idle applier woke up");
        assert!(cpu_used < CPU_MS_MAX, "{transport}: {cpu_used} ms");

        // And it was waiting, not dead.
        workers[2].signal(Signal::CONT);
        let epoch = |said: &str| said.matches("epoch ").count();
        let seen = epoch(&run.said());
        run.until(&format!("epoch {}/", seen + 2));
        run.launcher().signal(Signal::TERM);
        assert_eq!(run.end().code, 128 + 15);
    }
}
