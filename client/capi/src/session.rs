//! A session as C holds it, and the checks before a call reaches the client.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use tidewater::Client;
use tidewater::connect::Job;
use tidewater_runtime::mem::ForkGuard;
use tidewater_runtime::sync::{Arc, AtomicBool, AtomicU64, Ordering};

use crate::convert::{self, SessionChoices};
use crate::error::{Failure, remember, thread_number};
use crate::handles::{Handles, Kind};
use crate::open::Open;
use crate::progress::{Progress, Shared};
use crate::types::{tw_status, tw_thread_level};

/// A session. C sees an opaque pointer; its first field says what it points to.
#[allow(non_camel_case_types, reason = "it is the name in tidewater.h")]
#[repr(C)]
pub struct tw_session {
    mark: AtomicU64,
    process: ForkGuard,
    level: tw_thread_level,
    /// Number of the thread that may call, where only one does; 0 until the first call of a sibling.
    owner: AtomicU64,
    /// Whether a thread is inside a call, where that matters (`TW_THREAD_SERIALIZED`).
    busy: AtomicBool,
    shared: Arc<Shared>,
    progress: std::sync::Mutex<Option<Progress>>,
    /// The job, if its coordinator or a server of it may run in this process.
    job: std::sync::Mutex<Option<Job>>,
}

impl std::fmt::Debug for tw_session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut it = f.debug_struct("tw_session");
        it.field("level", &self.level).finish_non_exhaustive()
    }
}

/// Parts of a session that can fail to be made.
struct Parts {
    random: u64,
    process: ForkGuard,
}

impl Parts {
    fn new() -> Result<Self, Failure> {
        let process = ForkGuard::new()
            .map_err(|e| Failure::new(tw_status::TW_ERR_ENVIRONMENT, e.to_string()))?;
        let random = convert::random()?;
        Ok(Self { random, process })
    }
}

/// Runs the body of a call: no panic leaves it, and the text of a failure stays with the thread.
pub(crate) fn run(call: &str, body: impl FnOnce() -> Result<(), Failure>) -> tw_status {
    // A panic inside a session poisons its lock, so that no half-done state is used afterwards.
    let done = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        // The destructor of the payload must not panic again.
        std::mem::forget(panic);
        Err(Failure::panicked())
    });
    match done {
        Ok(()) => tw_status::TW_OK,
        Err(failure) => {
            remember(call, &failure);
            failure.status
        }
    }
}

impl tw_session {
    /// The bytes `TWsessio` in memory: no pointer and no small number.
    pub(crate) const MARK: u64 = u64::from_le_bytes(*b"TWsessio");
    const FREED: u64 = u64::from_le_bytes(*b"TWfreed.");

    /// Opens a session of a job with parts in this process, which the session keeps.
    pub(crate) fn begin(job: Job, choices: &SessionChoices) -> Result<Box<Self>, Failure> {
        let mut session = Self::open(&job, choices)?;
        session.job = std::sync::Mutex::new(Some(job));
        Ok(session)
    }

    /// Waits for the job's other processes, if this one keeps a part of the job.
    pub(crate) fn leave(&self) -> Result<(), Failure> {
        let job = self.job.lock().map_err(|_| Failure::panicked())?.take();
        Ok(job.map_or(Ok(()), Job::leave)?)
    }

    /// Opens a session with every server of a job.
    pub(crate) fn open(job: &Job, choices: &SessionChoices) -> Result<Box<Self>, Failure> {
        let mut client = job.client(choices.sync)?;
        if let Some(timeout) = choices.timeout {
            client.set_timeout(timeout);
        }
        if let Some(timeout) = choices.clock_timeout {
            client.set_clock_timeout(timeout);
        }
        let timeout = choices
            .timeout
            .unwrap_or(tidewater_protocol::limits::DATA_DEADLINE);
        let session = Self::of(Parts::new()?, client, timeout, choices.level);
        session
            .owner
            .store(thread_number() as u64, Ordering::Relaxed);
        if let Some(every) = choices.progress_interval {
            let progress = Progress::start(Arc::clone(&session.shared), every)?;
            *session.progress.lock().map_err(|_| Failure::panicked())? = Some(progress);
        }
        Ok(session)
    }

    /// Opens a session of a further thread of the worker, with the thread level of this one.
    pub(crate) fn sibling(&self) -> Result<Box<Self>, Failure> {
        // Made before the client: a client that is dropped loses the worker.
        let parts = Parts::new()?;
        let (client, timeout) = self.with(|open| Ok((open.client.sibling()?, open.timeout)))?;
        Ok(Self::of(parts, client, timeout, self.level))
    }

    fn of(parts: Parts, client: Client, timeout: Duration, level: tw_thread_level) -> Box<Self> {
        let Parts { random, process } = parts;
        let shared = Arc::new(Shared::new(Open {
            client,
            tables: Handles::new(Kind::Table, random),
            pushes: Handles::new(Kind::Push, random),
            pulls: Handles::new(Kind::Pull, random),
            results: Handles::new(Kind::Results, random),
            buffers: Handles::new(Kind::Buffer, random),
            calls: Handles::new(Kind::Call, random),
            queues: Handles::new(Kind::Queue, random),
            gathered: None,
            walltime: None,
            timeout,
        }));
        Box::new(Self {
            mark: AtomicU64::new(Self::MARK),
            process,
            level,
            owner: AtomicU64::new(0),
            busy: AtomicBool::new(false),
            shared,
            progress: std::sync::Mutex::new(None),
            job: std::sync::Mutex::new(None),
        })
    }

