//! Tidewater's client for Python: sessions and tables over numpy arrays.
//!
//! The package is `tidewater` (folder `python`), of which this is the module `_tidewater`; its stubs
//! (`_tidewater.pyi`) have the documentation that a user sees, `docs/BINDINGS.md` the manual.
//!
//! # Rules of the boundary
//! - Arrays are borrowed, never copied: pulls write where numpy keeps its numbers, pushes read there.
//! - The interpreter lock is released while a call waits for it, and for its turn.
//! - A forked child is refused, and nothing of its parent's session is touched by it.
//! - numpy's memory is had through the crate `numpy`, which tracks borrows; that of other libraries by
//!   DLPack, in one module, the only one with unsafe code.

mod arrays;
#[allow(unsafe_code, reason = "DLPack hands over a pointer to its struct")]
mod dlpack;
mod failure;
mod options;
mod session;
mod table;
mod walltime;

use pyo3::prelude::*;
use tidewater::interrupt;

/// The client, compiled. Import `tidewater`.
#[pymodule]
fn _tidewater(module: &Bound<'_, PyModule>) -> PyResult<()> {
    // Already installed by an earlier import of the module, in another interpreter of this process: the same hook.
    interrupt::install(failure::handle_signals).ok();
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("Error", module.py().get_type::<failure::Error>())?;
    module.add(
        "ForkedError",
        module.py().get_type::<failure::ForkedError>(),
    )?;
    module.add_class::<session::Session>()?;
    module.add_class::<table::Table>()?;
    module.add_class::<table::Ticket>()?;
    module.add_class::<walltime::Walltime>()?;
    Ok(())
}
