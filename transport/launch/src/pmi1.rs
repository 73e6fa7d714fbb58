//! A client of PMI-1, the line protocol by which hydra, Flux and Slurm's pmi2 plugin let processes exchange
//! a few words: put, barrier, get.
//!
//! Replies are parsed by key and never by position: hydra 4 and 5 and Slurm order them differently. A
//! program with its own MPI library must not use this rendezvous, because that library uses the same
//! descriptor. It gives a directory instead, or broadcasts the record.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags};

use tidewater_protocol::limits::PMI_LINE_BYTES_MAX;
use tidewater_runtime::clock::Deadline;

/// Reason why the exchange with the launcher by PMI-1 failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PmiError {
    /// An operation on the descriptor failed.
    #[error(
        "PMI: {operation}: {source}; is PMI_FD the launcher's? Give --rendezvous DIRECTORY to meet \
         without it"
    )]
    Io {
        /// Operation that was tried.
        operation: &'static str,
        /// Error of the system.
        source: io::Error,
    },
    /// The launcher did not answer in time: at a barrier, a process is missing.
    #[error(
        "PMI: no answer to {operation} in time; is PMI_FD the launcher's? Give --rendezvous DIRECTORY \
         to meet without it"
    )]
    TimedOut {
        /// Command that was sent.
        operation: &'static str,
    },
    /// The launcher closed the connection.
    #[error("PMI: the launcher closed the line during {operation}; it ends the job")]
    Closed {
        /// Command that was sent.
        operation: &'static str,
    },
    /// The answer is invalid.
    #[error(
        "PMI: {operation} was answered with {answer:?}; give --rendezvous DIRECTORY to meet without PMI"
    )]
    Nonsense {
        /// Command that was sent.
        operation: &'static str,
        /// Text of the answer, shortened.
        answer: String,
    },
}

/// Client of the launcher's PMI-1 key-value store, on an inherited descriptor. All calls block, until a common
/// deadline.
#[derive(Debug)]
pub(super) struct Pmi {
    line: File,
    buffer: Vec<u8>,
    kvs: String,
    deadline: Deadline,
    /// Waits at the barrier for missing processes.
    at_barrier: bool,
}

impl Pmi {
    /// Opens a PMI-1 session on the descriptor `line` and reads the name of the key-value space. Blocks until
    /// the launcher has answered; `deadline` applies to all later calls too.
    pub(super) fn begin(line: OwnedFd, deadline: Deadline) -> Result<Self, PmiError> {
        let mut pmi = Self {
            line: File::from(line),
            buffer: Vec::new(),
            kvs: String::new(),
            deadline,
            at_barrier: false,
        };
        let begun = pmi.call("init", "cmd=init pmi_version=1 pmi_subversion=1")?;
        is_well(&begun, "init")?;
        let mut name = pmi.call("get_my_kvsname", "cmd=get_my_kvsname")?;
        pmi.kvs = name.remove("kvsname").unwrap_or_default();
        if pmi.kvs.is_empty() {
            return Err(nonsense("get_my_kvsname", &name));
        }
        Ok(pmi)
    }

    /// Stores a value under `key` for the other processes, which see it after a barrier. `value` must have no
    /// white space.
    pub(super) fn put(&mut self, key: &str, value: &str) -> Result<(), PmiError> {
        let line = format!("cmd=put kvsname={} key={key} value={value}", self.kvs);
        is_well(&self.call("put", &line)?, "put")
    }

    /// Returns the name of the job's key-value space, which no other job of the launcher has.
    pub(super) fn job(&self) -> &str {
        &self.kvs
    }

    /// Enters the launcher's barrier and waits until every process of the job has, or until `limit`. Returns
    /// whether all have arrived. If not, this process stays at the barrier, and [`Pmi::finish`] reads the
    /// launcher's answer.
    pub(super) fn barrier(&mut self, limit: Deadline) -> Result<bool, PmiError> {
        self.say("barrier_in", "cmd=barrier_in")?;
        self.at_barrier = true;
        match self.leave_barrier(limit.min(self.deadline)) {
            Err(PmiError::TimedOut { .. }) => Ok(false),
            left => left.map(|()| true),
        }
    }

