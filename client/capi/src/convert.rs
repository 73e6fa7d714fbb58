//! Converts numbers and structs of C to the client's types. (long: one conversion a struct.)

use std::ops::Range;
use std::time::Duration;

use tidewater::{
    AnyFunctionArgs, AnyPushBuffer, AnyTable, Counters, Missing, PullMode, PullOptions, Pulled,
    PushEncoding, PushOptions, ReduceOp, Reduction, ScanCursor, Schedule, SyncMode,
};
use tidewater_lanes::fabric::TransportKind;
use tidewater_launch::{RdmaDevice, TransportChoice};
use tidewater_protocol::ids::{DomainId, ServerId};
use tidewater_protocol::layout::function::{FUNCTION_INPUTS_MAX, FUNCTION_PARAMETERS_MAX};
use tidewater_protocol::limits::{DOMAINS_MAX, VERSIONS_DEFAULT};
use tidewater_protocol::table::{
    Apply, DType, DenseLayout, Durability, GradientOptions, Init, KeyOptions, Optimizer, PushOp,
    Reduce, Shape, TableSpec,
};
use tidewater_tasks::{CurrentTask, Delivery, QueueOptions};

use crate::error::Failure;
use crate::types::*;
use crate::values::PartitionLists;

/// Longest time that a caller may give: a year.
const SECONDS_MAX: f64 = 366.0 * 86_400.0;
/// Default of the client's own builder.
const BLOCK_BYTES: u32 = 16 << 10;

/// Parsed options of a session.
pub(crate) struct SessionChoices {
    pub(crate) sync: SyncMode,
    pub(crate) level: tw_thread_level,
    pub(crate) timeout: Option<Duration>,
    pub(crate) clock_timeout: Option<Duration>,
    pub(crate) progress_interval: Option<Duration>,
}

/// Converts one of the values of a C enum; any other is a failure.
macro_rules! choice {
    ($what:literal, $value:expr, { $($name:ident => $is:expr),+ $(,)? }) => {
        match $value {
            $(value if value == $name as i32 => Ok($is),)+
            other => {
                let known = [$(stringify!($name)),+].join(", ");
                Err(Failure::argument(format_args!(
                    concat!($what, " is {}; it is one of {}"), other, known
                )))
            }
        }
    };
}

pub(crate) fn dtype(value: i32) -> Result<DType, Failure> {
    use tw_dtype::*;
    choice!("dtype", value, {
        TW_F32 => DType::F32, TW_F64 => DType::F64, TW_I32 => DType::I32, TW_I64 => DType::I64,
    })
}

pub(crate) fn op(value: i32) -> Result<PushOp, Failure> {
    use tw_op::*;
    choice!("op", value, {
        TW_SUM => PushOp::Sum, TW_ASSIGN => PushOp::Assign, TW_GRADIENT => PushOp::Gradient,
        TW_MIN => PushOp::Min, TW_MAX => PushOp::Max,
    })
}

pub(crate) fn reduce(value: i32) -> Result<ReduceOp, Failure> {
    use tw_reduction::*;
    choice!("reduce", value, {
        TW_REDUCE_SUM => ReduceOp::Sum,
        TW_REDUCE_MIN => ReduceOp::Min,
        TW_REDUCE_MAX => ReduceOp::Max,
        TW_REDUCE_PRODUCT => ReduceOp::Product,
        TW_REDUCE_BIT_AND => ReduceOp::BitAnd,
        TW_REDUCE_BIT_OR => ReduceOp::BitOr,
        TW_REDUCE_BIT_XOR => ReduceOp::BitXor,
    })
}

pub(crate) fn thread_level(value: i32) -> Result<tw_thread_level, Failure> {
    use tw_thread_level::*;
    choice!("thread_level", value, {
        TW_THREAD_SINGLE => TW_THREAD_SINGLE,
        TW_THREAD_FUNNELED => TW_THREAD_FUNNELED,
        TW_THREAD_SERIALIZED => TW_THREAD_SERIALIZED,
        TW_THREAD_MULTIPLE => TW_THREAD_MULTIPLE,
    })
}

