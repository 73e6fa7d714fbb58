//! Tidewater's harness: latency, bandwidth and rates, values checked while measuring.
//!
//! Servers and workers are processes of their own ([`bed`]), reached by the doors that every user
//! has. A subcommand ([`cmd`]) plans works: [`calls`] on a [`subject`] whose [`values`] are known,
//! steps of [`bsp`], an [`applier`], raw ceilings ([`ceiling`]). The core ([`measure`]) runs each
//! and counts what both ends used; a [`row`] of the [`sheet`] tells it, under a header that says
//! where the figures come from ([`fingerprint`]).
#![deny(unsafe_code)]

pub mod alloc;
pub mod applier;
pub mod args;
pub mod bed;
pub mod bsp;
pub mod calls;
pub mod ceiling;
pub mod cmd;
pub mod error;
pub mod fingerprint;
pub mod measure;
pub mod row;
pub mod sheet;
pub mod sizes;
pub mod subject;
pub mod values;

pub use error::BenchError;
