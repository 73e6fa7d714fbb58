//! The line between the launcher and the servers and coordinator it started.
//!
//! It is a stream socket that the child finds as the descriptor named by `TIDEWATER_READY_FD` (0,
//! its stdin). Child to launcher: the coordinator's ready line `tidewater-coordinator ready
//! HOST:PORT` and a newline; anything else is ignored. Launcher to child: no bytes; end of file
//! means "stop now", whether the launcher closed it or died.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags};
use rustix::fs::{Mode, OFlags};
use tidewater_launch::is_address;
use tidewater_runtime::clock::Deadline;

const READY: &str = "tidewater-coordinator ready ";

/// The coordinator's line with its address. Without a launcher it goes to stdout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadyLine {
    /// `HOST:PORT` of the coordinator.
    pub address: String,
}

impl fmt::Display for ReadyLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{READY}{}", self.address)
    }
}

impl ReadyLine {
    /// Reads a line without its newline; `None` if it is another one.
    pub fn parse(line: &[u8]) -> Option<Self> {
        let address = std::str::from_utf8(line)
            .ok()?
            .trim_end()
            .strip_prefix(READY)?;
        is_address(address).then(|| Self {
            address: address.to_owned(),
        })
    }
}

/// A server's or coordinator's end of the line to its launcher.
#[derive(Debug)]
pub struct Control {
    fd: OwnedFd,
}

impl Control {
    /// Opens the line on descriptor `ready_fd` (`JobEnv::ready_fd`).
    ///
    /// 0, 1 and 2 may be sockets; any other must be a pipe, as it is opened again.
    ///
    /// # Errors
    /// The descriptor is not open for writing.
    pub fn open(ready_fd: u32) -> io::Result<Self> {
        let fd = match ready_fd {
            0 => io::stdin().as_fd().try_clone_to_owned()?,
            1 => io::stdout().as_fd().try_clone_to_owned()?,
            2 => io::stderr().as_fd().try_clone_to_owned()?,
            other => {
                let path = format!("/proc/self/fd/{other}");
                rustix::fs::open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?
            }
        };
        Ok(Self { fd })
    }

    /// Reports to the launcher that the coordinator listens.
    ///
    /// # Errors
    /// The launcher is gone.
    pub fn ready(&self, line: &ReadyLine) -> io::Result<()> {
        let text = format!("{line}\n");
        let mut left = text.as_bytes();
        while !left.is_empty() {
            let written = rustix::io::retry_on_intr(|| rustix::io::write(&self.fd, left))?;
            left = left.get(written..).unwrap_or_default();
        }
        Ok(())
    }

    /// Waits until the launcher asks for the end or is gone; `false` if `deadline` came first.
    ///
    /// A process with an event loop registers [`Control::as_fd`] instead; the hang-up that `epoll`
    /// reports by default means the same.
    ///
    /// # Errors
    /// `poll` failed.
    pub fn wait_stop(&self, deadline: Deadline) -> io::Result<bool> {
        let gone = PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
        loop {
            let mut fds = [PollFd::new(&self.fd, PollFlags::empty())];
            let left = deadline.left().try_into().ok();
            match rustix::event::poll(&mut fds, left.as_ref()) {
                Ok(_) if fds[0].revents().intersects(gone) => return Ok(true),
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            if deadline.passed() {
                return Ok(false);
            }
        }
    }
}

impl AsFd for Control {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::io::Read as _;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    #[test]
    fn lines_survive_the_trip_and_others_are_refused() {
        let line = ReadyLine {
            address: "[::1]:4000".into(),
        };
        assert_eq!(ReadyLine::parse(line.to_string().as_bytes()), Some(line));
        for wrong in [
            "",
            "ready a:1",
            "tidewater-coordinator ready",
            "tidewater-coordinator ready a",
        ] {
            assert_eq!(ReadyLine::parse(wrong.as_bytes()), None, "{wrong}");
        }
        assert_eq!(
            ReadyLine::parse(b"tidewater-coordinator ready \xff:1"),
            None
        );
    }

    #[test]
    fn tells_that_it_is_ready_and_sees_the_end() {
        let (child, mut launcher) = UnixStream::pair().unwrap();
        let control = Control { fd: child.into() };
        control
            .ready(&ReadyLine {
                address: "h:1".into(),
            })
            .unwrap();
        let mut line = [0; 32];
        launcher.read_exact(&mut line).unwrap();
        assert_eq!(&line, b"tidewater-coordinator ready h:1\n");
        assert!(
            !control
                .wait_stop(Deadline::after(Duration::from_millis(5)))
                .unwrap()
        );
        drop(launcher);
        assert!(
            control
                .wait_stop(Deadline::after(Duration::from_secs(5)))
                .unwrap()
        );
        assert!(
            control
                .ready(&ReadyLine {
                    address: "h:1".into()
                })
                .is_err()
        );
    }
}
