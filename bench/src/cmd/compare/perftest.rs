//! perftest's programs, the plainest users of an RDMA device: both ends on this host.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::programs::{self, Killed};

/// Time after which a program counts as hung.
const PATIENCE: Duration = Duration::from_secs(60);
/// Attempts of a run: perftest prints no figure if its clock calibration was disturbed.
const ATTEMPTS: usize = 4;
/// Folder in which the kernel lists RDMA devices.
const DEVICES: &str = "/sys/class/infiniband";
/// Address that both ends connect through, and that selects the GID.
const ADDRESS: &str = "127.0.0.1";
const GID: &str = "0000:0000:0000:0000:0000:ffff:7f00:0001";

/// Figure taken from a program's table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Figure {
    /// Median time of an operation, microseconds.
    MedianUs,
    /// Gigabytes (10^9) a second, on average.
    GbPerS,
    /// Million operations a second, on average.
    MOpsPerS,
}

/// One of the programs with its arguments.
#[derive(Debug)]
pub(super) struct Perftest {
    program: PathBuf,
    gid: Gid,
    size: u32,
    options: &'static [&'static str],
    figure: Figure,
}

/// Entry of a port's GID table.
#[derive(Debug, PartialEq, Eq)]
struct Gid {
    device: String,
    port: String,
    index: String,
}

impl Perftest {
    /// Prepares a run with messages of `size` bytes.
    ///
    /// # Errors
    /// The reason if the program or the device is missing.
    pub(super) fn new(
        program: &str,
        size: u32,
        options: &'static [&'static str],
        figure: Figure,
    ) -> Result<Self, String> {
        let none = || format!("no RDMA device has the address {ADDRESS}");
        let gid = gid_of(Path::new(DEVICES), GID).ok_or_else(none)?;
        let program = programs::find(program).map_err(|reason| format!("{reason} (perftest)"))?;
        Ok(Self {
            program,
            gid,
            size,
            options,
            figure,
        })
    }

    /// Runs both ends; returns the figure.
    ///
    /// # Errors
    /// The error of the last attempt.
    pub(super) fn measure(&self) -> Result<f64, String> {
        let mut last = Err("it was not run".into());
        for _ in 0..ATTEMPTS {
            last = self.once();
            if last.is_ok() {
                break;
            }
        }
        last
    }

    fn once(&self) -> Result<f64, String> {
        let port = programs::free_port()?.to_string();
        let Gid {
            device,
            port: of_device,
            index,
        } = &self.gid;
        let command = |to: Option<&str>| {
            let mut command = Command::new(&self.program);
            command
                .args(["-d", device, "-i", of_device, "-x", index, "-p", &port])
                .arg("-F")
                .args(self.options);
            // Atomics have a fixed size, and their program has no option for it.
            if !self.options.contains(&"-A") {
                command.args(["-s", &self.size.to_string()]);
            }
            command.args(to);
            command
        };
        let mut server = Killed::start(&mut command(None))?;
        super::peers::wait_for_port(&port)?;
        let said = programs::run(&mut command(Some(ADDRESS)), PATIENCE)?;
        // The server has to exit before the next measurement.
        let _ = server.wait(PATIENCE);
        figure_of(&said, self.size, self.figure)
            .ok_or_else(|| "perftest printed no figure".to_owned())
    }
}

/// Figure in the row of that size in a perftest table.
fn figure_of(text: &str, size: u32, figure: Figure) -> Option<f64> {
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

/// Entry of an address in the ports' GID tables; RoCE v2 if it has several forms.
fn gid_of(devices: &Path, address: &str) -> Option<Gid> {
    let mut all = Vec::new();
    for device in names(devices) {
        let ports = devices.join(&device).join("ports");
        for port in names(&ports) {
            let table = ports.join(&port);
            for index in names(&table.join("gids")) {
                let read = |file: PathBuf| std::fs::read_to_string(file).unwrap_or_default();
                if read(table.join("gids").join(&index)).trim() != address {
                    continue;
                }
                let kind = read(table.join("gid_attrs/types").join(&index));
                let (device, port) = (device.clone(), port.clone());
                let entry = Gid {
                    device,
                    port,
                    index,
                };
                all.push((kind.trim() != "RoCE v2", entry));
            }
        }
    }
    let best = all.into_iter().min_by_key(|(other, _)| *other);
    best.map(|(_, entry)| entry)
}

/// Names in a folder, sorted; empty if the folder is missing.
fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort_unstable();
    names
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
    fn the_port_with_the_address_is_found() {
        let root = tempfile::tempdir().unwrap();
        let put = |file: &str, text: &str| {
            let file = root.path().join(file);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        };
        assert_eq!(gid_of(root.path(), GID), None);
        put(
            "a0/ports/1/gids/0",
            "fe80:0000:0000:0000:0000:0000:0000:0001\n",
        );
        put("b0/ports/1/gids/2", &format!("{GID}\n"));
        put("b0/ports/1/gid_attrs/types/2", "IB/RoCE v1\n");
        put("b0/ports/1/gids/3", &format!("{GID}\n"));
        put("b0/ports/1/gid_attrs/types/3", "RoCE v2\n");
        let want = |index: &str| Gid {
            device: "b0".into(),
            port: "1".into(),
            index: index.into(),
        };
        assert_eq!(gid_of(root.path(), GID), Some(want("3")));
    }
}
