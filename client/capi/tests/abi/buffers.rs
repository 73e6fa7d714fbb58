//! Push buffers and schedules: right calls, and wrong arguments.

use std::ptr::{null, null_mut};

use tidewater_capi::abi::buffer::*;
use tidewater_capi::abi::data::*;
use tidewater_capi::abi::schedule::*;
use tidewater_capi::abi::session::*;
use tidewater_capi::types::tw_status::*;
use tidewater_capi::types::*;

use crate::rig::*;

fn buffer_options() -> tw_buffer_options {
    tw_buffer_options {
        size: size_of::<tw_buffer_options>(),
        op: 0,
        reserved: 0,
        rows_max: 0,
        bytes_max: 0,
        threshold: 0.0,
        weight: 0.0,
    }
}

fn cosine() -> tw_schedule {
    tw_schedule {
        size: size_of::<tw_schedule>(),
        kind: tw_schedule_kind::TW_SCHEDULE_COSINE as i32,
        reserved: 0,
        rate: 1.0,
        last: 0.01,
        factor: 0.0,
        every: 0,
        warm_up: 10,
        iterations: 110,
    }
}

#[test]
fn buffers_push_sums_by_key() {
    let rig = Rig::new(1);
    let session = rig.open(&rig.options());
    let table = create(session, &table_options(c"t", I64, tw_kind::TW_SPARSE, 0, 2));
    let (keys, values) = ([7u64, 3, 7], [1i64, 2, 3, 4, 10, 20]);
    let (mut buffer, mut ticket, mut rows, mut bytes) = (0, 0, 0, 0);
    let mut pulled = [0i64; 4];
    // SAFETY: an open session; arrays have as many elements as the calls say.
    unsafe {
        ok(tw_buffer_create(session, table, null(), &raw mut buffer));
        let add = |buffer| {
            let values = values.as_ptr().cast();
            tw_buffer_add(session, buffer, keys.as_ptr(), 3, values, 6, I64)
        };
        ok(add(buffer));
        ok(tw_buffer_describe(
            session,
            buffer,
            &raw mut rows,
            &raw mut bytes,
        ));
        assert_eq!((rows, bytes), (2, 48));
        let freed = tw_buffer_free(session, &raw mut buffer);
        fails(freed, TW_ERR_ARGUMENT, "2 rows that no flush has pushed");
        ok(tw_buffer_flush(session, buffer, 0, &raw mut ticket));
        ok(tw_push_wait(session, &raw mut ticket, 5.0));
        let to = pulled.as_mut_ptr().cast();
        ok(tw_pull_rows(
            session,
            table,
            keys.as_ptr(),
            2,
            to,
            4,
            I64,
            null(),
        ));
        assert_eq!(pulled, [11, 22, 3, 4]);
        ok(add(buffer));
        ok(tw_buffer_clear(session, buffer));
        let gone = buffer;
        ok(tw_buffer_free(session, &raw mut buffer));
        assert_eq!(buffer, 0);
        ok(tw_buffer_free(session, &raw mut buffer));
        fails(add(gone), TW_ERR_HANDLE, "names no buffer");
        fails(add(table), TW_ERR_HANDLE, "names no buffer");

        // Full with the second row, without a flush.
        let small = tw_buffer_options {
            rows_max: 2,
            ..buffer_options()
        };
        ok(tw_buffer_create(
            session,
            table,
            &raw const small,
            &raw mut buffer,
        ));
        ok(add(buffer));
        ok(tw_buffer_describe(
            session,
            buffer,
            &raw mut rows,
            null_mut(),
        ));
        assert_eq!(rows, 0);
        ok(tw_buffer_flush(session, buffer, 1, null_mut()));
    }
    gradients_add_up(session);
    extremes_and_averages_merge(session);
    free(session);
}

