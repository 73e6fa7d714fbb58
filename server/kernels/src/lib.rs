//! Row kernels: the effect of a push on one row, as a pure function of bytes.
//!
//! A kernel works on *private lines*, byte buffers of little-endian elements that no other thread
//! reads or writes. An applier copies a row out of shared memory, runs the kernel, and stores the
//! result. Kernels allocate nothing, read no clock, and keep no state of their own; the same (row,
//! state, values) gives the same bits on every host and in every build.
//!
//! | push | on a table of | row | state |
//! |---|---|---|---|
//! | sum | any rule but FTRL | `w += x`, integers wrap | untouched: moments describe gradients |
//! | assign | any rule but FTRL | `w = x` | untouched |
//! | min, max | any rule but FTRL | `w = min(w, x)`, `w = max(w, x)` | untouched |
//! | sum, assign, min, max | FTRL | as above, to the bit | `z` follows where `w` changed, `n` untouched |
//! | gradient | a rule | one step of the rule | one step of the rule |
//! | gradient | no rule | unchanged; see [`RowKernel::accepts`] | none |
//!
//! FTRL computes `w` from `(z, n)`, so a write that left `z` alone would be undone by the next
//! gradient. `z` becomes the value for which the rule gives the written `w` (up to rounding); an
//! element written to zero gets `z = 0`, one written with the value it has keeps its `z`.
//!
//! Values are not checked: NaN and infinity propagate as IEEE 754 defines, and a finite gradient
//! may overflow (the square of one above 1.8e19 is infinite in f32, and FTRL then makes NaN).
//! [`RowKernel::all_finite`] is the check of a table that refuses such frames.

#![forbid(unsafe_code)]

mod check;
mod element;
mod error;
pub mod init;
mod philox;
mod prepare;
mod rules;

use tidewater_protocol::limits::ROW_DIM_MAX;
use tidewater_protocol::mutants::{Mutant, on};
use tidewater_protocol::table::{DType, GradientOptions, Init, Optimizer, PushOp, TableSpec};

use element::{Element, Float, each};
pub use error::KernelError;
use prepare::{Adjusted, Plain, Prepare};
use rules::{Hyper, Step};

/// Effect of pushes on one row of a table: the update rule of its optimizer, chosen once when the table is
/// created. Monomorphic functions behind plain function pointers: one indirect call a row and none an
/// element.
///
/// Buffers need no alignment. The caller ensures their lengths ([`RowKernel::row_bytes`],
/// [`RowKernel::state_bytes`]). Only complete elements that all buffers hold are touched, and debug
/// builds assert that nothing is left over.
#[derive(Debug, Clone, Copy)]
pub struct RowKernel {
    dtype: DType,
    row_bytes: usize,
    state_bytes: usize,
    has_gradient: bool,
    hyper: Hyper,
    sum: Step,
    assign: Step,
    min: Step,
    max: Step,
    gradient: Step,
    /// Gradient step that [`RowKernel::at_rate`] puts in place of `gradient`.
    scaled: Step,
    /// Index in `Hyper::rule` of the number that a factor of the learning rate multiplies.
    factor_at: usize,
    adopt: Adopt,
    all_finite: fn(&[u8]) -> bool,
}

/// Function that sets the optimizer state of a new row (last argument) from its initial values (second one),
/// so that the first gradient starts from these values.
type Adopt = fn(&Hyper, &[u8], &mut [u8]);

impl RowKernel {
    /// Creates the kernel of a table with rows of `dim` elements, without gradient options. It is valid as
    /// long as the table. Cost: some comparisons.
    ///
    /// Rates (`lr`, `alpha`) and `eps` must be above 0, decays (`mu`, `decay`, `rho`, `beta1`, `beta2`) in
    /// `[0, 1)`. `weight_decay`, `l1`, and FTRL's `beta` and `l2`, must not be below 0, and where `l2` is 0,
    /// `beta` must be above 0. Each must be in range as given and as rounded to `dtype`. A rate of 0 is
    /// refused because it is nearly always a mistake: a program that wants a frozen table does not push to
    /// it.
    ///
    /// # Errors
    ///
    /// [`KernelError::IntegerGradient`], [`KernelError::HyperParameter`], [`KernelError::Dim`].
    pub fn new(optimizer: &Optimizer, dtype: DType, dim: usize) -> Result<Self, KernelError> {
        Self::with_options(optimizer, &GradientOptions::default(), dtype, dim)
    }

