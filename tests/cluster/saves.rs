//! Models are saved while workers train, and loaded on other servers.

use std::os::unix::fs::MetadataExt as _;
use std::time::Duration;

use tidewater::table::TableBuilder;
use tidewater::{Client, PullOptions, PushEncoding, PushOptions, SyncMode};
use tidewater_launch::TransportChoice;
use tidewater_protocol::table::{Init, Optimizer, PushOp, Reduce};

use super::{client, client_in_step, start, tables};

const KEYS: [u64; 6] = [0, 1, 1 << 40, u64::MAX, 77, 78];

/// Makes one gradient step on both tables; returns all values after it.
fn step(client: &mut Client) -> Vec<f32> {
    let [sparse, blocks] = tables();
    let sparse = client.create_table::<f32>(sparse.spec()).unwrap();
    let blocks = client.create_table::<f32>(blocks.spec()).unwrap();
    let gradient: Vec<f32> = (0..24).map(|n| n as f32 / 7.0).collect();
    let pushed = client
        .push_rows(&sparse, &KEYS, &gradient, PushOp::Gradient)
        .unwrap();
    client.wait_applied(&pushed).unwrap();
    let gradient: Vec<f32> = (0..5000).map(|n| n as f32 / 9.0).collect();
    let pushed = client
        .push_range(&blocks, 0, &gradient, PushOp::Gradient)
        .unwrap();
    client.wait_applied(&pushed).unwrap();
    let mut values = vec![0.0; 24 + 5000];
    let (rows, range) = values.split_at_mut(24);
    client
        .pull_rows(&sparse, &KEYS, rows, PullOptions::default())
        .unwrap();
    client
        .pull_range(&blocks, 0, range, PullOptions::default())
        .unwrap();
    values
}

#[test]
fn training_goes_on_from_a_saved_model_on_other_servers_as_if_nothing_had_been() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("made/by/the/save");
    let dir = dir.to_str().unwrap();
    let straight = start(2, 2, 1);
    let mut one = client(&straight, 0, TransportChoice::Tcp);
    step(&mut one);
    let saved = one.save(dir, Duration::from_secs(60)).unwrap();
    // 6 rows; 5,000 elements in blocks of 1,024.
    assert_eq!(saved.rows, 6 + 5);
    assert!(saved.bytes > 5000 * 8, "{saved:?}");
    // Optimizer state is part of the model: the second step depends on it.
    let expected = step(&mut one);
    let moved = start(3, 1, 1);
    let mut two = client(&moved, 0, TransportChoice::Auto);
    let mut loaded = two.load(dir, Duration::from_secs(60)).unwrap();
    loaded.tables.sort();
    assert_eq!(loaded.tables, ["blocks", "sparse"]);
    assert_eq!(loaded.rows, saved.rows);
    let found = step(&mut two);
    assert!(
        expected
            .iter()
            .zip(&found)
            .all(|(a, b)| a.to_bits() == b.to_bits())
    );
    // An existing table is not overwritten by a load.
    let error = two
        .load(dir, Duration::from_secs(60))
        .unwrap_err()
        .to_string();
    assert!(error.contains("exists"), "{error}");
    let error = two
        .load("/nonexistent", Duration::from_secs(60))
        .unwrap_err()
        .to_string();
    assert!(error.contains("/nonexistent"), "{error}");
}