pub(crate) fn transport(value: i32) -> Result<Option<TransportChoice>, Failure> {
    use tw_transport::*;
    choice!("transport", value, {
        TW_TRANSPORT_DEFAULT => None,
        TW_SHM => Some(TransportChoice::Shm),
        TW_TCP => Some(TransportChoice::Tcp),
        TW_VERBS => Some(TransportChoice::Verbs),
    })
}

pub(crate) fn rdma_device(name: &str) -> Result<RdmaDevice, Failure> {
    let wrong = |e| Failure::argument(format_args!("rdma_device \"{name}\": {e}"));
    name.parse().map_err(wrong)
}

pub(crate) const fn transport_code(kind: Option<TransportKind>) -> i32 {
    match kind {
        Some(TransportKind::Shm) => tw_transport::TW_SHM as i32,
        Some(TransportKind::Tcp) => tw_transport::TW_TCP as i32,
        Some(TransportKind::Verbs) => tw_transport::TW_VERBS as i32,
        _ => tw_transport::TW_TRANSPORT_DEFAULT as i32,
    }
}

pub(crate) fn sync(value: i32, staleness: u32) -> Result<SyncMode, Failure> {
    use tw_sync::*;
    choice!("sync", value, {
        TW_ASP => SyncMode::Asp, TW_BSP => SyncMode::Bsp, TW_SSP => SyncMode::Ssp(staleness.into()),
    })
}

/// Converts seconds of C; zero is the default of the option.
pub(crate) fn seconds(what: &str, value: f64) -> Result<Option<Duration>, Failure> {
    if value == 0.0 {
        return Ok(None);
    }
    if (0.0..=SECONDS_MAX).contains(&value) {
        return Ok(Some(Duration::from_secs_f64(value)));
    }
    Err(Failure::argument(format_args!(
        "{what} is {value} s; it is 0 for the default, or more, up to a year"
    )))
}

pub(crate) fn domain(value: u32) -> Result<DomainId, Failure> {
    let known = u8::try_from(value)
        .ok()
        .filter(|&d| usize::from(d) < DOMAINS_MAX);
    known.map(DomainId).ok_or_else(|| {
        let most = DOMAINS_MAX - 1;
        Failure::argument(format_args!("domain is {value}; there are 0 to {most}"))
    })
}

pub(crate) fn pull_options(
    options: &tw_pull_options,
    timeout: Duration,
) -> Result<PullOptions, Failure> {
    use tw_missing::*;
    use tw_mode::*;
    let mode = choice!("mode", options.mode, {
        TW_CONSISTENT => PullMode::Consistent,
        TW_HOGWILD => PullMode::Hogwild,
        TW_SNAPSHOT => PullMode::Snapshot,
        TW_GATHER => PullMode::Gather,
    })?;
    let missing = choice!("missing", options.missing, {
        TW_CREATE => Missing::Create, TW_INITIAL => Missing::Initial,
    })?;
    let timeout = seconds("timeout_s", options.timeout_s)?.unwrap_or(timeout);
    let options = PullOptions::default().mode(mode).missing(missing);
    Ok(PullOptions { timeout, ..options })
}

pub(crate) fn push_options(options: &tw_push_options) -> Result<PushOptions, Failure> {
    use tw_encoding::*;
    if options.reserved != 0 {
        return Err(Failure::argument("reserved is not zero"));
    }
    let block = or_default(options.block, PushEncoding::INT8_BLOCK);
    let encoding = choice!("encoding", options.encoding, {
        TW_EXACT => PushEncoding::Exact,
        TW_BF16 => PushEncoding::Bf16,
        TW_F16 => PushEncoding::F16,
        TW_INT8 => PushEncoding::Int8 { block },
    })?;
    let pushed = PushOptions::default().encoding(encoding);
    match options.has_weight {
        0 if options.weight == 0.0 => Ok(pushed),
        0 => Err(Failure::argument(format_args!(
            "weight is {}, but has_weight is 0; set it to 1",
            options.weight
        ))),
        _ => Ok(pushed.weight(options.weight)),
    }
}

/// Parsed options of a function.
#[derive(Debug, Default)]
pub(crate) struct FunctionInputs<'a> {
    pub(crate) inputs: &'a [tw_table],
    pub(crate) parameters: &'a [f64],
    pub(crate) range: Option<Range<u64>>,
}

