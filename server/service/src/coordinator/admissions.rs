//! Workers that join a job while it runs: the tick with which each begins, the same at every applier.
//!
//! ```text
//! Join        -> HoldClocks to all servers  -> the furthest tick of each domain; no clock moves
//! first tick = the furthest of all appliers -> MembersChanged{admitted} to all servers: clocks go on
//! all have it -> Joined{clocks}
//! ```
//! While clocks are held no CLOCK frame is consumed. The first tick T of a domain is the furthest one that any
//! applier has consumed. So no member has ended iteration T anywhere: no minimum lies above T, and
//! no rank has been added to the sums of T. From the second order on, each applier waits for the new member
//! before it closes iteration T. One worker at a time is admitted to a job.

use std::collections::{BTreeMap, BTreeSet};

use tidewater_protocol::ids::{DomainId, ServerId, WorkerId};
use tidewater_protocol::wire::control::{
    Command, CommandReply, CoordinatorAnswer, DomainClock, WorkerState,
};
use tidewater_protocol::wire::refusal::{Refusal, RefusalCode};

use super::jobs::Job;
use super::membership::Event;
use super::recovery::ABSENT;
use super::state::{Asker, Coordinator, PeerId, Purpose, bad};

/// Admission of a worker to a running job: state between its Join request and the answer.
#[derive(Debug)]
pub(super) struct Admission {
    namespace: String,
    asker: Asker,
    rank: WorkerId,
    /// Highest tick of each domain that a server has reported.
    clocks: BTreeMap<DomainId, u64>,
    /// Servers that have not answered the current order.
    missing: BTreeSet<ServerId>,
    /// First clocks of the worker, once servers are ordered to admit it; `None` before.
    admitted: Option<Vec<DomainClock>>,
    /// Reason why the worker is refused, if it is.
    refused: Option<Refusal>,
    /// Whether the worker has already been sent the refusal.
    answered: bool,
}

impl Coordinator {
    /// Queues a worker for admission to its running job; the job's clocks have to stop for that. The
    /// coordinator answers its Join request when all servers have admitted it. Refused without such a job, or
    /// if the peer already waits or is being admitted.
    pub(super) fn queue_admission(&mut self, asker: Asker, namespace: &str) -> Result<(), Refusal> {
        let asks_again = |a: &Asker| a.peer == asker.peer;
        let under_way = self.admissions.values().map(|a| a.asker);
        let Some(job) = self.jobs.get_mut(namespace) else {
            return Err(bad("no such job"));
        };
        if under_way
            .chain(job.waiting.iter().copied())
            .any(|a| asks_again(&a))
        {
            return Err(bad("it has asked to join"));
        }
        job.waiting.push_back(asker);
        self.next_admission(namespace);
        Ok(())
    }

    /// Begins the admission of the worker that has waited longest: orders all servers to hold the job's clocks,
    /// so that they consume no tick until the admission ends. Does nothing while servers hold the clocks for
    /// another admission or a checkpoint, or a server is missing.
    pub(super) fn next_admission(&mut self, namespace: &str) {
        if !self.is_complete() {
            return;
        }
        let Some(job) = self.jobs.get_mut(namespace) else {
            return;
        };
        if job.admitting.is_some() {
            return;
        }
        let Some(asker) = job.waiting.pop_front() else {
            return;
        };
        let Some(peer) = self.peers.get(&asker.peer) else {
            return;
        };
        self.last_admission += 1;
        let number = self.last_admission;
        job.admitting = Some(number);
        let servers = self.joined_servers();
        let admission = Admission {
            namespace: namespace.to_owned(),
            asker,
            rank: WorkerId(peer.rank),
            clocks: BTreeMap::new(),
            missing: servers.iter().copied().collect(),
            admitted: None,
            refused: None,
            answered: false,
        };
        self.admissions.insert(number, admission);
        for server in servers {
            let namespace = namespace.to_owned();
            self.order(
                server,
                Purpose::Hold(number),
                Command::HoldClocks { namespace },
            );
        }
    }

    /// Handles a server's answer to the HoldClocks order of admission `number`: its clocks, which stand still
    /// now, or a refusal. After the last answer `Self::admit_worker` decides on the admission and orders all
    /// servers to let the clocks advance. The worker is answered when they have confirmed it.
    pub(super) fn clocks_held(&mut self, number: u64, server: ServerId, reply: CommandReply) {
        let Some(admission) = self.admissions.get_mut(&number) else {
            return;
        };
        admission.missing.remove(&server);
        match reply {
            CommandReply::Clocks(clocks) => {
                for DomainClock { domain, clock } in clocks {
                    let furthest = admission.clocks.entry(domain).or_default();
                    *furthest = clock.max(*furthest);
                }
            }
            CommandReply::Refused(refusal) => {
                admission.refused.get_or_insert(refusal);
            }
            _ => {
                let text = format!("server {server} answers HoldClocks with something else");
                admission.refused.get_or_insert(bad(&text));
            }
        }
        if admission.missing.is_empty() {
            self.admit_worker(number);
        }
    }

