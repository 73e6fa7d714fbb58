//! Cluster membership: admission, the member list, change notifications.

use std::collections::{BTreeSet, VecDeque};

use tidewater_protocol::ids::{Incarnation, ServerId, WorkerId};
use tidewater_protocol::limits::{JOBS_MAX, OBSERVERS_MAX};
use tidewater_protocol::mutants::{self, Mutant};
use tidewater_protocol::wire::control::{
    Command, CoordinatorAnswer, Join, Joined, Members, Part, ServerMember, WorkerState,
};
use tidewater_protocol::wire::hello::{Hello, RANK_ANY, Role};
use tidewater_protocol::wire::refusal::{Refusal, RefusalCode};

use super::jobs::{Job, Worker};
use super::membership::Event;
use super::recovery::ABSENT;
use super::state::{Asker, Coordinator, Lifetime, Peer, PeerId, Purpose, Server, bad};

impl Coordinator {
    /// Checks whether an authenticated peer may connect. Changes nothing.
    ///
    /// # Errors
    /// The refusal that the peer gets.
    pub fn admit(&self, hello: &Hello) -> Result<(), Refusal> {
        self.admit_to_gathering(hello.role)?;
        self.check_running()?;
        match hello.role {
            Role::Server => self.server_for(hello.rank).map(|_| ()),
            Role::Worker => self.worker_for(hello).map(|_| ()),
            Role::Observer => self.observer_for(hello).map(|_| ()),
            Role::Coordinator | Role::Admin => Ok(()),
        }
    }

    /// Registers the connection of an admitted peer and reserves its rank, except the rank of a worker that may
    /// return after a restart of the coordinator: its Join decides. Does nothing if the rank is not available
    /// any more.
    pub fn connected(&mut self, id: PeerId, hello: &Hello) {
        let rank = match hello.role {
            Role::Server => self.server_for(hello.rank).ok().map(|number| {
                let server = Server {
                    peer: id,
                    member: None,
                    sending: false,
                    unsent: VecDeque::new(),
                    pid: 0,
                    restarts: 0,
                    is_kept: false,
                };
                self.servers.insert(number, server);
                number.0
            }),
            Role::Worker => self.worker_for(hello).ok().map(|rank| {
                let workers = self.config.workers;
                let job = self.jobs.entry(hello.namespace.clone());
                let worker = Worker {
                    state: WorkerState::Expected,
                    peer: Some(id),
                    incarnation: Incarnation(0),
                };
                let job = job.or_insert_with(|| Job::new(workers));
                let before = job.workers.get(&rank).copied();
                // The rank of a worker that may return is decided by the Join.
                let is_absent = before.is_some_and(|w| w.peer == Some(ABSENT));
                if !is_absent {
                    job.workers.insert(rank, worker);
                }
                if !is_absent && before.is_some_and(|w| w.state != WorkerState::Expected) {
                    job.late.insert(rank);
                }
                rank.0
            }),
            Role::Observer => self.observer_for(hello).ok().map(|rank| rank.0),
            Role::Coordinator | Role::Admin => Some(RANK_ANY),
        };
        if let Some(rank) = rank {
            let (role, namespace) = (hello.role, hello.namespace.clone());
            let peer = Peer {
                role,
                rank,
                namespace,
                joined: false,
                open: BTreeSet::new(),
                workers: 0,
                leaving: false,
            };
            self.peers.insert(id, peer);
        }
        self.touch();
    }

    /// Handles a peer's Join request. `None` if it is answered apart: already, as for a server or a returned
    /// worker, or later, as for a worker that waits until servers have released an earlier job of its name.
    pub(super) fn join(
        &mut self,
        asker: Asker,
        join: Join,
    ) -> Result<Option<CoordinatorAnswer>, Refusal> {
        let Some(peer) = self.peers.get(&asker.peer) else {
            return Err(bad("unknown peer"));
        };
        if peer.role == Role::Server {
            return self.join_server(asker, join).map(|()| None);
        }
        let (namespace, peer_rank) = (peer.namespace.clone(), peer.rank);
        if peer.role == Role::Observer {
            return self.join_observer(asker.peer, &namespace).map(Some);
        }
        if self.rejoin_worker(asker, &join)? {
            return Ok(None);
        }
        let rank = WorkerId(peer_rank);
        let taken_by = self.worker(&namespace, rank.0).and_then(|w| w.peer);
        if taken_by != Some(asker.peer) && !join.returns {
            // It reserved the rank of a worker that had not returned, which has it now or is lost.
            let text =
                "it was that of a worker that had not returned since the coordinator was restarted";
            let numbers = [u64::from(rank.0), 0, 0, 0];
            return Err(Refusal::new(RefusalCode::RankTaken, numbers).with_text(text));
        }
        if join.returns && !mutants::on(Mutant::LostWorkerReturns) {
            let numbers = [u64::from(rank.0), 0, 0, 0];
            let text = "this worker counts as lost: it did not return in time to a coordinator that was \
                        restarted, or its job is over";
            return Err(Refusal::new(RefusalCode::PeerFailed, numbers).with_text(text));
        }
        self.forget_answers(&namespace, rank);
        if let Some(worker) = self.worker(&namespace, rank.0) {
            worker.incarnation = join.incarnation;
        }
        let mut ending = self.ending.values_mut();
        let Some(ending) = ending.find(|ending| ending.namespace == namespace) else {
            return self.join_worker(asker, &join);
        };
        let is_it = |(other, _): &(Asker, Join)| other.peer == asker.peer;
        if ending.waiting.iter().any(is_it) {
            return Err(bad("it has asked to join"));
        }
        ending.waiting.push((asker, join));
        Ok(None)
    }

