//! Invalid arguments: null, closed, foreign, misaligned, of another type, size or length.

use std::ffi::c_void;
use std::ptr::{null, null_mut};

use tidewater_capi::abi::clock::*;
use tidewater_capi::abi::data::*;
use tidewater_capi::abi::session::*;
use tidewater_capi::abi::table::*;
use tidewater_capi::abi::walltime::*;
use tidewater_capi::types::tw_status::*;
use tidewater_capi::types::*;

use crate::rig::*;

#[test]
fn null_closed_freed_and_foreign_sessions_are_statuses() {
    let rig = Rig::new(2);
    let one = rig.open(&tw_session_options {
        has_rank: 1,
        rank: 0,
        ..rig.options()
    });
    let two = rig.open(&tw_session_options {
        has_rank: 1,
        rank: 1,
        ..rig.options()
    });
    let table = create(one, &table_options(c"t", I64, tw_kind::TW_ROWS, 4, 1));
    let other = create(two, &table_options(c"t", I64, tw_kind::TW_ROWS, 4, 1));
    assert_ne!(table, other);
    let mut out = [0i64];
    let mut pull = |session, table| {
        let out = out.as_mut_ptr().cast();
        // SAFETY: one key and one element exist; the sessions are what is tested.
        unsafe { tw_pull_rows(session, table, &3, 1, out, 1, I64, null()) }
    };
    ok(pull(one, table));
    fails(
        pull(null_mut(), table),
        TW_ERR_NULL,
        "tw_pull_rows: the session is null",
    );
    fails(pull(one, other), TW_ERR_HANDLE, "of this session");
    fails(pull(one, 0), TW_ERR_HANDLE, "zero");
    // Memory of something else, and an address that no session can have.
    let mut foreign = [0x5555_5555_5555_5555u64; 64];
    fails(
        pull(foreign.as_mut_ptr().cast(), table),
        TW_ERR_HANDLE,
        "no session",
    );
    fails(
        pull(one.wrapping_byte_add(4), table),
        TW_ERR_HANDLE,
        "no session",
    );
    // SAFETY: both sessions are open.
    unsafe {
        ok(tw_session_close(one));
        fails(
            tw_session_close(one),
            TW_ERR_CLOSED,
            "the session is closed",
        );
        fails(tw_tick(one, 0), TW_ERR_CLOSED, "tw_tick");
        fails(tw_progress(one), TW_ERR_CLOSED, "tw_progress");
        let mut none: tw_ticket = 0;
        fails(
            tw_push_wait(one, &raw mut none, 0.0),
            TW_ERR_CLOSED,
            "closed",
        );
    }
    fails(pull(one, table), TW_ERR_CLOSED, "closed");
    ok(pull(two, other));
    free(one);
    free(two);
}

