//! Sources of records, and their division among readers.

use std::fmt::Debug;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tidewater_protocol::limits;

use super::csv::Quoting;
use super::error::{DataError, FileFault, LineFault};
use super::input::{self, Compression, Input, compression_of, io_error, read_up_to};
use super::recordio::chunked::{self, Chunk};
use super::recordio::dmlc;
use super::split::{LineReader, byte_range, count_newlines, start_of};

/// Unit in which a shard counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Bytes of the content, decompressed: the shard has the records that start in its range.
    Bytes,
    /// Numbers of records, from 0.
    Records,
}

/// A run of records of one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shard {
    /// Path of the file, or name of a source in memory.
    pub path: Arc<Path>,
    /// Offset of the first byte, or number of the first record.
    pub first: u64,
    /// End of the range, exclusive.
    pub end: u64,
    /// Unit of `first` and `end`.
    pub unit: Unit,
}

impl Shard {
    /// Number of bytes or records.
    pub fn size(&self) -> u64 {
        self.end.saturating_sub(self.first)
    }
}

/// Source of records: files, or memory.
pub trait DataSource: Debug + Send + Sync {
    /// The shards that together are the source, in order: each file is one.
    fn shards(&self) -> &[Shard];

    /// Opens a shard, or any part of one.
    ///
    /// # Errors
    /// A file that is gone, has shrunk, or is damaged; a shard of another source.
    fn open(&self, shard: &Shard) -> Result<Box<dyn Records>, DataError>;

    /// Part `part` of `parts` of the source: of equal size, in bytes or records, and cut from the files in
    /// order. All parts together are the source, each record once; a part may be empty.
    ///
    /// # Errors
    /// A part that does not exist.
    fn part(&self, part: u32, parts: u32) -> Result<Vec<Shard>, DataError> {
        if part >= parts {
            return Err(DataError::NoSuchPart { part, parts });
        }
        let total = self.shards().iter().map(Shard::size).sum();
        let range = byte_range(total, part, parts);
        let mut before = 0;
        let mut shards = Vec::new();
        for shard in self.shards() {
            let of_shard = |at: u64| shard.first + at.saturating_sub(before).min(shard.size());
            let (first, end) = (of_shard(range.start), of_shard(range.end));
            if first < end {
                let path = shard.path.clone();
                let unit = shard.unit;
                shards.push(Shard {
                    path,
                    first,
                    end,
                    unit,
                });
            }
            before += shard.size();
        }
        Ok(shards)
    }
}

/// Cursor over the records of a shard.
pub trait Records: Send {
    /// Moves to the next record; `false` after the last one.
    ///
    /// # Errors
    /// Any error of the system, a file that has shrunk, damaged bytes.
    fn advance(&mut self) -> Result<bool, DataError>;

    /// The current record: a line without its end, a CSV record, or the bytes of a RecordIO record. A line longer
    /// than [`limits::DATA_LINE_BYTES_MAX`] is cut one byte beyond it.
    fn bytes(&self) -> &[u8];

    /// Makes the error of a fault in the current record. Costs another pass over a text file, which numbers the
    /// line.
    fn fault(&self, fault: LineFault) -> DataError;
}

/// Layout of a file's records.
#[derive(Debug, Clone)]
enum Layout {
    Text,
    Dmlc,
    /// First record and offset of each chunk.
    Chunked(Arc<[ChunkStart]>),
}

#[derive(Debug)]
struct DataFile {
    compression: Compression,
    layout: Layout,
}

/// Files of records: text, CSV or RecordIO, as they are, in gzip or in Zstandard. The first bytes of a file
/// show its compression and layout.
#[derive(Debug)]
pub struct FileSource {
    files: Vec<DataFile>,
    shards: Vec<Shard>,
    quoting: Option<Quoting>,
}

impl FileSource {
    /// Finds the files of `path`: a file; a directory, of which each file counts unless its name begins with `.`
    /// or `_`; or a pattern with `*`, `?`, `[...]`, for example `part-*.gz`. Files are in the order of their
    /// names.
    ///
    /// Reads the first bytes of each file, the headers of chunks, and all of a compressed file, which has no
    /// other record of its size. `schema` is that of CSV files: with quotes, records may contain line ends.
    ///
    /// # Errors
    /// No file, a path that is no regular file, any error of the system, damaged files.
    pub fn new(path: &Path, schema: Option<&super::Schema>) -> Result<Self, DataError> {
        let mut source = Self {
            files: Vec::new(),
            shards: Vec::new(),
            quoting: schema.and_then(super::Schema::quoting),
        };
        for path in files_of(path)? {
            source.add(path)?;
        }
        Ok(source)
    }

