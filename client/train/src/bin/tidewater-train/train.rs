//! The commands `tidewater-train lr` and `ftrl`.

use std::num::NonZeroU64;
use std::path::{Path, PathBuf, absolute};
use std::process::ExitCode;

use tidewater::Client;
use tidewater_protocol::table::Optimizer;
use tidewater_train::{Cadence, Config, Outcome, TrainError, exit, run as train};

use crate::args::TrainArgs;
use crate::cluster::connect;
use crate::console::{Console, conclude};
use crate::{Failure, say};

/// Trains as a worker of the job, or alone.
pub(crate) fn run(optimizer: Optimizer, l2: f32, args: TrainArgs) -> Result<ExitCode, Failure> {
    let config = configure(optimizer, l2, &args)?;
    if let Some(json) = &args.json {
        check_writable(json)?;
    }
    let mut console = Console::new(args.log.as_deref())?;
    // A server leaves signals to the workers: they end their step, save, and need servers for it.
    let Some(mut connected) = connect(&args.job, args.sync)? else {
        return Ok(ExitCode::SUCCESS);
    };
    let client = &mut connected.client;
    let outcome = match work(client, &config, &mut console, args.json.as_deref()) {
        Ok(outcome) => outcome,
        Err(e) => {
            // The job's error then names this worker and the reason. If the coordinator is unreachable,
            // the end of the process says as much.
            if let Err(unsent) = client.fail(&e.to_string()) {
                tracing::debug!("the coordinator did not receive the failure: {unsent}");
            }
            return Err(e.into());
        }
    };
    let rank = client.rank();
    connected.end()?;
    Ok(match outcome {
        Outcome::Stopped(signal) => {
            say(format_args!(
                "tidewater-train: worker {rank} ended by signal {signal}"
            ));
            ExitCode::from(128u8.saturating_add(u8::try_from(signal).unwrap_or(u8::MAX)))
        }
        _ => ExitCode::SUCCESS,
    })
}

fn work(
    client: &mut Client,
    config: &Config,
    console: &mut Console,
    json: Option<&Path>,
) -> Result<Outcome, TrainError> {
    let outcome = train(client, config, console)?;
    console.close()?;
    if let Outcome::Done(Some(report)) = &outcome {
        conclude(report);
        if let Some(json) = json {
            report.write(json)?;
        }
    }
    client.finish()?;
    Ok(outcome)
}

fn configure(optimizer: Optimizer, l2: f32, args: &TrainArgs) -> Result<Config, Failure> {
    let mut config = Config::new(&args.train);
    config.test.clone_from(&args.test);
    config.read = args.data.options();
    config.sync = args.sync;
    config.optimizer = optimizer;
    config.decay = args.schedule;
    config.l2 = l2;
    config.batch_rows = args.batch;
    config.epochs = args.epochs;
    config.seed = args.seed;
    config.evaluate = match args.test_each_epoch {
        true => Some(Cadence::Epochs(NonZeroU64::MIN)),
        false => args.evaluate_every,
    };
    config.save = args.save.as_ref().map(directory).transpose()?;
    config.load = args.load.as_ref().map(directory).transpose()?;
    Ok(config)
}

/// Makes a directory absolute for the servers, which may have another working directory.
pub(crate) fn directory(path: &PathBuf) -> Result<String, Failure> {
    let absolute_path =
        absolute(path).map_err(|e| Failure::usage(format_args!("{}: {e}", path.display())))?;
    match absolute_path.into_os_string().into_string() {
        Ok(text) => Ok(text),
        Err(_) => Err(Failure::usage(format_args!(
            "{}: a model's directory has a name in UTF-8",
            path.display()
        ))),
    }
}

/// Checks early that the figures can be written: an error after the training costs the run.
fn check_writable(json: &Path) -> Result<(), Failure> {
    let folder = match json.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    if folder.is_dir() && json.file_name().is_some() && !json.is_dir() {
        return Ok(());
    }
    let what = format!(
        "--json {}: name a file in a directory that exists",
        json.display()
    );
    Err(Failure::new(exit::ENVIRONMENT, what))
}
