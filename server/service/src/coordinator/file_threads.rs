//! Threads that perform the coordinator's file tasks, so that its loop never blocks on a file system.
//!
//! An operation (a save or load) has one thread from its first task to its last. A file
//! system that hangs holds the operations on its directories only.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use tidewater_lanes::wake::Waker;
use tidewater_protocol::wire::control::DomainClock;
use tidewater_protocol::wire::refusal::{Refusal, RefusalCode};
use tidewater_runtime::clock::{Deadline, unix_ms};

use super::files::{Files, JobLocks};
use super::state::{FileDone, FileTask};
use crate::panics::refuse_panic;
use tidewater_checkpoint::series::{Alive, write_alive};

/// Maximum number of notes "this job is alive" that wait for the file system; further ones are dropped.
const BEATS_MAX: usize = 64;

/// Number of an operation, and the result of one of its file tasks.
type Done = (u64, Result<FileDone, Refusal>);

/// The threads of saves and loads in the coordinator, one for each operation, and the channel on which they
/// report results.
pub(super) struct FileThreads {
    /// Directory and task channel of each operation, by operation number.
    operations: BTreeMap<u64, Operation>,
    /// Operations that were sent their last task and have not ended: directory, and a channel that closes
    /// when the thread ends.
    ending: Vec<(String, Receiver<()>)>,
    done: Receiver<Done>,
    report: Sender<Done>,
    waker: Waker,
    jobs: JobLocks,
}

struct Operation {
    dir: String,
    tasks: Sender<FileTask>,
    ended: Receiver<()>,
}

impl std::fmt::Debug for FileThreads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut s = f.debug_struct("FileThreads");
        s.field("operations", &self.operations.keys())
            .finish_non_exhaustive()
    }
}

impl FileThreads {
    /// Makes an empty set, without threads.
    ///
    /// # Errors
    /// There are no descriptors left.
    pub(super) fn new() -> io::Result<Self> {
        let (report, done) = unbounded();
        Ok(Self {
            operations: BTreeMap::new(),
            ending: Vec::new(),
            done,
            report,
            waker: Waker::new()?,
            jobs: JobLocks::default(),
        })
    }

    /// Performs a task on the thread of operation `op`, a save or load, without blocking. The operation's first
    /// task starts the thread; a commit, an abandoning or the end of a load is its last, and does nothing if
    /// the operation has no thread. [`Self::take_done`] returns the result later, of tasks that have one.
    pub(super) fn perform(&mut self, op: u64, task: FileTask) {
        let dir = match &task {
            FileTask::BeginSave(dir)
            | FileTask::BeginCheckpoint { dir, .. }
            | FileTask::BeginLoad(dir)
            | FileTask::BeginResume { dir, .. } => Some(dir.clone()),
            FileTask::Commit { .. } | FileTask::Abandon(_) | FileTask::EndLoad => None,
        };
        let Some(dir) = dir else {
            if let Some(Operation { dir, tasks, ended }) = self.operations.remove(&op) {
                let _ = tasks.send(task);
                self.ending.push((dir, ended));
            }
            return;
        };
        match self.start(op, &dir) {
            Ok(operation) => {
                let _ = operation.tasks.send(task);
                self.operations.insert(op, operation);
            }
            Err(error) => {
                let text = format!("cannot start a thread for files: {error}");
                let refusal = Refusal::new(RefusalCode::Io, [0; 4]).with_text(text);
                let _ = self.report.send((op, Err(refusal)));
                self.waker.wake();
            }
        }
    }

