//! Requests of functions: many under way at once, each answered with the result of one piece.

use tidewater_bookkeeping::pieces::FramePiece;
use tidewater_lanes::num;
use tidewater_protocol::ids::TableId;
use tidewater_protocol::layout::frame::{FrameHeader, FrameKind};
use tidewater_protocol::layout::function::{FunctionBody, FunctionPayload};
use tidewater_protocol::mutants::{Mutant, on};
use tidewater_runtime::clock::Deadline;

use crate::error::ClientError;
use crate::lanes::{Lanes, Requests};
use crate::pull;
use crate::table::state::TableState;

/// Most slots that a client accepts for a partition in a server's answer.
const SLOTS_MAX: u64 = u32::MAX as u64;

pub(crate) fn header_of(table: &TableState, kind: FrameKind, piece: FramePiece) -> FrameHeader {
    let mut header = pull::request(table, kind, 0, false);
    // At most the elements of one frame.
    header.count = num::count(num::size(piece.count));
    header.partition = piece.partition;
    header
}

/// Requests the number of slots of each partition of a sparse table from its applier, and blocks until all have
/// answered. The numbers are in the order of the partitions.
pub(crate) fn count_slots(
    lanes: &mut Lanes,
    table: &TableState,
    deadline: Deadline,
) -> Result<Vec<u64>, ClientError> {
    let mut pieces = Vec::new();
    for partition in 0..table.spec.partitions {
        let lane = table.lane_of_partition(partition).unwrap_or_default();
        pieces.push(FramePiece {
            lane,
            partition,
            first: 0,
            count: 1,
        });
    }
    let mut payload = FunctionPayload::new(FunctionBody::Slots, 0, &[], &[]);
    let results = request_all(lanes, table, &pieces, &mut payload, deadline)?;
    let number = |(result, piece): (&Vec<u8>, &FramePiece)| match result.as_slice().try_into() {
        Ok(bytes) if u64::from_le_bytes(bytes) <= SLOTS_MAX => Ok(u64::from_le_bytes(bytes)),
        _ => Err(ClientError::Protocol {
            server: lanes.name(piece.lane).to_owned(),
            what: format!("{result:?} as the number of a partition's slots"),
        }),
    };
    results.iter().zip(&pieces).map(number).collect()
}

/// Requests of a function, one for each piece of a table, with the result bytes of each.
struct PieceRequests<'a> {
    table: &'a TableState,
    pieces: &'a [FramePiece],
    payload: &'a mut FunctionPayload,
    results: Vec<Vec<u8>>,
    arrived: usize,
}

impl Requests for PieceRequests<'_> {
    fn table(&self) -> (&str, TableId) {
        (self.table.name(), self.table.id)
    }

    fn len(&self) -> usize {
        self.pieces.len()
    }

    fn lane(&self, n: usize) -> usize {
        self.pieces[n].lane
    }

    fn header(&self, n: usize) -> FrameHeader {
        header_of(self.table, FrameKind::Reduce, self.pieces[n])
    }

    fn payload(&mut self, n: usize) -> &[u8] {
        self.payload.at(self.pieces[n].first)
    }

    fn answer(&mut self, n: usize, reply: &[u8]) -> Result<(), String> {
        let place = match on(Mutant::ReductionByArrival) {
            true => self.arrived,
            false => n,
        };
        self.results[place] = reply.to_vec();
        self.arrived += 1;
        Ok(())
    }
}

/// Sends one request for each piece, and blocks until all are answered. Returns the payloads of the replies in the
/// order of `pieces`. Each request carries `payload` with the first element of its piece written into it; the caller
/// can use `payload` again afterwards.
///
/// # Errors
/// The first refusal; a deadline; [`ClientError::Protocol`] for an impossible reply. No further request is built
/// then, and replies that are still to come are discarded.
pub(crate) fn request_all(
    lanes: &mut Lanes,
    table: &TableState,
    pieces: &[FramePiece],
    payload: &mut FunctionPayload,
    deadline: Deadline,
) -> Result<Vec<Vec<u8>>, ClientError> {
    let mut requests = PieceRequests {
        table,
        pieces,
        payload,
        results: vec![Vec::new(); pieces.len()],
        arrived: 0,
    };
    lanes.request_all("wait for a function's result", &mut requests, deadline)?;
    Ok(requests.results)
}
