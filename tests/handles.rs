//! Handles and tickets carry their client's identity: no call accepts those of another client.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fmt::Debug;
use std::time::Duration;

use tidewater::{AnyTable, Client, ClientError, PullOptions, SyncMode, TableBuilder, Ticket};
use tidewater_lanes::fabric::TransportKind::{Shm, Tcp};
use tidewater_protocol::table::{DType, PushOp};
use tidewater_testkit::threads::Cluster;

/// The text of an argument error.
fn argument<T: Debug>(result: Result<T, ClientError>) -> String {
    match result {
        Err(e @ ClientError::Argument { .. }) => e.to_string(),
        other => panic!("an argument error is due, not {other:?}"),
    }
}

fn number(client: &Client) -> String {
    let told = format!("{client:?}");
    let number = told.split("number: ").nth(1).unwrap();
    let digits: String = number.chars().take_while(char::is_ascii_digit).collect();
    format!("client {digits}")
}

/// Two clients of one rank that open the same two tables in opposite order.
#[test]
fn handles_of_another_client_are_refused() {
    for transport in [Shm, Tcp] {
        let cluster = Cluster::start(transport, 1, 1, 1);
        let (mut a, mut b) = (
            cluster.client(0, SyncMode::Asp),
            cluster.client(0, SyncMode::Asp),
        );
        let one = TableBuilder::sparse::<f32>("one", 2);
        let two = TableBuilder::sparse::<f64>("two", 1);
        let range = TableBuilder::range::<f32>("range", 4, 1);
        let one_a = a.create_table::<f32>(one.spec()).unwrap();
        let two_a = a.create_table::<f64>(two.spec()).unwrap();
        let range_a = a.create_table::<f32>(range.spec()).unwrap();
        // The slot is empty there; then it holds another table of another type.
        for opened in [false, true] {
            if opened {
                b.open_table::<f64>("two").unwrap();
                b.open_table::<f32>("one").unwrap();
            }
            let mut out = [42f32; 2];
            let options = PullOptions::default();
            let said = [
                argument(b.push_rows(&one_a, &[7], &[1.0, 2.0], PushOp::Sum)),
                argument(b.pull_rows(&one_a, &[7], &mut out, options)),
                argument(b.start_pull_rows(&one_a, &[7], options)),
                argument(b.push_range(&range_a, 0, &[1.0], PushOp::Sum)),
                argument(b.pull_range(&range_a, 0, &mut out, options)),
                argument(b.release_table(one_a)),
                argument(AnyTable::F32(one_a).release(&mut b)),
            ];
            for text in said {
                assert!(text.contains(&number(&a)), "{text}");
                assert!(text.contains(&number(&b)), "{text}");
            }
            assert_eq!(b.spec(&one_a), None);
            assert_eq!(out, [42.0; 2]);
        }
        // No call has reached any table.
        let mut out = [1f32; 2];
        a.pull_rows(&one_a, &[7], &mut out, PullOptions::default())
            .unwrap();
        assert_eq!(out, [0.0; 2]);
        let mut out = [1f64];
        a.pull_rows(&two_a, &[7], &mut out, PullOptions::default())
            .unwrap();
        assert_eq!(out, [0.0]);
        // A table opened twice has one handle.
        assert_eq!(a.open_table::<f32>("one").unwrap(), one_a);
    }
}

#[test]
fn tickets_of_another_client_are_refused() {
    for transport in [Shm, Tcp] {
        let cluster = Cluster::start(transport, 1, 1, 1);
        let (mut a, mut b) = (
            cluster.client(0, SyncMode::Asp),
            cluster.client(0, SyncMode::Asp),
        );
        let spec = TableBuilder::sparse::<i64>("t", 1);
        let table = a.create_table::<i64>(spec.spec()).unwrap();
        let table_b = b.create_table::<i64>(spec.spec()).unwrap();
        let pushed = a.push_rows(&table, &[1], &[5], PushOp::Sum).unwrap();
        for text in [
            argument(b.wait_applied(&pushed)),
            argument(b.try_applied(&pushed)),
        ] {
            assert!(text.contains(&number(&a)), "{text}");
            assert!(text.contains(&number(&b)), "{text}");
            assert!(text.contains("\"t\""), "{text}");
        }
        // Merged, they belong to no client.
        let mut both = Ticket::default();
        b.wait_applied(&both).unwrap();
        both.merge(&pushed);
        a.wait_applied(&both).unwrap();
        both.merge(&b.push_rows(&table_b, &[1], &[5], PushOp::Sum).unwrap());
        argument(a.wait_applied(&both));
        argument(b.wait_applied(&both));
        // Pulls.
        let options = PullOptions::default();
        let pull = a.start_pull_rows(&table, &[1], options).unwrap();
        let pull_b = b.start_pull_rows(&table_b, &[1], options).unwrap();
        argument(b.finish_pull(pull, &mut [0i64]));
        argument(b.try_pull(pull));
        argument(b.cancel_pull(pull));
        let text = argument(a.finish_pull(pull, &mut [0f64]));
        assert!(text.contains(&format!("{:?}", DType::F64)), "{text}");
        let mut out = [0i64];
        a.finish_pull(pull, &mut out).unwrap();
        assert_eq!(out[0] % 5, 0);
        b.cancel_pull(pull_b).unwrap();
    }
}

/// A client that creates and releases tables keeps no state of them, also after another client's release.
#[test]
fn released_tables_leave_nothing_behind() {
    let tables = |client: &Client| {
        let told = format!("{client:?}");
        told.split("tables: ").nth(1).unwrap().starts_with("1 ")
            || told.split("tables: ").nth(1).unwrap().starts_with("1,")
    };
    let cluster = Cluster::start(Shm, 1, 1, 1);
    let (mut a, mut b) = (
        cluster.client(0, SyncMode::Asp),
        cluster.client(0, SyncMode::Asp),
    );
    a.set_timeout(Duration::from_secs(60));
    let kept = TableBuilder::sparse::<i64>("kept", 1);
    let kept_a = a.create_table::<i64>(kept.spec()).unwrap();
    for round in 0..20 {
        let spec = TableBuilder::sparse::<i64>(&format!("t{round}"), 1);
        let table = a.create_table::<i64>(spec.spec()).unwrap();
        b.create_table::<i64>(spec.spec()).unwrap();
        let keys: Vec<u64> = (0..100).collect();
        let mut out = vec![0i64; 100];
        a.pull_rows(&table, &keys, &mut out, PullOptions::default())
            .unwrap();
        let pull = a
            .start_pull_rows(&table, &keys, PullOptions::default())
            .unwrap();
        a.release_table(table).unwrap();
        assert!(tables(&a), "{a:?} in round {round}");
        let text = argument(a.push_rows(&table, &[1], &[1], PushOp::Sum));
        assert!(text.contains("released"), "{text}");
        argument(a.finish_pull(pull, &mut out));
        argument(a.release_table(table));
    }
    let pushed = a.push_rows(&kept_a, &[1], &[1], PushOp::Sum).unwrap();
    a.wait_applied(&pushed).unwrap();
}
