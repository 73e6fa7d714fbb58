//! Classes of tests: how many run at a time, and for how long at most. The data is ci/test-classes.tsv.

use std::time::Duration;

use crate::failure::{Failure, Result};

/// File with the classes.
pub(crate) const FILE: &str = "ci/test-classes.tsv";
/// Limit of a test that no line of the file gives another, seconds.
pub(crate) const LIMIT_S: u64 = 120;
/// Factor of the limits where `TIDEWATER_TEST_FULL=1` asks for the larger counts.
const FULL_FACTOR: u32 = 16;

/// What a test needs of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Class {
    /// Computes, and waits now and then: one for each core, and a job or waiting tests next to them.
    Cpu,
    /// Mostly waits: four for each core without other tests.
    Wait,
    /// Runs jobs of several processes: one at a time, next to tests of other classes.
    Job,
    /// Uses an RDMA device: one at a time, next to tests of other classes.
    Device,
    /// Measures times, changes settings of the host, or must see torn reads: nothing else runs.
    Clock,
}

impl Class {
    const ALL: [(&'static str, Self); 5] = [
        ("cpu", Self::Cpu),
        ("wait", Self::Wait),
        ("job", Self::Job),
        ("device", Self::Device),
        ("clock", Self::Clock),
    ];

    pub(crate) fn name(self) -> &'static str {
        Self::ALL
            .iter()
            .find(|(_, class)| *class == self)
            .map_or("", |(name, _)| name)
    }

    /// Quarters of a core that a test is expected to use. Measured on two cores: with four for each computing test and
    /// each job, the cores were busy 56 % of the time.
    pub(crate) fn quarters(self) -> usize {
        match self {
            Self::Wait => 1,
            Self::Job => 2,
            Self::Cpu => 3,
            Self::Device | Self::Clock => 4,
        }
    }

    /// Whether only one test of the class runs at a time.
    pub(crate) fn is_single(self) -> bool {
        matches!(self, Self::Job | Self::Device | Self::Clock)
    }
}

/// Class and limit of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Treatment {
    pub(crate) class: Class,
    pub(crate) limit: Duration,
    /// Whether the tests of the binary run in one process.
    pub(crate) whole: bool,
}

/// Line of the file. `*` stands for every crate, target or test.
#[derive(Debug)]
struct Rule {
    crate_name: String,
    target: String,
    /// Beginning of the tests' names, or `*`; `=` for all tests of a binary in one process.
    test: String,
    class: Class,
    limit: Duration,
}

/// Rules of the file; the last one that fits holds.
#[derive(Debug)]
pub(crate) struct Classes {
    rules: Vec<Rule>,
    factor: u32,
}

impl Classes {
    /// Reads the lines: crate, target, test, class and, if it is not the usual one, the limit in seconds.
    pub(crate) fn new(table: &str, full: bool) -> Result<Self> {
        let rules = table
            .lines()
            .enumerate()
            .filter(|(_, line)| !line.starts_with('#') && !line.is_empty())
            .map(|(at, line)| {
                Rule::new(line).ok_or_else(|| Failure::Malformed {
                    subject: format!("{FILE}:{}", at + 1),
                    problem: format!(
                        "{line:?} has no crate, target, test and class, with tabs between"
                    ),
                    remedy: "classes are cpu, wait, job, device and clock".to_owned(),
                })
            })
            .collect::<Result<_>>()?;
        Ok(Self {
            rules,
            factor: if full { FULL_FACTOR } else { 1 },
        })
    }

    /// Treatment of a test; without a name, that of a binary as a whole.
    pub(crate) fn of(&self, crate_name: &str, target: &str, test: Option<&str>) -> Treatment {
        let rule = self
            .rules
            .iter()
            .rev()
            .find(|rule| rule.fits(crate_name, target, test));
        Treatment {
            class: rule.map_or(Class::Cpu, |rule| rule.class),
            limit: rule.map_or(Duration::from_secs(LIMIT_S), |rule| rule.limit) * self.factor,
            whole: rule.is_some_and(|rule| rule.test == "="),
        }
    }
}

impl Rule {
    fn new(line: &str) -> Option<Self> {
        let mut cells = line.split('\t');
        let mut cell = || cells.next().filter(|cell| !cell.is_empty());
        let (crate_name, target, test) =
            (cell()?.to_owned(), cell()?.to_owned(), cell()?.to_owned());
        let name = cell()?;
        let (_, class) = *Class::ALL.iter().find(|(own, _)| *own == name)?;
        let seconds = match cell() {
            Some(seconds) => seconds.parse().ok()?,
            None => LIMIT_S,
        };
        Some(Self {
            crate_name,
            target,
            test,
            class,
            limit: Duration::from_secs(seconds),
        })
    }

    fn fits(&self, crate_name: &str, target: &str, test: Option<&str>) -> bool {
        let fits = |pattern: &str, name: &str| pattern == "*" || pattern == name;
        let is_bench = self.target == "bench:*" && target.starts_with("bench:");
        fits(&self.crate_name, crate_name)
            && (fits(&self.target, target) || is_bench)
            && match (self.test.as_str(), test) {
                ("*" | "=", _) => true,
                (beginning, Some(test)) => test.starts_with(beginning),
                (_, None) => false,
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(table: &str, test: &str) -> Treatment {
        Classes::new(table, false).unwrap().of("c", "t", Some(test))
    }

    #[test]
    fn last_line_that_fits_holds() {
        let table = "# crate\n*\tt\t*\twait\nc\tt\tslow::\tclock\t300\nd\tt\t*\tjob\n";
        assert_eq!(of(table, "a").class, Class::Wait);
        assert_eq!(of(table, "a").limit, Duration::from_secs(120));
        assert_eq!(of(table, "slow::a").class, Class::Clock);
        assert_eq!(of(table, "slow::a").limit, Duration::from_secs(300));
        assert_eq!(of("", "a").class, Class::Cpu);
    }

    #[test]
    fn binaries_run_as_a_whole_by_their_line() {
        let classes = Classes::new("*\tbench:*\t=\tcpu\t600\n", true).unwrap();
        let found = classes.of("c", "bench:x", None);
        assert!(found.whole);
        assert_eq!(found.limit, Duration::from_secs(600 * 16));
        assert!(!classes.of("c", "lib", None).whole);
    }

    #[test]
    fn malformed_line_is_named() {
        for line in [
            "c\tt\t*\tfast",
            "c\tt\t*",
            "c\tt\t*\tcpu\tsoon",
            "c t * cpu",
        ] {
            let error = Classes::new(&format!("# x\n{line}\n"), false)
                .unwrap_err()
                .to_string();
            assert!(error.starts_with("ci/test-classes.tsv:2: "), "{error}");
        }
    }

    #[test]
    fn file_of_the_project_is_sound() {
        let root = crate::tree::root().unwrap();
        let table = crate::binaries::read(&root, FILE).unwrap();
        let classes = Classes::new(&table, false).unwrap();
        assert!(classes.of("tidewater-bench", "bench:parts", None).whole);
        assert_eq!(
            classes.of("tidewater-tests", "stress", Some("a")).class,
            Class::Clock
        );
    }
}
