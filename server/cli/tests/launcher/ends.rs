//! Ends of jobs: by failures, by signals, by kill -9; no process is left.

use std::time::Duration;

use rustix::process::{Signal, kill_process};
use tidewater_runtime::clock;

use crate::harness::{AWAIT, COORDINATOR, Job, Run, SERVER, is_alive};

/// A worker that never ends by itself.
const STAY: &str = "echo worker-pid $$ >&2; while :; do sleep 1; done";

#[test]
fn the_first_failure_gives_the_code_and_the_others_are_told() {
    let script = "trap 'echo told; exit 9' TERM; : > $TEST_FOLDER/$TIDEWATER_RANK
        if [ $TIDEWATER_RANK = 1 ]; then await 0 2; echo boom >&2; exit 7; fi
        while :; do sleep 0.05; done";
    let ended = Job::of(&["-w", "3"], &format!("{AWAIT}{script}")).end();
    assert_eq!(ended.code, 7, "{}", ended.stderr);
    assert_eq!(ended.stdout, "told\ntold\n");
    let message = ended
        .stderr
        .lines()
        .find(|l| l.starts_with("tidewater run:"))
        .unwrap();
    assert!(
        message.contains("worker 1 (pid ") && message.contains(" on "),
        "{message}"
    );
    assert!(
        message.ends_with("exit code 7; its last line on stderr: boom"),
        "{message}"
    );
}

/// Code 4 means "lost another process": that one is the failure, although it ends later.
#[test]
fn who_lost_another_is_not_the_cause() {
    let script = "case $TIDEWATER_RANK in
        0) echo $$ > $TEST_FOLDER/part; mv $TEST_FOLDER/part $TEST_FOLDER/pid; exit 4;;
        1) await pid; while grep -qs ') [RSD]' /proc/$(cat $TEST_FOLDER/pid)/stat; do sleep 0.01; done
           echo cause >&2; exit 5;;
        2) sleep 1000;;
        esac";
    let ended = Job::of(&["-w", "3"], &format!("{AWAIT}{script}")).end();
    assert_eq!(ended.code, 5, "{}", ended.stderr);
    let verdict = ended
        .stderr
        .lines()
        .find(|l| l.starts_with("tidewater run:"));
    let verdict = verdict.unwrap();
    assert!(verdict.contains("worker 1 (pid "), "{verdict}");
    assert!(verdict.ends_with("on stderr: cause"), "{verdict}");
}

#[test]
fn who_lost_another_is_the_failure_if_nobody_else_is() {
    for workers in ["1", "2"] {
        let script = "[ $TIDEWATER_RANK = 0 ] && exit 4; sleep 1000";
        let ended = Job::of(&["-w", workers], script).end();
        assert_eq!(ended.code, 4, "{}", ended.stderr);
        assert!(ended.stderr.contains("worker 0 (pid "), "{}", ended.stderr);
    }
}

#[test]
fn signals_reach_the_workers() {
    let script = "trap 'echo one' USR1; trap 'echo two' USR2; trap 'echo int; exit 130' INT
        echo ready >&2; while :; do sleep 0.05; done";
    let mut run = Job::of(&[], script).start();
    run.until("ready");
    run.signal(Signal::USR1);
    run.until("one");
    run.signal(Signal::USR2);
    run.until("two");
    run.signal(Signal::INT);
    let ended = run.end();
    assert_eq!(
        (ended.code, &*ended.stdout),
        (130, "one\ntwo\nint\n"),
        "{}",
        ended.stderr
    );
}

#[test]
fn sigterm_and_sighup_end_a_job_with_128_plus_n() {
    for (signal, code) in [(Signal::TERM, 143), (Signal::HUP, 129)] {
        let mut run = Job::of(&["-w", "2"], STAY).start();
        run.until("[worker 0] worker-pid");
        run.until("[worker 1] worker-pid");
        run.signal(signal);
        assert_eq!(run.end().code, code);
    }
}

#[test]
fn grace_ends_with_sigkill() {
    let script = "trap '' TERM; echo deaf >&2; while :; do sleep 0.05; done";
    let mut run = Job::of(&["--grace", "200ms"], script).start();
    run.until("deaf");
    run.signal(Signal::TERM);
    let ended = run.end();
    assert_eq!(ended.code, 137);
    assert!(
        ended
            .stderr
            .contains("worker 0 did not end within 200ms: SIGKILL")
    );
}

#[test]
fn the_second_sigint_does_not_wait() {
    let script = "trap 'echo int >&2' INT; echo deaf >&2; while :; do sleep 0.05; done";
    let mut run = Job::of(&["--grace", "1h"], script).start();
    run.until("deaf");
    run.signal(Signal::INT);
    run.until("int");
    run.signal(Signal::INT);
    assert_eq!(run.end().code, 137);
}

