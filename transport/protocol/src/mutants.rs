//! Mutants: known defects, activated by name, that show whether a test detects them.
//!
//! With the cargo feature `mutants`, the environment variable `TIDEWATER_MUTANT` names one of
//! [`Mutant`]. Without the feature, [`on`] is `false` at compile time and costs nothing.
//! `TIDEWATER_MUTANTS_REACHED` names a file for the mutants that a process looks at.

/// Defines [`Mutant`] and the list of its names: one entry per defect, below its doc comment.
macro_rules! mutants {
    ($($(#[$doc:meta])+ $variant:ident = $name:literal;)+) => {
        /// A known defect that a test can activate by its name (mutation testing). The table in
        /// `docs/TESTING.md` says which test detects which.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum Mutant {
            $($(#[$doc])+ $variant,)+
        }

        impl Mutant {
            /// Every mutant, as pairs of its name in `TIDEWATER_MUTANT` and its variant.
            pub const ALL: &[(&'static str, Self)] = &[$(($name, Self::$variant),)+];
        }
    };
}

mutants! {
    /// A reader accepts a row without recomputing its hash.
    AcceptWithoutHash = "accept-without-hash";
    /// The row hash covers only the last complete cache line and the rest after it.
    HashLastLineOnly = "hash-last-line-only";
    /// The row hash XORs key and version together, so (key, version) pairs collide.
    LinearHashSeed = "linear-hash-seed";
    /// The clock is published before the frames before it are applied.
    TickBeforeApply = "tick-before-apply";
    /// An applier applies a frame again after it has seen the frame's sequence number.
    SkipDuplicateCheck = "skip-duplicate-check";
    /// A poller sleeps without polling once more after it set its parked flag.
    SleepWithoutSecondLook = "sleep-without-second-look";
    /// A snapshot flips without copying untouched blocks forward.
    SnapshotWithoutCopyForward = "snapshot-without-copy-forward";
    /// A reply's slot and tag are left out of its hash.
    ReplySlotOutsideHash = "reply-slot-outside-hash";
    /// An applier uses a pushed location without comparing the key.
    PushByStaleLocation = "push-by-stale-location";
    /// An applier applies the rows before the offending one of a refused frame.
    ApplyHalfRefusedFrame = "apply-half-refused-frame";
    /// Pushes of an `AtTick` table are applied on arrival.
    AtClockOff = "at-clock-off";
    /// A tick leaves the sum of the gradients of a `Reduce::Mean` table undivided.
    MeanWithoutDivision = "mean-without-division";
    /// A tick divides by the number of pushes instead of the number of threads that pushed.
    MeanOverPushes = "mean-over-pushes";
    /// Servers use the weight of a push as 1.
    WeightIgnored = "weight-ignored";
    /// Servers multiply by the weight of a push twice.
    WeightUsedTwice = "weight-used-twice";
    /// The staleness of a gradient is one tick too large.
    StalenessOffByOne = "staleness-off-by-one";
    /// A client forgets what an encoded push leaves out.
    FeedbackDropped = "feedback-dropped";
    /// A tick divides by the number of workers that pushed instead of the number of threads that pushed.
    MeanOverRanks = "mean-over-ranks";
    /// A further thread of a worker begins at clock 0 instead of its worker's clock.
    SiblingFromZero = "sibling-from-zero";
    /// The loss of a further thread of a worker is reported to no process.
    SiblingLossUnnoticed = "sibling-loss-unnoticed";
    /// A worker's first client may finish while siblings of it are open.
    FirstFinishesAlone = "first-finishes-alone";
    /// A tick applies the assign after the sum and the gradient.
    AssignLastAtTick = "assign-last-at-tick";
    /// The journal of an applier takes a new block each time it is full.
    JournalTakesMemory = "journal-takes-memory";
    /// An applier answers no reads while a function runs.
    FunctionHoldsReads = "function-holds-reads";
    /// A function on a table of ticks takes effect on arrival.
    FunctionOnArrival = "function-on-arrival";
    /// Settings of a table of ticks take effect on arrival.
    SettingsOnArrival = "settings-on-arrival";
    /// A finished worker leaves one clock domain instead of all.
    FinishLeavesOneDomain = "finish-leaves-one-domain";
    /// A tick of any clock domain is sent as one of domain 0.
    TickOfDomainZero = "tick-of-domain-zero";
    /// For duplicate keys of one f64 push, the client sends the last value instead of the sum.
    DuplicateF64LastWins = "duplicate-f64-last-wins";
    /// A waiting call does not check whether it is to end.
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
    /// A `finish_pull` that missed its deadline leaves data in the buffer, which the next call takes
    /// for its own.
    FinishForgetsBuffer = "finish-forgets-buffer";
    /// A `finish_pull` that misses its deadline loses the pull.
    FinishForgetsPull = "finish-forgets-pull";
    /// Rows of an `AtTick` push are created at the tick, when the push cannot be refused any more.
    RowsReservedAtTick = "rows-reserved-at-tick";
    /// An applier that lost acknowledged pushes continues.
    ApplierGoesOn = "applier-goes-on";
    /// An applier holds back pushes of early ranks without a limit.
    UnboundedHeldPushes = "unbounded-held-pushes";
    /// An early push without room waits although its client uses another clock domain, too.
    WaitAcrossDomains = "wait-across-domains";
    /// An early push without room is refused instead of waiting for its turn.
    EarlyFrameRefused = "early-frame-refused";
    /// An unreadable boot id passes for an empty one.
    HostUnnamed = "host-unnamed";
    /// Coordinator and servers accept no connection any more after descriptors ran out.
    AcceptPausedForEver = "accept-paused-for-ever";
    /// Every connection that cannot be accepted logs a warning.
    AcceptWarnedEachTime = "accept-warned-each-time";
    /// The deadline of a push does not name the ranks that come first.
    TurnUnnamed = "turn-unnamed";
    /// The pushes that a lost worker made for its unfinished iteration take effect.
    LostIterationKept = "lost-iteration-kept";
    /// A server continues without its applier that panicked.
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
    /// A pull waits for each lane before it posts on the next one.
    LanesInTurn = "lanes-in-turn";
    /// A push waits for room in one ring before it builds frames of the other lanes.
    FullRingHoldsOthers = "full-ring-holds-others";
    /// A flush does not send what a failed push has left built.
    FlushWithoutSend = "flush-without-send";
    /// Held pushes stay in the client while it waits.
    HeldPushesStay = "held-pushes-stay";
    /// A relative directory of a model is sent to the servers as it is.
    RelativeModelDirectory = "relative-model-directory";
    /// A training run that loads a model begins with its first epoch.
    ResumeAtFirstEpoch = "resume-at-first-epoch";
    /// A saved model has the clocks of its last job only.
    ModelClocksBeginAgain = "model-clocks-begin-again";
    /// A checkpoint is cut at once instead of at one tick of all appliers.
    CheckpointWithoutClocks = "checkpoint-without-clocks";
    /// A checkpoint with a file that was cut off counts as complete.
    CutCheckpointTaken = "cut-checkpoint-taken";
    /// The position of a worker takes effect before the tick of its iteration.
    PositionOnArrival = "position-on-arrival";
    /// A lost worker's tick that one applier has consumed is not completed on the others.
    LostTickHalved = "lost-tick-halved";
    /// A record changes before the save under way has copied it.
    WriteBeforeCopy = "write-before-copy";
    /// A record that changes after a checkpoint is not noted for the next one.
    ChangeNotNoted = "change-not-noted";
    /// A row that is removed after a checkpoint is not noted for the next one.
    RemovalNotNoted = "removal-not-noted";
    /// A checkpoint holds the changes since another checkpoint than the one that it extends.
    ChangesSinceAnother = "changes-since-another";
    /// A save that is ended between two of its copies is reported as done, without the rest.
    CancelledSaveIsDone = "cancelled-save-is-done";
    /// A saved part has the clocks of its server's fastest applier.
    NewestPartClocks = "newest-part-clocks";
    /// Files and directories of a model are not made durable.
    ModelNotSynced = "model-not-synced";
    /// A commit that fails after the manifest is in place removes the parts that it names.
    AbandonCommittedParts = "abandon-committed-parts";
    /// Two saves may use a directory at the same time.
    ModelLockIgnored = "model-lock-ignored";
    /// A save or load with a server that does not answer has no deadline.
    HungSaveWaits = "hung-save-waits";
    /// A coordinator that ends refuses requests of a failed job without the failure.
    ShutdownBeforeFailure = "shutdown-before-failure";
    /// A client reports that the cluster shuts down although it has the failure that caused it.
    RefusalBeforeNotice = "refusal-before-notice";
    /// A server warns of ordinary pages although no option asked for other pages.
    WarnOfDefaultPages = "warn-of-default-pages";
    /// A deadline after `Duration::MAX` overflows the clock.
    DeadlineOverflows = "deadline-overflows";
    /// Short sleeps are rounded up to whole milliseconds.
    SleepInMilliseconds = "sleep-in-milliseconds";
    /// Memory that clients read can be mapped for writing through `/proc/self/fd`.
    ReadMemoryUnsealed = "read-memory-unsealed";
    /// Memory that clients share can be sealed by one of them.
    SharedMemoryUnsealed = "shared-memory-unsealed";
    /// Lanes over shared memory do not check the liveness word of their applier.
    LivenessIgnored = "liveness-ignored";
    /// Appliers hold no robust futex, so that the kernel marks nothing when they are killed.
    LivenessNotHeld = "liveness-not-held";
    /// Programs keep the soft limit of open files that they were started with.
    DescriptorsNotRaised = "descriptors-not-raised";
    /// Collective calls assign all rounds to one buffer.
    CollectiveOneBuffer = "collective-one-buffer";
    /// Collective calls take rows of another round for values.
    CollectiveRoundIgnored = "collective-round-ignored";
    /// Collective calls begin with the caller's own values instead of those of rank 0.
    CollectiveRankOrder = "collective-rank-order";
    /// A cached table uses its rows whatever the clock is.
    CachedRowsNeverAge = "cached-rows-never-age";
    /// A cached table adds pushes to its rows without their weight.
    EchoUnweighted = "echo-unweighted";
    /// A push buffer drops the rows below its threshold at a flush.
    RemainderForgotten = "remainder-forgotten";
    /// A pull of a range that is finished later takes blocks that were being written.
    LaterRangeUnjudged = "later-range-unjudged";
    /// A pull of a range forgets the windows that an earlier call has placed in another buffer.
    LateRangeKeepsBuffer = "late-range-keeps-buffer";
    /// A push of least values stores the greatest ones.
    MinIsMax = "min-is-max";
    /// A push buffer adds least and greatest values up.
    ExtremesAdded = "extremes-added";
    /// Collective calls on bits combine those of the first two workers only.
    BitsOfTwoWorkers = "bits-of-two-workers";
    /// A push buffer pushes all of its rows again after a flush that had built some frames.
    FailedFlushAgain = "failed-flush-again";
    /// A client accepts a handle or ticket of another client.
    ForeignHandle = "foreign-handle";
    /// A client keeps the descriptors of a table that it has released.
    ReleaseKeepsTable = "release-keeps-table";
    /// A range of one partition is one read, and its length is truncated to 32 bits.
    LongReadWraps = "long-read-wraps";
    /// A read that misses its deadline breaks its lane on tcp.
    LateReadBreaksLane = "late-read-breaks-lane";
    /// A read that misses its deadline is reported as an error of its lane.
    LateReadIsLost = "late-read-is-lost";
    /// A client believes a status before the reject records that it counts have arrived.
    RejectNotAwaited = "reject-not-awaited";
    /// A client that sees no progress does not read the public copy of its status.
    StatusCopyNotRead = "status-copy-not-read";
    /// The linger timer of an earlier cut ends a session that re-attached and was cut again.
    LingerOfEarlierCut = "linger-of-earlier-cut";
    /// Sockets keep Nagle's algorithm: `TCP_NODELAY` stays off.
    NagleLeftOn = "nagle-left-on";
    /// A launcher passes the token descriptor of the surrounding job on to its own processes.
    TokenFdInherited = "token-fd-inherited";
    /// The reaper ends after one poll that finds no process of the job.
    GuardLooksOnce = "guard-looks-once";
    /// A worker that servers do not count in a clock domain ticks there.
    LatecomerLetIn = "latecomer-let-in";
    /// A silent TCP lane is never recovered.
    SilentLaneKept = "silent-lane-kept";
    /// Only rank 0 agrees on the last step of a run, even if it was lost.
    RankZeroLeads = "rank-zero-leads";
    /// A barrier waits for workers that were lost or have finished.
    BarrierCountsTheLost = "barrier-counts-the-lost";
    /// A worker that was declared lost returns to a new job.
    LostWorkerReturns = "lost-worker-returns";
    /// A worker that follows a membership file ticks beyond the loss that the file says.
    LossOutlived = "loss-outlived";
    /// A worker that is admitted to a job may begin at the clocks of a barrier that has opened without it.
    BarrierForLatecomers = "barrier-for-latecomers";
    /// All elements of a block share Adam's step count, so that a block in two frames takes two steps.
    StepCountPerBlock = "step-count-per-block";
    /// A redo record goes on to name step counts after another block has got their memory.
    StalePieceReplayed = "stale-piece-replayed";
    /// At a tick all elements of a block take a step, even those without a gradient.
    TickStepsWholeBlocks = "tick-steps-whole-blocks";
    /// Functions combine tables with elements that do not lie together.
    FunctionInputsUnlike = "function-inputs-unlike";
    /// A reduction combines its pieces in the order of their replies.
    ReductionByArrival = "reduction-by-arrival";
    /// A function gets keys that repeat, and loses all changes of such a row but the last.
    FunctionKeysUnordered = "function-keys-unordered";
    /// A function's result is stored before all of it is checked.
    FunctionStoresUnchecked = "function-stores-unchecked";
    /// The index of an expression begins at 0 in every frame.
    IndexOfFrame = "index-of-frame";
    /// An expression reads its first input wherever it names another one.
    InputsAreFirst = "inputs-are-first";
    /// A maximum begins at 0.
    MaximumFromZero = "maximum-from-zero";
    /// Initial values do not depend on the key of the row.
    InitWithoutKey = "init-without-key";
    /// AMSGrad steps by the second moment itself, as Adam does.
    AmsGradWithoutMaximum = "amsgrad-without-maximum";
    /// AdaDelta ignores the mean square of its steps and steps as RMSProp does.
    AdaDeltaWithoutSteps = "adadelta-without-steps";
    /// A proximal rule takes its gradient step without the soft threshold.
    SoftThresholdForgotten = "soft-threshold-forgotten";
    /// Partitions go to the appliers of a server by the partition's own number.
    AppliersByPartition = "appliers-by-partition";
    /// The coordinator places the partitions of a table in turn although its definition lists their servers.
    PartitionServersIgnored = "partition-servers-ignored";
    /// Dense tables are cut into equal partitions although their definition lists where these begin.
    PartitionStartsIgnored = "partition-starts-ignored";
    /// New hyper-parameters are sent to one applier of the table.
    SettingsToOneApplier = "settings-to-one-applier";
    /// Part of a late read that arrived in its caller's memory is lost when the caller stops waiting.
    LatePartNotMoved = "late-part-not-moved";
    /// The callback of a refused push is called as if the push had been applied.
    CallbackWithoutRefusal = "callback-without-refusal";
    /// Merging tickets keeps the frames of the first one only.
    MergeKeepsOne = "merge-keeps-one";
    /// A vector of zeros has the elements that its slot had last.
    ZerosNotAssigned = "zeros-not-assigned";
    /// Uses of a slot by several vectors have equal generations.
    GenerationKept = "generation-kept";
    /// A change of a vector in place changes its clones, too.
    ClonesChange = "clones-change";
    /// Operators forget their failures.
    FailureForgotten = "failure-forgotten";
    /// `signum` of a vector is 0 for zeroes.
    SignumOfZero = "signum-of-zero";
    /// Operations that give a vector wait until they are applied.
    OperationsWait = "operations-wait";
    /// A collective call that is repeated begins with its first round again.
    CollectiveBeginsAgain = "collective-begins-again";
    /// The gradient of an evaluation is that of worker 0.
    GradientOfOneWorker = "gradient-of-one-worker";
    /// The slot of a deleted row keeps the row's version and checksum.
    DeletedRowValid = "deleted-row-valid";
    /// A client uses a cached location although the slot has another generation.
    StaleLocationUsed = "stale-location-used";
    /// A deletion of one tick is carried out again at the next ones.
    DeletionRepeated = "deletion-repeated";
    /// A deletion of a table of ticks takes effect on arrival.
    DeletionOnArrival = "deletion-on-arrival";
    /// A deletion leaves the sum of the pushes before it in its tick.
    DeletionKeepsSum = "deletion-keeps-sum";
    /// `wait_newer` returns at the version that its caller has.
    NewerIsSame = "newer-is-same";
    /// A wait for a version looks at one applier.
    VersionOfFirstApplier = "version-of-first-applier";
    /// An applier counts an observer as a member of its clocks.
    ObserverCounts = "observer-counts";
    /// Clocks go on while a worker is being admitted.
    HeldClocksMove = "held-clocks-move";
    /// An applier applies the pushes of an observer.
    ObserverPushes = "observer-pushes";
    /// Rows of every second partition never expire: with two appliers, those of one of them.
    ExpiryOnOneServer = "expiry-on-one-server";
    /// A push does not renew the time after which its row expires.
    PushRenewsNothing = "push-renews-nothing";
    /// A key gets a row at its first push although the table counts them.
    AdmitAtOnce = "admit-at-once";
    /// A tick builds its version in the buffer of a pinned one.
    PinDropped = "pin-dropped";
    /// A reader of a version does not check that it is still kept.
    VersionUnchecked = "version-unchecked";
    /// A part of a training file begins with the rest of the line before it.
    LineOfTwoParts = "line-of-two-parts";
    /// Indices of LIBSVM lines are keys as they are.
    LibsvmIndexKept = "libsvm-index-kept";
    /// A label at the threshold counts as above it.
    LabelAtThreshold = "label-at-threshold";
    /// The checksum of a RecordIO chunk is not compared.
    ChunkChecksumIgnored = "chunk-checksum-ignored";
    /// A task ends behind the first record of the next one.
    TasksOverlap = "tasks-overlap";
    /// A pass begins though the one before must be over first.
    PassBeginsEarly = "pass-begins-early";
    /// Every worker that finishes a task counts, not the first alone.
    SecondFinisherCounts = "second-finisher-counts";
    /// A report of a task that is repeated does not count, though the first one did.
    RepeatedReportLate = "repeated-report-late";
    /// A task that fails is given again without end.
    FailedTaskForEver = "failed-task-for-ever";
    /// A task of a lost worker has one try less.
    RecoveryCostsTry = "recovery-costs-try";
    /// A task that each of its workers is lost with is given again without end.
    DeadlyTaskForEver = "deadly-task-for-ever";
    /// A record feed reports a task when all of its records but the last one are done.
    FeedReportsEarly = "feed-reports-early";
    /// A record number beyond the data is divided by the number of records, instead of permuted again.
    RecordDrawnTwice = "record-drawn-twice";
    /// Pushes of a task take effect on arrival.
    TaskPushesAtOnce = "task-pushes-at-once";
    /// Servers keep the pushes of a lost worker's tasks, and apply them.
    LostTaskApplied = "lost-task-applied";
    /// The pushes of a finished task are dropped with the open iteration of its lost worker.
    FinishedTaskDropped = "finished-task-dropped";
    /// A worker reports a task before servers have its marks.
    TaskBeforeMarks = "task-before-marks";
    /// The coordinator answers the report of a task before servers have applied it.
    TaskAnsweredEarly = "task-answered-early";
    /// The tasks of a lost worker are given to no other one.
    LostTaskKept = "lost-task-kept";
    /// The file of a predicted part has its final name while it is written.
    PartWrittenInPlace = "part-written-in-place";
    /// Workers do not learn that an operator stops their job.
    StopNotPassedOn = "stop-not-passed-on";
    /// The writer of a sequence lock stores the words without a fence after the odd count.
    SequenceWithoutFence = "sequence-without-fence";
    /// A lookup of a cached location compares a few bits of the key's hash.
    LocationByShortHash = "location-by-short-hash";
    /// Each thread of a worker has location caches of its own.
    LocationsNotShared = "locations-not-shared";
    /// A successor does not finish the row that was being stored.
    RedoNotReplayed = "redo-not-replayed";
    /// A successor applies all of a push that was cut, also the rows that are stored.
    CutPushFromItsStart = "cut-push-from-its-start";
    /// A ring's record counts a push before it is applied.
    CountedBeforeApplied = "counted-before-applied";
    /// The ring's record of an applied push is not written.
    AppliedNotRecorded = "applied-not-recorded";
    /// A page of held pushes does not count a frame that is written to it.
    HeldPushNotKept = "held-push-not-kept";
    /// A successor keeps a held push that its ring has not counted, and gets it again.
    HeldPushCountedTwice = "held-push-counted-twice";
    /// Pushes that were added to the sums of an open iteration are not kept for a successor.
    FoldedPushesDropped = "folded-pushes-dropped";
    /// A successor steps all rows of a tick that was cut, also those that are stepped.
    ResumedTickFromItsStart = "resumed-tick-from-its-start";
    /// A successor acknowledges a tick that was cut before it has closed the iteration.
    CutClockAtOnce = "cut-clock-at-once";
    /// A successor keeps the pushes of a worker that was being removed.
    LostPushesResumed = "lost-pushes-resumed";
    /// A successor uses the last record of a journal although its checksum does not match.
    TornJournalUsed = "torn-journal-used";
    /// A successor's index holds rows that were removed.
    RemovedRowsIndexed = "removed-rows-indexed";
    /// Each pull of rows reads the clock, which takes a third of a pull from mapped memory.
    PullReadsClock = "pull-reads-clock";
    /// Tables that calls of the client create are not warm in a job of warm tables.
    LibraryTablesLost = "library-tables-lost";
    /// The tables of a job stay when a server was restarted without its memory.
    RestartKeepsTables = "restart-keeps-tables";
    /// The coordinator serves workers that have not read that a server was restarted.
    OutdatedWorkerServed = "outdated-worker-served";
    /// A coordinator that resumes does not compare the checksums of its journal.
    JournalUnchecked = "journal-unchecked";
    /// A coordinator uses a journal that another one has locked.
    JournalLockIgnored = "journal-lock-ignored";
    /// A coordinator does not journal answers that must not be given twice.
    BarrierAnswersForgotten = "barrier-answers-forgotten";
    /// A coordinator that resumes does not order servers again to apply tasks that were finished.
    FinishedTaskForgotten = "finished-task-forgotten";
    /// A client gives up its queued request for lanes as if the server were silent.
    QueueNewsIgnored = "queue-news-ignored";
    /// A server makes lanes for clients that are gone.
    VoidLanesMade = "void-lanes-made";
    /// A ring is recovered although the device of its old lane may still write.
    RecoveredWhileEnding = "recovered-while-ending";
    /// A client does not send again what a recovered lane's server has not applied.
    FramesNotResent = "frames-not-resent";
    /// A handshake does not compare epochs and incarnations.
    StaleEpochAdmitted = "stale-epoch-admitted";
    /// A successor serves a table of its memory under any definition.
    KeptTableUnchecked = "kept-table-unchecked";
    /// A successor gives the blocks of its memory new region keys.
    KeysOfEachStart = "keys-of-each-start";
    /// RDMA ports are ranked without their rates.
    PortRateIgnored = "port-rate-ignored";
    /// Queue pairs take the first P_Key of a port, also with limited membership.
    LimitedPkeyTaken = "limited-pkey-taken";
    /// `rdma-check` passes two limited members of a partition.
    LimitedMembersPass = "limited-members-pass";
}

/// Whether servers of tests over verbs run appliers that busy-poll and never sleep, so that they poll tail
/// records. Set by `TIDEWATER_TEST_BUSY_POLL=1`, which is read once.
#[cfg(feature = "mutants")]
pub fn busy_poll() -> bool {
    static CHOSEN: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *CHOSEN.get_or_init(|| std::env::var("TIDEWATER_TEST_BUSY_POLL").is_ok_and(|d| d == "1"))
}

/// Whether appliers of tests busy-poll: always false in a build without the feature `mutants`.
#[cfg(not(feature = "mutants"))]
#[inline(always)]
pub const fn busy_poll() -> bool {
    false
}

/// Artificial limits of RDMA devices, for tests: one capable device stands for those that have less.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DeviceMask {
    /// The device has no 64-bit atomics.
    pub no_atomics: bool,
    /// The device has no memory windows.
    pub no_windows: bool,
    /// Maximum scatter elements of a READ; `None`: the device's own.
    pub read_elements: Option<u32>,
    /// Maximum bytes of a memory region; `None`: the device's own.
    pub region_bytes: Option<u64>,
}

/// Returns the artificial limits in `TIDEWATER_TEST_DEVICE`, which is read once: a list, separated by commas, of
/// `no-atomics`, `no-windows`, `read-elements=N` and `region-bytes=N`. Unset: none.
///
/// # Panics
/// If the list has another word, or a number that is none: the test would otherwise run on the unmasked device.
#[cfg(feature = "mutants")]
pub fn device_mask() -> DeviceMask {
    static CHOSEN: std::sync::OnceLock<DeviceMask> = std::sync::OnceLock::new();
    *CHOSEN.get_or_init(|| {
        let words = std::env::var("TIDEWATER_TEST_DEVICE").unwrap_or_default();
        let mut mask = DeviceMask::default();
        for word in words.split(',').filter(|word| !word.is_empty()) {
            match word.split_once('=') {
                None if word == "no-atomics" => mask.no_atomics = true,
                None if word == "no-windows" => mask.no_windows = true,
                Some(("read-elements", n)) if n.parse::<u32>().is_ok() => {
                    mask.read_elements = n.parse().ok();
                }
                Some(("region-bytes", n)) if n.parse::<u64>().is_ok() => {
                    mask.region_bytes = n.parse().ok();
                }
                _ => panic!("TIDEWATER_TEST_DEVICE: {word:?} is no limit of a device"),
            }
        }
        mask
    })
}

/// Returns no artificial limits, as always in a build without the feature `mutants`.
#[cfg(not(feature = "mutants"))]
#[inline(always)]
pub const fn device_mask() -> DeviceMask {
    DeviceMask {
        no_atomics: false,
        no_windows: false,
        read_elements: None,
        region_bytes: None,
    }
}

/// Mutant that `TIDEWATER_MUTANT` activates in this process, if any. Set by the first call of [`on`]; never set
/// while reached mutants are recorded.
#[cfg(feature = "mutants")]
static CHOSEN: std::sync::OnceLock<Option<Mutant>> = std::sync::OnceLock::new();

/// Whether `mutant` is active in this process: `TIDEWATER_MUTANT` names it. An unknown name activates none.
///
/// With `TIDEWATER_MUTANTS_REACHED=FILE` none is active. Each mutant that the process asks about has its name
/// appended to the file once: a test that does not reach a mutant cannot detect it.
///
/// # Panics
/// If that file cannot be written.
#[cfg(feature = "mutants")]
pub fn on(mutant: Mutant) -> bool {
    match CHOSEN.get() {
        Some(chosen) => *chosen == Some(mutant),
        None => first_look(mutant),
    }
}

/// First call of [`on`]: reads the environment, sets `CHOSEN` and returns whether `mutant` is active. Where reached
/// mutants are recorded, every call comes here, records `mutant` and returns false.
#[cfg(feature = "mutants")]
#[cold]
fn first_look(mutant: Mutant) -> bool {
    static FILE: std::sync::OnceLock<Option<std::ffi::OsString>> = std::sync::OnceLock::new();
    if let Some(file) = FILE.get_or_init(|| std::env::var_os("TIDEWATER_MUTANTS_REACHED")) {
        record(mutant, file.as_ref());
        return false;
    }
    let named = |name: String| {
        Mutant::ALL
            .iter()
            .find(|(n, _)| *n == name)
            .map(|&(_, m)| m)
    };
    *CHOSEN.get_or_init(|| std::env::var("TIDEWATER_MUTANT").ok().and_then(named)) == Some(mutant)
}

/// Appends a line with the name of a reached mutant to the file, once in this process. Panics if that fails.
#[cfg(feature = "mutants")]
fn record(mutant: Mutant, file: &std::path::Path) {
    use std::io::Write as _;
    static SEEN: std::sync::Mutex<Vec<Mutant>> = std::sync::Mutex::new(Vec::new());
    let mut seen = SEEN
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    if seen.contains(&mutant) {
        return;
    }
    seen.push(mutant);
    let name = Mutant::ALL
        .iter()
        .find(|(_, m)| *m == mutant)
        .map_or("", |(name, _)| name);
    let line = format!("{name}\n");
    let written = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(file);
    written
        .and_then(|mut file| file.write_all(line.as_bytes()))
        .unwrap_or_else(|e| panic!("{} cannot be written: {e}", file.display()));
}

/// Whether `mutant` is active: always false in a build without the feature `mutants`.
#[cfg(not(feature = "mutants"))]
#[inline(always)]
pub const fn on(_mutant: Mutant) -> bool {
    false
}