    /// Joins a worker after its Join request had to wait, for the release of an earlier job of that name or for
    /// a resume. Answers the request, unless it has to wait again.
    pub(super) fn let_in(&mut self, asker: Asker, join: &Join) {
        match self.join_worker(asker, join) {
            Ok(Some(joined)) => self.answer(asker, joined),
            Ok(None) => {}
            Err(refusal) => self.answer(asker, CoordinatorAnswer::Refused(refusal)),
        }
    }

    /// Joins a worker to its job. `None` if it is answered later, when all servers have admitted it: in a job
    /// of unknown size, in place of an ended worker, during a resume, or with a schedule.
    fn join_worker(
        &mut self,
        asker: Asker,
        join: &Join,
    ) -> Result<Option<CoordinatorAnswer>, Refusal> {
        let is_scheduled = self.schedule.is_some();
        let namespace = self
            .peers
            .get(&asker.peer)
            .map(|peer| peer.namespace.clone());
        if let Some(namespace) = namespace
            && self.waits_for_resume(asker, &namespace, join)?
        {
            return Ok(None);
        }
        let Some(peer) = self.peers.get_mut(&asker.peer) else {
            return Err(bad("unknown peer"));
        };
        let (rank, namespace) = (peer.rank, peer.namespace.clone());
        let Some(job) = self.jobs.get_mut(&namespace) else {
            return Err(bad("no such job"));
        };
        if is_scheduled {
            return self.join_scheduled(asker, &namespace).map(|()| None);
        }
        job.check_size(WorkerId(rank), join.workers)?;
        if job.expected() == 0 && !job.first.is_empty() {
            // Decided by the clocks, while they are held.
            peer.workers = join.workers;
            return self.queue_admission(asker, &namespace).map(|()| None);
        }
        job.expect(WorkerId(rank), join.workers)?;
        if job.expected() == 0 || job.late.contains(&WorkerId(rank)) {
            return self.queue_admission(asker, &namespace).map(|()| None);
        }
        peer.joined = true;
        if let Some(worker) = job.workers.get_mut(&WorkerId(rank)) {
            worker.state = WorkerState::Live;
        }
        let expected = job.expected();
        self.launched_joins(Part::Worker, rank);
        self.revision += 1;
        let (rank, clocks) = (WorkerId(rank), Vec::new());
        self.note(&namespace, Event::Join { rank, clocks });
        Ok(Some(self.joined(rank.0, &namespace, expected)))
    }

    /// Joins an observer to a job. Servers and workers are not notified.
    fn join_observer(&mut self, id: PeerId, namespace: &str) -> Result<CoordinatorAnswer, Refusal> {
        let Some(peer) = self.peers.get_mut(&id) else {
            return Err(bad("unknown peer"));
        };
        peer.joined = true;
        let rank = peer.rank;
        let job = self.jobs.get(namespace);
        let expected = job.map_or(self.config.workers, Job::expected);
        Ok(self.joined(rank, namespace, expected))
    }

    /// Connections of the observers of a job.
    pub(super) fn observers(&self, namespace: &str) -> Vec<PeerId> {
        let those = self.peers.iter();
        let those = those.filter(|(_, p)| p.role == Role::Observer && p.namespace == namespace);
        those.map(|(&id, _)| id).collect()
    }

