//! The output of children arrives complete, in order, with unbroken lines.

use std::io::{Read as _, Write as _};
use std::process::Stdio;
use std::time::Duration;

use crate::harness::Job;

/// 10,000 numbered lines with a tail that reveals a cut, written in odd pieces.
const MANY_LINES: &str = "awk -v r=$TIDEWATER_RANK 'BEGIN {
    for (i = 0; i < 10000; i++) {
        printf \"%d %d \", r, i; if (i % 7 == 0) fflush(); printf \"%0*d end\\n\", 1 + i % 90, 0
    }
}'";

fn check_many_lines(text: &str, workers: usize) {
    let mut next = vec![0_u32; workers];
    for line in text.lines() {
        let mut words = line.split(' ');
        let rank: usize = words.next().unwrap().parse().unwrap();
        let number: u32 = words.next().unwrap().parse().unwrap();
        assert_eq!(number, next[rank], "order of worker {rank}");
        let zeros = words.next().unwrap();
        assert_eq!(
            zeros.len(),
            1 + usize::try_from(number % 90).unwrap(),
            "{line}"
        );
        assert_eq!((words.next(), words.next()), (Some("end"), None), "{line}");
        next[rank] += 1;
    }
    assert_eq!(next, vec![10_000; workers]);
}

#[test]
fn lines_of_eight_children_do_not_mix() {
    let ended = Job::of(&["-w", "8"], MANY_LINES).end();
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    check_many_lines(&ended.stdout, 8);
}

#[test]
fn a_slow_reader_slows_the_job_and_loses_nothing() {
    let (mut reader, writer) = std::io::pipe().unwrap();
    let job = Job {
        stdout: Some(Stdio::from(writer)),
        ..Job::of(&["-w", "4"], MANY_LINES)
    };
    let mut run = job.start();
    std::thread::sleep(Duration::from_millis(300));
    run.until("");
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    assert_eq!(run.end().code, 0);
    check_many_lines(&text, 4);
}

#[test]
fn a_reader_that_leaves_does_not_stop_the_job() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let job = Job {
        stdout: Some(Stdio::from(writer)),
        ..Job::of(&["-w", "2"], MANY_LINES)
    };
    let ended = job.end();
    assert_eq!(ended.code, 0);
    assert!(
        ended.stderr.contains("bytes of output were not taken"),
        "{}",
        ended.stderr
    );
}

#[test]
fn one_worker_is_passed_through_byte_for_byte() {
    let ended = Job::of(&[], "printf 'a\\001\\n\\033[0m no end'; echo note >&2").end();
    assert_eq!(
        (ended.code, ended.stdout.as_str()),
        (0, "a\u{1}\n\u{1b}[0m no end")
    );
    assert_eq!(ended.stderr, "[worker 0] note\n");
}

#[test]
fn prefixes_can_be_had_or_not() {
    let script = "echo out; echo err >&2";
    let with = Job::of(&["--prefix"], script).end();
    assert_eq!(
        (&*with.stdout, &*with.stderr),
        ("[worker 0] out\n", "[worker 0] err\n")
    );
    let without = Job::of(&["--no-prefix"], script).end();
    assert_eq!((&*without.stdout, &*without.stderr), ("out\n", "err\n"));
}

#[test]
fn worker_0_reads_the_launchers_stdin_and_the_others_nothing() {
    let (reader, mut writer) = std::io::pipe().unwrap();
    writer.write_all(b"a line\n").unwrap();
    drop(writer);
    let job = Job {
        stdin: reader.into(),
        ..Job::of(&["-w", "2", "--prefix"], "cat; echo end")
    };
    let stdout = job.end().stdout;
    let mut lines: Vec<&str> = stdout.lines().collect();
    lines.sort_unstable();
    assert_eq!(
        lines,
        ["[worker 0] a line", "[worker 0] end", "[worker 1] end"]
    );
}

#[test]
fn what_dead_children_left_in_their_pipes_is_passed_on() {
    let (mut reader, writer) = std::io::pipe().unwrap();
    // Fills the launcher's own pipe (64 KiB) and queue (1 MiB, and at most one read more). The
    // rest fits into the worker's pipe and stays there, so that the worker ends.
    let bytes = (1 << 20) + (124 << 10);
    let script = format!("head -c {bytes} /dev/zero; echo written >&2");
    let job = Job {
        stdout: Some(Stdio::from(writer)),
        ..Job::of(&[], &script)
    };
    let mut run = job.start();
    run.until("written");
    std::thread::sleep(Duration::from_millis(200));
    let mut taken = Vec::new();
    reader.read_to_end(&mut taken).unwrap();
    assert_eq!((run.end().code, taken.len()), (0, bytes));
}