impl FunctionInputs<'_> {
    /// Arguments of a call with these inputs.
    pub(crate) fn args<'b>(&'b self, inputs: &'b [AnyTable]) -> AnyFunctionArgs<'b> {
        AnyFunctionArgs {
            inputs,
            parameters: self.parameters,
            range: self.range.clone(),
        }
    }
}

pub(crate) fn reduction(value: i32) -> Result<Reduction, Failure> {
    use tw_reduction::*;
    choice!("reduction", value, {
        TW_REDUCE_SUM => Reduction::Sum,
        TW_REDUCE_MIN => Reduction::Min,
        TW_REDUCE_MAX => Reduction::Max,
        TW_REDUCE_AND => Reduction::And,
    })
}

/// Fails when an integer is to receive the result of floats.
pub(crate) fn exact_result(
    wanted: bool,
    dtype: DType,
    reduction: Reduction,
) -> Result<(), Failure> {
    if !wanted || !dtype.is_float() || reduction == Reduction::And {
        return Ok(());
    }
    Err(Failure::argument(
        "the table holds floats, and integer is not null; use value for their result",
    ))
}

/// Fails for more inputs or parameters than a function can have, before their arrays are read.
pub(crate) fn function_counts(inputs: usize, parameters: usize) -> Result<(), Failure> {
    if inputs <= FUNCTION_INPUTS_MAX && parameters <= FUNCTION_PARAMETERS_MAX {
        return Ok(());
    }
    Err(Failure::argument(format_args!(
        "{inputs} inputs and {parameters} parameters; the most are {FUNCTION_INPUTS_MAX} and \
         {FUNCTION_PARAMETERS_MAX}"
    )))
}

/// Converts the range of a function; `None` is all of the table.
pub(crate) fn function_range(options: &tw_function_options) -> Result<Option<Range<u64>>, Failure> {
    let (first, count) = (options.first, options.count);
    if options.reserved != 0 {
        return Err(Failure::argument("reserved is not zero"));
    }
    match (options.has_range, first.checked_add(count)) {
        (0, _) if (first, count) == (0, 0) => Ok(None),
        (0, _) => Err(Failure::argument(format_args!(
            "first is {first} and count {count}, but has_range is 0; set it to 1"
        ))),
        (_, Some(end)) => Ok(Some(first..end)),
        (_, None) => Err(Failure::argument(format_args!(
            "the range of {count} elements from {first} ends beyond 2^64"
        ))),
    }
}

/// Makes the definition of a table from its options. `lists` are those that they point to.
pub(crate) fn table_spec(
    name: &str,
    options: &tw_table_options,
    lists: PartitionLists<'_>,
) -> Result<TableSpec, Failure> {
    if options.reserved != 0 {
        return Err(Failure::argument("reserved is not zero"));
    }
    let dtype = dtype(options.dtype)?;
    Ok(TableSpec {
        name: name.to_owned(),
        shape: shape(options)?,
        dtype,
        optimizer: optimizer(options, dtype)?,
        init: init(options)?,
        seed: options.seed,
        effect: effect(options)?,
        finite_check: options.allow_not_finite == 0,
        domain: domain(options.domain)?,
        // 0 leaves the number to the coordinator.
        partitions: options.partitions,
        gradient: gradient(options),
        redo: options.redo != 0,
        keys: keys(options)?,
        versions: or_default(options.versions, VERSIONS_DEFAULT),
        durability: durability(options)?,
        partition_servers: lists
            .servers
            .map(|servers| servers.iter().copied().map(ServerId).collect()),
        partition_starts: lists.starts.map(|starts| starts.to_vec().into()),
    })
}

const fn or_default(value: u32, default: u32) -> u32 {
    if value == 0 { default } else { value }
}

fn shape(options: &tw_table_options) -> Result<Shape, Failure> {
    use tw_kind::*;
    let (rows, cols) = (options.rows, options.cols);
    let blocks = DenseLayout::Blocks {
        block_bytes: or_default(options.block_bytes, BLOCK_BYTES),
        snapshot: options.snapshot != 0,
    };
    let dense = |layout| Shape::Dense { rows, cols, layout };
    let shape = choice!("kind", options.kind, {
        TW_SPARSE => Shape::Sparse { dim: cols },
        TW_ROWS => dense(DenseLayout::Rows),
        TW_RANGE => dense(blocks),
    })?;
    if matches!(shape, Shape::Sparse { .. }) && rows != 0 {
        let text = "rows is not 0, but rows of TW_SPARSE are created at first touch";
        return Err(Failure::argument(text));
    }
    Ok(shape)
}

