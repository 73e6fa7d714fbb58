//! Functions at the data: expressions, reductions and named functions on embedded clusters, against the
//! same computation here.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(clippy::print_stdout, reason = "a test says what it compared")]

use tidewater::functions::{
    Elements, ElementsMut, Function, FunctionError, Functions, Piece, register,
};
use tidewater::{
    Client, ClientError, Expression, FunctionArgs, Job, JoinOptions, Optimizer, PullOptions,
    PushOp, Reduce, Reduction, Scalar, SyncMode, Table, TableBuilder,
};
use tidewater_service::embedded::ClusterConfig;
use tidewater_service::server::ServerFunctions;

#[path = "functions/modules.rs"]
mod modules;

/// Elements of the range tables: several pieces, the last one short.
const ELEMENTS: usize = 150_001;

fn cluster(servers: u32, appliers: u16) -> (Job, Client) {
    cluster_with(servers, appliers, ServerFunctions::default())
}

fn cluster_with(servers: u32, appliers: u16, functions: ServerFunctions) -> (Job, Client) {
    let config = ClusterConfig {
        servers,
        appliers,
        functions,
        ..ClusterConfig::default()
    };
    let cluster = JoinOptions::from(config)
        .join()
        .unwrap()
        .into_job()
        .unwrap();
    let client = cluster.client_of(0, SyncMode::Asp).unwrap();
    (cluster, client)
}

/// Values with many bits, of both signs.
fn values(n: usize, seed: u64) -> Vec<f64> {
    let mut state = seed;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 11) as f64 / (1_u64 << 52) as f64 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

fn range_table(client: &mut Client, name: &str, values: &[f64]) -> Table<f64> {
    let table = TableBuilder::range::<f64>(name, values.len() as u64, 1).partitions(5);
    let table = client.create_table::<f64>(table.spec()).unwrap();
    let ticket = client
        .push_range(&table, 0, values, PushOp::Assign)
        .unwrap();
    client.wait_applied(&ticket).unwrap();
    table
}

fn pull(client: &mut Client, table: &Table<f64>, n: usize) -> Vec<f64> {
    let mut out = vec![0.0; n];
    client
        .pull_range(table, 0, &mut out, PullOptions::default())
        .unwrap();
    out
}

fn float(value: Option<Scalar>) -> f64 {
    match value {
        Some(Scalar::Float(value)) => value,
        other => panic!("{other:?} is no float"),
    }
}

/// An expression gives the bits of the same computation here, on every kind of range.
#[test]
fn update_matches_local_computation() {
    let (_cluster, mut client) = cluster(2, 2);
    let (x, y) = (values(ELEMENTS, 1), values(ELEMENTS, 2));
    let (a, b) = (
        range_table(&mut client, "a", &x),
        range_table(&mut client, "b", &y),
    );
    let c = range_table(&mut client, "c", &vec![0.0; ELEMENTS]);
    let function = Expression::parse("if(x > y, x * p0, y - p1) + index").unwrap();
    let args = FunctionArgs {
        inputs: &[&a, &b],
        parameters: &[3.0, 0.25],
        range: None,
    };
    let ticket = client.update(&c, &function, &args).unwrap();
    client.wait_applied(&ticket).unwrap();
    let expected = |n: usize| match x[n] > y[n] {
        true => x[n] * 3.0 + n as f64,
        false => y[n] - 0.25 + n as f64,
    };
    let result = pull(&mut client, &c, ELEMENTS);
    let wrong = (0..ELEMENTS).find(|&n| result[n].to_bits() != expected(n).to_bits());
    assert_eq!(wrong, None);

    // A part of the target, in place: the elements around it stay.
    let range = 4_000..100_001;
    let args = FunctionArgs {
        range: Some(range.start as u64..range.end as u64),
        ..FunctionArgs::default()
    };
    let double = Expression::parse("2 * x").unwrap();
    let ticket = client.update(&c, &double, &args).unwrap();
    client.wait_applied(&ticket).unwrap();
    let result = pull(&mut client, &c, ELEMENTS);
    let wrong = (0..ELEMENTS).find(|&n| {
        let factor = if range.contains(&n) { 2.0 } else { 1.0 };
        result[n].to_bits() != (factor * expected(n)).to_bits()
    });
    assert_eq!(wrong, None);
}

