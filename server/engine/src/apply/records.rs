//! Records of a table on one applier: how saves read it and loads fill it.
//!
//! A record is a sparse key, a row index or a block number, with values and optimizer state.

use tidewater_protocol::ids::{DomainId, PartitionId, TableId};
use tidewater_protocol::placement::{block_layout, partition_of_key, partition_ranges};
use tidewater_protocol::table::{DenseLayout, Shape, TableSpec};

use super::engine::Engine;
use super::table::{Store, Table};
use crate::namespace::NamespaceId;
use crate::store::dense_blocks::HAS_RUNS;
use crate::store::redo::{Progress, RowPlace};

/// Reason why a record could not be read or stored, as text.
pub type RecordError = String;

/// Sizes in bytes of one record of a table, derived from the table's definition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordShape {
    /// Partition that the record belongs to.
    pub partition: PartitionId,
    /// Bytes of the record's values.
    pub values: usize,
    /// Bytes of the record's optimizer state; the least number if `steps` is above 0, see [`Self::state_of`].
    pub state: usize,
    /// Number of elements with step counts of their own; 0 where the record has one count, or none.
    pub steps: usize,
}

impl RecordShape {
    /// Computes partition and sizes of a record. `key` is a sparse key, a row index, or the block number of a
    /// range table. `None` for a row or block past the end of the table; never for a sparse table.
    pub fn of(spec: &TableSpec, key: u64) -> Option<Self> {
        let parts = spec.partitions.max(1);
        let mut steps = 0;
        let (partition, elements) = match spec.shape {
            Shape::Sparse { dim } => (partition_of_key(key, parts), dim as usize),
            Shape::Dense {
                rows,
                cols,
                layout: DenseLayout::Rows,
            } => {
                let ranges = partition_ranges(spec).filter(|_| key < rows)?;
                (PartitionId(ranges.part_of(key)), cols as usize)
            }
            Shape::Dense {
                layout: DenseLayout::Blocks { .. },
                ..
            } => {
                let (layout, ranges) = block_layout(spec).zip(partition_ranges(spec))?;
                let part = (key < ranges.count).then(|| ranges.part_of(key))?;
                let used = layout.used(key) as usize;
                if spec.optimizer.counts_steps() {
                    steps = used;
                }
                (PartitionId(part), used)
            }
        };
        let values = elements * spec.dtype.size();
        Some(Self {
            partition,
            values,
            state: spec.optimizer.state_bytes(elements, spec.dtype),
            steps,
        })
    }

    /// Size in bytes of the optimizer state at the start of `bytes`, with its runs of step counts. `None` if the
    /// state is incomplete or does not belong to a record of this shape.
    pub fn state_of(&self, bytes: &[u8]) -> Option<usize> {
        let least = bytes.get(..self.state)?;
        let runs = match least
            .last_chunk::<8>()
            .map(|last| u64::from_le_bytes(*last))
        {
            Some(count) if self.steps > 0 && count & HAS_RUNS != 0 => count & !HAS_RUNS,
            _ => return Some(self.state),
        };
        let runs = usize::try_from(runs).ok().filter(|&n| n <= self.steps)?;
        let state = self.state + runs * 8;
        (state <= bytes.len()).then_some(state)
    }
}

