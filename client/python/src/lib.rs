//! Tidewater's client for Python: sessions and tables over numpy arrays.
//!
//! The package is `tidewater` (folder `python`); this is its module `_tidewater`. Its stubs
//! (`_tidewater.pyi`) hold the user's documentation, `docs/BINDINGS.md` the manual.
//!
//! # Rules of the boundary
//! - Arrays are borrowed, never copied: pulls write into numpy's memory, pushes read from it.
//! - A call releases the interpreter lock while it waits, also for its turn.
//! - A call in a forked child fails, and touches nothing of its parent's session.
//! - The crate `numpy`, which tracks borrows, gives access to numpy's memory. DLPack gives access to
//!   that of other libraries, in one module, the only one with unsafe code.

mod arrays;
mod buffer;
mod call;
mod cluster;
mod collective;
mod data;
#[allow(unsafe_code, reason = "DLPack hands over a pointer to its struct")]
mod dlpack;
mod failure;
mod function;
mod keys;
mod options;
mod pull;
mod schedule;
mod session;
mod table;
mod tasks;
mod walltime;

use pyo3::prelude::*;
use tidewater::interrupt;
use tidewater_protocol::limits::PARTITIONS_DEFAULT;

/// The client as a compiled module. Import `tidewater` instead.
#[pymodule]
fn _tidewater(module: &Bound<'_, PyModule>) -> PyResult<()> {
    // An earlier import in another interpreter of this process may have installed the same hook.
    interrupt::install(failure::handle_signals).ok();
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("PARTITIONS_DEFAULT", PARTITIONS_DEFAULT)?;
    module.add("Error", module.py().get_type::<failure::Error>())?;
    module.add(
        "ForkedError",
        module.py().get_type::<failure::ForkedError>(),
    )?;
    module.add_class::<session::Session>()?;
    module.add_function(wrap_pyfunction!(cluster::local, module)?)?;
    module.add_function(wrap_pyfunction!(cluster::begin, module)?)?;
    module.add_class::<table::Table>()?;
    module.add_class::<table::Pulled>()?;
    module.add_class::<table::Ticket>()?;
    module.add_class::<keys::Scan>()?;
    module.add_class::<call::Call>()?;
    module.add_class::<pull::Pull>()?;
    module.add_class::<buffer::PushBuffer>()?;
    module.add_class::<buffer::CachedTable>()?;
    module.add_class::<schedule::Schedule>()?;
    module.add_class::<walltime::Walltime>()?;
    module.add_class::<data::RowCursor>()?;
    module.add_class::<data::RecordCursor>()?;
    module.add_class::<tasks::TaskQueue>()?;
    module.add_class::<tasks::TaskFeed>()?;
    Ok(())
}
