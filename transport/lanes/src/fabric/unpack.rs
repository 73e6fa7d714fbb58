//! Reads that the caller consumes while they arrive.

/// Callback that consumes read data in place (validate and copy in one pass).
///
/// A transport that holds reads complete in private memory offers them here before it places them. Reads
/// that the callback does not take are placed as [`crate::fabric::ReadDest`] says. The implementation
/// records which reads it took.
pub trait Unpack {
    /// Resets the callback before the first read of a list. Called again if the list is read again on a
    /// replaced lane: no read counts as taken.
    fn restart(&mut self);

    /// Offers read data: `raw` begins with the complete data of read number `first` of the list. The
    /// bytes of the next reads follow; the last one may be cut. `body` is the destination of the bodies.
    /// Returns the number of reads taken, which may be 0.
    fn unpack(&mut self, first: usize, raw: &[u8], body: &mut [u8]) -> usize;
}
