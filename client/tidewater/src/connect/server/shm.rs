//! Sessions over shared memory: the mappings of server and client on one host, and their wake-ups.

use tidewater_lanes::fabric::{ClientLane, TransportKind};
use tidewater_lanes::shm::{self, ShmAttach, ShmClientLane};
use tidewater_protocol::layout::lines::StateLine;
use tidewater_protocol::wire::control::{LaneGrant, ServerMember, Transport};
use tidewater_protocol::wire::hello::Purpose;
use tidewater_runtime::clock::Deadline;
use tidewater_runtime::sync::Arc;
use tidewater_topology::hostinfo;

use super::{Attempt, Control, Failure, NetServerLink, status_of};
use crate::link::OpenLane;

impl NetServerLink {
    /// Opens a session over shared memory with one attempt. Any failure of the connection is `Unfit`, so that
    /// another transport is tried: what fails on one host fails again.
    pub(super) fn open_shm(&mut self, deadline: Deadline) -> Attempt<Vec<OpenLane>> {
        if let Some(why) = obstacle(&self.server) {
            return Err(Failure::Unfit(why.into()));
        }
        self.become_of(TransportKind::Shm);
        self.attach_shm(deadline).map_err(|failure| match failure {
            Failure::Again(why) | Failure::Absent(why) => Failure::Unfit(why),
            other => other,
        })
    }

    fn attach_shm(&mut self, deadline: Deadline) -> Attempt<Vec<OpenLane>> {
        let mut conn = self.connect(Purpose::Control, deadline)?;
        conn.stream_mut().pass(&self.waker);
        let attached = self.attach(&mut conn, Transport::Shm, deadline)?;
        let attach = attached.shm.as_ref();
        let attach = attach.ok_or_else(|| self.wrong_answer("a session without memory"))?;
        let lanes = self.map(&mut conn, attach)?;
        if lanes.len() != attached.lanes.len() {
            return Err(self.wrong_answer("another number of lanes than of memories"));
        }
        self.conn = Some(conn);
        self.attached(&attached);
        let open = |(grant, lane): (&LaneGrant, ShmClientLane)| {
            self.set_parked_flag(usize::from(grant.applier.0), &lane);
            OpenLane {
                lane: Box::new(lane) as Box<dyn ClientLane>,
                state: StateLine::default(),
                status: Some(status_of(grant)),
            }
        };
        Ok(attached.lanes.iter().zip(lanes).map(open).collect())
    }

    /// Maps the new memory of the recovered lane to applier `a`, from descriptors that the server passed, and
    /// returns the lane. `Failure::Again` if the control connection is cut.
    pub(super) fn renewed(&mut self, a: usize, attach: &ShmAttach) -> Attempt<Box<dyn ClientLane>> {
        let Some(mut conn) = self.conn.take() else {
            return Err(Failure::Again("the connection is cut".into()));
        };
        let mut lanes = self.map(&mut conn, attach)?;
        self.conn = Some(conn);
        let (Some(lane), true) = (lanes.pop(), lanes.is_empty()) else {
            return Err(self.wrong_answer("not one lane's memory"));
        };
        self.set_parked_flag(a, &lane);
        Ok(Box::new(lane))
    }

    /// Maps the shared memory of lanes, from descriptors that came with the server's last answer over the unix
    /// socket.
    fn map(&self, conn: &mut Control, attach: &ShmAttach) -> Attempt<Vec<ShmClientLane>> {
        let fds = conn.stream_mut().take(shm::descriptors(attach));
        let fds = fds.map_err(|e| Failure::Again(e.into()))?;
        shm::attach(attach, fds, &self.name).map_err(|e| Failure::Again(e.into()))
    }

    fn set_parked_flag(&mut self, lane: usize, open: &ShmClientLane) {
        if self.parked_flag.len() <= lane {
            self.parked_flag.resize(lane + 1, None);
        }
        let (region, at) = open.parked_flag();
        self.parked_flags.add(Arc::clone(&region), at);
        if let Some((region, at)) = self.parked_flag[lane].replace((region, at)) {
            self.parked_flags.remove(&region, at);
        }
    }
}

/// Reason why shared memory with a server is unavailable, found without a request: no unix socket, or another host.
/// `None` if none is known.
fn obstacle(server: &ServerMember) -> Option<String> {
    if server.endpoints.unix.is_empty() {
        return Some("the server listens on no unix socket".into());
    }
    if !hostinfo::is_here(&server.host_id) {
        let (there, here) = (&server.host, hostinfo::host_name());
        return Some(format!(
            "the server runs on {there}, this process on {here}: they share no kernel"
        ));
    }
    None
}
