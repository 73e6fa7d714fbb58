//! Checkpoints over restarts of the coordinator: the one under way begins again, and no job is loaded twice.

use tidewater_protocol::table::Reduce;

use super::*;
use tidewater_checkpoint::Found;

const EVERY: Duration = Duration::from_secs(5);

impl Durable {
    fn keeps_checkpoints(&mut self) {
        self.rig.state.keep_checkpoints(CheckpointPolicy {
            dir: "/c".into(),
            every: Every::Time(EVERY),
            keep: 2,
            full_every: 8,
        });
    }

    /// A server, and a worker that waits for the search of checkpoints.
    fn joining() -> (Self, PeerId, PeerId) {
        let mut durable = Self::new(1, 1, LostWorker::FailJob, Lifetime::OneJob);
        durable.keeps_checkpoints();
        let server = durable.joined(Role::Server, 0, 70, 1);
        let worker = durable.enter(Role::Worker, 0, 80, 1);
        assert_eq!(durable.rig.answer(worker, 1), None);
        (durable, server, worker)
    }

    /// The search finds no checkpoint: the worker joins.
    fn finds_none(&mut self, worker: PeerId, id: u64) {
        let (op, task) = self.rig.file_task();
        assert!(matches!(task, FileTask::BeginResume { .. }), "{task:?}");
        let found = Found {
            next: 1,
            ..Found::default()
        };
        let found = Ok(FileDone::Checkpoints(Box::new(found)));
        self.rig.file_done(op, found);
        assert_eq!(self.rig.file_task(), (op, FileTask::EndLoad));
        self.sync();
        let joined = self.rig.answer(worker, id);
        assert!(matches!(joined, Some(Answer::Joined(_))), "{joined:?}");
    }

    /// A job with a table of ticks.
    fn running() -> (Self, PeerId) {
        let (mut durable, server, worker) = Self::joining();
        durable.finds_none(worker, 1);
        let table = TableSpec {
            effect: Apply::AtTick(Reduce::Sum),
            ..spec("a")
        };
        durable.rig.ask(worker, 2, Ask::CreateTable(table));
        durable.rig.obey(server, &CommandReply::Done);
        durable.sync();
        (durable, server)
    }

    fn passes(&mut self, time: Duration) {
        self.rig.now += time;
        self.rig.state.tick(self.rig.now);
        let actions = self.rig.state.take_actions();
        self.rig.actions.extend(actions);
    }

    /// Carries out a checkpoint that is due, or its first `steps` steps.
    fn takes_checkpoint(&mut self, server: PeerId, dir: &str, steps: usize) {
        let (op, task) = self.rig.file_task();
        let FileTask::BeginCheckpoint { dir: in_dir, links } = task else {
            panic!("{task:?}")
        };
        // A coordinator that has started again takes all rows.
        assert_eq!((&in_dir[..], links), (dir, None));
        self.rig.file_done(op, Ok(FileDone::Begun));
        let part = SavedPart {
            cut_ms: 0,
            file: "part".into(),
            rows: 3,
            bytes: 5,
            check: 7,
            clocks: Vec::new(),
            settings: Vec::new(),
        };
        // The hold, the parts.
        for _ in 1..steps.min(3) {
            for (id, order) in self.rig.orders(server) {
                let reply = match order {
                    Command::HoldClocks { .. } | Command::ReadClocks { .. } => {
                        CommandReply::Clocks(Vec::new())
                    }
                    Command::Save { .. } => CommandReply::Saved(part.clone()),
                    _ => CommandReply::Done,
                };
                self.rig.state.answered(self.rig.now, server, id, reply);
            }
            let actions = self.rig.state.take_actions();
            self.rig.actions.extend(actions);
        }
        if steps > 3 {
            let (op, task) = self.rig.file_task();
            assert!(matches!(task, FileTask::Commit { .. }), "{task:?}");
            self.rig.file_done(op, Ok(FileDone::Committed));
        }
        self.sync();
    }

    fn has_file_task(&self) -> bool {
        let mut actions = self.rig.actions.iter();
        actions.any(|action| matches!(action, Action::Files(..)))
    }
}

/// The coordinator is killed in each step of a checkpoint. Servers end theirs and let the clocks go on; the job goes
/// on without a load, and its next checkpoint has the number of the one that was not complete.
#[test]
fn checkpoint_under_way_is_begun_again() {
    const FIRST: &str = "/c/job/checkpoint-0000000001";
    const SECOND: &str = "/c/job/checkpoint-0000000002";
    for steps in 1..=4 {
        let (mut durable, server) = Durable::running();
        durable.passes(EVERY);
        durable.takes_checkpoint(server, FIRST, steps);
        durable.restart();
        durable.keeps_checkpoints();
        let server = durable.joined(Role::Server, 0, 70, 9);
        let orders = durable.rig.obey(server, &CommandReply::Done);
        let ends = |order: &Command| matches!(order, Command::CancelSave { .. });
        let goes_on = |order: &Command| matches!(order, Command::MembersChanged { .. });
        let found = [orders.iter().any(ends), orders.iter().any(goes_on)];
        assert_eq!(found, [true; 2], "step {steps}: {orders:?}");
        let worker = durable.rig.connects(Role::Worker, 0, "job").unwrap();
        durable
            .rig
            .ask(worker, 9, Durable::join(Role::Worker, 0, 80));
        let Some(Answer::Joined(joined)) = durable.rig.answer(worker, 9) else {
            panic!("{:?}", durable.rig.actions)
        };
        assert!(joined.checkpoints && joined.resumed.is_none());
        // A step that was begun when it returned.
        durable.passes(Duration::from_millis(200));
        let next = if steps > 3 { SECOND } else { FIRST };
        durable.takes_checkpoint(server, next, 4);
        let number = durable.journal.jobs["job"].checkpoints.as_ref().unwrap();
        assert_eq!(number.next, if steps > 3 { 3 } else { 2 });
        assert!(!durable.has_file_task());
    }
}

/// A job that was being searched for checkpoints is searched again, by the Join that is repeated.
#[test]
fn search_of_checkpoints_is_begun_again() {
    let (mut durable, ..) = Durable::joining();
    durable.restart();
    durable.keeps_checkpoints();
    durable.joined(Role::Server, 0, 70, 9);
    let worker = durable.enter(Role::Worker, 0, 80, 9);
    assert_eq!(durable.rig.answer(worker, 9), None);
    durable.finds_none(worker, 9);
}
