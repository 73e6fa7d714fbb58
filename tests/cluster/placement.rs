//! Tables with partitions on servers of the user's choice: every kind of call agrees with local values, and the
//! partitions are where the list says.

use std::time::Duration;

use tidewater::link::CoordinatorLink as _;
use tidewater::table::TableBuilder;
use tidewater::{
    AnyTable, Client, ClientError, Expression, FunctionArgs, Partitioner, PullMode, PullOptions,
    Reduction, Scalar, SyncMode, Table, TableSpec,
};
use tidewater_engine::apply::engine::Engine;
use tidewater_launch::TransportChoice;
use tidewater_protocol::ids::{ApplierId, TableId};
use tidewater_protocol::table::{Init, Optimizer, PushOp, Reduce, Shape};
use tidewater_service::embedded::Cluster;

use super::{client, client_in_step, long, start};

const WAIT: Duration = Duration::from_secs(60);
/// Server 2 owns nothing, and server 3 most.
const SERVERS: [u32; 7] = [3, 0, 3, 3, 1, 3, 0];
const KEYS: u64 = 500;
const ELEMENTS: usize = 20_000;
const DIM: usize = 4;

fn builders() -> [TableBuilder; 3] {
    let rule = Optimizer::AdaGrad { lr: 0.5, eps: 1e-8 };
    let init = Init::Uniform {
        low: -1.0,
        high: 1.0,
    };
    [
        TableBuilder::sparse::<f64>("sparse", DIM as u32),
        TableBuilder::rows::<f64>("rows", KEYS, DIM as u32),
        TableBuilder::range::<f64>("range", ELEMENTS as u64, 1).block_bytes(4096),
    ]
    .map(|builder| builder.optimizer(rule).init(init, 3))
}

/// Makes a step of each kind on the three tables and returns all their values.
fn step(client: &mut Client, tables: &[Table<f64>; 3], number: u32) -> Vec<f64> {
    let [sparse, rows, range] = tables;
    let keys: Vec<u64> = (0..KEYS).collect();
    let value = |n: usize| ((n as u32 * 31 + number) % 97) as f64 / 8.0 - 6.0;
    let of_rows: Vec<f64> = (0..KEYS as usize * DIM).map(value).collect();
    let of_range: Vec<f64> = (0..ELEMENTS).map(value).collect();
    for table in [sparse, rows] {
        for op in [PushOp::Gradient, PushOp::Sum] {
            let pushed = client.push_rows(table, &keys, &of_rows, op);
            client.wait_applied(&pushed.unwrap()).unwrap();
        }
    }
    for op in [PushOp::Gradient, PushOp::Sum] {
        let pushed = client.push_range(range, 0, &of_range, op).unwrap();
        client.wait_applied(&pushed).unwrap();
    }
    pull(client, tables)
}

/// Values of all tables. Every mode of a pull returns the same.
fn pull(client: &mut Client, [sparse, rows, range]: &[Table<f64>; 3]) -> Vec<f64> {
    let keys: Vec<u64> = (0..KEYS).rev().collect();
    let mut first = Vec::new();
    for mode in [PullMode::Consistent, PullMode::Hogwild, PullMode::Gather] {
        let options = PullOptions::default().mode(mode);
        let mut out = vec![0.0; 2 * KEYS as usize * DIM + ELEMENTS];
        let (of_sparse, rest) = out.split_at_mut(KEYS as usize * DIM);
        let (of_rows, of_range) = rest.split_at_mut(KEYS as usize * DIM);
        client.pull_rows(sparse, &keys, of_sparse, options).unwrap();
        client.pull_rows(rows, &keys, of_rows, options).unwrap();
        client.pull_range(range, 0, of_range, options).unwrap();
        if first.is_empty() {
            first.clone_from(&out);
        }
        assert_eq!(out, first, "{mode:?}");
    }
    first
}

fn create(client: &mut Client, builders: &[TableBuilder; 3]) -> [Table<f64>; 3] {
    builders
        .each_ref()
        .map(|builder| client.create_table::<f64>(builder.spec()).unwrap())
}

