//! Worlds and their tasks: operating system threads that run one at a time.
//!
//! One thread has the turn; the others are parked. At each yield point the running thread lets the world
//! advance, the seeded scheduler picks the next task, and the turn is passed on. A run is therefore a
//! function of the seed alone. The condition: tasks take time from `clock` and randomness from
//! [`super::Rng`], and block on nothing but lanes, parkers and the simulator's queues.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

use super::client_lane::{SimClientLane, SimServerLane};
use super::core::{Core, Failure, ParkerState, Task, TaskId, TaskState};
use super::faults::Faults;
use super::link::{Link, LinkId};
use super::parker::{SimParker, SimWaker};
use crate::fabric::{Inbox, Mailbox};
use tidewater_runtime::clock::{self, Deadline};
use tidewater_runtime::sync::{Arc, AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Real time (60 s) without a yield point after which the task with the turn counts as blocked outside
/// the simulator. The run then fails.
const STUCK_AFTER: Duration = Duration::from_secs(60);
const NOBODY: usize = usize::MAX;

thread_local! {
    /// World id and task number of this thread; `None` outside of simulated tasks.
    static TASK: Cell<Option<(u64, TaskId)>> = const { Cell::new(None) };
}

/// Panic payload that unwinds a task's thread when its world has ended; never reported as a failure.
struct Ended;

/// Handle of a simulated world: its tasks, virtual time, links and adversary (the seeded source of
/// faults). Clones share the world.
#[derive(Debug, Clone)]
pub struct World(pub(super) Arc<Shared>);

#[derive(Debug)]
pub(super) struct Shared {
    id: u64,
    seed: u64,
    base: Instant,
    core: Mutex<Core>,
    turn: AtomicUsize,
    over: AtomicBool,
    ended: Condvar,
    threads: Mutex<Vec<(Thread, Option<JoinHandle<()>>)>>,
}

/// Result of a simulated run: its totals, and its failure if it failed.
#[derive(Debug, Clone)]
#[must_use]
pub struct Outcome {
    /// Seed of the run.
    pub seed: u64,
    /// Hash of all decisions: equal for two runs of one seed.
    pub trace: u64,
    /// Virtual time at the end.
    pub elapsed: Duration,
    /// Number of yield points passed.
    pub steps: u64,
    /// Times another task got the turn.
    pub switches: u64,
    /// Sleeps that ended by their deadline, not by a signal: lost wake-ups show up here.
    pub timeouts: u64,
    /// Lanes that the adversary broke.
    pub breaks: u64,
    /// Reason why the run failed; `None` after success.
    pub failure: Option<Failure>,
}

/// Description of a simulated lane, for [`World::connect`]: names, memory and wakers of its two ends.
#[derive(Debug)]
pub struct LinkSpec<'a> {
    /// The client, as the server's messages name it.
    pub client: &'a str,
    /// The server, as the client's messages name it.
    pub server: &'a str,
    /// Registered regions that the client may read or count in.
    pub exports: &'a Arc<crate::fabric::RegionTable>,
    /// Memory that the client writes.
    pub inbox: Inbox,
    /// Memory that the server writes.
    pub mailbox: Mailbox,
    /// Woken by the server lane's `signal`, by finished batches and by a break.
    pub client_waker: SimWaker,
    /// Woken by the client lane's `write_signal` and by a break.
    pub owner_waker: SimWaker,
    /// WRITEs are placed one after the other, for any value of [`Faults::reorder_writes`].
    pub in_order: bool,
}

impl World {
    /// Creates a world without tasks at virtual time 0. The run is a function of `seed`, `faults` and the
    /// tasks.
    pub fn new(seed: u64, faults: Faults) -> Self {
        static WORLDS: AtomicU64 = AtomicU64::new(1);
        Self(Arc::new(Shared {
            id: WORLDS.fetch_add(1, Ordering::Relaxed),
            seed,
            base: clock::now(),
            core: Mutex::new(Core::new(seed, faults)),
            turn: AtomicUsize::new(NOBODY),
            over: AtomicBool::new(false),
            ended: Condvar::new(),
            threads: Mutex::new(Vec::new()),
        }))
    }

    /// Sets the number of yield points after which the run fails with [`Failure::Steps`] (default 20
    /// million).
    pub fn limit_steps(&self, steps: u64) {
        self.0.lock().steps_max = steps;
    }

    /// Replaces the faults that the adversary may inject from now on, for example for a calm end of a
    /// rough run.
    pub fn set_faults(&self, faults: Faults) {
        self.0.lock().faults = faults;
    }

    /// Adds a task, on a thread of its own, which runs only when the simulator gives it the turn. The
    /// world ends when all tasks but services (see `Self::spawn_service`) have returned. Tasks may spawn
    /// tasks.
    pub fn spawn(&self, name: &str, task: impl FnOnce() + Send + 'static) {
        self.start(name, false, Box::new(task));
    }

    /// Adds a task that the world does not wait for (a service), such as a server's loop. When only
    /// services are left, the world ends. Each service is then unwound at its next yield point.
    pub fn spawn_service(&self, name: &str, task: impl FnOnce() + Send + 'static) {
        self.start(name, true, Box::new(task));
    }

