/* Functions at the data from C: a table is doubled by an expression and summed. Buffers and schedules. Run by
 * ci/bindings.sh.
 *
 *   functions COORDINATOR TOKEN_FILE    of client/tidewater/examples/functions.rs
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tidewater.h>

#define ELEMENTS 100000

#define CHECK(what)                                                                              \
    do {                                                                                         \
        if (!(what)) {                                                                           \
            fprintf(stderr, "%s:%d: not so: %s\n  last error: %s\n", __FILE__, __LINE__, #what,  \
                    tw_last_error());                                                            \
            exit(1);                                                                             \
        }                                                                                        \
    } while (0)

static tw_table_options options_of(const char *name)
{
    tw_table_options options = {.size = sizeof options};
    options.name = name;
    options.dtype = TW_F64;
    options.kind = TW_RANGE;
    options.rows = ELEMENTS;
    options.cols = 1;
    return options;
}

static tw_table table_of(tw_session *session, const char *name)
{
    tw_table table;
    tw_table_options options = options_of(name);
    CHECK(tw_table_create(session, &options, &table) == TW_OK);
    return table;
}

static void doubles_and_sums(tw_session *session, tw_table x, tw_table y)
{
    const tw_table inputs[] = {x, y};
    const double parameters[] = {3};
    tw_function_options both = {.size = sizeof both};
    tw_ticket ticket;
    double sum, pulled[2];
    int32_t found;
    CHECK(tw_update(session, x, "index", NULL, NULL) == TW_OK);
    CHECK(tw_update(session, x, "2 * x", NULL, &ticket) == TW_OK);
    CHECK(tw_push_wait(session, &ticket, 0) == TW_OK);
    CHECK(tw_reduce(session, x, "x", TW_REDUCE_SUM, NULL, &sum, NULL, NULL) == TW_OK);
    CHECK(sum == (double)ELEMENTS * (ELEMENTS - 1));
    both.inputs = inputs;
    both.input_count = 2;
    both.parameters = parameters;
    both.parameter_count = 1;
    both.has_range = 1;
    both.first = ELEMENTS - 1;
    both.count = 1;
    CHECK(tw_update(session, y, "p0 * x + y", &both, &ticket) == TW_OK);
    CHECK(tw_push_wait(session, &ticket, 0) == TW_OK);
    CHECK(tw_pull_range(session, y, ELEMENTS - 2, pulled, 2, TW_F64, NULL) == TW_OK);
    CHECK(pulled[0] == 0 && pulled[1] == 6.0 * (ELEMENTS - 1));
    both.parameter_count = 0;
    CHECK(tw_reduce(session, y, "max(x, y)", TW_REDUCE_MAX, &both, &sum, NULL, &found) == TW_OK);
    CHECK(found == 1 && sum == 6.0 * (ELEMENTS - 1));
}

/* All partitions are on the server of the list; wrong lists are refused. */
static void places_partitions(tw_session *session)
{
    const uint32_t one_server[] = {0, 0, 0}, no_server[] = {0, 0, 7};
    tw_table_options options = options_of("placed");
    tw_table table, again;
    double sum;
    options.partition_servers = no_server;
    options.partition_server_count = 3;
    CHECK(tw_table_create(session, &options, &table) == TW_ERR_ARGUMENT);
    CHECK(strstr(tw_last_error(), "partition 2 to server 7") != NULL);
    options.partition_servers = one_server;
    options.partition_server_count = 5000;
    CHECK(tw_table_create(session, &options, &table) == TW_ERR_ARGUMENT);
    options.partition_server_count = 0;
    CHECK(tw_table_create(session, &options, &table) != TW_OK);
    CHECK(strstr(tw_last_error(), "empty list") != NULL);
    options.partition_server_count = 3;
    CHECK(tw_table_create(session, &options, &table) == TW_OK);
    CHECK(tw_update(session, table, "index", NULL, NULL) == TW_OK);
    CHECK(tw_reduce(session, table, "x", TW_REDUCE_SUM, NULL, &sum, NULL, NULL) == TW_OK);
    CHECK(sum == (double)ELEMENTS * (ELEMENTS - 1) / 2);
    options.partition_server_count = 2;
    CHECK(tw_table_create(session, &options, &again) != TW_OK);
    CHECK(tw_table_release(session, &table) == TW_OK);
}

