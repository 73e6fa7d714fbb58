// long: sending, recovery and waiting share the state of a lane.

//! All lanes of one client thread, and the waits on them.
//!
//! A lane that breaks is marked. The call that was using it recovers it (see [`Lanes::recover`]) and
//! continues: frames are re-sent from staging, reads are repeated, requests without a reply are sent
//! again.

mod lane;
mod requests;
mod sending;
mod status;
mod tasks;

use std::time::{Duration, Instant};

use crate::counters::Counters;
use crate::error::ClientError;
use crate::interrupt;
use crate::link::{CoordinatorLink, OpenLane, ServerLink};
use crate::push::Ticket;
use lane::CALL_TAG;
pub(crate) use lane::LaneState;
pub(crate) use requests::Requests;
use status::StatusCopy;
use tidewater_bookkeeping::frame_runs::LaneSeqs;
use tidewater_bookkeeping::rejects::Refused;
use tidewater_lanes::fabric::{LaneError, Mapped, Mapping, Parker, TransportKind};
use tidewater_protocol::ids::{ApplierId, DomainId, ServerId, WorkerThread};
use tidewater_protocol::limits::{COORDINATOR_LOOK, LANE_SILENCE_MAX, STATUS_LOOK};
use tidewater_protocol::mutants::{self, Mutant};
use tidewater_protocol::placement::Owner;
use tidewater_protocol::wire::refusal::{Refusal, RefusalCode};
use tidewater_runtime::clock::{self, Deadline};
use tidewater_runtime::wait::wait_until;

/// Interval at which calls check the control connections of their sessions. It is a small part of the time for which
/// a server keeps a session with a cut connection.
const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(1);
/// Interval at which waits poll the control connection to the coordinator at their begin, even if every wait is
/// short: this process must also find a coordinator that was restarted. One poll takes up to 1 ms.
const RETURN_EVERY: Duration = Duration::from_secs(2);
/// Shortest pause between two attempts to reach a server that does not answer.
const RETRY: Duration = Duration::from_millis(3);

/// A server of the job: its control link, and its `lanes` lanes from number `first_lane` on, in the order of its
/// appliers.
struct Server {
    link: Box<dyn ServerLink>,
    first_lane: usize,
    lanes: usize,
    /// Whether this client has ended its session.
    ended: bool,
}

/// All lanes of one client thread to all servers, with their control links, the parker in which the thread sleeps,
/// and the link to the coordinator.
pub(crate) struct Lanes {
    servers: Vec<Server>,
    all: Vec<LaneState>,
    parker: Box<dyn Parker>,
    /// Link to the coordinator, which announces failed processes; every wait checks it.
    pub(crate) coordinator: Box<dyn CoordinatorLink>,
    /// Next time at which a wait looks for the coordinator at its begin.
    return_at: Instant,
    /// Time of the next check of the control connections.
    keep_alive_at: Deadline,
    /// Whether some server is reached over TCP or verbs: its control connection can be cut while both ends live.
    remote: bool,
    /// Whether some server is reached over shared memory.
    any_mapped: bool,
    /// Number of tags given to batches of single calls.
    read_tags: u64,
    pub(crate) counters: Counters,
    /// Number of push frames that a lane holds to send them together; at 1, each is sent at once.
    push_batch: u64,
    /// Whether some lane may hold frames of pushes.
    holds: bool,
    /// Delivery number of the open task, to which pushes belong; `None` if no task is open.
    task: Option<u64>,
    /// Delivery number of the task that was opened last, which may be closed.
    last_task: Option<u64>,
    /// Lanes with pushes of task `last_task`, a lane once.
    task_lanes: Vec<usize>,
    /// Number of server restarts with preserved memory that the links have followed.
    followed: u64,
}

/// Refused frame of a push or tick, with the number of its lane.
#[derive(Debug)]
pub(crate) struct LaneRefusal {
    pub(crate) lane: usize,
    pub(crate) refused: Refused,
}

