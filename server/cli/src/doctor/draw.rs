//! The picture of a host, and of the choices of servers on it: plain text, 100 columns.

use std::fmt::Write as _;

use tidewater_runtime::mem::Pages;
use tidewater_topology::{
    Cpu, GidKind, HugePool, NetDevice, NumaNode, PortState, RdmaDevice, RdmaPort, Room, Topology,
    format_list,
};

use super::text::{LABEL, WIDTH, paragraph, size, wrap};
use super::{Chosen, Limit, Machine, Question};

/// Most GIDs of a port that are shown: a host of many containers has hundreds.
const GIDS_SHOWN: usize = 6;
/// Marks of servers, one each; those beyond are drawn as `*`.
const MARKS: &[u8] = b"abcdefghijklmnopqrstuvwxyz";

/// Draws a host with the choices of servers.
pub fn draw(machine: &Machine, question: &Question, chosen: &Chosen) -> String {
    let topology = &machine.topology;
    let mut out = heading(machine);
    for node in &topology.nodes {
        out.push_str(&frame(
            &title(node, topology),
            &inside(node, topology, chosen),
        ));
    }
    let elsewhere = elsewhere(topology, chosen);
    if !elsewhere.is_empty() {
        out.push_str(&frame("of no node", &elsewhere));
    }
    let legend = legend(topology, chosen);
    out.push_str(&paragraph("", &legend));
    out.push('\n');
    for (label, text) in limits(machine)
        .iter()
        .chain(&choices(question, chosen, topology))
    {
        out.push_str(&paragraph(label, text));
    }
    out
}

/// A line of a picture: label and text.
type Line = (String, String);

fn heading(machine: &Machine) -> String {
    let topology = &machine.topology;
    let (all, ours) = (topology.cpus.len(), topology.allowed().count());
    let mut text = format!(
        "{}, Linux {}: ",
        or(&machine.host, "a host"),
        or(&machine.kernel, "?")
    );
    let _ = match topology.nodes.len() {
        0 => write!(text, "no node is known, "),
        1 => write!(text, "1 node, "),
        n => write!(text, "{n} nodes, "),
    };
    let _ = write!(text, "{all} processors");
    if ours < all {
        let _ = write!(text, ", {ours} of them ours");
    }
    if let Some(quota) = topology.quota {
        let _ = write!(text, ", time of {quota:.1} granted");
    }
    text.push('\n');
    text
}

fn or<'a>(text: &'a str, other: &'a str) -> &'a str {
    if text.is_empty() { other } else { text }
}

/// Lines in a frame with a title.
fn frame(title: &str, lines: &[Line]) -> String {
    let mut out = format!(
        "+-- {title} {:-<1$}+\n",
        "",
        WIDTH.saturating_sub(title.len() + 6)
    );
    for (label, text) in lines {
        let room = WIDTH - LABEL - 6;
        let mut label = label.as_str();
        for line in wrap_kept(text, room) {
            let _ = writeln!(out, "|  {label:<LABEL$}{line:<room$}  |");
            label = "";
        }
    }
    let _ = writeln!(out, "+{:-<1$}+", "", WIDTH - 2);
    out
}

/// Breaks text that is too long; other text keeps its blanks.
fn wrap_kept(text: &str, room: usize) -> Vec<String> {
    match text.len() <= room {
        true => vec![text.to_owned()],
        false => wrap(text, room),
    }
}

fn title(node: &NumaNode, topology: &Topology) -> String {
    let (memory, free) = (size(node.memory_bytes), size(node.free_bytes));
    let mut title = format!("node {}: {memory}, {free} free", node.id);
    if !node.allowed {
        title.push_str(", not ours");
    }
    let far = topology.nodes.iter().filter(|other| other.id != node.id);
    let far: Vec<String> = far
        .map(|other| {
            format!(
                "node {} at {}",
                other.id,
                topology.distance(node.id, other.id)
            )
        })
        .collect();
    if !far.is_empty() && far.len() < 8 {
        title.push_str("; ");
        title.push_str(&far.join(", "));
    }
    title
}

fn inside(node: &NumaNode, topology: &Topology, chosen: &Chosen) -> Vec<Line> {
    let mut lines = cores(&topology.cpus, chosen, |cpu| cpu.node == node.id);
    let pools = topology.hugepages.iter();
    let of_node = |pool: &HugePool| {
        let share = pool.nodes.iter().find(|share| share.node == node.id)?;
        let name = size(pool.page_bytes);
        match share.total {
            0 => None,
            total => Some(format!("{} of {total} of {name} free", share.free)),
        }
    };
    let pools: Vec<String> = pools.filter_map(of_node).collect();
    if !pools.is_empty() {
        lines.push(("hugepages".into(), pools.join(", ")));
    }
    lines.extend(devices(topology, Some(node.id)));
    lines
}

/// Cores, devices and pools that belong to no node.
fn elsewhere(topology: &Topology, chosen: &Chosen) -> Vec<Line> {
    let known = |cpu: &Cpu| topology.node(cpu.node).is_some();
    let mut lines = cores(&topology.cpus, chosen, |cpu| !known(cpu));
    lines.extend(devices(topology, None));
    lines
}

