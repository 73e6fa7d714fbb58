//! The stages of a job, from its start to the end of its last process, each with its deadline.

use rustix::process::Signal;
use tidewater_protocol::limits::{KILL_TIMEOUT, OUTPUT_STALL_MAX};
use tidewater_runtime::clock::Deadline;

use super::config::ProcessCommand;
use super::error::{Exit, Failure, Member};
use super::job::Job;
use super::output::Sink;
use super::process::{Input, Process};

/// The stage of a job. From `Workers` on it is being stopped: each of those stages asks processes
/// to end, waits for the grace period, sends SIGKILL, waits [`KILL_TIMEOUT`], and continues in any
/// case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    /// The coordinator has not reported where it listens.
    Starting,
    /// The processes run and are watched.
    Running,
    /// Workers are asked to end.
    Workers,
    /// Servers are asked to end.
    Servers,
    /// The coordinator is asked to end.
    Coordinator,
    /// The guard kills what is left.
    Guard,
    /// All processes are dead; their output is passed on.
    Output,
    /// The job is over.
    Done,
}

impl Stage {
    fn next(self) -> Self {
        match self {
            Self::Starting => Self::Running,
            Self::Running => Self::Workers,
            Self::Workers => Self::Servers,
            Self::Servers => Self::Coordinator,
            Self::Coordinator => Self::Guard,
            Self::Guard => Self::Output,
            Self::Output | Self::Done => Self::Done,
        }
    }

    /// Whether this stage waits for `member`'s end.
    fn concerns(self, member: Member) -> bool {
        match member {
            Member::Worker(_) => self == Self::Workers,
            Member::Server(_) => self == Self::Servers,
            Member::Coordinator => self == Self::Coordinator,
            Member::Guard => self == Self::Guard,
        }
    }
}

impl Job {
    /// Advances one stage if it is time to. Returns whether it did.
    pub(super) fn step(&mut self) -> bool {
        if self.stage < Stage::Workers && self.timeout.is_some_and(|timeout| timeout.passed()) {
            self.time_out();
            return true;
        }
        if let Some((until, failure)) = self.suspect.take() {
            // A process that was killed closes its connections before its end can be seen. All
            // workers may have noticed that and ended by then.
            if until.passed() || !self.processes.iter().any(may_be_the_cause) {
                self.fail(failure);
                return true;
            }
            self.suspect = Some((until, failure));
        }
        if self.stage < Stage::Workers && self.give_up_on_a_host() {
            return true;
        }
        match self.stage {
            Stage::Starting => self.step_starting(),
            Stage::Running => {
                let over = self.suspect.is_none() && !self.processes.iter().any(is_running_worker);
                if over {
                    self.enter(Stage::Workers, None);
                }
                over
            }
            Stage::Workers | Stage::Servers | Stage::Coordinator | Stage::Guard => {
                self.step_stopping()
            }
            Stage::Output => self.step_output(),
            Stage::Done => false,
        }
    }

    /// Begins a stage and asks its processes to end, workers by `signal`.
    pub(super) fn enter(&mut self, stage: Stage, signal: Option<Signal>) {
        self.stage = stage;
        self.killed = false;
        // After two SIGINTs no stage waits any longer.
        let time = match stage {
            // The guard is quick, and only it can do its work.
            Stage::Guard => KILL_TIMEOUT * 2,
            Stage::Output => OUTPUT_STALL_MAX,
            _ if self.interrupts > 1 => std::time::Duration::ZERO,
            _ => self.config.grace,
        };
        self.deadline = Some(Deadline::after(time));
        if stage == Stage::Guard {
            self.renew_guard();
        }
        for process in self
            .processes
            .iter_mut()
            .filter(|p| stage.concerns(p.member))
        {
            process.ask_to_stop();
            let signal = match process.member {
                Member::Worker(_) => signal,
                Member::Guard => None,
                Member::Server(_) | Member::Coordinator => Some(Signal::TERM),
            };
            if let Some(signal) = signal {
                process.signal(signal);
                // A stopped process does not notice the request.
                process.signal(Signal::CONT);
            }
        }
    }

    /// Forwards a signal of the launcher to the workers; the second SIGINT sends SIGKILL to all.
    pub(super) fn forward(&mut self, signal: Signal, times: usize) {
        if signal == Signal::INT {
            self.interrupts += times;
        }
        let asks_to_end = [Signal::INT, Signal::TERM, Signal::HUP].contains(&signal);
        self.asked_to_end |= asks_to_end;
        if self.stage < Stage::Workers && asks_to_end {
            let nothing_ran = self.stage == Stage::Starting;
            self.enter(Stage::Workers, Some(signal));
            if nothing_ran {
                self.fail(Failure::Interrupted {
                    signal: signal.as_raw(),
                });
            }
        } else if self.stage <= Stage::Workers {
            let workers = self
                .processes
                .iter()
                .filter(|p| matches!(p.member, Member::Worker(_)));
            workers.for_each(|worker| worker.signal(signal));
        } else if self.stage == Stage::Output && asks_to_end {
            self.sinks.iter_mut().for_each(Sink::give_up);
        }
        if self.interrupts > 1 && self.stage < Stage::Guard && !self.killed {
            self.deadline = Some(Deadline::after(std::time::Duration::ZERO));
        }
    }