/// Reason why a poll of the lanes ended before its result: a broken lane, or an error of the call.
pub(crate) enum Interrupt {
    /// Lane `.0` broke: recover it and poll again.
    Broken(usize),
    /// The call failed for good.
    Failed(ClientError),
}

impl From<ClientError> for Interrupt {
    fn from(e: ClientError) -> Self {
        Self::Failed(e)
    }
}

impl Lanes {
    pub(crate) fn new(
        servers: Vec<(Box<dyn ServerLink>, Vec<OpenLane>)>,
        parker: Box<dyn Parker>,
        coordinator: Box<dyn CoordinatorLink>,
    ) -> Result<Self, ClientError> {
        let mut all: Vec<LaneState> = Vec::new();
        let mut made = Vec::new();
        for (s, (link, lanes)) in servers.into_iter().enumerate() {
            let first_lane = all.len();
            let count = lanes.len();
            for (applier, open) in lanes.into_iter().enumerate() {
                let state = LaneState::new(s, applier, &*link, open);
                all.push(state.ok_or_else(|| ClientError::Protocol {
                    server: link.name().to_owned(),
                    what: format!("a ring of {} bytes", link.ring_bytes()),
                })?);
            }
            made.push(Server {
                link,
                first_lane,
                lanes: count,
                ended: false,
            });
        }
        let any = |kinds: &[TransportKind]| {
            let mut of_servers = made.iter().map(|s| s.link.transport());
            of_servers.any(|kind| kinds.contains(&kind))
        };
        Ok(Self {
            remote: any(&[TransportKind::Tcp, TransportKind::Verbs]),
            any_mapped: any(&[TransportKind::Shm]),
            keep_alive_at: Deadline::after(KEEP_ALIVE_EVERY),
            servers: made,
            all,
            parker,
            coordinator,
            return_at: clock::now() + RETURN_EVERY,
            read_tags: 0,
            counters: Counters::default(),
            push_batch: 1,
            holds: false,
            task: None,
            last_task: None,
            task_lanes: Vec::new(),
            followed: 0,
        })
    }

    /// Number of lanes to all servers: one for each applier.
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// Number of servers of the job.
    pub(crate) fn servers(&self) -> usize {
        self.servers.len()
    }

    /// Number of appliers of the server with index `server`, each of which has a lane; 0 for an unknown server.
    pub(crate) fn appliers(&self, server: usize) -> usize {
        self.servers.get(server).map_or(0, |s| s.lanes)
    }

    /// Number of appliers of each server, by server number.
    pub(crate) fn appliers_of_servers(&self) -> Vec<u16> {
        self.servers.iter().map(|s| s.lanes as u16).collect()
    }

    /// Control link of the server with index `server`; `None` for an unknown one.
    pub(crate) fn link(&mut self, server: usize) -> Option<&mut Box<dyn ServerLink>> {
        self.servers.get_mut(server).map(|s| &mut s.link)
    }

    /// Name of the server of a lane, for error texts.
    pub(crate) fn name(&self, lane: usize) -> &str {
        let server = self.all.get(lane).and_then(|l| self.servers.get(l.server));
        server.map_or("unknown server", |s| s.link.name())
    }

    /// Number of the lane to the applier that owns a partition; `None` if the job has no such server or applier.
    pub(crate) fn of(&self, owner: Owner) -> Option<usize> {
        let server = self.servers.get(owner.server.0 as usize)?;
        let applier = owner.applier.0 as usize;
        (applier < server.lanes).then_some(server.first_lane + applier)
    }

    /// Server and applier at the other end of a lane; `None` for an unknown lane.
    pub(crate) fn owner(&self, lane: usize) -> Option<Owner> {
        let server = self.all.get(lane)?.server;
        let applier = lane - self.servers.get(server)?.first_lane;
        Some(Owner {
            server: ServerId(server as u32),
            applier: ApplierId(applier as u16),
        })
    }

    /// Whether some server uses shared memory, so that its tables may be mapped in this process.
    pub(crate) const fn any_mapped(&self) -> bool {
        self.any_mapped
    }

