//! Statistics of the trained weights: their number, exact zeros, and a fingerprint.
//!
//! No worker knows all keys. Each claims its own in a table by writing its rank, and the last claim
//! wins. Its worker counts the key, so that each key is counted once, wherever it occurs. The table
//! costs a row of 8 bytes a weight for a moment; rank 0 releases it afterwards.

use tidewater_protocol::layout::hash::mix64;
use tidewater_protocol::table::PushOp;

use super::meet::{ASIDE, join, meet};
use crate::data::Dataset;
use tidewater::ReduceOp;
use tidewater::error::ClientError;
use tidewater::pull::{Missing, PullOptions};
use tidewater::session::Client;
use tidewater::table::{Table, TableBuilder};

/// Number of keys in one call.
const CHUNK: usize = 16 << 10;
const NAME: &str = "tidewater-train/claims";

/// Statistics of all weights that the training set touches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WeightStats {
    /// Number of weights touched.
    pub weights: u64,
    /// Number of weights that are exactly zero.
    pub zeros: u64,
    /// Sum over all weights of a hash of key and bits. Equal models have equal fingerprints, whatever
    /// the order, the number of workers or servers.
    pub fingerprint: u64,
}

impl WeightStats {
    fn count(&mut self, key: u64, weight: f32) {
        self.weights += 1;
        self.zeros += u64::from(weight == 0.0);
        let hash = mix64(mix64(key) ^ u64::from(weight.to_bits()));
        self.fingerprint = self.fingerprint.wrapping_add(hash);
    }

    /// Replaces the worker's statistics by the sums over all workers.
    fn sum(&mut self, client: &mut Client) -> Result<(), ClientError> {
        let counted = [self.weights, self.zeros, self.fingerprint];
        let mut sums = counted.map(u64::cast_signed);
        client.all_reduce(&mut sums, ReduceOp::Sum)?;
        [self.weights, self.zeros, self.fingerprint] = sums.map(i64::cast_unsigned);
        Ok(())
    }
}

/// Keys of a training set, ascending, each once, with `bias` unless the set is empty.
pub(crate) fn keys_of(data: &Dataset, bias: Option<u64>) -> Vec<u64> {
    let bias = bias.filter(|_| data.rows() > 0);
    let mut keys: Vec<u64> = data.iter().flat_map(|row| row.keys).copied().collect();
    keys.extend(bias);
    keys.sort_unstable();
    keys.dedup();
    keys
}

/// Computes the statistics of all workers' `keys`. All workers call it, once a run.
pub(crate) fn take(
    client: &mut Client,
    weights: &Table<f32>,
    keys: &[u64],
) -> Result<WeightStats, ClientError> {
    let spec = TableBuilder::sparse::<i64>(NAME, 1).domain(ASIDE);
    let claims: Table<i64> = client.create_table(spec.spec())?;
    let me = i64::from(client.rank().0) + 1;
    let mut sent = None;
    for keys in keys.chunks(CHUNK) {
        let mine = vec![me; keys.len()];
        let ticket = client.push_rows(&claims, keys, &mine, PushOp::Assign)?;
        join(&mut sent, ticket);
    }
    if let Some(sent) = sent {
        client.wait_applied(&sent)?;
    }
    meet(client)?;
    let mut census = WeightStats::default();
    let options = PullOptions::default().missing(Missing::Initial);
    let (mut owners, mut values) = (Vec::new(), Vec::new());
    for keys in keys.chunks(CHUNK) {
        owners.resize(keys.len(), 0);
        values.resize(keys.len(), 0.0);
        client.pull_rows(&claims, keys, &mut owners, options)?;
        client.pull_rows(weights, keys, &mut values, options)?;
        for ((&key, &owner), &weight) in keys.iter().zip(&owners).zip(&values) {
            if owner == me {
                census.count(key, weight);
            }
        }
    }
    // When it returns, every worker has read its claims.
    census.sum(client)?;
    if client.rank().0 == 0 {
        client.release_table(claims)?;
    }
    Ok(census)
}
