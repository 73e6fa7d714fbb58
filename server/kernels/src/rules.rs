//! The gradient rules, one function each: `g` a gradient, `w` a parameter, both of type `T`.
//!
//! Every rule rounds after every operation, in the order written, in the table's own type. Nothing
//! is contracted or reassociated, so a row's bits depend on its pushes and on nothing else.
//! Hyper-parameters are rounded to `T` before the loop.
//!
//! A rule is compiled twice for each type: for gradients as they are ([`super::prepare::Plain`]), and for a table
//! with options ([`super::prepare::Adjusted`]).

use tidewater_protocol::mutants::{Mutant, on};
use tidewater_protocol::table::optimizer::PARAMETERS_MAX;

use super::element::{Element, Float, each, each_with_one, each_with_three, each_with_two};
use super::prepare::{Options, Prepare};
use tidewater_protocol::math::power;

/// Hyper-parameters and gradient options of a table, in f64 as given.
#[derive(Debug, Clone, Copy)]
pub(super) struct Hyper {
    /// Hyper-parameters of the optimizer in the order of its fields in `Optimizer`; unused ones are 0. FTRL
    /// has the factor of its rate behind them, at [`FTRL_FACTOR`].
    pub(super) rule: [f64; PARAMETERS_MAX],
    /// Gradient options of the table, with the first accumulator.
    pub(super) options: Options,
}

/// Function that applies a push to one row: `payload`, `state` and `values` as in
/// [`super::RowKernel::apply`].
pub(super) type Step = fn(&Hyper, &mut [u8], &mut [u8], &[u8]);

/// Sum push: `w += x`; integers wrap around. The optimizer state is untouched.
pub(super) fn sum<T: Element>(_: &Hyper, row: &mut [u8], _: &mut [u8], values: &[u8]) {
    each(row, values, T::plus);
}

/// Assign push: `w = x`. The optimizer state is untouched.
pub(super) fn assign<T: Element>(_: &Hyper, row: &mut [u8], _: &mut [u8], values: &[u8]) {
    each(row, values, |_: T, x| x);
}

/// Min push: `w = min(w, x)`. The optimizer state is untouched.
pub(super) fn min<T: Element>(_: &Hyper, row: &mut [u8], _: &mut [u8], values: &[u8]) {
    match on(Mutant::MinIsMax) {
        true => each(row, values, T::greater),
        false => each(row, values, T::lesser),
    }
}

/// Max push: `w = max(w, x)`. The optimizer state is untouched.
pub(super) fn max<T: Element>(_: &Hyper, row: &mut [u8], _: &mut [u8], values: &[u8]) {
    each(row, values, T::greater);
}

/// Gradient push of a table without an optimizer: changes nothing.
pub(super) fn ignore(_: &Hyper, _: &mut [u8], _: &mut [u8], _: &[u8]) {}

/// Gradient step of SGD: `w -= lr g`.
pub(super) fn sgd<T: Float, P: Prepare<T>>(
    hyper: &Hyper,
    row: &mut [u8],
    _: &mut [u8],
    gradient: &[u8],
) {
    let [lr, ..] = rounded::<T>(hyper);
    let ready = P::new(&hyper.options, gradient);
    each(row, gradient, |w: T, g| w - lr * ready.of(w, g));
}

/// Gradient step of momentum: `v = mu v + g; w -= lr v`.
pub(super) fn momentum<T: Float, P: Prepare<T>>(
    hyper: &Hyper,
    row: &mut [u8],
    v: &mut [u8],
    gradient: &[u8],
) {
    let [lr, mu, ..] = rounded::<T>(hyper);
    let ready = P::new(&hyper.options, gradient);
    each_with_one(row, v, gradient, |w: T, v, g| {
        let v = mu * v + ready.of(w, g);
        (w - lr * v, v)
    });
}

/// Gradient step of Nesterov momentum: `v = mu v + g; w -= lr (g + mu v)`.
pub(super) fn nesterov<T: Float, P: Prepare<T>>(
    hyper: &Hyper,
    row: &mut [u8],
    v: &mut [u8],
    gradient: &[u8],
) {
    let [lr, mu, ..] = rounded::<T>(hyper);
    let ready = P::new(&hyper.options, gradient);
    each_with_one(row, v, gradient, |w: T, v, g| {
        let g = ready.of(w, g);
        let v = mu * v + g;
        (w - lr * (g + mu * v), v)
    });
}

