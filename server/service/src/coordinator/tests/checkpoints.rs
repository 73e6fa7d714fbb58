//! Checkpoints: when they are ordered and at which clocks, what ends them, and how a job is resumed.

use tidewater_protocol::table::Reduce;

use super::*;
use tidewater_checkpoint::{Found, Newest, SavedFile, SavedTable};

pub(super) const EVERY: Duration = Duration::from_secs(5);

pub(super) fn at(clock: u64) -> Vec<DomainClock> {
    vec![DomainClock {
        domain: DomainId(0),
        clock,
    }]
}

pub(super) fn spec_of_ticks(name: &str) -> TableSpec {
    TableSpec {
        effect: Apply::AtTick(Reduce::Sum),
        ..spec(name)
    }
}

fn part(server: u32, clock: u64) -> SavedPart {
    SavedPart {
        file: format!("part-{:016x}-{server}.tidewater", 5 + server),
        rows: 10,
        bytes: 100,
        check: 3,
        clocks: at(clock),
        settings: Vec::new(),
        cut_ms: 10_000 + u64::from(server),
    }
}

/// Two servers, and a job of one worker that has asked to join.
fn joining(every: Every) -> (Rig, [PeerId; 2], PeerId) {
    let mut rig = Rig::new(2, 1, LostWorker::FailJob, false);
    rig.state.keep_checkpoints(CheckpointPolicy {
        dir: "/c".into(),
        every,
        keep: 2,
        full_every: 3,
    });
    let servers = [rig.server(0), rig.server(1)];
    let worker = rig.connects(Role::Worker, 0, "job").unwrap();
    rig.ask(worker, 1, Ask::Join(Rig::join(Role::Worker, 0)));
    (rig, servers, worker)
}

/// The same after its join, with a table of ticks. No checkpoint was found.
pub(super) fn running(every: Every) -> (Rig, [PeerId; 2], PeerId) {
    let (mut rig, servers, worker) = joining(every);
    assert_eq!(
        rig.answer(worker, 1),
        None,
        "checkpoints are searched first"
    );
    let (op, task) = rig.file_task();
    let search = FileTask::BeginResume {
        dir: "/c/job".into(),
        before: u64::MAX,
    };
    assert_eq!(task, search);
    let found = Found {
        next: 1,
        ..Found::default()
    };
    rig.file_done(op, Ok(FileDone::Checkpoints(Box::new(found))));
    assert_eq!(rig.file_task(), (op, FileTask::EndLoad));
    let Some(Answer::Joined(joined)) = rig.answer(worker, 1) else {
        panic!("{:?}", rig.actions)
    };
    assert!(joined.checkpoints && joined.resumed.is_none());
    rig.ask(worker, 2, Ask::CreateTable(spec_of_ticks("a")));
    for server in servers {
        rig.obey(server, &CommandReply::Done);
    }
    assert!(matches!(rig.answer(worker, 2), Some(Answer::Table(_))));
    (rig, servers, worker)
}

impl Rig {
    pub(super) fn passes(&mut self, time: Duration) {
        self.now += time;
        self.state.tick(self.now);
        self.actions.extend(self.state.take_actions());
    }

    /// A server answers its orders but for those that `keep` wants, which are returned.
    fn serves(
        &mut self,
        server: PeerId,
        reply: impl Fn(&Command) -> Option<CommandReply>,
    ) -> Vec<(u64, Command)> {
        let mut rest = Vec::new();
        for (id, order) in self.orders(server) {
            match reply(&order) {
                Some(reply) => self.state.answered(self.now, server, id, reply),
                None => rest.push((id, order)),
            }
        }
        self.actions.extend(self.state.take_actions());
        rest
    }

    /// Answers the hold of both servers with these clocks. Returns the orders to save.
    pub(super) fn holds(
        &mut self,
        servers: [PeerId; 2],
        clocks: [u64; 2],
    ) -> Vec<(PeerId, u64, Command)> {
        for (server, clock) in servers.into_iter().zip(clocks) {
            let held = |order: &Command| match order {
                Command::HoldClocks { .. } => Some(CommandReply::Clocks(at(clock))),
                Command::ReadClocks { .. } => Some(CommandReply::Clocks(at(clock))),
                _ => Some(CommandReply::Done),
            };
            assert!(self.serves(server, held).is_empty());
        }
        let mut saves = Vec::new();
        for server in servers {
            let orders = self.serves(server, |order| match order {
                Command::Save { .. } => None,
                _ => Some(CommandReply::Done),
            });
            saves.extend(orders.into_iter().map(|(id, order)| (server, id, order)));
        }
        saves
    }