/// Rows by index and rows by key: a function covers every row that exists, once.
#[test]
fn update_covers_rows_and_keys() {
    let (_cluster, mut client) = cluster(2, 2);
    let rows = TableBuilder::rows::<i64>("rows", 5_000, 3);
    let rows = client.create_table::<i64>(rows.spec()).unwrap();
    let sparse = TableBuilder::sparse::<i64>("sparse", 3);
    let sparse = client.create_table::<i64>(sparse.spec()).unwrap();
    let indices: Vec<u64> = (0..5_000).collect();
    let keys: Vec<u64> = indices
        .iter()
        .map(|n| n.wrapping_mul(0x9E37_79B9_7F4A_7C15))
        .collect();
    let numbers: Vec<i64> = (0..15_000).collect();
    for (table, keys) in [(&rows, &indices), (&sparse, &keys)] {
        let ticket = client
            .push_rows(table, keys, &numbers, PushOp::Sum)
            .unwrap();
        client.wait_applied(&ticket).unwrap();
    }
    let add = Expression::parse("x + 7 * index").unwrap();
    for (table, keys) in [(&rows, &indices), (&sparse, &keys)] {
        let ticket = client
            .update(table, &add, &FunctionArgs::default())
            .unwrap();
        client.wait_applied(&ticket).unwrap();
        let mut out = vec![0; numbers.len()];
        client
            .pull_rows(table, keys, &mut out, PullOptions::default())
            .unwrap();
        // In a sparse table the index is the column.
        let index = |n: i64| if table.id() == rows.id() { n } else { n % 3 };
        let wrong = out
            .iter()
            .zip(&numbers)
            .find(|&(&x, &n)| x != n + 7 * index(n));
        assert_eq!(wrong, None);
        let one = Expression::parse("1").unwrap();
        let count = client.reduce(table, &one, Reduction::Sum, &FunctionArgs::default());
        assert_eq!(count.unwrap(), Some(Scalar::Integer(15_000)));
    }
}

/// Reductions of awkward elements: all negative, NaN, integers past 2^53, no element.
#[test]
fn reductions_of_edge_cases() {
    let (_cluster, mut client) = cluster(1, 2);
    let all = FunctionArgs::default();
    let spec = TableBuilder::range::<f64>("nan", 1, 2_000).finite_check(false);
    let table = client.create_table::<f64>(spec.spec()).unwrap();
    let negative: Vec<f64> = (1..=2_000).map(|n| -f64::from(n)).collect();
    let ticket = client
        .push_range(&table, 0, &negative, PushOp::Assign)
        .unwrap();
    client.wait_applied(&ticket).unwrap();
    let x = Expression::parse("x").unwrap();
    let reduce = |client: &mut Client, text: &str, how| {
        let function = Expression::parse(text).unwrap();
        float(client.reduce(&table, &function, how, &all).unwrap())
    };
    assert_eq!(reduce(&mut client, "x", Reduction::Max), -1.0);
    assert_eq!(reduce(&mut client, "x", Reduction::Min), -2_000.0);
    assert_eq!(reduce(&mut client, "abs(x)", Reduction::Sum), 2_001_000.0);
    assert_eq!(
        reduce(&mut client, "if(x < -1000, 1, 0)", Reduction::Sum),
        1_000.0
    );
    let ticket = client
        .push_range(&table, 777, &[f64::NAN], PushOp::Assign)
        .unwrap();
    client.wait_applied(&ticket).unwrap();
    for how in [Reduction::Sum, Reduction::Min, Reduction::Max] {
        let value = client.reduce(&table, &x, how, &all).unwrap();
        assert!(float(value).is_nan(), "{how:?}");
    }

    let spec = TableBuilder::rows::<i64>("large", 1_000, 1);
    let large = client.create_table::<i64>(spec.spec()).unwrap();
    let big = (1_i64 << 53) + 1;
    let keys: Vec<u64> = (0..1_000).collect();
    let ticket = client
        .push_rows(&large, &keys, &[big; 1_000], PushOp::Sum)
        .unwrap();
    client.wait_applied(&ticket).unwrap();
    let x = Expression::parse("x").unwrap();
    let sum = client
        .reduce(&large, &x, Reduction::Sum, &FunctionArgs::default())
        .unwrap();
    assert_eq!(sum, Some(Scalar::Integer(1_000 * big)));

    let spec = TableBuilder::rows::<i64>("wide", 2, 1);
    let wide = client.create_table::<i64>(spec.spec()).unwrap();
    let ticket = client
        .push_rows(&wide, &[0, 1], &[i64::MAX, 1], PushOp::Sum)
        .unwrap();
    client.wait_applied(&ticket).unwrap();
    let sum = client.reduce(&wide, &x, Reduction::Sum, &FunctionArgs::default());
    let sum = sum.unwrap_err().to_string();
    assert!(sum.contains("9223372036854775808"), "{sum}");

    let spec = TableBuilder::sparse::<i64>("empty", 1);
    let empty = client.create_table::<i64>(spec.spec()).unwrap();
    let max = client
        .reduce(&empty, &x, Reduction::Max, &FunctionArgs::default())
        .unwrap();
    assert_eq!(max, None);
}

