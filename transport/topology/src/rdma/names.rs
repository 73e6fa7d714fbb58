//! Names of RDMA ports, as users write them.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use tidewater_protocol::limits::{RDMA_NAME_BYTES_MAX, VERBS_PORTS_MAX};

/// Stands for the local rank in the name of a device.
const LOCAL_RANK: &str = "%r";

/// RDMA ports that a user permits, the preferred one first.
///
/// Each is `DEVICE`, `DEVICE:PORT` or `DEVICE:PORT:GID`; commas separate them. `GID` is an index of the
/// port's table or an IP address in it. `%r` in the name of a device stands for the local rank. Device
/// names are valid file names and no paths.
///
/// # Example
/// ```
/// use tidewater_topology::PortNames;
///
/// let names: PortNames = "mlx5_%r:1,mlx5_bond_0:1:10.0.0.7".parse()?;
/// assert_eq!(names.iter().next().unwrap().device(3), "mlx5_3");
/// assert!("mlx5_0:0".parse::<PortNames>().is_err());
/// # Ok::<(), tidewater_topology::BadPortName>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortNames {
    text: String,
    names: Vec<PortName>,
}

/// One of the named ports, or all ports of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortName {
    device: String,
    /// Number of the port, counted from 1; `None` permits all.
    pub port: Option<u8>,
    /// GID of the port; `None` permits all.
    pub gid: Option<GidName>,
}

/// A GID of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GidName {
    /// Its index in the port's table.
    Index(u32),
    /// The address that it stands for.
    Address(IpAddr),
}

/// Text that names no RDMA port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{}", Self::TEXT)]
pub struct BadPortName;

impl BadPortName {
    /// The text of the error.
    pub const TEXT: &str = "not an RDMA port; use DEVICE, DEVICE:PORT or DEVICE:PORT:GID, as in \
                            mlx5_0:1 or mlx5_0:1:3, several separated by commas; GID is an index \
                            or an IP address, and %r in a device name is the local rank";
}

impl PortNames {
    /// The names as they were written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The names in order of preference; at least one.
    pub fn iter(&self) -> std::slice::Iter<'_, PortName> {
        self.names.iter()
    }
}

impl PortName {
    /// The name of its device in the process with this local rank.
    pub fn device(&self, local_rank: u32) -> Cow<'_, str> {
        if self.device.contains(LOCAL_RANK) {
            Cow::Owned(self.device.replace(LOCAL_RANK, &local_rank.to_string()))
        } else {
            Cow::Borrowed(&self.device)
        }
    }
}

impl fmt::Display for PortNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Display for GidName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Index(index) => index.fmt(f),
            Self::Address(address) => address.fmt(f),
        }
    }
}

impl FromStr for PortNames {
    type Err = BadPortName;

    fn from_str(text: &str) -> Result<Self, BadPortName> {
        let names = text
            .split(',')
            .map(str::parse)
            .collect::<Result<Vec<PortName>, _>>()?;
        if names.len() > VERBS_PORTS_MAX {
            return Err(BadPortName);
        }
        let text = text.to_owned();
        Ok(Self { text, names })
    }
}

impl FromStr for PortName {
    type Err = BadPortName;

    fn from_str(text: &str) -> Result<Self, BadPortName> {
        // The address of a GID may hold colons.
        let mut parts = text.splitn(3, ':');
        let device = parts.next().unwrap_or_default();
        let plain = device.replace(LOCAL_RANK, "0");
        let is_name = (1..=RDMA_NAME_BYTES_MAX).contains(&device.len())
            && !device.starts_with('.')
            && plain
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b));
        if !is_name {
            return Err(BadPortName);
        }
        let port = parts.next().map(number::<u8>).transpose()?;
        if port == Some(0) {
            return Err(BadPortName);
        }
        let gid = |text: &str| match text.parse() {
            Ok(address) => Ok(GidName::Address(address)),
            Err(_) => number(text).map(GidName::Index),
        };
        Ok(Self {
            device: device.to_owned(),
            port,
            gid: parts.next().map(gid).transpose()?,
        })
    }
}

/// A number of digits only: `parse` alone would take a sign.
fn number<T: FromStr>(text: &str) -> Result<T, BadPortName> {
    let digits = text.bytes().all(|b| b.is_ascii_digit());
    text.parse().ok().filter(|_| digits).ok_or(BadPortName)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_ports_and_gids() {
        let one = |text: &str| text.parse::<PortNames>().unwrap().names.remove(0);
        assert_eq!(one("rxe0").port, None);
        assert_eq!(one("mlx5_0:255").port, Some(255));
        assert_eq!(one("mlx5_0:1:3").gid, Some(GidName::Index(3)));
        for address in ["10.0.0.7", "fe80::1", "2001:db8::7"] {
            let gid = Some(GidName::Address(address.parse().unwrap()));
            assert_eq!(one(&format!("mlx5_0:1:{address}")).gid, gid);
        }
        assert_eq!(one("mlx5_%r").device(11), "mlx5_11");
        assert_eq!(one("a-b.c").device(11), "a-b.c");
        let list: PortNames = "mlx5_0,mlx5_1:2".parse().unwrap();
        assert_eq!(
            (list.iter().len(), list.to_string()),
            (2, "mlx5_0,mlx5_1:2".to_owned())
        );
    }

    #[test]
    fn text_that_names_no_port_is_refused() {
        let long = "x".repeat(RDMA_NAME_BYTES_MAX + 1);
        let many = vec!["a"; VERBS_PORTS_MAX + 1].join(",");
        let bad = [
            "",
            ":1",
            "rxe0:",
            "rxe0:0",
            "rxe0:256",
            "rxe0:+1",
            "rxe0:1:",
            "rxe0:1:x",
            "rxe0:1:-1",
            "rxe0:1:10.0.0",
            "rxe0:1:1:1",
            "rxe0,",
            ",rxe0",
            "rxe0,,rxe1",
            "rxe0, rxe1",
            "mlx5_%",
            "mlx5_%d",
            "mlx5_0:%r",
            "a/b",
            "..",
            ".",
            "a b",
            "a\n",
            &long,
            &many,
        ];
        for bad in bad {
            assert!(bad.parse::<PortNames>().is_err(), "{bad:?}");
        }
    }
}
