//! Barriers of a job: arrivals, and the members that a barrier without a count waits for.
//!
//! Members change at ticks, and so do the workers of a barrier. A worker states the clocks of the domains in which
//! it waits for others. A barrier of members waits for those that have begun at these clocks: in a job with a
//! schedule those of the schedule, also before they have connected; otherwise those that are live. A worker that
//! ends is awaited no more.
//!
//! [`Coordinator::barrier_floor`] is the other half: a worker that is admitted later begins above the clocks of all
//! barriers that have opened. So two workers never disagree about a barrier: each begins below its clocks, and is
//! awaited, or above, and does not come. Barriers without clocks (ASP) are of the workers that are live.

use std::time::Duration;

use tidewater_protocol::ids::WorkerId;
use tidewater_protocol::mutants::{self, Mutant};
use tidewater_protocol::wire::control::{
    CoordinatorAnswer, DomainClock, MemberBarrier, WorkerState,
};
use tidewater_protocol::wire::hello::RANK_ANY;
use tidewater_protocol::wire::refusal::{Refusal, RefusalCode};

use super::barriers::{At, Opens, Outcome, Settled, Waiter, at_of};
use super::jobs::{Job, Worker};
use super::membership::{Stay, clock_of};
use super::state::{Asker, Coordinator, bad};

/// Arrival of a worker at a barrier.
pub(super) struct Arrival {
    /// Name of the barrier.
    pub(super) name: String,
    /// The workers that it waits for.
    pub(super) opens: Opens,
    /// Clocks at which the workers have to be; empty for a barrier with a count.
    pub(super) at: At,
    /// Number that the worker gives the barrier among those of its name; 0 for a barrier with a count.
    pub(super) round: u64,
    /// Time that the worker waits.
    pub(super) timeout_ms: u64,
}

impl Arrival {
    /// Makes the arrival at a barrier that opens when any `count` workers have arrived. If `count` is the job's
    /// number of workers, the barrier does not wait for ended ones.
    pub(super) fn of_count(name: String, count: u32, timeout_ms: u64) -> Self {
        Self {
            name,
            opens: Opens::Count(count),
            at: At::new(),
            round: 0,
            timeout_ms,
        }
    }

    /// Makes the arrival at a barrier that opens when all members of the job at its clocks, or those that it lists,
    /// have arrived.
    ///
    /// # Errors
    /// A clock or the round is above `i64::MAX`.
    pub(super) fn of_members(barrier: MemberBarrier) -> Result<Self, Refusal> {
        let MemberBarrier {
            name,
            clocks,
            round,
            of,
            timeout_ms,
        } = barrier;
        // Above them later workers begin, and rounds are counted on from them.
        let most = clocks.iter().map(|at| at.clock).fold(round, u64::max);
        if most > i64::MAX as u64 {
            return Err(bad(&format!(
                "barrier \"{name}\": a clock or round of {most}"
            )));
        }
        Ok(Self {
            name,
            opens: Opens::Members(of),
            at: at_of(&clocks),
            round,
            timeout_ms,
        })
    }
}

/// Refusal for `worker`, which is at a barrier of members although its job has a known number of workers,
/// `size`. Workers that know the number wait at barriers with that count, and the two kinds of barriers never
/// meet.
fn unsized_at(name: &str, worker: WorkerId, size: u32) -> Refusal {
    bad(&format!(
        "barrier \"{name}\": this job has {size} workers by the word of one that has joined later than worker {worker}, \
         which does not know it; say it in every process (workers={size}, TIDEWATER_WORKERS={size}) or in none"
    ))
}

