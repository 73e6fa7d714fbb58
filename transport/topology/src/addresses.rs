//! IP addresses of network devices, from the tables of `/proc/net`.
//!
//! The kernel lists IPv6 addresses with their device. It lists its own IPv4 addresses without one, so the
//! device is that of the most precise route to a neighbour.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use super::sysfs::{Root, inet6_address, route_address};
use tidewater_protocol::limits::SYSFS_ENTRIES_MAX;

/// Prefix bits of 127.0.0.0/8.
const LOOPBACK_BITS: u32 = 8;

/// An address of this machine.
#[derive(Debug)]
pub(super) struct OwnAddress {
    pub(super) address: IpAddr,
    pub(super) device: String,
    /// Bits of the prefix of its subnet.
    pub(super) subnet_bits: u8,
}

/// Addresses of this machine, each with its device and subnet.
pub(super) fn addresses(root: &Root) -> Vec<OwnAddress> {
    let mut all = Vec::new();
    let routes = routes(&root.text("proc/net/route").unwrap_or_default());
    for address in own(&root.text("proc/net/fib_trie").unwrap_or_default()) {
        let near = routes.iter().filter(|route| route.holds(address));
        let (device, bits) = match near.max_by_key(|route| route.mask) {
            Some(route) => (route.device.clone(), route.mask.count_ones()),
            None if address.is_loopback() => ("lo".into(), LOOPBACK_BITS),
            None => continue,
        };
        all.push(OwnAddress {
            address: IpAddr::V4(address),
            device,
            subnet_bits: bits as u8,
        });
    }
    let inet6 = root.text("proc/net/if_inet6").unwrap_or_default();
    let line = |line: &str| {
        let mut words = line.split_whitespace();
        let address = inet6_address(words.next()?)?;
        // The number of the device, then the prefix.
        let bits = u8::from_str_radix(words.nth(1)?, 16).ok();
        Some(OwnAddress {
            address: IpAddr::V6(address),
            device: words.last()?.to_owned(),
            subnet_bits: bits.filter(|&bits| bits <= 128)?,
        })
    };
    all.extend(inet6.lines().filter_map(line).take(SYSFS_ENTRIES_MAX));
    all
}

/// The machine's own IPv4 addresses.
fn own(fib_trie: &str) -> BTreeSet<Ipv4Addr> {
    let (mut own, mut last) = (BTreeSet::new(), None::<Ipv4Addr>);
    for line in fib_trie.lines() {
        if let Some((_, address)) = line.split_once("|-- ") {
            last = address.trim().parse().ok();
        } else if line.contains("/32 host LOCAL") && own.len() < SYSFS_ENTRIES_MAX {
            own.extend(last);
        }
    }
    own
}

#[derive(Debug)]
struct Route {
    device: String,
    network: u32,
    mask: u32,
}

impl Route {
    fn holds(&self, address: Ipv4Addr) -> bool {
        address.to_bits() & self.mask == self.network
    }
}

/// Routes to neighbours, that is, without a gateway.
fn routes(table: &str) -> Vec<Route> {
    let route = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [device, network, gateway, _, _, _, _, mask, ..] = words[..] else {
            return None;
        };
        let (network, mask) = (route_address(network)?, route_address(mask)?);
        let direct = route_address(gateway)?.is_unspecified() && !mask.is_unspecified();
        direct.then(|| Route {
            device: device.to_owned(),
            network: network.to_bits(),
            mask: mask.to_bits(),
        })
    };
    let lines = table.lines().skip(1).filter_map(route);
    lines.take(SYSFS_ENTRIES_MAX).collect()
}
