//! Wake-up of a thread: its waker, the descriptors it waits on, the OS [`Parker`].
//!
//! `parked_flag` has the protocol by which no wake-up is lost, `wait` the loop that follows it.

mod adaptive_spin;

use std::any::Any;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, epoll};

use crate::fabric::{Parker, YieldBackoff};
use adaptive_spin::AdaptiveSpin;
use tidewater_protocol::mutants::{self, Mutant};
use tidewater_runtime::clock::{self, Deadline};
use tidewater_runtime::mem::{Region, WordsMut};
use tidewater_runtime::parked_flag;
use tidewater_runtime::sync::{Arc, AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Eventfd that wakes one sleeping thread, which waits on it in its `Reactor`. Producers hold clones,
/// which share the eventfd.
#[derive(Debug, Clone)]
pub struct Waker(Arc<OwnedFd>);

impl Waker {
    /// Creates a waker: a non-blocking eventfd with counter 0.
    ///
    /// # Errors
    /// When there are no descriptors left.
    pub fn new() -> io::Result<Self> {
        let flags = rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK;
        Ok(Self(Arc::new(rustix::event::eventfd(0, flags)?)))
    }

    /// Wraps the eventfd that a peer process passed as a descriptor, and sets it non-blocking. Other
    /// descriptors are refused: a write into anything else could block or destroy data. A peer that
    /// clears the non-blocking flag and fills the counter can still make `wake` block. Among processes of
    /// one user this check protects against accident, not against malice.
    ///
    /// # Errors
    /// When the descriptor is not an eventfd, or `/proc` is not mounted.
    pub fn from_peer(fd: OwnedFd) -> io::Result<Self> {
        use std::os::fd::AsRawFd;
        let kind = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()))?;
        if kind.as_os_str() != "anon_inode:[eventfd]" {
            return Err(io::Error::other(
                "the descriptor of a waker is not an eventfd",
            ));
        }
        let flags = rustix::fs::fcntl_getfl(&fd)? | rustix::fs::OFlags::NONBLOCK;
        rustix::fs::fcntl_setfl(&fd, flags)?;
        Ok(Self(Arc::new(fd)))
    }

    /// Wakes the waker's thread by a write to the eventfd: one system call. If it does not sleep now, its
    /// next sleep ends at once. An error is ignored: a full counter means that a wake-up is already
    /// pending.
    pub fn wake(&self) {
        let _ = rustix::io::write(&*self.0, &1u64.to_le_bytes());
    }

    /// Consumes all pending wake-ups by a read of the eventfd; does nothing if there are none. The woken
    /// thread calls it. Never blocks.
    pub fn drain(&self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&*self.0, &mut count);
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The epoll set of descriptors on which one thread sleeps, part of its `OsParker`. Clones share the
/// set, so that a socket can change the readiness it waits for.
#[derive(Debug, Clone)]
pub struct Reactor(Arc<ReactorState>);

#[derive(Debug)]
struct ReactorState {
    epoll: OwnedFd,
    /// Flags of descriptors that have one; a token is an index here. `None` is a free place.
    registered: Mutex<Vec<Option<Readiness>>>,
    /// Number of sleeps and looks that have ended.
    sleeps: AtomicU64,
    /// Number of registered descriptors with a [`Readiness`] flag.
    flagged: AtomicUsize,
    /// Whether the thread never sleeps.
    awake: bool,
}

/// Greatest number of events that one system call returns.
const EVENTS: usize = 32;
/// Least number of descriptors for which one look at all of them costs less than a receive call on each.
const MANY: usize = 4;
/// Epoll token (user data of an event) of the thread's waker.
const WAKER: u64 = u64::MAX;
/// Epoll token of descriptors without a [`Readiness`] flag: their owners poll them after each wake-up
/// anyway.
const NOBODY: u64 = u64::MAX - 1;

/// Cached flag of one descriptor in the reactor: whether it may be readable. A sleep or look that finds
/// the descriptor readable sets the flag. The descriptor's owner clears it after it found nothing more to
/// read.
///
/// Until the next sleep the owner then need not poll: later input ends that sleep at once, because the
/// set is level-triggered. A thread that never sleeps has to poll now and then all the same.
#[derive(Debug, Clone)]
pub(crate) struct Readiness {
    token: u64,
    readable: Arc<AtomicBool>,
}

