//! Rendezvous of a launch, before there are servers and workers. Each process registers its rank
//! and its part, and when all have, each gets its number.
//!
//! The launch fails if two processes have one rank, a process ends or gives up, or sizes differ.
//! Each process then learns which one caused it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::Duration;

use tidewater_protocol::limits::{SERVERS_MAX, SHUTDOWN_GRACE, TEXT_BYTES_MAX, WORKERS_MAX};
use tidewater_protocol::wire::control::{CoordinatorAnswer, Part, Register, Roster};
use tidewater_protocol::wire::hello::Role;
use tidewater_protocol::wire::refusal::{Refusal, RefusalCode};

use super::state::{Asker, Coordinator, PeerId, Phase, bad};

/// Most ranks, and most hosts, that a message names. It counts further ranks and leaves out further hosts.
const NAMED_MAX: usize = 16;

/// A process that has registered.
#[derive(Debug)]
struct Arrival {
    asker: Asker,
    register: Register,
    /// Its numbers as server and as worker, once all have registered.
    numbers: [Option<u32>; 2],
    /// It has joined by that number.
    joined: bool,
}

impl Arrival {
    /// Whether it is server or worker `number`.
    fn is(&self, part: Part, number: u32) -> bool {
        let [server, worker] = self.numbers;
        let own = match part {
            Part::Server => server,
            Part::Worker | Part::Both => worker,
        };
        own == Some(number)
    }
}

/// A rendezvous, under way or complete.
#[derive(Debug)]
pub(super) struct Gathering {
    size: u32,
    /// As the launcher has named them; empty if it has not.
    hosts: Vec<String>,
    came: BTreeMap<u32, Arrival>,
    /// When the first of the registered processes gives up.
    deadline: Option<Duration>,
    complete: bool,
    /// Why the rendezvous failed.
    failed: Option<Refusal>,
}

impl Gathering {
    fn missing(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.size).filter(|rank| !self.came.contains_key(rank))
    }

    /// Ranks that have not registered, and the hosts where a process is missing.
    fn absentees(&self) -> String {
        let named: Vec<String> = self
            .missing()
            .take(NAMED_MAX)
            .map(|rank| rank.to_string())
            .collect();
        let (came, size, missing) = (self.came.len(), self.size, named.join(", "));
        let more = self.missing().count().saturating_sub(NAMED_MAX);
        let mut text = format!("{came} of {size} processes have come; missing: rank {missing}");
        if more > 0 {
            let _ = write!(text, " and {more} more");
        }
        let mut hosts: BTreeMap<&str, (u32, u32)> = BTreeMap::new();
        for Arrival { register, .. } in self.came.values() {
            let host = hosts.entry(&register.host).or_default();
            *host = (host.0 + 1, register.local_size);
        }
        let short = |&(_, &(came, of)): &(&&str, &(u32, u32))| of > came;
        let of_hosts: u32 = hosts.values().map(|&(came, of)| of.max(came)).sum();
        for (host, (came, of)) in hosts.iter().filter(short).take(NAMED_MAX) {
            let _ = write!(text, "; on host {host}, {came} of {of} have");
        }
        let silent = self.silent_hosts();
        if !silent.is_empty() {
            let named: Vec<&str> = silent.iter().copied().take(NAMED_MAX).collect();
            // A write to a String does not fail.
            let _ = write!(text, "; no process has come from {}", named.join(", "));
            return text;
        }
        let knows = hosts.values().all(|&(_, of)| of > 0);
        if knows && of_hosts < self.size {
            let hosts: Vec<&str> = hosts.keys().copied().take(NAMED_MAX).collect();
            let elsewhere = self.size - of_hosts;
            let hosts = hosts.join(", ");
            let _ = write!(text, "; {elsewhere} are on other hosts than {hosts}");
        }
        text
    }

    /// Hosts that the launcher has named and that no process has registered from. The launcher may
    /// name a host with its domain while the host knows itself without.
    fn silent_hosts(&self) -> Vec<&str> {
        let short = |name: &str| name.split('.').next().unwrap_or(name).to_owned();
        let came: BTreeSet<String> = self
            .came
            .values()
            .map(|a| short(&a.register.host))
            .collect();
        let hosts = self.hosts.iter().map(String::as_str);
        let (known, silent): (Vec<&str>, Vec<&str>) =
            hosts.partition(|host| came.contains(&short(host)));
        // If no process has one of these names, they are no host names: say aliases of the batch
        // system.
        if known.is_empty() { known } else { silent }
    }

    /// Numbers servers and workers in the order of ranks, and returns the complete answer of each
    /// process. One that is both has a number in each.
    fn number(&mut self) -> Vec<(Asker, Roster)> {
        const PARTS: [Part; 2] = [Part::Server, Part::Worker];
        let [servers, workers] = PARTS.map(|part| self.count(part));
        let mut next = [0; 2];
        let mut local: BTreeMap<String, [u32; 2]> = BTreeMap::new();
        let mut numbers = Vec::new();
        for arrival in self.came.values_mut() {
            let here = local.entry(arrival.register.host_id.clone()).or_default();
            let mut own = [None; 2];
            for (part, own) in own.iter_mut().enumerate() {
                if arrival.register.part.includes(PARTS[part]) {
                    *own = Some((next[part], here[part]));
                    next[part] += 1;
                    here[part] += 1;
                }
            }
            arrival.numbers = own.map(|number| number.map(|(number, _)| number));
            numbers.push(own);
        }
        let answer = |(arrival, [server, worker]): (&Arrival, [Option<(u32, u32)>; 2])| {
            let [local_servers, local_workers] = local[&arrival.register.host_id];
            let number = worker.or(server);
            let (number, local_number) =
                number.unwrap_or_else(|| unreachable!("each process has a part"));
            // 0 for a process that is no server.
            let (server, local_server) = server.unwrap_or((0, 0));
            let roster = Roster {
                number,
                servers,
                workers,
                local_number,
                local_servers,
                local_workers,
                server,
                local_server,
            };
            (arrival.asker, roster)
        };
        self.came.values().zip(numbers).map(answer).collect()
    }

    /// Number of processes that are `part`, or that too.
    fn count(&self, part: Part) -> u32 {
        let those = self
            .came
            .values()
            .filter(|a| a.register.part.includes(part));
        those.count() as u32
    }
}

