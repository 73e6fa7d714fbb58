//! Wake-up of a thread by its completion queues.
//!
//! A thread has one completion channel, with its descriptor in the thread's `Reactor`. Every queue of
//! its lanes raises its events there. A queue raises one event for each time it is armed. So the thread
//! arms before it sleeps, polls once more, and sleeps (see `wait`):
//!
//! - *The thread's half*: `arm` takes all events, notes which queues they disarmed, and arms every
//!   queue that is not armed. Only then the caller polls again. An armed queue stays armed, which makes
//!   an idle wake-up cost as much as there were events, not queues.
//! - *The device's half*: a completion that comes into an armed queue raises its event. The poll after
//!   the arming finds earlier completions; later ones wake the thread.
//!
//! A call that waits on one lane arms that lane's queues only, so completions of other lanes disturb it
//! once at most. Before the thread's next sleep it arms those again, and polls.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

use super::error::VerbsError;
use super::open_port::OpenPort;
use super::queue::{Completion, CompletionChannel, CompletionQueue};
use tidewater_lanes::fabric::Parker;
use tidewater_lanes::wake::{Arm, Arms, Reactor};
use tidewater_protocol::limits::{VERBS_PROBE_EVERY, VERBS_SPIN_MAX};
use tidewater_runtime::clock::{self, Deadline};
use tidewater_runtime::sync::{Arc, AtomicBool, Ordering};

/// The completion channel of one thread, and the queues that wake through it.
///
/// # Thread safety
/// Its thread arms and sleeps; other threads only open and close lanes for it.
#[derive(Debug)]
pub struct Notifier {
    open_port: Arc<OpenPort>,
    channel: Arc<CompletionChannel>,
    /// Whether its thread never sleeps.
    awake: bool,
    /// Completion vector of its queues.
    vector: usize,
    sources: Mutex<Sources>,
}

/// The queues of a notifier.
#[derive(Debug, Default)]
struct Sources {
    /// By token; the next queue reuses the slot of a closed one.
    list: Vec<Option<Arc<Source>>>,
    /// Tokens of queues that are being created.
    coming: Vec<usize>,
}

impl Sources {
    /// Reserves the lowest free token.
    fn reserve(&mut self) -> usize {
        let free = |at: &usize| self.list[*at].is_none() && !self.coming.contains(at);
        let token = (0..self.list.len()).find(free).unwrap_or(self.list.len());
        if token == self.list.len() {
            self.list.push(None);
        }
        self.coming.push(token);
        token
    }

    /// Fills a reserved token, or frees it.
    fn fill(&mut self, token: usize, source: Option<Arc<Source>>) {
        self.coming.retain(|&coming| coming != token);
        self.list[token] = source;
    }
}

/// One queue as its notifier sees it.
#[derive(Debug)]
struct Source {
    queue: Arc<CompletionQueue>,
    armed: AtomicBool,
    /// Whether its completions end the thread's sleep.
    wakes: AtomicBool,
}

/// A completion queue of one lane. Closing it removes it from its notifier.
#[derive(Debug)]
pub(super) struct Queue {
    notifier: Arc<Notifier>,
    source: Arc<Source>,
}

impl Notifier {
    /// Returns the channel of the thread that sleeps on `watch` and arms `arms`: the thread's existing
    /// one for this port, or a new one, which it keeps.
    ///
    /// # Errors
    /// [`VerbsError::Call`] when there are no descriptors left.
    pub fn new(
        open_port: &Arc<OpenPort>,
        watch: &Reactor,
        arms: &Arms,
    ) -> Result<Arc<Self>, VerbsError> {
        Self::with_vector(open_port, watch, arms, 0)
    }

