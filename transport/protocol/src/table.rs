//! The definition of a table: shape, element type, optimizer, and when a push takes effect.

pub mod difference;
pub mod optimizer;
mod starts;

use std::ops::RangeInclusive;

use serde::ser::SerializeStruct;
use serde::{Deserialize, Serialize, Serializer};

use crate::ids::{DomainId, ServerId};
use crate::limits::VERSIONS_DEFAULT;
pub use optimizer::{GradientOptions, Optimizer};
pub use starts::PartitionStarts;

/// Element type of a table. Codes are wire format; 5 and 6 are reserved for f16 and bf16.
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
    /// Returns the number of bytes of one element: 4 or 8.
    pub const fn size(self) -> usize {
        match self {
            Self::F32 | Self::I32 => 4,
            Self::F64 | Self::I64 => 8,
        }
    }

    /// Returns the element type of a wire code; `None` for reserved and unknown codes.
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::F32),
            2 => Some(Self::F64),
            3 => Some(Self::I32),
            4 => Some(Self::I64),
            _ => None,
        }
    }

    /// Returns the wire code of the element type.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Whether a push to a table of this type can carry `weight`, a factor of its values: 0, or in [`DType::weights`].
    /// Always false for integer types, which have no weights.
    pub fn is_weight(self, weight: f64) -> bool {
        let range = self.weights();
        range.is_some_and(|range| weight == 0.0 || range.contains(&weight))
    }

    /// Weights above 0 that a push to a table of this type can carry: the normal numbers of the element type. A smaller
    /// weight would be 0 or coarse in this type, and a mean divides by weights. `None` for integer types.
    pub const fn weights(self) -> Option<RangeInclusive<f64>> {
        match self {
            Self::F32 => Some(f32::MIN_POSITIVE as f64..=f32::MAX as f64),
            Self::F64 => Some(f64::MIN_POSITIVE..=f64::MAX),
            Self::I32 | Self::I64 => None,
        }
    }

    /// Whether elements are floating point. Only those have gradients and optimizers.
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F64)
    }
}

/// Operation that a push applies to each stored element `w` with the pushed element `x`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[repr(u8)]
pub enum PushOp {
    /// `w += x`, whatever the table's optimizer.
    Sum = 1,
    /// `w = x`. Of several assignments to one element, the last wins.
    Assign = 2,
    /// One step of the table's optimizer with gradient `x`.
    Gradient = 3,
    /// `w = min(w, x)` on arrival, whatever the table's optimizer: NaN if either is NaN; of equal values (0 and -0)
    /// the stored one. A new row begins with the table's initial values. Not for tables of ticks.
    Min = 4,
    /// `w = max(w, x)` on arrival, whatever the table's optimizer: NaN if either is NaN; of equal values (0 and -0)
    /// the stored one. A new row begins with the table's initial values. Not for tables of ticks.
    Max = 5,
}

impl PushOp {
    /// Returns the operation of a wire code; `None` for an unknown code.
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::Sum),
            2 => Some(Self::Assign),
            3 => Some(Self::Gradient),
            4 => Some(Self::Min),
            5 => Some(Self::Max),
            _ => None,
        }
    }

    /// Whether the values of several pushes add up: sums and gradients. Only such pushes can have weights and
    /// lossy encodings.
    pub const fn adds_up(self) -> bool {
        matches!(self, Self::Sum | Self::Gradient)
    }

    /// Whether tables that apply pushes at ticks ([`Apply::AtTick`]) accept the operation: all but [`PushOp::Min`] and
    /// `PushOp::Max`.
    pub const fn has_ticks(self) -> bool {
        self.adds_up() || matches!(self, Self::Assign)
    }
}

/// Initial values of a row. Each element depends only on the table's seed, the row's key or index, and the column
/// (counter-based random numbers). The values are therefore the same on any number of servers.
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

