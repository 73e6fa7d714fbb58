// long: one state machine, from connecting to recovery.

//! The client end of a TCP lane.

use std::collections::VecDeque;
use std::net::TcpStream;
use std::time::Duration;

use super::buffer::{Fifo, Input};
use super::op::{HEADER_BYTES, Request};
use super::plan::{Plan, Target, fits, reborrow};
use super::receive::{Incoming, Link};
use super::socket::{Interest, Moved, Socket, broken};
use crate::fabric::{
    ClientLane, LaneError, Mailbox, Mapping, ReadBatch, ReadDest, ReadOp, RemoteAddr,
    SIGNAL_BYTES_MAX, SPIN, TransportKind, Unpack,
};
use crate::num::count;
use crate::wake::Reactor;
use tidewater_protocol::limits::{DATA_DEADLINE, LANE_OUT_BYTES, LANE_WRITE_BYTES_MAX};
use tidewater_runtime::clock::Deadline;
use tidewater_runtime::mem::io::SendList;

/// Greatest length in bytes of a write that is copied to the send buffer, so that several are sent
/// together. A longer copy would cost more than the system call that it saves.
const COPIED_WRITE_BYTES: usize = 8 << 10;
/// Number of bytes of pending output from which on a write sends them at once, before the caller flushes.
const EAGER_BYTES: usize = 64 << 10;

/// The client end of a TCP lane: sends requests and receives answers and mailbox posts.
///
/// It belongs to one thread, which sleeps on the `Reactor` given to [`Self::new`]. Dropping it closes the
/// socket. Memory: 64 KiB for input and some 320 KiB for output, kept until it is dropped.
pub struct TcpClientLane {
    pub(super) peer: String,
    pub(super) mailbox: Mailbox,
    /// `None` once the lane broke.
    socket: Option<Socket>,
    broken: Option<LaneError>,
    spin: Duration,
    /// Name of the call under way, for errors.
    pub(super) op: &'static str,
    pub(super) out: Fifo,
    /// The socket did not take all of the output: room there should wake the thread. Output that was not
    /// offered yet waits for a flush or a poll, not for room.
    stuck: bool,
    /// Start of the current wait, accurate to its spin.
    pub(super) begun: Deadline,
    /// Whether bytes were received since `begun`.
    pub(super) heard: bool,
    /// Time from which on a late read breaks the lane, if nothing is received before; set by the first
    /// late wait.
    pub(super) quiet_until: Option<Deadline>,
    /// Time until which submitted reads may wait for others, if some do.
    pub(super) held: Option<Deadline>,
    pub(super) inbound: Inbound,
}

/// The receiving half of a client lane: the received bytes, the requests without an answer, and the
/// destinations of their answers.
pub(super) struct Inbound {
    pub(super) input: Input,
    pub(super) incoming: Incoming,
    /// Whether the last bytes of an answer were received directly: the next answer is probably long too.
    pub(super) bulk: bool,
    /// Requests without an answer, in the order in which the answers come.
    pub(super) awaited: VecDeque<Awaited>,
    /// Unfinished batches, in the order of their requests.
    pub(super) batches: VecDeque<Posted>,
    /// Number of batches, from the front, that were requested completely.
    pub(super) batches_asked: usize,
    pub(super) done: VecDeque<ReadBatch>,
    /// The oldest batch is not in `batches`: the caller holds it until the call returns.
    pub(super) is_direct: bool,
    /// Old value that the last awaited atomic returned; `None` until its answer comes.
    pub(super) counter: Option<u64>,
}

/// A request that was sent and has no answer yet: the recipient of the answer, its length in bytes (0 for
/// an atomic), and the cookie that the answer repeats.
pub(super) struct Awaited {
    pub(super) whose: Whose,
    pub(super) bytes: u32,
    pub(super) cookie: u64,
}

/// Recipient of an awaited answer: the call under way, a submitted batch, a counter's waiting call, or
/// none. An answer without recipient is received and dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Whose {
    /// The call under way.
    Caller,
    /// The first unfinished batch.
    Batch,
    /// The atomic that the call under way waits for.
    Counter,
    /// An atomic that no call waits for.
    Nobody,
    /// A read with a call that met its deadline: the answer is dropped.
    Late,
}

/// A submitted batch of reads that is unfinished, with the progress of its requests and answers.
pub(super) struct Posted {
    pub(super) plan: Plan,
    pub(super) batch: ReadBatch,
}

