//! Armed queues wake, others do not.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tidewater_transport::verbs::{CompletionChannel, CompletionQueue, Flags};

use crate::rig::{Rig, adapter, options};

/// Whether the channel's descriptor becomes readable.
fn wakes(channel: &CompletionChannel, within: Duration) -> bool {
    let timeout = Timespec {
        tv_sec: within.as_secs() as i64,
        tv_nsec: i64::from(within.subsec_nanos()),
    };
    let mut fds = [PollFd::from_borrowed_fd(channel.as_fd(), PollFlags::IN)];
    poll(&mut fds, Some(&timeout)).unwrap() == 1
}

#[test]
fn an_armed_queue_wakes_once() {
    let Some(adapter) = adapter() else { return };
    let channel = CompletionChannel::new(adapter.device()).unwrap();
    let Some(mut rig) = Rig::with(&options(), Some((&channel, 0xbeef))) else {
        return;
    };
    let open = rig.open();
    rig.far.pair.post_receives(0, 16).unwrap();
    let mut chain = rig.chain();
    let mut signal = |rig: &mut Rig| {
        chain
            .write_imm(1, b"wake up!", open.mr.target(0), 1, Flags::NONE)
            .unwrap();
        rig.near.run(&mut chain);
    };

    // Not armed: it is there, and nobody is told.
    signal(&mut rig);
    rig.far.completions(1);
    assert!(!wakes(&channel, Duration::from_millis(50)));
    assert_eq!(channel.take_event().unwrap(), None);

    for _ in 0..20 {
        rig.far.queue.arm().unwrap();
        assert!(!wakes(&channel, Duration::ZERO));
        signal(&mut rig);
        assert!(wakes(&channel, Duration::from_secs(10)), "a lost wake-up");
        assert_eq!(channel.take_event().unwrap(), Some(0xbeef));
        assert_eq!(channel.take_event().unwrap(), None, "once");
        rig.far.completions(1);
        rig.far.pair.post_receives(0, 1).unwrap();
        // Armed no more.
        signal(&mut rig);
        rig.far.completions(1);
        rig.far.pair.post_receives(0, 1).unwrap();
        assert_eq!(channel.take_event().unwrap(), None);
    }
}

#[test]
fn a_queue_with_an_event_that_nobody_took_can_go() {
    let Some(adapter) = adapter() else { return };
    let channel = CompletionChannel::new(adapter.device()).unwrap();
    let Some(mut rig) = Rig::with(&options(), Some((&channel, 1))) else {
        return;
    };
    rig.far.queue.arm().unwrap();
    rig.far.pair.post_receives(0, 1).unwrap();
    rig.far.pair.into_error().unwrap();
    assert!(
        wakes(&channel, Duration::from_secs(10)),
        "a flush wakes too"
    );
    drop(rig.far);
    assert_eq!(
        channel.take_event().unwrap(),
        None,
        "its events went with it"
    );
    let other = CompletionQueue::new(adapter.device(), 4, Some((&channel, 2))).unwrap();
    other.arm().unwrap();
    assert_eq!(Arc::strong_count(&channel), 2);
}
