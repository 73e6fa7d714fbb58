//! How the card of rank 0 comes to the others.

use std::io;
use std::time::Duration;

use super::card::Card;
use super::directory::{self, DirectoryError, Posted};
use super::pmi1::{Pmi, PmiError};
use super::{Place, Rendezvous, TokenError, inherited, token};
use crate::clock::Deadline;
use crate::wire::handshake::JobToken;

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
    /// The launcher has no card.
    #[error("rank 0 left no card with the launcher; is it a program that meets by PMI too?")]
    NotPut,
    /// What it has is none.
    #[error("the launcher's card: {0}")]
    Garbled(#[from] super::card::CardError),
    /// There is nobody to meet.
    #[error("a process that is alone meets nobody")]
    Alone,
}

/// Tells the others where rank 0 is. What is returned is kept as long as somebody may look.
///
/// # Errors
/// [`MeetError`].
///
/// # Cost
/// By PMI it waits until every process is there to take it.
pub fn publish(
    place: &Place,
    card: &Card,
    deadline: Deadline,
) -> Result<Option<Posted>, MeetError> {
    match &place.rendezvous {
        None => Err(MeetError::Alone),
        Some(Rendezvous::Directory(path)) => Ok(Some(directory::post(path, card)?)),
        // All know the address.
        Some(Rendezvous::Address(_)) => Ok(None),
        Some(Rendezvous::Pmi { fd }) => {
            let mut pmi = begin(*fd, deadline)?;
            pmi.put(KEY, &card.encode())?;
            pmi.barrier()?;
            pmi.finish()?;
            Ok(None)
        }
    }
}

/// The card of rank 0; waits for it until `deadline`.
///
/// # Errors
/// [`MeetError`].
pub fn find(place: &Place, deadline: Deadline) -> Result<Card, MeetError> {
    match &place.rendezvous {
        None => Err(MeetError::Alone),
        Some(Rendezvous::Pmi { fd }) => {
            let mut pmi = begin(*fd, deadline)?;
            pmi.barrier()?;
            let text = pmi.get(KEY)?.ok_or(MeetError::NotPut)?;
            pmi.finish()?;
            Ok(Card::parse(text.as_bytes())?)
        }
        Some(Rendezvous::Address(address)) => {
            let token = token_for(address)?;
            Ok(Card::new(place.size, token, [address.clone()]))
        }
        Some(Rendezvous::Directory(path)) => {
            let waited = deadline.left();
            let mut pause = PAUSE[0];
            loop {
                if let Some((card, _)) = directory::read(path)? {
                    return Ok(card);
                }
                if deadline.left() <= pause {
                    let place = path.display().to_string();
                    return Err(MeetError::NoCard { place, waited });
                }
                std::thread::sleep(pause);
                pause = (pause * 2).min(PAUSE[1]);
            }
        }
    }
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
