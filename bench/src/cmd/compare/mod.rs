//! `compare`: against the machine's own limits and other systems, in the same minute.
//!
//! A contest measures Tidewater and a baseline in turn, round after round, so that both meet the same noise.
//! The median of the rounds' ratios is compared with the target, or the median of our own figures if
//! the target is absolute. Targets are data: `bench/targets.toml`.

mod comparison;
mod functions;
#[cfg(any(feature = "verbs", feature = "verbs-dlopen"))]
mod lane;
mod many_workers;
mod memory;
mod peers;
mod perftest;
mod programs;
mod pslite;
mod redis;
mod shared;
mod socket;
mod steady_state;
mod targets;
mod train;
mod verbs;

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use tidewater_runtime::clock;

use crate::cmd::report::{self, Run};
use crate::contest::{Ratio, median};
use crate::error::BenchError;
use crate::fingerprint::Fingerprint;
use crate::measure::timer_cost;
use crate::options::{Common, Transport, Wire, parse_duration};
use crate::sheet::{self, Document, Failures, SCHEMA, print};
use comparison::Comparison;
pub use targets::{Target, Targets};

/// Options of the subcommand `compare`.
#[derive(Debug, Clone, Args)]
pub struct CompareArgs {
    /// Transport that carries the bytes
    #[arg(long, value_enum, default_value = "shm")]
    pub transport: Transport,
    /// Fail (exit 1) if a steady target that was met before is missed
    #[arg(long)]
    pub gate: bool,
    /// Run only contests with a steady target
    #[arg(long)]
    pub steady: bool,
    /// Run only contests with a name that begins with one of these: a list
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub only: Vec<String>,
    /// Rounds of each contest
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=101))]
    pub rounds: u32,
    /// Time of each side in a round
    #[arg(long, value_parser = parse_duration, default_value = "80ms", value_name = "TIME")]
    pub slice: Duration,
    /// Seed of keys and values
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,
    /// File of targets to use instead of the built-in ones
    #[arg(long, value_name = "FILE")]
    pub targets: Option<PathBuf>,
    /// Folder with the public training set a9a; without it a set of the same shape is generated
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Skip the programs of other systems
    #[arg(long)]
    pub no_peers: bool,
    /// Write the results as JSON to this file
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write the results as a page to this file
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

/// Runs `compare`.
///
/// # Errors
/// The error of the first call that fails. A missing baseline is not an error.
pub fn run(args: &CompareArgs) -> Result<Failures, BenchError> {
    let began = clock::now();
    let targets = Targets::load(args.targets.as_deref())?;
    let timer = timer_cost();
    let common = Common::plain(args.transport, args.seed);
    let fingerprint = Fingerprint::take("compare", &common, 1, 1, timer);
    let header = fingerprint.header("comparison");
    let (rounds, slice) = (args.rounds, args.slice);
    let text = format!("# rounds: {rounds} of {slice:?} a side, in turn; medians\n#\n");
    print(&(header + &text + &heading()))?;
    let mut comparison = Comparison::new(args, targets, timer);
    match args.transport.wire() {
        Some(Wire::Memory) => memory::contests(&mut comparison)?,
        Some(Wire::Socket) => socket::contests(&mut comparison)?,
        None => verbs::contests(&mut comparison)?,
    }
    shared::contests(&mut comparison)?;
    if !args.no_peers {
        peers::contests(&mut comparison)?;
    }
    let took = clock::now() - began;
    let (ratios, absent) = comparison.finish();
    print(&format!("#\n# took {:.1} s\n", took.as_secs_f64()))?;
    let failures = failures(args, &ratios);
    let document = Document {
        schema: SCHEMA.into(),
        fingerprint,
        rows: Vec::new(),
        ratios,
        absent,
    };
    if let Some(path) = &args.json {
        sheet::write_json(path, &document)?;
    }
    if let Some(path) = &args.html {
        let name = "compare".into();
        report::write(path, &[Run { name, document }])?;
    }
    Ok(failures)
}

