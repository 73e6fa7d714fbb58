//! The one loop in which threads wait: spin a little, then sleep until woken.
//!
//! No wake-up is lost: the loop sleeps only after it has announced so and has then polled and found
//! nothing. That second poll finds all data that became visible before the announcement. A producer that
//! publishes data after it finds the announcement and wakes the thread (see `parked_flag`). The waker keeps
//! an early wake-up, so that the sleep ends at once.
//!
//! The loop ends: the spin stops at the deadline, the sleep is bounded by it, and the last poll comes after
//! it. Data that arrived in time is therefore not reported as missing.
//!
//! A thread that never sleeps ([`Parker::sleeps`]) spins until the deadline and announces nothing, so that
//! no producer makes a system call for it.

use std::time::Duration;

use crate::clock::{self, Deadline};
use crate::delays;
use crate::sync::spin_hint;
use crate::yield_backoff::YieldBackoff;
use tidewater_protocol::mutants::{self, Mutant};

/// Default time that a waiting thread polls before it sleeps: 20 us. It is longer than a round trip over
/// shared memory, and shorter than a time slice that another thread could use.
pub const SPIN: Duration = Duration::from_micros(20);

/// Parks an idle thread and lets producers unpark it. Producers are the threads and processes that store
/// data for it; each then loads the parked flag that this thread has in their memory, and wakes the
/// thread if it is set. The order of calls is: `prepare_park`, poll once more, `park_until` (or not),
/// `cancel_park`; see [`wait_until`].
pub trait Parker: Send {
    /// Sets the parked flags of this thread, and fences: from now on every producer that stores data
    /// must wake it. The caller polls once more before it parks.
    fn prepare_park(&mut self);

    /// Blocks this thread until a producer wakes it or the deadline passes. May return early (a spurious
    /// wake-up), so the caller polls again. A wake-up since `prepare_park` ends it at once.
    fn park_until(&mut self, deadline: Deadline);

    /// Clears the parked flags of this thread: producers no longer need to wake it.
    fn cancel_park(&mut self);

    /// Returns the time that a wait polls before it sleeps; zero for a wait that sleeps after one poll.
    fn spin(&self) -> Duration {
        SPIN
    }

    /// Returns whether the thread sleeps at all. If false, it sets no parked flag and is never woken:
    /// each wait polls until the deadline, and uses a core for that.
    fn sleeps(&self) -> bool {
        true
    }

    /// Returns the backoff that sets how often a spin yields the core. The parker keeps it across waits.
    /// `None` if it keeps none: each wait then starts from the initial rate.
    fn yield_backoff(&mut self) -> Option<&mut YieldBackoff> {
        None
    }
}

/// Blocks until `look` returns a value or an error. Returns `None` when the deadline passes first;
/// `look` is called once more after that, and a value that it then finds is returned.
///
/// `look` polls the thread's lanes and never blocks. Every polled source must be able to wake `parker`:
/// its parked flags lie where the producers load them, its sockets are in its reactor.
///
/// Cost: only the first poll when data is already there. Otherwise a spin of [`Parker::spin`], in which
/// the thread yields its core now and then (see [`YieldBackoff`]), then one system call per sleep. A
/// thread that never sleeps reads the clock for each poll.
///
/// # Errors
/// Those of `look`, which ends the wait.
pub fn wait_until<T, E>(
    parker: &mut dyn Parker,
    deadline: Deadline,
    mut look: impl FnMut() -> Result<Option<T>, E>,
) -> Result<Option<T>, E> {
    loop {
        if let Some(found) = spin(parker, deadline, &mut look)? {
            return Ok(Some(found));
        }
        if !parker.sleeps() {
            // The spin went on until the deadline.
            return look();
        }
        delays::widen_window();
        parker.prepare_park();
        let second = if mutants::on(Mutant::SleepWithoutSecondLook) {
            Ok(None)
        } else {
            look()
        };
        let over = deadline.passed();
        if !matches!(second, Ok(None)) || over {
            parker.cancel_park();
            return second;
        }
        parker.park_until(deadline);
        parker.cancel_park();
    }
}

