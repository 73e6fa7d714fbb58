//! Tasks: a queue is taken to its end, and wrong calls.

use std::ptr::{null, null_mut};

use tidewater_capi::abi::data::*;
use tidewater_capi::abi::tasks::*;
use tidewater_capi::types::tw_status::*;
use tidewater_capi::types::*;

use crate::rig::*;

/// Each record counts once, also that of a task that fails first; a task that is not reported has failed.
#[test]
fn records_of_tasks_count_once() {
    const RECORDS: u64 = 10;
    let rig = Rig::new(1);
    let session = rig.open(&rig.options());
    let table = create(session, &table_options(c"t", I64, tw_kind::TW_SPARSE, 0, 1));
    // SAFETY: the struct has numbers and pointers only, which may be zero.
    let zero: tw_task_options = unsafe { std::mem::zeroed() };
    let options = tw_task_options {
        size: size_of::<tw_task_options>(),
        name: c"records".as_ptr(),
        task_size: 4,
        ..zero
    };
    let mut task = tw_task_info {
        size: size_of::<tw_task_info>(),
        number: 0,
        first: 0,
        end: 0,
        epoch: 0,
        failures: 0,
    };
    let (mut queue, mut given, mut counted, mut failed) = (0, 0, 0, 0);
    let at = &raw mut queue;
    // SAFETY: an open session; arrays have as many elements as the calls say.
    unsafe {
        let wrong = tw_task_options {
            task_size: 0,
            ..options
        };
        fails(
            tw_tasks_open(session, &raw const wrong, RECORDS, at),
            TW_ERR_ARGUMENT,
            "task_size",
        );
        assert_eq!(tw_tasks_open(session, null(), RECORDS, at), TW_ERR_NULL);
        ok(tw_tasks_open(session, &raw const options, RECORDS, at));
        assert_eq!(
            tw_tasks_next(session, queue, null_mut(), &raw mut given),
            TW_ERR_NULL
        );
        assert_eq!(
            tw_tasks_next(session, queue, &raw mut task, null_mut()),
            TW_ERR_NULL
        );
        assert_eq!(
            tw_tasks_next(session, table, &raw mut task, &raw mut given),
            TW_ERR_HANDLE
        );
        fails(
            tw_tasks_done(session, queue, 4, null_mut()),
            TW_ERR_ARGUMENT,
            "tw_tasks_next",
        );
        loop {
            ok(tw_tasks_next(session, queue, &raw mut task, &raw mut given));
            if given == 0 {
                break;
            }
            let keys: Vec<u64> = (task.first..task.end).collect();
            let ones = vec![1i64; keys.len()];
            let (k, v, n) = (keys.as_ptr(), ones.as_ptr().cast(), keys.len());
            ok(tw_push_rows(
                session,
                table,
                k,
                n,
                v,
                n,
                I64,
                SUM,
                null_mut(),
            ));
            match (task.number, task.failures) {
                (0, 0) => {
                    ok(tw_tasks_fail(session, queue, c"by the test".as_ptr()));
                    failed += 1;
                }
                (0, 1) => failed += 1,
                _ => {
                    ok(tw_tasks_done(session, queue, n as u64, &raw mut counted));
                    assert_eq!(counted, 1);
                }
            }
        }
        assert_eq!(failed, 2);
        ok(tw_tasks_close(session, at));
        assert_eq!(queue, 0);
        assert_eq!(tw_tasks_close(session, at), TW_ERR_HANDLE);
        let keys: Vec<u64> = (0..RECORDS).collect();
        let mut counts = [0i64; RECORDS as usize];
        let to = counts.as_mut_ptr().cast();
        ok(tw_pull_rows(
            session,
            table,
            keys.as_ptr(),
            10,
            to,
            10,
            I64,
            null(),
        ));
        assert_eq!(counts, [1; RECORDS as usize]);
    }
    free(session);
}
