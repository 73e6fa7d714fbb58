//! Sessions between hosts: a control connection over TCP, and lanes that are connected one by one. Each
//! lane has a TCP connection of its own, or queue pairs.

use tidewater_lanes::fabric::{ClientLane, Mailbox, ReadDest, ReadOp, RemoteAddr, TransportKind};
use tidewater_lanes::tcp::TcpClientLane;
use tidewater_protocol::layout::LINE_BYTES;
use tidewater_protocol::layout::lines::StateLine;
use tidewater_protocol::layout::session::mailbox_bytes;
use tidewater_protocol::wire::control::{
    Attached, LaneGrant, Remote, ServerAnswer, ServerRequest, Transport,
};
use tidewater_protocol::wire::hello::Purpose;
use tidewater_protocol::wire::refusal::RefusalCode;
use tidewater_runtime::clock::Deadline;
use tidewater_runtime::mem::Region;
use tidewater_runtime::sync::Arc;

use super::verbs::VerbsSide;
use super::{ATTEMPT, Attempt, Control, Failure, NetServerLink, Stream, status_of};
use crate::error::ClientError;
use crate::link::{OpenLane, ServerLink as _};

impl NetServerLink {
    /// Opens a session with lanes over TCP.
    pub(super) fn open_tcp(&mut self, deadline: Deadline) -> Attempt<Vec<OpenLane>> {
        self.become_of(TransportKind::Tcp);
        self.needs_tcp_address()?;
        let attached = self.attach_remote(Transport::Tcp, deadline)?;
        self.connect_lanes(&attached, deadline)
    }

    /// Opens a session with lanes over verbs. If only verbs are unavailable, the control connection is
    /// kept for the next transport.
    pub(super) fn open_verbs(&mut self, deadline: Deadline) -> Attempt<Vec<OpenLane>> {
        self.become_of(TransportKind::Verbs);
        self.needs_tcp_address()?;
        let attached = self.attach_remote(Transport::Verbs, deadline)?;
        let opened = self.connect_lanes(&attached, deadline);
        let opened = opened.and_then(|mut lanes| match prove(&attached, &mut lanes, deadline) {
            Ok(()) => Ok(lanes),
            Err(why) => Err(Failure::Unfit(why)),
        });
        if matches!(opened, Err(Failure::Unfit(_))) {
            self.verbs = None;
            // The server ends the session by itself some time after its connection.
            if self.ask(&ServerRequest::Detach, deadline).is_err() {
                self.conn = None;
            }
        }
        opened
    }

    fn needs_tcp_address(&self) -> Result<(), ClientError> {
        if !self.server.endpoints.tcp.is_empty() {
            return Ok(());
        }
        Err(ClientError::Environment(format!(
            "server {} does not listen on TCP, and shared memory cannot be had or was not asked \
             for; start the server with a TCP address, or the client on its host",
            self.server.id
        )))
    }

