//! Reconnection of a server to a restarted coordinator. Meanwhile the server's threads serve clients as
//! before.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use tidewater_control::conn::ConnError;
use tidewater_control::dial::{self, Claims, DialError};
use tidewater_protocol::limits::{COORDINATOR_ABSENCE_MAX, DATA_DEADLINE};
use tidewater_protocol::wire::control::{CoordinatorAnswer, CoordinatorRequest, Join};
use tidewater_protocol::wire::handshake::{HandshakeError, JobToken};
use tidewater_protocol::wire::hello::{Ids, NAMESPACE_DEFAULT, Role};
use tidewater_protocol::wire::refusal::{Refusal, RefusalCode};
use tidewater_runtime::clock::Deadline;
use tidewater_runtime::socket_options::give_up_after;

use super::{Agent, AgentError, Ended, Enlisted, LostCause, NONSENSE, Orders};

/// Pause between two attempts to connect.
const PAUSE: Duration = Duration::from_millis(50);
/// Time limit of one attempt to connect.
const ATTEMPT: Duration = Duration::from_secs(1);

/// What a server needs to reconnect to a restarted coordinator and be recognised.
#[derive(Debug)]
pub(super) struct ReturnAddress {
    pub(super) token: JobToken,
    /// Silence of the coordinator's host after which the kernel closes the connection, if set.
    pub(super) lease: Option<Duration>,
    /// Ids of the coordinator at the last handshake.
    pub(super) ids: Ids,
    /// Join request with which the server first joined.
    pub(super) join: Join,
}

impl Agent {
    /// Connects again, before the server has joined, to a coordinator that is restarting; blocks until it is
    /// connected, at most until `limit`. An older start of the coordinator is an error.
    pub(super) fn dial_again(&mut self, limit: Deadline) -> Result<(), AgentError> {
        tracing::warn!(
            coordinator = self.address,
            "the coordinator is lost before the server has joined"
        );
        let known = self.ids();
        let claims = Claims {
            ids: Ids {
                cluster: known.cluster,
                ..Ids::default()
            },
            namespace: NAMESPACE_DEFAULT.to_owned(),
            role: Role::Server,
            rank: self.number.0,
        };
        self.conn = dial::control(&self.address, &self.token, &claims, limit)?;
        let [found, known] = [self.ids(), known].map(|ids| ids.incarnation.0);
        if found < known {
            let address = self.address.clone();
            let source = ConnError::Older { found, known };
            return Err(AgentError::Join { address, source });
        }
        match self.lease {
            Some(lease) => self.set_lease(lease),
            None => Ok(()),
        }
    }
}

impl Enlisted {
    /// Tries to reconnect to the coordinator and join again; blocks for up to `COORDINATOR_ABSENCE_MAX`. `cause` is
    /// logged. Returns `None` when it has joined, `Some` if the caller or the coordinator ends the server.
    ///
    /// # Errors
    /// Another attempt cannot succeed or comes too late, or this server has failed: the server must end.
    pub(super) fn reconnect(
        &mut self,
        node: &dyn Orders,
        stop: &[BorrowedFd<'_>],
        cause: &LostCause,
    ) -> Result<Option<Ended>, AgentError> {
        tracing::warn!(
            coordinator = self.address,
            why = %cause,
            "the coordinator is lost; clients are served meanwhile"
        );
        let limit = Deadline::after(COORDINATOR_ABSENCE_MAX);
        loop {
            let own = node.failure_descriptor();
            let wanted = PollFlags::IN | PollFlags::RDHUP;
            let mut fds: Vec<PollFd<'_>> = stop.iter().map(|fd| PollFd::new(fd, wanted)).collect();
            fds.push(PollFd::from_borrowed_fd(own, PollFlags::IN));
            let pause = PAUSE.try_into().ok();
            match rustix::event::poll(&mut fds, pause.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(self.wait_error(error.into())),
            }
            if let Some(why) = node.failure() {
                return Err(AgentError::ServerFailed(why.to_owned()));
            }
            if fds[..stop.len()].iter().any(|fd| !fd.revents().is_empty()) {
                return Ok(Some(Ended::ByCaller));
            }
            let last = match self.try_to_join() {
                Ok(()) => {
                    tracing::warn!(coordinator = self.address, "the coordinator is back");
                    return Ok(None);
                }
                Err(Attempt::Ending(refusal)) => {
                    tracing::warn!(%refusal, "the coordinator is back, and ends");
                    return Ok(Some(Ended::ByOrder));
                }
                Err(Attempt::Final(error)) => return Err(error),
                Err(Attempt::Failed(why)) => why,
            };
            if limit.passed() {
                let seconds = COORDINATOR_ABSENCE_MAX.as_secs();
                return Err(self.lost(LostCause::NotReturned { seconds, last }));
            }
        }
    }

    fn try_to_join(&mut self) -> Result<(), Attempt> {
        let Some(return_address) = &mut self.return_address else {
            return Err(Attempt::Failed("it keeps no journal".into()));
        };
        let claims = Claims {
            ids: Ids {
                cluster: return_address.ids.cluster,
                ..Ids::default()
            },
            namespace: NAMESPACE_DEFAULT.to_owned(),
            role: Role::Server,
            rank: self.number.0,
        };
        let address = self.address.clone();
        let dialed = dial::control(
            &address,
            &return_address.token,
            &claims,
            Deadline::after(ATTEMPT),
        );
        let mut conn = match dialed {
            Ok(conn) => conn,
            Err(DialError::Handshake {
                source: ConnError::Handshake(HandshakeError::RefusedByPeer(refusal)),
                ..
            }) => return Err(refused(address, refusal)),
            Err(error) => return Err(Attempt::Failed(error.to_string())),
        };
        let ids = conn.welcome().ids;
        let [found, known] = [ids, return_address.ids].map(|ids| ids.incarnation.0);
        if found <= known {
            let source = ConnError::Older { found, known };
            return Err(Attempt::Final(AgentError::Join { address, source }));
        }
        let deadline = Deadline::after(DATA_DEADLINE);
        let join = CoordinatorRequest::Join(return_address.join.clone());
        match conn.call(&join, || deadline.left()) {
            Ok(CoordinatorAnswer::Joined(_)) => {}
            Ok(_) => return Err(Attempt::Final(self.lost(NONSENSE))),
            Err(ConnError::Refused(refusal)) => return Err(refused(address, refusal)),
            Err(error) => return Err(Attempt::Failed(error.to_string())),
        }
        return_address.ids = ids;
        let lease = return_address.lease;
        (self.stream, self.peer) = conn.into_peer();
        if let Some(lease) = lease {
            let set = give_up_after(&self.stream, lease);
            set.map_err(|source| Attempt::Final(self.wait_error(source)))?;
        }
        Ok(())
    }
}

/// Outcome of an attempt to reconnect that did not succeed.
enum Attempt {
    /// A later attempt may succeed.
    Failed(String),
    /// The cluster is ending.
    Ending(Refusal),
    /// No later attempt can succeed.
    Final(AgentError),
}

fn refused(address: String, refusal: Refusal) -> Attempt {
    match refusal.code {
        RefusalCode::ShuttingDown => Attempt::Ending(refusal),
        _ => Attempt::Final(AgentError::Join {
            address,
            source: refusal.into(),
        }),
    }
}
