/* Tidewater's client for C, C++ and Fortran.
 *
 * Written by cbindgen from client/capi/src; see cbindgen.toml there. The manual is
 * docs/BINDINGS.md, examples are in client/capi/examples.
 *
 * Statuses. Every call that can fail returns a tw_status; tw_last_error() is the text of this
 * thread's last failure: which call, what was wrong, what to do.
 *
 * Memory. A pointer is null, where that is allowed, or to what its parameter names, as large as the
 * call's arguments say. Arrays and strings are the caller's again when a call returns.
 *
 * Handles. A session is a pointer from tw_session_open to tw_session_free; after tw_session_close
 * every call of it is TW_ERR_CLOSED. Tables, tickets, pulls, results and buffers are numbers, which a session checks:
 * zero, those of other sessions and those that are gone are TW_ERR_HANDLE.
 *
 * Structs that end in _options, _info or _counters begin with their size, and may grow at their
 * end. Zero is the default of every option: `tw_pull_options o = {.size = sizeof o};`
 *
 * Threads. By tw_thread_level, as MPI names them. The library starts no thread (but the one that
 * progress_interval_us asks for), handles no signal (but those that tw_walltime_watch asks for), and
 * registers nothing at exit.
 *
 * Forks. A session belongs to the process that opened it; in a child its calls are TW_ERR_FORKED.
 */


#ifndef TIDEWATER_H
#define TIDEWATER_H

#include <stddef.h>
#include <stdint.h>

/* A session with the servers of one job. */
typedef struct tw_session tw_session;

// Version of this interface, 100 x major + minor: a program that was compiled with it runs with libraries
// of the same major and at least this minor version.
#define TW_ABI_VERSION 100

// What a call returns. The text of the last failure of this thread is tw_last_error().
typedef enum {
    // The call is done.
    TW_OK = 0,
    // A pointer that must not be null is.
    TW_ERR_NULL = 1,
    // Not a handle, or not one of this session, or it names nothing any more.
    TW_ERR_HANDLE = 2,
    // The session is closed.
    TW_ERR_CLOSED = 3,
    // An argument that cannot be: the text says which, and what would be right.
    TW_ERR_ARGUMENT = 4,
    // The deadline has passed; the text names the missing processes. A tick can be repeated.
    TW_ERR_DEADLINE = 5,
    // A server refused a push; the text says why.
    TW_ERR_REJECTED = 6,
    // Refused by the coordinator or a server.
    TW_ERR_REFUSED = 7,
    // A process of the job cannot be joined, or is lost: then the job is ending.
    TW_ERR_LOST = 8,
    // A peer broke the protocol.
    TW_ERR_PROTOCOL = 9,
    // The job's environment is missing, incomplete, or contradicts itself.
    TW_ERR_ENVIRONMENT = 10,
    // A thread that must not call now, by the session's thread level.
    TW_ERR_THREAD = 11,
    // The process was forked after the session was opened.
    TW_ERR_FORKED = 12,
    // A defect of the library. The session answers only this from now on.
    TW_ERR_PANIC = 13,
} tw_status;

// Type of a table's elements.
typedef enum {
    // float, 32 bits wide
    TW_F32 = 1,
    // double, 64 bits wide
    TW_F64 = 2,
    // int32_t; sums wrap around
    TW_I32 = 3,
    // int64_t; sums wrap around
    TW_I64 = 4,
} tw_dtype;

// How a table is addressed.
typedef enum {
    // 64-bit key to a row of `cols` elements, created at first touch.
    TW_SPARSE = 1,
    // `rows` x `cols`, pulled and pushed row by row, by index.
    TW_ROWS = 2,
    // `rows` x `cols`, pulled and pushed by ranges of elements.
    TW_RANGE = 3,
} tw_kind;

// What a push does.
typedef enum {
    // Adds the values to the elements.
    TW_SUM = 1,
    // Stores; of equal keys in one push the last wins.
    TW_ASSIGN = 2,
    // One step of the table's optimizer.
    TW_GRADIENT = 3,
    // Stores the lesser of value and element, on arrival; NaN if one is NaN. Not for tables of ticks.
    TW_MIN = 4,
    // Stores the greater of both, otherwise like TW_MIN.
    TW_MAX = 5,
} tw_op;

// How the values of a push are encoded on their way. What an encoding leaves out of a push is added to the
// next one of these elements.
typedef enum {
    // Elements of the table's type.
    TW_EXACT = 0,
    // 16 bits, with the exponent of a 32-bit float.
    TW_BF16 = 1,
    // IEEE 754 binary16; at most 65504.
    TW_F16 = 2,
    // Bytes, with a scale for each `block` elements.
    TW_INT8 = 3,
} tw_encoding;

// How a pull reads.
typedef enum {
    // Every row or block is one committed version.
    TW_CONSISTENT = 0,
    // Whatever is there: a row may mix two versions.
    TW_HOGWILD = 1,
    // The whole range as of one tick: tables made with `snapshot`.
    TW_SNAPSHOT = 2,
    // The server copies the rows together.
    TW_GATHER = 3,
} tw_mode;

// What a pull of an unknown key does.
typedef enum {
    // Creates the row with its first values.
    TW_CREATE = 0,
    // Answers the first values and stores nothing.
    TW_INITIAL = 1,
} tw_missing;

// The rule by which a gradient is applied, and what `hyper` holds for it.
typedef enum {
    // SGD with rate 0.01 for floating point, none for integers.
    TW_OPTIMIZER_DEFAULT = 0,
    // None: gradients are refused.
    TW_OPTIMIZER_NONE = 1,
    // {lr}
    TW_SGD = 2,
    // {lr, mu}
    TW_MOMENTUM = 3,
    // {lr, mu}, Nesterov's form
    TW_NESTEROV = 4,
    // {lr, eps}; squares add up
    TW_ADAGRAD = 5,
    // {lr, beta1, beta2, eps}
    TW_ADAM = 6,
    // {alpha, beta, l1, l2}
    TW_FTRL = 7,
    // {lr, decay, eps}; a running mean of squares
    TW_RMSPROP = 8,
    // {lr, beta1, beta2, eps}; `weight_decay` is decoupled
    TW_ADAMW = 9,
    // {lr, eps}; one accumulator a row
    TW_ROW_ADAGRAD = 10,
    // {lr, beta1, beta2, eps}
    TW_AMSGRAD = 11,
    // {lr, rho, eps} of AdaDelta
    TW_ADADELTA = 12,
    // {lr, l1}: SGD, then a soft threshold of lr l1
    TW_PROXIMAL_SGD = 13,
    // {lr, eps, l1}: AdaGrad, then a soft threshold of l1 times the rate of the element
    TW_PROXIMAL_ADAGRAD = 14,
} tw_optimizer;

// First values, and what `init_values` holds for them.
typedef enum {
    // All elements are zero.
    TW_ZEROS = 0,
    // {value}
    TW_CONSTANT = 1,
    // {low, high}
    TW_UNIFORM = 2,
    // {mean, std}
    TW_NORMAL = 3,
} tw_init;

// When a push takes effect.
typedef enum {
    // On arrival at the server.
    TW_IMMEDIATE = 0,
    // At the tick: the sum of all workers', in order of their ranks.
    TW_CLOCK_SUM = 1,
    // At the tick: that sum divided by the number of workers that pushed the row.
    TW_CLOCK_MEAN = 2,
} tw_effect;

