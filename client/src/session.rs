//! The client of one thread: tables, pulls, pushes, ticks.

use std::time::Duration;

use tidewater_transport::clock::Deadline;
use tidewater_transport::fabric::{Sleeper, TransportKind};
use tidewater_transport::ids::{DomainId, WorkerId};
use tidewater_transport::layout::frame::{FrameFlags, FrameHeader, FrameKind, RowsPayload};
use tidewater_transport::layout::row::Loc;
use tidewater_transport::limits::{DATA_DEADLINE, DOMAINS_MAX};
use tidewater_transport::table::{PushOp, TableSpec};
use tidewater_transport::wire::control::TableInfo;
use zerocopy::IntoBytes;

use crate::clock::{Sync, WorkerClock};
use crate::counters::Counters;
use crate::error::ClientError;
use crate::lanes::{Interrupt, Lanes};
use crate::link::{CoordinatorLink, OpenLane, ServerLink};
use crate::pull::{self, LaterPulls, PullMode, PullOptions, PullTicket, RowScratch};
use crate::push::Ticket;
use crate::push::combine::Combiner;
use crate::table::state::TableState;
use crate::table::{Element, Table};

/// Everything a client is made of.
pub struct Parts {
    /// Control connection to the coordinator.
    pub coordinator: Box<dyn CoordinatorLink>,
    /// Each server with its lanes, in order of the servers' numbers.
    pub servers: Vec<(Box<dyn ServerLink>, Vec<OpenLane>)>,
    /// What the thread sleeps in.
    pub sleeper: Box<dyn Sleeper>,
    /// This worker.
    pub rank: WorkerId,
    /// Workers of the job.
    pub workers: u32,
    /// How far workers may drift apart.
    pub sync: Sync,
}

/// A worker's client. It belongs to one thread; other threads of the worker make their own.
///
/// # Resource clean-up
/// Dropping it ends the session: what was pushed stays pushed (wait for the tickets that matter).
/// It does not say that the worker is done; [`Client::finish`] does, so that nobody waits for it.
pub struct Client {
    lanes: Lanes,
    coordinator: Box<dyn CoordinatorLink>,
    tables: Vec<TableState>,
    clock: WorkerClock,
    scratch: RowScratch,
    combiner: Combiner,
    later: LaterPulls,
    by_lane: Vec<Vec<u32>>,
    rank: WorkerId,
    workers: u32,
    timeout: Duration,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client")
            .field("rank", &self.rank)
            .finish_non_exhaustive()
    }
}

impl Client {
    /// From connections that exist. Most users want [`crate::Job`] or the
    /// embedded cluster.
    ///
    /// # Errors
    /// [`ClientError::Protocol`] when a server granted a ring that cannot be.
    pub fn from_parts(parts: Parts) -> Result<Self, ClientError> {
        let lanes = Lanes::new(parts.servers, parts.sleeper)?;
        let by_lane = vec![Vec::new(); lanes.len()];
        Ok(Self {
            lanes,
            coordinator: parts.coordinator,
            tables: Vec::new(),
            clock: WorkerClock::new(parts.sync),
            scratch: RowScratch::default(),
            combiner: Combiner::default(),
            later: LaterPulls::default(),
            by_lane,
            rank: parts.rank,
            workers: parts.workers,
            timeout: DATA_DEADLINE,
        })
    }

    /// This worker's rank.
    pub const fn rank(&self) -> WorkerId {
        self.rank
    }

    /// Workers of the job.
    pub const fn workers(&self) -> u32 {
        self.workers
    }

    /// Servers of the job.
    pub fn servers(&self) -> usize {
        self.lanes.servers()
    }

    /// What carries the lanes to the servers.
    pub fn transport(&mut self) -> Option<TransportKind> {
        self.lanes.link(0).map(|link| link.transport())
    }

    /// What was done so far.
    pub const fn counters(&self) -> &Counters {
        &self.lanes.counters
    }

    /// Longest time that a call without options may take (default 30 s).
    pub const fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// Longest time that a clock wait may take (default 30 min).
    pub const fn set_clock_timeout(&mut self, timeout: Duration) {
        self.clock.deadline = timeout;
    }

