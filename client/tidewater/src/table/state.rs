//! State of one table at a client: definition, placement, row locations.

use std::ops::Range;

use tidewater_lanes::fabric::{ReadOp, RemoteAddr};
use tidewater_protocol::ids::{PartitionId, TableId};
use tidewater_protocol::layout::LINE_BYTES;
use tidewater_protocol::layout::dense::{BlockLayout, RangeIndex, Ranges};
use tidewater_protocol::layout::extent::ExtentEntry;
use tidewater_protocol::layout::row::{RowLayout, RowLocation};
use tidewater_protocol::placement::{block_layout, partition_of_key, partition_ranges};
use tidewater_protocol::table::{DenseLayout, Optimizer, Shape, TableSpec};
use tidewater_protocol::wire::control::{PartitionDescriptor, Remote, TableDescriptor, TableInfo};

use crate::error::ClientError;
use crate::ids::HandleId;
use crate::lanes::Lanes;
use tidewater_bookkeeping::locations::Locations;
use tidewater_runtime::sync::Arc;

/// Number of extent-table entries (64 bytes each) that one read fetches: one page of 4 KiB.
const EXTENTS_AT_ONCE: u64 = 64;

/// Partition of a dense table: its lane, its rows or blocks, and their addresses at the server.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DensePart {
    pub(crate) lane: usize,
    /// First row or block of the partition; `count` is their number.
    first: u64,
    count: u64,
    pub(crate) salt: u64,
    pub(crate) payload: RemoteAddr,
    pub(crate) back: Option<RemoteAddr>,
    pub(crate) versions: Option<RemoteAddr>,
    pub(crate) snapshot: Option<RemoteAddr>,
}

impl DensePart {
    /// Remote address of the partition's first block in snapshot buffer `number`; `None` for a buffer that the table
    /// does not have.
    pub(crate) fn buffer(
        &self,
        number: usize,
        spec: &TableSpec,
        block_bytes: usize,
    ) -> Option<RemoteAddr> {
        let Some(further) = number.checked_sub(1) else {
            return Some(self.payload);
        };
        let back = self.back.filter(|_| number < spec.versions as usize)?;
        Some(RemoteAddr {
            key: back.key,
            addr: back.addr + further as u64 * self.count * block_bytes as u64,
        })
    }
}

/// Part of a sparse table at one applier: address of the extent table, and the entries read so far, one for each
/// extent (memory area with slots of rows).
#[derive(Debug, Default)]
pub(crate) struct SparseLane {
    salt: u64,
    table: Option<Remote>,
    pub(crate) extents: Vec<Option<ExtentEntry>>,
}

/// Source of one row to read: lane, remote address, and the salt of its checksum.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowSource {
    pub(crate) lane: usize,
    pub(crate) from: RemoteAddr,
    pub(crate) salt: u64,
}

/// State that a client keeps of one open table: definition, owners of partitions, addresses, row locations.
#[derive(Debug)]
pub(crate) struct TableState {
    pub(crate) handle: HandleId,
    pub(crate) id: TableId,
    pub(crate) spec: TableSpec,
    /// Optimizer rule that this client set last; before, that of the definition.
    pub(crate) rule: Optimizer,
    pub(crate) row: RowLayout,
    /// Locations of sparse rows, shared by the threads of the worker.
    pub(crate) locations: Arc<Locations>,
    pub(crate) sparse: Vec<SparseLane>,
    pub(crate) dense: Vec<Option<DensePart>>,
    lane_of_partition: Vec<usize>,
    /// Partitions of a dense table, as ranges of its rows or blocks.
    ranges: Option<Ranges>,
    /// Index from row number to partition, for a dense table with layout `rows` and near-equal partitions.
    index: RangeIndex,
}

fn remote(r: Remote) -> RemoteAddr {
    RemoteAddr {
        key: r.key,
        addr: r.address,
    }
}

/// Whether remote memory has at least `bytes` bytes, begins at an 8-byte boundary, and does not wrap the address
/// space.
const fn holds(r: Remote, bytes: u64) -> bool {
    r.len >= bytes && r.address.is_multiple_of(8) && r.address.checked_add(r.len).is_some()
}

