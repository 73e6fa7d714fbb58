//! Asynchronous events of a device: a port goes down, a queue pair or the device itself fails.
//!
//! No lane waits for an event: its effect on a lane shows in the lane's completions, soon or at its
//! next probe, and a lane that is rebuilt reads its port again. Events explain in the log why lanes break,
//! and name the remedy. A fatal one marks its device.

use std::fmt;

use super::ffi::Element;
use tidewater_runtime::sync::Arc;

/// An event of a device, described by its `Display`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[doc(alias = "ibv_async_event")]
pub struct DeviceEvent {
    /// Name of the device.
    pub device: Arc<str>,
    /// Severity of the event.
    pub weight: EventWeight,
    kind: &'static Kind,
    /// Number of the port or queue pair; 0 for other elements.
    of: u32,
}

/// Severity of a device event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventWeight {
    /// Lanes break, and an operator has to act.
    Failure,
    /// The state changed, for the better or for later connections.
    Change,
    /// A detail that needs no attention.
    Detail,
}

/// One of the library's events.
#[derive(Debug, PartialEq, Eq)]
struct Kind {
    name: &'static str,
    of: Element,
    weight: EventWeight,
    /// Meaning of the event, and its remedy.
    words: &'static str,
}

impl DeviceEvent {
    /// The event with the library's number `number`.
    pub(super) fn new(device: &Arc<str>, number: i32, of: u32) -> Self {
        let kind = kind(number);
        Self {
            device: Arc::clone(device),
            weight: kind.weight,
            kind,
            of,
        }
    }

    /// Returns its name in C, such as `IBV_EVENT_PORT_ERR`.
    pub const fn name(&self) -> &'static str {
        self.kind.name
    }

    /// Whether the device has failed with all objects made with it.
    pub fn is_fatal(&self) -> bool {
        *self.kind == KINDS[DEVICE_FATAL]
    }

    /// Logs it in one line, with the remedy.
    pub(super) fn log(&self) {
        match self.weight {
            EventWeight::Failure => tracing::warn!("RDMA: {self}"),
            EventWeight::Change => tracing::info!("RDMA: {self}"),
            EventWeight::Detail => tracing::debug!("RDMA: {self}"),
        }
    }

    /// Returns the port of the event, counted from 1; `None` for other events.
    pub fn port(&self) -> Option<u32> {
        (self.kind.of == Element::Port).then_some(self.of)
    }
}

impl fmt::Display for DeviceEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            device, kind, of, ..
        } = self;
        match kind.of {
            Element::Port => write!(f, "port {of} of {device}")?,
            Element::Pair => write!(f, "queue pair {of:#x} of {device}")?,
            Element::Other => write!(f, "{device}")?,
        }
        write!(f, " {} ({})", kind.words, kind.name)
    }
}

/// Kind of element that an event concerns, by its number.
pub(super) fn element(number: i32) -> Element {
    kind(number).of
}

fn kind(number: i32) -> &'static Kind {
    const UNKNOWN: Kind = Kind {
        name: "an event that this version does not know",
        of: Element::Other,
        weight: EventWeight::Detail,
        words: "reported something",
    };
    let known = usize::try_from(number).ok().and_then(|n| KINDS.get(n));
    known.unwrap_or(&UNKNOWN)
}

/// Number of the event `IBV_EVENT_DEVICE_FATAL`.
const DEVICE_FATAL: usize = 8;

