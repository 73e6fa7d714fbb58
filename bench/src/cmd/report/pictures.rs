//! Selection of the charts for a set of runs.

use std::collections::BTreeMap;

use super::Run;
use super::chart::{Chart, Point, Series};
use super::html::Unit;
use crate::row::Row;

/// Figure of a row that a chart shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shown {
    Median,
    Bytes,
    Calls,
}

impl Shown {
    const fn unit(self) -> Unit {
        match self {
            Self::Median => Unit::Micros,
            Self::Bytes => Unit::MegabytesPerS,
            Self::Calls => Unit::MillionsPerS,
        }
    }

    const fn of(self, row: &Row) -> f64 {
        match self {
            Self::Median => row.figures.p50_us,
            Self::Bytes => row.figures.mb_per_s,
            Self::Calls => row.figures.mops_per_s,
        }
    }
}

/// The section of a subcommand: name on the page, a hint for the reader, and its charts.
#[derive(Debug)]
pub(super) struct Section {
    pub(super) title: &'static str,
    pub(super) note: &'static str,
    pub(super) charts: Vec<Chart>,
}

/// Charts of one subcommand.
struct Kind {
    test: &'static str,
    title: &'static str,
    note: &'static str,
    /// Name of the lower axis.
    x: &'static str,
    x_unit: Unit,
    shown: Shown,
    /// Whether each operation has its own chart; otherwise operations are lines of one.
    split: bool,
}

const KINDS: [Kind; 7] = [
    Kind {
        test: "latency",
        title: "Latency",
        note: "Median; the band reaches to the 99th percentile. Grey: the roofline, measured \
               right after each row. A push is over when it is applied.",
        x: "bytes of a message",
        x_unit: Unit::Bytes,
        shown: Shown::Median,
        split: true,
    },
    Kind {
        test: "bandwidth",
        title: "Bandwidth",
        note: "Payload bytes by the time of whole windows. Grey: the roofline.",
        x: "bytes of a message",
        x_unit: Unit::Bytes,
        shown: Shown::Bytes,
        split: true,
    },
    Kind {
        test: "rate",
        title: "Rate",
        note: "Calls a second with many under way.",
        x: "bytes of a message",
        x_unit: Unit::Bytes,
        shown: Shown::Calls,
        split: true,
    },
    Kind {
        test: "sparse",
        title: "Many rows",
        note: "Calls for many random rows of a large table; median, band to the 99th percentile.",
        x: "bytes of a row",
        x_unit: Unit::Bytes,
        shown: Shown::Median,
        split: true,
    },
    Kind {
        test: "scale",
        title: "Workers and servers",
        note: "Payload of all worker processes together.",
        x: "workers",
        x_unit: Unit::Count,
        shown: Shown::Bytes,
        split: true,
    },
    Kind {
        test: "ssp",
        title: "Clocks",
        note: "From a worker's tick until it sees that all have ticked; barriers. Median, band to \
               the 99th percentile.",
        x: "workers",
        x_unit: Unit::Count,
        shown: Shown::Median,
        split: false,
    },
    Kind {
        test: "apply",
        title: "Applying",
        note: "Rows a second of one applier, without a ring or a wire.",
        x: "bytes of a row",
        x_unit: Unit::Bytes,
        shown: Shown::Calls,
        split: false,
    },
];

/// Rows of one run that form one line.
struct Line<'a> {
    name: String,
    run: usize,
    rows: Vec<&'a Row>,
}

/// Returns all sections that the runs have rows for, in the order of [`KINDS`].
pub(super) fn sections(runs: &[Run]) -> Vec<Section> {
    KINDS
        .iter()
        .filter_map(|kind| {
            let charts = charts(kind, runs);
            (!charts.is_empty()).then_some(Section {
                title: kind.title,
                note: kind.note,
                charts,
            })
        })
        .collect()
}

/// Builds charts by transport (and operation), with lines by table and mode (and run).
fn charts(kind: &Kind, runs: &[Run]) -> Vec<Chart> {
    let mut charts: BTreeMap<String, Vec<Line<'_>>> = BTreeMap::new();
    for (number, run) in runs.iter().enumerate() {
        let transport = &run.document.fingerprint.transport;
        for row in run.document.rows.iter().filter(|row| row.test == kind.test) {
            let (title, name) = titles(kind, row, transport);
            let lines = charts.entry(title).or_default();
            match lines.iter_mut().find(|l| l.name == name && l.run == number) {
                Some(line) => line.rows.push(row),
                None => lines.push(Line {
                    name,
                    run: number,
                    rows: vec![row],
                }),
            }
        }
    }
    charts
        .into_iter()
        .map(|(title, lines)| Chart {
            title,
            x: kind.x.into(),
            x_unit: kind.x_unit,
            y_unit: kind.shown.unit(),
            series: series(kind, &lines, runs),
        })
        .collect()
}

