//! Death of a writer after any word that it stores, simulated in one thread.
//!
//! [`run_for`] runs a closure that may store a number of words into shared windows. The store after the
//! last one does not happen: the closure is left by unwinding, and the stack below it is gone, as that of a
//! killed process is. What it stored before stays, also the first words of a copy that is cut. The caller
//! forgets the values that the closure worked on, and goes on with the memory alone.
//!
//! Builds with the feature `mutants` only.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

thread_local! {
    /// Number of shared words that this thread may still store before its simulated crash; `u64::MAX` for
    /// no limit.
    static LEFT: Cell<u64> = const { Cell::new(u64::MAX) };
}

/// Panic payload that marks an unwinding as a simulated crash.
struct Crash;

/// Runs `f` and crashes it before the store that would follow its first `words` words. Returns the value
/// of `f` and the number of words that it stored; `None` if it crashed. Other panics of `f` pass through.
pub fn run_for<T>(words: u64, f: impl FnOnce() -> T) -> Option<(T, u64)> {
    // The greatest number means no limit.
    let words = words.min(u64::MAX - 1);
    LEFT.set(words);
    let ended = catch_unwind(AssertUnwindSafe(f));
    let left = LEFT.replace(u64::MAX);
    match ended {
        Ok(value) => Some((value, words - left)),
        Err(payload) if payload.is::<Crash>() => None,
        Err(payload) => resume_unwind(payload),
    }
}

/// Charges a store of `words` words to the limit of [`run_for`]. Returns `None` if all of them may be
/// stored. `Some(n)`: the limit ends in this store; the caller stores the first `n` words only, then
/// calls [`crash`].
#[inline]
pub(super) fn cut(words: usize) -> Option<usize> {
    let left = LEFT.get();
    if left == u64::MAX {
        return None;
    }
    match left.checked_sub(words as u64) {
        Some(left) => {
            LEFT.set(left);
            None
        }
        None => {
            // The first words are stored without a limit.
            LEFT.set(u64::MAX);
            Some(left as usize)
        }
    }
}

/// Simulates the death of the writer: unwinds to [`run_for`], which then returns `None`.
pub(super) fn crash() -> ! {
    resume_unwind(Box::new(Crash))
}
