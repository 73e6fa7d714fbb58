//! A row of the results: what was called, how long it took, what it used, what was wrong.

use serde::{Deserialize, Serialize};

use crate::measure::{Figures, Measured, Pace};

/// One line of a table, and one object of the JSON.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Row {
    /// Subcommand.
    pub test: String,
    /// What was called: `pull`, `push`, `tick`, a rule of an applier.
    pub op: String,
    /// On what: a kind of table, or what else distinguishes the row.
    pub table: String,
    /// How pulls read; none for everything else.
    pub mode: Option<String>,
    /// Whether samples followed each other, or came due at a rate.
    pub pace: String,
    /// Bytes of a message; for `scale` and `ssp` the number of workers.
    pub size: u64,
    /// Payload bytes of a call.
    pub bytes_per_call: u64,
    /// Calls timed together.
    pub calls_per_sample: u64,
    /// Times and rates.
    #[serde(flatten)]
    pub figures: Figures,
    /// Processor time of the client's thread for a call, microseconds; none in an open loop, which
    /// burns it waiting.
    pub cpu_client_us: Option<f64>,
    /// Processor time of all servers for a call, microseconds.
    pub cpu_server_us: Option<f64>,
    /// Allocations of the client for a call.
    pub allocs_client: Option<f64>,
    /// Allocations of all servers for a call.
    pub allocs_server: Option<f64>,
    /// What the machine does without us: the raw ceiling of this row.
    pub ceiling: Option<Ceiling>,
    /// Our part of it: its time by ours for latency, our bytes by its bytes for the rest.
    pub eff_percent: Option<f64>,
    /// Reads repeated.
    pub retries: u64,
    /// Pulls that the server had to finish.
    pub fallbacks: u64,
    /// Samples whose values were compared.
    pub checked: u64,
    /// Values that were not what they must be.
    pub wrong: u64,
}

/// A raw ceiling.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Ceiling {
    /// What it is.
    pub name: String,
    /// Its median, microseconds.
    pub p50_us: f64,
    /// Its megabytes (10^6) a second.
    pub mb_per_s: f64,
}

/// What a row is called.
#[derive(Debug, Clone)]
pub struct Label {
    /// Subcommand.
    pub test: &'static str,
    /// What was called.
    pub op: String,
    /// On what.
    pub table: String,
    /// How pulls read.
    pub mode: Option<String>,
    /// Bytes of a message.
    pub size: u64,
}

impl Row {
    /// Of a measurement.
    pub fn new(label: Label, measured: &Measured, calls_per_sample: u64, pace: Pace) -> Self {
        let us = |ns: u64| measured.per_call(ns) / 1e3;
        Self {
            test: label.test.into(),
            op: label.op,
            table: label.table,
            mode: label.mode,
            pace: match pace {
                Pace::Closed => "closed".into(),
                Pace::Open(rate) => format!("open {rate}/s"),
            },
            size: label.size,
            bytes_per_call: measured.bytes,
            calls_per_sample,
            figures: measured.figures(pace),
            cpu_client_us: (pace == Pace::Closed).then(|| us(measured.client.cpu_ns)),
            cpu_server_us: Some(us(measured.server.cpu_ns)),
            allocs_client: Some(measured.per_call(measured.client.allocations)),
            allocs_server: Some(measured.per_call(measured.server.allocations)),
            ceiling: None,
            eff_percent: None,
            retries: measured.detours.0,
            fallbacks: measured.detours.1,
            checked: measured.checked,
            wrong: measured.wrong,
        }
    }

    /// With its raw ceiling.
    #[must_use]
    pub fn under(mut self, ceiling: Option<Ceiling>) -> Self {
        self.eff_percent = ceiling.as_ref().map(|ceiling| {
            let part = if self.test == "latency" || self.bytes_per_call == 0 {
                ceiling.p50_us / self.figures.p50_us.max(1e-9)
            } else {
                self.figures.mb_per_s / ceiling.mb_per_s.max(1e-9)
            };
            100.0 * part
        });
        self.ceiling = ceiling;
        self
    }
}
