// Functions at the data from C++: a table is doubled by an expression and summed. Buffers and schedules. Run by
// ci/bindings.sh.
//
//   functions COORDINATOR TOKEN_FILE    of client/tidewater/examples/functions.rs
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <tidewater.hpp>

static void require(bool holds, const char *what)
{
    if (!holds) {
        std::fprintf(stderr, "not so: %s\n", what);
        std::exit(1);
    }
}

template <typename Call> static std::string failure(tw_status status, Call call)
{
    try {
        call();
    } catch (const tw::error &e) {
        require(e.status() == status, e.what());
        return e.what();
    }
    require(false, "the call fails");
    return {};
}

/* Many small updates are one push, and a schedule sets the rate. */
static void merges_and_schedules(const tw::session &session)
{
    auto made = tw::defaults<tw_table_options>();
    made.name = "sparse";
    made.kind = TW_SPARSE;
    made.cols = 1;
    made.optimizer = TW_SGD;
    made.hyper[0] = 1;
    const tw::table<double> table(session, made);
    const std::vector<std::uint64_t> keys{7, 3, 7};
    std::vector<double> ones{1, 1, 1}, pulled(3);
    tw::push_buffer<double> first(table);
    first.add(keys, ones);
    require(first.rows() == 2, "values of one key are added up");
    auto buffer = std::move(first);
    buffer.flush().wait();
    table.pull_rows(keys, pulled);
    require(pulled == std::vector<double>{2, 1, 2} && buffer.rows() == 0, "a flush pushes the sums");
    buffer.add(keys, ones);
    buffer.clear();
    auto options = tw::defaults<tw_buffer_options>();
    options.op = TW_GRADIENT;
    options.threshold = 1.5;
    tw::push_buffer<double> gradients(table, options);
    gradients.add(keys, ones);
    gradients.flush().wait();
    require(gradients.rows() == 1, "a small row stays");
    gradients.flush_all().wait();
    table.pull_rows(keys, pulled);
    require(pulled == std::vector<double>{0, 0, 0}, "gradients are added up");

    auto schedule = tw::defaults<tw_schedule>();
    schedule.kind = TW_SCHEDULE_COSINE;
    schedule.rate = 1;
    schedule.last = 0.01;
    schedule.warm_up = 10;
    schedule.iterations = 110;
    require(tw::rate(schedule, 0) == 0.1 && tw::rate(schedule, 9) == 1 && tw::rate(schedule, 110) == 0.01, "rates");
    schedule.kind = TW_SCHEDULE_INVERSE_SQRT;
    schedule.warm_up = 4;
    table.schedule(schedule, 15).wait();
    table.push_rows(keys, ones, TW_GRADIENT).wait();
    table.pull_rows(keys, pulled);
    require(pulled == std::vector<double>{-1, -0.5, -1}, "the rate is that of the schedule");
    schedule.warm_up = 0;
    const auto text = failure(TW_ERR_ARGUMENT, [&] { (void)tw::rate(schedule, 0); });
    require(text.find("warm_up is 0") != std::string::npos, text.c_str());
}

/* Keys are stored, listed, deleted and counted. */
static void keys_of_a_table(const tw::session &session)
{
    auto options = tw::defaults<tw_table_options>();
    options.name = "keys";
    options.kind = TW_SPARSE;
    options.cols = 1;
    const tw::table<double> table(session, options);
    const std::vector<std::uint64_t> keys{7, 3, 1};
    table.push_rows(keys, std::vector<double>{1, 1, 1}, TW_SUM).wait();
    table.delete_keys(std::vector<std::uint64_t>{3}).wait();
    require(table.exists(keys) == std::vector<bool>{true, false, true}, "a row is deleted");
    require(table.count_keys() == 2, "two rows are left");
    tw_scan_cursor cursor{};
    std::vector<std::uint64_t> listed(5);
    std::vector<double> rows(5);
    require(table.scan_rows(cursor, listed, rows) == 2 && rows[0] == 1 && rows[1] == 1, "rows are listed");
    require(listed[0] + listed[1] == 8 && table.scan_keys(cursor, listed) == 0, "the scan has ended");
}

