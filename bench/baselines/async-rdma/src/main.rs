//! Measures async-rdma's READ, WRITE and compare-and-swap between two processes, as a baseline to
//! compare with.
//!
//! ```text
//! async-rdma-baseline serve   ADDRESS:PORT DEVICE GID_INDEX
//! async-rdma-baseline measure ADDRESS:PORT DEVICE GID_INDEX [MILLISECONDS]
//! ```
//!
//! `measure` prints one JSON object. Per operation and size: the latency of one at a time (median
//! and 99th percentile, microseconds) and the rate with several in flight. Written data is read
//! back and compared; `wrong` counts the differences.
//!
//! The library gets favourable settings that its interface offers: packets of 4096 bytes, 16 READs
//! outstanding, long completion queues. Registration and connection precede the timed part. One thread
//! a process: the library wakes the caller before it releases the memory. With several threads, a
//! following operation on the same memory fails at times with "locked by other ops".

use std::alloc::Layout;
use std::io;
use std::time::{Duration, Instant};

use async_rdma::{
    LocalMr, LocalMrReadAccess, LocalMrWriteAccess, MTU, Rdma, RdmaBuilder, RemoteMr,
};
use futures::future::try_join_all;

/// Bytes of one operation: a word, a row of 256 with its header, a block, a large block.
const SIZES: [usize; 4] = [8, 272, 64 << 10, 1 << 20];
/// Operations in flight when the rate is measured: of small ones, and of those of a block or more.
const DEPTH_SMALL: usize = 16;
const DEPTH_LARGE: usize = 4;
/// Default time of each measurement, ms.
const DEFAULT_MILLISECONDS: u64 = 1500;
/// Operations before the timed part.
const WARM_UP: usize = 20;
/// Minimum number of samples for percentiles.
const SAMPLES_MIN: usize = 5;
/// Lease time of the remote side's memory.
const LEASE: Duration = Duration::from_secs(600);

#[tokio::main(flavor = "current_thread")]
async fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["serve", address, device, gid] => serve(address, builder(device, gid)?).await,
        ["measure", address, device, gid] => {
            measure(address, builder(device, gid)?, DEFAULT_MILLISECONDS).await
        }
        ["measure", address, device, gid, ms] => {
            measure(address, builder(device, gid)?, number(ms)?).await
        }
        _ => Err(invalid(
            "serve|measure ADDRESS:PORT DEVICE GID_INDEX [MILLISECONDS]",
        )),
    }
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what.to_owned())
}

fn number<N: std::str::FromStr>(text: &str) -> io::Result<N> {
    text.parse()
        .map_err(|_| invalid(&format!("{text} is not a number here")))
}

fn builder(device: &str, gid: &str) -> io::Result<RdmaBuilder> {
    Ok(RdmaBuilder::default()
        .set_dev(device)
        .set_gid_index(number(gid)?)
        .set_mtu(MTU::MTU4096)
        .set_cq_size(1024)
        .set_max_cqe(64)
        .set_qp_max_send_wr(256)
        .set_qp_max_recv_wr(256)
        .set_max_rd_atomic(16)
        .set_max_dest_rd_atomic(16)
        .set_timeout(14))
}

/// Lends memory to the peer that connects, until the peer ends the session.
async fn serve(address: &str, builder: RdmaBuilder) -> io::Result<()> {
    let rdma = builder.listen(address).await?;
    rdma.receive().await?;
    Ok(())
}

/// Operation, size, and result of a measurement.
struct Row {
    operation: &'static str,
    bytes: usize,
    samples: usize,
    median_us: f64,
    p99_us: f64,
    depth: usize,
    per_second: f64,
    wrong: usize,
}

/// Memory of one operation in flight, at both sides.
struct ClientLane {
    local: LocalMr,
    remote: RemoteMr,
}

