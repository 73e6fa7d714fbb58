//! Shared parts of the ticks of rows and of ranges: the order of operations, and the divisor of a
//! mean.

use tidewater_protocol::ids::WorkerId;
use tidewater_protocol::mutants::{self, Mutant};
use tidewater_protocol::table::{DType, PushOp};

use super::kernels::divide;

/// The operations of a tick on one row or block, in the order in which they are applied: the last
/// assign, the sum of the sums, one step with the reduced gradient.
pub(super) fn tick_order() -> [PushOp; 3] {
    if mutants::on(Mutant::AssignLastAtTick) {
        return [PushOp::Sum, PushOp::Gradient, PushOp::Assign];
    }
    [PushOp::Assign, PushOp::Sum, PushOp::Gradient]
}

/// Adds up the weights of the ranks that pushed gradients of one row or block; without weights their
/// number. Ranks are added in ascending order. A rank counts once, with its largest weight: pieces of one
/// gradient have one weight.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Ranks {
    last: Option<WorkerId>,
    /// Weight of `last`, and the sum of those before it.
    weight: f64,
    before: f64,
}

impl Ranks {
    /// Adds the rank of one push with this weight, which is 1 for a push without one.
    pub(super) fn add(&mut self, rank: WorkerId, weight: f64) {
        if self.last == Some(rank) && !mutants::on(Mutant::MeanOverPushes) {
            self.weight = self.weight.max(weight);
            return;
        }
        self.before += self.weight;
        (self.last, self.weight) = (Some(rank), weight);
    }

    /// Makes the mean of a sum of gradients: divides each element by the sum of the weights. False if
    /// all weights are 0: there is no mean then, and no step.
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

    #[test]
    fn ranks_that_push_twice_count_once() {
        let mut ranks = Ranks::default();
        for rank in [1, 1, 2, 5, 5] {
            ranks.add(WorkerId(rank), 1.0);
        }
        let mut sum = 6f64.to_le_bytes();
        assert!(ranks.mean(DType::F64, &mut sum));
        assert_eq!(sum, 2f64.to_le_bytes());
    }

    #[test]
    fn mean_divides_by_largest_weights() {
        let mut ranks = Ranks::default();
        for (rank, weight) in [(0, 0.5), (0, 2.0), (0, 1.0), (3, 0.0), (7, 6.0)] {
            ranks.add(WorkerId(rank), weight);
        }
        let mut sum = 6f64.to_le_bytes();
        assert!(ranks.mean(DType::F64, &mut sum));
        assert_eq!(sum, 0.75f64.to_le_bytes());
    }

    #[test]
    fn weights_of_zero_have_no_mean() {
        let mut ranks = Ranks::default();
        ranks.add(WorkerId(1), 0.0);
        let mut sum = 6f64.to_le_bytes();
        assert!(!ranks.mean(DType::F64, &mut sum));
        assert_eq!(sum, 6f64.to_le_bytes());
    }
}
