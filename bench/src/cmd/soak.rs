//! `soak`: a long mixed load; checks values, memory and allocations.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use clap::Args;
use tidewater::table::TableBuilder;
use tidewater::{Client, PullOptions, SyncMode};
use tidewater_runtime::clock::{self, Deadline};
use tidewater_runtime::sync::{AtomicBool, Ordering};

use super::{pin_client, plan};
use crate::calls::{Calls, Op, Style};
use crate::cluster::{Cluster, ClusterConfig};
use crate::error::BenchError;
use crate::fingerprint::Fingerprint;
use crate::measure::{self, Meter, Pace, Usage, timer_cost};
use crate::options::{Common, Wire, parse_duration};
use crate::row::{Label, Row};
use crate::sheet::{Failures, Sheet};
use crate::sizes::parse_bytes;
use crate::workload::{Kind, Workload, WorkloadSpec};

/// Rows in the table, and elements of each.
const ROWS: u64 = 100_000;
const DIM: usize = 16;
/// Calls of a sample; a soak with saves has one.
const CALLS: u64 = 1024;
/// Number of calls in flight. Pulls over shared memory, and all calls of a soak with saves, are made one after the
/// other.
const WINDOW: usize = 64;
/// Intervals after which memory should be constant: pools have grown to the size of the load.
const SETTLED: usize = 2;

/// Time limit of one save.
const SAVE_TIMEOUT: Duration = Duration::from_secs(600);

/// Options of the subcommand `soak`.
#[derive(Debug, Clone, Args)]
pub struct SoakArgs {
    /// Duration of the load
    #[arg(long = "for", value_parser = parse_duration, default_value = "60s", value_name = "TIME")]
    pub lasts: Duration,
    /// Stop after this many calls at the latest
    #[arg(long, value_name = "N", value_parser = parse_bytes)]
    pub ops: Option<u64>,
    /// Time of an interval: half of it pulls, half pushes; memory is checked after each half
    #[arg(long, value_parser = parse_duration, default_value = "2s", value_name = "TIME")]
    pub interval: Duration,
    /// Fail (exit 1) if client and servers together grow by more than this many bytes after the second
    /// interval
    #[arg(long, default_value = "4M", value_name = "BYTES", value_parser = parse_bytes)]
    pub max_growth: u64,
    /// Number of server processes
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub servers: u32,
    /// Saves during the measurement.
    #[command(flatten)]
    pub saves: SaveArgs,
    /// Options that every measurement takes.
    #[command(flatten)]
    pub common: Common,
}

/// Saves while calls are measured.
#[derive(Debug, Clone, Default, Args)]
pub struct SaveArgs {
    /// In every second interval another worker saves all tables, again after this time. Calls are then
    /// single ones, so that their quantiles with a save under way can be compared with those without
    #[arg(long, value_parser = parse_duration, value_name = "TIME", requires = "save_to")]
    pub save_every: Option<Duration>,
    /// Directory of the saved model; it is replaced
    #[arg(long, value_name = "DIR", requires = "save_every")]
    pub save_to: Option<PathBuf>,
    /// Bytes of another table, which the saves contain
    #[arg(long, value_name = "BYTES", default_value = "256M", value_parser = parse_bytes, requires = "save_every")]
    pub model_bytes: u64,
}

/// Result of a soak.
#[derive(Debug, Clone)]
pub(crate) struct Soaked {
    /// Number of calls made.
    pub(crate) calls: u64,
    /// Growth of the resident memory of client and servers from interval [`SETTLED`] to the end, bytes; 0 if
    /// it shrank.
    pub(crate) growth: u64,
    pub(crate) saves: Vec<Save>,
}

/// A save while calls were measured.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Save {
    bytes: u64,
    seconds: f64,
}

/// Resident bytes of both ends.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Resident {
    client: u64,
    servers: u64,
}

impl Resident {
    fn read(cluster: &mut Cluster) -> Result<Self, BenchError> {
        Ok(Self {
            client: Usage::of_this_process().resident,
            servers: cluster.peer()?.resident,
        })
    }
}

