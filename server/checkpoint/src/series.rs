//! The checkpoints of a job: numbered saved models, each in a directory of its own.
//!
//! ```text
//! DIR/NAMESPACE/checkpoint-0000000007/manifest.json   a saved model, complete when its manifest is there
//! DIR/NAMESPACE/alive                                  when the job was last seen, and its clocks
//! ```
//! A checkpoint never replaces another one: its directory is new. The older ones are removed after its
//! manifest is durable, the manifest of each first, so that no manifest stays without its parts.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use tidewater_protocol::mutants::{self, Mutant};
use tidewater_protocol::wire::control::DomainClock;

use crate::CheckpointError;
use crate::disk::Disk;
use crate::manifest::{MANIFEST_NAME, Manifest, part_length, read_manifest};

/// Name of the file that records when the job was last alive.
const ALIVE_NAME: &str = "alive";
const PREFIX: &str = "checkpoint-";
/// Maximum size of an alive file that is read, in bytes. A larger file is ignored.
const ALIVE_BYTES_MAX: u64 = 64 << 10;

/// Content of the alive file of a job: when the job was last alive, and its clocks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alive {
    /// Time of the last note, in milliseconds since 1970.
    pub unix_ms: u64,
    /// Highest clocks of the job's workers, plus those of the checkpoint from which it continued.
    pub clocks: Vec<DomainClock>,
}

/// The newest complete checkpoint of a job.
#[derive(Debug, Clone, PartialEq)]
pub struct Newest {
    /// Number of the checkpoint.
    pub number: u64,
    /// Directory of the checkpoint.
    pub dir: String,
    /// Manifest of the checkpoint.
    pub manifest: Manifest,
}

/// Result of searching a job's directory for checkpoints.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Found {
    /// The newest complete checkpoint; `None` if none was ever completed.
    pub newest: Option<Newest>,
    /// Number of the next checkpoint: one above the highest number that exists.
    pub next: u64,
    /// Error texts of checkpoints newer than `newest` that are cut or damaged.
    pub skipped: Vec<String>,
    /// Time at which the job was last alive, in milliseconds since 1970; `None` without an alive file.
    pub seen_ms: Option<u64>,
    /// Clocks of the job at that time.
    pub seen: Vec<DomainClock>,
}

/// Path of the directory of a job's checkpoints in `dir`. Bytes of the namespace other than letters, digits,
/// `-`, `_` and inner `.` become `%XX`.
pub fn dir_of_job(dir: &str, namespace: &str) -> String {
    let mut path = dir.to_owned();
    path.push('/');
    for (n, byte) in namespace.bytes().enumerate() {
        let is_plain =
            byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_') || (byte == b'.' && n > 0);
        match is_plain {
            true => path.push(char::from(byte)),
            false => path.push_str(&format!("%{byte:02x}")),
        }
    }
    path
}

/// Path of checkpoint `number` in the directory `job` of its job.
pub fn dir_of(job: &str, number: u64) -> String {
    format!("{job}/{PREFIX}{number:010}")
}

/// Parses the checkpoint number from a directory's name. `None` if the name is not that of a checkpoint.
fn number_of(dir: &Path) -> Option<u64> {
    let digits = dir.file_name()?.to_str()?.strip_prefix(PREFIX)?;
    let number = digits.parse().ok()?;
    (format!("{number:010}") == digits).then_some(number)
}

/// Lists the numbers of a job's checkpoints, complete or not, highest first. Empty if the directory does not
/// exist.
fn numbers(job: &Path) -> Result<Vec<u64>, CheckpointError> {
    let entries = match fs::read_dir(job) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(CheckpointError::io("list", job)(error)),
    };
    let mut all = Vec::new();
    for entry in entries {
        let entry = entry.map_err(CheckpointError::io("list", job))?;
        all.extend(number_of(&entry.path()));
    }
    all.sort_unstable_by(|a, b| b.cmp(a));
    Ok(all)
}

/// Reads the manifest of a checkpoint and checks that its part files exist with their lengths. Does not read
/// the parts.
fn complete(dir: &Path) -> Result<Manifest, CheckpointError> {
    let manifest = read_manifest(dir)?;
    if mutants::on(Mutant::CutCheckpointTaken) {
        return Ok(manifest);
    }
    for file in &manifest.files {
        part_length(dir, file)?;
    }
    Ok(manifest)
}

