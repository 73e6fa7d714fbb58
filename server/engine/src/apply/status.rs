//! What an applier reports to operators: counts that it keeps anyway. It costs the data path nothing.

use tidewater_protocol::ids::{DomainId, SessionId, WorkerThread};

use super::engine::Engine;
use crate::namespace::NamespaceId;

/// The state of one applier between two frames.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ApplierReport {
    /// Frames that it has applied or refused.
    pub frames: u64,
    /// Bytes of pushes that it holds back for the turn of their rank.
    pub held_bytes: usize,
    /// Number of saves under way.
    pub saves: usize,
    /// Clocks of all live threads of workers.
    pub clocks: Vec<(NamespaceId, DomainId, WorkerThread, u64)>,
    /// Frames that it has refused, of each session.
    pub refused: Vec<(SessionId, u64)>,
    /// Frames that were not there when their tail was, of all sessions so far.
    pub late_frames: u64,
}

impl Engine {
    /// Reports all but the sessions. Cost: one step over the clocks of all threads.
    pub(super) fn report(&mut self) -> ApplierReport {
        let mut clocks = Vec::new();
        for (&namespace, job) in &mut self.clocks {
            for domain in job.domains().collect::<Vec<_>>() {
                let live = job.live(domain);
                clocks.extend(live.map(|(thread, clock)| (namespace, domain, thread, clock)));
            }
        }
        ApplierReport {
            frames: self.lsn(),
            held_bytes: self.held_bytes(),
            saves: self.saves.len(),
            clocks,
            refused: Vec::new(),
            late_frames: 0,
        }
    }
}
