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

/// Maximum bytes of a table's name (UTF-8). The name appears in every error and metric label.
pub const TABLE_NAME_BYTES_MAX: usize = 128;
/// Maximum elements of a row of a range table. In the other layouts, [`ROW_BYTES_MAX`] allows less: 65,488
/// elements of four bytes, or 32,744 of eight.
pub const ROW_DIM_MAX: u32 = 65_536;
/// Maximum virtual partitions of a table, each of which belongs to one applier: enough to balance 64 servers,
/// few enough to scan.
pub const PARTITIONS_MAX: u32 = 4_096;
/// Least number of virtual partitions that the coordinator selects for a table, unless the table has fewer rows
/// or blocks (`placement::default_partitions`). Balances up to 8 appliers within 10 %.
pub const PARTITIONS_DEFAULT: u32 = 64;
/// Value of the partition count in a request to create a table by which the coordinator selects the number.
pub const PARTITIONS_AUTO: u32 = 0;
/// Elements of a dense table for each of the partitions that the coordinator selects for it, up to eight
/// partitions for each applier. Has an effect on large tables only.
pub const PARTITION_ELEMENTS: u64 = 1 << 19;
/// Maximum tables that exist at once in a namespace.
pub const TABLES_MAX: usize = 1_024;
/// Bytes of the smallest block of a range table: one page.
pub const BLOCK_BYTES_MIN: u32 = 4 << 10;
/// Bytes of the largest block of a range table. In a ring of default size such a block takes two frames, because a
/// frame has at most a quarter of the ring, header included.
pub const BLOCK_BYTES_MAX: u32 = 256 << 10;
/// Buffers of a table with snapshots by default, one for each version: one to read and one to build.
pub const VERSIONS_DEFAULT: u32 = 2;
/// Maximum buffers of a table with snapshots, one for each version. The numbers of 16 buffers, 4 bits each, fit
/// one word of the snapshot record.
pub const VERSIONS_MAX: u32 = 16;
/// Maximum payload bytes of a dense table. 64 TiB fit the 47-bit address space of a process.
pub const DENSE_BYTES_MAX: u64 = 1 << 46;
/// Bytes of the largest extent, a slab of a sparse table's rows. The server's helper thread prepares one in a
/// tenth of a second.
pub const EXTENT_BYTES_MAX: usize = 64 << 20;
/// Maximum extents of a sparse table on one applier, so that 16 bits in a row location name one. With extents
/// of the greatest size they hold 256 GiB of rows.
pub const EXTENTS_MAX: usize = 4_096;
/// Maximum blocks into which a server's memory is divided for tables, rings and mailboxes. Each has an entry of
/// 64 bytes in the memory's directory.
pub const MEMORY_BLOCKS_MAX: usize = 65_536;
/// Bytes of a frame with one row that are not values: header, one key and one location, 64 B each.
pub const FRAME_ROW_OVERHEAD_BYTES: usize = 192;
/// Maximum payload bytes of a row. One row and its key fit the largest frame of a ring of default size.
pub const ROW_BYTES_MAX: usize = RING_BYTES_DEFAULT / 4 - FRAME_ROW_OVERHEAD_BYTES;

"Jobs":

