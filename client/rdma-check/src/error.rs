//! Errors of the check itself: the other end is missing, silent, or no check.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

/// Why a check could not be made. A fault of RDMA is no such error: it is a [`Finding`](crate::Finding).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckError {
    /// The address cannot be listened on.
    #[error(
        "cannot listen on {address}: {source}; give an address of this host: ip -brief address"
    )]
    Listen {
        /// Address given to `--listen`.
        address: SocketAddr,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The other end cannot be reached.
    #[error("cannot connect to {address}: {source}; {}", remedy(.source))]
    Connect {
        /// Address of the other end.
        address: SocketAddr,
        /// Error of the operating system.
        source: io::Error,
    },
    /// No other end came in time.
    #[error(
        "no other end came to {address} in {waited:?}; run there: tidewater rdma-check {address}"
    )]
    Alone {
        /// Address given to `--listen`.
        address: SocketAddr,
        /// Time that was waited.
        waited: Duration,
    },
    /// The connection between both ends failed.
    #[error("{op} with {peer}: {source}; look at the output of the other end")]
    Peer {
        /// Operation on the connection.
        op: &'static str,
        /// Address of the other end.
        peer: SocketAddr,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The other end sent what is no message of a check.
    #[error("protocol error from {peer}: {what}; run the same version of tidewater on both nodes")]
    Protocol {
        /// Address of the other end.
        peer: SocketAddr,
        /// What is wrong with the message.
        what: String,
    },
}

/// The remedy for a connection that cannot be made.
fn remedy(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::ConnectionRefused => {
            "no check listens there: start `tidewater rdma-check --listen ADDRESS` on that node first"
        }
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => {
            "a firewall drops it: open the port between both nodes, or name one that is open"
        }
        io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => {
            "there is no route: give the address that the node has on the RDMA network"
        }
        _ => "look at the address and at the firewall of that node",
    }
}
