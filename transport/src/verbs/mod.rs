//! RDMA through libibverbs: InfiniBand, RoCE, and rxe, which is RoCE in software.
//!
//! The objects of the InfiniBand specification as safe types. Each holds what it was made with, so
//! that they are always destroyed in the right order, whichever is dropped first: windows, queue
//! pairs, completion queues and regions, protection domains, devices. Nothing of this is built
//! without the feature `verbs` (links libibverbs) or `verbs-dlopen` (loads it when the program
//! starts, and does without); with both, `verbs-dlopen` is what is built.
//!
//! | module | holds |
//! |---|---|
//! | `ffi` | the only names of a binding crate |
//! | [`error`] | what goes wrong, in words; the statuses of completions |
//! | [`sysfs`] | ports and their addresses, as the kernel's files tell them |
//! | [`device`] | devices and what they can do |
//! | [`adapter`] | which device, port and address a connection uses |
//! | [`memory`] | protection domains, registered regions, windows |
//! | [`queue`] | completions, and the descriptor that wakes for them |
//! | [`pair`] | queue pairs, their states, how they end |
//! | [`chain`] | work requests, many to a doorbell |
//!
//! # Thread safety
//! All types are `Send`. libibverbs locks inside; a pair with its queues belongs to one thread, so
//! that these locks are never waited for.
//!
//! # Cost
//! Posting and polling allocate nothing and take no lock of ours. Making and destroying are system
//! calls; registering pins pages.

pub mod adapter;
pub mod chain;
pub mod device;
pub mod error;
mod ffi;
pub mod memory;
pub mod pair;
pub mod queue;
pub mod sysfs;

pub use adapter::Adapter;
pub use chain::{Chain, Flags};
pub use device::{Device, DeviceLimits, PortState, devices};
pub use error::{Status, VerbsError};
pub use memory::{Access, MemoryRegion, MemoryWindow, ProtectionDomain, Sge, Target};
pub use pair::{Init, PairOptions, Patience, Peer, QueuePair, ReadyToSend};
pub use queue::{Completion, CompletionChannel, CompletionQueue, Operation};
pub use sysfs::{Gid, Link};
