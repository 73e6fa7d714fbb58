//! `memory`: resident bytes a key of sparse tables, at the server and in the client's cache of
//! locations.

use std::fs;

use clap::Args;
use rustix::process::Pid;
use tidewater::table::TableBuilder;
use tidewater::{Client, Init, Optimizer, PullOptions, PushOp, SyncMode};

use super::compare::Targets;
use crate::cluster::{Cluster, ClusterConfig};
use crate::error::BenchError;
use crate::fingerprint::Fingerprint;
use crate::measure::timer_cost;
use crate::options::Common;
use crate::sheet::{Failures, Sheet};
use crate::sizes::parse_bytes;

/// Keys of a call.
const BATCH: u64 = 2_048;
/// Bytes of a key and of a row's header.
const KEY_BYTES: u64 = 8;
const HEADER_BYTES: u64 = 16;
/// Keys from which an entry of the client's cache of locations leaves out what its place implies.
const LOCATIONS_LARGE: u64 = 1 << 19;
/// Keys of the longest run, with `--large`.
const LARGE: u64 = 10_000_000;

/// Options of the subcommand `memory`.
#[derive(Debug, Clone, Args)]
pub struct MemoryArgs {
    /// Numbers of keys: a list
    #[arg(long, default_value = "100K,1M", value_name = "LIST", value_delimiter = ',', value_parser = parse_bytes)]
    pub keys: Vec<u64>,
    /// Also measure ten million keys (up to 6 GB)
    #[arg(long)]
    pub large: bool,
    /// Options that every measurement takes.
    #[command(flatten)]
    pub common: Common,
}

/// A kind of rows.
struct Case {
    /// Middle part of the names of its targets, as in `memory.ID.bytes`.
    id: &'static str,
    dim: u64,
    /// Bytes of optimizer state of a row.
    state: u64,
    optimizer: Optimizer,
}

const CASES: [Case; 3] = [
    Case {
        id: "ftrl.1",
        dim: 1,
        state: 8,
        optimizer: Optimizer::Ftrl {
            alpha: 0.1,
            beta: 1.0,
            l1: 0.0,
            l2: 0.0,
        },
    },
    Case {
        id: "adagrad.16",
        dim: 16,
        state: 64,
        optimizer: Optimizer::AdaGrad { lr: 0.1, eps: 1e-8 },
    },
    Case {
        id: "sgd.64",
        dim: 64,
        state: 0,
        optimizer: Optimizer::Sgd { lr: 0.1 },
    },
];

/// Runs `memory`.
///
/// # Errors
/// The error of the first call that fails.
pub fn run(args: &MemoryArgs) -> Result<Failures, BenchError> {
    let common = &args.common;
    let targets = Targets::load(None)?;
    let fingerprint = Fingerprint::take("memory", common, 1, 1, timer_cost());
    let sheet = Sheet::new(common, fingerprint)?;
    sheet.remark("resident bytes a key; rings and mailboxes are not counted")?;
    sheet.remark(
        "rows = header + payload to a multiple of 8, record = key + state to a multiple of 8, \
         rest = index and memory that holds no row",
    )?;
    let mut keys = args.keys.clone();
    keys.extend(args.large.then_some(LARGE));
    let mut missed = Failures::new();
    for case in &CASES {
        for &keys in &keys {
            let measured = measure(common, case, keys)?;
            let (text, values) = case.describe(keys, measured);
            sheet.remark(&text)?;
            for (id, value) in values {
                if let Some(target) = targets.find(&id).filter(|target| !target.is_met(value)) {
                    missed.push(format!(
                        "{id}, {keys} keys: {value:.2}, the target is {}",
                        target.bound()
                    ));
                }
            }
        }
    }
    let mut failures = sheet.finish()?;
    failures.append(&mut missed);
    Ok(failures)
}

/// Resident bytes of the server and of the client, or their growth.
#[derive(Debug, Clone, Copy)]
struct Measured {
    server: u64,
    client: u64,
}

