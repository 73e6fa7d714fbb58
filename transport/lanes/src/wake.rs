//! What wakes a thread: its waker, the descriptors it watches, the real [`Parker`].
//!
//! `parked_flag` has the protocol by which no wake-up is lost, `wait` the loop that keeps it.

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
use tidewater_runtime::sync::{Arc, AtomicBool, AtomicU64, Ordering};

/// An eventfd: the doorbell of one thread.
#[derive(Debug, Clone)]
pub struct Waker(Arc<OwnedFd>);

impl Waker {
    /// A new one.
    ///
    /// # Errors
    /// When there are no descriptors left.
    pub fn new() -> io::Result<Self> {
        let flags = rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK;
        Ok(Self(Arc::new(rustix::event::eventfd(0, flags)?)))
    }

    /// A peer's, from a descriptor that it passed. Only an eventfd is taken: to write into
    /// anything else could block or destroy. (A peer that clears the non-blocking flag and fills
    /// the counter can still make `ring` block: among processes of one user this protects against
    /// accident, not against malice.)
    ///
    /// # Errors
    /// When it is not an eventfd, or `/proc` is not mounted.
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

    /// Rings: one system call. A full counter means that it rings already.
    pub fn wake(&self) {
        let _ = rustix::io::write(&*self.0, &1u64.to_le_bytes());
    }

    /// Takes back all rings so far.
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

/// The set of descriptors one thread sleeps on. Clones share it, so that a socket can change what
/// it waits for.
#[derive(Debug, Clone)]
pub struct Reactor(Arc<ReactorState>);

#[derive(Debug)]
struct ReactorState {
    epoll: OwnedFd,
    /// Who is told that its descriptor woke the thread; a token is a place here.
    told: Mutex<Vec<Option<Readiness>>>,
    /// Sleeps that are over.
    sleeps: AtomicU64,
    /// Its thread never sleeps.
    awake: bool,
}

/// What the waker is reported by.
const BELL: u64 = u64::MAX;
/// What descriptors are reported by whose owners look at each wake-up anyway.
const NOBODY: u64 = u64::MAX - 1;

/// Whether a descriptor may be readable. A sleep that it ends says so; its owner takes it back when
/// it found nothing more to read. Until the next sleep the owner then need not look: what comes
/// later ends that sleep at once, because the set reports what is there, not what is new. (Who
/// never sleeps has to look now and then all the same.)
#[derive(Debug, Clone)]
pub(crate) struct Readiness {
    token: u64,
    readable: Arc<AtomicBool>,
}

impl Readiness {
    /// Whether looking is worth a system call.
    #[inline]
    pub(crate) fn is_readable(&self) -> bool {
        self.readable.load(Ordering::Relaxed)
    }

    /// What is known now. One thread sets it: the one that sleeps and reads.
    #[inline]
    pub(crate) fn set(&self, readable: bool) {
        self.readable.store(readable, Ordering::Relaxed);
    }
}

impl Reactor {
    fn new(awake: bool) -> io::Result<Self> {
        Ok(Self(Arc::new(ReactorState {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            told: Mutex::default(),
            sleeps: AtomicU64::new(0),
            awake,
        })))
    }

    /// Whether its thread never sleeps: nothing has to wake it.
    pub fn is_awake(&self) -> bool {
        self.0.awake
    }

    /// Wakes on readable, and on writable while `output` is waiting.
    ///
    /// # Errors
    /// The system's.
    pub fn add(&self, fd: impl AsFd, output: bool) -> io::Result<()> {
        self.add_as(fd, NOBODY, output)
    }

    fn add_as(&self, fd: impl AsFd, token: u64, output: bool) -> io::Result<()> {
        let data = epoll::EventData::new_u64(token);
        Ok(epoll::add(&self.0.epoll, fd, data, flags(output))?)
    }

    /// Wakes on readable and tells the owner, who is told to look first of all.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn add_readiness(&self, fd: impl AsFd) -> io::Result<Readiness> {
        let mut all = self.told();
        let free = all.iter().position(Option::is_none);
        let at = free.unwrap_or(all.len());
        let told = Readiness {
            token: at as u64,
            readable: Arc::new(AtomicBool::new(true)),
        };
        self.add_as(fd, told.token, false)?;
        match all.get_mut(at) {
            Some(place) => *place = Some(told.clone()),
            None => all.push(Some(told.clone())),
        }
        Ok(told)
    }

