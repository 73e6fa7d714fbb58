//! Forks a process of one thread, and detects that the process was forked.
//!
//! A client holds sockets, an epoll instance and mapped rings. A forked child inherits them all, and one
//! call of it would corrupt its parent's operations. Code that hands a client to programs that may fork
//! (the language bindings) therefore checks this guard before each call. A page that the kernel wipes in
//! the child makes the check one load; `getpid` would cost a system call.

use std::io;

use memmap2::{MmapMut, MmapOptions};
use rustix::mm::Advice;
use rustix::process::Pid;

use super::pages::page_bytes;
use super::region::{MemError, os};

const HERE: u8 = 0xa5;

/// Detects that the process was forked: the guard belongs to the process that made it. A library checks
/// it before a call that must not run in a forked child, which shares sockets and rings with its parent.
///
/// ```
/// let guard = tidewater_runtime::mem::ForkGuard::new()?;
/// assert!(guard.is_same_process());
/// # Ok::<(), tidewater_runtime::mem::MemError>(())
/// ```
#[derive(Debug)]
pub struct ForkGuard {
    page: Option<MmapMut>,
    pid: u32,
}

impl ForkGuard {
    /// Creates a guard for the calling process: one memory page, which the kernel zeroes in a forked
    /// child.
    ///
    /// # Errors
    /// [`MemError::Os`] when there is no memory for one page.
    ///
    /// # Cost
    /// A page, and two system calls.
    pub fn new() -> Result<Self, MemError> {
        let pid = std::process::id();
        let bytes = page_bytes();
        let page = MmapOptions::new().len(bytes).map_anon();
        let mut page = page.map_err(os("mmap", bytes, "raise ulimit -v or free memory"))?;
        page.fill(HERE);
        let at = page.as_mut_ptr().cast();
        // SAFETY: the range is the whole of a private anonymous mapping of ours; the advice changes nothing
        // in this process.
        let wiped = unsafe { rustix::mm::madvise(at, bytes, Advice::LinuxWipeOnFork) };
        // Linux before 4.14 does not know the advice: each check then compares process ids.
        let page = wiped.is_ok().then_some(page);
        Ok(Self { page, pid })
    }

    /// Returns whether the calling process made the guard: false in a forked child. Cost: one load; a
    /// system call before Linux 4.14.
    pub fn is_same_process(&self) -> bool {
        match &self.page {
            Some(page) => {
                // SAFETY: the first byte of a mapping that lives as long as `page`. Volatile, because it
                // changes by a fork, of which the compiler knows nothing.
                let first = unsafe { page.as_ptr().read_volatile() };
                first == HERE
            }
            None => std::process::id() == self.pid,
        }
    }
}

/// Forks the calling process, which must have one thread. Returns the child's process id in the parent
/// and `None` in the child. The child has copies of all descriptors and of private memory, and shares the
/// shared mappings.
///
/// # Errors
/// A process with more than one thread is not forked: locks that other threads hold would stay locked in
/// the child. Otherwise the error of the system call.
///
/// # Cost
/// Two system calls more than the fork.
pub fn fork_single_threaded() -> io::Result<Option<Pid>> {
    let threads = std::fs::read_dir("/proc/self/task")?.count();
    if threads != 1 {
        let why = format!("a process with {threads} threads cannot be forked");
        return Err(io::Error::other(why));
    }
    // SAFETY: this thread is the only one, and only a thread of this process can start another. So no lock
    // is held by a thread that the child lacks, and all state is complete: the child may go on as this
    // process would. `fork` takes no pointer.
    let child = unsafe { libc::fork() };
    match child {
        0 => Ok(None),
        pid if pid > 0 => Ok(Pid::from_raw(pid)),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_with_threads_is_not_forked() {
        // The harness runs each test on a thread of its own.
        let error = fork_single_threaded().unwrap_err();
        assert!(error.to_string().contains("threads cannot be forked"));
    }

    #[test]
    fn the_process_that_made_it_is_known_with_and_without_the_page() {
        let mut guard = ForkGuard::new().unwrap();
        assert!(guard.is_same_process());
        guard.page = None;
        assert!(guard.is_same_process());
        guard.pid += 1;
        assert!(!guard.is_same_process());
    }

    #[test]
    fn a_wiped_page_is_another_process() {
        // The page as a child finds it. The bindings' tests, which fork, show that the kernel wipes it (a
        // multi-threaded test cannot).
        let mut guard = ForkGuard::new().unwrap();
        if let Some(page) = &mut guard.page {
            page.fill(0);
            assert!(!guard.is_same_process());
        }
    }
}
