//! What other threads ask of an applier. Never per row: control only.

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use tidewater_lanes::fabric::{Inbox, ServerLane};
use tidewater_lanes::wake::Waker;
use tidewater_protocol::ids::{SessionId, TableId, WorkerId};
use tidewater_protocol::layout::lines::StateLine;

use super::engine::Engine;
use super::table::Table;
use crate::inbox::Ring;
use crate::namespace::NamespaceId;

/// A request with the channel for its answer.
pub enum Command {
    /// A new session's ring, its port already attached or to come.
    AddRing(Box<Ring>, Sender<()>),
    /// A ring's new port: after its lane was recovered, or the first one on tcp.
    AttachPort(SessionId, Box<dyn ServerLane>, Sender<bool>),
    /// A recovered lane's new memory and port, where memory cannot be taken away from its client.
    Renew(SessionId, Inbox, Box<dyn ServerLane>, Sender<bool>),
    /// A lane is to be recovered: ends the old port, consumes what is whole, answers how far the
    /// ring is; `None` for a session that is not here.
    Recover(SessionId, Sender<Option<StateLine>>),
    /// A session has ended.
    DropRing(SessionId, Sender<()>),
    /// A job is made of this many workers.
    Expect(NamespaceId, u32, Sender<()>),
    /// A worker of a job is gone: nobody waits for it any more.
    RemoveWorker(NamespaceId, WorkerId, Sender<()>),
    /// A job without tables is over: its clocks are forgotten.
    EndJob(NamespaceId, Sender<()>),
    /// A new table's share.
    AddTable(Box<Table>, Sender<()>),
    /// A table is released; its share comes back, to be freed by somebody with time.
    TakeTable(TableId, Sender<Option<Box<Table>>>),
    /// Runs on the applier's thread between two frames: saving, loading, looking.
    With(Box<dyn FnOnce(&mut Engine) + Send>),
    /// The applier ends.
    Stop,
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
            Self::EndJob(..) => "EndJob",
            Self::AddTable(..) => "AddTable",
            Self::TakeTable(..) => "TakeTable",
            Self::With(..) => "With",
            Self::Stop => "Stop",
        })
    }
}

/// The other threads' hand on an applier. Clones share it.
#[derive(Debug, Clone)]
pub struct ApplierHandle {
    commands: Sender<Command>,
    waker: Option<Waker>,
}

/// The applier is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the applier has ended; the server is shutting down or has failed, see its log")]
pub struct ApplierGone;

impl ApplierHandle {
    /// A channel to an applier that sleeps on `waker` (none in the simulator, where it polls).
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
