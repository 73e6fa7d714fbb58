//! How long a thread looks before it sleeps: longer after a sleep that was hardly worth it.

use std::time::Duration;

/// A patient wait looks for this long; one that was over sooner, its sleep included, makes the next
/// one patient. To be woken takes 30 to 100 us on a virtual machine, several times the spin of a thread
/// that has to leave its core to others. So where two threads answer each other, and one of them was
/// kept from its core for as long as the other's spin, each finds the other asleep from then on: each
/// wait is two wake-ups, the other's and its own. Once what comes in shorter intervals stops coming,
/// this much of a core is lost.
const PATIENT: Duration = Duration::from_micros(200);

/// How long the next wait looks.
#[derive(Debug)]
pub(super) struct AdaptiveSpin {
    least: Duration,
    learns: bool,
    now: Duration,
}

impl AdaptiveSpin {
    /// Always as long.
    pub(super) const fn steady(spin: Duration) -> Self {
        Self {
            least: spin,
            learns: false,
            now: spin,
        }
    }

    /// At least as long as so far, and [`PATIENT`] where that pays. A thread that does not look at
    /// all has no core to do it on, and is not made patient.
    pub(super) const fn learning(self) -> Self {
        Self {
            learns: !self.least.is_zero(),
            ..self
        }
    }

    pub(super) const fn spin(&self) -> Duration {
        self.now
    }

    /// A wait looked in vain, and then slept for `slept`. One that was patient in vain is not so
    /// again at once, nor one whose looks are `dear`: they keep a core from others who take it when
    /// it is offered, or are system calls.
    pub(super) fn slept(&mut self, slept: Duration, dear: bool) {
        let soon = self.now < PATIENT && self.now + slept <= PATIENT;
        self.now = if self.learns && soon && !dear {
            PATIENT
        } else {
            self.least
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPIN: Duration = Duration::from_micros(5);

    #[test]
    fn a_short_sleep_makes_patient_and_a_long_one_ends_it() {
        let mut adaptive_spin = AdaptiveSpin::steady(SPIN).learning();
        assert_eq!(adaptive_spin.spin(), SPIN);
        adaptive_spin.slept(PATIENT, false);
        assert_eq!(adaptive_spin.spin(), SPIN, "too late");
        adaptive_spin.slept(PATIENT - SPIN, false);
        assert_eq!(adaptive_spin.spin(), PATIENT);
        // It looked for as long as it may, and slept all the same.
        adaptive_spin.slept(Duration::from_micros(1), false);
        assert_eq!(adaptive_spin.spin(), SPIN);
    }

    #[test]
    fn who_shares_its_core_or_has_none_is_not_patient() {
        let soon = Duration::from_micros(50);
        let mut sharing = AdaptiveSpin::steady(SPIN).learning();
        sharing.slept(soon, true);
        assert_eq!(sharing.spin(), SPIN);
        sharing.slept(soon, false);
        sharing.slept(soon, true);
        assert_eq!(sharing.spin(), SPIN);
        for mut steady in [
            AdaptiveSpin::steady(Duration::ZERO).learning(),
            AdaptiveSpin::steady(SPIN),
        ] {
            let before = steady.spin();
            steady.slept(soon, false);
            assert_eq!(steady.spin(), before);
        }
    }
}
