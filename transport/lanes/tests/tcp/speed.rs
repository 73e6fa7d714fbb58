//! Measurements, by hand: `cargo test --profile ci -p tidewater-lanes --test tcp speed -- --ignored
//! --nocapture --test-threads 1`; under `taskset -c 0` for one core.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use tidewater_lanes::fabric::{ClientLane, Parker, ReadBatch, ReadDest};
use tidewater_runtime::clock::{self, Deadline};

use crate::harness::{Memory, plain, served, soon};

fn percentile(mut times: Vec<Duration>, p: usize) -> Duration {
    times.sort_unstable();
    times[times.len() * p / 100]
}

#[test]
#[ignore = "measures; asserts nothing"]
fn small_reads_outstanding() {
    let memory = Memory::new();
    for (len, outstanding) in [(256, 64), (64, 64), (256, 1), (4096, 64)] {
        let (mut lane, mut near, _server, _inbox) = served(&memory);
        for tag in 0..outstanding {
            let ops = vec![plain(memory.at(tag * 4096), len, 0)];
            let body = vec![0; len as usize];
            lane.submit_read(ReadBatch {
                ops,
                body,
                tag,
                ..ReadBatch::default()
            })
            .unwrap();
        }
        let begin = clock::now();
        let mut done = 0u64;
        while begin.elapsed() < Duration::from_secs(1) {
            near.prepare_park();
            if !lane.poll().unwrap() {
                near.park_until(Deadline::after(Duration::from_secs(1)));
            }
            near.cancel_park();
            while let Some(batch) = lane.poll_read() {
                done += 1;
                lane.submit_read(batch).unwrap();
            }
            lane.flush().unwrap();
        }
        let rate = done as f64 / begin.elapsed().as_secs_f64();
        println!("{outstanding} outstanding reads of {len} B: {rate:.0} op/s");
    }
}

#[test]
#[ignore = "measures; asserts nothing"]
fn sync_read_against_echo() {
    const N: usize = 20_000;
    let memory = Memory::new();
    for _ in 0..3 {
        let echo = echo(N);
        let (mut lane, _near, _server, _inbox) = served(&memory);
        let mut body = [0; 64];
        let times = (0..N)
            .map(|_| {
                let begin = clock::now();
                let ops = [plain(memory.at(0), 64, 0)];
                lane.read(
                    &ops,
                    ReadDest {
                        head: &mut [],
                        body: &mut body,
                    },
                    soon(),
                )
                .unwrap();
                begin.elapsed()
            })
            .collect();
        let read = percentile(times, 50);
        let ratio = read.as_secs_f64() / echo.as_secs_f64();
        println!("64 B: echo p50 {echo:?}, read p50 {read:?}, ratio {ratio:.2}");
    }
}

/// Median round trip of 64 bytes between two threads that block.
fn echo(n: usize) -> Duration {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let mut far = listener.accept().unwrap().0;
    near.set_nodelay(true).unwrap();
    far.set_nodelay(true).unwrap();
    let server = std::thread::spawn(move || {
        let mut bytes = [0; 64];
        while far.read_exact(&mut bytes).is_ok() {
            far.write_all(&bytes).unwrap();
        }
    });
    let mut bytes = [0; 64];
    let times = (0..n)
        .map(|_| {
            let begin = clock::now();
            near.write_all(&bytes).unwrap();
            near.read_exact(&mut bytes).unwrap();
            begin.elapsed()
        })
        .collect();
    drop(near);
    server.join().unwrap();
    percentile(times, 50)
}