/// Maximum clock domains (sets of tables that tick together) of a cluster. Each takes one clock record of 64
/// bytes in every mailbox.
pub const DOMAINS_MAX: usize = 64;
/// Maximum number of servers in a cluster.
pub const SERVERS_MAX: u32 = 1_024;
/// Maximum workers of a job. Each of them has a session at every server.
pub const WORKERS_MAX: u32 = 65_536;
/// Maximum observers of a cluster: clients that only read and are in no clock domain. They have sessions of
/// their own, so that they take none from workers.
pub const OBSERVERS_MAX: u32 = 4_096;
/// Maximum entries of a job's membership file. An entry is a stay of one worker, from the clock of its join to
/// the clock of its end. Each server keeps the clocks of every entry.
pub const SCHEDULE_STAYS_MAX: usize = 65_536;
/// Largest clock, in ticks, in a job's membership file: three years of ticks of 0.3 us. Larger values are
/// reserved, for instance for a worker that has finished.
pub const SCHEDULE_CLOCK_MAX: u64 = 1 << 48;
/// Maximum ticks, in a job's membership file, between the end of all workers and the first clock of the next. Each
/// applier closes every one of them.
pub const SCHEDULE_GAP_MAX: u64 = 65_536;
/// Maximum processes of one launch, servers and workers together.
pub const LAUNCHED_MAX: u32 = SERVERS_MAX + WORKERS_MAX;
/// Maximum number of appliers in a server.
pub const APPLIERS_MAX: u16 = 64;
/// Maximum sessions of a server: one for each thread of each worker. Memory or descriptors may run out earlier:
/// a session takes a ring and a mailbox for every applier. Over TCP it takes a descriptor for each applier, and
/// one more.
pub const SESSIONS_MAX: usize = WORKERS_MAX as usize;
/// Maximum threads of a worker that have a client. Bounds the members of a clock domain; more threads than the
/// processors of a node gain nothing.
pub const WORKER_THREADS_MAX: u32 = 256;
/// Maximum authenticated connections of a server: control connections, and those of lanes that are not yet
/// handed to an applier. One for each session, and as many again that replace another one or only query.
pub const CONNECTIONS_MAX: usize = 2 * SESSIONS_MAX;
/// Maximum unauthenticated connections of a server or coordinator. One more closes a server's oldest; at this number
/// a coordinator pauses accepting. Bounds what strangers can hold, and leaves room for all threads of a large job to
/// connect at once.
pub const UNAUTHENTICATED_CONNECTIONS_MAX: usize = 512;
/// Maximum jobs that one coordinator serves at a time, each in a namespace of its own.
pub const JOBS_MAX: usize = 256;
/// Maximum bytes of values that a worker contributes to one collective call. More belongs in a table.
pub const COLLECTIVE_BYTES_MAX: usize = 1 << 20;
/// Maximum bytes of the position in its data that a worker stores with a checkpoint. More belongs in a table.
pub const POSITION_BYTES_MAX: usize = 256;
/// Maximum barriers of a job at which workers wait at one time. A barrier's name stands for one thing to wait
/// for, not for one step.
pub const BARRIERS_MAX: usize = 1_024;
/// Maximum task queues of a job: one for each set of data.
pub const QUEUES_MAX: usize = 64;
/// Maximum tasks of one pass of a queue. Bounds the memory of their order, 4 bytes each, and the time of its
/// sort.
pub const QUEUE_TASKS_MAX: u64 = 1 << 22;
/// Maximum shards of a task queue: files of a data set. Their names must also fit into one control message.
pub const TASK_SHARDS_MAX: usize = 8_192;
/// Maximum final tasks of a queue, which have no records: a save, and what one worker does at the end.
pub const TASK_FINALS_MAX: usize = 8;
/// Maximum tasks, left out after too many failures, that a queue's status lists with their reasons; further
/// ones are only counted. The list fits into one control message with the longest reasons and paths.
pub const TASK_LEFT_OUT_LISTED: usize = 64;
/// Maximum requests of one client that the coordinator has not answered, for instance while it holds them back until
/// the successor of a lost server has joined. One more is refused.
pub const PARKED_MAX: usize = 512;

"Deadlines":

/// Time after which either end closes a connection with an unfinished handshake. A silent peer must not hold a
/// slot of a listening process.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Default deadline of pulls, pushes and control calls.
pub const DATA_DEADLINE: Duration = Duration::from_secs(30);
/// Payload bytes of a dense table for which the client adds one second to the deadline of the table's creation.
/// Half of what one applier fills with normal random values in a second.
pub const CREATE_BYTES_A_SECOND: u64 = 16 << 20;
/// Default deadline of a client's wait for a clock, and of the trainer's saves and loads.
pub const CLOCK_DEADLINE: Duration = Duration::from_secs(30 * 60);
/// Interval of the log lines in which a client names the workers that it waits for during a clock wait.
pub const CLOCK_NAG: Duration = Duration::from_secs(60);
/// Interval at which a client that waits checks whether the coordinator has ended the job. A person hardly
/// notices the delay, and it costs two wake-ups a second.
pub const COORDINATOR_LOOK: Duration = Duration::from_millis(500);
/// Time for which a server keeps a session after its control connection was cut, so that the client can
/// re-attach.
pub const SESSION_LINGER: Duration = Duration::from_secs(10);
/// Time without an acknowledgement of the other host after which the kernel closes a control connection.
pub const CONTROL_SILENCE_MAX: Duration = Duration::from_secs(10);
/// Default time without any data from a server's host after which the coordinator declares the server lost.
pub const LEASE_DEFAULT: Duration = Duration::from_secs(15);
/// Time for which a server waits for the restart of a coordinator that journals its state. Longer than an
/// operator needs to start it again; after it the server exits.
pub const COORDINATOR_ABSENCE_MAX: Duration = Duration::from_secs(30 * 60);
/// Time for which a restarted server that kept its memory also keeps sessions for their clients. A worker may
/// compute for as long between two calls, and learns of the restart in a call.
pub const KEPT_SESSION_LINGER: Duration = Duration::from_secs(10 * 60);
/// Time from the coordinator's shutdown command until servers must have exited.
pub const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);
/// Time from the end of a server to the connection of its successor. After it the coordinator fails the jobs of the
/// server.
pub const SUCCESSOR_TIMEOUT: Duration = Duration::from_secs(15);
/// Maximum time from the end of a server to the join of a successor that is connected: it reads all rows of the memory
/// that it has inherited before it joins, some 200 ns for each.
pub const RESUME_TIMEOUT: Duration = Duration::from_secs(10 * 60);

