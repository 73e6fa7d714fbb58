/* Threads of a worker, each with a session of its own: the same program as
 * client/tidewater/examples/threads.rs, where it is explained, and the same bits. Run by ci/bindings.sh.
 *
 *   cc -std=c11 -o threads threads.c $(pkg-config --cflags --libs tidewater) -lpthread
 *   tidewater run --servers 2 --workers 2 -- ./threads 2
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tidewater.h>

#define ITERATIONS 20
#define ROWS 8
#define THREADS_MAX 8

#define CHECK(what)                                                                              \
    do {                                                                                         \
        if (!(what)) {                                                                           \
            fprintf(stderr, "%s:%d: not so: %s\n  last error: %s\n", __FILE__, __LINE__, #what,  \
                    tw_last_error());                                                            \
            exit(1);                                                                             \
        }                                                                                        \
    } while (0)

static uint32_t threads = 1;

static float gradient(uint32_t number, uint32_t iteration, uint32_t row)
{
    const int32_t value = (int32_t)((number * 7919 + iteration * 104729 + row * 31) % 2003);
    const int32_t size = 1 << (2 * ((number * 5 + iteration * 3 + row) % 5));
    return (float)(value - 1001) * (float)size / 3.0f;
}

static void tables(tw_session *session, tw_table *mean, tw_table *counts)
{
    tw_session_info info = {.size = sizeof info};
    tw_table_options of_mean = {.size = sizeof of_mean}, of_counts = {.size = sizeof of_counts};
    CHECK(tw_session_describe(session, &info) == TW_OK);
    of_mean.name = "mean";
    of_mean.dtype = TW_F32;
    of_mean.kind = TW_ROWS;
    of_mean.rows = ROWS;
    of_mean.cols = 1;
    of_mean.optimizer = TW_SGD;
    of_mean.hyper[0] = 0.5;
    of_mean.effect = TW_CLOCK_MEAN;
    of_counts.name = "counts";
    of_counts.dtype = TW_I64;
    of_counts.kind = TW_ROWS;
    of_counts.rows = info.workers * threads;
    of_counts.cols = 1;
    CHECK(tw_table_create(session, &of_mean, mean) == TW_OK);
    CHECK(tw_table_create(session, &of_counts, counts) == TW_OK);
}

static void *work(void *argument)
{
    tw_session *session = argument;
    tw_session_info info = {.size = sizeof info};
    const int64_t one = 1;
    uint64_t keys[ROWS], own;
    float values[ROWS];
    tw_table mean, counts;
    CHECK(tw_session_describe(session, &info) == TW_OK);
    own = info.rank * threads + info.thread;
    tables(session, &mean, &counts);
    for (uint32_t row = 0; row < ROWS; row++)
        keys[row] = row;
    for (uint32_t iteration = 0; iteration < ITERATIONS; iteration++) {
        CHECK(tw_pull_rows(session, mean, keys, ROWS, values, ROWS, TW_F32, NULL) == TW_OK);
        for (uint32_t row = 0; row < ROWS; row++)
            values[row] = gradient((uint32_t)own, iteration, row);
        CHECK(tw_push_rows(session, mean, keys, ROWS, values, ROWS, TW_F32, TW_GRADIENT, NULL) == TW_OK);
        CHECK(tw_push_rows(session, counts, &own, 1, &one, 1, TW_I64, TW_SUM, NULL) == TW_OK);
        CHECK(tw_tick(session, 0) == TW_OK);
    }
    CHECK(tw_flush(session) == TW_OK);
    if (info.thread > 0) {
        CHECK(tw_barrier(session, "not for a sibling", 1) == TW_ERR_THREAD);
        CHECK(tw_finish(session) == TW_OK);
        CHECK(tw_session_free(&session) == TW_OK);
    }
    return NULL;
}

static void print(tw_session *session, uint32_t workers)
{
    uint64_t keys[64];
    float values[ROWS];
    int64_t pushes[64];
    tw_table mean, counts;
    tables(session, &mean, &counts);
    for (uint32_t n = 0; n < 64; n++)
        keys[n] = n;
    CHECK(tw_pull_rows(session, mean, keys, ROWS, values, ROWS, TW_F32, NULL) == TW_OK);
    for (uint32_t row = 0; row < ROWS; row++) {
        uint32_t bits;
        memcpy(&bits, &values[row], sizeof bits);
        printf("value.%" PRIu32 " %08" PRIx32 "\n", row, bits);
    }
    CHECK(tw_pull_rows(session, counts, keys, workers * threads, pushes, workers * threads, TW_I64, NULL) == TW_OK);
    for (uint32_t n = 0; n < workers * threads; n++)
        printf("count.%" PRIu32 " %" PRId64 "\n", n, pushes[n]);
}

int main(int argc, char **argv)
{
    tw_session *first, *siblings[THREADS_MAX];
    tw_session_options options = {.size = sizeof options};
    tw_session_info info = {.size = sizeof info};
    pthread_t running[THREADS_MAX];
    if (argc > 1)
        threads = (uint32_t)strtoul(argv[1], NULL, 10);
    CHECK(threads >= 1 && threads <= THREADS_MAX);
    options.sync = TW_BSP;
    options.thread_level = TW_THREAD_FUNNELED;
    CHECK(tw_session_open(&options, &first) == TW_OK);
    CHECK(tw_session_describe(first, &info) == TW_OK);
    CHECK(info.thread == 0 && info.workers * threads <= 64);
    for (uint32_t n = 1; n < threads; n++)
        CHECK(tw_session_sibling(first, &siblings[n]) == TW_OK);
    if (threads > 1)
        CHECK(tw_finish(first) == TW_ERR_THREAD);
    for (uint32_t n = 1; n < threads; n++)
        CHECK(pthread_create(&running[n], NULL, work, siblings[n]) == 0);
    work(first);
    for (uint32_t n = 1; n < threads; n++)
        CHECK(pthread_join(running[n], NULL) == 0);
    CHECK(tw_barrier(first, "all have finished", 60) == TW_OK);
    if (info.rank == 0)
        print(first, info.workers);
    CHECK(tw_finish(first) == TW_OK);
    CHECK(tw_session_free(&first) == TW_OK);
    return 0;
}
