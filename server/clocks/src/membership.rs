//! The schedule of a job's membership: which worker begins and ends with which tick.
//!
//! The coordinator logs it, one line an event, and follows one that it is given: BSP bits are a function of
//! the data and of this schedule.
//!
//! ```text
//! join 0             rank 0 begins at clock 0 in every domain
//! join 2 0:50 3:7    rank 2 begins at clock 50 in domain 0, at 7 in domain 3
//! leave 1 0:80       rank 1 ends after 80 ticks in domain 0: iterations 0 to 79 have its pushes
//! lost 3 0:17        rank 3 ended without a leave: iterations 0 to 16 have its pushes, and no later one
//! lost 1 0:80         after a leave of rank 1: it was lost before it had left, and this line counts
//! join 0 in ads      rank 0 of the job in namespace "ads"; without "in" the namespace is "default"
//! ```
//! Lines that are empty or begin with `#` are comments.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use tidewater_protocol::ids::{DomainId, WorkerId};
use tidewater_protocol::limits::{
    DOMAINS_MAX, NAMESPACE_BYTES_MAX, SCHEDULE_CLOCK_MAX, SCHEDULE_GAP_MAX, SCHEDULE_STAYS_MAX,
    WORKERS_MAX,
};
use tidewater_protocol::wire::control::DomainClock;
use tidewater_protocol::wire::hello::NAMESPACE_DEFAULT;

/// A change of a job's membership.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A worker becomes a member.
    Join {
        /// Rank of the worker.
        rank: WorkerId,
        /// Its clock in each domain; 0 in those that are missing.
        clocks: Vec<DomainClock>,
    },
    /// A worker ends by itself.
    Leave {
        /// Rank of the worker.
        rank: WorkerId,
        /// Ticks that it has completed in each domain; 0 in those that are missing.
        clocks: Vec<DomainClock>,
    },
    /// The connection of a worker ended, and the others go on.
    Lost {
        /// Rank of the worker.
        rank: WorkerId,
        /// Ticks in each domain that count at all appliers; 0 in those that are missing.
        clocks: Vec<DomainClock>,
    },
    /// The connection of a worker ended, and its job failed. A comment of the log: nothing follows that.
    Failed {
        /// Rank of the worker.
        rank: WorkerId,
    },
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (verb, rank, clocks) = match self {
            Self::Join { rank, clocks } => ("join", rank, &clocks[..]),
            Self::Leave { rank, clocks } => ("leave", rank, &clocks[..]),
            Self::Lost { rank, clocks } => ("lost", rank, &clocks[..]),
            Self::Failed { rank } => ("# failed: the job was lost with rank", rank, &[][..]),
        };
        write!(f, "{verb} {rank}")?;
        clocks
            .iter()
            .try_for_each(|at| write!(f, " {}:{}", at.domain, at.clock))
    }
}

impl Event {
    /// The line of the log for a job of this namespace.
    pub fn line(&self, namespace: &str) -> String {
        match namespace {
            NAMESPACE_DEFAULT => self.to_string(),
            other => format!("{self} in {other}"),
        }
    }
}

/// A line of a membership file that cannot be followed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("membership line {line}, \"{text}\": {what}")]
pub struct ScheduleError {
    /// Number of the line, from 1; 0 for the file as a whole.
    pub line: usize,
    /// Text of the line.
    pub text: String,
    /// What is wrong, and the remedy.
    pub what: String,
}

/// One stay of a worker in its job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stay {
    /// Clocks with which it begins.
    pub first: Vec<DomainClock>,
    /// Clocks with which it leaves; `None`: as it likes.
    pub last: Option<Vec<DomainClock>>,
    /// Whether it is lost then, and does not leave.
    pub is_lost: bool,
}

/// Stays of each rank of a job, in order.
pub type Stays = BTreeMap<WorkerId, Vec<Stay>>;

/// Schedules to follow, by the namespace of the job.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Schedule {
    /// Stays by namespace.
    pub jobs: BTreeMap<String, Stays>,
}

impl Schedule {
    /// Whether a rank has more than one stay.
    pub fn has_repeated_stays(&self) -> bool {
        let mut jobs = self.jobs.values();
        jobs.any(|ranks| ranks.values().any(|stays| stays.len() > 1))
    }

