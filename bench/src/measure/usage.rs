//! What the two ends used: processor time, allocations, memory.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::alloc;
use crate::error::BenchError;

/// Used so far by a thread or by some processes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Processor time, nanoseconds.
    pub cpu_ns: u64,
    /// Allocations.
    pub allocations: u64,
    /// Resident memory now, bytes; 0 for a thread.
    pub resident: u64,
}

impl Usage {
    /// Of this process. Cost: three system calls.
    pub fn of_this_process() -> Self {
        Self {
            cpu_ns: cpu_ns(ClockId::ProcessCPUTime),
            allocations: alloc::of_process(),
            resident: resident(),
        }
    }

    /// Of this process without this thread's processor time: of one that only tells the others'.
    /// What it costs to be woken and to read is not theirs. Cost: four system calls.
    pub fn beside_this_thread() -> Self {
        let own = cpu_ns(ClockId::ThreadCPUTime);
        let all = Self::of_this_process();
        Self {
            cpu_ns: all.cpu_ns.saturating_sub(own),
            ..all
        }
    }

    /// Of both.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            cpu_ns: self.cpu_ns + other.cpu_ns,
            allocations: self.allocations + other.allocations,
            resident: self.resident + other.resident,
        }
    }

    /// Since `earlier`; memory is what there is now.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Self {
        Self {
            cpu_ns: self.cpu_ns.saturating_sub(earlier.cpu_ns),
            allocations: self.allocations.saturating_sub(earlier.allocations),
            resident: self.resident,
        }
    }
}

/// Of this thread. Cost: a system call.
pub fn of_this_thread() -> Usage {
    Usage {
        cpu_ns: cpu_ns(ClockId::ThreadCPUTime),
        allocations: alloc::of_thread(),
        resident: 0,
    }
}

/// Tells what the other end has used.
pub trait Meter {
    /// Used so far by all processes of the other end. Not called while anything is timed.
    ///
    /// # Errors
    /// When a process is gone.
    fn peer(&mut self) -> Result<Usage, BenchError>;
}

/// The meter of a work that has no other end.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoPeer;

impl Meter for NoPeer {
    fn peer(&mut self) -> Result<Usage, BenchError> {
        Ok(Usage::default())
    }
}

fn cpu_ns(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    let time = Duration::new(
        u64::try_from(time.tv_sec).unwrap_or(0),
        u32::try_from(time.tv_nsec).unwrap_or(0),
    );
    time.as_nanos() as u64
}

/// Resident bytes of this process; 0 where the kernel does not tell.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = text.split_whitespace().nth(1).and_then(|p| p.parse().ok());
    pages.unwrap_or(0_u64) * rustix::param::page_size() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_in_nanoseconds_and_memory_in_bytes() {
        let wall = tidewater_runtime::clock::now();
        let before = Usage::of_this_process();
        let thread = of_this_thread();
        let mut block = vec![1_u8; 64 << 20];
        for _ in 0..20 {
            block.iter_mut().for_each(|b| *b = b.wrapping_mul(3));
            std::hint::black_box(&block);
        }
        let thread = of_this_thread().since(thread);
        let wall = wall.elapsed().as_nanos() as u64;
        let after = Usage::of_this_process();
        // Other tests run beside this one; its own thread is in the process's sum.
        assert!(thread.cpu_ns > 100_000 && thread.cpu_ns <= wall + 1_000_000);
        assert!(after.since(before).cpu_ns >= thread.cpu_ns);
        assert!(after.resident >= 64 << 20);
        drop(block);
    }

    #[test]
    fn who_only_tells_is_not_counted() {
        let (before, all) = (Usage::beside_this_thread(), Usage::of_this_process());
        let thread = of_this_thread();
        while of_this_thread().since(thread).cpu_ns < 50_000_000 {}
        let beside = Usage::beside_this_thread().since(before).cpu_ns;
        let all = Usage::of_this_process().since(all).cpu_ns;
        // Other tests run beside this one, as long in both.
        assert!(all >= beside + 40_000_000, "{all} and {beside} ns");
    }
}
