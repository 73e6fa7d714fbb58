//! An adapter's registrations of a process's memory, made once: a server's registered ranges with the
//! directory of their keys, and a client's protection domain.
//!
//! A server has one [`Domain`] for each adapter and tenant: queue pairs of one tenant cannot reach
//! regions of another, whatever keys they guess. Ranges stay registered as long as the domain lives: a
//! READ of a deregistered range would break its reader's lane.

use std::sync::{Mutex, PoisonError};

use super::adapter::Adapter;
use super::device::Device;
use super::error::VerbsError;
use super::memory::{Access, MemoryRegion, ProtectionDomain};
use super::pair::RetryTimeout;
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
use tidewater_runtime::sync::Arc;

const _: () = assert!(VERBS_DIRECTORY_CELL_BYTES == KEY_CELL_BYTES as u64);

/// A server's registrations with one adapter, for one tenant.
#[derive(Debug)]
pub struct Domain {
    adapter: Arc<Adapter>,
    pd: Arc<ProtectionDomain>,
    registered: Mutex<Vec<Arc<MemoryRegion>>>,
    cells: Arc<Region>,
    directory: Arc<MemoryRegion>,
    salt: u64,
    windows: bool,
    patience: RetryTimeout,
}

impl Domain {
    /// Registers all present ranges; later ones are registered before their keys are published. Cost:
    /// the pinning of all that memory.
    ///
    /// # Errors
    /// [`VerbsError`]: memory is limited, or the device does not support so many regions.
    pub fn new(
        adapter: &Arc<Adapter>,
        exports: &Arc<RegionTable>,
        patience: RetryTimeout,
    ) -> Result<Arc<Self>, VerbsError> {
        let windows = adapter.device().limits().windows;
        Self::with_windows(adapter, exports, patience, windows)
    }

    /// Creates the domain with or without memory windows.
    pub(super) fn with_windows(
        adapter: &Arc<Adapter>,
        exports: &Arc<RegionTable>,
        patience: RetryTimeout,
        windows: bool,
    ) -> Result<Arc<Self>, VerbsError> {
        let device = adapter.device();
        let pd = ProtectionDomain::new(device)?;
        let random = |_| device.failed("getrandom", rustix::io::Errno::IO);
        let salt = getrandom::u64().map_err(random)?;
        let bytes = VERBS_REGIONS_MAX * KEY_CELL_BYTES;
        let (cells, directory) = memory(&pd, bytes, Access::REMOTE_READ)?;
        let domain = Arc::new(Self {
            adapter: Arc::clone(adapter),
            pd,
            registered: Mutex::default(),
            cells,
            directory,
            salt,
            windows,
            patience,
        });
        let registrar = Arc::clone(&domain) as Arc<dyn Registrar>;
        exports.attach(&registrar).map_err(|e| said(device, e))?;
        Ok(domain)
    }

    /// Returns the adapter of the domain.
    pub const fn adapter(&self) -> &Arc<Adapter> {
        &self.adapter
    }

    pub(super) const fn pd(&self) -> &Arc<ProtectionDomain> {
        &self.pd
    }

    /// Retry timeout of the server's lane ends.
    pub(super) const fn patience(&self) -> RetryTimeout {
        self.patience
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
        if index as usize >= VERBS_REGIONS_MAX {
            return Err(VerbsError::Limit {
                device: Arc::clone(self.pd.device().name()),
                what: "cells of the key directory",
                asked: u64::from(index) + 1,
                granted: VERBS_REGIONS_MAX as u64,
            });
        }
        let access = match export.rights {
            // Readers rely on no order inside a READ; of two READs, the second starts after the first
            // has completed.
            AccessFlags::Read => Access::REMOTE_READ | Access::RELAXED_ORDERING,
            AccessFlags::Atomic if self.pd.device().limits().atomics => {
                Access::REMOTE_READ | Access::REMOTE_ATOMIC | Access::LOCAL_WRITE
            }
            AccessFlags::Atomic => Access::REMOTE_READ,
            // No peer may write an export: each inbox is registered for its own lane.
            AccessFlags::Write => return Ok(()),
        };
        let range = export.start as usize..export.start.saturating_add(export.len) as usize;
        // Peers name its bytes by the same numbers as on every other carrier.
        let region = MemoryRegion::register(&self.pd, &export.region, range, export.start, access)?;
        let rkey = region.rkey();
        let mut registered = self
            .registered
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        registered.push(region);
        drop(registered);
        let cell = KeyCell { key, rkey }.to_bytes(self.salt, index);
        if let Ok(words) = self.cells.words_mut(key_cell_at(index), KEY_CELL_BYTES) {
            // Published before any peer receives the key.
            publish(words, 0, &cell);
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
}

/// A client's registrations with one adapter: one for all its lanes there.
#[derive(Debug)]
pub struct ClientDomain {
    adapter: Arc<Adapter>,
    pd: Arc<ProtectionDomain>,
    patience: RetryTimeout,
    buffers: Buffers,
}

impl ClientDomain {
    /// Creates a domain without registrations.
    ///
    /// # Errors
    /// [`VerbsError::Call`].
    pub fn new(adapter: &Arc<Adapter>, patience: RetryTimeout) -> Result<Arc<Self>, VerbsError> {
        Ok(Arc::new(Self {
            patience,
            adapter: Arc::clone(adapter),
            pd: ProtectionDomain::new(adapter.device())?,
            buffers: Buffers::default(),
        }))
    }

    /// Returns the adapter of the domain.
    pub const fn adapter(&self) -> &Arc<Adapter> {
        &self.adapter
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

    /// Retry timeout of the client's lane ends.
    pub(super) const fn patience(&self) -> RetryTimeout {
        self.patience
    }

    pub(super) const fn pd(&self) -> &Arc<ProtectionDomain> {
        &self.pd
    }
}
