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

/// Number of a control connection; never used twice.
pub(super) type ConnId = u64;

/// Socket of a control connection, nonblocking: TCP or unix.
#[derive(Debug)]
pub(super) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    /// Local address to which the peer has connected; `None` over the unix socket or if the system call fails.
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

/// A message that a connection has received.
#[derive(Debug)]
pub(super) enum Said {
    /// The peer has authenticated and is admitted; comes once, before requests.
    Hello(Hello),
    /// A request, with the peer's number for it.
    Request(u64, ServerRequest),
}

/// A control connection with its buffers and state.
#[derive(Debug)]
pub(super) struct Conn {
    pub(super) socket: Socket,
    /// Address of the peer, for the log.
    pub(super) from: String,
    peer: ControlPeer,
    /// File descriptors received by `SCM_RIGHTS` that no request has taken yet.
    pub(super) fds: Descriptors,
    /// Identity that the peer authenticated; `None` before.
    pub(super) hello: Option<Hello>,
    /// Session of the client on this connection; it outlives the connection by the linger time.
    pub(super) session: Option<SessionId>,
    /// Whether epoll also waits for writability.
    pub(super) wants_room: bool,
    /// Whether the peer was refused: it can still read the reason, and its further bytes are discarded.
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

    /// Receives available bytes into `into`. Returns `None` if there are none now, `Some(0)` at the end of
    /// the stream.
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

    /// Feeds received bytes into the decoder and returns how many it took. The caller then calls
    /// [`Self::next`] until it returns `None`, and feeds the rest.
    pub(super) fn feed(&mut self, bytes: &[u8]) -> usize {
        self.peer.feed(bytes)
    }

    /// Decodes the next message in the bytes fed so far; `None` if none is complete. `admit` decides about the peer
    /// during the handshake. After an error the connection must be closed; the peer's refusal may be queued.
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

    /// Queues the answer to request `id`; it is not sent yet.
    pub(super) fn answer(&mut self, id: u64, answer: &ServerAnswer) -> Result<(), HandshakeError> {
        Ok(self.peer.queue(id, answer)?)
    }

    /// Sends queued bytes until the socket accepts no more. Returns whether all are sent.
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

    /// Sends queued bytes with the file descriptors attached to the first byte. Fails if the socket does not accept
    /// them now. Bytes that it does not take stay queued for `Self::send`.
    pub(super) fn send_with(&mut self, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let count = pass::send(&self.socket, self.peer.outgoing(), fds).map_err(io_error)?;
        self.peer.sent(count);
        Ok(())
    }

    /// Shuts down the sending side after a refusal; the peer can still read what was sent.
    pub(super) fn finish(&mut self) {
        self.refused = true;
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Write);
    }

    /// Turns the connection into the socket of a lane. Also returns whether its buffers are empty. If not, the socket
    /// is unusable: nothing may follow the handshake, since a lane's bytes belong to its applier.
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
