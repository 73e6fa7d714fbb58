// Threads of a worker, each with a session of its own, in C++17: the same program as threads.c, and the same
// bits. Run by ci/bindings.sh.
#include <array>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <thread>
#include <vector>

#include <tidewater.hpp>

namespace {

constexpr std::uint32_t iterations = 20, rows = 8;
std::uint32_t threads = 1;

struct tables {
    tw::table<float> mean;
    tw::table<std::int64_t> counts;

    explicit tables(const tw::session &session) : mean(session, of_mean()), counts(session, of_counts(session)) {}

    static tw_table_options of_mean()
    {
        auto options = tw::defaults<tw_table_options>();
        options.name = "mean";
        options.kind = TW_ROWS;
        options.rows = rows;
        options.cols = 1;
        options.optimizer = TW_SGD;
        options.hyper[0] = 0.5;
        options.effect = TW_CLOCK_MEAN;
        return options;
    }
    static tw_table_options of_counts(const tw::session &session)
    {
        auto options = tw::defaults<tw_table_options>();
        options.name = "counts";
        options.kind = TW_ROWS;
        options.rows = session.info().workers * threads;
        options.cols = 1;
        return options;
    }
};

float gradient(std::uint32_t number, std::uint32_t iteration, std::uint32_t row)
{
    const auto value = static_cast<std::int32_t>((number * 7919 + iteration * 104729 + row * 31) % 2003);
    const auto size = 1 << (2 * ((number * 5 + iteration * 3 + row) % 5));
    return static_cast<float>(value - 1001) * static_cast<float>(size) / 3.0F;
}

void work(tw::session &session)
{
    const tables at(session);
    const auto info = session.info();
    const std::array<std::uint64_t, 1> own{info.rank * threads + info.thread};
    const std::array<std::int64_t, 1> one{1};
    std::array<std::uint64_t, rows> keys{};
    for (std::uint32_t row = 0; row < rows; row++)
        keys[row] = row;
    std::array<float, rows> values{};
    for (std::uint32_t iteration = 0; iteration < iterations; iteration++) {
        at.mean.pull_rows(keys, values);
        for (std::uint32_t row = 0; row < rows; row++)
            values[row] = gradient(static_cast<std::uint32_t>(own[0]), iteration, row);
        at.mean.push_rows(keys, values, TW_GRADIENT).wait();
        at.counts.push_rows(own, one, TW_SUM).wait();
        session.tick();
    }
    session.flush();
}

void print(tw::session &session)
{
    const tables at(session);
    std::vector<std::uint64_t> keys(session.info().workers * threads);
    for (std::size_t n = 0; n < keys.size(); n++)
        keys[n] = n;
    const std::vector<std::uint64_t> all_rows{0, 1, 2, 3, 4, 5, 6, 7};
    std::vector<float> values(rows);
    at.mean.pull_rows(all_rows, values);
    for (std::size_t row = 0; row < rows; row++) {
        std::uint32_t bits = 0;
        std::memcpy(&bits, &values[row], sizeof bits);
        std::printf("value.%zu %08" PRIx32 "\n", row, bits);
    }
    std::vector<std::int64_t> pushes(keys.size());
    at.counts.pull_rows(keys, pushes);
    for (std::size_t n = 0; n < pushes.size(); n++)
        std::printf("count.%zu %" PRId64 "\n", n, pushes[n]);
}

void run()
{
    auto options = tw::defaults<tw_session_options>();
    options.sync = TW_BSP;
    tw::session first(options);
    std::vector<std::thread> running;
    for (std::uint32_t n = 1; n < threads; n++)
        running.emplace_back([sibling = first.sibling()]() mutable {
            work(sibling);
            sibling.finish();
        });
    work(first);
    for (auto &thread : running)
        thread.join();
    first.barrier("all have finished", 60);
    if (first.info().rank == 0)
        print(first);
    first.finish();
}

} // namespace

int main(int argc, char **argv)
{
    if (argc > 1)
        threads = static_cast<std::uint32_t>(std::strtoul(argv[1], nullptr, 10));
    try {
        run();
    } catch (const std::exception &failure) {
        std::fprintf(stderr, "%s\n", failure.what());
        return 1;
    }
    return 0;
}
