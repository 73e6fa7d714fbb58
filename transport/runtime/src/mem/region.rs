//! A mapped piece of memory that may be shared with other processes and with a NIC.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use rustix::mm::MlockFlags;

use super::pages::{Pages, huge_page_bytes, page_bytes, take_all};
use super::shared::{Words, WordsMut, prefetch_at};
use crate::sync::AtomicU64;
use tidewater_protocol::layout::LINE_BYTES;
use tidewater_protocol::mutants::{self, Mutant};

/// Failure to allocate, map, seal, lock or access a memory region.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemError {
    /// A system call failed.
    #[error("{call} of {bytes} bytes failed: {source}; {remedy}")]
    Os {
        /// Name of the system call.
        call: &'static str,
        /// Bytes requested of the call.
        bytes: usize,
        /// Error of the operating system.
        source: io::Error,
        /// Remedy, for the message.
        remedy: &'static str,
    },
    /// An access that is not inside the region, not aligned, or not allowed.
    #[error("access of {len} bytes at {at} in a region of {bytes} bytes ({why})")]
    Bounds {
        /// Byte offset of the access.
        at: usize,
        /// Bytes of the access.
        len: usize,
        /// Bytes of the region.
        bytes: usize,
        /// Reason: outside, misaligned, or read-only.
        why: &'static str,
    },
    /// The kernel refused to lock memory, in practice because of the limit of locked memory. The limit holds for all
    /// locked memory of the process together, so it may be above the size of this request.
    #[error(
        "cannot lock {bytes} bytes in memory: the limit is {limit} bytes; raise it with \
         `ulimit -l unlimited` (or LimitMEMLOCK=infinity, or the container's --ulimit memlock=-1), \
         or do without --mlock"
    )]
    Memlock {
        /// Bytes of the request that failed.
        bytes: usize,
        /// The soft limit in bytes; `u64::MAX`: none.
        limit: u64,
    },
}

/// A memory mapping, anonymous or of a memfd, that other processes and NICs may read and write at the
/// same time. Shared by `Arc`; unmapped when the last owner is dropped.
///
/// # Invariants
/// - `map` stays mapped, at one address, for the life of the value. It is never truncated under us (own
///   memfds are sealed against shrinking; memfds from a peer are accepted only if sealed so).
/// - Its length is a multiple of its page size where the pages are huge, so that it can be unmapped.
/// - Its bytes are touched only through [`Words`] and [`WordsMut`], or by the kernel. Those of a
///   [`Buffer`](super::Buffer), which hands out none of these, are touched through its slices.
#[derive(Debug)]
pub struct Region {
    map: MmapRaw,
    writable: bool,
    /// Whether other processes may map the same pages, so that a fork copies none.
    shared: bool,
    pages: Pages,
}

impl Region {
    /// Allocates `bytes` bytes of private zeroed memory (an anonymous mapping).
    ///
    /// # Errors
    /// [`MemError::Os`] when there is no memory.
    pub fn anonymous(bytes: usize) -> Result<Self, MemError> {
        let map = MmapOptions::new().len(bytes).map_anon().map_err(os(
            "mmap",
            bytes,
            "free memory, or ask for less",
        ))?;
        Ok(Self {
            map: MmapRaw::from(map),
            writable: true,
            shared: false,
            pages: Pages::Ordinary,
        })
    }

    /// Creates a memfd of `bytes` bytes, sealed against resizing, and maps it for writing. Returns the
    /// mapping, and the descriptor by which peers map the same memory. It is sparse: pages cost memory
    /// when first touched. Before the descriptor is passed to a peer the caller seals it by
    /// [`seal_for_readers`] or [`seal_for_writers`].
    ///
    /// # Errors
    /// [`MemError::Os`] when the kernel refuses.
    pub fn memfd(name: &str, bytes: usize) -> Result<(Self, OwnedFd), MemError> {
        Self::memfd_of(name, bytes, Pages::Ordinary)
    }

