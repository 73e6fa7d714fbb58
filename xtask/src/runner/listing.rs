//! Tests of binaries, as libtest lists them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::classes::{Classes, LIMIT_S, Treatment};
use crate::binaries::Binary;
use crate::failure::{Failure, Result};
use crate::tree;

/// Test, or all tests of a binary in one process.
#[derive(Clone, Debug)]
pub(crate) struct Test {
    /// Position of its binary.
    pub(crate) binary: usize,
    /// Name by which libtest knows it; `None` for all tests of the binary.
    pub(crate) name: Option<String>,
    pub(crate) ignored: bool,
    pub(crate) treatment: Treatment,
    /// Crate, target and name, with slashes between.
    pub(crate) id: String,
}

/// Choice among the tests.
#[derive(Debug, Default)]
pub(crate) struct Filter {
    /// Each must be the crate, the target or part of the name, or the id.
    pub(crate) words: Vec<String>,
    /// Targets, if not empty.
    pub(crate) targets: Vec<String>,
    /// Targets that are left out.
    pub(crate) except: Vec<String>,
}

impl Filter {
    fn has_binary(&self, binary: &Binary) -> bool {
        (self.targets.is_empty() || self.targets.contains(&binary.target))
            && !self.except.contains(&binary.target)
    }

    fn has(&self, binary: &Binary, test: &Test) -> bool {
        self.words.iter().all(|word| {
            let name = &binary.crate_name;
            word == name
                || name.strip_prefix("tidewater-") == Some(word)
                || *word == binary.target
                || *word == test.id
                || test
                    .name
                    .as_ref()
                    .is_some_and(|name| name.contains(word.as_str()))
        })
    }
}

/// Tests of the binaries that pass the filter. With `whole` each binary is one test.
pub(crate) fn tests(
    binaries: &[Binary],
    classes: &Classes,
    filter: &Filter,
    whole: bool,
) -> Result<Vec<Test>> {
    let places: Vec<usize> = (0..binaries.len())
        .filter(|at| filter.has_binary(&binaries[*at]))
        .collect();
    let queue = Mutex::new(places.into_iter());
    let (sender, receiver) = mpsc::channel();
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..threads {
            let (queue, sender) = (&queue, sender.clone());
            scope.spawn(move || {
                let next = || queue.lock().ok()?.next();
                while let Some(at) = next() {
                    let found = of_binary(at, &binaries[at], classes, whole);
                    // The receiver outlives the threads.
                    sender.send((at, found)).ok();
                }
            });
        }
    });
    drop(sender);
    // Ordered by the place of the binary, whichever was listed first.
    let found: BTreeMap<usize, Result<Vec<Test>>> = receiver.into_iter().collect();
    let found: Vec<Vec<Test>> = found.into_values().collect::<Result<_>>()?;
    let chosen = |test: &Test| filter.has(&binaries[test.binary], test);
    Ok(found.into_iter().flatten().filter(chosen).collect())
}

fn of_binary(at: usize, binary: &Binary, classes: &Classes, whole: bool) -> Result<Vec<Test>> {
    let test = |name: Option<&str>, ignored| Test {
        binary: at,
        name: name.map(str::to_owned),
        ignored,
        treatment: classes.of(&binary.crate_name, &binary.target, name),
        id: id(binary, name),
    };
    if whole || classes.of(&binary.crate_name, &binary.target, None).whole {
        return Ok(vec![test(None, false)]);
    }
    let all = list(binary, &[])?;
    let ignored: BTreeSet<String> = list(binary, &["--ignored"])?.into_iter().collect();
    Ok(all
        .iter()
        .map(|name| test(Some(name), ignored.contains(name)))
        .collect())
}

fn id(binary: &Binary, name: Option<&str>) -> String {
    let Binary {
        crate_name, target, ..
    } = binary;
    match name {
        Some(name) => format!("{crate_name}/{target}/{name}"),
        None => format!("{crate_name}/{target}"),
    }
}

fn list(binary: &Binary, arguments: &[&str]) -> Result<Vec<String>> {
    let mut command = binary.command();
    command
        .args(["--list", "--format", "terse"])
        .args(arguments);
    let answer = tree::output(&mut command)?;
    listed(&answer).ok_or_else(|| Failure::Malformed {
        subject: tree::shown(&command),
        problem: "a line that names no test".to_owned(),
        remedy: format!(
            "a binary without libtest needs a line in {}",
            super::classes::FILE
        ),
    })
}

fn listed(answer: &str) -> Option<Vec<String>> {
    answer
        .lines()
        .map(|line| {
            let (name, kind) = line.rsplit_once(": ")?;
            matches!(kind, "test" | "benchmark").then(|| name.to_owned())
        })
        .collect()
}

/// Time that a test took in an earlier run. Without one, a test with a longer limit than usual comes first.
pub(crate) fn expected(test: &Test, recorded: &BTreeMap<String, f64>) -> Duration {
    let seconds = recorded.get(&test.id).copied();
    seconds.map_or_else(
        || {
            test.treatment
                .limit
                .saturating_sub(Duration::from_secs(LIMIT_S))
        },
        |seconds| Duration::try_from_secs_f64(seconds).unwrap_or(Duration::ZERO),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_listing() {
        assert_eq!(
            listed("a::b: test\nc: d: benchmark\n").unwrap(),
            ["a::b", "c: d"]
        );
        assert_eq!(listed(""), Some(Vec::new()));
        assert_eq!(listed("Gnuplot not found\n"), None);
    }

    #[test]
    fn words_choose_crate_target_and_name() {
        let binary = Binary {
            crate_name: "tidewater-tests".into(),
            target: "tables".into(),
            folder: "/".into(),
            path: "/x".into(),
        };
        let classes = Classes::new("", false).unwrap();
        let test = Test {
            binary: 0,
            name: Some("a::late".into()),
            ignored: false,
            treatment: classes.of("tidewater-tests", "tables", Some("a::late")),
            id: id(&binary, Some("a::late")),
        };
        let has = |words: &[&str]| {
            let words = words.iter().map(|word| word.to_string()).collect();
            Filter {
                words,
                ..Filter::default()
            }
            .has(&binary, &test)
        };
        for words in [&[][..], &["tests"], &["tidewater-tests", "tables", "late"]] {
            assert!(has(words), "{words:?}");
        }
        assert!(has(&["tidewater-tests/tables/a::late"]));
        assert!(!has(&["tables", "early"]) && !has(&["table"]));
    }
}
