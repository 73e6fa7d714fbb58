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

/// Counts the ranks that pushed gradients of one row or block. Ranks are added in ascending order.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Ranks {
    last: Option<WorkerId>,
    count: u32,
}

impl Ranks {
    /// Adds the rank of one push.
    pub(super) fn add(&mut self, rank: WorkerId) {
        if self.last != Some(rank) || mutants::on(Mutant::MeanOverPushes) {
            (self.last, self.count) = (Some(rank), self.count + 1);
        }
    }

    /// Makes the mean of a sum of gradients: divides each element by the number of ranks.
    pub(super) fn mean(&self, dtype: DType, sum: &mut [u8]) {
        if !mutants::on(Mutant::MeanWithoutDivision) {
            divide(dtype, sum, self.count.max(1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_that_push_twice_count_once() {
        let mut ranks = Ranks::default();
        for rank in [1, 1, 2, 5, 5] {
            ranks.add(WorkerId(rank));
        }
        assert_eq!(ranks.count, 3);
    }
}
