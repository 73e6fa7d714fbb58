//! Stages: their results, and what is put back, ended and shown after them.

use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::thread;
use std::time::{Duration, Instant};

use crate::{Ended, Project};

/// Shell functions of the stages: report GROUP PASSED FAILED IGNORED, note TEXT.
const LIBRARY: &str = "set -euo pipefail\nreport() { printf 'tests\\t%s\\t%s\\t%s\\t%s\\n' \"$@\" >>\"$CI_REPORT\"; }\n\
    note() { printf 'note\\t%s\\n' \"$*\" >>\"$CI_REPORT\"; }\n";

/// Small project with stages.
struct Stages {
    project: Project,
    budget: String,
}

impl Stages {
    fn new() -> Self {
        let budget = "[run]\nbudget_s = 60\nhard_s = 60\nfull_factor = 1\n".to_owned();
        Self {
            project: Project::new(),
            budget,
        }
    }

    /// Adds a stage with a script and further lines of its section.
    fn stage(mut self, name: &str, script: &str, lines: &str) -> Self {
        self.project
            .script(&format!("ci/{name}.sh"), &format!("{LIBRARY}{script}"));
        let limit = if lines.contains("timeout_s") {
            ""
        } else {
            "timeout_s = 20\n"
        };
        self.budget += &format!(
            "[stage.{name}]\nscript = \"ci/{name}.sh\"\ndoes = \"test\"\nbudget_s = 5\n{limit}{lines}\n"
        );
        self
    }

    fn run(&self, arguments: &[&str]) -> Ended {
        self.project.write("ci/budget.toml", &self.budget);
        self.project.run(&[&["ci"], arguments].concat())
    }
}

#[test]
fn good_run_counts_tests() {
    let stages = Stages::new()
        .stage(
            "good",
            "report g 3 0 1; note done",
            "required = true\ngroups = \"g\"",
        )
        .stage("optional", "note 'not here'; exit 77", "");
    let ended = stages.run(&[]);
    ended.says(0, "3 passed, 0 failed");
    ended.says(
        0,
        "good        ok                    0        5  3 tests, 1 ignored; done",
    );
    ended.says(0, "optional    nothing ");
    assert!(
        ended.output.ends_with("\n3 passed, 0 failed\n"),
        "{ended:?}"
    );
}

#[test]
fn failed_stage_blocks_those_that_need_it() {
    let stages = Stages::new()
        .stage("bad", "report g 3 2 0; exit 1", "")
        .stage("after", ":", "needs = \"bad\"");
    let ended = stages.run(&[]);
    ended
        .says(1, "3 passed, 3 failed")
        .says(1, "BLOCKED: after; log: target/ci-logs/after.log; again:");
    ended.says(1, "after       BLOCKED               0        5  needs bad");
    // Alone it runs.
    stages.run(&["--only", "after"]).says(0, "after       ok ");
}

#[test]
fn excerpt_has_failed_tests_and_not_the_rest() {
    let ended = Stages::new()
        .stage(
            "telling",
            "echo 'test a::b ... FAILED'; seq 1 999; report g 3 1 0; exit 1",
            "",
        )
        .run(&[]);
    ended.says(1, "1:test a::b ... FAILED");
    assert!(!ended.output.contains("\n500\n"));
    let ended = Stages::new()
        .stage("quiet", "seq 1 999; exit 1", "")
        .run(&[]);
    ended.says(1, "999");
}

#[test]
fn stage_that_sets_up_has_a_second_try() {
    let script = "[[ -e seen ]] && report g 3 0 0 && exit; touch seen; printf 'failures:\\n    a::b\\nerror: bad luck\\n'; exit 1";
    let ended = Stages::new()
        .stage("shaky", script, "sets_up = true\ntries = 2")
        .run(&[]);
    ended
        .says(0, "shaky       ok, 2nd try ")
        .says(0, "shaky: tests that failed: a::b");
    ended
        .says(0, "3:error: bad luck")
        .says(0, "=== shaky: FAILED; once more");
    let ended = Stages::new()
        .stage("bad", "exit 1", "sets_up = true\ntries = 2")
        .run(&[]);
    ended
        .says(1, "bad         FAILED ")
        .says(1, "0 passed, 1 failed");
}

#[test]
fn second_try_of_a_check_is_refused() {
    let ended = Stages::new().stage("check", ":", "tries = 2").run(&[]);
    ended.says(1, "error: stage check: tries is for stages that set up");
}

#[test]
fn required_stage_that_ran_nothing_has_failed() {
    let ended = Stages::new()
        .stage("empty", "exit 77", "required = true")
        .run(&[]);
    ended.says(1, "RAN NOTHING: empty");
    let ended = Stages::new()
        .stage("hollow", "report g 0 0 5", "groups = \"g\"")
        .run(&[]);
    ended.says(
        1,
        "hollow      RAN NOTHING           0        5  0 tests, 5 ignored; no test of g",
    );
}

