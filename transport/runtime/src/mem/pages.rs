//! Hugepages, and the NUMA node that pages come from.
//!
//! A memory of hugepages is allocated completely or not at all. The kernel ends a process that touches a
//! hugepage which the pool no longer has (SIGBUS). A reservation in the pool does not help where a cgroup
//! or a cpuset forbids the page later. So every page is taken before the memory is used, and a missing page
//! is an error then. For the same reason such a memory is never sparse: it costs its complete size from the
//! start. It is never swapped, so locking it does nothing.

use std::os::fd::AsFd;
use std::os::raw::{c_int, c_ulong};

use rustix::fs::{FallocateFlags, MemfdFlags};

use super::region::{MemError, Region, os};
use tidewater_protocol::limits::NODES_MAX;

/// Returns the bytes of an ordinary page of this machine: 4 KiB on x86, 4, 16 or 64 KiB on aarch64. Cost:
/// a call of libc.
///
/// `rustix` reads the number from the stack of the process, which fails under valgrind.
pub fn page_bytes() -> usize {
    // SAFETY: it reads a constant of the system.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    // Every system has it. The largest size is a multiple of the others.
    usize::try_from(bytes).unwrap_or(64 << 10)
}

/// Page size of a memory region: ordinary pages or hugepages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[non_exhaustive]
pub enum Pages {
    /// Pages of the machine's default size, 4 KiB on most, taken when they are touched.
    #[default]
    Ordinary,
    /// Hugepages of 2 MiB.
    Huge2M,
    /// Hugepages of 1 GiB.
    Huge1G,
}

impl Pages {
    /// Returns the size of one page in bytes.
    pub fn bytes(self) -> usize {
        match self {
            Self::Ordinary => page_bytes(),
            Self::Huge2M => 2 << 20,
            Self::Huge1G => 1 << 30,
        }
    }

    /// Returns the page size as a short name: `4K`, `2M`, `1G`; `16K` or `64K` where an ordinary page has
    /// that size.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ordinary => match page_bytes() {
                4_096 => "4K",
                16_384 => "16K",
                65_536 => "64K",
                _ => "ordinary",
            },
            Self::Huge2M => "2M",
            Self::Huge1G => "1G",
        }
    }

    /// Returns whether these are hugepages, which come from the kernel's reserved pool.
    pub const fn are_huge(self) -> bool {
        !matches!(self, Self::Ordinary)
    }

    /// Returns the `memfd_create` flags that select this page size.
    pub(super) fn flags(self) -> MemfdFlags {
        match self {
            Self::Ordinary => MemfdFlags::empty(),
            Self::Huge2M => MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB,
            Self::Huge1G => MemfdFlags::HUGETLB | MemfdFlags::HUGE_1GB,
        }
    }
}

/// Allocates all pages of a hugepage memfd of `bytes` bytes now (`fallocate`), so that no later access
/// faults with SIGBUS. Fails if the pool has too few; the pages taken so far then stay until the memfd
/// is closed.
pub(super) fn take_all(fd: impl AsFd, bytes: usize) -> Result<(), MemError> {
    let take = || rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, bytes as u64);
    rustix::io::retry_on_intr(take).map_err(|e| os("fallocate", bytes, POOL)(e.into()))
}

/// Returns the pages of a byte range of a memfd to the system (`FALLOC_FL_PUNCH_HOLE`). Afterwards the
/// range reads as zeros in every mapping, and costs memory when it is touched again. Pages that lie only
/// partly in the range stay, with the part zeroed. Not for hugepages. Cost: a system call, and about 100
/// ns for each page.
///
/// # Errors
/// [`MemError::Os`] when the kernel refuses, also for an empty range (`bytes` = 0). The bytes of the range may then
/// be zero or not.
pub fn give_back(fd: impl AsFd, at: usize, bytes: usize) -> Result<(), MemError> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let punch = || rustix::fs::fallocate(&fd, flags, at as u64, bytes as u64);
    rustix::io::retry_on_intr(punch)
        .map_err(|e| os("fallocate", bytes, "use a newer kernel")(e.into()))
}

