//! Client end of a lane over RDMA.

use super::counters::Counters;
use super::domain::ClientDomain;
use super::keys::Keys;
use super::lane_failure::{LaneFailure, Request, broken};
use super::memory::{MemoryRegion, Target};
use super::notifier::{Queue, Waiter};
use super::pull::{Caller, Pulls};
use super::queue::Completion;
use super::scatter::Known;
use super::send::{RECEIVE, Sender};
use tidewater_lanes::fabric::{
    ClientLane, LaneError, Mailbox, Mapping, ReadBatch, ReadDest, ReadOp, RemoteAddr,
    SIGNAL_BYTES_MAX, TransportKind, Unpack,
};
use tidewater_protocol::layout::directory::KEY_CELL_BYTES;
use tidewater_protocol::limits::{DATA_DEADLINE, VERBS_PROBE_EVERY, VERBS_WRITE_BYTES};
use tidewater_runtime::clock::{self, Deadline};
use tidewater_runtime::sync::Arc;
use tidewater_runtime::wait::wait_until;

/// Queued bytes from which on a write posts without a flush.
const EAGER_BYTES: usize = VERBS_WRITE_BYTES;
/// Completions polled at once.
pub(super) const BATCH: usize = 32;

/// A lane over RDMA: one pair that pushes, up to four that pull.
///
/// It belongs to one thread, which sleeps on the `Reactor` of its notifier. When it breaks, and when it
/// is dropped, its pairs are destroyed first: a destroyed pair touches no memory (F13, F14). Registered
/// memory: 1 MiB for output, 512 KiB for each pulling pair, the mailbox.
#[derive(Debug)]
pub struct VerbsClientLane {
    peer: String,
    mailbox: Mailbox,
    /// `None` once the lane broke, and while a call uses it.
    live: Option<Box<Live>>,
    /// Has the buffers that the device may write for a call.
    domain: Arc<ClientDomain>,
    buffers: Known,
    broken: Option<LaneError>,
    /// Current call, for error messages.
    op: &'static str,
    /// Counts from before the lane broke.
    counted: Counters,
    /// Whether both devices have atomics, and this end has asked for them.
    atomics: bool,
}

/// Device objects of an open lane. Fields are dropped in their order: pairs first.
#[derive(Debug)]
pub(super) struct Live {
    pub(super) engine: Engine,
    pub(super) waiter: Waiter,
    pub(super) _mailbox: Arc<MemoryRegion>,
}

/// Both directions of an open lane.
#[derive(Debug)]
pub(super) struct Engine {
    pub(super) sender: Sender,
    pub(super) pulls: Pulls,
    /// Queue in which the peer's signals and this end's reads complete.
    pub(super) arrivals: Queue,
    pub(super) keys: Keys,
    /// Kept, because clearing it costs as much as polling an empty queue.
    pub(super) batch: [Completion; BATCH],
    /// Time of the next probe of the peer, unless an event comes before.
    pub(super) probe_at: Option<Deadline>,
}

impl Engine {
    /// Handles completions, returns receives, and submits reads; whether anything progressed. After a
    /// long time without progress the lane breaks (see `stall_detector`). Without completions, this
    /// reads the clock.
    fn advance(&mut self, mut caller: Option<&mut Caller<'_>>) -> Result<bool, LaneFailure> {
        let mut any = self.sender.poll()?;
        loop {
            let got = self.arrivals.poll(&mut self.batch)?;
            for completion in &self.batch[..got] {
                match completion.wr_id {
                    RECEIVE => self.sender.heard(completion)?,
                    _ => self.pulls.arrived(completion, &mut caller)?,
                }
            }
            any |= got > 0;
            if got < self.batch.len() {
                break;
            }
        }
        self.sender.settle(false)?;
        self.pulls.ask(&self.keys, caller)?;
        if !(any || self.sender.is_idle() && self.pulls.are_idle()) {
            let now = clock::now();
            self.sender.silent(now)?;
            self.pulls.silent(now)?;
        }
        Ok(any)
    }

