//! File tasks on the real disk layer: failing steps of a commit, and the lock against a second
//! save.

use rustix::io::Errno;
use tidewater_protocol::wire::refusal::RefusalCode;

use super::*;
use std::fs;
use tidewater_checkpoint::testing::faults::{Call, Kind, Verdict, under};
use tidewater_checkpoint::{
    MANIFEST_NAME, Manifest, PartReader, PartWriter, SavedFile, read_manifest,
};

fn text(dir: &Path) -> String {
    dir.to_str().unwrap().to_owned()
}

/// Begins a save with one part of one record.
fn begin(files: &mut Files, op: u64, dir: &Path) -> Manifest {
    let begun = files.perform(op, FileTask::BeginSave(text(dir)));
    assert_eq!(begun, Some(Ok(FileDone::Begun)));
    let mut part = PartWriter::create(Box::new(OsDisk), dir, 0, op).unwrap();
    let record = [op.to_le_bytes(), [1; 8]].concat();
    part.records(1, 0, 1, &record).unwrap();
    Manifest::new("job".into(), Vec::new(), vec![part.finish().unwrap()])
}

fn commit(files: &mut Files, op: u64, manifest: &Manifest) -> Result<FileDone, Refusal> {
    let task = FileTask::Commit {
        manifest: Box::new(manifest.clone()),
        keep: None,
    };
    files.perform(op, task).unwrap()
}

/// The model of a directory; reads every byte of its parts.
fn model(dir: &Path) -> Manifest {
    let manifest = read_manifest(dir).unwrap();
    for file in &manifest.files {
        let reader = PartReader::open(dir, file).unwrap();
        let chunks = reader.chunks().iter();
        chunks.for_each(|chunk| reader.read(chunk, &mut Vec::new()).unwrap());
    }
    manifest
}

/// Commits while the calls that `fails` names fail with EIO. Returns the refusal.
fn commit_on(
    files: &mut Files,
    (op, manifest): (u64, &Manifest),
    fails: impl Fn(&Call) -> bool,
) -> Refusal {
    let mut failed = 0;
    let decide = |call: &Call| {
        if !fails(call) {
            return Verdict::Pass;
        }
        failed += 1;
        Verdict::Fail(Errno::IO)
    };
    let refusal = under(decide, || commit(files, op, manifest)).unwrap_err();
    assert!(failed > 0, "no such call: {refusal}");
    assert_eq!(refusal.code, RefusalCode::Io);
    assert_eq!(refusal.numbers[0], 5, "EIO: {refusal}");
    refusal
}

/// The manifest is in place, and only making that durable fails: its parts are the model.
#[test]
fn failed_last_sync_keeps_the_committed_model() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().canonicalize().unwrap();
    let mut files = Files::default();
    let first = begin(&mut files, 1, &dir);
    commit(&mut files, 1, &first).unwrap();
    let second = begin(&mut files, 2, &dir);
    let refusal = commit_on(&mut files, (2, &second), |call| {
        call.kind == Kind::Sync && call.path == dir
    });
    assert!(refusal.text.contains("sync"), "{refusal}");
    assert_eq!(model(&dir), second, "{refusal}");
    // Nor if the manifest cannot be read back: then it is not known which model is in place.
    let third = begin(&mut files, 3, &dir);
    commit_on(&mut files, (3, &third), |call| {
        let syncs = call.kind == Kind::Sync && call.path == dir;
        syncs || (call.kind == Kind::Open && call.path == dir.join(MANIFEST_NAME))
    });
    assert_eq!(model(&dir), third);
}

/// The manifest is not replaced: the previous model is there, and no file of the new one.
#[test]
fn failed_commit_leaves_the_model_before() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().canonicalize().unwrap();
    let mut files = Files::default();
    // The first save of a directory: there is no model before.
    let none = begin(&mut files, 1, &dir);
    commit_on(&mut files, (1, &none), |call| call.kind == Kind::Rename);
    assert!(!dir.join(&none.files[0].file).exists());
    let first = begin(&mut files, 2, &dir);
    commit(&mut files, 2, &first).unwrap();
    for (op, kind) in (3..).zip([Kind::Create, Kind::Write, Kind::Sync, Kind::Rename]) {
        let manifest = begin(&mut files, op, &dir);
        commit_on(&mut files, (op, &manifest), |call| call.kind == kind);
        assert_eq!(model(&dir), first, "{kind:?}");
        assert!(!dir.join(&manifest.files[0].file).exists(), "{kind:?}");
    }
    // The lock is free again.
    let last = begin(&mut files, 9, &dir);
    commit(&mut files, 9, &last).unwrap();
    assert_eq!(model(&dir), last);
}

