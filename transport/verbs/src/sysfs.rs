//! Reads RDMA devices from the kernel's files in `/sys/class/infiniband`: their ports, link layers, and
//! the table of GIDs, which are the addresses of a port.
//!
//! libibverbs 44 reads the same files, one system call more for each, and the plain bindings lack the
//! call. The root is a parameter, so that tests can provide their own tree. The files are small and the
//! kernel's; a missing or malformed file counts as an absent entry.

use std::fmt;
use std::fs;
use std::net::{IpAddr, Ipv6Addr};
use std::path::{Path, PathBuf};

/// The kernel's RDMA devices as a tree of files.
#[derive(Debug, Clone)]
pub struct Sysfs {
    root: PathBuf,
}

/// A port's address: 16 bytes, on RoCE v2 an IPv6 address (IPv4 as `::ffff:a.b.c.d`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
#[doc(alias = "ibv_gid")]
pub struct Gid(pub [u8; 16]);

/// Packet format of a GID.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GidKind {
    /// InfiniBand's own, or RoCE v1: an Ethernet frame that no router passes on.
    Native,
    /// RoCE v2: UDP over IP packets.
    RoceV2,
}

/// One entry of a port's GID table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GidEntry {
    /// Index of the entry, for queue pairs.
    pub index: u8,
    /// Address of the entry.
    pub gid: Gid,
    /// Packet format of the entry.
    pub kind: GidKind,
    /// Network interface of the address.
    pub netdev: Option<String>,
}

/// Link layer of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Link {
    /// RoCE: addressed by GID.
    Ethernet,
    /// InfiniBand: addressed by LID within a subnet.
    InfiniBand,
}

impl Sysfs {
    /// Returns the tree of this host.
    pub fn host() -> Self {
        Self::at("/sys/class/infiniband")
    }

    /// Returns a tree of the same form at `root`.
    pub fn at(root: impl AsRef<Path>) -> Self {
        Self {
            root: root.as_ref().to_owned(),
        }
    }

    /// Returns the names of the devices, sorted; none on a kernel without RDMA.
    pub fn devices(&self) -> Vec<String> {
        names(&self.root)
    }

    /// Returns the numbers of a device's ports, sorted; they start at 1.
    pub fn ports(&self, device: &str) -> Vec<u8> {
        let names = names(&self.root.join(device).join("ports"));
        let mut ports: Vec<u8> = names.iter().filter_map(|n| n.parse().ok()).collect();
        ports.sort_unstable();
        ports
    }

    /// Returns the link layer of a port.
    pub fn link(&self, device: &str, port: u8) -> Option<Link> {
        match self.read(device, port, "link_layer")?.as_str() {
            "Ethernet" => Some(Link::Ethernet),
            "InfiniBand" => Some(Link::InfiniBand),
            _ => None,
        }
    }

    /// Whether a port is up: its state reads `4: ACTIVE`.
    pub fn is_active(&self, device: &str, port: u8) -> bool {
        self.read(device, port, "state")
            .is_some_and(|s| s.starts_with("4:"))
    }

    /// Returns the addresses of a port, by index; without empty entries, and those past 255, which no
    /// queue pair can name. Cost: three small files for each entry, one for an empty one.
    pub fn gids(&self, device: &str, port: u8) -> Vec<GidEntry> {
        let folder = self.root.join(device).join(format!("ports/{port}/gids"));
        let mut indices: Vec<u8> = names(&folder)
            .iter()
            .filter_map(|n| n.parse().ok())
            .collect();
        indices.sort_unstable();
        indices
            .into_iter()
            .filter_map(|index| self.gid(device, port, index))
            .collect()
    }

