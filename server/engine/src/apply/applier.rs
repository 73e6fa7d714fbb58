//! The applier: one thread that owns partitions, their rings and lanes. (long: one loop of one thread.)
//! It is the only writer of their rows.
//!
//! [`Applier::step`] does a bounded amount of everything and never blocks; [`Applier::run`] steps,
//! and sleeps when nothing moves. The simulator calls `step` itself.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::Receiver;
use tidewater_lanes::fabric::{Inbox, Parker, RegionTableView};
use tidewater_protocol::ids::{DomainId, SessionId, WorkerId};
use tidewater_protocol::layout::frame::{FrameHeader, FrameKind};
use tidewater_protocol::layout::lines::StateLine;
use tidewater_protocol::layout::reject::RejectReason;
use tidewater_protocol::layout::reply::{REPLY_HEADER_BYTES, ReplyHeader};
use tidewater_protocol::layout::session::{
    REPLY_SLOTS, mailbox_clock_at, mailbox_reply_at, reply_slot_bytes,
};
use tidewater_protocol::layout::{LINE_BYTES, line_bytes};
use tidewater_protocol::limits::{APPLY_BATCH_BYTES, APPLY_BATCH_ROWS};
use tidewater_protocol::mutants::{self, Mutant};
use tidewater_runtime::clock::Deadline;
use tidewater_runtime::wait::wait_until;

mod ending;

use self::ending::Ending;
use super::Refusal;
use super::command::Command;
use super::engine::{Effect, Engine};
use super::status::ApplierReport;
use crate::namespace::{DomainKey, FrameSender, NamespaceId};
use crate::ring_reader::{Next, Ring, RingRecord};
use crate::store::prealloc::Preallocator;
use crate::store::{ResumeError, ServerMemory, StoreError};

/// Longest sleep of an idle applier's thread. Nothing depends on it: every command and every frame wakes
/// the thread. A lane with operations in flight shortens it.
const IDLE: Duration = Duration::from_secs(3600);
/// Longest sleep of the applier's thread while a device (NIC) ends a lane, the connection of a session. The
/// device does not wake the thread when the lane has ended, so the thread polls.
const ENDING: Duration = Duration::from_millis(1);
/// Number of rings from which on the client that has ticked last may run before the others are signalled. A
/// signal is a system call over TCP: signals to 200 observers take longer than the client's whole publication.
const MANY_RINGS: usize = 8;

/// One applier: the only writer of its partitions, with the push rings of its sessions and their lanes
/// (connections). Runs on one thread.
pub struct Applier {
    engine: Engine,
    number: u32,
    memory: Arc<ServerMemory>,
    exports: RegionTableView,
    rings: Vec<Ring>,
    /// Number of late frames in rings that were removed.
    late_frames_before: u64,
    commands: Receiver<Command>,
    /// Payload of the frame that is being consumed. Working memory.
    payload: Vec<u8>,
    /// Index in `rings` of the ring with the frame that moved a clock most recently.
    last_to_tick: usize,
    /// Commands that wait until the lane of their ring has ended, oldest first.
    ending: Vec<(SessionId, Ending)>,
    stopped: bool,
}

impl std::fmt::Debug for Applier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut s = f.debug_struct("Applier");
        s.field("engine", &self.engine)
            .field("rings", &self.rings)
            .finish_non_exhaustive()
    }
}

/// Outcome of one frame: applied, or refused with a reason.
enum Done {
    Applied,
    Refused(Refusal),
}

impl Applier {
    /// Creates an applier without tables and rings. `number` is its number within the server. `workers` are
    /// members of every clock domain of every job. Without workers (a service) each job sets its own.
    ///
    /// # Errors
    /// [`StoreError`] when memory is used up.
    pub fn new(
        memory: Arc<ServerMemory>,
        number: u32,
        workers: impl IntoIterator<Item = WorkerId>,
        commands: Receiver<Command>,
    ) -> Result<Self, StoreError> {
        let engine = Engine::new(Arc::clone(&memory), number, workers)?;
        Ok(Self::of_parts(engine, memory, number, commands))
    }

