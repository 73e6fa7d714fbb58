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

    /// Removes the runs for which `keep` returns false.
    pub fn retain(&mut self, mut keep: impl FnMut(LaneSeqs) -> bool) {
        let mut kept = Self::default();
        self.iter()
            .filter(|&run| keep(run))
            .for_each(|run| kept.add(run));
        *self = kept;
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
    #[test]
    fn removed_runs_leave_others_in_order() {
        let mut runs = FrameRuns::default();
        let run = |seq: u64| LaneSeqs {
            lane: 0,
            first: 10 * seq,
            last: 10 * seq + 3,
        };
        (1..=9).for_each(|seq| runs.add(run(seq)));
        runs.retain(|run| run.first % 20 != 0);
        assert!(runs.iter().eq([1, 3, 5, 7, 9].map(run)));
        runs.retain(|_| false);
        assert_eq!(runs.iter().count(), 0);
    }
}
