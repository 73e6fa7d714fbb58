//! Functions at the data, as C calls them: expressions, reductions and functions by name.

use std::ffi::{CStr, c_void};
use std::ptr::{null, null_mut};
use std::sync::Arc;

use tidewater::functions::{
    Elements, ElementsMut, Function, FunctionError, Functions, Piece, register,
};
use tidewater_capi::abi::data::*;
use tidewater_capi::abi::function::*;
use tidewater_capi::abi::session::tw_session;
use tidewater_capi::types::tw_status::*;
use tidewater_capi::types::*;
use tidewater_service::server::ServerFunctions;
use tidewater_wasm::{Limits, Modules};

use crate::rig::*;

const SUM_OF: i32 = tw_reduction::TW_REDUCE_SUM as i32;
const MAX_OF: i32 = tw_reduction::TW_REDUCE_MAX as i32;
const AND_OF: i32 = tw_reduction::TW_REDUCE_AND as i32;
/// Elements of the range tables: several pieces.
const ELEMENTS: usize = 100_000;

fn function_options() -> tw_function_options {
    // SAFETY: the struct has numbers and pointers only, which may be zero.
    let zero: tw_function_options = unsafe { std::mem::zeroed() };
    tw_function_options {
        size: size_of::<tw_function_options>(),
        ..zero
    }
}

/// Two range tables that lie alike, with ones in the first.
fn ones_and_zeros(session: *mut tw_session) -> (tw_table, tw_table) {
    let kind = tw_kind::TW_RANGE;
    let a = create(session, &table_options(c"a", F64, kind, ELEMENTS as u64, 1));
    let b = create(session, &table_options(c"b", F64, kind, ELEMENTS as u64, 1));
    // SAFETY: an open session; null is allowed.
    ok(unsafe { tw_update(session, a, c"1".as_ptr(), null(), null_mut()) });
    (a, b)
}

fn reduced(
    session: *mut tw_session,
    table: tw_table,
    text: &CStr,
    reduction: i32,
    options: *const tw_function_options,
) -> (f64, i32) {
    let (mut value, mut found) = (-1.0, -1);
    // SAFETY: an open session, valid options and places.
    ok(unsafe {
        tw_reduce(
            session,
            table,
            text.as_ptr(),
            reduction,
            options,
            &raw mut value,
            null_mut(),
            &raw mut found,
        )
    });
    (value, found)
}

#[test]
fn update_and_reduce_use_inputs_and_range() {
    let rig = Rig::new(1);
    let session = rig.open(&rig.options());
    let (a, b) = ones_and_zeros(session);
    let tables = [a, b];
    let parameters = [2.5];
    let both = tw_function_options {
        inputs: tables.as_ptr(),
        input_count: 2,
        parameters: parameters.as_ptr(),
        parameter_count: 1,
        has_range: 1,
        first: 10,
        count: 90_000,
        ..function_options()
    };
    let mut ticket = 0;
    // SAFETY: here and below: an open session, valid options and places.
    unsafe {
        let text = c"p0 * x + y".as_ptr();
        ok(tw_update(
            session,
            b,
            text,
            &raw const both,
            &raw mut ticket,
        ));
        assert_ne!(ticket, 0);
        ok(tw_push_wait(session, &raw mut ticket, 0.0));
        assert_eq!(ticket, 0);
    }
    assert_eq!(
        reduced(session, b, c"x", SUM_OF, null()),
        (2.5 * 90_000.0, 1)
    );
    let rest = tw_function_options {
        has_range: 1,
        first: 0,
        count: 10,
        ..function_options()
    };
    assert_eq!(reduced(session, b, c"x", SUM_OF, &raw const rest), (0.0, 1));
    assert_eq!(
        reduced(session, b, c"x >= 0", AND_OF, null()),
        (1.0, 1),
        "a float table has an integer result"
    );
    let nothing = tw_function_options { count: 0, ..rest };
    let (value, found) = reduced(session, b, c"x", MAX_OF, &raw const nothing);
    assert!(value.is_nan() && found == 0, "{value}, {found}");
    assert_eq!(
        reduced(session, b, c"x", SUM_OF, &raw const nothing),
        (0.0, 1)
    );
    free(session);
}

