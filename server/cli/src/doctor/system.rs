//! Checks that concern every server: memory, cores, kernel, clock, sockets, files.

use tidewater_runtime::mem::Pages;
use tidewater_topology::{CoresWhy, NodeWhy, Room, format_list};

use super::checks::{Check, Verdict};
use super::text::size;
use super::{Chosen, Limit, Machine, Question};

/// A facility of newer kernels.
struct Facility {
    /// First version that has it.
    since: (u32, u32),
    /// Name of the facility, to search for.
    name: &'static str,
    /// What a kernel without it means.
    without: &'static str,
    verdict: Verdict,
}

/// Facilities that Tidewater uses where the kernel has them. Without the last two, checked at run time,
/// everything works. Waits have milliseconds on every kernel: `epoll_pwait2` (5.11) is not used.
const FACILITIES: [Facility; 3] = [
    Facility {
        since: (5, 4),
        name: "waitid(P_PIDFD)",
        without: "`tidewater run` cannot wait for its children; take mpirun, srun or a service.",
        verdict: Verdict::Fail,
    },
    Facility {
        since: (5, 1),
        name: "F_SEAL_FUTURE_WRITE",
        without: "A process of the same user could map a server's rows for writing.",
        verdict: Verdict::Warn,
    },
    Facility {
        since: (5, 14),
        name: "MADV_POPULATE_WRITE",
        without: "Pages cannot be made present ahead: appliers wait for them when tables grow.",
        verdict: Verdict::Warn,
    },
];
/// Default size of containers in bytes: too little for MPI.
const DEV_SHM_SMALL: u64 = 64 << 20;
/// Clocks that are read without a system call.
const CLOCKS_GOOD: [&str; 7] = [
    "tsc",
    "kvm-clock",
    "hyperv_clocksource_tsc_page",
    "arch_sys_counter",
    "timebase",
    "tod",
    "riscv_clocksource",
];
/// Files of a server without clients: listening sockets, memories, wakers.
const FILES_BASE: u64 = 64;
/// Files of a client thread in addition to its lanes: connection, inbox, mailbox, waker.
const FILES_CLIENT: u64 = 4;
/// Limit of open files below which a shell and its tools run short.
const FILES_LOW: u64 = 1024;

pub(super) fn checks(machine: &Machine, question: &Question, chosen: &Chosen) -> Vec<Check> {
    vec![
        hugepages(machine, chosen),
        dev_shm(machine),
        loopback(machine),
        kernel(machine),
        cores(machine, question, chosen),
        numa(machine, chosen),
        clock(machine),
        open_files(machine, question, chosen),
    ]
}

fn hugepages(machine: &Machine, chosen: &Chosen) -> Check {
    const NAME: &str = "hugepages";
    let (shortfall, verdict, means) = match (chosen.refused, chosen.pages) {
        (Some(shortfall), _) => (
            shortfall,
            Verdict::Fail,
            "A server that requires them does not start.",
        ),
        (None, Some(choice)) => match choice.shortfall {
            Some(shortfall) => (
                shortfall,
                Verdict::Warn,
                "Ordinary pages: rows at random places miss the TLB more often.",
            ),
            None if choice.pages == Pages::Ordinary => return Check::ok(NAME, "not wanted"),
            None => {
                let found = format!("{} pages for both memories", choice.pages.name());
                return Check::ok(NAME, found);
            }
        },
        (None, None) => return Check::ok(NAME, "not asked for"),
    };
    let page = size(shortfall.page_bytes);
    let (needed, available) = (shortfall.needed, shortfall.available);
    let found = format!("{available} of {page}, and --capacity twice takes {needed}");
    let memory: u64 = machine
        .topology
        .nodes
        .iter()
        .map(|node| node.memory_bytes)
        .sum();
    let wanted = needed.saturating_mul(shortfall.page_bytes);
    let less = match wanted > memory {
        true => format!(
            "lower --capacity to what the model needs: {} are more than there is",
            size(wanted)
        ),
        false => "lower --capacity to what the model needs".to_owned(),
    };
    let command = match shortfall.pool {
        Some(_) if wanted > memory => String::new(),
        Some(_) => shortfall.command(),
        None => "this kernel has none: boot with hugepagesz=1G hugepages=N".to_owned(),
    };
    let remedies: Vec<&str> = [less.as_str(), &command, "--hugepages off"]
        .into_iter()
        .filter(|remedy| !remedy.is_empty())
        .collect();
    Check::bad((NAME, verdict), found, means, &remedies)
}

