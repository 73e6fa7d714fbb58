//! The control connection of a worker to its coordinator, which outlives the coordinator's restart.
//!
//! A coordinator that journals its state offers [`Features::RESUMES`]. When the connection to it ends, the
//! next call that uses it dials again, for as long as its caller allows:
//!
//! ```text
//! dial -> Join with the incarnation of the first one -> Joined -> each unanswered request under its number
//! ```
//! The coordinator answers a number that it has answered before from its journal, so a request is carried
//! out once. The connection of any other coordinator is final.

use std::collections::BTreeMap;
use std::io;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use tidewater_protocol::ids::Incarnation;
use tidewater_protocol::wire::control::{
    CoordinatorAnswer, CoordinatorRequest, Join, Joined, MemberBarrier, Message as _, Notice,
};
use tidewater_protocol::wire::handshake::{HandshakeError, JobToken};
use tidewater_protocol::wire::hello::{Features, Role, Welcome};
use tidewater_protocol::wire::refusal::Refusal;
use tidewater_runtime::clock::{self, Deadline};

use crate::conn::{ConnError, ControlConn};
use crate::dial::{self, Claims, DialError};

/// Pause between two attempts to reach a coordinator that is absent.
const PAUSE: Duration = Duration::from_millis(50);
/// Shortest time of an attempt: that of a caller that only looks whether the job goes on.
const ATTEMPT_MIN: Duration = Duration::from_millis(50);
/// Longest time of an attempt.
const ATTEMPT_MAX: Duration = Duration::from_secs(2);

/// A coordinator that cannot be reached.
#[derive(Debug)]
struct Absence {
    since: Instant,
    why: String,
    /// Time of the next attempt.
    next: Deadline,
}

/// A request with an answer that [`CoordinatorConn::poll`] has not returned.
#[derive(Debug)]
struct Pending {
    request: CoordinatorRequest,
    sent: Instant,
}

/// A worker's or observer's connection to its coordinator.
#[derive(Debug)]
pub struct CoordinatorConn {
    address: String,
    token: JobToken,
    claims: Claims,
    /// The Join that was sent; before it the connection is final.
    join: Option<Join>,
    conn: ControlConn<TcpStream>,
    /// Requests that the caller awaits, kept for a coordinator that resumes.
    pending: BTreeMap<u64, Pending>,
    absent: Option<Absence>,
    /// The Join under way.
    joining: Option<u64>,
    /// Refusal of a Join, which is final.
    refused: Option<Refusal>,
    /// Answer to the last Join, until the caller takes it.
    joined: Option<Joined>,
}

impl CoordinatorConn {
    /// Dials the coordinator, until `deadline` for one that is starting.
    ///
    /// # Errors
    /// [`DialError`].
    pub fn open(
        address: &str,
        token: &JobToken,
        claims: &Claims,
        deadline: Deadline,
    ) -> Result<Self, DialError> {
        let conn = dial::control(address, token, claims, deadline)?;
        let mut claims = claims.clone();
        claims.ids.cluster = conn.welcome().ids.cluster;
        Ok(Self {
            address: address.to_owned(),
            token: token.clone(),
            claims,
            join: None,
            conn,
            pending: BTreeMap::new(),
            absent: None,
            joining: None,
            refused: None,
            joined: None,
        })
    }

    /// Sends `join`, with a random incarnation. [`Self::wait_joined`] returns its answer.
    ///
    /// # Errors
    /// The connection's failure, as [`ConnError::Io`] also of the random number.
    pub fn join(&mut self, mut join: Join, deadline: Deadline) -> Result<(), ConnError> {
        let random = getrandom::u64().map_err(|source| ConnError::Io {
            operation: "draw a random number",
            source: io::Error::other(source.to_string()),
        })?;
        join.incarnation = Incarnation(random.max(1));
        let request = CoordinatorRequest::Join(join.clone());
        self.joining = Some(self.conn.start(&request, || deadline.left())?);
        self.join = Some(join);
        Ok(())
    }

    /// Waits until `until` for the answer to the Join; `None`: it has not arrived.
    ///
    /// # Errors
    /// The refusal of the Join; the connection's failure.
    pub fn wait_joined(&mut self, until: Deadline) -> Result<Option<Joined>, ConnError> {
        loop {
            if let Err(error) = self.settle(until) {
                self.note(error)?;
            }
            if self.joined.is_some() || until.passed() {
                return Ok(self.joined.take());
            }
        }
    }

