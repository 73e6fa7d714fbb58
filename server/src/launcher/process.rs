//! One child process: started, watched, buried.

use std::io::{self, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use rustix::event::{PollFd, PollFlags};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process_group, pidfd_open,
    pidfd_send_signal, waitid,
};
use tidewater_transport::launch::{RdmaDevice, Role, TransportChoice};
use tidewater_transport::limits::KILL_TIMEOUT;

use super::config::ProcessCommand;
use super::error::{Exit, Member};
use super::output::Stream;

/// A child. Dropping it kills its process group and reaps it.
///
/// It is reaped only then: as long as the dead child is kept, no other process can get its id, so
/// signals to its group reach what it started and nothing else.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) member: Member,
    pub(super) pid: Pid,
    /// Our end of the control line; closed, it says "stop".
    pub(super) control: Option<UnixStream>,
    /// stdout and stderr, until they end.
    pub(super) streams: [Option<Stream>; 2],
    /// The last line of stderr, once that has ended.
    pub(super) last_line: Option<String>,
    pub(super) exit: Option<Exit>,
    child: Child,
    pidfd: OwnedFd,
}

impl Process {
    /// Looks, without waiting, whether it has ended; sets `exit` when it has.
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

    /// Sends `signal` to it and to what it started. One that is gone needs no signal.
    pub(super) fn signal(&self, signal: Signal) {
        // ESRCH in the moment between start and `setpgid` cannot be: the child is in its group
        // before `spawn` returns.
        let _ = kill_process_group(self.pid, signal);
    }

    /// Readable when it has ended.
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
            // It still has something to do: what this launcher, failing, leaves behind.
            return;
        }
        self.signal(Signal::KILL);
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
        let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
        let limit = KILL_TIMEOUT.try_into().ok();
        // Bounded: a child that the kernel holds would otherwise hold its launcher too.
        let _ = rustix::io::retry_on_intr(|| rustix::event::poll(&mut fds, limit.as_ref()));
        let _ = self.child.try_wait();
    }
}

/// Where a child's stdin comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Input {
    Nothing,
    Inherited,
    Control,
}

/// What every child of a job is told.
#[derive(Debug)]
pub(super) struct Spawner {
    pub(super) executable: PathBuf,
    pub(super) job: String,
    pub(super) token: PathBuf,
    pub(super) servers: u32,
    pub(super) workers: u32,
    pub(super) transport: TransportChoice,
    pub(super) rdma_device: Option<RdmaDevice>,
    pub(super) appliers: Option<u16>,
    /// Where the coordinator listens, once it said so.
    pub(super) coordinator: Option<String>,
}

impl Spawner {
    /// Starts the guard and tells it the job's mark. It must not carry the mark, nor hold the
    /// launcher's output open.
    pub(super) fn guard(&self) -> io::Result<Process> {
        let mut command = Command::new(&self.executable);
        command.arg("__guard").env_remove("TIDEWATER_JOB");
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut guard = start(Member::Guard, command, Input::Control)?;
        if let Some(control) = &mut guard.control {
            control.write_all(format!("{}\n", self.job).as_bytes())?;
        }
        Ok(guard)
    }

    /// Starts a member, through the shim.
    pub(super) fn member(
        &self,
        member: Member,
        run: &ProcessCommand,
        input: Input,
    ) -> io::Result<Process> {
        let mut command = Command::new(&self.executable);
        command
            .arg("__child")
            .arg(std::process::id().to_string())
            .arg(&run.program);
        command
            .args(&run.args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let (role, rank) = match member {
            Member::Server(number) => (Role::Server, number),
            Member::Worker(rank) => (Role::Worker, rank),
            Member::Coordinator | Member::Guard => (Role::Coordinator, 0),
        };
        command
            .env("TIDEWATER_JOB", &self.job)
            .env("TIDEWATER_ROLE", role.name())
            .env("TIDEWATER_RANK", rank.to_string())
            .env("TIDEWATER_LOCAL_RANK", rank.to_string())
            .env("TIDEWATER_SERVERS", self.servers.to_string())
            .env("TIDEWATER_WORKERS", self.workers.to_string())
            .env("TIDEWATER_TRANSPORT", self.transport.name())
            .env("TIDEWATER_TOKEN_FILE", &self.token)
            // What this launcher was itself told, perhaps as a worker of another job, ends here.
            .env_remove("TIDEWATER_TOKEN_FD")
            .env_remove("TIDEWATER_COORDINATOR")
            .env_remove("TIDEWATER_READY_FD");
        if let Some(device) = &self.rdma_device {
            command.env("TIDEWATER_RDMA_DEVICE", device.as_str());
        }
        if let Some(appliers) = self.appliers {
            command.env("TIDEWATER_APPLIERS", appliers.to_string());
        }
        if let Some(address) = &self.coordinator {
            command.env("TIDEWATER_COORDINATOR", address);
        }
        if input == Input::Control {
            command.env("TIDEWATER_READY_FD", "0");
        }
        start(member, command, input)
    }
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
                child,
                pidfd,
            })
        }
        Err(error) => {
            // Not watched, it cannot be a member.
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
