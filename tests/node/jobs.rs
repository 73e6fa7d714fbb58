//! Two jobs on one server: equal ranks and table names, but no shared state.

use std::time::Duration;

use tidewater::connect::{ConnectConfig, NetServerLink};
use tidewater::link::{OpenLane, ServerLink as _};
use tidewater::{Client, ClientError, PullOptions, SyncMode, Table, TableBuilder};
use tidewater_engine::apply::engine::Engine;
use tidewater_lanes::fabric::{INBOX_KEY, RemoteAddr};
use tidewater_launch::TransportChoice;
use tidewater_protocol::ids::{ApplierId, DomainId, TableId, WorkerId};
use tidewater_protocol::layout::frame::{
    FrameFlags, FrameHeader, FrameKind, PARTITION_ANY, RowsPayload,
};
use tidewater_protocol::layout::line_bytes;
use tidewater_protocol::layout::lines::{CheckedU64, Reject, RejectCode, StateLine};
use tidewater_protocol::layout::session::{
    INBOX_RING_AT, INBOX_TAIL_AT, MAILBOX_STATE_AT, mailbox_reject_at,
};
use tidewater_protocol::table::{DType, PushOp, Reduce};
use tidewater_protocol::wire::refusal::RefusalCode;
use tidewater_service::server::ServerConfig;

use tidewater_testkit::sockets::{BOTH, CLUSTER, Rig, config, token, wait};

const D: DomainId = DomainId(0);

/// A server open to any job, with one applier.
fn service() -> Rig {
    let (workers, appliers) = (0, 1);
    Rig::with(ServerConfig {
        workers,
        appliers,
        ..config()
    })
}

fn of_job(job: &str, rank: u32, workers: u32, transport: TransportChoice) -> ConnectConfig {
    let mut config = ConnectConfig::new(token(), CLUSTER, rank);
    (config.namespace, config.workers) = (job.into(), workers);
    config.transport = transport;
    config
}

/// Connects a worker of a job with two workers.
fn worker(rig: &Rig, job: &str, rank: u32, transport: TransportChoice) -> Client {
    let config = of_job(job, rank, 2, transport);
    let client = rig.client_with(&rig.member(), &config, SyncMode::Bsp);
    let mut client = client.unwrap();
    client.set_clock_timeout(Duration::from_millis(150));
    client
}

fn pull(client: &mut Client, table: &Table<i64>) -> Result<i64, ClientError> {
    let mut out = [0];
    client.pull_rows(table, &[7], &mut out, PullOptions::default())?;
    Ok(out[0])
}

fn add(client: &mut Client, table: &Table<i64>, value: i64) {
    let ticket = client.push_rows(table, &[7], &[value], PushOp::Sum);
    client.wait_applied(&ticket.unwrap()).unwrap();
}

/// Minimum clock of a job, and its counted workers with their clocks.
fn clocks(rig: &Rig, job: &str) -> (u64, Vec<(u32, u64)>) {
    let job = rig.handle().namespace(job).unwrap();
    let look = move |e: &mut Engine| {
        let clocks = e.clocks(job);
        let live = clocks.live(D).map(|(t, c)| (t.rank.0, c)).collect();
        (clocks.line(D).min, live)
    };
    rig.handle().with_engine(ApplierId(0), look).unwrap()
}

#[test]
fn each_job_sees_its_own_table_of_the_same_name() {
    let rig = service();
    for transport in *BOTH {
        let (a, b) = (format!("a-{transport:?}"), format!("b-{transport:?}"));
        let spec = TableBuilder::sparse::<i64>("w", 1);
        let mut clients = [a, b].map(|job| {
            let mut client = worker(&rig, &job, 0, transport);
            let table = client.create_table::<i64>(spec.spec()).unwrap();
            (client, table)
        });
        for (n, (client, table)) in (1..).zip(&mut clients) {
            add(client, table, n);
        }
        let seen = clients.each_mut().map(|(c, t)| pull(c, t).unwrap());
        assert_eq!(seen, [1, 2], "{transport:?}");
    }
}

