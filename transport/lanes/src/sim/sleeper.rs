//! Sleeping in virtual time.

use std::time::Duration;

use super::core::SleeperId;
use super::world::World;
use crate::fabric::Sleeper;
use tidewater_runtime::clock::Deadline;

/// The simulated [`Sleeper`]. A ring is heard only between `announce` and `retract`, and the task
/// wakes only by a ring, at its deadline, or (if the faults say so) for no reason: a wake-up that
/// the protocol above loses shows up as an overrun deadline, counted in `Outcome::timeouts`.
#[derive(Debug)]
pub struct SimSleeper {
    world: World,
    id: SleeperId,
}

impl SimSleeper {
    pub(super) const fn new(world: World, id: SleeperId) -> Self {
        Self { world, id }
    }

    pub(super) const fn id(&self) -> SleeperId {
        self.id
    }

    /// A handle that rings it: for links, and for control code that has no lane.
    pub fn bell(&self) -> SimBell {
        SimBell {
            world: self.world.clone(),
            id: self.id,
        }
    }
}

impl Sleeper for SimSleeper {
    fn announce(&mut self) {
        let shared = &self.world.0;
        shared.step();
        let mut core = shared.lock();
        let s = &mut core.sleepers[self.id];
        // Rings of an earlier sleep are gone: nobody may count on them.
        (s.announced, s.rung) = (true, false);
        drop(core);
        shared.step();
    }

    fn sleep(&mut self, deadline: Deadline) {
        let shared = &self.world.0;
        shared.step();
        let mut core = shared.enter();
        let until = shared.nanos(deadline);
        let p = core.faults.spurious_wake;
        if core.sleepers[self.id].rung || until <= core.now || core.rng.chance(p) {
            core.sleepers[self.id].rung = false;
            return;
        }
        core.sleepers[self.id].sleeping = shared.current();
        core = shared.wait(core, until);
        let s = &mut core.sleepers[self.id];
        s.sleeping = None;
        if !std::mem::take(&mut s.rung) {
            core.timeouts += 1;
        }
    }

    fn retract(&mut self) {
        let shared = &self.world.0;
        shared.lock().sleepers[self.id].announced = false;
        shared.step();
    }

    /// Virtual time passes only at yield points; a long spin would only cost steps.
    fn spin(&self) -> Duration {
        Duration::from_micros(1)
    }
}

/// Rings a [`SimSleeper`].
#[derive(Debug, Clone)]
pub struct SimBell {
    world: World,
    id: SleeperId,
}

impl SimBell {
    pub(super) const fn id(&self) -> SleeperId {
        self.id
    }

    /// Wakes the sleeper if it sleeps or is about to.
    pub fn ring(&self) {
        self.world.0.step();
        self.world.0.lock().ring(self.id);
    }
}
