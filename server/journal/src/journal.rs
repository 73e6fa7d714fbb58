//! The journal's file: it is locked, read, appended to and replaced.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use tidewater_protocol::ids::{ClusterId, Incarnation};
use tidewater_protocol::layout::hash::H64;
use tidewater_protocol::mutants::{self, Mutant};
use tidewater_topology::hostinfo;

use crate::image::{Change, Image};

/// Version of the journal's format.
const VERSION: u64 = 1;
/// Seed of the checksums.
const CHECK: u64 = u64::from_le_bytes(*b"journal\0");
/// Bytes of changes after which the journal is replaced, or the size of its image if that is more.
const GROWTH: u64 = 1 << 20;
/// Line ends that damage may have made or removed, and records behind it are found.
const LOST_LINES: u64 = 4;
const NAME: &str = "journal";
const NEW_NAME: &str = "journal.new";
const DAMAGED_NAME: &str = "journal.damaged";
const LOCK_NAME: &str = "lock";

/// Why a journal cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// A file operation failed.
    #[error(
        "state of the coordinator: cannot {operation} {path}: {source}; check its rights and the free space"
    )]
    Io {
        /// Operation that was tried.
        operation: &'static str,
        /// File or directory of the operation.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// Another coordinator uses the directory.
    #[error(
        "state of the coordinator: {path} is in use by the coordinator with {holder}; stop it, or give another directory"
    )]
    InUse {
        /// Lock file of the directory.
        path: PathBuf,
        /// Process id and host of the other coordinator.
        holder: String,
    },
    /// No record of the journal is complete, or one does not follow from those before it.
    #[error(
        "state of the coordinator: {path} cannot be used ({why}); restore the file, or give an empty directory for a new cluster"
    )]
    Damaged {
        /// Path of the journal.
        path: PathBuf,
        /// The check that failed.
        why: String,
    },
    /// The journal is that of another cluster.
    #[error(
        "state of the coordinator: {path} is of {theirs}, and this coordinator is of {ours}; start it as before, or give an empty directory"
    )]
    Differs {
        /// Path of the journal.
        path: PathBuf,
        /// Numbers in the journal.
        theirs: String,
        /// Numbers of this start.
        ours: String,
    },
}

fn io_error(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> JournalError {
    let path = path.to_owned();
    move |source| JournalError::Io {
        operation,
        path,
        source,
    }
}

/// Facts of a cluster that a start must agree with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Random id of the cluster.
    pub cluster: ClusterId,
    /// Port on which its processes know the coordinator.
    pub port: u16,
    /// Servers of the cluster.
    pub servers: u32,
    /// Workers of each job; 0 if unknown.
    pub workers: u32,
    /// Directory of checkpoints, if they are taken.
    pub checkpoints: Option<String>,
}

impl Identity {
    /// The numbers and options that each start of the cluster has.
    fn describe(&self) -> String {
        let checkpoints = match &self.checkpoints {
            Some(dir) => format!(" and checkpoints in {dir}"),
            None => String::new(),
        };
        let (servers, workers) = (self.servers, self.workers);
        format!("{servers} servers, {workers} workers{checkpoints}")
    }
}

/// First record of a journal.
#[derive(Debug, Serialize, Deserialize)]
struct First<I> {
    tidewater_journal: u64,
    /// Starts of a coordinator with this journal.
    start: u64,
    identity: Identity,
    image: I,
}

/// The journal of a coordinator, locked.
#[derive(Debug)]
pub struct Journal {
    dir: PathBuf,
    file: File,
    _lock: File,
    /// The cluster of the journal; `None` for a new one.
    identity: Option<Identity>,
    start: u64,
    /// The image of the records that were read, until it is taken.
    image: Image,
    /// Lines of the file.
    lines: u64,
    /// Bytes of the first line.
    image_bytes: u64,
    /// Bytes of all lines after it.
    change_bytes: u64,
}

impl Journal {
    /// Opens, or makes, the journal of a directory, and locks it. A journal that ends in an incomplete record
    /// counts up to the one before; the log says so, and the file is kept as `journal.damaged`. One with complete
    /// records behind a damaged one is refused, and nothing is written.
    ///
    /// # Errors
    /// [`JournalError`].
    pub fn open(dir: &Path) -> Result<Self, JournalError> {
        fs::create_dir_all(dir).map_err(io_error("make", dir))?;
        let lock = lock(&dir.join(LOCK_NAME))?;
        let path = dir.join(NAME);
        let mut options = File::options();
        options.read(true).append(true).create(true).mode(0o600);
        let mut file = options.open(&path).map_err(io_error("open", &path))?;
        let mut text = Vec::new();
        file.read_to_end(&mut text)
            .map_err(io_error("read", &path))?;
        let mut journal = Self {
            dir: dir.to_owned(),
            file,
            _lock: lock,
            identity: None,
            start: 0,
            image: Image::default(),
            lines: 0,
            image_bytes: 0,
            change_bytes: 0,
        };
        if !text.is_empty() {
            journal.replay(&path, &text)?;
        }
        Ok(journal)
    }

