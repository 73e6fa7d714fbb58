//! Tests in processes: counts, failures, limits, repetitions, classes.

use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::thread;
use std::time::{Duration, Instant};

use crate::{Ended, Project};

/// Bash that behaves as a libtest binary with the functions `test_NAME` before it. Names in `IGNORED` are ignored.
const LIBTEST: &str = r#"
names() { compgen -A function test_ | sed 's/^test_//'; }
if [[ ${1:-} == --list ]]; then
    for name in $(names); do
        [[ " $* " != *" --ignored "* || " ${IGNORED:-} " == *" $name "* ]] && echo "$name: test"
    done
    exit 0
fi
[[ ${1:-} == --exact ]] || { for name in $(names); do "test_$name" "$@"; done; echo "test result: ok. $(names | wc -l) passed; 0 failed;"; exit; }
echo; echo "running 1 test"
if ("test_$2"); then echo "test result: ok. 1 passed; 0 failed; 0 ignored;"; else
    echo "test result: FAILED. 0 passed; 1 failed; 0 ignored;"
    exit 101
fi
"#;

/// Project with test binaries.
struct Suite {
    project: Project,
    table: String,
}

impl Suite {
    fn new() -> Self {
        let suite = Self {
            project: Project::new(),
            table: String::new(),
        };
        suite.project.write("ci/test-classes.tsv", "");
        suite.project.write("ci/flakes.tsv", "");
        suite
    }

    /// Adds a binary of crate `c` with these functions.
    fn binary(mut self, target: &str, functions: &str) -> Self {
        self.project
            .script(target, &format!("{functions}\n{LIBTEST}"));
        let path = self.project.path(target);
        let folder = path.parent().unwrap().display();
        self.table += &format!("c\t{target}\t{folder}\t{}\n", path.display());
        self
    }

    fn file(self, name: &str, text: &str) -> Self {
        self.project.write(name, text);
        self
    }

    fn run(&self, arguments: &[&str]) -> Ended {
        self.project.write("binaries.tsv", &self.table);
        let mut command = self
            .project
            .command(&["test", "--binaries", "binaries.tsv"]);
        let report = self.project.path("report");
        fs::write(&report, "").unwrap();
        Ended::new(
            &command
                .args(arguments)
                .env("CI_REPORT", report)
                .output()
                .unwrap(),
        )
    }

    fn report(&self) -> String {
        fs::read_to_string(self.project.path("report")).unwrap()
    }
}

#[test]
fn counts_are_by_crate() {
    let suite = Suite::new()
        .binary(
            "t",
            "IGNORED=c; test_a() { echo from a; }; test_b() { :; }; test_c() { exit 1; }",
        )
        .binary("lib", "test_d() { :; }");
    let ended = suite.run(&[]);
    ended
        .says(0, "--- c t: 2 passed, 0 failed, 1 ignored")
        .says(0, "tests: 3 passed, 0 failed, 1 ignored");
    assert_eq!(suite.report(), "tests\tc\t3\t0\t1\n");
    assert!(!ended.output.contains("from a"));
    let log = fs::read_to_string(suite.project.path("target/ci-logs/tests.txt")).unwrap();
    assert!(
        log.contains("--- c/t/a ok") && log.contains("from a"),
        "{log}"
    );
    suite
        .run(&["--include-ignored"])
        .says(1, "tests: 3 passed, 1 failed");
    suite
        .run(&["--show", "a"])
        .says(0, "from a")
        .says(0, "tests: 1 passed, 0 failed, 0 ignored");
}

#[test]
fn failed_test_is_shown_and_named() {
    let suite = Suite::new().binary("t", "test_a() { :; }; test_b() { echo reason; exit 3; }");
    let ended = suite.run(&[]);
    ended
        .says(1, "--- c/t/b FAILED (exit status: 101)")
        .says(1, "reason");
    ended
        .says(1, "--- to repeat it: cargo xtask test c/t/b")
        .says(1, "    c/t/b");
    assert_eq!(suite.report(), "tests\tc\t1\t1\t0\n");
    suite.run(&["c/t/a"]).says(0, "tests: 1 passed");
}

#[test]
fn each_test_has_its_process() {
    let test = "test_NAME() { [[ ! -e $$.seen ]] && touch $$.seen; }\n";
    let functions = ["a", "b", "c"]
        .map(|name| test.replace("NAME", name))
        .concat();
    let suite = Suite::new().binary("t", &functions);
    suite.run(&[]).says(0, "tests: 3 passed");
    // As a whole they share one.
    suite.run(&["--", "--nocapture"]).says(0, "tests: 3 passed");
    let suite = Suite::new().binary("t", "test_a() { kill -ABRT $$; sleep 9; }");
    suite.run(&[]).says(1, "--- c/t/a FAILED (signal: 6");
    let suite = Suite::new().binary("t", "test_a() { kill -KILL $PPID; }; kill() { :; }; test_a() { exec true; }\nif [[ $1 == --exact ]]; then exit 0; fi");
    suite
        .run(&[])
        .says(1, "--- c/t/a FAILED (it ended before libtest counted it)");
}

