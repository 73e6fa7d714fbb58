//! Exchange of the bootstrap record of rank 0 with the other processes.
//!
//! A PMI-1 barrier reports only that all have arrived; it does not name missing processes. If the barrier
//! is not passed after three quarters of the time, rank 0 writes its record in the working directory. The
//! file's folder has the name of the launcher's key-value space. The processes at the barrier use it to
//! register with the coordinator, which names the missing ones. Where the directory is not shared by all of
//! them, the missing ones cannot be named.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::bootstrap::BootstrapRecord;
use super::directory::{self, DirectoryError, Posted};
use super::pmi1::{Pmi, PmiError};
use super::{Place, Rendezvous, TokenError, inherited, token};
use tidewater_protocol::wire::handshake::JobToken;
use tidewater_runtime::clock::Deadline;

/// Key of the bootstrap record in the launcher's PMI key-value store.
const KEY: &str = "tidewater-card";
/// First pause between two reads of a rendezvous directory; each next one doubles.
const PAUSE_FIRST: Duration = Duration::from_millis(5);
/// Longest pause between two reads of a rendezvous directory.
const PAUSE_MAX: Duration = Duration::from_millis(250);

/// Reason why the bootstrap record of rank 0 could not be exchanged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MeetError {
    /// The directory is unusable.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// The launcher's exchange failed.
    #[error(transparent)]
    Pmi(#[from] PmiError),
    /// The launcher's descriptor is unusable.
    #[error("PMI_FD={fd} cannot be used: {source}; give --rendezvous DIRECTORY to meet without it")]
    Descriptor {
        /// Number of the descriptor.
        fd: u32,
        /// Error of the system.
        source: io::Error,
    },
    /// The job token that an address needs is missing.
    #[error("meeting at {address} needs a job token that all processes have: {source}")]
    Token {
        /// Address on which rank 0 listens.
        address: String,
        /// Cause of the missing token.
        source: TokenError,
    },
    /// No process left a bootstrap record.
    #[error(
        "no bootstrap record of rank 0 in {place} for {waited:?}: has rank 0 been started, and do all processes \
         see the same directory?"
    )]
    NoRecord {
        /// Place that was searched.
        place: String,
        /// Time waited for the record.
        waited: Duration,
    },
    /// A process has not arrived at the launcher's barrier, and rank 0 cannot be asked for its name.
    #[error(
        "PMI: not all processes have come to the barrier within {waited:?}, and rank 0 has left no bootstrap record in \
         {place}: either it has not come itself, or it has another working directory; look whether all \
         were started"
    )]
    NotAll {
        /// Expected place of the record.
        place: String,
        /// Time waited at the barrier.
        waited: Duration,
    },
    /// The launcher has no bootstrap record.
    #[error(
        "rank 0 left no bootstrap record with the launcher; is it a program that meets by PMI too?"
    )]
    NotPut,
    /// The launcher's value is no bootstrap record.
    #[error("the launcher's bootstrap record: {0}")]
    Garbled(#[from] super::bootstrap::BootstrapError),
    /// The launch has no other process.
    #[error("a job of one process has no rendezvous")]
    Alone,
}

/// Resources of a rendezvous that a process keeps until all processes have registered: a written record, an
/// open PMI barrier.
#[derive(Debug, Default)]
pub struct Pending {
    /// The record, where a process may still read it.
    _posted: Option<Posted>,
    /// The launcher's barrier, at which a process is still missing.
    barrier: Option<Pmi>,
    /// Path of rank 0's record, which stays until all have registered.
    theirs: Option<PathBuf>,
}

/// Time for which a process that read a record waits for its owner to remove it before this process exits.
/// Launchers kill all processes when one ends.
const LINGER: Duration = Duration::from_secs(1);

impl Pending {
    /// Ends the rendezvous after all have registered, as the coordinator reported. Blocks for the launcher's
    /// remaining answer, so that the launcher accepts the end of this process.
    ///
    /// # Errors
    /// [`MeetError::Pmi`]: the answer does not come before the deadline of the rendezvous.
    pub fn settle(self) -> Result<(), MeetError> {
        Ok(self.barrier.map_or(Ok(()), Pmi::finish)?)
    }

    /// Ends a failed rendezvous before this process exits. Blocks for at most one second, until rank 0 has
    /// removed its record.
    pub fn give_up(self) {
        let Some(path) = self.theirs else { return };
        let limit = Deadline::after(LINGER);
        while !limit.passed() && path.exists() {
            std::thread::sleep(PAUSE_FIRST);
        }
        // The folder around it is removed last.
        std::thread::sleep(PAUSE_MAX.min(limit.left()));
    }
}

