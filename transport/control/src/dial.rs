//! Opening a control connection over TCP: retries while the other end starts, and a limit to silence.

use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs as _};
use std::time::Duration;

use crate::conn::{ConnError, ControlConn};
use tidewater_protocol::limits::{CONTROL_SILENCE_MAX, HANDSHAKE_TIMEOUT};
use tidewater_protocol::wire::handshake::JobToken;
use tidewater_protocol::wire::hello::{Features, Hello, Ids, Purpose, RANDOM_BYTES, Role};
use tidewater_runtime::clock::Deadline;
use tidewater_runtime::socket_options::{give_up_after, send_at_once};

/// First pause between two attempts.
const PAUSE_FIRST: Duration = Duration::from_millis(20);
/// Longest pause between two attempts.
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// Identity that a process claims on a control connection.
#[derive(Debug, Clone)]
pub struct Claims {
    /// Ids of the peer that it means to reach; of a coordinator all 0.
    pub ids: Ids,
    /// Namespace of its job.
    pub namespace: String,
    /// Role of the process.
    pub role: Role,
    /// Its rank, or [`tidewater_protocol::wire::hello::RANK_ANY`].
    pub rank: u32,
}

/// Reason why there is no connection.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DialError {
    /// The address names no host.
    #[error("{address} cannot be resolved: {source}; write HOST:PORT of a host this one knows")]
    Unresolved {
        /// Address as it was given.
        address: String,
        /// Error of the resolver.
        source: io::Error,
    },
    /// No process accepted the connection in time.
    #[error(
        "no process listens at {address}: {source}; is the process started, and the port open in the \
         firewall?"
    )]
    Unreachable {
        /// Address as it was given.
        address: String,
        /// Error of the last attempt.
        source: io::Error,
    },
    /// The system gives no random bytes.
    #[error("no random bytes for the handshake: {0}; check that /dev/urandom exists")]
    Random(getrandom::Error),
    /// The connection was accepted, and the handshake failed.
    #[error("{address}: {source}")]
    Handshake {
        /// Address as it was given.
        address: String,
        /// Error of the handshake.
        source: ConnError,
    },
}

/// Connects and shakes hands. Retries until `deadline` while no process listens, since processes of a job
/// start in any order. A refusal is final.
///
/// # Errors
/// [`DialError`].
pub fn control(
    address: &str,
    token: &JobToken,
    claims: &Claims,
    deadline: Deadline,
) -> Result<ControlConn<TcpStream>, DialError> {
    let stream = connect(address, deadline)?;
    let mut random = [0; RANDOM_BYTES];
    getrandom::fill(&mut random).map_err(DialError::Random)?;
    let hello = Hello {
        features: Features::default(),
        ids: claims.ids,
        namespace: claims.namespace.clone(),
        role: claims.role,
        rank: claims.rank,
        purpose: Purpose::Control,
        random,
    };
    let limit = deadline.min(Deadline::after(HANDSHAKE_TIMEOUT));
    ControlConn::open(stream, token, hello, || limit.left()).map_err(|source| {
        let address = address.to_owned();
        DialError::Handshake { address, source }
    })
}

/// Opens a connected stream with [`tune`]'s options.
///
/// # Errors
/// [`DialError::Unresolved`], [`DialError::Unreachable`].
pub fn connect(address: &str, deadline: Deadline) -> Result<TcpStream, DialError> {
    let targets: Vec<SocketAddr> = match address.to_socket_addrs() {
        Ok(found) => found.collect(),
        Err(source) => {
            let address = address.to_owned();
            return Err(DialError::Unresolved { address, source });
        }
    };
    let mut pause = PAUSE_FIRST;
    loop {
        let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
        for target in &targets {
            let left = deadline.left().max(Duration::from_millis(1));
            match TcpStream::connect_timeout(target, left).and_then(tuned) {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            }
        }
        if deadline.left() <= pause {
            let address = address.to_owned();
            return Err(DialError::Unreachable {
                address,
                source: last,
            });
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

fn tuned(stream: TcpStream) -> io::Result<TcpStream> {
    tune(&stream)?;
    Ok(stream)
}

/// Sets no delay for small messages, and an error within [`CONTROL_SILENCE_MAX`] when the other host
/// vanishes. A peer that only computes stays connected: its kernel acknowledges.
///
/// # Errors
/// The error of the system call.
pub fn tune(stream: &TcpStream) -> io::Result<()> {
    send_at_once(stream)?;
    give_up_after(stream, CONTROL_SILENCE_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::net::TcpListener;

    #[test]
    fn waits_for_a_listener_and_names_an_address_without_one() {
        let free = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap();
        let late = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(60));
            TcpListener::bind(free).unwrap().accept().map(|_| ())
        });
        connect(&free.to_string(), Deadline::after(Duration::from_secs(20))).unwrap();
        late.join().unwrap().unwrap();
        let error = connect(
            &free.to_string(),
            Deadline::after(Duration::from_millis(50)),
        );
        let error = error.unwrap_err().to_string();
        assert!(
            error.contains(&free.to_string()) && error.contains("is the process"),
            "{error}"
        );
        let error = connect("no port", Deadline::after(Duration::ZERO)).unwrap_err();
        assert!(matches!(error, DialError::Unresolved { .. }), "{error}");
    }
}
