//! Calls of functions that run where the data is.

use std::ffi::{c_char, c_void};

use tidewater::{AnyTable, Scalar};

use super::data::push;
use super::session::tw_session;
use crate::convert::{self, FunctionInputs};
use crate::error::Failure;
use crate::open::Open;
use crate::raw::{self, Memory};
use crate::session::run;
use crate::types::{tw_function_options, tw_results, tw_status, tw_table, tw_ticket};

/// Sets each element of `target` to the value of `expression`, such as "p0 * x + y": x, y and z are the
/// elements of the inputs at the same place, p0 to p15 the parameters, index the element's index. The
/// call is ordered like a push and applied exactly once; `ticket` is as of tw_push_rows. `options` may
/// be null: all of the target, with the target as x. A wrong expression is TW_ERR_ARGUMENT; the text
/// names the byte. Each 256 KiB of elements, or 2,048 rows, change completely or not at all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_update(
    session: *mut tw_session,
    target: tw_table,
    expression: *const c_char,
    options: *const tw_function_options,
    ticket: *mut tw_ticket,
) -> tw_status {
    run("tw_update", || {
        // SAFETY: the contract of the module.
        let session = unsafe { raw::session(session) }?;
        // SAFETY: the contract of the module.
        let inputs = unsafe { function_inputs(options) };
        // SAFETY: the contract of the module.
        let expression = unsafe { raw::text(expression, "expression") };
        // SAFETY: the contract of the module.
        unsafe {
            push(session, ticket, |open| {
                // Failures come after the place of the ticket has become zero.
                let (inputs, expression) = (inputs?, expression?);
                let target = *open.tables.get(target)?;
                let tables = inputs.tables(open)?;
                let args = inputs.args(&tables);
                Ok(target.update(&mut open.client, expression, &args)?)
            })
        }
    })
}

/// Computes `expression` for each element of `target` and combines the values by `reduction`, a
/// tw_reduction. `*value` receives the result as a double, `*integer` the exact one of integer tables
/// and of TW_REDUCE_AND; one of them may be null. `*found` becomes 1, or 0 if a minimum or maximum has
/// no element; without it, with null, that is TW_ERR_ARGUMENT. Floats are summed in double with
/// compensation; the bits are the same on any number of servers. Options and errors are those of
/// tw_update.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_reduce(
    session: *mut tw_session,
    target: tw_table,
    expression: *const c_char,
    reduction: i32,
    options: *const tw_function_options,
    value: *mut f64,
    integer: *mut i64,
    found: *mut i32,
) -> tw_status {
    run("tw_reduce", || {
        // SAFETY: the contract of the module.
        let session = unsafe { raw::session(session) }?;
        // SAFETY: the contract of the module.
        let value = unsafe { raw::optional_out(value, "value") }?;
        // SAFETY: the contract of the module.
        let integer = unsafe { raw::optional_out(integer, "integer") }?;
        // SAFETY: the contract of the module.
        let found = unsafe { raw::optional_out(found, "found") }?;
        if value.is_none() && integer.is_none() {
            return Err(Failure::null("value, and so is integer, and one of them"));
        }
        // SAFETY: the contract of the module.
        let inputs = unsafe { function_inputs(options) }?;
        // SAFETY: the contract of the module.
        let expression = unsafe { raw::text(expression, "expression") }?;
        let reduction = convert::reduction(reduction)?;
        let exact = integer.is_some();
        let result = session.with(|open| {
            let target = *open.tables.get(target)?;
            convert::exact_result(exact, target.dtype(), reduction)?;
            let tables = inputs.tables(open)?;
            let args = inputs.args(&tables);
            Ok(target.reduce(&mut open.client, expression, reduction, &args)?)
        })?;
        let (float, whole) = match result {
            Some(Scalar::Float(float)) => (float, 0),
            Some(Scalar::Integer(whole)) => (whole as f64, whole),
            None => (f64::NAN, 0),
        };
        match found {
            Some(found) => *found = result.is_some().into(),
            None if result.is_none() => {
                let text = "there is no element, so there is no result; give a place for found";
                return Err(Failure::argument(text));
            }
            None => {}
        }
        if let Some(value) = value {
            *value = float;
        }
        if let Some(integer) = integer {
            *integer = whole;
        }
        Ok(())
    })
}

