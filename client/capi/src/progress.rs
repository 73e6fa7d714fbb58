//! Progress without calls: a thread that calls the client at an interval.
//!
//! The client makes progress inside calls, and over shared memory nothing else is needed. Over TCP, the
//! rest of a push that the socket did not accept at once waits for the next call. A call also restores
//! a cut control connection. A program that computes for seconds between its calls can call
//! `tw_progress`, or request this thread.

use std::sync::{Condvar, Mutex, MutexGuard, TryLockError};
use std::thread::JoinHandle;
use std::time::Duration;

use tidewater_runtime::sync::Arc;

use crate::error::Failure;
use crate::open::Open;
use crate::types::tw_status;

/// The open session, shared by the program's threads and the progress thread.
pub(crate) struct Shared {
    open: Mutex<Option<Open>>,
}

impl Shared {
    pub(crate) const fn new(open: Open) -> Self {
        Self {
            open: Mutex::new(Some(open)),
        }
    }

    /// Locks the session; waits for its turn.
    pub(crate) fn lock(&self) -> Result<MutexGuard<'_, Option<Open>>, Failure> {
        self.open.lock().map_err(|_| Failure::panicked())
    }

    /// Makes progress on the lanes, unless a call is under way, which does so itself. False when the
    /// thread is no longer needed; the next call meets the same error.
    fn progress(&self) -> bool {
        match self.open.try_lock() {
            Err(TryLockError::WouldBlock) => true,
            Err(TryLockError::Poisoned(_)) => false,
            Ok(mut open) => match open.as_mut() {
                Some(open) => open.client.progress().is_ok(),
                None => false,
            },
        }
    }
}

#[derive(Debug, Default)]
struct Stop {
    stopped: Mutex<bool>,
    changed: Condvar,
}

/// The progress thread. Dropping it ends it, after its current call.
#[derive(Debug)]
pub(crate) struct Progress {
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
}

impl Progress {
    /// Starts the thread. It inherits the signal mask of the caller.
    pub(crate) fn start(shared: Arc<Shared>, every: Duration) -> Result<Self, Failure> {
        let stop = Arc::new(Stop::default());
        let theirs = Arc::clone(&stop);
        let calls = move || {
            while !theirs.within(every) && shared.progress() {}
        };
        let thread = std::thread::Builder::new().name("tw-progress".into());
        let thread = thread.spawn(calls).map_err(|e| {
            let text = format!("cannot start the progress thread: {e}; raise ulimit -u");
            Failure::new(tw_status::TW_ERR_ENVIRONMENT, text)
        })?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Ok(mut stopped) = self.stop.stopped.lock() {
            *stopped = true;
        }
        self.stop.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has poisoned the session, which reports it.
            let _ = thread.join();
        }
    }
}

impl Stop {
    /// Whether the thread is asked to stop within `time`.
    fn within(&self, time: Duration) -> bool {
        let Ok(stopped) = self.stopped.lock() else {
            return true;
        };
        let waited = self
            .changed
            .wait_timeout_while(stopped, time, |stopped| !*stopped);
        waited.map_or(true, |(stopped, _)| *stopped)
    }
}