    fn deadline(&self) -> Deadline {
        Deadline::after(self.timeout)
    }

    /// Creates a table, or opens the one of that name if its definition is equal. All workers may
    /// call it. Cost: a round trip to the coordinator and to each server.
    ///
    /// # Errors
    /// A refusal that says what differs or which limit is passed; a deadline.
    pub fn create_table<T: Element>(&mut self, spec: &TableSpec) -> Result<Table<T>, ClientError> {
        let deadline = self.deadline();
        let info = self.coordinator.create_table(spec, deadline)?;
        self.adopt(info, deadline)
    }

    /// Opens a table that exists.
    ///
    /// # Errors
    /// A refusal when there is none of that name, or it holds another element type.
    pub fn open_table<T: Element>(&mut self, name: &str) -> Result<Table<T>, ClientError> {
        let deadline = self.deadline();
        let info = self.coordinator.open_table(name, deadline)?;
        self.adopt(info, deadline)
    }

    fn adopt<T: Element>(
        &mut self,
        info: TableInfo,
        deadline: Deadline,
    ) -> Result<Table<T>, ClientError> {
        if info.spec.dtype != T::DTYPE {
            return Err(ClientError::Argument {
                op: "open_table",
                table: info.spec.name.clone(),
                what: format!("it holds {:?}, not {:?}", info.spec.dtype, T::DTYPE),
            });
        }
        let (id, dim) = (info.id, info.spec.dim());
        if let Some(index) = self.tables.iter().position(|t| t.id == id) {
            let known = &self.tables[index].spec;
            if *known != info.spec {
                return Err(ClientError::Protocol {
                    server: "coordinator".into(),
                    what: format!(
                        "tables \"{}\" and \"{}\" differ and have one number, {id}",
                        known.name, info.spec.name
                    ),
                });
            }
            return Ok(Table::new(id, index, dim));
        }
        let mut state = TableState::new(info, &self.lanes)?;
        let mut first_lane = 0;
        for server in 0..self.lanes.servers() {
            let lanes = first_lane..first_lane + self.lanes.appliers(server);
            first_lane = lanes.end;
            if let Some(link) = self.lanes.link(server) {
                let told = link.describe(id, deadline)?;
                let name = link.name().to_owned();
                state
                    .learn(&told, lanes)
                    .map_err(|what| ClientError::Protocol {
                        server: name,
                        what: format!("table \"{}\": {what}", state.name()),
                    })?;
            }
        }
        self.tables.push(state);
        Ok(Table::new(id, self.tables.len() - 1, dim))
    }

    /// Releases a table for everybody. Pulls and pushes of it fail from now on.
    ///
    /// # Errors
    /// The coordinator's refusal or a deadline.
    pub fn release_table<T: Element>(&mut self, table: Table<T>) -> Result<(), ClientError> {
        let deadline = self.deadline();
        self.coordinator.release_table(table.id, deadline)
    }

    fn wrong(&self, op: &'static str, index: usize, what: String) -> ClientError {
        let table = self.tables.get(index).map_or("?", |t| t.name()).to_owned();
        ClientError::Argument { op, table, what }
    }

    /// Pulls rows by key (sparse) or index (layout `rows`) into `out`, row after row in the order
    /// of `keys`; keys may be unsorted and may repeat. On an error `out` is unspecified.
    ///
    /// # Errors
    /// [`ClientError::Argument`] when `out` is not `keys.len() x dim` elements or an index is past
    /// the end; deadlines; a server's refusal.
    pub fn pull_rows<T: Element>(
        &mut self,
        table: &Table<T>,
        keys: &[u64],
        out: &mut [T],
        options: PullOptions,
    ) -> Result<(), ClientError> {
        let due = keys.len() * table.dim;
        if out.len() != due {
            let what = format!(
                "{} elements for {} rows of {}",
                out.len(),
                keys.len(),
                table.dim
            );
            return Err(self.wrong("pull_rows", table.index, what));
        }
        if options.mode == PullMode::Snapshot {
            let what = "snapshots are of ranges; use pull_dense".into();
            return Err(self.wrong("pull_rows", table.index, what));
        }
        let Some(state) = self.tables.get_mut(table.index) else {
            return Ok(());
        };
        if state.is_blocks() {
            let what = "the table is by ranges; use pull_dense".into();
            return Err(self.wrong("pull_rows", table.index, what));
        }
        self.clock.gate(&mut self.lanes, state.spec.domain)?;
        let deadline = Deadline::after(options.timeout);
        let bytes = out.as_mut_bytes();
        pull::pull_rows(
            &mut self.lanes,
            state,
            &mut self.scratch,
            keys,
            bytes,
            options,
            deadline,
        )
    }

