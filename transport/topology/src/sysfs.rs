//! Small files of `/sys` and `/proc`, read below a root that tests and bug reports may choose.
//!
//! All functions are total. A file that is absent, too long, or malformed is `None`; a list that names more
//! than its limit is cut there.

use std::fs::File;
use std::io::Read as _;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rustix::fs::{Mode, OFlags};

use tidewater_protocol::limits::{CPUS_MAX, SYSFS_ENTRIES_MAX, SYSFS_FILE_BYTES_MAX};

/// The folder that holds `sys` and `proc`: the machine, or a copy of one.
#[derive(Debug, Clone)]
pub struct Root {
    path: PathBuf,
}

impl Root {
    /// A root in this folder; `/` is the machine itself.
    pub fn new(path: &Path) -> Self {
        Self { path: path.into() }
    }

    /// Whether this is the machine that the process runs on, and not a copy of one.
    pub fn is_live(&self) -> bool {
        self.path == Path::new("/")
    }

    /// A file's text without leading and trailing blanks; `None` if there is none. Reads at most
    /// [`SYSFS_FILE_BYTES_MAX`] bytes and never waits.
    pub fn text(&self, path: impl AsRef<Path>) -> Option<String> {
        // NONBLOCK: in a copy, a file may turn out to be a pipe without a writer.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = rustix::fs::open(self.path.join(path), flags, Mode::empty()).ok()?;
        let mut bytes = Vec::new();
        let mut file = File::from(file).take(SYSFS_FILE_BYTES_MAX);
        file.read_to_end(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    /// The value of a file that holds one number.
    pub fn number<T: FromStr>(&self, path: impl AsRef<Path>) -> Option<T> {
        self.text(path)?.parse().ok()
    }

    /// The value of a file that holds a list such as `0-3,8`.
    pub(super) fn list(&self, path: impl AsRef<Path>) -> Option<Vec<u32>> {
        parse_list(&self.text(path)?)
    }

    /// Names in a folder, in natural order (`eth2` before `eth10`).
    pub(super) fn names(&self, path: impl AsRef<Path>) -> Vec<String> {
        let Ok(folder) = std::fs::read_dir(self.path.join(path)) else {
            return Vec::new();
        };
        let names = folder
            .filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()))
            .take(SYSFS_ENTRIES_MAX);
        let mut names: Vec<String> = names.collect();
        names.sort_by_cached_key(|name| natural(name));
        names
    }

    /// The numbers N of the entries `PREFIX N` of a folder, ascending.
    pub(super) fn numbered(&self, path: impl AsRef<Path>, prefix: &str) -> Vec<u32> {
        let number = |name: &String| name.strip_prefix(prefix)?.parse().ok();
        let mut all: Vec<u32> = self.names(path).iter().filter_map(number).collect();
        all.sort_unstable();
        all
    }

    /// The path of a file below the root.
    pub fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        self.path.join(path)
    }

    /// Whether a file or folder of this name exists.
    pub(super) fn exists(&self, path: impl AsRef<Path>) -> bool {
        self.path.join(path).exists()
    }

    /// The target of a link, if that is inside the root.
    pub(super) fn resolved(&self, path: impl AsRef<Path>) -> Option<PathBuf> {
        let root = self.path.canonicalize().ok()?;
        let full = self.path.join(path).canonicalize().ok()?;
        Some(full.strip_prefix(root).ok()?.to_owned())
    }
}

/// A sort key that compares the numbers in a name by value.
fn natural(name: &str) -> (String, u64, String) {
    let digits = name.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    let (stem, number) = name.split_at(digits);
    (stem.into(), number.parse().unwrap_or(0), name.into())
}

/// `0-3,8` as numbers, ascending and each once; `None` if it is no such list.
pub(super) fn parse_list(text: &str) -> Option<Vec<u32>> {
    let mut all = Vec::new();
    for part in text.split(',').map(str::trim).filter(|p| !p.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<u32>().ok()?, last.parse::<u32>().ok()?);
        if first > last {
            return None;
        }
        let room = CPUS_MAX.saturating_sub(all.len());
        all.extend((first..=last).take(room));
    }
    all.sort_unstable();
    all.dedup();
    Some(all)
}

/// Numbers as the kernel writes them: `0-3,8`. The inverse of reading such a file.
pub fn format_list(numbers: &[u32]) -> String {
    let mut parts: Vec<(u32, u32)> = Vec::new();
    for &n in numbers {
        match parts.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(n) => *last = n,
            _ => parts.push((n, n)),
        }
    }
    let part = |&(first, last): &(u32, u32)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    parts.iter().map(part).collect::<Vec<_>>().join(",")
}

/// Decodes an address of `/proc/net/route`: the little-endian number that it has in memory.
pub(super) fn route_address(hex: &str) -> Option<Ipv4Addr> {
    Some(u32::from_str_radix(hex, 16).ok()?.to_le_bytes().into())
}

/// Decodes an address of `/proc/net/if_inet6`, written as 32 digits.
pub(super) fn inet6_address(hex: &str) -> Option<Ipv6Addr> {
    // A sign would be taken for a digit's place.
    if hex.len() != 32 || hex.starts_with('+') {
        return None;
    }
    Some(Ipv6Addr::from_bits(u128::from_str_radix(hex, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_and_written_as_the_kernel_does() {
        let good: [(&str, &[u32]); 5] = [
            ("0", &[0]),
            ("0-3,8", &[0, 1, 2, 3, 8]),
            ("8,0-1", &[0, 1, 8]),
            ("", &[]),
            ("5,5,4-6", &[4, 5, 6]),
        ];
        for (text, numbers) in good {
            assert_eq!(parse_list(text).as_deref(), Some(numbers), "{text}");
        }
        for bad in ["a", "3-1", "1-", "-", "1-2-3", "0x3", "99999999999"] {
            assert_eq!(parse_list(bad), None, "{bad}");
        }
        assert_eq!(format_list(&[0, 1, 2, 8, 10, 11]), "0-2,8,10-11");
        assert_eq!(format_list(&[u32::MAX]), "4294967295");
        assert_eq!(format_list(&[]), "");
    }

    #[test]
    fn a_list_that_names_everything_is_cut() {
        let all = parse_list("0-4294967295,7-4294967295").unwrap();
        assert_eq!(all.len(), CPUS_MAX);
    }

    #[test]
    fn addresses_of_proc() {
        assert_eq!(route_address("000200C0"), Some(Ipv4Addr::new(192, 0, 2, 0)));
        assert_eq!(route_address("lo"), None);
        let hex = "fd000000000000000000000000000002";
        assert_eq!(inet6_address(hex), "fd00::2".parse().ok());
        assert_eq!(inet6_address("+d000000000000000000000000000002"), None);
        assert_eq!(inet6_address("fd00::2"), None);
    }

    #[test]
    fn names_come_in_a_persons_order_and_pipes_are_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["eth10", "eth2", "lo"] {
            std::fs::write(folder.path().join(name), name).unwrap();
        }
        let root = Root::new(folder.path());
        assert_eq!(root.names(""), ["eth2", "eth10", "lo"]);
        assert_eq!(root.numbered("", "eth"), [2, 10]);
        assert_eq!(root.text("lo").as_deref(), Some("lo"));
        let pipe = folder.path().join("pipe");
        let fifo = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, fifo, Mode::RUSR, 0).unwrap();
        assert_eq!(root.number::<u32>("pipe"), None);
        assert_eq!(root.text(""), None, "a folder is not a file");
        assert!(!root.is_live());
    }
}
