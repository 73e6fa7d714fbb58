//! Batches of work requests: filled without touching the device, posted with one doorbell.
//!
//! A batch is allocated once, with room for a number of requests, elements of each, and inline bytes of
//! each. Filling and posting it allocates nothing and takes no lock of ours. Posting empties it, with
//! any result. Requests of one pair start in order. WRITEs and atomics take effect in order; READs are
//! answered in order, but placed in any; an operation after a READ does not wait for it unless it is
//! fenced.

use std::fmt;
use std::ptr::null_mut;

use super::error::{VerbsError, remedy};
use super::ffi::{self, bits, ibv_send_wr, ibv_sge, ibv_wr_opcode};
use super::memory::{Sge, Target};
use super::pair::{QueuePair, ReadyToSend};

/// Options of a work request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[doc(alias = "ibv_send_flags")]
pub struct Flags {
    /// It makes a completion. Failures always do. Room in the send queue returns only with the
    /// completion of this request or of a later one.
    pub signal: bool,
    /// It starts only after all earlier READs and atomics of the pair have completed.
    pub fence: bool,
}

impl Flags {
    /// No completion and no fence.
    pub const NONE: Self = Self {
        signal: false,
        fence: false,
    };
    /// A completion, without a fence.
    pub const SIGNAL: Self = Self {
        signal: true,
        fence: false,
    };

    const fn bits(self) -> u32 {
        (if self.signal { bits::SIGNALED } else { 0 }) | if self.fence { bits::FENCE } else { 0 }
    }
}

/// Work requests for one doorbell of a queue pair.
///
/// # Invariants
/// - `requests`, `elements` and `inline` have their final length. Request `i` uses the `width` elements
///   from `i * width` on, and the `inline_most` bytes from `i * inline_most` on.
/// - No pointer in them is valid except within [`SendBatch::post`], which sets all that are followed.
#[doc(alias = "ibv_send_wr")]
pub struct SendBatch {
    requests: Box<[ibv_send_wr]>,
    elements: Box<[ibv_sge]>,
    inline: Box<[u8]>,
    width: usize,
    inline_most: usize,
    len: usize,
}

// SAFETY: its pointers are meaningless outside of `post` (invariant); the rest is numbers.
unsafe impl Send for SendBatch {}
// SAFETY: as above.
unsafe impl Sync for SendBatch {}

impl SendBatch {
    /// Allocates room for `requests` of at most `elements` elements or `inline_bytes` bytes each. Both
    /// should be the pair's [`granted`](QueuePair::granted) numbers.
    pub fn new(requests: usize, elements: usize, inline_bytes: usize) -> Self {
        let element = || ibv_sge {
            addr: 0,
            length: 0,
            lkey: 0,
        };
        // An inline request needs one element for the address of its bytes.
        let width = elements.max(1);
        Self {
            requests: (0..requests).map(|_| ffi::empty_request()).collect(),
            elements: (0..requests * width).map(|_| element()).collect(),
            inline: vec![0; requests * inline_bytes].into(),
            width,
            inline_most: inline_bytes,
            len: 0,
        }
    }

    /// Returns the number of requests that it can hold.
    pub const fn capacity(&self) -> usize {
        self.requests.len()
    }

    /// Returns the number of requests in it.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds no requests.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether another request fits.
    pub const fn has_room(&self) -> bool {
        self.len < self.requests.len()
    }

    /// Returns the maximum bytes of a request that carries them inline.
    pub const fn inline_bytes(&self) -> usize {
        self.inline_most
    }

    /// Removes all requests without posting them.
    pub const fn clear(&mut self) {
        self.len = 0;
    }

    /// Queues a READ from the peer into the pieces `to`, in their order.
    ///
    /// # Errors
    /// [`VerbsError::SendBatch`] when it is full or there are too many pieces; nothing is queued then.
    #[doc(alias = "IBV_WR_RDMA_READ")]
    #[inline]
    pub fn read(
        &mut self,
        wr_id: u64,
        to: &[Sge],
        from: Target,
        flags: Flags,
    ) -> Result<(), VerbsError> {
        self.gathered(wr_id, ibv_wr_opcode::IBV_WR_RDMA_READ, to, from, flags)
    }

    /// Queues a WRITE of the pieces `from`, in their order, to the peer. The device reads the bytes
    /// when it executes the request: they must stay until its completion.
    ///
    /// # Errors
    /// [`VerbsError::SendBatch`] when it is full or there are too many pieces; nothing is queued then.
    #[doc(alias = "IBV_WR_RDMA_WRITE")]
    #[inline]
    pub fn write(
        &mut self,
        wr_id: u64,
        from: &[Sge],
        to: Target,
        flags: Flags,
    ) -> Result<(), VerbsError> {
        self.gathered(wr_id, ibv_wr_opcode::IBV_WR_RDMA_WRITE, from, to, flags)
    }

