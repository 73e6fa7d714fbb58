//! The subcommand `tidewater status`: what a running cluster does.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use tidewater_launch::{JobFile, LaunchVars, token};
use tidewater_protocol::wire::handshake::JobToken;
use tidewater_protocol::wire::hello::Ids;
use tidewater_runtime::clock::Deadline;
use tidewater_status::{JobReport, MemoryReport, Report, StatusError};

use super::roles::complain;

/// The arguments of `status`.
#[derive(Debug, Args)]
#[command(after_help = "\
The exit code is 0, 3 for a job file or token that cannot be used, and 4 if the coordinator or a server
does not answer. Nothing waits for this command, and it changes nothing.
Examples:
  tidewater serve --servers 2 --job-file a.job &
  tidewater status --job-file a.job
  tidewater status --job-file a.job --json")]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Print JSON for programs.
    #[arg(long)]
    json: bool,
    /// Print text in Prometheus' format.
    #[arg(long, conflicts_with = "json")]
    prometheus: bool,
    /// Longest time for all answers.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = super::parse_duration)]
    timeout: Duration,
}

/// The cluster that an operator's command is about.
#[derive(Debug, Args)]
pub(super) struct ClusterArgs {
    /// Job file of the cluster [default: TIDEWATER_JOB].
    #[arg(long, value_name = "FILE", conflicts_with = "coordinator")]
    job_file: Option<PathBuf>,
    /// The coordinator, in place of a job file [default: TIDEWATER_COORDINATOR].
    #[arg(long, value_name = "HOST:PORT")]
    coordinator: Option<String>,
    /// File, mode 0600, that holds the job token, with --coordinator [default: TIDEWATER_TOKEN_FILE].
    #[arg(long, value_name = "FILE", conflicts_with = "job_file")]
    token_file: Option<PathBuf>,
}

/// A running cluster, as an operator's command reaches it.
pub(super) struct ClusterPlace {
    pub(super) address: String,
    pub(super) token: JobToken,
    /// Job file that names it, if one does.
    pub(super) file: Option<JobFile>,
}

impl ClusterPlace {
    pub(super) fn ids(&self) -> Ids {
        self.file.as_ref().map_or_else(Ids::default, JobFile::ids)
    }

    /// Prints an error, and that of a stale job file in its place.
    pub(super) fn complain(&self, error: &StatusError) -> ExitCode {
        let stale = match (&self.file, error) {
            (Some(file), StatusError::Dial(dial)) => file.explain(dial),
            _ => None,
        };
        match stale {
            Some(stale) => complain(4, stale),
            None => complain(4, error),
        }
    }
}

/// Prints what a cluster does.
pub(crate) fn status(args: &StatusArgs) -> ExitCode {
    match report(args).and_then(|report| print(args, &report)) {
        Ok(code) | Err(code) => code,
    }
}

fn report(args: &StatusArgs) -> Result<Report, ExitCode> {
    let place = args.cluster.find()?;
    let deadline = Deadline::after(args.timeout);
    tidewater_status::fetch(&place.address, &place.token, place.ids(), deadline)
        .map_err(|error| place.complain(&error))
}

impl ClusterArgs {
    /// Address and token of the cluster, and the job file that they are from.
    pub(super) fn find(&self) -> Result<ClusterPlace, ExitCode> {
        let variable = |name| std::env::var(name).ok().filter(|text| !text.is_empty());
        let vars = LaunchVars::from_env().map_err(|error| complain(3, error))?;
        let named = self.coordinator.clone();
        let path = self
            .job_file
            .clone()
            .or(vars.job_file.filter(|_| named.is_none()));
        if let Some(path) = path {
            let file = JobFile::read(&path).map_err(|error| complain(3, error))?;
            return Ok(ClusterPlace {
                address: file.coordinator.clone(),
                token: file.token.clone(),
                file: Some(file),
            });
        }
        let address = named.or_else(|| variable("TIDEWATER_COORDINATOR"));
        let address = address
            .ok_or_else(|| complain(2, "give --job-file, or --coordinator and --token-file"))?;
        let path = self.token_file.clone();
        let path = path.or_else(|| variable("TIDEWATER_TOKEN_FILE").map(PathBuf::from));
        let path =
            path.ok_or_else(|| complain(2, "give --token-file, or set TIDEWATER_TOKEN_FILE"))?;
        let token = token::read_file(&path).map_err(|error| complain(3, error))?;
        Ok(ClusterPlace {
            address,
            token,
            file: None,
        })
    }
}

fn print(args: &StatusArgs, report: &Report) -> Result<ExitCode, ExitCode> {
    let text = match (args.json, args.prometheus) {
        (true, _) => serde_json::to_string_pretty(report).map(|mut json| {
            json.push('\n');
            json
        }),
        (_, true) => Ok(report.prometheus()),
        _ => Ok(text(report)),
    };
    let text = text.map_err(|error| complain(3, error))?;
    let written = std::io::stdout().write_all(text.as_bytes());
    written.map_err(|error| complain(3, format_args!("cannot print the status: {error}")))?;
    let silent = report
        .servers
        .iter()
        .filter(|server| server.error.is_some());
    Ok(match silent.count() {
        0 => ExitCode::SUCCESS,
        count => complain(4, format_args!("{count} servers do not answer")),
    })
}

