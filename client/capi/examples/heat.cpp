// A simulation that learns while it runs, in C++17: the same program as heat.c, where it is
// explained, and the same numbers, by the wrapper tidewater.hpp. With -DHEAT_MPI the rank is MPI's
// and the edges go by MPI_Sendrecv, as there.
//
//   c++ -std=c++17 -O2 -o heat heat.cpp $(pkg-config --cflags --libs tidewater)
//   tidewater run --servers 2 --workers 2 -- ./heat
#include <algorithm>
#include <array>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <vector>

#include <tidewater.hpp>

#ifdef HEAT_MPI
#define OMPI_SKIP_MPICXX 1 // the bindings that MPI-3 removed
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>
#endif

namespace {

constexpr std::size_t n = 64, wide = n + 2, steps = 600, bins = 8;
constexpr int rollout_steps = 20;
constexpr double conductivity = 0.2;
using patch = std::array<double, 9>;

patch look_around(const double *cell)
{
    patch x{};
    for (int i = 0; i < 9; i++)
        x[i] = cell[(i / 3 - 1) * static_cast<std::ptrdiff_t>(wide) + i % 3 - 1];
    return x;
}

double conduct(const patch &x)
{
    return x[4] + conductivity * (x[1] + x[3] + x[5] + x[7] - 4.0 * x[4]);
}

double predict(const patch &weights, const patch &x)
{
    double sum = 0.0;
    for (int i = 0; i < 9; i++)
        sum += weights[i] * x[i];
    return sum;
}

struct tables {
    tw::table<double> model, edges, log;
    tw::table<std::int64_t> histogram;

    tables(const tw::session &session, std::uint64_t workers)
        : model(session, model_options()), edges(session, rows("edges", 2 * workers, n)),
          log(session, rows("log", steps, 2)), histogram(session, sparse("histogram"))
    {
    }

private:
    static tw_table_options model_options()
    {
        auto options = rows("model", 1, 9);
        options.kind = TW_RANGE;
        options.optimizer = TW_ADAGRAD;
        options.hyper[0] = 0.05;
        options.hyper[1] = 1e-10;
        return options;
    }
    static tw_table_options rows(const char *name, std::uint64_t rows, std::uint32_t cols)
    {
        auto options = tw::defaults<tw_table_options>();
        options.name = name;
        options.kind = TW_ROWS;
        options.rows = rows;
        options.cols = cols;
        options.effect = TW_CLOCK_SUM;
        return options;
    }
    static tw_table_options sparse(const char *name)
    {
        auto options = tw::defaults<tw_table_options>();
        options.name = name;
        options.kind = TW_SPARSE;
        options.cols = 1;
        return options;
    }
};

class strip {
public:
    strip(std::uint64_t rank, std::uint64_t workers)
        : rank_(rank), workers_(workers), first_(rank * n / workers),
          rows_((rank + 1) * n / workers - first_), heat_((rows_ + 2) * wide), next_(heat_)
    {
    }

    // One step: pull, compute, push. The next seed of the cells that are lit.
    std::uint64_t run(const tables &tables, std::uint64_t t, std::uint64_t seed)
    {
        patch weights{};
        tables.model.pull_range(0, weights);
        neighbours(tables);
        seed = light_cells(seed);
        patch gradient{};
        std::array<double, 2> seen{}; // loss and heat
        step(weights, gradient, seen);
        push(tables, t, gradient, seen);
        return seed;
    }

    // Counts the strip's cells by temperature.
    void count(const tables &tables)
    {
        std::vector<std::uint64_t> keys;
        for (std::size_t row = 1; row <= rows_; row++)
            for (std::size_t column = 0; column < n; column++)
                keys.push_back(std::min<std::uint64_t>(
                    static_cast<std::uint64_t>(row_of(row)[column] * 16.0), bins - 1));
        std::vector<std::int64_t> ones(keys.size(), 1);
        tables.histogram.push_rows(keys, ones, TW_SUM).wait();
    }

private:
    double *row_of(std::size_t row) { return heat_.data() + row * wide + 1; }

