//! What a table's options make of a gradient before its rule takes it.
//!
//! The order is that of a trainer that clips before its optimizer's step: by value, by the norm of
//! the row, then the L2 penalty. A table without options runs rules that contain none of this.

use tidewater_protocol::table::GradientOptions;

use super::element::Float;

/// Gradient options of a table as kernels take them. A clipping bound that is not set is infinite.
#[derive(Debug, Clone, Copy)]
pub(super) struct Options {
    clip_value: f64,
    clip_norm: f64,
    weight_decay: f64,
    pub(super) initial_accumulator: f64,
}

impl Options {
    pub(super) fn new(options: &GradientOptions) -> Self {
        Self {
            clip_value: options.clip_value.unwrap_or(f64::INFINITY),
            clip_norm: options.clip_norm.unwrap_or(f64::INFINITY),
            weight_decay: options.weight_decay,
            initial_accumulator: options.initial_accumulator,
        }
    }
}

/// Adjustment of a row's pushed gradient before the update rule takes it: clipping and L2 penalty.
pub(super) trait Prepare<T: Float> {
    /// Prepares the adjustment for one row. Reads the row's complete gradient if an option depends on its
    /// norm.
    fn new(options: &Options, gradient: &[u8]) -> Self;
    /// Returns the adjusted gradient of parameter `w` from the pushed gradient `g`.
    fn of(&self, w: T, g: T) -> T;
}

/// Adjustment that leaves gradients as they are pushed.
pub(super) struct Plain;

impl<T: Float> Prepare<T> for Plain {
    #[inline(always)]
    fn new(_: &Options, _: &[u8]) -> Self {
        Self
    }
    #[inline(always)]
    fn of(&self, _: T, g: T) -> T {
        g
    }
}

/// Adjustment of a table with gradient options: clipping by value, clipping by norm, L2 penalty.
pub(super) struct Adjusted<T> {
    bound: Option<T>,
    scale: Option<T>,
    weight_decay: Option<T>,
}

impl<T: Float> Adjusted<T> {
    #[inline(always)]
    fn clipped(bound: Option<T>, g: T) -> T {
        match bound {
            // NaN is not above: it stays.
            Some(bound) if g.abs() > bound => bound.copysign(g),
            _ => g,
        }
    }
}

impl<T: Float> Prepare<T> for Adjusted<T> {
    /// Prepares the adjustment of one row. The norm is that of the gradient clipped by value. It is summed in
    /// f64, in the order of the columns. The scale is rounded to `T` once.
    fn new(options: &Options, gradient: &[u8]) -> Self {
        let bound = options.clip_value.is_finite();
        let bound = bound.then(|| T::nearest(options.clip_value));
        let mut scale = None;
        if options.clip_norm.is_finite() {
            let clipped = T::split(gradient)
                .iter()
                .map(|g| Self::clipped(bound, T::load(*g)).widen());
            let clip = options.clip_norm;
            let squares = |by: f64| move |sum, g: f64| sum + (g * by) * (g * by);
            let norm = clipped.clone().fold(0.0, squares(1.0)).sqrt();
            // Squares of elements above 1e154 overflow: they are divided by the largest one first.
            let most = || clipped.clone().fold(0.0, |most, g| g.abs().max(most));
            scale = match norm
                .is_infinite()
                .then(most)
                .filter(|most| most.is_finite())
            {
                None => (norm > clip).then(|| T::nearest(clip / norm)),
                Some(most) => {
                    let norm = clipped.clone().fold(0.0, squares(1.0 / most)).sqrt();
                    Some(T::nearest(clip / most / norm))
                }
            };
        }
        let weight_decay = options.weight_decay != 0.0;
        Self {
            bound,
            scale,
            weight_decay: weight_decay.then(|| T::nearest(options.weight_decay)),
        }
    }

    #[inline(always)]
    fn of(&self, w: T, g: T) -> T {
        let mut g = Self::clipped(self.bound, g);
        if let Some(scale) = self.scale {
            g = g * scale;
        }
        if let Some(decay) = self.weight_decay {
            g = g + decay * w;
        }
        g
    }
}