    /// Attaches over the existing control connection, or over a new one.
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
            let again = !std::mem::take(&mut first);
            match attempt {
                // The rank is taken by an earlier attempt of this link; the server has not yet seen its
                // end.
                Err(Failure::Final(ClientError::Refused(no)))
                    if again && no.code == RefusalCode::RankTaken =>
                {
                    Err(Failure::Again(no.to_string()))
                }
                Err(Failure::Final(ClientError::Refused(no)))
                    if no.code == RefusalCode::BadTransport =>
                {
                    link.conn = Some(conn);
                    Err(Failure::Unfit(no.to_string()))
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

    /// Opens the RDMA device of the local address of the control connection.
    fn prepare_verbs(&mut self, conn: &mut Control) -> Attempt<()> {
        let local = conn.stream_mut().local().ok_or_else(|| {
            Failure::Again("the control connection has lost its address".to_owned())
        })?;
        let wish = (self.config.rdma_device.as_ref(), self.config.rdma_timeout);
        let side = VerbsSide::new(local, wish, &self.watch, &self.arms);
        self.verbs = Some(Arc::new(side.map_err(Failure::Unfit)?));
        Ok(())
    }

    fn connect_lanes(&mut self, attached: &Attached, deadline: Deadline) -> Attempt<Vec<OpenLane>> {
        let mut lanes = Vec::with_capacity(attached.lanes.len());
        for grant in &attached.lanes {
            let attempt = deadline.min(Deadline::after(ATTEMPT));
            lanes.push(match self.connect_lane(grant, attempt) {
                Ok(lane) => OpenLane {
                    lane,
                    state: StateLine::default(),
                    status: Some(status_of(grant)),
                },
                Err(Failure::Again(_)) => self.recover(grant.applier, deadline)?,
                Err(failure) => return Err(failure),
            });
        }
        Ok(lanes)
    }

    /// Connects a granted lane.
    pub(super) fn connect_lane(
        &mut self,
        grant: &LaneGrant,
        deadline: Deadline,
    ) -> Attempt<Box<dyn ClientLane>> {
        if self.transport == TransportKind::Verbs {
            self.verbs_lane(grant, deadline)
        } else {
            Ok(Box::new(self.tcp_lane(grant, deadline)?))
        }
    }

    fn tcp_lane(&self, grant: &LaneGrant, deadline: Deadline) -> Attempt<TcpClientLane> {
        let purpose = Purpose::Lane {
            session: self.session,
            applier: grant.applier,
            nonce: grant.nonce,
        };
        let conn = self.connect(purpose, deadline)?;
        let (Stream::Tcp(stream), rest) = conn.into_parts() else {
            return Err(self.nonsense("a lane over a unix socket"));
        };
        let bytes = mailbox_bytes(self.config.ring_bytes);
        let memory = Region::anonymous(bytes).map(Arc::new);
        let mailbox = memory.and_then(|region| Mailbox::new(region, 0, bytes));
        let mailbox = mailbox.map_err(|e| ClientError::Environment(e.to_string()))?;
        let timeouts = stream
            .set_read_timeout(None)
            .and_then(|()| stream.set_write_timeout(None));
        timeouts.map_err(|e| Failure::Again(e.to_string()))?;
        TcpClientLane::new(stream, self.name.clone(), mailbox, self.watch.clone())
            .and_then(|lane| lane.early(&rest))
            .map_err(|e| Failure::Again(e.to_string()))
    }

    /// Makes queue pairs at both ends and exchanges their numbers.
    fn verbs_lane(
        &mut self,
        grant: &LaneGrant,
        deadline: Deadline,
    ) -> Attempt<Box<dyn ClientLane>> {
        let Some(side) = self.verbs.clone() else {
            return Err(Failure::Again("there is no adapter".into()));
        };
        let mailbox = mailbox_bytes(self.config.ring_bytes);
        let offer = side.offer(pulling_pairs(self.server.appliers), mailbox);
        let offer = offer.map_err(Failure::Unfit)?;
        let connect = offer.connect(grant.applier, grant.nonce);
        match self.ask(&ServerRequest::ConnectVerbs(connect), deadline) {
            Ok(ServerAnswer::VerbsConnected(told)) if told.applier == grant.applier => {
                let lane = side.open(offer, &told, &self.name);
                let mut lane = lane.map_err(Failure::Unfit)?;
                read_status(&mut *lane, grant, deadline).map_err(Failure::Unfit)?;
                Ok(lane)
            }
            Ok(_) => Err(self.nonsense("another answer than to ConnectVerbs")),
            Err(Failure::Final(ClientError::Refused(no)))
                if no.code == RefusalCode::BadTransport =>
            {
                Err(Failure::Unfit(no.to_string()))
            }
            Err(failure) => Err(failure),
        }
    }
}

/// Number of queue pairs of a lane that pull. READs of one pair wait for each other, so that a few
/// pairs to each server are needed to keep its port busy. With several appliers the lanes are that
/// many.
const fn pulling_pairs(appliers: u16) -> usize {
    4_usize.div_ceil(if appliers == 0 { 1 } else { appliers as usize })
}

/// Reads the public copy of a lane's status record once. The lane then has the device's key of that
/// memory: no later read of the copy waits for a lookup in the server's key directory.
fn read_status(
    lane: &mut dyn ClientLane,
    grant: &LaneGrant,
    deadline: Deadline,
) -> Result<(), String> {
    let mut line = [0; LINE_BYTES];
    let op = ReadOp::of_body(status_of(grant), LINE_BYTES).map_err(|e| e.to_string())?;
    let into = ReadDest {
        head: &mut [],
        body: &mut line,
    };
    lane.read(&[op], into, deadline)
        .map_err(|e| format!("queue pairs were made, but the state line cannot be read: {e}"))
}

/// Checks that the path carries RDMA while there is another transport to take: a network may let TCP
/// through and drop RDMA packets. Reads the ticket line's word, and adds 0 to it.
fn prove(attached: &Attached, lanes: &mut [OpenLane], deadline: Deadline) -> Result<(), String> {
    let (Some(grant), Some(open)) = (attached.lanes.first(), lanes.first_mut()) else {
        return Ok(());
    };
    let deadline = deadline.min(Deadline::after(ATTEMPT));
    let Remote { key, address, .. } = grant.ticket;
    let from = RemoteAddr { key, addr: address };
    let mut word = [0; 8];
    let op = ReadOp {
        from,
        len: 8,
        head_len: 8,
        head_at: 0,
        body_at: 0,
        fence: false,
    };
    let into = ReadDest {
        head: &mut word,
        body: &mut [],
    };
    let read = open.lane.read(&[op], into, deadline);
    let proven = read.and_then(|()| open.lane.fetch_add(from, 0, deadline).map(drop));
    proven.map_err(|e| format!("queue pairs were made, but nothing comes through: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_read_over_at_least_four_pairs() {
        let pairs = |appliers: u16| {
            (1..=appliers)
                .map(|_| pulling_pairs(appliers))
                .sum::<usize>()
        };
        assert_eq!([1, 2, 3, 4, 64].map(pulling_pairs), [4, 2, 2, 1, 1]);
        assert!((1..=64).all(|appliers| pairs(appliers) >= 4));
    }
}
