//! Which host this is.

use std::fs;

use rustix::process::{Resource, getrlimit, setrlimit};

use crate::planted::{self, Plant};

/// The kernel's boot id: equal at two processes means one kernel, where shared memory works. (They
/// may still be in different network namespaces and not reach each other's abstract sockets.)
/// Empty where `/proc` is not mounted: equal to nobody's.
pub fn host_id() -> String {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim().to_owned()
}

/// Whether `told`, a peer's [`host_id`], is this host's.
pub fn is_here(told: &str) -> bool {
    !told.is_empty() && told == host_id()
}

/// Name of this host, for people; `localhost` if it has none.
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
    if planted::on(Plant::DescriptorsNotRaised) {
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
        assert!(is_here(&host_id()));
        assert!(!is_here(""));
        assert!(!is_here("0e1c29ab-0000-0000-0000-000000000000"));
        assert!(!host_name().is_empty());
    }
}
