//! A server that goes on with the memory of the one before it.

use tidewater::{PullOptions, TableBuilder};
use tidewater_launch::TransportChoice;
use tidewater_protocol::ids::{ApplierId, Incarnation, TableId};
use tidewater_protocol::table::{Durability, PushOp};
use tidewater_protocol::wire::control::{ApplierPart, TableInfo};
use tidewater_protocol::wire::hello::NAMESPACE_DEFAULT;
use tidewater_service::server::{Server, ServerConfig, ServerError, ServerHandle, reserve};

use tidewater_testkit::sockets::{Rig, config};

/// The parts of a table, as clients get them.
fn parts(server: &ServerHandle, id: TableId) -> Vec<ApplierPart> {
    let part = |a| {
        let describe = move |engine: &mut tidewater_engine::apply::engine::Engine| {
            engine.table(id).map(|table| table.describe(ApplierId(a)))
        };
        server.with_engine(ApplierId(a), describe).unwrap()
    };
    (0..server.appliers()).filter_map(part).collect()
}

/// What clients know of a table stays true: keys, places and salts. A table of another definition, or one that the
/// memory has not, is refused; so is a successor with the incarnation of the server before.
#[test]
fn successor_serves_tables_of_its_memory_as_they_were() {
    let mut config = config();
    let memory = reserve(&config).unwrap();
    config.memory = Some(memory.clone());
    let rig = Rig::with(config.clone());
    let mut client = rig.client(TransportChoice::Shm, 0);
    let spec = TableBuilder::sparse::<i64>("t", 1).durability(Durability::Warm);
    let table = client.create_table::<i64>(spec.spec()).unwrap();
    let blocks = TableBuilder::range::<i64>("b", 8, 100).durability(Durability::Warm);
    client.create_table::<i64>(blocks.spec()).unwrap();
    let keys: Vec<u64> = (0..1_000).collect();
    let pushed = client.push_rows(&table, &keys, &[5; 1_000], PushOp::Sum);
    client.wait_applied(&pushed.unwrap()).unwrap();
    let infos: Vec<TableInfo> = rig.infos();
    let before: Vec<_> = infos.iter().map(|i| parts(&rig.handle(), i.id)).collect();
    drop((client, rig));

    let of_same_start = ServerConfig {
        memory: Some(memory.of_successor()),
        ..config
    };
    let error = Server::start(of_same_start.clone()).unwrap_err();
    assert!(matches!(error, ServerError::Resume(_)), "{error}");
    let rig = Rig::with(ServerConfig {
        incarnation: Incarnation(of_same_start.incarnation.0 ^ 0xff),
        ..of_same_start
    });
    let server = rig.handle();
    let ids: Vec<TableId> = infos.iter().map(|info| info.id).collect();
    assert_eq!(server.kept_tables(), Some(ids));
    let mut other = infos[0].clone();
    other.spec.seed += 1;
    let mut unknown = infos[0].clone();
    unknown.id = TableId(99);
    for wrong in [other, unknown] {
        let error = server.adopt_table(NAMESPACE_DEFAULT, &wrong).unwrap_err();
        assert!(matches!(error, ServerError::NotKept { .. }), "{error}");
    }
    for info in &infos {
        server.adopt_table(NAMESPACE_DEFAULT, info).unwrap();
        server.adopt_table(NAMESPACE_DEFAULT, info).unwrap();
    }
    let after: Vec<_> = infos.iter().map(|i| parts(&server, i.id)).collect();
    assert_eq!(before, after, "keys, places and salts");
    // A new client reads what was pushed; the session of before makes way.
    rig.knows(NAMESPACE_DEFAULT, &infos);
    let mut client = rig.client(TransportChoice::Tcp, 0);
    let table = client.open_table::<i64>("t").unwrap();
    let mut out = [0; 1_000];
    let options = PullOptions::default();
    client.pull_rows(&table, &keys, &mut out, options).unwrap();
    assert_eq!(out, [5; 1_000]);
    assert_eq!(server.status().unwrap().sessions, 1);
}

/// Memory that no server has written is no server's memory.
#[test]
fn successor_refuses_memory_of_no_server() {
    let mut config = config();
    config.memory = Some(reserve(&config).unwrap().of_successor());
    let error = Server::start(config).unwrap_err();
    assert!(error.to_string().contains("no valid"), "{error}");
}
