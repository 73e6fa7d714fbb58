//! A port's registrations of a process's memory, made once: a server's registered ranges with the
//! directory of their keys, and a client's protection domain.
//!
//! A server has one [`Domain`] for each port and tenant: queue pairs of one tenant cannot reach
//! regions of another, whatever keys they guess. Ranges stay registered as long as the domain lives: a
//! READ of a deregistered range would break its reader's lane.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use super::device::Device;
use super::error::VerbsError;
use super::memory::{Access, MemoryRegion, ProtectionDomain};
use super::open_port::OpenPort;
use super::path::PairSettings;
use super::reaper::Reaper;
use super::scatter::Buffers;
use super::send::memory;
use tidewater_lanes::fabric::{
    AccessFlags, ExportError, RegionTable, RegisteredRegion, Registrar, RegistrarError,
};
use tidewater_protocol::ids::RegionKey;
use tidewater_protocol::layout::directory::{KEY_CELL_BYTES, KeyCell, key_cell_at};
use tidewater_protocol::limits::VERBS_REGIONS_MAX;
use tidewater_protocol::wire::control::{Remote, VERBS_DIRECTORY_CELL_BYTES};
use tidewater_runtime::mem::publish::publish;
use tidewater_runtime::mem::{Buffer, Region};
use tidewater_runtime::sync::{Arc, AtomicUsize, Ordering};

/// Bytes from which a chunk of adjacent ranges is registered apart from the next, so that threads share the work.
const CHUNK_BYTES: u64 = 1 << 30;
/// Threads that register memory at once: more compete for the kernel's lock of the address space.
const REGISTER_THREADS_MAX: usize = 8;

const _: () = assert!(VERBS_DIRECTORY_CELL_BYTES == KEY_CELL_BYTES as u64);

/// A server's registrations with the device of one port, for one tenant.
#[derive(Debug)]
pub struct Domain {
    open_port: Arc<OpenPort>,
    pd: Arc<ProtectionDomain>,
    registered: Mutex<Vec<Arc<MemoryRegion>>>,
    cells: Arc<Region>,
    directory: Arc<MemoryRegion>,
    salt: u64,
    windows: bool,
    settings: PairSettings,
    reaper: Reaper,
}

impl Domain {
    /// Registers all present ranges; later ones are registered before their keys are published. Cost:
    /// the pinning of all that memory, in chunks of a GiB by several threads.
    ///
    /// # Errors
    /// [`VerbsError`]: memory is limited, or the device does not support so many regions.
    pub fn new(
        open_port: &Arc<OpenPort>,
        exports: &Arc<RegionTable>,
        settings: impl Into<PairSettings>,
    ) -> Result<Arc<Self>, VerbsError> {
        let windows = open_port.device().limits().windows;
        Self::with_windows(open_port, exports, settings, windows)
    }

    /// Creates the domain with or without memory windows.
    pub(super) fn with_windows(
        open_port: &Arc<OpenPort>,
        exports: &Arc<RegionTable>,
        settings: impl Into<PairSettings>,
        windows: bool,
    ) -> Result<Arc<Self>, VerbsError> {
        let device = open_port.device();
        let pd = ProtectionDomain::new(device)?;
        let random = |_| device.failed("getrandom", rustix::io::Errno::IO);
        let salt = getrandom::u64().map_err(random)?;
        let bytes = VERBS_REGIONS_MAX * KEY_CELL_BYTES;
        let (cells, directory) = memory(&pd, bytes, Access::REMOTE_READ)?;
        let domain = Arc::new(Self {
            open_port: Arc::clone(open_port),
            pd,
            registered: Mutex::default(),
            cells,
            directory,
            salt,
            windows,
            settings: settings.into(),
            reaper: Reaper::new(),
        });
        let registrar = Arc::clone(&domain) as Arc<dyn Registrar>;
        exports.attach(&registrar).map_err(|e| said(device, e))?;
        Ok(domain)
    }