/// The partitions of the dense tables begin at these rows and blocks: one has a single row, one most of the table.
const ROW_STARTS: [u64; 7] = [0, 1, 30, 31, 400, 450, 499];
const BLOCK_STARTS: [u64; 7] = [0, 1, 2, 3, 30, 31, 39];
/// Elements of f64 in a block of 4,096 bytes.
const BLOCK: u64 = 512;

fn placed() -> [TableBuilder; 3] {
    builders().map(|builder| builder.partition_servers(&SERVERS))
}

fn element_starts() -> [u64; 7] {
    BLOCK_STARTS.map(|block| block * BLOCK)
}

/// The builders of tables with the placement of [`placed`]; dense ones are cut unevenly too.
fn cut(builders: [TableBuilder; 3]) -> [TableBuilder; 3] {
    let [sparse, rows, range] = builders;
    let (rows, range) = (
        rows.partition_starts(&ROW_STARTS),
        range.partition_starts(&element_starts()),
    );
    [sparse, rows, range]
}

fn assert_cut(client: &Client, [sparse, rows, range]: &[Table<f64>; 3]) {
    let refused = client.partition_ranges(sparse).unwrap_err();
    assert!(matches!(refused, ClientError::Argument { .. }), "{refused}");
    for (table, starts, end) in [
        (rows, ROW_STARTS, KEYS),
        (range, element_starts(), ELEMENTS as u64),
    ] {
        let found = client.partition_ranges(table).unwrap();
        let ends = starts[1..].iter().copied().chain([end]);
        let expected: Vec<_> = starts.into_iter().zip(ends).map(|(a, b)| a..b).collect();
        assert_eq!(found, expected);
    }
}

/// Each partition is on the server of the list, and the appliers of a server have equally many of them, but for one.
fn assert_placed(client: &Client, table: &Table<f64>) {
    let owners = client.partition_owners(table).unwrap();
    let servers: Vec<u32> = owners.iter().map(|owner| owner.server.0).collect();
    assert_eq!(servers, SERVERS);
    let of_most = owners.iter().filter(|owner| owner.server.0 == 3);
    let appliers: Vec<u16> = of_most.map(|owner| owner.applier.0).collect();
    assert_eq!(appliers, [0, 1, 0, 1]);
}

/// Server of each partition, as the appliers of the servers have them.
fn held_by(cluster: &Cluster, id: TableId) -> Vec<u32> {
    let mut held = Vec::new();
    for (number, server) in (0..).map_while(|n| cluster.server(n).map(|server| (n, server))) {
        for applier in (0..server.appliers()).map(ApplierId) {
            let own = move |engine: &mut Engine| {
                let table = engine.table(id);
                table.map_or_else(Vec::new, |table| table.partitions().to_vec())
            };
            let own = server.with_engine(applier, own).unwrap();
            held.extend(own.into_iter().map(|partition| (partition, number)));
        }
    }
    held.sort_unstable();
    held.into_iter().map(|(_, server)| server).collect()
}

