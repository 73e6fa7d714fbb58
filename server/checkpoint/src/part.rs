//! A part file, which holds one server's rows of a save: a writer, and a reader with an index of the chunks.
//! Every byte read is validated by a checksum.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use tidewater_protocol::layout::LINE_BYTES;
use tidewater_protocol::limits::CHUNK_BYTES;

use crate::CheckpointError;
use crate::chunk::{
    Bytes, Chunk, End, FORMAT_VERSION, FORMAT_VERSIONS, Head, Line, fold, payload_check,
};
use crate::disk::Disk;
use crate::manifest::{SavedFile, part_length, part_name};

/// Writer of a server's part file. The file has a temporary name until [`PartWriter::finish`]; a writer
/// dropped before that removes it.
pub struct PartWriter {
    disk: Box<dyn Disk>,
    dir: PathBuf,
    name: String,
    file: File,
    nonce: u64,
    /// Lines written so far.
    lines: u64,
    bytes: u64,
    records: u64,
    running: u64,
    open: Open,
    finished: bool,
}

/// The chunk to which records are appended, in memory until it is written.
#[derive(Default)]
struct Open {
    table: u32,
    partition: u32,
    removed: bool,
    records: u64,
    payload: Vec<u8>,
}

impl std::fmt::Debug for PartWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut s = f.debug_struct("PartWriter");
        s.field("name", &self.name)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

impl PartWriter {
    /// Creates a server's part file under a temporary name and writes its first line. `nonce` must never have
    /// been used before.
    ///
    /// # Errors
    /// The file cannot be made.
    pub fn create(
        mut disk: Box<dyn Disk>,
        dir: &Path,
        server: u32,
        nonce: u64,
    ) -> Result<Self, CheckpointError> {
        let name = part_name(nonce, server);
        let path = temporary(dir, &name);
        let file = disk
            .create(&path)
            .map_err(CheckpointError::io("create", &path))?;
        let mut writer = Self {
            disk,
            dir: dir.to_owned(),
            name,
            file,
            nonce,
            lines: 0,
            bytes: 0,
            records: 0,
            running: nonce,
            open: Open::default(),
            finished: false,
        };
        writer.write(
            &Head {
                version: FORMAT_VERSION,
                server,
                nonce,
            }
            .encode(),
        )?;
        Ok(writer)
    }

    /// Appends `records` encoded records of one partition, with their keys, to the open chunk. The open chunk is
    /// written first if it would exceed `CHUNK_BYTES` or if table or partition change, so records of a partition
    /// should come together.
    ///
    /// # Errors
    /// Error of the file system.
    pub fn records(
        &mut self,
        table: u32,
        partition: u32,
        records: u64,
        bytes: &[u8],
    ) -> Result<(), CheckpointError> {
        self.append(table, partition, false, records, bytes)
    }

    /// Appends the keys of rows that were removed since the checkpoint that this part extends. They must come before the
    /// records of the same partition: a load removes these rows when it reaches the chunk.
    ///
    /// # Errors
    /// Error of the file system.
    pub fn removed(
        &mut self,
        table: u32,
        partition: u32,
        keys: &[u64],
    ) -> Result<(), CheckpointError> {
        for keys in keys.chunks(CHUNK_BYTES / 8) {
            let bytes: Vec<u8> = keys.iter().flat_map(|key| key.to_le_bytes()).collect();
            self.append(table, partition, true, keys.len() as u64, &bytes)?;
        }
        Ok(())
    }

    fn append(
        &mut self,
        table: u32,
        partition: u32,
        removed: bool,
        records: u64,
        bytes: &[u8],
    ) -> Result<(), CheckpointError> {
        let open = &self.open;
        let other = (open.table, open.partition, open.removed) != (table, partition, removed);
        if other || open.payload.len() + bytes.len() > CHUNK_BYTES {
            self.close_chunk()?;
            let open = &mut self.open;
            (open.table, open.partition, open.removed) = (table, partition, removed);
        }
        self.open.records += records;
        self.open.payload.extend_from_slice(bytes);
        Ok(())
    }

