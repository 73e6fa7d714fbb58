//! A row of the results: the call, its times, its usage, its wrong values.

use serde::{Deserialize, Serialize};

use crate::measure::{Figures, Measured, Pace};

/// One line of a table, and one object of the JSON.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Row {
    /// Name of the subcommand.
    pub test: String,
    /// Name of the call: `pull`, `push`, `tick`, `barrier`, `step`, `take`, `report`, or a rule of an applier.
    pub op: String,
    /// Kind of table, or another attribute that distinguishes the row.
    pub table: String,
    /// Read mode of pulls; `None` for other calls. In a soak `saving` if a save was under way, otherwise `None`.
    pub mode: Option<String>,
    /// Pace of the samples: back to back, or at a rate.
    pub pace: String,
    /// Bytes of a message or row; for `scale` and `ssp` the number of workers, for `queue` of clients.
    pub size: u64,
    /// Payload bytes of a call.
    pub bytes_per_call: u64,
    /// Number of calls timed together.
    pub calls_per_sample: u64,
    /// Times and rates of a call.
    #[serde(flatten)]
    pub figures: Figures,
    /// Processor time of the client's thread per call, microseconds; `None` in an open loop, which
    /// polls the clock.
    pub cpu_client_us: Option<f64>,
    /// Processor time of all servers per call, microseconds; for `queue` that of the coordinator.
    pub cpu_server_us: Option<f64>,
    /// Allocations of the client per call.
    pub allocs_client: Option<f64>,
    /// Allocations of all servers per call.
    pub allocs_server: Option<f64>,
    /// Roofline of this row: the machine's limit without Tidewater.
    #[serde(rename = "ceiling")]
    pub roofline: Option<Roofline>,
    /// Percent of the roofline. For `latency`, and without payload: its median time divided by ours. Otherwise:
    /// our bandwidth divided by that of the roofline.
    pub eff_percent: Option<f64>,
    /// Number of repeated reads. Not counted in rows of several workers: 0.
    pub retries: u64,
    /// Number of pulls that the server had to finish. Not counted in rows of several workers: 0.
    pub fallbacks: u64,
    /// Number of samples with compared values.
    pub checked: u64,
    /// Number of wrong values.
    pub wrong: u64,
}

/// Figures of a roofline.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Roofline {
    /// Name of the roofline.
    pub name: String,
    /// Median time of the roofline, microseconds.
    pub p50_us: f64,
    /// Bandwidth of the roofline, megabytes (10^6) a second.
    pub mb_per_s: f64,
}

/// Attributes that identify a row.
#[derive(Debug, Clone)]
pub struct Label {
    /// Name of the subcommand.
    pub test: &'static str,
    /// Name of the call.
    pub op: String,
    /// Kind of table, or another attribute.
    pub table: String,
    /// The value of [`Row::mode`].
    pub mode: Option<String>,
    /// The value of [`Row::size`].
    pub size: u64,
}

impl Row {
    /// Builds the row of a measurement.
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
            roofline: None,
            eff_percent: None,
            retries: measured.detours.retries,
            fallbacks: measured.detours.fallbacks,
            checked: measured.checked,
            wrong: measured.wrong,
        }
    }

    /// Sets the roofline and computes `eff_percent` from it; `None` leaves both empty.
    #[must_use]
    pub fn with_roofline(mut self, roofline: Option<Roofline>) -> Self {
        self.eff_percent = roofline.as_ref().map(|roofline| {
            let part = if self.test == "latency" || self.bytes_per_call == 0 {
                roofline.p50_us / self.figures.p50_us.max(1e-9)
            } else {
                self.figures.mb_per_s / roofline.mb_per_s.max(1e-9)
            };
            100.0 * part
        });
        self.roofline = roofline;
        self
    }
}