    fn leave_barrier(&mut self, limit: Deadline) -> Result<(), PmiError> {
        let done = self.hear("barrier_in", limit)?;
        self.at_barrier = false;
        match done.get("cmd").map(String::as_str) {
            Some("barrier_out") => Ok(()),
            _ => Err(nonsense("barrier_in", &done)),
        }
    }

    /// Returns the value that a process has put under `key` before the barrier; `None` if there is none.
    pub(super) fn get(&mut self, key: &str) -> Result<Option<String>, PmiError> {
        let line = format!("cmd=get kvsname={} key={key}", self.kvs);
        let mut answer = self.call("get", &line)?;
        let is_there = answer.get("rc").is_some_and(|rc| rc == "0");
        Ok(answer.remove("value").filter(|_| is_there))
    }

    /// Ends the session. If a barrier is still open, waits for it first. Afterwards the launcher accepts that
    /// this process ends by itself.
    pub(super) fn finish(mut self) -> Result<(), PmiError> {
        if self.at_barrier {
            self.leave_barrier(self.deadline)?;
        }
        self.call("finalize", "cmd=finalize").map(|_| ())
    }

    fn call(
        &mut self,
        operation: &'static str,
        line: &str,
    ) -> Result<BTreeMap<String, String>, PmiError> {
        self.say(operation, line)?;
        self.hear(operation, self.deadline)
    }

    fn say(&mut self, operation: &'static str, line: &str) -> Result<(), PmiError> {
        // A line is far smaller than the socket's buffer, and nothing else is on its way.
        let said = self.line.write_all(format!("{line}\n").as_bytes());
        said.map_err(|source| PmiError::Io { operation, source })
    }

    fn hear(
        &mut self,
        operation: &'static str,
        limit: Deadline,
    ) -> Result<BTreeMap<String, String>, PmiError> {
        loop {
            if let Some(end) = self.buffer.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return Ok(pairs(&String::from_utf8_lossy(&line)));
            }
            if self.buffer.len() > PMI_LINE_BYTES_MAX {
                let answer = format!("{} bytes without a newline", self.buffer.len());
                return Err(PmiError::Nonsense { operation, answer });
            }
            self.wait(operation, limit)?;
            let mut bytes = [0; 1024];
            match self.line.read(&mut bytes) {
                Ok(0) => return Err(PmiError::Closed { operation }),
                Ok(count) => self.buffer.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(PmiError::Io { operation, source }),
            }
        }
    }

    fn wait(&self, operation: &'static str, limit: Deadline) -> Result<(), PmiError> {
        loop {
            let left = limit.left();
            if left.is_zero() {
                return Err(PmiError::TimedOut { operation });
            }
            let mut fds = [PollFd::new(&self.line, PollFlags::IN)];
            match rustix::event::poll(&mut fds, left.try_into().ok().as_ref()) {
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(error) => {
                    let source = error.into();
                    return Err(PmiError::Io { operation, source });
                }
            }
        }
    }
}

/// Parses the words `key=value` of a reply. Of a value with spaces only the first word is kept; such a value is
/// a message for the user.
fn pairs(line: &str) -> BTreeMap<String, String> {
    let words = line.split_ascii_whitespace();
    let pair = |word: &str| {
        let (key, value) = word.split_once('=')?;
        Some((key.to_owned(), value.to_owned()))
    };
    words.filter_map(pair).collect()
}

/// Checks that the launcher's answer reports success. Slurm leaves out `rc` on success.
fn is_well(answer: &BTreeMap<String, String>, operation: &'static str) -> Result<(), PmiError> {
    match answer.get("rc").map(String::as_str) {
        None | Some("0") if !answer.is_empty() => Ok(()),
        _ => Err(nonsense(operation, answer)),
    }
}

