// long: one type for each struct and enum of the header.

//! The types of the header. They have their C names here, so that a search finds them in both
//! languages.
//!
//! Choices come from C as `int32_t`, never as a Rust enum, which may hold only its own values.

#![allow(non_camel_case_types, reason = "they are the names in tidewater.h")]
#![allow(clippy::enum_variant_names, reason = "C has no name spaces")]

use std::ffi::{c_char, c_void};

/// What a call returns. The text of the last failure of this thread is tw_last_error().
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub enum tw_status {
    /// The call is done.
    TW_OK = 0,
    /// A pointer that must not be null is.
    TW_ERR_NULL = 1,
    /// Not a handle, or not one of this session, or it names nothing any more.
    TW_ERR_HANDLE = 2,
    /// The session is closed.
    TW_ERR_CLOSED = 3,
    /// An argument that cannot be: the text says which, and what would be right.
    TW_ERR_ARGUMENT = 4,
    /// The deadline has passed; the text names the missing processes. A tick can be repeated.
    TW_ERR_DEADLINE = 5,
    /// A server refused a push; the text says why.
    TW_ERR_REJECTED = 6,
    /// Refused by the coordinator or a server.
    TW_ERR_REFUSED = 7,
    /// A process of the job cannot be joined, or is lost: then the job is ending.
    TW_ERR_LOST = 8,
    /// A peer broke the protocol.
    TW_ERR_PROTOCOL = 9,
    /// The job's environment is missing, incomplete, or contradicts itself.
    TW_ERR_ENVIRONMENT = 10,
    /// A thread that must not call now, by the session's thread level.
    TW_ERR_THREAD = 11,
    /// The process was forked after the session was opened.
    TW_ERR_FORKED = 12,
    /// A defect of the library. The session answers only this from now on.
    TW_ERR_PANIC = 13,
}

/// Type of a table's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub enum tw_dtype {
    /// float, 32 bits wide
    TW_F32 = 1,
    /// double, 64 bits wide
    TW_F64 = 2,
    /// int32_t; sums wrap around
    TW_I32 = 3,
    /// int64_t; sums wrap around
    TW_I64 = 4,
}

/// How a table is addressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub enum tw_kind {
    /// 64-bit key to a row of `cols` elements, created at first touch.
    TW_SPARSE = 1,
    /// `rows` x `cols`, pulled and pushed row by row, by index.
    TW_ROWS = 2,
    /// `rows` x `cols`, pulled and pushed by ranges of elements.
    TW_RANGE = 3,
}

/// What a push does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub enum tw_op {
    /// Adds the values to the elements.
    TW_SUM = 1,
    /// Stores; of equal keys in one push the last wins.
    TW_ASSIGN = 2,
    /// One step of the table's optimizer.
    TW_GRADIENT = 3,
    /// Stores the lesser of value and element, on arrival; NaN if one is NaN. Not for tables of ticks.
    TW_MIN = 4,
    /// Stores the greater of both, otherwise like TW_MIN.
    TW_MAX = 5,
}

/// How a pull reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub enum tw_mode {
    /// Every row or block is one committed version.
    TW_CONSISTENT = 0,
    /// Whatever is there: a row may mix two versions.
    TW_HOGWILD = 1,
    /// The whole range as of one tick: tables made with `snapshot`.
    TW_SNAPSHOT = 2,
    /// The server copies the rows together.
    TW_GATHER = 3,
}

/// What a pull of an unknown key does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub enum tw_missing {
    /// Creates the row with its first values.
    TW_CREATE = 0,
    /// Answers the first values and stores nothing.
    TW_INITIAL = 1,
}

/// How tw_reduce combines the values of an expression, and tw_all_reduce those of all workers. NaN is the
/// result if any value is NaN. tw_all_reduce wraps integers, begins sums and products with rank 0, and takes no
/// TW_REDUCE_AND; tw_reduce takes none of those behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub enum tw_reduction {
    /// Sum; of a condition, the number of elements for which it is true. 0 of no elements.
    TW_REDUCE_SUM = 1,
    /// Smallest value; NaN if one is NaN.
    TW_REDUCE_MIN = 2,
    /// Largest value; NaN if one is NaN.
    TW_REDUCE_MAX = 3,
    /// 1 if no value is zero, else 0; 1 of no elements.
    TW_REDUCE_AND = 4,
    /// Product.
    TW_REDUCE_PRODUCT = 5,
    /// Bits that are set in all values, of integers.
    TW_REDUCE_BIT_AND = 6,
    /// Bits that are set in any value, of integers.
    TW_REDUCE_BIT_OR = 7,
    /// Bits that are set in an odd number of values, of integers.
    TW_REDUCE_BIT_XOR = 8,
}

