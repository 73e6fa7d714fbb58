//! Thread levels, and the progress thread.

use std::ptr::null;

use tidewater_capi::abi::clock::*;
use tidewater_capi::abi::data::*;
use tidewater_capi::abi::session::tw_session;
use tidewater_capi::abi::types::tw_status::*;
use tidewater_capi::abi::types::*;

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