impl Posted {
    /// Returns the batch's own buffers, with its reads and its progress, as the destination of its
    /// answers.
    pub(super) fn target(&mut self) -> Target<'_> {
        Target {
            plan: &mut self.plan,
            ops: &self.batch.ops,
            head: &mut self.batch.head,
            body: &mut self.batch.body,
            unpacker: None,
        }
    }
}

impl TcpClientLane {
    /// Creates a client lane on a connected stream on which the handshake has ended; `peer` names the
    /// server in errors. `mailbox` is the memory into which the server's posts go. Registers the socket
    /// with the thread's reactor `watch`.
    ///
    /// # Errors
    /// [`LaneError::Broken`] when the system refuses.
    pub fn new(
        stream: TcpStream,
        peer: String,
        mailbox: Mailbox,
        watch: Reactor,
    ) -> Result<Self, LaneError> {
        let socket = Socket::new(stream, watch).map_err(|e| broken(&peer, "open", e))?;
        // On one core a spinning thread keeps the peer from answering.
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(Self {
            peer,
            mailbox,
            socket: Some(socket),
            broken: None,
            spin: if cores > 1 { SPIN } else { Duration::ZERO },
            op: "open",
            out: Fifo::default(),
            stuck: false,
            begun: Deadline::after(Duration::ZERO),
            heard: false,
            quiet_until: None,
            held: None,
            inbound: Inbound {
                input: Input::new(),
                incoming: Incoming::Header,
                bulk: false,
                awaited: VecDeque::new(),
                batches: VecDeque::new(),
                batches_asked: 0,
                done: VecDeque::new(),
                is_direct: false,
                counter: None,
            },
        })
    }

    /// Processes lane messages (`bytes`) that were read together with the end of the handshake. The
    /// server may post into the mailbox as soon as it has the lane.
    ///
    /// # Errors
    /// [`LaneError::Broken`] when they are not messages of a lane, or are too many; the lane is dropped.
    pub fn early(mut self, bytes: &[u8]) -> Result<Self, LaneError> {
        let link = Link {
            peer: &self.peer,
            op: self.op,
        };
        match self.inbound.input.room().get_mut(..bytes.len()) {
            Some(room) => room.copy_from_slice(bytes),
            None => return Err(link.broken("more bytes than a lane takes in at once")),
        }
        self.inbound.input.arrived(bytes.len());
        self.inbound.understand(&self.mailbox, &mut None, link)?;
        Ok(self)
    }

    /// Begins the call `op`: notes its name for errors. Returns the lane's error if it broke before.
    pub(super) fn begin(&mut self, op: &'static str) -> Result<(), LaneError> {
        self.op = op;
        self.broken.clone().map_or(Ok(()), Err)
    }

    /// Ends a call and returns its `result`. After success sets the socket events that wake the thread,
    /// and returns the error if that fails. A fatal error breaks the lane for good and closes the socket.
    pub(super) fn end<T>(&mut self, result: Result<T, LaneError>) -> Result<T, LaneError> {
        let result = result.and_then(|value| {
            let waiting = self.stuck && self.out.len() > 0;
            let interest = if waiting {
                Interest::Both
            } else {
                Interest::Input
            };
            match self.socket.as_mut().map(|s| s.want(interest)) {
                Some(Err(e)) => Err(self.failed(e)),
                _ => Ok(value),
            }
        });
        if let Err(e) = &result
            && e.is_fatal()
            && self.broken.is_none()
        {
            self.broken = Some(e.clone());
            self.socket = None;
        }
        result
    }

    #[cold]
    pub(super) fn failed(&self, why: impl ToString) -> LaneError {
        broken(&self.peer, self.op, why)
    }

    #[cold]
    pub(super) fn late(&self) -> LaneError {
        LaneError::Deadline {
            transport: TransportKind::Tcp,
            peer: self.peer.clone(),
            op: self.op,
        }
    }

