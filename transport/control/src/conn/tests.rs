use std::cell::Cell;
use std::thread;

use super::*;
use tidewater_protocol::ids::{ClusterId, Incarnation, TableId};
use tidewater_protocol::wire::control::{CoordinatorAnswer, CoordinatorRequest};
use tidewater_protocol::wire::handshake::{JobToken, Namespaces, ServerPolicy};
use tidewater_protocol::wire::hello::{Features, Hello, Ids, Purpose, Role, Roles};
use tidewater_protocol::wire::peer::PeerEvent;
use tidewater_protocol::wire::refusal::RefusalCode;

const IDS: Ids = Ids {
    cluster: ClusterId(0xc1),
    epoch: 5,
    incarnation: Incarnation(0x1c),
};

fn policy() -> ServerPolicy {
    ServerPolicy {
        token: JobToken::new([0x42; 32]),
        features: Features {
            offered: 0b11,
            required: 0b01,
        },
        ids: IDS,
        role: Role::Server,
        number: 1,
        namespaces: Namespaces::Only(vec!["job".into()]),
        control_roles: Roles::of(&[Role::Worker, Role::Coordinator]),
        lane_roles: Roles::of(&[Role::Worker]),
        tells_ids: false,
    }
}

fn control_hello() -> Hello {
    Hello {
        features: Features {
            offered: 0b01,
            required: 0,
        },
        ids: IDS,
        namespace: "job".into(),
        role: Role::Worker,
        rank: 2,
        purpose: Purpose::Control,
        random: [0xaa; 32],
    }
}

/// Serves one connection with a `ControlPeer`, `answer` by `answer`, until the client closes.
fn serve(
    mut stream: UnixStream,
    policy: &ServerPolicy,
    mut answer: impl FnMut(u64, CoordinatorRequest, &mut ControlPeer),
) {
    let mut peer = ControlPeer::accepted([7; 32]);
    let mut bytes = [0; 1024];
    loop {
        let Ok(count @ 1..) = stream.read(&mut bytes) else {
            return;
        };
        let mut fed = 0;
        while fed < count {
            fed += peer.feed(&bytes[fed..count]);
            loop {
                let request = match peer.next(policy, |_| Ok(())) {
                    Ok(None) => break,
                    Ok(Some(PeerEvent::Admitted(_))) => continue,
                    Ok(Some(PeerEvent::Message(frame))) => control::decode(&frame).unwrap(),
                    Err(_) => {
                        stream.write_all(peer.outgoing()).unwrap();
                        return;
                    }
                };
                answer(request.0, request.1, &mut peer);
            }
            stream.write_all(peer.outgoing()).unwrap();
            peer.sent(peer.outgoing().len());
        }
    }
}

/// Time enough for a busy machine; no test measures it.
fn long() -> Duration {
    Duration::from_secs(60)
}

fn with_server<T>(
    answer: impl FnMut(u64, CoordinatorRequest, &mut ControlPeer) + Send,
    client: impl FnOnce(UnixStream) -> T,
) -> T {
    let (ours, theirs) = UnixStream::pair().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| serve(theirs, &policy(), answer));
        client(ours)
    })
}

fn open(stream: UnixStream) -> ControlConn<UnixStream> {
    ControlConn::open(stream, &policy().token, control_hello(), long).unwrap()
}

fn echo(id: u64, request: CoordinatorRequest, peer: &mut ControlPeer) {
    let answer = match request {
        CoordinatorRequest::Members => CoordinatorAnswer::Members(Default::default()),
        CoordinatorRequest::ReleaseTable { id } => {
            let numbers = [u64::from(id.0), 0, 0, 0];
            CoordinatorAnswer::Refused(Refusal::new(RefusalCode::UnknownTable, numbers))
        }
        _ => CoordinatorAnswer::Done,
    };
    peer.queue(id, &answer).unwrap();
}

#[test]
fn calls_are_answered_and_refusals_leave_the_connection_good() {
    with_server(echo, |stream| {
        let mut conn = open(stream);
        assert_eq!(conn.welcome().number, 1);
        for _ in 0..3 {
            let answer = conn.call(&CoordinatorRequest::Members, long).unwrap();
            assert_eq!(answer, CoordinatorAnswer::Members(Default::default()));
            let release = CoordinatorRequest::ReleaseTable { id: TableId(9) };
            let Err(ConnError::Refused(refusal)) = conn.call(&release, long) else {
                panic!("not refused")
            };
            assert_eq!(
                (refusal.code, refusal.numbers[0]),
                (RefusalCode::UnknownTable, 9)
            );
        }
        // A message that must not be sent is not, and harms nothing.
        let bad = CoordinatorRequest::OpenTable {
            name: String::new(),
        };
        assert!(matches!(conn.call(&bad, long), Err(ConnError::Wire(_))));
        conn.call(&CoordinatorRequest::Finished, long).unwrap();
    });
}

#[test]
fn notices_between_are_kept_and_bounded() {
    let told = NOTICES_MAX as u32 + 10;
    let server = move |id, request, peer: &mut ControlPeer| {
        for table in 0..told {
            peer.queue(0, &Notice::TableReleased { id: TableId(table) })
                .unwrap();
        }
        echo(id, request, peer);
    };
    with_server(server, |stream| {
        let mut conn = open(stream);
        conn.call(&CoordinatorRequest::Finished, long).unwrap();
        for table in 10..told {
            assert_eq!(
                conn.take_notice(),
                Some(Notice::TableReleased { id: TableId(table) })
            );
        }
        assert_eq!(conn.take_notice(), None);
    });
}

