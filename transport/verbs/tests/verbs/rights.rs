//! Refusals of the device, with the status of each.

use tidewater_lanes::fabric::{ClientLane, INBOX_KEY, LaneError, RemoteAddr};
use tidewater_protocol::layout::session::{INBOX_RING_AT, inbox_bytes};

use crate::harness::{Ends, Host, RING, late, row};

fn inbox(addr: usize) -> RemoteAddr {
    RemoteAddr {
        key: INBOX_KEY,
        addr: addr as u64,
    }
}

/// Returns the error that ends a write.
fn refused(ends: &mut Ends, to: RemoteAddr) -> LaneError {
    let end = late();
    if let Err(e) = ends
        .lane
        .write(to, &[0xbb; 64])
        .and_then(|()| ends.lane.flush())
    {
        return e;
    }
    loop {
        if let Err(e) = ends.lane.poll() {
            return e;
        }
        assert!(!end.passed(), "a write to {to:?} is not refused");
    }
}

fn all_zero(bytes: &tidewater_lanes::fabric::Inbox) -> bool {
    let window = bytes.window().as_read();
    (0..window.len()).step_by(8).all(|at| window.load(at) == 0)
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn writes_outside_the_own_inbox_are_refused_by_the_device() {
    let host = Host::new();
    let mut victim = host.connect(1);
    let before = host.data.words(0, 64).unwrap().line(0);

    let mut ends = host.connect(1);
    let error = refused(&mut ends, host.at(0));
    println!("a write to parameters: {error}");
    assert!(matches!(error, LaneError::Access { .. }), "{error}");
    assert_eq!(host.data.words(0, 64).unwrap().line(0), before);

    let mut ends = host.connect(1);
    let error = refused(&mut ends, inbox(inbox_bytes(RING)));
    println!("a write one byte past the own inbox: {error}");
    assert!(matches!(error, LaneError::Access { .. }), "{error}");

    // Another session's inbox, by its valid key.
    let key = victim.told.inbox.key;
    let mut ends = host.connect_as(1, |told| told.inbox.key = key);
    let error = refused(&mut ends, inbox(INBOX_RING_AT));
    println!("a write to another's inbox with its true key: {error}");
    if host.open_port.device().limits().windows {
        assert!(matches!(error, LaneError::Access { .. }), "{error}");
        assert!(all_zero(&victim.inbox), "the other's inbox was changed");
    }
    // The other session continues to work.
    victim
        .lane
        .write_signal(inbox(INBOX_RING_AT), &[1; 64])
        .unwrap();
    victim.settle();
    assert_eq!(
        victim.inbox.window().as_read().load(INBOX_RING_AT),
        u64::from_le_bytes([1; 8])
    );
}

/// A counter's key permits no read through a pair that pushes, and no write; an inbox's key no read.
#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn keys_are_good_for_their_own_right_only() {
    let host = Host::new();
    let counter = RemoteAddr {
        key: host.counters_key,
        addr: 0,
    };
    let mut ends = host.connect(2);
    assert_eq!(ends.lane.fetch_add(counter, 5, late()).unwrap(), 0);
    assert_eq!(ends.lane.compare_swap(counter, 5, 7, late()).unwrap(), 5);
    assert_eq!(host.counters.words(0, 8).unwrap().load_acquire(0), 7);
    let error = refused(&mut ends, counter);
    assert!(matches!(error, LaneError::Access { .. }), "{error}");

    let mut ends = host.connect(2);
    let error = ends.read(&[row(inbox(0), 64, 0)]).unwrap_err();
    assert!(matches!(error, LaneError::Access { .. }), "{error}");

    let mut ends = host.connect(2);
    let error = ends.lane.fetch_add(host.at(0), 1, late()).unwrap_err();
    println!("an atomic on parameters: {error}");
    assert!(matches!(error, LaneError::Access { .. }), "{error}");
}

/// A range registered while lanes are open can be read through them at once.
#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn ranges_that_come_later_are_registered_before_their_keys() {
    use tidewater_lanes::fabric::{AccessFlags, RegisteredRegion};
    use tidewater_runtime::mem::Region;
    use tidewater_runtime::sync::Arc;

    let host = Host::new();
    let mut ends = host.connect(2);
    for n in 0..20u64 {
        let region = Arc::new(Region::anonymous(8192).unwrap());
        region.words_mut(4096, 8).unwrap().store(0, n);
        let key = host.exports.add(RegisteredRegion {
            region,
            start: 4096,
            len: 4096,
            rights: AccessFlags::Read,
            memory: 0,
        });
        let from = RemoteAddr {
            key: key.unwrap(),
            addr: 4096,
        };
        let (head, _) = ends.read(&[row(from, 64, 0)]).unwrap();
        assert_eq!(head[..8], n.to_le_bytes());
    }
    // Below the range, in the same memory.
    let from = RemoteAddr {
        key: tidewater_protocol::ids::RegionKey(host.data_key.0 + 2),
        addr: 0,
    };
    let error = ends.read(&[row(from, 64, 0)]).unwrap_err();
    assert!(matches!(error, LaneError::Access { .. }), "{error}");
}
