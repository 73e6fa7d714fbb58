//! Counts of frames that arrived at the servers from all clients: the staleness of a pull.

use tidewater_lanes::fabric::{ReadOp, RemoteAddr};
use tidewater_lanes::num::count;
use tidewater_protocol::layout::LINE_BYTES;
use tidewater_protocol::layout::session::TICKET_BYTES;

use super::Client;
use crate::error::ClientError;
use crate::pull::{CallDest, LaneReads, read_lanes};

impl Client {
    /// Number of push frames that have been sent to each applier so far, server by server, by all clients of all
    /// jobs. The difference between the sums at a pull and now is the number of frames that all clients, this one
    /// included, have sent since. A program that lets workers drift apart may weigh its pushes by it.
    ///
    /// Advisory. A frame is counted once, when it is sent, even if it will be refused. Frames under way when a lane
    /// breaks may never be counted. Cost: one read of 16 bytes for each applier, which takes no applier time (except
    /// over tcp, where its loop answers).
    ///
    /// # Errors
    /// [`ClientError::Argument`] where a server does not count pushes; when a server is lost.
    pub fn arrivals(&mut self) -> Result<Vec<u64>, ClientError> {
        let deadline = self.deadline();
        let mut reads = Vec::with_capacity(self.lanes.len());
        for lane in 0..self.lanes.len() {
            let Some(counter) = self.lanes.get(lane).ring.counter() else {
                let server = self.lanes.name(lane);
                return Err(ClientError::Argument {
                    op: "arrivals",
                    table: "-".into(),
                    what: format!(
                        "server {server} does not have pushes counted; start it with --count-pushes (over RDMA \
                         both devices need 64-bit atomics)"
                    ),
                });
            };
            let mut of_lane = LaneReads::default();
            of_lane.ops.push(ReadOp {
                from: line_of(counter),
                len: count(TICKET_BYTES),
                head_len: count(TICKET_BYTES),
                head_at: lane * TICKET_BYTES,
                body_at: 0,
                fence: false,
            });
            reads.push(of_lane);
        }
        let mut lines = vec![0; reads.len() * TICKET_BYTES];
        let mut dest = CallDest {
            head: &mut lines,
            body: &mut [],
            row_bytes: None,
        };
        read_lanes(&mut self.lanes, &mut reads, &mut dest, deadline)?;
        let words = |line: &[u8]| {
            let words = line.as_chunks::<8>().0.iter();
            words.fold(0u64, |sum, word| {
                sum.wrapping_add(u64::from_le_bytes(*word))
            })
        };
        Ok(lines.chunks_exact(TICKET_BYTES).map(words).collect())
    }
}

/// Remote address of the cache line that holds a counter word.
const fn line_of(word: RemoteAddr) -> RemoteAddr {
    RemoteAddr {
        key: word.key,
        addr: word.addr - word.addr % LINE_BYTES as u64,
    }
}
