//! Memories of hugepages: complete tables in them over shared memory and TCP, their seals, and the
//! behaviour if the pool is too small.
//!
//! The tests reserve pages while they run, which needs root and a machine with hugepages. Without
//! them, the tests print the cause and check that a server which requests hugepages is refused.

#![allow(
    clippy::unwrap_used,
    reason = "a test crate: its helpers panic as its tests do"
)]
#![allow(clippy::print_stdout, reason = "a test that skips says why")]

use std::fs::{self, File};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::fs::{FlockOperation, SealFlags, fcntl_get_seals, flock};
use tidewater::{ClusterConfig, JoinOptions, PullOptions, SyncMode, TableBuilder};
use tidewater_engine::store::hugepages::{NoHugepages, choose};
use tidewater_engine::store::memory::{BlockKind, BlockOwner};
use tidewater_engine::store::{Backing, Hugepages, ServerMemory, StoreError};
use tidewater_launch::TransportChoice;
use tidewater_protocol::ids::Incarnation;
use tidewater_protocol::table::PushOp;
use tidewater_runtime::clock::Deadline;
use tidewater_runtime::mem::region::read_only_fd;
use tidewater_runtime::mem::{MemError, Pages, Region};
use tidewater_topology::{HugePool, Topology};

const CAPACITY: usize = 32 << 20;
/// Pages of 2 MiB that one server takes.
const PAGES: u64 = 2 * (CAPACITY as u64 >> 21);
const SETTING: &str = "/proc/sys/vm/nr_hugepages";

/// Reserved pages. A guard process returns them when its input ends: at the drop, and also when this process
/// is killed. It holds the lock until then: one test of one process at a time.
struct Pool {
    _turn: File,
    guard: Child,
}

