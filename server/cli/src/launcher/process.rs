//! One child process: its start, its end, and its reaping.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::event::{PollFd, PollFlags};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process_group, pidfd_open,
    pidfd_send_signal, waitid,
};
use serde::{Deserialize, Serialize};
use tidewater_launch::{FabricSettings, Role};
use tidewater_protocol::limits::KILL_TIMEOUT;
use tidewater_protocol::mutants::{self, Mutant};
use tidewater_runtime::clock::Deadline;

use super::config::ProcessCommand;
use super::error::{Exit, Member};
use super::output::Stream;

/// A child. Dropping it kills its process group and reaps it.
///
/// It is reaped only then: as long as the dead child is kept, no other process can get its id. So
/// signals to its group reach the processes that it started and no others.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) member: Member,
    pub(super) pid: Pid,
    /// The launcher's end of the control line; closing it means "stop".
    pub(super) control: Option<UnixStream>,
    /// stdout and stderr, until they end.
    pub(super) streams: [Option<Stream>; 2],
    /// The last line of stderr, once that has ended.
    pub(super) last_line: Option<String>,
    pub(super) exit: Option<Exit>,
    /// The process that this child leads to, if it is a remote shell.
    pub(super) remote: Option<Remote>,
    child: Child,
    pidfd: OwnedFd,
}

/// A process on another host, at the other end of a remote shell.
#[derive(Debug)]
pub(super) struct Remote {
    pub(super) host: String,
    /// The order to send once it has greeted.
    pub(super) order: Option<Vec<u8>>,
    /// Deadline for its greeting.
    pub(super) until: Deadline,
    /// Its process id there, once it has greeted.
    pub(super) pid: i32,
}

impl Process {
    /// Checks, without waiting, whether it has ended; sets `exit` when it has.
    pub(super) fn look(&mut self) -> io::Result<()> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        if let Some(status) = waitid(WaitId::PidFd(self.pidfd.as_fd()), options)? {
            self.exit = match (status.exit_status(), status.terminating_signal()) {
                (Some(code), _) => Some(Exit::Code(code)),
                (None, Some(signal)) => Some(Exit::Signal(signal)),
                (None, None) => None,
            };
        }
        Ok(())
    }

    /// Sends `signal` to it and to the processes that it started. One that is gone needs no signal.
    ///
    /// To a process on another host the signal goes over the line; without one, or before the
    /// process is there, the remote shell gets it.
    pub(super) fn signal(&self, signal: Signal) {
        if let (Some(remote), Some(mut line)) = (&self.remote, self.control.as_ref())
            && remote.order.is_none()
        {
            let byte = u8::try_from(signal.as_raw()).unwrap_or(0);
            // A line that takes no byte has ended, or is stuck: then SIGKILL has no effect either,
            // and only the end of the line is left.
            let _ = line.write(&[byte]);
            return;
        }
        self.signal_child(signal);
    }

    /// Handles its greeting: sends the order.
    pub(super) fn greeted(&mut self, pid: i32) {
        let Some(remote) = &mut self.remote else {
            return;
        };
        remote.pid = pid;
        if let (Some(order), Some(line)) = (remote.order.take(), self.control.as_mut()) {
            // The order fits into the socket's buffer, or the shell has ended, which is noticed
            // elsewhere.
            let _ = line.write_all(&order);
        }
    }

    /// Whether it is on another host, and has not greeted.
    pub(super) fn is_unheard(&self) -> bool {
        let remote = self.remote.as_ref();
        remote.is_some_and(|remote| remote.order.is_some())
    }

    /// Deadline for its greeting, if it may still come.
    pub(super) fn greets_until(&self) -> Option<Deadline> {
        let waits = self.exit.is_none() && self.is_unheard();
        self.remote
            .as_ref()
            .filter(|_| waits)
            .map(|remote| remote.until)
    }

    /// Closes the control line, which means "stop": the end of a line to another host would mean
    /// "die".
    pub(super) fn ask_to_stop(&mut self) {
        if self.remote.is_none() {
            self.control = None;
        }
    }

    fn signal_child(&self, signal: Signal) {
        // ESRCH between start and `setpgid` is impossible: the child is in its group before `spawn`
        // returns.
        let _ = kill_process_group(self.pid, signal);
    }

    /// Descriptor that is readable when it has ended.
    pub(super) fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Its process id as a number.
    pub(super) fn pid_raw(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.control = None;
        if self.member == Member::Guard && self.exit.is_none() {
            // The guard still has work: the processes that this launcher, failing, leaves behind.
            return;
        }
        self.signal_child(Signal::KILL);
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
        let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
        let limit = KILL_TIMEOUT.try_into().ok();
        // Bounded: a child that the kernel holds would otherwise hold its launcher too.
        let _ = rustix::io::retry_on_intr(|| rustix::event::poll(&mut fds, limit.as_ref()));
        let _ = self.child.try_wait();
    }
}

