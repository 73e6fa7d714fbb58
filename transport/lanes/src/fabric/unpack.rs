//! Reads that are looked at as they come.

/// Lands reads itself, for who has to look at each of their bytes anyway: in one pass instead of two.
///
/// A carrier that has reads whole in private memory of its own before they land yield_backoff them here; what
/// is not taken lands as [`crate::fabric::ReadDest`] says. Whoever takes notes what it took.
pub trait Unpack {
    /// The list begins, or begins again on a lane that was replaced: nothing of it was taken.
    fn restart(&mut self);

    /// `raw` begins with read `first` of the list and holds that one whole; what lies behind it are the
    /// bytes of the reads that follow, the last of which may be cut. `body` is the landing of the bodies.
    /// Returns how many reads were taken; none is fine.
    fn take(&mut self, first: usize, raw: &[u8], body: &mut [u8]) -> usize;
}
