//! Saved models: one file per server, and a manifest that makes them a model.
//!
//! **Content.** A save holds the definition of every table of a job, and the clocks. Of each row or
//! block it holds the values and the optimizer state with its step counts. Of sparse tables it
//! holds the rows that exist.
//!
//! **Point in time.** The share of an applier is that of one moment between two frames of its total
//! order, its *cut*. The applier copies it in steps and goes on with everything else
//! (`tidewater_engine::apply::save`). All appliers cut at the clocks of the worker that saves: tables of
//! ticks (`Apply::AtTick`) are then saved as of one tick of all workers. Pushes of the open iteration are
//! not in it. For tables of pushes that take effect on arrival, the shares of two appliers are
//! consistent with each other when no push is in flight while the save begins.
//!
//! **Memory.** Records that change before they are copied are copied first. These copies wait for the
//! file system, and are bounded (`--save-bytes`).
//!
//! **A crash at any point leaves the previous save loadable.** Parts have names that were never
//! used before. A part is written under a temporary name, made durable, renamed, its directory made
//! durable; only then does the server report it. The manifest alone says which files are the model.
//! It is replaced in the same way after all servers have reported. Files that no manifest names are
//! removed by the next save into the directory, under its lock.
//!
//! **Incremental checkpoints.** A part may extend the part of the same server before it: it holds the rows and blocks
//! that have changed since, and the keys of rows that were removed. The directory of such a checkpoint has hard links
//! to the parts that it extends, so each directory is whole by itself and can be removed by itself. A load takes the
//! parts in the order of the manifest.
//!
//! **Loading on another number of servers.** Each server reads the parts of all and keeps what it
//! owns now. It uses `pread`: a file that shrinks under a map would be a signal, not an error.
//! Chunks are divided by partition, and those of other servers are skipped. Every byte read is
//! covered by a checksum. Every file is validated by its length, its end and a checksum over all of
//! its chunks, which the manifest holds.
//!
//! ```text
//! DIR/manifest.json                        {"check": "hex of H64 of model", "model": {...}}
//! DIR/part-NONCE-SERVER.tidewater          lines of 64 bytes, little-endian, and payloads:
//!   head   magic | version, server | nonce | 0 0 0 0 | check of the line
//!   chunk  kind 1 | table, partition | records | bytes | check of payload | number | nonce | check
//!          payload: records of { u64 key, row index or block number; values; state }
//!   chunk  kind 3: the same, of removed rows; payload: their keys
//!   end    kind 2 | chunks | records | 0 | running check | number | nonce | check
//! ```

#![cfg_attr(not(any(test, feature = "testing")), forbid(unsafe_code))]

mod chunk;
pub mod decoders;
mod disk;
mod load;
mod manifest;
mod part;
mod rows;
pub mod series;
#[cfg(any(test, feature = "testing"))]
#[allow(
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    unsafe_code,
    reason = "tests panic, and a seccomp filter makes the disk fail"
)]
pub mod testing;
#[cfg(test)]
mod tests;

pub use disk::{Disk, OsDisk, make_dir};
pub use load::{SavedModel, load_table};
pub use manifest::{
    EXTENDED_FILES_MAX, MANIFEST_NAME, Manifest, SavedFile, SavedTable, abandon, commit,
    link_parts, note_settings, read_manifest,
};
pub use part::{ChunkIndex, PartReader, PartWriter, Source};
pub use rows::{Appliers, BegunSave, SaveRequest, SavedShare, begin_save, save_part, write_part};
pub use series::{Found, Newest};
pub use tidewater_journal::CheckpointError;
