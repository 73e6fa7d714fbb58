//! Keys of a sparse table: which are stored, how many, and their deletion.

use std::ops::Range;

use tidewater_lanes::num::{count, size};
use tidewater_protocol::ids::TableId;
use tidewater_protocol::layout::frame::{FrameHeader, FrameKind, PARTITION_ANY};
use tidewater_protocol::layout::row::RowLocation;
use tidewater_protocol::layout::scan::{SCAN_BYTES, SCAN_END, ScanReply, ScanRequest};
use tidewater_protocol::limits::FRAME_ROWS_MAX;
use tidewater_runtime::clock::Deadline;
use zerocopy::IntoBytes;

use super::Client;
use super::pull::{is_countable, sizes};
use crate::error::ClientError;
use crate::lanes::Requests;
use crate::pull;
use crate::push::Ticket;
use crate::table::any::with_table;
use crate::table::opened::Named;
use crate::table::state::TableState;
use crate::table::{AnyTable, Element, Table};

/// Position of a scan over the keys of a sparse table: partition and slot. Plain numbers, which may be stored and
/// used by any client of the table.
///
/// The default begins with the first partition and ends after the last one. Workers that share a scan
/// take [ranges of partitions](Self::of_partitions).
///
/// # Example
/// ```
/// # use tidewater::{ClientError, JoinOptions, PushOp, ScanCursor, SyncMode, TableBuilder};
/// # fn main() -> Result<(), ClientError> {
/// # let job = JoinOptions::embedded(1, 1).join()?.into_job().expect("a worker");
/// # let mut client = job.client(SyncMode::Asp)?;
/// let table = client.create_table::<i64>(TableBuilder::sparse::<i64>("counts", 1).spec())?;
/// let ticket = client.push_rows(&table, &[9, 3, 5], &[1; 3], PushOp::Sum)?;
/// client.wait_applied(&ticket)?;
/// let (mut cursor, mut found, mut keys) = (ScanCursor::default(), Vec::new(), [0; 2]);
/// loop {
///     let count = client.scan_keys(&table, &mut cursor, &mut keys)?;
///     if count == 0 {
///         break;
///     }
///     found.extend_from_slice(&keys[..count]);
/// }
/// found.sort();
/// assert_eq!(found, [3, 5, 9]);
/// # client.finish()
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScanCursor {
    /// Partition of the next key.
    pub partition: u32,
    /// Partition at which the scan ends; that of the table if it has fewer.
    pub end: u32,
    /// Slot of the next key in its partition.
    pub slot: u64,
}

impl Default for ScanCursor {
    fn default() -> Self {
        Self::of_partitions(0..u32::MAX)
    }
}

impl ScanCursor {
    /// Cursor at the beginning of a scan of these partitions of a table.
    pub const fn of_partitions(partitions: Range<u32>) -> Self {
        Self {
            partition: partitions.start,
            end: partitions.end,
            slot: 0,
        }
    }
}

