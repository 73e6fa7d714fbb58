//! `latency`, `bandwidth` and `rate`: tables by message size.

use std::time::Duration;

use clap::Args;
use tidewater::{Client, PullOptions, SyncMode};

use super::{measure_paused, ops, pin_client, plan};
use crate::calls::{Calls, Op, Style};
use crate::cluster::{Cluster, ClusterConfig};
use crate::error::BenchError;
use crate::fingerprint::Fingerprint;
use crate::measure::{Pace, Work, timer_cost};
use crate::options::{Common, Mode, OpChoice, TableChoice, Transport, Wire, parse_limit};
use crate::roofline::{Echo, Flow, Memcpy, Ping, Stream};
use crate::row::{Label, Roofline, Row};
use crate::sheet::{Failures, Sheet};
use crate::sizes::Sizes;
use crate::workload::{Kind, Workload, WorkloadSpec};

/// Maximum bytes of a window: more would measure the machine's page allocation.
const WINDOW_BYTES_MAX: u64 = 64 << 20;
/// Windows in a sample: so many that filling and draining the window count little.
const WINDOWS_A_SAMPLE: u64 = 16;
/// Measuring time of a roofline.
const ROOFLINE_TIME: Duration = Duration::from_millis(40);
/// Bytes of a request or an acknowledgement: an echo sends them in place of our header.
const NOTE_BYTES: u64 = 64;

/// Options of tables by message size.
#[derive(Debug, Clone, Args)]
pub struct TableArgs {
    /// Bytes of a message: a list of sizes and ranges first:last:xF or first:last:+S. In tables by rows
    /// it is the row; a message longer than 64K is several rows
    #[arg(long, default_value = "8:16M:x2", value_name = "LIST")]
    pub sizes: Sizes,
    /// Direction of the measured calls
    #[arg(long, value_enum, default_value = "all")]
    pub op: OpChoice,
    /// Tables to measure them on
    #[arg(long, value_enum, default_value = "all")]
    pub table: TableChoice,
    /// Read mode of pulls
    #[arg(long, value_enum, default_value = "consistent")]
    pub mode: Mode,
    /// Messages of one call: rows by key or index, or a range that is as many times longer
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=65536))]
    pub batch: u64,
    /// Number of server processes
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub servers: u32,
    /// Options that every measurement takes.
    #[command(flatten)]
    pub common: Common,
}

/// Options of the subcommand `latency`.
#[derive(Debug, Clone, Args)]
pub struct LatencyArgs {
    /// Tables, sizes and common options.
    #[command(flatten)]
    pub tables: TableArgs,
    /// Calls timed together, for calls shorter than the timer's own cost
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=65536))]
    pub group: u64,
    /// Start calls at this fixed rate a second; latency counts from the due time
    #[arg(long, value_name = "RATE", value_parser = parse_limit, conflicts_with = "group")]
    pub open_loop: Option<f64>,
}

/// Options of the subcommand `bandwidth`.
#[derive(Debug, Clone, Args)]
pub struct BandwidthArgs {
    /// Tables, sizes and common options.
    #[command(flatten)]
    pub tables: TableArgs,
    /// Calls in flight or, for pulls of ranges or over shared memory, back to back; fewer if they exceed 64 MiB
    #[arg(long, default_value_t = 64, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=256))]
    pub window: u64,
}

/// Options of the subcommand `rate`.
#[derive(Debug, Clone, Args)]
pub struct RateArgs {
    /// Tables, sizes and common options.
    #[command(flatten)]
    pub tables: TableArgs,
    /// Calls in flight; the next begins when the oldest has ended
    #[arg(long, default_value_t = 64, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=256))]
    pub window: u64,
}

/// How the calls of a table's rows are made.
#[derive(Debug, Clone, Copy)]
struct Shape {
    test: &'static str,
    group: u64,
    window: Option<u64>,
    windows_a_sample: u64,
    pace: Pace,
}

/// Runs `latency`.
///
/// # Errors
/// The error of the first call that fails.
pub fn latency(args: &LatencyArgs) -> Result<Failures, BenchError> {
    let shape = Shape {
        test: "latency",
        group: args.group,
        window: None,
        windows_a_sample: 1,
        pace: args.open_loop.map_or(Pace::Closed, Pace::Open),
    };
    run(&args.tables, shape)
}

/// Runs `bandwidth`.
///
/// # Errors
/// The error of the first call that fails.
pub fn bandwidth(args: &BandwidthArgs) -> Result<Failures, BenchError> {
    let shape = Shape {
        test: "bandwidth",
        group: 1,
        window: Some(args.window),
        windows_a_sample: 1,
        pace: Pace::Closed,
    };
    run(&args.tables, shape)
}

/// Runs `rate`.
///
/// # Errors
/// The error of the first call that fails.
pub fn rate(args: &RateArgs) -> Result<Failures, BenchError> {
    let shape = Shape {
        test: "rate",
        group: 1,
        window: Some(args.window),
        windows_a_sample: WINDOWS_A_SAMPLE,
        pace: Pace::Closed,
    };
    run(&args.tables, shape)
}

