//! Functions from WebAssembly modules on embedded clusters: the same bits as the other two kinds of
//! functions, what a defect does to others, and modules that clients load.

use std::sync::Arc;
use std::time::Duration;

use tidewater::{ClientError, TransportChoice};
use tidewater_runtime::clock::{Deadline, now};
use tidewater_runtime::sync::{AtomicBool, Ordering};
use tidewater_service::embedded::Cluster;
use tidewater_wasm::{Limits, Modules};

use super::*;

const FUEL: u64 = 10_000_000;

fn binary(text: &str) -> Vec<u8> {
    wat::parse_str(text).unwrap()
}

fn axpy() -> Vec<u8> {
    binary(include_str!("../../server/wasm/examples/axpy.wat"))
}

/// A module with the body of its update.
fn update_of(body: &str) -> Vec<u8> {
    binary(&format!(
        r#"(module (memory (export "memory") 1)
            (func (export "update") (param $call i32) (result i64) {body}))"#
    ))
}

/// A cluster of servers that let clients load functions, and have `axpy` as module and as trait.
fn loading() -> (Job, Client) {
    let modules = Modules::new(Limits {
        fuel: FUEL,
        ..Limits::default()
    });
    let modules = modules.unwrap();
    let all = Functions::default().with("axpy", modules.compile(&axpy()).unwrap());
    let functions = ServerFunctions {
        all: all.with("native", Axpy),
        loader: Some(Arc::new(modules)),
    };
    cluster_with(2, 2, functions)
}

/// y += a * x, with a as its argument.
struct Axpy;

impl Function for Axpy {
    fn update(
        &self,
        arguments: &[u8],
        piece: &Piece<'_>,
        target: ElementsMut<'_>,
    ) -> Result<(), FunctionError> {
        let a = f64::from_le_bytes(*arguments.first_chunk().ok_or(FunctionError(1))?);
        let (ElementsMut::F64(y), [Elements::F64(x)]) = (target, piece.inputs) else {
            return Err(FunctionError(2));
        };
        y.iter_mut().zip(*x).for_each(|(y, x)| *y += a * x);
        Ok(())
    }

    fn reduce(
        &self,
        _: &[u8],
        _: &Piece<'_>,
        target: Elements<'_>,
        result: &mut Vec<u8>,
    ) -> Result<(), FunctionError> {
        let Elements::F64(y) = target else {
            return Err(FunctionError(2));
        };
        let sum = y.iter().fold(0.0, |sum, y| sum + y);
        result.extend_from_slice(&sum.to_le_bytes());
        Ok(())
    }
}

/// A trait of Rust, an expression, a module of the server and a loaded module: the same bits.
#[test]
fn all_kinds_of_functions_give_equal_bits() {
    let (_cluster, mut client) = loading();
    client.load_function("loaded", &axpy()).unwrap();
    let (x, y) = (values(ELEMENTS, 5), values(ELEMENTS, 6));
    let x = range_table(&mut client, "x", &x);
    let kinds = ["native", "axpy", "loaded", "expression"];
    let a = 0.1_f64;
    let results = kinds.map(|kind| {
        let table = range_table(&mut client, kind, &y);
        let args = FunctionArgs {
            inputs: &[&x],
            ..FunctionArgs::default()
        };
        let ticket = match kind {
            "expression" => {
                let args = FunctionArgs {
                    inputs: &[&x, &table],
                    parameters: &[a],
                    range: None,
                };
                let axpy = Expression::parse("p0 * x + y").unwrap();
                client.update(&table, &axpy, &args)
            }
            name => client.call_update(&table, name, &a.to_le_bytes(), &args),
        };
        client.wait_applied(&ticket.unwrap()).unwrap();
        let sums = match kind {
            "expression" => None,
            name => Some(client.call_reduce(&table, name, &[], &FunctionArgs::default())),
        };
        (
            pull(&mut client, &table, ELEMENTS),
            sums.map(Result::unwrap),
        )
    });
    let bits = |values: &[f64]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    let (first, sums) = &results[0];
    for (kind, (result, its_sums)) in kinds.iter().zip(&results) {
        assert!(bits(result) == bits(first), "{kind}");
        assert!(its_sums.is_none() || its_sums == sums, "{kind}");
    }
    assert_ne!(*first, y);
}

