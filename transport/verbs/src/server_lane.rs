//! Applier end of a lane over RDMA. (long: both directions of a lane, and its end.)
//!
//! The server lane sends nothing before the client's first signal. Packets to an unconnected pair are
//! lost, and would be sent again only after 67 ms. Until then, and when its send queue is full, posts
//! wait in a backlog, and a signal behind them.

use std::convert::Infallible;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Duration;

use super::counters::Counters;
use super::credit::Credits;
use super::domain::Domain;
use super::ends::{Pairs, Roles, peers};
use super::error::VerbsError;
use super::lane_failure::{LaneFailure, Request, broken};
use super::memory::{Access, MemoryRegion, MemoryWindow, Target};
use super::notifier::{Notifier, Queue};
use super::pair::{QueuePair, ReadyToSend};
use super::queue::Completion;
use super::send::{Copies, RECEIVE, Sender};
use tidewater_lanes::fabric::{
    Inbox, LaneError, RegionTableView, RemoteAddr, SIGNAL_BYTES_MAX, ServerLane,
};
use tidewater_protocol::ids::RegionKey;
use tidewater_protocol::layout::session::inbox_bytes;
use tidewater_protocol::limits::{
    LANE_POSTS_BYTES_MAX, VERBS_BIND_TIMEOUT, VERBS_PAIRS_MAX, VERBS_PROBE_EVERY, VERBS_RECEIVES,
    VERBS_SEND_BYTES, VERBS_WRITE_BYTES,
};
use tidewater_protocol::wire::control::{Remote, VerbsConnect, VerbsConnected, VerbsTails};
use tidewater_runtime::clock::{self, Deadline};
use tidewater_runtime::sync::{Arc, spin_hint};

/// Completions polled at once.
const BATCH: usize = 32;
/// Number of the request that binds the inbox's window.
const BIND: u64 = u64::MAX - 1;

/// Applier end of a lane over RDMA.
///
/// Its client writes the lane's inbox, and nothing else, by a window that only its own pair may use
/// (where the device has windows). The device answers pairs that pull; no thread polls them here. When
/// it ends, the reaper of its domain destroys its pairs, before the inbox is released (F11). Registered
/// memory: 256 KiB for output, and the inbox.
#[derive(Debug)]
pub struct VerbsServerLane {
    peer: String,
    /// `None` once it has ended.
    live: Option<Box<Live>>,
    /// Open while the reaper destroys the device objects: until then bytes may still be placed.
    ending: Option<Receiver<Infallible>>,
    broken: Option<LaneError>,
}

/// Device objects of an open server lane. Fields are dropped in their order: pairs first.
#[derive(Debug)]
struct Live {
    sender: Sender,
    _pulls: Vec<QueuePair<ReadyToSend>>,
    arrivals: Queue,
    mailbox: Target,
    /// The client has signalled: its pairs are connected.
    ready: bool,
    /// The last post, if it is short: it goes in the next signal's own packet.
    held: Option<Held>,
    backlog: Backlog,
    /// Kept, because clearing it costs as much as polling an empty queue.
    batch: [Completion; BATCH],
    _inbox: Arc<MemoryRegion>,
    /// Keeps memory that the client reads registered as long as its lane lives.
    _domain: Arc<Domain>,
}

/// A post that fits into a signal.
#[derive(Debug, Clone, Copy)]
struct Held {
    at: usize,
    len: usize,
    bytes: [u8; SIGNAL_BYTES_MAX],
}

/// Posts that wait for room.
#[derive(Debug, Default)]
struct Backlog {
    bytes: Vec<u8>,
    /// Bytes of them that are sent already.
    sent: usize,
    /// Offset in the mailbox, and number of bytes.
    posts: std::collections::VecDeque<(usize, usize)>,
    /// Whether a signal waits behind them.
    signal: bool,
}

/// A client writes its inbox through one pair, and counts there with `atomics`; through the others it
/// reads.
fn roles(atomics: bool) -> Roles {
    let counts = if atomics {
        Access::REMOTE_ATOMIC
    } else {
        Access::NONE
    };
    Roles {
        push: Access::REMOTE_WRITE | counts,
        pull: Access::REMOTE_READ,
        pull_sends: 1,
        pull_elements: 1,
    }
}

