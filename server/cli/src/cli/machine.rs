//! `tidewater info` and `tidewater doctor`.

use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::process::ExitCode;

use crate::doctor::{Chosen, Machine, Plan, Question, choose, draw, examine};
use clap::Args;
use serde::Serialize;
use tidewater_engine::store::Hugepages;
use tidewater_launch::FabricSettings;
use tidewater_launch::RdmaDevice;
use tidewater_protocol::limits::{RING_BYTES_DEFAULT, RING_BYTES_MAX, RING_BYTES_MIN};
use tidewater_protocol::scale::JobSize;
use tidewater_service::server::CAPACITY_DEFAULT;

/// The processes that are to run on this host.
#[derive(Debug, Args)]
struct QuestionArgs {
    /// Servers on this host.
    #[arg(long, short, default_value_t = 1, value_name = "S", value_parser = clap::value_parser!(u32).range(1..=512))]
    servers: u32,
    /// Client threads on this host.
    #[arg(long, short, default_value_t = 0, value_name = "W")]
    workers: u32,
    /// Applier threads of each server [default: its share of half the cores].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    appliers: Option<u16>,
    /// Bytes for parameters of each server, and as many for their state.
    #[arg(long, value_name = "BYTES", default_value_t = CAPACITY_DEFAULT)]
    capacity: usize,
    /// Pages of that memory: auto, 2M, 1G or off.
    #[arg(long, default_value = "auto", value_parser = super::parse_hugepages)]
    hugepages: Hugepages,
    /// Network or RDMA device that servers are to be near [default: that of --listen].
    #[arg(long, value_name = "NAME")]
    nic: Option<String>,
    /// RDMA ports that servers may use, as in mlx5_0:1 or mlx5_%r [default: all].
    #[arg(long, value_name = "NAMES")]
    rdma_device: Option<RdmaDevice>,
    /// Address that servers listen on.
    #[arg(long, value_name = "ADDRESS", default_value_t = IpAddr::V4(Ipv4Addr::UNSPECIFIED))]
    listen: IpAddr,
    /// Read a copy of /sys, /proc and /dev in this folder.
    #[arg(long, value_name = "FOLDER", default_value = "/")]
    root: PathBuf,
    /// Print JSON instead of text.
    #[arg(long)]
    json: bool,
}

/// The arguments of `info`.
#[derive(Debug, Args)]
#[command(after_help = "\
Example: what four appliers near the NIC with this address would choose
  tidewater info --appliers 4 --listen 10.0.0.7")]
pub(crate) struct InfoArgs {
    #[command(flatten)]
    question: QuestionArgs,
}

/// The arguments of `doctor`.
#[derive(Debug, Args)]
#[command(after_help = "\
The exit code is 0 if nothing failed, also with warnings, and 1 if something did.
Example: whether this host is fit for a server that is reached by RDMA
  tidewater doctor --rdma --listen 10.0.0.7 --workers 16
Example: what 1,024 processes take, 64 on each host
  tidewater doctor --plan --servers 16 --appliers 4 --processes 1024 --processes-per-host 64")]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    question: QuestionArgs,
    /// Require RDMA: its faults are failures, not warnings.
    #[arg(long)]
    rdma: bool,
    /// Instead of checks: what a job takes over RDMA, in queue pairs, pinned memory and time to attach. The job
    /// has --servers, --appliers and the following options; the host is not read.
    #[arg(long)]
    plan: bool,
    #[command(flatten)]
    size: SizeArgs,
    #[command(flatten)]
    fabric: FabricSettings,
}

/// The size of a job, for `doctor --plan`.
#[derive(Debug, Args)]
struct SizeArgs {
    /// Client processes of the job.
    #[arg(long, default_value_t = 1, value_name = "N", requires = "plan")]
    processes: u32,
    /// Client threads of each process.
    #[arg(long, default_value_t = 1, value_name = "N", requires = "plan")]
    threads: u32,
    /// Client processes on each host [default: all].
    #[arg(long, value_name = "N", requires = "plan")]
    processes_per_host: Option<u32>,
    /// Bytes of each ring.
    #[arg(long, default_value_t = RING_BYTES_DEFAULT, value_name = "BYTES", requires = "plan")]
    ring_bytes: usize,
    /// Lanes that a device makes in a second.
    #[arg(long, default_value_t = 200.0, value_name = "R", requires = "plan")]
    lanes_per_second: f64,
    /// Seconds that clients wait for their lanes (their --join-timeout).
    #[arg(long, default_value_t = 60.0, value_name = "S", requires = "plan")]
    join_seconds: f64,
}

