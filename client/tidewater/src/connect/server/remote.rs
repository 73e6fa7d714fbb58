//! Sessions between hosts: a control connection over TCP, and lanes that are connected one by one. Each
//! lane has a TCP connection of its own, or queue pairs.

use tidewater_bookkeeping::paths::Paths;
use tidewater_lanes::fabric::{ClientLane, LaneError, Mailbox, ReadDest, ReadOp, TransportKind};
use tidewater_lanes::tcp::TcpClientLane;
use tidewater_launch::TransportChoice;
use tidewater_protocol::ids::{ApplierId, SessionId};
use tidewater_protocol::layout::LINE_BYTES;
use tidewater_protocol::layout::lines::StateLine;
use tidewater_protocol::layout::session::{TICKET_WORD_BYTES, mailbox_bytes};
use tidewater_protocol::scale::pulling_pairs;
use tidewater_protocol::wire::control::{
    Attached, LaneGrant, ServerAnswer, ServerRequest, Transport, VerbsConnected,
};
use tidewater_protocol::wire::hello::Purpose;
use tidewater_protocol::wire::refusal::RefusalCode;
use tidewater_runtime::clock::Deadline;
use tidewater_runtime::mem::Region;
use tidewater_runtime::sync::Arc;
use tidewater_topology::PortCandidate;

use super::verbs::{LaneOffer, VerbsSide};
use super::{ATTEMPT, Attempt, Control, Failure, NetServerLink, Stream, status_of};
use crate::error::{Cause, ClientError};
use crate::link::{OpenLane, ServerLink as _};

impl NetServerLink {
    /// Opens a session with lanes over TCP: one connection for each applier of the server.
    pub(super) fn open_tcp(&mut self, deadline: Deadline) -> Attempt<Vec<OpenLane>> {
        self.become_of(TransportKind::Tcp);
        self.needs_tcp_address()?;
        let attached = self.attach_remote(Transport::Tcp, deadline)?;
        self.connect_lanes(&attached, deadline)
    }

    /// Opens a session with lanes over verbs, on the first pair of RDMA ports that passes its check. If verbs are
    /// unavailable it returns `Failure::Unfit`, and keeps an open control connection for the next transport.
    pub(super) fn open_verbs(&mut self, deadline: Deadline) -> Attempt<Vec<OpenLane>> {
        self.become_of(TransportKind::Verbs);
        self.needs_tcp_address()?;
        self.paths = Paths::new();
        loop {
            let opened = self.open_path(deadline);
            let failures = self.paths.failures();
            let why = match opened {
                Err(Failure::Unfit(why)) => why,
                Ok(lanes) => {
                    if !failures.is_empty() {
                        let server = &self.name;
                        tracing::warn!(
                            server,
                            failures,
                            "RDMA ports that do not connect are passed over"
                        );
                    }
                    return Ok(lanes);
                }
                failed => return failed,
            };
            if self.paths.may_try_again(&why.to_string()) {
                continue;
            }
            let separator = if failures.is_empty() { "" } else { "; " };
            return Err(Failure::Unfit(format!("{failures}{separator}{why}").into()));
        }
    }

    /// Makes one attempt to open a session over verbs, on the pair of RDMA ports that the server selects. If the pair
    /// is unusable, it ends the session, releases the port, and returns `Failure::Unfit`: the caller may try another
    /// pair.
    fn open_path(&mut self, deadline: Deadline) -> Attempt<Vec<OpenLane>> {
        let attached = self.attach_remote(Transport::Verbs, deadline)?;
        self.path_proved = false;
        let opened = self.use_path(&attached);
        let opened = opened.and_then(|()| self.connect_lanes(&attached, deadline));
        if matches!(opened, Err(Failure::Unfit(_))) {
            self.verbs = None;
            match self.ask(&ServerRequest::Detach, deadline) {
                Ok(_) => self.session = SessionId(0),
                // The server ends the session by itself some time after its connection; until then the rank
                // is taken.
                Err(_) => self.conn = None,
            }
        }
        opened
    }

    /// Opens the client's RDMA port of the pair that the server has selected. A port that does not open is excluded
    /// from further attempts.
    fn use_path(&mut self, attached: &Attached) -> Attempt<()> {
        let port = attached.path.and_then(|path| self.paths.select(path));
        let port =
            port.ok_or_else(|| self.wrong_answer("no ports, or others than were offered"))?;
        let opened = self.open_port(&port);
        if opened.is_err() {
            self.paths.fail_here();
        }
        opened
    }

