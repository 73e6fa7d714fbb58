//! Usage of both ends: processor time, allocations, memory.

use std::time::Duration;

use rustix::process::Pid;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::alloc;
use crate::error::BenchError;

/// Usage of a thread or of some processes: so far, or of a time if it comes from [`Self::since`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Processor time so far, nanoseconds.
    pub cpu_ns: u64,
    /// Number of allocations so far.
    pub allocations: u64,
    /// Resident memory now, bytes; 0 for a thread.
    pub resident: u64,
}

impl Usage {
    /// Usage of this process so far. Cost: a system call, and a read of a small file.
    pub fn of_this_process() -> Self {
        Self {
            cpu_ns: cpu_ns(ClockId::ProcessCPUTime),
            allocations: alloc::of_process(),
            resident: resident(),
        }
    }

    /// Usage of this process without this thread's processor time, for a thread that only reports the usage of
    /// the other threads. Cost: two system calls, and a read of a small file.
    pub fn without_this_thread() -> Self {
        let own = cpu_ns(ClockId::ThreadCPUTime);
        let all = Self::of_this_process();
        Self {
            cpu_ns: all.cpu_ns.saturating_sub(own),
            ..all
        }
    }

    /// Sum of both usages, their resident memory included.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            cpu_ns: self.cpu_ns + other.cpu_ns,
            allocations: self.allocations + other.allocations,
            resident: self.resident + other.resident,
        }
    }

    /// Usage since `earlier`, at least 0; the memory is that of `self`.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Self {
        Self {
            cpu_ns: self.cpu_ns.saturating_sub(earlier.cpu_ns),
            allocations: self.allocations.saturating_sub(earlier.allocations),
            resident: self.resident,
        }
    }
}

/// Usage of this thread so far, with a memory of 0. Cost: a system call.
pub fn of_this_thread() -> Usage {
    Usage {
        cpu_ns: cpu_ns(ClockId::ThreadCPUTime),
        allocations: alloc::of_thread(),
        resident: 0,
    }
}

/// Processor time of another thread of this process, as the scheduler counts it; allocations and memory are 0.
/// Cost: a read of a small file.
///
/// # Errors
/// The thread has ended, or the kernel does not count its threads (`CONFIG_SCHED_INFO`).
pub fn of_thread(thread: Pid) -> Result<Usage, BenchError> {
    let path = format!("/proc/self/task/{}/schedstat", thread.as_raw_nonzero());
    let text = std::fs::read_to_string(&path).map_err(|e| BenchError::file(&path, e))?;
    let mut fields = text.split_whitespace().map(str::parse::<u64>);
    // Nanoseconds on a core and in wait for one, and number of times on a core. A thread that has just begun may have 0
    // nanoseconds, but it has been on a core.
    let counted = match (fields.next(), fields.next(), fields.next()) {
        (Some(Ok(ns)), Some(Ok(_)), Some(Ok(1..))) => Some(ns),
        _ => None,
    };
    let what = "the kernel does not count the thread's time";
    let cpu_ns = counted.ok_or_else(|| BenchError::file(&path, what))?;
    Ok(Usage {
        cpu_ns,
        ..Usage::default()
    })
}

/// Reports the usage of the other end.
pub trait Meter {
    /// Usage so far of all processes at the other end. Not called while anything is timed.
    ///
    /// # Errors
    /// If a process is gone.
    fn peer(&mut self) -> Result<Usage, BenchError>;
}

/// The meter of a work without another end: all usage is 0.
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

/// Resident bytes of this process; 0 if the kernel does not report them.
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
        // Other tests run in parallel; this thread is part of the process's sum.
        assert!(thread.cpu_ns > 100_000 && thread.cpu_ns <= wall + 1_000_000);
        assert!(after.since(before).cpu_ns >= thread.cpu_ns);
        assert!(after.resident >= 64 << 20);
        drop(block);
    }

    #[test]
    fn other_thread_is_counted_alone() {
        let own = rustix::thread::gettid();
        let (before, clock) = (of_thread(own).unwrap(), of_this_thread());
        while of_this_thread().since(clock).cpu_ns < 50_000_000 {}
        let asked = std::thread::spawn(move || of_thread(own)).join().unwrap();
        let used = asked.unwrap().since(before).cpu_ns;
        // The scheduler adds to the sum at its ticks.
        assert!(used >= 30_000_000, "{used} ns");
        let new = std::thread::spawn(|| of_thread(rustix::thread::gettid()));
        let new = new.join().unwrap().unwrap();
        assert!(new.cpu_ns < 30_000_000, "{new:?}");
    }

    #[test]
    fn reporting_thread_is_not_counted() {
        let (before, all) = (Usage::without_this_thread(), Usage::of_this_process());
        let thread = of_this_thread();
        while of_this_thread().since(thread).cpu_ns < 50_000_000 {}
        let others = Usage::without_this_thread().since(before).cpu_ns;
        let all = Usage::of_this_process().since(all).cpu_ns;
        // Other tests run in parallel, for the same time in both.
        assert!(all >= others + 40_000_000, "{all} and {others} ns");
    }
}