/* Vectors on the servers have the values of a program's own. */
static void vectors(const tw::session &session)
{
    const tw::vector_space<double> space(session, "vectors", 1000);
    const std::vector<double> ramp = [] {
        std::vector<double> ramp(1000);
        for (std::size_t i = 0; i < ramp.size(); i++)
            ramp[i] = double(i) - 400;
        return ramp;
    }();
    const auto expect = [&](const tw::vector<double> &vector, auto of, const char *what) {
        const auto pulled = vector.pull();
        for (std::size_t i = 0; i < ramp.size(); i++)
            require(pulled[i] == of(ramp[i]), what);
    };
    auto x = space.of(ramp);
    auto y = space.filled(2);
    y.axpy(3, x);
    expect(y, [](double e) { return 2 + 3 * e; }, "axpy");
    expect((x + y) / 2.0 - x * x, [](double e) { return (e + 2 + 3 * e) / 2 - e * e; }, "operators make vectors");
    expect(-(2.0 * x), [](double e) { return -2 * e; }, "factors");
    require(space.in_use() == 2, "temporaries give their tables back");
    auto z = x;
    z += y;
    z -= 1;
    z *= 4;
    z.map("if(x > p0, x, p0)", {}, {0});
    expect(z, [](double e) { return std::max(0.0, 4 * (4 * e + 1)); }, "operations in place");
    expect(x, [](double e) { return e; }, "a copy has elements of its own");
    auto moved = std::move(z);
    z = y;
    z.fill(7);
    expect(moved, [](double e) { return std::max(0.0, 4 * (4 * e + 1)); }, "a vector that was moved");
    require(x.sum() == 99500 && x.dot(space.filled(1)) == 99500, "sums");
    require(x.min() == -400 && x.max() == 599 && x.norm_inf() == 599, "extremes");
    require(space.filled(2).norm_1() == 2000 && std::abs(space.filled(2).norm() - std::sqrt(4000)) < 1e-12, "norms");
    const tw::vector_space<double> other(session, "others", 1000);
    try {
        x += other.zeros();
        require(false, "a vector of another space is refused");
    } catch (const std::invalid_argument &e) {
        require(std::strstr(e.what(), "\"others\"") != nullptr, e.what());
    }
    failure(TW_ERR_ARGUMENT, [&] { x.map("x +"); });
}

int main(int argc, char **argv)
{
    require(argc == 3, "two arguments");
    auto options = tw::defaults<tw_session_options>();
    options.coordinator = argv[1];
    options.token_file = argv[2];
    options.job_namespace = "functions-cpp";
    options.workers = 1;
    tw::session session(options);
    constexpr std::uint64_t elements = 100000;
    auto made = tw::defaults<tw_table_options>();
    made.kind = TW_RANGE;
    made.rows = elements;
    made.cols = 1;
    made.name = "x";
    const tw::table<double> x(session, made);
    made.name = "y";
    const tw::table<double> y(session, made);
    made.name = "n";
    const tw::table<std::int64_t> n(session, made);

    (void)x.update("index");
    x.update("2 * x").wait();
    require(x.reduce("x") == double(elements * (elements - 1)), "the doubled table is summed");
    const tw::function_args both{{x.handle(), y.handle()}, {3.0}, tw::range{elements - 1, 1}};
    y.update("p0 * x + y", both).wait();
    std::vector<double> pulled(2);
    y.pull_range(elements - 2, pulled);
    require(pulled == std::vector<double>{0, 6.0 * (elements - 1)}, "one element is updated");
    require(y.reduce("x != 0") == 1.0, "elements are counted");
    auto weighted = tw::defaults<tw_push_options>();
    weighted.weight = 2;
    weighted.has_weight = 1;
    weighted.encoding = TW_F16;
    y.push_range(elements - 2, std::vector<double>{1, 0}, TW_SUM, &weighted).wait();
    y.pull_range(elements - 2, pulled);
    require(pulled == std::vector<double>{2, 6.0 * (elements - 1)}, "a weight doubles the sum");
    n.update("9007199254740993").wait();
    require(n.reduce("x", TW_REDUCE_MAX) == std::int64_t(9007199254740993), "integers are exact");
    require(!n.reduce("x", TW_REDUCE_MIN, {{}, {}, tw::range{0, 0}}), "nothing has no minimum");

    const double factor = 0.5;
    std::string arguments(sizeof factor, '\0');
    std::memcpy(arguments.data(), &factor, sizeof factor);
    x.call_update("scale", arguments).wait();
    require(x.reduce("x", TW_REDUCE_MAX) == double(elements - 1), "a function by name halves the table");
    std::uint64_t next = 0;
    for (const std::string &piece : x.call_reduce("scale")) {
        std::uint64_t numbers[2] = {};
        require(piece.size() == sizeof numbers, "a piece has two numbers");
        std::memcpy(numbers, piece.data(), sizeof numbers);
        require(numbers[0] == next, "pieces come in the order of their elements");
        next += numbers[1];
    }
    require(next == elements, "pieces cover the table");

    const auto text = failure(TW_ERR_ARGUMENT, [&] { (void)x.update("x + "); });
    require(text.find("byte 4") != std::string::npos, text.c_str());
    failure(TW_ERR_ARGUMENT, [&] { (void)x.reduce("x + y"); });
    failure(TW_ERR_REJECTED, [&] { x.call_update("missing", "a").wait(); });
    const auto missing = failure(TW_ERR_REJECTED, [&] { (void)x.call_reduce("missing"); });
    require(missing.find("functions") != std::string::npos, missing.c_str());
    const auto load = failure(TW_ERR_REFUSED, [&] { session.load_function("module", "bytes"); });
    require(load.find("--load-functions") != std::string::npos, load.c_str());
    merges_and_schedules(session);
    keys_of_a_table(session);
    vectors(session);
    session.finish();
    std::puts("ok");
}
