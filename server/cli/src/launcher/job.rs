//! One job: its processes, and the loop that watches them.

use std::io::{self, IsTerminal as _, Read as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::process::Signal;
use tidewater_protocol::limits::{BLAME_TIMEOUT, PIPE_BYTES_MAX, READY_LINE_BYTES_MAX};
use tidewater_runtime::clock::Deadline;

use super::config::{Prefix, ProcessCommand, RunConfig};
use super::control::ReadyLine;
use super::error::{Exit, Failure, LaunchError, Member, Outcome};
use super::output::{Lines, Sink, Stream, Taken};
use super::process::{Input, JobSettings, Local, Process, Spawner, take_pipes};
use super::reaper;
use super::remote_hosts::Far;
use super::shutdown::Stage;
use super::signals::Signals;
use super::token::TokenFile;

/// Bytes read from a child at once: a pipe's default size.
const READ_BYTES: usize = 64 << 10;
/// Exit of a process that lost another one, which is the failure, or could not reach it.
const LOST_ANOTHER: Exit = Exit::Code(4);

/// State of a running job. Dropped fields kill and reap their processes.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) config: RunConfig,
    pub(super) spawner: Spawner,
    /// The guard first; then the others, as they were started.
    pub(super) processes: Vec<Process>,
    /// stdout and stderr; one sink when both are the same file.
    pub(super) sinks: Vec<Sink>,
    pub(super) stage: Stage,
    /// When the current stage sends SIGKILL, or ends.
    pub(super) deadline: Option<Deadline>,
    /// Whether the current stage has sent SIGKILL.
    pub(super) killed: bool,
    /// Whether a signal of the launcher asks the job to end.
    pub(super) asked_to_end: bool,
    /// Number of SIGINTs so far.
    pub(super) interrupts: usize,
    /// When the whole job must have ended.
    pub(super) timeout: Option<Deadline>,
    pub(super) failure: Option<Failure>,
    /// The process that claims to have lost another one, and until when that one may turn up.
    pub(super) suspect: Option<(Deadline, Failure)>,
    signals: Signals,
    host: String,
    verbatim_stdout: bool,
    /// Output of the coordinator up to its ready line.
    pub(super) said: Vec<u8>,
    /// What a coordinator that is started again needs, if it is to be.
    state: Option<CoordinatorState>,
    pub(super) far: Far,
    scratch: Vec<u8>,
    token: TokenFile,
}

/// Journal of the coordinator, and how often it is started again.
#[derive(Debug)]
struct CoordinatorState {
    directory: tempfile::TempDir,
    restarts: u32,
}

impl CoordinatorState {
    /// Makes the directory, in that for temporary files.
    fn create(restarts: u32) -> io::Result<Option<Self>> {
        if restarts == 0 {
            return Ok(None);
        }
        let directory = tempfile::Builder::new().prefix("tidewater-").tempdir()?;
        let path = directory.path().to_str();
        if path.is_none_or(|path| path.contains('\n')) {
            // The guard reads it as a line.
            let text = format!("{:?} is no line of UTF-8", directory.path());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        Ok(Some(Self {
            directory,
            restarts,
        }))
    }

    /// The line for the guard, which removes the directory where the launcher cannot.
    fn line(&self) -> String {
        format!("{}{}\n", reaper::DIRECTORY, self.directory.path().display())
    }
}

/// A source that `poll` reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    Signals,
    Ended(usize),
    Control(usize),
    Output(usize, usize),
    Writable(usize),
}

