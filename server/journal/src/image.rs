//! The durable part of the coordinator's state, and its changes.
//!
//! What is not in an [`Image`] is not needed after a restart: connections, orders under way, workers at
//! barriers, saves and loads under way. Their requests are repeated by the workers that sent them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidewater_protocol::ids::{Incarnation, ServerId, TableId, WorkerId};
use tidewater_protocol::limits::REQUESTS_STARTED_MAX;
use tidewater_protocol::wire::control::{
    Arrival, DomainClock, Resumed, ServerEnd, ServerMember, ServerRestart, TableInfo, TaskAnswer,
    ThreadClock, WorkerState,
};
use tidewater_protocol::wire::refusal::Refusal;
use tidewater_queue::{QueueCall, QueueError, Queues};

/// Numbers of the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ClusterImage {
    /// Epoch of the cluster's membership.
    pub epoch: u64,
    /// Revision of the member list.
    pub revision: u64,
    /// Number of the last table.
    pub last_table: u32,
    /// Why the cluster ends; empty while it runs.
    pub stop_reason: String,
}

/// A job without its workers and tables.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct JobImage {
    /// Number of its workers; 0 if unknown.
    pub expected: u32,
    /// Why it ends, once it does.
    pub failed: Option<Refusal>,
    /// Clocks of the model that the job has loaded.
    pub base: Vec<DomainClock>,
    /// Whether all servers have the job's schedule.
    pub is_scheduled: bool,
    /// A worker that servers are being ordered to admit.
    pub admitted: Option<(WorkerId, Vec<DomainClock>)>,
    /// Why an operator has asked its workers to end, if one has.
    pub stop: Option<String>,
    /// Its checkpoints, if the coordinator takes any and the job has begun.
    pub checkpoints: Option<CheckpointImage>,
    /// Successors of servers for which it begins again, until all servers have ended it.
    pub restarts: Vec<ServerRestart>,
    /// The last one for which it has begun again.
    pub restarted: Option<ServerRestart>,
    /// First clocks of workers that are admitted from now on, above those of its barriers.
    pub floor: Vec<DomainClock>,
}

/// Checkpoints of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointImage {
    /// Directory of the job's checkpoints.
    pub dir: String,
    /// Number of the next one.
    pub next: u64,
    /// Those that could not be loaded when the job began.
    pub skipped: u32,
    /// The one that the job continues from, if it does.
    pub resumed: Option<Resumed>,
}

/// A server that has joined.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerImage {
    /// The server as members know it.
    pub member: ServerMember,
    /// Process id on its host.
    pub pid: u32,
    /// Successors that its holder starts if a signal ends it.
    pub restarts: u32,
}

/// A worker of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerImage {
    /// How far its registration is.
    pub state: WorkerState,
    /// Random number of its process; 0 before it has joined.
    pub incarnation: Incarnation,
    /// Clocks with which it began, if it joined a running job.
    pub first: Vec<DomainClock>,
    /// Stays of a schedule that have begun.
    pub stays: usize,
    /// Clocks at which it ended, if it was lost.
    pub ended: Vec<ThreadClock>,
    /// Its job has begun again, and it has not rejoined.
    pub is_outdated: bool,
    /// A process has taken the rank of a lost worker and was not admitted. A journal of before has none.
    #[serde(default)]
    pub is_late: bool,
}

/// How far a table is, as a restart needs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum StageImage {
    /// Servers may have it, or be making it.
    Coming,
    /// It can be used by clients.
    Ready,
    /// Servers are to release it: a worker has requested that.
    Releasing,
    /// Servers are to release it: a load of it has not ended.
    Dropped,
}

/// A table of a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TableImage {
    /// Job that has it.
    pub namespace: String,
    /// Definition and locations of its partitions.
    pub info: TableInfo,
    /// How far it is made or released.
    pub stage: StageImage,
}

/// Result of a request that must not be carried out twice.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// The request was carried out.
    Done,
    /// A model is saved.
    Saved {
        /// Number of tables in the model.
        tables: u32,
        /// Rows of all tables.
        rows: u64,
        /// Bytes of all files.
        bytes: u64,
    },
    /// A model is loaded.
    Loaded {
        /// Names of its tables.
        tables: Vec<String>,
        /// Rows of all tables.
        rows: u64,
        /// Clocks at which it was saved.
        clocks: Vec<DomainClock>,
    },
    /// A request about a task.
    Task(Box<TaskAnswer>),
    /// A barrier of members has opened for these.
    Arrivals(Vec<Arrival>),
}