    /// Calls `body` with the open session, if this thread may call.
    pub(crate) fn with<R>(
        &self,
        body: impl FnOnce(&mut Open) -> Result<R, Failure>,
    ) -> Result<R, Failure> {
        self.same_process()?;
        let _inside = self.enter()?;
        let mut open = self.shared.lock()?;
        body(open.as_mut().ok_or_else(closed)?)
    }

    /// Ends the session; later calls of the handle fail as closed.
    pub(crate) fn close(&self) -> Result<(), Failure> {
        self.same_process()?;
        let _inside = self.enter()?;
        let progress = self
            .progress
            .lock()
            .map_err(|_| Failure::panicked())?
            .take();
        drop(progress);
        let ended = self.shared.lock()?.take();
        ended.map(drop).ok_or_else(closed)
    }

    /// Ends the session if it is open, and frees the handle's memory. In a forked child the session
    /// belongs to its parent: nothing of it is touched, and its memory stays.
    pub(crate) fn free(self: Box<Self>) {
        if !self.process.is_same_process() {
            std::mem::forget(self);
            return;
        }
        self.mark.store(Self::FREED, Ordering::Relaxed);
    }

    /// Thread level of the session: the threads that may call.
    pub(crate) const fn level(&self) -> tw_thread_level {
        self.level
    }

    /// Fails unless this is the process that opened the session.
    fn same_process(&self) -> Result<(), Failure> {
        if self.process.is_same_process() {
            return Ok(());
        }
        let text = "the process was forked after the session was opened; it belongs to the parent. \
                    Open a session in the child, with a rank of its own";
        Err(Failure::new(tw_status::TW_ERR_FORKED, text))
    }

    /// Fails unless this thread may call now.
    fn enter(&self) -> Result<Inside<'_>, Failure> {
        use tw_thread_level::{TW_THREAD_FUNNELED, TW_THREAD_SERIALIZED, TW_THREAD_SINGLE};
        InCallback::check()?;
        let owned = matches!(self.level, TW_THREAD_SINGLE | TW_THREAD_FUNNELED);
        let why = if owned && !self.is_owner() {
            "another thread opened the session (or, of a sibling, called first), with a thread level \
             by which only that one calls; \
             open it with TW_THREAD_SERIALIZED or TW_THREAD_MULTIPLE"
        } else if self.level != TW_THREAD_SERIALIZED {
            return Ok(Inside(None));
        } else if self.busy.swap(true, Ordering::Acquire) {
            // SYNC: capi-busy, with the store in `Inside::drop`.
            "another thread is inside a call of this session; open it with TW_THREAD_MULTIPLE, or \
             let one thread call at a time"
        } else {
            return Ok(Inside(Some(&self.busy)));
        };
        Err(Failure::new(tw_status::TW_ERR_THREAD, why))
    }

    /// Whether this thread owns the session. The first that calls a sibling owns it.
    fn is_owner(&self) -> bool {
        let own = thread_number() as u64;
        // SYNC: none. The session's lock orders what its calls do.
        let owner = self
            .owner
            .compare_exchange(0, own, Ordering::Relaxed, Ordering::Relaxed);
        owner.unwrap_or_else(|owner| if owner == own { 0 } else { owner }) == 0
    }

    /// Makes the failure of a pointer to something else.
    pub(crate) fn foreign() -> Failure {
        let text = "the pointer is to no session: it was freed, or never opened";
        Failure::new(tw_status::TW_ERR_HANDLE, text)
    }
}

thread_local! {
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

/// Marks this thread as inside a callback of the program, until it is dropped: the session that runs it is locked.
pub(crate) struct InCallback(());

impl InCallback {
    pub(crate) fn enter() -> Self {
        IN_CALLBACK.set(true);
        Self(())
    }

    /// Fails if this thread is inside a callback.
    pub(crate) fn check() -> Result<(), Failure> {
        if IN_CALLBACK.get() {
            let text = "this thread is inside a callback of a push, and a session runs that; return from it first";
            return Err(Failure::new(tw_status::TW_ERR_THREAD, text));
        }
        Ok(())
    }
}

impl Drop for InCallback {
    fn drop(&mut self) {
        IN_CALLBACK.set(false);
    }
}

/// Marks a thread as inside a call, until it is dropped.
struct Inside<'a>(Option<&'a AtomicBool>);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        if let Some(busy) = self.0 {
            // SYNC: capi-busy, with the swap in `enter`.
            busy.store(false, Ordering::Release);
        }
    }
}

fn closed() -> Failure {
    Failure::new(tw_status::TW_ERR_CLOSED, "the session is closed")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_a_status() {
        let status = run("tw_test", || panic!("a defect, for a test"));
        assert_eq!(status, tw_status::TW_ERR_PANIC);
        assert_eq!(run("tw_test", || Ok(())), tw_status::TW_OK);
    }
}
