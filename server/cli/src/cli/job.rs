//! The subcommands of jobs of `tidewater-train`: `train`, `evaluate`, `predict`; and `stop` and `wait` of any job.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use tidewater_protocol::wire::hello::NAMESPACE_DEFAULT;
use tidewater_runtime::clock::Deadline;
use tidewater_status::{JobEnd, stop_job, wait_job};

use super::roles::complain;
use super::status::ClusterArgs;

/// Name of the program of the workers.
const TRAINER: &str = "tidewater-train";
/// Time limit of a wait without one: longer than any job.
const FOREVER: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// The command line of the workers: the trainer next to this program, or in PATH, and its arguments.
pub(super) fn trainer(executable: &std::path::Path, arguments: Vec<OsString>) -> Vec<OsString> {
    let neighbour = executable.with_file_name(TRAINER);
    let program = match neighbour.is_file() {
        true => neighbour,
        false => PathBuf::from(TRAINER),
    };
    std::iter::once(program.into()).chain(arguments).collect()
}

/// The arguments of `stop`.
#[derive(Debug, Args)]
#[command(after_help = "\
Workers end at a common step, as after SIGTERM: tidewater-train saves the model if --save is given and
ends with code 143. A program that does not use Walltime, or Client::stop_asked, goes on.
The exit code is 0 when the workers are asked, 3 for a job file or token that cannot be used, and 4 if
no such job runs.
Example:
  tidewater run --job-file a.job --workers 2 -- tidewater-train lr --train a.libsvm --save model &
  tidewater stop --job-file a.job")]
pub(crate) struct StopArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Name of the job in a service [default: that of the job file, or default].
    #[arg(long, value_name = "NAME")]
    namespace: Option<String>,
    /// Reason of the end, for people.
    #[arg(long, value_name = "TEXT", default_value = "an operator stops the job")]
    reason: String,
    /// Longest time for the answer.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = super::parse_duration)]
    timeout: Duration,
}

/// The arguments of `wait`.
#[derive(Debug, Args)]
#[command(after_help = "\
The exit code is 0 if all workers have ended, 1 if the job has failed, 3 for a job file or token that
cannot be used, 4 if no such job runs, or the coordinator is gone, and 124 after --timeout.
Example:
  tidewater wait --job-file a.job --timeout 2h")]
pub(crate) struct WaitArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Name of the job in a service [default: that of the job file, or default].
    #[arg(long, value_name = "NAME")]
    namespace: Option<String>,
    /// Longest time to wait [default: none].
    #[arg(long, value_name = "TIME", value_parser = super::parse_duration)]
    timeout: Option<Duration>,
}

/// Asks the workers of a job to end.
pub(crate) fn stop(args: &StopArgs) -> ExitCode {
    let place = match args.cluster.find() {
        Ok(place) => place,
        Err(code) => return code,
    };
    let file = place.file.as_ref().map(|file| file.namespace.as_str());
    let namespace = args.namespace.as_deref().or(file);
    let namespace = namespace.unwrap_or(NAMESPACE_DEFAULT);
    let deadline = Deadline::after(args.timeout);
    let stopped = stop_job(
        &place.address,
        &place.token,
        place.ids(),
        namespace,
        &args.reason,
        deadline,
    );
    match stopped {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => place.complain(&error),
    }
}

/// Waits for the end of a job.
pub(crate) fn wait(args: &WaitArgs) -> ExitCode {
    let place = match args.cluster.find() {
        Ok(place) => place,
        Err(code) => return code,
    };
    let file = place.file.as_ref().map(|file| file.namespace.as_str());
    let namespace = args.namespace.as_deref().or(file);
    let namespace = namespace.unwrap_or(NAMESPACE_DEFAULT);
    let deadline = Deadline::after(args.timeout.unwrap_or(FOREVER));
    match wait_job(
        &place.address,
        &place.token,
        place.ids(),
        namespace,
        deadline,
    ) {
        Ok(JobEnd::Done) => ExitCode::SUCCESS,
        Ok(JobEnd::Failed(refusal)) => complain(1, format_args!("the job has failed: {refusal}")),
        Ok(JobEnd::Running) => complain(124, "the job has not ended within --timeout"),
        Err(error) => place.complain(&error),
    }
}
