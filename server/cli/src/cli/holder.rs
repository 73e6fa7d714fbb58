//! The holder of a server: its parent, which reports how it ended and starts its successor.
//!
//! The holder has one thread and forks without exec, so that a successor inherits what the holder has mapped
//! (ADR 0032). A server that a signal has ended gets a successor, except for the signals that ask it to end;
//! one that ends by itself has said why, and its exit code is the holder's. If the holder ends, the kernel
//! kills its server.
//!
//! The holder reserves the memory of its servers and uses none of it. The first server writes it, and each
//! successor goes on with what it finds. A successor that cannot, ends with [`MEMORY_REFUSED`]; the next one
//! begins with new memory.

use std::io;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, getppid, pidfd_open, pidfd_send_signal,
    set_parent_process_death_signal, waitid,
};
use signal_hook::SigId;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use tidewater_runtime::clock::Deadline;
use tidewater_runtime::mem::fork_single_threaded;
use tidewater_runtime::sync::{Arc, AtomicBool, Ordering};
use tidewater_service::holder::report_end;
use tidewater_service::process::ServerProcessConfig;
use tidewater_service::server::HeldMemory;

use crate::launcher::Exit;

/// Time limit of a report to the coordinator, by which a successor starts later. Long for a busy machine, and short
/// next to the time for which the coordinator waits for the successor.
const REPORT: Duration = Duration::from_secs(5);
/// Exit code of a successor that cannot go on with the memory of the server before.
pub(super) const MEMORY_REFUSED: u8 = 6;
/// Signals that ask a server to end.
const ASKING: [i32; 3] = [SIGTERM, SIGINT, SIGHUP];

/// Which process returned from [`hold`].
pub(super) enum Held {
    /// This process is the server, a child.
    Server(Successor),
    /// The holder, when its last server has ended.
    Over(ExitCode),
}

/// A server of a holder.
pub(super) struct Successor {
    /// Servers that the holder starts after this one.
    pub(super) restarts: u32,
    /// The memory that the holder keeps.
    pub(super) memory: HeldMemory,
    signals: HeldSignals,
}

impl Successor {
    /// Notes that this process handles SIGTERM and SIGINT by itself; until then they end it.
    pub(super) fn handles_signals(&self) {
        self.signals.end_this.store(false, Ordering::SeqCst);
    }
}

/// Signals of the holder. A child inherits the handlers.
struct HeldSignals {
    asked: UnixStream,
    actions: Vec<SigId>,
    /// Whether SIGTERM and SIGINT have their default action: in a server before it handles them.
    end_this: Arc<AtomicBool>,
}

impl HeldSignals {
    fn catch() -> io::Result<Self> {
        let (asked, sender) = UnixStream::pair()?;
        let end_this = Arc::new(AtomicBool::new(false));
        let mut actions = Vec::new();
        for signal in [SIGTERM, SIGINT] {
            let end_this = Arc::clone(&end_this);
            signal_hook::flag::register_conditional_default(signal, end_this)?;
            let sender = sender.try_clone()?;
            actions.push(signal_hook::low_level::pipe::register(signal, sender)?);
        }
        Ok(Self {
            asked,
            actions,
            end_this,
        })
    }

    /// Gives the signals their default action, in a child.
    fn release(&mut self) {
        self.end_this.store(true, Ordering::SeqCst);
        for action in self.actions.drain(..) {
            signal_hook::low_level::unregister(action);
        }
    }
}