/// Reasons to fail the run: wrong values always; with `--gate` also a missed target that is steady and was met
/// before. A build with debug assertions judges only counts by `--gate`.
fn failures(args: &CompareArgs, ratios: &[Ratio]) -> Failures {
    let mut failures = Failures::new();
    for ratio in ratios {
        if ratio.wrong > 0 {
            failures.push(format!("{}: {} values were wrong", ratio.id, ratio.wrong));
        }
        let Some(target) = &ratio.target else {
            continue;
        };
        // In a build with debug assertions only counts equal those of a release.
        let judged = target.counted || !cfg!(debug_assertions);
        if args.gate && target.gate && target.steady && judged && !target.met {
            failures.push(format!(
                "{}: {:.4} {}, and the target is {}",
                ratio.id, ratio.value, ratio.unit, target.bound
            ));
        }
    }
    failures
}

fn heading() -> String {
    format!(
        "#{:<31} {:>12} {:>12} {:>10} {:>17} {:>9} {:>10}  {}\n",
        "contest", "ours", "baseline's", "value", "rounds", "target", "", "unit; baseline"
    )
}

/// Formats a line of the table.
fn line(ratio: &Ratio) -> String {
    let median = |values: &[f64]| match median(values) {
        Some(value) => number(value),
        None => "-".into(),
    };
    let verdict = match &ratio.target {
        None => "-",
        Some(target) if target.met => "met",
        Some(target) if target.gate && target.steady => "MISSED",
        Some(_) => "missed",
    };
    let bound = ratio.target.as_ref().map_or("-", |t| &t.bound);
    let [low, high] = ratio.spread;
    let wrong = match ratio.wrong {
        0 => String::new(),
        n => format!("; #wrong {n}"),
    };
    format!(
        "{:<32} {:>12} {:>12} {:>10} {:>17} {:>9} {:>10}  {}{}{wrong}\n",
        ratio.id,
        median(&ratio.ours),
        median(&ratio.theirs),
        number(ratio.value),
        format!("{}..{}", number(low), number(high)),
        bound.replace(' ', ""),
        verdict,
        ratio.unit,
        ratio
            .baseline
            .as_ref()
            .map_or(String::new(), |baseline| format!("; {baseline}")),
    )
}

/// Formats a value with about four digits.
fn number(value: f64) -> String {
    let size = value.abs();
    if size >= 1e6 {
        format!("{:.2}M", value / 1e6)
    } else if size >= 1e4 {
        format!("{:.1}k", value / 1e3)
    } else if size >= 100.0 || value == 0.0 {
        format!("{value:.0}")
    } else if size >= 1.0 {
        format!("{value:.2}")
    } else {
        format!("{value:.3}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contest::Outcome;

    fn ratio(met: bool, steady: bool, gate: bool, wrong: u64) -> Ratio {
        Ratio {
            id: "x".into(),
            what: "x".into(),
            unit: "us".into(),
            ours: vec![1.0],
            baseline: None,
            theirs: Vec::new(),
            value: 1.0,
            spread: [1.0, 1.0],
            target: Some(Outcome {
                bound: "<= 1".into(),
                met,
                steady,
                gate,
                counted: true,
            }),
            wrong,
        }
    }

    #[test]
    fn the_gate_fails_on_a_steady_target_that_was_met_before() {
        let cli = ["tidewater-bench", "compare", "--gate"];
        let cli = <crate::args::Cli as clap::Parser>::try_parse_from(cli).unwrap();
        let crate::args::Command::Compare(mut args) = cli.command else {
            panic!("compare was asked for");
        };
        let all = |args: &CompareArgs, ratio| failures(args, &[ratio]).len();
        assert_eq!(all(&args, ratio(false, true, true, 0)), 1);
        assert_eq!(all(&args, ratio(true, true, true, 0)), 0);
        assert_eq!(all(&args, ratio(false, false, true, 0)), 0, "not steady");
        assert_eq!(all(&args, ratio(false, true, false, 0)), 0, "never met");
        assert_eq!(all(&args, ratio(true, true, true, 1)), 1, "wrong");
        args.gate = false;
        assert_eq!(all(&args, ratio(false, true, true, 0)), 0);
        assert_eq!(all(&args, ratio(true, true, true, 1)), 1, "wrong");
    }

    #[test]
    fn numbers_are_short() {
        for (value, text) in [
            (2_500_000.0, "2.50M"),
            (16_000.0, "16.0k"),
            (123.4, "123"),
            (1.234, "1.23"),
            (0.0125, "0.013"),
            (0.0, "0"),
        ] {
            assert_eq!(number(value), text);
        }
    }
}
