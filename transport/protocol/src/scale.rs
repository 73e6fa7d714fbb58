//! Objects, memory and connections of a job by its size: the cost model of `docs/SCALE.md`. Computed from the
//! limits that the code uses.

use crate::layout::directory::KEY_CELL_BYTES;
use crate::layout::session::{inbox_bytes, mailbox_bytes};
use crate::limits::{VERBS_PUSH_BYTES, VERBS_REGIONS_MAX, VERBS_SEND_BYTES, VERBS_STAGING_BYTES};

/// Offset in bytes at which the copies of writes begin in a send buffer of a verbs lane. The bytes before are for the
/// results (old values) of the lane's atomic operations.
pub const VERBS_COPIES_AT: usize = 64;

/// Number of queue pairs of one lane for RDMA READs, 1 to 4: four divided by the number of a server's appliers, rounded
/// up. 0 appliers count as 1. READs of one pair wait for each other. A client therefore gets at least four pairs to
/// each server, over the lanes of one thread to all appliers, to keep the port busy.
pub const fn pulling_pairs(appliers: u16) -> usize {
    4_usize.div_ceil(if appliers == 0 { 1 } else { appliers as usize })
}

/// Number of device objects and bytes of registered memory that one end of one verbs lane takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaneEnd {
    /// Queue pairs of a reliable connection.
    pub queue_pairs: usize,
    /// Completion queues, of sends and of arrivals.
    pub completion_queues: usize,
    /// Registered memory regions of the device.
    pub regions: usize,
    /// Memory windows, where the device has them; 0 at the client's end.
    pub windows: usize,
    /// Bytes of registered memory, which is pinned.
    pub pinned_bytes: usize,
}

impl LaneEnd {
    /// Objects and memory of the client's end of one lane to a server with `appliers` appliers. `ring_bytes` is
    /// the data bytes of the lane's ring.
    pub const fn of_client(appliers: u16, ring_bytes: usize) -> Self {
        let pulls = pulling_pairs(appliers);
        let copies = VERBS_COPIES_AT + VERBS_PUSH_BYTES;
        Self {
            queue_pairs: 1 + pulls,
            completion_queues: 2,
            regions: 2 + pulls,
            windows: 0,
            pinned_bytes: mailbox_bytes(ring_bytes) + copies + pulls * VERBS_STAGING_BYTES,
        }
    }

    /// Objects and memory of the server's end of one lane to a client. The server has `appliers` appliers; `ring_bytes`
    /// is the data bytes of the lane's ring.
    pub const fn of_server(appliers: u16, ring_bytes: usize) -> Self {
        Self {
            queue_pairs: 1 + pulling_pairs(appliers),
            completion_queues: 2,
            regions: 2,
            windows: 1,
            pinned_bytes: inbox_bytes(ring_bytes) + VERBS_COPIES_AT + VERBS_SEND_BYTES,
        }
    }
}

/// Size of a job, the input of the cost model: numbers of servers, appliers, client processes and threads, and
/// bytes of a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobSize {
    /// Server processes of the job.
    pub servers: u32,
    /// Applier threads of each server.
    pub appliers: u16,
    /// Client processes of the job.
    pub processes: u32,
    /// Client threads of each process.
    pub threads: u32,
    /// Client processes on one host; counts as at most `processes`.
    pub processes_per_host: u32,
    /// Data bytes of each ring.
    pub ring_bytes: usize,
}

/// Numbers of lanes, queue pairs and connections, and bytes of pinned memory, that a job takes: per server,
/// client process and host. All lanes are verbs lanes, but for `server_tcp_connections`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobCost {
    /// Sessions of one server: a session for each client thread.
    pub server_sessions: u64,
    /// Lanes of one server.
    pub server_lanes: u64,
    /// Queue pairs of one server, over all its lanes.
    pub server_queue_pairs: u64,
    /// Bytes that one server pins for its lanes and its key directory. The server's tables come on top.
    pub server_pinned_bytes: u64,
    /// Lanes of one client process.
    pub process_lanes: u64,
    /// Queue pairs of one client process.
    pub process_queue_pairs: u64,
    /// Bytes that one client process pins.
    pub process_pinned_bytes: u64,
    /// Queue pairs of all client processes of one host.
    pub host_queue_pairs: u64,
    /// Bytes that all client processes of one host pin.
    pub host_pinned_bytes: u64,
    /// TCP connections of one server, if its lanes are TCP lanes: one for each session and one for each lane.
    pub server_tcp_connections: u64,
}