    fn open_port(&mut self, port: &PortCandidate) -> Attempt<()> {
        // Ranks and threads of one host use different vectors.
        let vector = self.config.rank.wrapping_add(self.config.thread) as usize;
        let side = VerbsSide::new(port, self.config.fabric, &self.watch, &self.arms, vector);
        self.verbs = Some(Arc::new(side.map_err(unfit_for)?));
        Ok(())
    }

    fn needs_tcp_address(&self) -> Result<(), ClientError> {
        if !self.server.endpoints.tcp.is_empty() {
            return Ok(());
        }
        Err(ClientError::Environment(format!(
            "server {} does not listen on TCP, and shared memory cannot be had or was not asked \
             for; start the server with a TCP address, or the client on its host",
            self.server.id
        ).into()))
    }

    /// Requests a session with lanes over TCP or verbs, over the existing control connection or a new one, and
    /// stores it in the link. Repeats the request after a failed connection, and while an earlier session of
    /// this link still holds the rank. `Failure::Unfit` if the server refuses the transport or this host has no
    /// RDMA port; the control connection then stays open.
    fn attach_remote(&mut self, transport: Transport, deadline: Deadline) -> Attempt<Attached> {
        let mut first = true;
        let attached = self.attempts("attach", deadline, |link, deadline| {
            let mut conn = match link.conn.take() {
                Some(conn) => conn,
                None => link.connect(Purpose::Control, deadline)?,
            };
            let prepared = match transport {
                Transport::Verbs => link.prepare_verbs(&mut conn),
                _ => Ok(()),
            };
            let attempt = prepared.and_then(|()| link.attach(&mut conn, transport, deadline));
            let again = !std::mem::take(&mut first) || link.session != SessionId(0);
            match attempt {
                // The rank is taken by an earlier attempt or session of this link; the server has not yet
                // seen its end.
                Err(Failure::Final(ClientError::Refused(no)))
                    if again && no.code == RefusalCode::RankTaken =>
                {
                    Err(Failure::Again(no.into()))
                }
                Err(Failure::Final(ClientError::Refused(no)))
                    if no.code == RefusalCode::BadTransport =>
                {
                    link.conn = Some(conn);
                    Err(Failure::Unfit(no.into()))
                }
                Ok(_) | Err(Failure::Unfit(_)) => {
                    link.conn = Some(conn);
                    attempt
                }
                Err(_) => attempt,
            }
        })?;
        self.attached(&attached);
        Ok(attached)
    }

    /// Ranks the RDMA ports of this host by how they reach the server: the local address of the control connection
    /// is the hint. The ranked ports are offered to the server.
    fn prepare_verbs(&mut self, conn: &mut Control) -> Attempt<()> {
        let local = conn
            .stream_mut()
            .local()
            .ok_or_else(|| Failure::Again("the control connection has lost its address".into()))?;
        let names = self.config.rdma_device.as_ref();
        let (fabric, rank) = (self.config.fabric, self.config.local_rank);
        let ports = VerbsSide::ports(local, names, fabric, rank);
        self.paths.set_ports(ports.map_err(unfit_for)?);
        Ok(())
    }

    /// Opens the session's RDMA port again after its device has failed. Buffers that were registered with the
    /// failed device are ordinary memory from then on: reads into them copy.
    fn reopen_verbs(&mut self) -> Attempt<()> {
        let port = self.paths.port();
        let port = port.ok_or_else(|| Failure::Again("there is no port".into()))?;
        self.open_port(&port)
    }

    /// Connects the lanes of a new session, in the order of `attached.lanes`: those over verbs by one request,
    /// those over TCP one by one. A TCP lane with a failed connection is recovered; over verbs all lanes are.
    fn connect_lanes(&mut self, attached: &Attached, deadline: Deadline) -> Attempt<Vec<OpenLane>> {
        let grants = &attached.lanes;
        if self.transport == TransportKind::Verbs {
            return match self.verbs_lanes(grants, deadline) {
                Ok(lanes) => {
                    let pairs = grants.iter().zip(lanes);
                    Ok(pairs.map(|(grant, lane)| first(grant, lane)).collect())
                }
                Err(Failure::Again(why) | Failure::Absent(why)) => {
                    tracing::debug!(server = self.name, %why, "lanes to be recovered");
                    self.conn = None;
                    // One of them proves the path: if it cannot, there is still another pair or transport.
                    let mut recover = |grant: &LaneGrant| {
                        self.attempts("recover", deadline, |link, attempt| {
                            link.try_recover(grant.applier, attempt, deadline)
                        })
                    };
                    grants.iter().map(&mut recover).collect()
                }
                Err(failure) => Err(failure),
            };
        }
        let mut lanes = Vec::with_capacity(grants.len());
        for grant in grants {
            let attempt = deadline.min(Deadline::after(ATTEMPT));
            lanes.push(match self.tcp_lane(grant, attempt) {
                Ok(lane) => first(grant, Box::new(lane)),
                Err(Failure::Again(_) | Failure::Absent(_)) => {
                    self.recover(grant.applier, deadline)?
                }
                Err(failure) => return Err(failure),
            });
        }
        Ok(lanes)
    }

