// long: sending, recovery and waiting share the state of a lane.

//! All lanes of one client thread, and the waits on them.
//!
//! A lane that breaks is marked. The call that was using it recovers it (see [`Lanes::mend`]) and
//! continues: frames are re-sent from staging, reads are repeated, requests without a reply are sent
//! again.

mod requests;
mod status;

use std::time::{Duration, Instant};

use tidewater_lanes::fabric::{
    ClientLane, LaneError, Mapped, Mapping, Parker, ReadBatch, TransportKind,
};
use tidewater_protocol::ids::{ApplierId, DomainId, SessionId, WorkerThread};
use tidewater_protocol::layout::frame::{FrameHeader, FrameKind};
use tidewater_protocol::layout::lines::{ClockLine, Reject, StateLine};
use tidewater_protocol::layout::ring::RingGeometry;
use tidewater_protocol::layout::session::{MAILBOX_STATE_AT, mailbox_clock_at, mailbox_reject_at};
use tidewater_protocol::limits::{
    COORDINATOR_LOOK, DOMAINS_MAX, FRAME_LATE_MAX, FRAMES_IN_FLIGHT_MAX, LANE_SILENCE_MAX,
    RING_BYTES_MAX, RING_BYTES_MIN, STATUS_LOOK,
};
use tidewater_protocol::mutants::{self, Mutant};
use tidewater_protocol::placement::Owner;
use tidewater_protocol::wire::refusal::RefusalCode;
use tidewater_runtime::clock::{self, Deadline};
use tidewater_runtime::wait::wait_until;

use crate::counters::Counters;
use crate::error::ClientError;
use crate::interrupt;
use crate::link::{CoordinatorLink, OpenLane, ServerLink};
use crate::push::Ticket;
use crate::push::ring::PushRing;
use crate::replies::Replies;
pub(crate) use requests::Requests;
use status::{STATUS_TAG, StatusCopy};
use tidewater_bookkeeping::rejects::{NO_PUSH, PushCall, Refused, Rejects};
use tidewater_bookkeeping::stall_detector::StallDetector;

/// Interval at which calls check the control connections: a small part of the time for which a server
/// keeps a session with a cut connection.
const TEND_EVERY: Duration = Duration::from_secs(1);
/// Bytes of frames that a lane holds at most: the applier begins while the next ones are built.
const HELD_BYTES: u64 = 32 << 10;
/// Bit of the tags of batches that one call posts and collects. Asynchronous pulls are numbered below it.
const CALL_TAG: u64 = 1 << 63;

/// One lane and its ring.
pub(crate) struct LaneState {
    pub(crate) server: usize,
    pub(crate) applier: ApplierId,
    pub(crate) session: SessionId,
    pub(crate) ring: PushRing,
    pub(crate) replies: Replies,
    /// Completed reads that were submitted and not yet collected.
    pub(crate) finished: Vec<ReadBatch>,
    lane: Box<dyn ClientLane>,
    /// Memory that `lane` has mapped.
    mapping: Option<Mapping>,
    broken: Option<LaneError>,
    rejects_seen: u64,
    rejects: Rejects,
    /// Detects that its server no longer answers.
    silence: StallDetector,
    /// The public copy of its status record.
    status: StatusCopy,
    /// The push call of each frame in flight, by sequence number modulo its length.
    calls: Box<[PushCall]>,
    /// Limit of the wait for a reject record that the status counts and that has not arrived.
    reject_late: Option<Deadline>,
    /// Every domain's clock as last read completely.
    clocks: [ClockLine; DOMAINS_MAX],
}

/// A server and its lanes: `first_lane ..` in the order of its appliers.
struct Server {
    link: Box<dyn ServerLink>,
    first_lane: usize,
    lanes: usize,
    /// Whether this client has ended its session.
    ended: bool,
}

