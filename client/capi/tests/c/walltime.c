/* A worker that ends when it is told to. Run by ci/bindings.sh, under `tidewater run`.
 *
 *   walltime DIRECTORY    steps until a signal comes, then saves there and exits with 128 + its number
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <tidewater.h>

#define MUST(call)                                                                               \
    do {                                                                                         \
        if ((call) != TW_OK) {                                                                   \
            fprintf(stderr, "walltime: %s\n", tw_last_error());                                  \
            exit(1);                                                                             \
        }                                                                                        \
    } while (0)

static int is_default(int signal)
{
    struct sigaction action;
    return sigaction(signal, NULL, &action) == 0 && action.sa_handler == SIG_DFL;
}

/* Steps of a table that counts them, each of 10 ms, until the run is over; how many there were. */
static int64_t step_until_over(tw_session *session, tw_table steps, uint32_t rank)
{
    const struct timespec pause = {0, 10000000};
    const int64_t one = 1;
    const uint64_t key = 0;
    int64_t n = 0;
    for (int32_t over = 0;; n++) {
        MUST(tw_walltime_over(session, &over));
        if (over)
            return n;
        if (n == 5 && rank == 0)
            printf("stepping\n"), fflush(stdout);
        MUST(tw_push_rows(session, steps, &key, 1, &one, 1, TW_I64, TW_SUM, NULL));
        nanosleep(&pause, NULL);
        MUST(tw_tick(session, 0));
    }
}

int main(int argc, char **argv)
{
    tw_session *session;
    tw_session_options options = {.size = sizeof options};
    tw_session_info me = {.size = sizeof me};
    tw_table_options counted = {.size = sizeof counted};
    tw_table steps;
    int64_t mine, all = 0;
    int32_t over = 0, signal = -1;
    const uint64_t key = 0;
    if (argc != 2)
        return 2;
    options.sync = TW_BSP;
    MUST(tw_session_open(&options, &session));
    MUST(tw_session_describe(session, &me));
    counted.name = "steps";
    counted.dtype = TW_I64;
    counted.kind = TW_SPARSE;
    counted.cols = 1;
    counted.effect = TW_CLOCK_SUM;
    MUST(tw_table_create(session, &counted, &steps));
    if (tw_walltime_over(session, &over) != TW_ERR_ARGUMENT || !is_default(SIGTERM) || !is_default(SIGUSR1)) {
        fprintf(stderr, "walltime: signals are caught before anybody asked\n");
        return 1;
    }
    MUST(tw_walltime_watch(session, 1));
    if (tw_walltime_watch(session, 1) != TW_ERR_ARGUMENT)
        return 1;
    mine = step_until_over(session, steps, me.rank);
    MUST(tw_walltime_end(session, &signal));
    MUST(tw_pull_rows(session, steps, &key, 1, &all, 1, TW_I64, NULL));
    if (all != mine * me.workers) {
        fprintf(stderr, "walltime: %lld steps here, %lld of %u workers\n", (long long)mine, (long long)all, me.workers);
        return 1;
    }
    MUST(tw_barrier(session, "before", 30));
    if (me.rank == 0)
        MUST(tw_save(session, argv[1], 30, NULL, NULL));
    MUST(tw_barrier(session, "after", 30));
    MUST(tw_finish(session));
    MUST(tw_session_free(&session));
    return 128 + signal;
}
