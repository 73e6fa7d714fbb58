//! A blocking control connection for a caller that has a deadline.
//!
//! The caller passes `left`, which returns the rest of its time (`|| deadline.left()`). Each read and write
//! is armed with it, so that a peer that sends one byte at a time gains nothing.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use tidewater_protocol::limits::{NOTICES_MAX, REQUESTS_STARTED_MAX};
use tidewater_protocol::wire::WireError;
use tidewater_protocol::wire::control::{self, Answer, Message, Notice, Request};
use tidewater_protocol::wire::frame::{Decoder, kind};
use tidewater_protocol::wire::handshake::{ClientHandshake, HandshakeError, JobToken};
use tidewater_protocol::wire::hello::{Hello, Welcome};
use tidewater_protocol::wire::peer::ControlPeer;
use tidewater_protocol::wire::refusal::Refusal;

/// Bytes that one read requests.
const READ_BYTES: usize = 16 << 10;

/// A byte stream with a timeout for its next read or write.
pub trait TimedStream: Read + Write {
    /// Sets the timeout; `left` is not zero.
    ///
    /// # Errors
    /// Those of the operating system.
    fn set_time_left(&mut self, left: Duration) -> io::Result<()>;
}

impl TimedStream for TcpStream {
    fn set_time_left(&mut self, left: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(left))?;
        self.set_write_timeout(Some(left))
    }
}

impl TimedStream for UnixStream {
    fn set_time_left(&mut self, left: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(left))?;
        self.set_write_timeout(Some(left))
    }
}

/// Reason why a call has no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnError {
    /// A read or write of the connection failed.
    #[error(
        "control connection: {operation}: {source}; check that the peer lives and is reachable"
    )]
    Io {
        /// Operation that was tried.
        operation: &'static str,
        /// Error of the operating system.
        #[source]
        source: io::Error,
    },
    /// The peer closed the connection.
    #[error("control connection: closed by the peer during {operation}; look at its output")]
    Closed {
        /// Operation that was tried.
        operation: &'static str,
    },
    /// The caller's time is over. A later call may still succeed if this one was waiting for its answer,
    /// which is then dropped.
    #[error("control connection: no time left during {operation}; the peer is slow or stopped")]
    TimedOut {
        /// Operation that was tried.
        operation: &'static str,
    },
    /// As many requests as possible were started.
    #[error(
        "control connection: {REQUESTS_STARTED_MAX} requests are under way or have answers that nothing took; \
         finish the calls that are started"
    )]
    TooMany,
    /// The coordinator has come back with an older state than this process knows.
    #[error(
        "the coordinator is at start {found} of its journal, and this process has seen start {known} end: its \
         state is older; start it with the newest --state directory"
    )]
    Older {
        /// Start of the journal that the coordinator has.
        found: u64,
        /// Newest start that this process has seen.
        known: u64,
    },
    /// An earlier call stopped in the middle of a message.
    #[error("control connection: broken by an earlier error; connect again")]
    Broken,
    /// The handshake with the peer failed.
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    /// The peer sent bytes that are no message, or the own message must not be sent.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The peer refused the request.
    #[error(transparent)]
    Refused(#[from] Refusal),
}

/// One end of an authenticated control connection, used by one thread at a time. A call waits for its
/// answer. Requests that were started ([`ControlConn::start`]) may be under way meanwhile.
#[derive(Debug)]
pub struct ControlConn<S> {
    stream: S,
    decoder: Decoder,
    welcome: Welcome,
    last_id: u64,
    notices: VecDeque<Notice>,
    /// Requests that were started: kind and body of the answer, once it has arrived.
    started: BTreeMap<u64, Option<(u16, Vec<u8>)>>,
    /// A message was sent in part, or the stream's position is lost.
    broken: bool,
}

