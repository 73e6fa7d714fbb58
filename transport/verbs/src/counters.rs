//! Counters of one lane end's requests to its device: figures that do not depend on an emulator's
//! speed.

/// Counts of one lane end since it was opened. Each costs an addition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Counters {
    /// Batches handed to the device: writes to its doorbell, with rxe system calls.
    pub doorbells: u64,
    /// Work requests in these batches.
    pub requests: u64,
    /// Number of READs among the requests.
    pub reads: u64,
    /// READs with a payload that the device writes into the caller's own memory.
    pub scattered: u64,
    /// WRITEs among the requests, with or without immediate data, and not the empty ones.
    pub writes: u64,
    /// Number of atomics among the requests.
    pub atomics: u64,
    /// WRITEs with immediate data among the requests: they wake the other end.
    pub signals: u64,
    /// Signals that carry nothing but the count of receives posted again.
    pub empty_signals: u64,
    /// Requests that probe the peer while no other request is in flight.
    pub probes: u64,
    /// Completions of sends that were polled; mostly one per doorbell.
    pub completions: u64,
    /// Signals of the other end that were handled.
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

    /// Counts since `other`, of the same end.
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
