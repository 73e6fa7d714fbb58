//! Connects lanes over RDMA verbs on threads other than the control thread.
//!
//! To connect a queue pair, the kernel resolves the route to the peer's address. If no host answers
//! there, this takes a second. A wrong address must delay only the client that sent it: each request
//! is served on a thread of its own, at most [`VERBS_CONNECTS_MAX`] at once. That thread wakes the
//! control thread, which then does what touches sessions. The order of requests, and which of them are
//! void, is `tidewater_control::set_up`'s.

use crossbeam_channel::{Receiver, Sender, unbounded};
use tidewater_control::set_up::{Lane, LaneQueue, Next, Ticket, Turn};
use tidewater_lanes::fabric::ServerLane;
use tidewater_lanes::wake::Waker;
use tidewater_protocol::ids::SessionId;
use tidewater_protocol::limits::VERBS_CONNECTS_MAX;
use tidewater_protocol::wire::control::{VerbsConnect, VerbsConnected};
use tidewater_protocol::wire::refusal::{Refusal, RefusalCode};
use tidewater_runtime::clock::Deadline;

use super::conn::ConnId;

/// The server's end of a lane over RDMA verbs (its queue pairs), and the answer by which the client connects its own
/// end.
pub(super) type End = (Box<dyn ServerLane>, VerbsConnected);

/// Closure that makes the server's ends of all lanes of a request, or none if one fails. It may block for a second,
/// so it runs on a thread of its own.
pub(super) type Make = Box<dyn FnOnce() -> Result<Vec<End>, Refusal> + Send>;

/// A client's request for verbs lanes.
#[derive(Debug, Clone)]
pub(super) struct Asked {
    pub(super) conn: ConnId,
    /// The client's number for the request, which the answer repeats.
    pub(super) request: u64,
    pub(super) session: SessionId,
    pub(super) lanes: Vec<Lane>,
    /// Whether the client asked for one lane, so that the answer is about one.
    pub(super) single: bool,
}

/// Clients' requests to connect lanes over RDMA verbs that are not answered: waiting to run, or running on a thread.
pub(super) struct Connects {
    made: (Sender<Made>, Receiver<Made>),
    waker: Waker,
    queue: LaneQueue<Asked, Vec<VerbsConnect>>,
}

/// A finished request: the ends of its lanes, or the refusal.
type Made = (Ticket, Asked, Result<Vec<End>, Refusal>);

impl std::fmt::Debug for Connects {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connects")
            .field("waiting_and_running", &self.queue.len())
            .finish_non_exhaustive()
    }
}

impl Connects {
    /// Makes an empty set. `waker` wakes the control thread whenever a request is finished.
    pub(super) fn new(waker: Waker) -> Self {
        Self {
            made: unbounded(),
            waker,
            queue: LaneQueue::new(VERBS_CONNECTS_MAX),
        }
    }

    /// Queues a client's request for verbs lanes with its offers (its ends of the queue pairs). [`Self::next`]
    /// returns the request when it can run.
    pub(super) fn push(&mut self, asked: Asked, offers: Vec<VerbsConnect>) {
        let lanes = asked.lanes.len();
        self.queue.push(asked, lanes, offers);
    }

    /// Notes that server memory was registered with a device (a precondition of lanes), so that `Self::next` checks
    /// waiting requests again.
    pub(super) const fn recheck(&mut self) {
        self.queue.recheck();
    }

    /// Removes and returns a finished request with its lanes or refusal; `None` if none is finished.
    pub(super) fn take(&mut self) -> Option<(Asked, Result<Vec<End>, Refusal>)> {
        let (ticket, asked, made) = self.made.1.try_recv().ok()?;
        self.queue.done(ticket);
        Some((asked, made))
    }

    /// Removes and returns the next request that may run now or is void; `None` if there is none. `turn` decides
    /// about a request: now, later, or void, as when its client is gone. The caller passes each one that may run to
    /// [`Self::make`] and refuses void ones.
    pub(super) fn next(
        &mut self,
        turn: impl FnMut(&Asked) -> Turn,
    ) -> Option<Next<Asked, Vec<VerbsConnect>>> {
        self.queue.next(turn)
    }

    /// Makes the lanes of a request by running `make` on a new thread. Does not block; [`Self::take`] returns the
    /// result later. That is at once if `make` is a refusal.
    pub(super) fn make(&self, ticket: Ticket, asked: Asked, make: Result<Make, Refusal>) {
        match make {
            Ok(make) => self.spawn(ticket, asked, make),
            Err(no) => self.made_none(ticket, asked, no),
        }
    }

