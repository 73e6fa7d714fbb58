/* Tidewater's client for C++17: sessions that close themselves, typed tables, exceptions.
 *
 * Only what is written again and again is here; every call of tidewater.h can be made with
 * session.get() and table.handle(). Threads, forks and costs are as there.
 */
#ifndef TIDEWATER_HPP
#define TIDEWATER_HPP

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tidewater.h"

namespace tw {

/* A call that failed: its status, and what tw_last_error() said. */
class error : public std::runtime_error {
public:
    explicit error(tw_status status) : std::runtime_error(tw_last_error()), status_(status) {}
    tw_status status() const noexcept { return status_; }

private:
    tw_status status_;
};

inline void check(tw_status status)
{
    if (status != TW_OK)
        throw error(status);
}

template <typename T> struct dtype_of;
template <> struct dtype_of<float> { static constexpr tw_dtype value = TW_F32; };
template <> struct dtype_of<double> { static constexpr tw_dtype value = TW_F64; };
template <> struct dtype_of<std::int32_t> { static constexpr tw_dtype value = TW_I32; };
template <> struct dtype_of<std::int64_t> { static constexpr tw_dtype value = TW_I64; };

/* Options with their size set and all else default. */
template <typename Options> Options defaults()
{
    Options options{};
    options.size = sizeof options;
    return options;
}

/* A session; closed by its destructor. It says nothing to the coordinator: finish() does. Its handle is freed
 * with the last table and ticket of it: their calls after its end throw error with TW_ERR_CLOSED. */
class session {
public:
    /* Joins the job that the environment names, or the one that `options` does. */
    session() : session(defaults<tw_session_options>()) {}
    explicit session(const tw_session_options &options)
    {
        tw_session *opened = nullptr;
        check(tw_session_open(&options, &opened));
        it_ = {opened, [](tw_session *last) { tw_session_free(&last); }};
    }
    /* A session that only reads: no worker waits for it, and it may come and go at any time. */
    static session observe(const tw_session_options &options)
    {
        tw_session *opened = nullptr;
        check(tw_session_observe(&options, &opened));
        return session(opened);
    }
    static session observe() { return observe(defaults<tw_session_options>()); }
    ~session()
    {
        if (it_)
            tw_session_close(it_.get());
    }
    session(session &&other) noexcept = default;
    session &operator=(session &&other) noexcept
    {
        std::swap(it_, other.it_);
        return *this;
    }
    session(const session &) = delete;
    session &operator=(const session &) = delete;

    /* Begins a job of a program that counts its processes itself, as by MPI; see tw_begin. `broadcast(bytes, length)`
     * copies the bytes of rank 0 to all processes, as MPI_Bcast does. End the session by end(). */
    template <typename Broadcast>
    static session begin(std::uint32_t rank, std::uint32_t size, std::uint32_t servers, Broadcast broadcast,
                         const tw_session_options &options = defaults<tw_session_options>())
    {
        const tw_broadcast_fn call = [](void *bytes, std::size_t length, void *context) -> int {
            try {
                (*static_cast<Broadcast *>(context))(bytes, length);
                return 0;
            } catch (...) {
                return 1;
            }
        };
        tw_session *opened = nullptr;
        check(tw_begin(&options, rank, size, servers, call, &broadcast, &opened));
        return session(opened);
    }

    /* Finishes, and waits for the workers of all processes; the session is closed then. */
    void end() { check(tw_leave(it_.get())); }

    /* A session for a further thread of this worker. Call finish() on it before this one finishes. */
    session sibling()
    {
        tw_session *opened = nullptr;
        check(tw_session_sibling(it_.get(), &opened));
        return session(opened);
    }

    tw_session *get() const noexcept { return it_.get(); }
    /* The handle, which its holders keep alive. */
    const std::shared_ptr<tw_session> &shared() const noexcept { return it_; }

