//! Reading and writing single rows that carry a `{ver, checksum}` header: sparse rows, and rows of dense
//! tables with layout `rows`.

use std::sync::Arc;

use tidewater_protocol::layout::row::{ROW_HEADER_BYTES, RowLayout, RowVersion, row_checksum};
use tidewater_protocol::mutants::{self, Mutant};
use tidewater_protocol::placement::{partition_of_key, partition_ranges};
use tidewater_protocol::table::{PushOp, TableSpec};
use tidewater_protocol::wire::control::CheckpointMark;
use tidewater_runtime::mem::versioned::RowHead;

use super::StoreError;
use super::cut::{Outlet, Span, Watch};
use super::memory::ServerMemory;
use super::redo::{Progress, Redo, RowPlace, RowSizes, RowWords};
use super::sparse::FIND_AHEAD;
use tidewater_kernels::{KernelError, RowKernel};

/// Writer of one table's rows on one applier: its kernel, and the private buffers in which the kernel
/// works.
#[derive(Debug)]
pub struct RowWriter {
    memory: Arc<ServerMemory>,
    layout: RowLayout,
    kernel: RowKernel,
    /// Kernel of the table's definition, for new rows. Their state does not depend on whether they are
    /// created before or after a change of hyper-parameters.
    first: RowKernel,
    spec: Arc<TableSpec>,
    payload: Vec<u8>,
    state: Vec<u8>,
    /// Save that is under way, and changes since the last checkpoint.
    watch: Watch,
}

impl RowWriter {
    /// Creates the writer for the rows of a table.
    ///
    /// # Errors
    /// [`KernelError`] when the table's rule does not fit its type.
    pub fn new(memory: Arc<ServerMemory>, spec: Arc<TableSpec>) -> Result<Self, KernelError> {
        let kernel = RowKernel::of_table(&spec, spec.dim())?;
        Ok(Self {
            memory,
            layout: RowLayout::new(spec.row_bytes()),
            kernel,
            first: kernel,
            payload: vec![0; kernel.row_bytes()],
            state: vec![0; kernel.state_bytes()],
            spec,
            watch: Watch::default(),
        })
    }

    /// Begins a save of the rows in `slabs`, spans of slots in public memory: all of them, or those that have
    /// changed since the checkpoint that `mark` extends. Returns the keys of the rows that were removed since
    /// that checkpoint, and the error if these changes are not known, see [`Watch::begin`].
    pub(super) fn begin_cut(
        &mut self,
        outlet: Outlet,
        slabs: Vec<Span>,
        mark: Option<CheckpointMark>,
    ) -> Result<Vec<u64>, String> {
        let stride = self.layout.stride as u64;
        self.watch.begin(outlet, slabs, stride, mark)
    }

    /// Returns the state that writers check before a row changes: a save that is under way, and the changes
    /// since a checkpoint.
    pub(crate) const fn watch(&mut self) -> &mut Watch {
        &mut self.watch
    }

    /// Copies a row into the save under way. Returns the bytes of values and state that were copied: 0 without a
    /// save, for a row that has been copied or was created after the cut, and for an unchanged row where only
    /// changes are copied.
    ///
    /// # Errors
    /// [`StoreError::Mem`] when `place` lies outside the memory.
    pub(crate) fn copy_row(&mut self, place: RowPlace) -> Result<usize, StoreError> {
        if self.watch.claim(place.row_at as u64) {
            return self.copy_claimed(place);
        }
        Ok(0)
    }

    /// Copies rows that are about to change into the save under way, and notes their change. Skips the copies of
    /// rows that have been copied, and of rows that are not of the save's cut.
    #[cold]
    fn before_write(&mut self, places: &[RowPlace]) -> Result<(), StoreError> {
        for &place in places {
            if self.watch.claim_before_write(place.row_at as u64) {
                self.copy_claimed(place)?;
            }
        }
        Ok(())
    }

