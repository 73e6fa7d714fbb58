//! A process started by a foreign launcher. It finds its job by rendezvous; the process of rank 0 runs the
//! coordinator.
//!
//! ```text
//! rank 0       listens -> starts the coordinator's thread -> publishes the record -\
//! all ranks    find the record -> register: rank and part in, numbers out -> join as always
//! ```
//! After the rendezvous a job is as any other: servers and workers join the coordinator by number.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::thread::{self, JoinHandle};

use tidewater_launch::meeting::{self, MeetError, Pending};
use tidewater_launch::rendezvous::{self, Membership, RendezvousError};
use tidewater_launch::{BootstrapRecord, Place, Rendezvous, TokenError, token};
use tidewater_protocol::ids::ServerId;
use tidewater_protocol::wire::control::{Part, Roster};
use tidewater_protocol::wire::handshake::JobToken;
use tidewater_runtime::clock::Deadline;
use tidewater_topology::hostinfo;
use tidewater_topology::{NoInterface, interface_address, routable_addresses};

use crate::coordinator::{
    CoordinatorConfig, Lifetime, Listening, LostWorker, ServeConfig, ServeError, serve,
};
use crate::process::ServerProcessConfig;

/// Reason why a launched process could not join its job.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchedError {
    /// The rendezvous failed, or a process is missing.
    #[error(transparent)]
    Rendezvous(#[from] RendezvousError),
    /// Rank 0 cannot start the coordinator.
    #[error("rank 0 keeps the coordinator: {0}")]
    Coordinator(#[from] ServeError),
    /// Rank 0 cannot make the job's secret token.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// Another running job uses the same place of rendezvous.
    #[error(
        "another job meets in {place}: its rank 0 is pid {pid} on {host}. Give each job a \
         --rendezvous of its own"
    )]
    Taken {
        /// Place of the rendezvous.
        place: String,
        /// Process id of the other job's rank 0.
        pid: u32,
        /// Host of the other job's rank 0.
        host: String,
    },
    /// The configured interface does not exist.
    #[error(transparent)]
    Interface(#[from] NoInterface),
    /// A system call failed.
    #[error("cannot {operation}: {source}; raise the limits of processes and open files")]
    System {
        /// Operation that was tried.
        operation: &'static str,
        /// Error of the operating system.
        source: io::Error,
    },
}

/// Membership of a launched process in its job; at rank 0 it includes the coordinator. Dropping it ends the
/// job if that still runs.
#[derive(Debug)]
pub struct JobMember {
    membership: Membership,
    /// Address on which a server in this process listens.
    listen: IpAddr,
    /// The coordinator at rank 0. Dropped after the membership: its drop blocks until the coordinator has
    /// ended.
    hosted: Option<Hosted>,
}

/// Joins the launched job that `place` describes, as `part`; blocks until all processes have registered, or until
/// `deadline`. Rank 0 also starts the coordinator. `interface` names a network device, to listen on its address.
///
/// # Errors
/// [`LaunchedError`]; nothing is left behind.
pub fn join_job(
    place: &Place,
    part: Part,
    interface: Option<&str>,
    deadline: Deadline,
) -> Result<JobMember, LaunchedError> {
    let own = interface.map(interface_address).transpose()?;
    let mut hosted = match place.rank {
        0 => Some(Hosted::start(place, own, deadline)?),
        _ => None,
    };
    let membership = match &mut hosted {
        // Rank 0 registers as the others do, but has the record already.
        Some(hosted) => {
            let registered =
                rendezvous::register_by(&hosted.record, place, part, deadline, deadline);
            // All have registered, or this is the end: the record has served its purpose. It stays
            // nowhere if this process is killed, as launchers do when another one has ended.
            let pending = std::mem::take(&mut hosted.pending);
            let membership = registered?;
            pending.settle().map_err(RendezvousError::Meet)?;
            membership
        }
        None => rendezvous::register(place, part, deadline)?,
    };
    let listen = own.unwrap_or_else(|| reached_from_elsewhere(place, &membership));
    Ok(JobMember {
        membership,
        listen,
        hosted,
    })
}

/// Starts the coordinator of a job of `size` processes in this process, which is rank 0; does not wait for them.
/// `interface` names a network device, to listen on its address. The program distributes [`Hosted::record`] to the
/// other processes.
///
/// # Errors
/// [`LaunchedError`]; nothing is left behind.
pub fn host(size: u32, interface: Option<&str>) -> Result<Hosted, LaunchedError> {
    let own = interface.map(interface_address).transpose()?;
    Hosted::listen(&Place::by_record(0, size), own)
}