#[test]
fn a_late_answer_is_dropped_and_the_next_call_gets_its_own() {
    let mut held = None;
    let server = move |id, request, peer: &mut ControlPeer| match request {
        CoordinatorRequest::Members => held = Some(id),
        other => {
            if let Some(late) = held.take() {
                echo(late, CoordinatorRequest::Members, peer);
            }
            echo(id, other, peer);
        }
    };
    with_server(server, |stream| {
        let mut conn = open(stream);
        // The time is over once the request is written and one read was tried.
        let looks = Cell::new(0);
        let left = || match looks.replace(looks.get() + 1) {
            0 | 1 => Duration::from_millis(1),
            _ => Duration::ZERO,
        };
        let timed_out = conn.call(&CoordinatorRequest::Members, left);
        assert!(
            matches!(timed_out, Err(ConnError::TimedOut { .. })),
            "{timed_out:?}"
        );
        let answer = conn.call(&CoordinatorRequest::Finished, long).unwrap();
        assert_eq!(answer, CoordinatorAnswer::Done);
        let none = conn.wait_notice(|| Duration::ZERO);
        assert!(matches!(none, Err(ConnError::TimedOut { .. })));
        conn.call(&CoordinatorRequest::Finished, long).unwrap();
    });
}

/// The answer of a barrier, which comes last, is not lost to the call and the request in between.
#[test]
fn started_requests_keep_their_answers() {
    let mut held = Vec::new();
    let server = move |id, request, peer: &mut ControlPeer| match request {
        CoordinatorRequest::Finished => {
            for late in held.drain(..) {
                echo(late, CoordinatorRequest::Members, peer);
            }
            echo(id, CoordinatorRequest::Finished, peer);
        }
        CoordinatorRequest::Members => held.push(id),
        other => echo(id, other, peer),
    };
    with_server(server, |stream| {
        let mut conn = open(stream);
        let members = CoordinatorRequest::Members;
        let first = conn.start(&members, long).unwrap();
        let forgotten = conn.start(&members, long).unwrap();
        let second = conn.start(&members, long).unwrap();
        conn.forget(forgotten);
        let none = conn.poll::<CoordinatorRequest>(first, || Duration::ZERO);
        assert_eq!(none.unwrap(), None);
        let id = TableId(1);
        let refused = conn.call(&CoordinatorRequest::ReleaseTable { id }, long);
        assert!(matches!(refused, Err(ConnError::Refused(_))), "{refused:?}");
        conn.call(&CoordinatorRequest::Finished, long).unwrap();
        for id in [second, first] {
            let answer = conn.poll::<CoordinatorRequest>(id, || Duration::ZERO);
            let expected = CoordinatorAnswer::Members(Default::default());
            assert_eq!(answer.unwrap(), Some(expected));
        }
        conn.call(&CoordinatorRequest::Finished, long).unwrap();
        let started = (0..).map(|_| conn.start(&members, long));
        let started = started.take_while(|started| started.is_ok()).count();
        assert_eq!(started, REQUESTS_STARTED_MAX);
        assert!(matches!(
            conn.start(&members, long),
            Err(ConnError::TooMany)
        ));
        conn.call(&CoordinatorRequest::Finished, long).unwrap();
    });
}

#[test]
fn an_answer_to_nothing_breaks_the_connection() {
    let server = |id: u64, request, peer: &mut ControlPeer| echo(id + 1, request, peer);
    with_server(server, |stream| {
        let mut conn = open(stream);
        let answer = conn.call(&CoordinatorRequest::Members, long);
        assert!(matches!(answer, Err(ConnError::Wire(_))), "{answer:?}");
        let answer = conn.call(&CoordinatorRequest::Members, long);
        assert!(matches!(answer, Err(ConnError::Broken)), "{answer:?}");
    });
}

#[test]
fn a_refused_handshake_and_a_closed_peer_are_told_apart() {
    use tidewater_protocol::wire::handshake::JobToken;
    with_server(echo, |stream| {
        let wrong = JobToken::new([0; 32]);
        let error = ControlConn::open(stream, &wrong, control_hello(), long).unwrap_err();
        assert!(
            matches!(error, ConnError::Handshake(HandshakeError::TokenRefused)),
            "{error:?}"
        );
    });
    let (ours, theirs) = UnixStream::pair().unwrap();
    drop(theirs);
    let error = ControlConn::open(ours, &policy().token, control_hello(), long).unwrap_err();
    assert!(matches!(error, ConnError::Closed { .. }), "{error:?}");
}

#[test]
fn a_silent_peer_costs_no_more_than_the_time_given() {
    let (ours, _theirs) = UnixStream::pair().unwrap();
    let looks = Cell::new(0);
    let left = || match looks.replace(looks.get() + 1) {
        0..3 => Duration::from_millis(1),
        _ => Duration::ZERO,
    };
    let error = ControlConn::open(ours, &policy().token, control_hello(), left).unwrap_err();
    assert!(matches!(error, ConnError::TimedOut { .. }), "{error:?}");
}

#[test]
fn what_follows_the_welcome_at_once_is_left_to_whose_it_is() {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut peer = ControlPeer::accepted([7; 32]);
            let mut bytes = [0; 1024];
            while !peer.is_authenticated() {
                let count = theirs.read(&mut bytes).unwrap();
                assert_eq!(peer.feed(&bytes[..count]), count);
                while peer.next(&policy(), |_| Ok(())).unwrap().is_some() {}
                let mut out = peer.outgoing().to_vec();
                if peer.is_authenticated() {
                    out.extend_from_slice(b"of the lane");
                }
                theirs.write_all(&out).unwrap();
                peer.sent(peer.outgoing().len());
            }
        });
        let (mut stream, rest) = open(ours).into_parts();
        assert!(rest.is_empty());
        let mut after = [0; 11];
        stream.read_exact(&mut after).unwrap();
        assert_eq!(&after, b"of the lane");
    });
}
