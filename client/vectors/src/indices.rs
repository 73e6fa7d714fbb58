//! Pulls of single elements of a vector.

use tidewater::{ClientError, PullOptions};

use crate::float::Float;
use crate::space::Vector;

/// Elements of a piece of a vector of which [`Vector::pull_at`] pulls several indices at once.
pub const INDICES_SPAN: u64 = 512;

impl<T: Float> Vector<T> {
    /// Copies single elements to the program, in the order of `indices`. They may repeat and have any order.
    ///
    /// # Errors
    /// As [`Vector::pull`]; [`ClientError::Argument`] for an index outside the vector.
    ///
    /// # Cost
    /// One pull after the other, each of the indices within [`INDICES_SPAN`] elements, with all elements from the first
    /// to the last of them.
    pub fn pull_at(&self, indices: &[u64]) -> Result<Vec<T>, ClientError> {
        let space = self.space();
        space.check()?;
        let mut order: Vec<usize> = (0..indices.len()).collect();
        order.sort_unstable_by_key(|&n| indices[n]);
        let mut client = space.client();
        client.flush()?;
        let mut out = vec![T::default(); indices.len()];
        let mut near = Vec::new();
        for run in order.chunk_by(|&a, &b| indices[a] / INDICES_SPAN == indices[b] / INDICES_SPAN) {
            let (first, last) = (indices[run[0]], indices[run[run.len() - 1]]);
            near.clear();
            near.resize((last - first) as usize + 1, T::default());
            client.pull_range(&self.table(), first, &mut near, PullOptions::default())?;
            run.iter()
                .for_each(|&n| out[n] = near[(indices[n] - first) as usize]);
        }
        Ok(out)
    }
}
