//! Known defects, switched on by name, so that a test can prove it would notice them.
//!
//! With the cargo feature `planted`, the environment variable `TIDEWATER_PLANT` names one of
//! [`Plant`]; without the feature [`on`] is `false` at compile time and costs nothing.

/// Defines [`Plant`] and the list of its names: one entry a defect, its doc comment above it.
macro_rules! plants {
    ($($(#[$doc:meta])+ $variant:ident = $name:literal;)+) => {
        /// A defect that can be planted. The table in `docs/TESTING.md` says which test catches which.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum Plant {
            $($(#[$doc])+ $variant,)+
        }

        impl Plant {
            /// Every defect with its name in `TIDEWATER_PLANT`.
            pub const ALL: &[(&'static str, Self)] = &[$(($name, Self::$variant),)+];
        }
    };
}

plants! {
    /// A reader accepts a row without recomputing its hash.
    AcceptWithoutHash = "accept-without-hash";
    /// A reader compares the version at both ends instead of the hash.
    HeadTailVersion = "head-tail-version";
    /// The row hash XORs key and version together, so (key, version) pairs collide.
    LinearHashSeed = "linear-hash-seed";
    /// The clock is published before the frames before it are applied.
    TickBeforeApply = "tick-before-apply";
    /// A frame is applied again when its sequence number was seen.
    SkipDuplicateCheck = "skip-duplicate-check";
    /// A poller sleeps without looking once more after announcing it.
    SleepWithoutSecondLook = "sleep-without-second-look";
    /// A snapshot flips without copying untouched blocks forward.
    SnapshotWithoutCopyForward = "snapshot-without-copy-forward";
    /// A reply's slot and tag are left out of its hash.
    ReplySlotOutsideHash = "reply-slot-outside-hash";
    /// A pushed location is believed without comparing the key.
    PushByStaleLocation = "push-by-stale-location";
    /// Rows before the offending one of a refused frame are applied.
    ApplyHalfRefusedFrame = "apply-half-refused-frame";
    /// Pushes of an `AtClock` table are applied on arrival.
    AtClockOff = "at-clock-off";
    /// A tick leaves the sum of the gradients of a `Reduce::Mean` table undivided.
    MeanWithoutDivision = "mean-without-division";
    /// A tick divides by the number of pushes, not by the number of workers that pushed.
    MeanOverPushes = "mean-over-pushes";
    /// A tick applies the assign after the sum and the gradient.
    AssignLastAtTick = "assign-last-at-tick";
    /// A finished worker leaves one clock domain, not all.
    FinishLeavesOneDomain = "finish-leaves-one-domain";
    /// A tick of any clock domain is sent as one of domain 0.
    TickOfDomainZero = "tick-of-domain-zero";
    /// Duplicate keys of one push of f64: the last value is sent, not the sum.
    DuplicateF64LastWins = "duplicate-f64-last-wins";
}

/// Whether RDMA devices are taken to place data in order, whatever they say. No defect of ours, but a
/// device that is not here: Soft-RoCE promises nothing, so that tests run there what relies on the
/// promise of others, and see what it comes to without. `TIDEWATER_TEST_DATA_IN_ORDER=1`.
#[cfg(feature = "planted")]
pub fn data_in_order() -> bool {
    static CHOSEN: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *CHOSEN.get_or_init(|| std::env::var("TIDEWATER_TEST_DATA_IN_ORDER").is_ok_and(|d| d == "1"))
}

/// Whether devices are taken to place data in order: never, in a build without the feature `planted`.
#[cfg(not(feature = "planted"))]
#[inline(always)]
pub const fn data_in_order() -> bool {
    false
}

/// Whether `plant` is switched on in this process.
#[cfg(feature = "planted")]
pub fn on(plant: Plant) -> bool {
    static CHOSEN: std::sync::OnceLock<Option<Plant>> = std::sync::OnceLock::new();
    *CHOSEN.get_or_init(|| {
        let name = std::env::var("TIDEWATER_PLANT").ok()?;
        Plant::ALL.iter().find(|(n, _)| *n == name).map(|&(_, p)| p)
    }) == Some(plant)
}

/// Whether `plant` is switched on: never, in a build without the feature `planted`.
#[cfg(not(feature = "planted"))]
#[inline(always)]
pub const fn on(_plant: Plant) -> bool {
    false
}
