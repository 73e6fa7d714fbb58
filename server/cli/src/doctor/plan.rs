//! What a job of a given size takes over RDMA: `tidewater doctor --plan`.

use std::fmt::{self, Display};

use serde::Serialize;
use tidewater_protocol::limits::{
    APPLIERS_MAX, OBSERVERS_MAX, SERVERS_MAX, SESSIONS_MAX, WORKER_THREADS_MAX, WORKERS_MAX,
};
use tidewater_protocol::scale::{JobCost, JobSize};

/// Queue pairs of a port above which its context cache misses, by what is published of ConnectX adapters. Above
/// it each message costs one or two reads over the bus more.
const CACHED_QUEUE_PAIRS: u64 = 4_096;

/// The size of a job, its cost, and the limits that it exceeds.
#[derive(Debug, Serialize)]
pub struct Plan {
    /// Version of this format.
    format: u32,
    servers: u32,
    appliers: u16,
    processes: u32,
    threads: u32,
    processes_per_host: u32,
    ring_bytes: usize,
    lanes_per_second: f64,
    server_sessions: u64,
    server_lanes: u64,
    server_queue_pairs: u64,
    server_pinned_bytes: u64,
    server_tcp_connections: u64,
    process_lanes: u64,
    process_queue_pairs: u64,
    process_pinned_bytes: u64,
    host_queue_pairs: u64,
    host_pinned_bytes: u64,
    attach_seconds: f64,
    /// Limits that the job exceeds: it cannot run.
    exceeds: Vec<String>,
    /// What makes it slow.
    warnings: Vec<String>,
}

impl Plan {
    /// Computes the cost of a job. `lanes_per_second` is the rate at which a device makes queue pairs of lanes;
    /// `join_seconds` is the time that clients wait for their lanes.
    pub fn new(size: &JobSize, lanes_per_second: f64, join_seconds: f64) -> Self {
        let cost = size.cost();
        let hosted = u64::from(size.processes_per_host.min(size.processes));
        let attach_seconds = cost.attach_seconds(hosted, lanes_per_second);
        Self {
            format: 1,
            servers: size.servers,
            appliers: size.appliers,
            processes: size.processes,
            threads: size.threads,
            processes_per_host: size.processes_per_host,
            ring_bytes: size.ring_bytes,
            lanes_per_second,
            server_sessions: cost.server_sessions,
            server_lanes: cost.server_lanes,
            server_queue_pairs: cost.server_queue_pairs,
            server_pinned_bytes: cost.server_pinned_bytes,
            server_tcp_connections: cost.server_tcp_connections,
            process_lanes: cost.process_lanes,
            process_queue_pairs: cost.process_queue_pairs,
            process_pinned_bytes: cost.process_pinned_bytes,
            host_queue_pairs: cost.host_queue_pairs,
            host_pinned_bytes: cost.host_pinned_bytes,
            attach_seconds,
            exceeds: exceeded(size, &cost),
            warnings: warnings(&cost, attach_seconds, join_seconds),
        }
    }

    /// Whether the job is within all limits.
    pub const fn fits(&self) -> bool {
        self.exceeds.is_empty()
    }
}

fn exceeded(size: &JobSize, cost: &JobCost) -> Vec<String> {
    let limits = [
        (
            "servers",
            size.servers.into(),
            u64::from(SERVERS_MAX),
            "start fewer servers with more appliers",
        ),
        (
            "appliers of a server",
            size.appliers.into(),
            APPLIERS_MAX.into(),
            "start more servers",
        ),
        (
            "client processes",
            size.processes.into(),
            WORKERS_MAX.into(),
            "use more threads a process",
        ),
        (
            "threads of a process",
            size.threads.into(),
            WORKER_THREADS_MAX.into(),
            "start more processes",
        ),
        (
            "sessions of a server",
            cost.server_sessions,
            SESSIONS_MAX as u64,
            "each client thread has one at every server: use fewer threads or processes",
        ),
    ];
    let over = limits.into_iter().filter(|&(_, has, most, _)| has > most);
    over.map(|(what, has, most, remedy)| format!("{what}: {has} of at most {most}; {remedy}"))
        .collect()
}

fn warnings(cost: &JobCost, attach_seconds: f64, join_seconds: f64) -> Vec<String> {
    let mut all = Vec::new();
    for (place, pairs) in [
        ("server", cost.server_queue_pairs),
        ("client host", cost.host_queue_pairs),
    ] {
        if pairs > CACHED_QUEUE_PAIRS {
            all.push(format!(
                "a {place} has {pairs} queue pairs; above some {CACHED_QUEUE_PAIRS} a port reads their state \
                 from memory: use fewer appliers, or fewer client threads"
            ));
        }
    }
    if attach_seconds > join_seconds {
        all.push(format!(
            "clients that start together are attached after {attach_seconds:.0} s, later than their join timeout \
             of {join_seconds:.0} s: raise --join-timeout"
        ));
    }
    all
}

impl Plan {
    /// Writes the numbers, one row for each object.
    fn write_table(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            servers,
            appliers,
            processes,
            threads,
            processes_per_host,
            ..
        } = self;
        writeln!(
            f,
            "{servers} servers of {appliers} appliers; {processes} client processes of {threads} threads, \
             {processes_per_host} on a host\n"
        )?;
        writeln!(
            f,
            "{:26} {:>14} {:>14} {:>14}",
            "", "a server", "a process", "a client host"
        )?;
        let hosted = u64::from((*processes_per_host).min(*processes));
        let sessions = u64::from(*servers) * u64::from(*threads);
        let rows = [
            (
                "sessions",
                self.server_sessions,
                sessions,
                sessions.saturating_mul(hosted),
            ),
            (
                "lanes",
                self.server_lanes,
                self.process_lanes,
                self.process_lanes.saturating_mul(hosted),
            ),
            (
                "queue pairs",
                self.server_queue_pairs,
                self.process_queue_pairs,
                self.host_queue_pairs,
            ),
        ];
        for (what, server, process, host) in rows {
            writeln!(f, "{what:26} {server:>14} {process:>14} {host:>14}")?;
        }
        let [server, process, host] = [
            self.server_pinned_bytes,
            self.process_pinned_bytes,
            self.host_pinned_bytes,
        ]
        .map(size);
        writeln!(
            f,
            "{:26} {server:>14} {process:>14} {host:>14}",
            "pinned for lanes"
        )?;
        writeln!(
            f,
            "{:26} {:>14}",
            "connections, over TCP", self.server_tcp_connections
        )
    }
}

impl Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_table(f)?;
        writeln!(
            f,
            "\nall attached after {:.1} s, at {} lanes a second of a device",
            self.attach_seconds, self.lanes_per_second
        )?;
        writeln!(
            f,
            "limits: {SESSIONS_MAX} sessions of a server, {SERVERS_MAX} servers, {APPLIERS_MAX} appliers of one, \
             {WORKERS_MAX} processes, {WORKER_THREADS_MAX} threads of one, {OBSERVERS_MAX} observers"
        )?;
        for text in &self.exceeds {
            writeln!(f, "FAIL {text}")?;
        }
        for text in &self.warnings {
            writeln!(f, "warn {text}")?;
        }
        Ok(())
    }
}

/// Bytes in the unit in which they have up to four digits.
fn size(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", units[unit])
}
