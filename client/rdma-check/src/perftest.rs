//! The programs of perftest, the plainest users of an RDMA device, as a reference for our figures.

use std::io::Read as _;
use std::net::{IpAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidewater_runtime::clock::Deadline;

use crate::facts::DeviceFacts;

/// Time after which a program counts as hung.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Longest wait for a server to listen.
const START: Duration = Duration::from_secs(10);
/// Attempts of a run: perftest prints no figure if its clock calibration was disturbed.
const ATTEMPTS: usize = 2;

/// A program, with the messages that it is run with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Program {
    /// `ib_read_lat` with 8 bytes.
    ReadLatency,
    /// `ib_read_bw` with 1 MiB.
    ReadBandwidth,
    /// `ib_write_bw` with 64 KiB.
    WriteBandwidth,
}

/// Figure taken from a program's table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Figure {
    /// Median time of an operation, microseconds.
    MedianUs,
    /// Gigabytes (10^9) a second, on average.
    GbPerS,
    /// Million operations a second, on average.
    MOpsPerS,
}

impl Program {
    pub(crate) const ALL: [Self; 3] =
        [Self::ReadLatency, Self::ReadBandwidth, Self::WriteBandwidth];

    /// Name of the executable.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::ReadLatency => "ib_read_lat",
            Self::ReadBandwidth => "ib_read_bw",
            Self::WriteBandwidth => "ib_write_bw",
        }
    }

    const fn size(self) -> u32 {
        match self {
            Self::ReadLatency => 8,
            Self::ReadBandwidth => 1 << 20,
            Self::WriteBandwidth => 64 << 10,
        }
    }

    const fn figure(self) -> Figure {
        match self {
            Self::ReadLatency => Figure::MedianUs,
            Self::ReadBandwidth | Self::WriteBandwidth => Figure::GbPerS,
        }
    }

    /// The command for the device, without the address of a server.
    fn command(self, device: &DeviceFacts, tcp_port: u16) -> Command {
        let mut command = Command::new(self.name());
        // A message of 1 MiB takes 50 ms on Soft-RoCE in a guest: bandwidths need a timeout of 0.5 s (17).
        let (iterations, timeout) = match self {
            Self::ReadLatency => (300, 14),
            Self::ReadBandwidth => (20, 17),
            Self::WriteBandwidth => (100, 17),
        };
        let port = device.port.to_string();
        command
            .args(["-F", "-d", &device.name, "-i", &port])
            .args(["-p", &tcp_port.to_string(), "-s", &self.size().to_string()])
            .args(["-n", &iterations.to_string(), "-u", &timeout.to_string()]);
        if device.link == "Ethernet" {
            command.args(["-x", &device.gid_index.to_string()]);
        }
        command.stdin(Stdio::null()).stderr(Stdio::null());
        command
    }
}

/// Names of the programs that are installed.
pub(crate) fn installed() -> Vec<String> {
    let path = std::env::var_os("PATH").unwrap_or_default(); // without it nothing is found
    let is_there = |program: &Program| {
        std::env::split_paths(&path).any(|folder| folder.join(program.name()).is_file())
    };
    let found = Program::ALL.iter().filter(|program| is_there(program));
    found.map(|program| program.name().to_owned()).collect()
}

/// A running server of a program; ended when it is dropped.
#[derive(Debug)]
pub(crate) struct Server(Child);

impl Server {
    /// Starts it for one client; returns its TCP port. The program listens on all addresses, unlike this
    /// check, until its client has come.
    pub(crate) fn start(
        program: Program,
        device: &DeviceFacts,
        address: IpAddr,
    ) -> Result<(Self, u16), String> {
        let free = TcpListener::bind((address, 0)).and_then(|listener| listener.local_addr());
        let port = free
            .map_err(|e| format!("no free port on {address}: {e}"))?
            .port();
        let mut command = program.command(device, port);
        let child = command.stdout(Stdio::null()).spawn();
        let mut server = Self(child.map_err(|e| format!("cannot start {}: {e}", program.name()))?);
        let deadline = Deadline::after(START);
        while !listens(port) {
            match server.0.try_wait() {
                Ok(None) if deadline.passed() => {
                    return Err(format!(
                        "{} does not listen after {START:?}",
                        program.name()
                    ));
                }
                Ok(None) => std::thread::sleep(Duration::from_millis(20)),
                Ok(Some(status)) => {
                    return Err(format!("{} ended at once: {status}", program.name()));
                }
                Err(e) => return Err(format!("cannot wait for {}: {e}", program.name())),
            }
        }
        Ok((server, port))
    }
}

