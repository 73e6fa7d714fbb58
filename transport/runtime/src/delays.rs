//! Delays that tests switch on, in builds with the cargo feature `mutants`: they widen race windows.
//!
//! Without the feature each function does nothing at compile time.

/// Sleep of [`widen_window`], in microseconds.
#[cfg(all(feature = "mutants", not(loom)))]
static WINDOW_US: crate::sync::AtomicU64 = crate::sync::AtomicU64::new(0);

/// Makes every later [`widen_window`] of this process sleep for `time`. Builds with the feature `mutants`
/// only.
///
/// A race window of some nanoseconds is hit once in millions of tries. Widened to a millisecond, a push at
/// a random moment hits it nearly each time, so that 50 pushes show a lost wake-up.
#[cfg(all(feature = "mutants", not(loom)))]
pub fn set_window(time: std::time::Duration) {
    let us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    WINDOW_US.store(us, crate::sync::Ordering::Relaxed);
}

/// Sleeps for the time of [`set_window`], or of `TIDEWATER_TEST_WINDOW_US` if that is set. Called between
/// the last poll and the announcement of a thread that parks. Does nothing in a build without the feature
/// `mutants`.
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

/// Widens a race window: never, in a build without the feature `mutants`.
#[cfg(not(all(feature = "mutants", not(loom))))]
#[inline(always)]
pub const fn widen_window() {}

/// Spin of [`pause_write`], in nanoseconds.
#[cfg(all(feature = "mutants", not(loom)))]
static WRITE_PAUSE_NS: crate::sync::AtomicU64 = crate::sync::AtomicU64::new(0);

/// Makes every later write of a row in this process pause for `time` in its middle. Most one-sided reads of
/// hot rows then see a half-written row. Builds with the feature `mutants` only.
#[cfg(all(feature = "mutants", not(loom)))]
pub fn set_write_pause(time: std::time::Duration) {
    let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    WRITE_PAUSE_NS.store(ns, crate::sync::Ordering::Relaxed);
}

/// Whether writes of rows pause in their middle: see [`set_write_pause`].
#[cfg(all(feature = "mutants", not(loom)))]
#[inline]
pub fn pauses_writes() -> bool {
    WRITE_PAUSE_NS.load(crate::sync::Ordering::Relaxed) > 0
}

/// Whether writes of rows pause: never, in a build without the feature `mutants`.
#[cfg(not(all(feature = "mutants", not(loom))))]
#[inline(always)]
pub const fn pauses_writes() -> bool {
    false
}

/// Spins for the time of [`set_write_pause`].
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