#[test]
fn every_pointer_may_be_null_and_nothing_crashes() {
    let rig = Rig::new(1);
    let session = rig.open(&rig.options());
    let table = create(session, &table_options(c"t", F32, tw_kind::TW_SPARSE, 0, 4));
    // SAFETY: null is what is tested; all else is valid.
    unsafe {
        fails(
            tw_session_open(null(), null_mut()),
            TW_ERR_NULL,
            "place for the session",
        );
        fails(tw_session_free(null_mut()), TW_ERR_NULL, "place");
        fails(
            tw_session_describe(session, null_mut()),
            TW_ERR_NULL,
            "info",
        );
        fails(
            tw_session_counters(session, null_mut()),
            TW_ERR_NULL,
            "counters",
        );
        fails(
            tw_table_create(session, null(), null_mut()),
            TW_ERR_NULL,
            "place for the table",
        );
        let mut made = 9;
        fails(
            tw_table_create(session, null(), &raw mut made),
            TW_ERR_NULL,
            "options",
        );
        assert_eq!(made, 0);
        fails(
            tw_table_open(session, null(), F32, &raw mut made),
            TW_ERR_NULL,
            "name",
        );
        fails(
            tw_table_describe(session, table, null_mut()),
            TW_ERR_NULL,
            "info",
        );
        fails(
            tw_table_release(session, null_mut()),
            TW_ERR_NULL,
            "place of the table",
        );
        let p = tw_pull_rows(session, table, null(), 1, null_mut(), 4, F32, null());
        fails(p, TW_ERR_NULL, "keys");
        fails(
            tw_pull_rows(session, table, &1, 1, null_mut(), 4, F32, null()),
            TW_ERR_NULL,
            "pull into",
        );
        ok(tw_pull_rows(
            session,
            table,
            null(),
            0,
            null_mut(),
            0,
            F32,
            null(),
        ));
        fails(
            tw_pull_range(session, table, 0, null_mut(), 4, F32, null()),
            TW_ERR_NULL,
            "pull into",
        );
        fails(
            tw_pull_start(session, table, &1, 1, null(), null_mut()),
            TW_ERR_NULL,
            "pull",
        );
        fails(tw_pull_test(session, 1, null_mut()), TW_ERR_NULL, "ready");
        fails(
            tw_pull_wait(session, null_mut(), null_mut(), 0, F32),
            TW_ERR_NULL,
            "pull",
        );
        fails(tw_pull_cancel(session, null_mut()), TW_ERR_NULL, "pull");
        let p = tw_push_rows(session, table, null(), 1, null(), 4, F32, SUM, null_mut());
        fails(p, TW_ERR_NULL, "keys");
        let p = tw_push_rows(session, table, &1, 1, null(), 4, F32, SUM, null_mut());
        fails(p, TW_ERR_NULL, "values");
        fails(
            tw_push_range(session, table, 0, null(), 4, F32, SUM, null_mut()),
            TW_ERR_NULL,
            "values",
        );
        fails(
            tw_push_test(session, null_mut(), null_mut()),
            TW_ERR_NULL,
            "applied",
        );
        fails(
            tw_push_wait(session, null_mut(), 0.0),
            TW_ERR_NULL,
            "ticket",
        );
        fails(tw_push_forget(session, null_mut()), TW_ERR_NULL, "ticket");
        ok(tw_clock(session, null_mut(), null_mut()));
        fails(tw_barrier(session, null(), 0.0), TW_ERR_NULL, "barrier");
        fails(tw_walltime_watch(null_mut(), 1), TW_ERR_NULL, "the session");
        fails(tw_walltime_over(session, null_mut()), TW_ERR_NULL, "over");
        fails(tw_walltime_end(session, null_mut()), TW_ERR_NULL, "signal");
        fails(tw_fail(session, null()), TW_ERR_NULL, "reason");
        fails(
            tw_save(session, null(), 0.0, null_mut(), null_mut()),
            TW_ERR_NULL,
            "directory",
        );
        fails(
            tw_load(session, null(), 0.0, null_mut()),
            TW_ERR_NULL,
            "directory",
        );
    }
    free(session);
}

