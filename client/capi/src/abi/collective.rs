//! Collective calls: values that all workers of a job exchange.

use std::ffi::c_void;

use super::session::tw_session;
use crate::convert;
use crate::raw::{self, Memory};
use crate::session::run;
use crate::types::tw_status;
use crate::values;

/// Gives `elements` values of type `dtype` to all workers, and writes those of all to `all`, in rank order.
/// `all` has room for `all_elements`: workers x elements. All workers call it, with equally many elements,
/// up to 1 MiB each. In a job of open size they are its members at the call (tw_collective_ranks), and `all` may
/// have more room. With too little, TW_ERR_ARGUMENT names their number; repeated with the same values and more
/// room, the call writes what was exchanged, and the others do not call again. No clock moves. TW_ERR_ARGUMENT,
/// with ranks and lengths, at every worker if the calls differ; TW_ERR_LOST, with the ranks, if workers have left.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_all_gather(
    session: *mut tw_session,
    values: *const c_void,
    elements: usize,
    dtype: i32,
    all: *mut c_void,
    all_elements: usize,
) -> tw_status {
    run("tw_all_gather", || {
        // SAFETY: the contract of the module.
        let session = unsafe { raw::session(session) }?;
        let dtype = convert::dtype(dtype)?;
        let (to, from) = (
            Memory::values(all, all_elements, dtype),
            Memory::values(values, elements, dtype),
        );
        let what = "the values and the array for those of all workers";
        raw::disjoint(to, from, what)?;
        // SAFETY: the contract of the module.
        let values = unsafe { raw::values(values, elements, dtype) }?;
        // SAFETY: the contract of the module, and it does not overlap the values.
        let all = unsafe { raw::values_mut(all, all_elements, dtype) }?;
        session.with(|open| values::all_gather(&mut open.client, &mut open.gathered, values, all))
    })
}

/// Number of workers of the last collective call in `*count`, and the first `room` of their ranks, ascending, in
/// `ranks`, which may be null if `room` is 0. In a job of open size they change from call to call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_collective_ranks(
    session: *mut tw_session,
    ranks: *mut u64,
    room: usize,
    count: *mut usize,
) -> tw_status {
    run("tw_collective_ranks", || {
        // SAFETY: the contract of the module.
        let session = unsafe { raw::session(session) }?;
        // SAFETY: the contract of the module.
        let count = unsafe { raw::out(count, "the place for the number of ranks") }?;
        let of_call = session.with(|open| Ok(open.client.collective_ranks()))?;
        // SAFETY: the contract of the module.
        let to = unsafe { raw::u64s_mut(ranks, room, "ranks") }?;
        for (to, rank) in to.iter_mut().zip(&of_call) {
            *to = rank.0.into();
        }
        *count = of_call.len();
        Ok(())
    })
}

/// Replaces `elements` values of type `dtype` by their reduction over all workers (tw_reduction), in rank
/// order: the same bits at every worker. Otherwise like tw_all_gather. On failure `values` hold anything.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_all_reduce(
    session: *mut tw_session,
    values: *mut c_void,
    elements: usize,
    dtype: i32,
    reduce: i32,
) -> tw_status {
    run("tw_all_reduce", || {
        // SAFETY: the contract of the module.
        let session = unsafe { raw::session(session) }?;
        let dtype = convert::dtype(dtype)?;
        let reduce = convert::reduce(reduce)?;
        // SAFETY: the contract of the module.
        let values = unsafe { raw::values_mut(values, elements, dtype) }?;
        session.with(|open| {
            open.gathered = None;
            values::all_reduce(&mut open.client, values, reduce)
        })
    })
}

/// Replaces `elements` values of type `dtype` by those of worker `root`. Otherwise like tw_all_gather. On
/// failure `values` hold anything.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_broadcast(
    session: *mut tw_session,
    root: u32,
    values: *mut c_void,
    elements: usize,
    dtype: i32,
) -> tw_status {
    run("tw_broadcast", || {
        // SAFETY: the contract of the module.
        let session = unsafe { raw::session(session) }?;
        let dtype = convert::dtype(dtype)?;
        // SAFETY: the contract of the module.
        let values = unsafe { raw::values_mut(values, elements, dtype) }?;
        session.with(|open| {
            open.gathered = None;
            values::broadcast(&mut open.client, root, values)
        })
    })
}