    /// Writes the last chunk and line, makes the file durable and renames it to its final name. Returns its
    /// manifest entry, with server 0, no clocks and no part that it extends; the caller sets them.
    ///
    /// # Errors
    /// Error of the file system.
    pub fn finish(mut self) -> Result<SavedFile, CheckpointError> {
        self.close_chunk()?;
        let (chunks, records, running) = (self.lines - 1, self.records, self.running);
        let end = Line::End(End {
            chunks,
            records,
            running,
        });
        self.write(&end.encode(self.lines, self.nonce))?;
        let (from, to) = (temporary(&self.dir, &self.name), self.dir.join(&self.name));
        self.disk
            .sync(&self.file, &from)
            .map_err(CheckpointError::io("sync", &from))?;
        self.disk
            .rename(&from, &to)
            .map_err(CheckpointError::io("rename to", &to))?;
        self.finished = true;
        self.disk
            .sync_dir(&self.dir)
            .map_err(CheckpointError::io("sync", &self.dir))?;
        Ok(SavedFile {
            server: 0,
            file: self.name.clone(),
            rows: records,
            bytes: self.bytes,
            check: running,
            clocks: Vec::new(),
            extends: None,
        })
    }

    fn close_chunk(&mut self) -> Result<(), CheckpointError> {
        let Open {
            table,
            partition,
            removed,
            records,
            mut payload,
        } = std::mem::take(&mut self.open);
        if records > 0 {
            let check = payload_check(self.nonce, self.lines, &payload);
            let bytes = payload.len() as u64;
            let chunk = Chunk {
                table,
                partition,
                removed,
                records,
                bytes,
                check,
            };
            self.running = fold(self.running, &chunk);
            self.records += if removed { 0 } else { records };
            self.write(&Line::Chunk(chunk).encode(self.lines, self.nonce))?;
            self.write_bytes(&payload)?;
        }
        payload.clear();
        self.open.payload = payload;
        Ok(())
    }

    fn write(&mut self, line: &Bytes) -> Result<(), CheckpointError> {
        self.lines += 1;
        self.write_bytes(line)
    }

    fn write_bytes(&mut self, bytes: &[u8]) -> Result<(), CheckpointError> {
        let written = self.disk.write(&mut self.file, bytes);
        written.map_err(|source| CheckpointError::Write {
            path: temporary(&self.dir, &self.name),
            bytes: bytes.len() as u64,
            at: self.bytes,
            source,
        })?;
        self.bytes += bytes.len() as u64;
        Ok(())
    }
}

impl Drop for PartWriter {
    fn drop(&mut self) {
        if !self.finished {
            // The next save sweeps what cannot be removed.
            let _ = self.disk.remove(&temporary(&self.dir, &self.name));
        }
    }
}

