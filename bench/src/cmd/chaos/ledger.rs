//! Ledgers of worker processes: a small file each, which outlives a killed process.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use crate::error::BenchError;

/// Words of a ledger file.
const WORDS: usize = 9;
/// Bytes of a ledger file.
const BYTES: usize = 8 * WORDS;

/// Counts of a worker, as its file has them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Pushes, or steps of a training, that were begun.
    pub(super) begun: u64,
    /// Pushes, or steps of a training, that the servers have acknowledged.
    pub(super) acked: u64,
    /// Time of the last acknowledgement, ns of the monotonic clock.
    pub(super) acked_at: u64,
    /// Calls to the coordinator that have returned, saves not counted.
    pub(super) calls: u64,
    /// Time of the last such return, ns of the monotonic clock.
    pub(super) called_at: u64,
    /// Times that the worker has begun again without its tables, or that a training has begun, the first
    /// included.
    pub(super) restarts: u64,
    /// Time of the last restart, ns of the monotonic clock: when the worker had its error, or its checkpoint.
    pub(super) restarted_at: u64,
    /// Saves that were refused for lack of space.
    pub(super) refused: u64,
    /// Step at which a training last continued from a checkpoint; 0 without one.
    pub(super) resumed: u64,
}

impl Counts {
    /// Opens the ledger of a path, with its counts; creates it with zeros if it is not there.
    pub(super) fn open(path: &Path) -> Result<File, BenchError> {
        let mut options = File::options();
        let options = options.read(true).write(true).create(true).truncate(false);
        let opened = options.open(path).and_then(|file| {
            file.set_len(BYTES as u64)?;
            Ok(file)
        });
        opened.map_err(|e| BenchError::file(path, e))
    }

    /// Reads a ledger; zeros before its first write.
    pub(super) fn read(file: &File) -> Result<Self, BenchError> {
        let mut bytes = [0; BYTES];
        file.read_exact_at(&mut bytes, 0)
            .map_err(system("read a ledger"))?;
        let (words, _) = bytes.as_chunks::<8>();
        let word = |n: usize| words.get(n).map_or(0, |word| u64::from_le_bytes(*word));
        Ok(Self {
            begun: word(0),
            acked: word(1),
            acked_at: word(2),
            calls: word(3),
            called_at: word(4),
            restarts: word(5),
            restarted_at: word(6),
            refused: word(7),
            resumed: word(8),
        })
    }

    /// Writes the ledger with one call, so that a kill leaves the counts before or after it.
    pub(super) fn write(&self, file: &File) -> Result<(), BenchError> {
        let words: [u64; WORDS] = [
            self.begun,
            self.acked,
            self.acked_at,
            self.calls,
            self.called_at,
            self.restarts,
            self.restarted_at,
            self.refused,
            self.resumed,
        ];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        file.write_all_at(&bytes, 0)
            .map_err(system("write a ledger"))
    }
}

/// Returns a function that makes the error of a failed operation of the system.
pub(super) fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> BenchError {
    let what = what.into();
    move |source| BenchError::system(what, source)
}

/// Nanoseconds of the monotonic clock, which all processes of a host share.
pub(super) fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
