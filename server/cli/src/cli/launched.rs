//! `tidewater launch-info`, and `tidewater server` under a foreign launcher.

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use clap::Args;
use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};
use tidewater_launch::{
    Decision, Detection, Explicit, LaunchEnv, LaunchVars, Place, Verdict, detect,
};
use tidewater_protocol::wire::control::Part;
use tidewater_runtime::clock::Deadline;
use tidewater_service::launched::{LaunchedError, join_job};
use tidewater_service::process::ServerProcess;
use tidewater_topology::hostinfo;

use super::roles::{Outcome, ServerArgs, complain};

/// Options that replace or complete the launcher's settings.
#[derive(Debug, Args)]
pub(super) struct LaunchArgs {
    /// Number of this process among all that were launched [default: the launcher's].
    #[arg(long, value_name = "N", requires = "size")]
    rank: Option<u32>,
    /// Processes that were launched, servers and workers [default: the launcher's].
    #[arg(long, value_name = "N")]
    size: Option<u32>,
    /// Place where the processes meet: a directory that all see, HOST:PORT of rank 0, or pmi
    /// [default: TIDEWATER_RENDEZVOUS, or what the launcher offers].
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
    /// Print one line only.
    #[arg(long)]
    brief: bool,
}

/// Prints what was detected, what was decided, and why.
pub(crate) fn info(args: LaunchInfoArgs) -> ExitCode {
    let detection = match look(&args.launch) {
        Ok(detection) => detection,
        Err(code) => return code,
    };
    let mut text = String::new();
    if !args.brief {
        text += &seen(&detection);
    }
    let failed = match &detection.decision {
        Ok(decision) => {
            text += &decided(decision, args.brief);
            None
        }
        Err(error) => Some(error),
    };
    // In one write, so that the lines of several processes do not mix.
    let _ = std::io::stdout().write_all(text.as_bytes());
    failed.map_or(ExitCode::SUCCESS, |error| complain(3, error))
}

/// The place of this process in a launch; `None` if there are no other processes, or if
/// `TIDEWATER_*` name a coordinator.
pub(super) fn place(launch: &LaunchArgs) -> Result<Option<Place>, ExitCode> {
    let decision = look(launch)?.decision;
    match decision.map_err(|error| complain(3, error))? {
        Decision::Launched(place) if place.size > 1 => Ok(Some(place)),
        _ => Ok(None),
    }
}

/// Runs a server of the launched job.
pub(super) fn serve(place: &Place, args: &ServerArgs) -> Outcome {
    super::report_unknown_variables();
    let deadline = Deadline::after(args.join_timeout);
    let vars = LaunchVars::from_env().map_err(|error| complain(3, error))?;
    let interface = args.interface.clone().or(vars.interface);
    let interface = interface.as_deref().filter(|name| !name.is_empty());
    let member = join_job(place, Part::Server, interface, deadline).map_err(|error| {
        let exit = match error {
            LaunchedError::Rendezvous(_) | LaunchedError::Taken { .. } => 4,
            _ => 3,
        };
        complain(exit, error)
    })?;
    super::complain(member.describe(place, Part::Server));
    let mut config = member.server_config();
    args.fill(&mut config, vars.appliers, None)?;
    config.functions = args.modules.functions()?;
    let stop = stop_at_the_second().map_err(|error| complain(3, error))?;
    let server = ServerProcess::start(&config, deadline).map_err(|error| complain(4, error))?;
    let ended = server.run(&[stop.as_fd()]);
    let ended = ended.map_err(|error| complain(4, error))?;
    tracing::info!(?ended, "the server has ended");
    member.end();
    Ok(())
}

/// Readable when SIGTERM or SIGINT has come twice. Launchers and batch systems send signals to all
/// processes of a job. The first is for the workers, which end their step, save, and need servers
/// for it; when they are done the servers end. SIGUSR1 is for the workers only.
fn stop_at_the_second() -> std::io::Result<UnixStream> {
    let (mut signals, caught) = UnixStream::pair()?;
    let (stop, last) = UnixStream::pair()?;
    signal_hook::low_level::pipe::register(SIGTERM, caught.try_clone()?)?;
    signal_hook::low_level::pipe::register(SIGINT, caught)?;
    let (ignored, usr1) = UnixStream::pair()?;
    ignored.set_nonblocking(true)?;
    signal_hook::low_level::pipe::register(SIGUSR1, usr1)?;
    let counter = move || {
        let mut one = [0];
        for _ in 0..2 {
            let _ = signals.read_exact(&mut one);
        }
        drop((last, ignored));
    };
    let thread = std::thread::Builder::new().name("tw-signals".into());
    thread.spawn(counter)?;
    Ok(stop)
}

fn look(launch: &LaunchArgs) -> Result<Detection, ExitCode> {
    match LaunchEnv::here(launch.explicit()) {
        Ok(around) => Ok(detect(&around)),
        Err(error) => Err(complain(
            3,
            format_args!("there is no working directory: {error}"),
        )),
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
            let host = hostinfo::host_name();
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
    line("host", &hostinfo::host_name());
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
