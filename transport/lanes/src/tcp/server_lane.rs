//! The applier's end: executes the client's requests, as a NIC would.

use std::net::TcpStream;

use super::access::{check_write, copy_run, count, short_run};
use super::buffer::Input;
use super::op::{ENTRY_BYTES, Entry, HEADER_BYTES, Refused, Reply, Request, RequestKind};
use super::output::Output;
use super::receive::DIRECT_BYTES;
use super::socket::{Interest, Moved, Socket, broken};
use super::store::store_bytes;
use crate::fabric::{
    AccessDenied, Inbox, LaneError, RegionTableView, SIGNAL_BYTES_MAX, ServerLane,
};
use crate::num::size;
use crate::wake::Reactor;
use tidewater_protocol::limits::{DATA_DEADLINE, LANE_POLL_BYTES, LANE_POLL_OPS};
use tidewater_runtime::clock::Deadline;
use tidewater_runtime::mem::io::{Place, RecvList};
use tidewater_runtime::mem::publish::read_fence;
use tidewater_runtime::sync::Arc;

/// Number of pending copied bytes from which on they are sent before the rest of an answer is copied.
/// Used where this host has several cores: the client can process them meanwhile.
const EAGER_ANSWER_BYTES: usize = 32 << 10;
/// Size in bytes of a client's write from which on the lane receives few bytes behind it. A second
/// receive call then costs less than a copy of the next write's beginning.
const BULK_BYTES: usize = 64 << 10;
/// Most buffers of input that are received and discarded before the lane of a refused access closes.
/// Closing over unread input would reset the connection and could lose the refusal.
const DISCARD_ROUNDS: usize = 16;

/// The server end of a TCP lane: executes the client's requests in software, as a NIC would.
///
/// It belongs to one applier's thread, which sleeps on the `Reactor` given to [`Self::new`]. That thread
/// stores inbox bytes inside [`ServerLane::poll`], in the order of the stream, so it never sees a later
/// write without the earlier ones (F04). Memory: 64 KiB for input. Output that the client has not taken:
/// at most about twice `limits::LANE_POSTS_BYTES_MAX`.
pub struct TcpServerLane {
    peer: String,
    /// `None` once the lane broke or was destroyed.
    socket: Option<Socket>,
    broken: Option<LaneError>,
    input: Input,
    out: Output,
    /// No request is executed before the client reads some of its answers.
    blocked: bool,
    /// Whether the last request, signals left out, was a write of [`BULK_BYTES`] or more: the next is
    /// probably long too.
    bulk: bool,
    /// Whether a long answer is sent piece by piece while it is put together. On one core a piece would
    /// only wake the client early.
    eager: bool,
    task: Task,
}

/// State of the client's request that the server lane is executing, kept from one poll to the next.
enum Task {
    /// Nothing: a header comes next.
    Header,
    /// A checked list of reads with `entries` left.
    Reads { entries: usize },
    /// The payload of a checked write: its offset in the inbox, and the number of missing bytes.
    Write { at: usize, left: usize },
    /// An access was refused. The lane breaks once the refusal was sent, or when time is up.
    Refused { error: LaneError, until: Deadline },
}

/// Requests and bytes that one poll may still process before other lanes of the applier have their turn.
struct Budget {
    ops: usize,
    bytes: usize,
}

impl Budget {
    const fn is_spent(&self) -> bool {
        self.ops == 0 || self.bytes == 0
    }