/* Partitions begin where the list says; wrong lists are refused. */
static void cuts_partitions(tw_session *session)
{
    uint64_t starts[] = {0, 512, 1001};
    tw_table_options options = options_of("cut");
    tw_table_info info = {.size = sizeof info};
    tw_table table;
    double sum;
    options.block_bytes = 4096;
    options.partition_starts = starts;
    options.partition_start_count = 3;
    CHECK(tw_table_create(session, &options, &table) == TW_ERR_ARGUMENT);
    CHECK(strstr(tw_last_error(), "element 1001, inside a block") != NULL);
    starts[2] = 512;
    CHECK(tw_table_create(session, &options, &table) == TW_ERR_ARGUMENT);
    CHECK(strstr(tw_last_error(), "partition 2 at 512") != NULL);
    options.partition_start_count = 2;
    CHECK(tw_table_create(session, &options, &table) == TW_OK);
    CHECK(tw_table_describe(session, table, &info) == TW_OK && info.partitions == 2);
    CHECK(tw_update(session, table, "index", NULL, NULL) == TW_OK);
    CHECK(tw_reduce(session, table, "x", TW_REDUCE_SUM, NULL, &sum, NULL, NULL) == TW_OK);
    CHECK(sum == (double)ELEMENTS * (ELEMENTS - 1) / 2);
    CHECK(tw_table_release(session, &table) == TW_OK);
}

/* The function of client/tidewater/examples/functions.rs. */
static void calls_by_name(tw_session *session, tw_table x)
{
    const double factor = 0.5;
    double before, after;
    tw_ticket ticket;
    tw_results results;
    size_t pieces, bytes, *lengths;
    uint64_t *out, next = 0;
    CHECK(tw_reduce(session, x, "x", TW_REDUCE_MAX, NULL, &before, NULL, NULL) == TW_OK);
    CHECK(tw_call_update(session, x, "scale", &factor, sizeof factor, NULL, &ticket) == TW_OK);
    CHECK(tw_push_wait(session, &ticket, 0) == TW_OK);
    CHECK(tw_reduce(session, x, "x", TW_REDUCE_MAX, NULL, &after, NULL, NULL) == TW_OK);
    CHECK(after == before / 2);
    CHECK(tw_call_reduce(session, x, "scale", NULL, 0, NULL, &results, &pieces, &bytes) == TW_OK);
    CHECK(pieces > 1 && bytes == pieces * 16);
    out = malloc(bytes);
    lengths = malloc(pieces * sizeof *lengths);
    CHECK(out != NULL && lengths != NULL);
    CHECK(tw_results_take(session, &results, out, bytes - 1, lengths, pieces) == TW_ERR_ARGUMENT);
    CHECK(tw_results_take(session, &results, out, bytes, lengths, pieces) == TW_OK && results == 0);
    for (size_t n = 0; n < pieces; n++) {
        CHECK(lengths[n] == 16 && out[2 * n] == next);
        next += out[2 * n + 1];
    }
    CHECK(next == ELEMENTS);
    free(out);
    free(lengths);
}

