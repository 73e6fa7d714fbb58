//! Failure of an applier outside of a shutdown: its reason, and a descriptor that becomes readable.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::{Arc, OnceLock};

use tidewater_lanes::wake::Waker;
use tidewater_protocol::limits::TEXT_BYTES_MAX;

/// Maximum length of a reason in bytes; room is left for the server's name in the coordinator's notice.
const REASON_BYTES_MAX: usize = TEXT_BYTES_MAX / 2;

/// Reason why a server cannot continue, if there is one; clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    why: Arc<OnceLock<String>>,
    waker: Waker,
}

impl Failure {
    /// Makes a value without a failure.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            why: Arc::default(),
            waker: Waker::new()?,
        })
    }

    /// Sets the reason, cut to a length limit, and makes the descriptor readable. Only the first reason is
    /// kept.
    pub(crate) fn set(&self, mut why: String) {
        tracing::error!("the server ends: {why}");
        why.truncate(why.floor_char_boundary(REASON_BYTES_MAX));
        self.why.get_or_init(|| why);
        self.waker.wake();
    }

    /// Reason of the failure; `None` before one is set.
    pub(crate) fn get(&self) -> Option<&str> {
        self.why.get().map(String::as_str)
    }

    /// Descriptor that becomes readable when a reason is set.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.waker.as_fd()
    }
}