pub(crate) const fn kind_code(shape: &Shape) -> i32 {
    let kind = match shape {
        Shape::Sparse { .. } => tw_kind::TW_SPARSE,
        Shape::Dense { layout, .. } => match layout {
            DenseLayout::Rows => tw_kind::TW_ROWS,
            DenseLayout::Blocks { .. } => tw_kind::TW_RANGE,
        },
    };
    kind as i32
}

/// The rule that options name, of a table of this type.
pub(crate) fn optimizer(options: &tw_table_options, dtype: DType) -> Result<Optimizer, Failure> {
    use tw_optimizer::*;
    let [a, b, c, d] = options.hyper;
    let default = if dtype.is_float() {
        Optimizer::Sgd { lr: 0.01 }
    } else {
        Optimizer::None
    };
    let momentum = |nesterov| Optimizer::Momentum {
        lr: a,
        mu: b,
        nesterov,
    };
    choice!("optimizer", options.optimizer, {
        TW_OPTIMIZER_DEFAULT => default,
        TW_OPTIMIZER_NONE => Optimizer::None,
        TW_SGD => Optimizer::Sgd { lr: a },
        TW_MOMENTUM => momentum(false),
        TW_NESTEROV => momentum(true),
        TW_ADAGRAD => Optimizer::AdaGrad { lr: a, eps: b },
        TW_ADAM => Optimizer::Adam { lr: a, beta1: b, beta2: c, eps: d },
        TW_FTRL => Optimizer::Ftrl { alpha: a, beta: b, l1: c, l2: d },
        TW_RMSPROP => Optimizer::RmsProp { lr: a, decay: b, eps: c },
        TW_ADAMW => Optimizer::AdamW {
            lr: a,
            beta1: b,
            beta2: c,
            eps: d,
            weight_decay: options.weight_decay,
        },
        TW_ROW_ADAGRAD => Optimizer::RowAdaGrad { lr: a, eps: b },
        TW_AMSGRAD => Optimizer::AmsGrad { lr: a, beta1: b, beta2: c, eps: d },
        TW_ADADELTA => Optimizer::AdaDelta { lr: a, rho: b, eps: c },
        TW_PROXIMAL_SGD => Optimizer::ProximalSgd { lr: a, l1: b },
        TW_PROXIMAL_ADAGRAD => Optimizer::ProximalAdaGrad { lr: a, eps: b, l1: c },
    })
}

/// Makes a push buffer for a table of `shape`.
pub(crate) fn buffer(
    options: &tw_buffer_options,
    table: AnyTable,
    shape: &Shape,
) -> Result<AnyPushBuffer, Failure> {
    use tw_op::*;
    if kind_code(shape) == tw_kind::TW_RANGE as i32 {
        return Err(Failure::argument(format_args!(
            "the table is TW_RANGE; buffers are for TW_SPARSE and TW_ROWS"
        )));
    }
    if options.reserved != 0 {
        return Err(Failure::argument("reserved is not zero"));
    }
    let op = if options.op == 0 {
        TW_SUM as i32
    } else {
        options.op
    };
    let mut buffer = choice!("op of a buffer", op, {
        TW_SUM => AnyPushBuffer::sum(table), TW_GRADIENT => AnyPushBuffer::gradient(table),
        TW_MIN => AnyPushBuffer::min(table), TW_MAX => AnyPushBuffer::max(table),
    })?;
    // More than fits in memory is no limit.
    let limit = |limit: u64| usize::try_from(limit).unwrap_or(usize::MAX);
    if options.rows_max != 0 {
        buffer = buffer.rows_max(limit(options.rows_max));
    }
    if options.bytes_max != 0 {
        buffer = buffer.bytes_max(limit(options.bytes_max));
    }
    if options.weight != 0.0 {
        buffer = buffer.weight(options.weight);
    }
    Ok(buffer.threshold(options.threshold))
}

