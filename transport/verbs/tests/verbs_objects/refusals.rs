//! Tests of refusals: the refusing component, and its message.

use std::sync::Arc;

use tidewater_conformance::test_device;
use tidewater_runtime::mem::Region;
use tidewater_runtime::mem::region::read_only_fd;
use tidewater_verbs::{
    Access, CompletionChannel, CompletionQueue, Device, Flags, Gid, MemoryRegion, MemoryWindow,
    OpenPort, PairOptions, Peer, ProtectionDomain, QueuePair, RetryTimeout, SendBatch, Status,
    VerbsError,
};

use crate::rig::{BYTES, Memory, Rig, SENDS, open_port, options, path, peer, unconnected};

/// Posts; returns how that and a later request end.
fn refused(rig: &mut Rig, chain: &mut SendBatch) -> (Status, String) {
    chain.signal_last();
    chain.post(&mut rig.near.pair).unwrap();
    let done = rig.near.completions(1)[0];
    let said = done.check().unwrap_err().to_string();
    (done.status, said)
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn an_unknown_key_is_refused_in_words_and_what_follows_is_flushed() {
    let mut rig = Rig::new();
    let (local, open) = (rig.local(), rig.open());
    let mut chain = rig.chain();
    let mut from = open.mr.target(0);
    from.rkey ^= 0x5a5a_0000;
    let piece = local.mr.sge(0, 64).unwrap();
    chain.read(0xabc, &[piece], from, Flags::SIGNAL).unwrap();
    let (status, said) = refused(&mut rig, &mut chain);
    assert_eq!((status, status.code()), (Status::REMOTE_ACCESS, 10));
    assert!(status.is_access());
    for word in [
        "IBV_WC_REM_ACCESS_ERR",
        "(status 10)",
        "no such key",
        "0xabc",
    ] {
        assert!(said.contains(word), "{said}");
    }
    assert_eq!(local.bytes(0, 64), vec![0; 64]);
    chain
        .read(2, &[piece], open.mr.target(0), Flags::NONE)
        .unwrap();
    assert_eq!(refused(&mut rig, &mut chain).0, Status::FLUSHED);
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn rights_and_bounds_are_the_regions() {
    let rig = Rig::new();
    drop(rig);
    let read_only = Access::REMOTE_READ;
    type Post = fn(&mut SendBatch, &Memory, &Memory);
    let cases: [(&str, Access, Post); 4] = [
        ("a write without the right", read_only, |c, _, open| {
            c.write_inline(1, b"tampered", open.mr.target(0), Flags::NONE)
                .unwrap();
        }),
        (
            "an atomic without the right",
            read_only,
            |c, local, open| {
                let old = local.mr.sge(0, 8).unwrap();
                c.fetch_add(1, old, open.mr.target(0), 1, Flags::NONE)
                    .unwrap();
            },
        ),
        ("a read past the end", read_only, |c, local, open| {
            let piece = local.mr.sge(0, 64).unwrap();
            c.read(1, &[piece], open.mr.target(BYTES - 32), Flags::NONE)
                .unwrap();
        }),
        (
            "a read without the right",
            Access::LOCAL_WRITE,
            |c, local, open| {
                let piece = local.mr.sge(0, 64).unwrap();
                c.read(1, &[piece], open.mr.target(0), Flags::NONE).unwrap();
            },
        ),
    ];
    for (what, access, post) in cases {
        let mut rig = Rig::new();
        let local = rig.local();
        let open = Memory::new(&rig.pd, 0x10_0000, access);
        open.fill(0, b"original");
        let mut chain = rig.chain();
        post(&mut chain, &local, &open);
        let (status, said) = refused(&mut rig, &mut chain);
        assert_eq!(status, Status::REMOTE_ACCESS, "{what}: {said}");
        assert_eq!(open.bytes(0, 8), b"original", "{what}");
        assert_eq!(local.bytes(0, 64), vec![0; 64], "{what}");
    }
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn a_pair_lets_its_peer_do_what_it_was_made_for() {
    let reads_only = PairOptions {
        remote: Access::REMOTE_READ,
        ..options()
    };
    let mut rig = Rig::with(&reads_only, None);
    let open = rig.open();
    let mut chain = rig.chain();
    chain
        .write_inline(1, b"tampered", open.mr.target(0), Flags::NONE)
        .unwrap();
    let (status, said) = refused(&mut rig, &mut chain);
    assert!(status.is_access(), "{said}");
    assert_eq!(open.bytes(0, 8), [0; 8]);
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn a_region_behind_a_window_is_closed_without_it() {
    let mut rig = Rig::new();
    let inbox = Memory::new(&rig.pd, 0, Access::LOCAL_WRITE | Access::WINDOWS);
    let mut chain = rig.chain();
    chain
        .write_inline(1, b"tampered", inbox.mr.target(0), Flags::NONE)
        .unwrap();
    assert_eq!(refused(&mut rig, &mut chain).0, Status::REMOTE_ACCESS);
    assert_eq!(inbox.bytes(0, 8), [0; 8]);
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn a_stale_element_of_this_end_is_refused_by_its_device() {
    let mut rig = Rig::new();
    let (local, open) = (rig.local(), rig.open());
    let piece = local.mr.sge(0, 64).unwrap();
    drop(local);
    let mut chain = rig.chain();
    chain
        .write(1, &[piece], open.mr.target(0), Flags::NONE)
        .unwrap();
    let (status, said) = refused(&mut rig, &mut chain);
    // rxe of Linux 6.1 reports an operation that the pair does not support.
    let local = [Status::LOCAL_PROTECTION, Status::LOCAL_OPERATION];
    assert!(local.contains(&status), "{said}");
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn a_peer_without_a_receive_is_not_waited_for_long() {
    let mut rig = Rig::new();
    let open = rig.open();
    let mut chain = rig.chain();
    chain
        .write_imm(1, b"nobody", open.mr.target(0), 0, Flags::NONE)
        .unwrap();
    let (status, said) = refused(&mut rig, &mut chain);
    assert_eq!(status, Status::RECEIVER_NOT_READY, "{said}");
    assert!(said.contains("no receive posted"), "{said}");
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn a_peer_that_is_gone_is_not_waited_for_long() {
    let hasty = PairOptions {
        retry: RetryTimeout {
            timeout: 10,
            retries: 1,
            ..RetryTimeout::default()
        },
        ..options()
    };
    let rig = Rig::with(&hasty, None);
    let open = rig.open();
    let Rig { mut near, far, .. } = rig;
    drop(far);
    let mut chain = SendBatch::new(1, 1, 8);
    chain
        .write_inline(1, b"anybody?", open.mr.target(0), Flags::SIGNAL)
        .unwrap();
    chain.post(&mut near.pair).unwrap();
    let done = near.completions(1)[0];
    assert_eq!(done.status, Status::RETRY_EXCEEDED);
    assert!(
        done.check()
            .unwrap_err()
            .to_string()
            .contains("does not answer")
    );
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn a_full_send_queue_names_the_request_that_it_refused() {
    const MANY: usize = 1024; // rxe grants some more than requested
    let rig = Rig::new();
    let (local, open) = (rig.local(), rig.open());
    let Rig { mut near, far, .. } = rig;
    drop(far); // no peer answers, so that nothing leaves the queue
    let piece = local.mr.sge(0, 8).unwrap();
    let mut chain = SendBatch::new(MANY, 1, 0);
    for i in 0..MANY as u64 {
        let id = 0x1000 + i;
        chain
            .read(id, &[piece], open.mr.target(0), Flags::NONE)
            .unwrap();
    }
    let e = chain.post(&mut near.pair).unwrap_err();
    let said = e.to_string();
    let VerbsError::Post {
        index,
        of: MANY,
        wr_id,
        operation: "READ",
        errno,
        ..
    } = e
    else {
        panic!("{said}");
    };
    assert_eq!(wr_id, 0x1000 + index as u64);
    assert_eq!(errno, rustix::io::Errno::NOMEM);
    assert!((SENDS as usize..MANY).contains(&index), "{said}");
    assert!(
        said.contains("more is posted than the send queue takes"),
        "{said}"
    );
    assert!(chain.is_empty());
    // The requests before it are posted, and complete.
    near.pair.into_error().unwrap();
    let last = near.completions(index)[index - 1];
    assert_eq!(last.wr_id, 0x1000 + index as u64 - 1);
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn a_peer_that_cannot_be_is_refused_before_the_device_is_asked() {
    let open_port = open_port();
    let pd = ProtectionDomain::new(open_port.device()).unwrap();
    type Change = fn(&mut Peer);
    let cases: [(&str, Change); 6] = [
        ("queue pair", |p| p.qpn = 0),
        ("queue pair", |p| p.qpn = 1 << 24),
        ("packet", |p| p.psn = 1 << 24),
        ("256 bytes", |p| p.mtu = 255),
        ("READ", |p| p.reads = 0),
        ("READ", |p| p.reads_out = 0),
    ];
    for (word, change) in cases {
        let (pair, _queue) = unconnected(&open_port, &pd, &options(), None);
        let mut it = peer(&pair);
        change(&mut it);
        let e = pair.connect(&it).unwrap_err();
        assert!(matches!(e, VerbsError::Peer { .. }), "{e}");
        assert!(e.to_string().contains(word), "{e}");
    }
    // An address without a route from this port: the kernel's error, not a hang.
    let (pair, _queue) = unconnected(&open_port, &pd, &options(), None);
    let mut it = peer(&pair);
    it.gid = Gid::of([198, 51, 100, 1].into());
    let e = pair.connect(&it).unwrap_err();
    assert!(
        matches!(
            e,
            VerbsError::Call {
                verb: "ibv_modify_qp to RTR",
                ..
            }
        ),
        "{e}"
    );
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn what_the_device_does_not_have_is_refused_by_name() {
    let open_port = open_port();
    let device = open_port.device();
    let pd = ProtectionDomain::new(device).unwrap();
    let e = CompletionQueue::new(device, usize::MAX, None).unwrap_err();
    assert!(
        matches!(
            e,
            VerbsError::Limit {
                what: "completions in a queue",
                ..
            }
        ),
        "{e}"
    );
    let queue = CompletionQueue::new(device, 1, None).unwrap();
    let greedy = [
        PairOptions {
            sends: u32::MAX,
            ..options()
        },
        PairOptions {
            receives: u32::MAX,
            ..options()
        },
        PairOptions {
            elements: u32::MAX,
            ..options()
        },
    ];
    for options in greedy {
        let e = QueuePair::new(&pd, &path(&open_port), &queue, &queue, &options).unwrap_err();
        assert!(matches!(e, VerbsError::Limit { .. }), "{e}");
    }
    let e = OpenPort::for_address(test_device::address(), Some("nope0")).unwrap_err();
    assert!(matches!(e, VerbsError::NoPort { .. }), "{e}");
    assert!(
        e.to_string().contains("nope0") && e.to_string().contains(&**open_port.device().name()),
        "{e}"
    );
    // An address of no port: any port may reach the peer.
    let other = OpenPort::for_address([198, 51, 100, 1].into(), None).unwrap();
    assert!(other.device().name().starts_with("rxe"), "{other:?}");
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn objects_of_two_openings_are_not_mixed() {
    let mut rig = Rig::new();
    // The same device again is another context: an object of one is invalid in the other.
    let name = rig.open_port.device().name();
    let other = Device::open(name).unwrap();
    let channel = CompletionChannel::new(&other).unwrap();
    let queue = CompletionQueue::new(&other, 16, Some((&channel, 0))).unwrap();
    let pd = ProtectionDomain::new(&other).unwrap();
    let ours = &rig.far.queue;
    let make = |pd, sends, receives| {
        QueuePair::new(pd, &path(&rig.open_port), sends, receives, &options()).map(|_| ())
    };
    let mut refused = vec![
        make(&pd, ours, ours),
        make(&rig.pd, &queue, ours),
        make(&rig.pd, ours, &queue),
        CompletionQueue::new(rig.open_port.device(), 4, Some((&channel, 0))).map(|_| ()),
    ];
    let second = ProtectionDomain::new(rig.open_port.device()).unwrap();
    let windows = Access::LOCAL_WRITE | Access::WINDOWS;
    for (of_window, of_region) in [(&second, &rig.pd), (&rig.pd, &second)] {
        let memory = Memory::new(of_region, 0, windows);
        let window = MemoryWindow::new(of_window).unwrap();
        let access = Access::REMOTE_WRITE;
        let bound = rig
            .far
            .pair
            .bind_window(1, window, &memory.mr, 0, BYTES, access);
        refused.push(bound.map(|_| ()));
    }
    for result in refused {
        let e = result.unwrap_err();
        let VerbsError::Call { errno, .. } = e else {
            panic!("{e}");
        };
        assert_eq!(errno, rustix::io::Errno::XDEV, "{e}");
    }
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn registrations_are_checked() {
    let open_port = open_port();
    let pd = ProtectionDomain::new(open_port.device()).unwrap();
    let region = Arc::new(Region::anonymous(BYTES).unwrap());
    let register = |range, iova, access| MemoryRegion::register(&pd, &region, range, iova, access);
    for (range, iova, word) in [
        (0..BYTES + 1, 0, "outside"),
        (8..8, 8, "empty"),
        (0..64, u64::MAX - 4095, ""),
        (64..128, 0, "pages"),
        (0..BYTES, u64::MAX - 4095, "wrap"),
    ] {
        match register(range, iova, Access::NONE) {
            Err(e @ VerbsError::Bounds { .. }) if !word.is_empty() => {
                assert!(e.to_string().contains(word), "{e}");
            }
            Ok(_) if word.is_empty() => {}
            other => panic!("{word}: {other:?}"),
        }
    }
    // Part of a region, relaxed; its elements end where it does.
    let relaxed = Access::REMOTE_READ | Access::RELAXED_ORDERING;
    let part = register(4096 + 64..8192, 64, relaxed).unwrap();
    assert_eq!((part.iova(), part.len()), (64, 4032));
    println!("relaxed ordering taken: {}", part.is_relaxed());
    assert!(
        !register(0..64, 0, Access::REMOTE_READ)
            .unwrap()
            .is_relaxed()
    );
    assert!(part.sge(4032, 0).is_ok() && part.sge(0, 4032).is_ok());
    for (at, bytes) in [
        (0, 4033),
        (4032, 1),
        (4033, 0),
        (usize::MAX, 2),
        (1, usize::MAX),
    ] {
        let e = part.sge(at, bytes).unwrap_err();
        assert!(matches!(e, VerbsError::Bounds { bytes: 4032, .. }), "{e}");
    }
    // A device does not write memory that is mapped read-only, either.
    let (_shared, fd) = Region::memfd("test", BYTES).unwrap();
    let fd = read_only_fd(&fd).unwrap();
    let view = Arc::new(Region::from_peer(fd, BYTES, false).unwrap());
    let e = MemoryRegion::register(&pd, &view, 0..BYTES, 0, Access::LOCAL_WRITE).unwrap_err();
    assert!(e.to_string().contains("read-only"), "{e}");
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn too_little_locked_memory_is_told_with_the_remedy() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
    let open_port = open_port();
    let pd = ProtectionDomain::new(open_port.device()).unwrap();
    let region = Arc::new(Region::anonymous(16 << 20).unwrap());
    // The limit is the process's and soft; the capability to ignore it is this thread's alone.
    let before = getrlimit(Resource::Memlock);
    let mut caps = capabilities(None).unwrap();
    caps.effective.remove(CapabilitySet::IPC_LOCK);
    set_capabilities(None, caps).unwrap();
    let low = Rlimit {
        current: Some(1 << 20),
        maximum: before.maximum,
    };
    setrlimit(Resource::Memlock, low).unwrap();
    let made = MemoryRegion::register(&pd, &region, 0..16 << 20, 0, Access::LOCAL_WRITE);
    setrlimit(Resource::Memlock, before).unwrap();
    let e = made.unwrap_err();
    assert!(
        matches!(e, VerbsError::Memlock { bytes, limit, .. } if bytes == 16 << 20 && limit == 1 << 20),
        "{e}"
    );
    assert!(e.to_string().contains("ulimit -l unlimited"), "{e}");
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn a_window_of_too_large_a_range_is_refused() {
    let mut rig = Rig::new();
    let inbox = Memory::new(&rig.pd, 0, Access::LOCAL_WRITE | Access::WINDOWS);
    let window = MemoryWindow::new(&rig.pd).unwrap();
    let access = Access::REMOTE_WRITE;
    let e = rig
        .far
        .pair
        .bind_window(1, window, &inbox.mr, 8, BYTES, access)
        .unwrap_err();
    assert!(matches!(e, VerbsError::Bounds { .. }), "{e}");
    // A region without window access: the device refuses, in the completion or at once.
    let plain = rig.local();
    let window = MemoryWindow::new(&rig.pd).unwrap();
    match rig
        .far
        .pair
        .bind_window(2, window, &plain.mr, 0, BYTES, access)
    {
        Err(e) => assert!(matches!(e, VerbsError::Post { .. }), "{e}"),
        Ok(_) => {
            let status = rig.far.completions(1)[0].status;
            assert_eq!(status, Status::WINDOW_BIND);
        }
    }
}
