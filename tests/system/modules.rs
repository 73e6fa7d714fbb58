//! Servers with functions from WebAssembly modules: of files, and of a client.

use std::fs;

use tidewater::{FunctionArgs, PullOptions, PushOp, TableBuilder};
use tidewater_launch::TransportChoice;

use crate::by_hand::Cluster;
use crate::rig::{output, tidewater};

const AXPY: &str = include_str!("../../server/wasm/examples/axpy.wat");

/// A job by hand: each server reads the module, and a client loads another one.
#[test]
fn servers_run_modules() {
    let mut cluster = Cluster::coordinator(2);
    let module = wat::parse_str(AXPY).unwrap();
    fs::write(cluster.directory.join("axpy.wasm"), &module).unwrap();
    for number in 0..2 {
        let mut server = cluster.server(number);
        server.args(["--function", "axpy=axpy.wasm", "--load-functions"]);
        server.args(["--function-fuel", "123456"]);
        cluster.servers.push(server.spawn().unwrap());
    }
    let mut client = cluster.client(TransportChoice::Tcp);
    let table = |name| TableBuilder::range::<f64>(name, 10_000, 1);
    let x = client.create_table::<f64>(table("x").spec()).unwrap();
    let y = client.create_table::<f64>(table("y").spec()).unwrap();
    let ones = vec![1.0; 10_000];
    let ticket = client.push_range(&x, 0, &ones, PushOp::Assign).unwrap();
    client.wait_applied(&ticket).unwrap();
    client.load_function("again", &module).unwrap();
    let args = FunctionArgs {
        inputs: &[&x],
        ..FunctionArgs::default()
    };
    // 20 units of fuel an element, a call of some 40 elements of each of the partitions.
    for name in ["axpy", "again"] {
        let ticket = client.call_update(&y, name, &2.5_f64.to_le_bytes(), &args);
        client.wait_applied(&ticket.unwrap()).unwrap();
    }
    let mut out = vec![0.0; 10_000];
    client
        .pull_range(&y, 0, &mut out, PullOptions::default())
        .unwrap();
    assert_eq!(out, vec![5.0; 10_000]);

    let endless = r#"(module (memory (export "memory") 1)
        (func (export "update") (param i32) (result i64) (loop $l (br $l)) (i64.const 0)))"#;
    client
        .load_function("endless", &wat::parse_str(endless).unwrap())
        .unwrap();
    let ticket = client.call_update(&y, "endless", &[], &args).unwrap();
    let refused = client.wait_applied(&ticket).unwrap_err().to_string();
    assert!(refused.contains("123456"), "{refused}");
    client.finish().unwrap();
}

/// A module that is none ends its server with the file and the reason, before it serves.
#[test]
fn unsuitable_module_ends_its_server() {
    let cluster = Cluster::coordinator(1);
    let arguments = cluster.server_arguments(0, &cluster.token_file());
    let garbage = cluster.directory.join("garbage.wasm");
    fs::write(&garbage, b"garbage").unwrap();
    for (option, code, expected) in [
        (format!("f={}", garbage.display()), 5, "not valid"),
        ("f=/no/such/module".to_owned(), 5, "/no/such/module"),
        ("module.wasm".to_owned(), 2, "scale=scale.wasm"),
    ] {
        let mut arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        arguments.extend(["--function", &option]);
        let output = output(&tidewater(), &arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{option}: {errors}");
        assert!(errors.contains(expected), "{option}: {errors}");
    }
}
