//! The workers of one job.

use std::collections::BTreeMap;

use tidewater_transport::ids::{TableId, WorkerId};
use tidewater_transport::limits::WORKERS_MAX;
use tidewater_transport::wire::control::{WorkerMember, WorkerState};
use tidewater_transport::wire::hello::RANK_ANY;
use tidewater_transport::wire::refusal::{Refusal, RefusalCode};

use super::barriers::Barriers;
use super::state::PeerId;

/// Ranks that a message names; more are counted.
const NAMED_MAX: usize = 16;

/// A worker of a job.
#[derive(Debug, Clone, Copy)]
pub(super) struct Worker {
    pub(super) state: WorkerState,
    /// Its connection while there is one.
    pub(super) peer: Option<PeerId>,
}

/// One namespace.
#[derive(Debug, Default)]
pub(super) struct Job {
    /// Workers it is made of; 0 when nobody said.
    expected: u32,
    pub(super) workers: BTreeMap<WorkerId, Worker>,
    pub(super) tables: BTreeMap<String, TableId>,
    pub(super) barriers: Barriers,
    /// Why it ends, once it does.
    pub(super) failed: Option<Refusal>,
    /// A save or load runs.
    pub(super) busy: bool,
}

impl Job {
    pub(super) fn new(expected: u32) -> Self {
        let awaited = Worker {
            state: WorkerState::Expected,
            peer: None,
        };
        let workers = (0..expected)
            .map(|rank| (WorkerId(rank), awaited))
            .collect();
        Self {
            expected,
            workers,
            ..Self::default()
        }
    }

    /// The rank a new worker gets, which is the one it asks for.
    pub(super) fn rank_for(&self, asked: u32) -> Result<WorkerId, Refusal> {
        let end = if self.expected == 0 {
            WORKERS_MAX
        } else {
            self.expected
        };
        let is_free = |rank: &WorkerId| {
            let worker = self.workers.get(rank);
            worker.is_none_or(|w| w.state == WorkerState::Expected && w.peer.is_none())
        };
        if asked == RANK_ANY {
            let free = (0..end).map(WorkerId).find(is_free);
            let numbers = [u64::from(end) + 1, u64::from(end), 0, 0];
            return free.ok_or_else(|| {
                Refusal::new(RefusalCode::TooMany, numbers).with_text("workers of this job")
            });
        }
        let (rank, numbers) = (WorkerId(asked), [u64::from(asked), 0, 0, 0]);
        if asked >= end {
            let text = format!("rank {asked} of a job with {end} workers");
            return Err(Refusal::new(RefusalCode::BadRequest, numbers).with_text(text));
        }
        if is_free(&rank) {
            return Ok(rank);
        }
        let text = format!("rank {asked} is {}", self.describe(rank));
        Err(Refusal::new(RefusalCode::RankTaken, numbers).with_text(text))
    }

    pub(super) fn members(&self) -> Vec<WorkerMember> {
        let member = |(&id, worker): (&WorkerId, &Worker)| WorkerMember {
            id,
            state: worker.state,
        };
        self.workers.iter().map(member).collect()
    }

    pub(super) fn peers(&self) -> impl Iterator<Item = PeerId> + '_ {
        self.workers.values().filter_map(|worker| worker.peer)
    }

    /// Whether every worker that was expected has come to its end.
    pub(super) fn is_over(&self) -> bool {
        let ended = |w: &Worker| matches!(w.state, WorkerState::Finished | WorkerState::Lost);
        self.expected > 0 && self.workers.values().all(ended)
    }

    /// Workers that are not in `present`, for a message, and the first ranks of them.
    pub(super) fn missing(&self, present: &[WorkerId]) -> (String, [u64; 4]) {
        let absent = || self.workers.keys().filter(|rank| !present.contains(rank));
        let mut numbers = [0; 4];
        for (number, rank) in numbers.iter_mut().zip(absent()) {
            *number = u64::from(rank.0);
        }
        let named = absent().take(NAMED_MAX);
        let mut names: Vec<_> = named
            .map(|&rank| format!("rank {rank} ({})", self.describe(rank)))
            .collect();
        match absent().count() {
            0 => names.push("workers that never joined".into()),
            count if count > NAMED_MAX => names.push(format!("{} more", count - NAMED_MAX)),
            _ => {}
        }
        (names.join(", "), numbers)
    }

    fn describe(&self, rank: WorkerId) -> &'static str {
        match self.workers.get(&rank) {
            None => "unknown",
            Some(Worker {
                peer: Some(_),
                state: WorkerState::Expected,
            }) => "joining",
            Some(worker) => match worker.state {
                WorkerState::Expected => "not yet joined",
                WorkerState::Live => "alive",
                WorkerState::Finished => "finished",
                WorkerState::Lost => "lost",
            },
        }
    }
}
