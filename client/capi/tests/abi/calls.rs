//! Calls that are started and finished later, and the memory of a session's lanes.

use std::ffi::CString;
use std::ptr::{null, null_mut};

use tidewater_capi::abi::call::*;
use tidewater_capi::abi::data::*;
use tidewater_capi::abi::session::*;
use tidewater_capi::abi::table::*;
use tidewater_capi::types::tw_status::*;
use tidewater_capi::types::*;

use crate::rig::*;

/// Whether a call is done; it must be so within a time.
fn until_done(session: *mut tw_session, call: tw_call) {
    let mut done = 0;
    for _ in 0..60_000 {
        // SAFETY: an open session, and a valid place for the result.
        ok(unsafe { tw_call_test(session, call, &raw mut done) });
        if done == 1 {
            return;
        }
    }
    panic!("the call is not done");
}

#[test]
fn started_calls_are_finished_once() {
    let rig = Rig::new(1);
    let session = rig.open(&rig.options());
    let folder = tempfile::tempdir().unwrap();
    let path = CString::new(folder.path().to_str().unwrap()).unwrap();
    let options = table_options(c"t", F32, tw_kind::TW_ROWS, 8, 2);
    let (mut call, mut table) = (0, 0);
    // SAFETY: an open session, valid texts and places for the results.
    unsafe {
        ok(tw_table_create_start(
            session,
            &raw const options,
            &raw mut call,
        ));
        fails(
            tw_table_create_finish(session, call + 1, &raw mut table),
            TW_ERR_HANDLE,
            "names no call",
        );
        ok(tw_table_create_finish(session, call, &raw mut table));
        assert_ne!(table, 0);
        fails(
            tw_barrier_finish(session, call),
            TW_ERR_HANDLE,
            "waited for",
        );
        ok(tw_barrier_start(session, c"b".as_ptr(), 0.0, &raw mut call));
        fails(
            tw_table_create_finish(session, call, &raw mut table),
            TW_ERR_ARGUMENT,
            "creates no table",
        );
        until_done(session, call);
        ok(tw_barrier_finish(session, call));
        let (mut rows, mut bytes, mut tables) = (0, 0, 0);
        ok(tw_save_start(session, path.as_ptr(), 0.0, &raw mut call));
        until_done(session, call);
        ok(tw_save_finish(session, call, &raw mut rows, &raw mut bytes));
        assert_eq!((rows, bytes > 0), (8, true));
        // It exists: the load fails, and its call is no more.
        ok(tw_load_start(session, path.as_ptr(), 0.0, &raw mut call));
        fails(
            tw_load_finish(session, call, null_mut()),
            TW_ERR_REFUSED,
            "exists",
        );
        fails(
            tw_load_finish(session, call, null_mut()),
            TW_ERR_HANDLE,
            "names no call",
        );
        ok(tw_table_create(session, &raw const options, &raw mut table));
        ok(tw_table_release(session, &raw mut table));
        ok(tw_load_start(session, path.as_ptr(), 0.0, &raw mut call));
        ok(tw_load_finish(session, call, &raw mut tables));
        assert_eq!(tables, 1);
        ok(tw_finish(session));
    }
    free(session);
}

#[test]
fn memory_of_lanes_is_bounded() {
    let rig = Rig::new(1);
    let mut session = null_mut();
    let wrong = tw_session_options {
        ring_bytes: 100_000,
        ..rig.options()
    };
    // SAFETY: both are valid for the call.
    let refused = unsafe { tw_session_open(&raw const wrong, &raw mut session) };
    fails(refused, TW_ERR_ENVIRONMENT, "a power of two");
    // Refused before the job counts the worker: another one takes its rank.
    let small = tw_session_options {
        memory_budget: 100_000,
        ..rig.options()
    };
    // SAFETY: both are valid for the call.
    let refused = unsafe { tw_session_open(&raw const small, &raw mut session) };
    fails(refused, TW_ERR_ENVIRONMENT, "memory_budget is 100000 bytes");
    let fits = tw_session_options {
        ring_bytes: 32 << 10,
        memory_budget: 64 << 20,
        ..rig.options()
    };
    let session = rig.open(&fits);
    // SAFETY: an open session. The second call finds that it has left.
    unsafe {
        ok(tw_leave(session));
        ok(tw_leave(session));
        fails(tw_finish(session), TW_ERR_CLOSED, "closed");
    }
    free(session);
}

