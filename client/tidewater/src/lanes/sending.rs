//! Frames are built in rings, held, and sent; a call that finds a ring full waits for room.

use std::time::Duration;

use super::lane::call_slot;
use super::{Interrupt, LaneRefusal, Lanes};
use crate::error::ClientError;
use tidewater_bookkeeping::rejects::NO_PUSH;
use tidewater_protocol::layout::frame::{FrameHeader, FrameKind};
use tidewater_protocol::mutants::{self, Mutant};
use tidewater_runtime::clock::Deadline;

/// Bytes of unsent push frames at which a lane sends what it holds: the applier then works while the client
/// builds the next frames.
const HELD_BYTES: u64 = 32 << 10;

impl Lanes {
    /// Builds a frame in a lane's ring, without sending it. If the ring is full, it sends the lane's earlier
    /// frames and waits for room until `deadline`. `fill` writes the payload of `payload_len` bytes. Returns the
    /// frame's sequence number. Fails if the payload never fits the ring, and within a task for a frame that
    /// takes effect at once; nothing is built after an error.
    pub(crate) fn build(
        &mut self,
        lane: usize,
        header: FrameHeader,
        payload_len: usize,
        fill: impl FnOnce(&mut [u8]),
        deadline: Deadline,
    ) -> Result<u64, ClientError> {
        let header = match self.task {
            Some(_) => self.of_task(lane, header)?,
            None => header,
        };
        let l = &self.all[lane];
        let most = l.ring.payload_bytes_max();
        if payload_len > most {
            return Err(ClientError::Argument {
                op: "push",
                table: header.table.to_string(),
                what: format!(
                    "a frame of {payload_len} bytes; the ring takes at most {most}: raise ring_bytes or \
                     memory_budget"
                ),
            });
        }
        if !l.ring.has_room(payload_len) {
            self.send(lane, deadline)?;
            let mut waits = vec![0; self.all.len()];
            // 0 is a lane that does not wait; an UNPIN has no payload.
            waits[lane] = payload_len.max(1);
            self.wait_room(&waits, deadline)?;
        }
        let l = &mut self.all[lane];
        let built = l.ring.build(header, payload_len, fill);
        let seq = built.ok_or_else(|| ClientError::Deadline {
            op: "push",
            missing: "room".into(),
        })?;
        // What a ticket names: pushes, and settings.
        let call = match header.kind.is_push() || header.kind == FrameKind::Settings {
            true => self.counters.pushes,
            false => NO_PUSH,
        };
        l.calls[call_slot(seq)] = call;
        self.counters.frames += 1;
        self.counters.bytes_pushed += payload_len as u64 + 64;
        Ok(seq)
    }

    /// Sets the number of push frames that a lane holds before it sends them together; 0 counts as 1.
    pub(crate) const fn set_push_batch(&mut self, frames: u32) {
        self.push_batch = if frames == 0 { 1 } else { frames as u64 };
    }

    /// Sends the built frames of a push, or holds them until `push_batch` frames or `HELD_BYTES` bytes are held.
    /// Held frames leave with later pushes, or with the next call that is not a push ([`Self::send_held`]).
    pub(crate) fn send_or_hold(
        &mut self,
        lane: usize,
        deadline: Deadline,
    ) -> Result<(), ClientError> {
        let ring = &self.all[lane].ring;
        if ring.unsent_frames() < self.push_batch && ring.unsent() < HELD_BYTES {
            self.holds = true;
            return Ok(());
        }
        self.send(lane, deadline)
    }

    /// Sends the push frames that lanes hold. Costs one comparison if none is held.
    #[inline]
    pub(crate) fn send_held(&mut self, deadline: Deadline) -> Result<(), ClientError> {
        if !self.holds || mutants::on(Mutant::HeldPushesStay) {
            return Ok(());
        }
        self.send_all(deadline)
    }

    /// Sends the push frames that lanes hold, until at most `time` from now. It reads the clock, which costs a
    /// third of a pull of one row, only if some lane holds frames.
    #[inline]
    pub(crate) fn send_held_in(&mut self, time: Duration) -> Result<(), ClientError> {
        match self.holds || mutants::on(Mutant::PullReadsClock) {
            true => self.send_held(Deadline::after(time)),
            false => Ok(()),
        }
    }

