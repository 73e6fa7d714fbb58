//! Detects requests that their device has lost.
//!
//! On a reliable connection every request ends, well or badly, within the retries of its packets: some
//! two seconds on the slowest devices. Soft-RoCE (Linux 6.1) breaks this. It repeats a READ while
//! another core handles its answer, and loses count of those in flight, until it sends none any more
//! (ADR 0019). Requests posted behind it do not help. So a pair without a completion, poll after poll,
//! for longer than any device takes, is as broken as one that its device reports. Its lane is rebuilt.
//!
//! Polls are counted and not seconds alone: after a complete machine stood still, its device has had no
//! time either.

use std::time::Instant;

use super::in_flight::InFlight;
use super::lane_failure::{LaneFailure, Request};
use super::retry::RetryTimeout;
use tidewater_protocol::limits::VERBS_PROBE_EVERY;

/// Time without a completion on a pair.
#[derive(Debug)]
pub(super) struct StallDetector {
    /// Polls without a completion after which a request is lost.
    looks_max: u32,
    since: Option<Since>,
}

#[derive(Debug)]
struct Since {
    /// Number of the oldest request in flight.
    oldest: u64,
    /// Time from which the next poll counts.
    next: Instant,
    /// Number of polls that counted.
    looks: u32,
}

impl StallDetector {
    /// Creates a detector for a pair with this retry timeout.
    pub(super) fn new(retry: RetryTimeout) -> Self {
        Self {
            looks_max: retry.silent_looks(),
            since: None,
        }
    }

    /// Call this with `now` when a poll has found no completion; `request` describes one in flight.
    /// Cost: nothing when no request is in flight.
    ///
    /// # Errors
    /// [`LaneFailure::Lost`] when the requests of `in_flight` have been silent for too long.
    pub(super) fn look<T>(
        &mut self,
        in_flight: &InFlight<T>,
        now: Instant,
        request: impl FnOnce(&T) -> Request,
    ) -> Result<(), LaneFailure> {
        let Some(oldest) = in_flight.oldest() else {
            self.since = None;
            return Ok(());
        };
        match &mut self.since {
            Some(since) if since.oldest == oldest => {
                if now >= since.next {
                    since.looks += 1;
                    since.next = now + VERBS_PROBE_EVERY;
                }
                if since.looks >= self.looks_max
                    && let Some(lost) = in_flight.get(oldest)
                {
                    return Err(LaneFailure::Lost(request(lost)));
                }
            }
            _ => {
                self.since = Some(Since {
                    oldest,
                    next: now + VERBS_PROBE_EVERY,
                    looks: 0,
                });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use tidewater_protocol::limits::{VERBS_RETRY_COUNTS, VERBS_SILENT_LOOKS, VERBS_TIMEOUTS};
    use tidewater_runtime::clock;
    use tidewater_topology::longest_retry;

    /// Requests in flight under a manual clock.
    struct Rig {
        begin: Instant,
        in_flight: InFlight<()>,
        stall: StallDetector,
    }

    impl Rig {
        fn is_lost(&mut self, seconds: u32) -> bool {
            let now = self.begin + VERBS_PROBE_EVERY * seconds + Duration::from_millis(1);
            let lost = self.stall.look(&self.in_flight, now, |()| Request::PROBE);
            matches!(lost, Err(LaneFailure::Lost(_)))
        }
    }

    /// No request counts as lost before its device has given up, for all timeouts that a user may set.
    #[test]
    fn losses_are_declared_after_the_longest_retry() {
        for timeout in VERBS_TIMEOUTS {
            for retries in VERBS_RETRY_COUNTS {
                let retry = RetryTimeout {
                    timeout,
                    retries,
                    ..RetryTimeout::default()
                };
                let mut rig = Rig {
                    begin: clock::now(),
                    in_flight: InFlight::new(1),
                    stall: StallDetector::new(retry),
                };
                rig.in_flight.push(());
                let lost = (0..1_000).find(|&s| rig.is_lost(s)).unwrap();
                let lost = VERBS_PROBE_EVERY * lost;
                let longest = longest_retry(timeout, retries);
                let least = VERBS_PROBE_EVERY * VERBS_SILENT_LOOKS;
                assert!(longest < lost, "{timeout} {retries}: {lost:?}");
                assert!(
                    lost <= (longest + 2 * VERBS_PROBE_EVERY).max(least),
                    "{timeout} {retries}: {lost:?}"
                );
            }
        }
        assert_eq!(RetryTimeout::default().silent_looks(), VERBS_SILENT_LOOKS);
    }

    #[test]
    fn only_silence_in_look_after_look_is_a_loss() {
        let mut rig = Rig {
            begin: clock::now(),
            in_flight: InFlight::new(4),
            stall: StallDetector::new(RetryTimeout::default()),
        };
        assert!((0..100).all(|s| !rig.is_lost(s)), "nothing is under way");
        rig.in_flight.push(());
        // It ends just in time, and the next one too: a slow device.
        for round in 0..10 {
            let from = 100 + round * VERBS_SILENT_LOOKS;
            assert!(
                (0..VERBS_SILENT_LOOKS).all(|s| !rig.is_lost(from + s)),
                "{round}"
            );
            rig.in_flight.push(());
            assert_eq!(rig.in_flight.retire(u64::from(round)).count(), 1);
        }
        // An hour without a poll counts as one poll.
        assert!(!rig.is_lost(1_000));
        assert!(!rig.is_lost(4_600));
        // A request posted behind it is no sign of life.
        rig.in_flight.push(());
        let lost = (0..10).position(|s| rig.is_lost(4_601 + s));
        assert_eq!(lost, Some(VERBS_SILENT_LOOKS as usize - 2));
    }
}