/// The report for people.
fn text(report: &Report) -> String {
    let mut out = String::new();
    let joined = report.servers.len();
    // Writes to a String do not fail.
    let _ = writeln!(
        out,
        "cluster at {}: {joined} of {} servers, tidewater {}, epoch {}",
        report.coordinator, report.servers_expected, report.version, report.epoch
    );
    if !report.stopping.is_empty() {
        let _ = writeln!(out, "it ends: {}", report.stopping);
    }
    for job in &report.jobs {
        let of = match job.workers_expected {
            0 => "an open number of".to_owned(),
            workers => workers.to_string(),
        };
        let _ = write!(
            out,
            "job \"{}\": {of} workers, {} tables",
            job.namespace, job.tables
        );
        for state in ["expected", "live", "finished", "lost"] {
            let ranks = job.workers.iter().filter(|worker| worker.state == state);
            let ranks: Vec<u32> = ranks.map(|worker| worker.rank).collect();
            if !ranks.is_empty() {
                let _ = write!(out, "; {state}: {}", list(&ranks));
            }
        }
        if job.at_barriers > 0 {
            let _ = write!(out, "; {} at barriers", job.at_barriers);
        }
        if !job.saving.is_empty() {
            let _ = write!(out, "; saves or loads {}", job.saving);
        }
        if !job.failed.is_empty() {
            let _ = write!(out, "; failed: {}", job.failed);
        }
        out.push('\n');
        for domain in &job.domains {
            let awaited = match domain.awaited.is_empty() {
                true => "none awaited".to_owned(),
                false => format!("awaited: rank {}", list(&domain.awaited)),
            };
            let _ = writeln!(
                out,
                "  clock domain {}: tick {}, fastest {}, {awaited}",
                domain.domain, domain.tick, domain.front
            );
        }
        queues(&mut out, job);
    }
    servers(&mut out, report);
    out
}

fn queues(out: &mut String, job: &JobReport) {
    for queue in &job.queues {
        let state = match queue.is_over {
            true => "over",
            false => "open",
        };
        let _ = writeln!(
            out,
            "  queue \"{}\" is {state}: pass {}, {} tasks a pass; {} given, {} with workers, {} done with {} records, \
             {} taken back from workers that left, {} by time, {} stragglers, {} failures, {} late reports, {} left out",
            queue.queue,
            queue.epochs,
            queue.tasks,
            queue.given,
            queue.open,
            queue.finished,
            queue.records,
            queue.recovered,
            queue.timeouts,
            queue.stragglers,
            queue.failures,
            queue.late,
            queue.left_out
        );
    }
    if job.queues_left_out > 0 {
        let _ = writeln!(out, "  {} more queues", job.queues_left_out);
    }
}

fn servers(out: &mut String, report: &Report) {
    for server in &report.servers {
        let _ = write!(
            out,
            "server {} at {} on {}: ",
            server.server, server.address, server.host
        );
        if let Some(error) = &server.error {
            let _ = writeln!(out, "no answer: {error}");
            continue;
        }
        let (public, private) = (memory(server.public), memory(server.private));
        let _ = writeln!(out, "parameters {public}, state {private}");
        for applier in &server.appliers {
            let _ = match applier.answered {
                true => writeln!(
                    out,
                    "  applier {}: {} frames, {} held back, {} saves",
                    applier.applier,
                    applier.frames,
                    bytes(applier.held_bytes),
                    applier.saves
                ),
                false => writeln!(out, "  applier {}: in a long step", applier.applier),
            };
        }
        for session in &server.sessions {
            let thread = match session.thread {
                0 => String::new(),
                thread => format!(" thread {thread}"),
            };
            let _ = writeln!(
                out,
                "  \"{}\" {} {}{thread} by {} ({}){}: {} refused frames, {} cuts, {} recoveries",
                session.namespace,
                match session.role {
                    "worker" => "rank",
                    role => role,
                },
                session.rank,
                session.carrier,
                session.reason,
                if session.connected { "" } else { ", cut now" },
                session.refused_frames,
                session.cuts,
                session.recoveries
            );
        }
        if server.sessions_left_out > 0 {
            let _ = writeln!(out, "  and {} sessions more", server.sessions_left_out);
        }
    }
}

/// Ranks, the first 16 of them.
fn list(ranks: &[u32]) -> String {
    const MOST: usize = 16;
    let named = ranks.iter().take(MOST).map(ToString::to_string);
    let mut text = named.collect::<Vec<_>>().join(", ");
    if ranks.len() > MOST {
        let _ = write!(text, " and {} more", ranks.len() - MOST);
    }
    text
}

fn memory(memory: MemoryReport) -> String {
    format!(
        "{} of {}",
        bytes(memory.used_bytes),
        bytes(memory.capacity_bytes)
    )
}

fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut unit = 0;
    let mut scaled = count;
    while scaled >= 10 << 10 && unit + 1 < UNITS.len() {
        scaled >>= 10;
        unit += 1;
    }
    format!("{scaled} {}", UNITS[unit])
}
