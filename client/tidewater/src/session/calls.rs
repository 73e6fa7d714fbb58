//! Calls to the coordinator that are under way while their thread goes on.

use std::time::Duration;

use tidewater_protocol::table::TableSpec;
use tidewater_runtime::clock::Deadline;
use tidewater_runtime::sync::Arc;

use super::threads::first_only;
use super::{Client, creation_timeout};
use crate::error::ClientError;
use crate::ids::ClientNumber;
use crate::interrupt;
use crate::link::{BegunCall, CoordinatorCall, CoordinatorReply, Loaded, Saved};
use crate::table::{Element, Table};

/// Longest time for which [`Client::test_call`] waits for a message of the coordinator.
const LOOK: Duration = Duration::from_millis(1);
/// Longest wait of a `finish` call between two checks for an interrupt or the deadline.
const SLICE: Duration = Duration::from_millis(500);

/// Handle of a started call to the coordinator (`Client::start_save` and the like). The `finish` call of its kind
/// takes it and returns its result. It may be dropped: the call itself goes on, and its result is lost.
///
/// # Example
/// ```
/// # use tidewater::{ClientError, JoinOptions, SyncMode, TableBuilder};
/// # fn main() -> Result<(), ClientError> {
/// # let job = JoinOptions::embedded(1, 1).join()?.into_job().expect("a worker");
/// # let mut client = job.client(SyncMode::Asp)?;
/// let spec = TableBuilder::sparse::<f32>("w", 8);
/// let mut call = client.start_create_table(spec.spec())?;
/// while !client.test_call(&mut call)? {} // the program computes in between
/// let table = client.finish_create_table::<f32>(call)?;
/// assert_eq!(table.dim(), 8);
/// # client.finish()
/// # }
/// ```
#[derive(Debug)]
#[must_use = "the result of a call comes from its finish"]
pub struct PendingCall {
    client: ClientNumber,
    op: &'static str,
    deadline: Deadline,
    state: CallState,
    /// Reference that the client counts, to detect that this handle was dropped.
    _alive: Arc<()>,
}

#[derive(Debug)]
enum CallState {
    UnderWay(u64),
    Done(Box<CoordinatorReply>),
    /// The call has failed: the connection has forgotten it.
    Over,
}

/// Record that the client keeps of a started call that is not over.
#[derive(Debug)]
pub(super) struct Started {
    /// Clone of the [`PendingCall`]'s reference; the count shows whether that was dropped.
    alive: Arc<()>,
    number: u64,
    op: &'static str,
    deadline: Deadline,
    /// Whether the client must not tick or finish meanwhile.
    holds_clock: bool,
}

impl Started {
    fn is_dropped(&self) -> bool {
        Arc::strong_count(&self.alive) == 1
    }
}

impl Client {
    pub(super) fn start_call(
        &mut self,
        call: &CoordinatorCall,
        deadline: Deadline,
        holds_clock: bool,
    ) -> Result<PendingCall, ClientError> {
        self.check_worker(call.op())?;
        self.forget_dropped();
        if matches!(
            call,
            CoordinatorCall::CreateTable(_) | CoordinatorCall::Load { .. }
        ) {
            self.rejoin_if_restarted(deadline)?;
        }
        self.lanes.send_held(deadline)?;
        let state = match self.lanes.coordinator.begin(call, deadline)? {
            BegunCall::UnderWay(number) => CallState::UnderWay(number),
            BegunCall::Done(reply) => CallState::Done(reply),
        };
        let alive = Arc::new(());
        if let CallState::UnderWay(number) = state {
            self.started.push(Started {
                alive: Arc::clone(&alive),
                number,
                op: call.op(),
                deadline,
                holds_clock,
            });
        }
        Ok(PendingCall {
            client: self.tables.client,
            op: call.op(),
            deadline,
            state,
            _alive: alive,
        })
    }

    /// Fails with `ClientError::Argument` while a save of this client's clocks is under way. A save with a dropped
    /// handle ends when its answer has arrived, or at its deadline.
    pub(super) fn check_no_save(&mut self, op: &'static str) -> Result<(), ClientError> {
        if self.started.is_empty() {
            return Ok(());
        }
        self.forget_dropped();
        if !self.started.iter().any(|call| call.holds_clock) {
            return Ok(());
        }
        Err(ClientError::Argument {
            op,
            table: "-".into(),
            what: "a save of this worker's clocks is under way; finish the save first, or if its call was \
                   dropped, repeat this call later"
                .into(),
        })
    }

