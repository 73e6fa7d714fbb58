//! Pushes of tasks: held until their task is finished, which the coordinator decides.
//!
//! A push that is flagged as part of a task goes into a stream of its thread that is *open*. The mark of the
//! task names the stream and closes it. The coordinator's word that the task is finished takes the stream out:
//! its pushes take effect, or become part of the thread's iteration. The loss of the worker drops it, and so does
//! the end of its thread 0.

use tidewater_protocol::ids::{DomainId, WorkerId, WorkerThread};
use tidewater_protocol::layout::frame::FrameHeader;

use super::{Budget, Pending, Stream, StreamKey, cost};
use crate::apply::Refusal;
use crate::namespace::NamespaceId;

/// Task number of held pushes for which the worker's TASK frame has not arrived yet. The TASK frame brings their
/// delivery number, which the coordinator gave with the task. No delivery has the number `OPEN_TASK`.
pub(in crate::apply) const OPEN_TASK: u64 = u64::MAX;

/// Key of the held pushes of one task: those for the ticks of one domain, or those that take effect when
/// the task is finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::apply) struct TaskKey {
    /// Job of the task.
    pub namespace: NamespaceId,
    /// Worker thread that has the task.
    pub thread: WorkerThread,
    /// Number of the delivery, or [`OPEN_TASK`].
    pub task: u64,
    /// Clock domain of the ticks; `None` for pushes that take effect as soon as the task is finished.
    pub domain: Option<DomainId>,
}

impl TaskKey {
    /// Whether the key is of this job and worker thread.
    fn is_of(&self, namespace: NamespaceId, thread: WorkerThread) -> bool {
        (self.namespace, self.thread) == (namespace, thread)
    }
}

impl Pending {
    /// Holds a push of an open task (its TASK frame has not arrived): copies the push out of its ring. All tasks
    /// of the applier share one budget in bytes.
    ///
    /// # Errors
    /// [`RejectReason::PendingFull`](tidewater_protocol::layout::reject::RejectReason::PendingFull) or `NoMemory`;
    /// nothing was taken.
    pub(in crate::apply) fn hold_of_task(
        &mut self,
        key: TaskKey,
        header: FrameHeader,
        payload: &[u8],
    ) -> Result<(), Refusal> {
        self.room_beyond(self.in_tasks, payload.len())?;
        let mut stream = self.tasks.remove(&key).unwrap_or_default();
        if stream.frames.is_empty() {
            self.set_budget(&mut stream, Budget::Task);
        }
        let result = self.hold_in(&mut stream, key.thread, None, header, payload);
        if !stream.frames.is_empty() {
            self.tasks.insert(key, stream);
        }
        result
    }

    /// Whether a worker thread has held pushes of tasks that are not finished.
    pub(in crate::apply) fn has_task(&self, namespace: NamespaceId, thread: WorkerThread) -> bool {
        let first = TaskKey {
            namespace,
            thread,
            task: 0,
            domain: None,
        };
        let next = self.tasks.range(first..).next();
        next.is_some_and(|(key, _)| key.is_of(namespace, thread))
    }

    /// Removes the streams of one task of a thread and returns them. Empty if it has none.
    pub(in crate::apply) fn take_task(
        &mut self,
        namespace: NamespaceId,
        thread: WorkerThread,
        task: u64,
    ) -> Vec<(TaskKey, Stream)> {
        let key = |domain| TaskKey {
            namespace,
            thread,
            task,
            domain,
        };
        let range = key(None)..=key(Some(DomainId(u8::MAX)));
        self.tasks.extract_if(range, |_, _| true).collect()
    }

    /// Closes the open task of a thread: its held pushes belong to delivery number `task` from now on. They
    /// replace held pushes of an earlier call with this number that are for the same domain. No effect without
    /// an open task.
    pub(in crate::apply) fn close_task(
        &mut self,
        namespace: NamespaceId,
        thread: WorkerThread,
        task: u64,
    ) {
        for (key, stream) in self.take_task(namespace, thread, OPEN_TASK) {
            // A number is used once: a second mark of it would replace what the first one has closed.
            if let Some(stray) = self.tasks.insert(TaskKey { task, ..key }, stream) {
                self.free(vec![stray]);
            }
        }
    }

    /// Drops the held pushes of one task of a thread. No effect without such pushes.
    pub(in crate::apply) fn drop_task(
        &mut self,
        namespace: NamespaceId,
        thread: WorkerThread,
        task: u64,
    ) {
        let gone = self.take_task(namespace, thread, task);
        self.free(gone.into_iter().map(|(_, stream)| stream).collect());
    }

    /// Returns threads and task numbers of a worker's tasks with held pushes, one pair for each stream.
    pub(in crate::apply) fn tasks_of(
        &self,
        namespace: NamespaceId,
        rank: WorkerId,
    ) -> Vec<(WorkerThread, u64)> {
        let of_rank = |key: &&TaskKey| (key.namespace, key.thread.rank) == (namespace, rank);
        let tasks = self.tasks.keys().filter(of_rank);
        tasks.map(|key| (key.thread, key.task)).collect()
    }

    /// Moves the held pushes of a finished task into the stream of an iteration of their thread, in front of
    /// its pushes that are of no task. They take effect even if the worker is lost. `staged` says whether the
    /// rank has its turn. Needs no memory.
    pub(in crate::apply) fn join_iteration(
        &mut self,
        mut stream: Stream,
        to: StreamKey,
        staged: bool,
    ) {
        stream.kept = stream.frames.len();
        if self.is_kept {
            // Its pages have no name that a successor knows: the next push begins one that has.
            stream.used = stream.pages.last().map_or(0, |page| page.len);
        }
        let Some(mut open) = self.streams.remove(&to) else {
            let budget = if staged {
                Budget::Staged
            } else {
                Budget::Early
            };
            self.set_budget(&mut stream, budget);
            self.streams.insert(to, stream);
            return;
        };
        self.set_budget(&mut stream, open.budget);
        let unfinished = open.frames.split_off(open.kept);
        open.frames.append(&mut stream.frames);
        open.frames.extend(unfinished);
        // The last page is the one that is being filled.
        stream.pages.append(&mut open.pages);
        open.pages = stream.pages;
        open.bytes += stream.bytes;
        open.kept += stream.kept;
        self.streams.insert(to, open);
    }

    /// Drops the frames of a stream behind those that stay if the worker is lost, and subtracts their bytes.
    pub(super) fn keep_finished(&mut self, stream: &mut Stream) {
        let gone = stream.frames.drain(stream.kept..);
        let bytes = gone
            .map(|held| cost(held.header.payload_len as usize))
            .sum();
        stream.bytes -= bytes;
        self.bytes -= bytes;
        self.uncount(stream, bytes);
        self.changed();
    }
}
