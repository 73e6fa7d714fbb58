//! Times of samples: the histogram, and the figures of a row.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

/// Histogram units per nanosecond: calls that are timed in groups take fractions.
const PER_NS: f64 = 10.0;
/// Recorded samples of one case.
#[derive(Debug)]
pub struct Samples {
    histogram: Histogram<u64>,
    timer_cost: Duration,
    calls: u64,
    time: Duration,
}

/// Figures of a case, times in microseconds for one call. Percentiles and the maximum are over samples, each
/// with the mean time of its calls.
#[derive(Debug, Clone, Copy, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Figures {
    /// Number of measured calls.
    pub ops: u64,
    /// Number of samples: groups of calls timed together.
    pub samples: u64,
    /// Median time of a call.
    pub p50_us: f64,
    /// 90th percentile of a call.
    pub p90_us: f64,
    /// 99th percentile of a call.
    pub p99_us: f64,
    /// 99.9th percentile; the maximum below 1,000 samples.
    pub p999_us: f64,
    /// Largest time of a call.
    pub max_us: f64,
    /// Mean: time of all calls divided by their number.
    pub avg_us: f64,
    /// Payload megabytes (10^6) a second.
    pub mb_per_s: f64,
    /// Million calls a second.
    pub mops_per_s: f64,
}

impl Samples {
    /// Creates an empty histogram. `timer_cost` is subtracted from each sample.
    #[allow(
        clippy::missing_panics_doc,
        reason = "the bounds of the histogram are constants"
    )]
    pub fn new(timer_cost: Duration) -> Self {
        // From a tenth of a nanosecond to hours, three digits: the bounds are constants.
        let histogram = Histogram::new_with_bounds(1, 1 << 47, 3);
        let histogram = histogram.expect("1 <= low, 2 x low <= high, at most 5 digits");
        Self {
            histogram,
            timer_cost,
            calls: 0,
            time: Duration::ZERO,
        }
    }

    /// Adds one sample: `calls` calls, at least 1, between the clock readings `from` and `to`.
    pub fn record(&mut self, from: Instant, to: Instant, calls: u64) {
        let time = (to - from).saturating_sub(self.timer_cost);
        let each = time.as_secs_f64() * 1e9 * PER_NS / calls as f64;
        self.histogram
            .saturating_record((each.round() as u64).max(1));
        self.calls += calls;
        self.time += time;
    }

    /// Number of recorded calls.
    pub const fn calls(&self) -> u64 {
        self.calls
    }

    /// Adds all samples of `other`.
    pub fn merge(&mut self, other: &Self) {
        // Both histograms have the same bounds.
        let _ = self.histogram.add(&other.histogram);
        self.calls += other.calls;
        self.time += other.time;
    }

    /// Pairs of a time per call, in tenths of a nanosecond, and its number of samples; ascending. Another
    /// process passes them to [`add`](Self::add).
    pub fn buckets(&self) -> Vec<(u64, u64)> {
        let all = self.histogram.iter_recorded();
        all.map(|v| (v.value_iterated_to(), v.count_at_value()))
            .collect()
    }

    /// Adds the [`buckets`](Self::buckets) of another process with `calls` calls that took `time` together.
    pub fn add(&mut self, buckets: &[(u64, u64)], calls: u64, time: Duration) {
        for &(value, count) in buckets {
            self.histogram.saturating_record_n(value.max(1), count);
        }
        self.calls += calls;
        self.time += time;
    }

    /// Sum of the sample times, each less the timer's cost.
    pub const fn time(&self) -> Duration {
        self.time
    }

    /// Figures for calls that each move `bytes` of payload; rates are over the time in samples.
    pub fn figures(&self, bytes: u64) -> Figures {
        self.figures_over(bytes, self.time)
    }

    /// Figures for calls of `bytes` bytes of payload with rates over `time`: the wall time of an open loop, or
    /// of several threads.
    pub fn figures_over(&self, bytes: u64, time: Duration) -> Figures {
        let us = |tenths: u64| tenths as f64 / PER_NS / 1e3;
        let at = |quantile| us(self.histogram.value_at_quantile(quantile));
        let seconds = time.as_secs_f64().max(1e-12);
        Figures {
            ops: self.calls,
            samples: self.histogram.len(),
            p50_us: at(0.5),
            p90_us: at(0.9),
            p99_us: at(0.99),
            p999_us: at(0.999),
            max_us: us(self.histogram.max()),
            avg_us: self.time.as_secs_f64() * 1e6 / self.calls.max(1) as f64,
            mb_per_s: self.calls as f64 * bytes as f64 / 1e6 / seconds,
            mops_per_s: self.calls as f64 / 1e6 / seconds,
        }
    }
}

#[cfg(test)]
mod tests {
    use tidewater_runtime::clock;

    use super::*;

    #[test]
    fn units() {
        let mut samples = Samples::new(Duration::from_nanos(20));
        let start = clock::now();
        for n in 1..=1000 {
            // 100 calls of n microseconds each, plus the timer.
            let took = Duration::from_micros(100 * n) + Duration::from_nanos(20);
            samples.record(start, start + took, 100);
        }
        let f = samples.figures(4096);
        assert_eq!((f.ops, f.samples), (100_000, 1000));
        let near = |a: f64, b: f64| (a / b - 1.0).abs() < 2e-3;
        assert!(near(f.p50_us, 500.0) && near(f.p90_us, 900.0) && near(f.p99_us, 990.0));
        assert!(near(f.p999_us, 999.0) && near(f.max_us, 1000.0) && near(f.avg_us, 500.5));
        assert!(near(f.mops_per_s, 1.0 / 500.5));
        assert!(near(f.mb_per_s, 4096.0 / 500.5));
    }

    #[test]
    fn fractions_of_nanoseconds_survive() {
        let mut samples = Samples::new(Duration::ZERO);
        let start = clock::now();
        samples.record(start, start + Duration::from_nanos(1050), 100);
        assert!((samples.figures(8).p50_us - 0.0105).abs() < 1e-4);
    }
}