    /// Returns the port of the domain.
    pub const fn open_port(&self) -> &Arc<OpenPort> {
        &self.open_port
    }

    pub(super) const fn pd(&self) -> &Arc<ProtectionDomain> {
        &self.pd
    }

    /// Settings of the queue pairs of the server's lane ends.
    pub(super) const fn settings(&self) -> &PairSettings {
        &self.settings
    }

    /// Destroys the lanes of the domain.
    pub(super) const fn reaper(&self) -> &Reaper {
        &self.reaper
    }

    /// Whether inboxes are opened by windows.
    pub(super) const fn windows(&self) -> bool {
        self.windows
    }

    /// Address of the key directory, and the salt of its cells.
    pub(super) fn directory(&self) -> (Remote, u64) {
        let remote = Remote {
            key: RegionKey(self.directory.rkey()),
            address: self.directory.iova(),
            len: self.directory.len() as u64,
        };
        (remote, self.salt)
    }

    fn try_register(
        &self,
        index: u32,
        key: RegionKey,
        export: &RegisteredRegion,
    ) -> Result<(), VerbsError> {
        if self.pd.device().has_failed() {
            // No lane of this domain reads any more; lanes of the reopened device have another one.
            return Ok(());
        }
        let Some(access) = self.access(index, export)? else {
            return Ok(());
        };
        let range = export.start..export.start.saturating_add(export.len);
        let rkey = self.register_range(&export.region, range, access)?;
        self.publish(index, key, rkey);
        Ok(())
    }

    /// The access that the device gives to a range; `None` if it gives none.
    fn access(&self, index: u32, export: &RegisteredRegion) -> Result<Option<Access>, VerbsError> {
        let device = self.pd.device();
        let limit = |what, asked, granted| VerbsError::Limit {
            device: Arc::clone(device.name()),
            what,
            asked,
            granted,
        };
        if index as usize >= VERBS_REGIONS_MAX {
            let cells = VERBS_REGIONS_MAX as u64;
            return Err(limit(
                "cells of the key directory",
                u64::from(index) + 1,
                cells,
            ));
        }
        let most = device.limits().region_bytes;
        if export.len > most {
            return Err(limit("bytes of a memory region", export.len, most));
        }
        Ok(Some(match export.rights {
            // Readers rely on no order inside a READ; of two READs, the second starts after the first
            // has completed.
            AccessFlags::Read => Access::REMOTE_READ | Access::RELAXED_ORDERING,
            AccessFlags::Atomic if self.pd.device().limits().atomics => {
                Access::REMOTE_READ | Access::REMOTE_ATOMIC | Access::LOCAL_WRITE
            }
            AccessFlags::Atomic => Access::REMOTE_READ,
            // No peer may write an export: each inbox is registered for its own lane.
            AccessFlags::Write => return Ok(None),
        }))
    }

    /// Registers a range of the server's memory; returns its rkey.
    fn register_range(
        &self,
        region: &Arc<Region>,
        range: Range<u64>,
        access: Access,
    ) -> Result<u32, VerbsError> {
        // Peers name its bytes by the same numbers as on every other carrier.
        let (start, bytes) = (range.start, range.start as usize..range.end as usize);
        let registered = MemoryRegion::register(&self.pd, region, bytes, start, access)?;
        let rkey = registered.rkey();
        let mut all = self
            .registered
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        all.push(registered);
        Ok(rkey)
    }

    /// Writes a key's cell of the directory.
    fn publish(&self, index: u32, key: RegionKey, rkey: u32) {
        let cell = KeyCell { key, rkey }.to_bytes(self.salt, index);
        if let Ok(words) = self.cells.words_mut(key_cell_at(index), KEY_CELL_BYTES) {
            // Published before any peer receives the key, or, for those that it may know, before its lane.
            publish(words, 0, &cell);
        }
    }