    /// Abandons started calls with dropped handles: their results are lost. A save of this client's clocks, during
    /// which it must not tick, stays until its answer has arrived or its deadline has passed.
    fn forget_dropped(&mut self) {
        for n in (0..self.started.len()).rev() {
            let call = &self.started[n];
            if !call.is_dropped() {
                continue;
            }
            let (op, number, late) = (call.op, call.number, call.deadline.passed());
            let polled = match call.holds_clock {
                true => self.await_reply(op, number, LOOK),
                false => Ok(None),
            };
            match polled {
                Ok(None) if self.started[n].holds_clock && !late => continue,
                Ok(None) => self.lanes.coordinator.forget(number),
                Ok(Some(_)) => {}
                Err(error) => tracing::debug!(%error, op, "a dropped call has failed"),
            }
            self.started.swap_remove(n);
        }
    }

    /// Abandons all started calls, with handles that are refused from now on: the connection keeps no answer for them.
    pub(super) fn abandon_started(&mut self) {
        for call in std::mem::take(&mut self.started) {
            self.lanes.coordinator.forget(call.number);
        }
    }

    /// Waits up to `wait` for the answer of call `number`; `None` without one. Other messages do not end the wait.
    fn await_reply(
        &mut self,
        op: &'static str,
        number: u64,
        wait: Duration,
    ) -> Result<Option<CoordinatorReply>, ClientError> {
        let until = Deadline::after(wait);
        loop {
            let reply = self.lanes.coordinator.poll(op, number, until.left())?;
            if reply.is_some() || until.passed() {
                return Ok(reply);
            }
        }
    }

    /// Starts the creation of a table, or the opening of the one of that name with an equal definition, without
    /// waiting for it. [`Client::finish_create_table`] returns the table.
    ///
    /// # Errors
    /// A definition that is not valid; a lost connection.
    pub fn start_create_table(&mut self, spec: &TableSpec) -> Result<PendingCall, ClientError> {
        self.check_servers("create_table", spec)?;
        let deadline = Deadline::after(creation_timeout(self.timeout, spec));
        let call = CoordinatorCall::CreateTable(spec.clone());
        self.start_call(&call, deadline, false)
    }

    /// Arrives at a barrier like [`Client::barrier`]: blocks until this worker's pushes are answered, but not for
    /// the other workers. [`Client::finish_barrier`] waits for those.
    ///
    /// # Errors
    /// As [`Client::barrier`], except for missing workers, which `finish_barrier` reports.
    pub fn start_barrier(
        &mut self,
        name: &str,
        timeout: Duration,
    ) -> Result<PendingCall, ClientError> {
        let deadline = Deadline::after(timeout);
        first_only("barrier", self.guard.thread())?;
        self.complete("barrier", deadline)?;
        let call = match self.workers {
            0 => CoordinatorCall::MemberBarrier(self.member_barrier(name, 0, Vec::new())),
            count => CoordinatorCall::Barrier {
                name: name.to_owned(),
                count,
            },
        };
        self.start_call(&call, deadline, false)
    }

    /// Starts a save like [`Client::save`], without waiting for it. Pulls and pushes may follow at once. Under BSP
    /// and SSP the save is of this worker's clocks. Once the worker has ticked, its next tick and [`Client::finish`]
    /// therefore fail until [`Client::finish_save`] or [`Client::test_call`] has seen the end of the save. If its call
    /// is dropped, they fail until the save is over or `timeout` has passed.
    ///
    /// # Errors
    /// [`ClientError::Observer`] for an observer; a relative directory that cannot be made absolute; a lost connection.
    ///
    /// # Examples
    /// ```
    /// # use std::time::Duration;
    /// # use tidewater::{ClientError, JoinOptions, SyncMode, TableBuilder};
    /// # fn main() -> Result<(), ClientError> {
    /// # let dir = std::env::temp_dir().join(format!("tidewater-save-{}", std::process::id()));
    /// # let dir = dir.to_str().expect("UTF-8");
    /// # let job = JoinOptions::embedded(1, 1).join()?.into_job().expect("a worker");
    /// # let mut client = job.client(SyncMode::Asp)?;
    /// let table = client.create_table::<f32>(TableBuilder::rows::<f32>("w", 8, 4).spec())?;
    /// let mut save = client.start_save(dir, Duration::from_secs(60))?;
    /// while !client.test_call(&mut save)? {
    ///     // pull, compute, push
    /// }
    /// let saved = client.finish_save(save)?;
    /// assert_eq!(saved.rows, 8);
    /// # assert!(saved.bytes > 0);
    /// # std::fs::remove_dir_all(dir).expect("its directory");
    /// # client.finish()
    /// # }
    /// ```
    pub fn start_save(&mut self, dir: &str, timeout: Duration) -> Result<PendingCall, ClientError> {
        let (dir, clocks) = (dir.to_owned(), self.clocks_of_save());
        let is_cut = !clocks.is_empty();
        let call = CoordinatorCall::Save { dir, clocks };
        self.start_call(&call, Deadline::after(timeout), is_cut)
    }

