//! Ends a run before its batch system does: all workers at one step, with the model saved.
//!
//! Batch systems send SIGTERM or SIGUSR1 some time before they kill, and `tidewater stop` has the effect of
//! SIGTERM at all workers. A program that uses this time calls:
//!
//! ```no_run
//! # fn steps(client: &mut tidewater::Client) -> Result<u8, tidewater::ClientError> {
//! use tidewater::walltime::Walltime;
//!
//! let mut walltime = Walltime::watch(client, 1)?; // from here on the signals end nothing
//! for step in 0..1_000_000 {
//!     if walltime.over(client)? {
//!         break; // all workers, at this step
//!     }
//!     // pull, compute, push
//!     client.tick()?;
//! }
//! let signal = walltime.end(client)?; // the same at all workers
//! // barrier, save on one worker, barrier, finish
//! # Ok(
//! signal.map_or(0, |signal| 128 + signal as u8) // the exit code
//! # )
//! # }
//! ```

mod signals;
mod stop;

use tidewater_protocol::limits::CLOCK_DEADLINE;
use tidewater_protocol::table::LIBRARY_TABLES;

use crate::error::ClientError;
use crate::session::Client;

pub use signals::Signals;
pub use stop::StopSign;

/// Name of the table and of the barrier by which workers agree to stop.
const NAME: &str = LIBRARY_TABLES[3];

/// Watcher for SIGTERM, SIGUSR1 and `tidewater stop`, which ends all workers of a job at one step. All workers must
/// use it.
///
/// # Example
/// ```
/// # use tidewater::walltime::Walltime;
/// # use tidewater::{ClientError, JoinOptions, SyncMode};
/// # fn main() -> Result<(), ClientError> {
/// # let job = JoinOptions::embedded(1, 1).join()?.into_job().expect("a worker");
/// # let mut client = job.client(SyncMode::Asp)?;
/// let mut walltime = Walltime::watch(&mut client, 1)?;
/// let mut steps = 0;
/// while steps < 10 && !walltime.over(&mut client)? {
///     steps += 1; // pull, compute, push
///     client.tick()?;
/// }
/// assert_eq!(steps, 10); // no signal came
/// assert_eq!(walltime.end(&mut client)?, None);
/// # client.finish()
/// # }
/// ```
#[derive(Debug)]
pub struct Walltime {
    signals: Signals,
    /// The agreement to stop, until [`Self::end`].
    sign: Option<StopSign>,
    ended: Option<i32>,
}

impl Walltime {
    /// Starts to watch for signals. Until the value is dropped, SIGTERM and SIGUSR1 are recorded and do not end the
    /// process. All workers call it before their first step; it blocks until all have.
    ///
    /// `every` is the number of steps (ticks of domain 0) between two checks, the same on all workers; 0 counts as
    /// one. A run ends at most three checks after the signal, and under SSP(s) `s` steps later.
    ///
    /// # Errors
    /// [`ClientError::Environment`] when signals cannot be caught; the table's refusal; a deadline.
    pub fn watch(client: &mut Client, every: u32) -> Result<Self, ClientError> {
        let signals = Signals::catch()?;
        let sign = StopSign::new(client, NAME, every.max(1).into())?;
        // The table of a model saved while a run was ending still contains its signal.
        if client.rank().0 == 0 {
            sign.clear(client)?;
        }
        client.barrier(NAME, CLOCK_DEADLINE)?;
        Ok(Self {
            signals,
            sign: Some(sign),
            ended: None,
        })
    }

    /// Returns whether the run ends here; called at the start of each step, on all workers. With BSP
    /// and SSP the answer is the same for all workers at the same step. With ASP each worker sees it at
    /// its next check. Workers that meet between steps then have to announce there which of them stop. True after
    /// [`Walltime::end`].
    ///
    /// # Cost
    /// A pull of two rows, and up to 1 ms for a message of the coordinator, at each `every`-th step, nothing at
    /// the others.
    ///
    /// # Errors
    /// As of a pull and a push.
    pub fn over(&mut self, client: &mut Client) -> Result<bool, ClientError> {
        let Some(sign) = &mut self.sign else {
            return Ok(true);
        };
        let asked = sign.is_check(client) && client.stop_asked()?.is_some();
        let asked = asked.then_some(signal_hook::consts::SIGTERM);
        sign.look(client, || self.signals.came().or(asked))
    }

    /// Ends the agreement after the last step: returns the number of the signal that ended the run, or `None`. All
    /// workers call it; it blocks until all have. The result is the same for all, also for a signal after the last
    /// check. A process that a signal ended exits with 128 plus its number. Signals are still recorded, so that a
    /// second one does not spoil the save that follows.
    ///
    /// # Errors
    /// As of a pull, a push and a barrier.
    pub fn end(&mut self, client: &mut Client) -> Result<Option<i32>, ClientError> {
        if let Some(mut sign) = self.sign.take() {
            self.ended = sign.settle(client, || self.signals.came())?;
            // A model that is saved from now on does not contain this table.
            client.barrier(NAME, CLOCK_DEADLINE)?;
            if client.leads()? {
                sign.release(client)?;
            }
            client.barrier(NAME, CLOCK_DEADLINE)?;
        }
        Ok(self.ended)
    }

    /// Whether [`Walltime::end`] was called: the agreement is over.
    pub const fn is_ended(&self) -> bool {
        self.sign.is_none()
    }
}
