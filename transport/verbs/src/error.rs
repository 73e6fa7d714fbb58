//! Errors of verbs, with the call, the device, the numbers and a remedy.

use std::fmt;

use rustix::io::Errno;

use tidewater_runtime::sync::Arc;
use tidewater_topology::NoPKey;

/// A verb that failed, or a device that is missing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VerbsError {
    /// This host has no usable RDMA device: the usual case off a cluster.
    #[error("no RDMA here: {why}")]
    NoDevice {
        /// Missing component, and how to install it.
        why: &'static str,
    },
    /// There are devices, but not the requested one.
    #[error("no RDMA device {wanted}; this host has {found}")]
    NoSuchDevice {
        /// Name of the requested device.
        wanted: Box<str>,
        /// Names of the devices found.
        found: Box<str>,
    },
    /// There are devices, but no port of them can be used.
    #[error(
        "no RDMA port can be used: {found}. `tidewater doctor --rdma` examines them; --rdma-device \
         names others"
    )]
    NoPort {
        /// Ports that exist or were named, each with the reason.
        found: Box<str>,
    },
    /// A call of libibverbs failed.
    #[error("{verb} on {device} failed: {errno}; {remedy}")]
    Call {
        /// Name of the verb.
        verb: &'static str,
        /// Name of the device.
        device: Arc<str>,
        /// Error number of the system.
        errno: Errno,
        /// Remedy for the error.
        remedy: &'static str,
    },
    /// Registered memory is locked memory, which the system limits.
    #[error(
        "cannot register {bytes} bytes with {device}: locked memory is limited to {limit} bytes \
         for all registrations together; raise it with `ulimit -l unlimited` (or \
         LimitMEMLOCK=infinity, or the container's --ulimit memlock=-1 --cap-add IPC_LOCK)"
    )]
    Memlock {
        /// Name of the device.
        device: Arc<str>,
        /// Bytes of this registration.
        bytes: usize,
        /// Soft limit of locked memory in bytes.
        limit: u64,
    },
    /// The device supports less than the lane needs.
    #[error("{device} grants {granted} {what}, {asked} are needed")]
    Limit {
        /// Name of the device.
        device: Arc<str>,
        /// Name of the limit, plural.
        what: &'static str,
        /// Number that the lane needs.
        asked: u64,
        /// Number that the device supports.
        granted: u64,
    },
    /// A value in a peer's connection data is impossible.
    #[error("a peer's queue pair cannot be reached from {device}: {what} ({value})")]
    Peer {
        /// Name of the device.
        device: Arc<str>,
        /// Name of the invalid value.
        what: &'static str,
        /// The invalid number itself.
        value: u64,
    },
    /// The port no longer has the address, or not the one that was asked for.
    #[error(
        "{port} has no RoCE v2 or InfiniBand GID {wanted}; it has {found}. Give the port the address, or \
         set --rdma-gid-index to one that it has"
    )]
    PortGid {
        /// Device and port, as in `mlx5_0:1`.
        port: Box<str>,
        /// Requested GID, or its index.
        wanted: Box<str>,
        /// GIDs of the port, with their indices.
        found: Box<str>,
    },
    /// The port is not in the partition.
    #[error(transparent)]
    PKey(#[from] NoPKey),
    /// Both ends are in different partitions, or limited members of one.
    #[error(
        "{device} has P_Key {ours:#06x} and its peer {theirs:#06x}: packets do not pass between them. Give \
         both ends one partition by --rdma-pkey, with full membership (bit 0x8000) at one end at least"
    )]
    Partition {
        /// Name of the device.
        device: Arc<str>,
        /// P_Key of this end.
        ours: u16,
        /// P_Key of the peer.
        theirs: u16,
    },
    /// A range is outside a registered region, or misaligned for the call.
    #[error("{len} bytes at {at:#x} of a registered region of {bytes} bytes: {why}")]
    Bounds {
        /// First byte, from the region's start.
        at: u64,
        /// Number of bytes asked for.
        len: u64,
        /// Bytes of the region.
        bytes: u64,
        /// Defect of the range.
        why: &'static str,
    },
    /// The batch cannot hold the request: a defect of the caller, nothing was queued.
    #[error("a chain of {capacity} requests was given {asked} {what}, it takes {most}")]
    SendBatch {
        /// Number of requests that it holds.
        capacity: usize,
        /// Name of the exceeded limit: requests, elements, inline bytes.
        what: &'static str,
        /// Number in the request.
        asked: usize,
        /// Limit of the batch.
        most: usize,
    },
    /// A batch was posted in part: the requests before `index` are posted, the others are not.
    #[error(
        "ibv_post_send to queue pair {qpn:#x} of {device} failed at request {index} of {of} \
         ({operation}, id {wr_id:#x}): {errno}; {remedy}"
    )]
    Post {
        /// Name of the device.
        device: Arc<str>,
        /// Number of the queue pair.
        qpn: u32,
        /// Index of the refused request, counted from 0.
        index: usize,
        /// Number of requests in the batch.
        of: usize,
        /// Operation of the refused request.
        operation: &'static str,
        /// The caller's number of the request.
        wr_id: u64,
        /// Error number of the provider.
        errno: Errno,
        /// Remedy for the error.
        remedy: &'static str,
    },
    /// A request that was posted has failed.
    #[error("request {wr_id:#x} of queue pair {qpn:#x} failed: {status} (vendor code {vendor:#x})")]
    Completion {
        /// Number of the queue pair.
        qpn: u32,
        /// The caller's number of the request.
        wr_id: u64,
        /// Completion status of the request.
        status: Status,
        /// The device's own error code, for its vendor.
        vendor: u32,
    },
}

/// Completion status of a work request.
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
    /// The request completed successfully.
    pub const SUCCESS: Self = Self(0);
    /// The queue pair does not support the operation.
    pub const LOCAL_OPERATION: Self = Self(2);
    /// The memory of this end is not registered for it.
    pub const LOCAL_PROTECTION: Self = Self(4);
    /// Not executed: an earlier request failed.
    pub const FLUSHED: Self = Self(5);
    /// The window could not be bound.
    pub const WINDOW_BIND: Self = Self(6);
    /// The peer does not support the request.
    pub const REMOTE_INVALID: Self = Self(9);
    /// The peer refused the access.
    pub const REMOTE_ACCESS: Self = Self(10);
    /// The peer does not answer any packet.
    pub const RETRY_EXCEEDED: Self = Self(12);
    /// The peer had no receive posted.
    pub const RECEIVER_NOT_READY: Self = Self(13);

    /// Wraps the number that the device returned.
    pub(super) const fn new(code: u32) -> Self {
        Self(code)
    }

    /// Returns the number of the status.
    pub const fn code(self) -> u32 {
        self.0
    }

    /// Whether the request succeeded.
    #[inline]
    pub const fn is_success(self) -> bool {
        self.0 == 0
    }

    /// Whether a key, a right, or a bound was wrong (F09): `REM_ACCESS`, `REM_INV_REQ`, and this end's
    /// `LOC_PROT` and `LOC_ACCESS`.
    pub const fn is_access(self) -> bool {
        matches!(self.0, 4 | 8 | 9 | 10)
    }

    /// Returns its name in `<infiniband/verbs.h>`.
    pub const fn name(self) -> &'static str {
        match self.0 as usize {
            n if n < STATUS.len() => STATUS[n].0,
            _ => "an unknown status",
        }
    }

    /// Returns its meaning, and what to check.
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

/// Remedy for an error number of a verb that creates an object.
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