    // Fetches the rows next to the strip.
#ifdef HEAT_MPI
    void neighbours(const tables &)
    {
        constexpr int cells = static_cast<int>(n);
        int up = rank_ > 0 ? static_cast<int>(rank_) - 1 : MPI_PROC_NULL;
        int down = rank_ + 1 < workers_ ? static_cast<int>(rank_) + 1 : MPI_PROC_NULL;
        MPI_Sendrecv(row_of(1), cells, MPI_DOUBLE, up, 0, row_of(rows_ + 1), cells, MPI_DOUBLE,
                     down, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Sendrecv(row_of(rows_), cells, MPI_DOUBLE, down, 1, row_of(0), cells, MPI_DOUBLE, up,
                     1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
#else
    void neighbours(const tables &tables)
    {
        if (rank_ > 0) {
            std::uint64_t theirs = 2 * rank_ - 1;
            tables.edges.pull_rows(&theirs, 1, row_of(0), n);
        }
        if (rank_ + 1 < workers_) {
            std::uint64_t theirs = 2 * rank_ + 2;
            tables.edges.pull_rows(&theirs, 1, row_of(rows_ + 1), n);
        }
    }
#endif

    std::uint64_t light_cells(std::uint64_t seed)
    {
        for (int i = 0; i < 2; i++) {
            seed = (seed * 1103515245u + 12345u) % (std::uint64_t{1} << 31);
            std::uint64_t cell = seed / 1024 % (n * n), row = cell / n;
            if (row + 1 >= first_ && row <= first_ + rows_)
                row_of(row + 1 - first_)[cell % n] += 1.0;
        }
        return seed;
    }

    void step(const patch &weights, patch &gradient, std::array<double, 2> &seen)
    {
        constexpr double cells = n * n;
        for (std::size_t row = 1; row <= rows_; row++) {
            for (std::size_t column = 1; column <= n; column++) {
                std::size_t at = row * wide + column;
                patch x = look_around(heat_.data() + at);
                double next = conduct(x), error = predict(weights, x) - next;
                for (int i = 0; i < 9; i++)
                    gradient[i] += error * x[i] / cells;
                seen[0] += error * error / cells;
                seen[1] += next;
                next_[at] = next;
            }
        }
        heat_.swap(next_);
    }

    void push(const tables &tables, std::uint64_t t, const patch &gradient,
              const std::array<double, 2> &seen)
    {
        std::array<std::uint64_t, 1> row{t};
        std::array<std::uint64_t, 2> mine{2 * rank_, 2 * rank_ + 1};
        std::vector<double> both(row_of(1), row_of(1) + n);
        both.insert(both.end(), row_of(rows_), row_of(rows_) + n);
        auto learnt = tables.model.push_range(0, gradient, TW_GRADIENT);
        auto logged = tables.log.push_rows(row, seen, TW_SUM);
        auto edges = tables.edges.push_rows(mine, both, TW_ASSIGN);
        learnt.wait();
        logged.wait();
        edges.wait();
    }

    std::uint64_t rank_, workers_, first_, rows_;
    std::vector<double> heat_, next_;
};

// Solver and surrogate, side by side from a smooth hill on: their largest difference.
double rollout(const patch &weights)
{
    std::vector<double> solved(wide * wide);
    for (std::size_t row = 1; row <= n; row++) {
        for (std::size_t column = 1; column <= n; column++) {
            double y = static_cast<double>(row) / (n + 1), x = static_cast<double>(column) / (n + 1);
            solved[row * wide + column] = 16.0 * x * (1.0 - x) * y * (1.0 - y);
        }
    }
    auto learnt = solved;
    for (int t = 0; t < rollout_steps; t++) {
        auto was_solved = solved, was_learnt = learnt;
        for (std::size_t row = 1; row <= n; row++) {
            for (std::size_t column = 1; column <= n; column++) {
                std::size_t at = row * wide + column;
                solved[at] = conduct(look_around(was_solved.data() + at));
                learnt[at] = predict(weights, look_around(was_learnt.data() + at));
            }
        }
    }
    double worst = 0.0;
    for (std::size_t at = 0; at < solved.size(); at++)
        worst = std::max(worst, std::abs(solved[at] - learnt[at]));
    return worst;
}

// What the job learnt, in lines of a name and a number.
void report(const tables &tables)
{
    patch weights{};
    tables.model.pull_range(0, weights);
    std::array<double, 4> log{};
    tables.log.pull_rows(std::array<std::uint64_t, 2>{0, steps - 1}, log);
    std::array<std::uint64_t, bins> keys{};
    for (std::size_t bin = 0; bin < bins; bin++)
        keys[bin] = bin;
    std::array<std::int64_t, bins> counts{};
    tables.histogram.pull_rows(keys, counts);
    std::printf("loss.first %.12e\nloss.last %.12e\nheat.last %.12e\n", log[0], log[2], log[3]);
    for (int i = 0; i < 9; i++)
        std::printf("weight.%d %.12e\n", i, weights[i]);
    std::printf("rollout.error %.12e\n", rollout(weights));
    for (std::size_t bin = 0; bin < bins; bin++)
        std::printf("cells.%zu %" PRId64 "\n", bin, counts[bin]);
}

void simulate(tw::session &session)
{
    auto me = session.info();
    tables tables(session, me.workers);
    strip strip(me.rank, me.workers);
    std::uint64_t seed = 1;
    for (std::uint64_t t = 0; t < steps; t++) {
        seed = strip.run(tables, t, seed);
        session.tick();
    }
    strip.count(tables);
    session.barrier("counted", 30);
    if (me.rank == 0)
        report(tables);
    session.finish();
}

// The job of the environment; in an MPI program with MPI's rank and size.
tw_session_options options()
{
    auto options = tw::defaults<tw_session_options>();
    options.sync = TW_BSP;
#ifdef HEAT_MPI
    int rank = 0, workers = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &workers);
    options.has_rank = 1;
    options.rank = static_cast<std::uint32_t>(rank);
    options.workers = static_cast<std::uint32_t>(workers);
    options.thread_level = TW_THREAD_FUNNELED;
#endif
    return options;
}

int run()
{
    try {
        tw::session session(options());
        try {
            simulate(session);
        } catch (const std::exception &e) {
            session.fail(e.what()); // so that the others hear of it at once
            throw;
        }
    } catch (const std::exception &e) {
        std::fprintf(stderr, "heat: %s\n", e.what());
        return 1;
    }
    return 0;
}

} // namespace

#ifdef HEAT_MPI
int main(int argc, char **argv)
{
    int provided;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
    int status = run();
    if (status != 0)
        MPI_Abort(MPI_COMM_WORLD, status);
    MPI_Finalize();
    return status;
}
#else
int main() { return run(); }
#endif
