//! Memory of a program that devices may write during a call that borrows it.

use std::any::Any;
use std::fmt;
use std::ops::{Deref, DerefMut};

use super::region::{MemError, Region};
use crate::sync::Arc;

/// Memory that a program owns and sees as an ordinary byte slice, zeroed at first. Once it is registered
/// with an RDMA device (`ClientDomain::register`), the device places the data of READs in it directly.
///
/// A device receives an address in it only from a call that has borrowed that range exclusively. The call
/// does not end before the device is done with the range. So a program has to keep the language's own
/// rules only. A dropped buffer is deregistered first and unmapped then. A forgotten one stays mapped, so
/// that its addresses are never reused.
///
/// # Invariants
/// - Only this type derefs the bytes of `region`: its other owners are registrations, which only keep it
///   mapped.
/// - `bytes` is not past its end.
pub struct Buffer {
    /// Registrations with devices. Before the memory, as fields are dropped in order.
    registrations: Vec<Arc<dyn Any + Send + Sync>>,
    region: Arc<Region>,
    bytes: usize,
}

impl Buffer {
    /// Allocates a page-aligned buffer of `bytes` bytes, all zero.
    ///
    /// # Errors
    /// [`MemError::Os`] when there is no memory.
    pub fn new(bytes: usize) -> Result<Self, MemError> {
        Ok(Self {
            registrations: Vec::new(),
            region: Arc::new(Region::anonymous(bytes.max(1))?),
            bytes,
        })
    }

    /// Returns the memory region behind the buffer, for the registration with a device. The caller does
    /// not touch its bytes, which the program sees as an ordinary slice.
    pub const fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Stores a device's registration of this memory in the buffer, so that it lives as long. Dropping
    /// the buffer drops the registrations first, then unmaps the memory.
    pub fn keep(&mut self, registration: Arc<dyn Any + Send + Sync>) {
        self.registrations.push(registration);
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `bytes` bytes are mapped as long as the region (its invariant), of which this has an
        // owner. No other code derefs them (invariant); a device writes them only during a call that has a
        // slice of `deref_mut`, which this borrow excludes.
        unsafe { std::slice::from_raw_parts(self.region.base(), self.bytes) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` is the only way to them. Its region is writable, being
        // anonymous.
        unsafe { std::slice::from_raw_parts_mut(self.region.base(), self.bytes) }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer")
            .field("bytes", &self.bytes)
            .field("registrations", &self.registrations.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_zeroed_memory_of_that_length_at_a_page() {
        for bytes in [0, 1, 4096, 10_001] {
            let mut buffer = Buffer::new(bytes).unwrap();
            assert_eq!(buffer.len(), bytes);
            assert!(buffer.iter().all(|&byte| byte == 0));
            assert!(buffer.as_ptr().addr().is_multiple_of(4096));
            buffer.fill(7);
            assert!(buffer.iter().all(|&byte| byte == 7));
        }
    }

    #[test]
    fn a_registration_ends_with_its_buffer_and_before_its_memory() {
        let registration = Arc::new(());
        let mut buffer = Buffer::new(1).unwrap();
        buffer.keep(Arc::clone(&registration) as Arc<dyn Any + Send + Sync>);
        assert_eq!(Arc::strong_count(&registration), 2);
        drop(buffer);
        assert_eq!(Arc::strong_count(&registration), 1);
    }
}