#[test]
fn interrupted_while_starting() {
    let job = Job {
        coordinator: "echo slow >&2; exec cat",
        ..Job::of(&[], "echo never")
    };
    let mut run = job.start();
    run.until("slow");
    run.signal(Signal::INT);
    let ended = run.end();
    assert_eq!((ended.code, &*ended.stdout), (130, ""), "{}", ended.stderr);
}

#[test]
fn grandchildren_are_killed_at_the_end_wherever_they_went() {
    // In the group; in a separate session; in the group but without the mark.
    let script = "sleep 1000 & setsid sleep 1000 & env -i sleep 1000 & echo grandchild $!";
    let mut run = Job::of(&[], script).start();
    let bare = run.pid_of("grandchild");
    assert_eq!(run.end().code, 0);
    assert!(!is_alive(bare), "env -i sleep is left");
}

#[test]
fn kill_9_of_the_launcher_leaves_nothing() {
    let script = "sleep 1000 & setsid sleep 1000 & env -i sleep 1000 & echo grandchild $! >&2
        trap '' TERM INT HUP; while :; do sleep 1; done";
    let job = Job {
        server: "trap '' TERM; sleep 1000 & sleep 1000",
        ..Job::of(&["-w", "2"], script)
    };
    let mut run = job.start();
    let bare = run.pid_of("[worker 0] grandchild");
    run.pid_of("[worker 1] grandchild");
    run.signal(Signal::KILL);
    run.nothing_left_soon();
    Run::gone_soon(bare);
}

#[test]
fn kill_9_of_the_launcher_while_it_starts_leaves_nothing() {
    for delay_us in (0..12_000).step_by(1_500) {
        let mut run = Job::of(&["-s", "2", "-w", "4"], STAY).start();
        std::thread::sleep(Duration::from_micros(delay_us));
        run.signal(Signal::KILL);
        run.nothing_left_soon();
    }
}

#[test]
fn kill_9_of_launcher_while_the_guard_cannot_act_kills_the_children() {
    let mut run = Job::of(&["-w", "2"], STAY).start();
    let workers = [
        run.pid_of("[worker 0] worker-pid"),
        run.pid_of("[worker 1] worker-pid"),
    ];
    let guard = run.guard();
    kill_process(guard, Signal::STOP).unwrap();
    run.signal(Signal::KILL);
    workers.into_iter().for_each(Run::gone_soon);
    kill_process(guard, Signal::CONT).unwrap();
    run.nothing_left_soon();
    Run::gone_soon(guard);
}

#[test]
fn kill_9_of_the_guard_ends_the_job() {
    let mut run = Job::of(&["-w", "2"], STAY).start();
    run.until("[worker 0] worker-pid");
    kill_process(run.guard(), Signal::KILL).unwrap();
    let ended = run.end();
    assert_eq!(ended.code, 137);
    assert!(
        ended.stderr.contains("tidewater run: guard (pid "),
        "{}",
        ended.stderr
    );
}

#[test]
fn a_child_whose_launcher_is_gone_does_not_start() {
    let shim = std::process::Command::new(env!("CARGO_BIN_EXE_tidewater"))
        .args(["__child", "999999999", "echo", "started"])
        .output()
        .unwrap();
    assert_eq!(
        (shim.status.code(), shim.stdout.as_slice()),
        (Some(3), &b""[..])
    );
    assert!(String::from_utf8_lossy(&shim.stderr).contains("(pid 999999999) is gone"));
}

#[test]
fn kill_9_of_any_child_is_named() {
    let (tell, stay) = ("echo pid-$TIDEWATER_ROLE$TIDEWATER_RANK $$ >&2", STAY);
    let victims = [
        ("worker1", "worker 1"),
        ("server1", "server 1"),
        ("coordinator0", "coordinator"),
    ];
    for (victim, name) in victims {
        let worker = format!("{tell}; {stay}");
        let job = Job {
            coordinator: &format!("{tell}; {COORDINATOR}"),
            server: &format!("{tell}; {SERVER}"),
            ..Job::of(&["-s", "2", "-w", "2"], &worker)
        };
        let mut run = job.start();
        let pid = run.pid_of(&format!("pid-{victim}"));
        run.until("pid-worker0");
        run.until("pid-worker1");
        kill_process(pid, Signal::KILL).unwrap();
        let ended = run.end();
        assert_eq!(ended.code, 137, "{}", ended.stderr);
        let pid = pid.as_raw_nonzero();
        let message = format!("tidewater run: {name} (pid {pid} on ");
        assert!(ended.stderr.contains(&message), "{}", ended.stderr);
        assert!(
            ended.stderr.contains("was killed by signal 9 (SIGKILL)"),
            "{}",
            ended.stderr
        );
    }
}

