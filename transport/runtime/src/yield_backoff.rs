//! Backoff of yields: the rate at which a spinning thread yields its core.

use std::time::Duration;

use crate::clock;

/// Polls before a thread first yields its core, and again after a yield that another thread used. Where
/// servers and workers share two cores, the awaited thread may be the one that waits for this core.
const LOOKS_PER_OFFER: u32 = 32;

/// Polls after which a yield is made in any case: some hundreds of microseconds.
const LOOKS_PER_OFFER_MAX: u32 = 1 << 13;

/// A shorter yield was used by no thread: two context switches take longer.
const TAKEN: Duration = Duration::from_micros(1);

/// Rate at which a spinning thread yields its core. Each yield is a system call. The rate halves whenever
/// no thread used the last yield. It returns to the initial rate when a thread did, or when a spin without
/// a yield found nothing. The awaited thread may have waited for this core.
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
    /// Yields the core, and records whether another thread used it.
    pub fn make(&mut self) {
        let before = clock::now();
        std::thread::yield_now();
        self.learn(clock::now() - before);
    }

    fn learn(&mut self, took: Duration) {
        self.taken = took >= TAKEN;
        self.every = if self.taken {
            LOOKS_PER_OFFER
        } else {
            (self.every * 2).min(LOOKS_PER_OFFER_MAX)
        };
    }

    /// Whether another thread used the last yield.
    pub const fn taken(&self) -> bool {
        self.taken
    }

    /// Records a spin that found nothing with `made` yields. If it made one and no thread used it, no
    /// thread waits for this core.
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
