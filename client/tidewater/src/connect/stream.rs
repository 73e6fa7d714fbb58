//! The stream under a control connection: TCP, or a unix socket that also passes descriptors.

use std::io::{self, Read, Write};
use std::net::{IpAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tidewater_control::conn::TimedStream;
use tidewater_lanes::shm::pass::{self, Descriptors, PassError};
use tidewater_lanes::wake::Waker;
use tidewater_runtime::clock::Deadline;
use tidewater_runtime::socket_options::send_at_once;

/// Stream under a control connection: TCP, or a unix socket that also passes file descriptors.
#[derive(Debug)]
pub(super) enum Stream {
    Tcp(TcpStream),
    Unix(PassStream),
}

/// Unix socket with the file descriptors that arrived on it, and the waker (an eventfd) to pass with the next bytes
/// sent.
#[derive(Debug)]
pub(super) struct PassStream {
    socket: UnixStream,
    came: Descriptors,
    goes: Option<Waker>,
}

impl Stream {
    /// Connects to `host:port` over TCP before `deadline`; tries each address of the name. Nagle's algorithm is off.
    pub(super) fn tcp(address: &str, deadline: Deadline) -> io::Result<TcpStream> {
        let mut last = io::Error::other("the name has no address");
        for address in address.to_socket_addrs()? {
            let left = deadline.left();
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            match TcpStream::connect_timeout(&address, left) {
                Ok(stream) => {
                    // Requests are small and awaited.
                    send_at_once(&stream)?;
                    return Ok(stream);
                }
                Err(e) => last = e,
            }
        }
        Err(last)
    }

    /// Connects to an abstract unix socket of this host, by its name, before `deadline`.
    pub(super) fn unix(name: &str, deadline: Deadline) -> Result<Self, PassError> {
        Ok(Self::Unix(PassStream {
            socket: pass::connect(name, deadline)?,
            came: Descriptors::default(),
            goes: None,
        }))
    }

    /// Local IP address of the connection; `None` for a unix socket, or if the system does not report it.
    pub(super) fn local(&self) -> Option<IpAddr> {
        match self {
            Self::Tcp(stream) => stream.local_addr().ok().map(|at| at.ip().to_canonical()),
            Self::Unix(_) => None,
        }
    }

    /// Passes the waker's file descriptor to the server with the next message on a unix socket. On TCP it does
    /// nothing.
    pub(super) fn pass(&mut self, waker: &Waker) {
        if let Self::Unix(stream) = self {
            stream.goes = Some(waker.clone());
        }
    }

    /// Whether the peer has closed the connection, or it has failed. One `poll` system call, which does not block.
    pub(super) fn is_hung_up(&self) -> bool {
        let socket = match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.socket.as_fd(),
        };
        let mut asked = [PollFd::new(&socket, PollFlags::RDHUP)];
        let gone = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        matches!(poll(&mut asked, Some(&Timespec::default())), Ok(1..))
            && asked[0].revents().intersects(gone)
    }

    /// Takes the file descriptors that arrived from the server; fails unless their number is `expected`. Always fails
    /// on TCP, which passes none.
    pub(super) fn take(&mut self, expected: usize) -> Result<Vec<OwnedFd>, PassError> {
        match self {
            Self::Tcp(_) => Err(PassError::Count { expected, got: 0 }),
            Self::Unix(stream) => stream.came.take(expected),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(into),
            Self::Unix(s) => pass::receive(&s.socket, into, &mut s.came).map_err(io_error),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(s) => {
                let waker = s.goes.take();
                let fd = waker.as_ref().map(AsFd::as_fd);
                let sent = pass::send(&s.socket, bytes, fd.as_slice()).map_err(io_error);
                if sent.is_err() {
                    // Nothing was sent: the waker goes with the next attempt.
                    s.goes = waker;
                }
                sent
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl TimedStream for Stream {
    fn set_time_left(&mut self, left: Duration) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.set_time_left(left),
            Self::Unix(stream) => stream.socket.set_time_left(left),
        }
    }
}

fn io_error(e: PassError) -> io::Error {
    match e {
        PassError::Os { source, .. } => source,
        other => io::Error::other(other),
    }
}