impl Job {
    /// Makes the token, starts guard and coordinator.
    pub(super) fn start(mut config: RunConfig) -> Result<Self, LaunchError> {
        let token = TokenFile::create()?;
        let sinks = open_sinks(&mut config).map_err(LaunchError::system("open its output"))?;
        let spawner = Spawner {
            executable: config.executable.clone(),
            job: job_mark()?,
            token: token.path(),
            settings: JobSettings {
                servers: config.servers,
                workers: config.workers,
                transport: config.transport.name().to_owned(),
                rdma_device: config.rdma_device.as_ref().map(ToString::to_string),
                fabric: config.fabric,
                appliers: config.appliers,
            },
            coordinator: None,
        };
        let far = Far::of(&mut config)?;
        let state = CoordinatorState::create(config.coordinator_restarts).map_err(
            LaunchError::system("make a directory for the coordinator's journal"),
        )?;
        let guard = spawner.guard().and_then(|mut guard| {
            if let (Some(state), Some(control)) = (&state, guard.control.as_mut()) {
                control.write_all(state.line().as_bytes())?;
            }
            Ok(guard)
        });
        let guard = guard.map_err(LaunchError::system("start its guard"))?;
        let host = rustix::system::uname()
            .nodename()
            .to_string_lossy()
            .into_owned();
        let mut job = Self {
            verbatim_stdout: config.workers == 1 && sinks.len() == 2,
            timeout: config.timeout.map(Deadline::after),
            deadline: Some(Deadline::after(config.start_timeout)),
            signals: Signals::catch()?,
            processes: vec![guard],
            stage: Stage::Starting,
            killed: false,
            asked_to_end: false,
            interrupts: 0,
            failure: None,
            suspect: None,
            said: Vec::new(),
            state,
            far,
            scratch: vec![0; READ_BYTES],
            token,
            config,
            spawner,
            sinks,
            host,
        };
        if let Some(state) = &job.state {
            let path = state.directory.path();
            let args = &mut job.config.coordinator.args;
            args.extend(["--state".into(), path.into()]);
        }
        let command = job.config.coordinator.clone();
        job.launch(Member::Coordinator, &command, Input::Control);
        Ok(job)
    }

    /// Starts the coordinator again if a signal has ended it while the job runs, and it may be. Its journal has the
    /// port, to which servers and workers return.
    fn restarts_coordinator(&mut self, index: usize, exit: Exit) -> bool {
        let process = &self.processes[index];
        let is_its = process.member == Member::Coordinator && self.stage == Stage::Running;
        let asks = [Signal::TERM, Signal::INT, Signal::HUP].map(Signal::as_raw);
        let killed = matches!(exit, Exit::Signal(signal) if !asks.contains(&signal));
        let Some(state) = self.state.as_mut().filter(|_| is_its && killed) else {
            return false;
        };
        let Some(left) = state.restarts.checked_sub(1) else {
            return false;
        };
        state.restarts = left;
        let pid = process.pid_raw();
        self.notice(&format!(
            "coordinator (pid {pid}) {exit}; it is started again, {left} more may follow"
        ));
        let command = self.config.coordinator.clone();
        self.launch(Member::Coordinator, &command, Input::Control);
        true
    }

    /// Watches the job until it has ended and none of its processes is left.
    pub(super) fn supervise(mut self) -> Result<Outcome, LaunchError> {
        while self.stage != Stage::Done {
            let events = self
                .wait()
                .map_err(LaunchError::system("wait for its children"))?;
            let mut ended = Vec::new();
            for event in events {
                match event {
                    Event::Signals => self.take_signals(),
                    Event::Ended(process) => ended.push(process),
                    Event::Control(process) => self.take_control(process),
                    Event::Output(process, stream) => self.take_output(process, stream),
                    Event::Writable(sink) => self.write_sink(sink),
                }
            }
            self.take_ends(ended)
                .map_err(LaunchError::system("wait for its children"))?;
            while self.step() {}
        }
        let output_lost = self.sinks.iter().map(Sink::lost).sum();
        Ok(Outcome {
            failure: self.failure.take(),
            output_lost,
            asked_to_end: self.asked_to_end,
        })
    }

    /// Starts a member and sends its process group to the guard. If that fails, the job fails.
    pub(super) fn launch(&mut self, member: Member, command: &ProcessCommand, input: Input) {
        let started = self.spawn(member, command, input).and_then(|mut process| {
            let pipes = take_pipes(&mut process);
            for (number, pipe) in pipes.into_iter().enumerate() {
                if let Some(pipe) = pipe {
                    let mut stream = self.open_stream(member, number, pipe)?;
                    if number == 0 && process.remote.is_some() {
                        stream = stream.before_greeting();
                    }
                    process.streams[number] = Some(stream);
                }
            }
            if let Some(guard) = self.processes[0].control.as_mut() {
                guard.write_all(format!("{}\n", process.pid_raw()).as_bytes())?;
            }
            Ok(process)
        });
        match started {
            Ok(process) => self.processes.push(process),
            Err(error) => self.fail(Failure::Start {
                member,
                reason: error.to_string(),
            }),
        }
    }

