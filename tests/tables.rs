//! Tables end to end, over shared memory and TCP, and over verbs if requested: pulled values equal the
//! pushed ones.

#[path = "tables/keys.rs"]
mod keys;

use tidewater::{
    Client, ClientError, Missing, PullMode, PullOptions, PushOptions, SyncMode, Table, TableBuilder,
};
use tidewater_engine::store::ShardId;
use tidewater_engine::store::memory::{BlockKind, BlockOwner};
use tidewater_protocol::ids::{PartitionId, TableId};
use tidewater_protocol::layout::lines::RejectCode;
use tidewater_protocol::layout::reject::{RejectReason, RowResource};
use tidewater_protocol::limits::{MEMORY_BLOCKS_MAX, REJECTS_KEPT_MAX};
use tidewater_protocol::table::{Init, Optimizer, PushOp};
use tidewater_testkit::faults::transports;
use tidewater_testkit::threads::Cluster;

const MODES: [PullMode; 3] = [PullMode::Consistent, PullMode::Hogwild, PullMode::Gather];

fn each_transport(servers: u32, appliers: u16, test: impl Fn(&Cluster)) {
    for transport in transports() {
        test(&Cluster::start(transport, servers, appliers, 1));
    }
}

#[test]
fn sparse_rows_come_back_in_the_callers_order_in_every_mode() {
    each_transport(2, 2, |cluster| {
        let mut client = cluster.client(0, SyncMode::Asp);
        let spec = TableBuilder::sparse::<f32>("emb", 5).init(Init::Constant(0.5), 1);
        let table = client.create_table::<f32>(spec.spec()).unwrap();
        let keys: Vec<u64> = (0..1000u64)
            .map(|k| k.wrapping_mul(0x9e37_79b9_7f4a_7c15))
            .collect();
        let values: Vec<f32> = (0..5000).map(|v| v as f32).collect();
        let ticket = client
            .push_rows(&table, &keys, &values, PushOp::Sum)
            .unwrap();
        client.wait_applied(&ticket).unwrap();
        // Unsorted, with duplicates.
        let ask: Vec<usize> = (0..3000).map(|n| (n * 7919) % 1000).collect();
        let asked: Vec<u64> = ask.iter().map(|&n| keys[n]).collect();
        for mode in MODES {
            let mut out = vec![0f32; asked.len() * 5];
            let options = PullOptions::default().mode(mode);
            client.pull_rows(&table, &asked, &mut out, options).unwrap();
            for (row, &n) in ask.iter().enumerate() {
                for col in 0..5 {
                    assert_eq!(out[row * 5 + col], 0.5 + values[n * 5 + col], "{mode:?}");
                }
            }
        }
        let c = client.counters();
        assert!(c.rows_consistent >= 3000 && c.rows_hogwild >= 3000 && c.rows_gathered >= 3000);
        assert_eq!(c.rejects, 0);
    });
}

#[test]
fn unknown_keys_are_created_or_answered_as_the_call_says() {
    each_transport(1, 1, |cluster| {
        let mut client = cluster.client(0, SyncMode::Asp);
        let init = Init::Uniform {
            low: -1.0,
            high: 1.0,
        };
        let spec = TableBuilder::sparse::<f64>("t", 3).init(init, 42);
        let table = client.create_table::<f64>(spec.spec()).unwrap();
        let keys = [0, u64::MAX, 1 << 63];
        let rows = |cluster: &Cluster| {
            let id = table.id();
            let count = move |e: &mut tidewater_engine::apply::engine::Engine| match &e
                .table(id)
                .unwrap()
                .store
            {
                tidewater_engine::apply::table::Store::Sparse(s) => s.len(),
                _ => unreachable!(),
            };
            cluster.servers[0].applier(0).with(count).unwrap()
        };
        let (mut first, mut second) = ([0f64; 9], [0f64; 9]);
        let look = PullOptions::default().missing(Missing::Initial);
        client.pull_rows(&table, &keys, &mut first, look).unwrap();
        assert_eq!(rows(cluster), 0, "evaluation stores nothing");
        client
            .pull_rows(&table, &keys, &mut second, PullOptions::default())
            .unwrap();
        assert_eq!(rows(cluster), 3);
        assert_eq!(first, second);
        assert!(first.iter().all(|v| (-1.0..1.0).contains(v)) && first[0] != first[1]);
    });
}

