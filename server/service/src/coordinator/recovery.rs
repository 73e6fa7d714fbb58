//! Recovery of a restarted coordinator: the state that it journals, and the processes that have not
//! reconnected.
//!
//! After a restart no process is connected. Servers and workers dial again by themselves and are known by the
//! incarnation of their first Join. Until then a worker's connection is [`ABSENT`], and a server is in
//! `absent_servers`. One that has not returned within the grace period is lost, as if its connection had
//! ended then.
//!
//! Orders that were under way are given again, once every server is back; each is one that a server may carry
//! out twice. Requests are repeated by the workers. Those that have had their answer have it in the image.

mod image;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tidewater_journal::{Answered, Change, Image, Outcome, ServerImage};
use tidewater_protocol::ids::{ServerId, TableId, WorkerId};
use tidewater_protocol::limits::REQUESTS_STARTED_MAX;
use tidewater_protocol::mutants::{self, Mutant};
use tidewater_protocol::wire::control::{
    Command, CoordinatorAnswer, CoordinatorRequest, Join, Notice, Part, WorkerState,
};
use tidewater_protocol::wire::hello::Role;
use tidewater_protocol::wire::refusal::{Refusal, RefusalCode};

use super::jobs::{Job, Worker};
use super::state::{Action, Asker, Coordinator, Lifetime, PeerId, Phase, Purpose};
use super::tables::Stage;

/// Stands for the connection of a worker that has not returned since the coordinator was restarted. The event
/// loop gives this number to no peer.
pub(super) const ABSENT: PeerId = PeerId(0);
/// Time after a restart of the coordinator within which processes must reconnect; later ones count as lost.
pub const RETURN_GRACE: Duration = Duration::from_secs(60);

/// Recovery state of a coordinator with a journal.
#[derive(Debug, Default)]
pub(super) struct RecoveryState {
    /// State as the journal holds it.
    journalled: Image,
    /// Changes to journal that a comparison of images does not find.
    changes: Vec<Change>,
    /// Whether durable state may have changed since the last comparison.
    touched: bool,
    /// Servers that have not returned since the coordinator's restart.
    pub(super) absent_servers: BTreeMap<ServerId, ServerImage>,
    /// Workers that have not returned since the coordinator's restart and must rejoin, because their job has
    /// begun again.
    pub(super) outdated: BTreeSet<(String, WorkerId)>,
    /// Tables that were dropped while servers were absent, which the absent servers are to release when they
    /// return.
    dropped: BTreeSet<TableId>,
    /// Requests that wait for the absent servers to return.
    deferred: Vec<(Asker, CoordinatorRequest)>,
    /// Time on the coordinator's clock at which processes that have not returned count as lost.
    until: Option<Duration>,
}

impl RecoveryState {
    /// Applies changes to the copy of the journalled state, in memory only. The caller of
    /// [`Coordinator::take_changes`] writes them to the journal.
    fn journal(&mut self, changes: &[Change]) {
        for change in changes {
            if let Err(error) = self.journalled.apply(change.clone()) {
                unreachable!("a call that has succeeded on equal queues: {error}");
            }
        }
    }
}

impl Coordinator {
    /// Marks the durable state as possibly changed, so that the next [`Self::take_changes`] compares it.
    pub(super) fn touch(&mut self) {
        if let Some(recovery) = &mut self.recovery {
            recovery.touched = true;
        }
    }

    /// Returns the changes of durable state since the last call. The caller journals them before it performs
    /// any action taken since. Empty without a journal. Cost: a comparison of the complete state, if anything
    /// may have changed.
    pub(super) fn take_changes(&mut self) -> Vec<Change> {
        let Some(recovery) = &mut self.recovery else {
            return Vec::new();
        };
        let mut changes = std::mem::take(&mut recovery.changes);
        let touched = std::mem::take(&mut recovery.touched);
        let image = touched.then(|| self.image());
        let Some(recovery) = &mut self.recovery else {
            return changes;
        };
        // Forgotten answers before the worker that has the rank now.
        recovery.journal(&changes);
        if let Some(image) = image {
            let differences = recovery.journalled.changes(&image);
            recovery.journal(&differences);
            changes.extend(differences);
        }
        changes
    }

    /// State as the journal holds it; `None` without a journal.
    pub(super) fn journalled(&self) -> Option<&Image> {
        self.recovery.as_ref().map(|recovery| &recovery.journalled)
    }

    /// Records a change for the journal that a comparison of images (copies of the durable state) does not find, such
    /// as an answer. `Self::take_changes` returns it. Does nothing without a journal.
    pub(super) fn note_change(&mut self, change: impl FnOnce() -> Change) {
        if let Some(recovery) = &mut self.recovery {
            recovery.changes.push(change());
        }
    }

