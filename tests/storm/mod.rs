//! A storm of pulls: many in flight, finished in any order, with deadlines too short to meet, and again
//! with another buffer. The same on every transport.
//!
//! Row `k` is pushed to with `(k, 1, 1, ..)` only, so a pull always returns `(n k, n, n, ..)`. `n` is at
//! least the count of pushes acknowledged before the pull began. The buffers hold neither.

#![allow(unreachable_pub, reason = "a module of two test binaries")]

use std::time::Duration;

use tidewater::{Client, ClientError, Missing, PullMode, PullOptions, PullTicket, Table, Ticket};
use tidewater_protocol::table::PushOp;

/// Columns of a row: more than a line.
pub const DIM: usize = 9;
/// Content of a buffer before a pull: no row holds it.
const OLD: i64 = i64::MIN / 3;
/// Maximum number of pulls in flight.
const OPEN_MAX: usize = 6;

/// Counts of the events in a storm.
#[derive(Debug, Default, Clone, Copy)]
pub struct Seen {
    /// Number of finished pulls.
    pub finished: u64,
    /// Finished pulls that had missed a deadline before, with another buffer.
    pub finished_again: u64,
    /// Number of missed deadlines.
    pub late: u64,
    /// Number of cancelled pulls.
    pub cancelled: u64,
}

impl Seen {
    /// Sum of two counts.
    pub const fn add(&mut self, other: Self) {
        self.finished += other.finished;
        self.finished_again += other.finished_again;
        self.late += other.late;
        self.cancelled += other.cancelled;
    }
}

/// A pull in flight.
struct Open {
    ticket: PullTicket,
    /// Keys, and the pushes to them that the pull must see.
    keys: Vec<(u64, i64)>,
    late: bool,
}

/// One client in the storm.
pub struct Storm<'r> {
    pub client: Client,
    table: Table<i64>,
    keys: u64,
    /// Returns a random number below its argument.
    below: &'r mut dyn FnMut(u64) -> u64,
    long: Duration,
    /// Longest of the deadlines that are too short, microseconds.
    hurry_us: u64,
    open: Vec<Open>,
    pushed: Vec<(Vec<u64>, Ticket)>,
    acknowledged: Vec<i64>,
    pub seen: Seen,
}

/// The key with number `n`, below the count of keys.
fn key(n: u64) -> u64 {
    1_000 + n * 77
}

impl<'r> Storm<'r> {
    pub fn new(
        client: Client,
        table: Table<i64>,
        (keys, hurry_us): (u64, u64),
        long: Duration,
        below: &'r mut dyn FnMut(u64) -> u64,
    ) -> Self {
        Self {
            client,
            table,
            keys,
            below,
            long,
            hurry_us,
            open: Vec::new(),
            pushed: Vec::new(),
            acknowledged: vec![0; keys as usize],
            seen: Seen::default(),
        }
    }

    /// Makes `rounds` random operations, then finishes the pulls in flight.
    pub fn run(&mut self, rounds: u64) {
        for _ in 0..rounds {
            match (self.below)(16) {
                0..4 if self.open.len() < OPEN_MAX => self.start(),
                4..10 if !self.open.is_empty() => self.finish(true),
                10 if !self.open.is_empty() => self.finish(false),
                11 if !self.open.is_empty() => self.cancel(),
                12 => self.push(),
                13 => self.settle(),
                14 => self.pull_now(),
                _ => self.look(),
            }
        }
        while !self.open.is_empty() {
            self.finish(false);
        }
        self.settle();
    }

    fn some_keys(&mut self) -> Vec<u64> {
        let count = 1 + (self.below)(24);
        let first = (self.below)(self.keys);
        (0..count).map(|n| (first + n * 5) % self.keys).collect()
    }

    fn options(&mut self, timeout: Duration) -> PullOptions {
        PullOptions {
            mode: [PullMode::Consistent, PullMode::Consistent, PullMode::Gather]
                [(self.below)(3) as usize],
            missing: [Missing::Create, Missing::Initial][(self.below)(2) as usize],
            timeout,
        }
    }

    fn floors(&self, numbers: &[u64]) -> Vec<(u64, i64)> {
        let floor = |&n: &u64| (key(n), self.acknowledged[n as usize]);
        numbers.iter().map(floor).collect()
    }

