//! Conversion of a coordinator's durable state into an image for the journal, and back.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tidewater_journal::{
    ClusterImage, Image, JobImage, ServerImage, StageImage, TableImage, WorkerImage,
};
use tidewater_protocol::ids::{DomainId, ServerId, TableId, WorkerId};
use tidewater_protocol::limits::SHUTDOWN_GRACE;
use tidewater_protocol::wire::control::{DomainClock, WorkerState};

use super::super::barriers::at_of;
use super::super::checkpoints::Durable;
use super::super::jobs::{EndingJob, Job, Unscheduled, Worker};
use super::super::state::{Coordinator, CoordinatorConfig, Phase};
use super::super::tables::{Stage, TableEntry};
use super::{ABSENT, RecoveryState};

/// Bit position of the start's number in order numbers. Orders of two starts of the coordinator thereby
/// differ, and a reply to an order of an earlier start matches none.
const ORDERS_A_START: u32 = 40;

impl Coordinator {
    /// Makes a coordinator that resumes from a journalled image. `start` is the number of this start. Every
    /// process in the image has `grace` to reconnect.
    pub(in crate::coordinator) fn resume(
        config: CoordinatorConfig,
        image: Image,
        start: u64,
        grace: Duration,
    ) -> Self {
        let mut state = Self::new(config);
        state.last_order = start << ORDERS_A_START;
        if !image.jobs.is_empty() || !image.servers.is_empty() {
            ClusterImage {
                epoch: state.epoch,
                revision: state.revision,
                last_table: state.last_table,
                stop_reason: state.stop_reason,
            } = image.cluster.clone();
        }
        for (name, job) in &image.jobs {
            state.resume_job(name, job, &image);
        }
        for (&id, table) in &image.tables {
            state.resume_table(id, table);
        }
        state.resume_tasks(&image);
        for name in &image.ending {
            state.last_ending += 1;
            let ending = EndingJob {
                namespace: name.clone(),
                missing: image
                    .servers
                    .keys()
                    .chain(image.ended.keys())
                    .copied()
                    .collect(),
                waiting: Vec::new(),
            };
            state.ending.insert(state.last_ending, ending);
        }
        for end in image.ended.values() {
            state.await_again(end.clone());
        }
        let is_empty = image.servers.is_empty() && image.jobs.is_empty();
        if !state.stop_reason.is_empty() {
            // It was ending: processes that come back get the reason.
            state.phase = Phase::Stopping(SHUTDOWN_GRACE);
        }
        state.recovery = Some(Box::new(RecoveryState {
            absent_servers: image.servers.clone(),
            outdated: outdated(&image),
            journalled: image,
            until: (!is_empty).then_some(grace),
            touched: true,
            ..RecoveryState::default()
        }));
        state
    }

    fn resume_job(&mut self, name: &str, image: &JobImage, all: &Image) {
        let mut job = Job::new(image.expected);
        job.failed.clone_from(&image.failed);
        job.base = image.base.iter().map(|at| (at.domain, at.clock)).collect();
        job.floor = at_of(&image.floor);
        // Schedules that are sent have numbers from 1.
        job.unscheduled = image.is_scheduled.then(Unscheduled::default);
        job.stop.clone_from(&image.stop);
        job.restarts.clone_from(&image.restarts);
        job.restarted.clone_from(&image.restarted);
        job.durable = image.checkpoints.as_ref().map(|checkpoints| {
            self.last_model += 1;
            Box::new(Durable::resume(self.last_model, checkpoints))
        });
        if let Some(queues) = all.queues.get(name) {
            job.queues = queues.clone();
        }
        for (&rank, worker) in all.workers.get(name).into_iter().flatten() {
            let has_joined = matches!(worker.state, WorkerState::Live | WorkerState::Finished);
            job.workers.insert(
                rank,
                Worker {
                    // The process that had taken the rank was not admitted, and takes it again if it returns.
                    state: match worker.is_late {
                        true => WorkerState::Lost,
                        false => worker.state,
                    },
                    peer: has_joined.then_some(ABSENT),
                    incarnation: worker.incarnation,
                },
            );
            if !worker.first.is_empty() {
                job.first.insert(rank, worker.first.clone());
            }
            if worker.stays > 0 {
                job.stays.insert(rank, worker.stays);
            }
            if !worker.ended.is_empty() {
                job.ended.insert(rank, worker.ended.clone());
            }
        }
        self.jobs.insert(name.to_owned(), job);
        if let Some((rank, clocks)) = image.admitted.clone() {
            self.resume_admission(name, rank, clocks);
        }
    }

