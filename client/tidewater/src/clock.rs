//! Worker clocks: ticks, and the waits of BSP and SSP.

use std::collections::BTreeMap;
use std::time::Duration;

use tidewater_protocol::ids::{DomainId, WorkerThread};
use tidewater_protocol::layout::frame::{
    CLOCK_FINISHED, CLOCK_JOIN, FrameFlags, FrameHeader, FrameKind,
};
use tidewater_protocol::limits::{CLOCK_DEADLINE, CLOCK_NAG, DOMAINS_MAX};
use tidewater_protocol::mutants::{self, Mutant};
use tidewater_protocol::wire::control::DomainClock;
use tidewater_runtime::clock::Deadline;

use crate::error::ClientError;
use crate::lanes::{LaneRefusal, Lanes};
use crate::push::Ticket;

/// Synchronisation mode of workers: how many iterations they may drift apart.
///
/// # Example
/// ```
/// # use tidewater::{ClientError, JoinOptions, SyncMode};
/// # fn main() -> Result<(), ClientError> {
/// # let job = JoinOptions::embedded(1, 1).join()?.into_job().expect("a worker");
/// let sync = "ssp:2".parse().expect("a mode"); // from the command line, say
/// assert_eq!(sync, SyncMode::Ssp(2));
/// let mut client = job.client(sync)?;
/// client.tick()?;
/// assert_eq!((client.sync(), client.clock()), (sync, 1));
/// # client.finish()
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SyncMode {
    /// Bulk synchronous: an iteration begins when all workers have ended the one before.
    Bsp,
    /// Stale synchronous: a worker is at most this many iterations ahead of the slowest.
    Ssp(u64),
    /// Asynchronous: no worker waits for another.
    #[default]
    Asp,
}

impl SyncMode {
    /// Iterations (ticks) that a worker may be ahead of the slowest one: 0 under BSP, `s` under SSP. `None` under
    /// ASP: there is no bound.
    pub(crate) const fn staleness(self) -> Option<u64> {
        match self {
            Self::Bsp => Some(0),
            Self::Ssp(s) => Some(s),
            Self::Asp => None,
        }
    }
}

impl core::str::FromStr for SyncMode {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let bad = || format!("\"{s}\" is no synchronisation: use bsp, asp, or ssp:S like ssp:2");
        match s {
            "bsp" => Ok(Self::Bsp),
            "asp" => Ok(Self::Asp),
            _ => {
                let s = s.strip_prefix("ssp:").ok_or_else(bad)?;
                s.parse().map(Self::Ssp).map_err(|_| bad())
            }
        }
    }
}

impl core::fmt::Display for SyncMode {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Bsp => f.write_str("bsp"),
            Self::Ssp(s) => write!(f, "ssp:{s}"),
            Self::Asp => f.write_str("asp"),
        }
    }
}

/// Logical clocks of one worker thread: for each clock domain the completed ticks and the synchronisation mode.
#[derive(Debug)]
pub(crate) struct WorkerClock {
    /// Synchronisation of each domain.
    sync: [SyncMode; DOMAINS_MAX],
    pub(crate) deadline: Duration,
    clocks: [u64; DOMAINS_MAX],
    /// Clock in the last CLOCK frame that is built in the ring of every lane, by domain. It is above `clocks`
    /// after a tick with unsent frames: the next call sends the rest and builds none.
    built: [u64; DOMAINS_MAX],
    /// Whether the frame that leaves every domain is built in the ring of every lane.
    finished: bool,
    /// Minimum clock of all workers seen last, by domain; a wait for no more than this needs no poll.
    seen: [u64; DOMAINS_MAX],
    /// CLOCK frames built last (tick, join or leave). The next tick finds a refusal of one of them.
    sent: Ticket,
    /// Ticks after which this worker ends by its job's schedule, by domain; `u64::MAX` without a schedule.
    ends: [u64; DOMAINS_MAX],
}

impl WorkerClock {
    pub(crate) fn new(sync: SyncMode) -> Self {
        Self {
            sync: [sync; DOMAINS_MAX],
            deadline: CLOCK_DEADLINE,
            clocks: [0; DOMAINS_MAX],
            built: [0; DOMAINS_MAX],
            finished: false,
            seen: [0; DOMAINS_MAX],
            sent: Ticket::default(),
            ends: [u64::MAX; DOMAINS_MAX],
        }
    }

