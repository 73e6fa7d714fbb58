//! Requests of clients on a control connection, and their answers.

use std::collections::BTreeMap;

use tidewater_lanes::shm::SessionMemory;
use tidewater_protocol::ids::{DomainId, TableId, WorkerThread};
use tidewater_protocol::wire::control::{ServerAnswer, ServerRequest, WorkerClock};
use tidewater_protocol::wire::hello::{Hello, Role};
use tidewater_protocol::wire::refusal::{Refusal, RefusalCode};

use super::catalogue::Seen;
use super::conn::{Conn, ConnId, Socket};
use super::connects::Asked;
use super::control::Control;
use super::sessions::bad;
use tidewater_engine::apply::command::Command;

/// An answer, and the memory to send the descriptors of.
type Answer = (ServerAnswer, Option<SessionMemory>);
type Answered = Result<Answer, Refusal>;

impl Control {
    /// Answers one request. An error closes the connection.
    pub(super) fn request(
        &mut self,
        id: ConnId,
        conn: &mut Conn,
        number: u64,
        request: ServerRequest,
    ) -> Result<(), String> {
        let refused = |no| Some((ServerAnswer::Refused(no), None));
        let answered = self.answer((id, number), conn, request);
        let Some((answer, memory)) = answered.unwrap_or_else(refused) else {
            return Ok(());
        };
        conn.answer(number, &answer).map_err(|e| e.to_string())?;
        match memory {
            // Sent before anything else, so that the descriptors go with their answer.
            Some(memory) => conn
                .send_with(&memory.descriptors())
                .map_err(|e| e.to_string()),
            None => Ok(()),
        }
    }

    /// The answer to one request; none if it comes later.
    fn answer(
        &mut self,
        (id, number): (ConnId, u64),
        conn: &mut Conn,
        request: ServerRequest,
    ) -> Result<Option<Answer>, Refusal> {
        let done = |()| (ServerAnswer::Done, None);
        let answered = match request {
            ServerRequest::Attach(attach) => {
                let attaches = |h: &&Hello| matches!(h.role, Role::Worker | Role::Observer);
                let Some(hello) = conn.hello.as_ref().filter(attaches) else {
                    return Err(bad("only workers and observers attach"));
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
                let asked = Asked {
                    conn: id,
                    request: number,
                    session,
                    applier: offer.applier,
                    nonce: offer.nonce,
                };
                let make = self.sessions.connect_verbs(session, offer)?;
                self.connects.start(asked, make);
                return Ok(None);
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
        };
        answered.map(Some)
    }

    /// Answers the requests for lanes that are made by now, or could not be.
    pub(super) fn finish_connects(&mut self) {
        while let Some((asked, made)) = self.connects.take() {
            let answer = match self.sessions.connected(&asked, made) {
                Ok(connected) => ServerAnswer::VerbsConnected(connected),
                Err(no) => ServerAnswer::Refused(no),
            };
            // A client that has gone meanwhile recovers the lane, if it comes back.
            self.tell(asked.conn, asked.request, &answer);
        }
    }

    fn resume(
        &mut self,
        id: ConnId,
        conn: &mut Conn,
        session: tidewater_protocol::ids::SessionId,
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

    /// A thread's clock is what all appliers have consumed; a thread removed at any applier is
    /// removed.
    fn clocks(&self, conn: &Conn, domain: DomainId) -> Answered {
        let name = conn.hello.as_ref().map_or("", |h| &h.namespace);
        let job = self.shared.catalogue().job(name);
        let job = job.ok_or_else(|| bad("the job has neither tables nor sessions here"))?;
        let answers = self.shared.ask_all(|_, tx| {
            Command::With(Box::new(move |engine| {
                let min = engine.clock_line(job, domain).min;
                let live: Vec<(WorkerThread, u64)> = engine.clocks(job).live(domain).collect();
                let pace = |(thread, clock)| {
                    let step_us = engine.pace.median_us((job, domain), thread);
                    (thread, clock, step_us)
                };
                let live: Vec<_> = live.into_iter().map(pace).collect();
                let _ = tx.send((min, live));
            }))
        });
        let answers = answers.map_err(|e| e.refusal())?;
        let global = answers.iter().map(|(min, _)| *min).min().unwrap_or(0);
        let mut workers: BTreeMap<WorkerThread, (usize, u64, u64)> = BTreeMap::new();
        for (thread, clock, step_us) in answers.iter().flat_map(|(_, live)| live) {
            let (count, least, longest) = workers.entry(*thread).or_insert((0, u64::MAX, 0));
            *count += 1;
            *least = (*least).min(*clock);
            *longest = (*longest).max(*step_us);
        }
        let everywhere = |(thread, (count, clock, step_us)): (WorkerThread, _)| {
            (count == answers.len()).then_some(WorkerClock {
                worker: thread.rank,
                thread: thread.thread,
                clock,
                step_us,
            })
        };
        let workers = workers.into_iter().filter_map(everywhere).collect();
        Ok((ServerAnswer::Clocks { global, workers }, None))
    }
}
