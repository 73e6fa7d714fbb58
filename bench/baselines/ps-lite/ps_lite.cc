// Pulls and pushes of ps-lite between processes of one host: scheduler, server, worker.
//
//     ps_lite TEST MILLIS PORT
//
// push, pull: calls a second with 64 of one row of 64 f32 under way. rows: median microseconds of a pull of
// 1,024 random rows of 64 f32 out of 100,000. Prints the test, its figure, and the number of wrong values.

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <random>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "ps/ps.h"

namespace {

using Clock = std::chrono::steady_clock;
using Row = std::vector<float>;

constexpr size_t kDim = 64;
constexpr size_t kRows = 100000;
constexpr size_t kCallRows = 1024;
constexpr size_t kFillRows = 4096;
constexpr size_t kWindow = 64;
constexpr size_t kBatches = 64;

/// A key-value store: a push adds to rows, a pull returns them.
struct Store {
    std::unordered_map<ps::Key, Row> rows;

    void operator()(const ps::KVMeta &meta, const ps::KVPairs<float> &data, ps::KVServer<float> *server)
    {
        ps::KVPairs<float> answer;
        if (meta.pull) {
            answer.keys = data.keys;
            answer.vals.resize(data.keys.size() * kDim);
        }
        for (size_t n = 0; n < data.keys.size(); n++) {
            Row &row = rows[data.keys[n]];
            row.resize(kDim);
            for (size_t i = 0; meta.push && i < kDim; i++)
                row[i] += data.vals[n * kDim + i];
            if (meta.pull)
                std::copy(row.begin(), row.end(), answer.vals.begin() + n * kDim);
        }
        server->Response(meta, answer);
    }
};

double micros(Clock::duration time)
{
    return std::chrono::duration<double, std::micro>(time).count();
}

/// Calls a second with `kWindow` of them under way.
template <typename Call>
double rate(ps::KVWorker<float> &worker, int millis, Call call, size_t &calls)
{
    std::deque<int> open;
    const auto begin = Clock::now();
    const auto end = begin + std::chrono::milliseconds(millis);
    for (calls = 0; Clock::now() < end; calls++) {
        if (open.size() == kWindow) {
            worker.Wait(open.front());
            open.pop_front();
        }
        open.push_back(call(calls));
    }
    for (int call : open)
        worker.Wait(call);
    return calls * 1e6 / micros(Clock::now() - begin);
}

void work(const std::string &test, int millis)
{
    ps::KVWorker<float> worker(0, 0);
    double figure = 0;
    size_t wrong = 0, calls = 0;
    const ps::SArray<ps::Key> key(std::vector<ps::Key>{7});
    const ps::SArray<float> ones(std::vector<float>(kDim, 1.0f));
    if (test == "push") {
        figure = rate(worker, millis, [&](size_t) { return worker.ZPush(key, ones); }, calls);
        ps::SArray<float> sum;
        worker.Wait(worker.ZPull(key, &sum));
        // Sums of more are not exact in f32.
        if (calls < (1u << 24))
            wrong = std::count_if(sum.begin(), sum.end(), [&](float x) { return x != float(calls); });
    } else if (test == "pull") {
        worker.Wait(worker.ZPush(key, ones));
        std::vector<ps::SArray<float>> out(kWindow);
        auto pull = [&](size_t n) { return worker.ZPull(key, &out[n % kWindow]); };
        figure = rate(worker, millis, pull, calls);
        for (size_t n = 0; n < std::min(calls, kWindow); n++)
            wrong += std::count_if(out[n].begin(), out[n].end(), [](float x) { return x != 1.0f; });
    } else {
        for (size_t first = 0; first < kRows; first += kFillRows) {
            const size_t some = std::min(kFillRows, kRows - first);
            ps::SArray<ps::Key> keys(some);
            ps::SArray<float> values(some * kDim);
            for (size_t n = 0; n < some * kDim; n++) {
                keys[n / kDim] = first + n / kDim;
                values[n] = float(first + n / kDim);
            }
            worker.Wait(worker.ZPush(keys, values));
        }
        std::mt19937_64 random(1);
        std::vector<ps::SArray<ps::Key>> batches;
        for (size_t b = 0; b < kBatches; b++) {
            std::set<ps::Key> some;
            while (some.size() < kCallRows)
                some.insert(random() % kRows);
            batches.emplace_back(std::vector<ps::Key>(some.begin(), some.end()));
        }
        ps::SArray<float> out;
        std::vector<double> times;
        const auto end = Clock::now() + std::chrono::milliseconds(millis);
        for (size_t n = 0; n < 3 || Clock::now() < end; n++) {
            const auto &keys = batches[n % kBatches];
            const auto begin = Clock::now();
            worker.Wait(worker.ZPull(keys, &out));
            times.push_back(micros(Clock::now() - begin));
            for (size_t i = 0; i < kCallRows; i++)
                wrong += out[i * kDim] != float(keys[i]);
        }
        std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
        figure = times[times.size() / 2];
    }
    printf("%s %.4f %zu\n", test.c_str(), figure, wrong);
    fflush(stdout);
}

void run(const char *role, const std::string &test, int millis)
{
    setenv("DMLC_ROLE", role, 1);
    ps::Start(0);
    if (ps::IsServer()) {
        auto server = new ps::KVServer<float>(0);
        server->set_request_handle(Store());
        ps::RegisterExitCallback([server]() { delete server; });
    }
    // A request that arrives before the handle is set ends the server.
    if (!ps::IsScheduler())
        ps::Postoffice::Get()->Barrier(0, ps::kWorkerGroup + ps::kServerGroup);
    if (ps::IsWorker())
        work(test, millis);
    ps::Finalize(0, true);
}

/// Ends the worker with a child that failed: nothing would answer.
void child_ended(int)
{
    siginfo_t child = {};
    if (waitid(P_ALL, 0, &child, WEXITED | WNOHANG | WNOWAIT) == 0 && child.si_pid != 0 &&
        (child.si_code != CLD_EXITED || child.si_status != 0))
        _exit(1);
}

} // namespace

int main(int argc, char **argv)
{
    const std::string test = argc == 4 ? argv[1] : "";
    if (test != "push" && test != "pull" && test != "rows") {
        fprintf(stderr, "usage: ps_lite push|pull|rows MILLIS PORT\n");
        return 2;
    }
    const int millis = atoi(argv[2]);
    setenv("DMLC_PS_ROOT_URI", "127.0.0.1", 1);
    setenv("DMLC_PS_ROOT_PORT", argv[3], 1);
    setenv("DMLC_NODE_HOST", "127.0.0.1", 1);
    setenv("DMLC_NUM_SERVER", "1", 1);
    setenv("DMLC_NUM_WORKER", "1", 1);
    const pid_t parent = getpid();
    for (const char *role : {"scheduler", "server"}) {
        const pid_t child = fork();
        if (child < 0) {
            perror("fork");
            return 1;
        }
        if (child == 0) {
            // They end with the worker, whatever ends it.
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (getppid() != parent)
                return 1;
            run(role, test, millis);
            return 0;
        }
    }
    signal(SIGCHLD, child_ended);
    run("worker", test, millis);
    bool good = true;
    for (int n = 0, status = 0; n < 2; n++)
        good &= wait(&status) > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0;
    return good ? 0 : 1;
}
