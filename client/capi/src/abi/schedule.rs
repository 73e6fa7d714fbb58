//! Learning rates as functions of the iteration.

use super::data::push;
use super::session::tw_session;
use crate::convert;
use crate::raw;
use crate::session::run;
use crate::types::{tw_schedule, tw_status, tw_table, tw_ticket};

/// Writes the rate of an iteration, from 0, to `*rate`: the same bits on every host.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_schedule_rate(
    schedule: *const tw_schedule,
    iteration: u64,
    rate: *mut f64,
) -> tw_status {
    run("tw_schedule_rate", || {
        // SAFETY: the contract of the module.
        let rate = unsafe { raw::out(rate, "the place for the rate") }?;
        // SAFETY: the contract of the module.
        let schedule = unsafe { raw::options(schedule, "the schedule") }?;
        *rate = convert::schedule(&schedule)?.at(iteration);
        Ok(())
    })
}

/// Sets the learning rate that a schedule has in `iteration`, as tw_table_set_optimizer does: before the pushes of
/// the iteration, on one worker. After tw_load count the iterations of the whole training.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_table_schedule(
    session: *mut tw_session,
    table: tw_table,
    schedule: *const tw_schedule,
    iteration: u64,
    ticket: *mut tw_ticket,
) -> tw_status {
    run("tw_table_schedule", || {
        // SAFETY: the contract of the module.
        let session = unsafe { raw::session(session) }?;
        // SAFETY: the contract of the module.
        let schedule = unsafe { raw::options(schedule, "the schedule") }?;
        let schedule = convert::schedule(&schedule)?;
        // SAFETY: the contract of the module.
        unsafe {
            push(session, ticket, |open| {
                let table = *open.tables.get(table)?;
                Ok(table.schedule(&mut open.client, &schedule, iteration)?)
            })
        }
    })
}
