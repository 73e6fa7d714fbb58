//! Latency histograms of a run's calls, summed over the workers.

use std::time::Duration;

use hdrhistogram::Histogram;
use tidewater_protocol::table::PushOp;

use super::all_gather::{ASIDE, meet};
use tidewater::error::ClientError;
use tidewater::pull::PullOptions;
use tidewater::session::Client;
use tidewater::table::{Table, TableBuilder};

/// Longest distinguished latency, in nanoseconds; longer ones count as this.
const LONGEST_NS: u64 = 60_000_000_000;
/// Significant decimal digits of a recorded value.
const DIGITS: u8 = 2;
const KINDS: usize = 3;
pub(crate) const NAME: &str = "tidewater-train/latency";

/// Kinds of measured calls.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    /// A pull of a batch's weights, until they have arrived.
    Pull,
    /// A push of a batch's gradients, until the call returns: the frames are being sent.
    Push,
    /// The same, until it is known to be applied. A push is checked at the next steps, so this is an
    /// upper bound with the resolution of a step.
    Applied,
}

/// Percentiles in microseconds; `None` without measurements.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Percentiles {
    pub(crate) p50_us: Option<f64>,
    pub(crate) p99_us: Option<f64>,
}

/// One histogram for each [`Kind`].
#[derive(Debug)]
pub(crate) struct Latencies(Vec<Histogram<u64>>);

impl Latencies {
    pub(crate) fn new() -> Self {
        // The type accepts these constant bounds, so none is missing; a test checks it.
        let made =
            (0..KINDS).filter_map(|_| Histogram::new_with_bounds(1, LONGEST_NS, DIGITS).ok());
        Self(made.collect())
    }

    pub(crate) fn record(&mut self, kind: Kind, took: Duration) {
        if let Some(histogram) = self.0.get_mut(kind as usize) {
            let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
            histogram.saturating_record(ns);
        }
    }

    pub(crate) fn percentiles(&self, kind: Kind) -> Percentiles {
        let measured = self.0.get(kind as usize).filter(|h| !h.is_empty());
        let at = |q| measured.map(|h| h.value_at_quantile(q) as f64 / 1e3);
        Percentiles {
            p50_us: at(0.5),
            p99_us: at(0.99),
        }
    }

    /// Sums the histograms of all workers, bucket by bucket, in a table. Rank 0 has the sum afterwards,
    /// the others keep their own. All workers call it, once a run.
    pub(crate) fn join(&mut self, client: &mut Client) -> Result<(), ClientError> {
        let counts = self.counts();
        let spec = TableBuilder::range::<i64>(NAME, counts.len() as u64, 1)
            .block_bytes(4096)
            .domain(ASIDE)
            .partitions(1);
        let table: Table<i64> = client.create_table(spec.spec())?;
        let ticket = client.push_range(&table, 0, &counts, PushOp::Sum)?;
        client.wait_applied(&ticket)?;
        meet(client)?;
        if client.rank().0 == 0 {
            let mut sums = counts;
            client.pull_range(&table, 0, &mut sums, PullOptions::default())?;
            self.set_counts(&sums);
            client.release_table(table)?;
        }
        Ok(())
    }

    /// Counts of all buckets of all histograms, in a fixed order.
    fn counts(&self) -> Vec<i64> {
        let all = self.0.iter().flat_map(|h| h.iter_all());
        all.map(|bucket| bucket.count_at_value() as i64).collect()
    }

    fn set_counts(&mut self, counts: &[i64]) {
        let mut counts = counts.iter();
        for histogram in &mut self.0 {
            let values: Vec<u64> = histogram
                .iter_all()
                .map(|b| b.value_iterated_to())
                .collect();
            histogram.reset();
            for (value, &count) in values.into_iter().zip(&mut counts) {
                // A count from another process may be anything; a negative one counts nothing.
                histogram.saturating_record_n(value, u64::try_from(count).unwrap_or(0));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Latencies {
        let mut latencies = Latencies::new();
        for us in 1..=1000 {
            latencies.record(Kind::Pull, Duration::from_micros(us));
        }
        latencies.record(Kind::Applied, Duration::from_secs(3600));
        latencies
    }

    #[test]
    fn percentiles_are_within_two_digits() {
        let latencies = sample();
        let pull = latencies.percentiles(Kind::Pull);
        assert!((pull.p50_us.unwrap() - 500.0).abs() < 5.0, "{pull:?}");
        assert!((pull.p99_us.unwrap() - 990.0).abs() < 10.0, "{pull:?}");
        assert_eq!(latencies.percentiles(Kind::Push), Percentiles::default());
        let longest = latencies.percentiles(Kind::Applied).p50_us.unwrap();
        assert!((6.0e7..6.1e7).contains(&longest), "{longest}");
    }

    #[test]
    fn counts_carry_a_histogram_and_add_up() {
        let (one, mut two) = (sample(), sample());
        let counts = one.counts();
        assert_eq!(
            counts.len(),
            Latencies::new().counts().len(),
            "fixed number of buckets"
        );
        let doubled: Vec<i64> = counts.iter().map(|c| 2 * c).collect();
        two.set_counts(&doubled);
        assert_eq!(two.counts(), doubled);
        assert_eq!(two.percentiles(Kind::Pull), one.percentiles(Kind::Pull));
        two.set_counts(&vec![-1; counts.len()]);
        assert_eq!(two.percentiles(Kind::Pull), Percentiles::default());
    }
}
