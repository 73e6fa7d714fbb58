//! Functions that clients load.

use tidewater_protocol::wire::control::ModuleBytes;

use super::*;

fn load(name: &str) -> Ask {
    Ask::LoadFunction {
        name: name.into(),
        module: ModuleBytes(vec![1, 2]),
    }
}

#[test]
fn load_is_done_when_all_servers_have_it() {
    let mut rig = Rig::new(2, 1, LostWorker::FailJob, false);
    let (s0, w0) = (rig.server(0), rig.worker(0));
    rig.ask(w0, 2, load("early"));
    assert_eq!(rig.refusal(w0, 2).code, RefusalCode::BadRequest);
    let s1 = rig.server(1);
    for (asked, name) in [(3, "f"), (4, "g"), (5, "f"), (6, "h")] {
        rig.ask(w0, asked, load(name));
    }
    let refused = Refusal::new(RefusalCode::BadFunction, [0; 4]).with_text("no");
    // One load at a time; the answer of each is that of its own orders. Equal ones are one.
    for (name, answers) in [
        ("f", [CommandReply::Done, CommandReply::Done]),
        ("g", [CommandReply::Refused(refused), CommandReply::Done]),
    ] {
        for (server, answer) in [s1, s0].into_iter().zip(answers) {
            let waits = if name == "f" { 3 } else { 4 };
            assert_eq!(rig.answer(w0, waits), None);
            let orders = rig.orders(server);
            let [
                (
                    id,
                    Command::LoadFunction {
                        namespace,
                        name: ordered,
                        ..
                    },
                ),
            ] = &orders[..]
            else {
                panic!("{orders:?}");
            };
            assert_eq!((namespace.as_str(), ordered.as_str()), ("job", name));
            rig.state.answered(rig.now, server, *id, answer);
            rig.actions.extend(rig.state.take_actions());
        }
    }
    assert_eq!(rig.answer(w0, 3), Some(Answer::Done));
    assert_eq!(rig.answer(w0, 5), Some(Answer::Done));
    let refusal = rig.refusal(w0, 4);
    assert_eq!(refusal.code, RefusalCode::BadFunction);
    assert!(refusal.text.contains("server 1: no"), "{}", refusal.text);
    // The end of the job answers the load that is under way.
    rig.state.stop(rig.now, "enough");
    rig.actions.extend(rig.state.take_actions());
    assert_eq!(rig.refusal(w0, 6).code, RefusalCode::ShuttingDown);
}

/// A server ends before it has answered: the load is refused, and the next one waits for the successor, which gets it
/// as the others do.
#[test]
fn load_is_refused_when_its_server_ends() {
    let mut rig = Rig::new(2, 1, LostWorker::FailJob, false);
    let (s0, s1) = (rig.held(0, 10, 100), rig.held(1, 11, 101));
    let w0 = rig.worker(0);
    rig.ask(w0, 2, Ask::CreateTable(successors::warm("a")));
    for server in [s0, s1] {
        rig.obey(server, &CommandReply::Done);
    }
    rig.ask(w0, 3, load("f"));
    rig.ask(w0, 4, load("g"));
    rig.close(s1);
    rig.obey(s0, &CommandReply::Done);
    let refusal = rig.refusal(w0, 3);
    assert_eq!(refusal.code, RefusalCode::PeerFailed);
    assert!(refusal.text.contains("server 1"), "{refusal}");
    assert!(rig.orders(s0).is_empty(), "server 1 would not have it");
    let s1 = rig.keeps(1, 12, 102, Some(1));
    for server in [s1, s0] {
        assert_eq!(rig.answer(w0, 4), None);
        let orders = rig.obey(server, &CommandReply::Done);
        let loads = |order: &Command| matches!(order, Command::LoadFunction { .. });
        assert!(orders.iter().any(loads), "{orders:?}");
    }
    assert_eq!(rig.answer(w0, 4), Some(Answer::Done));
}