impl Readiness {
    /// Returns whether the descriptor may have input, so that its owner should read it: a system call.
    #[inline]
    pub(crate) fn is_readable(&self) -> bool {
        self.readable.load(Ordering::Relaxed)
    }

    /// Stores whether the descriptor may have input. Only the thread that sleeps on the reactor and reads
    /// the descriptor calls this.
    #[inline]
    pub(crate) fn set(&self, readable: bool) {
        self.readable.store(readable, Ordering::Relaxed);
    }
}

impl Reactor {
    fn new(awake: bool) -> io::Result<Self> {
        Ok(Self(Arc::new(ReactorState {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            registered: Mutex::default(),
            sleeps: AtomicU64::new(0),
            flagged: AtomicUsize::new(0),
            awake,
        })))
    }

    /// Returns whether the reactor's thread never sleeps (made by `OsParker::awake`). Producers then
    /// need not wake it.
    pub fn is_awake(&self) -> bool {
        self.0.awake
    }

    /// Adds a descriptor that wakes the thread when it is readable; also when it is writable if `output`
    /// is set. It stays until it is closed.
    ///
    /// # Errors
    /// The error of the system call; the descriptor is then not added.
    pub fn add(&self, fd: impl AsFd, output: bool) -> io::Result<()> {
        self.add_as(fd, NOBODY, output)
    }

    fn add_as(&self, fd: impl AsFd, token: u64, output: bool) -> io::Result<()> {
        let data = epoll::EventData::new_u64(token);
        Ok(epoll::add(&self.0.epoll, fd, data, flags(output))?)
    }

    /// Adds a descriptor that wakes the thread when it is readable. Returns its [`Readiness`] flag,
    /// initially set. The owner removes it with `Self::remove`.
    ///
    /// # Errors
    /// The error of the system call; the descriptor is then not added.
    pub(crate) fn add_readiness(&self, fd: impl AsFd) -> io::Result<Readiness> {
        let mut all = self.registered();
        let free = all.iter().position(Option::is_none);
        let at = free.unwrap_or(all.len());
        let readiness = Readiness {
            token: at as u64,
            readable: Arc::new(AtomicBool::new(true)),
        };
        self.add_as(fd, readiness.token, false)?;
        match all.get_mut(at) {
            Some(place) => *place = Some(readiness.clone()),
            None => all.push(Some(readiness.clone())),
        }
        self.0.flagged.fetch_add(1, Ordering::Relaxed);
        Ok(readiness)
    }

    /// Changes the events for which a descriptor wakes the thread: when it is readable, and also when it
    /// is writable if `output` is set. `readiness` is the flag from `Self::add_readiness`.
    ///
    /// # Errors
    /// The error of the system call; the events are then unchanged.
    pub(crate) fn change(
        &self,
        fd: impl AsFd,
        readiness: &Readiness,
        output: bool,
    ) -> io::Result<()> {
        self.modify(fd, readiness, flags(output))
    }

    /// Changes the events of a descriptor so that only writability wakes the thread. For a lane that
    /// accepts no requests until its peer has read the pending answers. Input must not wake meanwhile, or
    /// this thread would spin.
    ///
    /// # Errors
    /// The error of the system call; the events are then unchanged.
    pub(crate) fn output_only(&self, fd: impl AsFd, readiness: &Readiness) -> io::Result<()> {
        self.modify(fd, readiness, epoll::EventFlags::OUT)
    }

    fn modify(
        &self,
        fd: impl AsFd,
        readiness: &Readiness,
        flags: epoll::EventFlags,
    ) -> io::Result<()> {
        let data = epoll::EventData::new_u64(readiness.token);
        Ok(epoll::modify(&self.0.epoll, fd, data, flags)?)
    }