    /// Whether it is a failure that `member` ended like this, now.
    pub(super) fn is_failure(&self, member: Member, exit: Exit) -> bool {
        let asked = match member {
            Member::Worker(_) => return exit != Exit::Code(0),
            Member::Server(_) => self.stage >= Stage::Servers,
            Member::Coordinator => self.stage >= Stage::Coordinator,
            Member::Guard => self.stage >= Stage::Guard,
        };
        let term = Signal::TERM.as_raw();
        let orderly = [Exit::Code(0), Exit::Code(128 + term), Exit::Signal(term)].contains(&exit);
        !asked || !orderly
    }

    /// Notes that output was written: the reader is alive.
    pub(super) fn output_moved(&mut self) {
        if self.stage == Stage::Output {
            self.deadline = Some(Deadline::after(OUTPUT_STALL_MAX));
        }
    }

    fn step_starting(&mut self) -> bool {
        if let Some(address) = self.spawner.coordinator.take() {
            self.spawner.coordinator = Some(self.far.listens(address));
            self.stage = Stage::Running;
            self.deadline = None;
            self.start_members();
            return true;
        }
        if !self.deadline.is_some_and(|deadline| deadline.passed()) {
            return false;
        }
        let coordinator = self
            .processes
            .iter()
            .find(|p| p.member == Member::Coordinator);
        let said = String::from_utf8_lossy(self.said.trim_ascii())
            .escape_debug()
            .to_string();
        self.fail(Failure::CoordinatorSilent {
            pid: coordinator.map_or(0, Process::pid_raw),
            waited: self.config.start_timeout,
            said: Some(said).filter(|said| !said.is_empty()),
        });
        true
    }

    /// Whether a process on another host has not greeted in time.
    fn give_up_on_a_host(&mut self) -> bool {
        let late = |p: &&Process| p.greets_until().is_some_and(|until| until.passed());
        let Some(process) = self.processes.iter().find(late) else {
            return false;
        };
        let host = process.remote.as_ref().map(|remote| remote.host.clone());
        let failure = Failure::Host {
            member: process.member,
            host: host.unwrap_or_default(),
            shell: self.config.shell.program.to_string_lossy().into_owned(),
            ran: false,
            why: format!(
                "nothing came from there within {:?}",
                self.config.start_timeout
            ),
        };
        self.fail(failure);
        true
    }

    fn start_members(&mut self) {
        let (server, worker) = (self.config.server.clone(), self.config.worker.clone());
        for number in 0..self.config.servers {
            self.launch_if_well(Member::Server(number), &server, Input::Control);
        }
        for rank in 0..self.config.workers {
            let reads = rank == 0 && self.config.forward_stdin;
            let input = if reads {
                Input::Inherited
            } else {
                Input::Nothing
            };
            self.launch_if_well(Member::Worker(rank), &worker, input);
        }
    }

    /// Starts a member; after a failure no more are started.
    fn launch_if_well(&mut self, member: Member, command: &ProcessCommand, input: Input) {
        if self.failure.is_none() {
            self.launch(member, command, input);
        }
    }

    fn step_stopping(&mut self) -> bool {
        let stage = self.stage;
        let alive = |p: &&Process| stage.concerns(p.member) && p.exit.is_none();
        let Some(straggler) = self.processes.iter().find(alive) else {
            self.enter(stage.next(), None);
            return true;
        };
        if !self.deadline.is_some_and(|deadline| deadline.passed()) {
            return false;
        }
        if self.killed {
            let stuck = self.stuck(straggler);
            self.fail(stuck);
            self.enter(stage.next(), None);
            return true;
        }
        let count = self.processes.iter().filter(alive).count();
        if self.interrupts < 2 {
            let (member, grace) = (straggler.member, self.config.grace);
            let others = if count > 1 {
                format!(" and {} more", count - 1)
            } else {
                String::new()
            };
            self.notice(&format!(
                "{member}{others} did not end within {grace:?}: SIGKILL"
            ));
        }
        self.processes
            .iter()
            .filter(alive)
            .for_each(|process| process.signal(Signal::KILL));
        self.killed = true;
        self.deadline = Some(Deadline::after(KILL_TIMEOUT));
        true
    }

    fn step_output(&mut self) -> bool {
        let drained = self.drain();
        if drained && !self.sinks.iter().any(Sink::is_pending) {
            self.stage = Stage::Done;
            return true;
        }
        if self.deadline.is_some_and(|deadline| deadline.passed()) {
            self.sinks.iter_mut().for_each(Sink::give_up);
            return true;
        }
        false
    }

    fn time_out(&mut self) {
        self.timeout = None;
        let waited_for = |p: &&Process| p.exit.is_none() && p.member != Member::Guard;
        let running = self.processes.iter().filter(waited_for).map(|p| p.member);
        let mut running: Vec<Member> = running
            .filter(|member| matches!(member, Member::Worker(_)))
            .collect();
        if running.is_empty() {
            running.push(Member::Coordinator);
        }
        let allowed = self.config.timeout.unwrap_or_default();
        self.fail(Failure::Timeout { allowed, running });
    }
}

fn is_running_worker(process: &Process) -> bool {
    matches!(process.member, Member::Worker(_)) && process.exit.is_none()
}

/// Whether it may have caused the end of the others.
fn may_be_the_cause(process: &Process) -> bool {
    process.member != Member::Guard && process.exit.is_none()
}