#[test]
fn stage_that_hangs_is_ended() {
    let ended = Stages::new()
        .stage("slow", "sleep 86394", "timeout_s = 1")
        .run(&[]);
    ended.says(1, "TIMED OUT: slow");
}

#[test]
fn left_process_is_ended_and_named() {
    let stages = Stages::new()
        .stage(
            "litter",
            "setsid sleep 86393 >/dev/null 2>&1 & echo $! >pid",
            "",
        )
        .stage("next", ":", "");
    let ended = stages.run(&[]);
    ended
        .says(1, "LEFT PROCESSES: litter")
        .says(1, "next        ok ");
    assert!(
        ended.output.contains("left these processes behind:\n"),
        "{ended:?}"
    );
    let pid = fs::read_to_string(stages.project.path("pid")).unwrap();
    let status = fs::read_to_string(format!("/proc/{}/status", pid.trim()));
    assert!(!status.is_ok_and(|status| status.contains("sleep") && !status.contains("Z (")));
}

#[test]
fn temporary_files_are_removed() {
    let stages = Stages::new().stage("temporary", "mktemp -d >seen; exit 1", "");
    stages.run(&[]).says(1, "FAILED: temporary");
    let path = fs::read_to_string(stages.project.path("seen")).unwrap();
    assert!(path.starts_with('/') && !fs::exists(path.trim()).unwrap());
}

#[test]
fn chosen_stage_shows_its_output() {
    let stages = Stages::new()
        .stage("a", "echo from a", "")
        .stage("b", "echo from b", "");
    let ended = stages.run(&["--only", "b"]);
    ended.says(0, "=== b: test").says(0, "from b");
    assert!(!ended.output.contains("from a"), "{ended:?}");
    stages
        .run(&["--list"])
        .says(0, "a           test                              ci/a.sh");
    stages
        .run(&["--only", "c"])
        .says(1, "error: --only c: no such stage; name one of a b");
    stages
        .run(&["--verbose"])
        .says(0, "from a")
        .says(0, "from b");
}

#[test]
fn stages_run_side_by_side_where_the_data_says_so() {
    // Each waits for the other.
    let meets = |other: &str| {
        format!(
            "touch here-$(basename \"$0\" .sh); until [[ -e here-{other} ]]; do sleep 0.05; done"
        )
    };
    let stages = Stages::new()
        .stage("a", &meets("b"), "")
        .stage("b", &meets("a"), "beside = \"a\"")
        .stage("c", "[[ ! -e here-c ]]", "");
    let ended = stages.run(&[]);
    ended
        .says(0, "a           ok ")
        .says(0, "b           ok ")
        .says(0, "c           ok ");
    let apart = Stages::new()
        .stage("a", &meets("b"), "timeout_s = 1")
        .stage("b", "touch here-b", "");
    apart.run(&[]).says(1, "TIMED OUT: a");
}

#[test]
fn signal_ends_stages_and_what_they_started() {
    let stages = Stages::new().stage("long", "setsid sleep 86392 & echo $! >pid; wait", "");
    stages.project.write("ci/budget.toml", &stages.budget);
    let mut child = stages.project.command(&["ci"]).spawn().unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    let pid = loop {
        let text = fs::read_to_string(stages.project.path("pid")).unwrap_or_default();
        if let Ok(pid) = text.trim().parse::<u32>() {
            break pid;
        }
        assert!(Instant::now() < until, "the stage has not begun");
        thread::sleep(Duration::from_millis(20));
    };
    let own = rustix::process::Pid::from_raw(child.id() as i32).unwrap();
    rustix::process::kill_process(own, rustix::process::Signal::TERM).unwrap();
    let status = child.wait().unwrap();
    assert_eq!((status.code(), status.signal()), (Some(143), None));
    let left = fs::read_to_string(format!("/proc/{pid}/status"));
    assert!(!left.is_ok_and(|status| status.contains("sleep") && !status.contains("Z (")));
}

#[test]
fn setup_of_the_script_is_the_first_row() {
    let stages = Stages::new()
        .stage("setup", "exit 1", "")
        .stage("next", ":", "needs = \"setup\"");
    stages.project.write("ci/budget.toml", &stages.budget);
    stages
        .project
        .write("target/ci-logs/setup.log", "fetched\n");
    stages
        .project
        .write("target/ci-logs/setup.report", "note\tfetched\n");
    let run = |value: &str| {
        let mut command = stages.project.command(&["ci"]);
        Ended::new(&command.env("CI_SETUP", value).output().unwrap())
    };
    run("0 7 9")
        .says(0, "setup       ok                   7!        5  fetched")
        .says(0, "next        ok ");
    run("1 3 3")
        .says(1, "FAILED: setup")
        .says(1, "BLOCKED: next");
}
