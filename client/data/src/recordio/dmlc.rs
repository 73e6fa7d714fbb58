//! The layout of dmlc-core (`src/recordio.cc`) and MXNet.
//!
//! A part is the magic number, a word with the flag in its 3 upper bits and the length in the others, the bytes,
//! and zeros up to a multiple of 4. A record is one part (flag 0). One that contains the magic number at a
//! multiple of 4 is cut there: parts with the flags 1, 2 ..., 3, with the magic number between them left out.
//! An aligned magic number is therefore the start of a part, and a reader finds the next record from any offset.

use std::io::{self, BufRead, Write};

use tidewater_protocol::limits::DATA_RECORD_BYTES_MAX;

use crate::error::FileFault;
use crate::input::{read_up_to, skip};

/// First word of each part.
pub const MAGIC: u32 = 0xced7_230a;
/// Exclusive bound of a record's length.
const LENGTH_LIMIT: usize = 1 << 29;

/// Error of a [`Reader`].
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// An operation of the system failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The bytes at the offset are damaged.
    #[error("damaged at byte {offset}: {fault}")]
    Damaged {
        /// Offset of the part.
        offset: u64,
        /// Broken rule of the format.
        fault: FileFault,
    },
}

/// Reads the records that start in a range of offsets.
#[derive(Debug)]
pub struct Reader<R> {
    source: R,
    position: u64,
    end: u64,
    record: Vec<u8>,
    offset: u64,
    /// Header of the next record, when [`Reader::find`] has read it.
    found: Option<u32>,
}

impl<R: BufRead> Reader<R> {
    /// Makes a reader of a source that stands at offset `first`, which need not be the start of a record, for the
    /// records that start before `end`.
    ///
    /// # Errors
    /// Any error of the source.
    pub fn new(source: R, first: u64, end: u64) -> io::Result<Self> {
        let mut reader = Self {
            source,
            position: first,
            end,
            record: Vec::new(),
            offset: first,
            found: None,
        };
        if first > 0 {
            reader.find()?;
        }
        Ok(reader)
    }

    /// Moves to the next start of a record.
    fn find(&mut self) -> io::Result<()> {
        let aligned = self.position.next_multiple_of(4);
        self.position += skip(&mut self.source, aligned - self.position)?;
        let mut before = None;
        while self.position < self.end || before == Some(MAGIC) {
            let Some(word) = self.word()? else {
                return Ok(());
            };
            // The flags of the magic number itself are none that a part has.
            if before == Some(MAGIC) && word >> 29 <= 1 {
                self.offset = self.position - 8;
                self.found = Some(word);
                return Ok(());
            }
            before = Some(word);
        }
        Ok(())
    }

    /// Reads a word; `None` at the end of the source.
    fn word(&mut self) -> io::Result<Option<u32>> {
        let mut bytes = [0; 4];
        let read = read_up_to(&mut self.source, &mut bytes)?;
        self.position += read as u64;
        Ok((read == 4).then(|| u32::from_le_bytes(bytes)))
    }

    /// Moves to the next record; `false` after the last one.
    ///
    /// # Errors
    /// Any error of the source, and damaged bytes.
    pub fn advance(&mut self) -> Result<bool, ReadError> {
        self.record.clear();
        let mut header = self.found.take();
        if header.is_none() {
            self.offset = self.position;
            if self.position >= self.end || self.source.fill_buf()?.is_empty() {
                return Ok(false);
            }
        }
        let mut first = true;
        loop {
            let offset = self.position;
            let damaged = |fault| ReadError::Damaged { offset, fault };
            let truncated = || damaged(FileFault::Truncated);
            let header = match header.take() {
                Some(header) => header,
                None => {
                    let found = self.word()?.ok_or_else(truncated)?;
                    if found != MAGIC {
                        let expected = MAGIC;
                        return Err(damaged(FileFault::Magic { expected, found }));
                    }
                    self.word()?.ok_or_else(truncated)?
                }
            };
            let flag = header >> 29;
            if (flag == 0 || flag == 1) != first || flag > 3 {
                return Err(damaged(FileFault::Part(flag)));
            }
            if !first {
                self.record.extend_from_slice(&MAGIC.to_le_bytes());
            }
            let length = (header as usize) & (LENGTH_LIMIT - 1);
            if self.record.len() + length > DATA_RECORD_BYTES_MAX {
                let limit = DATA_RECORD_BYTES_MAX;
                return Err(damaged(FileFault::TooLong { limit }));
            }
            if !self.bytes(length)? {
                return Err(truncated());
            }
            first = false;
            if flag == 0 || flag == 3 {
                return Ok(true);
            }
        }
    }

    /// Appends `length` bytes to the record and skips their padding; `false` if the source ends within them.
    fn bytes(&mut self, length: usize) -> io::Result<bool> {
        let before = self.record.len();
        // Grows with what is there, whatever the header says.
        let mut source = io::Read::take(&mut self.source, length as u64);
        io::Read::read_to_end(&mut source, &mut self.record)?;
        let read = self.record.len() - before;
        let padding = length.next_multiple_of(4) - length;
        let padded = skip(&mut self.source, padding as u64)?;
        self.position += read as u64 + padded;
        Ok(read == length && padded == padding as u64)
    }

    /// Bytes of the current record.
    pub fn record(&self) -> &[u8] {
        &self.record
    }

    /// Offset of the first byte that was not read.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Offset of the current record.
    pub fn offset(&self) -> u64 {
        self.offset
    }
}

/// Writes a record.
///
/// # Errors
/// Any error of `out`; a record of 2^29 bytes or more.
pub fn write_record(out: &mut impl Write, record: &[u8]) -> io::Result<()> {
    if record.len() >= LENGTH_LIMIT {
        let what = format!(
            "a record of {} bytes; the format has less than 2^29",
            record.len()
        );
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    }
    let magic = MAGIC.to_le_bytes();
    let mut from = 0;
    let mut part = |flag: u32, bytes: &[u8]| {
        out.write_all(&magic)?;
        out.write_all(&(flag << 29 | bytes.len() as u32).to_le_bytes())?;
        out.write_all(bytes)
    };
    for (at, word) in record.chunks_exact(4).enumerate() {
        if word == magic {
            part(if from == 0 { 1 } else { 2 }, &record[from..4 * at])?;
            from = 4 * at + 4;
        }
    }
    part(if from == 0 { 0 } else { 3 }, &record[from..])?;
    let padding = record.len().next_multiple_of(4) - record.len();
    out.write_all(&[0; 3][..padding])
}
