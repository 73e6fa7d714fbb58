//! The helper thread: preallocates memory that appliers will need, before they need it.
//!
//! To make 64 MiB present takes tens of milliseconds, and ten times that on a virtual machine,
//! where the host has to find the pages. Where threads outnumber cores that time is taken from
//! working threads, so the helper works in short steps and pauses for as long in between. It runs
//! at its process's priority. At a lower one it came late where cores were scarce, and appliers met
//! 15,000 fresh pages of a growing table instead of 1,500. The helper may be late: an applier that
//! does not find what it ordered manages without it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crossbeam_channel::{Receiver, SendError, Sender, TryRecvError, bounded, select_biased};
use tidewater_runtime::clock;

use super::StoreError;
use super::memory::ServerMemory;

/// Maximum orders for memory that wait in each of the helper thread's two queues, one for each [`Urgency`].
/// With a full queue the applier makes the memory itself. Normal is one order for each table on each applier.
const ORDERS_MAX: usize = 1024;
/// Bytes made present between two readings of the clock: 30 us, or 200 us where pages are slow.
pub(super) const STEP_BYTES: usize = 64 << 10;
/// Time of work after which the helper thread sleeps for as long as it has worked.
const WORK: Duration = Duration::from_micros(200);

/// Result of an order to the helper thread: memory that the thread prepares, and frees if no applier takes
/// it.
pub(super) trait Made: Send + 'static {
    /// Frees the memory of a result that is not taken.
    fn discard(self, memory: &ServerMemory);

    /// Frees the memory of a result that came too late, on the helper thread, where it may return pages to
    /// the system.
    fn discard_late(self, memory: &ServerMemory, _: &mut Pace)
    where
        Self: Sized,
    {
        self.discard(memory);
    }
}

type Job = Box<dyn FnOnce(&mut Pace) + Send>;

/// Urgency of an order to the helper thread, which chooses its queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Urgency {
    /// Soon: without the result, an applier has to create one itself.
    Soon,
    /// Later: there is time, and there are many such orders.
    Later,
}

/// Handle on the helper thread that preallocates memory: its queues, one for each urgency. Clones share
/// them.
#[derive(Clone)]
pub struct Preallocator(Option<[Sender<Job>; 2]>);

impl std::fmt::Debug for Preallocator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Preallocator")
            .field(&self.0.is_some())
            .finish()
    }
}

impl Preallocator {
    /// Creates a handle without a helper thread: appliers create everything when they need it.
    pub const fn none() -> Self {
        Self(None)
    }

    /// Starts the helper thread, which ends when the last clone of the handle is dropped.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start() -> std::io::Result<Self> {
        let [(soon, urgent), (later, others)] = [(); 2].map(|()| bounded::<Job>(ORDERS_MAX));
        let work = move || {
            let mut pace = Pace::default();
            // Both end together, with the last Preallocator.
            while let Ok(job) = select_biased! {
                recv(urgent) -> job => job,
                recv(others) -> job => job,
            } {
                job(&mut pace);
            }
        };
        let thread = std::thread::Builder::new().name("tw-helper".into());
        thread.spawn(work)?;
        Ok(Self(Some([soon, later])))
    }

    /// Orders memory from the helper thread, which runs `make`. `None` when there is no helper, or its queue
    /// is full: the caller then makes the memory itself. Never blocks.
    pub(super) fn order<T: Made>(
        &self,
        memory: &Arc<ServerMemory>,
        urgency: Urgency,
        make: impl FnOnce(&ServerMemory, &mut Pace) -> Result<T, StoreError> + Send + 'static,
    ) -> Option<Order<T>> {
        let helper = self.0.as_ref()?;
        let jobs = &helper[urgency as usize];
        let later = helper[Urgency::Later as usize].clone();
        let (answer, coming) = bounded(1);
        let memory = Arc::clone(memory);
        let job = move |pace: &mut Pace| {
            // The applier reports a failure when it makes the thing itself.
            if let Ok(made) = make(&memory, pace) {
                let made = Some(made);
                // The applier made one itself meanwhile, or needs none.
                let preallocated = Preallocated {
                    memory,
                    made,
                    later,
                };
                if let Err(SendError(mut late)) = answer.send(preallocated)
                    && let Some(made) = late.made.take()
                {
                    made.discard_late(&late.memory, pace);
                }
            }
        };
        jobs.try_send(Box::new(job)).ok()?;
        Some(Order(coming))
    }
}

/// Time that the helper thread has worked since its last pause.
#[derive(Debug, Default)]
pub(super) struct Pace(Duration);

impl Pace {
    /// Runs one step on the calling (helper) thread and returns its result. If the thread has then worked 200 us
    /// since its last pause, sleeps for as long as it has worked.
    pub(super) fn step<T>(&mut self, step: impl FnOnce() -> T) -> T {
        let start = clock::now();
        let done = step();
        self.0 += clock::now() - start;
        if self.0 >= WORK {
            std::thread::sleep(self.0);
            self.0 = Duration::ZERO;
        }
        done
    }
}

/// Result of an order to the helper thread, until an applier takes it. If none does, dropping it frees the
/// memory.
struct Preallocated<T: Made> {
    memory: Arc<ServerMemory>,
    made: Option<T>,
    /// Queue of the helper thread for jobs that can wait.
    later: Sender<Job>,
}

