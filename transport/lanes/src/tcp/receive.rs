//! The receiving half of the client's end: answers into their destination, posts into the mailbox.

use std::collections::VecDeque;
use std::io;

use super::client_lane::{Inbound, Posted, Whose};
use super::op::{HEADER_BYTES, Refused, Reply};
use super::plan::Target;
use super::socket::{Moved, Socket, broken};
use super::store::store_bytes;
use crate::fabric::{LaneError, Mailbox};
use tidewater_protocol::layout::LINE_BYTES;
use tidewater_runtime::mem::io::{Place, RecvList};
use tidewater_runtime::mem::publish::publish;

/// Least length in bytes of a contiguous part of a payload that is received straight into its
/// destination. Shorter parts share a system call through the input buffer.
pub(super) const DIRECT_BYTES: usize = 4 << 10;
/// Greatest number of receive calls that one poll makes before it returns to its caller.
const ROUNDS: usize = 16;

/// Name of the peer and of the call under way, from which a client lane's errors are made.
#[derive(Clone, Copy)]
pub(super) struct Link<'a> {
    pub(super) peer: &'a str,
    pub(super) op: &'static str,
}

impl Link<'_> {
    #[cold]
    pub(super) fn broken(self, why: impl ToString) -> LaneError {
        broken(self.peer, self.op, why)
    }

    #[cold]
    fn refused(self, refused: &Refused) -> LaneError {
        LaneError::Access {
            peer: self.peer.to_owned(),
            op: refused.kind.name(),
            key: refused.key.0,
            addr: refused.addr,
            len: refused.len,
            why: refused.why.text(),
        }
    }
}

/// Message that a client lane is receiving: none yet, an answer to a read, or a mailbox post.
pub(super) enum Incoming {
    /// None: a header comes next.
    Header,
    /// An answer with `left` missing bytes.
    Answer { left: usize },
    /// A post into the mailbox.
    Post(Post),
}

/// A mailbox post that is arriving: byte offset, length and bytes received. Its first 64 bytes are held
/// back until the rest is stored: a reader that sees them in the mailbox sees all.
#[derive(Clone, Copy)]
pub(super) struct Post {
    at: usize,
    len: usize,
    got: usize,
    first: [u8; LINE_BYTES],
}

impl Post {
    const fn new(at: usize, len: usize) -> Self {
        Self {
            at,
            len,
            got: 0,
            first: [0; LINE_BYTES],
        }
    }

    /// Returns whether the post's bytes yet to arrive go straight into the mailbox: its first 64 have
    /// arrived, and at least `DIRECT_BYTES` (4 KiB) are missing.
    const fn takes_directly(&self) -> bool {
        self.got >= LINE_BYTES && self.left() >= DIRECT_BYTES
    }

    const fn left(&self) -> usize {
        self.len - self.got
    }

    /// Takes the next bytes of the post from the input buffer: stores them in the mailbox, but keeps
    /// those of its first 64 back in `first`.
    fn take(&mut self, mailbox: &Mailbox, bytes: &[u8]) -> Result<(), String> {
        let kept = LINE_BYTES.saturating_sub(self.got).min(bytes.len());
        let (first, rest) = bytes.split_at(kept);
        self.first[self.got.min(LINE_BYTES)..][..kept].copy_from_slice(first);
        self.got += kept;
        if !rest.is_empty() {
            let (region, base) = mailbox.region();
            let start = base + self.at;
            let words = region
                .words_mut(start, self.len)
                .map_err(|e| e.to_string())?;
            store_bytes(words, self.got, rest);
            self.got += rest.len();
        }
        Ok(())
    }

    /// Publishes the first 64 bytes of the post in the mailbox, after all its other bytes were stored.
    fn show(&self, mailbox: &Mailbox) -> Result<(), String> {
        let (region, base) = mailbox.region();
        let words = region
            .words_mut(base + self.at, self.len)
            .map_err(|e| e.to_string())?;
        publish(words, 0, &self.first[..self.len.min(LINE_BYTES)]);
        Ok(())
    }
}