/// All lanes of the thread.
pub(crate) struct Lanes {
    servers: Vec<Server>,
    all: Vec<LaneState>,
    parker: Box<dyn Parker>,
    /// Announces the failure of processes; every wait checks it.
    pub(crate) coordinator: Box<dyn CoordinatorLink>,
    /// Time of the next check of the control connections.
    tend_at: Deadline,
    /// Whether a control connection can be cut while both ends live.
    remote: bool,
    /// Whether some server is reached over shared memory.
    any_mapped: bool,
    /// Number of tags given to batches of single calls.
    read_tags: u64,
    pub(crate) counters: Counters,
    /// Frames of pushes that a lane holds to send them together; 1: none waits for another.
    push_batch: u64,
    /// Whether some lane may hold frames of pushes.
    holds: bool,
}

/// Why a poll of the lanes ended early.
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

impl LaneState {
    fn new(server: usize, applier: usize, link: &dyn ServerLink, open: OpenLane) -> Option<Self> {
        let bytes = link.ring_bytes();
        let ring = RingGeometry::new(bytes)
            .filter(|_| (RING_BYTES_MIN..=RING_BYTES_MAX).contains(&bytes))?;
        let session = link.session();
        // Frames carry a checksum where the transport may place bytes out of order.
        let kind = open.lane.transport();
        let checked = matches!(kind, TransportKind::Verbs | TransportKind::Sim);
        let applier = ApplierId(applier as u16);
        let mut ring = PushRing::new(session, ring, checked, link.counter(applier));
        ring.learn(open.state);
        Some(Self {
            server,
            applier,
            session,
            ring,
            replies: Replies::new(bytes),
            finished: Vec::new(),
            mapping: open.lane.mapping(),
            lane: open.lane,
            broken: None,
            rejects_seen: open.state.rejected,
            rejects: Rejects::default(),
            silence: StallDetector::default(),
            status: StatusCopy::new(open.status),
            calls: vec![NO_PUSH; FRAMES_IN_FLIGHT_MAX as usize].into(),
            reject_late: None,
            clocks: [ClockLine::default(); DOMAINS_MAX],
        })
    }

    /// The client's end of the lane, for reads.
    pub(crate) fn lane(&mut self) -> &mut dyn ClientLane {
        &mut *self.lane
    }

    /// Takes a completed batch with a tag of [`Lanes::read_tag`]. Drops batches of calls that ended
    /// before their reads did.
    pub(crate) fn take_finished(&mut self, tag: u64) -> Option<ReadBatch> {
        self.finished
            .retain(|batch| batch.tag & CALL_TAG == 0 || batch.tag == tag);
        let at = self.finished.iter().position(|batch| batch.tag == tag)?;
        Some(self.finished.swap_remove(at))
    }

    /// Whether a frame can be built without a wait. Also true for one that is too large for the ring:
    /// [`Lanes::build`] refuses it.
    pub(crate) fn has_room_now(&self, payload_len: usize) -> bool {
        payload_len > self.ring.payload_bytes_max() || self.ring.has_room(payload_len)
    }

    /// Sends the frames that are built in the ring.
    pub(crate) fn send(&mut self) -> Result<(), LaneError> {
        self.ring.send(&mut *self.lane)
    }

    /// Processes what the server posted: the status, and the rejects that came before it.
    fn learn(&mut self, counters: &mut Counters) -> Result<(), LaneError> {
        self.lane.poll()?;
        while let Some(batch) = self.lane.poll_read() {
            if batch.tag == STATUS_TAG {
                if let Some(state) = self.status.arrived(batch, self.session.0) {
                    self.believe(state, counters)?;
                }
                continue;
            }
            self.finished.push(batch);
        }
        let line = self.lane.mailbox().line(MAILBOX_STATE_AT);
        match StateLine::from_line(&line, self.session.0) {
            Some(state) => self.believe(state, counters),
            None => Ok(()),
        }
    }

    /// Accepts a status, of the mailbox or of its public copy. It must be possible and no step back,
    /// and the reject records that it counts must have arrived.
    #[inline]
    fn believe(&mut self, state: StateLine, counters: &mut Counters) -> Result<(), LaneError> {
        if state.rejected == self.rejects_seen
            || (self.ring.is_news(&state) && self.collect_rejects(state, counters)?)
        {
            self.ring.learn(state);
        }
        Ok(())
    }

