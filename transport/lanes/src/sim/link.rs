//! One link: packets in flight between the two ends of a lane, and the ways in which it breaks.

use std::collections::VecDeque;
use std::ops::Range;

use super::core::{Core, ParkerId, TaskId};
use super::read::{Batch, Read};
use super::world::LinkSpec;
use crate::fabric::{Inbox, LaneError, Mailbox, ReadBatch, RemoteAddr, TransportKind};
use crate::region_table::RegionTableView;

/// Index of a simulated link (the network path of one lane) in its world. Tests name by it the link to
/// cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkId(pub(super) usize);

/// Event of the simulated network that takes place at a point in virtual time, when the `Core` reaches
/// it.
#[derive(Debug, Clone, Copy)]
pub(super) enum Event {
    /// A part of a post is placed: of the oldest, or of a WRITE that passes it.
    Land(LinkId, Way),
    /// A part of the read with this id is sampled.
    Sample(LinkId, u64),
    /// The client learns that the read with this id is complete.
    Complete(LinkId, u64),
    /// The client learns the result of an atomic: the value of the word before it.
    Answer(LinkId, u64),
    /// The end that the direction leads to learns that the link is broken.
    Learn(LinkId, Way),
    /// A queue has a value for the task that sleeps there.
    Wake(ParkerId),
}

/// Direction of packets on a simulated link. It also names the end that they lead to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    ToServer,
    ToClient,
}

/// Posts (writes, atomics, signals) of one end of a link that are not placed yet, in the order in which
/// they were posted (F04, F05, F15).
#[derive(Debug, Default)]
pub(super) struct Stream {
    /// Posts that the sender still holds back. A flush or a signal moves them to `flying`.
    pub(super) held: VecDeque<Post>,
    /// Posts in flight: sent, and not completely placed.
    pub(super) flying: VecDeque<Post>,
    pub(super) scheduled: bool,
    /// `None` before the link breaks. Afterwards the number of placements that are due, counted down: each but the last
    /// places one more part, as a zombie; the last one drops the posts in flight.
    pub(super) zombies: Option<u64>,
}

#[derive(Debug)]
pub(super) enum Action {
    /// A write into the inbox or mailbox; with `signal` it wakes the applier once all of it is placed.
    Write {
        bytes: Vec<u8>,
        signal: bool,
    },
    Add(u64),
    CompareSwap(u64, u64),
    Signal,
}

#[derive(Debug)]
pub(super) struct Post {
    pub(super) to: RemoteAddr,
    pub(super) action: Action,
    /// Virtual time in nanoseconds before which a distant network does not place the post; 0 without a
    /// distance.
    pub(super) due: u64,
    /// Indices of the 64-bit words not placed yet; `None` before the access was checked.
    pub(super) words_left: Option<Vec<u32>>,
}

impl Post {
    /// Returns the range of byte addresses that a WRITE places, rounded up to whole words; `None` for a
    /// post that places no byte.
    fn range(&self) -> Option<Range<u64>> {
        match &self.action {
            Action::Write { bytes, .. } if !bytes.is_empty() => {
                // Whole words: the bytes after the end of the last one are unspecified.
                let len = bytes.len().next_multiple_of(8) as u64;
                Some(self.to.addr..self.to.addr.saturating_add(len))
            }
            _ => None,
        }
    }

    fn overlaps(&self, other: &Self) -> bool {
        match (self.range(), other.range()) {
            (Some(a), Some(b)) => self.to.key == other.to.key && a.start < b.end && b.start < a.end,
            _ => false,
        }
    }
}

/// Number of oldest posts in flight, 6, within which a WRITE may be placed before earlier ones.
const PASSING: usize = 6;

