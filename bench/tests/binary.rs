//! The program itself: rows, JSON, limits and exit codes, with servers in separate processes.
#![allow(clippy::unwrap_used, reason = "helpers outside of `#[test]` functions")]

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// Columns of the table.
const SIZE: usize = 0;
const OPS: usize = 1;
const P50: usize = 2;
const P99: usize = 4;
const P999: usize = 5;
const MAX: usize = 6;
const WRONG: usize = 14;
const COLUMNS: usize = 15;

fn bench(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tidewater-bench"))
        .args(args)
        .output()
        .unwrap()
}

fn bench_line(line: &str) -> Output {
    bench(&line.split(' ').collect::<Vec<_>>())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Rows of the table, cell by cell; a missing value is NaN.
fn rows(out: &Output) -> Vec<Vec<f64>> {
    let text = text(&out.stdout);
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let cell = |c: &str| match c {
        "-" => f64::NAN,
        number => number.parse().unwrap(),
    };
    lines
        .map(|line| line.split_whitespace().map(cell).collect())
        .collect()
}

/// Rows of a run that must succeed. A run with a fixed number of samples gets enough time for a slow
/// machine.
fn good_rows(line: &str) -> Vec<Vec<f64>> {
    let line = &match line.contains("--iters") && !line.contains("--duration") {
        true => format!("{line} --duration 60s"),
        false => line.to_owned(),
    };
    let out = bench_line(line);
    assert_eq!(out.status.code(), Some(0), "{line}: {}", text(&out.stderr));
    let rows = rows(&out);
    for row in &rows {
        assert_eq!(row.len(), COLUMNS, "{line}");
        assert!(row[OPS] >= 1.0, "{line}: calls were made");
        assert_eq!(row[WRONG], 0.0, "{line}: no value is wrong");
    }
    rows
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn smoke(what: &str, transport: &str) {
    let dir = tempfile::tempdir().unwrap();
    let (file, csv) = (dir.path().join("out.json"), dir.path().join("out.csv"));
    let window = if what == "latency" { "" } else { " --window 4" };
    let rows = good_rows(&format!(
        "{what} --sizes 8,4K,256K --iters 20 --duration 2s --warmup 2{window} --transport {transport} \
         --json {} --csv {}",
        file.display(),
        csv.display()
    ));
    assert_eq!(
        rows.len(),
        2 * 3 * 3,
        "pull and push, three tables, three sizes"
    );
    for row in &rows {
        assert!(row[P50] > 0.0 && row[P50] <= row[P50 + 1] && row[P50 + 1] <= row[P99]);
        assert!(row[P999] <= row[MAX] + 1e-3);
    }
    let document = json(&file);
    let found = document["rows"].as_array().unwrap();
    assert_eq!(found.len(), rows.len());
    for (found, row) in found.iter().zip(&rows) {
        assert_eq!(found["size"].as_f64(), Some(row[SIZE]));
        // The run used the requested options.
        assert_eq!(found["fallbacks"], 0);
        assert!(found["eff_percent"].as_f64().unwrap() > 0.0);
        assert!(found["checked"].as_u64().unwrap() > 0);
        // Bytes and time agree with the rates.
        let calls = found["bytes_per_call"].as_f64().unwrap() / found["avg_us"].as_f64().unwrap();
        assert!((calls / found["mb_per_s"].as_f64().unwrap() - 1.0).abs() < 1e-6);
    }
    let csv = std::fs::read_to_string(&csv).unwrap();
    assert_eq!(csv.lines().count(), rows.len() + 1);
}

#[test]
fn latency_over_shared_memory() {
    smoke("latency", "shm");
}

#[test]
fn latency_over_tcp() {
    smoke("latency", "tcp");
}

#[test]
fn bandwidth_over_shared_memory() {
    smoke("bandwidth", "shm");
}

#[test]
fn bandwidth_over_tcp() {
    smoke("bandwidth", "tcp");
}

#[test]
fn rates_over_both() {
    smoke("rate", "shm");
    smoke("rate", "tcp");
}

#[test]
fn every_mode_of_several_servers() {
    for mode in ["consistent", "hogwild", "gather"] {
        let rows = good_rows(&format!(
            "latency --op pull --sizes 64,1M --batch 3 --iters 5 --servers 2 --appliers 2 \
             --no-ceiling --mode {mode}"
        ));
        assert_eq!(rows.len(), 6);
    }
}

#[test]
fn many_random_rows() {
    for transport in ["shm", "tcp"] {
        let rows = good_rows(&format!(
            "sparse --rows 20K --batch 100 --table all --window 4 --iters 70 --transport {transport}"
        ));
        assert_eq!(rows.len(), 4);
        assert!(rows.iter().all(|row| row[SIZE] == 256.0));
    }
}

#[test]
fn clocks_and_barriers() {
    for transport in ["shm", "tcp"] {
        let rows = good_rows(&format!(
            "ssp --workers 1,3 --iters 30 --transport {transport}"
        ));
        assert_eq!(rows.len(), 6, "a thread, processes, barriers");
        let counts: Vec<f64> = rows.iter().map(|row| row[OPS]).collect();
        assert_eq!(counts, [30.0, 30.0, 30.0, 90.0, 30.0, 90.0]);
    }
}

#[test]
fn workers_and_servers() {
    let rows = good_rows("scale --workers 1,3 --servers 1,2 --iters 50 --batch 20");
    let counts: Vec<(f64, f64)> = rows.iter().map(|row| (row[SIZE], row[OPS])).collect();
    assert_eq!(
        counts,
        [(1.0, 50.0), (3.0, 150.0), (1.0, 50.0), (3.0, 150.0)]
    );
}

#[test]
fn an_applier_alone() {
    let rows = good_rows("apply --rules adagrad,sum --dims 16 --iters 70");
    assert_eq!(rows.len(), 4, "cached and in memory");
}

/// Each task of a queue is delivered once; rows and JSON have takes, reports and the coordinator's processor time.
#[test]
fn a_queue_delivers_each_task_once() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("out.json");
    let line = format!("queue --clients 5 --tasks 300 --json {}", file.display());
    let rows = good_rows(&line);
    let counts: Vec<(f64, f64)> = rows.iter().map(|row| (row[SIZE], row[OPS])).collect();
    assert_eq!(counts, [(5.0, 300.0); 2]);
    let document = json(&file);
    for (row, op) in document["rows"]
        .as_array()
        .unwrap()
        .iter()
        .zip(["take", "report"])
    {
        assert_eq!((&row["test"], &row["op"]), (&"queue".into(), &op.into()));
        assert!(row["cpu_server_us"].as_f64().unwrap() > 0.0, "{row}");
        assert!(row["mops_per_s"].as_f64().unwrap() > 0.0, "{row}");
    }
}

/// The resident bytes a key are within their targets.
#[test]
fn sparse_rows_take_the_memory_that_targets_allow() {
    let out = bench_line("memory --keys 300K");
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
    let text = text(&out.stdout);
    for case in ["ftrl.1 ", "adagrad.16 ", "sgd.64 "] {
        let line = text.lines().find(|line| line.contains(case));
        assert!(
            line.is_some_and(|line| line.contains("307200 keys")),
            "{text}"
        );
    }
}

/// Faults of each kind of cluster: every promise is kept, and record and page agree. With `--full` for 30 minutes.
#[test]
fn chaos_keeps_its_promises() {
    let dir = tempfile::tempdir().unwrap();
    let (html, record) = (dir.path().join("chaos.html"), dir.path().join("chaos.json"));
    let (length, value) = match std::env::var_os("TIDEWATER_TEST_FULL") {
        Some(_) => ("--minutes", "30"),
        None => ("--rounds", "16"),
    };
    let files = [&html, &record].map(|path| path.to_str().unwrap());
    let args = ["chaos", "--seed", "3", length, value];
    let out = bench(&[&args[..], &["--html", files[0], "--json", files[1]]].concat());
    let said = text(&out.stdout);
    println!("{said}");
    assert_eq!(out.status.code(), Some(0), "{said}{}", text(&out.stderr));
    let run = json(&record);
    let records = run["records"].as_array().unwrap();
    assert!(records.len() >= 16, "{run}");
    let broken = records.iter().find(|record| !record["broken"].is_null());
    assert_eq!(broken, None);
    for setup in ["held servers", "checkpoints", "plain", "warm servers"] {
        assert!(records.iter().any(|it| it["setup"] == setup), "{run}");
    }
    // What dies is known, what comes back has acknowledgements, and what survives has an exact ledger.
    let killed = |it: &&Value| it["fault"] == "worker killed" || it["fault"] == "server killed";
    let mut killed = records.iter().filter(killed);
    assert!(killed.all(|it| it["recovered_ms"].is_f64()), "{run}");
    let counted = records.iter().filter(|it| it["pushes"].is_u64());
    assert!(counted.count() >= 8, "{run}");
    assert!(run["repeat"].as_str().unwrap().contains("--seed 3"));
    let page = std::fs::read_to_string(&html).unwrap();
    assert!(page.contains("0 promises broken") && page.contains("server killed"));
}

#[test]
fn a_soak_ends_after_its_calls() {
    for transport in ["shm", "tcp"] {
        let rows = good_rows(&format!(
            "soak --ops 20K --interval 200ms --transport {transport}"
        ));
        let calls: f64 = rows.iter().map(|row| row[OPS]).sum();
        assert!((20_480.0..24_000.0).contains(&calls), "{calls}");
    }
}

/// Keys of a row with numeric values.
const NUMBERS: [&str; 21] = [
    "size",
    "bytes_per_call",
    "calls_per_sample",
    "ops",
    "samples",
    "p50_us",
    "p90_us",
    "p99_us",
    "p999_us",
    "max_us",
    "avg_us",
    "mb_per_s",
    "mops_per_s",
    "cpu_client_us",
    "cpu_server_us",
    "allocs_client",
    "allocs_server",
    "eff_percent",
    "retries",
    "fallbacks",
    "wrong",
];

#[test]
fn the_layout_of_the_json_is_what_others_read() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("out.json");
    let line = "latency --op all --table sparse --sizes 64 --iters 3 --json";
    good_rows(&format!("{line} {}", file.display()));
    let document = json(&file);
    assert_eq!(document["schema"], "tidewater-bench/1");
    let print = document["fingerprint"].as_object().unwrap();
    for text in [
        "version",
        "commit",
        "rustc",
        "profile",
        "rustflags",
        "cpu",
        "kernel",
        "governor",
        "clocksource",
        "huge_pages",
        "nic",
    ] {
        assert!(
            print[text].as_str().is_some_and(|t| !t.is_empty()),
            "{text}"
        );
    }
    for text in ["load", "transport", "pinned", "command", "what"] {
        assert!(print[text].is_string(), "{text}");
    }
    for number in [
        "cores",
        "numa_nodes",
        "servers",
        "workers",
        "appliers",
        "ring_bytes",
        "mtu",
        "seed",
        "timer_ns",
    ] {
        assert!(print[number].is_number(), "{number}");
    }
    assert_eq!(print.len(), 25, "a new key belongs into this test");
    for (row, op) in document["rows"]
        .as_array()
        .unwrap()
        .iter()
        .zip(["pull", "push"])
    {
        let row = row.as_object().unwrap();
        assert_eq!((&row["op"], &row["table"]), (&op.into(), &"sparse".into()));
        assert_eq!(
            (&row["test"], &row["pace"]),
            (&"latency".into(), &"closed".into())
        );
        let mode = if op == "pull" {
            "consistent".into()
        } else {
            Value::Null
        };
        assert_eq!(row["mode"], mode);
        for number in NUMBERS {
            assert!(row[number].is_number(), "{number}");
        }
        assert!(row["ceiling"]["name"].is_string() && row["ceiling"]["p50_us"].is_number());
        assert_eq!(row["checked"], 3, "every sample");
        assert_eq!(row.len(), 28, "a new key belongs into this test");
        assert_eq!((&row["size"], &row["ops"]), (&64.into(), &3.into()));
    }
}