    /// Sends all unsent frames of every lane: held ones, and those that a failed call has left.
    pub(crate) fn send_all(&mut self, deadline: Deadline) -> Result<(), ClientError> {
        for lane in 0..self.all.len() {
            if self.all[lane].ring.unsent() > 0 {
                self.send(lane, deadline)?;
            }
        }
        // After a failure some lanes may still hold frames.
        self.holds = false;
        Ok(())
    }

    /// Sends all built frames and blocks until the servers have acknowledged every frame of every lane: applied,
    /// held for a tick, or refused. A refusal is no error here: `claim_refusal` returns refusals. `op` names the
    /// call in errors.
    pub(crate) fn settle(
        &mut self,
        op: &'static str,
        deadline: Deadline,
    ) -> Result<(), ClientError> {
        if !mutants::on(Mutant::FlushWithoutSend) {
            self.send_all(deadline)?;
        }
        self.wait(op, deadline, |lanes| {
            Ok(lanes.all.iter().all(|l| l.ring.is_drained()).then_some(()))
        })
    }

    /// Blocks until every ring has room for a frame with `payload_len` payload bytes. If a ring has no room, it
    /// first sends the built frames of all lanes.
    pub(crate) fn wait_room_everywhere(
        &mut self,
        payload_len: usize,
        deadline: Deadline,
    ) -> Result<(), ClientError> {
        let has_room = |lanes: &Self| lanes.all.iter().all(|l| l.ring.has_room(payload_len));
        if has_room(self) {
            return Ok(());
        }
        self.counters.credit_waits += 1;
        self.send_all(deadline)?;
        self.wait("wait for room in a ring", deadline, |lanes| {
            Ok(has_room(lanes).then_some(()))
        })
    }

    /// Takes a refusal of the earliest push with refusals that no call (wait for its ticket, flush, tick) has
    /// reported yet, and marks all refusals of that push as reported. `None` if all are reported.
    pub(crate) fn claim_refusal(&mut self) -> Option<LaneRefusal> {
        if mutants::on(Mutant::UnclaimedRefusalIgnored) {
            return None;
        }
        let open = self.all.iter().enumerate();
        let open = open.filter_map(|(n, l)| l.rejects.unclaimed().map(|found| (n, found)));
        let (lane, (call, refused)) = open.min_by_key(|&(_, (call, _))| call)?;
        for l in &mut self.all {
            l.rejects.claim(call);
        }
        Some(LaneRefusal { lane, refused })
    }

    /// Whether the ring of a lane has no room for a frame with `payload_len` payload bytes now. A push then
    /// continues with other lanes first. False for a payload that is too large for any frame.
    #[inline]
    pub(crate) fn is_full(&self, lane: usize, payload_len: usize) -> bool {
        !self.all[lane].has_room_now(payload_len) && !mutants::on(Mutant::FullRingHoldsOthers)
    }

    /// Blocks until some waiting lane has room for its frame, and returns true. `waits` has the payload bytes of
    /// each lane's frame, or 0 for a lane that does not wait. Returns false at once if no lane waits. Sends the
    /// built frames of the waiting lanes first.
    pub(crate) fn wait_room(
        &mut self,
        waits: &[usize],
        deadline: Deadline,
    ) -> Result<bool, ClientError> {
        if waits.iter().all(|&bytes| bytes == 0) {
            return Ok(false);
        }
        self.counters.credit_waits += 1;
        // Frames that an earlier call built and could not send would hold their room for ever.
        for (lane, &bytes) in waits.iter().enumerate() {
            if bytes > 0 {
                self.send(lane, deadline)?;
            }
        }
        self.wait("wait for room in a ring", deadline, |lanes| {
            let mut pairs = lanes.all.iter().zip(waits);
            let room = pairs.any(|(l, &bytes)| bytes > 0 && l.has_room_now(bytes));
            Ok(room.then_some(true))
        })
    }

    /// Sends the frames that are built in a lane's ring. If the lane is broken, it recovers the lane before
    /// `deadline`, which sends them too. Also checks the control connections if that is due.
    pub(crate) fn send(&mut self, lane: usize, deadline: Deadline) -> Result<(), ClientError> {
        self.keep_alive()?;
        if self.all[lane].broken.is_none() {
            match self.all[lane].send() {
                Ok(()) => return Ok(()),
                Err(e) => match self.failed(lane, e) {
                    Interrupt::Failed(e) => return Err(e),
                    Interrupt::Broken(_) => {}
                },
            }
        }
        // The recovery writes everything that was built.
        self.recover(lane, deadline)
    }
}
