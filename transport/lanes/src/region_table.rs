//! Registered regions of a server: the table that a NIC would hold as registration entries. `tcp` and `sim`
//! check accesses against it; `verbs` registers its entries with its device.

use std::error::Error;
use std::sync::{Mutex, MutexGuard, RwLock, Weak};

use tidewater_protocol::ids::RegionKey;
use tidewater_runtime::mem::{Region, Words};
use tidewater_runtime::sync::{Arc, AtomicU64, Ordering};

/// Region key by which every client addresses its own inbox, the same for all clients. Each server lane
/// resolves it to the inbox of its own session. The key is not in the region table.
pub const INBOX_KEY: RegionKey = RegionKey(0x8000_0001);

/// Kind of access that a peer has to a registered region: read, write, or read and atomics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccessFlags {
    /// Read only: parameters and META.
    Read,
    /// The peer may write. Only the inbox of its own session allows it.
    Write,
    /// Read and atomics: advisory counters.
    Atomic,
}

/// One entry of the region table: a byte range of memory, its access flags, and the number of the server
/// memory (public or counters) that contains it.
#[derive(Debug, Clone)]
pub struct RegisteredRegion {
    /// Memory that contains the range.
    pub region: Arc<Region>,
    /// Byte offset of the range in `region`; peers use the same number as address.
    pub start: u64,
    /// Length of the range in bytes.
    pub len: u64,
    /// Access that peers have.
    pub rights: AccessFlags,
    /// Server memory that contains the range: 0 public, 1 counters. On shared memory a peer maps each
    /// memory completely.
    pub memory: u8,
}

/// Reason why the server refused a client's access: the check that failed. It is a one-byte code on the
/// wire of the TCP lane, and a text in errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
#[non_exhaustive]
pub enum AccessDenied {
    /// A reason without a code of its own.
    Other = 0,
    /// The table has no entry at the key's index.
    UnknownKey = 1,
    /// The entry at the key's index has another key: normally the key comes from another start of the
    /// server.
    OldKey = 2,
    /// The range is not registered with the access flag that the request needs.
    NoRight = 3,
    /// The access is not inside the range.
    Outside = 4,
    /// The address is not a multiple of 8.
    Misaligned = 5,
}

impl AccessDenied {
    /// Decodes the reason from its one-byte wire code; `None` for an unknown code, so that the message is
    /// invalid.
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            0 => Self::Other,
            1 => Self::UnknownKey,
            2 => Self::OldKey,
            3 => Self::NoRight,
            4 => Self::Outside,
            5 => Self::Misaligned,
            _ => return None,
        })
    }

    /// Returns the reason in words, for [`LaneError::Access`](crate::fabric::LaneError::Access).
    pub const fn text(self) -> &'static str {
        match self {
            Self::Other => "refused",
            Self::UnknownKey => "unknown key",
            Self::OldKey => "key of another start of this server",
            Self::NoRight => "no right to do that there",
            Self::Outside => "outside the region",
            Self::Misaligned => "misaligned",
        }
    }
}

/// Cause that a registrar (a device, such as an RDMA NIC) reports when it cannot register a range.
pub type RegistrarError = Box<dyn Error + Send + Sync>;

impl RegisteredRegion {
    /// Builds `ExportError::Refused` for this range when a registrar refused to register it as entry
    /// `index`; `source` is the registrar's cause.
    pub fn refused(&self, index: u32, source: RegistrarError) -> ExportError {
        ExportError::Refused {
            index,
            start: self.start,
            len: self.len,
            source,
        }
    }

    /// Checks that the bytes `[addr, addr + len)` are in the range and `addr` is a multiple of 8. The
    /// error is `Outside` or `Misaligned`. Checks no key and no access flag.
    #[inline]
    fn holds(&self, addr: u64, len: u64) -> Result<(), AccessDenied> {
        let end = addr.checked_add(len);
        if addr < self.start || end.is_none_or(|end| end > self.start + self.len) {
            return Err(AccessDenied::Outside);
        }
        if !addr.is_multiple_of(8) {
            return Err(AccessDenied::Misaligned);
        }
        Ok(())
    }
}

/// Device that registers the table's ranges, such as the protection domain of an RDMA NIC. The table
/// calls it for each range before it gives the range's key out. A NIC has to know the range before a peer
/// can address it.
pub trait Registrar: std::fmt::Debug + Send + Sync {
    /// Registers the range `export`, entry `index` of the table, with the device, so that peers can
    /// access it by `key`. Cost: the pinning of its pages.
    ///
    /// Called once for each entry, unless another registrar refuses the entry afterwards. The table then
    /// gives out no key and calls again with the same index for its next range, maybe with the same key.
    /// The new range then replaces the old one, which no peer could access.
    ///
    /// # Errors
    /// When the device refuses; no peer then gets access to the range.
    fn register(
        &self,
        index: u32,
        key: RegionKey,
        export: &RegisteredRegion,
    ) -> Result<(), RegistrarError>;

