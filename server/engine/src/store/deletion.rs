//! Rows that are deleted: a slot that is given back, or a row that begins again.

use super::StoreError;
use super::redo::{Progress, Redo};
use super::sparse::SparseShard;

impl SparseShard {
    /// Resets the row of a key in place to its initial values and optimizer state. Takes no memory. Location and
    /// generation stay; the version's counter grows by one. The expiry stamp stays. Returns false if there is no
    /// row.
    ///
    /// # Errors
    /// None in practice: rows of this shard lie inside the memory of its server.
    pub fn reset(&mut self, key: u64, redo: &Redo, progress: Progress) -> Result<bool, StoreError> {
        let Some(place) = self.find(key).and_then(|loc| self.place(loc)) else {
            return Ok(false);
        };
        self.rows().reset(redo, progress, place)?;
        Ok(true)
    }
}
