//! Appliers that never sleep: no client wakes them and they never wait in the kernel, for a core each.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use rustix::process::Signal;

use crate::proc::Process;
use crate::rig::{Run, output, tidewater};

const WATCHED: Duration = Duration::from_secs(2);
/// Context switches by kernel locks (on the first touch of a page), which may block any thread.
const SWITCHES_MAX: u64 = 3;
/// Far less than an applier that sleeps between the pushes of a training.
const SLEEPS_MIN: u64 = 100;
/// Count at which a waker counts as never drained: other threads take back each wake.
const NEVER_SILENCED: u64 = 3;

/// How often the only applier has gone to sleep.
fn sleeps(server: &Process) -> u64 {
    let threads = server.threads();
    let applier = threads.iter().find(|t| t.1 == "tw-applier-0");
    applier.expect("it has an applier").2
}

/// Wakers of a process, by their eventfd id, and how often each was written since its last drain.
fn wakers(server: &Process) -> BTreeMap<String, u64> {
    let infos = fs::read_dir(format!("/proc/{}/fdinfo", server.pid)).unwrap();
    let texts = infos
        .flatten()
        .filter_map(|info| fs::read_to_string(info.path()).ok());
    let one = |text: String| {
        let field = |name| text.lines().find_map(|line| line.strip_prefix(name));
        let count = u64::from_str_radix(field("eventfd-count:")?.trim(), 16).ok()?;
        Some((field("eventfd-id:")?.trim().to_owned(), count))
    };
    texts.filter_map(one).collect()
}

/// Sleeps of the applier while a job trains, and its waker before and after, if it is never drained.
fn while_training(options: &[&str]) -> (u64, Vec<(u64, u64)>) {
    let mut run = Run::train(options, &["--epochs", "100000"]);
    run.until_training();
    let server = run.of("server").remove(0);
    let epoch = |said: &str| said.matches("epoch ").count();
    let (slept, rung, seen) = (sleeps(&server), wakers(&server), epoch(&run.said()));
    std::thread::sleep(WATCHED);
    let (slept, after) = (sleeps(&server) - slept, wakers(&server));
    run.until(&format!("epoch {}/", seen + 2));
    let loud = rung
        .into_iter()
        .filter(|&(_, rings)| rings >= NEVER_SILENCED);
    let loud = loud.map(|(id, rings)| (rings, after[&id])).collect();
    run.launcher().signal(Signal::TERM);
    assert_eq!(run.end().code, 128 + 15);
    (slept, loud)
}

fn never_sleep(transport: &str, busy: &str) {
    let options = [
        "--workers",
        "2",
        "--appliers",
        "1",
        "--transport",
        transport,
    ];
    let (slept, _) = while_training(&options);
    let (busy_slept, rung) = while_training(&[&options[..], &[busy]].concat());
    println!(
        "{transport}: {slept} sleeps in {WATCHED:?}, with {busy} {busy_slept}; wakers {rung:?}"
    );
    assert!(
        slept >= SLEEPS_MIN,
        "it has not slept {slept} times by itself"
    );
    assert!(busy_slept <= SWITCHES_MAX, "it slept {busy_slept} times");
    // The applier's waker, which the control thread woke when the workers joined.
    assert!(!rung.is_empty(), "no waker is left ringing");
    for (before, after) in rung {
        assert_eq!(before, after, "somebody rang who need not");
    }
}

#[test]
fn appliers_that_never_sleep_are_never_rung() {
    for transport in ["shm", "tcp"] {
        never_sleep(transport, "--busy-poll");
    }
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn appliers_that_never_sleep_are_never_rung_over_verbs() {
    never_sleep("verbs", "--busy-poll");
}

/// Each of them would wait for time slices.
#[test]
fn more_appliers_that_never_sleep_than_cores_are_refused() {
    let cores = std::thread::available_parallelism().unwrap().get();
    let servers = cores / 64 + 1;
    let appliers = 64 * servers;
    let servers = servers.to_string();
    let run = ["run", "--servers", &servers, "--appliers", "64"];
    let done = output(
        &tidewater(),
        &[&run[..], &["--busy-poll", "--", "sleep", "60"]].concat(),
    );
    let said = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(3), "{said}");
    for part in [
        &format!("{appliers} appliers of this host")[..],
        &format!("{cores} cores"),
        "--appliers",
        "without --busy-poll",
    ] {
        assert!(said.contains(part), "no {part:?} in: {said}");
    }
}

#[test]
fn another_word_for_busy_polling_is_a_wrong_command_line() {
    let run = ["run", "--busy-poll=always", "--", "true"];
    let server = ["server", "--busy-poll", "on"];
    for (arguments, due) in [(&run[..], "neither on nor off"), (&server, "'on'")] {
        let done = output(&tidewater(), arguments);
        let said = String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.code(), Some(2), "{said}");
        assert!(said.contains(due), "{said}");
    }
}