impl Stream {
    /// Returns the indices in `flying` of the posts that may be placed next; empty if none is in flight.
    /// These are the oldest and, unless `in_order`, the WRITEs close behind it that overlap no earlier
    /// post.
    pub(super) fn may_land(&self, in_order: bool) -> Vec<usize> {
        let passes = |&n: &usize| {
            let post = &self.flying[n];
            post.range().is_some() && !self.flying.range(..n).any(|p| p.overlaps(post))
        };
        let behind = match in_order {
            true => 0,
            false => self.flying.len().min(PASSING),
        };
        let first = (!self.flying.is_empty()).then_some(0);
        first
            .into_iter()
            .chain((1..behind).filter(passes))
            .collect()
    }
}

#[derive(Debug)]
pub(super) struct Link {
    pub(super) client: String,
    pub(super) server: String,
    pub(super) exports: RegionTableView,
    pub(super) inbox: Inbox,
    pub(super) mailbox: Mailbox,
    pub(super) client_parker: ParkerId,
    pub(super) owner_parker: ParkerId,
    pub(super) in_order: bool,
    pub(super) to_server: Stream,
    pub(super) to_client: Stream,
    pub(super) reads: VecDeque<Read>,
    pub(super) batches: Vec<Batch>,
    pub(super) finished: VecDeque<ReadBatch>,
    pub(super) ids: u64,
    pub(super) answer: Option<u64>,
    /// The client's task, blocked in a read or atomic.
    pub(super) waiter: Option<TaskId>,
    /// Set once broken: the error that each end will report.
    pub(super) error: Option<LaneError>,
    pub(super) client_knows: bool,
    pub(super) owner_knows: bool,
    /// The server lane is destroyed: no byte is placed any more (F11).
    pub(super) destroyed: bool,
    /// Whether a post of the client was completed since the last poll of the server lane.
    pub(super) moved: bool,
}

impl Link {
    pub(super) fn new(spec: LinkSpec<'_>) -> Self {
        Self {
            client: spec.client.to_owned(),
            server: spec.server.to_owned(),
            exports: spec.exports.view(),
            inbox: spec.inbox,
            mailbox: spec.mailbox,
            client_parker: spec.client_waker.id(),
            owner_parker: spec.owner_waker.id(),
            in_order: spec.in_order,
            to_server: Stream::default(),
            to_client: Stream::default(),
            reads: VecDeque::new(),
            batches: Vec::new(),
            finished: VecDeque::new(),
            ids: 0,
            answer: None,
            waiter: None,
            error: None,
            client_knows: false,
            owner_knows: false,
            destroyed: false,
            moved: false,
        }
    }

    pub(super) const fn stream(&mut self, way: Way) -> &mut Stream {
        match way {
            Way::ToServer => &mut self.to_server,
            Way::ToClient => &mut self.to_client,
        }
    }
}

impl Core {
    pub(super) fn link(&mut self, id: LinkId) -> &mut Link {
        &mut self.links[id.0]
    }

    pub(super) fn fire(&mut self, event: Event) {
        match event {
            Event::Land(id, way) => self.land(id, way),
            Event::Sample(id, read) => self.sample(id, read),
            Event::Complete(id, read) => self.complete(id, read),
            Event::Answer(id, old) => {
                self.link(id).answer = Some(old);
                self.wake_client(id);
            }
            Event::Learn(id, way) => self.learn(id, way),
            Event::Wake(parker) => self.wake_parker(parker),
        }
    }

    /// Queues a post of one end of a link. With `flush`, or if the faults hold no posts, puts it and all
    /// held posts of its direction into flight. Otherwise it may stay at the sender until a later flush
    /// or signal. A post on a broken link is lost.
    pub(super) fn post(&mut self, id: LinkId, way: Way, mut post: Post, flush: bool) {
        if let Some(distance) = self.faults.distance {
            post.due = self.now + distance.one_way.as_nanos() as u64;
        }
        let keep = self.faults.hold && !flush && self.rng.below(2) == 0;
        let link = self.link(id);
        if link.error.is_some() {
            return; // The sender does not know yet; what it sends is lost.
        }
        link.stream(way).held.push_back(post);
        if !keep {
            self.hand_over(id, way);
        }
    }

