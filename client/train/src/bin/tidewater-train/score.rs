//! The commands `tidewater-train evaluate` and `predict`.

use std::process::ExitCode;
use std::time::Duration;

use tidewater::{Client, ClientError, SyncMode};
use tidewater_protocol::wire::refusal::RefusalCode;
use tidewater_runtime::clock::Deadline;
use tidewater_train::data::{LabelMap, ReadOptions};
use tidewater_train::event_log::EventLog;
use tidewater_train::{
    EvaluateConfig, EvaluationReport, Observation, PredictConfig, TrainError,
    evaluate as evaluate_rows, predict as predict_rows,
};

use crate::args::{EvaluateArgs, JobArgs, PredictArgs};
use crate::cluster::{Connected, connect, observe};
use crate::console::Of;
use crate::train::directory;
use crate::{Failure, say};

/// Pause of an observer between two looks at its job.
const LOOK: Duration = Duration::from_millis(100);

/// Evaluates a saved model as a worker of the job, or the model of a running job as an observer.
pub(crate) fn evaluate(args: &EvaluateArgs) -> Result<ExitCode, Failure> {
    let config = EvaluateConfig {
        data: args.data.clone(),
        read: args.format.options(),
        load: args.load.as_ref().map(directory).transpose()?,
    };
    let mut log = args.log.as_deref().map(EventLog::open).transpose()?;
    let mut report = |evaluation: &EvaluationReport| {
        let rows = evaluation.quality.rows;
        let (first, last) = (evaluation.first_clock, evaluation.last_clock);
        let clocks = match args.observe {
            true => format!(", read between ticks {first} and {last}"),
            false => String::new(),
        };
        say(format_args!(
            "{}; {rows} rows{clocks}",
            Of(evaluation.quality)
        ));
        log.as_mut()
            .map_or(Ok(()), |log| log.evaluation(evaluation))
    };
    if args.observe {
        return watch(args, &config, &mut report);
    }
    work(&args.job, |client| {
        let evaluation = evaluate_rows(client, &config)?;
        evaluation.as_ref().map_or(Ok(()), &mut report)
    })
}

/// Evaluates as an observer, once or until the job ends.
fn watch(
    args: &EvaluateArgs,
    config: &EvaluateConfig,
    report: &mut dyn FnMut(&EvaluationReport) -> Result<(), TrainError>,
) -> Result<ExitCode, Failure> {
    let mut connected = observe(&args.job)?;
    let client = &mut connected.client;
    let mut observation = Observation::new(client, config)?;
    let every = args
        .every
        .map(|seconds| Duration::from_secs(seconds.into()));
    loop {
        let next = every.map(Deadline::after);
        let evaluated = observation.run(client);
        match evaluated.and_then(|evaluation| report(&evaluation)) {
            // Servers may close their sessions before the coordinator says why.
            Err(TrainError::Client(e)) if every.is_some() => match client.check_job() {
                Err(end) if is_end(&end) => break,
                _ if is_end(&e) => break,
                _ => return Err(e.into()),
            },
            evaluated => evaluated?,
        }
        let Some(next) = next else { break };
        if !wait(client, next)? {
            break;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Waits until the time of the next evaluation; returns whether the job still runs then.
fn wait(client: &mut Client, until: Deadline) -> Result<bool, ClientError> {
    while !until.passed() {
        match client.check_job() {
            Err(e) if is_end(&e) => return Ok(false),
            checked => checked?,
        }
        std::thread::sleep(LOOK.min(until.left()));
    }
    Ok(true)
}

/// Whether an error is the end of a job that has not failed.
fn is_end(error: &ClientError) -> bool {
    matches!(error, ClientError::Refused(why) if why.code == RefusalCode::ShuttingDown)
}

/// Predicts as a worker of the job.
pub(crate) fn predict(args: &PredictArgs) -> Result<ExitCode, Failure> {
    let config = PredictConfig {
        data: args.data.clone(),
        read: ReadOptions {
            labels: LabelMap::Raw,
            ..args.format.options()
        },
        out: args.out.clone(),
        parts: args.parts,
        merged: args.merge.clone(),
        load: Some(directory(&args.load)?),
    };
    let mut log = args.log.as_deref().map(EventLog::open).transpose()?;
    work(&args.job, |client| {
        let predicted = predict_rows(client, &config, &mut |part| {
            log.as_mut().map_or(Ok(()), |log| log.part(part))
        })?;
        let lines: u64 = predicted.own.iter().map(|part| part.lines).sum();
        let malformed: u64 = predicted.own.iter().map(|part| part.malformed).sum();
        let (own, parts) = (predicted.own.len(), predicted.parts);
        let rank = client.rank();
        say(format_args!(
            "worker {rank} predicted {own} of {parts} parts: {lines} lines, {malformed} of them malformed"
        ));
        Ok(())
    })
}

/// Joins the job, works in it, and leaves it; a failure is reported to the job.
fn work(
    args: &JobArgs,
    mut work: impl FnMut(&mut Client) -> Result<(), TrainError>,
) -> Result<ExitCode, Failure> {
    let Some(mut connected) = connect(args, SyncMode::Bsp)? else {
        return Ok(ExitCode::SUCCESS);
    };
    let client = &mut connected.client;
    if let Err(e) = work(client).and_then(|()| Ok(client.finish()?)) {
        report_failure(&mut connected, &e);
        return Err(e.into());
    }
    connected.end()?;
    Ok(ExitCode::SUCCESS)
}

/// Reports a failure to the job, which then names this worker and the reason.
fn report_failure(connected: &mut Connected, error: &TrainError) {
    // If the coordinator is unreachable, the end of the process says as much.
    if let Err(unreported) = connected.client.fail(&error.to_string()) {
        tracing::debug!("the coordinator did not receive the failure: {unreported}");
    }
}