    fn of_parts(
        engine: Engine,
        memory: Arc<ServerMemory>,
        number: u32,
        commands: Receiver<Command>,
    ) -> Self {
        Self {
            engine,
            number,
            exports: memory.exports.view(),
            memory,
            rings: Vec::new(),
            late_frames_before: 0,
            commands,
            payload: Vec::new(),
            last_to_tick: 0,
            ending: Vec::new(),
            stopped: false,
        }
    }

    /// Creates the successor of an applier that died with its process, from the server's memory alone: the
    /// tables that outlive their process, and the push rings, which have no lanes (connections) yet. `inbox`
    /// creates the inbox of a ring from its record. A ring continues as after any broken lane:
    /// `Command::Recover` answers its position, `Command::AttachPort` brings its lane, and its client sends
    /// again what was not applied. The caller resumes all appliers of a server before the first of them
    /// steps.
    ///
    /// Cost: reads and hashes each row of a sparse table, and makes its index.
    ///
    /// # Errors
    /// [`ResumeError`]; the memory can be resumed again.
    pub fn resume(
        memory: Arc<ServerMemory>,
        number: u32,
        workers: impl IntoIterator<Item = WorkerId>,
        commands: Receiver<Command>,
        preallocator: &Preallocator,
        inbox: impl FnMut(&RingRecord) -> Result<Inbox, StoreError>,
    ) -> Result<Self, ResumeError> {
        let workers = workers.into_iter().collect();
        let mut resumed = Engine::resume(&memory, number, workers, preallocator)?;
        let rings = Ring::resume_all(&memory, number, resumed.push, inbox)?;
        let applied = rings.iter().map(|(ring, _)| ring);
        let applied = applied.map(|ring| (ring.session.0, ring.state().applied_seq));
        resumed
            .engine
            .resume_held(&applied.collect(), resumed.lost)?;
        let mut applier = Self::of_parts(resumed.engine, memory, number, commands);
        for (ring, rows) in rings {
            applier.engine.expect_cut(ring.session, ring.state(), rows);
            applier.rings.push(ring);
        }
        Ok(applier)
    }

    /// Iterates over the push rings of this applier. Those of a successor have no lanes yet.
    pub fn rings(&self) -> impl Iterator<Item = &Ring> {
        self.rings.iter()
    }

    /// Runs the applier until it is stopped or fails: blocks, steps, and parks the thread when there is
    /// nothing to do. Ends all lanes before it returns.
    pub fn run(&mut self, parker: &mut dyn Parker) {
        while !self.stopped {
            let found = wait_until(parker, Deadline::after(self.poll_hint()), || {
                Ok::<_, std::convert::Infallible>(self.step().then_some(()))
            });
            let _ = found;
        }
        // All begin to end before the first is waited for.
        for ring in &mut self.rings {
            ring.end_port();
        }
        for ring in &mut self.rings {
            ring.destroy_port();
        }
    }

    /// Longest time for which the applier's thread may stay parked: the shortest that one of its lanes asks
    /// for, at most `IDLE`, or `ENDING` while a command waits for the end of a lane.
    fn poll_hint(&self) -> Duration {
        let ports = self.rings.iter().filter_map(|ring| ring.port.as_ref());
        // The thread that ends a lane does not wake this one.
        let most = if self.ending.is_empty() { IDLE } else { ENDING };
        ports
            .filter_map(|port| port.poll_hint())
            .fold(most, Duration::min)
    }

    /// Whether the applier has been stopped by a command, or has failed.
    pub const fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// Returns the memory of the applier's server, for tests to inspect.
    #[cfg(all(test, feature = "mutants"))]
    pub(super) fn memory_of(&self) -> Arc<ServerMemory> {
        Arc::clone(&self.memory)
    }

    /// Returns the applier's engine, for tests to inspect.
    pub const fn engine(&mut self) -> &mut Engine {
        &mut self.engine
    }

    /// Makes one round over commands, tick work, rings and saves. Its work is bounded and it never blocks.
    /// Returns whether anything moved or tick work is left; true also if the applier has failed.
    pub fn step(&mut self) -> bool {
        let mut moved = self.commands();
        moved |= self.end_lanes();
        self.engine.apply_deferred();
        moved |= self.engine.tick_step();
        let mut n = 0;
        while n < self.rings.len() && !self.has_failed() {
            match self.serve(n) {
                Ok(served) => moved |= served,
                Err(why) => {
                    tracing::debug!(session = %self.rings[n].session, why, "lane ended");
                    self.rings[n].end_port();
                    moved = true;
                }
            }
            n += 1;
        }
        if let Some(why) = self.engine.failed.as_ref().filter(|_| self.has_failed()) {
            // Acknowledged state is not what it should be: no clock is announced.
            tracing::error!("this applier stops: {why}");
            self.stopped = true;
            return true;
        }
        // Last: pushes come before the copies of a save.
        moved | self.announce_clocks() | self.engine.save_step() | self.engine.is_ticking()
    }