    /// Clocks for a further thread (sibling) of this worker, with the ticks, scheduled ends, modes and deadline
    /// of this thread.
    pub(crate) fn of_sibling(&self) -> Self {
        let mut new = Self::new(SyncMode::Asp);
        (new.sync, new.ends) = (self.sync, self.ends);
        (new.clocks, new.built, new.seen) = (self.clocks, self.built, self.seen);
        new.deadline = self.deadline;
        new
    }

    /// Clocks for a job that begins again after a restart: all ticks are 0, and no end is scheduled. Modes and
    /// deadline stay.
    pub(crate) fn begun_again(&self) -> Self {
        let mut new = Self::new(SyncMode::Asp);
        (new.sync, new.deadline) = (self.sync, self.deadline);
        new
    }

    /// Sets the start clocks of a worker that joins a running job. Domains that `clocks` does not list keep
    /// theirs.
    pub(crate) fn begin_at(&mut self, clocks: &[DomainClock]) {
        for at in clocks {
            let domain = usize::from(at.domain.0);
            if let (Some(clock), Some(built)) =
                (self.clocks.get_mut(domain), self.built.get_mut(domain))
            {
                (*clock, *built) = (at.clock, at.clock);
            }
        }
    }

    /// Sets the tick at which this worker leaves each domain by its job's schedule. Domains that `clocks` does not
    /// list end at 0.
    pub(crate) fn end_at(&mut self, clocks: &[DomainClock]) {
        self.ends = [0; DOMAINS_MAX];
        for at in clocks {
            if let Some(end) = self.ends.get_mut(usize::from(at.domain.0)) {
                *end = at.clock;
            }
        }
    }

    /// Checks that this worker's clock is below its scheduled end in the domain. At the end it fails with
    /// `ClientError::StayOver`: the schedule says that the worker was lost in this iteration.
    pub(crate) fn check_stay(&self, domain: DomainId) -> Result<(), ClientError> {
        let clock = self.at(domain);
        match clock < self.ends[domain.0 as usize] || mutants::on(Mutant::LossOutlived) {
            true => Ok(()),
            false => Err(ClientError::StayOver { domain, clock }),
        }
    }

    /// First domain with a half-sent tick: its CLOCK frame is built in the rings but not sent to all servers. `None`
    /// if all ticks are sent.
    pub(crate) fn halfway(&self) -> Option<DomainId> {
        (0..DOMAINS_MAX as u8)
            .map(DomainId)
            .find(|&domain| self.is_halfway(domain))
    }

    /// Number of ticks that this worker thread has completed in a domain.
    pub(crate) fn at(&self, domain: DomainId) -> u64 {
        self.clocks[domain.0 as usize]
    }

    /// Domain and clock (completed ticks) of each domain in which this worker has ticked at least once.
    pub(crate) fn all(&self) -> Vec<DomainClock> {
        let domains = (0..).map(DomainId).zip(self.clocks);
        let ticked = domains.filter(|(_, clock)| *clock > 0);
        ticked
            .map(|(domain, clock)| DomainClock { domain, clock })
            .collect()
    }

    /// Domain and clock of each bounded domain (BSP or SSP) in which this worker has ticked. A bounded domain 0 is
    /// included even at clock 0.
    pub(crate) fn bounded(&self) -> Vec<DomainClock> {
        let domains = (0..).map(DomainId).zip(self.clocks);
        let bounded = domains.filter(|&(domain, clock)| {
            self.is_bounded(domain) && (clock > 0 || domain == DomainId(0))
        });
        bounded
            .map(|(domain, clock)| DomainClock { domain, clock })
            .collect()
    }

    /// Clock (iteration) that a push of this domain carries. After the CLOCK frame of a tick is built, also if it is
    /// not sent everywhere, pushes belong to the next iteration.
    pub(crate) fn stamp(&self, domain: DomainId) -> u64 {
        self.built[domain.0 as usize]
    }

    /// Whether the domain's last tick is half-sent: its CLOCK frame is built in every ring, but not sent to all
    /// servers.
    pub(crate) fn is_halfway(&self, domain: DomainId) -> bool {
        self.stamp(domain) > self.at(domain)
    }

    /// Synchronisation mode of a domain: BSP, SSP or ASP.
    pub(crate) const fn sync(&self, domain: DomainId) -> SyncMode {
        self.sync[domain.0 as usize]
    }

    /// Sets the synchronisation mode of a domain for this worker thread.
    pub(crate) const fn set_sync(&mut self, domain: DomainId, sync: SyncMode) {
        self.sync[domain.0 as usize] = sync;
    }