    fn add(&mut self, path: PathBuf) -> Result<(), DataError> {
        let mut start = [0; 4];
        let size = input::size(&path)?;
        let read = |compression, start: &mut [u8]| -> Result<usize, DataError> {
            let mut input = input::open(&path, compression, 0)?;
            read_up_to(&mut input, start).map_err(|e| io_error(&path, "read", e))
        };
        let length = read(Compression::None, &mut start)?;
        let compression = compression_of(&start[..length]);
        let mut magic = [0; 4];
        let length = read(compression, &mut magic)?;
        let size = match compression {
            Compression::None => size,
            _ => {
                let mut content = input::open(&path, compression, 0)?;
                let size = input::skip(&mut content, u64::MAX);
                size.map_err(|e| io_error(&path, "decompress", e))?
            }
        };
        let (layout, end, unit) = match u32::from_le_bytes(magic) {
            dmlc::MAGIC if length == 4 => (Layout::Dmlc, size, Unit::Bytes),
            chunked::MAGIC if length == 4 => {
                let (chunks, records) = index(&path, compression, size)?;
                (Layout::Chunked(chunks.into()), records, Unit::Records)
            }
            _ => (Layout::Text, size, Unit::Bytes),
        };
        self.files.push(DataFile {
            compression,
            layout,
        });
        self.shards.push(Shard {
            path: path.into(),
            first: 0,
            end,
            unit,
        });
        Ok(())
    }
}

/// Files of a path, in the order of their names.
fn files_of(path: &Path) -> Result<Vec<PathBuf>, DataError> {
    let counts = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().as_encoded_bytes();
        !name.starts_with(b".") && !name.starts_with(b"_") && !path.is_dir()
    };
    // A path that is no text is no pattern: it exists, or the error names it.
    let text = path.to_str().unwrap_or_default();
    let mut files: Vec<PathBuf> = if path.is_dir() {
        let entries = fs::read_dir(path).map_err(|e| io_error(path, "list", e))?;
        let paths = entries.map(|entry| entry.map(|e| e.path()));
        let all: Result<Vec<_>, _> = paths.collect();
        all.map_err(|e| io_error(path, "list", e))?
    } else if !path.exists() && text.contains(['*', '?', '[']) {
        let wrong = |e: glob::PatternError| DataError::Pattern {
            path: path.to_owned(),
            what: e.msg,
        };
        let found: Result<Vec<_>, _> = glob::glob(text).map_err(wrong)?.collect();
        found.map_err(|e| {
            let at = e.path().to_owned();
            io_error(&at, "list", e.into())
        })?
    } else {
        return Ok(vec![path.to_owned()]);
    };
    files.retain(counts);
    files.sort_unstable();
    match files.is_empty() {
        true => Err(DataError::NoFiles {
            path: path.to_owned(),
        }),
        false => Ok(files),
    }
}

/// Beginning of a chunk of a file.
#[derive(Debug, Clone, Copy, Default)]
struct ChunkStart {
    /// Number of its first record.
    first: u64,
    /// Offset in the file, in bytes.
    offset: u64,
}

/// Finds the chunks of a file; returns them and the number of records.
fn index(
    path: &Path,
    compression: Compression,
    size: u64,
) -> Result<(Vec<ChunkStart>, u64), DataError> {
    let mut chunks = Vec::new();
    let (mut offset, mut records) = (0, 0);
    let mut content = input::open(path, compression, 0)?;
    loop {
        let header = chunked::read_header(&mut content).map_err(|e| io_error(path, "read", e))?;
        let damaged = |fault| damaged(path, offset, fault);
        let header = match header {
            None => return Ok((chunks, records)),
            Some(header) => header.map_err(damaged)?,
        };
        let payload = u64::from(header.compressed_bytes);
        let end = offset + chunked::HEADER_BYTES as u64 + payload;
        if end > size {
            return Err(damaged(FileFault::Truncated));
        }
        chunks.push(ChunkStart {
            first: records,
            offset,
        });
        records += u64::from(header.records);
        offset = end;
        match compression {
            // A large payload is passed by a seek.
            Compression::None if payload > 1 << 20 => {
                content = input::open(path, compression, offset)?
            }
            _ => {
                let passed = input::skip(&mut content, payload);
                passed.map_err(|e| io_error(path, "decompress", e))?;
            }
        }
    }
}

