//! Listening sockets of a server, and the addresses that clients get for them.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;

use tidewater_lanes::shm::pass::{self, PassError};
use tidewater_protocol::wire::control::Endpoints;
use tidewater_topology::hostinfo::host_name;

use super::{ServerConfig, ServerError};

/// The server's listening sockets, TCP and unix; nonblocking.
#[derive(Debug)]
pub(super) struct Listeners {
    pub(super) tcp: Option<TcpListener>,
    pub(super) unix: Option<UnixListener>,
}

impl Listeners {
    /// Opens the sockets of the configuration. Also returns the addresses for clients. Fails if neither TCP
    /// nor unix is configured.
    pub(super) fn open(config: &ServerConfig) -> Result<(Self, Endpoints), ServerError> {
        let mut endpoints = Endpoints {
            tcp: String::new(),
            unix: String::new(),
        };
        let tcp = match config.tcp {
            Some(address) => {
                let (listener, bound) = tcp(address).map_err(|e| cannot(address.to_string(), e))?;
                endpoints.tcp = advertised_address(bound, config.advertise.as_deref());
                Some(listener)
            }
            None => None,
        };
        let unix = if config.unix {
            let (server, start) = (config.server, config.incarnation.0);
            endpoints.unix = format!("tidewater-{:016x}-{server}-{start:016x}", config.cluster.0);
            Some(unix(&endpoints.unix)?)
        } else {
            None
        };
        if tcp.is_none() && unix.is_none() {
            return Err(ServerError::Config {
                what: "number of listening sockets",
                value: 0,
                must: "at least 1: TCP, unix, or both",
            });
        }
        Ok((Self { tcp, unix }, endpoints))
    }
}

fn tcp(address: SocketAddr) -> io::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    let bound = listener.local_addr()?;
    Ok((listener, bound))
}

fn unix(name: &str) -> Result<UnixListener, ServerError> {
    pass::listen(name).map_err(|e| {
        let source = match e {
            PassError::Os { source, .. } => source,
            other => io::Error::other(other),
        };
        cannot(format!("abstract socket {name}"), source)
    })
}

/// Address that clients get for a bound socket: with the advertised host, or with this host's name if bound
/// to all addresses.
fn advertised_address(bound: SocketAddr, advertise: Option<&str>) -> String {
    match advertise {
        Some(host) if host.contains(':') => format!("[{host}]:{}", bound.port()),
        Some(host) => format!("{host}:{}", bound.port()),
        None if bound.ip().is_unspecified() => format!("{}:{}", host_name(), bound.port()),
        None => bound.to_string(),
    }
}

fn cannot(address: String, source: io::Error) -> ServerError {
    let remedy = match source.kind() {
        io::ErrorKind::AddrInUse => {
            "another process has it: choose another port, or 0 for any free one"
        }
        io::ErrorKind::AddrNotAvailable => "it is no address of this host: choose one of its own",
        io::ErrorKind::PermissionDenied => "ports below 1024 need privileges: choose a higher one",
        _ => "choose another address",
    };
    ServerError::Listen {
        address,
        source,
        remedy,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_told_an_address_that_they_can_reach() {
        let any: SocketAddr = "0.0.0.0:71".parse().unwrap();
        assert_eq!(advertised_address(any, None), format!("{}:71", host_name()));
        assert_eq!(advertised_address(any, Some("node7")), "node7:71");
        assert_eq!(advertised_address(any, Some("fe80::1")), "[fe80::1]:71");
        let here: SocketAddr = "127.0.0.1:71".parse().unwrap();
        assert_eq!(advertised_address(here, None), "127.0.0.1:71");
    }
}
