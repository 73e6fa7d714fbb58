//! RDMA through libibverbs: InfiniBand, RoCE, and rxe, which is RoCE in software.
//!
//! The objects of the InfiniBand specification as safe types. Each holds the objects that it was made
//! with, so that they are always destroyed in the right order, whichever is dropped first: windows,
//! queue pairs, completion queues and regions, protection domains, devices. Nothing of this is built
//! without the feature `verbs` (links libibverbs) or `verbs-dlopen` (loads it when the program starts,
//! and runs without); with both, `verbs-dlopen` is built.
//!
//! | module | holds |
//! |---|---|
//! | `ffi` | the only names of a binding crate |
//! | [`error`] | errors with remedies; the statuses of completions |
//! | [`sysfs`] | ports and their addresses, from the kernel's files |
//! | [`device`] | devices and their limits |
//! | [`events`] | asynchronous events of a device |
//! | [`open_port`] | the usable ports of this host; one in use |
//! | [`memory`] | protection domains, registered regions, windows |
//! | [`queue`] | completions, and the descriptor that wakes for them |
//! | [`mod@pair`] | queue pairs, their states, how they end |
//! | [`send_batch`] | work requests, many to a doorbell |
//! | [`notifier`] | one channel for each thread: how it sleeps |
//! | `credit` | flow control of signals, and why no wake-up is lost. Pure |
//! | `in_flight` `ring_allocator` `plan` | send queues; memory; which pair reads what. Pure |
//! | `retry` | how long a pair waits for its peer. Pure |
//! | `stall_detector` | requests that a device has lost. Pure |
//! | `send` `pull` | the pair that pushes, at either end; the pairs that pull |
//! | `scatter` | payload that the device writes into the program's own memory |
//! | `keys` `lane_failure` | keys of the peer's regions; why a lane breaks |
//! | [`domain`] | a port's registrations of a process's memory |
//! | [`path`] | the local port of a lane's pairs, with the user's settings |
//! | `ends` `offer` [`client_lane`] | the client's end, and how it is set up |
//! | [`server_lane`] `reaper` | the applier's end; the thread that destroys it |
//! | [`counters`] | doorbells, requests, completions |
//!
//! # Thread safety
//! All types are `Send`. libibverbs locks inside; a pair with its queues belongs to one thread, so that
//! these locks are never waited for.
//!
//! # Cost
//! Posting and polling allocate nothing and take no lock of ours. Making and destroying are system
//! calls; registering pins pages.

#![cfg(any(feature = "verbs", feature = "verbs-dlopen"))]
#![allow(unsafe_code, reason = "libibverbs is a C library")]

pub mod client_lane;
pub mod counters;
mod credit;
pub mod device;
pub mod domain;
mod ends;
pub mod error;
pub mod events;
mod ffi;
mod in_flight;
mod keys;
mod lane_failure;
pub mod memory;
pub mod notifier;
mod offer;
pub mod open_port;
pub mod pair;
pub mod path;
mod plan;
mod pull;
pub mod queue;
mod reaper;
mod retry;
mod ring_allocator;
mod scatter;
mod send;
pub mod send_batch;
pub mod server_lane;
mod stall_detector;
pub mod sysfs;

pub use client_lane::{PathError, VerbsClientLane};
pub use counters::Counters;
pub use device::{Device, DeviceLimits, PortState, devices};
pub use domain::{ClientDomain, Domain};
pub use error::{Status, VerbsError};
pub use events::{DeviceEvent, EventWeight};
pub use memory::{Access, MemoryRegion, MemoryWindow, ProtectionDomain, Sge, Target};
pub use notifier::Notifier;
pub use offer::LaneOffer;
pub use open_port::{OpenPort, rank_ports};
pub use pair::{Init, PairAttributes, PairOptions, Peer, QueuePair, ReadyToSend};
pub use path::{PairSettings, Path};
pub use queue::{Completion, CompletionChannel, CompletionQueue, Operation};
pub use retry::RetryTimeout;
pub use send_batch::{Flags, SendBatch};
pub use server_lane::VerbsServerLane;
pub use sysfs::{Gid, Link};

use tidewater_lanes::fabric::Inbox;
use tidewater_protocol::ids::ApplierId;
use tidewater_protocol::layout::ring::RingGeometry;
use tidewater_protocol::layout::session::{inbox_bytes, mailbox_bytes};
use tidewater_runtime::mem::Region;
use tidewater_runtime::sync::Arc;

/// Creates both ends of a lane in one process, without control connections, for tests and measurements.
/// Takes the server's registrations and its applier's notifier, those of the client, and the number of
/// pulling pairs. The inbox is empty and salted with `salt`.
///
/// # Errors
/// [`VerbsError`], also for a ring that is not a power of two.
pub fn pair(
    domain: &Arc<Domain>,
    applier: &Arc<Notifier>,
    client: &Arc<ClientDomain>,
    thread: &Arc<Notifier>,
    pulls: usize,
    ring_bytes: usize,
    salt: u64,
) -> Result<(VerbsClientLane, VerbsServerLane, Inbox), VerbsError> {
    let wrong = |errno| domain.open_port().device().failed("pair", errno);
    let ring = RingGeometry::new(ring_bytes).ok_or(wrong(rustix::io::Errno::INVAL))?;
    let memory = Region::anonymous(inbox_bytes(ring_bytes));
    let memory = memory.map_err(|_| wrong(rustix::io::Errno::NOMEM))?;
    let inbox = Inbox::new(Arc::new(memory), 0, ring, salt);
    let inbox = inbox.map_err(|_| wrong(rustix::io::Errno::INVAL))?;
    inbox.reset_tail(0);
    let offer = LaneOffer::new(client, thread, pulls, mailbox_bytes(ring_bytes))?;
    let connect = offer.connect(ApplierId(0), salt);
    let name = "loopback client".to_owned();
    let (port, connected) = VerbsServerLane::accept(domain, applier, &inbox, &connect, name)?;
    let lane = offer.open(&connected, "loopback server".to_owned())?;
    Ok((lane, port, inbox))
}
