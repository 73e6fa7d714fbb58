//! Page size and NUMA node of a server's memories.
//!
//! Hugepages are taken only where the pool holds both memories completely: a page touched beyond
//! the pool ends the process. So they suit a `--capacity` that was chosen for the model, not one
//! that stands for "no limit".

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::str::FromStr;
use std::thread;

use rustix::thread::{CpuSet, sched_setaffinity};
use serde::Serialize;
use tidewater_runtime::mem::{MemError, Pages, Region};
use tidewater_topology::{HugePool, Placement, Topology};

use super::StoreError;
use super::memory::reserved_bytes;

/// Page size that a server wants for its memories.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Hugepages {
    /// Choice of a program without a setting: as [`Self::Auto`], without the warning.
    #[default]
    Default,
    /// Hugepages if the pool holds both memories of the server, twice the capacity, and the kernel provides them;
    /// otherwise ordinary pages and a warning.
    Auto,
    /// Hugepages of this size, or an error without them.
    Of(Pages),
    /// Ordinary pages of the kernel.
    Off,
}

impl Hugepages {
    const ALL: [(&'static str, Self); 4] = [
        ("auto", Self::Auto),
        ("2M", Self::Of(Pages::Huge2M)),
        ("1G", Self::Of(Pages::Huge1G)),
        ("off", Self::Off),
    ];
}

impl FromStr for Hugepages {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let known = Self::ALL.into_iter();
        let mut named = known.filter(|(name, _)| name.eq_ignore_ascii_case(text));
        let named = named.next().map(|(_, wish)| wish);
        named.ok_or("not a choice of hugepages; use auto, 2M, 1G or off")
    }
}

impl fmt::Display for Hugepages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut known = Self::ALL.iter();
        f.write_str(
            known
                .find(|(_, wish)| wish == self)
                // The default has no name of its own.
                .map_or("auto", |(name, _)| name),
        )
    }
}

/// Hugepages that are missing for both memories of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Shortfall {
    /// Size of one page in bytes.
    pub page_bytes: u64,
    /// Number of pages that both memories together need.
    pub needed: u64,
    /// Number of pages that the pool can still provide.
    pub available: u64,
    /// Number of pages, with those in use, that the pool should have; `None` if the kernel has no such pool.
    pub pool: Option<u64>,
}

impl Shortfall {
    /// Returns the shell command that provides the pages, to be run as root. Empty if the kernel has no
    /// such pool.
    pub fn command(&self) -> String {
        let kib = self.page_bytes >> 10;
        let echo =
            |n| format!("echo {n} > /sys/kernel/mm/hugepages/hugepages-{kib}kB/nr_hugepages");
        self.pool.map(echo).unwrap_or_default()
    }
}

impl fmt::Display for Shortfall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            needed, available, ..
        } = self;
        let mib = self.page_bytes >> 20;
        write!(
            f,
            "--capacity twice takes {needed} hugepages of {mib} MiB, and {available} can be had; "
        )?;
        match self.pool {
            Some(_) => write!(
                f,
                "choose a --capacity that fits the model and, as root, {} (fewer for less)",
                self.command()
            ),
            None => f.write_str("this kernel has no pages of that size"),
        }
    }
}

/// Page size that was chosen, and the reason if ordinary pages were chosen in place of hugepages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Choice {
    /// Page size that is used.
    #[serde(serialize_with = "by_name")]
    pub pages: Pages,
    /// Hugepages that are missing; `None` if they are used or were not wanted.
    pub shortfall: Option<Shortfall>,
}

fn by_name<S: serde::Serializer>(pages: &Pages, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(pages.name())
}

/// Chooses the page size for two memories of `capacity` bytes each. An automatic choice takes pages of 1 GiB if
/// the capacity fills one and the pool holds both memories, otherwise those of 2 MiB if their pool does,
/// otherwise ordinary pages.
///
/// # Errors
/// The missing pages, when `wish` is one size of hugepages and the pool has too few.
pub fn choose(wish: Hugepages, capacity: usize, pools: &[HugePool]) -> Result<Choice, Shortfall> {
    let huge = |pages| Choice {
        pages,
        shortfall: None,
    };
    match wish {
        Hugepages::Off => Ok(huge(Pages::Ordinary)),
        Hugepages::Of(pages) => match shortfall(pages, capacity, pools) {
            None => Ok(huge(pages)),
            Some(shortfall) => Err(shortfall),
        },
        Hugepages::Auto | Hugepages::Default => {
            let gib = Pages::Huge1G;
            if capacity >= gib.bytes() && shortfall(gib, capacity, pools).is_none() {
                return Ok(huge(gib));
            }
            let shortfall = shortfall(Pages::Huge2M, capacity, pools);
            Ok(Choice {
                pages: match shortfall {
                    None => Pages::Huge2M,
                    Some(_) => Pages::Ordinary,
                },
                shortfall,
            })
        }
    }
}

