//! A trainer on local arrays in one process: the oracle for distributed runs.
//!
//! It takes mini-batches, models and optimizers as the distributed trainer does, without servers,
//! clocks or threads. It imitates workers: at each step every worker's batch is computed at the same
//! weights, and gradients are reduced in rank order. Each touched row then takes one optimizer step, as
//! BSP with [`Apply::AtTick`](tidewater_protocol::table::Apply::AtTick) guarantees.
//!
//! Optimizer state is `f32` and each formula is the one documented at [`Optimizer`], with operations in
//! the server's order. The bits are those of the server's kernels, except for Adam, for which powers
//! may differ in the last bit.

use std::collections::BTreeMap;

use tidewater_protocol::table::{Optimizer, Reduce};

use super::metrics::{Evaluation, MetricsError};
use super::model::{BatchLoss, LogisticConfig, LogisticStep, ModelError};
use crate::data::{Batch, BatchPlan, Dataset};

/// A model in local memory.
#[derive(Debug)]
pub struct Reference {
    model: LogisticConfig,
    optimizer: Optimizer,
    reduce: Reduce,
    /// Rows by key, created at first touch as a sparse table does.
    rows: BTreeMap<u64, Cell>,
    step: LogisticStep,
    weights: Vec<f32>,
    /// Reduced gradients, and the number of workers that pushed each.
    reduced: BTreeMap<u64, (f32, u32)>,
}

/// One parameter and its optimizer state.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Cell {
    weight: f32,
    state: [f32; 3],
    steps: u32,
}

impl Reference {
    /// Makes a model with all weights zero.
    pub fn new(model: LogisticConfig, optimizer: Optimizer, reduce: Reduce) -> Self {
        Self {
            model,
            optimizer,
            reduce,
            rows: BTreeMap::new(),
            step: LogisticStep::new(model),
            weights: Vec::new(),
            reduced: BTreeMap::new(),
        }
    }

