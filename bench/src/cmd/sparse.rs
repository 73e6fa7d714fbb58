//! `sparse`: many random rows of a large table in one call.

use std::time::Duration;

use clap::Args;
use tidewater::{PullOptions, SyncMode};

use super::{measure_paused, ops, pin_client, plan};
use crate::calls::{Calls, Op, Style};
use crate::cluster::{Cluster, ClusterConfig};
use crate::error::BenchError;
use crate::fingerprint::Fingerprint;
use crate::measure::{Pace, Work, timer_cost};
use crate::options::{Common, Mode, OpChoice, Wire, parse_limit};
use crate::roofline::{Echo, Gather, Ping};
use crate::row::{Label, Roofline, Row};
use crate::sheet::{Failures, Sheet};
use crate::sizes::parse_bytes;
use crate::workload::{Kind, Workload, WorkloadSpec};

/// Measuring time of a roofline.
const ROOFLINE_TIME: Duration = Duration::from_millis(200);
/// Bytes of a row in a push or a request besides its values: key and location.
const ROW_NOTE_BYTES: u64 = 16;
/// Maximum number of elements in a row.
const DIM_MAX: i64 = 16_384;

/// Kinds of tables that have rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum RowTable {
    /// Dense table addressed by rows.
    Rows,
    /// Sparse table addressed by keys.
    Sparse,
    /// Both kinds of tables.
    All,
}

/// Options of the subcommand `sparse`.
#[derive(Debug, Clone, Args)]
pub struct SparseArgs {
    /// Rows in the table
    #[arg(long, default_value = "1M", value_name = "N", value_parser = parse_bytes)]
    pub rows: u64,
    /// Elements (f32) of a row
    #[arg(long, default_value_t = 64, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=DIM_MAX))]
    pub dim: u32,
    /// Random rows of a call
    #[arg(long, default_value_t = 1024, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub batch: u32,
    /// Calls in flight (not for pulls over shared memory, where a call ends when it returns)
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub window: u32,
    /// Direction of the measured calls
    #[arg(long, value_enum, default_value = "all")]
    pub op: OpChoice,
    /// Tables to measure them on
    #[arg(long, value_enum, default_value = "sparse")]
    pub table: RowTable,
    /// Read mode of pulls
    #[arg(long, value_enum, default_value = "consistent")]
    pub mode: Mode,
    /// Number of server processes
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub servers: u32,
    /// Start calls at this fixed rate a second; latency counts from the due time
    #[arg(long, value_name = "RATE", value_parser = parse_limit, conflicts_with = "window")]
    pub open_loop: Option<f64>,
    /// Options that every measurement takes.
    #[command(flatten)]
    pub common: Common,
}

/// Runs `sparse`.
///
/// # Errors
/// The error of the first call that fails.
pub fn run(args: &SparseArgs) -> Result<Failures, BenchError> {
    let common = &args.common;
    if args.rows == 0 || args.rows.saturating_mul(u64::from(args.dim)) > 1 << 32 {
        return Err(BenchError::Usage(format!(
            "{} rows of {} elements: use up to 16 GiB",
            args.rows, args.dim
        )));
    }
    let mut cluster = Cluster::start(ClusterConfig::of(common, args.servers, 1))?;
    pin_client(common)?;
    let mut client = cluster.client(0, SyncMode::Asp)?;
    let timer = timer_cost();
    let mut sheet = Sheet::new(
        common,
        Fingerprint::take("sparse", common, args.servers, 1, timer),
    )?;
    let kinds: &[Kind] = match args.table {
        RowTable::Rows => &[Kind::Rows],
        RowTable::Sparse => &[Kind::Sparse],
        RowTable::All => &[Kind::Rows, Kind::Sparse],
    };
    for &kind in kinds {
        let (dim, batch) = (args.dim as usize, args.batch as usize);
        let spec = WorkloadSpec::scattered(kind, dim, args.rows, batch, common.seed);
        let mut workload = Workload::new(&mut client, spec, common.plant_wrong)?;
        workload.cache_locations()?;
        for &op in ops(args.op) {
            sheet.section(&title(args, op, kind), "row bytes")?;
            let row = measure_one(args, op, kind, &mut workload, &mut cluster, timer)?;
            let row_ns = 1e3 * row.figures.avg_us / f64::from(args.batch);
            let rows = row.figures.mops_per_s * f64::from(args.batch);
            sheet.row(row.with_roofline(roofline(args, op, timer)?))?;
            sheet.remark(&format!("{rows:.3} M rows/s, {row_ns:.1} ns a row"))?;
        }
        workload.release()?;
    }
    client.finish()?;
    drop(client);
    sheet.finish()
}

