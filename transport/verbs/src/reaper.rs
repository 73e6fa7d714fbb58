//! A thread that destroys the queue pairs of ended lanes.
//!
//! Destroying the objects of a lane takes 8 to 12 commands of the device, some milliseconds. An applier
//! that did it would stop all its other lanes for so long, times the lanes of a host that died. It only
//! puts the pair that pushes into the error state; the rest is done here.

use std::convert::Infallible;
use std::sync::mpsc::{Receiver, Sender, channel};

/// Something to drop, and a sender: its own end says that the object is dropped.
type Ended = (Box<dyn Send>, Sender<Infallible>);

/// Handle of a reaper. Its thread ends when the last handle is gone and everything is dropped.
#[derive(Debug, Clone)]
pub(super) struct Reaper {
    /// `None` where no thread could be started: the caller drops.
    ended: Option<Sender<Ended>>,
}

impl Reaper {
    /// Starts the thread. Without one (the limit of processes is reached) ended lanes are destroyed by their
    /// caller.
    pub(super) fn new() -> Self {
        let (tx, rx) = channel::<Ended>();
        let run = move || {
            for (object, done) in rx {
                drop(object);
                // After the object: its end is what the receiver waits for.
                drop(done);
            }
        };
        let spawned = std::thread::Builder::new()
            .name("tw-reaper".into())
            .spawn(run);
        if let Err(error) = &spawned {
            tracing::warn!(%error, "no thread destroys ended lanes: appliers do");
        }
        Self {
            ended: spawned.is_ok().then_some(tx),
        }
    }

    /// Drops `object` on the reaper's thread. The channel returned is closed when it is gone.
    pub(super) fn reap(&self, object: Box<dyn Send>) -> Receiver<Infallible> {
        let (done, rx) = channel();
        match &self.ended {
            // A thread that is gone gives it back in the error, which drops it here.
            Some(ended) => drop(ended.send((object, done))),
            None => drop(object),
        }
        rx
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::TryRecvError;
    use std::thread::{self, ThreadId};

    use super::*;

    /// Reports the thread that drops it, when its gate opens.
    struct Object(Receiver<()>, Sender<ThreadId>);

    impl Drop for Object {
        fn drop(&mut self) {
            // Closed by the test, in every case.
            let _ = self.0.recv();
            self.1.send(thread::current().id()).unwrap();
        }
    }

    #[test]
    fn objects_are_dropped_elsewhere_and_reported() {
        let reaper = Reaper::new();
        let (gate, closed) = channel();
        let (dropped, by) = channel();
        let done = reaper.reap(Box::new(Object(closed, dropped)));
        let after = reaper.reap(Box::new(()));
        assert_eq!(
            done.try_recv(),
            Err(TryRecvError::Empty),
            "it is not dropped yet"
        );
        assert_eq!(
            after.try_recv(),
            Err(TryRecvError::Empty),
            "one after the other"
        );
        drop((gate, reaper));
        assert!(done.recv().is_err() && after.recv().is_err());
        assert_ne!(by.recv().unwrap(), thread::current().id());
    }
}
