//! The redo record: the result of a row, before it is stored.
//!
//! Only tables with `TableSpec::keeps_redo` use it. Rows of other tables are stored directly, so the record
//! names the last row of a table with the option, whatever other tables the applier wrote since.
//!
//! A kernel's result (payload, state, version, checksum) is copied here, then the header line that
//! names its target, then the target is written. If the server dies in between, a process that
//! attaches its memory finds a header with a matching checksum. It stores the same bytes again:
//! idempotent. A header with a wrong checksum means that no byte of its target was written.
//!
//! The last line of the area names the push that is being applied, so that the rest of it is applied once. The line
//! before it has the position of a tick, see `closing`.
//!
//! Results of blocks take the same way, with a header of their own: see `redo_block`.

use std::sync::Arc;

use tidewater_protocol::layout::LINE_BYTES;
use tidewater_protocol::layout::hash::line_checksum;
use tidewater_protocol::layout::row::{ROW_HEADER_BYTES, RowVersion};
use tidewater_protocol::mutants::{self, Mutant};
use tidewater_runtime::mem::WordsMut;
use tidewater_runtime::mem::versioned::{RowHead, store_row};
use tidewater_runtime::sync::{Ordering, fence};

use super::StoreError;
use super::memory::{Block, BlockKind, BlockOwner, ServerMemory};

const REDO: u64 = u64::from_le_bytes(*b"redo-lin");
const CHECKSUM_AT: usize = 56;
/// Byte offset of the number of stored rows in the line that names the push.
const STORED_AT: usize = 24;
/// Bit set in the row number of a redo record that creates a row: the record holds no result of a push.
const CREATES: u32 = 1 << 31;

/// Location of a row and its optimizer state in memory, with the key and the salt of its checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowPlace {
    /// Byte offset of the row's header in public memory.
    pub row_at: usize,
    /// Byte offset of its optimizer state in private memory.
    pub state_at: usize,
    /// Key that its checksum includes: the row's key or index.
    pub key: u64,
    /// Salt that its checksum includes.
    pub salt: u64,
}

impl RowPlace {
    /// Creates the place of a key without a row. It is neither read nor written.
    pub const fn without_row(key: u64) -> Self {
        Self {
            row_at: usize::MAX,
            state_at: usize::MAX,
            key,
            salt: 0,
        }
    }

    /// Whether there is a row at this place.
    pub const fn has_row(&self) -> bool {
        self.row_at != usize::MAX
    }
}

/// Lengths of a row's payload and of its state, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowSizes {
    /// Length of the payload.
    pub payload: usize,
    /// Length of the optimizer state.
    pub state: usize,
}

/// Words of one row and of its optimizer state in shared memory. Only their applier writes them.
#[derive(Debug, Clone, Copy)]
pub struct RowWords<'a> {
    place: RowPlace,
    row: WordsMut<'a>,
    state: WordsMut<'a>,
}

impl<'a> RowWords<'a> {
    /// Returns the words at `place`, for values and optimizer state of these lengths.
    ///
    /// # Errors
    /// [`StoreError::Mem`] when `place` lies outside the memory.
    pub fn new(
        memory: &'a ServerMemory,
        place: RowPlace,
        sizes: RowSizes,
    ) -> Result<Self, StoreError> {
        let (public, private) = (memory.public.region(), memory.private.region());
        Ok(Self {
            place,
            row: public.words_mut(place.row_at, ROW_HEADER_BYTES + sizes.payload)?,
            state: private.words_mut(place.state_at, sizes.state)?,
        })
    }

    /// Returns the words at `place` within windows of all public and all private memory, for callers with
    /// many rows. `None` if they lie outside.
    #[inline(always)]
    pub(super) fn within(
        public: WordsMut<'a>,
        private: WordsMut<'a>,
        place: RowPlace,
        sizes: RowSizes,
    ) -> Option<Self> {
        Some(Self {
            place,
            row: public.get(place.row_at, ROW_HEADER_BYTES + sizes.payload)?,
            state: private.get(place.state_at, sizes.state)?,
        })
    }

    /// Returns the location of the words.
    #[inline(always)]
    pub const fn place(&self) -> RowPlace {
        self.place
    }

    /// Reads the current version of the row.
    #[inline(always)]
    pub fn version(&self) -> RowVersion {
        RowVersion(self.row.as_read().load(0))
    }

    /// Copies the row's values and its optimizer state into private buffers.
    #[inline(always)]
    pub fn load(&self, payload: &mut [u8], state: &mut [u8]) {
        self.row.as_read().copy_out(ROW_HEADER_BYTES, payload);
        self.state.as_read().copy_out(0, state);
    }

    /// Stores the values of a row under its new version, and then its optimizer state.
    #[inline(always)]
    pub(super) fn store(&self, head: RowHead, payload: &[u8], state: &[u8]) {
        store_row(self.row, head, payload);
        self.state.copy_in(0, state);
    }
}

