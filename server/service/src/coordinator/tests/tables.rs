//! Tables are created, opened and released at all servers, or at none.

use tidewater_protocol::ids::ServerId;

use super::*;

#[test]
fn a_table_is_made_when_the_last_server_comes_and_told_when_all_have_it() {
    let mut rig = Rig::new(2, 2, LostWorker::FailJob, false);
    let (s0, w0) = (rig.server(0), rig.worker(0));
    rig.ask(w0, 2, Ask::CreateTable(spec("a")));
    assert!(rig.orders(s0).is_empty(), "not all servers are there");
    let s1 = rig.server(1);
    let made = rig.obey(s0, &CommandReply::Done);
    let [Command::CreateTable { namespace, table }] = &made[..] else {
        panic!("{made:?}")
    };
    assert_eq!((namespace.as_str(), table.spec.name.as_str()), ("job", "a"));
    // Every applier of every server has its share.
    let mut owners = table.placement.0.clone();
    owners.sort();
    owners.dedup();
    let expected = [(0, 0), (0, 1), (1, 0), (1, 1)];
    let found: Vec<_> = owners.iter().map(|o| (o.server.0, o.applier.0)).collect();
    assert_eq!(
        (found.as_slice(), ApplierId(1)),
        (&expected[..], owners[1].applier)
    );
    assert_eq!(rig.answer(w0, 2), None, "server 1 has not answered");
    // A second creator waits for the same table, and does not create another.
    let w1 = rig.worker(1);
    rig.ask(w1, 2, Ask::CreateTable(spec("a")));
    rig.obey(s1, &CommandReply::Done);
    let (Some(Answer::Table(a)), Some(Answer::Table(b))) = (rig.answer(w0, 2), rig.answer(w1, 2))
    else {
        panic!("{:?}", rig.actions)
    };
    assert_eq!(a, b);
    rig.ask(w1, 3, Ask::OpenTable { name: "a".into() });
    assert_eq!(rig.answer(w1, 3), Some(Answer::Table(a)));
    assert!(rig.orders(s0).is_empty() && rig.orders(s1).is_empty());
}

/// A definition without a number of partitions gets one when the table is made. It fits a table with any
/// number; a definition with another number is refused.
#[test]
fn open_number_of_partitions_is_chosen_once() {
    let mut rig = Rig::new(1, 2, LostWorker::FailJob, false);
    let (s0, w0, w1) = (rig.server(0), rig.worker(0), rig.worker(1));
    let with = |partitions| TableSpec {
        partitions,
        ..spec("a")
    };
    rig.ask(w0, 2, Ask::CreateTable(with(0)));
    rig.obey(s0, &CommandReply::Done);
    let Some(Answer::Table(made)) = rig.answer(w0, 2) else {
        panic!("{:?}", rig.actions)
    };
    assert_eq!(made.spec.partitions, 64);
    assert_eq!(made.placement.0.len(), 64);
    for (number, same) in [(3, 0), (4, 64)] {
        rig.ask(w1, number, Ask::CreateTable(with(same)));
        assert_eq!(rig.answer(w1, number), Some(Answer::Table(made.clone())));
    }
    rig.ask(w1, 5, Ask::CreateTable(with(8)));
    let text = rig.refusal(w1, 5).text;
    assert!(text.contains("partitions is 64, asked for 8"), "{text}");
}

/// Before the servers have joined, a definition with a number fits one that leaves it open, in either order.
#[test]
fn number_of_partitions_is_given_before_it_is_chosen() {
    for numbers in [[0, 8], [8, 0]] {
        let mut rig = Rig::new(1, 2, LostWorker::FailJob, false);
        let (w0, w1) = (rig.worker(0), rig.worker(1));
        for (worker, partitions) in [w0, w1].into_iter().zip(numbers) {
            let spec = TableSpec {
                partitions,
                ..spec("a")
            };
            rig.ask(worker, 2, Ask::CreateTable(spec));
            assert_eq!(rig.answer(worker, 2), None, "no server has joined");
        }
        let differs = TableSpec {
            partitions: 9,
            ..spec("a")
        };
        rig.ask(w1, 3, Ask::CreateTable(differs));
        let text = rig.refusal(w1, 3).text;
        assert!(text.contains("partitions is 8, asked for 9"), "{text}");
        let s0 = rig.server(0);
        rig.obey(s0, &CommandReply::Done);
        for worker in [w0, w1] {
            let Some(Answer::Table(made)) = rig.answer(worker, 2) else {
                panic!("{:?}", rig.actions)
            };
            assert_eq!((made.spec.partitions, made.placement.0.len()), (8, 8));
        }
    }
}