impl VerbsServerLane {
    /// Answers a client's offer: creates and connects as many pairs, and opens `inbox` to them. Returns
    /// the answer to the client. Tails are polled where the notifier's thread never sleeps, and otherwise
    /// signalled (ADR 0022). Atomics are granted where the client asks for them and the device has them.
    /// The lane belongs to the notifier's thread; `peer` names the client in errors. The inbox must
    /// begin at a page of its memory. Cost: some ten system calls and the pinning of the inbox. It waits for
    /// its own device only, but the kernel may search for a second for the route to an address that does not
    /// answer.
    ///
    /// # Errors
    /// [`VerbsError`]: the client's values are impossible, there is no route to it, or the device or
    /// locked memory are used up.
    pub fn accept(
        domain: &Arc<Domain>,
        notifier: &Arc<Notifier>,
        inbox: &Inbox,
        offer: &VerbsConnect,
        peer: String,
    ) -> Result<(Self, VerbsConnected), VerbsError> {
        let open_port = domain.open_port();
        let atomics = offer.atomics && open_port.device().limits().atomics;
        let roles = roles(atomics);
        let count = offer.end.pairs.len().clamp(2, VERBS_PAIRS_MAX);
        let sends = notifier.queue(Pairs::sends_capacity(), false)?;
        let arrivals = notifier.queue(Pairs::arrivals_capacity(count - 1, roles), true)?;
        let pairs = Pairs::new(
            domain.pd(),
            open_port,
            &sends,
            &arrivals,
            count - 1,
            roles,
            domain.settings(),
        )?;
        let mut end = pairs.end();
        let peers = peers(pairs.push.path(), &offer.end, count)?;
        let has_ece = pairs.set_ece(offer.end.ece)?;
        let mut push = pairs.push.connect(&peers[0])?;
        // Those that the device has taken.
        end.ece = push.ece().filter(|_| has_ece);
        let pulls = pairs.pulls.into_iter().zip(&peers[1..]);
        let pulls = pulls.map(|(pair, peer)| pair.connect(peer));
        let pulls = pulls.collect::<Result<Vec<_>, _>>()?;
        // Tails and frames carry checksums, so that the device need not place them in order.
        let tails = match notifier.is_awake() {
            true => VerbsTails::Polled,
            false => VerbsTails::Signalled,
        };
        let (registered, rkey) = open_inbox(domain, inbox, &mut push, &sends)?;
        let (directory, directory_salt) = domain.directory();
        let connected = VerbsConnected {
            applier: offer.applier,
            end,
            inbox: Remote {
                key: RegionKey(rkey),
                address: registered.iova(),
                len: registered.len() as u64,
            },
            directory,
            directory_salt,
            tails,
            atomics,
        };
        let credits = Credits::new(offer.end.receives, VERBS_RECEIVES);
        let live = Live {
            sender: Sender::new(
                push,
                sends,
                Copies::new(domain.pd(), VERBS_SEND_BYTES)?,
                credits,
            ),
            _pulls: pulls,
            arrivals,
            mailbox: Target {
                rkey: offer.mailbox.key.0,
                address: offer.mailbox.address,
            },
            ready: false,
            held: None,
            backlog: Backlog::default(),
            batch: [Completion::EMPTY; BATCH],
            _inbox: registered,
            _domain: Arc::clone(domain),
        };
        let port = Self {
            peer,
            live: Some(Box::new(live)),
            ending: None,
            broken: None,
        };
        Ok((port, connected))
    }

    /// Returns the number of requests to the device so far; zeros once it is destroyed.
    pub fn counters(&self) -> Counters {
        let live = self.live.as_ref().map(|live| live.sender.counters());
        live.unwrap_or_default()
    }

    /// Returns what the device grants and promises to the pair that the client pushes through: the inline
    /// bytes, and whether data is placed in order ([`QueuePair::data_in_order`]). `None` once the lane is
    /// destroyed.
    pub fn granted(&self) -> Option<(u32, Option<bool>)> {
        let pair = self.live.as_ref()?.sender.pair();
        Some((pair.granted().inline_bytes, pair.data_in_order()))
    }

