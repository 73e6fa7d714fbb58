//! `TableSpec::validate`: decides in one place which tables may exist. (long: one error for each.)

use crate::ids::{DomainId, PartitionId, ServerId};
use crate::limits::{
    BLOCK_BYTES_MAX, BLOCK_BYTES_MIN, DENSE_BYTES_MAX, DOMAINS_MAX, PARTITIONS_AUTO,
    PARTITIONS_DEFAULT, PARTITIONS_MAX, ROW_BYTES_MAX, ROW_DIM_MAX, SERVERS_MAX,
    TABLE_NAME_BYTES_MAX, VERSIONS_DEFAULT, VERSIONS_MAX,
};
use crate::placement::block_layout;
use crate::table::optimizer::Parameter;
use crate::table::{
    Apply, DType, DenseLayout, Durability, Init, KeyOptions, Optimizer, Shape, TableSpec,
};

/// Defect for which a table's definition is refused. The texts name the field and the valid values.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// The name is empty, too long, or holds control characters.
    #[error(
        "table name of {bytes} bytes: give 1 to {TABLE_NAME_BYTES_MAX} bytes of UTF-8 \
         without control characters"
    )]
    Name {
        /// Bytes of the name.
        bytes: usize,
    },
    /// A row has no or too many elements.
    #[error("rows of {dim} elements: give 1 to {ROW_DIM_MAX}")]
    Dim {
        /// Elements of a row.
        dim: u64,
    },
    /// A row of a table without blocks does not fit a frame.
    #[error(
        "rows of {bytes} bytes: at most {ROW_BYTES_MAX} fit a frame; use layout blocks or fewer elements"
    )]
    RowBytes {
        /// Payload bytes of a row.
        bytes: usize,
    },
    /// A dense table has no rows, or too many bytes in all rows.
    #[error(
        "{rows} rows of {row_bytes} bytes: give at least one row and at most {DENSE_BYTES_MAX} bytes in all"
    )]
    Rows {
        /// Number of rows asked for.
        rows: u64,
        /// Payload bytes of a row.
        row_bytes: usize,
    },
    /// The block size is not a power of two in its range.
    #[error(
        "blocks of {bytes} bytes: give a power of two from {BLOCK_BYTES_MIN} to {BLOCK_BYTES_MAX}"
    )]
    BlockBytes {
        /// Bytes of a block asked for.
        bytes: u32,
    },
    /// A snapshot flips at a tick, so the table must be applied at ticks.
    #[error("a snapshot table takes effect at the clock: set effect to AtTick")]
    SnapshotNeedsAtClock,
    /// The number of versions is out of range, or the table has no snapshots.
    #[error(
        "{versions} versions: give 2 to {VERSIONS_MAX} to a table with snapshots, and {VERSIONS_DEFAULT} \
         to others"
    )]
    Versions {
        /// Number of versions asked for.
        versions: u32,
    },
    /// Optimizers and random initial values need a floating-point element type.
    #[error("optimizers and random initialisers need f32 or f64 elements, not {dtype:?}")]
    NeedsFloat {
        /// Element type of the table.
        dtype: DType,
    },
    /// A number of the optimizer, its gradient options or the initialiser is out of its range.
    #[error("{name} is {value}: must be {range}")]
    Parameter {
        /// Name of the parameter that is out of range.
        name: &'static str,
        /// Value of the parameter.
        value: f64,
        /// Valid range of the parameter.
        range: &'static str,
    },
    /// A table's rule cannot become another one, which has other state; a table without a rule cannot change it.
    #[error("the table's rule is {table} and cannot become {given}; give {table} with new numbers")]
    OtherRule {
        /// Name of the table's rule.
        table: &'static str,
        /// Name of the rule that was given.
        given: &'static str,
    },
    /// A rule or option computes with complete rows, and a range table has none.
    #[error("{what} computes with complete rows and a range table has none; use a table of rows")]
    NeedsRows {
        /// Name of the rule or option.
        what: &'static str,
    },
    /// Scaling by staleness is set on a table that applies gradients at the tick.
    #[error(
        "by_staleness is set on a table that applies pushes at the tick, where no gradient is \
         older than another; apply them on arrival, or leave it out"
    )]
    StalenessAtTick,
    /// Options of gradients are set on a table without an optimizer.
    #[error("options of gradients are set on a table without an optimizer; set one, or no options")]
    OptionsWithoutRule,
    /// The rule AdamW has a weight decay of its own, and the gradient options have another one.
    #[error("AdamW has a weight_decay of its own: set that, or the option weight_decay on Adam")]
    TwoDecays,
    /// The rule has no accumulator that could start above 0.
    #[error(
        "initial_accumulator is set and {rule} has none; it is for AdaGrad, RowAdaGrad and ProximalAdaGrad"
    )]
    NoAccumulator {
        /// Name of the rule.
        rule: &'static str,
    },
    /// Options of keys are set on a table that is not sparse.
    #[error(
        "{what} is set on a dense table, of which all rows exist; use a sparse table, or leave it out"
    )]
    NeedsKeys {
        /// Name of the option.
        what: &'static str,
    },
    /// Admission of keys is set on a table that applies pushes at the tick.
    #[error(
        "admit_after is set on a table that applies pushes at the tick, which cannot drop a push that \
         it has acknowledged; apply them on arrival, or leave it out"
    )]
    AdmissionAtTick,
    /// A warm table has an option with state that does not outlive a server process.
    #[error(
        "durability is warm and {what} is set; its state does not outlive the process of a server: leave one \
         of them out"
    )]
    NotWarm {
        /// Name of the option.
        what: &'static str,
    },
    /// The clock domain does not exist.
    #[error("clock domain {domain}: give 0 to {}", DOMAINS_MAX - 1)]
    Domain {
        /// Number of the domain.
        domain: DomainId,
    },
    /// The table has no or too many partitions.
    #[error("{partitions} partitions: give 1 to {PARTITIONS_MAX}")]
    Partitions {
        /// Number of partitions asked for.
        partitions: u32,
    },
    /// The list of the partitions' servers has another length than the number of partitions.
    #[error(
        "partition_servers has {given} servers for {partitions} partitions: give one server for each \
         partition, or leave one of the two out"
    )]
    PartitionServers {
        /// Length of the list.
        given: usize,
        /// Number of partitions asked for.
        partitions: u32,
    },
    /// The list of the partitions' servers is empty.
    #[error(
        "partition_servers is an empty list: give 1 to {PARTITIONS_MAX} server numbers, or leave the list out"
    )]
    NoPartitionServers,
    /// A partition is given to a server that does not exist.
    #[error(
        "partition_servers gives partition {partition} to server {server}, and servers are numbered 0 to {last}: \
         give one of these, or start more servers"
    )]
    PartitionServer {
        /// First partition with a server that does not exist.
        partition: PartitionId,
        /// Number of the server in the list.
        server: ServerId,
        /// Largest valid number of a server.
        last: u32,
    },
    /// The list of the partitions' starts has another length than the number of partitions.
    #[error(
        "partition_starts has {given} starts for {partitions} partitions: give the first row or element of each \
         partition, or leave one of the two out"
    )]
    PartitionStarts {
        /// Length of the list.
        given: usize,
        /// Number of partitions asked for.
        partitions: u32,
    },
    /// The list of the partitions' starts is empty.
    #[error(
        "partition_starts is an empty list: give the first row or element of 1 to {PARTITIONS_MAX} partitions, or \
         leave the list out"
    )]
    NoPartitionStarts,
    /// Starts of partitions are set on a sparse table, which has none.
    #[error(
        "partition_starts is set on a sparse table; a hash spreads its keys: use a dense table, or leave it out"
    )]
    StartsOfSparse,
    /// The first partition does not begin at 0, a later one does not begin behind the start before it, or one does
    /// not begin before the end of the table.
    #[error(
        "partition_starts begins partition {partition} at {start}: the first partition begins at 0, each other one \
         behind the start before it, this one at {least} or above, and all below {end}, where the table ends"
    )]
    PartitionStart {
        /// First partition with a wrong start.
        partition: PartitionId,
        /// Start of this partition in the list: a row or element.
        start: u64,
        /// Least valid start of this partition.
        least: u64,
        /// Number of rows (tables by rows) or elements (range tables) of the table.
        end: u64,
    },
    /// A partition of a range table begins inside a block.
    #[error(
        "partition_starts begins partition {partition} at element {start}, inside a block: give a multiple of the {unit} \
         elements of a block"
    )]
    PartitionInBlock {
        /// First partition with such a start.
        partition: PartitionId,
        /// Start of this partition in the list, an element.
        start: u64,
        /// Number of elements of a block.
        unit: u64,
    },
}

