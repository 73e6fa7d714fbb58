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
/// Bytes of one line of a training file: 64 Ki features of 16 characters; more is a lost newline.
pub const DATA_LINE_BYTES_MAX: usize = 1 << 20;
/// Features of one row of a training file: a pull of one row still fits a few frames.
pub const DATA_ROW_FEATURES_MAX: usize = 65_536;
/// Feature keys of training files are below this; keys from here up are left to biases and the like.
pub const DATA_KEY_LIMIT: u64 = 1 << 63;
/// Rows that one worker holds: row numbers of a mini-batch plan are 32 bits.
pub const DATA_PART_ROWS_MAX: usize = u32::MAX as usize;
/// Bytes read from the start of a training file to tell its format.
pub const DATA_DETECT_BYTES_MAX: u64 = 4 << 20;
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