    /// Creates and maps a memfd like [`Self::memfd`], with pages of size `pages`. Hugepages are all
    /// allocated now, and `bytes` is rounded up to whole ones. Cost: the kernel zeroes hugepages, a tenth
    /// of a second for each GiB.
    ///
    /// # Errors
    /// [`MemError::Os`] when the kernel refuses, or the hugepage pool has too few.
    pub fn memfd_of(name: &str, bytes: usize, pages: Pages) -> Result<(Self, OwnedFd), MemError> {
        let bytes = match pages.are_huge() {
            true => bytes.max(1).checked_next_multiple_of(pages.bytes()),
            false => Some(bytes),
        };
        let bytes = bytes.ok_or_else(|| {
            os("mmap", usize::MAX, SPACE)(io::Error::from(io::ErrorKind::InvalidInput))
        })?;
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | pages.flags();
        let fd = rustix::fs::memfd_create(name, flags)
            .map_err(|e| os("memfd_create", bytes, MEMFD)(e.into()))?;
        rustix::fs::ftruncate(&fd, bytes as u64)
            .map_err(|e| os("ftruncate", bytes, "lower --capacity")(e.into()))?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW)
            .map_err(|e| os("F_ADD_SEALS", bytes, "use a kernel with memfd seals")(e.into()))?;
        let mut region = Self::map(
            &File::from(fd.try_clone().map_err(os("dup", bytes, FDS))?),
            bytes,
        )?;
        region.pages = pages;
        if pages.are_huge() {
            // The mapping has reserved them, at once and so before any other process.
            take_all(&fd, bytes)?;
        }
        Ok((region, fd))
    }

    /// Maps the first `bytes` bytes of a memfd that a peer process passed, for reading and, if
    /// `writable`, writing. The memfd must be at least that long, and sealed against shrinking: else the
    /// peer could end this process by truncating it. Of hugepages `bytes` must be a whole number.
    ///
    /// # Errors
    /// [`MemError::Os`] when it is not such a memfd or cannot be mapped.
    pub fn from_peer(fd: OwnedFd, bytes: usize, writable: bool) -> Result<Self, MemError> {
        let bad = |source| os("F_GET_SEALS", bytes, "both ends must be Tidewater")(source);
        let seals = rustix::fs::fcntl_get_seals(&fd).map_err(|e| bad(e.into()))?;
        let stat = rustix::fs::fstat(&fd).map_err(|e| bad(e.into()))?;
        if !seals.contains(SealFlags::SHRINK) || (stat.st_size as u64) < bytes as u64 {
            return Err(bad(io::Error::other("memory is unsealed or too short")));
        }
        let huge = huge_page_bytes(&fd);
        if huge.is_some_and(|page| page == 0 || !bytes.is_multiple_of(page)) {
            return Err(bad(io::Error::other("not a whole number of hugepages")));
        }
        let file = File::from(fd);
        let mut region = if writable {
            Self::map(&file, bytes)?
        } else {
            Self::map_read_only(&file, bytes)?
        };
        region.pages = match huge {
            None => Pages::Ordinary,
            Some(page) if page >= Pages::Huge1G.bytes() => Pages::Huge1G,
            Some(_) => Pages::Huge2M,
        };
        Ok(region)
    }

    fn map(file: &File, bytes: usize) -> Result<Self, MemError> {
        let map = MmapOptions::new()
            .len(bytes)
            .map_raw(file)
            .map_err(os("mmap", bytes, SPACE))?;
        Ok(Self {
            map,
            writable: true,
            shared: true,
            pages: Pages::Ordinary,
        })
    }

    fn map_read_only(file: &File, bytes: usize) -> Result<Self, MemError> {
        let map = MmapOptions::new()
            .len(bytes)
            .map_raw_read_only(file)
            .map_err(os("mmap", bytes, SPACE))?;
        Ok(Self {
            map,
            writable: false,
            shared: true,
            pages: Pages::Ordinary,
        })
    }

    /// Returns the length of the region in bytes.
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Returns whether the length of the region is 0 bytes (never, in practice). It does not look at the
    /// contents.
    pub fn is_empty(&self) -> bool {
        self.map.len() == 0
    }

    /// Returns whether this process may write the region through this mapping.
    pub const fn is_writable(&self) -> bool {
        self.writable
    }

    /// Returns whether the region has ordinary pages or hugepages, and of which size.
    pub const fn pages(&self) -> Pages {
        self.pages
    }

    /// Returns a read-only window of `len` bytes at byte offset `at`, a multiple of 8. `len` is rounded
    /// up to whole 64-bit words.
    ///
    /// # Errors
    /// [`MemError::Bounds`] when the window is not inside the region or not aligned.
    #[inline]
    pub fn words(&self, at: usize, len: usize) -> Result<Words<'_>, MemError> {
        Ok(Words::new(self.atomics(at, len)?))
    }

    /// Returns a read-only window of the complete region, without a last partial 64-bit word.
    #[inline]
    pub fn all_words(&self) -> Words<'_> {
        let first = self.map.as_ptr().cast::<AtomicU64>();
        // SAFETY: the mapping begins on a page and holds as many whole words; the rest is as in
        // `atomics`.
        Words::new(unsafe { std::slice::from_raw_parts(first, self.map.len() / 8) })
    }

    /// Returns a writable window of `len` bytes at byte offset `at`, a multiple of 8. `len` is rounded up
    /// to whole 64-bit words.
    ///
    /// # Errors
    /// [`MemError::Bounds`] when the window is not inside the region or not aligned, or the region is
    /// read-only.
    #[inline]
    pub fn words_mut(&self, at: usize, len: usize) -> Result<WordsMut<'_>, MemError> {
        if !self.writable {
            return Err(self.bounds(at, len, "it is read-only"));
        }
        Ok(WordsMut::new(self.atomics(at, len)?))
    }

    #[inline]
    fn atomics(&self, at: usize, len: usize) -> Result<&[AtomicU64], MemError> {
        self.check(at, len)?;
        let first = self.map.as_ptr().wrapping_add(at).cast::<AtomicU64>();
        // Other processes and the kernel are outside the language's model; data that they write is
        // accepted only after validation. A read-only mapping is handed out as `Words` only, which has
        // no store. Mappings are page aligned, and `check` wants `at` a multiple of 8.
        // SAFETY: the range, rounded up to whole words, is inside the mapping (`check`), which lives as
        // long as `self` (invariant), which the slice borrows. `first` is aligned, as was just said. Any
        // bits are a valid u64, and every access in this program goes through atomics.
        Ok(unsafe { std::slice::from_raw_parts(first, len.div_ceil(8)) })
    }

    /// Prefetches into the cache the lines of the `len` bytes at byte offset `at`, at most the first
    /// five. The processor follows a longer run by itself. An address outside the region does no harm.
    /// Cost: an instruction a line.
    #[inline]
    pub fn prefetch(&self, at: usize, len: usize) {
        const LINES_MAX: usize = 5;
        let first = self.map.as_ptr().wrapping_add(at);
        for line in (0..len).step_by(LINE_BYTES).take(LINES_MAX) {
            prefetch_at(first.wrapping_add(line));
        }
    }

    /// Checks that `len` bytes at byte offset `at`, rounded up to whole 64-bit words, are inside the
    /// region and that `at` is a multiple of 8.
    ///
    /// # Errors
    /// [`MemError::Bounds`] if not.
    #[inline]
    pub fn check(&self, at: usize, len: usize) -> Result<(), MemError> {
        let end = len
            .checked_next_multiple_of(8)
            .and_then(|l| at.checked_add(l));
        match end {
            Some(end) if end <= self.map.len() && at.is_multiple_of(8) => Ok(()),
            Some(end) if end <= self.map.len() => Err(self.bounds(at, len, "it is not aligned")),
            _ => Err(self.bounds(at, len, "it is outside")),
        }
    }

    #[cold]
    fn bounds(&self, at: usize, len: usize, why: &'static str) -> MemError {
        MemError::Bounds {
            at,
            len,
            bytes: self.map.len(),
            why,
        }
    }

    /// Returns the address of the region's first byte, for the kernel and the NIC. The program does not
    /// load or store through it.
    pub fn base(&self) -> *mut u8 {
        self.map.as_mut_ptr()
    }

    /// Allocates the pages of a byte range now (`MADV_POPULATE_WRITE`), so that no later access faults
    /// on them. `at` is a multiple of 8. Does nothing on kernels before 5.14, which lack that advice,
    /// and for hugepages. Cost: one system call and the zeroing of the pages.
    ///
    /// # Errors
    /// [`MemError::Bounds`] when the range is not inside the region or not aligned, [`MemError::Os`]
    /// when there is no memory. Some of the pages may then be allocated.
    pub fn prefault(&self, at: usize, len: usize) -> Result<(), MemError> {
        self.check(at, len)?;
        if self.pages.are_huge() {
            return Ok(());
        }
        let page = page_bytes();
        let start = at / page * page;
        let bytes = (at + len).next_multiple_of(page).min(self.map.len()) - start;
        let first = self.base().wrapping_add(start).cast();
        let populate = rustix::mm::Advice::LinuxPopulateWrite;
        // SAFETY: the range is inside the mapping; populating changes no byte.
        let done = unsafe { rustix::mm::madvise(first, bytes, populate) };
        match done {
            Err(rustix::io::Errno::INVAL) | Ok(()) => Ok(()),
            Err(e) => Err(os("madvise", bytes, "free memory, or lower --capacity")(
                e.into(),
            )),
        }
    }

    /// Excludes a private region from children that are forked later (`MADV_DONTFORK`), which a device
    /// needs. After a fork the first store of either process would give it a copy of the page, while the
    /// device keeps the old one. A child that touches the memory ends by `SIGSEGV`. Does nothing for
    /// shared memory, which a fork does not copy. Cost: a system call.
    ///
    /// # Errors
    /// That of the system call.
    #[doc(alias = "MADV_DONTFORK")]
    pub fn exclude_from_children(&self) -> rustix::io::Result<()> {
        if self.shared {
            return Ok(());
        }
        let (first, bytes) = (self.base().cast(), self.len());
        // SAFETY: the range is the whole of a mapping of ours; the advice changes no byte of this process.
        unsafe { rustix::mm::madvise(first, bytes, rustix::mm::Advice::LinuxDontFork) }
    }

    /// Locks a byte range in memory (`mlock2`, `MLOCK_ONFAULT`), so that it is never swapped: pages that
    /// are present at once, the others as they are touched. `at` is a multiple of 8. Does nothing for
    /// hugepages, which are never swapped. Cost: a system call, which makes no page present.
    ///
    /// # Errors
    /// [`MemError::Memlock`] when the kernel refuses, which means that the limit is too low;
    /// [`MemError::Bounds`] when the range is not inside the region or not aligned.
    pub fn lock(&self, at: usize, len: usize) -> Result<(), MemError> {
        self.check(at, len)?;
        if self.pages.are_huge() {
            return Ok(());
        }
        let first = self.base().wrapping_add(at).cast();
        // SAFETY: the range is inside the mapping; locking changes no byte.
        let done = unsafe { rustix::mm::mlock_with(first, len, MlockFlags::ONFAULT) };
        done.map_err(|_| {
            let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
            MemError::Memlock {
                bytes: len,
                limit: limit.unwrap_or(u64::MAX),
            }
        })
    }
}

