//! Functions of the user's own that run on servers and are called by name.
//!
//! A program that is a server registers them before it serves. Each frame of a call covers a bounded
//! piece of one partition. The applier that owns the piece runs the function, so that no other thread
//! changes the piece meanwhile.
//!
//! ```
//! use tidewater_functions::{ElementsMut, Function, FunctionError, Functions, Piece};
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
//! tidewater_functions::register(functions)?; // before the process serves
//! # Ok::<(), tidewater_functions::AlreadyRegistered>(())
//! ```

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::{Arc, OnceLock};

use tidewater_protocol::layout::function::{FUNCTION_NAME_BYTES_MAX, FunctionProblem};
use tidewater_protocol::table::DType;
use zerocopy::IntoBytes as _;

/// Registered functions that all servers of this process offer.
static REGISTERED: OnceLock<Arc<Functions>> = OnceLock::new();

/// Elements of a piece in memory order, by element type; to be read.
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
    /// Returns the type of the elements.
    pub const fn dtype(&self) -> DType {
        match self {
            Self::F32(_) => DType::F32,
            Self::F64(_) => DType::F64,
            Self::I32(_) => DType::I32,
            Self::I64(_) => DType::I64,
        }
    }

    /// Returns the bytes of the elements, as they lie in memory.
    pub fn as_bytes(&self) -> &'a [u8] {
        match self {
            Self::F32(elements) => elements.as_bytes(),
            Self::F64(elements) => elements.as_bytes(),
            Self::I32(elements) => elements.as_bytes(),
            Self::I64(elements) => elements.as_bytes(),
        }
    }
}

/// Elements of a piece in memory order, by element type; to be changed in place.
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
    /// Borrows the same elements for reading.
    pub const fn as_elements(&self) -> Elements<'_> {
        match self {
            Self::F32(elements) => Elements::F32(elements),
            Self::F64(elements) => Elements::F64(elements),
            Self::I32(elements) => Elements::I32(elements),
            Self::I64(elements) => Elements::I64(elements),
        }
    }

    /// Returns the bytes of the elements for writing, as they lie in memory.
    pub fn as_mut_bytes(&mut self) -> &mut [u8] {
        match self {
            Self::F32(elements) => elements.as_mut_bytes(),
            Self::F64(elements) => elements.as_mut_bytes(),
            Self::I32(elements) => elements.as_mut_bytes(),
            Self::I64(elements) => elements.as_mut_bytes(),
        }
    }
}

/// Part of a table that one frame of a function call covers, without the elements of the target.
#[derive(Debug, Clone, Copy)]
pub struct Piece<'a> {
    /// Index of its first element in the table, row-major; 0 in sparse tables.
    pub first_index: u64,
    /// Number of elements of a row.
    pub dim: usize,
    /// Keys of its rows (sparse tables), or their indices (layout `rows`); empty for a range table.
    pub keys: &'a [u64],
    /// Elements of the other tables of the call, at the same positions. In a call with keys: one input with
    /// the values that came with it, in any number.
    pub inputs: &'a [Elements<'a>],
}

/// Refusal by a function: arguments or elements are unsuitable. The number reaches the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the function refuses its input with number {0}")]
pub struct FunctionError(pub u64);

/// Error number of a function that does not provide `update`, or does not provide `reduce`.
pub const NOT_PROVIDED: u64 = u64::MAX;

/// User-defined function that an applier runs on pieces of its tables. It must give the same result for the
/// same input: no clock, no random source, no state. A panic is reported to the caller and changes nothing.
pub trait Function: Send + Sync {
    /// Changes the elements of a piece in `target`. They are stored when it returns `Ok`. Missing rows of a
    /// call with keys are created before it runs, and keep their initial values if it fails.
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

