//! Children's output: split into lines, queued, written when the reader accepts it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use tidewater_protocol::limits::{
    OUTPUT_LINE_BYTES_MAX, OUTPUT_QUEUE_BYTES_MAX, QUOTED_LINE_BYTES_MAX, REMOTE_LINE_BYTES_MAX,
};

use super::remote::greeted;

/// Bytes that a writable pipe or terminal accepts without blocking (`PIPE_BUF`).
const CHUNK_BYTES: usize = 4096;
/// Bytes written in a turn, before the loop serves something else.
const TURN_BYTES: usize = 64 << 10;

/// Destination of lines: a queue in front of a descriptor that the loop never blocks on.
#[derive(Debug)]
pub(super) struct Sink {
    fd: OwnedFd,
    queue: Vec<u8>,
    /// Bytes of `queue` that are written already.
    written: usize,
    broken: bool,
    lost: u64,
}

impl Sink {
    /// Writes to `fd` and does not change its flags: other processes share them.
    pub(super) fn new(fd: OwnedFd) -> Self {
        Self {
            fd,
            queue: Vec::new(),
            written: 0,
            broken: false,
            lost: 0,
        }
    }

    /// Whether bytes wait to be written.
    pub(super) fn is_pending(&self) -> bool {
        self.written < self.queue.len()
    }

    /// Whether children may be read: the queue is below its limit.
    pub(super) fn has_room(&self) -> bool {
        self.queue.len() - self.written < OUTPUT_QUEUE_BYTES_MAX
    }

    /// Bytes that no reader took.
    pub(super) fn lost(&self) -> u64 {
        self.lost
    }

    /// Queues bytes for the reader.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        if self.broken {
            self.lost += bytes.len() as u64;
        } else {
            self.queue.extend_from_slice(bytes);
        }
    }

    /// Writes as much as the reader accepts at once, at most a turn's worth; never blocks. Returns
    /// whether any byte was written.
    pub(super) fn write_some(&mut self) -> bool {
        let end = self.queue.len().min(self.written + TURN_BYTES);
        let before = self.written;
        while self.written < end && is_writable(self.fd.as_fd()) {
            let chunk = &self.queue[self.written..end.min(self.written + CHUNK_BYTES)];
            match rustix::io::write(&self.fd, chunk) {
                Ok(count) => self.written += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                // The reader went away, or the disk is full. The job is worth more than its output:
                // it continues, and the outcome has the number of lost bytes.
                Err(_) => {
                    self.give_up();
                    return true;
                }
            }
        }
        let moved = self.written > before;
        if self.written == self.queue.len() {
            self.queue.clear();
            self.written = 0;
        } else if self.written >= OUTPUT_QUEUE_BYTES_MAX {
            self.queue.drain(..self.written);
            self.written = 0;
        }
        moved
    }

    /// Drops queued bytes and all later ones.
    pub(super) fn give_up(&mut self) {
        self.lost += (self.queue.len() - self.written) as u64;
        self.queue = Vec::new();
        self.written = 0;
        self.broken = true;
    }
}

impl AsFd for Sink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Splits one stream of a child into lines.
#[derive(Debug)]
pub(super) struct Lines {
    prefix: Vec<u8>,
    /// Bytes pass unchanged: this is the only stream of its sink.
    verbatim: bool,
    /// The beginning of an unfinished line.
    held: Vec<u8>,
    /// The last line that was not blank, shortened.
    last: Vec<u8>,
}

impl Lines {
    /// Puts `prefix`, which may be empty, in front of lines.
    pub(super) fn new(prefix: Vec<u8>, verbatim: bool) -> Self {
        Self {
            prefix,
            verbatim,
            held: Vec::new(),
            last: Vec::new(),
        }
    }

