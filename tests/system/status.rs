//! `tidewater status`, the page of metrics, and job files.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use tidewater::{JoinOptions, SyncMode, TableBuilder};
use tidewater_protocol::table::PushOp;
use tidewater_runtime::clock::Deadline;

use crate::proc::Process;
use crate::rig::{LIMIT, output, tidewater};
use crate::service::Service;

/// Samples of a Prometheus page: labels and value, by metric.
type Samples = BTreeMap<String, Vec<(BTreeMap<String, String>, f64)>>;

/// Parses Prometheus' text format 0.0.4, and fails on everything that a scraper would refuse.
fn parse(page: &str) -> Samples {
    let mut samples = Samples::new();
    let (mut helped, mut metric) = (String::new(), String::new());
    assert!(page.ends_with('\n'));
    for line in page.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap();
            assert!(!help.is_empty(), "{line}");
            helped = name.to_owned();
            continue;
        }
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert!(matches!(kind, "gauge" | "counter"), "{line}");
            assert_eq!(name.ends_with("_total"), kind == "counter", "{line}");
            assert_eq!(name, helped);
            metric = name.to_owned();
            assert!(
                samples.insert(metric.clone(), Vec::new()).is_none(),
                "twice: {line}"
            );
            continue;
        }
        let (series, value) = line.rsplit_once(' ').unwrap();
        let (name, labels) = match series.split_once('{') {
            Some((name, labels)) => (name, labels.strip_suffix('}').unwrap()),
            None => (series, ""),
        };
        assert_eq!(name, metric, "{line}");
        let of_metric = samples.get_mut(name).unwrap();
        let labels = self::labels(labels);
        assert!(
            of_metric.iter().all(|(other, _)| *other != labels),
            "twice: {line}"
        );
        of_metric.push((labels, value.parse().unwrap()));
    }
    samples
}

/// The labels between braces: `name="value",...`, where a value may hold escaped characters.
fn labels(text: &str) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (name, after) = rest.split_once("=\"").unwrap();
        assert!(
            name.chars().all(|c| c.is_ascii_lowercase() || c == '_'),
            "{name}"
        );
        let mut value = String::new();
        let mut chars = after.char_indices();
        let end = loop {
            match chars.next().unwrap() {
                (at, '"') => break at,
                (_, '\\') => value.push(chars.next().unwrap().1),
                (_, c) => value.push(c),
            }
        };
        assert!(labels.insert(name.to_owned(), value).is_none(), "{text}");
        rest = &after[end + 1..];
        rest = rest.strip_prefix(',').unwrap_or(rest);
    }
    labels
}

/// The standard output of `tidewater status` with a job file, which succeeds.
fn status(service: &Service, format: &[&str]) -> String {
    let file = service.job_file().to_str().unwrap();
    let done = output(
        &tidewater(),
        &[&["status", "--job-file", file], format].concat(),
    );
    assert!(done.status.success(), "{done:?}");
    String::from_utf8(done.stdout).unwrap()
}

fn json(service: &Service) -> Value {
    serde_json::from_str(&status(service, &["--json"])).unwrap()
}

/// The answer to `GET /metrics` at the address that the service has printed.
fn scraped(service: &Service) -> String {
    let said = service.said();
    let address = said.split("http://").nth(1).unwrap();
    let address = address.split('/').next().unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, page) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(
        head.contains(&format!("Content-Length: {}\r\n", page.len())),
        "{head}"
    );
    page.to_owned()
}

/// A service with a job of two workers, of which one is stopped: all three formats name it, the carrier
/// of each pair, and the memory in use. The workers know the job from its file alone.
#[test]
fn stopped_rank_is_awaited_in_every_format() {
    let mut service = Service::published(&["--metrics", "127.0.0.1:0"]);
    let arguments = [
        "--sync",
        "ssp:4",
        "--transport",
        "tcp",
        "--epochs",
        "100000",
    ];
    let mut job = service.job("seen", 2, &arguments);
    job.until_training();
    Process::of(&job.0[1].process).signal(Signal::STOP);
    let deadline = Deadline::after(LIMIT);
    let report = loop {
        let report = json(&service);
        if report["jobs"][0]["domains"][0]["awaited"] == serde_json::json!([1]) {
            break report;
        }
        assert!(!deadline.passed(), "{report:#}");
        std::thread::sleep(Duration::from_millis(20));
    };
    assert_eq!(report["servers_expected"], 2);
    let job_report = &report["jobs"][0];
    assert_eq!(job_report["namespace"], "seen");
    assert_eq!(job_report["workers_expected"], 2);
    for rank in 0..2 {
        assert_eq!(job_report["workers"][rank]["rank"], rank);
        assert_eq!(job_report["workers"][rank]["state"], "live");
    }
    for server in report["servers"].as_array().unwrap() {
        assert_eq!(server["error"], Value::Null);
        let used = server["public"]["used_bytes"].as_u64().unwrap();
        assert!(used > 0 && used < server["public"]["capacity_bytes"].as_u64().unwrap());
        assert!(server["appliers"][0]["frames"].as_u64().unwrap() > 0);
        let sessions = server["sessions"].as_array().unwrap();
        let pairs: Vec<_> = sessions
            .iter()
            .map(|s| s["rank"].as_u64().unwrap())
            .collect();
        assert_eq!(pairs, [0, 1]);
        for session in sessions {
            assert_eq!(session["carrier"], "tcp");
            assert_eq!(session["reason"], "it was asked for");
            assert_eq!(session["connected"], true);
        }
    }
    for page in [status(&service, &["--prometheus"]), scraped(&service)] {
        let samples = parse(&page);
        let awaited = &samples["tidewater_worker_awaited"];
        assert_eq!((awaited.len(), awaited[0].1), (1, 1.0), "{page}");
        assert_eq!(awaited[0].0["rank"], "1");
        assert_eq!(samples["tidewater_session_connected"].len(), 4);
        assert!(
            samples["tidewater_public_bytes"]
                .iter()
                .all(|(_, bytes)| *bytes > 0.0)
        );
    }
    let text = status(&service, &[]);
    assert!(text.contains("awaited: rank 1"), "{text}");
    Process::of(&job.0[1].process).signal(Signal::CONT);
    drop(job);
    service.ends();
    assert!(
        !service.job_file().exists(),
        "the file is removed at the end"
    );
}

