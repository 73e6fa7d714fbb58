//! What an applier reports to operators: counts that it keeps anyway. It costs the data path nothing.

use tidewater_protocol::ids::{DomainId, SessionId, WorkerThread};

use super::engine::Engine;
use crate::namespace::NamespaceId;

/// State of one applier for operators, taken between two frames.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ApplierReport {
    /// Steps of the applier's total order so far: frames that it has applied or refused, and steps of ticks
    /// and loads.
    pub frames: u64,
    /// Bytes of pushes and functions that it holds until their tick or task.
    pub held_bytes: usize,
    /// Number of saves under way.
    pub saves: usize,
    /// Clock of each live worker thread in each domain of each job.
    pub clocks: Vec<(NamespaceId, DomainId, WorkerThread, u64)>,
    /// Number of frames that it has refused, for each session.
    pub refused: Vec<(SessionId, u64)>,
    /// Number of frames that arrived after their tail record, of all sessions so far.
    pub late_frames: u64,
}

impl Engine {
    /// Builds the report without the numbers of sessions. Cost: one pass over the clocks of all threads.
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