#[test]
fn integer_sum_is_exact() {
    let rig = Rig::new(1);
    let session = rig.open(&rig.options());
    let table = create(
        session,
        &table_options(c"i", I64, tw_kind::TW_ROWS, 1_000, 1),
    );
    let big = (1_i64 << 53) + 1;
    let (mut value, mut integer) = (0.0, 0);
    // SAFETY: an open session, and valid places.
    unsafe {
        let text = c"9007199254740993".as_ptr();
        ok(tw_update(session, table, text, null(), null_mut()));
        ok(tw_reduce(
            session,
            table,
            c"x".as_ptr(),
            SUM_OF,
            null(),
            &raw mut value,
            &raw mut integer,
            null_mut(),
        ));
    }
    assert_eq!((integer, value), (1_000 * big, (1_000 * big) as f64));
    free(session);
}

#[test]
fn wrong_functions_are_statuses() {
    let rig = Rig::new(1);
    let session = rig.open(&rig.options());
    let (a, b) = ones_and_zeros(session);
    let other = create(
        session,
        &table_options(c"f", F32, tw_kind::TW_RANGE, ELEMENTS as u64, 1),
    );
    let mut ticket = 7;
    let mut update = |text: *const _, options: *const _| {
        // SAFETY: an open session and a place; text and options are what is tested.
        let status = unsafe { tw_update(session, a, text, options, &raw mut ticket) };
        assert_eq!(ticket, 0, "a failed call gives no ticket");
        ticket = 7;
        status
    };
    let argument = TW_ERR_ARGUMENT;
    fails(update(c"x + ".as_ptr(), null()), argument, "byte 4");
    fails(update(c"frob(x)".as_ptr(), null()), argument, "byte 0");
    fails(update(c"x + y".as_ptr(), null()), argument, "2 inputs");
    fails(update(null(), null()), TW_ERR_NULL, "expression is null");
    let x = c"x".as_ptr();
    let tables = [a, other, 0];
    let from = |at: usize, options| tw_function_options {
        inputs: tables[at..].as_ptr(),
        input_count: 1,
        ..options
    };
    let options = function_options();
    let wrong = from(1, options);
    fails(update(x, &raw const wrong), argument, "F32");
    let wrong = from(2, options);
    fails(update(x, &raw const wrong), TW_ERR_HANDLE, "zero");
    let wrong = tw_function_options {
        inputs: null(),
        ..from(0, options)
    };
    fails(update(x, &raw const wrong), TW_ERR_NULL, "inputs");
    let wrong = tw_function_options {
        input_count: usize::MAX,
        ..from(0, options)
    };
    fails(update(x, &raw const wrong), argument, "the most are 3");
    let wrong = tw_function_options {
        first: 1,
        ..options
    };
    fails(update(x, &raw const wrong), argument, "has_range");
    let wrong = tw_function_options {
        has_range: 1,
        first: u64::MAX,
        count: 2,
        ..options
    };
    fails(update(x, &raw const wrong), argument, "beyond");
    let wrong = tw_function_options {
        has_range: 1,
        first: 99_999,
        count: 2,
        ..options
    };
    fails(
        update(x, &raw const wrong),
        argument,
        "99999..100001 of 100000",
    );
    let wrong = tw_function_options {
        reserved: 1,
        ..options
    };
    fails(update(x, &raw const wrong), argument, "reserved");
    wrong_reductions(session, b);
    free(session);
}

