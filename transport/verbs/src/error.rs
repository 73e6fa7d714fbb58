//! What goes wrong with verbs, in words: which call, on which device, with which numbers, and what
//! to do about it.

use std::fmt;
use std::net::IpAddr;

use rustix::io::Errno;

use tidewater_runtime::sync::Arc;

/// A verb that failed, or a device that is not there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VerbsError {
    /// This host has no RDMA device that can be used: the usual case off a cluster.
    #[error("no RDMA here: {why}")]
    NoDevice {
        /// What is missing, and how to get it.
        why: &'static str,
    },
    /// There are devices, but not the one asked for.
    #[error("no RDMA device {wanted}; this host has {found}")]
    NoSuchDevice {
        /// Asked for: a device, or `device:port`.
        wanted: Box<str>,
        /// What there is.
        found: Box<str>,
    },
    /// No port carries the local address.
    #[error(
        "no RDMA port has a RoCE v2 address (GID) equal to {address}; {found}. Give the RDMA \
         interface that address, connect through an address it has, or name the device"
    )]
    NoGid {
        /// The local address of the control connection.
        address: IpAddr,
        /// What was looked at.
        found: Box<str>,
    },
    /// A call failed.
    #[error("{verb} on {device} failed: {errno}; {remedy}")]
    Call {
        /// The verb.
        verb: &'static str,
        /// The device.
        device: Arc<str>,
        /// The system's word.
        errno: Errno,
        /// What to do.
        remedy: &'static str,
    },
    /// Registered memory is locked memory, and that is limited.
    #[error(
        "cannot register {bytes} bytes with {device}: locked memory is limited to {limit} bytes \
         for all registrations together; raise it with `ulimit -l unlimited` (or \
         LimitMEMLOCK=infinity, or the container's --ulimit memlock=-1 --cap-add IPC_LOCK)"
    )]
    Memlock {
        /// The device.
        device: Arc<str>,
        /// Bytes of this registration.
        bytes: usize,
        /// The soft limit.
        limit: u64,
    },
    /// The device cannot give as much as is needed.
    #[error("{device} grants {granted} {what}, {asked} are needed")]
    Limit {
        /// The device.
        device: Arc<str>,
        /// Of what, plural.
        what: &'static str,
        /// Needed.
        asked: u64,
        /// There is.
        granted: u64,
    },
    /// What a peer told to bring a connection up is not possible.
    #[error("a peer's queue pair cannot be reached from {device}: {what} ({value})")]
    Peer {
        /// The device.
        device: Arc<str>,
        /// What is wrong.
        what: &'static str,
        /// The number that is.
        value: u64,
    },
    /// Tails of pushes were to be polled, and the device does not promise what that takes.
    #[error(
        "{device} does not say that it places data in order (ibv_query_qp_data_in_order answers 0, \
         or libibverbs is older than IBVERBS_1.14 and cannot be asked), so tails of pushes cannot be \
         polled on it as --busy-poll=tails asks; start servers with --busy-poll, which signals them \
         where it must"
    )]
    NotInOrder {
        /// The device.
        device: Arc<str>,
    },
    /// A range that is not inside a registered region, or does not lie as the call needs it.
    #[error("{len} bytes at {at:#x} of a registered region of {bytes} bytes: {why}")]
    Bounds {
        /// First byte, from the region's start.
        at: u64,
        /// Bytes asked for.
        len: u64,
        /// Bytes of the region.
        bytes: u64,
        /// What is wrong.
        why: &'static str,
    },
    /// The chain cannot take the request: a fault of the caller, nothing was queued.
    #[error("a chain of {capacity} requests was given {asked} {what}, it takes {most}")]
    SendBatch {
        /// Requests that it holds.
        capacity: usize,
        /// Of what: requests, elements, inline bytes.
        what: &'static str,
        /// Given.
        asked: usize,
        /// Most it takes.
        most: usize,
    },
    /// A chain was not taken whole: the requests before `index` are posted, the others are not.
    #[error(
        "ibv_post_send to queue pair {qpn:#x} of {device} failed at request {index} of {of} \
         ({operation}, id {wr_id:#x}): {errno}; {remedy}"
    )]
    Post {
        /// The device.
        device: Arc<str>,
        /// The queue pair.
        qpn: u32,
        /// The request that was refused, counted from 0.
        index: usize,
        /// Requests of the chain.
        of: usize,
        /// What it was.
        operation: &'static str,
        /// The caller's number of it.
        wr_id: u64,
        /// The provider's word.
        errno: Errno,
        /// What to do.
        remedy: &'static str,
    },
    /// A request that was posted has failed.
    #[error("request {wr_id:#x} of queue pair {qpn:#x} failed: {status} (vendor code {vendor:#x})")]
    Completion {
        /// The queue pair.
        qpn: u32,
        /// The caller's number of it.
        wr_id: u64,
        /// Why.
        status: Status,
        /// The device's own code, for its maker.
        vendor: u32,
    },
}

