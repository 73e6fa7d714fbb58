//! Panics of threads as errors.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use tidewater_protocol::wire::refusal::{Refusal, RefusalCode};

/// The message of a panic.
pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&'static str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("without a message")
}

/// Runs a task of a thread for files. A panic is a refusal with its message. The caller drops what the
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
