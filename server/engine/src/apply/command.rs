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

/// Takes the answer of a command on the applier's thread; does not block. Dropped without a call if the applier ends.
pub type Reply<T> = Box<dyn FnOnce(T) + Send>;

/// A command with the channel for its answer.
pub enum Command {
    /// Adds a new session's ring; its lane is attached already or comes later.
    AddRing(Box<Ring>, Sender<()>),
    /// Attaches a ring's new lane: after a recovery, or the first one on tcp.
    AttachPort(SessionId, Box<dyn ServerLane>, Sender<bool>),
    /// Replaces memory and lane of a recovered ring, where memory cannot be taken away from its
    /// client.
    Renew(SessionId, Inbox, Box<dyn ServerLane>, Sender<bool>),
    /// Begins a recovery: ends the old lane, consumes complete frames, answers the ring's position;
    /// `None` for a session that is not here. The answer waits until the device has ended the lane.
    Recover(SessionId, Reply<Option<StateLine>>),
    /// Drops the ring of a session that has ended.
    DropRing(SessionId, Sender<()>),
    /// Sets the number of workers of a job.
    Expect(NamespaceId, u32, Sender<()>),
    /// Removes a worker of a job: no clock waits for it any more.
    RemoveWorker(NamespaceId, WorkerId, Sender<()>),
    /// Holds the clocks of a job; answers the furthest one of each domain that was ticked in.
    HoldClocks(NamespaceId, Sender<Vec<(DomainId, u64)>>),
    /// Lets the clocks of a job go on, with a new member if there is one. Answers whether it begins now,
    /// and not when the member of its rank leaves.
    Admit(NamespaceId, Option<(WorkerId, FirstClocks)>, Sender<bool>),
    /// Ends a job without tables: its clocks are forgotten.
    EndJob(NamespaceId, Sender<()>),
    /// Adds the share of a new table.
    AddTable(Box<Table>, Sender<()>),
    /// Takes out the share of a released table, for the caller to free: freeing takes long.
    TakeTable(TableId, Sender<Option<Box<Table>>>),
    /// Runs a closure on the applier's thread between two frames: to save, load or inspect.
    With(Box<dyn FnOnce(&mut Engine) + Send>),
    /// Ends the applier's thread.
    Stop,
    /// Reports the applier's state to operators.
    Report(Sender<ApplierReport>),
    /// Applies the pushes of a finished task, by the number of its delivery.
    FinishTask(NamespaceId, WorkerThread, u64, Sender<()>),
}

impl Command {
    /// [`Self::Recover`] with an answer over a channel. It is dropped if the receiver is gone.
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

/// The handle of other threads on an applier. Clones share it.
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
    /// Makes a channel to an applier that sleeps on `waker` (`None` in the simulator, where it
    /// polls).
    pub fn new(waker: Option<Waker>) -> (Self, Receiver<Command>) {
        let (commands, rx) = unbounded();
        (Self { commands, waker }, rx)
    }

    /// Sends a command and wakes the applier.
    ///
    /// # Errors
    /// [`ApplierGone`].
    pub fn send(&self, command: Command) -> Result<(), ApplierGone> {
        self.commands.send(command).map_err(|_| ApplierGone)?;
        if let Some(waker) = &self.waker {
            waker.wake();
        }
        Ok(())
    }

    /// Sends a command made around an answer channel and waits for the answer.
    ///
    /// # Errors
    /// [`ApplierGone`].
    pub fn ask<T>(&self, make: impl FnOnce(Sender<T>) -> Command) -> Result<T, ApplierGone> {
        let (tx, rx) = bounded(1);
        self.send(make(tx))?;
        rx.recv().map_err(|_| ApplierGone)
    }

    /// Runs `f` on the applier's thread between two frames and returns what it returns.
    ///
    /// # Errors
    /// [`ApplierGone`].
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