/// How the values of a push are encoded on their way. What an encoding leaves out of a push is added to the
/// next one of these elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub enum tw_encoding {
    /// Elements of the table's type.
    TW_EXACT = 0,
    /// 16 bits, with the exponent of a 32-bit float.
    TW_BF16 = 1,
    /// IEEE 754 binary16; at most 65504.
    TW_F16 = 2,
    /// Bytes, with a scale for each `block` elements.
    TW_INT8 = 3,
}

/// The rule by which a gradient is applied, and what `hyper` holds for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub enum tw_optimizer {
    /// SGD with rate 0.01 for floating point, none for integers.
    TW_OPTIMIZER_DEFAULT = 0,
    /// None: gradients are refused.
    TW_OPTIMIZER_NONE = 1,
    /// {lr}
    TW_SGD = 2,
    /// {lr, mu}
    TW_MOMENTUM = 3,
    /// {lr, mu}, Nesterov's form
    TW_NESTEROV = 4,
    /// {lr, eps}; squares add up
    TW_ADAGRAD = 5,
    /// {lr, beta1, beta2, eps}
    TW_ADAM = 6,
    /// {alpha, beta, l1, l2}
    TW_FTRL = 7,
    /// {lr, decay, eps}; a running mean of squares
    TW_RMSPROP = 8,
    /// {lr, beta1, beta2, eps}; `weight_decay` is decoupled
    TW_ADAMW = 9,
    /// {lr, eps}; one accumulator a row
    TW_ROW_ADAGRAD = 10,
    /// {lr, beta1, beta2, eps}
    TW_AMSGRAD = 11,
    /// {lr, rho, eps} of AdaDelta
    TW_ADADELTA = 12,
    /// {lr, l1}: SGD, then a soft threshold of lr l1
    TW_PROXIMAL_SGD = 13,
    /// {lr, eps, l1}: AdaGrad, then a soft threshold of l1 times the rate of the element
    TW_PROXIMAL_ADAGRAD = 14,
}

/// How the learning rate of a tw_schedule changes. Rates are above 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub enum tw_schedule_kind {
    /// `rate` in every iteration.
    TW_SCHEDULE_CONSTANT = 1,
    /// rate factor^k in the k-th run of `every` iterations.
    TW_SCHEDULE_STEP = 2,
    /// Grows linearly over `warm_up` iterations to `rate`, then falls as rate sqrt(warm_up / t).
    TW_SCHEDULE_INVERSE_SQRT = 3,
    /// Grows linearly over `warm_up` iterations to `rate`, then falls to `last` at `iterations` along half a
    /// cosine, and stays there.
    TW_SCHEDULE_COSINE = 4,
}

/// Norm that tw_vector_norm computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub enum tw_norm {
    /// Sum of the magnitudes of the elements.
    TW_NORM_1 = 1,
    /// Euclidean norm: the square root of the inner product with itself.
    TW_NORM_2 = 2,
    /// Largest magnitude of an element.
    TW_NORM_MAX = 3,
}

/// First values, and what `init_values` holds for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub enum tw_init {
    /// All elements are zero.
    TW_ZEROS = 0,
    /// {value}
    TW_CONSTANT = 1,
    /// {low, high}
    TW_UNIFORM = 2,
    /// {mean, std}
    TW_NORMAL = 3,
}

/// When a push takes effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub enum tw_effect {
    /// On arrival at the server.
    TW_IMMEDIATE = 0,
    /// At the tick: the sum of all workers', in order of their ranks.
    TW_CLOCK_SUM = 1,
    /// At the tick: that sum divided by the number of workers that pushed the row.
    TW_CLOCK_MEAN = 2,
}

/// What of a table outlives a server process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub enum tw_durability {
    /// Nothing of the table.
    TW_DURABILITY_NONE = 0,
    /// Rows, optimizer state and acknowledged pushes, where a holder process keeps the servers' memory; other
    /// servers refuse the table. For TW_IMMEDIATE, without by_staleness, expire_after and admit_after.
    TW_WARM = 1,
}

/// How far workers may drift apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub enum tw_sync {
    /// No worker waits for another.
    TW_ASP = 0,
    /// An iteration begins when all workers have ended the one before.
    TW_BSP = 1,
    /// At most `staleness` iterations ahead of the slowest.
    TW_SSP = 2,
}

