//! Thread levels, and the progress thread.

use std::ptr::{null, null_mut};

use tidewater_capi::abi::clock::*;
use tidewater_capi::abi::data::*;
use tidewater_capi::abi::session::*;
use tidewater_capi::abi::table::*;
use tidewater_capi::types::tw_status::*;
use tidewater_capi::types::*;

use crate::rig::*;

/// A session pointer that threads of a test share, as C threads do.
#[derive(Clone, Copy)]
struct Shared(*mut tw_session);
// SAFETY: the session checks its threads by itself; the tests are about that.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    fn tick(&self) -> tw_status {
        // SAFETY: the session outlives the threads.
        unsafe { tw_tick(self.0, 0) }
    }
}

#[test]
fn thread_levels_are_held() {
    for level in [
        tw_thread_level::TW_THREAD_SINGLE,
        tw_thread_level::TW_THREAD_FUNNELED,
    ] {
        let rig = Rig::new(1);
        let session = Shared(rig.open(&tw_session_options {
            thread_level: level as i32,
            ..rig.options()
        }));
        ok(session.tick());
        std::thread::scope(|s| {
            s.spawn(|| fails({ &session }.tick(), TW_ERR_THREAD, "another thread opened"));
        });
        free(session.0);
    }
}

#[test]
fn with_multiple_all_threads_call_and_a_progress_thread_looks() {
    const THREADS: u64 = 4;
    const PUSHES: u64 = 200;
    let rig = Rig::new(1);
    let session = Shared(rig.open(&tw_session_options {
        thread_level: tw_thread_level::TW_THREAD_MULTIPLE as i32,
        progress_interval_us: 100,
        transport: tw_transport::TW_TCP as i32,
        ..rig.options()
    }));
    let table = create(
        session.0,
        &table_options(c"n", I64, tw_kind::TW_SPARSE, 0, 1),
    );
    std::thread::scope(|s| {
        for key in 0..THREADS {
            s.spawn(move || {
                let session = { &session }.0;
                for _ in 0..PUSHES {
                    let (one, mut ticket) = (1i64, 0);
                    let v = (&raw const one).cast();
                    // SAFETY: the session outlives the scope; one key and one value exist.
                    unsafe {
                        let t = &raw mut ticket;
                        ok(tw_push_rows(
                            session,
                            table,
                            &raw const key,
                            1,
                            v,
                            1,
                            I64,
                            SUM,
                            t,
                        ));
                        ok(tw_push_wait(session, t, 0.0));
                    }
                }
            });
        }
    });
    let keys: Vec<u64> = (0..THREADS).collect();
    let mut counts = vec![0i64; keys.len()];
    // SAFETY: arrays have the given lengths.
    unsafe {
        let out = counts.as_mut_ptr().cast();
        let n = keys.len();
        ok(tw_pull_rows(
            session.0,
            table,
            keys.as_ptr(),
            n,
            out,
            n,
            I64,
            null(),
        ));
    }
    assert_eq!(counts, vec![i64::try_from(PUSHES).unwrap(); keys.len()]);
    free(session.0);
}

/// An observer reads, has no rank of a worker, and holds no tick; its changes are refused.
#[test]
fn observers_only_read() {
    let rig = Rig::new(1);
    let worker = rig.open(&tw_session_options {
        sync: tw_sync::TW_BSP as i32,
        ..rig.options()
    });
    let options = table_options(c"seen", I64, tw_kind::TW_SPARSE, 0, 1);
    let pushed = create(worker, &options);
    let mut observer = null_mut();
    // SAFETY: the sessions are open, and freed at the end of the test; places are valid.
    unsafe {
        let options = rig.options();
        ok(tw_session_observe(&raw const options, &raw mut observer));
        let mut info: tw_session_info = std::mem::zeroed();
        info.size = size_of::<tw_session_info>();
        ok(tw_session_describe(observer, &raw mut info));
        assert!(info.rank >= 65_536, "{}", info.rank);
        let mut table = 0;
        ok(tw_table_open(
            observer,
            c"seen".as_ptr(),
            I64,
            &raw mut table,
        ));
        let mut ticket = 0;
        let (key, value) = (5_u64, 7_i64);
        let (keys, values) = (&raw const key, (&raw const value).cast());
        let refused = tw_push_rows(
            observer,
            table,
            keys,
            1,
            values,
            1,
            I64,
            SUM,
            &raw mut ticket,
        );
        fails(refused, TW_ERR_REFUSED, "observer, which only reads");
        fails(tw_tick(observer, 0), TW_ERR_REFUSED, "tick");
        ok(tw_push_rows(
            worker,
            pushed,
            keys,
            1,
            values,
            1,
            I64,
            SUM,
            &raw mut ticket,
        ));
        ok(tw_flush(worker));
        for _ in 0..3 {
            ok(tw_tick(worker, 0));
        }
        let mut seen = 0_i64;
        let to = (&raw mut seen).cast();
        ok(tw_pull_rows(observer, table, keys, 1, to, 1, I64, null()));
        assert_eq!(seen, value);
        ok(tw_finish(observer));
    }
    free(observer);
    free(worker);
}

/// A sibling belongs to the thread of its first call, ticks by itself, and leaves the calls
/// of all workers and the last finish to it.
#[test]
fn siblings_are_sessions_of_one_worker() {
    let rig = Rig::new(1);
    let first = Shared(rig.open(&tw_session_options {
        thread_level: tw_thread_level::TW_THREAD_FUNNELED as i32,
        sync: tw_sync::TW_BSP as i32,
        ..rig.options()
    }));
    let mut sibling = null_mut();
    // SAFETY: the sessions are open, and freed at the end of the test; places are valid.
    unsafe {
        fails(
            tw_session_sibling(first.0, null_mut()),
            TW_ERR_NULL,
            "sibling",
        );
        ok(tw_session_sibling(first.0, &raw mut sibling));
        fails(
            tw_finish(first.0),
            TW_ERR_THREAD,
            "threads 1 of the worker are open",
        );
    }
    let sibling = Shared(sibling);
    std::thread::scope(|s| {
        s.spawn(|| {
            let sibling = { &sibling }.0;
            // SAFETY: as above.
            unsafe {
                let mut info: tw_session_info = std::mem::zeroed();
                info.size = size_of::<tw_session_info>();
                ok(tw_session_describe(sibling, &raw mut info));
                assert_eq!((info.rank, info.workers, info.thread), (0, 1, 1));
                for _ in 0..3 {
                    ok(tw_tick(sibling, 0));
                }
                fails(
                    tw_barrier(sibling, c"b".as_ptr(), 1.0),
                    TW_ERR_THREAD,
                    "first client",
                );
                let mut other = null_mut();
                fails(
                    tw_session_sibling(sibling, &raw mut other),
                    TW_ERR_THREAD,
                    "thread 1",
                );
                assert!(other.is_null());
            }
        });
        for _ in 0..3 {
            ok(first.tick());
        }
    });
    fails(sibling.tick(), TW_ERR_THREAD, "another thread opened");
    std::thread::scope(|s| {
        // The thread that owns it has ended; a session that is finished by no thread loses its worker.
        s.spawn(|| free({ &sibling }.0));
    });
    fails(
        first.tick(),
        TW_ERR_LOST,
        "thread 1 of worker 0 has ended before it finished",
    );
    free(first.0);
}
