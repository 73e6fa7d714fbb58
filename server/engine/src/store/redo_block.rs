//! The redo record of a block: the result of a range of one block, before it is stored.
//!
//! The same guarantee as for a row (see `redo`) with other targets: payload words and a version
//! word in public memory, and up to four pieces of optimizer state in private memory.
//!
//! ```text
//! line 0   lsn | row | payload at | version at | odd word | even word | lens | checksum
//! line 1   state pieces: 4 x (at, bytes)
//! then     payload | state pieces one after the other
//! ```
//! A valid line 0 means that everything below it was written before it; it is void while that
//! changes.

use tidewater_protocol::layout::LINE_BYTES;
use tidewater_protocol::layout::hash::line_checksum;
use tidewater_protocol::mutants::{self, Mutant};
use tidewater_runtime::mem::versioned::{BlockVersions, store_block};
use tidewater_runtime::sync::{Ordering, fence};

use super::StoreError;
use super::redo::{Progress, Redo};

const REDO_BLOCK: u64 = u64::from_le_bytes(*b"redo-blk");
const DATA_AT: usize = 2 * LINE_BYTES;
/// Maximum number of pieces of optimizer state in the redo record of a block. Each of up to three optimizer
/// slots is one; the step counts are the piece after the slots.
pub(super) const PIECES: usize = 4;

/// Piece of a block's optimizer state: byte offset in private memory and length, both multiples of 8.
/// Length 0 stands for no piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StatePiece {
    /// Byte offset of the piece in private memory.
    pub at: usize,
    /// Length in bytes; 0 for no piece.
    pub len: usize,
}

/// Targets of the result of a range of one block. All offsets are multiples of 8.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockPlace {
    /// Byte offset of the first payload byte in public memory.
    pub payload_at: usize,
    /// Byte offset of the block's version word in public memory.
    pub version_at: usize,
    /// Values of the version word: while the payload is being written, and afterwards.
    pub versions: BlockVersions,
    /// Locations of the pieces of optimizer state, in their order.
    pub pieces: [StatePiece; PIECES],
}

impl Redo {
    /// Stores the result of a range of one block: first in the redo record, then at its place under the
    /// block's version word. `payload` and `state` are whole words; `state` is as long as the pieces
    /// together.
    ///
    /// # Errors
    /// [`StoreError::Limit`] when the area was made for smaller blocks (nothing was changed),
    /// [`StoreError::Mem`] when `place` lies outside the memory (the record is written, the block perhaps in
    /// part).
    pub fn commit_block(
        &self,
        progress: Progress,
        place: BlockPlace,
        payload: &[u8],
        state: &[u8],
    ) -> Result<(), StoreError> {
        self.store_result(Some(progress), place, payload, state)
    }

    /// Stores the result of a range of one block: with `progress` first in the redo record, without it only
    /// at its place.
    ///
    /// # Errors
    /// [`StoreError::Limit`] when the area was made for smaller blocks (nothing was changed),
    /// [`StoreError::Mem`] when `place` lies outside the memory.
    pub(super) fn store_result(
        &self,
        progress: Option<Progress>,
        place: BlockPlace,
        payload: &[u8],
        state: &[u8],
    ) -> Result<(), StoreError> {
        if let Some(progress) = progress {
            self.record_block(progress, place, payload, state)?;
        }
        self.store_block(&place, payload, state)
    }

    fn record_block(
        &self,
        progress: Progress,
        place: BlockPlace,
        payload: &[u8],
        state: &[u8],
    ) -> Result<(), StoreError> {
        let need = DATA_AT + payload.len() + state.len();
        if need > self.area_len() {
            return Err(StoreError::Limit {
                what: "bytes of redo for a block",
                have: need as u64,
                limit: self.area_len() as u64,
            });
        }
        let private = self.memory.private.region();
        let area = private.words_mut(self.block.at, self.block.len)?;
        Self::note_stored(self.name_line()?, progress);
        area.store(56, 0);
        // SYNC: redo. A header is never valid over bytes of another block: it is void first.
        fence(Ordering::Release);
        let [a, b, c, d] = place.pieces.map(|p| [p.at as u64, p.len as u64]);
        let pieces = [a[0], a[1], b[0], b[1], c[0], c[1], d[0], d[1]];
        area.store_line(LINE_BYTES, &pieces);
        area.copy_in(DATA_AT, payload);
        area.copy_in(DATA_AT + payload.len(), state);
        let words = [
            progress.lsn,
            u64::from(progress.row),
            place.payload_at as u64,
            place.version_at as u64,
            place.versions.writing,
            place.versions.done,
            payload.len() as u64 | (state.len() as u64) << 32,
        ];
        let checksum = line_checksum(REDO_BLOCK, words[1], &words);
        let [a, b, c, d, e, f, g] = words;
        fence(Ordering::Release);
        area.store_line(0, &[a, b, c, d, e, f, g, checksum]);
        fence(Ordering::Release);
        Ok(())
    }