/// Gradient step of `AdaGrad`: `n += g^2; w -= (lr g) / (sqrt(n) + eps)`.
pub(super) fn adagrad<T: Float, P: Prepare<T>>(
    hyper: &Hyper,
    row: &mut [u8],
    n: &mut [u8],
    gradient: &[u8],
) {
    let [lr, eps, ..] = rounded::<T>(hyper);
    let ready = P::new(&hyper.options, gradient);
    each_with_one(row, n, gradient, |w: T, n, g| {
        let g = ready.of(w, g);
        let n = n + g * g;
        (w - (lr * g) / (n.sqrt() + eps), n)
    });
}

/// Gradient step of row-wise `AdaGrad`: `n += mean of g^2; w -= (lr g) / (sqrt(n) + eps)`, with one `n` a
/// row.
///
/// The mean is summed in f64, in the order of the columns, and rounded to `T` once.
pub(super) fn row_adagrad<T: Float, P: Prepare<T>>(
    hyper: &Hyper,
    row: &mut [u8],
    n: &mut [u8],
    gradient: &[u8],
) {
    let [lr, eps, ..] = rounded::<T>(hyper);
    let ready = P::new(&hyper.options, gradient);
    let [stored] = T::split_mut(n) else {
        return;
    };
    let columns = T::split(row).iter().zip(T::split(gradient));
    let squares = columns.map(|(w, g)| ready.of(T::load(*w), T::load(*g)).widen());
    let sum = squares.fold(0.0, |sum, g| sum + g * g);
    // A row has at most 65,536 elements: exact.
    #[allow(clippy::cast_precision_loss)]
    let mean = sum / T::split(gradient).len() as f64;
    let n = T::load(*stored) + T::nearest(mean);
    *stored = n.store();
    let below = n.sqrt() + eps;
    each(row, gradient, |w: T, g| w - (lr * ready.of(w, g)) / below);
}

/// Gradient step of `RMSProp`: `v = decay v + (1 - decay) g^2; w -= (lr g) / (sqrt(v) + eps)`.
pub(super) fn rmsprop<T: Float, P: Prepare<T>>(
    hyper: &Hyper,
    row: &mut [u8],
    v: &mut [u8],
    gradient: &[u8],
) {
    let [lr, decay, eps, ..] = rounded::<T>(hyper);
    let fresh = T::nearest(1.0 - hyper.rule[1]);
    let ready = P::new(&hyper.options, gradient);
    each_with_one(row, v, gradient, |w: T, v, g| {
        let g = ready.of(w, g);
        let v = decay * v + fresh * (g * g);
        (w - (lr * g) / (v.sqrt() + eps), v)
    });
}

/// Returns the proximal map of the L1 norm at `u`: `sign(u) max(0, |u| - by)`, and `+0` where `|u| <= by`. `by`
/// is not below 0. NaN stays.
#[inline(always)]
fn soft_threshold<T: Float>(u: T, by: T) -> T {
    let smaller = u - by.copysign(u);
    // Both sides are computed and one is chosen: a branch would keep the loop scalar.
    if u.abs() <= by { T::ZERO } else { smaller }
}

/// Gradient step of SGD with an L1 penalty: `u = w - lr g; w = sign(u) max(0, |u| - lr l1)`. `lr l1` is
/// rounded to `T` once a row.
pub(super) fn proximal_sgd<T: Float, P: Prepare<T>>(
    hyper: &Hyper,
    row: &mut [u8],
    _: &mut [u8],
    gradient: &[u8],
) {
    let [lr, l1, ..] = rounded::<T>(hyper);
    let by = lr * l1;
    let ready = P::new(&hyper.options, gradient);
    each(row, gradient, |w: T, g| {
        soft_threshold(w - lr * ready.of(w, g), by)
    });
}

