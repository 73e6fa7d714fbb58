//! Settings of the host that stages may change, and how they are put back.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

/// Files with one number.
const FILES: [&str; 2] = [
    "/proc/sys/vm/nr_hugepages",
    "/proc/sys/vm/nr_overcommit_hugepages",
];
/// Folder of network namespaces; only names with this beginning are the project's.
const NAMESPACES: (&str, &str) = ("/run/netns", "tw-");

/// Settings at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Host {
    /// Values of [`FILES`]; `None` where a file cannot be read.
    values: [Option<String>; 2],
    namespaces: BTreeSet<String>,
}

impl Host {
    /// Reads the present settings.
    pub(crate) fn now() -> Self {
        let read = |file| Some(fs::read_to_string(file).ok()?.trim().to_owned());
        let (folder, beginning) = NAMESPACES;
        let names = fs::read_dir(folder).into_iter().flatten();
        let names = names.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        Self {
            values: FILES.map(read),
            namespaces: names.filter(|name| name.starts_with(beginning)).collect(),
        }
    }

    /// Puts the host back to these settings; says what it has put back, or could not.
    pub(crate) fn put_back(&self) -> Vec<String> {
        let now = Self::now();
        let mut said = Vec::new();
        for (file, (before, after)) in FILES.iter().zip(self.values.iter().zip(&now.values)) {
            let Some(value) = before.as_ref().filter(|_| before != after) else {
                continue;
            };
            said.push(match fs::write(file, value) {
                Ok(()) => format!("put back: {file} {value}"),
                Err(error) => format!("cannot put back {file} to {value}: {error}"),
            });
        }
        for name in now.namespaces.difference(&self.namespaces) {
            let done = Command::new("ip").args(["netns", "del", name]).status();
            said.push(match done {
                Ok(status) if status.success() => format!("put back: /run/netns/{name}"),
                _ => format!("cannot remove /run/netns/{name}"),
            });
        }
        said
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unchanged_host_needs_nothing() {
        let host = Host {
            values: [None, None],
            namespaces: Host::now().namespaces,
        };
        assert_eq!(host.put_back(), [""; 0]);
    }

    #[test]
    fn left_namespace_is_removed() {
        let name = format!("tw-xtask-{}", std::process::id());
        let before = Host::now();
        let made = Command::new("ip").args(["netns", "add", &name]).output();
        if !made.is_ok_and(|made| made.status.success()) {
            println!("no right to make a network namespace: not tested");
            return;
        }
        // A stage that runs meanwhile may have namespaces of its own.
        let host = Host {
            namespaces: &Host::now().namespaces - &BTreeSet::from([name.clone()]),
            ..before
        };
        assert_eq!(host.put_back(), [format!("put back: /run/netns/{name}")]);
        assert!(!Host::now().namespaces.contains(&name));
    }
}
