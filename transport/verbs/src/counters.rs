//! What an end of a lane asked its device for: counts that an emulator cannot blur.

/// Counts of one end of a lane since it was opened. Cost of keeping them: an addition each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Counters {
    /// Chains handed to the device: writes to its doorbell, with rxe system calls.
    pub doorbells: u64,
    /// Work requests in them.
    pub requests: u64,
    /// Of them READs.
    pub reads: u64,
    /// Of these, those whose payload the device writes into the caller's own memory.
    pub scattered: u64,
    /// Of them WRITEs, with or without immediate data, and not the empty ones.
    pub writes: u64,
    /// Of them atomics.
    pub atomics: u64,
    /// Of them WRITEs with immediate data: they wake the other end.
    pub signals: u64,
    /// Of them, those with nothing to tell but receives that were posted again.
    pub empty_signals: u64,
    /// Of the requests, those that ask whether the peer is there: nothing else was under way.
    pub probes: u64,
    /// Completions of sends that were polled; one a doorbell, mostly.
    pub completions: u64,
    /// Signals of the other end that were taken in.
    pub received: u64,
    /// Waits for room or credit: the other end, or the network, was slower than this end.
    pub stalls: u64,
}

impl core::ops::Add for Counters {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            doorbells: self.doorbells + other.doorbells,
            requests: self.requests + other.requests,
            reads: self.reads + other.reads,
            scattered: self.scattered + other.scattered,
            writes: self.writes + other.writes,
            atomics: self.atomics + other.atomics,
            signals: self.signals + other.signals,
            empty_signals: self.empty_signals + other.empty_signals,
            probes: self.probes + other.probes,
            completions: self.completions + other.completions,
            received: self.received + other.received,
            stalls: self.stalls + other.stalls,
        }
    }
}

impl core::ops::Sub for Counters {
    type Output = Self;

    /// What was counted since `other`, of the same end.
    fn sub(self, other: Self) -> Self {
        let since = u64::saturating_sub;
        Self {
            doorbells: since(self.doorbells, other.doorbells),
            requests: since(self.requests, other.requests),
            reads: since(self.reads, other.reads),
            scattered: since(self.scattered, other.scattered),
            writes: since(self.writes, other.writes),
            atomics: since(self.atomics, other.atomics),
            signals: since(self.signals, other.signals),
            empty_signals: since(self.empty_signals, other.empty_signals),
            probes: since(self.probes, other.probes),
            completions: since(self.completions, other.completions),
            received: since(self.received, other.received),
            stalls: since(self.stalls, other.stalls),
        }
    }
}