// What of a table outlives a server process.
typedef enum {
    // Nothing of the table.
    TW_DURABILITY_NONE = 0,
    // Rows, optimizer state and acknowledged pushes, where a holder process keeps the servers' memory; other
    // servers refuse the table. For TW_IMMEDIATE, without by_staleness, expire_after and admit_after.
    TW_WARM = 1,
} tw_durability;

// How far workers may drift apart.
typedef enum {
    // No worker waits for another.
    TW_ASP = 0,
    // An iteration begins when all workers have ended the one before.
    TW_BSP = 1,
    // At most `staleness` iterations ahead of the slowest.
    TW_SSP = 2,
} tw_sync;

// What carries rows and pushes.
typedef enum {
    // As the environment says; else the fastest one that both ends can use.
    TW_TRANSPORT_DEFAULT = 0,
    // Shared memory of one host.
    TW_SHM = 1,
    // TCP, between any hosts.
    TW_TCP = 2,
    // RDMA; needs a library built with it.
    TW_VERBS = 3,
} tw_transport;

// Which threads may call one session, as MPI names them. Threads that call at the same time have a session
// each (tw_session_sibling).
typedef enum {
    // There is one thread: the one that opened the session.
    TW_THREAD_SINGLE = 0,
    // There are others, but only the one that opened the session calls.
    TW_THREAD_FUNNELED = 1,
    // Any thread, one at a time; a call while another is inside is TW_ERR_THREAD.
    TW_THREAD_SERIALIZED = 2,
    // Any thread at any time; calls wait for each other.
    TW_THREAD_MULTIPLE = 3,
} tw_thread_level;

// How tw_reduce combines the values of an expression, and tw_all_reduce those of all workers. NaN is the
// result if any value is NaN. tw_all_reduce wraps integers, begins sums and products with rank 0, and takes no
// TW_REDUCE_AND; tw_reduce takes none of those behind it.
typedef enum {
    // Sum; of a condition, the number of elements for which it is true. 0 of no elements.
    TW_REDUCE_SUM = 1,
    // Smallest value; NaN if one is NaN.
    TW_REDUCE_MIN = 2,
    // Largest value; NaN if one is NaN.
    TW_REDUCE_MAX = 3,
    // 1 if no value is zero, else 0; 1 of no elements.
    TW_REDUCE_AND = 4,
    // Product.
    TW_REDUCE_PRODUCT = 5,
    // Bits that are set in all values, of integers.
    TW_REDUCE_BIT_AND = 6,
    // Bits that are set in any value, of integers.
    TW_REDUCE_BIT_OR = 7,
    // Bits that are set in an odd number of values, of integers.
    TW_REDUCE_BIT_XOR = 8,
} tw_reduction;

// How the learning rate of a tw_schedule changes. Rates are above 0.
typedef enum {
    // `rate` in every iteration.
    TW_SCHEDULE_CONSTANT = 1,
    // rate factor^k in the k-th run of `every` iterations.
    TW_SCHEDULE_STEP = 2,
    // Grows linearly over `warm_up` iterations to `rate`, then falls as rate sqrt(warm_up / t).
    TW_SCHEDULE_INVERSE_SQRT = 3,
    // Grows linearly over `warm_up` iterations to `rate`, then falls to `last` at `iterations` along half a
    // cosine, and stays there.
    TW_SCHEDULE_COSINE = 4,
} tw_schedule_kind;

// Norm that tw_vector_norm computes.
typedef enum {
    // Sum of the magnitudes of the elements.
    TW_NORM_1 = 1,
    // Euclidean norm: the square root of the inner product with itself.
    TW_NORM_2 = 2,
    // Largest magnitude of an element.
    TW_NORM_MAX = 3,
} tw_norm;

// How to open a session. All zero but `size` is: join the job that environment or launcher name.
typedef struct {
    // sizeof(tw_session_options), set by the caller.
    size_t size;
    // HOST:PORT of the coordinator. Null: the job that environment or launcher name.
    const char *coordinator;
    // File, mode 0600, with the job's token. Needed with `coordinator`, unused without.
    const char *token_file;
    // The job's name space in a service. Null: "default".
    const char *job_namespace;
    // RDMA ports, as in mlx5_0:1 or mlx5_%r (the local rank). Null: as the environment says, else the best.
    const char *rdma_device;
    // Not 0: `rank` counts, and must be the launcher's. 0: as those say, else any that is free.
    int32_t has_rank;
    // This worker's number: an MPI program's own rank.
    uint32_t rank;
    // Workers of the job. 0: as environment, launcher or coordinator say.
    uint32_t workers;
    // tw_transport; zero is the default.
    int32_t transport;
    // tw_sync; zero is TW_ASP.
    int32_t sync;
    // Iterations that TW_SSP allows.
    uint32_t staleness;
    // tw_thread_level; zero is TW_THREAD_SINGLE.
    int32_t thread_level;
    // Microseconds between the looks of a progress thread; 0: there is none.
    uint32_t progress_interval_us;
    // Longest time of a pull, push or control call, in seconds. 0: 30.
    double timeout_s;
    // Longest wait for other workers at a tick or a gated pull, in seconds. 0: 1800.
    double clock_timeout_s;
    // Longest time until all other processes are there, in seconds. 0: 60.
    double join_timeout_s;
    // Bytes of each ring, a power of two from 16 KiB to 16 MiB. A frame takes at most a quarter of it.
    // 0: TIDEWATER_RING_BYTES, or what memory_budget allows, or 1 MiB.
    uint64_t ring_bytes;
    // Most bytes of all rings and mailboxes of this session, at both ends. Too few for the job's
    // appliers: TW_ERR_ENVIRONMENT. 0: TIDEWATER_MEMORY_BUDGET, or no bound.
    uint64_t memory_budget;
} tw_session_options;

// Copies `length` bytes at `bytes` from rank 0 to all processes of a program, as MPI_Bcast does. Returns 0 if
// it has.
typedef int (*tw_broadcast_fn)(void *bytes, size_t length, void *context);

// What a session is.
typedef struct {
    // sizeof(tw_session_info), set by the caller.
    size_t size;
    // Number of this worker.
    uint32_t rank;
    // Workers of the job.
    uint32_t workers;
    // Servers of the job.
    uint32_t servers;
    // tw_transport that carries it; 0 where no server is.
    int32_t transport;
    // tw_thread_level of the session.
    int32_t thread_level;
    // Number of the session's thread in the worker: 0 for the first session, more for siblings.
    uint32_t thread;
} tw_session_info;

// What a session did since it was opened: which path really ran.
typedef struct {
    // sizeof(tw_counters), set by the caller.
    size_t size;
    // Number of pull calls.
    uint64_t pulls;
    // Rows accepted after their hash was verified.
    uint64_t rows_consistent;
    // Rows taken unverified.
    uint64_t rows_hogwild;
    // Rows that a server gathered, asked for or as a fallback.
    uint64_t rows_gathered;
    // Blocks accepted by their version words.
    uint64_t blocks_consistent;
    // Blocks read from a snapshot.
    uint64_t blocks_snapshot;
    // Blocks taken unverified.
    uint64_t blocks_hogwild;
    // Rows or blocks that did not prove themselves and were read again.
    uint64_t torn_rejected;
    // Number of reads repeated.
    uint64_t retries;
    // Pulls that gave up reading one-sidedly and had the rest gathered.
    uint64_t gather_fallbacks;
    // Keys with an unknown location, which a server resolved.
    uint64_t resolved_keys;
    // Hints that turned out stale.
    uint64_t stale_hints;
    // Number of push calls.
    uint64_t pushes;
    // Number of frames pushed.
    uint64_t frames;
    // Frames that a server refused.
    uint64_t rejects;
    // Refused frames with a reason that was forgotten before any call asked for it.
    uint64_t rejects_unclaimed;
    // Lanes re-established.
    uint64_t recoveries;
    // Payload bytes pulled.
    uint64_t bytes_pulled;
    // Frame bytes pushed.
    uint64_t bytes_pushed;
    // Times a push waited for room in its ring.
    uint64_t credit_waits;
    // Iterations ended by tw_tick.
    uint64_t ticks;
} tw_counters;

