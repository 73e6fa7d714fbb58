//! Operators' requests to stop a job and to wait for its end.

use tidewater_protocol::mutants::{self, Mutant};
use tidewater_protocol::wire::control::{CoordinatorAnswer, Notice, WorkerState};
use tidewater_protocol::wire::refusal::{Refusal, RefusalCode};

use super::jobs::Worker;
use super::state::{Action, Asker, Coordinator, Lifetime, PeerId, bad};

impl Coordinator {
    /// Sends the workers of a job a request to stop, and keeps `reason` for workers that return later. Refused
    /// if the job has failed or does not run, the cluster stops, or no worker is connected or awaited after a
    /// restart of the coordinator.
    pub(super) fn stop_job(
        &mut self,
        namespace: &str,
        reason: &str,
    ) -> Result<CoordinatorAnswer, Refusal> {
        self.check_healthy(namespace)?;
        let job = self.jobs.get(namespace).filter(|job| !job.is_over());
        let Some(job) = job else {
            return Err(self.no_job(namespace));
        };
        // A worker that has not returned gets it then.
        let notices: Vec<Action> = job
            .peers()
            .map(|id| {
                let reason = reason.to_owned();
                Action::Notify(id, Notice::StopJob { reason })
            })
            .collect();
        if notices.is_empty() {
            let text = format!("no worker of the job \"{namespace}\" has joined");
            return Err(bad(&text));
        }
        if !mutants::on(Mutant::StopNotPassedOn) {
            self.actions.extend(notices);
        }
        if let Some(job) = self.jobs.get_mut(namespace) {
            job.stop = Some(reason.to_owned());
        }
        Ok(CoordinatorAnswer::Done)
    }

    /// Answers an operator when the workers of a job have ended. `None` if it is answered later. Refused if the
    /// job has failed, the cluster stops, or a service has no such job.
    pub(super) fn wait_job(
        &mut self,
        asker: Asker,
        namespace: &str,
    ) -> Result<Option<CoordinatorAnswer>, Refusal> {
        let job = self.jobs.get(namespace);
        if job.is_some_and(|job| job.failed.is_none())
            && let Some(answer) = self.end_of_workers(namespace)
        {
            return Ok(Some(answer));
        }
        self.check_healthy(namespace)?;
        match self.jobs.get(namespace) {
            None if self.config.lifetime == Lifetime::Service => {
                return Err(self.no_job(namespace));
            }
            _ => {}
        }
        self.waiting.push((namespace.to_owned(), asker));
        Ok(None)
    }

    /// Answer for operators that wait for the end of a job: done, or a refusal if all workers are lost. `None`
    /// while a worker has not ended, or without such a job. In a job of unknown size, only workers that have
    /// joined so far count.
    pub(super) fn end_of_workers(&self, namespace: &str) -> Option<CoordinatorAnswer> {
        let job = self.jobs.get(namespace)?;
        let has_workers = !job.workers.is_empty();
        let ended = |w: &Worker| matches!(w.state, WorkerState::Finished | WorkerState::Lost);
        let is_open = job.expected() == 0 && self.schedule.is_none() && job.waiting.is_empty();
        let have_left = is_open && has_workers && job.workers.values().all(ended);
        if !have_left && !job.is_over() && !self.has_followed_schedule(namespace) {
            return None;
        }
        let is_lost = |w: &Worker| w.state == WorkerState::Lost;
        if has_workers && job.workers.values().all(is_lost) {
            let text = format!("all workers of the job \"{namespace}\" are lost");
            let refusal = Refusal::new(RefusalCode::PeerFailed, [0; 4]);
            return Some(CoordinatorAnswer::Refused(refusal.with_text(text)));
        }
        Some(CoordinatorAnswer::Done)
    }

    /// Answers, with `answer`, the operators that wait for the end of job `namespace`; with `None` those of all jobs.
    pub(super) fn answer_waiting(&mut self, namespace: Option<&str>, answer: &CoordinatorAnswer) {
        let ended = |name: &str| namespace.is_none_or(|namespace| namespace == name);
        let (due, rest) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition(|(name, _)| ended(name));
        self.waiting = rest;
        let due: Vec<(String, Asker)> = due;
        for (_, asker) in due {
            self.answer(asker, answer.clone());
        }
    }

    fn no_job(&self, namespace: &str) -> Refusal {
        let live = self.jobs.iter().filter(|(_, job)| !job.is_over());
        let names: Vec<String> = live
            .map(|(name, _)| format!("\"{name}\""))
            .take(16)
            .collect();
        let names = match names.is_empty() {
            true => "none".to_owned(),
            false => names.join(", "),
        };
        let text = format!("no job \"{namespace}\" runs; jobs that run: {names}");
        Refusal::new(RefusalCode::BadRequest, [0; 4]).with_text(text)
    }

    /// Removes an operator from the list of waiting operators after its connection has ended.
    pub(super) fn forget_waiting(&mut self, peer: PeerId) {
        self.waiting.retain(|(_, waiting)| waiting.peer != peer);
    }
}