/// Computes the hugepages of a size that are missing for two memories of `capacity` bytes each; `None` if the
/// pool has enough.
fn shortfall(pages: Pages, capacity: usize, pools: &[HugePool]) -> Option<Shortfall> {
    let page_bytes = pages.bytes() as u64;
    let needed = 2 * (reserved_bytes(capacity) as u64).div_ceil(page_bytes);
    let pool = pools.iter().find(|pool| pool.page_bytes == page_bytes);
    let available = pool.map_or(0, HugePool::available);
    let missing = needed.checked_sub(available).filter(|&n| n > 0)?;
    Some(Shortfall {
        page_bytes,
        needed,
        available,
        pool: pool.map(|pool| pool.total + missing),
    })
}

/// Page size and NUMA node of both memories of a server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Backing {
    /// Page size that is wanted.
    pub hugepages: Hugepages,
    /// Hugepage pools of the host.
    pub pools: Vec<HugePool>,
    /// NUMA node that pages should come from; `None` for any.
    pub node: Option<u32>,
    /// Numbers of that node's processors that this process may use; empty without a node.
    pub cpus: Vec<u32>,
}

impl Backing {
    /// Builds the settings: node and processors from the placement, pools from the topology.
    pub fn new(hugepages: Hugepages, topology: &Topology, placement: &Placement) -> Self {
        let on_node = topology
            .allowed()
            .filter(|cpu| Some(cpu.node) == placement.node);
        Self {
            hugepages,
            pools: topology.hugepages.clone(),
            node: placement.node,
            cpus: on_node.map(|cpu| cpu.id).collect(),
        }
    }

    /// Reserves public and private memory, in this order, with the same page size: hugepages if they were chosen.
    /// An automatic choice falls back to ordinary pages and returns the reason, if the pool has too few pages, is
    /// emptied meanwhile, or a cgroup forbids its pages.
    ///
    /// # Errors
    /// [`StoreError::Hugepages`] if a requested size is not available; [`StoreError::Mem`] if the kernel refuses.
    pub(super) fn reserve(
        &self,
        capacity: usize,
    ) -> Result<([Reserved; 2], Option<NoHugepages>), StoreError> {
        let asked = self.hugepages;
        let choice = choose(asked, capacity, &self.pools)
            .map_err(|shortfall| StoreError::Hugepages { asked, shortfall })?;
        let bytes = reserved_bytes(capacity);
        let mut without = choice.shortfall.map(NoHugepages::Pool);
        if choice.pages.are_huge() {
            match self.reserve_huge(bytes, choice.pages) {
                Ok(both) => return Ok((both, None)),
                Err(error) if matches!(asked, Hugepages::Auto | Hugepages::Default) => {
                    without = Some(NoHugepages::Kernel(error));
                }
                Err(error) => return Err(error.into()),
            }
        }
        let ordinary = |name| {
            let made = Region::memfd(name, bytes)?;
            if let Some(node) = self.node
                && let Err(error) = made.0.prefer_node(node)
            {
                tracing::warn!(%error, node, "cannot ask for memory of the node");
            }
            Ok::<_, MemError>(made)
        };
        Ok(([ordinary(NAMES[0])?, ordinary(NAMES[1])?], without))
    }

    /// Reserves public and private memory with hugepages, each on a thread of its own on the wanted NUMA node:
    /// the kernel allocates and zeroes the pages there. `bytes` is the size of one memory.
    fn reserve_huge(&self, bytes: usize, pages: Pages) -> Result<[Reserved; 2], MemError> {
        let failed = |source| MemError::Os {
            call: "thread",
            bytes,
            source,
            remedy: "raise the limit of processes (ulimit -u)",
        };
        let make = |name| {
            self.settle();
            Region::memfd_of(name, bytes, pages)
        };
        thread::scope(|scope| {
            let start = |name| {
                let maker = thread::Builder::new().name("tw-reserve".into());
                maker
                    .spawn_scoped(scope, move || make(name))
                    .map_err(failed)
            };
            let (public, private) = (start(NAMES[0])?, start(NAMES[1])?);
            let end = |made: thread::ScopedJoinHandle<'_, Result<Reserved, MemError>>| {
                made.join()
                    .unwrap_or_else(|_| Err(failed(io::Error::other("it panicked"))))
            };
            let (public, private) = (end(public), end(private));
            Ok([public?, private?])
        })
    }

    /// Binds the calling thread to the processors of the wanted NUMA node, so that the kernel allocates pages
    /// there. No effect without a node. A failure is logged only: pages then come from the thread's present node.
    fn settle(&self) {
        let mut set = CpuSet::new();
        for cpu in self.cpus.iter().map(|&cpu| cpu as usize) {
            if cpu < CpuSet::MAX_CPU {
                set.set(cpu);
            }
        }
        if set.count() > 0
            && let Err(error) = sched_setaffinity(None, &set)
        {
            tracing::debug!(%error, node = self.node, "cannot move to the node");
        }
    }
}