    /// Creates the kernel of a table from its definition, gradient options included, for rows or ranges of
    /// `dim` elements.
    ///
    /// # Errors
    ///
    /// [`KernelError::IntegerGradient`], [`KernelError::HyperParameter`], [`KernelError::Dim`].
    pub fn of_table(spec: &TableSpec, dim: usize) -> Result<Self, KernelError> {
        Self::with_options(&spec.optimizer, &spec.gradient, spec.dtype, dim)
    }

    /// Creates the kernel of a table with rows of `dim` elements and with gradient options. Clipping bounds
    /// must be above 0; the weight decay and the first accumulator must not be below 0. The ranges of
    /// hyper-parameters are those of [`RowKernel::new`], and so are the update rules if no option is set.
    ///
    /// # Errors
    ///
    /// [`KernelError::IntegerGradient`], [`KernelError::HyperParameter`], [`KernelError::Dim`].
    pub fn with_options(
        optimizer: &Optimizer,
        options: &GradientOptions,
        dtype: DType,
        dim: usize,
    ) -> Result<Self, KernelError> {
        if dim == 0 || dim > ROW_DIM_MAX as usize {
            return Err(KernelError::Dim {
                dim,
                max: ROW_DIM_MAX,
            });
        }
        let hyper = check::hyper(optimizer, options, dtype)?;
        let sized = Self {
            dtype,
            row_bytes: dim * dtype.size(),
            state_bytes: optimizer.state_bytes(dim, dtype),
            has_gradient: false,
            hyper,
            sum: rules::ignore,
            assign: rules::ignore,
            min: rules::ignore,
            max: rules::ignore,
            gradient: rules::ignore,
            scaled: rules::ignore,
            factor_at: 0,
            adopt: |_, _, _| {},
            all_finite: |_| true,
        };
        let plain = options.keeps_gradients();
        Ok(match dtype {
            DType::F32 if plain => sized.of_float::<f32, Plain>(optimizer),
            DType::F32 => sized.of_float::<f32, Adjusted<f32>>(optimizer),
            DType::F64 if plain => sized.of_float::<f64, Plain>(optimizer),
            DType::F64 => sized.of_float::<f64, Adjusted<f64>>(optimizer),
            DType::I32 => sized.of_element::<i32>(),
            DType::I64 => sized.of_element::<i64>(),
        })
    }

    fn of_element<T: Element>(self) -> Self {
        Self {
            sum: rules::sum::<T>,
            assign: rules::assign::<T>,
            min: rules::min::<T>,
            max: rules::max::<T>,
            all_finite: all_finite::<T>,
            ..self
        }
    }