/// Seals a memfd before it is passed to peers that may only read it (`F_SEAL_FUTURE_WRITE`). No process
/// can map it for writing from now on, also not by opening `/proc/self/fd`, and no peer can add a seal.
/// Existing mappings stay writable. Kernels before 5.1 do not have that seal: there only
/// [`read_only_fd`] stands between a peer and the memory. Repeating the call changes nothing.
///
/// # Errors
/// [`MemError::Os`] when the kernel refuses, for instance because `fd` is open for reading only.
#[doc(alias = "F_SEAL_FUTURE_WRITE")]
pub fn seal_for_readers(fd: impl AsFd) -> Result<(), MemError> {
    if mutants::on(Mutant::ReadMemoryUnsealed) {
        return seal_for_writers(fd);
    }
    match seal(&fd, SealFlags::FUTURE_WRITE | SealFlags::SEAL) {
        Err(rustix::io::Errno::INVAL) => {
            tracing::debug!("this kernel has no F_SEAL_FUTURE_WRITE");
            seal_for_writers(fd)
        }
        sealed => sealed.map_err(sealing),
    }
}

/// Seals a memfd against further seals (`F_SEAL_SEAL`), before it is passed to peers that may write it.
/// A peer that added a seal could keep later peers from mapping it. Repeating the call changes nothing.
///
/// # Errors
/// As [`seal_for_readers`].
#[doc(alias = "F_SEAL_SEAL")]
pub fn seal_for_writers(fd: impl AsFd) -> Result<(), MemError> {
    if mutants::on(Mutant::SharedMemoryUnsealed) {
        return Ok(());
    }
    seal(&fd, SealFlags::SEAL).map_err(sealing)
}

