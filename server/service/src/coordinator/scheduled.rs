//! Jobs that follow a membership schedule, and the record of membership changes of all jobs.

use std::collections::BTreeMap;

use tidewater_protocol::ids::{DomainId, ServerId, WorkerId};
use tidewater_protocol::limits::DOMAINS_MAX;
use tidewater_protocol::wire::control::{
    Command, CoordinatorAnswer, DomainClock, Members, Part, SlowMember, WorkerState,
};
use tidewater_protocol::wire::hello::{Hello, RANK_ANY};
use tidewater_protocol::wire::refusal::{Refusal, RefusalCode};

use super::jobs::{Job, Unscheduled, Worker};
use super::membership::{Event, Schedule, Stay, clock_of};
use super::state::{Action, Asker, Coordinator, PeerId, Purpose, bad};

/// Maximum number of stays of a schedule that a server is sent and has not confirmed: a server that reads no
/// orders is disconnected at a number of unsent bytes.
const STAYS_UNDER_WAY: usize = 64;

impl Coordinator {
    /// Makes the members of each job follow a schedule by namespace. The configured number of workers then
    /// has no effect.
    pub fn follow(&mut self, schedule: Schedule) {
        self.schedule = Some(schedule);
        self.config.workers = 0;
    }

    /// Records a membership change of a job for the membership log, which the event loop writes.
    pub(super) fn note(&mut self, namespace: &str, event: Event) {
        tracing::debug!(namespace, %event, "a change of members");
        self.actions.push(Action::Membership(event.line(namespace)));
    }

    /// Checks that the schedule, if there is one, has a stay (a join-to-leave interval) left for the namespace and
    /// rank of a connecting worker. Refuses the worker otherwise, also one that claims no rank.
    pub(super) fn check_scheduled(&self, hello: &Hello) -> Result<(), Refusal> {
        let Some(schedule) = &self.schedule else {
            return Ok(());
        };
        let refuse = |text: String| {
            let numbers = [u64::from(hello.rank), 0, 0, 0];
            Err(Refusal::new(RefusalCode::BadRequest, numbers).with_text(text))
        };
        let Some(stays) = schedule.jobs.get(&hello.namespace) else {
            let names: Vec<&str> = schedule.jobs.keys().map(String::as_str).collect();
            return refuse(format!(
                "namespace \"{}\" is not in the membership file, which has {}",
                hello.namespace,
                names.join(", ")
            ));
        };
        if hello.rank == RANK_ANY {
            return refuse("this job follows a membership file: give each worker its rank".into());
        }
        let rank = WorkerId(hello.rank);
        let begun = self
            .jobs
            .get(&hello.namespace)
            .and_then(|job| job.stays.get(&rank));
        let begun = begun.copied().unwrap_or_default();
        match stays.get(&rank) {
            Some(stays) if begun < stays.len() => Ok(()),
            Some(stays) => refuse(format!(
                "the membership file has {} stays of rank {rank}, and all have begun",
                stays.len()
            )),
            None => {
                let ranks: Vec<String> = stays.keys().take(16).map(|r| r.to_string()).collect();
                refuse(format!(
                    "rank {rank} is not in the membership file, which has {}",
                    ranks.join(", ")
                ))
            }
        }
    }

    /// Queues a worker's Join in a job with a schedule. It is answered when all servers have the schedule.
    pub(super) fn join_scheduled(&mut self, asker: Asker, namespace: &str) -> Result<(), Refusal> {
        let Some(job) = self.jobs.get_mut(namespace) else {
            return Err(bad("no such job"));
        };
        if job.waiting.iter().any(|a| a.peer == asker.peer) {
            return Err(bad("it has asked to join"));
        }
        job.waiting.push_back(asker);
        self.send_schedule(namespace);
        self.begin_stays(namespace);
        Ok(())
    }