    /// Handles completions like [`Self::advance`], while the caller waits for actions of the peer.
    /// Without requests in flight no device would detect that the peer is gone, so this probes it now
    /// and then. Cost above [`Self::advance`]: a read of the clock if nothing came.
    fn listen(&mut self) -> Result<bool, LaneFailure> {
        let any = self.advance(None)?;
        if any || !self.sender.is_idle() {
            self.probe_at = None;
            return Ok(any);
        }
        match self.probe_at {
            None => self.probe_at = Some(Deadline::after(VERBS_PROBE_EVERY)),
            Some(at) if at.passed() => self.sender.probe()?,
            Some(_) => {}
        }
        Ok(any)
    }

    fn counters(&self) -> Counters {
        self.sender.counters() + self.pulls.counters()
    }
}

/// Reason why a call ended early.
enum Stop {
    LaneFailure(LaneFailure),
    Late,
}

impl<F: Into<LaneFailure>> From<F> for Stop {
    fn from(fault: F) -> Self {
        Self::LaneFailure(fault.into())
    }
}

impl Live {
    /// Waits until `look` succeeds: spins first, then sleeps.
    fn wait<T>(
        &mut self,
        deadline: Deadline,
        for_sends: bool,
        mut look: impl FnMut(&mut Engine) -> Result<Option<T>, LaneFailure>,
    ) -> Result<T, Stop> {
        self.waiter.for_sends = for_sends;
        let engine = &mut self.engine;
        let found = wait_until(&mut self.waiter, deadline, || look(engine))?;
        found.ok_or(Stop::Late)
    }

    /// Maps a remote address to the device's numbers; reads the server's directory the first time.
    fn target(
        &mut self,
        request: Request,
        deadline: impl FnOnce() -> Deadline,
    ) -> Result<Target, Stop> {
        if !request.at.addr.is_multiple_of(8) {
            return Err(LaneFailure::Refused(request, "misaligned").into());
        }
        if let Some(target) = self.engine.keys.target(request.at) {
            return Ok(target);
        }
        self.look_up(request, deadline())?;
        let unknown = LaneFailure::Refused(request, super::keys::UNKNOWN);
        let target = self.engine.keys.target(request.at).ok_or(unknown)?;
        Ok(target)
    }

    #[cold]
    fn look_up(&mut self, request: Request, deadline: Deadline) -> Result<(), Stop> {
        let key = request.at.key;
        let refused = |why| LaneFailure::Refused(request, why);
        let from = self.engine.keys.cell(key).map_err(refused)?;
        let at = RemoteAddr {
            key,
            addr: from.address,
        };
        let cell = Request {
            op: "read of the key directory",
            at,
            len: KEY_CELL_BYTES as u64,
        };
        let mut asked = false;
        let bytes = self.wait(deadline, false, |engine| {
            asked = asked || engine.pulls.ask_cell(from, KEY_CELL_BYTES, cell)?;
            engine.advance(None)?;
            Ok(if asked { engine.pulls.cell() } else { None })
        })?;
        self.engine.keys.learn(key, &bytes).map_err(refused)?;
        Ok(())
    }

    /// Looks up the keys of reads; usually none are unknown.
    fn know(&mut self, ops: &[ReadOp], deadline: impl Fn() -> Deadline) -> Result<(), Stop> {
        for op in ops {
            let request = Request::new("read", op.from, op.len as usize);
            self.target(request, &deadline)?;
        }
        Ok(())
    }

    fn write(&mut self, request: Request, bytes: &[u8]) -> Result<(), Stop> {
        let mut to = self.target(request, data_deadline)?;
        for piece in bytes.chunks(VERBS_WRITE_BYTES) {
            if !self.engine.sender.write(request, to, piece)? {
                self.engine.sender.stalled();
                self.wait(data_deadline(), true, |engine| {
                    // Requests in an unposted batch would never make room.
                    engine.sender.post()?;
                    engine.advance(None)?;
                    Ok(engine.sender.write(request, to, piece)?.then_some(()))
                })?;
            }
            to.address = to.address.wrapping_add(piece.len() as u64);
        }
        if self.engine.sender.queued_bytes() >= EAGER_BYTES {
            self.engine.sender.post()?;
        }
        Ok(())
    }