impl<S: TimedStream> ControlConn<S> {
    /// Shakes hands over `stream`. `hello.random` must be fresh from the system's random source.
    ///
    /// # Errors
    /// Those of the stream, the deadline or the handshake.
    pub fn open(
        mut stream: S,
        token: &JobToken,
        hello: Hello,
        left: impl Fn() -> Duration,
    ) -> Result<Self, ConnError> {
        let mut decoder = Decoder::unauthenticated();
        let mut out = Vec::new();
        let mut handshake = ClientHandshake::start(token, hello, &mut out)?;
        let welcome = loop {
            // A server may refuse and close before it has read everything. Its reason, if it can be read,
            // is more specific than the failed write.
            let written = write_all(&mut stream, &out, &left, "handshake");
            out.clear();
            // Exactly to the last byte: bytes after the welcome on a lane belong to its lane.
            match read_frame(&mut stream, &mut decoder, &left, Reach::Frame, "handshake") {
                Ok(()) => {}
                Err(error) => return Err(written.err().unwrap_or(error)),
            }
            let Some(frame) = decoder.next_frame()? else {
                continue;
            };
            let stepped = handshake.step(frame, &mut out)?;
            if let Some(welcome) = stepped {
                break welcome;
            }
            written?;
        };
        decoder.trust();
        let notices = VecDeque::new();
        Ok(Self {
            stream,
            decoder,
            welcome,
            last_id: 0,
            notices,
            started: BTreeMap::new(),
            broken: false,
        })
    }

    /// The authenticated identity of the peer.
    pub const fn welcome(&self) -> &Welcome {
        &self.welcome
    }

    /// The stream, for data that travels outside the bytes (descriptors).
    pub const fn stream_mut(&mut self) -> &mut S {
        &mut self.stream
    }

    /// Sends `request` and waits for its answer. Notices that arrive meanwhile are kept.
    ///
    /// # Errors
    /// [`ConnError::Refused`] if the peer refuses: the connection stays usable. After
    /// [`ConnError::TimedOut`] while waiting it stays usable too. All others are final.
    pub fn call<R: Request>(
        &mut self,
        request: &R,
        left: impl Fn() -> Duration,
    ) -> Result<R::Answer, ConnError> {
        self.call_with_news(request, left, |_| {})
    }

    /// As [`Self::call`]; hands each news of the request ([`Answer::is_news`]) to `news`. What `left` returns may
    /// depend on it.
    ///
    /// # Errors
    /// As of [`Self::call`].
    pub fn call_with_news<R: Request>(
        &mut self,
        request: &R,
        left: impl Fn() -> Duration,
        news: impl Fn(&R::Answer),
    ) -> Result<R::Answer, ConnError> {
        let id = self.send(request, &left)?;
        let answer = loop {
            match self.await_answer::<R::Answer>(id, &left, R::NAME) {
                Ok(answer) if answer.is_news() => news(&answer),
                answer => break answer,
            }
        };
        self.broken = !matches!(answer, Ok(_) | Err(ConnError::TimedOut { .. }));
        Ok(answer?.accepted()?)
    }

    /// Sends `request` and returns its number, by which [`Self::poll`] returns its answer.
    ///
    /// # Errors
    /// As of [`Self::call`], and [`ConnError::TooMany`]; all are final but that and an invalid request.
    pub fn start<R: Request>(
        &mut self,
        request: &R,
        left: impl Fn() -> Duration,
    ) -> Result<u64, ConnError> {
        if self.started.len() >= REQUESTS_STARTED_MAX {
            return Err(ConnError::TooMany);
        }
        let id = self.send(request, &left)?;
        self.started.insert(id, None);
        Ok(id)
    }

    /// Answer of a request that was started, which is then forgotten. `None` if another message arrived,
    /// or none while there was time left; without any time it looks at messages that were read before.
    ///
    /// # Errors
    /// As of [`Self::call`].
    ///
    /// # Panics
    /// The request was not started, or was forgotten.
    pub fn poll<R: Request>(
        &mut self,
        id: u64,
        left: impl Fn() -> Duration,
    ) -> Result<Option<R::Answer>, ConnError> {
        assert!(
            self.started.contains_key(&id),
            "request {id} is not under way"
        );
        if let Some(None) = self.started.get(&id) {
            if self.broken {
                return Err(ConnError::Broken);
            }
            // No call awaits its answer.
            let awaited = self.last_id + 1;
            let step = self.take_one::<NoAnswer>(awaited, &left, R::NAME);
            if let Err(error) = step
                && !matches!(error, ConnError::TimedOut { .. })
            {
                self.broken = true;
                return Err(error);
            }
        }
        let Some((kind, body)) = self.started.get_mut(&id).and_then(Option::take) else {
            return Ok(None);
        };
        self.started.remove(&id);
        let answer = control::decode_answer::<R::Answer>(kind, &body);
        self.broken |= answer.is_err();
        Ok(Some(answer?.accepted()?))
    }

