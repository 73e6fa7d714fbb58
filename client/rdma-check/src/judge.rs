//! Verdicts on the facts of both ends: pure functions, so that each fault is tested without a device.

use tidewater_protocol::mutants::{self, Mutant};

use crate::facts::{DeviceFacts, HostFacts, is_loopback};
use crate::finding::{Finding, Verdict};

/// Bit of a partition key that marks a full member.
const FULL_MEMBER: u16 = 0x8000;
/// Payload bytes of a packet below which long messages waste packets.
const MTU_LEAST: u16 = 1024;

/// Judges the facts of both ends. After a failure no lane can be opened.
pub(crate) fn hosts(listener: &HostFacts, caller: &HostFacts) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (end, facts) in [("listener", listener), ("caller", caller)] {
        findings.push(device(end, facts));
        let faults = facts.doctor.iter().filter(|f| f.verdict >= Verdict::Change);
        for fault in faults {
            let mut finding = fault.clone();
            finding.check = format!("{} of the {end}", fault.check);
            // The device can be used: what remains is a limit or a loss of speed.
            if facts.device.is_some() && fault.check != "memlock" {
                finding.verdict = Verdict::Change;
            }
            findings.push(finding);
        }
    }
    if listener.version != caller.version {
        let found = format!("{} and {}", listener.version, caller.version);
        let finding = Finding::new("versions", Verdict::Change, found);
        findings.push(finding.change("install the same version of tidewater on both nodes"));
    }
    if let (Some(a), Some(b)) = (&listener.device, &caller.device) {
        findings.extend([link(a, b), mtu(a, b), partition(a, b), capabilities(a, b)]);
    }
    findings
}

fn device(end: &str, facts: &HostFacts) -> Finding {
    let check = format!("device of the {end}");
    match (&facts.device, &facts.device_error) {
        (Some(device), _) => {
            let found = format!(
                "{}:{} {}, {}",
                device.name, device.port, device.gid, device.rate
            );
            Finding::new(&check, Verdict::Pass, found)
        }
        (None, error) => {
            let why = error.as_deref().unwrap_or("it gives no reason");
            let mut finding = Finding::new(&check, Verdict::Fail, format!("{}: {why}", facts.host));
            if is_loopback(facts.address) {
                finding = finding.change(
                    "check two nodes: use their addresses on the RDMA network instead of this host's loopback",
                );
            }
            finding.change(format!(
                "run on {}: tidewater doctor --rdma --listen {}",
                facts.host, facts.address
            ))
        }
    }
}

fn link(a: &DeviceFacts, b: &DeviceFacts) -> Finding {
    let found = format!("{} and {}", a.link, b.link);
    if a.link != b.link {
        return Finding::new("link", Verdict::Fail, found)
            .change("name devices of one network at both ends: --rdma-device NAME:PORT");
    }
    // An InfiniBand subnet has one prefix: the first half of a GID.
    let prefix = |facts: &DeviceFacts| facts.gid.split(':').take(4).collect::<Vec<_>>().join(":");
    if a.link == "InfiniBand" && prefix(a) != prefix(b) {
        let found = format!("subnets {} and {}", prefix(a), prefix(b));
        return Finding::new("link", Verdict::Change, found).change(
            "name ports of one InfiniBand subnet, or make sure that a router connects both",
        );
    }
    if a.rate != b.rate && !a.rate.is_empty() && !b.rate.is_empty() {
        let found = format!("{} at the listener, {} at the caller", a.rate, b.rate);
        return Finding::new("link", Verdict::Change, found).change(
            "the slower end limits both: look at cable, port speed, and the choice of the device",
        );
    }
    Finding::new("link", Verdict::Pass, format!("{}, {}", a.link, a.rate))
}

fn mtu(a: &DeviceFacts, b: &DeviceFacts) -> Finding {
    let least = a.mtu.min(b.mtu);
    let finding = |verdict, found: String| {
        Finding::new("MTU", verdict, found).figure("mtu_bytes", f64::from(least))
    };
    if a.mtu != b.mtu {
        let smaller = if a.mtu < b.mtu {
            ("listener", a)
        } else {
            ("caller", b)
        };
        let found = format!(
            "MTU mismatch: packets of {} bytes at the listener, {} at the caller; {least} is used",
            a.mtu, b.mtu
        );
        return finding(Verdict::Change, found).change(format!(
            "set one MTU at both ends and on all switches between: on the {}, ip link set {} mtu 4200 (or 9000)",
            smaller.0,
            netdev(smaller.1)
        ));
    }
    if least < MTU_LEAST {
        let found = format!("packets of {least} bytes");
        return finding(Verdict::Change, found).change(format!(
            "ip link set {} mtu 4200 (or 9000), at both ends",
            netdev(a)
        ));
    }
    finding(
        Verdict::Pass,
        format!("packets of {least} bytes at both ends"),
    )
}

