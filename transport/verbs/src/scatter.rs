//! Payload that the device writes to its destination: a program's own registered memory.
//!
//! The caller's slice alone decides. If all of it lies in a registered [`Buffer`], the device receives
//! its address; if not, payload arrives in the lane's memory and is copied. The caller neither chooses
//! nor can choose wrongly. An address in a live registration is an address in its buffer, because the
//! buffer stays mapped until its registration has ended.
//!
//! What makes this sound: a call borrows its slice exclusively and ends only when the device is done
//! with it. Then all its READs have completed, or its lane broke and its pairs are destroyed (F13). So
//! a program cannot read, drop or reuse the memory meanwhile, whatever it does with the buffer.

use std::any::Any;
use std::marker::PhantomData;
use std::sync::{Mutex, PoisonError, Weak};

use super::error::VerbsError;
use super::memory::{Access, MemoryRegion, ProtectionDomain, Sge};
use tidewater_lanes::fabric::ReadOp;
use tidewater_protocol::limits::{VERBS_READ_BYTES, VERBS_SCATTER_BYTES};
use tidewater_runtime::mem::Buffer;
use tidewater_runtime::sync::{Arc, AtomicU64, Ordering};

/// The buffers registered with a protection domain.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    all: Mutex<Vec<Registered>>,
    /// Number of changes of `all`; written by the holder of its lock.
    changes: AtomicU64,
}

/// A lane's copy of the list, so that calls take no lock while no buffer is registered.
#[derive(Debug, Default)]
pub(super) struct Known {
    all: Vec<Registered>,
    changes: u64,
}

/// A buffer that may be gone: then its registration is, and its addresses are invalid.
#[derive(Debug, Clone)]
struct Registered {
    first: usize,
    memory: Weak<MemoryRegion>,
}

impl Buffers {
    /// Registers a buffer, which keeps its registration.
    pub(super) fn register(
        &self,
        pd: &Arc<ProtectionDomain>,
        buffer: &mut Buffer,
    ) -> Result<(), VerbsError> {
        // Payload is validated by words that are read after its completion.
        let access = Access::LOCAL_WRITE | Access::RELAXED_ORDERING;
        let region = buffer.region();
        let memory = MemoryRegion::register(pd, region, 0..region.len(), 0, access)?;
        let registered = Registered {
            first: region.base().addr(),
            memory: Arc::downgrade(&memory),
        };
        buffer.keep(memory as Arc<dyn Any + Send + Sync>);
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|registered| registered.memory.strong_count() > 0);
        all.push(registered);
        // Pairs with the load in `Known::look`, for the order only: the lock transfers the list.
        self.changes.fetch_add(1, Ordering::Release);
        Ok(())
    }
}

impl Known {
    /// Copies the list if it has changed. The next call copies a concurrent change, perhaps for
    /// a second time. Until then payload for the new buffer is copied.
    fn look(&mut self, buffers: &Buffers) {
        let changes = buffers.changes.load(Ordering::Acquire);
        if changes != self.changes {
            let all = buffers.all.lock().unwrap_or_else(PoisonError::into_inner);
            self.all.clone_from(&all);
            self.changes = changes;
        }
    }

    /// Chooses the destination of a call's payload, which has borrowed this slice for it.
    pub(super) fn payload<'a>(&mut self, buffers: &Buffers, body: &'a mut [u8]) -> Payload<'a> {
        self.look(buffers);
        match self.find(body) {
            Some((memory, at)) => Payload::Registered {
                memory,
                at,
                _borrowed: PhantomData,
            },
            None => Payload::Copied(body),
        }
    }

    /// Returns the registration that contains the complete slice, and the slice's offset in it.
    fn find(&self, body: &mut [u8]) -> Option<(Arc<MemoryRegion>, usize)> {
        if body.is_empty() {
            return None;
        }
        // To the language, the device's writes are those of calls into libibverbs through a pointer
        // derived from this borrow.
        let first = body.as_mut_ptr().expose_provenance();
        self.all.iter().find_map(|registered| {
            let at = first.checked_sub(registered.first)?;
            let memory = registered.memory.upgrade()?;
            memory.sge(at, body.len()).ok()?;
            Some((memory, at))
        })
    }
}