/// The greatest of three values of a row, and half of their sum.
fn extremes_and_averages_merge(session: *mut tw_session) {
    let (keys, values) = ([2u64; 3], [1.0f64, 8.0, -3.0]);
    for (name, op, weight, expected) in [
        (c"most", tw_op::TW_MAX, 0.0, 8.0),
        (c"least", tw_op::TW_MIN, 0.0, -3.0),
        (c"half", tw_op::TW_SUM, 0.5, 3.0),
    ] {
        let table = create(session, &table_options(name, F64, tw_kind::TW_ROWS, 4, 1));
        let options = tw_buffer_options {
            op: op as i32,
            weight,
            ..buffer_options()
        };
        let (mut buffer, mut ticket, mut pulled) = (0, 0, 0.0f64);
        // SAFETY: an open session; arrays have as many elements as the calls say.
        unsafe {
            let options = &raw const options;
            ok(tw_buffer_create(session, table, options, &raw mut buffer));
            let from = values.as_ptr().cast();
            let keys = keys.as_ptr();
            ok(tw_buffer_add(session, buffer, keys, 3, from, 3, F64));
            ok(tw_buffer_flush(session, buffer, 0, &raw mut ticket));
            ok(tw_push_wait(session, &raw mut ticket, 5.0));
            let to = (&raw mut pulled).cast();
            ok(tw_pull_rows(session, table, keys, 1, to, 1, F64, null()));
            ok(tw_buffer_free(session, &raw mut buffer));
        }
        assert_eq!(pulled, expected, "{name:?}");
    }
}

/// Two gradients of one row are one step of the table's rule; a row below the threshold waits for `all`.
fn gradients_add_up(session: *mut tw_session) {
    let options = tw_table_options {
        optimizer: tw_optimizer::TW_SGD as i32,
        hyper: [0.5, 0.0, 0.0, 0.0],
        ..table_options(c"g", F64, tw_kind::TW_ROWS, 4, 1)
    };
    let table = create(session, &options);
    let options = tw_buffer_options {
        op: tw_op::TW_GRADIENT as i32,
        threshold: 1.5,
        ..buffer_options()
    };
    let (keys, values) = ([2u64, 1, 2], [1.0f64; 3]);
    let (mut buffer, mut ticket, mut pulled) = (0, 0, [9.0f64; 2]);
    // SAFETY: an open session; arrays have as many elements as the calls say.
    unsafe {
        let options = &raw const options;
        ok(tw_buffer_create(session, table, options, &raw mut buffer));
        let from = values.as_ptr().cast();
        ok(tw_buffer_add(
            session,
            buffer,
            keys.as_ptr(),
            3,
            from,
            3,
            F64,
        ));
        for (all, expected) in [(0, [-1.0, 0.0]), (1, [-1.0, -0.5])] {
            ok(tw_buffer_flush(session, buffer, all, &raw mut ticket));
            ok(tw_push_wait(session, &raw mut ticket, 5.0));
            let to = pulled.as_mut_ptr().cast();
            ok(tw_pull_rows(
                session,
                table,
                keys.as_ptr(),
                2,
                to,
                2,
                F64,
                null(),
            ));
            assert_eq!(pulled, expected);
        }
        ok(tw_buffer_free(session, &raw mut buffer));
    }
}

#[test]
fn wrong_buffers_are_refused() {
    let rig = Rig::new(1);
    let session = rig.open(&rig.options());
    let table = create(session, &table_options(c"t", I64, tw_kind::TW_ROWS, 4, 1));
    let ranges = create(session, &table_options(c"r", I64, tw_kind::TW_RANGE, 4, 1));
    let mut buffer = 7;
    // SAFETY: an open session; pointers are null or valid.
    unsafe {
        let mut create = |table, options: tw_buffer_options| {
            tw_buffer_create(session, table, &raw const options, &raw mut buffer)
        };
        let options = buffer_options();
        fails(create(ranges, options), TW_ERR_ARGUMENT, "TW_RANGE");
        fails(create(0, options), TW_ERR_HANDLE, "the table is zero");
        let assign = tw_buffer_options { op: 2, ..options };
        fails(
            create(table, assign),
            TW_ERR_ARGUMENT,
            "op of a buffer is 2",
        );
        let odd = tw_buffer_options {
            reserved: 1,
            ..options
        };
        fails(create(table, odd), TW_ERR_ARGUMENT, "reserved");
        let short = tw_buffer_options { size: 0, ..options };
        fails(create(table, short), TW_ERR_ARGUMENT, "sizeof (48)");
        ok(create(table, options));
        let (key, value) = (9u64, 1i64);
        let add = |rows, dtype| {
            let value = (&raw const value).cast();
            tw_buffer_add(session, buffer, &raw const key, rows, value, 1, dtype)
        };
        fails(add(1, F32), TW_ERR_ARGUMENT, "");
        fails(add(0, I64), TW_ERR_ARGUMENT, "");
        fails(
            tw_buffer_create(session, table, &raw const options, null_mut()),
            TW_ERR_NULL,
            "the place for the buffer",
        );
        fails(
            tw_buffer_flush(session, 0, 0, null_mut()),
            TW_ERR_HANDLE,
            "the buffer is zero",
        );
        // A row that the table does not have, and nothing is added.
        fails(add(1, I64), TW_ERR_ARGUMENT, "past the end");
        let mut rows = 1;
        ok(tw_buffer_describe(
            session,
            buffer,
            &raw mut rows,
            null_mut(),
        ));
        assert_eq!(rows, 0);
    }
    free(session);
}

