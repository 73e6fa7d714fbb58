// long: one function for each call that moves elements.

//! Calls that pull and push.

use std::ffi::c_void;
use std::time::Duration;

use tidewater::{AnyTable, Client, ClientError, PullOptions, Pulled, PushOptions, Ticket};
use tidewater_runtime::clock::Deadline;

use super::session::tw_session;
use crate::convert;
use crate::error::Failure;
use crate::open::Open;
use crate::raw::{self, Memory};
use crate::session::run;
use crate::types::{
    tw_group_range, tw_pull, tw_pull_options, tw_push_options, tw_status, tw_table,
    tw_table_options, tw_ticket,
};
use crate::values::{self, ValuesMut};

/// Pulls `rows` rows by key (TW_SPARSE) or index (TW_ROWS) into `out`, row after row in the order of `keys`,
/// which may repeat. `elements` of type `dtype` have room there: rows x cols. `options` may be null. On
/// failure `out` holds anything.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_pull_rows(
    session: *mut tw_session,
    table: tw_table,
    keys: *const u64,
    rows: usize,
    out: *mut c_void,
    elements: usize,
    dtype: i32,
    options: *const tw_pull_options,
) -> tw_status {
    run("tw_pull_rows", || {
        // SAFETY: the contract of the module.
        let session = unsafe { raw::session(session) }?;
        // SAFETY: the contract of the module.
        let options = unsafe { raw::options_or_default(options) }?;
        let dtype = convert::dtype(dtype)?;
        let (to, from) = (
            Memory::values(out, elements, dtype),
            Memory::array(keys, rows),
        );
        raw::disjoint(to, from, "the array to pull into and the keys")?;
        // SAFETY: the contract of the module.
        let keys = unsafe { raw::keys(keys, rows) }?;
        // SAFETY: the contract of the module, and it does not overlap the keys.
        let out = unsafe { raw::values_mut(out, elements, dtype) }?;
        session.with(|open| {
            let table = *open.tables.get(table)?;
            let pull = open.pull_options(&options)?;
            let pulled = values::pull_rows(table, &mut open.client, keys, out, pull)?;
            // SAFETY: the contract of the module.
            unsafe { report(&options, pulled) }
        })
    })
}

/// Pulls elements `first ..` of a TW_RANGE table, row after row, into `out`, which has room for `elements`
/// of type `dtype`. `options` may be null. On failure `out` holds anything.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_pull_range(
    session: *mut tw_session,
    table: tw_table,
    first: u64,
    out: *mut c_void,
    elements: usize,
    dtype: i32,
    options: *const tw_pull_options,
) -> tw_status {
    run("tw_pull_range", || {
        // SAFETY: the contract of the module.
        unsafe {
            pull_elements(
                session,
                table,
                out,
                elements,
                dtype,
                options,
                |table, client, out, pull| values::pull_range(table, client, first, out, pull),
            )
        }
    })
}

/// Pulls ranges of several tables as of one version: the newest that all servers still have of all of them. The
/// tables have `snapshot` and one clock domain. `options` may be null; its mode is not used. On failure the
/// arrays hold anything.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_pull_group(
    session: *mut tw_session,
    ranges: *const tw_group_range,
    count: usize,
    options: *const tw_pull_options,
) -> tw_status {
    run("tw_pull_group", || {
        // SAFETY: the contract of the module.
        let session = unsafe { raw::session(session) }?;
        // SAFETY: the contract of the module.
        let options = unsafe { raw::options_or_default(options) }?;
        // SAFETY: the contract of the module.
        let ranges = unsafe { raw::group(ranges, count) }?;
        let memory = |range: &tw_group_range| {
            let dtype = convert::dtype(range.dtype)?;
            Ok::<_, Failure>(Memory::values(range.out, range.elements, dtype))
        };
        for (n, range) in ranges.iter().enumerate() {
            if range.reserved != 0 {
                return Err(Failure::argument("reserved is not zero"));
            }
            for other in &ranges[..n] {
                raw::disjoint(memory(range)?, memory(other)?, "two arrays to pull into")?;
            }
        }
        session.with(|open| {
            let pull = open.pull_options(&options)?;
            let mut group = Vec::with_capacity(ranges.len());
            for range in ranges {
                let table = *open.tables.get(range.table)?;
                let dtype = convert::dtype(range.dtype)?;
                // SAFETY: the contract of the module, and it overlaps no other range.
                let out = unsafe { raw::values_mut(range.out, range.elements, dtype) }?;
                group.push(values::group_range(table, range.first, out)?);
            }
            let pulled = open.client.pull_group(&mut group, pull)?;
            // SAFETY: the contract of the module.
            unsafe { report(&options, pulled) }
        })
    })
}

