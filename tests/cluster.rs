//! A complete cluster: coordinator, servers and clients over real sockets, in one process.

#![allow(clippy::unwrap_used)]

#[path = "cluster/failures.rs"]
mod failures;
#[path = "cluster/placement.rs"]
mod placement;
#[path = "cluster/saves.rs"]
mod saves;

use std::time::Duration;

use tidewater::connect::{ConnectConfig, JoinConfig, NetCoordinatorLink, NetServerLink};
use tidewater::table::TableBuilder;
use tidewater::{Client, ClientError, JoinOptions, Parts, PullMode, PullOptions, SyncMode};
use tidewater_lanes::wake::OsParker;
use tidewater_launch::TransportChoice;
use tidewater_protocol::ids::WorkerId;
use tidewater_protocol::layout::session::lane_bytes;
use tidewater_protocol::limits::RING_BYTES_MIN;
use tidewater_protocol::table::{Init, Optimizer, PushOp};
use tidewater_runtime::clock::Deadline;
use tidewater_service::embedded::{Cluster, ClusterConfig};

/// Deadline that a busy machine meets; no test measures it.
fn long() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

fn start(servers: u32, appliers: u16, workers: u32) -> Cluster {
    let capacity = 64 << 20;
    Cluster::start(&ClusterConfig {
        servers,
        appliers,
        workers,
        capacity,
        ..Default::default()
    })
    .unwrap()
}

fn join(cluster: &Cluster, rank: u32, namespace: &str) -> Result<NetCoordinatorLink, ClientError> {
    let environment = cluster.environment();
    let mut config = JoinConfig::new(&environment.coordinator, environment.token.clone());
    (config.rank, config.namespace) = (Some(rank), namespace.into());
    let (link, joined) = NetCoordinatorLink::join(&config, long())?;
    assert_eq!(
        (joined.rank, joined.workers_expected),
        (rank, environment.workers)
    );
    Ok(link)
}

fn client(cluster: &Cluster, rank: u32, transport: TransportChoice) -> Client {
    client_in_step(cluster, rank, transport, SyncMode::Asp)
}

fn client_in_step(
    cluster: &Cluster,
    rank: u32,
    transport: TransportChoice,
    sync: SyncMode,
) -> Client {
    let environment = cluster.environment();
    let mut link = join(cluster, rank, "default").unwrap();
    let members = link.wait_servers(environment.servers, long()).unwrap();
    let mut config = ConnectConfig::new(environment.token.clone(), link.cluster(), rank);
    (config.transport, config.epoch) = (transport, members.epoch);
    let mut parker = OsParker::new(Duration::ZERO).unwrap();
    let servers = members.servers.iter().map(|server| {
        let (link, lanes) = NetServerLink::open(server, &config, &mut parker, long()).unwrap();
        (
            Box::new(link) as Box<dyn tidewater::link::ServerLink>,
            lanes,
        )
    });
    let servers = servers.collect();
    Client::from_parts(Parts {
        coordinator: Box::new(link),
        servers,
        parker: Box::new(parker),
        rank: WorkerId(rank),
        workers: environment.workers,
        sync,
    })
    .unwrap()
}

fn tables() -> [TableBuilder; 2] {
    let adagrad = Optimizer::AdaGrad { lr: 0.1, eps: 1e-8 };
    let init = Init::Uniform {
        low: -1.0,
        high: 1.0,
    };
    let sparse = TableBuilder::sparse::<f32>("sparse", 4)
        .optimizer(adagrad)
        .init(init, 5);
    let blocks = TableBuilder::range::<f32>("blocks", 100, 50).block_bytes(4096);
    [sparse, blocks.optimizer(adagrad)]
}

/// With a memory budget of the smallest rings every kind of call works, in more frames and replies. What
/// does not fit a frame is refused with the numbers.
#[test]
fn smallest_rings_serve_all_calls() {
    for transport in [TransportChoice::Shm, TransportChoice::Tcp] {
        let config = ClusterConfig {
            servers: 2,
            appliers: 2,
            workers: 1,
            ..ClusterConfig::default()
        };
        let mut options = JoinOptions::from(config);
        options.transport = Some(transport);
        options.memory_budget = Some(4 * lane_bytes(RING_BYTES_MIN));
        let job = options.join().unwrap().into_job().unwrap();
        let mut client = job.client(SyncMode::Asp).unwrap();
        let keys: Vec<u64> = (0..1_000).collect();
        let values: Vec<f32> = (0..1_000 * 64).map(|n| n as f32).collect();
        let rows = TableBuilder::sparse::<f32>("rows", 64);
        let rows = client.create_table::<f32>(rows.spec()).unwrap();
        let pushed = client.push_rows(&rows, &keys, &values, PushOp::Sum);
        client.wait_applied(&pushed.unwrap()).unwrap();
        let range = TableBuilder::range::<f32>("range", values.len() as u64, 1).block_bytes(4096);
        let range = client.create_table::<f32>(range.spec()).unwrap();
        let pushed = client.push_range(&range, 0, &values, PushOp::Assign);
        client.wait_applied(&pushed.unwrap()).unwrap();
        for mode in [PullMode::Consistent, PullMode::Gather] {
            let options = PullOptions {
                mode,
                ..PullOptions::default()
            };
            let mut out = vec![0.0; values.len()];
            client.pull_rows(&rows, &keys, &mut out, options).unwrap();
            assert_eq!(out, values, "{transport:?} {mode:?}");
            out.fill(0.0);
            client.pull_range(&range, 0, &mut out, options).unwrap();
            assert_eq!(out, values, "{transport:?} {mode:?}");
        }
        let wide = TableBuilder::rows::<f32>("wide", 2, 3_000);
        let wide = client.create_table::<f32>(wide.spec()).unwrap();
        let refused = client.push_rows(&wide, &[0], &[1.0; 3_000], PushOp::Sum);
        let text = refused.unwrap_err().to_string();
        assert!(text.contains("4032"), "{text}");
        let gather = PullOptions {
            mode: PullMode::Gather,
            ..PullOptions::default()
        };
        let refused = client.pull_rows(&wide, &[0], &mut [0.0; 3_000], gather);
        let text = refused.unwrap_err().to_string();
        assert!(text.contains("12000 bytes; a reply takes 8128"), "{text}");
        client.finish().unwrap();
        job.leave().unwrap();
    }
    let mut options = JoinOptions::embedded(1, 1);
    options.memory_budget = Some(100_000);
    let job = options.join().unwrap().into_job().unwrap();
    let refused = job.client(SyncMode::Asp).unwrap_err().to_string();
    assert!(
        refused.contains("memory_budget is 100000 bytes"),
        "{refused}"
    );
}