impl Client {
    /// Deletes the rows of some keys of a sparse table. Keys without a row are ignored. Returns when the frames are
    /// sent; the ticket reports when they are applied.
    ///
    /// A deletion stands between the pushes of this client and is carried out exactly once. On a table of
    /// ticks it takes effect with the tick, in the order of rank, thread and call: pushes of that tick
    /// before it are dropped, later ones begin with a new row. On other tables it takes effect on arrival.
    ///
    /// A pull that begins after it took effect does not return the row: of a key without a row it returns
    /// the initial values, or makes a new row ([`Missing::Create`](crate::Missing)). Rows that a
    /// [`CachedTable`](crate::CachedTable) holds stay there until they are too old, those of a
    /// [`PushBuffer`](crate::PushBuffer) are pushed later. Residuals of this client's encoded pushes of
    /// these rows are dropped, those of other clients are not.
    ///
    /// # Errors
    /// [`ClientError::Argument`] for a table that is not sparse: nothing can be deleted from it. A deadline when a
    /// ring stays full; some rows may then be deleted.
    ///
    /// # Example
    /// ```
    /// use tidewater::{Client, ClientError, Table};
    ///
    /// /// Deletes two rows and waits until they are deleted.
    /// fn delete(client: &mut Client, table: &Table<f32>) -> Result<(), ClientError> {
    ///     let ticket = client.delete_keys(table, &[7, 9])?;
    ///     client.wait_applied(&ticket)
    /// }
    /// ```
    pub fn delete_keys<T: Element>(
        &mut self,
        table: &Table<T>,
        keys: &[u64],
    ) -> Result<Ticket, ClientError> {
        let op = "delete_keys";
        self.check_worker(op)?;
        let state = self.sparse(op, table.named())?;
        if !is_countable(keys) {
            return Err(state.wrong(op, sizes(0, keys, table.dim)));
        }
        self.lanes.counters.pushes += 1;
        let deadline = self.deadline();
        let sent = self.send_deletions(table.named(), keys, deadline);
        let handle = table.named().handle.number();
        match &sent {
            Ok(_) => self.feedback.forget_rows(handle, keys),
            // Frames that are built are sent later, and delete their rows.
            Err(_) => {
                let lanes = self.by_lane.iter().zip(&self.lane_next);
                let built = lanes.flat_map(|(rows, &built)| rows.iter().take(size(built)));
                let built: Vec<u64> = built.map(|&row| keys[row as usize]).collect();
                self.feedback.forget_rows(handle, &built);
            }
        }
        sent.map_err(|e| self.name_turns(Some(table.id()), e))
    }

    fn send_deletions(
        &mut self,
        table: Named,
        keys: &[u64],
        deadline: Deadline,
    ) -> Result<Ticket, ClientError> {
        let state = self.tables.find("delete_keys", table)?;
        let mut ticket = Ticket::of(self.tables.client, state.id);
        let clock = self.clock.stamp(state.spec.domain);
        for rows in &mut self.by_lane {
            rows.clear();
        }
        self.lane_next.fill(0);
        for (row, &key) in keys.iter().enumerate() {
            let lane = state.lane_of(key);
            let rows = lane.and_then(|lane| self.by_lane.get_mut(lane));
            let rows = rows.unwrap_or_else(|| unreachable!("key {key} has no lane"));
            rows.push(count(row));
        }
        loop {
            self.lane_waits.fill(0);
            for (lane, rows) in self.by_lane.iter().enumerate() {
                let most = self.lanes.get(lane).ring.payload_bytes_max() / 8;
                let next = &mut self.lane_next[lane];
                let first = *next;
                for chunk in rows[size(first)..].chunks(most.clamp(1, FRAME_ROWS_MAX)) {
                    let len = chunk.len() * 8;
                    if self.lanes.is_full(lane, len) {
                        self.lane_waits[lane] = len;
                        break;
                    }
                    let mut header = pull::request(state, FrameKind::Delete, chunk.len(), false);
                    header.clock = clock;
                    let fill = |to: &mut [u8]| {
                        let (words, _) = to.as_chunks_mut::<8>();
                        for (word, &row) in words.iter_mut().zip(chunk) {
                            *word = keys[row as usize].to_le_bytes();
                        }
                    };
                    let seq = self.lanes.build(lane, header, len, fill, deadline)?;
                    ticket.add(lane, seq);
                    *next += chunk.len() as u64;
                }
                if *next > first {
                    self.lanes.send(lane, deadline)?;
                }
            }
            if !self.lanes.wait_room(&self.lane_waits, deadline)? {
                return Ok(ticket);
            }
        }
    }

