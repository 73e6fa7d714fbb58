//! `tidewater run --hostfile`, with a stand-in for ssh. Its processes run in a separate session and
//! learn of the launcher's end only by their stdin, as on another host. `ci/launch.sh` tests hosts with
//! separate networks.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use rustix::process::Signal;
use tempfile::TempDir;

use crate::proc::Process;
use crate::rig::{Ended, Run, trainer};

/// Script called like ssh with a host's name and a command line.
const STAND_IN: &str = r#"#!/bin/sh
here=${0%/*} host=$1
echo "$@" >>"$here/calls"
shift
case $host in
gone) echo "ssh: connect to host gone port 22: No route to host" >&2; exit 255 ;;
silent) exec sleep 1000 ;;
greedy) exec cat >"$here/taken" ;;
esac
echo "Welcome to $host"
exec 3<&0
setsid sh -c "$*" <&3 3<&- &
exec 3<&-
wait $!
"#;

/// A hostfile and the stand-in script.
struct Hosts {
    folder: TempDir,
}

impl Hosts {
    fn new(lines: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let it = Self { folder };
        fs::write(it.path("hosts"), lines).unwrap();
        fs::write(it.path("rsh"), STAND_IN).unwrap();
        fs::set_permissions(it.path("rsh"), fs::Permissions::from_mode(0o700)).unwrap();
        it
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn options(&self) -> Vec<String> {
        let of = |name| self.path(name).to_str().unwrap().to_owned();
        let flags = ["--hostfile", &of("hosts"), "--rsh", &of("rsh")];
        let counts = ["--servers", "2", "--workers", "2", "--hugepages", "off"];
        flags
            .iter()
            .chain(&counts)
            .map(|s| (*s).to_owned())
            .collect()
    }

    fn train(&self, options: &[&str], arguments: &[&str]) -> Run {
        let own = self.options();
        let all: Vec<&str> = own
            .iter()
            .map(String::as_str)
            .chain(options.iter().copied())
            .collect();
        Run::train(&all, arguments)
    }

    fn calls(&self) -> String {
        fs::read_to_string(self.path("calls")).unwrap_or_default()
    }
}

/// Checks for the end with code 4, the message, and no leftovers.
fn ended_with(run: Run, what: &str) -> Ended {
    run.until_nothing_is_left();
    let ended = run.end();
    assert_eq!(ended.code, 4, "{}", ended.stderr);
    assert!(ended.stderr.contains(what), "no {what:?}: {}", ended.stderr);
    ended
}

/// Reads the fingerprint in a report.
fn fingerprint(path: &PathBuf) -> String {
    let report: serde_json::Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    report["fingerprint"].as_str().unwrap().to_owned()
}

#[test]
fn a_job_on_two_hosts_trains_the_model_of_one_host() {
    let hosts = Hosts::new("# both\nn1 slots=2\nn2 slots=2\n");
    let reports = ["far.json", "here.json"].map(|name| hosts.path(name));
    let json = reports.each_ref().map(|path| path.to_str().unwrap());
    let said = hosts.train(&["--prefix"], &["--json", json[0]]).succeeds();
    assert!(
        said.contains("[worker 1] ") || said.contains("[worker 0] "),
        "{said}"
    );
    assert!(
        !said.contains("Welcome to"),
        "what the shell says is nobody's output: {said}"
    );
    let run = Run::train(&["--servers", "2", "--workers", "2"], &["--json", json[1]]);
    run.succeeds();
    assert_eq!(
        fingerprint(&reports[0]),
        fingerprint(&reports[1]),
        "they differ in bits"
    );
    let calls = hosts.calls();
    let of = |host: &str| calls.lines().filter(|call| call.starts_with(host)).count();
    assert_eq!((of("n1 exec"), of("n2 exec")), (2, 2), "{calls}");
    let digits = |word: &str| word.len() >= 64 && word.bytes().all(|b| b.is_ascii_hexdigit());
    let mut words = calls.split(|c: char| !c.is_ascii_alphanumeric());
    assert!(!words.any(digits), "the token is no argument: {calls}");
}

#[test]
fn a_host_that_is_not_reached_or_silent_is_named_and_the_others_end() {
    let hosts = Hosts::new("n1 slots=3\ngone\n");
    let ended = ended_with(
        hosts.train(&[], &[]),
        "host gone cannot be used, server 1 was to run",
    );
    assert!(
        ended.stderr.contains("No route to host"),
        "{}",
        ended.stderr
    );

    let hosts = Hosts::new("n1 slots=3\nsilent\n");
    let run = hosts.train(&["--start-timeout", "2s", "--grace", "1s"], &[]);
    ended_with(
        run,
        "host silent cannot be used, server 1 was to run there: nothing came",
    );

    // A host that does not greet does not get the token.
    let hosts = Hosts::new("n1 slots=3\ngreedy\n");
    let run = hosts.train(&["--start-timeout", "2s", "--grace", "1s"], &[]);
    ended_with(run, "host greedy cannot be used");
    assert_eq!(fs::read(hosts.path("taken")).unwrap(), b"");
}

#[test]
fn a_shell_that_ends_is_a_host_that_is_lost() {
    let hosts = Hosts::new("n1 slots=2\nn2 slots=2\n");
    let mut run = hosts.train(&[], &["--epochs", "100000"]);
    run.until_training();
    // Its parent is the stand-in, or the shell that the stand-in has started.
    let worker = run.of("worker").remove(1);
    let is_shell = |pid: i32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains("/rsh\0n2\0")
    };
    let parent = |pid: i32| -> i32 {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let rest = stat.rsplit(')').next().unwrap();
        rest.split_whitespace().nth(1).unwrap().parse().unwrap()
    };
    let mut shell = worker.pid;
    while !is_shell(shell) {
        shell = parent(shell);
        assert!(shell > 1, "the worker is not the stand-in's");
    }
    let shell = rustix::process::Pid::from_raw(shell).unwrap();
    rustix::process::kill_process(shell, Signal::KILL).unwrap();
    ended_with(run, "host n2 is lost, worker 1 ran there");
}

#[test]
fn deaths_and_signals_of_programs_over_there_are_those_of_programs_here() {
    let hosts = Hosts::new("n1 slots=2\nn2 slots=2\n");
    let mut run = hosts.train(&[], &["--epochs", "100000"]);
    run.until_training();
    run.of("worker").remove(1).signal(Signal::KILL);
    run.until_nothing_is_left();
    let ended = run.end();
    assert_eq!(ended.code, 137, "{}", ended.stderr);
    assert!(ended.stderr.contains("worker 1 (pid "), "{}", ended.stderr);
    assert!(
        ended.stderr.contains(" on n2) ended with exit code 137"),
        "{}",
        ended.stderr
    );

    let mut run = hosts.train(&[], &["--epochs", "100000"]);
    run.until_training();
    run.launcher().signal(Signal::USR1);
    run.until_nothing_is_left();
    let ended = run.end();
    assert_eq!(ended.code, 138, "{}", ended.stderr);
    assert!(
        ended.stderr.contains("worker 0 ended by signal 10"),
        "{}",
        ended.stderr
    );
}

#[test]
fn what_a_job_is_told_of_its_devices_is_told_on_other_hosts_too() {
    let hosts = Hosts::new("n1 slots=2\nn2 slots=2\n");
    let told = [
        "--rdma-timeout=9",
        "--rdma-pkey=0x8001",
        "--rdma-device",
        "rxe7:2",
    ];
    let mut run = hosts.train(&told, &["--epochs", "100000"]);
    run.until_training();
    let all: Vec<Process> = ["server", "worker"].map(|role| run.of(role)).concat();
    assert_eq!(all.len(), 4);
    for process in all {
        let environment = fs::read(format!("/proc/{}/environ", process.pid)).unwrap();
        let variables: Vec<&[u8]> = environment.split(|byte| *byte == 0).collect();
        for must in [
            "TIDEWATER_RDMA_TIMEOUT=9",
            "TIDEWATER_RDMA_PKEY=0x8001",
            "TIDEWATER_RDMA_DEVICE=rxe7:2",
        ] {
            assert!(variables.contains(&must.as_bytes()), "{must}");
        }
    }
    run.launcher().signal(Signal::TERM);
    run.until_nothing_is_left();
    run.end();
}

#[test]
fn nothing_is_left_over_there_when_the_launcher_is_killed() {
    let hosts = Hosts::new("n1 slots=2\nn2 slots=2\n");
    let mut run = hosts.train(&[], &["--epochs", "100000"]);
    run.until_training();
    let there: Vec<Process> = run.of("worker");
    assert_eq!(there.len(), 2);
    run.launcher().signal(Signal::KILL);
    run.until_nothing_is_left();
    assert_eq!(run.end().code, -9);
}

#[test]
fn what_cannot_be_is_refused_before_anything_is_started() {
    let refused = |lines: &str, options: &[&str]| {
        let hosts = Hosts::new(lines);
        let ended = hosts.train(options, &[]).end();
        assert_eq!(ended.code, 2, "{}", ended.stderr);
        assert_eq!(hosts.calls(), "", "nobody is called");
        ended.stderr
    };
    let said = refused("n1 slots=2\nn2 slots=two\n", &[]);
    assert!(
        said.contains("hosts, line 2: \"slots=two\" is not slots=N"),
        "{said}"
    );
    let said = refused("n1 slots=2\nn2\n", &[]);
    assert!(
        said.contains("2 servers and 2 workers are more processes than the 3 slots"),
        "{said}"
    );
    let said = refused("n1 slots=4\n", &["--interface", "no0"]);
    assert!(said.contains("no0: no such interface"), "{said}");
    // Started by hand it is useless, and reports that.
    let alone = crate::rig::output(&trainer().with_file_name("tidewater"), &["__remote"]);
    let said = String::from_utf8_lossy(&alone.stderr).into_owned();
    assert!(
        alone.status.code() == Some(3) && said.contains("no order came"),
        "{said}"
    );
}