impl DoctorArgs {
    /// The size of the job of `--plan`, or what is wrong with it.
    fn size(&self) -> Result<JobSize, String> {
        let SizeArgs {
            processes,
            threads,
            ring_bytes,
            lanes_per_second,
            ..
        } = self.size;
        let per_host = self.size.processes_per_host.unwrap_or(processes);
        if [processes, threads, per_host].contains(&0) {
            return Err("--processes, --threads and --processes-per-host are at least 1".into());
        }
        if !(RING_BYTES_MIN..=RING_BYTES_MAX).contains(&ring_bytes) || !ring_bytes.is_power_of_two()
        {
            return Err(format!(
                "--ring-bytes {ring_bytes}: a ring has a power of two from {RING_BYTES_MIN} to {RING_BYTES_MAX} bytes"
            ));
        }
        if !(lanes_per_second.is_finite() && lanes_per_second > 0.0) {
            return Err(format!(
                "--lanes-per-second {lanes_per_second}: a rate is more than 0"
            ));
        }
        let appliers = self.question.appliers;
        Ok(JobSize {
            servers: self.question.servers,
            appliers: appliers.ok_or("--plan needs --appliers: those of each server")?,
            processes,
            threads,
            processes_per_host: per_host,
            ring_bytes,
        })
    }
}

/// Prints what a job takes. Exit code 1 if it exceeds a limit.
fn plan(args: &DoctorArgs) -> ExitCode {
    let size = match args.size() {
        Ok(size) => size,
        Err(why) => {
            super::complain(why);
            return ExitCode::from(3);
        }
    };
    let plan = Plan::new(&size, args.size.lanes_per_second, args.size.join_seconds);
    let printed = match args.question.json {
        true => print_json(&plan),
        false => print(&plan.to_string()),
    };
    printed
        .err()
        .unwrap_or(ExitCode::from(u8::from(!plan.fits())))
}

impl QuestionArgs {
    /// Splits the arguments into question and host.
    fn read(self, rdma: bool, fabric: FabricSettings) -> (Question, Machine) {
        let machine = Machine::read_at(&self.root);
        let question = Question {
            servers: self.servers,
            appliers: self.appliers,
            clients: self.workers,
            capacity: self.capacity,
            hugepages: self.hugepages,
            nic: self.nic,
            listens: Some(self.listen),
            rdma,
            fabric,
            rdma_device: self.rdma_device,
        };
        (question, machine)
    }
}

/// The output of `info --json`.
#[derive(Serialize)]
struct Info<'a> {
    /// Version of this format.
    format: u32,
    machine: &'a Machine,
    chosen: &'a Chosen,
}

/// Draws the host and the choices of servers.
pub(crate) fn info(args: InfoArgs) -> ExitCode {
    let json = args.question.json;
    let (question, machine) = args.question.read(false, FabricSettings::UNSET);
    let chosen = match choose(&machine, &question) {
        Ok(chosen) => chosen,
        Err(error) => return no_such_nic(&error),
    };
    let (format, machine, chosen) = (1, &machine, &chosen);
    let printed = match json {
        true => print_json(&Info {
            format,
            machine,
            chosen,
        }),
        false => print(&draw(machine, &question, chosen)),
    };
    printed.err().unwrap_or(ExitCode::SUCCESS)
}

/// Checks the host and prints the findings.
pub(crate) fn doctor(args: DoctorArgs) -> ExitCode {
    if args.plan {
        return plan(&args);
    }
    let json = args.question.json;
    let fabric = match super::roles::fabric(args.fabric, None) {
        Ok(fabric) => fabric,
        Err(code) => return code,
    };
    let (question, machine) = args.question.read(args.rdma, fabric);
    let report = match examine(&machine, &question) {
        Ok(report) => report,
        Err(error) => return no_such_nic(&error),
    };
    let printed = match json {
        true => print_json(&report),
        false => print(&report.to_string()),
    };
    let verdict = ExitCode::from(u8::from(!report.passed()));
    printed.err().unwrap_or(verdict)
}

fn no_such_nic(error: &dyn std::error::Error) -> ExitCode {
    super::complain(format_args!("--nic: {error}"));
    ExitCode::from(3)
}

fn print_json(value: &impl Serialize) -> Result<(), ExitCode> {
    match serde_json::to_string_pretty(value) {
        Ok(text) => print(&(text + "\n")),
        Err(error) => {
            super::complain(error);
            Err(ExitCode::from(3))
        }
    }
}

/// A reader that closes the pipe early is no failure.
fn print(text: &str) -> Result<(), ExitCode> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            super::complain(format_args!("cannot write: {error}"));
            Err(ExitCode::from(3))
        }
        _ => Ok(()),
    }
}
