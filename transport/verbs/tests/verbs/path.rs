//! The proof that a path carries short and full packets.

use tidewater_protocol::layout::directory::KEY_CELL_BYTES;
use tidewater_protocol::wire::control::VerbsConnected;
use tidewater_verbs::PathError;

use crate::harness::{Host, late};

/// The error of a lane whose answer was changed by `tamper`.
fn refused(host: &Host, tamper: impl FnOnce(&mut VerbsConnected)) -> PathError {
    let mut ends = host.connect_as(1, tamper);
    let error = ends.lane.prove_path(late()).unwrap_err();
    println!("{error}");
    error
}

/// A path that carries short requests only differs from one that carries none. Here the device refuses
/// the long ones, as no network in a guest loses packets by their length.
#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn a_path_is_proved_by_short_and_full_packets() {
    let host = Host::new();
    let mut ends = host.connect(2);
    ends.settle();
    let before = ends.lane.counters();
    let window = ends.inbox.window().as_read();
    let was: Vec<u64> = (0..window.len())
        .step_by(8)
        .map(|at| window.load(at))
        .collect();
    ends.lane.prove_path(late()).unwrap();
    let cost = ends.lane.counters() - before;
    assert_eq!(
        (cost.reads, cost.writes, cost.atomics),
        (2, 1, 0),
        "{cost:?}"
    );
    let window = ends.inbox.window().as_read();
    let is: Vec<u64> = (0..window.len())
        .step_by(8)
        .map(|at| window.load(at))
        .collect();
    assert!(is == was, "the proof has left a trace in the inbox");

    let end = |told: &VerbsConnected| told.directory.address + told.directory.len;
    let error = refused(&host, |told| told.directory.address = end(told));
    assert!(matches!(error, PathError::Silent { .. }), "{error}");
    let cell = KEY_CELL_BYTES as u64;
    let error = refused(&host, |told| told.directory.address = end(told) - cell);
    assert!(
        matches!(error, PathError::Mtu { what: "READ", .. }),
        "{error}"
    );
    let mtu = format!("MTU of {}", host.open_port.mtu());
    assert!(error.to_string().contains(&mtu), "{error}");
    let error = refused(&host, |told| told.inbox.key.0 ^= 0x100);
    assert!(
        matches!(error, PathError::Mtu { what: "WRITE", .. }),
        "{error}"
    );
}