/// Runs `soak`.
///
/// # Errors
/// The error of the first call that fails.
pub fn run(args: &SoakArgs) -> Result<Failures, BenchError> {
    let common = &args.common;
    let mut cluster = Cluster::start(ClusterConfig::of(
        common,
        args.servers,
        if args.saves.save_every.is_some() {
            2
        } else {
            1
        },
    ))?;
    pin_client(common)?;
    let fingerprint = Fingerprint::take("soak", common, args.servers, 1, timer_cost());
    let mut sheet = Sheet::new(common, fingerprint)?;
    let window = if args.saves.save_every.is_some() {
        1
    } else {
        WINDOW
    };
    sheet.section(
        &format!("single rows of {DIM} f32 of {ROWS}, {window} calls under way"),
        "row bytes",
    )?;
    let soaked = soak(args, &mut cluster, &mut |row, memory| {
        sheet.row(row)?;
        sheet.remark(&format!(
            "resident: client {:.1} MB, servers {:.1} MB",
            memory.client as f64 / 1e6,
            memory.servers as f64 / 1e6
        ))
    })?;
    for Save { bytes, seconds } in &soaked.saves {
        let rate = *bytes as f64 / 1e6 / seconds;
        sheet.remark(&format!(
            "saved {bytes} bytes in {seconds:.2} s, {rate:.0} MB/s"
        ))?;
    }
    let summary = format!(
        "{} calls; memory grew by {} bytes after interval {SETTLED}",
        soaked.calls, soaked.growth
    );
    sheet.remark(&summary)?;
    let mut failures = sheet.finish()?;
    if soaked.growth > args.max_growth {
        failures.push(format!("{summary}: above {}", args.max_growth));
    }
    Ok(failures)
}

/// Alternates pulls and pushes until the time or the calls are used up. Passes each row and the
/// resident memory of client and servers to `report`.
///
/// # Errors
/// The error of the first call that fails, or of `report`.
pub(crate) fn soak(
    args: &SoakArgs,
    cluster: &mut Cluster,
    report: &mut dyn FnMut(Row, Resident) -> Result<(), BenchError>,
) -> Result<Soaked, BenchError> {
    let common = &args.common;
    let mut client = cluster.client(0, SyncMode::Asp)?;
    let saver = match args.saves.save_every {
        Some(every) => Some(Saver::start(
            cluster.client(1, SyncMode::Asp)?,
            &args.saves,
            every,
        )?),
        None => None,
    };
    let calls_of_sample = if saver.is_some() { 1 } else { CALLS };
    let mut is_saving = false;
    let mut spec = WorkloadSpec::scattered(Kind::Sparse, DIM, ROWS, 1, common.seed);
    spec.batches = 4096;
    let mut workload = Workload::new(&mut client, spec, common.plant_wrong)?;
    workload.cache_locations()?;
    let end = Deadline::after(args.lasts);
    let most = args.ops.unwrap_or(u64::MAX);
    let timer = timer_cost();
    let (mut calls, mut resident, mut saves) = (0, Vec::new(), Vec::new());
    while calls < most && !end.passed() {
        if let Some(saver) = saver.as_ref().filter(|_| is_saving) {
            saver.begin();
        }
        for op in [Op::Pull, Op::Push] {
            let style = style(common, op, saver.is_some());
            let options = PullOptions::default();
            let mut work = Calls::new(&mut workload, op, options, style, calls_of_sample);
            let mut plan = plan(common, op, calls_of_sample, Pace::Closed, timer);
            plan.duration = args.interval / 2;
            plan.iters = plan
                .iters
                .min(most.saturating_sub(calls).div_ceil(calls_of_sample).max(1));
            let measured = measure::run(&plan, &mut work, cluster)?;
            drop(work);
            calls += measured.samples.calls();
            let label = Label {
                test: "soak",
                op: op.name().into(),
                table: "sparse".into(),
                mode: is_saving.then(|| "saving".to_owned()),
                size: DIM as u64 * 4,
            };
            let memory = Resident::read(cluster)?;
            let row = Row::new(label, &measured, calls_of_sample, Pace::Closed);
            report(row, memory)?;
            resident.push(memory.client + memory.servers);
        }
        if let Some(saver) = &saver {
            if is_saving {
                saves.extend(saver.end()?);
            }
            is_saving = !is_saving;
        }
    }
    if let Some(saver) = saver {
        saver.finish()?;
    }
    workload.release()?;
    client.finish()?;
    let settled = resident.get(2 * SETTLED - 1).or(resident.last());
    let settled = settled.copied().unwrap_or(0);
    let last = resident.last().copied().unwrap_or(0);
    Ok(Soaked {
        calls,
        growth: last.saturating_sub(settled),
        saves,
    })
}