    /// Creates a simulated parker, in which one task sleeps. Links that must wake the task get its waker.
    pub fn parker(&self) -> SimParker {
        let mut core = self.0.lock();
        core.parkers.push(ParkerState::default());
        let id = core.parkers.len() - 1;
        drop(core);
        SimParker::new(self.clone(), id)
    }

    /// Creates a simulated lane as `spec` describes and returns its client end and its server end. May be
    /// called before [`Self::run`] or from a task.
    pub fn connect(&self, spec: LinkSpec<'_>) -> (SimClientLane, SimServerLane) {
        let (client, server) = (spec.client.to_owned(), spec.server.to_owned());
        let mailbox = spec.mailbox.clone();
        let mut core = self.0.lock();
        core.links.push(Link::new(spec));
        let id = LinkId(core.links.len() - 1);
        drop(core);
        let lane = SimClientLane::new(self.clone(), id, server, mailbox);
        (lane, SimServerLane::new(self.clone(), id, client))
    }

    /// Breaks a link now, as the adversary would: each end learns of it some virtual time later. Does
    /// nothing if it is broken already.
    pub fn cut(&self, link: LinkId) {
        self.0.lock().break_link(link, "the test cut it");
    }

    /// Returns a random generator for the tests' own choices, seeded by the next number of the world's
    /// generator.
    pub fn rng(&self) -> super::Rng {
        self.0.lock().rng.fork()
    }

    /// Passes a yield point, where other tasks may run. For code that calls no lane, such as a writer in
    /// the middle of a row.
    pub fn step(&self) {
        self.0.step();
    }

    /// Blocks the running task for `time` of virtual time; other tasks run meanwhile.
    pub fn pause(&self, time: Duration) {
        let core = self.0.enter();
        let until = core.now + time.as_nanos() as u64;
        drop(self.0.wait(core, until));
    }

    /// Runs the tasks until all but services have returned, and returns the outcome. A task's panic, a
    /// deadlock, too many steps or a stuck task ends the run early and becomes `Outcome::failure`. Blocks
    /// the calling thread, which must not be a task.
    pub fn run(&self) -> Outcome {
        let shared = &*self.0;
        let mut core = shared.lock();
        shared.hand_on(&mut core, None);
        let mut seen = (core.steps, clock::now());
        while !shared.over.load(Ordering::Acquire) {
            let waited = shared.ended.wait_timeout(core, Duration::from_secs(1));
            core = waited.map_or_else(|poisoned| poisoned.into_inner().0, |(core, _)| core);
            if core.steps != seen.0 {
                seen = (core.steps, clock::now());
            } else if seen.1.elapsed() > STUCK_AFTER {
                let turn = shared.turn.load(Ordering::Acquire);
                let task = core.tasks.get(turn).map_or("?", |t| &t.name).to_owned();
                core.failure = Some(Failure::Stuck { task });
                shared.end(&core);
                // Its thread cannot be joined: it may never return.
                return shared.outcome(&core);
            }
        }
        drop(core);
        shared.join();
        shared.outcome(&shared.lock())
    }

