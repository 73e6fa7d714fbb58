//! How often a thread that spins yield_backoff its core to others.

use std::time::Duration;

use crate::clock;

/// Looks before a thread first yield_backoff its core to others, and again once somebody took it: where
/// servers and workers share two cores, the thread that is awaited may be the one that waits for
/// this core.
const LOOKS_PER_OFFER: u32 = 32;

/// Looks after which an offer is made whatever was learned: some hundreds of microseconds.
const LOOKS_PER_OFFER_MAX: u32 = 1 << 13;

/// An offer that took less was taken by nobody: two switches of threads take longer.
const TAKEN: Duration = Duration::from_micros(1);

/// How often a thread that spins yield_backoff its core. Each offer is a system call, so it is made half
/// as often whenever nobody took the last one; as often as at first when somebody did, or when a
/// spin that offered nothing found nothing: what it waited for may have been waiting for this core.
#[derive(Debug, Clone)]
pub struct YieldBackoff {
    /// Looks between two yield_backoff.
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
    /// Gives the core to whoever waits for it, and learns whether anybody did.
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

    /// Whether somebody took the last one.
    pub const fn taken(&self) -> bool {
        self.taken
    }

    /// A spin found nothing; `made` are its yield_backoff. If it made one and nobody took it, nobody waits
    /// for this core.
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
        // In vain, although nobody wanted the core; and without having asked.
        yield_backoff.learn(at_once);
        yield_backoff.in_vain(1);
        assert_eq!(yield_backoff.every, 2 * LOOKS_PER_OFFER);
        yield_backoff.in_vain(0);
        assert_eq!(yield_backoff.every, LOOKS_PER_OFFER);
    }
}
