//! How workers, servers, jobs and the cluster end, in the coordinator.

use std::time::Duration;

use tidewater_journal::{Change, ServerImage};
use tidewater_protocol::ids::{ServerId, WorkerId};
use tidewater_protocol::limits::SHUTDOWN_GRACE;
use tidewater_protocol::wire::control::{
    Command, CoordinatorAnswer, Members, Notice, Part, ServerMember, WorkerState,
};
use tidewater_protocol::wire::hello::Role;
use tidewater_protocol::wire::refusal::{Refusal, RefusalCode};

use super::jobs::EndingJob;
use super::membership::Event;
use super::state::{
    Action, Asker, Coordinator, Lifetime, LostWorker, Peer, PeerId, Phase, Purpose, bad,
};
use super::tables::Stage;

impl Coordinator {
    /// Stops the cluster: refuses waiting requests, notifies workers and observers, and orders all servers to
    /// shut down. `now` is on the coordinator's clock. Has no effect the second time.
    pub fn stop(&mut self, now: Duration, reason: &str) {
        self.now = self.now.max(now);
        if self.phase != Phase::Running {
            return;
        }
        self.phase = Phase::Stopping(self.now + SHUTDOWN_GRACE);
        self.touch();
        let refusal = Refusal::new(RefusalCode::ShuttingDown, [0; 4]).with_text(reason);
        self.stop_reason.clone_from(&refusal.text);
        for name in self.jobs.keys().cloned().collect::<Vec<_>>() {
            self.refuse_waiting(&name, &refusal);
        }
        self.answer_waiting(None, &CoordinatorAnswer::Refused(refusal.clone()));
        let workers = self
            .peers
            .iter()
            .filter(|(_, peer)| matches!(peer.role, Role::Worker | Role::Observer));
        let notices = workers.map(|(&id, _)| {
            Action::Notify(
                id,
                Notice::Shutdown {
                    reason: refusal.text.clone(),
                },
            )
        });
        self.actions.extend(notices);
        for server in self.joined_servers() {
            self.order(server, Purpose::Shutdown, Command::Shutdown);
        }
        if self.servers.is_empty() && !self.is_still_sending() && !self.awaits_servers() {
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

    /// Marks a live worker as finished or lost (`state`), takes back its tasks, and notifies the servers, so
    /// that no clock waits for it. Does nothing for other peers.
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
            let is_lost = state == WorkerState::Lost;
            self.release_tasks(id, WorkerId(rank), &namespace, is_lost);
        }
    }

    pub(super) fn job_changed(&mut self, namespace: &str, state: WorkerState) {
        for server in self.joined_servers() {
            self.announce_members(server, namespace);
        }
        let Some(job) = self.jobs.get(namespace) else {
            return;
        };
        if state == WorkerState::Lost {
            let members = self.members(namespace);
            let notices = job
                .peers()
                .map(|id| Action::Notify(id, Notice::MembersChanged(members.clone())));
            self.actions.extend(notices);
        }
        let is_over = job.is_over() || self.has_followed_schedule(namespace);
        if let Some(answer) = self.end_of_workers(namespace) {
            self.answer_waiting(Some(namespace), &answer);
        }
        if is_over && self.config.lifetime == Lifetime::OneJob {
            self.stop(self.now, "all workers have finished");
        }
        self.settle_barriers(namespace);
    }

