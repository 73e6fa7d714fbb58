//! Queue pairs of reliable connections, their states as types, and how they end.
//!
//! A pair is created in INIT: it can take receives, and the peer can receive its number and first
//! packet number. [`QueuePair::connect`] checks the peer's numbers and brings it to RTS, from where it
//! can send. It ends by [`QueuePair::into_error`], which flushes what was posted, and is destroyed when
//! it is dropped: no packet of its peer has an effect after that (F11).
//!
//! Windows bound to a pair belong to it, because they have to be destroyed first. With one still bound,
//! `ibv_destroy_qp` on rxe of Linux 6.1 blocks for 50 s.

use std::fmt;
use std::marker::PhantomData;
use std::ptr::{NonNull, null_mut};

use rustix::io::Errno;

use super::device::mtu_number;
use super::error::{VerbsError, remedy};
use super::ffi::{self, bits, ibv_wr_opcode};
use super::memory::{Access, MemoryRegion, MemoryWindow, ProtectionDomain};
use super::open_port::OpenPort;
use super::path::Path;
use super::queue::CompletionQueue;
use super::retry::RetryTimeout;
use super::sysfs::{Gid, Link};
use tidewater_protocol::limits::VERBS_HOP_LIMIT;
use tidewater_protocol::wire::control::VerbsEce;
use tidewater_runtime::sync::Arc;
use tidewater_topology::PortSettings;

/// Queue pair numbers and packet numbers have 24 bits.
const NUMBERS: u32 = 1 << 24;
/// Receives that are posted with one call.
const RECEIVES: usize = 16;

/// Created: receives can be posted, nothing is sent or received.
#[derive(Debug)]
pub enum Init {}

/// Connected: requests are executed. (Or it is in error since, and flushes them.)
#[derive(Debug)]
pub enum ReadyToSend {}

/// Size, peer rights and retry timeout of a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PairOptions {
    /// Work requests that can be posted and not completed.
    pub sends: u32,
    /// Receives that can be posted.
    pub receives: u32,
    /// Elements of a request's scatter or gather list.
    pub elements: u32,
    /// Bytes that a request can carry inline. What is granted may be more or less.
    pub inline_bytes: u32,
    /// Access of the peer through this pair, to regions that allow it too.
    pub remote: Access,
    /// Retry timeout towards a silent peer.
    pub retry: RetryTimeout,
}

/// Attributes that a device has for a connected pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[doc(alias = "ibv_qp_attr")]
pub struct PairAttributes {
    /// Traffic class of its packets.
    pub traffic_class: u8,
    /// Flow label of its packets.
    pub flow_label: u32,
    /// Index of its GID in the port's table.
    pub gid_index: u8,
    /// Service level of its packets.
    pub service_level: u8,
    /// Static rate, a number of `enum ibv_rate`.
    pub static_rate: u8,
    /// Index of its P_Key in the port's table.
    pub pkey_index: u16,
    /// Exponent of its timeout.
    pub timeout: u8,
    /// Retransmissions of a packet.
    pub retries: u8,
}

/// Other end of a pair, as the peer described it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// Number of its queue pair.
    pub qpn: u32,
    /// Number of the first packet that it sends.
    pub psn: u32,
    /// GID of its port.
    pub gid: Gid,
    /// Address of its port in an InfiniBand subnet; 0 on Ethernet.
    pub lid: u16,
    /// Payload bytes of the packets that its port accepts.
    pub mtu: u16,
    /// READs and atomics that it can answer at once.
    pub reads: u8,
    /// READs and atomics that it can have in flight at once.
    pub reads_out: u8,
}

/// A queue pair of a reliable connection, in one of its states.
///
/// # Thread safety
/// It may move between threads. Posting takes `&mut`; [`QueuePair::into_error`] takes `&self`, because
/// another thread may watch the deadlines.
#[doc(alias = "ibv_qp")]
pub struct QueuePair<S> {
    inner: Inner,
    state: PhantomData<fn() -> S>,
}

/// # Invariants
/// - `qp` is not destroyed; the queues and the domain that it uses are held here.
struct Inner {
    qp: NonNull<ffi::ibv_qp>,
    qpn: u32,
    psn: u32,
    options: PairOptions,
    windows: Vec<MemoryWindow>,
    path: Path,
    pd: Arc<ProtectionDomain>,
    _queues: [Arc<CompletionQueue>; 2],
}