    const fn spend(&mut self, ops: usize, bytes: usize) {
        self.ops = self.ops.saturating_sub(ops);
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

/// Reason why a poll stopped executing requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stop {
    /// The input ran out.
    Starved,
    /// Too much output waits.
    Blocked,
    /// The budget is used up: other lanes have their turn.
    Spent,
}

impl TcpServerLane {
    /// Creates a server lane on a connected stream on which the handshake has ended; `peer` names the
    /// client in errors. Registers the socket with the applier's reactor `watch`.
    ///
    /// # Errors
    /// [`LaneError::Broken`] when the system refuses.
    pub fn new(stream: TcpStream, peer: String, watch: Reactor) -> Result<Self, LaneError> {
        let socket = Socket::new(stream, watch).map_err(|e| broken(&peer, "open", e))?;
        Ok(Self {
            peer,
            socket: Some(socket),
            broken: None,
            input: Input::new(),
            out: Output::default(),
            blocked: false,
            bulk: false,
            // On one core a piece that is sent early only wakes the client early.
            eager: std::thread::available_parallelism().is_ok_and(|cores| cores.get() > 1),
            task: Task::Header,
        })
    }

    #[cold]
    fn failed(&self, op: &'static str, why: impl ToString) -> LaneError {
        broken(&self.peer, op, why)
    }

    fn begin(&self) -> Result<(), LaneError> {
        self.broken.clone().map_or(Ok(()), Err)
    }

    fn end<T>(&mut self, result: Result<T, LaneError>) -> Result<T, LaneError> {
        if let Err(e) = &result {
            self.broken = Some(e.clone());
            self.socket = None;
        }
        result
    }

    fn work(&mut self, exports: &mut RegionTableView, inbox: &Inbox) -> Result<bool, LaneError> {
        let mut any = self.send()?;
        self.out.take_posts();
        let mut budget = Budget {
            ops: LANE_POLL_OPS,
            bytes: LANE_POLL_BYTES,
        };
        let mut drained = false;
        let stop = loop {
            if matches!(self.task, Task::Refused { .. }) {
                return self.part();
            }
            match self.execute(exports, inbox, &mut budget)? {
                Stop::Starved if drained => break Stop::Starved,
                Stop::Starved => {
                    let (came, asked) = self.receive(inbox, &mut budget)?;
                    any |= came > 0;
                    drained = came < asked;
                    if came == 0 {
                        break Stop::Starved;
                    }
                }
                Stop::Blocked if self.send()? => any = true,
                stop => break stop,
            }
        };
        self.out.take_posts();
        any |= self.send()?;
        self.blocked = stop == Stop::Blocked;
        self.settle()?;
        Ok(any || stop == Stop::Spent)
    }

    /// Sets the socket events that wake the applier's thread: input, room for output, or both. While the
    /// lane is blocked it is room only.
    fn settle(&mut self) -> Result<(), LaneError> {
        // While blocked, requests may lie in the lane's own buffer, which the system does not see. Room in
        // the socket then allows progress, even if no output waits for it any more.
        let interest = match (self.blocked, self.out.is_empty()) {
            (true, _) => Interest::Output,
            (false, true) => Interest::Input,
            (false, false) => Interest::Both,
        };
        match self.socket.as_mut().map(|s| s.want(interest)) {
            Some(Err(e)) => Err(self.failed("poll", e)),
            _ => Ok(()),
        }
    }

    fn send(&mut self) -> Result<bool, LaneError> {
        match &self.socket {
            Some(socket) => self
                .out
                .send(socket)
                .map_err(|e| broken(&self.peer, "send", e)),
            None => Ok(false),
        }
    }