    fn call<T>(
        &mut self,
        op: &'static str,
        call: impl FnOnce(&mut Live) -> Result<T, LaneFailure>,
    ) -> Result<T, LaneError> {
        let done = match (&self.broken, &mut self.live) {
            (None, Some(live)) => call(live),
            (Some(broken), _) => return Err(broken.clone()),
            (None, None) => Err(LaneFailure::Because("the port was destroyed")),
        };
        done.map_err(|fault| {
            let error = fault.into_lane_error(&self.peer, op);
            self.broken = Some(error.clone());
            error
        })
    }
}

/// Registers exactly the inbox, for the peer of one pair to write. Where the device has windows, the
/// key is valid for that pair only.
fn open_inbox(
    domain: &Domain,
    inbox: &Inbox,
    push: &mut QueuePair<ReadyToSend>,
    sends: &Queue,
) -> Result<(Arc<MemoryRegion>, u32), VerbsError> {
    let pd = domain.pd();
    let bytes = inbox_bytes(inbox.ring().bytes() as usize);
    let (region, base) = inbox.region();
    // Order is strict here: the tail announces that what was written before it is there.
    let windows = domain.windows();
    let access = Access::LOCAL_WRITE
        | if windows {
            Access::WINDOWS
        } else {
            Access::REMOTE_WRITE
        };
    let registered = MemoryRegion::register(pd, region, base..base + bytes, 0, access)?;
    if !windows {
        log_no_windows(pd.device().name());
        let rkey = registered.rkey();
        return Ok((registered, rkey));
    }
    let window = MemoryWindow::new(pd)?;
    let rkey = push.bind_window(BIND, window, &registered, 0, bytes, Access::REMOTE_WRITE)?;
    let deadline = Deadline::after(VERBS_BIND_TIMEOUT);
    let mut done = [Completion::EMPTY];
    while sends.poll(&mut done)? == 0 {
        if deadline.passed() {
            let late = rustix::io::Errno::TIMEDOUT;
            return Err(pd.device().failed("IBV_WR_BIND_MW", late));
        }
        spin_hint();
    }
    done[0].check()?;
    Ok((registered, rkey))
}

#[cold]
fn log_no_windows(device: &str) {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        tracing::info!(
            device,
            "the device has no memory windows: the key of an inbox is good for every pair of its \
             job, not only for that of its client"
        );
    });
}

impl Live {
    /// The request and the device's target of `at` in the mailbox.
    fn mail(&self, at: usize, len: usize) -> (Request, Target) {
        let address = self.mailbox.address.wrapping_add(at as u64);
        let rkey = self.mailbox.rkey;
        let to = RemoteAddr {
            key: RegionKey(rkey),
            addr: address,
        };
        (Request::new("post", to, len), Target { rkey, address })
    }

    /// Queues as much as there is room for; returns the number of bytes.
    fn write(&mut self, at: usize, bytes: &[u8]) -> Result<usize, LaneFailure> {
        let mut done = 0;
        for piece in bytes.chunks(VERBS_WRITE_BYTES) {
            let (request, to) = self.mail(at + done, piece.len());
            if !self.sender.write(request, to, piece)? {
                self.sender.stalled();
                // Requests in an unposted batch would never make room.
                self.sender.post()?;
                break;
            }
            done += piece.len();
        }
        Ok(done)
    }

    /// Keeps a short post for the next signal. Another post sends it before, so that posts keep their
    /// order.
    fn post(&mut self, at: usize, bytes: &[u8]) -> Result<(), LaneFailure> {
        self.release()?;
        if self.ready && self.backlog.is_empty() && bytes.len() <= SIGNAL_BYTES_MAX {
            let mut held = Held {
                at,
                len: bytes.len(),
                bytes: [0; SIGNAL_BYTES_MAX],
            };
            held.bytes[..bytes.len()].copy_from_slice(bytes);
            self.held = Some(held);
            return Ok(());
        }
        self.send(at, bytes)
    }

