//! Which host this is.

use std::fs;

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
