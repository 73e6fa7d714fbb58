//! Plain blocking TCP over loopback between two processes: an echo, a stream, and the remote end of
//! `rows`.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};

use serde::{Deserialize, Serialize};
use tidewater_protocol::limits::DATA_DEADLINE;

use super::rows::{self, RowShape};
use crate::cluster::child::{CommandReader, Process, answer};
use crate::error::BenchError;
use crate::measure::Work;

/// Name of the hidden subcommand.
pub const ROLE: &str = "__wire";
/// Maximum bytes of one read or write of a stream.
const STREAM_BYTES: usize = 1 << 20;
/// Bytes of a stream's request or receipt.
const NOTE: usize = 8;

/// Job of the remote end of a connection.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) enum Job {
    /// Reads `to` bytes and answers `back` bytes, repeatedly.
    Echo { to: u64, back: u64 },
    /// Reads `bytes` bytes and answers a note, repeatedly.
    Sink { bytes: u64 },
    /// Reads a note and answers `bytes` bytes, repeatedly.
    Source { bytes: u64 },
    /// Reads a list of row locations and answers with these rows, repeatedly.
    Rows(RowShape),
}

/// The remote process: its parent names the job, and the data pass through one connection. Runs until the parent
/// closes the input.
///
/// # Errors
/// If it cannot listen, or the parent sends something that is no job.
pub fn serve() -> Result<(), BenchError> {
    let mut commands = CommandReader::new();
    let Some(job) = commands.take::<Job>()? else {
        return Ok(());
    };
    let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
    let listener = listener.map_err(wire)?;
    answer(&listener.local_addr().map_err(wire)?.port())?;
    std::thread::spawn(move || {
        // The end of the connection ends the job.
        let _ = listener.accept().and_then(|(peer, _)| job.run(peer));
    });
    commands.to_the_end();
    Ok(())
}

impl Job {
    fn run(self, mut peer: TcpStream) -> io::Result<()> {
        peer.set_nodelay(true)?;
        match self {
            Self::Echo { to, back } => {
                let (mut there, back) = (vec![0; to as usize], vec![2; back as usize]);
                loop {
                    peer.read_exact(&mut there)?;
                    peer.write_all(&back)?;
                }
            }
            Self::Sink { bytes } => {
                let mut block = vec![0; STREAM_BYTES];
                loop {
                    take(&mut peer, bytes, &mut block)?;
                    peer.write_all(&[0; NOTE])?;
                }
            }
            Self::Source { bytes } => {
                let block = vec![2; STREAM_BYTES];
                loop {
                    let mut note = [0; NOTE];
                    peer.read_exact(&mut note)?;
                    give(&mut peer, bytes, &block)?;
                }
            }
            Self::Rows(shape) => rows::answer(&mut peer, shape),
        }
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
    /// Exits when it is dropped, which is after the connection.
    _process: Process,
}

impl Wire {
    pub(super) fn open(job: Job, pin: Option<usize>) -> Result<Self, BenchError> {
        let mut process = Process::start(ROLE, "the other end of a socket".into(), pin)?;
        let port: u16 = process.ask(&job)?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let open = || {
            let peer = TcpStream::connect_timeout(&address, DATA_DEADLINE)?;
            peer.set_nodelay(true)?;
            peer.set_read_timeout(Some(DATA_DEADLINE))?;
            peer.set_write_timeout(Some(DATA_DEADLINE))?;
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

/// Messages of one size in one direction at the socket's full rate; a sample ends when the receiver has all its
/// bytes. Their content is not checked.
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
    BenchError::system("use a socket of a roofline", source)
}