    fn copy_claimed(&mut self, place: RowPlace) -> Result<usize, StoreError> {
        RowWords::new(&self.memory, place, self.sizes())?.load(&mut self.payload, &mut self.state);
        if let Some(cut) = self.watch.cut() {
            let partition = partition_of(&self.spec, place.key);
            cut.copy(partition, place.key, &self.payload, &self.state);
        }
        Ok(self.payload.len() + self.state.len())
    }

    /// Returns the sizes of the rows in public memory.
    pub const fn layout(&self) -> RowLayout {
        self.layout
    }

    /// Returns the kernel that applies pushes with the table's optimizer.
    pub const fn kernel(&self) -> &RowKernel {
        &self.kernel
    }

    /// Replaces the kernel by one with other hyper-parameters of the same optimizer. Panics if the lengths of
    /// values or state differ. New rows still begin with the state of the table's definition.
    pub(crate) fn set_kernel(&mut self, kernel: RowKernel) {
        let sizes = RowSizes {
            payload: kernel.row_bytes(),
            state: kernel.state_bytes(),
        };
        assert_eq!(sizes, self.sizes(), "a kernel of another rule");
        self.kernel = kernel;
    }

    /// Runs `apply` with the learning rate of gradients multiplied by `factor`, see [`RowKernel::at_rate`].
    pub(crate) fn at_rate<R>(&mut self, factor: f64, apply: impl FnOnce(&mut Self) -> R) -> R {
        let kernel = self.kernel;
        self.kernel = kernel.at_rate(factor);
        let done = apply(self);
        self.kernel = kernel;
        done
    }

    /// Applies one row of a push to the row at `place`. `values` has the bytes of one row.
    ///
    /// # Errors
    /// [`StoreError::Mem`] when `place` lies outside the memory.
    pub fn apply(
        &mut self,
        redo: &Redo,
        progress: Progress,
        place: RowPlace,
        op: PushOp,
        values: &[u8],
    ) -> Result<(), StoreError> {
        self.apply_all(redo, progress, &[place], op, values)
    }

    /// Applies rows of a push to the rows at `places`: `values` has the bytes of one row for each, in their
    /// order. The first one is row `progress.row` of its frame. Prefetches the next few rows while it applies
    /// some. Cost: about 35 ns a row of 64 bytes in cache.
    ///
    /// # Errors
    /// [`StoreError::Mem`] when a place lies outside the memory; rows before it may be applied.
    /// [`StoreError::Limit`] when the redo area was made for smaller rows; nothing was applied.
    pub fn apply_all(
        &mut self,
        redo: &Redo,
        progress: Progress,
        places: &[RowPlace],
        op: PushOp,
        values: &[u8],
    ) -> Result<(), StoreError> {
        if self.watch.is_on() {
            self.before_write(places)?;
        }
        let push = Rows {
            redo,
            progress,
            places,
            op,
            values,
        };
        // Rows of 16, 32 and 64 f32 under the rules without a state, and with one slot.
        match (self.payload.len(), self.state.len()) {
            (64, 0) => self.apply_sized(&push, Known::<64, 0>),
            (64, 64) => self.apply_sized(&push, Known::<64, 64>),
            (128, 0) => self.apply_sized(&push, Known::<128, 0>),
            (128, 128) => self.apply_sized(&push, Known::<128, 128>),
            (256, 0) => self.apply_sized(&push, Known::<256, 0>),
            (256, 256) => self.apply_sized(&push, Known::<256, 256>),
            (payload, state) => self.apply_sized(&push, Measured { payload, state }),
        }
    }