    /// Whether the applier has failed, because acknowledged work was lost, and must stop.
    fn has_failed(&self) -> bool {
        self.engine.failed.is_some() && !mutants::on(Mutant::ApplierGoesOn)
    }

    /// Reason why the applier has failed; `None` if it has not, also after [`Command::Stop`].
    pub fn failure(&self) -> Option<&str> {
        self.engine.failed.as_deref()
    }

    fn commands(&mut self) -> bool {
        let mut any = false;
        while let Ok(command) = self.commands.try_recv() {
            any = true;
            self.command(command);
        }
        any
    }

    /// Carries out one command. Its answer is dropped if the receiver has gone.
    fn command(&mut self, command: Command) {
        match command {
            Command::AddRing(ring, tx) => {
                self.add_ring(*ring);
                let _ = tx.send(());
            }
            Command::AttachPort(session, port, tx) => {
                let _ = tx.send(self.attach(session, port));
            }
            Command::Renew(session, inbox, port, tx) => {
                if let Some(n) = self.ring(session) {
                    self.rings[n].renew(inbox);
                }
                let _ = tx.send(self.attach(session, port));
            }
            Command::Recover(session, reply) => {
                self.ending.push((session, Ending::Recover(reply)));
                self.end_lanes();
            }
            Command::DropRing(session, tx) => {
                self.ending.push((session, Ending::Drop(tx)));
                self.end_lanes();
            }
            Command::Expect(namespace, workers, tx) => {
                self.engine.expect_workers(namespace, workers);
                let _ = tx.send(());
            }
            Command::RemoveWorker(namespace, worker, tx) => {
                self.engine.remove_worker(namespace, worker);
                let _ = tx.send(());
            }
            Command::FinishTask(namespace, thread, task, tx) => {
                let mut pause = || poll_lanes(&mut self.rings, &mut self.exports);
                self.engine.finish_task(namespace, thread, task, &mut pause);
                let _ = tx.send(());
            }
            Command::HoldClocks(namespace, tx) => {
                let _ = tx.send(self.engine.hold_clocks(namespace));
            }
            Command::Admit(namespace, admitted, tx) => {
                let begins = match &admitted {
                    Some((rank, _)) => self.drop_rings_of(namespace, *rank),
                    None => false,
                };
                self.engine.admit_worker(namespace, admitted);
                let _ = tx.send(begins);
            }
            Command::EndJob(namespace, tx) => {
                self.engine.end_job(namespace);
                let _ = tx.send(());
            }
            Command::AddTable(table, tx) => {
                self.engine.add_table(*table);
                let _ = tx.send(());
            }
            Command::TakeTable(id, tx) => {
                let _ = tx.send(self.engine.take_table(id).map(Box::new));
            }
            Command::With(f) => f(&mut self.engine),
            Command::Stop => self.stopped = true,
            Command::Report(tx) => {
                let report = self.report();
                let _ = tx.send(report);
            }
        }
    }

    /// Builds the report for operators: the state of the engine, and the refused and late frames of the
    /// rings.
    fn report(&mut self) -> ApplierReport {
        let refused = |ring: &Ring| (ring.session, ring.state().rejected);
        let late: u64 = self.rings.iter().map(Ring::late_frames).sum();
        ApplierReport {
            refused: self.rings.iter().map(refused).collect(),
            late_frames: self.late_frames_before + late,
            ..self.engine.report()
        }
    }

    /// Adds the ring of a new session to those that the applier serves, and posts all clocks of the job to
    /// its client. The first thread of a worker joins the job's clocks; its further threads and observers
    /// do not.
    fn add_ring(&mut self, ring: Ring) {
        self.join(&ring);
        ring.begin(self.number);
        self.rings.push(ring);
        let last = self.rings.len() - 1;
        if let Err(e) = self.tell_clocks(last) {
            // Its client recovers the lane, and gets the state then.
            tracing::debug!(session = %self.rings[last].session, %e, "lane ended");
            self.rings[last].end_port();
        }
    }

