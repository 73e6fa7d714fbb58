//! The barrier of the workers in a test's cluster.

use std::sync::{Condvar, Mutex};
use std::time::Duration;

use tidewater::ClientError;

/// The only barrier of a cluster: its waiting workers, and the count of openings. A worker that enters
/// under another name is an error, because in a job it would wait at another barrier.
#[derive(Default)]
pub(super) struct Barrier {
    waiting: Mutex<(u32, u64)>,
    name: Mutex<String>,
    opened: Condvar,
}

impl Barrier {
    /// Timeout of a wait: a test with a missing worker fails instead of hanging.
    const PATIENCE: Duration = Duration::from_secs(20);

    pub(super) fn meet(&self, name: &str, count: u32) -> Result<(), ClientError> {
        let mut state = self.waiting.lock().unwrap();
        let round = state.1;
        let mut known = self.name.lock().unwrap();
        if state.0 == 0 {
            name.clone_into(&mut known);
        }
        if *known != name {
            return Err(ClientError::Deadline {
                op: "barrier",
                missing: format!("those who wait at {known:?}, not at {name:?}"),
            });
        }
        drop(known);
        state.0 += 1;
        if state.0 == count {
            *state = (0, round + 1);
            self.opened.notify_all();
            return Ok(());
        }
        let closed = |state: &mut (u32, u64)| state.1 == round;
        let waited = self
            .opened
            .wait_timeout_while(state, Self::PATIENCE, closed);
        match waited.unwrap().1.timed_out() {
            false => Ok(()),
            true => Err(ClientError::Deadline {
                op: "barrier",
                missing: "a worker".into(),
            }),
        }
    }
}