impl Pool {
    /// Reserves a pool with `pages` free pages; the error is the cause of a failure.
    fn with(pages: u64) -> Result<Self, String> {
        let turn = File::open(SETTING).map_err(|e| format!("{SETTING}: {e}"))?;
        flock(&turn, FlockOperation::LockExclusive).map_err(|e| format!("{SETTING}: {e}"))?;
        let before = setting();
        let give_back = format!("trap '' INT TERM HUP; cat; echo {before} > {SETTING}");
        let guard = Command::new("sh")
            .args(["-c", &give_back])
            .stdin(Stdio::piped())
            // The same open file: the lock lasts until the guard has ended, too.
            .stdout(turn.try_clone().map_err(|e| format!("{SETTING}: {e}"))?)
            .stderr(Stdio::null())
            .spawn();
        let pool = Self {
            _turn: turn,
            guard: guard.map_err(|e| format!("sh: {e}"))?,
        };
        let wanted = before + pages;
        fs::write(SETTING, wanted.to_string()).map_err(|e| format!("{SETTING}: {e}"))?;
        match available() {
            free if free >= pages => Ok(pool),
            free => Err(format!("asked for {pages} hugepages, got {free}")),
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // Its input ends. If the setting could not be written, there are no pages to return.
        drop(self.guard.stdin.take());
        assert!(self.guard.wait().is_ok() || std::thread::panicking());
    }
}

fn setting() -> u64 {
    fs::read_to_string(SETTING).unwrap().trim().parse().unwrap()
}

fn available() -> u64 {
    let topology = Topology::read();
    topology.pool(2 << 20).map_or(0, HugePool::available)
}

fn backing(hugepages: Hugepages) -> Backing {
    Backing {
        hugepages,
        pools: Topology::read().hugepages,
        ..Backing::default()
    }
}

const HUGE: Hugepages = Hugepages::Of(Pages::Huge2M);

/// The pool, or `None` after a check that hugepages are refused with the remedy.
fn pool(pages: u64) -> Option<Pool> {
    match Pool::with(pages) {
        Ok(pool) => Some(pool),
        Err(why) => {
            println!("skipped: {why}");
            let pools = [HugePool::of(2 << 20, 0)];
            let error = choose(HUGE, CAPACITY, &pools).unwrap_err();
            assert!(error.to_string().contains("nr_hugepages"), "{error}");
            None
        }
    }
}

#[test]
fn tables_live_in_hugepages_over_each_transport() {
    let Some(_pool) = pool(2 * PAGES) else { return };
    for transport in [TransportChoice::Shm, TransportChoice::Tcp] {
        let before = available();
        let config = ClusterConfig {
            servers: 2,
            appliers: 2,
            capacity: CAPACITY,
            hugepages: HUGE,
            transport,
            ..ClusterConfig::default()
        };
        let joined = JoinOptions::from(config).join().unwrap();
        let job = joined.into_job().unwrap();
        assert_eq!(before - available(), 2 * PAGES, "{transport:?}");
        let mut client = job.client(SyncMode::Asp).unwrap();
        let spec = TableBuilder::sparse::<f32>("t", 16);
        let table = client.create_table::<f32>(spec.spec()).unwrap();
        let keys: Vec<u64> = (0..5_000).map(|k| k * 0x9e37_79b9).collect();
        let values: Vec<f32> = (0..keys.len() * 16).map(|v| v as f32).collect();
        let ticket = client.push_rows(&table, &keys, &values, PushOp::Sum);
        client.wait_applied(&ticket.unwrap()).unwrap();
        let mut out = vec![0.0; values.len()];
        let options = PullOptions::default();
        client.pull_rows(&table, &keys, &mut out, options).unwrap();
        assert!(out == values, "{transport:?}");
        client.finish().unwrap();
        drop((client, job));
        // The last page is freed with the last thread that held a memory.
        let patience = Deadline::after(Duration::from_secs(10));
        while available() != before && !patience.passed() {
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(available(), before, "{transport:?}: all are given back");
    }
}

#[test]
fn a_memory_of_hugepages_is_whole_sealed_and_passed_on_for_reading() {
    let Some(_pool) = pool(PAGES) else { return };
    let before = available();
    let (mut memory, without) =
        ServerMemory::with(CAPACITY - 4096, Incarnation(7), &backing(HUGE)).unwrap();
    assert!(without.is_none());
    let public = memory.public.region();
    assert_eq!((public.pages(), public.len()), (Pages::Huge2M, CAPACITY));
    assert_eq!(
        before - available(),
        PAGES,
        "all pages are taken before the first touch"
    );
    memory.lock().unwrap(); // nothing to lock: they are never swapped
    let owner = BlockOwner {
        kind: BlockKind::Extent,
        table: 1,
        applier: 0,
        part: 0,
    };
    let (used, capacity) = memory.public.usage();
    let block = memory.public.alloc(capacity - used, owner).unwrap();
    let last = memory
        .public
        .region()
        .words_mut(block.at, block.len)
        .unwrap();
    last.store(block.len - 8, 11);

    let fd = memory.public.fd();
    let seals = fcntl_get_seals(fd).unwrap();
    assert!(
        seals.contains(SealFlags::SHRINK | SealFlags::GROW),
        "{seals:?}"
    );
    assert!(rustix::fs::ftruncate(fd, 0).is_err(), "sealed");
    let theirs = Region::from_peer(read_only_fd(fd).unwrap(), CAPACITY, false).unwrap();
    assert_eq!(theirs.words(CAPACITY - 8, 8).unwrap().load(0), 11);
    assert!(theirs.words_mut(0, 8).is_err());
    assert_eq!(theirs.pages(), Pages::Huge2M);
    // Half a page could be mapped, but not unmapped.
    let half = Region::from_peer(read_only_fd(fd).unwrap(), CAPACITY - (1 << 20), false);
    assert!(half.unwrap_err().to_string().contains("whole number"));
    let writable = Region::from_peer(read_only_fd(fd).unwrap(), CAPACITY, true);
    assert!(writable.is_err(), "passed on for reading only");
    drop((theirs, memory));
    assert_eq!(available(), before);
}

/// The pool's count and its real pages may differ: another process was quicker, or a cgroup forbids them.
#[test]
fn a_pool_that_lied_is_an_error_or_ordinary_pages_and_never_a_signal() {
    let told = [
        HugePool::of(2 << 20, 1 << 40),
        HugePool::of(1 << 30, 1 << 40),
    ];
    let with = |hugepages| {
        let mut backing = backing(hugepages);
        backing.pools = told.to_vec();
        // More pages than any machine has.
        ServerMemory::with(1 << 44, Incarnation(7), &backing)
    };
    for pages in [Pages::Huge2M, Pages::Huge1G] {
        let error = with(Hugepages::Of(pages)).unwrap_err();
        let StoreError::Mem(MemError::Os { remedy, .. }) = &error else {
            panic!("{error:?}")
        };
        assert!(!remedy.is_empty(), "{error}");
    }
    let (memory, without) = with(Hugepages::Auto).unwrap();
    assert!(
        matches!(without, Some(NoHugepages::Kernel(_))),
        "{without:?}"
    );
    assert_eq!(memory.public.region().pages(), Pages::Ordinary);
    memory
        .public
        .region()
        .words_mut(1 << 40, 8)
        .unwrap()
        .store(0, 1);
}

#[test]
fn without_a_pool_automatic_means_ordinary_and_says_how_to_get_them() {
    let mut backing = Backing {
        pools: vec![HugePool::of(2 << 20, 0)],
        ..Backing::default()
    };
    let (memory, without) = ServerMemory::with(CAPACITY, Incarnation(7), &backing).unwrap();
    assert_eq!(memory.private.region().pages(), Pages::Ordinary);
    let why = without.unwrap().to_string();
    for part in [
        "32 hugepages of 2 MiB",
        "0 can be had",
        "echo 32 > /sys/kernel/mm/hugepages",
    ] {
        assert!(why.contains(part), "{part}: {why}");
    }
    backing.hugepages = Hugepages::Off;
    let (_, without) = ServerMemory::with(CAPACITY, Incarnation(7), &backing).unwrap();
    assert!(without.is_none(), "who does not want them is not told");
}