    /// Sends the held post by itself, if there is one.
    fn release(&mut self) -> Result<(), LaneFailure> {
        match self.held.take() {
            Some(Held { at, len, bytes }) => self.send(at, &bytes[..len]),
            None => Ok(()),
        }
    }

    /// Writes a post, or keeps what finds no room.
    fn send(&mut self, at: usize, bytes: &[u8]) -> Result<(), LaneFailure> {
        let mut done = 0;
        if self.ready && self.backlog.is_empty() {
            done = self.write(at, bytes)?;
        }
        if done < bytes.len() && !self.backlog.push(at + done, &bytes[done..]) {
            return Err(LaneFailure::Because(
                "it does not take its mail and is too far behind",
            ));
        }
        Ok(())
    }

    /// Signals, in one request with the held post. A post is held only while none waits in the backlog.
    fn signal(&mut self) -> Result<(), LaneFailure> {
        if !self.ready || !self.backlog.is_empty() {
            self.backlog.signal = true;
            return Ok(());
        }
        let sent = match &self.held {
            Some(Held { at, len, bytes }) => {
                let (request, to) = self.mail(*at, *len);
                self.sender.signal(request, to, &bytes[..*len])?
            }
            None => {
                let (_, nowhere) = self.mail(0, 0);
                self.sender.signal(Request::EMPTY_SIGNAL, nowhere, &[])?
            }
        };
        if sent {
            self.held = None;
        } else {
            self.release()?;
            match self.backlog.is_empty() {
                true => self.sender.owe(),
                // The signal follows what has found no room.
                false => self.backlog.signal = true,
            }
        }
        self.sender.post()
    }

    /// Sends waiting posts, as far as there is room; whether any was sent.
    fn drain(&mut self) -> Result<bool, LaneFailure> {
        let mut any = false;
        let mut backlog = std::mem::take(&mut self.backlog);
        while let Some((at, bytes)) = backlog.first() {
            let (len, done) = (bytes.len(), self.write(at, bytes)?);
            backlog.sent(done);
            any |= done > 0;
            if done < len {
                break;
            }
        }
        let signal = backlog.is_empty() && std::mem::take(&mut backlog.signal);
        self.backlog = backlog;
        if signal {
            self.signal()?;
        }
        if any {
            self.sender.post()?;
        }
        Ok(any)
    }

    fn poll(&mut self) -> Result<bool, LaneFailure> {
        let mut any = self.sender.poll()?;
        loop {
            let got = self.arrivals.poll(&mut self.batch)?;
            for completion in &self.batch[..got] {
                if completion.wr_id != RECEIVE {
                    return Err(LaneFailure::Ended(None, completion.status));
                }
                self.sender.heard(completion)?;
                self.ready = true;
            }
            any |= got > 0;
            if got < self.batch.len() {
                break;
            }
        }
        if self.ready && !self.backlog.is_idle() {
            any |= self.drain()?;
        }
        let waiting = self.ready && !self.backlog.is_empty();
        self.sender.settle(waiting)?;
        if !any && !self.sender.is_idle() {
            self.sender.silent(clock::now())?;
        }
        Ok(any)
    }
}

impl Backlog {
    fn is_empty(&self) -> bool {
        self.posts.is_empty()
    }

    /// Whether neither posts nor a signal wait.
    fn is_idle(&self) -> bool {
        self.posts.is_empty() && !self.signal
    }

    /// Adds a post; false when there are too many bytes.
    fn push(&mut self, at: usize, bytes: &[u8]) -> bool {
        if self.bytes.len() - self.sent + bytes.len() > LANE_POSTS_BYTES_MAX {
            return false;
        }
        self.posts.push_back((at, bytes.len()));
        self.bytes.extend_from_slice(bytes);
        true
    }

    /// Returns the oldest post, or the rest of it.
    fn first(&self) -> Option<(usize, &[u8])> {
        let &(at, len) = self.posts.front()?;
        Some((at, &self.bytes[self.sent..self.sent + len]))
    }