/// A sum has the same bits wherever the partitions lie.
#[test]
fn sums_have_equal_bits_on_any_servers() {
    let x = values(ELEMENTS, 3);
    let mut results = Vec::new();
    for (servers, appliers) in [(1, 1), (1, 2), (2, 2), (3, 1)] {
        let (_cluster, mut client) = cluster(servers, appliers);
        let table = range_table(&mut client, "x", &x);
        let square = Expression::parse("x * x + exp(x)").unwrap();
        for _ in 0..5 {
            let sum = client.reduce(&table, &square, Reduction::Sum, &FunctionArgs::default());
            results.push(float(sum.unwrap()).to_bits());
        }
    }
    println!(
        "{} sums of {ELEMENTS} elements: {:x}",
        results.len(),
        results[0]
    );
    assert!(
        results.iter().all(|bits| *bits == results[0]),
        "{results:x?}"
    );
}

/// A function comes in its turn between the pushes of its client.
#[test]
fn functions_keep_the_order_of_pushes() {
    let (_cluster, mut client) = cluster(2, 1);
    let table = range_table(&mut client, "t", &vec![1.0; 10_000]);
    let double = Expression::parse("2 * x").unwrap();
    let ones = vec![1.0; 10_000];
    let mut last = None;
    for _ in 0..10 {
        let first = client.push_range(&table, 0, &ones, PushOp::Sum).unwrap();
        let mut ticket = client
            .update(&table, &double, &FunctionArgs::default())
            .unwrap();
        ticket.merge(&first);
        last = Some(ticket);
    }
    client.wait_applied(&last.unwrap()).unwrap();
    let expected = (0..10).fold(1.0, |x, _| 2.0 * (x + 1.0));
    assert_eq!(pull(&mut client, &table, 10_000), vec![expected; 10_000]);
}

/// Tables with elements that do not lie together are refused before anything is sent.
#[test]
fn unlike_inputs_are_refused() {
    let (_cluster, mut client) = cluster(2, 1);
    let a = range_table(&mut client, "a", &[1.0; 100]);
    let b = range_table(&mut client, "b", &[1.0; 101]);
    let sum = Expression::parse("x + y").unwrap();
    let args = FunctionArgs {
        inputs: &[&a, &b],
        ..FunctionArgs::default()
    };
    let refused = client.update(&a, &sum, &args).unwrap_err();
    assert!(refused.to_string().contains("\"b\""), "{refused}");
    let refused = client.reduce(&a, &sum, Reduction::Sum, &args).unwrap_err();
    assert!(matches!(refused, ClientError::Argument { .. }), "{refused}");
    let missing = client
        .update(&a, &sum, &FunctionArgs::default())
        .unwrap_err();
    assert!(missing.to_string().contains("2 inputs"), "{missing}");
}

