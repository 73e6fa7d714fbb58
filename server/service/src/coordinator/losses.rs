//! The loss of a worker in a job that goes on: its open iteration counts on all appliers or on none.
//!
//! ```text
//! LoseWorker to all servers -> its sessions end; the clock of each of its threads, by applier the furthest
//! EndWorker{the furthest of all} to all servers -> appliers that lack the tick complete it
//! MembersChanged -> its later pushes are dropped, and no clock waits for it
//! ```
//! A worker under BSP or SSP sends CLOCK when all pushes of the iteration are acknowledged on all appliers. If
//! one applier has consumed the CLOCK, every applier therefore holds the whole iteration and completes it.
//! If none has, all drop it. The frame by which a thread leaves is such a CLOCK, too. Until the last order the worker
//! is a member: no minimum passes the iteration on an applier that lacks the tick. After the first order nothing of the
//! worker arrives any more. The loss is a change of membership at one tick, which the log has: a run that follows it
//! ends the worker at this tick.
//!
//! A server that waits for its successor is asked like the others when the successor has its memory: the tick may be
//! there and nowhere else, or everywhere but there.

use std::collections::{BTreeMap, BTreeSet};

use tidewater_protocol::ids::{DomainId, ServerId, WorkerId};
use tidewater_protocol::layout::frame::CLOCK_FINISHED;
use tidewater_protocol::mutants::{self, Mutant};
use tidewater_protocol::wire::control::{
    Command, CommandReply, DomainClock, ThreadClock, WorkerState,
};

use super::membership::Event;
use super::state::{Coordinator, Purpose};

/// Loss of a worker under way: servers have yet to report the ticks that it has ended.
#[derive(Debug)]
pub(super) struct Loss {
    pub(super) namespace: String,
    rank: WorkerId,
    /// Servers that have not reported the worker's clocks.
    missing: BTreeSet<ServerId>,
    /// Highest clock of each thread of the worker in each domain.
    clocks: BTreeMap<(u32, DomainId), u64>,
}

impl Coordinator {
    /// Begins the loss of a worker in a job that continues: orders all servers to end its sessions and report its
    /// clocks. The worker counts as live until all have answered. No effect if it is not live, or if its loss is under
    /// way: a worker that reports a failure also ends its connection.
    pub(super) fn lose_worker(&mut self, namespace: &str, rank: WorkerId) {
        let state = self.worker(namespace, rank.0).map(|worker| worker.state);
        let is_it = |loss: &Loss| (loss.namespace.as_str(), loss.rank) == (namespace, rank);
        if state != Some(WorkerState::Live) || self.losses.values().any(is_it) {
            return;
        }
        let servers = self.joined_servers();
        self.last_admission += 1;
        let number = self.last_admission;
        let mut missing: BTreeSet<ServerId> = servers.iter().copied().collect();
        missing.extend(self.absent_servers());
        if self.can_resume(namespace) {
            missing.extend(self.absent.keys());
        }
        let loss = Loss {
            namespace: namespace.to_owned(),
            rank,
            missing,
            clocks: BTreeMap::new(),
        };
        self.losses.insert(number, loss);
        for server in servers {
            self.order_loss(number, server);
        }
        self.settle_loss(number);
    }

    fn order_loss(&mut self, number: u64, server: ServerId) {
        let Some(loss) = self.losses.get(&number) else {
            return;
        };
        let order = Command::LoseWorker {
            namespace: loss.namespace.clone(),
            worker: loss.rank,
        };
        self.order(server, Purpose::Loss(number), order);
    }

    /// Repeats the orders about lost workers to a server that has returned after a restart of the coordinator, or to a
    /// successor with its memory: to end them at the clocks on which all servers agreed, or to report their clocks.
    pub(super) fn repeat_losses(&mut self, server: ServerId) {
        let mut agreed = Vec::new();
        for (namespace, job) in &self.jobs {
            for (&rank, clocks) in &job.ended {
                agreed.push((namespace.clone(), rank, clocks.clone()));
            }
        }
        for (namespace, worker, clocks) in agreed {
            let order = Command::EndWorker {
                namespace,
                worker,
                clocks,
            };
            self.order(server, Purpose::Cleanup, order);
        }
        for number in self.losses.keys().copied().collect::<Vec<_>>() {
            self.order_loss(number, server);
        }
    }