fn nonsense(operation: &'static str, answer: &BTreeMap<String, String>) -> PmiError {
    let answer = format!("{answer:?}").chars().take(120).collect();
    PmiError::Nonsense { operation, answer }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::io::{BufRead as _, BufReader};
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    /// A launcher that gives these answers, one for each line; returns the commands it received.
    fn launcher(
        answers: &'static [&'static str],
    ) -> (OwnedFd, std::thread::JoinHandle<Vec<String>>) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let thread = std::thread::spawn(move || {
            let mut asked = Vec::new();
            let mut lines = BufReader::new(theirs.try_clone().unwrap()).lines();
            for answer in answers {
                let Some(line) = lines.next() else { break };
                asked.push(line.unwrap());
                (&theirs).write_all(answer.as_bytes()).unwrap();
            }
            asked
        });
        (ours.into(), thread)
    }

    fn soon() -> Deadline {
        Deadline::after(Duration::from_secs(20))
    }

    #[test]
    fn speaks_with_hydra_and_with_slurm() {
        let hydra: &[&str] = &[
            "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n",
            "cmd=my_kvsname kvsname=kvs_27436_0_1708645932_vm\n",
            "cmd=put_result rc=0 msg=success\n",
            "cmd=barrier_out\n",
            "cmd=get_result rc=0 msg=success value=a,b:1\n",
            "cmd=get_result rc=-1 msg=key_no-such-key_not_found value=unknown\n",
            "cmd=finalize_ack\n",
        ];
        let slurm: &[&str] = &[
            "cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1\n",
            "cmd=my_kvsname rc=0 kvsname=4.0\n",
            "cmd=put_result rc=0\n",
            "cmd=barrier_out rc=0\n",
            "cmd=get_result rc=0 value=a,b:1\n",
            "cmd=get_result rc=1\n",
            "cmd=finalize_ack rc=0\n",
        ];
        for (answers, kvs) in [(hydra, "kvs_27436_0_1708645932_vm"), (slurm, "4.0")] {
            let (line, launcher) = launcher(answers);
            let mut pmi = Pmi::begin(line, soon()).unwrap();
            pmi.put("k", "a,b:1").unwrap();
            assert!(pmi.barrier(soon()).unwrap());
            assert_eq!(pmi.get("k").unwrap().as_deref(), Some("a,b:1"));
            assert_eq!(pmi.get("l").unwrap(), None);
            pmi.finish().unwrap();
            let asked = launcher.join().unwrap();
            assert_eq!(asked[2], format!("cmd=put kvsname={kvs} key=k value=a,b:1"));
            assert_eq!(asked[6], "cmd=finalize");
        }
    }

    #[test]
    fn a_barrier_that_somebody_has_not_reached_is_left_later() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut said = BufReader::new(theirs.try_clone().unwrap()).lines();
        let tell = |line: &str| (&theirs).write_all(line.as_bytes()).unwrap();
        tell("cmd=response_to_init rc=0\ncmd=my_kvsname kvsname=k\n");
        let mut pmi = Pmi::begin(ours.into(), soon()).unwrap();
        assert_eq!(pmi.job(), "k");
        let limit = Deadline::after(Duration::from_millis(50));
        assert!(!pmi.barrier(limit).unwrap(), "somebody has not come");
        tell("cmd=barrier_out\ncmd=finalize_ack\n");
        pmi.finish().unwrap();
        assert_eq!(said.nth(2).unwrap().unwrap(), "cmd=barrier_in");
        assert_eq!(said.next().unwrap().unwrap(), "cmd=finalize");
    }

    #[test]
    fn a_launcher_that_is_silent_gone_or_mad_is_an_error() {
        let begin = |answers| {
            let (line, launcher) = launcher(answers);
            let begun = Pmi::begin(line, Deadline::after(Duration::from_millis(300)));
            let error = begun.unwrap_err();
            launcher.join().unwrap();
            error
        };
        assert!(matches!(
            begin(&["cmd=init rc=-1\n"]),
            PmiError::Nonsense { .. }
        ));
        assert!(matches!(begin(&["\n"]), PmiError::Nonsense { .. }));
        assert!(matches!(
            begin(&["cmd=response_to_init rc=0\n", "cmd=my_kvsname\n"]),
            PmiError::Nonsense { .. }
        ));
        assert!(matches!(
            begin(&[]),
            PmiError::Closed { .. } | PmiError::Io { .. }
        ));
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let error = Pmi::begin(ours.into(), Deadline::after(Duration::from_millis(50)));
        assert!(matches!(error, Err(PmiError::TimedOut { .. })));
        let (ours, theirs) = UnixStream::pair().unwrap();
        let endless = std::thread::spawn(move || {
            let chunk = [b'x'; 4096];
            while (&theirs).write_all(&chunk).is_ok() {}
        });
        let error = Pmi::begin(ours.into(), soon());
        assert!(matches!(error, Err(PmiError::Nonsense { .. })), "{error:?}");
        endless.join().unwrap();
    }
}