    /// Asks the servers whether each of these keys of a sparse table has a row, and blocks for the answers, which
    /// are in the order of `keys`. Creates nothing. Sees what this client has pushed and deleted before; of a table
    /// of ticks, what the tick has done. There, a key counts as stored as soon as its server holds a push of it.
    ///
    /// # Errors
    /// [`ClientError::Argument`] for a table that is not sparse; deadlines; a server's refusal.
    pub fn exists<T: Element>(
        &mut self,
        table: &Table<T>,
        keys: &[u64],
    ) -> Result<Vec<bool>, ClientError> {
        let op = "exists";
        let deadline = self.deadline();
        let state = self.sparse(op, table.named())?;
        if !is_countable(keys) {
            return Err(state.wrong(op, sizes(0, keys, table.dim)));
        }
        let domain = state.spec.domain;
        self.clock.gate(&mut self.lanes, domain)?;
        let state = self.tables.find(op, table.named())?;
        let mut rows: Vec<u32> = (0..count(keys.len())).collect();
        rows.sort_by_key(|&row| state.lane_of(keys[row as usize]));
        let mut stored = vec![false; keys.len()];
        let found = |row: u32, loc: RowLocation| stored[row as usize] = loc.is_some();
        self.lanes
            .resolve(state, keys, &rows, false, deadline, found)?;
        Ok(stored)
    }

    /// Counts the stored keys of a sparse table, over all servers. One request to each applier: other workers may
    /// push and delete between the answers.
    ///
    /// # Errors
    /// [`ClientError::Argument`] for a table that is not sparse; deadlines; a server's refusal.
    pub fn count_keys<T: Element>(&mut self, table: &Table<T>) -> Result<u64, ClientError> {
        let deadline = self.deadline();
        let domain = self.sparse("count_keys", table.named())?.spec.domain;
        self.clock.gate(&mut self.lanes, domain)?;
        let state = self.tables.find("count_keys", table.named())?;
        let partitions = 0..state.spec.partitions;
        let mut lanes: Vec<usize> = partitions
            .filter_map(|partition| state.lane_of_partition(partition))
            .collect();
        lanes.sort_unstable();
        lanes.dedup();
        let parts = lanes.into_iter().map(|lane| ScanPart {
            lane,
            partition: PARTITION_ANY,
            first: 0,
        });
        let mut requests = ScanRequests::new(state, parts.collect(), 0, false);
        self.lanes
            .request_all("wait for key counts", &mut requests, deadline)?;
        Ok(requests.replies.iter().map(|reply| reply.stored).sum())
    }

    /// Lists stored keys of a sparse table from a cursor on, in no order, and moves the cursor. Returns the number
    /// of keys written to `keys`: all of it except at the end of the scan, where it is less, at last 0.
    ///
    /// A key that is stored throughout the scan is returned exactly once. A key that is created or deleted during
    /// the scan may or may not be returned. One that is deleted and created again may be returned twice.
    ///
    /// Cost: requests to the servers, one after the other. Each covers slots of one partition: at most 2,048, and no
    /// more than `keys` has room left for or one reply holds.
    ///
    /// # Errors
    /// [`ClientError::Argument`] for a table that is not sparse, and for no room in `keys`; deadlines; a server's
    /// refusal. The cursor has not moved then, and `keys` may be partly overwritten.
    pub fn scan_keys<T: Element>(
        &mut self,
        table: &Table<T>,
        cursor: &mut ScanCursor,
        keys: &mut [u64],
    ) -> Result<usize, ClientError> {
        self.scan("scan_keys", table, cursor, keys, None)
    }

