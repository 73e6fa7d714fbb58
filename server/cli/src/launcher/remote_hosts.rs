//! The launcher's view of other hosts: which processes run there, by which addresses they may reach
//! the coordinator, and their orders.

use std::ffi::OsString;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};

use tidewater_launch::VARIABLES;
use tidewater_protocol::limits::REMOTE_ORDER_BYTES_MAX;
use tidewater_topology::hostinfo;

use super::config::{EXPORTED, Placement, ProcessCommand, RunConfig};
use super::error::{LaunchError, Member};
use super::process::{Local, Spawner};
use super::remote::Order;
use super::token::TokenFile;
use tidewater_topology::{interface_address, routable_addresses};

/// Hosts of a job with processes on other hosts; empty for any other job.
#[derive(Debug)]
pub(super) struct Far {
    pub(super) placement: Placement,
    /// Addresses of this host, the likeliest first; none if all processes are on this host.
    hosts: Vec<String>,
    /// Whether other addresses may lead here too.
    any: bool,
    /// Addresses of the coordinator, once it listens.
    coordinators: Vec<String>,
    directory: OsString,
    environment: Vec<(OsString, OsString)>,
}

impl Far {
    /// Makes the coordinator listen where other hosts reach it, if there are others.
    pub(super) fn of(config: &mut RunConfig) -> Result<Self, LaunchError> {
        let mut far = Self {
            placement: config.placement()?,
            hosts: Vec::new(),
            any: config.interface.is_none(),
            coordinators: Vec::new(),
            directory: OsString::new(),
            environment: Vec::new(),
        };
        if !config.is_spread() {
            return Ok(far);
        }
        let own = config.interface.as_deref().map(interface_address);
        let own = own.transpose();
        let own = own.map_err(|error| LaunchError::Interface(error.to_string()))?;
        let listen = own.unwrap_or_else(every_address);
        let listen = SocketAddr::new(listen, 0).to_string();
        let args = ["--listen".to_owned(), listen];
        config.coordinator.args.extend(args.map(OsString::from));
        far.hosts = match own {
            Some(ip) => vec![bracketed(ip)],
            None => {
                let mut ips = routable_addresses();
                if ips.is_empty() {
                    ips.push(IpAddr::V4(Ipv4Addr::LOCALHOST));
                }
                let addresses = ips.into_iter().map(bracketed);
                addresses.chain([hostinfo::host_name()]).collect()
            }
        };
        let directory = std::env::current_dir();
        far.directory = directory
            .map_err(LaunchError::system("find its working directory"))?
            .into_os_string();
        far.environment = exported(&config.exported);
        for host in config.hosts.iter().filter(|host| !host.is_this()) {
            for run in [&config.server, &config.worker] {
                if far.length(run) > REMOTE_ORDER_BYTES_MAX / 2 {
                    return Err(LaunchError::TooLong {
                        host: host.name.clone(),
                        max: REMOTE_ORDER_BYTES_MAX / 2,
                    });
                }
            }
        }
        Ok(far)
    }

    /// Notes where the coordinator listens. Returns the address for this host's own processes.
    pub(super) fn listens(&mut self, address: String) -> String {
        if let Some((_, port)) = address.rsplit_once(':') {
            let all = self.hosts.iter().map(|host| format!("{host}:{port}"));
            self.coordinators = all.collect();
        }
        self.coordinators.first().cloned().unwrap_or(address)
    }

    /// The order for a process on another host.
    pub(super) fn order(
        &self,
        member: Member,
        run: &ProcessCommand,
        local: Local,
        spawner: &Spawner,
        token: &TokenFile,
    ) -> io::Result<Vec<u8>> {
        let (is_server, number) = match member {
            Member::Server(number) => (true, number),
            Member::Worker(rank) => (false, rank),
            Member::Coordinator | Member::Guard => return Err(io::ErrorKind::Unsupported.into()),
        };
        let order = Order {
            token: token.read()?,
            mark: format!(
                "{}-{}{number}",
                spawner.job,
                if is_server { 's' } else { 'w' }
            ),
            is_server,
            number,
            settings: spawner.settings.clone(),
            local,
            coordinators: self.coordinators.clone(),
            ask_shell: self.any,
            directory: self.directory.clone(),
            program: run.program.clone(),
            args: run.args.clone(),
            environment: self.environment.clone(),
        };
        order
            .encode()
            .ok_or_else(|| io::ErrorKind::ArgumentListTooLong.into())
    }

    /// Bytes of the parts that differ much between jobs.
    fn length(&self, run: &ProcessCommand) -> usize {
        let pairs = self
            .environment
            .iter()
            .flat_map(|(name, value)| [name, value]);
        let words = run
            .args
            .iter()
            .chain([&run.program, &self.directory])
            .chain(pairs);
        words.map(|word| word.len() + 8).sum()
    }
}

/// Every address of this host, IPv4 and IPv6 where the kernel has both.
fn every_address() -> IpAddr {
    let all = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
    match TcpListener::bind((all, 0)) {
        Ok(_) => all,
        Err(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
    }
}

/// The address as it is written before a port.
fn bracketed(ip: IpAddr) -> String {
    match ip {
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => format!("[{ip}]"),
    }
}

/// Variables of this process that programs on other hosts get.
fn exported(more: &[OsString]) -> Vec<(OsString, OsString)> {
    let known = |name: &OsString| {
        let tidewaters = VARIABLES.iter().any(|variable| name == variable.name);
        tidewaters || EXPORTED.iter().any(|exported| name == exported) || more.contains(name)
    };
    std::env::vars_os()
        .filter(|(name, _)| known(name))
        .collect()
}
