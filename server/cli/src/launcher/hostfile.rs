//! The hosts of a job: a file with one line each, `NAME [slots=N]`; `#` begins a comment.
//!
//! Any other line is refused with its number: a host that was left out because of a misprint would
//! be noticed late.

use std::fs::File;
use std::io::{self, Read as _};
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};

use tidewater_protocol::limits::{HOST_BYTES_MAX, HOSTFILE_BYTES_MAX, LOCAL_PROCESSES_MAX};
use tidewater_topology::hostinfo;

/// A host, and the number of processes that it takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// Host for the remote shell: `NAME` or `USER@NAME`.
    pub name: String,
    /// Number of processes, servers and workers, at least 1.
    pub slots: u32,
}

/// Errors of reading a hostfile.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostfileError {
    /// The file cannot be read.
    #[error("cannot read the hostfile {}: {source}", path.display())]
    Read {
        /// Path of the hostfile.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The file as a whole is not valid.
    #[error("{}: {what}; a hostfile has one line for each host, NAME [slots=N]", path.display())]
    Whole {
        /// Path of the hostfile.
        path: PathBuf,
        /// The rule that it breaks.
        what: String,
    },
    /// A line does not parse.
    #[error(
        "{}, line {line}: {what}: {text:?}. Write NAME [slots=N], as in `node7 slots=4`; # begins a \
         comment",
        path.display()
    )]
    Line {
        /// Path of the hostfile.
        path: PathBuf,
        /// Number of the line, from 1.
        line: usize,
        /// The rule that it breaks.
        what: String,
        /// Text of the line, shortened.
        text: String,
    },
}

impl Host {
    /// Whether it is the host of this process, which needs no remote shell.
    pub fn is_this(&self) -> bool {
        let own = hostinfo::host_name();
        let short = |name: &str| name.split('.').next().unwrap_or(name).to_owned();
        self.name == "localhost" || self.name == own || self.name == short(&own)
    }
}

/// Reads a hostfile from `path`.
///
/// # Errors
/// [`HostfileError`].
pub fn read(path: &Path) -> Result<Vec<Host>, HostfileError> {
    let failed = |source| HostfileError::Read {
        path: path.to_owned(),
        source,
    };
    let file_error = |what: &str| HostfileError::Whole {
        path: path.to_owned(),
        what: what.to_owned(),
    };
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(failed)?;
    file.take(HOSTFILE_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    if bytes.len() as u64 > HOSTFILE_BYTES_MAX {
        return Err(file_error("it is too long"));
    }
    let text = String::from_utf8(bytes).map_err(|_| file_error("it is no text"))?;
    let hosts = parse(&text).map_err(|(line, what)| HostfileError::Line {
        path: path.to_owned(),
        line,
        what,
        text: text
            .lines()
            .nth(line - 1)
            .map_or_else(String::new, |text| text.chars().take(80).collect()),
    })?;
    match hosts.is_empty() {
        true => Err(file_error("it names no host")),
        false => Ok(hosts),
    }
}

/// The hosts of a text; or the number of the line that does not parse, and why.
fn parse(text: &str) -> Result<Vec<Host>, (usize, String)> {
    let mut hosts: Vec<(usize, Host)> = Vec::new();
    for (line, text) in (1..).zip(text.lines()) {
        let said = text.split('#').next().unwrap_or_default();
        let mut words = said.split_whitespace();
        let Some(name) = words.next() else { continue };
        if !is_name(name) {
            return Err((line, format!("{name:?} is no name of a host")));
        }
        if let Some((other, _)) = hosts.iter().find(|(_, host)| host.name == name) {
            return Err((line, format!("{name} stands on line {other} already")));
        }
        let slots = match words.next() {
            None => 1,
            Some(word) => slots(word).ok_or_else(|| {
                let most = LOCAL_PROCESSES_MAX;
                (
                    line,
                    format!("{word:?} is not slots=N with N from 1 to {most}"),
                )
            })?,
        };
        if let Some(more) = words.next() {
            return Err((line, format!("{more:?} is one word too many")));
        }
        let name = name.to_owned();
        hosts.push((line, Host { name, slots }));
    }
    Ok(hosts.into_iter().map(|(_, host)| host).collect())
}

fn slots(word: &str) -> Option<u32> {
    let number = word.strip_prefix("slots=")?;
    let digits = number.bytes().all(|b| b.is_ascii_digit());
    let slots = number.parse().ok().filter(|_| digits)?;
    (1..=LOCAL_PROCESSES_MAX).contains(&slots).then_some(slots)
}

/// Whether it is a host's name or address, perhaps with a user's. It must not look like an option
/// of the remote shell, nor contain characters that a shell interprets.
fn is_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let word = |text: &str| {
        text.chars().all(plain) && text.starts_with(|c: char| c.is_ascii_alphanumeric())
    };
    let (user, host) = name
        .split_once('@')
        .map_or((None, name), |(user, host)| (Some(user), host));
    name.len() <= HOST_BYTES_MAX
        && user.is_none_or(word)
        && (word(host) || host.parse::<Ipv6Addr>().is_ok())
}