impl TableSpec {
    /// Checks the complete definition of a table against all limits; [`PARTITIONS_AUTO`] partitions are invalid.
    /// Sender and receivers of a table's description call it; for a request to create one see
    /// [`TableSpec::validate_request`].
    ///
    /// # Errors
    /// The first defect that is found.
    pub fn validate(&self) -> Result<(), SpecError> {
        let bytes = self.name.len();
        if bytes == 0 || bytes > TABLE_NAME_BYTES_MAX || self.name.chars().any(char::is_control) {
            return Err(SpecError::Name { bytes });
        }
        if self.partition_servers.as_ref().is_some_and(Vec::is_empty) {
            return Err(SpecError::NoPartitionServers);
        }
        let starts = self.partition_starts.as_ref();
        if starts.is_some_and(|starts| starts.is_empty()) {
            return Err(SpecError::NoPartitionStarts);
        }
        if !(1..=ROW_DIM_MAX as usize).contains(&self.dim()) {
            return Err(SpecError::Dim {
                dim: self.dim() as u64,
            });
        }
        self.validate_shape()?;
        self.validate_versions()?;
        self.validate_optimizer()?;
        self.validate_init()?;
        self.validate_keys()?;
        self.validate_durability()?;
        if usize::from(self.domain.0) >= DOMAINS_MAX {
            return Err(SpecError::Domain {
                domain: self.domain,
            });
        }
        if !(1..=PARTITIONS_MAX).contains(&self.partitions) {
            return Err(SpecError::Partitions {
                partitions: self.partitions,
            });
        }
        self.validate_partition_servers()?;
        self.validate_partition_starts()
    }

