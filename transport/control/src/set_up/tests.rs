//! A connect storm: thousands of clients ask one server for lanes in the same second. The clients' attempts, the
//! server's queue and the grants are the production code; network and device are a model in virtual time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};
use std::time::{Duration, Instant};

use tidewater_protocol::ids::ApplierId;
use tidewater_runtime::clock::{self, Deadline};

use super::*;

/// Lanes of each session: one for each applier.
const LANES: usize = 4;
/// Requests that the server serves at once.
const RUNNING: usize = 16;
/// One way of a message.
const WIRE: Duration = Duration::from_micros(100);
/// Time after which the server sees that a host has vanished.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

type Client = usize;
type Conn = u64;

#[derive(Debug, Clone)]
struct Request {
    client: Client,
    conn: Conn,
    lanes: Vec<Lane>,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The client begins its next attempt: over a new connection, for all lanes or for one to recover.
    Begin(Client),
    Asked(Client, Conn, Option<u16>),
    /// A request's lanes are made: its place in `Storm::running`.
    Made(usize),
    News,
    Heard(Client, Conn, Answer),
    /// A look at the time of the client's attempt.
    Look(Client, Conn),
    Dies(Client, bool),
    /// The server sees the end of a connection.
    Closed(Client, Conn),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Answer {
    Queued,
    Connected,
    Refused,
}

#[derive(Debug)]
struct Thread {
    conn: Conn,
    attempt: Attempt,
    pauses: Pauses,
    call: Deadline,
    /// Lanes to recover one by one; empty in the first request, which asks for all.
    recover: Vec<u16>,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Waits,
    Attached(Duration),
    GaveUp(Duration),
    Dead,
}

struct Storm {
    began: Instant,
    lane_time: Duration,
    device_free: Duration,
    events: BinaryHeap<Reverse<(Duration, u64, Event)>>,
    count: u64,
    nonces: u64,
    clients: Vec<Thread>,
    queue: LaneQueue<Request, ()>,
    grants: Vec<LaneGrants>,
    /// Connections that the server takes for alive.
    open: HashSet<Conn>,
    running: HashMap<usize, (Ticket, Request)>,
    /// Lanes made for a request after its client was known to be gone.
    made_for_void: usize,
    made: usize,
}

impl Storm {
    fn new(clients: usize, lanes_a_second: u32, call: impl Fn(Client) -> Duration) -> Self {
        let began = clock::now();
        clock::set_virtual(Some(began));
        let thread = |n| {
            let call = Deadline::at(began + call(n));
            Thread {
                conn: 0,
                attempt: Attempt::new(call),
                pauses: Pauses::new(call),
                call,
                recover: Vec::new(),
                state: State::Waits,
            }
        };
        let mut storm = Self {
            began,
            lane_time: Duration::from_secs(1) / lanes_a_second,
            device_free: Duration::ZERO,
            events: BinaryHeap::new(),
            count: 0,
            nonces: 0,
            clients: (0..clients).map(thread).collect(),
            queue: LaneQueue::new(RUNNING),
            grants: (0..clients).map(|_| LaneGrants::new(LANES)).collect(),
            open: HashSet::new(),
            running: HashMap::new(),
            made_for_void: 0,
            made: 0,
        };
        for client in 0..clients {
            for applier in 0..LANES as u16 {
                storm.grant(client, applier);
            }
            // All come within a second, in an order that is not that of their numbers.
            let at = Duration::from_micros((client * 7919 % clients * 1_000_000 / clients) as u64);
            storm.at(at, Event::Begin(client));
        }
        storm
    }

    fn at(&mut self, at: Duration, event: Event) {
        self.count += 1;
        self.events.push(Reverse((at, self.count, event)));
    }

    fn grant(&mut self, client: Client, applier: u16) {
        self.nonces += 1;
        self.grants[client].grant(ApplierId(applier), Some(self.nonces));
    }