/// How a norm of a vector is computed.
pub(crate) struct Norm {
    /// Expression of each element.
    pub(crate) expression: &'static str,
    pub(crate) reduction: Reduction,
    /// Whether the norm is the square root of the reduction.
    pub(crate) is_root: bool,
}

pub(crate) fn norm(value: i32) -> Result<Norm, Failure> {
    use tw_norm::*;
    let norm = |expression, reduction, is_root| Norm {
        expression,
        reduction,
        is_root,
    };
    choice!("norm", value, {
        TW_NORM_1 => norm("abs(x)", Reduction::Sum, false),
        TW_NORM_2 => norm("x * x", Reduction::Sum, true),
        TW_NORM_MAX => norm("abs(x)", Reduction::Max, false),
    })
}

/// Returns the cursor of a scan.
pub(crate) const fn scan_cursor(cursor: &tw_scan_cursor) -> ScanCursor {
    let tw_scan_cursor {
        partition,
        end,
        slot,
    } = *cursor;
    let end = if end == 0 { u32::MAX } else { end };
    ScanCursor {
        partition,
        end,
        slot,
    }
}

pub(crate) fn task_options(name: &str, options: &tw_task_options) -> Result<QueueOptions, Failure> {
    if options.reserved != 0 {
        return Err(Failure::argument("reserved is not zero"));
    }
    if options.task_size == 0 {
        return Err(Failure::argument(
            "task_size is 0; set the records of a task",
        ));
    }
    let or = |value: u32, default| if value == 0 { default } else { value };
    let mut queue = QueueOptions::new(name, options.task_size)
        .epochs(or(options.epochs, 1))
        .failures_max(or(options.failures_max, 3))
        .losses_max(or(options.losses_max, 3))
        .held_max(options.held_max)
        .steps_max(options.steps_max);
    if let Some(timeout) = seconds("timeout_s", options.timeout_s)? {
        queue = queue.timeout(timeout, 10);
    }
    if options.strict_epochs != 0 {
        queue = queue.strict_epochs();
    }
    if options.shuffled != 0 {
        queue = queue.shuffled(options.seed);
    }
    if options.at_least_once != 0 {
        queue = queue.delivery(Delivery::AtLeastOnce);
    }
    if options.ticking != 0 {
        queue = queue.ticking(domain(options.domain)?);
    }
    Ok(queue)
}

pub(crate) fn task_info(task: &CurrentTask) -> tw_task_info {
    let shard = task.shard();
    tw_task_info {
        size: size_of::<tw_task_info>(),
        number: task.number(),
        first: shard.first,
        end: shard.end,
        epoch: task.epoch(),
        failures: task.failures(),
    }
}

pub(crate) fn schedule(schedule: &tw_schedule) -> Result<Schedule, Failure> {
    use tw_schedule_kind::*;
    let tw_schedule {
        rate,
        last,
        factor,
        every,
        warm_up,
        iterations,
        ..
    } = *schedule;
    if schedule.reserved != 0 {
        return Err(Failure::argument("reserved is not zero"));
    }
    let schedule = choice!("kind of the schedule", schedule.kind, {
        TW_SCHEDULE_CONSTANT => Schedule::Constant { rate },
        TW_SCHEDULE_STEP => Schedule::Step { rate, factor, every },
        TW_SCHEDULE_INVERSE_SQRT => Schedule::InverseSqrt { rate, warm_up },
        TW_SCHEDULE_COSINE => Schedule::Cosine { rate, last, warm_up, iterations },
    })?;
    let valid = schedule.validate();
    valid.map_err(|error| Failure::argument(format_args!("the schedule: {error}")))?;
    Ok(schedule)
}

/// The options of keys.
fn keys(options: &tw_table_options) -> Result<KeyOptions, Failure> {
    let admit_after = u8::try_from(options.admit_after).map_err(|_| {
        let given = options.admit_after;
        Failure::argument(format_args!("admit_after is {given}; it is at most 255"))
    })?;
    Ok(KeyOptions {
        expire_after: options.expire_after,
        admit_after,
    })
}