    /// Returns the length of `partition_servers`, or without it of `partition_starts`; `None` without both lists.
    /// Saturates at `u32::MAX`.
    pub fn listed_partitions(&self) -> Option<u32> {
        let servers = self.partition_servers.as_ref().map(Vec::len);
        let starts = || self.partition_starts.as_ref().map(|starts| starts.len());
        let listed = servers.or_else(starts)?;
        Some(u32::try_from(listed).unwrap_or(u32::MAX))
    }

    /// Checks that a cluster of `servers` servers has every server of [`TableSpec::partition_servers`]. Without that
    /// list there is nothing to check.
    ///
    /// # Errors
    /// [`SpecError::PartitionServer`] with the first partition that has a server number of `servers` or more.
    pub fn check_servers(&self, servers: u32) -> Result<(), SpecError> {
        let listed = self.partition_servers.iter().flatten();
        let mut numbered = (0..).map(PartitionId).zip(listed);
        match numbered.find(|(_, server)| server.0 >= servers) {
            None => Ok(()),
            Some((partition, &server)) => Err(SpecError::PartitionServer {
                partition,
                server,
                last: servers.saturating_sub(1),
            }),
        }
    }

    /// Checks that `partition_starts`, if set, has one start for each partition, that the starts ascend strictly
    /// from 0, are in the table and at borders of blocks, and that the table is dense.
    fn validate_partition_starts(&self) -> Result<(), SpecError> {
        let Some(starts) = &self.partition_starts else {
            return Ok(());
        };
        if starts.len() != self.partitions as usize {
            return Err(SpecError::PartitionStarts {
                given: starts.len(),
                partitions: self.partitions,
            });
        }
        let (end, unit) = match (block_layout(self), self.shape) {
            (Some(layout), _) => (layout.elements, layout.block_elements()),
            (None, Shape::Dense { rows, .. }) => (rows, 1),
            (None, Shape::Sparse { .. }) => return Err(SpecError::StartsOfSparse),
        };
        let mut before = None;
        for (partition, &start) in (0..).map(PartitionId).zip(starts.iter()) {
            let least = before.map_or(0, |before| before + 1);
            let is_behind = start >= least && start < end;
            if !is_behind || (before.is_none() && start > 0) {
                return Err(SpecError::PartitionStart {
                    partition,
                    start,
                    least,
                    end,
                });
            }
            if !start.is_multiple_of(unit) {
                return Err(SpecError::PartitionInBlock {
                    partition,
                    start,
                    unit,
                });
            }
            before = Some(start);
        }
        Ok(())
    }

    fn validate_partition_servers(&self) -> Result<(), SpecError> {
        let Some(listed) = &self.partition_servers else {
            return Ok(());
        };
        if listed.len() != self.partitions as usize {
            return Err(SpecError::PartitionServers {
                given: listed.len(),
                partitions: self.partitions,
            });
        }
        self.check_servers(SERVERS_MAX)
    }

