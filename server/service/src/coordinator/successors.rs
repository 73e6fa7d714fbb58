//! Restart of servers: the wait for a server's successor, and jobs that then begin again. (long: one state machine.)
//!
//! A server with a holder (`tidewater server --restarts N`) that is ended by a signal is awaited for
//! [`SUCCESSOR_TIMEOUT`]. Its successor begins without memory, so every table with a part on it has lost rows.
//! Such a table is never served: each job begins again, in its processes.
//!
//! ```text
//! end of a server     workers get ServerEnded; saves and loads fail; requests are parked
//! successor joins     all servers release the tables of the jobs, end their sessions and clocks
//! all have done so    workers get ServerRestarted; parked requests are refused
//! worker rejoins      its requests are served again
//! ```
//! A successor that has the memory of its server (ADR 0070) is ordered to serve the tables of each job that has
//! warm tables only. When it does, the workers get ServerResumed, and parked requests are carried out.
//!
//! Until its Rejoin a worker is *outdated*, and its requests are refused. A barrier therefore never counts
//! a worker that has not read the notice, which is on the connection before the refusal.

use std::collections::BTreeSet;
use std::collections::btree_map::Entry;
use std::time::Duration;

use tidewater_journal::ServerImage;
use tidewater_protocol::ids::{Incarnation, ServerId, TableId, WorkerId};
use tidewater_protocol::limits::{RESUME_TIMEOUT, SUCCESSOR_TIMEOUT};
use tidewater_protocol::mutants::{self, Mutant};
use tidewater_protocol::table::Durability;
use tidewater_protocol::wire::control::{
    Command, CommandReply, CoordinatorAnswer, CoordinatorRequest, Notice, ServerEnd, ServerRestart,
    WorkerState, status_text,
};
use tidewater_protocol::wire::hello::Role;
use tidewater_protocol::wire::refusal::{Refusal, RefusalCode};
use tidewater_queue::{QueueCall, Queues};

use super::recovery::ABSENT;
use super::state::{Action, Asker, Coordinator, PeerId, Phase, Purpose};
use super::tables::{Stage, TableEntry, refusal_of};

/// A server that has ended and that its holder (its parent process) restarts.
#[derive(Debug)]
pub(super) struct Absent {
    pub(super) end: ServerEnd,
    /// Time on the coordinator's clock at which the wait ends if no successor is connected then.
    pub(super) until: Duration,
    /// Time on the coordinator's clock by which a connected successor must have joined: it may read its memory
    /// before.
    latest: Duration,
    /// Jobs that have begun before its end. Others lose nothing with it.
    pub(super) jobs: BTreeSet<String>,
}

impl Coordinator {
    /// Begins the wait for the successor of an ended server: the process that its holder starts in its place.
    /// Notifies the clients of jobs that can begin again or resume, and aborts the saves and loads of these
    /// jobs; fails the other jobs.
    pub(super) fn await_successor(&mut self, end: ServerEnd) {
        let lost = failure_of(&end);
        for name in self.jobs.keys().cloned().collect::<Vec<_>>() {
            if let Some(job) = self.jobs.get_mut(&name) {
                job.resuming.remove(&end.server);
            }
            if self.can_begin_again(&name) || self.can_resume(&name) {
                self.abort_models(&name, &lost);
                self.notify_clients(&name, &Notice::ServerEnded(end.clone()));
            } else {
                self.fail_with_server(&name, &end);
            }
        }
        let server = end.server;
        self.await_again(end);
        self.lose_without_memory(server);
    }

    /// Begins the wait for the successor of a server, for all jobs that are there now. Also used for a server
    /// that had ended before the coordinator was restarted.
    pub(super) fn await_again(&mut self, end: ServerEnd) {
        let until = self.now.saturating_add(SUCCESSOR_TIMEOUT);
        let latest = self.now.saturating_add(RESUME_TIMEOUT);
        let jobs = self.jobs.keys().cloned().collect();
        let absent = Absent {
            end,
            until,
            latest,
            jobs,
        };
        self.absent.insert(absent.end.server, absent);
    }

    /// Servers without a successor, each with the time at which the wait for one ends.
    pub(super) fn successors_due(&self) -> impl Iterator<Item = (ServerId, Duration)> {
        self.absent.iter().map(|(&number, absent)| {
            let server = self.servers.get(&number);
            let is_resuming = server.is_some_and(|server| server.member.is_none());
            match is_resuming {
                true => (number, absent.latest),
                false => (number, absent.until),
            }
        })
    }

