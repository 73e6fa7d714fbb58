//! Tables of rows as matrices: diagonals, triples and selected columns against a local matrix.

use tidewater::{
    Client, ClientError, Element, Job, JoinOptions, PullOptions, PushOp, Reduce, SyncMode, Table,
    TableBuilder,
};
use tidewater_vectors::matrix::{self, Triple};

fn job() -> Job {
    JoinOptions::embedded(2, 1)
        .join()
        .unwrap()
        .into_job()
        .unwrap()
}

/// All rows of a matrix, one after another.
fn pulled<T: Element>(client: &mut Client, table: &Table<T>, rows: u64) -> Vec<T> {
    let keys: Vec<u64> = (0..rows).collect();
    let mut out = vec![T::default(); keys.len() * table.dim()];
    client
        .pull_rows(table, &keys, &mut out, PullOptions::default())
        .unwrap();
    out
}

fn identity_of<T: Element + From<bool> + PartialEq + std::fmt::Debug>(client: &mut Client) {
    for (rows, cols) in [(5_u64, 5_u32), (3, 7), (9, 4), (1, 1)] {
        let name = format!("{:?}-{rows}-{cols}", T::DTYPE);
        let table = client
            .create_table::<T>(TableBuilder::rows::<T>(&name, rows, cols).spec())
            .unwrap();
        // What was there before does not stay.
        let filled = vec![T::from(true); rows as usize * cols as usize];
        let keys: Vec<u64> = (0..rows).collect();
        drop(
            client
                .push_rows(&table, &keys, &filled, PushOp::Assign)
                .unwrap(),
        );
        let ticket = matrix::assign_identity(client, &table).unwrap();
        client.wait_applied(&ticket).unwrap();
        let all = pulled(client, &table, rows);
        for (at, element) in all.iter().enumerate() {
            let due = T::from(at / cols as usize == at % cols as usize);
            assert_eq!(*element, due, "{name}, element {at}");
        }
    }
}

#[test]
fn identity_has_ones_on_its_diagonal() {
    let job = job();
    let mut client = job.client(SyncMode::Asp).unwrap();
    identity_of::<f32>(&mut client);
    identity_of::<f64>(&mut client);
    identity_of::<i32>(&mut client);
    identity_of::<i64>(&mut client);
    client.finish().unwrap();
}

/// More rows than one push takes; each value arrives at its place.
#[test]
fn diagonal_is_sent_in_parts() {
    let job = job();
    let mut client = job.client(SyncMode::Asp).unwrap();
    let spec = TableBuilder::rows::<f64>("long", 3_000, 1_000);
    let table = client.create_table::<f64>(spec.spec()).unwrap();
    let values: Vec<f64> = (0..1_000).map(|n| f64::from(n) + 0.5).collect();
    let ticket = matrix::assign_diagonal(&mut client, &table, &values).unwrap();
    client.wait_applied(&ticket).unwrap();
    let all = pulled(&mut client, &table, 3_000);
    for (row, elements) in all.chunks_exact(1_000).enumerate() {
        for (column, element) in elements.iter().enumerate() {
            let due = if row == column { values[row] } else { 0.0 };
            assert_eq!(
                element.to_bits(),
                due.to_bits(),
                "row {row}, column {column}"
            );
        }
    }
    client.finish().unwrap();
}

const fn triple(row: u64, column: u32, value: i64) -> Triple<i64> {
    Triple { row, column, value }
}

#[test]
fn triples_add_up_or_the_last_one_counts() {
    let job = job();
    let mut client = job.client(SyncMode::Asp).unwrap();
    let rows = TableBuilder::rows::<i64>("dense", 4, 3);
    let sparse = TableBuilder::sparse::<i64>("sparse", 3);
    let keys = [0, 1, 2, 3];
    for spec in [rows, sparse] {
        let table = client.create_table::<i64>(spec.spec()).unwrap();
        let mut local = vec![0_i64; 12];
        let triples = [
            triple(3, 2, 10),
            triple(0, 0, 1),
            triple(3, 2, 5),
            triple(3, 0, -7),
            triple(3, 2, 100),
            triple(0, 1, 2),
        ];
        let ticket = matrix::add_triples(&mut client, &table, &triples).unwrap();
        client.wait_applied(&ticket).unwrap();
        for t in triples {
            local[t.row as usize * 3 + t.column as usize] += t.value;
        }
        let mut out = vec![0; 12];
        client
            .pull_rows(&table, &keys, &mut out, PullOptions::default())
            .unwrap();
        assert_eq!(out, local);

        // No push is lost, although none was waited for.
        for n in 0..50 {
            drop(matrix::add_triples(&mut client, &table, &[triple(1, 2, n)]).unwrap());
            drop(matrix::assign_triples(&mut client, &table, &[triple(1, 0, n)]).unwrap());
            local[3] = n;
            local[5] += n;
        }
        let assigned = [triple(3, 2, 8), triple(1, 1, 4), triple(3, 2, 9)];
        let ticket = matrix::assign_triples(&mut client, &table, &assigned).unwrap();
        client.wait_applied(&ticket).unwrap();
        for t in assigned {
            local[t.row as usize * 3 + t.column as usize] = t.value;
        }
        client
            .pull_rows(&table, &keys, &mut out, PullOptions::default())
            .unwrap();
        assert_eq!(out, local);
        // Nothing to do is done.
        let none = matrix::add_triples(&mut client, &table, &[]).unwrap();
        client.wait_applied(&none).unwrap();
    }
    client.finish().unwrap();
}