#[test]
fn dense_rows_and_ranges() {
    each_transport(2, 1, |cluster| {
        let mut client = cluster.client(0, SyncMode::Asp);
        let spec = TableBuilder::rows::<i64>("rows", 1000, 3).init(Init::Constant(7.0), 0);
        let rows = client.create_table::<i64>(spec.spec()).unwrap();
        let spec = TableBuilder::range::<f32>("blocks", 1000, 77).block_bytes(4096);
        let blocks = client.create_table::<f32>(spec.spec()).unwrap();
        let keys = [999, 0, 500, 0];
        let t = client
            .push_rows(&rows, &keys, &[1i64; 12], PushOp::Sum)
            .unwrap();
        client.wait_applied(&t).unwrap();
        let values: Vec<f32> = (0..77_000).map(|v| v as f32).collect();
        let t = client
            .push_range(&blocks, 0, &values, PushOp::Assign)
            .unwrap();
        client.wait_applied(&t).unwrap();
        for mode in MODES {
            let options = PullOptions::default().mode(mode);
            let mut out = [0i64; 12];
            client.pull_rows(&rows, &keys, &mut out, options).unwrap();
            assert_eq!(out, [8, 8, 8, 9, 9, 9, 8, 8, 8, 9, 9, 9], "{mode:?}");
            for (first, len) in [
                (0, 77_000),
                (1, 76_999),
                (1023, 3),
                (40_001, 20_000),
                (9, 0),
            ] {
                let mut out = vec![0f32; len];
                client
                    .pull_range(&blocks, first as u64, &mut out, options)
                    .unwrap();
                assert_eq!(out, values[first..first + len], "{mode:?} {first}+{len}");
            }
        }
    });
}

#[test]
fn a_refused_push_fails_alone_and_says_why() {
    each_transport(1, 1, |cluster| {
        let mut client = cluster.client(0, SyncMode::Asp);
        let spec = TableBuilder::sparse::<f32>("t", 2).optimizer(Optimizer::Sgd { lr: 1.0 });
        let table = client.create_table::<f32>(spec.spec()).unwrap();
        let plain = TableBuilder::sparse::<f32>("plain", 1).optimizer(Optimizer::None);
        let plain = client.create_table::<f32>(plain.spec()).unwrap();
        let good = client
            .push_rows(&table, &[1, 2], &[1.0; 4], PushOp::Sum)
            .unwrap();
        let values = [5.0, 5.0, 5.0, f32::NAN];
        let bad = client
            .push_rows(&table, &[1, 2], &values, PushOp::Sum)
            .unwrap();
        let wrong = client
            .push_rows(&plain, &[1], &[1.0], PushOp::Gradient)
            .unwrap();
        let after = client
            .push_rows(&table, &[2], &[1.0; 2], PushOp::Gradient)
            .unwrap();
        let code = |e: Result<(), ClientError>| match e {
            Err(ClientError::Rejected { reject, .. }) => reject.code(),
            other => panic!("{other:?}"),
        };
        for _ in 0..2 {
            assert_eq!(code(client.wait_applied(&bad)), RejectCode::NotFinite);
        }
        client.wait_applied(&good).unwrap();
        client.wait_applied(&after).unwrap();
        assert_eq!(
            code(client.wait_applied(&wrong)),
            RejectCode::WrongOperation
        );
        let mut out = [0f32; 4];
        client
            .pull_rows(&table, &[1, 2], &mut out, PullOptions::default())
            .unwrap();
        assert_eq!(out, [1.0, 1.0, 0.0, 0.0], "nothing of the refused frame");
        let mut other = cluster.client(0, SyncMode::Asp);
        let still = other.open_table::<f32>("t").unwrap();
        client.release_table(table).unwrap();
        let gone = other
            .push_rows(&still, &[1], &[1.0; 2], PushOp::Sum)
            .unwrap();
        assert_eq!(code(other.wait_applied(&gone)), RejectCode::TableReleased);
        let t = client.push_rows(&plain, &[1], &[1.0], PushOp::Sum).unwrap();
        client.wait_applied(&t).unwrap();
    });
}