    /// Begins the wait for a successor again after the connection of one that had not joined has ended: for
    /// `SUCCESSOR_TIMEOUT`, at most until `Absent::latest`. Does nothing if no successor is awaited.
    pub(super) fn await_next_successor(&mut self, number: ServerId) {
        let until = self.now.saturating_add(SUCCESSOR_TIMEOUT);
        if let Some(absent) = self.absent.get_mut(&number) {
            absent.until = until.min(absent.latest);
        }
    }

    /// Handles the end of a server with a holder (a parent process that restarts it): raises the epoch and begins
    /// the wait for the successor. `how` states how the server ended.
    pub(super) fn held_server_lost(&mut self, server: ServerImage, how: &str) {
        self.epoch += 1;
        self.revision += 1;
        self.await_successor(ServerEnd {
            server: server.member.id,
            incarnation: server.member.incarnation,
            host: server.member.host,
            pid: server.pid,
            how: how.into(),
        });
    }

    /// Workers that have not rejoined since their job began again, connected or not.
    pub(super) fn outdated_workers(&self) -> BTreeSet<(String, WorkerId)> {
        let connected = self.outdated.iter().filter_map(|id| self.peers.get(id));
        let connected = connected.filter(|peer| peer.role == Role::Worker);
        let connected = connected.map(|peer| (peer.namespace.clone(), WorkerId(peer.rank)));
        let absent = self.recovery.iter().flat_map(|r| r.outdated.clone());
        connected.chain(absent).collect()
    }

    /// Repeats the notices about ended and restarted servers to a worker that has reconnected to a restarted
    /// coordinator, since the earlier ones may have been lost. A worker of a job that has begun again must then
    /// rejoin.
    pub(super) fn repeat_server_notices(&mut self, id: PeerId, namespace: &str, rank: WorkerId) {
        if self.may_begin_again(namespace) {
            let ends = self.absent.values().map(|absent| absent.end.clone());
            let ends = ends.map(|end| Action::Notify(id, Notice::ServerEnded(end)));
            self.actions.extend(ends);
        }
        let of_worker = (namespace.to_owned(), rank);
        let recovery = self.recovery.as_mut();
        let is_outdated = recovery.is_some_and(|r| r.outdated.remove(&of_worker));
        if !is_outdated && self.can_resume(namespace) {
            // It may have been absent when these were resumed.
            let is_resuming = |number: &ServerId| {
                let job = self.jobs.get(namespace);
                job.is_some_and(|job| job.resuming.contains_key(number))
            };
            let servers = self.joined_servers().into_iter();
            let resumed = servers.filter(|number| !is_resuming(number));
            for restart in resumed
                .filter_map(|number| self.kept_restart(number))
                .collect::<Vec<_>>()
            {
                let members = self.members(namespace);
                let notice = Notice::ServerResumed { restart, members };
                self.actions.push(Action::Notify(id, notice));
            }
        }
        let job = self.jobs.get(namespace);
        if let Some(restart) = job.and_then(|job| job.restarted.clone())
            && is_outdated
        {
            self.outdated.insert(id);
            let notice = Notice::ServerRestarted(restart);
            self.actions.push(Action::Notify(id, notice));
        }
    }

    /// Handles a holder's report of how its server ended. `restarts` states whether a successor will start; if
    /// not, all jobs fail. Ends the server's connection in the state machine if it is still open. Ignores a
    /// report about another process than the one that ended last.
    pub(super) fn server_ended(&mut self, end: ServerEnd, restarts: bool) -> CoordinatorAnswer {
        let number = end.server;
        let server = self.servers.get(&number);
        if let Some(server) = server.filter(|server| server.pid == end.pid) {
            // The report may come before the end of the server's connection.
            let peer = server.peer;
            self.closed(self.now, peer);
        }
        let Some(absent) = self.absent.get_mut(&number) else {
            return CoordinatorAnswer::Done;
        };
        if absent.end.pid != end.pid {
            return CoordinatorAnswer::Done;
        }
        absent.end.how = end.how;
        let end = absent.end.clone();
        if restarts {
            for name in self.jobs.keys().cloned().collect::<Vec<_>>() {
                self.notify_clients(&name, &Notice::ServerEnded(end.clone()));
            }
        } else {
            self.absent.remove(&number);
            self.forget_memory(number);
            self.fail_all(&failure_of(&end));
        }
        CoordinatorAnswer::Done
    }

