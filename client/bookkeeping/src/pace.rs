//! Slow workers, from the step times that servers measure.

use std::collections::BTreeMap;

use tidewater_protocol::ids::WorkerId;
use tidewater_protocol::wire::control::{SlowMember, WorkerClock};

/// Factor over the median step time of all threads above which a thread counts as slow.
const FACTOR: u64 = 2;

/// Finds the slow workers from the step times of all threads, by the rule of `Client::slow_workers`.
pub fn find_slow(threads: &[WorkerClock]) -> Vec<SlowMember> {
    let mut steps: Vec<u64> = threads
        .iter()
        .map(|t| t.step_us)
        .filter(|&us| us > 0)
        .collect();
    steps.sort_unstable();
    // The lower one of two: one of two workers can be slow.
    let Some(&median_us) = steps.get(steps.len().saturating_sub(1) / 2) else {
        return Vec::new();
    };
    let mut slow: BTreeMap<WorkerId, u64> = BTreeMap::new();
    for thread in threads
        .iter()
        .filter(|t| t.step_us > median_us.saturating_mul(FACTOR))
    {
        let longest = slow.entry(thread.worker).or_default();
        *longest = thread.step_us.max(*longest);
    }
    let member = |(worker, step_us)| SlowMember {
        worker,
        step_us,
        median_us,
    };
    slow.into_iter().map(member).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_is_twice_the_median() {
        let threads = |steps: &[u64]| -> Vec<WorkerClock> {
            let ranks = (0..).map(WorkerId);
            let thread = |(worker, &step_us)| WorkerClock {
                worker,
                thread: 0,
                clock: 9,
                step_us,
            };
            ranks.zip(steps).map(thread).collect()
        };
        let slow = |steps: &[u64]| {
            let slow = find_slow(&threads(steps));
            slow.iter()
                .map(|s| (s.worker.0, s.median_us))
                .collect::<Vec<_>>()
        };
        assert_eq!(slow(&[]), []);
        assert_eq!(slow(&[9_000]), []);
        assert_eq!(slow(&[100, 200]), []);
        assert_eq!(slow(&[100, 201]), [(1, 100)]);
        assert_eq!(slow(&[100, 301, 100, 120]), [(1, 100)]);
        assert_eq!(slow(&[0, 0, 100, 0]), [], "the others have too few steps");
        assert_eq!(slow(&[100, 100, 900, 800, 110]), [(2, 110), (3, 110)]);
    }
}
