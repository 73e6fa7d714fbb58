//! Collective calls: right ones of two workers, and wrong arguments.

use std::ptr::{null, null_mut};

use tidewater_capi::abi::clock::*;
use tidewater_capi::abi::collective::*;
use tidewater_capi::abi::library::tw_last_error;
use tidewater_capi::abi::session::*;
use tidewater_capi::types::tw_status::*;
use tidewater_capi::types::*;

use crate::rig::*;

const MAX: i32 = tw_reduction::TW_REDUCE_MAX as i32;

fn worker(rig: &Rig, rank: u32) {
    let session = rig.open(&tw_session_options {
        has_rank: 1,
        rank,
        ..rig.options()
    });
    let mine = [f64::from(rank), -1.0];
    let mut all = [0.0; 4];
    let mut most = [i64::from(rank), 7, -i64::from(rank)];
    let mut of_one = [f64::from(rank); 3];
    // SAFETY: the session is open; the arrays have as many elements as the calls say.
    unsafe {
        let (from, to) = (mine.as_ptr().cast(), all.as_mut_ptr().cast());
        ok(tw_all_gather(session, from, 2, F64, to, 4));
        ok(tw_all_reduce(
            session,
            most.as_mut_ptr().cast(),
            3,
            I64,
            MAX,
        ));
        for (op, expected) in [
            (tw_reduction::TW_REDUCE_PRODUCT, [20, 6]),
            (tw_reduction::TW_REDUCE_BIT_AND, [4, 2]),
            (tw_reduction::TW_REDUCE_BIT_OR, [5, 3]),
            (tw_reduction::TW_REDUCE_BIT_XOR, [1, 1]),
        ] {
            let mut bits = [4 + i64::from(rank), 3 - i64::from(rank)];
            let of = bits.as_mut_ptr().cast();
            ok(tw_all_reduce(session, of, 2, I64, op as i32));
            assert_eq!(bits, expected, "{op:?}");
        }
        ok(tw_broadcast(session, 1, of_one.as_mut_ptr().cast(), 3, F64));
        // Each worker gives another length: both learn of it.
        let odd = tw_all_gather(
            session,
            from,
            1 + rank as usize,
            F64,
            to,
            2 + 2 * rank as usize,
        );
        let words = "worker 1 gives 2 elements and worker 0 gives 1";
        fails(odd, TW_ERR_ARGUMENT, words);
        let late = tw_broadcast(session, 9, of_one.as_mut_ptr().cast(), 3, F64);
        fails(late, TW_ERR_ARGUMENT, "there is no worker 9");
    }
    assert_eq!(all, [0.0, -1.0, 1.0, -1.0]);
    assert_eq!(most, [1, 7, 0]);
    assert_eq!(of_one, [1.0; 3]);
    // SAFETY: the session is open.
    ok(unsafe { tw_finish(session) });
    free(session);
}

#[test]
fn two_workers_exchange_values() {
    let rig = Rig::new(2);
    std::thread::scope(|scope| {
        scope.spawn(|| worker(&rig, 1));
        worker(&rig, 0);
    });
}

/// In a job of open size a call is of the members, and `all` may have more room.
#[test]
fn members_of_open_jobs_exchange_values() {
    let rig = Rig::new(0);
    let session = rig.open(&rig.options());
    let (mine, mut all, mut ranks, mut count) = ([2.5], [0.0; 3], [9_u64; 2], 0);
    // SAFETY: the session is open; the arrays have as many elements as the calls say.
    unsafe {
        ok(tw_domain_sync(session, 3, tw_sync::TW_SSP as i32, 2));
        fails(tw_domain_sync(session, 64, 0, 0), TW_ERR_ARGUMENT, "64");
        ok(tw_barrier(session, c"open".as_ptr(), 20.0));
        let (from, to) = (mine.as_ptr().cast(), all.as_mut_ptr().cast());
        ok(tw_all_gather(session, from, 1, F64, to, 3));
        ok(tw_collective_ranks(
            session,
            ranks.as_mut_ptr(),
            2,
            &raw mut count,
        ));
        let small = tw_all_gather(session, from, 1, F64, to, 0);
        fails(
            small,
            TW_ERR_ARGUMENT,
            "all has room for 0 elements; 1 workers",
        );
        ok(tw_finish(session));
    }
    assert_eq!((all, ranks, count), ([2.5, 0.0, 0.0], [0, 9], 1));
    free(session);
}