    /// Fails all jobs, and ends all waits for successors, if one has not connected or joined within its time
    /// limit. Also ends all waits once the cluster stops.
    pub(super) fn expire_successors(&mut self) {
        if self.phase != Phase::Running {
            if !self.absent.is_empty() {
                self.touch();
                self.absent.clear();
            }
            return;
        }
        let late = self.successors_due().find(|&(_, due)| due <= self.now);
        let Some(late) = late.and_then(|(number, _)| self.absent.get(&number)) else {
            return;
        };
        let within = match late.latest <= self.now {
            true => RESUME_TIMEOUT,
            false => SUCCESSOR_TIMEOUT,
        };
        let text = format!("{}; no successor has joined within {within:?}", late.end);
        let refusal = failure_of(&late.end).with_text(text);
        self.touch();
        for number in std::mem::take(&mut self.absent).into_keys() {
            self.forget_memory(number);
        }
        self.fail_all(&refusal);
    }

    /// Follows up the join of server `number`, process `successor`. If it replaces an ended server, each job
    /// resumes with the kept tables `kept` (`None`: the successor has no memory), begins again from nothing, or
    /// fails. Does nothing for other servers.
    pub(super) fn successor_joined(
        &mut self,
        number: ServerId,
        successor: Incarnation,
        kept: Option<Vec<TableId>>,
    ) {
        let Some(Absent { end, jobs, .. }) = self.absent.remove(&number) else {
            return;
        };
        let restart = ServerRestart { end, successor };
        if kept.is_some() {
            // Before the members, of which these workers are none any more.
            self.repeat_losses(number);
            for id in self.releasing_at(number) {
                self.order(number, Purpose::Release(id), Command::ReleaseTable { id });
            }
        } else {
            self.lose_without(number);
            self.release_without(number);
        }
        self.repeat_endings(number);
        for &id in kept.iter().flatten() {
            // Released while the server was away.
            if !self.tables.contains_key(&id) {
                self.order(number, Purpose::Cleanup, Command::ReleaseTable { id });
            }
        }
        for name in self.jobs.keys().cloned().collect::<Vec<_>>() {
            if !jobs.contains(&name) {
                // It has begun since then: nothing of it is lost.
                self.carry_out_parked(&name);
            } else if kept.is_some() && self.can_resume(&name) {
                self.resume_with_memory(&name, number, restart.clone());
            } else if self.can_begin_again(&name) {
                self.begin_again(&name, restart.clone());
            } else if self.may_begin_again(&name) {
                // A worker has ended since then.
                self.fail_with_server(&name, &restart.end);
            } else {
                // A job that has failed, or of a kind that does not wait: nothing else answers these.
                self.refuse_parked(&name, &restarted(&restart));
            }
        }
    }

    /// Orders a returned server that started with its predecessor's memory to adopt (serve again) the tables there: a
    /// restart of the coordinator may have interrupted that. A server that already serves them confirms it.
    pub(super) fn resume_again(&mut self, number: ServerId) {
        let Some(restart) = self.kept_restart(number) else {
            return;
        };
        for name in self.jobs.keys().cloned().collect::<Vec<_>>() {
            if self.can_resume(&name) {
                self.resume_with_memory(&name, number, restart.clone());
            }
        }
    }

    /// Restart record of a server that started with its predecessor's memory; `None` for other servers. Of
    /// the predecessor only the number and host are known.
    fn kept_restart(&self, number: ServerId) -> Option<ServerRestart> {
        let server = self.servers.get(&number).filter(|server| server.is_kept)?;
        let member = server.member.as_ref()?;
        let end = ServerEnd {
            server: number,
            incarnation: Incarnation(0),
            host: member.host.clone(),
            pid: 0,
            how: "ended before the coordinator was restarted".into(),
        };
        let successor = member.incarnation;
        Some(ServerRestart { end, successor })
    }

