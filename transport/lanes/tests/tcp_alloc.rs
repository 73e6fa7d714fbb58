//! F18: a warm lane allocates nothing. A client that does not read costs the server nothing that grows. One
//! test, because the allocator counts for the whole process.
#![allow(unsafe_code, reason = "a counting allocator")]
#![allow(clippy::unwrap_used, reason = "a test's helpers")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::time::Duration;

use tidewater_lanes::fabric::{
    AccessFlags, ClientLane, INBOX_KEY, Inbox, ReadBatch, ReadOp, RegionTable, RegionTableView,
    RegisteredRegion, RemoteAddr, ServerLane,
};
use tidewater_lanes::tcp::{TcpClientLane, TcpServerLane, pair};
use tidewater_lanes::wake::OsParker;
use tidewater_protocol::ids::RegionKey;
use tidewater_protocol::layout::session::{INBOX_RING_AT, mailbox_reply_at};
use tidewater_protocol::limits::RING_BYTES_DEFAULT;
use tidewater_runtime::clock::Deadline;
use tidewater_runtime::mem::Region;
use tidewater_runtime::sync::{AtomicUsize, Ordering};

struct Counting;

static CALLS: AtomicUsize = AtomicUsize::new(0);
static LIVE: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is forwarded unchanged to the system allocator; only numbers are kept.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.fetch_add(1, Ordering::Relaxed);
        LIVE.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `dealloc`, and `at` came from `alloc`.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

struct Rig {
    lane: TcpClientLane,
    port: TcpServerLane,
    inbox: Inbox,
    view: RegionTableView,
    data: RegionKey,
    _sleepers: [OsParker; 2],
}

fn rig() -> Rig {
    let parkers = [(); 2].map(|()| OsParker::new(Duration::ZERO).unwrap());
    let [near, far] = &parkers;
    let (lane, port, inbox) =
        pair(1 << 20, 7, near.reactor().clone(), far.reactor().clone()).unwrap();
    let exports = Arc::new(RegionTable::new(3));
    let region = Arc::new(Region::anonymous(2 << 20).unwrap());
    let (start, len, rights, memory) = (0, 2 << 20, AccessFlags::Read, 0);
    let data = exports
        .add(RegisteredRegion {
            region,
            start,
            len,
            rights,
            memory,
        })
        .unwrap();
    Rig {
        lane,
        port,
        inbox,
        view: exports.view(),
        data,
        _sleepers: parkers,
    }
}

fn batch(key: RegionKey, len: u32, tag: u64) -> ReadBatch {
    let from = RemoteAddr {
        key,
        addr: tag * 64,
    };
    let op = ReadOp {
        from,
        len,
        head_len: 16,
        head_at: 0,
        body_at: 0,
        fence: false,
    };
    ReadBatch {
        ops: vec![op; 3],
        head: vec![0; 16],
        body: vec![0; len as usize],
        tag,
    }
}

/// One round of all calls but the blocking ones, which share all of their path with it.
fn round(rig: &mut Rig, frame: &[u8]) {
    let ring = RemoteAddr {
        key: INBOX_KEY,
        addr: INBOX_RING_AT as u64,
    };
    rig.lane.write(ring, &frame[..200]).unwrap();
    rig.lane.write(ring, frame).unwrap();
    rig.port.post(0, &frame[..64]).unwrap();
    rig.port
        .post(mailbox_reply_at(0, RING_BYTES_DEFAULT), &frame[..70_000])
        .unwrap();
    rig.port.signal().unwrap();
    rig.lane.write_signal(ring, &frame[..16]).unwrap();
    let until = Deadline::after(Duration::from_secs(10));
    let mut back = 0;
    while back < 8 {
        rig.port.poll(&mut rig.view, &rig.inbox).unwrap();
        rig.lane.poll().unwrap();
        while let Some(batch) = rig.lane.poll_read() {
            back += 1;
            rig.lane.submit_read(batch).unwrap();
        }
        assert!(!until.passed());
    }
}

#[test]
fn f18_warm_lanes_allocate_nothing_and_deaf_clients_cost_nothing_that_grows() {
    let mut warm = rig();
    let frame = vec![1; 100_000];
    for tag in 0..8 {
        let len = if tag % 2 == 0 { 256 } else { 50_000 };
        warm.lane.submit_read(batch(warm.data, len, tag)).unwrap();
    }
    (0..300).for_each(|_| round(&mut warm, &frame));
    let before = CALLS.load(Ordering::Relaxed);
    (0..1000).for_each(|_| round(&mut warm, &frame));
    let calls = CALLS.load(Ordering::Relaxed) - before;
    assert_eq!(calls, 0, "allocations in 1,000 rounds on a warm lane");

    // Small reads are copied: 20,000 of them, with no answer read.
    let mut deaf = rig();
    for tag in 0..20_000 {
        let mut batch = batch(deaf.data, 1000, tag % 8);
        batch.ops.truncate(1);
        deaf.lane.submit_read(batch).unwrap();
    }
    let before = LIVE.load(Ordering::Relaxed);
    let until = Deadline::after(Duration::from_millis(300));
    while !until.passed() {
        deaf.lane.flush().unwrap();
        deaf.port.poll(&mut deaf.view, &deaf.inbox).unwrap();
    }
    let grown = LIVE.load(Ordering::Relaxed).saturating_sub(before);
    // The client's list of 20,000 requests and a buffer of 256 KiB at each end, against 20 MB of answers.
    assert!(
        grown < 2 << 20,
        "{grown} bytes for a client that does not read"
    );
}
