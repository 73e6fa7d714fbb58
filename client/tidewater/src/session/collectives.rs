//! Collective calls of the client.

use std::ops::Range;

use tidewater_protocol::ids::{DomainId, WorkerId};
use tidewater_protocol::limits::COLLECTIVE_BYTES_MAX;
use tidewater_protocol::mutants::{Mutant, on};
use tidewater_protocol::table::PushOp;
use tidewater_runtime::clock::Deadline;
use zerocopy::IntoBytes;

use super::Client;
use super::threads::first_only;
use crate::collective::{Call, CollectiveError, Header, Kind, ReduceOp, RowsOf, agree, fold};
use crate::error::ClientError;
use crate::pull::{self, PullOptions, Timeout};
use crate::table::{Element, Table};

/// Barrier of every round. A worker that repeats a call waits for the others at theirs.
const BARRIER: &str = "tidewater/collective";

/// Adds the values of one worker to a call's result, part after part: result, position among the
/// workers, offset, bytes.
type Take<'a> = &'a dyn Fn(&mut [u8], usize, usize, &[u8]);

/// What a client keeps between its collective calls.
#[derive(Debug, Default)]
pub(super) struct State {
    /// Number of completed rounds.
    rounds: u64,
    /// Call that failed after its first round. Only this call can follow: the others wait at the round
    /// that failed here, or have completed it.
    open: Option<Open>,
    first: Option<Table<i64>>,
    further: Option<Table<i64>>,
    /// Rows of the last round, worker after worker.
    rows: Vec<i64>,
    /// Values of one worker in the last round.
    values: Vec<u8>,
}

/// A call between two of its rounds. It is kept after a failure.
#[derive(Debug)]
struct Open {
    op: &'static str,
    call: Call,
    /// Number of elements of the call.
    len: usize,
    /// Number of completed rounds of the call, and bytes of each worker that they brought.
    parts: u64,
    at: usize,
    /// Result of these rounds, after a failure.
    done: Vec<u8>,
}

/// One round of a call.
struct Round<'a> {
    op: &'static str,
    rows: RowsOf,
    header: Header,
    /// This worker's values; `None` if it gives none in this round.
    mine: Option<&'a [u8]>,
    /// Bytes of values of each worker that gives some.
    bytes: usize,
    /// The workers that give values.
    ranks: Range<u32>,
}

impl Client {
    /// Gives `values` to all workers and returns those of all, in rank order. All workers of the job
    /// call it, with equally many elements: at most 1 MiB each ([`COLLECTIVE_BYTES_MAX`]).
    ///
    /// No clock moves. When it returns, every worker has called it. What a worker waited for before its
    /// call (tickets of tables with immediate effect) is visible to all after it. Open pushes stay open.
    /// Cost: see [`collective`](crate::collective).
    ///
    /// # Errors
    /// [`ClientError::Collective`] when calls or lengths differ or a worker has left. A refusal that
    /// names the missing workers when the others do not come in the time of a clock wait. Such a call
    /// may be repeated, with the same values: it continues at the round that failed. A call of more
    /// than 480 bytes that failed between its rounds must be repeated before any other collective call.
    ///
    /// # Examples
    /// ```
    /// # use tidewater::{ClientError, JoinOptions, SyncMode};
    /// # fn main() -> Result<(), ClientError> {
    /// let job = JoinOptions::embedded(1, 1).join()?.into_job().expect("a worker");
    /// let mut client = job.client_of(0, SyncMode::Bsp)?;
    /// assert_eq!(client.all_gather(&[2.5, 0.5])?, [2.5, 0.5]);
    /// # client.finish()
    /// # }
    /// ```
    pub fn all_gather<T: Element>(&mut self, values: &[T]) -> Result<Vec<T>, ClientError> {
        let call = Call {
            kind: Kind::Gather,
            dtype: T::DTYPE,
            root: 0,
        };
        let workers = self.workers as usize;
        let own = size_of_val(values);
        let mut all = match own <= COLLECTIVE_BYTES_MAX {
            true => vec![T::default(); values.len() * workers],
            false => Vec::new(),
        };
        let take = |out: &mut [u8], nth: usize, at: usize, part: &[u8]| {
            let at = nth * own + at;
            out[at..at + part.len()].copy_from_slice(part);
        };
        let (mine, out) = (values.as_bytes(), all.as_mut_bytes());
        self.collect("all_gather", call, values.len(), mine, out, &take)?;
        Ok(all)
    }

