//! A proxy that cuts connections after a given byte.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tidewater_runtime::clock;
use tidewater_runtime::sync::{AtomicU64, AtomicUsize, Ordering};

/// Direction of the counted bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From client to server.
    Up,
    /// From server to client.
    Down,
}

/// Cut positions of a client's connections: the n-th one after `cuts[n]` bytes in `direction`.
/// Connections after the last entry are not cut.
pub struct Proxy {
    direction: Direction,
    cuts: Vec<u64>,
    connections: AtomicUsize,
    moved: [Arc<AtomicU64>; 2],
    pumps: Mutex<Vec<std::thread::JoinHandle<()>>>,
}

impl Proxy {
    /// Creates a proxy with the cuts of its connections.
    pub fn new(direction: Direction, cuts: Vec<u64>) -> Self {
        Self {
            direction,
            cuts,
            connections: AtomicUsize::new(0),
            moved: Default::default(),
            pumps: Mutex::default(),
        }
    }

    /// Number of bytes forwarded so far.
    pub fn moved(&self, direction: Direction) -> u64 {
        self.moved[direction as usize].load(Ordering::Acquire)
    }

    /// Number of connections so far.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Acquire)
    }

    /// Returns the client's end of a connection to `server` through this proxy.
    pub fn through(&self, server: TcpStream) -> TcpStream {
        let n = self.connections.fetch_add(1, Ordering::AcqRel);
        let (here, client) = crate::threads::connection();
        for stream in [&client, &server] {
            stream.set_nodelay(true).unwrap();
        }
        let cut = self.cuts.get(n).copied();
        let up = cut.filter(|_| self.direction == Direction::Up);
        let down = cut.filter(|_| self.direction == Direction::Down);
        let ends = (client.try_clone().unwrap(), server.try_clone().unwrap());
        self.pump(ends, up, Direction::Up);
        self.pump((server, client), down, Direction::Down);
        here
    }

    fn pump(&self, (from, to): (TcpStream, TcpStream), cut: Option<u64>, direction: Direction) {
        let moved = Arc::clone(&self.moved[direction as usize]);
        let pump = std::thread::spawn(move || pump(from, to, cut, &moved));
        self.pumps.lock().unwrap().push(pump);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        for pump in self.pumps.lock().unwrap().drain(..) {
            let _ = pump.join();
        }
    }
}

/// A proxy with an address of its own, for clients that make the connections. Ends with the process.
pub struct Gateway {
    /// Address that clients connect to.
    pub address: String,
    pairs: Arc<Mutex<Vec<[TcpStream; 2]>>>,
}

impl Gateway {
    /// Starts a gateway to the server at `target`.
    pub fn to(target: &str) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let pairs: Arc<Mutex<Vec<[TcpStream; 2]>>> = Arc::default();
        let (target, kept) = (target.to_owned(), Arc::clone(&pairs));
        std::thread::spawn(move || {
            while let Ok((near, _)) = listener.accept() {
                let Ok(far) = TcpStream::connect(&target) else {
                    return;
                };
                for end in [&near, &far] {
                    end.set_nodelay(true).unwrap();
                }
                let ends = [&near, &far].map(|end| end.try_clone().unwrap());
                // Counted before its first byte: a client with an answer finds its connection in the count.
                kept.lock().unwrap().push(ends);
                let ends = [&near, &far].map(|end| end.try_clone().unwrap());
                for [from, to] in [ends, [far, near]] {
                    std::thread::spawn(move || pump(from, to, None, &AtomicU64::default()));
                }
            }
        });
        Self { address, pairs }
    }

    /// Number of connections so far.
    pub fn count(&self) -> usize {
        self.pairs.lock().unwrap().len()
    }

    /// Cuts connection number `n`.
    pub fn cut(&self, n: usize) {
        for end in &self.pairs.lock().unwrap()[n] {
            // The peer may have closed it before.
            let _ = end.shutdown(Shutdown::Both);
        }
    }
}

/// Forwards until an end closes or exactly `cut` bytes have passed; then both ends are closed.
fn pump(mut from: TcpStream, mut to: TcpStream, cut: Option<u64>, moved: &AtomicU64) {
    let mut left = cut.unwrap_or(u64::MAX);
    let mut buffer = [0; 4096];
    while left > 0 {
        let most = buffer.len().min(left.try_into().unwrap_or(usize::MAX));
        let Ok(n @ 1..) = from.read(&mut buffer[..most]) else {
            break;
        };
        if to.write_all(&buffer[..n]).is_err() {
            break;
        }
        left -= n as u64;
        moved.fetch_add(n as u64, Ordering::AcqRel);
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

/// Returns the client's end of a connection to `server` through a network with a latency of `one_way` in
/// each direction.
pub fn distant(server: TcpStream, one_way: Duration) -> TcpStream {
    let (here, client) = crate::threads::connection();
    for stream in [&client, &server] {
        stream.set_nodelay(true).unwrap();
    }
    relay(
        client.try_clone().unwrap(),
        server.try_clone().unwrap(),
        one_way,
    );
    relay(server, client, one_way);
    here
}

/// Forwards each byte `one_way` after it was received, until an end closes.
fn relay(mut from: TcpStream, mut to: TcpStream, one_way: Duration) {
    let (tx, received) = std::sync::mpsc::channel::<(Instant, Vec<u8>)>();
    std::thread::spawn(move || {
        let mut buffer = vec![0; 1 << 18];
        while let Ok(n @ 1..) = from.read(&mut buffer) {
            if tx
                .send((clock::now() + one_way, buffer[..n].to_vec()))
                .is_err()
            {
                break;
            }
        }
    });
    std::thread::spawn(move || {
        for (due, bytes) in received {
            std::thread::sleep(due.saturating_duration_since(clock::now()));
            if to.write_all(&bytes).is_err() {
                break;
            }
        }
        // Either end may have closed it before.
        drop(to.shutdown(Shutdown::Both));
    });
}
