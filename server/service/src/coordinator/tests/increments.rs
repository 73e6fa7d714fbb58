//! Checkpoints that extend the one before: when they do, what servers and files are asked for, and what ends a series.

use super::checkpoints::{EVERY, at, running, spec_of_ticks};
use super::*;
use crate::coordinator::state::Links;
use tidewater_protocol::wire::control::CheckpointMark;

/// A job of two servers that takes checkpoints.
struct Series {
    rig: Rig,
    servers: [PeerId; 2],
    worker: PeerId,
    nonce: u64,
}

/// What the orders of one checkpoint were.
#[derive(Debug)]
struct Taken {
    op: u64,
    links: Option<Links>,
    mark: CheckpointMark,
}

impl Series {
    fn new() -> Self {
        let (rig, servers, worker) = running(Every::Time(EVERY));
        Self {
            rig,
            servers,
            worker,
            nonce: 0,
        }
    }

    /// Carries the next checkpoint out up to the orders to save; `begun` answers the file task.
    fn orders(&mut self, begun: FileDone) -> (Taken, Vec<(PeerId, u64, Command)>) {
        self.rig.passes(EVERY);
        let (op, task) = self.rig.file_task();
        let FileTask::BeginCheckpoint { links, .. } = task else {
            panic!("{task:?}")
        };
        self.rig.file_done(op, Ok(begun));
        let saves = self.rig.holds(self.servers, [7, 7]);
        let marks = saves.iter().map(|(.., order)| match order {
            Command::Save { checkpoint, .. } => checkpoint.unwrap(),
            other => panic!("{other:?}"),
        });
        let marks: Vec<CheckpointMark> = marks.collect();
        assert!(marks.len() == 2 && marks[0] == marks[1], "{marks:?}");
        let mark = marks[0];
        (Taken { op, links, mark }, saves)
    }

    /// Takes a checkpoint with parts of `bytes`, and returns its manifest.
    fn takes(&mut self, begun: FileDone, bytes: u64) -> (Taken, Manifest) {
        let (taken, saves) = self.orders(begun);
        self.nonce += 1;
        for (number, (server, id, _)) in (0..).zip(saves) {
            let part = SavedPart {
                file: format!("part-{:016x}-{number}.tidewater", self.nonce),
                rows: bytes / 10,
                bytes,
                check: 3,
                clocks: at(7 + self.nonce),
                settings: Vec::new(),
                cut_ms: 10,
            };
            let saved = CommandReply::Saved(part);
            self.rig.state.answered(self.rig.now, server, id, saved);
        }
        let actions = self.rig.state.take_actions();
        self.rig.actions.extend(actions);
        let (op, task) = self.rig.file_task();
        let FileTask::Commit { manifest, .. } = task else {
            panic!("{task:?}")
        };
        self.rig.file_done(op, Ok(FileDone::Committed));
        (taken, *manifest)
    }

    /// Takes a checkpoint of 1,000 bytes that must hold all rows.
    fn takes_all(&mut self) -> u64 {
        let (taken, manifest) = self.takes(FileDone::Begun, 1_000);
        assert_eq!(taken.mark.extends, None);
        assert_eq!(manifest.files.len(), 2);
        assert!(manifest.files.iter().all(|file| file.extends.is_none()));
        taken.op
    }
}

/// One of three holds all rows. The others extend the one before, and their manifest has its parts.
#[test]
fn checkpoints_extend_the_one_before() {
    let mut series = Series::new();
    for _ in 0..2 {
        let first = series.takes_all();
        let (second, manifest) = series.takes(FileDone::Begun, 100);
        assert_eq!(second.mark, mark(second.op, first, true));
        let links = second.links.unwrap();
        assert!(links.from.starts_with("/c/job/checkpoint-"), "{links:?}");
        let names = |manifest: &Manifest| -> Vec<String> {
            let files = manifest.files.iter();
            files.map(|file| file.file.clone()).collect()
        };
        assert_eq!(names(&manifest)[..2], links.names);
        assert_eq!(manifest.files.len(), 4);
        for (old, new) in [(0, 2), (1, 3)] {
            let [old, new] = [&manifest.files[old], &manifest.files[new]];
            assert_eq!(old.server, new.server);
            assert_eq!(new.extends.as_ref(), Some(&old.file));
        }
        assert_eq!(manifest.clocks(), at(7 + series.nonce), "of the last cut");
        let (third, last) = series.takes(FileDone::Begun, 100);
        assert_eq!(third.mark, mark(third.op, second.op, false));
        assert_eq!(third.links.unwrap().names, names(&manifest));
        assert_eq!(last.files.len(), 6);
        assert_eq!(last.files[5].extends.as_ref(), Some(&last.files[3].file));
    }
}

