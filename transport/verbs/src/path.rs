//! Local end of a lane's paths: the port as it is when the lane is made.
//!
//! A subnet manager changes LID, P_Key table and subnet prefix of a port in use, and an administrator its
//! addresses. Regions and queues of the device stay valid. So the port is read for each lane: a lane that
//! breaks at such a change is rebuilt with the new values.

use super::device::PortState;
use super::error::VerbsError;
use super::open_port::OpenPort;
use super::retry::RetryTimeout;
use super::sysfs::{Gid, GidEntry, GidKind, Link, Sysfs};
use std::path::Path as FilePath;
use tidewater_runtime::sync::Arc;
use tidewater_topology::{FabricSettings, GidIndex, LinkLayer, PortSettings, Root};

/// Settings of a domain's queue pairs: the user's, and the retry timeout, which tests set beyond the user's
/// range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PairSettings {
    /// Settings of the user.
    pub fabric: FabricSettings,
    /// Retry timeout towards a silent peer.
    pub retry: RetryTimeout,
}

impl From<FabricSettings> for PairSettings {
    fn from(fabric: FabricSettings) -> Self {
        let retry = RetryTimeout {
            timeout: fabric.timeout_exponent(),
            retries: fabric.retry_count(),
            ..RetryTimeout::default()
        };
        Self { fabric, retry }
    }
}

impl From<RetryTimeout> for PairSettings {
    fn from(retry: RetryTimeout) -> Self {
        let fabric = FabricSettings::UNSET;
        Self { fabric, retry }
    }
}

/// A port with its addresses and settings, read once for the queue pairs of a lane.
#[derive(Debug, Clone)]
pub struct Path {
    open_port: Arc<OpenPort>,
    state: PortState,
    gid: Gid,
    gid_index: u8,
    settings: PortSettings,
}

impl Path {
    /// Reads the port. Cost: a system call and some five small files; a search of the GID table where the
    /// address has moved in it.
    ///
    /// # Errors
    /// [`VerbsError::PortGid`] when the port has lost its address, [`VerbsError::PKey`] when it is not in the
    /// partition, [`VerbsError::Call`].
    pub fn new(open_port: &Arc<OpenPort>, fabric: &FabricSettings) -> Result<Self, VerbsError> {
        let (device, port) = (open_port.device(), open_port.port());
        let state = device.port(port)?;
        let known = (open_port.gid_index(), open_port.gid());
        let gid = find_gid(
            &Sysfs::host(),
            device.name(),
            port,
            state.link,
            fabric.gid_index,
            known,
        )?;
        let link = match state.link {
            Link::Ethernet => LinkLayer::Ethernet,
            Link::InfiniBand => LinkLayer::InfiniBand,
        };
        let root = Root::new(FilePath::new("/"));
        Ok(Self {
            settings: fabric.on_port(&root, device.name(), port.into(), link)?,
            open_port: Arc::clone(open_port),
            state,
            gid: gid.gid,
            gid_index: gid.index,
        })
    }

    /// Returns the port of the path.
    pub const fn open_port(&self) -> &Arc<OpenPort> {
        &self.open_port
    }

    /// Returns the state of the port.
    pub const fn port(&self) -> &PortState {
        &self.state
    }

    /// Returns the GID of the port.
    pub const fn gid(&self) -> Gid {
        self.gid
    }

    /// Returns the index of the GID in the port's table.
    pub const fn gid_index(&self) -> u8 {
        self.gid_index
    }

    /// Returns the settings of queue pairs on the port.
    pub const fn settings(&self) -> &PortSettings {
        &self.settings
    }
}