/// Source of a child's stdin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Input {
    Nothing,
    Inherited,
    Control,
}

/// Settings that all processes of a job get.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct JobSettings {
    pub(super) servers: u32,
    pub(super) workers: u32,
    pub(super) transport: String,
    pub(super) rdma_device: Option<String>,
    pub(super) fabric: FabricSettings,
    pub(super) appliers: Option<u16>,
}

/// A process's position on its host.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Local {
    /// Its number among those of its role.
    pub(super) number: u32,
    /// Number of the job's servers there.
    pub(super) servers: u32,
}

/// Starts the processes of a job.
#[derive(Debug)]
pub(super) struct Spawner {
    pub(super) executable: PathBuf,
    pub(super) job: String,
    pub(super) token: PathBuf,
    pub(super) settings: JobSettings,
    /// Address of the coordinator, once it has reported it.
    pub(super) coordinator: Option<String>,
}

impl Spawner {
    /// Starts the guard and sends it the job's mark. It must not carry the mark, nor hold the
    /// launcher's output open.
    pub(super) fn guard(&self) -> io::Result<Process> {
        let mut command = Command::new(&self.executable);
        command.arg("__guard").env_remove("TIDEWATER_LAUNCH");
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut guard = start(Member::Guard, command, Input::Control)?;
        if let Some(control) = &mut guard.control {
            control.write_all(format!("{}\n", self.job).as_bytes())?;
        }
        Ok(guard)
    }

    /// Starts a member and captures its output.
    pub(super) fn member(
        &self,
        member: Member,
        run: &ProcessCommand,
        input: Input,
        local: Local,
    ) -> io::Result<Process> {
        let mut command = self.command(member, run, local);
        if input == Input::Control {
            command.env("TIDEWATER_READY_FD", "0");
        }
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        start(member, command, input)
    }

    /// Starts a member that writes to this process's outputs, with `environment` in addition to its
    /// own.
    pub(super) fn beside(
        &self,
        member: Member,
        run: &ProcessCommand,
        local: Local,
        environment: &[(OsString, OsString)],
    ) -> io::Result<Process> {
        let mut command = self.command(member, run, local);
        let own: Vec<_> = command
            .get_envs()
            .map(|(name, _)| name.to_owned())
            .collect();
        let more = environment.iter().filter(|(name, _)| !own.contains(name));
        command.envs(more.map(|(name, value)| (name, value)));
        start(member, command, Input::Nothing)
    }

    /// Starts a member on another host: `shell`, a remote shell, starts a process there that waits
    /// for `order`.
    pub(super) fn far(
        &self,
        member: Member,
        shell: &ProcessCommand,
        host: &str,
        order: Vec<u8>,
        until: Deadline,
    ) -> io::Result<Process> {
        let mut command = self.shim(&shell.program);
        command
            .args(&shell.args)
            .arg(host)
            .arg(quoted(&self.executable))
            .env_remove("TIDEWATER_LAUNCH")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut process = start(member, command, Input::Control)?;
        process.remote = Some(Remote {
            host: host.to_owned(),
            order: Some(order),
            until,
            pid: 0,
        });
        Ok(process)
    }

