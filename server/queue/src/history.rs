//! Times of finished tasks, for the limits of those that are given.

use std::collections::VecDeque;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Finished tasks of which the times are kept.
const KEPT: usize = 63;
/// Finished tasks from which on their median counts.
const ENOUGH: usize = 10;

/// The times of the last finished tasks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct History {
    last: VecDeque<Duration>,
    /// Median of `last`, once there are enough.
    median: Option<Duration>,
}

impl History {
    /// Adds the time of a finished task. Cost: a selection among 63.
    pub(crate) fn add(&mut self, time: Duration) {
        if self.last.len() == KEPT {
            self.last.pop_front();
        }
        self.last.push_back(time);
        if self.last.len() >= ENOUGH {
            let mut times: Vec<Duration> = self.last.iter().copied().collect();
            let middle = times.len() / 2;
            self.median = Some(*times.select_nth_unstable(middle).1);
        }
    }

    /// Whether the median counts.
    pub(crate) const fn is_known(&self) -> bool {
        self.median.is_some()
    }

    /// A multiple of the median, and at least `least`; `least` before the median counts.
    pub(crate) fn limit(&self, least: Duration, factor: u32) -> Duration {
        let median = self.median.unwrap_or_default();
        least.max(median.saturating_mul(factor))
    }
}