impl Inbound {
    /// Receives and processes available bytes, with at most [`ROUNDS`] system calls. `caller` is the
    /// destination of the call under way, if it reads. Returns whether any bytes arrived, or bytes that
    /// an earlier call had left in the input buffer were processed. Never blocks.
    pub(super) fn receive(
        &mut self,
        socket: &Socket,
        mailbox: &Mailbox,
        caller: &mut Option<Target<'_>>,
        link: Link<'_>,
    ) -> Result<bool, LaneError> {
        // Bytes that an earlier call left here because it did not own them.
        let left = self.input.len();
        if left > 0 {
            self.understand(mailbox, caller, link)?;
        }
        let mut any = self.input.len() < left;
        for _ in 0..ROUNDS {
            if self.is_returned(caller) {
                break;
            }
            let (moved, asked) = self
                .receive_once(socket, mailbox, caller)
                .map_err(|e| link.broken(e))?;
            let got = match moved {
                Moved::Bytes(n) => n,
                Moved::Nothing => break,
                Moved::Closed => return Err(link.broken("the peer closed the connection")),
            };
            any = true;
            self.understand(mailbox, caller, link)?;
            if got < asked {
                break;
            }
        }
        Ok(any)
    }

    /// Receives with one system call. The payload goes directly to its destination if at least
    /// `DIRECT_BYTES` are due there and the input buffer is empty, else everything to that buffer.
    /// Returns the call's result and the number of bytes asked for.
    fn receive_once(
        &mut self,
        socket: &Socket,
        mailbox: &Mailbox,
        caller: &mut Option<Target<'_>>,
    ) -> io::Result<(Moved, usize)> {
        let whose = self.awaited.front().map(|a| a.whose);
        let straight = self.input.len() == 0;
        match &mut self.incoming {
            Incoming::Answer { left } if straight => {
                if let Some(mut target) =
                    target_of(whose, self.is_direct, caller, &mut self.batches)
                    && target.run().min(*left) >= DIRECT_BYTES
                {
                    self.bulk = true;
                    let (named, (moved, asked)) =
                        target.with_list(*left, self.input.room_beside(), |list| {
                            (socket.recv(list), list.total_bytes())
                        });
                    let moved = moved?;
                    if let Moved::Bytes(n) = moved {
                        let here = n.min(named);
                        target.received(here);
                        *left -= here;
                        self.input.arrived(n - here);
                    }
                    return Ok((moved, asked));
                }
            }
            Incoming::Post(post) if straight && post.takes_directly() => {
                let (region, base) = mailbox.region();
                let room = self.input.room_beside();
                let (spare_len, spare) = (room.len(), Place::new(room));
                let mut list = RecvList::new();
                let named = post.left();
                list.span(region, base + post.at + post.got, named)
                    .map_err(io::Error::other)?;
                list.piece(&spare, 0, spare_len);
                let moved = socket.recv(&mut list)?;
                let asked = list.total_bytes();
                if let Moved::Bytes(n) = moved {
                    let here = n.min(named);
                    post.got += here;
                    self.input.arrived(n - here);
                }
                return Ok((moved, asked));
            }
            _ => {}
        }
        self.bulk &= !matches!(self.incoming, Incoming::Answer { .. });
        let room = match self.bulk {
            true => self.input.room_beside(),
            false => self.input.room(),
        };
        let asked = room.len();
        let moved = socket.recv_bytes(room)?;
        if let Moved::Bytes(n) = moved {
            self.input.arrived(n);
        }
        Ok((moved, asked))
    }

    /// Returns whether the batch that `caller` receives directly (`ClientLane::wait_read`) is complete.
    /// The bytes that follow belong to other requests and stay in the input buffer.
    fn is_returned(&self, caller: &Option<Target<'_>>) -> bool {
        let done = |target: &Target<'_>| target.plan.is_done(target.ops);
        self.is_direct && caller.as_ref().is_some_and(done)
    }