    fn run(&mut self) {
        while let Some(Reverse((now, _, event))) = self.events.pop() {
            clock::set_virtual(Some(self.began + now));
            self.step(now, event);
            while let Some(next) = self.queue.next(|request| {
                let void = !self.open.contains(&request.conn)
                    || !self.grants[request.client].is_connecting(&request.lanes);
                if void { Turn::Void } else { Turn::Now }
            }) {
                self.serve(now, next);
            }
        }
        clock::set_virtual(None);
    }

    fn serve(&mut self, now: Duration, next: Next<Request, ()>) {
        match next {
            Next::Void(request) => {
                self.grants[request.client].finish(&request.lanes, false);
                let refused = Event::Heard(request.client, request.conn, Answer::Refused);
                self.at(now + WIRE, refused);
            }
            Next::Make(ticket, request, ()) => {
                if !self.open.contains(&request.conn) {
                    self.made_for_void += request.lanes.len();
                }
                let lanes = request.lanes.len();
                // One device makes lanes one after the other, for however many threads.
                self.device_free = self.device_free.max(now) + self.lane_time * lanes as u32;
                self.made += lanes;
                self.running.insert(self.made, (ticket, request));
                self.at(self.device_free, Event::Made(self.made));
            }
        }
    }

    fn step(&mut self, now: Duration, event: Event) {
        match event {
            Event::Begin(client) => self.begin(now, client),
            Event::Asked(client, conn, recover) => self.asked(now, client, conn, recover),
            Event::Made(place) => {
                let (ticket, request) = self.running.remove(&place).unwrap();
                self.queue.done(ticket);
                let alive = self.open.contains(&request.conn);
                let used = self.grants[request.client].finish(&request.lanes, alive);
                let answer = if used {
                    Answer::Connected
                } else {
                    Answer::Refused
                };
                self.at(
                    now + WIRE,
                    Event::Heard(request.client, request.conn, answer),
                );
            }
            Event::News => {
                for (request, _) in self.queue.news() {
                    if self.open.contains(&request.conn) {
                        let news = Event::Heard(request.client, request.conn, Answer::Queued);
                        self.at(now + WIRE, news);
                    }
                }
                self.plan_news();
            }
            Event::Heard(client, conn, answer) => self.heard(now, client, conn, answer),
            Event::Look(client, conn) => self.look(now, client, conn),
            Event::Dies(client, seen) => {
                let thread = &mut self.clients[client];
                if thread.state == State::Waits {
                    thread.state = State::Dead;
                    let (conn, after) = (thread.conn, if seen { WIRE } else { KEEP_ALIVE });
                    self.at(now + after, Event::Closed(client, conn));
                }
            }
            Event::Closed(_, conn) => drop(self.open.remove(&conn)),
        }
    }

    fn begin(&mut self, now: Duration, client: Client) {
        let thread = &mut self.clients[client];
        if thread.state != State::Waits {
            return;
        }
        self.count += 1;
        (thread.conn, thread.attempt) = (self.count, Attempt::new(thread.call));
        let (conn, recover) = (thread.conn, thread.recover.last().copied());
        let left = thread.attempt.left();
        self.at(now + WIRE, Event::Asked(client, conn, recover));
        self.at(now + left, Event::Look(client, conn));
    }

    fn asked(&mut self, now: Duration, client: Client, conn: Conn, recover: Option<u16>) {
        self.open.insert(conn);
        let appliers = match recover {
            Some(applier) => {
                self.grant(client, applier);
                applier..applier + 1
            }
            None => 0..LANES as u16,
        };
        let lane = |a| {
            let applier = ApplierId(a);
            let nonce = self.grants[client].nonce(applier)?;
            Some(Lane { applier, nonce })
        };
        let lanes: Option<Vec<_>> = appliers.map(lane).collect();
        let lanes = lanes.filter(|lanes| self.grants[client].begin(lanes));
        let Some(lanes) = lanes else {
            self.at(now + WIRE, Event::Heard(client, conn, Answer::Refused));
            return;
        };
        let request = Request {
            client,
            conn,
            lanes,
        };
        let (count, idle) = (request.lanes.len(), self.queue.news_at().is_none());
        self.queue.push(request, count, ());
        if idle {
            self.plan_news();
        }
    }

