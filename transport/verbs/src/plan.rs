//! Assigns reads to pairs, and decides when a fenced read may start. Pure: numbers in, a decision out.
//!
//! Reads go in batches, one doorbell each. A batch is filled before the next pair gets one, so a few
//! reads cost one doorbell and several pairs answer many at once.
//!
//! A fenced read (F03) starts after all earlier reads of the lane have completed. Where all incomplete
//! reads are on one pair, the device keeps the order: `IBV_SEND_FENCE` holds a request back until the
//! READs before it on its pair are complete, and everything behind it with it. Where they are on
//! several, only this end knows all of them, and it waits. A fenced read that is split into pieces
//! waits too: its later pieces would otherwise have to stay on the pair of the first. So does every
//! fenced read on a device without reliable fences (`DeviceLimits::fences`).

use tidewater_protocol::limits::{VERBS_CHAIN_BYTES, VERBS_CHAIN_REQUESTS};

/// Decision for the next piece of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Queue the piece on this pair.
    Put {
        /// Number of the pair.
        pair: usize,
        /// Whether to set `IBV_SEND_FENCE`.
        fence: bool,
    },
    /// Not now: an earlier read has to complete first.
    Wait,
}

/// State of a pair for the planner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Load {
    /// It has incomplete reads, posted or not.
    pub(super) busy: bool,
    /// The next piece fits its send queue and its read memory.
    pub(super) room: bool,
}

/// How a fenced read is fenced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fence {
    /// The read has no fence.
    No,
    /// It is one request: the device may keep the fence.
    Device,
    /// It is several, or the device must not: earlier reads have to complete first.
    Wait,
}

/// The next piece of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Next {
    /// Length of the piece in bytes.
    pub(super) bytes: usize,
    /// Whether and how it is fenced.
    pub(super) fence: Fence,
    /// A fenced one follows soon: staying on the same pair avoids a wait.
    pub(super) stay: bool,
}

/// State of the batch that is being filled.
#[derive(Debug, Default)]
pub(super) struct Planner {
    pair: usize,
    requests: usize,
    bytes: usize,
}

impl Planner {
    /// Chooses the step of the next piece; `load` returns the state of each of `pairs` pairs. Unless
    /// the step is to wait, the piece counts as queued.
    pub(super) fn next(
        &mut self,
        pairs: usize,
        Next { bytes, fence, stay }: Next,
        load: impl Fn(usize) -> Load,
    ) -> Step {
        let mut busy = (0..pairs).filter(|&pair| load(pair).busy);
        // Most reads have no fence, and do not check all pairs.
        let on_one_pair = match fence {
            Fence::No => None,
            _ => match (fence, busy.next(), busy.next()) {
                (_, None, _) => None,
                (Fence::Device, Some(pair), None) => Some(pair),
                _ => return Step::Wait,
            },
        };
        if let Some(pair) = on_one_pair {
            if !load(pair).room {
                return Step::Wait;
            }
            self.put(pair, bytes);
            return Step::Put { pair, fence: true };
        }
        let full = self.requests >= VERBS_CHAIN_REQUESTS || self.bytes >= VERBS_CHAIN_BYTES;
        let from = self.pair + usize::from(full && !stay);
        // The pair of the batch, if it has room; else the next one that has.
        let candidates = (0..pairs).map(|n| (from + n) % pairs);
        match candidates.into_iter().find(|&pair| load(pair).room) {
            Some(pair) => {
                if full {
                    (self.requests, self.bytes) = (0, 0);
                }
                self.put(pair, bytes);
                Step::Put { pair, fence: false }
            }
            None => Step::Wait,
        }
    }

    /// Notes that the batches were posted: the next one begins, on the next pair.
    pub(super) const fn posted(&mut self) {
        if self.requests > 0 {
            *self = Self {
                pair: self.pair + 1,
                requests: 0,
                bytes: 0,
            };
        }
    }

