//! The one loop in which anybody waits: spin a little, then sleep until woken.
//!
//! Why no wake-up is lost: the loop sleeps only after it has announced that it will and has then
//! looked and found nothing. What became visible before the announcement, that second look finds;
//! whoever makes something visible after it finds the announcement and rings (see `doze`). A ring
//! that comes early is kept by the bell, so that the sleep ends at once.
//!
//! Why it ends: the spin stops at the deadline, the sleep takes it, and the last look comes after
//! it, so that what arrived in time is not reported as missing.

use crate::clock::{self, Deadline};
use crate::fabric::Sleeper;
use crate::planted::{self, Plant};
use crate::sync::spin_hint;

/// Looks between two offers of the core to others: where servers and workers share two cores, the
/// thread that is awaited may be the one that waits for this core.
const LOOKS_PER_YIELD: u32 = 32;

/// Calls `look` until it returns a value or an error; `None` when the deadline passed first.
///
/// `look` takes in what has arrived (polls its lanes) and never blocks. Everything it looks at
/// must be announced to by `sleeper`: its doze words lie where the producers look, its sockets are
/// in its watch. Cost: nothing but the first look when there is something already; else a spin of
/// [`Sleeper::spin`], then one system call per sleep.
///
/// # Errors
/// Those of `look`.
pub fn wait_until<T, E>(
    sleeper: &mut dyn Sleeper,
    deadline: Deadline,
    mut look: impl FnMut() -> Result<Option<T>, E>,
) -> Result<Option<T>, E> {
    loop {
        if let Some(found) = spin(sleeper, deadline, &mut look)? {
            return Ok(Some(found));
        }
        sleeper.announce();
        let second = if planted::on(Plant::SleepWithoutSecondLook) {
            Ok(None)
        } else {
            look()
        };
        let over = deadline.passed();
        if !matches!(second, Ok(None)) || over {
            sleeper.retract();
            return second;
        }
        sleeper.sleep(deadline);
        sleeper.retract();
    }
}

/// Looks at least once, then again and again for the sleeper's spin time.
fn spin<T, E>(
    sleeper: &dyn Sleeper,
    deadline: Deadline,
    look: &mut impl FnMut() -> Result<Option<T>, E>,
) -> Result<Option<T>, E> {
    // The clock is not read when the first look succeeds.
    if let Some(found) = look()? {
        return Ok(Some(found));
    }
    let spin = sleeper.spin();
    if spin.is_zero() {
        return Ok(None);
    }
    let until = deadline.min(Deadline::at(clock::now() + spin));
    let mut looks = 0u32;
    while !until.passed() {
        looks = looks.wrapping_add(1);
        if looks.is_multiple_of(LOOKS_PER_YIELD) {
            std::thread::yield_now();
        } else {
            spin_hint();
        }
        if let Some(found) = look()? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}
