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
    rig.ask(w0, 3, load("f"));
    rig.ask(w0, 4, load("g"));
    let refused = Refusal::new(RefusalCode::BadFunction, [0; 4]).with_text("no");
    // Both servers get both modules in one order; each load has the answers of its own orders.
    for (server, answers) in [
        (s1, [CommandReply::Done, CommandReply::Refused(refused)]),
        (s0, [CommandReply::Done, CommandReply::Done]),
    ] {
        assert_eq!(rig.answer(w0, 3), None);
        assert_eq!(rig.answer(w0, 4), None);
        let orders = rig.orders(server);
        let names = orders.iter().map(|(_, order)| match order {
            Command::LoadFunction {
                namespace, name, ..
            } => (namespace.as_str(), name.as_str()),
            other => panic!("{other:?}"),
        });
        assert_eq!(names.collect::<Vec<_>>(), [("job", "f"), ("job", "g")]);
        for ((id, _), answer) in orders.iter().zip(answers) {
            rig.state.answered(rig.now, server, *id, answer);
        }
        rig.actions.extend(rig.state.take_actions());
    }
    assert_eq!(rig.answer(w0, 3), Some(Answer::Done));
    let refusal = rig.refusal(w0, 4);
    assert_eq!(refusal.code, RefusalCode::BadFunction);
    assert!(refusal.text.contains("server 1: no"), "{}", refusal.text);
}