/// The options of gradients. The weight decay of AdamW is part of its rule.
fn gradient(options: &tw_table_options) -> GradientOptions {
    let bound = |bound: f64| (bound != 0.0).then_some(bound);
    let own_decay = options.optimizer == tw_optimizer::TW_ADAMW as i32;
    GradientOptions {
        weight_decay: if own_decay { 0.0 } else { options.weight_decay },
        clip_value: bound(options.clip_value),
        clip_norm: bound(options.clip_norm),
        initial_accumulator: options.initial_accumulator,
        by_staleness: options.by_staleness != 0,
    }
}

fn init(options: &tw_table_options) -> Result<Init, Failure> {
    use tw_init::*;
    let [a, b] = options.init_values;
    choice!("init", options.init, {
        TW_ZEROS => Init::Zeros,
        TW_CONSTANT => Init::Constant(a),
        TW_UNIFORM => Init::Uniform { low: a, high: b },
        TW_NORMAL => Init::Normal { mean: a, std: b },
    })
}

fn durability(options: &tw_table_options) -> Result<Durability, Failure> {
    use tw_durability::*;
    choice!("durability", options.durability, {
        TW_DURABILITY_NONE => Durability::None,
        TW_WARM => Durability::Warm,
    })
}

fn effect(options: &tw_table_options) -> Result<Apply, Failure> {
    use tw_effect::*;
    choice!("effect", options.effect, {
        TW_IMMEDIATE => Apply::Immediate,
        TW_CLOCK_SUM => Apply::AtTick(Reduce::Sum),
        TW_CLOCK_MEAN => Apply::AtTick(Reduce::Mean),
    })
}

pub(crate) const fn effect_code(effect: Apply) -> i32 {
    let effect = match effect {
        Apply::Immediate => tw_effect::TW_IMMEDIATE,
        Apply::AtTick(Reduce::Sum) => tw_effect::TW_CLOCK_SUM,
        Apply::AtTick(Reduce::Mean) => tw_effect::TW_CLOCK_MEAN,
    };
    effect as i32
}

pub(crate) fn pulled(pulled: Pulled) -> tw_pulled {
    let stores = pulled.stores;
    tw_pulled {
        size: size_of::<tw_pulled>(),
        // `has_version` says whether this is one.
        version: pulled.version.unwrap_or(0),
        smallest: stores.map_or(0, |stores| stores.smallest),
        largest: stores.map_or(0, |stores| stores.largest),
        has_version: pulled.version.is_some().into(),
        has_stores: stores.is_some().into(),
    }
}

pub(crate) const fn counters(c: &Counters) -> tw_counters {
    tw_counters {
        size: size_of::<tw_counters>(),
        pulls: c.pulls,
        rows_consistent: c.rows_consistent,
        rows_hogwild: c.rows_hogwild,
        rows_gathered: c.rows_gathered,
        blocks_consistent: c.blocks_consistent,
        blocks_snapshot: c.blocks_snapshot,
        blocks_hogwild: c.blocks_hogwild,
        torn_rejected: c.torn_rejected,
        retries: c.retries,
        gather_fallbacks: c.gather_fallbacks,
        resolved_keys: c.resolved_keys,
        stale_hints: c.stale_hints,
        pushes: c.pushes,
        frames: c.frames,
        rejects: c.rejects,
        rejects_unclaimed: c.rejects_unclaimed,
        recoveries: c.recoveries,
        bytes_pulled: c.bytes_pulled,
        bytes_pushed: c.bytes_pushed,
        credit_waits: c.credit_waits,
        ticks: c.ticks,
    }
}