static void wrong_ones(tw_session *session, tw_table x)
{
    tw_ticket ticket = 0;
    tw_results results = 1;
    size_t pieces, bytes;
    double sum;
    CHECK(tw_update(session, x, "x + ", NULL, &ticket) == TW_ERR_ARGUMENT);
    CHECK(strstr(tw_last_error(), "byte 4") != NULL);
    printf("%s\n", tw_last_error());
    CHECK(tw_reduce(session, x, "frob(x)", TW_REDUCE_SUM, NULL, &sum, NULL, NULL) == TW_ERR_ARGUMENT);
    CHECK(strstr(tw_last_error(), "byte 0") != NULL);
    CHECK(tw_reduce(session, x, "x", TW_REDUCE_SUM, NULL, NULL, NULL, NULL) == TW_ERR_NULL);
    CHECK(tw_call_update(session, x, "missing", "a", 1, NULL, &ticket) == TW_OK);
    CHECK(tw_push_wait(session, &ticket, 0) == TW_ERR_REJECTED);
    CHECK(tw_call_reduce(session, x, "missing", NULL, 0, NULL, &results, &pieces, &bytes) != TW_OK);
    CHECK(results == 0);
    CHECK(tw_load_function(session, "module", "bytes", 5) == TW_ERR_REFUSED);
    CHECK(strstr(tw_last_error(), "--load-functions") != NULL);
}

/* Many small updates are one push, and a schedule sets the rate. */
static void merges_and_schedules(tw_session *session)
{
    const uint64_t keys[] = {7, 3, 7};
    const double ones[] = {1, 1, 1};
    double pulled[2], rate;
    size_t rows, bytes;
    tw_table_options options = {.size = sizeof options};
    tw_schedule schedule = {.size = sizeof schedule};
    tw_table table;
    tw_buffer buffer;
    tw_ticket ticket;
    options.name = "sparse";
    options.dtype = TW_F64;
    options.kind = TW_SPARSE;
    options.cols = 1;
    options.optimizer = TW_SGD;
    options.hyper[0] = 1;
    CHECK(tw_table_create(session, &options, &table) == TW_OK);
    CHECK(tw_buffer_create(session, table, NULL, &buffer) == TW_OK);
    CHECK(tw_buffer_add(session, buffer, keys, 3, ones, 3, TW_F64) == TW_OK);
    CHECK(tw_buffer_describe(session, buffer, &rows, &bytes) == TW_OK && rows == 2 && bytes == 32);
    CHECK(tw_buffer_free(session, &buffer) == TW_ERR_ARGUMENT);
    CHECK(tw_buffer_flush(session, buffer, 0, &ticket) == TW_OK);
    CHECK(tw_push_wait(session, &ticket, 0) == TW_OK);
    CHECK(tw_buffer_free(session, &buffer) == TW_OK && buffer == 0);
    CHECK(tw_pull_rows(session, table, keys, 2, pulled, 2, TW_F64, NULL) == TW_OK);
    CHECK(pulled[0] == 2 && pulled[1] == 1);

    schedule.kind = TW_SCHEDULE_STEP;
    schedule.rate = 1;
    schedule.factor = 0.5;
    schedule.every = 10;
    CHECK(tw_schedule_rate(&schedule, 29, &rate) == TW_OK && rate == 0.25);
    CHECK(tw_table_schedule(session, table, &schedule, 10, &ticket) == TW_OK);
    CHECK(tw_push_wait(session, &ticket, 0) == TW_OK);
    CHECK(tw_push_rows(session, table, keys, 1, ones, 1, TW_F64, TW_GRADIENT, &ticket) == TW_OK);
    CHECK(tw_push_wait(session, &ticket, 0) == TW_OK);
    CHECK(tw_pull_rows(session, table, keys, 1, pulled, 1, TW_F64, NULL) == TW_OK && pulled[0] == 1.5);
}

