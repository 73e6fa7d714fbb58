//! Tasks: a queue is taken to its end, and wrong calls.

use std::ptr::{null, null_mut};
use std::sync::{Arc, Condvar, Mutex};

use tidewater::functions::{ElementsMut, Function, FunctionError, Functions, Piece};
use tidewater_capi::abi::data::*;
use tidewater_capi::abi::function::*;
use tidewater_capi::abi::session::tw_session;
use tidewater_capi::abi::tasks::*;
use tidewater_capi::types::tw_status::*;
use tidewater_capi::types::*;
use tidewater_service::embedded::ClusterConfig;
use tidewater_service::server::ServerFunctions;

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

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Gate {
    #[default]
    Open,
    Closed,
    /// The applier waits in the function.
    Reached,
}

/// A function that holds its applier from [`Hold::close`] to [`Hold::open`].
#[derive(Clone, Default)]
struct Hold(Arc<(Mutex<Gate>, Condvar)>);

impl Function for Hold {
    fn update(&self, _: &[u8], _: &Piece<'_>, _: ElementsMut<'_>) -> Result<(), FunctionError> {
        self.set(Gate::Reached);
        self.wait_while(Gate::Reached);
        Ok(())
    }
}

impl Hold {
    fn set(&self, gate: Gate) {
        *self.0.0.lock().unwrap() = gate;
        self.0.1.notify_all();
    }

    fn wait_while(&self, gate: Gate) {
        let state = self.0.0.lock().unwrap();
        drop(self.0.1.wait_while(state, |state| *state == gate).unwrap());
    }

    /// Returns when the applier of `table` waits.
    fn close(&self, session: *mut tw_session, table: tw_table) {
        self.set(Gate::Closed);
        let (name, none) = (c"hold".as_ptr(), null_mut());
        // SAFETY: an open session; no arguments, options and ticket.
        ok(unsafe { tw_call_update(session, table, name, null(), 0, null(), none) });
        self.wait_while(Gate::Closed);
    }

    fn open(&self) {
        self.set(Gate::Open);
    }
}

/// A report of a failed task, and the close of a queue, that meet a deadline: the queue keeps its task, and the call
/// that is repeated succeeds. Each failure counts once, and then each task.
#[test]
fn reports_are_repeated_after_deadline() {
    let hold = Hold::default();
    let rig = Rig::of(ClusterConfig {
        servers: 1,
        appliers: 1,
        workers: 2,
        functions: ServerFunctions {
            all: Functions::default().with("hold", hold.clone()),
            ..ServerFunctions::default()
        },
        ..ClusterConfig::default()
    });
    let other = rig.open(&rig.options());
    let session = rig.open(&tw_session_options {
        timeout_s: 2.0,
        ..rig.options()
    });
    let spec = table_options(c"t", F64, tw_kind::TW_ROWS, 1, 1);
    let (table, of_other) = (create(session, &spec), create(other, &spec));
    // SAFETY: the structs have numbers and pointers only, which may be zero.
    let (zero, mut task): (tw_task_options, tw_task_info) = unsafe { std::mem::zeroed() };
    let options = tw_task_options {
        size: size_of::<tw_task_options>(),
        name: c"records".as_ptr(),
        task_size: 1,
        ..zero
    };
    task.size = size_of::<tw_task_info>();
    let (mut queue, mut given, mut counted, mut failures) = (0, 0, 0, 0);
    let push = || {
        let (key, one) = (0u64, 1.0f64);
        let (k, v, none) = (&raw const key, (&raw const one).cast(), null_mut());
        // SAFETY: an open session; one key and one value.
        ok(unsafe { tw_push_rows(session, table, k, 1, v, 1, F64, SUM, none) });
    };
    // SAFETY: here and below: an open session, valid options and places.
    unsafe {
        let (queue, task, given) = (&raw mut queue, &raw mut task, &raw mut given);
        ok(tw_tasks_open(session, &raw const options, 2, queue));
        ok(tw_tasks_next(session, *queue, task, given));
        push();
        hold.close(other, of_other);
        let why = c"by the test".as_ptr();
        assert_eq!(tw_tasks_fail(session, *queue, why), TW_ERR_DEADLINE);
        hold.open();
        ok(tw_tasks_fail(session, *queue, why));
        fails(
            tw_tasks_fail(session, *queue, why),
            TW_ERR_ARGUMENT,
            "tw_tasks_next",
        );
        ok(tw_tasks_next(session, *queue, task, given));
        push();
        hold.close(other, of_other);
        let open = *queue;
        assert_eq!(tw_tasks_close(session, queue), TW_ERR_DEADLINE);
        assert_eq!(*queue, open);
        hold.open();
        ok(tw_tasks_close(session, queue));
        assert_eq!(*queue, 0);
        ok(tw_tasks_open(session, &raw const options, 2, queue));
        for _ in 0..2 {
            ok(tw_tasks_next(session, *queue, task, given));
            assert_eq!(*given, 1);
            failures += (*task).failures;
            push();
            ok(tw_tasks_done(session, *queue, 1, &raw mut counted));
            assert_eq!(counted, 1);
        }
        assert_eq!(failures, 2, "each report counts once");
        ok(tw_tasks_next(session, *queue, task, given));
        assert_eq!(*given, 0);
        let mut sum = 0.0f64;
        let to = (&raw mut sum).cast();
        ok(tw_pull_rows(session, table, &0, 1, to, 1, F64, null()));
        assert_eq!(sum, 2.0);
    }
    free(session);
    free(other);
}
