//! Logistic regression on a mini-batch.
//!
//! For a row with label `y` in {0, 1} and features `x`: margin `m = b + sum w_k x_k`, probability
//! `p = 1 / (1 + exp(-m))`, loss `ln(1 + exp(-m))` or `ln(1 + exp(m))`, gradient `(p - y) x_k`.
//!
//! Sums run in `f64`, over rows in batch order and features in key order, and are rounded to `f32`
//! once: equal inputs give equal bits on every run. (`exp` is the platform's, so machines with
//! different C libraries may differ in the last bit.)

use std::num::NonZeroU32;

use crate::data::Batch;

/// Default key of the bias, above every key that a training file can hold
/// ([`DATA_KEY_LIMIT`](tidewater_protocol::limits::DATA_KEY_LIMIT)).
pub const BIAS_KEY: u64 = u64::MAX - 1;

/// Combination of the gradients of a batch's rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Scale {
    /// Mean of the rows: the learning rate does not depend on the batch size.
    #[default]
    Mean,
    /// Sum of the rows.
    Sum,
    /// Sum of the rows divided by this number, the nominal batch size. Like [`Scale::Mean`], but the
    /// short batch at the end of an epoch counts by its rows. A mean over a handful of rows is so noisy
    /// that it spoils a model that is evaluated right after it.
    Nominal(NonZeroU32),
}

/// Parameters of the logistic model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LogisticConfig {
    /// Key of the bias, `None` for a model without. A feature of the same key would share its weight;
    /// no file can hold [`BIAS_KEY`].
    pub bias_key: Option<u64>,
    /// Weight of the penalty `l2 / 2 * w^2` on the features of the batch, not on the bias. Only keys of
    /// the batch are pulled, so a key decays when it occurs, not at every step.
    pub l2: f32,
    /// Combination of the rows' gradients.
    pub scale: Scale,
}

impl Default for LogisticConfig {
    fn default() -> Self {
        Self {
            bias_key: Some(BIAS_KEY),
            l2: 0.0,
            scale: Scale::Mean,
        }
    }
}

/// Misuse of a call.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// Weights and keys differ in number.
    #[error("{given} weights for the {keys} keys of the batch; pull exactly the keys of `prepare`")]
    WeightCount {
        /// Number of keys of the batch.
        keys: usize,
        /// Number of weights given.
        given: usize,
    },
    /// The batch is not the one prepared.
    #[error(
        "a batch of {given} features, but one of {prepared} was prepared; call `prepare` first"
    )]
    NotPrepared {
        /// Features of the prepared batch, its biases included.
        prepared: usize,
        /// Features of the given batch.
        given: usize,
    },
    /// A label is no probability.
    #[error("row {row} of the batch has label {label}; labels must be mapped to 0 and 1 when read")]
    Label {
        /// Position of the row in the batch.
        row: usize,
        /// Label of the row.
        label: f32,
    },
}

/// Sum of losses over rows.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct BatchLoss {
    /// Number of rows summed.
    pub rows: usize,
    /// Sum of their log-losses (natural logarithm), without penalty.
    pub loss_sum: f64,
}

/// One worker's mini-batch arithmetic. It keeps its buffers: no allocation once it has seen batches of
/// the usual size.
#[derive(Debug)]
pub struct LogisticStep {
    config: LogisticConfig,
    /// Key and position of every entry of the batch; the bias has the last position.
    entries: Vec<(u64, usize)>,
    keys: Vec<u64>,
    /// Position in `keys` of each entry, by the entry's position in the batch.
    slots: Vec<usize>,
    sums: Vec<f64>,
    gradient: Vec<f32>,
}

impl LogisticStep {
    /// Makes a step with empty buffers.
    pub fn new(config: LogisticConfig) -> Self {
        Self {
            config,
            entries: Vec::new(),
            keys: Vec::new(),
            slots: Vec::new(),
            sums: Vec::new(),
            gradient: Vec::new(),
        }
    }

    /// Finds the keys of a batch: ascending, each once, the bias among them unless the batch is
    /// empty. `O(n log n)` in the batch's features.
    pub fn prepare(&mut self, batch: &Batch<'_>) -> &[u64] {
        self.entries.clear();
        let keys = batch.rows().flat_map(|row| row.keys);
        let bias = self.config.bias_key.iter().filter(|_| !batch.is_empty());
        self.entries.extend(keys.chain(bias).copied().zip(0..));
        // Positions differ, so the order is total. The unstable sort, which needs no memory, has one
        // possible result.
        self.entries.sort_unstable();
        self.keys.clear();
        self.slots.clear();
        self.slots.resize(self.entries.len(), 0);
        for &(key, position) in &self.entries {
            if self.keys.last() != Some(&key) {
                self.keys.push(key);
            }
            self.slots[position] = self.keys.len() - 1;
        }
        &self.keys
    }

    /// The keys of the prepared batch.
    pub fn keys(&self) -> &[u64] {
        &self.keys
    }

