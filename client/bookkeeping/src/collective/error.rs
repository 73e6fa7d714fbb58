//! Errors of collective calls. Each names the ranks that it is about.

use tidewater_protocol::ids::WorkerId;
use tidewater_protocol::limits::COLLECTIVE_BYTES_MAX;

/// Why a collective call failed, although every worker that has not left the job made one.
///
/// Where nothing else is said, all workers receive the same error, and their next calls fit together
/// again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CollectiveError {
    /// A worker gives more or fewer elements than the first one.
    #[error(
        "worker {rank} gives {given} elements and worker {first} gives {expected}; give as many on each \
         worker"
    )]
    Length {
        /// The lowest rank with another length than the first worker.
        rank: WorkerId,
        /// Number of its elements.
        given: u64,
        /// Number of the first worker's elements.
        expected: u64,
        /// The lowest rank of the call.
        first: WorkerId,
    },
    /// A worker makes another call than the first one: another operation, element type or root.
    #[error(
        "worker {rank} calls {given} and worker {first} calls {expected}; all workers make the same \
         calls in the same order"
    )]
    Call {
        /// The lowest rank with another call than the first worker.
        rank: WorkerId,
        /// Its call, with element type and root.
        given: String,
        /// The call of the first worker.
        expected: String,
        /// The lowest rank of the call.
        first: WorkerId,
    },
    /// The values are too long.
    #[error(
        "{bytes} bytes on each worker; the most is {COLLECTIVE_BYTES_MAX}: use a table for more"
    )]
    TooLong {
        /// Bytes of a worker's values.
        bytes: u64,
    },
    /// An operation on bits, and elements that are floats.
    #[error(
        "{call}: floats have no bits to combine; give integers, or the floats' bits as integers"
    )]
    Bits {
        /// The call, with element type.
        call: String,
    },
    /// A broadcast of a worker that does not exist, or is no member at this call.
    #[error("there is no worker {root} to broadcast from among the {workers} of this call")]
    Root {
        /// Rank of the root as given.
        root: u32,
        /// Number of workers of the call.
        workers: u32,
    },
    /// Workers have finished or are lost, and gave no values to this call. No later call succeeds.
    #[error("no values of {}: finished or lost before this call", names(.ranks))]
    Left {
        /// Ranks of the missing workers, ascending.
        ranks: Vec<WorkerId>,
    },
    /// The rows of a worker are of another round: an earlier call failed there or here, and was not
    /// repeated, or the worker was lost a moment ago. The workers fit together again when each has
    /// repeated the call that failed for it, if it had one part.
    #[error(
        "worker {rank} is at round {theirs} and this worker at round {ours}; repeat the call that \
         failed on either, or find out whether worker {rank} was lost"
    )]
    OutOfStep {
        /// The lowest rank of another round.
        rank: WorkerId,
        /// Round of its rows, with the part of the call.
        theirs: String,
        /// Round of this call, with its part.
        ours: String,
    },
}

fn names(ranks: &[WorkerId]) -> String {
    let names: Vec<String> = ranks.iter().map(|rank| format!("worker {rank}")).collect();
    names.join(", ")
}
