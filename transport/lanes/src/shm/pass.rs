//! Passing descriptors between processes of one user: `SCM_RIGHTS` over unix stream sockets with abstract
//! names (no file is left behind).
//!
//! Descriptors are attached to the first byte of a message. The receiver reads its connection through
//! [`receive`] only, so that no descriptor is lost to a plain `read`. It takes them from [`Descriptors`]
//! when the message that announces their number is complete.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use tidewater_protocol::limits::DESCRIPTORS_MAX;
use tidewater_runtime::clock::Deadline;

/// Failure to connect to another process of this host, to verify its user, or to pass descriptors.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PassError {
    /// A system call failed.
    #[error("{call}: {source}")]
    Os {
        /// Name of the system call.
        call: &'static str,
        /// Error of the operating system.
        source: io::Error,
    },
    /// More descriptors than any message carries: sent by mistake, or to exhaust the table.
    #[error("the peer passed more than {limit} descriptors; it is not a Tidewater of this version")]
    TooMany {
        /// Most descriptors that are accepted.
        limit: usize,
    },
    /// The number of descriptors differs from that of the message.
    #[error("{got} descriptors came, {expected} belong to the message")]
    Count {
        /// Number of descriptors announced.
        expected: usize,
        /// Number of descriptors received.
        got: usize,
    },
    /// The peer process belongs to another user.
    #[error(
        "the peer runs as user {peer}, this process as user {own}: shared memory is for processes \
         of one user; use --transport tcp"
    )]
    OtherUser {
        /// Effective user id of the peer.
        peer: u32,
        /// Effective user id of this process.
        own: u32,
    },
    /// No process accepted before the deadline.
    #[error("no process accepted on abstract socket {name} before the deadline")]
    Deadline {
        /// Abstract name of the socket.
        name: String,
    },
}

impl PassError {
    /// Returns whether the error only means that a non-blocking socket is not ready: nothing was sent or
    /// received, and the caller tries again later.
    pub fn would_block(&self) -> bool {
        matches!(self, Self::Os { source, .. } if source.kind() == io::ErrorKind::WouldBlock)
    }
}

fn os(call: &'static str) -> impl Fn(rustix::io::Errno) -> PassError {
    move |e| PassError::Os {
        call,
        source: e.into(),
    }
}

/// File descriptors received with [`receive`] and not yet taken by `Self::take`, at most
/// [`DESCRIPTORS_MAX`]. Dropping it closes them.
#[derive(Debug, Default)]
pub struct Descriptors(Vec<OwnedFd>);

impl Descriptors {
    /// Removes and returns all held descriptors, in the order of arrival. Their number must be
    /// `expected`; otherwise all are closed.
    ///
    /// # Errors
    /// [`PassError::Count`] for another number; then none is held.
    pub fn take(&mut self, expected: usize) -> Result<Vec<OwnedFd>, PassError> {
        let fds = std::mem::take(&mut self.0);
        if fds.len() != expected {
            return Err(PassError::Count {
                expected,
                got: fds.len(),
            });
        }
        Ok(fds)
    }

