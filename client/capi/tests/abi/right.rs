// long: each test is a program of its own.

//! Calls that succeed, and their results.

use std::ffi::{CStr, CString, c_void};
use std::ptr::{null, null_mut};

use tidewater_capi::abi::clock::*;
use tidewater_capi::abi::data::*;
use tidewater_capi::abi::library::*;
use tidewater_capi::abi::session::*;
use tidewater_capi::abi::table::*;
use tidewater_capi::types::tw_status::*;
use tidewater_capi::types::*;

use crate::rig::*;

#[test]
fn what_is_pushed_is_what_is_pulled_in_every_way() {
    let rig = Rig::new(1);
    let session = rig.open(&rig.options());
    let sparse = create(session, &table_options(c"s", F64, tw_kind::TW_SPARSE, 0, 2));
    let ranges = create(
        session,
        &table_options(c"r", F32, tw_kind::TW_RANGE, 3, 1000),
    );
    let keys = [7u64, 1 << 40, 7];
    let values = [1.0f64, 2.0, 3.0, 4.0, 5.0, 6.0];
    let (mut ticket, mut applied) = (0, 0);
    // SAFETY: here and below: an open session, and arrays of the given lengths.
    unsafe {
        let v = values.as_ptr().cast();
        ok(tw_push_rows(
            session,
            sparse,
            keys.as_ptr(),
            3,
            v,
            6,
            F64,
            SUM,
            &raw mut ticket,
        ));
        assert_ne!(ticket, 0);
        while applied == 0 {
            ok(tw_push_test(session, &raw mut ticket, &raw mut applied));
        }
        assert_eq!(ticket, 0);
        ok(tw_push_wait(session, &raw mut ticket, 0.0));
        let ones = vec![1.5f32; 1500];
        let v = ones.as_ptr().cast();
        ok(tw_push_range(
            session,
            ranges,
            1000,
            v,
            1500,
            F32,
            SUM,
            null_mut(),
        ));
        ok(tw_flush(session));
    }
    for mode in [
        tw_mode::TW_CONSISTENT,
        tw_mode::TW_HOGWILD,
        tw_mode::TW_GATHER,
    ] {
        let options = tw_pull_options {
            size: size_of::<tw_pull_options>(),
            mode: mode as i32,
            missing: 0,
            timeout_s: 2.0,
            pulled: null_mut(),
        };
        let mut rows = [0.0f64; 4];
        let mut range = [0.0f32; 4];
        // SAFETY: as above.
        unsafe {
            let out = rows.as_mut_ptr().cast();
            ok(tw_pull_rows(
                session,
                sparse,
                keys.as_ptr(),
                2,
                out,
                4,
                F64,
                &raw const options,
            ));
            let out = range.as_mut_ptr().cast();
            ok(tw_pull_range(
                session,
                ranges,
                998,
                out,
                4,
                F32,
                &raw const options,
            ));
        }
        assert_eq!(rows, [6.0, 8.0, 3.0, 4.0], "{mode:?}");
        assert_eq!(range, [0.0, 0.0, 1.5, 1.5], "{mode:?}");
    }
    started_pulls(session, sparse, keys[1]);
    free(session);
}

fn started_pulls(session: *mut tw_session, table: tw_table, key: u64) {
    let (mut pull, mut ready) = (0, 0);
    let mut row = [0.0f64; 2];
    let out: *mut c_void = row.as_mut_ptr().cast();
    // SAFETY: an open session, and arrays of the given lengths.
    unsafe {
        ok(tw_pull_start(
            session,
            table,
            &raw const key,
            1,
            null(),
            &raw mut pull,
        ));
        let started = pull;
        while ready == 0 {
            ok(tw_pull_test(session, pull, &raw mut ready));
        }
        let wrong = tw_pull_wait(session, &raw mut pull, out, 2, F32);
        fails(wrong, TW_ERR_ARGUMENT, "the array holds f32, the table f64");
        fails(
            tw_pull_wait(session, &raw mut pull, out, 1, F64),
            TW_ERR_ARGUMENT,
            "16 are due",
        );
        assert_eq!(pull, started, "still under way");
        ok(tw_pull_wait(session, &raw mut pull, out, 2, F64));
        assert_eq!((pull, row), (0, [3.0, 4.0]));
        pull = started;
        fails(
            tw_pull_wait(session, &raw mut pull, out, 2, F64),
            TW_ERR_HANDLE,
            "names no pull",
        );
        ok(tw_pull_start(
            session,
            table,
            &raw const key,
            1,
            null(),
            &raw mut pull,
        ));
        ok(tw_pull_cancel(session, &raw mut pull));
        fails(
            tw_pull_cancel(session, &raw mut pull),
            TW_ERR_HANDLE,
            "zero",
        );
    }
}

