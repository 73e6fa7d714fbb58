//! Set-ups of RDMA ports that work by chance, in words for operators.

use super::paths::is_prefix_equal;
use super::ports::PortCandidate;
use crate::devices::LinkLayer;

/// Subnet prefix of an InfiniBand fabric that has none of its own: `fe80::/64`.
const IB_PREFIX_DEFAULT: u64 = 0xfe80 << 48;
/// Most warnings of a host.
const WARNINGS_MAX: usize = 8;

/// Two fabrics under one name, and two ports in one IP subnet. `lid` returns the LID of a candidate.
pub(super) fn warnings(
    candidates: &[PortCandidate],
    lid: impl Fn(&PortCandidate) -> u16,
) -> Vec<String> {
    let mut warnings = Vec::new();
    for (n, one) in candidates.iter().enumerate() {
        for other in &candidates[..n] {
            if (&other.device, other.port) == (&one.device, one.port) || other.link != one.link {
                continue;
            }
            let names = [other.name(), one.name()].join(" and ");
            // A subnet has one master subnet manager, and each LID once.
            let is_two_fabrics = one.link == LinkLayer::InfiniBand
                && [one, other].map(prefix) == [IB_PREFIX_DEFAULT; 2]
                && (one.sm_lid != other.sm_lid || (lid(one) != 0 && lid(one) == lid(other)));
            if is_two_fabrics {
                warnings.push(format!(
                    "{names} are in two InfiniBand fabrics that both have the default prefix \
                     fe80::/64: give each fabric a prefix of its own (subnet_prefix of opensm), \
                     or name a port of one fabric for all processes"
                ));
            } else if one.link == LinkLayer::Ethernet && in_one_subnet(one, other) {
                warnings.push(format!(
                    "{names} are both in the subnet of {}: the kernel may answer ARP for one port \
                     on the other; set net.ipv4.conf.all.arp_ignore=1 and arp_announce=2, or give \
                     each port a subnet of its own",
                    one.gid.address()
                ));
            }
        }
    }
    warnings.truncate(WARNINGS_MAX);
    warnings
}

fn prefix(candidate: &PortCandidate) -> u64 {
    (candidate.gid.gid.to_bits() >> 64) as u64
}

/// Whether both have addresses in one IPv4 subnet; IPv6 has no ARP.
fn in_one_subnet(one: &PortCandidate, other: &PortCandidate) -> bool {
    let [a, b] = [one, other].map(|c| c.gid.gid);
    one.gid.address().is_ipv4() && is_prefix_equal(a, b, one.subnet_bits)
}