fn damaged(path: &Path, offset: u64, fault: FileFault) -> DataError {
    DataError::Damaged {
        path: path.to_owned(),
        offset,
        fault,
    }
}

impl DataSource for FileSource {
    fn shards(&self) -> &[Shard] {
        &self.shards
    }

    fn open(&self, shard: &Shard) -> Result<Box<dyn Records>, DataError> {
        let at = self.shards.iter().position(|s| s.path == shard.path);
        let Some((file, owned)) = at.map(|at| (&self.files[at], &self.shards[at])) else {
            return Err(no_such_shard(shard));
        };
        if shard.end > owned.end || shard.unit != owned.unit {
            return Err(no_such_shard(shard));
        }
        let path = shard.path.clone();
        let range = shard.first..shard.end;
        if shard.unit == Unit::Bytes && file.compression == Compression::None {
            let now = input::size(&path)?;
            if now < shard.end {
                return Err(shrunk(shard, now));
            }
        }
        let open = |offset| input::open(&path, file.compression, offset);
        let failed = |e| io_error(&path, "read", e);
        let limit = limits::DATA_LINE_BYTES_MAX;
        Ok(match &file.layout {
            Layout::Text => {
                let source = open(start_of(&range, self.quoting))?;
                let lines = LineReader::new(source, range, limit, self.quoting).map_err(failed)?;
                Box::new(Lines {
                    lines,
                    compression: file.compression,
                    shard: shard.clone(),
                })
            }
            Layout::Dmlc => Box::new(DmlcRecords {
                reader: dmlc::Reader::new(open(range.start)?, range.start, range.end)
                    .map_err(failed)?,
                shard: shard.clone(),
                number: None,
            }),
            Layout::Chunked(chunks) => {
                let next = chunks.partition_point(|chunk| chunk.first <= range.start);
                let before = next.checked_sub(1).map(|at| chunks[at]);
                let ChunkStart { first, offset } = before.unwrap_or_default();
                Box::new(ChunkedRecords {
                    source: open(offset)?,
                    shard: shard.clone(),
                    chunk: Chunk::default(),
                    offset,
                    next_offset: offset,
                    first,
                    next: range.start,
                })
            }
        })
    }
}

fn no_such_shard(shard: &Shard) -> DataError {
    DataError::NoSuchShard {
        path: shard.path.to_path_buf(),
        first: shard.first,
        end: shard.end,
    }
}

struct Lines {
    lines: LineReader<Input>,
    compression: Compression,
    shard: Shard,
}

impl Records for Lines {
    fn advance(&mut self) -> Result<bool, DataError> {
        let path = &self.shard.path;
        if self
            .lines
            .advance()
            .map_err(|e| io_error(path, "read", e))?
        {
            return Ok(true);
        }
        if self.lines.position() < self.shard.end {
            return Err(shrunk(&self.shard, self.lines.position()));
        }
        Ok(false)
    }

    fn bytes(&self) -> &[u8] {
        self.lines.text()
    }

    fn fault(&self, fault: LineFault) -> DataError {
        let (path, offset) = (&self.shard.path, self.lines.offset());
        let before = match input::open(path, self.compression, 0) {
            Ok(source) => count_newlines(source, offset),
            Err(e) => return e,
        };
        match before {
            Ok(before) => DataError::Line {
                path: path.to_path_buf(),
                line: before + 1,
                offset,
                fault,
            },
            Err(e) => io_error(path, "number the lines of", e),
        }
    }
}

fn shrunk(shard: &Shard, read_bytes: u64) -> DataError {
    DataError::Shrunk {
        path: shard.path.to_path_buf(),
        size_bytes: shard.end,
        read_bytes,
    }
}

fn bad_record(shard: &Shard, record: u64, offset: u64, fault: LineFault) -> DataError {
    DataError::Record {
        path: shard.path.to_path_buf(),
        record,
        offset,
        fault,
    }
}

struct DmlcRecords {
    reader: dmlc::Reader<Input>,
    shard: Shard,
    /// Number of the record in the shard.
    number: Option<u64>,
}

