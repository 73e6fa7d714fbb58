//! Refused frames of one lane, kept for later queries.
//!
//! The reasons of the newest are kept; of older ones, only that they were refused. Memory is bounded,
//! and no refused frame ever looks applied: where frames can no longer be distinguished, the result is
//! unknown.
//!
//! A refusal is *claimed* when a call has asked for a ticket of its frame. It is also claimed when a
//! completion call (flush, tick, barrier, finish) has returned it. `Rejects::unclaimed` finds the others.

use std::collections::VecDeque;

use tidewater_protocol::layout::lines::Reject;
use tidewater_protocol::limits::{REJECT_RUNS_MAX, REJECTS_KEPT_MAX};

/// Why frames of a ticket do not count as applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// The first frame that was refused.
    With(Reject),
    /// All of frames `first..=last` of the lane, or some of them, were refused.
    Forgotten {
        /// The first of these frames.
        first: u64,
        /// The last of them.
        last: u64,
        /// Whether one of the ticket's frames is certain to be refused; else that is unknown.
        certain: bool,
    },
}

/// Number of the push call that built a frame, from 1 in the order of the calls.
pub type PushCall = u64;

/// The call number of frames that are no push. A CLOCK is checked by the tick that sent it; the refusal
/// of a request is in its reply. Their refusals need no claim.
pub const NO_PUSH: PushCall = 0;

/// A refused frame, and whether its refusal was claimed.
#[derive(Debug)]
struct Kept {
    reject: Reject,
    call: PushCall,
    claimed: bool,
}

/// Frames `first..=last`, all of them refused, or some.
#[derive(Debug, Clone, Copy)]
struct Run {
    first: u64,
    last: u64,
    all: bool,
    /// The first call with a refusal in this run that was not claimed when its reason was forgotten.
    unclaimed: Option<PushCall>,
}

/// The refused frames of one lane. Sequence numbers ascend in both lists, and those of `runs` are below
/// those of `kept`.
#[derive(Debug, Default)]
pub struct Rejects {
    kept: VecDeque<Kept>,
    runs: VecDeque<Run>,
    /// Frames of which the server refused some without naming them: a protocol error.
    unknown: Option<Run>,
    /// Number of entries in `kept`, `runs` and `unknown` that are not claimed.
    open: usize,
}

impl Rejects {
    /// Adds the newest refusal, of a frame of push `call`. Returns whether this drops the reason of an
    /// unclaimed one.
    pub fn add(&mut self, reject: Reject, call: PushCall) -> bool {
        let claimed = call == NO_PUSH;
        self.open += usize::from(!claimed);
        self.kept.push_back(Kept {
            reject,
            call,
            claimed,
        });
        if self.kept.len() <= REJECTS_KEPT_MAX {
            return false;
        }
        let dropped = self.kept.pop_front();
        dropped.is_some_and(|dropped| {
            self.forget(&dropped);
            !dropped.claimed
        })
    }

    fn forget(&mut self, dropped: &Kept) {
        let seq = dropped.reject.seq;
        self.open -= usize::from(!dropped.claimed);
        let unclaimed = (!dropped.claimed).then_some(dropped.call);
        if let Some(run) = self.runs.back_mut()
            && run.all
            && run.last + 1 == seq
        {
            run.last = seq;
            self.open += usize::from(run.unclaimed.is_none() && unclaimed.is_some());
            run.unclaimed = run.unclaimed.or(unclaimed);
            return;
        }
        self.open += usize::from(unclaimed.is_some());
        let run = Run {
            first: seq,
            last: seq,
            all: true,
            unclaimed,
        };
        self.runs.push_back(run);
        if self.runs.len() > REJECT_RUNS_MAX
            && let Some(oldest) = self.runs.pop_front()
            && let Some(next) = self.runs.front_mut()
        {
            (next.first, next.all) = (oldest.first, false);
            self.open -= usize::from(oldest.unclaimed.is_some() && next.unclaimed.is_some());
            next.unclaimed = oldest.unclaimed.or(next.unclaimed);
        }
    }