/// Busy-polls `look`: once at least, then for the parker's spin time, or until the deadline if the parker
/// never sleeps. Returns `None` if no poll returned a value in that time.
fn spin<T, E>(
    parker: &mut dyn Parker,
    deadline: Deadline,
    look: &mut impl FnMut() -> Result<Option<T>, E>,
) -> Result<Option<T>, E> {
    // The clock is not read when the first poll succeeds.
    if let Some(found) = look()? {
        return Ok(Some(found));
    }
    let until = match (parker.sleeps(), parker.spin()) {
        (false, _) => deadline,
        (true, Duration::ZERO) => return Ok(None),
        (true, spin) => deadline.min(Deadline::at(clock::now() + spin)),
    };
    let mut forgotten = YieldBackoff::default();
    let yield_backoff = parker.yield_backoff().unwrap_or(&mut forgotten);
    let (mut looks, mut made) = (0, 0);
    while !until.passed() {
        looks += 1;
        if looks >= yield_backoff.every {
            looks = 0;
            yield_backoff.make();
            made += 1;
        } else {
            spin_hint();
        }
        if let Some(found) = look()? {
            return Ok(Some(found));
        }
    }
    yield_backoff.in_vain(made);
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::{Arc, AtomicBool, Ordering};

    /// Fake parker that records the calls of the wait loop. With `late`, a producer stores its data just
    /// before it could see the parked flag, and so does not wake.
    #[derive(Default)]
    struct Script {
        calls: Vec<&'static str>,
        late: Option<Arc<AtomicBool>>,
        yield_backoff: YieldBackoff,
        spin: Option<Duration>,
        never_sleeps: bool,
    }

    impl Parker for Script {
        fn prepare_park(&mut self) {
            self.calls.push("announce");
            if let Some(data) = &self.late {
                data.store(true, Ordering::Release);
            }
        }

        fn park_until(&mut self, deadline: Deadline) {
            self.calls.push("sleep");
            std::thread::sleep(deadline.left());
        }

        fn cancel_park(&mut self) {
            self.calls.push("retract");
        }

        fn spin(&self) -> Duration {
            self.spin.unwrap_or(Duration::from_micros(5))
        }

        fn sleeps(&self) -> bool {
            !self.never_sleeps
        }

        fn yield_backoff(&mut self) -> Option<&mut YieldBackoff> {
            Some(&mut self.yield_backoff)
        }
    }

    const SOON: Duration = Duration::from_millis(20);

    #[test]
    fn after_a_wait_in_vain_the_core_is_offered_as_often_as_at_first() {
        let mut parker = Script::default();
        let first = parker.yield_backoff.every;
        parker.yield_backoff.every = 64 * first;
        let found = |looks: u32| {
            let mut left = looks;
            move || {
                left -= 1;
                Ok::<_, ()>((left == 0).then_some(()))
            }
        };
        let minute = Duration::from_mins(1);
        parker.spin = Some(minute);
        let found = wait_until(&mut parker, Deadline::after(minute), found(3));
        assert_eq!(found, Ok(Some(())));
        assert_eq!(parker.yield_backoff.every, 64 * first);
        parker.spin = None;
        let (soon, none) = (Deadline::after(SOON), || Ok::<Option<()>, ()>(None));
        assert_eq!(wait_until(&mut parker, soon, none), Ok(None));
        assert_eq!(parker.yield_backoff.every, first);
    }

    #[test]
    fn data_that_comes_just_before_the_announcement_is_found_without_sleeping() {
        let data = Arc::new(AtomicBool::new(false));
        let mut parker = Script {
            late: Some(Arc::clone(&data)),
            ..Script::default()
        };
        let look = || Ok::<_, ()>(data.load(Ordering::Acquire).then_some(7));
        let found = wait_until(&mut parker, Deadline::after(SOON), look);
        assert_eq!(found, Ok(Some(7)));
        assert_eq!(parker.calls, ["announce", "retract"]);
    }

    #[test]
    fn who_never_sleeps_announces_nothing_and_looks_until_the_deadline() {
        let mut parker = Script {
            never_sleeps: true,
            spin: Some(Duration::ZERO),
            ..Script::default()
        };
        let (deadline, mut looks) = (Deadline::after(SOON), 0);
        let found = wait_until(&mut parker, deadline, || {
            looks += 1;
            Ok::<Option<()>, ()>(None)
        });
        assert_eq!((found, parker.calls.len()), (Ok(None), 0));
        // At a load of 20 the wait gives its core away for so long that it was 98.
        assert!(deadline.passed() && looks > 10, "{looks} looks");
        let mut left = 1_000;
        let found = wait_until(&mut parker, Deadline::after(60 * SOON), || {
            left -= 1;
            Ok::<_, ()>((left == 0).then_some(7))
        });
        assert_eq!((found, parker.calls.len()), (Ok(Some(7)), 0));
    }

    #[test]
    fn what_is_there_already_costs_one_look() {
        let mut parker = Script::default();
        let found = wait_until(&mut parker, Deadline::after(SOON), || Ok::<_, ()>(Some(1)));
        assert_eq!((found, parker.calls.len()), (Ok(Some(1)), 0));
    }

    #[test]
    fn a_deadline_ends_the_wait_after_a_last_look() {
        let mut parker = Script::default();
        let deadline = Deadline::after(SOON);
        let mut last_look_was_late = false;
        let found = wait_until(&mut parker, deadline, || {
            last_look_was_late = deadline.passed();
            Ok::<Option<()>, ()>(None)
        });
        assert_eq!(found, Ok(None));
        assert!(last_look_was_late);
        assert_eq!(parker.calls.last(), Some(&"retract"));
    }

    #[test]
    fn an_error_of_the_second_look_retracts_the_announcement() {
        let data = Arc::new(AtomicBool::new(false));
        let mut parker = Script {
            late: Some(Arc::clone(&data)),
            ..Script::default()
        };
        let look = || match data.load(Ordering::Acquire) {
            true => Err("broken"),
            false => Ok(None::<()>),
        };
        assert_eq!(
            wait_until(&mut parker, Deadline::after(SOON), look),
            Err("broken")
        );
        assert_eq!(parker.calls, ["announce", "retract"]);
    }
}
