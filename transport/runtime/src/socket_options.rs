//! Options of TCP sockets, the same on control connections and lanes.

use std::io;
use std::net::TcpStream;
use std::time::Duration;

use rustix::net::sockopt;

use tidewater_protocol::mutants::{self, Mutant};

/// Disables Nagle's algorithm (`TCP_NODELAY`) on a TCP socket, so that small messages leave without
/// delay.
///
/// # Errors
/// The error of the system call.
pub fn send_at_once(stream: &TcpStream) -> io::Result<()> {
    match mutants::on(Mutant::NagleLeftOn) {
        false => stream.set_nodelay(true),
        true => Ok(()),
    }
}

/// Sets keepalive and `TCP_USER_TIMEOUT` so that the kernel breaks the connection after about `silence`
/// without an acknowledgement. That holds for an idle connection, and for sent data that the other host
/// does not acknowledge or has no room for. Does not block.
///
/// # Errors
/// The error of the system call; some of the options may then be set.
pub fn give_up_after(stream: &TcpStream, silence: Duration) -> io::Result<()> {
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, silence / 2)?;
    sockopt::set_tcp_keepintvl(stream, silence / 5)?;
    sockopt::set_tcp_keepcnt(stream, 3)?;
    let timeout_ms = u32::try_from(silence.as_millis()).unwrap_or(u32::MAX);
    sockopt::set_tcp_user_timeout(stream, timeout_ms)?;
    Ok(())
}