    /// Queues a WRITE of bytes that travel with the request; they are copied here.
    ///
    /// # Errors
    /// [`VerbsError::SendBatch`] when it is full or there are too many bytes; nothing is queued then.
    #[doc(alias = "IBV_SEND_INLINE")]
    #[inline]
    pub fn write_inline(
        &mut self,
        wr_id: u64,
        bytes: &[u8],
        to: Target,
        flags: Flags,
    ) -> Result<(), VerbsError> {
        let opcode = ibv_wr_opcode::IBV_WR_RDMA_WRITE;
        self.inlined(wr_id, opcode, bytes, to, flags).map(|_| ())
    }

    /// Like [`SendBatch::write_inline`], and takes one receive of the peer. The receive's completion
    /// carries `imm` and shows that all earlier writes of this pair are placed. `bytes` may be empty:
    /// then nothing is written, and `to` is ignored.
    ///
    /// # Errors
    /// [`VerbsError::SendBatch`] when it is full or there are too many bytes; nothing is queued then.
    #[doc(alias = "IBV_WR_RDMA_WRITE_WITH_IMM")]
    #[inline]
    pub fn write_imm(
        &mut self,
        wr_id: u64,
        bytes: &[u8],
        to: Target,
        imm: u32,
        flags: Flags,
    ) -> Result<(), VerbsError> {
        let opcode = ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM;
        let request = self.inlined(wr_id, opcode, bytes, to, flags)?;
        request.imm_data_invalidated_rkey_union = ffi::immediate(imm);
        Ok(())
    }

    /// Queues an addition to a 64-bit word of the peer; its old value is written to `old`, 8 bytes.
    ///
    /// # Errors
    /// [`VerbsError::SendBatch`] when it is full; nothing is queued then.
    #[doc(alias = "IBV_WR_ATOMIC_FETCH_AND_ADD")]
    #[inline]
    pub fn fetch_add(
        &mut self,
        wr_id: u64,
        old: Sge,
        at: Target,
        add: u64,
        flags: Flags,
    ) -> Result<(), VerbsError> {
        let opcode = ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD;
        self.set_element(0, old)?;
        let request = self.add(wr_id, opcode, 1, flags.bits())?;
        request.wr = ffi::atomic(at.rkey, at.address, add, 0);
        Ok(())
    }

    /// Queues a store of `new` to a 64-bit word of the peer if it is `expected`; its old value is
    /// written to `old`, 8 bytes.
    ///
    /// # Errors
    /// [`VerbsError::SendBatch`] when it is full; nothing is queued then.
    #[doc(alias = "IBV_WR_ATOMIC_CMP_AND_SWP")]
    #[inline]
    pub fn compare_swap(
        &mut self,
        wr_id: u64,
        old: Sge,
        at: Target,
        expected: u64,
        new: u64,
        flags: Flags,
    ) -> Result<(), VerbsError> {
        let opcode = ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP;
        self.set_element(0, old)?;
        let request = self.add(wr_id, opcode, 1, flags.bits())?;
        request.wr = ffi::atomic(at.rkey, at.address, expected, new);
        Ok(())
    }

    /// Makes the last request produce a completion.
    #[inline]
    pub fn signal_last(&mut self) {
        if let Some(last) = self.len.checked_sub(1) {
            self.requests[last].send_flags |= bits::SIGNALED;
        }
    }

    /// Hands all requests to the device, in order, with one doorbell; returns how many. The batch is
    /// empty afterwards. Cost: the provider's lock, which is uncontended; with rxe a system call.
    ///
    /// # Errors
    /// [`VerbsError::Post`]: the requests before the one it names are posted, the others are not.
    /// ENOMEM means that the send queue is full: the caller lost count of it.
    #[doc(alias = "ibv_post_send")]
    pub fn post(&mut self, pair: &mut QueuePair<ReadyToSend>) -> Result<usize, VerbsError> {
        let len = std::mem::take(&mut self.len);
        if len == 0 {
            return Ok(0);
        }
        let requests = self.requests.as_mut_ptr();
        let elements = self.elements.as_mut_ptr();
        let inline = self.inline.as_ptr();
        for i in 0..len {
            // SAFETY: `i < len <= capacity`, so the request is in its slice, which nothing else
            // refers to now.
            let request = unsafe { &mut *requests.wrapping_add(i) };
            let first = elements.wrapping_add(i * self.width);
            if request.send_flags & bits::INLINE != 0 {
                let bytes = inline.wrapping_add(i * self.inline_most);
                // SAFETY: `i * width` is in the slice of elements (invariant), which nothing else
                // refers to now.
                unsafe { (*first).addr = bytes.expose_provenance() as u64 };
            }
            request.sg_list = first;
            request.next = requests.wrapping_add(i + 1);
        }
        // SAFETY: as in the loop, for `len - 1`.
        unsafe { (*requests.wrapping_add(len - 1)).next = null_mut() };
        // Elements that are not inline are checked by the device against its registrations.
        // SAFETY: the pair lives (its invariant). The list has `len` requests, ends, and each names
        // elements of its own in `elements`, with inline bytes in `inline`; the call copies all
        // of it.
        let posted = unsafe { ffi::post_send(pair.raw(), requests) };
        posted.map(|()| len).map_err(|(errno, bad)| {
            let index = (bad.addr().saturating_sub(requests.addr())) / size_of::<ibv_send_wr>();
            self.refused(pair, index.min(len - 1), len, errno)
        })
    }

