//! Shared parts of the ticks of rows and of ranges: the order of operations, and the divisor of a
//! mean.

use tidewater_protocol::ids::{WorkerId, WorkerThread};
use tidewater_protocol::mutants::{self, Mutant};
use tidewater_protocol::table::{DType, PushOp};

use tidewater_kernels::divide;

/// Order in which a tick applies the operations on one row or block: the last assignment, the total of the
/// sums, one step with the reduced gradient.
pub(super) fn tick_order() -> [PushOp; 3] {
    if mutants::on(Mutant::AssignLastAtTick) {
        return [PushOp::Sum, PushOp::Gradient, PushOp::Assign];
    }
    [PushOp::Assign, PushOp::Sum, PushOp::Gradient]
}

/// Divisor of a mean of gradients: adds up the weights of the threads that pushed gradients of one row or
/// block; without weights, their number. Threads are added in ascending order. A thread counts once, with
/// its largest weight: pieces of one gradient have one weight.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Threads {
    /// Thread that was added last; `None` if none was.
    last: Option<WorkerThread>,
    /// Weight of the thread `last`.
    weight: f64,
    /// Sum of the weights of the threads before `last`.
    before: f64,
}

impl Threads {
    /// First of [`Self::words`] of an empty [`Threads`]: ranks are far lower.
    pub(super) const NONE: u64 = u64::MAX;

    /// Adds the thread of one push with the push's weight, which is 1 for a push without one.
    pub(super) fn add(&mut self, thread: WorkerThread, weight: f64) {
        let same = match mutants::on(Mutant::MeanOverRanks) {
            true => self.last.is_some_and(|last| last.rank == thread.rank),
            false => self.last == Some(thread),
        };
        if same && !mutants::on(Mutant::MeanOverPushes) {
            self.weight = self.weight.max(weight);
            return;
        }
        self.before += self.weight;
        (self.last, self.weight) = (Some(thread), weight);
    }

    /// Whether no thread has been added.
    pub(super) const fn is_empty(&self) -> bool {
        self.last.is_none()
    }

    /// Encodes the divisor in three words, as sums keep it: the last thread (rank in the upper half), and the bits
    /// of `weight` and `before`. The first word is [`Self::NONE`] if no thread was added.
    pub(super) fn words(self) -> [u64; 3] {
        let word = |last: WorkerThread| u64::from(last.rank.0) << 32 | u64::from(last.thread);
        let last = self.last.map_or(Self::NONE, word);
        [last, self.weight.to_bits(), self.before.to_bits()]
    }

    /// Decodes [`Self::words`]. If the first word is [`Self::NONE`], the others are stale and the result is
    /// empty.
    pub(super) fn of_words([last, weight, before]: [u64; 3]) -> Self {
        if last == Self::NONE {
            return Self::default();
        }
        let thread = WorkerThread {
            rank: WorkerId((last >> 32) as u32),
            thread: last as u32,
        };
        Self {
            last: Some(thread),
            weight: f64::from_bits(weight),
            before: f64::from_bits(before),
        }
    }

    /// Turns a sum of gradients into their mean: divides each element of `sum` by the sum of the weights.
    /// Returns false, and leaves `sum` as it is, if all weights are 0: there is no mean then, and no step.
    pub(super) fn mean(&self, dtype: DType, sum: &mut [u8]) -> bool {
        let weights = self.before + self.weight;
        if weights > 0.0 && !mutants::on(Mutant::MeanWithoutDivision) {
            divide(dtype, sum, weights);
        }
        weights > 0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(rank: u32, thread: u32) -> WorkerThread {
        let rank = WorkerId(rank);
        WorkerThread { rank, thread }
    }

    #[test]
    fn threads_that_push_twice_count_once() {
        let mut threads = Threads::default();
        for (rank, thread) in [(1, 0), (1, 0), (1, 2), (2, 0), (5, 1), (5, 1)] {
            threads.add(of(rank, thread), 1.0);
        }
        let mut sum = 6f64.to_le_bytes();
        assert!(threads.mean(DType::F64, &mut sum));
        assert_eq!(sum, 1.5f64.to_le_bytes());
    }

    #[test]
    fn mean_divides_by_largest_weights() {
        let mut threads = Threads::default();
        for (rank, weight) in [(0, 0.5), (0, 2.0), (0, 1.0), (3, 0.0), (7, 6.0)] {
            threads.add(of(rank, 0), weight);
        }
        let mut sum = 6f64.to_le_bytes();
        assert!(threads.mean(DType::F64, &mut sum));
        assert_eq!(sum, 0.75f64.to_le_bytes());
    }

    #[test]
    fn weights_of_zero_have_no_mean() {
        let mut threads = Threads::default();
        threads.add(of(1, 0), 0.0);
        let mut sum = 6f64.to_le_bytes();
        assert!(!threads.mean(DType::F64, &mut sum));
        assert_eq!(sum, 6f64.to_le_bytes());
    }
    #[test]
    fn words_hold_threads_and_weights() {
        let none = Threads::of_words(Threads::default().words());
        assert!(none.is_empty());
        let mut threads = Threads::default();
        for (thread, weight) in [(0, 0.5), (3, 2.5), (3, 1.0)] {
            let before = threads.words();
            threads = Threads::of_words(before);
            assert_eq!(threads.words(), before);
            threads.add(of(65_535, thread), weight);
        }
        assert!(!threads.is_empty());
        let mut sum = 6f64.to_le_bytes();
        assert!(threads.mean(DType::F64, &mut sum));
        assert_eq!(sum, 2f64.to_le_bytes());
        // A slot of an earlier iteration, of which only the first word was cleared.
        let [_, weight, before] = threads.words();
        let cleared = Threads::of_words([Threads::NONE, weight, before]);
        assert_eq!(cleared.words(), Threads::default().words());
    }
}