    /// Processes the messages in the input buffer, as far as they have arrived: places answers and posts.
    /// Stops behind a complete direct receive. Fails for a refusal, and for bytes that are no message or
    /// answer no pending request.
    pub(super) fn understand(
        &mut self,
        mailbox: &Mailbox,
        caller: &mut Option<Target<'_>>,
        link: Link<'_>,
    ) -> Result<(), LaneError> {
        loop {
            let returned = self.is_returned(caller);
            match &mut self.incoming {
                Incoming::Header if returned => return Ok(()),
                Incoming::Header => {
                    let Some(raw) = self.input.pending().first_chunk::<HEADER_BYTES>() else {
                        return Ok(());
                    };
                    let reply = Reply::from_bytes(raw).map_err(|e| link.broken(e))?;
                    self.input.consume(HEADER_BYTES);
                    self.begin(reply, mailbox, link)?;
                }
                Incoming::Answer { left: 0 } => self.finish_answer(caller),
                Incoming::Answer { left } => {
                    let now = self.input.len().min(*left);
                    let whose = self.awaited.front().map(|a| a.whose);
                    if whose == Some(Whose::Late) {
                        if now == 0 {
                            return Ok(());
                        }
                        *left -= now;
                        self.input.consume(now);
                        continue;
                    }
                    let Some(mut target) =
                        target_of(whose, self.is_direct, caller, &mut self.batches)
                    else {
                        return Err(link.broken("an answer to no pending request"));
                    };
                    if now == 0 {
                        return Ok(());
                    }
                    let taken = target.accept(&self.input.pending()[..now], *left - now);
                    *left -= taken;
                    self.input.consume(taken);
                    if taken < now {
                        return Ok(());
                    }
                }
                Incoming::Post(post) if post.left() == 0 => {
                    post.show(mailbox).map_err(|e| link.broken(e))?;
                    self.incoming = Incoming::Header;
                }
                Incoming::Post(post) => {
                    let now = self.input.len().min(post.left());
                    if now == 0 {
                        return Ok(());
                    }
                    post.take(mailbox, &self.input.pending()[..now])
                        .map_err(|e| link.broken(e))?;
                    self.input.consume(now);
                }
            }
        }
    }

    /// Processes the header of a message from the server: starts an answer or post, stores an atomic's
    /// result, or returns the refusal as an error. Fails for an answer out of order.
    fn begin(&mut self, reply: Reply, mailbox: &Mailbox, link: Link<'_>) -> Result<(), LaneError> {
        match (reply, self.awaited.front()) {
            (Reply::Read { bytes, cookie }, Some(a))
                if matches!(a.whose, Whose::Caller | Whose::Batch | Whose::Late)
                    && (a.bytes, a.cookie) == (bytes, cookie) =>
            {
                let left = bytes as usize;
                self.incoming = Incoming::Answer { left };
            }
            (Reply::Atomic { was }, Some(a)) if a.whose == Whose::Counter => {
                self.awaited.pop_front();
                self.counter = Some(was);
            }
            (Reply::Atomic { .. }, Some(a)) if a.whose == Whose::Nobody => {
                self.awaited.pop_front();
            }
            (Reply::Mailbox { at, len }, _) => {
                let (at, len) = (at as usize, len as usize);
                if !at.is_multiple_of(8) || at.saturating_add(len) > mailbox.len() {
                    return Err(link.broken("a post outside the mailbox"));
                }
                self.incoming = Incoming::Post(Post::new(at, len));
            }
            (Reply::Refused(refused), _) => return Err(link.refused(&refused)),
            (Reply::Read { .. } | Reply::Atomic { .. }, _) => {
                return Err(link.broken("an answer to another request than the oldest"));
            }
        }
        Ok(())
    }

    fn finish_answer(&mut self, caller: &mut Option<Target<'_>>) {
        self.incoming = Incoming::Header;
        match self.awaited.pop_front().map(|a| a.whose) {
            Some(Whose::Caller) => {
                if let Some(target) = caller {
                    target.plan.answered();
                }
            }
            Some(Whose::Batch) if self.is_direct => {
                if let Some(target) = caller {
                    target.plan.answered();
                }
            }
            Some(Whose::Batch) => {
                let Some(first) = self.batches.front_mut() else {
                    return;
                };
                first.plan.answered();
                if first.plan.is_done(&first.batch.ops)
                    && let Some(first) = self.batches.pop_front()
                {
                    self.batches_asked = self.batches_asked.saturating_sub(1);
                    self.done.push_back(first.batch);
                }
            }
            Some(Whose::Counter | Whose::Nobody | Whose::Late) | None => {}
        }
    }
}

/// Returns the destination of the answer that is arriving: `caller`'s buffers or those of the oldest
/// batch. `None` if the answer's recipient has none.
fn target_of<'a>(
    whose: Option<Whose>,
    is_direct: bool,
    caller: &'a mut Option<Target<'_>>,
    batches: &'a mut VecDeque<Posted>,
) -> Option<Target<'a>> {
    match whose? {
        Whose::Caller => caller.as_mut().map(Target::again),
        Whose::Batch if is_direct => caller.as_mut().map(Target::again),
        Whose::Batch => batches.front_mut().map(Posted::target),
        Whose::Counter | Whose::Nobody | Whose::Late => None,
    }
}