/// Pushes, pulls, functions and scans of a table with the user's placement give the values of one server.
#[test]
fn placed_tables_agree_with_one_server() {
    for (transport, uneven) in [
        (TransportChoice::Shm, false),
        (TransportChoice::Tcp, false),
        (TransportChoice::Shm, true),
        (TransportChoice::Tcp, true),
    ] {
        let (many, one) = (start(4, 2, 1), start(1, 1, 1));
        let mut far = client(&many, 0, transport);
        let mut near = client(&one, 0, TransportChoice::Shm);
        let builders_of_far = if uneven { cut(placed()) } else { placed() };
        let tables = create(&mut far, &builders_of_far);
        if uneven {
            assert_cut(&far, &tables);
        }
        let references = create(&mut near, &builders().map(|b| b.partitions(7)));
        for number in 0..3 {
            let expected = step(&mut near, &references, number);
            let found = step(&mut far, &tables, number);
            assert_eq!(found, expected, "{transport:?}");
        }
        for table in &tables {
            assert_eq!(table.partitions(), 7);
            assert_placed(&far, table);
            assert_eq!(held_by(&many, table.id()), SERVERS);
        }
        for (client, tables) in [(&mut near, &references), (&mut far, &tables)] {
            let doubled = Expression::parse("2 * x + index").unwrap();
            let updated = client.update(&tables[2], &doubled, &FunctionArgs::default());
            client.wait_applied(&updated.unwrap()).unwrap();
        }
        assert_eq!(pull(&mut far, &tables), pull(&mut near, &references));
        for (table, reference) in tables.iter().zip(&references) {
            let found = sum(&mut far, table);
            let expected = sum(&mut near, reference);
            match (uneven, found, expected) {
                // Other pieces are added in another order.
                (true, Some(Scalar::Float(found)), Some(Scalar::Float(expected))) => {
                    let error = (found - expected).abs();
                    assert!(error <= 1e-9 * expected.abs(), "{found} {expected}");
                }
                (_, found, expected) => assert_eq!(found, expected, "{transport:?}"),
            }
        }
    }
}

fn sum(client: &mut Client, table: &Table<f64>) -> Option<Scalar> {
    let x = Expression::parse("x").unwrap();
    let all = FunctionArgs::default();
    client.reduce(table, &x, Reduction::Sum, &all).unwrap()
}

/// Tables of ticks with the user's placement get the values of one server.
#[test]
fn placed_tables_tick_like_one_server() {
    let run = |servers, placement: Option<&[u32]>, uneven: bool| {
        let cluster = start(servers, 2, 1);
        let mut client = client_in_step(&cluster, 0, TransportChoice::Tcp, SyncMode::Bsp);
        let builders = builders().map(|builder| {
            let builder = builder.at_clock(Reduce::Mean).partitions(7);
            match placement {
                Some(servers) => builder.partition_servers(servers),
                None => builder,
            }
        });
        let tables = create(&mut client, &if uneven { cut(builders) } else { builders });
        let keys: Vec<u64> = (0..KEYS).collect();
        for number in 1..4 {
            let values = vec![f64::from(number); KEYS as usize * DIM];
            for table in &tables[..2] {
                let pushed = client.push_rows(table, &keys, &values, PushOp::Gradient);
                // The tick waits for the push, and returns its refusal.
                drop(pushed.unwrap());
            }
            let values = vec![f64::from(number) / 3.0; ELEMENTS];
            let pushed = client.push_range(&tables[2], 0, &values, PushOp::Gradient);
            drop(pushed.unwrap());
            client.tick().unwrap();
        }
        pull(&mut client, &tables)
    };
    let expected = run(1, None, false);
    assert_eq!(run(4, Some(&SERVERS), false), expected);
    assert_eq!(run(4, Some(&SERVERS), true), expected);
    assert_eq!(run(3, None, true), expected);
}