    /// Waits for credit, too. It does not owe a signal, because this lane may not be polled for an
    /// hour. With `count`, also adds to a counter behind it.
    fn write_signal(
        &mut self,
        request: Request,
        bytes: &[u8],
        count: Option<(Request, u64)>,
    ) -> Result<(), Stop> {
        let to = self.target(request, data_deadline)?;
        let count = match count {
            None => None,
            Some((at, add)) => Some((at, self.target(at, data_deadline)?, add)),
        };
        let signal = |sender: &mut Sender| match count {
            None => sender.signal(request, to, bytes),
            Some((counted, counter, add)) => {
                sender.signal_count(request, to, bytes, counted, counter, add)
            }
        };
        if !signal(&mut self.engine.sender)? {
            self.engine.sender.stalled();
            self.wait(data_deadline(), true, |engine| {
                engine.sender.post()?;
                engine.listen()?;
                Ok(signal(&mut engine.sender)?.then_some(()))
            })?;
        }
        self.engine.sender.post()?;
        Ok(())
    }

    fn count(
        &mut self,
        request: Request,
        operand: u64,
        expected: Option<u64>,
        deadline: Deadline,
    ) -> Result<u64, Stop> {
        let at = self.target(request, || deadline)?;
        let mut number = None;
        self.wait(deadline, true, |engine| {
            if number.is_none() {
                number = engine.sender.atomic(request, at, operand, expected)?;
                engine.sender.post()?;
            }
            engine.advance(None)?;
            Ok(number.and_then(|number| engine.sender.old_value(number)))
        })
    }
}

impl VerbsClientLane {
    pub(super) fn new(
        peer: String,
        mailbox: Mailbox,
        live: Box<Live>,
        domain: Arc<ClientDomain>,
        atomics: bool,
    ) -> Self {
        Self {
            peer,
            mailbox,
            live: Some(live),
            domain,
            buffers: Known::default(),
            broken: None,
            op: "open",
            counted: Counters::default(),
            atomics,
        }
    }

    /// Refuses an atomic on a lane without atomics; the lane stays open.
    const fn needs_atomics(&self, op: &'static str) -> Result<(), LaneError> {
        match self.atomics {
            true => Ok(()),
            false => Err(LaneError::Usage {
                op,
                what: "an atomic on a lane without atomics: a device of its ends has none, or they were \
                       not asked for",
            }),
        }
    }

    /// Returns the number of requests to the device so far, by kind.
    pub fn counters(&self) -> Counters {
        let live = self.live.as_ref().map(|live| live.engine.counters());
        live.unwrap_or(self.counted)
    }

    /// Runs a call on the open lane. Any error except `Usage` closes the lane.
    fn call<T>(
        &mut self,
        op: &'static str,
        call: impl FnOnce(&mut Live) -> Result<T, Stop>,
    ) -> Result<T, LaneError> {
        self.op = op;
        // Taken out: a call that unwinds drops it, and with it all pairs, before the memory that the
        // call has borrowed returns to its owner.
        let Some(mut live) = self.live.take() else {
            let gone = || broken(&self.peer, op, "it is closed".to_owned());
            return Err(self.broken.clone().unwrap_or_else(gone));
        };
        let done = call(&mut live);
        self.live = Some(live);
        done.map_err(|stop| self.end(stop))
    }

    /// Breaks the lane: on return, its device touches none of its memory.
    #[cold]
    fn end(&mut self, stop: Stop) -> LaneError {
        let error = match stop {
            Stop::LaneFailure(fault) => fault.into_lane_error(&self.peer, self.op),
            Stop::Late => LaneError::Deadline {
                transport: TransportKind::Verbs,
                peer: self.peer.clone(),
                op: self.op,
            },
        };
        self.counted = self.counters();
        self.live = None;
        self.broken = Some(error.clone());
        error
    }
}

impl ClientLane for VerbsClientLane {
    fn transport(&self) -> TransportKind {
        TransportKind::Verbs
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
        fits("read", ops, into.head, into.body)?;
        let payload = self.buffers.payload(self.domain.buffers(), into.body);
        self.call("read", |live| {
            live.know(ops, || deadline)?;
            let mut caller = Caller::new(ops, into.head, payload);
            // Before the first poll, which would find a cell that no request asked for.
            let Engine { pulls, keys, .. } = &mut live.engine;
            pulls.ask(keys, Some(&mut caller))?;
            live.wait(deadline, false, |engine| {
                engine.advance(Some(&mut caller))?;
                Ok(caller.is_done().then_some(()))
            })
        })
    }

    /// The NIC places reads at their destination: the lane does not offer them to the callback.
    fn read_unpack(
        &mut self,
        ops: &[ReadOp],
        into: ReadDest<'_>,
        unpacker: &mut dyn Unpack,
        deadline: Deadline,
    ) -> Result<(), LaneError> {
        unpacker.restart();
        self.read(ops, into, deadline)
    }