/// `[0a 8] [1a 9]`: the processors of each core, a line for each L3 cache.
fn cores(cpus: &[Cpu], chosen: &Chosen, here: impl Fn(&Cpu) -> bool) -> Vec<Line> {
    let here: Vec<&Cpu> = cpus.iter().filter(|cpu| here(cpu)).collect();
    let digits = here
        .iter()
        .map(|cpu| cpu.id)
        .max()
        .unwrap_or(0)
        .to_string()
        .len();
    let mark = |cpu: &Cpu| {
        let server = chosen.servers.iter().position(|s| s.cpus.contains(&cpu.id));
        let mark = server.map_or(b' ', |s| *MARKS.get(s).unwrap_or(&b'*'));
        match cpu.allowed {
            true => format!("{:>digits$}{}", cpu.id, mark as char),
            false => format!("{:>digits$} ", "-"),
        }
    };
    let mut caches: Vec<u32> = here.iter().map(|cpu| cpu.l3).collect();
    caches.sort_unstable();
    caches.dedup();
    // Without an L3 cache the id of each core stands for one: the cores share a line.
    let own = caches.len() > 1 && here.iter().all(|cpu| cpu.l3 == cpu.core);
    let shared = |cpu: &Cpu, l3: u32| own || cpu.l3 == l3;
    let caches = if own { &caches[..1] } else { &caches[..] };
    let mut lines = Vec::new();
    for &l3 in caches {
        let mut cores: Vec<u32> = here
            .iter()
            .filter(|c| shared(c, l3))
            .map(|c| c.core)
            .collect();
        cores.sort_unstable();
        cores.dedup();
        let of_core = |core: u32| {
            let siblings = here.iter().filter(|cpu| cpu.core == core);
            format!(
                "[{}]",
                siblings.map(|cpu| mark(cpu)).collect::<Vec<_>>().join(" ")
            )
        };
        let drawn: Vec<String> = cores.into_iter().map(of_core).collect();
        let width = drawn.iter().map(String::len).max().unwrap_or(1) + 1;
        for line in drawn.chunks(((WIDTH - LABEL - 6) / width).max(1)) {
            let label = if lines.is_empty() { "cores" } else { "" };
            lines.push((label.to_owned(), line.join(" ")));
        }
    }
    lines
}

fn devices(topology: &Topology, node: Option<u32>) -> Vec<Line> {
    let mut lines = Vec::new();
    // A single node has all devices.
    let only = match topology.nodes[..] {
        [ref only] => Some(only.id),
        _ => None,
    };
    for rdma in topology
        .rdmas
        .iter()
        .filter(|rdma| rdma.node.or(only) == node)
    {
        for port in &rdma.ports {
            lines.extend(port_lines(rdma, port, topology));
        }
    }
    let nets = topology.nets.iter().filter(|net| net.node.or(only) == node);
    let (shown, others): (Vec<_>, Vec<_>) =
        nets.partition(|net| net.hardware || !net.addresses.is_empty());
    lines.extend(
        shown
            .into_iter()
            .map(|net| (net.name.clone(), net_line(net))),
    );
    if !others.is_empty() {
        let text = format!(
            "{} network devices without hardware and address",
            others.len()
        );
        lines.push(("others".into(), text));
    }
    lines
}

fn port_lines(rdma: &RdmaDevice, port: &RdmaPort, topology: &Topology) -> Vec<Line> {
    let mut text = format!("{:?}, {:?}", port.link, port.state);
    if port.state != PortState::Active {
        let _ = write!(text, " ({})", port.physical);
    }
    let _ = write!(text, ", {}", port.rate);
    match (port.mtu, &port.netdev) {
        (Some(mtu), Some(netdev)) => {
            let net = topology.nets.iter().find(|net| net.name == *netdev);
            let _ = write!(
                text,
                ", MTU {mtu}, {netdev} has {}",
                net.map_or(0, |net| net.mtu)
            );
        }
        _ => text.push_str(", MTU unknown"),
    }
    if port.lid != 0 {
        let _ = write!(text, ", LID {}", port.lid);
    }
    let mut lines = vec![(format!("{}:{}", rdma.name, port.number), text)];
    let useful = |kind: GidKind| kind != GidKind::IbOrRoceV1;
    let gids: Vec<_> = port.gids.iter().filter(|gid| useful(gid.kind)).collect();
    for gid in gids.iter().take(GIDS_SHOWN) {
        let kind = match gid.kind {
            GidKind::RoceV2 => "RoCE v2",
            _ => "GID",
        };
        let text = format!("GID {:<3} {kind}  {}", gid.index, gid.address());
        lines.push((String::new(), text));
    }
    if gids.len() > GIDS_SHOWN {
        let text = format!("and {} more GIDs", gids.len() - GIDS_SHOWN);
        lines.push((String::new(), text));
    }
    lines
}

