//! The definition of a table: shape, element type, optimizer, and when a push takes effect.

use serde::{Deserialize, Serialize};

use crate::ids::DomainId;

/// Element type. Codes are wire format; 5 and 6 are reserved for f16 and bf16.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[repr(u8)]
pub enum DType {
    /// IEEE 754 binary32 (`f32`).
    F32 = 1,
    /// IEEE 754 binary64 (`f64`).
    F64 = 2,
    /// Two's complement integer of 32 bits; sums wrap.
    I32 = 3,
    /// Two's complement integer of 64 bits; sums wrap.
    I64 = 4,
}

impl DType {
    /// Returns the bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            Self::F32 | Self::I32 => 4,
            Self::F64 | Self::I64 => 8,
        }
    }

    /// Returns the type of a wire code; `None` for reserved and unknown codes.
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::F32),
            2 => Some(Self::F64),
            3 => Some(Self::I32),
            4 => Some(Self::I64),
            _ => None,
        }
    }

    /// Returns the wire code of the type.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Whether elements are floating point (only those have gradients and optimizers).
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F64)
    }
}

/// Operation that a push applies to a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[repr(u8)]
pub enum PushOp {
    /// `w += x`, whatever the table's optimizer.
    Sum = 1,
    /// `w = x`. The last of several equal keys wins.
    Assign = 2,
    /// One step of the table's optimizer with gradient `x`.
    Gradient = 3,
}

impl PushOp {
    /// Returns the operation of a wire code; `None` for an unknown code.
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::Sum),
            2 => Some(Self::Assign),
            3 => Some(Self::Gradient),
            _ => None,
        }
    }
}

/// Rule that applies a gradient. Hyper-parameters are per table. `g` is the gradient, `w` the
/// parameter. Every rule works element by element on its own state.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Optimizer {
    /// No gradients: the table accepts [`PushOp::Sum`] and [`PushOp::Assign`] only.
    None,
    /// `w -= lr g`. No state.
    Sgd {
        /// Learning rate, at least 0.
        lr: f64,
    },
    /// `v = mu v + g; w -= lr v`, or with `nesterov` `w -= lr (g + mu v)`. State: v.
    Momentum {
        /// Learning rate, at least 0.
        lr: f64,
        /// Momentum factor, in `[0, 1)`.
        mu: f64,
        /// Whether to use Nesterov's form.
        nesterov: bool,
    },
    /// `n += g^2; w -= lr g / (sqrt(n) + eps)`. State: n.
    AdaGrad {
        /// Learning rate, at least 0.
        lr: f64,
        /// Term added to the root, above 0.
        eps: f64,
    },
    /// Adam with a step count **per row**; in range tables, per element. State: m, v, and the step
    /// count t.
    Adam {
        /// Learning rate, at least 0.
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
        /// Offset of the learning rate, at least 0.
        beta: f64,
        /// Weight of the L1 penalty.
        l1: f64,
        /// Weight of the L2 penalty.
        l2: f64,
    },
}

impl Optimizer {
    /// Returns the elements of state kept for each element of a row.
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

    /// Returns the bytes of optimizer state of a row of `dim` elements: slots, then the step count.
    pub const fn state_bytes(&self, dim: usize, dtype: DType) -> usize {
        let slots = self.state_slots() * dim * dtype.size();
        if self.counts_steps() {
            slots.next_multiple_of(8) + 8
        } else {
            slots
        }
    }
}

/// Initial values of a row. Counter-based: element `(key, column)` depends on the table's seed only, so
/// it is the same on any number of servers.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Init {
    /// All elements are zero.
    Zeros,
    /// All elements have this value.
    Constant(f64),
    /// Uniform distribution over `[low, high)`.
    Uniform {
        /// Lower bound, included in the range.
        low: f64,
        /// Upper bound, excluded from the range.
        high: f64,
    },
    /// Normal (Gaussian) distribution of the elements.
    Normal {
        /// Mean of the distribution.
        mean: f64,
        /// Standard deviation of the distribution.
        std: f64,
    },
}

/// Combines the pushes of several workers at a tick.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Reduce {
    /// Sum of the pushed values.
    Sum,
    /// Sum divided by the number of workers that pushed the row.
    Mean,
}

/// Time at which a push takes effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Apply {
    /// On arrival at the applier.
    Immediate,
    /// At the tick that closes its iteration: reduced in rank order, one optimizer step per row.
    #[serde(rename = "AtClock")] // the word of manifests, docs/FORMAT.md
    AtTick(Reduce),
}

/// Size of a table, and how its rows are addressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Shape {
    /// `rows x cols` elements, addressed by index.
    Dense {
        /// Number of rows in the table.
        rows: u64,
        /// Elements of a row.
        cols: u32,
        /// Layout of the table in memory.
        layout: DenseLayout,
    },
    /// Maps a 64-bit key to a row of `dim` elements, created at first access.
    Sparse {
        /// Elements of a row.
        dim: u32,
    },
}

/// Memory layout of a dense table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum DenseLayout {
    /// A `{ver, chk}` header on each row: for random rows by index.
    Rows,
    /// Contiguous payload in blocks, with separate version words: for ranges.
    Blocks {
        /// Bytes of a block; a power of two, 4 KiB to 256 KiB.
        block_bytes: u32,
        /// Whether the table is double buffered with a snapshot descriptor (needs [`Apply::AtTick`]).
        snapshot: bool,
    },
}

/// Complete definition of a table. Creating a name twice with equal specs gives one table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TableSpec {
    /// Unique name in the namespace; 1 to 128 bytes of UTF-8.
    pub name: String,
    /// Number of rows and their addressing.
    pub shape: Shape,
    /// Type of the elements.
    pub dtype: DType,
    /// Rule that applies gradients.
    pub optimizer: Optimizer,
    /// Initial values of the rows.
    pub init: Init,
    /// Seed of the initial values (`init`).
    pub seed: u64,
    /// Time at which pushes take effect.
    pub effect: Apply,
    /// Whether to refuse frames that hold NaN or infinity (float tables).
    pub finite_check: bool,
    /// Clock domain; tables of one domain tick together.
    pub domain: DomainId,
    /// Number of virtual partitions; fixed for the table's life.
    pub partitions: u32,
}

/// First characters of the names of transient tables.
pub const TRANSIENT_PREFIX: &str = "tidewater/";

impl TableSpec {
    /// Whether the table holds only what is under way between workers: its name begins with
    /// [`TRANSIENT_PREFIX`]. It is part of no saved model, and its clock domain does not count as used.
    pub fn is_transient(&self) -> bool {
        self.name.starts_with(TRANSIENT_PREFIX)
    }

    /// Returns the elements of one row.
    pub const fn dim(&self) -> usize {
        match self.shape {
            Shape::Dense { cols, .. } => cols as usize,
            Shape::Sparse { dim } => dim as usize,
        }
    }

    /// Returns the payload bytes of one row.
    pub const fn row_bytes(&self) -> usize {
        self.dim() * self.dtype.size()
    }
}