impl Case {
    /// The line of a measurement of `keys` keys, and three figures with the names of their targets: bytes a
    /// key at the server, their ratio to the least possible, and bytes a key of the client's locations.
    fn describe(&self, keys: u64, measured: Measured) -> (String, [(String, f64); 3]) {
        let payload = 4 * self.dim;
        let row = (HEADER_BYTES + payload).next_multiple_of(8);
        let record = KEY_BYTES + self.state.next_multiple_of(8);
        let least = KEY_BYTES + HEADER_BYTES + payload + self.state;
        let server = measured.server as f64 / keys as f64;
        let client = measured.client as f64 / keys as f64;
        let ratio = server / least as f64;
        let text = format!(
            "{:<10} {keys:>9} keys: {server:.1} B at the server = rows {row} + record {record} + rest \
             {:.1}; {ratio:.2} x (key {KEY_BYTES} + header {HEADER_BYTES} + payload {payload} + state \
             {}); client's locations {client:.1} B",
            self.id,
            server - (row + record) as f64,
            self.state,
        );
        let locations = match keys < LOCATIONS_LARGE {
            true => "locations.small",
            false => "locations",
        };
        let id = |metric: &str| format!("memory.{}.{metric}", self.id);
        let values = [
            (id("bytes"), server),
            (id("ratio"), ratio),
            (id(locations), client),
        ];
        (text, values)
    }
}

fn measure(common: &Common, case: &Case, keys: u64) -> Result<Measured, BenchError> {
    let cluster = Cluster::start(ClusterConfig::of(common, 1, 1))?;
    let mut client = cluster.client(0, SyncMode::Asp)?;
    let pid = cluster.pids().first().copied();
    let pid = pid.ok_or_else(|| BenchError::process("server 0", "it is not there"))?;
    let builder = |name: &str| {
        TableBuilder::sparse::<f32>(name, case.dim as u32)
            .optimizer(case.optimizer)
            .init(Init::Zeros, common.seed)
    };
    // The first table takes what a client and an applier keep for all tables.
    fill(&mut client, &builder("first"), 4 * BATCH)?;
    let before = Measured::read(pid)?;
    fill(&mut client, &builder("memory"), keys)?;
    let after = Measured::read(pid)?;
    client.finish()?;
    Ok(Measured {
        server: after.server.saturating_sub(before.server),
        client: after.client.saturating_sub(before.client),
    })
}

impl Measured {
    fn read(server: Pid) -> Result<Self, BenchError> {
        Ok(Self {
            server: server_resident(server)?,
            client: anonymous()?,
        })
    }
}

/// Creates a table with `keys` rows, and pulls each of them.
fn fill(client: &mut Client, builder: &TableBuilder, keys: u64) -> Result<(), BenchError> {
    let table = client.create_table::<f32>(builder.spec())?;
    let dim = builder.spec().dim();
    let mut values = vec![0.0; BATCH as usize * dim];
    for first in (0..keys).step_by(BATCH as usize) {
        // Hashes of words, as keys of features often are.
        let batch = (first..keys.min(first + BATCH)).map(tidewater_protocol::layout::hash::mix64);
        let batch: Vec<u64> = batch.collect();
        let values = &mut values[..batch.len() * dim];
        values.fill(0.0);
        let push = client.push_rows(&table, &batch, values, PushOp::Gradient)?;
        client.wait_applied(&push)?;
        client.pull_rows(&table, &batch, values, PullOptions::default())?;
    }
    Ok(())
}

/// Resident bytes of a server, without rings and mailboxes.
fn server_resident(pid: Pid) -> Result<u64, BenchError> {
    let text = read(&format!("/proc/{}/smaps", pid.as_raw_nonzero()))?;
    let (mut sum, mut is_counted) = (0, true);
    for line in text.lines() {
        let mut words = line.split_whitespace();
        // An empty line is none of a mapping.
        let Some(first) = words.next() else { continue };
        if first == "Rss:" && is_counted {
            sum += kib(words.next());
        } else if !first.ends_with(':') {
            // The first line of a mapping: its addresses come first.
            is_counted = !["tidewater-inbox", "tidewater-mailbox"]
                .iter()
                .any(|name| line.contains(name));
        }
    }
    Ok(sum)
}

/// Resident bytes of this process's own memory, without what it maps of servers; 0 if the kernel does not report
/// them.
fn anonymous() -> Result<u64, BenchError> {
    let text = read("/proc/self/status")?;
    let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    Ok(kib(line.and_then(|line| line.split_whitespace().next())))
}

fn kib(number: Option<&str>) -> u64 {
    number.and_then(|n| n.parse::<u64>().ok()).unwrap_or(0) * 1024
}

fn read(path: &str) -> Result<String, BenchError> {
    fs::read_to_string(path).map_err(|e| BenchError::system(format!("read {path}"), e))
}