"Pushes, pulls and functions":

/// Maximum registered buffers of a client, into which NICs write the rows of pulls. Each pull searches them for
/// its own buffer.
pub const BUFFERS_MAX: usize = 64;
/// Maximum bytes of a client's registered buffer. The whole buffer is pinned, and a larger size is a
/// multiplication error.
pub const BUFFER_BYTES_MAX: usize = 1 << 40;
/// Default limit, in bytes, of the pushes that one applier holds back until the turn of their rank in the
/// iteration; a push over it is refused. Bounds what a slow worker makes the others pile up.
pub const PENDING_BYTES_DEFAULT: usize = 512 << 20;
/// Default data bytes of a ring, into which a client writes frames for one applier. A frame takes at most a
/// quarter of them.
pub const RING_BYTES_DEFAULT: usize = 1 << 20;
/// Data bytes of the smallest ring: four frames of the smallest useful size.
pub const RING_BYTES_MIN: usize = 16 << 10;
/// Data bytes of the largest ring. A larger one does not fit the last-level cache.
pub const RING_BYTES_MAX: usize = 16 << 20;
/// Maximum frames in flight on a ring: sent, and neither applied nor refused. Each has one reject record.
pub const FRAMES_IN_FLIGHT_MAX: u64 = 1_024;
/// Least elements that share one scale in a push encoded as Int8. A scale takes four bytes: a shorter block is
/// hardly smaller than the values.
pub const ENCODING_BLOCK_MIN: u32 = 8;
/// Most elements that share one scale in a push encoded as Int8: one scale for a row of any length.
pub const ENCODING_BLOCK_MAX: u32 = ROW_DIM_MAX;
/// Default limit, in bytes, of the rounding residuals that a client keeps for encoded pushes (error feedback):
/// 64 Mi elements. Pushes that need more are sent exact.
pub const RESIDUAL_BYTES_DEFAULT: usize = 256 << 20;
/// Maximum bytes of table elements that one frame of a function covers: the largest block. An applier finishes
/// a frame before it serves other lanes. It is also the unit of a reduction: each frame gives one partial
/// result, so that the result does not depend on the number of servers.
pub const FUNCTION_BYTES_MAX: usize = BLOCK_BYTES_MAX as usize;
/// Maximum bytes of a WebAssembly module that a client loads. Half of a control message; a function of some
/// pages has 1 to 20 KiB.
pub const FUNCTION_MODULE_BYTES_MAX: usize = 512 << 10;
/// Maximum WebAssembly functions that the clients of a job load. A server keeps module and machine code of
/// each.
pub const FUNCTIONS_LOADED_MAX: usize = 64;
/// Number of refused frames of a lane for which the client keeps the reason: as many as can be in flight.
pub const REJECTS_KEPT_MAX: usize = FRAMES_IN_FLIGHT_MAX as usize;
/// Maximum runs (successive refused frames) of a lane that a client keeps once their reasons are dropped: it
/// then knows only that they were refused. They take 24 KiB.
pub const REJECT_RUNS_MAX: usize = 1_024;
/// Maximum asynchronous pulls of a client that are started and not finished: each holds the memory of its rows.
pub const PULLS_MAX: usize = 256;
/// Maximum open handles of one kind in a C, C++, Fortran or Python program. A program that never waits for its
/// pushes gets an error before it has used up the memory.
pub const HANDLES_MAX: usize = 1 << 16;
/// Maximum cached row locations of a sparse table, which the threads of a worker share; each takes about 15
/// bytes. Beyond it new entries replace old ones, and a pull asks the server for missing locations.
pub const LOCATIONS_MAX: usize = 1 << 24;
/// Maximum repetitions of a consistent one-sided read, after the first attempt, before the client asks the server to
/// copy the rows or blocks (gather).
pub const PULL_RETRIES_MAX: u32 = 8;
/// Maximum frame bytes that one applier takes from one ring before it polls its sockets again.
pub const APPLY_BATCH_BYTES: usize = 64 << 10;
/// Maximum rows that one applier takes from one ring before it polls its sockets again. They take 2 ms if the
/// applier creates each of them.
pub const APPLY_BATCH_ROWS: usize = 2_048;
/// Maximum rows that a client puts into one frame. An applier finishes a frame before it serves other lanes.
pub const FRAME_ROWS_MAX: usize = APPLY_BATCH_ROWS;