impl Init {
    /// Glorot's uniform distribution of initial weights, for a layer of `inputs` and `outputs`: bounds of plus
    /// and minus the square root of 6 / (inputs + outputs). Creation refuses a table if both counts are 0.
    ///
    /// ```
    /// use tidewater_protocol::table::Init;
    ///
    /// assert_eq!(Init::xavier_uniform(4, 2), Init::Uniform { low: -1.0, high: 1.0 });
    /// ```
    pub fn xavier_uniform(inputs: u32, outputs: u32) -> Self {
        Self::within((6.0 / (f64::from(inputs) + f64::from(outputs))).sqrt())
    }

    /// Glorot's normal distribution of initial weights: mean 0, standard deviation the square root of 2 /
    /// (inputs + outputs). Creation refuses a table if both counts are 0.
    pub fn xavier_normal(inputs: u32, outputs: u32) -> Self {
        Self::spread((2.0 / (f64::from(inputs) + f64::from(outputs))).sqrt())
    }

    /// He's uniform distribution of initial weights, for a layer of `inputs` with rectified (ReLU) outputs:
    /// bounds of plus and minus the square root of 6 / inputs. Creation refuses a table if the count is 0.
    pub fn kaiming_uniform(inputs: u32) -> Self {
        Self::within((6.0 / f64::from(inputs)).sqrt())
    }

    /// He's normal distribution of initial weights: mean 0, standard deviation the square root of 2 / inputs.
    /// Creation refuses a table if the count is 0.
    pub fn kaiming_normal(inputs: u32) -> Self {
        Self::spread((2.0 / f64::from(inputs)).sqrt())
    }

    fn within(bound: f64) -> Self {
        let low = -bound;
        Self::Uniform { low, high: bound }
    }

    fn spread(std: f64) -> Self {
        Self::Normal { mean: 0.0, std }
    }
}

/// How a tick combines the gradients that client threads pushed to one row, or to one block of a range table. Pushed
/// sums are added up in both cases, and of assignments the last wins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Reduce {
    /// Sum of the pushed gradients, each multiplied by the weight of its push.
    Sum,
    /// The sum divided by the total weight of the client threads that pushed a gradient to the row or block. A thread
    /// counts once, with the largest weight of its pushes; a push without a weight has 1. A total of 0: no step.
    Mean,
}

/// Time at which a server applies a push to the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Apply {
    /// On arrival at the applier.
    Immediate,
    /// At the tick that closes the iteration of the push. Gradients are combined as the field says, in the order of
    /// ranks, and take one optimizer step per row (of a range table: per element).
    #[serde(rename = "AtClock")] // the word of manifests, docs/FORMAT.md
    AtTick(Reduce),
}

/// Shape of a table, and how its rows are addressed: by index (dense) or by key (sparse).
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
    /// Maps a 64-bit key to a row of `dim` elements. The row is created by the first push to its key, by a function call
    /// on its key, or by a pull that asks for missing rows to be created. [`KeyOptions::admit_after`] may delay that.
    Sparse {
        /// Elements of a row.
        dim: u32,
    },
}

/// Memory layout of a dense table at the servers: single rows, or blocks for range reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum DenseLayout {
    /// A `{ver, checksum}` header on each row: for random rows by index.
    Rows,
    /// Contiguous payload in blocks, with separate version words: for ranges.
    Blocks {
        /// Bytes of a block; a power of two, 4 KiB to 256 KiB.
        block_bytes: u32,
        /// Whether the table is a snapshot table: [`TableSpec::versions`] buffers, one a version, and a snapshot record
        /// for each partition (needs [`Apply::AtTick`]).
        snapshot: bool,
    },
}

