//! Calls about the keys of a TW_SPARSE table: deletion, questions, lists.

use std::ffi::c_void;

use super::data::push;
use super::session::tw_session;
use crate::convert;
use crate::raw::{self, Memory};
use crate::session::run;
use crate::types::{tw_scan_cursor, tw_status, tw_table, tw_ticket};
use crate::values;

/// Deletes the rows of `rows` keys of a TW_SPARSE table; keys without a row are left out. The deletion stands
/// between the pushes of this session and is carried out once. On a table at the clock it takes effect with the
/// tick that ends the iteration: pushes of that tick before it, in the order of rank, thread and call, are
/// dropped. Of a deleted key a pull returns initial values, or makes a new row. `ticket` is as of tw_push_rows.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_keys_delete(
    session: *mut tw_session,
    table: tw_table,
    keys: *const u64,
    rows: usize,
    ticket: *mut tw_ticket,
) -> tw_status {
    run("tw_keys_delete", || {
        // SAFETY: the contract of the module.
        let session = unsafe { raw::session(session) }?;
        // SAFETY: the contract of the module.
        let keys = unsafe { raw::keys(keys, rows) }?;
        // SAFETY: the contract of the module.
        unsafe {
            push(session, ticket, |open| {
                let table = *open.tables.get(table)?;
                Ok(table.delete_keys(&mut open.client, keys)?)
            })
        }
    })
}

/// Whether each of `rows` keys of a TW_SPARSE table has a row: `stored[i]` becomes 1 or 0. Creates nothing. Sees
/// what this session has pushed and deleted before. A push that waits for its tick stores its keys.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_keys_exist(
    session: *mut tw_session,
    table: tw_table,
    keys: *const u64,
    rows: usize,
    stored: *mut u8,
) -> tw_status {
    run("tw_keys_exist", || {
        // SAFETY: the contract of the module.
        let session = unsafe { raw::session(session) }?;
        let what = "the array for the answers and the keys";
        let (to, from) = (Memory::array(stored, rows), Memory::array(keys, rows));
        raw::disjoint(to, from, what)?;
        // SAFETY: the contract of the module.
        let keys = unsafe { raw::keys(keys, rows) }?;
        // SAFETY: the contract of the module, and it does not overlap the keys.
        let stored = unsafe { raw::bytes_mut(stored.cast(), rows, "the array for the answers") }?;
        session.with(|open| {
            let table = *open.tables.get(table)?;
            let exists = table.exists(&mut open.client, keys)?;
            for (to, exists) in stored.iter_mut().zip(exists) {
                *to = exists.into();
            }
            Ok(())
        })
    })
}

/// Number of stored keys of a TW_SPARSE table, over all servers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_keys_count(
    session: *mut tw_session,
    table: tw_table,
    count: *mut u64,
) -> tw_status {
    run("tw_keys_count", || {
        // SAFETY: the contract of the module.
        let session = unsafe { raw::session(session) }?;
        // SAFETY: the contract of the module.
        let count = unsafe { raw::out(count, "the place for the count") }?;
        *count = session.with(|open| {
            let table = *open.tables.get(table)?;
            Ok(table.count_keys(&mut open.client)?)
        })?;
        Ok(())
    })
}

/// Lists stored keys of a TW_SPARSE table from `cursor` on, in no order, and moves the cursor: up to `room` keys
/// into `keys`, and their rows into `values` unless it is null; `elements` of type `dtype` have room there, room x
/// cols. `*count` becomes their number: below `room` at the end, and 0 after it. Begin with a cursor of zeros.
/// A key that is stored all the while is listed once. One that is created or deleted meanwhile may be listed or
/// not; one that is deleted and created again may be listed twice. Each row is complete, of one version.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_keys_scan(
    session: *mut tw_session,
    table: tw_table,
    cursor: *mut tw_scan_cursor,
    keys: *mut u64,
    room: usize,
    values: *mut c_void,
    elements: usize,
    dtype: i32,
    count: *mut usize,
) -> tw_status {
    run("tw_keys_scan", || {
        // SAFETY: the contract of the module.
        let session = unsafe { raw::session(session) }?;
        // SAFETY: the contract of the module.
        let count = unsafe { raw::out(count, "the place for the count") }?;
        *count = 0;
        // SAFETY: the contract of the module.
        let cursor = unsafe { raw::out(cursor, "the cursor") }?;
        let dtype = match values.is_null() {
            true => None,
            false => Some(convert::dtype(dtype)?),
        };
        if let Some(dtype) = dtype {
            let rows = Memory::values(values, elements, dtype);
            let what = "the arrays for the keys and for the rows";
            raw::disjoint(rows, Memory::array(keys, room), what)?;
        }
        // SAFETY: the contract of the module.
        let keys = unsafe { raw::u64s_mut(keys, room, "the array for the keys") }?;
        let values = match dtype {
            // SAFETY: the contract of the module, and it does not overlap the keys.
            Some(dtype) => Some(unsafe { raw::values_mut(values, elements, dtype) }?),
            None => None,
        };
        let mut at = convert::scan_cursor(cursor);
        *count = session.with(|open| {
            let table = *open.tables.get(table)?;
            values::scan(table, &mut open.client, &mut at, keys, values)
        })?;
        (cursor.partition, cursor.slot) = (at.partition, at.slot);
        Ok(())
    })
}
