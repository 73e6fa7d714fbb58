//! Sleeping in virtual time.

use std::time::Duration;

use super::core::ParkerId;
use super::world::World;
use crate::fabric::Parker;
use tidewater_runtime::clock::Deadline;

/// The simulated [`Parker`], in which a task sleeps in virtual time. A wake-up has an effect only between
/// `prepare_park` and `cancel_park`. The task wakes only by a waker, at its deadline, or (if the faults
/// say so) spuriously. A lost wake-up therefore shows up as an overrun deadline, counted in
/// `Outcome::timeouts`.
#[derive(Debug)]
pub struct SimParker {
    world: World,
    id: ParkerId,
}

impl SimParker {
    pub(super) const fn new(world: World, id: ParkerId) -> Self {
        Self { world, id }
    }

    pub(super) const fn id(&self) -> ParkerId {
        self.id
    }

    /// Returns a handle that wakes this parker. Links get it, and control code that has no lane.
    pub fn waker(&self) -> SimWaker {
        SimWaker {
            world: self.world.clone(),
            id: self.id,
        }
    }
}

impl Parker for SimParker {
    fn prepare_park(&mut self) {
        let shared = &self.world.0;
        shared.step();
        let mut core = shared.lock();
        let s = &mut core.parkers[self.id];
        // Wake-ups of an earlier sleep are gone: no code may count on them.
        (s.announced, s.rung) = (true, false);
        drop(core);
        shared.step();
    }

    fn park_until(&mut self, deadline: Deadline) {
        let shared = &self.world.0;
        shared.step();
        let mut core = shared.enter();
        let until = shared.nanos(deadline);
        let p = core.faults.spurious_wake;
        if core.parkers[self.id].rung || until <= core.now || core.rng.chance(p) {
            core.parkers[self.id].rung = false;
            return;
        }
        core.parkers[self.id].sleeping = shared.current();
        core = shared.wait(core, until);
        let s = &mut core.parkers[self.id];
        s.sleeping = None;
        if !std::mem::take(&mut s.rung) {
            core.timeouts += 1;
        }
    }

    fn cancel_park(&mut self) {
        let shared = &self.world.0;
        shared.lock().parkers[self.id].announced = false;
        shared.step();
    }

    /// Returns 1 us of virtual time as the time to poll before a sleep: time passes only at yield points,
    /// so a long spin would only cost steps.
    fn spin(&self) -> Duration {
        Duration::from_micros(1)
    }
}

/// Handle that wakes one [`SimParker`]. Clones wake the same parker.
#[derive(Debug, Clone)]
pub struct SimWaker {
    world: World,
    id: ParkerId,
}

impl SimWaker {
    pub(super) const fn id(&self) -> ParkerId {
        self.id
    }

    /// Wakes the parker if it sleeps or is about to; otherwise has no effect. A yield point.
    pub fn wake(&self) {
        self.world.0.step();
        self.world.0.lock().wake_parker(self.id);
    }
}
