/* Tidewater's client for C++17: sessions that close themselves, typed tables, exceptions.
 *
 * Only what is written again and again is here; every call of tidewater.h can be made with
 * session.get() and table.handle(). Threads, forks and costs are as there.
 */
#ifndef TIDEWATER_HPP
#define TIDEWATER_HPP

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

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

/* A session; closed by its destructor. It says nothing to the coordinator: finish() does. */
class session {
public:
    /* Joins the job that the environment names, or the one that `options` does. */
    session() : session(defaults<tw_session_options>()) {}
    explicit session(const tw_session_options &options) { check(tw_session_open(&options, &it_)); }
    ~session() { tw_session_free(&it_); }
    session(session &&other) noexcept : it_(std::exchange(other.it_, nullptr)) {}
    session &operator=(session &&other) noexcept
    {
        std::swap(it_, other.it_);
        return *this;
    }
    session(const session &) = delete;
    session &operator=(const session &) = delete;

    tw_session *get() const noexcept { return it_; }

    tw_session_info info() const
    {
        auto info = defaults<tw_session_info>();
        check(tw_session_describe(it_, &info));
        return info;
    }
    tw_counters counters() const
    {
        auto counters = defaults<tw_counters>();
        check(tw_session_counters(it_, &counters));
        return counters;
    }
    void tick(std::uint32_t domain = 0) { check(tw_tick(it_, domain)); }
    void barrier(const char *name, double timeout_s = 0) { check(tw_barrier(it_, name, timeout_s)); }
    void flush() { check(tw_flush(it_)); }
    void progress() { check(tw_progress(it_)); }
    void walltime_watch(std::uint32_t every = 1) { check(tw_walltime_watch(it_, every)); }
    bool walltime_over()
    {
        std::int32_t over = 0;
        check(tw_walltime_over(it_, &over));
        return over != 0;
    }
    int walltime_end()
    {
        std::int32_t signal = 0;
        check(tw_walltime_end(it_, &signal));
        return signal;
    }
    void finish() { check(tw_finish(it_)); }
    void fail(const std::string &reason) { check(tw_fail(it_, reason.c_str())); }

private:
    tw_session *it_ = nullptr;
};

/* A push under way. Dropping it lets the push go on; a refusal is then only counted. */
class ticket {
public:
    ticket(tw_session *session, tw_ticket it) noexcept : session_(session), it_(it) {}
    ~ticket()
    {
        if (it_ != 0)
            tw_push_forget(session_, &it_);
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

    void wait(double timeout_s = 0) { check(tw_push_wait(session_, &it_, timeout_s)); }
    bool test()
    {
        std::int32_t applied = 0;
        check(tw_push_test(session_, &it_, &applied));
        return applied != 0;
    }

private:
    tw_session *session_;
    tw_ticket it_;
};

/* A table of T. Valid as long as its session. */
template <typename T> class table {
public:
    /* Creates it, or opens the equal one of that name; `options.dtype` is set here. */
    table(const session &session, tw_table_options options) : session_(session.get())
    {
        options.dtype = dtype_of<T>::value;
        check(tw_table_create(session_, &options, &it_));
    }
    /* Opens one that exists. */
    table(const session &session, const char *name) : session_(session.get())
    {
        check(tw_table_open(session_, name, dtype_of<T>::value, &it_));
    }

    tw_table handle() const noexcept { return it_; }

    tw_table_info info() const
    {
        auto info = defaults<tw_table_info>();
        check(tw_table_describe(session_, it_, &info));
        return info;
    }
    void pull_rows(const std::uint64_t *keys, std::size_t rows, T *out, std::size_t elements,
                   const tw_pull_options *options = nullptr) const
    {
        check(tw_pull_rows(session_, it_, keys, rows, out, elements, dtype_of<T>::value, options));
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
        check(tw_pull_range(session_, it_, first, to, out.size(), dtype_of<T>::value, options));
    }
    template <typename Keys, typename Values>
    [[nodiscard]] ticket push_rows(const Keys &keys, const Values &values, tw_op op) const
    {
        const T *from = values.data();
        tw_ticket it = 0;
        check(tw_push_rows(session_, it_, keys.data(), keys.size(), from, values.size(),
                           dtype_of<T>::value, op, &it));
        return {session_, it};
    }
    template <typename Values>
    [[nodiscard]] ticket push_range(std::uint64_t first, const Values &values, tw_op op) const
    {
        const T *from = values.data();
        tw_ticket it = 0;
        check(tw_push_range(session_, it_, first, from, values.size(), dtype_of<T>::value, op,
                            &it));
        return {session_, it};
    }

private:
    tw_session *session_;
    tw_table it_ = 0;
};

} // namespace tw

#endif
