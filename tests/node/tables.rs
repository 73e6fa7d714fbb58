//! Tables of a server: created, used, released, separated by job.

use std::error::Error;
use std::sync::{Arc, OnceLock};

use tidewater::connect::ConnectConfig;
use tidewater::link::ServerLink;
use tidewater::{ClientError, PullOptions, TableBuilder};
use tidewater_functions::{Function, FunctionLoader, ServerFunction};
use tidewater_protocol::ids::DomainId;
use tidewater_protocol::ids::{ApplierId, TableId, WorkerId};
use tidewater_protocol::layout::lines::RejectCode;
use tidewater_protocol::table::PushOp;
use tidewater_protocol::wire::refusal::RefusalCode;
use tidewater_service::server::{ServerError, ServerHandle};

use tidewater_testkit::sockets::{BOTH, CLUSTER, Rig, config, info, soon, token};

#[test]
fn what_is_pushed_is_what_is_pulled() {
    let rig = Rig::start();
    for (rank, transport) in (0..).zip(*BOTH) {
        let mut client = rig.client(transport, rank);
        let name = format!("t{rank}");
        let spec = TableBuilder::sparse::<f32>(&name, 3);
        let table = client.create_table::<f32>(spec.spec()).unwrap();
        let keys: Vec<u64> = (0..500u64).map(|k| k << 33 | k).collect();
        let values: Vec<f32> = (0..1500).map(|v| v as f32).collect();
        let ticket = client
            .push_rows(&table, &keys, &values, PushOp::Sum)
            .unwrap();
        client.wait_applied(&ticket).unwrap();
        let mut out = vec![0f32; 1500];
        client
            .pull_rows(&table, &keys, &mut out, PullOptions::default())
            .unwrap();
        assert_eq!(out, values, "{transport:?}");
        // Both appliers own a part.
        for a in 0..2 {
            let frames = rig.handle().with_engine(ApplierId(a), |e| e.lsn()).unwrap();
            assert!(frames > 0, "applier {a} applied nothing");
        }
        let blocks = TableBuilder::range::<f64>(&format!("b{rank}"), 300, 41);
        let blocks = client.create_table::<f64>(blocks.spec()).unwrap();
        let all: Vec<f64> = (0..300 * 41).map(f64::from).collect();
        let ticket = client.push_range(&blocks, 0, &all, PushOp::Assign).unwrap();
        client.wait_applied(&ticket).unwrap();
        let mut out = vec![0f64; 300 * 41];
        client
            .pull_range(&blocks, 0, &mut out, PullOptions::default())
            .unwrap();
        assert_eq!(out, all, "{transport:?}");
    }
}

/// A loader that ends its job before it has a function.
struct EndsJob(Arc<OnceLock<ServerHandle>>);

struct Nothing;

impl Function for Nothing {}

impl FunctionLoader for EndsJob {
    fn load(&self, _: &[u8]) -> Result<Arc<dyn ServerFunction>, Box<dyn Error + Send + Sync>> {
        self.0.get().ok_or("no server")?.end_job("default")?;
        Ok(Arc::new(Nothing))
    }
}

