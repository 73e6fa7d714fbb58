//! Orders and members without a coordinator.

use std::cell::Cell;
use std::net::{Ipv4Addr, TcpListener};

use crossbeam_channel::{Receiver, Sender, bounded};
use tidewater_protocol::ids::{Incarnation, WorkerThread};
use tidewater_protocol::placement::Placement;
use tidewater_protocol::table::{
    Apply, DType, Durability, GradientOptions, Init, KeyOptions, Optimizer, Reduce, Shape,
    TableSpec,
};
use tidewater_protocol::wire::control::{
    DomainClock, Endpoints, Members, ServerStatus, ThreadClock, WorkerMember, WorkerState,
};
use tidewater_protocol::wire::hello::RANDOM_BYTES;

use super::orders::take_ended;
use super::*;
use tidewater_checkpoint::Appliers;

/// A server without tables, with a report that waits for a word of the test.
struct SlowReport {
    go: Receiver<()>,
    removed: Sender<WorkerId>,
    /// Orders to admit a worker.
    admitted: Cell<u32>,
    /// Orders that only let clocks advance.
    released: Cell<u32>,
}

impl Orders for SlowReport {
    fn appliers(&self) -> Box<dyn Appliers + Send> {
        unreachable!("no order of the tests reads files")
    }

    fn create_table(&self, _: &str, _: &TableInfo) -> Result<(), Refusal> {
        Ok(())
    }

    fn adopt_table(&self, _: &str, _: &TableInfo) -> Result<(), Refusal> {
        Ok(())
    }

    fn release_table(&self, _: TableId) -> Result<(), Refusal> {
        Ok(())
    }

    fn load_function(&self, _: &str, _: &str, _: &[u8]) -> Result<(), Refusal> {
        Ok(())
    }

    fn remove_worker(&self, _: &str, worker: WorkerId) -> Result<(), Refusal> {
        self.removed.send(worker).unwrap();
        Ok(())
    }

    fn finish_task(&self, _: &str, _: WorkerThread, _: u64) -> Result<(), Refusal> {
        unreachable!("no order of the tests finishes a task")
    }

    fn lose_worker(&self, _: &str, _: WorkerId) -> Result<Vec<ThreadClock>, Refusal> {
        unreachable!("no worker of the tests is lost")
    }

    fn end_worker(&self, _: &str, _: WorkerId, _: &[ThreadClock]) -> Result<(), Refusal> {
        unreachable!("no worker of the tests is lost")
    }

    fn read_clocks(&self, _: &str) -> Result<Vec<DomainClock>, Refusal> {
        unreachable!("no order of the tests reads clocks")
    }

    fn hold_clocks(&self, _: &str) -> Result<Vec<DomainClock>, Refusal> {
        Ok(Vec::new())
    }

    fn admit(
        &self,
        _: &str,
        admitted: Option<(WorkerId, Vec<DomainClock>)>,
    ) -> Result<(), Refusal> {
        let count = match admitted {
            Some(_) => &self.admitted,
            None => &self.released,
        };
        count.set(count.get() + 1);
        Ok(())
    }

    fn end_job(&self, _: &str) -> Result<(), Refusal> {
        Ok(())
    }

    fn failure(&self) -> Option<&str> {
        None
    }

    fn failure_descriptor(&self) -> BorrowedFd<'_> {
        unreachable!("the tests wait for no failure")
    }

    fn set_epoch(&self, _: u64) {}

    fn reporter(&self) -> Box<dyn FnOnce() -> ServerStatus + Send> {
        let go = self.go.clone();
        Box::new(move || {
            go.recv().unwrap();
            ServerStatus::default()
        })
    }
}

fn slow_report(go: Receiver<()>, removed: Sender<WorkerId>) -> SlowReport {
    SlowReport {
        go,
        removed,
        admitted: Cell::new(0),
        released: Cell::new(0),
    }
}

fn enlisted() -> Enlisted {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    Enlisted {
        address: "here".into(),
        return_address: None,
        admitted: BTreeSet::new(),
        stream: TcpStream::connect(listener.local_addr().unwrap()).unwrap(),
        peer: ControlPeer::accepted([1; RANDOM_BYTES]),
        number: ServerId(0),
        files_waker: Waker::new().unwrap(),
        tables: BTreeMap::new(),
        removed: BTreeSet::new(),
        held: BTreeSet::new(),
        adopted: BTreeSet::new(),
        admits: BTreeSet::new(),
        failed: None,
    }
}

/// Of a coordinator with a journal.
fn return_address() -> ReturnAddress {
    ReturnAddress {
        token: JobToken::new([1; 32]),
        lease: None,
        ids: Ids::default(),
        join: Join {
            host: "h".into(),
            host_id: String::new(),
            pid: 1,
            incarnation: Incarnation(1),
            endpoints: Endpoints {
                tcp: "h:1".into(),
                unix: String::new(),
            },
            appliers: 1,
            workers: 0,
            restarts: 0,
            kept: None,
            returns: false,
        },
    }
}

fn members(states: &[WorkerState]) -> Members {
    let worker = |(id, &state)| WorkerMember {
        id: WorkerId(id),
        state,
    };
    Members {
        workers: (0..).zip(states).map(worker).collect(),
        ..Members::default()
    }
}

