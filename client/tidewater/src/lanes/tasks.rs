//! Frames of tasks: pushes that servers hold until the task is finished, and the marks behind them.

use tidewater_protocol::layout::frame::{FrameFlags, FrameHeader, FrameKind};
use tidewater_runtime::clock::Deadline;

use super::Lanes;
use crate::error::ClientError;

impl Lanes {
    /// Delivery number of the open task, by which the coordinator tells its hand-outs of tasks apart; `None` if no
    /// task is open.
    pub(crate) const fn task(&self) -> Option<u64> {
        self.task
    }

    /// Opens the task with this delivery number, or closes it with `None`. The list of lanes that carried its pushes
    /// stays until the next task is opened.
    pub(crate) fn set_task(&mut self, task: Option<u64>) {
        if task.is_some() {
            self.task_lanes.clear();
            self.last_task = task;
        }
        self.task = task;
    }

    /// Whether the client has built pushes of the task that was opened last, which servers hold until it is
    /// finished.
    pub(crate) const fn has_task_pushes(&self) -> bool {
        !self.task_lanes.is_empty()
    }

    /// Flags a push frame as part of the open task, so that the server holds it, and records its lane. Requests that
    /// change nothing pass unchanged.
    ///
    /// # Errors
    /// [`ClientError::Argument`] for a frame that would take effect at once: a task is finished completely or not at
    /// all.
    pub(super) fn of_task(
        &mut self,
        lane: usize,
        header: FrameHeader,
    ) -> Result<FrameHeader, ClientError> {
        let op = match header.kind {
            FrameKind::PushRows | FrameKind::PushDense => {
                if !self.task_lanes.contains(&lane) {
                    self.task_lanes.push(lane);
                }
                let flags = FrameFlags {
                    task: true,
                    ..header.flags
                };
                return Ok(FrameHeader { flags, ..header });
            }
            FrameKind::Update => "update",
            FrameKind::Delete => "delete_keys",
            FrameKind::Settings => "set_optimizer",
            FrameKind::Clock => "tick",
            _ => return Ok(header),
        };
        Err(ClientError::Argument {
            op,
            table: header.table.to_string(),
            what: "it takes effect at once, and cannot be part of a task that is applied as a whole; finish \
                   the task first, or open the queue for delivery at least once"
                .into(),
        })
    }

    /// Sends a TASK frame behind the task's pushes on each lane that carried them: with `keep` the servers keep the
    /// pushes of this delivery until the coordinator decides, otherwise they drop them. Of a task that was not opened
    /// last, the lanes are not known: the frame goes to all. Does not wait for the servers.
    pub(crate) fn mark_task(
        &mut self,
        delivery: u64,
        keep: bool,
        deadline: Deadline,
    ) -> Result<(), ClientError> {
        let header = FrameHeader {
            kind: FrameKind::Task,
            flags: FrameFlags::default(),
            seq: 0,
            session: 0,
            payload_len: 0,
            count: u32::from(keep),
            table: 0,
            partition: 0,
            clock: delivery,
            user_tag: 0,
            checksum: 0,
        };
        let lanes = match self.last_task == Some(delivery) {
            true => self.task_lanes.clone(),
            false => (0..self.len()).collect(),
        };
        for lane in lanes {
            self.build(lane, header, 0, |_| {}, deadline)?;
        }
        self.send_all(deadline)
    }
}
