//! Errors of a server.

use std::io;

use tidewater_lanes::shm::ShmError;
use tidewater_protocol::ids::{ServerId, TableId};
use tidewater_protocol::wire::refusal::{Refusal, RefusalCode};
use tidewater_protocol::wire::spec::SpecError;
use tidewater_topology::NoSuchNic;

use tidewater_engine::apply::command::ApplierGone;
use tidewater_engine::store::sparse::ShardError;
use tidewater_engine::store::{ResumeError, StoreError};

/// Reason why a server did not start or a call failed. The call has then changed nothing, except after [`Self::Gone`]
/// and [`Self::Failed`]: some appliers may have carried it out.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The server cannot listen on an address.
    #[error("cannot listen on {address}: {source}; {remedy}")]
    Listen {
        /// The address to listen on.
        address: String,
        /// Error of the operating system.
        source: io::Error,
        /// Remedy, as a clause for the user.
        remedy: &'static str,
    },
    /// A number in the configuration is out of range.
    #[error("server configuration: {what} is {value}, but must be {must}")]
    Config {
        /// The setting that is wrong.
        what: &'static str,
        /// Value that was configured.
        value: u64,
        /// The range that is allowed, in words.
        must: &'static str,
    },
    /// The operating system refused a thread, a descriptor or random bytes.
    #[error(
        "cannot {what}: {source}; raise the limits of processes and open files (ulimit -u, -n)"
    )]
    System {
        /// Operation that needed it.
        what: &'static str,
        /// Error of the operating system.
        source: io::Error,
    },
    /// Appliers that never sleep outnumber the cores.
    #[error(
        "--busy-poll: {appliers} appliers of this host would never sleep, on {cores} cores that \
         it may use: some would wait for time slices all the time; give each server fewer \
         (--appliers), this job more cores, or start it without --busy-poll"
    )]
    BusyPoll {
        /// Appliers of all servers of this host.
        appliers: u32,
        /// Number of cores that the server may use.
        cores: usize,
    },
    /// The configured network device does not exist.
    #[error("--nic: {0}")]
    Nic(#[from] NoSuchNic),
    /// The server's memory allocator refused the operation.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Shared memory could not be made or mapped.
    #[error(transparent)]
    Shm(#[from] ShmError),
    /// An applier has ended and cannot answer; the server is shutting down.
    #[error(transparent)]
    Gone(#[from] ApplierGone),
    /// An applier has failed outside of a shutdown, and the server ends.
    #[error("server {server} has failed: {why}")]
    Failed {
        /// Number of the failed server.
        server: ServerId,
        /// Reason given by the applier.
        why: String,
    },
    /// A table could not be created.
    #[error("table \"{table}\": {source}")]
    Table {
        /// Name of the table.
        table: String,
        /// Error of the applier's share of it.
        source: ShardError,
    },
    /// A table's definition or placement is not valid.
    #[error("table \"{table}\": {why}")]
    Spec {
        /// Name of the table.
        table: String,
        /// The field that is not valid.
        why: SpecError,
    },
    /// The table number already belongs to another table.
    #[error("table {id} exists in namespace \"{namespace}\" as another table than \"{table}\"")]
    Differs {
        /// Number of both tables.
        id: TableId,
        /// Namespace of the existing table.
        namespace: String,
        /// Name of the table to be created.
        table: String,
    },
    /// A module of a function cannot be loaded.
    #[error("function \"{name}\": {why}")]
    Function {
        /// Name of the function.
        name: String,
        /// Why it is refused, with a remedy.
        why: String,
    },
    /// This server has no table of that number.
    #[error("no table {0} on this server; it was never created, or its creation failed")]
    UnknownTable(TableId),
    /// The table was released and does not come back.
    #[error("table {0} was released; create it again under a new number")]
    Released(TableId),
    /// The previous process's memory cannot be used.
    #[error("cannot go on with the memory of the server before: {0}")]
    Resume(#[from] ResumeError),
    /// The code that reads the previous process's memory has panicked.
    #[error(
        "cannot go on with the memory of the server before: applier {applier} panicked while it read it: {message}; \
         this is a defect, please report it"
    )]
    ResumePanicked {
        /// Number of the applier.
        applier: u16,
        /// Message of the panic.
        message: String,
    },
    /// The previous process's memory lacks the table, or its table differs from the coordinator's.
    #[error(
        "table \"{table}\": the memory of the server before {why}; the job begins again without it"
    )]
    NotKept {
        /// Name of the table.
        table: String,
        /// What the memory has instead, as a clause.
        why: String,
    },
}

impl ServerError {
    /// Converts the error to the refusal that a peer gets.
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
            Self::Function { .. } => (RefusalCode::BadFunction, 0),
            Self::Differs { id, .. } => (RefusalCode::TableDiffers, u64::from(id.0)),
            Self::UnknownTable(id) => (RefusalCode::UnknownTable, u64::from(id.0)),
            Self::Released(id) => (RefusalCode::TableReleased, u64::from(id.0)),
            Self::NotKept { .. } => (RefusalCode::UnknownTable, 0),
            Self::Gone(_) => (RefusalCode::ShuttingDown, 0),
            Self::Failed { server, .. } => (RefusalCode::PeerFailed, u64::from(server.0)),
            _ => (RefusalCode::Io, 0),
        };
        Refusal::new(code, [number, 0, 0, 0]).with_text(self)
    }
}

/// Returns a closure for `map_err` that wraps an operating system error with the name of the failed
/// operation.
pub(super) fn system<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> ServerError {
    move |source| ServerError::System {
        what,
        source: source.into(),
    }
}