// What a table shall be. `size`, `name`, `dtype`, `kind` and `cols` are needed; zero is the default
// of all others. All workers may create the same table: it is created once.
typedef struct {
    // sizeof(tw_table_options), set by the caller.
    size_t size;
    // 1 to 128 bytes of UTF-8.
    const char *name;
    // tw_dtype of the elements.
    int32_t dtype;
    // tw_kind: how it is addressed.
    int32_t kind;
    // Rows; 0 for TW_SPARSE.
    uint64_t rows;
    // Elements of a row.
    uint32_t cols;
    // Virtual partitions. 0: chosen when the table is created, from its size and the servers.
    uint32_t partitions;
    // tw_optimizer, with its numbers in `hyper`.
    int32_t optimizer;
    // tw_init, with its numbers in `init_values`.
    int32_t init;
    // Numbers of the optimizer.
    double hyper[4];
    // Numbers of the first values.
    double init_values[2];
    // Seed of random first values.
    uint64_t seed;
    // tw_effect; zero is TW_IMMEDIATE.
    int32_t effect;
    // Clock domain of the table.
    uint32_t domain;
    // Bytes of a block of TW_RANGE: a power of two, 4 KiB to 256 KiB. 0: 16 KiB.
    uint32_t block_bytes;
    // Not 0: TW_RANGE at the clock can be pulled with TW_SNAPSHOT.
    int32_t snapshot;
    // Not 0: NaN and infinity are let in.
    int32_t allow_not_finite;
    // Unused; must be zero.
    int32_t reserved;
    // L2 penalty: each gradient becomes g + weight_decay w. 0: none.
    double weight_decay;
    // Largest magnitude of an element of a gradient. 0: any.
    double clip_value;
    // Largest Euclidean norm of a row's gradient. 0: any. Not for TW_RANGE.
    double clip_norm;
    // Accumulator of new rows, for TW_ADAGRAD, TW_ROW_ADAGRAD and TW_PROXIMAL_ADAGRAD.
    double initial_accumulator;
    // Not 0: the rate of a gradient is divided by its staleness. For TW_IMMEDIATE.
    int32_t by_staleness;
    // Versions that a table with `snapshot` has memory for, that which is being built included: 2 to 16. All
    // but two can be pinned. 0: 2.
    uint32_t versions;
    // Not 0: appliers write each result into a redo record first. For measurements: TW_WARM implies it.
    int32_t redo;
    // What of the table outlives a server process: a tw_durability. 0: TW_DURABILITY_NONE.
    int32_t durability;
    // Ticks without a push after which a row of TW_SPARSE is deleted. 0: never.
    uint32_t expire_after;
    // Push of a key that makes its row, at most 255; those before are dropped. 0: the first one. For TW_SPARSE
    // and TW_IMMEDIATE.
    uint32_t admit_after;
    // Number of the server that owns each partition, from 0. Null: all servers in turn. With `partitions` 0 the list
    // has one entry for each partition. Read during the call.
    const uint32_t *partition_servers;
    // Entries of `partition_servers`: 1 to 4096, and equal to `partitions` unless that is 0. 0 where it is null.
    size_t partition_server_count;
    // First row (TW_ROWS) or element (TW_RANGE: a multiple of the elements of a block) of each partition, ascending
    // from 0. Null: near-equal partitions. With `partitions` 0 the list has one entry for each partition. Read during
    // the call.
    const uint64_t *partition_starts;
    // Entries of `partition_starts`: 1 to 4096, and equal to `partitions` unless that is 0. 0 where it is null.
    size_t partition_start_count;
} tw_table_options;

// A table of a session. Zero is none.
typedef uint64_t tw_table;

// What a table is.
typedef struct {
    // sizeof(tw_table_info), set by the caller.
    size_t size;
    // Rows; 0 for TW_SPARSE.
    uint64_t rows;
    // Elements of a row.
    uint32_t cols;
    // tw_dtype of the elements.
    int32_t dtype;
    // tw_kind: how it is addressed.
    int32_t kind;
    // tw_effect of its pushes.
    int32_t effect;
    // Number in the cluster.
    uint32_t number;
    // Clock domain of the table.
    uint32_t domain;
    // Virtual partitions, as given or as chosen when the table was created.
    uint32_t partitions;
    // Reserved: the library writes 0.
    uint32_t reserved;
} tw_table_info;

// Versions of the elements that a pull wrote. A range of a table with `snapshot` has a version, unless the
// mode is TW_GATHER. Numbers of stores are known for rows, and for ranges of other tables with
// TW_CONSISTENT, unless a server copied some of them.
typedef struct {
    // sizeof(tw_pulled), set by the caller.
    size_t size;
    // Ticks of the table's clock domain that are in all elements, if `has_version` is not 0.
    uint64_t version;
    // Smallest number of stores of the blocks or rows, if `has_stores` is not 0. A new one has 1.
    uint64_t smallest;
    // Largest number of stores of the blocks or rows, if `has_stores` is not 0.
    uint64_t largest;
    // Not 0: `version` is known.
    int32_t has_version;
    // Not 0: `smallest` and `largest` are known.
    int32_t has_stores;
} tw_pulled;

// How to pull. Null is the same as all zero: consistent, unknown keys are created, the session's
// timeout.
typedef struct {
    // sizeof(tw_pull_options), set by the caller.
    size_t size;
    // tw_mode; zero is TW_CONSISTENT.
    int32_t mode;
    // tw_missing; zero is TW_CREATE.
    int32_t missing;
    // Longest time, in seconds. 0: the session's.
    double timeout_s;
    // Where tw_pull_rows and tw_pull_range write the versions of the elements; may be null.
    tw_pulled *pulled;
} tw_pull_options;

// A range of a table in tw_pull_group.
typedef struct {
    // A TW_RANGE table with `snapshot`.
    tw_table table;
    // First element of the range.
    uint64_t first;
    // Memory for the elements.
    void *out;
    // Number of elements in the range.
    size_t elements;
    // tw_dtype of the elements.
    int32_t dtype;
    // Unused; must be zero.
    int32_t reserved;
} tw_group_range;

// A pull under way. Zero is none.
typedef uint64_t tw_pull;

// A push under way. Zero is none.
typedef uint64_t tw_ticket;

// How to push. Null is the same as all zero: exact values, weight 1.
typedef struct {
    // sizeof(tw_push_options), set by the caller.
    size_t size;
    // Weight of a push of gradients or sums, if `has_weight` is not 0: a factor of the learning rate or of
    // the sum; at the tick also of the divisor of a mean. 0, or a normal number above 0 of the element type.
    double weight;
    // Not 0: `weight` is used.
    int32_t has_weight;
    // tw_encoding of the values; zero is TW_EXACT.
    int32_t encoding;
    // Elements with one scale, for TW_INT8: 8 to 65536. 0: 64.
    uint32_t block;
    // Unused; must be zero.
    int32_t reserved;
} tw_push_options;

