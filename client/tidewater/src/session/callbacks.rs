//! Callbacks of pushes: each runs once, on a thread that calls the client, when the servers have answered.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};

use tidewater_protocol::mutants::{Mutant, on};

use super::Client;
use crate::error::ClientError;
use crate::lanes::LaneRefusal;
use crate::push::Ticket;

type Callback = Box<dyn FnOnce(Result<(), ClientError>) + Send>;

/// Callback that has not run, and the push that it belongs to.
struct Pending {
    ticket: Ticket,
    /// Name of the table, for the error of a push that is never answered.
    table: String,
    callback: Callback,
}

/// Callbacks of a client that have not run, in the order in which they were given. Dropping them runs each with
/// [`ClientError::Unanswered`].
#[derive(Default)]
pub(super) struct Callbacks {
    pending: VecDeque<Pending>,
}

impl Callbacks {
    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Runs all callbacks with [`ClientError::Unanswered`]: no answer can arrive any more.
    pub(super) fn abandon(&mut self, why: &'static str) {
        // Each is taken out before it runs: also a callback that panics runs once.
        while let Some(Pending {
            table, callback, ..
        }) = self.pending.pop_front()
        {
            callback(Err(ClientError::Unanswered { table, why }));
        }
    }
}

impl Drop for Callbacks {
    fn drop(&mut self) {
        let why =
            "the client was dropped before the servers had answered; flush or finish it first";
        while !self.pending.is_empty() {
            // Harmless: the panic hook has reported the panic, a drop cannot return it, and the others are still due.
            let _ = catch_unwind(AssertUnwindSafe(|| self.abandon(why)));
        }
    }
}

impl Client {
    /// Gives a push a callback, which runs once with the result of the push: `Ok` when the servers have applied
    /// all of its frames (of tables `at_clock`: hold them for the tick), else the refusal.
    /// [`Client::wait_applied`] and [`Client::try_applied`] of any ticket, [`Client::progress`],
    /// [`Client::flush`], ticks, barriers and [`Client::finish`] run the callbacks of all answered pushes on
    /// their own thread before they return, also when they fail; a call that waits for this push therefore
    /// returns after its callback. Pushes and pulls run none; [`Client::try_pull`] and a full
    /// [`PushBuffer`](crate::PushBuffer) run all, and this call runs the oldest ones up to the first that is not
    /// due, but never its own. Inside a task, `Ok` means that the servers hold the push until the task is decided.
    ///
    /// Callbacks that become due in one call run in the order in which they were given. A callback cannot call the
    /// client, which is borrowed by the call that runs it; it can send to a channel, or set what the caller looks at
    /// afterwards. A refusal that a callback has received counts as claimed: flushes and ticks do not return it again.
    /// A panic of a callback goes to the caller, and that callback does not run again.
    ///
    /// A client that is dropped runs the remaining callbacks with [`ClientError::Unanswered`], as does
    /// [`Client::rejoin`]. Cost: an allocation; a call that runs callbacks looks at each that is not due yet.
    ///
    /// # Errors
    /// [`ClientError::Argument`] for a ticket of another client: the callback is dropped and does not run.
    ///
    /// # Example
    /// ```
    /// # use tidewater::{ClientError, JoinOptions, PushOp, SyncMode, TableBuilder};
    /// # fn main() -> Result<(), ClientError> {
    /// # let job = JoinOptions::embedded(1, 1).join()?.into_job().expect("a worker");
    /// # let mut client = job.client(SyncMode::Asp)?;
    /// let table = client.create_table::<i64>(TableBuilder::sparse::<i64>("counts", 1).spec())?;
    /// let (done, applied) = std::sync::mpsc::channel();
    /// for key in 0..3 {
    ///     let ticket = client.push_rows(&table, &[key], &[1], PushOp::Sum)?;
    ///     let done = done.clone();
    ///     client.on_applied(&ticket, move |result| done.send((key, result.is_ok())).unwrap())?;
    /// }
    /// client.flush()?;
    /// assert_eq!(applied.try_iter().collect::<Vec<_>>(), [(0, true), (1, true), (2, true)]);
    /// # client.finish()
    /// # }
    /// ```
    pub fn on_applied(
        &mut self,
        ticket: &Ticket,
        callback: impl FnOnce(Result<(), ClientError>) + Send + 'static,
    ) -> Result<(), ClientError> {
        self.own("on_applied", ticket)?;
        self.callbacks.pending.push_back(Pending {
            ticket: ticket.clone(),
            table: self.table_name(ticket.table()),
            callback: Box::new(callback),
        });
        // A program that only pushes keeps few more callbacks than it has pushes under way.
        while self.callbacks.pending.len() > 1 {
            let first = self.callbacks.pending.front();
            let answer = first.and_then(|first| self.lanes.try_applied(&first.ticket));
            let Some(answer) = answer else {
                break;
            };
            self.run_callback(0, answer);
        }
        Ok(())
    }

    /// Runs the callbacks of all pushes that the servers have answered, by what the lanes have received so far.
    #[inline]
    pub(super) fn run_callbacks(&mut self) {
        if !self.callbacks.pending.is_empty() {
            self.run_due_callbacks();
        }
    }

    #[cold]
    fn run_due_callbacks(&mut self) {
        let mut at = 0;
        while let Some(pending) = self.callbacks.pending.get(at) {
            match self.lanes.try_applied(&pending.ticket) {
                None => at += 1,
                Some(answer) => self.run_callback(at, answer),
            }
        }
    }

    /// Takes out the callback at an index and runs it with the answer to its push.
    fn run_callback(&mut self, at: usize, answer: Result<(), LaneRefusal>) {
        // Taken out before it runs: also a callback that panics runs once.
        let Some(Pending {
            ticket, callback, ..
        }) = self.callbacks.pending.remove(at)
        else {
            return;
        };
        let answer = answer.map_err(|refusal| self.refusal(Some(ticket.table()), refusal));
        callback(match on(Mutant::CallbackWithoutRefusal) {
            true => Ok(()),
            false => answer,
        });
    }
}