    /// Orders a successor that has its predecessor's memory to adopt (serve again) the tables of a job, and to
    /// create those that it had yet to create. The caller repeats orders to release tables.
    fn resume_with_memory(&mut self, namespace: &str, number: ServerId, restart: ServerRestart) {
        let of_job = self.tables.iter().filter(|(_, t)| t.namespace == namespace);
        let mut orders = Vec::new();
        let mut awaited = BTreeSet::new();
        for (&id, entry) in of_job {
            let (namespace, table) = (namespace.to_owned(), entry.info.clone());
            match &entry.stage {
                Stage::Waiting => {}
                Stage::Making { missing, .. } if missing.contains(&number) => {
                    let order = Command::CreateTable { namespace, table };
                    orders.push((Purpose::Create(id), order));
                }
                // The caller repeats the order.
                Stage::Releasing(_) => {}
                Stage::Making { .. } | Stage::Filling | Stage::Ready => {
                    awaited.insert(id);
                    let order = Command::AdoptTable { namespace, table };
                    orders.push((Purpose::Adopt(id), order));
                }
            }
        }
        for (purpose, order) in orders {
            self.order(number, purpose, order);
        }
        if let Some(job) = self.jobs.get_mut(namespace) {
            job.resuming.insert(number, (restart, awaited));
        }
        self.resumed_if_adopted(namespace, number);
    }

    /// Handles a successor's answer to AdoptTable: it serves the table from its predecessor's memory, or cannot. In
    /// the second case the job begins again from nothing or fails.
    pub(super) fn table_adopted(&mut self, id: TableId, server: ServerId, answer: CommandReply) {
        let Some(namespace) = self.tables.get(&id).map(|table| table.namespace.clone()) else {
            return;
        };
        let job = self.jobs.get_mut(&namespace);
        let Some((restart, awaited)) = job.and_then(|job| job.resuming.get_mut(&server)) else {
            return;
        };
        if answer == CommandReply::Done {
            awaited.remove(&id);
            return self.resumed_if_adopted(&namespace, server);
        }
        let mut restart = restart.clone();
        let refusal = refusal_of(server, answer);
        restart.end.how = status_text(&format!("{}; {}", restart.end.how, refusal.text));
        match self.can_begin_again(&namespace) {
            true => self.begin_again(&namespace, restart),
            false => self.fail_with_server(&namespace, &restart.end),
        }
    }

    /// Removes a dropped table from the tables that successors have yet to adopt (serve again). Jobs that waited only
    /// for it continue.
    pub(super) fn not_awaited(&mut self, namespace: &str, id: TableId) {
        let Some(job) = self.jobs.get_mut(namespace) else {
            return;
        };
        for (_, awaited) in job.resuming.values_mut() {
            awaited.remove(&id);
        }
        for server in job.resuming.keys().copied().collect::<Vec<_>>() {
            self.resumed_if_adopted(namespace, server);
        }
    }

    /// Completes a job's resume when successor `number` serves all tables of the job: notifies the clients and, after
    /// the last successor, carries out the parked (waiting) requests. Does nothing before.
    fn resumed_if_adopted(&mut self, namespace: &str, number: ServerId) {
        let job = self.jobs.get_mut(namespace);
        let Some(Entry::Occupied(resuming)) = job.map(|job| job.resuming.entry(number)) else {
            return;
        };
        if !resuming.get().1.is_empty() {
            return;
        }
        let (restart, _) = resuming.remove();
        self.revision += 1;
        let members = self.members(namespace);
        self.notify_clients(namespace, &Notice::ServerResumed { restart, members });
        // The others learn the epoch, and all of them the workers that have ended.
        for server in self.joined_servers() {
            self.announce_members(server, namespace);
        }
        self.carry_out_parked(namespace);
    }

    /// Carries out the parked requests of a job, unless it still waits for a server.
    fn carry_out_parked(&mut self, namespace: &str) {
        let is_complete = self.absent.is_empty();
        let Some(job) = self.jobs.get_mut(namespace) else {
            return;
        };
        if is_complete && job.restarts.is_empty() && job.resuming.is_empty() {
            for (asker, request) in std::mem::take(&mut job.parked) {
                match request {
                    Some(request) => self.dispatch(asker, request),
                    None => unreachable!("{asker:?} waits for a job that begins again"),
                }
            }
        }
    }

    /// Whether a job can continue with the kept memory of a restarted server: its kind may begin again, it is
    /// not beginning again now, and all its tables that are not being released have warm durability (their
    /// memory outlives the server's process).
    pub(super) fn can_resume(&self, namespace: &str) -> bool {
        let tables = self.tables.values().filter(|t| t.namespace == namespace);
        let mut kept = tables.filter(|t| !matches!(t.stage, Stage::Releasing(_)));
        let job = self.jobs.get(namespace);
        job.is_some_and(|job| job.restarts.is_empty())
            && self.may_begin_again(namespace)
            && kept.all(|table| table.info.spec.durability == Durability::Warm)
    }