    /// Connects a granted lane over a TCP connection of its own, with a mailbox in this process's memory.
    pub(super) fn tcp_lane(&self, grant: &LaneGrant, deadline: Deadline) -> Attempt<TcpClientLane> {
        let purpose = Purpose::Lane {
            session: self.session,
            applier: grant.applier,
            nonce: grant.nonce,
        };
        let conn = self.connect(purpose, deadline)?;
        let (Stream::Tcp(stream), rest) = conn.into_parts() else {
            return Err(self.wrong_answer("a lane over a unix socket"));
        };
        let bytes = mailbox_bytes(self.config.ring_bytes);
        let memory = Region::anonymous(bytes).map(Arc::new);
        let mailbox = memory.and_then(|region| Mailbox::new(region, 0, bytes));
        let mailbox = mailbox.map_err(|e| ClientError::Environment(e.into()))?;
        let timeouts = stream
            .set_read_timeout(None)
            .and_then(|()| stream.set_write_timeout(None));
        timeouts.map_err(|e| Failure::Again(e.into()))?;
        TcpClientLane::new(stream, self.name.clone(), mailbox, self.watch.clone())
            .and_then(|lane| lane.early(&rest))
            .map_err(|e| Failure::Again(e.into()))
    }

    /// Drops the push counter of a lane over verbs, since `device` has no 64-bit atomics and cannot count
    /// pushes. If the program chose verbs explicitly, it fails with the remedy; otherwise it logs the reason
    /// (for applier 0 only, so once a session).
    fn go_uncounted(&mut self, applier: ApplierId, device: &str) -> Attempt<()> {
        let why = format!(
            "pushes are counted (--count-pushes), but {device} has no 64-bit atomics: start servers without \
             --count-pushes"
        );
        if self.config.transport == TransportChoice::Verbs {
            // The path is not the cause: no other pair of ports is tried.
            return Err(self.cannot(&why).into());
        }
        if let Some(counter) = self.counters.get_mut(usize::from(applier.0)) {
            *counter = None;
        }
        if applier.0 == 0 {
            let server = &self.name;
            tracing::warn!(
                server,
                "lanes over verbs without counts: {why}, or take --transport tcp"
            );
        }
        Ok(())
    }

    /// Connects one recovered lane over verbs: makes queue pairs at both ends and exchanges their numbers. Progress
    /// notices of the server extend the attempt up to `deadline`.
    pub(super) fn verbs_lane(
        &mut self,
        grant: &LaneGrant,
        deadline: Deadline,
    ) -> Attempt<Box<dyn ClientLane>> {
        let (side, offer) = self.offer(grant)?;
        let connect = offer.connect(grant.applier, grant.nonce);
        let request = ServerRequest::ConnectVerbs(connect);
        let connected = match self.ask_patiently(&request, deadline).map_err(unfit)? {
            ServerAnswer::VerbsConnected(connected) if connected.applier == grant.applier => {
                connected
            }
            _ => return Err(self.wrong_answer("another answer than to ConnectVerbs")),
        };
        self.opened(&side, grant, offer, &connected, deadline)
    }

    /// Connects all lanes of a session over verbs by one request to the server: makes queue pairs at both ends
    /// and exchanges their numbers. Returns the lanes in the order of `grants`. Progress notices of the server
    /// extend the attempt up to `deadline`.
    fn verbs_lanes(
        &mut self,
        grants: &[LaneGrant],
        deadline: Deadline,
    ) -> Attempt<Vec<Box<dyn ClientLane>>> {
        let mut offers = Vec::with_capacity(grants.len());
        let mut connects = Vec::with_capacity(grants.len());
        for grant in grants {
            let (side, offer) = self.offer(grant)?;
            connects.push(offer.connect(grant.applier, grant.nonce));
            offers.push((side, offer));
        }
        let request = ServerRequest::ConnectLanes(connects);
        let connected = match self.ask_patiently(&request, deadline).map_err(unfit)? {
            ServerAnswer::LanesConnected(connected) if connected.len() == grants.len() => connected,
            _ => return Err(self.wrong_answer("another answer than to ConnectLanes")),
        };
        let mut lanes = Vec::with_capacity(grants.len());
        for ((grant, (side, offer)), connected) in grants.iter().zip(offers).zip(&connected) {
            if connected.applier != grant.applier {
                return Err(self.wrong_answer("lanes in another order"));
            }
            lanes.push(self.opened(&side, grant, offer, connected, deadline)?);
        }
        Ok(lanes)
    }

