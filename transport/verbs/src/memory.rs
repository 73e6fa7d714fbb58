//! Memory that a device may access: protection domains, registered regions, windows.
//!
//! Only a [`Region`] can be registered. Its bytes are accessed through atomics alone, so a NIC that
//! writes them breaks no rule of the language. It stays mapped until the registration is gone. A
//! scatter or gather element ([`Sge`]) is numbers only. The device checks it against its registrations
//! on use, so a stale one is an error and never a wild access.

use std::fmt;
use std::ops::{BitOr, Range};
use std::ptr::NonNull;

use rustix::io::Errno;

use super::device::Device;
use super::error::VerbsError;
use super::ffi::{self, bits};
use tidewater_runtime::mem::{Region, page_bytes};
use tidewater_runtime::sync::Arc;

/// Scope that queue pairs and memory must share to reach each other.
///
/// # Invariants
/// - `pd` is not deallocated; all that is made with it holds an `Arc` of this.
#[doc(alias = "ibv_pd")]
pub struct ProtectionDomain {
    pd: NonNull<ffi::ibv_pd>,
    device: Arc<Device>,
}

// SAFETY: libibverbs is thread-safe, and only `drop`, with the last reference, frees it.
unsafe impl Send for ProtectionDomain {}
// SAFETY: as above.
unsafe impl Sync for ProtectionDomain {}

impl ProtectionDomain {
    /// Allocates a protection domain on the device.
    ///
    /// # Errors
    /// [`VerbsError::Call`].
    #[doc(alias = "ibv_alloc_pd")]
    pub fn new(device: &Arc<Device>) -> Result<Arc<Self>, VerbsError> {
        // SAFETY: the context is open (invariant of Device).
        let pd = unsafe { ffi::alloc_pd(device.context()) }
            .map_err(|e| device.failed("ibv_alloc_pd", e))?;
        Ok(Arc::new(Self {
            pd,
            device: Arc::clone(device),
        }))
    }

    /// Returns the device of the domain.
    pub const fn device(&self) -> &Arc<Device> {
        &self.device
    }

    pub(super) const fn raw(&self) -> NonNull<ffi::ibv_pd> {
        self.pd
    }
}

impl Drop for ProtectionDomain {
    fn drop(&mut self) {
        // SAFETY: not deallocated (invariant), and the last reference.
        if let Err(errno) = unsafe { ffi::dealloc_pd(self.pd) } {
            self.device.leaked("ibv_dealloc_pd", errno);
        }
    }
}

impl fmt::Debug for ProtectionDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ProtectionDomain")
            .field(&self.device)
            .finish()
    }
}

/// Access flags of a registered region, or of a queue pair's peer. Reading through the device of this
/// end is always allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[doc(alias = "ibv_access_flags")]
pub struct Access(u32);

impl Access {
    /// Local reads only; no remote access.
    pub const NONE: Self = Self(0);
    /// The device may write it for this end: read destinations, receives, inboxes.
    pub const LOCAL_WRITE: Self = Self(bits::LOCAL_WRITE);
    /// Peers may write it; needs `LOCAL_WRITE`.
    pub const REMOTE_WRITE: Self = Self(bits::REMOTE_WRITE);
    /// Peers may read it by READs.
    pub const REMOTE_READ: Self = Self(bits::REMOTE_READ);
    /// Peers may execute atomics in it; needs `LOCAL_WRITE`.
    pub const REMOTE_ATOMIC: Self = Self(bits::REMOTE_ATOMIC);
    /// Windows may be bound to it; needs `LOCAL_WRITE` for windows that are written.
    pub const WINDOWS: Self = Self(bits::MW_BIND);
    /// Writes to it may overtake each other on their way to memory. For self-validating payload only,
    /// never for a word that announces "everything before me is there". A device without support
    /// ignores it.
    pub const RELAXED_ORDERING: Self = Self(bits::RELAXED);

    /// Whether all flags of `other` are set.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    pub(super) const fn bits(self) -> u32 {
        self.0
    }
}

impl BitOr for Access {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// A piece of this end's registered memory: one element of a scatter or gather list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[doc(alias = "ibv_sge")]
pub struct Sge {
    pub(super) lkey: u32,
    pub(super) address: u64,
    pub(super) bytes: u32,
}

/// Start of a READ, a WRITE or an atomic in a peer's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    /// Key of the peer's region or window.
    pub rkey: u32,
    /// Address, in the numbers of the region's registration.
    pub address: u64,
}

/// A registered range of a [`Region`]. Shared by `Arc` with the windows bound to it; deregistered when
/// the last is gone, and then the memory is released.
///
/// # Invariants
/// - `mr` is registered over `range` of `region`, which it keeps mapped.
#[doc(alias = "ibv_mr")]
pub struct MemoryRegion {
    mr: NonNull<ffi::ibv_mr>,
    lkey: u32,
    rkey: u32,
    iova: u64,
    bytes: usize,
    access: Access,
    region: Option<Arc<Region>>,
    pd: Arc<ProtectionDomain>,
}