/// Adds `seals` to a memfd; succeeds without a change if it has all of them already.
fn seal(fd: impl AsFd, seals: SealFlags) -> rustix::io::Result<()> {
    if rustix::fs::fcntl_get_seals(&fd)?.contains(seals) {
        return Ok(());
    }
    rustix::fs::fcntl_add_seals(&fd, seals)
}

fn sealing(e: rustix::io::Errno) -> MemError {
    os(
        "F_ADD_SEALS",
        0,
        "pass the descriptor that created the memory",
    )(e.into())
}

/// Opens a second descriptor of a memfd that can only be mapped for reading, to be passed to a peer. Use
/// it together with [`seal_for_readers`]: without the seal, `/proc/self/fd` gives a descriptor that can
/// be mapped for writing.
///
/// # Errors
/// [`MemError::Os`] when `/proc` is not mounted, or no further descriptor can be opened.
pub fn read_only_fd(fd: impl AsFd) -> Result<OwnedFd, MemError> {
    use std::os::fd::AsRawFd;
    let path = format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd());
    rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|e| os("open of /proc/self/fd", 0, "mount /proc")(e.into()))
}

const MEMFD: &str =
    "raise the limit of open files (ulimit -n); for hugepages, boot with such a pool";
const FDS: &str = "raise the limit of open files (ulimit -n)";
const SPACE: &str = "raise the limit of address space (ulimit -v), or lower --capacity";

