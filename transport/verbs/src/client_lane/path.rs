//! Proof that a new lane's path carries RDMA: short packets, and full ones both ways.
//!
//! A network may let TCP through and drop RDMA packets, or only those that are longer than the MTU of one
//! of its links. Then connecting succeeds, and each long READ breaks its lane again.

use tidewater_lanes::fabric::{INBOX_KEY, LaneError, RemoteAddr};
use tidewater_protocol::layout::directory::KEY_CELL_BYTES;
use tidewater_protocol::layout::session::INBOX_RING_AT;
use tidewater_runtime::clock::Deadline;
use tidewater_runtime::sync::Arc;

use super::{Live, Request, Stop, VerbsClientLane};

/// Bytes of the long requests: two packets of the largest MTU. Each ring and each directory is longer.
const LONG_BYTES: usize = 8192;
/// The calls of the proof, for errors.
const OP: &str = "a probe of the path";

/// The path between two ports carries no RDMA, or short packets only.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum PathError {
    /// No packet comes through.
    #[error(
        "queue pairs were made, but nothing comes through from {device}: {source}; does the network \
         carry RDMA (RoCE: UDP port 4791)?"
    )]
    Silent {
        /// Name of this end's device.
        device: Arc<str>,
        /// Failure of the short READ.
        source: Box<LaneError>,
    },
    /// Short packets come through, and full ones do not.
    #[error(
        "queue pairs were made, and {short} bytes come through from {device}, but not a {what} of {long} \
         bytes in packets with an MTU of {mtu}: {source}. A link between has a smaller MTU than the ports: \
         set it to at least {mtu} and 64 bytes of headers at all switches and interfaces, or that of the \
         ports lower"
    )]
    Mtu {
        /// Name of this end's device.
        device: Arc<str>,
        /// Bytes of the request that succeeded.
        short: usize,
        /// READ or WRITE: the direction of the full packets.
        what: &'static str,
        /// Bytes of the request that failed.
        long: usize,
        /// Payload bytes of a packet of this end's port; the path has no more.
        mtu: u16,
        /// Failure of the long request.
        source: Box<LaneError>,
    },
}

impl VerbsClientLane {
    /// Proves the path by a READ of 32 bytes and one of two packets from the server's key directory, and by
    /// a WRITE of two packets of zeros into the empty ring. Call this on a new lane, before the first
    /// push. On an error the lane is broken. Cost: three round trips.
    ///
    /// # Errors
    /// [`PathError`], at the latest at the deadline.
    pub fn prove_path(&mut self, deadline: Deadline) -> Result<(), PathError> {
        let (device, mtu) = {
            let open_port = self.domain.open_port();
            (Arc::clone(open_port.device().name()), open_port.mtu())
        };
        let read = |bytes| move |live: &mut Live| live.probe_read(bytes, deadline);
        if let Err(source) = self.call(OP, read(KEY_CELL_BYTES)) {
            let source = Box::new(source);
            return Err(PathError::Silent { device, source });
        }
        let (what, source) = match self.call(OP, read(LONG_BYTES)) {
            Err(source) => ("READ", source),
            Ok(()) => match self.call(OP, |live| live.probe_write(deadline)) {
                Err(source) => ("WRITE", source),
                Ok(()) => return Ok(()),
            },
        };
        Err(PathError::Mtu {
            device,
            short: KEY_CELL_BYTES,
            what,
            long: LONG_BYTES,
            mtu,
            source: Box::new(source),
        })
    }
}

impl Live {
    /// Reads the start of the key directory.
    fn probe_read(&mut self, bytes: usize, deadline: Deadline) -> Result<(), Stop> {
        let (from, all) = self.engine.keys.directory();
        let bytes = bytes.min(all);
        let request = Request::new(OP, EMPTY_RING, bytes);
        let mut asked = false;
        self.wait(deadline, false, |engine| {
            asked = asked || engine.pulls.ask_cell(from, bytes, request)?;
            engine.advance(None)?;
            Ok(if asked { engine.pulls.cell() } else { None })
        })?;
        Ok(())
    }

    /// Writes zeros to the start of the ring, which has no frame yet and is zero, and waits until the
    /// server's device has answered.
    fn probe_write(&mut self, deadline: Deadline) -> Result<(), Stop> {
        let request = Request::new(OP, EMPTY_RING, LONG_BYTES);
        self.write(request, &[0; LONG_BYTES])?;
        self.wait(deadline, true, |engine| {
            engine.sender.post()?;
            engine.advance(None)?;
            Ok(engine.sender.is_idle().then_some(()))
        })
    }
}

/// Start of the lane's ring.
const EMPTY_RING: RemoteAddr = RemoteAddr {
    key: INBOX_KEY,
    addr: INBOX_RING_AT as u64,
};
