//! Wiring of TCP lanes, over this host's loopback.

use tidewater_lanes::fabric::TransportKind;
use tidewater_lanes::tcp;
use tidewater_lanes::wake::OsParker;

use crate::rig::{Memory, RING_BYTES, SALT};
use crate::threads::{Connect, ThreadRig};

/// The rig of TCP.
pub(crate) fn tcp() -> ThreadRig {
    ThreadRig {
        kind: TransportKind::Tcp,
        rounds: 300,
        awake: false,
        wire: Box::new(tcp_wire),
        allocations: None,
    }
}

fn tcp_wire(_memory: &Memory, _owner: &mut OsParker) -> Connect {
    Box::new(|client, owner| {
        let (near, far) = (client.reactor().clone(), owner.reactor().clone());
        let (lane, port, inbox) = tcp::pair(RING_BYTES, SALT, near, far).unwrap();
        (Box::new(lane), Box::new(port), inbox)
    })
}
