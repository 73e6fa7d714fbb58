//! The handshake: both ends authenticate before either reveals anything.
//!
//! ```text
//! client                                        server
//! Hello{claims, random}            ->
//!                                  <-           Challenge{random}, or Refused
//! Proof{HMAC("client", transcript)} ->
//!                                  <-           Welcome{identity, HMAC("server", transcript)}, or Refused
//! ```
//! The HMACs are SHA-256 under the job's token. Each covers a label of its side and all frames before its
//! own in both directions, headers included; the server's also covers the identity in its own frame. So a
//! changed byte, a recorded handshake (both randoms are fresh) and an HMAC sent back to its maker (other
//! label) all fail. Comparison is in constant time.
//!
//! Until its proof verifies, a peer learns only a version mismatch or [`RefusalCode::Refused`]; the
//! precise reason goes to the log of the refusing end. After that it receives the reason. What follows
//! the handshake is neither encrypted nor authenticated. The token keeps strangers and mistakes out,
//! but does not stop an attacker that can change packets in transit.

use core::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::frame::{self, Frame, kind};
use super::hello::{
    Challenge, Features, Hello, Ids, Proof, Purpose, RANDOM_BYTES, Refused, Role, Roles, Welcome,
    version_of,
};
use super::refusal::{Refusal, RefusalCode};
use super::{PROTOCOL_VERSION, WireError};
use crate::mutants::{self, Mutant};

const CLIENT_LABEL: &[u8] = b"tidewater client proof\0";
const SERVER_LABEL: &[u8] = b"tidewater server proof\0";

/// Secret of a job: 32 random bytes that all of its processes hold, the key of the handshake's HMACs. `Debug`
/// does not show it. There is no `==`: tokens are compared through an HMAC, in constant time.
#[derive(Clone)]
pub struct JobToken([u8; 32]);

impl JobToken {
    /// Wraps 32 secret bytes as a token; the caller draws them at random.
    pub const fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Parses a token from 64 hexadecimal digits, upper or lower case, with optional white space around them; `None`
    /// for any other text.
    pub fn from_hex(text: &str) -> Option<Self> {
        let digits = text.trim().as_bytes();
        let mut bytes = [0; 32];
        if digits.len() != 2 * bytes.len() {
            return None;
        }
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let [high, low] = [pair[0], pair[1]].map(|digit| (digit as char).to_digit(16));
            *byte = (high? << 4 | low?) as u8;
        }
        Some(Self(bytes))
    }

    /// Formats the token as 64 hexadecimal digits. The text is a secret: only for a file of mode 0600.
    pub fn to_hex(&self) -> String {
        let digit = |value: u8| char::from_digit(u32::from(value), 16).unwrap_or('0');
        self.0
            .iter()
            .flat_map(|byte| [digit(byte >> 4), digit(byte & 15)])
            .collect()
    }

    fn mac(&self, label: &[u8], transcript: &[u8]) -> Hmac<Sha256> {
        let mut mac = <Hmac<Sha256> as KeyInit>::new_from_slice(&self.0)
            .expect("HMAC takes keys of every length");
        mac.update(label);
        mac.update(transcript);
        mac
    }
}

impl fmt::Debug for JobToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JobToken(..)")
    }
}

/// Reason why a handshake failed. The connection is of no more use: send the pending bytes, then close it.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum HandshakeError {
    /// The ends speak different protocol versions.
    #[error(
        "handshake: this end speaks protocol version {ours}, the peer {theirs}; \
         install the same release on both ends"
    )]
    Version {
        /// Protocol version of this end.
        ours: u32,
        /// Protocol version of the peer.
        theirs: u32,
    },
    /// The bytes are not a message, or not the one that belongs here.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The peer's HMAC does not verify: the peer holds another token.
    #[error(
        "handshake: the peer does not hold this job's token; \
         check that both ends were given the same one (TIDEWATER_TOKEN_FILE)"
    )]
    PeerUnauthenticated,
    /// The server refused without a reason right after this client's proof: the HMAC did not verify there.
    #[error(
        "handshake: the peer does not take this process's job token; \
         check that both ends were given the same one (TIDEWATER_TOKEN_FILE)"
    )]
    TokenRefused,
    /// This end refuses a peer that holds the token. A server has appended the refusal for the peer; a client sends
    /// none.
    #[error("handshake: refused a {role:?} of rank {rank}: {refusal}")]
    Rejected {
        /// Reason why this end refuses the peer.
        refusal: Refusal,
        /// Role of the peer.
        role: Role,
        /// Rank or number of the peer in that role; [`RANK_ANY`](super::hello::RANK_ANY) if it asked for one.
        rank: u32,
    },
    /// The server refuses this client, for this reason.
    #[error("handshake: the peer says: {0}")]
    RefusedByPeer(Refusal),
    /// A frame was handed to a handshake that has succeeded or failed before.
    #[error("handshake: it is over; this is a defect of the caller")]
    Over,
}

