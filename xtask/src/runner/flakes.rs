//! Tests that may be repeated once: those of ci/flakes.tsv.

use std::collections::{BTreeMap, BTreeSet};

use super::listing::Test;
use super::run::Outcome;

/// File with the tests that are known to fail now and then.
pub(crate) const FILE: &str = "ci/flakes.tsv";

/// Ids of the tests of the file.
#[derive(Debug)]
pub(crate) struct Flakes(BTreeSet<String>);

impl Flakes {
    /// Reads lines with crate, target and name, a tab, commit, a tab, cause.
    pub(crate) fn new(table: &str) -> Self {
        let ids = table.lines().filter(|line| !line.starts_with('#'));
        let ids = ids.filter_map(|line| line.split('\t').next());
        Self(ids.map(|id| id.replace(' ', "/")).collect())
    }

    /// Failed tests to repeat: those of binaries of which every failed test is in the file.
    pub(crate) fn to_repeat(
        &self,
        tests: &[Test],
        outcomes: &BTreeMap<usize, Outcome>,
    ) -> Vec<usize> {
        let failed = || {
            outcomes
                .iter()
                .filter(|(_, outcome)| outcome.wrong.is_some())
        };
        let unlisted: BTreeSet<usize> = failed()
            .filter(|(at, _)| !self.0.contains(&tests[**at].id))
            .map(|(at, _)| tests[*at].binary)
            .collect();
        failed()
            .map(|(at, _)| *at)
            .filter(|at| !unlisted.contains(&tests[*at].binary))
            .collect()
    }
}
