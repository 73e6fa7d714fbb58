//! A control connection in miniature: an ordered, reliable, slow queue between tasks.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard};

use super::core::{SleeperId, TaskId};
use super::link::Event;
use super::parker::SimParker;
use super::world::World;
use tidewater_runtime::clock::Deadline;
use tidewater_runtime::sync::Arc;

/// Sends values to one receiving task, in order, with delays. Clones share it. This is what stands
/// in for the control connection (attach, RECOVER) in tests of the whole.
#[derive(Debug)]
pub struct SimQueue<T> {
    world: World,
    state: Arc<Mutex<State<T>>>,
}

#[derive(Debug)]
struct State<T> {
    /// When each arrives, and what it is.
    items: VecDeque<(u64, T)>,
    receiver: Option<TaskId>,
    /// Rung when something arrives.
    parker: Option<SleeperId>,
}

impl<T> Clone for SimQueue<T> {
    fn clone(&self) -> Self {
        Self {
            world: self.world.clone(),
            state: Arc::clone(&self.state),
        }
    }
}

impl<T> SimQueue<T> {
    /// An empty queue.
    pub fn new(world: &World) -> Self {
        let state = State {
            items: VecDeque::new(),
            receiver: None,
            parker: None,
        };
        Self {
            world: world.clone(),
            state: Arc::new(Mutex::new(state)),
        }
    }

    /// Whose receiver sleeps in `parker` when it has nothing to do, and looks with
    /// [`SimQueue::try_recv`].
    #[must_use]
    pub fn waking(self, parker: &SimParker) -> Self {
        self.state().parker = Some(parker.id());
        self
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        match self.state.lock() {
            Ok(guard) => guard,
            Err(poisoned) => poisoned.into_inner(),
        }
    }

    /// Sends; never blocks.
    pub fn send(&self, value: T) {
        self.world.0.step();
        let mut core = self.world.0.lock();
        let mut state = self.state();
        let due = core.now + core.delay();
        let due = state.items.back().map_or(due, |last| due.max(last.0));
        state.items.push_back((due, value));
        if let Some(task) = state.receiver {
            core.wake(task);
        }
        if let Some(parker) = state.parker {
            let after = due - core.now;
            core.schedule(after, Event::Ring(parker));
        }
    }

    /// What has arrived, if anything; never blocks.
    pub fn try_recv(&self) -> Option<T> {
        self.world.0.step();
        let now = self.world.0.enter().now;
        let mut state = self.state();
        let due = state.items.front().is_some_and(|item| item.0 <= now);
        due.then(|| state.items.pop_front()).flatten().map(|i| i.1)
    }

    /// The next value; `None` at the deadline.
    pub fn recv(&self, deadline: Deadline) -> Option<T> {
        let shared = &self.world.0;
        let until = shared.nanos(deadline);
        loop {
            if let Some(value) = self.try_recv() {
                self.state().receiver = None;
                return Some(value);
            }
            let core = shared.enter();
            if core.now >= until {
                self.state().receiver = None;
                return None;
            }
            let mut state = self.state();
            state.receiver = shared.current();
            let next = state.items.front().map_or(until, |item| item.0.min(until));
            drop(state);
            drop(shared.wait(core, next));
        }
    }
}
