//! Redis, a general key-value store, over the same loopback: GET against pulls, SET against pushes.
//!
//! The server is the distribution's, started here on a free port without persistence, and ended with the
//! contests. A pipeline is one write of all commands and one read of all answers.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::Command;

use tidewater::PullOptions;

use super::comparison::{Baseline, Comparison, Metric, Ours};
use super::peers::{PROGRAM_TIMEOUT, ROW_BYTES, START, one_row_workload, wait_for_port};
use super::programs::{self, Killed};
use super::socket::PUSH_BATCH;
use crate::calls::{Calls, Op, Style};
use crate::cluster::OneWorker;
use crate::error::BenchError;
use crate::measure::Work;

/// Commands in a pipeline, and calls under way.
const DEPTH: u64 = 64;
const GET: &[u8] = b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n";

/// Runs all contests.
///
/// # Errors
/// Errors of our own side. Without Redis the contests are recorded as absent.
pub(super) fn contests(
    comparison: &mut Comparison<'_>,
    worker: &mut OneWorker,
) -> Result<(), BenchError> {
    let contests = [
        ("peer.redis.get", Op::Pull, 1),
        ("peer.redis.pipeline", Op::Pull, DEPTH),
        ("peer.redis.set", Op::Push, 1),
        ("peer.redis.set.pipeline", Op::Push, DEPTH),
    ];
    if !comparison.wants(&contests.map(|(id, ..)| id)) {
        return Ok(());
    }
    let server = match Redis::start() {
        Ok(server) => server,
        Err(reason) => return comparison.absent("peer.redis", &reason),
    };
    let mut workload = one_row_workload(comparison, &mut worker.client)?;
    for (id, op, depth) in contests {
        let (style, calls, metric) = match depth {
            1 => (Style::Alone, 1, Metric::P50Us),
            n => (Style::Window(n as usize), 16 * n, Metric::CallsPerS),
        };
        let mut pipeline = match server.pipeline(op, depth) {
            Ok(pipeline) => pipeline,
            Err(e) => return comparison.absent(id, &format!("Redis: {e}")),
        };
        let what = match (op, depth) {
            (Op::Pull, 1) => "pull of one row of 256 B",
            (Op::Pull, _) => "64 pulls of 256 B under way",
            (Op::Push, 1) => "push of one row of 256 B until applied",
            (Op::Push, _) => "64 pushes of 256 B under way, 16 leave together",
        };
        let baseline = match (op, depth) {
            (Op::Pull, 1) => "Redis GET of 256 B",
            (Op::Pull, _) => "Redis GET of 256 B, 64 in a pipeline",
            (Op::Push, 1) => "Redis SET of 256 B",
            (Op::Push, _) => "Redis SET of 256 B, 64 in a pipeline",
        };
        if depth > 1 && op == Op::Push {
            workload.client().batch_pushes(PUSH_BATCH);
        }
        let options = PullOptions::default();
        let mut work = Calls::new(&mut workload, op, options, style, calls);
        comparison.head_to_head(
            id,
            what,
            Ours::new(&mut work, metric, &mut worker.cluster),
            Some(Baseline::new(baseline, &mut pipeline)),
        )?;
        workload.client().batch_pushes(1);
    }
    workload.release()
}

/// Our own Redis server on a free port.
struct Redis {
    port: u16,
    _server: Killed,
}

impl Redis {
    fn start() -> Result<Self, String> {
        let program = programs::find("redis-server")?;
        let port = programs::free_port()?;
        let mut command = Command::new(program);
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1"]);
        command.args(["--save", "", "--appendonly", "no"]);
        let server = Killed::start(&mut command)?;
        wait_for_port(&port.to_string())?;
        Ok(Self {
            port,
            _server: server,
        })
    }

    /// Opens a connection for `depth` commands at a time, all on one key. Sets the key to a value of
    /// [`ROW_BYTES`] bytes.
    fn pipeline(&self, op: Op, depth: u64) -> std::io::Result<Pipeline> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.port));
        let mut peer = TcpStream::connect_timeout(&address, START)?;
        peer.set_nodelay(true)?;
        peer.set_read_timeout(Some(PROGRAM_TIMEOUT))?;
        let value = vec![b'v'; ROW_BYTES as usize];
        let set = [
            &b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$256\r\n"[..],
            &value,
            b"\r\n",
        ];
        let set = set.concat();
        peer.write_all(&set)?;
        let mut ok = [0; OK.len()];
        peer.read_exact(&mut ok)?;
        if ok != OK {
            let text = String::from_utf8_lossy(&ok).into_owned();
            return Err(std::io::Error::other(format!("SET answers {text:?}")));
        }
        let (command, answer) = match op {
            Op::Pull => (GET.to_vec(), [b"$256\r\n", &*value, b"\r\n"].concat()),
            Op::Push => (set, OK.to_vec()),
        };
        Ok(Pipeline {
            peer,
            commands: command.repeat(depth as usize),
            answers: vec![0; answer.len() * depth as usize],
            answer,
            depth,
        })
    }
}

/// Answer to a SET.
const OK: [u8; 5] = *b"+OK\r\n";
const _: () = assert!(
    ROW_BYTES == 256,
    "the length of the value is in the commands"
);

/// A connection with commands that are sent together.
struct Pipeline {
    peer: TcpStream,
    commands: Vec<u8>,
    answers: Vec<u8>,
    /// The right answer to each command.
    answer: Vec<u8>,
    depth: u64,
}

impl Work for Pipeline {
    fn calls(&self) -> u64 {
        self.depth
    }

    fn bytes(&self) -> u64 {
        ROW_BYTES
    }

    fn sample(&mut self) -> Result<(), BenchError> {
        let peer = &mut self.peer;
        let done = peer
            .write_all(&self.commands)
            .and_then(|()| peer.read_exact(&mut self.answers));
        done.map_err(|e| BenchError::system("talk to Redis", e))
    }

    fn check(&mut self) -> u64 {
        let answers = self.answers.chunks(self.answer.len());
        let wrong = answers.filter(|answer| *answer != self.answer).count() as u64;
        self.answers.fill(0);
        wrong
    }
}
