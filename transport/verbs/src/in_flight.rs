//! The work requests of one send queue that are not known to be complete.
//!
//! A send queue returns a request's room only by a completion that its owner has polled. Only the last
//! request of a batch makes one. Requests of one queue end in order, so the completion of a number
//! shows that all before it are complete too. Counting by completions only ensures that the queue is
//! never asked for more than it has.

use std::collections::VecDeque;

/// Requests in the order in which they were queued, each with the data needed at its completion.
/// Numbers count up from 0.
#[derive(Debug)]
pub(super) struct InFlight<T> {
    items: VecDeque<T>,
    /// Number of the first of them.
    first: u64,
    most: usize,
}

impl<T> InFlight<T> {
    /// Allocates room for `most` requests: the granted size of the send queue.
    pub(super) fn new(most: usize) -> Self {
        Self {
            items: VecDeque::with_capacity(most),
            first: 0,
            most,
        }
    }

    /// Returns how many more requests fit.
    pub(super) fn room(&self) -> usize {
        self.most - self.items.len()
    }

    /// Whether all requests are complete.
    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Returns the number of the oldest request.
    pub(super) fn oldest(&self) -> Option<u64> {
        (!self.items.is_empty()).then_some(self.first)
    }

    /// Returns the number of the next request.
    pub(super) fn next(&self) -> u64 {
        self.first + self.items.len() as u64
    }

    /// Adds a request that is about to be queued, for which there must be room.
    pub(super) fn push(&mut self, item: T) {
        debug_assert!(self.room() > 0, "a send queue of {} overflows", self.most);
        self.items.push_back(item);
    }

    /// Returns a request that is not known to be complete.
    pub(super) fn get(&self, number: u64) -> Option<&T> {
        self.items.get(self.place(number)?)
    }

    /// Removes request `number`, which is complete, and all before it, oldest first. Removes nothing
    /// when it was complete already or never existed.
    pub(super) fn retire(&mut self, number: u64) -> impl Iterator<Item = T> {
        let over = self.place(number).map_or(0, |place| place + 1);
        self.first += over as u64;
        self.items.drain(..over)
    }

    fn place(&self, number: u64) -> Option<usize> {
        let place = usize::try_from(number.checked_sub(self.first)?).ok()?;
        (place < self.items.len()).then_some(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_completion_ends_all_before_it_and_gives_their_room_back() {
        let mut flight = InFlight::new(4);
        for n in 0..4 {
            assert_eq!(flight.next(), n);
            flight.push(n);
        }
        assert_eq!(flight.room(), 0);
        assert!(flight.retire(2).eq([0, 1, 2]));
        assert_eq!((flight.room(), flight.next()), (3, 4));
        assert_eq!(flight.get(3), Some(&3));
        // Once more, one from before, one that never existed.
        for number in [2, 0, 4, u64::MAX] {
            assert_eq!(flight.retire(number).count(), 0, "{number}");
            assert_eq!(flight.get(number), None);
        }
        flight.push(4);
        assert!(flight.retire(4).eq([3, 4]));
        assert!(flight.is_empty());
    }

    proptest::proptest! {
        /// After any pushes and retirements, the room is the rest of `most`, and each item comes out
        /// once, in order.
        #[test]
        fn nothing_is_lost_or_counted_twice(steps in proptest::collection::vec(0u64..9, 0..200)) {
            const MOST: usize = 8;
            let mut flight = InFlight::new(MOST);
            let (mut pushed, mut out) = (0u64, Vec::new());
            for step in steps {
                match step {
                    0..6 if flight.room() > 0 => {
                        flight.push(pushed);
                        pushed += 1;
                    }
                    _ => out.extend(flight.retire(out.len() as u64 + step % 3)),
                }
                proptest::prop_assert!(out.iter().copied().eq(0..out.len() as u64));
                proptest::prop_assert_eq!(flight.room(), MOST - (pushed as usize - out.len()));
            }
        }
    }
}
