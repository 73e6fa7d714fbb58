//! A connected socket and its registration with the thread's [`Reactor`].

use std::cell::Cell;
use std::io;
use std::net::{Shutdown, TcpStream};

use rustix::net::{RecvFlags, SendFlags};

use crate::fabric::{LaneError, TransportKind};
use crate::wake::{Reactor, Readiness};
use tidewater_protocol::limits::LANE_UNACKNOWLEDGED_MAX;
use tidewater_runtime::clock::Deadline;
use tidewater_runtime::mem::io::{RecvList, SendList};
use tidewater_runtime::socket_options::{give_up_after, send_at_once};

/// Socket events that wake the lane's thread: input, room for output, or both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Interest {
    /// Bytes of the peer have arrived.
    Input,
    /// Bytes have arrived, or there is room for output.
    Both,
    /// There is room for output.
    Output,
}

/// Result of a non-blocking send or receive call: bytes moved, nothing now, or end of stream.
pub(super) enum Moved {
    /// Number of bytes moved, at least 1.
    Bytes(usize),
    /// No byte can be moved now, or the call was skipped.
    Nothing,
    /// The peer sends no more.
    Closed,
}

/// A lane's non-blocking TCP socket and its registration with the thread's reactor. Dropping it
/// deregisters the socket and shuts the connection down in both directions.
pub(super) struct Socket {
    stream: TcpStream,
    watch: Reactor,
    interest: Interest,
    readiness: Readiness,
    /// Number of polls skipped since the last real one.
    skipped: Cell<u8>,
    /// Sleep count of the thread at the previous poll.
    sleeps: Cell<u64>,
}

/// Greatest number of consecutive receive calls on an empty socket that are skipped (no system call) if
/// no sleep reports input, before the thread looks at all its sockets or makes the call. A thread that
/// goes to sleep saves the calls; one that has other work does not wait for long.
const LOOKS_SKIPPED_MAX: u8 = 3;