impl Records for DmlcRecords {
    fn advance(&mut self) -> Result<bool, DataError> {
        let there = self.reader.advance().map_err(|e| match e {
            dmlc::ReadError::Io(e) => io_error(&self.shard.path, "read", e),
            dmlc::ReadError::Damaged { offset, fault } => damaged(&self.shard.path, offset, fault),
        })?;
        if !there && self.reader.position() < self.shard.end {
            return Err(shrunk(&self.shard, self.reader.position()));
        }
        self.number = Some(self.number.map_or(0, |n| n + 1));
        Ok(there)
    }

    fn bytes(&self) -> &[u8] {
        self.reader.record()
    }

    fn fault(&self, fault: LineFault) -> DataError {
        let number = self.number.unwrap_or(0);
        bad_record(&self.shard, number, self.reader.offset(), fault)
    }
}

struct ChunkedRecords {
    source: Input,
    shard: Shard,
    chunk: Chunk,
    /// Offset of the chunk.
    offset: u64,
    next_offset: u64,
    /// Number of the chunk's first record.
    first: u64,
    /// Number of the record after the current one.
    next: u64,
}

impl ChunkedRecords {
    fn read_chunk(&mut self) -> Result<bool, DataError> {
        let path = &self.shard.path;
        let failed = |e| io_error(path, "read", e);
        self.first += self.chunk.len() as u64;
        self.offset = self.next_offset;
        let damaged = |fault| damaged(path, self.offset, fault);
        let Some(header) = chunked::read_header(&mut self.source).map_err(failed)? else {
            return Ok(false);
        };
        let header = header.map_err(damaged)?;
        let chunk = chunked::read_payload(&mut self.source, &header).map_err(failed)?;
        self.chunk = chunk.map_err(damaged)?;
        let bytes = chunked::HEADER_BYTES as u64 + u64::from(header.compressed_bytes);
        self.next_offset = self.offset + bytes;
        Ok(true)
    }
}

impl Records for ChunkedRecords {
    fn advance(&mut self) -> Result<bool, DataError> {
        if self.next >= self.shard.end {
            return Ok(false);
        }
        while self.next >= self.first + self.chunk.len() as u64 {
            if !self.read_chunk()? {
                return Err(shrunk(&self.shard, self.next));
            }
        }
        self.next += 1;
        Ok(true)
    }

    fn bytes(&self) -> &[u8] {
        let index = self.next.checked_sub(self.first + 1);
        let index = index.and_then(|index| usize::try_from(index).ok());
        // Before the first record there are no bytes.
        index
            .and_then(|index| self.chunk.record(index))
            .unwrap_or_default()
    }

    fn fault(&self, fault: LineFault) -> DataError {
        bad_record(&self.shard, self.next - 1, self.offset, fault)
    }
}

/// Source of records in memory.
#[derive(Debug, Clone)]
pub struct MemorySource {
    shards: Vec<Shard>,
    records: Arc<[Vec<u8>]>,
}

impl MemorySource {
    /// Makes a source of records; errors refer to it by `name`.
    pub fn new(name: &str, records: Vec<Vec<u8>>) -> Self {
        let shard = Shard {
            path: Path::new(name).into(),
            first: 0,
            end: records.len() as u64,
            unit: Unit::Records,
        };
        Self {
            shards: vec![shard],
            records: records.into(),
        }
    }
}

impl DataSource for MemorySource {
    fn shards(&self) -> &[Shard] {
        &self.shards
    }

    fn open(&self, shard: &Shard) -> Result<Box<dyn Records>, DataError> {
        let owned = &self.shards[0];
        if shard.path != owned.path || shard.unit != owned.unit || shard.end > owned.end {
            return Err(no_such_shard(shard));
        }
        Ok(Box::new(MemoryRecords {
            records: self.records.clone(),
            shard: shard.clone(),
            next: shard.first,
        }))
    }
}

struct MemoryRecords {
    records: Arc<[Vec<u8>]>,
    shard: Shard,
    next: u64,
}

impl Records for MemoryRecords {
    fn advance(&mut self) -> Result<bool, DataError> {
        let there = self.next < self.shard.end;
        self.next += u64::from(there);
        Ok(there)
    }

    fn bytes(&self) -> &[u8] {
        let current = usize::try_from(self.next.wrapping_sub(1)).ok();
        let record = current.and_then(|current| self.records.get(current));
        record.map_or(&[], Vec::as_slice)
    }

    fn fault(&self, fault: LineFault) -> DataError {
        let number = self.next.saturating_sub(1);
        bad_record(&self.shard, number, 0, fault)
    }
}

#[cfg(test)]
#[path = "source_tests.rs"]
mod tests;