#[test]
fn a_wrong_value_is_counted_and_fails_the_run() {
    for line in [
        "latency --op pull --table sparse --sizes 64 --iters 5 --plant-wrong",
        "latency --op pull --table dense --sizes 64 --iters 5 --plant-wrong",
        "latency --op push --table rows --sizes 64 --iters 5 --plant-wrong",
        "rate --op pull --table rows --sizes 64 --iters 2 --transport tcp --plant-wrong",
        "sparse --op pull --rows 10K --batch 50 --iters 70 --plant-wrong",
        "soak --ops 4096 --interval 200ms --plant-wrong",
    ] {
        let out = bench_line(line);
        assert_eq!(out.status.code(), Some(1), "{line}: {}", text(&out.stderr));
        let wrong: f64 = rows(&out).iter().map(|row| row[WRONG]).sum();
        assert!(wrong > 0.0, "{line}");
        assert!(text(&out.stderr).contains("values were wrong"), "{line}");
    }
}

/// Coordinated omission: in a closed loop, a server pause of 100 ms is one slow call. In an open loop,
/// it is every call that came due meanwhile.
#[test]
fn a_pause_of_the_server_shows_in_an_open_loop() {
    let line = "latency --op pull --table rows --sizes 64 --transport tcp --duration 2s \
                --no-ceiling --plant-pause 100ms";
    let closed = good_rows(line);
    let open = good_rows(&format!("{line} --open-loop 1000"));
    assert!(open[0][OPS] >= 1990.0, "all that came due were made");
    assert!(closed[0][MAX] > 90_000.0 && open[0][MAX] > 90_000.0);
    // A hundred of two thousand came due in the pause; the last of them waited least.
    assert!(open[0][P999] > 80_000.0, "{:?}", open[0]);
    assert!(open[0][P99] > 60_000.0, "{:?}", open[0]);
    assert!(closed[0][P99] < open[0][P99], "{:?}", closed[0]);
}