/// Pins a version of a TW_RANGE table with `snapshot`: that at `version`, or the newest if it is null.
/// `*pinned`, which may be null, becomes its number. tw_pull_pinned reads it until tw_unpin, or the end of the
/// session, however slow this process is; no tick waits for it. TW_ERR_ARGUMENT names the versions that are
/// kept; TW_ERR_REJECTED says that as many are pinned as can be.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_pin(
    session: *mut tw_session,
    table: tw_table,
    version: *const u64,
    pinned: *mut u64,
) -> tw_status {
    run("tw_pin", || {
        // SAFETY: the contract of the module.
        let session = unsafe { raw::session(session) }?;
        let version = match version.is_null() {
            true => None,
            // SAFETY: the contract of the module.
            false => Some(unsafe { raw::u64s(version, 1, "the version") }?[0]),
        };
        // SAFETY: the contract of the module.
        let pinned = unsafe { raw::optional_out(pinned, "the place for the pinned version") }?;
        let found = session.with(|open| {
            let table = *open.tables.get(table)?;
            Ok(table.pin(&mut open.client, version)?)
        })?;
        if let Some(pinned) = pinned {
            *pinned = found;
        }
        Ok(())
    })
}

/// Ends a pin of this session. A version that was pinned twice is unpinned twice.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_unpin(
    session: *mut tw_session,
    table: tw_table,
    version: u64,
) -> tw_status {
    run("tw_unpin", || {
        // SAFETY: the contract of the module.
        let session = unsafe { raw::session(session) }?;
        session.with(|open| {
            let table = *open.tables.get(table)?;
            Ok(table.unpin(&mut open.client, version)?)
        })
    })
}

/// Pulls elements `first ..` of a version that this session has pinned; else like tw_pull_range. The mode of
/// `options` is not used.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_pull_pinned(
    session: *mut tw_session,
    table: tw_table,
    version: u64,
    first: u64,
    out: *mut c_void,
    elements: usize,
    dtype: i32,
    options: *const tw_pull_options,
) -> tw_status {
    run("tw_pull_pinned", || {
        // SAFETY: the contract of the module.
        unsafe {
            pull_elements(
                session,
                table,
                out,
                elements,
                dtype,
                options,
                |table, client, out, pull| {
                    values::pull_pinned(table, client, version, first, out, pull)
                },
            )
        }
    })
}

/// Starts a pull of rows, which tw_pull_wait ends; up to 256 may be under way. The keys are copied.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_pull_start(
    session: *mut tw_session,
    table: tw_table,
    keys: *const u64,
    rows: usize,
    options: *const tw_pull_options,
    pull: *mut tw_pull,
) -> tw_status {
    run("tw_pull_start", || {
        // SAFETY: the contract of the module.
        let session = unsafe { raw::session(session) }?;
        // SAFETY: the contract of the module.
        let pull = unsafe { raw::out(pull, "the place for the pull") }?;
        *pull = 0;
        // SAFETY: the contract of the module.
        let options = unsafe { raw::options_or_default(options) }?;
        // SAFETY: the contract of the module.
        let keys = unsafe { raw::keys(keys, rows) }?;
        *pull = session.with(|open| {
            let table = *open.tables.get(table)?;
            let options = open.pull_options(&options)?;
            let started = values::start_pull(table, &mut open.client, keys, options)?;
            open.pulls.add(started)
        })?;
        Ok(())
    })
}

/// Starts a pull of `elements` elements of TW_RANGE from element `first` on, which tw_pull_wait ends; otherwise like
/// tw_pull_start. Up to 16 MiB travel meanwhile; what is longer, and versions of tables with snapshots, are read by
/// tw_pull_wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_pull_range_start(
    session: *mut tw_session,
    table: tw_table,
    first: u64,
    elements: usize,
    options: *const tw_pull_options,
    pull: *mut tw_pull,
) -> tw_status {
    run("tw_pull_range_start", || {
        // SAFETY: the contract of the module.
        let session = unsafe { raw::session(session) }?;
        // SAFETY: the contract of the module.
        let pull = unsafe { raw::out(pull, "the place for the pull") }?;
        *pull = 0;
        // SAFETY: the contract of the module.
        let options = unsafe { raw::options_or_default(options) }?;
        *pull = session.with(|open| {
            let table = *open.tables.get(table)?;
            let options = open.pull_options(&options)?;
            let started =
                values::start_pull_range(table, &mut open.client, first, elements, options)?;
            open.pulls.add(started)
        })?;
        Ok(())
    })
}

