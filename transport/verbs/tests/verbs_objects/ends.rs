//! Tests of how objects end: flushed, in the right order, at once.

use std::sync::Arc;
use std::time::Duration;

use tidewater_runtime::clock;
use tidewater_verbs::{
    Access, CompletionChannel, CompletionQueue, Device, Flags, MemoryRegion, MemoryWindow,
    ProtectionDomain, QueuePair, ReadyToSend, SendBatch, Status,
};

use crate::rig::{Memory, Rig, open_port};

/// Time limit of an end. (With a window bound, `ibv_destroy_qp` on rxe of Linux 6.1 takes 50 s.)
const SOON: Duration = Duration::from_secs(1);

#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn a_pair_in_error_gives_everything_back() {
    let mut rig = Rig::new();
    rig.far.pair.post_receives(5, 16).unwrap();
    rig.far.pair.into_error().unwrap();
    rig.far.pair.into_error().unwrap();
    for done in rig.far.completions(16) {
        assert_eq!((done.wr_id, done.status), (5, Status::FLUSHED));
    }
    // Receives that are posted later complete too.
    let open = rig.open();
    let mut chain = rig.chain();
    for i in 0..8 {
        chain
            .write_inline(i, b"too late", open.mr.target(0), Flags::NONE)
            .unwrap();
    }
    chain.post(&mut rig.far.pair).unwrap();
    let ids: Vec<u64> = rig.far.completions(8).iter().map(|d| d.wr_id).collect();
    assert_eq!(ids, (0..8).collect::<Vec<_>>(), "each, signalled or not");
    assert_eq!(open.bytes(0, 8), [0; 8]);
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn a_pair_with_a_bound_window_is_destroyed_at_once() {
    // Other programs use the processors too: the fastest of three decides.
    let ends: Vec<Duration> = (0..3).map(|_| end_with_a_bound_window()).collect();
    println!("a pair with a bound window ended in {ends:?}");
    assert!(ends.iter().min() < Some(&SOON), "{ends:?}");
}

/// Time until a pair ends that is written through a window, as when a client's lane is recovered.
/// Nothing is written after that (F11).
fn end_with_a_bound_window() -> Duration {
    let mut rig = Rig::new();
    let inbox = Memory::new(&rig.pd, 0, Access::LOCAL_WRITE | Access::WINDOWS);
    let window = MemoryWindow::new(&rig.pd).unwrap();
    let len = inbox.mr.len();
    let rkey = rig
        .far
        .pair
        .bind_window(1, window, &inbox.mr, 0, len, Access::REMOTE_WRITE)
        .unwrap();
    rig.far.completions(1)[0].check().unwrap();
    let mut chain = rig.chain();
    let mut to = inbox.mr.target(0);
    to.rkey = rkey;
    for i in 0..32 {
        chain.write_inline(i, &[1; 64], to, Flags::NONE).unwrap();
    }
    chain.post(&mut rig.near.pair).unwrap();
    let Memory { region, mr } = inbox;
    // The window keeps the region's registration: this does not end it.
    drop(mr);
    let began = clock::now();
    drop(rig.far);
    let took = began.elapsed();

    assert_eq!(
        Arc::strong_count(&region),
        1,
        "all that held the memory is gone"
    );
    let before = region.words(0, len).unwrap().load(0);
    region.words_mut(0, len).unwrap().store(0, !before);
    chain.write_inline(99, &[2; 64], to, Flags::SIGNAL).unwrap();
    chain.post(&mut rig.near.pair).unwrap();
    rig.near.pair.into_error().unwrap();
    while rig.near.completions(1)[0].wr_id != 99 {}
    assert_eq!(region.words(0, len).unwrap().load(0), !before);
    took
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn objects_may_be_dropped_in_any_order() {
    let rig = Rig::new();
    let (local, open) = (rig.local(), rig.open());
    let Rig {
        near,
        far,
        pd,
        open_port,
    } = rig;
    let region = Arc::clone(&open.region);
    let mut chain = SendBatch::new(1, 1, 0);
    let piece = local.mr.sge(0, 4096).unwrap();
    let mut near = near;
    chain
        .read(1, &[piece], open.mr.target(0), Flags::SIGNAL)
        .unwrap();
    chain.post(&mut near.pair).unwrap();
    drop((open_port, pd, near.queue, local, open));
    drop(far);
    drop(near.pair);
    assert_eq!(Arc::strong_count(&region), 1);
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn a_device_that_is_still_used_is_not_opened_again() {
    let first = open_port();
    let device = Arc::clone(first.device());
    let pd = ProtectionDomain::new(&device).unwrap();
    drop((first, device));
    // Other tests here may hold the port meanwhile: then this checks less.
    let again = open_port();
    assert!(Arc::ptr_eq(again.device(), pd.device()));
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn objects_go_to_other_threads() {
    fn send<T: Send>() {}
    fn shared<T: Send + Sync>() {}
    send::<QueuePair<ReadyToSend>>();
    send::<SendBatch>();
    send::<MemoryWindow>();
    shared::<Arc<CompletionQueue>>();
    shared::<Arc<CompletionChannel>>();
    shared::<Arc<MemoryRegion>>();
    shared::<Arc<ProtectionDomain>>();
    shared::<Arc<Device>>();

    let mut rig = Rig::new();
    let open = rig.open();
    std::thread::spawn(move || {
        let mut chain = rig.chain();
        chain
            .write_inline(3, b"elsewhere", open.mr.target(0), Flags::NONE)
            .unwrap();
        assert_eq!(rig.near.run(&mut chain).wr_id, 3);
        assert_eq!(open.bytes(0, 9), b"elsewhere");
    })
    .join()
    .unwrap();
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn many_pairs_come_and_go() {
    let rig = Rig::new();
    let began = clock::now();
    for _ in 0..50 {
        let mut it = Rig::new();
        let open = it.open();
        let mut chain = it.chain();
        chain
            .write_inline(1, b"hello", open.mr.target(0), Flags::NONE)
            .unwrap();
        it.near.run(&mut chain);
        assert!(
            Arc::ptr_eq(&it.open_port, &rig.open_port),
            "one port for all"
        );
    }
    println!("50 connections made and ended in {:?}", began.elapsed());
}
