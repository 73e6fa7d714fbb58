//! Connects verbs lanes on threads apart from the control thread.
//!
//! To connect a queue pair, the kernel resolves the route to the peer's address. If no host answers
//! there, this takes a second. A wrong address must delay only the client that sent it: each lane
//! is made on a thread of its own, at most [`VERBS_CONNECTS_MAX`] at once. That thread wakes the
//! control thread, which then does what touches sessions.

use std::collections::VecDeque;

use crossbeam_channel::{Receiver, Sender, unbounded};
use tidewater_lanes::fabric::ServerLane;
use tidewater_lanes::wake::Waker;
use tidewater_protocol::ids::{ApplierId, SessionId};
use tidewater_protocol::limits::VERBS_CONNECTS_MAX;
use tidewater_protocol::wire::control::VerbsConnected;
use tidewater_protocol::wire::refusal::{Refusal, RefusalCode};

use super::conn::ConnId;

/// The server's end of a lane, and the answer for its client.
pub(super) type End = (Box<dyn ServerLane>, VerbsConnected);

/// Makes a lane's end; may take a second.
pub(super) type Make = Box<dyn FnOnce() -> Result<End, Refusal> + Send>;

/// The request and the lane that it asked for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked {
    pub(super) conn: ConnId,
    /// The request's number, which its answer repeats.
    pub(super) request: u64,
    pub(super) session: SessionId,
    pub(super) applier: ApplierId,
    /// Nonce with which the lane was granted.
    pub(super) nonce: u64,
}

/// All lanes that are being made.
pub(super) struct Connects {
    made: (Sender<Made>, Receiver<Made>),
    waker: Waker,
    running: usize,
    /// At most one for each lane of a session: a second request is refused until the first is
    /// answered.
    waiting: VecDeque<(Asked, Make)>,
}

/// A request with the lane's end, or the reason why there is none.
type Made = (Asked, Result<End, Refusal>);

impl std::fmt::Debug for Connects {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connects")
            .field("running", &self.running)
            .field("waiting", &self.waiting.len())
            .finish_non_exhaustive()
    }
}

impl Connects {
    /// No lanes yet. `waker` is woken whenever one is done.
    pub(super) fn new(waker: Waker) -> Self {
        Self {
            made: unbounded(),
            waker,
            running: 0,
            waiting: VecDeque::new(),
        }
    }

    /// Queues `make` and starts it when fewer than [`VERBS_CONNECTS_MAX`] run. Never blocks.
    pub(super) fn start(&mut self, asked: Asked, make: Make) {
        self.waiting.push_back((asked, make));
        self.go();
    }

    /// Removes and returns a request that is done, if any.
    pub(super) fn take(&mut self) -> Option<Made> {
        let made = self.made.1.try_recv().ok()?;
        self.running -= 1;
        self.go();
        Some(made)
    }

    fn go(&mut self) {
        while self.running < VERBS_CONNECTS_MAX
            && let Some((asked, make)) = self.waiting.pop_front()
        {
            self.running += 1;
            let (tx, waker) = (self.made.0.clone(), self.waker.clone());
            let run = move || {
                // The receiver is gone: the server ends, and the lane's end is dropped.
                let _ = tx.send((asked, make()));
                waker.wake();
            };
            let thread = std::thread::Builder::new().name("tw-connect".into());
            if let Err(e) = thread.spawn(run) {
                let refusal = Refusal::new(RefusalCode::Io, [0; 4]).with_text(e);
                let _ = self.made.0.send((asked, Err(refusal)));
                self.waker.wake();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    const SOON: Duration = Duration::from_secs(20);

    /// Slow connects do not delay the others, and at most the allowed number run at once.
    #[test]
    fn those_that_take_long_hold_up_nobody() {
        let mut connects = Connects::new(Waker::new().unwrap());
        let asked = |request| Asked {
            conn: 1,
            request,
            session: SessionId(1),
            applier: ApplierId(0),
            nonce: 1,
        };
        let no = || Refusal::new(RefusalCode::BadRequest, [0; 4]);
        let (begun_tx, begun) = mpsc::channel();
        let most = VERBS_CONNECTS_MAX as u64;
        let mut gates = Vec::new();
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
            connects.start(asked(request), Box::new(make));
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
        assert!(connects.take().is_none() && connects.running == 0);
    }
}