impl TableState {
    pub(crate) fn new(
        handle: HandleId,
        info: TableInfo,
        lanes: &Lanes,
        locations: Arc<Locations>,
    ) -> Result<Self, ClientError> {
        let spec = info.spec;
        // With a valid definition, sizes multiply without overflow and no divisor is zero.
        spec.validate().map_err(|e| ClientError::Protocol {
            server: "coordinator".into(),
            what: format!("table \"{}\": {e}", spec.name),
        })?;
        let placement = info.placement;
        let mut lane_of_partition = Vec::with_capacity(placement.0.len());
        for owner in &placement.0 {
            let lane = lanes.of(*owner).ok_or_else(|| ClientError::Protocol {
                server: owner.server.to_string(),
                what: format!(
                    "table \"{}\" has a partition on applier {}, where there is no lane",
                    spec.name, owner.applier
                ),
            })?;
            lane_of_partition.push(lane);
        }
        if lane_of_partition.len() != spec.partitions as usize {
            return Err(ClientError::Protocol {
                server: "coordinator".into(),
                what: format!(
                    "table \"{}\" has {} partitions and {} owners",
                    spec.name,
                    spec.partitions,
                    lane_of_partition.len()
                ),
            });
        }
        let mut sparse = Vec::new();
        sparse.resize_with(lanes.len(), SparseLane::default);
        let ranges = partition_ranges(&spec);
        Ok(Self {
            handle,
            id: info.id,
            row: RowLayout::new(spec.row_bytes()),
            locations,
            dense: vec![None; spec.partitions as usize],
            sparse,
            lane_of_partition,
            index: RangeIndex::new(ranges.as_ref().unwrap_or(&Ranges::new(0, 1))),
            ranges,
            rule: spec.optimizer,
            spec,
        })
    }

    /// Stores the addresses of a table's memory at one server, from its descriptor. `lanes` are the lanes to that
    /// server. A descriptor that names other appliers or partitions, or memory that reads would exceed, is refused:
    /// `Err` describes the violation.
    pub(crate) fn learn(
        &mut self,
        descriptor: &TableDescriptor,
        lanes: Range<usize>,
    ) -> Result<(), String> {
        for part in &descriptor.parts {
            let lane = lanes.start + part.applier.0 as usize;
            let sparse = self.sparse.get_mut(lane).filter(|_| lanes.contains(&lane));
            let sparse = sparse.ok_or_else(|| format!("no lane to applier {}", part.applier))?;
            if !part.extents.is_none_or(|extents| holds(extents, 0)) {
                return Err("impossible extents".into());
            }
            *sparse = SparseLane {
                salt: part.salt,
                table: part.extents,
                extents: Vec::new(),
            };
            for p in &part.partitions {
                if self.lane_of_partition(p.partition.0) != Some(lane) {
                    return Err(format!("partition {} is not its own", p.partition));
                }
                if !self.holds_partition(p) {
                    return Err(format!("impossible memory of partition {}", p.partition));
                }
                let Some(slot) = self.dense.get_mut(p.partition.0 as usize) else {
                    continue;
                };
                let ranges = self.ranges.as_ref();
                *slot = Some(DensePart {
                    lane,
                    first: ranges.map_or(0, |r| r.start(p.partition.0)),
                    count: ranges.map_or(0, |r| r.len(p.partition.0)),
                    salt: part.salt,
                    payload: remote(p.payload),
                    back: p.payload_back.map(remote),
                    versions: p.versions.map(remote),
                    snapshot: p.snapshot.map(remote),
                });
            }
        }
        Ok(())
    }