fn net_line(net: &NetDevice) -> String {
    let state = if net.up { "up" } else { "down" };
    let mut text = format!("{state}, MTU {}", net.mtu);
    match net.speed_mbps {
        Some(speed) if speed % 1000 == 0 => drop(write!(text, ", {} Gbit/s", speed / 1000)),
        Some(speed) => drop(write!(text, ", {speed} Mbit/s")),
        None => {}
    }
    for address in &net.addresses {
        let _ = write!(text, ", {address}");
    }
    text
}

fn legend(topology: &Topology, chosen: &Chosen) -> String {
    let mut parts = vec!["[ ] one core; a line for each L3 cache".to_owned()];
    let marked = chosen.servers.iter().zip(MARKS);
    let marked = marked.filter(|(server, _)| !server.cpus.is_empty()).count();
    match marked {
        0 => {}
        1 => parts.push("a its appliers".to_owned()),
        n => parts.push(format!(
            "a-{} appliers of each server",
            MARKS[n - 1] as char
        )),
    }
    if topology.cpus.iter().any(|cpu| !cpu.allowed) {
        parts.push("- not ours".to_owned());
    }
    parts.join("; ")
}

fn limits(machine: &Machine) -> Vec<Line> {
    let limit_text = |limit: Limit, show: &dyn Fn(u64) -> String| match limit {
        Limit::At(limit) => show(limit),
        Limit::Unlimited => "unlimited".into(),
        Limit::Unknown => "not known".into(),
    };
    let mut text = format!("locked memory {}", limit_text(machine.memlock, &size));
    if machine.ipc_lock && machine.memlock != Limit::Unlimited {
        text.push_str(" (lifted by CAP_IPC_LOCK)");
    }
    let files = limit_text(machine.open_files, &|limit| limit.to_string());
    let clock = or(&machine.clock.current, "not known");
    let _ = write!(text, ", open files {files}, clock {clock}");
    let pools = machine.topology.hugepages.iter().map(|pool| {
        let (free, total) = (pool.available(), pool.total);
        format!("{free} of {total} of {}", size(pool.page_bytes))
    });
    let pools = pools.collect::<Vec<_>>().join(", ");
    let pools = format!("{} to be had", or(&pools, "none"));
    vec![("limits".into(), text), ("hugepages".into(), pools)]
}

fn choices(question: &Question, chosen: &Chosen, topology: &Topology) -> Vec<Line> {
    let mut lines = Vec::new();
    let mut line = |label: &str, text: String| lines.push((label.to_owned(), text));
    let (servers, appliers) = (question.servers, chosen.appliers);
    let (clients, capacity) = (question.clients, size(question.capacity as u64));
    let some = |n: u64, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
    line(
        "chosen for",
        format!(
            "{} with {} and {capacity} of capacity each, {}",
            some(servers.into(), "server"),
            some(appliers.into(), "applier"),
            some(clients.into(), "client"),
        ),
    );
    let near = match (&chosen.near.device, chosen.near.node) {
        (Some(name), Some(node)) => format!("{name} on node {node}"),
        (Some(name), None) => format!("{name}, whose node is not known"),
        (None, Some(node)) => format!("node {node}"),
        (None, None) => "no NIC".into(),
    };
    line("near", format!("{near}: {}", chosen.near.why));
    let mut marks = MARKS.iter();
    for (number, server) in chosen.servers.iter().enumerate() {
        let mark = marks.next().map_or('*', |&mark| mark as char);
        let (cpus, why) = (format_list(&server.cpus), server.cpus_why);
        let text = match server.cpus.is_empty() {
            true => format!("server {number}: {why}"),
            false => format!("server {number} ({mark}) on {cpus}: {why}"),
        };
        line(if number == 0 { "appliers" } else { "" }, text);
    }
    if let Some(first) = chosen.servers.first() {
        line(
            "waiting",
            match first.room {
                Room::Ample => {
                    "they spin a while before they sleep: there are cores to spare".into()
                }
                Room::Full => "they spin a little before they sleep: every core is taken".into(),
                Room::Crowded => "they sleep at once: threads outnumber the cores".into(),
            },
        );
        line(
            "memory",
            match first.node {
                Some(node) => format!("node {node}: {}", first.node_why),
                None => first.node_why.to_string(),
            },
        );
    }
    line("pages", pages(chosen, topology));
    lines
}

fn pages(chosen: &Chosen, topology: &Topology) -> String {
    if let Some(refused) = chosen.refused {
        return format!("the server would not start: {refused}");
    }
    match chosen.pages {
        Some(choice) => match choice.shortfall {
            Some(shortfall) => format!("ordinary: {shortfall}"),
            None if choice.pages == Pages::Ordinary => "ordinary, as asked for".into(),
            None => {
                let pool = topology.pool(choice.pages.bytes() as u64);
                let free = pool.map_or(0, HugePool::available);
                format!(
                    "huge, of {}: the pool has {free}",
                    size(choice.pages.bytes() as u64)
                )
            }
        },
        None => "not known".into(),
    }
}
