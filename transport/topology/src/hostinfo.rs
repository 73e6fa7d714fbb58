//! Identity and limits of this host.

use std::fs;
use std::io;
use std::sync::OnceLock;

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit, setrlimit};

use tidewater_protocol::mutants::{self, Mutant};

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The kernel's boot id. Two processes with equal ids share one kernel, where shared memory works. (They
/// may still be in different network namespaces and not reach each other's abstract sockets.) Read once in
/// a process.
///
/// # Errors
/// The id cannot be read; the text names file and remedy.
pub fn host_id() -> io::Result<String> {
    static READ: OnceLock<String> = OnceLock::new();
    if let Some(id) = READ.get() {
        return Ok(id.clone());
    }
    let id = match fs::read_to_string(BOOT_ID) {
        Ok(id) => id.trim().to_owned(),
        Err(_) if mutants::on(Mutant::HostUnnamed) => return Ok(String::new()),
        Err(source) => {
            let remedy = match source.raw_os_error().map(Errno::from_raw_os_error) {
                Some(Errno::MFILE | Errno::NFILE) => {
                    let limit = open_files_max();
                    format!("raise the limit of open files (ulimit -n), which is {limit}")
                }
                _ => "mount /proc, readable by this process".to_owned(),
            };
            let text = format!("cannot read {BOOT_ID}, which names this host: {source}; {remedy}");
            return Err(io::Error::new(source.kind(), text));
        }
    };
    Ok(READ.get_or_init(|| id).clone())
}

/// Whether a peer's [`host_id`] is this host's.
pub fn is_here(id: &str) -> bool {
    !id.is_empty() && host_id().is_ok_and(|here| here == id)
}

/// Name of this host, for messages; `localhost` if it has none.
pub fn host_name() -> String {
    let name = rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned();
    if name.is_empty() {
        "localhost".into()
    } else {
        name
    }
}

/// Raises this process's soft limit of open files to the hard one, and returns the limit in force. For
/// programs, at their start: processes that they start inherit it. A process that calls `select` on
/// descriptors from 1,024 on needs the lower limit.
#[doc(alias = "RLIMIT_NOFILE")]
pub fn raise_open_files() -> u64 {
    if mutants::on(Mutant::DescriptorsNotRaised) {
        return open_files_max();
    }
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        limit.current = limit.maximum;
        if let Err(error) = setrlimit(Resource::Nofile, limit) {
            tracing::debug!(%error, "the limit of open files stays as it is");
        }
    }
    open_files_max()
}

/// Files that this process may have open at once: its soft limit.
pub fn open_files_max() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Files that this process has open; 0 where `/proc` is not mounted. Cost: a few system calls.
pub fn open_files() -> u64 {
    // The directory itself is open meanwhile.
    fs::read_dir("/proc/self/fd").map_or(0, |all| (all.count() as u64).saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_knows_itself_and_nobody_without_a_name() {
        assert!(is_here(&host_id().unwrap()));
        assert!(!is_here(""));
        assert!(!is_here("0e1c29ab-0000-0000-0000-000000000000"));
        assert!(!host_name().is_empty());
    }

    /// Runs in a process of its own, see [`full_descriptors_are_the_reason_and_ulimit_the_remedy`].
    #[test]
    #[ignore = "lowers a limit of its process: full_descriptors_are_the_reason_and_ulimit_the_remedy"]
    fn host_id_in_this_process() {
        let before = getrlimit(Resource::Nofile);
        let mut none = before;
        none.current = Some(0);
        setrlimit(Resource::Nofile, none).unwrap();
        let id = host_id();
        setrlimit(Resource::Nofile, before).unwrap();
        let error = id.unwrap_err().to_string();
        for part in [BOOT_ID, "os error 24", "ulimit -n", "which is 0"] {
            assert!(error.contains(part), "\"{part}\" is not in: {error}");
        }
        assert!(!host_id().unwrap().is_empty(), "a failure is not kept");
    }

    #[test]
    fn full_descriptors_are_the_reason_and_ulimit_the_remedy() {
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "hostinfo::tests::host_id_in_this_process",
                "--ignored",
            ])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&child.stdout);
        assert!(
            child.status.success() && said.contains("1 passed"),
            "{child:?}"
        );
    }
}