    /// Fails a job that cannot begin again after the end of a server.
    fn fail_with_server(&mut self, namespace: &str, end: &ServerEnd) {
        let text = format!(
            "{end}; a job of open size, with a schedule of members, with checkpoints, or with a worker that has \
             finished or is lost ends with its server"
        );
        self.fail_job(namespace, &failure_of(end).with_text(text));
    }

    fn refuse_parked(&mut self, namespace: &str, refusal: &Refusal) {
        let job = self.jobs.get_mut(namespace);
        let parked = job.map(|job| std::mem::take(&mut job.parked));
        for (asker, _) in parked.into_iter().flatten() {
            self.answer(asker, CoordinatorAnswer::Refused(refusal.clone()));
        }
    }

    /// Makes a job begin again from nothing, since a server's rows are lost: drops its tables, and orders all servers
    /// to end its sessions and clocks. Waiting requests are refused when `Self::begun_again` completes it.
    fn begin_again(&mut self, namespace: &str, restart: ServerRestart) {
        let refusal = restarted(&restart);
        let parked: Vec<_> = self.take_waiting(namespace);
        let parked = parked.into_iter().map(|asker| (asker, None)).collect();
        if let Some(job) = self.jobs.get_mut(namespace) {
            job.resuming.clear();
        }
        if !mutants::on(Mutant::RestartKeepsTables) {
            self.drop_tables(namespace, &refusal);
        }
        // Those that servers were releasing: what is left of them is ordered to go before the job is.
        let of_job = |(_, table): &(&TableId, &TableEntry)| table.namespace == namespace;
        let rest: Vec<TableId> = self
            .tables
            .iter()
            .filter(of_job)
            .map(|(&id, _)| id)
            .collect();
        for id in rest {
            self.tables.remove(&id);
            self.release_on_return(id);
        }
        if let Some(job) = self.jobs.get_mut(namespace) {
            job.tables.clear();
            job.restarts.push(restart);
            job.parked = parked;
        }
        let mut nobody = self.members(namespace);
        nobody.workers.clear();
        self.end_at_servers(namespace, nobody);
    }

    /// Completes the new beginning of a job after all servers have ended it: resets it, notifies its clients, which
    /// must rejoin, and refuses its parked requests. Fails the job if a worker has ended meanwhile. Does nothing for
    /// other jobs or while a server is awaited.
    pub(super) fn begun_again(&mut self, namespace: &str) {
        // That of a later successor.
        let is_ending = self.ending.values().any(|e| e.namespace == namespace);
        if is_ending || !self.absent.is_empty() {
            return;
        }
        let Some(job) = self.jobs.get_mut(namespace) else {
            return;
        };
        let restarts = std::mem::take(&mut job.restarts);
        let Some(last) = restarts.last() else { return };
        let refusal = restarted(last);
        job.base.clear();
        job.first.clear();
        job.floor.clear();
        // What finished tasks pushed is gone with the tables.
        job.queues = Queues::after(&job.queues);
        self.note_queue(namespace, || QueueCall::BeginAgain);
        if !self.can_begin_again(namespace) {
            // A worker has ended while servers released the job.
            return self.fail_with_server(namespace, &last.end);
        }
        let Some(job) = self.jobs.get_mut(namespace) else {
            return;
        };
        job.restarted = Some(last.clone());
        let absent = job.workers.iter().filter(|(_, w)| w.peer == Some(ABSENT));
        let absent = absent.map(|(&rank, _)| (namespace.to_owned(), rank));
        if let Some(recovery) = &mut self.recovery {
            recovery.outdated.extend(absent);
        }
        self.revision += 1;
        for restart in restarts {
            self.notify_clients(namespace, &Notice::ServerRestarted(restart));
        }
        if !mutants::on(Mutant::OutdatedWorkerServed) {
            let clients = self.clients(namespace);
            self.outdated.extend(clients);
        }
        self.refuse_parked(namespace, &refusal);
    }