/// A loaded table is a new one, also where another client loads it: no client takes what its encoded pushes to the released
/// table have left out along. Residuals of other tables stay.
#[test]
fn residuals_stay_with_their_tables_over_a_load() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    let cluster = start(1, 1, 2);
    let mut clients = [0, 1].map(|rank| client(&cluster, rank, TransportChoice::Tcp));
    let table = |name: &str| TableBuilder::rows::<f32>(name, 2, 1);
    let options = PushOptions::default().encoding(PushEncoding::Bf16);
    // Half of a unit in the last place of bf16 at 256: it is left out.
    let value = 257.0;
    let push = |client: &mut Client, name: &str, row: usize, value: f32| {
        let table = client.open_table::<f32>(name).unwrap();
        let key = [row as u64];
        let pushed = client.push_rows_with(&table, &key, &[value], PushOp::Sum, options);
        client.wait_applied(&pushed.unwrap()).unwrap();
        let mut out = [0.0; 2];
        let all = [0, 1];
        client
            .pull_rows(&table, &all, &mut out, PullOptions::default())
            .unwrap();
        out[row]
    };
    for name in ["model", "other"] {
        clients[0].create_table::<f32>(table(name).spec()).unwrap();
        for (row, client) in clients.iter_mut().enumerate() {
            let arrived = push(client, name, row, value);
            assert_eq!(arrived.to_bits(), 256f32.to_bits(), "{name}");
        }
    }
    let other = clients[0].open_table::<f32>("other").unwrap();
    clients[0].release_table(other).unwrap();
    clients[0].save(path, Duration::from_secs(60)).unwrap();
    clients[0]
        .create_table::<f32>(table("other").spec())
        .unwrap();
    for (row, client) in clients.iter_mut().enumerate() {
        let arrived = push(client, "other", row, value);
        assert_eq!(arrived.to_bits(), 256f32.to_bits());
    }
    let model = clients[0].open_table::<f32>("model").unwrap();
    clients[0].release_table(model).unwrap();
    clients[0].load(path, Duration::from_secs(60)).unwrap();
    for (row, client) in clients.iter_mut().enumerate() {
        let arrived = push(client, "model", row, 1.0);
        assert_eq!(arrived.to_bits(), 257f32.to_bits(), "256 and 1");
        let arrived = push(client, "other", row, 1.0);
        assert_eq!(
            arrived.to_bits(),
            258f32.to_bits(),
            "256, 1, and the residual"
        );
    }
}

/// Pushes `value` to all elements of the tables of [`save_is_of_one_tick_while_others_go_on`], and ticks.
fn iterate(client: &mut Client, value: f32) {
    let sparse = client.open_table::<f32>("sparse").unwrap();
    let blocks = client.open_table::<f32>("blocks").unwrap();
    let keys: Vec<u64> = (0..300).collect();
    let values = vec![value; 300 * 4];
    let rows = client.push_rows(&sparse, &keys, &values, PushOp::Sum);
    client.wait_applied(&rows.unwrap()).unwrap();
    let range = client.push_range(&blocks, 0, &vec![value; 5000], PushOp::Sum);
    client.wait_applied(&range.unwrap()).unwrap();
    client.tick().unwrap();
}

/// A worker saves under BSP while the others are behind. The save waits for them, not they for it: one
/// goes on to the next iteration, one connects, creates a table and ticks. The model has the pushes of
/// the first iteration on all appliers, and no others.
#[test]
fn save_is_of_one_tick_while_others_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    let cluster = start(2, 2, 3);
    let bsp = |rank| client_in_step(&cluster, rank, TransportChoice::Tcp, SyncMode::Bsp);
    let (mut a, mut b) = (bsp(0), bsp(1));
    let [sparse, blocks] = tables().map(|table| {
        let table = table.optimizer(Optimizer::None).init(Init::Zeros, 0);
        table.at_clock(Reduce::Sum)
    });
    a.create_table::<f32>(sparse.spec()).unwrap();
    a.create_table::<f32>(blocks.snapshot().spec()).unwrap();
    iterate(&mut a, 1.0);
    std::thread::scope(|scope| {
        let saved = scope.spawn(move || {
            let saved = a.save(path, Duration::from_secs(60));
            (a, saved)
        });
        // Both servers have begun their parts.
        let begun = || std::fs::read_dir(path).unwrap().count() == 2;
        while !begun() {
            assert!(!saved.is_finished(), "the save has not waited");
            std::thread::sleep(Duration::from_millis(1));
        }
        iterate(&mut b, 10.0);
        let mut c = bsp(2);
        let other = TableBuilder::rows::<f32>("other", 10, 1);
        c.create_table::<f32>(other.spec()).unwrap();
        assert!(!saved.is_finished(), "rank 2 has not ticked");
        iterate(&mut c, 100.0);
        iterate(&mut b, 1000.0);
        let (mut a, saved) = saved.join().unwrap();
        assert_eq!(saved.unwrap().rows, 300 + 5);
        a.finish().unwrap();
        b.finish().unwrap();
        c.finish().unwrap();
    });
    let next = start(1, 1, 1);
    let mut client = client(&next, 0, TransportChoice::Auto);
    let loaded = client.load(path, Duration::from_secs(60)).unwrap();
    assert!(
        loaded.clocks.iter().all(|clock| clock.clock == 1),
        "{loaded:?}"
    );
    let sparse = client.open_table::<f32>("sparse").unwrap();
    let blocks = client.open_table::<f32>("blocks").unwrap();
    let keys: Vec<u64> = (0..300).collect();
    let mut values = vec![0.0; 300 * 4 + 5000];
    let (rows, range) = values.split_at_mut(300 * 4);
    let options = PullOptions::default();
    client.pull_rows(&sparse, &keys, rows, options).unwrap();
    client.pull_range(&blocks, 0, range, options).unwrap();
    assert!(values.iter().all(|value| *value == 111.0), "{values:?}");
}

