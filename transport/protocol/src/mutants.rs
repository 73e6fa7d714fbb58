//! Known defects, switched on by name, so that a test can prove it would notice them.
//!
//! With the cargo feature `mutants`, the environment variable `TIDEWATER_MUTANT` names one of
//! [`Mutant`]; without the feature [`on`] is `false` at compile time and costs nothing.

/// Defines [`Mutant`] and the list of its names: one entry a defect, its doc comment above it.
macro_rules! mutants {
    ($($(#[$doc:meta])+ $variant:ident = $name:literal;)+) => {
        /// A defect that can be planted. The table in `docs/TESTING.md` says which test catches which.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum Mutant {
            $($(#[$doc])+ $variant,)+
        }

        impl Mutant {
            /// Every defect with its name in `TIDEWATER_MUTANT`.
            pub const ALL: &[(&'static str, Self)] = &[$(($name, Self::$variant),)+];
        }
    };
}

mutants! {
    /// A reader accepts a row without recomputing its hash.
    AcceptWithoutHash = "accept-without-hash";
    /// The hash of a row forgets all its cache lines but the last complete one and the rest.
    HashLastLineOnly = "hash-last-line-only";
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
    /// Pushes of an `AtTick` table are applied on arrival.
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
    /// A call that waits does not ask whether it shall end.
    InterruptIgnored = "interrupt-ignored";
    /// A block's payload is stored without a fence after its odd version.
    BlockWithoutFence = "block-without-fence";
    /// A block's even version is stored without Release order.
    BlockVersionRelaxed = "block-version-relaxed";
    /// A snapshot's line is published without a fence before it.
    SnapshotLineWithoutFence = "snapshot-line-without-fence";
    /// The first store into a snapshot's buffer is not fenced from the line that opens the epoch.
    EpochWithoutFence = "epoch-without-fence";
    /// Released memory is zeroed without a fence after its version words.
    VoidWithoutFence = "void-without-fence";
    /// A read flagged `fence` is not fenced from the reads before it.
    ReadWithoutFence = "read-without-fence";
    /// What landed in the buffer of a `finish_pull` that missed its deadline passes for landed in the
    /// next call's.
    FinishForgetsBuffer = "finish-forgets-buffer";
    /// A `finish_pull` that misses its deadline loses the pull.
    FinishForgetsPull = "finish-forgets-pull";
    /// Rows of an `AtTick` push are made at the tick, when the push cannot be refused any more.
    RowsReservedAtTick = "rows-reserved-at-tick";
    /// An applier that lost acknowledged pushes goes on.
    ApplierGoesOn = "applier-goes-on";
    /// Pushes of early ranks are held without a limit.
    UnboundedHeldPushes = "unbounded-held-pushes";
    /// An early push that finds no room waits although its client uses another clock domain, too.
    WaitAcrossDomains = "wait-across-domains";
    /// An early push that finds no room is refused instead of waiting for its turn.
    EarlyFrameRefused = "early-frame-refused";
    /// A boot id that cannot be read passes for an empty one.
    HostUnnamed = "host-unnamed";
    /// Coordinator and servers accept nobody any more after descriptors ran out.
    AcceptPausedForEver = "accept-paused-for-ever";
    /// Every connection that cannot be accepted is warned of.
    AcceptWarnedEachTime = "accept-warned-each-time";
    /// The deadline of a push does not name the ranks whose turn comes first.
    TurnUnnamed = "turn-unnamed";
    /// What a lost worker pushed of an iteration that it did not end takes effect.
    LostIterationKept = "lost-iteration-kept";
    /// A server whose applier panicked goes on without it.
    PanicUnnoticed = "panic-unnoticed";
    /// A released table's memory is freed extent by extent while rows of the others are still valid.
    ReleaseSlabBySlab = "release-slab-by-slab";
    /// The refusal of a range that another applier owns carries a partition in place of the count.
    RejectPartitionForCount = "reject-partition-for-count";
    /// Completion calls return `Ok` although a push was refused that no ticket has claimed.
    UnclaimedRefusalIgnored = "unclaimed-refusal-ignored";
    /// A tick does not wait for the answers to the pushes of its iteration.
    TickBeforeAnswers = "tick-before-answers";
    /// A tick that is repeated sends CLOCK again where it was sent.
    TickSentAgain = "tick-sent-again";
    /// A flush does not send what a failed push has left built.
    FlushWithoutSend = "flush-without-send";
    /// A relative directory of a model is sent to the servers as it is.
    RelativeModelDirectory = "relative-model-directory";
    /// A training run that loads a model begins with its first epoch.
    ResumeAtFirstEpoch = "resume-at-first-epoch";
    /// A saved model has the clocks of its last job alone.
    ModelClocksBeginAgain = "model-clocks-begin-again";
    /// A saved part has the clocks of its server's fastest applier.
    NewestPartClocks = "newest-part-clocks";
    /// Files and directories of a model are not made durable.
    ModelNotSynced = "model-not-synced";
    /// A commit that fails after the manifest is in place removes the parts that it names.
    AbandonCommittedParts = "abandon-committed-parts";
    /// Two saves may use a directory at a time.
    ModelLockIgnored = "model-lock-ignored";
    /// A save or load of a server that does not answer has no deadline.
    HungSaveWaits = "hung-save-waits";
    /// A coordinator that ends refuses requests of a failed job without the failure.
    ShutdownBeforeFailure = "shutdown-before-failure";
    /// A client reports that the cluster shuts down although it has the failure that caused it.
    RefusalBeforeNotice = "refusal-before-notice";
    /// A server warns of ordinary pages although nothing was said of pages.
    WarnOfDefaultPages = "warn-of-default-pages";
    /// A deadline after `Duration::MAX` overflows the clock.
    DeadlineOverflows = "deadline-overflows";
    /// Short sleeps are rounded up to whole milliseconds.
    SleepInMilliseconds = "sleep-in-milliseconds";
    /// Memory that clients read can be mapped for writing through `/proc/self/fd`.
    ReadMemoryUnsealed = "read-memory-unsealed";
    /// Memory that clients share can be sealed by one of them.
    SharedMemoryUnsealed = "shared-memory-unsealed";
    /// Lanes over shared memory do not look at the liveness word of their applier.
    LivenessIgnored = "liveness-ignored";
    /// Appliers hold no robust futex, so that the kernel marks nothing when they are killed.
    LivenessNotHeld = "liveness-not-held";
    /// Programs keep the soft limit of open files that they were started with.
    DescriptorsNotRaised = "descriptors-not-raised";
    /// A handle or ticket of another client is taken for one of this client's.
    ForeignHandle = "foreign-handle";
    /// A client keeps what it knows of a table that it has released.
    ReleaseKeepsTable = "release-keeps-table";
    /// A range of one partition is one read, whose length is cut to 32 bits.
    LongReadWraps = "long-read-wraps";
    /// A read that misses its deadline breaks its lane on tcp.
    LateReadBreaksLane = "late-read-breaks-lane";
    /// A read that misses its deadline is reported as an error of its lane.
    LateReadIsLost = "late-read-is-lost";
    /// A client believes a status before the reject records that it counts have arrived.
    RejectNotAwaited = "reject-not-awaited";
    /// A client that sees no progress does not read the public copy of its status.
    StatusCopyNotRead = "status-copy-not-read";
    /// The linger timer of an earlier cut ends a session that came back and was cut again.
    LingerOfEarlierCut = "linger-of-earlier-cut";
    /// Sockets keep Nagle's algorithm: `TCP_NODELAY` stays off.
    NagleLeftOn = "nagle-left-on";
    /// A launcher passes the token descriptor of the job around it on to its own processes.
    TokenFdInherited = "token-fd-inherited";
    /// The guard ends after one look that finds no process of the job.
    GuardLooksOnce = "guard-looks-once";
    /// A worker that servers do not count in a clock domain ticks there.
    LatecomerLetIn = "latecomer-let-in";
    /// A TCP lane on which nothing comes back is kept.
    SilentLaneKept = "silent-lane-kept";
    /// Only rank 0 agrees on the step at which a run ends, also when it was lost.
    RankZeroLeads = "rank-zero-leads";
    /// A barrier waits for workers that were lost or have finished.
    BarrierCountsTheLost = "barrier-counts-the-lost";
    /// All elements of a block share Adam's step count, so that a block in two frames takes two steps.
    StepCountPerBlock = "step-count-per-block";
    /// At a tick all elements of a block take a step, also those that no gradient touched.
    TickStepsWholeBlocks = "tick-steps-whole-blocks";
}

/// Whether RDMA devices are taken to place data in order, whatever they say. No defect of ours, but a
/// device that is not here: Soft-RoCE promises nothing, so that tests run there what relies on the
/// promise of others, and see what it comes to without. `TIDEWATER_TEST_DATA_IN_ORDER=1`.
#[cfg(feature = "mutants")]
pub fn data_in_order() -> bool {
    static CHOSEN: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *CHOSEN.get_or_init(|| std::env::var("TIDEWATER_TEST_DATA_IN_ORDER").is_ok_and(|d| d == "1"))
}

/// Whether devices are taken to place data in order: never, in a build without the feature `mutants`.
#[cfg(not(feature = "mutants"))]
#[inline(always)]
pub const fn data_in_order() -> bool {
    false
}

/// Whether `plant` is switched on in this process.
#[cfg(feature = "mutants")]
pub fn on(plant: Mutant) -> bool {
    static CHOSEN: std::sync::OnceLock<Option<Mutant>> = std::sync::OnceLock::new();
    *CHOSEN.get_or_init(|| {
        let name = std::env::var("TIDEWATER_MUTANT").ok()?;
        Mutant::ALL
            .iter()
            .find(|(n, _)| *n == name)
            .map(|&(_, p)| p)
    }) == Some(plant)
}

/// Whether `plant` is switched on: never, in a build without the feature `mutants`.
#[cfg(not(feature = "mutants"))]
#[inline(always)]
pub const fn on(_plant: Mutant) -> bool {
    false
}
