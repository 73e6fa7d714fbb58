//! A client's lane before the server's answer.

use std::time::Duration;

use super::client_lane::{BATCH, Engine, Live, VerbsClientLane};
use super::credit::Credits;
use super::domain::ClientDomain;
use super::ends::{Pairs, Roles, peers};
use super::error::VerbsError;
use super::keys::Keys;
use super::memory::{Access, MemoryRegion, Target};
use super::notifier::{Notifier, Queue, Waiter};
use super::pull::{Pulls, READ_ELEMENTS, StagingMemory};
use super::queue::Completion;
use super::send::{Copies, Sender, memory};
use tidewater_lanes::fabric::{Mailbox, SPIN};
use tidewater_protocol::ids::{ApplierId, RegionKey};
use tidewater_protocol::layout::directory::KEY_CELL_BYTES;
use tidewater_protocol::limits::{VERBS_PAIRS_MAX, VERBS_PUSH_BYTES, VERBS_RECEIVES, VERBS_SENDS};
use tidewater_protocol::wire::control::{Remote, VerbsConnect, VerbsConnected, VerbsTails};
use tidewater_runtime::sync::Arc;

/// A server writes into the mailbox, and no peer pulls from a client.
const ROLES: Roles = Roles {
    push: Access::REMOTE_WRITE,
    pull: Access::NONE,
    pull_sends: VERBS_SENDS,
    pull_elements: READ_ELEMENTS as u32,
};

/// A lane's pairs in INIT, and all its memory: the source of a [`VerbsConnect`] and of the opened lane.
#[derive(Debug)]
pub struct LaneOffer {
    pairs: Pairs,
    sends: Queue,
    arrivals: Queue,
    copies: Copies,
    staging: Vec<StagingMemory>,
    registered: Arc<MemoryRegion>,
    mailbox: Mailbox,
    domain: Arc<ClientDomain>,
    atomics: bool,
}

impl LaneOffer {
    /// Creates the pairs of a lane, of which `pulls` pull (1 to 4), and registers its memory: 3.1 MiB,
    /// and 528 KiB for each of them. The lane will belong to the notifier's thread.
    ///
    /// # Errors
    /// [`VerbsError`]: the device has no more of something, or memory is limited.
    pub fn new(
        domain: &Arc<ClientDomain>,
        notifier: &Arc<Notifier>,
        pulls: usize,
        mailbox_bytes: usize,
    ) -> Result<Self, VerbsError> {
        let pulls = pulls.clamp(1, VERBS_PAIRS_MAX - 1);
        let sends = notifier.queue(Pairs::sends_capacity(), false)?;
        let arrivals = notifier.queue(Pairs::arrivals_capacity(pulls, ROLES), true)?;
        let (pd, open_port) = (domain.pd(), domain.open_port());
        let pairs = Pairs::new(
            pd,
            open_port,
            &sends,
            &arrivals,
            pulls,
            ROLES,
            domain.settings(),
        )?;
        // A client trusts its server. Order is strict, because records and words of the mailbox
        // announce that what was posted before them is there.
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let (region, registered) = memory(pd, mailbox_bytes, access)?;
        let unmapped = |_| open_port.device().failed("mmap", rustix::io::Errno::NOMEM);
        Ok(Self {
            pairs,
            sends,
            arrivals,
            copies: Copies::new(pd, VERBS_PUSH_BYTES)?,
            staging: (0..pulls)
                .map(|_| StagingMemory::new(pd))
                .collect::<Result<_, _>>()?,
            registered,
            mailbox: Mailbox::new(region, 0, mailbox_bytes).map_err(unmapped)?,
            domain: Arc::clone(domain),
            atomics: open_port.device().limits().atomics,
        })
    }

    /// Asks for no atomics: for a lane that counts nothing. By default a lane asks for them if its device
    /// has them.
    pub const fn ask_no_atomics(&mut self) {
        self.atomics = false;
    }

    /// Returns the message to the server, for the lane that it granted with `nonce`.
    pub fn connect(&self, applier: ApplierId, nonce: u64) -> VerbsConnect {
        VerbsConnect {
            applier,
            nonce,
            end: self.pairs.end(),
            mailbox: Remote {
                key: RegionKey(self.registered.rkey()),
                address: self.registered.iova(),
                len: self.registered.len() as u64,
            },
            atomics: self.atomics,
        }
    }

    /// Opens the lane to a server that has answered, and signals that it may send; `peer` names it in
    /// errors.
    ///
    /// # Errors
    /// [`VerbsError`]: the answer has impossible values, or there is no route to the server.
    pub fn open(
        self,
        connected: &VerbsConnected,
        peer: String,
    ) -> Result<VerbsClientLane, VerbsError> {
        let open_port = self.domain.open_port();
        let mut peers = peers(
            self.pairs.push.path(),
            &connected.end,
            1 + self.pairs.pulls.len(),
        )?
        .into_iter();
        // The server has them in use by now.
        if connected.end.ece.is_some() && !self.pairs.set_ece(connected.end.ece)? {
            return Err(open_port
                .device()
                .failed("ibv_set_ece", rustix::io::Errno::INVAL));
        }
        let mut next = || {
            let none = || open_port.device().failed("pair", rustix::io::Errno::INVAL);
            peers.next().ok_or_else(none)
        };
        let push = self.pairs.push.connect(&next()?)?;
        let mut pulls = Vec::with_capacity(self.staging.len());
        for (pair, staging) in self.pairs.pulls.into_iter().zip(self.staging) {
            pulls.push((pair.connect(&next()?)?, staging));
        }
        // On one core a spinning thread keeps the peer from answering.
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let spin = if cores > 1 { SPIN } else { Duration::ZERO };
        let waiter = Waiter::new(&self.arrivals, &self.sends, spin);
        let credits = Credits::new(connected.end.receives, VERBS_RECEIVES);
        let mut sender = Sender::new(push, self.sends, self.copies, credits);
        if connected.tails == VerbsTails::Polled {
            sender.set_polled();
        }
        sender
            .greet()
            .map_err(|fault| fault.into_verbs(open_port))?;
        let directory = Target {
            rkey: connected.directory.key.0,
            address: connected.directory.address,
        };
        let cells =
            (connected.directory.len / KEY_CELL_BYTES as u64).min(u64::from(u32::MAX)) as u32;
        let inbox_rkey = connected.inbox.key.0;
        let engine = Engine {
            sender,
            pulls: Pulls::new(pulls, open_port.device().limits()),
            arrivals: self.arrivals,
            keys: Keys::new(inbox_rkey, directory, cells, connected.directory_salt),
            batch: [Completion::EMPTY; BATCH],
            probe_at: None,
        };
        let live = Live {
            engine,
            waiter,
            _mailbox: self.registered,
        };
        Ok(VerbsClientLane::new(
            peer,
            self.mailbox,
            Box::new(live),
            self.domain,
            self.atomics && connected.atomics,
        ))
    }
}