    /// Passes on the complete lines of `bytes`, which may be any, and holds the rest. A line over
    /// the limit is broken in two.
    pub(super) fn accept(&mut self, bytes: &[u8], sink: &mut Sink) {
        if self.verbatim {
            sink.push(bytes);
            return;
        }
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (mut text, ended) = match piece.strip_suffix(b"\n") {
                Some(text) => (text, true),
                None => (piece, false),
            };
            while self.held.len() + text.len() > OUTPUT_LINE_BYTES_MAX {
                let (fits, rest) = text.split_at(OUTPUT_LINE_BYTES_MAX - self.held.len());
                self.held.extend_from_slice(fits);
                self.emit(sink);
                text = rest;
            }
            self.held.extend_from_slice(text);
            if ended {
                self.emit(sink);
            }
        }
    }

    /// Passes on the held rest as a line: the stream has ended.
    pub(super) fn finish(&mut self, sink: &mut Sink) {
        if !self.held.is_empty() {
            self.emit(sink);
        }
    }

    /// The last line that was not blank, as text without control characters.
    pub(super) fn last_line(&self) -> Option<String> {
        let held = self.held.trim_ascii();
        let line = if held.is_empty() { &self.last } else { held };
        let line = &line[..line.len().min(QUOTED_LINE_BYTES_MAX)];
        let text = String::from_utf8_lossy(line);
        let shown = |c: char| if c.is_control() { '?' } else { c };
        (!text.is_empty()).then(|| text.chars().map(shown).collect())
    }

    fn emit(&mut self, sink: &mut Sink) {
        sink.push(&self.prefix);
        sink.push(&self.held);
        sink.push(b"\n");
        let line = self.held.trim_ascii();
        if !line.is_empty() {
            self.last.clear();
            self.last
                .extend_from_slice(&line[..line.len().min(QUOTED_LINE_BYTES_MAX)]);
        }
        self.held.clear();
    }
}

/// One output stream of a child.
#[derive(Debug)]
pub(super) struct Stream {
    fd: OwnedFd,
    lines: Lines,
    /// Index of its sink.
    pub(super) sink: usize,
    /// Output before the greeting line of a process on another host.
    early: Option<Vec<u8>>,
}

/// Result of reading a stream once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Taken {
    /// This number of bytes.
    Bytes(usize),
    /// Bytes before the greeting of a process on another host, or with it.
    Early,
    /// No bytes available now.
    Empty,
    /// End of the stream.
    End,
}

