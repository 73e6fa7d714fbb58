//! The gradient rules of tables, their hyper-parameters with the valid ranges, and the options that
//! every rule shares.

use serde::ser::SerializeStruct;
use serde::{Deserialize, Serialize, Serializer};

use super::DType;

/// Optimizer rule by which a server applies a gradient to a row, with its hyper-parameters, which are per
/// table. `g` is the gradient, `w` the parameter. Every rule but [`Optimizer::RowAdaGrad`] works element by
/// element on its own state.
///
/// `g` is the pushed (or reduced) gradient after the [`GradientOptions`] of the table.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Optimizer {
    /// No rule: the table does not accept gradients ([`super::PushOp::Gradient`]).
    None,
    /// `w -= lr g`. No state.
    Sgd {
        /// Learning rate, above 0.
        lr: f64,
    },
    /// `v = mu v + g; w -= lr v`, or with `nesterov` `w -= lr (g + mu v)`. State: v.
    Momentum {
        /// Learning rate, above 0.
        lr: f64,
        /// Momentum factor, in `[0, 1)`.
        mu: f64,
        /// Whether to use Nesterov's form.
        nesterov: bool,
    },
    /// `n += g^2; w -= lr g / (sqrt(n) + eps)`. State: n.
    AdaGrad {
        /// Learning rate, above 0.
        lr: f64,
        /// Term added to the root, above 0.
        eps: f64,
    },
    /// Adam with a step count **per row**; in range tables, per element. State: m, v, and the step
    /// count t.
    Adam {
        /// Learning rate, above 0.
        lr: f64,
        /// Decay of the first moment, in `[0, 1)`.
        beta1: f64,
        /// Decay of the second moment, in `[0, 1)`.
        beta2: f64,
        /// Term added to the root, above 0.
        eps: f64,
    },
    /// FTRL-proximal (`McMahan` et al., KDD 2013). State: z, n. `w` is a function of (z, n) and is
    /// exactly zero while `|z| <= l1`.
    Ftrl {
        /// Scale of the learning rate, above 0.
        alpha: f64,
        /// Offset of the learning rate, at least 0; above 0 if `l2` is 0.
        beta: f64,
        /// Weight of the L1 penalty, at least 0.
        l1: f64,
        /// Weight of the L2 penalty, at least 0.
        l2: f64,
    },
    /// `RMSProp`: `v = decay v + (1 - decay) g^2; w -= lr g / (sqrt(v) + eps)`. State: v.
    RmsProp {
        /// Learning rate, above 0.
        lr: f64,
        /// Decay of the mean square, in `[0, 1)`.
        decay: f64,
        /// Term added to the root, above 0.
        eps: f64,
    },
    /// Adam with decoupled weight decay (Loshchilov and Hutter, ICLR 2019): `w -= lr weight_decay w`,
    /// then the step of Adam. State: m, v, and the step count t.
    AdamW {
        /// Learning rate, above 0.
        lr: f64,
        /// Decay of the first moment, in `[0, 1)`.
        beta1: f64,
        /// Decay of the second moment, in `[0, 1)`.
        beta2: f64,
        /// Term added to the root, above 0.
        eps: f64,
        /// Share of a parameter that a step at rate 1 removes, at least 0.
        weight_decay: f64,
    },
    /// `AdaGrad` with one accumulator a row: `n += mean of g^2 over the row; w -= lr g / (sqrt(n) +
    /// eps)`. State: one element a row. Not for range tables, which have no rows.
    RowAdaGrad {
        /// Learning rate, above 0.
        lr: f64,
        /// Term added to the root, above 0.
        eps: f64,
    },
    /// Adam with the largest second moment so far (Reddi et al., ICLR 2018): `s = max(s, v)`
    /// replaces `v` under the root. State: m, v, s, and the step count t.
    AmsGrad {
        /// Learning rate, above 0.
        lr: f64,
        /// Decay of the first moment, in `[0, 1)`.
        beta1: f64,
        /// Decay of the second moment, in `[0, 1)`.
        beta2: f64,
        /// Term added to the root, above 0.
        eps: f64,
    },
    /// `AdaDelta` (Zeiler, arXiv 1212.5701): `n = rho n + (1 - rho) g^2; d = g sqrt(s + eps) / sqrt(n +
    /// eps); s = rho s + (1 - rho) d^2; w -= lr d`, with each mean under one root. The paper has `lr` 1.
    /// State: n, s.
    AdaDelta {
        /// Factor of each step, above 0.
        lr: f64,
        /// Decay of both mean squares, in `[0, 1)`.
        rho: f64,
        /// Term added to the mean squares under the roots, above 0.
        eps: f64,
    },
    /// SGD with an L1 penalty (FOBOS; Duchi and Singer, JMLR 2009): `u = w - lr g`, then the soft threshold
    /// `w = sign(u) max(0, |u| - lr l1)`. A weight becomes exactly zero. No state.
    ///
    /// Only the elements of a gradient take the step: an element that no gradient touches does not shrink.
    ProximalSgd {
        /// Learning rate, above 0.
        lr: f64,
        /// Weight of the L1 penalty, at least 0; 0 has the values of [`Optimizer::Sgd`].
        l1: f64,
    },
    /// [`Optimizer::AdaGrad`] with an L1 penalty (Duchi, Hazan and Singer, JMLR 2011): `n += g^2; u = w - lr g
    /// / (sqrt(n) + eps)`, then the soft threshold at the element's own rate, `w = sign(u) max(0, |u| - lr l1 /
    /// (sqrt(n) + eps))`. State: n.
    ///
    /// Only the elements of a gradient take the step: an element that no gradient touches does not shrink.
    ProximalAdaGrad {
        /// Learning rate, above 0.
        lr: f64,
        /// Term added to the root, above 0.
        eps: f64,
        /// Weight of the L1 penalty, at least 0; 0 has the values of [`Optimizer::AdaGrad`].
        l1: f64,
    },
}