/// Why a work request completed as it did.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[doc(alias = "ibv_wc_status")]
pub struct Status(u32);

/// Name and meaning of each status, by number.
const STATUS: [(&str, &str); 24] = [
    ("IBV_WC_SUCCESS", "done"),
    (
        "IBV_WC_LOC_LEN_ERR",
        "a message did not fit its receive, or is longer than the port takes",
    ),
    (
        "IBV_WC_LOC_QP_OP_ERR",
        "the queue pair cannot do this operation: a fault of this program",
    ),
    (
        "IBV_WC_LOC_EEC_OP_ERR",
        "the end-to-end context cannot do this operation",
    ),
    (
        "IBV_WC_LOC_PROT_ERR",
        "this end's memory is not registered for what was asked of it",
    ),
    (
        "IBV_WC_WR_FLUSH_ERR",
        "not done: the queue pair was already in error; look at the first failure",
    ),
    (
        "IBV_WC_MW_BIND_ERR",
        "the window could not be bound: its region lacks the right, or its key is old",
    ),
    (
        "IBV_WC_BAD_RESP_ERR",
        "the peer's answer is not one to what was asked",
    ),
    (
        "IBV_WC_LOC_ACCESS_ERR",
        "the peer wrote where this end did not let it",
    ),
    (
        "IBV_WC_REM_INV_REQ_ERR",
        "the peer cannot do this: no receive fits, or the operation is off there",
    ),
    (
        "IBV_WC_REM_ACCESS_ERR",
        "the peer has no such key, or not this right, or the range is outside",
    ),
    ("IBV_WC_REM_OP_ERR", "the peer failed while doing it"),
    (
        "IBV_WC_RETRY_EXC_ERR",
        "the peer does not answer: it is gone, its port is down, or the network loses packets (check UDP port 4791 and the MTU)",
    ),
    (
        "IBV_WC_RNR_RETRY_EXC_ERR",
        "the peer had no receive posted for too long",
    ),
    (
        "IBV_WC_LOC_RDD_VIOL_ERR",
        "the reliable datagram domains differ",
    ),
    (
        "IBV_WC_REM_INV_RD_REQ_ERR",
        "the peer refused a reliable datagram",
    ),
    ("IBV_WC_REM_ABORT_ERR", "the peer aborted the operation"),
    ("IBV_WC_INV_EECN_ERR", "no such end-to-end context"),
    (
        "IBV_WC_INV_EEC_STATE_ERR",
        "the end-to-end context is in the wrong state",
    ),
    ("IBV_WC_FATAL_ERR", "the device failed"),
    (
        "IBV_WC_RESP_TIMEOUT_ERR",
        "the peer's answer did not come in time",
    ),
    (
        "IBV_WC_GENERAL_ERR",
        "the device says no more than that it failed",
    ),
    ("IBV_WC_TM_ERR", "tag matching failed"),
    (
        "IBV_WC_TM_RNDV_INCOMPLETE",
        "a tagged message is incomplete",
    ),
];

impl Status {
    /// Done.
    pub const SUCCESS: Self = Self(0);
    /// The queue pair cannot do it.
    pub const LOCAL_OPERATION: Self = Self(2);
    /// This end's memory is not registered for it.
    pub const LOCAL_PROTECTION: Self = Self(4);
    /// Not done: an earlier request failed.
    pub const FLUSHED: Self = Self(5);
    /// The window could not be bound.
    pub const WINDOW_BIND: Self = Self(6);
    /// The peer cannot do this.
    pub const REMOTE_INVALID: Self = Self(9);
    /// The peer refused the access.
    pub const REMOTE_ACCESS: Self = Self(10);
    /// The peer does not answer.
    pub const RETRY_EXCEEDED: Self = Self(12);
    /// The peer had no receive posted.
    pub const RECEIVER_NOT_READY: Self = Self(13);

