//! Plain blocking TCP over loopback between two processes: an echo, a stream, and the remote end of
//! `rows`.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};

use tidewater_protocol::limits::DATA_DEADLINE;

use super::rows::{self, Shape};
use crate::cluster::child::{CommandReader, Process, answer};
use crate::error::BenchError;
use crate::measure::Work;

/// Name of the hidden subcommand.
pub const ROLE: &str = "__wire";
/// Bytes of one read or write of a stream.
const STREAM_BYTES: usize = 1 << 20;
/// Bytes of a stream's request or receipt.
const NOTE: usize = 8;
/// Largest message that the remote end accepts, bytes.
pub(super) const MESSAGE_MAX: u64 = 1 << 30;

/// Job of the remote end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Job {
    /// Reads `to` bytes and answers `back` bytes, repeatedly.
    Echo { to: u64, back: u64 },
    /// Reads `bytes` bytes and answers a note.
    Sink { bytes: u64 },
    /// Reads a note and answers `bytes` bytes.
    Source { bytes: u64 },
    /// Reads a list of rows and answers with the rows, repeatedly.
    Rows(Shape),
}

impl Job {
    fn to_words(self) -> [u64; 3] {
        match self {
            Self::Echo { to, back } => [0, to, back],
            Self::Sink { bytes } => [1, bytes, 0],
            Self::Source { bytes } => [2, bytes, 0],
            Self::Rows(shape) => {
                let [rows, call] = shape.to_words();
                [3, rows, call]
            }
        }
    }

    fn from_words(words: [u64; 3]) -> Option<Self> {
        let fits = |bytes: u64| bytes <= MESSAGE_MAX;
        match words {
            [0, to, back] if fits(to) && fits(back) => Some(Self::Echo { to, back }),
            [1, bytes, 0] if fits(bytes) => Some(Self::Sink { bytes }),
            [2, bytes, 0] if fits(bytes) => Some(Self::Source { bytes }),
            [3, rows, call] => Shape::from_words([rows, call]).map(Self::Rows),
            _ => None,
        }
    }
}

/// The remote process: serves one connection after the other, until its input ends.
///
/// # Errors
/// If it cannot listen.
pub fn serve() -> Result<(), BenchError> {
    let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
    let listener = listener.map_err(wire)?;
    answer(&listener.local_addr().map_err(wire)?.port())?;
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            // The end of a connection ends its job; the next connection begins another.
            let _ = connection.and_then(register);
        }
    });
    CommandReader::new().to_the_end();
    Ok(())
}

fn register(mut peer: TcpStream) -> io::Result<()> {
    peer.set_nodelay(true)?;
    let mut words = [0; 3];
    for word in &mut words {
        let mut bytes = [0; 8];
        peer.read_exact(&mut bytes)?;
        *word = u64::from_le_bytes(bytes);
    }
    let job = Job::from_words(words);
    match job.ok_or_else(|| io::Error::other("no such job"))? {
        Job::Echo { to, back } => {
            let (mut there, back) = (vec![0; to as usize], vec![2; back as usize]);
            loop {
                peer.read_exact(&mut there)?;
                peer.write_all(&back)?;
            }
        }
        Job::Sink { bytes } => {
            let mut block = vec![0; STREAM_BYTES];
            loop {
                take(&mut peer, bytes, &mut block)?;
                peer.write_all(&[0; NOTE])?;
            }
        }
        Job::Source { bytes } => {
            let block = vec![2; STREAM_BYTES];
            loop {
                let mut note = [0; NOTE];
                peer.read_exact(&mut note)?;
                give(&mut peer, bytes, &block)?;
            }
        }
        Job::Rows(shape) => rows::answer(&mut peer, shape),
    }
}

fn take(peer: &mut TcpStream, bytes: u64, block: &mut [u8]) -> io::Result<()> {
    let mut left = bytes;
    while left > 0 {
        let most = block.len().min(left as usize);
        let got = peer.read(&mut block[..most])?;
        if got == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        left -= got as u64;
    }
    Ok(())
}

fn give(peer: &mut TcpStream, bytes: u64, block: &[u8]) -> io::Result<()> {
    let mut left = bytes as usize;
    while left > 0 {
        let some = block.len().min(left);
        peer.write_all(&block[..some])?;
        left -= some;
    }
    Ok(())
}

/// A remote process and a connection to it.
#[derive(Debug)]
pub(super) struct Wire {
    pub(super) peer: TcpStream,
    /// Ends when it is dropped: after the connection.
    _process: Process,
}