    /// Receives with one system call; returns the bytes that came and the bytes asked for. Missing
    /// payload of a write, if at least `DIRECT_BYTES` (4 KiB), goes straight into the inbox; everything
    /// else to the input buffer.
    fn receive(&mut self, inbox: &Inbox, budget: &mut Budget) -> Result<(usize, usize), LaneError> {
        let Some(socket) = &self.socket else {
            return Ok((0, 0));
        };
        let fail = |e: std::io::Error| broken(&self.peer, "receive", e);
        let room = match self.bulk {
            true => self.input.room_beside(),
            false => self.input.room(),
        };
        let (moved, asked) = match &mut self.task {
            Task::Write { at, left } if *left >= DIRECT_BYTES => {
                let (region, base) = inbox.region();
                let (spare_len, spare) = (room.len(), Place::new(room));
                let mut list = RecvList::new();
                list.span(region, base + *at, *left)
                    .map_err(|e| fail(std::io::Error::other(e)))?;
                list.piece(&spare, 0, spare_len);
                let asked = list.total_bytes();
                let moved = socket.recv(&mut list).map_err(fail)?;
                if let Moved::Bytes(n) = moved {
                    let here = n.min(*left);
                    (*at, *left) = (*at + here, *left - here);
                    budget.spend(0, here);
                    self.input.arrived(n - here);
                }
                (moved, asked)
            }
            _ => {
                let asked = room.len();
                let moved = socket.recv_bytes(room).map_err(fail)?;
                if let Moved::Bytes(n) = moved {
                    self.input.arrived(n);
                }
                (moved, asked)
            }
        };
        match moved {
            Moved::Bytes(n) => Ok((n, asked)),
            Moved::Nothing => Ok((0, asked)),
            Moved::Closed => Err(self.failed("receive", "the client closed the connection")),
        }
    }

    /// Executes the requests in the input buffer until it runs out, too much output waits or the budget
    /// is spent. Returns which.
    fn execute(
        &mut self,
        exports: &mut RegionTableView,
        inbox: &Inbox,
        budget: &mut Budget,
    ) -> Result<Stop, LaneError> {
        loop {
            if budget.is_spent() {
                return Ok(Stop::Spent);
            }
            let stop = match &mut self.task {
                Task::Header => self.execute_header(exports, inbox, budget)?,
                Task::Reads { entries: 0 } | Task::Write { left: 0, .. } => {
                    self.task = Task::Header;
                    None
                }
                Task::Reads { entries } => {
                    let entries = *entries;
                    self.execute_reads(exports, entries, budget)?
                }
                // A short write is stored completely or not at all: a cut stream leaves no torn tail
                // record.
                Task::Write { left, .. } if *left < DIRECT_BYTES && self.input.len() < *left => {
                    Some(Stop::Starved)
                }
                Task::Write { at, left } => {
                    let now = self.input.len().min(*left);
                    store_bytes(inbox.window(), *at, &self.input.pending()[..now]);
                    self.input.consume(now);
                    (*at, *left) = (*at + now, *left - now);
                    budget.spend(0, now);
                    (*left > 0).then_some(Stop::Starved)
                }
                Task::Refused { .. } => Some(Stop::Starved),
            };
            if let Some(stop) = stop {
                return Ok(stop);
            }
        }
    }

    /// Decodes the next request: completes an atomic, or checks a read list or write and makes it the
    /// task. Returns why execution stops, or `None` to go on. A forbidden access is refused, and then no
    /// further request is executed.
    fn execute_header(
        &mut self,
        exports: &mut RegionTableView,
        inbox: &Inbox,
        budget: &mut Budget,
    ) -> Result<Option<Stop>, LaneError> {
        let Some(raw) = self.input.pending().first_chunk::<HEADER_BYTES>() else {
            return Ok(Some(Stop::Starved));
        };
        let request = Request::from_bytes(raw).map_err(|e| self.failed("receive", e))?;
        self.bulk = match request {
            Request::Write { len, .. } => {
                len as usize >= BULK_BYTES || (self.bulk && len as usize <= SIGNAL_BYTES_MAX)
            }
            _ => false,
        };
        let answered = !matches!(request, Request::Write { .. });
        if answered && self.out.is_full() {
            return Ok(Some(Stop::Blocked));
        }
        let done = match request {
            Request::ReadV {
                entries,
                bytes,
                cookie,
            } => {
                let entries = entries as usize;
                if self.input.len() < HEADER_BYTES + entries * ENTRY_BYTES {
                    return Ok(Some(Stop::Starved));
                }
                self.check_reads(exports, entries, bytes)?.map(|()| {
                    self.out.reply(&Reply::Read { bytes, cookie });
                    if entries > 0 {
                        self.out.begin_answer();
                    }
                    self.task = Task::Reads { entries };
                })
            }
            Request::Write { key, addr, len } => {
                check_write(exports, inbox, key, addr, len).map(|at| {
                    let left = len as usize;
                    self.task = Task::Write { at, left };
                })
            }
            Request::FetchAdd { key, addr, add } => {
                count(exports, RequestKind::FetchAdd, key, addr, |word| {
                    word.fetch_add(0, add)
                })
                .map(|was| self.out.reply(&Reply::Atomic { was }))
            }
            Request::CompareSwap {
                key,
                addr,
                expect,
                new,
            } => count(exports, RequestKind::CompareSwap, key, addr, |word| {
                word.compare_swap(0, expect, new)
            })
            .map(|was| self.out.reply(&Reply::Atomic { was })),
        };
        self.input.consume(HEADER_BYTES);
        budget.spend(1, 0);
        if let Err(refused) = done {
            self.refuse(&refused);
        }
        Ok(None)
    }