    /// Returns one entry of a port's table; `None` if it is empty.
    pub fn gid(&self, device: &str, port: u8, index: u8) -> Option<GidEntry> {
        let text = self.read(device, port, &format!("gids/{index}"))?;
        let gid = Gid(text.parse::<Ipv6Addr>().ok()?.octets());
        if gid == Gid::default() {
            return None;
        }
        let kind = match self
            .read(device, port, &format!("gid_attrs/types/{index}"))?
            .as_str()
        {
            "RoCE v2" => GidKind::RoceV2,
            _ => GidKind::Native,
        };
        Some(GidEntry {
            index,
            gid,
            kind,
            netdev: self.read(device, port, &format!("gid_attrs/ndevs/{index}")),
        })
    }

    /// Reads a small file of a port, without its newline.
    fn read(&self, device: &str, port: u8, file: &str) -> Option<String> {
        let path = self
            .root
            .join(device)
            .join(format!("ports/{port}"))
            .join(file);
        let text = fs::read_to_string(path).ok()?;
        Some(text.trim_end().to_owned())
    }
}

/// Names in a folder, sorted; none if it does not exist.
fn names(folder: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Vec::new();
    };
    let name = |entry: fs::DirEntry| entry.file_name().into_string().ok();
    let mut names: Vec<String> = entries.filter_map(|e| name(e.ok()?)).collect();
    names.sort_unstable();
    names
}

impl Gid {
    /// Returns the GID of an address on RoCE v2.
    pub fn of(address: IpAddr) -> Self {
        Self(match address {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
            IpAddr::V6(v6) => v6.octets(),
        })
    }

    /// Returns the IP address that it represents.
    pub fn address(self) -> IpAddr {
        Ipv6Addr::from(self.0).to_canonical()
    }

    /// Whether it is valid on its own link only (`fe80::/10`).
    pub const fn is_link_local(self) -> bool {
        self.0[0] == 0xfe && self.0[1] & 0xc0 == 0x80
    }

    /// Returns the subnet prefix, on InfiniBand: the first eight bytes.
    pub fn subnet(self) -> [u8; 8] {
        std::array::from_fn(|i| self.0[i])
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address().fmt(f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ethernet => "Ethernet",
            Self::InfiniBand => "InfiniBand",
        })
    }
}

#[cfg(test)]
pub(super) mod testing {
    use super::Sysfs;
    use std::fs;

    /// A tree like the kernel's, in a temporary folder.
    pub(crate) struct Tree(tempfile::TempDir);

    impl Tree {
        pub(crate) fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        pub(crate) fn sysfs(&self) -> Sysfs {
            Sysfs::at(self.0.path())
        }