    /// Starts a load like [`Client::load`], without waiting for it. [`Client::finish_load`] returns its result.
    ///
    /// # Errors
    /// A relative directory that cannot be made absolute; a lost connection.
    pub fn start_load(&mut self, dir: &str, timeout: Duration) -> Result<PendingCall, ClientError> {
        let dir = dir.to_owned();
        let call = CoordinatorCall::Load { dir };
        self.start_call(&call, Deadline::after(timeout), false)
    }

    /// Polls a started call; returns whether it is done: its `finish` then returns at once. Waits up to 1 ms for a
    /// message.
    ///
    /// # Errors
    /// The failure of the call, which is over then, or its deadline. [`ClientError::Argument`] for a call of another
    /// client.
    pub fn test_call(&mut self, call: &mut PendingCall) -> Result<bool, ClientError> {
        self.poll_call(call, LOOK)
    }

    /// Polls a started call for up to `wait`; stores its answer in the handle. Returns whether it is done. When the
    /// call fails, also at its deadline, it is over: further polls fail. The call of another client is refused.
    fn poll_call(&mut self, call: &mut PendingCall, wait: Duration) -> Result<bool, ClientError> {
        let wrong = |what: &str| ClientError::Argument {
            op: call.op,
            table: "-".into(),
            what: what.into(),
        };
        if call.client != self.tables.client {
            return Err(wrong("the call was started by another client"));
        }
        let number = match call.state {
            CallState::UnderWay(number) => number,
            CallState::Done(_) => return Ok(true),
            CallState::Over => return Err(wrong("the call has failed before")),
        };
        let polled = match self.await_reply(call.op, number, wait) {
            Ok(None) if call.deadline.passed() => {
                let missing = self.lanes.coordinator.abandon(call.op, number);
                Err(ClientError::Deadline {
                    op: call.op,
                    missing,
                })
            }
            polled => polled,
        };
        if let Ok(None) = polled {
            return Ok(false);
        }
        self.started.retain(|started| started.number != number);
        // Also an error is the end of it: the connection has forgotten it.
        call.state = CallState::Over;
        if let Some(reply) = polled? {
            call.state = CallState::Done(Box::new(reply));
        }
        Ok(true)
    }

    pub(super) fn finish_call(
        &mut self,
        mut call: PendingCall,
    ) -> Result<CoordinatorReply, ClientError> {
        loop {
            // An answer that has arrived counts also after the deadline.
            let wait = SLICE.min(call.deadline.left()).max(LOOK);
            if self.poll_call(&mut call, wait)?
                && let CallState::Done(reply) = call.state
            {
                return Ok(*reply);
            }
            // The call stays under way: its result is lost, and it counts as dropped.
            interrupt::check(call.op)?;
        }
    }

    /// Blocks until [`Client::start_create_table`] has created its table; returns the table.
    ///
    /// # Errors
    /// As [`Client::create_table`].
    pub fn finish_create_table<T: Element>(
        &mut self,
        call: PendingCall,
    ) -> Result<Table<T>, ClientError> {
        let op = call.op;
        let info = self.finish_call(call)?.table(op)?;
        self.adopt(info, self.deadline())
    }

    /// Blocks until the barrier of [`Client::start_barrier`] has opened.
    ///
    /// # Errors
    /// A refusal that names the missing workers; the failure of the call, its deadline, or an interrupt, after which
    /// the result is lost.
    pub fn finish_barrier(&mut self, call: PendingCall) -> Result<(), ClientError> {
        let op = call.op;
        self.finish_call(call)?.done(op)
    }

    /// Blocks until the save of [`Client::start_save`] is complete; returns the rows and bytes written.
    ///
    /// # Errors
    /// As [`Client::save`].
    pub fn finish_save(&mut self, call: PendingCall) -> Result<Saved, ClientError> {
        let op = call.op;
        self.finish_call(call)?.saved(op)
    }

    /// Blocks until the load of [`Client::start_load`] is complete; returns its tables and clocks.
    ///
    /// # Errors
    /// As [`Client::load`].
    pub fn finish_load(&mut self, call: PendingCall) -> Result<Loaded, ClientError> {
        let op = call.op;
        self.finish_call(call)?.loaded(op)
    }
}
