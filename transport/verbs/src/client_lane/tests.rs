use std::time::Duration;

use super::super::{ClientDomain, Domain, Notifier, OpenPort, RetryTimeout, VerbsServerLane, pair};
use super::*;
use tidewater_conformance::test_device::{address, device};
use tidewater_lanes::fabric::{AccessFlags, Inbox, RegionTable, RegisteredRegion, ServerLane};
use tidewater_lanes::wake::OsParker;
use tidewater_protocol::limits::VERBS_SILENT_LOOKS;
use tidewater_runtime::mem::Region;

const ROW: usize = 272;
const ROWS: usize = 3;

/// Both ends of a lane, and the expected contents of its reads.
struct Rig {
    lane: VerbsClientLane,
    port: VerbsServerLane,
    exports: Arc<RegionTable>,
    inbox: Inbox,
    want: Vec<u8>,
    ops: [ReadOp; ROWS],
    _sleeper: OsParker,
}

impl Rig {
    /// Both ends retransmit only as `retry` specifies.
    fn new(retry: RetryTimeout) -> Self {
        let open_port = OpenPort::for_address(address(), device().as_deref()).unwrap();
        let exports = Arc::new(RegionTable::new(1));
        let data = Arc::new(Region::anonymous(4096).unwrap());
        let want: Vec<u8> = (0..ROWS * ROW).map(|n| (n % 251) as u8).collect();
        data.words_mut(0, want.len()).unwrap().copy_in(0, &want);
        let export = RegisteredRegion {
            region: data,
            start: 0,
            len: 4096,
            rights: AccessFlags::Read,
            memory: 0,
        };
        let key = exports.add(export).unwrap();
        let domain = Domain::new(&open_port, &exports, retry).unwrap();
        let client = ClientDomain::new(&open_port, retry).unwrap();
        let parker = OsParker::new(Duration::ZERO).unwrap();
        let thread = Notifier::new(&open_port, parker.reactor(), parker.arms()).unwrap();
        let (lane, port, inbox) = pair(&domain, &thread, &client, &thread, 1, 1 << 16, 3).unwrap();
        let op = |n: usize| ReadOp {
            from: RemoteAddr {
                key,
                addr: (n * ROW) as u64,
            },
            len: ROW as u32,
            head_len: 0,
            head_at: 0,
            body_at: n * ROW,
            fence: n > 0,
        };
        Self {
            lane,
            port,
            exports,
            inbox,
            want,
            ops: std::array::from_fn(op),
            _sleeper: parker,
        }
    }

    fn read(&mut self) -> Result<(), LaneError> {
        let mut body = vec![0; self.want.len()];
        let into = ReadDest {
            head: &mut [],
            body: &mut body,
        };
        let done = self.lane.read(&self.ops, into, late());
        assert!(done.is_err() || body == self.want);
        done
    }
}

/// Long past the polls after which a lane is broken.
fn late() -> Deadline {
    Deadline::after(VERBS_PROBE_EVERY * (4 * VERBS_SILENT_LOOKS))
}

/// A timeout with which a device waits for ever: lost packets are never sent again, and never fail.
fn for_ever() -> RetryTimeout {
    RetryTimeout::with_timeout(0)
}

#[track_caller]
fn assert_lost(error: &LaneError) {
    println!("{error}");
    assert!(matches!(error, LaneError::Broken { .. }), "{error}");
    assert!(error.to_string().contains("has lost it"), "{error}");
}

/// A call, a batch and a push that their device never completes break the lane long before their
/// deadline.
#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn a_request_that_never_ends_breaks_the_lane() {
    let mut rig = Rig::new(for_ever());
    rig.read().unwrap();
    rig.port.destroy();
    assert_lost(&rig.read().unwrap_err());

    for pushes in [false, true] {
        let mut rig = Rig::new(for_ever());
        rig.read().unwrap();
        rig.port.destroy();
        if pushes {
            let tail = RemoteAddr {
                key: tidewater_lanes::fabric::INBOX_KEY,
                addr: 4096,
            };
            rig.lane.write_signal(tail, &[1; 8]).unwrap();
        } else {
            let batch = ReadBatch {
                ops: vec![rig.ops[0]],
                head: Vec::new(),
                body: vec![0; ROW],
                tag: 0,
            };
            rig.lane.submit_read(batch).unwrap();
        }
        let end = late();
        let error = loop {
            if let Err(error) = rig.lane.poll() {
                break error;
            }
            assert!(!end.passed(), "pushes: {pushes}");
            std::thread::sleep(Duration::from_millis(20));
        };
        assert_lost(&error);
    }
}

/// The server's end detects a lost client likewise, and asks to be polled.
#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn a_post_that_never_ends_breaks_the_port() {
    let mut rig = Rig::new(for_ever());
    let mut view = rig.exports.view();
    let end = late();
    while rig.port.poll(&mut view, &rig.inbox).unwrap() || rig.port.poll_hint().is_some() {
        assert!(!end.passed());
    }
    drop(rig.lane);
    rig.port.post(0, &[1; 64]).unwrap();
    rig.port.signal().unwrap();
    let error = loop {
        if let Err(error) = rig.port.poll(&mut view, &rig.inbox) {
            break error;
        }
        assert_eq!(rig.port.poll_hint(), Some(VERBS_PROBE_EVERY));
        assert!(!end.passed());
        std::thread::sleep(Duration::from_millis(20));
    };
    assert_lost(&error);
    assert_eq!(rig.port.poll_hint(), None);
}
