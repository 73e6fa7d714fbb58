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
use std::sync::{Arc, OnceLock};

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

/// Functions of a program, by name.
#[derive(Clone, Default)]
pub struct Functions(BTreeMap<String, Arc<dyn Function>>);

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
    pub fn with(mut self, name: &str, function: impl Function + 'static) -> Self {
        assert!(
            (1..=255).contains(&name.len()),
            "the name of a function has 1 to 255 bytes, not {}",
            name.len()
        );
        self.0.insert(name.to_owned(), Arc::new(function));
        self
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
    pub fn find(&self, name: &str) -> Option<&dyn Function> {
        self.0.get(name).map(|function| &**function)
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
pub(crate) fn registered() -> Arc<Functions> {
    REGISTERED.get().cloned().unwrap_or_default()
}