#[test]
fn ranges_are_pulled_later() {
    let rig = Rig::new(1);
    let session = rig.open(&rig.options());
    let options = table_options(c"r", F64, tw_kind::TW_RANGE, 100, 1);
    let table = create(session, &options);
    let rows = create(session, &table_options(c"s", F64, tw_kind::TW_SPARSE, 0, 1));
    let all: Vec<f64> = (0..100).map(f64::from).collect();
    let (mut pull, mut ticket, mut ready, mut out) = (0, 0, 0, [0.5f64; 60]);
    // SAFETY: an open session, and arrays of the given lengths.
    unsafe {
        let (from, assign) = (all.as_ptr().cast(), tw_op::TW_ASSIGN as i32);
        ok(tw_push_range(
            session,
            table,
            0,
            from,
            100,
            F64,
            assign,
            &raw mut ticket,
        ));
        ok(tw_push_wait(session, &raw mut ticket, 5.0));
        ok(tw_pull_range_start(
            session,
            table,
            31,
            60,
            null(),
            &raw mut pull,
        ));
        while ready == 0 {
            ok(tw_pull_test(session, pull, &raw mut ready));
        }
        let to = out.as_mut_ptr().cast();
        let short = tw_pull_wait(session, &raw mut pull, to, 59, F64);
        fails(short, TW_ERR_ARGUMENT, "480 are due");
        ok(tw_pull_wait(session, &raw mut pull, to, 60, F64));
        assert_eq!((pull, &out[..]), (0, &all[31..91]));
        let past = tw_pull_range_start(session, table, 41, 60, null(), &raw mut pull);
        fails(past, TW_ERR_ARGUMENT, "elements 41+60 of a table of 100");
        let wrong = tw_pull_range_start(session, rows, 0, 1, null(), &raw mut pull);
        fails(wrong, TW_ERR_ARGUMENT, "use start_pull_rows");
        let none = tw_pull_range_start(session, table, 0, 1, null(), null_mut());
        fails(none, TW_ERR_NULL, "the place for the pull");
    }
    free(session);
}

#[test]
fn settings_hold_for_later_gradients() {
    let rig = Rig::new(1);
    let session = rig.open(&rig.options());
    let options = tw_table_options {
        optimizer: tw_optimizer::TW_SGD as i32,
        hyper: [1.0, 0.0, 0.0, 0.0],
        clip_value: 2.0,
        ..table_options(c"set", F64, tw_kind::TW_RANGE, 1, 1)
    };
    let table = create(session, &options);
    let half = tw_table_options {
        hyper: [0.5, 0.0, 0.0, 0.0],
        ..options
    };
    let other = tw_table_options {
        optimizer: tw_optimizer::TW_ADAGRAD as i32,
        hyper: [0.5, 1e-8, 0.0, 0.0],
        ..options
    };
    let (gradient, mut ticket) = ([3.0f64], 0);
    let mut pulled = [9.0f64];
    // SAFETY: an open session, and arrays of the given lengths.
    unsafe {
        let g = gradient.as_ptr().cast();
        let step = tw_op::TW_GRADIENT as i32;
        ok(tw_push_range(
            session,
            table,
            0,
            g,
            1,
            F64,
            step,
            null_mut(),
        ));
        ok(tw_table_set_optimizer(
            session,
            table,
            &raw const half,
            &raw mut ticket,
        ));
        ok(tw_push_wait(session, &raw mut ticket, 5.0));
        ok(tw_push_range(
            session,
            table,
            0,
            g,
            1,
            F64,
            step,
            null_mut(),
        ));
        ok(tw_flush(session));
        let out = pulled.as_mut_ptr().cast();
        ok(tw_pull_range(session, table, 0, out, 1, F64, null()));
        fails(
            tw_table_set_optimizer(session, table, &raw const other, null_mut()),
            TW_ERR_ARGUMENT,
            "rule is Sgd",
        );
    }
    assert_eq!(pulled, [-3.0], "clipped to 2, at rates 1 and 1/2");
    free(session);
}