/// Position of an applier: frame `lsn`, and the row of it with its result in the redo record. Frames of
/// tables without a redo record leave no trace of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// Number of the frame or step in the applier's total order.
    pub lsn: u64,
    /// Index of the row in the frame; all rows before it are stored completely. The highest bit marks a row
    /// that is created for the frame, before any row of the frame is stored.
    pub row: u32,
}

impl Progress {
    /// Returns the same position for the creation of the row, before a push of the frame is in it.
    #[must_use]
    pub(super) const fn creating(self) -> Self {
        Self {
            row: self.row | CREATES,
            ..self
        }
    }

    /// Number of rows of the frame that are applied, once the record of this row is finished; 0 for the record
    /// of a creation.
    pub const fn rows_applied(self) -> u32 {
        match self.row & CREATES {
            0 => self.row + 1,
            _ => 0,
        }
    }
}

/// Name of a push in the redo area, by which a successor recognises it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PushName {
    /// Number of the push's frame (lsn) in the applier's total order.
    pub lsn: u64,
    /// Nonce of the session that sent the push.
    pub session: u64,
    /// Sequence number of the push in the session.
    pub seq: u64,
}

/// Redo area of one applier in private memory. Used by that applier, or by its successor after its death.
#[derive(Debug)]
pub struct Redo {
    pub(super) memory: Arc<ServerMemory>,
    pub(super) block: Block,
}

impl Redo {
    /// Allocates the area for one result: a row or block with at most `row_bytes` of values and
    /// `state_bytes` of optimizer state.
    ///
    /// # Errors
    /// [`StoreError`] when memory is used up.
    pub fn new(
        memory: Arc<ServerMemory>,
        applier: u32,
        row_bytes: usize,
        state_bytes: usize,
    ) -> Result<Self, StoreError> {
        let owner = BlockOwner {
            kind: BlockKind::Redo,
            table: 0,
            applier,
            part: 0,
        };
        // A block's header takes two lines, the position of a tick and the name of the push one each.
        let bytes =
            4 * LINE_BYTES + row_bytes.next_multiple_of(8) + state_bytes.next_multiple_of(8);
        let block = memory.private.alloc(bytes, owner)?;
        Ok(Self { memory, block })
    }

    /// Returns the block of private memory that holds the redo area.
    pub(crate) const fn block(&self) -> Block {
        self.block
    }

    /// Writes the name of the push that the applier begins. The record of a row has only the number of the
    /// frame.
    ///
    /// A successor reads the name by [`Self::interrupted`]. The frame's number in the area is 0 while session and
    /// sequence number change, so that no record of an earlier frame is taken for one of this push. The number of
    /// stored rows becomes 0. Cost: five stores to one line.
    ///
    /// # Errors
    /// None in practice: the area lies inside the memory of this server.
    pub fn begin(&self, push: PushName) -> Result<(), StoreError> {
        let line = self.name_line()?;
        line.store(0, 0);
        fence(Ordering::Release);
        line.store(8, push.session);
        line.store(16, push.seq);
        line.store(STORED_AT, 0);
        fence(Ordering::Release);
        line.store(0, push.lsn);
        fence(Ordering::Release);
        Ok(())
    }

    /// Finishes the row or block that was being stored when the applier died. Returns the greatest lsn in the
    /// area, and the push that was begun last with the number of its rows that are applied. That push may be
    /// complete; `None` if no push was begun.
    ///
    /// # Errors
    /// [`StoreError::Mem`] when the record names a place outside the memory.
    pub fn interrupted(&self) -> Result<(u64, Option<(PushName, u32)>), StoreError> {
        let finished = match mutants::on(Mutant::RedoNotReplayed) {
            true => None,
            false => self.finish()?,
        };
        let line = self.name_line()?.as_read();
        let push = PushName {
            lsn: line.load(0),
            session: line.load(8),
            seq: line.load(16),
        };
        let newest = finished.map_or(push.lsn, |progress| progress.lsn.max(push.lsn));
        let of_push = finished.filter(|progress| progress.lsn == push.lsn);
        // Without a record: it was void, for the row behind those that are stored.
        let stored = line.load(STORED_AT) as u32;
        let rows = of_push.map_or(stored, |progress| progress.rows_applied().max(stored));
        Ok((newest, (push.lsn > 0).then_some((push, rows))))
    }

    /// Notes that the rows of a frame before row `progress.row` are stored. Called before the record of the last
    /// of them becomes void: until then that record says so. No effect for the creation of a row. `name` is the
    /// line that names the push.
    pub(super) fn note_stored(name: WordsMut<'_>, progress: Progress) {
        if progress.row & CREATES == 0 {
            name.store(STORED_AT, progress.row.into());
            fence(Ordering::Release);
        }
    }