/// Joins a launched job as `part`, with the bootstrap record `record`, which the program has distributed
/// itself; blocks until all processes have registered, or until `deadline`. `interface` names a network device,
/// to listen on its address. Rank 0 passes as `hosted` the coordinator that it has started with `host`, other
/// ranks `None`.
///
/// # Errors
/// [`LaunchedError`]; nothing is left behind.
pub fn join_by_record(
    record: &BootstrapRecord,
    place: &Place,
    part: Part,
    interface: Option<&str>,
    hosted: Option<Hosted>,
    deadline: Deadline,
) -> Result<JobMember, LaunchedError> {
    let own = interface.map(interface_address).transpose()?;
    let membership = rendezvous::register_by(record, place, part, deadline, deadline)?;
    let listen = own.unwrap_or(membership.local);
    Ok(JobMember {
        membership,
        listen,
        hosted,
    })
}

impl JobMember {
    /// Numbers of this process in the job, and the coordinator's address.
    pub const fn membership(&self) -> &Membership {
        &self.membership
    }

    /// Whether this process runs the coordinator.
    pub const fn keeps_coordinator(&self) -> bool {
        self.hosted.is_some()
    }

    /// Makes the configuration of a server in this process. It listens on a free port of the local address by
    /// which this process reached the coordinator, or of the configured interface.
    pub fn server_config(&self) -> ServerProcessConfig {
        let Membership {
            numbers,
            coordinator,
            token,
            ..
        } = &self.membership;
        let mut config =
            ServerProcessConfig::new(coordinator, token.clone(), ServerId(numbers.server));
        config.local_rank = numbers.local_server;
        config.local_servers = numbers.local_servers.max(1);
        config.local_clients = numbers.local_workers;
        config.listen = Some(SocketAddr::new(self.listen, 0));
        config
    }

    /// Describes this process in one line: rank, host, part, number and addresses.
    pub fn describe(&self, place: &Place, part: Part) -> String {
        let Place {
            rank, size, source, ..
        } = place;
        let Roster {
            number,
            servers,
            workers,
            ..
        } = self.membership.numbers;
        let of = match part {
            Part::Server => servers,
            Part::Worker | Part::Both => workers,
        };
        let (host, part) = (hostinfo::host_name(), part.name());
        let Membership {
            coordinator, local, ..
        } = &self.membership;
        let local = if self.listen == *local {
            local.to_string()
        } else {
            format!("{}, reached from {local}", self.listen)
        };
        format!(
            "rank {rank} of {size} on {host} is {part} {number} of {of}, at {local}, coordinator at \
             {coordinator} (by {source})"
        )
    }

    /// Ends this process's membership. At rank 0 it blocks until the coordinator has ended, after the last
    /// worker.
    pub fn end(self) {
        let Self {
            membership, hosted, ..
        } = self;
        drop(membership);
        if let Some(hosted) = hosted {
            hosted.wait();
        }
    }
}

/// The coordinator of a launched job, on a thread of the process of rank 0. Dropping it ends the coordinator.
#[derive(Debug)]
pub struct Hosted {
    record: BootstrapRecord,
    /// Its drop ends the coordinator, which reads end of file at the other end.
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
    /// Published bootstrap record, withdrawn when all processes have registered.
    pending: Pending,
}

impl Hosted {
    fn start(
        place: &Place,
        own: Option<IpAddr>,
        deadline: Deadline,
    ) -> Result<Self, LaunchedError> {
        let met = |error: MeetError| LaunchedError::Rendezvous(error.into());
        if let Some(other) = rendezvous::is_taken(place).map_err(met)? {
            let at = place.rendezvous.as_ref().map(ToString::to_string);
            return Err(LaunchedError::Taken {
                place: at.unwrap_or_default(),
                pid: other.pid,
                host: other.host,
            });
        }
        let mut hosted = Self::listen(place, own)?;
        hosted.pending = meeting::publish(place, &hosted.record, deadline).map_err(met)?;
        Ok(hosted)
    }

    /// Starts the coordinator's thread and makes its bootstrap record, without publishing it. `own` is the address of
    /// the configured interface, if any.
    fn listen(place: &Place, own: Option<IpAddr>) -> Result<Self, LaunchedError> {
        let met = |error: MeetError| LaunchedError::Rendezvous(error.into());
        let token = match &place.rendezvous {
            Some(Rendezvous::Address(address)) => meeting::token_for(address).map_err(met)?,
            _ => token::random()?,
        };
        let listening = listen(place, own, &token)?.gathering(place.size, place.hosts.clone());
        let record = BootstrapRecord::new(place.size, token, reachable_at(place, own, &listening));
        let (stop, stopped) = UnixStream::pair().map_err(|source| LaunchedError::System {
            operation: "make a socket pair",
            source,
        })?;
        let thread = thread::Builder::new().name("tw-coordinator".into());
        let thread = thread.spawn(move || {
            if let Err(error) = serve(listening, &[stopped.as_fd()]) {
                tracing::error!(%error, "the coordinator has failed");
            }
        });
        let thread = thread.map_err(|source| LaunchedError::System {
            operation: "start a thread",
            source,
        })?;
        Ok(Self {
            record,
            stop: Some(stop),
            thread: Some(thread),
            pending: Pending::default(),
        })
    }

    /// Bootstrap record with which other processes find the coordinator. It contains the secret token.
    pub const fn record(&self) -> &BootstrapRecord {
        &self.record
    }

