//! Wiring of verbs lanes: both ends on the RDMA device of one address.

use std::net::IpAddr;

use tidewater_lanes::fabric::TransportKind;
use tidewater_lanes::wake::OsParker;
use tidewater_protocol::mutants;
use tidewater_runtime::sync::Arc;
use tidewater_verbs::{
    self as verbs, ClientDomain, Domain, Notifier, OpenPort, RetryTimeout, VerbsError,
};

use crate::rig::{Memory, RING_BYTES, SALT};
use crate::threads::{Connect, ThreadRig};

/// Queue pairs of each lane for pulls: as many as a client of a server with two appliers has.
const PULLS: usize = 2;

/// The rig of the device that has `address`, or of the device that `device` names.
pub(crate) fn rig(address: IpAddr, device: Option<&str>) -> Result<ThreadRig, VerbsError> {
    let open_port = OpenPort::for_address(address, device)?;
    Ok(ThreadRig {
        kind: TransportKind::Verbs,
        // An emulated guest is slow.
        rounds: 60,
        // Then tails are polled.
        awake: mutants::busy_poll(),
        wire: Box::new(move |memory, owner| wire(&open_port, memory, owner)),
        allocations: None,
    })
}

fn wire(open_port: &Arc<OpenPort>, memory: &Memory, owner: &mut OsParker) -> Connect {
    let open_port = Arc::clone(open_port);
    let domain = Domain::new(&open_port, &memory.exports, RetryTimeout::default()).unwrap();
    let applier = Notifier::new(&open_port, owner.reactor(), owner.arms()).unwrap();
    let client = ClientDomain::new(&open_port, RetryTimeout::default()).unwrap();
    Box::new(move |parker, _owner| {
        let thread = Notifier::new(&open_port, parker.reactor(), parker.arms()).unwrap();
        let pair = verbs::pair(&domain, &applier, &client, &thread, PULLS, RING_BYTES, SALT);
        let (lane, port, inbox) = pair.unwrap();
        (Box::new(lane), Box::new(port), inbox)
    })
}