    fn join(&mut self, ring: &Ring) {
        let FrameSender { thread, namespace } = ring.sender;
        let counts = !ring.sender.is_observer() || mutants::on(Mutant::ObserverCounts);
        if thread.is_first() && counts {
            self.engine.join_worker(namespace, thread.rank);
        }
    }

    /// Drops the rings that an earlier worker of this rank has left, with the frames in them. Returns
    /// false, and drops nothing, if the rank is a member of the job's clocks now; otherwise true, also if
    /// there was no ring.
    fn drop_rings_of(&mut self, namespace: NamespaceId, rank: WorkerId) -> bool {
        if self.engine.clocks(namespace).threads(rank).next().is_some() {
            return false;
        }
        let of_rank =
            |ring: &Ring| (ring.sender.namespace, ring.sender.thread.rank) == (namespace, rank);
        while let Some(n) = self.rings.iter().position(of_rank) {
            self.drop_ring(self.rings[n].session);
        }
        true
    }

    fn ring(&self, session: SessionId) -> Option<usize> {
        self.rings.iter().position(|r| r.session == session)
    }

    fn attach(
        &mut self,
        session: SessionId,
        port: Box<dyn tidewater_lanes::fabric::ServerLane>,
    ) -> bool {
        let Some(n) = self.ring(session) else {
            return false;
        };
        let ring = &mut self.rings[n];
        let attached = ring.attach(port).is_ok()
            && self.tell_clocks(n).is_ok()
            && self.rings[n]
                .port
                .as_mut()
                .is_some_and(|p| p.signal().is_ok());
        if !attached {
            self.rings[n].end_port();
        }
        attached
    }

    fn recover(&mut self, session: SessionId) -> Option<StateLine> {
        // Its lane has ended: nothing arrives, so complete frames now are all there will be.
        let n = self.ring(session)?;
        // One ring's worth, so that a client that still writes (shared memory cannot be taken away)
        // does not keep the applier here.
        let most = self.rings[n].inbox().ring().bytes() as usize;
        if let Err(why) = self.consume(n, most, usize::MAX) {
            // The client sends again what could not be consumed.
            tracing::debug!(session = %session, why, "the rest of a lane is not consumed");
        }
        self.publish_alone(n);
        Some(self.rings[n].rewind())
    }

    fn drop_ring(&mut self, session: SessionId) {
        if let Some(n) = self.ring(session) {
            self.engine.end_session(session);
            let ring = self.rings.swap_remove(n);
            self.late_frames_before += ring.late_frames();
            let released = ring.release(&self.memory);
            assert!(
                released.is_ok(),
                "a ring's line is not of this memory: {released:?}"
            );
        }
    }

    /// Publishes the state of ring `n` (last applied frame, read position) in its public status record only:
    /// the ring has no lane, over which the client would get it. No effect once the applier has failed.
    fn publish_alone(&mut self, n: usize) {
        if self.has_failed() {
            return;
        }
        let published = self.rings[n].publish(&self.memory);
        assert!(
            published.is_ok(),
            "a ring without a port cannot fail: {published:?}"
        );
    }

    /// Serves ring `n` once: polls its lane, consumes a batch of frames, publishes its status record.
    /// Returns whether anything moved; false, with no effect, while the lane is broken. An error is the reason
    /// why the lane must end.
    fn serve(&mut self, n: usize) -> Result<bool, String> {
        let Some(polled) = self.rings[n].poll(&mut self.exports) else {
            return Ok(false);
        };
        let mut moved = polled.map_err(|e| e.to_string())?;
        moved |= self.consume(n, APPLY_BATCH_BYTES, APPLY_BATCH_ROWS)?;
        if self.has_failed() {
            return Ok(true);
        }
        let ring = &mut self.rings[n];
        let namespace = ring.sender.namespace;
        let clock_moved = self
            .engine
            .moved
            .iter()
            .any(|key| key.namespace == namespace);
        // A clock that moved is announced at the end of this step, and the state goes with it.
        if ring.publish(&self.memory).map_err(|e| e.to_string())?
            && !clock_moved
            && let Some(port) = &mut ring.port
        {
            port.signal().map_err(|e| e.to_string())?;
        }
        Ok(moved)
    }