    fn submit_read(&mut self, batch: ReadBatch) -> Result<(), LaneError> {
        fits("submit_read", &batch.ops, &batch.head, &batch.body)?;
        self.call("submit_read", |live| {
            live.know(&batch.ops, data_deadline)?;
            live.engine.pulls.take(batch);
            Ok(())
        })
    }

    fn poll_read(&mut self) -> Option<ReadBatch> {
        self.live.as_mut()?.engine.pulls.done()
    }

    /// Work requests name their memory when they are posted.
    fn wait_read(
        &mut self,
        _tag: u64,
        _ops: &[ReadOp],
        _body: &mut [u8],
        _unpacker: Option<&mut dyn Unpack>,
        _deadline: Deadline,
    ) -> Result<Option<ReadBatch>, LaneError> {
        Ok(None)
    }

    fn write(&mut self, to: RemoteAddr, bytes: &[u8]) -> Result<(), LaneError> {
        let request = Request::new("write", to, bytes.len());
        self.call("write", |live| live.write(request, bytes))
    }

    fn write_signal(&mut self, to: RemoteAddr, bytes: &[u8]) -> Result<(), LaneError> {
        let request = signal_request(to, bytes)?;
        self.call(request.op, |live| live.write_signal(request, bytes, None))
    }

    fn write_signal_count(
        &mut self,
        to: RemoteAddr,
        bytes: &[u8],
        counter: RemoteAddr,
        add: u64,
    ) -> Result<(), LaneError> {
        self.needs_atomics("write_signal_count")?;
        let request = signal_request(to, bytes)?;
        let count = (Request::new("fetch_add", counter, 8), add);
        self.call(request.op, |live| {
            live.write_signal(request, bytes, Some(count))
        })
    }

    fn fetch_add(
        &mut self,
        at: RemoteAddr,
        add: u64,
        deadline: Deadline,
    ) -> Result<u64, LaneError> {
        self.needs_atomics("fetch_add")?;
        let request = Request::new("fetch_add", at, 8);
        self.call("fetch_add", |live| live.count(request, add, None, deadline))
    }

    fn compare_swap(
        &mut self,
        at: RemoteAddr,
        expect: u64,
        new: u64,
        deadline: Deadline,
    ) -> Result<u64, LaneError> {
        let op = "compare_swap";
        self.needs_atomics(op)?;
        let request = Request::new(op, at, 8);
        self.call(op, |live| live.count(request, new, Some(expect), deadline))
    }

    fn has_atomics(&self) -> bool {
        self.atomics
    }

    fn flush(&mut self) -> Result<(), LaneError> {
        self.call("flush", |live| {
            live.engine.sender.post()?;
            live.engine.pulls.ask(&live.engine.keys, None)?;
            Ok(())
        })
    }

    fn flush_soon(&mut self) -> Result<(), LaneError> {
        self.flush()
    }

    fn poll(&mut self) -> Result<bool, LaneError> {
        self.call("poll", |live| Ok(live.engine.listen()?))
    }

    fn mailbox(&self) -> &Mailbox {
        &self.mailbox
    }

    /// Reads travel over the network, so the lane maps no memory.
    fn mapping(&self) -> Option<Mapping> {
        None
    }
}

/// Default deadline; computed only if the call has to wait.
fn data_deadline() -> Deadline {
    Deadline::after(DATA_DEADLINE)
}

fn signal_request(to: RemoteAddr, bytes: &[u8]) -> Result<Request, LaneError> {
    let op = "write_signal";
    if bytes.len() > SIGNAL_BYTES_MAX {
        let what = "more bytes than a signal takes";
        return Err(LaneError::Usage { op, what });
    }
    Ok(Request::new(op, to, bytes.len()))
}

fn fits(op: &'static str, ops: &[ReadOp], head: &[u8], body: &[u8]) -> Result<(), LaneError> {
    let fits = |o: &ReadOp| o.fits(head.len(), body.len()) && o.head_len.is_multiple_of(8);
    if ops.iter().all(fits) {
        return Ok(());
    }
    let what = "a read that does not fit its destination";
    Err(LaneError::Usage { op, what })
}

mod path;

pub use path::PathError;

#[cfg(test)]
mod tests;