    /// Sends the first `STAYS_UNDER_WAY` stays (join-to-leave intervals) of a job's schedule to all servers;
    /// the others follow as servers confirm. Does nothing before all servers have joined, or if they are sent
    /// already.
    pub(super) fn send_schedule(&mut self, namespace: &str) {
        let is_due = |job: &Job| job.unscheduled.is_none();
        if !self.is_complete() || !self.jobs.get(namespace).is_some_and(is_due) {
            return;
        }
        let Some(schedule) = &self.schedule else {
            return;
        };
        let stays = schedule.jobs.get(namespace).into_iter().flatten();
        let first = |(&rank, stays): (&WorkerId, &Vec<Stay>)| {
            let stays = stays.iter().map(move |stay| (rank, stay.first.clone()));
            stays.collect::<Vec<_>>()
        };
        let stays: Vec<_> = stays.flat_map(first).collect();
        let servers = self.joined_servers();
        self.last_schedule += 1;
        let number = self.last_schedule;
        if let Some(job) = self.jobs.get_mut(namespace) {
            job.unscheduled = Some(Unscheduled {
                number,
                left: stays.len() * servers.len(),
                stays,
                sent: BTreeMap::new(),
            });
        }
        for server in servers {
            for _ in 0..STAYS_UNDER_WAY {
                self.send_next_stay(namespace, server);
            }
        }
    }

    /// Sends a server the next stay of a job's schedule, if one is left.
    fn send_next_stay(&mut self, namespace: &str, server: ServerId) {
        let job = self.jobs.get_mut(namespace);
        let Some(unscheduled) = job.and_then(|job| job.unscheduled.as_mut()) else {
            return;
        };
        let sent = unscheduled.sent.entry(server).or_default();
        let Some(stay) = unscheduled.stays.get(*sent).cloned() else {
            return;
        };
        *sent += 1;
        let number = unscheduled.number;
        let order = Command::MembersChanged {
            namespace: namespace.to_owned(),
            members: self.members(namespace),
            admitted: Some(stay),
        };
        self.order(server, Purpose::Schedule(number), order);
    }

    /// Notes that a server has confirmed one stay (a join-to-leave interval) of the schedule `number`, and sends it the
    /// next one. After the last confirmation the waiting workers are answered.
    pub(super) fn stay_known(&mut self, number: u64, server: ServerId) {
        let of_it = |job: &&mut Job| job.unscheduled.as_ref().is_some_and(|u| u.number == number);
        let mut jobs = self.jobs.iter_mut();
        let Some((name, job)) = jobs.find(|(_, job)| of_it(job)) else {
            // The job is over.
            return;
        };
        let name = name.clone();
        if let Some(unscheduled) = &mut job.unscheduled {
            unscheduled.left = unscheduled.left.saturating_sub(1);
            if unscheduled.left == 0 {
                unscheduled.stays = Vec::new();
            }
        }
        self.send_next_stay(&name, server);
        self.begin_stays(&name);
    }

    /// Begins the stays (join-to-leave intervals) of the workers that wait to join, and answers their Joins;
    /// refuses a worker of a rank without a further stay. Does nothing before all servers have the schedule.
    fn begin_stays(&mut self, namespace: &str) {
        let is_known = |job: &Job| job.unscheduled.as_ref().is_some_and(|u| u.left == 0);
        let job = self.jobs.get_mut(namespace);
        let Some(job) = job.filter(|job| is_known(job) && !job.waiting.is_empty()) else {
            return;
        };
        for asker in std::mem::take(&mut job.waiting) {
            let Some(peer) = self.peers.get_mut(&asker.peer) else {
                continue;
            };
            let rank = WorkerId(peer.rank);
            let Some(job) = self.jobs.get_mut(namespace) else {
                return;
            };
            let begun = job.stays.entry(rank).or_default();
            let schedule = self.schedule.as_ref();
            let stays = schedule.and_then(|schedule| schedule.jobs.get(namespace));
            let stay = stays.and_then(|stays| stays.get(&rank)?.get(*begun));
            let Some(stay) = stay.cloned() else {
                let refusal = bad("the membership file has no further stay of this rank");
                self.answer(asker, CoordinatorAnswer::Refused(refusal));
                continue;
            };
            let is_repeated = *begun > 0;
            *begun += 1;
            peer.joined = true;
            job.late.remove(&rank);
            job.first.insert(rank, stay.first.clone());
            job.ended.remove(&rank);
            if is_repeated {
                self.send_stay_end(namespace, rank);
            }
            if let Some(worker) = self.worker(namespace, rank.0) {
                worker.state = WorkerState::Live;
            }
            self.revision += 1;
            if is_repeated {
                self.send_members(namespace, &self.members(namespace));
            }
            let clocks = stay.first.clone();
            self.note(namespace, Event::Join { rank, clocks });
            let joined = self.joined(rank.0, namespace, 0);
            self.answer(asker, joined);
        }
    }

