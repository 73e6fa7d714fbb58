//! Launches under limits of open files.

use crate::harness::{Job, SERVER};

#[test]
fn many_workers_start_under_a_low_soft_limit() {
    let ended = Job {
        ulimit: Some("-Sn 64"),
        ..Job::of(&["-w", "40"], "echo limit $(ulimit -n)")
    }
    .end();
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let hard = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
    let hard = hard.map_or("unlimited".to_owned(), |hard| hard.to_string());
    let told = ended
        .stdout
        .lines()
        .filter(|line| *line == format!("limit {hard}"));
    assert_eq!(told.count(), 40, "{}", ended.stdout);
}

/// The number is exact: with one file less the job is refused, with that many it runs.
#[test]
fn job_beyond_the_hard_limit_names_what_it_needs() {
    let run = |limit: u64| {
        let limit = format!("-n {limit}");
        Job {
            ulimit: Some(&limit),
            server: &format!("echo begun; {SERVER}"),
            ..Job::of(&["-w", "30", "-s", "3"], "echo begun")
        }
        .end()
    };
    let refused = run(64);
    assert_eq!(refused.code, 3, "{}", refused.stderr);
    let needed = refused.stderr.split("needs ").nth(1);
    let needed = needed.and_then(|rest| rest.split(' ').next());
    let needed: u64 = needed.and_then(|n| n.parse().ok()).expect(&refused.stderr);
    assert!(
        refused.stderr.contains("the limit is 64"),
        "{}",
        refused.stderr
    );
    assert!(!refused.stderr.contains("begun"), "{}", refused.stderr);
    assert_eq!(refused.stdout, "");
    assert_eq!(run(needed - 1).code, 3);
    let ended = run(needed);
    assert_eq!(ended.code, 0, "{needed}: {}", ended.stderr);
    assert_eq!(ended.stdout.lines().count(), 30);
}