/// State machine of the handshake's client, for every connection that a process opens. It does no I/O.
#[derive(Debug)]
pub struct ClientHandshake {
    token: JobToken,
    hello: Hello,
    transcript: Vec<u8>,
    state: ClientState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ClientState {
    AwaitChallenge,
    AwaitWelcome,
    Over,
}

impl ClientHandshake {
    /// Starts the handshake and appends the frame of `hello`, the first message, to `out`, for the caller to send.
    /// `hello.random` must be fresh from the system's random source.
    ///
    /// # Errors
    /// The namespace is empty or too long, or holds control characters. `out` is unchanged.
    pub fn start(
        token: &JobToken,
        hello: Hello,
        out: &mut Vec<u8>,
    ) -> Result<Self, HandshakeError> {
        let mut transcript = Vec::with_capacity(512);
        frame::append_with(&mut transcript, kind::HELLO, |body| hello.encode(body))?;
        out.extend_from_slice(&transcript);
        let state = ClientState::AwaitChallenge;
        Ok(Self {
            token: token.clone(),
            hello,
            transcript,
            state,
        })
    }

    /// Handles the next frame of the server and appends the answer, if there is one, to `out`, for the caller to
    /// send. `Some`: both ends are authenticated, ids and features match, and the handshake is over. `None`: a
    /// further frame must follow.
    ///
    /// # Errors
    /// [`HandshakeError`]: the caller closes the connection. `out` is unchanged, and each further call fails with
    /// [`HandshakeError::Over`].
    pub fn step(
        &mut self,
        frame: Frame<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Option<Welcome>, HandshakeError> {
        let state = core::mem::replace(&mut self.state, ClientState::Over);
        match (state, frame.kind()) {
            (ClientState::Over, _) => Err(HandshakeError::Over),
            (_, kind::REFUSED) => Err(refused_by_peer(frame, state)),
            (ClientState::AwaitChallenge, kind::CHALLENGE) => {
                self.prove(frame, out)?;
                self.state = ClientState::AwaitWelcome;
                Ok(None)
            }
            (ClientState::AwaitWelcome, kind::WELCOME) => self.verify(frame).map(Some),
            (ClientState::AwaitChallenge, found) => Err(unexpected(found, kind::CHALLENGE)),
            (ClientState::AwaitWelcome, found) => Err(unexpected(found, kind::WELCOME)),
        }
    }

    fn prove(&mut self, frame: Frame<'_>, out: &mut Vec<u8>) -> Result<(), HandshakeError> {
        same_version(frame.body())?;
        Challenge::decode(frame.body())?;
        self.transcript.extend_from_slice(frame.bytes());
        let mac = self
            .token
            .mac(CLIENT_LABEL, &self.transcript)
            .finalize()
            .into_bytes();
        let start = self.transcript.len();
        frame::append(&mut self.transcript, kind::PROOF, &mac)?;
        out.extend_from_slice(&self.transcript[start..]);
        Ok(())
    }

    fn verify(&self, frame: Frame<'_>) -> Result<Welcome, HandshakeError> {
        let welcome = Welcome::decode(frame.body())?;
        let (authenticated, _) = frame.body().split_at(Welcome::AUTHENTICATED_BYTES);
        let mut mac = self.token.mac(SERVER_LABEL, &self.transcript);
        mac.update(authenticated);
        mac.verify_slice(&welcome.mac)
            .map_err(|_| HandshakeError::PeerUnauthenticated)?;
        // The server has checked the same; a client that expects one server also checks.
        let refusal = ids_refusal(self.hello.ids, welcome.ids, true)
            .or_else(|| features_refusal(self.hello.features, welcome.features));
        match refusal {
            None => Ok(welcome),
            Some(refusal) => Err(HandshakeError::Rejected {
                refusal,
                role: welcome.role,
                rank: welcome.number,
            }),
        }
    }
}

/// Set of namespaces (jobs) from which a listening process accepts workers and observers. Other roles belong to no
/// job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Namespaces {
    /// Every namespace.
    Any,
    /// Only the namespaces listed here.
    Only(Vec<String>),
}

/// Identity of a listening process, and its rules for admission: namespaces, and roles for control connections
/// and lanes.
#[derive(Debug, Clone)]
pub struct ServerPolicy {
    /// Secret of the job.
    pub token: JobToken,
    /// Features that this end offers and requires.
    pub features: Features,
    /// Ids of this process; the caller makes none of the three 0, which stands for "unknown".
    pub ids: Ids,
    /// Role of this process.
    pub role: Role,
    /// Number of this process in its role.
    pub number: u32,
    /// Namespaces that this process serves.
    pub namespaces: Namespaces,
    /// Roles admitted for control connections.
    pub control_roles: Roles,
    /// Roles admitted for lanes: workers and observers on servers, none on the coordinator.
    pub lane_roles: Roles,
    /// Whether control connections may query the ids by sending 0: true on a coordinator, where a
    /// process learns the ids. Lanes never may.
    pub tells_ids: bool,
}

impl ServerPolicy {
    /// Returns the first reason to refuse the authenticated sender of `hello`: ids, namespace (of workers and
    /// observers only), role or features. `None` if the policy admits the sender.
    fn refusal(&self, hello: &Hello) -> Option<Refusal> {
        let is_control = hello.purpose == Purpose::Control;
        let roles = if is_control {
            self.control_roles
        } else {
            self.lane_roles
        };
        if let Some(refusal) = ids_refusal(hello.ids, self.ids, self.tells_ids && is_control) {
            return Some(refusal);
        }
        let served = match &self.namespaces {
            // A namespace is that of a job; servers and operators have none.
            _ if !matches!(hello.role, Role::Worker | Role::Observer) => true,
            Namespaces::Any => true,
            Namespaces::Only(names) => names.contains(&hello.namespace),
        };
        if !served {
            let refusal = Refusal::new(RefusalCode::WrongNamespace, [0; 4]);
            return Some(refusal.with_text(&hello.namespace));
        }
        if !roles.contains(hello.role) {
            let numbers = [u64::from(hello.role.code()), 0, 0, 0];
            return Some(Refusal::new(RefusalCode::RoleNotAllowed, numbers));
        }
        features_refusal(self.features, hello.features)
    }
}

/// State machine of the handshake's listening end, one for each accepted connection. It does no I/O.
#[derive(Debug)]
pub struct ServerHandshake {
    random: [u8; RANDOM_BYTES],
    transcript: Vec<u8>,
    state: ServerState,
}

#[derive(Debug)]
enum ServerState {
    AwaitHello,
    AwaitProof(Hello),
    Over,
}

impl ServerHandshake {
    /// Creates the state before the first frame. `random` must be fresh from the system's random source.
    pub const fn new(random: [u8; RANDOM_BYTES]) -> Self {
        Self {
            random,
            transcript: Vec::new(),
            state: ServerState::AwaitHello,
        }
    }

