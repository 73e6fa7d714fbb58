//! Processes of a run: their groups, their marks in the environment, and signals to this program.

use std::io::{self, Read as _};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitStatus};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use std::{fs, thread};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// Interval between two looks at processes that are ending.
const LOOK: Duration = Duration::from_millis(50);
/// Looks in a row that find nothing before nothing is left, and the time between them: a process that executes its program at
/// one look has no environment then.
const EMPTY_LOOKS: u32 = 2;
const AGAIN: Duration = Duration::from_millis(5);

/// What happened to a run.
#[derive(Debug)]
pub(crate) enum Event<K> {
    /// The child of that key ended.
    Ended(K, io::Result<ExitStatus>),
    /// This program received the signal of that number.
    Signal(i32),
}

/// Children of this program, each the leader of a process group.
#[derive(Debug)]
pub(crate) struct Children<K> {
    sender: Sender<Event<K>>,
    receiver: Receiver<Event<K>>,
}

/// Process group of a child.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group(Pid);

impl Group {
    /// Asks the group to end, with SIGTERM.
    pub(crate) fn terminate(self) {
        self.signal(Signal::TERM);
    }

    /// Ends the group with SIGKILL.
    pub(crate) fn kill(self) {
        self.signal(Signal::KILL);
    }

    fn signal(self, signal: Signal) {
        // The only failure is that the group has ended.
        kill_process_group(self.0, signal).ok();
    }
}

impl<K: Send + 'static> Children<K> {
    /// Takes SIGHUP, SIGINT and SIGTERM as events from now on.
    pub(crate) fn new() -> io::Result<Self> {
        let (sender, receiver) = mpsc::channel();
        for signal in [SIGHUP, SIGINT, SIGTERM] {
            let (mut read, write) = UnixStream::pair()?;
            signal_hook::low_level::pipe::register(signal, write)?;
            let sender = sender.clone();
            thread::spawn(move || {
                let mut byte = [0];
                while read.read_exact(&mut byte).is_ok()
                    && sender.send(Event::Signal(signal)).is_ok()
                {}
            });
        }
        Ok(Self { sender, receiver })
    }

    /// Starts a child in a process group of its own; its end is an event with that key.
    pub(crate) fn start(&self, key: K, command: &mut Command) -> io::Result<Group> {
        let mut child = command.process_group(0).spawn()?;
        let id = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let sender = self.sender.clone();
        thread::spawn(move || {
            let end = child.wait();
            // Without a receiver the run is over.
            sender.send(Event::Ended(key, end)).ok();
        });
        id.map(Group)
            .ok_or_else(|| io::Error::other("a process id that is not positive"))
    }

    /// Next event; `None` at that time.
    pub(crate) fn next(&self, until: Instant) -> Option<Event<K>> {
        let left = until.saturating_duration_since(Instant::now());
        // It cannot be disconnected: a sender is kept here.
        self.receiver.recv_timeout(left).ok()
    }
}

/// Value that no other run marks its processes with.
pub(crate) fn new_mark() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let nanoseconds = now.map_or(0, |time| time.as_nanos());
    format!("{}.{nanoseconds}", std::process::id())
}

/// Live process that a run has started, directly or not.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Marked {
    pub(crate) pid: i32,
    /// Value of the variable that marks it.
    pub(crate) value: String,
    /// First 100 characters of its command line.
    pub(crate) command: String,
}

/// Live processes with a variable in the environment that they were started with, by its value.
pub(crate) fn marked(variable: &str, wanted: impl Fn(&str) -> bool) -> Vec<Marked> {
    let mut found: Vec<_> = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok())
        .filter_map(|pid| {
            // A process of another user, or one that has ended, has nothing to read.
            let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
            let value = value_of(&environment, variable)?;
            (wanted(&value) && is_alive(pid)).then(|| Marked {
                pid,
                value,
                command: command_line(pid),
            })
        })
        .collect();
    found.sort_by_key(|process| process.pid);
    found
}

fn value_of(environment: &[u8], variable: &str) -> Option<String> {
    environment.split(|byte| *byte == 0).find_map(|entry| {
        let value = entry
            .strip_prefix(variable.as_bytes())?
            .strip_prefix(b"=")?;
        Some(String::from_utf8_lossy(value).into_owned())
    })
}