/// Rows by key, with the values that travel with the keys: a module in the manner of ps-lite.
#[test]
fn module_handles_pushes_of_keys() {
    let (_cluster, mut client) = loading();
    let handle = r#"
        (local $n i32) (local $row i32) (local $value i32)
        (local.set $row (i32.load offset=16 (local.get $call)))
        (local.set $value (i32.load (i32.load offset=40 (local.get $call))))
        (local.set $n (i32.load offset=28 (local.get $call)))
        (loop $next
            ;; a row is a sum and a count
            (f64.store (local.get $row)
                (f64.add (f64.load (local.get $row)) (f64.load (local.get $value))))
            (f64.store offset=8 (local.get $row)
                (f64.add (f64.load offset=8 (local.get $row)) (f64.const 1)))
            (local.set $row (i32.add (local.get $row) (i32.const 16)))
            (local.set $value (i32.add (local.get $value) (i32.const 8)))
            (br_if $next (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
        (i64.const 0)"#;
    client.load_function("average", &update_of(handle)).unwrap();
    let spec = TableBuilder::sparse::<f64>("t", 2);
    let table = client.create_table::<f64>(spec.spec()).unwrap();
    let keys: Vec<u64> = (1..3_000_u64).map(|n| n * n * 1_000_003).collect();
    let pushed: Vec<f64> = (1..3_000).map(f64::from).collect();
    for _ in 0..2 {
        let ticket = client.call_rows(&table, "average", &[], &keys, &pushed);
        client.wait_applied(&ticket.unwrap()).unwrap();
    }
    let mut rows = vec![0.0; 2 * keys.len()];
    client
        .pull_rows(&table, &keys, &mut rows, PullOptions::default())
        .unwrap();
    let expected: Vec<f64> = pushed.iter().flat_map(|x| [x + x, 2.0]).collect();
    assert_eq!(rows, expected);
}

/// An endless loop, a trap, a wish for memory and a NaN are errors of the caller. Elements keep their
/// values, and the servers serve others.
#[test]
fn defects_of_modules_reach_their_caller() {
    let (_cluster, mut client) = loading();
    let before = values(ELEMENTS, 7);
    let table = range_table(&mut client, "t", &before);
    let other = range_table(&mut client, "other", &[0.0; 100]);
    let store = "(f64.store (i32.load offset=16 (local.get $call))";
    let cases = [
        (
            "spin",
            format!("{store} (f64.const 1)) (loop $l (br $l)) (i64.const 0)"),
            "fuel of 10000000",
        ),
        (
            "trap",
            format!("{store} (f64.const 1)) unreachable"),
            "`unreachable`",
        ),
        (
            "hungry",
            "(drop (memory.grow (i32.const 9999))) (i64.const 0)".into(),
            "16777216 bytes",
        ),
        (
            "refuse",
            format!("{store} (f64.const 1)) (i64.const 77)"),
            "number 77",
        ),
        (
            "nan",
            format!("{store} (f64.const nan)) (i64.const 0)"),
            "NaN",
        ),
    ];
    let all = FunctionArgs::default();
    for (name, body, expected) in cases {
        client.load_function(name, &update_of(&body)).unwrap();
        let ticket = client.call_update(&table, name, &[], &all).unwrap();
        let refused = client.wait_applied(&ticket).unwrap_err();
        assert!(matches!(refused, ClientError::Rejected { .. }), "{refused}");
        assert!(refused.to_string().contains(expected), "{name}: {refused}");
        assert!(pull(&mut client, &table, ELEMENTS) == before, "{name}");
        let ticket = client.push_range(&other, 0, &[1.0; 100], PushOp::Sum);
        client.wait_applied(&ticket.unwrap()).unwrap();
    }
    assert_eq!(pull(&mut client, &other, 100), [5.0; 100]);
}

/// A loaded name keeps its module; what cannot be loaded is refused with its reason.
#[test]
fn loads_are_refused_with_a_reason() {
    let (cluster, mut client) = loading();
    let one = update_of("(i64.const 1)");
    client.load_function("one", &one).unwrap();
    client.load_function("one", &one).unwrap();
    let imports = binary(
        r#"(module (import "wasi_snapshot_preview1" "clock_time_get" (func))
            (memory (export "memory") 1))"#,
    );
    let long = vec![0; (512 << 10) + 1];
    for (name, module, expected) in [
        ("one", &update_of("(i64.const 2)"), "another module"),
        ("axpy", &one, "the servers have a function of this name"),
        ("clock", &imports, "clock_time_get"),
        ("garbage", &b"garbage".to_vec(), "not valid"),
        ("", &one, "1 to 255 bytes"),
        ("long", &long, "524289 bytes"),
    ] {
        let refused = client.load_function(name, module).unwrap_err().to_string();
        assert!(refused.contains(expected), "{name}: {refused}");
    }
    // A refused name stays free, and a function too many is refused.
    client.load_function("garbage", &one).unwrap();
    for n in 2..64 {
        client.load_function(&format!("f{n}"), &one).unwrap();
    }
    let refused = client.load_function("f64", &one).unwrap_err().to_string();
    assert!(refused.contains("64"), "{refused}");
    drop((client, cluster));

    let (_cluster, mut client) = cluster_with(1, 1, ServerFunctions::default());
    let refused = client.load_function("one", &one).unwrap_err().to_string();
    assert!(refused.contains("--load-functions"), "{refused}");
}

/// A loaded function is of its job alone, and ends with it.
#[test]
fn loaded_function_is_of_its_job() {
    let service = Cluster::start(&ClusterConfig {
        workers: 0,
        service: true,
        functions: ServerFunctions {
            loader: Some(Arc::new(Modules::new(Limits::default()).unwrap())),
            ..ServerFunctions::default()
        },
        ..ClusterConfig::default()
    });
    let service = service.unwrap();
    let join = |namespace: &str| {
        let options = JoinOptions {
            coordinator: Some(service.environment().coordinator.clone()),
            token: Some(service.environment().token.clone()),
            namespace: Some(namespace.to_owned()),
            rank: Some(0),
            workers: Some(1),
            ..JoinOptions::default()
        };
        let job = options.join()?.into_job().expect("a worker");
        job.client(SyncMode::Asp)
    };
    let refusal = |client: &mut Client| {
        let table = range_table(client, "t", &[1.0]);
        let ticket = client.call_update(&table, "f", &[], &FunctionArgs::default());
        let refused = client.wait_applied(&ticket.unwrap()).unwrap_err();
        // A job with tables goes on without workers.
        client.release_table(table).unwrap();
        refused.to_string()
    };
    let number = |n: u64| update_of(&format!("(i64.const {n})"));
    let (mut a, mut b) = (join("a").unwrap(), join("b").unwrap());
    a.load_function("f", &number(2)).unwrap();
    let missing = refusal(&mut b);
    assert!(missing.contains("none of this name"), "{missing}");
    b.load_function("f", &number(3)).unwrap();
    for (client, expected) in [(&mut a, "number 2"), (&mut b, "number 3")] {
        let refused = refusal(client);
        assert!(refused.contains(expected), "{refused}");
    }
    a.finish().unwrap();
    drop(a);
    // The job ends when all servers have forgotten it.
    let deadline = Deadline::after(Duration::from_secs(30));
    let mut next = loop {
        match join("a") {
            Ok(next) => break next,
            Err(refused) => assert!(!deadline.passed(), "{refused}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let missing = refusal(&mut next);
    assert!(missing.contains("none of this name"), "{missing}");
    next.load_function("f", &number(4)).unwrap();
}

/// A job of two workers with a server that loads modules.
fn job_with_modules(transport: TransportChoice, limits: Limits) -> Job {
    let config = ClusterConfig {
        workers: 2,
        transport,
        functions: ServerFunctions {
            loader: Some(Arc::new(Modules::new(limits).unwrap())),
            ..ServerFunctions::default()
        },
        ..ClusterConfig::default()
    };
    let joined = JoinOptions::from(config).join().unwrap();
    joined.into_job().unwrap()
}

/// Loads an endless loop as "spin"; returns the table `t` and the arguments of a call on its first element.
fn load_endless_loop(client: &mut Client) -> (Table<f64>, FunctionArgs<'static, f64>) {
    let table = client.open_table::<f64>("t").unwrap();
    let spin = update_of("(loop $l (br $l)) (i64.const 0)");
    client.load_function("spin", &spin).unwrap();
    let one = FunctionArgs {
        range: Some(0..1),
        ..FunctionArgs::default()
    };
    (table, one)
}

/// Over TCP an applier answers the reads of its clients. It does so too while a function runs that ends long after
/// them.
#[test]
fn pulls_go_on_while_a_function_runs() {
    let limits = Limits {
        fuel: 5_000_000_000, // some three seconds
        ..Limits::default()
    };
    let job = job_with_modules(TransportChoice::Tcp, limits);
    let mut client = job.client_of(0, SyncMode::Asp).unwrap();
    let table = range_table(&mut client, "t", &[1.0; 100]);
    let mut caller = job.client_of(1, SyncMode::Asp).unwrap();
    let (called, one) = load_endless_loop(&mut caller);
    let ticket = caller.call_update(&called, "spin", &[], &one).unwrap();
    let mut out = [0.0; 100];
    for _ in 0..500 {
        client
            .pull_range(&table, 0, &mut out, PullOptions::default())
            .unwrap();
        assert_eq!(out, [1.0; 100]);
    }
    let ended = caller.try_applied(&ticket);
    assert!(
        matches!(ended, Ok(false)),
        "the function ended before the pulls: {ended:?}"
    );
    let stopped = caller.wait_applied(&ticket).unwrap_err().to_string();
    assert!(stopped.contains("fuel of"), "{stopped}");
}

/// Times of pulls while another client calls an endless loop again and again, by hand:
/// `cargo test --release -p tidewater-tests --test functions -- --ignored --nocapture endless`.
#[test]
#[ignore = "a measurement, which needs an idle machine"]
fn measure_pulls_during_endless_loop() {
    for transport in [TransportChoice::Shm, TransportChoice::Tcp] {
        let job = job_with_modules(transport, Limits::default());
        let mut client = job.client_of(0, SyncMode::Asp).unwrap();
        let table = range_table(&mut client, "t", &vec![1.0; 100_000]);
        // Pulls of 4 KiB for two seconds: their number, median and 99th percentile.
        let times = |client: &mut Client| {
            let (mut out, mut times) = ([0.0; 512], Vec::with_capacity(1 << 23));
            let begin = now();
            while begin.elapsed() < Duration::from_secs(2) && times.len() < times.capacity() {
                let start = now();
                let first = times.len() as u64 * 97 % 99_000;
                client
                    .pull_range(&table, first, &mut out, PullOptions::default())
                    .unwrap();
                times.push(start.elapsed());
            }
            times.sort_unstable();
            let count = times.len();
            (count, times[count / 2], times[count * 99 / 100])
        };
        let alone = times(&mut client);
        let (started, stop) = (AtomicBool::new(false), AtomicBool::new(false));
        let (during, calls) = std::thread::scope(|scope| {
            let caller = scope.spawn(|| {
                let mut client = job.client_of(1, SyncMode::Asp).unwrap();
                let (table, one) = load_endless_loop(&mut client);
                let mut calls = 0;
                while !stop.load(Ordering::Relaxed) {
                    let ticket = client.call_update(&table, "spin", &[], &one).unwrap();
                    assert!(client.wait_applied(&ticket).is_err());
                    started.store(true, Ordering::Relaxed);
                    calls += 1;
                }
                calls
            });
            while !started.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            let during = times(&mut client);
            stop.store(true, Ordering::Relaxed);
            (during, caller.join().unwrap())
        });
        println!(
            "{transport:?}: pulls, median, p99 alone {alone:?}, during {calls} endless loops {during:?}"
        );
    }
}
