//! How workers, servers, jobs and the cluster come to their end.

use std::time::Duration;

use tidewater_transport::ids::{ServerId, WorkerId};
use tidewater_transport::limits::SHUTDOWN_GRACE;
use tidewater_transport::wire::control::{CoordinatorAnswer, Notice, Order, WorkerState};
use tidewater_transport::wire::hello::Role;
use tidewater_transport::wire::refusal::{Refusal, RefusalCode};

use super::state::{Action, Asker, Coordinator, LostWorker, Peer, PeerId, Phase, Purpose};

impl Coordinator {
    /// The cluster ends: everybody is told, servers are ordered to.
    pub fn stop(&mut self, now: Duration, reason: &str) {
        self.now = self.now.max(now);
        if self.phase != Phase::Running {
            return;
        }
        self.phase = Phase::Stopping(self.now + SHUTDOWN_GRACE);
        let refusal = Refusal::new(RefusalCode::ShuttingDown, [0; 4]).with_text(reason);
        for name in self.jobs.keys().cloned().collect::<Vec<_>>() {
            self.refuse_waiting(&name, &refusal);
        }
        let workers = self
            .peers
            .iter()
            .filter(|(_, peer)| peer.role == Role::Worker);
        let told = workers.map(|(&id, _)| {
            Action::Notify(
                id,
                Notice::Shutdown {
                    reason: refusal.text.clone(),
                },
            )
        });
        self.actions.extend(told);
        for server in self.joined_servers() {
            self.order(server, Purpose::Shutdown, Order::Shutdown);
        }
        if self.servers.is_empty() {
            self.phase = Phase::Ended;
        }
    }