/// Names a process for messages.
fn describe(register: &Register) -> String {
    let Register {
        rank, pid, host, ..
    } = register;
    format!("rank {rank} (pid {pid} on {host})")
}

impl Coordinator {
    /// Starts the rendezvous of a launch of `size` processes. Until all have registered, no other
    /// peer is admitted; the registrations then give the numbers of servers and workers. `hosts`
    /// are those that the launcher has named.
    pub fn gather(&mut self, size: u32, hosts: Vec<String>) {
        self.gathering = Some(Gathering {
            size,
            hosts,
            came: BTreeMap::new(),
            deadline: None,
            complete: false,
            failed: None,
        });
    }

    /// Why no peer is admitted to work yet, or any more.
    pub(super) fn admit_to_gathering(&self, role: Role) -> Result<(), Refusal> {
        let Some(gathering) = &self.gathering else {
            return Ok(());
        };
        match &gathering.failed {
            Some(refusal) => Err(refusal.clone()),
            None if gathering.complete || matches!(role, Role::Admin | Role::Coordinator) => Ok(()),
            None => Err(bad("the processes of this job have not all come yet")),
        }
    }

    pub(super) fn gathering_deadline(&self) -> Option<Duration> {
        let gathering = self.gathering.as_ref()?;
        gathering.deadline.filter(|_| !gathering.complete)
    }

    /// Handles the registration of a process.
    pub(super) fn rendezvous(
        &mut self,
        asker: Asker,
        register: Register,
    ) -> Result<Option<CoordinatorAnswer>, Refusal> {
        let now = self.now;
        let Some(gathering) = &mut self.gathering else {
            return Err(bad("this coordinator knows its servers and workers: join"));
        };
        let (rank, size) = (register.rank, gathering.size);
        let there = gathering
            .came
            .get(&rank)
            .map(|other| describe(&other.register));
        let this = describe(&register);
        if gathering.complete {
            let text = format!(
                "the {size} processes of the job that meets here have all come; {this} is of another \
                 one, and each job needs a meeting place of its own"
            );
            return Err(Refusal::new(RefusalCode::RankTaken, [u64::from(rank); 4]).with_text(text));
        }
        if register.size != size || rank >= size {
            let refusal = Refusal::new(
                RefusalCode::BadRequest,
                [register.size.into(), size.into(), 0, 0],
            );
            let text = format!(
                "{this} is of {} processes, and rank 0 is of {size}",
                register.size
            );
            let refusal = refusal.with_text(text);
            self.fail_gathering(&refusal);
            return Err(refusal);
        }
        if let Some(there) = there {
            let refusal = Refusal::new(RefusalCode::RankTaken, [rank.into(), 0, 0, 0]);
            let refusal =
                refusal.with_text(format!("two processes have one rank: {there} and {this}"));
            self.fail_gathering(&refusal);
            return Err(refusal);
        }
        let deadline = now.saturating_add(Duration::from_millis(register.timeout_ms));
        gathering.deadline = Some(gathering.deadline.map_or(deadline, |at| at.min(deadline)));
        let arrival = Arrival {
            asker,
            register,
            numbers: [None; 2],
            joined: false,
        };
        gathering.came.insert(rank, arrival);
        if gathering.came.len() == size as usize {
            self.all_have_come();
        }
        Ok(None)
    }

