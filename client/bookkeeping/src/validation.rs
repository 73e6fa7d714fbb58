//! Rows that are read from a lane, and the verdict on each.

use tidewater_lanes::fabric::{RemoteAddr, Unpack};
use tidewater_protocol::layout::row::{
    ROW_HEADER_BYTES, RowCopy, RowLocation, RowVersion, copy_verifying, verify_row,
};
use tidewater_protocol::mutants::{Mutant, on};

/// Row to be read over a lane: key, checksum salt, remote address and location.
#[derive(Debug, Clone, Copy)]
pub struct RowRead {
    /// Key of the row in its table.
    pub key: u64,
    /// Salt of the checksum in the row's header.
    pub salt: u64,
    /// Remote address of the row's header.
    pub from: RemoteAddr,
    /// Location with the generation of the slot; `NONE` for rows of dense tables.
    pub loc: RowLocation,
    /// Index in the caller's keys.
    pub row: u32,
    /// Verdict on data that a lane unpacked; the row is then in the caller's memory.
    pub unpacked: Option<Verdict>,
    /// Version of the unpacked data.
    pub ver: RowVersion,
}

/// Verdict of the validation of a row that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It is the requested row, complete.
    Valid,
    /// It was being written.
    Torn,
    /// The row was deleted; its slot may have been given to another key.
    Stale,
}

impl RowRead {
    /// Judges a row by the checksum of header and payload: valid, torn or stale.
    #[inline]
    pub fn verify(&self, head: &[u8; ROW_HEADER_BYTES], payload: &[u8]) -> Verdict {
        let is_valid = verify_row(self.salt, self.key, head, payload).is_some();
        let ver = RowVersion::of_head(head);
        self.judge(RowCopy {
            ver,
            validated: is_valid,
        })
    }

    /// Judges a row by the version in its header alone, without a checksum of its payload (Hogwild): stale if the
    /// generation of its slot is not that of the location, torn if the header names no row (counter 0), otherwise
    /// valid.
    #[inline]
    pub fn judge_unvalidated(&self, head: &[u8; ROW_HEADER_BYTES]) -> Verdict {
        let ver = RowVersion::of_head(head);
        let is_valid = ver.is_valid();
        self.judge(RowCopy {
            ver,
            validated: is_valid,
        })
    }

    /// Judges a copied row: stale if the generation of its slot has changed, otherwise valid or torn by its
    /// validation.
    #[inline]
    pub fn judge(&self, copy: RowCopy) -> Verdict {
        // Rows of dense tables have no location and never move.
        let is_of_slot = !self.loc.is_some() || copy.ver.generation() == self.loc.generation();
        if !is_of_slot && !on(Mutant::StaleLocationUsed) {
            Verdict::Stale
        } else if copy.validated {
            Verdict::Valid
        } else {
            Verdict::Torn
        }
    }
}

/// Callback that validates rows as they arrive on a lane and places their payload in the caller's memory, in one
/// pass.
#[derive(Debug)]
pub struct RowValidator<'a> {
    /// Rows in the order in which they are read.
    pub rows: &'a mut [RowRead],
    /// Bytes of a row's payload.
    pub row_bytes: usize,
}

impl Unpack for RowValidator<'_> {
    fn restart(&mut self) {
        self.rows.iter_mut().for_each(|row| row.unpacked = None);
    }

    fn unpack(&mut self, first: usize, raw: &[u8], body: &mut [u8]) -> usize {
        let row_bytes = self.row_bytes;
        let rows = raw.chunks_exact(ROW_HEADER_BYTES + row_bytes);
        let mut taken = 0;
        for (row, raw) in self.rows.iter_mut().skip(first).zip(rows) {
            let at = row.row as usize * row_bytes;
            let Some(out) = body.get_mut(at..at + row_bytes) else {
                break;
            };
            let Some((head, payload)) = raw.split_first_chunk() else {
                break;
            };
            let copy = copy_verifying(row.salt, row.key, head, payload, out);
            row.unpacked = Some(row.judge(copy));
            row.ver = copy.ver;
            taken += 1;
        }
        taken
    }
}