    /// Blocks until the coordinator has ended by itself.
    fn wait(mut self) {
        self.join();
    }

    fn join(&mut self) {
        if self
            .thread
            .take()
            .is_some_and(|thread| thread.join().is_err())
        {
            tracing::error!("the coordinator panicked: a defect, please report it");
        }
    }
}

impl Drop for Hosted {
    fn drop(&mut self) {
        self.stop = None;
        self.join();
    }
}

/// Binds the coordinator's listening socket at rank 0: to the interface's address, to loopback if all
/// processes are on this host, else to all addresses. The port is that of an agreed address, else any.
fn listen(
    place: &Place,
    own: Option<IpAddr>,
    token: &JobToken,
) -> Result<Listening, LaunchedError> {
    let port = match &place.rendezvous {
        Some(Rendezvous::Address(address)) => {
            let port = address.rsplit_once(':').map(|(_, port)| port.parse());
            port.and_then(Result::ok).unwrap_or(0)
        }
        _ => 0,
    };
    let ip = match own {
        Some(ip) => ip,
        None if place.is_one_host() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        None => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let bind = |ip| {
        Listening::bind(ServeConfig {
            listen: SocketAddr::new(ip, port),
            advertise: None,
            token: token.clone(),
            namespaces: Vec::new(),
            cluster: CoordinatorConfig {
                servers: 0,
                workers: 0,
                on_lost: LostWorker::FailJob,
                lifetime: Lifetime::OneJob,
            },
        })
    };
    match bind(ip) {
        // The kernel has no IPv6.
        Err(ServeError::Listen { source, .. })
            if ip.is_unspecified() && source.kind() != io::ErrorKind::AddrInUse =>
        {
            Ok(bind(IpAddr::V4(Ipv4Addr::UNSPECIFIED))?)
        }
        bound => Ok(bound?),
    }
}

/// Addresses at which other processes may reach the coordinator, the most likely first.
fn reachable_at(place: &Place, own: Option<IpAddr>, listening: &Listening) -> Vec<String> {
    let port = listening.port();
    let address = |ip| SocketAddr::new(ip, port).to_string();
    match (&place.rendezvous, own) {
        (_, Some(ip)) => return vec![address(ip)],
        (Some(Rendezvous::Address(agreed)), _) => return vec![agreed.clone()],
        _ if place.is_one_host() => return vec![address(IpAddr::V4(Ipv4Addr::LOCALHOST))],
        _ => {}
    }
    let mut addresses: Vec<String> = routable_addresses().into_iter().map(address).collect();
    addresses.push(format!("{}:{port}", hostinfo::host_name()));
    addresses
}

/// Address on which this process listens: its local address of the connection to the coordinator. If a host
/// name led to loopback (Debian's 127.0.1.1), a routable address instead.
fn reached_from_elsewhere(place: &Place, membership: &Membership) -> IpAddr {
    let went_by_name = is_name(&membership.coordinator) && membership.local.is_loopback();
    let elsewhere = || routable_addresses().first().copied();
    let needed = went_by_name && !place.is_one_host();
    needed.then(elsewhere).flatten().unwrap_or(membership.local)
}

/// Whether the host part of `HOST:PORT` is a host name other than "localhost", not an IP address.
fn is_name(address: &str) -> bool {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    bare != "localhost" && bare.parse::<IpAddr>().is_err()
}

/// Whether process `rank` of `size` is one of `servers` servers, in a job of one program. Servers are spread
/// evenly over the ranks, beginning with rank 0. `false` if `servers` is 0.
pub fn is_server(rank: u32, size: u32, servers: u32) -> bool {
    let (rank, size, servers) = (u64::from(rank), u64::from(size), u64::from(servers));
    if size == 0 || servers == 0 {
        return false;
    }
    // Server i is at floor(i * size / servers): is there an i with that floor?
    let i = (rank * servers).div_ceil(size);
    i < servers && i * size / servers == rank
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_spread_over_the_ranks() {
        let ranks = |size, servers| -> Vec<u32> {
            (0..size)
                .filter(|&rank| is_server(rank, size, servers))
                .collect()
        };
        assert_eq!(ranks(6, 2), [0, 3]);
        assert_eq!(ranks(8, 3), [0, 2, 5]);
        assert_eq!(ranks(4, 4), [0, 1, 2, 3]);
        assert_eq!(ranks(4, 0), [0; 0]);
        for size in 1..60 {
            for servers in 1..=size {
                let ranks = ranks(size, servers);
                assert_eq!(
                    (ranks.len(), ranks[0]),
                    (servers as usize, 0),
                    "{servers} of {size}"
                );
            }
        }
    }

    #[test]
    fn a_name_may_lead_to_loopback_and_an_address_means_what_it_says() {
        for (address, expected) in [
            ("node1:80", true),
            ("node1.cluster:80", true),
            ("127.0.0.1:80", false),
            ("[::1]:80", false),
            ("localhost:80", false),
        ] {
            assert_eq!(is_name(address), expected, "{address}");
        }
    }
}