#[test]
fn another_definition_is_refused_with_the_difference() {
    let mut rig = Rig::new(1, 1, LostWorker::FailJob, false);
    let (s0, w0) = (rig.server(0), rig.worker(0));
    rig.ask(w0, 2, Ask::CreateTable(spec("a")));
    let mut other = spec("a");
    (other.shape, other.seed) = (Shape::Sparse { dim: 5 }, 2);
    other.redo = true;
    for stage in ["being made", "ready"] {
        rig.ask(w0, 3, Ask::CreateTable(other.clone()));
        let refusal = rig.refusal(w0, 3);
        assert_eq!(refusal.code, RefusalCode::TableDiffers, "{stage}");
        let text = refusal.text;
        assert!(
            text.contains("dim: 4") && text.contains("seed is 1, asked for 2"),
            "{text}"
        );
        assert!(text.contains("redo is false, asked for true"), "{text}");
        assert!(!text.contains("optimizer"), "{text}");
        rig.obey(s0, &CommandReply::Done);
    }
}

#[test]
fn what_one_server_cannot_make_is_taken_back_from_the_others() {
    let mut rig = Rig::new(2, 1, LostWorker::FailJob, false);
    let (s0, s1, w0) = (rig.server(0), rig.server(1), rig.worker(0));
    rig.ask(w0, 2, Ask::CreateTable(spec("a")));
    rig.obey(s0, &CommandReply::Done);
    let full = Refusal::new(RefusalCode::OutOfMemory, [9, 0, 0, 0]).with_text("full");
    rig.obey(s1, &CommandReply::Refused(full));
    let refusal = rig.refusal(w0, 2);
    assert_eq!(
        (refusal.code, refusal.numbers[0]),
        (RefusalCode::OutOfMemory, 9)
    );
    assert!(refusal.text.contains("server 1: full"), "{}", refusal.text);
    let undone = rig.obey(s0, &CommandReply::Done);
    assert!(
        matches!(undone[..], [Command::ReleaseTable { .. }]),
        "{undone:?}"
    );
    assert!(rig.orders(s1).is_empty());
    // The name is free again; its number is not used twice.
    rig.ask(w0, 3, Ask::CreateTable(spec("a")));
    let again = rig.obey(s0, &CommandReply::Done);
    rig.obey(s1, &CommandReply::Done);
    let [Command::CreateTable { table, .. }] = &again[..] else {
        panic!("{again:?}")
    };
    assert_eq!(table.id, TableId(2));
    assert!(matches!(rig.answer(w0, 3), Some(Answer::Table(_))));
}

#[test]
fn a_release_is_done_when_all_servers_say_so() {
    let mut rig = Rig::new(2, 1, LostWorker::FailJob, false);
    let (s0, s1, w0) = (rig.server(0), rig.server(1), rig.worker(0));
    rig.ask(w0, 2, Ask::CreateTable(spec("a")));
    rig.obey(s0, &CommandReply::Done);
    rig.obey(s1, &CommandReply::Done);
    let id = TableId(1);
    rig.ask(w0, 3, Ask::ReleaseTable { id });
    rig.obey(s0, &CommandReply::Done);
    assert_eq!(rig.answer(w0, 3), None);
    rig.obey(s1, &CommandReply::Done);
    assert_eq!(rig.answer(w0, 3), Some(Answer::Done));
    rig.ask(w0, 4, Ask::OpenTable { name: "a".into() });
    assert_eq!(rig.refusal(w0, 4).code, RefusalCode::UnknownTable);
    rig.ask(w0, 5, Ask::ReleaseTable { id });
    assert_eq!(rig.refusal(w0, 5).code, RefusalCode::UnknownTable);
}

