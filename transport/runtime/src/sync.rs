//! The only access to atomics: std's, or loom's while the model checker runs.
//!
//! All state shared between threads or processes uses this module, so that the modelled code is the
//! production code. A Release and its Acquire carry the same `SYNC:` tag in their comments.

#[cfg(loom)]
pub use loom::sync::Arc;
#[cfg(loom)]
pub use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
#[cfg(not(loom))]
pub use std::sync::Arc;
#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

/// Hints to the core that this is a spin loop (a scheduling point under loom).
#[inline]
pub fn spin_hint() {
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(not(loom))]
    std::hint::spin_loop();
}