    /// Registers many entries like [`Registrar::register`]; `entries` gives index, key and range of each.
    /// The table may call `register` for other entries on other threads meanwhile.
    ///
    /// # Errors
    /// The first entry that cannot be registered; others may be registered by then.
    fn register_all(
        &self,
        entries: &[(u32, RegionKey, RegisteredRegion)],
    ) -> Result<(), ExportError> {
        let register = |(index, key, export): &(u32, RegionKey, RegisteredRegion)| {
            let registered = self.register(*index, *key, export);
            registered.map_err(|source| export.refused(*index, source))
        };
        entries.iter().try_for_each(register)
    }
}

/// Reason why the region table could not register a range: its index has no key, or a device refused the
/// range.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExportError {
    /// The entry's index would be too large: all keys are given out.
    #[error("all {limit} region keys of this server are in use; start more servers")]
    Full {
        /// Number of keys of a server.
        limit: u32,
    },
    /// A device refused the range.
    #[error("cannot register {len} bytes at {start} as region {index}: {source}")]
    Refused {
        /// Index of the entry.
        index: u32,
        /// Byte offset of the range in its memory.
        start: u64,
        /// Length of the range in bytes.
        len: u64,
        /// Cause, as the device reports it.
        source: RegistrarError,
    },
}

/// Table of one server's registered regions. A region key is `memory << 28 | check << 20 | index`: number
/// of the server memory, check bits, index in this table. The 8 check bits are random for each creation
/// of the server's memory, so that a key of an earlier one is refused in 255 of 256 cases.
#[derive(Debug)]
pub struct RegionTable {
    entries: RwLock<Arc<Vec<Option<RegisteredRegion>>>>,
    version: AtomicU64,
    check: u32,
    /// Held while a range or a registrar is added, so that each registrar sees each entry. Key lookups
    /// never take it. Dropped registrars are removed from the list.
    registrars: Mutex<Vec<Attached>>,
}

/// A registrar that is attached to the table. It is not ready while `RegionTable::attach` still
/// registers the older entries with it. New entries are registered with it all the same; if it refuses
/// one then, `attach` fails and not the entry.
#[derive(Debug)]
struct Attached {
    registrar: Weak<dyn Registrar>,
    /// Whether the registrar has registered the entries that are older than its attachment.
    ready: bool,
    /// The first refusal before it was ready: its attachment then fails, and not the range.
    failed: Option<ExportError>,
}

/// Number by which region keys, in their top 4 bits, name the server's public memory.
pub(crate) const PUBLIC: u8 = 0;
const INDEX_BITS: u32 = 20;
const MEMORY_SHIFT: u32 = 28;

impl RegionTable {
    /// Creates an empty region table. `check` are the check bits of all its keys: the low 8 bits of the
    /// incarnation (random start number) of the server that created the memory.
    pub fn new(check: u8) -> Self {
        Self {
            entries: RwLock::new(Arc::new(Vec::new())),
            version: AtomicU64::new(1),
            check: u32::from(check) << INDEX_BITS,
            registrars: Mutex::default(),
        }
    }

    /// Registers a range with all attached registrars, then returns its new key, by which peers access
    /// it. If a registrar refuses the range during its attachment, that [`Self::attach`] fails instead of
    /// this call. Cost: that of the registrars; key lookups do not wait for them.
    ///
    /// # Errors
    /// [`ExportError`]: no key is left, or a registrar refused the range after its attachment was
    /// complete. The table is then unchanged. Registrars that accepted the range keep it, and the next
    /// call registers its own range at the same index.
    pub fn add(&self, export: RegisteredRegion) -> Result<RegionKey, ExportError> {
        self.add_entry(None, export)
    }

    /// Registers a range like `Self::add`, but as entry `index`. The caller ensures that the entry is
    /// free: another range there would be replaced. A successor process that takes memory over thereby
    /// gives each range the same key.
    ///
    /// # Errors
    /// [`ExportError`]: `index` is 2^20 or above, or a registrar refused the range after its attachment
    /// was complete. The table is then unchanged.
    pub fn add_at(&self, index: u32, export: RegisteredRegion) -> Result<RegionKey, ExportError> {
        self.add_entry(Some(index), export)
    }

