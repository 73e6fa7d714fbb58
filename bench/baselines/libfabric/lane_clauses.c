// Clauses of the lane contract (transport/lanes/src/fabric.rs) over a libfabric RDM endpoint: a prototype of a
// transport, in two processes of one host.
//
//     lane_clauses [--provider NAME] [--defect CLAUSE]
//
// Prints one line a clause. F01 to F05 are required: exit code 1 if one fails. The lines after them are
// facts about the provider for docs/adr/0077. With --defect the client breaks its half of one clause, and the
// check of that clause must fail.

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

enum {
    MEMORY = 1 << 20,
    RECEIVES = 64,
    ROUNDS = 300,
    PIECES = 16,
    PIECE = 4096,
    // Words of the server's memory, by number.
    FIRST = 0,
    SECOND = 8,
    COUNTER = 16,
    WRITTEN = 24,
    LATE = 32,
    DEADLINE_MS = 10000,
};

static const char *defect = "";

static bool broken(const char *clause)
{
    return strcmp(defect, clause) == 0;
}

static void die(const char *what, int error)
{
    fprintf(stderr, "%s: %s\n", what, fi_strerror(error < 0 ? -error : error));
    exit(2);
}

static void check(const char *what, int error)
{
    if (error != 0)
        die(what, error);
}

static uint64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

struct End {
    struct fi_info *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_cq *cq;
    struct fid_av *av;
    struct fid_ep *ep;
    struct fid_mr *mr;
    uint8_t *memory;
    uint64_t signals;
};

struct Address {
    uint8_t name[64];
    uint64_t name_bytes;
    uint64_t base;
    uint64_t key;
};

static void open_end(struct End *end, const char *provider)
{
    struct fi_info *hints = fi_allocinfo();
    hints->ep_attr->type = FI_EP_RDM;
    hints->caps = FI_MSG | FI_RMA | FI_ATOMIC;
    hints->mode = FI_CONTEXT | FI_RX_CQ_DATA;
    hints->domain_attr->mr_mode =
        FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;
    hints->fabric_attr->prov_name = strdup(provider);
    int got = fi_getinfo(FI_VERSION(1, 11), "127.0.0.1", NULL, FI_SOURCE, hints, &end->info);
    if (got == -FI_ENODATA) {
        printf("nothing: this library has no provider %s with RMA and atomics\n", provider);
        exit(77);
    }
    check("fi_getinfo", got);
    fi_freeinfo(hints);
    check("fi_fabric", fi_fabric(end->info->fabric_attr, &end->fabric, NULL));
    check("fi_domain", fi_domain(end->fabric, end->info, &end->domain, NULL));
    struct fi_cq_attr cq = {.size = 1024, .format = FI_CQ_FORMAT_DATA, .wait_obj = FI_WAIT_NONE};
    check("fi_cq_open", fi_cq_open(end->domain, &cq, &end->cq, NULL));
    struct fi_av_attr av = {.type = FI_AV_TABLE};
    check("fi_av_open", fi_av_open(end->domain, &av, &end->av, NULL));
    check("fi_endpoint", fi_endpoint(end->domain, end->info, &end->ep, NULL));
    check("bind a queue", fi_ep_bind(end->ep, &end->cq->fid, FI_TRANSMIT | FI_RECV));
    check("bind addresses", fi_ep_bind(end->ep, &end->av->fid, 0));
    check("fi_enable", fi_enable(end->ep));
    if (posix_memalign((void **)&end->memory, 4096, MEMORY) != 0)
        die("posix_memalign", ENOMEM);
    memset(end->memory, 0, MEMORY);
    uint64_t access = FI_REMOTE_READ | FI_REMOTE_WRITE | FI_READ | FI_WRITE;
    check("fi_mr_reg", fi_mr_reg(end->domain, end->memory, MEMORY, access, 0, 1, 0, &end->mr, NULL));
}

static struct Address address_of(struct End *end)
{
    struct Address address = {.key = fi_mr_key(end->mr)};
    size_t bytes = sizeof address.name;
    check("fi_getname", fi_getname(&end->ep->fid, address.name, &bytes));
    address.name_bytes = bytes;
    if (end->info->domain_attr->mr_mode & FI_MR_VIRT_ADDR)
        address.base = (uintptr_t)end->memory;
    return address;
}

static uint64_t load(const uint8_t *memory, int at)
{
    return __atomic_load_n((const uint64_t *)(memory + at), __ATOMIC_ACQUIRE);
}

