//! Calls for clocks, barriers and flushes.

use std::ffi::c_char;
use std::time::Duration;

use tidewater::{AnyTable, Client, ClientError};

use super::session::tw_session;
use crate::convert;
use crate::error::Failure;
use crate::raw;
use crate::session::run;
use crate::types::{tw_status, tw_table};

/// Ends an iteration in a clock domain (0, unless tables say otherwise). Under TW_BSP and TW_SSP it waits
/// for slower workers first, and until each of this session's pushes is acknowledged. TW_ERR_REJECTED says
/// that a push was refused for which no tw_push_wait has said so: the clock has not moved, and the push can be
/// repaired. After that and after TW_ERR_DEADLINE it can be repeated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_tick(session: *mut tw_session, domain: u32) -> tw_status {
    run("tw_tick", || {
        // SAFETY: the contract of the module.
        let session = unsafe { raw::session(session) }?;
        let domain = convert::domain(domain)?;
        session.with(|open| Ok(open.client.tick_domain(domain)?))
    })
}

/// Iterations that this worker has ended, and those that all have, as every server reports, in domain 0.
/// Either place may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_clock(
    session: *mut tw_session,
    mine: *mut u64,
    everybodys: *mut u64,
) -> tw_status {
    run("tw_clock", || {
        // SAFETY: the contract of the module.
        let session = unsafe { raw::session(session) }?;
        let what = "the place for a clock";
        // SAFETY: the contract of the module.
        let mine = unsafe { raw::optional_out(mine, what) }?;
        // SAFETY: the contract of the module.
        let everybodys = unsafe { raw::optional_out(everybodys, what) }?;
        session.with(|open| {
            if let Some(everybodys) = everybodys {
                *everybodys = open.client.global_clock()?;
            }
            if let Some(mine) = mine {
                *mine = open.client.clock();
            }
            Ok(())
        })
    })
}

/// Sets the synchronisation (tw_sync) of a clock domain for this session, in place of the session's own, with
/// `staleness` for TW_SSP: one table is trained under TW_BSP and another one, in another domain, under TW_ASP. Let
/// all workers set the same before their first tick of the domain. TW_ERR_ARGUMENT for a domain above 63.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_domain_sync(
    session: *mut tw_session,
    domain: u32,
    sync: i32,
    staleness: u32,
) -> tw_status {
    run("tw_domain_sync", || {
        // SAFETY: the contract of the module.
        let session = unsafe { raw::session(session) }?;
        let domain = convert::domain(domain)?;
        let sync = convert::sync(sync, staleness)?;
        session.with(|open| Ok(open.client.set_domain_sync(domain, sync)?))
    })
}

/// Waits like tw_flush, then until all workers have come to the barrier of that name; in a job of open size its
/// members at this clock. 0 s: the session's timeout.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_barrier(
    session: *mut tw_session,
    name: *const c_char,
    timeout_s: f64,
) -> tw_status {
    run("tw_barrier", || {
        // SAFETY: the contract of the module.
        let session = unsafe { raw::session(session) }?;
        // SAFETY: the contract of the module.
        let name = unsafe { raw::text(name, "the barrier's name") }?;
        let timeout = convert::seconds("timeout_s", timeout_s)?;
        session.with(|open| {
            let timeout = timeout.unwrap_or(open.timeout);
            Ok(open.client.barrier(name, timeout)?)
        })
    })
}

/// Waits until a version of `table` that is newer than `version` is complete at all servers. `*newest`, which
/// may be null, becomes the newest that is: a pull that follows reads it or a later one. The version of a table
/// counts the ticks that all workers have completed in its clock domain. For sessions that only read, too; it
/// does not poll. 0 s: the session's timeout. TW_ERR_DEADLINE names the table, the version and the ranks that
/// have not ticked.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_wait_newer(
    session: *mut tw_session,
    table: tw_table,
    version: u64,
    timeout_s: f64,
    newest: *mut u64,
) -> tw_status {
    run("tw_wait_newer", || {
        // SAFETY: the contract of the module.
        unsafe {
            wait_version(
                session,
                table,
                timeout_s,
                newest,
                |table, client, timeout| table.wait_newer(client, version, timeout),
            )
        }
    })
}

/// Waits until version `tick` of `table`, or a newer one, is complete at all servers; else like tw_wait_newer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_wait_until(
    session: *mut tw_session,
    table: tw_table,
    tick: u64,
    timeout_s: f64,
    newest: *mut u64,
) -> tw_status {
    run("tw_wait_until", || {
        // SAFETY: the contract of the module.
        unsafe {
            wait_version(
                session,
                table,
                timeout_s,
                newest,
                |table, client, timeout| table.wait_until(client, tick, timeout),
            )
        }
    })
}

/// Waits until everything that this session pushed is applied. TW_ERR_REJECTED if a push was refused for
/// which no tw_push_wait has said so: the earliest such push, one a call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_flush(session: *mut tw_session) -> tw_status {
    run("tw_flush", || {
        // SAFETY: the contract of the module.
        let session = unsafe { raw::session(session) }?;
        session.with(|open| Ok(open.client.flush()?))
    })
}

/// Waits for a version of `table`, and reports the newest complete one if `newest` is not null.
///
/// # Safety
/// The contract of the module.
unsafe fn wait_version(
    session: *mut tw_session,
    table: tw_table,
    timeout_s: f64,
    newest: *mut u64,
    wait: impl FnOnce(AnyTable, &mut Client, Duration) -> Result<u64, ClientError>,
) -> Result<(), Failure> {
    // SAFETY: the contract of the module.
    let session = unsafe { raw::session(session) }?;
    // SAFETY: the contract of the module.
    let newest = unsafe { raw::optional_out(newest, "the place for the newest version") }?;
    let timeout = convert::seconds("timeout_s", timeout_s)?;
    let found = session.with(|open| {
        let table = *open.tables.get(table)?;
        let timeout = timeout.unwrap_or(open.timeout);
        Ok(wait(table, &mut open.client, timeout)?)
    })?;
    if let Some(newest) = newest {
        *newest = found;
    }
    Ok(())
}