    /// Answers a request. With a journal, also journals the answer to a worker, so that the request repeated
    /// after a restart of the coordinator gets it again. `subject` names the request.
    pub(super) fn answer_once(&mut self, asker: Asker, subject: String, outcome: Outcome) {
        let peer = self.peers.get(&asker.peer);
        let peer = peer.filter(|peer| self.recovery.is_some() && peer.role == Role::Worker);
        if let Some(peer) = peer {
            let (namespace, rank) = (peer.namespace.clone(), WorkerId(peer.rank));
            let (id, outcome) = (asker.id, outcome.clone());
            let answered = Answered {
                id,
                subject,
                outcome,
            };
            self.keep_answer(namespace, rank, answered);
        }
        self.answer(asker, answer_of(outcome));
    }

    /// Records for the journal, if there is one, the answer to a request of the worker of a rank. Sends nothing.
    pub(super) fn keep_answer(&mut self, namespace: String, rank: WorkerId, answered: Answered) {
        if !mutants::on(Mutant::BarrierAnswersForgotten) {
            self.note_change(|| Change::Answered(namespace, rank, answered));
        }
    }

    /// Journalled answer to a worker's request. `None` if it has not been answered or there is no journal.
    pub(super) fn answered_before(&self, asker: Asker) -> Option<CoordinatorAnswer> {
        let recovery = self.recovery.as_ref()?;
        let peer = self.peers.get(&asker.peer)?;
        if peer.role != Role::Worker || !peer.joined {
            return None;
        }
        let answers = &recovery.journalled;
        let outcome = answers.answer(&peer.namespace, WorkerId(peer.rank), asker.id)?;
        Some(answer_of(outcome.clone()))
    }

    /// Removes from the journal the answers of the process that had a rank before: the new process may use the same
    /// request numbers.
    pub(super) fn forget_answers(&mut self, namespace: &str, rank: WorkerId) {
        if let Some(recovery) = &mut self.recovery {
            let namespace = namespace.to_owned();
            recovery.changes.push(Change::Forgotten(namespace, rank));
        }
    }

    /// Defers a worker's request that needs all servers, until all servers of before the coordinator's restart
    /// have returned. Returns `None` if the request is deferred, else the request, to be carried out now.
    ///
    /// # Errors
    /// The worker already has `REQUESTS_STARTED_MAX` requests waiting.
    pub(super) fn defer(
        &mut self,
        asker: Asker,
        request: CoordinatorRequest,
    ) -> Result<Option<CoordinatorRequest>, Refusal> {
        use CoordinatorRequest as Ask;
        let Some(recovery) = self.recovery.as_mut() else {
            return Ok(Some(request));
        };
        let needs_servers = matches!(
            request,
            Ask::ReleaseTable { .. }
                | Ask::Save { .. }
                | Ask::Load { .. }
                | Ask::LoadFunction { .. }
        );
        if !needs_servers || recovery.absent_servers.is_empty() {
            return Ok(Some(request));
        }
        let own = recovery
            .deferred
            .iter()
            .filter(|(a, _)| a.peer == asker.peer);
        if own.count() >= REQUESTS_STARTED_MAX {
            let most = REQUESTS_STARTED_MAX as u64;
            let refusal = Refusal::new(RefusalCode::TooMany, [most + 1, most, 0, 0]);
            return Err(refusal.with_text("requests that wait for servers to return"));
        }
        recovery.deferred.push((asker, request));
        Ok(None)
    }

