//! The guard: outlives the launcher by a moment, and kills the job's other processes that do.
//!
//! Its stdin is a stream from the launcher: first the job's mark, then one process group per line, and
//! `directory PATH` for one that the job leaves behind. At the end of file it searches `/proc` for members
//! of the job and kills them until two scans in a row find none. Then it removes the directories.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read as _};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tidewater_protocol::limits::{ENVIRONMENT_BYTES_MAX, KILL_TIMEOUT};
use tidewater_protocol::mutants::{self, Mutant};
use tidewater_runtime::clock::Deadline;

/// Beginning of a line of the guard's input that names a directory.
pub(super) const DIRECTORY: &str = "directory ";
/// Prefix of the variable in `environ` that marks the processes of a job.
const MARK: &str = "TIDEWATER_LAUNCH=";

/// Runs the guard on `control` until the job is over and none of its processes is left.
///
/// A process is a member if its environment holds the job's mark. It also is one if it is in one of
/// the job's process groups and in this session. Only a process that drops both escapes.
///
/// # Errors
/// `control` or `/proc` cannot be read, a member survived [`KILL_TIMEOUT`], or a directory cannot be removed.
///
/// # Cost
/// Sleeps until the end of the job; then reads the `environ` of each process of this user.
pub fn guard(control: impl io::Read) -> io::Result<()> {
    let mut lines = BufReader::new(control).lines().map_while(Result::ok);
    let job = lines.next().filter(|mark| !mark.is_empty());
    let job = job.ok_or_else(|| io::Error::new(io::ErrorKind::UnexpectedEof, "no mark came"))?;
    let (mut groups, mut directories) = (BTreeSet::new(), BTreeSet::new());
    for line in lines {
        match line.strip_prefix(DIRECTORY) {
            Some(path) => {
                directories.insert(path.to_owned());
            }
            None => groups.extend(line.parse::<i32>().ok()),
        }
    }
    let me = i32::try_from(std::process::id()).map_err(io::Error::other)?;
    let (_, _, session) = read_stat(me).ok_or(io::ErrorKind::Unsupported)?;
    Sweep {
        mark: format!("{MARK}{job}").into_bytes(),
        groups,
        session,
    }
    .run()?;
    for directory in directories {
        match std::fs::remove_dir_all(&directory) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

struct Sweep {
    mark: Vec<u8>,
    groups: BTreeSet<i32>,
    session: i32,
}

impl Sweep {
    fn run(&self) -> io::Result<()> {
        let pause = Duration::from_millis(2);
        until_clean(|| self.kill_members(), pause)
    }

    /// Sends SIGKILL to every member that it finds. Returns their number.
    fn kill_members(&self) -> io::Result<usize> {
        let me = std::process::id();
        let mut found = 0;
        for entry in std::fs::read_dir("/proc")? {
            let Ok(entry) = entry else { continue };
            let Some(pid) = entry
                .file_name()
                .to_str()
                .and_then(|name| name.parse::<i32>().ok())
            else {
                continue;
            };
            if pid.unsigned_abs() != me && self.kill_if_member(pid) {
                found += 1;
            }
        }
        Ok(found)
    }

    /// The descriptor is opened before the check, so that the checked process is the one that is
    /// killed.
    fn kill_if_member(&self, pid: i32) -> bool {
        let Some(Ok(process)) = Pid::from_raw(pid).map(|p| pidfd_open(p, PidfdFlags::empty()))
        else {
            return false;
        };
        self.is_member(pid) && pidfd_send_signal(&process, Signal::KILL).is_ok()
    }

    fn is_member(&self, pid: i32) -> bool {
        let Some((state, group, session)) = read_stat(pid) else {
            return false;
        };
        let is_dead = matches!(state, 'Z' | 'X');
        let in_group = session == self.session && self.groups.contains(&group);
        !is_dead && (in_group || self.is_marked(pid))
    }

    fn is_marked(&self, pid: i32) -> bool {
        let Ok(file) = File::open(format!("/proc/{pid}/environ")) else {
            return false;
        };
        let mut variables = Vec::new();
        let read = file.take(ENVIRONMENT_BYTES_MAX).read_to_end(&mut variables);
        read.is_ok()
            && variables
                .split(|byte| *byte == 0)
                .any(|variable| variable == self.mark)
    }
}

/// Scans until two scans in a row find no process; `look` kills what it finds and counts it.
fn until_clean(mut look: impl FnMut() -> io::Result<usize>, pause: Duration) -> io::Result<()> {
    let deadline = Deadline::after(KILL_TIMEOUT);
    // A process that forks during a scan can hide its child from this scan, not from two.
    let enough = match mutants::on(Mutant::GuardLooksOnce) {
        false => 2,
        true => 1,
    };
    let mut clean = 0;
    while clean < enough {
        if look()? == 0 {
            clean += 1;
            continue;
        }
        clean = 0;
        if deadline.passed() {
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "a process does not die",
            ));
        }
        std::thread::sleep(pause);
    }
    Ok(())
}

/// State, process group and session of a process, from `/proc/PID/stat`.
fn read_stat(pid: i32) -> Option<(char, i32, i32)> {
    let text = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The name is in parentheses and may hold any byte, so the fields begin after the last one.
    let name_end = text.iter().rposition(|byte| *byte == b')')?;
    let fields = std::str::from_utf8(text.get(name_end + 1..)?).ok()?;
    let mut fields = fields.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    let _parent = fields.next()?;
    Some((
        state,
        fields.next()?.parse().ok()?,
        fields.next()?.parse().ok()?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scans with these results, in order. Returns the number of scans.
    fn looks(found: &[usize]) -> usize {
        let mut left = found.iter();
        let mut looks = 0;
        let look = || {
            looks += 1;
            Ok(*left.next().expect("no look after two clean ones"))
        };
        until_clean(look, Duration::ZERO).unwrap();
        looks
    }

    /// A child that a fork hid from the first scan is found by the second, and killed.
    #[test]
    fn guard_ends_after_two_clean_looks() {
        assert_eq!(looks(&[0, 0]), 2);
        assert_eq!(looks(&[0, 1, 0, 0]), 4);
        assert_eq!(looks(&[3, 1, 0, 2, 0, 0]), 6);
    }

    #[test]
    fn guard_reports_a_look_that_fails() {
        let failed = until_clean(
            || Err(io::ErrorKind::PermissionDenied.into()),
            Duration::ZERO,
        );
        assert_eq!(failed.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    }
}
