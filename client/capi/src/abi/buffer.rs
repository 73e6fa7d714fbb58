//! Push buffers: updates that are added up by key and pushed together.

use std::ffi::c_void;

use super::data::push;
use super::session::tw_session;
use crate::convert;
use crate::error::Failure;
use crate::raw;
use crate::session::run;
use crate::types::{tw_buffer, tw_buffer_options, tw_status, tw_table, tw_ticket};
use crate::values;

/// Makes a buffer for updates of a table's rows, TW_SPARSE or TW_ROWS. `options` may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_buffer_create(
    session: *mut tw_session,
    table: tw_table,
    options: *const tw_buffer_options,
    buffer: *mut tw_buffer,
) -> tw_status {
    run("tw_buffer_create", || {
        // SAFETY: the contract of the module.
        let session = unsafe { raw::session(session) }?;
        // SAFETY: the contract of the module.
        let buffer = unsafe { raw::out(buffer, "the place for the buffer") }?;
        *buffer = 0;
        // SAFETY: the contract of the module.
        let options = unsafe { raw::options_or_default(options) }?;
        *buffer = session.with(|open| {
            let table = *open.tables.get(table)?;
            let spec = table.spec(&open.client).ok_or_else(Failure::panicked)?;
            let made = convert::buffer(&options, table, &spec.shape)?;
            open.buffers.add(made)
        })?;
        Ok(())
    })
}

/// Adds updates of `rows` rows to a buffer: `elements` values of type `dtype`, rows x cols. Values of one key add
/// up. Pushes the buffer when it is full; the refusal of an earlier push is then TW_ERR_REJECTED, and the updates
/// are in the buffer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_buffer_add(
    session: *mut tw_session,
    buffer: tw_buffer,
    keys: *const u64,
    rows: usize,
    values: *const c_void,
    elements: usize,
    dtype: i32,
) -> tw_status {
    run("tw_buffer_add", || {
        // SAFETY: the contract of the module.
        let session = unsafe { raw::session(session) }?;
        let dtype = convert::dtype(dtype)?;
        // SAFETY: the contract of the module.
        let keys = unsafe { raw::keys(keys, rows) }?;
        // SAFETY: the contract of the module.
        let values = unsafe { raw::values(values, elements, dtype) }?;
        session.with(|open| {
            let buffer = open.buffers.get_mut(buffer)?;
            values::add(buffer, &mut open.client, keys, values)
        })
    })
}

/// Pushes the rows of a buffer that reach its threshold; with `all` not 0, all rows. `*ticket` is of all pushes since
/// the last flush, as of tw_push_rows. After a failure the rows that were not passed on are still in the buffer: a
/// repeated flush pushes each row once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_buffer_flush(
    session: *mut tw_session,
    buffer: tw_buffer,
    all: i32,
    ticket: *mut tw_ticket,
) -> tw_status {
    run("tw_buffer_flush", || {
        // SAFETY: the contract of the module.
        let session = unsafe { raw::session(session) }?;
        // SAFETY: the contract of the module.
        unsafe {
            push(session, ticket, |open| {
                let buffer = open.buffers.get_mut(buffer)?;
                Ok(match all {
                    0 => buffer.flush(&mut open.client),
                    _ => buffer.flush_all(&mut open.client),
                }?)
            })
        }
    })
}

/// Distinct rows in a buffer, and bytes of their keys and values. Both places may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_buffer_describe(
    session: *mut tw_session,
    buffer: tw_buffer,
    rows: *mut usize,
    bytes: *mut usize,
) -> tw_status {
    run("tw_buffer_describe", || {
        // SAFETY: the contract of the module.
        let session = unsafe { raw::session(session) }?;
        // SAFETY: the contract of the module.
        let rows = unsafe { raw::optional_out(rows, "the place for the rows") }?;
        // SAFETY: the contract of the module.
        let bytes = unsafe { raw::optional_out(bytes, "the place for the bytes") }?;
        let (has_rows, has_bytes) = session.with(|open| {
            let buffer = open.buffers.get(buffer)?;
            Ok((buffer.rows(), buffer.bytes()))
        })?;
        if let Some(rows) = rows {
            *rows = has_rows;
        }
        if let Some(bytes) = bytes {
            *bytes = has_bytes;
        }
        Ok(())
    })
}

/// Drops the rows of a buffer on purpose.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_buffer_clear(session: *mut tw_session, buffer: tw_buffer) -> tw_status {
    run("tw_buffer_clear", || {
        // SAFETY: the contract of the module.
        let session = unsafe { raw::session(session) }?;
        session.with(|open| {
            open.buffers.get_mut(buffer)?.clear();
            Ok(())
        })
    })
}

/// Frees a buffer; `*buffer` becomes zero. TW_ERR_ARGUMENT while it has rows: flush or clear it first. Zero is
/// allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_buffer_free(
    session: *mut tw_session,
    buffer: *mut tw_buffer,
) -> tw_status {
    run("tw_buffer_free", || {
        // SAFETY: the contract of the module.
        let session = unsafe { raw::session(session) }?;
        // SAFETY: the contract of the module.
        let handle = unsafe { raw::out(buffer, "the place of the buffer") }?;
        if *handle == 0 {
            return Ok(());
        }
        session.with(|open| {
            let rows = open.buffers.get(*handle)?.rows();
            if rows > 0 {
                return Err(Failure::argument(format_args!(
                    "the buffer has {rows} rows that no flush has pushed; call tw_buffer_flush, or tw_buffer_clear \
                     to drop them"
                )));
            }
            open.buffers.remove(*handle).map(drop)
        })?;
        *handle = 0;
        Ok(())
    })
}
