//! Registration of a launched process with its coordinator. The process sends its rank and its role, and
//! gets its number when all have registered.
//!
//! The coordinator runs in the process of rank 0. Its addresses are tried in turn: the reachable one
//! depends on where this process is. The local address of the successful connection is the one by which
//! others reach this process.

use std::io;
use std::net::{IpAddr, TcpStream};
use std::time::Duration;

use crate::bootstrap::BootstrapRecord;
use crate::meeting::{self, MeetError};
use crate::{Place, Rendezvous, directory};
use tidewater_control::conn::{ConnError, ControlConn};
use tidewater_control::dial::{self, Claims, DialError};
use tidewater_protocol::wire::control::{
    CoordinatorAnswer, CoordinatorRequest, Part, Register, Roster,
};
use tidewater_protocol::wire::handshake::JobToken;
use tidewater_protocol::wire::hello::{Ids, NAMESPACE_DEFAULT, RANK_ANY, Role};
use tidewater_protocol::wire::refusal::{Refusal, RefusalCode};
use tidewater_runtime::clock::Deadline;
use tidewater_topology::hostinfo;

/// Maximum time for one address of the coordinator before the next one is tried.
const TRY: Duration = Duration::from_secs(1);
/// Pause before the addresses are tried again, or a bootstrap record is read again.
const PAUSE: Duration = Duration::from_millis(50);
/// Time by which the coordinator gives up before the caller's deadline, so that its refusal, which names the
/// missing processes, arrives in time.
const HEAD_START: Duration = Duration::from_millis(500);

/// Reason why a launched process did not become a member of its job.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RendezvousError {
    /// The exchange of the bootstrap record failed.
    #[error(transparent)]
    Meet(#[from] MeetError),
    /// Rank 0 is not reachable at the addresses of its record.
    #[error(
        "rank {rank} of {size} does not reach {record} (from {origin}): {source}. Is it of an earlier \
         job? Else look whether rank 0 lives, and at the firewall; --interface names the network"
    )]
    Unreached {
        /// Rank of this process.
        rank: u32,
        /// Number of processes of the launch.
        size: u32,
        /// Addresses of the record.
        record: String,
        /// Origin of the record.
        origin: String,
        /// Result of the last try.
        source: Box<ReachError>,
    },
    /// The coordinator refuses: a process is missing, or two have one rank.
    #[error("rank {rank} of {size}: {refusal}")]
    Refused {
        /// Rank of this process.
        rank: u32,
        /// Number of processes of the launch.
        size: u32,
        /// Refusal of the coordinator.
        refusal: Refusal,
    },
    /// The connection failed while this process waited for the others.
    #[error("rank {rank} of {size} lost {record} while it waited for the others: {source}")]
    Lost {
        /// Rank of this process.
        rank: u32,
        /// Number of processes of the launch.
        size: u32,
        /// Addresses of the coordinator.
        record: String,
        /// Error of the connection.
        source: ConnError,
    },
    /// The id of this host cannot be read.
    #[error("rank {rank} of {size}: {source}")]
    Host {
        /// Rank of this process.
        rank: u32,
        /// Number of processes of the launch.
        size: u32,
        /// Error of the system.
        source: io::Error,
    },
    /// The record is of another launch.
    #[error(
        "the bootstrap record in {origin} is of a job of {theirs} processes, this one is one of {ours}: each job \
         needs a meeting place of its own. If that job has ended, look whether rank 0 of this one was started"
    )]
    OtherSize {
        /// Origin of the record.
        origin: String,
        /// Number of processes in the record.
        theirs: u32,
        /// Number of processes of this launch.
        ours: u32,
    },
}

/// Reason why no address of a coordinator was reached.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReachError {
    /// There is no address.
    #[error("no address was tried")]
    NoAddress,
    /// Error of the last try.
    #[error(transparent)]
    Dial(#[from] DialError),
    /// The coordinator refuses this process.
    #[error("{0}")]
    Refused(Refusal),
}

/// Membership of a launched process in its job, with the numbers that the coordinator assigned. It keeps the
/// connection open by which the coordinator sees that this process lives.
#[derive(Debug)]
pub struct Membership {
    /// Numbers that the coordinator assigned.
    pub numbers: Roster,
    /// `HOST:PORT` of the coordinator, as it was reached.
    pub coordinator: String,
    /// The secret of the job.
    pub token: JobToken,
    /// The local address of this process on the connection to the coordinator.
    pub local: IpAddr,
    _conn: ControlConn<TcpStream>,
}

/// Registers this launched process with the coordinator of rank 0 and gets its numbers. Blocks until all
/// processes of the launch have registered, or until `deadline`. `part` is what the process becomes.
///
/// # Errors
/// [`RendezvousError`]; no file or registration is left behind.
pub fn register(
    place: &Place,
    part: Part,
    deadline: Deadline,
) -> Result<Membership, RendezvousError> {
    loop {
        let (record, pending) = meeting::find(place, deadline)?;
        // A record in a directory may come from an earlier job: it is read again.
        let is_final = !matches!(place.rendezvous, Some(Rendezvous::Directory(_)));
        let tries = u32::try_from(record.addresses.len()).unwrap_or(1);
        let limit = if is_final {
            deadline
        } else {
            // Each of its addresses is tried.
            deadline.min(Deadline::after(TRY * tries))
        };
        match register_by(&record, place, part, limit, deadline) {
            Err(RendezvousError::Unreached { .. } | RendezvousError::OtherSize { .. })
                if !is_final && deadline.left() > PAUSE =>
            {
                std::thread::sleep(PAUSE);
            }
            Ok(membership) => {
                pending.settle()?;
                return Ok(membership);
            }
            Err(error) => {
                pending.give_up();
                return Err(error);
            }
        }
    }
}

