//! Statuses that do not reach the mailbox, because the older of two overlapping writes stands.

use std::sync::Arc;
use std::time::Duration;

use tidewater::{Client, ClientError, SyncMode, Table, TableBuilder};
use tidewater_lanes::here;
use tidewater_lanes::sim::{Faults, Outcome, Rng, sweep};
use tidewater_protocol::table::PushOp;
use tidewater_runtime::sync::{AtomicU64, Ordering};

use tidewater_testkit::sim::ledger::{Fate, Ledger};
use tidewater_testkit::sim::stale::LostStatuses;
use tidewater_testkit::sim::{Rig, Shape, open};

/// Far more than a read of a public copy takes; far less than the stall limit of a lane.
const DEADLINE: Duration = Duration::from_secs(2);
const ROUNDS: u64 = 24;
const KEYS: u64 = 8;
/// Elements of a row: three rows and a header fill a part of the ring that successive pushes exceed.
const DIM: usize = 128;

fn cluster(seed: u64, faults: Faults) -> Rig {
    let sparse = TableBuilder::sparse::<f64>("sparse", DIM as u32).partitions(2);
    let shape = Shape {
        servers: 1,
        appliers: 2,
        workers: 1,
        ring_bytes: 16 << 10,
    };
    Rig::new(seed, faults, shape, &[sparse.spec()])
}

/// Pushes three rows, or an invalid push with a bad last value.
fn push(
    client: &mut Client,
    table: &Table<f64>,
    rng: &mut Rng,
    ledger: &Ledger,
) -> Result<(), ClientError> {
    let first = rng.below(KEYS);
    let mut rows: Vec<u64> = (0..3).map(|n| (first + n) % KEYS).collect();
    let refused = rng.below(4) == 0;
    if refused {
        rows.truncate(1);
    }
    let mut values = vec![1.0; rows.len() * DIM];
    if refused {
        *values.last_mut().unwrap() = f64::NAN;
    }
    let ticket = client.push_rows(table, &rows, &values, PushOp::Sum)?;
    // Half of the pushes are left to a flush, a tick, or a wait for room.
    if !refused && rng.below(2) == 0 {
        ledger.enter("sparse", &rows, 1, Fate::Acknowledged);
        return Ok(());
    }
    let fate = match client.wait_applied(&ticket) {
        Ok(()) => Fate::Acknowledged,
        Err(ClientError::Rejected { .. }) => Fate::Refused,
        Err(e) => return Err(e),
    };
    assert_eq!(fate == Fate::Refused, refused, "rows {rows:?}");
    ledger.enter("sparse", &rows, 1, fate);
    Ok(())
}

/// Runs a client with a mailbox that receives one of `one_in` statuses; counts lane recoveries.
fn run(seed: u64, faults: Faults, one_in: u64, lost: &Arc<AtomicU64>) -> (Outcome, u64) {
    let rig = cluster(seed, faults);
    let statuses = Arc::new(LostStatuses::but_one_in(one_in));
    let recoveries = Arc::new(AtomicU64::new(0));
    let (count, of) = (Arc::clone(&recoveries), Arc::clone(&statuses));
    rig.spawn("worker", move |rig, mut rng| {
        let ledger = Ledger::default();
        let mut client = rig.client_losing(0, 0, SyncMode::Asp, &of);
        client.set_timeout(DEADLINE);
        let table = open::<f64>(&mut client, "sparse");
        for round in 0..ROUNDS {
            push(&mut client, &table, &mut rng, &ledger).unwrap();
            match round % 8 {
                3 => client.flush().unwrap(),
                7 => client.tick().unwrap(),
                _ => {}
            }
        }
        client.flush().unwrap();
        let keys: Vec<u64> = (0..KEYS).collect();
        let mut rows = vec![0.0; KEYS as usize * DIM];
        client
            .pull_rows(&table, &keys, &mut rows, Default::default())
            .unwrap();
        for (key, row) in keys.iter().zip(rows.chunks_exact(DIM)) {
            assert!(row.iter().all(|v| *v == row[0]), "row {key}: {row:?}");
            ledger.check("sparse", *key, row[0] as i64);
        }
        count.store(client.counters().recoveries, Ordering::Relaxed);
    });
    let outcome = rig.world.run();
    lost.fetch_add(statuses.lost(), Ordering::Relaxed);
    (outcome, recoveries.load(Ordering::Relaxed))
}

/// The mailbox keeps an old status: all but the first are lost, or one of two. Tickets, credit, flush
/// and ticks still end within their deadline and without a recovery.
#[test]
fn lost_status_is_read_from_public_copy() {
    let lost = Arc::new(AtomicU64::new(0));
    let swept = sweep(here!(), 0..40, |seed| {
        let one_in = [u64::MAX, 2][(seed % 2) as usize];
        let (outcome, recoveries) = run(seed, Faults::rough(), one_in, &lost);
        assert!(outcome.failure.is_some() || recoveries == 0, "{recoveries}");
        outcome
    });
    let lost = lost.load(Ordering::Relaxed);
    println!("{swept:?}; {lost} statuses lost");
    assert!(lost >= 4 * swept.seeds, "{lost} statuses lost test nothing");
}