fn wrong_reductions(session: *mut tw_session, table: tw_table) {
    let (mut value, mut integer) = (5.0, 5);
    let none = tw_function_options {
        has_range: 1,
        ..function_options()
    };
    let reduce = |reduction, options, value: *mut f64, integer: *mut i64| {
        let text = c"x".as_ptr();
        // SAFETY: an open session; places are null or valid.
        unsafe {
            tw_reduce(
                session,
                table,
                text,
                reduction,
                options,
                value,
                integer,
                null_mut(),
            )
        }
    };
    let (v, i) = (&raw mut value, &raw mut integer);
    let argument = TW_ERR_ARGUMENT;
    fails(reduce(9, null(), v, null_mut()), argument, "TW_REDUCE_AND");
    fails(
        reduce(SUM_OF, null(), null_mut(), null_mut()),
        TW_ERR_NULL,
        "integer",
    );
    fails(reduce(SUM_OF, null(), v, i), argument, "holds floats");
    fails(
        reduce(MAX_OF, &raw const none, v, null_mut()),
        argument,
        "found",
    );
    assert_eq!((value, integer), (5.0, 5), "a failed call writes nothing");
    ok(reduce(AND_OF, null(), null_mut(), i));
    assert_eq!(integer, 0);
}

/// Multiplies elements by the first argument byte; reduces a piece to its first index, and its length in
/// as many bytes as the argument says.
struct Scale;

impl Function for Scale {
    fn update(
        &self,
        arguments: &[u8],
        _: &Piece<'_>,
        target: ElementsMut<'_>,
    ) -> Result<(), FunctionError> {
        let ElementsMut::F64(target) = target else {
            return Err(FunctionError(2));
        };
        let factor = *arguments.first().ok_or(FunctionError(1))?;
        target
            .iter_mut()
            .for_each(|element| *element *= f64::from(factor));
        Ok(())
    }

    fn reduce(
        &self,
        _: &[u8],
        piece: &Piece<'_>,
        target: Elements<'_>,
        result: &mut Vec<u8>,
    ) -> Result<(), FunctionError> {
        let Elements::F64(target) = target else {
            return Err(FunctionError(2));
        };
        result.extend_from_slice(&piece.first_index.to_le_bytes());
        // Results of unequal lengths.
        if piece.first_index > 0 {
            result.extend_from_slice(&(target.len() as u64).to_le_bytes());
        }
        Ok(())
    }
}

#[test]
fn named_functions_update_and_return_pieces() {
    register(Functions::default().with("scale", Scale)).unwrap();
    let rig = Rig::new(1);
    let session = rig.open(&rig.options());
    let (a, _) = ones_and_zeros(session);
    let call = |name: &CStr, factor: &[u8]| {
        let mut ticket = 0;
        let arguments = factor.as_ptr().cast();
        // SAFETY: an open session, and as many arguments as are given.
        unsafe {
            ok(tw_call_update(
                session,
                a,
                name.as_ptr(),
                arguments,
                factor.len(),
                null(),
                &raw mut ticket,
            ));
            tw_push_wait(session, &raw mut ticket, 0.0)
        }
    };
    ok(call(c"scale", &[3]));
    assert_eq!(reduced(session, a, c"x", MAX_OF, null()), (3.0, 1));
    fails(call(c"scale", &[]), TW_ERR_REJECTED, "number 1");
    fails(call(c"missing", &[3]), TW_ERR_REJECTED, "1 functions");
    // SAFETY: null arguments, which is what is tested.
    let null_arguments = unsafe {
        let name = c"scale".as_ptr();
        tw_call_update(session, a, name, null(), 1, null(), null_mut())
    };
    fails(null_arguments, TW_ERR_NULL, "arguments");
    pieces_are_taken_once(session, a);
    free(session);
}

