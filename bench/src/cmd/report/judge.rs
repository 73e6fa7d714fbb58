//! The table of a comparison: the measurement, the baseline, and the verdict.

use std::fmt::Write;

use super::html::{digits, escape};
use crate::contest::{Ratio, median};
use crate::sheet::Document;

/// Width and height of a verdict's drawing in pixels, and its reach in multiples of the bound.
const WIDTH: f64 = 150.0;
const HEIGHT: f64 = 18.0;
const REACH: f64 = 16.0;

/// The tables of a comparison; empty for another run.
pub(super) fn tables(document: &Document) -> String {
    if document.ratios.is_empty() && document.absent.is_empty() {
        return String::new();
    }
    let judged: Vec<&Ratio> = document
        .ratios
        .iter()
        .filter(|r| r.target.is_some())
        .collect();
    let printed: Vec<&Ratio> = document
        .ratios
        .iter()
        .filter(|r| r.target.is_none())
        .collect();
    let met = judged.iter().filter(|r| is_met(r)).count();
    let mut out = format!("<h3>Targets: {met} of {} met</h3>", judged.len());
    out += &table(&judged, true);
    if !printed.is_empty() {
        out += "<h3>Without a target</h3>";
        out += &table(&printed, false);
    }
    if !document.absent.is_empty() {
        out += "<h3>Not measured</h3><ul>";
        for absent in &document.absent {
            let (what, why) = (escape(&absent.what), escape(&absent.reason));
            let _ = write!(out, "<li><code>{what}</code>: {why}</li>");
        }
        out += "</ul>";
    }
    out
}

fn is_met(ratio: &Ratio) -> bool {
    ratio.target.as_ref().is_some_and(|target| target.met)
}

fn table(ratios: &[&Ratio], judged: bool) -> String {
    let mut out = "<div class=wide><table><thead><tr><th>contest<th>what<th class=n>ours\
                   <th class=n>baseline's<th>baseline<th>unit<th class=n>value<th class=n>rounds"
        .to_owned();
    if judged {
        out += "<th class=n>target<th>by the bound<th>";
    }
    out += "</tr></thead><tbody>";
    for ratio in ratios {
        out += &row(ratio, judged);
    }
    out + "</tbody></table></div>"
}

fn row(ratio: &Ratio, judged: bool) -> String {
    let [low, high] = ratio.spread;
    let baseline = ratio.baseline.as_deref().unwrap_or("-");
    let shown = |value: Option<f64>| value.map_or_else(|| "-".into(), long);
    let mut out = format!(
        "<tr><td><code>{}</code><td>{}<td class=n>{}<td class=n>{}<td>{}<td>{}<td class=n><b>{}</b>\
         <td class=n>{} .. {}",
        escape(&ratio.id),
        escape(&ratio.what),
        shown(median(&ratio.ours)),
        shown(median(&ratio.theirs)),
        escape(baseline),
        escape(&ratio.unit),
        long(ratio.value),
        long(low),
        long(high),
    );
    if let (true, Some(target)) = (judged, &ratio.target) {
        let (class, word) = match (target.met, target.gate && target.steady) {
            (true, _) => ("met", "met"),
            (false, true) => ("missed", "missed, was met"),
            (false, false) => ("missed", "missed"),
        };
        let steady = if target.steady {
            ""
        } else {
            " <small>not steady</small>"
        };
        let _ = write!(
            out,
            "<td class=n>{}<td>{}<td class={class}>{word}{steady}",
            escape(&target.bound),
            drawing(ratio, &target.bound)
        );
    }
    let wrong = match ratio.wrong {
        0 => String::new(),
        n => format!(" <b class=missed>#wrong {n}</b>"),
    };
    out + &wrong + "</tr>"
}

/// Formats a number like [`digits`]; in millions (`M`) from 10^6 on, in thousands (`k`) from 10^4 on.
fn long(value: f64) -> String {
    let size = value.abs();
    if size >= 1e6 {
        format!("{} M", digits(value / 1e6))
    } else if size >= 1e4 {
        format!("{} k", digits(value / 1e3))
    } else {
        digits(value)
    }
}

/// Draws the value and the spread of the rounds relative to the bound, on a logarithmic scale with the bound
/// in the middle. The shaded half meets the bound. Empty if `bound` has no number.
fn drawing(ratio: &Ratio, bound: &str) -> String {
    let number = bound
        .trim_start_matches(['<', '>', '=', ' '])
        .parse::<f64>();
    let Ok(limit) = number else {
        return String::new();
    };
    let most = bound.starts_with('<');
    let middle = WIDTH / 2.0;
    let place = |value: f64| {
        let part = if limit <= 0.0 || value <= 0.0 {
            // A count with the target 0.
            f64::from(u8::from(value > limit)) - 0.5
        } else {
            (value / limit).ln() / REACH.ln()
        };
        middle + part.clamp(-1.0, 1.0) * (middle - 5.0)
    };
    let [low, high] = ratio.spread;
    let (from, to, at) = (place(low), place(high), place(ratio.value));
    let good = if most { 0.0 } else { middle };
    let half = HEIGHT / 2.0;
    let class = if is_met(ratio) { "met" } else { "missed" };
    format!(
        "<svg class=verdict viewBox=\"0 0 {WIDTH} {HEIGHT}\" width={WIDTH} height={HEIGHT} role=img \
         aria-label=\"{class}\"><rect class=good x={good} y=0 width={middle} height={HEIGHT} />\
         <line class=bound x1={middle} x2={middle} y1=0 y2={HEIGHT} />\
         <line class=\"span {class}\" x1={from:.1} x2={to:.1} y1={half} y2={half} />\
         <circle class=\"point {class}\" cx={at:.1} cy={half} r=4.5 /></svg>"
    )
}
