//! Saves and loads of a job's tables.

use tidewater_protocol::ids::ServerId;

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
        settings: Vec::new(),
        cut_ms: 1_000 + u64::from(server),
    }
}

/// A job of one worker with a table, on two servers.
fn with_table() -> (Rig, [PeerId; 2], PeerId) {
    let mut rig = Rig::new(2, 1, LostWorker::FailJob, false);
    let (s0, s1, w0) = (rig.server(0), rig.server(1), rig.worker(0));
    rig.ask(w0, 2, Ask::CreateTable(spec("a")));
    rig.obey(s0, &CommandReply::Done);
    rig.obey(s1, &CommandReply::Done);
    assert!(matches!(rig.answer(w0, 2), Some(Answer::Table(_))));
    (rig, [s0, s1], w0)
}

/// Saves; returns the operation and the manifest that would be written.
fn save_to(dir: &str) -> Ask {
    Ask::Save {
        dir: dir.into(),
        clocks: Vec::new(),
    }
}

fn save(rig: &mut Rig, servers: [PeerId; 2], w0: PeerId) -> (u64, Manifest) {
    rig.ask(w0, 3, save_to("/m"));
    let (op, task) = rig.file_task();
    assert_eq!(task, FileTask::BeginSave("/m".into()));
    rig.file_done(op, Ok(FileDone::Begun));
    for (number, server) in servers.into_iter().enumerate() {
        let orders = rig.obey(server, &CommandReply::Saved(part(number as u32)));
        assert!(matches!(&orders[..], [Command::Save { namespace, .. }] if namespace == "job"));
    }
    match rig.file_task() {
        (same, FileTask::Commit { manifest, .. }) if same == op => (op, *manifest),
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
    rig.ask(w0, 4, save_to("/m"));
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
    rig.ask(w0, 3, save_to("/m"));
    let (op, _) = rig.file_task();
    rig.file_done(op, Ok(FileDone::Begun));
    let full = Refusal::new(RefusalCode::Io, [28, 0, 0, 0]).with_text("no space");
    rig.obey(s0, &CommandReply::Refused(full));
    rig.obey(s1, &CommandReply::Saved(part(1)));
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
    rig.obey(s0, &CommandReply::Done);
    rig.obey(s1, &CommandReply::Done);
    rig.ask(w1, 2, Ask::CreateTable(spec("a")));
    let fill = rig.obey(s0, &CommandReply::Done);
    assert!(
        matches!(&fill[..], [Command::Load { name, .. }] if name == "a"),
        "{fill:?}"
    );
    assert_eq!((rig.answer(w1, 2), rig.answer(w0, 2)), (None, None));
    rig.obey(s1, &CommandReply::Done);
    let loaded = Answer::Loaded {
        tables: vec!["a".into()],
        rows: 20,
        clocks: manifest.clocks(),
    };
    assert_eq!(rig.answer(w0, 2), Some(loaded));
    assert!(matches!(rig.answer(w1, 2), Some(Answer::Table(_))));
    assert_eq!(rig.file_task(), (op, FileTask::EndLoad));
    // A load does not replace a table that exists.
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
    rig.obey(s0, &CommandReply::Done);
    let damaged = Refusal::new(RefusalCode::BadCheckpoint, [0; 4]).with_text("part-5 is damaged");
    rig.obey(s0, &CommandReply::Refused(damaged));
    let refusal = rig.refusal(w0, 2);
    assert_eq!(refusal.code, RefusalCode::BadCheckpoint);
    assert!(
        refusal.text.contains("server 0: part-5"),
        "{}",
        refusal.text
    );
    assert!(matches!(
        rig.obey(s0, &CommandReply::Done)[..],
        [Command::ReleaseTable { .. }]
    ));
    rig.ask(w0, 3, Ask::OpenTable { name: "a".into() });
    assert_eq!(rig.refusal(w0, 3).code, RefusalCode::UnknownTable);
}

/// Coordinator and servers run in working directories of their own: a relative path would name
/// several.
#[test]
fn relative_directory_is_refused() {
    let (mut rig, _, w0) = with_table();
    let dir = || "model".to_owned();
    for request in [save_to(&dir()), Ask::Load { dir: dir() }] {
        rig.ask(w0, 3, request);
        let refusal = rig.refusal(w0, 3);
        assert!(refusal.text.contains("\"model\" is relative"), "{refusal}");
    }
    assert!(rig.is_idle(), "{:?}", rig.actions);
}

/// A job of one worker on two servers that loads `manifest`. Returns the operation too, with its
/// tables still to be made.
fn load(manifest: &Manifest) -> (Rig, [PeerId; 2], PeerId, u64) {
    let mut rig = Rig::new(2, 1, LostWorker::FailJob, false);
    let (servers, w0) = ([rig.server(0), rig.server(1)], rig.worker(0));
    rig.ask(w0, 2, Ask::Load { dir: "/m".into() });
    let (op, _) = rig.file_task();
    rig.file_done(op, Ok(FileDone::Manifest(Box::new(manifest.clone()))));
    (rig, servers, w0, op)
}

/// Advances the time to the next deadline, which must be that of a save or load.
fn expires(rig: &mut Rig) {
    let deadline = rig.state.next_deadline();
    assert_eq!(deadline, Some(rig.now + FILE_ORDERS_TIMEOUT));
    rig.now += FILE_ORDERS_TIMEOUT;
    rig.state.tick(rig.now);
    rig.actions.extend(rig.state.take_actions());
    assert_eq!(rig.state.next_deadline(), None, "nothing is left of it");
}

#[test]
fn hung_save_ends_and_names_the_server() {
    let (mut rig, [s0, s1], w0) = with_table();
    rig.ask(w0, 3, save_to("/m"));
    let (op, _) = rig.file_task();
    rig.file_done(op, Ok(FileDone::Begun));
    rig.obey(s0, &CommandReply::Saved(part(0)));
    expires(&mut rig);
    let refusal = rig.refusal(w0, 3);
    assert_eq!(refusal.code, RefusalCode::Timeout);
    assert!(refusal.text.starts_with("server 1 did not"), "{refusal}");
    // The directory is unlocked, and written parts are removed.
    assert_eq!(rig.file_task(), (op, FileTask::Abandon(vec![part(0).file])));
    // The late part belongs to no save; the next one does.
    rig.obey(s1, &CommandReply::Saved(part(1)));
    assert!(rig.is_idle(), "{:?}", rig.actions);
    let (op, _) = save(&mut rig, [s0, s1], w0);
    rig.file_done(op, Ok(FileDone::Committed));
    assert!(matches!(rig.answer(w0, 3), Some(Answer::Saved { .. })));
}

#[test]
fn hung_load_ends_and_leaves_no_table() {
    let (mut rig, servers, w0) = with_table();
    let (_, manifest) = save(&mut rig, servers, w0);
    // While tables are made, and while they are filled.
    for filling in [false, true] {
        let (mut rig, [s0, s1], w0, op) = load(&manifest);
        rig.obey(s0, &CommandReply::Done);
        if filling {
            rig.obey(s1, &CommandReply::Done);
            rig.obey(s0, &CommandReply::Done);
        }
        expires(&mut rig);
        let refusal = rig.refusal(w0, 2);
        assert_eq!(refusal.code, RefusalCode::Timeout, "{filling}");
        assert!(refusal.text.starts_with("server 1 did not"), "{refusal}");
        assert_eq!(rig.file_task(), (op, FileTask::EndLoad), "{filling}");
        // Server 1 answers after all. All shares of both are released.
        for _ in 0..3 {
            rig.obey(s1, &CommandReply::Done);
            rig.obey(s0, &CommandReply::Done);
        }
        rig.ask(w0, 3, Ask::OpenTable { name: "a".into() });
        assert_eq!(rig.refusal(w0, 3).code, RefusalCode::UnknownTable);
        rig.ask(w0, 4, Ask::Load { dir: "/m".into() });
        let (_, task) = rig.file_task();
        assert_eq!(task, FileTask::BeginLoad("/m".into()), "{filling}");
    }
}

#[test]
fn server_lost_in_a_save_is_named() {
    let (mut rig, [s0, s1], w0) = with_table();
    rig.ask(w0, 3, save_to("/m"));
    let (op, _) = rig.file_task();
    rig.file_done(op, Ok(FileDone::Begun));
    rig.obey(s0, &CommandReply::Saved(part(0)));
    rig.close(s1);
    let refusal = rig.refusal(w0, 3);
    assert_eq!(refusal.code, RefusalCode::PeerFailed);
    assert!(refusal.text.contains("server 1"), "{refusal}");
    assert_eq!(rig.file_task(), (op, FileTask::Abandon(vec![part(0).file])));
}

/// Clocks of a model count from its first job on: a job that has loaded one saves the sum.
#[test]
fn clocks_of_a_resumed_model_go_on() {
    let (mut rig, servers, w0) = with_table();
    let (_, mut manifest) = save(&mut rig, servers, w0);
    let clock = |domain, clock| DomainClock {
        domain: DomainId(domain),
        clock,
    };
    manifest.files[1].clocks.push(clock(3, 40));
    let (mut rig, servers, w0, op) = load(&manifest);
    for server in servers.into_iter().chain(servers) {
        rig.obey(server, &CommandReply::Done);
    }
    assert_eq!(rig.file_task(), (op, FileTask::EndLoad));
    let Some(Answer::Loaded { clocks, .. }) = rig.answer(w0, 2) else {
        panic!("{:?}", rig.actions)
    };
    assert_eq!(clocks, [clock(0, 7), clock(3, 40)]);
    // The job ticks 7 more times (its parts say so), in domain 0 alone.
    let (_, again) = save(&mut rig, servers, w0);
    assert_eq!(again.clocks(), [clock(0, 14), clock(3, 40)]);
}

/// A saved table with a list of servers is made where the list says. A cluster without one of the servers refuses the
/// load and makes no table of the model.
#[test]
fn load_follows_listed_servers() {
    let (mut rig, servers, w0) = with_table();
    let (_, mut manifest) = save(&mut rig, servers, w0);
    let table = &mut manifest.tables[0];
    table.spec.partition_servers = Some(vec![ServerId(1); table.spec.partitions as usize]);
    for count in [1, 2] {
        let mut rig = Rig::new(count, 1, LostWorker::FailJob, false);
        let servers: Vec<PeerId> = (0..count).map(|number| rig.server(number)).collect();
        let w0 = rig.worker(0);
        rig.ask(w0, 2, Ask::Load { dir: "/m".into() });
        let (op, _) = rig.file_task();
        rig.file_done(op, Ok(FileDone::Manifest(Box::new(manifest.clone()))));
        if count == 1 {
            let refusal = rig.refusal(w0, 2);
            assert_eq!(refusal.code, RefusalCode::BadSpec);
            assert!(
                refusal.text.contains("\"a\": partition_servers"),
                "{refusal}"
            );
            assert!(rig.orders(servers[0]).is_empty());
            rig.ask(w0, 3, Ask::OpenTable { name: "a".into() });
            assert_eq!(rig.refusal(w0, 3).code, RefusalCode::UnknownTable);
            continue;
        }
        let orders = rig.obey(servers[1], &CommandReply::Done);
        let [Command::CreateTable { table, .. }] = &orders[..] else {
            panic!("{orders:?}")
        };
        assert!(
            table
                .placement
                .0
                .iter()
                .all(|owner| owner.server == ServerId(1))
        );
        assert_eq!(table.spec, manifest.tables[0].spec);
    }
}