    /// Whether this worker thread waits for others in a domain (BSP or SSP). If so, its tick also waits until the
    /// servers have answered its pushes.
    pub(crate) const fn is_bounded(&self, domain: DomainId) -> bool {
        self.sync(domain).staleness().is_some()
    }

    /// Gate before a read: checks the control connections if that is due, and sends the push frames that lanes
    /// hold for a batch. Then blocks until every worker has ended the iterations that the bound of BSP or SSP
    /// demands (own clock less staleness). Under ASP it waits for no worker.
    #[inline]
    pub(crate) fn gate(&mut self, lanes: &mut Lanes, domain: DomainId) -> Result<(), ClientError> {
        lanes.keep_alive()?;
        lanes.send_held_in(self.deadline)?;
        match self.awaited(domain) {
            None => Ok(()),
            Some(need) => {
                let deadline = Deadline::after(self.deadline);
                self.wait_for(need, lanes, domain, deadline)
            }
        }
    }

    /// Ticks that every worker must have completed before this one may read or tick. `None` if there is no
    /// bound, or if the last minimum seen already reaches that number.
    #[inline]
    fn awaited(&self, domain: DomainId) -> Option<u64> {
        let need = self
            .at(domain)
            .saturating_sub(self.sync(domain).staleness()?);
        (self.seen[domain.0 as usize] < need).then_some(need)
    }

    /// Blocks until the slowest worker has completed `need` ticks in a domain, and records the minimum that it saw.
    fn wait_for(
        &mut self,
        need: u64,
        lanes: &mut Lanes,
        domain: DomainId,
        deadline: Deadline,
    ) -> Result<(), ClientError> {
        let min = wait_min(lanes, domain, need, deadline)?;
        self.seen[domain.0 as usize] = min;
        Ok(())
    }

    /// Sends all built frames, and blocks until the servers have acknowledged every frame on every lane; only
    /// then is it known whether the iteration is complete. A refused frame is no error here. `thread` is the
    /// caller's. A deadline error names the workers with an earlier turn: servers apply their pushes first.
    pub(crate) fn await_answers(
        &self,
        lanes: &mut Lanes,
        domain: DomainId,
        thread: WorkerThread,
        deadline: Deadline,
    ) -> Result<(), ClientError> {
        if mutants::on(Mutant::TickBeforeAnswers) {
            return Ok(());
        }
        match lanes.settle("tick", deadline) {
            Err(e) => Err(self.name_turn(lanes, domain, thread, e)),
            Ok(()) => Ok(()),
        }
    }

    /// Adds to a deadline error the workers that come before this one in the order in which servers apply pushes. A
    /// server may leave this worker's pushes in their ring until those workers tick. Other errors are returned
    /// unchanged. Cost: a request to every server, within 2 seconds in all.
    #[cold]
    pub(crate) fn name_turn(
        &self,
        lanes: &mut Lanes,
        domain: DomainId,
        thread: WorkerThread,
        error: ClientError,
    ) -> ClientError {
        let ClientError::Deadline { op, missing } = error else {
            return error;
        };
        let open = self.stamp(domain);
        let before = |other: WorkerThread, clock| {
            clock < open || (clock == open && other.rank < thread.rank)
        };
        let Behind { workers, silent } = behind(lanes, domain, before);
        let mut names = vec![missing];
        if !workers.is_empty() && !mutants::on(Mutant::TurnUnnamed) {
            names.push(format!(
                "what {thread} pushes in iteration {open} of clock domain {domain} comes after \
                 what these push: {}; let them tick first, or raise the servers' --pending-bytes, up \
                 to which pushes of later ranks are held",
                workers.join(", ")
            ));
        }
        names.extend(silent);
        let missing = names.join("; ");
        ClientError::Deadline { op, missing }
    }

    /// Ends an iteration: waits as BSP or SSP demands, then sends a CLOCK frame through the ring of every lane.
    /// The wait comes first, so that a deadline leaves the clock unchanged. A call after an error continues
    /// where the last one stopped. Fails also if a server refused a CLOCK frame of the tick before, or, at the
    /// first tick of a bounded domain, if `thread` is no member of the domain.
    pub(crate) fn tick(
        &mut self,
        lanes: &mut Lanes,
        domain: DomainId,
        thread: WorkerThread,
        deadline: Deadline,
    ) -> Result<(), ClientError> {
        lanes.keep_alive()?;
        if let Some(need) = self.awaited(domain) {
            self.wait_for(need, lanes, domain, deadline)?;
        }
        self.refused(lanes)?;
        let next = self.at(domain) + 1;
        if next == 1 && self.is_bounded(domain) {
            check_member(lanes, domain, thread, deadline)?;
        }
        let again = mutants::on(Mutant::TickSentAgain);
        if !self.is_halfway(domain) || again {
            self.sent = build_clock(lanes, domain, next, deadline)?;
            self.built[domain.0 as usize] = next;
        }
        lanes.send_all(deadline)?;
        self.clocks[domain.0 as usize] = next;
        lanes.counters.ticks += 1;
        Ok(())
    }