/// A result that is not finite reaches its caller alone: the piece keeps its elements.
#[test]
fn result_with_nan_leaves_piece_unchanged() {
    let (_cluster, mut client) = cluster(1, 1);
    let table = range_table(&mut client, "t", &[4.0, 1.0, -1.0, 9.0]);
    let root = Expression::parse("sqrt(x)").unwrap();
    let ticket = client
        .update(&table, &root, &FunctionArgs::default())
        .unwrap();
    let refused = client.wait_applied(&ticket).unwrap_err();
    assert!(refused.to_string().contains("NaN"), "{refused}");
    assert_eq!(pull(&mut client, &table, 4), [4.0, 1.0, -1.0, 9.0]);
}

/// An update that could fail at a tick is not sent: each kind is refused with its reason and the ways out.
/// Reductions work.
#[test]
fn table_at_tick_refuses_updates() {
    let (_cluster, mut client) = cluster(1, 1);
    let mut table = |spec: TableBuilder| {
        let spec = spec.at_clock(Reduce::Sum).optimizer(Optimizer::None);
        client.create_table::<f64>(spec.spec()).unwrap()
    };
    let blocks = |name| TableBuilder::range::<f64>(name, 1, 10);
    let checked = table(blocks("checked"));
    let snapshot = table(blocks("snapshot").snapshot().finite_check(false));
    let sparse = table(TableBuilder::sparse::<f64>("sparse", 2).finite_check(false));
    let rows = table(TableBuilder::rows::<f64>("rows", 4, 2).finite_check(false));
    let zero = Expression::parse("0").unwrap();
    let all = FunctionArgs::default();
    for (refused, reason) in [
        (client.update(&checked, &zero, &all), "finite_check(false)"),
        (client.update(&snapshot, &zero, &all), "snapshot"),
        (client.update(&sparse, &zero, &all), "sparse"),
        (
            client.call_update(&rows, "add", &[1], &all),
            "named function",
        ),
        (
            client.call_rows(&rows, "mean", &[], &[1], &[1.0]),
            "named function",
        ),
    ] {
        let refused = refused.unwrap_err();
        assert!(matches!(refused, ClientError::Argument { .. }), "{refused}");
        let text = refused.to_string();
        for part in [reason, "immediate effect", "assignment"] {
            assert!(text.contains(part), "{text}");
        }
    }
    let x = Expression::parse("x").unwrap();
    let sum = client.reduce(&checked, &x, Reduction::Sum, &FunctionArgs::default());
    assert_eq!(float(sum.unwrap()), 0.0);
}

#[test]
fn wrong_expression_names_its_position() {
    for (text, position) in [
        ("x + ", "4"),
        ("x + (y", "6"),
        ("x and y", "0"),
        ("frob(x)", "0"),
    ] {
        let refused = Expression::<f64>::parse(text).unwrap_err();
        assert!(refused.to_string().contains(position), "{text}: {refused}");
    }
}

/// Adds the first argument byte to each element; defects on request.
struct Add;

impl Function for Add {
    fn update(
        &self,
        arguments: &[u8],
        piece: &Piece<'_>,
        target: ElementsMut<'_>,
    ) -> Result<(), FunctionError> {
        let ElementsMut::F64(target) = target else {
            return Err(FunctionError(2));
        };
        let amount = *arguments.first().ok_or(FunctionError(1))?;
        let other = piece.inputs.first();
        for (n, element) in target.iter_mut().enumerate() {
            *element += f64::from(amount);
            if let Some(Elements::F64(other)) = other {
                *element += other[n];
            }
        }
        assert_ne!(amount, 13, "an unlucky number");
        Ok(())
    }

