//! Completion queues, and channels that wake a thread when a queue has a completion.

use std::fmt;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;

use rustix::io::Errno;

use super::device::Device;
use super::error::{Status, VerbsError};
use super::ffi::{self, bits, ibv_wc_opcode};
use tidewater_runtime::sync::Arc;

/// Completions fetched at once; a batch fits the stack and the first-level cache.
const BATCH: usize = 32;

/// A descriptor that becomes readable when an armed queue has a completion. Non-blocking. One thread
/// sleeps on it; any number of queues can share it.
///
/// # Invariants
/// - `channel` is not destroyed; its queues hold an `Arc` of this.
#[doc(alias = "ibv_comp_channel")]
pub struct CompletionChannel {
    channel: NonNull<ffi::ibv_comp_channel>,
    fd: i32,
    device: Arc<Device>,
}

// SAFETY: libibverbs is thread-safe, and only `drop`, with the last reference, destroys it.
unsafe impl Send for CompletionChannel {}
// SAFETY: as above.
unsafe impl Sync for CompletionChannel {}

impl CompletionChannel {
    /// Creates a channel with its own descriptor.
    ///
    /// # Errors
    /// [`VerbsError::Call`], for example when there are no descriptors left.
    #[doc(alias = "ibv_create_comp_channel")]
    pub fn new(device: &Arc<Device>) -> Result<Arc<Self>, VerbsError> {
        // SAFETY: the context is open (invariant of Device).
        let channel = unsafe { ffi::create_comp_channel(device.context()) }
            .map_err(|e| device.failed("ibv_create_comp_channel", e))?;
        // SAFETY: just created; libibverbs filled its fields.
        let fd = unsafe { (*channel.as_ptr()).fd };
        let made = Self {
            channel,
            fd,
            device: Arc::clone(device),
        };
        rustix::fs::fcntl_getfl(&made)
            .and_then(|flags| rustix::fs::fcntl_setfl(&made, flags | rustix::fs::OFlags::NONBLOCK))
            .map_err(|e| device.failed("fcntl of a completion channel", e))?;
        Ok(Arc::new(made))
    }

    /// Takes one event, if there is one: the token of a queue that was armed and no longer is. Cost: a
    /// system call, and a lock that no other thread takes while queues live.
    ///
    /// # Errors
    /// [`VerbsError::Call`].
    #[doc(alias = "ibv_get_cq_event")]
    #[doc(alias = "ibv_ack_cq_events")]
    pub fn take_event(&self) -> Result<Option<usize>, VerbsError> {
        // SAFETY: the channel lives (invariant).
        match unsafe { ffi::get_cq_event(self.channel) } {
            Ok((cq, token)) => {
                // SAFETY: the queue of this event cannot be destroyed before it is acknowledged:
                // `ibv_destroy_cq` waits for that.
                unsafe { ffi::ack_cq_events(cq, 1) };
                Ok(Some(token))
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(errno) => Err(self.device.failed("ibv_get_cq_event", errno)),
        }
    }
}

impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is the channel's and open as long as it lives, which `self` is.
        unsafe { BorrowedFd::borrow_raw(self.fd) }
    }
}

impl Drop for CompletionChannel {
    fn drop(&mut self) {
        // SAFETY: not destroyed (invariant), and the last reference: no queue uses it.
        if let Err(errno) = unsafe { ffi::destroy_comp_channel(self.channel) } {
            self.device.leaked("ibv_destroy_comp_channel", errno);
        }
    }
}

impl fmt::Debug for CompletionChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CompletionChannel").field(&self.fd).finish()
    }
}

/// Kind of a completed work request, as its completion reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[doc(alias = "ibv_wc_opcode")]
pub enum Operation {
    /// Not reported: the request failed.
    #[default]
    Unknown,
    /// A WRITE, with or without immediate data.
    Write,
    /// A READ of the peer's memory.
    Read,
    /// A compare-and-swap on the peer's memory.
    CompareSwap,
    /// A fetch-and-add on the peer's memory.
    FetchAdd,
    /// The bind of a memory window.
    BindWindow,
    /// A receive that a peer's WRITE with immediate data took.
    Receive,
    /// An operation of another kind.
    Other,
}

