//! The one loop in which anybody waits: spin a little, then sleep until woken.
//!
//! Why no wake-up is lost: the loop sleeps only after it has announced that it will and has then
//! looked and found nothing. What became visible before the announcement, that second look finds;
//! whoever makes something visible after it finds the announcement and rings (see `parked_flag`). A ring
//! that comes early is kept by the waker, so that the sleep ends at once.
//!
//! Why it ends: the spin stops at the deadline, the sleep takes it, and the last look comes after
//! it, so that what arrived in time is not reported as missing.
//!
//! A thread that never sleeps ([`Parker::sleeps`]) spins until the deadline and announces nothing,
//! so that no producer makes a system call for it.

use std::time::Duration;

use crate::clock::{self, Deadline};
use crate::delays;
use crate::sync::spin_hint;
use crate::yield_backoff::YieldBackoff;
use tidewater_protocol::mutants::{self, Mutant};

/// Pollers look this long before they sleep: longer than a round trip over shared memory, shorter
/// than a time slice that somebody else could use.
pub const SPIN: Duration = Duration::from_micros(20);

/// Where a thread that has nothing to do waits. The order is: `prepare_park`, look once more, `sleep`
/// (or not), `cancel_park`; see `wake`.
pub trait Parker: Send {
    /// Tells all producers that from now on they must wake this thread.
    fn prepare_park(&mut self);

    /// Sleeps until woken or until the deadline.
    fn park_until(&mut self, deadline: Deadline);

    /// Tells them that it looks by itself again.
    fn cancel_park(&mut self);

    /// Whether a wait should spin before it sleeps, and for how long.
    fn spin(&self) -> Duration {
        SPIN
    }

    /// Whether the thread sleeps at all. One that does not is told nothing and rung by nobody: it
    /// looks until it finds something, and takes a core for that.
    fn sleeps(&self) -> bool {
        true
    }

    /// What the thread has learned of offering its core while it spins; one that keeps nothing
    /// learns it anew in each wait.
    fn yield_backoff(&mut self) -> Option<&mut YieldBackoff> {
        None
    }
}

/// Calls `look` until it returns a value or an error; `None` when the deadline passed first.
///
/// `look` takes in what has arrived (polls its lanes) and never blocks. Everything it looks at
/// must be announced to by `parker`: its parked flags lie where the producers look, its sockets are
/// in its watch. Cost: nothing but the first look when there is something already; else a spin of
/// [`Parker::spin`], in which the core is offered now and then (see [`YieldBackoff`]), then one system
/// call per sleep. Where the thread never sleeps: a look at the clock for each look.
///
/// # Errors
/// Those of `look`.
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

/// Looks at least once, then again and again for the parker's spin time; until the deadline if it
/// never sleeps.
fn spin<T, E>(
    parker: &mut dyn Parker,
    deadline: Deadline,
    look: &mut impl FnMut() -> Result<Option<T>, E>,
) -> Result<Option<T>, E> {
    // The clock is not read when the first look succeeds.
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

    /// Records what the loop does. With `late`, a producer stores its data just before it could
    /// see the announcement, and so does not ring.
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
        assert!(deadline.passed() && looks > 100, "{looks} looks");
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
