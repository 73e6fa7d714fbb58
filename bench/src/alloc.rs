//! A counting allocator: what an operation allocates, at either end.
//!
//! The program installs it; each thread counts its own allocations, and the process those of the
//! threads that carry the work. Cost: two additions an allocation, nothing else.
#![allow(
    unsafe_code,
    reason = "the allocator's trait is unsafe; this is all of it in the crate"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use tidewater_runtime::sync::{AtomicU64, Ordering};

/// The system's allocator, counted.
#[derive(Debug)]
pub struct Counting;

thread_local! {
    static HERE: Cell<u64> = const { Cell::new(0) };
    static ASIDE: Cell<bool> = const { Cell::new(false) };
}

static PROCESS: AtomicU64 = AtomicU64::new(0);

/// Allocations of this thread so far; 0 where [`Counting`] is not the program's allocator.
#[inline]
pub fn of_thread() -> u64 {
    HERE.get()
}

/// Allocations of this process so far, without those of threads that stepped [`aside`].
pub fn of_process() -> u64 {
    PROCESS.load(Ordering::Relaxed)
}

/// Takes this thread out of [`of_process`]: it asks and answers about the measurement.
pub fn aside() {
    ASIDE.set(true);
}

#[inline]
fn count() {
    HERE.set(HERE.get() + 1);
    if !ASIDE.get() {
        PROCESS.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: every call goes to the system's allocator as it is; the counters are an atomic and
// constant-initialised thread-locals without destructors, so looking at them allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promises are handed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promises are handed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are handed on.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's promises are handed on.
        unsafe { System.realloc(memory, layout, size) }
    }
}
