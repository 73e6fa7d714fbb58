//! Callbacks of pushes: each runs once, with the result of its push, before a wait for that push returns.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};

use super::*;
use tidewater_testkit::faults::{Faults, seed, transports};

/// Result of a callback, by the number that it was given.
type Outcome = (u64, Result<(), ClientError>);

/// Pushes `value` to `key` with a callback that sends its result under that key.
fn push_with_callback(
    client: &mut Client,
    table: &Table<f32>,
    key: u64,
    value: f32,
    results: &Sender<Outcome>,
) -> Ticket {
    let ticket = push(client, table, key, value);
    let results = results.clone();
    let callback = move |result| results.send((key, result)).unwrap();
    client.on_applied(&ticket, callback).unwrap();
    ticket
}

/// Keys of the callbacks that have run since the last call, all without an error.
fn keys_of(results: &Receiver<Outcome>) -> Vec<u64> {
    let of = |(key, result): Outcome| {
        result.unwrap();
        key
    };
    results.try_iter().map(of).collect()
}

fn table_of(client: &mut Client) -> Table<f32> {
    let spec = TableBuilder::sparse::<f32>("t", 1);
    client.create_table(spec.spec()).unwrap()
}

#[test]
fn callbacks_run_before_the_wait_returns() {
    for transport in transports() {
        let cluster = Cluster::start(transport, 2, 2, 1);
        let mut client = cluster.client(0, SyncMode::Asp);
        let table = table_of(&mut client);
        let (sender, results) = channel();
        let tickets: Vec<_> = (0..20)
            .map(|key| push_with_callback(&mut client, &table, key, 1.0, &sender))
            .collect();
        let mut seen = keys_of(&results);
        client.wait_applied(&tickets[7]).unwrap();
        seen.extend(keys_of(&results));
        assert!(seen.contains(&7), "{transport}: {seen:?}");
        client.flush().unwrap();
        seen.extend(keys_of(&results));
        seen.sort_unstable();
        assert_eq!(seen, (0..20).collect::<Vec<_>>(), "{transport}");
        // A second callback of a push that is answered, and one of a push of no frames.
        let again = sender.clone();
        let callback = move |result| again.send((21, result)).unwrap();
        client.on_applied(&tickets[0], callback).unwrap();
        let again = sender.clone();
        let callback = move |result| again.send((22, result)).unwrap();
        client.on_applied(&Ticket::default(), callback).unwrap();
        assert!(client.try_applied(&tickets[0]).unwrap());
        assert_eq!(keys_of(&results), [21, 22], "{transport}");
        client.finish().unwrap();
        assert!(keys_of(&results).is_empty());
        drop(client);
        assert!(keys_of(&results).is_empty(), "{transport}: none runs again");
    }
}

/// A tick under ASP waits for nothing, and runs the callbacks of what has been answered.
#[test]
fn asynchronous_ticks_run_answered_callbacks() {
    for transport in transports() {
        let cluster = Cluster::start(transport, 1, 1, 2);
        let mut client = cluster.client(0, SyncMode::Asp);
        let mut reader = cluster.client(1, SyncMode::Asp);
        let table = table_of(&mut client);
        let same = reader.open_table::<f32>("t").unwrap();
        let (sender, results) = channel();
        let ticket = push_with_callback(&mut client, &table, 5, 1.0, &sender);
        drop(ticket);
        let deadline = Deadline::after(Duration::from_secs(20));
        let mut value = [0.0];
        while value != [1.0] {
            assert!(!deadline.passed(), "{transport}: the push is not applied");
            let how = PullOptions::default();
            reader.pull_rows(&same, &[5], &mut value, how).unwrap();
        }
        // The answer may still be on its way.
        let mut seen = Vec::new();
        while seen.is_empty() {
            assert!(!deadline.passed(), "{transport}: ticks run no callback");
            client.tick().unwrap();
            seen.extend(keys_of(&results));
        }
        assert_eq!(seen, [5], "{transport}");
    }
}