/// Times agree with the clock of this test, bytes with the kernel's counters.
#[test]
fn units_agree_with_the_wall_and_the_wire() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("out.json");
    let sent = || {
        let counter = "/sys/class/net/lo/statistics/tx_bytes";
        let text = std::fs::read_to_string(counter).unwrap();
        text.trim().parse::<f64>().unwrap()
    };
    let (wall, wire) = (tidewater_runtime::clock::now(), sent());
    good_rows(&format!(
        "latency --op pull --table rows --sizes 64K --group 16 --duration 1s --warmup 0 --no-ceiling \
         --transport tcp --json {}",
        file.display()
    ));
    let wall = (tidewater_runtime::clock::now() - wall).as_secs_f64();
    let wire = sent() - wire;
    let row = &json(&file)["rows"][0];
    let number = |key: &str| row[key].as_f64().unwrap();
    let seconds = number("ops") * number("avg_us") / 1e6;
    assert!(seconds < wall, "{seconds} s measured in {wall} s");
    assert!(seconds > 0.3, "most of a second was measured: {seconds} s");
    let bytes = number("ops") * number("bytes_per_call");
    assert_eq!(number("bytes_per_call"), 65536.0);
    assert!(
        wire >= bytes,
        "{bytes} bytes pulled, {wire} bytes sent by everybody"
    );
    assert!((number("mb_per_s") * 1e6 * seconds / bytes - 1.0).abs() < 1e-6);
    assert!((number("mops_per_s") * 1e6 * seconds / number("ops") - 1.0).abs() < 1e-6);
    let cpu = number("ops") * (number("cpu_client_us") + number("cpu_server_us")) / 1e6;
    assert!(cpu > 0.01 && cpu < 2.0 * wall, "{cpu} s of two processes");
}