    const fn put(&mut self, pair: usize, bytes: usize) {
        if pair != self.pair {
            *self = Self {
                pair,
                requests: 0,
                bytes: 0,
            };
        }
        self.requests += 1;
        self.bytes += bytes;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const IDLE: Load = Load {
        busy: false,
        room: true,
    };

    /// Pairs to which pieces are queued, until `posted`.
    fn put(planner: &mut Planner, count: usize, bytes: usize) -> Vec<usize> {
        let mut at = Vec::new();
        for _ in 0..count {
            let next = Next {
                bytes,
                fence: Fence::No,
                stay: false,
            };
            match planner.next(4, next, |_| IDLE) {
                Step::Put { pair, fence: false } => at.push(pair),
                step => panic!("{step:?}"),
            }
        }
        planner.posted();
        at.dedup();
        at
    }

    #[test]
    fn small_reads_fill_a_chain_and_large_ones_spread() {
        let mut planner = Planner::default();
        assert_eq!(put(&mut planner, 1, 272), [0]);
        assert_eq!(put(&mut planner, 1, 272), [1]);
        assert_eq!(
            put(&mut planner, 64, 272),
            [2, 3],
            "two doorbells for 64 rows"
        );
        assert_eq!(put(&mut planner, 4, 256 << 10), [0, 1, 2, 3], "1 MiB");
        assert_eq!(put(&mut planner, 5, 256 << 10), [0, 1, 2, 3, 0]);
    }

    #[test]
    fn a_fence_stays_with_what_it_waits_for() {
        let mut planner = Planner::default();
        let on = |pairs: &'static [usize]| {
            move |pair| Load {
                busy: pairs.contains(&pair),
                room: true,
            }
        };
        let fenced = Step::Put {
            pair: 2,
            fence: true,
        };
        let free = Step::Put {
            pair: 0,
            fence: false,
        };
        let next = |fence| Next {
            bytes: 8,
            fence,
            stay: false,
        };
        let device = next(Fence::Device);
        assert_eq!(planner.next(4, device, on(&[])), free);
        assert_eq!(planner.next(4, device, on(&[2])), fenced);
        assert_eq!(planner.next(4, device, on(&[2, 3])), Step::Wait);
        assert_eq!(planner.next(4, next(Fence::Wait), on(&[2])), Step::Wait);
        let full = |_| Load {
            busy: true,
            room: false,
        };
        assert_eq!(planner.next(1, device, full), Step::Wait);
        assert_eq!(planner.next(1, next(Fence::No), full), Step::Wait);
    }

    #[test]
    fn what_a_fence_will_wait_for_stays_on_one_pair() {
        let mut planner = Planner::default();
        let before = Next {
            bytes: 272,
            fence: Fence::No,
            stay: true,
        };
        for _ in 0..63 {
            let step = planner.next(4, before, |_| IDLE);
            assert_eq!(
                step,
                Step::Put {
                    pair: 0,
                    fence: false
                }
            );
        }
        let last = Next {
            fence: Fence::Device,
            stay: false,
            ..before
        };
        let load = |pair| Load {
            busy: pair == 0,
            room: true,
        };
        assert_eq!(
            planner.next(4, last, load),
            Step::Put {
                pair: 0,
                fence: true
            }
        );
    }

    proptest! {
        /// Pieces are queued and completed at random, in order on each pair. When a fenced one is
        /// queued, nothing before it is left on another pair; and it always gets its turn.
        #[test]
        fn a_fenced_read_starts_after_all_earlier_ones(
            pairs in 1usize..5,
            pieces in proptest::collection::vec((0usize..3, 1usize..300_000, any::<u64>()), 1..200),
        ) {
            const ROOM: usize = 5;
            let mut planner = Planner::default();
            let mut out = vec![0usize; pairs];
            for (fence, bytes, mut random) in pieces {
                let fence = [Fence::No, Fence::Device, Fence::Wait][fence];
                let stay = random % 2 == 0;
                let next = Next { bytes, fence, stay };
                loop {
                    let load = |pair: usize| Load {
                        busy: out[pair] > 0,
                        room: out[pair] < ROOM,
                    };
                    match planner.next(pairs, next, load) {
                        Step::Put { pair, fence: by_device } => {
                            let others = (0..pairs).filter(|&p| p != pair && out[p] > 0).count();
                            prop_assert!(fence == Fence::No || others == 0);
                            let alone = out[pair] == 0;
                            prop_assert!(fence == Fence::No || alone || by_device);
                            prop_assert!(fence != Fence::Wait || alone);
                            out[pair] += 1;
                            break;
                        }
                        Step::Wait => {
                            let busy: Vec<usize> = (0..pairs).filter(|&p| out[p] > 0).collect();
                            prop_assert!(!busy.is_empty(), "nothing to wait for");
                            out[busy[random as usize % busy.len()]] -= 1;
                            random /= 7;
                        }
                    }
                }
                if random % 5 == 0 {
                    planner.posted();
                }
            }
        }
    }
}
