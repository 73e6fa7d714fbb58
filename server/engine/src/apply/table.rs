//! One table on one applier, of any kind.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tidewater_protocol::ids::{PartitionId, TableId};
use tidewater_protocol::table::{Apply, DenseLayout, Durability, Optimizer, Shape, TableSpec};

use super::Refusal;
use super::records::RecordError;
use crate::namespace::NamespaceId;
use crate::store::ShardId;
use crate::store::cut::{Outlet, Watch};
use crate::store::dense_blocks::{BlocksKept, DenseBlocks};
use crate::store::dense_rows::{DenseRows, RowsKept};
use crate::store::extents::ExtentsPlace;
use crate::store::memory::Block;
use crate::store::prealloc::Preallocator;
use crate::store::redo::RowPlace;
use crate::store::rows::RowWriter;
use crate::store::sparse::{ShardError, SparseShard};
use crate::store::{ResumeError, ServerMemory};
use tidewater_kernels::{KernelError, RowKernel};
use tidewater_protocol::layout::reject::RejectReason;
use tidewater_protocol::wire::control::CheckpointMark;

/// Rows or blocks of a table on one applier, of one of three kinds.
#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "one for each table: a box would cost each push a load"
)]
pub enum Store {
    /// Sparse rows, looked up by key.
    Sparse(SparseShard),
    /// Dense rows, addressed by index.
    Rows(DenseRows),
    /// Elements of a range table.
    Blocks(DenseBlocks),
}

/// Share of a table on one applier: its definition, optimizer and store.
#[derive(Debug)]
pub struct Table {
    /// Number of the table.
    pub id: TableId,
    /// Job that the table belongs to.
    pub namespace: NamespaceId,
    /// Definition of the table.
    pub spec: Arc<TableSpec>,
    /// Optimizer with its present hyper-parameters: those of the definition, or those that were set last.
    optimizer: Optimizer,
    /// Memory of the share's rows or blocks.
    pub store: Store,
    /// Numbers of the partitions that this applier owns.
    partitions: Vec<u32>,
}

/// Location of the memory of a table's share, for a successor of this process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum KeptPlace {
    Sparse(ExtentsPlace),
    Rows(RowsKept),
    Blocks(BlocksKept),
}

impl Table {
    /// Creates the share of `partitions` of a table: a dense one complete and initialised, a sparse one
    /// without rows. May take long, so it must not run on the applier's thread.
    ///
    /// # Errors
    /// [`ShardError`].
    pub fn new(
        memory: &Arc<ServerMemory>,
        preallocator: &Preallocator,
        shard_id: ShardId,
        spec: &Arc<TableSpec>,
        partitions: impl Iterator<Item = PartitionId>,
    ) -> Result<Self, ShardError> {
        tidewater_kernels::init::check(&spec.init, spec.dtype)?;
        if spec.durability == Durability::Warm && !memory.is_held() {
            let table = spec.name.clone();
            return Err(ShardError::NotHeld { table });
        }
        let own: Vec<PartitionId> = partitions.collect();
        let partitions = own.iter().copied();
        let store = match spec.shape {
            Shape::Sparse { .. } => Store::Sparse(SparseShard::new(
                memory,
                preallocator,
                shard_id,
                spec,
                partitions,
            )?),
            Shape::Dense {
                layout: DenseLayout::Rows,
                ..
            } => Store::Rows(DenseRows::new(memory, shard_id, spec, partitions)?),
            Shape::Dense {
                layout: DenseLayout::Blocks { .. },
                ..
            } => Store::Blocks(DenseBlocks::new(memory, shard_id, spec, partitions)?),
        };
        Ok(Self {
            id: shard_id.table,
            namespace: NamespaceId::default(),
            spec: Arc::clone(spec),
            optimizer: spec.optimizer,
            store,
            partitions: own.into_iter().map(|p| p.0).collect(),
        })
    }