    /// Checks all reads of a list, which has arrived completely, before the first of them is answered: access to
    /// each, and that their lengths add up to `bytes`. The outer error breaks the lane, as the sum is wrong; the
    /// inner one is the first refused access.
    fn check_reads(
        &self,
        exports: &mut RegionTableView,
        entries: usize,
        bytes: u32,
    ) -> Result<Result<(), Refused>, LaneError> {
        let list = self.input.pending()[HEADER_BYTES..]
            .as_chunks::<ENTRY_BYTES>()
            .0;
        let (mut sum, mut checks) = (0, exports.reads());
        for entry in list[..entries].iter().map(Entry::from_bytes) {
            let len = u64::from(entry.len);
            sum += len;
            let checked = checks.check(entry.key, entry.addr, len).and_then(|export| {
                let there = export.region.check(size(entry.addr), entry.len as usize);
                there.map_err(|_| AccessDenied::Outside)
            });
            if let Err(why) = checked {
                return Ok(Err(Refused {
                    kind: RequestKind::ReadV,
                    why,
                    key: entry.key,
                    addr: entry.addr,
                    len,
                }));
            }
        }
        if sum != u64::from(bytes) {
            let why = "its list of reads does not add up: it is out of step";
            return Err(self.failed("receive", why));
        }
        Ok(Ok(()))
    }

    /// Answers the next reads of a checked list, of which `entries` are left. Short ones are copied now,
    /// word by word; the kernel reads long ones when it sends them. Either way bytes may be torn (F02).
    /// Returns why execution stops, or `None` to go on.
    fn execute_reads(
        &mut self,
        exports: &mut RegionTableView,
        entries: usize,
        budget: &mut Budget,
    ) -> Result<Option<Stop>, LaneError> {
        let list = self.input.pending().as_chunks::<ENTRY_BYTES>().0;
        let list = &list[..entries.min(list.len())];
        let refused = |why: AccessDenied| broken(&self.peer, "read", why.text());
        let mut checks = exports.reads();
        let (mut stop, mut done) = (None, 0);
        while let Some(raw) = list.get(done)
            && !budget.is_spent()
        {
            if self.out.is_full() {
                stop = Some(Stop::Blocked);
                break;
            }
            let entry = Entry::from_bytes(raw);
            if entry.fence {
                // All earlier reads have to be over (F03), those left to the kernel too.
                if self.out.has_spans()
                    && let Some(socket) = &self.socket
                {
                    let sent = self.out.send(socket);
                    sent.map_err(|e| broken(&self.peer, "send", e))?;
                }
                if self.out.has_spans() {
                    stop = Some(Stop::Blocked);
                    break;
                }
                read_fence();
            }
            let run = short_run(&list[done..], EAGER_ANSWER_BYTES.min(budget.bytes));
            if run.reads > 0 {
                let out = self.out.grow(run.bytes);
                let reads = &list[done..done + run.reads];
                copy_run(&mut checks, reads, out).map_err(refused)?;
                done += run.reads;
                budget.spend(0, run.cost);
            } else {
                let len = entry.len.into();
                let export = checks.check(entry.key, entry.addr, len).map_err(refused)?;
                let (region, len) = (Arc::clone(&export.region), entry.len as usize);
                self.out.span(region, size(entry.addr), len);
                done += 1;
                budget.spend(0, len);
            }
            if self.eager
                && self.out.copied_len() >= EAGER_ANSWER_BYTES
                && let Some(socket) = &self.socket
            {
                let sent = self.out.send(socket);
                sent.map_err(|e| broken(&self.peer, "send", e))?;
            }
        }
        self.input.consume(done * ENTRY_BYTES);
        let left = entries - done;
        self.task = Task::Reads { entries: left };
        if left == 0 {
            self.out.end_answer();
        } else if stop.is_none() && !budget.is_spent() {
            stop = Some(Stop::Starved);
        }
        Ok(stop)
    }