// SAFETY: libibverbs is thread-safe; only `drop`, which owns it, destroys it.
unsafe impl Send for Inner {}
// SAFETY: as above; `&self` reads numbers and changes the state, which the kernel serializes.
unsafe impl Sync for Inner {}

impl QueuePair<Init> {
    /// Creates a pair on the path's port, in INIT, with a random first packet number. Its
    /// completions go to `sends` and `receives`, which must have room for all that can be posted.
    ///
    /// # Errors
    /// [`VerbsError::Limit`] when the device does not have so much; [`VerbsError::Call`], with EXDEV
    /// when the arguments are not of one open device.
    #[doc(alias = "ibv_create_qp")]
    pub fn new(
        pd: &Arc<ProtectionDomain>,
        path: &Path,
        sends: &Arc<CompletionQueue>,
        receives: &Arc<CompletionQueue>,
        options: &PairOptions,
    ) -> Result<Self, VerbsError> {
        let device = pd.device();
        // A provider would take another device's object for its own.
        let open_port = path.open_port();
        let all = [open_port.device(), sends.device(), receives.device()];
        if !all.iter().all(|d| Arc::ptr_eq(d, device)) {
            return Err(device.failed("ibv_create_qp", Errno::XDEV));
        }
        check_limits(pd, options)?;
        let psn = getrandom::u32().map_err(|_| device.failed("getrandom", Errno::IO))?;
        let mut attributes = ffi::ibv_qp_init_attr {
            qp_context: null_mut(),
            send_cq: sends.raw().as_ptr(),
            recv_cq: receives.raw().as_ptr(),
            srq: null_mut(),
            cap: ffi::ibv_qp_cap {
                max_send_wr: options.sends,
                max_recv_wr: options.receives,
                max_send_sge: options.elements,
                max_recv_sge: 1,
                max_inline_data: options.inline_bytes,
            },
            qp_type: bits::RELIABLE,
            sq_sig_all: 0,
        };
        // SAFETY: domain and queues live (invariants), are of one device, and are held below as
        // long as the pair.
        let qp = unsafe { ffi::create_qp(pd.raw(), &mut attributes) }
            .map_err(|e| device.failed("ibv_create_qp", e))?;
        // SAFETY: just created; libibverbs filled its fields.
        let qpn = unsafe { (*qp.as_ptr()).qp_num };
        let inner = Inner {
            qp,
            qpn,
            psn: psn % NUMBERS,
            options: PairOptions {
                sends: attributes.cap.max_send_wr,
                receives: attributes.cap.max_recv_wr,
                elements: attributes.cap.max_send_sge,
                inline_bytes: attributes.cap.max_inline_data,
                ..*options
            },
            windows: Vec::new(),
            path: path.clone(),
            pd: Arc::clone(pd),
            _queues: [Arc::clone(sends), Arc::clone(receives)],
        };
        let mut init = ffi::empty_attributes();
        init.qp_state = bits::STATE_INIT;
        init.port_num = open_port.port();
        init.pkey_index = path.settings().pkey_index;
        init.qp_access_flags = options.remote.bits();
        inner.modify(&mut init, bits::TO_INIT, "ibv_modify_qp to INIT")?;
        Ok(Self {
            inner,
            state: PhantomData,
        })
    }

