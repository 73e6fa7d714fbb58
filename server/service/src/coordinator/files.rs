//! The coordinator's file tasks of saves and loads, and the lock (flock) that keeps two operations out of one
//! directory.
//!
//! They run on threads of their own, see `file_threads`.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use tidewater_checkpoint::{self as checkpoint, CheckpointError, OsDisk};
use tidewater_protocol::mutants::{self, Mutant};
use tidewater_protocol::wire::refusal::Refusal;
use tidewater_runtime::clock::Deadline;

use super::state::{FileDone, FileTask, Links};

/// Longest wait for another coordinator that ends to release the directory of a job's checkpoints.
const JOB_LOCK_TIME: Duration = Duration::from_secs(3);

/// Directories of checkpoints, by path, each open and locked (flock) from its first use to the end of the
/// coordinator: a second coordinator does not write into them. On a file system without locks they are only
/// open.
pub(super) type JobLocks = Arc<Mutex<BTreeMap<PathBuf, File>>>;

/// Performs the file tasks of saves and loads, and keeps the directories that it has locked, by operation number.
#[derive(Debug, Default)]
pub(super) struct Files {
    operations: BTreeMap<u64, Held>,
    jobs: JobLocks,
}

#[derive(Debug)]
struct Held {
    dir: PathBuf,
    /// Open directory, which holds the flock until it is closed.
    _lock: File,
}

impl Files {
    /// Makes the files of one operation, with the locks of the coordinator.
    pub(super) fn new(jobs: JobLocks) -> Self {
        let operations = BTreeMap::new();
        Self { operations, jobs }
    }

    /// Performs a file task of operation `op`; blocks. Returns its result, or `None` for tasks without an
    /// answer and for a commit without a begun save.
    pub(super) fn perform(&mut self, op: u64, task: FileTask) -> Option<Result<FileDone, Refusal>> {
        let done = match task {
            FileTask::BeginSave(dir) => self.begin_save(op, PathBuf::from(dir)),
            FileTask::BeginCheckpoint { dir, links } => {
                self.begin_checkpoint(op, PathBuf::from(dir), links.as_ref())
            }
            FileTask::BeginLoad(dir) => self.begin_load(op, PathBuf::from(dir)),
            FileTask::BeginResume { dir, before } => self.begin_resume(op, &dir, before),
            FileTask::Commit { manifest, keep } => match self.operations.remove(&op) {
                Some(held) => {
                    let committed = checkpoint::commit(&mut OsDisk, &held.dir, &manifest);
                    if let (Ok(()), Some(keep)) = (&committed, keep) {
                        checkpoint::series::prune(&mut OsDisk, &held.dir, keep);
                    }
                    committed.map(|()| FileDone::Committed).inspect_err(|_| {
                        let names = manifest.files.iter().map(|file| file.file.clone());
                        abandon_uncommitted(&held.dir, &names.collect::<Vec<_>>());
                    })
                }
                None => return None,
            },
            FileTask::Abandon(names) => {
                let held = self.operations.remove(&op)?;
                checkpoint::abandon(&mut OsDisk, &held.dir, &names);
                return None;
            }
            FileTask::EndLoad => {
                self.operations.remove(&op);
                return None;
            }
        };
        Some(done.map_err(Refusal::from))
    }

    /// Begins a checkpoint: a save into `dir`. Also locks the directory above `dir`, that of the job's
    /// checkpoints, for this coordinator. Links the parts `links` of the checkpoint that this one may extend.
    /// If they cannot be linked, returns `BegunWithoutLinks`: this checkpoint can still hold all rows.
    fn begin_checkpoint(
        &mut self,
        op: u64,
        dir: PathBuf,
        links: Option<&Links>,
    ) -> Result<FileDone, CheckpointError> {
        if let Some(job) = dir.parent() {
            make(job)?;
            self.lock_job(job)?;
        }
        let begun = self.begin_save(op, dir.clone())?;
        let Some(Links { from, names }) = links else {
            return Ok(begun);
        };
        match checkpoint::link_parts(&mut OsDisk, Path::new(from), &dir, names) {
            Ok(()) => Ok(begun),
            Err(error) => Ok(FileDone::BegunWithoutLinks(error.to_string())),
        }
    }

    fn begin_save(&mut self, op: u64, dir: PathBuf) -> Result<FileDone, CheckpointError> {
        make(&dir)?;
        self.lock(op, dir, FlockOperation::NonBlockingLockExclusive)?;
        Ok(FileDone::Begun)
    }

