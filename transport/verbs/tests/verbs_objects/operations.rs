//! Data that each operation moves, and in which order.

use std::sync::Arc;

use tidewater_runtime::mem::Region;
use tidewater_verbs::{Access, Completion, Flags, MemoryRegion, MemoryWindow, Operation};

use crate::alloc::allocations;
use crate::rig::{BYTES, Memory, Rig, pattern};

#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn reads_land_where_they_are_told() {
    let mut rig = Rig::new();
    let (local, open) = (rig.local(), rig.open());
    let want = pattern(20_000, 1);
    open.fill(4096, &want);
    let mut chain = rig.chain();
    let pieces = [
        local.mr.sge(64, 16).unwrap(),
        local.mr.sge(1024, 19_984).unwrap(),
    ];
    chain
        .read(7, &pieces, open.mr.target(4096), Flags::NONE)
        .unwrap();
    let done = rig.near.run(&mut chain);
    assert_eq!(
        (done.wr_id, done.operation, done.qpn),
        (7, Operation::Read, rig.near.pair.qpn())
    );
    assert_eq!(local.bytes(64, 16), want[..16]);
    assert_eq!(local.bytes(1024, 19_984), want[16..]);
    assert_eq!(local.bytes(80, 944), vec![0; 944], "between the pieces");
    assert!(chain.is_empty(), "a chain is empty once it is posted");
}