/// A finished task with pushes that servers are being ordered to apply.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FinishingImage {
    /// Job of the task.
    pub namespace: String,
    /// Number of its queue.
    pub queue: u32,
    /// Worker that has reported it.
    pub worker: WorkerId,
    /// Thread of that worker.
    pub thread: u32,
    /// Process of that worker.
    pub process: Incarnation,
    /// Number of the report, which is answered when all servers have applied the task.
    pub request: u64,
}

/// A request of a worker that has its answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answered {
    /// Number of the request.
    pub id: u64,
    /// Kind and subject. A worker has one request of a subject under way, so the last answer is kept.
    pub subject: String,
    /// The answer to it.
    pub outcome: Outcome,
}

/// A change of an [`Image`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Change {
    /// Numbers of the cluster.
    Cluster(ClusterImage),
    /// A server has joined; `None`: it is a member no more.
    Server(ServerId, Option<ServerImage>),
    /// A job; `None`: it is over, with its workers and answers.
    Job(String, Option<Box<JobImage>>),
    /// A worker of a job.
    Worker(String, WorkerId, Option<WorkerImage>),
    /// A table; `None`: no server has it.
    Table(TableId, Option<Box<TableImage>>),
    /// A server with a holder has ended; `None`: its successor has joined, or none is awaited.
    Ended(ServerId, Option<ServerEnd>),
    /// A job that is over, and that servers are being ordered to end; `false`: all have.
    Ending(String, bool),
    /// An answer to a worker's request.
    Answered(String, WorkerId, Answered),
    /// Another process has the rank: the answers of the one before are not needed any more.
    Forgotten(String, WorkerId),
    /// A call about the queues of a job.
    Queue(String, QueueCall),
    /// A finished task, by its delivery; `None`: it is applied, or its job has failed.
    Finishing(u64, Option<FinishingImage>),
}

/// The durable state, complete.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Image {
    /// Numbers of the cluster.
    pub cluster: ClusterImage,
    /// Servers that have joined.
    pub servers: BTreeMap<ServerId, ServerImage>,
    /// Ends of servers with a holder, until their successors join.
    pub ended: BTreeMap<ServerId, ServerEnd>,
    /// Jobs by their namespaces.
    pub jobs: BTreeMap<String, JobImage>,
    /// Workers of each job.
    pub workers: BTreeMap<String, BTreeMap<WorkerId, WorkerImage>>,
    /// Tables of all jobs.
    pub tables: BTreeMap<TableId, TableImage>,
    /// Jobs that are over, and that servers are being ordered to end.
    pub ending: BTreeSet<String>,
    /// Queues of tasks of each job. Not compared by [`Image::changes`], as all that follows: queues are large, and
    /// their changes are calls.
    pub queues: BTreeMap<String, Queues>,
    /// Number of the last delivery of a task, over all jobs.
    pub last_delivery: u64,
    /// Finished tasks that are being applied, by delivery.
    pub finishing: BTreeMap<u64, FinishingImage>,
    /// Last answers of each worker, by number.
    pub answers: BTreeMap<String, BTreeMap<WorkerId, Vec<Answered>>>,
}

/// Keys of which the value differs, with the new one.
fn differing<'a, K: Ord + Copy, V: PartialEq>(
    old: &'a BTreeMap<K, V>,
    new: &'a BTreeMap<K, V>,
) -> impl Iterator<Item = (K, Option<&'a V>)> {
    let gone = old.keys().filter(|key| !new.contains_key(key));
    let changed = new
        .iter()
        .filter(|(key, value)| old.get(key) != Some(*value));
    let changed = changed.map(|(key, value)| (*key, Some(value)));
    gone.map(|key| (*key, None)).chain(changed)
}

impl Image {
    /// Continues on the clock of a coordinator that begins: the times of tasks that are given begin now.
    pub fn restart(&mut self) {
        let queues = self.queues.values_mut();
        queues.for_each(|queues| queues.resume(Duration::ZERO));
    }