/// A weight is a factor of the rate, an encoding rounds; options that cannot be are named.
#[test]
fn options_of_pushes_hold() {
    let rig = Rig::new(1);
    let session = rig.open(&rig.options());
    let options = tw_table_options {
        optimizer: tw_optimizer::TW_SGD as i32,
        hyper: [1.0, 0.0, 0.0, 0.0],
        by_staleness: 1,
        ..table_options(c"weighted", F64, tw_kind::TW_ROWS, 4, 2)
    };
    let table = create(session, &options);
    let (key, gradient) = (2u64, [3.0f64, 257.0]);
    let none = tw_push_options {
        size: size_of::<tw_push_options>(),
        weight: 0.0,
        has_weight: 0,
        encoding: 0,
        block: 0,
        reserved: 0,
    };
    let weighted = tw_push_options {
        weight: 0.5,
        has_weight: 1,
        ..none
    };
    let rounded = tw_push_options {
        encoding: tw_encoding::TW_BF16 as i32,
        ..weighted
    };
    let odd = [
        (
            tw_push_options {
                encoding: 9,
                ..none
            },
            "TW_BF16",
        ),
        (
            tw_push_options {
                weight: 2.0,
                ..none
            },
            "has_weight",
        ),
        (
            tw_push_options {
                reserved: 1,
                ..none
            },
            "reserved",
        ),
        (
            tw_push_options {
                weight: -1.0,
                ..weighted
            },
            "not below 0",
        ),
        (
            tw_push_options {
                encoding: tw_encoding::TW_INT8 as i32,
                block: 3,
                ..none
            },
            "8 to 65536",
        ),
    ];
    let push = |options: *const tw_push_options| {
        let (g, step) = (gradient.as_ptr().cast(), tw_op::TW_GRADIENT as i32);
        // SAFETY: an open session, and arrays of the given lengths.
        unsafe {
            tw_push_rows_with(
                session,
                table,
                &raw const key,
                1,
                g,
                2,
                F64,
                step,
                options,
                null_mut(),
            )
        }
    };
    for options in [
        null(),
        &raw const none,
        &raw const weighted,
        &raw const rounded,
    ] {
        ok(push(options));
    }
    for (options, text) in &odd {
        fails(push(options), TW_ERR_ARGUMENT, text);
    }
    let mut pulled = [9.0f64; 2];
    // SAFETY: an open session, and arrays of the given lengths.
    unsafe {
        ok(tw_flush(session));
        let out = pulled.as_mut_ptr().cast();
        ok(tw_pull_rows(
            session,
            table,
            &raw const key,
            1,
            out,
            2,
            F64,
            null(),
        ));
    }
    // 257 is between 256 and 258 in bf16; the even one is taken.
    assert_eq!(pulled, [-9.0, -(2.5 * 257.0 + 0.5 * 256.0)]);
    free(session);
}