/// The payload of a push of one row.
fn row(key: u64, value: u64) -> Vec<u64> {
    let parts = RowsPayload::new(1, 8, false);
    let mut words = vec![0; parts.len / 8];
    (words[0], words[parts.values_at / 8]) = (key, value);
    words
}

/// A lane with handwritten frames.
struct Raw {
    link: NetServerLink,
    lane: OpenLane,
    seq: u64,
    tail: u64,
}

impl Raw {
    fn new(rig: &Rig, config: &ConnectConfig) -> Self {
        let (link, mut lanes) = rig.link(config).unwrap();
        let (lane, seq, tail) = (lanes.remove(0), 0, 0);
        Self {
            link,
            lane,
            seq,
            tail,
        }
    }

    /// Sends a frame of one element or row; returns its rejection, or `None` if it is applied.
    fn frame(&mut self, kind: FrameKind, table: TableId, words: &[u64]) -> Option<RejectCode> {
        self.seq += 1;
        let push = matches!(kind, FrameKind::PushRows | FrameKind::PushDense);
        let mut header = FrameHeader {
            kind,
            flags: FrameFlags {
                op: push.then_some(PushOp::Sum),
                dtype: push.then_some(DType::I64),
                create: !push,
                ..FrameFlags::default()
            },
            seq: self.seq,
            session: self.link.session().0,
            payload_len: words.len() as u32 * 8,
            count: 1,
            table: table.0,
            partition: PARTITION_ANY,
            clock: 0,
            user_tag: 0,
            checksum: 0,
        };
        let payload: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        // Checked on verbs only.
        header.checksum = header.hasher().finish_bytes(&payload);
        let mut bytes = line_bytes(&header.to_line()).to_vec();
        bytes.extend(payload);
        bytes.resize(bytes.len().next_multiple_of(64), 0);
        self.send(&bytes);
        let salt = self.link.session().0;
        let (lane, seq, mut rejected) = (&mut self.lane.lane, self.seq, 0);
        let consumed = || {
            lane.poll().unwrap();
            let line = lane.mailbox().line(MAILBOX_STATE_AT);
            StateLine::from_line(&line, salt).is_some_and(|state| {
                rejected = state.rejected;
                state.applied_seq == seq
            })
        };
        wait(consumed, "the server does not take the frame");
        let line = lane.mailbox().line(mailbox_reject_at(seq));
        let reject = Reject::from_line(&line, salt).filter(|reject| reject.seq == seq);
        assert!(rejected > 0 || reject.is_none());
        reject.map(|reject| reject.code())
    }

    fn send(&mut self, bytes: &[u8]) {
        let to = |at: usize| RemoteAddr {
            key: INBOX_KEY,
            addr: at as u64,
        };
        let lane = &mut self.lane.lane;
        lane.write(to(INBOX_RING_AT + self.tail as usize), bytes)
            .unwrap();
        self.tail += bytes.len() as u64;
        let cell = CheckedU64::new(self.tail, self.link.session().0).0;
        let cell: Vec<u8> = cell.iter().flat_map(|w| w.to_le_bytes()).collect();
        lane.write_signal(to(INBOX_TAIL_AT), &cell).unwrap();
    }
}