impl Engine {
    /// Passes every record of a partition (key, values, optimizer state) to `sink`, in a stable order. For
    /// inspection; a save copies in [steps](Self::save_step). Cost: two copies of the partition, and the
    /// time of `sink`, during which nothing else is applied.
    ///
    /// # Errors
    /// The first error of `sink`. Errors of the store and of a missing table are converted by `other`.
    pub fn copy_records<E>(
        &mut self,
        id: TableId,
        partition: PartitionId,
        other: impl Fn(RecordError) -> E,
        mut sink: impl FnMut(u64, &[u8], &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let Some(table) = self.table(id) else {
            return Err(other("the table is not there; was it released?".into()));
        };
        let (mut values, mut state) = (Vec::new(), Vec::new());
        let mut keys = Keys::new(table, partition.0);
        while let Some((key, _)) = keys.next(table) {
            let Some(shape) = RecordShape::of(&table.spec, key) else {
                return Err(other(format!("record {key} is none of the table's")));
            };
            values.resize(shape.values, 0);
            state.resize(shape.state, 0);
            copy(table, key, &mut values, &mut state).map_err(&other)?;
            sink(key, &values, &state)?;
        }
        Ok(())
    }

    /// Begins to load saved records into a table. On a snapshot table this opens an epoch that no reader
    /// sees before [`Self::end_restore`]; an epoch that is open already is used. No effect on other tables.
    ///
    /// # Errors
    /// The table is not there.
    pub fn begin_restore(&mut self, id: TableId) -> Result<(), RecordError> {
        if let Store::Blocks(blocks) = &mut self.known_table(id)?.store
            && blocks.is_snapshot()
        {
            let epoch = blocks.front() + 1;
            blocks.begin_epoch(epoch).map_err(|e| e.to_string())?;
        }
        Ok(())
    }

    /// Stores loaded records (key, values, optimizer state) as one step of this applier's order. Missing
    /// rows are created. The time to expiry of each row begins again.
    ///
    /// # Errors
    /// The table is not there, a record does not fit the table or is another applier's, or memory is used up.
    /// Records before the one that failed are stored.
    pub fn restore<'a>(
        &mut self,
        id: TableId,
        records: impl Iterator<Item = (u64, &'a [u8], &'a [u8])>,
    ) -> Result<(), RecordError> {
        self.lsn += 1;
        let lsn = self.lsn;
        let redo = &self.redo;
        let table = self.tables.get_mut(&id.0).ok_or("the table is not there")?;
        for (row, (key, values, state)) in records.enumerate() {
            let fits = RecordShape::of(&table.spec, key).is_some_and(|shape| {
                shape.values == values.len() && shape.state_of(state) == Some(state.len())
            });
            if !fits {
                return Err(format!("record {key} has other lengths than the table's"));
            }
            let progress = Progress {
                lsn,
                row: row as u32,
            };
            let stored = match &mut table.store {
                Store::Sparse(shard) => {
                    let created = shard.find_or_create(key, redo, progress);
                    let place = created
                        .map(|loc| shard.place(loc))
                        .map_err(|e| e.to_string())?;
                    let place = place.ok_or_else(|| format!("row {key} has no place"))?;
                    // A row that exists begins its time again, as one that the load creates.
                    shard.stamp(&[place]).map_err(|e| e.to_string())?;
                    shard.rows().restore(redo, progress, place, values, state)
                }
                Store::Rows(rows) => {
                    let place = rows.place(key);
                    let place = place.ok_or_else(|| format!("row {key} is not here"))?;
                    rows.rows().restore(redo, progress, place, values, state)
                }
                Store::Blocks(blocks) => {
                    let stored = blocks.restore_block(redo, progress, key, values, state);
                    stored.map_err(|e| e.to_string())?;
                    Ok(())
                }
            };
            stored.map_err(|e| e.to_string())?;
        }
        Ok(())
    }

    /// Removes the rows of these keys from a sparse table, for a load of a checkpoint that extends another one. Keys
    /// without a row are skipped: a row may have been created and removed between the two checkpoints.
    ///
    /// # Errors
    /// The table is not there, or not sparse. Always `Ok` without keys.
    pub fn restore_removed(&mut self, id: TableId, keys: &[u64]) -> Result<(), RecordError> {
        for &key in keys {
            let removed = self.remove_row(id, key);
            removed.map_err(|reason| format!("row {key} cannot be removed: {reason:?}"))?;
        }
        Ok(())
    }