/// Finds the newest complete checkpoint of a job with a number below `before`.
///
/// # Errors
/// The directory or a checkpoint cannot be read, or has an unknown format version. Also if checkpoints have
/// manifests and none of them is complete: the job must not silently start from nothing.
pub fn find(job: &str, before: u64) -> Result<Found, CheckpointError> {
    let all = numbers(Path::new(job))?;
    let alive = read_alive(Path::new(job));
    let mut found = Found {
        next: all.first().map_or(1, |newest| newest.saturating_add(1)),
        seen_ms: alive.as_ref().map(|alive| alive.unix_ms),
        seen: alive.map_or_else(Vec::new, |alive| alive.clocks),
        ..Found::default()
    };
    for number in all.into_iter().filter(|number| *number < before) {
        let dir = dir_of(job, number);
        let path = PathBuf::from(&dir);
        match complete(&path) {
            Ok(manifest) => {
                found.newest = Some(Newest {
                    number,
                    dir,
                    manifest,
                });
                return Ok(found);
            }
            Err(error @ (CheckpointError::Io { .. } | CheckpointError::Version { .. })) => {
                return Err(error);
            }
            // One without a manifest was never complete.
            Err(_) if !path.join(MANIFEST_NAME).exists() => {}
            Err(error) => found.skipped.push(format!("{dir}: {error}")),
        }
    }
    match found.skipped.first() {
        Some(what) => Err(CheckpointError::NoCheckpoint {
            path: PathBuf::from(job),
            what: what.clone(),
        }),
        None => Ok(found),
    }
}

/// Removes old checkpoints of a job up to `current`, which is complete. The newest `keep` complete ones stay. With
/// `keep` of 2 or more one of those that stay shares no part with the newest one, as soon as there is one: a damaged
/// part leaves another to load. Also kept are those with higher numbers than `current`, those that a load reads, and those that cannot be read.
/// Failures are logged.
pub fn prune(disk: &mut dyn Disk, current: &Path, keep: usize) {
    let (Some(job), Some(number)) = (current.parent(), number_of(current)) else {
        return;
    };
    let Ok(all) = numbers(job) else {
        return;
    };
    let (mut kept, mut newest, mut has_other) = (0, None, false);
    for old in all.into_iter().filter(|old| *old <= number) {
        let dir = PathBuf::from(dir_of(&job.to_string_lossy(), old));
        let read = complete(&dir);
        if let Ok(manifest) = &read {
            let newest = newest.get_or_insert_with(|| manifest.clone());
            let is_apart = shares_no_part(newest, manifest);
            if kept < keep || (is_apart && keep > 1 && !has_other) {
                has_other |= is_apart;
                kept += 1;
                continue;
            }
        }
        // What cannot be read now may be complete.
        let removed = match read {
            Err(CheckpointError::Io { source, .. }) => Err(source),
            _ if old == number => Ok(()),
            _ => remove_unread(disk, &dir),
        };
        if let Err(error) = removed {
            tracing::warn!(%error, dir = %dir.display(), "an old checkpoint stays");
        }
    }
}

fn shares_no_part(a: &Manifest, b: &Manifest) -> bool {
    let names: BTreeSet<&String> = a.files.iter().map(|file| &file.file).collect();
    b.files.iter().all(|file| !names.contains(&file.file))
}

/// Removes a checkpoint's directory, unless a load reads it.
fn remove_unread(disk: &mut dyn Disk, dir: &Path) -> io::Result<()> {
    let lock = File::open(dir)?;
    match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => Err(io::Error::other("a load reads it")),
        // Some network file systems lock no directories.
        Ok(()) | Err(_) => remove(disk, dir),
    }
}

/// Removes a checkpoint's directory; the manifest goes first, so that no manifest stays without its parts.
fn remove(disk: &mut dyn Disk, dir: &Path) -> io::Result<()> {
    let manifest = dir.join(MANIFEST_NAME);
    if manifest.exists() {
        disk.remove(&manifest)?;
        disk.sync_dir(dir)?;
    }
    for entry in fs::read_dir(dir)? {
        disk.remove(&entry?.path())?;
    }
    fs::remove_dir(dir)
}

/// Replaces the alive file of a job, without fsync: it need not survive a crash of the host.
///
/// # Errors
/// Errors of the file system; the file is that of before.
pub fn write_alive(job: &Path, alive: &Alive) -> io::Result<()> {
    let text = serde_json::to_vec(alive).map_err(io::Error::other)?;
    let temporary = job.join("alive.tmp");
    File::create(&temporary)?.write_all(&text)?;
    fs::rename(&temporary, job.join(ALIVE_NAME))
}