    /// Whether the memory that a server describes for a partition is as large as its rows or blocks, versions and
    /// snapshots.
    fn holds_partition(&self, p: &PartitionDescriptor) -> bool {
        let Some(ranges) = &self.ranges else {
            return false;
        };
        let each = match self.blocks() {
            Some((layout, _)) => layout.block_bytes,
            None => self.row.stride,
        };
        let count = ranges.len(p.partition.0);
        let Some(bytes) = count.checked_mul(each as u64) else {
            return false;
        };
        let snapshot = LINE_BYTES as u64;
        let further = bytes.checked_mul(u64::from(self.spec.versions.saturating_sub(1)));
        let Some(further) = further else {
            return false;
        };
        holds(p.payload, bytes)
            && p.payload_back.is_none_or(|back| holds(back, further))
            && p.versions.is_none_or(|versions| holds(versions, count * 8))
            && p.snapshot.is_none_or(|line| holds(line, snapshot))
    }

    /// A range table with all partitions at lane 0, for tests of the reads.
    #[cfg(test)]
    pub(crate) fn of_blocks(spec: &TableSpec) -> Self {
        let handle = super::opened::Tables::new().unwrap().next_handle().unwrap();
        let ranges = partition_ranges(spec).unwrap();
        let memory = RemoteAddr {
            key: tidewater_protocol::ids::RegionKey(1),
            addr: 0,
        };
        let part = |p: u32| DensePart {
            lane: 0,
            first: ranges.start(p),
            count: ranges.len(p),
            salt: 5,
            payload: memory,
            back: None,
            versions: Some(memory),
            snapshot: None,
        };
        Self {
            handle,
            id: TableId(1),
            row: RowLayout::new(spec.row_bytes()),
            locations: Arc::default(),
            dense: (0..spec.partitions).map(|p| Some(part(p))).collect(),
            sparse: Vec::new(),
            lane_of_partition: vec![0; spec.partitions as usize],
            index: RangeIndex::new(&ranges),
            ranges: Some(ranges),
            rule: spec.optimizer,
            spec: spec.clone(),
        }
    }

    pub(crate) const fn is_sparse(&self) -> bool {
        matches!(self.spec.shape, Shape::Sparse { .. })
    }

    pub(crate) const fn is_blocks(&self) -> bool {
        matches!(
            self.spec.shape,
            Shape::Dense {
                layout: DenseLayout::Blocks { .. },
                ..
            }
        )
    }

    /// Lane of each partition's owner, by partition number.
    pub(crate) fn lanes_of_partitions(&self) -> &[usize] {
        &self.lane_of_partition
    }

    /// Block geometry of a range table, and its partitions as ranges of blocks. `None` for other tables.
    pub(crate) fn blocks(&self) -> Option<(BlockLayout, &Ranges)> {
        block_layout(&self.spec).zip(self.ranges.as_ref())
    }

    /// Partitions of a dense table as ranges of elements (range tables) or rows, by partition number. `None` for a
    /// sparse table.
    pub(crate) fn partition_bounds(&self) -> Option<impl Iterator<Item = Range<u64>>> {
        let ranges = self.ranges.as_ref()?;
        // The last block may be short.
        let (unit, end) = match block_layout(&self.spec) {
            Some(layout) => (layout.block_elements(), layout.elements),
            None => (1, ranges.count),
        };
        let start = move |p| (ranges.start(p) * unit).min(end);
        Some((0..ranges.parts).map(move |p| start(p)..start(p + 1)))
    }

    /// Lane to the applier that owns a key (sparse) or row number (dense). `None` for a row past the end.
    #[inline]
    pub(crate) fn lane_of(&self, key: u64) -> Option<usize> {
        let partition = match self.spec.shape {
            Shape::Sparse { .. } => partition_of_key(key, self.spec.partitions),
            Shape::Dense { rows, .. } if key < rows => match &self.ranges {
                Some(ranges) => PartitionId(ranges.part_of(key)),
                None => return None,
            },
            Shape::Dense { .. } => return None,
        };
        self.lane_of_partition.get(partition.0 as usize).copied()
    }

    /// Lane to the applier that owns a partition. `None` for a partition that the table does not have.
    pub(crate) fn lane_of_partition(&self, partition: u32) -> Option<usize> {
        self.lane_of_partition.get(partition as usize).copied()
    }

