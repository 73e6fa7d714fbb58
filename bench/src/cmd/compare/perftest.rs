//! perftest's programs, which ask an RDMA device by the plainest means: both ends on this host.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::programs::{self, Killed};

/// A program that takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(60);
/// It tells no figure when its look at the processor's clock was disturbed.
const ATTEMPTS: usize = 4;
/// Where the kernel shows RDMA devices.
const DEVICES: &str = "/sys/class/infiniband";
/// What both ends connect through, and its GID.
const ADDRESS: &str = "127.0.0.1";
const GID: &str = "0000:0000:0000:0000:0000:ffff:7f00:0001";

/// What a program's table is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Figure {
    /// The median time of an operation, microseconds.
    MedianUs,
    /// Gigabytes (10^9) a second, on average.
    GbPerS,
    /// Operations a second by 10^6, on average.
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

/// An entry of a port's table of addresses.
#[derive(Debug, PartialEq, Eq)]
struct Gid {
    device: String,
    port: String,
    index: String,
}

impl Perftest {
    /// Of messages of `size` bytes.
    ///
    /// # Errors
    /// Why there is none.
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

    /// Runs both ends; the figure.
    ///
    /// # Errors
    /// What the last of some attempts failed with.
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
            // Atomics have one size, and its program no option for it.
            if !self.options.contains(&"-A") {
                command.args(["-s", &self.size.to_string()]);
            }
            command.args(to);
            command
        };
        let mut server = Killed::start(&mut command(None))?;
        super::peers::wait_for_port(&port)?;
        let said = programs::run(&mut command(Some(ADDRESS)), PATIENCE)?;
        // It has to be gone before the next one measures.
        let _ = server.wait(PATIENCE);
        figure_of(&said, self.size, self.figure)
            .ok_or_else(|| "perftest printed no figure".to_owned())
    }
}

/// Of the row of that size in a table of perftest.
fn figure_of(text: &str, size: u32, figure: Figure) -> Option<f64> {
    let size = size.to_string();
    let rows = text.lines().map(|l| l.split_whitespace());
    let mut rows = rows.filter(|cells| cells.clone().next() == Some(&size));
    let (column, unit) = match figure {
        Figure::MedianUs => (4, 1.0),
        // What it calls a megabyte has 2^20 bytes.
        Figure::GbPerS => (3, f64::from(1u32 << 20) / 1e9),
        Figure::MOpsPerS => (4, 1.0),
    };
    let value: f64 = rows.next()?.nth(column)?.parse().ok()?;
    (value.is_finite() && value > 0.0).then_some(value * unit)
}

/// The entry of an address in the ports' tables; RoCE v2 where it is there in several forms.
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

/// What is in a folder, sorted; nothing in one that is not there.
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
