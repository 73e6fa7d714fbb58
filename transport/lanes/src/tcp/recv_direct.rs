//! Direct receive into borrowed memory, and requests that are held back for batching.
//!
//! A submitted batch is received into memory of its own, from where its owner copies it. A caller that
//! waits for the oldest one before it is complete avoids the copy. The rest arrives in the caller's buffer,
//! for as long as that call lasts. Meanwhile no answer behind that batch is processed. It stays in the
//! input buffer, and the next call finds it there without a system call.

use super::client_lane::{Posted, TcpClientLane};
use super::plan::{Target, fits, reborrow};
use super::receive::Link;
use crate::fabric::{LaneError, ReadBatch, ReadOp, Unpack};
use tidewater_protocol::limits::{LANE_HELD_BATCHES, LANE_HELD_TIME};
use tidewater_protocol::mutants::{Mutant, on};
use tidewater_runtime::clock::Deadline;

impl TcpClientLane {
    /// Sends pending output and requests for submitted reads now, or holds both back. Holds them while
    /// fewer than `LANE_HELD_BATCHES` (16) batches are without a request and input or finished batches
    /// wait: the thread will collect those at once and then submit more. A call sends in any case once
    /// [`LANE_HELD_TIME`] (20 us) has passed since the first call that held them.
    pub(super) fn send_soon(&mut self) -> Result<(), LaneError> {
        let posted = self.inbound.batches.len() - self.inbound.batches_asked;
        let news = self.inbound.input.len() > 0 || !self.inbound.done.is_empty();
        if news && posted < LANE_HELD_BATCHES {
            let until = self.held.unwrap_or_else(|| Deadline::after(LANE_HELD_TIME));
            self.held = Some(until);
            if !until.passed() {
                return Ok(());
            }
        }
        self.ask(&mut None);
        self.send().map(drop)
    }

    /// Blocks until the oldest batch is complete and receives its bodies directly into `body` at the
    /// offsets of `ops`, the same reads. `None` if batch `tag` is not the oldest under way, or at the
    /// deadline. The batch then comes back from `poll_read`; at the deadline what has arrived is copied
    /// to its own buffers.
    pub(super) fn recv_direct(
        &mut self,
        tag: u64,
        ops: &[ReadOp],
        body: &mut [u8],
        mut unpacker: Option<&mut dyn Unpack>,
        deadline: Deadline,
    ) -> Result<Option<ReadBatch>, LaneError> {
        let oldest = self.inbound.batches.front();
        if self.inbound.is_direct || oldest.is_none_or(|posted| posted.batch.tag != tag) {
            return Ok(None);
        }
        if self.held.is_some_and(|until| until.passed()) {
            self.ask(&mut None);
            self.send()?;
        }
        let Some(mut posted) = self.inbound.batches.pop_front() else {
            return Ok(None);
        };
        if let Err(e) = same_reads(&posted, ops, body) {
            self.inbound.batches.push_front(posted);
            return Err(e);
        }
        let Posted { plan, batch } = &mut posted;
        plan.move_placed((&batch.ops, &batch.body), (ops, body));
        self.inbound.batches_asked = self.inbound.batches_asked.saturating_sub(1);
        self.inbound.is_direct = true;
        let mut caller = Some(Target {
            plan,
            ops,
            head: &mut batch.head,
            body,
            unpacker: reborrow(&mut unpacker),
        });
        let waited = self.wait_direct(&mut caller, deadline);
        self.inbound.is_direct = false;
        if posted.plan.is_done(ops) && waited.is_ok() {
            return Ok(Some(posted.batch));
        }
        // The rest is received into the batch's own memory.
        let Posted { plan, batch } = &mut posted;
        if !on(Mutant::LatePartNotMoved) {
            plan.move_placed((ops, body), (&batch.ops, &mut batch.body));
        }
        self.inbound.batches_asked += usize::from(plan.is_asked(ops));
        self.inbound.batches.push_front(posted);
        match waited {
            Ok(()) => Ok(None),
            Err(LaneError::Deadline { .. }) => {
                self.note_quiet();
                Ok(None)
            }
            Err(e) => Err(e),
        }
    }

    /// Processes bytes that were received before and are still in the input buffer, without a system
    /// call.
    fn take_in(&mut self, caller: &mut Option<Target<'_>>) -> Result<(), LaneError> {
        let link = Link {
            peer: &self.peer,
            op: self.op,
        };
        self.inbound.understand(&self.mailbox, caller, link)
    }

    fn wait_direct(
        &mut self,
        caller: &mut Option<Target<'_>>,
        deadline: Deadline,
    ) -> Result<(), LaneError> {
        self.take_in(caller)?;
        let done = |target: &Option<Target<'_>>| {
            let target = target.as_ref();
            target.is_none_or(|target| target.plan.is_done(target.ops))
        };
        if done(caller) {
            return Ok(());
        }
        self.wait(caller, deadline, |_, caller| done(caller))
    }
}

/// Checks that `ops` have the lengths and head offsets of the reads of a submitted batch, and body
/// offsets that fit `body`; [`LaneError::Usage`] if not. Source addresses are not compared.
fn same_reads(posted: &Posted, ops: &[ReadOp], body: &[u8]) -> Result<(), LaneError> {
    let asked = &posted.batch.ops;
    let mut pairs = asked.iter().zip(ops);
    if asked.len() != ops.len()
        || !pairs.all(|(a, b)| (a.len, a.head_len, a.head_at) == (b.len, b.head_len, b.head_at))
    {
        return Err(LaneError::Usage {
            op: "wait_read",
            what: "other reads than were posted",
        });
    }
    fits("wait_read", ops, &posted.batch.head, body)
}
