//! The page: the fingerprint of the figures, verdicts, charts, and the rows.

use std::fmt::Write;

use super::html::{digits, escape};
use super::{Run, judge, pictures};
use crate::row::Row;

const STYLE: &str = include_str!("page.css");
/// Runnable threads per core before a run, from which its figures are doubtful.
const BUSY: f64 = 0.5;

/// Builds the page of some runs.
pub(super) fn page(runs: &[Run]) -> String {
    let mut out = format!(
        "<!doctype html><html lang=en><head><meta charset=utf-8>\
         <meta name=viewport content=\"width=device-width, initial-scale=1\">\
         <title>Tidewater benchmarks</title><style>{STYLE}</style></head><body><main>\
         <h1>Tidewater benchmarks</h1>"
    );
    out += &summary(runs);
    for run in runs {
        let verdicts = judge::tables(&run.document);
        if !verdicts.is_empty() {
            let transport = escape(&run.document.fingerprint.transport);
            let _ = write!(
                out,
                "<h2>Comparison over {transport}</h2><p>Each contest measures us and a baseline in \
                 turn. The value is the median of the rounds' ratios, ours by the baseline's, or our \
                 own median where the target is absolute. Drawn next to the bound, from a sixteenth \
                 to sixteen times of it; the shaded half is the good one.</p>{verdicts}"
            );
        }
    }
    for section in pictures::sections(runs) {
        let _ = write!(
            out,
            "<h2>{}</h2><p>{}</p><div class=charts>",
            escape(section.title),
            escape(section.note)
        );
        for chart in &section.charts {
            out += &chart.svg();
        }
        out += "</div>";
    }
    out += "<h2>Runs</h2><p>What each figure comes from, and the rows themselves.</p>";
    for run in runs {
        out += &details(run);
    }
    out + "</main></body></html>\n"
}

fn summary(runs: &[Run]) -> String {
    let Some(first) = runs.first() else {
        return String::new();
    };
    let print = &first.document.fingerprint;
    let rows = runs.iter().flat_map(|run| &run.document.rows);
    let ratios = runs.iter().flat_map(|run| &run.document.ratios);
    let wrong: u64 = rows.map(|r| r.wrong).chain(ratios.map(|r| r.wrong)).sum();
    let mut out = format!(
        "<p>{}, {} cores, {}; commit {}, {}.</p>",
        escape(&print.cpu),
        print.cores,
        escape(&print.kernel),
        escape(&print.commit),
        match wrong {
            0 => "every value that was compared was right".to_owned(),
            n => format!("<b class=missed>{n} values were WRONG</b>"),
        }
    );
    let mut warnings: Vec<String> = Vec::new();
    if runs.iter().any(|run| {
        run.document
            .fingerprint
            .profile
            .contains("debug assertions")
    }) {
        warnings.push("Built with debug assertions: slower than a release.".into());
    }
    let busiest = runs.iter().map(|run| {
        let print = &run.document.fingerprint;
        let load = print
            .load
            .split(' ')
            .next()
            .and_then(|l| l.parse::<f64>().ok());
        load.unwrap_or(0.0) / print.cores.max(1) as f64
    });
    let busiest = busiest.fold(0.0, f64::max);
    if busiest > BUSY {
        warnings.push(format!(
            "The machine was busy with other work (up to {} runnable threads a core): tails, and \
             whatever needs several cores, measure that.",
            digits(busiest)
        ));
    }
    for warning in warnings {
        let _ = write!(out, "<p class=warn>{warning}</p>");
    }
    out
}

fn details(run: &Run) -> String {
    let print = &run.document.fingerprint;
    let mut out = format!(
        "<details><summary>{}: {} over {}</summary><dl>",
        escape(&run.name),
        escape(&print.what),
        escape(&print.transport)
    );
    for (name, value) in print.lines() {
        let _ = write!(out, "<dt>{name}<dd>{}", escape(&value));
    }
    out += "</dl>";
    if !run.document.rows.is_empty() {
        out += "<div class=wide><table><thead><tr><th>test<th>op<th>table<th>mode<th>pace\
                <th class=n>size<th class=n>calls<th class=n>p50 us<th class=n>p90<th class=n>p99\
                <th class=n>p99.9<th class=n>max<th class=n>MB/s<th class=n>Mops/s<th class=n>eff%\
                <th class=n>cpu us<th class=n>servers' cpu us<th class=n>allocs<th class=n>#wrong\
                </tr></thead><tbody>";
        for row in &run.document.rows {
            out += &line(row);
        }
        out += "</tbody></table></div>";
    }
    out + "</details>"
}

fn line(row: &Row) -> String {
    let f = &row.figures;
    let mut out = "<tr>".to_owned();
    let mode = row.mode.as_deref().unwrap_or("-");
    for text in [&row.test, &row.op, &row.table, mode, &row.pace] {
        let _ = write!(out, "<td>{}", escape(text));
    }
    let _ = write!(out, "<td class=n>{}<td class=n>{}", row.size, f.ops);
    let allocs = row.allocs_client.zip(row.allocs_server).map(|(c, s)| c + s);
    let known = [
        f.p50_us,
        f.p90_us,
        f.p99_us,
        f.p999_us,
        f.max_us,
        f.mb_per_s,
        f.mops_per_s,
    ];
    let maybe = [
        row.eff_percent,
        row.cpu_client_us,
        row.cpu_server_us,
        allocs,
    ];
    for value in known.into_iter().map(Some).chain(maybe) {
        let _ = write!(
            out,
            "<td class=n>{}",
            value.map_or_else(|| "-".into(), digits)
        );
    }
    let _ = write!(out, "<td class=n>{}</tr>", row.wrong);
    out
}