/// Whether tw_pull_wait would return without waiting for reads: `*ready` becomes 1 or 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_pull_test(
    session: *mut tw_session,
    pull: tw_pull,
    ready: *mut i32,
) -> tw_status {
    run("tw_pull_test", || {
        // SAFETY: the contract of the module.
        let session = unsafe { raw::session(session) }?;
        // SAFETY: the contract of the module.
        let ready = unsafe { raw::out(ready, "ready") }?;
        *ready = session.with(|open| {
            let ticket = open.pulls.get(pull)?.ticket;
            Ok(open.client.try_pull(ticket)?.into())
        })?;
        Ok(())
    })
}

/// Waits for a pull and writes its rows to `out`, in the order of its keys, or its range; `*pull` becomes zero. After
/// TW_ERR_DEADLINE and TW_ERR_ARGUMENT it is still under way.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_pull_wait(
    session: *mut tw_session,
    pull: *mut tw_pull,
    out: *mut c_void,
    elements: usize,
    dtype: i32,
) -> tw_status {
    run("tw_pull_wait", || {
        // SAFETY: the contract of the module.
        let session = unsafe { raw::session(session) }?;
        // SAFETY: the contract of the module.
        let handle = *unsafe { raw::out(pull, "the place of the pull") }?;
        let dtype = convert::dtype(dtype)?;
        // SAFETY: the contract of the module.
        let out = unsafe { raw::values_mut(out, elements, dtype) }?;
        let done = session.with(|open| {
            let pull = *open.pulls.get(handle)?;
            let done = pull.finish(&mut open.client, out);
            let goes_on = matches!(&done, Err(Failure { status, .. })
                if matches!(status, tw_status::TW_ERR_DEADLINE | tw_status::TW_ERR_ARGUMENT));
            if !goes_on {
                open.pulls.remove(handle)?;
            }
            Ok((done, goes_on))
        });
        let (done, goes_on) = done?;
        if !goes_on {
            // SAFETY: the contract of the module.
            *unsafe { raw::out(pull, "the place of the pull") }? = 0;
        }
        done
    })
}

/// Gives a pull up; `*pull` becomes zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_pull_cancel(session: *mut tw_session, pull: *mut tw_pull) -> tw_status {
    run("tw_pull_cancel", || {
        // SAFETY: the contract of the module.
        let session = unsafe { raw::session(session) }?;
        // SAFETY: the contract of the module.
        let pull = unsafe { raw::out(pull, "the place of the pull") }?;
        session.with(|open| {
            let cancelled = open.pulls.remove(*pull)?;
            Ok(open.client.cancel_pull(cancelled.ticket)?)
        })?;
        *pull = 0;
        Ok(())
    })
}

/// Pushes `rows` rows: `elements` values of type `dtype`, rows x cols. Equal keys are combined: sums and
/// gradients are added, of assigns the last wins. Returns when the push is on its way, and the
/// arrays are the caller's again. `*ticket` is for tw_push_wait; with null, tw_flush, tw_tick,
/// tw_barrier and tw_finish say that the push was refused.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_push_rows(
    session: *mut tw_session,
    table: tw_table,
    keys: *const u64,
    rows: usize,
    values: *const c_void,
    elements: usize,
    dtype: i32,
    op: i32,
    ticket: *mut tw_ticket,
) -> tw_status {
    run("tw_push_rows", || {
        // SAFETY: the contract of the module.
        let session = unsafe { raw::session(session) }?;
        let (dtype, op) = (convert::dtype(dtype)?, convert::op(op)?);
        // SAFETY: the contract of the module.
        let keys = unsafe { raw::keys(keys, rows) }?;
        // SAFETY: the contract of the module.
        let values = unsafe { raw::values(values, elements, dtype) }?;
        // SAFETY: the contract of the module.
        unsafe {
            push(session, ticket, |open| {
                let table = *open.tables.get(table)?;
                values::push_rows(
                    table,
                    &mut open.client,
                    keys,
                    values,
                    op,
                    PushOptions::default(),
                )
            })
        }
    })
}

/// tw_push_rows with a weight, or an encoding of the values. `options` may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_push_rows_with(
    session: *mut tw_session,
    table: tw_table,
    keys: *const u64,
    rows: usize,
    values: *const c_void,
    elements: usize,
    dtype: i32,
    op: i32,
    options: *const tw_push_options,
    ticket: *mut tw_ticket,
) -> tw_status {
    run("tw_push_rows_with", || {
        // SAFETY: the contract of the module.
        let session = unsafe { raw::session(session) }?;
        let (dtype, op) = (convert::dtype(dtype)?, convert::op(op)?);
        // SAFETY: the contract of the module.
        let options = convert::push_options(&unsafe { raw::options_or_default(options) }?)?;
        // SAFETY: the contract of the module.
        let keys = unsafe { raw::keys(keys, rows) }?;
        // SAFETY: the contract of the module.
        let values = unsafe { raw::values(values, elements, dtype) }?;
        // SAFETY: the contract of the module.
        unsafe {
            push(session, ticket, |open| {
                let table = *open.tables.get(table)?;
                values::push_rows(table, &mut open.client, keys, values, op, options)
            })
        }
    })
}

