//! Tidewater's harness: push and pull latency and bandwidth, values checked while measuring.
//!
//! Servers and client are separate processes ([`bed`], [`server`]). A run is a list of cases; each case makes
//! its own table ([`subject`]), warms up, is measured ([`measure`]) and becomes one row of the
//! report ([`report`]), under a header that says where the figures come from ([`fingerprint`]).

pub mod args;
pub mod bed;
pub mod error;
pub mod fingerprint;
pub mod measure;
pub mod report;
pub mod server;
pub mod sizes;
pub mod stats;
pub mod subject;

pub use error::BenchError;
