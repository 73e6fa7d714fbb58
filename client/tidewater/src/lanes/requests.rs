//! Requests that appliers answer: posted on all lanes, then collected.
//!
//! As many requests of a lane are under way as it has reply slots. The replies of all lanes are collected as
//! they arrive. A request is sent again if its lane was replaced: requests are idempotent.

use std::collections::VecDeque;

use tidewater_protocol::ids::TableId;
use tidewater_protocol::layout::frame::FrameHeader;
use tidewater_protocol::layout::lines::Reject;
use tidewater_protocol::layout::reply::ReplyHeader;
use tidewater_runtime::clock::Deadline;

use super::{Interrupt, Lanes};
use crate::error::{ClientError, rejected};

/// List of requests about one table that appliers answer, each with its lane, payload and reply.
pub(crate) trait Requests {
    /// Name and number of the table that all requests of the list are about, for error texts.
    fn table(&self) -> (&str, TableId);

    /// Number of requests in the list.
    fn len(&self) -> usize;

    /// Lane on which request `n` is sent.
    fn lane(&self, n: usize) -> usize;

    /// Frame header of request `n`, with kind, table and number of rows; the sender fills in tag, sequence number and
    /// sizes.
    fn header(&self, n: usize) -> FrameHeader;

    /// Payload bytes of request `n`, which the sender copies into the ring. May be called several times for a
    /// request.
    fn payload(&mut self, n: usize) -> &[u8];

    /// Accepts the payload of the reply to request `n`; replies come in any order. `Err` describes an impossible
    /// reply, and ends the call as a protocol error of the server.
    fn answer(&mut self, n: usize, reply: &[u8]) -> Result<(), String>;
}

/// Request that was built and waits for the applier's reply.
#[derive(Debug, Clone, Copy)]
struct Pending {
    number: usize,
    tag: u64,
    seq: u64,
    /// Number of times that the lane had been replaced when the request was built.
    replaced: u64,
}

/// Event that ends a wait for replies: a reply, a replaced lane, or room for a queued request (a reply slot and
/// space in the lane's ring).
enum Found {
    /// The reply of a pending request; its payload is in the buffer.
    Reply(Pending, ReplyHeader),
    /// The lane was replaced: the reply may be lost.
    Lost(Pending),
    /// A queued request can be built now.
    Room,
}

/// Queue of requests for one lane: those that are not built yet, and those that wait for replies.
#[derive(Debug, Default)]
struct LaneQueue {
    /// Numbers of the requests that are not built.
    queued: VecDeque<usize>,
    pending: Vec<Pending>,
}

impl Lanes {
    /// Sends all requests of a list to their appliers, and blocks until all are answered. Hands each reply to
    /// [`Requests::answer`]. Sends a request again if its lane was replaced. Sends earlier unsent frames first.
    ///
    /// # Errors
    /// The first refusal; a deadline with the operation `op`; [`ClientError::Protocol`] for an impossible reply.
    pub(crate) fn request_all(
        &mut self,
        op: &'static str,
        requests: &mut dyn Requests,
        deadline: Deadline,
    ) -> Result<(), ClientError> {
        // Requests that an earlier call built and could not send keep their slots until they are sent.
        self.send_all(deadline)?;
        let mut queues = Vec::new();
        queues.resize_with(self.len(), LaneQueue::default);
        for n in 0..requests.len() {
            if let Some(queue) = queues.get_mut(requests.lane(n)) {
                queue.queued.push_back(n);
            }
        }
        let done = self.exchange(op, requests, &mut queues, deadline);
        // After an error, replies of requests under way have no reader.
        for (lane, queue) in queues.iter().enumerate() {
            for request in &queue.pending {
                self.get(lane).replies.abandon(request.tag);
            }
        }
        done
    }