    /// Handles the next frame of the client and appends the answer to `out`, a refusal included, for the caller to
    /// send. `Some`: the client's hello; the client holds the token, the policy and `admit` accept it, and the
    /// handshake is over. `None`: a further frame must follow. `admit` runs last, only for a client that the policy
    /// admits, and may still refuse, with a reason that the client receives (an unknown session, say).
    ///
    /// # Errors
    /// [`HandshakeError`] for this end's log; the caller sends `out`, which has the refusal, then closes the
    /// connection. Each further call returns [`HandshakeError::Over`] and appends nothing.
    pub fn step(
        &mut self,
        policy: &ServerPolicy,
        frame: Frame<'_>,
        out: &mut Vec<u8>,
        admit: impl FnOnce(&Hello) -> Result<(), Refusal>,
    ) -> Result<Option<Hello>, HandshakeError> {
        let result = match core::mem::replace(&mut self.state, ServerState::Over) {
            ServerState::AwaitHello => self.hear(frame, out).map(|()| None),
            ServerState::AwaitProof(hello) => {
                self.judge(policy, hello, frame, out, admit).map(Some)
            }
            ServerState::Over => return Err(HandshakeError::Over),
        };
        if let Err(error) = &result {
            let refused = Refused {
                version: PROTOCOL_VERSION,
                refusal: refusal_for(error),
            };
            frame::append_with(out, kind::REFUSED, |body| {
                refused.encode(body);
                Ok(())
            })?;
        }
        result
    }

    fn hear(&mut self, frame: Frame<'_>, out: &mut Vec<u8>) -> Result<(), HandshakeError> {
        if frame.kind() != kind::HELLO {
            return Err(unexpected(frame.kind(), kind::HELLO));
        }
        same_version(frame.body())?;
        let hello = Hello::decode(frame.body())?;
        self.transcript.extend_from_slice(frame.bytes());
        let start = self.transcript.len();
        let challenge = Challenge {
            random: self.random,
        };
        frame::append_with(&mut self.transcript, kind::CHALLENGE, |body| {
            challenge.encode(body);
            Ok(())
        })?;
        out.extend_from_slice(&self.transcript[start..]);
        self.state = ServerState::AwaitProof(hello);
        Ok(())
    }