    /// Checks a definition in a request to create a table as [`TableSpec::validate`] does, but the number of
    /// partitions may be [`PARTITIONS_AUTO`]. It then stands for the length of `partition_servers` or
    /// `partition_starts`; without these lists the coordinator selects the number. Changes nothing.
    ///
    /// # Errors
    /// The first defect that is found.
    pub fn validate_request(&self) -> Result<(), SpecError> {
        if self.partitions != PARTITIONS_AUTO {
            return self.validate();
        }
        let some = Self {
            partitions: self.listed_partitions().unwrap_or(PARTITIONS_DEFAULT),
            ..self.clone()
        };
        some.validate()
    }

    fn validate_shape(&self) -> Result<(), SpecError> {
        let row_bytes = self.row_bytes();
        let in_blocks = matches!(
            self.shape,
            Shape::Dense {
                layout: DenseLayout::Blocks { .. },
                ..
            }
        );
        if !in_blocks && row_bytes > ROW_BYTES_MAX {
            return Err(SpecError::RowBytes { bytes: row_bytes });
        }
        let Shape::Dense { rows, layout, .. } = self.shape else {
            return Ok(());
        };
        let fits = rows
            .checked_mul(row_bytes as u64)
            .is_some_and(|b| b <= DENSE_BYTES_MAX);
        if rows == 0 || !fits {
            return Err(SpecError::Rows { rows, row_bytes });
        }
        let DenseLayout::Blocks {
            block_bytes,
            snapshot,
        } = layout
        else {
            return Ok(());
        };
        let in_range = (BLOCK_BYTES_MIN..=BLOCK_BYTES_MAX).contains(&block_bytes);
        if !in_range || !block_bytes.is_power_of_two() {
            return Err(SpecError::BlockBytes { bytes: block_bytes });
        }
        if snapshot && !matches!(self.effect, Apply::AtTick(_)) {
            return Err(SpecError::SnapshotNeedsAtClock);
        }
        Ok(())
    }

    fn validate_versions(&self) -> Result<(), SpecError> {
        let versions = self.versions;
        let has_snapshots = matches!(
            self.shape,
            Shape::Dense {
                layout: DenseLayout::Blocks { snapshot: true, .. },
                ..
            }
        );
        let is_valid = match has_snapshots {
            true => (2..=VERSIONS_MAX).contains(&versions),
            false => versions == VERSIONS_DEFAULT,
        };
        if is_valid {
            Ok(())
        } else {
            Err(SpecError::Versions { versions })
        }
    }

    fn validate_optimizer(&self) -> Result<(), SpecError> {
        if self.optimizer != Optimizer::None && !self.dtype.is_float() {
            return Err(SpecError::NeedsFloat { dtype: self.dtype });
        }
        self.validate_options()?;
        self.check_optimizer(&self.optimizer)
    }

    /// Checks that the hyper-parameters of `optimizer` are in range for this table's element type.
    ///
    /// # Errors
    /// [`SpecError::Parameter`] for the first one that is not.
    fn check_optimizer(&self, optimizer: &Optimizer) -> Result<(), SpecError> {
        let bad = optimizer.out_of_range(self.dtype);
        bad.map_or(Ok(()), |bad| Err(out_of_range(&bad)))
    }

    /// Checks that `optimizer` can replace the rule of this existing table: it must be the same rule, with
    /// hyper-parameters in range. Changes nothing.
    ///
    /// # Errors
    /// [`SpecError::OtherRule`] for another rule, and always for a table without an optimizer.
    /// [`SpecError::Parameter`] for the first hyper-parameter out of range.
    pub fn check_change(&self, optimizer: &Optimizer) -> Result<(), SpecError> {
        let same = std::mem::discriminant(optimizer) == std::mem::discriminant(&self.optimizer);
        if !same || *optimizer == Optimizer::None {
            return Err(SpecError::OtherRule {
                table: self.optimizer.name(),
                given: optimizer.name(),
            });
        }
        self.check_optimizer(optimizer)
    }

    /// Checks that the gradient options are in range, and that they and the rule have a meaning for this table: its
    /// optimizer, its time of application and its shape.
    fn validate_options(&self) -> Result<(), SpecError> {
        let (options, rule) = (&self.gradient, &self.optimizer);
        if let Some(bad) = options.out_of_range(self.dtype) {
            return Err(out_of_range(&bad));
        }
        if *rule == Optimizer::None && !options.is_none() {
            return Err(SpecError::OptionsWithoutRule);
        }
        if options.by_staleness && self.effect != Apply::Immediate {
            return Err(SpecError::StalenessAtTick);
        }
        if options.weight_decay > 0.0 && matches!(rule, Optimizer::AdamW { .. }) {
            return Err(SpecError::TwoDecays);
        }
        if options.initial_accumulator > 0.0 && !rule.accumulates() {
            return Err(SpecError::NoAccumulator { rule: rule.name() });
        }
        let in_blocks = matches!(
            self.shape,
            Shape::Dense {
                layout: DenseLayout::Blocks { .. },
                ..
            }
        );
        let by_row = match options.clip_norm {
            Some(_) => Some("clip_norm"),
            None if rule.needs_rows() => Some(rule.name()),
            None => None,
        };
        match by_row {
            Some(what) if in_blocks => Err(SpecError::NeedsRows { what }),
            _ => Ok(()),
        }
    }

