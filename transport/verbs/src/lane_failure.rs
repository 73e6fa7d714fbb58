//! Reasons why a lane breaks, before their conversion to `LaneError`.

use rustix::io::Errno;

use super::error::{Status, VerbsError};
use super::open_port::OpenPort;
use tidewater_lanes::fabric::{LaneError, RemoteAddr, TransportKind};
use tidewater_protocol::ids::RegionKey;

/// A request of this end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Request {
    /// Operation of the request.
    pub(super) op: &'static str,
    /// Remote address of the request.
    pub(super) at: RemoteAddr,
    /// Number of bytes it moves.
    pub(super) len: u64,
}

impl Request {
    /// Describes `op` on `len` bytes.
    pub(super) const fn new(op: &'static str, at: RemoteAddr, len: usize) -> Self {
        let len = len as u64;
        Self { op, at, len }
    }

    /// Signal that carries only the count of receives posted again.
    pub(super) const EMPTY_SIGNAL: Self = Self::of_nothing("signal");

    /// Request that probes the peer.
    pub(super) const PROBE: Self = Self::of_nothing("probe");

    const fn of_nothing(op: &'static str) -> Self {
        let at = RemoteAddr {
            key: RegionKey(0),
            addr: 0,
        };
        Self { op, at, len: 0 }
    }
}

/// Reason why a lane broke.
#[derive(Debug)]
pub(super) enum LaneFailure {
    /// A call of libibverbs failed.
    Verbs(VerbsError),
    /// A request failed; or a receive did, and nothing more is known.
    Ended(Option<Request>, Status),
    /// A request has been in flight for longer than its device may take.
    Lost(Request),
    /// This end refuses the request: a device would not detect the defect, or could not.
    Refused(Request, &'static str),
    /// The peer sent what no correct peer sends; or this end has a defect.
    Because(&'static str),
}

impl From<VerbsError> for LaneFailure {
    fn from(e: VerbsError) -> Self {
        Self::Verbs(e)
    }
}

impl LaneFailure {
    /// Converts to an error of opening a lane, during which only verbs run.
    #[cold]
    pub(super) fn into_verbs(self, open_port: &OpenPort) -> VerbsError {
        match self {
            Self::Verbs(e) => e,
            _ => open_port.device().failed("ibv_post_send", Errno::IO),
        }
    }

    /// Converts to the lane's error; `op` is the current call.
    #[cold]
    pub(super) fn into_lane_error(self, peer: &str, op: &'static str) -> LaneError {
        let why = match self {
            Self::Refused(request, why) => return access(peer, &request, why),
            Self::Ended(Some(request), status) if status.is_access() => {
                return access(peer, &request, refusal(status));
            }
            Self::Ended(Some(Request { op, len, .. }), status) => {
                format!("{op} of {len} bytes ended with {status}")
            }
            Self::Lost(Request { op, len, .. }) => format!(
                "{op} of {len} bytes has not ended long after its retries: the device has lost it"
            ),
            Self::Ended(None, status) => format!("a receive ended with {status}"),
            Self::Verbs(e) => e.to_string(),
            Self::Because(why) => why.to_owned(),
        };
        broken(peer, op, why)
    }
}

/// Error of a lane that broke during `op`.
#[cold]
pub(super) fn broken(peer: &str, op: &'static str, why: String) -> LaneError {
    LaneError::Broken {
        transport: TransportKind::Verbs,
        peer: peer.to_owned(),
        op,
        why,
    }
}

/// Status and meaning of a refused access.
fn refusal(status: Status) -> &'static str {
    match status {
        Status::REMOTE_ACCESS => {
            "IBV_WC_REM_ACCESS_ERR: it has no such key, not this right, or the range is outside"
        }
        Status::REMOTE_INVALID => "IBV_WC_REM_INV_REQ_ERR: it does not do such an operation there",
        Status::LOCAL_PROTECTION => {
            "IBV_WC_LOC_PROT_ERR: this end's memory is not registered for it"
        }
        _ => status.name(),
    }
}

fn access(peer: &str, request: &Request, why: &'static str) -> LaneError {
    LaneError::Access {
        peer: peer.to_owned(),
        op: request.op,
        key: request.at.key.0,
        addr: request.at.addr,
        len: request.len,
        why,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_access_and_the_rest_is_broken() {
        let at = RemoteAddr {
            key: RegionKey(0x20),
            addr: 0x1000,
        };
        let op = "write";
        let request = Request { op, at, len: 64 };
        for refusal in [
            LaneFailure::Refused(request, "misaligned"),
            LaneFailure::Ended(Some(request), Status::REMOTE_ACCESS),
            LaneFailure::Ended(Some(request), Status::REMOTE_INVALID),
        ] {
            let error = refusal.into_lane_error("s", "flush");
            assert!(
                matches!(
                    error,
                    LaneError::Access {
                        op: "write",
                        key: 0x20,
                        addr: 0x1000,
                        len: 64,
                        ..
                    }
                ),
                "{error}"
            );
        }
        let lost = LaneFailure::Ended(Some(request), Status::RETRY_EXCEEDED);
        let text = lost.into_lane_error("server 3", "flush").to_string();
        for part in [
            "server 3",
            "flush",
            "write of 64 bytes",
            "IBV_WC_RETRY_EXC_ERR",
        ] {
            assert!(text.contains(part), "{text}");
        }
        let lost = LaneFailure::Lost(request).into_lane_error("server 3", "read");
        assert!(matches!(lost, LaneError::Broken { .. }), "{lost}");
        assert!(
            lost.to_string().contains("write of 64 bytes has not ended"),
            "{lost}"
        );
        let flushed = LaneFailure::Ended(None, Status::FLUSHED).into_lane_error("s", "poll");
        assert!(matches!(flushed, LaneError::Broken { .. }), "{flushed}");
    }
}