    /// Mapped public memory of a lane's server, for reads by plain loads. `None` if the transport is not shared
    /// memory or the lane is broken.
    #[inline]
    pub(crate) fn mapped(&self, lane: usize) -> Option<Mapped<'_>> {
        let lane = self.all.get(lane).filter(|l| l.broken.is_none())?;
        lane.mapping.as_ref()?.look()
    }

    /// State of a lane by its number, as `of` returns it. Panics for another number.
    pub(crate) fn get(&mut self, lane: usize) -> &mut LaneState {
        &mut self.all[lane]
    }

    /// New tag for a batch of reads that the same call collects with [`LaneState::take_finished`].
    pub(crate) const fn read_tag(&mut self) -> u64 {
        self.read_tags += 1;
        CALL_TAG | self.read_tags
    }

    /// Whether the memory of a lane's server is mapped in this process (shared memory): its reads never wait.
    pub(crate) fn is_mapped(&self, lane: usize) -> bool {
        self.all.get(lane).is_some_and(|l| l.mapping.is_some())
    }

    /// Number of server restarts with preserved memory that the links have followed.
    pub(crate) const fn followed(&self) -> u64 {
        self.followed
    }

    /// Whether a lane is marked as broken and must be recovered before use.
    pub(crate) fn is_broken(&self, lane: usize) -> bool {
        self.all.get(lane).is_some_and(|l| l.broken.is_some())
    }

    /// Records an error of a lane. One that is fatal to the lane marks it as broken and returns `Interrupt::Broken`:
    /// the caller recovers it. Others end the call as `Interrupt::Failed`.
    pub(crate) fn failed(&mut self, lane: usize, e: LaneError) -> Interrupt {
        if !e.is_fatal() {
            return Interrupt::Failed(e.into());
        }
        self.all[lane].broken = Some(e);
        Interrupt::Broken(lane)
    }

    /// Polls every lane for completed reads, new acknowledgements and refusals, without waiting. Ends with an
    /// `Interrupt` at the first lane that is broken or fails; lanes after it are not polled.
    pub(crate) fn poll(&mut self) -> Result<(), Interrupt> {
        for n in 0..self.all.len() {
            if self.all[n].broken.is_some() {
                return Err(Interrupt::Broken(n));
            }
            if let Err(e) = self.all[n].learn(&mut self.counters) {
                return Err(self.failed(n, e));
            }
        }
        Ok(())
    }

    /// Blocks until the poll function `look`, called after each event, returns a result; `None` waits on. At the
    /// deadline the error names the appliers with unanswered frames. Sends held pushes first, and recovers lanes that
    /// break meanwhile. `op` names the call in errors.
    pub(crate) fn wait<T>(
        &mut self,
        op: &'static str,
        deadline: Deadline,
        look: impl FnMut(&mut Self) -> Result<Option<T>, Interrupt>,
    ) -> Result<T, ClientError> {
        self.wait_and(op, deadline, |_| {}, look)
    }

    /// Blocks until the poll function `look` returns a result, as [`Self::wait`] does, and calls `each` about
    /// once in `COORDINATOR_LOOK`, after it has checked the coordinator. Fails at the deadline, if the
    /// coordinator announces a failed process, or if an interrupt is requested.
    pub(crate) fn wait_and<T>(
        &mut self,
        op: &'static str,
        deadline: Deadline,
        mut each: impl FnMut(&mut Self),
        mut look: impl FnMut(&mut Self) -> Result<Option<T>, Interrupt>,
    ) -> Result<T, ClientError> {
        self.send_held(deadline)?;
        self.counters.waits += 1;
        let mut now = clock::now();
        if now >= self.return_at {
            // Waits may all be short: also then this process returns to a coordinator that was restarted.
            self.return_at = now + RETURN_EVERY;
            self.coordinator.check()?;
        }
        let mut coordinator_at = now + COORDINATOR_LOOK;
        loop {
            let until = match self.watch_statuses(now) {
                true => coordinator_at.min(now + STATUS_LOOK),
                false => coordinator_at,
            };
            let slice = Deadline::at(until).min(deadline);
            // The parker is moved out for the loop: `look` borrows everything else.
            let mut parker = std::mem::replace(&mut self.parker, Box::new(NoSleep));
            let found = wait_until(&mut *parker, slice, || {
                self.poll()?;
                look(self)
            });
            self.parker = parker;
            match found {
                Ok(Some(found)) => return Ok(found),
                Ok(None) => self.read_stalled_statuses()?,
                Err(Interrupt::Failed(e)) => return Err(e),
                Err(Interrupt::Broken(lane)) => {
                    self.recover(lane, deadline)?;
                    now = clock::now();
                    continue;
                }
            }
            // `wait_until` called `look` once more after the deadline.
            if slice >= deadline {
                let missing = self.missing();
                return Err(self.root_cause(ClientError::Deadline { op, missing }));
            }
            now = clock::now();
            if now >= coordinator_at {
                // The awaited process may have died.
                interrupt::check(op)?;
                self.coordinator.check()?;
                self.keep_alive_now(deadline)?;
                each(self);
                now = clock::now();
                coordinator_at = now + COORDINATOR_LOOK;
            }
        }
    }

    /// Records the progress of each lane's status record for stall detection. Returns whether some lane has
    /// unanswered frames and a public copy of its status.
    fn watch_statuses(&mut self, now: Instant) -> bool {
        let mut any = false;
        for l in &mut self.all {
            any |= l.status.watch(now, l.ring.is_unanswered(), l.ring.state());
        }
        any
    }

    /// Posts a read of the server's public copy of each status record that has not moved for [`STATUS_LOOK`]: its
    /// delivery may have failed. Does not wait; `poll` takes the result. A lane that fails is marked as broken.
    #[cold]
    fn read_stalled_statuses(&mut self) -> Result<(), ClientError> {
        let now = clock::now();
        for n in 0..self.all.len() {
            let l = &mut self.all[n];
            if l.broken.is_some() {
                continue;
            }
            let read = l.status.read_if_stalled(now, l.ring.state(), &mut *l.lane);
            if let Err(Interrupt::Failed(e)) = read.map_err(|e| self.failed(n, e)) {
                return Err(e);
            }
        }
        Ok(())
    }

    /// Checks the control connections of all sessions if a second has passed since the last check; calls that do
    /// not wait do this too. Follows restarted servers, and marks silent TCP lanes as broken. Without lanes over
    /// TCP or verbs it does nothing.
    #[inline]
    pub(crate) fn keep_alive(&mut self) -> Result<(), ClientError> {
        if self.remote && self.keep_alive_at.passed() {
            return self.keep_alive_now(Deadline::after(KEEP_ALIVE_EVERY));
        }
        Ok(())
    }

    #[cold]
    fn keep_alive_now(&mut self, deadline: Deadline) -> Result<(), ClientError> {
        self.keep_alive_at = Deadline::after(KEEP_ALIVE_EVERY);
        self.follow_successors();
        for n in 0..self.servers.len() {
            if let Err(e) = self.servers[n].link.check(deadline) {
                if self.may_come_back(&e, deadline)? {
                    continue;
                }
                return Err(self.root_cause(e));
            }
        }
        self.give_up_silent();
        Ok(())
    }

    /// Marks lanes over TCP as broken if the server answers none of their frames for `LANE_SILENCE_MAX`. The wait or
    /// call that finds the mark reconnects them.
    fn give_up_silent(&mut self) {
        if mutants::on(Mutant::SilentLaneKept) {
            return;
        }
        let now = clock::now();
        let tcp = |l: &&mut LaneState| l.lane.transport() == TransportKind::Tcp;
        for l in self.all.iter_mut().filter(tcp) {
            let applied = l.ring.state().applied_seq;
            if l.silence.look(now, l.ring.is_answered(), applied) && l.broken.is_none() {
                tracing::warn!(peer = l.lane.peer(), "lane is silent, connecting again");
                l.broken = Some(LaneError::Broken {
                    transport: TransportKind::Tcp,
                    peer: l.lane.peer().to_owned(),
                    op: "wait for an answer",
                    why: format!("no frame was answered for {LANE_SILENCE_MAX:?} or longer"),
                });
            }
        }
    }

    /// Parks the thread for `time`, or until a waker fires.
    pub(crate) fn sleep_briefly(&mut self, time: Duration) {
        self.parker.prepare_park();
        self.parker.park_until(Deadline::after(time));
        self.parker.cancel_park();
    }

    /// Text for a deadline error: the servers and appliers that have not acknowledged all frames.
    fn missing(&self) -> String {
        let behind = |l: &&LaneState| !l.ring.is_drained();
        let names: Vec<String> = self
            .all
            .iter()
            .filter(behind)
            .map(|l| {
                let name = self.servers.get(l.server).map_or("?", |s| s.link.name());
                format!(
                    "server {name} applier {} has applied {}",
                    l.applier,
                    l.ring.describe()
                )
            })
            .collect();
        if names.is_empty() {
            "no answer".into()
        } else {
            names.join("; ")
        }
    }

    /// Deadline error of a pull that waits for rows of a lane's server; the coordinator's reason takes its place if
    /// there is one.
    #[cold]
    pub(crate) fn late_read(&mut self, lane: usize) -> ClientError {
        let applier = self.all[lane].applier;
        let missing = format!("rows of server {} applier {applier}", self.name(lane));
        let op = "pull";
        self.root_cause(ClientError::Deadline { op, missing })
    }

    /// Replaces an error by the coordinator's reason (a failed process, the end of the job), if there is one. The
    /// end of a server may be noticed before the notice arrives, so after such errors it waits up to
    /// `COORDINATOR_LOOK` for it.
    #[cold]
    pub(crate) fn root_cause(&mut self, seen: ClientError) -> ClientError {
        let reason = match &seen {
            ClientError::ServerLost { .. } => self.coordinator.check_within(COORDINATOR_LOOK),
            ClientError::Refused(refusal)
                if refusal.code == RefusalCode::ShuttingDown || is_outdated(refusal) =>
            {
                self.coordinator.check_within(COORDINATOR_LOOK)
            }
            _ => self.coordinator.check(),
        };
        reason.err().unwrap_or(seen)
    }

    /// Whether a refusal may come from the restart of a server with its memory, so that the call may continue. Waits
    /// up to `COORDINATOR_LOOK` for the coordinator's notice of a successor.
    ///
    /// # Errors
    /// As [`CoordinatorLink::check`]: the successor has no memory, and the job begins again.
    fn may_come_back(
        &mut self,
        seen: &ClientError,
        deadline: Deadline,
    ) -> Result<bool, ClientError> {
        let ClientError::Refused(refusal) = seen else {
            return Ok(false);
        };
        if !is_outdated(refusal) || deadline.passed() {
            return Ok(false);
        }
        let look = COORDINATOR_LOOK.min(deadline.left());
        self.coordinator.check_within(look)?;
        // A server that has not learned of the epoch yet is about to.
        let is_behind =
            refusal.code == RefusalCode::WrongEpoch && refusal.numbers[0] > refusal.numbers[1];
        // A job that begins again ends at all servers.
        let mut servers = (0..self.servers.len() as u32).map(ServerId);
        let awaits = servers.any(|server| self.coordinator.awaits_successor(server));
        Ok(awaits || is_behind || self.follow_successors())
    }

    /// Redirects the links of servers that were restarted with their memory to their successors. Marks the lanes to
    /// the dead processes as broken. Returns false if no new restart was announced.
    fn follow_successors(&mut self) -> bool {
        let Some((number, members)) = self.coordinator.resumed(self.followed) else {
            return false;
        };
        self.followed = number;
        for server in &mut self.servers {
            if !server.link.follow(&members) {
                continue;
            }
            for l in &mut self.all[server.first_lane..server.first_lane + server.lanes] {
                l.mapping = None;
                l.broken.get_or_insert_with(|| LaneError::Broken {
                    transport: l.lane.transport(),
                    peer: l.lane.peer().to_owned(),
                    op: "reach the server",
                    why: "it was restarted".into(),
                });
            }
        }
        true
    }

    /// Sleeps between two attempts to reach a server, and waits a moment for a notice of the coordinator. A notice
    /// of a successor ends the wait. Fails if the job has ended.
    fn await_news(&mut self) -> Result<(), ClientError> {
        self.sleep_briefly(RETRY);
        self.coordinator.check_within(10 * RETRY)
    }

    /// Waits up to `wait` (at most `COORDINATOR_LOOK`) for the coordinator's notice of a successor, if the
    /// coordinator has announced the end of the server or the caller has seen it (`has_ended`). Returns whether
    /// the successor is still awaited.
    fn awaits(
        &mut self,
        server: usize,
        has_ended: bool,
        wait: Duration,
    ) -> Result<bool, ClientError> {
        let id = ServerId(server as u32);
        let is_here = self.follow_successors() && !self.coordinator.awaits_successor(id);
        if !is_here && (has_ended || self.coordinator.awaits_successor(id)) {
            self.coordinator.check_within(wait.min(COORDINATOR_LOOK))?;
            self.follow_successors();
        }
        Ok(self.coordinator.awaits_successor(id))
    }

    /// These lanes with the push batch, read tags and counters of `before`, which they replace after a restart.
    pub(crate) fn with_settings_of(self, before: &Self) -> Self {
        Self {
            push_batch: before.push_batch,
            read_tags: before.read_tags,
            counters: before.counters,
            ..self
        }
    }

    /// Asks a server for the worker threads that are members of a clock domain, with their clocks. `None` if the job
    /// has no server with this index.
    pub(crate) fn members(
        &mut self,
        server: usize,
        domain: DomainId,
        deadline: Deadline,
    ) -> Result<Option<Vec<(WorkerThread, u64)>>, ClientError> {
        if server >= self.servers.len() {
            return Ok(None);
        }
        let clocks = |link: &mut dyn ServerLink, slice| link.clocks(domain, slice);
        self.ask(server, deadline, clocks).map(Some)
    }

    /// Sends a request over a server's control link and returns the answer. Repeats it after a lost or restarted
    /// server, also at its successor, until `deadline` passes, the job ends, or an interrupt is requested; other
    /// errors end it at once. The request must be idempotent: an unanswered attempt may have been carried out.
    pub(crate) fn ask<T>(
        &mut self,
        server: usize,
        deadline: Deadline,
        request: impl Fn(&mut dyn ServerLink, Deadline) -> Result<T, ClientError>,
    ) -> Result<T, ClientError> {
        loop {
            interrupt::check("ask a server")?;
            while self.awaits(server, false, deadline.left())? && !deadline.passed() {
                interrupt::check("await a server")?;
            }
            let slice = Deadline::after(COORDINATOR_LOOK * 4).min(deadline);
            match request(&mut *self.servers[server].link, slice) {
                // A slice has ended. The next one follows, unless the job has ended: a dead server
                // answers none.
                Err(ClientError::Deadline { .. })
                    if slice.left() <= COORDINATOR_LOOK && !deadline.passed() =>
                {
                    self.coordinator.check()?;
                }
                Err(ClientError::ServerLost { .. }) if !deadline.passed() => self.await_news()?,
                Err(e) => {
                    if !self.may_come_back(&e, deadline)? {
                        // The coordinator may know why the server ended.
                        return Err(self.root_cause(e));
                    }
                }
                done => return done,
            }
        }
    }

    /// Ends this client's sessions with all servers, after which it can send nothing. A call after an error
    /// continues with the server that failed.
    pub(crate) fn end_sessions(&mut self, deadline: Deadline) -> Result<(), ClientError> {
        for n in 0..self.servers.len() {
            if !self.servers[n].ended {
                self.ask(n, deadline, |link, slice| link.end_session(slice))?;
                self.servers[n].ended = true;
            }
        }
        Ok(())
    }

    /// Whether [`Self::end_sessions`] has ended the session with at least one server.
    pub(crate) fn has_ended_sessions(&self) -> bool {
        self.servers.iter().any(|server| server.ended)
    }

    /// Recovers a broken lane: connects a new one to the applier, and re-sends the frames that the server has
    /// not consumed. Drops the completed reads of the old lane. Blocks until that succeeds, the deadline passes,
    /// the job ends, or an interrupt is requested. Waits for the successor of a server that has ended.
    pub(crate) fn recover(&mut self, lane: usize, deadline: Deadline) -> Result<(), ClientError> {
        let mut attempts = 0;
        loop {
            interrupt::check("recover a lane")?;
            let (server, applier) = (self.all[lane].server, self.all[lane].applier);
            // A lane that breaks after every recovery must not loop for ever.
            if deadline.passed() {
                let (op, missing) = ("recover a lane", format!("server {}", self.name(lane)));
                return Err(self.root_cause(ClientError::Deadline { op, missing }));
            }
            // A killed server recovers nothing; the coordinator is about to report it, and its successor.
            let mapping = self.all[lane].mapping.as_ref();
            let ended = mapping.is_some_and(Mapping::has_ended);
            if self.awaits(server, ended, deadline.left())? {
                continue;
            }
            let Some(s) = self.servers.get_mut(server) else {
                return Ok(());
            };
            // A busy server needs longer for a recovery, so it gets four times the time. The first attempt is
            // short: a server that has ended is reported meanwhile.
            let looks = if ended || attempts == 0 { 1 } else { 4 };
            attempts += 1;
            let slice = Deadline::after(COORDINATOR_LOOK * looks).min(deadline);
            let open = match s.link.recover(applier, slice) {
                Ok(open) => open,
                // Tries again, unless the job has ended: the server may have died.
                Err(ClientError::Deadline { .. } | ClientError::ServerLost { .. })
                    if !deadline.passed() =>
                {
                    self.await_news()?;
                    continue;
                }
                // The coordinator reports it when all servers have ended the job, or the successor has it.
                Err(e) => match self.may_come_back(&e, deadline)? {
                    true => continue,
                    false => return Err(self.root_cause(e)),
                },
            };
            self.counters.recoveries += 1;
            let l = &mut self.all[lane];
            l.mapping = open.lane.mapping();
            l.lane = open.lane;
            l.status = StatusCopy::new(open.status);
            l.broken = None;
            l.replies.lane_came_back();
            l.finished.clear();
            l.reject_late = None;
            // Applied frames are learned from the mailbox, where the rejects come before them.
            if mutants::on(Mutant::FramesNotResent) {
                return Ok(());
            }
            match l.ring.resend(open.state.head_bytes, &mut *l.lane) {
                Ok(()) => return Ok(()),
                Err(e) => l.broken = Some(e),
            }
        }
    }

    /// Result of a ticket, by what the lanes have received so far: `None` if some of its frames are unanswered,
    /// `Some(Ok)` if all are acknowledged, otherwise the first refusal. Refusals of the ticket then count as
    /// claimed (reported to the program).
    pub(crate) fn try_applied(&mut self, ticket: &Ticket) -> Option<Result<(), LaneRefusal>> {
        let done = |p: LaneSeqs, lanes: &Self| {
            lanes
                .all
                .get(p.lane as usize)
                .is_none_or(|l| l.ring.state().applied_seq >= p.last)
        };
        if !ticket.parts().all(|p| done(p, self)) {
            return None;
        }
        let mut refused = None;
        for p in ticket.parts() {
            let lane = p.lane as usize;
            let Some(l) = self.all.get_mut(lane) else {
                continue;
            };
            if let Some(found) = l.rejects.among(p.first, p.last) {
                refused = refused.or(Some(LaneRefusal {
                    lane,
                    refused: found,
                }));
            }
        }
        Some(refused.map_or(Ok(()), Err))
    }

    /// Removes the runs of a ticket that the servers have answered, by what the lanes have received so far.
    /// Fails with the first refusal among the removed runs; their refusals then count as claimed (reported to
    /// the program).
    pub(crate) fn drop_answered(&mut self, ticket: &mut Ticket) -> Result<(), LaneRefusal> {
        let mut refused = None;
        ticket.retain(|run| {
            let lane = run.lane as usize;
            let Some(l) = self.all.get_mut(lane) else {
                return false;
            };
            if l.ring.state().applied_seq < run.last {
                return true;
            }
            let found = l.rejects.among(run.first, run.last);
            let found = found.map(|refused| LaneRefusal { lane, refused });
            refused = refused.take().or(found);
            false
        });
        refused.map_or(Ok(()), Err)
    }
}

