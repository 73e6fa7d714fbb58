//! Contests: alternating rounds, medians, targets.

use std::time::Duration;

use super::{CompareArgs, Target, Targets, line};
use crate::contest::{Absent, Outcome, Ratio};
use crate::error::BenchError;
use crate::measure::{self, Measured, Meter, NoPeer, Pace, Plan, Work};
use crate::sheet::print;

/// Figure that a contest compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Metric {
    /// Median time of a call, microseconds.
    P50Us,
    /// Median time of a call, nanoseconds.
    P50Ns,
    /// Calls a second at the median time of a call, by 10^6; each call counts as this many.
    MCallsAtP50(u32),
    /// Calls a second, over the whole slice.
    CallsPerS,
    /// Payload gigabytes (10^9) a second at the median time of a call.
    GbPerSAtP50,
    /// Payload gigabytes (10^9) a second.
    GbPerS,
    /// Processor time of both ends per call, microseconds.
    CpuUs,
}

impl Metric {
    pub(super) const fn unit(self) -> &'static str {
        match self {
            Self::P50Us => "us p50",
            Self::P50Ns => "ns p50",
            Self::MCallsAtP50(_) => "M rows/s",
            Self::CallsPerS => "calls/s",
            Self::GbPerSAtP50 | Self::GbPerS => "GB/s",
            Self::CpuUs => "us cpu",
        }
    }

    /// Takes the figure from a measurement.
    pub(super) fn of(self, measured: &Measured) -> f64 {
        let f = measured.figures(Pace::Closed);
        match self {
            Self::P50Us => f.p50_us,
            Self::P50Ns => f.p50_us * 1e3,
            Self::MCallsAtP50(each) => f64::from(each) / f.p50_us.max(1e-9),
            Self::CallsPerS => f.mops_per_s * 1e6,
            Self::GbPerSAtP50 => measured.bytes as f64 / 1e3 / f.p50_us.max(1e-9),
            Self::GbPerS => f.mb_per_s / 1e3,
            Self::CpuUs => measured.per_call(measured.client.cpu_ns + measured.server.cpu_ns) / 1e3,
        }
    }
}

/// Name and description of a contest.
#[derive(Debug, Clone, Copy)]
pub(super) struct Title<'a> {
    pub(super) id: &'a str,
    pub(super) what: &'a str,
    pub(super) unit: &'a str,
}

/// One side of a contest: returns its figure for a round, and its wrong values.
pub(super) type Side<'a> = &'a mut dyn FnMut() -> Result<(f64, u64), BenchError>;

/// All contests of a run.
pub(super) struct Comparison<'a> {
    pub(super) args: &'a CompareArgs,
    targets: Targets,
    timer: Duration,
    found: Vec<Ratio>,
    absent: Vec<Absent>,
}

impl<'a> Comparison<'a> {
    pub(super) const fn new(args: &'a CompareArgs, targets: Targets, timer: Duration) -> Self {
        Self {
            args,
            targets,
            timer,
            found: Vec::new(),
            absent: Vec::new(),
        }
    }

    /// Whether one of these contests was requested; a name that ends in a dot matches as a prefix.
    /// Expensive setups check this first.
    pub(super) fn wants(&self, ids: &[&str]) -> bool {
        let only = &self.args.only;
        ids.iter().any(|id| {
            let group = id.ends_with('.');
            let named = |o: &String| id.starts_with(&**o) || (group && o.starts_with(id));
            let steady = |t: &Target| t.steady && (t.id == *id || (group && t.id.starts_with(id)));
            (only.is_empty() || only.iter().any(named))
                && (!self.args.steady || self.targets.all().iter().any(steady))
        })
    }

    /// Measures a work for one slice.
    pub(super) fn slice(
        &self,
        work: &mut dyn Work,
        meter: &mut dyn Meter,
    ) -> Result<Measured, BenchError> {
        let mut plan = Plan::lasting(self.args.slice, self.timer);
        plan.warmup = 3;
        measure::run(&plan, work, meter)
    }