/// A directory has one save, or loads, at a time.
#[test]
fn directory_has_one_save_or_several_loads() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let mut files = Files::default();
    let mut others = Files::default();
    let save = || FileTask::BeginSave(text(dir));
    let load = || FileTask::BeginLoad(text(dir));
    let in_use = |done: Option<Result<FileDone, Refusal>>| match done {
        Some(Err(refusal)) => assert!(refusal.text.contains("in use"), "{refusal}"),
        other => panic!("not refused: {other:?}"),
    };
    let manifest = begin(&mut files, 1, dir);
    in_use(files.perform(2, save()));
    in_use(others.perform(1, save()));
    in_use(others.perform(1, load()));
    commit(&mut files, 1, &manifest).unwrap();
    for (op, files) in [(3, &mut files), (4, &mut others)] {
        let read = files.perform(op, load());
        assert!(matches!(read, Some(Ok(FileDone::Manifest(_)))), "{read:?}");
    }
    in_use(others.perform(5, save()));
    assert_eq!(files.perform(3, FileTask::EndLoad), None);
    in_use(others.perform(5, save()));
    assert_eq!(others.perform(4, FileTask::EndLoad), None);
    let begun = others.perform(5, save());
    assert_eq!(begun, Some(Ok(FileDone::Begun)));
    assert_eq!(others.perform(5, FileTask::Abandon(Vec::new())), None);
    let begun = files.perform(6, save());
    assert_eq!(begun, Some(Ok(FileDone::Begun)));
}

/// The parts of a checkpoint that the next one may extend are in its directory when it has begun; where they cannot be, it
/// begins without them.
#[test]
fn parts_are_linked_when_a_checkpoint_begins() {
    let folder = tempfile::tempdir().unwrap();
    let dir = |number: u64| folder.path().join(format!("job/{number}"));
    let task = |number: u64, links: Option<Links>| FileTask::BeginCheckpoint {
        dir: text(&dir(number)),
        links,
    };
    let mut files = Files::default();
    assert_eq!(files.perform(1, task(1, None)), Some(Ok(FileDone::Begun)));
    let mut part = PartWriter::create(Box::new(OsDisk), &dir(1), 0, 1).unwrap();
    part.records(1, 0, 1, &[1; 16]).unwrap();
    let part = part.finish().unwrap();
    let first = Manifest::new("job".into(), Vec::new(), vec![part.clone()]);
    assert_eq!(commit(&mut files, 1, &first), Ok(FileDone::Committed));
    let links = |names: &[&str]| Links {
        from: text(&dir(1)),
        names: names.iter().map(|&name| name.to_owned()).collect(),
    };
    let begun = files.perform(2, task(2, Some(links(&[&part.file]))));
    assert_eq!(begun, Some(Ok(FileDone::Begun)));
    let mut more = PartWriter::create(Box::new(OsDisk), &dir(2), 0, 2).unwrap();
    more.removed(1, 0, &[7]).unwrap();
    let more = SavedFile {
        extends: Some(part.file.clone()),
        ..more.finish().unwrap()
    };
    let second = Manifest::new("job".into(), Vec::new(), vec![part, more]);
    assert_eq!(commit(&mut files, 2, &second), Ok(FileDone::Committed));
    fs::remove_dir_all(dir(1)).unwrap();
    assert_eq!(model(&dir(2)), second);
    let begun = files.perform(3, task(3, Some(links(&["part-0-0.tidewater"]))));
    let Some(Ok(FileDone::BegunWithoutLinks(why))) = begun else {
        panic!("{begun:?}")
    };
    assert!(why.contains("part-0-0.tidewater"), "{why}");
}

/// Two coordinators with one directory of checkpoints would remove and replace each other's: the second one is
/// refused until the first one has ended.
#[test]
fn checkpoints_of_a_job_have_one_coordinator() {
    let dir = tempfile::tempdir().unwrap();
    let job = dir.path().join("job");
    let task = |number: u64| FileTask::BeginCheckpoint {
        dir: text(&job.join(format!("{number}"))),
        links: None,
    };
    let resume = || FileTask::BeginResume {
        dir: text(&job),
        before: u64::MAX,
    };
    let kept = |done: Option<Result<FileDone, Refusal>>| match done {
        Some(Err(refusal)) => {
            assert!(refusal.text.contains("another coordinator"), "{refusal}");
            assert!(refusal.text.contains(&text(&job)), "{refusal}");
        }
        other => panic!("not refused: {other:?}"),
    };
    let mut first = Files::default();
    assert_eq!(first.perform(1, task(1)), Some(Ok(FileDone::Begun)));
    assert_eq!(first.perform(1, FileTask::Abandon(Vec::new())), None);
    // Another operation of the same coordinator.
    let mut next = Files::new(JobLocks::clone(&first.jobs));
    assert_eq!(next.perform(2, task(2)), Some(Ok(FileDone::Begun)));
    drop(first);
    let mut second = Files::default();
    kept(second.perform(1, task(3)));
    kept(second.perform(2, resume()));
    drop(next);
    let found = second.perform(3, resume());
    assert!(
        matches!(found, Some(Ok(FileDone::Checkpoints(_)))),
        "{found:?}"
    );
    assert_eq!(second.perform(4, task(4)), Some(Ok(FileDone::Begun)));
}
