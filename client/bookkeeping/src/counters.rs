//! Counters of a client's operations, which show the paths that ran.

/// Counts since the client was made. Plain numbers of one thread.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counters {
    /// Number of pull calls.
    pub pulls: u64,
    /// Rows accepted after their checksum matched.
    pub rows_consistent: u64,
    /// Rows accepted without validation (Hogwild).
    pub rows_hogwild: u64,
    /// Rows that a server gathered, on request or as a fallback.
    pub rows_gathered: u64,
    /// Blocks accepted by their version words.
    pub blocks_consistent: u64,
    /// Blocks read from a snapshot.
    pub blocks_snapshot: u64,
    /// Blocks accepted without validation.
    pub blocks_hogwild: u64,
    /// Rows or blocks that failed validation and were read again.
    pub torn_rejected: u64,
    /// Number of repeated reads.
    pub retries: u64,
    /// Pulls that gave up one-sided reads and had the rest gathered.
    pub gather_fallbacks: u64,
    /// Keys with a location that a server had to resolve.
    pub resolved_keys: u64,
    /// Cached locations that turned out stale.
    pub stale_hints: u64,
    /// Number of push calls.
    pub pushes: u64,
    /// Number of frames pushed.
    pub frames: u64,
    /// Frames that a server refused.
    pub rejects: u64,
    /// Refused frames with a reason that was forgotten before any call claimed it.
    pub rejects_unclaimed: u64,
    /// Number of lanes re-established.
    pub recoveries: u64,
    /// Number of payload bytes pulled.
    pub bytes_pulled: u64,
    /// Number of frame bytes pushed.
    pub bytes_pushed: u64,
    /// Times that a push waited for room in its ring.
    pub credit_waits: u64,
    /// Times that a call waited for servers: for acknowledgements, replies or room.
    pub waits: u64,
    /// Number of completed ticks.
    pub ticks: u64,
    /// Status records that arrived before the reject records that they count, and were held back.
    pub rejects_late: u64,
}