#[test]
fn columns_come_in_the_callers_order() {
    let job = job();
    let mut client = job.client(SyncMode::Asp).unwrap();
    // More rows than are pulled at once.
    let (rows, cols) = (700_usize, 4_000_usize);
    let spec = TableBuilder::rows::<f32>("m", rows as u64, cols as u32);
    let table = client.create_table::<f32>(spec.spec()).unwrap();
    let element = |row: usize, column: usize| (row * cols + column) as f32;
    for first in (0..rows).step_by(100) {
        let keys: Vec<u64> = (first as u64..first as u64 + 100).collect();
        let at = |n: usize| element(first + n / cols, n % cols);
        let values: Vec<f32> = (0..100 * cols).map(at).collect();
        let pushed = client.push_rows(&table, &keys, &values, PushOp::Assign);
        client.wait_applied(&pushed.unwrap()).unwrap();
    }
    let keys: Vec<u64> = (0..rows as u64).rev().chain([5, 5]).collect();
    let columns = [3_999, 0, 17, 0];
    let mut out = vec![0.0; keys.len() * columns.len()];
    let options = PullOptions::default();
    matrix::pull_columns(&mut client, &table, &keys, &columns, &mut out, options).unwrap();
    for (row, key) in out.chunks_exact(columns.len()).zip(&keys) {
        let due = columns.map(|column| element(*key as usize, column as usize));
        assert_eq!(row, due, "row {key}");
    }
    let mut none: [f32; 0] = [];
    matrix::pull_columns(&mut client, &table, &keys, &[], &mut none, options).unwrap();
    client.finish().unwrap();
}

#[test]
fn wrong_places_are_refused_before_anything_is_sent() {
    let job = job();
    let mut client = job.client(SyncMode::Asp).unwrap();
    let rows = TableBuilder::rows::<i64>("rows", 2, 3);
    let rows = client.create_table::<i64>(rows.spec()).unwrap();
    let sparse = TableBuilder::sparse::<i64>("sparse", 3);
    let sparse = client.create_table::<i64>(sparse.spec()).unwrap();
    let ticked = TableBuilder::rows::<i64>("ticked", 2, 3).at_clock(Reduce::Sum);
    let ticked = client.create_table::<i64>(ticked.spec()).unwrap();
    let mut out = [0; 5];
    let options = PullOptions::default();
    let wrong = [(0, 0, 1), (0, 3, 1)].map(|(row, column, value)| triple(row, column, value));
    let client = &mut client;
    let refusals = [
        matrix::assign_diagonal(client, &rows, &[1, 2, 3]).err(),
        matrix::assign_identity(client, &sparse).err(),
        matrix::add_triples(client, &rows, &wrong).err(),
        matrix::assign_triples(client, &rows, &wrong).err(),
        matrix::assign_triples(client, &ticked, &wrong[..1]).err(),
        matrix::pull_columns(client, &rows, &[0], &[3], &mut out[..1], options).err(),
        matrix::pull_columns(client, &rows, &[0, 1], &[0, 1], &mut out, options).err(),
    ];
    let said = refusals.map(|refusal| match refusal {
        Some(ClientError::Argument { op, table, what }) => format!("{op} {table}: {what}"),
        other => panic!("{other:?}"),
    });
    assert_eq!(
        said,
        [
            "assign_diagonal rows: 3 values for the diagonal of 2 x 3; it has 2",
            "assign_identity sparse: the table has no numbered rows; create it by TableBuilder::rows",
            "add_triples rows: column 3 of a table with 3 columns",
            "assign_triples rows: column 3 of a table with 3 columns",
            "assign_triples ticked: the rows do not show this client's own pushes before a tick, or the end of its \
             task; assign complete rows by push_rows",
            "pull_columns rows: column 3 of a table with 3 columns",
            "pull_columns rows: out has 5 elements; 2 rows of 2 columns have 4",
        ]
    );
    client.flush().unwrap();
    assert_eq!(pulled(client, &rows, 2), [0; 6]);
    assert_eq!(client.count_keys(&sparse).unwrap(), 0);
}