    /// Takes one step: a batch of each worker, in rank order. Batches may be empty.
    ///
    /// # Errors
    /// A label that was not mapped to 0 or 1.
    pub fn step(&mut self, batches: &[Batch<'_>]) -> Result<BatchLoss, ModelError> {
        let mut total = BatchLoss::default();
        self.reduced.clear();
        for batch in batches {
            self.pull(batch);
            let loss = self.step.compute(batch, &self.weights)?;
            total.rows += loss.rows;
            total.loss_sum += loss.loss_sum;
            for (&key, &gradient) in self.step.keys().iter().zip(self.step.gradient()) {
                let (sum, workers) = self.reduced.entry(key).or_default();
                // The first gradient is copied: 0 + -0 would lose its sign.
                *sum = if *workers == 0 {
                    gradient
                } else {
                    *sum + gradient
                };
                *workers += 1;
            }
        }
        for (&key, &(sum, workers)) in &self.reduced {
            let gradient = match self.reduce {
                Reduce::Sum => sum,
                Reduce::Mean => sum / workers as f32,
            };
            let cell = self.rows.entry(key).or_default();
            cell.apply(&self.optimizer, gradient);
        }
        Ok(total)
    }

    /// Replaces the rule from the next step on; the state of weights stays.
    pub const fn set_optimizer(&mut self, optimizer: Optimizer) {
        self.optimizer = optimizer;
    }

    /// Trains one epoch: as many steps as the largest part has batches.
    ///
    /// # Errors
    /// As [`Reference::step`].
    pub fn epoch(&mut self, plans: &[BatchPlan<'_>]) -> Result<BatchLoss, ModelError> {
        let steps = plans.iter().map(BatchPlan::len).max().unwrap_or(0);
        let mut total = BatchLoss::default();
        for index in 0..steps {
            let batches: Vec<_> = plans.iter().map(|plan| plan.batch(index)).collect();
            let loss = self.step(&batches)?;
            total.rows += loss.rows;
            total.loss_sum += loss.loss_sum;
        }
        Ok(total)
    }

    /// Probabilities of label 1, in row order. Unknown keys count as zero and are not created.
    pub fn predict(&self, data: &Dataset) -> Vec<f64> {
        let bias = self.model.bias_key.map_or(0.0, |key| self.weight(key));
        let margins = data.iter().map(|row| {
            let entries = row.keys.iter().zip(row.values);
            entries.fold(f64::from(bias), |sum, (&key, &value)| {
                sum + f64::from(self.weight(key)) * f64::from(value)
            })
        });
        margins.map(super::model::sigmoid).collect()
    }

    /// Evaluates on labelled rows (labels 0 and 1).
    ///
    /// # Errors
    /// A prediction of a diverged model.
    pub fn evaluate(&self, data: &Dataset) -> Result<Evaluation, MetricsError> {
        let mut evaluation = Evaluation::new();
        for (probability, &label) in self.predict(data).into_iter().zip(data.labels()) {
            evaluation.add(probability, label > 0.5)?;
        }
        Ok(evaluation)
    }

    /// The weight of a key; zero for one that was never touched.
    pub fn weight(&self, key: u64) -> f32 {
        self.rows.get(&key).map_or(0.0, |cell| cell.weight)
    }

    /// All touched keys and their weights, by ascending key.
    pub fn weights(&self) -> impl ExactSizeIterator<Item = (u64, f32)> {
        self.rows.iter().map(|(&key, cell)| (key, cell.weight))
    }

    fn pull(&mut self, batch: &Batch<'_>) {
        self.weights.clear();
        let keys = self.step.prepare(batch).iter();
        let rows = &self.rows;
        let weights = keys.map(|key| rows.get(key).map_or(0.0, |cell| cell.weight));
        self.weights.extend(weights);
    }
}

impl Cell {
    fn apply(&mut self, optimizer: &Optimizer, g: f32) {
        let [first, second, _] = &mut self.state;
        let w = &mut self.weight;
        match *optimizer {
            Optimizer::None => {}
            Optimizer::Sgd { lr } => *w -= lr as f32 * g,
            Optimizer::Momentum { lr, mu, nesterov } => {
                let (lr, mu) = (lr as f32, mu as f32);
                *first = mu * *first + g;
                *w -= lr * if nesterov { g + mu * *first } else { *first };
            }
            // A row here has one element: its mean square is its square.
            Optimizer::AdaGrad { lr, eps } | Optimizer::RowAdaGrad { lr, eps } => {
                *first += g * g;
                *w -= lr as f32 * g / (first.sqrt() + eps as f32);
            }
            Optimizer::RmsProp { lr, decay, eps } => {
                *first = decay as f32 * *first + (1.0 - decay) as f32 * (g * g);
                *w -= lr as f32 * g / (first.sqrt() + eps as f32);
            }
            Optimizer::Adam {
                lr,
                beta1,
                beta2,
                eps,
            }
            | Optimizer::AmsGrad {
                lr,
                beta1,
                beta2,
                eps,
            } => self.adam(optimizer, g, lr, beta1, beta2, eps),
            Optimizer::AdamW {
                lr,
                beta1,
                beta2,
                eps,
                weight_decay,
            } => {
                *w *= (1.0 - lr * weight_decay) as f32;
                self.adam(optimizer, g, lr, beta1, beta2, eps);
            }
            Optimizer::AdaDelta { lr, rho, eps } => {
                let (rho, fresh, eps) = (rho as f32, (1.0 - rho) as f32, eps as f32);
                *first = rho * *first + fresh * (g * g);
                let step = (*second + eps).sqrt() / (*first + eps).sqrt() * g;
                *second = rho * *second + fresh * (step * step);
                *w -= lr as f32 * step;
            }
            Optimizer::ProximalSgd { lr, l1 } => {
                *w = soft_threshold(*w - lr as f32 * g, lr as f32 * l1 as f32);
            }
            Optimizer::ProximalAdaGrad { lr, eps, l1 } => {
                let (lr, l1) = (lr as f32, l1 as f32);
                *first += g * g;
                let below = first.sqrt() + eps as f32;
                *w = soft_threshold(*w - lr * g / below, lr * l1 / below);
            }
            Optimizer::Ftrl {
                alpha,
                beta,
                l1,
                l2,
            } => self.ftrl(g, [alpha, beta, l1, l2].map(|p| p as f32)),
        }
    }

    fn ftrl(&mut self, g: f32, [alpha, beta, l1, l2]: [f32; 4]) {
        let [z, n, _] = &mut self.state;
        let root = (*n + g * g).sqrt();
        let sigma = (root - n.sqrt()) / alpha;
        *z += g - sigma * self.weight;
        *n += g * g;
        self.weight = if z.abs() <= l1 {
            0.0
        } else {
            -(*z - z.signum() * l1) / ((beta + root) / alpha + l2)
        };
    }

    /// A step of Adam, or of its form with the largest second moment.
    fn adam(&mut self, optimizer: &Optimizer, g: f32, lr: f64, beta1: f64, beta2: f64, eps: f64) {
        let [first, second, third] = &mut self.state;
        self.steps += 1;
        let t = self.steps as i32;
        let rate = (lr / (1.0 - beta1.powi(t))) as f32;
        let spread = (1.0 / (1.0 - beta2.powi(t))).sqrt() as f32;
        *first = beta1 as f32 * *first + (1.0 - beta1) as f32 * g;
        *second = beta2 as f32 * *second + (1.0 - beta2) as f32 * (g * g);
        *third = third.max(*second);
        let root = match optimizer {
            Optimizer::AmsGrad { .. } => third.sqrt(),
            _ => second.sqrt(),
        };
        self.weight -= rate * *first / (root * spread + eps as f32);
    }
}

/// Proximal map of the L1 norm: `sign(u) max(0, |u| - by)`.
fn soft_threshold(u: f32, by: f32) -> f32 {
    if u.abs() <= by {
        0.0
    } else {
        u - by.copysign(u)
    }
}

#[cfg(test)]
#[path = "reference_tests.rs"]
mod tests;