/// Registers with the coordinator that `record` names. Tries its addresses until `reach`, then blocks until all
/// processes have registered, or until `deadline`.
///
/// # Errors
/// [`RendezvousError`].
pub fn register_by(
    record: &BootstrapRecord,
    place: &Place,
    part: Part,
    reach: Deadline,
    deadline: Deadline,
) -> Result<Membership, RendezvousError> {
    let (rank, size) = (place.rank, place.size);
    let origin = place.rendezvous.as_ref();
    let origin = origin.map_or_else(|| "a bootstrap record".to_owned(), ToString::to_string);
    if record.size != size {
        return Err(RendezvousError::OtherSize {
            origin,
            theirs: record.size,
            ours: size,
        });
    }
    let token = record.token.clone();
    let (coordinator, mut conn) =
        reach_one(&record.addresses, &token, reach).map_err(|source| match source {
            ReachError::Refused(refusal) => RendezvousError::Refused {
                rank,
                size,
                refusal,
            },
            ReachError::Dial(_) | ReachError::NoAddress => RendezvousError::Unreached {
                rank,
                size,
                record: record.to_string(),
                origin,
                source: Box::new(source),
            },
        })?;
    let lost = |source| RendezvousError::Lost {
        rank,
        size,
        record: record.to_string(),
        source,
    };
    let local = conn.stream_mut().local_addr();
    let local = local.map_err(|source| {
        let operation = "ask for its own address";
        lost(ConnError::Io { operation, source })
    })?;
    let left = deadline.left();
    let wait = left.saturating_sub(HEAD_START.min(left / 2));
    let host_id =
        hostinfo::host_id().map_err(|source| RendezvousError::Host { rank, size, source })?;
    let request = CoordinatorRequest::Register(Register {
        rank,
        size,
        part,
        host: hostinfo::host_name(),
        host_id,
        pid: std::process::id(),
        local_size: place.local_size.unwrap_or(0),
        timeout_ms: u64::try_from(wait.as_millis()).unwrap_or(u64::MAX),
    });
    match conn.call(&request, || deadline.left()) {
        Ok(CoordinatorAnswer::Roster(numbers)) => Ok(Membership {
            numbers,
            coordinator,
            token,
            local: local.ip(),
            _conn: conn,
        }),
        Ok(_) => Err(lost(ConnError::Broken)),
        Err(ConnError::Refused(refusal)) => Err(RendezvousError::Refused {
            rank,
            size,
            refusal,
        }),
        Err(source) => Err(lost(source)),
    }
}

/// Returns the first of a coordinator's addresses at which a peer with the token answers. Blocks until
/// `deadline` at most.
///
/// # Errors
/// Result of the last try before the deadline.
pub fn reach(
    addresses: &[String],
    token: &JobToken,
    deadline: Deadline,
) -> Result<String, ReachError> {
    reach_one(addresses, token, deadline).map(|(address, _)| address)
}

/// Returns the bootstrap record in the directory of `place` if a coordinator with its token still answers: a
/// job that runs there. `None` if there is no record, no answer, or no directory.
///
/// # Errors
/// The file there is no record.
pub fn is_taken(place: &Place) -> Result<Option<BootstrapRecord>, MeetError> {
    let Some(Rendezvous::Directory(path)) = &place.rendezvous else {
        return Ok(None);
    };
    let Some((record, _)) = directory::read(path)? else {
        return Ok(None);
    };
    let token = &record.token;
    let mut lives = false;
    for address in &record.addresses {
        let limit = Deadline::after(TRY / 4);
        let dialled = dial::control(address, token, &claims(), limit);
        lives |= match dialled {
            Ok(_) => true,
            Err(DialError::Handshake { source, .. }) => is_word(&source).is_some(),
            Err(_) => false,
        };
    }
    Ok(lives.then_some(record))
}

/// Connects to the first address at which a peer authenticates as the coordinator. Returns the address and the
/// connection.
fn reach_one(
    addresses: &[String],
    token: &JobToken,
    deadline: Deadline,
) -> Result<(String, ControlConn<TcpStream>), ReachError> {
    let mut last = ReachError::NoAddress;
    loop {
        for address in addresses {
            let limit = deadline.min(Deadline::after(TRY));
            match dial::control(address, token, &claims(), limit) {
                Ok(conn) => return Ok((address.clone(), conn)),
                Err(error) => {
                    if let DialError::Handshake { source, .. } = &error
                        && let Some(refusal) = is_word(source)
                    {
                        return Err(ReachError::Refused(refusal));
                    }
                    last = error.into();
                }
            }
        }
        if deadline.left() <= PAUSE {
            return Err(last);
        }
        std::thread::sleep(PAUSE);
    }
}

/// Returns the refusal of a peer that knows the token; `None` for any other error. Other peers, which may be of
/// another job with the same port or address, answer only "refused".
fn is_word(error: &ConnError) -> Option<Refusal> {
    match error {
        ConnError::Refused(refusal) if refusal.code != RefusalCode::Refused => {
            Some(refusal.clone())
        }
        _ => None,
    }
}

fn claims() -> Claims {
    Claims {
        ids: Ids::default(),
        namespace: NAMESPACE_DEFAULT.to_owned(),
        role: Role::Admin,
        rank: RANK_ANY,
    }
}