/// Pushes elements `first ..` of a TW_RANGE table: `elements` values of type `dtype`. As tw_push_rows.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_push_range(
    session: *mut tw_session,
    table: tw_table,
    first: u64,
    values: *const c_void,
    elements: usize,
    dtype: i32,
    op: i32,
    ticket: *mut tw_ticket,
) -> tw_status {
    run("tw_push_range", || {
        // SAFETY: the contract of the module.
        let session = unsafe { raw::session(session) }?;
        let (dtype, op) = (convert::dtype(dtype)?, convert::op(op)?);
        // SAFETY: the contract of the module.
        let values = unsafe { raw::values(values, elements, dtype) }?;
        // SAFETY: the contract of the module.
        unsafe {
            push(session, ticket, |open| {
                let table = *open.tables.get(table)?;
                values::push_range(
                    table,
                    &mut open.client,
                    first,
                    values,
                    op,
                    PushOptions::default(),
                )
            })
        }
    })
}

/// tw_push_range with a weight, or an encoding of the values. `options` may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_push_range_with(
    session: *mut tw_session,
    table: tw_table,
    first: u64,
    values: *const c_void,
    elements: usize,
    dtype: i32,
    op: i32,
    options: *const tw_push_options,
    ticket: *mut tw_ticket,
) -> tw_status {
    run("tw_push_range_with", || {
        // SAFETY: the contract of the module.
        let session = unsafe { raw::session(session) }?;
        let (dtype, op) = (convert::dtype(dtype)?, convert::op(op)?);
        // SAFETY: the contract of the module.
        let options = convert::push_options(&unsafe { raw::options_or_default(options) }?)?;
        // SAFETY: the contract of the module.
        let values = unsafe { raw::values(values, elements, dtype) }?;
        // SAFETY: the contract of the module.
        unsafe {
            push(session, ticket, |open| {
                let table = *open.tables.get(table)?;
                values::push_range(table, &mut open.client, first, values, op, options)
            })
        }
    })
}

/// Sets the numbers of a table's rule: `optimizer`, `hyper` and, of TW_ADAMW, `weight_decay` of `options`; its
/// other fields are not read, but for `size`. The rule stays the same one. The change stands between the
/// pushes of this session. On a table at the clock it takes effect with the tick that ends the iteration, on
/// every server. `ticket` is as of tw_push_rows.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_table_set_optimizer(
    session: *mut tw_session,
    table: tw_table,
    options: *const tw_table_options,
    ticket: *mut tw_ticket,
) -> tw_status {
    run("tw_table_set_optimizer", || {
        // SAFETY: the contract of the module.
        let session = unsafe { raw::session(session) }?;
        // SAFETY: the contract of the module.
        let options = unsafe { raw::options(options, "options") }?;
        // SAFETY: the contract of the module.
        unsafe {
            push(session, ticket, |open| {
                let table = *open.tables.get(table)?;
                let rule = convert::optimizer(&options, table.dtype())?;
                Ok(table.set_optimizer(&mut open.client, rule)?)
            })
        }
    })
}

/// Whether a push is applied: `*applied` becomes 1 or 0. When it is, or was refused, `*ticket` becomes zero.
/// A ticket of zero is applied.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_push_test(
    session: *mut tw_session,
    ticket: *mut tw_ticket,
    applied: *mut i32,
) -> tw_status {
    run("tw_push_test", || {
        // SAFETY: the contract of the module.
        let applied = unsafe { raw::out(applied, "applied") }?;
        *applied = 0;
        // SAFETY: the contract of the module.
        let done = unsafe {
            settle(session, ticket, |client, _, pushed| {
                client.try_applied(pushed)
            })
        }?;
        *applied = done.into();
        Ok(())
    })
}

