//! The workers of one job: ranks, states, and whether the job is over.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use tidewater_protocol::ids::{DomainId, Incarnation, ServerId, TableId, WorkerId};
use tidewater_protocol::limits::WORKERS_MAX;
use tidewater_protocol::mutants::{self, Mutant};
use tidewater_protocol::wire::control::{
    CoordinatorRequest, DomainClock, Join, ServerRestart, ThreadClock, WorkerMember, WorkerState,
};
use tidewater_protocol::wire::hello::RANK_ANY;
use tidewater_protocol::wire::refusal::{Refusal, RefusalCode};
use tidewater_queue::Queues;

use super::barriers::{Barriers, Outcome};
use super::checkpoints::Durable;
use super::state::{Asker, PeerId};

/// Maximum number of ranks that an error text names; further ones are only counted.
const NAMED_MAX: usize = 16;

/// A worker of a job, as the coordinator sees it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Worker {
    pub(super) state: WorkerState,
    /// Its connection, or `ABSENT` if it may return after a restart of the coordinator; else `None`.
    pub(super) peer: Option<PeerId>,
    /// Random number of its process; 0 before it has joined.
    pub(super) incarnation: Incarnation,
}

/// State of an expected worker that has not registered.
const AWAITED: Worker = Worker {
    state: WorkerState::Expected,
    peer: None,
    incarnation: Incarnation(0),
};

/// A job that is over, until all servers have released it.
#[derive(Debug)]
pub(super) struct EndingJob {
    pub(super) namespace: String,
    /// Servers that have not released the job.
    pub(super) missing: BTreeSet<ServerId>,
    /// Join requests of workers of the next job of that name, admitted afterwards.
    pub(super) waiting: Vec<(Asker, Join)>,
}

/// A job: one namespace with its workers, tables, barriers and task queues.
#[derive(Debug, Default)]
pub(super) struct Job {
    /// Number of workers of the job; 0 if unknown.
    expected: u32,
    pub(super) workers: BTreeMap<WorkerId, Worker>,
    pub(super) tables: BTreeMap<String, TableId>,
    pub(super) barriers: Barriers,
    /// Reason why the job has failed, once it has.
    pub(super) failed: Option<Refusal>,
    /// Whether a save or load runs.
    pub(super) busy: bool,
    /// Clocks of the model that the job has loaded, the greatest of each domain. The job's own clocks begin
    /// at 0; a save adds these to them.
    pub(super) base: BTreeMap<DomainId, u64>,
    /// Workers that wait to be admitted.
    pub(super) waiting: VecDeque<Asker>,
    /// Number of the admission or checkpoint for which servers hold the clocks; `None` if they do not.
    pub(super) admitting: Option<u64>,
    /// Ranks of ended workers that new processes have taken and that have not been admitted.
    pub(super) late: BTreeSet<WorkerId>,
    /// First clocks of the workers that joined while the job ran.
    pub(super) first: BTreeMap<WorkerId, Vec<DomainClock>>,
    /// For each rank, the number of its stays in the schedule that have begun.
    pub(super) stays: BTreeMap<WorkerId, usize>,
    /// Its queues of tasks.
    pub(super) queues: Queues,
    /// Its checkpoints, if the coordinator takes any.
    pub(super) durable: Option<Box<Durable>>,
    /// Server answers that its schedule waits for; `None` before the schedule is sent.
    pub(super) unscheduled: Option<Unscheduled>,
    /// Restarted servers for which the job begins again. Emptied when all servers have ended the job and no server
    /// is awaited.
    pub(super) restarts: Vec<ServerRestart>,
    /// The last restarted server for which the job has begun again.
    pub(super) restarted: Option<ServerRestart>,
    /// Reason with which an operator has asked the workers to end, if so.
    pub(super) stop: Option<String>,
    /// Clocks at which lost workers ended; servers that return get these orders again.
    pub(super) ended: BTreeMap<WorkerId, Vec<ThreadClock>>,
    /// Requests that wait for the job's servers. Those with a request are carried out when the servers have
    /// their memory back; the others are refused when the job begins again.
    pub(super) parked: Vec<(Asker, Option<CoordinatorRequest>)>,
    /// Restarted servers that have their memory, with the tables that they do not serve yet.
    pub(super) resuming: BTreeMap<ServerId, (ServerRestart, BTreeSet<TableId>)>,
    /// Lower bound of the first clocks of workers admitted from now on: above the clocks of the opened
    /// barriers.
    pub(super) floor: BTreeMap<DomainId, u64>,
}