    fn reduce(
        &self,
        _: &[u8],
        piece: &Piece<'_>,
        target: Elements<'_>,
        result: &mut Vec<u8>,
    ) -> Result<(), FunctionError> {
        let Elements::F64(target) = target else {
            return Err(FunctionError(2));
        };
        result.extend_from_slice(&piece.first_index.to_le_bytes());
        result.extend_from_slice(&(target.len() as u64).to_le_bytes());
        Ok(())
    }
}

/// A handle in the manner of ps-lite: a row is a sum and the number of pushes that made it; a push
/// brings one value a key, a pull returns their mean.
struct Mean;

impl Function for Mean {
    fn update(
        &self,
        _: &[u8],
        piece: &Piece<'_>,
        target: ElementsMut<'_>,
    ) -> Result<(), FunctionError> {
        let (ElementsMut::F64(rows), [Elements::F64(pushed)]) = (target, piece.inputs) else {
            return Err(FunctionError(2));
        };
        if pushed.len() != piece.keys.len() {
            return Err(FunctionError(3));
        }
        for (row, value) in rows.chunks_exact_mut(piece.dim).zip(*pushed) {
            row[0] += value;
            row[1] += 1.0;
        }
        Ok(())
    }

    fn reduce(
        &self,
        _: &[u8],
        piece: &Piece<'_>,
        target: Elements<'_>,
        result: &mut Vec<u8>,
    ) -> Result<(), FunctionError> {
        let Elements::F64(rows) = target else {
            return Err(FunctionError(2));
        };
        for row in rows.chunks_exact(piece.dim) {
            let mean = if row[1] > 0.0 { row[0] / row[1] } else { 0.0 };
            result.extend_from_slice(&mean.to_le_bytes());
        }
        Ok(())
    }
}

/// Number of elements of a table.
fn count(client: &mut Client, table: &Table<f64>) -> f64 {
    let one = Expression::parse("1").unwrap();
    let all = FunctionArgs::default();
    float(client.reduce(table, &one, Reduction::Sum, &all).unwrap())
}

/// A push and a pull with a meaning that the server's program decides, on rows by key and by index.
#[test]
fn handle_decides_pushes_and_pulls() {
    register_all();
    let (_cluster, mut client) = cluster(2, 2);
    let sparse = TableBuilder::sparse::<f64>("sparse", 2);
    let rows = TableBuilder::rows::<f64>("rows", 30_000, 2);
    let spread: Vec<u64> = (0..5_000_u64).map(|n| n * n * 1_000_003).collect();
    let dense: Vec<u64> = (0..5_000).map(|n| n * 6).collect();
    for (spec, keys) in [(sparse, spread), (rows, dense)] {
        let table = client.create_table::<f64>(spec.spec()).unwrap();
        let values: Vec<f64> = (0..keys.len()).map(|n| n as f64).collect();
        for factor in [1.0, 2.0, 6.0] {
            let values: Vec<f64> = values.iter().map(|x| factor * x).collect();
            let ticket = client
                .call_rows(&table, "mean", &[], &keys, &values)
                .unwrap();
            client.wait_applied(&ticket).unwrap();
        }
        let mut means = vec![-1.0; keys.len()];
        client
            .call_pull(&table, "mean", &[], &keys, &mut means)
            .unwrap();
        let expected: Vec<f64> = values.iter().map(|x| 3.0 * x).collect();
        assert_eq!(means, expected);

        // A wrong name creates no rows.
        let before = count(&mut client, &table);
        let ticket = client.call_rows(&table, "meen", &[], &[1], &[1.0]).unwrap();
        assert!(client.wait_applied(&ticket).is_err());
        assert_eq!(count(&mut client, &table), before);

        let twice = client
            .call_rows(&table, "mean", &[], &[6, 6], &[1.0, 1.0])
            .unwrap_err();
        assert!(twice.to_string().contains("key 1"), "{twice}");
        let ticket = client.call_rows(&table, "mean", &[], &keys, &[]).unwrap();
        let refused = client.wait_applied(&ticket).unwrap_err();
        assert!(refused.to_string().contains("number 3"), "{refused}");
        let wrong = client.call_pull(&table, "mean", &[], &keys, &mut vec![0.0; 10_000]);
        assert!(
            matches!(wrong, Err(ClientError::Protocol { .. })),
            "{wrong:?}"
        );
    }
}