    tw_session_info info() const
    {
        auto info = defaults<tw_session_info>();
        check(tw_session_describe(it_.get(), &info));
        return info;
    }
    tw_counters counters() const
    {
        auto counters = defaults<tw_counters>();
        check(tw_session_counters(it_.get(), &counters));
        return counters;
    }
    void tick(std::uint32_t domain = 0) { check(tw_tick(it_.get(), domain)); }
    void domain_sync(std::uint32_t domain, tw_sync sync, std::uint32_t staleness = 0)
    {
        check(tw_domain_sync(it_.get(), domain, sync, staleness));
    }
    /* Pulls ranges of several tables as of one version; see tw_pull_group. */
    template <typename Ranges>
    void pull_group(const Ranges &ranges, const tw_pull_options *options = nullptr)
    {
        check(tw_pull_group(it_.get(), ranges.data(), ranges.size(), options));
    }
    /* Makes a function of a WebAssembly module on all servers, for call_update and call_reduce; see tw_load_function. */
    void load_function(const std::string &name, const std::string &module)
    {
        check(tw_load_function(it_.get(), name.c_str(), module.data(), module.size()));
    }
    void barrier(const char *name, double timeout_s = 0) { check(tw_barrier(it_.get(), name, timeout_s)); }
    /* Of containers with data() and size(), like std::vector and std::array. `all` has as many elements as
     * `values` have at all workers together. */
    template <typename Values, typename All> void all_gather(const Values &values, All &all)
    {
        using T = std::remove_cv_t<std::remove_pointer_t<decltype(all.data())>>;
        const T *from = values.data();
        check(tw_all_gather(it_.get(), from, values.size(), dtype_of<T>::value, all.data(), all.size()));
    }
    /* Ranks of the workers of the last collective call. */
    std::vector<std::uint64_t> collective_ranks()
    {
        std::size_t count = 0;
        check(tw_collective_ranks(it_.get(), nullptr, 0, &count));
        std::vector<std::uint64_t> ranks(count);
        check(tw_collective_ranks(it_.get(), ranks.data(), count, &count));
        return ranks;
    }
    template <typename Values> void all_reduce(Values &values, tw_reduction reduce)
    {
        using T = std::remove_pointer_t<decltype(values.data())>;
        check(tw_all_reduce(it_.get(), values.data(), values.size(), dtype_of<T>::value, reduce));
    }
    template <typename Values> void broadcast(std::uint32_t root, Values &values)
    {
        using T = std::remove_pointer_t<decltype(values.data())>;
        check(tw_broadcast(it_.get(), root, values.data(), values.size(), dtype_of<T>::value));
    }
    void flush() { check(tw_flush(it_.get())); }
    void progress() { check(tw_progress(it_.get())); }
    /// Lets up to so many frames of pushes leave together.
    void batch_pushes(std::uint32_t frames) { check(tw_batch_pushes(it_.get(), frames)); }
    /* Calls `body(task)` with each task of the queue that this worker gets; it returns the number of records. An
     * exception of it reports the task as failed, which another worker or this one gets again. A report that meets its
     * deadline is repeated, twice at most, before the call throws. See tw_tasks_open. */
    template <typename Body> void each_task(const tw_task_options &options, std::uint64_t records, Body body)
    {
        /* An exception that is no std::exception passes through, as that of a thread that is cancelled: the queue is
         * closed, and its task given again. */
        struct open_queue {
            tw_session *session;
            tw_tasks queue = 0;
            explicit open_queue(tw_session *of) : session(of) {}
            open_queue(const open_queue &) = delete;
            ~open_queue()
            {
                if (queue)
                    tw_tasks_close(session, &queue);
            }
        } open(it_.get());
        tw_tasks &queue = open.queue;
        check(tw_tasks_open(it_.get(), &options, records, &queue));
        tw_task_info task = defaults<tw_task_info>();
        std::int32_t given = 0;
        for (check(tw_tasks_next(it_.get(), queue, &task, &given)); given;
             check(tw_tasks_next(it_.get(), queue, &task, &given))) {
            std::uint64_t read = 0;
            try {
                read = body(task);
            } catch (const std::exception &failure) {
                repeat([&] { return tw_tasks_fail(it_.get(), queue, failure.what()); });
                continue;
            }
            repeat([&] { return tw_tasks_done(it_.get(), queue, read, nullptr); });
        }
        repeat([&] { return tw_tasks_close(it_.get(), &queue); });
    }
    void walltime_watch(std::uint32_t every = 1) { check(tw_walltime_watch(it_.get(), every)); }
    bool walltime_over()
    {
        std::int32_t over = 0;
        check(tw_walltime_over(it_.get(), &over));
        return over != 0;
    }
    int walltime_end()
    {
        std::int32_t signal = 0;
        check(tw_walltime_end(it_.get(), &signal));
        return signal;
    }
    void finish() { check(tw_finish(it_.get())); }
    void fail(const std::string &reason) { check(tw_fail(it_.get(), reason.c_str())); }

private:
    /* Makes a report again that met its deadline, twice at most. Its repetition may find no task: then the deadline was
     * met before the report, the task has failed and is given again. */
    template <typename Call> static void repeat(Call call)
    {
        tw_status status = call();
        if (status != TW_ERR_DEADLINE)
            return check(status);
        for (int again = 0; again < 2 && status == TW_ERR_DEADLINE; ++again)
            status = call();
        if (status != TW_ERR_ARGUMENT)
            check(status);
    }
    /* Takes over an open session. */
    explicit session(tw_session *opened)
        : it_(opened, [](tw_session *last) { tw_session_free(&last); })
    {
    }

