//! Credit-based flow control of signals, and why no wake-up is lost.
//!
//! A *signal* is a WRITE with immediate data. It takes one of the receives that the other end has
//! posted, and its completion there wakes a parker. A signal that finds no receive is sent again a few
//! times and then breaks the queue pair. So an end signals only while the other end is known to have
//! receives left. Each end counts:
//!
//! - `sent`: its signals so far;
//! - `granted`: receives that the other end has announced as posted again so far. Every signal carries
//!   this count of its sender as its immediate data, so credit needs no message of its own;
//! - `reposted`: receives that it has posted again itself, and how many of them it has `announced`.
//!
//! **No signal lacks a receive.** Of the peer's `window` receives, `sent - reposted(peer)` are taken by
//! signals that arrived or are in flight. The peer announces only receives that it has posted already.
//! So `granted <= reposted(peer)`, and `sent - granted` is no less than the number taken. An end signals only
//! while `sent - granted < window`.
//!
//! **Credit returns.** An end may have handled signals and have none of its own to send. It returns
//! credit by an empty signal as soon as half its receives are unannounced. That signal takes a receive
//! too: the last one of the window is kept for it (`signal` leaves it alone). Can both ends have used
//! even that one, and wait for each other for ever? Suppose so, everything having arrived. Let b be the
//! last empty signal of B. It announced at least half a window, so after it arrived A had at least half
//! a window less out. A is at the end of its window now, so it must have signalled after it handled b.
//! It thereby announced b and all before it to B. b was the last of B, so B has nothing out, against
//! the assumption. Empty signals die out: each answers at least half a window of others.
//!
//! **No wake-up is lost.** The client's half: before it sleeps it arms its queue and polls once more. A
//! poll handles all completions, posts their receives again, and returns credit if it is due. The
//! server's half: it never waits, so with no credit left it writes without a signal and notes that it
//! *owes* one. When credit comes, which its own armed queue reports, it pays with an empty signal,
//! behind the write. So, if the server wrote without a signal, at least `window - 1` of its signals are
//! not announced as handled. Those that are still to come will wake the client or be found by its poll.
//! When it has handled the last of them, it has either announced them since, or it does so now: more
//! than half the window is unannounced. In both cases credit is in flight to the server, which then
//! pays. The client as a sender waits for credit instead of owing (its lane may not be polled for an
//! hour). The server returns credit while it polls its lanes, which depends on no other thread.
//!
//! **An end that polls** the other's writes needs no signals. Its client writes plain tails, and
//! signals one when it has credit to return. That makes fewer signals than above, and only credit waits
//! for one, which `due` returns in any case.
//!
//! `tests` goes through all interleavings of two ends with a small window.

/// Signals that are kept for returning credit.
const RESERVE: u32 = 1;

/// Receive counts of one end. Counts wrap; only differences matter, and they are small.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Credits {
    window: u32,
    sent: u32,
    granted: u32,
    receives: u32,
    reposted: u32,
    announced: u32,
    owed: bool,
}

/// A peer announced receives for signals that this end never sent.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Overdrawn;

impl Credits {
    /// Starts with `window` receives posted by the peer and `receives` by this end; both at least 4.
    pub(super) const fn new(window: u16, receives: u16) -> Self {
        Self {
            window: window as u32,
            sent: 0,
            granted: 0,
            receives: receives as u32,
            reposted: 0,
            announced: 0,
            owed: false,
        }
    }

    const fn out(&self) -> u32 {
        self.sent.wrapping_sub(self.granted)
    }

    /// Whether there is credit for a signal.
    pub(super) const fn may_signal(&self) -> bool {
        self.out() + RESERVE < self.window
    }

    /// Whether so many receives are unannounced that the next signal should carry the count: half as
    /// many as make an empty one due.
    pub(super) const fn is_worth_announcing(&self) -> bool {
        self.reposted.wrapping_sub(self.announced) >= self.receives / 4
    }