    /// Appends read requests to the output, first for submitted batches, then for the call under way
    /// (`caller`), until [`LANE_OUT_BYTES`] are pending. The rest follows with later calls. Sends
    /// nothing.
    pub(super) fn ask(&mut self, caller: &mut Option<Target<'_>>) {
        let Inbound {
            batches,
            batches_asked,
            awaited,
            is_direct,
            ..
        } = &mut self.inbound;
        self.held = None;
        let posted = batches.iter_mut().skip(*batches_asked);
        let posted = posted.map(|p| (Whose::Batch, true, p.target()));
        let called = caller.as_mut().map(Target::again);
        // A batch in direct receive was submitted before the others.
        let (oldest, called) = if *is_direct {
            (called, None)
        } else {
            (None, called)
        };
        let oldest = oldest.map(|t| (Whose::Batch, false, t));
        let called = called.map(|t| (Whose::Caller, false, t));
        for (whose, counts, target) in oldest.into_iter().chain(posted).chain(called) {
            while !target.plan.is_asked(target.ops) {
                if self.out.len() >= LANE_OUT_BYTES {
                    return;
                }
                let cookie = self.out.end();
                awaited.push_back(Awaited {
                    whose,
                    bytes: target.plan.ask(target.ops, cookie, &mut self.out),
                    cookie,
                });
            }
            *batches_asked += usize::from(counts);
        }
    }

    /// Sends pending output, as far as the socket takes it, and notes whether some is left. Returns
    /// whether anything was sent. Never blocks.
    pub(super) fn send(&mut self) -> Result<bool, LaneError> {
        let mut any = false;
        self.stuck = false;
        while self.out.len() > 0 {
            let Some(socket) = &self.socket else { break };
            match socket.send_bytes(self.out.pending()) {
                Ok(Moved::Bytes(n)) => self.out.consume(n),
                Ok(_) => {
                    self.stuck = true;
                    break;
                }
                Err(e) => return Err(self.refused_or(e)),
            }
            any = true;
            // On one core the peer may have answered before this call returned.
            socket.expect();
        }
        Ok(any)
    }

    /// Returns the error of a failed send: the refusal of an access, if the server sent one before it
    /// closed, else `e`.
    #[cold]
    fn refused_or(&mut self, e: std::io::Error) -> LaneError {
        match self.receive(&mut None) {
            Err(said @ LaneError::Access { .. }) => said,
            _ => self.failed(e),
        }
    }

    fn receive(&mut self, caller: &mut Option<Target<'_>>) -> Result<bool, LaneError> {
        let link = Link {
            peer: &self.peer,
            op: self.op,
        };
        let Some(socket) = &self.socket else {
            return Ok(false);
        };
        let any = self.inbound.receive(socket, &self.mailbox, caller, link)?;
        if any {
            self.heard = true;
            self.quiet_until = None;
        }
        Ok(any)
    }

    /// Appends requests, sends as far as the socket takes them, and receives, without blocking. Returns
    /// whether anything moved.
    fn advance(&mut self, caller: &mut Option<Target<'_>>) -> Result<bool, LaneError> {
        let mut any = false;
        loop {
            self.ask(caller);
            if !self.send()? {
                break;
            }
            any = true;
        }
        Ok(self.receive(caller)? || any)
    }