        pub(crate) fn write(&self, path: &str, text: &str) {
            let path = self.0.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        pub(crate) fn port(&self, device: &str, port: u8, link: &str, state: &str) {
            let folder = format!("{device}/ports/{port}");
            self.write(&format!("{folder}/link_layer"), &format!("{link}\n"));
            self.write(&format!("{folder}/state"), &format!("{state}\n"));
        }

        /// Writes an entry; without a network interface where `netdev` is empty.
        pub(crate) fn gid(
            &self,
            device: &str,
            port: u8,
            index: u8,
            gid: &str,
            kind: &str,
            netdev: &str,
        ) {
            let folder = format!("{device}/ports/{port}");
            self.write(&format!("{folder}/gids/{index}"), &format!("{gid}\n"));
            self.write(
                &format!("{folder}/gid_attrs/types/{index}"),
                &format!("{kind}\n"),
            );
            if !netdev.is_empty() {
                let file = format!("{folder}/gid_attrs/ndevs/{index}");
                self.write(&file, &format!("{netdev}\n"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::testing::Tree;
    use super::*;

    const V4: &str = "0000:0000:0000:0000:0000:ffff:0a00:0102";
    const V6: &str = "2001:0db8:0000:0000:0000:0000:0000:0007";
    const LINK: &str = "fe80:0000:0000:0000:0202:03ff:fe04:0506";
    const EMPTY: &str = "0000:0000:0000:0000:0000:0000:0000:0000";

    #[test]
    fn ports_and_addresses_are_read() {
        let tree = Tree::new();
        tree.port("mlx5_1", 2, "Ethernet", "4: ACTIVE");
        tree.port("mlx5_1", 1, "InfiniBand", "1: DOWN");
        tree.port("mlx5_0", 1, "Token Ring", "5: ACTIVE_DEFER");
        tree.gid("mlx5_1", 2, 10, V6, "RoCE v2", "eth1");
        tree.gid("mlx5_1", 2, 0, LINK, "IB/RoCE v1", "eth1");
        tree.gid("mlx5_1", 2, 9, V4, "RoCE v2", "");
        let sysfs = tree.sysfs();
        assert_eq!(sysfs.devices(), ["mlx5_0", "mlx5_1"]);
        assert_eq!(sysfs.ports("mlx5_1"), [1, 2]);
        assert_eq!(sysfs.link("mlx5_1", 1), Some(Link::InfiniBand));
        assert_eq!(sysfs.link("mlx5_1", 2), Some(Link::Ethernet));
        assert_eq!(sysfs.link("mlx5_0", 1), None);
        let active = [("mlx5_1", 1), ("mlx5_1", 2), ("mlx5_0", 1)];
        assert_eq!(
            active.map(|(d, p)| sysfs.is_active(d, p)),
            [false, true, false]
        );

        let gids = sysfs.gids("mlx5_1", 2);
        let told: Vec<_> = gids
            .iter()
            .map(|g| {
                (
                    g.index,
                    g.gid.address().to_string(),
                    g.kind,
                    g.netdev.as_deref(),
                )
            })
            .collect();
        assert_eq!(
            told,
            [
                (
                    0,
                    "fe80::202:3ff:fe04:506".to_owned(),
                    GidKind::Native,
                    Some("eth1")
                ),
                (9, "10.0.1.2".to_owned(), GidKind::RoceV2, None),
                (10, "2001:db8::7".to_owned(), GidKind::RoceV2, Some("eth1")),
            ]
        );
        assert_eq!(sysfs.gid("mlx5_1", 2, 9), Some(gids[1].clone()));
    }

    #[test]
    fn what_is_missing_or_strange_is_not_there() {
        let tree = Tree::new();
        assert_eq!(tree.sysfs().devices(), [""; 0]);
        assert!(Sysfs::at("/nonexistent").devices().is_empty());
        tree.port("rxe0", 1, "Ethernet", "4: ACTIVE");
        tree.write("rxe0/ports/strange/state", "4: ACTIVE");
        tree.write("rxe0/ports/256/state", "4: ACTIVE");
        tree.gid("rxe0", 1, 0, EMPTY, "RoCE v2", "lo");
        tree.gid("rxe0", 1, 1, "not an address", "RoCE v2", "lo");
        tree.write("rxe0/ports/1/gids/2", V4); // without a type: the kernel says EINVAL
        tree.write("rxe0/ports/1/gids/300", V4); // no queue pair can name it
        tree.write("rxe0/ports/1/gids/3", ""); // it vanished during the read
        let sysfs = tree.sysfs();
        assert_eq!(sysfs.ports("rxe0"), [1]);
        assert_eq!(sysfs.gids("rxe0", 1), []);
        assert_eq!(sysfs.gids("rxe0", 9), []);
        assert_eq!(sysfs.ports("rxe1"), [0; 0]);
        assert!(!sysfs.is_active("rxe1", 1));
    }

    #[test]
    fn a_gid_is_an_address() {
        let v4 = Gid::of("10.0.1.2".parse().unwrap());
        assert_eq!(v4.0[10..], [0xff, 0xff, 10, 0, 1, 2]);
        assert_eq!(v4, Gid::of("::ffff:10.0.1.2".parse().unwrap()));
        assert_eq!(v4.to_string(), "10.0.1.2");
        assert!(!v4.is_link_local());
        let link: IpAddr = "fe80::1".parse().unwrap();
        assert!(Gid::of(link).is_link_local());
        assert_eq!(Gid::of(link).subnet(), [0xfe, 0x80, 0, 0, 0, 0, 0, 0]);
        assert!(!Gid::of("fec0::1".parse().unwrap()).is_link_local());
    }
}
