//! Rows that are read from a lane, and what became of each.

use tidewater_lanes::fabric::{RemoteAddr, Unpack};
use tidewater_protocol::layout::row::{
    ROW_HEADER_BYTES, RowCopy, RowLocation, RowVersion, copy_verifying, verify_row,
};

/// A row that is to be read.
#[derive(Debug, Clone, Copy)]
pub(super) struct RowRead {
    pub(super) key: u64,
    pub(super) salt: u64,
    pub(super) from: RemoteAddr,
    pub(super) loc: RowLocation,
    /// Number in the caller's order.
    pub(super) row: u32,
    /// Of what a lane handed over; it is in the caller's memory then.
    pub(super) taken: Option<Verdict>,
}

/// What the bytes of a row say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is the row that was meant, whole.
    Proven,
    /// It was being written.
    Torn,
    /// Its slot was given to another key.
    Stale,
}

impl RowRead {
    /// Of what landed.
    pub(super) fn verify(&self, head: &[u8; ROW_HEADER_BYTES], payload: &[u8]) -> Verdict {
        let proven = verify_row(self.salt, self.key, head, payload).is_some();
        let ver = RowVersion::of_head(head);
        self.judge(RowCopy { ver, proven })
    }

    /// Of what landed, without a proof of its payload.
    pub(super) fn judge_unproven(&self, head: &[u8; ROW_HEADER_BYTES]) -> Verdict {
        let ver = RowVersion::of_head(head);
        let proven = ver.is_valid();
        self.judge(RowCopy { ver, proven })
    }

    /// Of a copy.
    #[inline]
    pub(super) const fn judge(&self, copy: RowCopy) -> Verdict {
        // Rows of dense tables have no location, and keep their place.
        if self.loc.is_some() && copy.ver.generation() != self.loc.generation() {
            Verdict::Stale
        } else if copy.proven {
            Verdict::Proven
        } else {
            Verdict::Torn
        }
    }
}

/// Proves rows as they come, and puts their payload where it belongs, in one pass.
pub(super) struct RowValidator<'a> {
    /// In the order in which they are read.
    pub(super) rows: &'a mut [RowRead],
    /// Bytes of a payload.
    pub(super) row_bytes: usize,
}

impl Unpack for RowValidator<'_> {
    fn restart(&mut self) {
        self.rows.iter_mut().for_each(|row| row.taken = None);
    }

    fn take(&mut self, first: usize, raw: &[u8], body: &mut [u8]) -> usize {
        let row_bytes = self.row_bytes;
        let whole = raw.chunks_exact(ROW_HEADER_BYTES + row_bytes);
        let mut taken = 0;
        for (row, raw) in self.rows.iter_mut().skip(first).zip(whole) {
            let at = row.row as usize * row_bytes;
            let Some(out) = body.get_mut(at..at + row_bytes) else {
                break;
            };
            let Some((head, payload)) = raw.split_first_chunk() else {
                break;
            };
            let copy = copy_verifying(row.salt, row.key, head, payload, out);
            row.taken = Some(row.judge(copy));
            taken += 1;
        }
        taken
    }
}
