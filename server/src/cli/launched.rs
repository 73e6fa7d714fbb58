//! `tidewater launch-info`, and the flags of processes that a launcher starts.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::ExitCode;

use clap::Args;
use tidewater_transport::host;
use tidewater_transport::launch::{
    Decision, Detection, Explicit, Place, Surroundings, Verdict, detect,
};

/// Where the launcher's word is not to count, or does not suffice.
#[derive(Debug, Args)]
pub(super) struct LaunchArgs {
    /// Number of this process among all that were launched [default: the launcher's].
    #[arg(long, value_name = "N", requires = "size")]
    rank: Option<u32>,
    /// Processes that were launched, servers and workers [default: the launcher's].
    #[arg(long, value_name = "N")]
    size: Option<u32>,
    /// Where they meet: a directory that all see, HOST:PORT of rank 0, or pmi [default:
    /// TIDEWATER_RENDEZVOUS, or what the launcher offers].
    #[arg(long, value_name = "WHERE")]
    rendezvous: Option<String>,
}

impl LaunchArgs {
    pub(super) fn explicit(&self) -> Explicit {
        Explicit {
            rank: self.rank,
            size: self.size,
            rendezvous: self.rendezvous.clone(),
        }
    }
}

/// The arguments of `launch-info`.
#[derive(Debug, Args)]
#[command(after_help = "\
Example: who six processes of mpirun think they are
  mpirun -n 6 tidewater launch-info --brief")]
pub(crate) struct LaunchInfoArgs {
    #[command(flatten)]
    launch: LaunchArgs,
    /// One line.
    #[arg(long)]
    brief: bool,
}

/// Prints what was seen, what was decided, and why.
pub(crate) fn info(args: LaunchInfoArgs) -> ExitCode {
    let around = match Surroundings::here(args.launch.explicit()) {
        Ok(around) => around,
        Err(error) => {
            super::complain(format_args!("there is no working directory: {error}"));
            return ExitCode::from(3);
        }
    };
    let detection = detect(&around);
    let mut text = String::new();
    if !args.brief {
        text += &seen(&detection);
    }
    let failed = match &detection.decision {
        Ok(decision) => {
            text += &decided(decision, args.brief);
            None
        }
        Err(error) => Some(error.to_string()),
    };
    // In one write, so that the lines of several processes do not mix.
    let _ = std::io::stdout().write_all(text.as_bytes());
    match failed {
        None => ExitCode::SUCCESS,
        Some(error) => {
            super::complain(error);
            ExitCode::from(3)
        }
    }
}

fn seen(detection: &Detection) -> String {
    let mut text = String::new();
    if detection.findings.is_empty() {
        text += "seen: no variable of a launcher\n";
    }
    for finding in &detection.findings {
        let mark = match finding.verdict {
            Verdict::Taken => "*",
            _ => "-",
        };
        let why = finding.verdict.text();
        let _ = writeln!(text, "{mark} {}: {why}", finding.source);
        for (name, value) in &finding.seen {
            let _ = writeln!(text, "    {name}={value}");
        }
    }
    text
}

fn decided(decision: &Decision, brief: bool) -> String {
    match decision {
        Decision::Launched(place) if brief => {
            let Place { rank, size, .. } = place;
            let host = host::host_name();
            format!("rank {rank} of {size} on {host}, by {}\n", place.source)
        }
        Decision::Launched(place) => launched(place),
        Decision::Member => {
            "decision: a member of a job that TIDEWATER_* describe; see TIDEWATER_COORDINATOR\n"
                .into()
        }
        _ => "decision: alone; no launcher started this process\n".into(),
    }
}

fn launched(place: &Place) -> String {
    let mut text = format!(
        "decision: rank {} of {}, by {}\n",
        place.rank, place.size, place.source
    );
    let mut line = |name: &str, value: &dyn std::fmt::Display| {
        let _ = writeln!(text, "  {name}: {value}");
    };
    line("host", &host::host_name());
    if let Some(local) = place.local_rank {
        line("rank on this host", &local);
    }
    if let Some(local) = place.local_size {
        line("processes on this host", &local);
    }
    if let Some(job) = &place.job {
        line("job", job);
    }
    if let Some(first) = place.hosts.first() {
        line(
            "hosts",
            &format_args!("{}, the first is {first}", place.hosts.len()),
        );
    }
    match &place.rendezvous {
        Some(meeting) => line("rendezvous", meeting),
        None => line("rendezvous", &"none needed"),
    }
    text
}