    pub(super) fn name_line(&self) -> Result<WordsMut<'_>, StoreError> {
        let at = self.block.at + self.block.len - LINE_BYTES;
        Ok(self.memory.private.region().words_mut(at, LINE_BYTES)?)
    }

    /// Opens the redo area that a dead applier left in `block`, for its successor. Reads nothing yet.
    pub const fn attach(memory: Arc<ServerMemory>, block: Block) -> Self {
        Self { memory, block }
    }

    /// Stores the result of a row: first in the redo record, then at its place.
    ///
    /// # Errors
    /// [`StoreError::Mem`] when `place` is outside the memory, [`StoreError::Limit`] when the area
    /// was made for smaller rows; nothing was changed.
    pub fn commit(
        &self,
        progress: Progress,
        place: RowPlace,
        head: RowHead,
        payload: &[u8],
        state: &[u8],
    ) -> Result<(), StoreError> {
        let sizes = RowSizes {
            payload: payload.len(),
            state: state.len(),
        };
        let row = RowWords::new(&self.memory, place, sizes)?;
        self.open(sizes)?
            .commit(progress, row, head, payload, state);
        Ok(())
    }

    /// Opens the redo record, to commit results of rows with these lengths of values and optimizer state in
    /// bytes. Writes nothing.
    ///
    /// # Errors
    /// [`StoreError::Limit`] when the area was made for smaller rows.
    pub fn open(&self, sizes: RowSizes) -> Result<RedoLine<'_>, StoreError> {
        let area = self
            .memory
            .private
            .region()
            .words_mut(self.block.at, self.area_len())?;
        let state_at = LINE_BYTES + sizes.payload.next_multiple_of(8);
        let windows = (
            area.get(0, LINE_BYTES),
            area.get(LINE_BYTES, sizes.payload),
            area.get(state_at, sizes.state),
        );
        let (Some(line), Some(payload), Some(state)) = windows else {
            return Err(StoreError::Limit {
                what: "bytes of a redo line",
                have: (state_at + sizes.state) as u64,
                limit: self.area_len() as u64,
            });
        };
        Ok(RedoLine {
            line,
            payload,
            state,
            name: self.name_line()?,
        })
    }

    /// Bytes of the area that a record can use, with its header lines.
    pub(super) const fn area_len(&self) -> usize {
        self.block.len - 2 * LINE_BYTES
    }

    /// Voids the redo record. Called before a row is removed or its memory freed, so that no successor
    /// stores the row again.
    ///
    /// # Errors
    /// None in practice: the area lies inside the memory of this server.
    pub fn void(&self) -> Result<(), StoreError> {
        let area = self
            .memory
            .private
            .region()
            .words_mut(self.block.at, LINE_BYTES)?;
        area.store(CHECKSUM_AT, 0);
        fence(Ordering::Release);
        Ok(())
    }

    /// Stores the row or block of the redo record again, which may have been stored in part when the applier
    /// died. Returns the position in the record; `None` if there is no valid record. The record stays.
    ///
    /// # Errors
    /// [`StoreError::Mem`] when the record names a place outside the memory.
    pub fn finish(&self) -> Result<Option<Progress>, StoreError> {
        let area = self
            .memory
            .private
            .region()
            .words(self.block.at, self.block.len)?;
        let line = area.line(0);
        if line_checksum(REDO, line[1], &line[..7]) != line[7] {
            return self.finish_block();
        }
        let (payload_len, state_len) = (line[6] as u32 as usize, (line[6] >> 32) as usize);
        let mut payload = vec![0; payload_len];
        let mut state = vec![0; state_len];
        let state_from = LINE_BYTES + payload_len.next_multiple_of(8);
        if state_from + state_len.next_multiple_of(8) > self.area_len() {
            return Ok(None);
        }
        area.copy_out(LINE_BYTES, &mut payload);
        area.copy_out(state_from, &mut state);
        let place = RowPlace {
            row_at: line[2] as usize,
            state_at: line[3] as usize,
            key: 0,
            salt: 0,
        };
        let sizes = RowSizes {
            payload: payload_len,
            state: state_len,
        };
        let head = RowHead {
            version: line[4],
            checksum: line[5],
        };
        RowWords::new(&self.memory, place, sizes)?.store(head, &payload, &state);
        Ok(Some(Progress {
            lsn: line[0],
            row: line[1] as u32,
        }))
    }
}

/// Redo record of an applier, open for rows of one size.
#[derive(Debug, Clone, Copy)]
pub struct RedoLine<'a> {
    line: WordsMut<'a>,
    payload: WordsMut<'a>,
    state: WordsMut<'a>,
    name: WordsMut<'a>,
}