/// Gradient step of `AdaGrad` with an L1 penalty: `n += g^2; b = sqrt(n) + eps; u = w - (lr g) / b; w = sign(u)
/// max(0, |u| - (lr l1) / b)`.
pub(super) fn proximal_adagrad<T: Float, P: Prepare<T>>(
    hyper: &Hyper,
    row: &mut [u8],
    n: &mut [u8],
    gradient: &[u8],
) {
    let [lr, eps, l1, ..] = rounded::<T>(hyper);
    let by = lr * l1;
    let ready = P::new(&hyper.options, gradient);
    each_with_one(row, n, gradient, |w: T, n, g| {
        let g = ready.of(w, g);
        let n = n + g * g;
        let below = n.sqrt() + eps;
        (soft_threshold(w - (lr * g) / below, by / below), n)
    });
}

/// Gradient step of `AdaDelta`: `n = rho n + (1 - rho) g^2; d = (sqrt(s + eps) / sqrt(n + eps)) g; s = rho s +
/// (1 - rho) d^2; w -= lr d`.
///
/// As in Zeiler's paper and PyTorch each mean square has one root. Angel takes the root of a ratio that is a root
/// already.
pub(super) fn adadelta<T: Float, P: Prepare<T>>(
    hyper: &Hyper,
    row: &mut [u8],
    state: &mut [u8],
    gradient: &[u8],
) {
    let [lr, rho, eps, ..] = rounded::<T>(hyper);
    let fresh = T::nearest(1.0 - hyper.rule[1]);
    let ready = P::new(&hyper.options, gradient);
    let (n, s) = halves(state, gradient.len());
    each_with_two(row, n, s, gradient, |w: T, [n, s], g| {
        let g = ready.of(w, g);
        let n = rho * n + fresh * (g * g);
        let d = (s + eps).sqrt() / (n + eps).sqrt() * g;
        (w - lr * d, [n, rho * s + fresh * (d * d)])
    });
}

/// Numbers of one step of Adam on a row, the same for all of its elements.
///
/// The bias corrections are those of the row's step t, computed in f64 and rounded to `T` once a
/// row: `rate = lr / (1 - b1^t)` and `spread = sqrt(1 / (1 - b2^t))`.
struct AdamStep<T> {
    rate: T,
    spread: T,
    beta1: T,
    fresh1: T,
    beta2: T,
    fresh2: T,
    eps: T,
}

impl<T: Float> AdamStep<T> {
    /// Counts a step in the last word of `state`. Returns the step's numbers and the slots in front of the
    /// word. `None` if the state has less than 8 bytes.
    #[inline(always)]
    fn next<'a>(hyper: &Hyper, state: &'a mut [u8]) -> Option<(Self, &'a mut [u8])> {
        let [lr, beta1, beta2, eps, _] = hyper.rule;
        let (slots, steps) = state.split_last_chunk_mut::<8>()?;
        let t = u64::from_le_bytes(*steps).saturating_add(1);
        *steps = t.to_le_bytes();
        let step = Self {
            rate: T::nearest(lr / (1.0 - power(beta1, t))),
            spread: T::nearest((1.0 / (1.0 - power(beta2, t))).sqrt()),
            beta1: T::nearest(beta1),
            fresh1: T::nearest(1.0 - beta1),
            beta2: T::nearest(beta2),
            fresh2: T::nearest(1.0 - beta2),
            eps: T::nearest(eps),
        };
        Some((step, slots))
    }

    /// Returns the new moments `[m, v]`: `m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2`.
    #[inline(always)]
    fn moments(&self, m: T, v: T, g: T) -> [T; 2] {
        let m = self.beta1 * m + self.fresh1 * g;
        [m, self.beta2 * v + self.fresh2 * (g * g)]
    }

    /// Returns the number to subtract from a parameter: `(rate m) / (sqrt(v) spread + eps)`.
    #[inline(always)]
    fn change(&self, m: T, v: T) -> T {
        (self.rate * m) / (v.sqrt() * self.spread + self.eps)
    }
}

/// Gradient step of Adam: `m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2; w -= (rate m) / (sqrt(v) spread
/// + eps)`, see [`AdamStep`].
pub(super) fn adam<T: Float, P: Prepare<T>>(
    hyper: &Hyper,
    row: &mut [u8],
    state: &mut [u8],
    gradient: &[u8],
) {
    let Some((step, slots)) = AdamStep::<T>::next(hyper, state) else {
        return;
    };
    let ready = P::new(&hyper.options, gradient);
    let (m, v) = halves(slots, gradient.len());
    each_with_two(row, m, v, gradient, |w: T, [m, v], g| {
        let [m, v] = step.moments(m, v, ready.of(w, g));
        (w - step.change(m, v), [m, v])
    });
}