    /// Ends the hold of a job's clocks after all servers have answered, so that they consume ticks again.
    /// Admits the worker of admission `number`, unless a server refused, the worker's connection has ended, or
    /// the number of workers that it states does not fit.
    fn admit_worker(&mut self, number: u64) {
        let servers = self.joined_servers();
        let Some(admission) = self.admissions.get_mut(&number) else {
            return;
        };
        let (namespace, rank) = (admission.namespace.clone(), admission.rank);
        let Some(job) = self.jobs.get_mut(&namespace) else {
            // Its end has ended the hold.
            self.admissions.remove(&number);
            return;
        };
        if admission.refused.is_none() {
            let sized = match self.peers.get(&admission.asker.peer) {
                Some(peer) => size_job(job, admission, peer.workers),
                None => Err(bad("the worker has gone")),
            };
            admission.refused = sized.err();
        }
        admission.missing = servers.iter().copied().collect();
        let is_sized = job.expected() > 0;
        let mut admitted = None;
        if admission.refused.is_none() {
            let clock = |(&domain, &clock): (&DomainId, &u64)| DomainClock { domain, clock };
            let mut clocks: Vec<DomainClock> = admission.clocks.iter().map(clock).collect();
            Self::barrier_floor(job, &mut clocks);
            if let Some(worker) = job.workers.get_mut(&rank) {
                // From here on its end is the loss of a member.
                worker.state = WorkerState::Live;
            }
            job.late.remove(&rank);
            job.first.insert(rank, clocks.clone());
            // Each server has ended the one before: its orders are in order.
            job.ended.remove(&rank);
            admission.admitted = Some(clocks.clone());
            admitted = Some((rank, clocks));
            self.revision += 1;
        }
        if let Some((rank, clocks)) = &admitted {
            let (rank, clocks) = (*rank, clocks.clone());
            self.note(&namespace, Event::Join { rank, clocks });
        }
        if is_sized {
            self.refuse_member_barriers(&namespace);
        }
        self.order_admission(number, &namespace, admitted);
    }

    /// Orders all joined servers to let a job's clocks advance, with the new member `admitted` (rank and first
    /// clocks) if there is one.
    fn order_admission(
        &mut self,
        number: u64,
        namespace: &str,
        admitted: Option<(WorkerId, Vec<DomainClock>)>,
    ) {
        let members = self.members(namespace);
        for server in self.joined_servers() {
            let order = Command::MembersChanged {
                namespace: namespace.to_owned(),
                members: members.clone(),
                admitted: admitted.clone(),
            };
            self.order(server, Purpose::Admit(number), order);
        }
    }

    /// Rank and first clocks of the worker of an admission; `None` before the servers are ordered to admit it,
    /// if it is refused, or without such an admission.
    pub(super) fn admitted(&self, number: u64) -> Option<(WorkerId, Vec<DomainClock>)> {
        let admission = self.admissions.get(&number)?;
        Some((admission.rank, admission.admitted.clone()?))
    }

    /// Restores an admission that a restart of the coordinator has interrupted: some servers may already have
    /// admitted the worker, at its first clocks `clocks`. `Self::order_admissions` repeats the orders later.
    pub(super) fn resume_admission(
        &mut self,
        namespace: &str,
        rank: WorkerId,
        clocks: Vec<DomainClock>,
    ) {
        self.last_admission += 1;
        let number = self.last_admission;
        if let Some(job) = self.jobs.get_mut(namespace) {
            job.admitting = Some(number);
        }
        let admission = Admission {
            namespace: namespace.to_owned(),
            asker: Asker {
                peer: ABSENT,
                id: 0,
            },
            rank,
            clocks: BTreeMap::new(),
            missing: BTreeSet::new(),
            admitted: Some(clocks),
            refused: None,
            answered: false,
        };
        self.admissions.insert(number, admission);
    }

    /// Makes the interrupted admission of a worker answer `asker`, the Join of the returned worker. Returns
    /// whether such an admission exists.
    pub(super) fn take_over_admission(
        &mut self,
        namespace: &str,
        rank: WorkerId,
        asker: Asker,
    ) -> bool {
        let mut admissions = self.admissions.values_mut();
        let own = admissions.find(|a| a.namespace == namespace && a.rank == rank);
        own.map(|admission| admission.asker = asker).is_some()
    }