/// A barrier that no process finishes: its call is given up once, and the worker goes on.
#[test]
fn dropped_call_is_given_up() {
    let rig = Rig::new(1);
    let session = rig.open(&rig.options());
    let mut call = 0;
    // SAFETY: an open session, a valid text and a place for the call.
    unsafe {
        ok(tw_barrier_start(session, c"b".as_ptr(), 0.0, &raw mut call));
        let mut copy = call;
        ok(tw_call_drop(session, &raw mut call));
        assert_eq!(call, 0);
        fails(
            tw_call_drop(session, &raw mut copy),
            TW_ERR_HANDLE,
            "waited for",
        );
        fails(tw_call_drop(session, null_mut()), TW_ERR_NULL, "null");
        ok(tw_finish(session));
    }
    free(session);
}

/// Counts the calls of a broadcast of rank 0, and checks that rank 0 has nothing to say.
unsafe extern "C" fn counts_zeros(
    bytes: *mut std::ffi::c_void,
    length: usize,
    calls: *mut std::ffi::c_void,
) -> i32 {
    // SAFETY: the buffer of the library, and the counter of the test.
    let (bytes, calls) = unsafe {
        (
            std::slice::from_raw_parts(bytes.cast::<u8>(), length),
            &mut *calls.cast::<u32>(),
        )
    };
    *calls += 1;
    i32::from(length == 0 || bytes.iter().any(|&byte| byte != 0))
}

/// The others wait in their broadcast: a process with wrong arguments takes part in it before it fails.
#[test]
fn wrong_begin_takes_part_in_the_broadcast() {
    let rig = Rig::new(1);
    let wrong = tw_session_options {
        sync: 77,
        ..rig.options()
    };
    let mut session = null_mut();
    let mut calls = 0_u32;
    for (options, place) in [(&raw const wrong, &raw mut session), (null(), null_mut())] {
        // SAFETY: valid or null, as the call allows; the counter lives through it.
        let begun = unsafe {
            let calls = (&raw mut calls).cast();
            tw_begin(options, 0, 2, 1, Some(counts_zeros), calls, place)
        };
        assert_ne!(begun, TW_OK);
    }
    assert_eq!(calls, 2);
    // Rank 1 learns that rank 0 has failed.
    // SAFETY: as above.
    let begun = unsafe {
        let calls = (&raw mut calls).cast();
        tw_begin(null(), 1, 2, 1, Some(counts_zeros), calls, &raw mut session)
    };
    fails(begun, TW_ERR_LOST, "rank 0 could not start");
}

/// Pushes that are held leave with another call, and not before.
#[test]
fn held_pushes_leave_together() {
    let rig = Rig::new(2);
    let (session, reader) = (rig.open(&rig.options()), rig.open(&rig.options()));
    let options = table_options(c"held", I64, tw_kind::TW_SPARSE, 0, 1);
    let (table, seen) = (create(session, &options), create(reader, &options));
    let (key, one) = (7u64, 1i64);
    let push = || {
        let value = (&raw const one).cast();
        let none = null_mut();
        // SAFETY: an open session, one key and one value.
        ok(unsafe { tw_push_rows(session, table, &raw const key, 1, value, 1, I64, SUM, none) });
    };
    let pull = || {
        let mut sum = -1i64;
        let (to, none) = ((&raw mut sum).cast(), null());
        // SAFETY: an open session, one key and room for its value.
        ok(unsafe { tw_pull_rows(reader, seen, &raw const key, 1, to, 1, I64, none) });
        sum
    };
    // SAFETY: an open session, or none.
    unsafe {
        fails(tw_batch_pushes(null_mut(), 8), TW_ERR_NULL, "session");
        ok(tw_batch_pushes(session, 8));
        (0..3).for_each(|_| push());
        assert!((0..500).all(|_| pull() == 0), "they are not held");
        ok(tw_progress(session));
        assert!((0..60_000).any(|_| pull() == 3), "they stay");
        ok(tw_batch_pushes(session, 0));
        push();
    }
    assert!((0..60_000).any(|_| pull() == 4), "a push is held");
    free(session);
    free(reader);
}