async fn measure(address: &str, builder: RdmaBuilder, milliseconds: u64) -> io::Result<()> {
    let rdma = builder.connect(address).await?;
    let time = Duration::from_millis(milliseconds);
    let mut rows = Vec::new();
    for bytes in SIZES {
        let depth = if bytes < SIZES[2] {
            DEPTH_SMALL
        } else {
            DEPTH_LARGE
        };
        let mut lanes = lanes(&rdma, bytes, depth).await?;
        rows.push(write_row(&rdma, &mut lanes, bytes, time).await?);
        rows.push(read_row(&rdma, &mut lanes, bytes, time).await?);
    }
    rows.push(swap_row(&rdma, time).await?);
    print_json(&rows, milliseconds);
    let end = rdma.alloc_local_mr(Layout::new::<u64>())?;
    rdma.send(&end).await
}

/// Allocates `depth` pairs of memory, ours filled with a byte that identifies the lane.
async fn lanes(rdma: &Rdma, bytes: usize, depth: usize) -> io::Result<Vec<ClientLane>> {
    let layout = Layout::from_size_align(bytes, 8).map_err(|e| invalid(&e.to_string()))?;
    let mut lanes = Vec::with_capacity(depth);
    for lane in 0..depth {
        let mut local = rdma.alloc_local_mr(layout)?;
        local.as_mut_slice().fill(mark(lane));
        let remote = rdma.request_remote_mr_with_timeout(layout, LEASE).await?;
        lanes.push(ClientLane { local, remote });
    }
    Ok(lanes)
}

fn mark(lane: usize) -> u8 {
    u8::try_from(lane + 1).expect("few lanes")
}

async fn write_row(
    rdma: &Rdma,
    lanes: &mut [ClientLane],
    bytes: usize,
    time: Duration,
) -> io::Result<Row> {
    let ClientLane { local, remote } = &mut lanes[0];
    let mut samples = Samples::new(time);
    while samples.more() {
        rdma.write(&*local, remote).await?;
        samples.took_one();
    }
    let rate = Rate::new(time);
    let done = try_join_all(lanes.iter_mut().map(|lane| async {
        let mut done = 0_u64;
        while rate.more() {
            rdma.write(&lane.local, &mut lane.remote).await?;
            done += 1;
        }
        io::Result::Ok(done)
    }))
    .await?;
    Ok(samples.row(
        "write",
        bytes,
        lanes.len(),
        rate.per_second(done.iter().sum()),
        0,
    ))
}

/// Reads back the data of [`write_row`], and compares it.
async fn read_row(
    rdma: &Rdma,
    lanes: &mut [ClientLane],
    bytes: usize,
    time: Duration,
) -> io::Result<Row> {
    for lane in lanes.iter_mut() {
        lane.local.as_mut_slice().fill(0);
    }
    let ClientLane { local, remote } = &mut lanes[0];
    let mut samples = Samples::new(time);
    while samples.more() {
        rdma.read(local, &*remote).await?;
        samples.took_one();
    }
    let rate = Rate::new(time);
    let done = try_join_all(lanes.iter_mut().map(|lane| async {
        let mut done = 0_u64;
        while rate.more() {
            rdma.read(&mut lane.local, &lane.remote).await?;
            done += 1;
        }
        io::Result::Ok(done)
    }))
    .await?;
    let wrong = lanes
        .iter()
        .enumerate()
        .filter(|(lane, memory)| {
            memory
                .local
                .as_slice()
                .iter()
                .any(|byte| *byte != mark(*lane))
        })
        .count();
    Ok(samples.row(
        "read",
        bytes,
        lanes.len(),
        rate.per_second(done.iter().sum()),
        wrong,
    ))
}