    /// Lists stored keys from a cursor on into `keys`, with their rows of `dim` elements each in `values`, and
    /// moves the cursor. Returns the number of keys, 0 at the end of the scan, as [`Client::scan_keys`]. Each
    /// row is one complete version; the rows together are no snapshot.
    ///
    /// # Errors
    /// As [`Client::scan_keys`], and [`ClientError::Argument`] for `values` of another length.
    ///
    /// # Example
    /// ```
    /// use tidewater::{Client, ClientError, ScanCursor, Table};
    ///
    /// /// Adds up all rows of a table.
    /// fn sum(client: &mut Client, table: &Table<f32>) -> Result<f32, ClientError> {
    ///     let (mut keys, mut rows) = (vec![0; 1000], vec![0.0; 1000 * table.dim()]);
    ///     let (mut cursor, mut sum) = (ScanCursor::default(), 0.0);
    ///     loop {
    ///         let n = client.scan_rows(table, &mut cursor, &mut keys, &mut rows)?;
    ///         if n == 0 {
    ///             return Ok(sum);
    ///         }
    ///         sum += rows[..n * table.dim()].iter().sum::<f32>();
    ///     }
    /// }
    /// ```
    pub fn scan_rows<T: Element>(
        &mut self,
        table: &Table<T>,
        cursor: &mut ScanCursor,
        keys: &mut [u64],
        values: &mut [T],
    ) -> Result<usize, ClientError> {
        let op = "scan_rows";
        if keys.len().checked_mul(table.dim) != Some(values.len()) {
            let state = self.sparse(op, table.named())?;
            return Err(state.wrong(op, sizes(values.len(), keys, table.dim)));
        }
        self.scan(op, table, cursor, keys, Some(values.as_mut_bytes()))
    }

    fn scan<T: Element>(
        &mut self,
        op: &'static str,
        table: &Table<T>,
        cursor: &mut ScanCursor,
        keys: &mut [u64],
        mut values: Option<&mut [u8]>,
    ) -> Result<usize, ClientError> {
        let deadline = self.deadline();
        let state = self.sparse(op, table.named())?;
        if keys.is_empty() {
            return Err(state.wrong(op, "no room for keys; pass room for at least one".into()));
        }
        let domain = state.spec.domain;
        self.clock.gate(&mut self.lanes, domain)?;
        let room = self.lanes.reply_bytes_max();
        let state = self.tables.find(op, table.named())?;
        let row_bytes = state.row.payload_bytes;
        let each = 8 + values.as_ref().map_or(0, |_| row_bytes);
        let most = ((room - SCAN_BYTES) / each).min(FRAME_ROWS_MAX);
        if most == 0 {
            let what = format!("a row of {row_bytes} bytes; a reply takes {room}");
            return Err(state.wrong(op, what));
        }
        let end = cursor.end.min(state.spec.partitions);
        let mut at = *cursor;
        let mut found = 0;
        while found < keys.len() && at.partition < end {
            let lane = state
                .lane_of_partition(at.partition)
                .ok_or_else(|| state.wrong(op, format!("partition {} is unknown", at.partition)))?;
            let slots = most.min(keys.len() - found);
            let part = ScanPart {
                lane,
                partition: at.partition,
                first: at.slot,
            };
            let mut requests =
                ScanRequests::new(state, vec![part], slots, values.as_ref().is_some());
            self.lanes
                .request_all("wait for keys", &mut requests, deadline)?;
            let Some(reply) = requests.replies.pop() else {
                unreachable!("a request was answered");
            };
            let n = reply.keys.len();
            keys[found..found + n].copy_from_slice(&reply.keys);
            if let Some(values) = &mut values {
                values[found * row_bytes..(found + n) * row_bytes].copy_from_slice(&reply.values);
            }
            found += n;
            at = match reply.next {
                SCAN_END => ScanCursor {
                    partition: at.partition + 1,
                    slot: 0,
                    ..at
                },
                slot => ScanCursor { slot, ..at },
            };
        }
        *cursor = at;
        Ok(found)
    }

    fn sparse(&self, op: &'static str, table: Named) -> Result<&TableState, ClientError> {
        let state = self.tables.find(op, table)?;
        match state.is_sparse() {
            true => Ok(state),
            false => Err(state.wrong(op, "the table is not sparse: all of its rows exist".into())),
        }
    }
}

/// Decoded reply to one scan request: keys, rows, next slot and number of stored keys.
#[derive(Debug)]
struct Listed {
    next: u64,
    stored: u64,
    keys: Vec<u64>,
    values: Vec<u8>,
}

