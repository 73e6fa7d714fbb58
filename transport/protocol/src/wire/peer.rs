//! One accepted control connection inside an event loop: buffers and handshake, no socket.
//!
//! ```text
//! loop {
//!     read some bytes; feed them                     feed() says how many were taken
//!     while let Some(event) = peer.next(..)? { .. }  admitted, or a message; queue() answers
//!     write peer.outgoing(); peer.sent(n)            also after an error: it may hold the refusal
//! }
//! ```

use super::WireError;
use super::control::{self, Message};
use super::error::at_most;
use super::frame::{Decoder, Frame};
use super::handshake::{HandshakeError, ServerHandshake, ServerPolicy};
use super::hello::{Hello, RANDOM_BYTES, Role};
use super::refusal::Refusal;
use crate::limits::{CONTROL_QUEUE_BYTES_MAX, SERVER_QUEUE_BYTES_MAX};

/// Event of a control connection: the end of its handshake, or a received message.
#[derive(Debug, PartialEq, Eq)]
pub enum PeerEvent<'a> {
    /// The peer with this hello is authenticated and admitted; comes once, before all messages. If the purpose of
    /// the hello is a lane, call [`ControlPeer::into_buffers`]: the connection then belongs to the lane's applier.
    Admitted(Hello),
    /// A frame of an authenticated peer, for [`control::decode`].
    Message(Frame<'a>),
}

/// Listening end of one control connection inside an event loop: handshake state and buffers, without the
/// socket. Bounded: it holds at most the bytes of one largest frame unread, and [`CONTROL_QUEUE_BYTES_MAX`] bytes
/// unsent, or [`SERVER_QUEUE_BYTES_MAX`] to a peer that this type has admitted as a server.
#[derive(Debug)]
pub struct ControlPeer {
    decoder: Decoder,
    /// `None` once the handshake is over.
    handshake: Option<ServerHandshake>,
    outgoing: Vec<u8>,
    /// Number of bytes at the start of `outgoing` that are sent.
    sent: usize,
    /// Most bytes of `outgoing` after [`Self::queue`].
    queue_max: usize,
}

impl ControlPeer {
    /// Creates the state of a connection that was just accepted, before its handshake. `random` must be fresh
    /// from the system's random source.
    pub const fn accepted(random: [u8; RANDOM_BYTES]) -> Self {
        Self {
            decoder: Decoder::unauthenticated(),
            handshake: Some(ServerHandshake::new(random)),
            outgoing: Vec::new(),
            sent: 0,
            queue_max: CONTROL_QUEUE_BYTES_MAX,
        }
    }

    /// Creates the state of a connection on which the handshake was finished elsewhere. `decoder` is the one that
    /// received the handshake: it may hold bytes that follow, and the caller has raised its limit with
    /// [`Decoder::trust`].
    pub const fn authenticated(decoder: Decoder) -> Self {
        Self {
            decoder,
            handshake: None,
            outgoing: Vec::new(),
            sent: 0,
            queue_max: CONTROL_QUEUE_BYTES_MAX,
        }
    }

    /// Whether the handshake has succeeded, so that messages may follow.
    pub const fn is_authenticated(&self) -> bool {
        self.handshake.is_none()
    }

    /// Copies as many received bytes as fit into the buffer, and returns their number: 0 if the buffer is full. Call
    /// [`Self::next`] until it returns `None`, then feed the rest.
    #[must_use = "bytes that were not taken must be fed again"]
    pub fn feed(&mut self, bytes: &[u8]) -> usize {
        self.decoder.push(bytes)
    }

