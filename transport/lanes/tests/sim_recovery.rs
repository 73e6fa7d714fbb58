//! Exactly-once delivery over lanes that break: a ring of eight slots, an acknowledgement in the mailbox,
//! and RECOVER over a queue. Also an example of an end-to-end test on the simulator.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::time::Duration;

use tidewater_lanes::fabric::*;
use tidewater_lanes::here;
use tidewater_lanes::sim::{
    Faults, LinkSpec, SimClientLane, SimParker, SimQueue, SimWaker, World, sweep,
};
use tidewater_protocol::layout::Line;
use tidewater_protocol::layout::hash::line_checksum;
use tidewater_protocol::layout::line_bytes;
use tidewater_protocol::layout::lines::CheckedU64;
use tidewater_protocol::layout::ring::RingGeometry;
use tidewater_protocol::layout::session::{INBOX_RING_AT, INBOX_TAIL_AT, inbox_bytes};
use tidewater_runtime::clock::Deadline;
use tidewater_runtime::mem::Region;
use tidewater_runtime::sync::{Arc, AtomicU64, Ordering};

const SALT: u64 = 77;
const SLOTS: u64 = 8;
const FRAMES: u64 = 60;
const WAIT: Duration = Duration::from_secs(30);

fn cell(value: u64) -> [u8; 16] {
    let CheckedU64([v, checksum]) = CheckedU64::new(value, SALT);
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&v.to_le_bytes());
    bytes[8..].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

const fn slot(seq: u64) -> usize {
    INBOX_RING_AT + (seq % SLOTS) as usize * 64
}

fn frame(seq: u64, value: u64) -> Line {
    [
        seq,
        value,
        line_checksum(SALT, 1, &[seq, value]),
        0,
        0,
        0,
        0,
        0,
    ]
}

/// The server's end: applies frames in order, each once.
struct Applier {
    world: World,
    exports: Arc<RegionTable>,
    inbox: Inbox,
    mailbox: Mailbox,
    client: SimWaker,
    parker: SimParker,
    attach: SimQueue<()>,
    attached: SimQueue<(SimClientLane, u64)>,
    port: Option<Box<dyn ServerLane>>,
    applied: u64,
    sum: Arc<AtomicU64>,
    /// Frames below the tail with wrong contents.
    wrong: Arc<AtomicU64>,
    destroys: bool,
    zombies: Vec<Box<dyn ServerLane>>,
}

impl Applier {
    fn recover(&mut self) {
        if let Some(mut port) = self.port.take() {
            if self.destroys {
                port.destroy();
            } else {
                self.zombies.push(port);
            }
        }
        // Complete frames are consumed; the client sends the rest again from there.
        self.consume();
        self.inbox.reset_tail(self.applied);
        let (lane, port) = self.world.connect(LinkSpec {
            client: "pusher",
            server: "applier",
            exports: &self.exports,
            inbox: self.inbox.clone(),
            mailbox: self.mailbox.clone(),
            client_waker: self.client.clone(),
            owner_waker: self.parker.waker(),
            // Frames of this ring carry no checksum.
            in_order: true,
        });
        self.port = Some(Box::new(port));
        self.attached.send((lane, self.applied));
    }

    fn consume(&mut self) -> bool {
        // A tail that is just being written has no matching checksum; one that went back comes from a
        // zombie.
        let tail = self.inbox.tail().unwrap_or(0);
        let fresh = tail > self.applied;
        while self.applied < tail {
            let seq = self.applied + 1;
            let line = self.inbox.window().as_read().line(slot(seq));
            if line != frame(seq, line[1]) {
                self.wrong.fetch_add(1, Ordering::Relaxed);
                return false;
            }
            self.sum.fetch_add(line[1], Ordering::Relaxed);
            self.applied = seq;
        }
        fresh
    }

    fn look(&mut self) -> bool {
        let asked = self.attach.try_recv().is_some();
        if asked {
            self.recover();
        }
        let Some(port) = &mut self.port else {
            return asked;
        };
        let moved = port.poll(&mut self.exports.view(), &self.inbox);
        let fresh = self.consume();
        if let (Some(port), true) = (&mut self.port, fresh) {
            // A broken lane loses this; recovery sends it again.
            let _ = port
                .post(0, &cell(self.applied))
                .and_then(|()| port.signal());
        }
        asked || fresh || matches!(moved, Ok(true))
    }

    fn run(mut self) {
        loop {
            if self.look() {
                continue;
            }
            self.parker.prepare_park();
            if !self.look() {
                self.parker.park_until(Deadline::after(WAIT));
            }
            self.parker.cancel_park();
        }
    }
}

/// The client's end: keeps unacknowledged frames and sends them again after a break.
struct Pusher {
    parker: SimParker,
    attach: SimQueue<()>,
    attached: SimQueue<(SimClientLane, u64)>,
    value: fn(u64) -> u64,
}