    /// Notes that `bytes` bytes of the oldest post are sent.
    fn sent(&mut self, bytes: usize) {
        if let Some((at, len)) = self.posts.front_mut() {
            (*at, *len) = (*at + bytes, *len - bytes);
            if *len == 0 {
                self.posts.pop_front();
            }
        }
        self.sent += bytes;
        // Moved to the front when that is cheap: each byte is moved once, on average.
        if self.sent * 2 >= self.bytes.len() {
            self.bytes.drain(..self.sent);
            self.sent = 0;
        }
    }
}

impl ServerLane for VerbsServerLane {
    fn peer(&self) -> &str {
        &self.peer
    }

    fn poll(&mut self, _: &mut RegionTableView, _: &Inbox) -> Result<bool, LaneError> {
        self.call("poll", Live::poll)
    }

    fn post(&mut self, at: usize, bytes: &[u8]) -> Result<(), LaneError> {
        self.call("post", |live| live.post(at, bytes))
    }

    fn signal(&mut self) -> Result<(), LaneError> {
        self.call("signal", Live::signal)
    }

    fn poll_hint(&self) -> Option<Duration> {
        let live = self.live.as_ref().filter(|_| self.broken.is_none())?;
        (!live.sender.is_idle()).then_some(VERBS_PROBE_EVERY)
    }

    fn destroy(&mut self) {
        self.hand_over();
        if let Some(ending) = self.ending.take() {
            // Nothing is ever sent: the channel closes when the objects are destroyed.
            let _ = ending.recv();
        }
    }

    fn end(&mut self) -> bool {
        self.hand_over();
        let is_open = |ending: &Receiver<_>| ending.try_recv() == Err(TryRecvError::Empty);
        !self.ending.as_ref().is_some_and(is_open)
    }
}

impl VerbsServerLane {
    /// Breaks the pair that pushes, and hands all device objects to the reaper. Cost: one command of the
    /// device.
    fn hand_over(&mut self) {
        let Some(live) = self.live.take() else {
            return;
        };
        if let Err(error) = live.sender.break_off() {
            // The device is gone, or destroying the pair breaks it.
            tracing::debug!(peer = self.peer, %error, "cannot break a queue pair");
        }
        // Not the domain: its last owner deregisters all memory, which is no work of an applier either.
        let reaper = live._domain.reaper().clone();
        self.ending = Some(reaper.reap(live));
        if self.broken.is_none() {
            let why = "the port was destroyed".to_owned();
            self.broken = Some(broken(&self.peer, "poll", why));
        }
    }
}