/// Publishes the bootstrap record of rank 0 to the other processes. Keep the result until all have registered.
///
/// # Errors
/// [`MeetError`].
///
/// # Cost
/// By PMI it waits until every process is there to read it, or for three quarters of the time.
pub fn publish(
    place: &Place,
    record: &BootstrapRecord,
    deadline: Deadline,
) -> Result<Pending, MeetError> {
    match &place.rendezvous {
        None => Err(MeetError::Alone),
        Some(Rendezvous::Directory(path)) => Ok(Pending {
            _posted: Some(directory::post(path, record)?),
            ..Pending::default()
        }),
        // All processes know the address.
        Some(Rendezvous::Address(_)) => Ok(Pending::default()),
        Some(Rendezvous::Pmi { fd }) => {
            let mut pmi = begin(*fd, deadline)?;
            pmi.put(KEY, &record.encode())?;
            if pmi.barrier(most_of(deadline))? {
                pmi.finish()?;
                return Ok(Pending::default());
            }
            // A failed write is no reason to fail: the missing process may still arrive at the barrier.
            let posted = directory::post(&beside(&pmi), record);
            Ok(Pending {
                _posted: posted.ok(),
                barrier: Some(pmi),
                theirs: None,
            })
        }
    }
}

/// Returns the bootstrap record of rank 0. Blocks until it is there, or until `deadline`. Keep the second value
/// until all have registered.
///
/// # Errors
/// [`MeetError`].
pub fn find(place: &Place, deadline: Deadline) -> Result<(BootstrapRecord, Pending), MeetError> {
    let record = match &place.rendezvous {
        None => return Err(MeetError::Alone),
        Some(Rendezvous::Pmi { fd }) => return find_by_pmi(*fd, deadline),
        Some(Rendezvous::Address(address)) => {
            let token = token_for(address)?;
            BootstrapRecord::new(place.size, token, [address.clone()])
        }
        Some(Rendezvous::Directory(path)) => {
            let waited = deadline.left();
            let found = find_in(path, deadline)?;
            found.ok_or_else(|| MeetError::NoRecord {
                place: path.display().to_string(),
                waited,
            })?
        }
    };
    Ok((record, Pending::default()))
}

fn find_by_pmi(fd: u32, deadline: Deadline) -> Result<(BootstrapRecord, Pending), MeetError> {
    let waited = deadline.left();
    let mut pmi = begin(fd, deadline)?;
    if pmi.barrier(most_of(deadline))? {
        let text = pmi.get(KEY)?.ok_or(MeetError::NotPut)?;
        pmi.finish()?;
        return Ok((BootstrapRecord::parse(text.as_bytes())?, Pending::default()));
    }
    let path = beside(&pmi);
    let found = find_in(&path, deadline)?;
    let record = found.ok_or_else(|| MeetError::NotAll {
        place: path.display().to_string(),
        waited,
    })?;
    let pending = Pending {
        _posted: None,
        barrier: Some(pmi),
        theirs: Some(path),
    };
    Ok((record, pending))
}

/// Reads the record in a directory, again and again until `deadline`; `None` if there is none by then.
fn find_in(path: &Path, deadline: Deadline) -> Result<Option<BootstrapRecord>, MeetError> {
    let mut pause = PAUSE_FIRST;
    loop {
        if let Some((record, _)) = directory::read(path)? {
            return Ok(Some(record));
        }
        if deadline.left() <= pause {
            return Ok(None);
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Returns the directory for rank 0's record when a process is missing at the launcher's barrier.
fn beside(pmi: &Pmi) -> PathBuf {
    let name = format!("pmi-{}", super::sources::file_name(pmi.job()));
    Path::new(".tidewater").join(name)
}

/// Returns the deadline of a barrier: three quarters of the time left. The rest is for finding out the missing
/// processes.
fn most_of(deadline: Deadline) -> Deadline {
    Deadline::after(deadline.left() * 3 / 4)
}

/// Reads the job token of a rendezvous at an address from the file in `TIDEWATER_TOKEN_FILE`. `address` is for
/// the error.
///
/// # Errors
/// [`MeetError::Token`].
pub fn token_for(address: &str) -> Result<JobToken, MeetError> {
    let file = std::env::var_os("TIDEWATER_TOKEN_FILE").unwrap_or_default();
    token::read_file(file.as_ref()).map_err(|source| MeetError::Token {
        address: address.to_owned(),
        source,
    })
}

fn begin(fd: u32, deadline: Deadline) -> Result<Pmi, MeetError> {
    let line = inherited::duplicate(fd).map_err(|source| MeetError::Descriptor { fd, source })?;
    Ok(Pmi::begin(line, deadline)?)
}
