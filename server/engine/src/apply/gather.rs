//! Requests with answers: rows or ranges gathered into one reply, locations of keys.

use tidewater_protocol::layout::frame::FrameHeader;
use tidewater_protocol::layout::reject::RejectReason;
use tidewater_protocol::layout::reply::REPLY_HEADER_BYTES;
use tidewater_protocol::layout::row::RowLocation;
use tidewater_protocol::layout::session::REPLY_SLOT_BYTES;

use super::Refusal;
use super::engine::{Effect, Engine};
use super::push::{check_len, word, wrong_operation};
use super::table::{Store, Table};
use crate::namespace::NamespaceId;
use crate::store::sparse::FIND_AHEAD;

impl Engine {
    pub(super) fn room(bytes: u64) -> Result<(), Refusal> {
        let slot = (REPLY_SLOT_BYTES - REPLY_HEADER_BYTES) as u64;
        if bytes > slot {
            Err(RejectReason::ReplyTooLarge { bytes, slot })
        } else {
            Ok(())
        }
    }

    pub(super) fn gather(
        &mut self,
        namespace: NamespaceId,
        header: &FrameHeader,
        payload: &[u8],
    ) -> Result<Effect, Refusal> {
        let table = self.known(namespace, header.table)?;
        let size = match table.store {
            Store::Blocks(_) => table.spec.dtype.size(),
            _ => table.spec.row_bytes(),
        };
        let by_range = matches!(table.store, Store::Blocks(_));
        let bytes = u64::from(header.count) * size as u64;
        Self::room(bytes)?;
        self.reply.clear();
        self.reply.resize(bytes as usize, 0);
        if by_range {
            self.gather_range(namespace, header, payload)?;
        } else {
            self.gather_rows(namespace, header, payload, size)?;
        }
        Ok(Effect::Reply {
            count: header.count,
        })
    }

    fn gather_range(
        &mut self,
        namespace: NamespaceId,
        header: &FrameHeader,
        payload: &[u8],
    ) -> Result<(), Refusal> {
        self.known(namespace, header.table)?;
        check_len(payload, 8)?;
        let first = word(payload, 0);
        let count = header.count.into();
        let mut reply = std::mem::take(&mut self.reply);
        let read = match self.tables.get_mut(&header.table) {
            Some(Table {
                store: Store::Blocks(blocks),
                ..
            }) => blocks.read_range(first, &mut reply),
            _ => unreachable!("table {} is by ranges", header.table),
        };
        self.reply = reply;
        // A part of it is another applier's, or there is none.
        read.map_err(|_| RejectReason::WrongOwner { first, count })
    }

    pub(super) fn check_keys(
        &self,
        namespace: NamespaceId,
        header: &FrameHeader,
        payload: &[u8],
    ) -> Result<(), Refusal> {
        let table = self.known(namespace, header.table)?;
        let bytes = u64::from(header.count) * 8;
        if payload.len() as u64 != bytes {
            return Err(RejectReason::WrongLength {
                bytes: payload.len() as u64,
                expected: bytes,
            });
        }
        (0..header.count as usize).try_for_each(|row| table.check_key(word(payload, row * 8)))
    }

    fn gather_rows(
        &mut self,
        namespace: NamespaceId,
        header: &FrameHeader,
        payload: &[u8],
        row_bytes: usize,
    ) -> Result<(), Refusal> {
        self.check_keys(namespace, header, payload)?;
        // Where pushes are counted, a pull makes no row.
        if header.flags.create && !self.known(namespace, header.table)?.counts_pushes() {
            self.find_rows(header.table, header.count as usize, |row| {
                (word(payload, row * 8), RowLocation::NONE)
            })?;
        }
        let Some(table) = self.tables.get_mut(&header.table) else {
            unreachable!("table {} has been found", header.table);
        };
        for (row, out) in self.reply.chunks_exact_mut(row_bytes.max(1)).enumerate() {
            let key = word(payload, row * 8);
            let place = table.place(key);
            if let Some(rows) = table.rows() {
                match place {
                    // Locations come from the store itself: they are inside its memory.
                    Some(place) => {
                        let read = rows.read(place, out);
                        assert!(read.is_ok(), "the row of key {key} at {place:?}: {read:?}");
                    }
                    None => rows.initial(key, out),
                }
            }
        }
        Ok(())
    }

    /// Resolves the keys of a frame to row locations, which replace `self.reply`: a `u64` for each key, in the
    /// order of the frame. Missing rows are created if the frame asks for this and the table has no admission
    /// threshold. Otherwise a key without a row gets [`RowLocation::NONE`]. Only for sparse tables.
    pub(super) fn resolve(
        &mut self,
        namespace: NamespaceId,
        header: &FrameHeader,
        payload: &[u8],
    ) -> Result<Effect, Refusal> {
        let table = self.known(namespace, header.table)?;
        if !matches!(table.store, Store::Sparse(_)) {
            return Err(wrong_operation(header));
        }
        let create = header.flags.create && !table.counts_pushes();
        Self::room(u64::from(header.count) * 8)?;
        self.check_keys(namespace, header, payload)?;
        self.reply.clear();
        for row in 0..header.count as usize {
            let key = word(payload, row * 8);
            let progress = self.progress(row);
            let Some(Table {
                store: Store::Sparse(s),
                ..
            }) = self.tables.get_mut(&header.table)
            else {
                break;
            };
            if row % FIND_AHEAD == 0 {
                let rows = row..(header.count as usize).min(row + FIND_AHEAD);
                s.touch(rows.map(|row| word(payload, row * 8)));
            }
            let loc = if create {
                match s.find_or_create(key, &self.redo, progress) {
                    Ok(loc) => loc,
                    Err(e) => return Err(self.no_room(header.table, key, &e)),
                }
            } else {
                s.find(key).unwrap_or(RowLocation::NONE)
            };
            self.reply.extend_from_slice(&loc.0.to_le_bytes());
        }
        Ok(Effect::Reply {
            count: header.count,
        })
    }
}
