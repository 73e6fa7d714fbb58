//! The rest of a job continues: no call waits for lost or finished workers.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on fails; what it saw is part of its result"
)]

#[path = "survivors/feed.rs"]
mod feed;
#[path = "survivors/members.rs"]
mod members;
#[path = "survivors/open.rs"]
mod open;
#[path = "survivors/reports.rs"]
mod reports;
#[path = "survivors/tasks.rs"]
mod tasks;
#[path = "survivors/threads.rs"]
mod threads;

use std::time::Duration;

use tidewater::walltime::Walltime;
use tidewater::{
    Client, ClientError, ClusterConfig, Job, JoinOptions, PullOptions, SyncMode, TableBuilder,
};
use tidewater_protocol::table::{PushOp, Reduce};
use tidewater_service::coordinator::LostWorker;

/// Longer than any operation here takes on a busy machine.
const LONG: Duration = Duration::from_secs(40);
const WORKERS: u32 = 3;
/// More steps than a run makes before it handles a signal.
const STEPS: u64 = 2_000;

fn cluster(on_lost: LostWorker) -> Job {
    let config = ClusterConfig {
        workers: WORKERS,
        on_lost,
        ..ClusterConfig::default()
    };
    joined(config)
}

fn joined(config: ClusterConfig) -> Job {
    let joined = JoinOptions::from(config).join().unwrap();
    joined.into_job().unwrap()
}

fn each<T: Send>(clients: Vec<Client>, work: impl Fn(Client) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = clients
            .into_iter()
            .map(|client| scope.spawn(move || work(client)))
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

fn clients(cluster: &Job, sync: SyncMode) -> Vec<Client> {
    (0..WORKERS)
        .map(|rank| cluster.client_of(rank, sync).unwrap())
        .collect()
}

/// What thread `number` of all pushes for an element. Sums of these are not exact: another order of
/// addition has other bits.
fn gradient(number: u32, iteration: u32, element: u32) -> f32 {
    let value = (number * 7919 + iteration * 104_729 + element * 31) % 2003;
    let size = 1 << (2 * ((number * 5 + iteration * 3 + element) % 5));
    (value as f32 - 1001.0) * size as f32 / 3.0
}

/// No barrier waits for a finished worker, nor for a lost one if the others are to continue.
#[test]
fn barriers_open_for_those_that_are_left() {
    for is_lost in [false, true] {
        let cluster = cluster(LostWorker::GoOn);
        let mut all = clients(&cluster, SyncMode::Bsp);
        let mut leaver = all.remove(1);
        if !is_lost {
            leaver.finish().unwrap();
        }
        drop(leaver);
        let done = each(all, |mut client| {
            for _ in 0..3 {
                client.barrier("x", LONG)?;
                client.tick()?;
            }
            client.finish()
        });
        for done in done {
            done.unwrap();
        }
    }
}

/// Pushes of a lost worker count up to the last iteration that it ended, whether its turn in the next
/// one had come or not.
#[test]
fn pushes_of_a_lost_iteration_are_dropped() {
    const ELEMENTS: u64 = 3_000;
    for lost in 0..WORKERS as usize {
        let cluster = cluster(LostWorker::GoOn);
        let mut all = clients(&cluster, SyncMode::Bsp);
        let range = TableBuilder::range::<f32>("range", ELEMENTS, 1).at_clock(Reduce::Sum);
        let rows = TableBuilder::sparse::<f32>("rows", 1).at_clock(Reduce::Sum);
        all[0].create_table::<f32>(range.spec()).unwrap();
        all[0].create_table::<f32>(rows.spec()).unwrap();
        let push = |client: &mut Client, value: f32| {
            let range = client.open_table::<f32>("range").unwrap();
            let rows = client.open_table::<f32>("rows").unwrap();
            let values = vec![value; ELEMENTS as usize];
            let pushed = client.push_range(&range, 0, &values, PushOp::Sum).unwrap();
            client.wait_applied(&pushed).unwrap();
            let pushed = client.push_rows(&rows, &[5], &[value], PushOp::Sum);
            client.wait_applied(&pushed.unwrap()).unwrap();
        };
        // All workers end the first iteration; the lost one begins the second.
        for client in &mut all {
            client.set_clock_timeout(LONG);
            push(client, 1.0);
            client.tick().unwrap();
        }
        let mut leaver = all.remove(lost);
        push(&mut leaver, 1_000.0);
        drop(leaver);
        for clock in 1..=2_u16 {
            for client in &mut all {
                push(client, 1.0);
                client.tick().unwrap();
            }
            let expected = f32::from(WORKERS as u16 + clock * (WORKERS as u16 - 1));
            for client in &mut all {
                let range = client.open_table::<f32>("range").unwrap();
                let rows = client.open_table::<f32>("rows").unwrap();
                let mut out = vec![-1.0; ELEMENTS as usize];
                let how = PullOptions::default();
                client.pull_range(&range, 0, &mut out, how).unwrap();
                assert_eq!(
                    out,
                    vec![expected; ELEMENTS as usize],
                    "rank {lost} is lost"
                );
                let mut out = [-1.0];
                client.pull_rows(&rows, &[5], &mut out, how).unwrap();
                assert_eq!(out, [expected], "rank {lost} is lost");
            }
        }
    }
}

/// Rank 0 is lost; a signal then ends the run at one step of all survivors.
#[test]
fn survivors_end_together_on_sigterm() {
    let cluster = cluster(LostWorker::GoOn);
    let all = clients(&cluster, SyncMode::Ssp(1));
    let ends = each(all, |mut client| -> Result<_, ClientError> {
        let mut walltime = Walltime::watch(&mut client, 1)?;
        client.barrier("begun", LONG)?;
        if client.rank().0 == 0 {
            return Ok(None);
        }
        client.set_clock_timeout(LONG);
        let mut steps = 0;
        while steps < STEPS && !walltime.over(&mut client)? {
            client.tick()?;
            steps += 1;
            if steps == 10 && client.rank().0 == 1 {
                let me = rustix::process::getpid();
                rustix::process::kill_process(me, rustix::process::Signal::TERM).unwrap();
            }
        }
        let signal = walltime.end(&mut client)?;
        let table = client.open_table::<i64>("tidewater/walltime");
        assert!(table.is_err(), "the agreement's table is left");
        client.finish()?;
        Ok(Some((steps, signal)))
    });
    let ends: Vec<_> = ends.into_iter().map(Result::unwrap).collect();
    let [None, Some((steps, signal)), other] = ends[..] else {
        panic!("{ends:?}");
    };
    assert_eq!(other, Some((steps, signal)), "at one step, for one signal");
    assert_eq!(signal, Some(15));
    assert!((10..STEPS).contains(&steps), "{steps} steps");
}