/// Lists that cannot be are refused with their numbers and leave no table behind.
#[test]
fn wrong_lists_are_refused_at_creation() {
    let cluster = start(3, 1, 1);
    let mut client = client(&cluster, 0, TransportChoice::Tcp);
    let table = || TableBuilder::rows::<f64>("t", 100, 2);
    for (builder, words) in [
        (table().partition_servers(&[]), "empty list"),
        (
            table().partition_servers(&[0, 3]),
            "partition 1 to server 3",
        ),
        (
            table().partitions(4).partition_servers(&[0, 1, 2]),
            "3 servers for 4 partitions",
        ),
        (
            table().partition_servers(&vec![0; 5_000]),
            "5000 partitions",
        ),
        (
            table().partition_starts(&[]),
            "partition_starts is an empty list",
        ),
        (table().partition_starts(&[0, 3, 3]), "partition 2 at 3"),
        (table().partition_starts(&[1]), "partition 0 at 1"),
        (table().partition_starts(&[0, 100]), "partition 1 at 100"),
        (
            table().partition_servers(&[0, 1]).partition_starts(&[0]),
            "1 starts for 2 partitions",
        ),
        (
            TableBuilder::sparse::<f64>("t", 2).partition_starts(&[0]),
            "sparse table",
        ),
    ] {
        let refused = client.create_table::<f64>(builder.spec()).unwrap_err();
        assert!(refused.to_string().contains(words), "{words}: {refused}");
        let refused = client.start_create_table(builder.spec()).map(drop);
        assert!(refused.unwrap_err().to_string().contains(words), "{words}");
        let unknown = client.open_table::<f64>("t").unwrap_err();
        assert!(matches!(unknown, ClientError::Refused { .. }), "{unknown}");
    }
    let made = table().partition_servers(&[2, 0, 2, 2]);
    let first = client.create_table::<f64>(made.spec()).unwrap();
    let again = client.create_table::<f64>(made.partitions(4).spec());
    assert_eq!(again.unwrap(), first);
    for (other, words) in [
        (
            table().partition_servers(&[2, 0, 1, 2]),
            "partition 2 on server 2, asked for server 1",
        ),
        (
            table().partition_servers(&[2, 0, 2]),
            "partitions is 4, asked for 3",
        ),
        (table().partitions(4), "is a list, asked for None"),
        (
            table()
                .partition_servers(&[2, 0, 2, 2])
                .partition_starts(&[0, 1, 2, 3]),
            "partition_starts is None, asked for a list",
        ),
    ] {
        let refused = client.create_table::<f64>(other.spec()).unwrap_err();
        assert!(refused.to_string().contains(words), "{words}: {refused}");
    }
    assert_eq!(held_by(&cluster, first.id()), [2, 0, 2, 2]);
}

/// The coordinator checks lists of servers by itself: a link sends what the client would refuse.
#[test]
fn coordinator_refuses_absent_servers() {
    let cluster = start(2, 1, 1);
    let mut link = super::join(&cluster, 0, "default").unwrap();
    let wrong = TableBuilder::sparse::<f64>("t", 1).partition_servers(&[1, 0, 2]);
    let refused = link.create_table(wrong.spec(), long()).unwrap_err();
    let ClientError::Refused { .. } = &refused else {
        panic!("{refused:?}")
    };
    let text = refused.to_string();
    assert!(text.contains("partition 2 to server 2"), "{text}");
    assert!(text.contains("0 to 1"), "{text}");
    let right = TableBuilder::sparse::<f64>("t", 1).partition_servers(&[1, 0, 1]);
    let made = link.create_table(right.spec(), long()).unwrap();
    assert_eq!(made.spec.partitions, 3);
}

/// Every third partition is on server 0, the rest on the last one.
struct MostLast;

impl Partitioner for MostLast {
    fn partition_servers(&self, spec: &TableSpec, appliers: &[u16]) -> Vec<u32> {
        assert_eq!((spec.name.as_str(), spec.dim()), ("t", 1));
        let last = appliers.len() as u32 - 1;
        let server = |p| if p % 3 == 0 { 0 } else { last };
        (0..6).map(server).collect()
    }

    fn partition_starts(&self, spec: &TableSpec, _appliers: &[u16]) -> Option<Vec<u64>> {
        matches!(spec.shape, Shape::Dense { .. }).then(|| vec![0, 1, 2, 3, 4, 60])
    }
}

/// A type and a closure decide where partitions lie, with the servers of the job.
#[test]
fn partitioners_know_the_servers() {
    let cluster = start(3, 2, 1);
    let mut client = client(&cluster, 0, TransportChoice::Tcp);
    let builder = TableBuilder::sparse::<f64>("t", 1).partition_by(&client, &MostLast);
    let table = client.create_table::<f64>(builder.spec()).unwrap();
    assert_eq!(held_by(&cluster, table.id()), [0, 2, 2, 0, 2, 2]);
    client.release_table(table).unwrap();
    let builder = TableBuilder::rows::<f64>("t", 70, 1).partition_by(&client, &MostLast);
    let table = client.create_table::<f64>(builder.spec()).unwrap();
    assert_eq!(held_by(&cluster, table.id()), [0, 2, 2, 0, 2, 2]);
    let ranges = client.partition_ranges(&table).unwrap();
    assert_eq!(ranges, [0..1, 1..2, 2..3, 3..4, 4..60, 60..70]);
    let by_appliers = |_: &TableSpec, appliers: &[u16]| {
        assert_eq!(appliers, [2, 2, 2]);
        vec![1; 5]
    };
    let builder = TableBuilder::range::<f64>("u", 1, 9_000).partition_by(&client, &by_appliers);
    let table = AnyTable::create(&mut client, builder.spec()).unwrap();
    let owners = table.partition_owners(&client).unwrap();
    assert!(owners.iter().all(|owner| owner.server.0 == 1), "{owners:?}");
}