    /// Registers this thread (a sibling) with the appliers: sends a `CLOCK_JOIN` frame on every lane and blocks
    /// until every applier has accepted it. Fails with `ClientError::Protocol` if one refuses.
    pub(crate) fn join(
        &mut self,
        lanes: &mut Lanes,
        deadline: Deadline,
    ) -> Result<(), ClientError> {
        self.sent = build_clock(lanes, DomainId(0), CLOCK_JOIN, deadline)?;
        lanes.send_all(deadline)?;
        lanes.settle("sibling", deadline)?;
        self.refused(lanes)
    }

    /// Whether [`Self::finish`] has built the final CLOCK frame, by which this thread leaves its domains. It may be
    /// unsent.
    pub(crate) const fn is_finished(&self) -> bool {
        self.finished
    }

    /// Leaves every domain for good: sends a `CLOCK_FINISHED` frame on every lane, so that no worker waits for this
    /// one. Does not wait for the servers' answers. A call after an error continues where the last one stopped.
    pub(crate) fn finish(&mut self, lanes: &mut Lanes) -> Result<(), ClientError> {
        let deadline = Deadline::after(self.deadline);
        if !self.finished {
            self.sent = build_clock(lanes, DomainId(0), CLOCK_FINISHED, deadline)?;
            self.finished = true;
        }
        lanes.send_all(deadline)
    }

    /// Fails with `ClientError::Protocol` if a server has refused one of the CLOCK frames built last. Does not
    /// wait: as long as one of them is unanswered, it succeeds.
    pub(crate) fn refused(&self, lanes: &mut Lanes) -> Result<(), ClientError> {
        match lanes.try_applied(&self.sent) {
            Some(Err(LaneRefusal { lane, refused })) => Err(ClientError::Protocol {
                server: lanes.name(lane).to_owned(),
                what: format!("it refused a tick: {refused:?}"),
            }),
            _ => Ok(()),
        }
    }
}

/// Builds one CLOCK frame in the ring of every lane, or in none: it first waits for room in all rings, and sends
/// built frames to make room. The frame therefore stands between the same pushes on every lane, whatever fails
/// later. Returns the ticket of the CLOCK frames, which are not sent.
fn build_clock(
    lanes: &mut Lanes,
    domain: DomainId,
    clock: u64,
    deadline: Deadline,
) -> Result<Ticket, ClientError> {
    let mut sent = Ticket::new(0);
    let header = FrameHeader {
        kind: FrameKind::Clock,
        flags: FrameFlags::default(),
        seq: 0,
        session: 0,
        payload_len: 0,
        count: 0,
        table: 0,
        partition: u32::from(domain.0),
        clock,
        user_tag: 0,
        checksum: 0,
    };
    lanes.wait_room_everywhere(0, deadline)?;
    for lane in 0..lanes.len() {
        let seq = lanes.build(lane, header, 0, |_| {}, deadline)?;
        sent.add(lane, seq);
    }
    Ok(sent)
}

/// Blocks until the minimum clock at every applier is at least `need`, and returns the least of these minima.
/// Once a minute it logs the workers that are behind; a deadline error names them too. Recovery of a broken lane
/// may take the whole remaining time of the wait.
fn wait_min(
    lanes: &mut Lanes,
    domain: DomainId,
    need: u64,
    deadline: Deadline,
) -> Result<u64, ClientError> {
    let mut warn_at = Deadline::after(CLOCK_NAG);
    let each = |lanes: &mut Lanes| {
        if warn_at.passed() {
            let missing = missing_workers(lanes, domain, need);
            tracing::warn!("still waiting for clock {need} of domain {domain}: {missing}");
            warn_at = Deadline::after(CLOCK_NAG);
        }
    };
    let look = |lanes: &mut Lanes| {
        let clocks = (0..lanes.len()).map(|l| lanes.get(l).clock(domain).min);
        Ok(clocks.min().filter(|&min| min >= need))
    };
    match lanes.wait_and("wait for the clock", deadline, each, look) {
        Err(ClientError::Deadline { op, .. }) => {
            let missing = missing_workers(lanes, domain, need);
            Err(ClientError::Deadline { op, missing })
        }
        other => other,
    }
}

