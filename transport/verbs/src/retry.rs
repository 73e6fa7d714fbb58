//! Retry timeout of a queue pair, and the time after which a request without a completion is lost.

use tidewater_protocol::limits::{
    VERBS_PROBE_EVERY, VERBS_RETRIES, VERBS_RNR_RETRIES, VERBS_RNR_TIMER, VERBS_SILENT_LOOKS,
    VERBS_TIMEOUT,
};
use tidewater_topology::longest_retry;

/// Time that a pair waits for a peer that does not answer: about `(retries + 1) x 4.096 us x
/// 2^timeout`, some devices four times that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryTimeout {
    /// Exponent: a packet is sent again after 4.096 us x 2^this.
    pub timeout: u8,
    /// Number of retransmissions, at most 7.
    pub retries: u8,
    /// Times to wait for the peer's next receive, at most 6.
    pub rnr_retries: u8,
    /// Time between these waits, as the InfiniBand specification encodes it.
    pub rnr_timer: u8,
}

impl RetryTimeout {
    /// Returns the defaults with a retransmission after 4.096 us x 2^`timeout`.
    pub fn with_timeout(timeout: u8) -> Self {
        Self {
            timeout,
            ..Self::default()
        }
    }

    /// Polls without a completion, each [`VERBS_PROBE_EVERY`] after the one before, after which the device has
    /// lost a request: all retries have ended a poll before.
    pub(super) fn silent_looks(self) -> u32 {
        let longest = longest_retry(self.timeout, self.retries);
        let probes = longest.as_millis().div_ceil(VERBS_PROBE_EVERY.as_millis());
        u32::try_from(probes + 1).map_or(u32::MAX, |looks| looks.max(VERBS_SILENT_LOOKS))
    }
}

impl Default for RetryTimeout {
    fn default() -> Self {
        Self {
            timeout: VERBS_TIMEOUT,
            retries: VERBS_RETRIES,
            rnr_retries: VERBS_RNR_RETRIES,
            rnr_timer: VERBS_RNR_TIMER,
        }
    }
}