    /// Parses the text of a membership file.
    ///
    /// # Errors
    /// [`ScheduleError`]: a line of another form, a rank, domain or clock above its limit, a domain twice, a
    /// rank that joins twice without a leave, leaves without a join or before its first tick, joins again
    /// before its last tick, or was lost; more stays than a job may have; a job without a rank that begins
    /// at clock 0 in every domain, or without workers for more than [`SCHEDULE_GAP_MAX`] ticks.
    pub fn parse(text: &str) -> Result<Self, ScheduleError> {
        let mut schedule = Self::default();
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            schedule.add(line).map_err(|what| ScheduleError {
                line: number,
                text: line.to_owned(),
                what,
            })?;
        }
        let from_zero = |stays: &Vec<Stay>| {
            let first = stays.first().map(|stay| &stay.first);
            first.is_some_and(|at| at.iter().all(|at| at.clock == 0))
        };
        let of_file = |what| {
            let (line, text) = (0, String::new());
            Err(ScheduleError { line, text, what })
        };
        if schedule.jobs.is_empty() {
            return of_file("no rank joins at clock 0; add a line like \"join 0\"".into());
        }
        for (namespace, stays) in &schedule.jobs {
            if !stays.values().any(from_zero) {
                return of_file(format!(
                    "no rank of namespace \"{namespace}\" joins at clock 0; add a line like \"join 0\""
                ));
            }
            let count = stays.values().map(Vec::len).sum::<usize>();
            if count > SCHEDULE_STAYS_MAX {
                return of_file(format!(
                    "{count} stays in namespace \"{namespace}\", and the limit is {SCHEDULE_STAYS_MAX}"
                ));
            }
            if let Err(what) = check_gaps(stays) {
                return of_file(format!("namespace \"{namespace}\": {what}"));
            }
        }
        Ok(schedule)
    }

    fn add(&mut self, line: &str) -> Result<(), String> {
        let (line, namespace) = line.split_once(" in ").unwrap_or((line, NAMESPACE_DEFAULT));
        if !(1..=NAMESPACE_BYTES_MAX).contains(&namespace.len()) {
            return Err(format!(
                "a namespace of 1 to {NAMESPACE_BYTES_MAX} bytes follows \"in\""
            ));
        }
        let mut words = line.split_whitespace();
        let verb = words.next().unwrap_or_default();
        let rank = words.next().unwrap_or_default();
        let rank = rank.parse::<u32>().ok().filter(|&rank| rank < WORKERS_MAX);
        let Some(rank) = rank.map(WorkerId) else {
            return Err(format!("a rank below {WORKERS_MAX} follows \"{verb}\""));
        };
        let clocks = words.map(clock).collect::<Result<Vec<_>, _>>()?;
        let mut domains = BTreeSet::new();
        if let Some(twice) = clocks.iter().find(|at| !domains.insert(at.domain)) {
            return Err(format!("domain {} stands twice", twice.domain));
        }
        let job = self.jobs.entry(namespace.to_owned()).or_default();
        let stays = job.entry(rank).or_default();
        // A worker may be lost after it has announced that it leaves: the loss has the ticks that count.
        let is_lost_while_leaving = |stay: &Stay| {
            let last = stay.last.as_deref().filter(|_| !stay.is_lost);
            verb == "lost" && last.is_some_and(|last| earlier(last, &clocks).is_none())
        };
        let open = stays.last_mut();
        let open = open.filter(|stay| stay.last.is_none() || is_lost_while_leaving(stay));
        match (verb, open) {
            ("join", Some(_)) => Err(format!("rank {rank} joins again and has not left")),
            ("join", None) => {
                let last = stays.last().and_then(|stay| stay.last.as_deref());
                if let Some((domain, at, before)) = earlier(&clocks, last.unwrap_or_default()) {
                    return Err(format!(
                        "rank {rank} joins at clock {at} of domain {domain}, and has left at {before} \
                         before"
                    ));
                }
                stays.push(Stay {
                    first: clocks,
                    last: None,
                    is_lost: false,
                });
                Ok(())
            }
            ("leave" | "lost", Some(stay)) => {
                if let Some((domain, at, first)) = earlier(&clocks, &stay.first) {
                    return Err(format!(
                        "rank {rank} ends at clock {at} of domain {domain}, and joins at {first}"
                    ));
                }
                (stay.last, stay.is_lost) = (Some(clocks), verb == "lost");
                Ok(())
            }
            ("leave" | "lost", None) => Err(format!("rank {rank} ends and has not joined")),
            _ => Err("a line begins with join, leave or lost".into()),
        }
    }
}