impl Drop for VerbsServerLane {
    fn drop(&mut self) {
        self.hand_over();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lanes also work on a device without windows. A key of an inbox is then valid for all pairs of
    /// the domain, to write only.
    #[test]
    #[ignore = "needs an RDMA device: ci/softroce.sh"]
    fn lanes_work_without_windows() {
        use super::super::{ClientDomain, OpenPort, RetryTimeout, pair};
        use tidewater_conformance::test_device::{address, device};
        use tidewater_lanes::fabric::{ClientLane, INBOX_KEY, ReadDest, ReadOp, RegionTable};
        use tidewater_lanes::wake::OsParker;

        let open_port = OpenPort::for_address(address(), device().as_deref()).unwrap();
        let exports = Arc::new(RegionTable::new(1));
        let domain =
            Domain::with_windows(&open_port, &exports, RetryTimeout::default(), false).unwrap();
        let client = ClientDomain::new(&open_port, RetryTimeout::default()).unwrap();
        let parker = OsParker::new(Duration::ZERO).unwrap();
        let thread = Notifier::new(&open_port, parker.reactor(), parker.arms()).unwrap();
        let (mut lane, mut port, inbox) =
            pair(&domain, &thread, &client, &thread, 1, 1 << 16, 3).unwrap();
        let at = |addr| RemoteAddr {
            key: INBOX_KEY,
            addr,
        };
        lane.write_signal(at(4096), &[7; 64]).unwrap();
        let deadline = Deadline::after(Duration::from_secs(10));
        while inbox.header(0)[7] != u64::from_le_bytes([7; 8]) {
            assert!(!deadline.passed(), "the write does not land");
            port.poll(&mut exports.view(), &inbox).unwrap();
        }
        let op = ReadOp {
            from: at(0),
            len: 64,
            head_len: 0,
            head_at: 0,
            body_at: 0,
            fence: false,
        };
        let into = ReadDest {
            head: &mut [],
            body: &mut [0; 64],
        };
        let refused = lane.read(&[op], into, deadline);
        assert!(
            matches!(refused, Err(LaneError::Access { .. })),
            "{refused:?}"
        );
    }

    /// A thread that ends lanes waits for none of their objects, and each lane says when it has ended.
    #[test]
    #[ignore = "needs an RDMA device: ci/softroce.sh"]
    fn lanes_end_without_waiting_for_the_device() {
        use std::net::{IpAddr, Ipv4Addr};
        use std::sync::mpsc::channel;

        use super::super::{ClientDomain, OpenPort, RetryTimeout, pair};
        use tidewater_lanes::fabric::RegionTable;
        use tidewater_lanes::wake::OsParker;

        /// Holds the reaper until its gate opens.
        struct Gate(Receiver<()>);
        impl Drop for Gate {
            fn drop(&mut self) {
                // Closed by the test, in every case.
                let _ = self.0.recv();
            }
        }

        let open_port = OpenPort::for_address(IpAddr::V4(Ipv4Addr::LOCALHOST), None).unwrap();
        let exports = Arc::new(RegionTable::new(1));
        let domain = Domain::new(&open_port, &exports, RetryTimeout::default()).unwrap();
        let client = ClientDomain::new(&open_port, RetryTimeout::default()).unwrap();
        let parker = OsParker::new(Duration::ZERO).unwrap();
        let thread = Notifier::new(&open_port, parker.reactor(), parker.arms()).unwrap();
        let lane = |_| pair(&domain, &thread, &client, &thread, 1, 1 << 16, 3).unwrap();
        let mut lanes: Vec<_> = (0..16).map(lane).collect();
        let (gate, closed) = channel();
        let gated = domain.reaper().reap(Box::new(Gate(closed)));
        for (_, port, _) in &mut lanes {
            assert!(
                !port.end(),
                "the pairs cannot be destroyed: the reaper is held"
            );
            assert!(port.poll(&mut exports.view(), &lane_inbox()).is_err());
        }
        let (_, other, _) = &mut lane(0);
        assert!(
            other.poll(&mut exports.view(), &lane_inbox()).is_ok(),
            "others go on"
        );
        drop(gate);
        assert!(gated.recv().is_err());
        for (_, port, _) in &mut lanes {
            port.destroy();
            assert!(port.end(), "destroyed");
        }

        fn lane_inbox() -> Inbox {
            use tidewater_protocol::layout::ring::RingGeometry;
            let region = tidewater_runtime::mem::Region::anonymous(inbox_bytes(1 << 16)).unwrap();
            Inbox::new(Arc::new(region), 0, RingGeometry::new(1 << 16).unwrap(), 3).unwrap()
        }
    }

    #[test]
    fn a_backlog_gives_back_what_it_took_in_pieces_of_any_size() {
        let mut backlog = Backlog::default();
        let mut want = Vec::new();
        for n in 0..50usize {
            let post = vec![n as u8; n * 7 + 1];
            assert!(backlog.push(1000 * n, &post));
            want.extend((0..post.len()).map(|i| (1000 * n + i, n as u8)));
        }
        let mut got = Vec::new();
        let mut step = 0;
        while let Some((at, bytes)) = backlog.first() {
            step += 1;
            let take = bytes.len().min(step % 13 + 1);
            got.extend(bytes[..take].iter().enumerate().map(|(i, b)| (at + i, *b)));
            backlog.sent(take);
        }
        assert_eq!(got, want);
        assert!(backlog.is_idle() && backlog.bytes.is_empty());
    }

    #[test]
    fn a_client_that_takes_nothing_is_given_up() {
        let mut backlog = Backlog::default();
        let post = vec![0; 1 << 20];
        let taken = (0..100).take_while(|_| backlog.push(0, &post)).count();
        assert_eq!(taken, LANE_POSTS_BYTES_MAX >> 20);
    }
}
