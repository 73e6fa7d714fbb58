//! Delays that tests switch on, in builds with the cargo feature `mutants`: they widen race windows.
//!
//! Without the feature each function does nothing at compile time.

/// Time that [`widen_window`] sleeps, in microseconds; 0 for none.
#[cfg(all(feature = "mutants", not(loom)))]
static WINDOW_US: crate::sync::AtomicU64 = crate::sync::AtomicU64::new(0);

/// Sets the time that every later [`widen_window`] of this process sleeps. Builds with the feature
/// `mutants` only.
///
/// A race window of some nanoseconds is hit once in millions of tries. Widened to a millisecond, a push
/// at a random moment hits it nearly each time, so that 50 pushes show a lost wake-up.
#[cfg(all(feature = "mutants", not(loom)))]
pub fn set_window(time: std::time::Duration) {
    let us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    WINDOW_US.store(us, crate::sync::Ordering::Relaxed);
}

/// Sleeps in the race window of a thread that parks: after its last poll, before it sets its parked flag.
/// The time is the longer of that of [`set_window`] and the environment's `TIDEWATER_TEST_WINDOW_US`.
/// Does nothing without the feature `mutants`.
#[cfg(all(feature = "mutants", not(loom)))]
pub fn widen_window() {
    static FROM_ENV: std::sync::OnceLock<u64> = std::sync::OnceLock::new();
    let env = *FROM_ENV.get_or_init(|| {
        let set = std::env::var("TIDEWATER_TEST_WINDOW_US").ok();
        set.and_then(|us| us.parse().ok()).unwrap_or(0)
    });
    let us = env.max(WINDOW_US.load(crate::sync::Ordering::Relaxed));
    if us > 0 {
        std::thread::sleep(std::time::Duration::from_micros(us));
    }
}

/// Does nothing: only builds with the feature `mutants` widen the race window of a thread that parks.
#[cfg(not(all(feature = "mutants", not(loom))))]
#[inline(always)]
pub const fn widen_window() {}

/// Time that [`pause_write`] spins, in nanoseconds; 0 for none.
#[cfg(all(feature = "mutants", not(loom)))]
static WRITE_PAUSE_NS: crate::sync::AtomicU64 = crate::sync::AtomicU64::new(0);

/// Makes every later write of a row in this process pause for `time` after half of its payload. Most
/// one-sided reads of hot rows then see a torn row. Builds with the feature `mutants` only.
#[cfg(all(feature = "mutants", not(loom)))]
pub fn set_write_pause(time: std::time::Duration) {
    let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    WRITE_PAUSE_NS.store(ns, crate::sync::Ordering::Relaxed);
}

/// Returns whether row writes pause in their middle: true after [`set_write_pause`] with a time above
/// zero.
#[cfg(all(feature = "mutants", not(loom)))]
#[inline]
pub fn pauses_writes() -> bool {
    WRITE_PAUSE_NS.load(crate::sync::Ordering::Relaxed) > 0
}

/// Returns false: only builds with the feature `mutants` pause row writes in their middle.
#[cfg(not(all(feature = "mutants", not(loom))))]
#[inline(always)]
pub const fn pauses_writes() -> bool {
    false
}

/// Busy-waits for the time of [`set_write_pause`], in the middle of a row write. Does nothing without the
/// feature `mutants`.
pub fn pause_write() {
    #[cfg(all(feature = "mutants", not(loom)))]
    {
        let ns = WRITE_PAUSE_NS.load(crate::sync::Ordering::Relaxed);
        let until = crate::clock::now() + std::time::Duration::from_nanos(ns);
        while crate::clock::now() < until {
            std::hint::spin_loop();
        }
    }
}