/// Gradient step of `AdamW`: [`adam`] after `w = keep w` with `keep = 1 - lr weight_decay`, computed in
/// f64.
pub(super) fn adamw<T: Float, P: Prepare<T>>(
    hyper: &Hyper,
    row: &mut [u8],
    state: &mut [u8],
    gradient: &[u8],
) {
    let [lr, .., weight_decay] = hyper.rule;
    let keep = T::nearest(1.0 - lr * weight_decay);
    let Some((step, slots)) = AdamStep::<T>::next(hyper, state) else {
        return;
    };
    let ready = P::new(&hyper.options, gradient);
    let (m, v) = halves(slots, gradient.len());
    each_with_two(row, m, v, gradient, |w: T, [m, v], g| {
        let [m, v] = step.moments(m, v, ready.of(w, g));
        (keep * w - step.change(m, v), [m, v])
    });
}

/// Gradient step of `AMSGrad`: [`adam`] with `s = max(s, v)` instead of `v` under the root. `v` is kept as in
/// Adam, and `s` in a third slot.
pub(super) fn amsgrad<T: Float, P: Prepare<T>>(
    hyper: &Hyper,
    row: &mut [u8],
    state: &mut [u8],
    gradient: &[u8],
) {
    let Some((step, slots)) = AdamStep::<T>::next(hyper, state) else {
        return;
    };
    let ready = P::new(&hyper.options, gradient);
    let (m, rest) = halves(slots, gradient.len());
    let (v, s) = halves(rest, gradient.len());
    each_with_three(row, [m, v, s], gradient, |w: T, [m, v, s], g| {
        let [m, v] = step.moments(m, v, ready.of(w, g));
        // A NaN of v stays visible: it is not below s.
        let s = if v <= s { s } else { v };
        (w - step.change(m, s), [m, v, s])
    });
}

/// Index of the rate factor among FTRL's numbers, after its hyper-parameters.
pub(super) const FTRL_FACTOR: usize = 4;

/// Gradient step of FTRL-proximal (`McMahan` et al., KDD 2013):
/// `sigma = (sqrt(n + g^2) - sqrt(n)) / alpha; n += g^2; z += g - sigma w`; then
/// `w = 0` if `|z| <= l1`, else `-(z - sign(z) l1) / ((beta + sqrt(n)) / alpha + l2)`.
pub(super) fn ftrl<T: Float, P: Prepare<T>>(
    hyper: &Hyper,
    row: &mut [u8],
    state: &mut [u8],
    gradient: &[u8],
) {
    ftrl_step::<T, P>(hyper, row, state, gradient, |_, g| g);
}

/// Gradient step of FTRL with a factor of the learning rate: [`ftrl`] with `z += factor g - sigma w`.
/// With an `l1` of 0 this is `w -= factor g / ((beta + sqrt(n)) / alpha + l2)` at the new `n`, up to rounding.
pub(super) fn ftrl_scaled<T: Float, P: Prepare<T>>(
    hyper: &Hyper,
    row: &mut [u8],
    state: &mut [u8],
    gradient: &[u8],
) {
    ftrl_step::<T, P>(hyper, row, state, gradient, |factor, g| factor * g);
}

#[inline(always)]
fn ftrl_step<T: Float, P: Prepare<T>>(
    hyper: &Hyper,
    row: &mut [u8],
    state: &mut [u8],
    gradient: &[u8],
    scaled: impl Fn(T, T) -> T,
) {
    let [alpha, beta, l1, l2, factor] = rounded::<T>(hyper);
    let ready = P::new(&hyper.options, gradient);
    let (z, n) = halves(state, gradient.len());
    each_with_two(row, z, n, gradient, |w: T, [z, n], g| {
        let g = ready.of(w, g);
        let root_before = n.sqrt();
        let n = n + g * g;
        let root = n.sqrt();
        let z = z + (scaled(factor, g) - (root - root_before) / alpha * w);
        let far = -(z - l1.copysign(z)) / ((beta + root) / alpha + l2);
        // Both sides are computed and one is chosen: a branch would keep the loop scalar.
        (if z.abs() <= l1 { T::ZERO } else { far }, [z, n])
    });
}

