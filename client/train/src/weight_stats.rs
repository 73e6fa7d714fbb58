//! Statistics of the trained weights: their number, exact zeros, and a fingerprint.
//!
//! No worker knows all keys. Each claims its own in a table by writing its rank, and the last claim
//! wins. Its worker counts the key, so that each key is counted once, wherever it occurs. The table
//! costs a row of 8 bytes a weight for a moment; rank 0 releases it afterwards.

use tidewater_protocol::layout::hash::mix64;
use tidewater_protocol::table::PushOp;

use super::all_gather::{ASIDE, AllGather, Row, WIDTH, join};
use crate::data::Dataset;
use tidewater::error::ClientError;
use tidewater::pull::{Missing, PullOptions};
use tidewater::session::Client;
use tidewater::table::{Table, TableBuilder};

/// Number of keys in one call.
const CHUNK: usize = 16 << 10;
pub(crate) const NAME: &str = "tidewater-train/claims";

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

    fn add(&mut self, other: [i64; 3]) {
        let [weights, zeros, fingerprint] = other.map(i64::cast_unsigned);
        self.weights = self.weights.wrapping_add(weights);
        self.zeros = self.zeros.wrapping_add(zeros);
        self.fingerprint = self.fingerprint.wrapping_add(fingerprint);
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
    all_gather: &AllGather,
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
    all_gather.meet(client)?;
    let mut stats = WeightStats::default();
    let options = PullOptions::default().missing(Missing::Initial);
    let (mut owners, mut values) = (Vec::new(), Vec::new());
    for keys in keys.chunks(CHUNK) {
        owners.resize(keys.len(), 0);
        values.resize(keys.len(), 0.0);
        client.pull_rows(&claims, keys, &mut owners, options)?;
        client.pull_rows(weights, keys, &mut values, options)?;
        for ((&key, &owner), &weight) in keys.iter().zip(&owners).zip(&values) {
            if owner == me {
                stats.count(key, weight);
            }
        }
    }
    let mut row: Row = [0; WIDTH];
    let counted = [stats.weights, stats.zeros, stats.fingerprint];
    row[..3].copy_from_slice(&counted.map(u64::cast_signed));
    let mut all = WeightStats::default();
    for row in all_gather.exchange(client, &row)? {
        all.add([row[0], row[1], row[2]]);
    }
    if client.rank().0 == 0 {
        client.release_table(claims)?;
    }
    Ok(all)
}
