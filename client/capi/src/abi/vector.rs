//! Vectors on the servers: tables with one column, and the operations of solvers as functions at the data.

use std::ffi::c_char;

use tidewater::{AnyFunctionArgs, AnyTable, Optimizer, Reduction, Scalar, TableBuilder};
use tidewater_protocol::limits::PARTITIONS_DEFAULT;
use tidewater_protocol::table::DType;

use super::session::tw_session;
use crate::convert;
use crate::error::Failure;
use crate::open::Open;
use crate::raw;
use crate::session::run;
use crate::types::{tw_status, tw_table};

/// Creates a vector of `elements` zeroes, TW_F32 or TW_F64: a TW_RANGE table with one column, without optimizer,
/// that may hold NaN and infinity. Or opens the equal one of that name. tw_push_range with TW_ASSIGN sets elements;
/// tw_flush, then tw_pull_range reads them; tw_table_release frees them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_vector_create(
    session: *mut tw_session,
    name: *const c_char,
    elements: u64,
    dtype: i32,
    vector: *mut tw_table,
) -> tw_status {
    run("tw_vector_create", || {
        // SAFETY: the contract of the module.
        let session = unsafe { raw::session(session) }?;
        // SAFETY: the contract of the module.
        let vector = unsafe { raw::out(vector, "the place for the vector") }?;
        *vector = 0;
        // SAFETY: the contract of the module.
        let name = unsafe { raw::text(name, "name") }?;
        let table = match convert::dtype(dtype)? {
            DType::F32 => TableBuilder::range::<f32>(name, elements, 1),
            DType::F64 => TableBuilder::range::<f64>(name, elements, 1),
            DType::I32 | DType::I64 => {
                let text = "a vector holds TW_F32 or TW_F64; of integers, create a table";
                return Err(Failure::argument(text));
            }
        };
        // As the vectors of Rust: their sums have equal bits on any number of servers.
        let table = table.optimizer(Optimizer::None).finite_check(false);
        let table = table.partitions(PARTITIONS_DEFAULT);
        *vector = session.with(|open| {
            let made = AnyTable::create(&mut open.client, table.spec())?;
            open.tables.add_once(made)
        })?;
        Ok(())
    })
}

/// Sets all elements of a vector to a number. Like all operations on vectors it is ordered like a push and waits for
/// nothing: a refusal is a failure of the next tw_flush.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_vector_fill(
    session: *mut tw_session,
    vector: tw_table,
    value: f64,
) -> tw_status {
    run("tw_vector_fill", || {
        // SAFETY: the contract of the module.
        let session = unsafe { raw::session(session) }?;
        session.with(|open| assign(open, vector, "p0", &[], &[value]))
    })
}

/// Sets the elements of a vector to those of another one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_vector_copy(
    session: *mut tw_session,
    vector: tw_table,
    from: tw_table,
) -> tw_status {
    run("tw_vector_copy", || {
        // SAFETY: the contract of the module.
        let session = unsafe { raw::session(session) }?;
        session.with(|open| assign(open, vector, "x", &[from], &[]))
    })
}

/// Multiplies a vector by a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_vector_scale(
    session: *mut tw_session,
    vector: tw_table,
    factor: f64,
) -> tw_status {
    run("tw_vector_scale", || {
        // SAFETY: the contract of the module.
        let session = unsafe { raw::session(session) }?;
        session.with(|open| assign(open, vector, "x * p0", &[vector], &[factor]))
    })
}

/// Adds a multiple of `x` to a vector: vector += factor x.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_vector_axpy(
    session: *mut tw_session,
    vector: tw_table,
    factor: f64,
    x: tw_table,
) -> tw_status {
    run("tw_vector_axpy", || {
        // SAFETY: the contract of the module.
        let session = unsafe { raw::session(session) }?;
        session.with(|open| assign(open, vector, "x + p0 * y", &[vector, x], &[factor]))
    })
}

/// Writes the inner product of two vectors to `*value`. Products are rounded in the element type, so that in float those
/// above 3.4e38 are infinite and those below 1e-45 are 0. They are summed in double with compensation: the same bits
/// on any number of servers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_vector_dot(
    session: *mut tw_session,
    x: tw_table,
    y: tw_table,
    value: *mut f64,
) -> tw_status {
    run("tw_vector_dot", || {
        // SAFETY: the contract of the module.
        let session = unsafe { raw::session(session) }?;
        // SAFETY: the contract of the module.
        let value = unsafe { raw::out(value, "value") }?;
        *value = session.with(|open| number(open, "x * y", Reduction::Sum, &[x, y]))?;
        Ok(())
    })
}

/// Writes a norm of a vector, a tw_norm, to `*value`. NaN if an element is. TW_NORM_2 squares in the element type: in
/// float it is infinite for an element above 1.8e19, and elements below 1e-23 do not count.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_vector_norm(
    session: *mut tw_session,
    vector: tw_table,
    norm: i32,
    value: *mut f64,
) -> tw_status {
    run("tw_vector_norm", || {
        // SAFETY: the contract of the module.
        let session = unsafe { raw::session(session) }?;
        // SAFETY: the contract of the module.
        let value = unsafe { raw::out(value, "value") }?;
        let norm = convert::norm(norm)?;
        let result =
            session.with(|open| number(open, norm.expression, norm.reduction, &[vector]))?;
        *value = if norm.is_root { result.sqrt() } else { result };
        Ok(())
    })
}

/// Sets the elements of `target` to the values of an expression.
fn assign(
    open: &mut Open,
    target: tw_table,
    expression: &str,
    inputs: &[tw_table],
    parameters: &[f64],
) -> Result<(), Failure> {
    let target = *open.tables.get(target)?;
    let inputs = tables(open, inputs)?;
    let args = AnyFunctionArgs {
        inputs: &inputs,
        parameters,
        range: None,
    };
    // Without its ticket a refusal is a failure of the next flush.
    let _ticket = target.update(&mut open.client, expression, &args)?;
    Ok(())
}

/// Combines the values of an expression for all elements of `inputs`.
fn number(
    open: &mut Open,
    expression: &str,
    reduction: Reduction,
    inputs: &[tw_table],
) -> Result<f64, Failure> {
    let inputs = tables(open, inputs)?;
    let Some(target) = inputs.first() else {
        return Err(Failure::panicked());
    };
    let args = AnyFunctionArgs {
        inputs: &inputs,
        ..AnyFunctionArgs::default()
    };
    match target.reduce(&mut open.client, expression, reduction, &args)? {
        Some(Scalar::Float(value)) => Ok(value),
        // Tables of integers, which are no vectors.
        Some(Scalar::Integer(value)) => Ok(value as f64),
        None => Ok(0.0),
    }
}

fn tables(open: &Open, handles: &[tw_table]) -> Result<Vec<AnyTable>, Failure> {
    let tables = handles
        .iter()
        .map(|&handle| open.tables.get(handle).copied());
    tables.collect()
}