    /// Collects the reject records that `state` counts. Returns false while some of them have not
    /// arrived, because records of a mailbox become visible in any order (F15). The status is not
    /// accepted before: it is not known which of its frames were refused.
    ///
    /// # Errors
    /// [`LaneError::Broken`] when a record does not arrive within [`FRAME_LATE_MAX`]: a recovery of the
    /// lane posts all records again.
    #[cold]
    fn collect_rejects(
        &mut self,
        state: StateLine,
        counters: &mut Counters,
    ) -> Result<bool, LaneError> {
        let (first, last) = (self.ring.state().applied_seq + 1, state.applied_seq);
        let due = state.rejected.wrapping_sub(self.rejects_seen);
        let record = |seq| {
            let line = self.lane.mailbox().line(mailbox_reject_at(seq));
            Reject::from_line(&line, self.session.0).filter(|reject| reject.seq == seq)
        };
        let found: Vec<Reject> = (first..=last).filter_map(record).collect();
        let arrived = found.len() as u64;
        if arrived < due && due <= last + 1 - first && !mutants::on(Mutant::RejectNotAwaited) {
            let late = || Deadline::after(FRAME_LATE_MAX);
            if !self.reject_late.get_or_insert_with(late).passed() {
                return Ok(false);
            }
            return Err(LaneError::Broken {
                transport: self.lane.transport(),
                peer: self.lane.peer().to_owned(),
                op: "reading reject records",
                why: format!(
                    "its status counts {due} refused frames among {first} to {last}, {arrived} of \
                     their records have arrived within {FRAME_LATE_MAX:?}"
                ),
            });
        }
        self.reject_late = None;
        for reject in found {
            counters.rejects += 1;
            let call = self.calls[call_slot(reject.seq)];
            counters.rejects_unclaimed += u64::from(self.rejects.add(reject, call));
        }
        if arrived != due {
            // There are more records than the status counts, or the count is impossible: the server is
            // in error. No frame counts as applied.
            self.rejects.lose(first, last, counters.pushes);
        }
        self.rejects_seen = state.rejected;
        Ok(true)
    }

    /// The clock of a domain as this lane's applier reports it. A record that is being written, or has
    /// not arrived on a new lane, does not validate; the last valid one then stands.
    pub(crate) fn clock(&mut self, domain: DomainId) -> ClockLine {
        let line = self.lane.mailbox().line(mailbox_clock_at(domain.0));
        let told = ClockLine::from_line(&line, self.session.0, domain.0);
        let Some(known) = self.clocks.get_mut(domain.0 as usize) else {
            return ClockLine::default();
        };
        *known = told.unwrap_or(*known);
        *known
    }
}