    /// Registers a chunk as one region, and publishes the keys of its entries.
    fn register_chunk(
        &self,
        entries: &[(u32, RegionKey, RegisteredRegion)],
        chunk: &Chunk,
    ) -> Result<(), ExportError> {
        let (first, _, export) = &entries[chunk.entries[0]];
        let refused = |e: VerbsError| export.refused(*first, e.into());
        let Some(access) = self.access(*first, export).map_err(refused)? else {
            return Ok(());
        };
        let range = chunk.range.clone();
        let rkey = self
            .register_range(&export.region, range, access)
            .map_err(refused)?;
        for &n in &chunk.entries {
            let (index, key, export) = &entries[n];
            self.access(*index, export)
                .map_err(|e| export.refused(*index, e.into()))?;
            self.publish(*index, *key, rkey);
        }
        Ok(())
    }
}

/// The error of a range that the device refused.
#[cold]
fn said(device: &Device, e: ExportError) -> VerbsError {
    let unknown = || device.failed("ibv_reg_mr", rustix::io::Errno::IO);
    match e {
        ExportError::Refused { source, .. } => match source.downcast::<VerbsError>() {
            Ok(said) => *said,
            Err(_) => unknown(),
        },
        _ => unknown(),
    }
}

impl Registrar for Domain {
    fn register(
        &self,
        index: u32,
        key: RegionKey,
        export: &RegisteredRegion,
    ) -> Result<(), RegistrarError> {
        Ok(self.try_register(index, key, export)?)
    }

    /// Adjacent ranges are registered as one region of the device, and several regions at a time: most of the time
    /// goes into pinning pages, which threads do side by side.
    fn register_all(
        &self,
        entries: &[(u32, RegionKey, RegisteredRegion)],
    ) -> Result<(), ExportError> {
        let all = chunks(entries, self.pd.device().limits().region_bytes);
        let next = AtomicUsize::new(0);
        let failed = Mutex::new(None);
        let work = || {
            // SYNC: none: the counter hands out chunks, and the end of the scope orders the rest.
            while let Some(chunk) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
                if let Err(e) = self.register_chunk(entries, chunk) {
                    failed
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .get_or_insert(e);
                    return;
                }
            }
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = cores.min(REGISTER_THREADS_MAX).min(all.len());
        std::thread::scope(|scope| {
            for _ in 1..threads {
                let thread = std::thread::Builder::new().name("tw-register".into());
                // Without more threads this one does all of it.
                if thread.spawn_scoped(scope, work).is_err() {
                    break;
                }
            }
            work();
        });
        failed
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner)
            .map_or(Ok(()), Err)
    }
}

/// Ranges that are registered as one region: adjacent, of one memory, with the same access.
#[derive(Debug, PartialEq, Eq)]
struct Chunk {
    range: Range<u64>,
    /// Positions in the list of entries.
    entries: Vec<usize>,
}

/// Groups ranges into chunks. A chunk ends where the next range is not adjacent, when it has
/// [`CHUNK_BYTES`], or before it would be larger than `most`.
fn chunks(entries: &[(u32, RegionKey, RegisteredRegion)], most: u64) -> Vec<Chunk> {
    let of = |n: usize| &entries[n].2;
    let group = |n: usize| (Arc::as_ptr(&of(n).region) as usize, of(n).rights as u8);
    let mut order: Vec<usize> = (0..entries.len()).collect();
    order.sort_by_key(|&n| (group(n), of(n).start));
    let mut all: Vec<Chunk> = Vec::new();
    for n in order {
        let range = of(n).start..of(n).start.saturating_add(of(n).len);
        let last = all.last_mut().filter(|chunk| {
            let bytes = chunk.range.end - chunk.range.start;
            let adjacent = chunk.range.end == range.start && group(chunk.entries[0]) == group(n);
            adjacent && bytes < CHUNK_BYTES && bytes.saturating_add(of(n).len) <= most
        });
        match last {
            Some(chunk) => {
                chunk.range.end = range.end;
                chunk.entries.push(n);
            }
            None => all.push(Chunk {
                range,
                entries: vec![n],
            }),
        }
    }
    all
}