    fn start(&mut self) {
        let numbers = self.some_keys();
        let keys = self.floors(&numbers);
        let plain: Vec<u64> = keys.iter().map(|k| k.0).collect();
        let options = self.options(self.long);
        let ticket = self.client.start_pull_rows(&self.table, &plain, options);
        self.open.push(Open {
            ticket: ticket.unwrap(),
            keys,
            late: false,
        });
    }

    /// Finishes a pull into memory that no earlier call has used.
    fn finish(&mut self, hurry: bool) {
        let at = (self.below)(self.open.len() as u64) as usize;
        let mut pull = self.open.swap_remove(at);
        let mut out = vec![OLD; pull.keys.len() * DIM];
        let hurried = Duration::from_micros((self.below)(self.hurry_us));
        self.client
            .set_timeout(if hurry { hurried } else { self.long });
        let finished = self.client.finish_pull(pull.ticket, &mut out);
        self.client.set_timeout(self.long);
        match finished {
            Ok(()) => {
                check(&pull.keys, &out);
                self.seen.finished += 1;
                self.seen.finished_again += u64::from(pull.late);
            }
            Err(ClientError::Deadline { .. }) if hurry => {
                self.seen.late += 1;
                pull.late = true;
                self.open.push(pull);
            }
            Err(e) => panic!("a pull of {:?} in hurry {hurry}: {e}", pull.keys),
        }
    }

    fn cancel(&mut self) {
        let at = (self.below)(self.open.len() as u64) as usize;
        let pull = self.open.swap_remove(at);
        self.client.cancel_pull(pull.ticket).unwrap();
        self.seen.cancelled += 1;
    }

    /// Makes a synchronous pull, sometimes with a deadline too short to meet.
    fn pull_now(&mut self) {
        let numbers = self.some_keys();
        let keys = self.floors(&numbers);
        let plain: Vec<u64> = keys.iter().map(|k| k.0).collect();
        let hurry = (self.below)(2) == 0;
        let hurried = Duration::from_micros((self.below)(self.hurry_us));
        let options = self.options(if hurry { hurried } else { self.long });
        let mut out = vec![OLD; plain.len() * DIM];
        match self
            .client
            .pull_rows(&self.table, &plain, &mut out, options)
        {
            Ok(_) => check(&keys, &out),
            Err(ClientError::Deadline { .. }) if hurry => self.seen.late += 1,
            Err(e) => panic!("a pull of {keys:?} in hurry {hurry}: {e}"),
        }
    }

    fn push(&mut self) {
        let mut numbers = self.some_keys();
        numbers.sort_unstable();
        numbers.dedup();
        let keys: Vec<u64> = numbers.iter().map(|&n| key(n)).collect();
        let values: Vec<i64> = keys.iter().flat_map(|&k| row_of(k, 1)).collect();
        let sent = self
            .client
            .push_rows(&self.table, &keys, &values, PushOp::Sum);
        self.pushed.push((numbers, sent.unwrap()));
    }

    fn settle(&mut self) {
        for (numbers, ticket) in std::mem::take(&mut self.pushed) {
            self.client.wait_applied(&ticket).unwrap();
            for n in numbers {
                self.acknowledged[n as usize] += 1;
            }
        }
    }

    /// Polls a pull, or lets the lanes progress.
    fn look(&mut self) {
        match self.open.last() {
            Some(pull) => {
                self.client.try_pull(pull.ticket).unwrap();
            }
            None => self.client.progress().unwrap(),
        }
    }
}

fn row_of(key: u64, times: i64) -> [i64; DIM] {
    let mut row = [times; DIM];
    row[0] = key as i64 * times;
    row
}

fn check(keys: &[(u64, i64)], out: &[i64]) {
    for ((key, floor), row) in keys.iter().zip(out.chunks_exact(DIM)) {
        assert_ne!(row[1], OLD, "row {key} was never written: {row:?}");
        assert_eq!(row, row_of(*key, row[1]), "row {key} is torn or another's");
        assert!(
            row[1] >= *floor,
            "row {key} has {} pushes, {floor} were acknowledged before the pull",
            row[1]
        );
    }
}