    /// Starts a pull of rows; [`Client::finish_pull`] waits for it. Several may be under way, on
    /// one table or many. Rows whose place is not yet known are read when it is finished.
    ///
    /// # Errors
    /// [`ClientError::Argument`] for a table by ranges, a snapshot, or too many pulls under way.
    pub fn start_pull_rows<T: Element>(
        &mut self,
        table: &Table<T>,
        keys: &[u64],
        options: PullOptions,
    ) -> Result<PullTicket, ClientError> {
        let deadline = Deadline::after(options.timeout);
        let Some(state) = self.tables.get(table.index) else {
            return Err(self.wrong("start_pull", table.index, "no such table".into()));
        };
        if state.is_blocks() || options.mode == PullMode::Snapshot {
            let what = "only rows can be pulled later; use pull_dense".into();
            return Err(self.wrong("start_pull", table.index, what));
        }
        self.clock.gate(&mut self.lanes, state.spec.domain)?;
        self.later.start(
            &mut self.lanes,
            (table.index, state),
            keys,
            options,
            deadline,
        )
    }

    /// Whether [`Client::finish_pull`] would return without waiting for reads under way.
    ///
    /// # Errors
    /// When a server is lost.
    pub fn try_pull(&mut self, ticket: PullTicket) -> Result<bool, ClientError> {
        let deadline = self.deadline();
        match self.lanes.poll() {
            Err(Interrupt::Broken(lane)) => self.lanes.mend(lane, deadline)?,
            Err(Interrupt::Failed(e)) => return Err(e),
            Ok(()) => {}
        }
        Ok(self.later.is_ready(&mut self.lanes, ticket))
    }

    /// Waits for a pull and writes its rows to `out`, in the order of its keys.
    ///
    /// # Errors
    /// As [`Client::pull_rows`]; after a deadline the pull is still under way.
    pub fn finish_pull<T: Element>(
        &mut self,
        ticket: PullTicket,
        out: &mut [T],
    ) -> Result<(), ClientError> {
        let deadline = self.deadline();
        let Some(state) = self.tables.get_mut(ticket.table) else {
            return Ok(());
        };
        let bytes = out.as_mut_bytes();
        self.later.finish(
            &mut self.lanes,
            state,
            &mut self.scratch,
            ticket,
            bytes,
            deadline,
        )
    }

    /// Gives a pull up.
    pub fn cancel_pull(&mut self, ticket: PullTicket) {
        self.later.cancel(ticket);
    }

    /// Pulls elements `first ..` of a table by ranges (row-major) into `out`.
    ///
    /// # Errors
    /// [`ClientError::Argument`] when the range is not in the table; deadlines; a server's refusal.
    pub fn pull_dense<T: Element>(
        &mut self,
        table: &Table<T>,
        first: u64,
        out: &mut [T],
        options: PullOptions,
    ) -> Result<(), ClientError> {
        let Some(state) = self.tables.get_mut(table.index) else {
            return Ok(());
        };
        self.clock.gate(&mut self.lanes, state.spec.domain)?;
        let deadline = Deadline::after(options.timeout);
        pull::pull_blocks(
            &mut self.lanes,
            state,
            first,
            out.as_mut_bytes(),
            options,
            deadline,
        )
    }

