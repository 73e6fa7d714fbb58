//! Tests that armed queues wake, and that others do not.

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, BorrowedFd};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tidewater_runtime::clock::Deadline;
use tidewater_verbs::{
    CompletionChannel, CompletionQueue, Device, DeviceEvent, EventWeight, Flags, OpenPort,
};

use crate::rig::{Rig, open_port, options};

/// Whether the channel's descriptor becomes readable within `within`.
fn wakes(channel: &CompletionChannel, within: Duration) -> bool {
    is_readable(channel.as_fd(), within)
}

fn is_readable(fd: BorrowedFd<'_>, within: Duration) -> bool {
    let timeout = Timespec {
        tv_sec: within.as_secs() as i64,
        tv_nsec: i64::from(within.subsec_nanos()),
    };
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    poll(&mut fds, Some(&timeout)).unwrap() == 1
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn an_armed_queue_wakes_once() {
    let open_port = open_port();
    let channel = CompletionChannel::new(open_port.device()).unwrap();
    let mut rig = Rig::with(&options(), Some((&channel, 0xbeef)));
    let open = rig.open();
    rig.far.pair.post_receives(0, 16).unwrap();
    let mut chain = rig.chain();
    let mut signal = |rig: &mut Rig| {
        chain
            .write_imm(1, b"wake up!", open.mr.target(0), 1, Flags::NONE)
            .unwrap();
        rig.near.run(&mut chain);
    };

    // Not armed: the completion is there, and no event.
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
        // Not armed any more.
        signal(&mut rig);
        rig.far.completions(1);
        rig.far.pair.post_receives(0, 1).unwrap();
        assert_eq!(channel.take_event().unwrap(), None);
    }
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn a_queue_with_an_event_that_nobody_took_can_go() {
    let open_port = open_port();
    let channel = CompletionChannel::new(open_port.device()).unwrap();
    let mut rig = Rig::with(&options(), Some((&channel, 1)));
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
    let other = CompletionQueue::new(open_port.device(), 4, Some((&channel, 2))).unwrap();
    other.arm().unwrap();
    assert_eq!(Arc::strong_count(&channel), 2);
}

/// Uses the device of the guest's second NIC, which has no network and may be taken down.
#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn a_port_that_goes_down_and_up_says_so() {
    let local = IpAddr::V4(Ipv4Addr::new(10, 9, 0, 1));
    let open_port = OpenPort::for_address(local, Some("rxe1")).expect("rxe1 on dummy0, 10.9.0.1");
    let device = open_port.device();
    let quiet = Duration::from_millis(50);
    while is_readable(device.events(), quiet) {
        device.take_event().unwrap();
    }
    assert_eq!(device.take_event(), Ok(None), "it does not block");
    set_card("down");
    let down = awaited(device, "IBV_EVENT_PORT_ERR");
    assert_eq!(down.weight, EventWeight::Failure);
    assert_eq!(down.port(), Some(u32::from(open_port.port())));
    assert!(!device.port(open_port.port()).unwrap().active);
    set_card("up");
    let up = awaited(device, "IBV_EVENT_PORT_ACTIVE");
    println!("{down}\n{up}");
    assert_eq!(up.weight, EventWeight::Change);
}

fn set_card(state: &str) {
    let mut ip = Command::new("ip");
    let done = ip.args(["link", "set", "dummy0", state]).status().unwrap();
    assert!(done.success(), "{ip:?}: {done}");
}

/// Waits for the device's next event of that name.
fn awaited(device: &Device, name: &str) -> DeviceEvent {
    let end = Deadline::after(Duration::from_secs(10));
    loop {
        assert!(!end.passed(), "no {name}");
        if is_readable(device.events(), Duration::from_millis(200))
            && let Some(event) = device.take_event().unwrap()
            && event.name() == name
        {
            return event;
        }
    }
}
