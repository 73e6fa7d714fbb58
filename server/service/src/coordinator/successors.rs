//! Servers that are started again: the wait for a successor, and the new beginning of the jobs.
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
//! Until its Rejoin a worker is *outdated*, and its requests are refused. A barrier therefore never counts
//! a worker that has not read the notice, which is on the connection before the refusal.

use std::time::Duration;

use tidewater_protocol::ids::{Incarnation, ServerId};
use tidewater_protocol::limits::{PARKED_MAX, SUCCESSOR_TIMEOUT};
use tidewater_protocol::mutants::{self, Mutant};
use tidewater_protocol::wire::control::{
    CoordinatorAnswer, CoordinatorRequest, Notice, ServerEnd, ServerRestart, WorkerState,
};
use tidewater_protocol::wire::hello::Role;
use tidewater_protocol::wire::refusal::{Refusal, RefusalCode};
use tidewater_queue::Queues;

use super::state::{Action, Asker, Coordinator, PeerId, Phase};

/// A server that has ended and has a holder.
#[derive(Debug)]
pub(super) struct Absent {
    end: ServerEnd,
    /// Time limit of its successor.
    pub(super) until: Duration,
}

impl Coordinator {
    /// Waits for the successor of a server. Jobs that cannot begin again fail.
    pub(super) fn await_successor(&mut self, end: ServerEnd) {
        let lost = failure_of(&end);
        for name in self.jobs.keys().cloned().collect::<Vec<_>>() {
            if self.can_begin_again(&name) {
                self.abort_models(&name, &lost);
                self.notify_clients(&name, &Notice::ServerEnded(end.clone()));
            } else {
                self.fail_with_server(&name, &end);
            }
        }
        let until = self.now.saturating_add(SUCCESSOR_TIMEOUT);
        self.absent.insert(end.server, Absent { end, until });
    }

    /// Handles the report of a holder: how its server has ended, and whether a successor comes.
    pub(super) fn server_ended(&mut self, told: ServerEnd, restarts: bool) -> CoordinatorAnswer {
        let number = told.server;
        let server = self.servers.get(&number);
        if let Some(server) = server.filter(|server| server.pid == told.pid) {
            // The report may come before the end of the server's connection.
            let peer = server.peer;
            self.closed(self.now, peer);
        }
        let Some(absent) = self.absent.get_mut(&number) else {
            return CoordinatorAnswer::Done;
        };
        if absent.end.pid != told.pid {
            return CoordinatorAnswer::Done;
        }
        absent.end.how = told.how;
        let end = absent.end.clone();
        if restarts {
            for name in self.jobs.keys().cloned().collect::<Vec<_>>() {
                self.notify_clients(&name, &Notice::ServerEnded(end.clone()));
            }
        } else {
            self.absent.remove(&number);
            self.fail_all(&failure_of(&end));
        }
        CoordinatorAnswer::Done
    }

    /// Fails all jobs if a successor has not joined in time.
    pub(super) fn expire_successors(&mut self) {
        if self.phase != Phase::Running {
            self.absent.clear();
            return;
        }
        let mut absent = self.absent.values();
        let Some(late) = absent.find(|absent| absent.until <= self.now) else {
            return;
        };
        let text = format!(
            "{}; no successor has joined within {SUCCESSOR_TIMEOUT:?}",
            late.end
        );
        let refusal = failure_of(&late.end).with_text(text);
        self.absent.clear();
        self.fail_all(&refusal);
    }

    /// Follows up the join of a server: if it is a successor, all jobs begin again.
    pub(super) fn successor_joined(&mut self, number: ServerId, successor: Incarnation) {
        let Some(Absent { end, .. }) = self.absent.remove(&number) else {
            return;
        };
        let restart = ServerRestart { end, successor };
        for name in self.jobs.keys().cloned().collect::<Vec<_>>() {
            if self.can_begin_again(&name) {
                self.begin_again(&name, restart.clone());
            } else if self.may_begin_again(&name) {
                // A worker has ended since then.
                self.fail_with_server(&name, &restart.end);
            } else {
                // A job that has begun since then: nothing of it is lost, and nothing else answers these.
                self.refuse_parked(&name, &restarted(&restart));
            }
        }
    }