"Saved models":

/// Default limit, in bytes, of the record copies that a server holds for one save until they are written; a
/// save that needs more fails. Copies of records that change during the save pile up on a slow file system.
pub const SAVE_BYTES_DEFAULT: usize = 1 << 30;
/// Time for which the coordinator waits for the servers' answers of one save or load: 8 TiB a server at 400
/// MB/s. A server that takes longer counts as hung.
pub const FILE_ORDERS_TIMEOUT: Duration = Duration::from_secs(6 * 60 * 60);
/// Default timeout of a save or load call in C, C++, Fortran or Python. Programs in Rust pass a timeout.
pub const FILE_CALL_TIMEOUT: Duration = Duration::from_secs(30 * 60);
/// Maximum bytes of a saved model's manifest: 1,024 tables with two lists of 4,096 partitions, which take 156 KB each,
/// 1,024 files of 1 KiB, and room.
pub const MANIFEST_BYTES_MAX: u64 = 256 << 20;
/// Payload bytes of a chunk of a saved model: the writer closes a chunk that the next record would make larger.
pub const CHUNK_BYTES: usize = 1 << 20;
/// Maximum payload bytes of a chunk of a saved model that a reader accepts: one record more than
/// [`CHUNK_BYTES`]. The largest record is a block of 256 KiB with three times its bytes of optimizer state, and twice
/// its bytes of step counts.
pub const CHUNK_BYTES_MAX: usize = CHUNK_BYTES + 6 * BLOCK_BYTES_MAX as usize;

"Training files":

/// Maximum bytes of one line of a training file: 64 Ki features of 16 characters. A longer line lost a newline.
pub const DATA_LINE_BYTES_MAX: usize = 1 << 20;
/// Maximum features of one row of a training file. A pull of one row still fits a few frames.
pub const DATA_ROW_FEATURES_MAX: usize = 65_536;
/// Exclusive upper bound of feature keys in training files. Keys from here up are for biases and other rows of
/// the program's own.
pub const DATA_KEY_LIMIT: u64 = 1 << 63;
/// Maximum rows of training data that one worker holds in memory. Row numbers of a mini-batch plan are 32 bits.
pub const DATA_PART_ROWS_MAX: usize = u32::MAX as usize;
/// Maximum bytes of one record of a RecordIO file.
pub const DATA_RECORD_BYTES_MAX: usize = 64 << 20;
/// Maximum bytes of one chunk of a RecordIO file, compressed or not. Writers of this layout end a chunk at 32
/// MiB and smaller.
pub const DATA_CHUNK_BYTES_MAX: usize = 256 << 20;
/// Maximum bytes read from the start of a training file to detect its format.
pub const DATA_DETECT_BYTES_MAX: u64 = 4 << 20;

"Launchers":

