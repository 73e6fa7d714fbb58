//! The end of an applier outside of a shutdown: the reason, and a descriptor that becomes readable.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::{Arc, OnceLock};

use tidewater_lanes::wake::Waker;
use tidewater_protocol::limits::TEXT_BYTES_MAX;

/// Limit of a reason, in bytes: the coordinator's notice puts the server's name in front of it.
const REASON_BYTES_MAX: usize = TEXT_BYTES_MAX / 2;

/// The reason why a server cannot continue, if any. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    why: Arc<OnceLock<String>>,
    waker: Waker,
}

impl Failure {
    /// Starts without a failure.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            why: Arc::default(),
            waker: Waker::new()?,
        })
    }

    /// Notes the reason and makes the descriptor readable. Only the first reason is kept.
    pub(crate) fn set(&self, mut why: String) {
        tracing::error!("the server ends: {why}");
        why.truncate(why.floor_char_boundary(REASON_BYTES_MAX));
        self.why.get_or_init(|| why);
        self.waker.wake();
    }

    /// The reason, once there is one.
    pub(crate) fn get(&self) -> Option<&str> {
        self.why.get().map(String::as_str)
    }

    /// Descriptor that is readable from the first reason on.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.waker.as_fd()
    }
}
