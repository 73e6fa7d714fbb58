//! Which buffer of a snapshot table holds which epoch, and the epochs that readers have pinned.
//!
//! A new epoch is built in the buffer with the oldest values, except in that of the front or of a pinned
//! epoch. At most two buffers less than there are may be pinned, so such a buffer always exists: a pin
//! never delays a tick.

use std::collections::BTreeSet;

use tidewater_protocol::ids::SessionId;
use tidewater_protocol::mutants::{self, Mutant};

/// One buffer of a table.
#[derive(Debug, Clone, Copy)]
struct Buffer {
    /// Epoch of the values in the buffer; while one is built, that of the values before.
    epoch: u64,
    /// Whether readers may use the buffer.
    is_complete: bool,
}

/// The buffers of one applier's share of a snapshot table.
#[derive(Debug)]
pub(super) struct Rotation {
    buffers: Vec<Buffer>,
    front: usize,
    building: usize,
    /// Pinned epochs, each with a session that pinned it and the version that it was then. After a load
    /// the epoch stands for another version.
    pins: BTreeSet<(u64, SessionId, u64)>,
}

/// Why a version cannot be pinned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PinRefusal {
    /// No buffer holds the version.
    NotKept {
        /// Oldest version of which all later ones are kept.
        oldest: u64,
        /// The newest complete version.
        newest: u64,
    },
    /// As many versions are pinned as can be.
    Full {
        /// Number of pinned versions.
        pinned: u64,
        /// Most versions that can be pinned.
        limit: u64,
    },
}

impl Rotation {
    /// Buffers with the initial values, as of epoch `front`.
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

    /// Buffer of the front.
    pub(super) const fn front(&self) -> usize {
        self.front
    }

    /// Buffer that is being built, or that of the front.
    pub(super) const fn building(&self) -> usize {
        self.building
    }

    /// Chooses the buffer of the next epoch: readers lose what it holds.
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

    /// Epoch of the values that the buffer being built had before.
    pub(super) fn base(&self) -> u64 {
        self.buffers[self.building].epoch
    }

    /// Makes the buffer that is being built the front.
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

    /// Oldest epoch such that it and all later ones are complete, and the buffers of these, as the
    /// snapshot record has them.
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

    /// Number of pinned epochs.
    pub(super) fn pinned(&self) -> usize {
        let epochs: BTreeSet<u64> = self.pins.iter().map(|pin| pin.0).collect();
        epochs.len()
    }

    /// Pins an epoch, which is that of `version`, for a session and returns its buffer. A second pin of the
    /// session has no effect. `None` for an epoch that no buffer holds; the error has the number of pinned
    /// epochs and its limit.
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

    /// Ends the session's pin of a version: one, of the oldest epoch with that version.
    pub(super) fn unpin(&mut self, session: SessionId, version: u64) {
        let mut pins = self.pins.iter();
        let pin = pins.find(|pin| pin.1 == session && pin.2 == version);
        if let Some(pin) = pin.copied() {
            self.pins.remove(&pin);
        }
    }

    /// Ends all pins of a session.
    pub(super) fn unpin_all(&mut self, session: SessionId) {
        self.pins.retain(|pin| pin.1 != session);
    }
}
