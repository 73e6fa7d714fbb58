//! Tests of what is left of the ranked ports. Their rank is tested with `tidewater-topology`.

use super::*;

#[test]
fn a_host_without_a_usable_port_says_why() {
    let e = usable(RankedPorts::default(), &[]).unwrap_err();
    assert!(matches!(e, VerbsError::NoPort { .. }), "{e}");
    assert!(e.to_string().contains("tidewater doctor --rdma"), "{e}");
}

#[test]
fn a_port_that_does_not_take_the_longest_message_is_refused() {
    let device: Arc<str> = Arc::from("mlx5_0");
    let port = |message_bytes| PortState {
        active: true,
        link: Link::Ethernet,
        lid: 0,
        mtu: 1024,
        message_bytes,
    };
    let least = VERBS_SCATTER_BYTES as u32;
    assert!(takes_messages(&device, &port(least)).is_ok());
    let e = takes_messages(&device, &port(least - 1)).unwrap_err();
    let says = "mlx5_0 grants 1048575 bytes in a message, 1048576 are needed";
    assert_eq!(e.to_string(), says);
}
