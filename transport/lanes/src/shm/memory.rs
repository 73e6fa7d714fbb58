//! The memories of a server and of its sessions, and how a client attaches to them.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::{ShmClientLane, ShmError, ShmServerLane};
use crate::fabric::{Inbox, Mailbox};
use crate::wake::Waker;
use tidewater_protocol::layout::ring::RingGeometry;
use tidewater_protocol::layout::session::{
    ALIVE_AFTER_DOZE, INBOX_DOZE_AT, inbox_bytes, mailbox_bytes,
};
use tidewater_protocol::limits::{APPLIERS_MAX, RING_BYTES_MAX, RING_BYTES_MIN};
pub use tidewater_protocol::wire::control::ShmAttach;
use tidewater_runtime::liveness::LivenessView;
use tidewater_runtime::mem::region::{read_only_fd, seal_for_readers, seal_for_writers};
use tidewater_runtime::mem::{MemError, Region};
use tidewater_runtime::sync::Arc;

/// Number of memory descriptors (public, counters, inbox, mailbox) that a server passes to a client
/// before the wakers.
const MEMORIES: usize = 4;

/// The two memories that a server process shares with all its clients on this host: public (parameters,
/// META) and counters. Made by the server.
#[derive(Debug)]
pub struct ServerMemory {
    public: Arc<Region>,
    public_fd: OwnedFd,
    counters: Arc<Region>,
    counters_fd: OwnedFd,
    key_check: u8,
}

impl ServerMemory {
    /// Wraps and seals the server's memfds (`Region::memfd`); `key_check` is
    /// [`crate::fabric::RegionTable::check_bits`]. Clients receive the public one for reading only. No
    /// further writable mapping of it can be made from Linux 5.1 on, also by this process, and neither
    /// memfd gets another seal.
    ///
    /// # Errors
    /// [`ShmError::Memory`] when `/proc` is not mounted, no descriptor is left, or the kernel refuses a
    /// seal.
    pub fn new(
        public: (Arc<Region>, impl AsFd),
        counters: (Arc<Region>, OwnedFd),
        key_check: u8,
    ) -> Result<Self, ShmError> {
        seal_for_readers(&public.1).map_err(memory("public"))?;
        seal_for_writers(&counters.1).map_err(memory("counters"))?;
        Ok(Self {
            public_fd: read_only_fd(&public.1).map_err(memory("public"))?,
            public: public.0,
            counters: counters.0,
            counters_fd: counters.1,
            key_check,
        })
    }

    /// Returns the public memory: parameters, META and the appliers' parked flags. This process can write
    /// it.
    pub const fn public(&self) -> &Arc<Region> {
        &self.public
    }

    /// Returns the memory of the advisory counters, which clients may change by atomics.
    pub const fn counters(&self) -> &Arc<Region> {
        &self.counters
    }
}

/// What a client needs to wake one applier: the location of the applier's parked flag, and the waker of
/// its thread.
#[derive(Debug, Clone)]
pub struct ApplierEnd {
    /// Byte offset of the applier's parked flag in public memory, a multiple of 8. Its liveness word
    /// follows, [`ALIVE_AFTER_DOZE`] bytes behind.
    pub parked_flag_at: u64,
    /// Waker of the applier's thread.
    pub waker: Waker,
}

/// The server's side of one client thread's session: inbox and mailbox memory of all its lanes, one lane
/// for each applier. The memory is freed once this, the lanes at both ends, and the inboxes and mailboxes
/// made from it are dropped.
#[derive(Debug)]
pub struct SessionMemory {
    server: Arc<ServerMemory>,
    appliers: Vec<ApplierEnd>,
    ring: RingGeometry,
    salt: u64,
    inbox: Arc<Region>,
    inbox_fd: OwnedFd,
    mailbox: Arc<Region>,
    mailbox_fd: OwnedFd,
}