/// Rows and ranges, each in one frame, keep the least or greatest of what they hold and what is pushed, with or without an optimizer. Of
/// equal keys all count. NaN is refused where the table checks.
#[test]
fn least_and_greatest_values_are_kept() {
    each_transport(2, 1, |cluster| {
        let mut client = cluster.client(0, SyncMode::Asp);
        let pull = |client: &mut Client, table: &Table<f32>| {
            let mut out = [0f32; 3];
            let how = PullOptions::default();
            match client.pull_rows(table, &[4, 5, 6], &mut out, how) {
                Ok(_) => out,
                Err(_) => {
                    client.pull_range(table, 4, &mut out, how).unwrap();
                    out
                }
            }
        };
        let ftrl = Optimizer::Ftrl {
            alpha: 0.5,
            beta: 1.0,
            l1: 0.0,
            l2: 1.0,
        };
        let builders = [
            TableBuilder::sparse::<f32>("sparse", 1),
            TableBuilder::rows::<f32>("rows", 10, 1).optimizer(ftrl),
            TableBuilder::range::<f32>("ranges", 10, 1),
        ];
        for (n, builder) in builders.into_iter().enumerate() {
            let table = client
                .create_table::<f32>(builder.partitions(1).spec())
                .unwrap();
            let push = |client: &mut Client, values: [f32; 3], op| {
                let ticket = match n {
                    2 => client.push_range(&table, 4, &values, op),
                    _ => client.push_rows(&table, &[4, 5, 6], &values, op),
                };
                client.wait_applied(&ticket.unwrap())
            };
            push(&mut client, [3.0, -2.0, 0.5], PushOp::Assign).unwrap();
            push(&mut client, [1.0, 7.0, 0.5], PushOp::Min).unwrap();
            assert_eq!(pull(&mut client, &table), [1.0, -2.0, 0.5]);
            push(&mut client, [4.0, -9.0, -0.5], PushOp::Max).unwrap();
            assert_eq!(pull(&mut client, &table), [4.0, -2.0, 0.5]);
            let refused = push(&mut client, [9.0, f32::NAN, 9.0], PushOp::Max).unwrap_err();
            assert!(refused.to_string().contains("NaN"), "{refused}");
            assert_eq!(pull(&mut client, &table), [4.0, -2.0, 0.5]);
            if n < 2 {
                let pushed = client.push_rows(&table, &[5, 5, 5], &[1.0, 6.0, 2.0], PushOp::Max);
                client.wait_applied(&pushed.unwrap()).unwrap();
                assert_eq!(pull(&mut client, &table), [4.0, 6.0, 0.5]);
                let weighted = PushOptions::default().weight(2.0);
                let wrong = client.push_rows_with(&table, &[5], &[1.0], PushOp::Min, weighted);
                let text = wrong.unwrap_err().to_string();
                assert!(text.contains("push Min without it"), "{text}");
            }
        }
    });
}

/// NaN stays where a table does not check, and a new row begins with the initial values of the table.
#[test]
fn extremes_begin_with_initial_values() {
    each_transport(2, 1, |cluster| {
        let mut client = cluster.client(0, SyncMode::Asp);
        let any = TableBuilder::sparse::<f32>("any", 1).finite_check(false);
        let any = client.create_table::<f32>(any.spec()).unwrap();
        for value in [f32::NAN, 3.0] {
            let pushed = client.push_rows(&any, &[4], &[value], PushOp::Min).unwrap();
            client.wait_applied(&pushed).unwrap();
            let mut out = [0f32];
            let how = PullOptions::default();
            client.pull_rows(&any, &[4], &mut out, how).unwrap();
            assert!(out[0].is_nan());
        }
        let counts = TableBuilder::sparse::<i64>("counts", 1).init(Init::Constant(-5.0), 1);
        let counts = client.create_table::<i64>(counts.spec()).unwrap();
        for (key, op, expected) in [(1, PushOp::Max, -4), (2, PushOp::Min, -5)] {
            let pushed = client.push_rows(&counts, &[key], &[-4], op).unwrap();
            client.wait_applied(&pushed).unwrap();
            let mut out = [0];
            client
                .pull_rows(&counts, &[key], &mut out, PullOptions::default())
                .unwrap();
            assert_eq!(out, [expected]);
        }
    });
}

