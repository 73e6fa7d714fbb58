//! The measuring core: everything that is timed, ours or not, goes through it.
//!
//! A [`Plan`] says how long and how paced; [`run()`] drives a [`Work`] by it, looks at the clock
//! around each sample, has the values compared outside of the timed part, and reads what both ends
//! used; a [`Measured`] holds the histogram and the sums. Raw ceilings are works as well, so that a
//! ratio compares two numbers of one kind.

mod plan;
mod record;
mod run;
mod usage;

pub use plan::{Pace, Plan};
pub use record::{Figures, Samples};
pub use run::{Measured, run, timer_cost};
pub use usage::{Meter, NoPeer, Usage, of_this_thread};

use crate::error::BenchError;

/// What is measured. One sample is a fixed number of calls, timed together.
pub trait Work {
    /// Calls of a sample; at least 1.
    fn calls(&self) -> u64;

    /// Payload bytes of a call.
    fn bytes(&self) -> u64;

    /// Called before the first sample, warm-up included: wakes whoever takes part.
    fn begin(&mut self) {}

    /// Called after the last sample: lets them sleep, so that they do not disturb what is measured
    /// next.
    fn end(&mut self) {}

    /// Makes ready for a sample: spoils what the last one left behind. Not timed.
    fn prepare(&mut self) {}

    /// Makes the calls of one sample. Timed.
    ///
    /// # Errors
    /// What the first call that fails fails with; the run ends.
    fn sample(&mut self) -> Result<(), BenchError>;

    /// Values of the last sample that are not what they must be. Not timed; may be called again,
    /// and must then say the same.
    fn check(&mut self) -> u64 {
        0
    }

    /// A check that makes calls of its own, from time to time and at the end; the number of wrong
    /// values. Neither timed nor counted.
    ///
    /// # Errors
    /// What its calls fail with.
    fn audit(&mut self) -> Result<u64, BenchError> {
        Ok(0)
    }

    /// Reads repeated and pulls finished by a server, since the work was made.
    fn detours(&self) -> (u64, u64) {
        (0, 0)
    }
}
