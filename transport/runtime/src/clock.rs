//! The only place that reads the machine's clock.
//!
//! Inside a task of the simulator (`sim`) time is virtual: the world sets it whenever the task gets its
//! turn. Outside, that costs one load of a thread-local cell.

use std::cell::Cell;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tidewater_protocol::mutants::{self, Mutant};

/// Longest time to a deadline, 100 years: `Instant` holds it, and so does every timeout of the kernel that
/// is computed from it.
const FARTHEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// A point in time after which a wait gives up. Every wait takes one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(Instant);

impl Deadline {
    /// A deadline `after` from now; at most 100 years, so that `Duration::MAX` means "no limit".
    pub fn after(after: Duration) -> Self {
        if mutants::on(Mutant::DeadlineOverflows) {
            return Self(now() + after);
        }
        Self(now() + after.min(FARTHEST))
    }

    /// A deadline at the instant `at`.
    pub const fn at(at: Instant) -> Self {
        Self(at)
    }

    /// Time left; zero after the deadline.
    pub fn left(&self) -> Duration {
        self.0.saturating_duration_since(now())
    }

    /// Whether the deadline has passed.
    pub fn passed(&self) -> bool {
        now() >= self.0
    }

    /// The point in time, for the simulator.
    pub const fn instant(self) -> Instant {
        self.0
    }

    /// The earlier of two deadlines.
    #[must_use]
    pub fn min(self, other: Self) -> Self {
        Self(self.0.min(other.0))
    }
}

/// Virtual cost of one clock read, so that a loop that waits for the clock ends.
const VIRTUAL_LOOK: Duration = Duration::from_nanos(20);

thread_local! {
    static VIRTUAL: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Monotonic time; virtual inside a task of the simulator.
#[inline]
pub fn now() -> Instant {
    match VIRTUAL.get() {
        None => Instant::now(),
        Some(at) => look(at),
    }
}

#[cold]
fn look(at: Instant) -> Instant {
    VIRTUAL.set(Some(at + VIRTUAL_LOOK));
    at
}

/// Milliseconds since 1970 by the host's clock, which may be set; 0 on a clock before that. For what is kept
/// in files: time within a run is [`now`].
pub fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}

/// Sets this thread's virtual time; `None` returns the thread to the machine's clock.
pub fn set_virtual(at: Option<Instant>) {
    VIRTUAL.set(at);
}

/// This thread's virtual time, if it is a task of the simulator. Does not advance it.
pub fn virtual_now() -> Option<Instant> {
    VIRTUAL.get()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// `Duration::MAX` added to an `Instant` panics.
    #[test]
    fn longest_duration_gives_a_far_deadline() {
        let made = std::panic::catch_unwind(|| Deadline::after(Duration::MAX));
        let far = made.expect("a deadline after Duration::MAX panics");
        assert!(!far.passed());
        assert!(far.left() > FARTHEST - Duration::from_secs(3600), "{far:?}");
        assert!(far > Deadline::after(Duration::from_secs(3600)));
        // Values that waits compute from it stay in range.
        assert!(far.left().checked_mul(1024).is_some());
        assert!(far.min(Deadline::after(Duration::ZERO)).passed());
    }
}
