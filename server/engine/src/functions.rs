//! Functions of the user's own that run on servers and are called by name.
//!
//! A program that is a server registers them before it serves. Each frame of a call covers a bounded
//! piece of one partition. The applier that owns the piece runs the function, so that no other thread
//! changes the piece meanwhile.
//!
//! ```
//! use tidewater_engine::functions::{ElementsMut, Function, FunctionError, Functions, Piece};
//!
//! /// Adds to each element its index times a constant, the first 8 bytes of the arguments.
//! struct Ramp;
//!
//! impl Function for Ramp {
//!     fn update(
//!         &self,
//!         arguments: &[u8],
//!         piece: &Piece<'_>,
//!         target: ElementsMut<'_>,
//!     ) -> Result<(), FunctionError> {
//!         let slope = f64::from_le_bytes(*arguments.first_chunk().ok_or(FunctionError(1))?);
//!         let ElementsMut::F64(target) = target else {
//!             return Err(FunctionError(2)); // the table holds another type
//!         };
//!         for (index, element) in (piece.first_index..).zip(target) {
//!             *element += slope * index as f64;
//!         }
//!         Ok(())
//!     }
//! }
//!
//! let functions = Functions::default().with("ramp", Ramp);
//! assert_eq!(functions.len(), 1);
//! tidewater_engine::functions::register(functions)?; // before the process serves
//! # Ok::<(), tidewater_engine::functions::AlreadyRegistered>(())
//! ```

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::{Arc, OnceLock};

use tidewater_protocol::layout::function::{FUNCTION_NAME_BYTES_MAX, FunctionProblem};
use tidewater_protocol::table::DType;
use zerocopy::IntoBytes as _;

/// Functions of this process's servers.
static REGISTERED: OnceLock<Arc<Functions>> = OnceLock::new();

/// Elements of a piece.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Elements<'a> {
    /// Elements of a table of f32.
    F32(&'a [f32]),
    /// Elements of a table of f64.
    F64(&'a [f64]),
    /// Elements of a table of i32.
    I32(&'a [i32]),
    /// Elements of a table of i64.
    I64(&'a [i64]),
}

impl<'a> Elements<'a> {
    /// Type of the elements.
    pub const fn dtype(&self) -> DType {
        match self {
            Self::F32(_) => DType::F32,
            Self::F64(_) => DType::F64,
            Self::I32(_) => DType::I32,
            Self::I64(_) => DType::I64,
        }
    }

    /// Bytes of the elements, as they lie in memory.
    pub fn as_bytes(&self) -> &'a [u8] {
        match self {
            Self::F32(elements) => elements.as_bytes(),
            Self::F64(elements) => elements.as_bytes(),
            Self::I32(elements) => elements.as_bytes(),
            Self::I64(elements) => elements.as_bytes(),
        }
    }
}

/// Elements of a piece, to be changed in place.
#[derive(Debug, PartialEq)]
pub enum ElementsMut<'a> {
    /// Elements of a table of f32.
    F32(&'a mut [f32]),
    /// Elements of a table of f64.
    F64(&'a mut [f64]),
    /// Elements of a table of i32.
    I32(&'a mut [i32]),
    /// Elements of a table of i64.
    I64(&'a mut [i64]),
}

impl ElementsMut<'_> {
    /// The same elements, to be read.
    pub const fn as_elements(&self) -> Elements<'_> {
        match self {
            Self::F32(elements) => Elements::F32(elements),
            Self::F64(elements) => Elements::F64(elements),
            Self::I32(elements) => Elements::I32(elements),
            Self::I64(elements) => Elements::I64(elements),
        }
    }

    /// Bytes of the elements, as they lie in memory.
    pub fn as_mut_bytes(&mut self) -> &mut [u8] {
        match self {
            Self::F32(elements) => elements.as_mut_bytes(),
            Self::F64(elements) => elements.as_mut_bytes(),
            Self::I32(elements) => elements.as_mut_bytes(),
            Self::I64(elements) => elements.as_mut_bytes(),
        }
    }
}

/// Piece of a table that one frame covers.
#[derive(Debug, Clone, Copy)]
pub struct Piece<'a> {
    /// Index of its first element in the table, row-major; 0 in sparse tables.
    pub first_index: u64,
    /// Elements of a row.
    pub dim: usize,
    /// Keys of its rows (sparse tables), or their indices (layout `rows`); empty for a range table.
    pub keys: &'a [u64],
    /// Elements of the other tables of the call, at the same places. In a call with keys: the values
    /// that came with it, as one input; any number of them.
    pub inputs: &'a [Elements<'a>],
}

/// Refusal of a function: arguments or elements are unsuitable. The caller sees the number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the function refuses its input with number {0}")]
pub struct FunctionError(pub u64);

/// Number by which a function says that it does not update, or does not reduce.
pub const NOT_PROVIDED: u64 = u64::MAX;

/// Function of the user's own. It must give the same result for the same input: no clock, no random
/// source, no state. A panic is reported to the caller; it changes nothing.
pub trait Function: Send + Sync {
    /// Changes the elements of a piece. They are stored when it returns `Ok`. Missing rows of a call with
    /// keys are created before it runs, and stay with their initial values if it fails.
    ///
    /// # Errors
    /// [`FunctionError`]; the piece stays as it is.
    fn update(
        &self,
        arguments: &[u8],
        piece: &Piece<'_>,
        target: ElementsMut<'_>,
    ) -> Result<(), FunctionError> {
        let _ = (arguments, piece, target); // for the default, which takes nothing
        Err(FunctionError(NOT_PROVIDED))
    }

    /// Reads the elements of a piece and appends its result, at most 64 KiB, to `result`. The client
    /// gets the results of all pieces, in their order in the table.
    ///
    /// # Errors
    /// [`FunctionError`].
    fn reduce(
        &self,
        arguments: &[u8],
        piece: &Piece<'_>,
        target: Elements<'_>,
        result: &mut Vec<u8>,
    ) -> Result<(), FunctionError> {
        let _ = (arguments, piece, target, result); // for the default, which takes nothing
        Err(FunctionError(NOT_PROVIDED))
    }
}

/// Reason for which a function failed on a piece. The caller sees both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FunctionFailure {
    /// Kind of the failure.
    pub problem: FunctionProblem,
    /// Number of the failure; its meaning depends on the problem.
    pub number: u64,
}