    fn add_entry(
        &self,
        index: Option<u32>,
        export: RegisteredRegion,
    ) -> Result<RegionKey, ExportError> {
        let mut registrars = self.registrars();
        registrars.retain(|attached| attached.registrar.strong_count() > 0);
        let index = index.unwrap_or(self.entries().len() as u32);
        if index >= 1 << INDEX_BITS {
            let limit = 1 << INDEX_BITS;
            return Err(ExportError::Full { limit });
        }
        let key = self.key(index, &export);
        for attached in &mut *registrars {
            let Some(registrar) = attached.registrar.upgrade() else {
                continue;
            };
            match register(&*registrar, index, key, &export) {
                Err(refused) if !attached.ready => {
                    attached.failed.get_or_insert(refused);
                }
                registered => registered?,
            }
        }
        let mut guard = match self.entries.write() {
            Ok(guard) => guard,
            Err(poisoned) => poisoned.into_inner(),
        };
        let entries = Arc::make_mut(&mut guard);
        if entries.len() <= index as usize {
            entries.resize(index as usize + 1, None);
        }
        entries[index as usize] = Some(export);
        // SYNC: exports. Pairs with the Acquire load in `RegionTableView::refresh`.
        self.version.fetch_add(1, Ordering::Release);
        Ok(key)
    }

    /// Attaches a registrar: registers all present entries with it, and later entries for as long as it
    /// lives. Entries that [`Self::add`] adds meanwhile are registered with it by the adding thread. If
    /// the registrar refuses one of those, the entry is still added, and this call fails.
    ///
    /// # Errors
    /// [`ExportError::Refused`]; the registrar is then detached and receives no more entries.
    pub fn attach(&self, registrar: &Arc<dyn Registrar>) -> Result<(), ExportError> {
        let (weak, entries) = {
            let mut registrars = self.registrars();
            let weak = Arc::downgrade(registrar);
            registrars.push(Attached {
                registrar: Weak::clone(&weak),
                ready: false,
                failed: None,
            });
            // `add` holds the lock from its index to its entry: an entry is either in this list, or its `add` comes
            // later and meets the registrar.
            (weak, self.entries())
        };
        let known = |(index, export): (u32, &Option<RegisteredRegion>)| {
            let export = export.as_ref()?;
            Some((index, self.key(index, export), export.clone()))
        };
        let entries: Vec<_> = (0u32..).zip(&*entries).filter_map(known).collect();
        let registered = registrar.register_all(&entries);
        let mut registrars = self.registrars();
        let is_own = |other: &Attached| other.registrar.ptr_eq(&weak);
        let own = registrars.iter_mut().find(|other| is_own(other));
        let failed = own.and_then(|own| {
            own.ready = true;
            own.failed.take()
        });
        let registered = registered.and(failed.map_or(Ok(()), Err));
        if registered.is_err() {
            registrars.retain(|other| !is_own(other));
        }
        registered
    }

    /// Returns the table index in a region key, its low 20 bits, for any value of its check bits.
    pub const fn index_of(key: RegionKey) -> u32 {
        key.0 & ((1 << INDEX_BITS) - 1)
    }

    fn key(&self, index: u32, export: &RegisteredRegion) -> RegionKey {
        RegionKey(u32::from(export.memory) << MEMORY_SHIFT | self.check | index)
    }

    fn entries(&self) -> Arc<Vec<Option<RegisteredRegion>>> {
        let guard = match self.entries.read() {
            Ok(guard) => guard,
            Err(poisoned) => poisoned.into_inner(),
        };
        Arc::clone(&guard)
    }

    fn registrars(&self) -> MutexGuard<'_, Vec<Attached>> {
        match self.registrars.lock() {
            Ok(guard) => guard,
            Err(poisoned) => poisoned.into_inner(),
        }
    }

    /// Returns the check bits (8 bits) that all keys of this table contain. Clients over shared memory
    /// compare them, as they have no table.
    pub const fn check_bits(&self) -> u8 {
        (self.check >> INDEX_BITS) as u8
    }

    /// Returns the check bits (8 bits) in a region key, as a plain number.
    pub const fn check_of(key: RegionKey) -> u8 {
        (key.0 >> INDEX_BITS) as u8
    }

    /// Returns the number of the server memory in a region key (0 public, 1 counters). Clients over
    /// shared memory map each memory completely and find the bytes by it.
    pub const fn memory_of(key: RegionKey) -> u8 {
        (key.0 >> MEMORY_SHIFT) as u8
    }

    /// Creates a cached view of the table for one thread. The view is empty until its first check, which
    /// takes the table's entries over.
    pub fn view(self: &Arc<Self>) -> RegionTableView {
        RegionTableView {
            exports: Arc::clone(self),
            entries: Arc::new(Vec::new()),
            version: 0,
        }
    }
}

/// One thread's cached copy of the region table, refreshed by each check. A check takes no lock unless
/// the table changed since the last one.
#[derive(Debug, Clone)]
pub struct RegionTableView {
    exports: Arc<RegionTable>,
    entries: Arc<Vec<Option<RegisteredRegion>>>,
    version: u64,
}