/// Maximum number of hyper-parameters of a rule.
pub const PARAMETERS_MAX: usize = 5;

/// One hyper-parameter of an optimizer rule, or a gradient option: its name, value and valid range.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Parameter {
    /// Name of the field in [`Optimizer`] or [`GradientOptions`]; empty for an unused place.
    pub name: &'static str,
    /// Value that was given.
    pub value: f64,
    /// Set that the value must lie in.
    pub range: Range,
}

/// Set of valid values of a hyper-parameter. The value must lie in it before and after rounding to the table's
/// element type: a decay of `1 - 1e-9` is 1 in f32, and would never decay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Range {
    /// Finite and above 0: rates, and terms added to a root that may be 0, which give `0 / 0` otherwise.
    Positive,
    /// Finite and at least 0: weights, such as `l1` and `l2`.
    NotNegative,
    /// `[0, 1)`: decays. At 1 a state never forgets, and Adam divides by zero.
    BelowOne,
}

impl Range {
    fn holds(self, value: f64) -> bool {
        value.is_finite()
            && match self {
                Self::Positive => value > 0.0,
                Self::NotNegative => value >= 0.0,
                Self::BelowOne => (0.0..1.0).contains(&value),
            }
    }

    /// Describes the valid range as a phrase for an error message, such as "finite and above 0".
    pub const fn text(self) -> &'static str {
        match self {
            Self::Positive => "finite and above 0",
            Self::NotNegative => "finite and not below 0",
            Self::BelowOne => "in [0, 1)",
        }
    }
}

impl Parameter {
    const UNUSED: Self = Self::new("", 0.0, Range::NotNegative);

    const fn new(name: &'static str, value: f64, range: Range) -> Self {
        Self { name, value, range }
    }

    /// Whether the value is in its range, as given and as rounded to the element type `dtype`.
    pub fn is_valid(&self, dtype: DType) -> bool {
        let rounded = if dtype == DType::F32 {
            f64::from(self.value as f32)
        } else {
            self.value
        };
        self.range.holds(self.value) && self.range.holds(rounded)
    }
}