/// Progress of sending a job's membership schedule to the servers.
#[derive(Debug, Default)]
pub(super) struct Unscheduled {
    /// Number of the schedule in its orders.
    pub(super) number: u64,
    /// Confirmations of stays that are outstanding, over all servers.
    pub(super) left: usize,
    /// The stays, in the order in which servers get them: rank and first clocks.
    pub(super) stays: Vec<(WorkerId, Vec<DomainClock>)>,
    /// Number of stays that each server was sent.
    pub(super) sent: BTreeMap<ServerId, usize>,
}

impl Job {
    pub(super) fn new(expected: u32) -> Self {
        let workers = (0..expected).map(|rank| (WorkerId(rank), AWAITED));
        Self {
            expected,
            workers: workers.collect(),
            ..Self::default()
        }
    }

    /// Checks the number of workers that a worker reports, where 0 means unknown. The first known number
    /// becomes that of the job, and the ranks below it become awaited workers. Refused if the job has another
    /// number, or a rank that is not below it.
    pub(super) fn expect(&mut self, worker: WorkerId, reported: u32) -> Result<(), Refusal> {
        self.check_size(worker, reported)?;
        if reported > self.expected {
            self.expected = reported;
            for rank in (0..reported).map(WorkerId) {
                self.workers.entry(rank).or_insert(AWAITED);
            }
        }
        Ok(())
    }

    /// Checks the number of workers that worker `worker` reports, where 0 means unknown; changes nothing.
    /// Refused if the job has another number, or a rank that is not below it.
    pub(super) fn check_size(&self, worker: WorkerId, reported: u32) -> Result<(), Refusal> {
        if reported == 0 || reported == self.expected {
            return Ok(());
        }
        let refuse = |text| {
            let numbers = [u64::from(reported), u64::from(self.expected), 0, 0];
            Err(Refusal::new(RefusalCode::BadRequest, numbers).with_text(text))
        };
        if self.expected > 0 {
            let have = self.expected;
            return refuse(format!("this job has {have} workers, not {reported}"));
        }
        // Workers that did not know it may have come before.
        let last = self
            .workers
            .last_key_value()
            .map_or(worker, |(&rank, _)| rank);
        if last.0 >= reported {
            return refuse(format!("rank {last} of a job with {reported} workers"));
        }
        Ok(())
    }

