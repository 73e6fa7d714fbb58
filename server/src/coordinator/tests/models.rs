//! Saves and loads.

use super::*;

fn part(server: u32) -> SavedPart {
    let clocks = vec![DomainClock {
        domain: DomainId(0),
        clock: 7 + u64::from(server),
    }];
    let file = format!("part-{:016x}-{server}.tidewater", 5 + server);
    SavedPart {
        file,
        rows: 10,
        bytes: 100,
        check: 3,
        clocks,
    }
}

/// A job of one worker with a table, on two servers.
fn with_table() -> (Rig, [PeerId; 2], PeerId) {
    let mut rig = Rig::new(2, 1, LostWorker::FailJob, false);
    let (s0, s1, w0) = (rig.server(0), rig.server(1), rig.worker(0));
    rig.ask(w0, 2, Ask::CreateTable(spec("a")));
    rig.obey(s0, &OrderAnswer::Done);
    rig.obey(s1, &OrderAnswer::Done);
    assert!(matches!(rig.answer(w0, 2), Some(Answer::Table(_))));
    (rig, [s0, s1], w0)
}

/// Saves; the manifest that would be written.
fn save(rig: &mut Rig, servers: [PeerId; 2], w0: PeerId) -> (u64, Manifest) {
    rig.ask(w0, 3, Ask::Save { dir: "/m".into() });
    let (op, task) = rig.file_task();
    assert_eq!(task, FileTask::BeginSave("/m".into()));
    rig.file_done(op, Ok(FileDone::Begun));
    for (number, server) in servers.into_iter().enumerate() {
        let orders = rig.obey(server, &OrderAnswer::Saved(part(number as u32)));
        assert!(matches!(&orders[..], [Order::Save { namespace, .. }] if namespace == "job"));
    }
    match rig.file_task() {
        (same, FileTask::Commit(manifest)) if same == op => (op, *manifest),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_save_is_told_when_its_manifest_is_written() {
    let (mut rig, servers, w0) = with_table();
    let (op, manifest) = save(&mut rig, servers, w0);
    assert_eq!(manifest.tables.len(), 1);
    assert_eq!(
        manifest.clocks(),
        [DomainClock {
            domain: DomainId(0),
            clock: 7
        }]
    );
    rig.ask(w0, 4, Ask::Save { dir: "/m".into() });
    assert!(rig.refusal(w0, 4).text.contains("is running"));
    assert_eq!(rig.answer(w0, 3), None);
    rig.file_done(op, Ok(FileDone::Committed));
    let expected = Answer::Saved {
        tables: 1,
        rows: 20,
        bytes: 200,
    };
    assert_eq!(rig.answer(w0, 3), Some(expected));
}

#[test]
fn a_save_that_one_server_cannot_do_writes_no_manifest() {
    let (mut rig, [s0, s1], w0) = with_table();
    rig.ask(w0, 3, Ask::Save { dir: "/m".into() });
    let (op, _) = rig.file_task();
    rig.file_done(op, Ok(FileDone::Begun));
    let full = Refusal::new(RefusalCode::Io, [28, 0, 0, 0]).with_text("no space");
    rig.obey(s0, &OrderAnswer::Refused(full));
    rig.obey(s1, &OrderAnswer::Saved(part(1)));
    assert_eq!(rig.file_task(), (op, FileTask::Abandon(vec![part(1).file])));
    assert!(rig.refusal(w0, 3).text.contains("server 0: no space"));
    save(&mut rig, [s0, s1], w0);
}

#[test]
fn a_load_makes_and_fills_the_tables_before_anybody_gets_them() {
    let (mut rig, servers, w0) = with_table();
    let (_, manifest) = save(&mut rig, servers, w0);
    let mut rig = Rig::new(2, 2, LostWorker::FailJob, false);
    let (s0, s1, w0, w1) = (rig.server(0), rig.server(1), rig.worker(0), rig.worker(1));
    rig.ask(w0, 2, Ask::Load { dir: "/m".into() });
    let (op, task) = rig.file_task();
    assert_eq!(task, FileTask::BeginLoad("/m".into()));
    rig.file_done(op, Ok(FileDone::Manifest(Box::new(manifest.clone()))));
    rig.obey(s0, &OrderAnswer::Done);
    rig.obey(s1, &OrderAnswer::Done);
    rig.ask(w1, 2, Ask::CreateTable(spec("a")));
    let fill = rig.obey(s0, &OrderAnswer::Done);
    assert!(
        matches!(&fill[..], [Order::Load { name, .. }] if name == "a"),
        "{fill:?}"
    );
    assert_eq!((rig.answer(w1, 2), rig.answer(w0, 2)), (None, None));
    rig.obey(s1, &OrderAnswer::Done);
    let loaded = Answer::Loaded {
        tables: vec!["a".into()],
        rows: 20,
        clocks: manifest.clocks(),
    };
    assert_eq!(rig.answer(w0, 2), Some(loaded));
    assert!(matches!(rig.answer(w1, 2), Some(Answer::Table(_))));
    assert_eq!(rig.file_task(), (op, FileTask::EndLoad));
    // A table that is there is not loaded over.
    rig.ask(w0, 3, Ask::Load { dir: "/m".into() });
    let (op, _) = rig.file_task();
    rig.file_done(op, Ok(FileDone::Manifest(Box::new(manifest))));
    assert!(rig.refusal(w0, 3).text.contains("table \"a\" exists"));
}

#[test]
fn a_load_that_fails_leaves_no_table() {
    let (mut rig, servers, w0) = with_table();
    let (_, manifest) = save(&mut rig, servers, w0);
    let mut rig = Rig::new(1, 1, LostWorker::FailJob, false);
    let (s0, w0) = (rig.server(0), rig.worker(0));
    rig.ask(w0, 2, Ask::Load { dir: "/m".into() });
    let (op, _) = rig.file_task();
    rig.file_done(op, Ok(FileDone::Manifest(Box::new(manifest))));
    rig.obey(s0, &OrderAnswer::Done);
    let damaged = Refusal::new(RefusalCode::BadCheckpoint, [0; 4]).with_text("part-5 is damaged");
    rig.obey(s0, &OrderAnswer::Refused(damaged));
    let refusal = rig.refusal(w0, 2);
    assert_eq!(refusal.code, RefusalCode::BadCheckpoint);
    assert!(
        refusal.text.contains("server 0: part-5"),
        "{}",
        refusal.text
    );
    assert!(matches!(
        rig.obey(s0, &OrderAnswer::Done)[..],
        [Order::ReleaseTable { .. }]
    ));
    rig.ask(w0, 3, Ask::OpenTable { name: "a".into() });
    assert_eq!(rig.refusal(w0, 3).code, RefusalCode::UnknownTable);
}