    std::shared_ptr<tw_session> it_;
};

/* A push under way. Dropping it lets the push go on; flush, tick, barrier and finish then report a refusal. It
 * may outlive its session. */
class ticket {
public:
    ticket(std::shared_ptr<tw_session> session, tw_ticket it) noexcept
        : session_(std::move(session)), it_(it)
    {
    }
    ~ticket()
    {
        // Of a session that is closed there is nothing left to forget: the status says so.
        if (it_ != 0)
            tw_push_forget(session_.get(), &it_);
    }
    ticket(ticket &&other) noexcept
        : session_(other.session_), it_(std::exchange(other.it_, 0))
    {
    }
    ticket &operator=(ticket &&other) noexcept
    {
        std::swap(session_, other.session_);
        std::swap(it_, other.it_);
        return *this;
    }
    ticket(const ticket &) = delete;
    ticket &operator=(const ticket &) = delete;

    void wait(double timeout_s = 0) { check(tw_push_wait(session_.get(), &it_, timeout_s)); }
    bool test()
    {
        std::int32_t applied = 0;
        check(tw_push_test(session_.get(), &it_, &applied));
        return applied != 0;
    }
    /* Calls f(tw_status, const char *text) once, with the result of the push; see tw_push_on_applied. f is destroyed
     * inside the callback, where no session may be called: it must own no session, table or ticket. An exception of f
     * ends the program. */
    template <typename F> void on_applied(F f)
    {
        auto kept = std::make_unique<F>(std::move(f));
        auto call = [](void *user, tw_status status, const char *text) noexcept {
            const std::unique_ptr<F> own(static_cast<F *>(user));
            (*own)(status, text);
        };
        check(tw_push_on_applied(session_.get(), it_, call, kept.get()));
        static_cast<void>(kept.release());
    }

private:
    std::shared_ptr<tw_session> session_;
    tw_ticket it_;
};

/* Elements of a TW_RANGE table, or rows of a TW_ROWS table. */
struct range {
    std::uint64_t first = 0;
    std::uint64_t count = 0;
};

/* Inputs of a function. The default: all of the target, with the target as x. */
struct function_args {
    /* Handles of the tables of x, y and z: {a.handle(), b.handle()}. */
    std::vector<tw_table> inputs;
    /* Values of p0, p1 and so on. */
    std::vector<double> parameters;
    /* What the call covers; nothing: all. */
    std::optional<tw::range> range;