    /// Replaces `values` by the reduction over all workers, element by element in rank order. The
    /// result is the same at every worker, to the bit, on any number of servers. Otherwise like
    /// [`Client::all_gather`]. On an error `values` are unspecified.
    ///
    /// # Errors
    /// As [`Client::all_gather`].
    pub fn all_reduce<T: Element>(
        &mut self,
        values: &mut [T],
        op: ReduceOp,
    ) -> Result<(), ClientError> {
        let kind = match op {
            ReduceOp::Sum => Kind::Sum,
            ReduceOp::Min => Kind::Min,
            ReduceOp::Max => Kind::Max,
        };
        let call = Call {
            kind,
            dtype: T::DTYPE,
            root: 0,
        };
        let mine = values.as_bytes().to_vec();
        let len = values.len();
        let take = |out: &mut [u8], nth: usize, at: usize, part: &[u8]| {
            let acc = &mut out[at..at + part.len()];
            match nth {
                0 => acc.copy_from_slice(part),
                _ => fold(T::DTYPE, op, acc, part),
            }
        };
        self.collect("all_reduce", call, len, &mine, values.as_mut_bytes(), &take)
    }

    /// Replaces `values` by those of worker `root`. Otherwise like [`Client::all_gather`]; all workers
    /// give a slice of the same length. On an error `values` are unspecified.
    ///
    /// # Errors
    /// As [`Client::all_gather`]; a root that is no worker.
    pub fn broadcast<T: Element>(
        &mut self,
        root: u32,
        values: &mut [T],
    ) -> Result<(), ClientError> {
        let call = Call {
            kind: Kind::Broadcast,
            dtype: T::DTYPE,
            root,
        };
        let mine = match root == self.rank.0 {
            true => values.as_bytes().to_vec(),
            false => Vec::new(),
        };
        let len = values.len();
        let take = |out: &mut [u8], _: usize, at: usize, part: &[u8]| {
            out[at..at + part.len()].copy_from_slice(part);
        };
        self.collect("broadcast", call, len, &mine, values.as_mut_bytes(), &take)
    }

    /// Runs a call of `len` elements a worker, or the rest of one that failed. `mine` is empty for a
    /// worker that gives no values.
    fn collect(
        &mut self,
        op: &'static str,
        call: Call,
        len: usize,
        mine: &[u8],
        out: &mut [u8],
        take: Take<'_>,
    ) -> Result<(), ClientError> {
        first_only(op, self.guard.thread())?;
        self.check_no_task(op)?;
        let bytes = len.saturating_mul(call.dtype.size());
        let mut open = match self.take_open(op, call, len)? {
            Some(open) => {
                out.copy_from_slice(&open.done);
                open
            }
            None => self.first_round(op, call, len, mine, out, take)?,
        };
        let ranks = self.givers(call);
        while open.at < bytes {
            let rows = RowsOf::Further;
            let size = rows.round_bytes().min(bytes - open.at);
            let number = self.collective.rounds + 1;
            let round = Round {
                op,
                rows,
                header: Header::new(number, call, len as u64, open.parts),
                mine: mine.get(open.at..open.at + size),
                bytes: size,
                ranks: ranks.clone(),
            };
            if let Err(error) = self.exchange(&round) {
                open.done = out.to_vec();
                self.collective.open = Some(open);
                return Err(error);
            }
            self.deliver(&round, ranks.clone(), open.at, out, take);
            open.parts += 1;
            open.at += size;
        }
        Ok(())
    }