    /// The command of the program, started by the shim.
    fn shim(&self, program: &OsString) -> Command {
        let mut command = Command::new(&self.executable);
        let pid = std::process::id().to_string();
        command.arg("__child").arg(pid).arg(program);
        command
    }

    fn command(&self, member: Member, run: &ProcessCommand, local: Local) -> Command {
        let mut command = self.shim(&run.program);
        command.args(&run.args);
        let (role, rank) = match member {
            Member::Server(number) => (Role::Server, number),
            Member::Worker(rank) => (Role::Worker, rank),
            Member::Coordinator | Member::Guard => (Role::Coordinator, 0),
        };
        let settings = &self.settings;
        command
            .env("TIDEWATER_LAUNCH", &self.job)
            .env("TIDEWATER_ROLE", role.name())
            .env("TIDEWATER_RANK", rank.to_string())
            .env("TIDEWATER_LOCAL_RANK", local.number.to_string())
            .env("TIDEWATER_LOCAL_SERVERS", local.servers.to_string())
            .env("TIDEWATER_SERVERS", settings.servers.to_string())
            .env("TIDEWATER_WORKERS", settings.workers.to_string())
            .env("TIDEWATER_TRANSPORT", &settings.transport)
            .env("TIDEWATER_TOKEN_FILE", &self.token)
            // Settings of this launcher itself, perhaps as a worker of another job, end here.
            .env_remove("TIDEWATER_COORDINATOR")
            .env_remove("TIDEWATER_JOB")
            .env_remove("TIDEWATER_READY_FD");
        if !mutants::on(Mutant::TokenFdInherited) {
            command.env_remove("TIDEWATER_TOKEN_FD");
        }
        if let Some(device) = &settings.rdma_device {
            command.env("TIDEWATER_RDMA_DEVICE", device);
        }
        command.envs(settings.fabric.variables());
        if let Some(appliers) = settings.appliers {
            command.env("TIDEWATER_APPLIERS", appliers.to_string());
        }
        if let Some(address) = &self.coordinator {
            command.env("TIDEWATER_COORDINATOR", address);
        }
        command
    }
}

/// The command line of a process that waits for its order, for the shell of another host.
fn quoted(executable: &Path) -> OsString {
    let mut line = b"exec '".to_vec();
    for byte in executable.as_os_str().as_bytes() {
        match byte {
            b'\'' => line.extend_from_slice(b"'\\''"),
            byte => line.push(*byte),
        }
    }
    line.extend_from_slice(b"' __remote");
    OsString::from_vec(line)
}

fn start(member: Member, mut command: Command, input: Input) -> io::Result<Process> {
    command.process_group(0);
    let mut control = None;
    match input {
        Input::Nothing => command.stdin(Stdio::null()),
        Input::Inherited => command.stdin(Stdio::inherit()),
        Input::Control => {
            let (ours, theirs) = UnixStream::pair()?;
            ours.set_nonblocking(true)?;
            control = Some(ours);
            command.stdin(OwnedFd::from(theirs))
        }
    };
    let mut child = command.spawn()?;
    let pid = Pid::from_child(&child);
    match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(pidfd) => {
            let streams = [None, None];
            Ok(Process {
                member,
                pid,
                control,
                streams,
                last_line: None,
                exit: None,
                remote: None,
                child,
                pidfd,
            })
        }
        Err(error) => {
            // Without a pidfd it cannot be a member.
            child.kill()?;
            child.wait()?;
            Err(error.into())
        }
    }
}

/// A child's pipes, taken once to make streams of them.
pub(super) fn take_pipes(process: &mut Process) -> [Option<OwnedFd>; 2] {
    let child = &mut process.child;
    [
        child.stdout.take().map(OwnedFd::from),
        child.stderr.take().map(OwnedFd::from),
    ]
}