/// Clocks that are held for a new worker go on while a report waits for a busy applier.
#[test]
fn report_holds_no_other_order() {
    let (say, go) = bounded(1);
    let (removed, _removed) = bounded(1);
    let server = slow_report(go, removed);
    let mut enlisted = enlisted();
    let mut files = ModelFiles::new(ServerId(0), enlisted.files_waker.clone());
    let mut order = |id, order| enlisted.carry_out(&server, &mut files, id, order).unwrap();
    let namespace = || "job".to_owned();
    let hold = Command::HoldClocks {
        namespace: namespace(),
    };
    assert_eq!(order(1, hold), Some(CommandReply::Clocks(Vec::new())));
    assert_eq!(order(2, Command::Status), None);
    let go_on = Command::MembersChanged {
        namespace: namespace(),
        members: members(&[WorkerState::Live]),
        admitted: Some((WorkerId(0), Vec::new())),
    };
    assert_eq!(order(3, go_on), Some(CommandReply::Done));
    assert_eq!(files.take_done(), []);
    say.send(()).unwrap();
    files.end_reports();
    let status = CommandReply::Status(Box::default());
    assert_eq!(files.take_done(), [(2, status)]);
}

/// A rank that has a second stay is removed again at the end of that one, and once.
#[test]
fn each_stay_of_a_rank_ends() {
    use WorkerState::{Expected, Finished, Live, Lost};
    let mut removed = BTreeSet::new();
    let mut ended = |state| {
        let ended = take_ended(&mut removed, "job", &members(&[Live, state]));
        ended.len()
    };
    assert_eq!([Live, Finished, Finished].map(&mut ended), [0, 1, 0]);
    assert_eq!([Expected, Finished].map(&mut ended), [0, 0]);
    assert_eq!([Live, Lost, Lost].map(&mut ended), [0, 1, 0]);
}

/// A rank is taken again at the clocks of its last worker: the order is carried out, and a repeated one is not.
#[test]
fn admission_is_carried_out_once_for_each_worker() {
    let (_say, go) = bounded(1);
    let (removed, _removed) = bounded(8);
    let server = slow_report(go, removed);
    let mut enlisted = enlisted();
    enlisted.return_address = Some(return_address());
    let mut files = ModelFiles::new(ServerId(0), enlisted.files_waker.clone());
    let namespace = || "job".to_owned();
    let mut order = |order| {
        let done = enlisted.carry_out(&server, &mut files, 1, order);
        done.unwrap();
        server.admitted.get()
    };
    let hold = || Command::HoldClocks {
        namespace: namespace(),
    };
    let admit = || Command::MembersChanged {
        namespace: namespace(),
        members: members(&[WorkerState::Live]),
        admitted: Some((WorkerId(0), Vec::new())),
    };
    assert_eq!([hold(), admit()].map(&mut order), [0, 1]);
    assert_eq!([hold(), admit()].map(&mut order), [1, 2]);
    assert_eq!(order(admit()), 2, "of a coordinator that was restarted");
}

/// Two stays of a rank in a schedule have the same clocks: the server has both. No coordinator repeats these orders.
#[test]
fn equal_stays_are_both_admitted() {
    let (_say, go) = bounded(1);
    let (removed, _removed) = bounded(1);
    let server = slow_report(go, removed);
    let mut enlisted = enlisted();
    let mut files = ModelFiles::new(ServerId(0), enlisted.files_waker.clone());
    for stay in 1..=2 {
        let clock = DomainClock {
            domain: DomainId(0),
            clock: 50,
        };
        let order = Command::MembersChanged {
            namespace: "job".to_owned(),
            members: members(&[WorkerState::Expected]),
            admitted: Some((WorkerId(0), vec![clock])),
        };
        let done = enlisted.carry_out(&server, &mut files, 1, order);
        assert_eq!(done.unwrap(), Some(CommandReply::Done));
        assert_eq!(server.admitted.get(), stay);
    }
}

/// The memory of the predecessor may have a job's clocks held, for an admission that has ended: they advance with the
/// first order about members after the table is adopted.
#[test]
fn adopted_job_clocks_are_released_once() {
    let (_say, go) = bounded(1);
    let (removed, _removed) = bounded(1);
    let server = slow_report(go, removed);
    let mut enlisted = enlisted();
    let mut files = ModelFiles::new(ServerId(0), enlisted.files_waker.clone());
    let mut order = |order| {
        let done = enlisted.carry_out(&server, &mut files, 1, order);
        assert_eq!(done.unwrap(), Some(CommandReply::Done));
        server.released.get()
    };
    let namespace = || "job".to_owned();
    let adopt = || Command::AdoptTable {
        namespace: namespace(),
        table: TableInfo {
            id: TableId(1),
            spec: TableSpec {
                name: "t".into(),
                shape: Shape::Sparse { dim: 1 },
                dtype: DType::F32,
                optimizer: Optimizer::Sgd { lr: 0.1 },
                init: Init::Zeros,
                seed: 1,
                effect: Apply::AtTick(Reduce::Sum),
                finite_check: true,
                domain: DomainId(0),
                partitions: 1,
                gradient: GradientOptions::default(),
                redo: false,
                keys: KeyOptions::default(),
                versions: 2,
                durability: Durability::Warm,
                partition_servers: None,
                partition_starts: None,
            },
            placement: Placement(Vec::new()),
        },
    };
    let changed = || Command::MembersChanged {
        namespace: namespace(),
        members: members(&[WorkerState::Live]),
        admitted: None,
    };
    assert_eq!([adopt(), changed()].map(&mut order), [0, 1]);
    assert_eq!(order(changed()), 1);
    // A coordinator that was restarted repeats its order.
    assert_eq!([adopt(), changed()].map(&mut order), [1, 1]);
}