/// The host of each server and of each worker, as indices of `hosts`. Servers are spread over the
/// hosts; workers fill them in order. `None` if there are too few slots.
pub(super) fn place(hosts: &[Host], servers: u32, workers: u32) -> Option<[Vec<usize>; 2]> {
    let mut free: Vec<u32> = hosts.iter().map(|host| host.slots).collect();
    let count = hosts.len() as u64;
    let mut take = |first: usize| {
        let order = (first..hosts.len()).chain(0..first);
        let found = order.into_iter().find(|&host| free[host] > 0)?;
        free[found] -= 1;
        Some(found)
    };
    let spread = |server: u32| (u64::from(server) * count / u64::from(servers)) as usize;
    let on_servers = (0..servers).map(|server| take(spread(server)));
    let on_servers: Option<Vec<usize>> = on_servers.collect();
    let on_workers: Option<Vec<usize>> = (0..workers).map(|_| take(0)).collect();
    Some([on_servers?, on_workers?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_slots_and_comments() {
        let text = "# two\n\nnode1 slots=4  # the first\n\tuser@node-2.cluster\nfe80::7 slots=1\n";
        let hosts = parse(text).unwrap();
        let found: Vec<_> = hosts.iter().map(|h| (h.name.as_str(), h.slots)).collect();
        let expected = [("node1", 4), ("user@node-2.cluster", 1), ("fe80::7", 1)];
        assert_eq!(found, expected);
        assert!(parse("#\n").unwrap().is_empty());
    }

    #[test]
    fn what_does_not_parse_is_refused_with_its_line() {
        for (bad, line, why) in [
            ("a\nb slots=0", 2, "slots=N"),
            ("a slots=+1", 1, "slots=N"),
            ("a slots=", 1, "slots=N"),
            ("a\n\nb max_slots=4", 3, "slots=N"),
            ("a:4", 1, "no name"),
            ("a 4", 1, "slots=N"),
            ("a slots=513", 1, "slots=N"),
            ("a slots=2 b", 1, "too many"),
            ("a\nb\na slots=3", 3, "line 1 already"),
            ("-oProxyCommand=x", 1, "no name"),
            ("a;b", 1, "no name"),
            ("$(a)", 1, "no name"),
            ("a@b@c", 1, "no name"),
            ("n\u{f6}de", 1, "no name"),
        ] {
            let (found, what) = parse(bad).unwrap_err();
            assert!(
                found == line && what.contains(why),
                "{bad:?}: line {found}, {what}"
            );
        }
    }

    #[test]
    fn a_file_that_is_none_is_told_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hosts");
        let error_of = |path: &Path| read(path).unwrap_err().to_string();
        assert!(error_of(&path).contains("cannot read the hostfile"));
        std::fs::write(&path, "a\nb c\n").unwrap();
        assert!(error_of(&path).contains("hosts, line 2: \"c\" is not slots=N"));
        std::fs::write(&path, "# nobody\n").unwrap();
        assert!(error_of(&path).contains("names no host"));
        std::fs::write(&path, b"\xff").unwrap();
        assert!(error_of(&path).contains("no text"));
        std::fs::write(&path, vec![b'\n'; HOSTFILE_BYTES_MAX as usize + 1]).unwrap();
        assert!(error_of(&path).contains("too long"));
    }

    #[test]
    fn servers_are_spread_and_workers_fill_what_is_left() {
        let hosts = parse("a slots=3\nb slots=3").unwrap();
        let placed = place(&hosts, 2, 4).unwrap();
        assert_eq!(placed, [vec![0, 1], vec![0, 0, 1, 1]]);
        let placed = place(&hosts, 3, 1).unwrap();
        assert_eq!(placed, [vec![0, 0, 1], vec![0]]);
        assert!(place(&hosts, 2, 5).is_none());
        let placed = place(&parse("a\nb\nc").unwrap(), 2, 1).unwrap();
        assert_eq!(placed, [vec![0, 1], vec![2]]);
    }
}