fn netdev(facts: &DeviceFacts) -> &str {
    match facts.netdev.as_str() {
        "" => "NETDEV",
        name => name,
    }
}

fn partition(a: &DeviceFacts, b: &DeviceFacts) -> Finding {
    let list = |facts: &DeviceFacts| {
        let keys: Vec<String> = facts
            .pkeys
            .iter()
            .map(|key| format!("{key:#06x}"))
            .collect();
        keys.join(" ")
    };
    if a.pkeys.is_empty() || b.pkeys.is_empty() {
        let found = "a port has no readable table of partition keys";
        return Finding::new("P_Key", Verdict::Skipped, found);
    }
    // Two limited members of a partition do not exchange packets.
    let is_talking = |both: u16| both & FULL_MEMBER != 0 || mutants::on(Mutant::LimitedMembersPass);
    let number = |key: u16| key & !FULL_MEMBER;
    let pair = |x: &u16, y: &u16| number(*x) == number(*y) && is_talking(*x | *y);
    let common = a.pkeys.iter().find(|x| b.pkeys.iter().any(|y| pair(x, y)));
    match common {
        Some(key) => Finding::new(
            "P_Key",
            Verdict::Pass,
            format!("both ports are in {key:#06x}"),
        ),
        None => {
            let found = format!(
                "P_Key mismatch: {} at the listener, {} at the caller have no partition in common, or two \
                 limited members of one",
                list(a),
                list(b)
            );
            Finding::new("P_Key", Verdict::Fail, found).change(
                "make both ports members of one partition, at least one of them a full member (0x8000): \
                 partitions.conf of the subnet manager",
            )
        }
    }
}

fn capabilities(a: &DeviceFacts, b: &DeviceFacts) -> Finding {
    let (mut found, mut change) = (Vec::new(), Vec::new());
    for (end, facts) in [("listener", a), ("caller", b)] {
        if let Some(error) = &facts.limits_error {
            found.push(format!(
                "the {end}'s device refuses a lane within its host: {error}"
            ));
            change.push(
                "a limit of locked memory shows here first: ulimit -l unlimited, or `* - memlock unlimited` in \
                 /etc/security/limits.conf",
            );
        }
    }
    if !change.is_empty() {
        let mut finding = Finding::new("capabilities", Verdict::Fail, found.join("; "));
        finding.change = change.into_iter().map(str::to_owned).collect();
        finding.change.dedup();
        return finding;
    }
    for (end, facts) in [("listener", a), ("caller", b)] {
        let has = |is: bool, name: &str| {
            if is {
                name.to_owned()
            } else {
                format!("no {name}")
            }
        };
        found.push(format!(
            "{end}: {}, {}, {}, {} inline bytes, max_sge_rd {}, max_mr_size {}, {} READs in flight, {} \
             completion vectors, {}",
            has(facts.atomics, "64-bit atomics"),
            has(facts.windows, "windows of type 2"),
            has(facts.relaxed_ordering, "relaxed ordering"),
            facts.inline_bytes,
            facts.read_elements,
            facts.region_bytes,
            facts.reads_out.min(facts.reads),
            facts.vectors,
            has(facts.ece, "ECE"),
        ));
    }
    Finding::new("capabilities", Verdict::Pass, found.join("; "))
}

/// Our figure and the reference of perftest.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Compared<'a> {
    pub(crate) check: &'a str,
    pub(crate) unit: &'a str,
    pub(crate) ours: f64,
    pub(crate) reference: Result<f64, &'a str>,
    /// Largest ratio of ours to the reference that passes, or the smallest if more is better.
    pub(crate) limit: f64,
    pub(crate) more_is_better: bool,
}