/// Maximum bytes of a bootstrap record, by which launched processes find their coordinator. The longest value
/// of PMI-1 is 1,024 bytes with its final zero.
pub const BOOTSTRAP_BYTES_MAX: usize = 1_000;
/// Maximum addresses of the coordinator in a bootstrap record. A joining process tries each of them, which
/// takes time.
pub const BOOTSTRAP_ADDRESSES_MAX: usize = 8;
/// Maximum bytes of a line of the PMI-1 protocol: the longest value, key and name, with room for the
/// separators.
pub const PMI_LINE_BYTES_MAX: usize = 4 << 10;
/// Default time within which all processes of a launch must register with the coordinator.
pub const GATHER_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum bytes of a launcher's environment variable. The longest is the host list of a large job.
pub const LAUNCH_TEXT_BYTES_MAX: usize = 64 << 10;
/// Maximum hosts that a host list may name: 66,560, one for each process of the largest launch
/// ([`LAUNCHED_MAX`]).
pub const HOSTLIST_HOSTS_MAX: usize = LAUNCHED_MAX as usize;
/// Maximum bytes read of a token file: 64 hex digits, a newline, and room to detect a longer token.
pub const TOKEN_FILE_BYTES_MAX: u64 = 128;
/// Maximum bytes that are read of a job file: eight lines, the longest a host's name.
pub const JOB_FILE_BYTES_MAX: u64 = 4 << 10;
/// Maximum processes that one launcher starts. Each of them costs the launcher five descriptors.
pub const LOCAL_PROCESSES_MAX: u32 = 512;
/// Maximum bytes of a hostfile: the longest names for as many hosts as there can be processes, and comments.
pub const HOSTFILE_BYTES_MAX: u64 = 1 << 20;
/// Maximum bytes of the message by which the launcher starts a process on another host. It fits into a socket's
/// buffer.
pub const REMOTE_ORDER_BYTES_MAX: usize = 96 << 10;
/// Maximum bytes of a line that a remote shell prints before the started process sends its greeting.
pub const REMOTE_LINE_BYTES_MAX: usize = 4 << 10;
/// Maximum bytes of a child's output line in the launcher. A longer line is split, so that no child can fill
/// the memory.
pub const OUTPUT_LINE_BYTES_MAX: usize = 1 << 20;
/// Output bytes of its children that the launcher queues for a slow reader. Past this the launcher stops
/// reading and the children block.
pub const OUTPUT_QUEUE_BYTES_MAX: usize = 1 << 20;
/// Time for which a launcher that ends waits for a reader of its output that makes no progress (a forgotten
/// pager). After it the launcher drops the remaining output.
pub const OUTPUT_STALL_MAX: Duration = Duration::from_secs(600);
/// Bytes that a dead child's output pipe can hold unread: the kernel's default `pipe-max-size`. The launcher
/// reads no more after the child's end.
pub const PIPE_BYTES_MAX: usize = 1 << 20;
/// Time from SIGKILL until the launcher gives a process up. Only a kernel that is stuck takes longer.
pub const KILL_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for which the launcher waits for the `ready` line of the coordinator that it started.
pub const COORDINATOR_START_TIMEOUT: Duration = Duration::from_secs(30);
/// Default time between the launcher's SIGTERM and SIGKILL to a process.
pub const STOP_GRACE: Duration = Duration::from_secs(10);
/// Maximum bytes of the line by which a coordinator reports its address to the launcher (`ready`). The longest
/// host name has 253 bytes.
pub const READY_LINE_BYTES_MAX: usize = 512;
/// Bytes of a process's environment (`/proc/PID/environ`) in which the reaper searches for the job's mark.
pub const ENVIRONMENT_BYTES_MAX: u64 = 8 << 20;
/// Maximum bytes that an error quotes of a child's last stderr line. The start of the line is kept.
pub const QUOTED_LINE_BYTES_MAX: usize = 400;
/// Maximum time for which the launcher waits for further exits after a process ended with code 4 (it lost another
/// process), to find the root cause. Other failures are reported at once.
pub const BLAME_TIMEOUT: Duration = Duration::from_secs(3);

"Control connections":

