//! A model of a control connection: an ordered, reliable, slow queue between tasks.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard};

use super::core::{ParkerId, TaskId};
use super::link::Event;
use super::parker::SimParker;
use super::world::World;
use tidewater_runtime::clock::Deadline;
use tidewater_runtime::sync::Arc;

/// Simulated queue to one receiving task: ordered, reliable, with delays in virtual time. Clones are
/// handles of the same queue, for its senders and its receiver. It stands in for the control connection
/// (attach, RECOVER) in end-to-end tests.
#[derive(Debug)]
pub struct SimQueue<T> {
    world: World,
    state: Arc<Mutex<State<T>>>,
}

#[derive(Debug)]
struct State<T> {
    /// Arrival time (virtual nanoseconds) and value of each item.
    items: VecDeque<(u64, T)>,
    receiver: Option<TaskId>,
    /// Parker that an arrival wakes.
    parker: Option<ParkerId>,
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
    /// Creates an empty queue between tasks of `world`; its senders and its receiver use clones.
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

    /// Sets the parker that an arriving value wakes: the one in which the receiving task sleeps when
    /// idle. The task then polls with [`SimQueue::try_recv`]. Without a parker the task blocks in
    /// `SimQueue::recv`.
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

    /// Sends a value, which arrives after a random delay in virtual time, behind the values sent before.
    /// Never blocks. A yield point.
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
            core.schedule(after, Event::Wake(parker));
        }
    }

    /// Removes and returns the next value if it has arrived by now in virtual time, else `None`. Never
    /// blocks. A yield point.
    pub fn try_recv(&self) -> Option<T> {
        self.world.0.step();
        let now = self.world.0.enter().now;
        let mut state = self.state();
        let due = state.items.front().is_some_and(|item| item.0 <= now);
        due.then(|| state.items.pop_front()).flatten().map(|i| i.1)
    }

    /// Blocks the task until the next value arrives, and returns it; `None` at the deadline.
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
