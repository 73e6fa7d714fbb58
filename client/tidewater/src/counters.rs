//! What a client did: counters that show which path really ran.

/// Counts since the client was made. Plain numbers of one thread.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counters {
    /// Pull calls.
    pub pulls: u64,
    /// Rows accepted after their hash was verified.
    pub rows_consistent: u64,
    /// Rows taken unverified (Hogwild).
    pub rows_hogwild: u64,
    /// Rows that a server gathered, asked for or as a fallback.
    pub rows_gathered: u64,
    /// Blocks accepted by their version words.
    pub blocks_consistent: u64,
    /// Blocks read from a snapshot.
    pub blocks_snapshot: u64,
    /// Blocks taken unverified.
    pub blocks_hogwild: u64,
    /// Rows or blocks that did not prove themselves and were read again.
    pub torn_rejected: u64,
    /// Reads repeated.
    pub retries: u64,
    /// Pulls that gave up reading one-sidedly and had the rest gathered.
    pub gather_fallbacks: u64,
    /// Keys whose location had to be asked for.
    pub resolved_keys: u64,
    /// Hints that turned out stale.
    pub stale_hints: u64,
    /// Push calls.
    pub pushes: u64,
    /// Frames pushed.
    pub frames: u64,
    /// Frames that a server refused.
    pub rejects: u64,
    /// Refused frames whose reason was forgotten before anybody asked for it.
    pub rejects_unclaimed: u64,
    /// Lanes re-established.
    pub recoveries: u64,
    /// Payload bytes pulled.
    pub bytes_pulled: u64,
    /// Frame bytes pushed.
    pub bytes_pushed: u64,
    /// Times a push waited for room in its ring.
    pub credit_waits: u64,
    /// Ticks.
    pub ticks: u64,
}
