//! `apply`: rows a second that one applier applies, for each rule.

use clap::Args;

use super::{pin_client, plan};
use crate::applier::{Applier, ROWS_CACHED, ROWS_MANY, rules};
use crate::calls::Op;
use crate::error::BenchError;
use crate::fingerprint::Fingerprint;
use crate::measure::{self, NoPeer, Pace, Work, timer_cost};
use crate::options::Common;
use crate::row::{Label, Row};
use crate::sheet::{Failures, Sheet};

/// Options of the subcommand `apply`.
#[derive(Debug, Clone, Args)]
pub struct ApplyArgs {
    /// Rules: a list of sum, assign, sgd, momentum, nesterov, adagrad, adam, ftrl [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub rules: Vec<String>,
    /// Elements (f32) of a row: a list
    #[arg(long, default_value = "16,64", value_name = "LIST", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub dims: Vec<u32>,
    /// Options that every measurement takes.
    #[command(flatten)]
    pub common: Common,
}

/// Runs `apply`.
///
/// # Errors
/// [`BenchError::Usage`] for an unknown rule; otherwise the first error, as a lack of memory.
pub fn run(args: &ApplyArgs) -> Result<Failures, BenchError> {
    let common = &args.common;
    let all = rules();
    for name in &args.rules {
        if !all.iter().any(|rule| rule.name == name) {
            return Err(BenchError::Usage(format!("there is no rule \"{name}\"")));
        }
    }
    pin_client(common)?;
    let timer = timer_cost();
    let mut sheet = Sheet::new(common, Fingerprint::take("apply", common, 0, 0, timer))?;
    let chosen = |name: &str| args.rules.is_empty() || args.rules.iter().any(|r| r == name);
    for (where_, rows) in [("cached", ROWS_CACHED), ("memory", ROWS_MANY)] {
        for &dim in &args.dims {
            for &rule in all.iter().filter(|rule| chosen(rule.name)) {
                let title = format!(
                    "{}: frames of random rows of {dim} f32, {rows} rows in {where_}; a call is a \
                     row",
                    rule.name
                );
                sheet.section(&title, "row bytes")?;
                let mut work = Applier::new(rule, dim as usize, rows, common.seed)?;
                let plan = plan(common, Op::Pull, work.calls(), Pace::Closed, timer);
                let measured = measure::run(&plan, &mut work, &mut NoPeer)?;
                let label = Label {
                    test: "apply",
                    op: rule.name.into(),
                    table: where_.into(),
                    mode: None,
                    size: u64::from(dim) * 4,
                };
                sheet.row(Row::new(label, &measured, work.calls(), Pace::Closed))?;
            }
        }
    }
    sheet.finish()
}