static void store(uint8_t *memory, int at, uint64_t value)
{
    __atomic_store_n((uint64_t *)(memory + at), value, __ATOMIC_RELEASE);
}

// ---- the server

// Polls once; counts signals, which carry their number, and checks that all data posted before one is there.
static void serve_once(struct End *end, uint64_t *torn)
{
    struct fi_cq_data_entry entry;
    ssize_t got = fi_cq_read(end->cq, &entry, 1);
    if (got == -FI_EAVAIL) {
        struct fi_cq_err_entry error = {0};
        fi_cq_readerr(end->cq, &error, 0);
        return;
    }
    if (got != 1)
        return;
    if (!(entry.flags & FI_REMOTE_CQ_DATA))
        return;
    end->signals++;
    for (int piece = 0; piece < PIECES; piece++)
        for (int at = 0; at < PIECE; at += 8)
            if (load(end->memory, PIECE * (1 + piece) + at) != entry.data)
                (*torn)++;
    // Where a signal takes a receive.
    (void)fi_recv(end->ep, NULL, 0, NULL, FI_ADDR_UNSPEC, NULL);
}

// Commands, one byte each: 'b' counts two words up, 'i' does not poll for a second, 'c' closes the region,
// 's' answers signals and torn words, 'd' ends.
static void server(int commands, const char *provider)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    struct End end = {0};
    open_end(&end, provider);
    for (int n = 0; n < RECEIVES; n++)
        check("fi_recv", (int)fi_recv(end.ep, NULL, 0, NULL, FI_ADDR_UNSPEC, NULL));
    struct Address address = address_of(&end);
    if (write(commands, &address, sizeof address) != sizeof address)
        exit(1);
    uint64_t torn = 0, count = 0;
    bool bump = false;
    for (;;) {
        serve_once(&end, &torn);
        if (bump) {
            count++;
            store(end.memory, FIRST, count);
            store(end.memory, SECOND, count);
        }
        char command = 0;
        ssize_t got = recv(commands, &command, 1, MSG_DONTWAIT);
        if (got == 0 || command == 'd')
            exit(0);
        if (got < 0)
            continue;
        if (command == 'b')
            bump = !bump;
        if (command == 'i')
            sleep(1);
        if (command == 'c')
            check("close the region", fi_close(&end.mr->fid));
        uint64_t answer[3] = {end.signals, torn, load(end.memory, LATE)};
        if (write(commands, answer, sizeof answer) != sizeof answer)
            exit(1);
    }
}

// ---- the client

// One endpoint's way to one server: a lane.
struct Client {
    struct End *end;
    struct Address server;
    fi_addr_t peer;
    int commands;
    pid_t process;
};

static struct Client start_server(const char *provider)
{
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0)
        die("socketpair", errno);
    pid_t child = fork();
    if (child == 0) {
        close(ends[0]);
        server(ends[1], provider);
    }
    close(ends[1]);
    struct Client c = {.commands = ends[0], .process = child};
    ssize_t got = recv(c.commands, &c.server, sizeof c.server, MSG_WAITALL);
    if (got == 0) // it has said why
        exit(77);
    if (got != sizeof c.server)
        die("address of a server", errno);
    return c;
}

static struct Client lane(struct End *end, struct Client server)
{
    server.end = end;
    if (fi_av_insert(end->av, server.server.name, 1, &server.peer, 0, NULL) != 1)
        die("fi_av_insert", FI_EINVAL);
    return server;
}

static void command(struct Client *c, char what, uint64_t answer[3])
{
    uint64_t unused[3];
    if (write(c->commands, &what, 1) != 1)
        die("command", errno);
    uint64_t *to = answer ? answer : unused;
    if (what == 'i') // answered when it polls again
        return;
    struct pollfd fd = {.fd = c->commands, .events = POLLIN};
    // This end's engine may be what the server waits for.
    while (poll(&fd, 1, 0) == 0)
        (void)fi_cq_read(c->end->cq, NULL, 0);
    if (recv(c->commands, to, sizeof unused, MSG_WAITALL) != sizeof unused)
        die("answer", errno);
}

