//! Vectors on the servers: operations, and wrong arguments.

use std::ptr::{null, null_mut};

use tidewater_capi::abi::clock::*;
use tidewater_capi::abi::data::*;
use tidewater_capi::abi::vector::*;
use tidewater_capi::types::tw_status::*;
use tidewater_capi::types::*;

use crate::rig::*;

#[test]
fn vectors_have_the_values_of_local_ones() {
    let rig = Rig::new(1);
    let session = rig.open(&rig.options());
    for (n, dtype) in [F32, F64].into_iter().enumerate() {
        let name = |of: &str| std::ffi::CString::new(format!("{of}{n}")).unwrap();
        let (mut x, mut y, mut z, mut value) = (0, 0, 0, 0.0);
        // SAFETY: an open session; arrays have as many elements as the calls say.
        unsafe {
            ok(tw_vector_create(
                session,
                name("x").as_ptr(),
                1000,
                dtype,
                &raw mut x,
            ));
            ok(tw_vector_create(
                session,
                name("y").as_ptr(),
                1000,
                dtype,
                &raw mut y,
            ));
            ok(tw_vector_fill(session, x, -2.0));
            ok(tw_vector_copy(session, y, x));
            ok(tw_vector_scale(session, y, -0.5));
            ok(tw_vector_axpy(session, y, 3.0, x));
            ok(tw_vector_dot(session, x, y, &raw mut value));
            assert_eq!(value, 10_000.0);
            let norm =
                |norm: tw_norm, value: *mut f64| tw_vector_norm(session, y, norm as i32, value);
            ok(norm(tw_norm::TW_NORM_1, &raw mut value));
            assert_eq!(value, 5000.0);
            ok(norm(tw_norm::TW_NORM_2, &raw mut value));
            assert_eq!(value, 25_000_f64.sqrt());
            ok(norm(tw_norm::TW_NORM_MAX, &raw mut value));
            assert_eq!(value, 5.0);
            ok(tw_vector_fill(session, y, f64::NAN));
            ok(tw_flush(session));
            ok(norm(tw_norm::TW_NORM_MAX, &raw mut value));
            assert!(value.is_nan());

            let status = tw_vector_norm(session, y, 7, &raw mut value);
            fails(status, TW_ERR_ARGUMENT, "norm is 7");
            fails(
                tw_vector_dot(session, x, y, null_mut()),
                TW_ERR_NULL,
                "value",
            );
            fails(tw_vector_fill(session, 0, 1.0), TW_ERR_HANDLE, "zero");
            let odd = tw_vector_create(session, name("i").as_ptr(), 3, I64, &raw mut z);
            fails(odd, TW_ERR_ARGUMENT, "TW_F32 or TW_F64");
            assert_eq!(z, 0);
            let odd = tw_vector_create(session, null(), 3, dtype, &raw mut z);
            fails(odd, TW_ERR_NULL, "name");
            ok(tw_vector_create(
                session,
                name("z").as_ptr(),
                999,
                dtype,
                &raw mut z,
            ));
            fails(tw_vector_axpy(session, y, 1.0, z), TW_ERR_ARGUMENT, "");
        }
    }
    let (mut x, mut pulled) = (0, [9.0f64; 2]);
    // SAFETY: as above.
    unsafe {
        ok(tw_vector_create(
            session,
            c"x1".as_ptr(),
            1000,
            F64,
            &raw mut x,
        ));
        let to = pulled.as_mut_ptr().cast();
        ok(tw_pull_range(session, x, 998, to, 2, F64, null()));
    }
    assert_eq!(pulled, [-2.0; 2], "the equal vector of that name is opened");
    free(session);
}