/// Waits until a push is applied: pulls that start afterwards see it (of tables at the clock, after the
/// tick). 0 s: the session's timeout. `*ticket` becomes zero, but after TW_ERR_DEADLINE. A ticket of zero
/// is applied.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_push_wait(
    session: *mut tw_session,
    ticket: *mut tw_ticket,
    timeout_s: f64,
) -> tw_status {
    run("tw_push_wait", || {
        let timeout = convert::seconds("timeout_s", timeout_s)?;
        // SAFETY: the contract of the module.
        unsafe {
            settle(session, ticket, |client, usual, pushed| {
                let deadline = Deadline::after(timeout.unwrap_or(usual));
                client.wait_applied_until(pushed, deadline)?;
                Ok(true)
            })
        }
        .map(drop)
    })
}

/// Forgets a ticket; the push goes on. `*ticket` becomes zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_push_forget(
    session: *mut tw_session,
    ticket: *mut tw_ticket,
) -> tw_status {
    run("tw_push_forget", || {
        // SAFETY: the contract of the module.
        unsafe { settle(session, ticket, |_, _, _| Ok(true)) }.map(drop)
    })
}

impl Open {
    fn pull_options(&self, options: &tw_pull_options) -> Result<PullOptions, Failure> {
        convert::pull_options(options, self.timeout)
    }
}

/// Writes the versions of a pull to the place that its options name, if any.
///
/// # Safety
/// The contract of the module.
unsafe fn report(options: &tw_pull_options, pulled: Pulled) -> Result<(), Failure> {
    if options.pulled.is_null() {
        return Ok(());
    }
    // SAFETY: the contract of the module.
    unsafe { raw::answer(options.pulled, "options.pulled", &convert::pulled(pulled)) }
}

/// Pulls elements into an array of a type and a length.
///
/// # Safety
/// The contract of the module.
unsafe fn pull_elements(
    session: *mut tw_session,
    table: tw_table,
    out: *mut c_void,
    elements: usize,
    dtype: i32,
    options: *const tw_pull_options,
    pull: impl FnOnce(AnyTable, &mut Client, ValuesMut<'_>, PullOptions) -> Result<Pulled, Failure>,
) -> Result<(), Failure> {
    // SAFETY: the contract of the module.
    let session = unsafe { raw::session(session) }?;
    // SAFETY: the contract of the module.
    let options = unsafe { raw::options_or_default(options) }?;
    let dtype = convert::dtype(dtype)?;
    // SAFETY: the contract of the module.
    let out = unsafe { raw::values_mut(out, elements, dtype) }?;
    session.with(|open| {
        let table = *open.tables.get(table)?;
        let how = open.pull_options(&options)?;
        let found = pull(table, &mut open.client, out, how)?;
        // SAFETY: the contract of the module.
        unsafe { report(&options, found) }
    })
}

/// Pushes, and keeps the ticket if the caller gave a place for its handle.
///
/// # Safety
/// The contract of the module.
pub(super) unsafe fn push(
    session: &tw_session,
    ticket: *mut tw_ticket,
    body: impl FnOnce(&mut Open) -> Result<Ticket, Failure>,
) -> Result<(), Failure> {
    if ticket.is_null() {
        return session.with(|open| body(open).map(drop));
    }
    // SAFETY: the contract of the module.
    let ticket = unsafe { raw::out(ticket, "the place for the ticket") }?;
    *ticket = 0;
    *ticket = session.with(|open| {
        // The handle is made first: a push without a place for its ticket would be lost to the caller.
        let handle = open.pushes.add(Ticket::default())?;
        match body(open) {
            Ok(pushed) => *open.pushes.get_mut(handle)? = pushed,
            Err(failure) => {
                open.pushes.remove(handle).map(drop)?;
                return Err(failure);
            }
        }
        Ok(handle)
    })?;
    Ok(())
}

/// Checks a push; its handle is removed when it is settled: applied, refused or lost.
///
/// # Safety
/// The contract of the module.
unsafe fn settle(
    session: *mut tw_session,
    ticket: *mut tw_ticket,
    ask: impl FnOnce(&mut Client, Duration, &Ticket) -> Result<bool, ClientError>,
) -> Result<bool, Failure> {
    // SAFETY: the contract of the module.
    let session = unsafe { raw::session(session) }?;
    // SAFETY: the contract of the module.
    let handle = unsafe { raw::out(ticket, "the place of the ticket") }?;
    if *handle == 0 {
        return session.with(|_| Ok(true));
    }
    let (answer, settled) = session.with(|open| {
        let pushed = open.pushes.get(*handle)?;
        let answer = ask(&mut open.client, open.timeout, pushed);
        let settled = !matches!(&answer, Ok(false) | Err(ClientError::Deadline { .. }));
        if settled {
            open.pushes.remove(*handle).map(drop)?;
        }
        Ok((answer, settled))
    })?;
    if settled {
        *handle = 0;
    }
    Ok(answer?)
}
