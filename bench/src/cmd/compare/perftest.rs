//! perftest's programs, the plainest users of an RDMA device: both ends on this host.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tidewater_conformance::test_device;
pub(super) use tidewater_rdma_check::perftest::Figure;
use tidewater_rdma_check::perftest::figure_of;

use super::programs::{self, Killed};

/// Time after which a program counts as hung.
const PROGRAM_TIMEOUT: Duration = Duration::from_secs(60);
/// Attempts of a run: perftest prints no figure if its clock calibration was disturbed.
const ATTEMPTS: usize = 4;
/// Folder in which the kernel lists RDMA devices.
const DEVICES: &str = "/sys/class/infiniband";

/// One of the programs with its arguments.
#[derive(Debug)]
pub(super) struct Perftest {
    program: PathBuf,
    /// Address that both ends connect through, and that selects the GID.
    address: IpAddr,
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
    /// Prepares runs with messages of `size` bytes, of which `figure` is read; runs nothing yet.
    ///
    /// # Errors
    /// The reason if the program or the device is missing.
    pub(super) fn new(
        program: &str,
        size: u32,
        options: &'static [&'static str],
        figure: Figure,
    ) -> Result<Self, String> {
        let address = test_device::address();
        let none = || format!("no RDMA device has the address {address}");
        let gid = gid_of(Path::new(DEVICES), &gid_text(address)).ok_or_else(none)?;
        let program = programs::find(program).map_err(|reason| format!("{reason} (perftest)"))?;
        Ok(Self {
            program,
            address,
            gid,
            size,
            options,
            figure,
        })
    }

    /// Runs both ends, at most [`ATTEMPTS`] times; returns the figure in its own unit.
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
        let said = programs::run(
            &mut command(Some(&self.address.to_string())),
            PROGRAM_TIMEOUT,
        )?;
        // The server has to exit before the next measurement.
        let _ = server.wait(PROGRAM_TIMEOUT);
        figure_of(&said, self.size, self.figure)
            .ok_or_else(|| "perftest printed no figure".to_owned())
    }
}

/// An address as the kernel prints its GID.
fn gid_text(address: IpAddr) -> String {
    let address = match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    let segments = address.segments().map(|segment| format!("{segment:04x}"));
    segments.join(":")
}

/// Entry of an address in the ports' GID tables, RoCE v2 if there are several; `None` without one.
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
    fn the_port_with_the_address_is_found() {
        const GID: &str = "0000:0000:0000:0000:0000:ffff:7f00:0001";
        assert_eq!(gid_text([127, 0, 0, 1].into()), GID);
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