    /* The same for C; valid while this object is and keeps its vectors. */
    tw_function_options options() const
    {
        auto options = defaults<tw_function_options>();
        options.inputs = inputs.data();
        options.input_count = inputs.size();
        options.parameters = parameters.data();
        options.parameter_count = parameters.size();
        if (range) {
            options.has_range = 1;
            options.first = range->first;
            options.count = range->count;
        }
        return options;
    }
};

/* A table of T. After the end of its session every call throws error with TW_ERR_CLOSED. */
template <typename T> class table {
public:
    /* Creates it, or opens the equal one of that name; `options.dtype` is set here. */
    table(const session &session, tw_table_options options) : table(session.shared(), options) {}
    table(std::shared_ptr<tw_session> session, tw_table_options options) : session_(std::move(session))
    {
        options.dtype = dtype_of<T>::value;
        check(tw_table_create(session_.get(), &options, &it_));
    }
    /* Opens one that exists. */
    table(const session &session, const char *name) : session_(session.shared())
    {
        check(tw_table_open(session_.get(), name, dtype_of<T>::value, &it_));
    }

    tw_table handle() const noexcept { return it_; }
    /* The session's handle, which its holders keep alive. */
    const std::shared_ptr<tw_session> &shared() const noexcept { return session_; }

    tw_table_info info() const
    {
        auto info = defaults<tw_table_info>();
        check(tw_table_describe(session_.get(), it_, &info));
        return info;
    }
    void pull_rows(const std::uint64_t *keys, std::size_t rows, T *out, std::size_t elements,
                   const tw_pull_options *options = nullptr) const
    {
        check(tw_pull_rows(session_.get(), it_, keys, rows, out, elements, dtype_of<T>::value, options));
    }
    /* Of containers with data() and size(), like std::vector and std::array. */
    template <typename Keys, typename Out>
    void pull_rows(const Keys &keys, Out &out, const tw_pull_options *options = nullptr) const
    {
        pull_rows(keys.data(), keys.size(), out.data(), out.size(), options);
    }
    template <typename Out>
    void pull_range(std::uint64_t first, Out &out, const tw_pull_options *options = nullptr) const
    {
        T *to = out.data();
        check(tw_pull_range(session_.get(), it_, first, to, out.size(), dtype_of<T>::value, options));
    }
    /* Waits for a version newer than `version`; the newest that is complete. See tw_wait_newer. */
    std::uint64_t wait_newer(std::uint64_t version, double timeout_s = 0) const
    {
        std::uint64_t newest = 0;
        check(tw_wait_newer(session_.get(), it_, version, timeout_s, &newest));
        return newest;
    }
    /* Pins a version, or the newest; its number. See tw_pin. */
    std::uint64_t pin(std::optional<std::uint64_t> version = std::nullopt) const
    {
        std::uint64_t pinned = 0;
        check(tw_pin(session_.get(), it_, version ? &*version : nullptr, &pinned));
        return pinned;
    }
    void unpin(std::uint64_t version) const { check(tw_unpin(session_.get(), it_, version)); }
    /* Reads a version that this session has pinned. */
    template <typename Out>
    void pull_pinned(std::uint64_t version, std::uint64_t first, Out &out,
                     const tw_pull_options *options = nullptr) const
    {
        T *to = out.data();
        check(tw_pull_pinned(session_.get(), it_, version, first, to, out.size(), dtype_of<T>::value, options));
    }
    /* A range of this table for pull_group. */
    template <typename Out>
    tw_group_range range(std::uint64_t first, Out &out) const
    {
        T *to = out.data();
        return {it_, first, to, out.size(), dtype_of<T>::value, 0};
    }
    /* Waits for version `tick` or a newer one; the newest that is complete. */
    std::uint64_t wait_until(std::uint64_t tick, double timeout_s = 0) const
    {
        std::uint64_t newest = 0;
        check(tw_wait_until(session_.get(), it_, tick, timeout_s, &newest));
        return newest;
    }
    template <typename Keys, typename Values>
    [[nodiscard]] ticket push_rows(const Keys &keys, const Values &values, tw_op op,
                                   const tw_push_options *options = nullptr) const
    {
        const T *from = values.data();
        tw_ticket it = 0;
        check(tw_push_rows_with(session_.get(), it_, keys.data(), keys.size(), from, values.size(),
                                dtype_of<T>::value, op, options, &it));
        return {session_, it};
    }
    template <typename Values>
    [[nodiscard]] ticket push_range(std::uint64_t first, const Values &values, tw_op op,
                                    const tw_push_options *options = nullptr) const
    {
        const T *from = values.data();
        tw_ticket it = 0;
        check(tw_push_range_with(session_.get(), it_, first, from, values.size(),
                                 dtype_of<T>::value, op, options, &it));
        return {session_, it};
    }
    /* Deletes the rows of keys; see tw_keys_delete. */
    template <typename Keys> [[nodiscard]] ticket delete_keys(const Keys &keys) const
    {
        tw_ticket it = 0;
        check(tw_keys_delete(session_.get(), it_, keys.data(), keys.size(), &it));
        return {session_, it};
    }
    /* Whether each key has a row. */
    template <typename Keys> std::vector<bool> exists(const Keys &keys) const
    {
        std::vector<std::uint8_t> stored(keys.size());
        check(tw_keys_exist(session_.get(), it_, keys.data(), keys.size(), stored.data()));
        return {stored.begin(), stored.end()};
    }
    /* Number of stored keys, over all servers. */
    std::uint64_t count_keys() const
    {
        std::uint64_t count = 0;
        check(tw_keys_count(session_.get(), it_, &count));
        return count;
    }
    /* Lists stored keys from `cursor` on, as many as `keys` has elements; returns their number, 0 after the end.
     * Begin with a tw_scan_cursor of zeros; see tw_keys_scan. */
    template <typename Keys> std::size_t scan_keys(tw_scan_cursor &cursor, Keys &keys) const
    {
        std::size_t count = 0;
        check(tw_keys_scan(session_.get(), it_, &cursor, keys.data(), keys.size(), nullptr, 0, 0, &count));
        return count;
    }
    /* The same with the rows of the keys, which `rows` has room for. */
    template <typename Keys, typename Rows>
    std::size_t scan_rows(tw_scan_cursor &cursor, Keys &keys, Rows &rows) const
    {
        T *to = rows.data();
        std::size_t count = 0;
        check(tw_keys_scan(session_.get(), it_, &cursor, keys.data(), keys.size(), to, rows.size(),
                           dtype_of<T>::value, &count));
        return count;
    }
    /* Reads optimizer, hyper and, of TW_ADAMW, weight_decay. */
    [[nodiscard]] ticket set_optimizer(const tw_table_options &options) const
    {
        tw_ticket it = 0;
        check(tw_table_set_optimizer(session_.get(), it_, &options, &it));
        return {session_, it};
    }

    /* Sets the rate that a schedule has in `iteration`; see tw_table_schedule. */
    [[nodiscard]] ticket schedule(const tw_schedule &schedule, std::uint64_t iteration) const
    {
        tw_ticket it = 0;
        check(tw_table_schedule(session_.get(), it_, &schedule, iteration, &it));
        return {session_, it};
    }

    /* Result of a reduction: double of floating point, std::int64_t of integers. */
    using result = std::conditional_t<std::is_floating_point_v<T>, double, std::int64_t>;

    /* Sets each element to the value of an expression, on the servers; see tw_update. */
    [[nodiscard]] ticket update(const std::string &expression, const function_args &args = {}) const
    {
        const auto options = args.options();
        tw_ticket it = 0;
        check(tw_update(session_.get(), it_, expression.c_str(), &options, &it));
        return {session_, it};
    }
    /* Combines the values of an expression, on the servers; nothing for a minimum or maximum of no element. */
    std::optional<result> reduce(const std::string &expression, tw_reduction reduction = TW_REDUCE_SUM,
                                 const function_args &args = {}) const
    {
        const auto options = args.options();
        result value = 0;
        double *real = nullptr;
        std::int64_t *integer = nullptr;
        if constexpr (std::is_floating_point_v<T>)
            real = &value;
        else
            integer = &value;
        std::int32_t found = 0;
        check(tw_reduce(session_.get(), it_, expression.c_str(), reduction, &options, real, integer, &found));
        return found != 0 ? std::optional<result>(value) : std::nullopt;
    }
    /* Runs an update function that the servers' program registered under `name`. */
    [[nodiscard]] ticket call_update(const std::string &name, const std::string &arguments = {},
                                     const function_args &args = {}) const
    {
        const auto options = args.options();
        tw_ticket it = 0;
        check(tw_call_update(session_.get(), it_, name.c_str(), arguments.data(), arguments.size(), &options,
                             &it));
        return {session_, it};
    }
    /* Runs a reducing function registered under `name`: the bytes of all pieces, in the order of their elements. */
    std::vector<std::string> call_reduce(const std::string &name, const std::string &arguments = {},
                                         const function_args &args = {}) const
    {
        const auto options = args.options();
        tw_results results = 0;
        std::size_t pieces = 0, bytes = 0;
        check(tw_call_reduce(session_.get(), it_, name.c_str(), arguments.data(), arguments.size(), &options,
                             &results, &pieces, &bytes));
        std::vector<std::string> out;
        try {
            std::string all(bytes, '\0');
            std::vector<std::size_t> lengths(pieces);
            check(tw_results_take(session_.get(), &results, all.data(), bytes, lengths.data(), pieces));
            out.reserve(pieces);
            std::size_t at = 0;
            for (const std::size_t length : lengths) {
                out.push_back(all.substr(at, length));
                at += length;
            }
        } catch (...) {
            // Without memory for the copy the session must not keep the results.
            if (results != 0)
                tw_results_forget(session_.get(), &results);
            throw;
        }
        return out;
    }

private:
    std::shared_ptr<tw_session> session_;
    tw_table it_ = 0;
};

/* Updates of a table's rows, added up by key and pushed together; see tw_buffer_create. Rows that no flush has pushed
 * are lost with the object. */
template <typename T> class push_buffer {
public:
    explicit push_buffer(const table<T> &table, tw_op op = TW_SUM) : push_buffer(table, options_of(op)) {}
    push_buffer(const table<T> &table, const tw_buffer_options &options) : session_(table.shared())
    {
        check(tw_buffer_create(session_.get(), table.handle(), &options, &it_));
    }
    ~push_buffer()
    {
        // Of a session that is closed there is nothing left to free: the status says so.
        if (it_ != 0 && tw_buffer_clear(session_.get(), it_) == TW_OK)
            tw_buffer_free(session_.get(), &it_);
    }
    push_buffer(push_buffer &&other) noexcept
        : session_(other.session_), it_(std::exchange(other.it_, 0))
    {
    }
    push_buffer &operator=(push_buffer &&other) noexcept
    {
        std::swap(session_, other.session_);
        std::swap(it_, other.it_);
        return *this;
    }
    push_buffer(const push_buffer &) = delete;
    push_buffer &operator=(const push_buffer &) = delete;

    /* Number of distinct rows in the buffer. */
    std::size_t rows() const
    {
        std::size_t rows = 0;
        check(tw_buffer_describe(session_.get(), it_, &rows, nullptr));
        return rows;
    }
    /* Of containers with data() and size(), like std::vector and std::array. */
    template <typename Keys, typename Values> void add(const Keys &keys, const Values &values)
    {
        const T *from = values.data();
        check(tw_buffer_add(session_.get(), it_, keys.data(), keys.size(), from, values.size(),
                            dtype_of<T>::value));
    }
    /* Pushes the rows that reach the threshold. */
    [[nodiscard]] ticket flush() { return flush(0); }
    [[nodiscard]] ticket flush_all() { return flush(1); }
    void clear() { check(tw_buffer_clear(session_.get(), it_)); }

private:
    static tw_buffer_options options_of(tw_op op)
    {
        auto options = defaults<tw_buffer_options>();
        options.op = op;
        return options;
    }
    ticket flush(std::int32_t all)
    {
        tw_ticket it = 0;
        check(tw_buffer_flush(session_.get(), it_, all, &it));
        return {session_, it};
    }

    std::shared_ptr<tw_session> session_;
    tw_buffer it_ = 0;
};

template <typename T> class vector;

/* Vectors of one dimension on the servers. The tables are named NAME/0, NAME/1, ...; one program at a time uses a name.
 * A vector takes one table, which the space uses again when the vector is destroyed. One thread uses a space. */
template <typename T> class vector_space {
    static_assert(std::is_floating_point_v<T>, "vectors hold float or double");

public:
    vector_space(const session &session, std::string name, std::uint64_t dim)
        : it_(std::make_shared<state>(state{session.shared(), std::move(name), dim, {}, {}}))
    {
    }

    std::uint64_t dim() const noexcept { return it_->dim; }
    /* Number of vectors in use. */
    std::size_t in_use() const noexcept { return it_->tables.size() - it_->free.size(); }
    vector<T> filled(double value) const;
    vector<T> zeros() const { return filled(0); }
    /* Of containers with data() and size(), like std::vector and std::array. */
    template <typename Values> vector<T> of(const Values &values) const;

private:
    friend class vector<T>;
    struct state {
        std::shared_ptr<tw_session> session;
        std::string name;
        std::uint64_t dim;
        std::vector<table<T>> tables;
        std::vector<std::size_t> free;
    };
    std::shared_ptr<state> it_;
};

/* A vector on the servers; a copy has elements of its own. Operations with a vector as result wait for nothing; a refusal
 * is an error of the next pull or session::flush. Operands of another space are std::invalid_argument. */
template <typename T> class vector {
public:
    vector(const vector &other) : vector(other.space_) { assign("x", {&other}); }
    vector(vector &&other) noexcept : space_(other.space_), slot_(std::exchange(other.slot_, none)) {}
    vector &operator=(const vector &other)
    {
        if (this != &other) {
            revive();
            assign("x", {&other});
        }
        return *this;
    }
    vector &operator=(vector &&other) noexcept
    {
        std::swap(space_, other.space_);
        std::swap(slot_, other.slot_);
        return *this;
    }
    ~vector()
    {
        // There is room: `take` has reserved it.
        if (slot_ != none)
            space_->free.push_back(slot_);
    }

    const tw::table<T> &table() const { return space_->tables.at(slot_); }
    std::uint64_t size() const noexcept { return space_->dim; }
    /* Copies the elements; waits for earlier operations. */
    std::vector<T> pull() const
    {
        check(tw_flush(space_->session.get()));
        std::vector<T> out(space_->dim);
        table().pull_range(0, out);
        return out;
    }
    template <typename Values> void push(const Values &values)
    {
        if (values.size() != space_->dim)
            throw std::invalid_argument(std::to_string(values.size()) + " elements for a vector of " +
                                        std::to_string(space_->dim));
        (void)table().push_range(0, values, TW_ASSIGN);
    }

    void fill(double value) { assign("p0", {}, {value}); }
    /* this += factor * x */
    void axpy(double factor, const vector &x) { assign("x + p0 * y", {this, &x}, {factor}); }
    /* Sets each element to the value of an expression of `inputs`; without them, x is this vector. */
    void map(const std::string &expression, const std::vector<const vector *> &inputs = {},
             const std::vector<double> &parameters = {})
    {
        assign(expression, inputs, parameters);
    }
    vector &operator+=(const vector &other) { return assign("x + y", {this, &other}); }
    vector &operator-=(const vector &other) { return assign("x - y", {this, &other}); }
    vector &operator+=(double value) { return assign("x + p0", {this}, {value}); }
    vector &operator-=(double value) { return assign("x - p0", {this}, {value}); }
    vector &operator*=(double factor) { return assign("x * p0", {this}, {factor}); }
    vector &operator/=(double divisor) { return assign("x / p0", {this}, {divisor}); }

    friend vector operator+(const vector &a, const vector &b) { return made(a, "x + y", {&a, &b}); }
    friend vector operator-(const vector &a, const vector &b) { return made(a, "x - y", {&a, &b}); }
    /* Element by element; the inner product is dot. */
    friend vector operator*(const vector &a, const vector &b) { return made(a, "x * y", {&a, &b}); }
    friend vector operator/(const vector &a, const vector &b) { return made(a, "x / y", {&a, &b}); }
    friend vector operator*(double factor, const vector &a) { return made(a, "p0 * x", {&a}, {factor}); }
    friend vector operator*(const vector &a, double factor) { return factor * a; }
    friend vector operator/(const vector &a, double divisor) { return made(a, "x / p0", {&a}, {divisor}); }
    friend vector operator-(const vector &a) { return made(a, "-x", {&a}); }

    /* Products are rounded in the element type: in float those above 3.4e38 are infinite, below 1e-45 they are 0.
     * Summed in double with compensation: the same bits on any number of servers. */
    double dot(const vector &other) const { return number("x * y", TW_REDUCE_SUM, {this, &other}); }
    double sum() const { return number("x", TW_REDUCE_SUM, {this}); }
    double min() const { return number("x", TW_REDUCE_MIN, {this}); }
    double max() const { return number("x", TW_REDUCE_MAX, {this}); }
    double norm() const { return std::sqrt(dot(*this)); }
    double norm_1() const { return number("abs(x)", TW_REDUCE_SUM, {this}); }
    double norm_inf() const { return number("abs(x)", TW_REDUCE_MAX, {this}); }

private:
    friend class vector_space<T>;
    using state = typename vector_space<T>::state;
    using operands = std::vector<const vector *>;
    static constexpr std::size_t none = static_cast<std::size_t>(-1);

    explicit vector(std::shared_ptr<state> space) : space_(std::move(space)), slot_(take(*space_)) {}

    static vector made(const vector &like, const char *expression, const operands &inputs,
                       const std::vector<double> &parameters = {})
    {
        vector result(like.space_);
        result.assign(expression, inputs, parameters);
        return result;
    }
    static std::size_t take(state &space)
    {
        if (space.free.empty()) {
            auto options = defaults<tw_table_options>();
            const std::string name = space.name + "/" + std::to_string(space.tables.size());
            options.name = name.c_str();
            options.kind = TW_RANGE;
            options.rows = space.dim;
            options.cols = 1;
            options.optimizer = TW_OPTIMIZER_NONE;
            options.allow_not_finite = 1;
            options.partitions = 64; /* as those of tw_vector_create: sums have equal bits on any servers */
            space.free.reserve(space.tables.size() + 1);
            space.tables.emplace_back(space.session, options);
            return space.tables.size() - 1;
        }
        const std::size_t slot = space.free.back();
        space.free.pop_back();
        return slot;
    }
    /* A vector that was moved from has no table. */
    void revive()
    {
        if (slot_ == none)
            slot_ = take(*space_);
    }
    function_args args(const operands &inputs, const std::vector<double> &parameters) const
    {
        function_args args{{}, parameters, {}};
        for (const vector *input : inputs) {
            if (input->space_ != space_)
                throw std::invalid_argument("a vector of the space \"" + input->space_->name +
                                            "\" does not lie where those of \"" + space_->name + "\" do");
            args.inputs.push_back(input->table().handle());
        }
        return args;
    }
    vector &assign(const std::string &expression, const operands &inputs,
                   const std::vector<double> &parameters = {})
    {
        (void)table().update(expression, args(inputs, parameters));
        return *this;
    }
    double number(const char *expression, tw_reduction reduction, const operands &inputs) const
    {
        return table().reduce(expression, reduction, args(inputs, {})).value_or(0);
    }

    std::shared_ptr<state> space_;
    std::size_t slot_ = none;
};

template <typename T> vector<T> vector_space<T>::filled(double value) const
{
    vector<T> made(it_);
    made.fill(value);
    return made;
}

template <typename T> template <typename Values> vector<T> vector_space<T>::of(const Values &values) const
{
    vector<T> made(it_);
    made.push(values);
    return made;
}

/* Rate of an iteration, from 0. */
inline double rate(const tw_schedule &schedule, std::uint64_t iteration)
{
    double rate = 0;
    check(tw_schedule_rate(&schedule, iteration, &rate));
    return rate;
}

} // namespace tw

#endif
