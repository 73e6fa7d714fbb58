//! The report page of a chaos run: recovery by level and fault, and a line for each fault.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::{Record, Run};
use crate::cmd::report::html::escape;
use crate::contest::median;

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:80rem;padding:0 1rem;\
color:#1b1b1b;background:#fff}h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem}table{border-collapse:\
collapse;width:100%}th,td{text-align:left;padding:.3rem .6rem;border-bottom:1px solid #ddd;vertical-align:top}\
th{background:#f4f4f4}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}\
.bad{background:#ffe3e3}.ok{color:#176117}.scroll{overflow-x:auto}";

fn ms(time: Option<f64>) -> String {
    time.map_or_else(|| "&ndash;".into(), |ms| format!("{ms:.0}"))
}

fn count(count: Option<u64>) -> String {
    count.map_or_else(|| "&ndash;".into(), |count| count.to_string())
}

/// The page as HTML.
pub(super) fn page(run: &Run) -> String {
    let broken = run.records.iter().filter(|record| record.broken.is_some());
    let broken = broken.count();
    let pushes = run.records.iter().filter_map(|record| record.pushes).max();
    let mut html = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width\"><title>tidewater-bench chaos, seed {seed}</title><style>{STYLE}</style>\
         <h1>Chaos, seed {seed}</h1><p>{count} faults in {seconds:.0} s. <b class=\"{class}\">{broken} promises \
         broken.</b> The ledger of all pushes was compared with the tables after each fault that a cluster \
         survives; the fullest table had {pushes} pushes.</p><p>Repeat with <code>{repeat}</code>.</p>",
        seed = run.seed,
        count = run.records.len(),
        seconds = run.seconds,
        class = if broken == 0 { "ok" } else { "bad" },
        pushes = pushes.unwrap_or(0),
        repeat = escape(&run.repeat),
    );
    summary(&mut html, run);
    if !run.skipped.is_empty() {
        html += "<h2>Faults that this host cannot have</h2><ul>";
        for (fault, why) in &run.skipped {
            // A write to a String does not fail.
            let _ = write!(html, "<li><b>{}</b>: {}</li>", fault.name(), escape(why));
        }
        html += "</ul>";
    }
    faults(&mut html, &run.records);
    html += "</html>\n";
    html
}

fn summary(html: &mut String, run: &Run) {
    html.push_str(
        "<h2>Recovery by level and fault</h2><div class=\"scroll\"><table><tr><th>level<th>cluster<th>fault\
         <th class=\"n\">times<th class=\"n\">known p50, ms<th class=\"n\">max<th class=\"n\">over p50, ms\
         <th class=\"n\">max<th class=\"n\">lost, most<th>promise",
    );
    let mut kinds: BTreeMap<_, Vec<&Record>> = BTreeMap::new();
    for record in &run.records {
        let kind = (record.level, record.setup, record.fault.name());
        kinds.entry(kind).or_default().push(record);
    }
    for ((level, setup, fault), records) in kinds {
        let times = |of: fn(&Record) -> Option<f64>| {
            let times: Vec<f64> = records.iter().filter_map(|record| of(record)).collect();
            [median(&times), times.into_iter().reduce(f64::max)]
        };
        let [known, known_max] = times(|record| record.detected_ms);
        let [over, over_max] = times(|record| record.recovered_ms);
        let lost = records.iter().filter_map(|record| record.lost).max();
        let bad = records.iter().any(|record| record.broken.is_some());
        let cells = [known, known_max, over, over_max].map(ms);
        let _ = write!(
            html,
            "<tr{}><td>{level}<td>{setup}<td>{fault}<td class=\"n\">{}<td class=\"n\">{}<td class=\"n\">{}<td>{}",
            if bad { " class=\"bad\"" } else { "" },
            records.len(),
            cells.join("<td class=\"n\">"),
            count(lost),
            escape(records.first().map_or("", |record| record.promise)),
        );
    }
    html.push_str(
        "</table></div><p>Known: from the fault until all that must know it do: every worker has its error, or the \
         launcher, the save or the checkpoint reports it. A stop is no death and is not reported. Over: for a \
         death, from the fault until every worker has an acknowledgement after it, or has ended with its error; for \
         a fault that passes, from its end. Lost: acknowledged pushes at level none, steps of the training at level \
         checkpoint; both levels allow and report them.</p>",
    );
}

fn faults(html: &mut String, records: &[Record]) {
    html.push_str(
        "<h2>Each fault</h2><div class=\"scroll\"><table><tr><th class=\"n\">round<th class=\"n\">at, s<th>cluster\
         <th>lanes<th>fault<th>of<th class=\"n\">known, ms<th class=\"n\">over, ms<th class=\"n\">pushes\
         <th class=\"n\">lost<th>outcome",
    );
    for record in records {
        let bad = match record.broken {
            Some(_) => " class=\"bad\"",
            None => "",
        };
        let _ = write!(
            html,
            "<tr{bad}><td class=\"n\">{}<td class=\"n\">{:.1}<td>{}<td>{}<td>{}<td>{}<td class=\"n\">{}\
             <td class=\"n\">{}<td class=\"n\">{}<td class=\"n\">{}<td>{}",
            record.round,
            record.at_s,
            record.setup,
            record.transport,
            record.fault.name(),
            escape(&record.subject),
            ms(record.detected_ms),
            ms(record.recovered_ms),
            count(record.pushes),
            count(record.lost),
            escape(&record.outcome()),
        );
    }
    html.push_str("</table></div>");
}
