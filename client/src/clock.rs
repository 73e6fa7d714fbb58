//! Clocks: ticks, and the waits that BSP and SSP ask for.

use std::collections::BTreeMap;
use std::time::Duration;

use tidewater_transport::clock::Deadline;
use tidewater_transport::ids::DomainId;
use tidewater_transport::layout::frame::{CLOCK_FINISHED, FrameFlags, FrameHeader, FrameKind};
use tidewater_transport::limits::{CLOCK_DEADLINE, CLOCK_NAG, DOMAINS_MAX};

use crate::error::ClientError;
use crate::lanes::Lanes;
use crate::push::Ticket;

/// How far workers may drift apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sync {
    /// Bulk synchronous: an iteration begins when all workers have ended the one before.
    Bsp,
    /// Stale synchronous: a worker is at most this many iterations ahead of the slowest.
    Ssp(u64),
    /// Asynchronous: nobody waits.
    #[default]
    Asp,
}

impl Sync {
    /// Ticks the slowest worker may lag behind; `None` for any number.
    pub(crate) const fn staleness(self) -> Option<u64> {
        match self {
            Self::Bsp => Some(0),
            Self::Ssp(s) => Some(s),
            Self::Asp => None,
        }
    }
}

impl core::str::FromStr for Sync {
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

impl core::fmt::Display for Sync {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Bsp => f.write_str("bsp"),
            Self::Ssp(s) => write!(f, "ssp:{s}"),
            Self::Asp => f.write_str("asp"),
        }
    }
}

/// One worker's clocks.
#[derive(Debug)]
pub(crate) struct WorkerClock {
    pub(crate) sync: Sync,
    pub(crate) deadline: Duration,
    clocks: [u64; DOMAINS_MAX],
    /// Minimum seen of each domain: no need to look again below it.
    seen: [u64; DOMAINS_MAX],
    /// Frames of the last tick: a refusal of one of them is found at the next.
    sent: Ticket,
}

impl WorkerClock {
    pub(crate) fn new(sync: Sync) -> Self {
        Self {
            sync,
            deadline: CLOCK_DEADLINE,
            clocks: [0; DOMAINS_MAX],
            seen: [0; DOMAINS_MAX],
            sent: Ticket::default(),
        }
    }

    /// Ticks completed in a domain.
    pub(crate) fn at(&self, domain: DomainId) -> u64 {
        self.clocks
            .get(domain.0 as usize)
            .copied()
            .unwrap_or_default()
    }

    /// Waits until every worker has ended the iterations that a read at this clock must see.
    #[inline]
    pub(crate) fn gate(&mut self, lanes: &mut Lanes, domain: DomainId) -> Result<(), ClientError> {
        lanes.tend()?;
        let Some(s) = self.sync.staleness() else {
            return Ok(());
        };
        let need = self.at(domain).saturating_sub(s);
        let seen = self.seen.get(domain.0 as usize);
        if seen.is_none_or(|&seen| seen >= need) {
            return Ok(());
        }
        self.wait_for(need, lanes, domain)
    }

    /// Waits until the slowest worker has ended `need` iterations.
    fn wait_for(
        &mut self,
        need: u64,
        lanes: &mut Lanes,
        domain: DomainId,
    ) -> Result<(), ClientError> {
        let min = wait_min(lanes, domain, need, self.deadline)?;
        if let Some(seen) = self.seen.get_mut(domain.0 as usize) {
            *seen = min;
        }
        Ok(())
    }

    /// Ends an iteration: the wait that keeps the drift bounded (it comes first, so that a deadline
    /// leaves the clock where it was), then a CLOCK frame in every ring.
    pub(crate) fn tick(&mut self, lanes: &mut Lanes, domain: DomainId) -> Result<(), ClientError> {
        self.gate(lanes, domain)?;
        self.refused(lanes)?;
        let next = self.at(domain) + 1;
        self.sent = send_clock(lanes, domain, next, Deadline::after(self.deadline))?;
        if let Some(clock) = self.clocks.get_mut(domain.0 as usize) {
            *clock = next;
        }
        lanes.counters.ticks += 1;
        Ok(())
    }

    /// Leaves every domain for good: nobody waits for this worker any more.
    pub(crate) fn finish(&mut self, lanes: &mut Lanes) -> Result<(), ClientError> {
        let deadline = Deadline::after(self.deadline);
        self.sent = send_clock(lanes, DomainId(0), CLOCK_FINISHED, deadline)?;
        Ok(())
    }

    /// Fails when a server refused the last tick: it and this worker no longer agree.
    fn refused(&self, lanes: &mut Lanes) -> Result<(), ClientError> {
        match lanes.try_applied(&self.sent) {
            Some(Err((lane, reject))) => Err(ClientError::Protocol {
                server: lanes.name(lane).to_owned(),
                what: format!("it refused a tick: {reject:?}"),
            }),
            _ => Ok(()),
        }
    }
}

fn send_clock(
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
        chk: 0,
    };
    for lane in 0..lanes.len() {
        let seq = lanes.build(lane, header, 0, |_| {}, deadline)?;
        sent.add(lane, seq);
        lanes.send(lane, deadline)?;
    }
    Ok(sent)
}

/// Waits until the minimum at every applier is `need`; says every minute who is awaited. A lane
/// that breaks meanwhile has all the time of the wait to come back, not the rest of a minute.
fn wait_min(
    lanes: &mut Lanes,
    domain: DomainId,
    need: u64,
    longest: Duration,
) -> Result<u64, ClientError> {
    let mut nag = Deadline::after(CLOCK_NAG);
    let each = |lanes: &mut Lanes| {
        if nag.passed() {
            let missing = who(lanes, domain, need);
            tracing::warn!("still waiting for clock {need} of domain {domain}: {missing}");
            nag = Deadline::after(CLOCK_NAG);
        }
    };
    let look = |lanes: &mut Lanes| {
        let clocks = (0..lanes.len()).map(|l| lanes.get(l).clock(domain).min);
        Ok(clocks.min().filter(|&min| min >= need))
    };
    match lanes.wait_and("wait for the clock", Deadline::after(longest), each, look) {
        Err(ClientError::Deadline { op, .. }) => {
            let missing = who(lanes, domain, need);
            Err(ClientError::Deadline { op, missing })
        }
        other => other,
    }
}

/// The workers that hold a clock back, as the servers tell.
fn who(lanes: &mut Lanes, domain: DomainId, need: u64) -> String {
    let soon = Deadline::after(Duration::from_secs(2));
    let mut behind: BTreeMap<u32, u64> = BTreeMap::new();
    let mut silent = Vec::new();
    for server in 0..lanes.servers() {
        let Some(link) = lanes.link(server) else {
            continue;
        };
        match link.clocks(domain, soon) {
            Ok(clocks) => {
                for (worker, clock) in clocks.into_iter().filter(|c| c.1 < need) {
                    let least = behind.entry(worker.0).or_insert(clock);
                    *least = clock.min(*least);
                }
            }
            Err(e) => silent.push(format!("server {}: {e}", link.name())),
        }
    }
    let names = behind
        .iter()
        .map(|(w, clock)| format!("worker {w}, at clock {clock}"));
    let mut names: Vec<String> = names.collect();
    if names.is_empty() && silent.is_empty() {
        names.push("no live worker is behind; the servers have not told yet".into());
    }
    names.extend(silent);
    names.join("; ")
}