fn dev_shm(machine: &Machine) -> Check {
    const NAME: &str = "dev-shm";
    let means = "Tidewater does without it, but MPI libraries of the same job do not.";
    let found = match machine.dev_shm {
        Some(0) => return Check::ok(NAME, "mounted"),
        Some(bytes) if bytes > DEV_SHM_SMALL => return Check::ok(NAME, size(bytes)),
        Some(bytes) => size(bytes),
        None => "not mounted".into(),
    };
    let remedies = [
        "mount -o remount,size=50% /dev/shm",
        "for a container: --shm-size=8g, or --ipc=host",
    ];
    Check::bad((NAME, Verdict::Warn), found, means, &remedies)
}

fn loopback(machine: &Machine) -> Check {
    const NAME: &str = "tcp-loopback";
    let remedies = [
        "ip link set lo up",
        "look for packet filters: nft list ruleset",
    ];
    let means = "Nothing on this host can talk to a server or coordinator that listens there.";
    let mut nets = machine.topology.nets.iter();
    let found = match (&machine.loopback_error, nets.find(|net| net.name == "lo")) {
        (Some(error), _) => format!("127.0.0.1: {error}"),
        (None, None) => "there is no device lo".into(),
        (None, Some(lo)) if !lo.up => "lo is down".into(),
        (None, Some(_)) => return Check::ok(NAME, "works"),
    };
    Check::bad((NAME, Verdict::Fail), found, means, &remedies)
}

fn kernel(machine: &Machine) -> Check {
    const NAME: &str = "kernel";
    let found = match machine.kernel.as_str() {
        "" => "not known".to_owned(),
        release => format!("Linux {release}"),
    };
    let since = FACILITIES.map(|facility| facility.since);
    let (major, minor) = since.into_iter().max().unwrap_or_default();
    let remedy = format!("use Linux {major}.{minor} or later");
    let Some(version) = machine.kernel_version() else {
        let means = "/proc/sys/kernel/osrelease cannot be read.";
        return Check::bad((NAME, Verdict::Warn), found, means, &[&remedy]);
    };
    let missing = || {
        FACILITIES
            .iter()
            .filter(|facility| version < facility.since)
    };
    let names: Vec<&str> = missing().map(|facility| facility.name).collect();
    let Some(verdict) = missing().map(|facility| facility.verdict).max() else {
        return Check::ok(NAME, found);
    };
    let means: Vec<&str> = missing().map(|facility| facility.without).collect();
    let found = format!("{found} lacks {}", names.join(", "));
    Check::bad((NAME, verdict), found, means.join(" "), &[&remedy])
}

fn cores(machine: &Machine, question: &Question, chosen: &Chosen) -> Check {
    const NAME: &str = "cores";
    let usable = machine.topology.usable();
    let (servers, clients) = (u64::from(question.servers), u64::from(question.clients));
    let appliers = u64::from(chosen.appliers) * servers;
    let mut found = format!("usable {usable}, appliers {appliers}, clients {clients}");
    if let Some(quota) = machine.topology.quota {
        found = format!("{found} (cgroup grants {quota:.1})");
    }
    let Some(first) = chosen.servers.first() else {
        return Check::ok(NAME, found);
    };
    let (verdict, means) = match (first.cpus_why, first.room) {
        (CoresWhy::Unknown, _) => (
            Verdict::Fail,
            "It is not known on which cores this process may run; no thread is pinned.",
        ),
        (CoresWhy::TooFew, _) => (
            Verdict::Warn,
            "More appliers than cores: no thread is pinned, and a waiting thread sleeps at once.",
        ),
        (_, Room::Crowded) => (
            Verdict::Warn,
            "More threads than cores: a waiting thread sleeps at once, so each answer costs a wake-up.",
        ),
        _ => return Check::ok(NAME, found),
    };
    let remedy = match verdict {
        Verdict::Fail => "mount /proc and /sys",
        _ => "fewer --appliers or clients; or more cores: see the job's cpuset and CPU limit",
    };
    Check::bad((NAME, verdict), found, means, &[remedy])
}

