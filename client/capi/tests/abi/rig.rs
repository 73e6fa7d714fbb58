//! A cluster for the tests, and checks of calls.

use std::ffi::{CStr, CString};
use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::ptr::null_mut;

use tempfile::TempDir;
use tidewater_capi::abi::library::*;
use tidewater_capi::abi::session::*;
use tidewater_capi::abi::table::*;
use tidewater_capi::types::tw_status::*;
use tidewater_capi::types::*;
use tidewater_protocol::wire::handshake::JobToken;
use tidewater_service::embedded::{Cluster, ClusterConfig};
use tidewater_service::server::ServerFunctions;

pub(crate) const F32: i32 = tw_dtype::TW_F32 as i32;
pub(crate) const F64: i32 = tw_dtype::TW_F64 as i32;
pub(crate) const I64: i32 = tw_dtype::TW_I64 as i32;
pub(crate) const SUM: i32 = tw_op::TW_SUM as i32;

/// A cluster, its address and its token file.
pub(crate) struct Rig {
    pub(crate) cluster: Cluster,
    coordinator: CString,
    token: CString,
    _folder: TempDir,
}

impl Rig {
    pub(crate) fn new(workers: u32) -> Self {
        Self::with_functions(workers, ServerFunctions::default())
    }

    pub(crate) fn with_functions(workers: u32, functions: ServerFunctions) -> Self {
        Self::of(ClusterConfig {
            servers: 2,
            workers,
            functions,
            ..ClusterConfig::default()
        })
    }

    pub(crate) fn of(config: ClusterConfig) -> Self {
        let config = ClusterConfig {
            token: Some(JobToken::new([7; 32])),
            ..config
        };
        let cluster = Cluster::start(&config).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let mut file = OpenOptions::new();
        let mut file = file
            .write(true)
            .create(true)
            .mode(0o600)
            .open(&path)
            .unwrap();
        file.write_all("07".repeat(32).as_bytes()).unwrap();
        Self {
            coordinator: CString::new(cluster.environment().coordinator.as_str()).unwrap(),
            token: CString::new(path.to_str().unwrap()).unwrap(),
            cluster,
            _folder: folder,
        }
    }

    pub(crate) fn options(&self) -> tw_session_options {
        // SAFETY: the struct has numbers and pointers only, which may be zero.
        let zero: tw_session_options = unsafe { std::mem::zeroed() };
        tw_session_options {
            size: size_of::<tw_session_options>(),
            coordinator: self.coordinator.as_ptr(),
            token_file: self.token.as_ptr(),
            ..zero
        }
    }

    pub(crate) fn open(&self, options: &tw_session_options) -> *mut tw_session {
        let mut session = null_mut();
        // SAFETY: both are valid for the call.
        ok(unsafe { tw_session_open(options, &raw mut session) });
        assert!(!session.is_null());
        session
    }
}

pub(crate) fn last_error() -> String {
    let text = tw_last_error();
    // SAFETY: the pointer is never null, and valid until this thread's next failure.
    unsafe { CStr::from_ptr(text) }.to_str().unwrap().to_owned()
}

#[track_caller]
pub(crate) fn ok(status: tw_status) {
    assert_eq!(status, TW_OK, "{}", last_error());
}

/// Asserts that the call failed with `status`, and that its text contains `words`.
#[track_caller]
pub(crate) fn fails(got: tw_status, status: tw_status, words: &str) {
    let text = last_error();
    assert_eq!(got, status, "{text}");
    assert!(text.contains(words), "\"{text}\" does not say \"{words}\"");
}

pub(crate) fn table_options(
    name: &CStr,
    dtype: i32,
    kind: tw_kind,
    rows: u64,
    cols: u32,
) -> tw_table_options {
    // SAFETY: the struct has numbers and pointers only, which may be zero.
    let zero: tw_table_options = unsafe { std::mem::zeroed() };
    tw_table_options {
        size: size_of::<tw_table_options>(),
        name: name.as_ptr(),
        dtype,
        kind: kind as i32,
        rows,
        cols,
        ..zero
    }
}

pub(crate) fn create(session: *mut tw_session, options: &tw_table_options) -> tw_table {
    let mut table = 0;
    // SAFETY: an open session, and valid places for the results.
    ok(unsafe { tw_table_create(session, options, &raw mut table) });
    assert_ne!(table, 0);
    table
}

pub(crate) fn free(mut session: *mut tw_session) {
    // SAFETY: the session was opened and not freed.
    ok(unsafe { tw_session_free(&raw mut session) });
    assert!(session.is_null());
    // SAFETY: null is allowed.
    ok(unsafe { tw_session_free(&raw mut session) });
}