    /// Readmits a client that has read the notice of its job's new beginning; its requests are served again. The
    /// answer states the job's members.
    pub(super) fn rejoin(&mut self, id: PeerId, namespace: &str) -> CoordinatorAnswer {
        self.outdated.remove(&id);
        let rank = self.peers.get(&id).map_or(0, |peer| peer.rank);
        let expected = self.jobs.get(namespace).map(super::jobs::Job::expected);
        self.joined(rank, namespace, expected.unwrap_or(self.config.workers))
    }

    /// Parks a request (keeps it for later) while its job waits for a successor or begins again, and returns
    /// `true`. Returns `false` if the request is to be carried out. Refused if the client has not rejoined
    /// since its job began again. Requests with which a client leaves are never parked.
    pub(super) fn waits_for_restart(
        &mut self,
        asker: Asker,
        request: &CoordinatorRequest,
    ) -> Result<bool, Refusal> {
        use CoordinatorRequest as Ask;
        let peer = self.peers.get(&asker.peer);
        let Some(peer) = peer.filter(|p| p.joined && is_client(p.role)) else {
            return Ok(false);
        };
        let leaves = matches!(
            request,
            Ask::Members
                | Ask::Goodbye
                | Ask::Finished
                | Ask::Failed { .. }
                | Ask::Leaving { .. }
                | Ask::Slow { .. }
        );
        // Of another job nothing begins again that could answer the request.
        let may_begin_again = self.may_begin_again(&peer.namespace);
        let Some(job) = self.jobs.get_mut(&peer.namespace) else {
            return Ok(false);
        };
        if leaves || job.failed.is_some() || self.phase != Phase::Running {
            return Ok(false);
        }
        let is_awaited = !self.absent.is_empty() && may_begin_again;
        if is_awaited || !job.restarts.is_empty() || !job.resuming.is_empty() {
            job.parked.push((asker, Some(request.clone())));
            return Ok(true);
        }
        if self.outdated.contains(&asker.peer) && *request != Ask::Rejoin {
            let refusal = Refusal::new(RefusalCode::WrongIncarnation, [0; 4]);
            return Err(
                refusal.with_text("a server was restarted, and this client has not rejoined")
            );
        }
        Ok(false)
    }

    /// Whether a job can begin again in its running processes: its kind may, and no worker has finished or is
    /// lost. The work of such a worker would be missing from the new tables.
    fn can_begin_again(&self, namespace: &str) -> bool {
        let ended = |state| matches!(state, WorkerState::Finished | WorkerState::Lost);
        let job = self.jobs.get(namespace);
        let has_ended = job.is_some_and(|job| job.workers.values().any(|w| ended(w.state)));
        self.may_begin_again(namespace) && !has_ended
    }

    /// Whether a job is of a kind that begins again: not failed, of known size, without schedule and without
    /// checkpoints. A job with checkpoints restarts from the newest one in new processes instead.
    fn may_begin_again(&self, namespace: &str) -> bool {
        let job = self.jobs.get(namespace);
        let is_fixed = job
            .is_some_and(|job| job.failed.is_none() && job.expected() > 0 && job.durable.is_none());
        is_fixed && self.schedule.is_none()
    }

    /// Connections of the joined workers and observers of a job.
    fn clients(&self, namespace: &str) -> Vec<PeerId> {
        let peers = self.peers.iter();
        let those =
            peers.filter(|(_, p)| p.joined && is_client(p.role) && p.namespace == namespace);
        those.map(|(&id, _)| id).collect()
    }

    fn notify_clients(&mut self, namespace: &str, notice: &Notice) {
        let clients = self.clients(namespace).into_iter();
        let notices = clients.map(|id| Action::Notify(id, notice.clone()));
        self.actions.extend(notices.collect::<Vec<_>>());
    }
}

const fn is_client(role: Role) -> bool {
    matches!(role, Role::Worker | Role::Observer)
}

/// Makes the refusal for requests that fail because a server has ended.
fn failure_of(end: &ServerEnd) -> Refusal {
    let numbers = [u64::from(end.server.0), 0, 0, 0];
    Refusal::new(RefusalCode::PeerFailed, numbers).with_text(end)
}

/// Makes the refusal for requests that waited when a job began again from nothing.
fn restarted(restart: &ServerRestart) -> Refusal {
    let numbers = [restart.end.incarnation.0, restart.successor.0, 0, 0];
    Refusal::new(RefusalCode::WrongIncarnation, numbers).with_text(&restart.end)
}
