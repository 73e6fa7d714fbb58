//! Worker processes of a chaos run: one that pushes on arrival, one that trains under BSP with checkpoints.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use tidewater::{
    Client, ClientError, JoinOptions, Missing, PullOptions, Reduce, SyncMode, Table, TableBuilder,
};
use tidewater_launch::{TransportChoice, token};
use tidewater_protocol::table::{Durability, PushOp};
use tidewater_runtime::sync::{Arc, AtomicBool, Ordering};

use super::ledger::{Counts, now_ns, system};
use crate::error::BenchError;

/// Name of the hidden subcommand of a worker that pushes on arrival.
pub const ROLE: &str = "__chaos-worker";
/// Name of the hidden subcommand of a worker that trains.
pub const TRAINING_ROLE: &str = "__chaos-training";
/// Name of the table of both kinds of workers.
pub(super) const TABLE: &str = "ledger";
/// Rows of a process: enough that each server has some of them.
pub(super) const ROWS: u64 = 8;
/// Time limit of the calls of a worker: a fault that lasts longer is an error.
pub(super) const CALL_LIMIT: Duration = Duration::from_secs(15);
/// Pause between two pushes: the run shares its cores with all other processes.
const PAUSE: Duration = Duration::from_millis(1);
/// Pushes between two calls to the coordinator, and between two saves, of a worker that makes them.
const PUSHES_A_CALL: u64 = 50;
const PUSHES_A_SAVE: u64 = 300;
/// Steps of a training between two looks for its end.
const STEPS_A_POLL: u64 = 32;

/// Options of the hidden subcommand [`ROLE`].
#[derive(Debug, Clone, Args)]
pub struct WorkerArgs {
    /// Address of the coordinator.
    #[arg(long)]
    pub coordinator: String,
    /// File with the job token.
    #[arg(long)]
    pub token_file: PathBuf,
    /// Rank that the worker claims.
    #[arg(long)]
    pub rank: u32,
    /// Transport of the lanes.
    #[arg(long)]
    pub transport: TransportChoice,
    /// Number of this process; its rows are the `ROWS` rows from this number times `ROWS` on.
    #[arg(long)]
    pub key: u64,
    /// Ledger file of this process.
    #[arg(long)]
    pub ledger: PathBuf,
    /// Directory into which this worker saves now and then; it also makes calls to the coordinator.
    #[arg(long)]
    pub saves: Option<PathBuf>,
    /// Tables are warm, and nothing is saved: a save fails when its server dies.
    #[arg(long)]
    pub warm: bool,
}

impl WorkerArgs {
    /// Returns `table` with the durability level of this worker: warm, or unchanged.
    fn table(&self, table: TableBuilder) -> TableBuilder {
        match self.warm {
            true => table.durability(Durability::Warm),
            false => table,
        }
    }
}

/// Options of the hidden subcommand [`TRAINING_ROLE`].
#[derive(Debug, Clone, Args)]
pub struct TrainingArgs {
    /// Directory of the ledgers: `ledger-RANK`. A file `stop` in it ends the training, a file `wrong-RANK` is
    /// written when a row is wrong.
    #[arg(long)]
    pub ledgers: PathBuf,
}

/// The keys of the rows of process number `key`, ascending.
pub(super) fn rows(key: u64) -> Vec<u64> {
    (key * ROWS..(key + 1) * ROWS).collect()
}

/// Joins a cluster as worker `rank`.
fn join(args: &WorkerArgs) -> Result<Client, BenchError> {
    let token = token::read_file(&args.token_file);
    let token = token.map_err(|e| BenchError::file(&args.token_file, e))?;
    let options = JoinOptions {
        coordinator: Some(args.coordinator.clone()),
        token: Some(token),
        rank: Some(args.rank),
        transport: Some(args.transport),
        ..JoinOptions::default()
    };
    connect(options, SyncMode::Asp)
}

fn connect(options: JoinOptions, sync: SyncMode) -> Result<Client, BenchError> {
    let job = options.join()?.into_job().ok_or_else(|| {
        BenchError::Usage("this process is no worker of its job; start it as one".into())
    })?;
    let mut client = job.client(sync)?;
    client.set_timeout(CALL_LIMIT);
    client.set_clock_timeout(CALL_LIMIT);
    Ok(client)
}

/// Runs a worker until its input ends. When a server has begun again, the worker rejoins, and counts its
/// pushes and calls from zero.
///
/// # Errors
/// The error of the first call that fails for another reason: the run decides whether it may.
pub fn run(args: &WorkerArgs) -> Result<(), BenchError> {
    let over = Arc::new(AtomicBool::new(false));
    let set = Arc::clone(&over);
    std::thread::spawn(move || {
        // The end of the input, however it comes, ends the worker.
        let _ = io::stdin().read_to_end(&mut Vec::new());
        // SYNC: none. The loop sees it at some time.
        set.store(true, Ordering::Relaxed);
    });
    let file = Counts::open(&args.ledger)?;
    let mut client = join(args)?;
    let mut counts = Counts::default();
    loop {
        let restarted = match push_until(&over, &mut client, args, &file, &mut counts) {
            Ok(()) => break,
            Err(BenchError::Client(error @ ClientError::ServerRestarted { .. })) => error,
            Err(other) => return Err(other),
        };
        // The run looks for the server's name. Without stderr nothing can be said.
        let _ = writeln!(io::stderr(), "begins again: {restarted}");
        counts = Counts {
            restarts: counts.restarts + 1,
            restarted_at: now_ns(),
            refused: counts.refused,
            ..Counts::default()
        };
        counts.write(&file)?;
        loop {
            match client.rejoin() {
                // Another one has begun again meanwhile.
                Err(ClientError::ServerRestarted { .. }) => {}
                other => break other?,
            }
        }
    }
    client.finish()?;
    Ok(())
}

