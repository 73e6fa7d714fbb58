//! What clients ask on a control connection.

use std::collections::BTreeMap;

use tidewater_transport::ids::{DomainId, TableId, WorkerId};
use tidewater_transport::shm::SessionMemory;
use tidewater_transport::wire::control::{ServerAnswer, ServerRequest, WorkerClock};
use tidewater_transport::wire::hello::Role;
use tidewater_transport::wire::refusal::{Refusal, RefusalCode};

use super::catalogue::Seen;
use super::conn::{Conn, ConnId, Socket};
use super::control::Control;
use super::sessions::bad;
use crate::apply::command::Command;

/// An answer, and the memory whose descriptors go with it.
type Answered = Result<(ServerAnswer, Option<SessionMemory>), Refusal>;

impl Control {
    /// Answers one request. An error closes the connection.
    pub(super) fn request(
        &mut self,
        id: ConnId,
        conn: &mut Conn,
        number: u64,
        request: ServerRequest,
    ) -> Result<(), String> {
        let answered = self.answer(id, conn, request);
        let (answer, memory) = answered.unwrap_or_else(|no| (ServerAnswer::Refused(no), None));
        conn.answer(number, &answer).map_err(|e| e.to_string())?;
        match memory {
            // Before anything else, so that the descriptors go with their answer.
            Some(memory) => conn
                .send_with(&memory.descriptors())
                .map_err(|e| e.to_string()),
            None => Ok(()),
        }
    }

    fn answer(&mut self, id: ConnId, conn: &mut Conn, request: ServerRequest) -> Answered {
        let done = |()| (ServerAnswer::Done, None);
        match request {
            ServerRequest::Attach(attach) => {
                let hello = conn.hello.as_ref().filter(|h| h.role == Role::Worker);
                let Some(hello) = hello else {
                    return Err(bad("only workers attach"));
                };
                if conn.session.is_some() {
                    return Err(bad("the connection has a session"));
                }
                let count = conn.fds.len();
                let fds = conn.fds.take(count).unwrap_or_default();
                let owner = (id, conn.socket.local());
                let (attached, memory) = self.sessions.attach(owner, hello, attach, fds)?;
                conn.session = Some(attached.session);
                Ok((ServerAnswer::Attached(attached), memory))
            }
            ServerRequest::Resume { session } => self.resume(id, conn, session).map(done),
            ServerRequest::Recover { applier } => {
                let session = conn.session.ok_or_else(|| bad("attach or resume first"))?;
                let (recovered, memory) = self.sessions.recover(session, applier)?;
                Ok((ServerAnswer::Recovered(recovered), memory))
            }
            ServerRequest::ConnectVerbs(offer) => {
                let session = conn.session.ok_or_else(|| bad("attach or resume first"))?;
                let connected = self.sessions.connect_verbs(session, &offer)?;
                Ok((ServerAnswer::VerbsConnected(connected), None))
            }
            ServerRequest::Describe { table } => self.describe(conn, table),
            ServerRequest::Clocks { domain } => self.clocks(conn, domain),
            ServerRequest::Detach => {
                let session = conn
                    .session
                    .take()
                    .ok_or_else(|| bad("no session to end"))?;
                self.sessions.end(session);
                Ok(done(()))
            }
        }
    }

    fn resume(
        &mut self,
        id: ConnId,
        conn: &mut Conn,
        session: tidewater_transport::ids::SessionId,
    ) -> Result<(), Refusal> {
        if conn.session.is_some_and(|own| own != session) {
            return Err(bad("the connection has a session"));
        }
        let hello = conn.hello.as_ref().ok_or_else(|| bad("not proven"))?;
        let is_unix = matches!(conn.socket, Socket::Unix(_));
        let before = self.sessions.resume(id, hello, session, is_unix)?;
        conn.session = Some(session);
        if let Some(before) = before {
            // Its end was not seen yet: a cable can be cut at one end only.
            self.close(before, "its session goes on over another connection");
        }
        Ok(())
    }

    fn describe(&self, conn: &Conn, table: TableId) -> Answered {
        let namespace = conn.hello.as_ref().map_or("", |h| &h.namespace);
        let number = [u64::from(table.0), 0, 0, 0];
        match self.shared.catalogue().see(namespace, table) {
            Seen::Table(found) => Ok((ServerAnswer::Table((*found).clone()), None)),
            Seen::Released => Err(Refusal::new(RefusalCode::TableReleased, number)),
            Seen::Nothing => Err(Refusal::new(RefusalCode::UnknownTable, number)),
        }
    }

    /// A worker's clock is what all appliers have consumed; one that is gone at any is gone.
    fn clocks(&self, conn: &Conn, domain: DomainId) -> Answered {
        let name = conn.hello.as_ref().map_or("", |h| &h.namespace);
        let job = self.shared.catalogue().job(name);
        let job = job.ok_or_else(|| bad("the job has neither tables nor sessions here"))?;
        let told = self.shared.ask_all(|_, tx| {
            Command::With(Box::new(move |engine| {
                let clocks = engine.clocks(job);
                let min = clocks.line(domain).min;
                let live: Vec<(WorkerId, u64)> = clocks.live(domain).collect();
                let _ = tx.send((min, live));
            }))
        });
        let told = told.map_err(|e| e.refusal())?;
        let global = told.iter().map(|(min, _)| *min).min().unwrap_or(0);
        let mut workers: BTreeMap<WorkerId, (usize, u64)> = BTreeMap::new();
        for (worker, clock) in told.iter().flat_map(|(_, live)| live) {
            let (count, least) = workers.entry(*worker).or_insert((0, u64::MAX));
            *count += 1;
            *least = (*least).min(*clock);
        }
        let everywhere = |(worker, (count, clock))| {
            (count == told.len()).then_some(WorkerClock { worker, clock })
        };
        let workers = workers.into_iter().filter_map(everywhere).collect();
        Ok((ServerAnswer::Clocks { global, workers }, None))
    }
}