impl Stream {
    /// Takes the parent's end of a child's pipe, which becomes non-blocking.
    pub(super) fn new(fd: OwnedFd, lines: Lines, sink: usize) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&fd, true)?;
        let early = None;
        Ok(Self {
            fd,
            lines,
            sink,
            early,
        })
    }

    /// Waits for the greeting of a process on another host, which it sends before output.
    pub(super) fn before_greeting(mut self) -> Self {
        self.early = Some(Vec::new());
        self
    }

    /// The process id in the greeting, once it has come: from then on bytes pass. Lines before it
    /// are the remote shell's, and are dropped.
    pub(super) fn greeting(&mut self, sink: &mut Sink) -> Option<i32> {
        let early = self.early.as_mut()?;
        while let Some(end) = early.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = early.drain(..=end).collect();
            if let Some(pid) = greeted(&line) {
                let rest = self.early.take().unwrap_or_default();
                self.lines.accept(&rest, sink);
                return Some(pid);
            }
        }
        let excess = early.len().saturating_sub(REMOTE_LINE_BYTES_MAX);
        early.drain(..excess);
        None
    }

    /// Reads the stream once.
    pub(super) fn take(&mut self, scratch: &mut [u8], sink: &mut Sink) -> Taken {
        match rustix::io::read(&self.fd, &mut *scratch) {
            Ok(0) => Taken::End,
            Ok(count) => match &mut self.early {
                Some(early) => {
                    early.extend_from_slice(&scratch[..count]);
                    Taken::Early
                }
                None => {
                    self.lines.accept(&scratch[..count], sink);
                    Taken::Bytes(count)
                }
            },
            Err(Errno::AGAIN | Errno::INTR) => Taken::Empty,
            Err(_) => Taken::End,
        }
    }

    /// Passes on an unfinished last line.
    pub(super) fn finish(&mut self, sink: &mut Sink) {
        self.lines.finish(sink);
    }

    /// The last line that was not blank, see [`Lines::last_line`].
    pub(super) fn last_line(&self) -> Option<String> {
        self.lines.last_line()
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Whether a write of [`CHUNK_BYTES`] would not block. Errors count as writable: the write reports
/// them.
fn is_writable(fd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::OUT)];
    let at_once = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    match rustix::event::poll(&mut fds, Some(&at_once)) {
        Ok(ready) => ready > 0,
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::fs::File;
    use std::io::{Read as _, Seek as _};

    fn through(lines: &mut Lines, pieces: &[&[u8]]) -> Vec<u8> {
        let mut file = tempfile::tempfile().unwrap();
        let mut sink = Sink::new(file.try_clone().unwrap().into());
        for piece in pieces {
            lines.accept(piece, &mut sink);
        }
        lines.finish(&mut sink);
        while sink.is_pending() {
            assert!(sink.write_some());
        }
        let mut text = Vec::new();
        file.rewind().unwrap();
        file.read_to_end(&mut text).unwrap();
        text
    }

    #[test]
    fn lines_are_joined_and_prefixed_whatever_their_bytes() {
        let mut lines = Lines::new(b"[w] ".to_vec(), false);
        let text = through(&mut lines, &[b"a", b"b\n\n", b"\xff\0\r", b"\nlast\x1b"]);
        assert_eq!(text, b"[w] ab\n[w] \n[w] \xff\0\r\n[w] last\x1b\n");
        assert_eq!(lines.last_line().as_deref(), Some("last?"));
    }

    #[test]
    fn the_only_stream_of_a_sink_is_not_touched() {
        let mut lines = Lines::new(Vec::new(), true);
        assert_eq!(through(&mut lines, &[b"no newline"]), b"no newline");
    }

    #[test]
    fn a_long_line_is_broken_and_loses_nothing() {
        let mut lines = Lines::new(b"> ".to_vec(), false);
        let piece = vec![b'x'; 60_000];
        let count = 2 * OUTPUT_LINE_BYTES_MAX / piece.len() + 1;
        let pieces: Vec<&[u8]> = (0..count).map(|_| piece.as_slice()).collect();
        let text = through(&mut lines, &pieces);
        assert_eq!(
            text.iter().filter(|byte| **byte == b'x').count(),
            count * piece.len()
        );
        let longest = text.split(|byte| *byte == b'\n').map(<[u8]>::len).max();
        assert_eq!(longest, Some(OUTPUT_LINE_BYTES_MAX + 2));
        assert!(lines.last_line().unwrap().len() <= QUOTED_LINE_BYTES_MAX);
    }

    #[test]
    fn a_line_of_exactly_the_limit_stays_whole() {
        let mut lines = Lines::new(Vec::new(), false);
        let mut line = vec![b'x'; OUTPUT_LINE_BYTES_MAX];
        line.push(b'\n');
        assert_eq!(
            through(&mut lines, &[&line[..500_000], &line[500_000..]]),
            line
        );
    }

    #[test]
    fn a_reader_that_stops_blocks_nobody_and_one_that_leaves_is_counted() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let mut sink = Sink::new(writer);
        sink.push(&vec![b'y'; OUTPUT_QUEUE_BYTES_MAX]);
        assert!(!sink.has_room());
        while sink.write_some() {}
        assert!(
            sink.is_pending(),
            "the pipe is full, and write_some came back"
        );
        let mut taken = vec![0; CHUNK_BYTES];
        File::from(reader).read_exact(&mut taken).unwrap();
        sink.write_some();
        assert!(!sink.is_pending() && sink.lost() > 0);
        let lost = sink.lost();
        sink.push(b"more");
        assert_eq!(sink.lost(), lost + 4);
    }
}
