//! Rate limit for warnings of events that may happen many times a second.

use std::time::Duration;

use tidewater_protocol::mutants::{self, Mutant};
use tidewater_runtime::clock::Deadline;

/// Shortest time between two equal warnings.
pub(crate) const WARN_EVERY: Duration = Duration::from_secs(1);

/// Rate limiter for equal warnings: passes one in each interval and counts the others.
#[derive(Debug)]
pub(crate) struct WarnLimit {
    every: Duration,
    quiet: Option<Deadline>,
    count: u64,
}

impl WarnLimit {
    pub(crate) const fn new(every: Duration) -> Self {
        Self {
            every,
            quiet: None,
            count: 0,
        }
    }

    /// Counts an event. Returns `None` if it must not be logged, else the number of events since the last
    /// logged one, this one included.
    pub(crate) fn event(&mut self) -> Option<u64> {
        self.count += 1;
        let is_quiet = self.quiet.is_some_and(|until| !until.passed());
        if is_quiet && !mutants::on(Mutant::AcceptWarnedEachTime) {
            return None;
        }
        self.quiet = Some(Deadline::after(self.every));
        Some(std::mem::take(&mut self.count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_warnings_are_counted() {
        let mut limit = WarnLimit::new(Duration::from_secs(3_600));
        assert_eq!(limit.event(), Some(1));
        for _ in 0..100 {
            assert_eq!(limit.event(), None);
        }
        // The quiet time is over.
        limit.quiet = Some(Deadline::after(Duration::ZERO));
        assert_eq!(limit.event(), Some(101));
        assert_eq!(limit.event(), None);
    }
}
