//! Reads that the caller consumes while they arrive.

/// Callback that consumes read data in place (verify and copy in one pass).
///
/// A transport that holds reads complete in private memory offers them here before it places them. Reads
/// that are not taken are placed as [`crate::fabric::ReadDest`] says. The implementation records which
/// reads it took.
pub trait Unpack {
    /// The list begins, or begins again on a lane that was replaced: none of it counts as taken.
    fn restart(&mut self);

    /// `raw` begins with read `first` of the list, complete. Behind it follow the bytes of the next reads;
    /// the last one may be cut. `body` is the destination of the bodies. Returns the number of reads taken,
    /// which may be 0.
    fn unpack(&mut self, first: usize, raw: &[u8], body: &mut [u8]) -> usize;
}
