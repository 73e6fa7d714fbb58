//! Counting allocator: the allocations of an operation, at client and servers.
//!
//! The program installs it. Each thread counts its own allocations; a process counter sums the threads
//! that carry the load. Cost: two additions an allocation.
#![allow(
    unsafe_code,
    reason = "the allocator's trait is unsafe; this is all of it in the crate"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use tidewater_runtime::sync::{AtomicU64, Ordering};

/// The system allocator with counters.
#[derive(Debug)]
pub struct Counting;

thread_local! {
    static HERE: Cell<u64> = const { Cell::new(0) };
    static EXCLUDED: Cell<bool> = const { Cell::new(false) };
}

static PROCESS: AtomicU64 = AtomicU64::new(0);

/// Allocations and reallocations of this thread so far; 0 unless [`Counting`] is the program's allocator.
#[inline]
pub fn of_thread() -> u64 {
    HERE.get()
}

/// Allocations and reallocations of this process so far, without those that a thread makes after it called
/// [`exclude_this_thread`]; 0 unless [`Counting`] is the program's allocator.
pub fn of_process() -> u64 {
    PROCESS.load(Ordering::Relaxed)
}

/// Excludes this thread's later allocations from [`of_process`]; for a thread that only serves the measurement.
/// [`of_thread`] still counts them.
pub fn exclude_this_thread() {
    EXCLUDED.set(true);
}

#[inline]
fn count() {
    HERE.set(HERE.get() + 1);
    if !EXCLUDED.get() {
        PROCESS.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: every call is forwarded unchanged to the system allocator. The counters are an atomic and
// constant-initialised thread-locals without destructors, so reading them allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's guarantees are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's guarantees are passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's guarantees are passed on.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's guarantees are passed on.
        unsafe { System.realloc(memory, layout, size) }
    }
}
