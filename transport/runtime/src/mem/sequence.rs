//! A sequence lock: reads of shared words that one writer at a time changes, without a lock for readers.

use crate::sync::{AtomicU64, Ordering, fence};
use tidewater_protocol::mutants::{self, Mutant};

/// Seqlock for shared words of one process: one writer at a time, readers without a lock. The count is
/// odd during a change. A read that saw the same even count before and after has seen one state.
///
/// The words are atomics, so a read that overlaps a change is defined; its result is dropped. Between
/// processes and NICs rows have checksums instead.
#[derive(Debug)]
pub struct Sequence(AtomicU64);

impl Default for Sequence {
    fn default() -> Self {
        Self(AtomicU64::new(0))
    }
}

impl Sequence {
    /// Calls `read` once, and returns its result if no change overlapped it. Returns `None`, for the
    /// caller to retry, if a change was under way or has happened meanwhile. Cost: two loads of a line
    /// that only changes write, and no store.
    ///
    /// `read` may see any mixture of states, so it must accept one, and its result counts only if
    /// returned.
    #[inline]
    pub fn read<R>(&self, read: impl FnOnce() -> R) -> Option<R> {
        // SYNC: sequence. Pairs with the Release store at the end of `write`: what that change stored is
        // visible below.
        let before = self.0.load(Ordering::Acquire);
        if before % 2 == 1 {
            return None;
        }
        let result = read();
        // SYNC: sequence. Pairs with the Release fence in `write`. If a load above saw a store of a later
        // change, the load below sees that change's odd count, or a later one.
        fence(Ordering::Acquire);
        (self.0.load(Ordering::Relaxed) == before).then_some(result)
    }

    /// Calls `change`, which stores the words, with an odd count around it, and returns its result. The
    /// caller excludes other writers. If `change` panics, the count stays odd, and reads return `None`
    /// until the next change ends.
    pub fn write<R>(&self, change: impl FnOnce() -> R) -> R {
        // SYNC: none. Only writers store the count, and the caller orders them.
        let odd = self.0.load(Ordering::Relaxed) | 1;
        self.0.store(odd, Ordering::Relaxed);
        // SYNC: sequence. Pairs with the Acquire fence in `read`: the odd count is visible before any store
        // of `change`.
        if !mutants::on(Mutant::SequenceWithoutFence) {
            fence(Ordering::Release);
        }
        let result = change();
        // SYNC: sequence. Pairs with the Acquire load in `read`.
        self.0.store(odd.wrapping_add(1), Ordering::Release);
        result
    }
}