    /// Consumes frames of ring `n` until they have `bytes_max` bytes or `rows_max` rows: each is applied or
    /// refused. Ends earlier if no frame is left, at a frame that must wait, and after a function. Returns
    /// whether the ring advanced. The caller must end the lane after an error: its client must recover it, or
    /// is not a Tidewater client.
    fn consume(&mut self, n: usize, bytes_max: usize, rows_max: usize) -> Result<bool, String> {
        if self.rings[n].waiting == Some(self.engine.changes()) {
            // Its next frame waits for its rank's turn, and nothing has changed.
            return Ok(false);
        }
        self.rings[n].waiting = None;
        let mut payload = std::mem::take(&mut self.payload);
        let (mut bytes, mut rows) = (0, 0);
        let mut result = Ok(());
        while bytes < bytes_max && rows < rows_max {
            match self.rings[n].next(&mut payload) {
                Ok(Next::Empty) => break,
                Ok(Next::Skipped) => bytes += LINE_BYTES,
                Ok(Next::Frame(header)) => {
                    match header.kind {
                        FrameKind::PushDense => {}
                        // A function may take as long as a full batch: the other rings come next.
                        FrameKind::Update | FrameKind::Reduce => rows = rows_max,
                        _ => rows += header.count as usize,
                    }
                    // A frame with an unsent answer is not done: it would be taken again and again.
                    if let Err(e) = self.frame(n, &header, &payload) {
                        result = Err(e.to_string());
                        break;
                    }
                    if self.has_failed() || self.rings[n].waiting.is_some() {
                        break;
                    }
                    bytes += header.ring_bytes() as usize;
                }
                Err(e) => {
                    result = Err(e.to_string());
                    break;
                }
            }
        }
        self.payload = payload;
        result.map(|()| bytes > 0)
    }

    /// Applies or refuses one frame of ring `n`, or sets `waiting` and leaves it in the ring if it must wait.
    /// Its reply, if it has a user tag, is posted before the status record counts the frame. The error is that
    /// of posting on the lane, which the caller then ends.
    fn frame(
        &mut self,
        n: usize,
        header: &FrameHeader,
        payload: &[u8],
    ) -> Result<(), tidewater_lanes::fabric::LaneError> {
        let sender = self.rings[n].sender;
        if mutants::on(Mutant::CountedBeforeApplied) {
            self.rings[n].count_early(header);
        }
        let mut pause = || poll_lanes(&mut self.rings, &mut self.exports);
        let applied = self
            .engine
            .frame_with_pauses(sender, header, payload, &mut pause);
        let done = match applied {
            Ok(Effect::Reply { count }) => {
                let refusal = self.reply_too_large(n);
                if header.user_tag != 0 {
                    self.reply(n, header, refusal, count)?;
                }
                refusal.map_or(Done::Applied, Done::Refused)
            }
            Ok(Effect::Wait) => {
                self.rings[n].waiting = Some(self.engine.changes());
                return Ok(());
            }
            Ok(Effect::Clock) => {
                if !self.engine.moved.is_empty() {
                    self.last_to_tick = n;
                }
                Done::Applied
            }
            Ok(Effect::Applied) => Done::Applied,
            Err(refusal) => {
                if header.user_tag != 0 {
                    self.reply(n, header, Some(refusal), 0)?;
                }
                Done::Refused(refusal)
            }
        };
        if self.has_failed() {
            // Neither applied nor refused: it is not acknowledged.
            return Ok(());
        }
        match done {
            Done::Applied => {
                self.rings[n].done(header);
                Ok(())
            }
            Done::Refused(reason) => self.rings[n].reject(header, reason),
        }
    }

    /// Returns the refusal for the reply in `Engine::reply` if it has more bytes than a reply slot of ring
    /// `n`; `None` if it fits. Slots are smaller where the ring is smaller.
    fn reply_too_large(&self, n: usize) -> Option<Refusal> {
        let bytes = self.engine.reply.len() as u64;
        let slot = (reply_slot_bytes(self.ring_bytes(n)) - REPLY_HEADER_BYTES) as u64;
        (bytes > slot).then_some(RejectReason::ReplyTooLarge { bytes, slot })
    }

