//! The subcommands: each plans works, runs them in the measuring core, and prints the rows.

pub mod apply;
pub mod chaos;
pub mod compare;
pub mod memory;
pub mod report;
pub mod scale;
pub mod soak;
pub mod sparse;
pub mod ssp;
pub mod tables;

use std::time::Duration;

use crate::calls::Op;
use crate::cluster::child::pin;
use crate::error::BenchError;
use crate::measure::{Pace, Plan};
use crate::options::Common;

/// Samples between two audits of pushes.
const AUDIT_EVERY: u64 = 4096;
/// Calls between two audits at most: known values end after some millions of pushes to a row.
const AUDIT_CALLS_MAX: u64 = 1 << 20;

/// The plan that the options give, for samples of `calls` calls.
pub(crate) fn plan(
    common: &Common,
    (op, calls): (Op, u64),
    pace: Pace,
    timer_cost: Duration,
) -> Plan {
    Plan {
        warmup: common.warmup,
        iters: common.iters.unwrap_or(u64::MAX),
        duration: common.duration,
        pace,
        timer_cost,
        audit_every: match (pace, op) {
            (Pace::Closed, Op::Push) => AUDIT_EVERY.min(AUDIT_CALLS_MAX / calls).max(1),
            // An audit between samples of an open loop would be counted as a pause of the server.
            (Pace::Open(_), Op::Push) => 0,
            // The values of a pull are checked sample by sample.
            (_, Op::Pull) => 0,
        },
    }
}

/// Pins this thread to the core that the options name.
pub(crate) fn pin_client(common: &Common) -> Result<(), BenchError> {
    common.pin.map_or(Ok(()), |core| pin(None, core))
}
