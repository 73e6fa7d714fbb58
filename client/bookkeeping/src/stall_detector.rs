//! Stall detection: frames of a lane that go unanswered for too long.

use std::time::Instant;

use tidewater_protocol::limits::{LANE_SILENCE_DOUBLINGS, LANE_SILENCE_MAX};

/// Detects a lane with unanswered frames and a silent server: a path that drops data without an error.
#[derive(Debug, Default)]
pub struct StallDetector {
    /// Time since when nothing has moved, and the frames applied then.
    since: Option<(Instant, u64)>,
    /// Times that the lane was given up in a row.
    given_up: u32,
}

impl StallDetector {
    /// Checks the state of the ring. Returns whether the lane is to be given up. `applied` is the last
    /// frame that the server has applied; `drained` says that none is unanswered.
    pub fn look(&mut self, now: Instant, drained: bool, applied: u64) -> bool {
        match self.since {
            Some((since, before)) if !drained && applied == before => {
                let longest = LANE_SILENCE_MAX * (1 << self.given_up.min(LANE_SILENCE_DOUBLINGS));
                let over = now.duration_since(since) >= longest;
                if over {
                    self.since = Some((now, before));
                    self.given_up += 1;
                }
                over
            }
            before => {
                if before.is_some_and(|(_, before)| applied != before) {
                    self.given_up = 0;
                }
                self.since = (!drained).then_some((now, applied));
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tidewater_runtime::clock;

    use super::*;

    #[test]
    fn a_silent_lane_is_given_up_less_and_less_often() {
        let begin = clock::now();
        let mut silence = StallDetector::default();
        let given_up = |silence: &mut StallDetector, applied| {
            let seconds = (0..400).filter(|&s| {
                let now = begin + Duration::from_secs(s);
                silence.look(now, false, applied)
            });
            seconds.collect::<Vec<u64>>()
        };
        assert_eq!(given_up(&mut silence, 5), [10, 30, 70, 150, 310]);
        // An answer, and a lane without unanswered frames, restart the detection.
        assert!(!silence.look(begin, false, 6));
        assert_eq!(given_up(&mut silence, 6), [10, 30, 70, 150, 310]);
        for s in 0..100 {
            assert!(!silence.look(begin + Duration::from_secs(s), true, 6));
        }
        assert!(!silence.look(begin + Duration::from_secs(100), false, 6));
    }
}
