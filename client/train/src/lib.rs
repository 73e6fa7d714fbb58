//! Training: mathematics, and the loop that runs it against a cluster.
//!
//! The mathematics ([`model`], [`metrics`], [`generate`]) are pure functions of batches and weights
//! that do not know where weights are kept. [`run()`] asks [`model::LogisticStep`] for the keys of a
//! mini-batch, pulls their weights from a table, has the gradient computed, and pushes it; the
//! optimizer runs at the server. [`mod@reference`] does the same in one process on local arrays and
//! is what distributed runs are compared with. [`generate`] makes training sets where there are
//! none.

mod all_gather;
pub mod config;
pub mod data;
pub mod defaults;
mod error;
mod evaluate;
pub mod generate;
mod latency;
pub mod metrics;
pub mod model;
mod position;
pub mod reference;
pub mod report;
pub mod run;
mod settings_check;
mod step;
mod weight_stats;

pub use config::Config;
pub use error::{TrainError, exit};
pub use evaluate::Quality;
pub use position::POSITION;
pub use report::Report;
pub use run::{EpochReport, Host, Outcome, Resumed, run};
pub use weight_stats::WeightStats;
