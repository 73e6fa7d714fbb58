//! Pushes that leave together.

use super::Client;

impl Client {
    /// Sets the number of push frames that leave a lane together (default 1: each push leaves before its call
    /// returns; 0 counts as 1). A push of one row is one frame. Over a network a batch costs two system calls at
    /// either end instead of two a push.
    ///
    /// A push then may stay in this client until the batch of its lane is full, has 32 KiB, or the program
    /// makes another call: one that waits, pulls, ticks, flushes, saves, or [`Client::progress`]. Waiting for
    /// a push that is known to be applied sends nothing. Tickets, order and refusals are the same. Pushes
    /// that are held when the client is dropped are lost.
    ///
    /// # Example
    /// ```
    /// use tidewater::{Client, ClientError, PushOp, Table};
    ///
    /// /// Adds to many counters, 64 in a message.
    /// fn count(client: &mut Client, table: &Table<i64>, keys: &[u64]) -> Result<(), ClientError> {
    ///     client.batch_pushes(64);
    ///     for key in keys {
    ///         client.push_rows(table, &[*key], &[1], PushOp::Sum)?;
    ///     }
    ///     client.flush()
    /// }
    /// ```
    pub const fn batch_pushes(&mut self, frames: u32) {
        self.lanes.set_push_batch(frames);
    }
}
