//! No wake-up is lost. This holds for a server with an applier that falls asleep during a push, and for a
//! client that falls asleep when the answer arrives.

use std::time::Duration;

use tidewater::TableBuilder;
use tidewater_lanes::fabric::SPIN;
use tidewater_launch::TransportChoice;
use tidewater_protocol::layout::hash::mix64;
use tidewater_protocol::table::PushOp;
use tidewater_runtime::clock::{self, Deadline};

use crate::by_hand::Cluster;
use crate::proc::{Process, starved_ns};

const PUSHES: u64 = 1_000;
const WAIT_MAX: Duration = Duration::from_millis(100);
/// Limit in an emulator, which stands still while its own host is busy and cannot detect that. A server
/// that loses a wake-up sleeps until the push's deadline, a client until it checks the coordinator:
/// longer.
const EMULATED_WAIT_MAX: Duration = Duration::from_millis(400);
const EMULATED_ROUNDS: usize = 3;

/// Time of the slowest push, each after a gap around the time after which both ends sleep, and that
/// gap.
fn longest_after_idle_gaps(transport: TransportChoice, wait_max: Duration) -> (Duration, Duration) {
    let cluster = Cluster::start(1);
    let mut client = cluster.client(transport);
    let table = TableBuilder::rows::<i64>("counts", 1, 1);
    let table = client.create_table::<i64>(table.spec()).unwrap();
    let server: Process = cluster.server_processes().remove(0);
    let pid = i32::try_from(std::process::id()).unwrap();
    let tid = u32::try_from(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
    // On a busy machine a thread that was woken in time waits for a core. The kernel counts that.
    let starved = || Duration::from_nanos(server.starved_ns() + starved_ns(pid, tid));

    let (mut longest, mut longest_gap) = (Duration::ZERO, Duration::ZERO);
    let mut starved_before = starved();
    for push in 0..PUSHES {
        // The query takes longer than the gaps: seldom, and after a slow push.
        if push % 50 == 0 {
            starved_before = starved();
        }
        let gap = SPIN * 3 * u32::try_from(mix64(push) % 1000).unwrap() / 1000;
        let idle = Deadline::after(gap);
        while !idle.passed() {
            std::hint::spin_loop();
        }
        let began = clock::now();
        let ticket = client.push_rows(&table, &[0], &[1], PushOp::Sum).unwrap();
        client.wait_applied(&ticket).unwrap();
        let mut took = began.elapsed();
        if took > wait_max {
            took = took.saturating_sub(starved() - starved_before);
        }
        if took > longest {
            (longest, longest_gap) = (took, gap);
        }
    }
    println!("{transport:?}: the longest of {PUSHES} pushes took {longest:?}");
    let mut sum = [0];
    client
        .pull_rows(&table, &[0], &mut sum, Default::default())
        .unwrap();
    assert_eq!(sum, [PUSHES.cast_signed()]);
    client.finish().unwrap();
    (longest, longest_gap)
}

fn pushes_after_idle_gaps(transport: TransportChoice) {
    let (longest, gap) = longest_after_idle_gaps(transport, WAIT_MAX);
    assert!(longest <= WAIT_MAX, "{longest:?} after a gap of {gap:?}");
}

#[test]
fn no_push_over_shared_memory_is_slept_through() {
    pushes_after_idle_gaps(TransportChoice::Shm);
}

#[test]
fn no_push_over_tcp_is_slept_through() {
    pushes_after_idle_gaps(TransportChoice::Tcp);
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn no_push_over_verbs_is_slept_through() {
    let round = || longest_after_idle_gaps(TransportChoice::Verbs, EMULATED_WAIT_MAX);
    let mut rounds = Vec::new();
    while rounds.len() < EMULATED_ROUNDS {
        rounds.push(round());
        if rounds
            .iter()
            .any(|(longest, _)| *longest <= EMULATED_WAIT_MAX)
        {
            return;
        }
    }
    panic!("longest push of each round, and the gap before it: {rounds:?}");
}