    fn ring_bytes(&self, n: usize) -> usize {
        self.rings[n].inbox().ring().bytes() as usize
    }

    /// Posts the reply to a request to the client of ring `n`: the payload in `Engine::reply` first, then the
    /// header with the checksum. A reply that is `refused` has no payload. `count` is the number of its rows,
    /// locations or elements. The low byte of the frame's user tag is the number of the reply slot; nothing is
    /// posted if there is no such slot.
    fn reply(
        &mut self,
        n: usize,
        header: &FrameHeader,
        refused: Option<Refusal>,
        count: u32,
    ) -> Result<(), tidewater_lanes::fabric::LaneError> {
        let slot = (header.user_tag & 0xff) as usize;
        if slot >= REPLY_SLOTS {
            return Ok(());
        }
        let payload: &[u8] = if refused.is_some() {
            &[]
        } else {
            &self.engine.reply
        };
        let reply = ReplyHeader {
            kind: header.kind as u16,
            refused,
            user_tag: header.user_tag,
            payload_len: payload.len() as u32,
            count,
            slot: slot as u32,
            table: header.table,
        };
        let at = mailbox_reply_at(slot, self.ring_bytes(n));
        let ring = &mut self.rings[n];
        let checksum = reply.hasher(ring.session.0).finish_bytes(payload);
        ring.post(at + REPLY_HEADER_BYTES, payload)?;
        ring.post(at, &line_bytes(&reply.to_line(checksum)))
    }

    /// Posts the minimum clocks that have moved to all clients of their jobs, as clock records. Returns
    /// whether any had moved. The client that moved a clock last comes first: the others wait for this client in
    /// the next iteration, too. With [`MANY_RINGS`] rings or more, the thread yields its core before it signals
    /// the others, in case the scheduler has put that client here. A lane that fails is ended; its client
    /// recovers it.
    fn announce_clocks(&mut self) -> bool {
        let mut moved = std::mem::take(&mut self.engine.moved);
        moved.dedup();
        for &DomainKey { namespace, domain } in &moved {
            let line = self.engine.clock_line(namespace, domain);
            let of_job = |ring: &&mut Ring| ring.sender.namespace == namespace;
            let last_to_tick = self.last_to_tick.min(self.rings.len());
            let many = self.rings.len() >= MANY_RINGS;
            let (before, from) = self.rings.split_at_mut(last_to_tick);
            let of_job = from.iter_mut().chain(before).filter(of_job);
            for (n, ring) in of_job.enumerate() {
                if n == 1 && many {
                    std::thread::yield_now();
                }
                let bytes = line_bytes(&line.to_line(ring.session.0, domain.0));
                let posted = ring.post(mailbox_clock_at(domain.0), &bytes);
                let sent = posted.and_then(|()| ring.port.as_mut().map_or(Ok(()), |p| p.signal()));
                if sent.is_err() {
                    ring.end_port();
                }
            }
        }
        !moved.is_empty()
    }

    /// Posts the minimum of every domain of its job to the client of ring `n`, which is new or has
    /// recovered.
    fn tell_clocks(&mut self, n: usize) -> Result<(), tidewater_lanes::fabric::LaneError> {
        let ring = &mut self.rings[n];
        let namespace = ring.sender.namespace;
        let domains: Vec<DomainId> = self.engine.clocks(namespace).domains().collect();
        for domain in domains {
            let line = self.engine.clock_line(namespace, domain);
            let bytes = line_bytes(&line.to_line(ring.session.0, domain.0));
            ring.post(mailbox_clock_at(domain.0), &bytes)?;
        }
        Ok(())
    }
}

/// Carries out what the clients have requested on all lanes while a function runs: without it, a carrier that has no
/// device would answer no read meanwhile. Frames that arrive stay in their rings. A lane that fails begins to end, and
/// its ring waits for the client's recovery.
fn poll_lanes(rings: &mut [Ring], exports: &mut RegionTableView) {
    if mutants::on(Mutant::FunctionHoldsReads) {
        return;
    }
    for ring in rings {
        if let Some(Err(e)) = ring.poll(exports) {
            tracing::debug!(session = %ring.session, %e, "lane ended");
            ring.end_port();
        }
    }
}

#[cfg(test)]
mod tests;
