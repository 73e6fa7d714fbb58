//! Options for the schedule of a job's members.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use tidewater_service::coordinator::Listening;
use tidewater_service::coordinator::membership::Schedule;

use super::roles::complain;

/// Options of every command that starts a coordinator.
#[derive(Debug, Clone, Args)]
pub(super) struct MembershipArgs {
    /// Schedule of the job's members to follow, as --membership-log writes it: each rank begins with its tick
    /// on every server, and leaves as it says. The number of workers is that of the file.
    #[arg(long, value_name = "FILE")]
    membership: Option<PathBuf>,
    /// File that gets a line for each worker that joins or leaves the job, with its ticks.
    #[arg(long, value_name = "FILE")]
    membership_log: Option<PathBuf>,
}

impl MembershipArgs {
    /// The same options for the command line of a coordinator.
    pub(super) fn passed_on(&self) -> impl Iterator<Item = String> {
        let option = |name, file: &Option<PathBuf>| {
            let file = file.as_ref()?;
            Some(format!("{name}={}", file.display()))
        };
        let schedule = option("--membership", &self.membership);
        let log = option("--membership-log", &self.membership_log);
        schedule.into_iter().chain(log)
    }

    /// Makes a coordinator follow the schedule and write the log.
    pub(super) fn apply(&self, mut listening: Listening) -> Result<Listening, ExitCode> {
        let failed = |path: &Path, error: &dyn std::fmt::Display| {
            complain(2, format_args!("{}: {error}", path.display()))
        };
        if let Some(path) = &self.membership {
            let text = std::fs::read_to_string(path).map_err(|e| failed(path, &e))?;
            let schedule = Schedule::parse(&text).map_err(|e| failed(path, &e))?;
            listening = listening.following(schedule);
        }
        if let Some(path) = &self.membership_log {
            // A coordinator that resumes continues its log.
            let resumes = listening.resumes();
            let mut options = File::options();
            options
                .write(true)
                .create(true)
                .truncate(!resumes)
                .append(resumes);
            let log = options.open(path).map_err(|e| failed(path, &e))?;
            listening = listening.logging_members(log);
        }
        Ok(listening)
    }
}
