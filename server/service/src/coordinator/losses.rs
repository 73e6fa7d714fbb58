//! The loss of a worker in a job that goes on: its open iteration counts on all appliers or on none.
//!
//! ```text
//! LoseWorker to all servers -> its sessions end; the clock of each of its threads, by applier the furthest
//! EndWorker{the furthest of all} to all servers -> appliers that lack the tick complete it
//! MembersChanged -> its later pushes are dropped, and no clock waits for it
//! ```
//! A worker under BSP or SSP sends CLOCK when all pushes of the iteration are acknowledged on all appliers. If
//! one applier has consumed the CLOCK, every applier therefore holds the whole iteration and completes it.
//! If none has, all drop it. Until the last order the worker is a member: no minimum passes the iteration on
//! an applier that lacks the tick. After the first order nothing of the worker arrives any more.

use std::collections::{BTreeMap, BTreeSet};

use tidewater_protocol::ids::{DomainId, ServerId, WorkerId};
use tidewater_protocol::mutants::{self, Mutant};
use tidewater_protocol::wire::control::{Command, CommandReply, ThreadClock, WorkerState};

use super::membership::Event;
use super::state::{Coordinator, Purpose};

/// A lost worker with ticks that are not agreed on.
#[derive(Debug)]
pub(super) struct Loss {
    pub(super) namespace: String,
    rank: WorkerId,
    /// Servers that have not reported its clocks.
    missing: BTreeSet<ServerId>,
    /// The furthest clock of each thread in each domain.
    clocks: BTreeMap<(u32, DomainId), u64>,
}

impl Coordinator {
    /// Asks all servers for the ticks of a lost worker. It counts as live until they have answered.
    pub(super) fn lose_worker(&mut self, namespace: &str, rank: WorkerId) {
        let servers = self.joined_servers();
        self.last_admission += 1;
        let number = self.last_admission;
        let loss = Loss {
            namespace: namespace.to_owned(),
            rank,
            missing: servers.iter().copied().collect(),
            clocks: BTreeMap::new(),
        };
        self.losses.insert(number, loss);
        for server in servers {
            let namespace = namespace.to_owned();
            let order = Command::LoseWorker {
                namespace,
                worker: rank,
            };
            self.order(server, Purpose::Loss(number), order);
        }
        self.settle_loss(number);
    }

    /// Notes the clocks of a lost worker at a server. A server that cannot say has none.
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

    /// Forgets a server that has ended: the jobs fail with it.
    pub(super) fn lose_without(&mut self, server: ServerId) {
        for loss in self.losses.values_mut() {
            loss.missing.remove(&server);
        }
        for number in self.losses.keys().copied().collect::<Vec<_>>() {
            self.settle_loss(number);
        }
    }

    /// Removes a lost worker when all servers have reported its ticks.
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
        self.note(&namespace, Event::Lost { rank });
        self.revision += 1;
        self.job_changed(&namespace, WorkerState::Lost);
        self.end_job_if_left(&namespace);
    }
}