fn on_servers(name: &str, servers: &[u32]) -> TableSpec {
    TableSpec {
        partitions: 0,
        partition_servers: Some(servers.iter().copied().map(ServerId).collect()),
        ..spec(name)
    }
}

/// The partitions of a table are on the servers of its list; another list is another definition.
#[test]
fn listed_servers_own_their_partitions() {
    let mut rig = Rig::new(2, 1, LostWorker::FailJob, false);
    let (s0, s1, w0) = (rig.server(0), rig.server(1), rig.worker(0));
    let listed = on_servers("a", &[1, 1, 0, 1]);
    rig.ask(w0, 2, Ask::CreateTable(listed.clone()));
    rig.obey(s0, &CommandReply::Done);
    rig.obey(s1, &CommandReply::Done);
    let Some(Answer::Table(made)) = rig.answer(w0, 2) else {
        panic!("{:?}", rig.actions)
    };
    let owners: Vec<_> = made
        .placement
        .0
        .iter()
        .map(|o| (o.server.0, o.applier.0))
        .collect();
    assert_eq!(owners, [(1, 0), (1, 1), (0, 0), (1, 0)]);
    assert_eq!(made.spec.partitions, 4);
    rig.ask(w0, 3, Ask::CreateTable(listed));
    assert_eq!(rig.answer(w0, 3), Some(Answer::Table(made)));
    let without = TableSpec {
        partitions: 4,
        ..spec("a")
    };
    for (other, words) in [
        (
            on_servers("a", &[1, 1, 1, 1]),
            "partition 2 on server 0, asked for server 1",
        ),
        (on_servers("a", &[1, 1, 0]), "partitions is 4, asked for 3"),
        (on_servers("a", &[1, 1, 0]), "has 4 entries, asked for 3"),
        (without, "partition_servers is a list, asked for None"),
    ] {
        rig.ask(w0, 4, Ask::CreateTable(other));
        let refusal = rig.refusal(w0, 4);
        assert_eq!(refusal.code, RefusalCode::TableDiffers);
        assert!(refusal.text.contains(words), "{refusal}");
    }
}

/// A list with a server that the cluster does not have is refused before any server gets an order, also before the
/// servers have joined. Two lists of other lengths are two definitions.
#[test]
fn absent_servers_are_refused() {
    let mut rig = Rig::new(2, 1, LostWorker::FailJob, false);
    let w0 = rig.worker(0);
    let wrong = on_servers("a", &[1, 0, 2]);
    rig.ask(w0, 2, Ask::CreateTable(wrong.clone()));
    assert_eq!(rig.refusal(w0, 2).code, RefusalCode::BadSpec);
    rig.ask(w0, 2, Ask::CreateTable(on_servers("b", &[1, 0])));
    rig.ask(w0, 5, Ask::CreateTable(on_servers("b", &[1, 0, 1])));
    let text = rig.refusal(w0, 5).text;
    assert!(text.contains("has 2 entries, asked for 3"), "{text}");
    let (s0, s1) = (rig.server(0), rig.server(1));
    rig.ask(w0, 3, Ask::CreateTable(wrong));
    let refusal = rig.refusal(w0, 3);
    assert!(
        refusal.text.contains("partition 2 to server 2"),
        "{refusal}"
    );
    for server in [s0, s1] {
        let orders = rig.obey(server, &CommandReply::Done);
        let [Command::CreateTable { table, .. }] = &orders[..] else {
            panic!("{orders:?}")
        };
        assert_eq!(table.spec.name, "b");
    }
    assert!(matches!(rig.answer(w0, 2), Some(Answer::Table(_))));
    rig.ask(w0, 4, Ask::CreateTable(spec("a")));
    rig.obey(s0, &CommandReply::Done);
    rig.obey(s1, &CommandReply::Done);
    assert!(matches!(rig.answer(w0, 4), Some(Answer::Table(_))));
}
