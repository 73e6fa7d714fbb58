//! Calls that need no session.

use std::ffi::c_char;

use crate::error;
use crate::types::tw_status;

/// Version of this interface, 100 x major + minor: a program that was compiled with it runs with libraries
/// of the same major and at least this minor version.
pub const TW_ABI_VERSION: u32 = 100;

/// TW_ABI_VERSION of the library that is linked.
#[unsafe(no_mangle)]
pub extern "C" fn tw_abi_version() -> u32 {
    TW_ABI_VERSION
}

/// The library's release, like "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn tw_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

/// The name of a status, like "TW_ERR_CLOSED"; "unknown" for a number that is none.
#[unsafe(no_mangle)]
pub extern "C" fn tw_status_name(status: i32) -> *const c_char {
    use tw_status::*;
    macro_rules! names {
        ($($name:ident),+ $(,)?) => {
            match status {
                $(value if value == $name as i32 => concat!(stringify!($name), "\0"),)+
                _ => "unknown\0",
            }
        };
    }
    let name = names!(
        TW_OK,
        TW_ERR_NULL,
        TW_ERR_HANDLE,
        TW_ERR_CLOSED,
        TW_ERR_ARGUMENT,
        TW_ERR_DEADLINE,
        TW_ERR_REJECTED,
        TW_ERR_REFUSED,
        TW_ERR_LOST,
        TW_ERR_PROTOCOL,
        TW_ERR_ENVIRONMENT,
        TW_ERR_THREAD,
        TW_ERR_FORKED,
        TW_ERR_PANIC,
    );
    name.as_ptr().cast()
}

/// What went wrong in the last call of this thread that failed, and what to do; empty if none has.
/// Never null; the text lives until the thread's next call that fails.
#[unsafe(no_mangle)]
pub extern "C" fn tw_last_error() -> *const c_char {
    error::last()
}