#[test]
fn limits_fail_the_run() {
    let line = "latency --op pull --table rows --sizes 64 --iters 50";
    good_rows(&format!("{line} --max-p99 10000000 --min-bw 0.0001"));
    for (limit, found) in [("--max-p99 0.0001", "p99"), ("--min-bw 1e12", "MB/s")] {
        let out = bench_line(&format!("{line} {limit}"));
        assert_eq!(out.status.code(), Some(1), "{limit}");
        assert!(text(&out.stderr).contains(found), "{limit}");
    }
}

#[test]
fn a_comparison_judges_and_gates() {
    let dir = tempfile::tempdir().unwrap();
    let (file, targets) = (dir.path().join("out.json"), dir.path().join("targets.toml"));
    let target = |id: &str, bound: &str, gate: bool| {
        format!(
            "[[target]]\nid='{id}'\nwhat='x'\nmetric='x'\ncounted=true\nsteady=true\ngate={gate}\n{bound}\n"
        )
    };
    let run = |gate: &str| {
        let line = format!(
            "compare --only shm.row.rows,shm.idle --rounds 3 --slice 5ms --no-peers --json {} \
             --targets {} {gate}",
            file.display(),
            targets.display()
        );
        bench_line(line.trim_end())
    };
    // No pull is a thousand times faster than a copy; idle servers stay below a core.
    let impossible = target("shm.row.rows.hogwild", "at_most=0.001", true);
    let met = target("shm.idle", "at_most=1.0", true);
    std::fs::write(&targets, format!("{impossible}{met}")).unwrap();
    let out = run("");
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
    let document = json(&file);
    let ratios = document["ratios"].as_array().unwrap();
    let find = |id: &str| ratios.iter().find(|r| r["id"] == id).unwrap();
    let row = find("shm.row.rows.hogwild");
    assert_eq!(row["ours"].as_array().unwrap().len(), 3);
    let ratio = |n: usize| row["ours"][n].as_f64().unwrap() / row["theirs"][n].as_f64().unwrap();
    let mut all = [ratio(0), ratio(1), ratio(2)];
    all.sort_by(f64::total_cmp);
    assert_eq!(
        row["value"].as_f64(),
        Some(all[1]),
        "the median of the rounds' ratios"
    );
    assert_eq!(row["target"]["met"], false);
    assert_eq!(find("shm.idle")["target"]["met"], true);
    assert!(find("shm.row.rows.consistent")["target"].is_null());
    let out = run("--gate");
    assert_eq!(out.status.code(), Some(1));
    assert!(text(&out.stderr).contains("shm.row.rows.hogwild"));
    std::fs::write(&targets, met).unwrap();
    assert_eq!(run("--gate").status.code(), Some(0));
}