impl SessionMemory {
    /// Creates a session's memory with one lane for each of `appliers`, 1 to 64. Each lane's ring has
    /// `ring_bytes` bytes, a power of two from 16 KiB to 16 MiB. `salt`, the session's nonce, keys the
    /// checksums of tail records. Tails are set to 0. Cost: two memfds; their pages take memory when
    /// first touched.
    ///
    /// # Errors
    /// [`ShmError`]: a number past its limit, a parked flag that is misaligned or outside public memory,
    /// or no descriptors or memory left.
    pub fn create(
        server: &Arc<ServerMemory>,
        appliers: &[ApplierEnd],
        ring_bytes: usize,
        salt: u64,
    ) -> Result<Self, ShmError> {
        let ring = ring_of(ring_bytes as u64)?;
        let lanes = lanes_of(appliers.len())?;
        for applier in appliers {
            parked_flag_of(&server.public, applier.parked_flag_at)?;
        }
        let (inbox, inbox_fd) = Region::memfd("tidewater-inbox", lanes * inbox_bytes(ring_bytes))
            .map_err(memory("inbox"))?;
        let (mailbox, mailbox_fd) =
            Region::memfd("tidewater-mailbox", lanes * mailbox_bytes(ring_bytes))
                .map_err(memory("mailbox"))?;
        seal_for_writers(&inbox_fd).map_err(memory("inbox"))?;
        seal_for_readers(&mailbox_fd).map_err(memory("mailbox"))?;
        let session = Self {
            server: Arc::clone(server),
            appliers: appliers.to_vec(),
            ring,
            salt,
            inbox: Arc::new(inbox),
            inbox_fd,
            mailbox: Arc::new(mailbox),
            mailbox_fd: read_only_fd(&mailbox_fd).map_err(memory("mailbox"))?,
        };
        for lane in 0..lanes {
            session.inbox(lane)?.reset_tail(0);
        }
        Ok(session)
    }

    /// Returns the number of lanes of the session, one for each applier of the server.
    pub fn lanes(&self) -> usize {
        self.appliers.len()
    }

    /// Returns the inbox of lane number `lane` (from 0), which the client writes and the lane's applier
    /// reads.
    ///
    /// # Errors
    /// [`ShmError::Memory`] when there is no such lane.
    pub fn inbox(&self, lane: usize) -> Result<Inbox, ShmError> {
        let at = lane.saturating_mul(inbox_bytes(self.ring.bytes() as usize));
        Inbox::new(Arc::clone(&self.inbox), at, self.ring, self.salt).map_err(memory("inbox"))
    }

    /// Returns the mailbox of lane number `lane` (from 0), which its applier writes through the server
    /// lane and the client reads.
    ///
    /// # Errors
    /// [`ShmError::Memory`] when there is no such lane.
    pub fn mailbox(&self, lane: usize) -> Result<Mailbox, ShmError> {
        let bytes = mailbox_bytes(self.ring.bytes() as usize);
        let at = lane.saturating_mul(bytes);
        Mailbox::new(Arc::clone(&self.mailbox), at, bytes).map_err(memory("mailbox"))
    }

    /// Creates the applier's end of lane number `lane`, and marks the lane as open; `peer` names the
    /// client in messages. `client` is the waker that the client passed ([`Waker::from_peer`]), of which
    /// the end keeps a clone. To recover a lane, destroy its server lane and make another one, which
    /// opens the lane again.
    ///
    /// # Errors
    /// [`ShmError::Memory`] when there is no such lane.
    pub fn port(&self, lane: usize, peer: &str, client: &Waker) -> Result<ShmServerLane, ShmError> {
        let (inbox, mailbox) = (self.inbox(lane)?, self.mailbox(lane)?);
        Ok(ShmServerLane::new(
            peer.to_owned(),
            inbox,
            mailbox,
            client.clone(),
        ))
    }

    /// Returns the sizes, parked flag offsets and key check bits that the server sends to the client. The
    /// client passes them to [`attach`] with `Self::descriptors`.
    pub fn numbers(&self) -> ShmAttach {
        ShmAttach {
            key_check: self.server.key_check,
            public_bytes: self.server.public.len() as u64,
            counters_bytes: self.server.counters.len() as u64,
            ring_bytes: self.ring.bytes(),
            mailbox_bytes: mailbox_bytes(self.ring.bytes() as usize) as u64,
            parked_flag_at: self.appliers.iter().map(|a| a.parked_flag_at).collect(),
        }
    }