    /// Records that some unknown frames of `first..=last` were refused. `call` is the newest push.
    pub fn lose(&mut self, first: u64, last: u64, call: PushCall) {
        let known = self.unknown.get_or_insert(Run {
            first,
            last,
            all: false,
            unclaimed: None,
        });
        (known.first, known.last) = (known.first.min(first), known.last.max(last));
        self.open += usize::from(known.unclaimed.is_none());
        known.unclaimed.get_or_insert(call);
    }

    /// Returns what is known of refused frames among `first..=last`, and claims them. Repeated calls
    /// return the same, except for reasons forgotten meanwhile.
    pub fn among(&mut self, first: u64, last: u64) -> Option<Refused> {
        let from = self.kept.partition_point(|kept| kept.reject.seq < first);
        let mut found = None;
        let asked = self.kept.range_mut(from..);
        for kept in asked.take_while(|kept| kept.reject.seq <= last) {
            self.open -= usize::from(!std::mem::replace(&mut kept.claimed, true));
            found = found.or(Some(Refused::With(kept.reject)));
        }
        let at = self.runs.partition_point(|run| run.last < first);
        let runs = self.runs.range_mut(at..).chain(&mut self.unknown);
        let overlaps = |run: &&mut Run| run.first <= last && run.last >= first;
        for run in runs.filter(overlaps) {
            // A run that also holds frames of other tickets stays open.
            if first <= run.first && run.last <= last {
                self.open -= usize::from(run.unclaimed.take().is_some());
            }
            found = found.or(Some(run.refused()));
        }
        found
    }

    /// The refusal of the earliest push that is not claimed.
    #[inline]
    pub fn unclaimed(&self) -> Option<(PushCall, Refused)> {
        if self.open == 0 {
            return None;
        }
        self.first_open()
    }

    #[cold]
    fn first_open(&self) -> Option<(PushCall, Refused)> {
        let runs = self.runs.iter().chain(&self.unknown);
        let runs = runs.filter_map(|run| Some((run.unclaimed?, run.refused())));
        let kept = self.kept.iter().filter(|kept| !kept.claimed);
        let kept = kept.map(|kept| (kept.call, Refused::With(kept.reject)));
        runs.chain(kept).min_by_key(|&(call, _)| call)
    }

    /// Claims every refusal of push `call`, and the runs with their first unclaimed refusal in it.
    pub fn claim(&mut self, call: PushCall) {
        for kept in self.kept.iter_mut().filter(|kept| kept.call == call) {
            self.open -= usize::from(!std::mem::replace(&mut kept.claimed, true));
        }
        for run in self.runs.iter_mut().chain(&mut self.unknown) {
            if run.unclaimed == Some(call) {
                run.unclaimed = None;
                self.open -= 1;
            }
        }
    }
}