/// Completion of a work request. If it failed, only `wr_id`, `status`, `vendor` and `qpn` are valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[doc(alias = "ibv_wc")]
pub struct Completion {
    /// The number that the request was posted with.
    pub wr_id: u64,
    /// Result of the request.
    pub status: Status,
    /// Operation of the request.
    pub operation: Operation,
    /// Bytes received, of a READ or a receive.
    pub bytes: u32,
    /// Immediate data of a receive.
    pub imm: Option<u32>,
    /// Number of the queue pair.
    pub qpn: u32,
    /// The device's own code of a failure.
    pub vendor: u32,
}

impl Completion {
    /// Placeholder for the initial contents of arrays.
    pub const EMPTY: Self = Self {
        wr_id: 0,
        status: Status::SUCCESS,
        operation: Operation::Unknown,
        bytes: 0,
        imm: None,
        qpn: 0,
        vendor: 0,
    };

    #[inline]
    fn new(wc: &ffi::ibv_wc) -> Self {
        let mut it = Self {
            wr_id: wc.wr_id,
            status: Status::new(wc.status),
            qpn: wc.qp_num,
            ..Self::EMPTY
        };
        if !it.status.is_success() {
            it.vendor = wc.vendor_err;
            return it;
        }
        it.operation = match wc.opcode {
            ibv_wc_opcode::IBV_WC_RDMA_WRITE => Operation::Write,
            ibv_wc_opcode::IBV_WC_RDMA_READ => Operation::Read,
            ibv_wc_opcode::IBV_WC_COMP_SWAP => Operation::CompareSwap,
            ibv_wc_opcode::IBV_WC_FETCH_ADD => Operation::FetchAdd,
            ibv_wc_opcode::IBV_WC_BIND_MW => Operation::BindWindow,
            ibv_wc_opcode::IBV_WC_RECV | ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM => {
                Operation::Receive
            }
            _ => Operation::Other,
        };
        it.bytes = wc.byte_len;
        // rxe flags the sender's completion too, which has none.
        let carries = it.operation == Operation::Receive && wc.wc_flags & bits::WITH_IMM != 0;
        it.imm = carries.then(|| ffi::immediate_of(wc));
        it
    }

    /// Returns its failure as an error.
    ///
    /// # Errors
    /// [`VerbsError::Completion`].
    #[inline]
    pub fn check(&self) -> Result<(), VerbsError> {
        if self.status.is_success() {
            return Ok(());
        }
        Err(VerbsError::Completion {
            qpn: self.qpn,
            wr_id: self.wr_id,
            status: self.status,
            vendor: self.vendor,
        })
    }
}

/// Queue of completions. Shared by `Arc` with the queue pairs that use it.
///
/// # Thread safety
/// It can be shared, and each completion is returned once; but it belongs to one thread by design.
/// Providers take a spin lock around a poll, on which other threads would wait.
/// (`MLX5_SINGLE_THREADED=1` removes that lock; then it *must* be one thread.)
///
/// # Invariants
/// - `cq` is not destroyed; its queue pairs hold an `Arc` of this.
#[doc(alias = "ibv_cq")]
pub struct CompletionQueue {
    cq: NonNull<ffi::ibv_cq>,
    capacity: usize,
    device: Arc<Device>,
    channel: Option<Arc<CompletionChannel>>,
}

// SAFETY: libibverbs is thread-safe, and only `drop`, with the last reference, destroys it.
unsafe impl Send for CompletionQueue {}
// SAFETY: as above.
unsafe impl Sync for CompletionQueue {}

impl CompletionQueue {
    /// Creates a queue for at least `capacity` unpolled completions; one more, and the device breaks
    /// every queue pair that uses it. With a channel, an armed queue wakes its thread and is named
    /// there by the token.
    ///
    /// # Errors
    /// [`VerbsError::Limit`] when the device has none so large; [`VerbsError::Call`], with EXDEV when
    /// the channel is of another open device.
    #[doc(alias = "ibv_create_cq")]
    pub fn new(
        device: &Arc<Device>,
        capacity: usize,
        channel: Option<(&Arc<CompletionChannel>, usize)>,
    ) -> Result<Arc<Self>, VerbsError> {
        Self::with_vector(device, capacity, channel, 0)
    }

