//! Commands of other threads to an applier. Control only, never per row.

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use tidewater_lanes::fabric::{Inbox, ServerLane};
use tidewater_lanes::wake::Waker;
use tidewater_protocol::ids::{DomainId, SessionId, TableId, WorkerId, WorkerThread};
use tidewater_protocol::layout::lines::StateLine;

use super::engine::Engine;
use super::status::ApplierReport;
use super::table::Table;
use crate::namespace::NamespaceId;
use crate::ring_reader::Ring;
use tidewater_clocks::FirstClocks;

/// Callback for the answer of a command. Runs on the applier's thread and must not block. Dropped without a
/// call if the applier ends.
pub type Reply<T> = Box<dyn FnOnce(T) + Send>;

/// Command of another thread to an applier, with the channel for its answer. An answer of `()` says that the
/// command is carried out.
pub enum Command {
    /// Adds the ring of a new session. Its lane is attached already or comes later.
    AddRing(Box<Ring>, Sender<()>),
    /// Attaches a new lane to a session's ring: after a recovery, or the first one on tcp. Answers false if the
    /// session has no ring here or the lane has failed.
    AttachPort(SessionId, Box<dyn ServerLane>, Sender<bool>),
    /// Replaces inbox memory and lane of a recovered ring, where the old memory cannot be revoked from its
    /// client. Answers false if the session has no ring here or the lane has failed.
    Renew(SessionId, Inbox, Box<dyn ServerLane>, Sender<bool>),
    /// Begins the recovery of a ring: ends its old lane, consumes its complete frames, answers its
    /// position. Answers `None` for a session that is not here. The answer waits until the device has ended
    /// the lane.
    Recover(SessionId, Reply<Option<StateLine>>),
    /// Drops the ring of a session that has ended, with its frames. Answers when the device has ended its
    /// lane.
    DropRing(SessionId, Sender<()>),
    /// Makes the workers with ranks below the number the members of a job's clocks. The first call counts.
    Expect(NamespaceId, u32, Sender<()>),
    /// Removes a lost worker from the clocks of a job: no minimum waits for this worker any more. Drops its
    /// pushes of iterations that it did not end, and its tasks.
    RemoveWorker(NamespaceId, WorkerId, Sender<()>),
    /// Holds the clocks of a job until `Admit`. Answers the furthest clock of each domain that was ticked in.
    HoldClocks(NamespaceId, Sender<Vec<(DomainId, u64)>>),
    /// Releases the held clocks of a job, with a new member if there is one, at its first clocks. Rings that an
    /// earlier worker of its rank has left are dropped. Answers whether the member begins now; false if it
    /// begins when the present member of its rank leaves, or without a new member.
    Admit(NamespaceId, Option<(WorkerId, FirstClocks)>, Sender<bool>),
    /// Ends a job that has no tables: drops its clocks, held frames and loaded functions.
    EndJob(NamespaceId, Sender<()>),
    /// Adds this applier's share of a new table.
    AddTable(Box<Table>, Sender<()>),
    /// Removes this applier's share of a released table and answers with the share; `None` if it is not here.
    /// The caller frees the share, because that takes long.
    TakeTable(TableId, Sender<Option<Box<Table>>>),
    /// Runs a closure on the applier's thread between two frames: to save, load or inspect.
    With(Box<dyn FnOnce(&mut Engine) + Send>),
    /// Ends the run of the applier after its present step.
    Stop,
    /// Answers with a report of the applier's state for operators.
    Report(Sender<ApplierReport>),
    /// Applies the held pushes of a thread's task that the coordinator has declared finished. The `u64` is the
    /// number of the task's delivery.
    FinishTask(NamespaceId, WorkerThread, u64, Sender<()>),
}

impl Command {
    /// Builds a `Recover` command that sends its answer over a channel. The answer is dropped if the
    /// receiver is gone.
    pub fn recover(session: SessionId, tx: Sender<Option<StateLine>>) -> Self {
        let reply = move |state| {
            let _ = tx.send(state);
        };
        Self::Recover(session, Box::new(reply))
    }
}

impl std::fmt::Debug for Command {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::AddRing(..) => "AddRing",
            Self::AttachPort(..) => "AttachPort",
            Self::Renew(..) => "Renew",
            Self::Recover(..) => "Recover",
            Self::DropRing(..) => "DropRing",
            Self::Expect(..) => "Expect",
            Self::RemoveWorker(..) => "RemoveWorker",
            Self::HoldClocks(..) => "HoldClocks",
            Self::Admit(..) => "Admit",
            Self::EndJob(..) => "EndJob",
            Self::AddTable(..) => "AddTable",
            Self::TakeTable(..) => "TakeTable",
            Self::With(..) => "With",
            Self::Stop => "Stop",
            Self::Report(..) => "Report",
            Self::FinishTask(..) => "FinishTask",
        })
    }
}

/// Sends commands to one applier and wakes its thread. Clones share the channel.
#[derive(Debug, Clone)]
pub struct ApplierHandle {
    commands: Sender<Command>,
    waker: Option<Waker>,
}

/// Error of a command to an applier that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the applier has ended; the server is shutting down or has failed, see its log")]
pub struct ApplierGone;

impl ApplierHandle {
    /// Creates the command channel of an applier: the senders' handle and the applier's receiver. `waker`
    /// ends the applier's sleep; `None` in the simulator, where the applier polls.
    pub fn new(waker: Option<Waker>) -> (Self, Receiver<Command>) {
        let (commands, rx) = unbounded();
        (Self { commands, waker }, rx)
    }

    /// Sends a command to the applier and wakes its thread. Does not wait for the answer.
    ///
    /// # Errors
    /// [`ApplierGone`] if the applier has ended; nothing was sent.
    pub fn send(&self, command: Command) -> Result<(), ApplierGone> {
        self.commands.send(command).map_err(|_| ApplierGone)?;
        if let Some(waker) = &self.waker {
            waker.wake();
        }
        Ok(())
    }

    /// Sends a command and blocks until the applier answers. `make` builds the command around the sender of
    /// an answer channel.
    ///
    /// # Errors
    /// `ApplierGone`, also when the applier ends before it answers.
    pub fn ask<T>(&self, make: impl FnOnce(Sender<T>) -> Command) -> Result<T, ApplierGone> {
        let (tx, rx) = bounded(1);
        self.send(make(tx))?;
        rx.recv().map_err(|_| ApplierGone)
    }

    /// Runs `f` on the applier's thread between two frames. Blocks until `f` has run and returns its result.
    ///
    /// # Errors
    /// [`ApplierGone`], also when the applier ends before it runs `f`.
    pub fn with<T: Send + 'static>(
        &self,
        f: impl FnOnce(&mut Engine) -> T + Send + 'static,
    ) -> Result<T, ApplierGone> {
        self.ask(|tx| {
            Command::With(Box::new(move |engine| {
                let _ = tx.send(f(engine));
            }))
        })
    }
}
