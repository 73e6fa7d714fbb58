//! How the card of rank 0 comes to the others.
//!
//! PMI-1 knows nothing but "all have come": who waits at its barrier is not told of whom. So when the
//! barrier has not been passed after three quarters of the time, rank 0 leaves its card in the working
//! directory, under the name that the launcher's words have, and those that have come go to the
//! coordinator by it, which names the others. Where the directory is not one for all of them, nobody
//! can be named.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::bootstrap::BootstrapRecord;
use super::directory::{self, DirectoryError, Posted};
use super::pmi1::{Pmi, PmiError};
use super::{Place, Rendezvous, TokenError, inherited, token};
use tidewater_protocol::wire::handshake::JobToken;
use tidewater_runtime::clock::Deadline;

/// The card's key at the launcher.
const KEY: &str = "tidewater-card";
/// First and longest pause between two looks into a directory.
const PAUSE: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(250)];

/// Why processes do not meet.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MeetError {
    /// The directory.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// The launcher's exchange.
    #[error(transparent)]
    Pmi(#[from] PmiError),
    /// The launcher's descriptor.
    #[error("PMI_FD={fd} cannot be used: {source}; give --rendezvous DIRECTORY to meet without it")]
    Descriptor {
        /// Its number.
        fd: u32,
        /// What the system said.
        source: io::Error,
    },
    /// The job token that an address needs.
    #[error("meeting at {address} needs a job token that all processes have: {source}")]
    Token {
        /// Where rank 0 listens.
        address: String,
        /// Why there is none.
        source: TokenError,
    },
    /// Nobody left a card.
    #[error(
        "no card of rank 0 in {place} for {waited:?}: has rank 0 been started, and do all processes \
         see the same directory?"
    )]
    NoCard {
        /// Where.
        place: String,
        /// How long it was waited for.
        waited: Duration,
    },
    /// Somebody has not come to the launcher's barrier, and rank 0 cannot be asked who.
    #[error(
        "PMI: not all processes have come to the barrier within {waited:?}, and rank 0 has left no card in \
         {place}: either it has not come itself, or it has another working directory; look whether all \
         were started"
    )]
    NotAll {
        /// Where the card would be.
        place: String,
        /// How long was waited.
        waited: Duration,
    },
    /// The launcher has no card.
    #[error("rank 0 left no card with the launcher; is it a program that meets by PMI too?")]
    NotPut,
    /// What it has is none.
    #[error("the launcher's card: {0}")]
    Garbled(#[from] super::bootstrap::BootstrapError),
    /// There is nobody to meet.
    #[error("a process that is alone meets nobody")]
    Alone,
}

/// What is kept until all have come.
#[derive(Debug, Default)]
pub struct Pending {
    /// The card, where somebody may look for it.
    _posted: Option<Posted>,
    /// The launcher's barrier, at which somebody has not come yet.
    barrier: Option<Pmi>,
    /// Where another one's card lies until all have come.
    theirs: Option<PathBuf>,
}

/// Launchers kill all when one ends: who has read a card leaves its owner so long to remove it, and
/// the folders that it has made.
const LINGER: Duration = Duration::from_secs(1);

impl Pending {
    /// All have come, by the coordinator's word. What the launcher still has to say is heard, so
    /// that it knows that this process may end.
    ///
    /// # Errors
    /// [`MeetError::Pmi`]: it does not say it before the deadline of the meeting.
    pub fn settle(self) -> Result<(), MeetError> {
        Ok(self.barrier.map_or(Ok(()), Pmi::finish)?)
    }

    /// They have not all come, and this process is about to end.
    pub fn give_up(self) {
        let Some(path) = self.theirs else { return };
        let limit = Deadline::after(LINGER);
        while !limit.passed() && path.exists() {
            std::thread::sleep(PAUSE[0]);
        }
        // The folder around it goes last.
        std::thread::sleep(PAUSE[1].min(limit.left()));
    }
}

/// Tells the others where rank 0 is. What is returned is kept as long as somebody may look.
///
/// # Errors
/// [`MeetError`].
///
/// # Cost
/// By PMI it waits until every process is there to take it, or for three quarters of the time.
pub fn publish(
    place: &Place,
    card: &BootstrapRecord,
    deadline: Deadline,
) -> Result<Pending, MeetError> {
    match &place.rendezvous {
        None => Err(MeetError::Alone),
        Some(Rendezvous::Directory(path)) => Ok(Pending {
            _posted: Some(directory::post(path, card)?),
            ..Pending::default()
        }),
        // All know the address.
        Some(Rendezvous::Address(_)) => Ok(Pending::default()),
        Some(Rendezvous::Pmi { fd }) => {
            let mut pmi = begin(*fd, deadline)?;
            pmi.put(KEY, &card.encode())?;
            if pmi.barrier(most_of(deadline))? {
                pmi.finish()?;
                return Ok(Pending::default());
            }
            // That it cannot be left is no reason to fail: somebody may still come to the barrier.
            let posted = directory::post(&beside(&pmi), card);
            Ok(Pending {
                _posted: posted.ok(),
                barrier: Some(pmi),
                theirs: None,
            })
        }
    }
}

/// The card of rank 0; waits for it until `deadline`. With it what is kept until all have come.
///
/// # Errors
/// [`MeetError`].
pub fn find(place: &Place, deadline: Deadline) -> Result<(BootstrapRecord, Pending), MeetError> {
    let card = match &place.rendezvous {
        None => return Err(MeetError::Alone),
        Some(Rendezvous::Pmi { fd }) => return find_by_pmi(*fd, deadline),
        Some(Rendezvous::Address(address)) => {
            let token = token_for(address)?;
            BootstrapRecord::new(place.size, token, [address.clone()])
        }
        Some(Rendezvous::Directory(path)) => {
            let waited = deadline.left();
            let found = find_in(path, deadline)?;
            found.ok_or_else(|| MeetError::NoCard {
                place: path.display().to_string(),
                waited,
            })?
        }
    };
    Ok((card, Pending::default()))
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
    let card = found.ok_or_else(|| MeetError::NotAll {
        place: path.display().to_string(),
        waited,
    })?;
    let pending = Pending {
        _posted: None,
        barrier: Some(pmi),
        theirs: Some(path),
    };
    Ok((card, pending))
}

/// The card that lies in a directory, or comes to lie there before the deadline.
fn find_in(path: &Path, deadline: Deadline) -> Result<Option<BootstrapRecord>, MeetError> {
    let mut pause = PAUSE[0];
    loop {
        if let Some((card, _)) = directory::read(path)? {
            return Ok(Some(card));
        }
        if deadline.left() <= pause {
            return Ok(None);
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(PAUSE[1]);
    }
}

/// Where rank 0 leaves its card when somebody does not come to the launcher's barrier.
fn beside(pmi: &Pmi) -> PathBuf {
    let name = format!("pmi-{}", super::sources::file_name(pmi.job()));
    Path::new(".tidewater").join(name)
}

/// The time at a barrier; the rest is for asking who has not come.
fn most_of(deadline: Deadline) -> Deadline {
    Deadline::after(deadline.left() * 3 / 4)
}

/// The token of a job that meets at an address: the one of `TIDEWATER_TOKEN_FILE`.
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
