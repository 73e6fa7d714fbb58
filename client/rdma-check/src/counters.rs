//! Hardware counters of a port: read before and after, and what their changes mean.

use std::collections::BTreeMap;
use std::path::Path;

use crate::finding::{BothCounters, Finding, PortCounters, Verdict};

/// Counters that a sound network leaves unchanged, with their meaning and the remedy.
const TROUBLE: &[(&[&str], &str, &str)] = &[
    (
        &[
            "local_ack_timeout_err",
            "retry_exceeded_err",
            "req_transport_retries_exceeded",
        ],
        "packets or their acknowledgements were lost until a timeout",
        "look for discards on switches (`ethtool -S`), and set up PFC or ECN for the traffic class of RDMA",
    ),
    (
        &[
            "packet_seq_err",
            "out_of_sequence",
            "out_of_seq_request",
            "rcvd_seq_err",
            "duplicate_request",
            "completer_retry_err",
            "implied_nak_seq_err",
            "roce_adp_retrans",
            "roce_slow_restart",
        ],
        "packets were lost, or arrived in another order, and were sent again",
        "look for discards on switches; on a network that routes adaptively this is normal on devices that \
         support it",
    ),
    (
        &[
            "rnr_nak_retry_err",
            "out_of_buffer",
            "rcvd_rnr_err",
            "send_rnr_err",
        ],
        "a receiver was not ready",
        "report it: Tidewater posts receives before it grants them",
    ),
    (
        &[
            "symbol_error",
            "link_error_recovery",
            "link_downed",
            "port_rcv_errors",
            "local_link_integrity_errors",
        ],
        "the link has errors",
        "replace cable or transceiver, and look at both of its ends",
    ),
    (
        &[
            "port_xmit_discards",
            "port_rcv_constraint_errors",
            "port_xmit_constraint_errors",
        ],
        "a port discarded packets",
        "look at link state, partition keys, and the rate of both ends",
    ),
];

/// Counters of congestion: normal under load, worth a look.
const CONGESTION: &[&str] = &[
    "rp_cnp_handled",
    "np_cnp_sent",
    "np_ecn_marked_roce_packets",
    "rp_cnp_ignored",
    "port_xmit_wait",
];

/// Reads all counters of a port. Cost: some dozens of small files.
pub(crate) fn read(device: &str, port: u8) -> PortCounters {
    let port = Path::new("/sys/class/infiniband")
        .join(device)
        .join("ports")
        .join(port.to_string());
    let mut counters = BTreeMap::new();
    for folder in ["counters", "hw_counters"] {
        for entry in std::fs::read_dir(port.join(folder))
            .into_iter()
            .flatten()
            .flatten()
        {
            let value = std::fs::read_to_string(entry.path()).ok();
            // Files that hold no number are settings, such as `lifespan`'s unit.
            if let (Ok(name), Some(Ok(value))) = (
                entry.file_name().into_string(),
                value.map(|text| text.trim().parse()),
            ) && name != "lifespan"
            {
                counters.insert(name, value);
            }
        }
    }
    counters
}

/// Counters that have grown, with the growth.
pub(crate) fn since(before: &PortCounters, after: &PortCounters) -> PortCounters {
    let grown = |(name, value): (&String, &u64)| {
        let old = before.get(name).copied().unwrap_or(0);
        (*value > old).then(|| (name.clone(), value - old))
    };
    after.iter().filter_map(grown).collect()
}

/// Judges the counters of an interval without deliberate faults.
pub(crate) fn judge(before: &BothCounters, after: &BothCounters) -> Finding {
    const CHECK: &str = "hardware counters";
    let ends = [
        ("the listener", since(&before.listener, &after.listener)),
        ("the caller", since(&before.caller, &after.caller)),
    ];
    if after.listener.is_empty() && after.caller.is_empty() {
        return Finding::new(CHECK, Verdict::Skipped, "neither device has counters");
    }
    let (mut found, mut change) = (Vec::new(), Vec::new());
    for (end, grown) in &ends {
        for (names, meaning, remedy) in TROUBLE {
            let bad: Vec<String> = names
                .iter()
                .filter_map(|name| Some(format!("{name} +{}", grown.get(*name)?)))
                .collect();
            if !bad.is_empty() {
                found.push(format!("{end}: {} ({meaning})", bad.join(", ")));
                change.push((*remedy).to_owned());
            }
        }
        let marks = CONGESTION
            .iter()
            .filter_map(|name| Some(format!("{name} +{}", grown.get(*name)?)));
        let marks: Vec<String> = marks.collect();
        if !marks.is_empty() {
            found.push(format!(
                "{end}: congestion was signalled ({})",
                marks.join(", ")
            ));
        }
    }
    let verdict = match change.is_empty() {
        true => Verdict::Pass,
        false => Verdict::Change,
    };
    if found.is_empty() {
        found.push(
            "no loss, no repetition, no link error while there was no deliberate fault".to_owned(),
        );
    }
    change.dedup();
    let mut finding = Finding::new(CHECK, verdict, found.join("; "));
    finding.change = change;
    for (end, grown) in ends {
        for (name, value) in grown {
            finding = finding.figure(
                &format!("{} {name}", end.trim_start_matches("the ")),
                value as f64,
            );
        }
    }
    finding
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pairs: &[(&str, u64)]) -> PortCounters {
        pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), *value))
            .collect()
    }

    #[test]
    fn lost_packets_are_named_with_end_and_remedy() {
        let before = BothCounters {
            listener: of(&[("packet_seq_err", 7), ("sent_pkts", 1)]),
            caller: of(&[("local_ack_timeout_err", 1)]),
        };
        let mut after = before.clone();
        assert_eq!(judge(&before, &after).verdict, Verdict::Pass);
        after.listener.insert("sent_pkts".to_owned(), 100);
        after.listener.insert("np_cnp_sent".to_owned(), 5);
        let congested = judge(&before, &after);
        assert_eq!(congested.verdict, Verdict::Pass, "{congested:?}");
        assert!(congested.found.contains("np_cnp_sent +5"), "{congested:?}");
        after.caller.insert("local_ack_timeout_err".to_owned(), 4);
        let lost = judge(&before, &after);
        assert_eq!(lost.verdict, Verdict::Change);
        assert!(
            lost.found.contains("the caller: local_ack_timeout_err +3"),
            "{lost:?}"
        );
        assert!(lost.change.iter().any(|c| c.contains("PFC")), "{lost:?}");
        let none = BothCounters::default();
        assert_eq!(judge(&none, &none).verdict, Verdict::Skipped);
    }

    #[test]
    fn counters_that_did_not_grow_are_left_out() {
        let grown = since(
            &of(&[("a", 3), ("b", 3)]),
            &of(&[("a", 3), ("b", 5), ("c", 1), ("d", 0)]),
        );
        assert_eq!(grown, of(&[("b", 2), ("c", 1)]));
    }
}