/// A function of a job that ends while its module is compiled is refused; it is no function of the next
/// job of that name.
#[test]
fn function_of_an_ended_job_is_refused() {
    let mut config = config();
    let handle = Arc::new(OnceLock::new());
    config.functions.loader = Some(Arc::new(EndsJob(Arc::clone(&handle))));
    let rig = Rig::with(config);
    handle.set(rig.handle()).unwrap();
    for _ in 0..2 {
        // The second time the name would be taken.
        let refused = rig.handle().load_function("default", "f", &[1]);
        match refused {
            Err(ServerError::Function { why, .. }) => assert!(why.contains("has ended"), "{why}"),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_table_is_made_once_and_released_once() {
    let rig = Rig::start();
    let handle = rig.handle();
    let spec = TableBuilder::rows::<f32>("w", 100, 7);
    let told = info(&handle, 9, spec.spec());
    handle.create_table("default", &told).unwrap();
    handle.create_table("default", &told).unwrap();
    let differs = handle.create_table("other", &told).unwrap_err();
    assert!(matches!(differs, ServerError::Differs { .. }), "{differs}");
    assert_eq!(differs.refusal().code, RefusalCode::TableDiffers);
    assert_eq!(handle.tables().len(), 1);
    let mut stray = told.clone();
    stray.id = TableId(10);
    stray.placement.0[3].applier = ApplierId(2);
    let error = handle.create_table("default", &stray).unwrap_err();
    assert!(
        error.to_string().contains("one of this server's"),
        "{error}"
    );

    let used = || handle.status().unwrap().public_bytes.0;
    let before = used();
    handle.release_table(told.id).unwrap();
    handle.release_table(told.id).unwrap();
    assert!(matches!(
        handle.release_table(TableId(77)),
        Err(ServerError::UnknownTable(_))
    ));
    assert!(matches!(
        handle.create_table("default", &told),
        Err(ServerError::Released(_))
    ));
    // Memory is reused.
    for id in 20..40 {
        let again = info(&handle, id, spec.spec());
        handle.create_table("default", &again).unwrap();
        handle.release_table(again.id).unwrap();
    }
    assert_eq!(used(), before);
}

#[test]
fn a_released_table_is_refused_by_name_and_the_others_live() {
    let rig = Rig::start();
    for (rank, transport) in (0..).zip(*BOTH) {
        let mut client = rig.client(transport, rank);
        let spec = |name: &str| TableBuilder::sparse::<f32>(name, 2);
        let name = format!("gone {rank}");
        let gone = client.create_table::<f32>(spec(&name).spec()).unwrap();
        let lives = client.create_table::<f32>(spec("lives").spec()).unwrap();
        let ticket = client
            .push_rows(&gone, &[5], &[1.0, 2.0], PushOp::Sum)
            .unwrap();
        client.wait_applied(&ticket).unwrap();
        // A client that has not released the table itself learns of the release from the server.
        let mut other = rig.client(transport, 2 + rank);
        let still = other.open_table::<f32>(&name).unwrap();
        client.release_table(gone).unwrap();
        let own = client.push_rows(&gone, &[5], &[1.0, 2.0], PushOp::Sum);
        assert!(
            matches!(own, Err(ClientError::Argument { .. })),
            "{transport:?}: {own:?}"
        );
        let ticket = other
            .push_rows(&still, &[5], &[1.0, 2.0], PushOp::Sum)
            .unwrap();
        match other.wait_applied(&ticket) {
            Err(ClientError::Rejected { reject, .. }) => {
                assert_eq!(reject.code(), RejectCode::TableReleased);
            }
            other => panic!("{transport:?}: {other:?}"),
        }
        let ticket = client
            .push_rows(&lives, &[5], &[1.0, 2.0], PushOp::Sum)
            .unwrap();
        client.wait_applied(&ticket).unwrap();
    }
}

#[test]
fn a_table_that_does_not_fit_leaves_nothing() {
    let rig = Rig::start();
    let handle = rig.handle();
    let spec = TableBuilder::rows::<f64>("big", 1 << 33, 64);
    let error = handle
        .create_table("default", &info(&handle, 1, spec.spec()))
        .unwrap_err();
    assert_eq!(error.refusal().code, RefusalCode::OutOfMemory, "{error}");
    assert!(error.to_string().contains("--capacity"), "{error}");
    assert!(handle.tables().is_empty());
    // The number is free again.
    let spec = TableBuilder::rows::<f64>("small", 10, 4);
    handle
        .create_table("default", &info(&handle, 1, spec.spec()))
        .unwrap();
}

#[test]
fn namespaces_do_not_see_each_others_tables() {
    let rig = Rig::start();
    let handle = rig.handle();
    let spec = TableBuilder::sparse::<f32>("same name", 2);
    handle
        .create_table("a", &info(&handle, 1, spec.spec()))
        .unwrap();
    handle
        .create_table("b", &info(&handle, 2, spec.spec()))
        .unwrap();
    for transport in *BOTH {
        for (namespace, own, other) in [("a", 1, 2), ("b", 2, 1)] {
            let mut config = ConnectConfig::new(token(), CLUSTER, 0);
            (config.namespace, config.transport) = (namespace.into(), transport);
            let (mut link, _lanes) = rig.link(&config).unwrap();
            let told = link.describe(TableId(own), soon()).unwrap();
            assert_eq!((told.id, told.parts.len()), (TableId(own), 2));
            match link.describe(TableId(other), soon()) {
                Err(ClientError::Refused(no)) => assert_eq!(no.code, RefusalCode::UnknownTable),
                told => panic!("{told:?}"),
            }
            handle.release_table(TableId(99)).unwrap_err();
            link.detach(soon()).unwrap();
        }
    }
}

#[test]
fn clocks_name_who_is_awaited() {
    let rig = Rig::start();
    let mut client = rig.client(BOTH[0], 2);
    client.tick().unwrap();
    let (mut link, _lanes) = rig.link(&ConnectConfig::new(token(), CLUSTER, 3)).unwrap();
    tidewater_testkit::sockets::wait(
        || {
            let workers = link.clocks(DomainId(0), soon()).unwrap();
            assert_eq!(workers.len(), 4);
            let clock = |rank| {
                workers
                    .iter()
                    .find(|w| w.0.rank == WorkerId(rank))
                    .unwrap()
                    .1
            };
            (clock(2), clock(0)) == (1, 0)
        },
        "the tick does not arrive",
    );
    rig.handle().remove_worker("default", WorkerId(0)).unwrap();
    let workers = link.clocks(DomainId(0), soon()).unwrap();
    assert!(
        workers.iter().all(|w| w.0.rank != WorkerId(0)),
        "{workers:?}"
    );
}