impl Optimizer {
    /// Returns the number of state elements that the rule keeps for each element of a row. 0 for
    /// [`Optimizer::RowAdaGrad`], which keeps one element a row.
    pub const fn state_slots(&self) -> usize {
        match self {
            Self::None | Self::Sgd { .. } | Self::RowAdaGrad { .. } | Self::ProximalSgd { .. } => 0,
            Self::Momentum { .. }
            | Self::AdaGrad { .. }
            | Self::RmsProp { .. }
            | Self::ProximalAdaGrad { .. } => 1,
            Self::Adam { .. } | Self::AdamW { .. } | Self::Ftrl { .. } | Self::AdaDelta { .. } => 2,
            Self::AmsGrad { .. } => 3,
        }
    }

    /// Whether the rule also keeps a step count, as rules of Adam's kind do: 8 bytes a row. In range tables the
    /// count is per element.
    pub const fn counts_steps(&self) -> bool {
        matches!(
            self,
            Self::Adam { .. } | Self::AdamW { .. } | Self::AmsGrad { .. }
        )
    }

    /// Whether the rule computes with all elements of a row at once (only [`Optimizer::RowAdaGrad`]), which a
    /// range table cannot.
    pub const fn needs_rows(&self) -> bool {
        matches!(self, Self::RowAdaGrad { .. })
    }

    /// Whether the rule sums squares of gradients in an accumulator, so that
    /// [`GradientOptions::initial_accumulator`] may set its start.
    pub const fn accumulates(&self) -> bool {
        matches!(
            self,
            Self::AdaGrad { .. } | Self::RowAdaGrad { .. } | Self::ProximalAdaGrad { .. }
        )
    }

    /// Returns the bytes of optimizer state of one row of `dim` elements: its slots. If the rule counts steps,
    /// they are padded to 8 bytes and the count follows. One element for [`Optimizer::RowAdaGrad`].
    pub const fn state_bytes(&self, dim: usize, dtype: DType) -> usize {
        let slots = self.state_slots() * dim * dtype.size();
        if self.counts_steps() {
            slots.next_multiple_of(8) + 8
        } else if self.needs_rows() {
            dtype.size()
        } else {
            slots
        }
    }

