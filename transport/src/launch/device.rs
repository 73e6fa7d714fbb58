//! Which RDMA device the user asked for.

use std::fmt;
use std::str::FromStr;

use super::{EnvError, Vars};
use crate::limits::RDMA_NAME_BYTES_MAX;

/// The name of an RDMA device, with a port of it or without: `mlx5_0` or `mlx5_0:1`. It is one that
/// a device could have, and no path: the kernel tells of a device in a folder of that name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RdmaDevice(String);

impl RdmaDevice {
    /// What `TIDEWATER_RDMA_DEVICE` says, also to a process that belongs to no job.
    ///
    /// # Errors
    /// It names no device.
    pub fn from_env() -> Result<Option<Self>, EnvError> {
        Vars::new(std::env::vars_os()).parsed("TIDEWATER_RDMA_DEVICE")
    }

    /// As it was written.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RdmaDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for RdmaDevice {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let (name, port) = text.split_once(':').unwrap_or((text, "1"));
        let named = (1..=RDMA_NAME_BYTES_MAX).contains(&name.len())
            && !name.starts_with('.')
            && name
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b));
        let is_digits = port.bytes().all(|b| b.is_ascii_digit());
        if named && is_digits && port.parse::<u8>().is_ok_and(|port| port != 0) {
            Ok(Self(text.to_owned()))
        } else {
            Err("not an RDMA device; use NAME or NAME:PORT, as in mlx5_0:1")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_ports() {
        for good in ["rxe0", "mlx5_0:1", "roceP2p1s0f0:255", "a-b.c"] {
            assert_eq!(good.parse::<RdmaDevice>().unwrap().as_str(), good);
        }
        let long = "x".repeat(RDMA_NAME_BYTES_MAX + 1);
        let bad = [
            "", ":1", "rxe0:", "rxe0:0", "rxe0:256", "rxe0:+1", "rxe0:1:1",
        ];
        for bad in bad
            .into_iter()
            .chain(["a/b", "..", ".", "a b", "a\n", &long])
        {
            assert!(bad.parse::<RdmaDevice>().is_err(), "{bad:?}");
        }
    }
}