    /// The file task of a save, or of a checkpoint in the directory of a job, which has begun.
    fn begins_save(&mut self, dir: &str) -> u64 {
        let (op, task) = self.file_task();
        let (FileTask::BeginCheckpoint { dir: begun, .. } | FileTask::BeginSave(begun)) = &task
        else {
            panic!("{task:?}")
        };
        let is_checkpoint = matches!(task, FileTask::BeginCheckpoint { .. });
        assert_eq!(
            (&begun[..], is_checkpoint),
            (dir, dir.contains("/checkpoint-"))
        );
        self.file_done(op, Ok(FileDone::Begun));
        op
    }

    fn has_file_task(&self) -> bool {
        self.actions.iter().any(|a| matches!(a, Action::Files(..)))
    }
}

/// All servers save at the furthest tick of any of them. The manifest holds the time of the first cut, and
/// the next checkpoint comes an interval later.
#[test]
fn checkpoint_is_of_the_furthest_tick() {
    let (mut rig, servers, _) = running(Every::Time(EVERY));
    rig.passes(Duration::from_secs(4));
    assert!(!rig.has_file_task(), "it is not due");
    rig.passes(Duration::from_secs(1));
    let op = rig.begins_save("/c/job/checkpoint-0000000001");
    let saves = rig.holds(servers, [7, 9]);
    assert_eq!(saves.len(), 2);
    for (number, (server, id, order)) in (0..).zip(saves) {
        let Command::Save {
            clocks, checkpoint, ..
        } = order
        else {
            panic!("{order:?}")
        };
        assert_eq!((clocks, checkpoint.is_some()), (at(9), true));
        let saved = CommandReply::Saved(part(number, 9));
        rig.state.answered(rig.now, server, id, saved);
    }
    rig.actions.extend(rig.state.take_actions());
    let (same, FileTask::Commit { manifest, keep }) = rig.file_task() else {
        panic!("no manifest")
    };
    assert_eq!((same, keep), (op, Some(2)));
    assert_eq!(
        (manifest.clocks(), manifest.taken_ms),
        (at(9), Some(10_000))
    );
    rig.passes(EVERY * 3);
    assert!(!rig.has_file_task(), "one at a time");
    rig.file_done(op, Ok(FileDone::Committed));
    rig.passes(EVERY - Duration::from_millis(1));
    assert!(!rig.has_file_task());
    rig.passes(Duration::from_millis(1));
    rig.begins_save("/c/job/checkpoint-0000000002");
}

/// With an interval of ticks the next multiple is ordered before any worker can reach it.
#[test]
fn interval_of_ticks_takes_multiples() {
    let (mut rig, servers, _) = running(Every::Ticks(50));
    rig.passes(Duration::from_secs(1));
    rig.begins_save("/c/job/checkpoint-0000000001");
    for (_, _, order) in rig.holds(servers, [100, 99]) {
        assert!(matches!(order, Command::Save { clocks, .. } if clocks == at(150)));
    }
    // Waiting for the tick has no deadline here.
    rig.passes(FILE_ORDERS_TIMEOUT * 2);
    assert!(!rig.has_file_task());
}