    /// Returns the name of the rule, spelled as its variant.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::None => "None",
            Self::Sgd { .. } => "Sgd",
            Self::Momentum { .. } => "Momentum",
            Self::AdaGrad { .. } => "AdaGrad",
            Self::Adam { .. } => "Adam",
            Self::Ftrl { .. } => "Ftrl",
            Self::RmsProp { .. } => "RmsProp",
            Self::AdamW { .. } => "AdamW",
            Self::RowAdaGrad { .. } => "RowAdaGrad",
            Self::AmsGrad { .. } => "AmsGrad",
            Self::AdaDelta { .. } => "AdaDelta",
            Self::ProximalSgd { .. } => "ProximalSgd",
            Self::ProximalAdaGrad { .. } => "ProximalAdaGrad",
        }
    }

    /// Returns the numeric hyper-parameters with names and ranges, in the order of the fields (`nesterov` is not among
    /// them). Unused places, after the used ones, have an empty name and the value 0.
    pub const fn parameters(&self) -> [Parameter; PARAMETERS_MAX] {
        const UNUSED: Parameter = Parameter::UNUSED;
        match *self {
            Self::None => [UNUSED; PARAMETERS_MAX],
            Self::Sgd { lr } => [lr_of(lr), UNUSED, UNUSED, UNUSED, UNUSED],
            Self::Momentum { lr, mu, .. } => {
                let mu = Parameter::new("mu", mu, Range::BelowOne);
                [lr_of(lr), mu, UNUSED, UNUSED, UNUSED]
            }
            Self::AdaGrad { lr, eps } | Self::RowAdaGrad { lr, eps } => {
                [lr_of(lr), eps_of(eps), UNUSED, UNUSED, UNUSED]
            }
            Self::RmsProp { lr, decay, eps } => {
                let decay = Parameter::new("decay", decay, Range::BelowOne);
                [lr_of(lr), decay, eps_of(eps), UNUSED, UNUSED]
            }
            Self::AdaDelta { lr, rho, eps } => {
                let rho = Parameter::new("rho", rho, Range::BelowOne);
                [lr_of(lr), rho, eps_of(eps), UNUSED, UNUSED]
            }
            Self::ProximalSgd { lr, l1 } => [lr_of(lr), l1_of(l1), UNUSED, UNUSED, UNUSED],
            Self::ProximalAdaGrad { lr, eps, l1 } => {
                [lr_of(lr), eps_of(eps), l1_of(l1), UNUSED, UNUSED]
            }
            Self::Adam {
                lr,
                beta1,
                beta2,
                eps,
            }
            | Self::AmsGrad {
                lr,
                beta1,
                beta2,
                eps,
            } => adam(lr, beta1, beta2, eps, UNUSED),
            Self::AdamW {
                lr,
                beta1,
                beta2,
                eps,
                weight_decay,
            } => {
                let decay = Parameter::new("weight_decay", weight_decay, Range::NotNegative);
                adam(lr, beta1, beta2, eps, decay)
            }
            Self::Ftrl {
                alpha,
                beta,
                l1,
                l2,
            } => {
                // The slope of w in z before any learning: beta / alpha + l2.
                let range = if l2 > 0.0 {
                    Range::NotNegative
                } else {
                    Range::Positive
                };
                [
                    Parameter::new("alpha", alpha, Range::Positive),
                    Parameter::new("beta", beta, range),
                    l1_of(l1),
                    Parameter::new("l2", l2, Range::NotNegative),
                    UNUSED,
                ]
            }
        }
    }

    /// Returns the first hyper-parameter that is out of its range on a table of `dtype`; `None` if all are
    /// valid.
    pub fn out_of_range(&self, dtype: DType) -> Option<Parameter> {
        let mut rule = *self;
        // An l2 that rounds to 0 in the element type gives no slope; beta has to.
        if let Self::Ftrl { l2, .. } = &mut rule
            && dtype == DType::F32
            && *l2 > 0.0
            && *l2 as f32 == 0.0
        {
            *l2 = 0.0;
        }
        let mut parameters = rule.parameters().into_iter();
        parameters.find(|parameter| !parameter.is_valid(dtype))
    }

    /// Returns the learning rate: `lr`, or `alpha` of [`Optimizer::Ftrl`]; 0 for [`Optimizer::None`].
    pub const fn rate(&self) -> f64 {
        match *self {
            Self::None => 0.0,
            Self::Sgd { lr }
            | Self::Momentum { lr, .. }
            | Self::AdaGrad { lr, .. }
            | Self::Adam { lr, .. }
            | Self::RmsProp { lr, .. }
            | Self::AdamW { lr, .. }
            | Self::RowAdaGrad { lr, .. }
            | Self::AmsGrad { lr, .. }
            | Self::AdaDelta { lr, .. }
            | Self::ProximalSgd { lr, .. }
            | Self::ProximalAdaGrad { lr, .. } => lr,
            Self::Ftrl { alpha, .. } => alpha,
        }
    }

    /// Returns the same rule with the learning rate `rate`: `lr`, or `alpha` of [`Optimizer::Ftrl`]. The rate is not
    /// checked. [`Optimizer::None`] stays as it is.
    #[must_use]
    pub const fn with_rate(mut self, rate: f64) -> Self {
        match &mut self {
            Self::None => {}
            Self::Sgd { lr }
            | Self::Momentum { lr, .. }
            | Self::AdaGrad { lr, .. }
            | Self::Adam { lr, .. }
            | Self::RmsProp { lr, .. }
            | Self::AdamW { lr, .. }
            | Self::RowAdaGrad { lr, .. }
            | Self::AmsGrad { lr, .. }
            | Self::AdaDelta { lr, .. }
            | Self::ProximalSgd { lr, .. }
            | Self::ProximalAdaGrad { lr, .. } => *lr = rate,
            Self::Ftrl { alpha, .. } => *alpha = rate,
        }
        self
    }
}

const fn lr_of(lr: f64) -> Parameter {
    Parameter::new("lr", lr, Range::Positive)
}

const fn eps_of(eps: f64) -> Parameter {
    Parameter::new("eps", eps, Range::Positive)
}

const fn l1_of(l1: f64) -> Parameter {
    Parameter::new("l1", l1, Range::NotNegative)
}