fn run(args: &TableArgs, shape: Shape) -> Result<Failures, BenchError> {
    let common = &args.common;
    let mut cluster = Cluster::start(ClusterConfig::of(common, args.servers, 1))?;
    pin_client(common)?;
    let mut client = cluster.client(0, SyncMode::Asp)?;
    let timer = timer_cost();
    let fingerprint = Fingerprint::take(shape.test, common, args.servers, 1, timer);
    let mut sheet = Sheet::new(common, fingerprint)?;
    for (op, kind) in sections(args) {
        sheet.section(&title(args, shape, op, kind), "size")?;
        for &size in &args.sizes.0 {
            let case = Case {
                args,
                shape,
                op,
                kind,
                size,
                timer,
            };
            let row = case.measure(&mut cluster, &mut client)?;
            sheet.row(row.with_roofline(case.roofline()?))?;
        }
    }
    client.finish()?;
    drop(client);
    sheet.finish()
}

/// The sections that the options select: for each direction all kinds of tables.
fn sections(args: &TableArgs) -> Vec<(Op, Kind)> {
    let kinds: &[Kind] = match args.table {
        TableChoice::Dense => &[Kind::Dense],
        TableChoice::Rows => &[Kind::Rows],
        TableChoice::Sparse => &[Kind::Sparse],
        TableChoice::All => &[Kind::Dense, Kind::Rows, Kind::Sparse],
    };
    let of_op = |&op: &Op| kinds.iter().map(move |&kind| (op, kind));
    ops(args.op).iter().flat_map(of_op).collect()
}

fn title(args: &TableArgs, shape: Shape, op: Op, kind: Kind) -> String {
    let how = match op {
        Op::Push => "until applied",
        Op::Pull => args.mode.name(),
    };
    let pace = match (shape.pace, shape.window) {
        (Pace::Open(rate), _) => format!("{rate} calls a second come due"),
        (Pace::Closed, None) => "one after the other".into(),
        (Pace::Closed, Some(n)) => match outstanding(op, kind, args.common.transport) {
            true => format!("{n} under way"),
            false => "back to back".into(),
        },
    };
    let batch = args.batch;
    format!(
        "{} {}, {how}, {pace}, {batch} messages a call",
        op.name(),
        kind.name()
    )
}

/// Whether several calls of a window are in flight together. A pull over shared memory ends when it
/// returns, and the benchmark pulls ranges one after the other.
fn outstanding(op: Op, kind: Kind, transport: Transport) -> bool {
    op == Op::Push || (kind != Kind::Dense && transport.wire() != Some(Wire::Memory))
}

/// One size of one section.
struct Case<'a> {
    args: &'a TableArgs,
    shape: Shape,
    op: Op,
    kind: Kind,
    size: u64,
    timer: Duration,
}

impl Case<'_> {
    fn bytes(&self) -> u64 {
        self.size * self.args.batch
    }

    /// How the calls overlap, and the number of calls in a sample.
    fn style(&self) -> (Style, u64) {
        let Some(window) = self.shape.window else {
            return (Style::Alone, self.shape.group);
        };
        let window = window.min((WINDOW_BYTES_MAX / self.bytes()).max(1));
        let calls = window * self.shape.windows_a_sample;
        match outstanding(self.op, self.kind, self.args.common.transport) {
            true => (Style::Window(window as usize), calls),
            false => (Style::Alone, calls),
        }
    }

    fn measure(&self, cluster: &mut Cluster, client: &mut Client) -> Result<Row, BenchError> {
        let common = &self.args.common;
        let spec = WorkloadSpec::full(self.kind, self.size, self.args.batch, common.seed)?;
        let mut workload = Workload::new(client, spec, common.plant_wrong)?;
        let options = PullOptions::default().mode(self.args.mode.pull_mode());
        let (style, calls) = self.style();
        let mut work = Calls::new(&mut workload, self.op, options, style, calls);
        let plan = plan(common, self.op, calls, self.shape.pace, self.timer);
        let measured = measure_paused(common, &plan, &mut work, cluster)?;
        workload.release()?;
        let label = Label {
            test: self.shape.test,
            op: self.op.name().into(),
            table: self.kind.name().into(),
            mode: (self.op == Op::Pull).then(|| self.args.mode.name().into()),
            size: self.size,
        };
        Ok(Row::new(label, &measured, calls, self.shape.pace))
    }

    /// The machine's own limit for this row, measured right after the row; `None` over RDMA, and if the options
    /// exclude rooflines.
    fn roofline(&self) -> Result<Option<Roofline>, BenchError> {
        let common = &self.args.common;
        if common.no_roofline {
            return Ok(None);
        }
        let bytes = self.bytes();
        let (_, calls) = self.style();
        let pin = common.pin_servers;
        let alone = self.shape.window.is_none();
        let (to, back, flow) = match self.op {
            Op::Pull => (NOTE_BYTES, bytes, Flow::Back),
            Op::Push => (bytes, NOTE_BYTES, Flow::There),
        };
        let Some(wire) = common.transport.wire() else {
            return Ok(None);
        };
        let (name, mut work): (_, Box<dyn Work>) = match (wire, self.op, alone) {
            (Wire::Memory, Op::Push, true) => {
                let ping = Ping::new(to as usize, back as usize, calls)?;
                ("shm ping", Box::new(ping))
            }
            (Wire::Memory, _, _) => ("memcpy", Box::new(Memcpy::new(bytes, calls))),
            (Wire::Socket, _, true) => ("tcp echo", Box::new(Echo::new(to, back, calls, pin)?)),
            (Wire::Socket, _, false) => {
                let stream = Stream::new(flow, bytes, calls, pin)?;
                ("tcp stream", Box::new(stream))
            }
        };
        super::roofline(name, &mut *work, ROOFLINE_TIME, self.timer, bytes).map(Some)
    }
}
