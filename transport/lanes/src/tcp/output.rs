//! Pending output of a server lane: copied bytes, and spans of registered memory that the kernel reads when
//! it sends them.

use std::collections::VecDeque;
use std::io;

use super::buffer::Fifo;
use super::op::{HEADER_BYTES, Reply};
use super::socket::{Moved, Socket};
use tidewater_protocol::layout::session::MAILBOX_BYTES;
use tidewater_protocol::limits::{LANE_OUT_BYTES, LANE_OUT_SPANS, LANE_POSTS_BYTES_MAX};
use tidewater_runtime::mem::Region;
use tidewater_runtime::mem::io::SendList;
use tidewater_runtime::sync::Arc;

/// Pending output of a server lane, in order of sending. Bounded: see [`Output::is_full`] and
/// [`Output::post`].
///
/// Mailbox posts are held outside the stream while an answer is under way, which they must not cut in
/// two. They are also held while the stream is full, where a newer state can still replace an older one.
#[derive(Default)]
pub(super) struct Output {
    copied: Fifo,
    queue: VecDeque<Piece>,
    spans: usize,
    answering: bool,
    posts: Fifo,
    last_post: Option<Posted>,
}

/// A part of the pending output: copied bytes, or a span of a region that the kernel reads when it sends
/// it.
enum Piece {
    /// Number of bytes of `copied`.
    Copied(usize),
    /// Bytes of a region.
    Span {
        region: Arc<Region>,
        at: usize,
        len: usize,
    },
}

/// The last held mailbox post: its byte offset and length in the mailbox, and the stream position in
/// `posts` at which its message begins.
struct Posted {
    start: u64,
    at: usize,
    len: usize,
}

impl Output {
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Returns whether spans (memory of a region that the kernel reads only when it sends it) are
    /// pending.
    pub(super) const fn has_spans(&self) -> bool {
        self.spans > 0
    }

    /// Returns the number of pending bytes that were copied to this buffer, without those of spans.
    pub(super) const fn copied_len(&self) -> usize {
        self.copied.len()
    }

    /// Returns whether so much output is pending that the lane executes no further request with an answer
    /// before some of it is sent. Writes go on.
    pub(super) const fn is_full(&self) -> bool {
        self.copied.len() >= LANE_OUT_BYTES || self.spans >= LANE_OUT_SPANS
    }

    /// Appends `len` bytes to the stream and returns them for the caller to fill in; until then they hold
    /// old bytes.
    pub(super) fn grow(&mut self, len: usize) -> &mut [u8] {
        grow(&mut self.queue, &mut self.copied, len)
    }

    /// Appends the header of a message to the client to the stream.
    pub(super) fn reply(&mut self, reply: &Reply) {
        self.grow(HEADER_BYTES).copy_from_slice(&reply.to_bytes());
    }

    /// Appends `len` bytes of a region from byte offset `at` on, without a copy. They are sent with their
    /// values at the time of sending. The caller has checked that they are inside.
    pub(super) fn span(&mut self, region: Arc<Region>, at: usize, len: usize) {
        self.queue.push_back(Piece::Span { region, at, len });
        self.spans += 1;
    }

    /// Marks the start of an answer's payload: mailbox posts stay out of the stream until
    /// [`Self::end_answer`].
    pub(super) const fn begin_answer(&mut self) {
        self.answering = true;
    }

    /// Marks the end of an answer's payload: mailbox posts may follow in the stream.
    pub(super) const fn end_answer(&mut self) {
        self.answering = false;
    }

    /// Queues a write of `bytes` at byte offset `at` of the client's mailbox. If the previous post has
    /// the same offset and length and is still held, the new one replaces it: no reader can see the
    /// difference. Returns false, and drops the post, when more than [`LANE_POSTS_BYTES_MAX`] bytes of
    /// posts would be held, because the client does not read, or `at` or the length needs more than 32
    /// bits.
    pub(super) fn post(&mut self, at: usize, bytes: &[u8]) -> bool {
        if let Some(last) = &self.last_post
            && (last.at, last.len) == (at, bytes.len())
            && let Some(message) = self.posts.since(last.start)
        {
            message[HEADER_BYTES..].copy_from_slice(bytes);
            return true;
        }
        let (Ok(place), Ok(len)) = (u32::try_from(at), u32::try_from(bytes.len())) else {
            return false;
        };
        if self.posts.len() + HEADER_BYTES + bytes.len() > LANE_POSTS_BYTES_MAX {
            return false;
        }
        self.last_post = Some(Posted {
            start: self.posts.end(),
            at,
            len: bytes.len(),
        });
        self.posts
            .push(&Reply::Mailbox { at: place, len }.to_bytes());
        self.posts.push(bytes);
        true
    }

    /// Moves all held mailbox posts into the stream. Does nothing while an answer is under way or the
    /// stream is full.
    pub(super) fn take_posts(&mut self) {
        let len = self.posts.len();
        if len == 0 || self.answering || self.is_full() {
            return;
        }
        self.last_post = None;
        grow(&mut self.queue, &mut self.copied, len).copy_from_slice(self.posts.pending());
        self.posts.consume(len);
    }

    /// Sends pending output as far as the socket takes it. Returns whether anything was sent. Never
    /// blocks.
    pub(super) fn send(&mut self, socket: &Socket) -> io::Result<bool> {
        let mut any = false;
        while !self.is_empty() {
            let moved = if self.spans == 0 {
                socket.send_bytes(self.copied.pending())?
            } else {
                self.send_list(socket)?
            };
            let Moved::Bytes(n) = moved else { break };
            self.sent(n);
            any = true;
        }
        Ok(any)
    }

    fn send_list(&self, socket: &Socket) -> io::Result<Moved> {
        let mut list = SendList::new();
        let mut copied = self.copied.pending();
        for piece in &self.queue {
            let fits = match piece {
                Piece::Copied(n) => {
                    let (now, rest) = copied.split_at((*n).min(copied.len()));
                    copied = rest;
                    list.bytes(now)
                }
                Piece::Span { region, at, len } => {
                    list.span(region, *at, *len).map_err(io::Error::other)?
                }
            };
            if !fits {
                break;
            }
        }
        socket.send(&mut list, false)
    }

    /// Removes the first `n` bytes of the stream, which the socket took.
    fn sent(&mut self, mut n: usize) {
        while n > 0
            && let Some(piece) = self.queue.front_mut()
        {
            let step;
            match piece {
                Piece::Copied(left) => {
                    step = n.min(*left);
                    *left -= step;
                    self.copied.consume(step);
                }
                Piece::Span { at, len, .. } => {
                    step = n.min(*len);
                    *at += step;
                    *len -= step;
                }
            }
            n -= step;
            match piece {
                Piece::Copied(0) => drop(self.queue.pop_front()),
                Piece::Span { len: 0, .. } => {
                    self.spans -= 1;
                    self.queue.pop_front();
                }
                _ => {}
            }
        }
    }
}

fn grow<'a>(queue: &mut VecDeque<Piece>, copied: &'a mut Fifo, len: usize) -> &'a mut [u8] {
    match queue.back_mut() {
        Some(Piece::Copied(n)) => *n += len,
        _ => queue.push_back(Piece::Copied(len)),
    }
    copied.grow(len)
}

const _: () = assert!(LANE_POSTS_BYTES_MAX > 2 * MAILBOX_BYTES);
