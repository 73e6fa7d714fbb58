//! Reports of tasks that got no answer before a deadline, and are repeated.

use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, ThreadId};
use std::time::Duration;

use tidewater::functions::{ElementsMut, Function, FunctionError, Functions, Piece};
use tidewater::{
    Client, ClientError, ClusterConfig, FunctionArgs, PullOptions, SyncMode, Table, TableBuilder,
    TaskRequest, TransportChoice,
};
use tidewater_protocol::ids::DomainId;
use tidewater_protocol::table::PushOp;
use tidewater_service::server::ServerFunctions;
use tidewater_tasks::{Delivery, QueueOptions, TaskError, Tasks};

use super::joined;

const ROWS: u64 = 64;

#[derive(Debug, Default)]
struct Held {
    /// Applier and first row of each piece.
    pieces: Vec<(ThreadId, u64)>,
    /// Row of the piece in which its applier waits.
    closed: Option<u64>,
    is_reached: bool,
}

/// A function that holds the applier of one row.
#[derive(Clone, Default)]
struct Hold(Arc<(Mutex<Held>, Condvar)>);

impl Function for Hold {
    fn update(&self, _: &[u8], piece: &Piece<'_>, _: ElementsMut<'_>) -> Result<(), FunctionError> {
        let (held, changed) = &*self.0;
        let mut held = held.lock().unwrap();
        let first = piece.keys[0];
        held.pieces.push((thread::current().id(), first));
        if held.closed == Some(first) {
            held.is_reached = true;
            changed.notify_all();
            drop(changed.wait_while(held, |held| held.closed.is_some()));
        }
        Ok(())
    }
}

impl Hold {
    fn call(client: &mut Client, table: &Table<f64>) -> tidewater::Ticket {
        let args = FunctionArgs::default();
        client.call_update(table, "hold", &[], &args).unwrap()
    }

    /// First rows of two pieces with different appliers.
    fn rows(&self, client: &mut Client, table: &Table<f64>) -> [u64; 2] {
        let ticket = Self::call(client, table);
        client.wait_applied(&ticket).unwrap();
        let held = self.0.0.lock().unwrap();
        let (applier, first) = held.pieces[0];
        let mut others = held.pieces.iter();
        let (_, other) = others.find(|(thread, _)| *thread != applier).unwrap();
        [first, *other]
    }

    /// Returns when the applier of this piece waits, and the ticket of the call.
    fn close(&self, client: &mut Client, table: &Table<f64>, first: u64) -> tidewater::Ticket {
        let (held, changed) = &*self.0;
        let mut state = held.lock().unwrap();
        (state.closed, state.is_reached) = (Some(first), false);
        drop(state);
        let ticket = Self::call(client, table);
        let state = held.lock().unwrap();
        drop(changed.wait_while(state, |held| !held.is_reached).unwrap());
        ticket
    }

    fn open(&self) {
        self.0.0.lock().unwrap().closed = None;
        self.0.1.notify_all();
    }
}

