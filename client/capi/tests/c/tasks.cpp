// Tasks of a queue from C++: an exception fails a task, which is given again, and each record counts once. Run by
// ci/bindings.sh.
//
//   tasks COORDINATOR TOKEN_FILE
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include <tidewater.hpp>

static void require(bool holds, const char *what)
{
    if (!holds) {
        std::fprintf(stderr, "not so: %s\n", what);
        std::exit(1);
    }
}

static void run(const tw_session_options &options)
{
    constexpr std::uint64_t records = 10;
    tw::session session(options);
    auto made = tw::defaults<tw_table_options>();
    made.name = "counts";
    made.kind = TW_ROWS;
    made.rows = records;
    made.cols = 1;
    const tw::table<double> counts(session, made);
    auto queue = tw::defaults<tw_task_options>();
    queue.name = "records";
    queue.task_size = 3;
    int given = 0;
    session.each_task(queue, records, [&](const tw_task_info &task) {
        std::vector<std::uint64_t> keys;
        for (auto key = task.first; key < task.end; ++key)
            keys.push_back(key);
        std::vector<double> ones(keys.size(), 1.0);
        (void)counts.push_rows(keys, ones, TW_SUM); // the report of the task waits for it
        if (given++ == 1)
            throw std::runtime_error("by the test");
        return static_cast<std::uint64_t>(keys.size());
    });
    require(given == 5, "four tasks, one of them twice");
    std::vector<std::uint64_t> keys(records);
    for (std::uint64_t key = 0; key < records; ++key)
        keys[key] = key;
    std::vector<double> pulled(records);
    counts.pull_rows(keys, pulled);
    require(pulled == std::vector<double>(records, 1.0), "each record counts once");

    // What is no std::exception passes through; the queue is closed, and its task given again.
    queue.name = "more records";
    int thrown = 0;
    try {
        session.each_task(queue, records, [](const tw_task_info &) -> std::uint64_t { throw 7; });
    } catch (int what) {
        thrown = what;
    }
    require(thrown == 7, "the exception passes through");
    // A reason of any length and bytes fails its task, and nothing else.
    given = 0;
    session.each_task(queue, records, [&](const tw_task_info &task) {
        if (given++ == 0)
            throw std::runtime_error("\xe9" + std::string(10000, 'x'));
        return task.end - task.first;
    });
    require(given == 5, "four tasks, one of them twice");
    session.finish();
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    auto options = tw::defaults<tw_session_options>();
    options.coordinator = argv[1];
    options.token_file = argv[2];
    options.workers = 1;
    options.job_namespace = "tasks";
    try {
        run(options);
    } catch (const std::exception &failure) {
        std::fprintf(stderr, "%s\n", failure.what());
        return 1;
    }
    return 0;
}
