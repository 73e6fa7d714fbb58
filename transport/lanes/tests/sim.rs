//! Tests of the simulator: determinism, speed, reports of failures, and the behaviour that the contract
//! allows to the adversary.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::time::Duration;

use tidewater_lanes::fabric::*;
use tidewater_lanes::sim::{
    Failure, Faults, LinkId, LinkSpec, Outcome, Rng, SimParker, SimQueue, World, sweep,
};
use tidewater_protocol::layout::ring::RingGeometry;
use tidewater_protocol::layout::session::{INBOX_RING_AT, inbox_bytes};
use tidewater_runtime::clock::{self, Deadline};
use tidewater_runtime::mem::Region;
use tidewater_runtime::sync::{Arc, AtomicBool, AtomicU64, Ordering};

const SECOND: Duration = Duration::from_secs(1);
const RING: usize = 16 << 10;

struct Pair {
    link: LinkId,
    lane: Box<dyn ClientLane>,
    port: Box<dyn ServerLane>,
    public: Arc<Region>,
    inbox: Inbox,
    view: RegionTableView,
    client: SimParker,
    owner: SimParker,
    key: tidewater_protocol::ids::RegionKey,
}

fn pair(world: &World) -> Pair {
    let public = Arc::new(Region::anonymous(64 << 10).unwrap());
    let exports = Arc::new(RegionTable::new(1));
    let key = exports
        .add(RegisteredRegion {
            region: Arc::clone(&public),
            start: 0,
            len: 64 << 10,
            rights: AccessFlags::Read,
            memory: 0,
        })
        .unwrap();
    let ring = RingGeometry::new(RING).unwrap();
    let memory = Arc::new(Region::anonymous(inbox_bytes(RING)).unwrap());
    let inbox = Inbox::new(memory, 0, ring, 1).unwrap();
    let mailbox = Mailbox::new(Arc::new(Region::anonymous(4096).unwrap()), 0, 4096).unwrap();
    let (client, owner) = (world.parker(), world.parker());
    let (lane, port) = world.connect(LinkSpec {
        client: "client",
        server: "server",
        exports: &exports,
        inbox: inbox.clone(),
        mailbox,
        client_waker: client.waker(),
        owner_waker: owner.waker(),
        in_order: false,
    });
    Pair {
        link: lane.link(),
        lane: Box::new(lane),
        port: Box::new(port),
        public,
        inbox,
        view: exports.view(),
        client,
        owner,
        key,
    }
}

const fn at(key: tidewater_protocol::ids::RegionKey, addr: u64) -> RemoteAddr {
    RemoteAddr { key, addr }
}

/// A client that writes and reads, a server that rewrites; returns the number of reads that were mixtures.
fn traffic(seed: u64, faults: Faults) -> (Outcome, u64) {
    let world = World::new(seed, faults);
    let mut p = pair(&world);
    let mixed = Arc::new(AtomicU64::new(0));
    let stop = Arc::new(AtomicBool::new(false));
    let (seen, stopped) = (Arc::clone(&mixed), Arc::clone(&stop));
    let (mut lane, key) = (p.lane, p.key);
    world.spawn("client", move || {
        for n in 0..200u64 {
            let to = at(INBOX_KEY, INBOX_RING_AT as u64 + n % 8 * 64);
            if lane.write_signal(to, &n.to_le_bytes()).is_err() {
                break;
            }
            let op = ReadOp {
                from: at(key, 0),
                len: 256,
                head_len: 0,
                head_at: 0,
                body_at: 0,
                fence: false,
            };
            let mut body = [0; 256];
            let into = ReadDest {
                head: &mut [],
                body: &mut body,
            };
            if lane.read(&[op], into, Deadline::after(SECOND)).is_err() {
                break;
            }
            let same = body.iter().all(|b| *b == body[0]);
            seen.fetch_add(u64::from(!same), Ordering::Relaxed);
        }
        stopped.store(true, Ordering::Relaxed);
    });
    world.spawn("server", move || {
        let mut n = 0u64;
        while !stop.load(Ordering::Relaxed) {
            n += 1;
            let bytes = [n as u8; 256];
            p.public.words_mut(0, 256).unwrap().copy_in(0, &bytes);
            if p.port.poll(&mut p.view, &p.inbox).is_err() {
                break;
            }
            p.owner.prepare_park();
            p.owner
                .park_until(Deadline::after(Duration::from_micros(30)));
            p.owner.cancel_park();
        }
    });
    let _ = p.client;
    let outcome = world.run();
    (outcome, mixed.load(Ordering::Relaxed))
}