    /// Starts a member here, or the remote shell that leads to it.
    fn spawn(&self, member: Member, run: &ProcessCommand, input: Input) -> io::Result<Process> {
        let here = Local {
            number: match member {
                Member::Server(number) | Member::Worker(number) => number,
                Member::Coordinator | Member::Guard => 0,
            },
            servers: self.config.servers,
        };
        let (host, local) = match self.far.placement.of(member) {
            None => return self.spawner.member(member, run, input, here),
            Some((host, local)) => (&self.config.hosts[host], local),
        };
        if host.is_this() {
            return self.spawner.member(member, run, input, local);
        }
        let order = self
            .far
            .order(member, run, local, &self.spawner, &self.token)?;
        let until = Deadline::after(self.config.start_timeout);
        self.spawner
            .far(member, &self.config.shell, &host.name, order, until)
    }

    /// Replaces a guard that died before its work.
    pub(super) fn renew_guard(&mut self) {
        if self.processes[0].exit.is_none() {
            return;
        }
        let groups = self.processes[1..].iter();
        let groups = groups.map(|process| format!("{}\n", process.pid_raw()));
        let directory = self.state.as_ref().map(CoordinatorState::line);
        let groups: String = groups.chain(directory).collect();
        let renewed = self.spawner.guard().and_then(|mut guard| {
            if let Some(control) = guard.control.as_mut() {
                control.write_all(groups.as_bytes())?;
            }
            Ok(guard)
        });
        match renewed {
            Ok(guard) => self.processes[0] = guard,
            Err(error) => self.fail(Failure::Start {
                member: Member::Guard,
                reason: error.to_string(),
            }),
        }
    }

    /// Notes and prints the first failure, and stops the job.
    pub(super) fn fail(&mut self, failure: Failure) {
        if self.failure.is_some() {
            return;
        }
        self.suspect = None;
        self.notice(&failure.to_string());
        self.failure = Some(failure);
        if self.stage < Stage::Workers {
            self.enter(Stage::Workers, Some(Signal::TERM));
        }
    }

    /// Prints a line of the launcher's own on stderr.
    pub(super) fn notice(&mut self, text: &str) {
        if let Some(sink) = self.sinks.last_mut() {
            sink.push(format!("tidewater run: {text}\n").as_bytes());
        }
    }

    /// The failure that `process` does not end.
    pub(super) fn stuck(&self, process: &Process) -> Failure {
        let (pid, host) = match &process.remote {
            None => (process.pid_raw(), self.host.clone()),
            Some(remote) => (remote.pid, remote.host.clone()),
        };
        Failure::Stuck {
            member: process.member,
            pid,
            host,
        }
    }

    /// Passes on the output that ended processes left in their pipes; no live process writes to
    /// them. Returns whether all of it is passed on.
    pub(super) fn drain(&mut self) -> bool {
        let mut drained = true;
        for process in &mut self.processes {
            for (number, slot) in process.streams.iter_mut().enumerate() {
                let Some(stream) = slot else { continue };
                let sink = &mut self.sinks[stream.sink];
                if !sink.has_room() {
                    drained = false;
                    continue;
                }
                // A process that escaped the guard may write for ever: the content of a full pipe
                // is enough.
                let mut taken = 0;
                while let Taken::Bytes(count) = stream.take(&mut self.scratch, sink) {
                    taken += count;
                    if taken > PIPE_BYTES_MAX {
                        break;
                    }
                }
                close_stream(slot, sink, (number == 1).then_some(&mut process.last_line));
            }
        }
        drained
    }

