//! The clients of the threads of one worker.
//!
//! A worker has one rank and one connection to the coordinator. Its first client, thread 0, makes those of
//! further threads. Each has sessions, rings and clocks of its own at the servers, which order
//! contributions by rank and thread. The coordinator knows ranks only: calls that it counts (barriers and
//! what is made of them) are the first client's.
//!
//! The clients share [`WorkerState`]. A thread that ends before it has finished is the loss of its worker:
//! its guard notes it, which ends the waits of the others, and the first of them that holds the
//! connection reports the loss.
//!
//! A call to the coordinator holds the connection while it sends its request and reads messages, not
//! while it waits: a thread that opens a table does not wait for the save of another one.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::time::Duration;

use tidewater_bookkeeping::locations::SharedLocations;
use tidewater_protocol::ids::{ServerId, TableId, WorkerId, WorkerThread};
use tidewater_protocol::limits::{COORDINATOR_LOOK, WORKER_THREADS_MAX};
use tidewater_protocol::mutants::{self, Mutant};
use tidewater_protocol::table::TableSpec;
use tidewater_protocol::wire::control::{DomainClock, Joined, Members, SlowMember, TableInfo};
use tidewater_runtime::clock::{self, Deadline};
use tidewater_runtime::sync::{Arc, AtomicBool, Ordering};

use super::Client;
use crate::clock::check_member;
use crate::error::ClientError;
use crate::interrupt;
use crate::link::{
    BegunCall, ConnectThread, CoordinatorCall, CoordinatorLink, CoordinatorReply, Loaded, Saved,
    ThreadLinks, blocking_calls,
};

/// Time limit for reporting a lost thread to the coordinator.
const REPORT: Duration = Duration::from_secs(1);
/// Pause between two attempts to lock the coordinator connection while another thread of the worker uses it.
const PAUSE: Duration = Duration::from_millis(1);
/// Longest time for which a waiting thread holds the coordinator connection while other threads of the worker may
/// need it.
const TURN: Duration = Duration::from_millis(5);

type Link = Box<dyn CoordinatorLink>;

/// State that the clients of one worker's threads share: coordinator connection, open threads, row locations.
pub(crate) struct WorkerState {
    rank: WorkerId,
    coordinator: Mutex<Link>,
    /// Numbers of the further threads (siblings) that are open.
    open: Mutex<BTreeSet<u32>>,
    /// The first thread that ended before it finished.
    lost: OnceLock<WorkerThread>,
    reported: AtomicBool,
    locations: SharedLocations,
}

impl WorkerState {
    fn new(rank: WorkerId, coordinator: Link) -> Self {
        Self {
            rank,
            coordinator: Mutex::new(coordinator),
            open: Mutex::default(),
            lost: OnceLock::new(),
            reported: AtomicBool::new(false),
            locations: SharedLocations::default(),
        }
    }