    /// Connects it to its peer; the peer must connect its pair to this one in turn. From now on it
    /// answers. Its own requests are answered once the peer is connected too. READs in flight are
    /// limited by this end and by the peer's answers; packets by the smaller MTU of both ports.
    ///
    /// # Errors
    /// [`VerbsError::Peer`] for impossible numbers; [`VerbsError::Call`], for example with ENETUNREACH
    /// or ETIMEDOUT when there is no route to the peer's address. The pair is gone then.
    #[doc(alias = "ibv_modify_qp")]
    pub fn connect(self, peer: &Peer) -> Result<QueuePair<ReadyToSend>, VerbsError> {
        let inner = self.inner;
        let path_mtu = inner.check_peer(peer)?;
        let limits = inner.pd.device().limits();
        let mut answer = ffi::empty_attributes();
        answer.qp_state = bits::STATE_RTR;
        answer.path_mtu = path_mtu;
        answer.dest_qp_num = peer.qpn;
        answer.rq_psn = peer.psn;
        answer.max_dest_rd_atomic = limits.reads.min(peer.reads_out);
        answer.min_rnr_timer = inner.options.retry.rnr_timer;
        let path = &inner.path;
        answer.ah_attr.port_num = path.open_port().port();
        let from = (path.gid(), path.gid_index());
        route(
            &mut answer.ah_attr,
            (path.port().link, from),
            path.settings(),
            peer,
        );
        inner.modify(&mut answer, bits::TO_RTR, "ibv_modify_qp to RTR")?;

        let mut send = ffi::empty_attributes();
        send.qp_state = bits::STATE_RTS;
        send.sq_psn = inner.psn;
        send.max_rd_atomic = limits.reads_out.min(peer.reads);
        send.timeout = inner.options.retry.timeout;
        send.retry_cnt = inner.options.retry.retries;
        send.rnr_retry = inner.options.retry.rnr_retries;
        inner.modify(&mut send, bits::TO_RTS, "ibv_modify_qp to RTS")?;
        Ok(QueuePair {
            inner,
            state: PhantomData,
        })
    }
}

impl QueuePair<Init> {
    /// Asks its device to use these ECE options, the peer's; has an effect when it is connected.
    ///
    /// # Errors
    /// [`VerbsError::Call`]: the options are of another vendor, or the library has none.
    #[doc(alias = "ibv_set_ece")]
    pub(super) fn set_ece(&self, ece: VerbsEce) -> Result<(), VerbsError> {
        // SAFETY: the pair lives (invariant).
        unsafe { ffi::set_ece(self.inner.qp, ece) }
            .map_err(|e| self.inner.pd.device().failed("ibv_set_ece", e))
    }
}

impl QueuePair<ReadyToSend> {
    /// Takes a window and posts the request that opens `bytes` bytes of `region`, from `at` on, to this
    /// pair's peer. Returns the window's new key. The completion has `wr_id`; send the key to the peer
    /// after it. The window is closed when the pair is dropped. Cost: allocates.
    ///
    /// # Errors
    /// [`VerbsError::Bounds`]; [`VerbsError::Call`] with EXDEV when window or region is of another
    /// domain; [`VerbsError::Post`] when the provider refuses.
    #[doc(alias = "IBV_WR_BIND_MW")]
    pub fn bind_window(
        &mut self,
        wr_id: u64,
        mut window: MemoryWindow,
        region: &Arc<MemoryRegion>,
        at: usize,
        bytes: usize,
        access: Access,
    ) -> Result<u32, VerbsError> {
        let range = region.sge(at, bytes)?;
        if ![window.domain(), region.domain()]
            .iter()
            .all(|d| Arc::ptr_eq(d, &self.inner.pd))
        {
            return Err(self
                .inner
                .pd
                .device()
                .failed("bind of a window", Errno::XDEV));
        }
        let rkey = window.next_rkey();
        let mut request = ffi::empty_request();
        request.wr_id = wr_id;
        request.opcode = ibv_wr_opcode::IBV_WR_BIND_MW;
        request.send_flags = bits::SIGNALED;
        request.bind_mw_tso_union = ffi::bind(
            window.raw(),
            rkey,
            region.raw(),
            range.address,
            bytes as u64,
            access.bits(),
        );
        // SAFETY: pair, window and region live (invariants) and are of one device; the pair keeps the
        // window, and that the region, from here on.
        let posted = unsafe { ffi::post_send(self.inner.qp, &raw mut request) };
        posted.map_err(|(errno, _)| VerbsError::Post {
            device: Arc::clone(self.inner.pd.device().name()),
            qpn: self.inner.qpn,
            index: 0,
            of: 1,
            operation: "bind of a window",
            wr_id,
            errno,
            remedy: remedy(errno),
        })?;
        window.set_bound(Arc::clone(region));
        self.inner.windows.push(window);
        Ok(rkey)
    }
}

