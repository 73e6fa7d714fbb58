//! Which variables hold where a program names its coordinator.

use super::*;

/// Variables say how lanes are made also where the program names the coordinator; its options come first.
#[test]
fn variables_of_lanes_hold_for_a_named_coordinator() {
    let vars: Vars = [
        ("TIDEWATER_TRANSPORT", "tcp"),
        ("TIDEWATER_RDMA_DEVICE", "rxe0:1"),
        ("TIDEWATER_RDMA_TIMEOUT", "15"),
    ]
    .map(|(name, value)| (name.into(), value.into()))
    .into();
    let mut options = JoinOptions {
        token: Some(JobToken::from_hex(&"7a".repeat(32)).unwrap()),
        ..JoinOptions::default()
    };
    let job = options.named("10.0.0.1:7070", &vars).unwrap();
    assert_eq!(job.transport, TransportChoice::Tcp);
    assert_eq!(job.rdma_device.unwrap().as_str(), "rxe0:1");
    assert!(job.fabric.timeout.is_some());
    options.transport = Some(TransportChoice::Shm);
    let job = options.named("10.0.0.1:7070", &vars).unwrap();
    assert_eq!(job.transport, TransportChoice::Shm);
}
