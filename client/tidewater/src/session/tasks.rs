//! Tasks: pushes that take effect as a whole. The crate `tidewater-tasks` has the calls for programs.

use std::time::Duration;

use tidewater_protocol::mutants::{Mutant, on};
use tidewater_protocol::wire::control::{TaskAnswer, TaskRequest};
use tidewater_runtime::clock::Deadline;

use super::Client;
use crate::error::ClientError;
use crate::link::CoordinatorCall;
use crate::push::PushOptions;
use crate::table::state::TableState;

impl Client {
    /// Sends a request about tasks (take, report, ...) to the coordinator, and blocks for its answer.
    ///
    /// # Errors
    /// The coordinator's refusal; a deadline, after which the request may have been carried out;
    /// [`ClientError::Observer`] for an observer, which has no tasks.
    pub fn request_task(
        &mut self,
        request: TaskRequest,
        timeout: Duration,
    ) -> Result<TaskAnswer, ClientError> {
        let call = CoordinatorCall::Tasks(Box::new(request));
        let op = call.op();
        let call = self.start_call(&call, Deadline::after(timeout), false)?;
        self.finish_call(call)?.tasks(op)
    }

    /// Opens a task with the given delivery number, which the coordinator gave when it handed the task out. Servers
    /// hold what this client pushes from here on, until the coordinator has decided that the task is finished; pulls
    /// do not see it before. Calls that take effect at once fail meanwhile with [`ClientError::Argument`]: ticks,
    /// functions that change elements, deletions, settings, collective calls and [`Client::finish`]. So do encoded
    /// pushes. It first waits for earlier pushes, so that their refusals do not count
    /// to the task.
    ///
    /// # Errors
    /// [`ClientError::Argument`] while another task is open; [`ClientError::Observer`]. As [`Client::flush`]; the
    /// task is not open then.
    pub fn begin_task(&mut self, delivery: u64) -> Result<(), ClientError> {
        self.check_worker("begin_task")?;
        self.check_no_task("begin_task")?;
        self.complete("begin_task", self.deadline())?;
        self.lanes.set_task(Some(delivery));
        Ok(())
    }

    /// Closes the open task: sends TASK frames behind its pushes, and blocks until all appliers have them. Returns
    /// whether servers hold pushes of it; the report of the task carries that.
    ///
    /// # Errors
    /// The refusal of a push that no ticket has claimed, or a deadline: drop the task then, with
    /// [`Client::drop_task`]. [`ClientError::Argument`] without an open task.
    pub fn mark_task(&mut self) -> Result<bool, ClientError> {
        let Some(delivery) = self.lanes.task() else {
            return Err(ClientError::Argument {
                op: "mark_task",
                table: "-".into(),
                what: "no task is open; open it with begin_task".into(),
            });
        };
        let deadline = self.deadline();
        self.lanes.mark_task(delivery, true, deadline)?;
        if !on(Mutant::TaskBeforeMarks) {
            self.complete("mark_task", deadline)?;
        }
        self.lanes.set_task(None);
        Ok(self.lanes.has_task_pushes())
    }

    /// Drops the pushes that servers hold of a task, and their refusals; blocks until the appliers have done so. The
    /// task may be closed. If it was reported as finished, the coordinator must have answered that it does not count.
    /// Cost: a frame to each applier with pushes of the task; to all appliers if
    /// another task has been opened since.
    ///
    /// # Errors
    /// A deadline, or that a server is lost. [`ClientError::Argument`] while another task is open.
    pub fn drop_task(&mut self, delivery: u64) -> Result<(), ClientError> {
        if let Some(open) = self.lanes.task().filter(|open| *open != delivery) {
            return Err(ClientError::Argument {
                op: "drop_task",
                table: "-".into(),
                what: format!(
                    "delivery {open} is open, not {delivery}; finish it or drop it first"
                ),
            });
        }
        self.lanes.set_task(None);
        let deadline = self.deadline();
        self.lanes.mark_task(delivery, false, deadline)?;
        self.lanes.settle("drop_task", deadline)?;
        self.run_callbacks();
        // They are the reason why it is dropped, and not those of the next task.
        while self.lanes.claim_refusal().is_some() {}
        Ok(())
    }

    /// Delivery number of the open task; `None` if no task is open.
    pub const fn open_task(&self) -> Option<u64> {
        self.lanes.task()
    }

    /// Number of this client, unique in its process. It changes with [`Client::rejoin`], after which tables, tasks
    /// and queues of before are invalid.
    pub const fn number(&self) -> u32 {
        self.tables.client.0
    }

    /// Fails with `ClientError::Argument` for an encoded push while a task is open: its residuals would stay if the
    /// task is dropped.
    pub(super) fn check_options_in_task(
        &self,
        op: &'static str,
        state: &TableState,
        options: &PushOptions,
    ) -> Result<(), ClientError> {
        if !options.is_encoded() || self.lanes.task().is_none() {
            return Ok(());
        }
        let what = "an encoding keeps what it leaves out for the next push, also if the task is dropped; push exact \
                    values inside a task";
        Err(state.wrong(op, what.into()))
    }

    /// Fails with `ClientError::Argument` while a task is open: `op` takes effect at once.
    pub(super) fn check_no_task(&self, op: &'static str) -> Result<(), ClientError> {
        match self.lanes.task() {
            None => Ok(()),
            Some(_) => Err(ClientError::Argument {
                op,
                table: "-".into(),
                what: "a task is open; finish it or drop it first".into(),
            }),
        }
    }
}
