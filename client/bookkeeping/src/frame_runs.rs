//! Frames of pushes, as runs of sequence numbers on each lane.

/// Run of frames of one push on one lane, by their sequence numbers `first..=last`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LaneSeqs {
    /// Number of the lane.
    pub lane: u32,
    /// Sequence number of the first frame.
    pub first: u64,
    /// Sequence number of the last frame.
    pub last: u64,
}

const INLINE: usize = 4;

/// Runs of frames, in the order in which they were added. The first four need no allocation.
#[derive(Debug, Clone, Default)]
pub struct FrameRuns {
    inline: [LaneSeqs; INLINE],
    len: usize,
    more: Vec<LaneSeqs>,
}

impl FrameRuns {
    /// Adds a run; extends the run that it continues, if there is one.
    #[inline]
    pub fn add(&mut self, run: LaneSeqs) {
        let all = self.inline[..self.len].iter_mut().chain(&mut self.more);
        for part in all {
            if part.lane == run.lane && part.last + 1 == run.first {
                part.last = run.last;
                return;
            }
        }
        if self.len < INLINE {
            self.inline[self.len] = run;
            self.len += 1;
        } else {
            self.more.push(run);
        }
    }

    /// All runs, in the order in which they were begun.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = LaneSeqs> + '_ {
        self.inline[..self.len].iter().chain(&self.more).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_part_a_lane_however_many_lanes() {
        let mut runs = FrameRuns::default();
        for seq in 1..4 {
            for lane in 0..7 {
                runs.add(LaneSeqs {
                    lane,
                    first: seq,
                    last: seq,
                });
            }
        }
        let parts: Vec<_> = runs.iter().collect();
        assert_eq!(parts.len(), 7);
        assert!(parts.iter().all(|p| (p.first, p.last) == (1, 3)));
    }
}