// Waits for `count` completions. 0, an error of the provider, or -FI_ETIMEDOUT.
static int complete(struct Client *c, int count, int deadline_ms)
{
    uint64_t until = now_ms() + (uint64_t)deadline_ms;
    while (count > 0) {
        struct fi_cq_data_entry entry;
        ssize_t got = fi_cq_read(c->end->cq, &entry, 1);
        if (got == 1) {
            count--;
        } else if (got == -FI_EAVAIL) {
            struct fi_cq_err_entry error = {0};
            fi_cq_readerr(c->end->cq, &error, 0);
            return -error.err;
        } else if (got != -FI_EAGAIN) {
            return (int)got;
        }
        if (now_ms() >= until)
            return -FI_ETIMEDOUT;
    }
    return 0;
}

// Repeats a call that has no room.
#define POST(c, call)                                                                                                  \
    do {                                                                                                               \
        ssize_t done_;                                                                                                 \
        while ((done_ = (call)) == -FI_EAGAIN)                                                                         \
            (void)fi_cq_read((c)->end->cq, NULL, 0);                                                                    \
        check(#call, (int)done_);                                                                                      \
    } while (0)

static void post_read(struct Client *c, uint8_t *to, size_t bytes, uint64_t from)
{
    void *desc = fi_mr_desc(c->end->mr);
    POST(c, fi_read(c->end->ep, to, bytes, desc, c->peer, c->server.base + from, c->server.key, NULL));
}

static void post_write(struct Client *c, const uint8_t *from, size_t bytes, uint64_t to)
{
    void *desc = fi_mr_desc(c->end->mr);
    struct iovec source = {.iov_base = (void *)from, .iov_len = bytes};
    struct fi_rma_iov target = {.addr = c->server.base + to, .len = bytes, .key = c->server.key};
    struct fi_msg_rma message = {.msg_iov = &source,
                                 .desc = &desc,
                                 .iov_count = 1,
                                 .addr = c->peer,
                                 .rma_iov = &target,
                                 .rma_iov_count = 1};
    // Its completion says that the bytes are in the peer's memory, not only on their way.
    POST(c, fi_writemsg(c->end->ep, &message, FI_COMPLETION | FI_DELIVERY_COMPLETE));
}

static void post_signal(struct Client *c, uint64_t data)
{
    void *desc = fi_mr_desc(c->end->mr);
    uint64_t to = c->server.base + LATE;
    POST(c, fi_writedata(c->end->ep, c->end->memory, 0, desc, data, c->peer, to, c->server.key, NULL));
}

static uint64_t add(struct Client *c, uint64_t to, uint64_t value)
{
    uint64_t *operand = (uint64_t *)(c->end->memory + 64), *old = (uint64_t *)(c->end->memory + 72);
    void *desc = fi_mr_desc(c->end->mr);
    *operand = value;
    POST(c, fi_fetch_atomic(c->end->ep, operand, 1, desc, old, desc, c->peer, c->server.base + to, c->server.key,
                            FI_UINT64, FI_SUM, NULL));
    check("complete an atomic", complete(c, 1, DEADLINE_MS));
    return *old;
}

// A read places exactly its bytes.
static bool f01(struct Client *c)
{
    uint8_t *to = c->end->memory + 65536, *source = c->end->memory + 131072;
    for (int n = 0; n < PIECE; n++)
        source[n] = (uint8_t)(n * 7 + 1);
    post_write(c, source, PIECE, PIECE);
    check("complete a write", complete(c, 1, DEADLINE_MS));
    bool ok = true;
    for (int round = 0; round < ROUNDS; round++) {
        size_t bytes = 1 + (size_t)round * 13 % (PIECE - 512), at = 8 + (size_t)round % 256, from = (size_t)round % 200;
        memset(to, 0xee, 2 * PIECE);
        post_read(c, to + at, bytes + (broken("F01") ? 1 : 0), PIECE + from);
        check("complete a read", complete(c, 1, DEADLINE_MS));
        for (size_t n = 0; n < 2 * PIECE; n++) {
            bool asked = n >= at && n < at + bytes;
            ok &= to[n] == (asked ? source[n - at + from] : 0xee);
        }
    }
    return ok;
}

// Reads in flight together: each is right, in whatever order they end.
static bool f02(struct Client *c)
{
    uint8_t *to = c->end->memory + 65536, *source = c->end->memory + 131072;
    bool ok = true;
    for (int round = 0; round < ROUNDS / 10; round++) {
        memset(to, 0, PIECES * 256);
        for (int n = 0; n < PIECES; n++)
            post_read(c, to + n * 256, 256, PIECE + (uint64_t)n * 200);
        check("complete reads", complete(c, broken("F02") ? 1 : PIECES, DEADLINE_MS));
        for (int n = 0; n < PIECES; n++)
            ok &= memcmp(to + n * 256, source + n * 200, 256) == 0;
        if (broken("F02"))
            check("complete the rest", complete(c, PIECES - 1, DEADLINE_MS));
    }
    return ok;
}

// A fenced read starts after all before it. The server counts FIRST, then SECOND.
static bool f03(struct Client *c)
{
    uint8_t *memory = c->end->memory + 65536;
    bool ok = true;
    uint64_t last = 0;
    command(c, 'b', NULL);
    for (int round = 0; round < ROUNDS; round++) {
        int order[] = {SECOND, FIRST};
        if (broken("F03")) {
            order[0] = FIRST;
            order[1] = SECOND;
        }
        for (int n = 0; n < 2; n++) {
            post_read(c, memory + order[n], 8, (uint64_t)order[n]);
            // No order is asked of the provider: the fence is a completion.
            check("complete a read", complete(c, 1, DEADLINE_MS));
        }
        ok &= load(memory, FIRST) >= load(memory, SECOND);
        last = load(memory, FIRST);
    }
    command(c, 'b', NULL);
    return ok && last > 0;
}

// A signal follows the data: the server checks all pieces at each signal.
static bool f04(struct Client *c)
{
    uint8_t *source = c->end->memory + 131072;
    uint64_t before[3], after[3];
    command(c, 's', before);
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        for (int at = 0; at < PIECE; at += 8)
            store(source, at, round);
        if (broken("F04"))
            post_signal(c, round);
        for (int piece = 0; piece < PIECES; piece++)
            post_write(c, source, PIECE, PIECE * (1 + (uint64_t)piece));
        // Placed before the signal is sent: this needs no order of the network.
        check("complete writes", complete(c, PIECES + (broken("F04") ? 1 : 0), DEADLINE_MS));
        if (!broken("F04")) {
            post_signal(c, round);
            check("complete a signal", complete(c, 1, DEADLINE_MS));
        }
        // The next round overwrites what the server looks at.
        uint64_t until = now_ms() + DEADLINE_MS;
        do {
            command(c, 's', after);
        } while (after[0] < before[0] + round && now_ms() < until);
    }
    printf("  %lu signals, %lu words not there\n", after[0] - before[0], after[1] - before[1]);
    return after[0] - before[0] == ROUNDS && after[1] == before[1];
}