pub(super) fn os(
    call: &'static str,
    bytes: usize,
    remedy: &'static str,
) -> impl Fn(io::Error) -> MemError {
    move |source| MemError::Os {
        call,
        bytes,
        source,
        remedy,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the kernel's flags (`VmFlags`) of the mapping that contains a region, from
    /// `/proc/self/smaps`.
    fn flags_of(region: &Region) -> Vec<String> {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut lines = maps.lines();
        let begins = |line: &str| {
            let (first, last) = line.split_once(' ')?.0.split_once('-')?;
            let of = |text| usize::from_str_radix(text, 16).ok();
            Some((of(first)?..of(last)?).contains(&region.base().addr()))
        };
        lines.find(|line| begins(line) == Some(true)).unwrap();
        let flags = lines.find_map(|line| line.strip_prefix("VmFlags:"));
        flags
            .unwrap()
            .split_whitespace()
            .map(str::to_owned)
            .collect()
    }

    #[test]
    fn private_memory_is_excluded_from_children() {
        let is_excluded = |region: &Region| flags_of(region).contains(&"dc".to_owned());
        let private = Region::anonymous(3 * page_bytes()).unwrap();
        assert!(!is_excluded(&private));
        private.exclude_from_children().unwrap();
        assert!(is_excluded(&private));
        let (shared, _fd) = Region::memfd("shared", page_bytes()).unwrap();
        shared.exclude_from_children().unwrap();
        assert!(!is_excluded(&shared));
    }

    #[test]
    fn windows_stay_inside() {
        let r = Region::anonymous(4096).unwrap();
        assert_eq!(r.words(4088, 8).unwrap().len(), 8);
        for (at, len) in [
            (4096, 1),
            (4088, 9),
            (1, 8),
            (usize::MAX - 7, 8),
            (0, usize::MAX),
        ] {
            assert!(
                matches!(r.words(at, len), Err(MemError::Bounds { .. })),
                "{at} {len}"
            );
        }
    }

    #[test]
    fn a_read_only_view_sees_writes_and_cannot_write() {
        let (rw, fd) = Region::memfd("test", 8192).unwrap();
        let ro = Region::from_peer(read_only_fd(&fd).unwrap(), 8192, false).unwrap();
        rw.words_mut(64, 8).unwrap().store(0, 7);
        assert_eq!(ro.words(64, 8).unwrap().load(0), 7);
        assert!(ro.words_mut(64, 8).is_err());
        let again = Region::from_peer(read_only_fd(&fd).unwrap(), 8192, true);
        assert!(
            matches!(again, Err(MemError::Os { call: "mmap", .. })),
            "{again:?}"
        );
    }

    #[test]
    fn memory_that_can_shrink_or_is_short_is_refused() {
        let fd = rustix::fs::memfd_create("x", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&fd, 4096).unwrap();
        assert!(Region::from_peer(fd, 4096, true).is_err());
        let (_r, fd) = Region::memfd("test", 4096).unwrap();
        assert!(Region::from_peer(fd, 8192, true).is_err());
    }

    #[test]
    fn prefault_and_lock_stay_inside() {
        let r = Region::anonymous(1 << 20).unwrap();
        r.prefault(100 * 8, 5000).unwrap();
        assert!(r.prefault(0, 2 << 20).is_err());
        assert!(matches!(r.lock(0, 2 << 20), Err(MemError::Bounds { .. })));
    }

    /// Returns the KiB of locked memory in the mapping that begins at address `first`, from
    /// `/proc/self/smaps`.
    fn locked_kib(first: *mut u8) -> u64 {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let begins = format!("{:x}-", first.addr());
        let mut lines = maps.lines().skip_while(|line| !line.starts_with(&begins));
        let locked = lines.find_map(|line| line.strip_prefix("Locked:")).unwrap();
        locked.trim().trim_end_matches(" kB").parse().unwrap()
    }

    #[test]
    fn what_is_locked_is_locked_and_nothing_else() {
        let (r, _fd) = Region::memfd("test", 1 << 20).unwrap();
        match r.lock(8192, 12_000) {
            Ok(()) => {
                // Pages as they are touched; those outside the range are not.
                assert_eq!(locked_kib(r.base().wrapping_add(8192)), 0);
                let words = r.words_mut(0, 1 << 20).unwrap();
                for touched in [0, 8192, 16384] {
                    words.store(touched, 1);
                }
                assert_eq!(locked_kib(r.base().wrapping_add(8192)), 8);
                assert_eq!(locked_kib(r.base()), 0);
            }
            // Only where nearly nothing may be locked.
            Err(MemError::Memlock { bytes, limit }) => assert!(limit < 12_288 && bytes == 12_000),
            Err(other) => panic!("{other}"),
        }
    }
}