    /// Time at which `Self::news` must next inform waiting clients of their place in the queue; `None` if none
    /// waits.
    pub(super) const fn news_at(&self) -> Option<Deadline> {
        self.queue.news_at()
    }

    /// Waiting requests of which the clients must be informed now, each with the number of lanes before it in the
    /// queue. The caller sends the news.
    pub(super) fn news(&mut self) -> Vec<(Asked, u32)> {
        self.queue.news()
    }

    fn spawn(&self, ticket: Ticket, asked: Asked, make: Make) {
        let (tx, waker) = (self.made.0.clone(), self.waker.clone());
        let named = asked.clone();
        let run = move || {
            // The receiver is gone: the server ends, and the lanes' ends are dropped.
            let _ = tx.send((ticket, asked, make()));
            waker.wake();
        };
        let thread = std::thread::Builder::new().name("tw-connect".into());
        if let Err(e) = thread.spawn(run) {
            let refusal = Refusal::new(RefusalCode::Io, [0; 4]).with_text(e);
            self.made_none(ticket, named, refusal);
        }
    }

    fn made_none(&self, ticket: Ticket, asked: Asked, why: Refusal) {
        // This end holds the receiver: the channel is open.
        let _ = self.made.0.send((ticket, asked, Err(why)));
        self.waker.wake();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::mpsc;
    use std::time::Duration;

    use tidewater_protocol::ids::ApplierId;

    use super::*;

    const SOON: Duration = Duration::from_secs(20);

    fn asked(request: u64) -> Asked {
        Asked {
            conn: 1,
            request,
            session: SessionId(1),
            lanes: vec![Lane {
                applier: ApplierId(0),
                nonce: 1,
            }],
            single: true,
        }
    }

    /// Starts all requests that can be started, each with its closure.
    fn start(connects: &mut Connects, makes: &mut HashMap<u64, Make>) {
        while let Some(next) = connects.next(|_| Turn::Now) {
            match next {
                Next::Make(ticket, asked, _) => {
                    let make = makes.remove(&asked.request).unwrap();
                    connects.make(ticket, asked, Ok(make));
                }
                Next::Void(_) => panic!("no request is void"),
            }
        }
    }

    /// Slow connects do not delay the others, and at most the allowed number run at once.
    #[test]
    fn those_that_take_long_hold_up_nobody() {
        let mut connects = Connects::new(Waker::new().unwrap());
        let no = || Refusal::new(RefusalCode::BadRequest, [0; 4]);
        let (begun_tx, begun) = mpsc::channel();
        let most = VERBS_CONNECTS_MAX as u64;
        let mut gates = Vec::new();
        let mut makes = HashMap::<u64, Make>::new();
        // Take all but one slot; then queue two for it.
        for request in 0..=most {
            let (gate, closed) = mpsc::channel::<()>();
            let begun = begun_tx.clone();
            let make = move || {
                begun.send(request).unwrap();
                if request < most - 1 {
                    let _ = closed.recv();
                }
                Err(no())
            };
            makes.insert(request, Box::new(make) as Make);
            connects.push(asked(request), Vec::new());
            start(&mut connects, &mut makes);
            gates.push(gate);
        }
        let mut seen: Vec<u64> = (0..most)
            .map(|_| begun.recv_timeout(SOON).unwrap())
            .collect();
        seen.sort_unstable();
        assert!(
            seen.into_iter().eq(0..most),
            "the last one has no place yet"
        );
        let mut done = Vec::new();
        let mut take = |connects: &mut Connects, until: usize, begun: &mpsc::Receiver<u64>| {
            while done.len() < until {
                match connects.take() {
                    Some((asked, result)) => {
                        assert!(result.is_err());
                        done.push(asked.request);
                    }
                    None => std::thread::yield_now(),
                }
                start(connects, &mut makes);
            }
            let _ = begun.try_recv();
            done.clone()
        };
        assert_eq!(take(&mut connects, 2, &begun), [most - 1, most]);
        drop(gates);
        assert_eq!(
            take(&mut connects, most as usize + 1, &begun).len(),
            most as usize + 1
        );
        assert!(connects.take().is_none() && connects.queue.len() == (0, 0));
    }
}