    /// Orders servers to end the previous stay (join-to-leave interval) of a rank, before its next one begins.
    /// The pending notification of that end may have been replaced by a newer one.
    fn send_stay_end(&mut self, namespace: &str, rank: WorkerId) {
        let mut members = self.members(namespace);
        let ended = members.workers.iter_mut().find(|w| w.id == rank);
        if let Some(ended) = ended {
            ended.state = WorkerState::Finished;
        }
        self.send_members(namespace, &members);
    }

    fn send_members(&mut self, namespace: &str, members: &Members) {
        for server in self.joined_servers() {
            let order = Command::MembersChanged {
                namespace: namespace.to_owned(),
                members: members.clone(),
                admitted: None,
            };
            self.order(server, Purpose::Cleanup, order);
        }
    }

    /// Whether a job follows a schedule, all of its stays (join-to-leave intervals) have begun, and all its
    /// workers have ended.
    pub(super) fn has_followed_schedule(&self, namespace: &str) -> bool {
        let (Some(schedule), Some(job)) = (&self.schedule, self.jobs.get(namespace)) else {
            return false;
        };
        let begun = |rank| job.stays.get(rank).copied().unwrap_or_default();
        let mut stays = schedule.jobs.get(namespace).into_iter().flatten();
        let ended = |w: &Worker| matches!(w.state, WorkerState::Finished | WorkerState::Lost);
        stays.all(|(rank, stays)| begun(rank) == stays.len()) && job.workers.values().all(ended)
    }

    /// Logs the workers of a job that are slower than the others, as a worker reports them. An empty list
    /// means none.
    pub(super) fn log_slow(&self, namespace: &str, slow: &[SlowMember]) -> CoordinatorAnswer {
        if slow.is_empty() {
            tracing::info!(namespace, "no worker is slower than the others any more");
        }
        for &SlowMember {
            worker,
            step_us,
            median_us,
        } in slow
        {
            let process = self.launched_as(Part::Worker, worker.0);
            tracing::warn!(
                namespace,
                step_us,
                median_us,
                "worker {worker}{process} is slow: its steps take longer than those of the others"
            );
        }
        CoordinatorAnswer::Done
    }

    /// Handles a worker's announcement that it leaves after these ticks, and records it in the membership log.
    /// Refused if its schedule says other ticks.
    pub(super) fn leaving(
        &mut self,
        id: PeerId,
        clocks: &[DomainClock],
    ) -> Result<CoordinatorAnswer, Refusal> {
        let Some(peer) = self.peers.get(&id) else {
            return Err(bad("unknown peer"));
        };
        let (rank, namespace) = (WorkerId(peer.rank), peer.namespace.clone());
        self.check_end(&namespace, rank, clocks, "leaves")?;
        let clocks = clocks.to_vec();
        self.note(&namespace, Event::Leave { rank, clocks });
        Ok(CoordinatorAnswer::Done)
    }

    /// The schedule's stay (join-to-leave interval) that a worker has begun last; `None` without a schedule or a
    /// begun stay.
    pub(super) fn stay(&self, namespace: &str, rank: WorkerId) -> Option<&Stay> {
        let begun = self.jobs.get(namespace)?.stays.get(&rank)?;
        let stays = self.schedule.as_ref()?.jobs.get(namespace)?.get(&rank)?;
        stays.get(begun.checked_sub(1)?)
    }

    /// Checks the clocks at which a worker ends against those of its schedule. Refused if the clocks differ;
    /// `how` completes the error text. Accepts any clocks without a schedule, or if the stay has no end in it.
    pub(super) fn check_end(
        &self,
        namespace: &str,
        rank: WorkerId,
        clocks: &[DomainClock],
        how: &str,
    ) -> Result<(), Refusal> {
        let stay = self.stay(namespace, rank);
        let Some(last) = stay.and_then(|stay| stay.last.as_deref()) else {
            return Ok(());
        };
        let mut domains = (0..DOMAINS_MAX as u8).map(DomainId);
        let Some(domain) = domains.find(|&d| clock_of(last, d) != clock_of(clocks, d)) else {
            return Ok(());
        };
        let (due, at) = (clock_of(last, domain), clock_of(clocks, domain));
        let text = format!(
            "worker {rank} {how} after {at} ticks of domain {domain}; the membership file says {due}"
        );
        let numbers = [u64::from(rank.0), at, due, 0];
        Err(Refusal::new(RefusalCode::BadRequest, numbers).with_text(text))
    }
}