/// What carries rows and pushes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub enum tw_transport {
    /// As the environment says; else the fastest one that both ends can use.
    TW_TRANSPORT_DEFAULT = 0,
    /// Shared memory of one host.
    TW_SHM = 1,
    /// TCP, between any hosts.
    TW_TCP = 2,
    /// RDMA; needs a library built with it.
    TW_VERBS = 3,
}

/// Which threads may call one session, as MPI names them. Threads that call at the same time have a session
/// each (tw_session_sibling).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub enum tw_thread_level {
    /// There is one thread: the one that opened the session.
    TW_THREAD_SINGLE = 0,
    /// There are others, but only the one that opened the session calls.
    TW_THREAD_FUNNELED = 1,
    /// Any thread, one at a time; a call while another is inside is TW_ERR_THREAD.
    TW_THREAD_SERIALIZED = 2,
    /// Any thread at any time; calls wait for each other.
    TW_THREAD_MULTIPLE = 3,
}

/// A table of a session. Zero is none.
pub type tw_table = u64;

/// A queue of tasks of a session. Zero is none.
pub type tw_tasks = u64;

/// A push under way. Zero is none.
pub type tw_ticket = u64;

/// A pull under way. Zero is none.
pub type tw_pull = u64;

/// Results of a named function that the session keeps. Zero is none.
pub type tw_results = u64;

/// Updates of a table that are added up by key. Zero is none.
pub type tw_buffer = u64;

/// A creation, barrier, save or load under way. Zero is none.
pub type tw_call = u64;

/// How to open a session. All zero but `size` is: join the job that environment or launcher name.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct tw_session_options {
    /// sizeof(tw_session_options), set by the caller.
    pub size: usize,
    /// HOST:PORT of the coordinator. Null: the job that environment or launcher name.
    pub coordinator: *const c_char,
    /// File, mode 0600, with the job's token. Needed with `coordinator`, unused without.
    pub token_file: *const c_char,
    /// The job's name space in a service. Null: "default".
    pub job_namespace: *const c_char,
    /// RDMA ports, as in mlx5_0:1 or mlx5_%r (the local rank). Null: as the environment says, else the best.
    pub rdma_device: *const c_char,
    /// Not 0: `rank` counts, and must be the launcher's. 0: as those say, else any that is free.
    pub has_rank: i32,
    /// This worker's number: an MPI program's own rank.
    pub rank: u32,
    /// Workers of the job. 0: as environment, launcher or coordinator say.
    pub workers: u32,
    /// tw_transport; zero is the default.
    pub transport: i32,
    /// tw_sync; zero is TW_ASP.
    pub sync: i32,
    /// Iterations that TW_SSP allows.
    pub staleness: u32,
    /// tw_thread_level; zero is TW_THREAD_SINGLE.
    pub thread_level: i32,
    /// Microseconds between the looks of a progress thread; 0: there is none.
    pub progress_interval_us: u32,
    /// Longest time of a pull, push or control call, in seconds. 0: 30.
    pub timeout_s: f64,
    /// Longest wait for other workers at a tick or a gated pull, in seconds. 0: 1800.
    pub clock_timeout_s: f64,
    /// Longest time until all other processes are there, in seconds. 0: 60.
    pub join_timeout_s: f64,
    /// Bytes of each ring, a power of two from 16 KiB to 16 MiB. A frame takes at most a quarter of it.
    /// 0: TIDEWATER_RING_BYTES, or what memory_budget allows, or 1 MiB.
    pub ring_bytes: u64,
    /// Most bytes of all rings and mailboxes of this session, at both ends. Too few for the job's
    /// appliers: TW_ERR_ENVIRONMENT. 0: TIDEWATER_MEMORY_BUDGET, or no bound.
    pub memory_budget: u64,
}

/// What a session is.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct tw_session_info {
    /// sizeof(tw_session_info), set by the caller.
    pub size: usize,
    /// Number of this worker.
    pub rank: u32,
    /// Workers of the job.
    pub workers: u32,
    /// Servers of the job.
    pub servers: u32,
    /// tw_transport that carries it; 0 where no server is.
    pub transport: i32,
    /// tw_thread_level of the session.
    pub thread_level: i32,
    /// Number of the session's thread in the worker: 0 for the first session, more for siblings.
    pub thread: u32,
}

