//! Duration of a measurement, and the pace of its samples.

use std::time::Duration;

/// Start time of the next sample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Pace {
    /// When the previous sample has ended and is checked: a pause of the server delays the next call, and
    /// counts as one slow sample.
    Closed,
    /// At a fixed rate, in samples a second. The time of a sample runs from when it was due, so a
    /// pause counts for all samples that came due meanwhile.
    Open(f64),
}

/// Limits and pace of one measurement.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Number of warm-up samples.
    pub warmup: u64,
    /// Maximum number of samples.
    pub iters: u64,
    /// Longest time after the warm-up, checks and audits of values included; at least one sample is made.
    pub duration: Duration,
    /// Pace of the samples.
    pub pace: Pace,
    /// Cost of one clock reading, subtracted from each sample.
    pub timer_cost: Duration,
    /// Samples between two audits; 0 for audits only before the first sample and after the last.
    pub audit_every: u64,
}

impl Plan {
    /// A closed loop of `duration` without warm-up and without a limit of samples; audited only before and
    /// after it.
    pub const fn lasting(duration: Duration, timer_cost: Duration) -> Self {
        Self {
            warmup: 0,
            iters: u64::MAX,
            duration,
            pace: Pace::Closed,
            timer_cost,
            audit_every: 0,
        }
    }
}