    /// Whether the answer of a request that was started has arrived and waits for [`Self::poll`].
    pub fn has_answer(&self, id: u64) -> bool {
        matches!(self.started.get(&id), Some(Some(_)))
    }

    /// Drops the answer of a request that was started, when it arrives. The request goes on.
    pub fn forget(&mut self, id: u64) {
        self.started.remove(&id);
    }

    /// Counts a request without sending it. [`Self::send_again`] sends it, on this connection or on the one
    /// that succeeds it.
    ///
    /// # Errors
    /// [`ConnError::TooMany`].
    pub fn reserve(&mut self) -> Result<u64, ConnError> {
        if self.started.len() >= REQUESTS_STARTED_MAX {
            return Err(ConnError::TooMany);
        }
        self.last_id += 1;
        self.started.insert(self.last_id, None);
        Ok(self.last_id)
    }

    /// Sends a request under a number that was counted before.
    ///
    /// # Errors
    /// As of [`Self::call`], and those of an invalid request.
    pub fn send_again<R: Request>(
        &mut self,
        id: u64,
        request: &R,
        left: impl Fn() -> Duration,
    ) -> Result<(), ConnError> {
        if self.broken {
            return Err(ConnError::Broken);
        }
        let mut out = Vec::new();
        control::encode(id, request, &mut out)?;
        write_all(&mut self.stream, &out, left, R::NAME).inspect_err(|_| self.broken = true)
    }

    /// Makes this connection the successor of `earlier`, which is lost: takes its numbers, its started
    /// requests, answers and notices that have arrived. Sends `first` before all others and returns its
    /// number.
    ///
    /// # Errors
    /// As of [`Self::start`]; `earlier` is unchanged then.
    pub fn succeed<R: Request>(
        &mut self,
        earlier: &mut Self,
        first: &R,
        left: impl Fn() -> Duration,
    ) -> Result<u64, ConnError> {
        self.last_id = earlier.last_id;
        let id = self.send(first, &left)?;
        self.started = std::mem::take(&mut earlier.started);
        self.started.insert(id, None);
        self.notices.append(&mut earlier.notices);
        Ok(id)
    }

    fn send<R: Request>(
        &mut self,
        request: &R,
        left: &impl Fn() -> Duration,
    ) -> Result<u64, ConnError> {
        let id = self.last_id + 1;
        let sent = self.send_again(id, request, left);
        // An invalid request is not sent, and takes no number.
        if self.broken || sent.is_ok() {
            self.last_id = id;
        }
        sent.map(|()| id)
    }

    /// The oldest notice kept, without reading.
    pub fn take_notice(&mut self) -> Option<Notice> {
        self.notices.pop_front()
    }

    /// Waits for a notice.
    ///
    /// # Errors
    /// As of [`Self::call`]; after [`ConnError::TimedOut`] the connection stays usable.
    pub fn wait_notice(&mut self, left: impl Fn() -> Duration) -> Result<Notice, ConnError> {
        loop {
            if let Some(notice) = self.notices.pop_front() {
                return Ok(notice);
            }
            if self.broken {
                return Err(ConnError::Broken);
            }
            // No answer is awaited; late ones of calls that timed out are dropped.
            let awaited = self.last_id + 1;
            let step = self.take_one::<NoAnswer>(awaited, &left, "waiting for a notice");
            self.broken = !matches!(step, Ok(_) | Err(ConnError::TimedOut { .. }));
            step?;
        }
    }

    /// Dissolves the connection: returns the stream and bytes that came after the last message. From here
    /// on a lane owns the connection.
    pub fn into_parts(self) -> (S, Vec<u8>) {
        (self.stream, self.decoder.into_rest())
    }

    /// The stream and an event loop's buffers for it, for a process that also handles requests over the
    /// connection it opened. Notices not taken are lost.
    pub fn into_peer(self) -> (S, ControlPeer) {
        (self.stream, ControlPeer::authenticated(self.decoder))
    }

    fn await_answer<A: Answer>(
        &mut self,
        id: u64,
        left: impl Fn() -> Duration,
        operation: &'static str,
    ) -> Result<A, ConnError> {
        loop {
            if let Some(answer) = self.take_one::<A>(id, &left, operation)? {
                return Ok(answer);
            }
        }
    }

