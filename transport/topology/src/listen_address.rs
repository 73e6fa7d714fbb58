//! The address that a process listens on: that of a named interface, or one that other hosts reach.

use std::cmp::Reverse;
use std::net::IpAddr;

use super::Topology;

/// A named network interface is absent or has no address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("--interface {name}: no such interface, or it has no address; there are: {have}")]
pub struct NoInterface {
    /// The name as given.
    pub name: String,
    /// Names of the interfaces that have an address.
    pub have: String,
}

/// Addresses of this host that other hosts may reach, those of hardware NICs first: container bridges have
/// addresses that other hosts cannot reach.
pub fn routable_addresses() -> Vec<IpAddr> {
    let mut nets = Topology::read().nets;
    nets.retain(|net| net.up);
    nets.sort_by_key(|net| (!net.hardware, Reverse(net.speed_mbps)));
    let addresses = nets.iter().flat_map(|net| net.addresses.iter().copied());
    addresses.filter(is_routable).collect()
}

/// Whether hosts other than this one, and other than the neighbours on one cable, may use `ip`.
fn is_routable(ip: &IpAddr) -> bool {
    let is_local = match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    !is_local && !ip.is_loopback() && !ip.is_unspecified()
}

/// The address of the network interface `name`, IPv4 before IPv6.
///
/// # Errors
/// The interface is absent or has no address that can be listened on.
pub fn interface_address(name: &str) -> Result<IpAddr, NoInterface> {
    let nets = Topology::read().nets;
    let net = nets.iter().find(|net| net.name == name);
    let usable = |ip: &&IpAddr| is_routable(ip) || ip.is_loopback();
    let found = net.and_then(|net| net.addresses.iter().filter(usable).min());
    found.copied().ok_or_else(|| {
        let have = nets.iter().filter(|net| !net.addresses.is_empty());
        let have: Vec<&str> = have.map(|net| net.name.as_str()).collect();
        NoInterface {
            name: name.to_owned(),
            have: have.join(", "),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_interface_lists_known_ones() {
        assert!(interface_address("lo").unwrap().is_loopback());
        let error = interface_address("no0").unwrap_err().to_string();
        assert!(error.contains("no0") && error.contains("lo"), "{error}");
    }
}
