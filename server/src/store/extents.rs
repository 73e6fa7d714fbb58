//! Extents: slabs of rows that never move, with their keys and optimizer state beside them in
//! private memory.
//!
//! The next extent is prepared ahead by a helper thread (mapped, present, registered), so that an
//! applier that runs out only takes it. When the helper is late the applier makes a small one itself.

use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender, TryRecvError, bounded};
use tidewater_transport::ids::{RegionKey, TableId};
use tidewater_transport::layout::LINE_BYTES;
use tidewater_transport::layout::extent::ExtentEntry;
use tidewater_transport::layout::row::{Loc, RowLayout};

use super::StoreError;
use super::memory::{Block, BlockKind, BlockOwner, ServerMemory};
use super::redo::RowPlace;

/// Bytes of a table's first extent; each next one is twice as large.
const FIRST_BYTES: usize = 64 << 10;
/// Bytes of the largest extent: preparing one takes a helper some 10 ms.
const LAST_BYTES: usize = 64 << 20;
/// Extents of a table on one applier: 16 bits in a location, 0 is none.
pub const EXTENTS_MAX: usize = 4_096;

/// One extent.
#[derive(Debug, Clone, Copy)]
pub struct Extent {
    rows: Block,
    keys: Block,
    state: Block,
    key: RegionKey,
    salt: u64,
    slots: u32,
    used: u32,
}

/// What an extent is made for.
#[derive(Debug, Clone, Copy)]
struct Plan {
    owner: BlockOwner,
    layout: RowLayout,
    state_bytes: usize,
    slots: u32,
}

impl Plan {
    fn make(&self, memory: &ServerMemory, prefault: bool) -> Result<Extent, StoreError> {
        let slots = self.slots as usize;
        let (rows, key) = memory.public_block(slots * self.layout.stride, self.owner)?;
        let keys = memory.private.alloc(slots * 8, self.owner)?;
        let state = memory.private.alloc(slots * self.state_bytes, self.owner)?;
        if prefault {
            memory.public.region().prefault(rows.at, rows.len)?;
            memory.private.region().prefault(keys.at, keys.len)?;
            memory.private.region().prefault(state.at, state.len)?;
        }
        let salt = memory.salt();
        Ok(Extent {
            rows,
            keys,
            state,
            key,
            salt,
            slots: self.slots,
            used: 0,
        })
    }
}

struct Request {
    plan: Plan,
    memory: Arc<ServerMemory>,
    answer: Sender<Extent>,
}

/// The helper thread's inbox. Clones share it.
#[derive(Clone)]
pub struct Preparer(Option<Sender<Request>>);

impl std::fmt::Debug for Preparer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Preparer").field(&self.0.is_some()).finish()
    }
}

impl Preparer {
    /// Nobody prepares: every extent is made by its applier when needed.
    pub const fn none() -> Self {
        Self(None)
    }

    /// Starts the helper thread. It ends when the last clone of the value is dropped.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start() -> std::io::Result<Self> {
        let (tx, rx): (Sender<Request>, Receiver<Request>) = bounded(1024);
        std::thread::Builder::new()
            .name("tw-extents".into())
            .spawn(move || {
                for request in rx {
                    // A failure is the applier's to report, when it needs the extent and makes it.
                    if let Ok(extent) = request.plan.make(&request.memory, true) {
                        let _ = request.answer.send(extent);
                    }
                }
            })?;
        Ok(Self(Some(tx)))
    }
}

/// All extents of a sparse table on one applier.
#[derive(Debug)]
pub struct Extents {
    memory: Arc<ServerMemory>,
    plan: Plan,
    table_salt: u64,
    list: Vec<Extent>,
    entries: Block,
    entries_key: RegionKey,
    preparer: Preparer,
    coming: Option<Receiver<Extent>>,
}

impl Extents {
    /// With its (empty) extent table in public memory.
    ///
    /// # Errors
    /// [`StoreError`] when memory is used up.
    pub fn new(
        memory: Arc<ServerMemory>,
        preparer: Preparer,
        (table, applier): (TableId, u32),
        layout: RowLayout,
        state_bytes: usize,
    ) -> Result<Self, StoreError> {
        let owner = BlockOwner {
            kind: BlockKind::Extent,
            table: table.0,
            applier,
            part: 1,
        };
        let meta = BlockOwner {
            kind: BlockKind::Meta,
            ..owner
        };
        let (entries, entries_key) = memory.public_block(EXTENTS_MAX * LINE_BYTES, meta)?;
        let slots = (FIRST_BYTES / layout.stride).clamp(16, 1 << 20) as u32;
        let table_salt = memory.salt();
        let state_bytes = state_bytes.next_multiple_of(8);
        let plan = Plan {
            owner,
            layout,
            state_bytes,
            slots,
        };
        Ok(Self {
            memory,
            plan,
            table_salt,
            list: Vec::new(),
            entries,
            entries_key,
            preparer,
            coming: None,
        })
    }

    /// Salt of the extent table's entries.
    pub const fn table_salt(&self) -> u64 {
        self.table_salt
    }

    /// Address and key of the extent table.
    pub const fn table_addr(&self) -> (u64, RegionKey) {
        (self.entries.at as u64, self.entries_key)
    }

