/* What a C program may get wrong, and what it must not die of. Run by ci/bindings.sh.
 *
 *   hostile COORDINATOR TOKEN_FILE [PID]    PID: of the service, which is killed at the end
 */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <tidewater.h>

static int checks;

#define CHECK(what)                                                                              \
    do {                                                                                         \
        if (!(what)) {                                                                           \
            fprintf(stderr, "%s:%d: not so: %s\n  last error: %s\n", __FILE__, __LINE__, #what,  \
                    tw_last_error());                                                            \
            exit(1);                                                                             \
        }                                                                                        \
        checks++;                                                                                \
    } while (0)

static tw_session *open_session(const char *const *at, int32_t level, const char *name)
{
    tw_session *session;
    tw_session_options options = {.size = sizeof options};
    options.coordinator = at[0];
    options.token_file = at[1];
    options.job_namespace = name;
    options.thread_level = level;
    options.workers = 1;
    options.timeout_s = 5;
    CHECK(tw_session_open(&options, &session) == TW_OK);
    return session;
}

static tw_table open_table(tw_session *session)
{
    tw_table table;
    tw_table_options options = {.size = sizeof options};
    options.name = "t";
    options.dtype = TW_F64;
    options.kind = TW_SPARSE;
    options.cols = 2;
    CHECK(tw_table_create(session, &options, &table) == TW_OK);
    return table;
}

static tw_status add(tw_session *session, tw_table table)
{
    uint64_t key = 7;
    double ones[2] = {1, 1};
    tw_ticket ticket;
    tw_status status = tw_push_rows(session, table, &key, 1, ones, 2, TW_F64, TW_SUM, &ticket);
    return status == TW_OK ? tw_push_wait(session, &ticket, 0) : status;
}

static double value(tw_session *session, tw_table table)
{
    uint64_t key = 7;
    double row[2] = {-1, -1};
    CHECK(tw_pull_rows(session, table, &key, 1, row, 2, TW_F64, NULL) == TW_OK);
    CHECK(row[0] == row[1]);
    return row[0];
}

static void wrong_handles(tw_session *session, tw_table table)
{
    uint64_t noise[16];
    tw_session *none = NULL;
    memset(noise, 0x5a, sizeof noise);
    CHECK(tw_tick(NULL, 0) == TW_ERR_NULL);
    CHECK(strstr(tw_last_error(), "tw_tick: the session is null"));
    CHECK(tw_tick((tw_session *)noise, 0) == TW_ERR_HANDLE);
    CHECK(add(session, table + 1) == TW_ERR_HANDLE);
    CHECK(tw_session_free(&none) == TW_OK);
    CHECK(strcmp(tw_status_name(TW_ERR_HANDLE), "TW_ERR_HANDLE") == 0);
}

static void closed_sessions(const char *const *at)
{
    tw_session *session = open_session(at, TW_THREAD_SINGLE, "closed");
    tw_table table = open_table(session);
    CHECK(tw_finish(session) == TW_OK);
    CHECK(tw_session_close(session) == TW_OK);
    CHECK(add(session, table) == TW_ERR_CLOSED);
    CHECK(tw_session_close(session) == TW_ERR_CLOSED);
    CHECK(tw_session_free(&session) == TW_OK);
    CHECK(session == NULL && tw_session_close(session) == TW_ERR_NULL);
}

/* Descriptors that what the program executes would inherit. */
static int inherited(void)
{
    int count = 0;
    for (int fd = 0; fd < 1024; fd++) {
        int flags = fcntl(fd, F_GETFD);
        count += flags != -1 && !(flags & FD_CLOEXEC);
    }
    return count;
}

/* The child is refused, whatever it tries, and its parent notices nothing. */
static void forks(tw_session *session, tw_table table)
{
    double before = value(session, table);
    int status = -1;
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        int good = add(session, table) == TW_ERR_FORKED && tw_progress(session) == TW_ERR_FORKED &&
                   tw_session_close(session) == TW_ERR_FORKED &&
                   strstr(tw_last_error(), "forked") != NULL &&
                   tw_session_free(&session) == TW_OK && session == NULL;
        exit(good ? 0 : 1); /* runs what is registered for the exit, as a program's child would */
    }
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(add(session, table) == TW_OK);
    CHECK(value(session, table) == before + 1);
}

struct shared {
    tw_session *session;
    tw_table table;
    tw_status met;
};

static void *adds(void *argument)
{
    struct shared *shared = argument;
    for (int i = 0; i < 100; i++) {
        tw_status status = add(shared->session, shared->table);
        if (status != TW_OK)
            shared->met = status;
    }
    return NULL;
}

/* With MULTIPLE nothing is lost; with FUNNELED the other thread is told. */
static void threads(const char *const *at, int32_t level, tw_status expected)
{
    struct shared shared = {NULL, 0, TW_OK};
    pthread_t other;
    double before;
    shared.session = open_session(at, level, "threads");
    shared.table = open_table(shared.session);
    before = value(shared.session, shared.table);
    CHECK(pthread_create(&other, NULL, adds, &shared) == 0);
    for (int i = 0; i < 100; i++)
        CHECK(add(shared.session, shared.table) == TW_OK);
    pthread_join(other, NULL);
    CHECK(shared.met == expected);
    CHECK(value(shared.session, shared.table) == before + (expected == TW_OK ? 200 : 100));
    CHECK(tw_finish(shared.session) == TW_OK);
    CHECK(tw_session_free(&shared.session) == TW_OK);
}

/* A service that dies is a status within the timeout, and no signal ends this program. */
static void lost(tw_session *session, tw_table table, pid_t service)
{
    tw_status status = TW_OK;
    struct sigaction action;
    CHECK(sigaction(SIGPIPE, NULL, &action) == 0 && action.sa_handler == SIG_DFL);
    CHECK(kill(service, SIGKILL) == 0);
    for (int i = 0; i < 50 && status == TW_OK; i++) {
        struct timespec pause = {0, 100000000};
        status = add(session, table);
        nanosleep(&pause, NULL);
    }
    CHECK(status == TW_ERR_LOST || status == TW_ERR_DEADLINE);
    printf("lost: %s: %s\n", tw_status_name((int32_t)status), tw_last_error());
    CHECK(tw_barrier(session, "nobody", 1) != TW_OK);
}

int main(int argc, char **argv)
{
    const char *const *at = (const char *const *)argv + 1;
    tw_session *session;
    tw_table table;
    int before = inherited();
    if (argc < 3)
        return 2;
    session = open_session(at, TW_THREAD_SINGLE, "hostile");
    table = open_table(session);
    CHECK(add(session, table) == TW_OK);
    wrong_handles(session, table);
    closed_sessions(at);
    CHECK(inherited() == before);
    forks(session, table);
    threads(at, TW_THREAD_MULTIPLE, TW_OK);
    threads(at, TW_THREAD_FUNNELED, TW_ERR_THREAD);
    if (argc > 3)
        lost(session, table, (pid_t)atol(argv[3]));
    else
        CHECK(tw_finish(session) == TW_OK);
    CHECK(tw_session_free(&session) == TW_OK);
    printf("%d checks hold\n", checks);
    return 0;
}