    /// Returns the descriptors that the server passes to the client, in this order: public memory
    /// (read-only), counters, inbox, mailbox (read-only), then the waker of each lane's applier.
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let mut fds = vec![
            self.server.public_fd.as_fd(),
            self.server.counters_fd.as_fd(),
            self.inbox_fd.as_fd(),
            self.mailbox_fd.as_fd(),
        ];
        fds.extend(self.appliers.iter().map(|a| a.waker.as_fd()));
        fds
    }

    /// Attaches a client thread of this process to the session (embedded mode, where client and server
    /// share a process). Returns its lanes, one for each applier. `peer` names the server in messages.
    ///
    /// # Errors
    /// [`ShmError`], for example when no descriptors are left.
    pub fn attach_here(&self, peer: &str) -> Result<Vec<ShmClientLane>, ShmError> {
        let fds: Result<Vec<_>, _> = self
            .descriptors()
            .iter()
            .map(BorrowedFd::try_clone_to_owned)
            .collect();
        attach(&self.numbers(), fds.map_err(ShmError::Duplicate)?, peer)
    }
}

/// Returns the number of descriptors that the server passes with the attachment `attach`: four memories,
/// and a waker for each lane.
pub const fn descriptors(attach: &ShmAttach) -> usize {
    MEMORIES + attach.parked_flag_at.len()
}

/// Attaches a client to a server: maps its memories and returns one lane for each applier, in order. All
/// input from the server is checked. Memories must be sealed and at least as long as announced, sizes and
/// offsets must be possible, wakers must be eventfds.
///
/// Descriptors are taken in the order of [`SessionMemory::descriptors`] and closed when they are no
/// longer needed. `peer` names the server in messages. The caller adds [`ShmClientLane::parked_flag`] of
/// each lane to its parker, or the server cannot wake it.
///
/// # Errors
/// [`ShmError`]; all descriptors are closed then, and nothing stays mapped.
pub fn attach(
    attach: &ShmAttach,
    fds: Vec<OwnedFd>,
    peer: &str,
) -> Result<Vec<ShmClientLane>, ShmError> {
    let lanes = lanes_of(attach.parked_flag_at.len())?;
    let ring = ring_of(attach.ring_bytes)?;
    let mailbox_bytes = mailbox_bytes(ring.bytes() as usize);
    if attach.mailbox_bytes != mailbox_bytes as u64 {
        return Err(number(
            "mailbox_bytes",
            attach.mailbox_bytes,
            "that of its ring in this version",
        ));
    }
    if fds.len() != descriptors(attach) {
        return Err(ShmError::Descriptors {
            expected: descriptors(attach),
            got: fds.len(),
            lanes,
        });
    }
    let window = inbox_bytes(ring.bytes() as usize);
    let mut fds = fds.into_iter();
    let mut map = |name, bytes: u64, writable| -> Result<Arc<Region>, ShmError> {
        let missing = || ShmError::Descriptors {
            expected: MEMORIES,
            got: 0,
            lanes,
        };
        let fd = fds.next().ok_or_else(missing)?;
        if bytes == 0 || bytes > isize::MAX as u64 {
            return Err(number(name, bytes, "the size of a memory"));
        }
        let region = Region::from_peer(fd, bytes as usize, writable).map_err(memory(name))?;
        Ok(Arc::new(region))
    };
    let public = map("public", attach.public_bytes, false)?;
    let counters = map("counters", attach.counters_bytes, true)?;
    let inbox = map("inbox", (lanes * window) as u64, true)?;
    let mailbox = map("mailbox", (lanes * mailbox_bytes) as u64, false)?;
    let mut made = Vec::with_capacity(lanes);
    for (lane, (waker, parked_flag_at)) in fds.zip(&attach.parked_flag_at).enumerate() {
        made.push(ShmClientLane {
            peer: peer.to_owned(),
            key_check: attach.key_check,
            applier_parked_flag_at: parked_flag_of(&public, *parked_flag_at)?,
            alive: LivenessView::new(
                &public,
                parked_flag_of(&public, *parked_flag_at)? + ALIVE_AFTER_DOZE,
            )
            .map_err(memory("public"))?,
            public: Arc::clone(&public),
            counters: Arc::clone(&counters),
            inbox: Arc::clone(&inbox),
            inbox_at: lane * window,
            inbox_bytes: window,
            mailbox: Mailbox::new(Arc::clone(&mailbox), lane * mailbox_bytes, mailbox_bytes)
                .map_err(memory("mailbox"))?,
            applier: Waker::from_peer(waker).map_err(ShmError::Waker)?,
            done: VecDeque::new(),
            broken: None,
        });
    }
    Ok(made)
}