    /// From the number that the device gave.
    pub(super) const fn new(code: u32) -> Self {
        Self(code)
    }

    /// The number.
    pub const fn code(self) -> u32 {
        self.0
    }

    /// Whether the request was done.
    #[inline]
    pub const fn is_success(self) -> bool {
        self.0 == 0
    }

    /// Whether a key, a right, or a bound was wrong (F09): `REM_ACCESS`, `REM_INV_REQ`, and this
    /// end's `LOC_PROT` and `LOC_ACCESS`.
    pub const fn is_access(self) -> bool {
        matches!(self.0, 4 | 8 | 9 | 10)
    }

    /// Its name in `<infiniband/verbs.h>`.
    pub const fn name(self) -> &'static str {
        match self.0 as usize {
            n if n < STATUS.len() => STATUS[n].0,
            _ => "an unknown status",
        }
    }

    /// What it means, and what to look at.
    pub const fn meaning(self) -> &'static str {
        match self.0 as usize {
            n if n < STATUS.len() => STATUS[n].1,
            _ => "the device is newer than this program",
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (status {}): {}", self.name(), self.0, self.meaning())
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name(), self.0)
    }
}

/// What to do about an error number of a verb that makes something.
pub(super) fn remedy(errno: Errno) -> &'static str {
    match errno {
        Errno::NOMEM => {
            "the device or the kernel is out of memory for it, or locked memory is limited (ulimit -l)"
        }
        Errno::PERM | Errno::ACCESS => {
            "allow it: read and write access to /dev/infiniband, in a container --device /dev/infiniband --cap-add IPC_LOCK"
        }
        Errno::OPNOTSUPP | Errno::NOSYS => "the device or its provider cannot do this",
        Errno::INVAL => "the device refused an attribute",
        Errno::MFILE | Errno::NFILE => "raise the limit of open files (ulimit -n)",
        Errno::XDEV => {
            "it was given objects of another open device or domain: a fault of this program"
        }
        Errno::BUSY => "something still uses it",
        Errno::NETUNREACH | Errno::HOSTUNREACH => {
            "there is no route to the peer's address from this port"
        }
        Errno::TIMEDOUT => "the peer's address could not be resolved; is it on this network?",
        Errno::NODEV | Errno::IO => "the device is gone or has failed; look at dmesg",
        _ => "look at dmesg",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_have_the_names_and_numbers_of_the_header() {
        for (status, code, name) in [
            (Status::SUCCESS, 0, "IBV_WC_SUCCESS"),
            (Status::LOCAL_OPERATION, 2, "IBV_WC_LOC_QP_OP_ERR"),
            (Status::LOCAL_PROTECTION, 4, "IBV_WC_LOC_PROT_ERR"),
            (Status::FLUSHED, 5, "IBV_WC_WR_FLUSH_ERR"),
            (Status::WINDOW_BIND, 6, "IBV_WC_MW_BIND_ERR"),
            (Status::REMOTE_INVALID, 9, "IBV_WC_REM_INV_REQ_ERR"),
            (Status::REMOTE_ACCESS, 10, "IBV_WC_REM_ACCESS_ERR"),
            (Status::RETRY_EXCEEDED, 12, "IBV_WC_RETRY_EXC_ERR"),
            (Status::RECEIVER_NOT_READY, 13, "IBV_WC_RNR_RETRY_EXC_ERR"),
            (Status::new(23), 23, "IBV_WC_TM_RNDV_INCOMPLETE"),
        ] {
            assert_eq!((status.code(), status.name()), (code, name));
        }
        let access: Vec<u32> = (0..64).filter(|&n| Status::new(n).is_access()).collect();
        assert_eq!(access, [4, 8, 9, 10]);
        assert!(Status::new(u32::MAX).to_string().contains("4294967295"));
        assert!((1..64).all(|n| !Status::new(n).is_success()));
    }

    #[test]
    fn errors_are_small_enough_for_the_data_path() {
        assert!(size_of::<VerbsError>() <= 96, "{}", size_of::<VerbsError>());
    }
}