// An atomic follows the writes before it: a reader of the count then sees as many writes.
static bool f05(struct Client *c)
{
    uint8_t *memory = c->end->memory + 65536;
    bool ok = true;
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        store(memory, 256, round);
        uint64_t old = 0;
        if (broken("F05"))
            old = add(c, COUNTER, 1);
        post_read(c, memory + COUNTER, 8, COUNTER);
        check("complete a read", complete(c, 1, DEADLINE_MS));
        post_read(c, memory + WRITTEN, 8, WRITTEN);
        check("complete a read", complete(c, 1, DEADLINE_MS));
        ok &= load(memory, WRITTEN) >= load(memory, COUNTER);
        post_write(c, memory + 256, 8, WRITTEN);
        check("complete a write", complete(c, 1, DEADLINE_MS));
        if (!broken("F05"))
            old = add(c, COUNTER, 1);
        ok &= old == round - 1;
    }
    return ok;
}

static void fact(const char *clause, const char *what, const char *found)
{
    printf("%s %-58s %s\n", clause, what, found);
}

static const char *outcome(int done)
{
    return done == 0 ? "ends" : fi_strerror(-done);
}

static int read_word(struct Client *c, uint64_t from)
{
    post_read(c, c->end->memory + 65536, 8, from);
    return complete(c, 1, 2000);
}

// What a read does while its server is busy elsewhere, or stopped.
static void progress(struct Client *c)
{
    uint8_t *to = c->end->memory + 65536;
    char text[96];
    command(c, 'i', NULL);
    usleep(100000);
    uint64_t began = now_ms();
    post_read(c, to, 8, FIRST);
    int done = complete(c, 1, DEADLINE_MS);
    snprintf(text, sizeof text, "%s after %lu ms", outcome(done), now_ms() - began);
    fact("F12", "a read of a server that does not poll for 1 s", text);
    uint64_t answer[3];
    if (recv(c->commands, answer, sizeof answer, MSG_WAITALL) != sizeof answer)
        die("answer", errno);
    kill(c->process, SIGSTOP);
    began = now_ms();
    post_read(c, to, 8, FIRST);
    done = complete(c, 1, 1000);
    snprintf(text, sizeof text, "%s after %lu ms", outcome(done), now_ms() - began);
    fact("F12", "a read of a stopped server (SIGSTOP), deadline 1 s", text);
    kill(c->process, SIGCONT);
    if (done != 0) {
        store(to, 0, UINT64_MAX);
        complete(c, 1, DEADLINE_MS);
        fact("F13", "its buffer, after the deadline and SIGCONT",
             load(to, 0) != UINT64_MAX ? "is written: it stays with the endpoint" : "is left alone");
    }
}

