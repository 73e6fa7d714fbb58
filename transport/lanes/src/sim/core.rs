//! The state of a world, under one lock: time, tasks, events, parkers, links. All of it is deterministic;
//! none of it depends on operating system threads.

use std::collections::BTreeMap;

use super::faults::Faults;
use super::link::{Event, Link};
use super::rng::Rng;
use tidewater_protocol::layout::hash::mix64;

/// Bound of the virtual time, in nanoseconds, that passes at random at each yield point.
const STEP_NS_MAX: u64 = 200;
/// Virtual time in nanoseconds (24 h) beyond which a wait counts as endless. If all tasks wait that long
/// and no event is scheduled, the run fails as a deadlock.
const HORIZON_NS: u64 = 24 * 3600 * 1_000_000_000;

pub(super) type TaskId = usize;
pub(super) type ParkerId = usize;

/// Reason why a simulated run failed: a panic, a deadlock, too many steps, or a task that blocks outside
/// the simulator.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// A task of the world panicked.
    #[error("task {task:?} panicked at {at_us} us: {message}")]
    Panic {
        /// Name of the task.
        task: String,
        /// Message of the panic.
        message: String,
        /// Virtual time of the panic, in microseconds.
        at_us: u64,
    },
    /// No task can run: all sleep, nothing is in flight, no deadline is near.
    #[error("deadlock: {} sleep and nothing will wake them", tasks.join(", "))]
    Deadlock {
        /// Names of the sleeping tasks.
        tasks: Vec<String>,
    },
    /// More steps than allowed: a livelock, or too long a test.
    #[error("no end after {steps} steps; alive: {}", tasks.join(", "))]
    Steps {
        /// Limit of steps of the run.
        steps: u64,
        /// Names of the tasks that have not ended.
        tasks: Vec<String>,
    },
    /// A task kept its turn for a minute of real time: it blocks outside the simulator.
    #[error(
        "task {task:?} does not give its turn back: it spins or blocks on something that is not \
         the simulator's"
    )]
    Stuck {
        /// Name of the task.
        task: String,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TaskState {
    Ready,
    Waiting { until: u64, stalled: bool },
    Done,
}

#[derive(Debug)]
pub(super) struct Task {
    pub(super) name: String,
    pub(super) state: TaskState,
    /// Whether the world may end before the task.
    pub(super) service: bool,
}

#[derive(Debug, Default)]
pub(super) struct ParkerState {
    pub(super) announced: bool,
    pub(super) rung: bool,
    pub(super) sleeping: Option<TaskId>,
}

#[derive(Debug)]
pub(super) struct Core {
    pub(super) now: u64,
    pub(super) rng: Rng,
    pub(super) faults: Faults,
    pub(super) trace: u64,
    pub(super) steps: u64,
    pub(super) steps_max: u64,
    pub(super) switches: u64,
    pub(super) timeouts: u64,
    pub(super) breaks: u64,
    pub(super) tasks: Vec<Task>,
    pub(super) parkers: Vec<ParkerState>,
    pub(super) links: Vec<Link>,
    pub(super) failure: Option<Failure>,
    events: BTreeMap<(u64, u64), Event>,
    events_made: u64,
}

impl Core {
    pub(super) fn new(seed: u64, faults: Faults) -> Self {
        Self {
            now: 0,
            rng: Rng::new(seed),
            faults,
            trace: mix64(seed),
            steps: 0,
            steps_max: 20_000_000,
            switches: 0,
            timeouts: 0,
            breaks: 0,
            tasks: Vec::new(),
            parkers: Vec::new(),
            links: Vec::new(),
            failure: None,
            events: BTreeMap::new(),
            events_made: 0,
        }
    }

    /// Mixes a decision of the simulator (`what`, its kind, and a number) into the trace hash, by which
    /// two runs are compared. Memory contents stay out of it: nonces may come from the system.
    pub(super) fn note(&mut self, what: u64, number: u64) {
        self.trace = mix64(self.trace ^ mix64(what.wrapping_mul(0x1_0000_0001) ^ number));
    }

    pub(super) fn schedule(&mut self, after_ns: u64, event: Event) {
        self.events_made += 1;
        self.events
            .insert((self.now + after_ns, self.events_made), event);
    }

    /// Draws the delay of a packet in virtual nanoseconds. It is the fixed one-way distance, if one is
    /// set. Otherwise it is random: up to the longest delay in one of eight draws, else up to a sixteenth
    /// of that.
    pub(super) fn delay(&mut self) -> u64 {
        if let Some(distance) = self.faults.distance {
            return distance.one_way.as_nanos() as u64;
        }
        let longest = self.faults.delay_max_us * 1_000;
        let longest = if self.rng.below(8) == 0 {
            longest
        } else {
            longest / 16
        };
        1 + self.rng.below(longest)
    }

    pub(super) fn wake(&mut self, task: TaskId) {
        let state = &mut self.tasks[task].state;
        if matches!(state, TaskState::Waiting { stalled: false, .. }) {
            *state = TaskState::Ready;
        }
    }

    /// Fires the waker of a simulated parker: the task that sleeps in it becomes ready, or its next sleep
    /// ends at once. It has an effect only between the parker's `prepare_park` and `cancel_park`.
    pub(super) fn wake_parker(&mut self, parker: ParkerId) {
        self.note(3, parker as u64);
        let s = &mut self.parkers[parker];
        if s.announced {
            s.rung = true;
            if let Some(task) = s.sleeping {
                self.wake(task);
            }
        }
    }

    /// Counts one yield point: virtual time passes by up to [`STEP_NS_MAX`] (200 ns), and the events that
    /// are then due take place.
    pub(super) fn advance(&mut self) {
        self.steps += 1;
        self.now += 1 + self.rng.below(STEP_NS_MAX);
        self.deliver();
    }

    fn deliver(&mut self) {
        while let Some(entry) = self.events.first_entry() {
            if entry.key().0 > self.now {
                break;
            }
            let event = entry.remove();
            self.note(1, self.now);
            self.fire(event);
        }
    }

    /// Lets virtual time pass to the next event, at most to `until` (nanoseconds), and processes the
    /// events that are due. Called when no task is ready to run.
    pub(super) fn skip(&mut self, until: u64) {
        let next = self.events.first_key_value().map_or(u64::MAX, |(k, _)| k.0);
        self.now = self.now.max(next.min(until));
        self.deliver();
    }

    fn expire(&mut self) {
        for task in &mut self.tasks {
            if let TaskState::Waiting { until, .. } = task.state
                && until <= self.now
            {
                task.state = TaskState::Ready;
            }
        }
    }

    /// Picks the task that runs next, at random among those that are ready; `running` is the one that
    /// runs now. Lets virtual time pass while none is ready. Returns `None` at a deadlock or the limit of
    /// steps, and stores the reason in `failure`.
    pub(super) fn pick(&mut self, running: Option<TaskId>) -> Option<TaskId> {
        loop {
            self.expire();
            if self.steps >= self.steps_max {
                let (steps, tasks) = (self.steps_max, self.alive());
                self.failure.get_or_insert(Failure::Steps { steps, tasks });
                return None;
            }
            let ready = |t: &Task| t.state == TaskState::Ready;
            let count = self.tasks.iter().filter(|t| ready(t)).count() as u64;
            if count > 0 {
                // Half of the time the running task goes on: cheap, and as likely as any schedule.
                let stays = running.filter(|r| ready(&self.tasks[*r]));
                if let (Some(task), true) = (stays, self.rng.below(2) == 0) {
                    return Some(task);
                }
                let nth = self.rng.below(count) as usize;
                let mut all = self.tasks.iter().enumerate().filter(|(_, t)| ready(t));
                let chosen = all.nth(nth).map(|(id, _)| id);
                self.note(2, nth as u64);
                return chosen;
            }
            let wakes = self.tasks.iter().filter_map(|t| match t.state {
                TaskState::Waiting { until, .. } => Some(until),
                _ => None,
            });
            let until = wakes.min().unwrap_or(u64::MAX);
            if self.events.is_empty() && until > self.now.saturating_add(HORIZON_NS) {
                let tasks = self.alive();
                self.failure.get_or_insert(Failure::Deadlock { tasks });
                return None;
            }
            self.skip(until);
        }
    }

    fn alive(&self) -> Vec<String> {
        let alive = self.tasks.iter().filter(|t| t.state != TaskState::Done);
        alive.map(|t| t.name.clone()).collect()
    }

    /// Returns whether all tasks but services (tasks that the world does not wait for) have ended, so
    /// that the world may end.
    pub(super) fn finished(&self) -> bool {
        self.tasks
            .iter()
            .all(|t| t.service || t.state == TaskState::Done)
    }
}