    /// Pushes rows. Duplicate keys are combined here: sums and gradients are added, of assigns the
    /// last wins. Returns when the frames are on their way; the ticket says when they are applied.
    ///
    /// # Errors
    /// [`ClientError::Argument`] for lengths that do not fit; a deadline when a ring stays full.
    pub fn push_rows<T: Element>(
        &mut self,
        table: &Table<T>,
        keys: &[u64],
        values: &[T],
        op: PushOp,
    ) -> Result<Ticket, ClientError> {
        if values.len() != keys.len() * table.dim {
            let n = values.len();
            let what = format!("{n} elements for {} rows of {}", keys.len(), table.dim);
            return Err(self.wrong("push_rows", table.index, what));
        }
        let deadline = self.deadline();
        self.lanes.counters.pushes += 1;
        let Some(state) = self.tables.get(table.index) else {
            return Ok(Ticket::default());
        };
        let row_bytes = state.row.payload_bytes;
        self.combiner
            .combine(state.spec.dtype, op, keys, values.as_bytes(), row_bytes);
        for rows in &mut self.by_lane {
            rows.clear();
        }
        for (row, &key) in self.combiner.keys.iter().enumerate() {
            match state
                .lane_of(key)
                .and_then(|lane| self.by_lane.get_mut(lane))
            {
                Some(rows) => rows.push(row as u32),
                None => {
                    let what = format!("row {key} is past the end");
                    return Err(self.wrong("push_rows", table.index, what));
                }
            }
        }
        self.send_rows(table.index, op, deadline)
    }

    fn send_rows(
        &mut self,
        index: usize,
        op: PushOp,
        deadline: Deadline,
    ) -> Result<Ticket, ClientError> {
        let Some(state) = self.tables.get(index) else {
            return Ok(Ticket::default());
        };
        let mut ticket = Ticket::new(state.id.0);
        let row_bytes = state.row.payload_bytes;
        let clock = self.clock.at(state.spec.domain);
        let combiner = &self.combiner;
        for (lane, rows) in self.by_lane.iter().enumerate() {
            let room = self
                .lanes
                .get(lane)
                .ring
                .payload_bytes_max()
                .saturating_sub(128);
            let most = (room / (row_bytes + 16)).max(1);
            for chunk in rows.chunks(most) {
                let locs = state.is_sparse();
                let parts = RowsPayload::new(chunk.len(), row_bytes, locs);
                let header = push_header(state, FrameKind::PushRows, op, clock, chunk.len(), locs);
                let fill = |to: &mut [u8]| fill_rows(to, parts, chunk, combiner, state);
                let seq = self.lanes.build(lane, header, parts.len, fill, deadline)?;
                ticket.add(lane, seq);
            }
            if !rows.is_empty() {
                self.lanes.send(lane, deadline)?;
            }
        }
        Ok(ticket)
    }

    /// Pushes elements `first ..` of a table by ranges.
    ///
    /// # Errors
    /// [`ClientError::Argument`] when the range is not in the table; a deadline when a ring stays
    /// full.
    pub fn push_dense<T: Element>(
        &mut self,
        table: &Table<T>,
        first: u64,
        values: &[T],
        op: PushOp,
    ) -> Result<Ticket, ClientError> {
        let deadline = self.deadline();
        self.lanes.counters.pushes += 1;
        let Some(state) = self.tables.get(table.index) else {
            return Ok(Ticket::default());
        };
        let Some((layout, ranges)) = state.blocks() else {
            let what = "the table has rows; push them with push_rows".into();
            return Err(self.wrong("push_dense", table.index, what));
        };
        let end = first
            .checked_add(values.len() as u64)
            .filter(|&e| e <= layout.elements);
        let Some(end) = end else {
            let what = format!("elements {first}+{} of {}", values.len(), layout.elements);
            return Err(self.wrong("push_dense", table.index, what));
        };
        let mut ticket = Ticket::new(state.id.0);
        let clock = self.clock.at(state.spec.domain);
        let per_block = layout.block_elements();
        let mut at = first;
        while at < end {
            let partition = ranges.part_of(at / per_block);
            let stop = (ranges.start(partition + 1) * per_block).min(end);
            let Some(lane) = state.lane_of_partition(partition) else {
                break;
            };
            while at < stop {
                // Frames hold whole blocks where they can: each is written once under its version.
                let room = self.lanes.get(lane).ring.payload_bytes_max() - 8;
                let blocks = (room / layout.block_bytes).max(1) as u64;
                let to = ((at / per_block + blocks) * per_block).min(stop);
                let to = to.min(at + (room / layout.element_bytes) as u64);
                let part = values.get((at - first) as usize..(to - first) as usize);
                let bytes = part.unwrap_or_default().as_bytes();
                let n = (to - at) as usize;
                let mut header = push_header(state, FrameKind::PushDense, op, clock, n, false);
                header.partition = partition;
                let start = at;
                let fill = |out: &mut [u8]| {
                    let (head, body) = out.split_at_mut(8);
                    head.copy_from_slice(&start.to_le_bytes());
                    body.copy_from_slice(bytes);
                };
                let seq = self
                    .lanes
                    .build(lane, header, 8 + bytes.len(), fill, deadline)?;
                ticket.add(lane, seq);
                self.lanes.send(lane, deadline)?;
                at = to;
            }
        }
        Ok(ticket)
    }