    fn of_float<T: Float, P: Prepare<T>>(self, optimizer: &Optimizer) -> Self {
        let plain = self.of_element::<T>();
        let with = |gradient: Step| Self {
            gradient,
            scaled: gradient,
            has_gradient: true,
            ..plain
        };
        let accumulating = |gradient: Step| Self {
            adopt: rules::accumulator_adopt::<T>,
            ..with(gradient)
        };
        match optimizer {
            Optimizer::None => plain,
            Optimizer::Sgd { .. } => with(rules::sgd::<T, P>),
            Optimizer::Momentum {
                nesterov: false, ..
            } => with(rules::momentum::<T, P>),
            Optimizer::Momentum { nesterov: true, .. } => with(rules::nesterov::<T, P>),
            Optimizer::AdaGrad { .. } => accumulating(rules::adagrad::<T, P>),
            Optimizer::RowAdaGrad { .. } => accumulating(rules::row_adagrad::<T, P>),
            Optimizer::RmsProp { .. } => with(rules::rmsprop::<T, P>),
            Optimizer::Adam { .. } => with(rules::adam::<T, P>),
            Optimizer::AdamW { .. } => with(rules::adamw::<T, P>),
            Optimizer::AmsGrad { .. } if on(Mutant::AmsGradWithoutMaximum) => {
                with(rules::adam::<T, P>)
            }
            Optimizer::AmsGrad { .. } => with(rules::amsgrad::<T, P>),
            Optimizer::AdaDelta { .. } if on(Mutant::AdaDeltaWithoutSteps) => {
                with(rules::rmsprop::<T, P>)
            }
            Optimizer::AdaDelta { .. } => with(rules::adadelta::<T, P>),
            Optimizer::ProximalSgd { .. } if on(Mutant::SoftThresholdForgotten) => {
                with(rules::sgd::<T, P>)
            }
            Optimizer::ProximalSgd { .. } => with(rules::proximal_sgd::<T, P>),
            Optimizer::ProximalAdaGrad { .. } if on(Mutant::SoftThresholdForgotten) => {
                accumulating(rules::adagrad::<T, P>)
            }
            Optimizer::ProximalAdaGrad { .. } => accumulating(rules::proximal_adagrad::<T, P>),
            Optimizer::Ftrl { .. } => Self {
                sum: rules::ftrl_sum::<T>,
                assign: rules::ftrl_assign::<T>,
                min: rules::ftrl_min::<T>,
                max: rules::ftrl_max::<T>,
                adopt: rules::ftrl_adopt::<T>,
                scaled: rules::ftrl_scaled::<T, P>,
                factor_at: rules::FTRL_FACTOR,
                ..with(rules::ftrl::<T, P>)
            },
        }
    }

    /// Returns the kernel of the same table for rows or ranges of `dim` elements. `optimizer` is that of
    /// the table.
    pub const fn of_length(mut self, optimizer: &Optimizer, dim: usize) -> Self {
        self.row_bytes = dim * self.dtype.size();
        self.state_bytes = optimizer.state_bytes(dim, self.dtype);
        self
    }

    /// Returns the kernel with the learning rate of gradients multiplied by `factor`, which is finite and
    /// not below 0. Factor 1 gives the same bits. Everything else is as without a factor, except `z` of FTRL.
    /// Factors of repeated calls multiply.
    ///
    /// The rate is `lr`; of AdamW also that of its decay, and of proximal rules that of their threshold. FTRL has
    /// a rate for each element, `1 / ((beta + sqrt(n)) / alpha + l2)`: a step at `factor` times it adds `factor g`
    /// to `z`, and `g^2` to `n`.
    #[must_use]
    pub fn at_rate(mut self, factor: f64) -> Self {
        if let Some(number) = self.hyper.rule.get_mut(self.factor_at) {
            *number *= factor;
        }
        self.gradient = self.scaled;
        self
    }

    /// Size of a row's values in bytes.
    pub const fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// Size of a row's optimizer state in bytes, [`Optimizer::state_bytes`]: the slots one after the other,
    /// each as long as the row. With Adam, `AdamW` and `AMSGrad`, padding to 8 bytes and the step count as
    /// a `u64` follow. Row-wise `AdaGrad` has one element a row.
    pub const fn state_bytes(&self) -> usize {
        self.state_bytes
    }

    /// Whether the table takes pushes of `op`. False only for gradients on a table without an optimizer. The
    /// caller must refuse such a frame before it applies any of its rows.
    pub const fn accepts(&self, op: PushOp) -> bool {
        self.has_gradient || !matches!(op, PushOp::Gradient)
    }

    /// Applies the `values` of one push to the row in `payload` and to its optimizer `state`.
    #[inline]
    pub fn apply(&self, op: PushOp, payload: &mut [u8], state: &mut [u8], values: &[u8]) {
        debug_assert_eq!(payload.len(), self.row_bytes, "payload of another length");
        debug_assert_eq!(state.len(), self.state_bytes, "state of another length");
        debug_assert_eq!(values.len(), self.row_bytes, "values of another length");
        let step = match op {
            PushOp::Sum => self.sum,
            PushOp::Assign => self.assign,
            PushOp::Min => self.min,
            PushOp::Max => self.max,
            PushOp::Gradient => self.gradient,
        };
        step(&self.hyper, payload, state, values);
    }