    /// Takes the complete records of a file.
    fn replay(&mut self, path: &Path, text: &[u8]) -> Result<(), JournalError> {
        let mut rest = text;
        let line = next_line(&mut rest, 0, 0);
        let first = line.and_then(|json| serde_json::from_slice(json).map_err(|e| e.to_string()));
        let first: First<Image> = first.map_err(|why| JournalError::Damaged {
            path: path.to_owned(),
            why,
        })?;
        if first.tidewater_journal != VERSION {
            return Err(JournalError::Damaged {
                path: path.to_owned(),
                why: format!("version {}, not {VERSION}", first.tidewater_journal),
            });
        }
        (self.identity, self.start, self.image) = (Some(first.identity), first.start, first.image);
        self.lines = 1;
        while !rest.is_empty() {
            let left = rest.len();
            let line = next_line(&mut rest, self.start, self.lines);
            let changes = line.and_then(|json| {
                serde_json::from_slice::<Vec<Change>>(json).map_err(|error| error.to_string())
            });
            let changes = match changes {
                Ok(changes) => changes,
                Err(why) => {
                    // An append that was cut is the last one.
                    if has_later_record(rest, self.start, self.lines) {
                        return Err(JournalError::Damaged {
                            path: path.to_owned(),
                            why: format!("{why}, and complete records follow"),
                        });
                    }
                    let kept = self.dir.join(DAMAGED_NAME);
                    fs::copy(path, &kept).map_err(io_error("copy", path))?;
                    tracing::warn!(
                        journal = %path.display(), kept = %kept.display(), records = self.lines, bytes = left, why,
                        "the journal is cut or damaged: its last complete record counts, and the bytes after it \
                         do not"
                    );
                    break;
                }
            };
            for change in changes {
                let applied = self.image.apply(change);
                applied.map_err(|error| JournalError::Damaged {
                    path: path.to_owned(),
                    why: error.to_string(),
                })?;
            }
            self.lines += 1;
        }
        Ok(())
    }

    /// Port on which the processes of the journal's cluster know their coordinator; `None` for a new one.
    pub fn port(&self) -> Option<u16> {
        self.resumed().map(|identity| identity.port)
    }

    /// The cluster that a coordinator with this journal resumes. One that has ended is not resumed.
    pub const fn resumed(&self) -> Option<&Identity> {
        self.identity.as_ref()
    }

    /// Directory of checkpoints of the cluster, if they are taken.
    pub fn checkpoints(&self) -> Option<&String> {
        self.identity.as_ref()?.checkpoints.as_ref()
    }

    /// Takes the image out with which the coordinator resumes: from then on the coordinator keeps it.
    pub fn take_image(&mut self) -> Image {
        std::mem::take(&mut self.image)
    }

    /// Number of this start, which peers compare: it is the coordinator's incarnation.
    pub const fn incarnation(&self) -> Incarnation {
        Incarnation(self.start)
    }

    /// Begins a start of this cluster: writes the first record, durably.
    ///
    /// # Errors
    /// [`JournalError::Differs`] for another cluster; [`JournalError::Io`].
    pub fn begin(&mut self, ours: Identity) -> Result<(), JournalError> {
        let theirs = self.identity.as_ref().map(Identity::describe);
        if let Some(theirs) = theirs.filter(|theirs| *theirs != ours.describe()) {
            return Err(JournalError::Differs {
                path: self.dir.join(NAME),
                theirs,
                ours: ours.describe(),
            });
        }
        self.identity = Some(ours);
        self.start += 1;
        let mut image = std::mem::take(&mut self.image);
        image.restart();
        self.rewrite(&image)?;
        self.image = image;
        Ok(())
    }

    /// Appends the changes of one step, durably, which have led to `image`. Cost: one sync; for a journal that
    /// has grown the size of the image.
    ///
    /// # Errors
    /// [`JournalError::Io`].
    pub fn append(&mut self, changes: &[Change], image: &Image) -> Result<(), JournalError> {
        let path = self.dir.join(NAME);
        let line = line(&changes, self.start, self.lines);
        let line = line.map_err(io_error("encode a record of", &path))?;
        self.file
            .write_all(&line)
            .map_err(io_error("write", &path))?;
        self.file.sync_data().map_err(io_error("sync", &path))?;
        self.lines += 1;
        self.change_bytes += line.len() as u64;
        if self.change_bytes > self.image_bytes.max(GROWTH) {
            self.rewrite(image)?;
        }
        Ok(())
    }