    /// Fails a job that cannot begin again.
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
        for asker in parked.into_iter().flatten() {
            self.answer(asker, CoordinatorAnswer::Refused(refusal.clone()));
        }
    }

    /// Has all servers end a job, which then begins again.
    fn begin_again(&mut self, namespace: &str, restart: ServerRestart) {
        let refusal = restarted(&restart);
        let parked = self.take_waiting(namespace);
        if !mutants::on(Mutant::RestartKeepsTables) {
            self.drop_tables(namespace, &refusal);
        }
        // Those that servers were releasing: what is left of them is ordered to go before the job is.
        self.tables.retain(|_, table| table.namespace != namespace);
        if let Some(job) = self.jobs.get_mut(namespace) {
            job.tables.clear();
            job.restarts.push(restart);
            job.parked = parked;
        }
        let mut nobody = self.members(namespace);
        nobody.workers.clear();
        self.end_at_servers(namespace, nobody);
    }

    /// Notes that all servers have ended a job. If it begins again its clients get the notice.
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
        // What finished tasks pushed is gone with the tables.
        job.queues = Queues::after(&job.queues);
        if !self.can_begin_again(namespace) {
            // A worker has ended while servers released the job.
            return self.fail_with_server(namespace, &last.end);
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

    /// Admits a client that has read the notice to its job as it is now.
    pub(super) fn rejoin(&mut self, id: PeerId, namespace: &str) -> CoordinatorAnswer {
        self.outdated.remove(&id);
        let rank = self.peers.get(&id).map_or(0, |peer| peer.rank);
        let expected = self.jobs.get(namespace).map(super::jobs::Job::expected);
        self.joined(rank, namespace, expected.unwrap_or(self.config.workers))
    }

    /// Parks a request of a job that waits for a successor, which returns true. A request of an outdated
    /// client is refused.
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
        if is_awaited || !job.restarts.is_empty() {
            let of_peer = |other: &&Asker| other.peer == asker.peer;
            let have = job.parked.iter().filter(of_peer).count();
            if have >= PARKED_MAX {
                let numbers = [have as u64 + 1, PARKED_MAX as u64, 0, 0];
                let refusal = Refusal::new(RefusalCode::TooMany, numbers);
                return Err(refusal.with_text("requests that wait for a server's successor"));
            }
            job.parked.push(asker);
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

    /// Whether a job can begin again in its processes: it is of a kind that may, and no worker has ended. The part
    /// of one that has finished or is lost would be missing from the new tables, and nothing would say so.
    fn can_begin_again(&self, namespace: &str) -> bool {
        let ended = |state| matches!(state, WorkerState::Finished | WorkerState::Lost);
        let job = self.jobs.get(namespace);
        let has_ended = job.is_some_and(|job| job.workers.values().any(|w| ended(w.state)));
        self.may_begin_again(namespace) && !has_ended
    }

    /// Whether a job is of a kind that begins again: it has not failed, its size is fixed, it has no schedule, and
    /// no checkpoints: one that has begins again from the newest, in other processes.
    fn may_begin_again(&self, namespace: &str) -> bool {
        let job = self.jobs.get(namespace);
        let is_fixed = job
            .is_some_and(|job| job.failed.is_none() && job.expected() > 0 && job.durable.is_none());
        is_fixed && self.schedule.is_none()
    }

    /// Workers and observers of a job that have joined.
    fn clients(&self, namespace: &str) -> Vec<PeerId> {
        let peers = self.peers.iter();
        let those =
            peers.filter(|(_, p)| p.joined && is_client(p.role) && p.namespace == namespace);
        those.map(|(&id, _)| id).collect()
    }

    fn notify_clients(&mut self, namespace: &str, notice: &Notice) {
        let told = self.clients(namespace).into_iter();
        let told = told.map(|id| Action::Notify(id, notice.clone()));
        self.actions.extend(told.collect::<Vec<_>>());
    }
}

const fn is_client(role: Role) -> bool {
    matches!(role, Role::Worker | Role::Observer)
}

/// The refusal of what a server's end makes fail.
fn failure_of(end: &ServerEnd) -> Refusal {
    let numbers = [u64::from(end.server.0), 0, 0, 0];
    Refusal::new(RefusalCode::PeerFailed, numbers).with_text(end)
}

/// The refusal of a request that waited when a job began again.
fn restarted(restart: &ServerRestart) -> Refusal {
    let numbers = [restart.end.incarnation.0, restart.successor.0, 0, 0];
    Refusal::new(RefusalCode::WrongIncarnation, numbers).with_text(&restart.end)
}
