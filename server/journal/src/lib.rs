//! The coordinator's journal: the durable part of its state ([`Image`]), its changes, and their file.
//!
//! ```text
//! DIR/lock      held by the coordinator that runs; its text names the holder
//! DIR/journal   one record a line: checksum, space, JSON
//!   line 0      start, cluster, port, numbers of processes, image
//!   line n      the changes of one step
//! ```
//! A step's record is on disk before the first of its answers or orders leaves. A record is one line, so a
//! step counts completely or not at all. A line that is cut or damaged, and all after it, do not count: their
//! answers have not left if the line is the last one. Each start writes a new first line with a start number
//! that is one higher, into a file that replaces the old one; so does a journal that has grown.

mod checkpoint_error;
mod image;
mod journal;

pub use checkpoint_error::CheckpointError;
pub use image::{
    Answered, Change, CheckpointImage, ClusterImage, FinishingImage, Image, JobImage, Outcome,
    ServerImage, StageImage, TableImage, WorkerImage,
};
pub use journal::{Identity, Journal, JournalError};