// Receives the result of a push, once, with the `user` of tw_push_on_applied. TW_OK: it is applied, and `text` is null.
// Otherwise `text` says why not; it is valid during the call. TW_ERR_LOST: the session ended before the answer, and
// whether the push was applied is unknown. It must return: no exception and no longjmp leaves it.
typedef void (*tw_applied_fn)(void *user, tw_status status, const char *text);

// Inputs of a function. Null is the same as all zero: all of the target, with the target as x.
typedef struct {
    // sizeof(tw_function_options), set by the caller.
    size_t size;
    // Tables of x, y and z: of the target's element type, shape, block size, number of partitions, partition_servers
    // and partition_starts.
    // A sparse table is only combined with itself. None: x is the target.
    const tw_table *inputs;
    // Number of inputs, at most 3.
    size_t input_count;
    // Values of p0, p1 and so on.
    const double *parameters;
    // Number of parameters, at most 16.
    size_t parameter_count;
    // Not 0: only `count` elements of TW_RANGE, or rows of TW_ROWS, from `first` on.
    int32_t has_range;
    // Unused; must be zero.
    int32_t reserved;
    // First element or row of the range.
    uint64_t first;
    // Number of elements or rows of the range.
    uint64_t count;
} tw_function_options;

// Results of a named function that the session keeps. Zero is none.
typedef uint64_t tw_results;

// How to merge updates. Null is the same as all zero.
typedef struct {
    // sizeof(tw_buffer_options), set by the caller.
    size_t size;
    // TW_SUM, TW_GRADIENT, TW_MIN or TW_MAX; zero is TW_SUM. An optimizer sees the sum of several gradients as one.
    int32_t op;
    // Unused; must be zero.
    int32_t reserved;
    // Rows at which the buffer is pushed. 0: 16,384.
    uint64_t rows_max;
    // Bytes of keys and values at which it is pushed. 0: 4 MiB.
    uint64_t bytes_max;
    // Least magnitude that a flush pushes: a row without such an element stays. 0: any.
    double threshold;
    // Weight of each push, for TW_SUM and TW_GRADIENT of floats: 1/n for the average of n workers. 0: 1.
    double weight;
} tw_buffer_options;

// Updates of a table that are added up by key. Zero is none.
typedef uint64_t tw_buffer;

// Position of tw_keys_scan; begin with zeros. Workers that share a scan take ranges of partitions.
typedef struct {
    // Partition of the next key.
    uint32_t partition;
    // Partition at which the scan ends. 0: after the last one.
    uint32_t end;
    // Slot of the next key in its partition.
    uint64_t slot;
} tw_scan_cursor;

// Learning rate of each iteration, from 0.
typedef struct {
    // sizeof(tw_schedule), set by the caller.
    size_t size;
    // tw_schedule_kind, which says what fields count.
    int32_t kind;
    // Unused; must be zero.
    int32_t reserved;
    // The largest rate; of TW_SCHEDULE_STEP the first one.
    double rate;
    // The last rate of TW_SCHEDULE_COSINE.
    double last;
    // Factor between two runs of TW_SCHEDULE_STEP.
    double factor;
    // Iterations of a run of TW_SCHEDULE_STEP.
    uint64_t every;
    // Iterations of the warm-up; only TW_SCHEDULE_COSINE may have none.
    uint64_t warm_up;
    // Iteration from which on the rate of TW_SCHEDULE_COSINE is `last`.
    uint64_t iterations;
} tw_schedule;

// A creation, barrier, save or load under way. Zero is none.
typedef uint64_t tw_call;

// A queue of tasks. All workers of a job give the same. Zero is the default of each field but the first three.
typedef struct {
    // sizeof(tw_task_options), set by the caller.
    size_t size;
    // Name of the queue in its job.
    const char *name;
    // Records of a task; the last one may have fewer.
    uint64_t task_size;
    // Passes over the records. 0: one.
    uint32_t epochs;
    // Not 0: a pass begins when all tasks of the one before are finished.
    int32_t strict_epochs;
    // Not 0: the tasks of each pass are in an order of their own, by `seed`.
    int32_t shuffled;
    // Failures of a task after which it is left out. 0: three.
    uint32_t failures_max;
    // Seed of the order.
    uint64_t seed;
    // Workers that are lost with a task, after which it is left out. 0: three.
    uint32_t losses_max;
    // Tasks that a worker has at once, over all its threads. 0: without limit.
    uint32_t held_max;
    // Finished tasks after which the queue ends. 0: without limit.
    uint64_t steps_max;
    // Shortest time after which a task is taken back from its worker. 0: 300 s.
    double timeout_s;
    // Not 0: pushes take effect on arrival, and again with a task that is given again.
    int32_t at_least_once;
    // Not 0: ends an iteration of clock domain `domain` after each task, and while the worker waits for one.
    int32_t ticking;
    // Clock domain of `ticking`.
    uint32_t domain;
    // Unused; must be zero.
    int32_t reserved;
} tw_task_options;

// A queue of tasks of a session. Zero is none.
typedef uint64_t tw_tasks;

// A task that a session has taken.
typedef struct {
    // sizeof(tw_task_info), set by the caller.
    size_t size;
    // Number of the task in its queue. A task that is given again keeps it.
    uint64_t number;
    // First record.
    uint64_t first;
    // End of the records, exclusive.
    uint64_t end;
    // Pass over the records, from 0.
    uint32_t epoch;
    // Failures of this task before.
    uint32_t failures;
} tw_task_info;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// TW_ABI_VERSION of the library that is linked.
uint32_t tw_abi_version(void);

// The library's release, like "0.1.0".
const char *tw_version(void);

// The name of a status, like "TW_ERR_CLOSED"; "unknown" for a number that is none.
const char *tw_status_name(int32_t status);

// What went wrong in the last call of this thread that failed, and what to do; empty if none has.
// Never null; the text lives until the thread's next call that fails.
const char *tw_last_error(void);

// Joins a job as a worker and opens a session with every server. `options` may be null: the job
// that the environment names, or that of the processes which mpirun, srun or their like started with
// this one. On failure `*session` is null. Waits for processes that are starting, up to `join_timeout_s`.
tw_status tw_session_open(const tw_session_options *options,
                          tw_session **session);

// Joins a job as an observer and opens a session with every server. An observer opens tables and pulls in
// every mode, at any time, and is no member of a clock or a barrier: no worker waits for it, also not if it
// is stopped. It has no rank, and keys without a row have initial values. Calls that change something
// are TW_ERR_REFUSED. `options`: as for tw_session_open; rank, workers and synchronisation have no effect.
// Without a coordinator in them TIDEWATER_COORDINATOR and TIDEWATER_TOKEN_FILE name the job. On failure
// `*session` is null.
tw_status tw_session_observe(const tw_session_options *options,
                             tw_session **session);

// Begins a job of a program that counts its processes itself, as by MPI, and opens this process's session:
// process `rank` of `size`. All are workers, by these ranks. `servers` of them, spread evenly, are servers
// too, on threads of the library; 0: all. It needs no launcher, no variable and no file. `broadcast` is called
// once in each process, with `context`, also where arguments are wrong; the bytes are a secret. `options` may be
// null; coordinator, token_file, rank and workers of it stay unset. End the session by tw_leave. On failure
// `*session` is null; where it is that of rank 0 before the broadcast, all fail.
tw_status tw_begin(const tw_session_options *options,
                   uint32_t rank,
                   uint32_t size,
                   uint32_t servers,
                   tw_broadcast_fn broadcast,
                   void *context,
                   tw_session **session);