/// What a table shall be. `size`, `name`, `dtype`, `kind` and `cols` are needed; zero is the default
/// of all others. All workers may create the same table: it is created once.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct tw_table_options {
    /// sizeof(tw_table_options), set by the caller.
    pub size: usize,
    /// 1 to 128 bytes of UTF-8.
    pub name: *const c_char,
    /// tw_dtype of the elements.
    pub dtype: i32,
    /// tw_kind: how it is addressed.
    pub kind: i32,
    /// Rows; 0 for TW_SPARSE.
    pub rows: u64,
    /// Elements of a row.
    pub cols: u32,
    /// Virtual partitions. 0: chosen when the table is created, from its size and the servers.
    pub partitions: u32,
    /// tw_optimizer, with its numbers in `hyper`.
    pub optimizer: i32,
    /// tw_init, with its numbers in `init_values`.
    pub init: i32,
    /// Numbers of the optimizer.
    pub hyper: [f64; 4],
    /// Numbers of the first values.
    pub init_values: [f64; 2],
    /// Seed of random first values.
    pub seed: u64,
    /// tw_effect; zero is TW_IMMEDIATE.
    pub effect: i32,
    /// Clock domain of the table.
    pub domain: u32,
    /// Bytes of a block of TW_RANGE: a power of two, 4 KiB to 256 KiB. 0: 16 KiB.
    pub block_bytes: u32,
    /// Not 0: TW_RANGE at the clock can be pulled with TW_SNAPSHOT.
    pub snapshot: i32,
    /// Not 0: NaN and infinity are let in.
    pub allow_not_finite: i32,
    /// Unused; must be zero.
    pub reserved: i32,
    /// L2 penalty: each gradient becomes g + weight_decay w. 0: none.
    pub weight_decay: f64,
    /// Largest magnitude of an element of a gradient. 0: any.
    pub clip_value: f64,
    /// Largest Euclidean norm of a row's gradient. 0: any. Not for TW_RANGE.
    pub clip_norm: f64,
    /// Accumulator of new rows, for TW_ADAGRAD, TW_ROW_ADAGRAD and TW_PROXIMAL_ADAGRAD.
    pub initial_accumulator: f64,
    /// Not 0: the rate of a gradient is divided by its staleness. For TW_IMMEDIATE.
    pub by_staleness: i32,
    /// Versions that a table with `snapshot` has memory for, that which is being built included: 2 to 16. All
    /// but two can be pinned. 0: 2.
    pub versions: u32,
    /// Not 0: appliers write each result into a redo record first. For measurements: TW_WARM implies it.
    pub redo: i32,
    /// What of the table outlives a server process: a tw_durability. 0: TW_DURABILITY_NONE.
    pub durability: i32,
    /// Ticks without a push after which a row of TW_SPARSE is deleted. 0: never.
    pub expire_after: u32,
    /// Push of a key that makes its row, at most 255; those before are dropped. 0: the first one. For TW_SPARSE
    /// and TW_IMMEDIATE.
    pub admit_after: u32,
    /// Number of the server that owns each partition, from 0. Null: all servers in turn. With `partitions` 0 the list
    /// has one entry for each partition. Read during the call.
    pub partition_servers: *const u32,
    /// Entries of `partition_servers`: 1 to 4096, and equal to `partitions` unless that is 0. 0 where it is null.
    pub partition_server_count: usize,
    /// First row (TW_ROWS) or element (TW_RANGE: a multiple of the elements of a block) of each partition, ascending
    /// from 0. Null: near-equal partitions. With `partitions` 0 the list has one entry for each partition. Read during
    /// the call.
    pub partition_starts: *const u64,
    /// Entries of `partition_starts`: 1 to 4096, and equal to `partitions` unless that is 0. 0 where it is null.
    pub partition_start_count: usize,
}

/// What a table is.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct tw_table_info {
    /// sizeof(tw_table_info), set by the caller.
    pub size: usize,
    /// Rows; 0 for TW_SPARSE.
    pub rows: u64,
    /// Elements of a row.
    pub cols: u32,
    /// tw_dtype of the elements.
    pub dtype: i32,
    /// tw_kind: how it is addressed.
    pub kind: i32,
    /// tw_effect of its pushes.
    pub effect: i32,
    /// Number in the cluster.
    pub number: u32,
    /// Clock domain of the table.
    pub domain: u32,
    /// Virtual partitions, as given or as chosen when the table was created.
    pub partitions: u32,
    /// Reserved: the library writes 0.
    pub reserved: u32,
}