/// Both ends of one shared-memory lane in one process, as [`pair`] returns them.
#[derive(Debug)]
pub struct ShmPair {
    /// The client's end of the lane.
    pub lane: ShmClientLane,
    /// The applier's end of the lane.
    pub port: ShmServerLane,
    /// The inbox that the applier reads.
    pub inbox: Inbox,
    /// The memory of inbox and mailbox.
    pub session: SessionMemory,
}

/// Creates a lane between a client thread and an applier of the same process, without a socket, for tests
/// and measurements. `client` wakes the client, `salt` is the session's nonce; `ring_bytes` is a power of
/// two from 16 KiB to 16 MiB. Takes the same steps as two processes, so that tests cover the production
/// path.
///
/// # Errors
/// [`ShmError`]: a number past its limit, or no descriptors or memory left.
pub fn pair(
    server: &Arc<ServerMemory>,
    applier: &ApplierEnd,
    client: &Waker,
    ring_bytes: usize,
    salt: u64,
) -> Result<ShmPair, ShmError> {
    let session = SessionMemory::create(server, std::slice::from_ref(applier), ring_bytes, salt)?;
    let mut lanes = session.attach_here("server")?;
    Ok(ShmPair {
        lane: lanes.pop().ok_or(number("lanes", 0, "one"))?,
        port: session.port(0, "client", client)?,
        inbox: session.inbox(0)?,
        session,
    })
}

fn ring_of(bytes: u64) -> Result<RingGeometry, ShmError> {
    let ring = usize::try_from(bytes)
        .ok()
        .filter(|bytes| (RING_BYTES_MIN..=RING_BYTES_MAX).contains(bytes))
        .and_then(RingGeometry::new);
    ring.ok_or_else(|| number("ring_bytes", bytes, "a power of two, 16 KiB to 16 MiB"))
}

fn lanes_of(lanes: usize) -> Result<usize, ShmError> {
    if (1..=usize::from(APPLIERS_MAX)).contains(&lanes) {
        Ok(lanes)
    } else {
        Err(number("lanes", lanes as u64, "1 to 64"))
    }
}

fn parked_flag_of(public: &Region, at: u64) -> Result<usize, ShmError> {
    let wrong = || number("parked_flag_at", at, "an aligned word inside public memory");
    let at = usize::try_from(at).map_err(|_| wrong())?;
    let bytes = ALIVE_AFTER_DOZE + 8;
    public.check(at, bytes).map_err(|_| wrong())?;
    Ok(at)
}

const fn number(what: &'static str, value: u64, must: &'static str) -> ShmError {
    ShmError::Number { what, value, must }
}

fn memory(memory: &'static str) -> impl Fn(MemError) -> ShmError {
    move |source| ShmError::Memory { memory, source }
}

// Slices of a memfd begin on pages, so that two lanes never share a cache line.
const _: () = assert!(inbox_bytes(RING_BYTES_MIN).is_multiple_of(4096));
const _: () = assert!(INBOX_DOZE_AT + 8 <= inbox_bytes(0));