// Ends a session of tw_begin: tw_finish, then tw_session_close; then it waits for the workers of all processes,
// because coordinator and servers may be in this one. Call it in all processes, before MPI_Finalize; free the
// handle afterwards. It also ends a session of tw_session_open, without a wait for others. After a failure it
// may be repeated, and goes on where it failed; of a session that has left it does nothing.
tw_status tw_leave(tw_session *session);

// Opens a session for a further thread of this worker: of the same rank and thread level, with clocks that
// begin at those of `session`, which has flushed. Each session ticks by itself; a worker has ended an
// iteration when each of its sessions has. With TW_THREAD_SINGLE and TW_THREAD_FUNNELED the sibling is of
// the thread that makes its first call. Sessions of a worker call at the same time without waiting for each
// other. Barriers and collective calls are those of the first session: TW_ERR_THREAD on a sibling. Call
// tw_finish on each sibling before the first session, then close it: one that is closed without loses its
// worker. On failure `*sibling` is null.
tw_status tw_session_sibling(tw_session *session,
                             tw_session **sibling);

// Ends the session: connections and memory are given back, tickets and pulls with them. What was pushed
// stays pushed. The handle stays, and every later call of it is TW_ERR_CLOSED. It does not say that
// the worker is done: tw_finish does, before.
tw_status tw_session_close(tw_session *session);

// Closes the session if it is open, frees the handle, and sets `*session` to null. A handle that is null
// already is none: done. In a forked child nothing of the parent's session is touched.
tw_status tw_session_free(tw_session **session);

// Rank (of an observer a number from 65536), workers, servers, transport, thread. Set `info->size` before.
tw_status tw_session_describe(tw_session *session,
                              tw_session_info *info);

// What the session did so far. Set `counters->size` before.
tw_status tw_session_counters(tw_session *session, tw_counters *counters);

// Takes in what has arrived and sends on what a socket did not take at once; never waits for an answer.
// Every call does this too: only a program that computes for seconds between calls, over TCP, has use for
// it. `progress_interval_us` has a thread make these calls.
tw_status tw_progress(tw_session *session);

// Lets up to `frames` frames of pushes of rows leave for an applier together (default 1: each push leaves before
// its call returns; 0 is 1). A push of one row is one frame. Pushes that are held leave when the batch is
// full or has 32 KiB, and with each call that waits, pulls, ticks, flushes, saves, or is tw_progress. They are
// lost if the session is closed before.
tw_status tw_batch_pushes(tw_session *session,
                          uint32_t frames);

// This worker is done: waits for its pushes like tw_flush, leaves every clock, and says so to the
// coordinator, so that no worker waits for it. On a sibling its thread is done. Close the session
// afterwards. TW_ERR_THREAD while siblings are open.
tw_status tw_finish(tw_session *session);

// This worker cannot go on: the job ends, and its end names `reason`, of which the first 4,095 bytes count.
tw_status tw_fail(tw_session *session,
                  const char *reason);

// Saves all tables into a directory that all servers see; on one worker, between barriers. `rows` and
// `bytes`, which may be null, get what was written. `timeout_s` 0: half an hour.
tw_status tw_save(tw_session *session,
                  const char *directory,
                  double timeout_s,
                  uint64_t *rows,
                  uint64_t *bytes);

// Loads the tables of a saved model, on one worker, before they are created; open them afterwards.
// `tables`, which may be null, gets their number. `timeout_s` 0: half an hour.
tw_status tw_load(tw_session *session, const char *directory, double timeout_s, uint64_t *tables);

// Creates a table, or opens the one of that name if its definition is equal. All workers may call it.
tw_status tw_table_create(tw_session *session,
                          const tw_table_options *options,
                          tw_table *table);

// Opens a table that exists; `dtype` says what the caller takes it to hold.
tw_status tw_table_open(tw_session *session, const char *name, int32_t dtype, tw_table *table);

// What a table is. Set `info->size` before.
tw_status tw_table_describe(tw_session *session, tw_table table, tw_table_info *info);

// Releases a table for everybody: pulls and pushes of it fail from now on. `*table` becomes zero.
tw_status tw_table_release(tw_session *session, tw_table *table);

// Pulls `rows` rows by key (TW_SPARSE) or index (TW_ROWS) into `out`, row after row in the order of `keys`,
// which may repeat. `elements` of type `dtype` have room there: rows x cols. `options` may be null. On
// failure `out` holds anything.
tw_status tw_pull_rows(tw_session *session,
                       tw_table table,
                       const uint64_t *keys,
                       size_t rows,
                       void *out,
                       size_t elements,
                       int32_t dtype,
                       const tw_pull_options *options);

// Pulls elements `first ..` of a TW_RANGE table, row after row, into `out`, which has room for `elements`
// of type `dtype`. `options` may be null. On failure `out` holds anything.
tw_status tw_pull_range(tw_session *session,
                        tw_table table,
                        uint64_t first,
                        void *out,
                        size_t elements,
                        int32_t dtype,
                        const tw_pull_options *options);

// Pulls ranges of several tables as of one version: the newest that all servers still have of all of them. The
// tables have `snapshot` and one clock domain. `options` may be null; its mode is not used. On failure the
// arrays hold anything.
tw_status tw_pull_group(tw_session *session,
                        const tw_group_range *ranges,
                        size_t count,
                        const tw_pull_options *options);

// Pins a version of a TW_RANGE table with `snapshot`: that at `version`, or the newest if it is null.
// `*pinned`, which may be null, becomes its number. tw_pull_pinned reads it until tw_unpin, or the end of the
// session, however slow this process is; no tick waits for it. TW_ERR_ARGUMENT names the versions that are
// kept; TW_ERR_REJECTED says that as many are pinned as can be.
tw_status tw_pin(tw_session *session,
                 tw_table table,
                 const uint64_t *version,
                 uint64_t *pinned);

// Ends a pin of this session. A version that was pinned twice is unpinned twice.
tw_status tw_unpin(tw_session *session, tw_table table, uint64_t version);

// Pulls elements `first ..` of a version that this session has pinned; else like tw_pull_range. The mode of
// `options` is not used.
tw_status tw_pull_pinned(tw_session *session,
                         tw_table table,
                         uint64_t version,
                         uint64_t first,
                         void *out,
                         size_t elements,
                         int32_t dtype,
                         const tw_pull_options *options);

// Starts a pull of rows, which tw_pull_wait ends; up to 256 may be under way. The keys are copied.
tw_status tw_pull_start(tw_session *session,
                        tw_table table,
                        const uint64_t *keys,
                        size_t rows,
                        const tw_pull_options *options,
                        tw_pull *pull);

// Starts a pull of `elements` elements of TW_RANGE from element `first` on, which tw_pull_wait ends; otherwise like
// tw_pull_start. Up to 16 MiB travel meanwhile; what is longer, and versions of tables with snapshots, are read by
// tw_pull_wait.
tw_status tw_pull_range_start(tw_session *session,
                              tw_table table,
                              uint64_t first,
                              size_t elements,
                              const tw_pull_options *options,
                              tw_pull *pull);

// Whether tw_pull_wait would return without waiting for reads: `*ready` becomes 1 or 0.
tw_status tw_pull_test(tw_session *session, tw_pull pull, int32_t *ready);

// Waits for a pull and writes its rows to `out`, in the order of its keys, or its range; `*pull` becomes zero. After
// TW_ERR_DEADLINE and TW_ERR_ARGUMENT it is still under way.
tw_status tw_pull_wait(tw_session *session,
                       tw_pull *pull,
                       void *out,
                       size_t elements,
                       int32_t dtype);