/// Blocks until version `need` of the table named `table` is complete at every applier; returns the newest
/// complete version. The version of a table is the minimum clock of its clock domain, `domain`. An applier
/// announces a minimum after all tables of the domain have applied the pushes before it, so a later read finds
/// them.
pub(crate) fn wait_version(
    lanes: &mut Lanes,
    op: &'static str,
    table: &str,
    domain: DomainId,
    need: u64,
    deadline: Deadline,
) -> Result<u64, ClientError> {
    let appliers = |lanes: &Lanes| match mutants::on(Mutant::VersionOfFirstApplier) {
        true => 1,
        false => lanes.len(),
    };
    let complete = |lanes: &mut Lanes| {
        let clocks = (0..appliers(lanes)).map(|l| lanes.get(l).clock(domain).min);
        clocks.min()
    };
    let look = |lanes: &mut Lanes| Ok(complete(lanes).filter(|&min| min >= need));
    match lanes.wait(op, deadline, look) {
        Err(ClientError::Deadline { op, .. }) => {
            let at = complete(lanes).unwrap_or_else(|| unreachable!("a job has an applier"));
            let missing = format!(
                "version {need} of table \"{table}\", which is at version {at} (ticks of clock domain \
                 {domain}): {}",
                missing_workers(lanes, domain, need)
            );
            Err(ClientError::Deadline { op, missing })
        }
        other => other,
    }
}

/// Asks every server whether this thread is a member of a clock domain. Fails with `ClientError::Environment` if
/// a server does not list the thread: its ticks would be refused there, and it would wait for no worker.
pub(crate) fn check_member(
    lanes: &mut Lanes,
    domain: DomainId,
    thread: WorkerThread,
    deadline: Deadline,
) -> Result<(), ClientError> {
    if mutants::on(Mutant::LatecomerLetIn) {
        return Ok(());
    }
    for server in 0..lanes.servers() {
        let Some(members) = lanes.members(server, domain, deadline)? else {
            continue;
        };
        if !members.iter().any(|&(member, _)| member == thread) {
            let name = lanes.link(server).map_or("", |link| link.name());
            return Err(ClientError::Environment(format!(
                "{thread} is no member of clock domain {domain} at server {name}: it came after \
                 the first tick of a job whose number of workers was not said, or it has left its \
                 job; say the number when each session is opened (workers=N, or TIDEWATER_WORKERS=N \
                 in the environment), or open this session under asp"
            ).into()));
        }
    }
    Ok(())
}

/// Text that names the workers with a clock below `need`, as the servers report them, and the servers that do not
/// answer. For deadline errors and logs.
fn missing_workers(lanes: &mut Lanes, domain: DomainId, need: u64) -> String {
    let Behind { workers, silent } = behind(lanes, domain, |_, clock| clock < need);
    let mut names = [workers, silent].concat();
    if names.is_empty() {
        names.push("no live worker is behind; the servers have not reported it yet".into());
    }
    names.join("; ")
}

/// Result of [`behind`]: texts for the worker threads that are late, with their clocks, and for the servers that do
/// not answer.
struct Behind {
    workers: Vec<String>,
    silent: Vec<String>,
}

/// Asks every server for the clocks of a domain, within 2 seconds, and collects the worker threads for which
/// `late(thread, clock)` holds at any server. Each one stands with its smallest clock.
fn behind(lanes: &mut Lanes, domain: DomainId, late: impl Fn(WorkerThread, u64) -> bool) -> Behind {
    let soon = Deadline::after(Duration::from_secs(2));
    let mut behind: BTreeMap<WorkerThread, u64> = BTreeMap::new();
    let mut silent = Vec::new();
    for server in 0..lanes.servers() {
        let Some(link) = lanes.link(server) else {
            continue;
        };
        match link.clocks(domain, soon) {
            Ok(clocks) => {
                for (worker, clock) in clocks.into_iter().filter(|&(w, at)| late(w, at)) {
                    let least = behind.entry(worker).or_insert(clock);
                    *least = clock.min(*least);
                }
            }
            Err(e) => silent.push(format!("server {}: {e}", link.name())),
        }
    }
    let workers = behind
        .iter()
        .map(|(thread, clock)| format!("{thread}, at clock {clock}"))
        .collect();
    Behind { workers, silent }
}