#[test]
fn a_snapshot_is_of_one_tick_and_clocks_tell_it() {
    let rig = Rig::new(1);
    let session = rig.open(&tw_session_options {
        sync: tw_sync::TW_BSP as i32,
        ..rig.options()
    });
    let options = tw_table_options {
        effect: tw_effect::TW_CLOCK_SUM as i32,
        snapshot: 1,
        block_bytes: 4096,
        ..table_options(c"model", F64, tw_kind::TW_RANGE, 4, 500)
    };
    let table = create(session, &options);
    let ones = vec![1.0f64; 2000];
    let mut pulled = vec![9.0f64; 2000];
    let mut versions = tw_pulled {
        size: size_of::<tw_pulled>(),
        version: 9,
        smallest: 9,
        largest: 9,
        has_version: 9,
        has_stores: 9,
    };
    let pull = tw_pull_options {
        size: size_of::<tw_pull_options>(),
        mode: tw_mode::TW_SNAPSHOT as i32,
        missing: 0,
        timeout_s: 0.0,
        pulled: &raw mut versions,
    };
    // SAFETY: an open session, and arrays of the given lengths.
    unsafe {
        let v = ones.as_ptr().cast();
        ok(tw_push_range(
            session,
            table,
            0,
            v,
            2000,
            F64,
            SUM,
            null_mut(),
        ));
        ok(tw_tick(session, 0));
        let out = pulled.as_mut_ptr().cast();
        ok(tw_pull_range(
            session,
            table,
            0,
            out,
            2000,
            F64,
            &raw const pull,
        ));
        let (mut mine, mut all) = (0, 0);
        ok(tw_clock(session, &raw mut mine, &raw mut all));
        assert_eq!((mine, all), (1, 1));
        assert_eq!((versions.has_version, versions.version), (1, 1));
        assert_eq!(versions.has_stores, 0);
        let mut newest = 0;
        ok(tw_wait_newer(session, table, 0, 2.0, &raw mut newest));
        assert_eq!(newest, 1);
        ok(tw_wait_until(session, table, 1, 2.0, null_mut()));
        fails(
            tw_wait_newer(session, table, 1, 0.02, null_mut()),
            TW_ERR_DEADLINE,
            "version 2 of table \"model\"",
        );
        fails(
            tw_wait_until(session, 77, 1, 0.02, null_mut()),
            TW_ERR_HANDLE,
            "table",
        );
        fails(
            tw_tick(session, 64),
            TW_ERR_ARGUMENT,
            "domain is 64; there are 0 to 63",
        );
        ok(tw_barrier(session, c"end".as_ptr(), 5.0));
        ok(tw_finish(session));
    }
    assert_eq!(pulled, ones);
    let mut counters = tw_counters_of(session);
    assert_eq!((counters.ticks, counters.pushes), (1, 1));
    assert!(counters.blocks_snapshot > 0);
    counters.size = 16; // a caller that knows the first counter only
    counters.rows_consistent = 77;
    // SAFETY: the session is open; 16 bytes can be written.
    ok(unsafe { tw_session_counters(session, &raw mut counters) });
    assert_eq!(
        (counters.size, counters.rows_consistent),
        (16, 77),
        "not touched beyond"
    );
    free(session);
}

/// A pinned version stays while a tick replaces it; two tables are pulled at one version.
#[test]
fn versions_are_pinned_and_grouped() {
    let rig = Rig::new(1);
    let session = rig.open(&tw_session_options {
        sync: tw_sync::TW_BSP as i32,
        ..rig.options()
    });
    let of = |name, versions| tw_table_options {
        effect: tw_effect::TW_CLOCK_SUM as i32,
        snapshot: 1,
        versions,
        ..table_options(name, F64, tw_kind::TW_RANGE, 4, 500)
    };
    let (plain, kept) = (
        create(session, &of(c"plain", 0)),
        create(session, &of(c"kept", 3)),
    );
    let (ones, mut a, mut b) = (vec![1.0f64; 2000], vec![9.0f64; 2000], vec![9.0f64; 2000]);
    let mut version = 9;
    let mut versions = tw_pulled {
        size: size_of::<tw_pulled>(),
        version: 9,
        smallest: 9,
        largest: 9,
        has_version: 9,
        has_stores: 9,
    };
    let range = |table, out: &mut Vec<f64>| tw_group_range {
        table,
        first: 1,
        out: out.as_mut_ptr().cast(),
        elements: 1500,
        dtype: F64,
        reserved: 0,
    };
    // SAFETY: an open session, and arrays of the given lengths.
    unsafe {
        ok(tw_pin(session, kept, null(), &raw mut version));
        assert_eq!(version, 0);
        ok(tw_pin(session, kept, &raw const version, null_mut()));
        ok(tw_unpin(session, kept, version));
        for table in [plain, kept] {
            let v = ones.as_ptr().cast();
            ok(tw_push_range(
                session,
                table,
                0,
                v,
                2000,
                F64,
                SUM,
                null_mut(),
            ));
        }
        ok(tw_tick(session, 0));
        ok(tw_tick(session, 0));
        let to = b.as_mut_ptr().cast();
        ok(tw_pull_pinned(
            session,
            kept,
            version,
            0,
            to,
            2000,
            F64,
            null(),
        ));
        assert!(b.iter().all(|&x| x == 0.0));
        let group = [range(plain, &mut a), range(kept, &mut b)];
        let pull = tw_pull_options {
            size: size_of::<tw_pull_options>(),
            mode: 0,
            missing: 0,
            timeout_s: 0.0,
            pulled: &raw mut versions,
        };
        ok(tw_pull_group(session, group.as_ptr(), 2, &raw const pull));
        assert_eq!((versions.has_version, versions.version), (1, 2));
        assert!(a[..1500].iter().chain(&b[..1500]).all(|&x| x == 1.0));
        assert_eq!((a[1500], b[1500]), (9.0, 0.0), "behind the range");
    }
    // SAFETY: as above.
    unsafe {
        let group = [range(plain, &mut a), range(plain, &mut a)];
        fails(
            tw_pull_group(session, group.as_ptr(), 2, null()),
            TW_ERR_ARGUMENT,
            "two arrays to pull into overlap",
        );
        fails(
            tw_pin(session, kept, null(), null_mut()),
            TW_ERR_REJECTED,
            "1 versions are pinned, and 1 can be",
        );
        let never = 77;
        fails(
            tw_pin(session, kept, &raw const never, null_mut()),
            TW_ERR_ARGUMENT,
            "version 77 of table \"kept\" is not kept",
        );
        ok(tw_unpin(session, kept, version));
        fails(
            tw_unpin(session, kept, version),
            TW_ERR_ARGUMENT,
            "not pinned by this client",
        );
    }
    free(session);
}