// Gives a pull up; `*pull` becomes zero.
tw_status tw_pull_cancel(tw_session *session, tw_pull *pull);

// Pushes `rows` rows: `elements` values of type `dtype`, rows x cols. Equal keys are combined: sums and
// gradients are added, of assigns the last wins. Returns when the push is on its way, and the
// arrays are the caller's again. `*ticket` is for tw_push_wait; with null, tw_flush, tw_tick,
// tw_barrier and tw_finish say that the push was refused.
tw_status tw_push_rows(tw_session *session,
                       tw_table table,
                       const uint64_t *keys,
                       size_t rows,
                       const void *values,
                       size_t elements,
                       int32_t dtype,
                       int32_t op,
                       tw_ticket *ticket);

// tw_push_rows with a weight, or an encoding of the values. `options` may be null.
tw_status tw_push_rows_with(tw_session *session,
                            tw_table table,
                            const uint64_t *keys,
                            size_t rows,
                            const void *values,
                            size_t elements,
                            int32_t dtype,
                            int32_t op,
                            const tw_push_options *options,
                            tw_ticket *ticket);

// Pushes elements `first ..` of a TW_RANGE table: `elements` values of type `dtype`. As tw_push_rows.
tw_status tw_push_range(tw_session *session,
                        tw_table table,
                        uint64_t first,
                        const void *values,
                        size_t elements,
                        int32_t dtype,
                        int32_t op,
                        tw_ticket *ticket);

// tw_push_range with a weight, or an encoding of the values. `options` may be null.
tw_status tw_push_range_with(tw_session *session,
                             tw_table table,
                             uint64_t first,
                             const void *values,
                             size_t elements,
                             int32_t dtype,
                             int32_t op,
                             const tw_push_options *options,
                             tw_ticket *ticket);

// Sets the numbers of a table's rule: `optimizer`, `hyper` and, of TW_ADAMW, `weight_decay` of `options`; its
// other fields are not read, but for `size`. The rule stays the same one. The change stands between the
// pushes of this session. On a table at the clock it takes effect with the tick that ends the iteration, on
// every server. `ticket` is as of tw_push_rows.
tw_status tw_table_set_optimizer(tw_session *session,
                                 tw_table table,
                                 const tw_table_options *options,
                                 tw_ticket *ticket);

// Whether a push is applied: `*applied` becomes 1 or 0. When it is, or was refused, `*ticket` becomes zero.
// A ticket of zero is applied.
tw_status tw_push_test(tw_session *session,
                       tw_ticket *ticket,
                       int32_t *applied);

// Waits until a push is applied: pulls that start afterwards see it (of tables at the clock, after the
// tick). 0 s: the session's timeout. `*ticket` becomes zero, but after TW_ERR_DEADLINE. A ticket of zero
// is applied.
tw_status tw_push_wait(tw_session *session,
                       tw_ticket *ticket,
                       double timeout_s);

// Forgets a ticket; the push goes on. `*ticket` becomes zero.
tw_status tw_push_forget(tw_session *session, tw_ticket *ticket);

// Gives a push a callback, which runs once with its result. It runs inside a later call of this session that waits for
// pushes, flushes, ticks, adds to a buffer, gives another callback, or is tw_push_test or tw_progress, on the thread of
// that call, or on the progress thread; at the latest when the session is closed. A call that waits for this push
// returns after it. A callback cannot call a session: such a call is TW_ERR_THREAD. It runs while the session is locked:
// take no lock in it that a thread holds when it calls the session, and wait for no such thread. A refusal that it
// receives is not returned by tw_flush or tw_tick again. The ticket stays the caller's; zero is applied.
tw_status tw_push_on_applied(tw_session *session,
                             tw_ticket ticket,
                             tw_applied_fn callback,
                             void *user);

// Sets each element of `target` to the value of `expression`, such as "p0 * x + y": x, y and z are the
// elements of the inputs at the same place, p0 to p15 the parameters, index the element's index. The
// call is ordered like a push and applied exactly once; `ticket` is as of tw_push_rows. `options` may
// be null: all of the target, with the target as x. A wrong expression is TW_ERR_ARGUMENT; the text
// names the byte. Each 256 KiB of elements, or 2,048 rows, change completely or not at all.
tw_status tw_update(tw_session *session,
                    tw_table target,
                    const char *expression,
                    const tw_function_options *options,
                    tw_ticket *ticket);

// Computes `expression` for each element of `target` and combines the values by `reduction`, a
// tw_reduction. `*value` receives the result as a double, `*integer` the exact one of integer tables
// and of TW_REDUCE_AND; one of them may be null. `*found` becomes 1, or 0 if a minimum or maximum has
// no element; without it, with null, that is TW_ERR_ARGUMENT. Floats are summed in double with
// compensation; the bits are the same on any number of servers. Options and errors are those of
// tw_update.
tw_status tw_reduce(tw_session *session,
                    tw_table target,
                    const char *expression,
                    int32_t reduction,
                    const tw_function_options *options,
                    double *value,
                    int64_t *integer,
                    int32_t *found);

// Runs the update function that the servers' program registered under `name`, with `bytes` bytes of
// `arguments`. Order, ticket and options are those of tw_update. The ticket fails with TW_ERR_REJECTED
// when the servers have no such function, or it refuses.
tw_status tw_call_update(tw_session *session,
                         tw_table target,
                         const char *name,
                         const void *arguments,
                         size_t bytes,
                         const tw_function_options *options,
                         tw_ticket *ticket);

// Makes a function of a WebAssembly module of `bytes` bytes on all servers, for all sessions of this job. It has
// `name` until the job ends; tw_call_update and tw_call_reduce run it. All workers may load the same module.
// TW_ERR_ARGUMENT for a name or a module over the limits, TW_ERR_REFUSED where the servers load no functions
// (--load-functions), the module is not valid, or the name is taken. Returns when every server has it.
tw_status tw_load_function(tw_session *session,
                           const char *name,
                           const void *module,
                           size_t bytes);

// Runs the reducing function that the servers' program registered under `name`, and keeps the results
// of all pieces in `*results` until tw_results_take. `*pieces` and `*bytes` receive their number and
// total length. Arguments and options are those of tw_call_update.
tw_status tw_call_reduce(tw_session *session,
                         tw_table target,
                         const char *name,
                         const void *arguments,
                         size_t argument_bytes,
                         const tw_function_options *options,
                         tw_results *results,
                         size_t *pieces,
                         size_t *bytes);

// Copies the results of tw_call_reduce, one after the other in the order of their elements, to `out`,
// and their lengths to `lengths`; `*results` becomes zero. There is room for `bytes` bytes and `pieces`
// lengths. After TW_ERR_ARGUMENT the results are still kept.
tw_status tw_results_take(tw_session *session,
                          tw_results *results,
                          void *out,
                          size_t bytes,
                          size_t *lengths,
                          size_t pieces);

// Frees the results of tw_call_reduce without a copy; `*results` becomes zero.
tw_status tw_results_forget(tw_session *session, tw_results *results);

// Makes a buffer for updates of a table's rows, TW_SPARSE or TW_ROWS. `options` may be null.
tw_status tw_buffer_create(tw_session *session,
                           tw_table table,
                           const tw_buffer_options *options,
                           tw_buffer *buffer);

