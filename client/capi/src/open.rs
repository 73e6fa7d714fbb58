//! State of an open session: the client, and the objects that handles name.

use std::time::Duration;

use tidewater::walltime::Walltime;
use tidewater::{AnyPushBuffer, AnyTable, Client, PendingCall, Ticket};
use tidewater_protocol::table::DType;
use tidewater_tasks::{CurrentTask, Tasks};

use crate::error::Failure;
use crate::handles::Handles;
use crate::values::{AnyPull, Gathered};

/// State of a session while it is open.
pub(crate) struct Open {
    pub(crate) client: Client,
    pub(crate) tables: Handles<AnyTable>,
    pub(crate) pushes: Handles<Ticket>,
    pub(crate) pulls: Handles<AnyPull>,
    /// Results of named functions, one vector for each piece.
    pub(crate) results: Handles<Vec<Vec<u8>>>,
    pub(crate) buffers: Handles<AnyPushBuffer>,
    pub(crate) calls: Handles<AnyCall>,
    pub(crate) queues: Handles<OpenQueue>,
    /// An all-gather that every worker has completed. Its values found no room here.
    pub(crate) gathered: Option<Gathered>,
    /// Set once the program has requested it.
    pub(crate) walltime: Option<Walltime>,
    /// Longest time of a call without a timeout of its own.
    pub(crate) timeout: Duration,
}

/// A call under way, and the type of the table that it creates.
pub(crate) struct AnyCall {
    pub(crate) call: PendingCall,
    pub(crate) dtype: Option<DType>,
}

/// A queue as a session has it, and the task that it has taken and not reported. `tasks` keeps the reports that got no
/// answer.
#[derive(Debug)]
pub(crate) struct OpenQueue {
    pub(crate) tasks: Tasks,
    pub(crate) current: Option<CurrentTask>,
}

/// Text of a report without a task: the caller has made its calls in the wrong order.
pub(crate) const NO_TASK: &str =
    "the session has no task of this queue; take one with tw_tasks_next";

impl OpenQueue {
    /// Repeats the report that got no answer, and reports the task that is not reported as failed.
    pub(crate) fn report_all(&mut self, client: &mut Client) -> Result<(), Failure> {
        self.tasks.repeat_report(client)?;
        let reason = "the worker closed the queue before it reported the task";
        self.tasks.fail_current(client, reason)?;
        Ok(())
    }
}
