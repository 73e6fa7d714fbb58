//! The call that gives a push a callback.

use std::ffi::{c_char, c_void};
use std::ptr::null;

use tidewater::{ClientError, Ticket};

use super::session::tw_session;
use crate::error::Failure;
use crate::raw;
use crate::session::{InCallback, run};
use crate::types::{tw_status, tw_ticket};

/// Receives the result of a push, once, with the `user` of tw_push_on_applied. TW_OK: it is applied, and `text` is null.
/// Otherwise `text` says why not; it is valid during the call. TW_ERR_LOST: the session ended before the answer, and
/// whether the push was applied is unknown. It must return: no exception and no longjmp leaves it.
#[allow(non_camel_case_types, reason = "it is the name in tidewater.h")]
pub type tw_applied_fn =
    Option<unsafe extern "C" fn(user: *mut c_void, status: tw_status, text: *const c_char)>;

/// A function of C with its argument.
struct Callback {
    function: unsafe extern "C" fn(*mut c_void, tw_status, *const c_char),
    user: *mut c_void,
}

// SAFETY: the header says that another thread which calls the session, or its progress thread, may run it.
unsafe impl Send for Callback {}

impl Callback {
    fn run(self, result: Result<(), ClientError>) {
        let _inside = InCallback::enter();
        let failure = match result {
            Ok(()) => {
                // SAFETY: the contract of the module: the function takes this argument.
                unsafe { (self.function)(self.user, tw_status::TW_OK, null()) };
                return;
            }
            Err(error) => Failure::from(error),
        };
        // A NUL inside would hide the text after it.
        let mut text = failure.text.replace('\0', " ").into_bytes();
        text.push(0);
        // SAFETY: as above; the text ends with a NUL and lives through the call.
        unsafe { (self.function)(self.user, failure.status, text.as_ptr().cast()) };
    }
}

/// Gives a push a callback, which runs once with its result. It runs inside a later call of this session that waits for
/// pushes, flushes, ticks, adds to a buffer, gives another callback, or is tw_push_test or tw_progress, on the thread of
/// that call, or on the progress thread; at the latest when the session is closed. A call that waits for this push
/// returns after it. A callback cannot call a session: such a call is TW_ERR_THREAD. It runs while the session is locked:
/// take no lock in it that a thread holds when it calls the session, and wait for no such thread. A refusal that it
/// receives is not returned by tw_flush or tw_tick again. The ticket stays the caller's; zero is applied.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_push_on_applied(
    session: *mut tw_session,
    ticket: tw_ticket,
    callback: tw_applied_fn,
    user: *mut c_void,
) -> tw_status {
    run("tw_push_on_applied", || {
        // SAFETY: the contract of the module.
        let session = unsafe { raw::session(session) }?;
        let function = callback.ok_or_else(|| Failure::null("the callback"))?;
        let callback = Callback { function, user };
        session.with(|open| {
            let pushed = match ticket {
                0 => &Ticket::default(),
                handle => open.pushes.get(handle)?,
            };
            let callback = move |result| callback.run(result);
            Ok(open.client.on_applied(pushed, callback)?)
        })
    })
}