    #[inline]
    fn gathered(
        &mut self,
        wr_id: u64,
        opcode: u32,
        pieces: &[Sge],
        remote: Target,
        flags: Flags,
    ) -> Result<(), VerbsError> {
        if pieces.len() > self.width {
            return Err(self.too_many("elements", pieces.len(), self.width));
        }
        for (i, piece) in pieces.iter().enumerate() {
            self.set_element(i, *piece)?;
        }
        let request = self.add(wr_id, opcode, pieces.len(), flags.bits())?;
        request.wr = ffi::rdma(remote.rkey, remote.address);
        Ok(())
    }

    #[inline]
    fn inlined(
        &mut self,
        wr_id: u64,
        opcode: u32,
        bytes: &[u8],
        to: Target,
        flags: Flags,
    ) -> Result<&mut ibv_send_wr, VerbsError> {
        if bytes.len() > self.inline_most {
            return Err(self.too_many("inline bytes", bytes.len(), self.inline_most));
        }
        // The address is set when it is posted.
        let piece = Sge {
            lkey: 0,
            address: 0,
            bytes: bytes.len() as u32,
        };
        self.set_element(0, piece)?;
        let at = self.len * self.inline_most;
        self.inline[at..at + bytes.len()].copy_from_slice(bytes);
        // Without bytes there is no element, and nothing to be inline.
        let (elements, flag) = match bytes {
            [] => (0, 0),
            _ => (1, bits::INLINE),
        };
        let request = self.add(wr_id, opcode, elements, flags.bits() | flag)?;
        request.wr = ffi::rdma(to.rkey, to.address);
        Ok(request)
    }

    /// Sets an element of the request that is added next.
    #[inline]
    fn set_element(&mut self, i: usize, piece: Sge) -> Result<(), VerbsError> {
        if !self.has_room() {
            return Err(self.full());
        }
        self.elements[self.len * self.width + i] = ibv_sge {
            addr: piece.address,
            length: piece.bytes,
            lkey: piece.lkey,
        };
        Ok(())
    }

    #[inline]
    fn add(
        &mut self,
        wr_id: u64,
        opcode: u32,
        elements: usize,
        flags: u32,
    ) -> Result<&mut ibv_send_wr, VerbsError> {
        if !self.has_room() {
            return Err(self.full());
        }
        let request = &mut self.requests[self.len];
        self.len += 1;
        request.wr_id = wr_id;
        request.opcode = opcode;
        request.num_sge = elements as i32;
        request.send_flags = flags;
        Ok(request)
    }

    #[cold]
    fn full(&self) -> VerbsError {
        self.too_many("requests", self.capacity() + 1, self.capacity())
    }

    #[cold]
    fn too_many(&self, what: &'static str, asked: usize, most: usize) -> VerbsError {
        VerbsError::SendBatch {
            capacity: self.capacity(),
            what,
            asked,
            most,
        }
    }

    #[cold]
    fn refused(
        &self,
        pair: &QueuePair<ReadyToSend>,
        index: usize,
        of: usize,
        errno: rustix::io::Errno,
    ) -> VerbsError {
        let request = &self.requests[index];
        VerbsError::Post {
            device: pair.device_name(),
            qpn: pair.qpn(),
            index,
            of,
            operation: name(request.opcode),
            wr_id: request.wr_id,
            errno,
            remedy: match errno {
                rustix::io::Errno::NOMEM => {
                    "more is posted than the send queue takes: a fault of this program"
                }
                errno => remedy(errno),
            },
        }
    }
}

/// Operation of a request, for messages.
const fn name(opcode: u32) -> &'static str {
    match opcode {
        ibv_wr_opcode::IBV_WR_RDMA_READ => "READ",
        ibv_wr_opcode::IBV_WR_RDMA_WRITE => "WRITE",
        ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM => "WRITE with immediate data",
        ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD => "FETCH_ADD",
        ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP => "COMPARE_SWAP",
        _ => "request",
    }
}

impl fmt::Debug for SendBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendBatch")
            .field("len", &self.len)
            .field("capacity", &self.capacity())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