/// Runs the update function that the servers' program registered under `name`, with `bytes` bytes of
/// `arguments`. Order, ticket and options are those of tw_update. The ticket fails with TW_ERR_REJECTED
/// when the servers have no such function, or it refuses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_call_update(
    session: *mut tw_session,
    target: tw_table,
    name: *const c_char,
    arguments: *const c_void,
    bytes: usize,
    options: *const tw_function_options,
    ticket: *mut tw_ticket,
) -> tw_status {
    run("tw_call_update", || {
        // SAFETY: the contract of the module.
        let session = unsafe { raw::session(session) }?;
        // SAFETY: the contract of the module.
        let inputs = unsafe { function_inputs(options) };
        // SAFETY: the contract of the module.
        let name = unsafe { raw::text(name, "name") };
        // SAFETY: the contract of the module.
        let arguments = unsafe { raw::bytes(arguments, bytes, "the array of arguments") };
        // SAFETY: the contract of the module.
        unsafe {
            push(session, ticket, |open| {
                // As in tw_update.
                let (inputs, name, arguments) = (inputs?, name?, arguments?);
                let target = *open.tables.get(target)?;
                let tables = inputs.tables(open)?;
                let args = inputs.args(&tables);
                Ok(target.call_update(&mut open.client, name, arguments, &args)?)
            })
        }
    })
}

/// Makes a function of a WebAssembly module of `bytes` bytes on all servers, for all sessions of this job. It has
/// `name` until the job ends; tw_call_update and tw_call_reduce run it. All workers may load the same module.
/// TW_ERR_ARGUMENT for a name or a module over the limits, TW_ERR_REFUSED where the servers load no functions
/// (--load-functions), the module is not valid, or the name is taken. Returns when every server has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_load_function(
    session: *mut tw_session,
    name: *const c_char,
    module: *const c_void,
    bytes: usize,
) -> tw_status {
    run("tw_load_function", || {
        // SAFETY: the contract of the module.
        let session = unsafe { raw::session(session) }?;
        // SAFETY: the contract of the module.
        let name = unsafe { raw::text(name, "name") }?;
        // SAFETY: the contract of the module.
        let module = unsafe { raw::bytes(module, bytes, "the module") }?;
        session.with(|open| Ok(open.client.load_function(name, module)?))
    })
}

/// Runs the reducing function that the servers' program registered under `name`, and keeps the results
/// of all pieces in `*results` until tw_results_take. `*pieces` and `*bytes` receive their number and
/// total length. Arguments and options are those of tw_call_update.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_call_reduce(
    session: *mut tw_session,
    target: tw_table,
    name: *const c_char,
    arguments: *const c_void,
    argument_bytes: usize,
    options: *const tw_function_options,
    results: *mut tw_results,
    pieces: *mut usize,
    bytes: *mut usize,
) -> tw_status {
    run("tw_call_reduce", || {
        // SAFETY: the contract of the module.
        let session = unsafe { raw::session(session) }?;
        // SAFETY: the contract of the module.
        let results = unsafe { raw::out(results, "the place for the results") }?;
        *results = 0;
        // SAFETY: the contract of the module.
        let pieces = unsafe { raw::out(pieces, "pieces") }?;
        // SAFETY: the contract of the module.
        let bytes = unsafe { raw::out(bytes, "bytes") }?;
        // SAFETY: the contract of the module.
        let inputs = unsafe { function_inputs(options) }?;
        // SAFETY: the contract of the module.
        let name = unsafe { raw::text(name, "name") }?;
        // SAFETY: the contract of the module.
        let arguments = unsafe { raw::bytes(arguments, argument_bytes, "the array of arguments") }?;
        (*results, *pieces, *bytes) = session.with(|open| {
            let target = *open.tables.get(target)?;
            let tables = inputs.tables(open)?;
            let args = inputs.args(&tables);
            let done = target.call_reduce(&mut open.client, name, arguments, &args)?;
            let (pieces, bytes) = (done.len(), done.iter().map(Vec::len).sum());
            Ok((open.results.add(done)?, pieces, bytes))
        })?;
        Ok(())
    })
}