/// Returns the page size in bytes if `fd` is a memfd of hugepages; `None` for ordinary pages, and if it
/// cannot be found out.
pub(super) fn huge_page_bytes(fd: impl AsFd) -> Option<usize> {
    const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;
    let stat = rustix::fs::fstatfs(fd).ok()?;
    // The type's sign and width differ from machine to machine.
    let magic = stat.f_type as u64 & 0xffff_ffff;
    (magic == HUGETLBFS_MAGIC).then_some(usize::try_from(stat.f_bsize).ok()?)
}

impl Region {
    /// Makes the region's pages come from NUMA node `node` (`mbind`, `MPOL_PREFERRED`), for pages first
    /// touched from now on by any thread or process. If the node has none left, they come from another
    /// one. Hugepages are allocated already: they stay on the node of the thread that made the region.
    ///
    /// # Errors
    /// [`MemError::Os`]: the kernel knows no such node, or this process may not use it.
    #[doc(alias = "mbind")]
    pub fn prefer_node(&self, node: u32) -> Result<(), MemError> {
        const WORD: usize = c_ulong::BITS as usize;
        let mut mask: [c_ulong; NODES_MAX / WORD] = [0; NODES_MAX / WORD];
        let node = node as usize;
        let failed = |source| os("mbind", self.len(), NODE)(source);
        let Some(word) = mask.get_mut(node / WORD) else {
            return Err(failed(std::io::ErrorKind::InvalidInput.into()));
        };
        *word = 1 << (node % WORD);
        let mode: c_int = libc::MPOL_PREFERRED;
        // The kernel counts one more than there are.
        let bits: c_ulong = NODES_MAX as c_ulong + 1;
        // SAFETY:
        // - base and length are those of the mapping (invariant of the type).
        // - `mask` has room for the bits that the kernel reads: NODES_MAX of them.
        // - The call changes where later pages come from, and no byte of the memory.
        let done = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                self.base(),
                self.len() as c_ulong,
                c_ulong::from(mode as u32),
                mask.as_ptr(),
                bits,
                c_ulong::from(0_u32),
            )
        };
        match done {
            0 => Ok(()),
            _ => Err(failed(std::io::Error::last_os_error())),
        }
    }
}

const POOL: &str = "set more hugepages aside (vm.nr_hugepages), or do without --hugepages";
const NODE: &str = "the memory stays where it is touched first";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn returned_pages_are_zero_and_not_resident() {
        let (region, fd) = Region::memfd("returned", 1 << 20).unwrap();
        let words = region.words_mut(0, 1 << 20).unwrap();
        let fill = || (0..1 << 20).step_by(8).for_each(|at| words.store(at, 7));
        let blocks = || rustix::fs::fstat(&fd).unwrap().st_blocks;
        fill();
        let all = blocks();
        // From inside a page to inside another: the ends are zeroed.
        give_back(&fd, 4096 + 64, (512 << 10) + 128).unwrap();
        let left = blocks();
        assert!(left <= all - 127 * 8, "{left} of {all} sectors");
        let end = 4096 + 64 + (512 << 10) + 128;
        for at in (0..1 << 20).step_by(8) {
            let expected = if (4096 + 64..end).contains(&at) { 0 } else { 7 };
            assert_eq!(words.as_read().load(at), expected, "at {at}");
        }
        fill();
        assert_eq!(blocks(), all);
    }

    #[test]
    fn a_node_that_there_is_can_be_preferred() {
        let (region, _fd) = Region::memfd("node", 1 << 20).unwrap();
        for (node, good) in [(0, true), (1023, false), (1024, false), (u32::MAX, false)] {
            let done = region.prefer_node(node);
            assert_eq!(done.is_ok(), good, "{node}: {done:?}");
        }
        region.words_mut(8192, 8).unwrap().store(0, 1);
        assert_eq!(region.words(8192, 8).unwrap().load(0), 1);
    }

    #[test]
    fn ordinary_memory_is_not_of_hugepages() {
        let (region, fd) = Region::memfd("ordinary", 5000).unwrap();
        assert_eq!(huge_page_bytes(&fd), None);
        assert_eq!((region.pages(), region.len()), (Pages::Ordinary, 5000));
    }

    #[test]
    fn a_pool_that_has_not_enough_is_an_error_and_no_signal() {
        // No machine has a pool of 4 TiB.
        let error = Region::memfd_of("huge", 4 << 40, Pages::Huge1G).unwrap_err();
        assert!(matches!(error, MemError::Os { .. }), "{error:?}");
    }
}