/// Calls one after the other in a soak with saves, and for pulls over shared memory, which involve no server.
fn style(common: &Common, op: Op, saves: bool) -> Style {
    match (op, common.transport.wire()) {
        (Op::Pull, Some(Wire::Memory)) => Style::Alone,
        _ if saves => Style::Alone,
        _ => Style::Window(WINDOW),
    }
}

/// A worker on a thread of its own that saves all tables again and again while it has its turn.
struct Saver {
    /// Whether the worker has its turn.
    on: Arc<AtomicBool>,
    turns: Sender<()>,
    /// Saves of each turn that is over, or the error of its first failed save.
    saved: Receiver<Result<Vec<Save>, BenchError>>,
    thread: JoinHandle<Client>,
}

impl Saver {
    /// Creates a table of `args.model_bytes`, and the thread, which waits for its first turn. `every` is the
    /// time between the begins of two saves.
    fn start(mut client: Client, args: &SaveArgs, every: Duration) -> Result<Self, BenchError> {
        let other = TableBuilder::range::<f32>("other", args.model_bytes / 4, 1);
        client.create_table::<f32>(other.spec())?;
        let on = Arc::new(AtomicBool::new(false));
        let ((turns, turn), (finished, saved)) = (channel::<()>(), channel());
        let Some(dir) = &args.save_to else {
            return Err(BenchError::Usage("--save-every needs --save-to".into()));
        };
        let (is_on, dir) = (Arc::clone(&on), dir.to_string_lossy().into_owned());
        let run = move || {
            crate::alloc::exclude_this_thread();
            for () in turn {
                let saves = save_while(&mut client, &dir, &is_on, every);
                // It fails if the measuring thread has ended with an error, which is reported.
                let _ = finished.send(saves);
            }
            client
        };
        let thread = std::thread::Builder::new().name("saver".into());
        let thread = thread.spawn(run);
        let thread = thread.map_err(|e| BenchError::system("start the worker that saves", e))?;
        Ok(Self {
            on,
            turns,
            saved,
            thread,
        })
    }

    fn begin(&self) {
        self.on.store(true, Ordering::Relaxed);
        // It fails if the thread has panicked: `end` returns that as an error.
        let _ = self.turns.send(());
    }

    /// Ends the turn: waits until a save under way is complete, and returns the saves of the turn.
    fn end(&self) -> Result<Vec<Save>, BenchError> {
        self.on.store(false, Ordering::Relaxed);
        self.saved.recv().unwrap_or_else(|_| Err(panicked()))
    }

    fn finish(self) -> Result<(), BenchError> {
        drop(self.turns);
        let mut client = self.thread.join().map_err(|_| panicked())?;
        Ok(client.finish()?)
    }
}

fn panicked() -> BenchError {
    BenchError::process("the worker that saves", "it has panicked")
}

fn save_while(
    client: &mut Client,
    dir: &str,
    on: &AtomicBool,
    every: Duration,
) -> Result<Vec<Save>, BenchError> {
    let mut saves = Vec::new();
    while on.load(Ordering::Relaxed) {
        let (begun, next) = (clock::now(), Deadline::after(every));
        let bytes = client.save(dir, SAVE_TIMEOUT)?.bytes;
        saves.push(Save {
            bytes,
            seconds: begun.elapsed().as_secs_f64(),
        });
        while on.load(Ordering::Relaxed) && !next.passed() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    Ok(saves)
}