/// By number, as `infiniband/verbs.h` has them.
static KINDS: [Kind; 20] = {
    use Element::{Other, Pair, Port};
    use EventWeight::{Change, Detail, Failure};
    const fn event(
        name: &'static str,
        of: Element,
        weight: EventWeight,
        words: &'static str,
    ) -> Kind {
        Kind {
            name,
            of,
            weight,
            words,
        }
    }
    const SUBNET: &str = "hears of a change in its subnet: lanes that lead nowhere now break and are \
                          recovered with its new address";
    [
        event(
            "IBV_EVENT_CQ_ERR",
            Other,
            Failure,
            "has lost completions of a full queue: the lanes that use it break; a defect of this \
             program, please report it",
        ),
        event(
            "IBV_EVENT_QP_FATAL",
            Pair,
            Failure,
            "has failed: its lane breaks and is recovered; if it comes again, look at dmesg and at \
             the firmware's version",
        ),
        event(
            "IBV_EVENT_QP_REQ_ERR",
            Pair,
            Failure,
            "was sent what is no request: its lane breaks and is recovered; are both ends of one \
             version?",
        ),
        event(
            "IBV_EVENT_QP_ACCESS_ERR",
            Pair,
            Failure,
            "was asked for memory that its peer may not have: refused, and the lane breaks; if it \
             comes again, a client is faulty or hostile",
        ),
        event("IBV_EVENT_COMM_EST", Pair, Detail, "is heard from"),
        event("IBV_EVENT_SQ_DRAINED", Pair, Detail, "has sent everything"),
        event("IBV_EVENT_PATH_MIG", Pair, Detail, "goes another way"),
        event("IBV_EVENT_PATH_MIG_ERR", Pair, Detail, "found no other way"),
        event(
            "IBV_EVENT_DEVICE_FATAL",
            Other,
            Failure,
            "has failed: its lanes break, and are recovered once it can be opened again; look at dmesg",
        ),
        event(
            "IBV_EVENT_PORT_ACTIVE",
            Port,
            Change,
            "is up: lanes over it can be recovered",
        ),
        event(
            "IBV_EVENT_PORT_ERR",
            Port,
            Failure,
            "is down: lanes over it break, and are recovered when it is up again; look at the cable, \
             the switch, `rdma link` and `ip link`",
        ),
        event("IBV_EVENT_LID_CHANGE", Port, Change, SUBNET),
        event("IBV_EVENT_PKEY_CHANGE", Port, Change, SUBNET),
        event("IBV_EVENT_SM_CHANGE", Port, Change, SUBNET),
        event(
            "IBV_EVENT_SRQ_ERR",
            Other,
            Detail,
            "has a failed receive queue",
        ),
        event(
            "IBV_EVENT_SRQ_LIMIT_REACHED",
            Other,
            Detail,
            "is short of receives",
        ),
        event(
            "IBV_EVENT_QP_LAST_WQE_REACHED",
            Pair,
            Detail,
            "takes nothing more",
        ),
        event("IBV_EVENT_CLIENT_REREGISTER", Port, Change, SUBNET),
        event(
            "IBV_EVENT_GID_CHANGE",
            Port,
            Change,
            "has other addresses: lanes that break are recovered by where the address is in its table now",
        ),
        event(
            "IBV_EVENT_WQ_FATAL",
            Other,
            Detail,
            "has a failed work queue",
        ),
    ]
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_says_what_of_what_happened_and_what_to_do() {
        let device: Arc<str> = "mlx5_0".into();
        let down = DeviceEvent::new(&device, 10, 2);
        assert_eq!((down.weight, down.port()), (EventWeight::Failure, Some(2)));
        for part in ["port 2 of mlx5_0 is down", "cable", "IBV_EVENT_PORT_ERR"] {
            assert!(down.to_string().contains(part), "{down}");
        }
        let pair = DeviceEvent::new(&device, 3, 0x1b);
        assert_eq!(
            (pair.name(), pair.port()),
            ("IBV_EVENT_QP_ACCESS_ERR", None)
        );
        assert!(
            pair.to_string().starts_with("queue pair 0x1b of mlx5_0"),
            "{pair}"
        );
        assert_eq!(KINDS[8].name, "IBV_EVENT_DEVICE_FATAL");
        assert_eq!(KINDS[19].name, "IBV_EVENT_WQ_FATAL");
        for number in [20, -1, i32::MAX] {
            let later = DeviceEvent::new(&device, number, 7);
            assert_eq!(later.weight, EventWeight::Detail, "{later}");
            assert_eq!(element(number), Element::Other, "nothing in it is followed");
        }
    }
}