/// Random bits that distinguish a session's handles from those of others.
pub(crate) fn random() -> Result<u64, Failure> {
    getrandom::u64().map_err(|e| {
        let text = format!("no random bytes: {e}; check that /dev/urandom exists");
        Failure::new(tw_status::TW_ERR_ENVIRONMENT, text)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raw::Sized0 as _;

    #[test]
    fn unknown_choices_are_named_with_those_there_are() {
        let text = dtype(9).unwrap_err().text;
        assert_eq!(
            text,
            "dtype is 9; it is one of TW_F32, TW_F64, TW_I32, TW_I64"
        );
        assert!(op(0).unwrap_err().text.contains("TW_GRADIENT"));
        assert!(thread_level(-1).is_err() && transport(4).is_err() && sync(3, 0).is_err());
    }

    #[test]
    fn times_that_cannot_be_are_refused() {
        assert_eq!(seconds("t", 0.0).unwrap(), None);
        assert_eq!(
            seconds("t", 0.25).unwrap(),
            Some(Duration::from_millis(250))
        );
        for wrong in [-1.0, f64::NAN, f64::INFINITY, 1e300] {
            assert!(seconds("t", wrong).is_err(), "{wrong}");
        }
    }

    /// A range table of 7 x 3 elements of f32, and nothing else set.
    fn range_options() -> tw_table_options {
        tw_table_options {
            dtype: tw_dtype::TW_F32 as i32,
            kind: tw_kind::TW_RANGE as i32,
            rows: 7,
            cols: 3,
            ..tw_table_options::zero()
        }
    }

    #[test]
    fn lists_and_rules_are_the_builders() {
        let options = range_options();
        let lists = PartitionLists {
            servers: Some(&[0, 0, 1]),
            starts: Some(&[0, 8, 16]),
        };
        let placed = table_spec("t", &options, lists).unwrap();
        let builder = tidewater::TableBuilder::range::<f32>("t", 7, 3)
            .partition_servers(&[0, 0, 1])
            .partition_starts(&[0, 8, 16]);
        assert_eq!(&placed, builder.spec());
        let given = |code: tw_optimizer, hyper| {
            let optimizer = code as i32;
            let options = tw_table_options {
                optimizer,
                hyper,
                ..options
            };
            table_spec("t", &options, PartitionLists::default())
                .unwrap()
                .optimizer
        };
        assert_eq!(
            given(tw_optimizer::TW_ADADELTA, [0.5, 0.9, 1e-6, 0.0]),
            Optimizer::AdaDelta {
                lr: 0.5,
                rho: 0.9,
                eps: 1e-6
            }
        );
        assert_eq!(
            given(tw_optimizer::TW_PROXIMAL_SGD, [0.5, 0.1, 0.0, 0.0]),
            Optimizer::ProximalSgd { lr: 0.5, l1: 0.1 }
        );
        assert_eq!(
            given(tw_optimizer::TW_PROXIMAL_ADAGRAD, [0.5, 1e-8, 0.1, 0.0]),
            Optimizer::ProximalAdaGrad {
                lr: 0.5,
                eps: 1e-8,
                l1: 0.1
            }
        );
    }

    #[test]
    fn a_table_of_zeros_but_for_what_is_needed_is_the_builders() {
        let options = range_options();
        let builder = tidewater::TableBuilder::range::<f32>("t", 7, 3);
        let none = PartitionLists::default();
        assert_eq!(&table_spec("t", &options, none).unwrap(), builder.spec());
        let adjusted = tw_table_options {
            optimizer: tw_optimizer::TW_ADAGRAD as i32,
            hyper: [0.1, 1e-8, 0.0, 0.0],
            weight_decay: 0.01,
            clip_value: 2.0,
            initial_accumulator: 0.5,
            redo: 1,
            durability: tw_durability::TW_WARM as i32,
            ..options
        };
        let builder = builder
            .optimizer(Optimizer::AdaGrad { lr: 0.1, eps: 1e-8 })
            .weight_decay(0.01)
            .clip_value(2.0)
            .initial_accumulator(0.5)
            .redo(true)
            .durability(Durability::Warm);
        assert_eq!(&table_spec("t", &adjusted, none).unwrap(), builder.spec());
        let adamw = tw_table_options {
            optimizer: tw_optimizer::TW_ADAMW as i32,
            hyper: [0.1, 0.9, 0.99, 1e-8],
            weight_decay: 0.01,
            ..options
        };
        let made = table_spec("t", &adamw, none).unwrap();
        assert!(made.gradient.is_none());
        let decay = made.optimizer.parameters()[4];
        assert_eq!((decay.name, decay.value), ("weight_decay", 0.01));
        let odd = tw_table_options { kind: 1, ..options };
        assert!(
            table_spec("t", &odd, none)
                .unwrap_err()
                .text
                .contains("TW_SPARSE")
        );
    }
}