    /// Reconnects a worker of before the coordinator's restart, found by its incarnation, to the rank that it
    /// had, and answers its Join (at once, or when its interrupted admission ends). Returns `false`, without an
    /// answer, if the worker is not known or there is no journal.
    ///
    /// # Errors
    /// The rank belongs to another process, which has not returned yet.
    pub(super) fn rejoin_worker(&mut self, asker: Asker, join: &Join) -> Result<bool, Refusal> {
        let Some(peer) = self
            .peers
            .get(&asker.peer)
            .filter(|_| self.recovery.is_some())
        else {
            return Ok(false);
        };
        let (namespace, own) = (peer.namespace.clone(), WorkerId(peer.rank));
        let Some(job) = self.jobs.get_mut(&namespace) else {
            return Ok(false);
        };
        let is_it = |w: &Worker| {
            w.peer == Some(ABSENT) && w.incarnation == join.incarnation && w.incarnation.0 != 0
        };
        let known = job.workers.iter().find(|(_, worker)| is_it(worker));
        let Some((&rank, _)) = known else {
            let taken = job
                .workers
                .get(&own)
                .is_some_and(|w| w.peer == Some(ABSENT));
            let text =
                "it is that of a worker that has not returned since the coordinator was restarted";
            let numbers = [u64::from(own.0), 0, 0, 0];
            let refusal = Refusal::new(RefusalCode::RankTaken, numbers);
            return if taken {
                Err(refusal.with_text(text))
            } else {
                Ok(false)
            };
        };
        if own != rank {
            job.give_back(own);
        }
        if let Some(worker) = job.workers.get_mut(&rank) {
            worker.peer = Some(asker.peer);
        }
        let (expected, stop) = (job.expected(), job.stop.clone());
        if let Some(peer) = self.peers.get_mut(&asker.peer) {
            peer.rank = rank.0;
            peer.joined = true;
        }
        self.launched_joins(Part::Worker, rank.0);
        tracing::info!(namespace, %rank, "a worker has returned");
        if !self.take_over_admission(&namespace, rank, asker) {
            let joined = self.joined(rank.0, &namespace, expected);
            self.answer(asker, joined);
        }
        self.repeat_server_notices(asker.peer, &namespace, rank);
        if let Some(reason) = stop {
            // It may have been requested while this worker was absent.
            let notice = Notice::StopJob { reason };
            self.actions.push(Action::Notify(asker.peer, notice));
        }
        Ok(true)
    }

    /// Checks whether a joining server was a member before the coordinator's restart: it has the same incarnation,
    /// the random number of its process. Returns `true` if so. Another process with the number counts as the loss or
    /// restart of the earlier server.
    pub(super) fn server_returns(&mut self, number: ServerId, join: &Join) -> bool {
        let Some(recovery) = &mut self.recovery else {
            return false;
        };
        let Some(before) = recovery.absent_servers.remove(&number) else {
            return false;
        };
        if before.member.incarnation == join.incarnation {
            tracing::info!(server = %number, "a server has returned");
            return true;
        }
        if before.restarts > 0 && self.phase == Phase::Running {
            self.held_server_lost(before, "has ended while the coordinator was absent");
        } else {
            let why = "another process has its number";
            self.server_lost(&before.member, Some(before.pid), why);
            self.forget_memory(number);
        }
        false
    }

    /// Sends a server that has joined again after a restart of the coordinator the orders that it may have missed:
    /// finished tasks, losses, releases, endings and member lists. Also cancels checkpoints that were under way.
    pub(super) fn catch_up(&mut self, number: ServerId) {
        let mut cancelled = Vec::new();
        // The checkpoint under way is not that of this start, which begins it again.
        for (namespace, job) in &self.jobs {
            if job.durable.is_some() {
                let namespace = namespace.clone();
                cancelled.push(Command::CancelSave { namespace });
            }
        }
        for order in cancelled {
            self.order(number, Purpose::Cleanup, order);
        }
        // Before the news of their workers, which may be lost.
        self.repeat_finished_tasks(number);
        // Before the members, of which these workers are none any more.
        self.repeat_losses(number);
        for (id, _) in self.releasing() {
            self.order(number, Purpose::Release(id), Command::ReleaseTable { id });
        }
        self.release_dropped(number);
        self.repeat_endings(number);
        // Also ends a hold of clocks for a worker that was not admitted.
        for namespace in self.jobs.keys().cloned().collect::<Vec<_>>() {
            self.announce_members(number, &namespace);
        }
    }

    /// Orders a returned server, or the process that replaces an ended one, to end the sessions and clocks of jobs
    /// that are over and that it may still hold.
    pub(super) fn repeat_endings(&mut self, number: ServerId) {
        let ending: Vec<(u64, String)> = self
            .ending
            .iter()
            .filter(|(_, ending)| ending.missing.contains(&number))
            .map(|(&job, ending)| (job, ending.namespace.clone()))
            .collect();
        for (job, namespace) in ending {
            let mut members = self.members(&namespace);
            members.workers.clear();
            let order = Command::MembersChanged {
                namespace,
                members,
                admitted: None,
            };
            self.order(number, Purpose::EndJob(job), order);
        }
    }

    /// Notes a dropped table for the servers that have not returned: they release it then. A further restart of the
    /// coordinator forgets it; the table's memory stays with such a server then.
    pub(super) fn release_on_return(&mut self, id: TableId) {
        if let Some(recovery) = &mut self.recovery
            && !recovery.absent_servers.is_empty()
        {
            recovery.dropped.insert(id);
        }
    }