    /// Chooses the rank of a new worker: the rank `asked`; for `RANK_ANY` the lowest free one, else the lowest
    /// of a worker that has ended (lost, or finished in a job of unknown size). Refused if the rank is taken or
    /// out of range, or no rank is left. Reserves nothing.
    pub(super) fn rank_for(&self, asked: u32) -> Result<WorkerId, Refusal> {
        let end = if self.expected == 0 {
            WORKERS_MAX
        } else {
            self.expected
        };
        let state = |rank: &WorkerId| self.workers.get(rank).map(|w| (w.state, w.peer));
        let is_free =
            |rank: &WorkerId| state(rank).is_none_or(|at| at == (WorkerState::Expected, None));
        // The rank of one that was lost, and in a job of open size of one that has finished.
        let is_left = |rank: &WorkerId| match state(rank) {
            Some((WorkerState::Lost, None)) => true,
            Some((WorkerState::Finished, None)) => self.expected == 0,
            _ => false,
        };
        if asked == RANK_ANY {
            let ranks = || (0..end).map(WorkerId);
            let free = ranks().find(is_free).or_else(|| ranks().find(is_left));
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
        if is_free(&rank) || is_left(&rank) {
            return Ok(rank);
        }
        let mut text = format!("rank {asked} is {}", self.describe(rank));
        if self
            .workers
            .get(&rank)
            .is_some_and(|w| w.state == WorkerState::Finished)
        {
            // In a service the next job wants the name of one that is still in use.
            text += ", and its job is not over; take another namespace, or wait for its other \
                     workers and release its tables";
        }
        Err(Refusal::new(RefusalCode::RankTaken, numbers).with_text(text))
    }

    /// Takes back the rank that a new connection was given, because the connection's process already has
    /// another rank. A rank that belonged to an ended worker counts as lost.
    pub(super) fn give_back(&mut self, rank: WorkerId) {
        let Some(worker) = self.workers.get_mut(&rank) else {
            return;
        };
        worker.peer = None;
        if worker.state != WorkerState::Expected {
            return;
        }
        if self.late.remove(&rank) {
            // It was that of a worker that has ended.
            worker.state = WorkerState::Lost;
        } else if self.expected == 0 {
            // No process is expected under it.
            self.workers.remove(&rank);
        }
    }

    /// Number of workers of the job; 0 if unknown.
    pub(super) const fn expected(&self) -> u32 {
        self.expected
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

    /// Whether the number of workers is known, every one has finished or is lost, and none waits for
    /// admission.
    pub(super) fn is_over(&self) -> bool {
        let ended = |w: &Worker| matches!(w.state, WorkerState::Finished | WorkerState::Lost);
        self.expected > 0 && self.workers.values().all(ended) && self.waiting.is_empty()
    }

    /// Whether the job can be removed: no worker is connected or may return, and it has failed, is over, or is
    /// of unknown size without tables.
    pub(super) fn is_left(&self) -> bool {
        let has_nothing = self.expected == 0 && self.tables.is_empty();
        let is_done = self.failed.is_some() || self.is_over() || has_nothing;
        is_done && self.peers().next().is_none()
    }

    /// Decides whether a barrier of `count` workers, of which `present` have arrived, opens, waits or fails. A
    /// count equal to the job's size does not wait for ended workers. Another count needs that many workers,
    /// and fails when fewer are left. In a job of unknown size no barrier fails.
    pub(super) fn barrier(&self, count: u32, present: &[WorkerId]) -> Outcome {
        let count_lost = mutants::on(Mutant::BarrierCountsTheLost);
        let may_come = |w: &Worker| matches!(w.state, WorkerState::Expected | WorkerState::Live);
        let mut left = self.workers.iter().filter(|(_, w)| may_come(w));
        if self.expected == 0 || count != self.expected || count_lost {
            let is_known = self.expected > 0 && !count_lost;
            return match present.len() >= count as usize {
                true => Outcome::Opens,
                false if is_known && left.count() < count as usize => Outcome::Fails,
                false => Outcome::Waits,
            };
        }
        match left.all(|(rank, _)| present.contains(rank)) {
            true => Outcome::Opens,
            false => Outcome::Waits,
        }
    }

    /// Names the workers that have finished or are lost, for an error text; empty if none has. Also returns up
    /// to four of their ranks, then zeros, for the numbers of a refusal.
    pub(super) fn departed(&self) -> (String, [u64; 4]) {
        let ended = |w: &Worker| matches!(w.state, WorkerState::Finished | WorkerState::Lost);
        let present = self.workers.iter().filter(|(_, w)| !ended(w));
        let present: Vec<WorkerId> = present.map(|(&rank, _)| rank).collect();
        match present.len() == self.workers.len() {
            true => (String::new(), [0; 4]),
            false => self.missing(&present),
        }
    }

    /// Names the workers that have not ended and are not in `present`, for an error text. Also returns up to
    /// four of their ranks, then zeros, for the numbers of a refusal.
    pub(super) fn awaited(&self, present: &[WorkerId]) -> (String, [u64; 4]) {
        let ended = |w: &Worker| matches!(w.state, WorkerState::Finished | WorkerState::Lost);
        let gone = self.workers.iter().filter(|(_, w)| ended(w));
        let mut there = present.to_vec();
        there.extend(gone.map(|(&rank, _)| rank));
        self.missing(&there)
    }

    /// Names the workers that are not in `present`, ended or not, for an error text. Also returns up to four of
    /// their ranks, then zeros, for the numbers of a refusal.
    pub(super) fn missing(&self, present: &[WorkerId]) -> (String, [u64; 4]) {
        let absent = self.workers.keys().filter(|rank| !present.contains(rank));
        self.names(&absent.copied().collect::<Vec<_>>())
    }

    /// Names up to `NAMED_MAX` workers of the ranks `absent` with their states, for an error text, and counts
    /// the others; an empty list stands for workers that never joined. Also returns the first four ranks, then
    /// zeros, for the numbers of a refusal.
    pub(super) fn names(&self, absent: &[WorkerId]) -> (String, [u64; 4]) {
        let mut numbers = [0; 4];
        for (number, rank) in numbers.iter_mut().zip(absent) {
            *number = u64::from(rank.0);
        }
        let named = absent.iter().take(NAMED_MAX);
        let mut names: Vec<_> = named
            .map(|&rank| format!("rank {rank} ({})", self.describe(rank)))
            .collect();
        match absent.len() {
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
                ..
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
