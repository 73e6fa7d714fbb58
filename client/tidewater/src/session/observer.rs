//! Observers: clients that read and are no members of clocks.

use super::Client;
use crate::error::ClientError;

impl Client {
    /// Whether this client is an observer ([`Job::observer`](crate::Job::observer)). Its rank is a number
    /// above those of all workers.
    pub const fn is_observer(&self) -> bool {
        self.rank.observer().is_some()
    }

    /// Fails for an observer: `op` changes the model, a clock or the job.
    pub(crate) const fn check_worker(&self, op: &'static str) -> Result<(), ClientError> {
        match self.is_observer() {
            true => Err(ClientError::Observer { op }),
            false => Ok(()),
        }
    }

    /// Ends the sessions of an observer, and its connection's meaning for the coordinator.
    pub(super) fn finish_observer(&mut self) -> Result<(), ClientError> {
        if self.guard.is_finished() {
            return Ok(());
        }
        let deadline = self.deadline();
        self.lanes.end_sessions(deadline)?;
        self.lanes.coordinator.finished(deadline)?;
        self.guard.finish();
        Ok(())
    }
}
