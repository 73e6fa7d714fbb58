//! Options for checkpoints of a job.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use tidewater_service::coordinator::{CheckpointPolicy, Every, Listening};

use super::roles::complain;

/// Time between two checkpoints if none is given.
const EVERY_DEFAULT: Every = Every::Time(Duration::from_secs(60));

/// Options of every command that starts a coordinator.
#[derive(Debug, Clone, Args)]
pub(super) struct CheckpointArgs {
    /// Save all tables of each job into this directory, again and again, while the job goes on. A job that
    /// starts with the directory continues from its newest complete checkpoint. All servers and the
    /// coordinator must see the directory.
    #[arg(long, value_name = "DIR")]
    pub(super) checkpoint: Option<PathBuf>,
    /// Time between two checkpoints, as in 90s or 15m, or a number of ticks, as in 100t [default: 60s].
    #[arg(long, value_name = "TIME|TICKS", requires = "checkpoint", value_parser = parse_every)]
    every: Option<Every>,
    /// Complete checkpoints to keep. Of two or more, one that shares no file with the newest is kept too.
    #[arg(long, value_name = "K", requires = "checkpoint", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=1000))]
    keep: u16,
    /// Of so many checkpoints one holds all rows; those between hold what has changed since the one before. 1: each
    /// holds all rows.
    #[arg(long, value_name = "N", requires = "checkpoint", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=64))]
    full_every: u16,
}

impl CheckpointArgs {
    /// The same options for the command line of a coordinator.
    pub(super) fn passed_on(&self) -> impl Iterator<Item = String> {
        let dir = self.checkpoint.as_ref();
        let dir = dir.map(|dir| format!("--checkpoint={}", dir.display()));
        let every = self.every.map(|every| match every {
            Every::Time(time) => format!("--every={}ms", time.as_millis()),
            Every::Ticks(ticks) => format!("--every={ticks}t"),
        });
        let keep = dir.as_ref().map(|_| format!("--keep={}", self.keep));
        let full = dir.as_ref();
        let full = full.map(|_| format!("--full-every={}", self.full_every));
        dir.into_iter().chain(every).chain(keep).chain(full)
    }

    /// Makes a coordinator take checkpoints.
    pub(super) fn apply(&self, listening: Listening) -> Result<Listening, ExitCode> {
        let Some(dir) = &self.checkpoint else {
            return Ok(listening);
        };
        let refuse = |what: &dyn std::fmt::Display| {
            complain(2, format_args!("--checkpoint {}: {what}", dir.display()))
        };
        let absolute = std::path::absolute(dir).map_err(|error| refuse(&error))?;
        let Some(dir) = absolute.to_str() else {
            return Err(refuse(&"the path is not UTF-8"));
        };
        Ok(listening.with_checkpoints(CheckpointPolicy {
            dir: dir.to_owned(),
            every: self.every.unwrap_or(EVERY_DEFAULT),
            keep: usize::from(self.keep),
            full_every: usize::from(self.full_every),
        }))
    }
}

/// A number of ticks, or a time of at least 100 ms.
fn parse_every(text: &str) -> Result<Every, String> {
    if let Some(ticks) = text.strip_suffix('t') {
        return match ticks.parse() {
            Ok(ticks @ 1..) => Ok(Every::Ticks(ticks)),
            _ => Err("not a number of ticks like 100t".into()),
        };
    }
    let time = super::parse_duration(text)?;
    match time >= Duration::from_millis(100) {
        true => Ok(Every::Time(time)),
        false => Err("a checkpoint takes longer than this; give at least 100ms".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals() {
        assert_eq!(parse_every("100t"), Ok(Every::Ticks(100)));
        assert_eq!(
            parse_every("1500ms"),
            Ok(Every::Time(Duration::from_millis(1500)))
        );
        for text in ["0t", "t", "-1t", "1ms", "soon", ""] {
            assert!(parse_every(text).is_err(), "{text}");
        }
    }
}