    /// Returns the number of descriptors held.
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether no descriptor is held.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Sends bytes over a unix socket and passes the descriptors `fds` with the first of them (`SCM_RIGHTS`),
/// in one system call. Returns the number of bytes sent; the rest of a partial send goes without
/// descriptors. An empty send carries no descriptors. The descriptors stay open in this process.
///
/// # Errors
/// [`PassError::TooMany`] for more than [`DESCRIPTORS_MAX`]; [`PassError::Os`], also when a non-blocking
/// socket is not ready. Nothing was sent then.
pub fn send(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<usize, PassError> {
    if fds.len() > DESCRIPTORS_MAX {
        return Err(PassError::TooMany {
            limit: DESCRIPTORS_MAX,
        });
    }
    let mut space = [MaybeUninit::uninit(); SPACE];
    let mut control = SendAncillaryBuffer::new(&mut space);
    // An empty list is no message at all: the kernel would refuse it on some sockets. A list above the
    // limit would not fit, which was checked.
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(PassError::TooMany {
            limit: DESCRIPTORS_MAX,
        });
    }
    let iov = [IoSlice::new(bytes)];
    rustix::io::retry_on_intr(|| {
        rustix::net::sendmsg(&socket, &iov, &mut control, SendFlags::NOSIGNAL)
    })
    .map_err(os("sendmsg"))
}

/// Receives at most `bytes.len()` bytes from a unix socket, and adds the descriptors that came with them
/// to `held`, marked close-on-exec. Returns the number of bytes; 0 is the end of the stream. `held` never
/// exceeds [`DESCRIPTORS_MAX`] descriptors, for any number that the peer sends.
///
/// # Errors
/// [`PassError::TooMany`] when the peer passed more than [`DESCRIPTORS_MAX`] before any were taken. All
/// in `held` are closed then, the bytes received are lost, and the caller closes the connection.
/// `PassError::Os`, also when nothing has arrived on a non-blocking socket.
pub fn receive(
    socket: impl AsFd,
    bytes: &mut [u8],
    held: &mut Descriptors,
) -> Result<usize, PassError> {
    let mut space = [MaybeUninit::uninit(); SPACE];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = rustix::io::retry_on_intr(|| {
        let mut iov = [IoSliceMut::new(bytes)];
        rustix::net::recvmsg(&socket, &mut iov, &mut control, RecvFlags::CMSG_CLOEXEC)
    })
    .map_err(os("recvmsg"))?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = message {
            held.0.extend(fds);
        }
    }
    // CTRUNC: there were more than fit, and the kernel has closed those.
    if got.flags.contains(ReturnFlags::CTRUNC) || held.0.len() > DESCRIPTORS_MAX {
        held.0.clear();
        return Err(PassError::TooMany {
            limit: DESCRIPTORS_MAX,
        });
    }
    Ok(got.bytes)
}

/// Checks that the peer process of a unix socket has this process's effective user id (`SO_PEERCRED`, as
/// the kernel recorded at connect time).
///
/// # Errors
/// [`PassError::OtherUser`]: close the connection without an answer. [`PassError::Os`] when the kernel
/// does not say.
pub fn same_user(socket: impl AsFd) -> Result<(), PassError> {
    let peer = rustix::net::sockopt::socket_peercred(&socket).map_err(os("SO_PEERCRED"))?;
    let own = rustix::process::geteuid();
    if peer.uid == own {
        return Ok(());
    }
    Err(PassError::OtherUser {
        peer: peer.uid.as_raw(),
        own: own.as_raw(),
    })
}

/// Listens on a unix socket with an abstract name of at most 107 bytes, visible in this network namespace
/// only. Accepting does not block. The caller checks accepted connections with [`same_user`].
///
/// # Errors
/// [`PassError::Os`], for instance when the name is taken.
pub fn listen(name: &str) -> Result<UnixListener, PassError> {
    let io = |source| PassError::Os {
        call: "bind of an abstract socket",
        source,
    };
    let address = SocketAddr::from_abstract_name(name).map_err(io)?;
    let listener = UnixListener::bind_addr(&address).map_err(io)?;
    listener.set_nonblocking(true).map_err(io)?;
    Ok(listener)
}

/// Connects to a unix socket with an abstract name and checks that a process of the same user listens:
/// any process in the network namespace may take a name. Blocks until the deadline at most; calls on the
/// returned stream block too.
///
/// # Errors
/// [`PassError::Deadline`] if the listener's queue stays full; [`PassError::OtherUser`];
/// [`PassError::Os`], for instance when no process listens.
pub fn connect(name: &str, deadline: Deadline) -> Result<UnixStream, PassError> {
    // A blocking connect would wait for a place in the queue with no deadline.
    const PAUSE: Duration = Duration::from_millis(2);
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).map_err(os("connect"))?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
        .map_err(os("socket"))?;
    loop {
        match rustix::net::connect(&socket, &address) {
            Ok(()) => break,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) if !deadline.passed() => {
                std::thread::sleep(PAUSE.min(deadline.left()));
            }
            Err(rustix::io::Errno::AGAIN) => {
                return Err(PassError::Deadline {
                    name: name.to_owned(),
                });
            }
            Err(e) => return Err(os("connect to an abstract socket")(e)),
        }
    }
    same_user(&socket)?;
    let stream = UnixStream::from(socket);
    stream
        .set_nonblocking(false)
        .map_err(|source| PassError::Os {
            call: "fcntl",
            source,
        })?;
    Ok(stream)
}

/// Bytes of the control buffer (`cmsg`) of a message that carries [`DESCRIPTORS_MAX`] descriptors.
const SPACE: usize = rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX));
