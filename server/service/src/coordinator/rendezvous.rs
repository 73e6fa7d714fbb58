//! Rendezvous of a launched job, before there are servers and workers. Each process registers its rank and
//! its part (server or worker). When all have registered, each receives its server or worker number.
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

/// Maximum number of ranks and of hosts in an error text. Further ranks are counted; further hosts are left
/// out.
const NAMED_MAX: usize = 16;

/// A process that has registered in the rendezvous.
#[derive(Debug)]
struct Arrival {
    asker: Asker,
    register: Register,
    /// Its server number and its worker number, once all have registered; `None` for a part that it is not.
    numbers: [Option<u32>; 2],
    /// Whether it has joined with its number.
    joined: bool,
}

impl Arrival {
    /// Whether this process is server or worker `number`; `Part::Both` stands for the worker.
    fn is(&self, part: Part, number: u32) -> bool {
        let [server, worker] = self.numbers;
        let own = match part {
            Part::Server => server,
            Part::Worker | Part::Both => worker,
        };
        own == Some(number)
    }
}

/// State of a launch's rendezvous: under way, complete or failed.
#[derive(Debug)]
pub(super) struct Gathering {
    size: u32,
    /// Host names from the launcher; empty if it gave none.
    hosts: Vec<String>,
    came: BTreeMap<u32, Arrival>,
    /// Earliest time at which a registered process gives up; on the coordinator's clock.
    deadline: Option<Duration>,
    complete: bool,
    /// Reason why the rendezvous has failed, if it has.
    failed: Option<Refusal>,
}

impl Gathering {
    fn missing(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.size).filter(|rank| !self.came.contains_key(rank))
    }

    /// Lists the ranks that have not registered and the hosts that lack processes, for an error text.
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

    /// Hosts named by the launcher from which no process has registered. Only the name before the first dot
    /// is compared. Empty if no host matches: the names are then aliases.
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

    /// Numbers servers and workers separately in the order of ranks. Returns the answer for each process. A
    /// process that is both gets a number in each.
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

    /// Number of registered processes that are `part`, including processes that are both server and worker.
    fn count(&self, part: Part) -> u32 {
        let those = self
            .came
            .values()
            .filter(|a| a.register.part.includes(part));
        those.count() as u32
    }
}

/// Describes a process in error texts by rank, pid and host.
fn describe(register: &Register) -> String {
    let Register {
        rank, pid, host, ..
    } = register;
    format!("rank {rank} (pid {pid} on {host})")
}

impl Coordinator {
    /// Starts the rendezvous of a launch of `size` processes. Until all have registered, no server or worker
    /// may join. The registrations determine the numbers of servers and workers. `hosts` are the names from
    /// the launcher, if any.
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

    /// Checks whether peers of this role may connect. Refused while the rendezvous is incomplete, except for
    /// operators and launched processes that register, and after it has failed.
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

    /// Handles a process's registration. It is answered later (`None`), when all have registered. A duplicate
    /// rank, a rank out of range or a differing size fails the launch; a process that registers after all
    /// others is only refused.
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

    /// Handles the end of a connection by which a process registered. If the process has not joined, it has
    /// died, and the launch fails.
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

    /// Marks the launched process of server or worker `number` as joined: the end of its registration's connection is
    /// then no failure of the launch. Does nothing for processes that were not launched.
    pub(super) fn launched_joins(&mut self, part: Part, number: u32) {
        let came = self.gathering.iter_mut().flat_map(|g| g.came.values_mut());
        let mut those = came.filter(|arrival| arrival.is(part, number));
        if let Some(arrival) = those.next() {
            arrival.joined = true;
        }
    }

    /// Describes the launched process of server or worker `number` for error texts; empty if it was not
    /// launched.
    pub(super) fn launched_as(&self, part: Part, number: u32) -> String {
        let mut came = self.gathering.iter().flat_map(|g| g.came.values());
        let found = came.find(|arrival| arrival.is(part, number));
        found.map_or_else(String::new, |a| format!(", {}", describe(&a.register)))
    }

    /// Whether the launch has failed and connected processes have yet to receive the reason, so that the
    /// coordinator must not exit.
    pub(super) fn is_still_sending(&self) -> bool {
        let failed = self.gathering.as_ref().is_some_and(|g| g.failed.is_some());
        failed && !self.peers.is_empty()
    }

    /// Fails the rendezvous and stops the cluster. All registered processes get the reason, and so does each
    /// that registers within the grace period.
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