/// A status lists observers with their role, and every server stays in its cluster. A server that refuses the ranks of
/// observers in its own answer loses the connection to its coordinator.
#[test]
fn observers_are_listed_and_nothing_ends() {
    let mut service = Service::published(&["--metrics", "127.0.0.1:0"]);
    let options = JoinOptions {
        job_file: Some(service.job_file().to_owned()),
        namespace: Some("watched".into()),
        workers: Some(1),
        rank: Some(0),
        ..Default::default()
    };
    let job = options.join_from_vars([]).unwrap().into_job().unwrap();
    let mut worker = job.client(SyncMode::Bsp).unwrap();
    worker.set_timeout(LIMIT);
    let spec = TableBuilder::sparse::<i64>("t", 1);
    let table = worker.create_table::<i64>(spec.spec()).unwrap();
    let observers = [(); 2].map(|()| job.observer().unwrap());
    let report = json(&service);
    let servers = report["servers"].as_array().unwrap();
    assert_eq!(servers.len(), 2);
    for server in servers {
        assert_eq!(server["error"], Value::Null, "{report:#}");
        let sessions = server["sessions"].as_array().unwrap();
        let of = |role: &str| -> Vec<u64> {
            let mine = sessions.iter().filter(|session| session["role"] == role);
            mine.map(|session| session["rank"].as_u64().unwrap())
                .collect()
        };
        assert_eq!((of("worker"), of("observer")), (vec![0], vec![0, 1]));
    }
    let samples = parse(&scraped(&service));
    assert_eq!(samples["tidewater_session_connected"].len(), 6);
    let text = status(&service, &[]);
    assert!(text.contains("\"watched\" observer 1 by"), "{text}");
    let pushed = worker.push_rows(&table, &[1], &[5], PushOp::Sum).unwrap();
    worker.wait_applied(&pushed).unwrap();
    for mut observer in observers {
        observer.finish().unwrap();
    }
    worker.finish().unwrap();
    service.ends();
}

/// A file of a coordinator that has ended, or was replaced at its address, is an error that names the
/// file's coordinator and what is there instead.
#[test]
fn stale_job_file_names_both_coordinators() {
    let service = Service::published(&[]);
    let good = fs::read_to_string(service.job_file()).unwrap();
    let field = |name: &str| {
        let line = good.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_once(' ').unwrap().1.to_owned()
    };
    let file = service.folder.path().join("stale.job");
    fs::copy(service.job_file(), &file).unwrap();
    let says = |from: &str, to: &str, what: &str| {
        fs::write(&file, good.replace(from, to)).unwrap();
        let options = JoinOptions {
            job_file: Some(file.clone()),
            workers: Some(1),
            rank: Some(0),
            ..Default::default()
        };
        let job = options.join_from_vars([]).unwrap().into_job().unwrap();
        let error = job.client(SyncMode::Bsp).unwrap_err();
        assert!(
            matches!(error, tidewater::ClientError::JobFile(_)),
            "{error:?}"
        );
        let path = file.to_str().unwrap();
        let done = output(
            &tidewater(),
            &["server", "--number", "0", "--job-file", path],
        );
        let said = String::from_utf8(done.stderr).unwrap();
        assert_eq!(done.status.code(), Some(4), "{said}");
        for text in [error.to_string(), said] {
            let pid = format!("pid {}", service.process.id());
            for part in ["stale", path, pid.as_str(), what] {
                assert!(text.contains(part), "{part}: {text}");
            }
        }
    };
    let cluster = field("cluster");
    says(&cluster, "00000000000000ff", "runs there");
    says(&field("token"), &"0".repeat(64), "another token");
    // A port that was free a moment ago.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let free = listener.local_addr().unwrap().to_string();
    drop(listener);
    says(&field("coordinator"), &free, "no process listens");
}