/// Complete definition of a table. Creating a name twice with equal definitions gives one table.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct TableSpec {
    /// Unique name in the namespace; 1 to 128 bytes of UTF-8, without control characters.
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
    /// Number of virtual partitions, fixed for the table's life. 0 in a request: the coordinator selects it.
    pub partitions: u32,
    /// Changes of gradients before the rule, and the initial accumulator of new rows.
    #[serde(default)]
    pub gradient: GradientOptions,
    /// Whether an applier writes each new value of a row or block into its redo record before it stores the value in
    /// the table. Costs a second copy and a checksum a row. A successor process reads the record if `durability` is
    /// [`Durability::Warm`], which implies `redo`.
    #[serde(default)]
    pub redo: bool,
    /// When keys of a sparse table get rows, and when rows are deleted.
    #[serde(default)]
    pub keys: KeyOptions,
    /// Number of versions that a snapshot table has memory for, the one that is being built included: 2 to
    /// [`VERSIONS_MAX`](crate::limits::VERSIONS_MAX). All but two of them can be pinned. 2 for other tables.
    #[serde(default = "versions_default")]
    pub versions: u32,
    /// What of the table outlives a server process.
    #[serde(default)]
    pub durability: Durability,
    /// Server of each partition, by partition number; `None` for all servers in turn. The coordinator selects the
    /// applier within the server, in turn. The list has one entry for each partition.
    #[serde(default)]
    pub partition_servers: Option<Vec<ServerId>>,
    /// First row (tables by rows) or element (range tables: a multiple of the elements of a block) of each partition of
    /// a dense table, strictly ascending from 0; `None` for near-equal partitions. One entry for each partition.
    #[serde(default)]
    pub partition_starts: Option<PartitionStarts>,
}

/// Which parts of a table survive the end of a server process, nothing or everything: see `docs/GUARANTEES.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum Durability {
    /// Nothing: the table is gone with the process.
    #[default]
    None,
    /// All of it: rows, optimizer state and acknowledged pushes are in memory that a holder process keeps, and
    /// a successor goes on with them. Implies `redo`. Cost: a redo record for each row.
    Warm,
}

/// Options of a sparse table's keys: after how many pushes a row is created, and when rows are deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct KeyOptions {
    /// Ticks of the table's domain without a push after which a row is deleted; 0 for never.
    #[serde(default)]
    pub expire_after: u32,
    /// Number of the push of a key that creates its row; 0 and 1 for the first one. Above 1, earlier pushes are dropped,
    /// pulls create no row, and the count is approximate: a row may come earlier or a few pushes later. For tables that
    /// apply pushes on arrival.
    #[serde(default)]
    pub admit_after: u8,
}

impl KeyOptions {
    /// Whether all options have their default, 0. An `admit_after` of 1 counts as set, although it has the meaning
    /// of 0.
    pub const fn is_none(&self) -> bool {
        self.expire_after == 0 && self.admit_after == 0
    }
}

const fn versions_default() -> u32 {
    VERSIONS_DEFAULT
}

