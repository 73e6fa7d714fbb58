//! Failures, as the exceptions that Python has for them.

use pyo3::create_exception;
use pyo3::exceptions::{PyConnectionError, PyRuntimeError, PyTimeoutError, PyValueError};
use pyo3::prelude::*;
use tidewater_client::ClientError;
use tidewater_transport::wire::refusal::RefusalCode;

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

/// Arguments are `ValueError`, deadlines `TimeoutError`, lost processes `ConnectionError`, all else
/// [`Error`].
pub(crate) fn raised(error: ClientError) -> PyErr {
    let text = error.to_string();
    match error {
        ClientError::Argument { .. } => PyValueError::new_err(text),
        ClientError::Deadline { .. } => PyTimeoutError::new_err(text),
        ClientError::ServerLost { .. } | ClientError::Control { .. } | ClientError::Lane(_) => {
            PyConnectionError::new_err(text)
        }
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