    fn judge(
        &mut self,
        policy: &ServerPolicy,
        hello: Hello,
        frame: Frame<'_>,
        out: &mut Vec<u8>,
        admit: impl FnOnce(&Hello) -> Result<(), Refusal>,
    ) -> Result<Hello, HandshakeError> {
        if frame.kind() != kind::PROOF {
            return Err(unexpected(frame.kind(), kind::PROOF));
        }
        let proof = Proof::decode(frame.body())?;
        let expected = policy.token.mac(CLIENT_LABEL, &self.transcript);
        expected
            .verify_slice(&proof.mac)
            .map_err(|_| HandshakeError::PeerUnauthenticated)?;
        self.transcript.extend_from_slice(frame.bytes());
        let judged = policy.refusal(&hello).map_or_else(|| admit(&hello), Err);
        if let Err(refusal) = judged {
            return Err(HandshakeError::Rejected {
                refusal,
                role: hello.role,
                rank: hello.rank,
            });
        }
        let ServerPolicy {
            features,
            ids,
            role,
            number,
            ..
        } = *policy;
        let welcome = Welcome {
            features,
            ids,
            role,
            number,
            mac: [0; RANDOM_BYTES],
        };
        frame::append_with(out, kind::WELCOME, |body| {
            let start = body.len();
            welcome.encode_authenticated(body);
            let mut mac = policy.token.mac(SERVER_LABEL, &self.transcript);
            mac.update(&body[start..]);
            body.extend_from_slice(&mac.finalize().into_bytes());
            Ok(())
        })?;
        Ok(hello)
    }
}

/// Returns the refusal that the peer receives for `error`. An authenticated peer gets the precise reason, any
/// other only a version mismatch or [`RefusalCode::Refused`].
fn refusal_for(error: &HandshakeError) -> Refusal {
    match error {
        HandshakeError::Rejected { refusal, .. } => refusal.clone(),
        HandshakeError::Version { ours, theirs } => Refusal::new(
            RefusalCode::Version,
            [u64::from(*ours), u64::from(*theirs), 0, 0],
        ),
        _ => Refusal::new(RefusalCode::Refused, [0; 4]),
    }
}

fn refused_by_peer(frame: Frame<'_>, state: ClientState) -> HandshakeError {
    match Refused::decode(frame.body()) {
        Err(error) => HandshakeError::Wire(error),
        Ok(Refused { version, .. }) if version != PROTOCOL_VERSION => HandshakeError::Version {
            ours: PROTOCOL_VERSION,
            theirs: version,
        },
        // A server that accepted our hello has one reason for a bare "refused": our proof.
        Ok(Refused { refusal, .. })
            if refusal.code == RefusalCode::Refused && state == ClientState::AwaitWelcome =>
        {
            HandshakeError::TokenRefused
        }
        Ok(Refused { refusal, .. }) => HandshakeError::RefusedByPeer(refusal),
    }
}

fn same_version(body: &[u8]) -> Result<(), HandshakeError> {
    let malformed = WireError::Malformed {
        what: "handshake",
        why: "has no version",
    };
    match version_of(body).ok_or(malformed)? {
        PROTOCOL_VERSION => Ok(()),
        theirs => Err(HandshakeError::Version {
            ours: PROTOCOL_VERSION,
            theirs,
        }),
    }
}

const fn unexpected(found: u16, expected: u16) -> HandshakeError {
    HandshakeError::Wire(WireError::Kind { found, expected })
}

/// Compares the ids that the client expects (`meant`) with those of the listening process (`here`), in the order
/// cluster, epoch, incarnation. `None` if they match, else a refusal with the first difference. An expected id of 0
/// matches any value if `may_ask`.
fn ids_refusal(meant: Ids, here: Ids, may_ask: bool) -> Option<Refusal> {
    let pairs = [
        (RefusalCode::WrongCluster, meant.cluster.0, here.cluster.0),
        (RefusalCode::WrongEpoch, meant.epoch, here.epoch),
        (
            RefusalCode::WrongIncarnation,
            meant.incarnation.0,
            here.incarnation.0,
        ),
    ];
    let compared = if mutants::on(Mutant::StaleEpochAdmitted) {
        1
    } else {
        pairs.len()
    };
    let wrong = pairs
        .into_iter()
        .take(compared)
        .find(|&(_, m, h)| m != h && !(m == 0 && may_ask));
    wrong.map(|(code, meant, here)| Refusal::new(code, [meant, here, 0, 0]))
}

fn features_refusal(ours: Features, theirs: Features) -> Option<Refusal> {
    let missing = ours.missing(theirs);
    (missing != 0).then(|| Refusal::new(RefusalCode::Features, [missing, 0, 0, 0]))
}

#[cfg(test)]
pub(crate) mod tests;
