//! The measuring core: all timed works, ours and baselines', run through it.
//!
//! A [`Plan`] sets duration and pace. [`run()`] drives a [`Work`] by it. It reads the clock around
//! each sample, compares the values outside of the timed part, and reads the usage of both ends.
//! A [`Measured`] holds the histogram and the sums. Rooflines are works as well, so a ratio compares
//! two figures of one kind.

mod plan;
mod record;
mod run;
mod usage;

pub use plan::{Pace, Plan};
pub use record::{Figures, Samples};
pub use run::{Measured, run, timer_cost};
pub use usage::{Meter, NoPeer, Usage, of_this_thread, of_thread};

use crate::error::BenchError;

/// Reads that did not succeed at once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Detours {
    /// Number of repeated reads.
    pub retries: u64,
    /// Number of pulls that a server finished.
    pub fallbacks: u64,
}

impl Detours {
    const fn since(self, earlier: Self) -> Self {
        Self {
            retries: self.retries - earlier.retries,
            fallbacks: self.fallbacks - earlier.fallbacks,
        }
    }
}

/// A measured work. One sample is [`Self::calls`] calls, timed together.
pub trait Work {
    /// Number of calls in the sample that is prepared or was just made; at least 1.
    fn calls(&self) -> u64 {
        1
    }

    /// Payload bytes of a call.
    fn bytes(&self) -> u64 {
        0
    }

    /// Called before the first sample, warm-up included: wakes the participants.
    fn begin(&mut self) {}

    /// Called after the last sample, or after an error: lets the participants sleep, so that they do not
    /// disturb the next measurement.
    fn end(&mut self) {}

    /// Prepares a sample: spoils the output of the previous one. Not timed. An open loop that is late skips this
    /// call and the check before it.
    fn prepare(&mut self) {}

    /// Makes the calls of one sample. Timed.
    ///
    /// # Errors
    /// The error of the first call that fails; the run ends.
    fn sample(&mut self) -> Result<(), BenchError>;

    /// Number of wrong values in the last sample. Not timed. The loop also repeats this call to measure its
    /// cost, and ignores these results. In an open loop a call after `prepare`, without a sample between, must
    /// return 0.
    fn check(&mut self) -> u64 {
        0
    }

    /// Audits by calls of its own, after the warm-up, periodically and at the end; returns the number of wrong
    /// values. The calls are neither timed nor counted.
    ///
    /// # Errors
    /// Errors of its calls.
    fn audit(&mut self) -> Result<u64, BenchError> {
        Ok(0)
    }

    /// Reads that did not succeed at once, counted from any fixed time on: only differences are used. Zeros by
    /// default, for a work without such reads.
    fn detours(&self) -> Detours {
        Detours::default()
    }
}