/// Blocks of memory that a server's directory has no room for refuse new rows, with the limit that is met.
/// What is stored stays as it is, and other tables go on.
#[test]
fn full_directory_refuses_rows_by_name() {
    each_transport(1, 1, |cluster| {
        let mut client = cluster.client(0, SyncMode::Asp);
        let [full, other] = ["full", "other"].map(|name| {
            let builder = TableBuilder::sparse::<i64>(name, 1).partitions(3);
            let table = client.create_table::<i64>(builder.spec()).unwrap();
            let first = client.push_rows(&table, &[1], &[5], PushOp::Sum).unwrap();
            client.wait_applied(&first).unwrap();
            table
        });
        let memory = &cluster.servers[0].memory;
        let shard = ShardId::new(TableId(0), 0);
        let owner = BlockOwner::of(shard, BlockKind::Pending, PartitionId(0));
        while memory.public.alloc(64, owner).is_ok() {}
        let refusal = |result: Result<(), ClientError>| match result {
            Err(error @ ClientError::Rejected { reject, .. }) => (reject, error.to_string()),
            other => panic!("{other:?}"),
        };
        // Key 1 is in each frame: in a refused one it is not pushed to.
        let (mut next, mut pushed) = (2u64, 1);
        let (reject, text) = loop {
            assert!(next < 1 << 20, "no push is refused");
            let keys: Vec<u64> = [1].into_iter().chain(next..next + 500).collect();
            let push = client
                .push_rows(&full, &keys, &[1; 501], PushOp::Sum)
                .unwrap();
            match client.wait_applied(&push) {
                Ok(()) => (next, pushed) = (next + 500, pushed + 1),
                refused => break refusal(refused),
            }
        };
        let RejectReason::TableFull {
            partition,
            rows,
            resource,
            limit,
        } = reject.reason
        else {
            panic!("{reject:?}");
        };
        assert_eq!(reject.table, full.id().0);
        assert!(
            partition < 3 && u64::from(rows) >= next - 1,
            "{reject:?} after {next}"
        );
        let known = RowResource::from_code(resource);
        assert_eq!(
            (known, limit as usize),
            (Some(RowResource::Blocks), MEMORY_BLOCKS_MAX)
        );
        for part in ["\"full\"", "65536 blocks of memory", "start more servers"] {
            assert!(text.contains(part), "{text}");
        }
        let mut out = [0i64; 2];
        client
            .pull_rows(&full, &[1, 2], &mut out, PullOptions::default())
            .unwrap();
        assert_eq!(out, [5 + pushed - 1, 1], "a refused frame changes nothing");
        let created = client.pull_rows(&full, &[u64::MAX], &mut out[..1], PullOptions::default());
        assert!(matches!(
            refusal(created.map(drop)).0.reason,
            RejectReason::TableFull { .. }
        ));
        let go_on = client
            .push_rows(&other, &[1, 2, 3], &[1; 3], PushOp::Sum)
            .unwrap();
        client.wait_applied(&go_on).unwrap();
        client
            .pull_rows(&other, &[1, 3], &mut out, PullOptions::default())
            .unwrap();
        assert_eq!(out, [6, 1]);
    });
}

#[test]
fn a_push_that_was_refused_long_ago_is_not_taken_for_applied() {
    each_transport(1, 1, |cluster| {
        let mut client = cluster.client(0, SyncMode::Asp);
        let spec = TableBuilder::sparse::<f32>("t", 1).optimizer(Optimizer::None);
        let table = client.create_table::<f32>(spec.spec()).unwrap();
        let push = |client: &mut Client, value: f32| {
            let ticket = client.push_rows(&table, &[1], &[value], PushOp::Sum);
            ticket.unwrap()
        };
        let good = push(&mut client, 1.0);
        let first = push(&mut client, f32::NAN);
        let between = push(&mut client, 1.0);
        let second = push(&mut client, f32::NAN);
        for _ in 0..REJECTS_KEPT_MAX + 10 {
            // No call waits for it.
            let _ = push(&mut client, f32::NAN);
        }
        let last = push(&mut client, f32::NAN);
        let after = push(&mut client, 1.0);
        client.wait_applied(&after).unwrap();
        assert_eq!(client.counters().rejects, REJECTS_KEPT_MAX as u64 + 13);
        assert_eq!(client.counters().rejects_unclaimed, 13);
        for _ in 0..2 {
            client.wait_applied(&good).unwrap();
            client.wait_applied(&between).unwrap();
            for ticket in [&first, &second] {
                match client.wait_applied(ticket) {
                    Err(ClientError::RejectForgotten { certain: true, .. }) => {}
                    other => panic!("{other:?}"),
                }
            }
            match client.try_applied(&last) {
                Err(ClientError::Rejected { reject, .. }) => {
                    assert_eq!(reject.code(), RejectCode::NotFinite);
                }
                other => panic!("{other:?}"),
            }
        }
        let told = client.wait_applied(&first).unwrap_err().to_string();
        assert!(told.contains("was refused (frames 2 to 2)"), "{told}");
    });
}

