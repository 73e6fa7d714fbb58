//! Outcome of a test: from its exit status and from what libtest printed.

use std::process::ExitStatus;

/// Numbers of tests by result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) ignored: u64,
}

impl Counts {
    pub(crate) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
    }

    pub(crate) fn total(self) -> u64 {
        self.passed + self.failed + self.ignored
    }
}

/// Sums of libtest's lines "test result: ..."; `None` without such a line.
pub(crate) fn counts(output: &str) -> Option<Counts> {
    let mut sum = None;
    for line in output
        .lines()
        .filter(|line| line.starts_with("test result: "))
    {
        let words: Vec<&str> = line.split_whitespace().collect();
        let before = |word: &str| {
            let at = words.iter().position(|own| *own == word)?;
            words.get(at.checked_sub(1)?)?.parse().ok()
        };
        sum.get_or_insert_with(Counts::default).add(Counts {
            passed: before("passed;").unwrap_or(0),
            failed: before("failed;").unwrap_or(0),
            ignored: before("ignored;").unwrap_or(0),
        });
    }
    sum
}

/// Names that libtest lists at the end of a run.
pub(crate) fn failed_names(output: &str) -> Vec<String> {
    let mut in_list = false;
    let mut names = Vec::new();
    for line in output.lines() {
        if line == "failures:" || line.starts_with("test result") {
            in_list = line == "failures:";
        }
        let name = line.strip_prefix("    ").filter(|_| in_list);
        names.extend(
            name.filter(|name| !name.is_empty() && !name.contains(char::is_whitespace))
                .map(str::to_owned),
        );
    }
    names.sort();
    names.dedup();
    names
}

/// What is wrong with the run of one test by its exact name, if anything is.
pub(crate) fn wrong_with_test(status: ExitStatus, output: &str) -> Option<String> {
    if !status.success() {
        return Some(status.to_string());
    }
    // A test may start its own binary again, which prints such a line before it.
    let last = output
        .lines()
        .rfind(|line| line.starts_with("test result: "));
    let ran_one = last.is_some_and(|line| line.starts_with("test result: ok. 1 passed; 0 failed;"));
    (!ran_one).then(|| "it ended before libtest counted it".to_owned())
}

/// Counts of a binary that ran as a whole, and what is wrong with it, if anything is.
pub(crate) fn of_binary(status: ExitStatus, output: &str) -> (Counts, Option<String>) {
    let libtest = counts(output);
    // A benchmark without libtest is one test.
    let mut counts = libtest.unwrap_or(Counts {
        passed: 1,
        ..Counts::default()
    });
    if !status.success() {
        if libtest.is_none() {
            counts.passed = 0;
        }
        counts.failed = counts.failed.max(1);
        return (counts, Some(status.to_string()));
    }
    let wrong = (counts.total() == 0).then(|| "no test has that name".to_owned());
    (counts, wrong)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    const PASSED: &str =
        "\nrunning 1 test\ntest result: ok. 1 passed; 0 failed; 0 ignored; 0 measured;\n";
    const FAILED: &str = "running 3 tests\nfailures:\n\n---- a::b stdout ----\nx\n\nfailures:\n    a::b\n\n\
        test result: FAILED. 1 passed; 1 failed; 1 ignored; 0 measured; 2 filtered out\n";

    fn exit(code: i32) -> ExitStatus {
        ExitStatus::from_raw(code << 8)
    }

    #[test]
    fn test_passes_if_libtest_counted_it() {
        assert_eq!(wrong_with_test(exit(0), PASSED), None);
        assert_eq!(wrong_with_test(exit(0), &format!("{FAILED}{PASSED}")), None);
        assert!(wrong_with_test(exit(101), FAILED).unwrap().contains("101"));
        assert!(wrong_with_test(exit(0), "running 1 test\n").is_some());
        assert!(wrong_with_test(exit(0), &PASSED.replace("1 passed", "0 passed")).is_some());
        assert!(
            wrong_with_test(ExitStatus::from_raw(6), PASSED)
                .unwrap()
                .contains("signal")
        );
    }

    #[test]
    fn counts_of_a_binary_are_sums() {
        let counts = |passed, failed, ignored| Counts {
            passed,
            failed,
            ignored,
        };
        assert_eq!(
            of_binary(exit(0), &format!("{PASSED}{PASSED}")),
            (counts(2, 0, 0), None)
        );
        assert_eq!(of_binary(exit(101), FAILED).0, counts(1, 1, 1));
        assert_eq!(of_binary(exit(0), "a benchmark").0, counts(1, 0, 0));
        assert_eq!(of_binary(exit(1), "a benchmark").0, counts(0, 1, 0));
        // It died before it could count.
        assert_eq!(of_binary(exit(134), PASSED).0, counts(1, 1, 0));
        assert!(of_binary(exit(0), &PASSED.replace('1', "0")).1.is_some());
    }

    #[test]
    fn names_of_failed_tests_are_listed() {
        assert_eq!(failed_names(FAILED), ["a::b"]);
        assert_eq!(failed_names("    a::b\n"), [""; 0]);
    }
}
