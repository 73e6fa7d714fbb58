//! Requests of clients on a control connection and their answers, on the control thread.

use std::collections::BTreeMap;

use tidewater_control::set_up::{Next, Turn};
use tidewater_lanes::shm::SessionMemory;
use tidewater_protocol::ids::{DomainId, SessionId, TableId, WorkerThread};
use tidewater_protocol::wire::control::{
    Attach, ServerAnswer, ServerRequest, VerbsConnect, WorkerClock,
};
use tidewater_protocol::wire::hello::{Hello, Role};
use tidewater_protocol::wire::refusal::{Refusal, RefusalCode};

use super::catalogue::Seen;
use super::conn::{Conn, ConnId, Socket};
use super::connects::Asked;
use super::control::Control;
use super::recoveries::Recovery;
use super::sessions::bad;
use tidewater_engine::apply::command::Command;
use tidewater_engine::namespace::DomainKey;

/// Answer to a request, and session memory of which the file descriptors go along with it, if any.
pub(super) type Answer = (ServerAnswer, Option<SessionMemory>);
type Answered = Result<Answer, Refusal>;

impl Control {
    /// Handles one request of connection `id`, and queues its answer or a refusal. The caller closes the
    /// connection after an error.
    pub(super) fn request(
        &mut self,
        id: ConnId,
        conn: &mut Conn,
        number: u64,
        request: ServerRequest,
    ) -> Result<(), String> {
        match self.answer(id, number, conn, request) {
            Ok(None) => Ok(()),
            Ok(Some(answer)) => send(conn, number, answer),
            Err(no) => send(conn, number, refused(no)),
        }
    }