    /// Takes credit for a signal; returns its immediate data. Only after [`Self::may_signal`].
    pub(super) const fn signal(&mut self) -> u32 {
        self.sent = self.sent.wrapping_add(1);
        self.announced = self.reposted;
        self.owed = false;
        self.reposted
    }

    /// Notes a signal that could not be sent now.
    pub(super) const fn owe(&mut self) {
        self.owed = true;
    }

    /// Returns the immediate data of an empty signal that is due now: one that is owed, or one that
    /// returns credit. Call it after all arrivals are handled.
    pub(super) const fn due(&mut self) -> Option<u32> {
        let owing = self.owed && self.may_signal();
        let unannounced = self.reposted.wrapping_sub(self.announced);
        let giving = unannounced >= self.receives / 2 && self.out() < self.window;
        if owing || giving {
            // One that only returns credit wakes as well as any other, so nothing is owed after.
            Some(self.signal())
        } else {
            None
        }
    }

    /// Notes that `n` receives were posted again.
    pub(super) const fn repost(&mut self, n: u32) {
        self.reposted = self.reposted.wrapping_add(n);
    }

    /// Handles the immediate data of a peer's signal.
    ///
    /// # Errors
    /// [`Overdrawn`]: no correct peer sends that.
    pub(super) const fn hear(&mut self, immediate: u32) -> Result<(), Overdrawn> {
        if immediate.wrapping_sub(self.granted) > self.out() {
            return Err(Overdrawn);
        }
        self.granted = immediate;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashSet, VecDeque};

    use super::*;

    const WINDOW: u16 = 4;

    /// One end as its transport drives it.
    #[derive(Debug, Clone, PartialEq, Eq, Hash)]
    struct End {
        credits: Credits,
        /// Waits for credit instead of owing.
        waits: bool,
        /// Returns credit to the peer.
        gives: bool,
        /// Sends the signals that it owes.
        pays: bool,
        /// Writes that are left.
        left: u8,
        written: u8,
        /// The peer's last write that arrived here.
        memory: u8,
        /// The last write that this end has polled.
        seen: u8,
        /// Receives that are posted.
        posted: u32,
        /// Immediate data of signals that arrived and were not handled.
        completions: VecDeque<u32>,
        asleep: bool,
    }

    /// In flight, in order: the number of the write, and the immediate data of a signal.
    type Wire = VecDeque<(u8, Option<u32>)>;

    #[derive(Debug, Clone, PartialEq, Eq, Hash)]
    struct World {
        ends: [End; 2],
        /// `wires[n]` leads to `ends[n]`.
        wires: [Wire; 2],
    }

    impl End {
        fn new(waits: bool, left: u8) -> Self {
            Self {
                credits: Credits::new(WINDOW, WINDOW),
                waits,
                gives: true,
                pays: true,
                left,
                written: 0,
                memory: 0,
                seen: 0,
                posted: u32::from(WINDOW),
                completions: VecDeque::new(),
                asleep: false,
            }
        }

        fn write(&mut self, out: &mut Wire) {
            self.left -= 1;
            self.written += 1;
            let signal = self.credits.may_signal();
            let immediate = signal.then(|| self.credits.signal());
            if !signal {
                self.credits.owe();
            }
            out.push_back((self.written, immediate));
        }

        fn look(&mut self, out: &mut Wire) {
            let came = self.completions.len() as u32;
            for immediate in self.completions.drain(..) {
                self.credits.hear(immediate).unwrap();
            }
            self.posted += came;
            self.credits.repost(came);
            self.seen = self.memory;
            self.credits.owed &= self.pays;
            if self.gives
                && let Some(immediate) = self.credits.due()
            {
                out.push_back((self.written, Some(immediate)));
            }
        }

        fn land(&mut self, (write, immediate): (u8, Option<u32>)) {
            self.memory = write;
            if let Some(immediate) = immediate {
                self.posted = self
                    .posted
                    .checked_sub(1)
                    .expect("a signal lacks a receive");
                self.completions.push_back(immediate);
                self.asleep = false;
            }
        }
    }