    /// Resumes the share of a table that a dead process left at `place`, with the hyper-parameters of the
    /// definition and in the first job (see [`Self::of`]). Cost: reads each row of a sparse table.
    pub(super) fn resume(
        memory: &Arc<ServerMemory>,
        preallocator: &Preallocator,
        shard_id: ShardId,
        spec: &Arc<TableSpec>,
        partitions: impl Iterator<Item = PartitionId>,
        place: KeptPlace,
    ) -> Result<Self, ResumeError> {
        let own: Vec<PartitionId> = partitions.collect();
        let partitions = own.iter().copied();
        let store = match place {
            KeptPlace::Sparse(place) => Store::Sparse(SparseShard::resume(
                memory,
                preallocator,
                shard_id,
                spec,
                partitions,
                place,
            )?),
            KeptPlace::Rows(place) => Store::Rows(DenseRows::resume(memory, spec, place)?),
            KeptPlace::Blocks(place) => Store::Blocks(DenseBlocks::resume(
                memory, shard_id, spec, partitions, place,
            )?),
        };
        Ok(Self {
            id: shard_id.table,
            namespace: NamespaceId::default(),
            spec: Arc::clone(spec),
            optimizer: spec.optimizer,
            store,
            partitions: own.into_iter().map(|p| p.0).collect(),
        })
    }

    /// Returns the location at which a successor finds the share; `None` for a table that does not outlive
    /// its process.
    pub(super) fn kept_place(&self) -> Option<KeptPlace> {
        if self.spec.durability != Durability::Warm {
            return None;
        }
        match &self.store {
            Store::Sparse(s) => s.kept_place().map(KeptPlace::Sparse),
            Store::Rows(r) => Some(KeptPlace::Rows(r.kept_place())),
            Store::Blocks(b) => Some(KeptPlace::Blocks(b.kept_place())),
        }
    }

    /// Lists the memory blocks of the share: those in public memory first, those in private memory second.
    pub(super) fn blocks(&self) -> [Vec<Block>; 2] {
        match &self.store {
            Store::Sparse(s) => s.blocks(),
            Store::Rows(r) => r.blocks(),
            Store::Blocks(b) => b.blocks(),
        }
    }

    /// Returns the numbers of the partitions of this applier.
    pub fn partitions(&self) -> &[u32] {
        &self.partitions
    }

    /// Assigns the table to a job. Without this call the table belongs to the job with number 0.
    #[must_use]
    pub const fn of(mut self, namespace: NamespaceId) -> Self {
        self.namespace = namespace;
        self
    }

    /// Returns the optimizer with its present hyper-parameters.
    pub const fn optimizer(&self) -> Optimizer {
        self.optimizer
    }

    /// Whether the table can take these hyper-parameters: the optimizer is that of the table, and they are in
    /// range.
    pub fn takes(&self, optimizer: &Optimizer) -> bool {
        self.spec.check_change(optimizer).is_ok()
    }

    /// Sets the hyper-parameters of the table's optimizer from the next gradient on. Optimizer state stays.
    ///
    /// # Errors
    /// [`KernelError`] for numbers that the kernel refuses; nothing was changed then.
    ///
    /// # Panics
    /// If the table does not take the optimizer: callers ask [`Table::takes`] first.
    pub fn set_optimizer(&mut self, optimizer: Optimizer) -> Result<(), KernelError> {
        assert!(
            self.takes(&optimizer),
            "table {} has {:?} and cannot take {optimizer:?}",
            self.id,
            self.spec.optimizer
        );
        let spec = TableSpec {
            optimizer,
            ..TableSpec::clone(&self.spec)
        };
        match &mut self.store {
            Store::Blocks(blocks) => blocks.set_spec(Arc::new(spec))?,
            Store::Sparse(s) => s.rows().set_kernel(RowKernel::of_table(&spec, spec.dim())?),
            Store::Rows(r) => r.rows().set_kernel(RowKernel::of_table(&spec, spec.dim())?),
        }
        self.optimizer = optimizer;
        Ok(())
    }

    /// Whether pushes of the table are held until their tick.
    pub fn at_clock(&self) -> bool {
        use tidewater_protocol::mutants::{Mutant, on};
        matches!(self.spec.effect, Apply::AtTick(_)) && !on(Mutant::AtClockOff)
    }

    /// Whether the table has an admission threshold: keys get rows only after a number of pushes.
    pub fn counts_pushes(&self) -> bool {
        matches!(&self.store, Store::Sparse(s) if s.counts_pushes())
    }

    /// Returns the writer of the table's rows; `None` for a range table.
    pub fn rows(&mut self) -> Option<&mut RowWriter> {
        match &mut self.store {
            Store::Sparse(s) => Some(s.rows()),
            Store::Rows(r) => Some(r.rows()),
            Store::Blocks(_) => None,
        }
    }