/// Whether a server's refusal (unknown session, other epoch or incarnation) may follow from the restart of a server.
const fn is_outdated(refusal: &Refusal) -> bool {
    use RefusalCode as Code;
    matches!(
        refusal.code,
        Code::UnknownSession | Code::WrongEpoch | Code::WrongIncarnation
    )
}

/// Placeholder parker that stands in `Lanes` during a wait, while the real one is moved out. It never parks.
struct NoSleep;

impl Parker for NoSleep {
    fn prepare_park(&mut self) {}
    fn park_until(&mut self, _: Deadline) {}
    fn cancel_park(&mut self) {}
}

#[cfg(test)]
mod tests {
    use tidewater_protocol::ids::{SessionId, TableId};
    use tidewater_protocol::table::TableSpec;
    use tidewater_protocol::wire::control::{DomainClock, TableDescriptor, TableInfo};

    use super::*;
    use crate::link::{CoordinatorCall, CoordinatorReply, Loaded, Saved, blocking_calls};

    /// A server without lanes that is lost `losses` times while its session ends.
    struct Losing {
        losses: u32,
    }

    impl ServerLink for Losing {
        fn name(&self) -> &str {
            "losing"
        }

        fn session(&self) -> SessionId {
            SessionId(1)
        }

        fn transport(&self) -> TransportKind {
            TransportKind::Tcp
        }