    /// Takes up to `want` consecutive unused slots: the number of the extent, the first slot and
    /// how many. Bounded work unless the helper is late.
    ///
    /// # Errors
    /// [`StoreError`] when memory is used up; nothing was taken.
    pub fn take(&mut self, want: u32) -> Result<(u16, u32, u32), StoreError> {
        if self.list.last().is_none_or(|e| e.used == e.slots) {
            self.grow()?;
        }
        let number = self.list.len() as u16;
        let Some(extent) = self.list.last_mut() else {
            return Err(StoreError::Limit {
                what: "extents",
                have: 0,
                limit: 0,
            });
        };
        let n = want.min(extent.slots - extent.used).max(1);
        let first = extent.used;
        extent.used += n;
        if extent.used >= extent.slots / 2 && self.coming.is_none() {
            self.order();
        }
        Ok((number, first, n))
    }

    fn next_plan(&self) -> Plan {
        let part = self.list.len() as u32 + 1;
        let doubled = u64::from(self.plan.slots) << (part - 1).min(20);
        let most = (LAST_BYTES / self.plan.layout.stride).max(16) as u64;
        let slots = doubled.min(most) as u32;
        Plan {
            owner: BlockOwner {
                part,
                ..self.plan.owner
            },
            slots,
            ..self.plan
        }
    }

    fn order(&mut self) {
        let Some(preparer) = &self.preparer.0 else {
            return;
        };
        let (answer, coming) = bounded(1);
        let memory = Arc::clone(&self.memory);
        if preparer
            .try_send(Request {
                plan: self.next_plan(),
                memory,
                answer,
            })
            .is_ok()
        {
            self.coming = Some(coming);
        }
    }

    fn grow(&mut self) -> Result<(), StoreError> {
        if self.list.len() >= EXTENTS_MAX {
            let limit = EXTENTS_MAX as u64;
            return Err(StoreError::Limit {
                what: "extents of a table",
                have: limit + 1,
                limit,
            });
        }
        // A late extent is not waited for: until it comes, a small one serves, whose pages are
        // made present by whoever touches them first.
        let prepared = self.coming.as_ref().map(Receiver::try_recv);
        let extent = match prepared {
            Some(Ok(extent)) => {
                self.coming = None;
                extent
            }
            Some(Err(TryRecvError::Empty)) => Plan {
                slots: self.plan.slots,
                ..self.next_plan()
            }
            .make(&self.memory, false)?,
            // The helper failed or there is none: whatever is wrong is found again here.
            Some(Err(TryRecvError::Disconnected)) | None => {
                self.coming = None;
                self.next_plan().make(&self.memory, false)?
            }
        };
        let entry = ExtentEntry {
            base: extent.rows.at as u64,
            key: extent.key,
            slots: extent.slots,
            len: extent.rows.len as u64,
            salt: extent.salt,
        };
        self.list.push(extent);
        let number = self.list.len() as u16;
        let at = self.entries.at + (number as usize - 1) * LINE_BYTES;
        let words = self.memory.public.region().words_mut(at, LINE_BYTES)?;
        words.store_line(0, &entry.to_line(self.table_salt, number));
        Ok(())
    }

    /// Where a location's row is, keyed by the key that stands in its slot; `None` for a location
    /// that was never given out.
    #[inline]
    pub fn place(&self, loc: Loc) -> Option<RowPlace> {
        let extent = self.list.get((loc.extent() as usize).checked_sub(1)?)?;
        if loc.slot() >= extent.used {
            return None;
        }
        let slot = loc.slot() as usize;
        let key = self
            .memory
            .private
            .region()
            .words(extent.keys.at + slot * 8, 8)
            .ok()?
            .load(0);
        Some(RowPlace {
            row_at: extent.rows.at + slot * self.plan.layout.stride,
            state_at: extent.state.at + slot * self.plan.state_bytes,
            key,
            salt: extent.salt,
        })
    }

    /// Writes the key of a slot.
    ///
    /// # Errors
    /// [`StoreError::Mem`] for a location that was never given out.
    pub fn set_key(&self, loc: Loc, key: u64) -> Result<(), StoreError> {
        if let Some(extent) = (loc.extent() as usize)
            .checked_sub(1)
            .and_then(|n| self.list.get(n))
        {
            let at = extent.keys.at + loc.slot() as usize * 8;
            self.memory.private.region().words_mut(at, 8)?.store(0, key);
        }
        Ok(())
    }

    /// Gives all memory back. Blocks are zeroed when they are given out again, under another salt;
    /// rows that a late reader still copies do not prove themselves to anybody else's key.
    ///
    /// # Errors
    /// Never for blocks of this memory.
    pub fn release(self) -> Result<(), StoreError> {
        for extent in &self.list {
            self.memory
                .public
                .region()
                .words_mut(extent.rows.at, extent.rows.len)?
                .zero(0, extent.rows.len);
            self.memory.public.free(extent.rows)?;
            self.memory.private.free(extent.keys)?;
            self.memory.private.free(extent.state)?;
        }
        self.memory.public.free(self.entries)
    }
}