    fn wait(&self) -> io::Result<Vec<Event>> {
        let mut fds = Vec::new();
        let mut events = Vec::new();
        let mut watch = |event, fd, flags| {
            events.push(event);
            fds.push(PollFd::from_borrowed_fd(fd, flags));
        };
        for fd in self.signals.descriptors() {
            watch(Event::Signals, fd, PollFlags::IN);
        }
        for (index, process) in self.processes.iter().enumerate() {
            if process.exit.is_none() {
                watch(Event::Ended(index), process.pidfd(), PollFlags::IN);
            }
            if let Some(control) = &process.control {
                watch(Event::Control(index), control.as_fd(), PollFlags::IN);
            }
            for (number, stream) in process.streams.iter().enumerate() {
                if let Some(stream) = stream.as_ref().filter(|s| self.sinks[s.sink].has_room()) {
                    watch(Event::Output(index, number), stream.as_fd(), PollFlags::IN);
                }
            }
        }
        for (number, sink) in self
            .sinks
            .iter()
            .enumerate()
            .filter(|(_, sink)| sink.is_pending())
        {
            watch(Event::Writable(number), sink.as_fd(), PollFlags::OUT);
        }
        let timeout = self.timeout.filter(|_| self.stage < Stage::Workers);
        let blame = self.suspect.as_ref().map(|(until, _)| *until);
        let greeting = self
            .processes
            .iter()
            .filter_map(Process::greets_until)
            .min();
        let greeting = greeting.filter(|_| self.stage < Stage::Workers);
        let all = [self.deadline, timeout, blame, greeting];
        let first = all.into_iter().flatten().min();
        let limit = first.and_then(|deadline| deadline.left().try_into().ok());
        match rustix::event::poll(&mut fds, limit.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let ready = fds.iter().map(|fd| !fd.revents().is_empty());
        let mut happened: Vec<Event> = events
            .into_iter()
            .zip(ready)
            .filter(|(_, ready)| *ready)
            .map(|(e, _)| e)
            .collect();
        happened.dedup();
        Ok(happened)
    }

    fn take_signals(&mut self) {
        for (signal, times) in self.signals.take() {
            self.forward(signal, times);
        }
    }

    /// Reads the coordinator's ready line; other bytes on a control line are dropped.
    fn take_control(&mut self, index: usize) {
        let process = &mut self.processes[index];
        let Some(control) = &mut process.control else {
            return;
        };
        let mut bytes = [0; READY_LINE_BYTES_MAX];
        let count = match control.read(&mut bytes) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Err(_) => 0,
        };
        if count == 0 {
            // It closed its end, so no message can reach it this way.
            process.control = None;
        }
        if process.member == Member::Coordinator && self.spawner.coordinator.is_none() {
            self.said.extend_from_slice(&bytes[..count]);
            let complete = self
                .said
                .split_inclusive(|b| *b == b'\n')
                .filter(|l| l.ends_with(b"\n"));
            let address = complete
                .filter_map(ReadyLine::parse)
                .next()
                .map(|line| line.address);
            self.spawner.coordinator = address;
            let excess = self.said.len().saturating_sub(READY_LINE_BYTES_MAX);
            self.said.drain(..excess);
        }
    }

    fn take_output(&mut self, index: usize, number: usize) {
        let process = &mut self.processes[index];
        let slot = &mut process.streams[number];
        let Some(stream) = slot else { return };
        let sink = &mut self.sinks[stream.sink];
        match stream.take(&mut self.scratch, sink) {
            Taken::End => {
                close_stream(slot, sink, (number == 1).then_some(&mut process.last_line));
            }
            Taken::Early => {
                if let Some(pid) = stream.greeting(sink) {
                    process.greeted(pid);
                }
            }
            Taken::Bytes(_) | Taken::Empty => {}
        }
    }

    fn write_sink(&mut self, number: usize) {
        if self.sinks[number].write_some() {
            self.output_moved();
        }
    }

