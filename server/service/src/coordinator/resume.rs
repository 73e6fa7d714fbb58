//! Jobs that continue from their newest complete checkpoint.
//!
//! The first worker of a job waits for the load of the newest complete checkpoint. One that is cut or
//! damaged is left out, with a warning, for the one before. Where there are checkpoints and none can be
//! loaded the job is refused: it must not begin again by itself.

use tidewater_protocol::ids::DomainId;
use tidewater_protocol::wire::control::{CoordinatorAnswer, DomainClock, Join, Resumed};
use tidewater_protocol::wire::refusal::{Refusal, RefusalCode};

use super::checkpoints::{Durable, Every, Resume};
use super::models::{By, Step};
use super::state::{Action, Asker, Coordinator, FileTask, bad};
use tidewater_checkpoint::series::{Found, Newest, dir_of_job};

impl Coordinator {
    /// Queues a worker's Join until its job's newest checkpoint is loaded, and starts the load if all servers
    /// have joined; returns `true`. Returns `false`, without queueing, if the resume is done, the coordinator
    /// takes no checkpoints, or there is no such job. Refused if the peer already waits.
    pub(super) fn waits_for_resume(
        &mut self,
        asker: Asker,
        namespace: &str,
        join: &Join,
    ) -> Result<bool, Refusal> {
        let (Some(policy), Some(job)) = (&self.checkpoint, self.jobs.get_mut(namespace)) else {
            return Ok(false);
        };
        let durable = job.durable.get_or_insert_with(|| {
            self.last_model += 1;
            Box::new(Durable::new(
                self.last_model,
                dir_of_job(&policy.dir, namespace),
            ))
        });
        if durable.resume == Resume::Done {
            return Ok(false);
        }
        if durable
            .joining
            .iter()
            .any(|(other, _)| other.peer == asker.peer)
        {
            return Err(bad("it has asked to join"));
        }
        durable.joining.push((asker, join.clone()));
        self.begin_resume(namespace, u64::MAX);
        Ok(true)
    }

    /// Starts the resume of jobs that waited until all servers had joined.
    pub(super) fn resume_waiting(&mut self) {
        for namespace in self.jobs.keys().cloned().collect::<Vec<_>>() {
            self.begin_resume(&namespace, u64::MAX);
        }
    }

    fn begin_resume(&mut self, namespace: &str, before: u64) {
        if !self.is_complete() {
            return;
        }
        let Some(job) = self.jobs.get_mut(namespace) else {
            return;
        };
        let Some(durable) = job.durable.as_mut().filter(|d| d.resume == Resume::Waits) else {
            return;
        };
        durable.resume = Resume::Loads;
        job.busy = true;
        let dir = durable.dir.clone();
        let task = FileTask::BeginResume {
            dir: dir.clone(),
            before,
        };
        self.begin_op(By::Resume, namespace, dir, Step::Finding, task);
    }

    /// Handles the result of the search for a job's checkpoints: loads the newest complete one. Without any
    /// checkpoint the job starts empty; with only damaged ones it is refused.
    pub(super) fn checkpoints_found(&mut self, op: u64, found: Found) {
        let Some(namespace) = self.namespace_of(op) else {
            return;
        };
        let Some(durable) = self.durable(&namespace) else {
            return;
        };
        for skipped in &found.skipped {
            tracing::warn!(
                skipped,
                "a checkpoint is cut or damaged: the one before is taken"
            );
        }
        durable.skipped = durable.skipped.saturating_add(found.skipped.len() as u32);
        durable.next = found.next.max(durable.next);
        let (skipped, dir) = (durable.skipped, durable.dir.clone());
        let Some(newest) = found.newest else {
            self.actions.push(Action::Files(op, FileTask::EndLoad));
            let answer = match skipped {
                0 => CoordinatorAnswer::Done,
                _ => {
                    let text = format!(
                        "{dir}: none of the checkpoints can be loaded; remove the directory to \
                         begin again"
                    );
                    let refusal = Refusal::new(RefusalCode::BadCheckpoint, [0; 4]);
                    CoordinatorAnswer::Refused(refusal.with_text(text))
                }
            };
            return self.end_model(op, answer);
        };
        let Newest {
            number,
            dir,
            manifest,
        } = newest;
        let lost = found.seen_ms.zip(manifest.taken_ms);
        durable.resumed = Some(Resumed {
            number,
            clocks: manifest.clocks(),
            seen: found.seen,
            lost_ms: lost.map(|(seen, taken)| seen.saturating_sub(taken)),
            skipped,
        });
        self.load_from(op, dir, Box::new(manifest));
    }

    /// Handles the end of a resume. On success the waiting workers join; if the checkpoint is damaged the one
    /// before is tried; another failure refuses the workers.
    pub(super) fn resume_ended(&mut self, namespace: &str, answer: CoordinatorAnswer) {
        let Some(durable) = self.durable(namespace) else {
            return;
        };
        let refusal = match answer {
            CoordinatorAnswer::Refused(refusal) => refusal,
            _ => return self.resume_done(namespace),
        };
        durable.resume = Resume::Waits;
        let tried = durable.resumed.take().map(|resumed| resumed.number);
        if let (Some(number), RefusalCode::BadCheckpoint) = (tried, refusal.code) {
            tracing::warn!(number, %refusal, "a checkpoint is damaged: the one before is taken");
            durable.skipped = durable.skipped.saturating_add(1);
            return self.begin_resume(namespace, number);
        }
        tracing::error!(%refusal, namespace, "the job cannot be resumed");
        for (asker, _) in std::mem::take(&mut durable.joining) {
            self.answer(asker, CoordinatorAnswer::Refused(refusal.clone()));
        }
    }

    fn resume_done(&mut self, namespace: &str) {
        let (now, every) = (self.now, self.checkpoint.as_ref().map(|p| p.every));
        let Some(durable) = self.durable(namespace) else {
            return;
        };
        durable.resume = Resume::Done;
        durable.due = match every {
            Some(Every::Time(every)) => now.saturating_add(every),
            _ => now,
        };
        if let Some(resumed) = &durable.resumed {
            tracing::warn!(namespace, "{}", text_of(resumed));
        }
        for (asker, join) in std::mem::take(&mut durable.joining) {
            self.let_in(asker, &join);
        }
    }
}

/// Describes from which checkpoint a job resumes, and how much work is lost, for the log.
fn text_of(resumed: &Resumed) -> String {
    let at = |clocks: &[DomainClock]| {
        let of_first = clocks.iter().find(|at| at.domain == DomainId(0));
        of_first.map_or(0, |at| at.clock)
    };
    let (number, clock, seen) = (resumed.number, at(&resumed.clocks), at(&resumed.seen));
    let mut text = format!("resumed from checkpoint {number} at clock {clock}");
    match resumed.lost_ms {
        Some(ms) => {
            text += &format!(
                ", taken {}.{} s before the run was last seen at clock {}: its {} ticks since then, what was \
                 pushed in them, and what followed within a second, are lost",
                ms / 1000,
                ms % 1000 / 100,
                seen.max(clock),
                seen.saturating_sub(clock)
            );
        }
        None => text += "; when the run ended is not known",
    }
    if resumed.skipped > 0 {
        text += &format!("; {} newer checkpoints are damaged", resumed.skipped);
    }
    text
}