    /// All events that can happen next.
    fn next(world: &World) -> Vec<World> {
        let mut all = Vec::new();
        for n in 0..2 {
            let mut push = |change: &dyn Fn(&mut World)| {
                let mut next = world.clone();
                change(&mut next);
                all.push(next);
            };
            let end = &world.ends[n];
            if !world.wires[n].is_empty() {
                push(&|w| {
                    let came = w.wires[n].pop_front().unwrap();
                    w.ends[n].land(came);
                });
            }
            if end.asleep {
                continue;
            }
            let can = !end.waits || end.credits.may_signal();
            if end.left > 0 && can {
                push(&|w| w.ends[n].write(&mut w.wires[1 - n]));
            }
            push(&|w| w.ends[n].look(&mut w.wires[1 - n]));
            // Its queue is armed; the second poll; and, having found nothing new to do, sleep.
            push(&|w| {
                w.ends[n].look(&mut w.wires[1 - n]);
                w.ends[n].asleep = true;
            });
        }
        all
    }

    /// Visits every state that two ends can reach; returns how many. A signal without a receive panics
    /// on the way.
    fn explore(ends: [End; 2]) -> usize {
        let start = World {
            ends,
            wires: Default::default(),
        };
        let mut known = HashSet::from([start.clone()]);
        let mut open = vec![start];
        while let Some(world) = open.pop() {
            let quiet =
                world.ends.iter().all(|e| e.asleep) && world.wires.iter().all(Wire::is_empty);
            if quiet {
                for (n, end) in world.ends.iter().enumerate() {
                    assert_eq!(end.seen, end.memory, "end {n} sleeps on news: {world:?}");
                    assert!(
                        end.credits.may_signal(),
                        "end {n} never signals again: {world:?}"
                    );
                }
            }
            for next in next(&world) {
                if known.insert(next.clone()) {
                    open.push(next);
                }
            }
        }
        known.len()
    }

    #[test]
    fn all_interleavings_keep_receives_credit_and_wake_ups() {
        // A client and its server, with more writes than a window.
        assert!(explore([End::new(true, 4), End::new(false, 5)]) > 100_000);
        // Two ends that owe, and two that wait.
        assert!(explore([End::new(false, 4), End::new(false, 3)]) > 10_000);
        assert!(explore([End::new(true, 4), End::new(true, 4)]) > 10_000);
    }

    #[test]
    #[should_panic(expected = "sleeps on news")]
    fn the_exploration_finds_the_wake_up_that_is_not_paid() {
        let mut ends = [End::new(true, 5), End::new(false, 5)];
        ends[1].pays = false;
        explore(ends);
    }

    #[test]
    #[should_panic(expected = "never signals again")]
    fn the_exploration_finds_the_credit_that_is_not_given_back() {
        let mut ends = [End::new(true, 5), End::new(false, 0)];
        ends[1].gives = false;
        explore(ends);
    }

    #[test]
    fn a_peer_that_gives_more_than_it_got_is_refused() {
        let mut credits = Credits::new(8, 8);
        assert_eq!(credits.signal(), 0);
        assert_eq!(credits.hear(1), Ok(()));
        assert_eq!(credits.hear(2), Err(Overdrawn));
        assert_eq!(
            credits.hear(0),
            Err(Overdrawn),
            "it takes back what it gave"
        );
    }

    #[test]
    fn counts_wrap() {
        let mut credits = Credits {
            sent: u32::MAX,
            granted: u32::MAX,
            reposted: u32::MAX,
            announced: u32::MAX,
            ..Credits::new(8, 8)
        };
        for _ in 0..7 {
            assert!(credits.may_signal());
            credits.signal();
        }
        assert!(!credits.may_signal());
        assert_eq!(credits.hear(3), Ok(()));
        assert!(credits.may_signal());
        credits.repost(4);
        assert_eq!(credits.due(), Some(3));
        assert_eq!(credits.due(), None);
    }
}