fn clock(word: &str) -> Result<DomainClock, String> {
    let bad = || {
        format!(
            "\"{word}\" is not DOMAIN:CLOCK, like 0:50, with a domain below {DOMAINS_MAX} and a clock of at \
             most {SCHEDULE_CLOCK_MAX}"
        )
    };
    let (domain, clock) = word.split_once(':').ok_or_else(bad)?;
    let domain = domain
        .parse()
        .ok()
        .filter(|&d: &u8| usize::from(d) < DOMAINS_MAX);
    Ok(DomainClock {
        domain: DomainId(domain.ok_or_else(bad)?),
        clock: clock
            .parse()
            .ok()
            .filter(|&clock| clock <= SCHEDULE_CLOCK_MAX)
            .ok_or_else(bad)?,
    })
}

/// Checks that no stay begins more than [`SCHEDULE_GAP_MAX`] ticks after the end of all that begin before it.
fn check_gaps(stays: &Stays) -> Result<(), String> {
    let all = || {
        stays
            .iter()
            .flat_map(|(rank, stays)| stays.iter().map(move |stay| (rank, stay)))
    };
    let domains: BTreeSet<DomainId> = all()
        .flat_map(|(_, stay)| stay.first.iter().map(|at| at.domain))
        .collect();
    for domain in domains {
        let ends = |(rank, stay): (_, &Stay)| {
            let last = stay.last.as_deref().map(|last| clock_of(last, domain));
            (clock_of(&stay.first, domain), rank, last)
        };
        let mut in_order: Vec<(u64, &WorkerId, Option<u64>)> = all().map(ends).collect();
        in_order.sort_unstable();
        // `None` while a worker has no end.
        let mut end = Some(0);
        for (first, rank, last) in in_order {
            if let Some(end) = end.filter(|&end| first.saturating_sub(end) > SCHEDULE_GAP_MAX) {
                return Err(format!(
                    "rank {rank} joins at clock {first} of domain {domain}, and all before it have left at {end}; \
                     the limit is {SCHEDULE_GAP_MAX} ticks in between"
                ));
            }
            end = end.zip(last).map(|(end, last)| end.max(last));
        }
    }
    Ok(())
}

/// The clock of a domain; 0 if it is missing.
pub fn clock_of(clocks: &[DomainClock], domain: DomainId) -> u64 {
    let found = clocks.iter().find(|at| at.domain == domain);
    found.map_or(0, |at| at.clock)
}