/// Whether a process of this host listens on a TCP port. A connection would take the place of its client.
fn listens(port: u16) -> bool {
    const LISTEN: &str = "0A";
    let suffix = format!(":{port:04X}");
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|table| {
        let text = std::fs::read_to_string(table).unwrap_or_default(); // no IPv6: no such table
        text.lines().skip(1).any(|line| {
            let mut cells = line.split_whitespace().skip(1);
            let local = cells.next().is_some_and(|local| local.ends_with(&suffix));
            local && cells.nth(1) == Some(LISTEN)
        })
    })
}

impl Drop for Server {
    fn drop(&mut self) {
        // It has ended already, mostly.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs the client of a program; `start` starts its server for each attempt and returns its port.
pub(crate) fn measure(
    program: Program,
    device: &DeviceFacts,
    address: IpAddr,
    mut start: impl FnMut() -> Result<u16, String>,
) -> Result<f64, String> {
    let mut last = String::new();
    for _ in 0..ATTEMPTS {
        let port = start()?;
        let mut command = program.command(device, port);
        command.arg(address.to_string());
        match run(&mut command) {
            Ok(text) => match figure_of(&text, program.size(), program.figure()) {
                Some(figure) => return Ok(figure),
                None => last = "it printed no figure".to_owned(),
            },
            Err(e) => last = e,
        }
    }
    Err(format!(
        "{}: {last}, in {ATTEMPTS} attempts",
        program.name()
    ))
}

/// Output of a command that ends in time.
fn run(command: &mut Command) -> Result<String, String> {
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|e| e.to_string())?;
    let deadline = Deadline::after(TIMEOUT);
    let ended = loop {
        match child.try_wait() {
            Ok(Some(status)) => break Ok(status),
            Ok(None) if deadline.passed() => {
                // It may end by itself in between.
                let _ = child.kill();
                let _ = child.wait();
                break Err(format!("it did not end in {TIMEOUT:?}"));
            }
            Ok(None) => std::thread::sleep(Duration::from_millis(20)),
            Err(e) => break Err(e.to_string()),
        }
    };
    let status = ended?;
    let mut text = String::new();
    if let Some(mut out) = child.stdout.take() {
        out.read_to_string(&mut text).map_err(|e| e.to_string())?;
    }
    match status.success() {
        true => Ok(text),
        false => Err(format!("it ended with {status}")),
    }
}

/// Figure in the row of that size in a perftest table.
pub fn figure_of(text: &str, size: u32, figure: Figure) -> Option<f64> {
    let size = size.to_string();
    let rows = text.lines().map(|l| l.split_whitespace());
    let mut rows = rows.filter(|cells| cells.clone().next() == Some(&size));
    let (column, unit) = match figure {
        Figure::MedianUs => (4, 1.0),
        // perftest's megabyte is 2^20 bytes.
        Figure::GbPerS => (3, f64::from(1u32 << 20) / 1e9),
        Figure::MOpsPerS => (4, 1.0),
    };
    let value: f64 = rows.next()?.nth(column)?.parse().ok()?;
    (value.is_finite() && value > 0.0).then_some(value * unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_understood() {
        let text = " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]\n \
                    272     2000          4.10           9.00         4.30   4.4\n";
        assert_eq!(figure_of(text, 272, Figure::MedianUs), Some(4.3));
        assert_eq!(figure_of(text, 256, Figure::MedianUs), None);
        let text = " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n \
                    1048576    40               70.00              64.00     \t 0.000064\n";
        let gb = figure_of(text, 1 << 20, Figure::GbPerS).unwrap();
        assert!((gb - 0.067_108_864).abs() < 1e-9, "{gb}");
        assert_eq!(figure_of(text, 1 << 20, Figure::MOpsPerS), Some(64e-6));
        for bad in ["272", "272 2000 1 1 inf", "272 2000 1 1 nan", "272 1 1 1 0"] {
            assert_eq!(figure_of(bad, 272, Figure::MedianUs), None, "{bad}");
        }
    }

    #[test]
    fn listening_ports_are_seen() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(listens(port));
        drop(listener);
        assert!(!listens(port));
    }

    #[test]
    fn a_program_that_prints_no_figure_fails_after_its_attempts() {
        let mut command = Command::new("true");
        assert_eq!(run(&mut command).unwrap(), "");
        let e = run(&mut Command::new("false")).unwrap_err();
        assert!(e.contains("exit status: 1"), "{e}");
    }
}
