//! What a table is: shape, element type, optimizer, when a push takes effect.

use serde::{Deserialize, Serialize};

use crate::ids::DomainId;

/// Element type. Codes are wire format; 5 and 6 are reserved for f16 and bf16.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[repr(u8)]
pub enum DType {
    /// IEEE 754 binary32.
    F32 = 1,
    /// IEEE 754 binary64.
    F64 = 2,
    /// Two's complement 32 bits; sums wrap.
    I32 = 3,
    /// Two's complement 64 bits; sums wrap.
    I64 = 4,
}

impl DType {
    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            Self::F32 | Self::I32 => 4,
            Self::F64 | Self::I64 => 8,
        }
    }

    /// The type of a wire code; `None` for reserved and unknown codes.
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::F32),
            2 => Some(Self::F64),
            3 => Some(Self::I32),
            4 => Some(Self::I64),
            _ => None,
        }
    }

    /// The wire code.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Whether elements are floating point (only those have gradients and optimizers).
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F64)
    }
}

/// What a push does to a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[repr(u8)]
pub enum PushOp {
    /// `w += x`, whatever the table's optimizer.
    Sum = 1,
    /// `w = x`; of duplicate keys the last wins.
    Assign = 2,
    /// One step of the table's optimizer with gradient `x`.
    Gradient = 3,
}

impl PushOp {
    /// The operation of a wire code.
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::Sum),
            2 => Some(Self::Assign),
            3 => Some(Self::Gradient),
            _ => None,
        }
    }
}

/// The rule a gradient is applied by. Hyper-parameters are per table. `g` is the gradient, `w` the
/// parameter; every rule works element by element on its own state.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Optimizer {
    /// No gradients: only [`PushOp::Sum`] and [`PushOp::Assign`].
    None,
    /// `w -= lr g`. No state.
    Sgd {
        /// Learning rate.
        lr: f64,
    },
    /// `v = mu v + g; w -= lr v`, or with `nesterov` `w -= lr (g + mu v)`. State: v.
    Momentum {
        /// Learning rate.
        lr: f64,
        /// Momentum.
        mu: f64,
        /// Nesterov's form.
        nesterov: bool,
    },
    /// `n += g^2; w -= lr g / (sqrt(n) + eps)`. State: n.
    AdaGrad {
        /// Learning rate.
        lr: f64,
        /// Added to the root.
        eps: f64,
    },
    /// Adam with a step count **per row**, in tables by ranges per element. State: m, v, and the step
    /// count t.
    Adam {
        /// Learning rate.
        lr: f64,
        /// Decay of the first moment.
        beta1: f64,
        /// Decay of the second moment.
        beta2: f64,
        /// Added to the root.
        eps: f64,
    },
    /// FTRL-proximal (`McMahan` et al., KDD 2013). State: z, n. `w` is a function of (z, n) and is
    /// exactly zero while `|z| <= l1`.
    Ftrl {
        /// Learning rate scale.
        alpha: f64,
        /// Learning rate offset.
        beta: f64,
        /// L1 weight.
        l1: f64,
        /// L2 weight.
        l2: f64,
    },
}

impl Optimizer {
    /// Elements of state kept for each element of a row.
    pub const fn state_slots(&self) -> usize {
        match self {
            Self::None | Self::Sgd { .. } => 0,
            Self::Momentum { .. } | Self::AdaGrad { .. } => 1,
            Self::Adam { .. } | Self::Ftrl { .. } => 2,
        }
    }

    /// Whether each row also keeps a step count (8 bytes).
    pub const fn counts_steps(&self) -> bool {
        matches!(self, Self::Adam { .. })
    }

    /// Bytes of optimizer state of a row of `dim` elements: slots, then the step count.
    pub const fn state_bytes(&self, dim: usize, dtype: DType) -> usize {
        let slots = self.state_slots() * dim * dtype.size();
        if self.counts_steps() {
            slots.next_multiple_of(8) + 8
        } else {
            slots
        }
    }
}

/// How a row begins. Counter-based: element `(key, column)` depends on the table's seed and on
/// nothing else, so it is the same on any number of servers.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Init {
    /// All zero.
    Zeros,
    /// One value everywhere.
    Constant(f64),
    /// Uniform in `[low, high)`.
    Uniform {
        /// Lower bound, included.
        low: f64,
        /// Upper bound, excluded.
        high: f64,
    },
    /// Normal.
    Normal {
        /// Mean.
        mean: f64,
        /// Standard deviation.
        std: f64,
    },
}

/// How frames of several workers are combined at a tick.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Reduce {
    /// Their sum.
    Sum,
    /// Their sum divided by the number of workers that pushed the row.
    Mean,
}

/// When a push takes effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Apply {
    /// On arrival.
    Immediate,
    /// At the tick that closes its iteration: reduced in rank order, one optimizer step a row.
    AtTick(Reduce),
}

/// Rows and how they are addressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Shape {
    /// `rows x cols` by index.
    Dense {
        /// Rows.
        rows: u64,
        /// Elements of a row.
        cols: u32,
        /// In memory.
        layout: DenseLayout,
    },
    /// 64-bit key to a row of `dim` elements, created at first touch.
    Sparse {
        /// Elements of a row.
        dim: u32,
    },
}

/// The two layouts of a dense table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum DenseLayout {
    /// A `{ver, chk}` header on each row: for random rows by index.
    Rows,
    /// Contiguous payload in blocks, version words apart: for ranges.
    Blocks {
        /// Bytes of a block; a power of two, 4 KiB to 256 KiB.
        block_bytes: u32,
        /// Double buffered with a snapshot descriptor (needs [`Apply::AtTick`]).
        snapshot: bool,
    },
}

/// Everything that defines a table. Creating a name twice with equal specs is one table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TableSpec {
    /// Unique in the namespace; 1 to 128 bytes of UTF-8.
    pub name: String,
    /// Rows and addressing.
    pub shape: Shape,
    /// Element type.
    pub dtype: DType,
    /// Rule for gradients.
    pub optimizer: Optimizer,
    /// First values.
    pub init: Init,
    /// Seed of `init`.
    pub seed: u64,
    /// When pushes take effect.
    pub effect: Apply,
    /// Refuse a frame that holds NaN or infinity (float tables).
    pub finite_check: bool,
    /// Tables of one domain tick together.
    pub domain: DomainId,
    /// Virtual partitions; fixed for the table's life.
    pub partitions: u32,
}

impl TableSpec {
    /// Elements of one row.
    pub const fn dim(&self) -> usize {
        match self.shape {
            Shape::Dense { cols, .. } => cols as usize,
            Shape::Sparse { dim } => dim as usize,
        }
    }

    /// Payload bytes of one row.
    pub const fn row_bytes(&self) -> usize {
        self.dim() * self.dtype.size()
    }
}
