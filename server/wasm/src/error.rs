//! Why a module is refused, and how a call of one fails.

use tidewater_functions::FunctionFailure;
use tidewater_protocol::layout::function::{FunctionProblem, FunctionTrap};
use wasmtime::Trap;

use crate::Limits;

/// Why a module does not become a function.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModuleError {
    /// The module has more bytes than the limit.
    #[error(
        "the module has {bytes} bytes; the most are {limit}: remove its debug information (strip), or split it"
    )]
    TooLong {
        /// Bytes of the module.
        bytes: usize,
        /// Most bytes of a module.
        limit: usize,
    },
    /// The bytes are no valid module of WebAssembly 2.0.
    #[error("the module is not valid: {0}; give a module of WebAssembly 2.0 in binary format")]
    Invalid(String),
    /// The module imports something.
    #[error(
        "the module has {count} imports, \"{module}\" \"{name}\" first; functions have none: compile for \
         wasm32-unknown-unknown, without clock, files or random numbers"
    )]
    Imports {
        /// Module of the first import.
        module: String,
        /// Name of the first import.
        name: String,
        /// Number of imports of the module.
        count: usize,
    },
    /// The module exports no memory.
    #[error("the module exports no memory under the name \"memory\"")]
    NoMemory,
    /// The module exports neither `update` nor `reduce`.
    #[error(
        "the module exports no function \"update\" or \"reduce\" that takes an i32 and returns an i64"
    )]
    NoFunction,
    /// An export has another type.
    #[error(
        "the export \"{name}\" is {found}, and not a function that takes an i32 and returns an i64"
    )]
    WrongType {
        /// Name of the export.
        name: &'static str,
        /// Type that it has instead.
        found: String,
    },
    /// The module cannot be instantiated within the limits.
    #[error(
        "the module does not start: {:?} with number {}; compare its memory, tables and start function with the \
         limits of the servers", .0.problem, .0.number
    )]
    NotStarted(FunctionFailure),
    /// The runtime refuses the host or the limits.
    #[error("the WebAssembly runtime cannot start: {0}; check the limits")]
    Runtime(String),
}

impl ModuleError {
    pub(crate) fn invalid(error: wasmtime::Error) -> Self {
        // Some causes have several lines.
        let text = format!("{error:#}");
        let words: Vec<&str> = text.split_whitespace().collect();
        Self::Invalid(words.join(" "))
    }

    pub(crate) fn runtime(error: wasmtime::Error) -> Self {
        Self::Runtime(format!("{error:#}"))
    }
}

/// What a module may not have.
#[derive(Debug, Clone, Copy, thiserror::Error)]
pub(crate) enum OverLimit {
    #[error("the memory is over the limit")]
    Memory,
    #[error("a table is over the limit")]
    Table,
}

/// The failure of a call that ended in an error of the runtime.
pub(crate) fn failure(error: &wasmtime::Error, limits: &Limits) -> FunctionFailure {
    let of = |problem, number| FunctionFailure { problem, number };
    let trapped = |trap| of(FunctionProblem::Trapped, trap as u64);
    match error.downcast_ref::<OverLimit>() {
        Some(OverLimit::Memory) => {
            return of(FunctionProblem::OutOfMemory, limits.memory_bytes as u64);
        }
        Some(OverLimit::Table) => return trapped(FunctionTrap::TableOutOfBounds),
        None => {}
    }
    match error.downcast_ref::<Trap>() {
        Some(Trap::OutOfFuel) => of(FunctionProblem::OutOfFuel, limits.fuel),
        Some(Trap::UnreachableCodeReached) => trapped(FunctionTrap::Unreachable),
        Some(Trap::MemoryOutOfBounds) => trapped(FunctionTrap::MemoryOutOfBounds),
        Some(Trap::TableOutOfBounds) => trapped(FunctionTrap::TableOutOfBounds),
        Some(Trap::IndirectCallToNull) => trapped(FunctionTrap::NullCall),
        Some(Trap::BadSignature) => trapped(FunctionTrap::WrongCall),
        Some(Trap::IntegerOverflow | Trap::BadConversionToInteger) => {
            trapped(FunctionTrap::Overflow)
        }
        Some(Trap::IntegerDivisionByZero) => trapped(FunctionTrap::DivisionByZero),
        Some(Trap::StackOverflow) => trapped(FunctionTrap::StackOverflow),
        Some(_) | None => of(FunctionProblem::Trapped, 0),
    }
}