    /// Reads the elements of a piece and appends a result of at most 64 KiB to `result`. The client gets
    /// the results of all pieces, in the order of the pieces in the table.
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

/// Reason why a function failed on a piece. The caller gets kind and number.
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

/// Function as an applier runs it for a call by name: every [`Function`], or a loaded module with limits of
/// its own. Promises and cost are those of [`Function`]. A function that may take longer than the copy of its
/// piece calls `pause` now and then: the applier answers the reads of its clients meanwhile.
pub trait ServerFunction: Send + Sync {
    /// Changes the elements of a piece in `target`, as [`Function::update`].
    ///
    /// # Errors
    /// [`FunctionFailure`]; the piece stays as it is.
    fn update(
        &self,
        arguments: &[u8],
        piece: &Piece<'_>,
        target: ElementsMut<'_>,
        pause: &mut dyn FnMut(),
    ) -> Result<(), FunctionFailure>;

    /// Reads the elements of a piece and appends its result, as [`Function::reduce`].
    ///
    /// # Errors
    /// [`FunctionFailure`].
    fn reduce(
        &self,
        arguments: &[u8],
        piece: &Piece<'_>,
        target: Elements<'_>,
        result: &mut Vec<u8>,
        pause: &mut dyn FnMut(),
    ) -> Result<(), FunctionFailure>;
}

impl<F: Function> ServerFunction for F {
    fn update(
        &self,
        arguments: &[u8],
        piece: &Piece<'_>,
        target: ElementsMut<'_>,
        _: &mut dyn FnMut(),
    ) -> Result<(), FunctionFailure> {
        Ok(Function::update(self, arguments, piece, target)?)
    }

    fn reduce(
        &self,
        arguments: &[u8],
        piece: &Piece<'_>,
        target: Elements<'_>,
        result: &mut Vec<u8>,
        _: &mut dyn FnMut(),
    ) -> Result<(), FunctionFailure> {
        Ok(Function::reduce(self, arguments, piece, target, result)?)
    }
}

/// Compiles modules that clients send into server functions.
pub trait FunctionLoader: Send + Sync {
    /// Creates a function from the bytes of a module. Runs on a control thread of the server, not on an
    /// applier's.
    ///
    /// # Errors
    /// Reason why the module is refused, with a remedy.
    fn load(&self, module: &[u8]) -> Result<Arc<dyn ServerFunction>, Box<dyn Error + Send + Sync>>;
}

/// Set of server functions, by name.
#[derive(Clone, Default)]
pub struct Functions(BTreeMap<String, Arc<dyn ServerFunction>>);

impl std::fmt::Debug for Functions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl Functions {
    /// Adds a function and returns the set. It replaces a function of the same name.
    ///
    /// # Panics
    /// If the name does not have 1 to 255 bytes.
    #[must_use]
    pub fn with(mut self, name: &str, function: impl ServerFunction + 'static) -> Self {
        self.insert(name, Arc::new(function));
        self
    }

    /// Adds a shared function. It replaces a function of the same name.
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

    /// Adds the functions of another set, shared with it. They replace those of the same name.
    pub fn extend(&mut self, others: &Self) {
        let others = others.0.iter();
        let shared = others.map(|(name, function)| (name.clone(), Arc::clone(function)));
        self.0.extend(shared);
    }

    /// Returns the number of functions.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the set has no function.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Finds a function by name; `None` if there is none.
    pub fn find(&self, name: &str) -> Option<&Arc<dyn ServerFunction>> {
        self.0.get(name)
    }
}

/// Error of a second registration of functions in this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "functions were registered before; register all of them in one call, before the first server starts"
)]
pub struct AlreadyRegistered;

/// Registers the functions of all servers that start later in this process. Every server of a job runs the
/// same program, so that all have the same functions.
///
/// # Errors
/// [`AlreadyRegistered`] at the second call.
pub fn register(functions: Functions) -> Result<(), AlreadyRegistered> {
    REGISTERED
        .set(Arc::new(functions))
        .map_err(|_| AlreadyRegistered)
}

/// Returns the functions that are registered in this process; an empty set before [`register`].
pub fn registered() -> Arc<Functions> {
    REGISTERED.get().cloned().unwrap_or_default()
}
