//! Pairs of an RDMA port of each end, ranked.
//!
//! A pair that cannot carry packets is no pair: another link layer, address family, scope, or partition.
//! The others are ordered by
//!
//! 1. doubt: an InfiniBand pair of two subnets, or of one prefix under two subnet managers, comes last;
//! 2. the tiers of both ends, which are the orders of their users;
//! 3. the lower rate of both, the higher first;
//! 4. RoCE within one IP subnet before RoCE through routers;
//! 5. the order of the client, which holds NUMA distance and local rank;
//! 6. equal positions in both hosts, which lead to one switch where hosts are cabled alike;
//! 7. the order of the server.

use std::cmp::Reverse;
use std::net::{IpAddr, Ipv6Addr};

use tidewater_protocol::wire::control::{VerbsLink, VerbsPort};

use crate::devices::PKEY_NUMBER;

/// Indices of a pair of ports in the offers of both ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortPair {
    /// Index in the client's ports.
    pub client: usize,
    /// Index in the server's ports.
    pub server: usize,
}

/// How two ports reach each other, the best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Reach {
    /// They are in one subnet.
    Direct,
    /// IP routers connect their subnets.
    Routed,
    /// Their InfiniBand subnets may have no connection.
    Doubtful,
}

/// Pairs the ports of a client with those of a server, the pair to try first at the front. Both lists are in
/// the order of preference of their ends. Cost: all pairs are examined, at most 1,024.
pub fn rank_pairs(client: &[VerbsPort], server: &[VerbsPort]) -> Vec<PortPair> {
    let mut pairs = Vec::new();
    for (c, ours) in client.iter().enumerate() {
        for (s, theirs) in server.iter().enumerate() {
            if let Some(reach) = reach(ours, theirs) {
                let rate = ours.rate_mbps.min(theirs.rate_mbps);
                let key = (
                    reach == Reach::Doubtful,
                    [ours.tier, theirs.tier],
                    Reverse(rate),
                    reach,
                    c,
                    ours.position != theirs.position,
                    s,
                );
                pairs.push((
                    key,
                    PortPair {
                        client: c,
                        server: s,
                    },
                ));
            }
        }
    }
    pairs.sort_unstable_by_key(|(key, _)| *key);
    pairs.into_iter().map(|(_, pair)| pair).collect()
}

/// How `a` and `b` reach each other; `None` if they do not.
fn reach(a: &VerbsPort, b: &VerbsPort) -> Option<Reach> {
    match (a.link, b.link) {
        (VerbsLink::Ethernet, VerbsLink::Ethernet) => reach_of_roce(a, b),
        (VerbsLink::InfiniBand, VerbsLink::InfiniBand) => reach_of_infiniband(a, b),
        _ => None,
    }
}

fn reach_of_roce(a: &VerbsPort, b: &VerbsPort) -> Option<Reach> {
    let [x, y] = [a, b].map(|port| Ipv6Addr::from(port.gid));
    let scope = |gid: Ipv6Addr| {
        let address = gid.to_canonical();
        let is_v4 = address.is_ipv4();
        (is_v4, address.is_loopback(), gid.is_unicast_link_local())
    };
    if scope(x) != scope(y) {
        return None;
    }
    let is_local = IpAddr::V6(x).to_canonical().is_loopback() || x.is_unicast_link_local();
    let bits = a.subnet_bits.min(b.subnet_bits);
    if is_local || is_prefix_equal(x, y, bits) {
        return Some(Reach::Direct);
    }
    Some(Reach::Routed)
}

fn reach_of_infiniband(a: &VerbsPort, b: &VerbsPort) -> Option<Reach> {
    // Two limited members of a partition do not reach each other.
    let is_one_partition = (a.pkey ^ b.pkey) & PKEY_NUMBER == 0;
    if !is_one_partition || (a.pkey | b.pkey) & !PKEY_NUMBER == 0 {
        return None;
    }
    let is_one_subnet = a.gid[..8] == b.gid[..8];
    let is_one_manager = a.sm_lid == b.sm_lid || a.sm_lid == 0 || b.sm_lid == 0;
    if is_one_subnet && is_one_manager {
        return Some(Reach::Direct);
    }
    Some(Reach::Doubtful)
}

/// Whether two GIDs have the same prefix; `bits` counts those of the IP address, of 32 bits for an
/// IPv4-mapped GID.
pub(super) fn is_prefix_equal(a: Ipv6Addr, b: Ipv6Addr, bits: u8) -> bool {
    let is_v4 = a.to_ipv4_mapped().is_some();
    if is_v4 != b.to_ipv4_mapped().is_some() {
        return false;
    }
    let total = if is_v4 {
        96 + u32::from(bits.min(32))
    } else {
        u32::from(bits.min(128))
    };
    let differ = a.to_bits() ^ b.to_bits();
    differ.leading_zeros() >= total
}
