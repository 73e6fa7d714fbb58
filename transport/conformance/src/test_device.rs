//! The RDMA device that tests and benchmarks use, from the environment: by default the device that has
//! 127.0.0.1, which is Soft-RoCE on `lo` in a guest.
//!
//! | variable | meaning |
//! |---|---|
//! | `TIDEWATER_TEST_ADDRESS` | address of this host on the network of the device |
//! | `TIDEWATER_TEST_RDMA` | name of the device, as in `mlx5_0:1` |

use std::net::{IpAddr, Ipv4Addr};

/// Address of this host for tests over RDMA: `TIDEWATER_TEST_ADDRESS`, or 127.0.0.1.
///
/// # Panics
/// If the variable holds no IP address.
pub fn address() -> IpAddr {
    match std::env::var("TIDEWATER_TEST_ADDRESS") {
        Err(_) => Ipv4Addr::LOCALHOST.into(),
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("TIDEWATER_TEST_ADDRESS={text} is no IP address")),
    }
}

/// Name of the device that tests use: `TIDEWATER_TEST_RDMA`. `None`: the one that has [`address`].
pub fn device() -> Option<String> {
    std::env::var("TIDEWATER_TEST_RDMA").ok()
}

/// Opens the device of the tests.
///
/// # Errors
/// There is no such device.
#[cfg(any(feature = "verbs", feature = "verbs-dlopen"))]
pub fn open_port()
-> Result<tidewater_runtime::sync::Arc<tidewater_verbs::OpenPort>, tidewater_verbs::VerbsError> {
    tidewater_verbs::OpenPort::for_address(address(), device().as_deref())
}
