//! Readers and training mathematics on real files.
//!
//! Public sets are read from `TIDEWATER_TEST_DATA`, or from `../shared/data` next to the workspace.
//! Without them, the tests that need them print so and pass.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test crate: its helpers panic and report as its tests do"
)]

use std::path::{Path, PathBuf};

mod epoch_metrics;
mod files;
mod kernels;
mod model;
mod public_sets;

/// The file of a public set; `None` (with a printed line) where there is none.
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
