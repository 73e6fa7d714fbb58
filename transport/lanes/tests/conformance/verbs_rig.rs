//! Wiring of verbs lanes, over the RDMA device that has this host's loopback address: rxe on `lo`, in the
//! guest of `ci/softroce.sh`.

use crate::threads::ThreadRig;

/// The rig; panics without a device.
pub(crate) fn here() -> ThreadRig {
    rig().unwrap_or_else(|why| panic!("no verbs here: {why}"))
}

/// The rig, or the reason why there is none.
#[cfg(not(any(feature = "verbs", feature = "verbs-dlopen")))]
pub(crate) fn rig() -> Result<ThreadRig, String> {
    Err("built without the features `verbs` and `verbs-dlopen`".to_owned())
}

#[cfg(any(feature = "verbs", feature = "verbs-dlopen"))]
pub(crate) use wired::rig;

#[cfg(any(feature = "verbs", feature = "verbs-dlopen"))]
mod wired {
    use std::net::{IpAddr, Ipv4Addr};

    use tidewater_lanes::fabric::TransportKind;
    use tidewater_lanes::wake::OsParker;
    use tidewater_protocol::mutants;
    use tidewater_runtime::sync::Arc;
    use tidewater_verbs::{
        self as verbs, OpenPort, ClientDomain, Domain, Notifier, RetryTimeout, VerbsError,
    };

    use crate::rig::{Memory, RING_BYTES, SALT};
    use crate::threads::{Connect, ThreadRig};

    /// Queue pairs of each lane for pulls: as many as a client of a server with two appliers has.
    const PULLS: usize = 2;

    fn open_port() -> Result<Arc<OpenPort>, VerbsError> {
        OpenPort::for_address(IpAddr::V4(Ipv4Addr::LOCALHOST), None)
    }

    pub(crate) fn rig() -> Result<ThreadRig, String> {
        open_port().map_err(|e| e.to_string())?;
        Ok(ThreadRig {
            kind: TransportKind::Verbs,
            // An emulated guest is slow.
            rounds: 60,
            // Then tails are polled.
            awake: mutants::busy_poll(),
            wire: verbs_wire,
        })
    }

    fn verbs_wire(memory: &Memory, owner: &mut OsParker) -> Connect {
        let open_port = open_port().unwrap();
        let domain = Domain::new(&open_port, &memory.exports, RetryTimeout::default()).unwrap();
        let applier = Notifier::new(&open_port, owner.reactor(), owner.arms()).unwrap();
        let client = ClientDomain::new(&open_port, RetryTimeout::default()).unwrap();
        Box::new(move |parker, _owner| {
            let thread = Notifier::new(&open_port, parker.reactor(), parker.arms()).unwrap();
            let (server, client) = ((&domain, &applier), (&client, &thread));
            let (lane, port, inbox) = verbs::pair(server, client, PULLS, RING_BYTES, SALT).unwrap();
            (Box::new(lane), Box::new(port), inbox)
        })
    }
}
