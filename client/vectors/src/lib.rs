//! Vectors that live on the servers: a program combines them by functions, and only scalars travel.
//!
//! A [`VectorSpace`] hands out vectors of one dimension. Each is a range table that the space reuses
//! when the vector is dropped. Elements of one index of all vectors of a space lie on the same applier,
//! so that operations on several vectors need no traffic between servers.
//!
//! ```
//! use tidewater::{JoinOptions, SyncMode};
//! use tidewater_vectors::VectorSpace;
//!
//! # fn main() -> Result<(), tidewater::ClientError> {
//! let job = JoinOptions::embedded(2, 1).join()?.into_job().expect("a worker");
//! let client = job.client_of(0, SyncMode::Asp)?;
//! let space = VectorSpace::<f64>::new(client, "solver", 1000)?;
//! let x = space.filled(2.0)?;
//! let mut y = space.from_slice(&vec![1.0; 1000])?;
//! y.axpy(3.0, &x)?; // y += 3 x
//! assert_eq!(y.dot(&x)?, 14_000.0);
//! assert_eq!(y.pull()?[..2], [7.0, 7.0]);
//! # Ok(())
//! # }
//! ```
//!
//! # Errors
//! Methods return errors. Operators (`&x + &y`) and the traits of solvers cannot: after a failure they
//! give NaN or an unchanged vector, and [`VectorSpace::check`] returns the error. A solver's cost
//! function calls it, so that the solver ends with the cause.
//!
//! # Cost
//! An operation that returns a vector sends frames and waits for nothing; one that returns a number
//! waits for a reply of each piece of 256 KiB. Operations take effect in their order.

#[cfg(feature = "argmin")]
mod argmin;
mod evaluation;
mod float;
mod indices;
pub mod matrix;
mod operations;
mod space;
mod sparse;

pub use evaluation::Evaluation;
pub use float::Float;
pub use indices::INDICES_SPAN;
pub use space::{Vector, VectorId, VectorSpace, VectorUsage};
pub use sparse::SparseVector;

/// Compiles and runs the examples of the guide to functions.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/FUNCTIONS.md")]
mod functions_guide {}

/// Compiles and runs the programs of the guide for those that come from Spark on Angel.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/from/spark-on-angel.md")]
mod spark_on_angel {}