fn title(args: &SparseArgs, op: Op, kind: Kind) -> String {
    let how = match op {
        Op::Push => "until applied",
        Op::Pull => args.mode.name(),
    };
    let pace = match (args.open_loop, window(args, op)) {
        (Some(rate), _) => format!("{rate} calls a second come due"),
        (None, None) => "one after the other".into(),
        (None, Some(n)) => format!("{n} under way"),
    };
    format!(
        "{} {}, {how}, {pace}, {} random rows a call of {} rows of {} f32",
        op.name(),
        kind.name(),
        args.batch,
        args.rows,
        args.dim
    )
}

fn window(args: &SparseArgs, op: Op) -> Option<usize> {
    let later = op == Op::Push || args.common.transport.wire() != Some(Wire::Memory);
    (later && args.window > 1).then_some(args.window as usize)
}

fn measure_one(
    args: &SparseArgs,
    op: Op,
    kind: Kind,
    workload: &mut Workload<'_>,
    cluster: &mut Cluster,
    timer: Duration,
) -> Result<Row, BenchError> {
    let common = &args.common;
    let options = PullOptions::default().mode(args.mode.pull_mode());
    let (style, calls) = match window(args, op) {
        None => (Style::Alone, 1),
        Some(n) => (Style::Window(n), 4 * n as u64),
    };
    let pace = args.open_loop.map_or(Pace::Closed, Pace::Open);
    let mut work = Calls::new(workload, op, options, style, calls);
    let plan = plan(common, op, calls, pace, timer);
    let measured = measure_paused(common, &plan, &mut work, cluster)?;
    let label = Label {
        test: "sparse",
        op: op.name().into(),
        table: kind.name().into(),
        mode: (op == Op::Pull).then(|| args.mode.name().into()),
        size: u64::from(args.dim) * 4,
    };
    Ok(Row::new(label, &measured, calls, pace))
}

/// Roofline over shared memory: a bare gather of as many rows, or a ping with the bytes of a push. Over TCP:
/// an echo with the bytes of the request and of its answer. `None` over RDMA, and if the options exclude
/// rooflines.
fn roofline(args: &SparseArgs, op: Op, timer: Duration) -> Result<Option<Roofline>, BenchError> {
    let common = &args.common;
    let Some(wire) = common.transport.wire().filter(|_| !common.no_roofline) else {
        return Ok(None);
    };
    let row = u64::from(args.dim) * 4;
    let bytes = row * u64::from(args.batch);
    let notes = ROW_NOTE_BYTES * u64::from(args.batch);
    let (to, back) = match op {
        Op::Pull => (notes, bytes),
        Op::Push => (notes + bytes, 64),
    };
    let (name, mut work): (_, Box<dyn Work>) = match (wire, op) {
        (Wire::Memory, Op::Pull) => {
            let (rows, batch) = (args.rows, args.batch as usize);
            let gather = Gather::new(row as usize, rows, batch, common.seed)?;
            ("bare gather", Box::new(gather))
        }
        (Wire::Memory, Op::Push) => (
            "shm ping",
            Box::new(Ping::new(to as usize, back as usize, 1)?),
        ),
        (Wire::Socket, _) => {
            let echo = Echo::new(to, back, 1, common.pin_servers)?;
            ("tcp echo", Box::new(echo))
        }
    };
    super::roofline(name, &mut *work, ROOFLINE_TIME, timer, bytes).map(Some)
}