    /// Removes a descriptor that [`Self::add_readiness`] added, so that it no longer wakes the thread. It
    /// may be closed already.
    pub(crate) fn remove(&self, fd: impl AsFd, readiness: &Readiness) {
        // The kernel has already removed a descriptor that was closed.
        let _ = epoll::delete(&self.0.epoll, fd);
        if let Some(place) = self.registered().get_mut(readiness.token as usize)
            && place.take().is_some()
        {
            self.0.flagged.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Blocks until a descriptor is ready or the timeout passes, an hour at most, and sets the
    /// [`Readiness`] flags of ready descriptors. Returns whether the waker was among them; its eventfd is
    /// not yet drained.
    fn sleep(&self, timeout: Duration) -> bool {
        let mut rest = timespec(timeout);
        if timeout < PRECISE && !mutants::on(Mutant::SleepInMilliseconds) {
            let mut ready = [PollFd::new(&self.0.epoll, PollFlags::IN)];
            // The poll that follows gives the outcome: nothing there, or a reason to wake.
            let _ = rustix::event::poll(&mut ready, Some(&rest));
            rest = timespec(Duration::ZERO);
        }
        self.wait_ready(&rest)
    }

    /// Sets the [`Readiness`] flags of ready descriptors without blocking, by one system call for up to
    /// [`EVENTS`] of them. Afterwards the flags are as after a sleep. Returns whether it looked: with
    /// fewer than [`MANY`] descriptors it does nothing, as reading each of them costs less.
    pub(crate) fn look(&self) -> bool {
        let many = self.0.flagged.load(Ordering::Relaxed) >= MANY;
        if many {
            // A wake-up stays pending: the eventfd is not drained.
            self.wait_ready(&timespec(Duration::ZERO));
        }
        many
    }

    /// Waits for ready descriptors, sets their flags and returns whether the waker was among them. More than
    /// [`EVENTS`] are left to the next call, which begins with them.
    fn wait_ready(&self, timeout: &Timespec) -> bool {
        let mut events = [std::mem::MaybeUninit::uninit(); EVENTS];
        // An interrupted or failed wait is a spurious wake-up: each owner polls again anyway.
        let woken = epoll::wait(&self.0.epoll, &mut events, Some(timeout));
        self.0.sleeps.fetch_add(1, Ordering::Relaxed);
        let mut is_woken = false;
        if let Ok((events, _)) = woken {
            let all = self.registered();
            for event in &*events {
                let token = event.data.u64();
                is_woken |= token == WAKER;
                if let Some(Some(readiness)) = all.get(usize::try_from(token).unwrap_or(usize::MAX))
                {
                    readiness.set(true);
                }
            }
        }
        is_woken
    }

    /// Returns the number of sleeps and looks that have ended. If the last of them did not set a
    /// descriptor's flag, the descriptor had no input then (or more than [`EVENTS`] were ready): its
    /// owner need not poll.
    #[inline]
    pub(crate) fn sleeps(&self) -> u64 {
        self.0.sleeps.load(Ordering::Relaxed)
    }

    /// Locks and returns the list of registered descriptors; a token is an index there. Locked at each
    /// sleep, and when a socket is added or removed.
    fn registered(&self) -> MutexGuard<'_, Vec<Option<Readiness>>> {
        match self.0.registered.lock() {
            Ok(guard) => guard,
            Err(poisoned) => poisoned.into_inner(),
        }
    }
}

/// Sleeps shorter than this (10 ms) are timed in nanoseconds, by `ppoll` on the set, for one more system
/// call. `epoll_wait` counts in milliseconds and rounds up. `epoll_pwait2` needs Linux 5.11, and
/// sandboxes that do not know it may end the process.
const PRECISE: Duration = Duration::from_millis(10);

fn timespec(time: Duration) -> Timespec {
    Timespec {
        tv_sec: time.as_secs().min(3600) as i64,
        tv_nsec: i64::from(time.subsec_nanos()),
    }
}

fn flags(output: bool) -> epoll::EventFlags {
    let base = epoll::EventFlags::IN | epoll::EventFlags::RDHUP;
    if output {
        base | epoll::EventFlags::OUT
    } else {
        base
    }
}

/// List of the parked flags of one thread: words that it sets before it sleeps and clears afterwards, so
/// that producers see whether to wake it. Clones share the list, so that code which renews a session's
/// memory can change it.
#[derive(Debug, Clone, Default)]
pub struct ParkedFlags(Arc<Mutex<Vec<ParkedFlag>>>);

/// One parked flag: the region that contains its 64-bit word, and the word's byte offset there.
type ParkedFlag = (Arc<Region>, usize);

impl ParkedFlags {
    /// Adds the parked flag at byte offset `at`, a multiple of 8, of a writable region. The thread sets
    /// it before each sleep from now on; producers load it to decide whether to wake this thread.
    pub fn add(&self, region: Arc<Region>, at: usize) {
        self.lock().push((region, at));
    }

