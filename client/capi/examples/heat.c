/* A simulation that learns while it runs: the heat equation, and a surrogate of its solver.
 *
 * The same program as client/tidewater/examples/heat.rs, where it is explained, and the same numbers. Every
 * step pulls the surrogate's weights, computes, and pushes gradient, measurements and the strip's
 * edges. With -DHEAT_MPI the edges go by MPI_Sendrecv, as in a program that was there before, and
 * the rank is MPI's; without it they go through a table.
 *
 *   cc -O2 -o heat heat.c $(pkg-config --cflags --libs tidewater) -lm
 *   tidewater run --servers 2 --workers 2 -- ./heat
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tidewater.h>

#ifdef HEAT_MPI
#include <mpi.h>
#endif

enum {
    N = 64, /* cells of an edge of the plate */
    WIDE = N + 2,
    STEPS = 600,
    WEIGHTS = 9,
    BINS = 8,
    ROLLOUT = 20
};
static const double conductivity = 0.2;

/* Rows first to first + rows of the plate, and one above and below. */
struct strip {
    uint64_t rank, workers;
    uint64_t first, rows;
    double *heat, *next;
};

/* What a strip saw in one step. */
struct seen {
    double gradient[WEIGHTS], loss, heat;
};

struct job {
    tw_session *session;
    tw_table model, edges, log, histogram;
};

/* Ends the program when a call failed, and with it the job. */
static void must(const struct job *job, tw_status status)
{
    char why[1024];
    if (status == TW_OK)
        return;
    snprintf(why, sizeof why, "%s", tw_last_error());
    fprintf(stderr, "heat: %s: %s\n", tw_status_name((int32_t)status), why);
    tw_fail(job->session, why); /* so that the others hear of it at once */
#ifdef HEAT_MPI
    MPI_Abort(MPI_COMM_WORLD, 1);
#endif
    exit(1);
}

static void connect_job(struct job *job)
{
    tw_session_options options = {.size = sizeof options};
    options.sync = TW_BSP;
#ifdef HEAT_MPI
    int rank, workers;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &workers);
    options.has_rank = 1;
    options.rank = (uint32_t)rank;
    options.workers = (uint32_t)workers;
    options.thread_level = TW_THREAD_FUNNELED;
#endif
    must(job, tw_session_open(&options, &job->session));
}

static void create_tables(struct job *job, const struct strip *strip)
{
    tw_table_options model = {.size = sizeof model}, edges = {.size = sizeof edges};
    tw_table_options log = {.size = sizeof log}, histogram = {.size = sizeof histogram};

    model.name = "model";
    model.dtype = TW_F64;
    model.kind = TW_RANGE;
    model.rows = 1;
    model.cols = WEIGHTS;
    model.effect = TW_CLOCK_SUM;
    model.optimizer = TW_ADAGRAD;
    model.hyper[0] = 0.05;
    model.hyper[1] = 1e-10;
    must(job, tw_table_create(job->session, &model, &job->model));

    edges.name = "edges"; /* rows 2r and 2r + 1: top and bottom row of worker r */
    edges.dtype = TW_F64;
    edges.kind = TW_ROWS;
    edges.rows = 2 * strip->workers;
    edges.cols = N;
    edges.effect = TW_CLOCK_SUM;
    must(job, tw_table_create(job->session, &edges, &job->edges));

    log.name = "log"; /* row t: loss and heat of step t */
    log.dtype = TW_F64;
    log.kind = TW_ROWS;
    log.rows = STEPS;
    log.cols = 2;
    log.effect = TW_CLOCK_SUM;
    must(job, tw_table_create(job->session, &log, &job->log));

    histogram.name = "histogram"; /* cells by temperature */
    histogram.dtype = TW_I64;
    histogram.kind = TW_SPARSE;
    histogram.cols = 1;
    must(job, tw_table_create(job->session, &histogram, &job->histogram));
}

static double *row_of(const struct strip *strip, uint64_t row)
{
    return strip->heat + row * WIDE + 1;
}

