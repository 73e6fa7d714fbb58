//! Calls to the coordinator that are under way while the program goes on.

use std::ffi::c_char;

use tidewater::AnyTable;
use tidewater_protocol::limits::FILE_CALL_TIMEOUT;

use super::session::tw_session;
use crate::convert;
use crate::error::Failure;
use crate::open::{AnyCall, Open};
use crate::raw;
use crate::session::run;
use crate::types::{tw_call, tw_status, tw_table, tw_table_options};

/// Begins a call of a session by `start`, and keeps it under a handle.
///
/// # Safety
/// The contract of the module.
unsafe fn begin(
    session: *mut tw_session,
    call: *mut tw_call,
    start: impl FnOnce(&mut Open) -> Result<AnyCall, Failure> + Send,
) -> Result<(), Failure> {
    // SAFETY: the contract of the module.
    let session = unsafe { raw::session(session) }?;
    // SAFETY: the contract of the module.
    let call = unsafe { raw::out(call, "the place for the call") }?;
    *call = 0;
    *call = session.with(|open| {
        let started = start(open)?;
        open.calls.add(started)
    })?;
    Ok(())
}

/// Begins to create a table; tw_table_create_finish waits for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_table_create_start(
    session: *mut tw_session,
    options: *const tw_table_options,
    call: *mut tw_call,
) -> tw_status {
    run("tw_table_create_start", || {
        // SAFETY: the contract of the module.
        let options = unsafe { raw::options(options, "options") }?;
        // SAFETY: the contract of the module.
        let name = unsafe { raw::text(options.name, "name") }?;
        // SAFETY: the contract of the module.
        let lists = unsafe { raw::partition_lists(&options) }?;
        let spec = convert::table_spec(name, &options, lists)?;
        let start = |open: &mut Open| {
            let call = open.client.start_create_table(&spec)?;
            let dtype = Some(spec.dtype);
            Ok(AnyCall { call, dtype })
        };
        // SAFETY: the contract of the module.
        unsafe { begin(session, call, start) }
    })
}

/// Waits like tw_flush, then arrives at a barrier; tw_barrier_finish waits for the other workers. 0 s: the
/// session's timeout.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_barrier_start(
    session: *mut tw_session,
    name: *const c_char,
    timeout_s: f64,
    call: *mut tw_call,
) -> tw_status {
    run("tw_barrier_start", || {
        // SAFETY: the contract of the module.
        let name = unsafe { raw::text(name, "the barrier's name") }?;
        let timeout = convert::seconds("timeout_s", timeout_s)?;
        let start = |open: &mut Open| {
            let timeout = timeout.unwrap_or(open.timeout);
            let call = open.client.start_barrier(name, timeout)?;
            Ok(AnyCall { call, dtype: None })
        };
        // SAFETY: the contract of the module.
        unsafe { begin(session, call, start) }
    })
}

/// Begins a save; tw_save_finish waits for it. Pulls and pushes may follow at once. Under TW_BSP and TW_SSP
/// tw_tick and tw_finish fail until tw_save_finish or tw_call_test has seen the end of the save. `timeout_s` 0:
/// half an hour.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_save_start(
    session: *mut tw_session,
    directory: *const c_char,
    timeout_s: f64,
    call: *mut tw_call,
) -> tw_status {
    run("tw_save_start", || {
        // SAFETY: the contract of the module.
        let directory = unsafe { raw::text(directory, "the directory") }?;
        let timeout = convert::seconds("timeout_s", timeout_s)?;
        let start = |open: &mut Open| {
            let timeout = timeout.unwrap_or(FILE_CALL_TIMEOUT);
            let call = open.client.start_save(directory, timeout)?;
            Ok(AnyCall { call, dtype: None })
        };
        // SAFETY: the contract of the module.
        unsafe { begin(session, call, start) }
    })
}

/// Begins a load; tw_load_finish waits for it. `timeout_s` 0: half an hour.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_load_start(
    session: *mut tw_session,
    directory: *const c_char,
    timeout_s: f64,
    call: *mut tw_call,
) -> tw_status {
    run("tw_load_start", || {
        // SAFETY: the contract of the module.
        let directory = unsafe { raw::text(directory, "the directory") }?;
        let timeout = convert::seconds("timeout_s", timeout_s)?;
        let start = |open: &mut Open| {
            let timeout = timeout.unwrap_or(FILE_CALL_TIMEOUT);
            let call = open.client.start_load(directory, timeout)?;
            Ok(AnyCall { call, dtype: None })
        };
        // SAFETY: the contract of the module.
        unsafe { begin(session, call, start) }
    })
}

