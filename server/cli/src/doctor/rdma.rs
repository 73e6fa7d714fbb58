//! Checks of RDMA. Where there is no device, one line reports that and the other checks are silent.
//! Where RDMA is optional, no check fails, because TCP does instead.

use tidewater_launch::RdmaDevice;
use tidewater_topology::{
    GidIndex, PKey, PortCandidate, PortState, PortWish, RdmaPort, roce_mtu_of,
};

use super::checks::{Check, Verdict};
use super::text::size;
use super::{Limit, Machine, Question, fabric};

/// Packet payload in bytes that wastes least on headers.
const MTU_BEST: u32 = 4096;
/// Lockable bytes below which not even the rings of a few clients can be registered.
const MEMLOCK_LEAST: u64 = 64 << 20;

/// A device and one of its ports.
type DevicePort<'a> = (&'a tidewater_topology::RdmaDevice, &'a RdmaPort);

pub(super) fn checks(machine: &Machine, question: &Question) -> Vec<Check> {
    let mut checks = vec![device(machine)];
    let rdmas = &machine.topology.rdmas;
    if !rdmas.is_empty() {
        let ports = || {
            rdmas
                .iter()
                .flat_map(|rdma| rdma.ports.iter().map(move |p| (rdma, p)))
        };
        let active = || ports().filter(|(_, port)| port.state == PortState::Active);
        let all: Vec<DevicePort<'_>> = ports().collect();
        let active: Vec<DevicePort<'_>> = active().collect();
        checks.extend([access(machine), link(&all, &active)]);
        if !active.is_empty() {
            checks.extend([port(machine, question), mtu(machine, &active)]);
            checks.push(fabric::settings(machine, question, &active));
        }
    }
    checks.push(memlock(machine, question));
    for check in &mut checks {
        if !question.rdma {
            check.verdict = check.verdict.min(Verdict::Warn);
        }
    }
    checks
}

fn device(machine: &Machine) -> Check {
    const NAME: &str = "rdma-device";
    let rdmas = &machine.topology.rdmas;
    if rdmas.is_empty() {
        return Check::bad(
            (NAME, Verdict::Fail),
            "none",
            "Hosts reach each other by TCP only, which costs more time.",
            &[
                "with an RDMA NIC: load its driver (mlx5_ib, irdma, ...)",
                "in a container: add --device /dev/infiniband",
                "without one: rdma link add rxe0 type rxe netdev NETDEV (modprobe rdma_rxe)",
            ],
        );
    }
    let one = |rdma: &tidewater_topology::RdmaDevice| match &rdma.firmware {
        Some(firmware) => format!("{} (firmware {firmware})", rdma.name),
        None => rdma.name.clone(),
    };
    Check::ok(NAME, list(rdmas.iter().map(one)))
}

fn access(machine: &Machine) -> Check {
    const NAME: &str = "rdma-access";
    if machine.rdma_denied.is_empty() {
        return Check::ok(NAME, "each device can be opened");
    }
    let denied = machine.rdma_denied.iter();
    // A container may be given some of the devices.
    let verdict = match machine.rdma_denied.len() < machine.topology.rdmas.len() {
        true => Verdict::Warn,
        false => Verdict::Fail,
    };
    Check::bad(
        (NAME, verdict),
        list(denied.map(|(name, why)| format!("{name}: {why}"))),
        "This process cannot use it.",
        &[
            "modprobe ib_uverbs",
            "give users the right by udev: KERNEL==\"uverbs*\", MODE=\"0666\"",
            "in a container: add --device /dev/infiniband",
        ],
    )
}

fn link(all: &[DevicePort<'_>], active: &[DevicePort<'_>]) -> Check {
    const NAME: &str = "rdma-link";
    let state = |(rdma, port): &DevicePort<'_>| {
        let (name, number, physical) = (&rdma.name, port.number, &port.physical);
        match port.state {
            PortState::Active => format!("{name}:{number} active, {}", port.rate),
            state => format!("{name}:{number} {state:?} ({physical})"),
        }
    };
    let found = list(all.iter().map(state));
    let init = all.iter().any(|(_, port)| port.state == PortState::Init);
    let remedy = match init {
        true => "Init waits for a subnet manager: start opensm on one host, or on the switch",
        false => "plug in the cable, and bring the network device up: ip link set NETDEV up",
    };
    if active.is_empty() {
        let means = "No port carries data: RDMA cannot be used.";
        return Check::bad((NAME, Verdict::Fail), found, means, &[remedy]);
    }
    if active.len() < all.len() {
        let means = "Some ports carry no data.";
        return Check::bad((NAME, Verdict::Warn), found, means, &[remedy]);
    }
    Check::ok(NAME, found)
}

