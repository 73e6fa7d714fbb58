//! Reading and writing single rows that carry a `{ver, chk}` header: sparse rows, and rows of
//! dense tables with layout `rows`.

use std::sync::Arc;

use tidewater_transport::layout::row::{ROW_HEADER_BYTES, RowLayout, RowVersion, row_chk};
use tidewater_transport::mem::Words;
use tidewater_transport::table::{PushOp, TableSpec};

use super::StoreError;
use super::memory::ServerMemory;
use super::redo::{Progress, Redo, RowPlace};
use crate::apply::kernels::{KernelError, RowKernel};

/// One applier's hand on one table's rows: the kernel and the private lines it works in.
#[derive(Debug)]
pub struct RowWriter {
    memory: Arc<ServerMemory>,
    layout: RowLayout,
    kernel: RowKernel,
    spec: Arc<TableSpec>,
    payload: Vec<u8>,
    state: Vec<u8>,
}

impl RowWriter {
    /// For the rows of a table.
    ///
    /// # Errors
    /// [`KernelError`] when the table's rule does not fit its type.
    pub fn new(memory: Arc<ServerMemory>, spec: Arc<TableSpec>) -> Result<Self, KernelError> {
        let kernel = RowKernel::new(&spec.optimizer, spec.dtype, spec.dim())?;
        Ok(Self {
            memory,
            layout: RowLayout::new(spec.row_bytes()),
            kernel,
            payload: vec![0; kernel.row_bytes()],
            state: vec![0; kernel.state_bytes()],
            spec,
        })
    }

    /// Sizes of the rows.
    pub const fn layout(&self) -> RowLayout {
        self.layout
    }

    /// The table's rule.
    pub const fn kernel(&self) -> &RowKernel {
        &self.kernel
    }

    /// Asks for a row and its state, which will be applied to soon.
    #[inline]
    pub fn prefetch(&self, place: RowPlace) {
        let (public, private) = (self.memory.public.region(), self.memory.private.region());
        let row = public.words(place.row_at, self.layout.read_bytes());
        let state = private.words(place.state_at, self.state.len());
        [row, state].iter().flatten().for_each(Words::prefetch);
    }

    /// Applies one row of a push. `values` is one row long. Cost: about 30 ns for 64 bytes.
    ///
    /// # Errors
    /// [`StoreError::Mem`] when `place` is not of this table.
    #[inline]
    pub fn apply(
        &mut self,
        redo: &Redo,
        progress: Progress,
        place: RowPlace,
        op: PushOp,
        values: &[u8],
    ) -> Result<(), StoreError> {
        let ver = self.load(place)?;
        self.kernel
            .apply(op, &mut self.payload, &mut self.state, values);
        self.commit(redo, progress, place, ver.next())
    }

    /// Gives a slot its first row: values by the table's initialiser, state to match. The slot's
    /// version goes on from what it was (a new slot has none).
    ///
    /// # Errors
    /// [`StoreError::Mem`] when `place` is not of this table.
    pub fn create(
        &mut self,
        redo: &Redo,
        progress: Progress,
        place: RowPlace,
    ) -> Result<(), StoreError> {
        let ver = self.version(place)?;
        let (init, seed) = (&self.spec.init, self.spec.seed);
        self.kernel
            .init_row(init, seed, place.key, &mut self.payload, &mut self.state);
        self.commit(redo, progress, place, ver.next())
    }

    /// Makes a slot hold no row: the next generation, and a check that no key fits.
    ///
    /// # Errors
    /// [`StoreError::Mem`] when `place` is not of this table.
    pub fn vacate(&self, place: RowPlace) -> Result<RowVersion, StoreError> {
        let next = self.version(place)?.next_generation();
        let row = self
            .memory
            .public
            .region()
            .words_mut(place.row_at, ROW_HEADER_BYTES)?;
        // Check first: between the two stores the old version has a wrong check.
        row.store_release(8, !row_chk(place.salt, place.key, next, &[]));
        row.store_release(0, next.0);
        Ok(next)
    }

    /// The first values a key would have, without creating it.
    pub fn initial(&self, key: u64, out: &mut [u8]) {
        let spec = &self.spec;
        crate::apply::kernels::init::fill_row(&spec.init, spec.seed, key, spec.dtype, out);
    }

    /// Copies a row's values out; the caller owns the row, so it is whole.
    ///
    /// # Errors
    /// [`StoreError::Mem`] when `place` is not of this table.
    pub fn read(&self, place: RowPlace, out: &mut [u8]) -> Result<(), StoreError> {
        let at = place.row_at + ROW_HEADER_BYTES;
        self.memory
            .public
            .region()
            .words(at, out.len())?
            .copy_out(0, out);
        Ok(())
    }

    /// Copies a row's optimizer state out.
    ///
    /// # Errors
    /// [`StoreError::Mem`] when `place` is not of this table.
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

    /// Replaces a row's values and state: a load from a saved model.
    ///
    /// # Errors
    /// [`StoreError::Mem`] when `place` is not of this table.
    pub fn restore(
        &mut self,
        redo: &Redo,
        progress: Progress,
        place: RowPlace,
        payload: &[u8],
        state: &[u8],
    ) -> Result<(), StoreError> {
        let ver = self.version(place)?;
        self.payload.copy_from_slice(payload);
        self.state.copy_from_slice(state);
        self.commit(redo, progress, place, ver.next())
    }

    /// A row's version.
    ///
    /// # Errors
    /// [`StoreError::Mem`] when `place` is not of this table.
    pub fn version(&self, place: RowPlace) -> Result<RowVersion, StoreError> {
        let row = self
            .memory
            .public
            .region()
            .words(place.row_at, ROW_HEADER_BYTES)?;
        Ok(RowVersion(row.load(0)))
    }

    #[inline]
    fn load(&mut self, place: RowPlace) -> Result<RowVersion, StoreError> {
        let row = self
            .memory
            .public
            .region()
            .words(place.row_at, self.layout.read_bytes())?;
        row.copy_out(ROW_HEADER_BYTES, &mut self.payload);
        if !self.state.is_empty() {
            let state = self
                .memory
                .private
                .region()
                .words(place.state_at, self.state.len())?;
            state.copy_out(0, &mut self.state);
        }
        Ok(RowVersion(row.load(0)))
    }

    #[inline]
    fn commit(
        &self,
        redo: &Redo,
        progress: Progress,
        place: RowPlace,
        ver: RowVersion,
    ) -> Result<(), StoreError> {
        let chk = row_chk(place.salt, place.key, ver, &self.payload);
        redo.commit(progress, place, [ver.0, chk], &self.payload, &self.state)
    }
}