/// Servers apply a task for longer than its worker waits. The repeated report gets the answer of the first one, by
/// itself or by [`Tasks::next`], and the pushes of each task count once.
#[test]
fn repeated_report_counts_once() {
    let hold = Hold::default();
    let job = joined(ClusterConfig {
        servers: 2,
        workers: 2,
        transport: TransportChoice::Shm,
        functions: ServerFunctions {
            all: Functions::default().with("hold", hold.clone()),
            ..ServerFunctions::default()
        },
        ..ClusterConfig::default()
    });
    let [mut client, mut other] = [0, 1].map(|rank| job.client_of(rank, SyncMode::Asp).unwrap());
    let spec = TableBuilder::rows::<f64>("t", ROWS, 1).partitions(8);
    let table = client.create_table::<f64>(spec.spec()).unwrap();
    let of_other = other.open_table::<f64>("t").unwrap();
    let [pushed, held] = hold.rows(&mut other, &of_other);
    let options = QueueOptions::new("records", 1).answer_timeout(Duration::from_secs(2));
    let mut tasks = Tasks::count(&mut client, 2, &options).unwrap();
    for repeats in [true, false] {
        let task = tasks.next(&mut client).unwrap().unwrap();
        let delivery = client.open_task().unwrap();
        drop(
            client
                .push_rows(&table, &[pushed], &[1.0], PushOp::Sum)
                .unwrap(),
        );
        let ticket = hold.close(&mut other, &of_other, held);
        let error = tasks.done(&mut client, task, 1).unwrap_err();
        let is_late = matches!(error, TaskError::Client(ClientError::Deadline { .. }));
        assert!(is_late, "{error}");
        hold.open();
        other.wait_applied(&ticket).unwrap();
        if repeats {
            assert_eq!(tasks.repeat_report(&mut client).unwrap(), Some(true));
            assert_eq!(tasks.repeat_report(&mut client).unwrap(), None);
            let report = TaskRequest::Done {
                queue: 0,
                delivery,
                thread: client.thread(),
                records: 1,
                pushed: true,
            };
            let answer = client.request_task(report, super::LONG).unwrap();
            assert_eq!(answer, tidewater::TaskAnswer::Reported { counted: true });
        }
    }
    assert!(tasks.next(&mut client).unwrap().is_none());
    let counters = tasks.status(&mut client).unwrap().counters;
    assert_eq!((counters.finished, counters.records), (2, 2));
    assert_eq!((counters.late, counters.failures), (0, 0));
    let mut sum = [0.0];
    let options = PullOptions::default();
    client
        .pull_rows(&table, &[pushed], &mut sum, options)
        .unwrap();
    assert_eq!(sum, [2.0]);
    client.finish().unwrap();
    other.finish().unwrap();
}

/// A tick next to a report meets its deadline, since another worker is behind. With exactly-once delivery the task
/// counts before the tick, otherwise behind it. The repeated call completes what is left, and nothing twice.
#[test]
fn ticks_next_to_reports_are_completed() {
    const SHORT: Duration = Duration::from_millis(200);
    for is_exact in [true, false] {
        let job = joined(ClusterConfig {
            workers: 2,
            ..ClusterConfig::default()
        });
        let [mut client, mut other] =
            [0, 1].map(|rank| job.client_of(rank, SyncMode::Bsp).unwrap());
        client.tick().unwrap();
        let options = QueueOptions::new("records", 1).ticking(DomainId(0));
        let options = match is_exact {
            true => options,
            false => options.delivery(Delivery::AtLeastOnce),
        };
        let mut tasks = Tasks::count(&mut client, 2, &options).unwrap();
        let is_late =
            |error: &TaskError| matches!(error, TaskError::Client(ClientError::Deadline { .. }));
        let task = tasks.next(&mut client).unwrap().unwrap();
        client.set_clock_timeout(SHORT);
        let error = tasks.done(&mut client, task, 1).unwrap_err();
        assert!(is_late(&error), "{error}");
        let finished = tasks.status(&mut client).unwrap().counters.finished;
        assert_eq!(finished, u64::from(is_exact));
        let error = tasks.repeat_report(&mut client).unwrap_err();
        assert!(is_late(&error), "{error}");
        other.tick().unwrap();
        client.set_clock_timeout(super::LONG);
        assert_eq!(tasks.repeat_report(&mut client).unwrap(), Some(true));
        assert_eq!(tasks.repeat_report(&mut client).unwrap(), None);
        assert_eq!(client.clock(), 2);

        let task = tasks.next(&mut client).unwrap().unwrap();
        client.set_clock_timeout(SHORT);
        let error = tasks.failed(&mut client, task, "by the test").unwrap_err();
        assert!(is_late(&error), "{error}");
        other.tick().unwrap();
        client.set_clock_timeout(super::LONG);
        assert!(tasks.fail_current(&mut client, "again").unwrap());
        assert!(!tasks.fail_current(&mut client, "again").unwrap());
        assert_eq!(client.clock(), 3);

        let counters = tasks.status(&mut client).unwrap().counters;
        assert_eq!((counters.finished, counters.failures), (1, 1));
        assert_eq!((counters.late, counters.records), (0, 1));
    }
}
