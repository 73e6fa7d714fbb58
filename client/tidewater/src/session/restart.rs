//! The new beginning of a job in its processes, after a server was restarted without its memory.

use tidewater_runtime::clock::Deadline;

use super::{Client, collectives};
use crate::error::ClientError;
use crate::lanes::Lanes;
use crate::link::ThreadLinks;
use crate::table::opened::Tables;

impl Client {
    /// Rejoins the job after [`ClientError::ServerRestarted`]: opens a session with every server, also the restarted
    /// one. No table is open then, residuals of encoded pushes are dropped, and all clocks are 0. Buffers of
    /// [`Client::buffer`] are ordinary memory; make them again for verbs. Until a worker has rejoined, barriers of
    /// the others wait for it.
    ///
    /// [`Client::create_table`], [`Client::open_table`] and [`Client::load`], also where they are started, do this
    /// by themselves once a call has failed with that error. Without such an error it does nothing. Cost: a round
    /// trip to the coordinator, and the opening of all sessions.
    ///
    /// # Errors
    /// [`ClientError::ServerRestarted`] for a later restart; a server's refusal or a deadline, after which the call
    /// can be repeated. [`ClientError::Thread`] from a sibling, and while siblings are open: their sessions are gone
    /// too, and [`Client::finish`] ends them.
    pub fn rejoin(&mut self) -> Result<(), ClientError> {
        self.rejoin_if_restarted(self.deadline())
    }

    pub(super) fn rejoin_if_restarted(&mut self, deadline: Deadline) -> Result<(), ClientError> {
        match self.lanes.coordinator.has_restarted() {
            true => self.rejoin_by(deadline),
            false => Ok(()),
        }
    }

    #[cold]
    fn rejoin_by(&mut self, deadline: Deadline) -> Result<(), ClientError> {
        const OP: &str = "rejoin";
        let thread = self.guard.thread();
        if !thread.is_first() {
            let what = "its sessions are gone; finish it, and make another when the first client has rejoined";
            let what = what.into();
            return Err(ClientError::Thread {
                op: OP,
                thread,
                what,
            });
        }
        self.guard.check_alone(OP)?;
        let joined = self.lanes.coordinator.rejoin(deadline)?;
        let connect = self.connect.as_ref();
        let connect = connect.and_then(|connect| connect.renewed(&joined.members));
        let Some(connect) = connect else {
            let why = "this client cannot connect again; make another of its job";
            return Err(ClientError::Environment(why.into()));
        };
        self.run_callbacks();
        self.callbacks
            .abandon("a server was restarted without its memory");
        // The number of the client is another one: tickets and handles of before are no longer its own.
        self.tables = Tables::new()?;
        self.async_pulls.clear();
        self.pins.clear();
        self.abandon_started();
        self.feedback.clear();
        self.resume.table = None;
        self.collective = collectives::CollectiveState::default();
        self.clock = self.clock.begun_again();
        let links = connect.connect(0, deadline);
        let ThreadLinks { servers, parker } =
            links.map_err(|error| self.lanes.root_cause(error))?;
        let lanes = Lanes::new(servers, parker, self.guard.coordinator())?;
        self.lanes = lanes.with_settings_of(&self.lanes);
        self.by_lane = vec![Vec::new(); self.lanes.len()];
        self.lane_next = vec![0; self.lanes.len()];
        self.lane_waits = vec![0; self.lanes.len()];
        self.is_leave_announced = false;
        self.slow.clear();
        self.connect = Some(connect);
        self.lanes.coordinator.rejoined();
        self.begin_at(&joined.clocks);
        self.check_member(deadline)
    }
}
