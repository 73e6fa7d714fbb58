//! A descriptor that a launcher left open for this process.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};

/// Duplicates the inherited descriptor `fd`. The original stays open, for a library in this process that may
/// use it too.
///
/// # Errors
/// `fd` is not open, or there is no room for another one.
pub(super) fn duplicate(fd: u32) -> io::Result<OwnedFd> {
    let fd = RawFd::try_from(fd).map_err(|_| io::Error::from_raw_os_error(9))?;
    // The system call that fails on a descriptor that is not open comes first.
    std::fs::symlink_metadata(format!("/proc/self/fd/{fd}"))?;
    // If other code closed it all the same, the call below would duplicate another descriptor or fail,
    // and touch no memory either way.
    // SAFETY: made from a u32, it is not -1. It stays open while borrowed, which is for one system
    // call: it was open just now, and is the launcher's, which no code in this process closes.
    let theirs = unsafe { BorrowedFd::borrow_raw(fd) };
    theirs.try_clone_to_owned()
}