    fn start(&self, name: &str, service: bool, task: Box<dyn FnOnce() + Send>) {
        let mut core = self.0.lock();
        let id = core.tasks.len();
        core.tasks.push(Task {
            name: name.to_owned(),
            state: TaskState::Ready,
            service,
        });
        let world = self.clone();
        let body = move || world.0.task(id, task);
        let spawned = thread::Builder::new().name(name.to_owned()).spawn(body);
        match spawned {
            Ok(handle) => {
                let mut threads = lock(&self.0.threads);
                threads.push((handle.thread().clone(), Some(handle)));
            }
            Err(e) => {
                let message = format!("no thread for it: {e}");
                self.0.fail(&mut core, id, message);
            }
        }
    }
}

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, Core> {
        lock(&self.core)
    }

    fn me(&self) -> Option<TaskId> {
        TASK.get().filter(|t| t.0 == self.id).map(|t| t.1)
    }

    pub(super) fn current(&self) -> Option<TaskId> {
        self.me()
    }

    pub(super) fn nanos(&self, at: Deadline) -> u64 {
        let since = at.instant().saturating_duration_since(self.base).as_nanos();
        u64::try_from(since).unwrap_or(u64::MAX)
    }

    /// Locks and returns the world's state. First advances virtual time by what the running task has
    /// spent in reads of the virtual clock.
    pub(super) fn enter(&self) -> MutexGuard<'_, Core> {
        let mut core = self.lock();
        if let (Some(_), Some(at)) = (self.me(), clock::virtual_now()) {
            core.now = core.now.max(self.nanos(Deadline::at(at)));
        }
        core
    }

    fn leave(&self, core: &Core) {
        clock::set_virtual(Some(self.base + Duration::from_nanos(core.now)));
    }

    /// Passes a yield point of the running task: virtual time passes, events take place, the task may
    /// stall, and perhaps another task runs. Unwinds the task if the world has ended.
    pub(super) fn step(&self) {
        let mut core = self.enter();
        core.advance();
        let Some(me) = self.me() else { return };
        if thread::panicking() {
            return self.leave(&core);
        }
        let p = core.faults.stall_per_step;
        if core.rng.chance(p) {
            let longest = core.faults.stall_max.as_nanos() as u64;
            let until = core.now + core.rng.below(longest);
            core.tasks[me].state = TaskState::Waiting {
                until,
                stalled: true,
            };
        }
        drop(self.switch(core, me));
    }

    /// Blocks the running task until it is woken or virtual time reaches `until` (nanoseconds); other
    /// tasks run meanwhile. Releases and retakes the lock `core`. On a thread that is no task, virtual
    /// time skips to the next event instead.
    pub(super) fn wait<'a>(
        &'a self,
        mut core: MutexGuard<'a, Core>,
        until: u64,
    ) -> MutexGuard<'a, Core> {
        let Some(me) = self.me() else {
            core.skip(until);
            return core;
        };
        core.steps += 1;
        if thread::panicking() {
            core.skip(until);
            self.leave(&core);
            return core;
        }
        core.tasks[me].state = TaskState::Waiting {
            until,
            stalled: false,
        };
        self.switch(core, me)
    }

    fn switch<'a>(&'a self, mut core: MutexGuard<'a, Core>, me: TaskId) -> MutexGuard<'a, Core> {
        if self.over.load(Ordering::Acquire) {
            drop(core);
            resume_unwind(Box::new(Ended));
        }
        if self.hand_on(&mut core, Some(me)) != Some(me) {
            drop(core);
            self.await_turn(me);
            core = self.lock();
        }
        self.leave(&core);
        core
    }

    /// Picks the task that runs next, passes the turn to it, and returns it; `running` is the task that
    /// has the turn, if any. Ends the world and returns `None` when all tasks but services have ended, at
    /// a deadlock, or at the limit of steps.
    fn hand_on(&self, core: &mut Core, running: Option<TaskId>) -> Option<TaskId> {
        let next = if core.finished() {
            None
        } else {
            core.pick(running)
        };
        match next {
            Some(id) if next == running => Some(id),
            Some(id) => {
                core.switches += 1;
                // SYNC: turn. Pairs with the Acquire load in `await_turn`.
                self.turn.store(id, Ordering::Release);
                if let Some((thread, _)) = lock(&self.threads).get(id) {
                    thread.unpark();
                }
                next
            }
            None => {
                self.end(core);
                None
            }
        }
    }

    fn await_turn(&self, me: TaskId) {
        // SYNC: turn. Pairs with the Release store in `hand_on`.
        while self.turn.load(Ordering::Acquire) != me {
            if self.over.load(Ordering::Acquire) {
                resume_unwind(Box::new(Ended));
            }
            thread::park();
        }
    }

    fn end(&self, _core: &Core) {
        self.over.store(true, Ordering::Release);
        self.turn.store(NOBODY, Ordering::Release);
        for (thread, _) in &*lock(&self.threads) {
            thread.unpark();
        }
        self.ended.notify_all();
    }

    fn fail(&self, core: &mut Core, task: TaskId, message: String) {
        let (task, at_us) = (core.tasks[task].name.clone(), core.now / 1_000);
        core.failure.get_or_insert(Failure::Panic {
            task,
            message,
            at_us,
        });
        self.end(core);
    }

    fn task(&self, id: TaskId, body: Box<dyn FnOnce() + Send>) {
        TASK.set(Some((self.id, id)));
        let done = catch_unwind(AssertUnwindSafe(|| {
            self.await_turn(id);
            self.leave(&self.lock());
            body();
        }));
        let mut core = self.enter();
        core.tasks[id].state = TaskState::Done;
        match done {
            Err(why) if !why.is::<Ended>() => self.fail(&mut core, id, words_of(&*why)),
            _ if self.over.load(Ordering::Acquire) => (),
            _ => {
                self.hand_on(&mut core, None);
            }
        }
        drop(core);
        clock::set_virtual(None);
    }

    fn join(&self) {
        loop {
            let handles: Vec<_> = lock(&self.threads)
                .iter_mut()
                .filter_map(|(_, handle)| handle.take())
                .collect();
            if handles.is_empty() {
                return;
            }
            for handle in handles {
                // The task's own panic was caught and is in `failure`.
                let _ = handle.join();
            }
        }
    }

    fn outcome(&self, core: &Core) -> Outcome {
        Outcome {
            seed: self.seed,
            trace: core.trace,
            elapsed: Duration::from_nanos(core.now),
            steps: core.steps,
            switches: core.switches,
            timeouts: core.timeouts,
            breaks: core.breaks,
            failure: core.failure.clone(),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    match mutex.lock() {
        Ok(guard) => guard,
        Err(poisoned) => poisoned.into_inner(),
    }
}

fn words_of(why: &(dyn Any + Send)) -> String {
    let text = why.downcast_ref::<String>().cloned();
    text.or_else(|| why.downcast_ref::<&str>().map(|s| (*s).to_owned()))
        .unwrap_or_else(|| "a panic without words".to_owned())
}