#[test]
fn one_seed_is_one_run() {
    for faults in [Faults::calm(), Faults::rough(), Faults::hostile()] {
        let mut traces = std::collections::HashSet::new();
        for seed in 0..20 {
            let (first, mixed) = traffic(seed, faults);
            let (second, again) = traffic(seed, faults);
            assert_eq!(first.failure, None);
            assert_eq!(
                (first.trace, first.steps, first.elapsed, mixed),
                (second.trace, second.steps, second.elapsed, again)
            );
            assert!(traces.insert(first.trace), "two seeds, one run");
        }
    }
}

#[test]
fn the_adversary_tears_reads_and_breaks_lanes() {
    let (mut mixed, mut breaks) = (0, 0);
    for seed in 0..30 {
        mixed += traffic(seed, Faults::rough()).1;
        breaks += traffic(seed, Faults::hostile()).0.breaks;
    }
    println!("torn reads {mixed}, broken lanes {breaks}");
    assert!(mixed > 100, "{mixed}");
    assert!(breaks > 5, "{breaks}");
}

#[test]
fn a_switch_is_cheap() {
    let world = World::new(1, Faults::calm());
    for name in ["a", "b", "c", "d"] {
        let w = world.clone();
        world.spawn(name, move || (0..20_000).for_each(|_| w.step()));
    }
    let began = clock::now();
    let outcome = world.run();
    let rate = outcome.switches as f64 / began.elapsed().as_secs_f64();
    println!("{} switches, {rate:.0} a second", outcome.switches);
    assert_eq!(outcome.failure, None);
    assert!(outcome.switches > 20_000);
}

#[test]
fn time_is_virtual_and_sleeps_are_free() {
    let world = World::new(1, Faults::calm());
    let w = world.clone();
    let mut parker = world.parker();
    world.spawn("parker", move || {
        let began = clock::now();
        w.pause(Duration::from_secs(3600));
        parker.prepare_park();
        parker.park_until(Deadline::after(Duration::from_secs(1800)));
        parker.cancel_park();
        let slept = began.elapsed_in_world();
        assert!(slept >= Duration::from_secs(5400), "{slept:?}");
        assert!(slept < Duration::from_secs(5401), "{slept:?}");
        // A wait that only reads the clock ends too.
        let until = Deadline::after(Duration::from_micros(8));
        while !until.passed() {}
    });
    let outcome = world.run();
    assert_eq!(outcome.failure, None);
    assert_eq!(outcome.timeouts, 1);
    assert!(outcome.elapsed >= Duration::from_secs(5400));
}

trait InWorld {
    fn elapsed_in_world(&self) -> Duration;
}

impl InWorld for std::time::Instant {
    fn elapsed_in_world(&self) -> Duration {
        clock::now().duration_since(*self)
    }
}

#[test]
fn a_ring_is_heard_only_when_announced() {
    for (announced, timeouts) in [(true, 0), (false, 1)] {
        let world = World::new(3, Faults::calm());
        let mut parker = world.parker();
        let (waker, w) = (parker.waker(), world.clone());
        world.spawn("parker", move || {
            if announced {
                parker.prepare_park();
            }
            parker.park_until(Deadline::after(SECOND));
            parker.cancel_park();
        });
        world.spawn("ringer", move || {
            w.pause(Duration::from_millis(1));
            waker.wake();
        });
        assert_eq!(world.run().timeouts, timeouts);
    }
}

#[test]
fn bad_ends_are_told_by_name() {
    let world = World::new(5, Faults::calm());
    let mut parker = world.parker();
    world.spawn("waits-for-ever", move || {
        parker.prepare_park();
        parker.park_until(Deadline::after(Duration::from_secs(1_000_000)));
    });
    let tasks = vec!["waits-for-ever".to_owned()];
    assert_eq!(world.run().failure, Some(Failure::Deadlock { tasks }));

    let world = World::new(5, Faults::calm());
    let w = world.clone();
    world.spawn("innocent", move || {
        loop {
            w.step();
        }
    });
    world.spawn("guilty", || panic!("on purpose"));
    let failure = world.run().failure.unwrap();
    assert!(
        matches!(&failure, Failure::Panic { task, message, .. } if task == "guilty" && message == "on purpose"),
        "{failure}"
    );

    let world = World::new(5, Faults::calm());
    world.limit_steps(1_000);
    let w = world.clone();
    world.spawn("spins", move || {
        loop {
            w.step();
        }
    });
    let failure = world.run().failure.unwrap();
    assert!(
        matches!(failure, Failure::Steps { steps: 1_000, .. }),
        "{failure}"
    );
}

#[test]
fn a_failing_seed_names_its_command() {
    let here = tidewater_lanes::here!();
    let command = here.repeat(17);
    assert!(
        command.contains("TIDEWATER_SEED=17 cargo test --profile ci"),
        "{command}"
    );
    let rest = "--test sim -- --exact a_failing_seed_names_its_command --nocapture";
    assert!(command.contains(rest), "{command}");
}

