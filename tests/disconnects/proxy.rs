//! A proxy that counts the bytes of a session over all its connections, and cuts after given ones.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::sockopt;

/// Direction of the counted bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    /// From client to server.
    Up,
    /// From server to client.
    Down,
}

/// Scope of a cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Every connection of the session.
    All,
    /// Only the connection that carried the byte.
    One,
}

/// Plan of a session's cuts.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) direction: Direction,
    pub(crate) reach: Reach,
    /// Whether peers see an end of file. Otherwise they see a reset, which frees the ports at once: the
    /// host has fewer ports than all these sessions would keep in use.
    pub(crate) gentle: bool,
    /// The first cut comes after this many bytes in `direction`; each other entry counts from the cut
    /// before. After the last entry, the connections stay open.
    pub(crate) cuts: VecDeque<u64>,
}

/// Traffic of a session.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Seen {
    /// Number of forwarded bytes, by direction.
    pub(crate) moved: [u64; 2],
    /// Number of bytes in the plan's direction after the first cut.
    pub(crate) after_cut: u64,
    pub(crate) cuts: usize,
    pub(crate) connections: usize,
}

/// Proxy of one session: a single thread, so that bytes have one order.
pub(crate) struct Proxy {
    pub(crate) address: String,
    stop: UnixStream,
    thread: JoinHandle<Seen>,
}

impl Proxy {
    pub(crate) fn start(target: &str, plan: Plan) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (stop, told) = UnixStream::pair().unwrap();
        let mut wires = Wires {
            plan,
            seen: Seen::default(),
            pairs: Vec::new(),
        };
        let target = target.to_owned();
        let thread = std::thread::spawn(move || {
            wires.run(&listener, &told, &target);
            wires.seen
        });
        Self {
            address,
            stop,
            thread,
        }
    }

    /// Stops the proxy after the session; returns its traffic.
    pub(crate) fn finish(self) -> Seen {
        drop(self.stop);
        self.thread.join().unwrap()
    }
}

/// A connection: the end towards the client, the end towards the server.
type Pair = [TcpStream; 2];

struct Wires {
    plan: Plan,
    seen: Seen,
    pairs: Vec<Pair>,
}

/// State of a connection after a forward.
#[derive(PartialEq, Eq)]
enum End {
    Lives,
    Ended,
    Cut,
}

impl Wires {
    fn run(&mut self, listener: &TcpListener, told: &UnixStream, target: &str) {
        loop {
            let mut asked = vec![
                PollFd::new(told, PollFlags::IN),
                PollFd::new(listener, PollFlags::IN),
            ];
            let ends = self.pairs.iter().flatten();
            asked.extend(ends.map(|end| PollFd::new(end, PollFlags::IN)));
            poll(&mut asked, None).unwrap();
            let ready: Vec<bool> = asked.iter().map(|a| !a.revents().is_empty()).collect();
            drop(asked);
            if ready[0] {
                return;
            }
            self.pass_all(&ready[2..]);
            if ready[1] {
                let (near, _) = listener.accept().unwrap();
                let far = TcpStream::connect(target).unwrap();
                for end in [&near, &far] {
                    end.set_nodelay(true).unwrap();
                    sockopt::set_socket_linger(end, Some(Duration::ZERO)).unwrap();
                }
                self.pairs.push([near, far]);
                self.seen.connections += 1;
            }
        }
    }

    fn pass_all(&mut self, ready: &[bool]) {
        let mut gone = Vec::new();
        for (n, sides) in ready.chunks(2).enumerate() {
            for direction in [Direction::Up, Direction::Down] {
                if gone.contains(&n) || !sides[direction as usize] {
                    continue;
                }
                match self.pass(n, direction) {
                    End::Lives => {}
                    End::Cut if self.plan.reach == Reach::All => {
                        let gentle = self.plan.gentle;
                        self.pairs.drain(..).for_each(|pair| close(pair, gentle));
                        return;
                    }
                    End::Cut | End::Ended => gone.push(n),
                }
            }
        }
        for n in gone.into_iter().rev() {
            close(self.pairs.remove(n), self.plan.gentle);
        }
    }

    /// Forwards the pending bytes of one end, as far as the plan allows.
    fn pass(&mut self, n: usize, direction: Direction) -> End {
        let [near, far] = &mut self.pairs[n];
        let (from, to) = match direction {
            Direction::Up => (near, far),
            Direction::Down => (far, near),
        };
        let mut buffer = [0; 4096];
        let Ok(count @ 1..) = from.read(&mut buffer) else {
            return End::Ended;
        };
        let due = self.plan.cuts.front_mut();
        let due = due.filter(|_| direction == self.plan.direction);
        let most = due.as_ref().map_or(u64::MAX, |due| **due);
        let count = count.min(usize::try_from(most).unwrap_or(usize::MAX));
        let written = to.write_all(&buffer[..count]);
        self.seen.moved[direction as usize] += count as u64;
        if self.seen.cuts > 0 && direction == self.plan.direction {
            self.seen.after_cut += count as u64;
        }
        if let Some(due) = due {
            *due -= count as u64;
            if *due == 0 {
                self.plan.cuts.pop_front();
                self.seen.cuts += 1;
                return End::Cut;
            }
        }
        match written {
            Ok(()) => End::Lives,
            Err(_) => End::Ended,
        }
    }
}

fn close(pair: Pair, gentle: bool) {
    for end in pair.iter().filter(|_| gentle) {
        sockopt::set_socket_linger(end, None).unwrap();
        let _ = end.shutdown(Shutdown::Both);
    }
}
