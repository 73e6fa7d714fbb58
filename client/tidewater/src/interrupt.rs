//! Interrupting calls that wait: Ctrl-C in an interpreter that embeds the client.
//!
//! A call may wait for minutes: for the slowest worker at a tick, for all workers at a barrier, for a
//! save. A program that runs signal handlers itself, as Python does, installs a hook with [`install`].
//! A waiting call runs the hook about twice a second. If the hook returns true, the call ends with
//! [`ClientError::Interrupted`], as at a deadline: the client stays usable, and operations under way
//! continue. Without a hook a wait costs nothing more.

use std::sync::OnceLock;

use tidewater_protocol::mutants::{self, Mutant};

use crate::error::ClientError;

static HOOK: OnceLock<fn() -> bool> = OnceLock::new();

/// Installs the interrupt hook of this process, once. A waiting call runs `hook` on its thread, about twice a
/// second. If the hook returns true, that call ends with [`ClientError::Interrupted`].
///
/// # Errors
/// The hook itself if one is already installed.
///
/// # Examples
/// ```
/// use std::sync::atomic::{AtomicBool, Ordering};
///
/// static STOP: AtomicBool = AtomicBool::new(false);
/// tidewater::interrupt::install(|| STOP.load(Ordering::Relaxed)).unwrap();
/// ```
pub fn install(hook: fn() -> bool) -> Result<(), fn() -> bool> {
    HOOK.set(hook)
}

/// Runs the installed hook; whether it asks the waiting call of this thread to end. False without a hook.
pub(crate) fn requested() -> bool {
    HOOK.get().is_some_and(|hook| hook()) && !mutants::on(Mutant::InterruptIgnored)
}

/// Fails with [`ClientError::Interrupted`] if the installed hook asks the call `op` to end.
pub(crate) fn check(op: &'static str) -> Result<(), ClientError> {
    if requested() {
        return Err(ClientError::Interrupted { op });
    }
    Ok(())
}