impl RegionTableView {
    /// Checks that the bytes `[addr, addr + len)` are inside the region of `key` and that `addr` is a
    /// multiple of 8. The region's access flags must allow `want`. Returns the region; `addr` is the byte
    /// offset in its memory.
    ///
    /// # Errors
    /// The check that failed. Always `NoRight` for a write to a valid key.
    #[inline]
    pub fn check(
        &mut self,
        key: RegionKey,
        addr: u64,
        len: u64,
        want: AccessFlags,
    ) -> Result<&RegisteredRegion, AccessDenied> {
        self.refresh();
        let export = self.find(key, want)?;
        export.holds(addr, len)?;
        Ok(export)
    }

    /// Starts the access checks of one list of reads. All use the table as it is now.
    #[inline]
    pub fn reads(&mut self) -> ReadChecks<'_> {
        self.refresh();
        ReadChecks {
            view: self,
            last: None,
        }
    }

    fn find(&self, key: RegionKey, want: AccessFlags) -> Result<&RegisteredRegion, AccessDenied> {
        let index = RegionTable::index_of(key);
        let Some(Some(export)) = self.entries.get(index as usize) else {
            return Err(AccessDenied::UnknownKey);
        };
        if key != self.exports.key(index, export) {
            return Err(AccessDenied::OldKey);
        }
        let allowed = match want {
            AccessFlags::Read => matches!(export.rights, AccessFlags::Read | AccessFlags::Atomic),
            AccessFlags::Write => false,
            AccessFlags::Atomic => matches!(export.rights, AccessFlags::Atomic),
        };
        if !allowed {
            return Err(AccessDenied::NoRight);
        }
        Ok(export)
    }

    #[inline]
    fn refresh(&mut self) {
        // SYNC: exports. Pairs with the Release in `RegionTable::add`.
        let version = self.exports.version.load(Ordering::Acquire);
        if version != self.version {
            self.entries = self.exports.entries();
            self.version = version;
        }
    }
}

/// Access checks for one list of reads against the region table, made by `RegionTableView::reads`. It
/// caches the last key, so consecutive reads of one region look the key up once.
#[derive(Debug)]
pub struct ReadChecks<'a> {
    view: &'a RegionTableView,
    last: Option<(RegionKey, &'a RegisteredRegion)>,
}

impl<'a> ReadChecks<'a> {
    /// Checks that the bytes `[addr, addr + len)` are inside the region of `key`, that `addr` is a
    /// multiple of 8, and that the region may be read. Returns the region; `addr` is the byte offset in
    /// its memory.
    ///
    /// # Errors
    /// The check that failed.
    #[inline]
    pub fn check(
        &mut self,
        key: RegionKey,
        addr: u64,
        len: u64,
    ) -> Result<&'a RegisteredRegion, AccessDenied> {
        let export = match self.last {
            Some((last, export)) if last == key => export,
            _ => {
                let export = self.view.find(key, AccessFlags::Read)?;
                self.last = Some((key, export));
                export
            }
        };
        export.holds(addr, len)?;
        Ok(export)
    }
}

fn register(
    registrar: &dyn Registrar,
    index: u32,
    key: RegionKey,
    export: &RegisteredRegion,
) -> Result<(), ExportError> {
    let registered = registrar.register(index, key, export);
    registered.map_err(|source| export.refused(index, source))
}

/// A server's public memory as a client on the same host has it mapped, made by `Mapping::look`. A caller
/// that validates its reads can load from it without a list of reads. For keys of public memory the
/// checks are those of the lane's own reads.
#[derive(Debug, Clone, Copy)]
pub struct Mapped<'a> {
    memory: Words<'a>,
    /// Check bits of the server's keys, as a whole word: a byte would be copied together with its
    /// padding, in two overlapping stores. A later load of both would wait until both stores are done.
    check: u64,
}

impl<'a> Mapped<'a> {
    /// Wraps the window of the complete public memory. `check` are the check bits of the server's region
    /// keys as a plain number: `Self::words` refuses keys with others.
    #[inline]
    pub(crate) const fn new(memory: Words<'a>, check: u64) -> Self {
        Self { memory, check }
    }

    /// Returns the window that a read of `len` bytes at byte address `addr` by `key` would copy. `None`
    /// if the lane's own read would be refused (wrong check bits, outside the memory, or misaligned):
    /// that read then gives the cause. Also `None` for a key of the counters, which the lane's own read
    /// accepts.
    #[inline]
    pub fn words(&self, key: RegionKey, addr: u64, len: usize) -> Option<Words<'a>> {
        let known = RegionTable::memory_of(key) == PUBLIC
            && u64::from(RegionTable::check_of(key)) == self.check;
        if !known {
            return None;
        }
        self.memory.get(usize::try_from(addr).ok()?, len)
    }
}

#[cfg(test)]
mod tests;