/// How to pull. Null is the same as all zero: consistent, unknown keys are created, the session's
/// timeout.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct tw_pull_options {
    /// sizeof(tw_pull_options), set by the caller.
    pub size: usize,
    /// tw_mode; zero is TW_CONSISTENT.
    pub mode: i32,
    /// tw_missing; zero is TW_CREATE.
    pub missing: i32,
    /// Longest time, in seconds. 0: the session's.
    pub timeout_s: f64,
    /// Where tw_pull_rows and tw_pull_range write the versions of the elements; may be null.
    pub pulled: *mut tw_pulled,
}

/// A range of a table in tw_pull_group.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct tw_group_range {
    /// A TW_RANGE table with `snapshot`.
    pub table: tw_table,
    /// First element of the range.
    pub first: u64,
    /// Memory for the elements.
    pub out: *mut c_void,
    /// Number of elements in the range.
    pub elements: usize,
    /// tw_dtype of the elements.
    pub dtype: i32,
    /// Unused; must be zero.
    pub reserved: i32,
}

/// Versions of the elements that a pull wrote. A range of a table with `snapshot` has a version, unless the
/// mode is TW_GATHER. Numbers of stores are known for rows, and for ranges of other tables with
/// TW_CONSISTENT, unless a server copied some of them.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct tw_pulled {
    /// sizeof(tw_pulled), set by the caller.
    pub size: usize,
    /// Ticks of the table's clock domain that are in all elements, if `has_version` is not 0.
    pub version: u64,
    /// Smallest number of stores of the blocks or rows, if `has_stores` is not 0. A new one has 1.
    pub smallest: u64,
    /// Largest number of stores of the blocks or rows, if `has_stores` is not 0.
    pub largest: u64,
    /// Not 0: `version` is known.
    pub has_version: i32,
    /// Not 0: `smallest` and `largest` are known.
    pub has_stores: i32,
}

/// How to push. Null is the same as all zero: exact values, weight 1.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct tw_push_options {
    /// sizeof(tw_push_options), set by the caller.
    pub size: usize,
    /// Weight of a push of gradients or sums, if `has_weight` is not 0: a factor of the learning rate or of
    /// the sum; at the tick also of the divisor of a mean. 0, or a normal number above 0 of the element type.
    pub weight: f64,
    /// Not 0: `weight` is used.
    pub has_weight: i32,
    /// tw_encoding of the values; zero is TW_EXACT.
    pub encoding: i32,
    /// Elements with one scale, for TW_INT8: 8 to 65536. 0: 64.
    pub block: u32,
    /// Unused; must be zero.
    pub reserved: i32,
}

/// Inputs of a function. Null is the same as all zero: all of the target, with the target as x.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct tw_function_options {
    /// sizeof(tw_function_options), set by the caller.
    pub size: usize,
    /// Tables of x, y and z: of the target's element type, shape, block size, number of partitions, partition_servers
    /// and partition_starts.
    /// A sparse table is only combined with itself. None: x is the target.
    pub inputs: *const tw_table,
    /// Number of inputs, at most 3.
    pub input_count: usize,
    /// Values of p0, p1 and so on.
    pub parameters: *const f64,
    /// Number of parameters, at most 16.
    pub parameter_count: usize,
    /// Not 0: only `count` elements of TW_RANGE, or rows of TW_ROWS, from `first` on.
    pub has_range: i32,
    /// Unused; must be zero.
    pub reserved: i32,
    /// First element or row of the range.
    pub first: u64,
    /// Number of elements or rows of the range.
    pub count: u64,
}

/// How to merge updates. Null is the same as all zero.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct tw_buffer_options {
    /// sizeof(tw_buffer_options), set by the caller.
    pub size: usize,
    /// TW_SUM, TW_GRADIENT, TW_MIN or TW_MAX; zero is TW_SUM. An optimizer sees the sum of several gradients as one.
    pub op: i32,
    /// Unused; must be zero.
    pub reserved: i32,
    /// Rows at which the buffer is pushed. 0: 16,384.
    pub rows_max: u64,
    /// Bytes of keys and values at which it is pushed. 0: 4 MiB.
    pub bytes_max: u64,
    /// Least magnitude that a flush pushes: a row without such an element stays. 0: any.
    pub threshold: f64,
    /// Weight of each push, for TW_SUM and TW_GRADIENT of floats: 1/n for the average of n workers. 0: 1.
    pub weight: f64,
}