/// Maximum file descriptors that one message on a unix socket passes: four memories, and a waker for each
/// applier. The kernel's own limit is 253.
pub const DESCRIPTORS_MAX: usize = 4 + APPLIERS_MAX as usize;
/// Maximum bytes of a control message's body. A membership list of 1,024 servers fits.
pub const CONTROL_BYTES_MAX: usize = 1 << 20;
/// Maximum bytes of a control message's body before the peer is authenticated by the job's token. The largest
/// handshake message is under 512 bytes, later versions may grow.
pub const UNAUTHENTICATED_BYTES_MAX: usize = 4 << 10;
/// Maximum bytes queued for a control peer that does not read: two of the largest messages. Past this the
/// connection is closed, so that memory does not grow.
pub const CONTROL_QUEUE_BYTES_MAX: usize = 2 * CONTROL_BYTES_MAX + 4096;
/// Maximum bytes queued for a server at its coordinator, in place of [`CONTROL_QUEUE_BYTES_MAX`]. A server that takes
/// over gets the orders of all tables at once, and each of 4,096 listed partitions takes up to 16 bytes.
pub const SERVER_QUEUE_BYTES_MAX: usize = 64 << 20;
/// Maximum unread notices that a blocking control connection keeps. One more drops the oldest.
pub const NOTICES_MAX: usize = 256;
/// Maximum started requests of a blocking control connection with an answer that the caller has not yet taken.
/// One more is an error.
pub const REQUESTS_STARTED_MAX: usize = 256;
/// Maximum bytes of a namespace, which has fixed room in the handshake's first message.
pub const NAMESPACE_BYTES_MAX: usize = 64;
/// Maximum bytes of a host name (RFC 1035) or of the kernel's boot id.
pub const HOST_BYTES_MAX: usize = 255;
/// Maximum bytes of an address `host:port`: a host name, a colon, five digits, and brackets of an IPv6 literal.
pub const ADDRESS_BYTES_MAX: usize = HOST_BYTES_MAX + 8;
/// Maximum bytes of an abstract unix socket's name: `sun_path` without its leading zero.
pub const UNIX_NAME_BYTES_MAX: usize = 107;
/// Maximum bytes of a directory's path: `PATH_MAX` without its final zero.
pub const PATH_BYTES_MAX: usize = 4_095;
/// Maximum bytes of the text of a refusal or of a failure's reason: one or two log lines.
pub const TEXT_BYTES_MAX: usize = 1_024;
/// Maximum bytes of a text in a status report: the reason for a transport, or of a failure.
pub const STATUS_TEXT_BYTES_MAX: usize = 256;
/// Maximum rows of each list in a status report: sessions of a server, clocks, workers and queues of the jobs.
/// Two lists of this length with the longest texts stay under [`CONTROL_BYTES_MAX`]; further rows are only
/// counted.
pub const STATUS_ROWS_MAX: usize = 2_048;
/// Maximum bytes of the text of a refused handshake. It must fit before the peer is authenticated.
pub const HANDSHAKE_TEXT_BYTES_MAX: usize = 256;

"TCP lanes and silent lanes":

/// Maximum one-sided reads in one request of a TCP lane. The complete list must be in the server's input buffer
/// to be checked.
pub const LANE_READV_ENTRIES_MAX: usize = 512;
/// Maximum payload bytes that one read request on a TCP lane asks for. Other lanes wait while the server sends
/// them.
pub const LANE_READV_BYTES_MAX: usize = 1 << 20;
/// Time without input after which the client closes a TCP lane with a read that has missed its deadline.
/// Several times the duration of anything that an applier does, except a save.
pub const LANE_QUIET_MAX: Duration = Duration::from_secs(5);
/// Maximum bytes of one one-sided write on a TCP lane: the largest inbox.
pub const LANE_WRITE_BYTES_MAX: usize = RING_BYTES_MAX + 4096;
/// Bytes of a TCP lane's input buffer, the most that one system call receives: a window of small replies.
pub const LANE_IN_BYTES: usize = 64 << 10;
/// Bytes copied and queued for a TCP socket at which the lane executes no further request until some are sent.
/// The answer to a pull of 1,024 rows of 64 f32 is not split.
pub const LANE_OUT_BYTES: usize = 320 << 10;
/// Maximum ranges of registered memory queued, without a copy, for a TCP socket: as many as one gather list of
/// the kernel takes. With so many the lane executes no further request until some are sent.
pub const LANE_OUT_SPANS: usize = 64;
/// Maximum read batches that a TCP lane of a client holds back to send them together; with so many it sends
/// them. A quarter of what is usually in flight keeps both server and client busy.
pub const LANE_HELD_BATCHES: usize = 16;
/// Maximum time for which a client's TCP lane holds back read batches, to send them together while its thread
/// collects answers. It begins with the first held batch. A poll, a wait or [`LANE_HELD_BATCHES`] end it
/// earlier. It is less than a sleep and a wake-up.
pub const LANE_HELD_TIME: Duration = Duration::from_micros(20);
/// Maximum mailbox bytes that a server queues for a client that does not read. They exceed two complete
/// mailboxes: all that the client can have asked for, and as much again in clock records. A client that is
/// further behind must recover its lane.
pub const LANE_POSTS_BYTES_MAX: usize = 6 << 20;
/// Time for which a server waits for a frame after the frame's tail record arrived, and a client for reject
/// records that a status counts. Then the lane is closed for a recovery. A device moves data in microseconds,
/// but an emulated machine stands still while its host is busy.
pub const FRAME_LATE_MAX: Duration = Duration::from_secs(5);
/// Maximum requests of one TCP lane that a server executes in one poll before other lanes have their turn.
pub const LANE_POLL_OPS: usize = 64;
/// Maximum bytes that a server moves for one TCP lane in one poll before other lanes have their turn: some 50
/// us, and one answer.
pub const LANE_POLL_BYTES: usize = LANE_OUT_BYTES;
/// Time without an acknowledgement, or without room at the other end, after which the kernel closes the
/// connection of a lane.
pub const LANE_UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(30);
/// Time without input on a TCP lane with unanswered frames after which its client recovers the lane. Each
/// failed attempt doubles it, up to [`LANE_SILENCE_DOUBLINGS`] times: a server may have a reason not to answer.
pub const LANE_SILENCE_MAX: Duration = Duration::from_secs(10);
/// Time without progress after which a waiting client reads the public copy of a lane's status record with a
/// one-sided read. It is also the shortest time between two such reads: far more than a status takes on any
/// carrier.
pub const STATUS_LOOK: Duration = Duration::from_millis(50);
/// Maximum number of times that [`LANE_SILENCE_MAX`] is doubled.
pub const LANE_SILENCE_DOUBLINGS: u32 = 5;