    /// Runs a work against a baseline, both through the measuring core.
    pub(super) fn head_to_head(
        &mut self,
        (id, what): (&str, &str),
        (ours, metric, meter): (&mut dyn Work, Metric, &mut dyn Meter),
        baseline: Option<(&str, &mut dyn Work)>,
    ) -> Result<(), BenchError> {
        if !self.wants(&[id]) {
            return Ok(());
        }
        let title = Title {
            id,
            what,
            unit: metric.unit(),
        };
        let (mut left, mut right) = (Vec::new(), Vec::new());
        let mut wrong = 0;
        let mut baseline = baseline;
        for round in 0..self.args.rounds {
            // The order alternates: the second side may find a warmer or a busier machine.
            for side in [round % 2, (round + 1) % 2] {
                let (measured, into) = match (side, &mut baseline) {
                    (0, _) => (self.slice(ours, meter)?, &mut left),
                    (_, Some((_, theirs))) => (self.slice(*theirs, &mut NoPeer)?, &mut right),
                    (_, None) => continue,
                };
                wrong += measured.wrong;
                into.push(metric.of(&measured));
            }
        }
        let name = baseline.map(|(name, _)| name);
        self.record(title, (left, right), name, wrong)
    }

    /// Runs two self-measuring sides in turn.
    pub(super) fn contest(
        &mut self,
        title: Title<'_>,
        ours: Side<'_>,
        baseline: Option<(&str, Side<'_>)>,
    ) -> Result<(), BenchError> {
        if !self.wants(&[title.id]) {
            return Ok(());
        }
        let (mut left, mut right, mut wrong) = (Vec::new(), Vec::new(), 0);
        let mut baseline = baseline;
        for round in 0..self.args.rounds {
            for side in [round % 2, (round + 1) % 2] {
                let ((value, bad), into) = match (side, &mut baseline) {
                    (0, _) => (ours()?, &mut left),
                    (_, Some((_, theirs))) => (theirs()?, &mut right),
                    (_, None) => continue,
                };
                wrong += bad;
                into.push(value);
            }
        }
        let name = baseline.map(|(name, _)| name);
        self.record(title, (left, right), name, wrong)
    }

    /// Judges and prints figures that were measured elsewhere; rounds are paired.
    pub(super) fn record(
        &mut self,
        title: Title<'_>,
        (ours, theirs): (Vec<f64>, Vec<f64>),
        baseline: Option<&str>,
        wrong: u64,
    ) -> Result<(), BenchError> {
        if !self.wants(&[title.id]) {
            return Ok(());
        }
        let values: Vec<f64> = if theirs.is_empty() {
            ours.clone()
        } else {
            ours.iter().zip(&theirs).map(|(o, t)| o / t).collect()
        };
        let target = self.targets.find(title.id);
        // Some targets are absolute although a baseline's figure is printed with them.
        let compared = match target {
            Some(target) if target.absolute => &ours,
            _ => &values,
        };
        let value = median(compared).unwrap_or(f64::NAN);
        let outcome = target.map(|target| Outcome {
            bound: target.bound(),
            met: target.is_met(value),
            steady: target.steady,
            gate: target.gate,
            counted: target.counted,
        });
        let least = compared.iter().copied().fold(f64::INFINITY, f64::min);
        let most = compared.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let ratio = Ratio {
            id: title.id.into(),
            what: title.what.into(),
            unit: title.unit.into(),
            ours,
            baseline: baseline.map(Into::into),
            theirs,
            value,
            spread: [least, most],
            target: outcome,
            wrong,
        };
        print(&line(&ratio))?;
        self.found.push(ratio);
        Ok(())
    }

    /// Records and prints a measurement that is not possible.
    pub(super) fn absent(&mut self, what: &str, reason: &str) -> Result<(), BenchError> {
        print(&format!("# {what}: not measured: {reason}\n"))?;
        self.absent.push(Absent {
            what: what.into(),
            reason: reason.into(),
        });
        Ok(())
    }

    pub(super) fn finish(self) -> (Vec<Ratio>, Vec<Absent>) {
        (self.found, self.absent)
    }
}

/// Median of some numbers; the mean of the middle two for an even count.
pub(super) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let half = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        n if n % 2 == 1 => Some(sorted[half]),
        _ => Some(f64::midpoint(sorted[half - 1], sorted[half])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }
}
