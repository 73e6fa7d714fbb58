//! TCP: the applier's own loop stands in for the NIC.
//!
//! A lane is one socket. The client's end, [`TcpClientLane`], sends requests; the applier's end,
//! [`TcpServerLane`], executes them in order against the export table and the session's inbox, after the
//! checks that a NIC would make, and answers in order. No thread belongs to a connection.
//!
//! | module | holds |
//! |---|---|
//! | [`op`] | the messages, pure |
//! | `plan` | a list of reads: what was asked for, what has landed |
//! | `lane`, `receive` | the client's end, and its receiving half |
//! | `lend` | batches that land in borrowed memory, requests that wait for company |
//! | `port`, `output` | the applier's end, and what it has yet to send |
//! | `access` | what a request names: checked, asked for ahead |
//! | `socket`, `buffer`, `store` | the socket, its buffers, bytes into shared words |
//!
//! *Memory is bounded.* A port whose answers are not read stops executing requests; a lane whose
//! requests are not taken makes progress in receiving until its call's deadline. *Copies.* Reads of
//! at least 2 KiB are sent by the kernel straight from registered memory, smaller ones through a
//! buffer, which costs less than a gather list; runs of at least 4 KiB land straight in the
//! caller's buffers, the inbox and the mailbox. *Batches.* Where a thread posts a read for each that
//! it finishes, and where a long answer is made, system calls are for many of them; between ends of
//! one host nothing is paced.
//!
//! The stream has to be connected and past the handshake, with nothing of the lane read from it.

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

/// Both ends of a lane over this host's loopback, without a handshake, for tests and measurements;
/// `near` wakes the lane's thread, `far` the port's. The inbox is empty and salted with `salt`.
///
/// # Errors
/// [`LaneError::Usage`] for a ring that is no power of two, [`LaneError::Broken`] when the system
/// refuses.
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

/// Two connected sockets.
fn sockets() -> std::io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let client = TcpStream::connect(listener.local_addr()?)?;
    loop {
        let (server, from) = listener.accept()?;
        // Anybody on this host can connect; only ours is wanted.
        if from == client.local_addr()? {
            return Ok((client, server));
        }
    }
}