"RDMA lanes":

/// Maximum queue pairs of a verbs lane: one that pushes, and up to four that pull.
pub const VERBS_PAIRS_MAX: usize = 5;
/// Least receive requests that an end of a verbs lane keeps posted: the credits of the other end, one for each
/// signal. Half of them are returned at once, one is kept for the signal that returns them, and a few remain in
/// reserve.
pub const VERBS_RECEIVES_MIN: u16 = 8;
/// Receive requests that an end of a verbs lane keeps posted by default: the number of signals that it can
/// receive before it looks at them. Each takes only 64 bytes of the queue.
pub const VERBS_RECEIVES: u16 = 32;
/// Maximum work requests of a verbs queue pair that are posted and not known to be complete.
pub const VERBS_SENDS: u32 = 128;
/// Maximum work requests that are posted with one doorbell: enough to make its cost small, few enough that the
/// device starts while the next batch is built.
pub const VERBS_CHAIN_REQUESTS: usize = 32;
/// Bytes of READs after which a send batch ends and the next queue pair gets the next batch. While one batch
/// arrives, the client copies the batch before it to its destination.
pub const VERBS_CHAIN_BYTES: usize = 128 << 10;
/// Maximum bytes of one RDMA READ into staging memory; longer ones are split. A full batch fits, at any start
/// word.
pub const VERBS_READ_BYTES: usize = VERBS_CHAIN_BYTES + 4096;
/// Maximum bytes of one RDMA READ directly into the caller's registered buffer. Handling it before the rest
/// arrives gains nothing, and each further READ costs a request and an answer. Devices support far larger
/// messages.
pub const VERBS_SCATTER_BYTES: usize = 1 << 20;
/// Registered staging bytes of each pulling queue pair, into which its READs arrive: four of the longest.
pub const VERBS_STAGING_BYTES: usize = 4 * VERBS_READ_BYTES;
/// Registered bytes of a server's send buffer for one lane. It holds copies of what the server posts to a
/// client until the device completes them: the bytes in flight on 100 Gbit/s in 20 us.
pub const VERBS_SEND_BYTES: usize = 256 << 10;
/// Registered bytes of a client's send buffer for one lane. A client pushes more than it receives. With a ring
/// of default size, it waits for room in the ring before it waits for the device.
pub const VERBS_PUSH_BYTES: usize = 1 << 20;
/// Maximum bytes of one RDMA WRITE: a quarter of a server's send buffer, so that copying and sending overlap.
pub const VERBS_WRITE_BYTES: usize = VERBS_SEND_BYTES / 4;
/// Time for which a client busy-polls for its reads over verbs before it sleeps. It suits devices with a round
/// trip over the usual 20 us, such as Soft-RoCE or paths over several switches. It is not much longer than a
/// sleep and a wake-up.
pub const VERBS_SPIN_MAX: Duration = Duration::from_micros(100);
/// Interval of empty WRITEs by which an idle waiting client probes its server, at no cost to the
/// server's processors. A dead server is detected after this and the retries of a packet, so within two
/// seconds.
pub const VERBS_PROBE_EVERY: Duration = Duration::from_secs(1);
/// Least number of polls without a completion after which a queue pair counts as having lost a request, and its
/// lane is broken. The polls are [`VERBS_PROBE_EVERY`] apart. With the default timeout, retries take two seconds
/// on the slowest devices, and this is one more; longer timeouts have more polls. Breaking a lane costs
/// milliseconds; not breaking it costs the deadline of the call.
pub const VERBS_SILENT_LOOKS: u32 = 3;
/// Maximum threads of a server that connect verbs lanes at once. Enough for many clients that start together,
/// and for some clients with an unreachable address, each of which takes a thread for a second.
pub const VERBS_CONNECTS_MAX: usize = 16;
/// Time within which a device must bind a memory window. It is local work of the device; a longer one has
/// failed.
pub const VERBS_BIND_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum receive requests that an end of a verbs lane may announce; see [`VERBS_RECEIVES_MIN`]. More than a
/// device has for all its queue pairs is an error.
pub const VERBS_RECEIVES_MAX: u16 = 1_024;
/// Maximum memory regions that a server registers with a device. The key directory has as many cells: 1 MiB.
pub const VERBS_REGIONS_MAX: usize = 32_768;
/// Default exponent of the verbs acknowledgement timeout, 4.096 us x 2^this = 67 ms, after which a packet is
/// sent again. It is far above a round trip under load.
pub const VERBS_TIMEOUT: u8 = 14;
/// Valid exponents of the verbs acknowledgement timeout, 1 ms to 17 s. The least is no shorter than a round
/// trip over some switches; the greatest, with the most retries, outlasts a switch that starts again.
pub const VERBS_TIMEOUTS: RangeInclusive<u8> = 8..=22;
/// Default number of retransmissions of a packet before a queue pair fails. Not 7: with that rxe never gives
/// up.
pub const VERBS_RETRIES: u8 = 6;
/// Valid numbers of retransmissions of a packet: the field has three bits, and 0 would break a lane at one lost
/// packet.
pub const VERBS_RETRY_COUNTS: RangeInclusive<u8> = 1..=7;
/// Traffic class of RoCE packets where neither the user nor the port sets one: DSCP 26 and ECN-capable. It is
/// the usual lossless class of RoCE fabrics, and UCX's default.
pub const VERBS_TRAFFIC_CLASS: u8 = 106;
/// Number of times that a device sends a message again because the peer has no receive posted (RNR). Not 7,
/// which means for ever.
pub const VERBS_RNR_RETRIES: u8 = 6;
/// Code of the device's wait before it sends a message again for lack of a posted receive (RNR NAK timer): 12 of
/// the InfiniBand specification, 0.64 ms.
pub const VERBS_RNR_TIMER: u8 = 12;
/// Maximum number of routers that a RoCE v2 packet may pass (IPv6 hop limit, IPv4 TTL).
pub const VERBS_HOP_LIMIT: u8 = 64;
/// Maximum RDMA ports, each with one GID, that an end offers for a session: four GIDs of each of eight ports.
pub const VERBS_PORTS_MAX: usize = 32;
/// Maximum port pairs (client, server) that a client reports as unusable when it attaches.
pub const VERBS_FAILED_PATHS_MAX: usize = 64;
/// Maximum port pairs (client, server) that a client tries for a session before it takes another transport.
/// Each one that fails costs the retries of a queue pair.
pub const VERBS_PATHS_TRIED_MAX: usize = 8;
/// Time for which a client process remembers that a port pair failed its connectivity check.
pub const VERBS_FAILED_PATH_TTL: Duration = Duration::from_secs(60);
/// Rate in Mb/s of an RDMA port from which on a client warns that it uses TCP in its place.
pub const RDMA_FAST_MBPS: u32 = 25_000;