    pub(super) fn worker_gone(&mut self, id: PeerId, peer: &Peer) {
        let rank = WorkerId(peer.rank);
        for ending in self.ending.values_mut() {
            ending.waiting.retain(|(asker, _)| asker.peer != id);
        }
        self.leave_queue(id);
        self.release_tasks(id, rank, &peer.namespace, !peer.leaving);
        // A schedule has further stays for ranks that have left.
        let is_open = self.schedule.is_none() && self.phase == Phase::Running;
        let Some(job) = self.jobs.get_mut(&peer.namespace) else {
            return;
        };
        let Some(worker) = job.workers.get_mut(&rank) else {
            return;
        };
        if worker.peer != Some(id) {
            // It has not taken the place of a worker that may return, or has returned.
            return;
        }
        job.barriers.leave(rank);
        worker.peer = None;
        if worker.state == WorkerState::Live && !peer.leaving {
            let why = "its connection ended before it said that it has finished";
            self.worker_lost(&peer.namespace, rank, why);
        } else if worker.state == WorkerState::Expected && is_open && job.late.remove(&rank) {
            // It took the rank of a lost worker and was not admitted: the rank is lost as before.
            worker.state = WorkerState::Lost;
            self.revision += 1;
            self.job_changed(&peer.namespace, WorkerState::Lost);
        }
        self.end_job_if_left(&peer.namespace);
    }

    pub(super) fn worker_lost(&mut self, namespace: &str, rank: WorkerId, why: &str) {
        if self.phase != Phase::Running {
            return;
        }
        let on_lost = match self.stay(namespace, rank).is_some_and(|stay| stay.is_lost) {
            true => LostWorker::GoOn,
            false => self.config.on_lost,
        };
        match on_lost {
            LostWorker::GoOn => self.lose_worker(namespace, rank),
            LostWorker::FailJob => {
                if let Some(worker) = self.worker(namespace, rank.0) {
                    worker.state = WorkerState::Lost;
                }
                self.note(namespace, Event::Failed { rank });
                self.revision += 1;
                let who = self.launched_as(Part::Worker, rank.0);
                let text = format!("worker {rank}{who}: {why}");
                let numbers = [u64::from(rank.0), 0, 0, 0];
                let refusal = Refusal::new(RefusalCode::PeerFailed, numbers).with_text(text);
                self.fail_job(namespace, &refusal);
            }
        }
    }

    pub(super) fn server_gone(&mut self, peer: &Peer) {
        let number = ServerId(peer.rank);
        self.never_reported(number);
        let Some(server) = self.servers.remove(&number) else {
            return;
        };
        self.orders.retain(|_, (to, _)| *to != server.peer);
        let is_held = server.member.is_some() && server.restarts > 0 && !peer.leaving;
        // The end of a process that had not joined does not end the wait for a server or its successor.
        if !self.may_return(number) && !self.absent.contains_key(&number) {
            self.admit_without(number);
            self.load_without(number);
            // A successor may have the clocks that it was to report, and the tables and jobs that it was to end.
            if !is_held || self.phase != Phase::Running {
                self.forget_memory(number);
            }
        }
        let Some(member) = server.member else {
            self.await_next_successor(number);
            return;
        };
        match peer.leaving {
            true => {
                self.epoch += 1;
                self.revision += 1;
            }
            false if server.restarts > 0 && self.phase == Phase::Running => {
                let server = ServerImage {
                    member,
                    pid: server.pid,
                    restarts: server.restarts,
                };
                self.held_server_lost(server, "has ended: its connection closed");
            }
            false => self.server_lost(&member, Some(server.pid), "its connection ended"),
        }
    }

    /// Raises the epoch after the loss of a server that is not restarted, and fails all jobs. `pid` is its
    /// process, if known, and `why` how it ended, for the error text. Only the epoch and the revision change
    /// once the cluster is stopping.
    pub(super) fn server_lost(&mut self, member: &ServerMember, pid: Option<u32>, why: &str) {
        self.epoch += 1;
        self.revision += 1;
        if self.phase != Phase::Running {
            return;
        }
        let (number, host) = (member.id, &member.host);
        let process = match (self.launched_as(Part::Server, number.0), pid) {
            (process, _) if !process.is_empty() => process,
            (_, Some(pid)) => format!(" (pid {pid} on {host})"),
            (_, None) => format!(" on {host}"),
        };
        let text = format!("server {number}{process}: {why}");
        let numbers = [u64::from(number.0), 0, 0, 0];
        self.fail_all(&Refusal::new(RefusalCode::PeerFailed, numbers).with_text(text));
    }