fn mark(number: u64, extends: u64, notes: bool) -> CheckpointMark {
    CheckpointMark {
        number,
        extends: Some(extends),
        notes,
    }
}

/// Where most rows change, each checkpoint holds all; changes alone are tried again later.
#[test]
fn changes_of_most_rows_are_no_increment() {
    let mut series = Series::new();
    series.takes_all();
    let (taken, _) = series.takes(FileDone::Begun, 900);
    assert!(taken.mark.extends.is_some());
    for _ in 0..3 {
        series.takes_all();
    }
    let (taken, _) = series.takes(FileDone::Begun, 100);
    assert!(taken.mark.extends.is_some(), "{taken:?}");
}

/// A server that does not know all changes, since it has started again, refuses. The next checkpoint comes at once and
/// holds all rows, and the one after it extends it.
#[test]
fn refused_increment_is_followed_by_all_rows() {
    let mut series = Series::new();
    series.takes_all();
    let (taken, saves) = series.orders(FileDone::Begun);
    assert!(taken.mark.extends.is_some());
    for (server, id, _) in saves {
        let refusal = Refusal::new(RefusalCode::ChangesUnknown, [0; 4]).with_text("not noted");
        let refused = CommandReply::Refused(refusal);
        let rig = &mut series.rig;
        rig.state.answered(rig.now, server, id, refused);
    }
    let actions = series.rig.state.take_actions();
    series.rig.actions.extend(actions);
    assert!(matches!(series.rig.file_task(), (_, FileTask::Abandon(_))));
    let next = series.takes_all();
    let (taken, _) = series.takes(FileDone::Begun, 100);
    assert_eq!(taken.mark, mark(taken.op, next, true));
}

/// A table that the checkpoint before has not is in no changes since it.
#[test]
fn new_table_begins_a_series() {
    let mut series = Series::new();
    series.takes_all();
    let (rig, servers) = (&mut series.rig, series.servers);
    rig.ask(series.worker, 3, Ask::CreateTable(spec_of_ticks("b")));
    for server in servers {
        rig.obey(server, &CommandReply::Done);
    }
    assert!(matches!(
        rig.answer(series.worker, 3),
        Some(Answer::Table(_))
    ));
    series.takes_all();
    let (taken, _) = series.takes(FileDone::Begun, 100);
    assert!(taken.mark.extends.is_some());
}

/// On a file system without hard links each checkpoint holds all rows.
#[test]
fn no_links_no_increments() {
    let mut series = Series::new();
    series.takes_all();
    let (taken, manifest) = series.takes(FileDone::BegunWithoutLinks("EPERM".into()), 1_000);
    assert!(taken.links.is_some() && taken.mark.extends.is_none() && !taken.mark.notes);
    assert_eq!(manifest.files.len(), 2);
    // They are tried again after three with all rows.
    for _ in 0..2 {
        let (taken, _) = series.takes(FileDone::Begun, 1_000);
        assert!(
            taken.links.is_none() && taken.mark.extends.is_none(),
            "{taken:?}"
        );
    }
    let (taken, _) = series.takes(FileDone::Begun, 100);
    assert!(taken.mark.extends.is_some());
}

/// Changes that are few each time are no reason to wait, however many they are together.
#[test]
fn few_changes_at_a_time_stay_increments() {
    let mut series = Series::new();
    for _ in 0..3 {
        series.takes_all();
        for _ in 0..2 {
            let (taken, _) = series.takes(FileDone::Begun, 400);
            assert!(taken.mark.extends.is_some());
        }
    }
}

/// A checkpoint that ends before a server has its order leaves the changes to the next one.
#[test]
fn checkpoint_without_orders_keeps_its_base() {
    let mut series = Series::new();
    let first = series.takes_all();
    series.rig.passes(EVERY);
    let (op, task) = series.rig.file_task();
    assert!(matches!(
        task,
        FileTask::BeginCheckpoint { links: Some(_), .. }
    ));
    let full = Refusal::new(RefusalCode::Io, [28, 0, 0, 0]).with_text("no space");
    series.rig.file_done(op, Err(full));
    let (taken, _) = series.takes(FileDone::Begun, 100);
    assert_eq!(taken.mark, mark(taken.op, first, true));
}