"Description of a host":

/// Maximum bytes of an RDMA device's name: the kernel's 64 without the final zero.
pub const RDMA_NAME_BYTES_MAX: usize = 63;
/// Maximum bytes read of a file of `/sys` or `/proc`. A list of 8,192 processors is 40 KiB; routing tables of
/// routers are truncated.
pub const SYSFS_FILE_BYTES_MAX: u64 = 1 << 20;
/// Maximum entries read of a folder of `/sys`, or addresses and routes of a host. A GID table has 1,024.
pub const SYSFS_ENTRIES_MAX: usize = 4_096;
/// Maximum logical processors of a host: the maximum of a kernel build.
pub const CPUS_MAX: usize = 8_192;
/// Maximum NUMA nodes of a host: the maximum of a kernel build.
pub const NODES_MAX: usize = 1_024;
/// Maximum network devices of a host that are examined. A host of many containers has hundreds.
pub const NET_DEVICES_MAX: usize = 1_024;
/// Maximum RDMA devices of a host that are examined: eight NICs with two ports and some virtual functions each.
pub const RDMA_DEVICES_MAX: usize = 256;
/// Maximum ports of an RDMA device. NICs have two; a switch's management device has more.
pub const RDMA_PORTS_MAX: usize = 64;
/// Maximum entries of a port's GID table, as many as Soft-RoCE has.
pub const RDMA_GIDS_MAX: usize = 1_024;
}