    /// Handles a peer's report that it cannot continue: a worker counts as lost, and a server's failure fails
    /// all jobs.
    pub(super) fn peer_failed(&mut self, id: PeerId, reason: &str) {
        let Some(peer) = self.peers.get_mut(&id) else {
            return;
        };
        let (role, rank, namespace) = (peer.role, peer.rank, peer.namespace.clone());
        peer.leaving = true;
        if role == Role::Worker {
            self.worker_lost(&namespace, WorkerId(rank), reason);
            self.release_tasks(id, WorkerId(rank), &namespace, true);
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
        if self.config.lifetime == Lifetime::OneJob {
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
        let mut peers: Vec<PeerId> = job.peers().collect();
        peers.extend(self.observers(namespace));
        self.refuse_waiting(namespace, refusal);
        let notices = peers
            .into_iter()
            .map(|id| Action::Notify(id, Notice::PeerFailed(refusal.clone())));
        self.actions.extend(notices);
        let failed = CoordinatorAnswer::Refused(refusal.clone());
        self.answer_waiting(Some(namespace), &failed);
        if self.gathering.is_some() {
            // Servers of a foreign launcher must end with an error too, or it takes the job for a
            // success.
            let servers = self.servers.values().map(|server| server.peer);
            let notices = servers.map(|id| Action::Notify(id, Notice::PeerFailed(refusal.clone())));
            self.actions.extend(notices);
        }
        if self.config.lifetime == Lifetime::OneJob {
            self.stop(self.now, &refusal.text);
        }
    }

    /// Refuses all waiting requests of a job, and aborts its saves and loads.
    pub(super) fn refuse_waiting(&mut self, namespace: &str, refusal: &Refusal) {
        for asker in self.take_waiting(namespace) {
            self.answer(asker, CoordinatorAnswer::Refused(refusal.clone()));
        }
        self.abort_models(namespace, refusal);
    }

    /// Removes the waiting requests of a job, except saves and loads under way, and returns them for the caller
    /// to answer. They wait at barriers, for tables, functions, tasks, admission, a resume, the end of a
    /// checkpoint, or a server's successor.
    pub(super) fn take_waiting(&mut self, namespace: &str) -> Vec<Asker> {
        let Some(job) = self.jobs.get_mut(namespace) else {
            return Vec::new();
        };
        let mut askers: Vec<Asker> = job.barriers.clear().iter().map(|w| w.asker).collect();
        askers.extend(
            std::mem::take(&mut job.parked)
                .into_iter()
                .map(|(asker, _)| asker),
        );
        let tables = self
            .tables
            .values_mut()
            .filter(|table| table.namespace == namespace);
        askers.extend(tables.flat_map(|table| std::mem::take(&mut table.askers)));
        askers.extend(self.drop_loads(namespace));
        askers.extend(self.drop_admissions(namespace));
        askers.extend(self.drop_task_requests(namespace));
        let durable = self.jobs.get_mut(namespace);
        let durable = durable.and_then(|job| job.durable.as_mut());
        askers.extend(
            durable
                .into_iter()
                .flat_map(|durable| durable.drop_waiting()),
        );
        askers
    }

    /// Ends a job of a service cluster if no worker of it is connected and it has failed, is over, or is of
    /// unknown size without tables. Does nothing otherwise, or while a server is awaited after a restart of the
    /// coordinator. Servers release its tables, sessions and clocks; when all have, the next job of its name
    /// begins.
    pub(super) fn end_job_if_left(&mut self, namespace: &str) {
        let is_service = self.config.lifetime == Lifetime::Service && self.phase == Phase::Running;
        let is_service = is_service && !self.awaits_servers();
        let is_left = self.jobs.get(namespace).is_some_and(|job| job.is_left());
        if !is_service || !is_left {
            return;
        }
        let over = bad("the job is over");
        // A job of open size ends when no worker and no table of it is left.
        self.answer_waiting(Some(namespace), &CoordinatorAnswer::Done);
        self.refuse_waiting(namespace, &over);
        self.drop_tables(namespace, &over);
        let mut nobody = self.members(namespace);
        nobody.workers.clear();
        self.jobs.remove(namespace);
        // Also if the next job of the name begins in this step.
        self.note_change(|| Change::Job(namespace.to_owned(), None));
        // Those are of its workers, not of the next job of its name.
        self.losses.retain(|_, loss| loss.namespace != namespace);
        // No worker repeats a request to release one.
        let mut released = Vec::new();
        for (&id, table) in &mut self.tables {
            if table.namespace == namespace && std::mem::take(&mut table.awaits_asker) {
                released.push(id);
            }
        }
        released.into_iter().for_each(|id| self.end_release(id));
        for id in self.observers(namespace) {
            let reason = over.text.clone();
            self.actions
                .push(Action::Notify(id, Notice::Shutdown { reason }));
        }
        self.end_at_servers(namespace, nobody);
    }

    /// Releases all tables of a job that are not being released yet. Requests that wait for them are refused with
    /// `why`.
    pub(super) fn drop_tables(&mut self, namespace: &str, why: &Refusal) {
        let servers = self.joined_servers();
        let mut left = Vec::new();
        for (&id, table) in &self.tables {
            if table.namespace == namespace && !matches!(table.stage, Stage::Releasing(_)) {
                left.push(id);
            }
        }
        for id in left {
            self.drop_table(id, servers.clone(), why);
        }
    }

    /// Orders all servers to end the sessions and clocks of a job that is over. `nobody` is its member list without
    /// workers. Until they have confirmed it, a new job of that name waits.
    pub(super) fn end_at_servers(&mut self, namespace: &str, nobody: Members) {
        let servers = self.joined_servers();
        self.last_ending += 1;
        let job = self.last_ending;
        for &number in &servers {
            // Its end replaces the notifications that were still due.
            if let Some(server) = self.servers.get_mut(&number) {
                server.unsent.retain(|name| name != namespace);
            }
            let (namespace, members, admitted) = (namespace.to_owned(), nobody.clone(), None);
            let order = Command::MembersChanged {
                namespace,
                members,
                admitted,
            };
            self.order(number, Purpose::EndJob(job), order);
        }
        let ending = EndingJob {
            namespace: namespace.to_owned(),
            // Those that have not returned, and successors, get the order then.
            missing: servers
                .into_iter()
                .chain(self.absent_servers())
                .chain(self.absent.keys().copied())
                .collect(),
            waiting: Vec::new(),
        };
        if !ending.missing.is_empty() {
            self.ending.insert(job, ending);
        }
    }

    /// Stops waiting for what only the memory of `server` has, which is gone: the clocks of lost workers, tables under
    /// release, sessions and clocks of jobs that are over.
    pub(super) fn forget_memory(&mut self, server: ServerId) {
        self.lose_without(server);
        self.release_without(server);
        self.let_go_without(server);
    }

    /// Stops waiting for `server`, which has ended, in all jobs that are over and of which it was to end sessions and
    /// clocks.
    pub(super) fn let_go_without(&mut self, server: ServerId) {
        for job in self.ending.keys().copied().collect::<Vec<_>>() {
            self.job_let_go(job, server);
        }
    }

    /// Notes that a server has released the ended job of number `job`, or has ended itself. After the last
    /// server the workers that wait for the next job of that name are admitted.
    pub(super) fn job_let_go(&mut self, job: u64, server: ServerId) {
        let Some(ending) = self.ending.get_mut(&job) else {
            return;
        };
        ending.missing.remove(&server);
        if ending.missing.is_empty()
            && let Some(ending) = self.ending.remove(&job)
        {
            // Workers that join now are of the job as it begins again.
            self.begun_again(&ending.namespace);
            for (asker, join) in ending.waiting {
                self.let_in(asker, &join);
            }
        }
    }
}