/// Index of the call of a frame in `calls`. Frames in flight never share an index.
const fn call_slot(seq: u64) -> usize {
    (seq % FRAMES_IN_FLIGHT_MAX) as usize
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
            tend_at: Deadline::after(TEND_EVERY),
            servers: made,
            all,
            parker,
            coordinator,
            read_tags: 0,
            counters: Counters::default(),
            push_batch: 1,
            holds: false,
        })
    }

    /// Number of lanes of all servers.
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// Number of servers of the job.
    pub(crate) fn servers(&self) -> usize {
        self.servers.len()
    }

    /// Number of appliers of a server.
    pub(crate) fn appliers(&self, server: usize) -> usize {
        self.servers.get(server).map_or(0, |s| s.lanes)
    }

    /// The control connection of a server.
    pub(crate) fn link(&mut self, server: usize) -> Option<&mut Box<dyn ServerLink>> {
        self.servers.get_mut(server).map(|s| &mut s.link)
    }

    /// Name of a lane's server.
    pub(crate) fn name(&self, lane: usize) -> &str {
        let server = self.all.get(lane).and_then(|l| self.servers.get(l.server));
        server.map_or("unknown server", |s| s.link.name())
    }

    /// The lane to an owner of partitions.
    pub(crate) fn of(&self, owner: Owner) -> Option<usize> {
        let server = self.servers.get(owner.server.0 as usize)?;
        let applier = owner.applier.0 as usize;
        (applier < server.lanes).then_some(server.first_lane + applier)
    }

    /// Whether the memory of some server may be mapped in this process.
    pub(crate) const fn any_mapped(&self) -> bool {
        self.any_mapped
    }

    /// The public memory of a lane's server, if it is mapped and the lane is not broken.
    #[inline]
    pub(crate) fn mapped(&self, lane: usize) -> Option<Mapped<'_>> {
        let lane = self.all.get(lane).filter(|l| l.broken.is_none())?;
        lane.mapping.as_ref()?.look()
    }

    /// A lane by number, which must be one that `of` returned.
    pub(crate) fn get(&mut self, lane: usize) -> &mut LaneState {
        &mut self.all[lane]
    }

    /// A new tag for a batch that its call collects with [`LaneState::take_finished`].
    pub(crate) const fn read_tag(&mut self) -> u64 {
        self.read_tags += 1;
        CALL_TAG | self.read_tags
    }

    /// Whether the memory of a lane's server is mapped: its reads never wait.
    pub(crate) fn is_mapped(&self, lane: usize) -> bool {
        self.all.get(lane).is_some_and(|l| l.mapping.is_some())
    }

    /// Whether a lane has to be recovered before use.
    pub(crate) fn is_broken(&self, lane: usize) -> bool {
        self.all.get(lane).is_some_and(|l| l.broken.is_some())
    }

    /// Records that a lane failed; a fatal error marks it as broken.
    pub(crate) fn failed(&mut self, lane: usize, e: LaneError) -> Interrupt {
        if !e.is_fatal() {
            return Interrupt::Failed(e.into());
        }
        self.all[lane].broken = Some(e);
        Interrupt::Broken(lane)
    }

    /// Polls every lane. The first broken lane interrupts.
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

    /// Waits until `look` returns a result; recovers lanes that break meanwhile.
    pub(crate) fn wait<T>(
        &mut self,
        op: &'static str,
        deadline: Deadline,
        look: impl FnMut(&mut Self) -> Result<Option<T>, Interrupt>,
    ) -> Result<T, ClientError> {
        self.wait_and(op, deadline, |_| {}, look)
    }

    /// Waits like [`Self::wait`], and calls `each` about once a second.
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
                    self.mend(lane, deadline)?;
                    now = clock::now();
                    continue;
                }
            }
            // `wait_until` called `look` once more after the deadline.
            if slice >= deadline {
                let missing = self.missing();
                return Err(self.blame(ClientError::Deadline { op, missing }));
            }
            now = clock::now();
            if now >= coordinator_at {
                // The awaited process may have died.
                interrupt::check(op)?;
                self.coordinator.check()?;
                self.tend_now(deadline)?;
                each(self);
                now = clock::now();
                coordinator_at = now + COORDINATOR_LOOK;
            }
        }
    }

    /// Records the state of each lane. Returns whether some lane has unanswered frames and a public
    /// copy of its status.
    fn watch_statuses(&mut self, now: Instant) -> bool {
        let mut any = false;
        for l in &mut self.all {
            any |= l.status.watch(now, l.ring.is_unanswered(), l.ring.state());
        }
        any
    }

    /// Reads the public copy of each status that has not moved for [`STATUS_LOOK`]. A lane that fails
    /// is broken for the next poll.
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

    /// Keeps the sessions alive if a check is due: calls that do not wait do this too. On one host a
    /// connection ends only with its other end: there it costs nothing.
    #[inline]
    pub(crate) fn tend(&mut self) -> Result<(), ClientError> {
        if self.remote && self.tend_at.passed() {
            return self.tend_now(Deadline::after(TEND_EVERY));
        }
        Ok(())
    }

    #[cold]
    fn tend_now(&mut self, deadline: Deadline) -> Result<(), ClientError> {
        self.tend_at = Deadline::after(TEND_EVERY);
        for server in &mut self.servers {
            if let Err(e) = server.link.check(deadline) {
                return Err(self.blame(e));
            }
        }
        self.give_up_silent();
        Ok(())
    }

    /// Marks lanes over TCP as broken if their frames go unanswered for too long.
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

    /// Sleeps for `time`, or until a waker fires.
    pub(crate) fn nap(&mut self, time: Duration) {
        self.parker.prepare_park();
        self.parker.park_until(Deadline::after(time));
        self.parker.cancel_park();
    }

    /// Names the servers that have not answered, for a deadline error.
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

    /// Makes the error of a read that missed its deadline.
    #[cold]
    pub(crate) fn late_read(&mut self, lane: usize) -> ClientError {
        let applier = self.all[lane].applier;
        let missing = format!("rows of server {} applier {applier}", self.name(lane));
        let op = "pull";
        self.blame(ClientError::Deadline { op, missing })
    }

    /// Replaces an error by the coordinator's reason, if there is one. When a process dies the servers
    /// end too, and this client may notice the end of a server first. The reason is then still under
    /// way, over another connection than the server's end.
    #[cold]
    pub(crate) fn blame(&mut self, seen: ClientError) -> ClientError {
        let reason = match &seen {
            ClientError::ServerLost { .. } => self.coordinator.check_within(COORDINATOR_LOOK),
            ClientError::Refused(refusal) if refusal.code == RefusalCode::ShuttingDown => {
                self.coordinator.check_within(COORDINATOR_LOOK)
            }
            _ => self.coordinator.check(),
        };
        reason.err().unwrap_or(seen)
    }

    /// Threads of workers that a server counts in a domain, with their clocks; `None` without such a server.
    pub(crate) fn members(
        &mut self,
        server: usize,
        domain: DomainId,
        deadline: Deadline,
    ) -> Result<Option<Vec<(WorkerThread, u64)>>, ClientError> {
        let Some(s) = self.servers.get_mut(server) else {
            return Ok(None);
        };
        loop {
            let slice = Deadline::after(COORDINATOR_LOOK * 4).min(deadline);
            match s.link.clocks(domain, slice) {
                Ok(members) => return Ok(Some(members)),
                // A slice has ended. The next one follows, unless the job has ended: a dead server
                // answers none.
                Err(ClientError::Deadline { .. } | ClientError::ServerLost { .. })
                    if slice.left() <= COORDINATOR_LOOK && !deadline.passed() =>
                {
                    self.coordinator.check()?;
                }
                // The coordinator may know why the server ended.
                Err(e) => return Err(self.blame(e)),
            }
        }
    }

    /// Ends the sessions with all servers; the client has nothing more to send. A call after an error
    /// continues with the server that failed.
    pub(crate) fn end_sessions(&mut self, deadline: Deadline) -> Result<(), ClientError> {
        for server in &mut self.servers {
            if server.ended {
                continue;
            }
            if let Err(error) = server.link.end_session(deadline) {
                return Err(self.blame(error));
            }
            server.ended = true;
        }
        Ok(())
    }

    /// Whether [`Self::end_sessions`] has ended one.
    pub(crate) fn has_ended_sessions(&self) -> bool {
        self.servers.iter().any(|server| server.ended)
    }

    /// Re-establishes a broken lane and re-sends what the server has not consumed.
    pub(crate) fn mend(&mut self, lane: usize, deadline: Deadline) -> Result<(), ClientError> {
        loop {
            let (server, applier) = (self.all[lane].server, self.all[lane].applier);
            // A lane that breaks after every recovery must not loop for ever.
            if deadline.passed() {
                let (op, missing) = ("recover a lane", format!("server {}", self.name(lane)));
                return Err(self.blame(ClientError::Deadline { op, missing }));
            }
            // A killed server recovers nothing; the coordinator is about to report it.
            let mapping = self.all[lane].mapping.as_ref();
            let ended = mapping.is_some_and(Mapping::has_ended);
            if ended {
                self.coordinator.check_within(COORDINATOR_LOOK)?;
            }
            let Some(s) = self.servers.get_mut(server) else {
                return Ok(());
            };
            // A busy server needs longer for a recovery, so it gets four times the time.
            let looks = if ended { 1 } else { 4 };
            let slice = Deadline::after(COORDINATOR_LOOK * looks).min(deadline);
            let open = match s.link.recover(applier, slice) {
                Ok(open) => open,
                // Tries again, unless the job has ended: the server may have died.
                Err(ClientError::Deadline { .. } | ClientError::ServerLost { .. })
                    if !deadline.passed() =>
                {
                    self.coordinator.check()?;
                    continue;
                }
                Err(e) => return Err(self.blame(e)),
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
            match l.ring.resend(open.state.head_bytes, &mut *l.lane) {
                Ok(()) => return Ok(()),
                Err(e) => l.broken = Some(e),
            }
        }
    }

    /// Whether every frame of a ticket is applied; returns lane and reason of the first refused one.
    pub(crate) fn try_applied(&mut self, ticket: &Ticket) -> Option<Result<(), (usize, Refused)>> {
        let done = |p: crate::push::ticket::LaneSeqs, lanes: &Self| {
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
            if let Some(why) = l.rejects.among(p.first, p.last) {
                refused = refused.or(Some((lane, why)));
            }
        }
        Some(refused.map_or(Ok(()), Err))
    }

    /// Builds a frame in a lane's ring; waits for room.
    pub(crate) fn build(
        &mut self,
        lane: usize,
        header: FrameHeader,
        payload_len: usize,
        fill: impl FnOnce(&mut [u8]),
        deadline: Deadline,
    ) -> Result<u64, ClientError> {
        let l = &self.all[lane];
        let most = l.ring.payload_bytes_max();
        if payload_len > most {
            return Err(ClientError::Argument {
                op: "push",
                table: header.table.to_string(),
                what: format!(
                    "a frame of {payload_len} bytes; the ring takes at most {most}: raise ring_bytes or \
                     memory_budget"
                ),
            });
        }
        if !l.ring.has_room(payload_len) {
            self.send(lane, deadline)?;
            let mut waits = vec![0; self.all.len()];
            waits[lane] = payload_len;
            self.wait_room(&waits, deadline)?;
        }
        let l = &mut self.all[lane];
        let built = l.ring.build(header, payload_len, fill);
        let seq = built.ok_or_else(|| ClientError::Deadline {
            op: "push",
            missing: "room".into(),
        })?;
        // What a ticket names: pushes, and settings.
        let call = match header.kind.is_push() || header.kind == FrameKind::Settings {
            true => self.counters.pushes,
            false => NO_PUSH,
        };
        l.calls[call_slot(seq)] = call;
        self.counters.frames += 1;
        self.counters.bytes_pushed += payload_len as u64 + 64;
        Ok(seq)
    }

    /// Sets the number of frames of pushes that leave a lane together.
    pub(crate) const fn set_push_batch(&mut self, frames: u32) {
        self.push_batch = if frames == 0 { 1 } else { frames as u64 };
    }

    /// Sends the frames of a push, or holds them: they leave with those of later pushes, or with the next
    /// call that is not a push ([`Self::send_held`]).
    pub(crate) fn send_or_hold(
        &mut self,
        lane: usize,
        deadline: Deadline,
    ) -> Result<(), ClientError> {
        let ring = &self.all[lane].ring;
        if ring.unsent_frames() < self.push_batch && ring.unsent() < HELD_BYTES {
            self.holds = true;
            return Ok(());
        }
        self.send(lane, deadline)
    }

    /// Sends the frames that lanes hold. Costs nothing where none is held.
    #[inline]
    pub(crate) fn send_held(&mut self, deadline: Deadline) -> Result<(), ClientError> {
        if !self.holds || mutants::on(Mutant::HeldPushesStay) {
            return Ok(());
        }
        self.send_all(deadline)
    }

    /// Sends frames that are built in any ring and not sent; held ones, and those that a failed call has
    /// left.
    pub(crate) fn send_all(&mut self, deadline: Deadline) -> Result<(), ClientError> {
        for lane in 0..self.all.len() {
            if self.all[lane].ring.unsent() > 0 {
                self.send(lane, deadline)?;
            }
        }
        // After a failure some lanes may still hold frames.
        self.holds = false;
        Ok(())
    }

    /// Sends built frames and waits until every frame of every lane is acknowledged: applied, held for
    /// a tick, or refused.
    pub(crate) fn settle(
        &mut self,
        op: &'static str,
        deadline: Deadline,
    ) -> Result<(), ClientError> {
        if !mutants::on(Mutant::FlushWithoutSend) {
            self.send_all(deadline)?;
        }
        self.wait(op, deadline, |lanes| {
            Ok(lanes.all.iter().all(|l| l.ring.is_drained()).then_some(()))
        })
    }

    /// Waits until a frame without payload has room in every ring.
    pub(crate) fn wait_room_everywhere(
        &mut self,
        payload_len: usize,
        deadline: Deadline,
    ) -> Result<(), ClientError> {
        let has_room = |lanes: &Self| lanes.all.iter().all(|l| l.ring.has_room(payload_len));
        if has_room(self) {
            return Ok(());
        }
        self.counters.credit_waits += 1;
        self.send_all(deadline)?;
        self.wait("wait for room in a ring", deadline, |lanes| {
            Ok(has_room(lanes).then_some(()))
        })
    }

    /// Takes the refusal of the earliest push that nothing has claimed, and claims all of that push.
    pub(crate) fn claim_refusal(&mut self) -> Option<(usize, Refused)> {
        if mutants::on(Mutant::UnclaimedRefusalIgnored) {
            return None;
        }
        let open = self.all.iter().enumerate();
        let open = open.filter_map(|(n, l)| l.rejects.unclaimed().map(|found| (n, found)));
        let (lane, (call, why)) = open.min_by_key(|&(_, (call, _))| call)?;
        for l in &mut self.all {
            l.rejects.claim(call);
        }
        Some((lane, why))
    }

    /// Whether a frame of a push has to wait for room in the ring of its lane. The frames of other lanes
    /// go on first.
    #[inline]
    pub(crate) fn is_full(&self, lane: usize, payload_len: usize) -> bool {
        !self.all[lane].has_room_now(payload_len) && !mutants::on(Mutant::FullRingHoldsOthers)
    }

    /// Waits until a lane has room for its frame; `waits` has the payload bytes of each lane's frame, or
    /// 0. Returns false if no lane waits.
    pub(crate) fn wait_room(
        &mut self,
        waits: &[usize],
        deadline: Deadline,
    ) -> Result<bool, ClientError> {
        if waits.iter().all(|&bytes| bytes == 0) {
            return Ok(false);
        }
        self.counters.credit_waits += 1;
        // Frames that an earlier call built and could not send would hold their room for ever.
        for (lane, &bytes) in waits.iter().enumerate() {
            if bytes > 0 {
                self.send(lane, deadline)?;
            }
        }
        self.wait("wait for room in a ring", deadline, |lanes| {
            let mut pairs = lanes.all.iter().zip(waits);
            let room = pairs.any(|(l, &bytes)| bytes > 0 && l.has_room_now(bytes));
            Ok(room.then_some(true))
        })
    }

    /// Sends the frames that are built in a lane's ring.
    pub(crate) fn send(&mut self, lane: usize, deadline: Deadline) -> Result<(), ClientError> {
        self.tend()?;
        if self.all[lane].broken.is_none() {
            match self.all[lane].send() {
                Ok(()) => return Ok(()),
                Err(e) => match self.failed(lane, e) {
                    Interrupt::Failed(e) => return Err(e),
                    Interrupt::Broken(_) => {}
                },
            }
        }
        // The recovery writes everything that was built.
        self.mend(lane, deadline)
    }
}

/// Stands in while the parker is moved out; never used.
struct NoSleep;

impl Parker for NoSleep {
    fn prepare_park(&mut self) {}
    fn park_until(&mut self, _: Deadline) {}
    fn cancel_park(&mut self) {}
}