    /// Makes the client's end of a lane over verbs: queue pairs and mailbox. Sends nothing; the caller sends the
    /// offer to the server. Reopens the port first if its device has failed. A failure before any lane of the
    /// session has proved its path excludes the port from further attempts.
    fn offer(&mut self, grant: &LaneGrant) -> Attempt<(Arc<VerbsSide>, LaneOffer)> {
        if self.verbs.as_ref().is_some_and(|side| side.has_failed()) {
            self.reopen_verbs()?;
        }
        let Some(side) = self.verbs.clone() else {
            return Err(Failure::Again("there is no RDMA port".into()));
        };
        let mailbox = mailbox_bytes(self.config.ring_bytes);
        let counts = grant.ticket.len >= TICKET_WORD_BYTES;
        let offer = side.offer(pulling_pairs(self.server.appliers), mailbox, counts);
        if offer.is_err() && !self.path_proved {
            self.paths.fail_here();
        }
        Ok((side, offer.map_err(unfit_for)?))
    }

    /// Opens the client's end of a lane over verbs, after the server has made its end. The first lane of a session
    /// also proves that the path carries packets of all lengths. Every lane then reads its status record once.
    fn opened(
        &mut self,
        side: &VerbsSide,
        grant: &LaneGrant,
        offer: LaneOffer,
        connected: &VerbsConnected,
        deadline: Deadline,
    ) -> Attempt<Box<dyn ClientLane>> {
        // A packet that is lost is sent again only after the device's timeout.
        let attempt = ATTEMPT.max(self.config.fabric.longest_retry());
        let deadline = deadline.min(Deadline::after(attempt));
        let prove = (!self.path_proved).then_some(deadline);
        let lane = side.open(offer, connected, &self.name, prove);
        let mut lane = lane.map_err(unfit_for)?;
        self.path_proved = true;
        if grant.ticket.len >= TICKET_WORD_BYTES && !lane.has_atomics() {
            self.go_uncounted(grant.applier, &side.without_atomics())?;
        }
        read_status(&mut *lane, grant, deadline).map_err(unfit_for)?;
        Ok(lane)
    }
}

/// Lane of a new session, with sequence numbers at their start.
fn first(grant: &LaneGrant, lane: Box<dyn ClientLane>) -> OpenLane {
    OpenLane {
        lane,
        state: StateLine::default(),
        status: Some(status_of(grant)),
    }
}

/// Error: the first read over a lane with new queue pairs, that of its status record, failed.
#[derive(Debug, thiserror::Error)]
#[error("queue pairs were made, but the status record cannot be read: {source}")]
struct StatusUnread {
    source: LaneError,
}

/// Failure of a verbs resource, classified as `Unfit`: another transport or pair of ports may work.
fn unfit_for(cause: impl Into<Cause>) -> Failure {
    Failure::Unfit(cause.into())
}

/// Reclassifies a server's refusal of the transport (`BadTransport`) as `Unfit`, so that another transport is tried.
/// Other failures are returned unchanged.
fn unfit(failure: Failure) -> Failure {
    match failure {
        Failure::Final(ClientError::Refused(no)) if no.code == RefusalCode::BadTransport => {
            Failure::Unfit(no.into())
        }
        other => other,
    }
}

/// Reads the public copy of a lane's status record once over a new verbs lane, and drops its content. The lane
/// then holds the remote key of that memory, and no later read waits for a lookup in the server's key directory.
///
/// # Errors
/// The read failed or missed `deadline`: the caller tries another transport.
fn read_status(
    lane: &mut dyn ClientLane,
    grant: &LaneGrant,
    deadline: Deadline,
) -> Result<(), Cause> {
    let mut line = [0; LINE_BYTES];
    let op = ReadOp::of_body(status_of(grant), LINE_BYTES)?;
    let into = ReadDest {
        head: &mut [],
        body: &mut line,
    };
    lane.read(&[op], into, deadline)
        .map_err(|source| StatusUnread { source }.into())
}
