//! The connection between both ends of a check: requests of the caller, answers of the listener.
//!
//! A message is its length, four bytes in little-endian order, and as many bytes of JSON. The other end is
//! not trusted: lengths are limited, and every request is one of [`Ask`], with bounded effects.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tidewater_protocol::wire::control::{VerbsConnect, VerbsConnected};
use tidewater_runtime::clock::Deadline;

use crate::error::CheckError;
use crate::facts::HostFacts;
use crate::finding::PortCounters;
use crate::perftest::Program;
use crate::report::Report;

/// Version of these messages; both ends must have the same.
pub(crate) const VERSION: u32 = 1;
/// Bytes of the longest message: a report has some tens of KiB.
const MESSAGE_BYTES_MAX: usize = 4 << 20;
/// Time limit for a message that is being sent.
const SEND_TIMEOUT: Duration = Duration::from_secs(20);

/// A request of the caller.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Ask {
    /// The first one: facts of the caller.
    Begin { version: u32, facts: Box<HostFacts> },
    /// Connect a lane to this offer, and keep it until [`Ask::EndLane`].
    Lane(Box<VerbsConnect>),
    /// Close the lane of the path check.
    EndLane,
    /// Read the hardware counters.
    Counters,
    /// Start a server for clients over RDMA.
    Serve,
    /// Describe the state of that server.
    Server,
    /// Start the server of a perftest program.
    Perftest { program: Program },
    /// Test the lane contract on the device.
    Contract { rounds: u64 },
    /// Register so many bytes, in regions of at most 1 GiB.
    Register { bytes: u64 },
    /// The last one: the result.
    Finish(Box<Report>),
}

/// An answer of the listener.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    /// To [`Ask::Begin`]: facts of the listener.
    Facts(Box<HostFacts>),
    /// To [`Ask::Lane`]: the other end, and the key of [`crate::device::DATA_BYTES`] readable bytes.
    Lane {
        connected: Box<VerbsConnected>,
        key: u32,
    },
    /// To [`Ask::Counters`]: name and value.
    Counters(PortCounters),
    /// To [`Ask::Serve`]: address of the coordinator, and the job's token in hexadecimal digits.
    Serving { coordinator: String, token: String },
    /// To [`Ask::Server`]: its present state.
    Server(ServerFacts),
    /// To [`Ask::Perftest`]: TCP port of the program.
    Port(u16),
    /// To [`Ask::Contract`]: a result for each clause.
    Contract(Vec<ClauseResult>),
    /// To [`Ask::Register`]: the times it took.
    Registered(Registered),
    /// To requests without another answer.
    Done,
    /// The request could not be fulfilled, for this reason.
    Failed(String),
}

/// State of the listener's server.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(crate) struct ServerFacts {
    /// Frames that were applied or refused.
    pub(crate) frames: u64,
    /// Frames that arrived after their tail.
    pub(crate) late_frames: u64,
    /// Queue pairs of its device in use by any process; `None` where `rdma` is not installed.
    pub(crate) pairs: Option<u64>,
}

/// Result of one clause of the lane contract.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ClauseResult {
    /// Number of the clause.
    pub(crate) clause: String,
    /// Whether its test ran.
    pub(crate) ran: bool,
    /// The failure, or the reason why it did not run.
    pub(crate) why: Option<String>,
}

/// Times of a registration, seconds.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Registered {
    /// To make the pages present.
    pub(crate) pages_s: f64,
    /// To register them with the device.
    pub(crate) register_s: f64,
}

/// One end of the connection.
#[derive(Debug)]
pub(crate) struct Conn {
    stream: TcpStream,
    peer: SocketAddr,
}

impl Conn {
    pub(crate) fn new(stream: TcpStream, peer: SocketAddr) -> Result<Self, CheckError> {
        let conn = Self { stream, peer };
        let set = conn.stream.set_nodelay(true).and_then(|()| {
            conn.stream.set_nonblocking(false)?;
            conn.stream.set_write_timeout(Some(SEND_TIMEOUT))
        });
        set.map_err(|source| conn.failed("configure the connection", source))?;
        Ok(conn)
    }

    /// Address of this end.
    pub(crate) fn local(&self) -> Result<SocketAddr, CheckError> {
        let local = self.stream.local_addr();
        local.map_err(|source| self.failed("read the address of the connection", source))
    }