    /// Chooses the rank of a new observer: the lowest free one in the observers' range. Refused if the observer
    /// asks for a rank, or its job has failed. In a service the job must exist, since nothing would release
    /// what servers keep for a job that never begins.
    fn observer_for(&self, hello: &Hello) -> Result<WorkerId, Refusal> {
        if hello.rank != RANK_ANY {
            let text = format!(
                "an observer has no rank, and this one asks for {}",
                hello.rank
            );
            return Err(bad(&text));
        }
        match self.jobs.get(&hello.namespace) {
            Some(job) => job.failed.clone().map_or(Ok(()), Err)?,
            None if self.config.lifetime == Lifetime::Service => {
                let text = format!(
                    "no job is in namespace \"{}\" now; start its workers before an observer",
                    hello.namespace
                );
                return Err(bad(&text));
            }
            None => {}
        }
        let observers = self.peers.values().filter(|p| p.role == Role::Observer);
        let taken: BTreeSet<u32> = observers.map(|p| p.rank).collect();
        let mut ranks = (0..OBSERVERS_MAX).map(WorkerId::of_observer);
        let free = ranks.find(|rank| !taken.contains(&rank.0));
        let most = u64::from(OBSERVERS_MAX);
        let refusal = Refusal::new(RefusalCode::TooMany, [most + 1, most, 0, 0]);
        free.ok_or_else(|| refusal.with_text("observers"))
    }

    /// Joins a server to the cluster and answers it, before it gets the orders that follow from its join. A
    /// server without appliers is refused.
    fn join_server(&mut self, asker: Asker, join: Join) -> Result<(), Refusal> {
        if join.appliers == 0 {
            return Err(bad("a server without appliers"));
        }
        let Some(peer) = self.peers.get_mut(&asker.peer) else {
            return Err(bad("unknown peer"));
        };
        peer.joined = true;
        let (number, namespace) = (ServerId(peer.rank), peer.namespace.clone());
        let has_returned = self.server_returns(number, &join);
        // The loss of the one before may end the cluster.
        self.check_running()?;
        self.launched_joins(Part::Server, number.0);
        self.revision += 1;
        let (incarnation, kept) = (join.incarnation, join.kept);
        if let Some(server) = self.servers.get_mut(&number) {
            (server.pid, server.restarts) = (join.pid, join.restarts);
            server.is_kept = kept.is_some();
            server.member = Some(ServerMember {
                id: number,
                incarnation: join.incarnation,
                host: join.host,
                host_id: join.host_id,
                endpoints: join.endpoints,
                appliers: join.appliers,
            });
        }
        let joined = self.joined(number.0, &namespace, self.config.workers);
        self.answer(asker, joined);
        if has_returned {
            self.catch_up(number);
            self.resume_again(number);
        }
        self.successor_joined(number, incarnation, kept);
        self.server_joined(number);
        Ok(())
    }

    pub(super) fn joined(
        &self,
        rank: u32,
        namespace: &str,
        workers_expected: u32,
    ) -> CoordinatorAnswer {
        let job = self.jobs.get(namespace);
        let first = job.and_then(|job| job.first.get(&WorkerId(rank)));
        CoordinatorAnswer::Joined(Joined {
            rank,
            servers_expected: self.config.servers,
            workers_expected,
            clocks: first.cloned().unwrap_or_default(),
            members: self.members(namespace),
            checkpoints: self.checkpoint.is_some(),
            resumed: job
                .and_then(|job| job.durable.as_ref())
                .and_then(|durable| durable.resumed.clone()),
            ends: self
                .stay(namespace, WorkerId(rank))
                .filter(|stay| stay.is_lost)
                .and_then(|stay| stay.last.clone()),
        })
    }

    /// Follows up a server's join: notifies it of workers that have ended. When all servers have joined,
    /// creates waiting tables, loads functions, resumes jobs, begins admissions, sends schedules and continues
    /// what waited for servers to return.
    fn server_joined(&mut self, number: ServerId) {
        let ended = |w: &Worker| matches!(w.state, WorkerState::Finished | WorkerState::Lost);
        let jobs = self.jobs.iter();
        let of_note = jobs.filter(|(_, job)| job.workers.values().any(ended));
        for namespace in of_note.map(|(name, _)| name.clone()).collect::<Vec<_>>() {
            self.announce_members(number, &namespace);
        }
        if self.is_complete() {
            self.make_waiting_tables();
            self.order_next_load();
            self.resume_waiting();
            for namespace in self.jobs.keys().cloned().collect::<Vec<_>>() {
                self.next_admission(&namespace);
                self.send_schedule(&namespace);
            }
            self.servers_are_back();
        }
    }