/* Keys are stored, listed, deleted and counted. */
static void keys_of_a_table(tw_session *session)
{
    const uint64_t keys[] = {7, 3, 1};
    const double ones[] = {1, 1, 1};
    uint64_t listed[2], count;
    double rows[2];
    uint8_t stored[3];
    size_t n, total = 0;
    tw_scan_cursor cursor = {0};
    tw_table table;
    tw_ticket ticket;
    tw_table_options options = {.size = sizeof options};
    options.name = "keys";
    options.dtype = TW_F64;
    options.kind = TW_SPARSE;
    options.cols = 1;
    CHECK(tw_table_create(session, &options, &table) == TW_OK);
    CHECK(tw_push_rows(session, table, keys, 3, ones, 3, TW_F64, TW_SUM, NULL) == TW_OK);
    CHECK(tw_keys_delete(session, table, keys + 1, 1, &ticket) == TW_OK);
    CHECK(tw_push_wait(session, &ticket, 0) == TW_OK);
    CHECK(tw_keys_exist(session, table, keys, 3, stored) == TW_OK);
    CHECK(stored[0] == 1 && stored[1] == 0 && stored[2] == 1);
    CHECK(tw_keys_count(session, table, &count) == TW_OK && count == 2);
    do {
        CHECK(tw_keys_scan(session, table, &cursor, listed, 1, rows, 1, TW_F64, &n) == TW_OK);
        CHECK(n == 0 || ((listed[0] == 7 || listed[0] == 1) && rows[0] == 1));
        total += n;
    } while (n > 0);
    CHECK(total == 2);
    CHECK(tw_keys_scan(session, table, &cursor, listed, 0, NULL, 0, 0, &n) == TW_ERR_ARGUMENT);
    CHECK(tw_table_release(session, &table) == TW_OK);
}

/* Operations on vectors, an inner product and norms. */
static void vectors(tw_session *session)
{
    const double ramp[] = {-1, 2, -3};
    double value, pulled[3];
    tw_table x, y, other;
    CHECK(tw_vector_create(session, "vector-x", 3, TW_F64, &x) == TW_OK);
    CHECK(tw_vector_create(session, "vector-y", 3, TW_F64, &y) == TW_OK);
    CHECK(tw_push_range(session, x, 0, ramp, 3, TW_F64, TW_ASSIGN, NULL) == TW_OK);
    CHECK(tw_vector_fill(session, y, 0.5) == TW_OK);
    CHECK(tw_vector_axpy(session, y, 2, x) == TW_OK);
    CHECK(tw_vector_dot(session, x, y, &value) == TW_OK && value == 27);
    CHECK(tw_vector_scale(session, y, -1) == TW_OK);
    CHECK(tw_flush(session) == TW_OK);
    CHECK(tw_pull_range(session, y, 0, pulled, 3, TW_F64, NULL) == TW_OK);
    CHECK(pulled[0] == 1.5 && pulled[1] == -4.5 && pulled[2] == 5.5);
    CHECK(tw_vector_copy(session, y, x) == TW_OK);
    CHECK(tw_vector_norm(session, y, TW_NORM_1, &value) == TW_OK && value == 6);
    CHECK(tw_vector_norm(session, y, TW_NORM_2, &value) == TW_OK && value * value > 13.99 && value * value < 14.01);
    CHECK(tw_vector_norm(session, y, TW_NORM_MAX, &value) == TW_OK && value == 3);
    CHECK(tw_vector_norm(session, y, 0, &value) == TW_ERR_ARGUMENT);
    CHECK(tw_vector_create(session, "vector-i", 3, TW_I64, &other) == TW_ERR_ARGUMENT && other == 0);
    CHECK(tw_vector_create(session, "vector-z", 4, TW_F64, &other) == TW_OK);
    CHECK(tw_vector_axpy(session, y, 1, other) == TW_ERR_ARGUMENT);
    CHECK(tw_vector_fill(session, 0, 1) == TW_ERR_HANDLE);
    CHECK(tw_table_release(session, &other) == TW_OK);
}

int main(int argc, char **argv)
{
    tw_session *session;
    tw_session_options options = {.size = sizeof options};
    tw_table x, y;
    if (argc < 3)
        return 2;
    options.coordinator = argv[1];
    options.token_file = argv[2];
    options.job_namespace = "functions-c";
    options.workers = 1;
    CHECK(tw_session_open(&options, &session) == TW_OK);
    x = table_of(session, "x");
    y = table_of(session, "y");
    doubles_and_sums(session, x, y);
    calls_by_name(session, x);
    wrong_ones(session, x);
    merges_and_schedules(session);
    keys_of_a_table(session);
    places_partitions(session);
    cuts_partitions(session);
    vectors(session);
    CHECK(tw_finish(session) == TW_OK);
    CHECK(tw_session_free(&session) == TW_OK);
    puts("ok");
    return 0;
}
