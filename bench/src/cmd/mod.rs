//! The subcommands: each plans works, runs them in the measuring core, and prints the rows.

pub mod apply;
pub mod chaos;
pub mod compare;
pub mod memory;
pub mod queue;
pub mod report;
pub mod scale;
pub mod soak;
pub mod sparse;
pub mod ssp;
pub mod tables;

use std::time::Duration;

use crate::calls::Op;
use crate::cluster::Cluster;
use crate::cluster::child::pin;
use crate::error::BenchError;
use crate::measure::{self, Measured, NoPeer, Pace, Plan, Work};
use crate::options::{Common, OpChoice};
use crate::row::Roofline;

/// Samples between two audits of pushes.
const AUDIT_EVERY: u64 = 4096;
/// Calls between two audits at most: known values end after some millions of pushes to a row.
const AUDIT_CALLS_MAX: u64 = 1 << 20;

/// The plan that the options give, for samples of `calls` calls. Only pushes in a closed loop are audited in
/// between.
pub(crate) fn plan(common: &Common, op: Op, calls: u64, pace: Pace, timer_cost: Duration) -> Plan {
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

/// Runs a work. With `common.plant_pause`, server 0 is stopped for that time, half of `common.duration` after
/// the begin of the warm-up.
pub(crate) fn measure_paused(
    common: &Common,
    plan: &Plan,
    work: &mut dyn Work,
    cluster: &mut Cluster,
) -> Result<Measured, BenchError> {
    let pause = common.plant_pause;
    let pause = pause.and_then(|time| cluster.pause_later(common.duration / 2, time));
    let measured = measure::run(plan, work, cluster)?;
    if let Some(pause) = pause {
        // A panic there is a pause that did not happen.
        let _ = pause.join();
    }
    Ok(measured)
}

/// Measures a roofline for calls of `bytes` bytes of payload: runs `work` in a closed loop for `time`, after three
/// samples of warm-up. `timer_cost` is subtracted from each sample.
pub(crate) fn roofline(
    name: &str,
    work: &mut dyn Work,
    time: Duration,
    timer_cost: Duration,
    bytes: u64,
) -> Result<Roofline, BenchError> {
    let mut plan = Plan::lasting(time, timer_cost);
    plan.warmup = 3;
    let figures = measure::run(&plan, work, &mut NoPeer)?.figures(Pace::Closed);
    Ok(Roofline {
        name: name.into(),
        p50_us: figures.p50_us,
        // The work may count more than payload: a ping counts the larger of its two directions.
        mb_per_s: figures.mops_per_s * bytes as f64,
    })
}

/// Directions that an option names; pulls come first.
pub(crate) const fn ops(choice: OpChoice) -> &'static [Op] {
    match choice {
        OpChoice::Pull => &[Op::Pull],
        OpChoice::Push => &[Op::Push],
        OpChoice::All => &[Op::Pull, Op::Push],
    }
}

/// Pins this thread to the core that `common.pin` names, if any.
pub(crate) fn pin_client(common: &Common) -> Result<(), BenchError> {
    common.pin.map_or(Ok(()), |core| pin(None, core))
}
