//! Conversion of thread panics into errors.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use tidewater_protocol::wire::refusal::{Refusal, RefusalCode};

/// Message of a caught panic, or "without a message" if its payload is no string.
pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&'static str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("without a message")
}

/// Runs a task and converts a panic into a refusal with the panic's message. The caller drops state that the
/// task may have left half changed.
pub(crate) fn refuse_panic<T>(task: impl FnOnce() -> T) -> Result<T, Refusal> {
    catch_unwind(AssertUnwindSafe(task)).map_err(|panic| {
        let text = format!(
            "the thread for files panicked: {}; this is a defect, please report it",
            panic_text(&*panic)
        );
        tracing::error!("{text}");
        Refusal::new(RefusalCode::Io, [0; 4]).with_text(text)
    })
}