    fn release_dropped(&mut self, number: ServerId) {
        let Some(recovery) = &mut self.recovery else {
            return;
        };
        let dropped = match recovery.absent_servers.is_empty() {
            true => std::mem::take(&mut recovery.dropped),
            false => recovery.dropped.clone(),
        };
        for id in dropped {
            self.order(number, Purpose::Cleanup, Command::ReleaseTable { id });
        }
    }

    fn releasing(&self) -> Vec<(TableId, String)> {
        let tables = self.tables.iter();
        let those = tables.filter(|(_, table)| matches!(table.stage, Stage::Releasing(_)));
        those
            .map(|(&id, table)| (id, table.namespace.clone()))
            .collect()
    }

    /// Continues, once all servers of before the coordinator's restart are back, with deferred requests,
    /// admissions and the end of jobs. Does nothing before.
    pub(super) fn servers_are_back(&mut self) {
        let Some(recovery) = &mut self.recovery else {
            return;
        };
        if !recovery.absent_servers.is_empty() {
            return;
        }
        let deferred = std::mem::take(&mut recovery.deferred);
        self.order_admissions();
        for (asker, request) in deferred {
            self.request(self.now, asker.peer, asker.id, request);
        }
        for namespace in self.jobs.keys().cloned().collect::<Vec<_>>() {
            self.end_job_if_left(&namespace);
        }
        let is_over = |job: &Job| job.is_over() || job.failed.is_some();
        let all_over = !self.jobs.is_empty() && self.jobs.values().all(is_over);
        if all_over && self.config.lifetime == Lifetime::OneJob {
            self.stop(self.now, "all workers have finished");
        }
    }

    /// Servers that were members before the coordinator's restart and have not returned.
    pub(super) fn absent_servers(&self) -> impl Iterator<Item = ServerId> + use<> {
        let recovery = self.recovery.as_ref();
        let absent = recovery.map(|d| d.absent_servers.keys().copied().collect::<Vec<_>>());
        absent.into_iter().flatten()
    }

    /// Host of a server that has not returned; `None` for other servers.
    pub(super) fn host_of_absent(&self, number: ServerId) -> Option<String> {
        let recovery = self.recovery.as_ref()?;
        let server = recovery.absent_servers.get(&number)?;
        Some(server.member.host.clone())
    }

    /// Whether any server of before the coordinator's restart has not returned.
    pub(super) fn awaits_servers(&self) -> bool {
        self.absent_servers().next().is_some()
    }

    /// Whether the server of this number was a member before the coordinator's restart and has not returned.
    pub(super) fn may_return(&self, number: ServerId) -> bool {
        self.recovery
            .as_ref()
            .is_some_and(|d| d.absent_servers.contains_key(&number))
    }

    /// Time on the coordinator's clock at which processes that have not returned count as lost, also if all
    /// have returned. `None` without a journal, for a new cluster, or once the time has passed.
    pub(super) fn return_deadline(&self) -> Option<Duration> {
        self.recovery.as_ref()?.until
    }

    /// Counts the servers and live workers as lost that have not returned, once the deadline has passed.
    pub(super) fn expire_absent(&mut self) {
        let now = self.now;
        let Some(recovery) = &mut self.recovery else {
            return;
        };
        if recovery.until.is_none_or(|until| until > now) {
            return;
        }
        recovery.until = None;
        recovery.touched = true;
        let why = "it has not returned since the coordinator was restarted";
        for (number, server) in std::mem::take(&mut recovery.absent_servers) {
            self.server_lost(&server.member, Some(server.pid), why);
            self.forget_memory(number);
        }
        let mut absent = Vec::new();
        for (name, job) in &mut self.jobs {
            for (&rank, worker) in &mut job.workers {
                if worker.peer == Some(ABSENT) {
                    worker.peer = None;
                    absent.push((name.clone(), rank, worker.state));
                }
            }
        }
        for (namespace, rank, state) in absent {
            if state == WorkerState::Live {
                self.take_back_tasks(rank, &namespace, true);
                self.worker_lost(&namespace, rank, why);
            }
            self.end_job_if_left(&namespace);
        }
        self.servers_are_back();
    }
}

fn answer_of(outcome: Outcome) -> CoordinatorAnswer {
    match outcome {
        Outcome::Done => CoordinatorAnswer::Done,
        Outcome::Task(answer) => CoordinatorAnswer::Tasks(answer),
        Outcome::Arrivals(arrivals) => CoordinatorAnswer::Arrivals(arrivals),
        Outcome::Saved {
            tables,
            rows,
            bytes,
        } => CoordinatorAnswer::Saved {
            tables,
            rows,
            bytes,
        },
        Outcome::Loaded {
            tables,
            rows,
            clocks,
        } => CoordinatorAnswer::Loaded {
            tables,
            rows,
            clocks,
        },
    }
}
