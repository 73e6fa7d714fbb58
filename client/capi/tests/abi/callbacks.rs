//! Callbacks of pushes: what they receive, when, and what they cannot do.

use std::ffi::{CStr, c_char, c_void};
use std::ptr::null_mut;

use tidewater_capi::abi::callback::*;
use tidewater_capi::abi::clock::*;
use tidewater_capi::abi::data::*;
use tidewater_capi::abi::session::*;
use tidewater_capi::types::tw_status::*;
use tidewater_capi::types::*;

use crate::rig::*;

/// What a callback has received, and the session that it tries to call.
struct Seen {
    session: *mut tw_session,
    results: Vec<(tw_status, String)>,
    /// Status of a call of the session inside the callback.
    inside: Option<tw_status>,
}

unsafe extern "C" fn see(user: *mut c_void, status: tw_status, text: *const c_char) {
    // SAFETY: a `Seen` that lives until the session is freed, and that nothing else accesses now.
    let seen = unsafe { &mut *user.cast::<Seen>() };
    let text = match text.is_null() {
        true => String::new(),
        // SAFETY: a text with a NUL at its end.
        false => unsafe { CStr::from_ptr(text) }.to_str().unwrap().to_owned(),
    };
    seen.results.push((status, text));
    // SAFETY: the session is open.
    seen.inside = Some(unsafe { tw_progress(seen.session) });
    let mut session = seen.session;
    // SAFETY: as above; it is refused.
    let freed = unsafe { tw_session_free(&raw mut session) };
    fails(freed, TW_ERR_THREAD, "inside a callback");
}

#[test]
fn callbacks_receive_results_once() {
    let rig = Rig::new(1);
    let session = rig.open(&rig.options());
    let table = create(session, &table_options(c"s", F64, tw_kind::TW_SPARSE, 0, 1));
    let mut seen = Seen {
        session,
        results: Vec::new(),
        inside: None,
    };
    let user = (&raw mut seen).cast();
    let push = |value: f64, ticket: &mut tw_ticket| {
        let (key, value) = (5u64, &raw const value);
        // SAFETY: an open session, one key and one value.
        ok(unsafe {
            tw_push_rows(
                session,
                table,
                &raw const key,
                1,
                value.cast(),
                1,
                F64,
                SUM,
                ticket,
            )
        });
    };
    let mut ticket = 0;
    push(1.0, &mut ticket);
    // SAFETY: here and below: an open session, and a place that outlives it.
    unsafe {
        fails(
            tw_push_on_applied(session, ticket, None, user),
            TW_ERR_NULL,
            "callback",
        );
        fails(
            tw_push_on_applied(session, ticket ^ 1 << 60, Some(see), user),
            TW_ERR_HANDLE,
            "",
        );
        ok(tw_push_on_applied(session, ticket, Some(see), user));
        ok(tw_push_wait(session, &raw mut ticket, 0.0));
    }
    assert_eq!(seen.results, [(TW_OK, String::new())]);
    assert_eq!(seen.inside, Some(TW_ERR_THREAD));
    seen.results.clear();

    push(f64::NAN, &mut ticket);
    // SAFETY: as above.
    unsafe {
        ok(tw_push_on_applied(session, ticket, Some(see), user));
        ok(tw_flush(session));
    }
    let [(status, text)] = &seen.results[..] else {
        panic!("{:?}", seen.results);
    };
    assert_eq!(*status, TW_ERR_REJECTED);
    assert!(text.contains("table \"s\""), "{text}");
    seen.results.clear();

    // SAFETY: as above. A ticket of zero is applied.
    unsafe {
        ok(tw_push_on_applied(session, 0, Some(see), user));
        ok(tw_progress(session));
    }
    assert_eq!(seen.results, [(TW_OK, String::new())]);
    seen.results.clear();

    push(1.0, &mut ticket);
    // SAFETY: as above.
    ok(unsafe { tw_push_on_applied(session, ticket, Some(see), user) });
    let mut closing = session;
    // SAFETY: as above; the place outlives the call.
    unsafe {
        ok(tw_session_close(session));
        ok(tw_session_free(&raw mut closing));
    }
    assert_eq!(closing, null_mut());
    let [(TW_ERR_LOST, text)] = &seen.results[..] else {
        panic!("{:?}", seen.results);
    };
    assert!(text.contains("is unknown"), "{text}");
}