    pub(super) fn server_for(&self, asked: u32) -> Result<ServerId, Refusal> {
        let is_free = |number: &ServerId| !self.servers.contains_key(number);
        let is_left = |number: &ServerId| is_free(number) && !self.may_return(*number);
        let end = self.config.servers;
        let numbers = [u64::from(asked), 0, 0, 0];
        let found = match asked {
            RANK_ANY => (0..end).map(ServerId).find(is_left),
            asked => Some(ServerId(asked)).filter(|number| number.0 < end && is_free(number)),
        };
        found.ok_or_else(|| {
            let text = format!("this cluster has servers 0 to {}", end.saturating_sub(1));
            Refusal::new(RefusalCode::RankTaken, numbers).with_text(text)
        })
    }

    pub(super) fn worker_for(&self, hello: &Hello) -> Result<WorkerId, Refusal> {
        let job = self.jobs.get(&hello.namespace);
        let worker = job.and_then(|job| job.workers.get(&WorkerId(hello.rank)));
        if worker.is_some_and(|worker| worker.peer == Some(ABSENT)) {
            return Ok(WorkerId(hello.rank));
        }
        self.check_scheduled(hello)?;
        if let Some(job) = job {
            return job
                .failed
                .clone()
                .map_or_else(|| job.rank_for(hello.rank), Err);
        }
        if self.jobs.len() == JOBS_MAX {
            let most = JOBS_MAX as u64;
            let refusal = Refusal::new(RefusalCode::TooMany, [most + 1, most, 0, 0]);
            return Err(refusal.with_text("jobs at a time"));
        }
        Job::new(self.config.workers).rank_for(hello.rank)
    }

    /// Whether all servers of the cluster are members now: a lost server is missing until a successor has joined.
    pub(super) fn is_complete(&self) -> bool {
        let joined = self
            .servers
            .values()
            .filter(|server| server.member.is_some());
        joined.count() == self.config.servers as usize
    }

    /// Number of applier threads of each joined server, in order of server numbers.
    pub(super) fn appliers(&self) -> Vec<u16> {
        let members = self
            .servers
            .values()
            .filter_map(|server| server.member.as_ref());
        members.map(|member| member.appliers).collect()
    }

    pub(super) fn joined_servers(&self) -> Vec<ServerId> {
        let joined = self
            .servers
            .iter()
            .filter(|(_, server)| server.member.is_some());
        joined.map(|(&number, _)| number).collect()
    }

    pub(super) fn members(&self, namespace: &str) -> Members {
        let servers = self
            .servers
            .values()
            .filter_map(|server| server.member.clone());
        Members {
            epoch: self.epoch,
            revision: self.revision,
            servers: servers.collect(),
            workers: match self.jobs.get(namespace) {
                Some(job) => job.members(),
                None => Job::new(self.config.workers).members(),
            },
        }
    }

    /// Notifies a server of a job's members. One notification is under way at a time for each server; later changes
    /// are sent when it is answered and no clocks are held (stopped for an admission or checkpoint).
    pub(super) fn announce_members(&mut self, number: ServerId, namespace: &str) {
        let members = self.members(namespace);
        // A worker that is removed moves clocks, which are held.
        let held = self.holds_clocks(namespace);
        let Some(server) = self.servers.get_mut(&number) else {
            return;
        };
        if server.sending || held {
            if !server.unsent.iter().any(|name| name == namespace) {
                server.unsent.push_back(namespace.to_owned());
            }
            return;
        }
        server.sending = true;
        let (namespace, admitted) = (namespace.to_owned(), None);
        let order = Command::MembersChanged {
            namespace,
            members,
            admitted,
        };
        self.order(number, Purpose::Members, order);
    }

    pub(super) fn members_sent(&mut self, number: ServerId) {
        let Some(server) = self.servers.get_mut(&number) else {
            return;
        };
        server.sending = false;
        let unsent = server.unsent.clone();
        if let Some(namespace) = unsent.iter().find(|name| !self.holds_clocks(name)) {
            self.tell_again(number, namespace);
        }
    }

    /// Sends a server the pending member notification of a job. It stays pending while another one is under way
    /// or the job's clocks are held. Does nothing if none is pending.
    pub(super) fn tell_again(&mut self, number: ServerId, namespace: &str) {
        let Some(server) = self
            .servers
            .get_mut(&number)
            .filter(|server| !server.sending)
        else {
            return;
        };
        if let Some(at) = server.unsent.iter().position(|name| name == namespace) {
            server.unsent.remove(at);
            self.announce_members(number, namespace);
        }
    }

    /// Whether servers hold the clocks of a job, for an admission or a checkpoint.
    fn holds_clocks(&self, namespace: &str) -> bool {
        let job = self.jobs.get(namespace);
        job.is_some_and(|job| job.admitting.is_some())
    }

    pub(super) fn worker(&mut self, namespace: &str, rank: u32) -> Option<&mut Worker> {
        self.jobs
            .get_mut(namespace)?
            .workers
            .get_mut(&WorkerId(rank))
    }
}
