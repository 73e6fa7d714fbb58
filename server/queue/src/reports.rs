//! Answers to the last reports of each worker, for reports that are repeated.
//!
//! A worker that has waited for an answer up to its deadline does not know whether its report has arrived, and sends
//! it again. A handle of the queue repeats its report before it takes the next task; a thread may have several handles
//! of one queue. So the last [`DONE_KEPT`] reports of each thread are kept. Reports of failed tasks name no thread; the
//! last [`FAILED_KEPT`] of a worker are kept.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};
use tidewater_protocol::limits::WORKER_THREADS_MAX;
use tidewater_protocol::mutants::{self, Mutant};

/// Names a worker of the queue's job; its caller chooses the numbers.
pub type WorkerKey = u64;

/// Reports of finished tasks that are kept for each thread of a worker.
pub(crate) const DONE_KEPT: usize = 16;

/// Reports of failed tasks that are kept for each worker.
pub(crate) const FAILED_KEPT: usize = 16;

/// A report of a delivery, and its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Answered {
    delivery: u64,
    counted: bool,
}

/// Answered reports of one worker.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct OfWorker {
    /// The last finished tasks of each thread, the oldest first. At most `WORKER_THREADS_MAX` threads. Earlier
    /// builds wrote a field of another name, which is ignored.
    #[serde(default)]
    finished: BTreeMap<u32, VecDeque<Answered>>,
    /// The last failed tasks, the oldest first.
    failed: VecDeque<Answered>,
}

/// Answered reports of all workers of a queue. Memory: at most 300 bytes for each thread that has reported tasks, and
/// 256 for the failed tasks of a worker.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Reports {
    of_worker: BTreeMap<WorkerKey, OfWorker>,
}

impl Reports {
    /// Keeps the answer to the report of a finished task: whether it counts.
    pub(crate) fn add_done(
        &mut self,
        worker: WorkerKey,
        thread: u32,
        delivery: u64,
        counted: bool,
    ) {
        let finished = &mut self.of_worker.entry(worker).or_default().finished;
        if !finished.contains_key(&thread) && finished.len() >= WORKER_THREADS_MAX as usize {
            // No worker has so many threads: the number is wrong, and the worker's own loss.
            finished.pop_last();
        }
        let of_thread = finished.entry(thread).or_default();
        if of_thread.len() >= DONE_KEPT {
            of_thread.pop_front();
        }
        of_thread.push_back(Answered { delivery, counted });
    }

    /// Keeps the answer to the report of a failed task.
    pub(crate) fn add_failed(&mut self, worker: WorkerKey, delivery: u64, counted: bool) {
        let failed = &mut self.of_worker.entry(worker).or_default().failed;
        if failed.len() >= FAILED_KEPT {
            failed.pop_front();
        }
        failed.push_back(Answered { delivery, counted });
    }

    /// The answer to a thread's report of this delivery as finished, if it is one of the last.
    pub(crate) fn done(&self, worker: WorkerKey, thread: u32, delivery: u64) -> Option<bool> {
        let mut last = self.of_worker.get(&worker)?.finished.get(&thread)?.iter();
        let found = last.find(|report| report.delivery == delivery)?;
        (!mutants::on(Mutant::RepeatedReportLate)).then_some(found.counted)
    }

    /// The answer to the report of this delivery as failed, if it is one of the last.
    pub(crate) fn failed(&self, worker: WorkerKey, delivery: u64) -> Option<bool> {
        let mut last = self.of_worker.get(&worker)?.failed.iter();
        let found = last.find(|report| report.delivery == delivery)?;
        (!mutants::on(Mutant::RepeatedReportLate)).then_some(found.counted)
    }
}