impl RedoLine<'_> {
    /// Stores the result of a row: first in the redo record, then at its place. Values and optimizer state
    /// have the lengths that the record was opened for. Cost: two copies of both, and the checksum of a
    /// line.
    #[inline(always)]
    pub fn commit(
        &self,
        progress: Progress,
        row: RowWords<'_>,
        head: RowHead,
        payload: &[u8],
        state: &[u8],
    ) {
        Redo::note_stored(self.name, progress);
        self.line.store(CHECKSUM_AT, 0);
        // SYNC: redo. A header is never valid over bytes of another row: it is void first.
        fence(Ordering::Release);
        self.payload.copy_in(0, payload);
        self.state.copy_in(0, state);
        let words = [
            progress.lsn,
            u64::from(progress.row),
            row.place.row_at as u64,
            row.place.state_at as u64,
            head.version,
            head.checksum,
            payload.len() as u64 | (state.len() as u64) << 32,
        ];
        let checksum = line_checksum(REDO, words[1], &words);
        let [a, b, c, d, e, f, g] = words;
        fence(Ordering::Release);
        self.line.store_line(0, &[a, b, c, d, e, f, g, checksum]);
        fence(Ordering::Release);
        row.store(head, payload, state);
    }
}

#[cfg(test)]
mod tests {
    use tidewater_protocol::ids::Incarnation;

    use super::*;

    const HEAD: RowHead = RowHead {
        version: 11,
        checksum: 12,
    };

    fn setup() -> (Arc<ServerMemory>, Redo, RowPlace) {
        let memory = Arc::new(ServerMemory::new(64 << 20, Incarnation(3)).unwrap());
        let owner = BlockOwner {
            kind: BlockKind::Extent,
            table: 1,
            applier: 0,
            part: 1,
        };
        let row = memory.public.alloc(128, owner).unwrap();
        let state = memory.private.alloc(128, owner).unwrap();
        let redo = Redo::new(Arc::clone(&memory), 0, 64, 64).unwrap();
        (
            memory,
            redo,
            RowPlace {
                row_at: row.at,
                state_at: state.at,
                key: 1,
                salt: 2,
            },
        )
    }

    fn row(memory: &ServerMemory, place: RowPlace) -> (Vec<u8>, Vec<u8>) {
        let (mut row, mut state) = (vec![0; 16 + 36], vec![0; 40]);
        memory
            .public
            .region()
            .words(place.row_at, 64)
            .unwrap()
            .copy_out(0, &mut row);
        memory
            .private
            .region()
            .words(place.state_at, 64)
            .unwrap()
            .copy_out(0, &mut state);
        (row, state)
    }

    /// Death between any two words of the store: the successor completes the row.
    #[test]
    fn a_row_cut_at_any_word_is_finished() {
        let (payload, state) = ([7u8; 36], [9u8; 40]);
        let (memory, redo, place) = setup();
        redo.commit(Progress { lsn: 4, row: 2 }, place, HEAD, &payload, &state)
            .unwrap();
        let whole = row(&memory, place);
        for cut in 0..12 {
            // As it was when the applier died: the first `cut` words stored, the rest old.
            let r = memory.public.region().words_mut(place.row_at, 64).unwrap();
            (cut..8).for_each(|w| r.store(w * 8, 0xdead));
            let s = memory
                .private
                .region()
                .words_mut(place.state_at, 40)
                .unwrap();
            (cut.saturating_sub(7)..5).for_each(|w| s.store(w * 8, 0xdead));
            let done = redo.finish().unwrap();
            assert_eq!(done, Some(Progress { lsn: 4, row: 2 }), "cut {cut}");
            assert_eq!(row(&memory, place), whole, "cut {cut}");
        }
    }

    /// Death while the redo record itself was written: the target was not touched, nothing to do.
    #[test]
    fn a_torn_redo_line_is_ignored() {
        let (memory, redo, place) = setup();
        redo.commit(Progress { lsn: 4, row: 2 }, place, HEAD, &[7; 36], &[9; 40])
            .unwrap();
        let before = row(&memory, place);
        let area = memory
            .private
            .region()
            .words_mut(redo.block.at, 64)
            .unwrap();
        for word in 0..8 {
            let was = area.as_read().load(word * 8);
            area.store(word * 8, was ^ 0x10);
            assert_eq!(redo.finish().unwrap(), None, "word {word}");
            area.store(word * 8, was);
        }
        assert_eq!(row(&memory, place), before);
    }

    #[test]
    fn a_row_too_large_for_the_area_changes_nothing() {
        let (memory, redo, place) = setup();
        let before = row(&memory, place);
        let e = redo.commit(Progress::default(), place, HEAD, &[1; 128], &[1; 128]);
        assert!(matches!(e, Err(StoreError::Limit { .. })), "{e:?}");
        assert_eq!(row(&memory, place), before);
        assert_eq!(redo.finish().unwrap(), None);
    }
}