    /// Identity of the coordinator.
    pub const fn welcome(&self) -> &Welcome {
        self.conn.welcome()
    }

    /// How long the coordinator has been absent and why; `None` while it is connected.
    pub fn absence(&self) -> Option<String> {
        let absent = self.absent.as_ref()?;
        let seconds = absent.since.elapsed().as_secs_f64();
        let why = &absent.why;
        Some(format!(
            "it is lost for {seconds:.1} s ({why}); start it again with its --state directory"
        ))
    }

    /// Sends a request, or keeps it until the coordinator is back. [`Self::poll`] returns its answer.
    ///
    /// # Errors
    /// [`ConnError::TooMany`]; an invalid request; the connection's failure.
    pub fn start(
        &mut self,
        request: &CoordinatorRequest,
        deadline: Deadline,
    ) -> Result<u64, ConnError> {
        if !self.resumes() {
            return self.conn.start(request, || deadline.left());
        }
        request.validate()?;
        let id = self.conn.reserve()?;
        let pending = Pending {
            request: request.clone(),
            sent: clock::now(),
        };
        self.pending.insert(id, pending);
        if !self.is_absent()
            && let Err(error) = self.conn.send_again(id, request, || deadline.left())
            && let Err(error) = self.note(error)
        {
            self.forget(id);
            return Err(error);
        }
        Ok(id)
    }

    /// Answer of a request that was started; `None`: it has not arrived.
    ///
    /// # Errors
    /// The coordinator's refusal; the connection's failure, unless the coordinator returns.
    pub fn poll(
        &mut self,
        id: u64,
        until: Deadline,
    ) -> Result<Option<CoordinatorAnswer>, ConnError> {
        if let Err(error) = self.settle(until) {
            return self.note(error).map(|()| None);
        }
        if self.is_absent() {
            return Ok(None);
        }
        let polled = self.conn.poll::<CoordinatorRequest>(id, || until.left());
        match polled {
            Ok(None) => {}
            Ok(Some(_)) | Err(ConnError::Refused(_)) => {
                self.pending.remove(&id);
            }
            Err(error) => return self.note(error).map(|()| None),
        }
        polled
    }

    /// Drops the answer of a request that was started, when it arrives. The request goes on.
    pub fn forget(&mut self, id: u64) {
        self.pending.remove(&id);
        self.conn.forget(id);
    }

    /// The oldest notice kept, without reading.
    pub fn take_notice(&mut self) -> Option<Notice> {
        self.conn.take_notice()
    }

    /// Waits for a notice. While the coordinator is absent this is one attempt to reach it.
    ///
    /// # Errors
    /// [`ConnError::TimedOut`] without a notice, also while the coordinator is absent; the connection's
    /// failure.
    pub fn wait_notice(&mut self, until: Deadline) -> Result<Notice, ConnError> {
        let late = ConnError::TimedOut {
            operation: "waiting for a notice",
        };
        if let Err(error) = self.settle(until) {
            self.note(error)?;
        }
        if self.is_absent() {
            return Err(late);
        }
        match self.conn.wait_notice(|| until.left()) {
            Err(ConnError::TimedOut { .. }) => Err(late),
            Err(error) => Err(self.note(error).err().unwrap_or(late)),
            Ok(notice) => Ok(notice),
        }
    }

    const fn resumes(&self) -> bool {
        self.join.is_some() && self.conn.welcome().features.offered & Features::RESUMES != 0
    }

    /// Whether the coordinator is absent, or has not admitted this process again.
    pub const fn is_absent(&self) -> bool {
        self.absent.is_some()
    }

    /// Notes that the coordinator is lost, if it is one that returns.
    fn note(&mut self, error: ConnError) -> Result<(), ConnError> {
        let is_lost = matches!(
            error,
            ConnError::Closed { .. } | ConnError::Io { .. } | ConnError::Broken
        );
        if !is_lost || !self.resumes() {
            return Err(error);
        }
        if let Some(id) = self.joining.take() {
            self.conn.forget(id);
        }
        let why = error.to_string();
        let since = self.absent.as_ref().map_or_else(clock::now, |a| a.since);
        let next = match self.absent {
            // Its listener may be back at once.
            None => Deadline::after(Duration::ZERO),
            Some(_) => Deadline::after(PAUSE),
        };
        self.absent = Some(Absence { since, why, next });
        Ok(())
    }

