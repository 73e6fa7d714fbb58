//! Adaptive spinning before a thread parks: longer after a sleep that was hardly longer than the spin.

use std::time::Duration;

/// Extended spin of a wait: 200 us. If spin and sleep of a wait together were not longer, the next wait
/// spins this long.
///
/// A parked thread takes 30 to 100 us to wake on a virtual machine. That is several times the spin of a
/// thread that has to yield its core. If two threads exchange messages and one is descheduled for as long
/// as the other's spin, each finds the other parked from then on. Each wait then costs two wake-ups, the
/// other's and its own. When messages stop coming in shorter intervals, this much time of a core is lost.
const PATIENT: Duration = Duration::from_micros(200);

/// Spin time of a thread's next wait, adapted to how long the last wait slept after its spin.
#[derive(Debug)]
pub(super) struct AdaptiveSpin {
    least: Duration,
    learns: bool,
    now: Duration,
}

impl AdaptiveSpin {
    /// Creates a spin time that stays constant at `spin`; see `Self::learning`.
    pub(super) const fn steady(spin: Duration) -> Self {
        Self {
            least: spin,
            learns: false,
            now: spin,
        }
    }

    /// Enables adaptation: the spin time never falls below its initial value, and rises to [`PATIENT`]
    /// (200 us) after short sleeps. Stays off for a spin of zero, as of a thread that has no core to spin
    /// on.
    pub(super) const fn learning(self) -> Self {
        Self {
            learns: !self.least.is_zero(),
            ..self
        }
    }

    pub(super) const fn spin(&self) -> Duration {
        self.now
    }

    /// Sets the next spin time after a wait that spun in vain and then slept for `slept`. If adaptation
    /// is on, it becomes [`PATIENT`] if spin and sleep together were not longer than that, but not twice
    /// in a row. Otherwise, and if `dear`, it is the initial one. `dear`: polls are system calls, or
    /// another thread used the yielded core.
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
        // The wait spun for the whole limit and slept all the same.
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
