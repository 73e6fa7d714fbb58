//! What can go wrong with a server process.

use std::io;

use tidewater_lanes::shm::ShmError;
use tidewater_protocol::ids::{ServerId, TableId};
use tidewater_protocol::wire::refusal::{Refusal, RefusalCode};
use tidewater_protocol::wire::spec::SpecError;
use tidewater_topology::NoSuchNic;

use tidewater_engine::apply::command::ApplierGone;
use tidewater_engine::store::StoreError;
use tidewater_engine::store::sparse::ShardError;

/// Why a server did not start, or did not do what it was asked for. Nothing was changed then.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// It cannot listen.
    #[error("cannot listen on {address}: {source}; {remedy}")]
    Listen {
        /// Where.
        address: String,
        /// The operating system's word.
        source: io::Error,
        /// What to do.
        remedy: &'static str,
    },
    /// A number of the configuration that cannot be.
    #[error("server configuration: {what} is {value}, but must be {must}")]
    Config {
        /// Which.
        what: &'static str,
        /// What it is.
        value: u64,
        /// What it must be.
        must: &'static str,
    },
    /// A thread, a descriptor or a random number could not be had.
    #[error(
        "cannot {what}: {source}; raise the limits of processes and open files (ulimit -u, -n)"
    )]
    System {
        /// What for.
        what: &'static str,
        /// The operating system's word.
        source: io::Error,
    },
    /// Appliers are not to sleep, and are more than the cores.
    #[error(
        "--busy-poll: {appliers} appliers of this host would never sleep, on {cores} cores that \
         it may use: some would wait for time slices all the time; give each server fewer \
         (--appliers), this job more cores, or start it without --busy-poll"
    )]
    BusyPoll {
        /// Of all servers of this host.
        appliers: u32,
        /// Threads that can run at a time here.
        cores: usize,
    },
    /// The network device that was named does not exist.
    #[error("--nic: {0}")]
    Nic(#[from] NoSuchNic),
    /// Memory.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Shared memory.
    #[error(transparent)]
    Shm(#[from] ShmError),
    /// An applier has ended.
    #[error(transparent)]
    Gone(#[from] ApplierGone),
    /// An applier has ended outside of a shutdown, and with it the server.
    #[error("server {server} has failed: {why}")]
    Failed {
        /// Its number.
        server: ServerId,
        /// Why.
        why: String,
    },
    /// A table could not be made.
    #[error("table \"{table}\": {source}")]
    Table {
        /// Its name.
        table: String,
        /// Why.
        source: ShardError,
    },
    /// A table's definition or placement does not hold.
    #[error("table \"{table}\": {why}")]
    Spec {
        /// Its name.
        table: String,
        /// Which field.
        why: SpecError,
    },
    /// The number names another table.
    #[error("table {id} exists in namespace \"{namespace}\" as another table than \"{table}\"")]
    Differs {
        /// Number.
        id: TableId,
        /// Where it exists.
        namespace: String,
        /// Its new name.
        table: String,
    },
    /// There is no such table.
    #[error("no table {0} on this server; it was never created, or its creation failed")]
    UnknownTable(TableId),
    /// The table is gone for good.
    #[error("table {0} was released; create it again under a new number")]
    Released(TableId),
}

impl ServerError {
    /// What a peer is told.
    pub fn refusal(&self) -> Refusal {
        let (code, number) = match self {
            Self::Table {
                source: ShardError::Store(StoreError::NoMemory { bytes, .. }),
                ..
            }
            | Self::Store(StoreError::NoMemory { bytes, .. }) => {
                (RefusalCode::OutOfMemory, *bytes as u64)
            }
            Self::Spec { .. } | Self::Table { .. } => (RefusalCode::BadSpec, 0),
            Self::Differs { id, .. } => (RefusalCode::TableDiffers, u64::from(id.0)),
            Self::UnknownTable(id) => (RefusalCode::UnknownTable, u64::from(id.0)),
            Self::Released(id) => (RefusalCode::TableReleased, u64::from(id.0)),
            Self::Gone(_) => (RefusalCode::ShuttingDown, 0),
            Self::Failed { server, .. } => (RefusalCode::PeerFailed, u64::from(server.0)),
            _ => (RefusalCode::Io, 0),
        };
        Refusal::new(code, [number, 0, 0, 0]).with_text(self)
    }
}

/// For `map_err`: names what was tried.
pub(super) fn system<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> ServerError {
    move |source| ServerError::System {
        what,
        source: source.into(),
    }
}