/// Judges a figure by its ratio to the reference.
pub(crate) fn speed(compared: Compared<'_>) -> Finding {
    let Compared {
        check,
        unit,
        ours,
        reference,
        limit,
        more_is_better,
    } = compared;
    let finding = |verdict, found: String| {
        Finding::new(check, verdict, found).figure(&format!("ours_{unit}"), ours)
    };
    let reference = match reference {
        Err(why) => {
            return finding(
                Verdict::Pass,
                format!("{ours:.1} {unit}; not compared: {why}"),
            );
        }
        Ok(reference) => reference,
    };
    let ratio = ours / reference;
    let found = format!("{ours:.1} {unit}, perftest {reference:.1} {unit}: ratio {ratio:.2}");
    let good = if more_is_better {
        ratio >= limit
    } else {
        ratio <= limit
    };
    let verdict = if good { Verdict::Pass } else { Verdict::Change };
    let finding = finding(verdict, found)
        .figure(&format!("perftest_{unit}"), reference)
        .figure("ratio", ratio);
    match good {
        true => finding,
        false => finding.change(format!(
            "expected a ratio of {} {limit}: look at busy cores, the governor of frequencies and the NUMA node of \
             the device (tidewater info)",
            if more_is_better { "at least" } else { "at most" }
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> HostFacts {
        HostFacts {
            host: "n".to_owned(),
            kernel: "6.1".to_owned(),
            version: "1".to_owned(),
            address: [10, 0, 0, 1].into(),
            device: Some(DeviceFacts {
                name: "mlx5_0".to_owned(),
                port: 1,
                link: "Ethernet".to_owned(),
                gid: "::ffff:10.0.0.1".to_owned(),
                mtu: 4096,
                rate: "100 Gb/sec (4X EDR)".to_owned(),
                pkeys: vec![0xffff],
                netdev: "ens1".to_owned(),
                ..DeviceFacts::default()
            }),
            device_error: None,
            available_bytes: None,
            perftest: Vec::new(),
            doctor: Vec::new(),
        }
    }

    fn find<'a>(findings: &'a [Finding], check: &str) -> &'a Finding {
        let found = findings.iter().find(|f| f.check == check);
        found.unwrap_or_else(|| panic!("no {check} in {findings:?}"))
    }

    fn caller(change: impl FnOnce(&mut HostFacts, &mut DeviceFacts)) -> HostFacts {
        let mut host = facts();
        let mut device = host.device.take().unwrap();
        change(&mut host, &mut device);
        host.device = Some(device);
        host
    }

    #[test]
    fn sound_hosts_pass() {
        let findings = hosts(&facts(), &facts());
        let bad: Vec<_> = findings
            .iter()
            .filter(|f| f.verdict != Verdict::Pass)
            .collect();
        assert!(bad.is_empty(), "{bad:?}");
    }

    #[test]
    fn each_fault_of_a_pair_is_named() {
        let judged = |host: HostFacts| hosts(&facts(), &host);
        let mtu = judged(caller(|_, d| d.mtu = 1024));
        let mtu = find(&mtu, "MTU");
        assert_eq!(mtu.verdict, Verdict::Change);
        assert!(
            mtu.found.contains("MTU mismatch") && mtu.change[0].contains("ens1"),
            "{mtu:?}"
        );

        let pkey = judged(caller(|_, d| d.pkeys = vec![0x8001]));
        let pkey = find(&pkey, "P_Key");
        assert_eq!(pkey.verdict, Verdict::Fail);
        assert!(
            pkey.found.contains("P_Key mismatch") && pkey.found.contains("0x8001"),
            "{pkey:?}"
        );
        let mut limited = facts();
        limited.device.as_mut().unwrap().pkeys = vec![0x7fff];
        assert_eq!(
            find(&hosts(&limited, &limited), "P_Key").verdict,
            Verdict::Fail
        );
        assert_eq!(
            find(&hosts(&limited, &facts()), "P_Key").verdict,
            Verdict::Pass
        );

        let link = judged(caller(|_, d| d.link = "InfiniBand".to_owned()));
        assert_eq!(find(&link, "link").verdict, Verdict::Fail);
        let rate = judged(caller(|_, d| d.rate = "25 Gb/sec".to_owned()));
        assert_eq!(find(&rate, "link").verdict, Verdict::Change);

        let locked = judged(caller(|h, _| {
            let finding = Finding::new("memlock", Verdict::Fail, "64 KiB");
            h.doctor = vec![finding.change("ulimit -l unlimited")];
        }));
        let locked = find(&locked, "memlock of the caller");
        assert_eq!(locked.verdict, Verdict::Fail);
        assert!(locked.change[0].contains("ulimit -l"), "{locked:?}");
    }

    #[test]
    fn a_host_without_a_device_fails_with_its_reason() {
        let mut host = facts();
        host.device = None;
        host.device_error = Some("no uverbs files".to_owned());
        let findings = hosts(&facts(), &host);
        let device = find(&findings, "device of the caller");
        assert_eq!(device.verdict, Verdict::Fail);
        assert!(device.found.contains("no uverbs files"), "{device:?}");
        host.address = [127, 0, 0, 1].into();
        let findings = hosts(&host, &facts());
        assert!(find(&findings, "device of the listener").change[0].contains("two nodes"));
    }

    #[test]
    fn ratios_beyond_their_limit_are_to_be_changed() {
        let of = |ours, reference, more_is_better| {
            let (check, unit, limit) = ("pull", "us", if more_is_better { 0.85 } else { 1.5 });
            speed(Compared {
                check,
                unit,
                ours,
                reference,
                limit,
                more_is_better,
            })
        };
        assert_eq!(of(3.0, Ok(2.0), false).verdict, Verdict::Pass);
        assert_eq!(of(3.1, Ok(2.0), false).verdict, Verdict::Change);
        assert_eq!(of(8.5, Ok(10.0), true).verdict, Verdict::Pass);
        assert_eq!(of(8.0, Ok(10.0), true).verdict, Verdict::Change);
        let alone = of(8.0, Err("perftest is not installed"), true);
        assert!(alone.found.contains("not installed"), "{alone:?}");
    }
}