    /// Puts all posts that the sender holds in one direction into flight, and schedules the next
    /// placement.
    pub(super) fn hand_over(&mut self, id: LinkId, way: Way) {
        let stream = self.link(id).stream(way);
        let Stream { held, flying, .. } = stream;
        flying.append(held);
        self.schedule_placement(id, way);
    }

    pub(super) fn schedule_placement(&mut self, id: LinkId, way: Way) {
        let stream = self.link(id).stream(way);
        if !stream.scheduled && !stream.flying.is_empty() {
            stream.scheduled = true;
            let zombie = stream.zombies.is_some();
            let due = stream.flying.front().map_or(0, |post| post.due);
            // Zombies take their time: long enough for the ends to recover in between.
            let late = if zombie && self.rng.below(2) == 0 {
                64
            } else {
                1
            };
            // Posts follow each other closely over a distance; without one, each has a delay of its own.
            let delay = match self.faults.distance {
                Some(_) => due.saturating_sub(self.now) + 1,
                None => late * self.delay(),
            };
            self.schedule(delay, Event::Land(id, way));
        }
    }

    /// Wakes the client's task if it is blocked in a call of this lane, so that the call looks at its
    /// result.
    pub(super) fn wake_client(&mut self, id: LinkId) {
        if let Some(task) = self.link(id).waiter {
            self.wake(task);
        }
    }

    /// Breaks the link with the probability `disconnect_per_op` of the faults. Called at each call of one
    /// of its ends.
    pub(super) fn tempt(&mut self, id: LinkId) {
        let p = self.faults.disconnect_per_op;
        if self.rng.chance(p) && self.link(id).error.is_none() {
            self.breaks += 1;
            self.break_link(id, "the adversary cut it");
        }
    }

    pub(super) fn break_link(&mut self, id: LinkId, why: &str) {
        let link = self.link(id);
        let error = LaneError::Broken {
            transport: TransportKind::Sim,
            peer: link.server.clone(),
            op: "an operation",
            why: why.to_owned(),
        };
        self.break_with(id, error);
    }

    /// Breaks a link with `error`, which each end learns some virtual time later. Drops held posts, and
    /// half of the time all reads under way. Posts in flight may still be placed, in part, for a while
    /// (F10, F11). Does nothing if the link is broken already.
    pub(super) fn break_with(&mut self, id: LinkId, error: LaneError) {
        if self.link(id).error.is_some() {
            return;
        }
        self.note(4, id.0 as u64);
        let p = self.faults.silent;
        let silent = self.rng.chance(p);
        for way in [Way::ToServer, Way::ToClient] {
            let zombies = self.rng.below(12);
            let longest = if silent {
                self.faults.silence_max.as_nanos() as u64
            } else {
                4 * self.faults.delay_max_us * 1_000
            };
            let stream = self.link(id).stream(way);
            stream.zombies = Some(zombies);
            stream.held.clear();
            let after = 1 + self.rng.below(longest);
            self.schedule(after, Event::Learn(id, way));
        }
        // Requests that were not executed yet may never be; executed ones may stay unanswered.
        if self.rng.below(2) == 0 {
            self.link(id).reads.clear();
        }
        self.link(id).error = Some(error);
    }

    fn learn(&mut self, id: LinkId, way: Way) {
        let link = self.link(id);
        match way {
            Way::ToClient => {
                link.client_knows = true;
                let parker = link.client_parker;
                self.wake_client(id);
                self.wake_parker(parker);
            }
            Way::ToServer => {
                link.owner_knows = true;
                let parker = link.owner_parker;
                self.wake_parker(parker);
            }
        }
    }

    /// Destroys a link for its server lane, which closes its end: drops all posts and reads in flight, so
    /// no byte is placed any more (F11). The client learns of the break later.
    pub(super) fn destroy(&mut self, id: LinkId) {
        self.break_link(id, "the server destroyed it");
        let link = self.link(id);
        (link.destroyed, link.owner_knows) = (true, true);
        for way in [Way::ToServer, Way::ToClient] {
            let stream = self.link(id).stream(way);
            stream.held.clear();
            stream.flying.clear();
        }
        self.link(id).reads.clear();
    }
}