    /// Blocks until `done` returns true: sends and receives meanwhile, spins for a while, then sleeps on
    /// the socket. Answers to the call under way go to `caller`. Fails with [`LaneError::Deadline`] when
    /// the deadline passes first.
    pub(super) fn wait(
        &mut self,
        caller: &mut Option<Target<'_>>,
        deadline: Deadline,
        done: impl Fn(&Self, &Option<Target<'_>>) -> bool,
    ) -> Result<(), LaneError> {
        let mut spin = Deadline::after(self.spin);
        (self.begun, self.heard) = (spin, false);
        loop {
            // The awaited answer may come while this thread spins: no sleep reports it.
            self.socket.iter().for_each(Socket::expect);
            let moved = self.advance(caller)?;
            if done(self, caller) {
                return Ok(());
            }
            if deadline.passed() {
                return Err(self.late());
            }
            if moved {
                spin = Deadline::after(self.spin);
            } else if !self.spin.is_zero() && !spin.passed() {
                std::thread::yield_now();
                continue;
            }
            if !moved || self.spin.is_zero() {
                self.sleep(deadline);
            }
        }
    }

    fn sleep(&self, deadline: Deadline) {
        if let Some(socket) = &self.socket {
            socket.sleep(self.out.len() > 0, deadline);
        }
    }

    /// Blocks until `len` more bytes of output fit [`LANE_OUT_BYTES`]: sends pending output. Receives
    /// meanwhile, so that two full ends never wait for each other. Fails with [`LaneError::Deadline`]
    /// when no byte was sent for [`DATA_DEADLINE`], whatever the server sends.
    pub(super) fn make_room(&mut self, len: usize) -> Result<(), LaneError> {
        if self.out.len() + len <= LANE_OUT_BYTES {
            return Ok(());
        }
        let mut deadline = Deadline::after(DATA_DEADLINE);
        loop {
            let sent = self.send()?;
            if self.out.len() + len <= LANE_OUT_BYTES {
                return Ok(());
            }
            if sent {
                deadline = Deadline::after(DATA_DEADLINE);
            } else if deadline.passed() {
                return Err(self.late());
            }
            if !self.receive(&mut None)? && !sent {
                self.sleep(deadline);
            }
        }
    }

    fn put(&mut self, to: RemoteAddr, bytes: &[u8]) -> Result<(), LaneError> {
        let header = Request::Write {
            key: to.key,
            addr: to.addr,
            len: count(bytes.len()),
        }
        .to_bytes();
        if bytes.len() > COPIED_WRITE_BYTES {
            return self.put_large(&header, bytes);
        }
        self.make_room(HEADER_BYTES + bytes.len())?;
        self.out.push(&header);
        self.out.push(bytes);
        if self.out.len() >= EAGER_BYTES {
            self.send()?;
        }
        Ok(())
    }

    /// Sends a write (`header`, then `bytes`) behind pending output, straight from the caller's memory.
    /// Copies only the part that the socket does not take now. Blocks while that part does not fit the
    /// output buffer; fails with [`LaneError::Deadline`] when no byte was sent for [`DATA_DEADLINE`],
    /// whatever the server sends.
    fn put_large(&mut self, header: &[u8], bytes: &[u8]) -> Result<(), LaneError> {
        let mut deadline = Deadline::after(DATA_DEADLINE);
        let (mut header, mut bytes) = (header, bytes);
        loop {
            let Some(socket) = &self.socket else {
                return Ok(());
            };
            let mut list = SendList::new();
            let _ = [self.out.pending(), header, bytes].map(|part| list.bytes(part));
            // Its signal comes next: one packet, one wake-up for both.
            let sent = match socket.send(&mut list, true) {
                Ok(Moved::Bytes(n)) => n,
                Ok(_) => 0,
                Err(e) => return Err(self.refused_or(e)),
            };
            let waited = self.out.len().min(sent);
            self.out.consume(waited);
            let headed = header.len().min(sent - waited);
            header = &header[headed..];
            bytes = &bytes[sent - waited - headed..];
            if self.out.len() + header.len() + bytes.len() <= LANE_OUT_BYTES {
                self.out.push(header);
                self.out.push(bytes);
                return Ok(());
            }
            if sent > 0 {
                deadline = Deadline::after(DATA_DEADLINE);
            } else if deadline.passed() {
                return Err(self.late());
            }
            if !self.receive(&mut None)? && sent == 0 {
                // The rest does not fit the buffer, so room in the socket matters too.
                if let Some(socket) = &self.socket {
                    socket.sleep(true, deadline);
                }
            }
        }
    }

    fn read_as(
        &mut self,
        ops: &[ReadOp],
        into: ReadDest<'_>,
        mut unpacker: Option<&mut dyn Unpack>,
        deadline: Deadline,
    ) -> Result<(), LaneError> {
        self.begin("read")?;
        fits("read", ops, into.head, into.body)?;
        let mut plan = Plan::default();
        let mut caller = Some(Target {
            plan: &mut plan,
            ops,
            head: into.head,
            body: into.body,
            unpacker: reborrow(&mut unpacker),
        });
        let result = self.wait(&mut caller, deadline, |_, caller| {
            caller.as_ref().is_none_or(|t| t.plan.is_done(t.ops))
        });
        let result = result.map_err(|e| match e {
            LaneError::Deadline { .. } => self.leave(),
            e => e,
        });
        self.end(result)
    }

    fn write_as(
        &mut self,
        op: &'static str,
        to: RemoteAddr,
        bytes: &[u8],
        limit: usize,
        flush: bool,
    ) -> Result<(), LaneError> {
        self.begin(op)?;
        if bytes.len() > limit {
            let what = "more bytes than one write takes";
            return Err(LaneError::Usage { op, what });
        }
        let mut done = self.put(to, bytes);
        if flush && done.is_ok() {
            done = self.send().map(drop);
        }
        self.end(done)
    }
}

impl std::fmt::Debug for TcpClientLane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TcpClientLane")
            .field("peer", &self.peer)
            .field("broken", &self.broken)
            .field("waiting_bytes", &self.out.len())
            .finish_non_exhaustive()
    }
}