#[test]
fn wrong_arguments_say_what_would_be_right() {
    let rig = Rig::new(1);
    let session = rig.open(&rig.options());
    let rows = create(
        session,
        &table_options(c"rows", F64, tw_kind::TW_ROWS, 10, 3),
    );
    let mut room = [0.0f64; 8];
    let out: *mut c_void = room.as_mut_ptr().cast();
    let mut table = 0;
    // SAFETY: arrays have the given lengths, or are refused before they are touched.
    unsafe {
        let bad = tw_pull_rows(session, rows, &1, 1, out, 3, F32, null());
        fails(bad, TW_ERR_ARGUMENT, "the array holds f32, the table f64");
        let bad = tw_pull_rows(session, rows, &1, 1, out, 2, F64, null());
        fails(bad, TW_ERR_ARGUMENT, "2 elements for 1 rows of 3");
        let bad = tw_pull_rows(session, rows, &10, 1, out, 3, F64, null());
        fails(bad, TW_ERR_ARGUMENT, "past the end");
        let bad = tw_pull_rows(session, rows, out.cast(), 1, out, 3, F64, null());
        fails(bad, TW_ERR_ARGUMENT, "keys overlap");
        let bad = tw_push_rows(
            session,
            rows,
            &1,
            usize::MAX / 2,
            out,
            3,
            F64,
            SUM,
            null_mut(),
        );
        fails(bad, TW_ERR_ARGUMENT, "larger than memory can be");
        let bad = tw_pull_rows(session, rows, &1, 1, out.byte_add(4), 3, F64, null());
        fails(bad, TW_ERR_ARGUMENT, "not aligned to 8 bytes");
        let bad = tw_pull_rows(session, rows, &1, 1, out, 3, 17, null());
        fails(bad, TW_ERR_ARGUMENT, "dtype is 17");
        let bad = tw_pull_range(session, rows, 0, out, 3, F64, null());
        fails(bad, TW_ERR_ARGUMENT, "rows");
        let bad = tw_push_rows(session, rows, &1, 1, out, 3, F64, 0, null_mut());
        fails(bad, TW_ERR_ARGUMENT, "op is 0; it is one of TW_SUM");
        let unequal = table_options(c"rows", F32, tw_kind::TW_ROWS, 10, 3);
        fails(
            tw_table_create(session, &raw const unequal, &raw mut table),
            TW_ERR_REFUSED,
            "rows",
        );
        let sizeless = tw_table_options { size: 0, ..unequal };
        let bad = tw_table_create(session, &raw const sizeless, &raw mut table);
        fails(
            bad,
            TW_ERR_ARGUMENT,
            "set its first field to its sizeof (216)",
        );
        let bad = tw_table_open(session, c"none".as_ptr(), F64, &raw mut table);
        fails(bad, TW_ERR_REFUSED, "none");
        let bad = tw_table_open(session, c"rows".as_ptr(), I64, &raw mut table);
        fails(bad, TW_ERR_ARGUMENT, "I64");
        let bad = tw_table_open(session, c"\xff".as_ptr(), I64, &raw mut table);
        fails(bad, TW_ERR_ARGUMENT, "UTF-8");
        let wide = table_options(c"wide", F64, tw_kind::TW_ROWS, 1, 0);
        let bad = tw_table_create(session, &raw const wide, &raw mut table);
        fails(bad, TW_ERR_ARGUMENT, "\"wide\": rows of 0 elements");
        let bad = tw_save(session, c"a\nb".as_ptr(), 0.0, null_mut(), null_mut());
        fails(bad, TW_ERR_ARGUMENT, "control characters");
        let endless = [b'x'; 5000];
        let bad = tw_table_open(session, endless.as_ptr().cast(), I64, &raw mut table);
        fails(bad, TW_ERR_ARGUMENT, "does not end within 4096");
    }
    room[0] = f64::NAN;
    refused_push(session, rows, &room[..3]);
    unclaimed_push(session, rows, &room[..3]);
    free(session);
}

/// Pushes without a ticket are refused; each completion call reports one of them.
fn unclaimed_push(session: *mut tw_session, table: tw_table, values: &[f64]) {
    let push = || {
        let (v, no) = (values.as_ptr().cast(), null_mut());
        // SAFETY: three values exist, and no ticket is requested.
        ok(unsafe { tw_push_rows(session, table, &1, 1, v, 3, F64, SUM, no) });
    };
    // SAFETY: the session is open, and the name ends with zero.
    unsafe {
        ok(tw_flush(session));
        push();
        fails(tw_flush(session), TW_ERR_REJECTED, "NaN");
        ok(tw_flush(session));
        push();
        let barrier = || tw_barrier(session, c"b".as_ptr(), 20.0);
        fails(barrier(), TW_ERR_REJECTED, "NaN");
        ok(barrier());
        push();
        let mut all = tw_counters {
            size: size_of::<tw_counters>(),
            ..std::mem::zeroed()
        };
        // Under TW_ASP a tick reports the refusals known so far.
        while all.rejects < 4 {
            ok(tw_progress(session));
            ok(tw_session_counters(session, &raw mut all));
        }
        fails(tw_tick(session, 0), TW_ERR_REJECTED, "NaN");
        ok(tw_tick(session, 0));
        push();
        fails(tw_finish(session), TW_ERR_REJECTED, "NaN");
        ok(tw_finish(session));
    }
}

fn refused_push(session: *mut tw_session, table: tw_table, values: &[f64]) {
    let mut ticket = 0;
    // SAFETY: three values exist.
    unsafe {
        let v = values.as_ptr().cast();
        ok(tw_push_rows(
            session,
            table,
            &1,
            1,
            v,
            3,
            F64,
            SUM,
            &raw mut ticket,
        ));
        let copy = ticket;
        fails(
            tw_push_wait(session, &raw mut ticket, 0.0),
            TW_ERR_REJECTED,
            "NaN",
        );
        assert_eq!(ticket, 0, "a refused push is settled");
        ticket = copy;
        fails(
            tw_push_wait(session, &raw mut ticket, 0.0),
            TW_ERR_HANDLE,
            "waited for",
        );
    }
}

