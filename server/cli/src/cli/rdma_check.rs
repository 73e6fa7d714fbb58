//! The subcommand `tidewater rdma-check`: RDMA between two nodes.

use std::io::Write as _;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use tidewater_launch::RdmaDevice;
use tidewater_rdma_check::{Finding, Host, Options, PORT, Report, Verdict, call, listen};

use super::complain;
use crate::doctor::{self, Check, Machine, Question, examine};

const EXAMPLES: &str = "\
Example: ten minutes between two nodes, with a page and a JSON document on both
  node1$ tidewater rdma-check --listen 10.0.0.1
  node2$ tidewater rdma-check 10.0.0.1

It checks the device of each end that has the address of the connection: capabilities, a path with
long packets, order of data, latency and bandwidth next to perftest's, torn reads, 64 clients that
attach at once, pushes exactly once while queue pairs are broken on purpose, the lane contract,
registration, hardware counters before and after.

The end that listens serves one caller, without a secret. The token of the check's own job, which holds
test data only, goes in clear between both ends and ends with the check: use a network where all hosts
are trusted. The exit code is 0 if nothing failed, also with things to change; 1 if something failed;
3 or 4 if there was no check.";

/// The arguments of `rdma-check`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct RdmaCheckArgs {
    /// Address of the end that listens, with its port if that is not 7177.
    #[arg(value_name = "ADDRESS[:PORT]", required_unless_present = "listen")]
    address: Option<String>,
    /// Listen at this address of this node for the other end.
    #[arg(long, value_name = "ADDRESS[:PORT]", conflicts_with = "address")]
    listen: Option<String>,
    /// Take about a minute: shorter runs, and the lane contract at this end only.
    #[arg(long, conflicts_with = "listen")]
    short: bool,
    /// RDMA device of this end, as in mlx5_0:1 [default: TIDEWATER_RDMA_DEVICE, or the one that has the
    /// address of the connection].
    #[arg(long, value_name = "NAME[:PORT]")]
    rdma_device: Option<RdmaDevice>,
    /// GiB that each end registers with its device [default: 8, and 0.25 with --short; at most a quarter of the free
    /// memory of the end with less].
    #[arg(long, value_name = "N", conflicts_with = "listen")]
    register_gib: Option<f64>,
    /// Clients that attach at once.
    #[arg(long, value_name = "N", default_value_t = 64, conflicts_with = "listen",
          value_parser = clap::value_parser!(u32).range(1..=1024))]
    clients: u32,
    /// Set this network interface of this end down for two seconds during a ledger. Needs CAP_NET_ADMIN.
    #[arg(long, value_name = "NETDEV", conflicts_with = "listen")]
    port_down: Option<String>,
    /// Wait so long for the other end.
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = super::parse_duration)]
    wait: Duration,
    /// Folder that gets rdma-check.json and rdma-check.md.
    #[arg(long, value_name = "FOLDER", default_value = ".")]
    out: PathBuf,
}

/// Checks RDMA with another node, prints the page, and writes both documents.
pub(crate) fn rdma_check(args: RdmaCheckArgs) -> ExitCode {
    run(args).unwrap_or_else(|code| code)
}

fn run(args: RdmaCheckArgs) -> Result<ExitCode, ExitCode> {
    let environment = RdmaDevice::from_env().map_err(|e| failed(2, e))?;
    let mut options = Options::default();
    options.device = args.rdma_device.or(environment);
    options.short = args.short;
    if args
        .register_gib
        .is_some_and(|gib| !(0.001..=65_536.0).contains(&gib))
    {
        return Err(failed(2, "--register-gib: 0.001 to 65536"));
    }
    let bytes = |gib: f64| (gib * f64::from(1 << 30)) as u64;
    options.register_bytes = args.register_gib.map(bytes);
    options.clients = args.clients;
    options.port_down = args.port_down;
    options.wait = args.wait;
    let say = &mut |line: &str| complain(format_args!("rdma-check: {line}"));
    let report = match (&args.listen, &args.address) {
        (Some(text), _) => {
            let address = socket(text)?;
            listen(address, host(address.ip()), &options, say)
        }
        (None, Some(text)) => call(socket(text)?, host_of_caller(), &options, say),
        (None, None) => return Err(failed(2, "give an address, or --listen")),
    };
    let report = report.map_err(|e| failed(4, e))?;
    write(&args.out, &report)?;
    let page = report.page();
    if let Err(e) = std::io::stdout().write_all(page.as_bytes())
        && e.kind() != std::io::ErrorKind::BrokenPipe
    {
        return Err(failed(3, format_args!("cannot write: {e}")));
    }
    Ok(ExitCode::from(u8::from(!report.passed())))
}

fn failed(code: u8, why: impl std::fmt::Display) -> ExitCode {
    complain(why);
    ExitCode::from(code)
}

/// Parses an address of this kind: `10.0.0.1`, `10.0.0.1:7000`, `[fd00::1]:7000`, `node1`.
fn socket(text: &str) -> Result<SocketAddr, ExitCode> {
    if let Ok(ip) = text.parse::<IpAddr>() {
        return Ok(SocketAddr::new(ip, PORT));
    }
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let has_port = text
        .rsplit_once(':')
        .is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    let found = match has_port {
        true => text.to_socket_addrs(),
        false => (text, PORT).to_socket_addrs(),
    };
    let first =
        found.map_err(|e| failed(2, format_args!("{text}: {e}; give ADDRESS or ADDRESS:PORT")))?;
    let first = first.into_iter().next();
    first.ok_or_else(|| failed(2, format_args!("{text} has no address")))
}

/// This host as `doctor --rdma` sees it.
fn host(address: IpAddr) -> Host {
    facts(Some(address))
}

/// This host, with an address that the connection decides.
fn host_of_caller() -> Host {
    facts(None)
}

fn facts(listens: Option<IpAddr>) -> Host {
    let machine = Machine::read();
    let question = Question {
        rdma: true,
        listens,
        ..Question::default()
    };
    // Without a named NIC there is nothing that could be unknown.
    let checks = examine(&machine, &question)
        .map(|report| report.checks)
        .unwrap_or_default();
    Host {
        name: machine.host.clone(),
        kernel: machine.kernel.clone(),
        doctor: checks.into_iter().filter_map(finding).collect(),
    }
}

/// A check of `doctor` that concerns RDMA.
fn finding(check: Check) -> Option<Finding> {
    let concerns = check.name.starts_with("rdma") || check.name == "memlock";
    concerns.then(|| {
        let verdict = match check.verdict {
            doctor::Verdict::Ok => Verdict::Pass,
            doctor::Verdict::Warn => Verdict::Change,
            doctor::Verdict::Fail => Verdict::Fail,
        };
        let found = match check.means.as_str() {
            "" => check.found,
            means => format!("{}. {means}", check.found),
        };
        let finding = Finding::new(check.name, verdict, found);
        check.remedies.into_iter().fold(finding, Finding::change)
    })
}

fn write(folder: &Path, report: &Report) -> Result<(), ExitCode> {
    let json = report.json().map_err(|e| failed(3, e))?;
    for (name, text) in [("rdma-check.json", json), ("rdma-check.md", report.page())] {
        let path = folder.join(name);
        std::fs::write(&path, text).map_err(|e| {
            failed(
                3,
                format_args!("cannot write {}: {e}; give --out", path.display()),
            )
        })?;
    }
    Ok(())
}