    fn take_ends(&mut self, mut ended: Vec<usize>) -> io::Result<()> {
        ended.sort_by_key(|index| self.processes[*index].member);
        for index in ended {
            self.processes[index].look()?;
            let Some(exit) = self.processes[index].exit else {
                continue;
            };
            if self.restarts_coordinator(index, exit) {
                continue;
            }
            let member = self.processes[index].member;
            let unheard = self.processes[index].is_unheard() && self.stage < Stage::Workers;
            if !unheard && !self.is_failure(member, exit) {
                continue;
            }
            // Its last lines are still in the pipe.
            for _ in 0..PIPE_BYTES_MAX / READ_BYTES {
                self.take_output(index, 1);
            }
            let process = &self.processes[index];
            let held = process.streams[1].as_ref().and_then(Stream::last_line);
            let last_line = held.or_else(|| process.last_line.clone());
            let failure = self.end_of(process, exit, last_line);
            if exit == LOST_ANOTHER && self.stage < Stage::Workers {
                let until = Deadline::after(BLAME_TIMEOUT);
                self.suspect.get_or_insert((until, failure));
            } else {
                self.fail(failure);
            }
        }
        Ok(())
    }

    /// Describes the end of a process, or of the remote shell that led to it.
    fn end_of(&self, process: &Process, exit: Exit, last_line: Option<String>) -> Failure {
        let member = process.member;
        let (pid, host) = match &process.remote {
            None => (process.pid_raw(), self.host.clone()),
            Some(remote) => (remote.pid, remote.host.clone()),
        };
        // 255 is how ssh ends when it fails itself; a signal ends the shell and not the program,
        // which it reports as 128 + n.
        let is_shells = matches!(exit, Exit::Code(255) | Exit::Signal(_));
        if process.remote.is_some() && (process.is_unheard() || is_shells) {
            let shell = self.config.shell.program.to_string_lossy().into_owned();
            let said = last_line.map_or_else(
                || "it wrote nothing to stderr".to_owned(),
                |line| format!("its last line on stderr: {line}"),
            );
            return Failure::Host {
                member,
                host,
                why: format!("{shell} {exit}; {said}"),
                shell,
                ran: !process.is_unheard(),
            };
        }
        Failure::Process {
            member,
            pid,
            host,
            exit,
            last_line,
        }
    }

    fn open_stream(&self, member: Member, number: usize, pipe: OwnedFd) -> io::Result<Stream> {
        let is_result = number == 0 && matches!(member, Member::Worker(_));
        let sink = if is_result { 0 } else { self.sinks.len() - 1 };
        let prefixed = match self.config.prefix {
            Prefix::Always => true,
            Prefix::Never => false,
            Prefix::Auto if is_result => {
                self.config.workers > 1 && self.sinks[sink].as_fd().is_terminal()
            }
            Prefix::Auto => true,
        };
        let prefix = if prefixed {
            format!("[{member}] ")
        } else {
            String::new()
        };
        let verbatim = is_result && !prefixed && self.verbatim_stdout;
        Stream::new(pipe, Lines::new(prefix.into_bytes(), verbatim), sink)
    }
}

/// Ends a stream, and keeps its last line if requested.
fn close_stream(slot: &mut Option<Stream>, sink: &mut Sink, last: Option<&mut Option<String>>) {
    if let Some(mut stream) = slot.take() {
        stream.finish(sink);
        if let Some(last) = last {
            *last = stream.last_line();
        }
    }
}

/// The mark of a job: 16 hex digits that no other job on this host has.
fn job_mark() -> Result<String, LaunchError> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes)
        .map_err(|error| LaunchError::system("mark its children")(io::Error::other(error)))?;
    Ok(format!("{:016x}", u64::from_le_bytes(bytes)))
}

/// stdout and stderr; only one when both are the same file, so that no line of one ends up
/// inside a line of the other.
fn open_sinks(config: &mut RunConfig) -> io::Result<Vec<Sink>> {
    let own = |fd: io::Result<OwnedFd>, given: Option<OwnedFd>| given.map_or(fd, Ok);
    let stdout = own(
        io::stdout().as_fd().try_clone_to_owned(),
        config.stdout.take(),
    )?;
    let stderr = own(
        io::stderr().as_fd().try_clone_to_owned(),
        config.stderr.take(),
    )?;
    let (out, err) = (rustix::fs::fstat(&stdout)?, rustix::fs::fstat(&stderr)?);
    if (out.st_dev, out.st_ino) == (err.st_dev, err.st_ino) {
        return Ok(vec![Sink::new(stdout)]);
    }
    Ok(vec![Sink::new(stdout), Sink::new(stderr)])
}
