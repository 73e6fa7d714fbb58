//! Applying pushes: what an applier does with a frame once it has been accepted.

pub mod kernels;
