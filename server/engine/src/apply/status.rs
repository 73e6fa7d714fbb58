//! What an applier reports to operators: counts that it keeps anyway. It costs the data path nothing.

use tidewater_protocol::ids::{DomainId, SessionId, WorkerThread};

use super::engine::Engine;
use crate::namespace::NamespaceId;

/// State of one applier for operators, taken between two frames.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ApplierReport {
    /// Steps of the applier's total order so far, see [`Engine::lsn`]: frames, each time one is offered, and
    /// steps of ticks and loads.
    pub frames: u64,
    /// Bytes of pushes and functions that the applier holds, see [`Engine::held_bytes`].
    pub held_bytes: usize,
    /// Number of saves under way.
    pub saves: usize,
    /// Clock (the last number) of each live worker thread in each domain of each job.
    pub clocks: Vec<(NamespaceId, DomainId, WorkerThread, u64)>,
    /// Number of refused frames of each session that has a ring.
    pub refused: Vec<(SessionId, u64)>,
    /// Number of frames that had not arrived when their tail was read, of all sessions so far.
    pub late_frames: u64,
}

impl Engine {
    /// Builds the report with `refused` empty and `late_frames` 0, which are of rings. Changes nothing. Cost: one
    /// pass over the clocks of all threads.
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