    /// The changes that lead from this image to `new`, but for queues and answers.
    pub fn changes(&self, new: &Self) -> Vec<Change> {
        let mut changes = Vec::new();
        if self.cluster != new.cluster {
            changes.push(Change::Cluster(new.cluster.clone()));
        }
        for (id, server) in differing(&self.servers, &new.servers) {
            changes.push(Change::Server(id, server.cloned()));
        }
        for (id, end) in differing(&self.ended, &new.ended) {
            changes.push(Change::Ended(id, end.cloned()));
        }
        let gone = self
            .jobs
            .keys()
            .filter(|name| !new.jobs.contains_key(*name));
        changes.extend(gone.map(|name| Change::Job(name.clone(), None)));
        let none = BTreeMap::new();
        for (name, job) in &new.jobs {
            if self.jobs.get(name) != Some(job) {
                changes.push(Change::Job(name.clone(), Some(Box::new(job.clone()))));
            }
            let [old, new] = [self, new].map(|image| image.workers.get(name).unwrap_or(&none));
            for (rank, worker) in differing(old, new) {
                changes.push(Change::Worker(name.clone(), rank, worker.cloned()));
            }
        }
        for (id, table) in differing(&self.tables, &new.tables) {
            changes.push(Change::Table(id, table.cloned().map(Box::new)));
        }
        let begun = new.ending.difference(&self.ending);
        changes.extend(begun.map(|name| Change::Ending(name.clone(), true)));
        let ended = self.ending.difference(&new.ending);
        changes.extend(ended.map(|name| Change::Ending(name.clone(), false)));
        changes
    }

    /// Carries out a change.
    ///
    /// # Errors
    /// [`QueueError`]: a call about a queue does not follow from the changes before it.
    pub fn apply(&mut self, change: Change) -> Result<(), QueueError> {
        fn set<K: Ord, V>(map: &mut BTreeMap<K, V>, key: K, value: Option<V>) {
            match value {
                Some(value) => drop(map.insert(key, value)),
                None => drop(map.remove(&key)),
            }
        }
        match change {
            Change::Cluster(cluster) => self.cluster = cluster,
            Change::Server(id, server) => set(&mut self.servers, id, server),
            Change::Ended(id, end) => set(&mut self.ended, id, end),
            Change::Job(name, job) => {
                if job.is_none() {
                    self.workers.remove(&name);
                    self.answers.remove(&name);
                    self.queues.remove(&name);
                }
                set(&mut self.jobs, name, job.map(|job| *job));
            }
            Change::Worker(name, rank, worker) => {
                set(self.workers.entry(name).or_default(), rank, worker);
            }
            Change::Table(id, table) => set(&mut self.tables, id, table.map(|table| *table)),
            Change::Ending(name, true) => drop(self.ending.insert(name)),
            Change::Ending(name, false) => drop(self.ending.remove(&name)),
            Change::Answered(name, rank, answered) => {
                let answers = self
                    .answers
                    .entry(name)
                    .or_default()
                    .entry(rank)
                    .or_default();
                answers.retain(|other| other.subject != answered.subject);
                if answers.len() >= REQUESTS_STARTED_MAX {
                    // A worker has no more requests under way: it has the answer to the oldest.
                    answers.remove(0);
                }
                answers.push(answered);
            }
            Change::Forgotten(name, rank) => {
                if let Some(answers) = self.answers.get_mut(&name) {
                    answers.remove(&rank);
                }
            }
            Change::Queue(name, call) => {
                if let QueueCall::Take { delivery, .. } = call {
                    self.last_delivery = delivery.max(self.last_delivery);
                }
                return self.queues.entry(name).or_default().replay(call);
            }
            Change::Finishing(delivery, task) => set(&mut self.finishing, delivery, task),
        }
        Ok(())
    }

    /// The answer that a worker's request has had, by its number.
    pub fn answer(&self, namespace: &str, rank: WorkerId, id: u64) -> Option<&Outcome> {
        let answers = self.answers.get(namespace)?.get(&rank)?;
        let answered = answers.iter().find(|answered| answered.id == id)?;
        Some(&answered.outcome)
    }
}