/// Finds the GID of a port: the one that the user set; else on Ethernet the port's address, which may have
/// another index by now; else on InfiniBand the entry of the port's index, which has a new subnet prefix if
/// the subnet manager has changed it. `known` is the port's index and address.
fn find_gid(
    sysfs: &Sysfs,
    device: &str,
    port: u8,
    link: Link,
    set: Option<GidIndex>,
    known: (u8, Gid),
) -> Result<GidEntry, VerbsError> {
    let usable = |entry: &GidEntry| link == Link::InfiniBand || entry.kind == GidKind::RoceV2;
    let at = |index| sysfs.gid(device, port, index).filter(usable);
    let is_known = |entry: &GidEntry| entry.gid == known.1;
    let found = match (set, link) {
        (Some(set), _) => at(set.get()),
        (None, Link::InfiniBand) => at(known.0),
        (None, Link::Ethernet) => at(known.0).filter(is_known).or_else(|| {
            let all = sysfs.gids(device, port).into_iter();
            all.filter(usable).find(is_known)
        }),
    };
    found.ok_or_else(|| {
        let all = sysfs.gids(device, port);
        let name = |entry: &GidEntry| format!("{} at index {}", entry.gid, entry.index);
        let all: Vec<String> = all.iter().filter(|e| usable(e)).map(name).collect();
        VerbsError::PortGid {
            port: format!("{device}:{port}").into(),
            wanted: match set {
                Some(set) => format!("at index {set}").into(),
                None => known.1.to_string().into(),
            },
            found: match all.is_empty() {
                true => "none".into(),
                false => all.join(", ").into(),
            },
        }
    })
}

#[cfg(test)]
mod tests {
    use super::super::sysfs::testing::Tree;
    use super::*;

    const ADDRESS: &str = "0000:0000:0000:0000:0000:ffff:0a00:0001";
    const OTHER: &str = "0000:0000:0000:0000:0000:ffff:0a00:0002";
    const NATIVE: &str = "fe80:0000:0000:0000:0202:03ff:fe04:0506";

    fn address() -> Gid {
        Gid::of("10.0.0.1".parse().unwrap())
    }

    #[test]
    fn moved_address_is_found_at_its_new_index() {
        let tree = Tree::new();
        let find = |set: Option<&str>| {
            let set = set.map(|n| n.parse().unwrap());
            find_gid(
                &tree.sysfs(),
                "mlx5_0",
                1,
                Link::Ethernet,
                set,
                (1, address()),
            )
        };
        tree.gid("mlx5_0", 1, 0, NATIVE, "IB/RoCE v1", "eth0");
        tree.gid("mlx5_0", 1, 1, ADDRESS, "RoCE v2", "eth0");
        assert_eq!(find(None).unwrap().index, 1);
        // The address was removed, another one took its index, and it was added again: twice, as a RoCE v1
        // entry too.
        tree.gid("mlx5_0", 1, 1, OTHER, "RoCE v2", "eth0");
        tree.gid("mlx5_0", 1, 2, ADDRESS, "IB/RoCE v1", "eth0");
        tree.gid("mlx5_0", 1, 3, ADDRESS, "RoCE v2", "eth0");
        assert_eq!(find(None).unwrap().index, 3);
        assert_eq!(
            find(Some("1")).unwrap().gid,
            Gid::of("10.0.0.2".parse().unwrap())
        );
        // An index that is empty, or of RoCE v1, is refused with what there is.
        for wrong in ["0", "2", "9"] {
            let e = find(Some(wrong)).unwrap_err().to_string();
            for part in [
                "mlx5_0:1",
                &format!("index {wrong}"),
                "10.0.0.2 at index 1",
                "10.0.0.1 at index 3",
            ] {
                assert!(e.contains(part), "{part}: {e}");
            }
        }
        tree.gid("mlx5_0", 1, 3, OTHER, "RoCE v2", "eth0");
        let e = find(None).unwrap_err().to_string();
        assert!(e.contains("10.0.0.1"), "{e}");
    }

    #[test]
    fn changed_subnet_prefix_is_taken() {
        let tree = Tree::new();
        let moved = "fec0:0000:0000:0001:0202:03ff:fe04:0506";
        tree.gid("mlx5_0", 1, 0, moved, "IB/RoCE v1", "");
        let before = Gid::of("fe80::202:3ff:fe04:506".parse().unwrap());
        let (sysfs, link) = (tree.sysfs(), Link::InfiniBand);
        let now = find_gid(&sysfs, "mlx5_0", 1, link, None, (0, before)).unwrap();
        assert_eq!(
            now.gid,
            Gid::of("fec0::1:202:3ff:fe04:506".parse().unwrap())
        );
    }
}