/// A manifest that cannot be opened for now, as on a file system that hangs, holds its load and nothing
/// else: the coordinator serves other requests meanwhile.
#[test]
fn hung_file_system_holds_its_load_only() {
    let dir = tempfile::tempdir().unwrap();
    let [hung, other] = ["hung", "other"].map(|name| dir.path().join(name));
    std::fs::create_dir(&hung).unwrap();
    let manifest = hung.join("manifest.json");
    // The open of a pipe waits for a writer.
    let made = std::process::Command::new("mkfifo").arg(&manifest).status();
    assert!(made.unwrap().success());
    let cluster = start(1, 1, 2);
    let mut a = client(&cluster, 0, TransportChoice::Tcp);
    let mut b = client(&cluster, 1, TransportChoice::Tcp);
    step(&mut b);
    std::thread::scope(|scope| {
        let path = hung.to_str().unwrap();
        let load = scope.spawn(move || {
            let loaded = a.load(path, Duration::from_secs(60));
            (a, loaded)
        });
        // It has locked the directory, and opens the manifest.
        let inode = format!(":{} ", std::fs::metadata(&hung).unwrap().ino());
        while !std::fs::read_to_string("/proc/locks")
            .unwrap()
            .contains(&inode)
        {
            assert!(!load.is_finished(), "the load was not held");
            std::thread::sleep(Duration::from_millis(1));
        }
        step(&mut b);
        let spec = TableBuilder::rows::<f32>("new", 10, 1);
        b.create_table::<f32>(spec.spec()).unwrap();
        assert!(!load.is_finished(), "the load was not held");
        drop(std::fs::OpenOptions::new().write(true).open(&manifest));
        // A worker that leaves would fail the job.
        let (_a, loaded) = load.join().unwrap();
        let error = loaded.unwrap_err().to_string();
        assert!(error.contains("manifest.json"), "{error}");
        let path = other.to_str().unwrap();
        b.save(path, Duration::from_secs(60)).unwrap();
    });
}

/// A model holds the numbers that were set: the training goes on with them, not with those of the
/// definition.
#[test]
fn settings_go_on_from_a_saved_model() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().to_str().unwrap();
    let straight = start(2, 2, 1);
    let mut one = client(&straight, 0, TransportChoice::Tcp);
    step(&mut one);
    for table in ["sparse", "blocks"] {
        let table = one.open_table::<f32>(table).unwrap();
        let set = one.set_optimizer(
            &table,
            Optimizer::AdaGrad {
                lr: 0.03,
                eps: 1e-6,
            },
        );
        one.wait_applied(&set.unwrap()).unwrap();
    }
    one.save(dir, Duration::from_secs(60)).unwrap();
    let expected = step(&mut one);
    let moved = start(1, 3, 1);
    let mut two = client(&moved, 0, TransportChoice::Auto);
    two.load(dir, Duration::from_secs(60)).unwrap();
    let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect::<Vec<_>>();
    assert_eq!(bits(step(&mut two)), bits(expected));
}
