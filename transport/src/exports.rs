//! What a server lets peers read or count in: the table that a NIC would hold in its registration
//! entries. `tcp` and `sim` execute against it; `verbs` will register its entries.

use std::sync::RwLock;

use crate::fabric::Rights;
use crate::ids::RegionKey;
use crate::mem::Region;
use crate::sync::{Arc, AtomicU64, Ordering};

/// Key by which every lane names its own inbox; each port knows only the inbox of its session.
pub const INBOX_KEY: RegionKey = RegionKey(0x8000_0001);

/// One registered range.
#[derive(Debug, Clone)]
pub struct Export {
    /// The memory.
    pub region: Arc<Region>,
    /// First byte in the region; peers name it by the same number.
    pub start: u64,
    /// Bytes.
    pub len: u64,
    /// What peers may do.
    pub rights: Rights,
    /// Which of the server's memories it is: 0 public, 1 counters. On shared memory a peer maps
    /// each memory whole.
    pub memory: u8,
}

/// The registration table of one server. Keys are `memory << 28 | check << 20 | index`; the check
/// bits are random for each start of the server, so that a key of an earlier start is refused.
#[derive(Debug)]
pub struct Exports {
    entries: RwLock<Arc<Vec<Option<Export>>>>,
    version: AtomicU64,
    check: u32,
}

const INDEX_BITS: u32 = 20;
const MEMORY_SHIFT: u32 = 28;

impl Exports {
    /// Empty; `check` comes from the server's incarnation.
    pub fn new(check: u8) -> Self {
        Self {
            entries: RwLock::new(Arc::new(Vec::new())),
            version: AtomicU64::new(1),
            check: u32::from(check) << INDEX_BITS,
        }
    }

    /// Registers a range; `None` when all 2^20 entries are taken.
    pub fn add(&self, export: Export) -> Option<RegionKey> {
        let mut guard = match self.entries.write() {
            Ok(guard) => guard,
            Err(poisoned) => poisoned.into_inner(),
        };
        let index = guard.len() as u32;
        if index >= 1 << INDEX_BITS {
            return None;
        }
        let key = u32::from(export.memory) << MEMORY_SHIFT | self.check | index;
        Arc::make_mut(&mut guard).push(Some(export));
        // SYNC: exports. Pairs with the Acquire load in `ExportView::refresh`.
        self.version.fetch_add(1, Ordering::Release);
        Some(RegionKey(key))
    }

    /// The check bits of this start's keys, for peers that map memories whole.
    pub const fn check_bits(&self) -> u8 {
        (self.check >> INDEX_BITS) as u8
    }

    /// The check bits of a key.
    pub const fn check_of(key: RegionKey) -> u8 {
        (key.0 >> INDEX_BITS) as u8
    }

    /// Which memory a key belongs to, for peers that map memories whole.
    pub const fn memory_of(key: RegionKey) -> u8 {
        (key.0 >> MEMORY_SHIFT) as u8
    }

    /// A view for one thread.
    pub fn view(self: &Arc<Self>) -> ExportView {
        ExportView {
            exports: Arc::clone(self),
            entries: Arc::new(Vec::new()),
            version: 0,
        }
    }
}

/// A thread's cached copy of the table: looking a key up takes no lock unless the table grew.
#[derive(Debug, Clone)]
pub struct ExportView {
    exports: Arc<Exports>,
    entries: Arc<Vec<Option<Export>>>,
    version: u64,
}

impl ExportView {
    /// The range `[addr, addr + len)` of a key, if the peer may do `want` there.
    ///
    /// # Errors
    /// Which check failed.
    #[inline]
    pub fn check(
        &mut self,
        key: RegionKey,
        addr: u64,
        len: u64,
        want: Rights,
    ) -> Result<&Export, &'static str> {
        self.refresh();
        let index = (key.0 & ((1 << INDEX_BITS) - 1)) as usize;
        let Some(Some(export)) = self.entries.get(index) else {
            return Err("unknown key");
        };
        let whole = u32::from(export.memory) << MEMORY_SHIFT | self.exports.check | index as u32;
        if key.0 != whole {
            return Err("key of another start of this server");
        }
        let allowed = match want {
            Rights::Read => matches!(export.rights, Rights::Read | Rights::Atomic),
            Rights::Write => false,
            Rights::Atomic => matches!(export.rights, Rights::Atomic),
        };
        if !allowed {
            return Err("no right to do that there");
        }
        let end = addr.checked_add(len);
        if addr < export.start || end.is_none_or(|end| end > export.start + export.len) {
            return Err("outside the region");
        }
        if !addr.is_multiple_of(8) {
            return Err("misaligned");
        }
        Ok(export)
    }

    #[inline]
    fn refresh(&mut self) {
        // SYNC: exports. Pairs with the Release in `Exports::add`.
        let version = self.exports.version.load(Ordering::Acquire);
        if version != self.version {
            let guard = match self.exports.entries.read() {
                Ok(guard) => guard,
                Err(poisoned) => poisoned.into_inner(),
            };
            self.entries = Arc::clone(&guard);
            self.version = version;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_registered_ranges_with_the_right_pass() {
        let exports = Arc::new(Exports::new(0x5a));
        let mut view = exports.view();
        let region = Arc::new(Region::anonymous(1 << 16).unwrap());
        let export = |rights, memory| Export {
            region: Arc::clone(&region),
            start: 4096,
            len: 8192,
            rights,
            memory,
        };
        let read = exports.add(export(Rights::Read, 0)).unwrap();
        let count = exports.add(export(Rights::Atomic, 1)).unwrap();
        assert!(view.check(read, 4096, 8192, Rights::Read).is_ok());
        assert!(view.check(count, 4096, 8, Rights::Atomic).is_ok());
        assert_eq!(Exports::memory_of(count), 1);
        for (key, addr, len, want) in [
            (read, 4095, 8, Rights::Read),
            (read, 4096, 8193, Rights::Read),
            (read, u64::MAX - 7, 16, Rights::Read),
            (read, 4097, 8, Rights::Read),
            (read, 4096, 8, Rights::Write),
            (read, 4096, 8, Rights::Atomic),
            (RegionKey(read.0 + 2), 4096, 8, Rights::Read),
            (RegionKey(read.0 ^ 1 << 21), 4096, 8, Rights::Read),
            (RegionKey(read.0 | 1 << 28), 4096, 8, Rights::Read),
        ] {
            assert!(
                view.check(key, addr, len, want).is_err(),
                "{key:?} {addr} {len} {want:?}"
            );
        }
    }
}