// Adds updates of `rows` rows to a buffer: `elements` values of type `dtype`, rows x cols. Values of one key add
// up. Pushes the buffer when it is full; the refusal of an earlier push is then TW_ERR_REJECTED, and the updates
// are in the buffer.
tw_status tw_buffer_add(tw_session *session,
                        tw_buffer buffer,
                        const uint64_t *keys,
                        size_t rows,
                        const void *values,
                        size_t elements,
                        int32_t dtype);

// Pushes the rows of a buffer that reach its threshold; with `all` not 0, all rows. `*ticket` is of all pushes since
// the last flush, as of tw_push_rows. After a failure the rows that were not passed on are still in the buffer: a
// repeated flush pushes each row once.
tw_status tw_buffer_flush(tw_session *session,
                          tw_buffer buffer,
                          int32_t all,
                          tw_ticket *ticket);

// Distinct rows in a buffer, and bytes of their keys and values. Both places may be null.
tw_status tw_buffer_describe(tw_session *session, tw_buffer buffer, size_t *rows, size_t *bytes);

// Drops the rows of a buffer on purpose.
tw_status tw_buffer_clear(tw_session *session, tw_buffer buffer);

// Frees a buffer; `*buffer` becomes zero. TW_ERR_ARGUMENT while it has rows: flush or clear it first. Zero is
// allowed.
tw_status tw_buffer_free(tw_session *session,
                         tw_buffer *buffer);

// Deletes the rows of `rows` keys of a TW_SPARSE table; keys without a row are left out. The deletion stands
// between the pushes of this session and is carried out once. On a table at the clock it takes effect with the
// tick that ends the iteration: pushes of that tick before it, in the order of rank, thread and call, are
// dropped. Of a deleted key a pull returns initial values, or makes a new row. `ticket` is as of tw_push_rows.
tw_status tw_keys_delete(tw_session *session,
                         tw_table table,
                         const uint64_t *keys,
                         size_t rows,
                         tw_ticket *ticket);

// Whether each of `rows` keys of a TW_SPARSE table has a row: `stored[i]` becomes 1 or 0. Creates nothing. Sees
// what this session has pushed and deleted before. A push that waits for its tick stores its keys.
tw_status tw_keys_exist(tw_session *session,
                        tw_table table,
                        const uint64_t *keys,
                        size_t rows,
                        uint8_t *stored);

// Number of stored keys of a TW_SPARSE table, over all servers.
tw_status tw_keys_count(tw_session *session, tw_table table, uint64_t *count);

// Lists stored keys of a TW_SPARSE table from `cursor` on, in no order, and moves the cursor: up to `room` keys
// into `keys`, and their rows into `values` unless it is null; `elements` of type `dtype` have room there, room x
// cols. `*count` becomes their number: below `room` at the end, and 0 after it. Begin with a cursor of zeros.
// A key that is stored all the while is listed once. One that is created or deleted meanwhile may be listed or
// not; one that is deleted and created again may be listed twice. Each row is complete, of one version.
tw_status tw_keys_scan(tw_session *session,
                       tw_table table,
                       tw_scan_cursor *cursor,
                       uint64_t *keys,
                       size_t room,
                       void *values,
                       size_t elements,
                       int32_t dtype,
                       size_t *count);

// Writes the rate of an iteration, from 0, to `*rate`: the same bits on every host.
tw_status tw_schedule_rate(const tw_schedule *schedule, uint64_t iteration, double *rate);

// Sets the learning rate that a schedule has in `iteration`, as tw_table_set_optimizer does: before the pushes of
// the iteration, on one worker. After tw_load count the iterations of the whole training.
tw_status tw_table_schedule(tw_session *session,
                            tw_table table,
                            const tw_schedule *schedule,
                            uint64_t iteration,
                            tw_ticket *ticket);

// Creates a vector of `elements` zeroes, TW_F32 or TW_F64: a TW_RANGE table with one column, without optimizer,
// that may hold NaN and infinity. Or opens the equal one of that name. tw_push_range with TW_ASSIGN sets elements;
// tw_flush, then tw_pull_range reads them; tw_table_release frees them.
tw_status tw_vector_create(tw_session *session,
                           const char *name,
                           uint64_t elements,
                           int32_t dtype,
                           tw_table *vector);

// Sets all elements of a vector to a number. Like all operations on vectors it is ordered like a push and waits for
// nothing: a refusal is a failure of the next tw_flush.
tw_status tw_vector_fill(tw_session *session,
                         tw_table vector,
                         double value);

// Sets the elements of a vector to those of another one.
tw_status tw_vector_copy(tw_session *session, tw_table vector, tw_table from);

// Multiplies a vector by a number.
tw_status tw_vector_scale(tw_session *session, tw_table vector, double factor);

// Adds a multiple of `x` to a vector: vector += factor x.
tw_status tw_vector_axpy(tw_session *session, tw_table vector, double factor, tw_table x);

// Writes the inner product of two vectors to `*value`. Products are rounded in the element type, so that in float those
// above 3.4e38 are infinite and those below 1e-45 are 0. They are summed in double with compensation: the same bits
// on any number of servers.
tw_status tw_vector_dot(tw_session *session,
                        tw_table x,
                        tw_table y,
                        double *value);

// Writes a norm of a vector, a tw_norm, to `*value`. NaN if an element is. TW_NORM_2 squares in the element type: in
// float it is infinite for an element above 1.8e19, and elements below 1e-23 do not count.
tw_status tw_vector_norm(tw_session *session,
                         tw_table vector,
                         int32_t norm,
                         double *value);

// Ends an iteration in a clock domain (0, unless tables say otherwise). Under TW_BSP and TW_SSP it waits
// for slower workers first, and until each of this session's pushes is acknowledged. TW_ERR_REJECTED says
// that a push was refused for which no tw_push_wait has said so: the clock has not moved, and the push can be
// repaired. After that and after TW_ERR_DEADLINE it can be repeated.
tw_status tw_tick(tw_session *session,
                  uint32_t domain);

// Iterations that this worker has ended, and those that all have, as every server reports, in domain 0.
// Either place may be null.
tw_status tw_clock(tw_session *session,
                   uint64_t *mine,
                   uint64_t *everybodys);

// Sets the synchronisation (tw_sync) of a clock domain for this session, in place of the session's own, with
// `staleness` for TW_SSP: one table is trained under TW_BSP and another one, in another domain, under TW_ASP. Let
// all workers set the same before their first tick of the domain. TW_ERR_ARGUMENT for a domain above 63.
tw_status tw_domain_sync(tw_session *session,
                         uint32_t domain,
                         int32_t sync,
                         uint32_t staleness);

// Waits like tw_flush, then until all workers have come to the barrier of that name; in a job of open size its
// members at this clock. 0 s: the session's timeout.
tw_status tw_barrier(tw_session *session,
                     const char *name,
                     double timeout_s);

// Waits until a version of `table` that is newer than `version` is complete at all servers. `*newest`, which
// may be null, becomes the newest that is: a pull that follows reads it or a later one. The version of a table
// counts the ticks that all workers have completed in its clock domain. For sessions that only read, too; it
// does not poll. 0 s: the session's timeout. TW_ERR_DEADLINE names the table, the version and the ranks that
// have not ticked.
tw_status tw_wait_newer(tw_session *session,
                        tw_table table,
                        uint64_t version,
                        double timeout_s,
                        uint64_t *newest);

// Waits until version `tick` of `table`, or a newer one, is complete at all servers; else like tw_wait_newer.
tw_status tw_wait_until(tw_session *session,
                        tw_table table,
                        uint64_t tick,
                        double timeout_s,
                        uint64_t *newest);