// SAFETY: libibverbs is thread-safe; keys and bounds never change; `Region` is Send and Sync, and
// only `drop`, with the last reference, deregisters.
unsafe impl Send for MemoryRegion {}
// SAFETY: as above.
unsafe impl Sync for MemoryRegion {}

impl MemoryRegion {
    /// Registers `range` of a region; peers, and this end's elements, address its first byte as `iova`.
    /// The pages are made present and pinned. Private memory is not in processes that are forked later (all of
    /// the region's, not only the range). Cost: a system call and the pages; by published figures some
    /// 0.1 s for each GiB of small pages, less for huge ones.
    ///
    /// # Errors
    /// - [`VerbsError::Bounds`] when the range is empty or not inside the region, when the region
    ///   cannot be written but `access` demands it, or when `iova` and the range's first byte differ in
    ///   their offsets in pages (the kernel refuses that).
    /// - [`VerbsError::Memlock`] when locked memory is limited.
    /// - [`VerbsError::Call`].
    #[doc(alias = "ibv_reg_mr_iova")]
    pub fn register(
        pd: &Arc<ProtectionDomain>,
        region: &Arc<Region>,
        range: Range<usize>,
        iova: u64,
        access: Access,
    ) -> Result<Arc<Self>, VerbsError> {
        let bytes = checked_range(region, &range, iova, access)?;
        let excluded = region.exclude_from_children();
        excluded.map_err(|errno| pd.device().failed("madvise", errno))?;
        let address = region.base().wrapping_add(range.start);
        let register = |access: Access| {
            // SAFETY: the protection domain lives (invariant). The range is inside the mapping (checked
            // above), which outlives the registration: `drop` releases `region` after it. Its bytes are
            // accessed through atomics only (invariant of Region).
            unsafe { ffi::reg_mr(pd.raw(), address, bytes, iova, access.bits()) }
        };
        let mut access = access;
        let mut made = register(access);
        if access.has(Access::RELAXED_ORDERING)
            && matches!(made, Err(Errno::INVAL | Errno::OPNOTSUPP))
        {
            access = access.without(Access::RELAXED_ORDERING);
            made = register(access);
        }
        let mr = made.map_err(|errno| refused(pd.device(), errno, bytes))?;
        // SAFETY: just registered; libibverbs filled its fields.
        let keys = unsafe { mr.as_ref() };
        Ok(Arc::new(Self {
            mr,
            lkey: keys.lkey,
            rkey: keys.rkey,
            iova,
            bytes,
            access,
            region: Some(Arc::clone(region)),
            pd: Arc::clone(pd),
        }))
    }

    /// Returns the key of the region for peers. Useless without an access flag of the region.
    pub const fn rkey(&self) -> u32 {
        self.rkey
    }

    /// Returns the address of its first byte, as peers name it.
    pub const fn iova(&self) -> u64 {
        self.iova
    }

    /// Returns the bytes of the region.
    pub const fn len(&self) -> usize {
        self.bytes
    }

    /// Whether it is empty (never: an empty range is not registered).
    pub const fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Whether writes to it may overtake each other: no flag or tail may lie in it.
    pub const fn is_relaxed(&self) -> bool {
        self.access.has(Access::RELAXED_ORDERING)
    }

    /// Returns the protection domain of the region.
    pub const fn domain(&self) -> &Arc<ProtectionDomain> {
        &self.pd
    }

    /// Returns `bytes` bytes from `at` on, for this end's scatter or gather list. Cost: a comparison.
    ///
    /// # Errors
    /// [`VerbsError::Bounds`].
    #[inline]
    pub fn sge(&self, at: usize, bytes: usize) -> Result<Sge, VerbsError> {
        if !(at <= self.bytes && bytes <= self.bytes - at) || bytes > u32::MAX as usize {
            return Err(self.bounds(at, bytes));
        }
        Ok(Sge {
            lkey: self.lkey,
            address: self.iova + at as u64,
            bytes: bytes as u32,
        })
    }

    /// Returns the address `at` bytes from its start, for a peer. The device checks on use that it is
    /// inside.
    pub const fn target(&self, at: usize) -> Target {
        Target {
            rkey: self.rkey,
            address: self.iova.wrapping_add(at as u64),
        }
    }

    pub(super) const fn raw(&self) -> NonNull<ffi::ibv_mr> {
        self.mr
    }

    #[cold]
    fn bounds(&self, at: usize, bytes: usize) -> VerbsError {
        VerbsError::Bounds {
            at: at as u64,
            len: bytes as u64,
            bytes: self.bytes as u64,
            why: "outside, or longer than a list element can be",
        }
    }
}