    /// Takes the call that failed between its rounds out, if there is one: it must be this call.
    fn take_open(
        &mut self,
        op: &'static str,
        call: Call,
        len: usize,
    ) -> Result<Option<Open>, ClientError> {
        if self.workers == 0 {
            return Err(ClientError::Environment(format!(
                "{op} needs the job's number of workers, which is not known; say it when the session is \
                 opened (workers=N, TIDEWATER_WORKERS=N)"
            )));
        }
        if let Some(open) = &self.collective.open
            && (open.call, open.len) != (call, len)
        {
            return Err(ClientError::Environment(format!(
                "an earlier {} of {} elements failed between its rounds, where the other workers may wait; \
                 repeat that call with the same values before another collective call, or end the job",
                open.op, open.len
            )));
        }
        let open = self.collective.open.take();
        Ok(open.filter(|_| !on(Mutant::CollectiveBeginsAgain)))
    }

    /// Runs the first round of a call, in which the workers compare their calls.
    fn first_round(
        &mut self,
        op: &'static str,
        call: Call,
        len: usize,
        mine: &[u8],
        out: &mut [u8],
        take: Take<'_>,
    ) -> Result<Open, ClientError> {
        let bytes = len.saturating_mul(call.dtype.size());
        let rows = RowsOf::First;
        let round = Round {
            op,
            rows,
            header: Header::new(self.collective.rounds + 1, call, len as u64, 0),
            mine: Some(&mine[..mine.len().min(rows.round_bytes())]),
            bytes: bytes.min(rows.round_bytes()),
            // Of a broadcast, too.
            ranks: 0..self.workers,
        };
        self.exchange(&round)?;
        let agreed = self.agreed(call, bytes);
        agreed.map_err(|source| ClientError::Collective { op, source })?;
        self.deliver(&round, self.givers(call), 0, out, take);
        Ok(Open {
            op,
            call,
            len,
            parts: 1,
            at: round.bytes,
            done: Vec::new(),
        })
    }

    /// Ranks that give values in a call.
    const fn givers(&self, call: Call) -> Range<u32> {
        match call.kind {
            Kind::Broadcast => call.root..call.root + 1,
            _ => 0..self.workers,
        }
    }

    /// Checks, after the first round, that the calls of all workers fit together. All workers come to
    /// the same result.
    fn agreed(&self, call: Call, bytes: usize) -> Result<(), CollectiveError> {
        let rows = &self.collective.rows;
        let each = rows.len() / self.workers as usize;
        let headers = rows
            .chunks(each)
            .filter_map(|of| RowsOf::First.headers(of).next());
        agree(&headers.collect::<Vec<Header>>())?;
        if bytes > COLLECTIVE_BYTES_MAX {
            let bytes = bytes as u64;
            return Err(CollectiveError::TooLong { bytes });
        }
        let (root, workers) = (call.root, self.workers);
        match root < workers {
            true => Ok(()),
            false => Err(CollectiveError::Root { root, workers }),
        }
    }

    /// Passes the values of `ranks` in the last round on, in rank order.
    fn deliver(
        &mut self,
        round: &Round<'_>,
        ranks: Range<u32>,
        at: usize,
        out: &mut [u8],
        take: Take<'_>,
    ) {
        let state = &mut self.collective;
        let workers = round.ranks.len();
        let each = state.rows.len() / workers.max(1);
        let count = ranks.len();
        for nth in 0..count {
            let from = match on(Mutant::CollectiveRankOrder) {
                true => (nth + self.rank.0 as usize) % count,
                false => nth,
            };
            let row = from + (ranks.start - round.ranks.start) as usize;
            let rows = &state.rows[row * each..(row + 1) * each];
            round.rows.unpack(rows, round.bytes, &mut state.values);
            take(out, nth, at, &state.values);
        }
    }