    fn exchange(
        &mut self,
        op: &'static str,
        requests: &mut dyn Requests,
        queues: &mut [LaneQueue],
        deadline: Deadline,
    ) -> Result<(), ClientError> {
        let mut buffer = Vec::new();
        loop {
            for (lane, queue) in queues.iter_mut().enumerate() {
                self.post_requests(lane, queue, requests, deadline)?;
            }
            let is_over = |queue: &LaneQueue| queue.pending.is_empty() && queue.queued.is_empty();
            if queues.iter().all(is_over) {
                return Ok(());
            }
            let (lane, found) = self.wait(op, deadline, |lanes| {
                Ok::<_, Interrupt>(look(lanes, queues, requests, &mut buffer))
            })?;
            let queue = &mut queues[lane];
            match found {
                Found::Room => {}
                Found::Lost(request) => {
                    queue.pending.retain(|pending| pending.tag != request.tag);
                    self.get(lane).replies.abandon(request.tag);
                    queue.queued.push_front(request.number);
                }
                Found::Reply(request, reply) => {
                    queue.pending.retain(|pending| pending.tag != request.tag);
                    if let Some(reason) = reply.refused {
                        let (name, table) = requests.table();
                        let reject = Reject {
                            seq: request.seq,
                            table: table.0,
                            reason,
                        };
                        return Err(rejected(name, self.name(lane), reject));
                    }
                    let answered = requests.answer(request.number, &buffer);
                    answered.map_err(|what| ClientError::Protocol {
                        server: self.name(lane).to_owned(),
                        what,
                    })?;
                }
            }
        }
    }

    /// Builds and sends queued requests of one lane while it has free reply slots and room in its ring. Does not
    /// wait for either, so that the other lanes proceed.
    fn post_requests(
        &mut self,
        lane: usize,
        queue: &mut LaneQueue,
        requests: &mut dyn Requests,
        deadline: Deadline,
    ) -> Result<(), ClientError> {
        let mut built = false;
        while let Some(&number) = queue.queued.front() {
            let mut header = requests.header(number);
            let payload = requests.payload(number);
            let state = self.get(lane);
            if !state.has_room_now(payload.len()) {
                break;
            }
            let applied = state.ring.state().applied_seq;
            let Some(tag) = state.replies.begin(applied) else {
                break;
            };
            header.user_tag = tag;
            let replaced = state.replies.replaced();
            let fill = |to: &mut [u8]| to.copy_from_slice(payload);
            let seq = self.build(lane, header, payload.len(), fill, deadline);
            let replies = &mut self.get(lane).replies;
            let seq = seq.inspect_err(|_| replies.cancel(tag))?;
            replies.asked(tag, seq);
            queue.queued.pop_front();
            queue.pending.push(Pending {
                number,
                tag,
                seq,
                replaced,
            });
            built = true;
        }
        if built {
            self.send(lane, deadline)?;
        }
        Ok(())
    }
}

/// Polls all lanes once: returns the first lane with a reply (its payload replaces `buffer`), with a lost
/// request, or, if it awaits no reply, with room for a queued request. `None` if there is none.
fn look(
    lanes: &mut Lanes,
    queues: &[LaneQueue],
    requests: &mut dyn Requests,
    buffer: &mut Vec<u8>,
) -> Option<(usize, Found)> {
    for (lane, queue) in queues.iter().enumerate() {
        for request in &queue.pending {
            let state = lanes.get(lane);
            let (session, mailbox) = (state.session, state.lane().mailbox().clone());
            if let Some(reply) = state.replies.take(&mailbox, session, request.tag, buffer) {
                return Some((lane, Found::Reply(*request, reply)));
            }
            if state.replies.replaced() != request.replaced {
                return Some((lane, Found::Lost(*request)));
            }
        }
        // Slots of other calls that were abandoned become free when their frames are applied.
        if let (true, Some(&number)) = (queue.pending.is_empty(), queue.queued.front()) {
            let bytes = requests.payload(number).len();
            let state = lanes.get(lane);
            let applied = state.ring.state().applied_seq;
            if state.has_room_now(bytes)
                && let Some(tag) = state.replies.begin(applied)
            {
                state.replies.cancel(tag);
                return Some((lane, Found::Room));
            }
        }
    }
    None
}
