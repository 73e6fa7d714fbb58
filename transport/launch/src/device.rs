//! The RDMA device that the user chose, and the retransmission timeout of its queue pairs.

use std::ffi::OsString;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::{EnvError, Vars};
use tidewater_protocol::limits::{
    RDMA_NAME_BYTES_MAX, VERBS_RETRIES, VERBS_TIMEOUT, VERBS_TIMEOUTS,
};

/// The name of an RDMA device, with a port of it or without: `mlx5_0` or `mlx5_0:1`. It is a valid device
/// name, and no path: the kernel describes a device in a folder of that name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RdmaDevice(String);

impl RdmaDevice {
    /// The value of `TIDEWATER_RDMA_DEVICE`, also for a process that belongs to no job.
    ///
    /// # Errors
    /// It names no device.
    pub fn from_env() -> Result<Option<Self>, EnvError> {
        Vars::new(std::env::vars_os()).parsed("TIDEWATER_RDMA_DEVICE")
    }

    /// The name as it was written.
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

/// Retransmission timeout of a queue pair: 4.096 us x 2^this, 1 ms (8) to 134 ms (15). A network that loses
/// packets needs a value near its round trip, and above it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RdmaTimeout(u8);

impl RdmaTimeout {
    /// The default value: [`VERBS_TIMEOUT`].
    pub const USUAL: Self = Self(VERBS_TIMEOUT);

    /// The value of `TIDEWATER_RDMA_TIMEOUT`, also for a process that belongs to no job.
    ///
    /// # Errors
    /// It is no such number.
    pub fn from_env() -> Result<Option<Self>, EnvError> {
        Self::from_vars(std::env::vars_os())
    }

    /// Reads like [`RdmaTimeout::from_env`], from given variables.
    ///
    /// # Errors
    /// As [`RdmaTimeout::from_env`].
    pub fn from_vars(
        vars: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<Option<Self>, EnvError> {
        Vars::new(vars).parsed("TIDEWATER_RDMA_TIMEOUT")
    }

    /// The power of two.
    pub const fn exponent(self) -> u8 {
        self.0
    }

    /// Longest time in which queue pairs resend a packet before they fail. Devices may take four times the
    /// timeout for each attempt.
    pub const fn longest_retry(self) -> Duration {
        let timeout_ns = 4_096_u64 << self.0;
        Duration::from_nanos(timeout_ns * 4 * (VERBS_RETRIES as u64 + 1))
    }
}

impl Default for RdmaTimeout {
    fn default() -> Self {
        Self::USUAL
    }
}

impl fmt::Display for RdmaTimeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for RdmaTimeout {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let number = text.parse().ok().filter(|n| VERBS_TIMEOUTS.contains(n));
        number.map(Self).ok_or(
            "not an RDMA timeout; use 8 to 15, which stand for 4.096 us x 2^8 to 2^15: 1 to 134 ms",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts() {
        for good in 8..=15u8 {
            let timeout: RdmaTimeout = good.to_string().parse().unwrap();
            assert_eq!(timeout.exponent(), good);
            assert_eq!(timeout.to_string(), good.to_string());
            let said = ("TIDEWATER_RDMA_TIMEOUT".into(), good.to_string().into());
            assert_eq!(RdmaTimeout::from_vars([said]).unwrap(), Some(timeout));
        }
        assert_eq!(RdmaTimeout::default().exponent(), VERBS_TIMEOUT);
        assert_eq!(RdmaTimeout::from_vars([]).unwrap(), None);
        for bad in ["", "0", "7", "16", "31", "256", "-1", "4ms"] {
            assert!(bad.parse::<RdmaTimeout>().is_err(), "{bad:?}");
        }
    }

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