const fn adam(
    lr: f64,
    beta1: f64,
    beta2: f64,
    eps: f64,
    last: Parameter,
) -> [Parameter; PARAMETERS_MAX] {
    [
        lr_of(lr),
        Parameter::new("beta1", beta1, Range::BelowOne),
        Parameter::new("beta2", beta2, Range::BelowOne),
        eps_of(eps),
        last,
    ]
}

/// Changes that a table applies to a gradient before its optimizer rule, and the initial accumulator of new
/// rows. The default changes nothing.
///
/// A gradient `g` is clipped by value, then by the norm of its row, then `weight_decay w` is added.
/// At a tick this happens once, to the reduced gradient of a row. Only rows (of a range table: elements) that a
/// gradient touches decay.
#[derive(Debug, Clone, Copy, PartialEq, Default, Deserialize)]
pub struct GradientOptions {
    /// Weight of the L2 penalty: the rule takes `g + weight_decay w`. 0 for none. Not with
    /// [`Optimizer::AdamW`], which has a decay of its own.
    pub weight_decay: f64,
    /// Bound of the magnitude of each element of a gradient, above 0; `None` for no bound.
    pub clip_value: Option<f64>,
    /// Bound of the Euclidean norm of a row's gradient, above 0; `None` for no bound. Not for range tables, which have
    /// no rows.
    pub clip_norm: Option<f64>,
    /// Accumulator of new rows, at least 0. Above 0 only with [`Optimizer::AdaGrad`], [`Optimizer::RowAdaGrad`] or
    /// [`Optimizer::ProximalAdaGrad`].
    pub initial_accumulator: f64,
    /// Whether the learning rate of a gradient is divided by its staleness: the ticks by which the
    /// fastest worker of the table's domain is ahead of the pushing worker when the gradient is applied,
    /// at least 1. For tables that apply pushes on arrival.
    #[serde(default)]
    pub by_staleness: bool,
}

/// Text leaves `by_staleness` out if it is false: manifests keep the words, and the checksum, that they
/// had before there was this option. Binary encodings have every field.
impl Serialize for GradientOptions {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let all = !serializer.is_human_readable() || self.by_staleness;
        let mut options = serializer.serialize_struct("GradientOptions", 4 + usize::from(all))?;
        options.serialize_field("weight_decay", &self.weight_decay)?;
        options.serialize_field("clip_value", &self.clip_value)?;
        options.serialize_field("clip_norm", &self.clip_norm)?;
        options.serialize_field("initial_accumulator", &self.initial_accumulator)?;
        if all {
            options.serialize_field("by_staleness", &self.by_staleness)?;
        } else {
            options.skip_field("by_staleness")?;
        }
        options.end()
    }
}

impl GradientOptions {
    /// Whether all options have their default values.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Whether gradients reach the rule unchanged: no clipping and no weight decay. `by_staleness` does not count,
    /// because it changes the learning rate and not the gradient.
    pub fn keeps_gradients(&self) -> bool {
        self.weight_decay == 0.0 && self.clip_value.is_none() && self.clip_norm.is_none()
    }

    /// Returns the four numeric options with names and ranges, in the order of the fields. A bound that is `None` is an
    /// unused place with an empty name.
    pub const fn parameters(&self) -> [Parameter; 4] {
        const fn bound(name: &'static str, bound: Option<f64>) -> Parameter {
            match bound {
                Some(bound) => Parameter::new(name, bound, Range::Positive),
                None => Parameter::UNUSED,
            }
        }
        [
            Parameter::new("weight_decay", self.weight_decay, Range::NotNegative),
            bound("clip_value", self.clip_value),
            bound("clip_norm", self.clip_norm),
            Parameter::new(
                "initial_accumulator",
                self.initial_accumulator,
                Range::NotNegative,
            ),
        ]
    }

    /// Returns the first option that is out of its range on a table of `dtype`; `None` if all are valid.
    pub fn out_of_range(&self, dtype: DType) -> Option<Parameter> {
        let mut parameters = self.parameters().into_iter();
        parameters.find(|parameter| !parameter.is_valid(dtype))
    }
}
