//! Status reports of the cluster and its servers, for operators.

use tidewater_protocol::ids::ServerId;
use tidewater_protocol::limits::STATUS_ROWS_MAX;
use tidewater_protocol::wire::control::{
    AbsentServer, ClusterStatus, Command, CommandReply, CoordinatorAnswer, JobStatus, Members,
    status_text,
};
use tidewater_protocol::wire::refusal::{Refusal, RefusalCode};

use super::jobs::Job;
use super::state::{Asker, Coordinator, Purpose, bad};

impl Coordinator {
    /// Handles an operator's request for the status of a server, or of the cluster if `server` is `None`.
    /// Returns the cluster's status. For a server it orders the report and returns `Ok(None)`; the answer
    /// follows by [`Self::server_reported`]. Refuses absent servers, and a second request while one waits.
    pub(super) fn status(
        &mut self,
        asker: Asker,
        server: Option<ServerId>,
    ) -> Result<Option<CoordinatorAnswer>, Refusal> {
        let Some(number) = server else {
            let status = Box::new(self.cluster_status());
            return Ok(Some(CoordinatorAnswer::Cluster(status)));
        };
        if !self.joined_servers().contains(&number) {
            let absent = self.absent_status();
            let why = absent.iter().find(|absent| absent.server == number);
            let why = why.map_or("the cluster has no such number", |absent| {
                absent.why.as_str()
            });
            return Err(bad(&format!("server {number} is absent: {why}")));
        }
        let peer = asker.peer;
        let asks = |(_, purpose): &(_, Purpose)| match purpose {
            Purpose::Status(other) => other.peer == peer,
            _ => false,
        };
        // One at a time, so that an operator cannot queue orders without end.
        if self.orders.values().any(asks) {
            return Err(bad("it waits for the status of a server already"));
        }
        self.order(number, Purpose::Status(asker), Command::Status);
        Ok(None)
    }

    /// Passes a server's status report on to the operator.
    pub(super) fn server_reported(&mut self, asker: Asker, reply: CommandReply) {
        let answer = match reply {
            CommandReply::Status(status) => CoordinatorAnswer::Server(status),
            CommandReply::Refused(refusal) => CoordinatorAnswer::Refused(refusal),
            _ => CoordinatorAnswer::Refused(bad("the server answers with something else")),
        };
        self.answer(asker, answer);
    }

    /// Refuses the status requests that wait for a server that has ended.
    pub(super) fn never_reported(&mut self, number: ServerId) {
        let Some(server) = self.servers.get(&number) else {
            return;
        };
        let asked = |(to, purpose): &(_, Purpose)| match purpose {
            Purpose::Status(asker) if *to == server.peer => Some(*asker),
            _ => None,
        };
        let waiting: Vec<Asker> = self.orders.values().filter_map(asked).collect();
        for asker in waiting {
            let numbers = [u64::from(number.0), 0, 0, 0];
            let refusal = Refusal::new(RefusalCode::PeerFailed, numbers);
            let text = format!("server {number} ended before it answered");
            self.answer(asker, CoordinatorAnswer::Refused(refusal.with_text(text)));
        }
    }

    fn cluster_status(&self) -> ClusterStatus {
        let (mut room, mut room_for_queues) = (STATUS_ROWS_MAX, STATUS_ROWS_MAX);
        let jobs = self.jobs.iter();
        ClusterStatus {
            version: env!("CARGO_PKG_VERSION").into(),
            servers_expected: self.config.servers,
            members: Members {
                workers: Vec::new(),
                ..self.members("")
            },
            jobs: jobs
                .map(|(name, job)| {
                    let (queues, queues_left_out) = job.queues.summaries(&mut room_for_queues);
                    JobStatus {
                        queues,
                        queues_left_out,
                        ..self.job_status(name, job, &mut room)
                    }
                })
                .collect(),
            stopping: status_text(&self.stop_reason),
            absent: self.absent_status(),
        }
    }

    /// Servers of the cluster that are not joined, each with its host, if known, and the reason.
    fn absent_status(&self) -> Vec<AbsentServer> {
        let joined = self.joined_servers();
        let numbers = (0..self.config.servers).map(ServerId);
        let absent = numbers.filter(|number| !joined.contains(number));
        let absent = absent.map(|server| {
            let ended = self.absent.get(&server).map(|absent| &absent.end);
            let (host, why) = match (ended, self.host_of_absent(server)) {
                (Some(end), _) => (end.host.clone(), format!("its successor is awaited: {end}")),
                (None, Some(host)) => {
                    let why = "it has not returned since the coordinator was restarted";
                    (host, why.to_owned())
                }
                (None, None) => (String::new(), "it has not joined".to_owned()),
            };
            AbsentServer {
                server,
                host,
                why: status_text(&why),
            }
        });
        absent.collect()
    }

    /// Status of a job with at most `room` workers, without its queues. Lowers `room` by the number of listed workers.
    fn job_status(&self, name: &str, job: &Job, room: &mut usize) -> JobStatus {
        let mut workers = job.members();
        let left_out = workers.len().saturating_sub(*room);
        workers.truncate(*room);
        *room -= workers.len();
        let failed = job.failed.as_ref();
        JobStatus {
            namespace: name.to_owned(),
            workers_expected: job.expected(),
            workers,
            workers_left_out: left_out as u32,
            tables: job.tables.len() as u32,
            at_barriers: job.barriers.waiting() as u32,
            saving: status_text(self.directory_of(name).unwrap_or_default()),
            failed: status_text(&failed.map_or_else(String::new, ToString::to_string)),
            ..JobStatus::default()
        }
    }
}