        fn ring_bytes(&self) -> usize {
            0
        }

        fn describe(&mut self, _: TableId, _: Deadline) -> Result<TableDescriptor, ClientError> {
            unreachable!("no tables")
        }

        fn clocks(
            &mut self,
            _: DomainId,
            _: Deadline,
        ) -> Result<Vec<(WorkerThread, u64)>, ClientError> {
            unreachable!("no clocks")
        }

        fn end_session(&mut self, _: Deadline) -> Result<(), ClientError> {
            let Some(left) = self.losses.checked_sub(1) else {
                return Ok(());
            };
            self.losses = left;
            Err(ClientError::ServerLost {
                server: self.name().into(),
                op: "detach",
                source: std::io::Error::from(std::io::ErrorKind::ConnectionRefused).into(),
            })
        }

        fn recover(&mut self, _: ApplierId, _: Deadline) -> Result<OpenLane, ClientError> {
            unreachable!("no lanes")
        }
    }

    struct Silent;

    impl Silent {
        #[expect(clippy::unused_self, reason = "the signature that the macro calls")]
        fn perform(
            &self,
            call: &CoordinatorCall,
            _: Deadline,
        ) -> Result<CoordinatorReply, ClientError> {
            unreachable!("{}", call.op())
        }
    }

    impl CoordinatorLink for Silent {
        blocking_calls!();

        fn finished(&mut self, _: Deadline) -> Result<(), ClientError> {
            Ok(())
        }

        fn failed(&mut self, _: &str, _: Deadline) -> Result<(), ClientError> {
            Ok(())
        }
    }

    /// A lost server is asked again until the deadline, and a call after it continues there.
    #[test]
    fn sessions_end_at_lost_servers() {
        let servers = [0, 2].map(|losses| {
            let link: Box<dyn ServerLink> = Box::new(Losing { losses });
            (link, Vec::new())
        });
        let made = Lanes::new(servers.into(), Box::new(NoSleep), Box::new(Silent));
        let mut lanes = made.unwrap();
        let late = lanes.end_sessions(Deadline::after(Duration::ZERO));
        assert!(matches!(late, Err(ClientError::ServerLost { .. })));
        assert!(lanes.has_ended_sessions());
        let ended = lanes.end_sessions(Deadline::after(Duration::from_secs(60)));
        ended.unwrap();
        assert!(lanes.servers.iter().all(|server| server.ended));
    }
}