/// A module that a session loads runs by its name. Servers without a compiler of modules refuse it.
#[test]
fn loaded_module_updates() {
    let module = wat::parse_str(include_str!("../../../../server/wasm/examples/axpy.wat")).unwrap();
    let load = |session: *mut tw_session, name: &CStr, module: &[u8]| {
        let bytes = module.as_ptr().cast();
        // SAFETY: an open session, and as many bytes as are given.
        unsafe { tw_load_function(session, name.as_ptr(), bytes, module.len()) }
    };
    let modules = Modules::new(Limits::default()).unwrap();
    let rig = Rig::with_functions(
        1,
        ServerFunctions {
            loader: Some(Arc::new(modules)),
            ..ServerFunctions::default()
        },
    );
    let session = rig.open(&rig.options());
    let (ones, zeros) = ones_and_zeros(session);
    ok(load(session, c"axpy", &module));
    ok(load(session, c"axpy", &module));
    fails(
        load(session, c"other", &module[..20]),
        TW_ERR_REFUSED,
        "module",
    );
    fails(
        load(session, c"", &module),
        TW_ERR_ARGUMENT,
        "1 to 255 bytes",
    );
    let (inputs, factor, mut ticket) = ([ones], 2.5_f64.to_le_bytes(), 0);
    let options = tw_function_options {
        inputs: inputs.as_ptr(),
        input_count: 1,
        ..function_options()
    };
    // SAFETY: an open session, and arrays of the given lengths.
    ok(unsafe {
        let (name, factor) = (c"axpy".as_ptr(), factor.as_ptr().cast());
        tw_call_update(
            session,
            zeros,
            name,
            factor,
            8,
            &raw const options,
            &raw mut ticket,
        )
    });
    // SAFETY: an open session and a valid place.
    ok(unsafe { tw_push_wait(session, &raw mut ticket, 0.0) });
    assert_eq!(reduced(session, zeros, c"x", MAX_OF, null()), (2.5, 1));
    assert_eq!(reduced(session, zeros, c"-x", MAX_OF, null()), (-2.5, 1));
    // SAFETY: a null module, which is what is tested.
    let null_module = unsafe { tw_load_function(session, c"m".as_ptr(), null(), 1) };
    fails(null_module, TW_ERR_NULL, "the module");
    free(session);

    let rig = Rig::new(1);
    let session = rig.open(&rig.options());
    fails(
        load(session, c"axpy", &module),
        TW_ERR_REFUSED,
        "--load-functions",
    );
    free(session);
}

fn pieces_are_taken_once(session: *mut tw_session, table: tw_table) {
    let (mut results, mut pieces, mut bytes) = (0, 0, 0);
    // SAFETY: here and below: an open session, and arrays of the given lengths.
    ok(unsafe {
        tw_call_reduce(
            session,
            table,
            c"scale".as_ptr(),
            null(),
            0,
            null(),
            &raw mut results,
            &raw mut pieces,
            &raw mut bytes,
        )
    });
    assert!(pieces > 2 && results != 0, "{pieces} pieces");
    assert_eq!(bytes, pieces * 16 - 8);
    let kept = results;
    let (mut out, mut lengths) = (vec![0xee_u8; bytes + 1], vec![77_usize; pieces + 1]);
    let to: *mut c_void = out.as_mut_ptr().cast();
    let lens = lengths.as_mut_ptr();
    // SAFETY: as above.
    let mut take = |to, bytes, lens, pieces| unsafe {
        tw_results_take(session, &raw mut results, to, bytes, lens, pieces)
    };
    let short = take(to, bytes - 1, lens, pieces);
    fails(short, TW_ERR_ARGUMENT, "the results have");
    let short = take(to, bytes, lens, pieces - 1);
    fails(short, TW_ERR_ARGUMENT, "lengths");
    fails(
        take(to, bytes, to.cast(), pieces),
        TW_ERR_ARGUMENT,
        "overlap",
    );
    fails(
        take(null_mut(), bytes, lens, pieces),
        TW_ERR_NULL,
        "results",
    );
    ok(take(to, bytes + 1, lens, pieces + 1));
    fails(take(to, bytes, lens, pieces), TW_ERR_HANDLE, "zero");
    assert_eq!(results, 0);
    assert_eq!((out[bytes], lengths[pieces]), (0xee, 77), "not touched");
    let (mut at, mut next) = (0, 0);
    for &length in &lengths[..pieces] {
        let numbers: Vec<u64> = out[at..at + length]
            .chunks_exact(8)
            .map(|number| u64::from_le_bytes(number.try_into().unwrap()))
            .collect();
        assert!(numbers[0] >= next, "in the order of the elements");
        next = numbers[0] + numbers.get(1).copied().unwrap_or_default();
        at += length;
    }
    assert_eq!((at, next), (bytes, ELEMENTS as u64));
    let mut stale = kept;
    // SAFETY: as above.
    let stale = unsafe { tw_results_forget(session, &raw mut stale) };
    fails(stale, TW_ERR_HANDLE, "names no results");
}