/// A save of a worker ends the checkpoint under way, and begins when the servers have ended it; then the
/// checkpoint is taken.
#[test]
fn checkpoint_gives_way_to_a_save() {
    let (mut rig, servers, worker) = running(Every::Time(EVERY));
    rig.passes(EVERY);
    rig.begins_save("/c/job/checkpoint-0000000001");
    let saves = rig.holds(servers, [7, 7]);
    let save = Ask::Save {
        dir: "/m".into(),
        clocks: at(6),
    };
    rig.ask(worker, 3, save);
    assert_eq!(rig.answer(worker, 3), None);
    for (server, id, _) in saves {
        let ends = rig.serves(server, |_| Some(CommandReply::Done));
        assert!(ends.is_empty());
        let refusal = Refusal::new(RefusalCode::BadCheckpoint, [0; 4]).with_text("ended");
        rig.state
            .answered(rig.now, server, id, CommandReply::Refused(refusal));
    }
    rig.actions.extend(rig.state.take_actions());
    assert!(matches!(rig.file_task(), (_, FileTask::Abandon(_))));
    rig.begins_save("/m");
    for (number, server) in (0..).zip(servers) {
        let saved = rig.serves(server, |order| match order {
            Command::Save { checkpoint, .. } => {
                assert_eq!(*checkpoint, None);
                Some(CommandReply::Saved(part(number, 6)))
            }
            _ => Some(CommandReply::Done),
        });
        assert!(saved.is_empty());
    }
    let (op, task) = rig.file_task();
    assert!(
        matches!(task, FileTask::Commit { keep: None, .. }),
        "{task:?}"
    );
    rig.passes(EVERY);
    assert!(!rig.has_file_task(), "one at a time");
    rig.file_done(op, Ok(FileDone::Committed));
    assert!(matches!(rig.answer(worker, 3), Some(Answer::Saved { .. })));
    rig.passes(EVERY);
    rig.begins_save("/c/job/checkpoint-0000000001");
}

/// A table that is created while a checkpoint waits for its tick ends it: it would be missing.
#[test]
fn new_table_ends_the_waiting_checkpoint() {
    let (mut rig, servers, worker) = running(Every::Ticks(50));
    rig.passes(Duration::from_secs(1));
    rig.begins_save("/c/job/checkpoint-0000000001");
    rig.holds(servers, [3, 3]);
    rig.ask(worker, 3, Ask::CreateTable(spec("b")));
    let ends = rig.orders(servers[0]);
    let is_end = |(_, order): &(u64, Command)| matches!(order, Command::CancelSave { .. });
    assert!(ends.iter().any(is_end), "{ends:?}");
}

/// A disk without room fails the checkpoint, not the job; the clocks go on, and it is tried again.
#[test]
fn failed_checkpoint_leaves_the_job() {
    let (mut rig, servers, worker) = running(Every::Time(EVERY));
    rig.passes(EVERY);
    rig.begins_save("/c/job/checkpoint-0000000001");
    for (server, id, _) in rig.holds(servers, [7, 7]) {
        let full =
            Refusal::new(RefusalCode::Io, [28, 0, 0, 0]).with_text("write 9 bytes: no space");
        rig.state
            .answered(rig.now, server, id, CommandReply::Refused(full));
    }
    rig.actions.extend(rig.state.take_actions());
    assert!(matches!(rig.file_task(), (_, FileTask::Abandon(_))));
    assert!(rig.notices(worker).is_empty());
    rig.passes(EVERY);
    rig.begins_save("/c/job/checkpoint-0000000001");
}

/// A job that ends while its clocks are held lets them go on.
#[test]
fn hold_ends_with_its_checkpoint() {
    let (mut rig, servers, worker) = running(Every::Time(EVERY));
    rig.passes(EVERY);
    rig.begins_save("/c/job/checkpoint-0000000001");
    let held = |order: &(u64, Command)| matches!(order.1, Command::HoldClocks { .. });
    assert!(rig.orders(servers[0]).iter().any(held));
    rig.close(worker);
    let orders = rig.orders(servers[0]);
    let goes_on = |order: &(u64, Command)| matches!(order.1, Command::MembersChanged { .. });
    assert!(orders.iter().any(goes_on), "{orders:?}");
}

fn newest(number: u64) -> Found {
    let file = SavedFile {
        server: 0,
        file: "part-0000000000000005-0.tidewater".into(),
        rows: 3,
        bytes: 100,
        check: 1,
        clocks: at(120),
        extends: None,
    };
    let table = SavedTable {
        id: 1,
        spec: spec_of_ticks("a"),
        optimizer: None,
    };
    let manifest = Manifest {
        taken_ms: Some(50_000),
        ..Manifest::new("job".into(), vec![table], vec![file])
    };
    Found {
        newest: Some(Newest {
            number,
            dir: format!("/c/job/checkpoint-{number:010}"),
            manifest,
        }),
        next: number + 1,
        skipped: Vec::new(),
        seen_ms: Some(64_000),
        seen: at(133),
    }
}