impl QueuePair<ReadyToSend> {
    /// Whether its device promises to place the data of each WRITE of the peer in order. If so, a
    /// thread that polls the memory may trust it. It promises nothing about two WRITEs. `None` where
    /// the library lacks the query. Cost: a call of the provider, on some devices a system call.
    #[doc(alias = "ibv_query_qp_data_in_order")]
    pub fn data_in_order(&self) -> Option<bool> {
        // SAFETY: the pair lives (invariant).
        unsafe { ffi::query_qp_data_in_order(self.inner.qp) }
    }
}

impl<S> QueuePair<S> {
    /// Returns its number for the peer, 24 bits.
    pub const fn qpn(&self) -> u32 {
        self.inner.qpn
    }

    /// Returns the number of its first packet for the peer, 24 bits.
    pub const fn psn(&self) -> u32 {
        self.inner.psn
    }

    /// Returns its options as granted: queues can be larger than asked for, and the inline bytes larger
    /// or smaller.
    pub const fn granted(&self) -> &PairOptions {
        &self.inner.options
    }

    /// Returns the port of the pair.
    pub const fn open_port(&self) -> &Arc<OpenPort> {
        self.inner.path.open_port()
    }

    /// Returns the path of the pair.
    pub const fn path(&self) -> &Path {
        &self.inner.path
    }

    /// Posts `count` receives without memory, which is all that a WRITE with immediate data takes. All
    /// have the same number. Cost: no system call, no allocation.
    ///
    /// # Errors
    /// [`VerbsError::Call`] with ENOMEM when more are posted than it was created for; the number of
    /// accepted ones is then unknown.
    #[doc(alias = "ibv_post_recv")]
    pub fn post_receives(&mut self, wr_id: u64, count: usize) -> Result<(), VerbsError> {
        let mut left = count;
        while left > 0 {
            let now = left.min(RECEIVES);
            let mut list = [const { ffi::empty_receive() }; RECEIVES];
            let first = list.as_mut_ptr();
            for i in 0..now {
                let last = i + 1 == now;
                let receive = ffi::ibv_recv_wr {
                    wr_id,
                    next: if last {
                        null_mut()
                    } else {
                        first.wrapping_add(i + 1)
                    },
                    sg_list: null_mut(),
                    num_sge: 0,
                };
                // SAFETY: inside the array, through the pointer that the list is read by.
                unsafe { first.wrapping_add(i).write(receive) };
            }
            // SAFETY: the pair lives (invariant); the list ends inside the array and has no
            // elements.
            unsafe { ffi::post_recv(self.inner.qp, first) }
                .map_err(|e| self.inner.pd.device().failed("ibv_post_recv", e))?;
            left -= now;
        }
        Ok(())
    }

    /// Puts it into the error state. It sends and receives nothing more, and everything posted
    /// completes, mostly with [`Status::FLUSHED`](super::error::Status::FLUSHED). A second call is
    /// harmless. Cost: a system call. A request being executed may still write memory until its
    /// completion has been polled.
    ///
    /// # Errors
    /// [`VerbsError::Call`].
    pub fn into_error(&self) -> Result<(), VerbsError> {
        self.inner.break_off()
    }

    /// Returns its ECE options: before it is connected those that the device offers, after it those that it
    /// uses. `None` where library or device have none.
    #[doc(alias = "ibv_query_ece")]
    pub fn ece(&self) -> Option<VerbsEce> {
        // SAFETY: the pair lives (invariant).
        unsafe { ffi::query_ece(self.inner.qp) }
    }

    /// Queries the attributes that the device has for it. Cost: a system call.
    ///
    /// # Errors
    /// [`VerbsError::Call`].
    #[doc(alias = "ibv_query_qp")]
    pub fn attributes(&self) -> Result<PairAttributes, VerbsError> {
        // SAFETY: the pair lives (invariant).
        let a = unsafe { ffi::query_qp(self.inner.qp, bits::QUERY) }
            .map_err(|e| self.inner.pd.device().failed("ibv_query_qp", e))?;
        let (way, grh) = (a.ah_attr, a.ah_attr.grh);
        Ok(PairAttributes {
            traffic_class: grh.traffic_class,
            flow_label: grh.flow_label,
            gid_index: grh.sgid_index,
            service_level: way.sl,
            static_rate: way.static_rate,
            pkey_index: a.pkey_index,
            timeout: a.timeout,
            retries: a.retry_cnt,
        })
    }