    pub(crate) const fn peer(&self) -> SocketAddr {
        self.peer
    }

    pub(crate) fn send(&mut self, message: &impl Serialize) -> Result<(), CheckError> {
        let body = serde_json::to_vec(message).map_err(|e| self.wrong(e))?;
        let len = u32::try_from(body.len())
            .ok()
            .filter(|len| *len as usize <= MESSAGE_BYTES_MAX);
        let len = len.ok_or_else(|| self.wrong(format!("a message of {} bytes", body.len())))?;
        let mut bytes = len.to_le_bytes().to_vec();
        bytes.extend(body);
        self.stream
            .write_all(&bytes)
            .map_err(|source| self.failed("send", source))
    }

    /// Receives a message, which must be complete after `limit`.
    pub(crate) fn receive<T: DeserializeOwned>(
        &mut self,
        limit: Duration,
    ) -> Result<T, CheckError> {
        let deadline = Deadline::after(limit);
        let mut len = [0; 4];
        self.fill(&mut len, deadline)?;
        let len = u32::from_le_bytes(len) as usize;
        if len > MESSAGE_BYTES_MAX {
            return Err(self.wrong(format!(
                "a message of {len} bytes, of at most {MESSAGE_BYTES_MAX}"
            )));
        }
        let mut body = vec![0; len];
        self.fill(&mut body, deadline)?;
        serde_json::from_slice(&body).map_err(|e| self.wrong(e))
    }

    /// Sends a request and receives its answer within `limit`. [`Answer::Failed`] is an answer.
    pub(crate) fn ask(&mut self, ask: &Ask, limit: Duration) -> Result<Answer, CheckError> {
        self.send(ask)?;
        self.receive(limit)
    }

    /// Error for a message that has another meaning than expected.
    pub(crate) fn wrong(&self, what: impl ToString) -> CheckError {
        let what = what.to_string();
        CheckError::Protocol {
            peer: self.peer,
            what,
        }
    }

    fn fill(&mut self, mut into: &mut [u8], deadline: Deadline) -> Result<(), CheckError> {
        while !into.is_empty() {
            // A timeout of zero means none.
            let left = deadline.left().max(Duration::from_millis(1));
            let timed = self.stream.set_read_timeout(Some(left));
            timed.map_err(|source| self.failed("configure the connection", source))?;
            match self.stream.read(into) {
                Ok(0) => return Err(self.failed("receive", io::ErrorKind::UnexpectedEof.into())),
                Ok(n) => into = &mut into[n..],
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(self.failed("receive", source)),
            }
            if deadline.passed() && !into.is_empty() {
                return Err(self.failed("receive", io::ErrorKind::TimedOut.into()));
            }
        }
        Ok(())
    }

    fn failed(&self, op: &'static str, source: io::Error) -> CheckError {
        let peer = self.peer;
        CheckError::Peer { op, peer, source }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn ends() -> (TcpStream, Conn) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let far = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (near, peer) = listener.accept().unwrap();
        (far, Conn::new(near, peer).unwrap())
    }

    #[test]
    fn foreign_bytes_are_refused() {
        let (mut far, mut near) = ends();
        far.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        let e = near.receive::<Ask>(Duration::from_secs(5)).unwrap_err();
        assert!(matches!(e, CheckError::Protocol { .. }), "{e}");
        let (mut far, mut near) = ends();
        far.write_all(&[3, 0, 0, 0, b'"', b'x', b'"']).unwrap();
        let e = near.receive::<Ask>(Duration::from_secs(5)).unwrap_err();
        assert!(matches!(e, CheckError::Protocol { .. }), "{e}");
    }

    #[test]
    fn silent_ends_are_given_up() {
        let (mut far, mut near) = ends();
        far.write_all(&[3, 0, 0]).unwrap();
        let e = near.receive::<Ask>(Duration::from_millis(50)).unwrap_err();
        assert!(matches!(e, CheckError::Peer { op: "receive", .. }), "{e}");
        drop(far);
        let e = near.receive::<Ask>(Duration::from_secs(5)).unwrap_err();
        assert!(matches!(e, CheckError::Peer { op: "receive", .. }), "{e}");
    }
}
