//! Counts the allocations of each thread, for F18.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

/// Number of this thread's allocations so far.
pub(crate) fn allocations() -> u64 {
    COUNT.get()
}

#[global_allocator]
static COUNTING: Counting = Counting;

// SAFETY: every call is passed unchanged to the system's allocator. The counter is a constant-initialised
// thread-local without a destructor, so reading it allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.set(COUNT.get() + 1);
        // SAFETY: the caller's guarantees are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's guarantees are passed on.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        COUNT.set(COUNT.get() + 1);
        // SAFETY: the caller's guarantees are passed on.
        unsafe { System.realloc(memory, layout, size) }
    }
}
