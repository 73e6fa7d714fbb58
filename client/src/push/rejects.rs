//! Frames of one lane that the server refused, for whoever asks later.
//!
//! Reasons are kept of the newest; of older ones that they were refused. Nothing of this grows, and
//! no refused frame ever looks as if it had been applied: what cannot be told apart any more is told
//! as unknown.

use std::collections::VecDeque;

use tidewater_transport::layout::lines::Reject;
use tidewater_transport::limits::{REJECT_RUNS_MAX, REJECTS_KEPT_MAX};

/// Why frames of a ticket do not count as applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The first that was refused.
    With(Reject),
    /// Frames `first..=last` of the lane, or some of them.
    Forgotten {
        first: u64,
        last: u64,
        /// Whether one of the ticket's is among the refused ones; else that is not known.
        certain: bool,
    },
}

/// A refused frame, and whether its ticket was asked for.
#[derive(Debug)]
struct Kept {
    reject: Reject,
    asked: bool,
}

/// Frames `first..=last`, all of them refused, or some.
#[derive(Debug, Clone, Copy)]
struct Run {
    first: u64,
    last: u64,
    all: bool,
}

/// The refused frames of one lane. Sequence numbers ascend in both lists, and those of `runs` are
/// below those of `kept`.
#[derive(Debug, Default)]
pub(crate) struct Rejects {
    kept: VecDeque<Kept>,
    runs: VecDeque<Run>,
    /// Frames of which the server refused some and did not say which: it talks nonsense.
    unknown: Option<Run>,
}

impl Rejects {
    /// Takes in the newest. True if this drops the reason of one that nobody has asked for.
    pub(crate) fn add(&mut self, reject: Reject) -> bool {
        let asked = false;
        self.kept.push_back(Kept { reject, asked });
        if self.kept.len() <= REJECTS_KEPT_MAX {
            return false;
        }
        let dropped = self.kept.pop_front();
        dropped.is_some_and(|dropped| {
            self.forget(dropped.reject.seq);
            !dropped.asked
        })
    }

    fn forget(&mut self, seq: u64) {
        if let Some(run) = self.runs.back_mut()
            && run.all
            && run.last + 1 == seq
        {
            run.last = seq;
            return;
        }
        let run = Run {
            first: seq,
            last: seq,
            all: true,
        };
        self.runs.push_back(run);
        if self.runs.len() > REJECT_RUNS_MAX
            && let Some(oldest) = self.runs.pop_front()
            && let Some(next) = self.runs.front_mut()
        {
            (next.first, next.all) = (oldest.first, false);
        }
    }

    /// Of frames `first..=last` some were refused, nobody knows which.
    pub(crate) fn lose(&mut self, first: u64, last: u64) {
        let known = self.unknown.get_or_insert(Run {
            first,
            last,
            all: false,
        });
        (known.first, known.last) = (known.first.min(first), known.last.max(last));
    }

    /// What is known of refused frames among `first..=last`. The same every time, but that reasons
    /// are forgotten.
    pub(crate) fn among(&mut self, first: u64, last: u64) -> Option<Refused> {
        let from = self.kept.partition_point(|kept| kept.reject.seq < first);
        let mut found = None;
        let asked = self.kept.range_mut(from..);
        for kept in asked.take_while(|kept| kept.reject.seq <= last) {
            kept.asked = true;
            found = found.or(Some(Refused::With(kept.reject)));
        }
        let at = self.runs.partition_point(|run| run.last < first);
        let runs = self.runs.range(at..).chain(&self.unknown);
        let mut runs = runs.filter(|run| run.first <= last && run.last >= first);
        found.or_else(|| {
            runs.next().map(|run| Refused::Forgotten {
                first: run.first,
                last: run.last,
                certain: run.all,
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tidewater_transport::layout::reject::RejectReason;

    use super::*;

    fn reject(seq: u64) -> Reject {
        Reject {
            seq,
            table: 1,
            reason: RejectReason::NotFinite { row: seq, key: 0 },
        }
    }

    fn forgotten(first: u64, last: u64, certain: bool) -> Option<Refused> {
        Some(Refused::Forgotten {
            first,
            last,
            certain,
        })
    }

    #[test]
    fn a_reason_is_told_as_often_as_it_is_asked_for() {
        let mut rejects = Rejects::default();
        for seq in [3, 7, 8] {
            assert!(!rejects.add(reject(seq)));
        }
        for _ in 0..2 {
            assert_eq!(rejects.among(1, 2), None);
            assert_eq!(rejects.among(4, 6), None);
            assert_eq!(rejects.among(4, 8), Some(Refused::With(reject(7))));
            assert_eq!(rejects.among(9, u64::MAX), None);
        }
    }

    #[test]
    fn a_reason_that_is_dropped_leaves_that_its_frame_was_refused() {
        let mut rejects = Rejects::default();
        let kept = REJECTS_KEPT_MAX as u64;
        // 10, 11 and 13, then as many as push them out; 11 was asked for.
        for seq in [10, 11, 13].into_iter().chain(100..100 + kept - 3) {
            assert!(!rejects.add(reject(seq)));
        }
        assert_eq!(rejects.among(11, 11), Some(Refused::With(reject(11))));
        let unclaimed = [200 + kept, 201 + kept, 202 + kept].map(|seq| rejects.add(reject(seq)));
        assert_eq!(unclaimed, [true, false, true]);
        assert_eq!(rejects.among(10, 10), forgotten(10, 11, true));
        assert_eq!(rejects.among(11, 12), forgotten(10, 11, true));
        assert_eq!(rejects.among(12, 12), None);
        assert_eq!(rejects.among(12, 99), forgotten(13, 13, true));
        assert_eq!(rejects.among(13, 100), Some(Refused::With(reject(100))));
    }

    #[test]
    fn what_nobody_knows_is_told_as_unknown() {
        let mut rejects = Rejects::default();
        rejects.add(reject(4));
        rejects.lose(20, 25);
        rejects.lose(9, 10);
        assert_eq!(rejects.among(5, 8), None);
        assert_eq!(rejects.among(12, 12), forgotten(9, 25, false));
        assert_eq!(rejects.among(26, 30), None);
    }

    proptest! {
        /// Against all that was ever refused.
        #[test]
        fn no_refused_frame_looks_applied(
            gaps in prop::collection::vec(1u64..4, 1..6_000),
            asks in prop::collection::vec((0u64..20_000, 0u64..20), 1..200),
        ) {
            let mut rejects = Rejects::default();
            let (mut all, mut seq) = (std::collections::BTreeSet::new(), 0);
            for gap in gaps {
                seq += gap;
                all.insert(seq);
                rejects.add(reject(seq));
            }
            prop_assert!(rejects.kept.len() <= REJECTS_KEPT_MAX);
            prop_assert!(rejects.runs.len() <= REJECT_RUNS_MAX);
            for (first, more) in asks {
                let last = first + more;
                let is_refused = all.range(first..=last).next().is_some();
                match rejects.among(first, last) {
                    None => prop_assert!(!is_refused),
                    Some(Refused::With(told)) => prop_assert!(all.contains(&told.seq)),
                    Some(Refused::Forgotten { certain, .. }) => prop_assert!(is_refused || !certain),
                }
            }
        }
    }
}