    /// Computes the gradient at `weights`, which are aligned with [`LogisticStep::keys`]. Read it
    /// from [`LogisticStep::gradient`].
    ///
    /// # Errors
    /// Another batch than the prepared one, a wrong number of weights, or a label outside `[0, 1]`.
    pub fn compute(&mut self, batch: &Batch<'_>, weights: &[f32]) -> Result<BatchLoss, ModelError> {
        self.check(batch, weights)?;
        self.sums.clear();
        self.sums.resize(self.keys.len(), 0.0);
        let bias = self.bias_slot();
        let mut loss_sum = 0.0;
        let mut slots = &self.slots[..];
        for (index, row) in batch.rows().enumerate() {
            if !(0.0..=1.0).contains(&row.label) {
                let label = row.label;
                return Err(ModelError::Label { row: index, label });
            }
            let (row_slots, rest) = slots.split_at(row.keys.len());
            slots = rest;
            let margin = margin(bias, row_slots, row.values, weights);
            let label = f64::from(row.label);
            loss_sum += log_loss_of_margin(margin, label);
            let error = sigmoid(margin) - label;
            for (&slot, &value) in row_slots.iter().zip(row.values) {
                self.sums[slot] += error * f64::from(value);
            }
            if let Some(slot) = bias {
                self.sums[slot] += error;
            }
        }
        self.finish_gradient(batch.len(), weights, bias);
        Ok(BatchLoss {
            rows: batch.len(),
            loss_sum,
        })
    }

    /// The gradient of the last [`LogisticStep::compute`], aligned with [`LogisticStep::keys`].
    pub fn gradient(&self) -> &[f32] {
        &self.gradient
    }

    /// Appends each row's probability of label 1 to `out`, in batch order.
    ///
    /// # Errors
    /// Another batch than the prepared one, or a wrong number of weights.
    pub fn predict(
        &self,
        batch: &Batch<'_>,
        weights: &[f32],
        out: &mut Vec<f64>,
    ) -> Result<(), ModelError> {
        self.check(batch, weights)?;
        let bias = self.bias_slot();
        let mut slots = &self.slots[..];
        for row in batch.rows() {
            let (row_slots, rest) = slots.split_at(row.keys.len());
            slots = rest;
            out.push(sigmoid(margin(bias, row_slots, row.values, weights)));
        }
        Ok(())
    }

    /// Index of the bias among the keys: it was the last entry of the batch.
    fn bias_slot(&self) -> Option<usize> {
        self.config
            .bias_key
            .and_then(|_| self.slots.last().copied())
    }

    /// Adds the penalty, scales and rounds the sums.
    fn finish_gradient(&mut self, rows: usize, weights: &[f32], bias: Option<usize>) {
        let scale = match self.config.scale {
            Scale::Mean => 1.0 / rows.max(1) as f64,
            Scale::Sum => 1.0,
            Scale::Nominal(rows) => 1.0 / f64::from(rows.get()),
        };
        let l2 = f64::from(self.config.l2);
        self.gradient.clear();
        let sums = self.sums.iter().zip(weights).enumerate();
        self.gradient.extend(sums.map(|(slot, (&sum, &weight))| {
            let penalty = if Some(slot) == bias { 0.0 } else { l2 };
            (sum * scale + penalty * f64::from(weight)) as f32
        }));
    }

    fn check(&self, batch: &Batch<'_>, weights: &[f32]) -> Result<(), ModelError> {
        let features: usize = batch.rows().map(|row| row.keys.len()).sum();
        let bias = self.config.bias_key.is_some() && !batch.is_empty();
        let given = features + usize::from(bias);
        if given != self.slots.len() {
            return Err(ModelError::NotPrepared {
                prepared: self.slots.len(),
                given,
            });
        }
        if weights.len() != self.keys.len() {
            return Err(ModelError::WeightCount {
                keys: self.keys.len(),
                given: weights.len(),
            });
        }
        Ok(())
    }
}

fn margin(bias: Option<usize>, slots: &[usize], values: &[f32], weights: &[f32]) -> f64 {
    let start = bias.map_or(0.0, |slot| f64::from(weights[slot]));
    let entries = slots.iter().zip(values);
    entries.fold(start, |sum, (&slot, &value)| {
        sum + f64::from(weights[slot]) * f64::from(value)
    })
}

/// `1 / (1 + exp(-m))`, without overflow for any margin.
pub fn sigmoid(margin: f64) -> f64 {
    if margin >= 0.0 {
        1.0 / (1.0 + (-margin).exp())
    } else {
        let e = margin.exp();
        e / (1.0 + e)
    }
}

/// Log-loss of a margin and a label in `[0, 1]`: `ln(1 + exp(m)) - y m`, without overflow and exact
/// where a probability would have been rounded to 0 or 1.
pub fn log_loss_of_margin(margin: f64, label: f64) -> f64 {
    margin.max(0.0) - label * margin + (-margin.abs()).exp().ln_1p()
}

#[cfg(test)]
#[path = "model_tests.rs"]
mod tests;
