use tidewater_protocol::ids::{ApplierId, DomainId, Incarnation, ServerId, WorkerId};
use tidewater_protocol::wire::control::{
    ApplierStatus, ClockStatus, Endpoints, QueueCounters, SessionStatus, WorkerMember,
};

use super::*;

fn member(number: u32) -> ServerMember {
    ServerMember {
        id: ServerId(number),
        incarnation: Incarnation(1),
        host: "node7".into(),
        host_id: "boot".into(),
        endpoints: Endpoints {
            tcp: "node7:4000".into(),
            unix: String::new(),
        },
        appliers: 1,
    }
}

fn clock(worker: u32, clock: u64) -> ClockStatus {
    ClockStatus {
        namespace: "a".into(),
        domain: DomainId(2),
        worker: WorkerId(worker),
        thread: 0,
        clock,
    }
}

fn status(clocks: Vec<ClockStatus>) -> ServerStatus {
    ServerStatus {
        public_bytes: 7,
        public_capacity: 9,
        appliers: vec![ApplierStatus {
            applier: ApplierId(0),
            answered: true,
            frames: 5,
            held_bytes: 300,
            saves: 1,
            late_frames: 4,
        }],
        sessions: vec![SessionStatus {
            namespace: "a".into(),
            worker: WorkerId(1),
            thread: 0,
            transport: Transport::Tcp,
            reason: "asked \"so\"".into(),
            connected: true,
            cuts: 1,
            recoveries: 2,
            refused: 3,
        }],
        clocks,
        ..ServerStatus::default()
    }
}

fn queue() -> QueueSummary {
    QueueSummary {
        name: "train".into(),
        counters: QueueCounters {
            tasks: 1,
            epochs: 2,
            finished: 3,
            records: 4,
            given: 5,
            open: 6,
            recovered: 7,
            timeouts: 8,
            stragglers: 9,
            failures: 10,
            late: 11,
            left_out: 12,
        },
        is_over: false,
    }
}

fn cluster() -> ClusterStatus {
    ClusterStatus {
        version: "1".into(),
        servers_expected: 3,
        jobs: vec![JobStatus {
            namespace: "a".into(),
            workers_expected: 3,
            workers: vec![WorkerMember {
                id: WorkerId(1),
                state: WorkerState::Lost,
            }],
            saving: "/m".into(),
            queues: vec![queue()],
            ..JobStatus::default()
        }],
        ..ClusterStatus::default()
    }
}

/// A tick counts when all servers have consumed it; the slowest ranks are awaited, if any is ahead.
#[test]
fn awaited_ranks_are_the_slowest_of_all_servers() {
    let first = status(vec![clock(0, 5), clock(1, 5), clock(2, 6)]);
    let second = status(vec![clock(0, 4), clock(1, 5), clock(2, 6)]);
    let servers = vec![(member(0), Ok(first)), (member(1), Ok(second))];
    let report = Report::new("c:1", &cluster(), servers);
    let domain = &report.jobs[0].domains[0];
    assert_eq!((domain.domain, domain.tick, domain.front), (2, 4, 6));
    assert_eq!(domain.awaited, [0]);
    let level = vec![(member(0), Ok(status(vec![clock(0, 5), clock(1, 5)])))];
    let report = Report::new("c:1", &cluster(), level);
    assert_eq!(report.jobs[0].domains[0].awaited, [0; 0], "none is ahead");
}

/// A server that is no member has a row with the reason.
#[test]
fn absent_servers_are_named() {
    let away = AbsentServer {
        server: ServerId(2),
        host: "node9".into(),
        why: "it has not joined".into(),
    };
    let report = Report::new("c:1", &cluster(), vec![absent(&away)]);
    let row = &report.servers[0];
    assert_eq!((row.server, row.host.as_str()), (2, "node9"));
    assert_eq!(row.error.as_deref(), Some("absent: it has not joined"));
    let line = "tidewater_server_up{server=\"2\",host=\"node9\",version=\"\"} 0";
    let page = report.prometheus();
    assert!(page.lines().any(|found| found == line), "{page}");
}

#[test]
fn text_page_has_every_sample_under_its_metric() {
    let servers = vec![
        (member(0), Ok(status(vec![clock(0, 4), clock(1, 6)]))),
        (member(1), Err("no time left".to_owned())),
    ];
    let page = Report::new("c:1", &cluster(), servers).prometheus();
    let queues = [
        ("tasks", 1),
        ("epochs_total", 2),
        ("finished_total", 3),
        ("records_total", 4),
        ("given_total", 5),
        ("open", 6),
        ("recovered_total", 7),
        ("timeouts_total", 8),
        ("stragglers_total", 9),
        ("failures_total", 10),
        ("late_total", 11),
        ("left_out", 12),
    ];
    for (metric, value) in queues {
        let line = format!("tidewater_queue_{metric}{{namespace=\"a\",queue=\"train\"}} {value}");
        assert!(page.lines().any(|found| found == line), "{line}:\n{page}");
    }
    for line in [
        "tidewater_up{version=\"1\"} 1",
        "tidewater_server_up{server=\"1\",host=\"node7\",version=\"\"} 0",
        "tidewater_worker_awaited{namespace=\"a\",domain=\"2\",rank=\"0\"} 1",
        "tidewater_worker_state{namespace=\"a\",rank=\"1\",state=\"lost\"} 1",
        "tidewater_job_saving{namespace=\"a\"} 1",
        "tidewater_public_bytes{server=\"0\"} 7",
        "tidewater_applier_held_bytes{server=\"0\",applier=\"0\"} 300",
        "tidewater_applier_late_frames_total{server=\"0\",applier=\"0\"} 4",
    ] {
        assert!(page.lines().any(|found| found == line), "{line}:\n{page}");
    }
    assert!(
        !page.contains("tidewater_public_bytes{server=\"1\"}"),
        "{page}"
    );
    let mut metric = "";
    for line in page.lines() {
        match line.strip_prefix("# TYPE ") {
            Some(kind) => metric = kind.split(' ').next().unwrap(),
            None if line.starts_with('#') => {}
            None => assert_eq!(line.split(['{', ' ']).next(), Some(metric), "{line}"),
        }
    }
}

#[test]
fn page_is_refused_off_loopback_and_ends_with_its_owner() {
    let read = || Ok::<_, String>(Report::of_server(member(0), status(Vec::new())));
    let open = MetricsPage::serve("0.0.0.0:0".parse().unwrap(), read);
    assert!(
        matches!(open, Err(MetricsError::NotLoopback { .. })),
        "{open:?}"
    );
    let page = MetricsPage::serve("127.0.0.1:0".parse().unwrap(), read).unwrap();
    let get = |line: &str| -> String {
        use std::io::{Read as _, Write as _};
        let mut stream = std::net::TcpStream::connect(page.address()).unwrap();
        stream
            .write_all(format!("{line}\r\n\r\n").as_bytes())
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    assert!(get("GET /metrics HTTP/1.1").contains("tidewater_public_bytes"));
    assert!(get("GET / HTTP/1.1").starts_with("HTTP/1.1 404"));
    assert!(get("POST /metrics HTTP/1.1").starts_with("HTTP/1.1 405"));
    let address = page.address();
    drop(page);
    assert!(std::net::TcpStream::connect(address).is_err());
}
