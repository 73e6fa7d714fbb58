//! One connection of the control thread: a nonblocking socket, and the buffers of its peer.

use std::io;
use std::net::{IpAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{RecvFlags, SendFlags, Shutdown};
use tidewater_lanes::shm::pass::{self, Descriptors, PassError};
use tidewater_protocol::ids::SessionId;
use tidewater_protocol::wire::control::{self, ServerAnswer, ServerRequest};
use tidewater_protocol::wire::handshake::{HandshakeError, ServerPolicy};
use tidewater_protocol::wire::hello::{Hello, RANDOM_BYTES};
use tidewater_protocol::wire::peer::{ControlPeer, PeerEvent};
use tidewater_protocol::wire::refusal::Refusal;

/// A connection's number; never used twice.
pub(super) type ConnId = u64;

/// A TCP or unix socket.
#[derive(Debug)]
pub(super) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    /// The address of this host that the peer connected to, `None` over the unix socket.
    pub(super) fn local(&self) -> Option<IpAddr> {
        match self {
            Self::Tcp(s) => s.local_addr().ok().map(|at| at.ip().to_canonical()),
            Self::Unix(_) => None,
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(s) => s.as_fd(),
            Self::Unix(s) => s.as_fd(),
        }
    }
}

/// A message of a peer.
#[derive(Debug)]
pub(super) enum Said {
    /// The peer is authenticated and admitted; comes once.
    Hello(Hello),
    /// A request with its id.
    Request(u64, ServerRequest),
}

/// One connection with its buffers and state.
#[derive(Debug)]
pub(super) struct Conn {
    pub(super) socket: Socket,
    /// Address of the peer, for the log.
    pub(super) from: String,
    peer: ControlPeer,
    /// Descriptors that came by `SCM_RIGHTS` and were not taken.
    pub(super) fds: Descriptors,
    /// The identity that the peer authenticated.
    pub(super) hello: Option<Hello>,
    /// The session that ends some time after the connection does.
    pub(super) session: Option<SessionId>,
    /// Whether the socket is watched for room.
    pub(super) wants_room: bool,
    /// The peer was refused: it may read the reason; its bytes are discarded.
    pub(super) refused: bool,
}

impl Conn {
    pub(super) fn new(socket: Socket, from: String, random: [u8; RANDOM_BYTES]) -> Self {
        Self {
            socket,
            from,
            peer: ControlPeer::accepted(random),
            fds: Descriptors::default(),
            hello: None,
            session: None,
            wants_room: false,
            refused: false,
        }
    }

    /// Receives the bytes available; `None` when there are none now, `Some(0)` at the end.
    pub(super) fn receive(&mut self, into: &mut [u8]) -> io::Result<Option<usize>> {
        let got = match &self.socket {
            Socket::Tcp(s) => {
                let got = rustix::net::recv(s, &mut *into, RecvFlags::DONTWAIT);
                got.map(|(n, _)| n).map_err(io::Error::from)
            }
            Socket::Unix(s) => pass::receive(s, into, &mut self.fds).map_err(io_error),
        };
        not_ready(got)
    }

    /// Takes bytes in; call [`Self::next`] until it returns nothing, then feed the rest.
    pub(super) fn feed(&mut self, bytes: &[u8]) -> usize {
        self.peer.feed(bytes)
    }

    /// The next message in the bytes fed so far.
    pub(super) fn next(
        &mut self,
        policy: &ServerPolicy,
        admit: impl Fn(&Hello) -> Result<(), Refusal>,
    ) -> Result<Option<Said>, HandshakeError> {
        Ok(match self.peer.next(policy, admit)? {
            None => None,
            Some(PeerEvent::Admitted(hello)) => Some(Said::Hello(hello)),
            Some(PeerEvent::Message(frame)) => {
                let (id, request) = control::decode(&frame)?;
                Some(Said::Request(id, request))
            }
        })
    }

    /// Queues an answer to request `id`.
    pub(super) fn answer(&mut self, id: u64, answer: &ServerAnswer) -> Result<(), HandshakeError> {
        Ok(self.peer.queue(id, answer)?)
    }

    /// Sends what is queued, as far as there is room; true when nothing is left.
    pub(super) fn send(&mut self) -> io::Result<bool> {
        while !self.peer.outgoing().is_empty() {
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            let sent = rustix::net::send(&self.socket, self.peer.outgoing(), flags);
            match not_ready(sent.map_err(io::Error::from))? {
                None => return Ok(false),
                Some(count) => self.peer.sent(count),
            }
        }
        Ok(true)
    }

    /// Sends what is queued with descriptors on its first byte, at once or not at all.
    pub(super) fn send_with(&mut self, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let count = pass::send(&self.socket, self.peer.outgoing(), fds).map_err(io_error)?;
        self.peer.sent(count);
        Ok(())
    }

    /// Ends the sending side; the peer may still read.
    pub(super) fn finish(&mut self) {
        self.refused = true;
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Write);
    }

    /// The socket of a lane, and whether the peer kept to the protocol: no bytes may come behind
    /// the handshake, since the lane's bytes are its applier's.
    pub(super) fn into_lane(self) -> (Socket, bool) {
        let (unread, unsent) = self.peer.into_buffers();
        (self.socket, unread.is_empty() && unsent.is_empty())
    }
}

fn io_error(e: PassError) -> io::Error {
    match e {
        PassError::Os { source, .. } => source,
        other => io::Error::other(other),
    }
}

fn not_ready(got: io::Result<usize>) -> io::Result<Option<usize>> {
    match got {
        Ok(count) => Ok(Some(count)),
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(None),
        Err(e) => Err(e),
    }
}