    /// Starts the thread of a save or load, and returns its channels. The thread first waits for the end of
    /// those operations on the directory that were sent their last task, since they hold its lock. Fails if the
    /// system refuses a thread.
    fn start(&mut self, op: u64, dir: &str) -> io::Result<Operation> {
        let is_open = |ended: &Receiver<()>| {
            matches!(
                ended.try_recv(),
                Err(crossbeam_channel::TryRecvError::Empty)
            )
        };
        self.ending.retain(|(_, ended)| is_open(ended));
        let before = self.ending.iter().filter(|(other, _)| other == dir);
        let before: Vec<Receiver<()>> = before.map(|(_, ended)| ended.clone()).collect();
        let (tasks, taken) = unbounded::<FileTask>();
        let (end, ended) = bounded::<()>(0);
        let (report, waker) = (self.report.clone(), self.waker.clone());
        let jobs = JobLocks::clone(&self.jobs);
        let run = move || {
            let _end = end;
            for ended in before {
                // Nothing is sent: the channel closes.
                let _ = ended.recv();
            }
            let mut files = Files::new(jobs);
            for task in taken {
                // A panic is answered like an error, also in a task without an answer: nothing waits
                // for that one, and its operation is over. The files of the task are closed by it.
                let done = refuse_panic(|| files.perform(op, task));
                if let Some(done) = done.unwrap_or_else(|panic| Some(Err(panic))) {
                    // A coordinator that has ended needs no result.
                    let _ = report.send((op, done));
                    waker.wake();
                }
            }
        };
        let thread = std::thread::Builder::new().name("tw-model".into());
        thread.spawn(run)?;
        Ok(Operation {
            dir: dir.to_owned(),
            tasks,
            ended,
        })
    }

    /// Removes and returns the results of tasks that are done, each with its operation number. Does not block.
    /// An operation with an error gets no further task.
    pub(super) fn take_done(&mut self) -> Vec<Done> {
        self.waker.drain();
        let done: Vec<Done> = self.done.try_iter().collect();
        for (op, result) in &done {
            // After a failed first task an operation has no other one.
            if result.is_err() {
                self.operations.remove(op);
            }
        }
        done
    }

    /// Closes the task channels and blocks until all threads have finished their queued tasks, or until
    /// `deadline`.
    pub(super) fn end(self, deadline: Deadline) {
        let open = self.operations.into_values();
        let open = open.map(|operation| operation.ended);
        let ending = self.ending.into_iter().map(|(_, ended)| ended);
        for ended in open.chain(ending).collect::<Vec<_>>() {
            let _ = ended.recv_timeout(deadline.left());
        }
    }
}

impl AsFd for FileThreads {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.waker.as_fd()
    }
}

/// A thread that writes the alive files of jobs; it starts with the first note. If a file system hangs, only
/// this thread hangs, and notes beyond `BEATS_MAX` are dropped.
#[derive(Debug, Default)]
pub(super) struct Heartbeat(Option<Sender<(String, Alive)>>);

impl Heartbeat {
    /// Queues a note that the job with this directory is alive now, at these clocks. Does not block: drops the
    /// note if the queue is full or no thread can start.
    pub(super) fn beat(&mut self, dir: String, clocks: Vec<DomainClock>) {
        let notes = match &self.0 {
            Some(notes) => notes,
            None => match start_heartbeat() {
                Ok(notes) => self.0.insert(notes),
                Err(error) => {
                    tracing::warn!(%error, "no thread notes that jobs are alive");
                    return;
                }
            },
        };
        let unix_ms = unix_ms();
        if notes.try_send((dir, Alive { unix_ms, clocks })).is_err() {
            tracing::debug!("the file system holds a note that a job is alive");
        }
    }
}

fn start_heartbeat() -> io::Result<Sender<(String, Alive)>> {
    let (notes, taken) = bounded::<(String, Alive)>(BEATS_MAX);
    let run = move || {
        for (dir, alive) in taken {
            if let Err(error) = write_alive(Path::new(&dir), &alive) {
                // There is no directory before the first checkpoint.
                tracing::debug!(%error, dir, "it is not noted that a job is alive");
            }
        }
    };
    let thread = std::thread::Builder::new().name("tw-alive".into());
    thread.spawn(run)?;
    Ok(notes)
}