/// A tick runs them before it returns; under BSP it has waited for the answers.
#[test]
fn a_tick_runs_the_callbacks_of_its_iteration() {
    let cluster = Cluster::start(Shm, 2, 1, 1);
    let mut client = cluster.client(0, SyncMode::Bsp);
    let spec = TableBuilder::rows::<f32>("t", 2, 1)
        .at_clock(Reduce::Sum)
        .partitions(2);
    let table = client.create_table::<f32>(spec.spec()).unwrap();
    let (sender, results) = channel();
    for step in 0..3 {
        drop(push_with_callback(&mut client, &table, 0, 1.0, &sender));
        drop(push_with_callback(&mut client, &table, 1, 1.0, &sender));
        client.tick().unwrap();
        let mut keys = keys_of(&results);
        keys.sort_unstable();
        assert_eq!(keys, [0, 1], "step {step}");
    }
    assert_eq!(pull(&mut client, &table, &[0, 1]), [3.0, 3.0]);
}

/// The refusal goes to the callback, and to waits for the ticket; it counts as claimed.
#[test]
fn callbacks_receive_the_refusal() {
    for transport in transports() {
        let cluster = Cluster::start(transport, 2, 2, 1);
        let mut client = cluster.client(0, SyncMode::Asp);
        let table = table_of(&mut client);
        let (sender, results) = channel();
        drop(push_with_callback(&mut client, &table, 1, 1.0, &sender));
        let refused = push_with_callback(&mut client, &table, 2, f32::NAN, &sender);
        drop(push_with_callback(&mut client, &table, 3, 1.0, &sender));
        drop(push(&mut client, &table, 4, f32::NAN));
        assert_eq!(refused_key(client.flush()), 4, "{transport}: not claimed");
        client.flush().unwrap();
        let mut outcomes: Vec<Outcome> = results.try_iter().collect();
        outcomes.sort_by_key(|(key, _)| *key);
        let [(1, Ok(())), (2, Err(_)), (3, Ok(()))] = &outcomes[..] else {
            panic!("{transport}: {outcomes:?}");
        };
        let (_, second) = outcomes.swap_remove(1);
        assert_eq!(refused_key(second), 2, "{transport}");
        assert_eq!(refused_key(client.wait_applied(&refused)), 2);
        assert_eq!(pull(&mut client, &table, &[1, 2, 3]), [1.0, 0.0, 1.0]);
    }
}

/// Each callback runs once, and each push counts once, while lanes break and recover.
#[test]
fn callbacks_run_once_over_broken_lanes() {
    for transport in transports() {
        let cluster = Cluster::start(transport, 2, 2, 1);
        let faults = Faults::new(seed(), 12);
        let lanes = faults.clone();
        let mut client = cluster.client_with(0, SyncMode::Asp, move |lane| lanes.wrap(lane, true));
        let table = table_of(&mut client);
        let (sender, results) = channel();
        for step in 0..1200 {
            let ticket = push_with_callback(&mut client, &table, step % 8, 1.0, &sender);
            match step % 16 {
                3 => client.wait_applied(&ticket).unwrap(),
                9 => client.progress().unwrap(),
                _ => drop(ticket),
            }
        }
        client.flush().unwrap();
        let mut runs = [0; 8];
        for key in keys_of(&results) {
            runs[key as usize] += 1;
        }
        assert_eq!(runs, [150; 8], "{transport}");
        let keys: Vec<u64> = (0..8).collect();
        assert_eq!(pull(&mut client, &table, &keys), [150.0; 8], "{transport}");
        assert!(faults.broken() > 10, "{} lanes broke", faults.broken());
    }
}