/// Whether the process runs, sleeps or is stopped. A zombie has ended; its parent will collect it.
fn is_alive(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/status")).is_ok_and(|status| {
        let state = status.lines().find_map(|line| line.strip_prefix("State:"));
        state.is_some_and(|state| state.trim_start().starts_with(['R', 'S', 'D', 'T', 't']))
    })
}

fn command_line(pid: i32) -> String {
    let Ok(words) = fs::read(format!("/proc/{pid}/cmdline")) else {
        return String::new(); // it has ended since
    };
    let line = String::from_utf8_lossy(&words).replace('\0', " ");
    line.trim_end().chars().take(100).collect()
}

/// Ends the processes that `find` returns: SIGTERM, `grace`, then SIGKILL.
pub(crate) fn end(find: impl Fn() -> Vec<Marked>, grace: Duration) {
    signal_all(&find(), Signal::TERM);
    if !gone_within(&find, grace) {
        signal_all(&find(), Signal::KILL);
    }
}

/// Whether `find` returns nothing [`EMPTY_LOOKS`] times in a row, at once or after at most `grace`.
pub(crate) fn gone_within(find: impl Fn() -> Vec<Marked>, grace: Duration) -> bool {
    let until = Instant::now() + grace;
    let mut empty = 0;
    loop {
        empty = if find().is_empty() { empty + 1 } else { 0 };
        if empty == EMPTY_LOOKS {
            return true;
        }
        if empty == 0 && Instant::now() >= until {
            return false;
        }
        thread::sleep(if empty > 0 { AGAIN } else { LOOK });
    }
}

fn signal_all(processes: &[Marked], signal: Signal) {
    for pid in processes
        .iter()
        .filter_map(|process| Pid::from_raw(process.pid))
    {
        // The only failure is that it has ended.
        kill_process(pid, signal).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[test]
    fn group_ends_with_its_leader_and_children() {
        let children = Children::new().unwrap();
        let mark = format!("{}-group", std::process::id());
        let mut command = Command::new("sh");
        command
            .args(["-c", "sleep 86397 & wait"])
            .env("PROCESSES_TEST", &mark);
        let group = children.start(7, &mut command).unwrap();
        let find = || marked("PROCESSES_TEST", |value| value == mark);
        while find().len() < 2 {
            thread::sleep(LOOK);
        }
        group.terminate();
        match children.next(soon()) {
            Some(Event::Ended(7, Ok(status))) => assert!(!status.success()),
            other => panic!("{other:?}"),
        }
        assert!(gone_within(find, Duration::from_secs(60)), "{:?}", find());
    }

    /// One look may miss a process that executes its program at that moment.
    #[test]
    fn process_that_one_look_misses_is_not_gone() {
        let looks = std::cell::Cell::new(0);
        let find = || {
            looks.set(looks.get() + 1);
            let process = Marked {
                pid: 1,
                value: String::new(),
                command: String::new(),
            };
            if looks.get() == 1 {
                Vec::new()
            } else {
                vec![process]
            }
        };
        assert!(!gone_within(find, Duration::ZERO));
        assert!(gone_within(Vec::new, Duration::ZERO));
    }

    #[test]
    fn marked_process_outside_the_group_is_ended() {
        let children = Children::new().unwrap();
        let mark = format!("{}-apart", std::process::id());
        let mut command = Command::new("sh");
        // It ignores SIGTERM, and so does what it starts.
        command.args(["-c", "trap '' TERM; setsid sleep 86396 & sleep 86396"]);
        let group = children
            .start((), command.env("PROCESSES_TEST", &mark))
            .unwrap();
        let find = || marked("PROCESSES_TEST", |value| value == mark);
        while !find()
            .iter()
            .any(|process| process.command.starts_with("sleep"))
        {
            thread::sleep(LOOK);
        }
        end(find, Duration::from_millis(100));
        assert!(gone_within(find, Duration::from_secs(60)), "{:?}", find());
        group.kill();
    }

    #[test]
    fn variables_are_compared_as_a_whole() {
        let environment = b"XCI_RUN_ID=1\0CI_RUN_ID=2\0CI_RUN_IDS=3\0";
        assert_eq!(value_of(environment, "CI_RUN_ID").as_deref(), Some("2"));
        assert_eq!(value_of(environment, "CI_RUN"), None);
    }
}