/// Inputs of a function have the list of its target: elements of one index lie on one server.
#[test]
fn functions_refuse_inputs_with_another_list() {
    let cluster = start(2, 1, 1);
    let mut client = client(&cluster, 0, TransportChoice::Tcp);
    let mut make = |name: &str, servers: &[u32]| {
        let builder = TableBuilder::range::<f64>(name, 1, 9_000).partition_servers(servers);
        client.create_table::<f64>(builder.spec()).unwrap()
    };
    let (target, like) = (make("target", &[1, 1, 0]), make("like", &[1, 1, 0]));
    let unlike = make("unlike", &[1, 0, 0]);
    let cut = TableBuilder::range::<f64>("cut", 1, 9_000)
        .partition_servers(&[1, 1, 0])
        .partition_starts(&[0, 2_048, 4_096]);
    let cut = client.create_table::<f64>(cut.spec()).unwrap();
    let add = Expression::parse("x + y + 1").unwrap();
    let mut update = |inputs: &[&Table<f64>]| {
        let args = FunctionArgs {
            inputs,
            ..FunctionArgs::default()
        };
        let updated = client.update(&target, &add, &args)?;
        client.wait_applied(&updated)
    };
    update(&[&target, &like]).unwrap();
    for other in [&unlike, &cut] {
        let refused = update(&[&target, other]).unwrap_err().to_string();
        assert!(
            refused.contains("partition_servers and partition_starts"),
            "{refused}"
        );
    }
    assert_eq!(sum(&mut client, &target), Some(Scalar::Float(9_000.0)));
}

/// A saved model keeps the lists. It loads where all their servers are, and goes on bit by bit; elsewhere the load is
/// refused and leaves no table.
#[test]
fn saved_tables_keep_their_servers() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().to_str().unwrap();
    let (many, few) = (start(4, 2, 1), start(3, 2, 1));
    let mut first = client(&many, 0, TransportChoice::Tcp);
    let tables = create(&mut first, &cut(placed()));
    step(&mut first, &tables, 1);
    first.save(dir, WAIT).unwrap();
    let expected = step(&mut first, &tables, 2);

    let mut refused = client(&few, 0, TransportChoice::Tcp);
    let text = refused.load(dir, WAIT).unwrap_err().to_string();
    assert!(text.contains("partition 0 to server 3"), "{text}");
    assert!(text.contains("start more servers"), "{text}");
    for name in ["sparse", "rows", "range"] {
        let gone = refused.open_table::<f64>(name).unwrap_err();
        assert!(gone.to_string().contains(name), "{gone}");
    }

    let more = start(5, 1, 1);
    let mut second = client(&more, 0, TransportChoice::Tcp);
    assert_eq!(second.load(dir, WAIT).unwrap().tables.len(), 3);
    let loaded = create(&mut second, &cut(placed()));
    assert_cut(&second, &loaded);
    for table in &loaded {
        assert_eq!(held_by(&more, table.id()), SERVERS);
    }
    assert_eq!(step(&mut second, &loaded, 2), expected);
    let differs = builders().map(|builder| builder.partitions(7));
    let text = second.create_table::<f64>(differs[0].spec());
    let text = text.unwrap_err().to_string();
    assert!(text.contains("partition_servers"), "{text}");
}