#[test]
fn a_guessed_table_of_another_job_is_refused_like_an_unknown_one() {
    let rig = service();
    for (n, transport) in (1..).zip(*BOTH) {
        let mut owner = worker(&rig, "a", n, transport);
        let names = ["rows", "range", "gone"].map(|name| format!("{name}{n}"));
        let rows = TableBuilder::sparse::<i64>(&names[0], 1);
        let rows = owner.create_table::<i64>(rows.spec()).unwrap();
        let range = TableBuilder::range::<i64>(&names[1], 4, 1);
        let range = owner.create_table::<i64>(range.spec()).unwrap();
        let gone = TableBuilder::sparse::<i64>(&names[2], 1);
        let gone = owner.create_table::<i64>(gone.spec()).unwrap();
        let id = gone.id();
        owner.release_table(gone).unwrap();
        add(&mut owner, &rows, 5);
        let frames: [(FrameKind, TableId, &[u64]); 6] = [
            (FrameKind::PushRows, rows.id(), &row(7, 3)),
            (FrameKind::PushRows, rows.id(), &row(8, 3)),
            (FrameKind::PushDense, range.id(), &[2, 3]),
            (FrameKind::Gather, rows.id(), &[8]),
            (FrameKind::Gather, range.id(), &[2]),
            (FrameKind::Resolve, rows.id(), &[8]),
        ];
        let mut stranger = Raw::new(&rig, &of_job("b", n, 2, transport));
        for (kind, table, words) in frames {
            let said = stranger.frame(kind, table, words);
            let unknown = stranger.frame(kind, TableId(999), words);
            assert_eq!(said, Some(RejectCode::UnknownTable), "{kind:?}");
            assert_eq!(said, unknown);
        }
        // The reply does not reveal to another job that the row existed.
        let said = stranger.frame(FrameKind::PushRows, id, &row(7, 3));
        assert_eq!(said, Some(RejectCode::UnknownTable));
        // Nothing has changed, no row was made.
        assert_eq!(pull(&mut owner, &rows).unwrap(), 5);
        let mut all = [1; 4];
        let options = PullOptions::default();
        owner.pull_range(&range, 0, &mut all, options).unwrap();
        assert_eq!(all, [0; 4]);
        let id_of_rows = rows.id();
        let made = move |e: &mut Engine| e.table(id_of_rows).unwrap().place(8).is_some();
        assert!(!rig.handle().with_engine(ApplierId(0), made).unwrap());
        // The same frames are valid from the job itself.
        let mut own = Raw::new(&rig, &{
            let mut config = of_job("a", n, 2, transport);
            config.thread = 1;
            config
        });
        for (kind, table, words) in frames {
            assert_eq!(own.frame(kind, table, words), None, "{kind:?}");
        }
        let said = own.frame(FrameKind::PushRows, id, &row(7, 3));
        assert_eq!(said, Some(RejectCode::TableReleased));
        assert_eq!(pull(&mut owner, &rows).unwrap(), 8);
        assert!(rig.handle().with_engine(ApplierId(0), made).unwrap());
    }
}

#[test]
fn clocks_of_two_jobs_tick_apart() {
    let spec = TableBuilder::sparse::<i64>("w", 1).at_clock(Reduce::Sum);
    for transport in *BOTH {
        let rig = service();
        let [mut a0, mut b0] = ["a", "b"].map(|job| worker(&rig, job, 0, transport));
        let at = a0.create_table::<i64>(spec.spec()).unwrap();
        let bt = b0.create_table::<i64>(spec.spec()).unwrap();
        // Each job waits for its worker 1, although neither has joined.
        add(&mut a0, &at, 10);
        a0.tick().unwrap();
        b0.tick().unwrap();
        let error = b0.tick().unwrap_err().to_string();
        assert!(error.contains("worker 1"), "{error}");
        let [mut a1, mut b1] = ["a", "b"].map(|job| worker(&rig, job, 1, transport));
        let bt1 = b1.open_table::<i64>("w").unwrap();
        b1.tick().unwrap();
        for (client, table, value) in [(&mut b0, &bt, 1), (&mut b1, &bt1, 2)] {
            add(client, table, value);
            client.tick().unwrap();
        }
        // Job a has neither held b back nor been released by it.
        assert_eq!(pull(&mut b0, &bt).unwrap(), 3);
        assert_eq!(clocks(&rig, "b"), (2, vec![(0, 2), (1, 2)]));
        assert_eq!(clocks(&rig, "a"), (0, vec![(0, 1), (1, 0)]));
        let error = pull(&mut a0, &at).unwrap_err().to_string();
        assert!(error.contains("worker 1, at clock 0"), "{error}");
        // The pushes that job a holds take effect at a's tick.
        let at1 = a1.open_table::<i64>("w").unwrap();
        assert_eq!(pull(&mut a1, &at1).unwrap(), 0);
        a1.tick().unwrap();
        assert_eq!(pull(&mut a0, &at).unwrap(), 10);
        assert_eq!(pull(&mut a1, &at1).unwrap(), 10);
        assert_eq!(clocks(&rig, "b").0, 2);
    }
}

