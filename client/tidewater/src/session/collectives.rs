//! Collective calls of the client.

use tidewater_protocol::ids::{DomainId, WorkerId};
use tidewater_protocol::limits::COLLECTIVE_BYTES_MAX;
use tidewater_protocol::mutants::{Mutant, on};
use tidewater_protocol::table::PushOp;
use tidewater_protocol::wire::control::{Arrival, MemberBarrier};
use tidewater_protocol::wire::refusal::RefusalCode;
use tidewater_runtime::clock::Deadline;
use zerocopy::IntoBytes;

use super::Client;
use super::threads::first_only;
use crate::collective::{
    Call, CollectiveError, Header, Kind, ReduceOp, RowsOf, agree, fold, in_step,
};
use crate::error::ClientError;
use crate::link::{CoordinatorCall, unexpected};
use crate::pull::{self, PullOptions, Timeout};
use crate::table::{Element, Table};

/// Name of the barrier of every round of a collective call. A worker that repeats a call waits there for the others.
const BARRIER: &str = "tidewater/collective";
/// Name of the barrier of later rounds in a job of open size. A worker that joins meanwhile is at the other barrier.
const BARRIER_PARTS: &str = "tidewater/collective-parts";

/// Function that adds the values of one worker to a call's result, round after round. Arguments: result, index among
/// the workers, offset in bytes, values.
type Take<'a> = &'a dyn Fn(&mut [u8], usize, usize, &[u8]);

/// State that a client keeps between its collective calls: rounds, tables, members, buffers.
#[derive(Debug, Default)]
pub(super) struct CollectiveState {
    /// Number of completed rounds.
    rounds: u64,
    /// Call that failed after its first round. Only this call can follow: the others wait at the round
    /// that failed here, or have completed it.
    open: Option<Open>,
    /// In a job of open size, the call that failed here when the others may have completed it: this worker's calls
    /// do not fit theirs any more.
    failed: Option<&'static str>,
    first: Option<Table<i64>>,
    further: Option<Table<i64>>,
    /// Workers of the last call, with the numbers of its last round, by rank.
    members: Vec<Arrival>,
    /// Rows of the last round, worker after worker.
    rows: Vec<i64>,
    /// Values of one worker in the last round.
    values: Vec<u8>,
}

/// Collective call between two of its rounds. It is kept after a failure, so that a repetition continues it.
#[derive(Debug)]
struct Open {
    op: &'static str,
    call: Call,
    /// Number of elements of the call.
    len: usize,
    /// Number of completed rounds of the call, and bytes of each worker that they brought.
    parts: u64,
    at: usize,
    /// Buffer of the call's result, filled by the completed rounds.
    done: Vec<u8>,
}

/// Parameters of one round of a collective call, in which the workers exchange a bounded number of bytes at a
/// barrier.
struct Round<'a> {
    op: &'static str,
    rows: RowsOf,
    header: Header,
    /// This worker's values; `None` if it gives none in this round.
    mine: Option<&'a [u8]>,
    /// Bytes of values of each worker that gives some.
    bytes: usize,
    /// The worker that gives values; `None`: all do.
    root: Option<u32>,
}

