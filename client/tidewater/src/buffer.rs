//! Registered memory that the NIC writes directly.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use tidewater_protocol::limits::{BUFFER_BYTES_MAX, BUFFERS_MAX};
use tidewater_runtime::mem::Buffer;
use zerocopy::FromBytes;

use crate::error::{ClientError, MemoryError};
use crate::lanes::Lanes;
use crate::table::Element;

/// Buffer of elements in registered memory, which the client's NICs may write; made by [`Client::buffer`]. It derefs
/// to a slice. Data pulled over verbs into it, or into a part of it, is placed there without a copy. Over other
/// transports, and for other clients, it is ordinary memory.
///
/// It has no lifetime rules: it can be dropped, sent to another thread, forgotten, and outlive its
/// client. Pages that a NIC has registered stay pinned as long as the buffer exists.
///
/// [`Client::buffer`]: crate::Client::buffer
///
/// # Example
/// ```
/// # use tidewater::{ClientError, JoinOptions, PullOptions, SyncMode, TableBuilder};
/// # fn main() -> Result<(), ClientError> {
/// # let job = JoinOptions::embedded(1, 1).join()?.into_job().expect("a worker");
/// # let mut client = job.client(SyncMode::Asp)?;
/// let table = client.create_table::<f32>(TableBuilder::range::<f32>("w", 1, 4096).spec())?;
/// let mut weights = client.buffer::<f32>(4096)?;
/// client.pull_range(&table, 0, &mut weights[1024..], PullOptions::default())?;
/// assert_eq!(weights.len(), 4096);
/// assert_eq!(weights[4095], 0.0);
/// # client.finish()
/// # }
/// ```
pub struct RegisteredBuffer<T> {
    memory: Buffer,
    /// Clone of the client's counting `Arc`: this buffer counts against the client's limit of buffers until it is
    /// dropped.
    _one: Arc<()>,
    element: PhantomData<T>,
}

impl<T: Element> Deref for RegisteredBuffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // The memory holds complete elements and begins at a page.
        FromBytes::ref_from_bytes(&self.memory).unwrap_or_default()
    }
}

impl<T: Element> DerefMut for RegisteredBuffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        FromBytes::mut_from_bytes(&mut self.memory).unwrap_or_default()
    }
}

impl<T: Element> fmt::Debug for RegisteredBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegisteredBuffer")
            .field("len", &self.len())
            .field("dtype", &T::DTYPE)
            .finish_non_exhaustive()
    }
}

/// Factory of a client's registered buffers. The strong count of its `Arc` counts the live ones.
#[derive(Debug, Default)]
pub(crate) struct Buffers(Arc<()>);

impl Buffers {
    /// Allocates a buffer of `len` zero elements and registers it with the NIC of every link over verbs. Fails
    /// with `ClientError::Memory` if the buffer exceeds `BUFFER_BYTES_MAX` bytes, if `BUFFERS_MAX` buffers are
    /// alive, if the system has no memory, or if a NIC refuses.
    pub(crate) fn make<T: Element>(
        &self,
        lanes: &mut Lanes,
        len: usize,
    ) -> Result<RegisteredBuffer<T>, ClientError> {
        let bytes = len.saturating_mul(size_of::<T>());
        let failed = |source| ClientError::Memory { bytes, source };
        if bytes > BUFFER_BYTES_MAX {
            return Err(failed(MemoryError::TooLarge {
                limit: BUFFER_BYTES_MAX,
            }));
        }
        let alive = Arc::strong_count(&self.0) - 1;
        if alive >= BUFFERS_MAX {
            return Err(failed(MemoryError::TooMany { buffers: alive }));
        }
        let mut memory = Buffer::new(bytes).map_err(|e| failed(e.into()))?;
        for server in 0..lanes.servers() {
            if let Some(link) = lanes.link(server) {
                let registered = link.register(&mut memory);
                registered.map_err(|cause| failed(MemoryError::Register(cause)))?;
            }
        }
        Ok(RegisteredBuffer {
            memory,
            _one: Arc::clone(&self.0),
            element: PhantomData,
        })
    }
}