/// The ports that servers would use, the best first.
fn port(machine: &Machine, question: &Question) -> Check {
    const NAME: &str = "rdma-port";
    let control = question
        .listens
        .filter(|ip| !ip.is_unspecified() && !ip.is_loopback());
    let of_rank = |local_rank| {
        machine.topology.rdma_ports(&PortWish {
            control,
            names: question.rdma_device.as_ref().map(RdmaDevice::names),
            pkey: question.fabric.pkey.map(PKey::get),
            gid_index: question.fabric.gid_index.map(GidIndex::get),
            local_rank,
        })
    };
    let ranked = of_rank(0);
    let reasons = match ranked.skipped.is_empty() {
        true => String::new(),
        false => format!("; not used: {}", ranked.reasons()),
    };
    if ranked.candidates.is_empty() {
        return Check::bad(
            (NAME, Verdict::Fail),
            format!("none{reasons}"),
            "No connection can use RDMA.",
            &[
                "on RoCE, peers reach a port by the GID of its IP address: ip addr add ADDRESS/24 dev NETDEV",
                "if it has one: the NIC has RoCE v2 switched off (see cma_roce_mode)",
                "name ports that exist: --rdma-device DEVICE:PORT",
            ],
        );
    }
    let firsts = (0..question.servers).map(|rank| match rank {
        0 => ranked.candidates.first().map(ToString::to_string),
        _ => of_rank(rank).candidates.first().map(PortCandidate::name),
    });
    let firsts: Vec<String> = firsts.flatten().collect();
    let found = match &firsts[..] {
        [only] if ranked.candidates.len() == 1 => format!("{only}{reasons}"),
        [only] => format!("{only}, of {}{reasons}", ranked.summary()),
        several => format!(
            "for each server: {}{reasons}",
            list(several.iter().cloned())
        ),
    };
    if ranked.warnings.is_empty() && ranked.unknown().is_none() {
        return Check::ok(NAME, found);
    }
    let remedies: Vec<&str> = ranked.warnings.iter().map(String::as_str).collect();
    let remedies = match remedies.is_empty() {
        true => vec!["name ports that exist: --rdma-device DEVICE:PORT"],
        false => remedies,
    };
    let means =
        "Connections may take longer to find a pair of ports, or not find the intended one.";
    Check::bad((NAME, Verdict::Warn), found, means, &remedies)
}

fn mtu(machine: &Machine, active: &[DevicePort<'_>]) -> Check {
    const NAME: &str = "rdma-mtu";
    let one = |(rdma, port): &DevicePort<'_>| {
        let name = format!("{}:{}", rdma.name, port.number);
        let mtu = port
            .mtu
            .map(|mtu| (mtu, port.netdev.clone().unwrap_or_default()));
        (name, mtu)
    };
    let all: Vec<_> = active.iter().map(one).collect();
    let low: Vec<_> = all
        .iter()
        .filter_map(|(name, mtu)| mtu.as_ref().filter(|m| m.0 < MTU_BEST).map(|m| (name, m)))
        .collect();
    if low.is_empty() {
        let known = all.iter().filter(|(_, mtu)| mtu.is_some()).count();
        return Check::ok(
            NAME,
            match known {
                0 => "not reported by the kernel; see ibv_devinfo".into(),
                _ => format!("{MTU_BEST}"),
            },
        );
    }
    let netdev = |name: &str| machine.topology.nets.iter().find(|net| net.name == name);
    let why = |(name, (mtu, net)): &(&String, &(u32, String))| {
        let of = netdev(net).map_or(0, |net| net.mtu);
        format!("{mtu} on {name}, because {net} has MTU {of}")
    };
    let nets = list(low.iter().map(|(_, (_, net))| net.clone()));
    debug_assert_eq!(roce_mtu_of(4200), Some(MTU_BEST));
    Check::bad(
        (NAME, Verdict::Warn),
        list(low.iter().map(why)),
        "Large pulls take more packets, each with its headers.",
        &[&format!(
            "ip link set {nets} mtu 4200 (or 9000), on both ends and the switches between"
        )],
    )
}

fn memlock(machine: &Machine, question: &Question) -> Check {
    const NAME: &str = "memlock";
    let wanted = question.rdma || !machine.topology.rdmas.is_empty();
    let limit = match machine.memlock {
        Limit::Unlimited => return Check::ok(NAME, "unlimited"),
        Limit::At(limit) if machine.ipc_lock => {
            return Check::ok(NAME, format!("{}, lifted by CAP_IPC_LOCK", size(limit)));
        }
        Limit::At(limit) if !wanted => {
            let found = format!("{}; enough without RDMA and --mlock", size(limit));
            return Check::ok(NAME, found);
        }
        Limit::At(limit) => Some(limit),
        Limit::Unknown => None,
    };
    let remedies = [
        "ulimit -l unlimited",
        "for all users: `* - memlock unlimited` in /etc/security/limits.conf",
        "for a service: LimitMEMLOCK=infinity; for a container: --ulimit memlock=-1",
        "for slurmd: PropagateResourceLimitsExcept=MEMLOCK",
    ];
    match limit {
        Some(limit) => {
            let verdict = match limit < MEMLOCK_LEAST {
                true => Verdict::Fail,
                false => Verdict::Warn,
            };
            Check::bad(
                (NAME, verdict),
                size(limit),
                "A NIC reads and writes locked memory only: tables beyond the limit cannot be \
                 registered.",
                &remedies,
            )
        }
        None => Check::bad(
            (NAME, Verdict::Warn),
            "not known",
            "/proc/self/limits cannot be read.",
            &["mount /proc"],
        ),
    }
}

/// Joins words with commas.
fn list(words: impl IntoIterator<Item = String>) -> String {
    words.into_iter().collect::<Vec<_>>().join(", ")
}