    /// Queues a refusal to the client and makes it the task; no further request of the lane is executed,
    /// and it closes soon.
    #[cold]
    fn refuse(&mut self, refused: &Refused) {
        self.out.reply(&Reply::Refused(*refused));
        let why = format!(
            "its access of {} bytes at {:#x} with key {:#010x} was refused: {}",
            refused.len,
            refused.addr,
            refused.key.0,
            refused.why.text()
        );
        self.task = Task::Refused {
            error: self.failed(refused.kind.name(), why),
            until: Deadline::after(DATA_DEADLINE),
        };
    }

    /// Closes the lane to a client with a refused access: sends all answers, then the refusal, then the
    /// end of the stream. Returns the refusal as an error once that is done or `DATA_DEADLINE` has
    /// passed; before, whether anything was sent. Unread input is discarded, because closing over it
    /// would reset the connection and could lose the refusal.
    fn part(&mut self) -> Result<bool, LaneError> {
        let moved = self.send()?;
        let Task::Refused { error, until } = &self.task else {
            return Ok(moved);
        };
        if !self.out.is_empty() && !until.passed() {
            self.blocked = true;
            self.settle()?;
            return Ok(moved);
        }
        let error = error.clone();
        if let Some(socket) = &self.socket {
            socket.finish();
            socket.expect();
            for _ in 0..DISCARD_ROUNDS {
                self.input.consume(usize::MAX);
                match socket.recv_bytes(self.input.room()) {
                    Ok(Moved::Bytes(_)) => {}
                    _ => break,
                }
            }
        }
        Err(error)
    }
}

impl std::fmt::Debug for TcpServerLane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TcpServerLane")
            .field("peer", &self.peer)
            .field("broken", &self.broken)
            .finish_non_exhaustive()
    }
}

impl ServerLane for TcpServerLane {
    fn peer(&self) -> &str {
        &self.peer
    }

    fn poll(&mut self, exports: &mut RegionTableView, inbox: &Inbox) -> Result<bool, LaneError> {
        self.begin()?;
        let worked = self.work(exports, inbox);
        self.end(worked)
    }

    fn post(&mut self, at: usize, bytes: &[u8]) -> Result<(), LaneError> {
        self.begin()?;
        let taken = match self.task {
            // The client receives nothing more.
            Task::Refused { .. } => true,
            _ => self.out.post(at, bytes),
        };
        let why = "it does not read its mailbox and is too far behind";
        let result = taken.then_some(()).ok_or_else(|| self.failed("post", why));
        self.end(result)
    }

    fn signal(&mut self) -> Result<(), LaneError> {
        self.begin()?;
        self.out.take_posts();
        let result = self.send().and_then(|_| self.settle());
        self.end(result)
    }

    /// Returns `None`: the reactor reports input, and room for output, by events.
    fn poll_hint(&self) -> Option<std::time::Duration> {
        None
    }

    fn destroy(&mut self) {
        self.socket = None;
        if self.broken.is_none() {
            self.broken = Some(self.failed("poll", "the port was destroyed"));
        }
    }
}