/// Text leaves options out that are not set: the manifest of a model without options has the words,
/// and so the checksum, that it had before there were options. Binary encodings have every field.
impl Serialize for TableSpec {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let binary = !serializer.is_human_readable();
        let gradient = binary || !self.gradient.is_none();
        let redo = binary || self.redo;
        let keys = binary || !self.keys.is_none();
        let versions = binary || self.versions != VERSIONS_DEFAULT;
        let durability = binary || self.durability != Durability::None;
        let servers = binary || self.partition_servers.is_some();
        let starts = binary || self.partition_starts.is_some();
        let options = [gradient, redo, keys, versions, durability, servers, starts];
        let fields = 10 + options.into_iter().filter(|given| *given).count();
        let mut spec = serializer.serialize_struct("TableSpec", fields)?;
        spec.serialize_field("name", &self.name)?;
        spec.serialize_field("shape", &self.shape)?;
        spec.serialize_field("dtype", &self.dtype)?;
        spec.serialize_field("optimizer", &self.optimizer)?;
        spec.serialize_field("init", &self.init)?;
        spec.serialize_field("seed", &self.seed)?;
        spec.serialize_field("effect", &self.effect)?;
        spec.serialize_field("finite_check", &self.finite_check)?;
        spec.serialize_field("domain", &self.domain)?;
        spec.serialize_field("partitions", &self.partitions)?;
        if gradient {
            spec.serialize_field("gradient", &self.gradient)?;
        } else {
            spec.skip_field("gradient")?;
        }
        if redo {
            spec.serialize_field("redo", &self.redo)?;
        } else {
            spec.skip_field("redo")?;
        }
        if keys {
            spec.serialize_field("keys", &self.keys)?;
        } else {
            spec.skip_field("keys")?;
        }
        if versions {
            spec.serialize_field("versions", &self.versions)?;
        } else {
            spec.skip_field("versions")?;
        }
        if durability {
            spec.serialize_field("durability", &self.durability)?;
        } else {
            spec.skip_field("durability")?;
        }
        if servers {
            spec.serialize_field("partition_servers", &self.partition_servers)?;
        } else {
            spec.skip_field("partition_servers")?;
        }
        if starts {
            spec.serialize_field("partition_starts", &self.partition_starts)?;
        } else {
            spec.skip_field("partition_starts")?;
        }
        spec.end()
    }
}

/// Names of the tables that calls of the client create by themselves: two of collective calls, one of `set_position`,
/// and one of the watcher of the walltime.
pub const LIBRARY_TABLES: [&str; 4] = [
    "tidewater/collective",
    "tidewater/collective-parts",
    "tidewater/position",
    "tidewater/walltime",
];
/// Names of the transient tables, in which collective calls exchange values. They are part of no saved model.
pub const TRANSIENT_TABLES: [&str; 2] = [LIBRARY_TABLES[0], LIBRARY_TABLES[1]];

impl TableSpec {
    /// Whether the table is one of [`TRANSIENT_TABLES`], by its name: it holds only values that collective calls
    /// exchange. It is part of no saved model, and its clock domain does not count as used.
    pub fn is_transient(&self) -> bool {
        TRANSIENT_TABLES.contains(&self.name.as_str())
    }

    /// Whether the table is one of [`LIBRARY_TABLES`], by its name: no program has asked for it. Where all other tables
    /// of its job are warm and servers keep their memory, the coordinator makes it warm.
    pub fn is_library(&self) -> bool {
        LIBRARY_TABLES.contains(&self.name.as_str())
    }

    /// Whether appliers write each result into a redo record before they store it, so that a successor process can
    /// complete a store that was cut. True by `redo`, or by [`Durability::Warm`].
    pub const fn keeps_redo(&self) -> bool {
        self.redo || matches!(self.durability, Durability::Warm)
    }

    /// Whether this table and `other` have equal shape, number of partitions, servers of partitions and starts of
    /// partitions. If their elements also have one size, which is not compared, elements of one index then lie on one
    /// applier: the blocks of range tables depend on that size.
    pub fn is_placed_like(&self, other: &Self) -> bool {
        (self.shape, self.partitions) == (other.shape, other.partitions)
            && self.partition_servers == other.partition_servers
            && self.partition_starts == other.partition_starts
    }

    /// Returns the number of elements of one row.
    pub const fn dim(&self) -> usize {
        match self.shape {
            Shape::Dense { cols, .. } => cols as usize,
            Shape::Sparse { dim } => dim as usize,
        }
    }

    /// Returns the payload bytes of one row, without its header.
    pub const fn row_bytes(&self) -> usize {
        self.dim() * self.dtype.size()
    }

    /// Returns the payload bytes of all rows of a dense table, saturating at `u64::MAX`; 0 for a sparse one,
    /// which begins empty.
    pub const fn dense_bytes(&self) -> u64 {
        match self.shape {
            Shape::Dense { rows, .. } => rows.saturating_mul(self.row_bytes() as u64),
            Shape::Sparse { .. } => 0,
        }
    }
}