/// Position of tw_keys_scan; begin with zeros. Workers that share a scan take ranges of partitions.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct tw_scan_cursor {
    /// Partition of the next key.
    pub partition: u32,
    /// Partition at which the scan ends. 0: after the last one.
    pub end: u32,
    /// Slot of the next key in its partition.
    pub slot: u64,
}

/// Learning rate of each iteration, from 0.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct tw_schedule {
    /// sizeof(tw_schedule), set by the caller.
    pub size: usize,
    /// tw_schedule_kind, which says what fields count.
    pub kind: i32,
    /// Unused; must be zero.
    pub reserved: i32,
    /// The largest rate; of TW_SCHEDULE_STEP the first one.
    pub rate: f64,
    /// The last rate of TW_SCHEDULE_COSINE.
    pub last: f64,
    /// Factor between two runs of TW_SCHEDULE_STEP.
    pub factor: f64,
    /// Iterations of a run of TW_SCHEDULE_STEP.
    pub every: u64,
    /// Iterations of the warm-up; only TW_SCHEDULE_COSINE may have none.
    pub warm_up: u64,
    /// Iteration from which on the rate of TW_SCHEDULE_COSINE is `last`.
    pub iterations: u64,
}

/// A queue of tasks. All workers of a job give the same. Zero is the default of each field but the first three.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct tw_task_options {
    /// sizeof(tw_task_options), set by the caller.
    pub size: usize,
    /// Name of the queue in its job.
    pub name: *const c_char,
    /// Records of a task; the last one may have fewer.
    pub task_size: u64,
    /// Passes over the records. 0: one.
    pub epochs: u32,
    /// Not 0: a pass begins when all tasks of the one before are finished.
    pub strict_epochs: i32,
    /// Not 0: the tasks of each pass are in an order of their own, by `seed`.
    pub shuffled: i32,
    /// Failures of a task after which it is left out. 0: three.
    pub failures_max: u32,
    /// Seed of the order.
    pub seed: u64,
    /// Workers that are lost with a task, after which it is left out. 0: three.
    pub losses_max: u32,
    /// Tasks that a worker has at once, over all its threads. 0: without limit.
    pub held_max: u32,
    /// Finished tasks after which the queue ends. 0: without limit.
    pub steps_max: u64,
    /// Shortest time after which a task is taken back from its worker. 0: 300 s.
    pub timeout_s: f64,
    /// Not 0: pushes take effect on arrival, and again with a task that is given again.
    pub at_least_once: i32,
    /// Not 0: ends an iteration of clock domain `domain` after each task, and while the worker waits for one.
    pub ticking: i32,
    /// Clock domain of `ticking`.
    pub domain: u32,
    /// Unused; must be zero.
    pub reserved: i32,
}

/// A task that a session has taken.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct tw_task_info {
    /// sizeof(tw_task_info), set by the caller.
    pub size: usize,
    /// Number of the task in its queue. A task that is given again keeps it.
    pub number: u64,
    /// First record.
    pub first: u64,
    /// End of the records, exclusive.
    pub end: u64,
    /// Pass over the records, from 0.
    pub epoch: u32,
    /// Failures of this task before.
    pub failures: u32,
}

/// What a session did since it was opened: which path really ran.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct tw_counters {
    /// sizeof(tw_counters), set by the caller.
    pub size: usize,
    /// Number of pull calls.
    pub pulls: u64,
    /// Rows accepted after their hash was verified.
    pub rows_consistent: u64,
    /// Rows taken unverified.
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
    /// Number of reads repeated.
    pub retries: u64,
    /// Pulls that gave up reading one-sidedly and had the rest gathered.
    pub gather_fallbacks: u64,
    /// Keys with an unknown location, which a server resolved.
    pub resolved_keys: u64,
    /// Hints that turned out stale.
    pub stale_hints: u64,
    /// Number of push calls.
    pub pushes: u64,
    /// Number of frames pushed.
    pub frames: u64,
    /// Frames that a server refused.
    pub rejects: u64,
    /// Refused frames with a reason that was forgotten before any call asked for it.
    pub rejects_unclaimed: u64,
    /// Lanes re-established.
    pub recoveries: u64,
    /// Payload bytes pulled.
    pub bytes_pulled: u64,
    /// Frame bytes pushed.
    pub bytes_pushed: u64,
    /// Times a push waited for room in its ring.
    pub credit_waits: u64,
    /// Iterations ended by tw_tick.
    pub ticks: u64,
}
