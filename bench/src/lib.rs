//! Benchmark of Tidewater: latency, bandwidth and rates, with values checked while measuring.
//!
//! Servers and workers are separate processes ([`cluster`]), connected as any user's are. A subcommand
//! ([`cmd`]) plans works: [`calls`] on a [`workload`] with known [`values`], steps of [`bsp`], an
//! [`applier`], rooflines ([`roofline`]). The core ([`measure`]) runs each work and counts the usage
//! of both ends. Each result is a [`row`] of the [`sheet`]; a header gives the origin of the figures
//! ([`fingerprint`]).
#![deny(unsafe_code)]

pub mod alloc;
pub mod applier;
pub mod args;
pub mod bsp;
pub mod calls;
pub mod cluster;
pub mod cmd;
pub mod contest;
pub mod error;
pub mod fingerprint;
pub mod measure;
pub mod options;
pub mod roofline;
pub mod row;
pub mod sheet;
pub mod sizes;
pub mod values;
pub mod workload;

pub use error::BenchError;
