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

/// Release fence that orders stores for devices too: stores before it are visible to cores and devices
/// before stores after it. Cost: nothing on x86, where stores are seen in order; a `dmb osh` on aarch64.
///
/// A `fence(Release)` on aarch64 is a `dmb ish`, which orders for the cores' (inner) shareability domain.
/// The architecture lets a device be outside of it. What a verbs post makes the device read is ordered
/// again by the barriers of the provider. What a peer reads at any time (rows, blocks, snapshots) is
/// ordered only by this fence.
#[inline(always)]
#[cfg_attr(
    target_arch = "aarch64",
    allow(unsafe_code, reason = "a barrier of the instruction set")
)]
pub fn device_release_fence() {
    fence(Ordering::Release);
    #[cfg(all(target_arch = "aarch64", not(loom), not(miri)))]
    // SAFETY: a barrier; it reads and writes no register, flag or stack. Without `nomem`, so that the compiler
    // keeps stores on their sides. Loads before it are ordered too, as by the Release fence.
    unsafe {
        core::arch::asm!("dmb osh", options(nostack, preserves_flags));
    }
}

/// Hints to the core that this thread busy-waits (the `pause` instruction on x86). Under loom it yields
/// to the model's other threads.
#[inline]
pub fn spin_hint() {
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(not(loom))]
    std::hint::spin_loop();
}
