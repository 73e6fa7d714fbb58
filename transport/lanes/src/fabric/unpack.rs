//! Reads that the caller consumes while they arrive.

/// Callback that consumes read data in place (validate and copy in one pass), written by the caller of a
/// read.
///
/// A transport that holds reads complete in private memory offers them here before it places them. Reads
/// that the callback does not take are placed as [`crate::fabric::ReadDest`] says. The implementation
/// records which reads it took.
pub trait Unpack {
    /// Resets the callback: it forgets which reads it took. `ClientLane::read_unpack` calls this before
    /// the first read of its list, also when the list is read again on a replaced lane; `wait_read` does
    /// not.
    fn restart(&mut self);

    /// Offers read data: `raw` begins with the complete data, head and body, of read number `first` (from
    /// 0) of the list. The bytes of the next reads follow; the last one may be cut. `body` is the
    /// destination buffer of the bodies, which the callback fills. Returns the number of reads taken,
    /// from `first` on, which may be 0.
    fn unpack(&mut self, first: usize, raw: &[u8], body: &mut [u8]) -> usize;
}