// Bad keys and addresses, and the lanes that they break.
static void rights(struct Client *c, struct Client *same_endpoint, struct Client *same_server)
{
    char text[96];
    uint64_t key = c->server.key;
    if (read_word(c, FIRST) + read_word(same_endpoint, FIRST) + read_word(same_server, FIRST) != 0)
        die("lanes before a break", FI_EIO);
    c->server.key = key + 12345;
    int done = read_word(c, FIRST);
    c->server.key = key;
    fact("F09", "a read with a wrong key", outcome(done));
    fact("F10", "a good read of the same lane after it", outcome(read_word(c, FIRST)));
    fact("F16", "the endpoint's lane to another server", outcome(read_word(same_endpoint, FIRST)));
    fact("F16", "another endpoint's lane to that server", outcome(read_word(same_server, FIRST)));
    uint64_t began = now_ms();
    while ((done = read_word(c, FIRST)) != 0 && now_ms() < began + 3000)
        ;
    snprintf(text, sizeof text, "%s after %lu ms", outcome(done), now_ms() - began);
    fact("F10", "the lane, used again without being made anew", text);
    fact("F09", "a read outside the region", outcome(read_word(same_endpoint, MEMORY)));
}

// A region that its server closes: what was posted before, and what is posted after.
static void revoked(struct Client *c)
{
    char text[96];
    uint64_t before[3], after[3];
    uint8_t *from = c->end->memory + 65536;
    store(from, 0, 76);
    post_write(c, from, 8, LATE);
    int done = complete(c, 1, 2000);
    command(c, 'c', before);
    store(from, 0, 77);
    post_write(c, from, 8, LATE);
    done = complete(c, 1, 2000);
    command(c, 's', after);
    snprintf(text, sizeof text, "%s; the word is %s", outcome(done), after[2] == 76 ? "unchanged" : "written");
    fact("F11", "a write to a region that its server has closed", text);
}

static void stop(struct Client *c)
{
    kill(c->process, SIGKILL);
    waitpid(c->process, NULL, 0);
}

int main(int count, char **arguments)
{
    const char *provider = "tcp;ofi_rxm";
    for (int n = 1; n < count; n += 2) {
        if (n + 1 < count && strcmp(arguments[n], "--provider") == 0)
            provider = arguments[n + 1];
        else if (n + 1 < count && strcmp(arguments[n], "--defect") == 0)
            defect = arguments[n + 1];
        else
            die(arguments[n], EINVAL);
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    // Before this process has an endpoint: providers have threads.
    struct Client servers[] = {start_server(provider), start_server(provider)};
    struct End end = {0}, other = {0};
    open_end(&end, provider);
    open_end(&other, provider);
    struct Client c = lane(&end, servers[0]);
    printf("provider %s, data progress %s\n", end.info->fabric_attr->prov_name,
           end.info->domain_attr->data_progress == FI_PROGRESS_AUTO ? "automatic" : "manual");
    struct {
        const char *clause;
        bool (*holds)(struct Client *);
    } clauses[] = {{"F01", f01}, {"F02", f02}, {"F03", f03}, {"F04", f04}, {"F05", f05}};
    bool all = true;
    for (size_t n = 0; n < sizeof clauses / sizeof *clauses; n++) {
        bool holds = clauses[n].holds(&c);
        printf("%s %s\n", clauses[n].clause, holds ? "ok" : "FAILED");
        all &= holds;
    }
    if (all && *defect == 0) {
        progress(&c);
        struct Client same_endpoint = lane(&end, servers[1]), same_server = lane(&other, servers[0]);
        struct Client elsewhere = lane(&other, servers[1]);
        revoked(&elsewhere);
        stop(&servers[1]);
        servers[1] = start_server(provider);
        same_endpoint = lane(&end, servers[1]);
        rights(&c, &same_endpoint, &same_server);
    }
    stop(&servers[0]);
    stop(&servers[1]);
    return all ? 0 : 1;
}