/// Starts the server of `config` in a child, and after each end by a signal its successor, `restarts` times
/// at most. Returns in each child, and in this process after the last end.
///
/// # Errors
/// The exit code, after its message was printed: this process has other threads, or a system call failed.
pub(super) fn hold(config: &ServerProcessConfig, restarts: u32) -> Result<Held, ExitCode> {
    let failed = |error: io::Error| {
        super::complain(format_args!("cannot hold a server: {error}"));
        ExitCode::from(3)
    };
    let reserve = || {
        config
            .reserve()
            .map_err(|error| super::roles::complain(3, error))
    };
    let mut held = None;
    let mut signals = HeldSignals::catch().map_err(failed)?;
    let mut left = restarts;
    loop {
        let holder = std::process::id();
        let memory = match held.take() {
            Some(memory) => memory,
            None => reserve()?,
        };
        let Some(child) = fork_single_threaded().map_err(failed)? else {
            signals.release();
            tie_to(holder).map_err(failed)?;
            return Ok(Held::Server(Successor {
                restarts: left,
                memory,
                signals,
            }));
        };
        let (exit, asked) = wait(child, &signals.asked).map_err(failed)?;
        let restart = match exit {
            Exit::Signal(signal) => left > 0 && !asked && !ASKING.contains(&signal),
            Exit::Code(code) => left > 0 && !asked && code == i32::from(MEMORY_REFUSED),
        };
        if !asked && exit != Exit::Code(0) {
            report(config, child, exit, restart.then(|| left - 1));
        }
        if !restart {
            return Ok(Held::Over(ExitCode::from(exit.code())));
        }
        left -= 1;
        // What a successor has refused goes before new memory is reserved: the host may not have room for both.
        held = match exit {
            Exit::Signal(_) => Some(memory.of_successor()),
            Exit::Code(_) => None,
        };
    }
}

/// Prints how a server has ended, and reports it to the coordinator; `left`: further successors, if one starts.
fn report(config: &ServerProcessConfig, child: Pid, exit: Exit, left: Option<u32>) {
    let pid = child.as_raw_nonzero().get();
    let server = config
        .number
        .map_or_else(|| "a server".into(), |number| format!("server {number}"));
    let next = match left {
        Some(left) => format!("its successor starts, {left} more may follow"),
        None => "no successor follows".into(),
    };
    super::complain(format_args!("{server} (pid {pid}) {exit}; {next}"));
    let (pid, how) = (pid.unsigned_abs(), exit.to_string());
    let until = Deadline::after(REPORT);
    if let Err(error) = report_end(config, pid, &how, left.is_some(), until) {
        super::complain(format_args!("the end of {server} is not reported: {error}"));
    }
}

/// Has the kernel kill this process when its parent, which must be `holder`, ends.
fn tie_to(holder: u32) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // A parent that ended before the request sends no signal any more.
    match getppid() {
        Some(parent) if parent.as_raw_nonzero().get().unsigned_abs() == holder => Ok(()),
        _ => Err(io::Error::other(format!(
            "the holder (pid {holder}) is gone"
        ))),
    }
}

/// Waits for the end of a child; returns how it ended, and whether this process was asked to end meanwhile.
/// The child gets SIGTERM then.
fn wait(child: Pid, asked: &UnixStream) -> io::Result<(Exit, bool)> {
    let pidfd = pidfd_open(child, PidfdFlags::empty())?;
    let mut was_asked = false;
    loop {
        let mut fds = vec![PollFd::new(&pidfd, PollFlags::IN)];
        if !was_asked {
            fds.push(PollFd::new(asked, PollFlags::IN));
        }
        rustix::io::retry_on_intr(|| rustix::event::poll(&mut fds, None))?;
        if fds.get(1).is_some_and(|fd| !fd.revents().is_empty()) {
            was_asked = true;
            match pidfd_send_signal(&pidfd, Signal::TERM) {
                // It has ended, which the next look finds.
                Ok(()) | Err(rustix::io::Errno::SRCH) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        use std::os::fd::AsFd as _;
        if let Some(status) = waitid(WaitId::PidFd(pidfd.as_fd()), options)? {
            let by_signal = status.terminating_signal().map(Exit::Signal);
            let by_itself = status.exit_status().map(Exit::Code);
            if let Some(exit) = by_itself.or(by_signal) {
                return Ok((exit, was_asked));
            }
        }
    }
}
