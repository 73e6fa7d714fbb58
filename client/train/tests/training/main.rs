//! Readers and training mathematics on real files.
//!
//! Public sets are looked for in `TIDEWATER_TEST_DATA`, or in `../shared/data` beside the workspace;
//! where there are none, the tests that need them say so and do nothing.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test crate: its helpers panic and report as its tests do"
)]

use std::path::{Path, PathBuf};

mod files;
mod kernels;
mod model;
mod public_sets;

/// A public set's file, `None` (with a line that says so) where there is none.
fn public_file(name: &str) -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data");
    let folder = std::env::var_os("TIDEWATER_TEST_DATA").map_or(beside, PathBuf::from);
    let file = folder.join(name);
    if file.is_file() {
        return Some(file);
    }
    println!(
        "skipped: no {} (set TIDEWATER_TEST_DATA to the folder of the public sets)",
        file.display()
    );
    None
}