    /// Waits until a push is applied: reads that start afterwards see it (of tables `at_clock`:
    /// after the tick).
    ///
    /// # Errors
    /// [`ClientError::Rejected`] when a server refused a frame of it; a deadline.
    pub fn wait_applied(&mut self, ticket: &Ticket) -> Result<(), ClientError> {
        let deadline = self.deadline();
        self.wait_applied_until(ticket, deadline)
    }

    /// [`Client::wait_applied`] with a deadline.
    ///
    /// # Errors
    /// As there.
    pub fn wait_applied_until(
        &mut self,
        ticket: &Ticket,
        deadline: Deadline,
    ) -> Result<(), ClientError> {
        let done = self.lanes.wait("wait for a push", deadline, |lanes| {
            Ok::<_, Interrupt>(lanes.try_applied(ticket))
        })?;
        done.map_err(|refused| self.refused(ticket, refused))
    }

    /// Whether a push is applied. Does not wait.
    ///
    /// # Errors
    /// [`ClientError::Rejected`] when a server refused a frame of it.
    pub fn try_applied(&mut self, ticket: &Ticket) -> Result<bool, ClientError> {
        let deadline = self.deadline();
        match self.lanes.poll() {
            Err(Interrupt::Broken(lane)) => self.lanes.mend(lane, deadline)?,
            Err(Interrupt::Failed(e)) => return Err(e),
            Ok(()) => {}
        }
        match self.lanes.try_applied(ticket) {
            None => Ok(false),
            Some(Ok(())) => Ok(true),
            Some(Err(refused)) => Err(self.refused(ticket, refused)),
        }
    }

    fn refused(
        &self,
        ticket: &Ticket,
        (lane, reject): (usize, tidewater_transport::layout::lines::Reject),
    ) -> ClientError {
        let name = self.tables.iter().find(|t| t.id.0 == ticket.table());
        ClientError::Rejected {
            table: name.map_or("?", |t| t.name()).to_owned(),
            server: self.lanes.name(lane).to_owned(),
            reject,
        }
    }

    /// Ends an iteration in the default clock domain. After a deadline the call can be repeated.
    ///
    /// # Errors
    /// A deadline that names the workers it waits for.
    pub fn tick(&mut self) -> Result<(), ClientError> {
        self.tick_domain(DomainId(0))
    }

    /// Ends an iteration in a clock domain.
    ///
    /// # Errors
    /// A deadline that names the workers it waits for; [`ClientError::Argument`] for a domain that
    /// there is not.
    pub fn tick_domain(&mut self, domain: DomainId) -> Result<(), ClientError> {
        if usize::from(domain.0) >= DOMAINS_MAX {
            return Err(ClientError::Argument {
                op: "tick_domain",
                table: "-".into(),
                what: format!("domain {domain}; there are 0 to {}", DOMAINS_MAX - 1),
            });
        }
        self.clock.tick(&mut self.lanes, domain)
    }

