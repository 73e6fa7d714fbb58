//! An applier with a hostile peer at one lane: the lane writes anything into the inbox, posts fail,
//! sessions come, recover and go. The applier and its other lane continue.

use std::sync::{Arc, Mutex};

use crossbeam_channel::{Sender, bounded};
use tidewater_engine::apply::applier::Applier;
use tidewater_engine::apply::command::{ApplierHandle, Command};
use tidewater_engine::namespace::FrameSender;
use tidewater_engine::ring_reader::{Ring, RingOwner};
use tidewater_engine::store::ServerMemory;
use tidewater_lanes::fabric::{Inbox, LaneError, RegionTableView, ServerLane, TransportKind};
use tidewater_protocol::ids::{Incarnation, SessionId, WorkerId};
use tidewater_protocol::layout::frame::FrameHeader;
use tidewater_protocol::layout::line_bytes;
use tidewater_protocol::layout::lines::StateLine;
use tidewater_protocol::layout::ring::RingGeometry;
use tidewater_protocol::layout::session::{
    INBOX_RING_AT, MAILBOX_BYTES, MAILBOX_STATE_AT, inbox_bytes,
};
use tidewater_runtime::mem::Region;

use crate::fuzzing::Random;
use crate::rig::{self, CAPACITY, Frame, WORKERS};
use crate::ring::{RING_BYTES, any_tail, write_frames};

const HOSTILE: SessionId = SessionId(0xbad);
const HONEST: SessionId = SessionId(0x900d);

/// State that the test and its lane share.
#[derive(Default)]
struct Shared {
    /// Source of the frames that the next poll writes, from the ring's last position on.
    write: Option<Random>,
    /// The status record posted last.
    state: StateLine,
    /// Number of posts that still succeed.
    posts_left: usize,
    posts: usize,
}

struct HostilePort {
    shared: Arc<Mutex<Shared>>,
    corpus: Arc<Vec<Frame>>,
    session: SessionId,
}

fn broken(op: &'static str) -> LaneError {
    LaneError::Broken {
        transport: TransportKind::Sim,
        peer: "fuzz".into(),
        op,
        why: "the fuzzer says so".into(),
    }
}

impl ServerLane for HostilePort {
    fn peer(&self) -> &str {
        "fuzz"
    }

    fn poll(&mut self, _: &mut RegionTableView, inbox: &Inbox) -> Result<bool, LaneError> {
        let mut shared = self.shared.lock().unwrap();
        let Some(mut random) = shared.write.take() else {
            return Ok(false);
        };
        let at = (
            self.session,
            shared.state.applied_seq + 1,
            shared.state.head_bytes,
        );
        let end = write_frames(inbox, &self.corpus, &mut random, at);
        inbox.reset_tail(any_tail(end, &mut random));
        if random.under(50) == 0 {
            return Err(broken("poll"));
        }
        Ok(true)
    }

    fn post(&mut self, at: usize, bytes: &[u8]) -> Result<(), LaneError> {
        assert!(
            at + bytes.len() <= MAILBOX_BYTES,
            "a post outside of the mailbox"
        );
        let mut shared = self.shared.lock().unwrap();
        shared.posts += 1;
        if shared.posts_left == 0 {
            return Err(broken("post"));
        }
        shared.posts_left -= 1;
        if at == MAILBOX_STATE_AT {
            let raw: &[u8; 64] = bytes.try_into().unwrap();
            let line = tidewater_protocol::layout::line_from_bytes(raw);
            shared.state = StateLine::from_line(&line, self.session.0).unwrap();
        }
        Ok(())
    }

    fn signal(&mut self) -> Result<(), LaneError> {
        Ok(())
    }

    fn poll_hint(&self) -> Option<std::time::Duration> {
        None
    }

    fn destroy(&mut self) {}
}

struct Fuzz {
    memory: Arc<ServerMemory>,
    applier: Applier,
    handle: ApplierHandle,
    corpus: Arc<Vec<Frame>>,
    shared: Arc<Mutex<Shared>>,
    honest: Arc<Mutex<Shared>>,
    inbox: Inbox,
    sent: u64,
    recoveries: u64,
}

fn inbox(session: SessionId) -> Inbox {
    let region = Arc::new(Region::anonymous(inbox_bytes(RING_BYTES)).unwrap());
    Inbox::new(region, 0, RingGeometry::new(RING_BYTES).unwrap(), session.0).unwrap()
}

impl Fuzz {
    fn new() -> Self {
        let memory = Arc::new(ServerMemory::new(CAPACITY, Incarnation(3)).unwrap());
        let (handle, commands) = ApplierHandle::new(None);
        let ranks = (0..WORKERS).map(WorkerId);
        let mut applier = Applier::new(Arc::clone(&memory), 0, ranks, commands).unwrap();
        rig::add_tables(&memory, applier.engine());
        let mut fuzz = Self {
            memory,
            applier,
            handle,
            corpus: Arc::new(rig::corpus()),
            shared: Arc::default(),
            honest: Arc::default(),
            inbox: inbox(HONEST),
            sent: 0,
            recoveries: 0,
        };
        fuzz.join(HOSTILE, inbox(HOSTILE), WorkerId(0));
        fuzz.join(HONEST, fuzz.inbox.clone(), WorkerId(1));
        fuzz.attach(HOSTILE);
        fuzz.attach(HONEST);
        fuzz
    }