    /// Fills `state` with zeroes. This is the optimizer state of a new row **with all elements zero**, for
    /// every rule of a table without a first accumulator. [`RowKernel::init_row`] is for rows with other
    /// initial values: from a zero state, FTRL's first gradient would forget these values.
    pub fn init_state(&self, state: &mut [u8]) {
        state.fill(0);
    }

    /// Writes the new row `key`: its values from `init` and `seed` into `payload`, and the optimizer state
    /// that belongs to them into `state`.
    pub fn init_row(&self, init: &Init, seed: u64, key: u64, payload: &mut [u8], state: &mut [u8]) {
        init::fill_row(init, seed, key, self.dtype, payload);
        self.init_state(state);
        (self.adopt)(&self.hyper, payload, state);
    }

    /// Whether `values` hold neither NaN nor infinity; always true for integers. Reads all of them.
    #[inline]
    pub fn all_finite(&self, values: &[u8]) -> bool {
        (self.all_finite)(values)
    }
}

fn all_finite<T: Element>(values: &[u8]) -> bool {
    // No early exit: a row is short, and a loop without one is vectorised.
    T::split(values)
        .iter()
        .fold(true, |finite, x| finite & T::load(*x).is_finite())
}

/// Adds `values` to `acc`, element by element. Integers wrap. Lengths should be equal: elements that one
/// side lacks are left out.
pub fn accumulate(dtype: DType, acc: &mut [u8], values: &[u8]) {
    debug_assert_eq!(acc.len(), values.len(), "rows of different lengths");
    match dtype {
        DType::F32 => each(acc, values, f32::plus),
        DType::F64 => each(acc, values, f64::plus),
        DType::I32 => each(acc, values, i32::plus),
        DType::I64 => each(acc, values, i64::plus),
    }
}

/// Multiplies `values` by `by`, element by element; `by` is rounded to the element type first. Integers
/// stay as they are: pushes of integers have no weights.
pub fn scale(dtype: DType, values: &mut [u8], by: f64) {
    fn row<T: Float>(values: &mut [u8], by: f64) {
        let by = T::nearest(by);
        for x in T::split_mut(values) {
            *x = (by * T::load(*x)).store();
        }
    }
    match dtype {
        DType::F32 => row::<f32>(values, by),
        DType::F64 => row::<f64>(values, by),
        DType::I32 | DType::I64 => {}
    }
}

/// Whether `values` hold neither NaN nor infinity after a multiplication by `by`, as in [`scale`]; always
/// true for integers. Reads all of them and changes none.
pub fn all_finite_scaled(dtype: DType, values: &[u8], by: f64) -> bool {
    fn row<T: Float>(values: &[u8], by: f64) -> bool {
        let by = T::nearest(by);
        T::split(values)
            .iter()
            .fold(true, |finite, x| finite & (by * T::load(*x)).is_finite())
    }
    match dtype {
        DType::F32 => row::<f32>(values, by),
        DType::F64 => row::<f64>(values, by),
        DType::I32 | DType::I64 => true,
    }
}

/// Divides `acc` by `by`, element by element: the mean from a sum of `by` rows, or of rows with weights
/// that add up to `by`.
///
/// Floats take one IEEE 754 division by `by` rounded to their type; a product with the rounded 1/n differs
/// from the quotient in the last bit for some sums, from n = 3 on. Integers are divided in f64 and rounded
/// to the nearest, ties to even: beyond 2^53 an i64 loses its low bits.
pub fn divide(dtype: DType, acc: &mut [u8], by: f64) {
    match dtype {
        DType::F32 => divide_row::<f32>(acc, by),
        DType::F64 => divide_row::<f64>(acc, by),
        DType::I32 => divide_row::<i32>(acc, by),
        DType::I64 => divide_row::<i64>(acc, by),
    }
}

fn divide_row<T: Element>(acc: &mut [u8], by: f64) {
    for x in T::split_mut(acc) {
        *x = T::load(*x).divided(by).store();
    }
}