/// Measures compare-and-swap. It does not return the previous value: one word is incremented, and read
/// back at the end.
async fn swap_row(rdma: &Rdma, time: Duration) -> io::Result<Row> {
    let mut lanes = lanes(rdma, 8, DEPTH_SMALL).await?;
    for lane in &mut lanes {
        lane.local.as_mut_slice().fill(0);
        rdma.write(&lane.local, &mut lane.remote).await?;
    }
    let mut first = 0_u64;
    let mut samples = Samples::new(time);
    while samples.more() {
        rdma.atomic_cas(first, first + 1, &mut lanes[0].remote)
            .await?;
        first += 1;
        samples.took_one();
    }
    let rate = Rate::new(time);
    let counts = try_join_all(
        lanes
            .iter_mut()
            .enumerate()
            .map(|(lane, memory)| async move {
                let mut count = if lane == 0 { first } else { 0 };
                while rate.more() {
                    rdma.atomic_cas(count, count + 1, &mut memory.remote)
                        .await?;
                    count += 1;
                }
                io::Result::Ok(count)
            }),
    )
    .await?;
    let per_second = rate.per_second(counts.iter().sum::<u64>() - first);
    let mut wrong = 0;
    for (lane, count) in lanes.iter_mut().zip(&counts) {
        rdma.read(&mut lane.local, &lane.remote).await?;
        wrong += usize::from(lane.local.as_slice()[..] != count.to_ne_bytes());
    }
    Ok(samples.row("compare_swap", 8, lanes.len(), per_second, wrong))
}

/// Times of single operations, one after the other.
struct Samples {
    until: Instant,
    last: Instant,
    warm_up: usize,
    microseconds: Vec<f64>,
}

impl Samples {
    fn new(time: Duration) -> Self {
        let now = Instant::now();
        Self {
            until: now + time,
            last: now,
            warm_up: WARM_UP,
            microseconds: Vec::new(),
        }
    }

    fn more(&self) -> bool {
        self.last < self.until || self.microseconds.len() < SAMPLES_MIN
    }

    fn took_one(&mut self) {
        let now = Instant::now();
        if self.warm_up > 0 {
            self.warm_up -= 1;
        } else {
            self.microseconds
                .push((now - self.last).as_secs_f64() * 1e6);
        }
        self.last = now;
    }

    fn percentile(&self, percent: usize) -> f64 {
        self.microseconds
            [(self.microseconds.len() * percent / 100).min(self.microseconds.len() - 1)]
    }

    fn row(
        mut self,
        operation: &'static str,
        bytes: usize,
        depth: usize,
        per_second: f64,
        wrong: usize,
    ) -> Row {
        self.microseconds.sort_by(f64::total_cmp);
        Row {
            operation,
            bytes,
            samples: self.microseconds.len(),
            median_us: self.percentile(50),
            p99_us: self.percentile(99),
            depth,
            per_second,
            wrong,
        }
    }
}

/// Operations of several lanes in one time span.
#[derive(Clone, Copy)]
struct Rate {
    began: Instant,
    time: Duration,
}

impl Rate {
    fn new(time: Duration) -> Self {
        Self {
            began: Instant::now(),
            time,
        }
    }

    fn more(&self) -> bool {
        self.began.elapsed() < self.time
    }

    fn per_second(&self, operations: u64) -> f64 {
        operations as f64 / self.began.elapsed().as_secs_f64()
    }
}

/// Prints one object by hand; no text in it needs escaping.
fn print_json(rows: &[Row], milliseconds: u64) {
    println!("{{\"program\": \"async-rdma 0.5.0\", \"milliseconds\": {milliseconds}, \"rows\": [");
    for (i, row) in rows.iter().enumerate() {
        let Row {
            operation,
            bytes,
            samples,
            median_us,
            p99_us,
            depth,
            per_second,
            wrong,
        } = row;
        let mib = per_second * *bytes as f64 / f64::from(1 << 20);
        print!("  {{\"operation\": \"{operation}\", \"bytes\": {bytes}, \"samples\": {samples}, ");
        print!("\"median_us\": {median_us:.2}, \"p99_us\": {p99_us:.2}, \"in_flight\": {depth}, ");
        print!(
            "\"per_second\": {per_second:.1}, \"mib_per_second\": {mib:.2}, \"wrong\": {wrong}}}"
        );
        println!("{}", if i + 1 < rows.len() { "," } else { "" });
    }
    println!("]}}");
}
