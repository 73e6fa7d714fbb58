//! Every limit of Tidewater, in one place, with its reason.
//!
//! `docs/LIMITS.md` is made of this file: `TIDEWATER_TEST_BLESS=1 cargo test -p tidewater-protocol limits`
//! writes it.

use core::ops::RangeInclusive;
use core::time::Duration;

#[cfg(test)]
mod page;

/// Declares the limits, and in tests also the list of which the page is made.
macro_rules! limits {
    ($($section:literal: $(
        $(#[doc = $text:literal])+
        pub const $name:ident: $type:ty = $value:expr;
    )+)+) => {
        $($(
            $(#[doc = $text])+
            pub const $name: $type = $value;
        )+)+

        #[cfg(test)]
        const SECTIONS: &[(&str, &[page::Limit])] = &[$(
            ($section, &[$(page::Limit {
                name: stringify!($name),
                text: concat!($($text),+),
                value: &$name,
            }),+]),
        )+];
    };
}

limits! {
"Tables":

/// Bytes of a table name. The name appears in every error and metric label.
pub const TABLE_NAME_BYTES_MAX: usize = 128;
/// Elements of a row of a range table. In the other layouts, [`ROW_BYTES_MAX`] allows less: 65,488
/// elements of four bytes, or 32,744 of eight.
pub const ROW_DIM_MAX: u32 = 65_536;
/// Virtual partitions of a table: enough to balance 64 servers, few enough to scan.
pub const PARTITIONS_MAX: u32 = 4_096;
/// Virtual partitions of a table by default, where no more are needed (`placement::default_partitions`).
/// Balances up to 8 appliers within 10 %.
pub const PARTITIONS_DEFAULT: u32 = 64;
/// Number of partitions in a definition that leaves it to the coordinator.
pub const PARTITIONS_AUTO: u32 = 0;
/// Elements of a partition of a large dense table.
pub const PARTITION_ELEMENTS: u64 = 1 << 19;
/// Tables alive at once in a namespace.
pub const TABLES_MAX: usize = 1_024;
/// Bytes of the smallest block: one page.
pub const BLOCK_BYTES_MIN: u32 = 4 << 10;
/// Bytes of the largest block. A frame of 256 KiB carries less by its header, so such a block takes
/// two.
pub const BLOCK_BYTES_MAX: u32 = 256 << 10;
/// Versions that a table with snapshots has memory for by default: one to read and one to build.
pub const VERSIONS_DEFAULT: u32 = 2;
/// Versions that a table with snapshots has memory for. The numbers of so many buffers fit a word of its
/// record.
pub const VERSIONS_MAX: u32 = 16;
/// Payload bytes of a dense table. 64 TiB fit the 47-bit address space of a process.
pub const DENSE_BYTES_MAX: u64 = 1 << 46;
/// Bytes of the largest extent, a piece of a sparse table's memory: preparing one takes the helper a
/// tenth of a second.
pub const EXTENT_BYTES_MAX: usize = 64 << 20;
/// Extents of a table on one applier, so that 16 bits in a location name one. With extents of the
/// greatest size they hold 256 GiB of rows.
pub const EXTENTS_MAX: usize = 4_096;
/// Pieces of a server's memory that tables, rings and mailboxes take: 64 bytes of directory each.
pub const MEMORY_BLOCKS_MAX: usize = 65_536;
/// Bytes of a frame with one row that are not values: header, one key and one location, 64 B each.
pub const FRAME_ROW_OVERHEAD_BYTES: usize = 192;
/// Payload bytes of a row. One row and its key fit the largest frame of a ring of default size.
pub const ROW_BYTES_MAX: usize = RING_BYTES_DEFAULT / 4 - FRAME_ROW_OVERHEAD_BYTES;

"Jobs":

/// Clock domains of a cluster. Each takes one clock record of 64 bytes in every mailbox.
pub const DOMAINS_MAX: usize = 64;
/// Maximum number of servers in a cluster.
pub const SERVERS_MAX: u32 = 1_024;
/// Workers of a job. Each of them has a session at every server.
pub const WORKERS_MAX: u32 = 65_536;
/// Observers of a cluster: clients that read and are no members of clocks. They have sessions of their own,
/// so that they take none from workers.
pub const OBSERVERS_MAX: u32 = 4_096;
/// Stays of workers in the membership file of a job. Each server keeps the clocks of each.
pub const SCHEDULE_STAYS_MAX: usize = 65_536;
/// Largest clock in a membership file: three years of ticks of 0.3 us. Clocks above have meanings of their own.
pub const SCHEDULE_CLOCK_MAX: u64 = 1 << 48;
/// Processes of one launch, servers and workers.
pub const LAUNCHED_MAX: u32 = SERVERS_MAX + WORKERS_MAX;
/// Maximum number of appliers in a server.
pub const APPLIERS_MAX: u16 = 64;
/// Sessions of a server: one for each thread of each worker. Memory or descriptors may end before: a
/// session takes a ring and a mailbox for every applier and, over TCP, a descriptor for each and one.
pub const SESSIONS_MAX: usize = WORKERS_MAX as usize;
/// Threads of a worker that have a client. Bounds the members of a clock domain; more threads than the
/// processors of a node gain nothing.
pub const WORKER_THREADS_MAX: u32 = 256;
/// Control connections of a server, and lane connections on their way to an applier: one for each
/// session, and as many again that are being replaced or only query.
pub const CONNECTIONS_MAX: usize = 2 * SESSIONS_MAX;
/// Unauthenticated connections of a server; one more closes the oldest. Bounds what strangers can hold,
/// and leaves room for all threads of a large job to connect at once.
pub const UNAUTHENTICATED_CONNECTIONS_MAX: usize = 512;
/// Jobs (namespaces) that one coordinator serves at a time.
pub const JOBS_MAX: usize = 256;
/// Bytes of values that a worker may give to one collective call. More belongs in a table.
pub const COLLECTIVE_BYTES_MAX: usize = 1 << 20;
/// Bytes of a worker's position in its data. More belongs in a table.
pub const POSITION_BYTES_MAX: usize = 256;
/// Barriers of a job with waiting workers: one for each thing to wait for, not for each step.
pub const BARRIERS_MAX: usize = 1_024;
/// Queues of tasks of a job: one for each set of data.
pub const QUEUES_MAX: usize = 64;
/// Tasks of one pass of a queue. Bounds the memory of their order, 4 bytes each, and the time of its sort.
pub const QUEUE_TASKS_MAX: u64 = 1 << 22;
/// Shards of a queue: files of a data set. Their names must also fit into one control message.
pub const TASK_SHARDS_MAX: usize = 8_192;
/// Final tasks of a queue: a save, and what one worker does at the end.
pub const TASK_FINALS_MAX: usize = 8;
/// Tasks left out that a queue lists with their reasons; the rest is counted. The list fits into one control
/// message with the longest reasons and paths.
pub const TASK_LEFT_OUT_LISTED: usize = 64;
/// Requests of one client that wait for the successor of a server.
pub const PARKED_MAX: usize = 512;

"Deadlines":

/// Time after which a handshake is closed. A silent peer must not hold a slot.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Default deadline of pulls, pushes and control calls.
pub const DATA_DEADLINE: Duration = Duration::from_secs(30);
/// Payload bytes of a dense table by which a second is added to the deadline of its creation: half of
/// what one applier fills with normal random values.
pub const CREATE_BYTES_A_SECOND: u64 = 16 << 20;
/// Default deadline of clock waits.
pub const CLOCK_DEADLINE: Duration = Duration::from_secs(30 * 60);
/// Interval of the log line that names the awaited workers during a clock wait.
pub const CLOCK_NAG: Duration = Duration::from_secs(60);
/// Interval at which a wait asks its coordinator whether the job has ended. It is a fraction of what a
/// person notices, at two wake-ups a second.
pub const COORDINATOR_LOOK: Duration = Duration::from_millis(500);
/// Time that a session outlives its control connection, so that a cut connection can be re-attached.
pub const SESSION_LINGER: Duration = Duration::from_secs(10);
/// Silence after which the kernel closes a control connection: its host vanished.
pub const CONTROL_SILENCE_MAX: Duration = Duration::from_secs(10);
/// Default silence after which a server counts as lost: nothing from its host arrives.
pub const LEASE_DEFAULT: Duration = Duration::from_secs(15);
/// Time for which a server waits for a coordinator that journals its state to return. Longer than an operator
/// needs to start it again; a server without a coordinator ends at some time.
pub const COORDINATOR_ABSENCE_MAX: Duration = Duration::from_secs(30 * 60);
/// Time for which a server that was restarted with its memory keeps sessions for their clients. A worker may compute
/// for as long between two calls, and learns of the restart in a call.
pub const KEPT_SESSION_LINGER: Duration = Duration::from_secs(10 * 60);
/// Time that servers have to exit after a shutdown command.
pub const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);
/// Time in which the successor of a server has to join. Its jobs fail after it.
pub const SUCCESSOR_TIMEOUT: Duration = Duration::from_secs(15);

"Pushes, pulls and functions":

/// Buffers of a client that NICs may write. Each pull searches them for its own buffer.
pub const BUFFERS_MAX: usize = 64;
/// Bytes of such a buffer. The whole buffer is pinned, and a larger size is a multiplication error.
pub const BUFFER_BYTES_MAX: usize = 1 << 40;
/// Default bytes of pushes that one applier holds back for early ranks. Bounds what a slow worker makes
/// the others pile up.
pub const PENDING_BYTES_DEFAULT: usize = 512 << 20;
/// Data bytes of a ring. A frame takes at most a quarter of them.
pub const RING_BYTES_DEFAULT: usize = 1 << 20;
/// Bytes of the smallest ring: four frames of the smallest useful size.
pub const RING_BYTES_MIN: usize = 16 << 10;
/// Bytes of the largest ring. A larger one does not fit the last-level cache.
pub const RING_BYTES_MAX: usize = 16 << 20;
/// Frames in flight on a ring. Each has one reject record.
pub const FRAMES_IN_FLIGHT_MAX: u64 = 1_024;
/// Elements of a block with one scale, in an encoded push. A scale takes four bytes: a shorter block is
/// hardly smaller than the values.
pub const ENCODING_BLOCK_MIN: u32 = 8;
/// Most elements of such a block: one scale for a row of any length.
pub const ENCODING_BLOCK_MAX: u32 = ROW_DIM_MAX;
/// Bytes of the residuals that a client keeps for encoded pushes, unless set otherwise: 64 Mi elements.
pub const RESIDUAL_BYTES_DEFAULT: usize = 256 << 20;
/// Bytes of elements that one frame of a function covers: the largest block. An applier finishes a frame
/// before it serves other lanes. It is also the unit of a reduction: each frame gives one partial
/// result, so that the result does not depend on the number of servers.
pub const FUNCTION_BYTES_MAX: usize = BLOCK_BYTES_MAX as usize;
/// Bytes of a WebAssembly module. Half of a control message; a function of some pages has 1 to 20 KiB.
pub const FUNCTION_MODULE_BYTES_MAX: usize = 512 << 10;
/// Functions that the clients of a job load. A server keeps module and machine code of each.
pub const FUNCTIONS_LOADED_MAX: usize = 64;
/// Refused frames of a lane for which the client keeps the reason: as many as can be in flight.
pub const REJECTS_KEPT_MAX: usize = FRAMES_IN_FLIGHT_MAX as usize;
/// Older runs of refused frames that a client distinguishes on a lane. They take 24 KiB.
pub const REJECT_RUNS_MAX: usize = 1_024;
/// Started and unfinished pulls of a client: each holds the memory of its rows.
pub const PULLS_MAX: usize = 256;
/// Handles of one kind in a C, C++, Fortran or Python program. A program that never waits for its pushes
/// gets an error before it has used up the memory.
pub const HANDLES_MAX: usize = 1 << 16;
/// Row locations of a table that the threads of a worker keep together, with about 15 bytes each. Beyond
/// it they overwrite each other, and a pull asks the server for the locations that are gone.
pub const LOCATIONS_MAX: usize = 1 << 24;
/// Attempts of a consistent read before the client asks the server to gather.
pub const PULL_RETRIES_MAX: u32 = 8;
/// Frame bytes that one applier takes from one ring before it polls its sockets again.
pub const APPLY_BATCH_BYTES: usize = 64 << 10;
/// Rows that one applier takes from one ring before it polls its sockets again. They take 2 ms if the
/// applier creates each of them.
pub const APPLY_BATCH_ROWS: usize = 2_048;
/// Rows that a client puts into one frame. An applier finishes a frame before it serves other lanes.
pub const FRAME_ROWS_MAX: usize = APPLY_BATCH_ROWS;

"Saved models":

/// Default bytes of copied records that a save of one server holds. Bounds what a slow file system makes
/// records that change during a save pile up.
pub const SAVE_BYTES_DEFAULT: usize = 1 << 30;
/// Time for the commands of one save or load: 8 TiB a server at 400 MB/s. A longer one has a server that
/// hangs.
pub const FILE_ORDERS_TIMEOUT: Duration = Duration::from_secs(6 * 60 * 60);
/// Time that a save or load of a C, C++, Fortran or Python program waits by default. Programs in Rust
/// give it.
pub const FILE_CALL_TIMEOUT: Duration = Duration::from_secs(30 * 60);
/// Bytes of a saved model's manifest: 1,024 tables of 1 KiB, 1,024 files of 1 KiB, and room.
pub const MANIFEST_BYTES_MAX: u64 = 16 << 20;
/// Payload bytes after which the writer closes a chunk of a saved model.
pub const CHUNK_BYTES: usize = 1 << 20;
/// Payload bytes of a chunk that a reader accepts: one record more than [`CHUNK_BYTES`]. The largest
/// record is a block of 256 KiB with twice its bytes of optimizer state, and as many of step counts.
pub const CHUNK_BYTES_MAX: usize = CHUNK_BYTES + 6 * BLOCK_BYTES_MAX as usize;

"Training files":

/// Bytes of one line of a training file: 64 Ki features of 16 characters. A longer line lost a newline.
pub const DATA_LINE_BYTES_MAX: usize = 1 << 20;
/// Features of one row of a training file. A pull of one row still fits a few frames.
pub const DATA_ROW_FEATURES_MAX: usize = 65_536;
/// Exclusive upper bound of feature keys in training files. Biases and the like use the keys from here
/// up.
pub const DATA_KEY_LIMIT: u64 = 1 << 63;
/// Rows that one worker holds. Row numbers of a mini-batch plan are 32 bits.
pub const DATA_PART_ROWS_MAX: usize = u32::MAX as usize;
/// Bytes of one record of a RecordIO file.
pub const DATA_RECORD_BYTES_MAX: usize = 64 << 20;
/// Bytes of one chunk of a RecordIO file, compressed or not. Writers of this layout end a chunk at 32 MiB and
/// smaller.
pub const DATA_CHUNK_BYTES_MAX: usize = 256 << 20;
/// Bytes read from the start of a training file to detect its format.
pub const DATA_DETECT_BYTES_MAX: u64 = 4 << 20;

"Launchers":

/// Bytes of a bootstrap record. The longest value of PMI-1 is 1,024 bytes with its final zero.
pub const BOOTSTRAP_BYTES_MAX: usize = 1_000;
/// Addresses in a bootstrap record. A joining process tries each of them, which takes time.
pub const BOOTSTRAP_ADDRESSES_MAX: usize = 8;
/// Bytes of a PMI-1 line: the longest value, key and name, with room for the separators.
pub const PMI_LINE_BYTES_MAX: usize = 4 << 10;
/// Default time within which all processes of a launch must register.
pub const GATHER_TIMEOUT: Duration = Duration::from_secs(60);
/// Bytes of a launcher's environment variable. The longest is the host list of a large job.
pub const LAUNCH_TEXT_BYTES_MAX: usize = 64 << 10;
/// Hosts that a host list may name. With one process on each host they are a complete job.
pub const HOSTLIST_HOSTS_MAX: usize = LAUNCHED_MAX as usize;
/// Bytes read of a token file: 64 hex digits, a newline, and room to detect a longer token.
pub const TOKEN_FILE_BYTES_MAX: u64 = 128;
/// Bytes of a job file that are read: eight lines, the longest a host's name.
pub const JOB_FILE_BYTES_MAX: u64 = 4 << 10;
/// Processes that one launcher starts. Each of them costs the launcher five descriptors.
pub const LOCAL_PROCESSES_MAX: u32 = 512;
/// Bytes of a hostfile: the longest names for as many hosts as there can be processes, and comments.
pub const HOSTFILE_BYTES_MAX: u64 = 1 << 20;
/// Bytes of the start command for a process on another host. The command fits into a socket's buffer.
pub const REMOTE_ORDER_BYTES_MAX: usize = 96 << 10;
/// Bytes of a line that a remote shell prints before the started process sends its greeting.
pub const REMOTE_LINE_BYTES_MAX: usize = 4 << 10;
/// Bytes of a child's output line. A longer line is split, so that no child can fill the memory.
pub const OUTPUT_LINE_BYTES_MAX: usize = 1 << 20;
/// Output bytes queued for a slow reader. Past this the launcher stops reading and the children block.
pub const OUTPUT_QUEUE_BYTES_MAX: usize = 1 << 20;
/// Time without progress of the launcher's reader (a forgotten pager). Then the launcher drops the
/// rest.
pub const OUTPUT_STALL_MAX: Duration = Duration::from_secs(600);
/// Bytes of the largest pipe (the kernel's default `pipe-max-size`), which a dead child can leave
/// unread.
pub const PIPE_BYTES_MAX: usize = 1 << 20;
/// Time within which SIGKILL takes effect, unless the kernel itself is stuck.
pub const KILL_TIMEOUT: Duration = Duration::from_secs(5);
/// Time from the coordinator's start to its `ready` line.
pub const COORDINATOR_START_TIMEOUT: Duration = Duration::from_secs(30);
/// Default time between SIGTERM and SIGKILL.
pub const STOP_GRACE: Duration = Duration::from_secs(10);
/// Bytes of the coordinator's `ready` line. The longest host name has 253 bytes.
pub const READY_LINE_BYTES_MAX: usize = 512;
/// Bytes of a process's environment that are searched for the job's mark.
pub const ENVIRONMENT_BYTES_MAX: u64 = 8 << 20;
/// Bytes of a child's last stderr line that an error quotes.
pub const QUOTED_LINE_BYTES_MAX: usize = 400;
/// Time that the launcher searches for the root cause of a failure. A process that ends because it lost
/// another one may be seen to end first.
pub const BLAME_TIMEOUT: Duration = Duration::from_secs(3);

"Control connections":

/// Descriptors of one message: four memories, and a waker for each applier. The kernel's own limit is
/// 253.
pub const DESCRIPTORS_MAX: usize = 4 + APPLIERS_MAX as usize;
/// Bytes of a control message. A membership list of 1,024 servers fits.
pub const CONTROL_BYTES_MAX: usize = 1 << 20;
/// Bytes of a control frame's body before the peer is authenticated by the job's token. The largest
/// handshake message is under 512 bytes, later versions may grow.
pub const UNAUTHENTICATED_BYTES_MAX: usize = 4 << 10;
/// Bytes queued for a control peer that does not read: two of the largest messages. Past this the
/// connection is closed, so that memory does not grow.
pub const CONTROL_QUEUE_BYTES_MAX: usize = 2 * CONTROL_BYTES_MAX + 4096;
/// Unread notices that a blocking control connection keeps.
pub const NOTICES_MAX: usize = 256;
/// Requests of a blocking control connection that were started: their answers are kept for later calls.
pub const REQUESTS_STARTED_MAX: usize = 256;
/// Bytes of a namespace, which has fixed room in the handshake's first message.
pub const NAMESPACE_BYTES_MAX: usize = 64;
/// Bytes of a host name (RFC 1035) or of the kernel's boot id.
pub const HOST_BYTES_MAX: usize = 255;
/// Bytes of `host:port`: a host name, a colon, five digits, and brackets of an IPv6 literal.
pub const ADDRESS_BYTES_MAX: usize = HOST_BYTES_MAX + 8;
/// Bytes of an abstract unix socket's name: `sun_path` without its leading zero.
pub const UNIX_NAME_BYTES_MAX: usize = 107;
/// Bytes of a directory name: `PATH_MAX` without its final zero.
pub const PATH_BYTES_MAX: usize = 4_095;
/// Bytes of the text of a refusal or of a failure's reason: one or two log lines.
pub const TEXT_BYTES_MAX: usize = 1_024;
/// Bytes of a text in a status: the reason of a transport, or of a failure.
pub const STATUS_TEXT_BYTES_MAX: usize = 256;
/// Rows of each list of a status: sessions of a server, clocks, workers and queues of the jobs. Two lists of this
/// length with the longest texts stay under [`CONTROL_BYTES_MAX`]; the rest is counted.
pub const STATUS_ROWS_MAX: usize = 2_048;
/// Bytes of the text of a refused handshake. It must fit before the peer is authenticated.
pub const HANDSHAKE_TEXT_BYTES_MAX: usize = 256;

"TCP lanes and silent lanes":

/// Reads of one request on a TCP lane. The complete list must be in the input buffer to be checked.
pub const LANE_READV_ENTRIES_MAX: usize = 512;
/// Bytes that one read request on a TCP lane asks for. Other lanes wait while they are sent.
pub const LANE_READV_BYTES_MAX: usize = 1 << 20;
/// Silence after which a TCP lane with a late read is closed: several times the duration of anything
/// that an applier does, except a save.
pub const LANE_QUIET_MAX: Duration = Duration::from_secs(5);
/// Bytes of one write on a TCP lane: the largest inbox.
pub const LANE_WRITE_BYTES_MAX: usize = RING_BYTES_MAX + 4096;
/// Bytes that a TCP lane receives at once: a window of small replies in one system call.
pub const LANE_IN_BYTES: usize = 64 << 10;
/// Copied bytes queued for a TCP socket before the sender accepts no more. The answer to a pull of
/// 1,024 rows of 64 f32 is not split.
pub const LANE_OUT_BYTES: usize = 320 << 10;
/// Ranges of registered memory queued for a TCP socket: one gather list of the kernel.
pub const LANE_OUT_SPANS: usize = 64;
/// Batches of reads that a TCP lane holds back to send them together. A quarter of what is usually in
/// flight keeps both server and client busy.
pub const LANE_HELD_BATCHES: usize = 16;
/// Time that a TCP lane holds back batches while its thread receives answers: less than a sleep and a
/// wake-up.
pub const LANE_HELD_TIME: Duration = Duration::from_micros(20);
/// Mailbox bytes queued for a client that does not read. They exceed two complete mailboxes: all that
/// the client can have asked for, and as much again in clock records. A client that is further behind
/// must recover its lane.
pub const LANE_POSTS_BYTES_MAX: usize = 6 << 20;
/// Time that a frame may be missing after its tail arrived. Then its lane is closed for a recovery. A
/// device moves data in microseconds, but an emulated machine stands still while its host is busy.
pub const FRAME_LATE_MAX: Duration = Duration::from_secs(5);
/// Requests that one poll of a TCP lane executes before other lanes have their turn.
pub const LANE_POLL_OPS: usize = 64;
/// Bytes that one poll of a TCP lane moves before other lanes have their turn: some 50 us, and one
/// answer.
pub const LANE_POLL_BYTES: usize = LANE_OUT_BYTES;
/// Time without an acknowledgement, or without room at the other end, after which the kernel closes the
/// connection of a lane.
pub const LANE_UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(30);
/// Silence of a TCP lane with unanswered frames after which its client recovers it. Each failed attempt
/// doubles it, up to [`LANE_SILENCE_DOUBLINGS`] times: a server may have a reason not to answer.
pub const LANE_SILENCE_MAX: Duration = Duration::from_secs(10);
/// Time without progress after which a waiting client reads the public copy of a lane's status record.
/// It is also the shortest time between two such reads: far more than a status takes on any carrier.
pub const STATUS_LOOK: Duration = Duration::from_millis(50);
/// Maximum number of times that [`LANE_SILENCE_MAX`] is doubled.
pub const LANE_SILENCE_DOUBLINGS: u32 = 5;

"RDMA lanes":

/// Queue pairs of a verbs lane: one that pushes, and up to four that pull.
pub const VERBS_PAIRS_MAX: usize = 5;
/// Minimum receives that an end of a verbs lane keeps posted. Half of them are returned at once, one is
/// kept for the signal that returns them, and a few remain in reserve.
pub const VERBS_RECEIVES_MIN: u16 = 8;
/// Receives that an end of a verbs lane keeps posted: the number of signals that it may leave unseen.
/// Each takes only 64 bytes of the queue.
pub const VERBS_RECEIVES: u16 = 32;
/// Work requests of a verbs lane's pair that are not known to be complete.
pub const VERBS_SENDS: u32 = 128;
/// Work requests of one doorbell: enough to make its cost small, few enough that the device starts
/// while the next batch is built.
pub const VERBS_CHAIN_REQUESTS: usize = 32;
/// Bytes of READs after which a send batch ends and the next pair gets the next one. While one batch
/// arrives, the client copies the one before it to its destination.
pub const VERBS_CHAIN_BYTES: usize = 128 << 10;
/// Bytes of one READ; longer ones are split. A full batch fits, at any start word.
pub const VERBS_READ_BYTES: usize = VERBS_CHAIN_BYTES + 4096;
/// Bytes of one READ without a copy of its payload. Handling it before the rest arrives gains nothing,
/// and each further READ costs a request and an answer. Devices support far larger messages.
pub const VERBS_SCATTER_BYTES: usize = 1 << 20;
/// Registered bytes of each pulling pair that its READs write: four of the longest.
pub const VERBS_STAGING_BYTES: usize = 4 * VERBS_READ_BYTES;
/// Registered bytes for a server's copies of what it posts to a client, until the device completes
/// them: the bytes in flight on 100 Gbit/s in 20 us.
pub const VERBS_SEND_BYTES: usize = 256 << 10;
/// Registered bytes for the copies of a client, which pushes more than it receives. With a ring of
/// default size, the client waits for room in the ring before it waits for the device.
pub const VERBS_PUSH_BYTES: usize = 1 << 20;
/// Bytes of one WRITE: a quarter of a server's send buffer, so that copying and sending overlap.
pub const VERBS_WRITE_BYTES: usize = VERBS_SEND_BYTES / 4;
/// Time that a client polls for its reads before it sleeps. It suits devices with a round trip over the
/// usual 20 us, such as Soft-RoCE or paths over several switches. It is not much longer than a sleep
/// and a wake-up.
pub const VERBS_SPIN_MAX: Duration = Duration::from_micros(100);
/// Interval of empty WRITEs by which an idle waiting client probes its server, at no cost to the
/// server's processors. A dead server is detected after this and the retries of a packet, so within two
/// seconds.
pub const VERBS_PROBE_EVERY: Duration = Duration::from_secs(1);
/// Least polls without a completion, each [`VERBS_PROBE_EVERY`] after the one before, after which a pair has
/// lost a request. With the default timeout, retries take two seconds on the slowest devices, and this is one
/// more; longer timeouts have more polls. Breaking a lane costs milliseconds; not breaking it costs the
/// deadline of the call.
pub const VERBS_SILENT_LOOKS: u32 = 3;
/// Threads of a server that connect lanes at once: enough for many clients that start together, and for
/// some clients with an unreachable address, each of which takes a thread for a second.
pub const VERBS_CONNECTS_MAX: usize = 16;
/// Time to bind a memory window. It is local work of the device; a longer one has failed.
pub const VERBS_BIND_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum receives; see [`VERBS_RECEIVES_MIN`]. More than a device has for all its queue pairs is an
/// error.
pub const VERBS_RECEIVES_MAX: u16 = 1_024;
/// Regions that a server registers with a device. The key directory has as many cells: 1 MiB.
pub const VERBS_REGIONS_MAX: usize = 32_768;
/// Exponent of the verbs acknowledgement timeout, 4.096 us x 2^this = 67 ms, after which a packet is
/// sent again. It is far above a round trip under load.
pub const VERBS_TIMEOUT: u8 = 14;
/// Valid exponents of the timeout, 1 ms to 17 s. The least is no shorter than a round trip over some switches;
/// the greatest, with the most retries, outlasts a switch that starts again.
pub const VERBS_TIMEOUTS: RangeInclusive<u8> = 8..=22;
/// Retransmissions of a packet. Not 7: with that rxe never gives up.
pub const VERBS_RETRIES: u8 = 6;
/// Valid numbers of retransmissions: the field has three bits, and 0 would break a lane at one lost packet.
pub const VERBS_RETRY_COUNTS: RangeInclusive<u8> = 1..=7;
/// Traffic class of RoCE packets where the port configures none: DSCP 26 and ECN-capable. It is the usual
/// lossless class of RoCE fabrics, and UCX's default.
pub const VERBS_TRAFFIC_CLASS: u8 = 106;
/// Times that a message waits for the peer's receive queue. Not 7, which means for ever.
pub const VERBS_RNR_RETRIES: u8 = 6;
/// Wait for the peer's receive queue each time: code 12 of the InfiniBand specification, 0.64 ms.
pub const VERBS_RNR_TIMER: u8 = 12;
/// Maximum number of routers that a RoCE v2 packet passes.
pub const VERBS_HOP_LIMIT: u8 = 64;
/// RDMA ports, each with one GID, that an end offers for a session: four GIDs of each of eight ports.
pub const VERBS_PORTS_MAX: usize = 32;
/// Pairs of ports that a client reports as unusable when it attaches.
pub const VERBS_FAILED_PATHS_MAX: usize = 64;
/// Pairs of ports that a client tries for a session before it takes another transport. Each one that
/// fails costs the retries of a queue pair.
pub const VERBS_PATHS_TRIED_MAX: usize = 8;
/// Time for which a process remembers that a pair of ports failed its connectivity check.
pub const VERBS_FAILED_PATH_TTL: Duration = Duration::from_secs(60);
/// Rate in Mb/s of an RDMA port from which on TCP instead of it is worth a warning.
pub const RDMA_FAST_MBPS: u32 = 25_000;

"Description of a host":

/// Bytes of an RDMA device's name: the kernel's 64 without the final zero.
pub const RDMA_NAME_BYTES_MAX: usize = 63;
/// Bytes read of a file of `/sys` or `/proc`. A list of 8,192 processors is 40 KiB; routing tables of
/// routers are truncated.
pub const SYSFS_FILE_BYTES_MAX: u64 = 1 << 20;
/// Entries read of a folder, or addresses and routes. A GID table has 1,024.
pub const SYSFS_ENTRIES_MAX: usize = 4_096;
/// Logical processors of a host: the maximum of a kernel build.
pub const CPUS_MAX: usize = 8_192;
/// NUMA nodes of a host: the maximum of a kernel build.
pub const NODES_MAX: usize = 1_024;
/// Network devices that are examined. A host of many containers has hundreds.
pub const NET_DEVICES_MAX: usize = 1_024;
/// RDMA devices of a host: eight NICs with two ports and some virtual functions each.
pub const RDMA_DEVICES_MAX: usize = 256;
/// Ports of an RDMA device. NICs have two; a switch's management device has more.
pub const RDMA_PORTS_MAX: usize = 64;
/// Entries of a port's GID table, as many as Soft-RoCE has.
pub const RDMA_GIDS_MAX: usize = 1_024;
}