/// In a table that counts the pushes of a key, an update of keys counts as one: a key gets its row at the third.
/// A result needs no row and makes none.
#[test]
fn update_of_keys_counts_as_push() {
    register_all();
    let (_cluster, mut client) = cluster(2, 2);
    let spec = TableBuilder::sparse::<f64>("counted", 2).admit_after(3);
    let table = client.create_table::<f64>(spec.spec()).unwrap();
    let (known, all) = ([2, 4], [1, 2, 3, 4, 5]);
    for times in 1..=4 {
        let (keys, values) = match times {
            3 => (&all[..], &[5.0; 5][..]),
            _ => (&known[..], &[5.0; 2][..]),
        };
        let ticket = client.call_rows(&table, "mean", &[], keys, values).unwrap();
        client.wait_applied(&ticket).unwrap();
        let mut means = [-1.0; 5];
        client
            .call_pull(&table, "mean", &[], &all, &mut means)
            .unwrap();
        let (rows, mean) = if times < 3 { (0, 0.0) } else { (2, 5.0) };
        assert_eq!(means, [0.0, mean, 0.0, mean, 0.0], "call {times}");
        assert_eq!(client.count_keys(&table).unwrap(), rows);
    }
    let mut rows = [0.0; 4];
    client
        .pull_rows(&table, &known, &mut rows, PullOptions::default())
        .unwrap();
    assert_eq!(rows, [10.0, 2.0, 10.0, 2.0]);
}

/// Registers the functions of all tests: a process does so once.
fn register_all() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| register(Functions::default().with("add", Add).with("mean", Mean)).unwrap());
}

/// Functions by name: the same bits as an expression; a panic, a refusal and a missing function are
/// errors of their caller, and the server goes on.
#[test]
fn named_function_runs_or_refuses() {
    register_all();
    let (_cluster, mut client) = cluster(2, 2);
    let x = values(ELEMENTS, 4);
    let (a, b) = (
        range_table(&mut client, "a", &x),
        range_table(&mut client, "b", &x),
    );
    let args = FunctionArgs {
        inputs: &[&b],
        ..FunctionArgs::default()
    };
    let ticket = client.call_update(&a, "add", &[5], &args).unwrap();
    client.wait_applied(&ticket).unwrap();
    let sum = Expression::parse("(x + 5) + x").unwrap();
    let ticket = client.update(&b, &sum, &FunctionArgs::default()).unwrap();
    client.wait_applied(&ticket).unwrap();
    let after = pull(&mut client, &a, ELEMENTS);
    assert_eq!(after, pull(&mut client, &b, ELEMENTS));

    for (name, arguments, expected) in [
        ("add", &[13][..], "panicked"),
        ("add", &[], "number 1"),
        ("subtract", &[5], "2 functions"),
    ] {
        let ticket = client.call_update(&a, name, arguments, &args).unwrap();
        let refused = client.wait_applied(&ticket).unwrap_err();
        assert!(refused.to_string().contains(expected), "{refused}");
        assert_eq!(pull(&mut client, &a, ELEMENTS), after);
    }

    let pieces = client
        .call_reduce(&a, "add", &[], &FunctionArgs::default())
        .unwrap();
    let mut next = 0;
    for piece in &pieces {
        let (first, count) = piece.split_at(8);
        assert_eq!(u64::from_le_bytes(first.try_into().unwrap()), next);
        next += u64::from_le_bytes(count.try_into().unwrap());
    }
    assert_eq!((next, pieces.len() > 4), (ELEMENTS as u64, true));
}