impl Run {
    const fn refused(&self) -> Refused {
        Refused::Forgotten {
            first: self.first,
            last: self.last,
            certain: self.all,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tidewater_protocol::layout::reject::RejectReason;

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
    fn kept_reason_returned_each_time() {
        let mut rejects = Rejects::default();
        for seq in [3, 7, 8] {
            assert!(!rejects.add(reject(seq), seq));
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
            assert!(!rejects.add(reject(seq), seq));
        }
        assert_eq!(rejects.among(11, 11), Some(Refused::With(reject(11))));
        let unclaimed =
            [200 + kept, 201 + kept, 202 + kept].map(|seq| rejects.add(reject(seq), seq));
        assert_eq!(unclaimed, [true, false, true]);
        assert_eq!(rejects.among(10, 10), forgotten(10, 11, true));
        assert_eq!(rejects.among(11, 12), forgotten(10, 11, true));
        assert_eq!(rejects.among(12, 12), None);
        assert_eq!(rejects.among(12, 99), forgotten(13, 13, true));
        assert_eq!(rejects.among(13, 100), Some(Refused::With(reject(100))));
    }

    #[test]
    fn lost_rejects_reported_as_uncertain() {
        let mut rejects = Rejects::default();
        rejects.add(reject(4), 4);
        rejects.lose(20, 25, 30);
        rejects.lose(9, 10, 30);
        assert_eq!(rejects.among(5, 8), None);
        assert_eq!(rejects.among(12, 12), forgotten(9, 25, false));
        assert_eq!(rejects.among(26, 30), None);
    }

    #[test]
    fn the_earliest_unclaimed_push_comes_first() {
        let mut rejects = Rejects::default();
        rejects.add(reject(3), 7);
        rejects.add(reject(4), 7);
        rejects.add(reject(5), NO_PUSH);
        rejects.add(reject(6), 9);
        rejects.add(reject(8), 8);
        for _ in 0..2 {
            assert_eq!(rejects.unclaimed(), Some((7, Refused::With(reject(3)))));
        }
        rejects.claim(7);
        assert_eq!(rejects.unclaimed(), Some((8, Refused::With(reject(8)))));
        // A call asks for its ticket.
        assert!(rejects.among(8, 8).is_some());
        assert_eq!(rejects.unclaimed(), Some((9, Refused::With(reject(6)))));
        rejects.claim(9);
        assert_eq!((rejects.unclaimed(), rejects.open), (None, 0));
    }

    #[test]
    fn a_forgotten_refusal_stays_unclaimed() {
        let mut rejects = Rejects::default();
        let kept = REJECTS_KEPT_MAX as u64;
        // 1 to 3 are pushed out as one run, 5 as another, and only 2 was asked for.
        for seq in [1, 2, 3, 5] {
            rejects.add(reject(seq), seq);
        }
        rejects.among(2, 2);
        for seq in 100..100 + kept {
            rejects.add(reject(seq), NO_PUSH);
        }
        assert_eq!(rejects.unclaimed().map(|(call, _)| call), Some(1));
        rejects.among(1, 2);
        assert_eq!(
            rejects.unclaimed().map(|(call, _)| call),
            Some(1),
            "3 is open"
        );
        rejects.among(1, 3);
        assert_eq!(rejects.unclaimed(), forgotten(5, 5, true).map(|f| (5, f)));
        rejects.claim(5);
        assert_eq!((rejects.unclaimed(), rejects.open), (None, 0));
        rejects.lose(300, 310, 4);
        assert_eq!(
            rejects.unclaimed(),
            forgotten(300, 310, false).map(|f| (4, f))
        );
        rejects.claim(4);
        assert_eq!((rejects.unclaimed(), rejects.open), (None, 0));
    }

    proptest! {
        /// Compares with the set of all frames that were ever refused.
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
                rejects.add(reject(seq), seq);
            }
            let entries = |r: &Rejects| {
                let kept = r.kept.iter().filter(|kept| !kept.claimed).count();
                kept + r.runs.iter().filter(|run| run.unclaimed.is_some()).count()
            };
            prop_assert_eq!(rejects.open, entries(&rejects));
            prop_assert!(rejects.kept.len() <= REJECTS_KEPT_MAX);
            prop_assert!(rejects.runs.len() <= REJECT_RUNS_MAX);
            for (first, more) in asks {
                let last = first + more;
                let is_refused = all.range(first..=last).next().is_some();
                match rejects.among(first, last) {
                    None => prop_assert!(!is_refused),
                    Some(Refused::With(reject)) => prop_assert!(all.contains(&reject.seq)),
                    Some(Refused::Forgotten { certain, .. }) => prop_assert!(is_refused || !certain),
                }
                prop_assert_eq!(rejects.open, entries(&rejects));
            }
            // Claimed one after the other, they come to an end.
            let mut last = 0;
            while let Some((call, _)) = rejects.unclaimed() {
                prop_assert!(call > last);
                rejects.claim(call);
                last = call;
            }
            prop_assert_eq!(rejects.open, 0);
        }
    }
}