    /// Source and location of a row, if known without a request. `None` if a server must resolve the row, and
    /// for a dense row past the end. The location of a dense row is `RowLocation::NONE`.
    #[inline]
    pub(crate) fn locate(&self, key: u64) -> Option<(RowSource, RowLocation)> {
        if !self.is_sparse() {
            return self
                .dense_row(key)
                .map(|source| (source, RowLocation::NONE));
        }
        let loc = self.locations.get(key)?;
        let lane = self.lane_of(key)?;
        Some((self.sparse_row(lane, loc).ok()?, loc))
    }

    /// Prefetches the cache line of the cached location that [`Self::locate`] will read for a key.
    #[inline]
    pub(crate) fn prefetch(&self, key: u64) {
        if self.is_sparse() {
            self.locations.prefetch(key);
        }
    }

    /// Source of a row of a dense table, computed from its number. `None` past the end, for a sparse table, and
    /// for a partition that no server has described.
    #[inline]
    pub(crate) fn dense_row(&self, row: u64) -> Option<RowSource> {
        let Shape::Dense { rows, .. } = self.spec.shape else {
            return None;
        };
        if row >= rows {
            return None;
        }
        let ranges = self.ranges.as_ref()?;
        let mut partition = match ranges.is_listed() {
            true => ranges.part_of(row),
            false => self.index.guess(row),
        } as usize;
        let part = loop {
            let part = self.dense.get(partition)?.as_ref()?;
            // At most `GUESS_OFF_MAX` times: the guess is not past the row.
            if row.checked_sub(part.first)? < part.count {
                break part;
            }
            partition += 1;
        };
        let at = (row - part.first) * self.row.stride as u64;
        let from = RemoteAddr {
            key: part.payload.key,
            addr: part.payload.addr + at,
        };
        Some(RowSource {
            lane: part.lane,
            from,
            salt: part.salt,
        })
    }

    /// Source of a sparse row at a known location. `Err` is the number of its extent if the address of that
    /// extent is not known yet, or the extent has no such slot.
    #[inline]
    pub(crate) fn sparse_row(&self, lane: usize, loc: RowLocation) -> Result<RowSource, u16> {
        let number = loc.extent();
        let known = (number as usize)
            .checked_sub(1)
            .and_then(|n| self.sparse.get(lane)?.extents.get(n)?.as_ref());
        match known {
            Some(e) if loc.slot() < e.slots => {
                let at = e.base + u64::from(loc.slot()) * self.row.stride as u64;
                Ok(RowSource {
                    lane,
                    from: RemoteAddr {
                        key: e.key,
                        addr: at,
                    },
                    salt: e.salt,
                })
            }
            _ => Err(number),
        }
    }

    /// Read of a lane's extent table around entry `number`, and the number of the first entry read. Entries are
    /// numbered from 1. The read covers a page of neighbours, so that a client that is new to a table does not read
    /// once for each extent. `None` for entry 0 or one past the table, and for a lane without a known extent table.
    pub(crate) fn extents_op(&self, lane: usize, number: u16) -> Option<(ReadOp, u16)> {
        let table = self.sparse.get(lane)?.table?;
        let entries = table.len / LINE_BYTES as u64;
        let wanted = u64::from(number.checked_sub(1)?);
        let first = wanted / EXTENTS_AT_ONCE * EXTENTS_AT_ONCE;
        let count = entries.checked_sub(first)?.min(EXTENTS_AT_ONCE);
        if wanted - first >= count {
            return None;
        }
        let len = count as u32 * LINE_BYTES as u32;
        let op = ReadOp {
            from: RemoteAddr {
                key: table.key,
                addr: table.address + first * LINE_BYTES as u64,
            },
            len,
            head_len: len,
            head_at: 0,
            body_at: 0,
            fence: false,
        };
        Some((op, first as u16 + 1))
    }

