//! Training: mathematics, and the loop that runs it against a cluster.
//!
//! The mathematics ([`model`], [`metrics`], [`generate`]) are pure functions of batches and weights,
//! independent of where weights are stored. [`run()`] gets the keys of a mini-batch from
//! [`model::LogisticStep`], pulls their weights from a table, computes the gradient, and pushes it. The
//! optimizer runs at the server. [`mod@reference`] does the same in one process on local arrays;
//! distributed runs are compared with it. [`generate`] makes synthetic training sets.

mod all_gather;
mod cadence;
pub mod config;
mod decay;
pub mod defaults;
mod epoch_metrics;
mod error;
mod evaluate;
mod evaluations;
pub mod event_log;
pub mod generate;
mod host;
pub mod job;
mod latency;
pub mod metrics;
pub mod model;
mod position;
mod predict;
pub mod reference;
pub mod report;
pub mod run;
mod saved;
mod scorer;
mod settings_check;
mod step;
mod weight_stats;

pub use tidewater_data as data;

pub use cadence::Cadence;
pub use config::Config;
pub use decay::Decay;
pub use epoch_metrics::{
    CalculateValue, EpochMetrics, EpochMetricsError, MergeState, MergedMetrics, MetricValue,
};
pub use error::{PredictError, TrainError, exit};
pub use evaluate::{EvaluateConfig, EvaluationReport, Observation, PartCount, Quality, evaluate};
pub use host::{EpochReport, Host, Outcome, Resumed};
pub use position::POSITION;
pub use predict::{PartReport, PredictConfig, Predicted, predict};
pub use report::Report;
pub use run::run;
pub use saved::MODEL;
pub use weight_stats::WeightStats;