    fn open(&self) -> MutexGuard<'_, BTreeSet<u32>> {
        // A set of numbers is complete after each change.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the coordinator connection if no thread uses it; `None` otherwise. A poisoned lock is taken: a thread
    /// that panicked inside a request left the stream between messages or broken, and the next request finds out.
    fn try_coordinator(&self) -> Option<MutexGuard<'_, Link>> {
        match self.coordinator.try_lock() {
            Ok(link) => Some(link),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Locks the coordinator connection, and waits for other threads that use it. `None` if they do until the
    /// deadline, or if a thread of the worker was lost.
    fn coordinator(&self, deadline: Deadline) -> Option<MutexGuard<'_, Link>> {
        loop {
            let link = self.try_coordinator();
            if link.is_some() || deadline.passed() || self.lost.get().is_some() {
                return link;
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Fails with `ClientError::ThreadLost` if a thread of this worker ended before it finished.
    fn check(&self) -> Result<(), ClientError> {
        match self.lost.get() {
            Some(&thread) => Err(ClientError::ThreadLost { thread }),
            None => Ok(()),
        }
    }

    /// Fails with `ClientError::ThreadLost` if a thread of this worker ended before it finished. The first such
    /// call also reports the loss to the coordinator over `link`, and waits up to a second for that.
    fn check_over(&self, link: &mut Link) -> Result<(), ClientError> {
        let checked = self.check();
        // SYNC: none. Only that one thread reports matters; the lock of `link` orders the rest.
        if let Err(lost) = &checked
            && !self.reported.swap(true, Ordering::Relaxed)
            && let Err(error) = link.failed(&lost.to_string(), Deadline::after(REPORT))
        {
            // The coordinator is lost too, or has ended the job: the next call says so.
            tracing::debug!(%error, "the loss of a thread is not reported");
        }
        checked
    }

    /// Records that a thread has ended before it finished, so that calls of the worker's other threads fail, and
    /// reports it to the coordinator. If another thread uses the connection, that one reports it when its wait ends.
    fn lose(&self, thread: WorkerThread) {
        if mutants::on(Mutant::SiblingLossUnnoticed) {
            return;
        }
        // The first one is the cause.
        self.lost.get_or_init(|| thread);
        if let Some(mut link) = self.try_coordinator() {
            // The other threads' calls fail with it.
            drop(self.check_over(&mut link));
        }
    }
}

/// Registration of one thread in its worker. Dropping it without [`ThreadGuard::finish`] is the loss of the worker:
/// calls of its other threads fail, and the coordinator is notified.
pub(super) struct ThreadGuard {
    worker: Arc<WorkerState>,
    thread: WorkerThread,
    /// Whether servers may count the thread in their clocks.
    joined: bool,
    finished: bool,
}

impl ThreadGuard {
    /// Registration of thread 0 of a worker, with the connection to the coordinator.
    pub(super) fn first(rank: WorkerId, coordinator: Link) -> Self {
        Self {
            worker: Arc::new(WorkerState::new(rank, coordinator)),
            thread: WorkerThread::first(rank),
            joined: true,
            finished: false,
        }
    }

    /// Registration of a further thread of the worker, with the lowest free number. Fails if `WORKER_THREADS_MAX`
    /// threads are open.
    fn sibling(&self) -> Result<Self, ClientError> {
        let mut open = self.worker.open();
        let rank = self.worker.rank;
        let free = (1..WORKER_THREADS_MAX).find(|thread| !open.contains(thread));
        let thread = free.ok_or_else(|| ClientError::Thread {
            op: "sibling",
            thread: self.thread,
            what: format!(
                "{WORKER_THREADS_MAX} threads of the worker have a client, which is the limit; finish some"
            ),
        })?;
        open.insert(thread);
        Ok(Self {
            worker: Arc::clone(&self.worker),
            thread: WorkerThread { rank, thread },
            joined: false,
            finished: false,
        })
    }

    pub(super) const fn thread(&self) -> WorkerThread {
        self.thread
    }

    pub(super) const fn is_finished(&self) -> bool {
        self.finished
    }

    /// Link to the coordinator for this thread, over the connection that the worker's threads share.
    pub(super) fn coordinator(&self) -> Box<dyn CoordinatorLink> {
        Box::new(SharedCoordinator {
            worker: Arc::clone(&self.worker),
            thread: self.thread,
        })
    }

    /// Cached row locations that the threads of the worker share.
    pub(super) fn locations(&self) -> &SharedLocations {
        &self.worker.locations
    }

    /// Fails with `ClientError::ThreadLost` if a thread of the worker ended before it finished.
    pub(super) fn check(&self) -> Result<(), ClientError> {
        self.worker.check()
    }

    /// Checks that this client may finish: fails for the first client while its siblings are open, and after the
    /// loss of a thread.
    pub(super) fn check_finish(&self) -> Result<(), ClientError> {
        self.check_alone("finish")
    }

    /// Checks that a call `op` of the first client finds no open siblings. Fails otherwise, and after the loss
    /// of a thread. A sibling passes.
    pub(super) fn check_alone(&self, op: &'static str) -> Result<(), ClientError> {
        self.worker.check()?;
        let open = self.worker.open();
        if !self.thread.is_first() || open.is_empty() || mutants::on(Mutant::FirstFinishesAlone) {
            return Ok(());
        }
        let threads: Vec<String> = open.iter().map(u32::to_string).collect();
        let what = format!(
            "threads {} of the worker are open; finish them first",
            threads.join(", ")
        );
        let thread = self.thread;
        Err(ClientError::Thread { op, thread, what })
    }

    /// Records that the thread has finished: its number is free again, and dropping the guard is no loss. Sends
    /// nothing.
    pub(super) fn finish(&mut self) {
        self.finished = true;
        self.worker.open().remove(&self.thread.thread);
    }
}

impl Drop for ThreadGuard {
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        match (self.thread.is_first(), self.joined) {
            // No server knows it.
            (false, false) => drop(self.worker.open().remove(&self.thread.thread)),
            (false, true) => self.worker.lose(self.thread),
            // Without other clients, of which finished ones count too, the connection ends, by which the
            // coordinator sees the loss.
            (true, _) if Arc::strong_count(&self.worker) == 1 => {}
            (true, _) => self.worker.lose(self.thread),
        }
    }
}

/// Link to the coordinator that the threads of a worker share. Requests of several threads may be in flight; one
/// thread at a time sends or reads, and leaves the others' answers with the link.
struct SharedCoordinator {
    worker: Arc<WorkerState>,
    thread: WorkerThread,
}

impl SharedCoordinator {
    fn with<R>(
        &self,
        op: &'static str,
        deadline: Deadline,
        request: impl FnOnce(&mut Link) -> Result<R, ClientError>,
    ) -> Result<R, ClientError> {
        let Some(mut link) = self.worker.coordinator(deadline) else {
            self.worker.check()?;
            let missing =
                "another thread of this worker uses the connection to the coordinator".into();
            return Err(ClientError::Deadline { op, missing });
        };
        self.worker.check_over(&mut link)?;
        request(&mut link).map_err(|error| {
            // The loss of a thread, which has ended this wait, says more.
            self.worker.check_over(&mut link).err().unwrap_or(error)
        })
    }

    /// Longest time for which one wait holds the shared connection: `TURN` while siblings are open, otherwise
    /// `COORDINATOR_LOOK`.
    fn turn(&self) -> Duration {
        match self.worker.open().is_empty() {
            true => COORDINATOR_LOOK,
            false => TURN,
        }
    }

    fn perform(
        &mut self,
        call: &CoordinatorCall,
        deadline: Deadline,
    ) -> Result<CoordinatorReply, ClientError> {
        let op = call.op();
        let number = match self.begin(call, deadline)? {
            BegunCall::Done(reply) => return Ok(*reply),
            BegunCall::UnderWay(number) => number,
        };
        let mut looked = clock::now();
        loop {
            let wait = self.turn().min(deadline.left());
            match self.poll(op, number, wait) {
                Ok(Some(reply)) => return Ok(reply),
                Ok(None) => {}
                Err(error) => return Err(error),
            }
            if deadline.passed() {
                let missing = self.abandon(op, number);
                return Err(ClientError::Deadline { op, missing });
            }
            if looked.elapsed() >= COORDINATOR_LOOK {
                looked = clock::now();
                if interrupt::requested() {
                    self.abandon(op, number);
                    return Err(ClientError::Interrupted { op });
                }
            }
            if !self.worker.open().is_empty() {
                std::thread::sleep(PAUSE);
            }
        }
    }
}

impl CoordinatorLink for SharedCoordinator {
    blocking_calls!();

    fn begin(
        &mut self,
        call: &CoordinatorCall,
        deadline: Deadline,
    ) -> Result<BegunCall, ClientError> {
        if let CoordinatorCall::Barrier { .. } | CoordinatorCall::MemberBarrier(_) = call {
            first_only(call.op(), self.thread)?;
        }
        self.with(call.op(), deadline, |link| link.begin(call, deadline))
    }

    fn poll(
        &mut self,
        op: &'static str,
        number: u64,
        wait: Duration,
    ) -> Result<Option<CoordinatorReply>, ClientError> {
        let until = Deadline::after(wait);
        let Some(mut link) = self.worker.coordinator(until) else {
            return self.worker.check().map(|()| None);
        };
        self.worker.check_over(&mut link)?;
        let polled = link.poll(op, number, until.left());
        // The loss of a thread, which may have ended this wait, says more.
        polled.map_err(|error| self.worker.check_over(&mut link).err().unwrap_or(error))
    }

    fn forget(&mut self, number: u64) {
        // While another thread uses the link, the answer stays with it until the connection ends.
        if let Some(mut link) = self.worker.coordinator(Deadline::after(REPORT)) {
            link.forget(number);
        }
    }

    fn abandon(&mut self, op: &'static str, number: u64) -> String {
        match self.worker.coordinator(Deadline::after(REPORT)) {
            Some(mut link) => link.abandon(op, number),
            // Its answer stays with the link until the connection ends.
            None => "another thread of this worker uses the connection to the coordinator".into(),
        }
    }

    fn check(&mut self) -> Result<(), ClientError> {
        match self.worker.try_coordinator() {
            Some(mut link) => {
                self.worker.check_over(&mut link)?;
                link.check()
            }
            // The thread that uses it sees the end of the job.
            None => self.worker.check(),
        }
    }

    fn stop_asked(&mut self) -> Result<Option<String>, ClientError> {
        match self.worker.try_coordinator() {
            Some(mut link) => {
                self.worker.check_over(&mut link)?;
                link.stop_asked()
            }
            // Another thread uses it: the next look finds the request.
            None => self.worker.check().map(|()| None),
        }
    }

    fn check_within(&mut self, timeout: Duration) -> Result<(), ClientError> {
        let until = Deadline::after(timeout);
        let mut before = None;
        loop {
            let Some(mut link) = self.worker.coordinator(until) else {
                return self.worker.check();
            };
            self.worker.check_over(&mut link)?;
            let seen = *before.get_or_insert(link.resumes());
            let slice = Deadline::after(self.turn()).min(until);
            link.check_within(slice.left())?;
            // Another thread may have taken the notice of a successor. A link that does not wait has none to expect.
            if link.resumes() != seen || until.passed() || slice.left() > PAUSE {
                return Ok(());
            }
            drop(link);
            if !self.worker.open().is_empty() {
                std::thread::sleep(PAUSE);
            }
        }
    }

    fn has_restarted(&self) -> bool {
        let link = self.worker.coordinator(Deadline::after(COORDINATOR_LOOK));
        link.is_some_and(|link| link.has_restarted())
    }

    fn awaits_successor(&self, server: ServerId) -> bool {
        let link = self.worker.coordinator(Deadline::after(COORDINATOR_LOOK));
        link.is_some_and(|link| link.awaits_successor(server))
    }

    fn resumed(&self, seen: u64) -> Option<(u64, Members)> {
        let link = self.worker.coordinator(Deadline::after(COORDINATOR_LOOK));
        link.and_then(|link| link.resumed(seen))
    }

    fn resumes(&self) -> u64 {
        let link = self.worker.coordinator(Deadline::after(COORDINATOR_LOOK));
        link.map_or(0, |link| link.resumes())
    }

    fn rejoin(&mut self, deadline: Deadline) -> Result<Joined, ClientError> {
        self.with("rejoin", deadline, |link| link.rejoin(deadline))
    }

    fn rejoined(&mut self) {
        if let Some(mut link) = self.worker.coordinator(Deadline::after(REPORT)) {
            link.rejoined();
        }
    }

    fn slow(&mut self, workers: &[SlowMember], deadline: Deadline) -> Result<(), ClientError> {
        self.with("slow workers", deadline, |link| {
            link.slow(workers, deadline)
        })
    }

    fn leaving(&mut self, clocks: &[DomainClock], deadline: Deadline) -> Result<(), ClientError> {
        self.with("finish", deadline, |link| link.leaving(clocks, deadline))
    }

    fn finished(&mut self, deadline: Deadline) -> Result<(), ClientError> {
        self.with("finished", deadline, |link| link.finished(deadline))
    }

    fn failed(&mut self, reason: &str, deadline: Deadline) -> Result<(), ClientError> {
        self.with("failed", deadline, |link| link.failed(reason, deadline))
    }
}

/// Checks that the caller is the first client of a worker. Fails with `ClientError::Thread` for a sibling, and with
/// `ClientError::Observer` for an observer.
pub(super) fn first_only(op: &'static str, thread: WorkerThread) -> Result<(), ClientError> {
    if thread.rank.observer().is_some() {
        return Err(ClientError::Observer { op });
    }
    if thread.is_first() {
        return Ok(());
    }
    let what = "only the first client of a worker makes this call, for all its threads".into();
    Err(ClientError::Thread { op, thread, what })
}

impl Client {
    /// Makes a client for a further thread of this worker (a sibling). The new client belongs to the thread that it
    /// is moved to.
    ///
    /// It has sessions and rings of its own, the rank of this worker, and the lowest free thread number.
    /// It begins at the clocks of this client and ticks by itself: a worker has ended an iteration when
    /// each of its open threads has. Contributions to an iteration are added in the order of rank, thread
    /// and push, and a mean divides by the threads that pushed. Table handles are not shared: each client
    /// opens its tables.
    ///
    /// Barriers and collective calls are those of the first client. Each sibling ends with
    /// [`Client::finish`], before the first client does; one that is dropped before counts as the loss of
    /// its worker. Cost: a flush of this client, a session with every server, a round trip on each lane.
    ///
    /// # Errors
    /// [`ClientError::Thread`] from a sibling, after [`Client::finish`], with an unfinished tick, or with
    /// too many threads; what [`Client::flush`] reports; a server's refusal of a session. A failure after the
    /// first server may count the thread loses the worker ([`ClientError::ThreadLost`] in later calls).
    ///
    /// # Examples
    /// ```
    /// # use tidewater::{ClientError, JoinOptions, SyncMode};
    /// # fn main() -> Result<(), ClientError> {
    /// let job = JoinOptions::embedded(1, 1).join()?.into_job().expect("a worker");
    /// let mut client = job.client_of(0, SyncMode::Bsp)?;
    /// let mut sibling = client.sibling()?;
    /// std::thread::scope(|scope| {
    ///     let other = scope.spawn(move || {
    ///         sibling.tick()?;
    ///         sibling.finish()
    ///     });
    ///     client.tick()?;
    ///     other.join().expect("no panic")
    /// })?;
    /// client.finish()
    /// # }
    /// ```
    pub fn sibling(&mut self) -> Result<Self, ClientError> {
        let (op, thread) = ("sibling", self.guard.thread());
        first_only(op, thread)?;
        let refuse = |what: String| ClientError::Thread { op, thread, what };
        if self.clock.is_finished() {
            return Err(refuse("the worker has finished".into()));
        }
        if let Some(domain) = self.clock.halfway() {
            return Err(refuse(format!(
                "the last tick of clock domain {domain} has failed; repeat it first"
            )));
        }
        let Some(connect) = self.connect.clone() else {
            return Err(refuse(
                "the client was made from connections without ConnectThread".into(),
            ));
        };
        // Every CLOCK frame of this client is applied then, on every lane: its clocks, at which the new
        // thread begins, are the same at all appliers. It sends no other one in this call.
        self.flush()?;
        let deadline = self.deadline();
        check_member(
            &mut self.lanes,
            tidewater_protocol::ids::DomainId(0),
            thread,
            deadline,
        )?;
        let guard = self.guard.sibling()?;
        // Servers may have been restarted since this client connected.
        let members = self.lanes.coordinator.resumed(0);
        let renewed = members.and_then(|(_, members)| connect.renewed(&members));
        let connect = renewed.unwrap_or(connect);
        let ThreadLinks { servers, parker } = connect.connect(guard.thread().thread, deadline)?;
        let clock = self.clock.of_sibling();
        let mut sibling = Self::of_thread(guard, servers, parker, self.workers, clock)?;
        sibling.timeout = self.timeout;
        sibling.feedback.bytes_max = self.feedback.bytes_max;
        sibling.continues(self.has_checkpoints(), self.resumed().cloned());
        // From the first frame on: an applier that has it waits for this thread.
        sibling.guard.joined = true;
        sibling.clock.join(&mut sibling.lanes, deadline)?;
        Ok(sibling)
    }

    /// Sets the connector with which [`Client::sibling`] connects further threads. A client of a [`Job`](crate::Job)
    /// has one.
    pub fn connect_siblings_by(&mut self, connect: Arc<dyn ConnectThread>) {
        self.connect = Some(connect);
    }

    /// Number of this thread in its worker: 0 for the first client, more for siblings.
    pub const fn thread(&self) -> u32 {
        self.guard.thread().thread
    }
}

/// Compile-time check that a client is `Send`: it moves to the thread that uses it.
const _: () = {
    const fn moves_to_its_thread<T: Send>() {}
    moves_to_its_thread::<Client>();
};

#[cfg(test)]
mod tests;