    fn begin_load(&mut self, op: u64, dir: PathBuf) -> Result<FileDone, CheckpointError> {
        if !dir.is_dir() {
            return Err(CheckpointError::Missing { path: dir });
        }
        self.lock(op, dir.clone(), FlockOperation::NonBlockingLockShared)?;
        let manifest = checkpoint::read_manifest(&dir);
        if manifest.is_err() {
            self.operations.remove(&op);
        }
        Ok(FileDone::Manifest(Box::new(manifest?)))
    }

    /// Finds the newest complete checkpoint of a job with a number below `before`, and locks its directory
    /// (shared), so that no save changes it before the load has ended. Also locks `dir`, the directory of the
    /// job's checkpoints, for this coordinator if it exists. The result lacks a newest checkpoint if none was
    /// ever completed. Fails if there are manifests and no checkpoint is complete.
    fn begin_resume(
        &mut self,
        op: u64,
        dir: &str,
        before: u64,
    ) -> Result<FileDone, CheckpointError> {
        if Path::new(dir).is_dir() {
            self.lock_job(Path::new(dir))?;
        }
        let found = checkpoint::series::find(dir, before)?;
        if let Some(newest) = &found.newest {
            let dir = PathBuf::from(&newest.dir);
            self.lock(op, dir, FlockOperation::NonBlockingLockShared)?;
        }
        Ok(FileDone::Checkpoints(Box::new(found)))
    }

    /// Locks the directory of a job's checkpoints until this coordinator ends; waits up to `JOB_LOCK_TIME` for
    /// another coordinator that is ending. On a file system without locks it only logs a warning.
    fn lock_job(&self, dir: &Path) -> Result<(), CheckpointError> {
        // A thread that panicked has left the map whole: it is changed by one insert.
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        if jobs.contains_key(dir) {
            return Ok(());
        }
        let lock = File::open(dir).map_err(CheckpointError::io("open", dir))?;
        let deadline = Deadline::after(JOB_LOCK_TIME);
        loop {
            match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::WOULDBLOCK) if deadline.left().is_zero() => {
                    return Err(CheckpointError::Kept {
                        path: dir.to_owned(),
                    });
                }
                Err(Errno::WOULDBLOCK) => std::thread::sleep(Duration::from_millis(50)),
                Err(error) => {
                    tracing::warn!(%error, dir = %dir.display(), "the directory is not locked");
                    break;
                }
                Ok(()) => break,
            }
        }
        jobs.insert(dir.to_owned(), lock);
        Ok(())
    }

    fn lock(&mut self, op: u64, dir: PathBuf, how: FlockOperation) -> Result<(), CheckpointError> {
        let lock = File::open(&dir).map_err(CheckpointError::io("open", &dir))?;
        match rustix::fs::flock(&lock, how) {
            Err(Errno::WOULDBLOCK) if !mutants::on(Mutant::ModelLockIgnored) => {
                return Err(CheckpointError::Locked { path: dir });
            }
            // Some network file systems lock no directories: there, users must avoid two saves at a
            // time into one directory.
            Err(error) => {
                tracing::warn!(%error, dir = %dir.display(), "the directory is not locked")
            }
            Ok(()) => {}
        }
        self.operations.insert(op, Held { dir, _lock: lock });
        Ok(())
    }
}

/// Makes a directory, durably.
fn make(dir: &Path) -> Result<(), CheckpointError> {
    checkpoint::make_dir(&mut OsDisk, dir).map_err(CheckpointError::io("make", dir))
}

/// Removes the part files of a save after its commit failed. Keeps them if the manifest cannot be read, or
/// names them after all: the last step of a commit may fail when the manifest is in place.
fn abandon_uncommitted(dir: &Path, names: &[String]) {
    let is_named = |manifest: &checkpoint::Manifest| {
        manifest.files.iter().any(|file| names.contains(&file.file))
    };
    match checkpoint::read_manifest(dir) {
        Ok(manifest) if is_named(&manifest) && !mutants::on(Mutant::AbandonCommittedParts) => {}
        Ok(_) | Err(CheckpointError::Missing { .. }) => {
            checkpoint::abandon(&mut OsDisk, dir, names);
        }
        // Whether the manifest names them is not known: the next save sweeps what no manifest
        // names.
        Err(error) => tracing::warn!(%error, "parts of a failed save stay"),
    }
}

#[cfg(test)]
mod tests;