    /// Changes whether writability wakes.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn change(&self, fd: impl AsFd, told: &Readiness, output: bool) -> io::Result<()> {
        self.modify(fd, told, flags(output))
    }

    /// Wakes on writable only: for a peer that has to read its answers before it may ask on. What
    /// it sent meanwhile must not wake, or this thread would spin.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn output_only(&self, fd: impl AsFd, told: &Readiness) -> io::Result<()> {
        self.modify(fd, told, epoll::EventFlags::OUT)
    }

    fn modify(&self, fd: impl AsFd, told: &Readiness, flags: epoll::EventFlags) -> io::Result<()> {
        let data = epoll::EventData::new_u64(told.token);
        Ok(epoll::modify(&self.0.epoll, fd, data, flags)?)
    }

    /// Takes a descriptor out whose owner is told.
    pub(crate) fn remove(&self, fd: impl AsFd, told: &Readiness) {
        let _ = epoll::delete(&self.0.epoll, fd);
        if let Some(place) = self.told().get_mut(told.token as usize) {
            *place = None;
        }
    }

    /// Sleeps until a descriptor wakes it or the time is over, and tells the owners; whether the
    /// waker rang.
    fn sleep(&self, timeout: Duration) -> bool {
        let mut events = [std::mem::MaybeUninit::uninit(); 16];
        let mut rest = timespec(timeout);
        if timeout < PRECISE && !mutants::on(Mutant::SleepInMilliseconds) {
            let mut ready = [PollFd::new(&self.0.epoll, PollFlags::IN)];
            // Its outcome is that of the look that follows: nothing there, or a reason to wake.
            let _ = rustix::event::poll(&mut ready, Some(&rest));
            rest = timespec(Duration::ZERO);
        }
        // An interrupted or failed wait is a spurious wake-up: everybody looks again anyway.
        let woken = epoll::wait(&self.0.epoll, &mut events, Some(&rest));
        self.0.sleeps.fetch_add(1, Ordering::Relaxed);
        let mut rang = false;
        if let Ok((events, _)) = woken {
            let all = self.told();
            for event in &*events {
                let token = event.data.u64();
                rang |= token == BELL;
                if let Some(Some(told)) = all.get(usize::try_from(token).unwrap_or(usize::MAX)) {
                    told.set(true);
                }
            }
        }
        rang
    }

    /// Sleeps that are over. Whose descriptor has not been told of since the last one need not look:
    /// nothing was there.
    #[inline]
    pub(crate) fn sleeps(&self) -> u64 {
        self.0.sleeps.load(Ordering::Relaxed)
    }

    /// Taken at a sleep, and when a socket comes or goes.
    fn told(&self) -> MutexGuard<'_, Vec<Option<Readiness>>> {
        match self.0.told.lock() {
            Ok(guard) => guard,
            Err(poisoned) => poisoned.into_inner(),
        }
    }
}

/// Sleeps shorter than this are counted in nanoseconds, by `ppoll` on the set, for one more system
/// call. `epoll_wait` counts in milliseconds and rounds up; `epoll_pwait2` needs Linux 5.11, and
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

/// The parked flags of one thread. Clones share them, so that whoever renews a session's memory can
/// change them.
#[derive(Debug, Clone, Default)]
pub struct ParkedFlags(Arc<Mutex<Vec<ParkedFlag>>>);

/// A parked flag: its memory and where it is there.
type ParkedFlag = (Arc<Region>, usize);

impl ParkedFlags {
    /// Adds a parked flag that producers look at; it must be writable.
    pub fn add(&self, region: Arc<Region>, at: usize) {
        self.lock().push((region, at));
    }

    /// Removes a parked flag.
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

    /// Taken on the way to a system call; nobody else holds it but while a session changes.
    fn lock(&self) -> MutexGuard<'_, Vec<ParkedFlag>> {
        match self.0.lock() {
            Ok(guard) => guard,
            Err(poisoned) => poisoned.into_inner(),
        }
    }
}

/// A producer that has to be told before each sleep that from now on it must wake the thread: a
/// completion queue that raises an event only when it was armed. Its descriptor is in the thread's
/// [`Reactor`].
pub trait Arm: Any + std::fmt::Debug + Send + Sync {
    /// From when this returns, what arrives makes the descriptor readable. What arrived before it
    /// need not: the caller looks once more (see `wait`). There is no counterpart for the way back;
    /// a producer that stays armed wakes once too often.
    fn arm(&self);
}

/// What one thread arms before it sleeps. Clones share it, so that whoever opens a lane for the
/// thread can add to it.
#[derive(Debug, Clone, Default)]
pub struct Arms(Arc<Mutex<Vec<Arc<dyn Arm>>>>);

impl Arms {
    /// Adds a producer.
    pub fn add(&self, arm: Arc<dyn Arm>) {
        self.lock().push(arm);
    }

    /// Takes a producer out.
    pub fn remove(&self, arm: &Arc<dyn Arm>) {
        self.lock().retain(|a| !Arc::ptr_eq(a, arm));
    }

