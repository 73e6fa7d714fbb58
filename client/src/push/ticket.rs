//! What a push returns.

/// Frames of one push on one lane: `first..=last`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct LaneSeqs {
    pub(crate) lane: u32,
    pub(crate) first: u64,
    pub(crate) last: u64,
}

const INLINE: usize = 4;

/// Where a push went. Dropping it is allowed: the push goes on, and if it fails the failure is
/// counted in [`crate::Counters::rejects_unclaimed`]. A ticket frees nothing and owns no memory of
/// the push.
#[derive(Debug, Clone, Default)]
#[must_use = "without waiting for it, a push that is refused goes unnoticed"]
pub struct Ticket {
    table: u32,
    inline: [LaneSeqs; INLINE],
    len: usize,
    more: Vec<LaneSeqs>,
}

impl Ticket {
    pub(crate) fn new(table: u32) -> Self {
        Self {
            table,
            ..Self::default()
        }
    }

    /// Number of the table.
    pub const fn table(&self) -> u32 {
        self.table
    }

    pub(crate) fn add(&mut self, lane: usize, seq: u64) {
        let lane = lane as u32;
        let all = self.inline[..self.len].iter_mut().chain(&mut self.more);
        for part in all {
            if part.lane == lane {
                part.last = seq;
                return;
            }
        }
        let part = LaneSeqs {
            lane,
            first: seq,
            last: seq,
        };
        if self.len < INLINE {
            self.inline[self.len] = part;
            self.len += 1;
        } else {
            self.more.push(part);
        }
    }

    pub(crate) fn parts(&self) -> impl Iterator<Item = LaneSeqs> + '_ {
        self.inline[..self.len].iter().chain(&self.more).copied()
    }

    /// Takes another ticket's frames in: waiting for this one then waits for both.
    pub fn merge(&mut self, other: &Self) {
        for part in other.parts() {
            self.add(part.lane as usize, part.first);
            self.add(part.lane as usize, part.last);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_part_a_lane_however_many_lanes() {
        let mut ticket = Ticket::new(1);
        for seq in 1..4 {
            for lane in 0..7 {
                ticket.add(lane, seq);
            }
        }
        let parts: Vec<_> = ticket.parts().collect();
        assert_eq!(parts.len(), 7);
        assert!(parts.iter().all(|p| (p.first, p.last) == (1, 3)));
    }
}
