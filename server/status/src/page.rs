//! The page of metrics: HTTP/1.1 on a loopback port, one thread, one connection at a time.
//!
//! It serves `GET /metrics` (Prometheus text) and `GET /status` (JSON) to processes of this host, and
//! nothing else. It shows names and numbers of jobs, no values and no secrets.

use std::fmt::Display;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use tidewater_runtime::clock::Deadline;

use super::Report;

/// Bytes of a request's head that are read.
const HEAD_BYTES_MAX: usize = 8 << 10;
/// Longest time for a request's head, and for each write of its answer.
const IO_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause after a connection that could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Why there is no page.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MetricsError {
    /// The address leads out of this host.
    #[error(
        "the page of metrics at {address} would be open to other hosts; give an address of loopback, \
         as in 127.0.0.1:9464"
    )]
    NotLoopback {
        /// Address that was given.
        address: SocketAddr,
    },
    /// The address cannot be listened on, or a thread cannot be started.
    #[error("the page of metrics at {address}: {source}; choose another port, or 0 for a free one")]
    Listen {
        /// Address that was given.
        address: SocketAddr,
        /// Error of the operating system.
        source: io::Error,
    },
}

/// A page that is served until this value is dropped.
#[derive(Debug)]
pub struct MetricsPage {
    address: SocketAddr,
    /// Dropping it ends the thread, which reads end of file.
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl MetricsPage {
    /// Serves the reports that `read` makes, one for each request, on a thread of its own.
    ///
    /// # Errors
    /// [`MetricsError`].
    pub fn serve<E: Display>(
        address: SocketAddr,
        read: impl Fn() -> Result<Report, E> + Send + 'static,
    ) -> Result<Self, MetricsError> {
        if !address.ip().is_loopback() {
            return Err(MetricsError::NotLoopback { address });
        }
        let failed = |source| MetricsError::Listen { address, source };
        let listener = TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let bound = listener.local_addr().map_err(failed)?;
        let (stop, stopped) = UnixStream::pair().map_err(failed)?;
        let thread = std::thread::Builder::new().name("tw-metrics".into());
        let thread = thread
            .spawn(move || {
                while is_ready(&listener, &stopped) {
                    match listener.accept() {
                        // A client that went away has no use for the rest.
                        Ok((stream, _)) => drop(answer(stream, &read)),
                        // Descriptors may have run out.
                        Err(_) => std::thread::sleep(ACCEPT_PAUSE),
                    }
                }
            })
            .map_err(failed)?;
        Ok(Self {
            address: bound,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Address that it listens on.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for MetricsPage {
    fn drop(&mut self) {
        self.stop = None;
        let ended = self.thread.take().map(JoinHandle::join);
        if ended.is_some_and(|ended| ended.is_err()) {
            tracing::error!("the page of metrics panicked: a defect, please report it");
        }
    }
}

/// Waits for a connection; false when the page ends.
fn is_ready(listener: &TcpListener, stopped: &UnixStream) -> bool {
    let mut fds = [
        PollFd::from_borrowed_fd(stopped.as_fd(), PollFlags::IN | PollFlags::RDHUP),
        PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN),
    ];
    let polled = rustix::io::retry_on_intr(|| rustix::event::poll(&mut fds, None));
    polled.is_ok() && fds[0].revents().is_empty()
}

fn answer<E: Display>(
    mut stream: TcpStream,
    read: &impl Fn() -> Result<Report, E>,
) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(IO_TIMEOUT))?;
    let head = head(&mut stream)?;
    let mut words = head.split_ascii_whitespace();
    let (method, path) = (words.next(), words.next());
    let (status, kind, body) = match (method, path) {
        (Some("GET"), Some("/metrics")) => match read() {
            Ok(report) => ("200 OK", "text/plain; version=0.0.4", report.prometheus()),
            Err(error) => (
                "503 Service Unavailable",
                "text/plain",
                format!("{error}\n"),
            ),
        },
        (Some("GET"), Some("/status")) => match read() {
            Ok(report) => {
                let json = serde_json::to_string(&report).map_err(io::Error::other)?;
                ("200 OK", "application/json", json)
            }
            Err(error) => (
                "503 Service Unavailable",
                "text/plain",
                format!("{error}\n"),
            ),
        },
        (Some("GET"), _) => {
            let body = "not found; there are /metrics and /status\n".to_owned();
            ("404 Not Found", "text/plain", body)
        }
        _ => {
            let body = "only GET\n".to_owned();
            ("405 Method Not Allowed", "text/plain", body)
        }
    };
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}; charset=utf-8\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())
}

/// Reads up to the empty line, and returns the first line.
fn head(stream: &mut TcpStream) -> io::Result<String> {
    let mut bytes = Vec::new();
    let mut piece = [0; 1024];
    let deadline = Deadline::after(IO_TIMEOUT);
    while !bytes.windows(4).any(|end| end == b"\r\n\r\n") {
        stream.set_read_timeout(Some(deadline.left().max(Duration::from_millis(1))))?;
        let count = stream.read(&mut piece)?;
        if count == 0 || deadline.passed() || bytes.len() > HEAD_BYTES_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        bytes.extend_from_slice(&piece[..count]);
    }
    let text = String::from_utf8_lossy(&bytes);
    Ok(text.lines().next().unwrap_or_default().to_owned())
}