#[test]
fn hanging_test_is_ended_with_what_it_started() {
    let suite = Suite::new()
        .binary(
            "t",
            "test_a() { setsid sleep 86391 & echo $! >pid; wait; }; test_b() { :; }",
        )
        .file("ci/test-classes.tsv", "c\tt\ta\tcpu\t1\n");
    let ended = suite.run(&[]);
    ended
        .says(1, "--- c/t/a FAILED (it hangs: over its limit of 1 s)")
        .says(1, "tests: 1 passed, 1 failed");
    let pid = fs::read_to_string(suite.project.path("pid")).unwrap();
    let status = fs::read_to_string(format!("/proc/{}/status", pid.trim()));
    assert!(!status.is_ok_and(|status| status.contains("sleep") && !status.contains("Z (")));
}

#[test]
fn left_process_names_its_test() {
    let suite = Suite::new().binary(
        "t",
        "test_a() { setsid sleep 86390 >/dev/null 2>&1 & }; test_b() { :; }",
    );
    let ended = suite.run(&[]);
    ended
        .says(1, "error: left a process behind: c/t/a: ")
        .says(1, "tests: 2 passed, 0 failed");
}

#[test]
fn run_without_tests_has_failed() {
    let suite = Suite::new().binary("t", "test_a() { :; }");
    suite.run(&["nothing"]).says(1, "error: no test ran");
    let suite = Suite::new().binary("t", "IGNORED=a; test_a() { :; }");
    suite.run(&[]).says(1, "error: no test ran");
}

/// Test that fails at its first run.
const FLAKY: &str = "test_f() { [[ -e seen ]] || { touch seen; false; }; }\n";

#[test]
fn listed_test_is_repeated_once_and_reported() {
    let listed = "# test\tcommit\tcause\nc t f\tabcdef0\twhy\n";
    let suite = Suite::new()
        .binary("t", &format!("{FLAKY}test_a() {{ :; }}"))
        .file("ci/flakes.tsv", listed);
    let ended = suite.run(&[]);
    ended.says(0, "--- c/t/f is in ci/flakes.tsv; once more");
    ended.says(0, "tests: 2 passed, 0 failed, 0 ignored, 1 repeated");
    assert_eq!(suite.report(), "tests\tc\t2\t0\t0\nflake\tc t f\n");
    // It does not pass by being listed.
    let suite = Suite::new()
        .binary("t", "test_f() { false; }")
        .file("ci/flakes.tsv", listed);
    suite
        .run(&[])
        .says(1, "tests: 0 passed, 1 failed, 0 ignored, 1 repeated");
}

#[test]
fn unlisted_failure_is_not_repeated() {
    let listed = "c t f\tabcdef0\twhy\n";
    let suite = Suite::new().binary("t", FLAKY);
    suite
        .run(&[])
        .says(1, "tests: 0 passed, 1 failed, 0 ignored, 0 repeated");
    // Nor is a listed one, if another of its binary failed.
    let suite = Suite::new()
        .binary("t", &format!("{FLAKY}test_a() {{ false; }}"))
        .binary("u", "test_a() { :; }")
        .file("ci/flakes.tsv", listed);
    suite
        .run(&[])
        .says(1, "tests: 1 passed, 2 failed, 0 ignored, 0 repeated");
}

#[test]
fn clock_tests_run_alone() {
    // Fails if another test runs meanwhile.
    let alone = "test_NAME() { mkdir busy && sleep 0.1 && rmdir busy; }\n";
    let functions = ["a", "b", "c", "d"]
        .map(|name| alone.replace("NAME", name))
        .concat();
    let suite = Suite::new()
        .binary("t", &functions)
        .file("ci/test-classes.tsv", "c\tt\t*\tclock\n");
    suite.run(&[]).says(0, "tests: 4 passed");
    suite.run(&["--list"]).says(0, "clock    120 s  c/t/a");
}

#[test]
fn binary_of_whole_class_runs_once() {
    let suite = Suite::new()
        .binary("t", "echo x >>runs; test_a() { :; }; test_b() { :; }")
        .file("ci/test-classes.tsv", "c\tt\t=\tcpu\n");
    suite.run(&[]).says(0, "--- c t: 2 passed");
    assert_eq!(
        fs::read_to_string(suite.project.path("runs")).unwrap(),
        "x\n"
    );
}

#[test]
fn signal_ends_tests() {
    let suite = Suite::new().binary("t", "test_a() { setsid sleep 86389 & echo $! >pid; wait; }");
    suite.project.write("binaries.tsv", &suite.table);
    let mut command = suite
        .project
        .command(&["test", "--binaries", "binaries.tsv"]);
    let mut child = command.spawn().unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    let pid = loop {
        let text = fs::read_to_string(suite.project.path("pid")).unwrap_or_default();
        if let Ok(pid) = text.trim().parse::<u32>() {
            break pid;
        }
        assert!(Instant::now() < until, "the test has not begun");
        thread::sleep(Duration::from_millis(20));
    };
    let own = rustix::process::Pid::from_raw(child.id() as i32).unwrap();
    rustix::process::kill_process(own, rustix::process::Signal::INT).unwrap();
    let status = child.wait().unwrap();
    assert_eq!((status.code(), status.signal()), (Some(130), None));
    let left = fs::read_to_string(format!("/proc/{pid}/status"));
    assert!(!left.is_ok_and(|status| status.contains("sleep") && !status.contains("Z (")));
}