#[test]
fn queues_keep_order_and_services_end_with_the_tasks() {
    sweep(tidewater_lanes::here!(), 0..20, |seed| {
        let world = World::new(seed, Faults::rough());
        let (ask, answer) = (SimQueue::new(&world), SimQueue::new(&world));
        let (asked, answers) = (ask.clone(), answer.clone());
        world.spawn_service("echo", move || {
            loop {
                if let Some(n) = asked.recv(Deadline::after(SECOND)) {
                    answers.send(n);
                }
            }
        });
        world.spawn("asks", move || {
            (0..100u32).for_each(|n| ask.send(n));
            for n in 0..100 {
                assert_eq!(answer.recv(Deadline::after(SECOND)), Some(n));
            }
            assert_eq!(answer.recv(Deadline::after(SECOND)), None);
        });
        world.run()
    });
}

#[test]
fn writes_of_a_broken_lane_land_in_order_and_end_with_the_port() {
    let mut landed_after_break = 0;
    sweep(tidewater_lanes::here!(), 0..100, |seed| {
        let world = World::new(seed, Faults::hostile().writes_in_order());
        let p = pair(&world);
        let mut rng = Rng::new(seed);
        let (mut lane, mut port, inbox) = (p.lane, p.port, p.inbox);
        let link_cut = world.clone();
        let late = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&late);
        let w = world.clone();
        world.spawn("client", move || {
            for n in 1..=100u64 {
                let to = at(INBOX_KEY, INBOX_RING_AT as u64 + n * 64);
                let bytes: Vec<u8> = (0..8).flat_map(|_| n.to_le_bytes()).collect();
                if lane.write_signal(to, &bytes).is_err() {
                    break;
                }
            }
        });
        world.spawn("server", move || {
            w.pause(Duration::from_micros(rng.below(3_000)));
            let state = |inbox: &Inbox| -> Vec<u64> {
                let window = inbox.window();
                (0..=100 * 8)
                    .map(|i| window.as_read().load(INBOX_RING_AT + i * 8))
                    .collect()
            };
            let before = state(&inbox);
            w.pause(Duration::from_micros(rng.below(3_000)));
            counted.store(u64::from(before != state(&inbox)), Ordering::Relaxed);
            port.destroy();
            let end = state(&inbox);
            for (n, line) in (0u64..).zip(end.chunks(8)).skip(1) {
                let next_began = end
                    .get(n as usize * 8 + 8..)
                    .is_some_and(|l| l.iter().any(|w| *w != 0));
                assert!(
                    !next_began || line.iter().all(|w| *w == n),
                    "write {n} is not whole and a later one has begun: {line:?}"
                );
            }
            w.pause(SECOND);
            assert_eq!(end, state(&inbox), "F11");
        });
        drop(link_cut);
        let outcome = world.run();
        landed_after_break += late.load(Ordering::Relaxed);
        outcome
    });
    assert!(landed_after_break > 0);
}

const LINES: usize = 4;
const ROUNDS: u64 = 20;

/// Posts of one end of a link in a round: the first line twice, the others once, then the signal.
fn send_round(n: u64, mut write: impl FnMut(usize, &[u8])) {
    let line = |value: u64| -> Vec<u8> { (0..8).flat_map(|_| value.to_le_bytes()).collect() };
    write(0, &line(n + 1_000_000));
    for at in 0..LINES {
        write(at, &line(n));
    }
}

/// For each line of `words`, whether all of it holds `n`.
fn whole_lines(words: &[u64], n: u64) -> Vec<bool> {
    let lines = words.chunks_exact(8);
    lines
        .map(|line| line.iter().all(|word| *word == n))
        .collect()
}

