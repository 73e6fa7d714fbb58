//! Reasons of refused frames in words, with the remedy.

use tidewater_protocol::layout::reject::{RejectReason, RowResource};

/// Describes a reject in words.
pub fn describe(reason: RejectReason) -> String {
    match reason {
        RejectReason::UnknownTable { table } => {
            format!("no table {table} there; was it created on this cluster?")
        }
        RejectReason::TableReleased { .. } => "the table was released".into(),
        RejectReason::IndexOutOfRange { index, size } => {
            format!("index {index} is past the end ({size})")
        }
        RejectReason::WrongDType { frame, table } => {
            format!("values have type code {frame}, the table has {table}")
        }
        RejectReason::NotFinite { row, key } => format!(
            "row {row} (key {key}) holds NaN or infinity; correct the gradient, or create the table with \
             finite_check = false"
        ),
        RejectReason::WrongLength { bytes, expected } => {
            format!("{bytes} bytes where {expected} are due")
        }
        RejectReason::WrongOwner { first, count: 1 } => {
            format!("key {first} belongs to another applier: placement is stale")
        }
        RejectReason::WrongOwner { first, count } => {
            format!("elements {first}..+{count} belong to another applier: placement is stale")
        }
        RejectReason::WrongOperation { kind, op } => format!(
            "operation {op} in a frame of kind {kind} is not one of this table's (a gradient needs an \
             optimizer, a range needs layout blocks)"
        ),
        RejectReason::NoMemory { used, capacity } => {
            format!("{used} of {capacity} bytes in use; raise the server's --capacity")
        }
        RejectReason::PendingFull { needed, limit } => format!(
            "workers that are ahead of their turn in the iteration need {needed} bytes, an applier \
             holds {limit}: raise the server's --pending-bytes, for all such workers together (a push \
             cannot wait for its turn where a job uses several clock domains)"
        ),
        RejectReason::ReplyTooLarge { bytes, slot } => {
            format!("a reply of {bytes} bytes does not fit a slot of {slot}")
        }
        RejectReason::BadClock { clock, expected } => {
            format!("clock {clock} where {expected} is due")
        }
        RejectReason::Function { problem, number } => describe_problem(problem, number),
        RejectReason::Observer { kind } => {
            format!("a frame of kind {kind} from an observer, which only reads; be a worker")
        }
        RejectReason::NotKept { oldest, newest } => {
            format!("the version is not kept; versions {oldest} to {newest} are")
        }
        RejectReason::TableFull {
            partition,
            rows,
            resource,
            limit,
        } => {
            let resource = RowResource::from_code(resource);
            let name = resource.map_or("resources of a later version", RowResource::name);
            let remedy = resource.map_or("compare the versions", RowResource::remedy);
            format!(
                "partition {partition} gets no more rows: the table has {rows} rows on this applier, and \
                 all {limit} {name} are in use; {remedy}"
            )
        }
        RejectReason::PinsFull { pinned, limit } => format!(
            "{pinned} versions are pinned, and {limit} can be: two less than the table has memory for; \
             end a pin, or create the table with more versions"
        ),
        _ => format!("refused: {reason:?}"),
    }
}

/// Describes in words why a function could not be run.
fn describe_problem(problem: u64, number: u64) -> String {
    use tidewater_protocol::layout::function::{AtTickProblem, FunctionProblem as Problem};
    match Problem::from_code(problem) {
        Some(Problem::Malformed) => format!("the call of {number} bytes is not one"),
        Some(Problem::Expression) => format!(
            "the expression of {number} bytes is damaged, or of another element type, or lacks inputs or \
             parameters"
        ),
        Some(Problem::Input) => format!(
            "input {number} is not like the target: give it the same shape, type and partitions, and for a \
             target of ticks the same clock domain and effect"
        ),
        Some(Problem::AtTick) => match AtTickProblem::from_code(number) {
            Some(problem) => problem.describe().into(),
            None => {
                format!("the table takes effect at ticks, for which reason {number} forbids it")
            }
        },
        Some(Problem::Unknown) => format!(
            "the servers have {number} functions, and none of this name; register it in their program, or \
             start them with --function NAME=FILE"
        ),
        Some(Problem::Panicked) => {
            "the function panicked; the servers' log has its message, and nothing was changed"
                .into()
        }
        Some(Problem::TooLong) => format!("a frame covers at most {number} elements or rows"),
        Some(Problem::Reduction) => format!("reduction {number} is not one of this element type"),
        Some(Problem::Order) => format!(
            "key {number} of the frame is not above the one before it; sort the keys and leave out repetitions"
        ),
        Some(Problem::OutOfFuel) => format!(
            "the module used its fuel of {number} on one piece; does it end? raise --function-fuel"
        ),
        Some(Problem::OutOfMemory) => format!(
            "the module and its piece need more than {number} bytes of memory; raise --function-memory"
        ),
        Some(Problem::Trapped) => format!("the module trapped: {}", describe_trap(number)),
        Some(Problem::WrongResult) => format!(
            "the module returned {number} as the length of its result; results have 0 to 65536 bytes"
        ),
        Some(Problem::Refused) if number == u64::MAX => {
            "the function does not provide this kind of call (update or reduce)".into()
        }
        Some(Problem::Refused) => format!("the function refused its input with number {number}"),
        None => format!("function problem {problem} with number {number}, of a later version"),
    }
}

/// Describes in words how a module ended.
fn describe_trap(number: u64) -> &'static str {
    use tidewater_protocol::layout::function::FunctionTrap as Trap;
    match Trap::from_code(number) {
        Some(Trap::Unreachable) => "it reached `unreachable`, as after a panic",
        Some(Trap::MemoryOutOfBounds) => "access outside of its memory",
        Some(Trap::TableOutOfBounds) => "access outside of a table, or a table over its limit",
        Some(Trap::NullCall) => "indirect call of an empty table element",
        Some(Trap::WrongCall) => "indirect call of a function of another type",
        Some(Trap::Overflow) => "integer overflow, or a conversion to an integer",
        Some(Trap::DivisionByZero) => "integer division by zero",
        Some(Trap::StackOverflow) => "calls are nested too deeply",
        None => "for a reason of its runtime",
    }
}