// Waits until everything that this session pushed is applied. TW_ERR_REJECTED if a push was refused for
// which no tw_push_wait has said so: the earliest such push, one a call.
tw_status tw_flush(tw_session *session);

// Gives `elements` values of type `dtype` to all workers, and writes those of all to `all`, in rank order.
// `all` has room for `all_elements`: workers x elements. All workers call it, with equally many elements,
// up to 1 MiB each. In a job of open size they are its members at the call (tw_collective_ranks), and `all` may
// have more room. With too little, TW_ERR_ARGUMENT names their number; repeated with the same values and more
// room, the call writes what was exchanged, and the others do not call again. No clock moves. TW_ERR_ARGUMENT,
// with ranks and lengths, at every worker if the calls differ; TW_ERR_LOST, with the ranks, if workers have left.
tw_status tw_all_gather(tw_session *session,
                        const void *values,
                        size_t elements,
                        int32_t dtype,
                        void *all,
                        size_t all_elements);

// Number of workers of the last collective call in `*count`, and the first `room` of their ranks, ascending, in
// `ranks`, which may be null if `room` is 0. In a job of open size they change from call to call.
tw_status tw_collective_ranks(tw_session *session,
                              uint64_t *ranks,
                              size_t room,
                              size_t *count);

// Replaces `elements` values of type `dtype` by their reduction over all workers (tw_reduction), in rank
// order: the same bits at every worker. Otherwise like tw_all_gather. On failure `values` hold anything.
tw_status tw_all_reduce(tw_session *session,
                        void *values,
                        size_t elements,
                        int32_t dtype,
                        int32_t reduce);

// Replaces `elements` values of type `dtype` by those of worker `root`. Otherwise like tw_all_gather. On
// failure `values` hold anything.
tw_status tw_broadcast(tw_session *session,
                       uint32_t root,
                       void *values,
                       size_t elements,
                       int32_t dtype);

// From now on, until the session is closed, SIGTERM and SIGUSR1, which batch systems send some time before
// they kill, are noted and do not end the process; a handler that the program has is called too. The
// only call that installs handlers: do not unload the library afterwards. All workers call it, before
// their first step, and wait for each other. `every`: steps (ticks of domain 0) between two looks, the
// same on all workers; 0 is 1.
tw_status tw_walltime_watch(tw_session *session,
                            uint32_t every);

// At the start of each step, on all workers: `*over` becomes 1 if the run ends here, else 0. With TW_BSP and
// TW_SSP it is the same for all workers at the same step, at most three looks after the signal.
// Cost: a pull of two rows at each `every`-th step.
tw_status tw_walltime_over(tw_session *session,
                           int32_t *over);

// After the last step, on all workers, which wait for each other: `*signal` becomes the number of the signal
// for which the run ended, the same for all, also if it came after the last look; 0 if there was none. Then
// save, tw_finish, and exit with 128 + *signal. Signals are still noted.
tw_status tw_walltime_end(tw_session *session,
                          int32_t *signal);

// Begins to create a table; tw_table_create_finish waits for it.
tw_status tw_table_create_start(tw_session *session,
                                const tw_table_options *options,
                                tw_call *call);

// Waits like tw_flush, then arrives at a barrier; tw_barrier_finish waits for the other workers. 0 s: the
// session's timeout.
tw_status tw_barrier_start(tw_session *session,
                           const char *name,
                           double timeout_s,
                           tw_call *call);

// Begins a save; tw_save_finish waits for it. Pulls and pushes may follow at once. Under TW_BSP and TW_SSP
// tw_tick and tw_finish fail until tw_save_finish or tw_call_test has seen the end of the save. `timeout_s` 0:
// half an hour.
tw_status tw_save_start(tw_session *session,
                        const char *directory,
                        double timeout_s,
                        tw_call *call);

// Begins a load; tw_load_finish waits for it. `timeout_s` 0: half an hour.
tw_status tw_load_start(tw_session *session,
                        const char *directory,
                        double timeout_s,
                        tw_call *call);

// Sets `*done` to 1 if the call is done, so that its finish returns at once, else to 0. Waits up to 1 ms.
// After a failure only the finish of the call is possible, which fails too.
tw_status tw_call_test(tw_session *session,
                       tw_call call,
                       int32_t *done);

// Waits for the table of tw_table_create_start. The call is no more, also after a failure.
tw_status tw_table_create_finish(tw_session *session, tw_call call, tw_table *table);

// Waits for the other workers at the barrier of tw_barrier_start. The call is no more, also after a failure.
tw_status tw_barrier_finish(tw_session *session,
                            tw_call call);

// Waits for the save of tw_save_start. `rows` and `bytes`, which may be null, get what was written. The call
// is no more, also after a failure.
tw_status tw_save_finish(tw_session *session,
                         tw_call call,
                         uint64_t *rows,
                         uint64_t *bytes);

// Waits for the load of tw_load_start. `tables`, which may be null, gets their number. The call is no more,
// also after a failure.
tw_status tw_load_finish(tw_session *session,
                         tw_call call,
                         uint64_t *tables);

// Gives a call up; `*call` becomes zero. The call itself goes on, and its result is lost: a table that it
// creates can be opened by its name. After tw_save_start tw_tick and tw_finish fail until the save is over.
tw_status tw_call_drop(tw_session *session,
                       tw_call *call);

// Opens the queue of tasks over the records 0 to `records`, which the program reads itself. Of the workers that open
// it the first one's number counts. All give the same options.
tw_status tw_tasks_open(tw_session *session,
                        const tw_task_options *options,
                        uint64_t records,
                        tw_tasks *tasks);

// Takes the next task: `*given` becomes 1, or 0 after the last one. Waits while other workers have the last tasks,
// which they may not finish. A task that was taken before and is not reported has failed. Until tw_tasks_done servers
// hold what the session pushes; then all of it takes effect, or nothing. Ticks, functions, deletions and collective
// calls fail meanwhile, unless `at_least_once`. Set `task->size` before.
tw_status tw_tasks_next(tw_session *session,
                        tw_tasks tasks,
                        tw_task_info *task,
                        int32_t *given);

// Reports the task as finished, with its number of records. `*counted` becomes 1 if it counts: its pushes are
// applied then. It becomes 0, and they are dropped, if the task was taken back since its time was over, or another
// worker has finished it first. `counted` may be null. After TW_ERR_DEADLINE the report may have arrived: call it
// again. That repeats the report with the first number of records, and has the answer of the first report. Without
// that call tw_tasks_next and tw_tasks_close repeat it. If the second call finds no task, the deadline was met before
// the report: the task has failed then, and tw_tasks_fail, tw_tasks_next or tw_tasks_close reports that.
tw_status tw_tasks_done(tw_session *session,
                        tw_tasks tasks,
                        uint64_t records,
                        int32_t *counted);

// Reports that the task failed by itself, with the reason (its first 4,095 bytes). Its pushes are dropped; it is given again, and left out
// with this reason after too many failures. After an error the session still has the task: call it again, or take the
// next task, or close the queue. A report that has arrived before costs the task no second try.
tw_status tw_tasks_fail(tw_session *session,
                        tw_tasks tasks,
                        const char *reason);

// Ends the use of the queue by this session; a task that is not reported has failed, and a report that got no answer
// is repeated. The queue stays with the job. `*tasks` becomes zero, but after TW_ERR_DEADLINE: the queue is open as
// before then, with its task; call it again.
tw_status tw_tasks_close(tw_session *session,
                         tw_tasks *tasks);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* TIDEWATER_H */
