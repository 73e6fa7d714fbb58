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
/// Buffers of a client that network cards may write: each pull looks for its own among them.
pub const BUFFERS_MAX: usize = 64;
/// Bytes of such a buffer: all of them are pinned, and more than this is a mistake in a multiplication.
pub const BUFFER_BYTES_MAX: usize = 1 << 40;
/// Clock domains: one notify cell of 64 bytes each in every mailbox.
pub const DOMAINS_MAX: usize = 64;
/// Servers of a cluster.
pub const SERVERS_MAX: u32 = 1_024;
/// Workers of a cluster.
pub const WORKERS_MAX: u32 = 65_536;
/// Processes of one launch, servers and workers.
pub const LAUNCHED_MAX: u32 = SERVERS_MAX + WORKERS_MAX;
/// Bytes of a card: PMI-1's longest value is 1,024 with its zero.
pub const CARD_BYTES_MAX: usize = 1_000;
/// Addresses of a card: each is tried, and costs its time.
pub const CARD_ADDRESSES_MAX: usize = 8;
/// Bytes of a line of PMI-1: its longest value, key and name with room for what is between.
pub const PMI_LINE_BYTES_MAX: usize = 4 << 10;
/// Time that all processes of a launch have to come, for those who do not say.
pub const GATHER_TIMEOUT: Duration = Duration::from_secs(60);
/// Bytes of a launcher's variable: a list of hosts of a large job is the longest.
pub const LAUNCH_TEXT_BYTES_MAX: usize = 64 << 10;
/// Hosts that a list may name: with one process each they are a whole job.
pub const HOSTLIST_HOSTS_MAX: usize = LAUNCHED_MAX as usize;
/// Bytes of a token file that are read: 64 hex digits, a newline, and room to say "too long".
pub const TOKEN_FILE_BYTES_MAX: u64 = 128;
/// Processes that one launcher starts: each costs it five descriptors.
pub const LOCAL_PROCESSES_MAX: u32 = 512;
/// Bytes of a hostfile: the longest names for as many hosts as there can be processes, and comments.
pub const HOSTFILE_BYTES_MAX: u64 = 1 << 20;
/// Bytes of what a process on another host is told: it goes into a socket's buffer at once.
pub const REMOTE_ORDER_BYTES_MAX: usize = 96 << 10;
/// Bytes of a line that a remote shell says before the process that it starts greets.
pub const REMOTE_LINE_BYTES_MAX: usize = 4 << 10;
/// A child's output line longer than this is broken, so that one child cannot fill the memory.
pub const OUTPUT_LINE_BYTES_MAX: usize = 1 << 20;
/// Output that waits for a slow reader; past this the children are not read, and they wait too.
pub const OUTPUT_QUEUE_BYTES_MAX: usize = 1 << 20;
/// A launcher whose reader takes nothing for this long (a forgotten pager) drops the rest.
pub const OUTPUT_STALL_MAX: Duration = Duration::from_secs(600);
/// Largest pipe (the kernel's default `pipe-max-size`): what a dead child can have left in its own.
pub const PIPE_BYTES_MAX: usize = 1 << 20;
/// SIGKILL takes effect within this time unless the kernel itself is stuck.
pub const KILL_TIMEOUT: Duration = Duration::from_secs(5);
/// From the coordinator's start to its `ready` line.
pub const COORDINATOR_START_TIMEOUT: Duration = Duration::from_secs(30);
/// Time between the polite signal and SIGKILL for those who do not say.
pub const STOP_GRACE: Duration = Duration::from_secs(10);
/// Bytes of the coordinator's `ready` line: the longest host name is 253.
pub const READY_LINE_BYTES_MAX: usize = 512;
/// Bytes of a process's environment that are searched for the mark of its job.
pub const ENVIRONMENT_BYTES_MAX: u64 = 8 << 20;
/// Bytes of a child's last stderr line that an error quotes.
pub const QUOTED_LINE_BYTES_MAX: usize = 400;
/// Appliers of a server.
pub const APPLIERS_MAX: u16 = 64;
/// Descriptors of one message: four memories and a waker for each applier. The kernel's own limit
/// is 253.
pub const DESCRIPTORS_MAX: usize = 4 + APPLIERS_MAX as usize;
/// Sessions (client threads) of a server.
pub const SESSIONS_MAX: usize = 4_096;
/// Bytes of pushes that one applier holds for ranks that are early, for those who do not say: what a
/// slow worker can make the others pile up.
pub const PENDING_BYTES_DEFAULT: usize = 512 << 20;
/// A ring's data bytes; a frame is at most a quarter of it.
pub const RING_BYTES_DEFAULT: usize = 1 << 20;
/// Smallest ring: four frames of the smallest useful size.
pub const RING_BYTES_MIN: usize = 16 << 10;
/// Largest ring: past this the ring leaves the last-level cache.
pub const RING_BYTES_MAX: usize = 16 << 20;
/// Frames in flight on a ring: one reject cell each.
pub const FRAMES_IN_FLIGHT_MAX: u64 = 1_024;
/// Refused frames of a lane whose reasons its client keeps: as many as can be in flight.
pub const REJECTS_KEPT_MAX: usize = FRAMES_IN_FLIGHT_MAX as usize;
/// Runs of refused frames, older than those, that a client tells apart on a lane: 24 KiB.
pub const REJECT_RUNS_MAX: usize = 1_024;
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
/// A wait asks its coordinator this often whether the job has ended: a fraction of what a person
/// notices, and two wake-ups a second.
pub const COORDINATOR_LOOK: Duration = Duration::from_millis(500);
/// A process that ends because it lost another one may be seen to end first; for so long the
/// launcher looks for the cause.
pub const BLAME_TIMEOUT: Duration = Duration::from_secs(3);
/// A session outlives its control connection by this long, so that a cut line can be re-attached.
pub const SESSION_LINGER: Duration = Duration::from_secs(10);
/// Tries of a consistent read before the server is asked to gather.
pub const PULL_RETRIES_MAX: u32 = 8;
/// Frame bytes one applier takes from one ring before it looks at its sockets again.
pub const APPLY_BATCH_BYTES: usize = 64 << 10;
/// Rows one applier takes from one ring before it looks at its sockets again: 2 ms if it has to make
/// each of them.
pub const APPLY_BATCH_ROWS: usize = 2_048;
/// Rows that a client puts into one frame: a frame is taken whole, and others wait meanwhile.
pub const FRAME_ROWS_MAX: usize = APPLY_BATCH_ROWS;
/// Bytes of a control frame's body before the peer has proven that it holds the job's token: the
/// largest handshake message is under 512 bytes, later versions may grow.
pub const UNPROVEN_BYTES_MAX: usize = 4 << 10;
/// Bytes queued for a control peer that does not read: two of the largest messages; past it the
/// peer is cut off instead of growing our memory.
pub const CONTROL_QUEUE_BYTES_MAX: usize = 2 * CONTROL_BYTES_MAX + 4096;
/// Notices that a blocking control connection keeps while nobody asks for them.
pub const NOTICES_MAX: usize = 256;
/// Bytes of a namespace: fixed room in the handshake's first message.
pub const NAMESPACE_BYTES_MAX: usize = 64;
/// Bytes of a host name (RFC 1035) or of the kernel's boot id.
pub const HOST_BYTES_MAX: usize = 255;
/// Bytes of `host:port`: a host name, a colon, five digits, and brackets of an IPv6 literal.
pub const ADDRESS_BYTES_MAX: usize = HOST_BYTES_MAX + 8;
/// Bytes of an abstract unix socket's name: `sun_path` less its leading zero.
pub const UNIX_NAME_BYTES_MAX: usize = 107;
/// Bytes of a directory name: `PATH_MAX` less its final zero.
pub const PATH_BYTES_MAX: usize = 4_095;
/// Bytes of the text of a refusal or of a failure's reason: one or two lines of a log.
pub const TEXT_BYTES_MAX: usize = 1_024;
/// Bytes of the text of a refused handshake: it must fit before the peer is proven.
pub const HANDSHAKE_TEXT_BYTES_MAX: usize = 256;
/// Bytes of a dense block: a page at least.
pub const BLOCK_BYTES_MIN: u32 = 4 << 10;
/// At most what a frame of 256 KiB carries but for its header: such a block comes in two frames.
pub const BLOCK_BYTES_MAX: u32 = 256 << 10;
/// Payload bytes of a dense table: 64 TiB stay inside a process's 47 bits of address.
pub const DENSE_BYTES_MAX: u64 = 1 << 46;
/// Bytes of a frame that are not values when it pushes one row: header, one key and one location,
/// 64 B each.
pub const FRAME_ROW_OVERHEAD_BYTES: usize = 192;
/// Payload bytes of a row: one row and its key fit the largest frame of a ring of default size.
pub const ROW_BYTES_MAX: usize = RING_BYTES_DEFAULT / 4 - FRAME_ROW_OVERHEAD_BYTES;
/// Reads of one request on a TCP lane: its list has to be whole in the input buffer to be checked.
pub const LANE_READV_ENTRIES_MAX: usize = 512;
/// Bytes that one read request on a TCP lane asks for: other lanes wait while they are sent.
pub const LANE_READV_BYTES_MAX: usize = 1 << 20;
/// A TCP lane on which a read is late is given up if nothing has come for this long: several times what
/// an applier takes for anything but a save.
pub const LANE_QUIET_MAX: Duration = Duration::from_secs(5);
/// Bytes of one write on a TCP lane: the largest inbox.
pub const LANE_WRITE_BYTES_MAX: usize = RING_BYTES_MAX + 4096;
/// Bytes a TCP lane receives at once: a window of small replies in one system call.
pub const LANE_IN_BYTES: usize = 64 << 10;
/// Copied bytes that wait for a TCP socket before the sender stops taking on more: the answer to a pull
/// of 1,024 rows of 64 f32 is not cut in two.
pub const LANE_OUT_BYTES: usize = 320 << 10;
/// Pieces of registered memory that wait for a TCP socket: one gather list of the kernel.
pub const LANE_OUT_SPANS: usize = 64;
/// Batches of reads that a TCP lane holds back to send them together: a quarter of what is usually
/// under way at once, so that server and client both have something to do.
pub const LANE_HELD_BATCHES: usize = 16;
/// How long it holds them while its thread takes in answers: less than a sleep and its end take.
pub const LANE_HELD_TIME: Duration = Duration::from_micros(20);
/// Mailbox bytes that wait for a client that does not read: more than two whole mailboxes, which is
/// all it can have asked for and as much again in clock lines. A client that is further behind has
/// to recover its lane.
pub const LANE_POSTS_BYTES_MAX: usize = 6 << 20;
/// Bytes of an RDMA device's name: the kernel's 64 with the zero.
pub const RDMA_NAME_BYTES_MAX: usize = 63;
/// Queue pairs of a verbs lane: one that pushes and up to four that pull.
pub const VERBS_PAIRS_MAX: usize = 5;
/// Receives that an end of a verbs lane keeps posted at least: half of them are given back at once,
/// one is kept for the signal that does so, and a few should be left.
pub const VERBS_RECEIVES_MIN: u16 = 8;
/// Receives that an end of a verbs lane keeps posted: as many signals it may leave unseen. They take
/// no memory but 64 bytes each of the queue.
pub const VERBS_RECEIVES: u16 = 32;
/// Work requests of a verbs lane's pair that are not known to be over.
pub const VERBS_SENDS: u32 = 128;
/// Work requests of one doorbell: enough to make its cost small, few enough that the device starts
/// while the next chain is built.
pub const VERBS_CHAIN_REQUESTS: usize = 32;
/// Bytes of READs after which a chain ends and the next pair gets the next one: while one lands, the
/// one before it is copied to where it belongs.
pub const VERBS_CHAIN_BYTES: usize = 128 << 10;
/// Bytes of one READ, longer ones are cut: as many, whatever word they begin at.
pub const VERBS_READ_BYTES: usize = VERBS_CHAIN_BYTES + 4096;
/// The same of payload that is not copied: nothing is gained by taking it in while the rest is on its
/// way, and each READ more is a request and an answer more. Devices take messages of far more.
pub const VERBS_SCATTER_BYTES: usize = 1 << 20;
/// Registered bytes of each pulling pair in which its READs land: four of the longest.
pub const VERBS_LANDING_BYTES: usize = 4 * VERBS_READ_BYTES;
/// Registered bytes of a server's copies of what it posts to a client, until the device is done with
/// them: the bytes under way on 100 Gbit/s in 20 us.
pub const VERBS_SEND_BYTES: usize = 256 << 10;
/// The same of a client, which pushes more than it is told: a ring of the usual size, so that it
/// waits for room in the ring, and not for the device before that.
pub const VERBS_PUSH_BYTES: usize = 1 << 20;
/// Bytes of one WRITE: a quarter of a server's, so that copying and sending go on side by side.
pub const VERBS_WRITE_BYTES: usize = VERBS_SEND_BYTES / 4;
/// A client that waits for its reads looks at most so long before it sleeps: for devices whose round
/// trip is longer than the usual 20 us, as Soft-RoCE's and those over several switches, but not much
/// longer than going to sleep and waking takes.
pub const VERBS_SPIN_MAX: Duration = Duration::from_micros(100);
/// A client that waits for its server with nothing under way asks it this often by an empty WRITE,
/// which costs the server's processors nothing: one that is gone is known after this and the retries
/// of a packet, so within two seconds.
pub const VERBS_PROBE_EVERY: Duration = Duration::from_secs(1);
/// A pair on which nothing has ended in so many looks, each [`VERBS_PROBE_EVERY`] after the one before,
/// has lost a request: retries take two seconds on the slowest devices, and this is one more. Breaking
/// a lane costs milliseconds; not breaking it, the deadline of the call.
pub const VERBS_SILENT_LOOKS: u32 = 3;
/// Threads of a server that connect lanes at once: enough for many clients that start together, and
/// for some that told an address that nobody has, each of which takes a thread for a second.
pub const VERBS_CONNECTS_MAX: usize = 16;
/// To bind a window is local work of the device: it takes no longer than this, or it has failed.
pub const VERBS_BIND_TIMEOUT: Duration = Duration::from_secs(1);
/// See [`VERBS_RECEIVES_MIN`]; more than a device has for all its queue pairs is a mistake.
pub const VERBS_RECEIVES_MAX: u16 = 1_024;
/// How long a frame may be missing whose tail has come, before its lane is ended for a recovery: a
/// device moves data in microseconds, but an emulated machine stands still while its host is busy.
pub const FRAME_LATE_MAX: Duration = Duration::from_secs(5);
/// Regions that a server registers with a device: as many cells has the key directory, 1 MiB.
pub const VERBS_REGIONS_MAX: usize = 32_768;
/// Requests one poll of a TCP port executes before other lanes have their turn.
pub const LANE_POLL_OPS: usize = 64;
/// Bytes one poll of a TCP port moves before other lanes have their turn: some 50 us, and such an answer.
pub const LANE_POLL_BYTES: usize = LANE_OUT_BYTES;
/// Control connections of a server, and lane connections on their way to an applier: one for each
/// session, and as many again that are being replaced or only ask.
pub const CONNECTIONS_MAX: usize = 2 * SESSIONS_MAX;
/// Connections of a server that have not proven themselves; one more closes the oldest. Bounds what
/// strangers can hold, and leaves room for all threads of a large job to knock at once.
pub const UNPROVEN_CONNECTIONS_MAX: usize = 512;
/// Jobs (namespaces) that one coordinator serves at a time.
pub const JOBS_MAX: usize = 256;
/// Barriers of a job at which somebody waits: one for each thing to wait for, not for each step.
pub const BARRIERS_MAX: usize = 1_024;
/// Orders of one save or load that take longer than this have a server that hangs.
pub const FILE_ORDERS_TIMEOUT: Duration = Duration::from_secs(30 * 60);
/// Silence after which the kernel gives up a control connection: a host that vanished.
pub const CONTROL_SILENCE_MAX: Duration = Duration::from_secs(10);
/// Time without an acknowledgement, or without room at the other end, after which the kernel gives up the
/// connection of a lane.
pub const LANE_UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(30);
/// Silence of a lane over TCP with unanswered frames, after which its client makes it anew. Doubled as often as
/// that does not help, up to [`LANE_SILENCE_DOUBLINGS`] times: a server may have a reason not to answer.
pub const LANE_SILENCE_MAX: Duration = Duration::from_secs(10);
/// Time without progress after which a waiting client reads the public copy of a lane's state line, and
/// the shortest time between two such reads: far more than a status takes on any carrier.
pub const STATUS_LOOK: Duration = Duration::from_millis(50);
/// How often [`LANE_SILENCE_MAX`] is doubled.
pub const LANE_SILENCE_DOUBLINGS: u32 = 5;
/// Time the servers have to end after they are told to.
pub const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);
/// Bytes of a saved model's manifest: 1,024 tables of 1 KiB, 1,024 files of 1 KiB, and room.
pub const MANIFEST_BYTES_MAX: u64 = 16 << 20;
/// Payload bytes after which a chunk of a saved model is closed.
pub const CHUNK_BYTES: usize = 1 << 20;
/// Payload bytes of a chunk when it is read: one record more than [`CHUNK_BYTES`], which is a block
/// of 256 KiB with twice its bytes of optimizer state, and as many of step counts.
pub const CHUNK_BYTES_MAX: usize = CHUNK_BYTES + 6 * BLOCK_BYTES_MAX as usize;
/// A verbs packet that is not acknowledged is sent again after 4.096 us x 2^this: 67 ms, far above
/// a round trip under load.
pub const VERBS_TIMEOUT: u8 = 14;
/// What else it can be: no shorter than a round trip over some switches, and no longer than that all
/// retries end before their pair is taken for silent ([`VERBS_SILENT_LOOKS`]).
pub const VERBS_TIMEOUTS: core::ops::RangeInclusive<u8> = 8..=15;
/// Times it is sent again. Not 7: with that rxe never gives up.
pub const VERBS_RETRIES: u8 = 6;
/// Times a message waits for the peer's receive queue. Not 7, which is for ever.
pub const VERBS_RNR_RETRIES: u8 = 6;
/// How long it waits each time: code 12 of the InfiniBand specification, 0.64 ms.
pub const VERBS_RNR_TIMER: u8 = 12;
/// Routers that a RoCE v2 packet passes at most.
pub const VERBS_HOP_LIMIT: u8 = 64;
/// Bytes read of a file of `/sys` or `/proc`: a list of 8,192 processors is 40 KiB; routing tables
/// of routers are cut.
pub const SYSFS_FILE_BYTES_MAX: u64 = 1 << 20;
/// Entries of a folder, or addresses and routes, that are looked at: a GID table has 1,024.
pub const SYSFS_ENTRIES_MAX: usize = 4_096;
/// Logical processors of a host: the most the kernel can be built for.
pub const CPUS_MAX: usize = 8_192;
/// NUMA nodes of a host: the most the kernel can be built for.
pub const NODES_MAX: usize = 1_024;
/// Network devices that are looked at: a host of many containers has hundreds.
pub const NET_DEVICES_MAX: usize = 1_024;
/// RDMA devices of a host: eight cards with two ports and some virtual functions each.
pub const RDMA_DEVICES_MAX: usize = 256;
/// Ports of an RDMA device: cards have two; a switch's management device more.
pub const RDMA_PORTS_MAX: usize = 64;
/// Entries of a port's GID table: what Soft-RoCE has.
pub const RDMA_GIDS_MAX: usize = 1_024;