impl ClientLane for TcpClientLane {
    fn transport(&self) -> TransportKind {
        TransportKind::Tcp
    }

    fn peer(&self) -> &str {
        &self.peer
    }

    fn read(
        &mut self,
        ops: &[ReadOp],
        into: ReadDest<'_>,
        deadline: Deadline,
    ) -> Result<(), LaneError> {
        self.read_as(ops, into, None, deadline)
    }

    fn read_unpack(
        &mut self,
        ops: &[ReadOp],
        into: ReadDest<'_>,
        unpacker: &mut dyn Unpack,
        deadline: Deadline,
    ) -> Result<(), LaneError> {
        unpacker.restart();
        self.read_as(ops, into, Some(unpacker), deadline)
    }

    fn submit_read(&mut self, batch: ReadBatch) -> Result<(), LaneError> {
        self.begin("submit_read")?;
        fits("submit_read", &batch.ops, &batch.head, &batch.body)?;
        if batch.ops.is_empty() {
            self.inbound.done.push_back(batch);
        } else {
            let plan = Plan::default();
            self.inbound.batches.push_back(Posted { plan, batch });
        }
        Ok(())
    }

    fn poll_read(&mut self) -> Option<ReadBatch> {
        self.inbound.done.pop_front()
    }

    fn wait_read(
        &mut self,
        tag: u64,
        ops: &[ReadOp],
        body: &mut [u8],
        unpacker: Option<&mut dyn Unpack>,
        deadline: Deadline,
    ) -> Result<Option<ReadBatch>, LaneError> {
        self.begin("wait_read")?;
        let finished = self.recv_direct(tag, ops, body, unpacker, deadline);
        self.end(finished)
    }

    fn write(&mut self, to: RemoteAddr, bytes: &[u8]) -> Result<(), LaneError> {
        self.write_as("write", to, bytes, LANE_WRITE_BYTES_MAX, false)
    }

    fn write_signal(&mut self, to: RemoteAddr, bytes: &[u8]) -> Result<(), LaneError> {
        self.write_as("write_signal", to, bytes, SIGNAL_BYTES_MAX, true)
    }

    fn write_signal_count(
        &mut self,
        to: RemoteAddr,
        bytes: &[u8],
        counter: RemoteAddr,
        add: u64,
    ) -> Result<(), LaneError> {
        // Both leave together.
        self.write_as("write_signal", to, bytes, SIGNAL_BYTES_MAX, false)?;
        self.count_unheard(counter, add)
    }

    fn fetch_add(
        &mut self,
        at: RemoteAddr,
        add: u64,
        deadline: Deadline,
    ) -> Result<u64, LaneError> {
        let request = Request::FetchAdd {
            key: at.key,
            addr: at.addr,
            add,
        };
        self.count("fetch_add", &request, deadline)
    }

    fn compare_swap(
        &mut self,
        at: RemoteAddr,
        expect: u64,
        new: u64,
        deadline: Deadline,
    ) -> Result<u64, LaneError> {
        let request = Request::CompareSwap {
            key: at.key,
            addr: at.addr,
            expect,
            new,
        };
        self.count("compare_swap", &request, deadline)
    }

    fn has_atomics(&self) -> bool {
        true
    }

    fn flush(&mut self) -> Result<(), LaneError> {
        self.begin("flush")?;
        self.ask(&mut None);
        let sent = self.send().map(drop);
        self.end(sent)
    }

    fn flush_soon(&mut self) -> Result<(), LaneError> {
        self.begin("flush")?;
        let sent = self.send_soon();
        self.end(sent)
    }

    fn poll(&mut self) -> Result<bool, LaneError> {
        self.begin("poll")?;
        let moved = self.advance(&mut None);
        self.end(moved)
    }

    fn mailbox(&self) -> &Mailbox {
        &self.mailbox
    }

    /// Returns `None`: TCP maps no server memory, as reads are sent to the server.
    fn mapping(&self) -> Option<Mapping> {
        None
    }
}