#[test]
fn a_server_that_leaves_early_is_a_failure_even_with_code_0() {
    let job = Job {
        server: "sleep 0.1; exit 0",
        ..Job::of(&[], STAY)
    };
    let ended = job.end();
    assert_eq!(ended.code, 4, "{}", ended.stderr);
    assert!(ended.stderr.contains("server 0 (pid"), "{}", ended.stderr);
}

#[test]
fn servers_are_asked_to_end_after_the_workers_even_if_stopped() {
    let worker = format!("{AWAIT} await up; sleep 0.1; echo work done >&2");
    let job = Job {
        server: "trap 'echo bye >&2; exit 143' TERM; : > $TEST_FOLDER/up; kill -STOP $$
            sleep 100 & wait",
        ..Job::of(&[], &worker)
    };
    let start = clock::now();
    let ended = job.end();
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert!(
        ended
            .stderr
            .ends_with("[worker 0] work done\n[server 0] bye\n"),
        "{}",
        ended.stderr
    );
    // The end of the server's own child is not waited for.
    assert!(start.elapsed() < Duration::from_secs(60));
}

#[test]
fn a_server_that_fails_while_it_ends_is_a_failure() {
    let worker = format!("{AWAIT} await up");
    let job = Job {
        server: "trap '' TERM; : > $TEST_FOLDER/up; cat >/dev/null; exit 5",
        ..Job::of(&[], &worker)
    };
    assert_eq!(job.end().code, 5);
}

#[test]
fn a_coordinator_that_does_not_get_ready_is_not_awaited() {
    let job = Job {
        coordinator: "echo gibberish >&0; exec cat >/dev/null",
        ..Job::of(&["--start-timeout", "1s"], "echo never")
    };
    let ended = job.end();
    assert_eq!((ended.code, &*ended.stdout), (4, ""));
    assert!(
        ended.stderr.contains("not ready after 1s"),
        "{}",
        ended.stderr
    );
    assert!(
        ended.stderr.contains("it said: gibberish"),
        "{}",
        ended.stderr
    );

    let job = Job {
        coordinator: "echo 'port in use' >&2; exit 3",
        ..Job::of(&[], "echo never")
    };
    let ended = job.end();
    assert_eq!((ended.code, &*ended.stdout), (3, ""));
    assert!(
        ended.stderr.contains("last line on stderr: port in use"),
        "{}",
        ended.stderr
    );
}

#[test]
fn a_timeout_names_the_workers_that_had_not_finished() {
    let script = "[ $TIDEWATER_RANK = 0 ] || sleep 1000";
    // The time runs from the launcher's start: on a busy machine worker 0 may not have ended, or even begun, when it
    // is over. Then a longer one decides.
    for limit in ["2s", "8s", "15s"] {
        let ended = Job::of(&["-w", "3", "--timeout", limit], script).end();
        assert_eq!(ended.code, 4, "{}", ended.stderr);
        let due = format!("within {limit}; still running: worker 1, worker 2,");
        if ended.stderr.contains(&due) {
            return;
        }
        let is_timeout = ended.stderr.contains("still running: ");
        assert!(is_timeout && limit != "15s", "{limit}: {}", ended.stderr);
    }
}

#[test]
fn evaluations_and_predictions_take_no_checkpoints() {
    for name in ["evaluate", "predict"] {
        let line = [name, "--checkpoint", "c", "--load", "m", "--data", "d"];
        let program = env!("CARGO_BIN_EXE_tidewater");
        let mut command = std::process::Command::new(program);
        let ended = command.args(line).output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(2), "{said}");
        assert!(
            said.contains("with --checkpoint c: it trains nothing"),
            "{said}"
        );
    }
}

#[test]
fn an_idle_job_costs_its_launcher_no_time() {
    let script = "p=$(awk '{print $4}' /proc/$$/stat); sleep 0.3; cat /proc/$p/stat >&2
        sleep 1; cat /proc/$p/stat >&2";
    let ended = Job::of(&["--no-prefix"], script).end();
    let ticks = |line: &str| -> u64 {
        let fields: Vec<&str> = line
            .rsplit(')')
            .next()
            .unwrap()
            .split_whitespace()
            .collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    };
    let ticks: Vec<u64> = ended.stderr.lines().map(ticks).collect();
    assert!(
        ticks[1] - ticks[0] <= 1,
        "{ticks:?} ticks of 10 ms before and after 1 s"
    );
}