    fn plan_news(&mut self) {
        if let Some(at) = self.queue.news_at() {
            let at = at.instant() - self.began;
            self.at(at, Event::News);
        }
    }

    fn heard(&mut self, now: Duration, client: Client, conn: Conn, answer: Answer) {
        let thread = &mut self.clients[client];
        if thread.state != State::Waits || thread.conn != conn {
            return;
        }
        match answer {
            Answer::Queued => thread.attempt.progressed(),
            Answer::Connected => {
                thread.recover.pop();
                match thread.recover.is_empty() {
                    true => thread.state = State::Attached(now),
                    false => self.begin(now, client),
                }
            }
            Answer::Refused => self.failed(now, client),
        }
    }

    fn look(&mut self, now: Duration, client: Client, conn: Conn) {
        let thread = &self.clients[client];
        if thread.state != State::Waits || thread.conn != conn {
            return;
        }
        match thread.attempt.left() {
            left if left.is_zero() => self.failed(now, client),
            left => self.at(now + left, Event::Look(client, conn)),
        }
    }

    /// The connection is replaced by another; lanes are then recovered one by one.
    fn failed(&mut self, now: Duration, client: Client) {
        let thread = &mut self.clients[client];
        let conn = thread.conn;
        if thread.recover.is_empty() {
            thread.recover = (0..LANES as u16).rev().collect();
        }
        match thread.pauses.after_failure() {
            None => thread.state = State::GaveUp(now),
            Some(pause) => self.at(now + pause, Event::Begin(client)),
        }
        self.at(now + WIRE, Event::Closed(client, conn));
    }

