//! Signals of the launcher, as descriptors that its loop polls.

use std::io::{self, Read as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use rustix::process::Signal;
use signal_hook::SigId;

use super::error::LaunchError;

/// Signals that are passed on. SIGHUP comes first; see [`Signals::catch`].
const CAUGHT: [Signal; 5] = [
    Signal::HUP,
    Signal::INT,
    Signal::TERM,
    Signal::USR1,
    Signal::USR2,
];

/// The signals caught while this value lives; afterwards they are caught without effect.
#[derive(Debug)]
pub(super) struct Signals(Vec<Caught>);

#[derive(Debug)]
struct Caught {
    signal: Signal,
    arrived: UnixStream,
    registration: SigId,
}

impl Signals {
    /// Starts to catch. An ignored SIGHUP stays ignored: `nohup` relies on that.
    pub(super) fn catch() -> Result<Self, LaunchError> {
        let ignored = ignored_signals();
        let mut signals = Self(Vec::new());
        for signal in CAUGHT {
            let bit = 1 << (signal.as_raw() - 1);
            if signal == Signal::HUP && ignored & bit != 0 {
                continue;
            }
            signals
                .0
                .push(catch(signal).map_err(LaunchError::system("catch signals"))?);
        }
        Ok(signals)
    }

    /// One descriptor per signal, readable when it arrived.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.0.iter().map(|caught| caught.arrived.as_fd())
    }

    /// The signals that arrived since the last call, with their counts.
    pub(super) fn take(&mut self) -> Vec<(Signal, usize)> {
        let mut bytes = [0; 64];
        let mut times = |caught: &mut Caught| caught.arrived.read(&mut bytes).unwrap_or(0);
        let arrived = self
            .0
            .iter_mut()
            .map(|caught| (caught.signal, times(caught)));
        arrived.filter(|(_, times)| *times > 0).collect()
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        for caught in &self.0 {
            signal_hook::low_level::unregister(caught.registration);
        }
    }
}

fn catch(signal: Signal) -> io::Result<Caught> {
    let (arrived, handler) = UnixStream::pair()?;
    arrived.set_nonblocking(true)?;
    let registration = signal_hook::low_level::pipe::register(signal.as_raw(), handler)?;
    Ok(Caught {
        signal,
        arrived,
        registration,
    })
}

/// Bit n-1 is set if signal n is ignored; none if `/proc` does not say.
fn ignored_signals() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}