    fn apply_sized(&mut self, push: &Rows<'_>, size: impl Size) -> Result<(), StoreError> {
        let sizes = RowSizes {
            payload: size.payload(),
            state: size.state(),
        };
        let memory = &*self.memory;
        let (public, private) = (memory.public.region(), memory.private.region());
        // Values that all rows share are looked up and checked once.
        let all_public = public.words_mut(0, public.len())?;
        let all_private = private.words_mut(0, private.len())?;
        let record = self.spec.keeps_redo().then(|| push.redo.open(sizes));
        let record = record.transpose()?;
        let (payload, state) = (
            &mut self.payload[..sizes.payload],
            &mut self.state[..sizes.state],
        );
        let mut progress = push.progress;
        let mut values = push.values.chunks_exact(sizes.payload);
        let ask_for = |places: &[RowPlace]| {
            for place in places {
                public.prefetch(place.row_at, ROW_HEADER_BYTES + sizes.payload);
                private.prefetch(place.state_at, sizes.state);
            }
        };
        // All of a group at once: a core that waits for one translation of an address continues
        // with what follows closely.
        let mut groups = push.places.chunks(FIND_AHEAD).peekable();
        ask_for(groups.peek().copied().unwrap_or_default());
        while let Some(group) = groups.next() {
            ask_for(groups.peek().copied().unwrap_or_default());
            for (place, values) in group.iter().zip(&mut values) {
                let row = match RowWords::within(all_public, all_private, *place, sizes) {
                    Some(row) => row,
                    None => RowWords::new(memory, *place, sizes)?, // returns the reason
                };
                row.load(payload, state);
                self.kernel.apply(push.op, payload, state, values);
                let ver = row.version().next();
                let head = RowHead {
                    version: ver.0,
                    checksum: row_checksum(place.salt, place.key, ver, payload),
                };
                match &record {
                    Some(record) => record.commit(progress, row, head, payload, state),
                    None => row.store(head, payload, state),
                }
                progress.row += 1;
            }
        }
        Ok(())
    }

    /// Creates the row of a slot: values by the table's initialiser, and the optimizer state that belongs
    /// to them. The slot's version continues from its last one (a new slot has none).
    ///
    /// # Errors
    /// [`StoreError::Mem`] when `place` lies outside the memory.
    pub fn create(
        &mut self,
        redo: &Redo,
        progress: Progress,
        place: RowPlace,
    ) -> Result<(), StoreError> {
        self.watch.note_created(place.row_at as u64);
        let row = RowWords::new(&self.memory, place, self.sizes())?;
        let (init, seed) = (&self.spec.init, self.spec.seed);
        self.first
            .init_row(init, seed, place.key, &mut self.payload, &mut self.state);
        self.commit(redo, progress.creating(), row)
    }

    /// Resets a row to its initial values and optimizer state.
    ///
    /// # Errors
    /// [`StoreError::Mem`] when `place` lies outside the memory.
    pub fn reset(
        &mut self,
        redo: &Redo,
        progress: Progress,
        place: RowPlace,
    ) -> Result<(), StoreError> {
        if self.watch.is_on() {
            self.before_write(&[place])?;
        }
        self.create(redo, progress, place)
    }

    /// Removes the row of a slot: stores the next generation, and a checksum that matches no key. Returns
    /// the new version. Does not void a redo record of the row, and leaves the key in the slot's record.
    ///
    /// # Errors
    /// [`StoreError::Mem`] when `place` lies outside the memory.
    pub fn remove(&mut self, place: RowPlace) -> Result<RowVersion, StoreError> {
        if self.watch.is_on() {
            self.before_write(&[place])?;
        }
        let next = self.version(place)?.next_generation();
        if mutants::on(Mutant::DeletedRowValid) {
            return self.version(place);
        }
        let row = self
            .memory
            .public
            .region()
            .words_mut(place.row_at, ROW_HEADER_BYTES)?;
        self.watch.note_removed(place.key);
        // Checksum first: between the two stores the old version has a wrong checksum.
        row.store_release(8, !row_checksum(place.salt, place.key, next, &[]));
        row.store_release(0, next.0);
        Ok(next)
    }

    /// Writes the initial values that a key's row would have into `out`, which has the bytes of one row, without
    /// creating the row.
    pub fn initial(&self, key: u64, out: &mut [u8]) {
        let spec = &self.spec;
        tidewater_kernels::init::fill_row(&spec.init, spec.seed, key, spec.dtype, out);
    }

    /// Copies the first `out.len()` bytes of a row's values into `out`. Called by the applier that owns the
    /// row, so they are untorn.
    ///
    /// # Errors
    /// [`StoreError::Mem`] when `place` lies outside the memory.
    pub fn read(&self, place: RowPlace, out: &mut [u8]) -> Result<(), StoreError> {
        let at = place.row_at + ROW_HEADER_BYTES;
        self.memory
            .public
            .region()
            .words(at, out.len())?
            .copy_out(0, out);
        Ok(())
    }

