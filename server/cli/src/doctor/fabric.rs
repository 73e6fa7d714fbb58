//! Check of the settings that queue pairs would have on each active port.

use tidewater_topology::{ClassFrom, GidKind, LinkLayer, PortSettings, RdmaDevice, RdmaPort, Root};

use super::checks::{Check, Verdict};
use super::{Machine, Question};

const NAME: &str = "rdma-settings";

/// Resolves the settings on each port as a server would.
pub(super) fn settings(
    machine: &Machine,
    question: &Question,
    active: &[(&RdmaDevice, &RdmaPort)],
) -> Check {
    let root = Root::new(&machine.root);
    let (mut found, mut refused) = (Vec::new(), Vec::new());
    for (rdma, port) in active {
        let fabric = &question.fabric;
        let index = fabric.gid_index.map(|index| u32::from(index.get()));
        if let Some(index) = index.filter(|&index| !has_gid(port, index)) {
            refused.push(no_gid(rdma, port, index));
        }
        match fabric.on_port(&root, &rdma.name, port.number, port.link) {
            Ok(settings) => found.push(words(rdma, port, &settings)),
            Err(no_pkey) => refused.push(no_pkey.to_string()),
        }
    }
    if !refused.is_empty() {
        return Check::bad(
            (NAME, Verdict::Fail),
            refused.join("; "),
            "A server with these settings refuses lanes over RDMA on that port.",
            &["correct the flag --rdma-... or the variable TIDEWATER_RDMA_..."],
        );
    }
    found.push(retries(question));
    Check::ok(NAME, found.join("; "))
}

/// Whether queue pairs can have the GID of this index.
fn has_gid(port: &RdmaPort, index: u32) -> bool {
    let mut gids = port.gids.iter();
    gids.any(|gid| {
        gid.index == index && (port.link == LinkLayer::InfiniBand || gid.kind == GidKind::RoceV2)
    })
}

fn no_gid(rdma: &RdmaDevice, port: &RdmaPort, index: u32) -> String {
    let usable = port.gids.iter().filter(|gid| has_gid(port, gid.index));
    let usable: Vec<String> = usable
        .map(|gid| format!("{} ({})", gid.index, gid.address()))
        .collect();
    let there = match usable.is_empty() {
        true => "none".to_owned(),
        false => usable.join(", "),
    };
    format!(
        "{}:{} has no usable GID at index {index}; it has {there}",
        rdma.name, port.number
    )
}

/// The settings of one port.
fn words(rdma: &RdmaDevice, port: &RdmaPort, settings: &PortSettings) -> String {
    let from = match (settings.traffic_class_from, port.link) {
        (ClassFrom::User, _) => "as set",
        (ClassFrom::Port, _) => "the port's",
        (ClassFrom::Usual, LinkLayer::InfiniBand) => "InfiniBand uses the service level",
        (ClassFrom::Usual, _) => "default of RoCE",
    };
    let rate = match settings.static_rate {
        0 => String::new(),
        code => format!(", static rate code {code}"),
    };
    let label = match settings.flow_label {
        0 => String::new(),
        label => format!(", flow label {label:#x}"),
    };
    format!(
        "{}:{} traffic class {} (DSCP {}, {from}), service level {}, P_Key {} (index {}){rate}{label}",
        rdma.name,
        port.number,
        settings.traffic_class,
        settings.traffic_class >> 2,
        settings.service_level,
        settings.pkey,
        settings.pkey_index,
    )
}

/// Time until a lane breaks, and ECE.
fn retries(question: &Question) -> String {
    let fabric = &question.fabric;
    let longest = fabric.longest_retry();
    let ece = match fabric.negotiates_ece() {
        true => "ECE where both ends have it",
        false => "no ECE",
    };
    format!(
        "timeout {} with {} retries: a lane breaks {:.1} to {:.1} s after its link; {ece}",
        fabric.timeout_exponent(),
        fabric.retry_count(),
        longest.as_secs_f64() / 4.0,
        longest.as_secs_f64(),
    )
}