    /// The time of the last client that attached, and the number of those that did.
    fn attached(&self) -> (Duration, usize) {
        let ends = self.clients.iter().filter_map(|thread| match thread.state {
            State::Attached(at) => Some(at),
            _ => None,
        });
        ends.fold((Duration::ZERO, 0), |(last, count), at| {
            (last.max(at), count + 1)
        })
    }
}

/// Time that the device needs for the lanes of `clients` clients, and a fifth.
fn allowed(clients: usize, lanes_a_second: u32) -> Duration {
    Duration::from_secs((clients * LANES) as u64) / lanes_a_second * 6 / 5
}

#[test]
fn storm_attaches_at_the_rate_of_the_device() {
    for lanes_a_second in [200, 1000] {
        let mut storm = Storm::new(4096, lanes_a_second, |_| Duration::from_secs(300));
        storm.run();
        let (last, count) = storm.attached();
        assert_eq!(
            count, 4096,
            "at {lanes_a_second} lanes/s not all clients attached: {last:?}"
        );
        assert!(
            last <= allowed(4096, lanes_a_second),
            "the last client attached after {last:?}"
        );
        assert_eq!(storm.made, 4096 * LANES, "lanes were made twice");
    }
}

#[test]
fn storm_survives_dying_clients() {
    let mut storm = Storm::new(4096, 200, |_| Duration::from_secs(300));
    let dead = 410;
    for n in 0..dead {
        // Spread over the clients and over the time of the storm; every second one with its host.
        let at = Duration::from_millis(n as u64 * 200);
        storm.at(at, Event::Dies(n * 10 + 3, n % 2 == 0));
    }
    storm.run();
    let (last, count) = storm.attached();
    let dead = storm
        .clients
        .iter()
        .filter(|thread| thread.state == State::Dead)
        .count();
    assert!((150..410).contains(&dead), "{dead} died while they waited");
    assert_eq!(
        count + dead,
        4096,
        "clients that lived did not attach: {last:?}"
    );
    assert!(
        last <= allowed(4096, 200),
        "the last client attached after {last:?}"
    );
    assert_eq!(
        storm.made_for_void, 0,
        "lanes were made for clients that were gone"
    );
    assert!(
        storm.made < 4096 * LANES,
        "lanes were made for clients that were gone"
    );
}

/// Half of the clients cannot wait as long as the storm lasts. They use their full time, and no more; the others
/// attach earlier for it.
#[test]
fn storm_serves_those_that_wait() {
    let short = Duration::from_secs(20);
    let call = |n| {
        if n % 2 == 0 {
            short
        } else {
            Duration::from_secs(300)
        }
    };
    let mut storm = Storm::new(4096, 200, call);
    storm.run();
    for (n, thread) in storm.clients.iter().enumerate() {
        match thread.state {
            State::Attached(at) => assert!(n % 2 == 1 || at <= short + WIRE, "{n}: {at:?}"),
            State::GaveUp(at) => assert!(
                n % 2 == 0 && at >= short - Duration::from_millis(1),
                "{n}: {at:?}"
            ),
            state => panic!("{n}: {state:?}"),
        }
    }
    let (last, _) = storm.attached();
    assert!(
        last <= allowed(4096, 200) * 7 / 10,
        "the last client attached after {last:?}"
    );
    assert_eq!(
        storm.made_for_void, 0,
        "lanes were made for clients that were gone"
    );
}

#[test]
fn request_behind_one_that_must_wait_is_served() {
    let mut queue = LaneQueue::new(1);
    for request in 0..4 {
        queue.push(request, 1, ());
    }
    let turn = |request: &i32| [Turn::Later, Turn::Void, Turn::Now, Turn::Now][*request as usize];
    assert!(matches!(queue.next(turn), Some(Next::Void(1))));
    let Some(Next::Make(ticket, 2, ())) = queue.next(turn) else {
        panic!("request 2 is not served");
    };
    assert!(queue.next(turn).is_none(), "one at a time");
    queue.done(ticket);
    let later = |request: &i32| {
        assert_ne!(
            *request, 0,
            "it is asked again though nothing has become ready"
        );
        Turn::Later
    };
    assert!(queue.next(later).is_none());
    queue.recheck();
    assert!(
        matches!(queue.next(|_| Turn::Now), Some(Next::Make(_, 0, ()))),
        "it kept its place"
    );
    assert_eq!(queue.len(), (1, 1));
}

#[test]
fn lane_belongs_to_one_request() {
    let mut grants = LaneGrants::new(2);
    let lane = |a, nonce| Lane {
        applier: ApplierId(a),
        nonce,
    };
    for (a, nonce) in [(0, 7), (1, 8)] {
        grants.grant(ApplierId(a), Some(nonce));
    }
    let both = [lane(0, 7), lane(1, 8)];
    assert!(!grants.begin(&[lane(0, 7), lane(1, 9)]), "a guessed nonce");
    assert!(!grants.begin(&[lane(2, 7)]), "no such lane");
    assert!(grants.begin(&both) && !grants.begin(&both), "once");
    // Lane 1 is recovered meanwhile: what is made for both is not used, and lane 0 may be asked for again.
    grants.grant(ApplierId(1), Some(10));
    assert!(!grants.is_connecting(&both) && !grants.finish(&both, true));
    assert!(grants.is_granted(lane(0, 7)) && grants.is_granted(lane(1, 10)));
    let both = [lane(0, 7), lane(1, 10)];
    assert!(
        grants.begin(&both) && !grants.finish(&both, false),
        "the device refused"
    );
    assert!(grants.begin(&both) && grants.finish(&both, true));
    assert_eq!(
        (grants.nonce(ApplierId(0)), grants.begin(&both)),
        (None, false)
    );
}