/// The range's bytes, if they can be registered.
fn checked_range(
    region: &Region,
    range: &Range<usize>,
    iova: u64,
    access: Access,
) -> Result<usize, VerbsError> {
    let why = if range.start >= range.end || range.end > region.len() {
        "empty or outside of the memory"
    } else if iova.checked_add((range.end - range.start) as u64).is_none() {
        "its addresses would wrap"
    } else if !iova
        .abs_diff(range.start as u64)
        .is_multiple_of(page_bytes() as u64)
    {
        "its address and its place in memory differ within their pages"
    } else if access.has(Access::LOCAL_WRITE) && !region.is_writable() {
        "the memory is mapped read-only"
    } else {
        return Ok(range.end - range.start);
    };
    Err(VerbsError::Bounds {
        at: range.start as u64,
        len: range.end.saturating_sub(range.start) as u64,
        bytes: region.len() as u64,
        why,
    })
}

/// Error of a refused registration; the usual cause is the limit of locked memory.
#[cold]
fn refused(device: &Device, errno: Errno, bytes: usize) -> VerbsError {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    match (errno, limit) {
        (Errno::NOMEM | Errno::PERM | Errno::AGAIN, Some(limit)) => VerbsError::Memlock {
            device: Arc::clone(device.name()),
            bytes,
            limit,
        },
        _ => device.failed("ibv_reg_mr", errno),
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        // SAFETY: registered (invariant), and the last reference: no window is bound to it.
        if let Err(errno) = unsafe { ffi::dereg_mr(self.mr) } {
            self.pd.device().leaked("ibv_dereg_mr", errno);
            // The device may still write there: the memory must stay.
            std::mem::forget(self.region.take());
        }
    }
}

impl fmt::Debug for MemoryRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryRegion")
            .field("rkey", &self.rkey)
            .field("iova", &self.iova)
            .field("bytes", &self.bytes)
            .field("access", &self.access)
            .finish_non_exhaustive()
    }
}

/// A window of type 2: opens part of a region to the peer of one queue pair. It has no effect until
/// [`QueuePair::bind_window`] takes it, and is destroyed before that queue pair.
///
/// rxe of Linux 6.1 checks keys and rights of windows, but not their bounds inside the region. A region
/// that is opened to a stranger has to end where the window does.
///
/// # Invariants
/// - `mw` is not deallocated, and the region it was bound to lives until it is.
///
/// [`QueuePair::bind_window`]: super::pair::QueuePair::bind_window
#[doc(alias = "ibv_mw")]
pub struct MemoryWindow {
    mw: NonNull<ffi::ibv_mw>,
    rkey: u32,
    bound: Option<Arc<MemoryRegion>>,
    pd: Arc<ProtectionDomain>,
}

// SAFETY: libibverbs is thread-safe, and the holder of `&mut` is alone.
unsafe impl Send for MemoryWindow {}
// SAFETY: as above; `&self` only reads numbers.
unsafe impl Sync for MemoryWindow {}

impl MemoryWindow {
    /// Allocates a window that is not bound.
    ///
    /// # Errors
    /// [`VerbsError::Call`], with EOPNOTSUPP where the device has none
    /// ([`DeviceLimits::windows`](super::device::DeviceLimits::windows)).
    #[doc(alias = "ibv_alloc_mw")]
    pub fn new(pd: &Arc<ProtectionDomain>) -> Result<Self, VerbsError> {
        // SAFETY: the protection domain lives (invariant).
        let mw = unsafe { ffi::alloc_mw(pd.raw()) }
            .map_err(|e| pd.device().failed("ibv_alloc_mw", e))?;
        // SAFETY: just allocated; the provider filled its fields.
        let rkey = unsafe { (*mw.as_ptr()).rkey };
        Ok(Self {
            mw,
            rkey,
            bound: None,
            pd: Arc::clone(pd),
        })
    }

    pub(super) const fn domain(&self) -> &Arc<ProtectionDomain> {
        &self.pd
    }

    /// Key after the next bind: its lowest byte counts binds.
    pub(super) const fn next_rkey(&self) -> u32 {
        self.rkey & !0xff | self.rkey.wrapping_add(1) & 0xff
    }

    /// Notes that it was bound: from now on it keeps `region` alive.
    pub(super) fn set_bound(&mut self, region: Arc<MemoryRegion>) {
        self.rkey = self.next_rkey();
        self.bound = Some(region);
    }

    pub(super) const fn raw(&self) -> NonNull<ffi::ibv_mw> {
        self.mw
    }
}

impl Drop for MemoryWindow {
    fn drop(&mut self) {
        // SAFETY: not deallocated (invariant), and owned.
        if let Err(errno) = unsafe { ffi::dealloc_mw(self.mw) } {
            self.pd.device().leaked("ibv_dealloc_mw", errno);
            std::mem::forget(self.bound.take());
        }
    }
}

impl fmt::Debug for MemoryWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryWindow")
            .field("rkey", &self.rkey)
            .field("bound", &self.bound)
            .finish_non_exhaustive()
    }
}
