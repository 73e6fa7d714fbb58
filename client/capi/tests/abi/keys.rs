//! Keys of sparse tables: right calls, and wrong arguments.

use std::ptr::{null, null_mut};

use tidewater_capi::abi::data::*;
use tidewater_capi::abi::keys::*;
use tidewater_capi::abi::table::*;
use tidewater_capi::types::tw_status::*;
use tidewater_capi::types::*;

use crate::rig::*;

const START: tw_scan_cursor = tw_scan_cursor {
    partition: 0,
    end: 0,
    slot: 0,
};

#[test]
fn keys_are_listed_and_deleted() {
    let rig = Rig::new(1);
    let session = rig.open(&rig.options());
    let table = create(session, &table_options(c"t", I64, tw_kind::TW_SPARSE, 0, 2));
    let dense = create(session, &table_options(c"d", I64, tw_kind::TW_ROWS, 4, 2));
    let (keys, ones) = ([7u64, 3, 1], [1i64; 6]);
    let (mut listed, mut rows, mut stored) = ([0u64; 4], [0i64; 8], [9u8; 3]);
    let (mut ticket, mut count, mut n, mut cursor) = (0, 0, 0, START);
    let (k, s) = (keys.as_ptr(), stored.as_mut_ptr());
    let to = rows.as_mut_ptr().cast();
    // SAFETY: an open session; arrays have as many elements as the calls say.
    unsafe {
        let sum = tw_op::TW_SUM as i32;
        let values = ones.as_ptr().cast();
        ok(tw_push_rows(
            session,
            table,
            k,
            3,
            values,
            6,
            I64,
            sum,
            null_mut(),
        ));
        ok(tw_keys_delete(session, table, k, 1, &raw mut ticket));
        ok(tw_push_wait(session, &raw mut ticket, 0.0));
        ok(tw_keys_exist(session, table, k, 3, s));
        assert_eq!(stored, [0, 1, 1]);
        ok(tw_keys_count(session, table, &raw mut count));
        assert_eq!(count, 2);
        let mut scan = |cursor: *mut tw_scan_cursor, room, to, elements, dtype| {
            let keys = listed.as_mut_ptr();
            let n = &raw mut n;
            tw_keys_scan(session, table, cursor, keys, room, to, elements, dtype, n)
        };
        let at = &raw mut cursor;
        assert_eq!(scan(null_mut(), 4, to, 8, I64), TW_ERR_NULL);
        assert_eq!(scan(at, 4, to, 7, I64), TW_ERR_ARGUMENT);
        assert_eq!(scan(at, 4, to, 8, F64), TW_ERR_ARGUMENT);
        assert_eq!(scan(at, 4, to, 8, 99), TW_ERR_ARGUMENT);
        assert_eq!(scan(at, 0, null_mut(), 0, 0), TW_ERR_ARGUMENT);
        ok(scan(at, 4, to, 8, I64));
        ok(tw_keys_exist(session, table, null(), 0, null_mut()));
        assert_eq!(tw_keys_exist(session, table, k, 3, null_mut()), TW_ERR_NULL);
        assert_eq!(tw_keys_count(session, table, null_mut()), TW_ERR_NULL);
        let overlap = keys.as_ptr().cast_mut().cast();
        assert_eq!(
            tw_keys_exist(session, table, k, 3, overlap),
            TW_ERR_ARGUMENT
        );
        assert_eq!(
            tw_keys_delete(session, dense, k, 1, null_mut()),
            TW_ERR_ARGUMENT
        );
        assert_eq!(tw_keys_delete(session, 77, k, 1, null_mut()), TW_ERR_HANDLE);
    }
    assert_eq!(n, 2);
    listed[..2].sort_unstable();
    assert_eq!((listed, &rows[..4]), ([1, 3, 0, 0], &[1i64; 4][..]));
    free(session);
}

/// Lists of servers that cannot be are refused, and the table of a right one has as many partitions.
#[test]
fn partitions_are_placed() {
    let rig = Rig::new(1);
    let session = rig.open(&rig.options());
    let servers = [0u32, 0, 0];
    let absent = [0u32, 2, 0];
    let options = |partitions, servers: *const u32, count| tw_table_options {
        partitions,
        partition_servers: servers,
        partition_server_count: count,
        ..table_options(c"t", I64, tw_kind::TW_ROWS, 30, 2)
    };
    let list = servers.as_ptr();
    let mut table = 0;
    for (options, status, words) in [
        (options(0, null(), 3), TW_ERR_NULL, "partition_servers"),
        (options(0, list, 0), TW_ERR_ARGUMENT, "empty list"),
        (options(0, list, 4_097), TW_ERR_ARGUMENT, "at most 4096"),
        (
            options(2, list, 3),
            TW_ERR_ARGUMENT,
            "3 servers for 2 partitions",
        ),
        (
            options(0, absent.as_ptr(), 3),
            TW_ERR_ARGUMENT,
            "partition 1 to server 2",
        ),
    ] {
        // SAFETY: an open session; lists have as many entries as the options say, or are refused before they are read.
        let got = unsafe { tw_table_create(session, &raw const options, &raw mut table) };
        fails(got, status, words);
        assert_eq!(table, 0);
    }
    let table = create(session, &options(0, list, 3));
    assert_ne!(create(session, &options(3, list, 3)), 0);
    // SAFETY: the struct has numbers only, which may be zero.
    let mut info: tw_table_info = unsafe { std::mem::zeroed() };
    info.size = size_of::<tw_table_info>();
    // SAFETY: an open session and its table.
    ok(unsafe { tw_table_describe(session, table, &raw mut info) });
    assert_eq!(info.partitions, 3);
    free(session);
}
