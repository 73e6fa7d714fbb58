//! Every limit, in one place, with its reason.

use std::time::Duration;

/// Bytes of a table name: it appears in every error and metric label.
pub const TABLE_NAME_BYTES_MAX: usize = 128;
/// Elements of a row: 64 Ki elements keep a row of f64 under half a frame.
pub const ROW_DIM_MAX: u32 = 65_536;
/// Virtual partitions of a table: enough to balance 64 servers, few enough to scan.
pub const PARTITIONS_MAX: u32 = 4_096;
/// Virtual partitions of a table that does not say: balances up to 32 servers within 10 %.
pub const PARTITIONS_DEFAULT: u32 = 256;
/// Tables alive at once in a namespace.
pub const TABLES_MAX: usize = 1_024;
/// Clock domains: one notify cell of 64 bytes each in every mailbox.
pub const DOMAINS_MAX: usize = 64;
/// Servers of a cluster.
pub const SERVERS_MAX: u32 = 1_024;
/// Workers of a cluster.
pub const WORKERS_MAX: u32 = 65_536;
/// Appliers of a server.
pub const APPLIERS_MAX: u16 = 64;
/// Sessions (client threads) of a server.
pub const SESSIONS_MAX: usize = 4_096;
/// A ring's data bytes; a frame is at most a quarter of it.
pub const RING_BYTES_DEFAULT: usize = 1 << 20;
/// Smallest ring: four frames of the smallest useful size.
pub const RING_BYTES_MIN: usize = 16 << 10;
/// Largest ring: past this the ring leaves the last-level cache.
pub const RING_BYTES_MAX: usize = 16 << 20;
/// Frames in flight on a ring: one reject cell each.
pub const FRAMES_IN_FLIGHT_MAX: u64 = 1_024;
/// Bytes of a control message: a membership list of 1,024 servers fits.
pub const CONTROL_BYTES_MAX: usize = 1 << 20;
/// A handshake that takes longer is closed: a silent peer must not hold a slot.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Deadline of pulls, pushes and control calls that do not say.
pub const DATA_DEADLINE: Duration = Duration::from_secs(30);
/// Deadline of clock waits that do not say.
pub const CLOCK_DEADLINE: Duration = Duration::from_secs(30 * 60);
/// While a clock wait lasts, a line this often names who is awaited.
pub const CLOCK_NAG: Duration = Duration::from_secs(60);
/// A session outlives its control connection by this long, so that a cut line can be re-attached.
pub const SESSION_LINGER: Duration = Duration::from_secs(10);
/// Tries of a consistent read before the server is asked to gather.
pub const PULL_RETRIES_MAX: u32 = 8;
/// Frame bytes one applier takes from one ring before it looks at its sockets again.
pub const APPLY_BATCH_BYTES: usize = 64 << 10;
/// Reads of one request on a TCP lane: its list has to be whole in the input buffer to be checked.
pub const LANE_READV_ENTRIES_MAX: usize = 512;
/// Bytes that one read request on a TCP lane asks for: other lanes wait while they are sent.
pub const LANE_READV_BYTES_MAX: usize = 1 << 20;
/// Bytes of one write on a TCP lane: the largest inbox.
pub const LANE_WRITE_BYTES_MAX: usize = crate::layout::session::inbox_bytes(RING_BYTES_MAX);
/// Bytes a TCP lane receives at once: a window of small replies in one system call.
pub const LANE_IN_BYTES: usize = 64 << 10;
/// Copied bytes that wait for a TCP socket before the sender stops taking on more.
pub const LANE_OUT_BYTES: usize = 256 << 10;
/// Pieces of registered memory that wait for a TCP socket: one gather list of the kernel.
pub const LANE_OUT_SPANS: usize = 64;
/// Mailbox bytes that wait for a client that does not read: two whole mailboxes, which is all it
/// can have asked for and as much again in clock lines. A client that is further behind has to
/// recover its lane.
pub const LANE_POSTS_BYTES_MAX: usize = 2 * crate::layout::session::MAILBOX_BYTES;
/// Operations one poll of a TCP port executes before other lanes have their turn.
pub const LANE_POLL_OPS: usize = 64;
/// Bytes one poll of a TCP port moves before other lanes have their turn.
pub const LANE_POLL_BYTES: usize = 256 << 10;
