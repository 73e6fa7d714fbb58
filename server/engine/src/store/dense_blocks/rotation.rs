//! Which buffer of a snapshot table holds which epoch, and the epochs that readers have pinned.
//!
//! A new epoch is built in the buffer with the oldest values, except in that of the front or of a pinned
//! epoch. At most two buffers less than there are may be pinned, so such a buffer always exists: a pin
//! never delays a tick.

use std::collections::BTreeSet;

use tidewater_protocol::ids::SessionId;
use tidewater_protocol::mutants::{self, Mutant};

/// State of one buffer of a snapshot table: the epoch of its values.
#[derive(Debug, Clone, Copy)]
struct Buffer {
    /// Epoch of the values in the buffer. While the buffer is built: the epoch of its values before.
    epoch: u64,
    /// Whether the buffer is complete, so that readers may use it.
    is_complete: bool,
}

/// Assignment of epochs to the buffers of a snapshot table on one applier, and the pins of readers.
#[derive(Debug)]
pub(super) struct Rotation {
    buffers: Vec<Buffer>,
    front: usize,
    building: usize,
    /// Pinned epochs: epoch, session that pinned it, and the version that the epoch was then. After a load
    /// the epoch stands for another version.
    pins: BTreeSet<(u64, SessionId, u64)>,
}

/// Reason why a version cannot be pinned for a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PinRefusal {
    /// No buffer holds the version that was asked for.
    NotKept {
        /// Oldest version such that it and all later ones are kept.
        oldest: u64,
        /// The newest complete version.
        newest: u64,
    },
    /// The largest number of versions is pinned already.
    Full {
        /// Number of pinned versions.
        pinned: u64,
        /// Largest number of versions that can be pinned.
        limit: u64,
    },
}

impl Rotation {
    /// Creates the assignment of epochs to `buffers` buffers, at least 1, which all hold the table's initial
    /// values. These are epoch `front`; one buffer is complete for readers, and the others are free for later
    /// epochs.
    pub(super) fn new(buffers: usize, front: u64) -> Self {
        let first = (front % buffers as u64) as usize;
        let initial = |n| Buffer {
            epoch: front,
            is_complete: n == first,
        };
        Self {
            buffers: (0..buffers).map(initial).collect(),
            front: first,
            building: first,
            pins: BTreeSet::new(),
        }
    }

    /// Index of the front buffer: the newest complete one.
    pub(super) const fn front(&self) -> usize {
        self.front
    }

    /// Index of the buffer that is being built; that of the front if none is.
    pub(super) const fn building(&self) -> usize {
        self.building
    }

    /// Chooses the buffer for the next epoch: the one with the oldest values that is neither front nor
    /// pinned. Readers lose its values.
    pub(super) fn begin(&mut self) {
        let count = self.buffers.len();
        let free = |&n: &usize| {
            let buffer = self.buffers[n];
            !(buffer.is_complete && self.is_pinned(buffer.epoch))
        };
        let others = (1..count).map(|n| (self.front + n) % count);
        let oldest = others.filter(free).min_by_key(|&n| self.buffers[n].epoch);
        let Some(oldest) = oldest else {
            unreachable!("{} pins and {count} buffers leave none", self.pins.len());
        };
        self.buffers[oldest].is_complete = false;
        self.building = oldest;
    }

    /// Epoch of the values that the buffer had before it was being built. Blocks that later epochs stored must
    /// be copied into it.
    pub(super) fn base(&self) -> u64 {
        self.buffers[self.building].epoch
    }

    /// Makes the buffer that was built the front, complete for readers, with the values of `epoch`.
    pub(super) fn flip(&mut self, epoch: u64) {
        self.front = self.building;
        self.buffers[self.front] = Buffer {
            epoch,
            is_complete: true,
        };
    }

    fn buffer_of(&self, epoch: u64) -> Option<usize> {
        let holds = |buffer: &Buffer| buffer.is_complete && buffer.epoch == epoch;
        self.buffers.iter().position(holds)
    }

    /// Returns the oldest epoch such that it and all later ones are complete, and the indexes of the buffers
    /// of these epochs: 4 bits each, that of the front lowest, as in the snapshot record.
    pub(super) fn kept(&self) -> (u64, u64) {
        let mut kept = self.buffers[self.front].epoch;
        let (mut numbers, mut shift) = (self.front as u64, 0);
        while let Some(n) = kept.checked_sub(1).and_then(|older| self.buffer_of(older)) {
            kept -= 1;
            shift += 4;
            numbers |= (n as u64) << shift;
        }
        (kept, numbers)
    }

    fn is_pinned(&self, epoch: u64) -> bool {
        let of_epoch = (epoch, SessionId(0), 0)..=(epoch, SessionId(u64::MAX), u64::MAX);
        self.pins.range(of_epoch).next().is_some() && !mutants::on(Mutant::PinDropped)
    }

    /// Number of epochs that are pinned by any session.
    pub(super) fn pinned(&self) -> usize {
        let epochs: BTreeSet<u64> = self.pins.iter().map(|pin| pin.0).collect();
        epochs.len()
    }

    /// Pins an epoch for a session, so that its buffer is not reused, and returns the buffer's index.
    /// `version` is the version (clock) that the epoch stands for now. An epoch counts once, however many pins it
    /// has. `None` if no buffer holds the epoch. The error is the number of pinned epochs and the largest number
    /// allowed: two less than the buffers.
    pub(super) fn pin(
        &mut self,
        epoch: u64,
        version: u64,
        session: SessionId,
    ) -> Option<Result<usize, (usize, usize)>> {
        let buffer = self.buffer_of(epoch)?;
        let (pinned, limit) = (self.pinned(), self.buffers.len().saturating_sub(2));
        if !self.is_pinned(epoch) && pinned >= limit {
            return Some(Err((pinned, limit)));
        }
        self.pins.insert((epoch, session, version));
        Some(Ok(buffer))
    }

    /// Ends one pin of a session: that of the oldest epoch among those that the session pinned as this version.
    /// No effect if there is none.
    pub(super) fn unpin(&mut self, session: SessionId, version: u64) {
        let mut pins = self.pins.iter();
        let pin = pins.find(|pin| pin.1 == session && pin.2 == version);
        if let Some(pin) = pin.copied() {
            self.pins.remove(&pin);
        }
    }

    /// Ends all pins of a session, of every version.
    pub(super) fn unpin_all(&mut self, session: SessionId) {
        self.pins.retain(|pin| pin.1 != session);
    }
}