#[test]
fn a_report_is_one_page_that_needs_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| dir.path().join(name).display().to_string();
    let (latency, ratios, page) = (file("l.json"), file("c.json"), file("page.html"));
    good_rows(&format!("latency --sizes 8,4K --iters 5 --json {latency}"));
    let compare = "compare --only shm.row.rows,peer.perftest --rounds 1 --slice 5ms --json";
    let out = bench_line(&format!("{compare} {ratios} --html {}", file("c.html")));
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
    let out = bench_line(&format!("report {latency} {ratios} --html {page}"));
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
    let page = std::fs::read_to_string(&page).unwrap();
    for part in [
        "<svg class=chart",
        "pull over shm",
        "shm.row.rows.consistent",
        "memcpy",
    ] {
        assert!(page.contains(part), "{part}");
    }
    for fetched in ["<script", "src=", "href=", "@import", "url("] {
        assert!(!page.contains(fetched), "{fetched}");
    }
    let out = bench_line(&format!(
        "report {} --html {}",
        file("none.json"),
        file("x.html")
    ));
    assert_eq!(out.status.code(), Some(3));
}

#[test]
fn bad_options_are_usage_errors() {
    for line in [
        "latency --sizes 12",
        "latency --sizes 8 --transport pigeon",
        "latency --sizes 8 --rdma-device a/b",
        "latency --iters 0",
        "latency --duration never",
        "latency --table rows --sizes 196616 --iters 1",
        "latency --pin 5000",
        "latency --max-p99 -1",
        "latency --open-loop 100 --group 4",
        "apply --rules magic",
        "sparse --rows 0",
        "compare --rounds 0",
        "speed",
    ] {
        let out = bench_line(line);
        assert_eq!(out.status.code(), Some(2), "{line}");
        assert!(!out.stderr.is_empty());
    }
    let out = bench_line("latency --sizes 8 --iters 1 --no-ceiling --json /nowhere/out.json");
    assert_eq!(out.status.code(), Some(3));
}

#[test]
fn help_shows_examples() {
    for args in [
        &["--help"][..],
        &["latency", "--help"],
        &["bandwidth", "--help"],
    ] {
        let out = bench(args);
        assert_eq!(out.status.code(), Some(0));
        assert!(text(&out.stdout).contains("Examples:"), "{args:?}");
    }
}