impl Coordinator {
    /// Handles a worker's arrival at the barrier of a name, condition and clocks. `arrival.round` goes to the
    /// other workers; the wait times out after `arrival.timeout_ms`. The worker is answered when the barrier
    /// opens or fails, or the wait times out. Refused if the worker is not live, or at a barrier of members in
    /// a job of known size.
    pub(super) fn barrier(
        &mut self,
        asker: Asker,
        namespace: &str,
        arrival: Arrival,
    ) -> Result<(), Refusal> {
        let Arrival {
            name,
            opens,
            at,
            round,
            timeout_ms,
        } = arrival;
        let peer = self.peers.get(&asker.peer);
        let worker = WorkerId(peer.map_or(RANK_ANY, |peer| peer.rank));
        let waiter = Waiter {
            worker,
            asker,
            deadline: self.now.saturating_add(Duration::from_millis(timeout_ms)),
            round,
        };
        let Some(job) = self.jobs.get_mut(namespace) else {
            return Err(bad("no such job"));
        };
        let state = job.workers.get(&worker).map(|w| w.state);
        if state != Some(WorkerState::Live) {
            let text = format!("barrier \"{name}\": worker {worker} has left its job");
            return Err(bad(&text));
        }
        if job.expected() > 0 && matches!(opens, Opens::Members(_)) {
            return Err(unsized_at(&name, worker, job.expected()));
        }
        job.barriers.arrive(&name, opens, at, waiter)?;
        self.settle_barriers(namespace);
        Ok(())
    }

    /// Answers the workers at the barriers of a job that open or fail now. Called after a worker has arrived at
    /// a barrier or has ended.
    pub(super) fn settle_barriers(&mut self, namespace: &str) {
        let Some(job) = self.jobs.get_mut(namespace) else {
            return;
        };
        let mut barriers = std::mem::take(&mut job.barriers);
        let settled =
            barriers.settle(|opens, at, present| self.outcome(namespace, opens, at, present));
        let Some(job) = self.jobs.get_mut(namespace) else {
            return;
        };
        job.barriers = barriers;
        let (departed, numbers) = job.departed();
        for barrier in settled {
            let text = format!(
                "barrier \"{}\" waits for {}, and fewer are left of its job; these have left: {departed}",
                barrier.name, barrier.opens
            );
            let refusal = Refusal::new(RefusalCode::BadRequest, numbers).with_text(text);
            if barrier.opened {
                self.open_barrier(namespace, &barrier);
                continue;
            }
            for waiter in barrier.waiting {
                self.answer(waiter.asker, CoordinatorAnswer::Refused(refusal.clone()));
            }
        }
    }

    /// Refuses the workers at the barriers of members of a job that now has a known number of workers: workers
    /// that know it wait at barriers with that count.
    pub(super) fn refuse_member_barriers(&mut self, namespace: &str) {
        let Some(job) = self.jobs.get_mut(namespace) else {
            return;
        };
        let size = job.expected();
        for (name, waiter) in job.barriers.take_of_members() {
            let refusal = unsized_at(&name, waiter.worker, size);
            self.answer(waiter.asker, CoordinatorAnswer::Refused(refusal));
        }
    }

    fn open_barrier(&mut self, namespace: &str, barrier: &Settled) {
        let result = match barrier.opens {
            Opens::Count(_) => tidewater_journal::Outcome::Done,
            Opens::Members(_) => tidewater_journal::Outcome::Arrivals(barrier.arrivals()),
        };
        let is_open = self.schedule.is_none() && !mutants::on(Mutant::BarrierForLatecomers);
        if let Some(job) = self.jobs.get_mut(namespace).filter(|_| is_open) {
            for (&domain, &clock) in &barrier.at {
                let floor = job.floor.entry(domain).or_default();
                *floor = (clock + 1).max(*floor);
            }
            self.touch();
        }
        for waiter in &barrier.waiting {
            let subject = format!("barrier {}", barrier.name);
            self.answer_once(waiter.asker, subject, result.clone());
        }
    }

    /// Raises `clocks`, the first clocks of a worker under admission, above the clocks of all opened barriers
    /// of members: the worker was no member there. `clocks` are the furthest clocks of the job, and each rises
    /// by at most one tick: a barrier's clocks are not higher, since its workers have sent their ticks before.
    /// Each tick below the first clock is one that appliers close. Adds the domains that `clocks` lacks.
    pub(super) fn barrier_floor(job: &Job, clocks: &mut Vec<DomainClock>) {
        for (&domain, &floor) in &job.floor {
            let floor = floor.min(clock_of(clocks, domain).saturating_add(1));
            match clocks.iter_mut().find(|at| at.domain == domain) {
                Some(at) => at.clock = floor.max(at.clock),
                None => clocks.push(DomainClock {
                    domain,
                    clock: floor,
                }),
            }
        }
    }