impl Wire {
    pub(super) fn open(job: Job, pin: Option<usize>) -> Result<Self, BenchError> {
        let mut process = Process::start(ROLE, "the other end of a socket".into(), pin)?;
        let port: u16 = process.receive()?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let open = || {
            let mut peer = TcpStream::connect_timeout(&address, DATA_DEADLINE)?;
            peer.set_nodelay(true)?;
            peer.set_read_timeout(Some(DATA_DEADLINE))?;
            peer.set_write_timeout(Some(DATA_DEADLINE))?;
            for word in job.to_words() {
                peer.write_all(&word.to_le_bytes())?;
            }
            Ok(peer)
        };
        let peer = open().map_err(wire)?;
        Ok(Self {
            peer,
            _process: process,
        })
    }
}

/// Echoes one after the other: `to` bytes there, `back` bytes back.
#[derive(Debug)]
pub struct Echo {
    wire: Wire,
    there: Vec<u8>,
    back: Vec<u8>,
    calls: u64,
}

impl Echo {
    /// Starts the remote process, on core `pin` if given.
    ///
    /// # Errors
    /// If a process or a connection cannot be created.
    pub fn new(to: u64, back: u64, calls: u64, pin: Option<usize>) -> Result<Self, BenchError> {
        Ok(Self {
            wire: Wire::open(Job::Echo { to, back }, pin)?,
            there: vec![1; to as usize],
            back: vec![0; back as usize],
            calls,
        })
    }
}

impl Work for Echo {
    fn calls(&self) -> u64 {
        self.calls
    }

    fn bytes(&self) -> u64 {
        self.there.len().max(self.back.len()) as u64
    }

    fn sample(&mut self) -> Result<(), BenchError> {
        for _ in 0..self.calls {
            self.wire.peer.write_all(&self.there).map_err(wire)?;
            self.wire.peer.read_exact(&mut self.back).map_err(wire)?;
        }
        Ok(())
    }

    fn check(&mut self) -> u64 {
        let wrong = self.back.iter().filter(|b| **b != 2).count() as u64;
        self.back.fill(0);
        wrong
    }
}

/// Direction of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    /// From this process to the remote one.
    There,
    /// From the remote process to this one.
    Back,
}

/// Messages of one size in one direction at the socket's full rate; a sample ends when the receiver
/// has all of it.
#[derive(Debug)]
pub struct Stream {
    wire: Wire,
    flow: Flow,
    block: Vec<u8>,
    bytes: u64,
    calls: u64,
}

impl Stream {
    /// Starts the remote process, on core `pin` if given.
    ///
    /// # Errors
    /// If a process or a connection cannot be created.
    pub fn new(flow: Flow, bytes: u64, calls: u64, pin: Option<usize>) -> Result<Self, BenchError> {
        let all = bytes * calls;
        let job = match flow {
            Flow::There => Job::Sink { bytes: all },
            Flow::Back => Job::Source { bytes: all },
        };
        Ok(Self {
            wire: Wire::open(job, pin)?,
            flow,
            block: vec![2; STREAM_BYTES],
            bytes,
            calls,
        })
    }
}

impl Work for Stream {
    fn calls(&self) -> u64 {
        self.calls
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn sample(&mut self) -> Result<(), BenchError> {
        let all = self.bytes * self.calls;
        let peer = &mut self.wire.peer;
        let mut note = [0; NOTE];
        let done = match self.flow {
            Flow::There => give(peer, all, &self.block).and_then(|()| peer.read_exact(&mut note)),
            Flow::Back => peer
                .write_all(&note)
                .and_then(|()| take(peer, all, &mut self.block)),
        };
        done.map_err(wire)
    }
}

pub(super) fn wire(source: io::Error) -> BenchError {
    BenchError::System {
        what: "use a socket of a roofline".into(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_jobs_that_exist_are_taken() {
        let rows = Shape::from_words([100, 4 << 32 | 256]).unwrap();
        for job in [
            Job::Rows(rows),
            Job::Echo { to: 8, back: 0 },
            Job::Sink { bytes: 5 },
            Job::Source { bytes: MESSAGE_MAX },
        ] {
            assert_eq!(Job::from_words(job.to_words()), Some(job));
        }
        for bad in [
            [3, 0, 0],
            [1, 0, 1],
            [0, u64::MAX, 0],
            [0, 0, MESSAGE_MAX + 1],
            [3, 0, 4 << 32 | 256],
            [3, 1 << 40, 4 << 32 | 256],
            [3, 100, 0],
        ] {
            assert_eq!(Job::from_words(bad), None);
        }
    }
}