    /// Stores entries of a lane's extent table that were read into `lines`, from entry number `first` on.
    /// Entries that do not validate (of extents that do not exist yet), or have less memory than their slots
    /// take, are skipped.
    pub(crate) fn learn_extents(&mut self, lane: usize, first: u16, lines: &[u8]) {
        let stride = self.row.stride as u64;
        let Some(sparse) = self.sparse.get_mut(lane) else {
            return;
        };
        let (lines, _) = lines.as_chunks::<LINE_BYTES>();
        for (n, line) in lines.iter().enumerate() {
            let n = usize::from(first) + n;
            let line = tidewater_protocol::layout::line_from_bytes(line);
            let entry = u16::try_from(n)
                .ok()
                .and_then(|number| ExtentEntry::from_line(&line, sparse.salt, number));
            let Some(entry) = entry else {
                continue;
            };
            let extent = Remote {
                key: entry.key,
                address: entry.base,
                len: entry.len,
            };
            if n == 0 || !holds(extent, u64::from(entry.slots) * stride) {
                continue;
            }
            if sparse.extents.len() < n {
                sparse.extents.resize(n, None);
            }
            sparse.extents[n - 1] = Some(entry);
        }
    }

    /// Name of the table, for error texts.
    pub(crate) fn name(&self) -> &str {
        &self.spec.name
    }

    /// Error of a call `op` with arguments that do not fit the table.
    #[cold]
    pub(crate) fn wrong(&self, op: &'static str, what: String) -> ClientError {
        let table = self.name().to_owned();
        ClientError::Argument { op, table, what }
    }
}

#[cfg(test)]
mod tests {
    use tidewater_protocol::ids::RegionKey;
    use tidewater_protocol::layout::line_bytes;

    use super::*;
    use crate::TableBuilder;

    const SALT: u64 = 5;

    fn state(entries: u64) -> TableState {
        let spec = TableBuilder::sparse::<i64>("t", 2).spec().clone();
        let table = Remote {
            key: RegionKey(1),
            address: 4096,
            len: entries * LINE_BYTES as u64,
        };
        let mut tables = crate::table::opened::Tables::new().unwrap();
        TableState {
            handle: tables.next_handle().unwrap(),
            id: TableId(1),
            row: RowLayout::new(spec.row_bytes()),
            locations: Arc::default(),
            sparse: vec![SparseLane {
                salt: SALT,
                table: Some(table),
                extents: Vec::new(),
            }],
            dense: Vec::new(),
            lane_of_partition: Vec::new(),
            ranges: None,
            index: RangeIndex::new(&Ranges::new(0, 1)),
            rule: spec.optimizer,
            spec,
        }
    }

    /// One read brings all extents around the missing one. It never exceeds the table, whatever length
    /// the server reports.
    #[test]
    fn extents_are_learned_with_their_neighbours() {
        for entries in [1u64, 64, 100, 1 << 20] {
            let mut state = state(entries);
            let last = entries.min(u64::from(u16::MAX)) as u16;
            assert!(state.extents_op(0, 0).is_none());
            if let Some(past) = last.checked_add(1) {
                assert!(state.extents_op(0, past).is_none());
            }
            let (op, first) = state.extents_op(0, last).unwrap();
            assert!(first <= last && last - first < 64);
            assert_eq!(op.from.addr, 4096 + (u64::from(first) - 1) * 64);
            assert!(op.from.addr + u64::from(op.len) <= 4096 + entries * 64);
            let entry = |n: u16| ExtentEntry {
                base: u64::from(n) << 20,
                key: RegionKey(1),
                slots: 8,
                len: 8 * state.row.stride as u64,
                salt: u64::from(n),
            };
            let lines = (0..u32::from(op.len as u16) / 64).map(|n| u32::from(first) + n);
            let lines: Vec<u8> = lines
                .flat_map(|n| match u16::try_from(n) {
                    // One that does not exist yet, as the neighbour of existing ones.
                    Ok(n) if n % 5 != 4 || n == last => line_bytes(&entry(n).to_line(SALT, n)),
                    _ => [0; LINE_BYTES],
                })
                .collect();
            state.learn_extents(0, first, &lines);
            for n in first..=last {
                let known = state.sparse_row(0, RowLocation::new(0, n, 7));
                assert_eq!(known.is_ok(), n % 5 != 4 || n == last, "{n} of {entries}");
                assert!(known.is_err() || known.is_ok_and(|s| s.salt == u64::from(n)));
            }
            assert!(state.sparse_row(0, RowLocation::new(0, last, 8)).is_err());
        }
    }
}