/// Sum push on a table of FTRL: writes `w` as [`sum`] does, and `z` as [`ftrl_write`] says.
pub(super) fn ftrl_sum<T: Float>(hyper: &Hyper, row: &mut [u8], state: &mut [u8], values: &[u8]) {
    ftrl_write(hyper, row, state, values, T::plus);
}

/// Assign push on a table of FTRL: writes `w` as [`assign`] does, and `z` as [`ftrl_write`] says.
pub(super) fn ftrl_assign<T: Float>(
    hyper: &Hyper,
    row: &mut [u8],
    state: &mut [u8],
    values: &[u8],
) {
    ftrl_write(hyper, row, state, values, |_: T, x| x);
}

/// Min push on a table of FTRL: writes `w` as [`min`] does, and `z` as [`ftrl_write`] says.
pub(super) fn ftrl_min<T: Float>(hyper: &Hyper, row: &mut [u8], state: &mut [u8], values: &[u8]) {
    ftrl_write(hyper, row, state, values, T::lesser);
}

/// Max push on a table of FTRL: writes `w` as [`max`] does, and `z` as [`ftrl_write`] says.
pub(super) fn ftrl_max<T: Float>(hyper: &Hyper, row: &mut [u8], state: &mut [u8], values: &[u8]) {
    ftrl_write(hyper, row, state, values, T::greater);
}

/// Writes `w = f(w, x)` on a table of FTRL. Where `w` changed, `z` becomes the value from which FTRL gives
/// the new `w`.
///
/// With the old `z` the next gradient would undo the write. `n` stays: it is about gradients.
#[inline(always)]
fn ftrl_write<T: Float>(
    hyper: &Hyper,
    row: &mut [u8],
    state: &mut [u8],
    values: &[u8],
    f: impl Fn(T, T) -> T,
) {
    let hyper = rounded::<T>(hyper);
    let (z, n) = halves(state, values.len());
    each_with_two(row, z, n, values, |old: T, [z, n], x| {
        let w = f(old, x);
        let implied = ftrl_implied(hyper, w, n);
        (w, [if w == old { z } else { implied }, n])
    });
}

/// Sets the `z` of a new row of FTRL, so that its first gradient starts from its initial `w`.
pub(super) fn ftrl_adopt<T: Float>(hyper: &Hyper, row: &[u8], state: &mut [u8]) {
    let hyper = rounded::<T>(hyper);
    let (z, n) = halves(state, row.len());
    each_with_one(z, n, row, |_, n, w: T| (ftrl_implied(hyper, w, n), n));
}

/// Returns the `z` for which FTRL gives `w`, up to rounding: `-(w ((beta + sqrt(n)) / alpha + l2) + sign(w)
/// l1)`. 0 is chosen of all those that give `w = 0`.
#[inline(always)]
fn ftrl_implied<T: Float>([alpha, beta, l1, l2, _]: [T; PARAMETERS_MAX], w: T, n: T) -> T {
    let z = -(w * ((beta + n.sqrt()) / alpha + l2) + l1.copysign(w));
    if w == T::ZERO { T::ZERO } else { z }
}

#[inline(always)]
fn rounded<T: Element>(hyper: &Hyper) -> [T; PARAMETERS_MAX] {
    // Written out: `map` on an array of this length takes a hundred instructions a row.
    let [a, b, c, d, e] = hyper.rule;
    [
        T::nearest(a),
        T::nearest(b),
        T::nearest(c),
        T::nearest(d),
        T::nearest(e),
    ]
}

/// Splits optimizer state into a slot of `row_bytes` bytes and the rest. Both are empty if the state is
/// shorter.
fn halves(state: &mut [u8], row_bytes: usize) -> (&mut [u8], &mut [u8]) {
    state.split_at_mut_checked(row_bytes).unwrap_or_default()
}

/// Sets the accumulators of a new row of the `AdaGrad` family to the table's first accumulator.
pub(super) fn accumulator_adopt<T: Float>(hyper: &Hyper, _: &[u8], state: &mut [u8]) {
    T::split_mut(state).fill(T::nearest(hyper.options.initial_accumulator).store());
}