    /// Handles a server's answer to LoseWorker: the clocks of the lost worker's threads. A server without
    /// clocks or with a refusal counts as having none.
    pub(super) fn loss_reported(&mut self, number: u64, server: ServerId, reply: CommandReply) {
        let Some(loss) = self.losses.get_mut(&number) else {
            return;
        };
        loss.missing.remove(&server);
        if let CommandReply::ThreadClocks(clocks) = reply {
            for at in clocks {
                let furthest = loss.clocks.entry((at.thread, at.domain)).or_default();
                *furthest = at.clock.max(*furthest);
            }
        }
        self.settle_loss(number);
    }

    /// Stops waiting for the clocks of lost workers at `server`, which is gone with its memory. A loss that waited only
    /// for it completes.
    pub(super) fn lose_without(&mut self, server: ServerId) {
        for number in self.losses.keys().copied().collect::<Vec<_>>() {
            self.lose_one_without(number, server);
        }
    }

    /// Stops waiting for the clocks of lost workers at `server`, which has ended and may return with its
    /// memory, in those jobs that cannot resume with that memory.
    pub(super) fn lose_without_memory(&mut self, server: ServerId) {
        for number in self.losses.keys().copied().collect::<Vec<_>>() {
            let loss = self.losses.get(&number);
            if loss.is_some_and(|loss| !self.can_resume(&loss.namespace)) {
                self.lose_one_without(number, server);
            }
        }
    }

    fn lose_one_without(&mut self, number: u64, server: ServerId) {
        if let Some(loss) = self.losses.get_mut(&number) {
            loss.missing.remove(&server);
        }
        self.settle_loss(number);
    }

    /// Completes the loss of a worker once all servers have reported: orders them to end it at the highest
    /// clocks, and marks it as lost. Does nothing before.
    fn settle_loss(&mut self, number: u64) {
        let is_open = |loss: &Loss| !loss.missing.is_empty();
        if self.losses.get(&number).is_none_or(is_open) {
            return;
        }
        let Some(loss) = self.losses.remove(&number) else {
            return;
        };
        let Loss {
            namespace, rank, ..
        } = loss;
        let clock = |(&(thread, domain), &clock): (&(u32, DomainId), &u64)| ThreadClock {
            thread,
            domain,
            clock,
        };
        let clocks: Vec<ThreadClock> = loss.clocks.iter().map(clock).collect();
        if !clocks.is_empty() && !mutants::on(Mutant::LostTickHalved) {
            if let Some(job) = self.jobs.get_mut(&namespace) {
                job.ended.insert(rank, clocks.clone());
            }
            for server in self.joined_servers() {
                let order = Command::EndWorker {
                    namespace: namespace.clone(),
                    worker: rank,
                    clocks: clocks.clone(),
                };
                self.order(server, Purpose::Cleanup, order);
            }
        }
        if let Some(worker) = self.worker(&namespace, rank.0) {
            worker.state = WorkerState::Lost;
        }
        let mut checked = Ok(());
        // All pushes of a worker that has left count: the log has its leave, which was checked.
        if !clocks
            .iter()
            .any(|at| (at.thread, at.clock) == (0, CLOCK_FINISHED))
        {
            let clocks = self.lost_at(&namespace, rank, &clocks);
            checked = self.check_end(&namespace, rank, &clocks, "is lost");
            self.note(&namespace, Event::Lost { rank, clocks });
        }
        self.revision += 1;
        self.job_changed(&namespace, WorkerState::Lost);
        if let Err(refusal) = checked {
            self.fail_job(&namespace, &refusal);
        }
        self.end_job_if_left(&namespace);
    }

    /// Number of ticks of a lost worker that count in each domain: the lowest clock in `ended` of the threads
    /// that have not finished, but at least the worker's first clock. Sorted by domain; domains with 0 ticks
    /// are left out.
    fn lost_at(&self, namespace: &str, rank: WorkerId, ended: &[ThreadClock]) -> Vec<DomainClock> {
        let mut counts: BTreeMap<DomainId, u64> = BTreeMap::new();
        for at in ended.iter().filter(|at| at.clock != CLOCK_FINISHED) {
            let least = counts.entry(at.domain).or_insert(at.clock);
            *least = at.clock.min(*least);
        }
        let job = self.jobs.get(namespace);
        for first in job
            .and_then(|job| job.first.get(&rank))
            .into_iter()
            .flatten()
        {
            let counted = counts.entry(first.domain).or_default();
            *counted = first.clock.max(*counted);
        }
        let ticked = counts.into_iter().filter(|&(_, clock)| clock > 0);
        ticked
            .map(|(domain, clock)| DomainClock { domain, clock })
            .collect()
    }
}