    /// Removes the parked flag at byte offset `at` of a region from the list; does nothing if it is not
    /// there. Leaves its word as it is.
    pub fn remove(&self, region: &Arc<Region>, at: usize) {
        self.lock()
            .retain(|(r, a)| !(Arc::ptr_eq(r, region) && *a == at));
    }

    fn each(&self, act: impl Fn(WordsMut<'_>)) {
        for (region, at) in &*self.lock() {
            if let Ok(word) = region.words_mut(*at, 8) {
                act(word);
            }
        }
    }

    /// Locks and returns the list. The thread locks it at each sleep; it is contended only while a
    /// session changes.
    fn lock(&self) -> MutexGuard<'_, Vec<ParkedFlag>> {
        match self.0.lock() {
            Ok(guard) => guard,
            Err(poisoned) => poisoned.into_inner(),
        }
    }
}

/// Event source that the thread must arm before each sleep, because unarmed it raises no event. Example:
/// an RDMA completion queue (`ibv_req_notify_cq`). Its descriptor is in the thread's [`Reactor`].
pub trait Arm: Any + std::fmt::Debug + Send + Sync {
    /// Requests an event from the source: data that arrives after the return makes the descriptor
    /// readable. Earlier data need not: the caller polls once more (see `wait`). There is no call to
    /// disarm; a source that stays armed causes one spurious wake-up.
    fn arm(&self);
}

/// List of the event sources, such as RDMA completion queues, that one thread arms before it sleeps.
/// Clones share the list, so that code that opens a lane for the thread can add to it.
#[derive(Debug, Clone, Default)]
pub struct Arms(Arc<Mutex<Vec<Arc<dyn Arm>>>>);

impl Arms {
    /// Adds an event source, which the thread arms before each sleep from now on. The caller adds its
    /// descriptor to the reactor.
    pub fn add(&self, arm: Arc<dyn Arm>) {
        self.lock().push(arm);
    }

    /// Removes an event source from the list, so that the thread no longer arms it; does nothing if it is
    /// not there.
    pub fn remove(&self, arm: &Arc<dyn Arm>) {
        self.lock().retain(|a| !Arc::ptr_eq(a, arm));
    }

    /// Returns the first event source of type `T` for which `is` returns true; `None` if there is none.
    /// Code that opens a lane thereby shares a source that the thread already arms.
    pub fn find<T: Arm>(&self, is: impl Fn(&T) -> bool) -> Option<Arc<T>> {
        let arms = self.lock();
        let mut of_type = arms.iter().filter_map(|arm| {
            let any: Arc<dyn Any + Send + Sync> = Arc::clone(arm) as _;
            any.downcast::<T>().ok()
        });
        of_type.find(|arm| is(arm))
    }

    /// Locks and returns the list. The thread locks it at each sleep; it is contended only while lanes
    /// are opened or closed.
    fn lock(&self) -> MutexGuard<'_, Vec<Arc<dyn Arm>>> {
        match self.0.lock() {
            Ok(guard) => guard,
            Err(poisoned) => poisoned.into_inner(),
        }
    }
}

/// The operating system's [`Parker`]: the thread sleeps in one `epoll_wait` over its waker, its sockets
/// and its completion channel. Before that it sets its parked flags in all memory through which producers
/// may signal it.
#[derive(Debug)]
pub struct OsParker {
    watch: Reactor,
    waker: Waker,
    parked_flags: ParkedFlags,
    arms: Arms,
    adaptive_spin: AdaptiveSpin,
    yield_backoff: YieldBackoff,
}