    /// Drops the pieces of optimizer state that begin in `range` of private memory from the record of a block.
    /// Called when the words there get another use: a successor must not store such a piece again. Only the last
    /// piece of a record may lie there, because a later one would get wrong bytes. The target was stored
    /// completely, and the position in the record stays. No effect on the record of a row.
    ///
    /// # Errors
    /// None in practice: the area lies inside the memory of this server.
    pub(super) fn forget_piece(&self, range: std::ops::Range<usize>) -> Result<(), StoreError> {
        if mutants::on(Mutant::StalePieceReplayed) {
            return Ok(());
        }
        let private = self.memory.private.region();
        let area = private.words_mut(self.block.at, DATA_AT)?;
        let line = area.as_read().line(0);
        // The second line of the record of a row holds values.
        if line_checksum(REDO_BLOCK, line[1], &line[..7]) != line[7] {
            return Ok(());
        }
        for piece in 0..PIECES {
            let at = LINE_BYTES + piece * 16;
            if range.contains(&(area.as_read().load(at) as usize)) {
                // One word, in no checksum: the piece is there as a whole, or it is not.
                area.store(at + 8, 0);
            }
        }
        // SYNC: redo. The record is changed before the words are.
        fence(Ordering::Release);
        Ok(())
    }

    /// Stores the payload of a range of one block under its version word, and then its optimizer state.
    fn store_block(
        &self,
        place: &BlockPlace,
        payload: &[u8],
        state: &[u8],
    ) -> Result<(), StoreError> {
        let public = self.memory.public.region();
        let version = public.words_mut(place.version_at, 8)?;
        let target = public.words_mut(place.payload_at, payload.len())?;
        store_block(version, place.versions, target, payload);
        let private = self.memory.private.region();
        let mut rest = state;
        for piece in place.pieces {
            let (bytes, after) = rest.split_at_checked(piece.len).unwrap_or((rest, &[]));
            private.words_mut(piece.at, bytes.len())?.copy_in(0, bytes);
            rest = after;
        }
        Ok(())
    }