    pub(super) const fn raw(&self) -> NonNull<ffi::ibv_qp> {
        self.inner.qp
    }

    pub(super) fn device_name(&self) -> Arc<str> {
        Arc::clone(self.inner.pd.device().name())
    }
}

impl Inner {
    fn modify(
        &self,
        attributes: &mut ffi::ibv_qp_attr,
        mask: u32,
        verb: &'static str,
    ) -> Result<(), VerbsError> {
        // SAFETY: the pair lives (invariant).
        unsafe { ffi::modify_qp(self.qp, attributes, mask) }
            .map_err(|e| self.pd.device().failed(verb, e))
    }

    fn break_off(&self) -> Result<(), VerbsError> {
        let mut attributes = ffi::empty_attributes();
        attributes.qp_state = bits::STATE_ERR;
        self.modify(&mut attributes, bits::TO_ERR, "ibv_modify_qp to ERR")
    }

    /// Refuses impossible values of a peer; returns the MTU number of the packet size that both ports
    /// support.
    fn check_peer(&self, peer: &Peer) -> Result<u32, VerbsError> {
        let wrong = |what, value: u32| VerbsError::Peer {
            device: Arc::clone(self.pd.device().name()),
            what,
            value: u64::from(value),
        };
        if !(2..NUMBERS).contains(&peer.qpn) {
            return Err(wrong("no number of a queue pair", peer.qpn));
        }
        if peer.psn >= NUMBERS {
            return Err(wrong("no number of a packet", peer.psn));
        }
        if peer.reads == 0 || peer.reads_out == 0 {
            return Err(wrong("it answers, or sends, no READ at all", 0));
        }
        let port = self.path.port();
        if port.link == Link::InfiniBand && peer.lid == 0 {
            return Err(wrong("no address in the InfiniBand subnet", 0));
        }
        mtu_number(peer.mtu.min(port.mtu))
            .ok_or_else(|| wrong("packets of less than 256 bytes", u32::from(peer.mtu)))
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Windows before the pair, and the pair in error before its windows; see the module. A failure
        // here shows in the next step.
        let _ = self.break_off();
        self.windows.clear();
        // SAFETY: not destroyed (invariant), and owned.
        if let Err(errno) = unsafe { ffi::destroy_qp(self.qp) } {
            self.pd.device().leaked("ibv_destroy_qp", errno);
        }
    }
}

/// The route to the peer: by GID on Ethernet; by LID on InfiniBand, with the GID only if it is in
/// another subnet and a router needs it. `from` is this end's GID, and its index.
fn route(
    way: &mut ffi::ibv_ah_attr,
    (link, from): (Link, (Gid, u8)),
    settings: &PortSettings,
    peer: &Peer,
) {
    way.dlid = peer.lid;
    way.sl = settings.service_level;
    way.static_rate = settings.static_rate;
    if link == Link::Ethernet || from.0.subnet() != peer.gid.subnet() {
        way.is_global = 1;
        way.grh.dgid.raw = peer.gid.0;
        way.grh.sgid_index = from.1;
        way.grh.hop_limit = VERBS_HOP_LIMIT;
        way.grh.traffic_class = settings.traffic_class;
        way.grh.flow_label = settings.flow_label;
    }
}

/// Refuses what the device does not support, by name; the device would only answer EINVAL.
fn check_limits(pd: &ProtectionDomain, options: &PairOptions) -> Result<(), VerbsError> {
    let limits = pd.device().limits();
    let needs = [
        ("work requests in a queue", options.sends, limits.requests),
        ("receives in a queue", options.receives, limits.requests),
        ("elements in a list", options.elements, limits.elements),
        (
            "64-bit atomics",
            u32::from(options.remote.has(Access::REMOTE_ATOMIC)),
            u32::from(limits.atomics),
        ),
    ];
    for (what, asked, most) in needs {
        if asked > most {
            return Err(VerbsError::Limit {
                device: Arc::clone(pd.device().name()),
                what,
                asked: u64::from(asked),
                granted: u64::from(most),
            });
        }
    }
    Ok(())
}

impl<S> fmt::Debug for QueuePair<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuePair")
            .field("qpn", &self.inner.qpn)
            .field("psn", &self.inner.psn)
            .field("granted", &self.inner.options)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