/// Workers wait for the load of the newest checkpoint and learn what was lost. One that proves damaged while
/// it is read is left out for the one before.
#[test]
fn job_resumes_from_the_newest_undamaged_checkpoint() {
    let (mut rig, servers, worker) = joining(Every::Time(EVERY));
    let (op, _) = rig.file_task();
    let found = |number| Ok(FileDone::Checkpoints(Box::new(newest(number))));
    rig.file_done(op, found(8));
    for server in servers {
        rig.obey(server, &CommandReply::Done);
    }
    let damaged = Refusal::new(RefusalCode::BadCheckpoint, [0; 4]).with_text("part-5 is damaged");
    for server in servers {
        let fill = rig.obey(server, &CommandReply::Refused(damaged.clone()));
        let of =
            |order: &Command| matches!(order, Command::Load { dir, .. } if dir.ends_with("08"));
        assert!(fill.iter().all(of), "{fill:?}");
    }
    assert_eq!(rig.file_task(), (op, FileTask::EndLoad));
    let (op, task) = rig.file_task();
    let search = FileTask::BeginResume {
        dir: "/c/job".into(),
        before: 8,
    };
    assert_eq!(task, search);
    rig.file_done(op, found(7));
    assert_eq!(rig.answer(worker, 1), None);
    for _ in 0..3 {
        for server in servers {
            rig.obey(server, &CommandReply::Done);
        }
    }
    let Some(Answer::Joined(joined)) = rig.answer(worker, 1) else {
        panic!("{:?}", rig.actions)
    };
    let resumed = joined.resumed.unwrap();
    assert_eq!((resumed.number, resumed.skipped), (7, 1));
    assert_eq!((resumed.clocks, resumed.seen), (at(120), at(133)));
    assert_eq!(resumed.lost_ms, Some(14_000));
    rig.ask(worker, 2, Ask::OpenTable { name: "a".into() });
    assert!(matches!(rig.answer(worker, 2), Some(Answer::Table(_))));
}

/// A job does not begin again by itself where its checkpoints cannot be loaded.
#[test]
fn job_without_a_loadable_checkpoint_is_refused() {
    let (mut rig, servers, worker) = joining(Every::Time(EVERY));
    let (op, _) = rig.file_task();
    rig.file_done(op, Ok(FileDone::Checkpoints(Box::new(newest(8)))));
    for server in servers {
        rig.obey(server, &CommandReply::Done);
    }
    let damaged = Refusal::new(RefusalCode::BadCheckpoint, [0; 4]).with_text("part-5 is damaged");
    for server in servers {
        rig.obey(server, &CommandReply::Refused(damaged.clone()));
    }
    assert_eq!(rig.file_task(), (op, FileTask::EndLoad));
    let (op, _) = rig.file_task();
    let none = Found {
        next: 9,
        ..Found::default()
    };
    rig.file_done(op, Ok(FileDone::Checkpoints(Box::new(none))));
    let refusal = rig.refusal(worker, 1);
    assert!(refusal.text.contains("/c/job"), "{refusal}");
}

/// Queues are in no checkpoint: a resumed job would count finished tasks twice.
#[test]
fn jobs_with_checkpoints_have_no_queues() {
    use tidewater_protocol::wire::control::{QueueSpec, TaskKind, TaskRequest};
    let (mut rig, _, worker) = running(Every::Time(EVERY));
    let spec = QueueSpec {
        name: "train".into(),
        kind: TaskKind::Train,
        source: String::new(),
        task_size: 5,
        epochs: 1,
        strict_epochs: false,
        seed: None,
        finals: Vec::new(),
        failures_max: 1,
        timeout_ms: 60_000,
        timeout_factor: 10,
        straggler_ms: 5_000,
        straggler_factor: 2,
        losses_max: 3,
        held_max: 0,
        steps_max: 0,
        records: None,
        record_seed: None,
    };
    let shards = Some(Vec::new());
    rig.ask(worker, 3, Ask::Tasks(TaskRequest::Open { spec, shards }));
    let refusal = rig.refusal(worker, 3);
    assert_eq!(refusal.code, RefusalCode::BadRequest);
    assert!(refusal.text.contains("without --checkpoint"), "{refusal}");
}

/// A deadline at which nothing is done would make the loop of the coordinator spin.
#[test]
fn jobs_without_workers_have_no_next_checkpoint() {
    let (mut rig, _, worker) = running(Every::Time(EVERY));
    assert!(rig.state.next_deadline().is_some());
    rig.ask(worker, 3, Ask::Finished);
    assert_eq!(rig.state.next_deadline(), None);
}