    /// Stores the block of the redo record again, which may have been stored in part when the applier died.
    /// Returns the position in the record; `None` if there is no valid record of a block.
    pub(super) fn finish_block(&self) -> Result<Option<Progress>, StoreError> {
        let private = self.memory.private.region();
        let area = private.words(self.block.at, self.block.len)?;
        let line = area.line(0);
        if line_checksum(REDO_BLOCK, line[1], &line[..7]) != line[7] {
            return Ok(None);
        }
        let (payload_len, state_len) = (line[6] as u32 as usize, (line[6] >> 32) as usize);
        if DATA_AT + payload_len + state_len > self.area_len() {
            return Ok(None);
        }
        let table = area.line(LINE_BYTES);
        let place = BlockPlace {
            payload_at: line[2] as usize,
            version_at: line[3] as usize,
            versions: BlockVersions {
                writing: line[4],
                done: line[5],
            },
            pieces: std::array::from_fn(|i| StatePiece {
                at: table[2 * i] as usize,
                len: table[2 * i + 1] as usize,
            }),
        };
        let mut payload = vec![0; payload_len];
        let mut state = vec![0; state_len];
        area.copy_out(DATA_AT, &mut payload);
        area.copy_out(DATA_AT + payload_len, &mut state);
        self.store_block(&place, &payload, &state)?;
        Ok(Some(Progress {
            lsn: line[0],
            row: line[1] as u32,
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tidewater_protocol::ids::Incarnation;
    use tidewater_protocol::layout::dense::TaggedU32;
    use tidewater_runtime::mem::Region;

    use super::*;
    use crate::store::ServerMemory;
    use crate::store::memory::{BlockKind, BlockOwner};

    const PAYLOAD: usize = 96;
    const DONE: Progress = Progress { lsn: 4, row: 2 };

    fn setup() -> (Arc<ServerMemory>, Redo, BlockPlace) {
        let memory = Arc::new(ServerMemory::new(64 << 20, Incarnation(3)).unwrap());
        let owner = BlockOwner {
            kind: BlockKind::Dense,
            table: 1,
            applier: 0,
            part: 1,
        };
        let payload = memory.public.alloc(256, owner).unwrap();
        let meta = memory.public.alloc(64, owner).unwrap();
        let state = memory.private.alloc(256, owner).unwrap();
        let redo = Redo::new(Arc::clone(&memory), 0, PAYLOAD, 3 * PAYLOAD + 8).unwrap();
        let piece = |at: usize, len: usize| StatePiece {
            at: state.at + at,
            len,
        };
        let place = BlockPlace {
            payload_at: payload.at + 8,
            version_at: meta.at + 16,
            versions: BlockVersions {
                writing: TaggedU32::new(3, 9).0,
                done: TaggedU32::new(4, 9).0,
            },
            pieces: [
                piece(0, PAYLOAD),
                piece(128, 40),
                piece(176, 16),
                piece(248, 8),
            ],
        };
        (memory, redo, place)
    }

    /// Every word the store writes, in the order in which it writes them.
    fn targets(memory: &ServerMemory, place: &BlockPlace) -> Vec<(Arc<Region>, usize)> {
        let public = |at| (Arc::clone(memory.public.region()), at);
        let private = |at| (Arc::clone(memory.private.region()), at);
        let payload = (0..PAYLOAD).step_by(8).map(|w| place.payload_at + w);
        let state = place
            .pieces
            .iter()
            .flat_map(|p| (0..p.len).step_by(8).map(|w| p.at + w));
        [public(place.version_at)]
            .into_iter()
            .chain(payload.map(public))
            .chain([public(place.version_at)])
            .chain(state.map(private))
            .collect()
    }

    fn load(targets: &[(Arc<Region>, usize)]) -> Vec<u64> {
        let word = |(region, at): &(Arc<Region>, usize)| region.words(*at, 8).unwrap().load(0);
        targets.iter().map(word).collect()
    }

    #[test]
    fn a_block_cut_at_any_word_is_finished() {
        let (memory, redo, place) = setup();
        let (payload, state) = ([7u8; PAYLOAD], [9u8; PAYLOAD + 64]);
        let targets = targets(&memory, &place);
        redo.commit_block(DONE, place, &payload, &state).unwrap();
        let whole = load(&targets);
        let odd_then = [place.versions.writing, TaggedU32::new(2, 9).0];
        for cut in 0..=targets.len() {
            // As it was when the applier died: the first `cut` stores done, the rest old.
            for (n, (region, at)) in targets.iter().enumerate() {
                let words = region.words_mut(*at, 8).unwrap();
                let old = if *at == place.version_at {
                    odd_then[usize::from(cut == 0)]
                } else {
                    0xdead
                };
                words.store(0, if n < cut && n > 0 { whole[n] } else { old });
            }
            assert!(
                cut == targets.len() || load(&targets) != whole,
                "cut {cut} cuts nothing"
            );
            assert_eq!(redo.finish().unwrap(), Some(DONE), "cut {cut}");
            assert_eq!(load(&targets), whole, "cut {cut}");
        }
    }

    #[test]
    fn a_torn_header_is_ignored_and_the_other_kind_is_not_mistaken() {
        let (memory, redo, place) = setup();
        let (payload, state) = ([7u8; PAYLOAD], [9u8; PAYLOAD + 64]);
        redo.commit_block(DONE, place, &payload, &state).unwrap();
        let area = memory.private.region().words_mut(redo.block.at, 64);
        let area = area.unwrap();
        for word in 0..8 {
            let was = area.as_read().load(word * 8);
            area.store(word * 8, was ^ 0x10);
            assert_eq!(redo.finish().unwrap(), None, "word {word}");
            area.store(word * 8, was);
        }
        assert_eq!(redo.finish().unwrap(), Some(DONE));
    }

    #[test]
    fn a_block_too_large_for_the_area_changes_nothing() {
        let (memory, redo, place) = setup();
        let before = load(&targets(&memory, &place));
        let e = redo.commit_block(DONE, place, &[1; 4096], &[]).unwrap_err();
        assert!(matches!(e, StoreError::Limit { .. }), "{e}");
        assert_eq!(load(&targets(&memory, &place)), before);
        assert_eq!(redo.finish().unwrap(), None);
    }
}
