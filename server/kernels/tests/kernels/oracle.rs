//! The rules once more, element by element, from their formulas: the code that kernels must match
//! to the bit. It shares no code with them.

use tidewater_protocol::table::{GradientOptions, Optimizer, PushOp};

/// `b^t` by its definition: `b^(2k) = (b^k)^2`, `b^(2k+1) = (b^k)^2 b`.
fn power(b: f64, t: u64) -> f64 {
    if t == 0 {
        return 1.0;
    }
    let half = power(b, t / 2);
    let square = half * half;
    if t.is_multiple_of(2) {
        square
    } else {
        square * b
    }
}

macro_rules! oracle {
    ($name:ident, $t:ident) => {
        pub(crate) struct $name {
            pub(crate) w: Vec<$t>,
            /// The slots of each element.
            pub(crate) first: Vec<$t>,
            pub(crate) second: Vec<$t>,
            pub(crate) third: Vec<$t>,
            /// Accumulator of the row.
            pub(crate) of_row: $t,
            pub(crate) steps: u64,
            pub(crate) rule: Optimizer,
            /// Factor of the rate of the next gradients.
            pub(crate) factor: f64,
            options: GradientOptions,
        }

        impl $name {
            pub(crate) fn new(rule: Optimizer, options: GradientOptions, dim: usize) -> Self {
                let zeros = vec![0.0; dim];
                let first = options.initial_accumulator as $t;
                Self {
                    w: zeros.clone(),
                    first: vec![first; dim],
                    second: zeros.clone(),
                    third: zeros,
                    of_row: first,
                    steps: 0,
                    rule,
                    factor: 1.0,
                    options,
                }
            }

            /// The rule with the rate of the next gradient. FTRL's rates follow from its state.
            fn rule_now(&self) -> Optimizer {
                match self.rule {
                    Optimizer::Ftrl { .. } => self.rule,
                    rule => rule.with_rate(rule.parameters()[0].value * self.factor),
                }
            }

            pub(crate) fn push(&mut self, op: PushOp, x: &[$t]) {
                let ready = self.prepare(x);
                if op == PushOp::Gradient {
                    self.steps += 1;
                    let sum = ready
                        .iter()
                        .fold(0.0, |sum, &g| sum + f64::from(g) * f64::from(g));
                    self.of_row += (sum / ready.len() as f64) as $t;
                }
                for i in 0..self.w.len() {
                    match op {
                        PushOp::Sum => self.write(i, self.w[i] + x[i]),
                        PushOp::Assign => self.write(i, x[i]),
                        PushOp::Min if x[i] < self.w[i] || x[i].is_nan() => self.write(i, x[i]),
                        PushOp::Max if x[i] > self.w[i] || x[i].is_nan() => self.write(i, x[i]),
                        PushOp::Min | PushOp::Max => self.write(i, self.w[i]),
                        PushOp::Gradient => self.gradient(i, ready[i]),
                    }
                }
            }

            /// Clips by value, then by norm, then adds the penalty: three passes.
            fn prepare(&self, x: &[$t]) -> Vec<$t> {
                let mut g = x.to_vec();
                if let Some(bound) = self.options.clip_value {
                    let bound = bound as $t;
                    g.iter_mut().for_each(|g| *g = g.clamp(-bound, bound));
                }
                if let Some(most) = self.options.clip_norm {
                    let sum = g
                        .iter()
                        .fold(0.0, |sum, &g| sum + f64::from(g) * f64::from(g));
                    if sum.sqrt() > most {
                        let scale = (most / sum.sqrt()) as $t;
                        g.iter_mut().for_each(|g| *g *= scale);
                    }
                }
                if self.options.weight_decay > 0.0 {
                    let decay = self.options.weight_decay as $t;
                    g.iter_mut().zip(&self.w).for_each(|(g, w)| *g += decay * w);
                }
                g
            }

            fn write(&mut self, i: usize, w: $t) {
                if let Optimizer::Ftrl {
                    alpha,
                    beta,
                    l1,
                    l2,
                } = self.rule
                    && w != self.w[i]
                {
                    let n = self.second[i];
                    let slope = (beta as $t + n.sqrt()) / alpha as $t + l2 as $t;
                    self.first[i] = if w > 0.0 {
                        -(w * slope + l1 as $t)
                    } else if w < 0.0 {
                        -(w * slope - l1 as $t)
                    } else if w == 0.0 {
                        0.0
                    } else {
                        w // NaN for ever
                    };
                }
                self.w[i] = w;
            }

            fn gradient(&mut self, i: usize, g: $t) {
                match self.rule_now() {
                    Optimizer::None => {}
                    Optimizer::Sgd { lr } => self.w[i] -= lr as $t * g,
                    Optimizer::Momentum { lr, mu, nesterov } => {
                        self.first[i] = mu as $t * self.first[i] + g;
                        let v = self.first[i];
                        self.w[i] -= lr as $t * if nesterov { g + mu as $t * v } else { v };
                    }
                    Optimizer::AdaGrad { lr, eps } | Optimizer::RowAdaGrad { lr, eps } => {
                        self.first[i] += g * g;
                        let n = if self.rule.needs_rows() {
                            self.of_row
                        } else {
                            self.first[i]
                        };
                        self.w[i] -= lr as $t * g / (n.sqrt() + eps as $t);
                    }
                    Optimizer::RmsProp { lr, decay, eps } => {
                        self.first[i] = decay as $t * self.first[i] + (1.0 - decay) as $t * (g * g);
                        self.w[i] -= lr as $t * g / (self.first[i].sqrt() + eps as $t);
                    }
                    Optimizer::Adam {
                        lr,
                        beta1,
                        beta2,
                        eps,
                    } => {
                        let (m, v) = self.moments(i, g, beta1, beta2);
                        self.w[i] -= self.change(m, v, lr, beta1, beta2, eps);
                    }
                    Optimizer::AdamW {
                        lr,
                        beta1,
                        beta2,
                        eps,
                        weight_decay,
                    } => {
                        let (m, v) = self.moments(i, g, beta1, beta2);
                        self.w[i] *= (1.0 - lr * weight_decay) as $t;
                        self.w[i] -= self.change(m, v, lr, beta1, beta2, eps);
                    }
                    Optimizer::AmsGrad {
                        lr,
                        beta1,
                        beta2,
                        eps,
                    } => {
                        let (m, _) = self.moments(i, g, beta1, beta2);
                        self.w[i] -= self.change(m, self.third[i], lr, beta1, beta2, eps);
                    }
                    Optimizer::AdaDelta { lr, rho, eps } => {
                        self.w[i] -= lr as $t * self.adadelta(i, g, rho, eps as $t);
                    }
                    Optimizer::ProximalSgd { lr, l1 } => {
                        self.w[i] -= lr as $t * g;
                        self.shrink(i, lr as $t * l1 as $t);
                    }
                    Optimizer::ProximalAdaGrad { lr, eps, l1 } => {
                        self.first[i] += g * g;
                        let below = self.first[i].sqrt() + eps as $t;
                        self.w[i] -= lr as $t * g / below;
                        self.shrink(i, lr as $t * l1 as $t / below);
                    }
                    Optimizer::Ftrl {
                        alpha,
                        beta,
                        l1,
                        l2,
                    } => self.ftrl(i, g, [alpha, beta, l1, l2].map(|p| p as $t)),
                }
            }

            /// Takes a gradient into the mean squares of AdaDelta, and returns the change at rate 1.
            fn adadelta(&mut self, i: usize, g: $t, rho: f64, eps: $t) -> $t {
                let (rho, rest) = (rho as $t, (1.0 - rho) as $t);
                let n = rho * self.first[i] + rest * (g * g);
                let change = (self.second[i] + eps).sqrt() / (n + eps).sqrt() * g;
                self.second[i] = rho * self.second[i] + rest * (change * change);
                self.first[i] = n;
                change
            }

            fn ftrl(&mut self, i: usize, g: $t, [alpha, beta, l1, l2]: [$t; 4]) {
                let n = self.second[i] + g * g;
                let sigma = (n.sqrt() - self.second[i].sqrt()) / alpha;
                let z = self.first[i] + (self.factor as $t * g - sigma * self.w[i]);
                (self.first[i], self.second[i]) = (z, n);
                let sign: $t = if z < 0.0 { -1.0 } else { 1.0 };
                self.w[i] = if z.abs() <= l1 {
                    0.0
                } else {
                    -(z - sign * l1) / ((beta + n.sqrt()) / alpha + l2)
                };
            }

            /// Moves a parameter towards zero, and not past it.
            fn shrink(&mut self, i: usize, by: $t) {
                let u = self.w[i];
                self.w[i] = if u > by {
                    u - by
                } else if u < -by {
                    u + by
                } else if u.is_nan() || by.is_nan() {
                    $t::NAN
                } else {
                    0.0
                };
            }

            fn moments(&mut self, i: usize, g: $t, beta1: f64, beta2: f64) -> ($t, $t) {
                let (m, v) = (self.first[i], self.second[i]);
                let m = beta1 as $t * m + (1.0 - beta1) as $t * g;
                let v = beta2 as $t * v + (1.0 - beta2) as $t * (g * g);
                (self.first[i], self.second[i]) = (m, v);
                let most = self.third[i].max(v);
                self.third[i] = if v.is_nan() { v } else { most };
                (m, v)
            }

            fn change(&self, m: $t, v: $t, lr: f64, beta1: f64, beta2: f64, eps: f64) -> $t {
                let rate = (lr / (1.0 - power(beta1, self.steps))) as $t;
                let spread = (1.0 / (1.0 - power(beta2, self.steps))).sqrt() as $t;
                rate * m / (v.sqrt() * spread + eps as $t)
            }

            /// The state in the kernel's layout.
            pub(crate) fn state(&self) -> Vec<u8> {
                if self.rule.needs_rows() {
                    return self.of_row.to_le_bytes().to_vec();
                }
                let slots = [&self.first, &self.second, &self.third];
                let slots = slots.into_iter().take(self.rule.state_slots()).flatten();
                let mut bytes: Vec<u8> = slots.flat_map(|x| x.to_le_bytes()).collect();
                if self.rule.counts_steps() {
                    bytes.resize(bytes.len().next_multiple_of(8), 0);
                    bytes.extend(self.steps.to_le_bytes());
                }
                bytes
            }
        }
    };
}

oracle!(Oracle32, f32);
oracle!(Oracle64, f64);