    /// Iterations completed in the default domain.
    pub fn clock(&self) -> u64 {
        self.clock.at(DomainId(0))
    }

    /// The slowest worker's clock as every server tells it: what a pull now is sure to see.
    ///
    /// # Errors
    /// When a server is lost.
    pub fn global_clock(&mut self) -> Result<u64, ClientError> {
        let deadline = self.deadline();
        self.lanes.wait("look at the clock", deadline, |lanes| {
            Ok((0..lanes.len())
                .map(|l| lanes.get(l).clock(DomainId(0)).min)
                .min())
        })
    }

    /// Waits until `count` workers have come here.
    ///
    /// # Errors
    /// A refusal that names who is missing.
    pub fn barrier(&mut self, name: &str, timeout: Duration) -> Result<(), ClientError> {
        self.coordinator
            .barrier(name, self.workers, Deadline::after(timeout))
    }

    /// Saves all tables into a directory that all servers see; call it on one worker, between
    /// barriers. Returns rows and bytes written.
    ///
    /// # Errors
    /// A refusal that names file and cause.
    pub fn save(&mut self, dir: &str, timeout: Duration) -> Result<(u64, u64), ClientError> {
        self.coordinator.save(dir, Deadline::after(timeout))
    }

    /// Loads the tables of a saved model; their names. Open them afterwards.
    ///
    /// # Errors
    /// A refusal that names file and cause.
    pub fn load(&mut self, dir: &str, timeout: Duration) -> Result<Vec<String>, ClientError> {
        self.coordinator.load(dir, Deadline::after(timeout))
    }

    /// Waits for everything pushed so far, on every lane.
    ///
    /// # Errors
    /// A deadline that names who has not applied.
    pub fn flush(&mut self) -> Result<(), ClientError> {
        let deadline = self.deadline();
        self.lanes.wait("flush", deadline, |lanes| {
            let done = (0..lanes.len()).all(|l| lanes.get(l).ring.is_drained());
            Ok(done.then_some(()))
        })
    }

    /// This worker is done: flushes, leaves every clock, and says so to the coordinator.
    ///
    /// # Errors
    /// A deadline, or a lost connection.
    pub fn finish(&mut self) -> Result<(), ClientError> {
        self.clock.finish(&mut self.lanes)?;
        self.flush()?;
        let deadline = self.deadline();
        self.coordinator.finished(deadline)
    }

    /// This worker cannot go on: tells the coordinator why, which ends the job and names it.
    ///
    /// # Errors
    /// A deadline, or a lost connection.
    pub fn fail(&mut self, reason: &str) -> Result<(), ClientError> {
        let deadline = self.deadline();
        self.coordinator.failed(reason, deadline)
    }
}

fn push_header(
    state: &TableState,
    kind: FrameKind,
    op: PushOp,
    clock: u64,
    count: usize,
    locs: bool,
) -> FrameHeader {
    let mut header = pull::request(state, kind, count, false);
    header.flags = FrameFlags {
        op: Some(op),
        dtype: Some(state.spec.dtype),
        locs,
        create: false,
    };
    header.clock = clock;
    header
}

/// Keys, locations and values of a frame's rows.
fn fill_rows(
    to: &mut [u8],
    parts: RowsPayload,
    rows: &[u32],
    combiner: &Combiner,
    state: &TableState,
) {
    let row_bytes = state.row.payload_bytes;
    for (n, &row) in rows.iter().enumerate() {
        let row = row as usize;
        let key = combiner.keys.get(row).copied().unwrap_or_default();
        put(to, n * 8, &key.to_le_bytes());
        if state.is_sparse() {
            let loc = state.hints.get(key).unwrap_or(Loc::NONE);
            put(to, parts.locs_at + n * 8, &loc.0.to_le_bytes());
        }
        let values = combiner.values.get(row * row_bytes..(row + 1) * row_bytes);
        put(
            to,
            parts.values_at + n * row_bytes,
            values.unwrap_or_default(),
        );
    }
}

fn put(to: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(to) = to.get_mut(at..at + bytes.len()) {
        to.copy_from_slice(bytes);
    }
}
