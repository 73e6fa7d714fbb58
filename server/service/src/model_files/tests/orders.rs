//! Saves and loads as a server's threads carry them out.

use std::fs;
use std::path::PathBuf;
use std::sync::mpsc::channel;

use tidewater_checkpoint::testing::faults::{Call, Kind, Verdict, under};
use tidewater_checkpoint::testing::{Cluster, read_all, spec};
use tidewater_checkpoint::{MANIFEST_NAME, OsDisk, PartReader, SaveRequest, save_part};
use tidewater_protocol::ids::{ApplierId, ClusterId, ServerId, TableId};
use tidewater_protocol::placement::Placement;
use tidewater_protocol::table::{Apply, DType, DenseLayout, Optimizer, Shape, TableSpec};
use tidewater_protocol::wire::control::TableInfo;
use tidewater_protocol::wire::handshake::JobToken;

use super::super::{FileOrder, FileThread};
use crate::server::{Server, ServerConfig};

/// A load is one order for each table. However many they are, each file is opened once, and read in one
/// pass: its lines, then the payloads.
#[test]
fn load_of_many_tables_reads_each_index_once() {
    const TABLES: usize = 60;
    let sparse = |n: usize| {
        let (shape, rule) = (Shape::Sparse { dim: 2 }, Optimizer::None);
        let spec = spec(&format!("t{n}"), shape, DType::F32, rule, Apply::Immediate);
        TableSpec {
            partitions: 4,
            ..spec
        }
    };
    let specs: Vec<TableSpec> = (0..TABLES).map(sparse).collect();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().canonicalize().unwrap();
    let first = Cluster::of(specs.clone(), &[2]);
    first.fill(1);
    let manifest = first.save(&OsDisk, &path, 1).unwrap();
    let mut next = Cluster::of(specs, &[1]);
    let (server, tables) = (next.servers.remove(0), next.tables.clone());
    let mut calls: Vec<Call> = Vec::new();
    let load = |path: PathBuf| {
        let mut thread = FileThread::new(ServerId(0), Box::new(server));
        for table in tables {
            let dir = path.clone();
            thread.carry_out(FileOrder::Load { table, dir }).unwrap();
        }
    };
    let note = |call: &Call| {
        calls.push(call.clone());
        Verdict::Pass
    };
    let from = path.clone();
    under(note, move || load(from));
    let count = |kind, file: &str| {
        let of_file = |call: &&Call| call.kind == kind && call.path == path.join(file);
        calls.iter().filter(of_file).count()
    };
    assert_eq!(count(Kind::Open, MANIFEST_NAME), 1);
    let part = &manifest.files[0];
    assert_eq!(count(Kind::Open, &part.file), 1);
    let chunks = PartReader::open(&path, part).unwrap().chunks().len();
    assert_eq!(chunks, 4 * TABLES);
    assert_eq!(count(Kind::Read, &part.file), 2 + 2 * chunks);
}

/// A model that was replaced between two orders is read again.
#[test]
fn load_notices_another_model() {
    let dir = tempfile::tempdir().unwrap();
    let first = Cluster::new(&[1]);
    first.fill(1);
    first.save(&OsDisk, dir.path(), 1).unwrap();
    let mut next = Cluster::new(&[1]);
    let table = next.tables[0].clone();
    let mut thread = FileThread::new(ServerId(0), Box::new(next.servers.remove(0)));
    let mut load = |table: &TableInfo| {
        let (table, dir) = (table.clone(), dir.path().to_owned());
        thread.carry_out(FileOrder::Load { table, dir })
    };
    load(&table).unwrap();
    // Its parts are removed when the next save replaces them.
    first.save(&OsDisk, dir.path(), 2).unwrap();
    load(&table).unwrap();
    fs::remove_file(dir.path().join(MANIFEST_NAME)).unwrap();
    let refused = load(&table).unwrap_err();
    assert!(refused.text.contains("missing"), "{refused}");
}

/// A file system that holds a write holds nothing but its save: the control thread answers, tables are
/// created, appliers work.
#[test]
fn held_file_holds_its_save_only() {
    let token = JobToken::new([7; 32]);
    let mut config = ServerConfig::new(token, ClusterId(1)).unwrap();
    (config.appliers, config.capacity, config.workers) = (2, 256 << 20, 1);
    config.tcp = Some("127.0.0.1:0".parse().unwrap());
    let server = Server::start(config).unwrap();
    let handle = server.handle();
    let info = |id, name: &str| {
        let shape = Shape::Dense {
            rows: 2 << 20,
            cols: 1,
            layout: DenseLayout::Blocks {
                block_bytes: 4096,
                snapshot: false,
            },
        };
        let spec = spec(name, shape, DType::F32, Optimizer::None, Apply::Immediate);
        TableInfo {
            id: TableId(id),
            placement: Placement::round_robin(spec.partitions, &[2]),
            spec,
        }
    };
    let tables = [info(1, "a")];
    handle.create_table("job", &tables[0]).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let (is_held, held) = channel();
    let (release, released) = channel::<()>();
    let mut writes = 0;
    let hold = move |call: &Call| {
        writes += usize::from(call.kind == Kind::Write);
        if call.kind == Kind::Write && writes == 3 {
            is_held.send(()).unwrap();
            released.recv().unwrap();
        }
        Verdict::Pass
    };
    let saver = handle.clone();
    let (to, saved) = (dir.path().to_owned(), tables.clone());
    std::thread::scope(|scope| {
        let save = scope.spawn(move || {
            under(hold, move || {
                let request = SaveRequest {
                    server: ServerId(0),
                    tables: &saved,
                    clocks: &[],
                    mark: None,
                    dir: &to,
                    nonce: 1,
                };
                save_part(&saver, Box::new(OsDisk), &request)
            })
        });
        held.recv().unwrap();
        assert!(handle.status().is_some(), "the control thread");
        handle.create_table("job", &info(2, "b")).unwrap();
        for applier in (0..2).map(ApplierId) {
            let lsn = handle.with_engine(applier, |engine| engine.lsn());
            assert_eq!(lsn.unwrap(), 0, "the applier");
        }
        assert!(!save.is_finished(), "nothing was held");
        release.send(()).unwrap();
        let share = save.join().unwrap().unwrap();
        assert_eq!(share.file.rows, 2048);
        read_all(dir.path(), &share.file).unwrap();
    });
}
