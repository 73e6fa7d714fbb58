//! Maps failures to Python exceptions.

use std::cell::RefCell;

use pyo3::create_exception;
use pyo3::exceptions::{
    PyConnectionError, PyKeyboardInterrupt, PyRuntimeError, PyTimeoutError, PyValueError,
};
use pyo3::prelude::*;
use tidewater::ClientError;
use tidewater_lanes::fabric::LaneError;
use tidewater_protocol::wire::refusal::RefusalCode;

create_exception!(
    tidewater,
    Error,
    PyRuntimeError,
    "The cluster said no, or something in it is wrong."
);
create_exception!(
    tidewater,
    ForkedError,
    Error,
    "The process was forked after the session was opened."
);

thread_local! {
    /// The exception that a signal handler raised while a call of this thread waited.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// Runs Python's signal handlers while a call waits. Returns whether one raised, as that of Ctrl-C
/// does.
pub(crate) fn handle_signals() -> bool {
    let Err(error) = Python::attach(|py| py.check_signals()) else {
        return false;
    };
    RAISED.with_borrow_mut(|raised| *raised = Some(error));
    true
}

/// Makes the exception of a client error. Arguments and expressions are `ValueError`, deadlines `TimeoutError`, lost
/// processes `ConnectionError`, all others [`Error`].
pub(crate) fn raised(error: ClientError) -> PyErr {
    let text = error.to_string();
    match error {
        ClientError::Interrupted { .. } => {
            let raised = RAISED.with_borrow_mut(Option::take);
            raised.unwrap_or_else(|| PyKeyboardInterrupt::new_err(text))
        }
        ClientError::Argument { .. } | ClientError::Expression { .. } => {
            PyValueError::new_err(text)
        }
        ClientError::Deadline { .. }
        | ClientError::Lane(LaneError::Deadline { .. } | LaneError::Late { .. }) => {
            PyTimeoutError::new_err(text)
        }
        ClientError::ServerLost { .. }
        | ClientError::ThreadLost { .. }
        | ClientError::ServerRestarted { .. }
        | ClientError::Control { .. }
        | ClientError::Lane(_) => PyConnectionError::new_err(text),
        ClientError::Refused(refusal)
            if matches!(
                refusal.code,
                RefusalCode::PeerFailed | RefusalCode::ShuttingDown
            ) =>
        {
            PyConnectionError::new_err(text)
        }
        _ => Error::new_err(text),
    }
}
