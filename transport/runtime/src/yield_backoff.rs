//! Backoff of yields: the rate at which a spinning thread yields its core.

use std::time::Duration;

use crate::clock;

/// Initial number of polls between two yields of the core; also the number after a yield that another
/// thread used. Where servers and workers share two cores, the awaited thread may be the one that waits
/// for this core.
const LOOKS_PER_OFFER: u32 = 32;

/// Greatest number of polls between two yields of the core: some hundreds of microseconds.
const LOOKS_PER_OFFER_MAX: u32 = 1 << 13;

/// Least duration of a yield in which another thread ran. Two context switches take longer than 1 us, so
/// a shorter yield was not used.
const TAKEN: Duration = Duration::from_micros(1);

/// Exponential backoff of the yields (`sched_yield`) of a spinning thread. The polls between two yields
/// double whenever no thread used the last yield. They return to the initial number when a thread did,
/// or when a spin without a yield found nothing: the awaited thread may have waited for this core.
#[derive(Debug, Clone)]
pub struct YieldBackoff {
    /// Polls between two yields.
    pub every: u32,
    taken: bool,
}

impl Default for YieldBackoff {
    fn default() -> Self {
        Self {
            every: LOOKS_PER_OFFER,
            taken: false,
        }
    }
}

impl YieldBackoff {
    /// Yields the core once (a system call). A spinning thread calls it after every [`Self::every`]
    /// polls, a number that this resets: the initial one if another thread used the yield, else twice
    /// the last.
    pub fn make(&mut self) {
        let before = clock::now();
        std::thread::yield_now();
        self.learn(clock::now() - before);
    }

    /// Sets the polls between two yields by the duration of the last one: the initial number if another
    /// thread used it, else twice as many.
    fn learn(&mut self, took: Duration) {
        self.taken = took >= TAKEN;
        self.every = if self.taken {
            LOOKS_PER_OFFER
        } else {
            (self.every * 2).min(LOOKS_PER_OFFER_MAX)
        };
    }

    /// Returns whether another thread ran during the last yield, judged by its duration; false before
    /// the first one.
    pub const fn taken(&self) -> bool {
        self.taken
    }

    /// Records the end of a spin that found nothing and made `made` yields. With none, the polls between
    /// two yields return to their initial number. With one or more they stay as those yields set them.
    pub const fn in_vain(&mut self, made: u32) {
        if made == 0 {
            self.every = LOOKS_PER_OFFER;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_core_that_nobody_takes_is_offered_less_often() {
        let (at_once, taken) = (Duration::from_nanos(300), Duration::from_micros(3));
        let mut yield_backoff = YieldBackoff::default();
        let mut looks = 0;
        for _ in 0..5 {
            looks += yield_backoff.every;
            yield_backoff.learn(at_once);
        }
        // More than fit in a spin: the next waits make no system call.
        assert_eq!((looks, yield_backoff.every), (31 * LOOKS_PER_OFFER, 1024));
        for _ in 0..40 {
            yield_backoff.learn(at_once);
        }
        assert_eq!(
            (yield_backoff.every, yield_backoff.taken()),
            (LOOKS_PER_OFFER_MAX, false)
        );
        yield_backoff.learn(taken);
        assert_eq!(
            (yield_backoff.every, yield_backoff.taken()),
            (LOOKS_PER_OFFER, true)
        );
        // A spin in vain, although no thread wanted the core; and one without a yield.
        yield_backoff.learn(at_once);
        yield_backoff.in_vain(1);
        assert_eq!(yield_backoff.every, 2 * LOOKS_PER_OFFER);
        yield_backoff.in_vain(0);
        assert_eq!(yield_backoff.every, LOOKS_PER_OFFER);
    }
}