    /// Returns the next event of the received bytes; `None` until more are fed. Appends the answers of the handshake
    /// to [`Self::outgoing`]. `admit` is called once, for a peer that holds the token and that `policy` admits, and
    /// may still refuse it with a reason that the peer receives.
    ///
    /// # Errors
    /// The handshake failed, or the stream is damaged. The caller writes [`Self::outgoing`], which may hold a refusal,
    /// then disconnects.
    pub fn next(
        &mut self,
        policy: &ServerPolicy,
        admit: impl Fn(&Hello) -> Result<(), Refusal>,
    ) -> Result<Option<PeerEvent<'_>>, HandshakeError> {
        while let Some(handshake) = &mut self.handshake {
            let Some(frame) = self.decoder.next_frame()? else {
                return Ok(None);
            };
            if let Some(hello) = handshake.step(policy, frame, &mut self.outgoing, &admit)? {
                self.handshake = None;
                if hello.role == Role::Server {
                    self.queue_max = SERVER_QUEUE_BYTES_MAX;
                }
                self.decoder.trust();
                return Ok(Some(PeerEvent::Admitted(hello)));
            }
        }
        Ok(self.decoder.next_frame()?.map(PeerEvent::Message))
    }

    /// Returns the next message of the received bytes; `None` until more are fed. Always `None` before the handshake
    /// is over, which only [`Self::next`] handles.
    ///
    /// # Errors
    /// The stream is damaged; the caller disconnects.
    pub fn next_message(&mut self) -> Result<Option<Frame<'_>>, WireError> {
        if self.handshake.is_some() {
            return Ok(None);
        }
        self.decoder.next_frame()
    }

    /// Encodes a message into the send queue. `id` is that of the request for an answer, a new one for a
    /// request of this end, and 0 for a notice.
    ///
    /// # Errors
    /// [`WireError::Limit`] if the queue is full because the peer does not read: disconnect it. Also those of
    /// [`control::encode`], for an invalid message. The unsent bytes are unchanged.
    pub fn queue<M: Message>(&mut self, id: u64, message: &M) -> Result<(), WireError> {
        if self.sent > 0 {
            self.outgoing.drain(..self.sent);
            self.sent = 0;
        }
        let before = self.outgoing.len();
        control::encode(id, message, &mut self.outgoing)?;
        let queued = self.outgoing.len() as u64;
        at_most("bytes queued for a peer", queued, self.queue_max as u64)
            .inspect_err(|_| self.outgoing.truncate(before))
    }

    /// Returns the queued bytes that the caller is to write to the socket; empty if there are none.
    pub fn outgoing(&self) -> &[u8] {
        &self.outgoing[self.sent..]
    }

    /// Removes the first `bytes` bytes of [`Self::outgoing`], which the caller has written to the socket. More than
    /// there are count as all.
    pub fn sent(&mut self, bytes: usize) {
        self.sent = (self.sent + bytes).min(self.outgoing.len());
        if self.sent == self.outgoing.len() {
            self.outgoing.clear();
            self.sent = 0;
        }
    }

    /// Consumes the connection, for the owner of its socket to go on with another protocol. Returns the received bytes
    /// that no event has consumed, and the queued bytes that are not yet written, in this order.
    pub fn into_buffers(mut self) -> (Vec<u8>, Vec<u8>) {
        self.outgoing.drain(..self.sent);
        (self.decoder.into_rest(), self.outgoing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::control::{CoordinatorAnswer, CoordinatorRequest};
    use crate::wire::handshake::ClientHandshake;
    use crate::wire::handshake::tests::{control_hello, policy};
    use crate::wire::hello::Roles;
    use crate::wire::refusal::RefusalCode;

    fn say_hello(peer: &mut ControlPeer) -> Hello {
        greet(peer, &policy(), control_hello())
    }

    /// The handshake of a client with this hello; returns what the peer has of it.
    fn greet(peer: &mut ControlPeer, policy: &ServerPolicy, hello: Hello) -> Hello {
        let mut bytes = Vec::new();
        let mut client = ClientHandshake::start(&policy.token, hello, &mut bytes).unwrap();
        let mut decoder = Decoder::unauthenticated();
        for _ in 0..2 {
            assert_eq!(peer.feed(&bytes), bytes.len());
            bytes.clear();
            let event = peer.next(policy, |_| Ok(())).unwrap();
            if let Some(PeerEvent::Admitted(hello)) = event {
                return hello;
            }
            assert!(event.is_none());
            let count = peer.outgoing().len();
            assert_eq!(decoder.push(peer.outgoing()), count);
            peer.sent(count);
            client
                .step(decoder.next_frame().unwrap().unwrap(), &mut bytes)
                .unwrap();
        }
        panic!("not admitted");
    }

    #[test]
    fn admits_then_passes_messages() {
        let mut peer = ControlPeer::accepted([3; 32]);
        assert_eq!(say_hello(&mut peer), control_hello());
        assert!(peer.is_authenticated());
        let mut bytes = Vec::new();
        control::encode(5, &CoordinatorRequest::Members, &mut bytes).unwrap();
        for byte in &bytes[..bytes.len() - 1] {
            assert_eq!(peer.feed(&[*byte]), 1);
            assert_eq!(peer.next(&policy(), |_| Ok(())), Ok(None));
        }
        assert_eq!(peer.feed(&bytes[bytes.len() - 1..]), 1);
        let Ok(Some(PeerEvent::Message(frame))) = peer.next(&policy(), |_| Ok(())) else {
            panic!("no message")
        };
        assert_eq!(
            control::decode(&frame),
            Ok((5, CoordinatorRequest::Members))
        );
    }

    #[test]
    fn a_message_before_the_proof_is_refused_and_told_nothing() {
        let mut peer = ControlPeer::accepted([3; 32]);
        let mut bytes = Vec::new();
        control::encode(5, &CoordinatorRequest::Members, &mut bytes).unwrap();
        assert_eq!(peer.feed(&bytes), bytes.len());
        assert!(peer.next(&policy(), |_| Ok(())).is_err());
        let mut decoder = Decoder::unauthenticated();
        assert_eq!(decoder.push(peer.outgoing()), peer.outgoing().len());
        let frame = decoder.next_frame().unwrap().unwrap();
        let refused = crate::wire::hello::Refused::decode(frame.body()).unwrap();
        assert_eq!(refused.refusal, Refusal::new(RefusalCode::Refused, [0; 4]));
    }

    /// Orders for all tables of a job leave at once: a server that reads slowly is not cut off for it.
    #[test]
    fn queue_of_a_server_holds_orders_of_all_tables() {
        let hello = Hello {
            role: Role::Server,
            ..control_hello()
        };
        let policy = ServerPolicy {
            control_roles: Roles::of(&[Role::Server]),
            ..policy()
        };
        let mut peer = ControlPeer::accepted([3; 32]);
        assert_eq!(greet(&mut peer, &policy, hello.clone()), hello);
        let long = Refusal::new(RefusalCode::Io, [0; 4]).with_text("x".repeat(1000));
        let answer = CoordinatorAnswer::Refused(long);
        let mut queued = 0;
        while peer.queue(queued, &answer).is_ok() {
            queued += 1;
        }
        let bytes = peer.outgoing().len();
        assert!(bytes <= SERVER_QUEUE_BYTES_MAX, "{bytes}");
        assert!(bytes > SERVER_QUEUE_BYTES_MAX - 4096, "{bytes}");
    }

    #[test]
    fn the_queue_is_bounded_and_drains_in_order() {
        let mut peer = ControlPeer::accepted([3; 32]);
        say_hello(&mut peer);
        let written = peer.outgoing().len();
        peer.sent(written);
        let long = Refusal::new(RefusalCode::Io, [0; 4]).with_text("x".repeat(1000));
        let answer = CoordinatorAnswer::Refused(long);
        let mut queued = 0;
        let error = loop {
            match peer.queue(queued, &answer) {
                Ok(()) => queued += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(error, WireError::Limit { .. }), "{error}");
        assert!(peer.outgoing().len() <= CONTROL_QUEUE_BYTES_MAX);
        let mut decoder = Decoder::unauthenticated();
        for id in 0..queued {
            loop {
                let taken = decoder.push(&peer.outgoing()[..peer.outgoing().len().min(700)]);
                peer.sent(taken);
                if let Some(frame) = decoder.next_frame().unwrap() {
                    assert_eq!(control::decode(&frame), Ok((id, answer.clone())));
                    break;
                }
            }
        }
        assert!(peer.outgoing().is_empty());
        peer.queue(0, &answer).unwrap();
    }
}