/* Fetches the rows next to the strip. */
static void neighbours(const struct job *job, const struct strip *strip)
{
    double *above = row_of(strip, 0), *below = row_of(strip, strip->rows + 1);
#ifdef HEAT_MPI
    int up = strip->rank > 0 ? (int)strip->rank - 1 : MPI_PROC_NULL;
    int down = strip->rank + 1 < strip->workers ? (int)strip->rank + 1 : MPI_PROC_NULL;
    (void)job;
    MPI_Sendrecv(row_of(strip, 1), N, MPI_DOUBLE, up, 0, below, N, MPI_DOUBLE, down, 0,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Sendrecv(row_of(strip, strip->rows), N, MPI_DOUBLE, down, 1, above, N, MPI_DOUBLE, up, 1,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
#else
    uint64_t theirs;
    if (strip->rank > 0) {
        theirs = 2 * strip->rank - 1;
        must(job, tw_pull_rows(job->session, job->edges, &theirs, 1, above, N, TW_F64, NULL));
    }
    if (strip->rank + 1 < strip->workers) {
        theirs = 2 * strip->rank + 2;
        must(job, tw_pull_rows(job->session, job->edges, &theirs, 1, below, N, TW_F64, NULL));
    }
#endif
}

/* Lights two cells of the plate, the same ones on every worker; the next seed. */
static uint64_t light_cells(struct strip *strip, uint64_t seed)
{
    for (int n = 0; n < 2; n++) {
        uint64_t cell, row;
        seed = (seed * 1103515245u + 12345u) % (UINT64_C(1) << 31);
        cell = seed / 1024 % (N * N);
        row = cell / N;
        if (row + 1 >= strip->first && row <= strip->first + strip->rows)
            row_of(strip, row + 1 - strip->first)[cell % N] += 1.0;
    }
    return seed;
}

/* A cell's surroundings, row by row; the cell is in the middle. */
static void look_around(const double *cell, double x[WEIGHTS])
{
    for (int n = 0; n < WEIGHTS; n++)
        x[n] = cell[(n / 3 - 1) * WIDE + n % 3 - 1];
}

static double conduct(const double x[WEIGHTS])
{
    return x[4] + conductivity * (x[1] + x[3] + x[5] + x[7] - 4.0 * x[4]);
}

static double predict(const double weights[WEIGHTS], const double x[WEIGHTS])
{
    double sum = 0.0;
    for (int n = 0; n < WEIGHTS; n++)
        sum += weights[n] * x[n];
    return sum;
}

/* One step of the equation, and what the surrogate could learn from it. */
static struct seen step(struct strip *strip, const double weights[WEIGHTS])
{
    struct seen seen = {{0}, 0, 0};
    const double cells = N * N;
    double x[WEIGHTS], *heat = strip->heat;
    for (uint64_t row = 1; row <= strip->rows; row++) {
        for (uint64_t column = 1; column <= N; column++) {
            uint64_t at = row * WIDE + column;
            double next, error;
            look_around(heat + at, x);
            next = conduct(x);
            error = predict(weights, x) - next;
            for (int n = 0; n < WEIGHTS; n++)
                seen.gradient[n] += error * x[n] / cells;
            seen.loss += error * error / cells;
            seen.heat += next;
            strip->next[at] = next;
        }
    }
    strip->heat = strip->next;
    strip->next = heat;
    return seen;
}

static void push(const struct job *job, const struct strip *strip, const struct seen *seen,
                 uint64_t t)
{
    tw_ticket gradient, logged, edges;
    double log[2] = {seen->loss, seen->heat}, both[2 * N];
    uint64_t mine[2] = {2 * strip->rank, 2 * strip->rank + 1};
    memcpy(both, row_of(strip, 1), N * sizeof *both);
    memcpy(both + N, row_of(strip, strip->rows), N * sizeof *both);
    must(job, tw_push_range(job->session, job->model, 0, seen->gradient, WEIGHTS, TW_F64,
                            TW_GRADIENT, &gradient));
    must(job, tw_push_rows(job->session, job->log, &t, 1, log, 2, TW_F64, TW_SUM, &logged));
    must(job, tw_push_rows(job->session, job->edges, mine, 2, both, 2 * N, TW_F64, TW_ASSIGN,
                           &edges));
    must(job, tw_push_wait(job->session, &gradient, 0));
    must(job, tw_push_wait(job->session, &logged, 0));
    must(job, tw_push_wait(job->session, &edges, 0));
}

/* Counts the strip's cells by temperature. */
static void count(const struct job *job, const struct strip *strip)
{
    static uint64_t keys[N * N];
    static int64_t ones[N * N];
    size_t n = 0;
    tw_ticket counted;
    for (uint64_t row = 1; row <= strip->rows; row++) {
        for (int column = 0; column < N; column++, n++) {
            uint64_t bin = (uint64_t)(row_of(strip, row)[column] * 16.0);
            keys[n] = bin < BINS ? bin : BINS - 1;
            ones[n] = 1;
        }
    }
    must(job, tw_push_rows(job->session, job->histogram, keys, n, ones, n, TW_I64, TW_SUM,
                           &counted));
    must(job, tw_push_wait(job->session, &counted, 0));
    must(job, tw_barrier(job->session, "counted", 30));
}

/* Solver and surrogate, side by side from a smooth hill on: their largest difference. */
static double rollout(const double weights[WEIGHTS])
{
    static double solved[2][WIDE * WIDE], learnt[2][WIDE * WIDE];
    double worst = 0.0, around[WEIGHTS];
    for (int row = 1; row <= N; row++) {
        for (int column = 1; column <= N; column++) {
            double y = (double)row / (N + 1), x = (double)column / (N + 1);
            solved[0][row * WIDE + column] = 16.0 * x * (1.0 - x) * y * (1.0 - y);
        }
    }
    memcpy(learnt[0], solved[0], sizeof learnt[0]);
    for (int t = 0; t < ROLLOUT; t++) {
        const double *was_solved = solved[t % 2], *was_learnt = learnt[t % 2];
        for (int row = 1; row <= N; row++) {
            for (int column = 1; column <= N; column++) {
                int at = row * WIDE + column;
                look_around(was_solved + at, around);
                solved[(t + 1) % 2][at] = conduct(around);
                look_around(was_learnt + at, around);
                learnt[(t + 1) % 2][at] = predict(weights, around);
            }
        }
    }
    for (int at = 0; at < WIDE * WIDE; at++)
        worst = fmax(worst, fabs(solved[ROLLOUT % 2][at] - learnt[ROLLOUT % 2][at]));
    return worst;
}

/* What the job learnt, in lines of a name and a number. */
static void report(const struct job *job)
{
    double weights[WEIGHTS], log[4];
    uint64_t rows[2] = {0, STEPS - 1}, bins[BINS];
    int64_t counts[BINS];
    for (uint64_t bin = 0; bin < BINS; bin++)
        bins[bin] = bin;
    must(job, tw_pull_range(job->session, job->model, 0, weights, WEIGHTS, TW_F64, NULL));
    must(job, tw_pull_rows(job->session, job->log, rows, 2, log, 4, TW_F64, NULL));
    must(job, tw_pull_rows(job->session, job->histogram, bins, BINS, counts, BINS, TW_I64, NULL));
    printf("loss.first %.12e\nloss.last %.12e\nheat.last %.12e\n", log[0], log[2], log[3]);
    for (int n = 0; n < WEIGHTS; n++)
        printf("weight.%d %.12e\n", n, weights[n]);
    printf("rollout.error %.12e\n", rollout(weights));
    for (int bin = 0; bin < BINS; bin++)
        printf("cells.%d %" PRId64 "\n", bin, counts[bin]);
}

int main(int argc, char **argv)
{
    struct job job = {NULL, 0, 0, 0, 0};
    struct strip strip;
    tw_session_info me = {.size = sizeof me};
    double weights[WEIGHTS];
    uint64_t seed = 1;
    (void)argc;
    (void)argv;
#ifdef HEAT_MPI
    int provided;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
#endif
    connect_job(&job);
    must(&job, tw_session_describe(job.session, &me));
    strip.rank = me.rank;
    strip.workers = me.workers;
    strip.first = strip.rank * N / strip.workers;
    strip.rows = (strip.rank + 1) * N / strip.workers - strip.first;
    strip.heat = calloc((strip.rows + 2) * WIDE, sizeof *strip.heat);
    strip.next = calloc((strip.rows + 2) * WIDE, sizeof *strip.next);
    if (!strip.heat || !strip.next)
        return 1;
    create_tables(&job, &strip);
    for (uint64_t t = 0; t < STEPS; t++) {
        struct seen seen;
        must(&job, tw_pull_range(job.session, job.model, 0, weights, WEIGHTS, TW_F64, NULL));
        neighbours(&job, &strip);
        seed = light_cells(&strip, seed);
        seen = step(&strip, weights);
        push(&job, &strip, &seen, t);
        must(&job, tw_tick(job.session, 0));
    }
    count(&job, &strip);
    if (strip.rank == 0)
        report(&job);
    must(&job, tw_finish(job.session));
    must(&job, tw_session_free(&job.session));
    free(strip.heat);
    free(strip.next);
#ifdef HEAT_MPI
    MPI_Finalize();
#endif
    return 0;
}