#[test]
fn schedules_set_rates() {
    let rig = Rig::new(1);
    let session = rig.open(&rig.options());
    let options = tw_table_options {
        optimizer: tw_optimizer::TW_SGD as i32,
        hyper: [1.0, 0.0, 0.0, 0.0],
        ..table_options(c"t", F64, tw_kind::TW_RANGE, 1, 1)
    };
    let table = create(session, &options);
    let rate = |schedule: &tw_schedule, iteration| {
        let mut rate = 0.0;
        // SAFETY: both are valid.
        ok(unsafe { tw_schedule_rate(schedule, iteration, &raw mut rate) });
        rate
    };
    assert_eq!(
        [0, 9, 110, u64::MAX].map(|t| rate(&cosine(), t)),
        [0.1, 1.0, 0.01, 0.01]
    );
    let of = |kind| tw_schedule {
        kind: kind as i32,
        factor: 0.5,
        every: 10,
        warm_up: 4,
        ..cosine()
    };
    let step = of(tw_schedule_kind::TW_SCHEDULE_STEP);
    assert_eq!([9, 10, 29].map(|t| rate(&step, t)), [1.0, 0.5, 0.25]);
    let root = of(tw_schedule_kind::TW_SCHEDULE_INVERSE_SQRT);
    assert_eq!([0, 3, 15].map(|t| rate(&root, t)), [0.25, 1.0, 0.5]);
    let constant = of(tw_schedule_kind::TW_SCHEDULE_CONSTANT);
    assert_eq!(rate(&constant, 7), 1.0);
    let (gradient, mut ticket, mut pulled) = (1.0f64, 0, 9.0f64);
    // SAFETY: an open session; arrays of one element.
    unsafe {
        ok(tw_table_schedule(
            session,
            table,
            &raw const root,
            15,
            &raw mut ticket,
        ));
        ok(tw_push_wait(session, &raw mut ticket, 5.0));
        let (from, to) = ((&raw const gradient).cast(), (&raw mut pulled).cast());
        let op = tw_op::TW_GRADIENT as i32;
        ok(tw_push_range(
            session,
            table,
            0,
            from,
            1,
            F64,
            op,
            &raw mut ticket,
        ));
        ok(tw_push_wait(session, &raw mut ticket, 5.0));
        ok(tw_pull_range(session, table, 0, to, 1, F64, null()));
        assert_eq!(pulled, -0.5);
        let mut rate = 0.0;
        let wrong = tw_schedule {
            kind: 9,
            ..cosine()
        };
        let status = tw_schedule_rate(&raw const wrong, 0, &raw mut rate);
        fails(status, TW_ERR_ARGUMENT, "kind of the schedule is 9");
        let wrong = tw_schedule {
            last: 2.0,
            ..cosine()
        };
        let status = tw_table_schedule(session, table, &raw const wrong, 0, null_mut());
        fails(status, TW_ERR_ARGUMENT, "at most rate");
        let status = tw_schedule_rate(null(), 0, &raw mut rate);
        fails(status, TW_ERR_NULL, "the schedule");
    }
    free(session);
}