    /// As [`Self::new`]; the queues of a new channel use completion vector `vector`, modulo those of the
    /// device. Threads with different numbers spread the device's interrupts over processors.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with_vector(
        open_port: &Arc<OpenPort>,
        watch: &Reactor,
        arms: &Arms,
        vector: usize,
    ) -> Result<Arc<Self>, VerbsError> {
        if let Some(shared) = arms.find(|n: &Self| Arc::ptr_eq(&n.open_port, open_port)) {
            return Ok(shared);
        }
        // Those of failed devices would keep them open.
        while let Some(failed) = arms.find(|n: &Self| n.open_port.device().has_failed()) {
            arms.remove(&(failed as Arc<dyn Arm>));
        }
        let device = open_port.device();
        let channel = CompletionChannel::new(device)?;
        watch.add(&*channel, false).map_err(|e| {
            let errno = rustix::io::Errno::from_io_error(&e).unwrap_or(rustix::io::Errno::IO);
            device.failed("epoll_ctl of a completion channel", errno)
        })?;
        let notifier = Arc::new(Self {
            open_port: Arc::clone(open_port),
            channel,
            awake: watch.is_awake(),
            vector,
            sources: Mutex::default(),
        });
        arms.add(Arc::clone(&notifier) as Arc<dyn Arm>);
        Ok(notifier)
    }

    /// Returns the port of its queues.
    pub const fn open_port(&self) -> &Arc<OpenPort> {
        &self.open_port
    }

    /// Whether its thread never sleeps: memory that it polls needs no completion.
    pub const fn is_awake(&self) -> bool {
        self.awake
    }

    /// Creates a queue that holds `capacity` completions; with `wakes` it ends the thread's sleep. The
    /// thread may arm its other queues meanwhile: the lock is not held while the device works.
    pub(super) fn queue(
        self: &Arc<Self>,
        capacity: usize,
        wakes: bool,
    ) -> Result<Queue, VerbsError> {
        let token = self.sources().reserve();
        let (device, channel) = (self.open_port.device(), Some((&self.channel, token)));
        let queue = CompletionQueue::with_vector(device, capacity, channel, self.vector);
        let source = queue.map(|queue| {
            Arc::new(Source {
                queue,
                armed: AtomicBool::new(false),
                wakes: AtomicBool::new(wakes),
            })
        });
        self.sources().fill(token, source.as_ref().ok().cloned());
        Ok(Queue {
            notifier: Arc::clone(self),
            source: source?,
        })
    }

    /// Notes which queues are no longer armed. An event of a queue closed since may name its token's
    /// new queue, which is then armed once too often.
    fn take_events(&self, sources: &[Option<Arc<Source>>]) {
        while let Ok(Some(token)) = self.channel.take_event() {
            if let Some(Some(source)) = sources.get(token) {
                source.armed.store(false, Ordering::Relaxed);
            }
        }
    }

    /// Locked before a system call; other threads lock it only while a lane is opened or closed.
    fn sources(&self) -> MutexGuard<'_, Sources> {
        self.sources.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Arm for Notifier {
    fn arm(&self) {
        let sources = self.sources();
        self.take_events(&sources.list);
        for source in sources.list.iter().flatten() {
            if source.wakes.load(Ordering::Relaxed) {
                source.arm();
            }
        }
    }
}

impl Source {
    /// A queue that cannot be armed is of a device that is gone: the poll that follows reports it.
    fn arm(&self) {
        if !self.armed.load(Ordering::Relaxed) {
            let armed = self.queue.arm().is_ok();
            self.armed.store(armed, Ordering::Relaxed);
        }
    }
}

impl Queue {
    /// Returns the queue, for queue pairs.
    pub(super) fn raw(&self) -> &Arc<CompletionQueue> {
        &self.source.queue
    }

    /// Polls completions; returns how many.
    #[inline]
    pub(super) fn poll(&self, into: &mut [Completion]) -> Result<usize, VerbsError> {
        self.source.queue.poll(into)
    }

    /// Sets whether it ends the thread's sleep, from the next sleep on.
    pub(super) fn set_wakes(&self, wakes: bool) {
        self.source.wakes.store(wakes, Ordering::Relaxed);
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        let mut sources = self.notifier.sources();
        let ours =
            |s: &Option<Arc<Source>>| s.as_ref().is_some_and(|s| Arc::ptr_eq(s, &self.source));
        if let Some(place) = sources.list.iter_mut().find(|s| ours(s)) {
            *place = None;
        }
    }
}

/// How a call waits for its own lane, with `wait::wait_until`.
#[derive(Debug)]
pub(super) struct Waiter {
    notifier: Arc<Notifier>,
    arrivals: Arc<Source>,
    sends: Arc<Source>,
    /// Whether the awaited event may come in the queue of sends. Otherwise a completion there, one per
    /// push, would only wake once too often.
    pub(super) for_sends: bool,
    /// Time to poll before sleeping; zero where polling is not allowed.
    spin: Duration,
    usual_spin: Duration,
}

impl Waiter {
    /// Waits on the two queues of a lane.
    pub(super) fn new(arrivals: &Queue, sends: &Queue, spin: Duration) -> Self {
        Self {
            notifier: Arc::clone(&arrivals.notifier),
            arrivals: Arc::clone(&arrivals.source),
            sends: Arc::clone(&sends.source),
            for_sends: false,
            spin,
            usual_spin: spin,
        }
    }
}

impl Parker for Waiter {
    fn prepare_park(&mut self) {
        let sources = self.notifier.sources();
        self.notifier.take_events(&sources.list);
        self.arrivals.arm();
        if self.for_sends {
            self.sends.arm();
        }
    }

    /// Extends the spin after a sleep that was shorter than a spin could have been: round trips of this
    /// device take that long. The sleep ends when the next probe of the peer is due.
    fn park_until(&mut self, deadline: Deadline) {
        let began = clock::now();
        let left = deadline.left().min(VERBS_PROBE_EVERY);
        let timeout = Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: i64::from(left.subsec_nanos()),
        };
        let mut fds = [PollFd::new(&*self.notifier.channel, PollFlags::IN)];
        // An interrupted or failed wait is a spurious wake-up: the caller polls again anyway.
        let _ = poll(&mut fds, Some(&timeout));
        let long = clock::now().duration_since(began) >= VERBS_SPIN_MAX;
        self.spin = if long || self.usual_spin.is_zero() {
            self.usual_spin
        } else {
            VERBS_SPIN_MAX
        };
    }

    /// An armed queue stays armed: at most one event more.
    fn cancel_park(&mut self) {}

    fn spin(&self) -> Duration {
        self.spin
    }
}