/// Rounds of one direction: `send` posts round n with its signal, `look` reads the lines at the other end,
/// which sleeps in `parker`. Returns the number of reads that saw a later line before an earlier one.
fn rounds(
    world: &World,
    mut parker: SimParker,
    mut send: impl FnMut(u64) + Send + 'static,
    look: impl Fn() -> Vec<u64> + Clone + Send + 'static,
) -> Arc<AtomicU64> {
    let (go, passed) = (SimQueue::new(world), Arc::new(AtomicU64::new(0)));
    let (turn, seen) = (go.clone(), Arc::clone(&passed));
    let current = Arc::new(AtomicU64::new(0));
    let (now, watched, w) = (Arc::clone(&current), look.clone(), world.clone());
    world.spawn("sender", move || {
        while let Some(n) = turn.recv(Deadline::after(60 * SECOND)) {
            if n > ROUNDS {
                break;
            }
            send(n);
        }
    });
    world.spawn("receiver", move || {
        for n in 1..=ROUNDS {
            now.store(n, Ordering::Relaxed);
            parker.prepare_park();
            go.send(n);
            let began = clock::now();
            parker.park_until(Deadline::after(30 * SECOND));
            parker.cancel_park();
            let slept = clock::now().duration_since(began);
            assert!(slept < 30 * SECOND, "no signal came in round {n}");
            let lines = whole_lines(&look(), n);
            assert_eq!(lines, [true; LINES], "round {n}: the signal has come");
        }
        now.store(u64::MAX, Ordering::Relaxed);
        // Its lane lives until here.
        go.send(u64::MAX);
    });
    world.spawn("observer", move || {
        loop {
            w.step();
            let n = current.load(Ordering::Relaxed);
            if n == u64::MAX {
                break;
            }
            let lines = whole_lines(&watched(), n);
            let gap = lines.windows(2).any(|pair| !pair[0] && pair[1]);
            seen.fetch_add(u64::from(gap), Ordering::Relaxed);
        }
    });
    passed
}

/// F04 and F15: WRITEs pass each other in both directions, but two writes of one place do not. When the
/// signal behind them has come, all of them are there.
#[test]
fn writes_pass_each_other_but_not_their_signal() {
    for (way, reorder_writes) in [("server", true), ("client", true), ("client", false)] {
        let mut passed = 0;
        sweep(tidewater_lanes::here!(), 0..20, |seed| {
            let faults = Faults {
                reorder_writes,
                spurious_wake: 0.0,
                ..Faults::rough()
            };
            let world = World::new(seed, faults);
            let p = pair(&world);
            let (mut lane, mut port, inbox) = (p.lane, p.port, p.inbox);
            let mailbox = lane.mailbox().clone();
            let count = if way == "server" {
                let look = move || -> Vec<u64> {
                    let window = inbox.window();
                    let word = |i| window.as_read().load(INBOX_RING_AT + i * 8);
                    (0..LINES * 8).map(word).collect()
                };
                let send = move |n| {
                    let _ = &port;
                    send_round(n, |line, bytes| {
                        let to = at(INBOX_KEY, (INBOX_RING_AT + line * 64) as u64);
                        lane.write(to, bytes).unwrap();
                    });
                    let to = at(INBOX_KEY, (INBOX_RING_AT + LINES * 64) as u64);
                    lane.write_signal(to, &n.to_le_bytes()).unwrap();
                };
                rounds(&world, p.owner, send, look)
            } else {
                let look = move || -> Vec<u64> {
                    (0..LINES)
                        .flat_map(|line| mailbox.line(line * 64))
                        .collect()
                };
                let send = move |n| {
                    let _ = &lane;
                    send_round(n, |line, bytes| port.post(line * 64, bytes).unwrap());
                    port.signal().unwrap();
                };
                rounds(&world, p.client, send, look)
            };
            let outcome = world.run();
            passed += count.load(Ordering::Relaxed);
            outcome
        });
        assert_eq!(passed > 0, reorder_writes, "to the {way}: {passed}");
    }
}

/// A silent break: the call ends by its deadline, and its destination is unspecified.
#[test]
fn silence_ends_by_the_deadline() {
    let mut deadlines = 0;
    sweep(tidewater_lanes::here!(), 0..20, |seed| {
        let silent = 1.0;
        let world = World::new(
            seed,
            Faults {
                silent,
                ..Faults::rough()
            },
        );
        let mut p = pair(&world);
        let (w, hits) = (world.clone(), Arc::new(AtomicU64::new(0)));
        let hit = Arc::clone(&hits);
        world.spawn("client", move || {
            let began = clock::now();
            w.cut(p.link);
            let mut body = [7; 64];
            let op = ReadOp {
                from: at(p.key, 0),
                len: 64,
                head_len: 0,
                head_at: 0,
                body_at: 0,
                fence: false,
            };
            let into = ReadDest {
                head: &mut [],
                body: &mut body,
            };
            let done = p.lane.read(&[op], into, Deadline::after(SECOND));
            let took = clock::now().duration_since(began);
            assert!(took < 2 * SECOND, "{took:?}");
            match done {
                Err(LaneError::Deadline {
                    peer, op: "read", ..
                }) => {
                    assert_eq!(peer, "server");
                    hit.fetch_add(1, Ordering::Relaxed);
                }
                Err(LaneError::Broken { .. }) => (),
                other => panic!("{other:?}"),
            }
            assert!(p.lane.flush().is_err(), "an error is final");
        });
        let outcome = world.run();
        deadlines += hits.load(Ordering::Relaxed);
        outcome
    });
    assert!(deadlines > 5, "{deadlines}");
}