impl From<FunctionError> for FunctionFailure {
    fn from(error: FunctionError) -> Self {
        Self {
            problem: FunctionProblem::Refused,
            number: error.0,
        }
    }
}

/// What an applier runs for a call by name: every [`Function`], or a module with limits of its own.
/// Promises and cost are those of [`Function`].
pub trait ServerFunction: Send + Sync {
    /// As [`Function::update`].
    ///
    /// # Errors
    /// [`FunctionFailure`]; the piece stays as it is.
    fn update(
        &self,
        arguments: &[u8],
        piece: &Piece<'_>,
        target: ElementsMut<'_>,
    ) -> Result<(), FunctionFailure>;

    /// As [`Function::reduce`].
    ///
    /// # Errors
    /// [`FunctionFailure`].
    fn reduce(
        &self,
        arguments: &[u8],
        piece: &Piece<'_>,
        target: Elements<'_>,
        result: &mut Vec<u8>,
    ) -> Result<(), FunctionFailure>;
}

impl<F: Function> ServerFunction for F {
    fn update(
        &self,
        arguments: &[u8],
        piece: &Piece<'_>,
        target: ElementsMut<'_>,
    ) -> Result<(), FunctionFailure> {
        Ok(Function::update(self, arguments, piece, target)?)
    }

    fn reduce(
        &self,
        arguments: &[u8],
        piece: &Piece<'_>,
        target: Elements<'_>,
        result: &mut Vec<u8>,
    ) -> Result<(), FunctionFailure> {
        Ok(Function::reduce(self, arguments, piece, target, result)?)
    }
}

/// Makes functions of modules that clients send.
pub trait FunctionLoader: Send + Sync {
    /// Makes a function of a module. Runs on a thread of the server's control, not on an applier's.
    ///
    /// # Errors
    /// Why the module is refused, with a remedy.
    fn load(&self, module: &[u8]) -> Result<Arc<dyn ServerFunction>, Box<dyn Error + Send + Sync>>;
}

/// Functions of a program, by name.
#[derive(Clone, Default)]
pub struct Functions(BTreeMap<String, Arc<dyn ServerFunction>>);

impl std::fmt::Debug for Functions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl Functions {
    /// Adds a function. It replaces one of the same name.
    ///
    /// # Panics
    /// If the name does not have 1 to 255 bytes.
    #[must_use]
    pub fn with(mut self, name: &str, function: impl ServerFunction + 'static) -> Self {
        self.insert(name, Arc::new(function));
        self
    }

    /// Adds a function that others hold too. It replaces one of the same name.
    ///
    /// # Panics
    /// If the name does not have 1 to 255 bytes.
    pub fn insert(&mut self, name: &str, function: Arc<dyn ServerFunction>) {
        assert!(
            (1..=FUNCTION_NAME_BYTES_MAX).contains(&name.len()),
            "the name of a function has 1 to 255 bytes, not {}",
            name.len()
        );
        self.0.insert(name.to_owned(), function);
    }

    /// Adds functions that others hold too. They replace those of the same name.
    pub fn extend(&mut self, others: &Self) {
        let others = others.0.iter();
        let shared = others.map(|(name, function)| (name.clone(), Arc::clone(function)));
        self.0.extend(shared);
    }

    /// Number of functions in it.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no function.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The function of a name.
    pub fn find(&self, name: &str) -> Option<&Arc<dyn ServerFunction>> {
        self.0.get(name)
    }
}

/// The functions of this process were registered before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "functions were registered before; register all of them in one call, before the first server starts"
)]
pub struct AlreadyRegistered;

/// Gives the servers of this process, which start later, their functions. Every server of a job runs
/// the same program, so that all of them have the same functions.
///
/// # Errors
/// [`AlreadyRegistered`] at the second call.
pub fn register(functions: Functions) -> Result<(), AlreadyRegistered> {
    REGISTERED
        .set(Arc::new(functions))
        .map_err(|_| AlreadyRegistered)
}

/// The functions of this process; none before [`register`].
pub fn registered() -> Arc<Functions> {
    REGISTERED.get().cloned().unwrap_or_default()
}