impl JobSize {
    /// Computes the numbers of connections and bytes of memory of a job of this size. Products over 64 bits
    /// saturate at `u64::MAX`.
    pub fn cost(&self) -> JobCost {
        let (client, server) = (
            LaneEnd::of_client(self.appliers, self.ring_bytes),
            LaneEnd::of_server(self.appliers, self.ring_bytes),
        );
        let times = |a: u64, b: u64| a.saturating_mul(b);
        let server_sessions = times(self.processes.into(), self.threads.into());
        let server_lanes = times(server_sessions, self.appliers.into());
        let lanes_of_thread = times(self.servers.into(), self.appliers.into());
        let process_lanes = times(lanes_of_thread, self.threads.into());
        let process_queue_pairs = times(process_lanes, client.queue_pairs as u64);
        let process_pinned_bytes = times(process_lanes, client.pinned_bytes as u64);
        let directory = (VERBS_REGIONS_MAX * KEY_CELL_BYTES) as u64;
        let on_host = u64::from(self.processes_per_host.min(self.processes));
        JobCost {
            server_sessions,
            server_lanes,
            server_queue_pairs: times(server_lanes, server.queue_pairs as u64),
            server_pinned_bytes: times(server_lanes, server.pinned_bytes as u64)
                .saturating_add(directory),
            process_lanes,
            process_queue_pairs,
            process_pinned_bytes,
            host_queue_pairs: times(process_queue_pairs, on_host),
            host_pinned_bytes: times(process_pinned_bytes, on_host),
            server_tcp_connections: server_sessions.saturating_add(server_lanes),
        }
    }
}

impl JobCost {
    /// Estimated seconds until all clients that start together have attached. A device makes `lanes_a_second`
    /// lanes, and the host or server with the most lanes is the bottleneck. `host_processes` is the number of
    /// client processes on a host.
    pub fn attach_seconds(&self, host_processes: u64, lanes_a_second: f64) -> f64 {
        let of_host = self.process_lanes.saturating_mul(host_processes);
        self.server_lanes.max(of_host) as f64 / lanes_a_second
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::RING_BYTES_DEFAULT;

    #[test]
    fn server_is_read_over_at_least_four_pairs() {
        let pairs = |appliers: u16| usize::from(appliers) * pulling_pairs(appliers);
        assert_eq!([1, 2, 3, 4, 64].map(pulling_pairs), [4, 2, 2, 1, 1]);
        assert!((1..=64).all(|appliers| pairs(appliers) >= 4));
    }

    /// 16 servers of 4 appliers and 1,024 processes, 64 on a host: numbers by hand.
    #[test]
    fn cost_is_the_product_of_its_parts() {
        let size = JobSize {
            servers: 16,
            appliers: 4,
            processes: 1024,
            threads: 1,
            processes_per_host: 64,
            ring_bytes: RING_BYTES_DEFAULT,
        };
        let cost = size.cost();
        assert_eq!((cost.server_sessions, cost.server_lanes), (1024, 4096));
        assert_eq!(
            (cost.server_queue_pairs, cost.process_queue_pairs),
            (8192, 128)
        );
        assert_eq!(
            (cost.host_queue_pairs, cost.server_tcp_connections),
            (8192, 5120)
        );
        let lane = cost.process_pinned_bytes / 64;
        assert!((3 << 20..4 << 20).contains(&lane), "{lane} bytes of a lane");
        assert_eq!(cost.host_pinned_bytes, 64 * cost.process_pinned_bytes);
        assert!(
            (cost.attach_seconds(64, 200.0) - 20.48).abs() < 1e-9,
            "{cost:?}"
        );
        let alone = JobSize {
            processes: 1,
            ..size
        }
        .cost();
        assert_eq!(alone.host_queue_pairs, alone.process_queue_pairs);
        let huge = JobSize {
            processes: u32::MAX,
            threads: u32::MAX,
            ..size
        }
        .cost();
        assert_eq!(huge.server_pinned_bytes, u64::MAX);
    }
}