    fn resume_table(&mut self, id: TableId, image: &TableImage) {
        let stage = match image.stage {
            StageImage::Ready => Stage::Ready,
            StageImage::Coming => Stage::Waiting,
            StageImage::Releasing | StageImage::Dropped => {
                Stage::Releasing((0..self.config.servers).map(ServerId).collect())
            }
        };
        let is_named = matches!(image.stage, StageImage::Ready | StageImage::Coming);
        if let Some(job) = self.jobs.get_mut(&image.namespace).filter(|_| is_named) {
            job.tables.insert(image.info.spec.name.clone(), id);
        }
        let entry = TableEntry {
            namespace: image.namespace.clone(),
            info: image.info.clone(),
            stage,
            askers: Vec::new(),
            load: None,
            awaits_asker: image.stage == StageImage::Releasing,
        };
        self.tables.insert(id, entry);
    }

    /// Images of the servers that have joined or may return.
    fn server_images(&self) -> BTreeMap<ServerId, ServerImage> {
        let joined = self.servers.iter().filter_map(|(&id, server)| {
            let image = ServerImage {
                member: server.member.clone()?,
                pid: server.pid,
                restarts: server.restarts,
            };
            Some((id, image))
        });
        let absent = self.recovery.iter().flat_map(|d| d.absent_servers.clone());
        absent.chain(joined).collect()
    }

    /// Makes an image of the durable part of the state.
    pub(super) fn image(&self) -> Image {
        let clocks = |(&domain, &clock): (&DomainId, &u64)| DomainClock { domain, clock };
        let mut image = Image {
            cluster: ClusterImage {
                epoch: self.epoch,
                revision: self.revision,
                last_table: self.last_table,
                stop_reason: self.stop_reason.clone(),
            },
            ..Image::default()
        };
        image.servers = self.server_images();
        let ended = self.absent.iter();
        image.ended = ended
            .map(|(&id, absent)| (id, absent.end.clone()))
            .collect();
        let outdated = self.outdated_workers();
        for (name, job) in &self.jobs {
            let head = JobImage {
                expected: job.expected(),
                failed: job.failed.clone(),
                base: job.base.iter().map(clocks).collect(),
                is_scheduled: job.unscheduled.as_ref().is_some_and(|u| u.left == 0),
                stop: job.stop.clone(),
                checkpoints: job.durable.as_deref().and_then(Durable::image),
                restarts: job.restarts.clone(),
                restarted: job.restarted.clone(),
                admitted: job.admitting.and_then(|number| self.admitted(number)),
                floor: job.floor.iter().map(clocks).collect(),
            };
            image.jobs.insert(name.clone(), head);
            let worker = |(&rank, worker): (&WorkerId, &Worker)| {
                let worker = WorkerImage {
                    state: worker.state,
                    incarnation: worker.incarnation,
                    first: job.first.get(&rank).cloned().unwrap_or_default(),
                    stays: job.stays.get(&rank).copied().unwrap_or_default(),
                    ended: job.ended.get(&rank).cloned().unwrap_or_default(),
                    is_outdated: outdated.contains(&(name.clone(), rank)),
                    is_late: job.late.contains(&rank),
                };
                (rank, worker)
            };
            let workers = job.workers.iter().map(worker).collect();
            image.workers.insert(name.clone(), workers);
        }
        for (&id, table) in &self.tables {
            let stage = match (&table.stage, table.load) {
                (Stage::Releasing(_), None) => StageImage::Releasing,
                (_, Some(_)) => StageImage::Dropped,
                (Stage::Ready, None) => StageImage::Ready,
                (Stage::Waiting | Stage::Making { .. } | Stage::Filling, None) => {
                    StageImage::Coming
                }
            };
            let (namespace, info) = (table.namespace.clone(), table.info.clone());
            let table = TableImage {
                namespace,
                info,
                stage,
            };
            image.tables.insert(id, table);
        }
        image.ending = self.ending.values().map(|e| e.namespace.clone()).collect();
        image
    }
}

/// Workers in the image that had not rejoined since their job began again from nothing: they must do so before other
/// requests.
fn outdated(image: &Image) -> BTreeSet<(String, WorkerId)> {
    let workers = image.workers.iter().flat_map(|(name, workers)| {
        let outdated = workers.iter().filter(|(_, worker)| worker.is_outdated);
        outdated.map(|(&rank, _)| (name.clone(), rank))
    });
    workers.collect()
}