    /// Ends the load of a table: publishes the loaded epoch of a snapshot table to readers. No effect on other
    /// tables.
    ///
    /// # Errors
    /// The table is not there, or is a snapshot table without an open epoch.
    pub fn end_restore(&mut self, id: TableId) -> Result<(), RecordError> {
        let lsn = self.lsn;
        let table = self.known_table(id)?;
        let (namespace, domain) = (table.namespace, table.spec.domain);
        let min_clock = self.clock_line(namespace, domain).min;
        if let Store::Blocks(blocks) = &mut self.known_table(id)?.store
            && blocks.is_snapshot()
        {
            let epoch = blocks.front() + 1;
            blocks
                .flip(epoch, min_clock, lsn)
                .map_err(|e| e.to_string())?;
        }
        Ok(())
    }

    /// Returns the minimum clock of each domain of a job that is used on this applier. Only iterations that are
    /// closed here count.
    pub fn domain_clocks(&mut self, namespace: NamespaceId) -> Vec<(DomainId, u64)> {
        let domains: Vec<DomainId> = self.clocks(namespace).domains().collect();
        domains
            .into_iter()
            .map(|id| (id, self.clock_line(namespace, id).min))
            .collect()
    }

    fn known_table(&mut self, id: TableId) -> Result<&mut Table, RecordError> {
        self.table(id)
            .ok_or_else(|| "the table is not there".into())
    }
}

/// Cursor over the keys of one partition in their stable order.
#[derive(Debug)]
pub(super) enum Keys {
    /// Partition of a sparse table, and the position in its rows.
    Sparse(u32, crate::store::cursor::RowCursor),
    /// Partition of a dense table of rows, and the position in its rows.
    Rows(u32, u64),
    /// Block numbers of a range table that are left.
    Blocks(std::ops::Range<u64>),
}

impl Keys {
    pub(super) fn new(table: &Table, partition: u32) -> Self {
        match &table.store {
            Store::Sparse(_) => Self::Sparse(partition, Default::default()),
            Store::Rows(_) => Self::Rows(partition, 0),
            Store::Blocks(_) => Self::Blocks(match partition_ranges(&table.spec) {
                Some(ranges) if partition < ranges.parts => {
                    ranges.start(partition)..ranges.start(partition + 1)
                }
                _ => 0..0,
            }),
        }
    }

    /// Returns the next key, with the place of its row on a table of rows. `None` at the end of the
    /// partition.
    pub(super) fn next(&mut self, table: &Table) -> Option<(u64, Option<RowPlace>)> {
        let row = |(key, place)| (key, Some(place));
        match (self, &table.store) {
            (Self::Sparse(p, cursor), Store::Sparse(shard)) => shard.next_row(*p, cursor).map(row),
            (Self::Rows(p, cursor), Store::Rows(rows)) => rows.next_row(*p, cursor).map(row),
            (Self::Blocks(blocks), Store::Blocks(_)) => blocks.next().map(|key| (key, None)),
            _ => None,
        }
    }
}

/// Copies the values and the optimizer state of one record out of its store. `values` must have the record's
/// length, and `state` that of a row's state; a block replaces `state`.
fn copy(
    table: &mut Table,
    key: u64,
    values: &mut [u8],
    state: &mut Vec<u8>,
) -> Result<(), RecordError> {
    let place = table.place(key);
    let (rows, place) = match (&mut table.store, place) {
        (Store::Blocks(blocks), _) => {
            let layout = block_layout(&table.spec).ok_or("the table has no blocks")?;
            let first = key * layout.block_elements();
            blocks
                .read_range(first, values)
                .map_err(|e| e.to_string())?;
            return blocks
                .read_state_block(key, state)
                .map_err(|e| e.to_string());
        }
        (Store::Sparse(shard), Some(place)) => (shard.rows(), place),
        (Store::Rows(rows), Some(place)) => (rows.rows(), place),
        _ => return Err(format!("row {key} is gone")),
    };
    rows.read(place, values).map_err(|e| e.to_string())?;
    rows.read_state(place, state).map_err(|e| e.to_string())
}
