//! How a client belongs to the clocks of its job: as an observer, from a tick on, by domain.

use tidewater_protocol::ids::DomainId;
use tidewater_protocol::limits::DOMAINS_MAX;
use tidewater_protocol::wire::control::DomainClock;

use super::Client;
use crate::clock::SyncMode;
use crate::error::ClientError;

impl Client {
    /// Whether this client is an observer ([`Job::observer`](crate::Job::observer)), which only reads. Its rank is a
    /// number above those of all workers.
    pub const fn is_observer(&self) -> bool {
        self.rank.observer().is_some()
    }

    /// Fails with `ClientError::Observer` for an observer, since `op` changes the model, a clock or the job.
    pub(crate) const fn check_worker(&self, op: &'static str) -> Result<(), ClientError> {
        match self.is_observer() {
            true => Err(ClientError::Observer { op }),
            false => Ok(()),
        }
    }

    /// Finishes an observer: ends its sessions with the servers, and reports to the coordinator that it is done. A
    /// repeated call does nothing.
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

    /// Sets the synchronisation mode of a clock domain, in place of the mode that the client was made with: one
    /// table is trained under BSP and another one under ASP. It holds for pulls, ticks and new siblings of this
    /// client from here on. Let all workers set the same, before their first tick of the domain: a bound is kept by
    /// those that wait for it.
    ///
    /// # Errors
    /// [`ClientError::Argument`] for a domain that does not exist; [`ClientError::Observer`].
    ///
    /// # Examples
    /// ```
    /// # use tidewater::{ClientError, JoinOptions, SyncMode, TableBuilder};
    /// use tidewater::DomainId;
    ///
    /// # fn main() -> Result<(), ClientError> {
    /// # let job = JoinOptions::embedded(1, 1).join()?.into_job().expect("a worker");
    /// let mut client = job.client(SyncMode::Bsp)?;
    /// client.set_domain_sync(DomainId(1), SyncMode::Asp)?;
    /// let counts = TableBuilder::rows::<i64>("counts", 8, 1).domain(DomainId(1));
    /// # client.create_table::<i64>(counts.spec())?;
    /// # client.tick_domain(DomainId(1))?;
    /// # client.finish()
    /// # }
    /// ```
    pub fn set_domain_sync(&mut self, domain: DomainId, sync: SyncMode) -> Result<(), ClientError> {
        self.check_worker("set_domain_sync")?;
        check_domain("set_domain_sync", domain)?;
        self.clock.set_sync(domain, sync);
        Ok(())
    }

    /// Sets the clocks with which a worker that joins a running job begins, as the coordinator has announced them to
    /// all servers; other domains begin at 0. [`Job::client`](crate::Job::client) has done it; a client from
    /// [`Client::from_parts`] needs it before its first call.
    pub fn begin_at(&mut self, clocks: &[DomainClock]) {
        self.clock.begin_at(clocks);
    }

    /// Sets the clocks at which this worker ends by the schedule of its job: a tick beyond them fails. Domains
    /// that `clocks` does not list end at 0.
    pub(crate) fn end_at(&mut self, clocks: &[DomainClock]) {
        self.clock.end_at(clocks);
    }
}

/// Checks that a clock domain exists (0 to `DOMAINS_MAX - 1`); otherwise fails with `ClientError::Argument`.
pub(super) fn check_domain(op: &'static str, domain: DomainId) -> Result<(), ClientError> {
    match usize::from(domain.0) < DOMAINS_MAX {
        true => Ok(()),
        false => Err(ClientError::Argument {
            op,
            table: "-".into(),
            what: format!("domain {domain}; there are 0 to {}", DOMAINS_MAX - 1),
        }),
    }
}