impl Client {
    /// Gathers the `values` of all workers at every worker, in rank order. Blocks until all workers of the job have
    /// called it, with equally many elements: at most 1 MiB each ([`COLLECTIVE_BYTES_MAX`]). In a job of open size
    /// (no number of workers was given) these are its members at the call ([`Client::collective_ranks`]).
    ///
    /// No clock moves. When it returns, every worker has called it. What a worker waited for before its
    /// call (tickets of tables with immediate effect) is visible to all after it. Open pushes stay open.
    /// Cost: see [`collective`](crate::collective).
    ///
    /// # Errors
    /// [`ClientError::Collective`] when calls or lengths differ or a worker has left. A refusal that
    /// names the missing workers when the others do not come in the time of a clock wait. Such a call
    /// may be repeated, with the same values: it continues at the round that failed. A call of more
    /// than 480 bytes that failed between its rounds must be repeated before any other collective call. In a job of
    /// open size only a call that was refused can be repeated; after another failure this worker's further calls
    /// fail at once, since the others may have completed that one.
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
        let own = size_of_val(values);
        let take = |out: &mut [u8], nth: usize, at: usize, part: &[u8]| {
            let at = nth * own + at;
            out[at..at + part.len()].copy_from_slice(part);
        };
        let out = self.collect("all_gather", call, values.len(), values.as_bytes(), &take)?;
        let mut all = vec![T::default(); out.len() / size_of::<T>()];
        all.as_mut_bytes().copy_from_slice(&out);
        Ok(all)
    }

    /// Ranks of the workers that took part in the last collective call, ascending: the order of its values. In a job
    /// of open size they change from call to call. Empty before the first call.
    pub fn collective_ranks(&self) -> Vec<WorkerId> {
        self.collective.members.iter().map(|at| at.rank).collect()
    }

    /// Replaces `values` by their reduction over all workers, element by element in rank order. All workers call
    /// it with equally many elements (at most 1 MiB), and get the same bits, on any number of servers. Blocks
    /// until all have called it; moves no clock, as [`Client::all_gather`].
    ///
    /// # Errors
    /// As [`Client::all_gather`]; [`CollectiveError::Bits`] for an operation on the bits of floats.
    pub fn all_reduce<T: Element>(
        &mut self,
        values: &mut [T],
        op: ReduceOp,
    ) -> Result<(), ClientError> {
        let call = Call {
            kind: Kind::of(op),
            dtype: T::DTYPE,
            root: 0,
        };
        let mine = values.as_bytes().to_vec();
        let len = values.len();
        let take = |out: &mut [u8], nth: usize, at: usize, part: &[u8]| {
            let acc = &mut out[at..at + part.len()];
            match nth {
                0 => acc.copy_from_slice(part),
                2.. if call.is_of_bits() && on(Mutant::BitsOfTwoWorkers) => {}
                _ => fold(T::DTYPE, op, acc, part),
            }
        };
        let out = self.collect("all_reduce", call, len, &mine, &take)?;
        values.as_mut_bytes().copy_from_slice(&out);
        Ok(())
    }

    /// Replaces `values` by those of worker `root`, at every worker. All workers call it with slices of the same
    /// length (at most 1 MiB). Blocks until all have called it; moves no clock, as [`Client::all_gather`].
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
        let out = self.collect("broadcast", call, len, &mine, &take)?;
        values.as_mut_bytes().copy_from_slice(&out);
        Ok(())
    }

    /// Runs a collective call of `len` elements a worker, or the rest of one that failed between rounds, and returns
    /// the result bytes. `mine` is empty for a worker that gives no values; `take` adds each worker's values to the
    /// result.
    fn collect(
        &mut self,
        op: &'static str,
        call: Call,
        len: usize,
        mine: &[u8],
        take: Take<'_>,
    ) -> Result<Vec<u8>, ClientError> {
        first_only(op, self.guard.thread())?;
        self.check_no_task(op)?;
        if let Some(failed) = self.collective.failed {
            return Err(ClientError::Environment(format!(
                "an earlier {failed} failed here when the other members may have completed it, and a call of a job of \
                 open size cannot be repeated then; end this worker, and join as another one"
            ).into()));
        }
        let bytes = len.saturating_mul(call.dtype.size());
        let mut open = match self.take_open(call, len)? {
            Some(open) => open,
            None => self.first_round(op, call, len, mine, take)?,
        };
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
                root: root_of(call),
            };
            if let Err(error) = self.exchange(&round) {
                // All members of the call get this refusal: one of them has left.
                let is_over =
                    matches!(&error, ClientError::Refused(r) if r.code == RefusalCode::BadRequest);
                if self.workers > 0 || !is_over {
                    self.collective.open = Some(open);
                }
                return Err(error);
            }
            self.deliver(&round, None, open.at, &mut open.done, take);
            open.parts += 1;
            open.at += size;
        }
        Ok(open.done)
    }

    /// Takes out the call that failed between its rounds, to continue it; `None` if there is none, and a new call
    /// begins. Fails if that is another call than this one.
    fn take_open(&mut self, call: Call, len: usize) -> Result<Option<Open>, ClientError> {
        if let Some(open) = &self.collective.open
            && (open.call, open.len) != (call, len)
        {
            return Err(ClientError::Environment(format!(
                "an earlier {} of {} elements failed between its rounds, where the other workers may wait; \
                 repeat that call with the same values before another collective call, or end the job",
                open.op, open.len
            ).into()));
        }
        let open = self.collective.open.take();
        Ok(open.filter(|_| !on(Mutant::CollectiveBeginsAgain)))
    }

    /// Runs the first round of a call (an exchange of up to 480 bytes of each worker), in which the workers also
    /// compare their calls. Returns the call's state, from which further rounds continue.
    fn first_round(
        &mut self,
        op: &'static str,
        call: Call,
        len: usize,
        mine: &[u8],
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
            root: None,
        };
        self.exchange(&round)?;
        let agreed = self.agreed(call, bytes).and_then(|()| call.check_type());
        agreed.map_err(|source| ClientError::Collective { op, source })?;
        let givers = match call.kind {
            Kind::Gather => self.collective.members.len(),
            _ => 1,
        };
        let mut done = vec![0; bytes * givers];
        self.deliver(&round, root_of(call), 0, &mut done, take);
        Ok(Open {
            op,
            call,
            len,
            parts: 1,
            at: round.bytes,
            done,
        })
    }

    /// Checks, after the first round, that the calls of all workers fit together: kind, type, length, root. All
    /// workers come to the same result.
    fn agreed(&self, call: Call, bytes: usize) -> Result<(), CollectiveError> {
        let CollectiveState { rows, members, .. } = &self.collective;
        let rows = rows.chunks(rows.len() / members.len());
        let headers = members.iter().zip(rows);
        let headers =
            headers.filter_map(|(at, of)| Some((at.rank, RowsOf::First.headers(of).next()?)));
        agree(&headers.collect::<Vec<(WorkerId, Header)>>())?;
        if bytes > COLLECTIVE_BYTES_MAX {
            let bytes = bytes as u64;
            return Err(CollectiveError::TooLong { bytes });
        }
        let is_member = |root: u32| members.iter().any(|at| at.rank.0 == root);
        match root_of(call) {
            Some(root) if !is_member(root) => Err(CollectiveError::Root {
                root,
                workers: u32::try_from(members.len()).unwrap_or(u32::MAX),
            }),
            _ => Ok(()),
        }
    }

    /// Passes the values of the last round to `take`, worker by worker in rank order; with `root`, only those of
    /// that worker. `at` is the offset in bytes of the round in the call.
    fn deliver(
        &mut self,
        round: &Round<'_>,
        root: Option<u32>,
        at: usize,
        out: &mut [u8],
        take: Take<'_>,
    ) {
        let state = &mut self.collective;
        let givers = givers(&state.members, round.root);
        let each = state.rows.len() / givers.len().max(1);
        let count = givers.len();
        let mut nth = 0;
        for turn in 0..count {
            let from = match on(Mutant::CollectiveRankOrder) {
                true => (turn + self.rank.0 as usize) % count,
                false => turn,
            };
            if root.is_some_and(|root| givers[from].rank.0 != root) {
                continue;
            }
            let rows = &state.rows[from * each..(from + 1) * each];
            round.rows.unpack(rows, round.bytes, &mut state.values);
            take(out, nth, at, &state.values);
            nth += 1;
        }
    }

    /// Exchanges the values of one round: writes this worker's rows, waits at the barrier for the others, and reads
    /// the rows of the workers that give values. The round counts as completed when all of the rows read are of this
    /// round. After an error it does not, and a repetition runs it again.
    fn exchange(&mut self, round: &Round<'_>) -> Result<(), ClientError> {
        let table = self.collective_table(round.rows)?;
        let (number, workers) = (round.header.round, self.workers);
        let keys = |at: &Arrival, bytes| round.rows.keys(at.round, workers, at.rank.0, bytes);
        if let Some(mine) = round.mine {
            let mut rows = std::mem::take(&mut self.collective.rows);
            rows.clear();
            round.rows.pack(round.header, mine, &mut rows);
            let own = Arrival {
                rank: self.rank,
                round: number,
            };
            let pushed = self.push_rows(&table, &keys(&own, mine.len()), &rows, PushOp::Assign);
            self.collective.rows = rows;
            self.wait_applied(&pushed?)?;
        }
        let number = self.meet(round);
        // A refusal comes in place of the opening, which leaves the others waiting too.
        let may_be_open = !matches!(&number, Err(ClientError::Refused(_)));
        let read = number.and_then(|number| {
            let givers = givers(&self.collective.members, round.root).iter();
            let all: Vec<u64> = givers.flat_map(|at| keys(at, round.bytes)).collect();
            self.read_rows(&table, &all, round.rows)?;
            self.check_round(round)?;
            Ok(number)
        });
        match read {
            Ok(number) => {
                self.collective.rounds = number;
                Ok(())
            }
            Err(error) => {
                if workers == 0 && may_be_open {
                    self.collective.failed = Some(round.op);
                }
                Err(error)
            }
        }
    }

    /// Blocks at the barrier of a round until all workers have arrived, and stores them as the call's members.
    /// Returns the number of the round: in a job of open size the greatest of its members' numbers, with which this
    /// worker goes on.
    fn meet(&mut self, round: &Round<'_>) -> Result<u64, ClientError> {
        let deadline = Deadline::after(self.clock.deadline);
        let (op, number) = (round.op, round.header.round);
        if self.workers > 0 {
            let ranks = (0..self.workers).map(WorkerId);
            let arrivals = ranks.map(|rank| Arrival {
                rank,
                round: number,
            });
            self.collective.members.clear();
            self.collective.members.extend(arrivals);
            self.lanes
                .coordinator
                .barrier(BARRIER, self.workers, deadline)?;
            return Ok(number);
        }
        let (name, of) = match round.header.part {
            0 => (BARRIER, Vec::new()),
            _ => (BARRIER_PARTS, self.collective_ranks()),
        };
        let arrivals = self.meet_members(name, number, of, deadline)?;
        let arrived = in_step(&arrivals, round.header);
        self.collective.members = arrivals;
        arrived.map_err(|source| ClientError::Collective { op, source })
    }

    /// Blocks at a barrier of members in a job of open size: of the workers `of`, or, if that is empty, of all that
    /// have begun at this worker's clocks. Returns the workers with their rounds.
    fn meet_members(
        &mut self,
        name: &str,
        round: u64,
        of: Vec<WorkerId>,
        deadline: Deadline,
    ) -> Result<Vec<Arrival>, ClientError> {
        let call = CoordinatorCall::MemberBarrier(self.member_barrier(name, round, of));
        let call = self.start_call(&call, deadline, false)?;
        let arrivals = self.finish_call(call)?.arrivals("barrier")?;
        let own = self.rank;
        let has_own = arrivals
            .iter()
            .any(|at| (at.rank, at.round) == (own, round));
        match has_own && arrivals.iter().all(|at| at.round <= i64::MAX as u64) {
            true => Ok(arrivals),
            false => Err(unexpected("barrier")),
        }
    }

    /// Request with which this worker arrives at a barrier of members (in a job without a given number of workers):
    /// `round` is this worker's round, `of` the awaited workers, empty for all. It carries its clocks in BSP and SSP
    /// domains only: others do not show where the other workers are.
    pub(super) fn member_barrier(
        &self,
        name: &str,
        round: u64,
        of: Vec<WorkerId>,
    ) -> MemberBarrier {
        MemberBarrier {
            name: name.to_owned(),
            clocks: self.clock.bounded(),
            round,
            of,
            timeout_ms: 0,
        }
    }

    /// Reads rows of a collective table into the state's buffer. Like a pull, but waits for no clock: the rows took
    /// effect before the barrier opened.
    fn read_rows(
        &mut self,
        table: &Table<i64>,
        keys: &[u64],
        rows: RowsOf,
    ) -> Result<(), ClientError> {
        self.lanes.keep_alive()?;
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

    /// Checks that all rows read are of this round. Otherwise fails with the workers that have left, or are out of
    /// step.
    fn check_round(&mut self, round: &Round<'_>) -> Result<(), ClientError> {
        let givers = givers(&self.collective.members, round.root);
        let each = self.collective.rows.len() / givers.len().max(1);
        let rows = self.collective.rows.chunks(each.max(1));
        let strangers: Vec<(WorkerId, Header)> = rows
            .zip(givers)
            .filter_map(|(rows, at)| {
                let mut headers = round.rows.headers(rows);
                let due = round.header.at(at.round);
                let other = headers.find(|header| !header.is_of_round(&due))?;
                Some((at.rank, other))
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

    /// Ranks of the workers that have not left the job, ascending, as server 0 knows them; empty without servers.
    pub(super) fn live_workers(&mut self) -> Result<Vec<WorkerId>, ClientError> {
        let deadline = self.deadline();
        let live = self.lanes.members(0, DomainId(0), deadline)?;
        // `None`: there is no server, and with it no job that has other workers.
        let live = live.unwrap_or_default();
        let mut ranks: Vec<WorkerId> = live.iter().map(|(t, _)| t.rank).collect();
        ranks.sort_unstable();
        ranks.dedup();
        Ok(ranks)
    }

    /// Table that carries the values of a round: of the first or of further rounds. The first call creates it.
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

/// Rank of the only worker that gives values in a call (the root of a broadcast); `None` if all do.
const fn root_of(call: Call) -> Option<u32> {
    match call.kind {
        Kind::Broadcast => Some(call.root),
        _ => None,
    }
}

/// Members of a call that give values: all, or only `root`; empty if `root` is no member.
fn givers(members: &[Arrival], root: Option<u32>) -> &[Arrival] {
    match root.map(|root| members.iter().position(|at| at.rank.0 == root)) {
        None => members,
        Some(at) => at.map_or(&[], |at| &members[at..=at]),
    }
}