    /// The producer of type `T` that `is` picks, if there is one: who opens a lane shares what the
    /// thread arms already.
    pub fn find<T: Arm>(&self, is: impl Fn(&T) -> bool) -> Option<Arc<T>> {
        let arms = self.lock();
        let mut of_type = arms.iter().filter_map(|arm| {
            let any: Arc<dyn Any + Send + Sync> = Arc::clone(arm) as _;
            any.downcast::<T>().ok()
        });
        of_type.find(|arm| is(arm))
    }

    /// Taken on the way to a system call, as that of [`ParkedFlags`].
    fn lock(&self) -> MutexGuard<'_, Vec<Arc<dyn Arm>>> {
        match self.0.lock() {
            Ok(guard) => guard,
            Err(poisoned) => poisoned.into_inner(),
        }
    }
}

/// The real [`Parker`]: one `epoll_wait` over the thread's waker, its sockets and its completion
/// channel, and the parked flags of all memory through which others may signal it.
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
    /// With a waker of its own; each wait looks for `spin` before it sleeps.
    ///
    /// # Errors
    /// When there are no descriptors left.
    pub fn new(spin: Duration) -> io::Result<Self> {
        Self::with(spin, false)
    }

    /// Of a thread that never sleeps: it keeps a core busy, and nobody makes a system call to wake it.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn awake() -> io::Result<Self> {
        Self::with(Duration::ZERO, true)
    }

    fn with(spin: Duration, awake: bool) -> io::Result<Self> {
        let watch = Reactor::new(awake)?;
        let waker = Waker::new()?;
        watch.add_as(&waker, BELL, false)?;
        Ok(Self {
            watch,
            waker,
            parked_flags: ParkedFlags::default(),
            arms: Arms::default(),
            adaptive_spin: AdaptiveSpin::steady(spin),
            yield_backoff: YieldBackoff::default(),
        })
    }

    /// Looks longer after a wait that ended soon after it went to sleep, unless it never looks. Only
    /// while all that it looks at is memory: to look at a socket is a system call.
    #[must_use]
    pub fn patient(self) -> Self {
        Self {
            adaptive_spin: self.adaptive_spin.learning(),
            ..self
        }
    }

    /// Whether it looks at sockets or queues of a device.
    fn looks_far(&self) -> bool {
        self.watch.told().iter().any(Option::is_some) || !self.arms.lock().is_empty()
    }

    /// The thread's doorbell, to be told to producers.
    pub const fn waker(&self) -> &Waker {
        &self.waker
    }

    /// The thread's descriptors.
    pub const fn reactor(&self) -> &Reactor {
        &self.watch
    }

    /// The thread's parked flags.
    pub const fn parked_flags(&self) -> &ParkedFlags {
        &self.parked_flags
    }

    /// What the thread arms before it sleeps.
    pub const fn arms(&self) -> &Arms {
        &self.arms
    }

    /// Adds a parked flag that producers look at; it must be writable.
    pub fn add_parked_flag(&mut self, region: Arc<Region>, at: usize) {
        self.parked_flags.add(region, at);
    }

    /// Removes the parked flags of a region.
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
        // A ring that comes in between is taken back too, but its data was stored before it, and
        // the caller looks after this. One that comes later ends the next sleep.
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
mod tests {
    use super::*;

    fn sleep(parker: &mut OsParker, time: Duration) -> Duration {
        let begun = clock::now();
        parker.prepare_park();
        parker.park_until(Deadline::after(time));
        parker.cancel_park();
        clock::now() - begun
    }

    /// Timeouts rounded up to whole milliseconds never end sooner, on whatever machine.
    #[test]
    fn some_sleep_of_50_us_ends_within_a_millisecond() {
        let mut parker = OsParker::new(Duration::ZERO).unwrap();
        let limit = Deadline::after(Duration::from_secs(20));
        let mut shortest = Duration::MAX;
        // One alone may have been cut short by an interruption.
        let mut short = 0;
        while short < 5 {
            let slept = sleep(&mut parker, Duration::from_micros(50));
            short += u32::from(slept < Duration::from_millis(1));
            shortest = shortest.min(slept);
            assert!(
                !limit.passed(),
                "{short} short sleeps, the shortest {shortest:?}"
            );
        }
        assert!(shortest >= Duration::from_micros(50), "{shortest:?}");
    }

    #[test]
    fn ring_in_a_short_sleep_is_taken_back() {
        let mut parker = OsParker::new(Duration::ZERO).unwrap();
        parker.waker().wake();
        sleep(&mut parker, Duration::from_millis(1));
        let left = rustix::io::read(parker.waker(), &mut [0; 8]);
        assert_eq!(
            left,
            Err(rustix::io::Errno::AGAIN),
            "the ring is still there"
        );
    }
}