fn titles(kind: &Kind, row: &Row, transport: &str) -> (String, String) {
    let pace = if row.pace == "closed" {
        String::new()
    } else {
        format!(", {}", row.pace)
    };
    let mode = match &row.mode {
        Some(mode) if mode != "consistent" => format!(" {mode}"),
        _ => String::new(),
    };
    let (op, table) = (&row.op, &row.table);
    match (kind.split, kind.test) {
        (_, "apply") => (format!("rows applied, {table}"), op.clone()),
        (true, _) => (
            format!("{op} over {transport}"),
            format!("{table}{mode}{pace}"),
        ),
        (false, _) => (
            format!("{} over {transport}", kind.test),
            format!("{op}, {table}"),
        ),
    }
}

fn series(kind: &Kind, lines: &[Line<'_>], runs: &[Run]) -> Vec<Series> {
    let mut names: Vec<&str> = lines.iter().map(|line| &*line.name).collect();
    names.sort_unstable();
    names.dedup();
    let several = |name: &str| lines.iter().filter(|line| line.name == name).count() > 1;
    let mut all = Vec::new();
    for Line { name, run, rows } in lines {
        let color = names.iter().position(|n| n == name);
        let first = lines.iter().find(|line| line.name == *name);
        let label = match several(name) {
            true => format!("{name}, {}", runs[*run].name),
            false => name.clone(),
        };
        let mut rows = rows.clone();
        rows.sort_by_key(|row| row.size);
        all.push(Series {
            points: rows.iter().map(|row| point(kind, row, &label)).collect(),
            upper: match kind.shown {
                Shown::Median => rows.iter().map(|row| row.figures.p99_us).collect(),
                _ => Vec::new(),
            },
            name: label,
            color,
            dashed: first.is_some_and(|line| line.run != *run),
        });
    }
    all.extend(rooflines(kind, lines));
    all
}

fn point(kind: &Kind, row: &Row, label: &str) -> Point {
    let value = kind.shown.of(row);
    let us = |value| Unit::Micros.text(value);
    let f = &row.figures;
    let tooltip = format!(
        "{label}, {}: {}\np50 {}, p90 {}, p99 {}, p99.9 {}, max {}\n{} calls, {}",
        kind.x_unit.text(row.size as f64),
        kind.shown.unit().text(value),
        us(f.p50_us),
        us(f.p90_us),
        us(f.p99_us),
        us(f.p999_us),
        us(f.max_us),
        f.ops,
        match row.wrong {
            0 => "every value right".to_owned(),
            n => format!("{n} values WRONG"),
        }
    );
    Point {
        x: row.size as f64,
        y: value,
        tooltip,
    }
}

/// The rooflines of the lines' rows, one dashed line for each name; at a size the first row with this roofline
/// counts. Empty for a chart of calls a second.
fn rooflines(kind: &Kind, lines: &[Line<'_>]) -> Vec<Series> {
    let mut found: BTreeMap<String, BTreeMap<u64, f64>> = BTreeMap::new();
    if kind.shown == Shown::Calls {
        return Vec::new();
    }
    for row in lines.iter().flat_map(|line| &line.rows) {
        let Some(roofline) = &row.roofline else {
            continue;
        };
        let value = match kind.shown {
            Shown::Median => roofline.p50_us,
            _ => roofline.mb_per_s,
        };
        let line = found.entry(roofline.name.clone()).or_default();
        line.entry(row.size).or_insert(value);
    }
    let line = |(name, points): (String, BTreeMap<u64, f64>)| Series {
        points: points
            .into_iter()
            .map(|(size, value)| Point {
                x: size as f64,
                y: value,
                tooltip: format!("{name}: {}", kind.shown.unit().text(value)),
            })
            .collect(),
        name,
        color: None,
        dashed: true,
        upper: Vec::new(),
    };
    found.into_iter().map(line).collect()
}
