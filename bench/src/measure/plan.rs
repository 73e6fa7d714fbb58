//! How long a measurement lasts and how its samples follow each other.

use std::time::Duration;

/// When the next sample begins.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Pace {
    /// When the one before has ended: a pause of the server delays the next call, and is one slow
    /// sample.
    Closed,
    /// At a fixed rate whatever happens, in samples a second. A sample's time runs from when it was
    /// due, so that a pause is counted for all that came due meanwhile.
    Open(f64),
}

/// One measurement.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Samples before it begins.
    pub warmup: u64,
    /// Most samples.
    pub iters: u64,
    /// Longest time, checks of values included.
    pub duration: Duration,
    /// How samples follow each other.
    pub pace: Pace,
    /// What one look at the clock costs; taken off each sample.
    pub timer_cost: Duration,
    /// Samples between two audits; 0 for one at the end only.
    pub audit_every: u64,
}

impl Plan {
    /// A closed loop of `duration`, audited at the end.
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