/// A client's registrations with one port: one for all its lanes there.
#[derive(Debug)]
pub struct ClientDomain {
    open_port: Arc<OpenPort>,
    pd: Arc<ProtectionDomain>,
    settings: PairSettings,
    buffers: Buffers,
}

impl ClientDomain {
    /// Creates a domain without registrations.
    ///
    /// # Errors
    /// [`VerbsError::Call`].
    pub fn new(
        open_port: &Arc<OpenPort>,
        settings: impl Into<PairSettings>,
    ) -> Result<Arc<Self>, VerbsError> {
        Ok(Arc::new(Self {
            settings: settings.into(),
            open_port: Arc::clone(open_port),
            pd: ProtectionDomain::new(open_port.device())?,
            buffers: Buffers::default(),
        }))
    }

    /// Returns the port of the domain.
    pub const fn open_port(&self) -> &Arc<OpenPort> {
        &self.open_port
    }

    /// Registers a program's buffer: from now on the device writes reads of this domain's lanes into
    /// it. Cost: a system call, and the pages, which are pinned.
    ///
    /// # Errors
    /// [`VerbsError::Memlock`], [`VerbsError::Call`]; the buffer is then unchanged.
    pub fn register(&self, buffer: &mut Buffer) -> Result<(), VerbsError> {
        self.buffers.register(&self.pd, buffer)
    }

    pub(super) const fn buffers(&self) -> &Buffers {
        &self.buffers
    }

    /// Settings of the queue pairs of the client's lane ends.
    pub(super) const fn settings(&self) -> &PairSettings {
        &self.settings
    }

    pub(super) const fn pd(&self) -> &Arc<ProtectionDomain> {
        &self.pd
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjacent_ranges_are_one_region_up_to_a_gibibyte() {
        const GIB: u64 = 1 << 30;
        let (one, two) = (Region::anonymous(64), Region::anonymous(64));
        let regions = [one, two].map(|region| Arc::new(region.unwrap()));
        let entry = |index: u32, memory: usize, start: u64, len: u64, rights| {
            let region = Arc::clone(&regions[memory]);
            let export = RegisteredRegion {
                region,
                start,
                len,
                rights,
                memory: memory as u8,
            };
            (index, RegionKey(index), export)
        };
        let half = GIB / 2;
        use AccessFlags::{Atomic, Read};
        // In no order: three and a half GiB, a gap, other memory, other access.
        let entries = [
            entry(0, 0, 3 * half, half, Read),
            entry(1, 0, 0, half, Read),
            entry(2, 0, half, half, Read),
            entry(3, 0, 2 * half, half, Read),
            entry(4, 0, 4 * half, 3 * half, Read),
            entry(5, 0, 8 * half, 64, Read),
            entry(6, 1, 8 * half + 64, 64, Read),
            entry(7, 0, 8 * half + 64, 64, Atomic),
        ];
        let made = |most| {
            let mut made: Vec<_> = chunks(&entries, most)
                .into_iter()
                .map(|c| (c.entries, c.range))
                .collect();
            made.sort_by(|a, b| a.0.cmp(&b.0));
            made
        };
        let expected = [
            (vec![1, 2], 0..GIB),
            (vec![3, 0], GIB..2 * GIB),
            (vec![4], 2 * GIB..7 * half),
            (vec![5], 8 * half..8 * half + 64),
            (vec![6], 8 * half + 64..8 * half + 128),
            (vec![7], 8 * half + 64..8 * half + 128),
        ];
        assert_eq!(made(u64::MAX), expected);
        // A device with small regions: no chunk is larger, but for a range that is so itself, which is refused later.
        let small = made(half);
        assert_eq!(small.len(), entries.len());
        assert!(small.iter().all(|(entries, _)| entries.len() == 1));
    }
}