/// Names of the memfds of public and private memory, as in `/proc/PID/maps`.
pub(super) const NAMES: [&str; 2] = ["tidewater-public", "tidewater-private"];

/// Mapping of a reserved memory, and its descriptor.
pub(super) type Reserved = (Region, OwnedFd);

/// Reason why a server runs without the hugepages that it prefers. For log messages.
#[derive(Debug)]
pub enum NoHugepages {
    /// The pool has too few pages.
    Pool(Shortfall),
    /// The pool had enough, and the kernel refused.
    Kernel(MemError),
}

impl fmt::Display for NoHugepages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pool(shortfall) => shortfall.fmt(f),
            Self::Kernel(error) => error.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;
    const GIB: usize = 1 << 30;

    fn pools(of_2m: u64, of_1g: u64) -> [HugePool; 2] {
        [HugePool::of(2 << 20, of_2m), HugePool::of(1 << 30, of_1g)]
    }

    #[test]
    fn words_of_the_command_line() {
        for text in ["auto", "2M", "1G", "off"] {
            assert_eq!(text.parse::<Hugepages>().unwrap().to_string(), text);
        }
        assert_eq!("2m".parse(), Ok(Hugepages::Of(Pages::Huge2M)));
        assert!("4K".parse::<Hugepages>().unwrap_err().contains("1G"));
    }

    #[test]
    fn the_pool_must_hold_both_memories_whole() {
        let auto =
            |capacity, pools: &[HugePool]| choose(Hugepages::Auto, capacity, pools).unwrap().pages;
        assert_eq!(auto(64 * MIB, &pools(64, 0)), Pages::Huge2M);
        assert_eq!(auto(64 * MIB, &pools(63, 0)), Pages::Ordinary);
        assert_eq!(auto(64 * MIB + 1, &pools(64, 0)), Pages::Ordinary);
        assert_eq!(auto(64 * MIB, &[]), Pages::Ordinary);
        assert_eq!(auto(GIB, &pools(2048, 2)), Pages::Huge1G);
        assert_eq!(auto(GIB, &pools(2048, 1)), Pages::Huge2M);
        assert_eq!(
            auto(GIB - 1, &pools(2048, 2)),
            Pages::Huge2M,
            "half a page is waste"
        );
    }

    #[test]
    fn promised_pages_do_not_count() {
        let mut pool = HugePool::of(2 << 20, 64);
        pool.reserved = 1;
        let choice = choose(Hugepages::Auto, 64 * MIB, &[pool]).unwrap();
        let shortfall = choice.shortfall.unwrap();
        assert_eq!((shortfall.needed, shortfall.available), (64, 63));
        assert_eq!(shortfall.pool, Some(65));
        assert!(
            shortfall.to_string().contains("echo 65 > /sys/kernel"),
            "{shortfall}"
        );
    }

    #[test]
    fn a_size_that_was_asked_for_is_had_or_refused() {
        let of = |pages, pools: &[HugePool]| choose(Hugepages::Of(pages), 64 * MIB, pools);
        assert_eq!(
            of(Pages::Huge1G, &pools(0, 2)).unwrap().pages,
            Pages::Huge1G
        );
        let error = of(Pages::Huge2M, &pools(10, 9)).unwrap_err().to_string();
        for part in ["64 hugepages of 2 MiB", "10 can be had", "echo 64 >"] {
            assert!(error.contains(part), "{part}: {error}");
        }
        let error = of(Pages::Huge1G, &pools(10, 9)[..1])
            .unwrap_err()
            .to_string();
        assert!(error.contains("no pages of that size"), "{error}");
        let off = choose(Hugepages::Off, 64 * MIB, &pools(64, 64)).unwrap();
        assert_eq!((off.pages, off.shortfall), (Pages::Ordinary, None));
    }
}