/// Random access to the bytes of a part file: a file, or a slice in memory.
pub trait Source {
    /// Fills `out` with the bytes that start at byte `at`.
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`] when there are fewer; errors of the system.
    fn read_at(&self, out: &mut [u8], at: u64) -> io::Result<()>;
}

impl Source for File {
    fn read_at(&self, out: &mut [u8], at: u64) -> io::Result<()> {
        self.read_exact_at(out, at)
    }
}

impl Source for &[u8] {
    fn read_at(&self, out: &mut [u8], at: u64) -> io::Result<()> {
        let from = usize::try_from(at).ok().and_then(|at| self.get(at..));
        let bytes = from.and_then(|from| from.get(..out.len()));
        out.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

/// Position and checksum of a chunk of records in a part file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkIndex {
    /// Number of the table in the model.
    pub table: u32,
    /// Partition of all records.
    pub partition: u32,
    /// Whether the payload is the keys of removed rows, of a part that extends another.
    pub removed: bool,
    /// Number of records, or of removed rows, in the payload.
    pub records: u64,
    /// Position of the payload in the file, in bytes.
    pub at: u64,
    bytes: u64,
    check: u64,
    /// Number of the chunk's header line, counted from the first line (0).
    number: u64,
}

/// Reader of a part file of a saved model: the file, and the index of its chunks.
#[derive(Debug)]
pub struct PartReader<S = File> {
    path: PathBuf,
    file: S,
    nonce: u64,
    chunks: Vec<ChunkIndex>,
}

impl PartReader {
    /// Opens a part file that a manifest names, checks its length and reads the index of its chunks.
    ///
    /// # Errors
    /// The part is missing, was cut, is damaged or of another version.
    pub fn open(dir: &Path, expected: &SavedFile) -> Result<Self, CheckpointError> {
        let path = part_length(dir, expected)?;
        let file = File::open(&path).map_err(CheckpointError::io("open", &path))?;
        Self::new(file, path, expected)
    }
}

impl<S: Source> PartReader<S> {
    /// Reads and validates all lines of a part file against its manifest entry `expected`. Errors name the
    /// file `path`. Cost: a read of 64 bytes and 56 bytes of memory for each chunk; payloads are not read.
    ///
    /// # Errors
    /// The part is damaged or of another version.
    pub fn new(file: S, path: PathBuf, expected: &SavedFile) -> Result<Self, CheckpointError> {
        let mut reader = Self {
            path,
            file,
            nonce: 0,
            chunks: Vec::new(),
        };
        let line = reader.line(0)?;
        let Some(head) = Head::decode(&line) else {
            return Err(reader.damaged(0, "the checksum of the first line does not match"));
        };
        if !FORMAT_VERSIONS.contains(&head.version) {
            let (found, expected) = (head.version, FORMAT_VERSION);
            return Err(CheckpointError::Version {
                path: reader.path,
                found,
                expected,
            });
        }
        if part_name(head.nonce, head.server) != expected.file {
            return Err(reader.damaged(0, "it is the part of another save or server"));
        }
        reader.nonce = head.nonce;
        reader.read_index(expected)?;
        Ok(reader)
    }

    fn read_index(&mut self, expected: &SavedFile) -> Result<(), CheckpointError> {
        let (mut at, mut records, mut running) = (LINE_BYTES as u64, 0_u64, self.nonce);
        let mut number = 0;
        loop {
            number += 1;
            let line = self.line(at)?;
            let end = at + LINE_BYTES as u64;
            let chunk = match Line::decode(&line, number, self.nonce) {
                Some(Line::Chunk(chunk)) => chunk,
                Some(Line::End(end_line)) => {
                    let have = End {
                        chunks: number - 1,
                        records,
                        running,
                    };
                    let fits = running == expected.check && records == expected.rows;
                    if end_line != have || !fits || end != expected.bytes {
                        return Err(self.damaged(at, "its end does not fit what came before"));
                    }
                    return Ok(());
                }
                None => return Err(self.damaged(at, "the checksum of a line does not match")),
            };
            running = fold(running, &chunk);
            if chunk.removed && expected.extends.is_none() {
                return Err(self.damaged(at, "it removes rows and extends no part"));
            }
            if !chunk.removed {
                records = records.saturating_add(chunk.records);
            }
            at = end + chunk.bytes;
            if at > expected.bytes {
                // Before memory is allocated for bytes that do not exist.
                return Err(self.damaged(end, "the file ends in a chunk"));
            }
            self.chunks.push(ChunkIndex {
                table: chunk.table,
                partition: chunk.partition,
                removed: chunk.removed,
                records: chunk.records,
                at: end,
                bytes: chunk.bytes,
                check: chunk.check,
                number,
            });
        }
    }

    /// Index of all chunks in the order of the file.
    pub fn chunks(&self) -> &[ChunkIndex] {
        &self.chunks
    }

    /// Reads the payload of a chunk of this part file into `payload`, replacing its content, and validates
    /// its checksum. Cost: one read.
    ///
    /// # Errors
    /// The payload is damaged, or the file cannot be read.
    pub fn read(&self, chunk: &ChunkIndex, payload: &mut Vec<u8>) -> Result<(), CheckpointError> {
        payload.clear();
        payload.resize(chunk.bytes as usize, 0);
        self.read_at(chunk.at, payload)?;
        if payload_check(self.nonce, chunk.number, payload) != chunk.check {
            return Err(self.damaged(chunk.at, "the checksum of a chunk does not match"));
        }
        Ok(())
    }

    /// Makes the error that this part file is damaged at byte `at`; `what` names the failed check.
    pub(crate) fn damaged(&self, at: u64, what: &'static str) -> CheckpointError {
        CheckpointError::Damaged {
            path: self.path.clone(),
            at,
            what,
        }
    }

    fn line(&self, at: u64) -> Result<Bytes, CheckpointError> {
        let mut line = [0; LINE_BYTES];
        self.read_at(at, &mut line)?;
        Ok(line)
    }

    fn read_at(&self, at: u64, out: &mut [u8]) -> Result<(), CheckpointError> {
        match self.file.read_at(out, at) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Err(self.damaged(at, "the file ends here"))
            }
            Err(error) => Err(CheckpointError::io("read", &self.path)(error)),
        }
    }
}

fn temporary(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("{name}.tmp"))
}