    /// Assigns this worker's rows, waits for all workers, and reads the rows of `round.ranks`. The
    /// round is complete, and counts, when all of them are of this round.
    fn exchange(&mut self, round: &Round<'_>) -> Result<(), ClientError> {
        let table = self.collective_table(round.rows)?;
        let (number, workers) = (round.header.round, self.workers);
        let keys = |rank, bytes| round.rows.keys(number, workers, rank, bytes);
        if let Some(mine) = round.mine {
            let mut rows = std::mem::take(&mut self.collective.rows);
            rows.clear();
            round.rows.pack(round.header, mine, &mut rows);
            let keys = keys(self.rank.0, mine.len());
            let pushed = self.push_rows(&table, &keys, &rows, PushOp::Assign);
            self.collective.rows = rows;
            self.wait_applied(&pushed?)?;
        }
        let deadline = Deadline::after(self.clock.deadline);
        self.lanes.coordinator.barrier(BARRIER, workers, deadline)?;
        let all: Vec<u64> = round
            .ranks
            .clone()
            .flat_map(|rank| keys(rank, round.bytes))
            .collect();
        self.read_rows(&table, &all, round.rows)?;
        self.check_round(round)?;
        self.collective.rounds = number;
        Ok(())
    }

    /// Reads rows of a collective table. Like a pull, but waits for no clock: the barrier has opened
    /// after the rows took effect.
    fn read_rows(
        &mut self,
        table: &Table<i64>,
        keys: &[u64],
        rows: RowsOf,
    ) -> Result<(), ClientError> {
        self.lanes.tend()?;
        let state = self.tables.find_mut("pull_rows", table.named())?;
        self.collective.rows.clear();
        self.collective.rows.resize(keys.len() * rows.dim(), 0);
        pull::pull_rows(
            &mut self.lanes,
            state,
            &mut self.scratch,
            keys,
            self.collective.rows.as_mut_bytes(),
            PullOptions::default(),
            Timeout::In(self.timeout),
        )?;
        Ok(())
    }

    /// Fails if a row is of another round.
    fn check_round(&mut self, round: &Round<'_>) -> Result<(), ClientError> {
        let each = self.collective.rows.len() / round.ranks.len().max(1);
        let rows = self.collective.rows.chunks(each.max(1));
        let strangers: Vec<(WorkerId, Header)> = rows
            .zip(round.ranks.clone())
            .filter_map(|(rows, rank)| {
                let mut headers = round.rows.headers(rows);
                let other = headers.find(|header| !header.is_of_round(&round.header))?;
                Some((WorkerId(rank), other))
            })
            .collect();
        let Some(&(rank, header)) = strangers.first() else {
            return Ok(());
        };
        let live = self.live_workers()?;
        let gone = strangers.iter().map(|&(rank, _)| rank);
        let ranks: Vec<WorkerId> = gone.filter(|rank| !live.contains(rank)).collect();
        let source = match ranks.is_empty() {
            false => CollectiveError::Left { ranks },
            true => CollectiveError::OutOfStep {
                rank,
                theirs: header.position(),
                ours: round.header.position(),
            },
        };
        Err(ClientError::Collective {
            op: round.op,
            source,
        })
    }

    /// Workers that have not left the job, as the first server knows them.
    pub(super) fn live_workers(&mut self) -> Result<Vec<WorkerId>, ClientError> {
        let deadline = self.deadline();
        let Some(link) = self.lanes.link(0) else {
            return Ok(Vec::new());
        };
        match link.clocks(DomainId(0), deadline) {
            Ok(live) => {
                let mut ranks: Vec<WorkerId> = live.iter().map(|(t, _)| t.rank).collect();
                ranks.sort_unstable();
                ranks.dedup();
                Ok(ranks)
            }
            Err(e) => Err(self.lanes.blame(e)),
        }
    }

    /// The table of a round, created at the first call.
    fn collective_table(&mut self, of: RowsOf) -> Result<Table<i64>, ClientError> {
        let known = match of {
            RowsOf::First => self.collective.first,
            RowsOf::Further => self.collective.further,
        };
        if let Some(table) = known {
            return Ok(table);
        }
        let table = self.create_table(&of.spec(self.workers))?;
        match of {
            RowsOf::First => self.collective.first = Some(table),
            RowsOf::Further => self.collective.further = Some(table),
        }
        Ok(table)
    }
}
