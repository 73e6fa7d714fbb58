//! TCP: the applier's own loop stands in for the NIC.
//!
//! A lane is one socket. The client's end, [`TcpClientLane`], sends requests. The applier's end,
//! [`TcpServerLane`], executes them in order against the region table and the session's inbox, after the
//! checks that a NIC would make. It answers in order. No thread belongs to a connection.
//!
//! | module | holds |
//! |---|---|
//! | [`op`] | the messages, pure |
//! | `plan` | progress of a list of reads: requested, received |
//! | `client_lane`, `receive` | the client's end, and its receiving half |
//! | `recv_direct` | direct receive into borrowed memory, requests held back for batching |
//! | `server_lane`, `output` | the applier's end, and its pending output |
//! | `access` | memory that a request names: checked, prefetched |
//! | `socket`, `buffer`, `store` | the socket, its buffers, bytes into shared words |
//!
//! *Memory is bounded.* A server lane stops executing requests while its answers are not read. A client
//! lane with requests that the socket does not take receives until its call's deadline.
//!
//! *Copies.* The kernel sends reads of more than 2 KiB straight from registered memory. Smaller ones go
//! through a buffer, which costs less than a gather list. Runs of at least 4 KiB are received straight into
//! the caller's buffers, the inbox and the mailbox.
//!
//! *Batches.* System calls serve many requests where a thread submits a read for each that it finishes, and
//! where a long answer is made. Between ends of one host no output is paced.
//!
//! The stream has to be connected and past the handshake, with no byte of the lane read from it.

#![deny(clippy::cast_possible_truncation)]

use std::net::{Ipv4Addr, TcpListener, TcpStream};

use crate::fabric::{Inbox, LaneError, Mailbox};
use crate::wake::Reactor;
use tidewater_protocol::layout::ring::RingGeometry;
use tidewater_protocol::layout::session::{MAILBOX_BYTES, inbox_bytes};
use tidewater_runtime::mem::Region;
use tidewater_runtime::sync::Arc;

mod access;
mod buffer;
mod client_lane;
mod count;
mod late;
#[allow(clippy::cast_possible_truncation, reason = "takes words apart")]
pub mod op;
mod output;
mod plan;
mod receive;
mod recv_direct;
mod server_lane;
mod socket;
mod store;

pub use client_lane::TcpClientLane;
pub use server_lane::TcpServerLane;

/// Creates both ends of a TCP lane over this host's loopback, without a handshake, for tests and
/// measurements. `near` is the reactor of the client lane's thread, `far` that of the server lane's. The
/// returned inbox is empty; `salt` keys the checksum of its tail record.
///
/// # Errors
/// [`LaneError::Usage`] for a ring that is no power of two from 256 bytes on, [`LaneError::Broken`] when
/// the system refuses.
pub fn pair(
    ring_bytes: usize,
    salt: u64,
    near: Reactor,
    far: Reactor,
) -> Result<(TcpClientLane, TcpServerLane, Inbox), LaneError> {
    let ring = RingGeometry::new(ring_bytes).ok_or(LaneError::Usage {
        op: "pair",
        what: "a ring that is no power of two from 256 on",
    })?;
    let memory = |bytes| Region::anonymous(bytes).map(Arc::new);
    let made = || -> Result<_, Box<dyn std::error::Error>> {
        let mailbox = Mailbox::new(memory(MAILBOX_BYTES)?, 0, MAILBOX_BYTES)?;
        let inbox = Inbox::new(memory(inbox_bytes(ring_bytes))?, 0, ring, salt)?;
        let (client, server) = sockets()?;
        Ok((mailbox, inbox, client, server))
    };
    let (mailbox, inbox, client, server) =
        made().map_err(|e| socket::broken("loopback", "pair", e))?;
    inbox.reset_tail(0);
    let lane = TcpClientLane::new(client, "loopback server".to_owned(), mailbox, near)?;
    let port = TcpServerLane::new(server, "loopback client".to_owned(), far)?;
    Ok((lane, port, inbox))
}

/// Returns two connected sockets over this host's loopback, the client's first.
fn sockets() -> std::io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let client = TcpStream::connect(listener.local_addr()?)?;
    loop {
        let (server, from) = listener.accept()?;
        // Any process on this host can connect; only the own connection is wanted.
        if from == client.local_addr()? {
            return Ok((client, server));
        }
    }
}