    /// Replaces the file by one with the image as its first record.
    fn rewrite(&mut self, image: &Image) -> Result<(), JournalError> {
        // A change is noted only by a coordinator that has begun.
        let Some(identity) = self.identity.clone() else {
            unreachable!("a record of a journal that has not begun");
        };
        let first = First {
            tidewater_journal: VERSION,
            start: self.start,
            identity,
            image,
        };
        let (path, new) = (self.dir.join(NAME), self.dir.join(NEW_NAME));
        let line = line(&first, 0, 0).map_err(io_error("encode a record of", &path))?;
        let mut options = File::options();
        options.write(true).create(true).truncate(true).mode(0o600);
        let mut file = options.open(&new).map_err(io_error("make", &new))?;
        file.write_all(&line).map_err(io_error("write", &new))?;
        file.sync_all().map_err(io_error("sync", &new))?;
        fs::rename(&new, &path).map_err(io_error("rename", &new))?;
        let dir = File::open(&self.dir).and_then(|dir| dir.sync_all());
        dir.map_err(io_error("sync", &self.dir))?;
        self.file = file;
        self.lines = 1;
        (self.image_bytes, self.change_bytes) = (line.len() as u64, 0);
        Ok(())
    }

    /// Notes that the cluster has ended: the next start with this directory begins a new one.
    ///
    /// # Errors
    /// [`JournalError::Io`].
    pub fn end(self) -> Result<(), JournalError> {
        let path = self.dir.join(NAME);
        fs::remove_file(&path).map_err(io_error("remove", &path))
    }
}

fn checksum(json: &[u8], start: u64, number: u64) -> u64 {
    H64::new([CHECK, start, number, json.len() as u64]).finish_bytes(json)
}

/// A record as a line of the file.
fn line<T: Serialize>(record: &T, start: u64, number: u64) -> io::Result<Vec<u8>> {
    let json = serde_json::to_vec(record)?;
    let mut line = format!("{:016x} ", checksum(&json, start, number)).into_bytes();
    line.extend_from_slice(&json);
    line.push(b'\n');
    Ok(line)
}

/// Takes the next line of `rest` and returns its JSON.
fn next_line<'a>(rest: &mut &'a [u8], start: u64, number: u64) -> Result<&'a [u8], String> {
    let end = rest.iter().position(|&byte| byte == b'\n');
    let end = end.ok_or("it ends in the middle of a record")?;
    let (line, after) = (&rest[..end], &rest[end + 1..]);
    let (sum, json) = line
        .split_at_checked(17)
        .ok_or("a record without a checksum")?;
    let sum = std::str::from_utf8(&sum[..16]).map_err(|_| "a checksum that is no text")?;
    let sum = u64::from_str_radix(sum, 16).map_err(|_| "a checksum that is no number")?;
    if sum != checksum(json, start, number) && !mutants::on(Mutant::JournalUnchecked) {
        return Err(format!("the checksum of record {number} does not match"));
    }
    *rest = after;
    Ok(json)
}

/// Whether a complete record follows a damaged one, which is number `number` and begins `rest`. Damage may also
/// have made two records one, or one record two.
fn has_later_record(rest: &[u8], start: u64, number: u64) -> bool {
    let lines = rest.split_inclusive(|&byte| byte == b'\n').skip(1);
    let numbers = |at: u64| number + at.saturating_sub(LOST_LINES)..=number + at + LOST_LINES;
    lines.zip(1..).any(|(mut line, at)| {
        let line = &mut line;
        numbers(at).any(|number| next_line(line, start, number).is_ok())
    })
}

/// Locks the directory for this process, and writes its id and host into the lock.
fn lock(path: &Path) -> Result<File, JournalError> {
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false);
    let mut file = options
        .mode(0o600)
        .open(path)
        .map_err(io_error("open", path))?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) if !mutants::on(Mutant::JournalLockIgnored) => {
            let mut holder = String::new();
            file.read_to_string(&mut holder)
                .map_err(io_error("read", path))?;
            return Err(JournalError::InUse {
                path: path.to_owned(),
                holder: holder.trim().to_owned(),
            });
        }
        Err(Errno::WOULDBLOCK) => {}
        Err(error) => return Err(io_error("lock", path)(error.into())),
    }
    let holder = format!("pid {} on {}\n", std::process::id(), hostinfo::host_name());
    file.set_len(0)
        .and_then(|()| file.write_all(holder.as_bytes()))
        .map_err(io_error("write", path))?;
    Ok(file)
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