/// Reads the alive file of a job. `None` if it is missing, too large or damaged.
fn read_alive(job: &Path) -> Option<Alive> {
    let path = job.join(ALIVE_NAME);
    let length = fs::metadata(&path).ok()?.len();
    let text = (length <= ALIVE_BYTES_MAX).then(|| fs::read(&path).ok())??;
    serde_json::from_slice(&text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::OsDisk;
    use crate::manifest::commit;
    use crate::part::PartWriter;
    use crate::testing::faults::{Call, Kind, Verdict, under};

    /// Takes the checkpoint of this number, of one record.
    fn take(job: &str, number: u64) -> PathBuf {
        let dir = PathBuf::from(dir_of(job, number));
        fs::create_dir_all(&dir).unwrap();
        let mut part = PartWriter::create(Box::new(OsDisk), &dir, 0, number).unwrap();
        let record = [number.to_le_bytes(), [1; 8]].concat();
        part.records(1, 0, 1, &record).unwrap();
        let files = vec![part.finish().unwrap()];
        let manifest = Manifest {
            taken_ms: Some(number),
            ..Manifest::new("job".into(), Vec::new(), files)
        };
        commit(&mut OsDisk, &dir, &manifest).unwrap();
        dir
    }

    fn part_of(dir: &Path) -> PathBuf {
        dir.join(&read_manifest(dir).unwrap().files[0].file)
    }

    /// A checkpoint with a part that was cut off, or with a damaged manifest, is left out for the one
    /// before. One that was never completed is none. Where none is complete any more, nothing is found.
    #[test]
    fn damaged_checkpoints_are_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let job = dir_of_job(folder.path().to_str().unwrap(), "a/b");
        assert!(job.ends_with("/a%2fb"), "{job}");
        assert_eq!(find(&job, u64::MAX).unwrap().next, 1);
        let dirs: Vec<_> = (1..=3).map(|number| take(&job, number)).collect();
        fs::create_dir_all(dir_of(&job, 4)).unwrap();
        let found = find(&job, u64::MAX).unwrap();
        assert_eq!((found.newest.unwrap().number, found.next), (3, 5));
        assert!(found.skipped.is_empty(), "{:?}", found.skipped);
        let part = fs::OpenOptions::new().write(true).open(part_of(&dirs[2]));
        part.unwrap().set_len(70).unwrap();
        let manifest = dirs[1].join(MANIFEST_NAME);
        let text = fs::read_to_string(&manifest).unwrap();
        fs::write(&manifest, text.replace("job", "jab")).unwrap();
        let found = find(&job, u64::MAX).unwrap();
        assert_eq!(found.newest.unwrap().number, 1);
        assert_eq!(found.skipped.len(), 2, "{:?}", found.skipped);
        assert!(found.skipped[0].contains("cut"), "{:?}", found.skipped);
        fs::remove_file(part_of(&dirs[0])).unwrap();
        let error = find(&job, u64::MAX).unwrap_err();
        assert!(error.to_string().contains("none"), "{error}");
    }

    /// The last complete checkpoint is never removed, and a damaged one does not count as kept.
    #[test]
    fn old_checkpoints_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let job = dir_of_job(folder.path().to_str().unwrap(), "job");
        let dirs: Vec<_> = (1..=5).map(|number| take(&job, number)).collect();
        let part = fs::OpenOptions::new().write(true).open(part_of(&dirs[3]));
        part.unwrap().set_len(70).unwrap();
        prune(&mut OsDisk, &dirs[4], 2);
        assert_eq!(numbers(Path::new(&job)).unwrap(), [5, 3]);
        let read = File::open(&dirs[2]).unwrap();
        rustix::fs::flock(&read, FlockOperation::NonBlockingLockShared).unwrap();
        prune(&mut OsDisk, &dirs[4], 1);
        assert_eq!(numbers(Path::new(&job)).unwrap(), [5, 3], "a load reads 3");
        drop(read);
        prune(&mut OsDisk, &dirs[4], 1);
        assert_eq!(numbers(Path::new(&job)).unwrap(), [5]);
    }

    /// A checkpoint that cannot be read for the moment is not removed in its place, nor what it may replace.
    #[test]
    fn unreadable_checkpoints_stay() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().canonicalize().unwrap();
        let job = dir_of_job(folder.to_str().unwrap(), "job");
        let dirs: Vec<_> = (1..=3).map(|number| take(&job, number)).collect();
        let manifest = dirs[1].join(MANIFEST_NAME);
        let mut failed = 0;
        let fails = |call: &Call| match call.kind == Kind::Open && call.path == manifest {
            true => {
                failed += 1;
                Verdict::Fail(Errno::IO)
            }
            false => Verdict::Pass,
        };
        under(fails, || prune(&mut OsDisk, &dirs[2], 2));
        assert!(failed > 0);
        assert_eq!(numbers(Path::new(&job)).unwrap(), [3, 2, 1]);
        prune(&mut OsDisk, &dirs[2], 2);
        assert_eq!(numbers(Path::new(&job)).unwrap(), [3, 2]);
    }

    #[test]
    fn last_sign_of_life_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let job = folder.path().to_str().unwrap();
        let clocks = vec![DomainClock {
            domain: tidewater_protocol::ids::DomainId(0),
            clock: 7,
        }];
        let alive = Alive { unix_ms: 5, clocks };
        write_alive(folder.path(), &alive).unwrap();
        let found = find(job, u64::MAX).unwrap();
        assert_eq!((found.seen_ms, found.seen), (Some(5), alive.clocks));
        fs::write(folder.path().join(ALIVE_NAME), "{").unwrap();
        assert_eq!(find(job, u64::MAX).unwrap().seen_ms, None);
    }
}
