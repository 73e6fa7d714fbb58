//! Status report of a server for operators, from its appliers and its control thread.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use crossbeam_channel::{Receiver, bounded};
use tidewater_engine::apply::command::Command;
use tidewater_engine::apply::status::ApplierReport;
use tidewater_engine::namespace::NamespaceId;
use tidewater_protocol::ids::{ApplierId, DomainId, SessionId, WorkerThread};
use tidewater_protocol::limits::STATUS_ROWS_MAX;
use tidewater_protocol::wire::control::{
    ApplierStatus, ClockStatus, ServerStatus, SessionStatus, status_text,
};
use tidewater_runtime::clock::Deadline;

use super::control::ControlCommand;
use super::handle::ServerHandle;

/// Longest wait for the answers of appliers and control thread; later ones count as missing.
const REPORT_TIMEOUT: Duration = Duration::from_secs(2);

impl ServerHandle {
    /// Reports the server's memory, connections, sessions, appliers and clocks. Blocks up to two seconds for
    /// appliers in a long step; later ones are marked as not answered. Without an answer of the control thread
    /// the report has no connections and sessions. Cost: one command to each applier.
    pub fn report(&self) -> ServerStatus {
        let deadline = Deadline::after(REPORT_TIMEOUT);
        let (tx, sessions) = bounded(1);
        self.command(ControlCommand::Sessions(tx));
        let ask = |applier: &super::handle::ApplierControl| {
            let (tx, report) = bounded(1);
            // One that has ended drops the sender: it counts as not answered.
            let _ = applier.handle.send(Command::Report(tx));
            report
        };
        let asked: Vec<_> = self.shared.appliers.iter().map(ask).collect();
        let reports: Vec<Option<ApplierReport>> = asked
            .into_iter()
            .map(|report| answer_by(&report, deadline))
            .collect();
        let (connections, sessions) = answer_by(&sessions, deadline).unwrap_or_default();
        let memory = &self.shared.memory;
        let (public, private) = (memory.public.usage(), memory.private.usage());
        let (clocks, clocks_left_out) = self.clocks_of(&reports);
        let (sessions, sessions_left_out) = session_rows(sessions, &reports);
        ServerStatus {
            version: env!("CARGO_PKG_VERSION").into(),
            public_bytes: public.0 as u64,
            public_capacity: public.1 as u64,
            private_bytes: private.0 as u64,
            private_capacity: private.1 as u64,
            connections,
            appliers: (0..)
                .map(ApplierId)
                .zip(&reports)
                .map(applier_row)
                .collect(),
            sessions,
            sessions_left_out,
            clocks,
            clocks_left_out,
        }
    }

    /// Lowest clock of each worker thread in each domain over the appliers that have answered, the slowest first, at
    /// most `STATUS_ROWS_MAX`, and the number left out. Skips threads that one of these appliers does not have.
    fn clocks_of(&self, reports: &[Option<ApplierReport>]) -> (Vec<ClockStatus>, u64) {
        let answered: Vec<&ApplierReport> = reports.iter().flatten().collect();
        let mut least: BTreeMap<(NamespaceId, DomainId, WorkerThread), (usize, u64)> =
            BTreeMap::new();
        for &(namespace, domain, thread, clock) in answered.iter().flat_map(|r| &r.clocks) {
            let (count, low) = least
                .entry((namespace, domain, thread))
                .or_insert((0, u64::MAX));
            *count += 1;
            *low = (*low).min(clock);
        }
        let names: HashMap<NamespaceId, String> = self.shared.catalogue().job_names();
        let mut rows = Vec::new();
        for ((namespace, domain, thread), (count, clock)) in least {
            if let Some(namespace) = names.get(&namespace)
                && count == answered.len()
            {
                rows.push(ClockStatus {
                    namespace: namespace.clone(),
                    domain,
                    worker: thread.rank,
                    thread: thread.thread,
                    clock,
                });
            }
        }
        rows.sort_by_key(|row| row.clock);
        let left_out = rows.len().saturating_sub(STATUS_ROWS_MAX);
        rows.truncate(STATUS_ROWS_MAX);
        (rows, left_out as u64)
    }
}

/// Receives the answer of a thread; blocks until `deadline`. `None` if it does not come in time, or the thread has
/// ended.
fn answer_by<T>(answer: &Receiver<T>, deadline: Deadline) -> Option<T> {
    answer.recv_timeout(deadline.left()).ok()
}

fn applier_row((applier, report): (ApplierId, &Option<ApplierReport>)) -> ApplierStatus {
    let numbers = report.as_ref();
    ApplierStatus {
        applier,
        answered: report.is_some(),
        frames: numbers.map_or(0, |r| r.frames),
        held_bytes: numbers.map_or(0, |r| r.held_bytes as u64),
        saves: numbers.map_or(0, |r| r.saves as u32),
        late_frames: numbers.map_or(0, |r| r.late_frames),
    }
}

/// Rows of the sessions, each with the number of its frames that appliers have refused. At most
/// `STATUS_ROWS_MAX` rows, sorted by namespace, worker and thread; also returns the number of sessions left
/// out.
fn session_rows(
    sessions: Vec<(SessionId, SessionStatus)>,
    reports: &[Option<ApplierReport>],
) -> (Vec<SessionStatus>, u64) {
    let mut refused: HashMap<SessionId, u64> = HashMap::new();
    for &(session, count) in reports.iter().flatten().flat_map(|r| &r.refused) {
        *refused.entry(session).or_default() += count;
    }
    let with_refused = |(id, row): (SessionId, SessionStatus)| SessionStatus {
        refused: refused.get(&id).copied().unwrap_or_default(),
        reason: status_text(&row.reason),
        ..row
    };
    let mut rows: Vec<SessionStatus> = sessions.into_iter().map(with_refused).collect();
    rows.sort_by(|a, b| {
        (&a.namespace, a.worker, a.thread).cmp(&(&b.namespace, b.worker, b.thread))
    });
    let left_out = rows.len().saturating_sub(STATUS_ROWS_MAX);
    rows.truncate(STATUS_ROWS_MAX);
    (rows, left_out as u64)
}