    pub(super) fn goodbye(&mut self, id: PeerId) -> CoordinatorAnswer {
        self.worker_ends(id, WorkerState::Finished);
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.leaving = true;
        }
        CoordinatorAnswer::Done
    }

    /// A live worker comes to its end; servers are told that no clock waits for it.
    pub(super) fn worker_ends(&mut self, id: PeerId, state: WorkerState) {
        let Some(peer) = self.peers.get(&id).filter(|peer| peer.role == Role::Worker) else {
            return;
        };
        let (namespace, rank) = (peer.namespace.clone(), peer.rank);
        let Some(worker) = self.worker(&namespace, rank) else {
            return;
        };
        if worker.state == WorkerState::Live {
            worker.state = state;
            self.revision += 1;
            self.job_changed(&namespace, state);
        }
    }

    pub(super) fn job_changed(&mut self, namespace: &str, state: WorkerState) {
        for server in self.joined_servers() {
            self.tell_members(server, namespace);
        }
        let Some(job) = self.jobs.get(namespace) else {
            return;
        };
        if state == WorkerState::Lost {
            let members = self.members(namespace);
            let told = job
                .peers()
                .map(|id| Action::Notify(id, Notice::MembersChanged(members.clone())));
            self.actions.extend(told);
        }
        if job.is_over() && self.config.ends_itself {
            self.stop(self.now, "all workers have finished");
        }
    }

    pub(super) fn worker_gone(&mut self, peer: &Peer) {
        let rank = WorkerId(peer.rank);
        let Some(job) = self.jobs.get_mut(&peer.namespace) else {
            return;
        };
        job.barriers.leave(rank);
        let Some(worker) = job.workers.get_mut(&rank) else {
            return;
        };
        worker.peer = None;
        if worker.state == WorkerState::Live && !peer.leaving {
            let why = "its connection ended before it said that it has finished";
            self.worker_lost(&peer.namespace, rank, why);
        }
        self.forget_empty_job(&peer.namespace);
    }

    pub(super) fn worker_lost(&mut self, namespace: &str, rank: WorkerId, why: &str) {
        if self.phase != Phase::Running {
            return;
        }
        if let Some(worker) = self.worker(namespace, rank.0) {
            worker.state = WorkerState::Lost;
        }
        self.revision += 1;
        match self.config.on_lost {
            LostWorker::GoOn => self.job_changed(namespace, WorkerState::Lost),
            LostWorker::FailJob => {
                let text = format!("worker {rank}: {why}");
                let numbers = [u64::from(rank.0), 0, 0, 0];
                let refusal = Refusal::new(RefusalCode::PeerFailed, numbers).with_text(text);
                self.fail_job(namespace, &refusal);
            }
        }
    }

    pub(super) fn server_gone(&mut self, peer: &Peer) {
        let number = ServerId(peer.rank);
        let Some(server) = self.servers.remove(&number) else {
            return;
        };
        self.orders.retain(|_, (to, _)| *to != server.peer);
        let Some(member) = server.member else {
            return;
        };
        self.epoch += 1;
        self.revision += 1;
        if self.phase == Phase::Running && !peer.leaving {
            let text = format!("server {number} on {}: its connection ended", member.host);
            let numbers = [u64::from(number.0), 0, 0, 0];
            self.fail_all(&Refusal::new(RefusalCode::PeerFailed, numbers).with_text(text));
        }
    }

    /// A peer says that it cannot go on.
    pub(super) fn peer_failed(&mut self, id: PeerId, reason: &str) {
        let Some(peer) = self.peers.get_mut(&id) else {
            return;
        };
        let (role, rank, namespace) = (peer.role, peer.rank, peer.namespace.clone());
        peer.leaving = true;
        if role == Role::Worker {
            self.worker_lost(&namespace, WorkerId(rank), reason);
        } else if role == Role::Server {
            let numbers = [u64::from(rank), 0, 0, 0];
            let refusal = Refusal::new(RefusalCode::PeerFailed, numbers);
            self.fail_all(&refusal.with_text(format!("server {rank}: {reason}")));
        }
    }

    pub(super) fn fail_all(&mut self, refusal: &Refusal) {
        for namespace in self.jobs.keys().cloned().collect::<Vec<_>>() {
            self.fail_job(&namespace, refusal);
        }
        if self.config.ends_itself {
            self.stop(self.now, &refusal.text);
        }
    }

    pub(super) fn fail_job(&mut self, namespace: &str, refusal: &Refusal) {
        let Some(job) = self.jobs.get_mut(namespace) else {
            return;
        };
        if job.failed.is_some() {
            return;
        }
        job.failed = Some(refusal.clone());
        let peers: Vec<PeerId> = job.peers().collect();
        self.refuse_waiting(namespace, refusal);
        let told = peers
            .into_iter()
            .map(|id| Action::Notify(id, Notice::PeerFailed(refusal.clone())));
        self.actions.extend(told);
        if self.config.ends_itself {
            self.stop(self.now, &refusal.text);
        }
    }

    /// Whoever of a job waits for something is told that it will not come.
    pub(super) fn refuse_waiting(&mut self, namespace: &str, refusal: &Refusal) {
        let Some(job) = self.jobs.get_mut(namespace) else {
            return;
        };
        let mut askers: Vec<Asker> = job.barriers.clear().iter().map(|w| w.asker).collect();
        let tables = self
            .tables
            .values_mut()
            .filter(|table| table.namespace == namespace);
        askers.extend(tables.flat_map(|table| std::mem::take(&mut table.askers)));
        for asker in askers {
            self.answer(asker, CoordinatorAnswer::Refused(refusal.clone()));
        }
        self.abort_models(namespace, refusal);
    }

    /// A job that failed or has no tables leaves nothing when its last worker has gone, so that a
    /// service can take the next one of its name.
    pub(super) fn forget_empty_job(&mut self, namespace: &str) {
        let Some(job) = self.jobs.get(namespace) else {
            return;
        };
        if job.peers().next().is_none() && job.tables.is_empty() && self.config.workers == 0 {
            self.jobs.remove(namespace);
            // Members without a worker: this is how servers learn that the job is over.
            for server in self.joined_servers() {
                self.tell_members(server, namespace);
            }
        }
    }
}