    /// Reads one frame: the awaited answer, or a notice that is kept, or a late answer.
    fn take_one<A: Message>(
        &mut self,
        awaited: u64,
        left: impl Fn() -> Duration,
        operation: &'static str,
    ) -> Result<Option<A>, ConnError> {
        let (stream, decoder) = (&mut self.stream, &mut self.decoder);
        read_frame(stream, decoder, left, Reach::Everything, operation)?;
        let Some(frame) = self.decoder.next_frame()? else {
            return Ok(None);
        };
        if frame.kind() == kind::NOTICE {
            let (_, notice) = control::decode(&frame)?;
            if self.notices.len() == NOTICES_MAX {
                // The newest are the most useful: a membership supersedes those before.
                self.notices.pop_front();
            }
            self.notices.push_back(notice);
            return Ok(None);
        }
        let (id, _) = frame
            .body()
            .split_first_chunk()
            .ok_or(WireError::Malformed {
                what: A::NAME,
                why: "has no id",
            })?;
        match u64::from_le_bytes(*id) {
            id if id == awaited => Ok(Some(control::decode::<A>(&frame)?.1)),
            id if (1..=self.last_id).contains(&id) => {
                // Also a second answer: the first one stands.
                if let Some(answer @ None) = self.started.get_mut(&id) {
                    *answer = Some((frame.kind(), frame.body().to_vec()));
                }
                Ok(None)
            }
            _ => Err(WireError::Malformed {
                what: A::NAME,
                why: "answers nothing asked",
            }
            .into()),
        }
    }
}

/// Answer type of no request: no frame is of its kind.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
enum NoAnswer {}

impl Message for NoAnswer {
    const KIND: u16 = 0;
    const NAME: &'static str = "answer";

    fn validate(&self) -> Result<(), WireError> {
        match *self {}
    }
}

/// Amount that one read requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// No byte past the frame.
    Frame,
    /// All bytes that have arrived.
    Everything,
}

/// Reads until the decoder holds a complete frame (or an error, which its caller meets).
fn read_frame<S: TimedStream>(
    stream: &mut S,
    decoder: &mut Decoder,
    left: impl Fn() -> Duration,
    reach: Reach,
    operation: &'static str,
) -> Result<(), ConnError> {
    let mut bytes = vec![0; READ_BYTES];
    while !decoder.is_ready() {
        // Bytes that do not fit stay in the socket.
        let wanted = match reach {
            Reach::Frame => decoder.missing(),
            Reach::Everything => decoder.room(),
        };
        let room = wanted.min(bytes.len());
        let count = retry(stream, &left, operation, |s| s.read(&mut bytes[..room]))?;
        if count == 0 {
            return Err(ConnError::Closed { operation });
        }
        let taken = decoder.push(&bytes[..count]);
        debug_assert_eq!(taken, count, "no more is read than fits");
    }
    Ok(())
}

fn write_all<S: TimedStream>(
    stream: &mut S,
    mut bytes: &[u8],
    left: impl Fn() -> Duration,
    operation: &'static str,
) -> Result<(), ConnError> {
    while !bytes.is_empty() {
        let count = retry(stream, &left, operation, |s| s.write(bytes))?;
        if count == 0 {
            return Err(ConnError::Closed { operation });
        }
        bytes = bytes.get(count..).unwrap_or_default();
    }
    Ok(())
}

/// One read or write, armed with the time left; signals do not end it.
fn retry<S: TimedStream>(
    stream: &mut S,
    left: impl Fn() -> Duration,
    operation: &'static str,
    mut io: impl FnMut(&mut S) -> io::Result<usize>,
) -> Result<usize, ConnError> {
    loop {
        let time = left();
        if time.is_zero() {
            return Err(ConnError::TimedOut { operation });
        }
        let done = stream.set_time_left(time).and_then(|()| io(stream));
        let source = match done {
            Ok(count) => return Ok(count),
            Err(source) => source,
        };
        match source.kind() {
            io::ErrorKind::Interrupted => {}
            // The socket's timer may be a little early: `left` decides.
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {}
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
                return Err(ConnError::Closed { operation });
            }
            _ => return Err(ConnError::Io { operation, source }),
        }
    }
}

#[cfg(test)]
mod tests;
