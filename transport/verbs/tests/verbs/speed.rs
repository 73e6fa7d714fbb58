//! Speed measurements, by hand, in a guest or on hardware: `--test verbs speed -- --ignored --nocapture
//! --test-threads 1`. Compare with perftest (`ib_read_lat -s 272`, `ib_read_bw`, `ib_write_bw`) in the
//! same boot, as a ratio.

use std::time::Duration;

use tidewater_lanes::fabric::{ClientLane, INBOX_KEY, ReadDest, ReadOp, RemoteAddr};
use tidewater_protocol::layout::session::{INBOX_RING_AT, INBOX_TAIL_AT};
use tidewater_runtime::clock;

use crate::harness::{Ends, Host, late, row};

/// Times of `n` calls, sorted.
fn times(n: usize, mut call: impl FnMut()) -> Vec<Duration> {
    let mut once = || {
        let began = clock::now();
        call();
        clock::now().duration_since(began)
    };
    let mut times: Vec<Duration> = (0..n).map(|_| once()).collect();
    times.sort_unstable();
    times
}

/// Median time of `n` reads of `ops`.
fn reads(ends: &mut Ends, ops: &[ReadOp], n: usize) -> Duration {
    let mut head = vec![0; ops.len() * 16];
    let mut body = vec![0; ops.iter().map(|o| o.len as usize).sum()];
    let mut read = || {
        let into = ReadDest {
            head: &mut head,
            body: &mut body,
        };
        ends.lane.read(ops, into, late()).unwrap();
    };
    read();
    times(n, read)[n / 2]
}

#[test]
#[ignore = "measures; asserts nothing"]
fn speed() {
    let host = Host::new();
    for pulls in [1, 4] {
        let mut ends = host.connect(pulls);
        let rows: Vec<ReadOp> = (0..64).map(|n| row(host.at(n * 320), 272, n)).collect();
        let one = reads(&mut ends, &rows[..1], 2000);
        let many = reads(&mut ends, &rows, 300);
        let long = ReadOp {
            from: host.at(0),
            len: 1 << 20,
            head_len: 0,
            head_at: 0,
            body_at: 0,
            fence: false,
        };
        let mebibyte = reads(&mut ends, &[long], 30);
        println!(
            "{pulls} pairs: 272 B {one:?}; 64 x 272 B {many:?}, {:.0} rows/s; 1 MiB {mebibyte:?}, \
             {:.1} MB/s",
            64.0 / many.as_secs_f64(),
            f64::from(1 << 20) / 1e6 / mebibyte.as_secs_f64()
        );
    }
    let mut ends = host.connect(1);
    let frame = vec![7; 32 << 10];
    let inbox = |addr: usize| RemoteAddr {
        key: INBOX_KEY,
        addr: addr as u64,
    };
    let pushes = 300;
    let began = clock::now();
    for n in 0..pushes {
        let at = INBOX_RING_AT + n % 2 * frame.len();
        ends.lane.write(inbox(at), &frame).unwrap();
        ends.lane
            .write_signal(inbox(INBOX_TAIL_AT), &[1; 16])
            .unwrap();
        ends.poll_port().unwrap();
    }
    ends.settle();
    let took = clock::now().duration_since(began).as_secs_f64();
    let bytes = (pushes * frame.len()) as f64;
    println!("pushes of 32 KiB: {:.1} MB/s landed", bytes / 1e6 / took);
}
