// Tickets and tables that outlive their session. Run by ci/bindings.sh, also under valgrind.
//
//   lifetimes COORDINATOR TOKEN_FILE
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <vector>

#include <tidewater.hpp>

static void require(bool holds, const char *what)
{
    if (!holds) {
        std::fprintf(stderr, "not so: %s\n", what);
        std::exit(1);
    }
}

template <typename Call> static bool closed(Call call)
{
    try {
        call();
    } catch (const tw::error &e) {
        return e.status() == TW_ERR_CLOSED;
    }
    return false;
}

int main(int argc, char **argv)
{
    require(argc == 3, "two arguments");
    auto options = tw::defaults<tw_session_options>();
    options.coordinator = argv[1];
    options.token_file = argv[2];
    options.job_namespace = "lifetimes";
    options.workers = 1;
    auto made = tw::defaults<tw_table_options>();
    made.name = "t";
    made.kind = TW_SPARSE;
    made.cols = 2;
    const std::vector<std::uint64_t> keys{7};
    const std::vector<double> ones{1, 1};
    std::vector<double> out(2);
    std::optional<tw::table<double>> table;
    std::optional<tw::ticket> ticket;
    {
        tw::session session(options);
        table.emplace(session, made);
        ticket.emplace(table->push_rows(keys, ones, TW_SUM));
        // A session that was moved from closes nothing.
        tw::session moved(std::move(session));
        moved.finish();
    }
    require(closed([&] { ticket->wait(); }), "wait after the session's end is TW_ERR_CLOSED");
    require(closed([&] { (void)ticket->test(); }), "test after the session's end is TW_ERR_CLOSED");
    require(closed([&] { table->pull_rows(keys, out); }), "pull after the session's end is TW_ERR_CLOSED");
    ticket.reset();
    table.reset();
    std::puts("ok");
}