/// A client that is dropped before the answers runs the callbacks that are left, with an error; one that panics
/// does not keep the others from it.
#[test]
fn dropped_client_runs_its_callbacks() {
    let cluster = Cluster::start(Shm, 1, 1, 1);
    let mut client = cluster.client(0, SyncMode::Asp);
    let table = table_of(&mut client);
    let (sender, results) = channel();
    stall(&cluster, 0, Duration::from_secs(1));
    drop(push_with_callback(&mut client, &table, 1, 1.0, &sender));
    let ticket = push(&mut client, &table, 2, 1.0);
    let panics = |_| panic!("a callback that panics, for a test");
    client.on_applied(&ticket, panics).unwrap();
    drop(push_with_callback(&mut client, &table, 3, 1.0, &sender));
    drop(client);
    let outcomes: Vec<Outcome> = results.try_iter().collect();
    let keys: Vec<u64> = outcomes.iter().map(|(key, _)| *key).collect();
    assert_eq!(keys, [1, 3]);
    for (_, result) in outcomes {
        let text = result.unwrap_err().to_string();
        assert!(
            text.contains("table \"t\": the client was dropped"),
            "{text}"
        );
        assert!(text.contains("is unknown"), "{text}");
    }
}

/// A panic reaches the caller of the call that ran the callback; neither it nor another one runs twice.
#[test]
fn callback_that_panics_runs_once() {
    let cluster = Cluster::start(Shm, 1, 1, 1);
    let mut client = cluster.client(0, SyncMode::Asp);
    let table = table_of(&mut client);
    let (sender, results) = channel();
    stall(&cluster, 0, Duration::from_millis(200));
    drop(push_with_callback(&mut client, &table, 1, 1.0, &sender));
    let ticket = push(&mut client, &table, 2, 1.0);
    let runs = Arc::new(AtomicBool::new(false));
    let ran = Arc::clone(&runs);
    let callback = move |_| {
        assert!(!ran.swap(true, Ordering::Relaxed), "it runs again");
        panic!("a callback that panics, for a test");
    };
    client.on_applied(&ticket, callback).unwrap();
    drop(push_with_callback(&mut client, &table, 3, 1.0, &sender));
    assert!(catch_unwind(AssertUnwindSafe(|| client.flush())).is_err());
    assert!(runs.load(Ordering::Relaxed));
    client.flush().unwrap();
    assert_eq!(keys_of(&results), [1, 3]);
}

#[test]
fn callback_for_a_foreign_ticket_is_refused() {
    let cluster = Cluster::start(Shm, 1, 1, 2);
    let mut clients = [0, 1].map(|rank| cluster.client(rank, SyncMode::Asp));
    let table = table_of(&mut clients[0]);
    let ticket = push(&mut clients[0], &table, 1, 1.0);
    let (sender, results) = channel();
    let callback = move |result| sender.send((1, result)).unwrap();
    let refused = clients[1].on_applied(&ticket, callback).unwrap_err();
    assert!(matches!(refused, ClientError::Argument { .. }), "{refused}");
    drop(clients);
    assert_eq!(results.try_iter().count(), 0, "it was dropped");
}

/// Pushes to two servers are applied in any order, and their callbacks run in that order. A push that depends on
/// another one waits for its ticket.
#[test]
fn pushes_that_wait_keep_their_order() {
    let cluster = Cluster::start(Shm, 2, 1, 1);
    let mut client = cluster.client(0, SyncMode::Asp);
    let spec = TableBuilder::rows::<f32>("t", 2, 1).partitions(2);
    let table = client.create_table::<f32>(spec.spec()).unwrap();
    let (sender, results) = channel();
    for waits in [false, true] {
        stall(&cluster, 0, Duration::from_millis(500));
        let first = push_with_callback(&mut client, &table, 0, 1.0, &sender);
        if waits {
            client.wait_applied(&first).unwrap();
        }
        let second = push_with_callback(&mut client, &table, 1, 1.0, &sender);
        client.wait_applied(&second).unwrap();
        client.flush().unwrap();
        let order = keys_of(&results);
        // Without a wait the first may still be first, if the host was busy for half a second.
        assert!(!waits || order == [0, 1], "{order:?}");
        assert_eq!(order.len(), 2);
    }
}