fn tw_counters_of(session: *mut tw_session) -> tw_counters {
    // SAFETY: the struct has numbers only, which may be zero.
    let mut counters: tw_counters = unsafe { std::mem::zeroed() };
    counters.size = size_of::<tw_counters>();
    // SAFETY: the session is open.
    ok(unsafe { tw_session_counters(session, &raw mut counters) });
    counters
}

#[test]
fn a_model_is_saved_and_its_numbers_told() {
    let rig = Rig::new(1);
    let session = rig.open(&rig.options());
    let table = create(
        session,
        &table_options(c"kept", F32, tw_kind::TW_ROWS, 100, 2),
    );
    let folder = tempfile::tempdir().unwrap();
    let path = CString::new(folder.path().join("model").to_str().unwrap()).unwrap();
    let (mut rows, mut bytes) = (0, 0);
    // SAFETY: an open session, and an array of two values.
    unsafe {
        let v = [1.0f32, 2.0];
        let v = v.as_ptr().cast();
        ok(tw_push_rows(
            session,
            table,
            &1,
            1,
            v,
            2,
            F32,
            SUM,
            null_mut(),
        ));
        ok(tw_flush(session));
        ok(tw_save(
            session,
            path.as_ptr(),
            10.0,
            &raw mut rows,
            &raw mut bytes,
        ));
        let bad = tw_load(session, c"/nowhere".as_ptr(), 10.0, null_mut());
        fails(bad, TW_ERR_REFUSED, "/nowhere");
    }
    assert!(rows >= 1 && bytes > 0, "{rows} rows, {bytes} bytes");
    free(session);
}

#[test]
fn infos_and_names() {
    let rig = Rig::new(3);
    let session = rig.open(&tw_session_options {
        has_rank: 1,
        rank: 2,
        ..rig.options()
    });
    let table = create(session, &table_options(c"t", I64, tw_kind::TW_RANGE, 5, 7));
    // SAFETY: the structs have numbers only, which may be zero.
    let (mut me, mut it): (tw_session_info, tw_table_info) = unsafe { std::mem::zeroed() };
    me.size = size_of::<tw_session_info>();
    it.size = size_of::<tw_table_info>();
    // SAFETY: the session is open.
    unsafe {
        ok(tw_session_describe(session, &raw mut me));
        ok(tw_table_describe(session, table, &raw mut it));
    }
    assert_eq!((me.rank, me.workers, me.servers), (2, 3, 2));
    assert_eq!(me.transport, tw_transport::TW_SHM as i32);
    assert_eq!((it.rows, it.cols, it.dtype), (5, 7, I64));
    assert_eq!(it.kind, tw_kind::TW_RANGE as i32);
    assert_eq!(
        it.partitions, 1,
        "one block has one partition, and none is empty"
    );
    assert_eq!(tw_abi_version(), TW_ABI_VERSION);
    for (status, name) in [
        (0, c"TW_OK"),
        (13, c"TW_ERR_PANIC"),
        (14, c"unknown"),
        (-1, c"unknown"),
    ] {
        // SAFETY: status names are string literals.
        assert_eq!(unsafe { CStr::from_ptr(tw_status_name(status)) }, name);
    }
    let mut released = table;
    // SAFETY: the session is open.
    unsafe {
        ok(tw_table_release(session, &raw mut released));
        assert_eq!(released, 0);
        fails(
            tw_table_describe(session, table, &raw mut it),
            TW_ERR_HANDLE,
            "released",
        );
    }
    free(session);
    assert!(rig.cluster.environment().coordinator.contains(':'));
}
