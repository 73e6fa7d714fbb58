//! The gradient rules, one function each: `g` a gradient, `w` a parameter, both of type `T`.
//!
//! Every rule rounds after every operation, in the order written, in the table's own type. Nothing
//! is contracted or reassociated, so a row's bits depend on its pushes and on nothing else.
//! Hyper-parameters are rounded to `T` before the loop.

use super::element::{Element, Float, each, each_with_one, each_with_two};
use super::math::power;

/// A rule's hyper-parameters in the order of its fields in `Optimizer`, unused ones 0.
pub(super) type Hyper = [f64; 4];

/// `payload`, `state` and `values` of one row, as [`super::RowKernel::apply`] gets them.
pub(super) type Step = fn(&Hyper, &mut [u8], &mut [u8], &[u8]);

/// `w += x`, state untouched.
pub(super) fn sum<T: Element>(_: &Hyper, row: &mut [u8], _: &mut [u8], values: &[u8]) {
    each(row, values, T::plus);
}

/// `w = x`, state untouched.
pub(super) fn assign<T: Element>(_: &Hyper, row: &mut [u8], _: &mut [u8], values: &[u8]) {
    each(row, values, |_: T, x| x);
}

/// The gradient of a table without gradients: no change.
pub(super) fn ignore(_: &Hyper, _: &mut [u8], _: &mut [u8], _: &[u8]) {}

/// `w -= lr g`.
pub(super) fn sgd<T: Float>(hyper: &Hyper, row: &mut [u8], _: &mut [u8], gradient: &[u8]) {
    let [lr, ..] = rounded::<T>(hyper);
    each(row, gradient, |w: T, g| w - lr * g);
}

/// `v = mu v + g; w -= lr v`.
pub(super) fn momentum<T: Float>(hyper: &Hyper, row: &mut [u8], v: &mut [u8], gradient: &[u8]) {
    let [lr, mu, ..] = rounded::<T>(hyper);
    each_with_one(row, v, gradient, |w: T, v, g| {
        let v = mu * v + g;
        (w - lr * v, v)
    });
}

/// `v = mu v + g; w -= lr (g + mu v)`.
pub(super) fn nesterov<T: Float>(hyper: &Hyper, row: &mut [u8], v: &mut [u8], gradient: &[u8]) {
    let [lr, mu, ..] = rounded::<T>(hyper);
    each_with_one(row, v, gradient, |w: T, v, g| {
        let v = mu * v + g;
        (w - lr * (g + mu * v), v)
    });
}

/// `n += g^2; w -= (lr g) / (sqrt(n) + eps)`.
pub(super) fn adagrad<T: Float>(hyper: &Hyper, row: &mut [u8], n: &mut [u8], gradient: &[u8]) {
    let [lr, eps, ..] = rounded::<T>(hyper);
    each_with_one(row, n, gradient, |w: T, n, g| {
        let n = n + g * g;
        (w - (lr * g) / (n.sqrt() + eps), n)
    });
}

/// `m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2; w -= (rate m) / (sqrt(v) spread + eps)`.
///
/// The bias corrections are those of the row's step t, computed in f64 and rounded to `T` once a
/// row: `rate = lr / (1 - b1^t)` and `spread = sqrt(1 / (1 - b2^t))`.
pub(super) fn adam<T: Float>(hyper: &Hyper, row: &mut [u8], state: &mut [u8], gradient: &[u8]) {
    let [lr, beta1, beta2, eps] = *hyper;
    let Some((slots, steps)) = state.split_last_chunk_mut::<8>() else {
        return;
    };
    let t = u64::from_le_bytes(*steps).saturating_add(1);
    *steps = t.to_le_bytes();

    let rate = T::nearest(lr / (1.0 - power(beta1, t)));
    let spread = T::nearest((1.0 / (1.0 - power(beta2, t))).sqrt());
    let (fresh1, fresh2) = (T::nearest(1.0 - beta1), T::nearest(1.0 - beta2));
    let (beta1, beta2, eps) = (T::nearest(beta1), T::nearest(beta2), T::nearest(eps));
    let (m, v) = halves(slots, gradient.len());
    each_with_two(row, m, v, gradient, |w: T, [m, v], g| {
        let m = beta1 * m + fresh1 * g;
        let v = beta2 * v + fresh2 * (g * g);
        (w - (rate * m) / (v.sqrt() * spread + eps), [m, v])
    });
}

/// FTRL-proximal (`McMahan` et al., KDD 2013):
/// `sigma = (sqrt(n + g^2) - sqrt(n)) / alpha; n += g^2; z += g - sigma w`; then
/// `w = 0` if `|z| <= l1`, else `-(z - sign(z) l1) / ((beta + sqrt(n)) / alpha + l2)`.
pub(super) fn ftrl<T: Float>(hyper: &Hyper, row: &mut [u8], state: &mut [u8], gradient: &[u8]) {
    let [alpha, beta, l1, l2] = rounded::<T>(hyper);
    let (z, n) = halves(state, gradient.len());
    each_with_two(row, z, n, gradient, |w: T, [z, n], g| {
        let root_before = n.sqrt();
        let n = n + g * g;
        let root = n.sqrt();
        let z = z + (g - (root - root_before) / alpha * w);
        let far = -(z - l1.copysign(z)) / ((beta + root) / alpha + l2);
        // Both sides are computed and one is chosen: a branch would keep the loop scalar.
        (if z.abs() <= l1 { T::ZERO } else { far }, [z, n])
    });
}

/// [`sum`] on a table of FTRL.
pub(super) fn ftrl_sum<T: Float>(hyper: &Hyper, row: &mut [u8], state: &mut [u8], values: &[u8]) {
    ftrl_write(hyper, row, state, values, T::plus);
}

/// [`assign`] on a table of FTRL.
pub(super) fn ftrl_assign<T: Float>(
    hyper: &Hyper,
    row: &mut [u8],
    state: &mut [u8],
    values: &[u8],
) {
    ftrl_write(hyper, row, state, values, |_: T, x| x);
}

/// `w = f(w, x)`, and `z` follows where `w` changed.
///
/// Otherwise the next gradient would compute `w` from a `z` without the write, and undo it. `n`
/// stays: it is about gradients.
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

/// Gives a new row its `z`, so that its first gradient starts from its initial `w`.
pub(super) fn ftrl_adopt<T: Float>(hyper: &Hyper, row: &[u8], state: &mut [u8]) {
    let hyper = rounded::<T>(hyper);
    let (z, n) = halves(state, row.len());
    each_with_one(z, n, row, |_, n, w: T| (ftrl_implied(hyper, w, n), n));
}

/// The `z` for which the rule gives `w`, up to rounding: `-(w ((beta + sqrt(n)) / alpha + l2) +
/// sign(w) l1)`, and 0 of all those that give `w = 0`.
#[inline(always)]
fn ftrl_implied<T: Float>([alpha, beta, l1, l2]: [T; 4], w: T, n: T) -> T {
    let z = -(w * ((beta + n.sqrt()) / alpha + l2) + l1.copysign(w));
    if w == T::ZERO { T::ZERO } else { z }
}

#[inline(always)]
fn rounded<T: Element>(&[a, b, c, d]: &Hyper) -> [T; 4] {
    [T::nearest(a), T::nearest(b), T::nearest(c), T::nearest(d)]
}

/// Splits the state into two slots of `row_bytes` each; empty when there is not room for them.
fn halves(state: &mut [u8], row_bytes: usize) -> (&mut [u8], &mut [u8]) {
    state.split_at_mut_checked(row_bytes).unwrap_or_default()
}