    /// Copies the first `out.len()` bytes of a row's optimizer state into `out`.
    ///
    /// # Errors
    /// [`StoreError::Mem`] when `place` lies outside the memory.
    pub fn read_state(&self, place: RowPlace, out: &mut [u8]) -> Result<(), StoreError> {
        if !out.is_empty() {
            self.memory
                .private
                .region()
                .words(place.state_at, out.len())?
                .copy_out(0, out);
        }
        Ok(())
    }

    /// Replaces values and optimizer state of a row, for a load of a saved model. `redo` is the applier's redo
    /// area, used if the table keeps redo records. `progress` is the lsn of the load's step and the row's index
    /// in it. Panics if `payload` or `state` does not have the length of the table's rows.
    ///
    /// # Errors
    /// [`StoreError::Mem`] when `place` lies outside the memory.
    pub fn restore(
        &mut self,
        redo: &Redo,
        progress: Progress,
        place: RowPlace,
        payload: &[u8],
        state: &[u8],
    ) -> Result<(), StoreError> {
        if self.watch.is_on() {
            self.before_write(&[place])?;
        }
        let row = RowWords::new(&self.memory, place, self.sizes())?;
        self.payload.copy_from_slice(payload);
        self.state.copy_from_slice(state);
        self.commit(redo, progress, row)
    }

    /// Reads the current version of a row.
    ///
    /// # Errors
    /// [`StoreError::Mem`] when `place` lies outside the memory.
    pub fn version(&self, place: RowPlace) -> Result<RowVersion, StoreError> {
        let row = self
            .memory
            .public
            .region()
            .words(place.row_at, ROW_HEADER_BYTES)?;
        Ok(RowVersion(row.load(0)))
    }

    const fn sizes(&self) -> RowSizes {
        RowSizes {
            payload: self.payload.len(),
            state: self.state.len(),
        }
    }

    /// Stores the private buffers as the row's next version, after a redo record if the table has one.
    fn commit(&self, redo: &Redo, progress: Progress, row: RowWords<'_>) -> Result<(), StoreError> {
        let (place, ver) = (row.place(), row.version().next());
        let head = RowHead {
            version: ver.0,
            checksum: row_checksum(place.salt, place.key, ver, &self.payload),
        };
        if self.spec.keeps_redo() {
            let record = redo.open(self.sizes())?;
            record.commit(progress, row, head, &self.payload, &self.state);
        } else {
            row.store(head, &self.payload, &self.state);
        }
        Ok(())
    }
}

/// Returns the partition of a row of the table by its key or index.
fn partition_of(spec: &TableSpec, key: u64) -> u32 {
    match partition_ranges(spec) {
        Some(ranges) => ranges.part_of(key),
        None => partition_of_key(key, spec.partitions).0,
    }
}

/// Arguments of one call of [`RowWriter::apply_all`].
struct Rows<'a> {
    redo: &'a Redo,
    progress: Progress,
    places: &'a [RowPlace],
    op: PushOp,
    values: &'a [u8],
}

/// Lengths of a table's rows and optimizer states in bytes. Where the compiler knows them, copies need no
/// loops.
trait Size {
    fn payload(&self) -> usize;
    fn state(&self) -> usize;
}

struct Known<const PAYLOAD: usize, const STATE: usize>;

struct Measured {
    payload: usize,
    state: usize,
}

impl<const PAYLOAD: usize, const STATE: usize> Size for Known<PAYLOAD, STATE> {
    #[inline(always)]
    fn payload(&self) -> usize {
        PAYLOAD
    }
    #[inline(always)]
    fn state(&self) -> usize {
        STATE
    }
}

impl Size for Measured {
    #[inline(always)]
    fn payload(&self) -> usize {
        self.payload
    }
    #[inline(always)]
    fn state(&self) -> usize {
        self.state
    }
}

#[cfg(test)]
mod tests;