#[test]
fn a_thousand_assigns_arrive_in_order() {
    each_transport(2, 2, |cluster| {
        let mut client = cluster.client(0, SyncMode::Asp);
        let spec = TableBuilder::sparse::<i64>("t", 1);
        let table = client.create_table::<i64>(spec.spec()).unwrap();
        let mut last = None;
        for n in 0..1000 {
            last = Some(
                client
                    .push_rows(&table, &[77], &[n], PushOp::Assign)
                    .unwrap(),
            );
        }
        client.wait_applied(&last.unwrap()).unwrap();
        let mut out = [0i64];
        client
            .pull_rows(&table, &[77], &mut out, PullOptions::default())
            .unwrap();
        assert_eq!(out, [999]);
    });
}

#[test]
fn arguments_that_do_not_fit_are_refused_here() {
    each_transport(1, 1, |cluster| {
        let mut client = cluster.client(0, SyncMode::Asp);
        let table = client
            .create_table::<f32>(TableBuilder::rows::<f32>("r", 10, 2).spec())
            .unwrap();
        let mut out = [0f32; 3];
        let e = client
            .pull_rows(&table, &[1], &mut out, PullOptions::default())
            .unwrap_err();
        assert!(e.to_string().contains("3 elements for 1 rows of 2"), "{e}");
        let mut out = [0f32; 2];
        let e = client
            .pull_rows(&table, &[10], &mut out, PullOptions::default())
            .unwrap_err();
        assert!(e.to_string().contains("row 10 is past the end"), "{e}");
        assert!(client.push_rows(&table, &[10], &out, PushOp::Sum).is_err());
        assert!(
            client
                .pull_range(&table, 0, &mut out, PullOptions::default())
                .is_err()
        );
        assert!(client.open_table::<f64>("r").is_err());
        client
            .pull_rows(&table, &[9], &mut out, PullOptions::default())
            .unwrap();
    });
}

#[test]
fn pulls_are_started_now_and_finished_in_any_order() {
    each_transport(2, 1, |cluster| {
        let mut client = cluster.client(0, SyncMode::Asp);
        let table = client
            .create_table::<f32>(TableBuilder::sparse::<f32>("t", 2).spec())
            .unwrap();
        let keys: Vec<u64> = (0..500).collect();
        let values: Vec<f32> = (0..1000).map(|v| v as f32).collect();
        let t = client
            .push_rows(&table, &keys, &values, PushOp::Sum)
            .unwrap();
        client.wait_applied(&t).unwrap();
        let mut warm = vec![0f32; 1000];
        client
            .pull_rows(&table, &keys, &mut warm, PullOptions::default())
            .unwrap();
        let tickets: Vec<_> = (0..8)
            .map(|n| {
                let mine: Vec<u64> = (0..100).map(|k| k * 5 + n % 5).collect();
                client
                    .start_pull_rows(&table, &mine, PullOptions::default())
                    .unwrap()
            })
            .collect();
        client.cancel_pull(tickets[3]).unwrap();
        for n in [7, 0, 5, 1, 2, 4, 6] {
            let mut out = vec![0f32; 200];
            while !client.try_pull(tickets[n]).unwrap() {}
            client.finish_pull(tickets[n], &mut out).unwrap();
            for (row, pair) in out.chunks(2).enumerate() {
                let key = row * 5 + n % 5;
                assert_eq!(pair, [2.0 * key as f32, 2.0 * key as f32 + 1.0]);
            }
        }
        let e = client
            .finish_pull(tickets[3], &mut [0f32; 200])
            .unwrap_err();
        assert!(e.to_string().contains("finished or cancelled"), "{e}");
        assert!(
            client.counters().resolved_keys <= 500,
            "later pulls use hints"
        );
    });
}