    fn outcome(&self, namespace: &str, opens: &Opens, at: &At, present: &[WorkerId]) -> Outcome {
        let Some(job) = self.jobs.get(namespace) else {
            return Outcome::Fails;
        };
        let of = match opens {
            Opens::Count(count) => return job.barrier(*count, present),
            Opens::Members(of) => of,
        };
        let absent = self.absent(namespace, of, at, present);
        let is_live = |rank| {
            job.workers
                .get(rank)
                .is_some_and(|w| w.state == WorkerState::Live)
        };
        match absent.is_empty() {
            true => Outcome::Opens,
            // One of a list that has left does not come.
            false if !of.is_empty() && !absent.iter().all(is_live) => Outcome::Fails,
            false => Outcome::Waits,
        }
    }

    /// Workers that a barrier of members still waits for, without those in `present`. An empty `of` stands
    /// for all members at the barrier's clocks.
    fn absent(
        &self,
        namespace: &str,
        of: &[WorkerId],
        at: &At,
        present: &[WorkerId],
    ) -> Vec<WorkerId> {
        let mut awaited = match of.is_empty() {
            true => self.members_at(namespace, at),
            false => of.to_vec(),
        };
        awaited.retain(|rank| !present.contains(rank));
        awaited
    }

    /// Members of a job that have begun at these clocks and have not ended; with a schedule those of the
    /// schedule, also before they have connected.
    fn members_at(&self, namespace: &str, at: &At) -> Vec<WorkerId> {
        let Some(job) = self.jobs.get(namespace) else {
            return Vec::new();
        };
        let has_ended = |w: &Worker| matches!(w.state, WorkerState::Finished | WorkerState::Lost);
        let begins = |clocks: &[DomainClock]| {
            let mut at = at.iter();
            at.all(|(&domain, &clock)| clock_of(clocks, domain) <= clock)
        };
        let Some(schedule) = &self.schedule else {
            let counts = |(&rank, worker): (&WorkerId, &Worker)| {
                let first = job.first.get(&rank).map_or(&[][..], Vec::as_slice);
                let is_awaited = job.expected() > 0 || worker.state == WorkerState::Live;
                (is_awaited && !has_ended(worker) && begins(first)).then_some(rank)
            };
            return job.workers.iter().filter_map(counts).collect();
        };
        let stays = schedule.jobs.get(namespace).into_iter().flatten();
        let counts = |(&rank, stays): (&WorkerId, &Vec<Stay>)| {
            let begun = job.stays.get(&rank).copied().unwrap_or_default();
            let is_live = job
                .workers
                .get(&rank)
                .is_some_and(|w| w.state == WorkerState::Live);
            let stay = stays.get(begun - usize::from(is_live && begun > 0))?;
            let has_left = |last: &[DomainClock]| {
                let mut at = at.iter();
                at.any(|(&domain, &clock)| clock_of(last, domain) < clock)
            };
            let has_left = stay.last.as_deref().is_some_and(has_left);
            (begins(&stay.first) && !has_left).then_some(rank)
        };
        stays.filter_map(counts).collect()
    }

    pub(super) fn expire_barriers(&mut self) {
        let mut expired = Vec::new();
        for (name, job) in &mut self.jobs {
            let of_job = job.barriers.expire(self.now);
            expired.extend(of_job.into_iter().map(|barrier| (name.clone(), barrier)));
        }
        for (namespace, expired) in expired {
            let Some(job) = self.jobs.get(&namespace) else {
                continue;
            };
            let came = expired.present.len();
            let (of, (missing, numbers)) = match &expired.opens {
                Opens::Count(count) => (u64::from(*count), job.awaited(&expired.present)),
                Opens::Members(of) => {
                    let absent = self.absent(&namespace, of, &expired.at, &expired.present);
                    ((came + absent.len()) as u64, job.names(&absent))
                }
            };
            let mut text = format!(
                "barrier \"{}\": {came} of {of} came; missing: {missing}",
                expired.name
            );
            let (departed, _) = job.departed();
            if !departed.is_empty() {
                text += &format!("; not waited for: {departed}");
            }
            let refusal = Refusal::new(RefusalCode::Timeout, numbers).with_text(text);
            self.answer(expired.waiter.asker, CoordinatorAnswer::Refused(refusal));
        }
    }
}