    /// Brings the connection to a coordinator that is absent back, as far as that is possible until
    /// `until`, and takes the answer to a Join.
    fn settle(&mut self, until: Deadline) -> Result<(), ConnError> {
        if let Some(refusal) = &self.refused {
            return Err(ConnError::Refused(refusal.clone()));
        }
        if let Some(absent) = &self.absent
            && self.joining.is_none()
        {
            std::thread::sleep(absent.next.min(until).left());
            if !absent.next.passed() {
                return Ok(());
            }
            let time = until.left().clamp(ATTEMPT_MIN, ATTEMPT_MAX);
            self.dial(Deadline::after(time))?;
        }
        let Some(id) = self.joining else {
            return Ok(());
        };
        let polled = self.conn.poll::<CoordinatorRequest>(id, || until.left());
        if matches!(polled, Ok(None)) {
            return Ok(());
        }
        // The connection knows the number no more after a refusal.
        self.joining = None;
        self.conn.forget(id);
        if let Err(ConnError::Refused(refusal)) = &polled {
            self.refused = Some(refusal.clone());
        }
        let Some(answer) = polled? else {
            return Ok(());
        };
        let CoordinatorAnswer::Joined(joined) = answer else {
            return Err(tidewater_protocol::wire::WireError::Malformed {
                what: CoordinatorAnswer::NAME,
                why: "answers Join with something else",
            }
            .into());
        };
        if self.claims.role == Role::Worker {
            self.claims.rank = joined.rank;
        }
        if let Some(join) = &mut self.join {
            join.returns = true;
        }
        self.joined = Some(joined);
        match self.absent.take() {
            Some(_) => self.send_pending(),
            None => Ok(()),
        }
    }

    /// Dials the coordinator and sends Join over the new connection.
    fn dial(&mut self, deadline: Deadline) -> Result<(), ConnError> {
        let mut conn = match dial::control(&self.address, &self.token, &self.claims, deadline) {
            Ok(conn) => conn,
            Err(DialError::Handshake {
                source:
                    source @ (ConnError::Refused(_)
                    | ConnError::Wire(_)
                    | ConnError::Handshake(
                        HandshakeError::RefusedByPeer(_)
                        | HandshakeError::TokenRefused
                        | HandshakeError::PeerUnauthenticated
                        | HandshakeError::Version { .. },
                    )),
                ..
            }) => return Err(refused(source)),
            Err(error) => return Err(unreachable(&error)),
        };
        let [known, found] =
            [self.conn.welcome(), conn.welcome()].map(|welcome| welcome.ids.incarnation.0);
        // Every start with the newest journal has a number of its own.
        if found <= known {
            return Err(ConnError::Older { found, known });
        }
        let Some(join) = self.join.clone() else {
            return Err(ConnError::Broken);
        };
        let request = CoordinatorRequest::Join(join);
        let sent = conn.succeed(&mut self.conn, &request, || deadline.left());
        let id = sent.map_err(|error| unreachable(&error))?;
        self.conn = conn;
        self.joining = Some(id);
        Ok(())
    }

    /// Sends the unanswered requests again, under their numbers.
    fn send_pending(&mut self) -> Result<(), ConnError> {
        let deadline = Deadline::after(ATTEMPT_MAX);
        for (&id, pending) in &self.pending {
            // Refusals are in no journal: a repeated request could be carried out, and its caller read the refusal.
            if self.conn.has_answer(id) {
                continue;
            }
            let mut request = pending.request.clone();
            if let CoordinatorRequest::Barrier { timeout_ms, .. }
            | CoordinatorRequest::MemberBarrier(MemberBarrier { timeout_ms, .. }) = &mut request
            {
                // The caller's deadline has not moved.
                let passed = u64::try_from(pending.sent.elapsed().as_millis());
                *timeout_ms = timeout_ms.saturating_sub(passed.unwrap_or(u64::MAX));
            }
            self.conn.send_again(id, &request, || deadline.left())?;
        }
        Ok(())
    }
}

/// The error of an attempt that another one may follow.
fn unreachable(error: &dyn std::error::Error) -> ConnError {
    ConnError::Io {
        operation: "connect to the coordinator again",
        source: io::Error::other(error.to_string()),
    }
}

/// The error of a handshake, with a refusal as the coordinator gave it.
fn refused(source: ConnError) -> ConnError {
    match source {
        ConnError::Handshake(HandshakeError::RefusedByPeer(refusal)) => ConnError::Refused(refusal),
        other => other,
    }
}