    /// Sends a command, steps the applier and returns the answer.
    fn ask<T>(&mut self, make: impl FnOnce(Sender<T>) -> Command) -> T {
        let (tx, rx) = bounded(1);
        self.handle.send(make(tx)).unwrap();
        self.applier.step();
        rx.try_recv().unwrap()
    }

    fn join(&mut self, session: SessionId, inbox: Inbox, rank: WorkerId) {
        let owner = RingOwner {
            session,
            sender: FrameSender::first(rank),
            check_frames: false,
        };
        let ring = Ring::new(owner, inbox, &self.memory).unwrap();
        self.ask(|tx| Command::AddRing(Box::new(ring), tx));
    }

    fn attach(&mut self, session: SessionId) {
        let shared = if session == HONEST {
            &self.honest
        } else {
            &self.shared
        };
        let shared = Arc::clone(shared);
        *shared.lock().unwrap() = Shared {
            posts_left: usize::MAX,
            ..Shared::default()
        };
        let corpus = Arc::clone(&self.corpus);
        let port = Box::new(HostilePort {
            shared,
            corpus,
            session,
        });
        assert!(self.ask(|tx| Command::AttachPort(session, port, tx)));
    }

    fn one(&mut self, seed: u64, exec: u64) {
        let mut random = Random::of(seed, "lanes", exec);
        let posts_before = {
            let mut shared = self.shared.lock().unwrap();
            shared.posts_left = if random.under(8) == 0 {
                random.under(3)
            } else {
                usize::MAX
            };
            shared.write = Some(Random::of(seed, "writes", exec));
            shared.posts
        };
        self.applier.step();
        self.applier.step();
        let shared = self.shared.lock().unwrap();
        // A frame makes a reject or a reply. A step makes a status record, and a clock record for
        // each domain.
        assert!(
            shared.posts - posts_before <= 4 * RING_BYTES / 64,
            "{} posts",
            shared.posts
        );
        let gone = shared.write.is_some() || shared.posts_left == 0;
        drop(shared);
        assert!(
            !self.applier.is_stopped(),
            "{:?}",
            self.applier.engine().failed
        );
        if gone || random.under(64) == 0 {
            self.recoveries += 1;
            if random.under(2) == 0 {
                self.ask(|tx| Command::recover(HOSTILE, tx)).unwrap();
            } else {
                self.ask(|tx| Command::DropRing(HOSTILE, tx));
                self.join(HOSTILE, inbox(HOSTILE), WorkerId(0));
            }
            self.attach(HOSTILE);
        }
        if exec.is_multiple_of(16) {
            self.honest_push();
        }
    }

    /// Pushes on the other lane: its frame is applied at once.
    fn honest_push(&mut self) {
        self.sent += 1;
        let frame = &self.corpus[0];
        let header = FrameHeader {
            seq: self.sent,
            session: HONEST.0,
            ..frame.header
        };
        let (window, ring) = (self.inbox.window(), self.inbox.ring());
        let at = self.honest.lock().unwrap().state.head_bytes;
        let place = ring.place(at, at, header.ring_bytes()).unwrap();
        if place.pad > 0 {
            let kind = tidewater_protocol::layout::frame::FrameKind::Pad;
            let pad = FrameHeader {
                kind,
                payload_len: 0,
                ..header
            };
            let to = INBOX_RING_AT + ring.offset(at) as usize;
            window.copy_in(to, &line_bytes(&pad.to_line()));
        }
        let to = INBOX_RING_AT + ring.offset(place.at) as usize;
        window.copy_in(to, &line_bytes(&header.to_line()));
        window.copy_in(to + 64, &frame.payload);
        self.inbox.reset_tail(place.at + header.ring_bytes());
        self.applier.step();
        let state = self.honest.lock().unwrap().state;
        assert_eq!(
            (state.applied_seq, state.rejected),
            (self.sent, 0),
            "the lane beside is disturbed"
        );
    }
}

#[test]
fn a_hostile_lane_disturbs_no_other() {
    let (mut recoveries, mut sent) = (0, 0);
    let execs = crate::execs() / 10;
    crate::run("lanes", execs, Fuzz::new, |fuzz, seed, exec| {
        let before = fuzz.sent;
        fuzz.one(seed, exec);
        recoveries += std::mem::take(&mut fuzz.recoveries);
        sent += fuzz.sent - before;
    });
    println!("lanes: {recoveries} recoveries, {sent} pushes on the lane beside");
    assert!(recoveries > execs / 50 && sent > execs / 20);
}