    /// Returns the kernel that applies pushes with the table's optimizer.
    pub fn kernel(&self) -> &RowKernel {
        match &self.store {
            Store::Sparse(s) => s.kernel(),
            Store::Rows(r) => r.kernel(),
            Store::Blocks(b) => b.kernel(),
        }
    }

    /// Returns the place of an existing row. `None` for a sparse key without a row, a row of another
    /// applier, or a range table.
    #[inline]
    pub fn place(&self, key: u64) -> Option<RowPlace> {
        match &self.store {
            Store::Sparse(s) => s.find(key).and_then(|loc| s.place(loc)),
            Store::Rows(r) => r.place(key),
            Store::Blocks(_) => None,
        }
    }

    /// Checks that a key is in range and of a partition of this applier. A sparse table needs no row of the key.
    ///
    /// # Errors
    /// [`RejectReason::IndexOutOfRange`] past the last row of a dense table, [`RejectReason::WrongOwner`], and
    /// [`RejectReason::WrongOperation`] for any key of a range table.
    #[inline]
    pub fn check_key(&self, key: u64) -> Result<(), Refusal> {
        let (mine, _) = match &self.store {
            Store::Sparse(s) => s.owns(key),
            Store::Rows(r) => {
                let Shape::Dense { rows, .. } = self.spec.shape else {
                    unreachable!("a store of rows of {:?}", self.spec.shape);
                };
                if key >= rows {
                    return Err(RejectReason::IndexOutOfRange {
                        index: key,
                        size: rows,
                    });
                }
                r.owns(key)
            }
            Store::Blocks(_) => return Err(RejectReason::WrongOperation { kind: 0, op: 0 }),
        };
        if mine {
            Ok(())
        } else {
            Err(RejectReason::WrongOwner {
                first: key,
                count: 1,
            })
        }
    }

    /// Begins a save of the share at its present state; `outlet` takes the records. With a `mark` the save is a
    /// checkpoint: of all records, or of the changes since the checkpoint that it extends. Returns the keys of rows
    /// that were removed since the extended checkpoint; none for any other save.
    ///
    /// # Errors
    /// Why the changes since the extended checkpoint are not known, as text. Nothing was changed.
    pub(super) fn begin_cut(
        &mut self,
        outlet: Outlet,
        mark: Option<CheckpointMark>,
    ) -> Result<Vec<u64>, String> {
        match &mut self.store {
            Store::Sparse(s) => s.begin_cut(outlet, mark),
            Store::Rows(r) => r.begin_cut(outlet, mark),
            Store::Blocks(b) => b.begin_cut(outlet, mark),
        }
    }

    /// Returns what writers of the share look for: a save that is under way, and the changes since a checkpoint.
    pub(super) const fn watch(&mut self) -> &mut Watch {
        match &mut self.store {
            Store::Sparse(s) => s.rows().watch(),
            Store::Rows(r) => r.rows().watch(),
            Store::Blocks(b) => b.watch(),
        }
    }

    /// Copies a record into the save under way. Returns the number of bytes copied: 0 without a save, and for a
    /// record that has been copied, was created after the cut, or has not changed since the checkpoint that the
    /// save extends. `place` is the place of a row, `None` for a block.
    pub(super) fn copy_record(
        &mut self,
        key: u64,
        place: Option<RowPlace>,
    ) -> Result<usize, RecordError> {
        let copied = match (&mut self.store, place) {
            (Store::Blocks(b), _) => return b.copy_block(key).map_err(|e| e.to_string()),
            (Store::Sparse(s), Some(place)) => s.rows().copy_row(place),
            (Store::Rows(r), Some(place)) => r.rows().copy_row(place),
            (_, None) => return Err(format!("row {key} is gone")),
        };
        copied.map_err(|e| e.to_string())
    }

    /// Frees all memory of the table's share.
    ///
    /// # Errors
    /// `StoreError::Mem` is not expected: all blocks are of the memory that the share was created in.
    pub fn release(self) -> Result<(), crate::store::StoreError> {
        match self.store {
            Store::Sparse(s) => s.release(),
            Store::Rows(r) => r.release(),
            Store::Blocks(b) => b.release(),
        }
    }
}