impl OsParker {
    /// Creates a parker with a new waker, for the thread that will call it. Each wait polls for `spin`
    /// before it sleeps.
    ///
    /// # Errors
    /// When there are no descriptors left.
    pub fn new(spin: Duration) -> io::Result<Self> {
        Self::with(spin, false)
    }

    /// Creates the parker of a thread that never sleeps. The thread busy-polls and keeps a core busy, and
    /// producers make no system call to wake it.
    ///
    /// # Errors
    /// When there are no descriptors left.
    pub fn awake() -> io::Result<Self> {
        Self::with(Duration::ZERO, true)
    }

    fn with(spin: Duration, awake: bool) -> io::Result<Self> {
        let watch = Reactor::new(awake)?;
        let waker = Waker::new()?;
        watch.add_as(&waker, WAKER, false)?;
        Ok(Self {
            watch,
            waker,
            parked_flags: ParkedFlags::default(),
            arms: Arms::default(),
            adaptive_spin: AdaptiveSpin::steady(spin),
            yield_backoff: YieldBackoff::default(),
        })
    }

    /// Enables adaptive spinning: if spin and sleep of a wait took at most 200 us together, the next wait
    /// polls for 200 us before it sleeps, as a signal will probably come soon. No effect on a parker that
    /// never spins, after a wait in which another thread used the yielded core, or while the thread polls
    /// a socket or device queue: such a poll is a system call or device access.
    #[must_use]
    pub fn patient(self) -> Self {
        Self {
            adaptive_spin: self.adaptive_spin.learning(),
            ..self
        }
    }

    /// Returns whether the thread polls sockets or device queues, not only memory: each poll then costs a
    /// system call or a device access.
    fn looks_far(&self) -> bool {
        self.watch.registered().iter().any(Option::is_some) || !self.arms.lock().is_empty()
    }

    /// Returns the waker of the parker's thread; producers get clones of it.
    pub const fn waker(&self) -> &Waker {
        &self.waker
    }

    /// Returns the epoll set of descriptors on which the thread sleeps, for code that adds sockets.
    pub const fn reactor(&self) -> &Reactor {
        &self.watch
    }

    /// Returns the list of parked flags that the thread sets before it sleeps, for code that adds or
    /// removes memory.
    pub const fn parked_flags(&self) -> &ParkedFlags {
        &self.parked_flags
    }

    /// Returns the list of event sources that the thread arms before it sleeps, for code that opens or
    /// closes lanes.
    pub const fn arms(&self) -> &Arms {
        &self.arms
    }

    /// Adds the parked flag at byte offset `at` of a writable region, as [`ParkedFlags::add`] does.
    pub fn add_parked_flag(&mut self, region: Arc<Region>, at: usize) {
        self.parked_flags.add(region, at);
    }

    /// Removes all parked flags that lie in a region, for example when its session has ended.
    pub fn remove_parked_flag(&mut self, region: &Arc<Region>) {
        self.parked_flags
            .lock()
            .retain(|(r, _)| !Arc::ptr_eq(r, region));
    }
}

impl Parker for OsParker {
    fn prepare_park(&mut self) {
        if !self.sleeps() {
            return;
        }
        self.parked_flags.each(parked_flag::set);
        for arm in &*self.arms.lock() {
            arm.arm();
        }
    }

    fn park_until(&mut self, deadline: Deadline) {
        if !self.sleeps() {
            return;
        }
        let left = deadline.left();
        let asleep = clock::now();
        // A wake-up that comes in between is consumed too, but its data was stored before it, and the
        // caller polls after this. A later one ends the next sleep.
        if self.watch.sleep(left) {
            self.waker.drain();
        }
        let slept = clock::now() - asleep;
        self.adaptive_spin
            .slept(slept, self.yield_backoff.taken() || self.looks_far());
    }

    fn cancel_park(&mut self) {
        self.parked_flags.each(parked_flag::clear);
    }

    fn spin(&self) -> Duration {
        self.adaptive_spin.spin()
    }

    fn sleeps(&self) -> bool {
        !self.watch.is_awake()
    }

    fn yield_backoff(&mut self) -> Option<&mut YieldBackoff> {
        Some(&mut self.yield_backoff)
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
