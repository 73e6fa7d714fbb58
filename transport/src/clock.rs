//! The only place that reads the machine's clock.

use std::time::{Duration, Instant};

/// A point in time after which a wait gives up. Every wait takes one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(Instant);

impl Deadline {
    /// `after` from now.
    pub fn after(after: Duration) -> Self {
        Self(now() + after)
    }

    /// At `at`.
    pub const fn at(at: Instant) -> Self {
        Self(at)
    }

    /// Time left; zero when it has passed.
    pub fn left(&self) -> Duration {
        self.0.saturating_duration_since(now())
    }

    /// Whether it has passed.
    pub fn passed(&self) -> bool {
        now() >= self.0
    }

    /// The earlier of two.
    #[must_use]
    pub fn min(self, other: Self) -> Self {
        Self(self.0.min(other.0))
    }
}

/// Monotonic time.
#[inline]
pub fn now() -> Instant {
    Instant::now()
}
