//! Learning rates as functions of the iteration.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use tidewater::schedule;

/// Learning rate of each iteration.
#[pyclass(frozen, eq, module = "tidewater")]
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Schedule(pub(crate) schedule::Schedule);

impl Schedule {
    fn checked(schedule: schedule::Schedule) -> PyResult<Self> {
        let valid = schedule.validate();
        valid.map_err(|error| PyValueError::new_err(format!("the schedule: {error}")))?;
        Ok(Self(schedule))
    }
}

#[pymethods]
impl Schedule {
    /// The same rate in every iteration.
    #[staticmethod]
    fn constant(rate: f64) -> PyResult<Self> {
        Self::checked(schedule::Schedule::Constant { rate })
    }

    /// `rate * factor**k` in the k-th run of `every` iterations.
    #[staticmethod]
    fn step(rate: f64, factor: f64, every: u64) -> PyResult<Self> {
        Self::checked(schedule::Schedule::Step {
            rate,
            factor,
            every,
        })
    }

    /// Warm-up to `rate`, then a fall with the inverse square root.
    #[staticmethod]
    fn inverse_sqrt(rate: f64, warm_up: u64) -> PyResult<Self> {
        Self::checked(schedule::Schedule::InverseSqrt { rate, warm_up })
    }

    /// Warm-up to `rate`, then a fall to `last` along half a cosine.
    #[staticmethod]
    #[pyo3(signature = (rate, last, iterations, warm_up=0))]
    fn cosine(rate: f64, last: f64, iterations: u64, warm_up: u64) -> PyResult<Self> {
        Self::checked(schedule::Schedule::Cosine {
            rate,
            last,
            warm_up,
            iterations,
        })
    }

    /// Rate of an iteration, from 0.
    fn at(&self, iteration: u64) -> f64 {
        self.0.at(iteration)
    }

    fn __repr__(&self) -> String {
        format!("<tidewater.Schedule {:?}>", self.0)
    }
}
