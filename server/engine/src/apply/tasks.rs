//! Tasks: pushes that take effect together, when the coordinator has decided that their task is finished.
//!
//! ```text
//! worker       applier                                   coordinator
//! pushes  -->  checks them, holds them
//! mark    -->  closes the task; acknowledges it
//! report  -------------------------------------------->  decides: finished, or late
//!              applies them, or adds them  <-----------  FinishTask to all servers
//!              to the thread's open iteration            answers the report when all have
//! ```
//! The decision is made in one place, and before it every applier has all pushes of the task: so the task is in
//! the model as a whole or not at all. A worker that is lost before its report leaves nothing of its task:
//! [`Engine::remove_worker`] drops it, and later frames of the worker are refused, since it is no member any
//! more. After its report, the order of the coordinator's connection lets every server finish the task before
//! it removes the worker.
//!
//! A thread does not tick while it has a task. Its iteration is therefore the same at all appliers when the task
//! is finished.

use tidewater_protocol::ids::WorkerThread;
use tidewater_protocol::layout::frame::{FrameFlags, FrameHeader};
use tidewater_protocol::layout::reject::{RejectReason, RowResource};
use tidewater_protocol::table::Durability;

use super::Refusal;
use super::engine::{Effect, Engine};
use super::pending::{OPEN_TASK, Stream, StreamKey, TaskKey};
use crate::namespace::{DomainKey, FrameSender, NamespaceId};

impl Engine {
    /// Checks that a push of a task can be held: its thread is a member of the table's domain. If the table
    /// applies pushes at ticks, the thread must be at the clock of the push. Warm tables, and those with
    /// `admit_after`, refuse pushes of tasks.
    pub(super) fn check_task(
        &mut self,
        sender: FrameSender,
        header: &FrameHeader,
    ) -> Result<(), Refusal> {
        let table = self.known(sender.namespace, header.table)?;
        // A successor has no held pushes. And a key that is counted while its push is held would get its row when
        // the task is finished, where nothing can be refused any more.
        if table.spec.durability == Durability::Warm || table.counts_pushes() {
            return Err(super::push::wrong_operation(header));
        }
        let (domain, waits) = (table.spec.domain, table.at_clock());
        let clock = self.clocks(sender.namespace).clock(domain, sender.thread);
        match clock.is_some() && (!waits || clock == Some(header.clock)) {
            true => Ok(()),
            false => Err(RejectReason::BadClock {
                clock: header.clock,
                expected: clock.unwrap_or(u64::MAX),
            }),
        }
    }

    /// Holds a checked push of a task, as part of the thread's open task, until the task is finished.
    pub(super) fn hold_of_task(
        &mut self,
        sender: FrameSender,
        header: &FrameHeader,
        payload: &[u8],
    ) -> Result<Effect, Refusal> {
        let table = self.known(sender.namespace, header.table)?;
        let key = TaskKey {
            namespace: sender.namespace,
            thread: sender.thread,
            task: OPEN_TASK,
            domain: table.at_clock().then_some(table.spec.domain),
        };
        let flags = FrameFlags {
            task: false,
            ..header.flags
        };
        let header = FrameHeader { flags, ..*header };
        self.pending.hold_of_task(key, header, payload)?;
        Ok(Effect::Applied)
    }

    /// Carries out a TASK frame, which follows a worker's pushes for one delivery (a task that the
    /// coordinator handed out). With `count` 1 it closes the open task of the thread: the held pushes get the
    /// delivery's number. With `count` 0 it drops the open task and the pushes of the delivery.
    pub(super) fn task_frame(
        &mut self,
        sender: FrameSender,
        header: &FrameHeader,
    ) -> Result<Effect, Refusal> {
        let FrameSender { thread, namespace } = sender;
        let task = header.clock;
        if task == OPEN_TASK || header.count > 1 {
            return Err(super::push::wrong_operation(header));
        }
        match header.count {
            1 => self.pending.close_task(namespace, thread, task),
            _ => {
                self.pending.drop_task(namespace, thread, OPEN_TASK);
                self.pending.drop_task(namespace, thread, task);
            }
        }
        Ok(Effect::Applied)
    }

    /// Applies the held pushes of delivery `task`, which the coordinator has declared finished. Pushes to
    /// tables with ticks become part of the thread's open iteration; they are dropped if the thread is no member
    /// any more. Pushes to tables that are gone are skipped; any other push that fails stops the applier. No
    /// effect without such pushes, or when they were applied before. Cost: that of all pushes of the task, in
    /// one piece. Functions from modules call `pause` while they run.
    pub fn finish_task(
        &mut self,
        namespace: NamespaceId,
        thread: WorkerThread,
        task: u64,
        pause: &mut dyn FnMut(),
    ) {
        for (key, stream) in self.pending.take_task(namespace, thread, task) {
            match key.domain {
                None => self.apply_task(FrameSender { thread, namespace }, stream, pause),
                Some(domain) => self.join_task(DomainKey::new(namespace, domain), thread, stream),
            }
        }
    }

    fn apply_task(&mut self, sender: FrameSender, stream: Stream, pause: &mut dyn FnMut()) {
        let mut payload = Vec::new();
        for held in stream.frames() {
            self.pending.payload(held, &mut payload);
            match self.frame_with_pauses(sender, &held.header, &payload, pause) {
                Ok(_)
                | Err(RejectReason::TableReleased { .. } | RejectReason::UnknownTable { .. }) => {}
                Err(reason) => self.fail(format_args!(
                    "a push of a finished task to table {} could not be applied ({reason:?}); {}",
                    held.header.table,
                    remedy(&reason)
                )),
            }
        }
        self.pending.free(vec![stream]);
    }

    fn join_task(
        &mut self,
        DomainKey { namespace, domain }: DomainKey,
        thread: WorkerThread,
        stream: Stream,
    ) {
        let ticks = self.ticks(namespace, domain);
        let clocks = self.clocks(namespace);
        let Some(iteration) = clocks.clock(domain, thread) else {
            // The thread has left: its tasks were dropped then, but frames of it may have come from a client that
            // does not keep to the protocol. It has no iteration that they could be part of.
            self.pending.free(vec![stream]);
            return;
        };
        let has_turn = clocks.min(domain) == iteration && clocks.turn(domain) == Some(thread.rank);
        let to = StreamKey {
            namespace,
            domain,
            iteration,
            thread,
        };
        self.pending.join_iteration(stream, to, has_turn && !ticks);
    }
}

/// Returns, for an error text, the remedy for the limit in `reason`: a push of a finished task found no room for
/// its row, which was deleted while the push was held, and has to be created again.
fn remedy(reason: &RejectReason) -> &'static str {
    let resource = match *reason {
        RejectReason::TableFull { resource, .. } => RowResource::from_code(resource),
        _ => None,
    };
    resource.map_or("raise --capacity", RowResource::remedy)
}