/// A worker that had too little room gets the values by the same call with more room, for which no other worker calls
/// again.
#[test]
fn exchanged_values_wait_for_room() {
    let rig = Rig::new(0);
    let opened = std::sync::Barrier::new(2);
    let work = |rank: u32| {
        let session = rig.open(&tw_session_options {
            has_rank: 1,
            rank,
            ..rig.options()
        });
        opened.wait();
        let (mine, mut all, mut most) = ([f64::from(rank) + 0.5], [0.0; 3], [f64::from(rank)]);
        // SAFETY: the session is open; the arrays have as many elements as the calls say.
        unsafe {
            let (from, to) = (mine.as_ptr().cast(), all.as_mut_ptr().cast());
            if rank == 0 {
                let small = tw_all_gather(session, from, 1, F64, to, 1);
                fails(small, TW_ERR_ARGUMENT, "room for 1 elements; 2 workers");
            }
            ok(tw_all_gather(session, from, 1, F64, to, 3));
            assert_eq!(all, [0.5, 1.5, 0.0]);
            ok(tw_all_reduce(
                session,
                most.as_mut_ptr().cast(),
                1,
                F64,
                MAX,
            ));
            assert_eq!(most, [1.0]);
            ok(tw_finish(session));
        }
        free(session);
    };
    std::thread::scope(|scope| {
        for rank in 0..2 {
            let work = &work;
            scope.spawn(move || work(rank));
        }
    });
}

#[test]
fn wrong_arguments_of_collectives_are_refused() {
    let rig = Rig::new(1);
    let session = rig.open(&rig.options());
    let (mut values, mut all) = ([1.0f64; 4], [0.0f64; 4]);
    let (from, to) = (values.as_mut_ptr(), all.as_mut_ptr());
    // SAFETY: the session is open or null; arrays are null or as large as the calls say.
    unsafe {
        let gather = |from: *const f64, count, to: *mut f64, room| {
            tw_all_gather(session, from.cast(), count, F64, to.cast(), room)
        };
        fails(gather(null(), 4, to, 4), TW_ERR_NULL, "values");
        fails(gather(from, 4, null_mut(), 4), TW_ERR_NULL, "array");
        fails(
            gather(from, 4, to, 3),
            TW_ERR_ARGUMENT,
            "1 workers give 4 each",
        );
        fails(gather(from, 4, from, 4), TW_ERR_ARGUMENT, "overlap");
        ok(gather(from, 4, to, 4));
        let reduce = |op| tw_all_reduce(session, from.cast(), 4, F64, op);
        fails(reduce(9), TW_ERR_ARGUMENT, "reduce is 9");
        fails(reduce(4), TW_ERR_ARGUMENT, "reduce is 4");
        ok(reduce(MAX));
        let none = tw_all_reduce(null_mut(), from.cast(), 4, F64, MAX);
        fails(none, TW_ERR_NULL, "session");
        let untyped = tw_broadcast(session, 0, from.cast(), 4, 77);
        fails(untyped, TW_ERR_ARGUMENT, "dtype is 77");
        // Values of no element may be null.
        ok(tw_broadcast(session, 0, null_mut(), 0, F64));
        let text = std::ffi::CStr::from_ptr(tw_last_error());
        assert!(text.to_str().unwrap().contains("tw_broadcast"));
    }
    assert_eq!(all, [1.0; 4]);
    free(session);
}