impl<T: Made> Drop for Preallocated<T> {
    /// Frees a result that was not taken: the helper thread does it and may return the pages to the system. If
    /// its queue is full or it has ended, this thread only frees the memory.
    fn drop(&mut self) {
        let Some(made) = self.made.take() else {
            return;
        };
        let kept = Arc::new(Mutex::new(Some(made)));
        let (memory, late) = (Arc::clone(&self.memory), Arc::clone(&kept));
        let discard = move |pace: &mut Pace| {
            if let Some(made) = taken(&late) {
                made.discard_late(&memory, pace);
            }
        };
        // It has too much to do, or has ended.
        if self.later.try_send(Box::new(discard)).is_err()
            && let Some(made) = taken(&kept)
        {
            made.discard(&self.memory);
        }
    }
}

fn taken<T>(kept: &Mutex<Option<T>>) -> Option<T> {
    kept.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// Order to the helper thread that is under way. If it is dropped, its result is freed.
pub(super) struct Order<T: Made>(Receiver<Preallocated<T>>);

/// State of an order to the helper thread.
pub(super) enum Delivery<T> {
    /// The order is done; this is its result.
    Here(T),
    /// The order is not done yet.
    Late,
    /// The order has failed, or its result was taken before. There will be no result.
    Failed,
}

impl<T: Made> Order<T> {
    /// Whether the helper thread has answered the order. Never blocks.
    #[cfg(test)]
    pub(super) fn is_done(&self) -> bool {
        !self.0.is_empty()
    }

    /// Blocks until the order is done and returns its result; `None` if it has failed. Takes as long as the
    /// helper thread needs.
    pub(super) fn wait(self) -> Option<T> {
        self.0.recv().ok()?.made.take()
    }

    /// Returns the result of the order if it is done. Never blocks.
    pub(super) fn take(&mut self) -> Delivery<T> {
        match self.0.try_recv() {
            Ok(mut preallocated) => preallocated
                .made
                .take()
                .map_or(Delivery::Failed, Delivery::Here),
            Err(TryRecvError::Empty) => Delivery::Late,
            Err(TryRecvError::Disconnected) => Delivery::Failed,
        }
    }
}

impl<T: Made> std::fmt::Debug for Order<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Order")
    }
}

#[cfg(test)]
mod tests {
    use tidewater_protocol::ids::Incarnation;

    use super::*;

    /// Reports that it was freed.
    struct Thing(Sender<()>);

    impl Made for Thing {
        fn discard(self, _: &ServerMemory) {
            self.0.send(()).unwrap();
        }
    }

    const SOON: Duration = Duration::from_secs(10);

    fn setup() -> (Arc<ServerMemory>, Preallocator) {
        let memory = ServerMemory::new(16 << 20, Incarnation(1)).unwrap();
        (Arc::new(memory), Preallocator::start().unwrap())
    }

    #[test]
    fn what_nobody_takes_is_given_back() {
        let (memory, preallocator) = setup();
        let (back, given_back) = bounded(1);
        let thing = || {
            let back = back.clone();
            preallocator.order(&memory, Urgency::Soon, move |_, pace| {
                Ok(pace.step(|| Thing(back)))
            })
        };
        // Cancelled before it came, or after.
        drop(thing().unwrap());
        given_back.recv_timeout(SOON).unwrap();
        let order = thing().unwrap();
        while !order.is_done() {
            std::thread::yield_now();
        }
        assert!(given_back.is_empty());
        drop(order);
        given_back.recv_timeout(SOON).unwrap();
        // A taken result belongs to the caller.
        let mut order = thing().unwrap();
        let taken = loop {
            match order.take() {
                Delivery::Here(thing) => break thing,
                Delivery::Late => std::thread::yield_now(),
                Delivery::Failed => unreachable!("it was made"),
            }
        };
        drop(order);
        drop(taken);
        assert!(given_back.is_empty());
    }

    #[test]
    fn orders_are_late_fail_or_find_no_room_but_nobody_waits() {
        let (memory, preallocator) = setup();
        let (open, gate) = bounded::<()>(0);
        let busy = move |_: &ServerMemory, _: &mut Pace| -> Result<Thing, StoreError> {
            let _ = gate.recv();
            Err(StoreError::Limit {
                what: "tests",
                have: 1,
                limit: 0,
            })
        };
        let mut first = preallocator
            .order(&memory, Urgency::Soon, busy.clone())
            .unwrap();
        assert!(matches!(first.take(), Delivery::Late));
        let more = std::iter::from_fn(|| preallocator.order(&memory, Urgency::Soon, busy.clone()));
        let more: Vec<_> = more.take(2 * ORDERS_MAX).collect();
        assert!((ORDERS_MAX - 1..=ORDERS_MAX).contains(&more.len()));
        drop(open);
        while matches!(first.take(), Delivery::Late) {
            std::thread::yield_now();
        }
        assert!(matches!(first.take(), Delivery::Failed));
        let none =
            Preallocator::none().order(&memory, Urgency::Soon, |_, _| Ok(Thing(bounded(1).0)));
        assert!(none.is_none());
    }
}
