//! The cost of an idle job: its lanes are open, its threads asleep.

use std::time::Duration;

use rustix::process::Signal;

use crate::proc::Process;
use crate::rig::Run;

const WATCHED: Duration = Duration::from_secs(5);
/// Limit of wake-ups a second for a non-applier thread. A worker checks once a second whether each of
/// its servers is there, a control thread answers.
const WAKES_PER_SECOND: u64 = 10;
/// CPU limit: 2 % of one core, a fiftieth of what a polling thread uses.
const CPU_MS_MAX: u64 = 100;
/// CPU limit in an emulated machine, which charges a woken thread for its host's work meanwhile. The
/// same 40 wakes cost 130 to 660 ms when the host was busy, 20 when it was not. A polling thread uses
/// 5,000.
const CPU_MS_MAX_EMULATED: u64 = 2_000;

/// A thread of a job, and the count of its voluntary sleeps.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Thread {
    of: Process,
    tid: u32,
    name: String,
    switches: u64,
}

impl Thread {
    fn is_applier(&self) -> bool {
        self.name.starts_with("tw-applier-")
    }
}

fn threads(all: &[Process]) -> Vec<Thread> {
    let mut found = Vec::new();
    for of in all {
        found.extend(
            of.threads()
                .into_iter()
                .map(|(tid, name, switches)| Thread {
                    of: of.clone(),
                    tid,
                    name,
                    switches,
                }),
        );
    }
    found
}

#[test]
fn a_job_that_waits_uses_no_processor() {
    for transport in ["shm", "tcp"] {
        waiting_uses_no_processor(transport, CPU_MS_MAX);
    }
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn a_job_over_verbs_that_waits_uses_no_processor() {
    waiting_uses_no_processor("verbs", CPU_MS_MAX_EMULATED);
}

/// In a bulk synchronous job all processes wait for a stopped worker: with every lane open and in the
/// middle of the training.
fn waiting_uses_no_processor(transport: &str, cpu_ms_max: u64) {
    let options = ["--servers", "2", "--workers", "3", "--transport", transport];
    let mut run = Run::train(&options, &["--epochs", "100000"]);
    run.until_training();
    let (servers, workers) = (run.of("server"), run.of("worker"));
    assert_eq!((servers.len(), workers.len()), (2, 3));
    workers[2].signal(Signal::STOP);
    // The other processes reach their wait.
    std::thread::sleep(Duration::from_secs(2));

    let all = [&servers[..], &workers, &run.of("coordinator")].concat();
    let cpu = |all: &[Process]| all.iter().map(Process::cpu_ms).sum::<u64>();
    let (cpu_before, before) = (cpu(&all), threads(&all));
    std::thread::sleep(WATCHED);
    let (cpu_used, after) = (cpu(&all) - cpu_before, threads(&all));
    println!("{transport}: {cpu_used} ms of processor time in {WATCHED:?}");
    assert!(
        before.iter().filter(|t| t.is_applier()).count() >= 2,
        "{before:?}"
    );
    assert_eq!(before.len(), after.len(), "threads came or went");
    for (before, after) in before.iter().zip(&after) {
        let wakes = after.switches - before.switches;
        if wakes > 0 {
            println!(
                "{} {} {}: woke {wakes} times",
                after.of.role, after.of.rank, after.name
            );
        }
        assert_eq!((before.of.pid, before.tid), (after.of.pid, after.tid));
        assert!(
            !after.is_applier() || wakes == 0,
            "an idle applier woke up: {after:?}"
        );
        assert!(
            wakes <= WAKES_PER_SECOND * WATCHED.as_secs(),
            "{after:?}: {wakes} times"
        );
    }
    assert!(cpu_used < cpu_ms_max, "{transport}: {cpu_used} ms");

    // The worker was waiting, not dead.
    workers[2].signal(Signal::CONT);
    let epoch = |said: &str| said.matches("epoch ").count();
    let seen = epoch(&run.said());
    run.until(&format!("epoch {}/", seen + 2));
    run.launcher().signal(Signal::TERM);
    assert_eq!(run.end().code, 128 + 15);
}