impl Socket {
    pub(super) fn new(stream: TcpStream, watch: Reactor) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        send_at_once(&stream)?;
        // A failed path becomes an error within bounded time, also on a lane that only waits. An applier
        // that saves or loads may leave its sockets full for longer than a control thread.
        give_up_after(&stream, LANE_UNACKNOWLEDGED_MAX)?;
        unpaced(&stream);
        let readiness = watch.add_readiness(&stream)?;
        Ok(Self {
            stream,
            watch,
            interest: Interest::Input,
            readiness,
            skipped: Cell::new(0),
            sleeps: Cell::new(0),
        })
    }

    /// Marks the socket as readable, so that the next receive call is not skipped. The caller awaits an
    /// answer, or knows that no sleep would report the input.
    pub(super) fn expect(&self) {
        self.readiness.set(true);
    }

    /// Returns whether the next receive call may be skipped. True while the socket was empty and the
    /// reactor's sleeps report no input, for [`LOOKS_SKIPPED_MAX`] calls in a row; each sleep in between
    /// begins the count again. The call after them looks at all sockets at once if the thread has many, and
    /// is skipped too if this one has no input: an applier does not make a call for each of 200 silent
    /// clients.
    fn may_skip(&self) -> bool {
        let sleeps = self.watch.sleeps();
        let skipped = match self.sleeps.replace(sleeps) == sleeps {
            true => self.skipped.get(),
            // Each sleep has reported readiness again, so the count begins again.
            false => 0,
        };
        if self.readiness.is_readable() {
            self.skipped.set(0);
            return false;
        }
        if skipped < LOOKS_SKIPPED_MAX {
            self.skipped.set(skipped + 1);
            return true;
        }
        self.skipped.set(0);
        let looked = self.watch.look();
        self.sleeps.set(self.watch.sleeps());
        looked && !self.readiness.is_readable()
    }

    /// Records whether the socket may have more input, from a receive call that asked for `asked` bytes. Fewer bytes or
    /// none clear the flag; all of them, the end of the stream and an error set it. Returns `moved` unchanged.
    fn looked(&self, asked: usize, moved: io::Result<Moved>) -> io::Result<Moved> {
        self.readiness.set(match &moved {
            Ok(Moved::Bytes(n)) => *n >= asked,
            Ok(Moved::Nothing) => false,
            Ok(Moved::Closed) | Err(_) => true,
        });
        moved
    }

    /// Sets the socket events that wake the thread from now on. Cost: one system call if they differ from
    /// the present ones.
    pub(super) fn want(&mut self, interest: Interest) -> io::Result<()> {
        if self.interest == interest {
            return Ok(());
        }
        match interest {
            Interest::Input => self.watch.change(&self.stream, &self.readiness, false)?,
            Interest::Both => self.watch.change(&self.stream, &self.readiness, true)?,
            Interest::Output => self.watch.output_only(&self.stream, &self.readiness)?,
        }
        self.interest = interest;
        Ok(())
    }

    /// Sends private bytes, as many as the socket takes now; never blocks. Cost: one system call.
    pub(super) fn send_bytes(&self, bytes: &[u8]) -> io::Result<Moved> {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        match bytes {
            [] => Ok(Moved::Nothing),
            _ => moved(
                rustix::net::send(&self.stream, bytes, flags).map_err(io::Error::from),
                Moved::Nothing,
            ),
        }
    }

    /// Sends the parts of a gather list, as many bytes as the socket takes now. With `more`, more output
    /// follows soon: the kernel may hold an incomplete packet back until then. Cost: one system call.
    pub(super) fn send(&self, list: &mut SendList<'_>, more: bool) -> io::Result<Moved> {
        match list.total_bytes() {
            0 => Ok(Moved::Nothing),
            _ => moved(list.send(&self.stream, more), Moved::Nothing),
        }
    }

    /// Receives available bytes into a private buffer, without blocking. Cost: one system call, or none
    /// where [`Self::may_skip`] allows it: then `Nothing`.
    pub(super) fn recv_bytes(&self, into: &mut [u8]) -> io::Result<Moved> {
        if into.is_empty() || self.may_skip() {
            return Ok(Moved::Nothing);
        }
        let asked = into.len();
        let got = rustix::net::recv(&self.stream, into, RecvFlags::DONTWAIT);
        let got = got.map(|(n, _)| n).map_err(io::Error::from);
        self.looked(asked, moved(got, Moved::Closed))
    }

    /// Receives available bytes into the parts of a scatter list, in order, without blocking. Cost: one
    /// system call, or none where [`Self::may_skip`] allows it: then `Nothing`.
    pub(super) fn recv(&self, list: &mut RecvList<'_>) -> io::Result<Moved> {
        if list.total_bytes() == 0 || self.may_skip() {
            return Ok(Moved::Nothing);
        }
        let asked = list.total_bytes();
        self.looked(asked, moved(list.recv(&self.stream), Moved::Closed))
    }

    /// Blocks until bytes have arrived, or (if `output`) can be sent, or the deadline has passed. May
    /// return early: the caller polls again. Marks the socket as readable, so that the next receive call
    /// is not skipped.
    pub(super) fn sleep(&self, output: bool, deadline: Deadline) {
        use rustix::event::{PollFd, PollFlags, poll};
        let mut flags = PollFlags::IN;
        if output {
            flags |= PollFlags::OUT;
        }
        let left = deadline.left();
        let timeout = rustix::time::Timespec {
            tv_sec: left.as_secs().min(3600) as i64,
            tv_nsec: i64::from(left.subsec_nanos()),
        };
        // An interrupted or failed wait is a spurious wake-up: the caller polls again anyway.
        let _ = poll(&mut [PollFd::new(&self.stream, flags)], Some(&timeout));
        self.expect();
    }

    /// Shuts the sending direction down: the peer reads the end of the stream behind all bytes sent.
    /// Receiving goes on.
    pub(super) fn finish(&self) {
        let _ = self.stream.shutdown(Shutdown::Write);
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // A copy of the descriptor elsewhere would keep waking the thread.
        self.watch.remove(&self.stream, &self.readiness);
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// Selects congestion control without pacing (Reno) if both ends have the same IP address, so are on one
/// host. There is no shared network and no loss, and a pacing algorithm (bbr) sets timers for nothing.
/// Where the kernel refuses Reno the system's own algorithm stays.
fn unpaced(stream: &TcpStream) {
    let ends = (stream.local_addr(), stream.peer_addr());
    if let (Ok(near), Ok(far)) = ends
        && near.ip() == far.ip()
    {
        let _ = rustix::net::sockopt::set_tcp_congestion(stream, "reno");
    }
}

fn moved(result: io::Result<usize>, at_zero: Moved) -> io::Result<Moved> {
    match result {
        Ok(0) => Ok(at_zero),
        Ok(n) => Ok(Moved::Bytes(n)),
        Err(e)
            if matches!(
                e.kind(),
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
            ) =>
        {
            Ok(Moved::Nothing)
        }
        Err(e) => Err(e),
    }
}

#[cold]
pub(super) fn broken(peer: &str, op: &'static str, why: impl ToString) -> LaneError {
    LaneError::Broken {
        transport: TransportKind::Tcp,
        peer: peer.to_owned(),
        op,
        why: why.to_string(),
    }
}