/// Part of a scan: slots of one partition from `first` on. A count covers all partitions of a lane's applier.
#[derive(Debug, Clone, Copy)]
struct ScanPart {
    lane: usize,
    partition: u32,
    /// First slot of the partition.
    first: u64,
}

/// Requests that list or count the stored keys of parts of a table.
struct ScanRequests<'a> {
    table: &'a TableState,
    parts: Vec<ScanPart>,
    slots: usize,
    values: bool,
    payload: [u8; SCAN_BYTES],
    /// In the order of their arrival.
    replies: Vec<Listed>,
}

impl<'a> ScanRequests<'a> {
    const fn new(table: &'a TableState, parts: Vec<ScanPart>, slots: usize, values: bool) -> Self {
        Self {
            table,
            parts,
            slots,
            values,
            payload: [0; SCAN_BYTES],
            replies: Vec::new(),
        }
    }
}

impl Requests for ScanRequests<'_> {
    fn table(&self) -> (&str, TableId) {
        (self.table.name(), self.table.id)
    }

    fn len(&self) -> usize {
        self.parts.len()
    }

    fn lane(&self, n: usize) -> usize {
        self.parts[n].lane
    }

    fn header(&self, n: usize) -> FrameHeader {
        FrameHeader {
            partition: self.parts[n].partition,
            ..pull::request(self.table, FrameKind::Scan, self.slots, false)
        }
    }

    fn payload(&mut self, n: usize) -> &[u8] {
        let (first, values) = (self.parts[n].first, self.values);
        self.payload = ScanRequest { first, values }.encode();
        &self.payload
    }

    fn answer(&mut self, n: usize, reply: &[u8]) -> Result<(), String> {
        let row_bytes = match self.values {
            true => self.table.row.payload_bytes,
            false => 0,
        };
        let first = self.parts[n].first;
        let fits = |reply: &ScanReply<'_>| reply.keys.len() <= self.slots && reply.next > first;
        let Some(reply) = ScanReply::decode(reply, row_bytes).filter(fits) else {
            return Err(format!(
                "a reply of {} bytes to a scan of {} slots from {first} on",
                reply.len(),
                self.slots
            ));
        };
        self.replies.push(Listed {
            next: reply.next,
            stored: reply.stored,
            keys: reply.keys.iter().map(|k| u64::from_le_bytes(*k)).collect(),
            values: reply.values.to_vec(),
        });
        Ok(())
    }
}

impl AnyTable {
    /// Deletes the rows of some keys of this sparse table. Returns when the frames are sent; the ticket reports
    /// when they are applied.
    ///
    /// # Errors
    /// As [`Client::delete_keys`].
    pub fn delete_keys(self, client: &mut Client, keys: &[u64]) -> Result<Ticket, ClientError> {
        with_table!(&self, table => client.delete_keys(table, keys))
    }

    /// Whether each of these keys has a row in this sparse table, in the order of `keys`.
    ///
    /// # Errors
    /// As [`Client::exists`].
    pub fn exists(self, client: &mut Client, keys: &[u64]) -> Result<Vec<bool>, ClientError> {
        with_table!(&self, table => client.exists(table, keys))
    }

    /// Number of stored keys of this sparse table, over all servers.
    ///
    /// # Errors
    /// As [`Client::count_keys`].
    pub fn count_keys(self, client: &mut Client) -> Result<u64, ClientError> {
        with_table!(&self, table => client.count_keys(table))
    }

    /// Lists stored keys of this sparse table from a cursor on, in no order, and moves the cursor. Returns the
    /// number of keys written to `keys`; 0 at the end of the scan.
    ///
    /// # Errors
    /// As [`Client::scan_keys`].
    pub fn scan_keys(
        self,
        client: &mut Client,
        cursor: &mut ScanCursor,
        keys: &mut [u64],
    ) -> Result<usize, ClientError> {
        with_table!(&self, table => client.scan_keys(table, cursor, keys))
    }
}