    fn all_have_come(&mut self) {
        let Some(gathering) = &mut self.gathering else {
            return;
        };
        let missing = [Part::Server, Part::Worker];
        let missing = missing.into_iter().find(|&part| gathering.count(part) == 0);
        if let Some(part) = missing {
            let remedy = match part {
                Part::Server => {
                    "start servers beside it, as in `mpirun -n 2 tidewater server : -n 4 PROGRAM`, or \
                     make some of its ranks servers (--servers, TIDEWATER_SERVERS), or all of them \
                     servers too (--servers-in-ranks, TIDEWATER_SERVERS_IN_RANKS=1)"
                }
                Part::Worker | Part::Both => {
                    "start a program that trains in the job of these servers"
                }
            };
            let (size, part) = (gathering.size, part.name());
            let text = format!("none of the {size} processes is a {part}: {remedy}");
            return self.fail_gathering(&bad(&text));
        }
        let numbered = gathering.number();
        let Some((_, first)) = numbered.first() else {
            return;
        };
        if first.servers > SERVERS_MAX || first.workers > WORKERS_MAX {
            let most = [u64::from(SERVERS_MAX), u64::from(WORKERS_MAX), 0, 0];
            let refusal = Refusal::new(RefusalCode::TooMany, most);
            return self.fail_gathering(&refusal.with_text("servers or workers of a job"));
        }
        gathering.complete = true;
        (self.config.servers, self.config.workers) = (first.servers, first.workers);
        for (asker, roster) in numbered {
            self.answer(asker, CoordinatorAnswer::Roster(roster));
        }
    }

    pub(super) fn expire_gathering(&mut self) {
        let now = self.now;
        if let Some(gathering) = &self.gathering
            && gathering.failed.is_none()
            && self.gathering_deadline().is_some_and(|at| at <= now)
        {
            let refusal = Refusal::new(RefusalCode::Timeout, [0; 4]);
            let refusal = refusal.with_text(gathering.absentees());
            self.fail_gathering(&refusal);
        }
    }

    /// Handles the end of a connection by which a process registered. It may end once the process
    /// has joined; before that, the process has ended.
    pub(super) fn gathered_gone(&mut self, id: PeerId) {
        let Some(gathering) = &self.gathering else {
            return;
        };
        let mut came = gathering.came.values();
        let Some(arrival) = came.find(|arrival| arrival.asker.peer == id) else {
            return;
        };
        if gathering.failed.is_some() || self.phase != Phase::Running {
            return;
        }
        if !arrival.joined {
            let text = format!("{} ended before it had joined", describe(&arrival.register));
            let numbers = [u64::from(arrival.register.rank), 0, 0, 0];
            let refusal = Refusal::new(RefusalCode::PeerFailed, numbers).with_text(text);
            self.fail_gathering(&refusal);
        }
    }

    /// Notes that worker or server `number` has joined.
    pub(super) fn launched_joins(&mut self, part: Part, number: u32) {
        let came = self.gathering.iter_mut().flat_map(|g| g.came.values_mut());
        let mut those = came.filter(|arrival| arrival.is(part, number));
        if let Some(arrival) = those.next() {
            arrival.joined = true;
        }
    }

    /// Describes the launched process of worker or server `number`, for messages; empty if it was
    /// not launched.
    pub(super) fn launched_as(&self, part: Part, number: u32) -> String {
        let mut came = self.gathering.iter().flat_map(|g| g.came.values());
        let found = came.find(|arrival| arrival.is(part, number));
        found.map_or_else(String::new, |a| format!(", {}", describe(&a.register)))
    }

    /// Whether the end of a failed launch waits for processes that have yet to get the reason.
    pub(super) fn is_still_sending(&self) -> bool {
        let failed = self.gathering.as_ref().is_some_and(|g| g.failed.is_some());
        failed && !self.peers.is_empty()
    }

    /// Fails the rendezvous: all processes get the reason, also those that register later.
    fn fail_gathering(&mut self, refusal: &Refusal) {
        let Some(gathering) = &mut self.gathering else {
            return;
        };
        if gathering.failed.is_some() {
            return;
        }
        let mut refusal = refusal.clone();
        let end = refusal.text.floor_char_boundary(TEXT_BYTES_MAX);
        refusal.text.truncate(end);
        gathering.failed = Some(refusal.clone());
        let unanswered = gathering.came.values().filter(|a| a.numbers == [None; 2]);
        let askers: Vec<Asker> = unanswered.map(|arrival| arrival.asker).collect();
        for asker in askers {
            self.answer(asker, CoordinatorAnswer::Refused(refusal.clone()));
        }
        self.fail_all(&refusal);
        self.stop(self.now, &refusal.text);
        // Not at once: a late process gets the reason, instead of finding no coordinator.
        self.phase = Phase::Stopping(self.now + SHUTDOWN_GRACE);
    }
}