    /// Whether this is a snapshot table: a range table that keeps several versions of its data.
    const fn is_snapshot(&self) -> bool {
        matches!(
            self.shape,
            Shape::Dense {
                layout: DenseLayout::Blocks { snapshot: true, .. },
                ..
            }
        )
    }

    /// Checks that a warm table has no option with state that does not outlive a server process.
    const fn validate_durability(&self) -> Result<(), SpecError> {
        let what = match self.durability {
            Durability::None => return Ok(()),
            Durability::Warm if self.is_snapshot() => "snapshot",
            Durability::Warm if self.gradient.by_staleness => "by_staleness",
            Durability::Warm if self.keys.expire_after > 0 => "expire_after",
            Durability::Warm if self.keys.admit_after > 1 => "admit_after",
            Durability::Warm => return Ok(()),
        };
        Err(SpecError::NotWarm { what })
    }

    /// Checks that key options are set on a sparse table only, and admission only where pushes apply on
    /// arrival.
    fn validate_keys(&self) -> Result<(), SpecError> {
        let KeyOptions {
            expire_after,
            admit_after,
        } = self.keys;
        if !self.keys.is_none() && !matches!(self.shape, Shape::Sparse { .. }) {
            let what = match expire_after {
                0 => "admit_after",
                _ => "expire_after",
            };
            return Err(SpecError::NeedsKeys { what });
        }
        match admit_after > 1 && self.effect != Apply::Immediate {
            true => Err(SpecError::AdmissionAtTick),
            false => Ok(()),
        }
    }

    fn validate_init(&self) -> Result<(), SpecError> {
        match self.init {
            Init::Zeros => Ok(()),
            Init::Constant(value) => self.element("constant", value),
            Init::Uniform { .. } | Init::Normal { .. } if !self.dtype.is_float() => {
                Err(SpecError::NeedsFloat { dtype: self.dtype })
            }
            Init::Uniform { low, high } => {
                self.element("low", low)?;
                self.element("high", high)?;
                holds("high", high, low <= high, "at least low")
            }
            Init::Normal { mean, std } => {
                self.element("mean", mean)?;
                self.not_negative("std", std)
            }
        }
    }

    /// Checks that `value` is in the range of the table's element type, for integers a whole number, of at most 53
    /// bits for `i64`. Else returns [`SpecError::Parameter`], with `name` as the field's name.
    fn element(&self, name: &'static str, value: f64) -> Result<(), SpecError> {
        match self.dtype {
            DType::F32 => holds(
                name,
                value,
                value.abs() <= f64::from(f32::MAX),
                "a finite f32",
            ),
            DType::F64 => holds(name, value, value.is_finite(), "finite"),
            DType::I32 => holds(name, value, f64::from(value as i32) == value, "an i32"),
            // Past 2^53 not every integer is an f64; a larger value needs an assign.
            DType::I64 => {
                let fits = value.fract() == 0.0 && value.abs() <= (1_u64 << 53) as f64;
                holds(name, value, fits, "an integer of at most 53 bits")
            }
        }
    }

    /// Checks that `value` is at least 0 and valid for the table's element type; else returns
    /// [`SpecError::Parameter`], with `name` as the field's name.
    fn not_negative(&self, name: &'static str, value: f64) -> Result<(), SpecError> {
        self.element(name, value)?;
        holds(name, value, value >= 0.0, "at least 0")
    }
}

fn out_of_range(bad: &Parameter) -> SpecError {
    SpecError::Parameter {
        name: bad.name,
        value: bad.value,
        range: bad.range.text(),
    }
}

fn holds(name: &'static str, value: f64, ok: bool, range: &'static str) -> Result<(), SpecError> {
    if ok {
        Ok(())
    } else {
        Err(SpecError::Parameter { name, value, range })
    }
}

#[cfg(test)]
mod tests;