impl Pusher {
    fn run(mut self) {
        let mut acknowledged = 0;
        while acknowledged < FRAMES {
            self.attach.send(());
            let (mut lane, applied) = self
                .attached
                .recv(Deadline::after(WAIT))
                .expect("an answer to RECOVER");
            acknowledged = applied;
            let error = self.push_all(&mut lane, &mut acknowledged);
            assert!(error.is_ok() || acknowledged <= FRAMES);
        }
    }

    fn push_all(
        &mut self,
        lane: &mut SimClientLane,
        acknowledged: &mut u64,
    ) -> Result<(), LaneError> {
        let mut sent = *acknowledged;
        while *acknowledged < FRAMES {
            while sent < FRAMES && sent - *acknowledged < SLOTS {
                sent += 1;
                let to = |at: usize| RemoteAddr {
                    key: INBOX_KEY,
                    addr: at as u64,
                };
                let line = frame(sent, (self.value)(sent));
                lane.write(to(slot(sent)), &line_bytes(&line))?;
                lane.write_signal(to(INBOX_TAIL_AT), &cell(sent))?;
            }
            self.wait_for_more(lane, acknowledged)?;
        }
        Ok(())
    }

    fn wait_for_more(
        &mut self,
        lane: &mut SimClientLane,
        acknowledged: &mut u64,
    ) -> Result<(), LaneError> {
        let deadline = Deadline::after(WAIT);
        loop {
            if take_ack(lane, acknowledged)? {
                return Ok(());
            }
            assert!(
                !deadline.passed(),
                "frame {} is never acknowledged",
                *acknowledged + 1
            );
            self.parker.prepare_park();
            let more = take_ack(lane, acknowledged)?;
            if !more {
                self.parker.park_until(deadline);
            }
            self.parker.cancel_park();
            if more {
                return Ok(());
            }
        }
    }
}

fn take_ack(lane: &mut SimClientLane, acknowledged: &mut u64) -> Result<bool, LaneError> {
    lane.poll()?;
    let words = lane.mailbox().words(0, 16);
    let told = CheckedU64([words.load_acquire(0), words.load_acquire(8)]).value(SALT);
    let before = *acknowledged;
    *acknowledged = before.max(told.unwrap_or(0));
    Ok(*acknowledged > before)
}

/// Runs one world; returns its outcome and adds the wrong frames to `wrong`.
fn ledger(seed: u64, destroys: bool, wrong: &Arc<AtomicU64>) -> tidewater_lanes::sim::Outcome {
    let world = World::new(
        seed,
        Faults {
            disconnect_per_op: 0.02,
            ..Faults::hostile()
        },
    );
    let ring = RingGeometry::new(1024).unwrap();
    let region = Arc::new(Region::anonymous(inbox_bytes(1024)).unwrap());
    let inbox = Inbox::new(region, 0, ring, SALT).unwrap();
    let mail = Arc::new(Region::anonymous(4096).unwrap());
    let mailbox = Mailbox::new(Arc::clone(&mail), 0, 4096).unwrap();
    let (client, parker) = (world.parker(), world.parker());
    let attach = SimQueue::new(&world).waking(&parker);
    let attached = SimQueue::new(&world);
    let sum = Arc::new(AtomicU64::new(0));
    let value: fn(u64) -> u64 = |seq| seq * seq;
    let applier = Applier {
        world: world.clone(),
        exports: Arc::new(RegionTable::new(1)),
        inbox,
        mailbox,
        client: client.waker(),
        parker,
        attach: attach.clone(),
        attached: attached.clone(),
        port: None,
        applied: 0,
        sum: Arc::clone(&sum),
        wrong: Arc::clone(wrong),
        destroys,
        zombies: Vec::new(),
    };
    let pusher = Pusher {
        parker: client,
        attach,
        attached,
        value,
    };
    world.spawn_service("applier", move || applier.run());
    let total = Arc::clone(&sum);
    world.spawn("pusher", move || {
        pusher.run();
        let want: u64 = (1..=FRAMES).map(value).sum();
        assert_eq!(total.load(Ordering::Relaxed), want, "each frame once");
    });
    world.run()
}

#[test]
fn every_acknowledged_frame_counts_once() {
    let wrong = Arc::new(AtomicU64::new(0));
    let swept = sweep(here!(), 0..200, |seed| ledger(seed, true, &wrong));
    println!("{swept:?}");
    assert_eq!(wrong.load(Ordering::Relaxed), 0);
    assert!(swept.breaks > swept.seeds, "{swept:?}");
}

/// Without the destruction of the server lane, late packets of the old lane are placed in reused slots: the
/// adversary finds it.
#[test]
fn a_port_that_is_not_destroyed_is_noticed() {
    let noticed = (0..100).any(|seed| {
        let wrong = Arc::new(AtomicU64::new(0));
        let outcome = ledger(seed, false, &wrong);
        outcome.failure.is_some() || wrong.load(Ordering::Relaxed) > 0
    });
    assert!(noticed);
}
