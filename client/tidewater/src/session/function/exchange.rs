//! Requests of functions: many under way at once, each answered with the result of one piece.

use std::collections::VecDeque;

use tidewater_lanes::num;
use tidewater_protocol::layout::frame::{FrameHeader, FrameKind};
use tidewater_protocol::layout::function::{FunctionBody, FunctionPayload};
use tidewater_protocol::layout::reply::ReplyHeader;
use tidewater_protocol::mutants::{Mutant, on};
use tidewater_runtime::clock::Deadline;

use super::pieces::FramePiece;
use crate::error::{ClientError, rejected};
use crate::lanes::{Interrupt, Lanes};
use crate::pull;
use crate::table::state::TableState;

/// Most slots of a partition that a client believes in: it makes a piece for each 2,048 of them.
const SLOTS_MAX: u64 = u32::MAX as u64;

pub(crate) fn header_of(table: &TableState, kind: FrameKind, piece: FramePiece) -> FrameHeader {
    let mut header = pull::request(table, kind, 0, false);
    // At most the elements of one frame.
    header.count = num::count(num::size(piece.count));
    header.partition = piece.partition;
    header
}

/// The numbers of the pieces of each lane.
pub(crate) fn by_lane(pieces: &[FramePiece], lanes: usize) -> Vec<VecDeque<usize>> {
    let mut queues = vec![VecDeque::new(); lanes];
    for (n, piece) in pieces.iter().enumerate() {
        queues[piece.lane].push_back(n);
    }
    queues
}

/// Numbers of slots of a sparse table's partitions.
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

/// Request of one piece that waits for its reply.
#[derive(Debug, Clone, Copy)]
struct Pending {
    piece: usize,
    tag: u64,
    seq: u64,
    /// Replacements of the lane before the request.
    replaced: u64,
}

/// What a wait for replies has found.
enum Found {
    /// The reply of a pending request; its payload is in the buffer.
    Reply(Pending, ReplyHeader),
    /// The lane was replaced: the reply may be lost.
    Lost(Pending),
}

/// Sends one request for each piece and returns the payloads of the replies in the pieces' order. As
/// many requests of a lane are under way as it has reply slots. A request is sent again if its lane
/// was replaced: it changes nothing.
pub(crate) fn request_all(
    lanes: &mut Lanes,
    table: &TableState,
    pieces: &[FramePiece],
    payload: &mut FunctionPayload,
    deadline: Deadline,
) -> Result<Vec<Vec<u8>>, ClientError> {
    // Requests that an earlier call built and could not send keep their slots until they are sent.
    lanes.send_all(deadline)?;
    let mut results = vec![Vec::new(); pieces.len()];
    let mut queues = by_lane(pieces, lanes.len());
    let mut pending: Vec<VecDeque<Pending>> = vec![VecDeque::new(); lanes.len()];
    let done = exchange(
        lanes,
        table,
        pieces,
        payload,
        &mut queues,
        &mut pending,
        deadline,
        &mut results,
    );
    // After an error, replies of requests under way have no reader.
    for (lane, left) in pending.iter().enumerate() {
        for request in left {
            lanes.get(lane).replies.abandon(request.tag);
        }
    }
    done.map(|()| results)
}

#[allow(clippy::too_many_arguments, reason = "the state of one call")]
fn exchange(
    lanes: &mut Lanes,
    table: &TableState,
    pieces: &[FramePiece],
    payload: &mut FunctionPayload,
    queues: &mut [VecDeque<usize>],
    pending: &mut [VecDeque<Pending>],
    deadline: Deadline,
    results: &mut [Vec<u8>],
) -> Result<(), ClientError> {
    let (mut buffer, mut arrived) = (Vec::new(), 0);
    loop {
        for lane in 0..queues.len() {
            let mut built = false;
            while let Some(&n) = queues[lane].front() {
                let state = lanes.get(lane);
                let applied = state.ring.state().applied_seq;
                let Some(tag) = state.replies.begin(applied) else {
                    break;
                };
                let mut header = header_of(table, FrameKind::Reduce, pieces[n]);
                header.user_tag = tag;
                let replaced = state.replies.replaced();
                let bytes = payload.at(pieces[n].first);
                let fill = |to: &mut [u8]| to.copy_from_slice(bytes);
                let seq = lanes.build(lane, header, bytes.len(), fill, deadline);
                let replies = &mut lanes.get(lane).replies;
                let seq = seq.inspect_err(|_| replies.cancel(tag))?;
                replies.asked(tag, seq);
                queues[lane].pop_front();
                pending[lane].push_back(Pending {
                    piece: n,
                    tag,
                    seq,
                    replaced,
                });
                built = true;
            }
            if built {
                lanes.send(lane, deadline)?;
            }
        }
        if pending.iter().all(VecDeque::is_empty) && queues.iter().all(VecDeque::is_empty) {
            return Ok(());
        }
        let (lane, found) = lanes.wait("wait for a function's result", deadline, |lanes| {
            Ok::<_, Interrupt>(look(lanes, queues, pending, &mut buffer))
        })?;
        let Some((at, found)) = found else { continue };
        pending[lane].remove(at);
        match found {
            Found::Lost(request) => {
                lanes.get(lane).replies.abandon(request.tag);
                queues[lane].push_front(request.piece);
            }
            Found::Reply(request, reply) => match reply.refused {
                None => {
                    let place = match on(Mutant::ReductionByArrival) {
                        true => arrived,
                        false => request.piece,
                    };
                    results[place].clone_from(&buffer);
                    arrived += 1;
                }
                Some(reason) => {
                    let id = (request.seq, table.id.0);
                    return Err(rejected(table.name(), lanes.name(lane), id, reason));
                }
            },
        }
    }
}

/// Looks for a reply, a replaced lane, or room for a request that is queued; `None` if nothing moved.
#[allow(clippy::type_complexity, reason = "private, and read by one caller")]
fn look(
    lanes: &mut Lanes,
    queues: &[VecDeque<usize>],
    pending: &[VecDeque<Pending>],
    buffer: &mut Vec<u8>,
) -> Option<(usize, Option<(usize, Found)>)> {
    for (lane, requests) in pending.iter().enumerate() {
        for (at, request) in requests.iter().enumerate() {
            let state = lanes.get(lane);
            let (session, mailbox) = (state.session, state.lane().mailbox().clone());
            if let Some(reply) = state.replies.take(&mailbox, session, request.tag, buffer) {
                return Some((lane, Some((at, Found::Reply(*request, reply)))));
            }
            if state.replies.replaced() != request.replaced {
                return Some((lane, Some((at, Found::Lost(*request)))));
            }
        }
        // Slots of other calls that were abandoned become free when their frames are applied.
        if requests.is_empty() && !queues[lane].is_empty() {
            let state = lanes.get(lane);
            let applied = state.ring.state().applied_seq;
            if let Some(tag) = state.replies.begin(applied) {
                state.replies.cancel(tag);
                return Some((lane, None));
            }
        }
    }
    None
}
