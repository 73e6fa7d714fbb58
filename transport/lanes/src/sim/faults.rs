//! Faults of the simulated network and machine.

use std::time::Duration;

/// Faults that the simulator's adversary may inject, with their probabilities and limits. The lane
/// contract allows all of them: code that fails under any setting relies on a property that `fabric` does
/// not promise.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Faults {
    /// Probability that a call on either end of a lane breaks it, with unknown outcome (F10).
    pub disconnect_per_op: f64,
    /// Share of all breaks, also those of tests and refused accesses, that neither end may notice for up
    /// to [`Faults::silence_max`].
    pub silent: f64,
    /// Longest time until both ends have noticed a silent break, like a TCP user timeout.
    pub silence_max: Duration,
    /// Whether the bytes of one 8-byte word may come from different times, in reads and in writes (F02).
    pub tear: bool,
    /// Whether lines of a read and words of a write move in any order.
    pub reorder: bool,
    /// Whether WRITEs of one direction are placed in any order, also past signals (F04, F15). Adaptive
    /// routing, a device that retransmits, and relaxed ordering of PCIe do so. Writes that overlap keep
    /// their order, and a signal arrives after all writes before it. Links made with
    /// [`LinkSpec::in_order`](super::LinkSpec::in_order) are not affected.
    pub reorder_writes: bool,
    /// Longest delay of a packet, in microseconds; most take a small part of it.
    pub delay_max_us: u64,
    /// Whether posts may stay at the sender until a flush or signal.
    pub hold: bool,
    /// Probability that a task is stopped at a step, as on a busy machine.
    pub stall_per_step: f64,
    /// Longest duration of such a stop.
    pub stall_max: Duration,
    /// Probability that a sleep ends for no reason.
    pub spurious_wake: f64,
    /// Latency of a distant network instead of random delays; `None`: [`Faults::delay_max_us`].
    pub distance: Option<Distance>,
}

/// Fixed latency of each simulated packet, in place of random delays. The virtual time of a call, divided
/// by a round trip, is then the number of its dependent round trips.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Distance {
    /// Time from one end to the other.
    pub one_way: Duration,
    /// Whether the server's end executes reads in the order of their submission, as over TCP: a fenced
    /// read then starts with the others. Otherwise the client's end holds a fenced read back until the
    /// earlier ones have completed, as an RDMA device does.
    pub reads_in_order: bool,
}

impl Faults {
    /// Returns the faults of a good network: delays of up to 4 us, no other fault.
    pub const fn calm() -> Self {
        Self {
            disconnect_per_op: 0.0,
            silent: 0.0,
            silence_max: Duration::from_secs(10),
            tear: false,
            reorder: false,
            reorder_writes: false,
            delay_max_us: 4,
            hold: false,
            stall_per_step: 0.0,
            stall_max: Duration::ZERO,
            spurious_wake: 0.0,
            distance: None,
        }
    }

    /// Returns the faults of a good network, but with the fixed latency `distance`, so that tests can
    /// count round trips.
    pub const fn distant(distance: Distance) -> Self {
        Self {
            distance: Some(distance),
            ..Self::calm()
        }
    }

    /// Returns all kinds of faults that break no lane: torn and reordered bytes, held posts, delays up to
    /// 50 us, stalls, spurious wake-ups.
    pub const fn rough() -> Self {
        Self {
            tear: true,
            reorder: true,
            reorder_writes: true,
            delay_max_us: 50,
            hold: true,
            stall_per_step: 0.002,
            stall_max: Duration::from_millis(2),
            spurious_wake: 0.05,
            ..Self::calm()
        }
    }

    /// Returns all faults of `Self::rough`, with longer delays and stalls, and breaks: a lane breaks
    /// about once in 300 calls. One in eight of the breaks is silent: the ends notice it late.
    pub const fn hostile() -> Self {
        Self {
            disconnect_per_op: 0.003,
            silent: 0.125,
            delay_max_us: 500,
            stall_per_step: 0.005,
            stall_max: Duration::from_millis(20),
            ..Self::rough()
        }
    }

    /// Returns the same faults without reordered writes: WRITEs are placed in the order in which they
    /// were posted, as over shared memory and TCP.
    #[must_use]
    pub const fn writes_in_order(self) -> Self {
        Self {
            reorder_writes: false,
            ..self
        }
    }

    /// Returns the same faults, but the adversary breaks no lane. `World::cut` and refused accesses still
    /// do.
    #[must_use]
    pub const fn unbroken(self) -> Self {
        Self {
            disconnect_per_op: 0.0,
            ..self
        }
    }
}