/// Sets `*done` to 1 if the call is done, so that its finish returns at once, else to 0. Waits up to 1 ms.
/// After a failure only the finish of the call is possible, which fails too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_call_test(
    session: *mut tw_session,
    call: tw_call,
    done: *mut i32,
) -> tw_status {
    run("tw_call_test", || {
        // SAFETY: the contract of the module.
        let session = unsafe { raw::session(session) }?;
        // SAFETY: the contract of the module.
        let done = unsafe { raw::out(done, "the place for done") }?;
        *done = 0;
        let is_done = session.with(|open| {
            let pending = open.calls.get_mut(call)?;
            Ok(open.client.test_call(&mut pending.call)?)
        })?;
        *done = i32::from(is_done);
        Ok(())
    })
}

/// Waits for the table of tw_table_create_start. The call is no more, also after a failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_table_create_finish(
    session: *mut tw_session,
    call: tw_call,
    table: *mut tw_table,
) -> tw_status {
    run("tw_table_create_finish", || {
        // SAFETY: the contract of the module.
        let session = unsafe { raw::session(session) }?;
        // SAFETY: the contract of the module.
        let table = unsafe { raw::out(table, "the place for the table") }?;
        *table = 0;
        *table = session.with(|open| {
            let Some(dtype) = open.calls.get(call)?.dtype else {
                return Err(Failure::argument("the call creates no table"));
            };
            let pending = open.calls.remove(call)?;
            let made = AnyTable::finish_create(&mut open.client, pending.call, dtype)?;
            open.tables.add_once(made)
        })?;
        Ok(())
    })
}

/// Waits for the other workers at the barrier of tw_barrier_start. The call is no more, also after a failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_barrier_finish(session: *mut tw_session, call: tw_call) -> tw_status {
    run("tw_barrier_finish", || {
        // SAFETY: the contract of the module.
        let session = unsafe { raw::session(session) }?;
        session.with(|open| {
            let pending = open.calls.remove(call)?;
            Ok(open.client.finish_barrier(pending.call)?)
        })
    })
}

/// Waits for the save of tw_save_start. `rows` and `bytes`, which may be null, get what was written. The call
/// is no more, also after a failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_save_finish(
    session: *mut tw_session,
    call: tw_call,
    rows: *mut u64,
    bytes: *mut u64,
) -> tw_status {
    run("tw_save_finish", || {
        // SAFETY: the contract of the module.
        let session = unsafe { raw::session(session) }?;
        let saved = session.with(|open| {
            let pending = open.calls.remove(call)?;
            Ok(open.client.finish_save(pending.call)?)
        })?;
        // SAFETY: the contract of the module.
        unsafe { raw::answer_value(rows, "the place for the rows", saved.rows) }?;
        // SAFETY: the contract of the module.
        unsafe { raw::answer_value(bytes, "the place for the bytes", saved.bytes) }
    })
}

/// Waits for the load of tw_load_start. `tables`, which may be null, gets their number. The call is no more,
/// also after a failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_load_finish(
    session: *mut tw_session,
    call: tw_call,
    tables: *mut u64,
) -> tw_status {
    run("tw_load_finish", || {
        // SAFETY: the contract of the module.
        let session = unsafe { raw::session(session) }?;
        let loaded = session.with(|open| {
            let pending = open.calls.remove(call)?;
            Ok(open.client.finish_load(pending.call)?)
        })?;
        let count = loaded.tables.len() as u64;
        // SAFETY: the contract of the module.
        unsafe { raw::answer_value(tables, "the place for the number of tables", count) }
    })
}

/// Gives a call up; `*call` becomes zero. The call itself goes on, and its result is lost: a table that it
/// creates can be opened by its name. After tw_save_start tw_tick and tw_finish fail until the save is over.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_call_drop(session: *mut tw_session, call: *mut tw_call) -> tw_status {
    run("tw_call_drop", || {
        // SAFETY: the contract of the module.
        let session = unsafe { raw::session(session) }?;
        // SAFETY: the contract of the module.
        let handle = unsafe { raw::out(call, "the place of the call") }?;
        session.with(|open| open.calls.remove(*handle).map(drop))?;
        *handle = 0;
        Ok(())
    })
}
