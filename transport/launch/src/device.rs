//! The RDMA device that the user chose.

use std::fmt;
use std::str::FromStr;

use super::{EnvError, Vars};
use tidewater_topology::{BadPortName, PortNames};

/// Names of the RDMA ports that the user permits, the preferred one first: `mlx5_0`, `mlx5_0:1`, `mlx5_0:1:3`,
/// or several of them; see [`PortNames`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RdmaDevice(PortNames);

impl RdmaDevice {
    /// Reads the permitted ports from `TIDEWATER_RDMA_DEVICE`, also for a process that belongs to no job;
    /// `None` if it is unset.
    ///
    /// # Errors
    /// It names no device.
    pub fn from_env() -> Result<Option<Self>, EnvError> {
        Vars::new(std::env::vars_os()).parsed("TIDEWATER_RDMA_DEVICE")
    }

    /// Returns the names as the user wrote them.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }

    /// Returns the parsed names of the permitted ports.
    pub const fn names(&self) -> &PortNames {
        &self.0
    }
}

impl fmt::Display for RdmaDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for RdmaDevice {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let names = text.parse().map_err(|BadPortName| BadPortName::TEXT);
        names.map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_ports() {
        for good in ["rxe0", "mlx5_0:1", "mlx5_%r,mlx5_bond_0:1:10.0.0.7"] {
            let device: RdmaDevice = good.parse().unwrap();
            assert_eq!(
                (device.as_str(), device.to_string()),
                (good, good.to_owned())
            );
        }
        for bad in ["", "rxe0:0", "../../etc"] {
            assert!(bad.parse::<RdmaDevice>().is_err(), "{bad:?}");
        }
    }
}
