//! Training mathematics: pure functions of batches and weights.
//!
//! Nothing here knows where weights are kept. A trainer asks [`model::LogisticStep`] for the keys of
//! a mini-batch, pulls their weights from a table, has the gradient computed, and pushes it; the
//! optimizer runs at the server. [`mod@reference`] does the same in one process on local arrays and is
//! what distributed runs are compared with. [`generate`] makes training sets where there are none.

pub mod defaults;
pub mod generate;
pub mod metrics;
pub mod model;
pub mod reference;
