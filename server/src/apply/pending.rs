//! Pushes held back until their iteration closes.
//!
//! An applier takes frames of tables with `AtClock` out of the ring into private memory; they
//! count as applied, and take effect exactly once, at the tick.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use tidewater_transport::ids::{DomainId, WorkerId};
use tidewater_transport::layout::frame::FrameHeader;

use super::Refusal;
use crate::namespace::{FrameSender, NamespaceId};
use crate::store::StoreError;
use crate::store::memory::{Block, BlockKind, BlockOwner, ServerMemory};
use tidewater_transport::layout::reject::RejectReason;

/// Bytes of a page: the payload of the largest frame fits.
const PAGE_BYTES: usize = 4 << 20;
/// Bytes held back by one applier: what a slow worker can make the others pile up.
pub const PENDING_BYTES_MAX: usize = 512 << 20;
/// What a frame counts beside its payload, so that frames without one are bounded too: its entry
/// here, and as much again while it moves to a larger list.
const HELD_BYTES: usize = 2 * size_of::<Held>();

/// A frame that was taken over.
#[derive(Debug, Clone, Copy)]
pub struct Held {
    /// Who pushed it.
    pub rank: WorkerId,
    /// Its header.
    pub header: FrameHeader,
    page: usize,
    at: usize,
}

/// One applier's pages and what is in them.
#[derive(Debug)]
pub struct Pending {
    memory: Arc<ServerMemory>,
    owner: BlockOwner,
    pages: Vec<Page>,
    open: Option<usize>,
    spare: Vec<usize>,
    held: BTreeMap<(NamespaceId, DomainId, u64), Vec<Held>>,
    bytes: usize,
}

#[derive(Debug)]
struct Page {
    block: Block,
    used: usize,
    frames: usize,
}

impl Pending {
    /// Nothing held.
    pub fn new(memory: Arc<ServerMemory>, applier: u32) -> Self {
        let owner = BlockOwner {
            kind: BlockKind::Pending,
            table: 0,
            applier,
            part: 0,
        };
        let held = BTreeMap::new();
        Self {
            memory,
            owner,
            pages: Vec::new(),
            open: None,
            spare: Vec::new(),
            held,
            bytes: 0,
        }
    }

    /// Bytes held.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes a frame over; it belongs to iteration `header.clock` of `domain`.
    ///
    /// # Errors
    /// [`RejectReason::PendingFull`], [`RejectReason::NoMemory`]; nothing was taken.
    pub fn hold(
        &mut self,
        domain: DomainId,
        sender: FrameSender,
        header: FrameHeader,
        payload: &[u8],
    ) -> Result<(), Refusal> {
        let len = payload.len().next_multiple_of(64);
        if self.bytes + len + HELD_BYTES > PENDING_BYTES_MAX {
            return Err(RejectReason::PendingFull {
                held: self.bytes as u64,
                limit: PENDING_BYTES_MAX as u64,
            });
        }
        let page = self.page_for(len).map_err(|_| {
            let (used, capacity) = self.memory.private.usage();
            RejectReason::NoMemory {
                used: used as u64,
                capacity: capacity as u64,
            }
        })?;
        let Some(p) = self.pages.get_mut(page) else {
            unreachable!("page {page} of the held pushes does not exist");
        };
        let at = p.block.at + p.used;
        match self.memory.private.region().words_mut(at, payload.len()) {
            Ok(words) => words.copy_in(0, payload),
            Err(e) => unreachable!("a page of the held pushes is outside the memory: {e}"),
        }
        p.used += len;
        p.frames += 1;
        self.bytes += len + HELD_BYTES;
        let held = Held {
            rank: sender.rank,
            header,
            page,
            at,
        };
        self.held
            .entry((sender.namespace, domain, header.clock))
            .or_default()
            .push(held);
        Ok(())
    }

    fn page_for(&mut self, len: usize) -> Result<usize, StoreError> {
        if let Some(open) = self.open {
            let room = self.pages.get(open).map_or(0, |p| p.block.len - p.used);
            if room >= len {
                return Ok(open);
            }
        }
        let page = match self.spare.pop() {
            Some(page) => page,
            None => {
                let block = self.memory.private.alloc(PAGE_BYTES, self.owner)?;
                self.pages.push(Page {
                    block,
                    used: 0,
                    frames: 0,
                });
                self.pages.len() - 1
            }
        };
        self.open = Some(page);
        Ok(page)
    }

    /// What is held for an iteration of a job's domain, in the order it is reduced: by rank, then as pushed. The
    /// frames stay until [`Pending::free`].
    pub fn take(&mut self, namespace: NamespaceId, domain: DomainId, iteration: u64) -> Vec<Held> {
        let of = (namespace, domain, iteration);
        let mut held = self.held.remove(&of).unwrap_or_default();
        held.sort_by_key(|h| (h.rank, h.header.seq));
        held
    }

    /// Copies a held frame's payload out.
    pub fn payload(&self, held: &Held, out: &mut Vec<u8>) {
        self.payload_part(held, 0..held.header.payload_len as usize, out);
    }

    /// Copies some bytes of a held frame's payload out.
    ///
    /// # Panics
    /// If `bytes` are not of this payload.
    pub fn payload_part(&self, held: &Held, bytes: Range<usize>, out: &mut Vec<u8>) {
        out.resize(bytes.len(), 0);
        let at = held.at + bytes.start;
        // Windows begin at whole words, elements of 4 bytes need not.
        let lead = at % 8;
        let words = self
            .memory
            .private
            .region()
            .words(at - lead, lead + out.len());
        let len = held.header.payload_len as usize;
        assert!(bytes.end <= len, "bytes {bytes:?} of a held push of {len}");
        match words {
            Ok(words) => words.copy_out_from(lead, out),
            Err(e) => unreachable!("a held push is outside the memory: {e}"),
        }
    }

    /// Forgets frames that took effect.
    pub fn free(&mut self, held: &[Held]) {
        for h in held {
            self.bytes -= (h.header.payload_len as usize).next_multiple_of(64) + HELD_BYTES;
            if let Some(page) = self.pages.get_mut(h.page) {
                page.frames -= 1;
                if page.frames == 0 {
                    page.used = 0;
                    if self.open != Some(h.page) {
                        self.spare.push(h.page);
                    }
                }
            }
        }
    }

    /// Drops what is held for a job that is over.
    pub fn forget_namespace(&mut self, namespace: NamespaceId) {
        let over = self.held.extract_if(.., |of, _| of.0 == namespace);
        let gone: Vec<Held> = over.flat_map(|(_, held)| held).collect();
        self.free(&gone);
    }

    /// Drops what is held for a released table.
    pub fn forget_table(&mut self, table: u32) {
        let mut gone = Vec::new();
        for held in self.held.values_mut() {
            gone.extend(held.extract_if(.., |h| h.header.table == table));
        }
        self.free(&gone);
    }
}
