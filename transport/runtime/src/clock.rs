//! The only place that reads the machine's clock.
//!
//! Inside a task of the simulator (`sim`) time is virtual: the world sets it whenever the task gets its
//! turn. Outside, that costs one load of a thread-local cell.

use std::cell::Cell;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tidewater_protocol::mutants::{self, Mutant};

/// Longest time until a deadline: 100 years. An `Instant` and every kernel timeout computed from it can
/// hold this time.
const FARTHEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Point in monotonic time at which a blocking wait gives up. Every wait takes one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(Instant);

impl Deadline {
    /// Creates a deadline that is `after` from now. Longer times are cut to 100 years, so `Duration::MAX`
    /// means "no limit".
    pub fn after(after: Duration) -> Self {
        if mutants::on(Mutant::DeadlineOverflows) {
            return Self(now() + after);
        }
        Self(now() + after.min(FARTHEST))
    }

    /// Creates a deadline at the instant `at`. It is not cut to 100 years from now, as
    /// `Deadline::after` is.
    pub const fn at(at: Instant) -> Self {
        Self(at)
    }

    /// Returns the time that is left until the deadline; zero once it has passed.
    pub fn left(&self) -> Duration {
        self.0.saturating_duration_since(now())
    }

    /// Returns whether the deadline has passed: true from the instant of the deadline on. Cost: one clock
    /// read.
    pub fn passed(&self) -> bool {
        now() >= self.0
    }

    /// Returns the deadline as an `Instant` of the clock that [`now`] reads, which is virtual inside the simulator.
    pub const fn instant(self) -> Instant {
        self.0
    }

    /// Returns the earlier of two deadlines.
    #[must_use]
    pub fn min(self, other: Self) -> Self {
        Self(self.0.min(other.0))
    }
}

/// Virtual time by which each call of [`now`] advances a simulated thread's clock. A loop that waits for
/// the clock therefore ends.
const VIRTUAL_LOOK: Duration = Duration::from_nanos(20);

thread_local! {
    static VIRTUAL: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Returns the monotonic time: the machine's clock, or this thread's virtual clock inside a task of the
/// simulator. A read of the virtual clock advances it by 20 ns.
#[inline]
pub fn now() -> Instant {
    match VIRTUAL.get() {
        None => Instant::now(),
        Some(at) => look(at),
    }
}

/// Returns the virtual time `at` and advances this thread's virtual clock by [`VIRTUAL_LOOK`].
#[cold]
fn look(at: Instant) -> Instant {
    VIRTUAL.set(Some(at + VIRTUAL_LOOK));
    at
}

/// Returns milliseconds since 1970-01-01 UTC by the host's wall clock, which an administrator may set; 0
/// if that clock is before 1970. Use it for times that are stored in files, and [`now`] for durations
/// within a run.
pub fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}

/// Sets the calling thread's virtual clock to `at`, for tasks of the simulator. `None` returns the thread
/// to the machine's clock.
pub fn set_virtual(at: Option<Instant>) {
    VIRTUAL.set(at);
}

/// Returns the calling thread's virtual time, without advancing it. `None` on a thread that uses the
/// machine's clock, outside the simulator.
pub fn virtual_now() -> Option<Instant> {
    VIRTUAL.get()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// A deadline after `Duration::MAX` does not panic, although that duration added to an `Instant`
    /// does; it lies 100 years ahead.
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