fn numa(machine: &Machine, chosen: &Chosen) -> Check {
    const NAME: &str = "numa";
    let Some(first) = chosen.servers.first() else {
        return Check::ok(NAME, "no server");
    };
    let cpus = match first.cpus.is_empty() {
        true => "nowhere in particular".to_owned(),
        false => format!("on {}", format_list(&first.cpus)),
    };
    let memory = match first.node {
        Some(node) => format!("node {node}, because {}", first.node_why),
        None => first.node_why.to_string(),
    };
    let found = format!("appliers {cpus}; memory: {memory}");
    let of = |id: &u32| machine.topology.cpus.iter().find(|cpu| cpu.id == *id);
    let near = |cpu: &u32| of(cpu).is_some_and(|cpu| Some(cpu.node) == chosen.near.node);
    let far = chosen.near.node.is_some() && !first.cpus.iter().all(near);
    if !far && !matches!(first.node_why, NodeWhy::Forbidden(_)) {
        return Check::ok(NAME, found);
    }
    Check::bad(
        (NAME, Verdict::Warn),
        found,
        "Rows cross from one node to another between the NIC, memory and appliers.",
        &[
            "take cores and memory of the NIC's node into the job's cpuset",
            "give the server a NIC on a node that it may use: --nic NAME",
        ],
    )
}

fn clock(machine: &Machine) -> Check {
    const NAME: &str = "clock-source";
    let clock = &machine.clock;
    if CLOCKS_GOOD.contains(&clock.current.as_str()) {
        return Check::ok(NAME, &clock.current);
    }
    let (found, means) = match clock.current.as_str() {
        "" => ("not known".to_owned(), "/sys has no clocksource0."),
        slow => (
            slow.to_owned(),
            "Each look at the clock is a system call, and every wait looks at it.",
        ),
    };
    let better = clock
        .available
        .iter()
        .find(|c| CLOCKS_GOOD.contains(&c.as_str()));
    let remedy = match better {
        Some(better) => format!("boot with clocksource={better}"),
        None => "see why the kernel does not trust the TSC: dmesg | grep -i tsc".into(),
    };
    Check::bad((NAME, Verdict::Warn), found, means, &[&remedy])
}

fn open_files(machine: &Machine, question: &Question, chosen: &Chosen) -> Check {
    const NAME: &str = "open-files";
    let lanes = u64::from(question.clients) * (FILES_CLIENT + u64::from(chosen.appliers));
    let needed = FILES_BASE + lanes;
    let limit = match machine.open_files {
        Limit::Unlimited => return Check::ok(NAME, "unlimited"),
        Limit::At(limit) => limit,
        Limit::Unknown => {
            let means = "/proc/self/limits cannot be read.";
            return Check::bad((NAME, Verdict::Warn), "not known", means, &["mount /proc"]);
        }
    };
    let found = format!(
        "{limit}; a server with {} clients opens {needed}",
        question.clients
    );
    let verdict = match limit {
        _ if limit < needed => Verdict::Fail,
        _ if limit < FILES_LOW => Verdict::Warn,
        _ => return Check::ok(NAME, found),
    };
    let means = match verdict {
        Verdict::Fail => "Clients beyond the limit cannot attach.",
        _ => "Enough for this many clients, and not for many more.",
    };
    let remedies = [
        &format!("ulimit -n {}", needed.next_power_of_two().max(4096)),
        "for all users: `* - nofile 65536` in /etc/security/limits.conf",
    ];
    Check::bad((NAME, verdict), found, means, &remedies)
}