#[test]
fn a_walltime_is_watched_once_and_before_it_is_asked() {
    let rig = Rig::new(1);
    let session = rig.open(&rig.options());
    let mut told = 7;
    // SAFETY: an open session, until it is closed, and a valid place for the result.
    unsafe {
        let bad = tw_walltime_over(session, &raw mut told);
        fails(bad, TW_ERR_ARGUMENT, "call tw_walltime_watch before");
        assert_eq!(told, 0);
        let bad = tw_walltime_end(session, &raw mut told);
        fails(bad, TW_ERR_ARGUMENT, "does not watch");
        for _ in 0..2 {
            ok(tw_walltime_watch(session, 0));
            let bad = tw_walltime_watch(session, 1);
            fails(bad, TW_ERR_ARGUMENT, "watches already");
            ok(tw_walltime_over(session, &raw mut told));
            assert_eq!(told, 0);
            ok(tw_walltime_end(session, &raw mut told));
            assert_eq!(told, 0, "nobody was told to end");
            ok(tw_walltime_over(session, &raw mut told));
            assert_eq!(told, 1, "it has ended");
        }
        ok(tw_session_close(session));
        let bad = tw_walltime_over(session, &raw mut told);
        fails(bad, TW_ERR_CLOSED, "tw_walltime_over");
    }
    free(session);
}

#[test]
fn sessions_that_cannot_be_opened_say_why() {
    let rig = Rig::new(1);
    let options = rig.options();
    let opens = |options: &tw_session_options| {
        let mut session = std::ptr::dangling_mut();
        // SAFETY: both places are valid.
        let status = unsafe { tw_session_open(options, &raw mut session) };
        assert!(session.is_null());
        status
    };
    let bad = opens(&tw_session_options {
        token_file: null(),
        ..options
    });
    fails(bad, TW_ERR_ENVIRONMENT, "token_file");
    let bad = opens(&tw_session_options {
        token_file: c"/nowhere".as_ptr(),
        ..options
    });
    fails(bad, TW_ERR_ENVIRONMENT, "/nowhere");
    let bad = opens(&tw_session_options {
        thread_level: 9,
        ..options
    });
    fails(bad, TW_ERR_ARGUMENT, "TW_THREAD_MULTIPLE");
    let bad = opens(&tw_session_options {
        timeout_s: -1.0,
        ..options
    });
    fails(bad, TW_ERR_ARGUMENT, "timeout_s is -1 s");
    let bad = opens(&tw_session_options {
        has_rank: 1,
        rank: 5,
        ..options
    });
    fails(bad, TW_ERR_REFUSED, "rank 5 of a job with 1 workers");
    let nobody = tw_session_options {
        coordinator: c"127.0.0.1:1".as_ptr(),
        join_timeout_s: 0.2,
        ..options
    };
    fails(opens(&nobody), TW_ERR_LOST, "127.0.0.1:1");
    // The environment of a test names no job.
    let bad = opens(&tw_session_options {
        coordinator: null(),
        ..options
    });
    fails(bad, TW_ERR_ENVIRONMENT, "tidewater run");
}

#[test]
fn a_program_that_collects_tickets_is_told_before_memory_is_gone() {
    let rig = Rig::new(1);
    let session = rig.open(&rig.options());
    let table = create(session, &table_options(c"n", I64, tw_kind::TW_SPARSE, 0, 1));
    let mut failed = None;
    for n in 0..=1u64 << 16 {
        let mut ticket = 0;
        // SAFETY: one key and one value exist.
        let status = unsafe {
            let v = (&raw const n).cast();
            tw_push_rows(
                session,
                table,
                &raw const n,
                1,
                v,
                1,
                I64,
                SUM,
                &raw mut ticket,
            )
        };
        if status != TW_OK {
            failed = Some((n, status));
            break;
        }
    }
    assert_eq!(failed, Some((1 << 16, TW_ERR_ARGUMENT)));
    fails(TW_ERR_ARGUMENT, TW_ERR_ARGUMENT, "65536 ticket handles");
    free(session);
}