    /// Answers one request; `None` if the answer is sent later.
    fn answer(
        &mut self,
        id: ConnId,
        number: u64,
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
                let local = conn.socket.local();
                let (attached, memory) = self.sessions.attach(id, local, hello, attach, fds)?;
                conn.session = Some(attached.session);
                Ok((ServerAnswer::Attached(attached), memory))
            }
            ServerRequest::Resume { session } => self.resume(id, conn, session).map(done),
            ServerRequest::Reattach { session, attach } => {
                self.reattach(id, conn, session, attach).map(done)
            }
            ServerRequest::Recover { applier } => {
                let session = conn.session.ok_or_else(|| bad("attach or resume first"))?;
                let recovery = Recovery {
                    conn: id,
                    request: number,
                    session,
                    applier,
                };
                let reply = self.recoveries.reply(recovery);
                self.sessions.begin_recovery(session, applier, reply)?;
                return Ok(None);
            }
            ServerRequest::ConnectVerbs(offer) => {
                self.connect_verbs(id, number, conn, vec![offer], true)?;
                return Ok(None);
            }
            ServerRequest::ConnectLanes(offers) => {
                self.connect_verbs(id, number, conn, offers, false)?;
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

    /// Queues a client's request for verbs lanes, which is answered when the lanes are made.
    /// [`Control::go_connects`] starts the request. `single`: the client asked for one lane.
    fn connect_verbs(
        &mut self,
        id: ConnId,
        number: u64,
        conn: &Conn,
        offers: Vec<VerbsConnect>,
        single: bool,
    ) -> Result<(), Refusal> {
        let session = conn.session.ok_or_else(|| bad("attach or resume first"))?;
        let lanes = self.sessions.connect_verbs(session, &offers)?;
        let asked = Asked {
            conn: id,
            request: number,
            session,
            lanes,
            single,
        };
        self.connects.push(asked, offers);
        Ok(())
    }

    /// Answers the requests for verbs lanes that are finished, with the lanes or a refusal.
    pub(super) fn finish_connects(&mut self) {
        while let Some((asked, made)) = self.connects.take() {
            // No lane is attached for a client that is gone: it recovers the lanes, if it comes back.
            let made = match self.is_open(&asked) {
                true => self.sessions.connected(&asked, made),
                false => Err(self.sessions.not_connected(&asked)),
            };
            let answer = match made {
                Err(no) => ServerAnswer::Refused(no),
                Ok(mut lanes) if asked.single => match lanes.pop() {
                    Some(lane) => ServerAnswer::VerbsConnected(lane),
                    None => ServerAnswer::Refused(bad("no lane was made")),
                },
                Ok(lanes) => ServerAnswer::LanesConnected(lanes),
            };
            self.tell(asked.conn, asked.request, (answer, None));
        }
    }

    /// Answers the lane recoveries (requests to connect broken lanes again) for which appliers have ended the lane.
    /// Recoveries of ended connections are dropped: a client that returns asks again.
    pub(super) fn finish_recoveries(&mut self) {
        while let Some((recovery, state)) = self.recoveries.take() {
            let Recovery { conn, request, .. } = recovery;
            if !self.conns.contains_key(&conn) {
                continue;
            }
            let (session, applier) = (recovery.session, recovery.applier);
            let answer = match self.sessions.finish_recovery(session, applier, state) {
                Ok((recovered, memory)) => (ServerAnswer::Recovered(recovered), memory),
                Err(no) => refused(no),
            };
            self.tell(conn, request, answer);
        }
    }

    /// Starts the requests for verbs lanes that may run, and informs waiting clients of their place. Refuses void
    /// ones: the client is gone, or a lane was recovered since.
    pub(super) fn go_connects(&mut self) {
        if self.sessions.memory_was_registered() {
            self.connects.recheck();
        }
        loop {
            let (conns, sessions) = (&self.conns, &mut self.sessions);
            let turn = |asked: &Asked| match conns.contains_key(&asked.conn) {
                true if sessions.is_connecting(asked) => match sessions.is_ready(asked) {
                    true => Turn::Now,
                    false => Turn::Later,
                },
                _ => Turn::Void,
            };
            match self.connects.next(turn) {
                None => break,
                Some(Next::Void(void)) => {
                    let no = self.sessions.not_connected(&void);
                    self.tell(void.conn, void.request, refused(no));
                }
                Some(Next::Make(ticket, asked, offers)) => {
                    let make = self.sessions.accept(&asked, offers);
                    self.connects.make(ticket, asked, make);
                }
            }
        }
        for (asked, before) in self.connects.news() {
            let news = ServerAnswer::Queued { before };
            self.tell(asked.conn, asked.request, (news, None));
        }
    }

    fn is_open(&self, asked: &Asked) -> bool {
        self.conns.contains_key(&asked.conn)
    }

    fn resume(&mut self, id: ConnId, conn: &mut Conn, session: SessionId) -> Result<(), Refusal> {
        if conn.session.is_some_and(|own| own != session) {
            return Err(bad("the connection has a session"));
        }
        let hello = conn
            .hello
            .as_ref()
            .ok_or_else(|| bad("not authenticated"))?;
        let is_unix = matches!(conn.socket, Socket::Unix(_));
        let before = self.sessions.resume(id, hello, session, is_unix)?;
        self.goes_on(conn, session, before);
        Ok(())
    }

    /// Notes that a session continues over connection `conn`, and closes `before`, its earlier connection, if any:
    /// its end may not have been seen yet.
    fn goes_on(&mut self, conn: &mut Conn, session: SessionId, before: Option<ConnId>) {
        conn.session = Some(session);
        if let Some(before) = before {
            // Its end was not seen yet: a cable can be cut at one end only.
            self.close(before, "its session goes on over another connection");
        }
    }

    fn reattach(
        &mut self,
        id: ConnId,
        conn: &mut Conn,
        session: SessionId,
        attach: Attach,
    ) -> Result<(), Refusal> {
        if conn.session.is_some_and(|own| own != session) {
            return Err(bad("the connection has a session"));
        }
        let count = conn.fds.len();
        // They are all there, as counted.
        let fds = conn.fds.take(count).unwrap_or_default();
        let local = conn.socket.local();
        let hello = conn
            .hello
            .as_ref()
            .ok_or_else(|| bad("not authenticated"))?;
        let before = self
            .sessions
            .reattach(id, local, hello, session, attach, fds)?;
        self.goes_on(conn, session, before);
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

    /// Answers with the clocks of a domain. A thread's clock is the lowest over all appliers, its step time
    /// (us) the longest; threads that an applier has removed are left out.
    fn clocks(&self, conn: &Conn, domain: DomainId) -> Answered {
        let name = conn.hello.as_ref().map_or("", |h| &h.namespace);
        let job = self.shared.catalogue().job(name);
        let job = job.ok_or_else(|| bad("the job has neither tables nor sessions here"))?;
        let answers = self.shared.ask_all(|_, tx| {
            Command::With(Box::new(move |engine| {
                let min = engine.clock_line(job, domain).min;
                let live: Vec<(WorkerThread, u64)> = engine.clocks(job).live(domain).collect();
                let pace = |(thread, clock)| {
                    let step_us = engine.pace.median_us(DomainKey::new(job, domain), thread);
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

const fn refused(no: Refusal) -> Answer {
    (ServerAnswer::Refused(no), None)
}

/// Queues an answer and sends attached descriptors with it. The caller closes the connection after an error.
pub(super) fn send(conn: &mut Conn, number: u64, (answer, memory): Answer) -> Result<(), String> {
    conn.answer(number, &answer).map_err(|e| e.to_string())?;
    match memory {
        // Sent before anything else, so that the descriptors go with their answer.
        Some(memory) => conn
            .send_with(&memory.descriptors())
            .map_err(|e| e.to_string()),
        None => Ok(()),
    }
}