/// Destination of a list's payload.
#[derive(Debug)]
pub(super) enum Payload<'a> {
    /// The payload arrives in the lane's memory and is copied here.
    Copied(&'a mut [u8]),
    /// The device writes the payload in place. Only the device uses the slice meanwhile.
    Registered {
        memory: Arc<MemoryRegion>,
        /// Start of the slice in it.
        at: usize,
        _borrowed: PhantomData<&'a mut [u8]>,
    },
}

impl Payload<'_> {
    /// Maximum bytes of the READ of an operation from its byte `from` on: bytes for the lane's memory
    /// have to fit there. Where the device does not `gather` two elements, a READ ends with the head.
    pub(super) const fn cut(&self, op: &ReadOp, from: usize, gathers: bool) -> usize {
        let head = (op.head_len as usize).saturating_sub(from);
        match self {
            Self::Registered { .. } if !gathers && 0 < head && head < VERBS_READ_BYTES => head,
            Self::Registered { .. } if head <= VERBS_READ_BYTES => VERBS_SCATTER_BYTES,
            _ => VERBS_READ_BYTES,
        }
    }

    /// Where the device writes the payload among `len` bytes of a read, from its byte `from` on. `None`
    /// if there is no payload, or all bytes arrive in the lane's memory.
    pub(super) fn place(
        &self,
        op: &ReadOp,
        from: usize,
        len: usize,
    ) -> Result<Option<Sge>, VerbsError> {
        let Self::Registered { memory, at, .. } = self else {
            return Ok(None);
        };
        let head_len = op.head_len as usize;
        let in_head = head_len.saturating_sub(from).min(len);
        if in_head == len {
            return Ok(None);
        }
        let first = at + op.body_at + (from + in_head - head_len);
        memory.sge(first, len - in_head).map(Some)
    }

    /// Returns the slice into which arrived bytes are copied.
    pub(super) fn slice(&mut self) -> &mut [u8] {
        match self {
            Self::Copied(body) => body,
            Self::Registered { .. } => &mut [],
        }
    }
}

#[cfg(test)]
mod tests {
    use tidewater_conformance::test_device::{address, device};

    use super::super::OpenPort;
    use super::*;

    /// Slices that are registered in part, as no safe program can make one of two allocations.
    #[test]
    #[ignore = "needs an RDMA device: ci/softroce.sh"]
    fn a_slice_that_is_registered_in_part_is_copied_to() {
        let open_port = OpenPort::for_address(address(), device().as_deref()).unwrap();
        let pd = ProtectionDomain::new(open_port.device()).unwrap();
        let mut buffer = Buffer::new(3 * 4096).unwrap();
        let region = buffer.region();
        let middle =
            MemoryRegion::register(&pd, region, 4096..8192, 4096, Access::LOCAL_WRITE).unwrap();
        let registered = Registered {
            first: region.base().addr() + 4096,
            memory: Arc::downgrade(&middle),
        };
        let buffers = Known {
            all: vec![registered],
            changes: 0,
        };
        for (slice, at) in [
            (4096..8192, Some(0)),
            (4097..8191, Some(1)),
            (8191..8192, Some(4095)),
            (4095..8192, None),
            (4096..8193, None),
            (4095..4096, None),
            (8192..8193, None),
            (0..3 * 4096, None),
            (5000..5000, None),
        ] {
            let found = buffers.find(&mut buffer[slice.clone()]);
            assert_eq!(found.map(|(_, at)| at), at, "{slice:?}");
        }
        drop(middle);
        assert!(buffers.find(&mut buffer[4096..8192]).is_none());
    }
}