    /// As [`Self::new`]; its events come by completion vector `vector`, modulo those of the device. The
    /// interrupts of a vector go to one processor.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with_vector(
        device: &Arc<Device>,
        capacity: usize,
        channel: Option<(&Arc<CompletionChannel>, usize)>,
        vector: usize,
    ) -> Result<Arc<Self>, VerbsError> {
        // A provider would take another device's object for its own.
        if channel.is_some_and(|(channel, _)| !Arc::ptr_eq(&channel.device, device)) {
            return Err(device.failed("ibv_create_cq", Errno::XDEV));
        }
        let most = device.limits().completions;
        let entries = i32::try_from(capacity.max(1)).unwrap_or(i32::MAX);
        if entries as u32 > most {
            return Err(VerbsError::Limit {
                device: Arc::clone(device.name()),
                what: "completions in a queue",
                asked: capacity as u64,
                granted: u64::from(most),
            });
        }
        let token = channel.map_or(0, |(_, token)| token);
        let raw = channel.map(|(channel, _)| channel.channel);
        let vector = (vector % device.completion_vectors() as usize) as i32;
        // SAFETY: context and channel live (invariants) and belong together; this holds them from
        // now on.
        let cq = unsafe { ffi::create_cq(device.context(), entries, token, raw, vector) }
            .map_err(|e| device.failed("ibv_create_cq", e))?;
        // SAFETY: just created; libibverbs filled its fields.
        let granted = unsafe { (*cq.as_ptr()).cqe };
        Ok(Arc::new(Self {
            cq,
            capacity: usize::try_from(granted).unwrap_or(capacity),
            device: Arc::clone(device),
            channel: channel.map(|(channel, _)| Arc::clone(channel)),
        }))
    }

    /// Returns the number of completions that it holds.
    pub const fn capacity(&self) -> usize {
        self.capacity
    }

    /// Returns the channel of the queue, if any.
    pub const fn channel(&self) -> Option<&Arc<CompletionChannel>> {
        self.channel.as_ref()
    }

    /// Polls completions, oldest first; returns how many. Cost: no system call, no allocation; a few ns
    /// for each, and a cache miss for an empty queue.
    ///
    /// # Errors
    /// [`VerbsError::Call`] when the queue is broken (it overflowed, or the device is gone).
    #[doc(alias = "ibv_poll_cq")]
    #[inline]
    pub fn poll(&self, into: &mut [Completion]) -> Result<usize, VerbsError> {
        let mut batch = [const { MaybeUninit::<ffi::ibv_wc>::uninit() }; BATCH];
        let mut total = 0;
        while total < into.len() {
            let most = (into.len() - total).min(BATCH);
            // SAFETY: the queue lives (invariant); `batch` has room for `most`.
            let got = unsafe { ffi::poll_cq(self.cq, most as i32, batch.as_mut_ptr().cast()) }
                .map_err(|e| self.device.failed("ibv_poll_cq", e))?;
            for (wc, place) in batch[..got.min(most)].iter().zip(&mut into[total..]) {
                // SAFETY: the provider wrote the first `got`.
                *place = Completion::new(unsafe { wc.assume_init_ref() });
            }
            total += got.min(most);
            if got < most {
                break;
            }
        }
        Ok(total)
    }

    /// Arms the queue: the next completion makes one event in its channel. Earlier completions make
    /// none; so arm, poll once more, and only then sleep. Cost: a system call with some providers
    /// (rxe), a write to the device with others.
    ///
    /// # Errors
    /// [`VerbsError::Call`].
    #[doc(alias = "ibv_req_notify_cq")]
    pub fn arm(&self) -> Result<(), VerbsError> {
        // SAFETY: the queue lives (invariant).
        unsafe { ffi::req_notify_cq(self.cq) }
            .map_err(|e| self.device.failed("ibv_req_notify_cq", e))
    }

    pub(super) const fn device(&self) -> &Arc<Device> {
        &self.device
    }

    pub(super) const fn raw(&self) -> NonNull<ffi::ibv_cq> {
        self.cq
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: not destroyed (invariant), and the last reference: no queue pair uses it. It
        // waits for events that were taken and not acknowledged; `take_event` leaves none.
        if let Err(errno) = unsafe { ffi::destroy_cq(self.cq) } {
            self.device.leaked("ibv_destroy_cq", errno);
        }
    }
}

impl fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionQueue")
            .field("capacity", &self.capacity)
            .finish_non_exhaustive()
    }
}