fn push_until(
    over: &AtomicBool,
    client: &mut Client,
    args: &WorkerArgs,
    file: &File,
    counts: &mut Counts,
) -> Result<(), BenchError> {
    let spec = args.table(TableBuilder::sparse::<i64>(TABLE, 1));
    let table: Table<i64> = client.create_table(spec.spec())?;
    let (keys, ones) = (rows(args.key), [1; ROWS as usize]);
    // SYNC: as at the store.
    while !over.load(Ordering::Relaxed) {
        counts.begun += 1;
        counts.write(file)?;
        let pushed = client.push_rows(&table, &keys, &ones, PushOp::Sum)?;
        client.wait_applied(&pushed)?;
        counts.acked += 1;
        counts.acked_at = now_ns();
        if let Some(dir) = &args.saves {
            call(client, args, dir, counts)?;
        }
        counts.write(file)?;
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

/// After every [`PUSHES_A_CALL`] pushes, creates and releases a table, which is counted as a call. After every
/// [`PUSHES_A_SAVE`] pushes, saves all tables unless they are warm; counts a save that is refused for lack of
/// space.
fn call(
    client: &mut Client,
    args: &WorkerArgs,
    dir: &std::path::Path,
    counts: &mut Counts,
) -> Result<(), BenchError> {
    if counts.acked.is_multiple_of(PUSHES_A_CALL) {
        let name = format!("of call {}", counts.calls % 3);
        let spec = args.table(TableBuilder::sparse::<f32>(&name, 1));
        let made: Table<f32> = client.create_table(spec.spec())?;
        client.release_table(made)?;
        counts.calls += 1;
        counts.called_at = now_ns();
    }
    if !args.warm && counts.acked.is_multiple_of(PUSHES_A_SAVE) {
        let dir = dir.join("model");
        match client.save(&dir.to_string_lossy(), CALL_LIMIT) {
            Ok(_) => {}
            Err(ClientError::Refused(why)) if why.to_string().contains("No space left") => {
                counts.refused += 1;
            }
            Err(other) => return Err(other.into()),
        }
    }
    Ok(())
}

/// Runs a worker of a training, from the newest checkpoint if there is one. Each step adds one to the rows of each
/// worker, so that after step N every row is N, at all workers.
///
/// # Errors
/// The error of the first call that fails; [`BenchError::Store`] for a wrong row.
pub fn train(args: &TrainingArgs) -> Result<(), BenchError> {
    let mut client = connect(JoinOptions::default(), SyncMode::Bsp)?;
    let rank = u64::from(client.rank().0);
    let file = Counts::open(&args.ledgers.join(format!("ledger-{rank}")))?;
    let spec = TableBuilder::sparse::<i64>(TABLE, 1).at_clock(Reduce::Sum);
    let table: Table<i64> = client.create_table(spec.spec())?;
    let mut step = match client.position()? {
        None => 0,
        Some(bytes) => u64::from_le_bytes(bytes.try_into().map_err(|bytes: Vec<u8>| {
            BenchError::Store(format!("a position of {} bytes, not 8", bytes.len()).into())
        })?),
    };
    check(&mut client, &table, step, args)?;
    let mut counts = Counts::read(&file)?;
    counts = Counts {
        begun: step,
        acked: step,
        restarts: counts.restarts + 1,
        restarted_at: now_ns(),
        resumed: step,
        ..counts
    };
    counts.write(&file)?;
    let (keys, ones, stop) = (rows(rank), [1; ROWS as usize], args.ledgers.join("stop"));
    loop {
        counts.begun = step + 1;
        counts.write(&file)?;
        let pushed = client.push_rows(&table, &keys, &ones, PushOp::Sum)?;
        client.wait_applied(&pushed)?;
        client.set_position(&(step + 1).to_le_bytes())?;
        client.tick()?;
        step += 1;
        (counts.acked, counts.acked_at) = (step, now_ns());
        counts.write(&file)?;
        check(&mut client, &table, step, args)?;
        if step.is_multiple_of(STEPS_A_POLL) {
            let mut ends = [i64::from(stop.exists())];
            client.broadcast(0, &mut ends)?;
            if ends[0] != 0 {
                break;
            }
        }
        std::thread::sleep(PAUSE);
    }
    client.flush()?;
    client.finish()?;
    Ok(())
}

/// Compares the rows of all workers with `step`. For a wrong row writes the file `wrong-RANK`, and returns an
/// error.
fn check(
    client: &mut Client,
    table: &Table<i64>,
    step: u64,
    args: &TrainingArgs,
) -> Result<(), BenchError> {
    let keys: Vec<u64> = (0..u64::from(client.workers()) * ROWS).collect();
    let mut values = vec![0; keys.len()];
    let options = PullOptions::default().missing(Missing::Initial);
    client.pull_rows(table, &keys, &mut values, options)?;
    let wrong = keys.iter().zip(&values).find(|(_, v)| **v != step as i64);
    let Some((key, value)) = wrong else {
        return Ok(());
    };
    let text = format!("row {key} is {value} after step {step}: a push is lost or doubled");
    let path = args.ledgers.join(format!("wrong-{}", client.rank().0));
    fs::write(&path, &text).map_err(system("write the wrong row"))?;
    Err(BenchError::Store(text.into()))
}