#[test]
fn a_worker_that_is_gone_is_gone_from_its_job_only() {
    for transport in *BOTH {
        let rig = service();
        let mut all = [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
            .map(|(job, rank)| worker(&rig, job, rank, transport));
        all[1].tick().unwrap();
        all[3].tick().unwrap();
        rig.handle().remove_worker("a", WorkerId(0)).unwrap();
        for _ in 0..3 {
            all[1].tick().unwrap();
        }
        let error = all[3].tick().unwrap_err().to_string();
        assert!(error.contains("worker 0, at clock 0"), "{error}");
        all[2].tick().unwrap();
        all[3].tick().unwrap();
        wait(
            || clocks(&rig, "b") == (1, vec![(0, 1), (1, 2)]),
            "b's ticks do not arrive",
        );
        wait(
            || clocks(&rig, "a") == (4, vec![(1, 4)]),
            "a's ticks do not arrive",
        );
    }
}

/// The number of the job's workers is unknown. A worker that joins after the first tick is no member of
/// the domain. Under BSP its tick is refused with the remedy; under ASP it may only push and pull.
#[test]
fn a_latecomer_is_refused_with_the_remedy() {
    for transport in *BOTH {
        let rig = service();
        let open = |rank| {
            let config = of_job("a", rank, 0, transport);
            rig.client_with(&rig.member(), &config, SyncMode::Bsp)
                .unwrap()
        };
        let mut first = open(0);
        first.tick().unwrap();
        wait(|| clocks(&rig, "a").0 == 1, "the tick does not arrive");
        let mut late = open(1);
        for _ in 0..2 {
            let refused = late.tick();
            let Err(ClientError::Environment(cause)) = refused else {
                panic!("{transport:?}: {refused:?}");
            };
            let text = cause.to_string();
            assert!(
                text.contains("worker 1 is no member of clock domain 0"),
                "{text}"
            );
            assert!(text.contains("TIDEWATER_WORKERS=N"), "{text}");
        }
        assert_eq!(late.clock(), 0);
        first.tick().unwrap();
        assert_eq!(first.clock(), 2);
    }
}

#[test]
fn the_first_session_says_how_many_workers_a_job_has_and_the_end_forgets_it() {
    let rig = service();
    let mut client = worker(&rig, "a", 0, BOTH[0]);
    match rig.link(&of_job("a", 1, 3, BOTH[1])).err() {
        Some(ClientError::Refused(no)) => {
            assert_eq!(no.code, RefusalCode::BadRequest);
            assert!(no.text.contains("2 workers, not 3"), "{no}");
        }
        other => panic!("{other:?}"),
    }
    // A client that does not know the number is accepted.
    rig.link(&of_job("a", 1, 0, BOTH[1])).unwrap();
    assert_eq!(clocks(&rig, "a"), (0, vec![(0, 0), (1, 0)]));
    client.tick().unwrap();

    let handle = rig.handle();
    let spec = TableBuilder::sparse::<i64>("w", 1);
    let table = client.create_table::<i64>(spec.spec()).unwrap();
    let before = handle.namespace("a").unwrap();
    handle.end_job("a").unwrap();
    assert_eq!(handle.namespace("a"), Some(before), "it has a table");
    client.release_table(table).unwrap();
    handle.end_job("a").unwrap();
    assert_eq!(handle.namespace("a"), None);
    drop(client);
    rig.wait_for_sessions(0);
    // The next job of the same name has other workers, and its own clocks.
    let mut config = of_job("a", 0, 1, BOTH[0]);
    config.thread = 0;
    let mut next = rig.client_at(&rig.member(), &config).unwrap();
    assert_ne!(handle.namespace("a"), Some(before));
    next.tick().unwrap();
    next.tick().unwrap();
    wait(
        || clocks(&rig, "a") == (2, vec![(0, 2)]),
        "ticks do not arrive",
    );
}
