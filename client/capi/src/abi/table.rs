//! Calls that create, open, query and release tables.

use std::ffi::c_char;

use tidewater::AnyTable;
use tidewater_protocol::table::Shape;

use super::session::tw_session;
use crate::convert;
use crate::error::Failure;
use crate::raw;
use crate::session::run;
use crate::types::{tw_status, tw_table, tw_table_info, tw_table_options};

/// Creates a table, or opens the one of that name if its definition is equal. All workers may call it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_table_create(
    session: *mut tw_session,
    options: *const tw_table_options,
    table: *mut tw_table,
) -> tw_status {
    run("tw_table_create", || {
        // SAFETY: the contract of the module.
        let session = unsafe { raw::session(session) }?;
        // SAFETY: the contract of the module.
        let table = unsafe { raw::out(table, "the place for the table") }?;
        *table = 0;
        // SAFETY: the contract of the module.
        let options = unsafe { raw::options(options, "options") }?;
        // SAFETY: the contract of the module.
        let name = unsafe { raw::text(options.name, "name") }?;
        // SAFETY: the contract of the module.
        let lists = unsafe { raw::partition_lists(&options) }?;
        let spec = convert::table_spec(name, &options, lists)?;
        *table = session.with(|open| {
            let made = AnyTable::create(&mut open.client, &spec)?;
            open.tables.add(made)
        })?;
        Ok(())
    })
}

/// Opens a table that exists; `dtype` says what the caller takes it to hold.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_table_open(
    session: *mut tw_session,
    name: *const c_char,
    dtype: i32,
    table: *mut tw_table,
) -> tw_status {
    run("tw_table_open", || {
        // SAFETY: the contract of the module.
        let session = unsafe { raw::session(session) }?;
        // SAFETY: the contract of the module.
        let table = unsafe { raw::out(table, "the place for the table") }?;
        *table = 0;
        // SAFETY: the contract of the module.
        let name = unsafe { raw::text(name, "name") }?;
        let dtype = convert::dtype(dtype)?;
        *table = session.with(|open| {
            let opened = AnyTable::open(&mut open.client, name, dtype)?;
            open.tables.add(opened)
        })?;
        Ok(())
    })
}

/// What a table is. Set `info->size` before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_table_describe(
    session: *mut tw_session,
    table: tw_table,
    info: *mut tw_table_info,
) -> tw_status {
    run("tw_table_describe", || {
        // SAFETY: the contract of the module.
        let session = unsafe { raw::session(session) }?;
        let told = session.with(|open| {
            let table = *open.tables.get(table)?;
            let spec = table.spec(&open.client).ok_or_else(Failure::panicked)?;
            Ok(tw_table_info {
                size: size_of::<tw_table_info>(),
                rows: match spec.shape {
                    Shape::Dense { rows, .. } => rows,
                    Shape::Sparse { .. } => 0,
                },
                cols: u32::try_from(spec.dim()).unwrap_or(u32::MAX),
                dtype: spec.dtype.code().into(),
                kind: convert::kind_code(&spec.shape),
                effect: convert::effect_code(spec.effect),
                number: table.id().0,
                domain: spec.domain.0.into(),
                partitions: spec.partitions,
                reserved: 0,
            })
        })?;
        // SAFETY: the contract of the module.
        unsafe { raw::answer(info, "info", &told) }
    })
}

/// Releases a table for everybody: pulls and pushes of it fail from now on. `*table` becomes zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_table_release(
    session: *mut tw_session,
    table: *mut tw_table,
) -> tw_status {
    run("tw_table_release", || {
        // SAFETY: the contract of the module.
        let session = unsafe { raw::session(session) }?;
        // SAFETY: the contract of the module.
        let handle = unsafe { raw::out(table, "the place of the table") }?;
        session.with(|open| {
            let table = *open.tables.get(*handle)?;
            table.release(&mut open.client)?;
            open.tables.remove(*handle).map(drop)
        })?;
        *handle = 0;
        Ok(())
    })
}