/// The first domain in which `clocks` are below `bounds`, with both clocks.
fn earlier(clocks: &[DomainClock], bounds: &[DomainClock]) -> Option<(DomainId, u64, u64)> {
    bounds.iter().find_map(|bound| {
        let at = clock_of(clocks, bound.domain);
        (at < bound.clock).then_some((bound.domain, at, bound.clock))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_logged_schedule_is_parsed_again() {
        let text = "# members\njoin 0\njoin 2 0:50 3:7\n\nleave 2 0:80 3:7\njoin 2 0:90 3:7\nleave 0 0:99\n";
        let schedule = Schedule::parse(text).unwrap();
        let stays = &schedule.jobs[NAMESPACE_DEFAULT];
        assert_eq!(stays[&WorkerId(2)].len(), 2);
        let stay = &stays[&WorkerId(2)][0];
        let event = Event::Join {
            rank: WorkerId(2),
            clocks: stay.first.clone(),
        };
        assert_eq!(event.to_string(), "join 2 0:50 3:7");
        assert_eq!(clock_of(stay.last.as_deref().unwrap(), DomainId(0)), 80);
        assert_eq!(stays[&WorkerId(2)][1].last, None);
    }

    /// The log of two jobs at a time is a schedule for each of them.
    #[test]
    fn namespaces_have_schedules_of_their_own() {
        let events = [
            (
                "default",
                Event::Join {
                    rank: WorkerId(0),
                    clocks: Vec::new(),
                },
            ),
            (
                "my ads",
                Event::Join {
                    rank: WorkerId(0),
                    clocks: Vec::new(),
                },
            ),
            (
                "default",
                Event::Leave {
                    rank: WorkerId(0),
                    clocks: Vec::new(),
                },
            ),
        ];
        let log = events.map(|(namespace, event)| event.line(namespace));
        assert_eq!(log, ["join 0", "join 0 in my ads", "leave 0"]);
        let schedule = Schedule::parse(&log.join("\n")).unwrap();
        assert_eq!(
            schedule.jobs["default"][&WorkerId(0)][0].last,
            Some(Vec::new())
        );
        assert_eq!(schedule.jobs["my ads"][&WorkerId(0)][0].last, None);
    }

    /// A worker says that it leaves, and is lost before it has: the log has both, and the loss counts.
    #[test]
    fn loss_after_leave_counts() {
        for lost in ["0:80", "0:79"] {
            let text = format!("join 0\njoin 1 0:50\nleave 1 0:80\nlost 1 {lost}\njoin 1 0:90");
            let schedule = Schedule::parse(&text).unwrap();
            let stay = &schedule.jobs[NAMESPACE_DEFAULT][&WorkerId(1)][0];
            assert!(stay.is_lost);
            assert_eq!(stay.last, Some(vec![clock(lost).unwrap()]));
        }
        for (ends, words) in [
            ("leave 1 0:80\nlost 1 0:81", "has not joined"),
            ("lost 1 0:80\nlost 1 0:80", "has not joined"),
            ("leave 1 0:80\nleave 1 0:80", "has not joined"),
            ("leave 1 0:80\nlost 1 0:49", "and joins at 50"),
        ] {
            let error = Schedule::parse(&format!("join 0\njoin 1 0:50\n{ends}")).unwrap_err();
            assert!(error.what.contains(words), "{ends}: {error}");
        }
    }

    /// Appliers close each tick between two stays. While a worker without an end is there, no minimum jumps.
    #[test]
    fn gap_between_stays_is_limited() {
        for (text, is_refused) in [
            ("join 0\nleave 0 0:10\njoin 1 0:65546", false),
            ("join 0\nleave 0 0:10\njoin 1 0:65547", true),
            ("join 0\nlost 0 0:10\njoin 1 0:281474976710656", true),
            ("join 0\njoin 1 0:281474976710656", false),
            ("join 0\nleave 0 0:10\njoin 1 0:10 3:70000", true),
            (
                "join 0\nleave 0 0:10\njoin 1 0:50000\nleave 1 0:50001\njoin 0 0:90000",
                false,
            ),
        ] {
            match Schedule::parse(text) {
                Err(error) => {
                    assert!(
                        is_refused && error.what.contains("the limit is 65536"),
                        "{error}"
                    );
                }
                Ok(_) => assert!(!is_refused, "{text:?}"),
            }
        }
        let error = Schedule::parse("join 0\nleave 0 0:10\njoin 1 0:65547").unwrap_err();
        let words = "rank 1 joins at clock 65547 of domain 0, and all before it have left at 10";
        assert!(error.what.contains(words), "{error}");
    }

    #[test]
    fn schedules_that_cannot_be_followed_name_line_and_numbers() {
        for (text, words) in [
            ("join 0\njoin 0", "line 2, \"join 0\": rank 0 joins again"),
            ("join 0\nleave 1 0:5", "rank 1 ends and has not joined"),
            (
                "join 0\njoin 1 0:50\nleave 1 0:49",
                "clock 49 of domain 0, and joins at 50",
            ),
            ("join 0\njoin 1 0:50\nleave 1", "clock 0 of domain 0"),
            (
                "join 1\nleave 1 0:8\njoin 1 0:7",
                "joins at clock 7 of domain 0, and has left at 8",
            ),
            (
                "join 0\njoin 1 0:5\nlost 1",
                "clock 0 of domain 0, and joins at 5",
            ),
            ("join 65536", "a rank below 65536"),
            ("join 0 64:1", "\"64:1\" is not DOMAIN:CLOCK"),
            ("join 0 0:x", "\"0:x\" is not"),
            (
                "join 0 0:281474976710657",
                "clock of at most 281474976710656",
            ),
            ("join 0 0:1 0:2", "domain 0 stands twice"),
            ("join 0\njoin 1 in ", "\"in\" is not DOMAIN:CLOCK"),
            ("join 0\njoin 0 0:5 in b", "no rank of namespace \"b\""),
            ("come 0", "begins with join, leave or lost"),
            ("join 4 0:1", "\"default\" joins at clock 0"),
            ("", "no rank joins"),
        ] {
            let error = Schedule::parse(text).unwrap_err().to_string();
            assert!(error.contains(words), "{text:?}: {error}");
        }
    }
}