/// Whether a child would not have the memory: `dc` ("do not copy on fork") in `/proc/self/smaps`.
fn is_excluded_from_children(region: &Region) -> bool {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let at = region.base().addr();
    let of = |text: &str| usize::from_str_radix(text, 16).ok();
    let covers = |line: &str| {
        let (first, last) = line.split_once(' ')?.0.split_once('-')?;
        Some((of(first)?..of(last)?).contains(&at))
    };
    let mut lines = maps.lines().skip_while(|line| covers(line) != Some(true));
    let flags = lines.find_map(|line| line.strip_prefix("VmFlags:"));
    flags.unwrap().split_whitespace().any(|flag| flag == "dc")
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn what_is_stored_after_the_registration_is_what_peers_read() {
    // A page that was pinned for reading before it was written must be the same one afterwards.
    let mut rig = Rig::new();
    let local = rig.local();
    let (shared, _fd) = Region::memfd("test", BYTES).unwrap();
    let private = Region::anonymous(BYTES).unwrap();
    let first = private.base();
    for region in [private, shared] {
        let region = Arc::new(region);
        let access = Access::REMOTE_READ | Access::RELAXED_ORDERING;
        let mr = MemoryRegion::register(&rig.pd, &region, 0..BYTES, 0, access).unwrap();
        let open = Memory { region, mr };
        let is_private = open.region.base() == first;
        assert_eq!(is_excluded_from_children(&open.region), is_private);
        let want = pattern(BYTES, 9);
        open.fill(0, &want);
        let mut chain = rig.chain();
        let piece = local.mr.sge(0, BYTES).unwrap();
        chain
            .read(1, &[piece], open.mr.target(0), Flags::NONE)
            .unwrap();
        rig.near.run(&mut chain);
        assert_eq!(local.bytes(0, BYTES), want);
    }
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn a_chain_of_writes_is_one_post_and_one_completion() {
    let mut rig = Rig::new();
    let (local, open) = (rig.local(), rig.open());
    local.fill(0, &pattern(32 * 128, 2));
    let mut chain = rig.chain();
    for i in 0..32 {
        let from = local.mr.sge(i * 128, 128).unwrap();
        chain
            .write(i as u64, &[from], open.mr.target(i * 256), Flags::NONE)
            .unwrap();
    }
    assert!(!chain.has_room());
    assert_eq!(rig.near.run(&mut chain).wr_id, 31);
    for i in 0..32 {
        assert_eq!(open.bytes(i * 256, 128), local.bytes(i * 128, 128));
        assert_eq!(open.bytes(i * 256 + 128, 128), vec![0; 128]);
    }
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn inline_bytes_are_copied_at_once() {
    let mut rig = Rig::new();
    let open = rig.open();
    assert!(rig.near.pair.granted().inline_bytes >= 64);
    let mut chain = rig.chain();
    let mut bytes = pattern(61, 3);
    chain
        .write_inline(1, &bytes, open.mr.target(8), Flags::NONE)
        .unwrap();
    bytes.fill(0);
    chain
        .write_inline(2, &pattern(64, 4), open.mr.target(128), Flags::NONE)
        .unwrap();
    rig.near.run(&mut chain);
    assert_eq!(open.bytes(8, 61), pattern(61, 3));
    assert_eq!(open.bytes(128, 64), pattern(64, 4));
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn immediate_data_comes_after_all_that_was_written_before_it() {
    let mut rig = Rig::new();
    let (local, open) = (rig.local(), rig.open());
    rig.far.pair.post_receives(9, 16).unwrap();
    let mut chain = rig.chain();
    for round in 0..100u32 {
        let want = pattern(40_000, round as u8);
        local.fill(0, &want);
        let from = local.mr.sge(0, 40_000).unwrap();
        chain
            .write(0, &[from], open.mr.target(0), Flags::NONE)
            .unwrap();
        let tail = u64::from(round).to_le_bytes();
        let imm = round.wrapping_mul(0x0102_0304);
        chain
            .write_imm(1, &tail, open.mr.target(48_000), imm, Flags::SIGNAL)
            .unwrap();
        chain.post(&mut rig.near.pair).unwrap();
        let came = rig.far.completions(1)[0];
        came.check().unwrap();
        assert_eq!(
            (came.wr_id, came.operation, came.imm, came.bytes),
            (9, Operation::Receive, Some(imm), 8)
        );
        assert_eq!(open.bytes(0, 40_000), want);
        assert_eq!(open.word(48_000), u64::from(round));
        rig.far.pair.post_receives(9, 1).unwrap();
        rig.near.completions(1)[0].check().unwrap();
    }
}

/// Soft-RoCE promises nothing; the answer of a device without rdma-core's newer verbs is unknown.
#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn a_pair_is_asked_whether_data_lands_in_order() {
    let rig = Rig::new();
    let said = rig.far.pair.data_in_order();
    let name = rig.far.pair.open_port().device().name();
    println!("{name}: data in order {said:?}");
    if name.starts_with("rxe") {
        assert_ne!(said, Some(true));
    }
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn immediate_data_needs_no_bytes() {
    let mut rig = Rig::new();
    let open = rig.open();
    rig.far.pair.post_receives(0, 1).unwrap();
    let mut chain = rig.chain();
    chain
        .write_imm(5, &[], open.mr.target(0), 0xfeed_beef, Flags::NONE)
        .unwrap();
    assert_eq!(rig.near.run(&mut chain).imm, None, "the sender's has none");
    let came = rig.far.completions(1)[0];
    assert_eq!((came.imm, came.bytes), (Some(0xfeed_beef), 0));
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn atomics_return_what_was_there() {
    let mut rig = Rig::new();
    let (local, open) = (rig.local(), rig.open());
    assert!(rig.open_port.device().limits().atomics);
    open.fill(64, &40u64.to_le_bytes());
    let old = |at| local.mr.sge(at, 8).unwrap();
    let at = open.mr.target(64);
    let mut chain = rig.chain();
    chain.fetch_add(1, old(0), at, 2, Flags::NONE).unwrap();
    chain
        .fetch_add(2, old(8), at, u64::MAX, Flags::NONE)
        .unwrap();
    chain
        .compare_swap(3, old(16), at, 41, 1 << 40, Flags::NONE)
        .unwrap();
    chain
        .compare_swap(4, old(24), at, 41, 7, Flags::NONE)
        .unwrap();
    let done = rig.near.run(&mut chain);
    assert_eq!((done.wr_id, done.operation), (4, Operation::CompareSwap));
    let olds: Vec<u64> = (0..4).map(|i| local.word(8 * i)).collect();
    assert_eq!(olds, [40, 42, 41, 1 << 40]);
    assert_eq!(open.word(64), 1 << 40);
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn a_fenced_request_sees_the_read_before_it() {
    let mut rig = Rig::new();
    let (local, open) = (rig.local(), rig.open());
    let fenced = Flags {
        signal: false,
        fence: true,
    };
    let mut chain = rig.chain();
    for round in 1..=50u64 {
        open.fill(0, &round.to_le_bytes());
        // The fenced WRITE sends back the data of the READ.
        let word = local.mr.sge(0, 8).unwrap();
        chain
            .read(1, &[word], open.mr.target(0), Flags::NONE)
            .unwrap();
        chain
            .write(2, &[word], open.mr.target(512), fenced)
            .unwrap();
        rig.near.run(&mut chain);
        assert_eq!(open.word(512), round);
    }
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn a_window_opens_a_region_that_has_no_right_of_its_own() {
    let mut rig = Rig::new();
    let device = rig.open_port.device();
    assert!(device.limits().windows, "{device:?} has no memory windows");
    let inbox = Memory::new(&rig.pd, 0, Access::LOCAL_WRITE | Access::WINDOWS);
    let window = MemoryWindow::new(&rig.pd).unwrap();
    let rkey = rig
        .far
        .pair
        .bind_window(
            77,
            window,
            &inbox.mr,
            0,
            inbox.mr.len(),
            Access::REMOTE_WRITE,
        )
        .unwrap();
    let bound = rig.far.completions(1)[0];
    bound.check().unwrap();
    assert_eq!((bound.wr_id, bound.operation), (77, Operation::BindWindow));
    assert_ne!(rkey, inbox.mr.rkey());

    let mut to = inbox.mr.target(4096);
    to.rkey = rkey;
    let mut chain = rig.chain();
    chain.write_inline(1, b"through!", to, Flags::NONE).unwrap();
    rig.near.run(&mut chain);
    assert_eq!(inbox.bytes(4096, 8), b"through!");
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn posting_and_polling_allocate_nothing() {
    let mut rig = Rig::new();
    let (local, open) = (rig.local(), rig.open());
    rig.far.pair.post_receives(0, 16).unwrap();
    let mut chain = rig.chain();
    let mut done = [Completion::EMPTY; 40];
    let mut round = |rig: &mut Rig| {
        let piece = local.mr.sge(0, 256).unwrap();
        for i in 0..10 {
            chain
                .read(i, &[piece, piece], open.mr.target(0), Flags::NONE)
                .unwrap();
            chain
                .write(i, &[piece], open.mr.target(512), Flags::NONE)
                .unwrap();
        }
        chain
            .fetch_add(
                0,
                local.mr.sge(8, 8).unwrap(),
                open.mr.target(8),
                1,
                Flags::NONE,
            )
            .unwrap();
        chain
            .write_imm(0, &[1; 16], open.mr.target(64), 1, Flags::SIGNAL)
            .unwrap();
        chain.post(&mut rig.near.pair).unwrap();
        for end in [&mut rig.near, &mut rig.far] {
            while end.queue.poll(&mut done).unwrap() == 0 {
                std::thread::yield_now();
            }
        }
        rig.far.pair.post_receives(0, 1).unwrap();
    };
    round(&mut rig);
    let before = allocations();
    for _ in 0..50 {
        round(&mut rig);
    }
    assert_eq!(allocations(), before);
    assert_eq!(open.word(8), 51);
}
