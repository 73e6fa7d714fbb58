//! Contests: alternating rounds, medians, targets.

use std::time::Duration;

use super::{CompareArgs, Target, Targets, line};
use crate::contest::{Absent, Outcome, Ratio, median};
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
    /// Millions a second at the median time of a call, each call counted as this many, which is its number of
    /// rows.
    MCallsAtP50(u32),
    /// Calls a second, over the sum of the sample times.
    CallsPerS,
    /// Payload gigabytes (10^9) a second at the median time of a call.
    GbPerSAtP50,
    /// Payload gigabytes (10^9) a second, over the sum of the sample times.
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

/// Our side of a contest: a work, its figure that is compared, and the meter of its servers.
pub(super) struct Ours<'a> {
    pub(super) work: &'a mut dyn Work,
    pub(super) metric: Metric,
    pub(super) meter: &'a mut dyn Meter,
}

impl<'a> Ours<'a> {
    pub(super) fn new(work: &'a mut dyn Work, metric: Metric, meter: &'a mut dyn Meter) -> Self {
        Self {
            work,
            metric,
            meter,
        }
    }
}

/// A work that ours is compared with.
pub(super) struct Baseline<'a> {
    name: &'a str,
    work: &'a mut dyn Work,
}

impl<'a> Baseline<'a> {
    pub(super) fn new(name: &'a str, work: &'a mut dyn Work) -> Self {
        Self { name, work }
    }
}

/// Result of one side in one round.
#[derive(Debug, Clone, Copy)]
pub(super) struct Round {
    /// Figure that the sides are compared by.
    pub(super) value: f64,
    /// Number of wrong values.
    pub(super) wrong: u64,
}

/// One side of a contest; it measures itself.
pub(super) type Side<'a> = &'a mut dyn FnMut() -> Result<Round, BenchError>;

/// A side that ours is compared with.
pub(super) struct BaselineSide<'a> {
    pub(super) name: &'a str,
    pub(super) side: Side<'a>,
}

/// Figures of all rounds; those of both sides with the same index are of one round.
#[derive(Debug, Default)]
pub(super) struct Rounds {
    pub(super) ours: Vec<f64>,
    /// Empty without a baseline.
    pub(super) theirs: Vec<f64>,
    /// Number of wrong values of both sides.
    pub(super) wrong: u64,
}

impl Rounds {
    /// Runs `count` rounds. Which side is first alternates: the second one may find a warmer or a busier
    /// machine.
    fn run(count: u32, ours: Side<'_>, mut theirs: Option<Side<'_>>) -> Result<Self, BenchError> {
        let mut rounds = Self::default();
        for round in 0..count {
            for side in [round % 2, (round + 1) % 2] {
                let (result, into) = match (side, &mut theirs) {
                    (0, _) => (ours()?, &mut rounds.ours),
                    (_, Some(theirs)) => (theirs()?, &mut rounds.theirs),
                    (_, None) => continue,
                };
                rounds.wrong += result.wrong;
                into.push(result.value);
            }
        }
        Ok(rounds)
    }
}

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

    /// Whether the options (`--only`, `--steady`) request one of these contests; a name that ends in a dot
    /// stands for all contests that begin with it. Expensive setups check this first.
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

    /// Measures a work for one slice, in a closed loop after three samples of warm-up.
    pub(super) fn slice(
        &self,
        work: &mut dyn Work,
        meter: &mut dyn Meter,
    ) -> Result<Measured, BenchError> {
        let mut plan = Plan::lasting(self.args.slice, self.timer);
        plan.warmup = 3;
        measure::run(&plan, work, meter)
    }

    /// Runs a work against a baseline, both through the measuring core, and records the result; does nothing
    /// if the contest is not requested.
    pub(super) fn head_to_head(
        &mut self,
        id: &str,
        what: &str,
        ours: Ours<'_>,
        baseline: Option<Baseline<'_>>,
    ) -> Result<(), BenchError> {
        if !self.wants(&[id]) {
            return Ok(());
        }
        let Ours {
            work,
            metric,
            meter,
        } = ours;
        let this = &*self;
        let side = |work: &mut dyn Work, meter: &mut dyn Meter| -> Result<Round, BenchError> {
            let measured = this.slice(work, meter)?;
            Ok(Round {
                value: metric.of(&measured),
                wrong: measured.wrong,
            })
        };
        let count = this.args.rounds;
        let mut ours = || side(work, meter);
        let (name, rounds) = match baseline {
            None => (None, Rounds::run(count, &mut ours, None)?),
            Some(Baseline { name, work }) => {
                let mut theirs = || side(work, &mut NoPeer);
                (
                    Some(name),
                    Rounds::run(count, &mut ours, Some(&mut theirs))?,
                )
            }
        };
        let title = Title {
            id,
            what,
            unit: metric.unit(),
        };
        self.record(title, rounds, name)
    }

    /// Runs two self-measuring sides in turn, and records the result; does nothing if the contest is not
    /// requested.
    pub(super) fn contest(
        &mut self,
        title: Title<'_>,
        ours: Side<'_>,
        baseline: Option<BaselineSide<'_>>,
    ) -> Result<(), BenchError> {
        if !self.wants(&[title.id]) {
            return Ok(());
        }
        let (name, theirs) = baseline.map(|it| (it.name, it.side)).unzip();
        let rounds = Rounds::run(self.args.rounds, ours, theirs)?;
        self.record(title, rounds, name)
    }

    /// Judges, prints and keeps figures; does nothing if the contest is not requested. With `theirs`, the
    /// rounds' ratios `ours` / `theirs` are judged, unless the target is absolute.
    pub(super) fn record(
        &mut self,
        title: Title<'_>,
        rounds: Rounds,
        baseline: Option<&str>,
    ) -> Result<(), BenchError> {
        if !self.wants(&[title.id]) {
            return Ok(());
        }
        let Rounds {
            ours,
            theirs,
            wrong,
        } = rounds;
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
