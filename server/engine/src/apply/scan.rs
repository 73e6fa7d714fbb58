//! Lists of the stored keys of a sparse table.

use tidewater_protocol::layout::frame::{FrameHeader, PARTITION_ANY};
use tidewater_protocol::layout::reject::RejectReason;
use tidewater_protocol::layout::scan::{SCAN_BYTES, SCAN_END, ScanReply, ScanRequest};
use tidewater_protocol::limits::FRAME_ROWS_MAX;

use super::Refusal;
use super::engine::{Effect, Engine};
use super::push::{wrong_length, wrong_operation};
use super::table::Store;
use crate::namespace::NamespaceId;

impl Engine {
    /// Replies to a SCAN frame with the number of the next slot and of the rows on this applier, the keys of
    /// the rows in some slots of a partition, and their values if requested. Cost: a slot header and an index
    /// entry for each slot, a copy of each row.
    pub(super) fn scan(
        &mut self,
        namespace: NamespaceId,
        header: &FrameHeader,
        payload: &[u8],
    ) -> Result<Effect, Refusal> {
        let request = ScanRequest::decode(payload).ok_or(wrong_length(payload, SCAN_BYTES))?;
        self.known(namespace, header.table)?;
        let table = &self.tables[&header.table];
        let Store::Sparse(shard) = &table.store else {
            return Err(wrong_operation(header));
        };
        let row_bytes = table.spec.row_bytes();
        let each = 8 + if request.values { row_bytes } else { 0 };
        let count = u64::from(header.count);
        if count > FRAME_ROWS_MAX as u64 {
            return Err(wrong_length(payload, FRAME_ROWS_MAX));
        }
        Self::room(SCAN_BYTES as u64 + count * each as u64)?;
        let slots = match header.partition {
            PARTITION_ANY if count == 0 => 0,
            partition => shard.slots(partition).ok_or(RejectReason::WrongOwner {
                first: partition.into(),
                count: 1,
            })?,
        };
        let end = request.first.saturating_add(count).min(slots);
        let next = if end == slots { SCAN_END } else { end };
        let head = ScanReply::head(next, shard.len() as u64);
        self.places.clear();
        shard.rows_in_slots(header.partition, request.first..end, &mut self.places);
        self.reply.clear();
        self.reply.extend_from_slice(&head);
        for place in &self.places {
            self.reply.extend_from_slice(&place.key.to_le_bytes());
        }
        if request.values {
            let at = self.reply.len();
            self.reply.resize(at + self.places.len() * row_bytes, 0);
            let Some(rows) = self.tables.get_mut(&header.table).and_then(|t| t.rows()) else {
                unreachable!("table {} is sparse", header.table);
            };
            let out = self.reply[at..].chunks_exact_mut(row_bytes);
            for (place, out) in self.places.iter().zip(out) {
                // Places come from the store itself: they are inside its memory.
                let read = rows.read(*place, out);
                assert!(read.is_ok(), "the row at {place:?}: {read:?}");
            }
        }
        Ok(Effect::Reply {
            count: self.places.len() as u32,
        })
    }
}