    /// Sends the admission orders of interrupted admissions again, once all servers are back after a restart
    /// of the coordinator.
    pub(super) fn order_admissions(&mut self) {
        let servers: BTreeSet<ServerId> = self.joined_servers().into_iter().collect();
        let interrupted = self.admissions.iter_mut();
        let interrupted = interrupted.filter(|(_, a)| a.admitted.is_some() && a.missing.is_empty());
        let mut orders = Vec::new();
        for (&number, admission) in interrupted {
            admission.missing.clone_from(&servers);
            let admitted = admission
                .admitted
                .clone()
                .map(|clocks| (admission.rank, clocks));
            orders.push((number, admission.namespace.clone(), admitted));
        }
        for (number, namespace, admitted) in orders {
            self.order_admission(number, &namespace, admitted);
        }
    }

    /// Handles a server's answer that it lets the job's clocks advance. After the last one the worker's Join is
    /// answered, member notifications that waited are sent, and the next admission begins.
    pub(super) fn clocks_go_on(&mut self, number: u64, server: ServerId, reply: CommandReply) {
        let Some(admission) = self.admissions.get_mut(&number) else {
            return;
        };
        admission.missing.remove(&server);
        if let CommandReply::Refused(refusal) = reply {
            admission.refused.get_or_insert(refusal);
        }
        if !admission.missing.is_empty() {
            return;
        }
        let Some(Admission {
            namespace,
            asker,
            rank,
            refused,
            answered,
            ..
        }) = self.admissions.remove(&number)
        else {
            return;
        };
        match refused {
            Some(_) if answered => {}
            Some(refusal) => self.answer(asker, CoordinatorAnswer::Refused(refusal)),
            None => {
                if let Some(peer) = self.peers.get_mut(&asker.peer) {
                    peer.joined = true;
                }
                let expected = self.jobs.get(&namespace).map_or(0, Job::expected);
                let joined = self.joined(rank.0, &namespace, expected);
                self.answer(asker, joined);
            }
        }
        self.end_admission(&namespace, number);
        // Notifications that waited for the clocks.
        for server in self.joined_servers() {
            self.tell_again(server, &namespace);
        }
        self.next_admission(&namespace);
    }

    /// Removes a peer from the admission queues of all jobs. An admission under way is not stopped.
    pub(super) fn leave_queue(&mut self, id: PeerId) {
        for job in self.jobs.values_mut() {
            job.waiting.retain(|asker| asker.peer != id);
        }
    }

    /// Removes the workers that wait for admission to a job that fails or ends. Returns their Join requests, for the
    /// caller to refuse. An admission under way is marked as refused and answered, and its request returned too.
    pub(super) fn drop_admissions(&mut self, namespace: &str) -> Vec<Asker> {
        let mut askers: Vec<Asker> = match self.jobs.get_mut(namespace) {
            Some(job) => job.waiting.drain(..).collect(),
            None => Vec::new(),
        };
        for admission in self.admissions.values_mut() {
            if admission.namespace == namespace && admission.refused.is_none() {
                admission.refused = Some(bad("the job is over"));
                admission.answered = true;
                askers.push(admission.asker);
            }
        }
        askers
    }

    /// Ends the admissions that wait for an answer of the lost `server`, or have not ordered any server to
    /// admit yet. Their workers are refused, although other servers may have admitted them.
    pub(super) fn admit_without(&mut self, server: ServerId) {
        // Until the order to admit, its answer is one to HoldClocks.
        let waits = |a: &Admission| a.admitted.is_none() || a.missing.contains(&server);
        let those = self.admissions.iter().filter(|(_, a)| waits(a));
        for number in those.map(|(&n, _)| n).collect::<Vec<_>>() {
            let Some(admission) = self.admissions.remove(&number) else {
                continue;
            };
            self.end_admission(&admission.namespace, number);
            if !admission.answered {
                let text = format!("server {server} was lost while it admitted this worker");
                let refusal = CoordinatorAnswer::Refused(bad(&text));
                self.answer(admission.asker, refusal);
            }
        }
    }

    /// Clears a job's current admission, if it is this one.
    fn end_admission(&mut self, namespace: &str, number: u64) {
        let job = self.jobs.get_mut(namespace);
        if let Some(job) = job.filter(|job| job.admitting == Some(number)) {
            job.admitting = None;
        }
    }
}

/// Makes `workers`, the number that the worker under admission states, the size of its job; 0 changes nothing.
/// Refused if the job has another size, or has open size and a worker that has ticked: ranks that have not
/// joined would be awaited from clock 0 on.
fn size_job(job: &mut Job, admission: &Admission, workers: u32) -> Result<(), Refusal> {
    let ticked = admission.clocks.iter().find(|&(_, &clock)| clock > 0);
    if workers > 0
        && job.expected() == 0
        && let Some((&domain, &at)) = ticked
    {
        let text = format!(
            "this job is of open size and at tick {at} of domain {domain}; join it without workers=N \
             (TIDEWATER_WORKERS), not with {workers}"
        );
        let numbers = [u64::from(workers), at, u64::from(domain.0), 0];
        return Err(Refusal::new(RefusalCode::BadRequest, numbers).with_text(text));
    }
    job.expect(admission.rank, workers)
}