/// Copies the results of tw_call_reduce, one after the other in the order of their elements, to `out`,
/// and their lengths to `lengths`; `*results` becomes zero. There is room for `bytes` bytes and `pieces`
/// lengths. After TW_ERR_ARGUMENT the results are still kept.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_results_take(
    session: *mut tw_session,
    results: *mut tw_results,
    out: *mut c_void,
    bytes: usize,
    lengths: *mut usize,
    pieces: usize,
) -> tw_status {
    run("tw_results_take", || {
        // SAFETY: the contract of the module.
        let session = unsafe { raw::session(session) }?;
        // SAFETY: the contract of the module.
        let handle = unsafe { raw::out(results, "the place of the results") }?;
        let what = "the array for the results and that of lengths";
        let results = Memory::array(out.cast::<u8>(), bytes);
        raw::disjoint(results, Memory::array(lengths, pieces), what)?;
        // SAFETY: the contract of the module.
        let out = unsafe { raw::bytes_mut(out, bytes, "the array for the results") }?;
        // SAFETY: the contract of the module, and it does not overlap the results.
        let lengths = unsafe { raw::sizes_mut(lengths, pieces, "the array of lengths") }?;
        session.with(|open| {
            let kept = open.results.get(*handle)?;
            let total: usize = kept.iter().map(Vec::len).sum();
            if bytes < total || pieces < kept.len() {
                return Err(Failure::argument(format_args!(
                    "room for {bytes} bytes and {pieces} lengths; the results have {total} bytes in \
                     {} pieces",
                    kept.len()
                )));
            }
            let mut rest = out;
            for (piece, length) in kept.iter().zip(lengths) {
                let (to, after) = rest.split_at_mut(piece.len());
                to.copy_from_slice(piece);
                rest = after;
                *length = piece.len();
            }
            open.results.remove(*handle).map(drop)
        })?;
        *handle = 0;
        Ok(())
    })
}

/// Frees the results of tw_call_reduce without a copy; `*results` becomes zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_results_forget(
    session: *mut tw_session,
    results: *mut tw_results,
) -> tw_status {
    run("tw_results_forget", || {
        // SAFETY: the contract of the module.
        let session = unsafe { raw::session(session) }?;
        // SAFETY: the contract of the module.
        let handle = unsafe { raw::out(results, "the place of the results") }?;
        session.with(|open| open.results.remove(*handle).map(drop))?;
        *handle = 0;
        Ok(())
    })
}

/// Reads the options of a function; null means the defaults.
///
/// # Safety
/// The contract of the module, for the arrays that the options name as well.
unsafe fn function_inputs<'a>(
    options: *const tw_function_options,
) -> Result<FunctionInputs<'a>, Failure> {
    if options.is_null() {
        return Ok(FunctionInputs::default());
    }
    // SAFETY: the contract of the module.
    let options = unsafe { raw::options(options, "options") }?;
    let range = convert::function_range(&options)?;
    let (inputs, parameters) = (options.input_count, options.parameter_count);
    convert::function_counts(inputs, parameters)?;
    // SAFETY: the contract of the module.
    let inputs = unsafe { raw::u64s(options.inputs, inputs, "the array of inputs") }?;
    // SAFETY: the contract of the module.
    let parameters = unsafe { raw::array(options.parameters, parameters, "parameters") }?;
    Ok(FunctionInputs {
        inputs,
        parameters,
        range,
    })
}

impl FunctionInputs<'_> {
    /// The tables that the handles name.
    fn tables(&self, open: &Open) -> Result<Vec<AnyTable>, Failure> {
        let named = self.inputs.iter().map(|&input| open.tables.get(input));
        named.map(|table| table.copied()).collect()
    }
}
