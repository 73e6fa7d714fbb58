use super::*;
use crate::ids::{ApplierId, ClusterId, Incarnation, SessionId};
use crate::wire::frame::{Decoder, HEADER_BYTES};

const IDS: Ids = Ids {
    cluster: ClusterId(0xc1),
    epoch: 5,
    incarnation: Incarnation(0x1c),
};

pub(crate) fn policy() -> ServerPolicy {
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

pub(crate) fn control_hello() -> Hello {
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

fn lane_hello() -> Hello {
    let purpose = Purpose::Lane {
        session: SessionId(8),
        applier: ApplierId(0),
        nonce: 9,
    };
    Hello {
        purpose,
        ..control_hello()
    }
}

/// Changes the n-th frame in transit.
type Tamper<'a> = dyn FnMut(usize, &mut Vec<u8>) + 'a;

struct Outcome {
    server: Result<Option<Hello>, HandshakeError>,
    client: Result<Option<Welcome>, HandshakeError>,
    /// Every frame as it was sent: hello, challenge, proof, welcome or refused.
    frames: Vec<Vec<u8>>,
}

/// Carries one frame from `from` to a state machine; bytes that cannot be decoded end the connection.
fn carry<T>(
    frames: &mut Vec<Vec<u8>>,
    mut sent: Vec<u8>,
    tamper: &mut Tamper<'_>,
    take: impl FnOnce(Frame<'_>) -> Result<Option<T>, HandshakeError>,
) -> Result<Option<T>, HandshakeError> {
    let index = frames.len();
    frames.push(sent.clone());
    tamper(index, &mut sent);
    let mut decoder = Decoder::unauthenticated();
    assert_eq!(decoder.push(&sent), sent.len());
    match decoder.next_frame()? {
        Some(frame) => take(frame),
        None => Ok(None),
    }
}

/// Runs a handshake until it ends or no more frames come.
fn shake(
    hello: Hello,
    client_token: &JobToken,
    policy: &ServerPolicy,
    tamper: &mut Tamper<'_>,
) -> Outcome {
    let mut frames = Vec::new();
    let mut to_server = Vec::new();
    let mut client = ClientHandshake::start(client_token, hello, &mut to_server).unwrap();
    let mut server = ServerHandshake::new([0xbb; 32]);
    let mut outcome = (Ok(None), Ok(None));
    while !to_server.is_empty() {
        let mut to_client = Vec::new();
        let sent = core::mem::take(&mut to_server);
        outcome.0 = carry(&mut frames, sent, tamper, |frame| {
            server.step(policy, frame, &mut to_client, |_| Ok(()))
        });
        if to_client.is_empty() {
            break;
        }
        outcome.1 = carry(&mut frames, to_client, tamper, |frame| {
            client.step(frame, &mut to_server)
        });
    }
    Outcome {
        server: outcome.0,
        client: outcome.1,
        frames,
    }
}

fn shake_plain(hello: Hello, policy: &ServerPolicy) -> Outcome {
    shake(hello, &policy.token.clone(), policy, &mut |_, _| {})
}

/// The frame with its check made right again.
fn refit(frame: &mut Vec<u8>) {
    let kind = u16::from_le_bytes([frame[8], frame[9]]);
    let body = frame.split_off(HEADER_BYTES);
    frame.clear();
    frame::append(frame, kind, &body).unwrap();
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[test]
fn both_ends_learn_who_the_other_is() {
    for hello in [control_hello(), lane_hello()] {
        let outcome = shake_plain(hello.clone(), &policy());
        assert_eq!(outcome.server, Ok(Some(hello)));
        let welcome = outcome.client.unwrap().unwrap();
        assert_eq!(
            (welcome.ids, welcome.role, welcome.number),
            (IDS, Role::Server, 1)
        );
        assert_eq!(welcome.features, policy().features);
        assert_eq!(outcome.frames.len(), 4);
    }
}

#[test]
fn the_first_bytes_and_both_proofs_are_golden() {
    let frames = shake_plain(control_hello(), &policy()).frames;
    // The prefix that no version changes: header, version, zero.
    assert_eq!(hex(&frames[0][..12]), "54574331b000000001000000");
    assert_eq!(hex(&frames[0][16..24]), "0100000000000000");
    assert_eq!(hex(&frames[1][..12]), "545743312800000002000000");
    assert_eq!(hex(&frames[1][16..24]), "0100000000000000");
    // Computed independently, with Python's hmac over the documented layouts.
    assert_eq!(
        hex(&frames[2][16..]),
        "3b5197a4061398482811bb6bd82ad26374d75a4171b4621e84a1e9355b90843b"
    );
    assert_eq!(
        hex(&frames[3][64..]),
        "0f55e8397a5503f992d6ff959bd982c3a5b03e1b831b93179ed25c086708e7ea"
    );
}

#[test]
fn a_wrong_token_is_refused_by_the_server() {
    let outcome = shake(
        control_hello(),
        &JobToken::new([1; 32]),
        &policy(),
        &mut |_, _| {},
    );
    assert_eq!(outcome.server, Err(HandshakeError::PeerUnauthenticated));
    assert_eq!(outcome.client, Err(HandshakeError::TokenRefused));
}

/// Hellos with one claim that does not fit [`policy`], and the refusal with its numbers.
fn wrong_claims() -> Vec<(Hello, RefusalCode, [u64; 2])> {
    let but = |mut hello: Hello, change: fn(&mut Hello)| {
        change(&mut hello);
        hello
    };
    let control = |change| but(control_hello(), change);
    let lane = |change| but(lane_hello(), change);
    use RefusalCode as C;
    vec![
        (control(|h| h.ids.cluster.0 = 7), C::WrongCluster, [7, 0xc1]),
        (control(|h| h.ids.cluster.0 = 0), C::WrongCluster, [0, 0xc1]),
        (control(|h| h.ids.epoch = 4), C::WrongEpoch, [4, 5]),
        (
            control(|h| h.ids.incarnation.0 = 1),
            C::WrongIncarnation,
            [1, 0x1c],
        ),
        (
            lane(|h| h.ids.incarnation.0 = 1),
            C::WrongIncarnation,
            [1, 0x1c],
        ),
        (
            control(|h| h.namespace = "other".into()),
            C::WrongNamespace,
            [0, 0],
        ),
        (
            control(|h| (h.namespace, h.role) = ("other".into(), Role::Observer)),
            C::WrongNamespace,
            [0, 0],
        ),
        (control(|h| h.role = Role::Admin), C::RoleNotAllowed, [4, 0]),
        (
            lane(|h| h.role = Role::Coordinator),
            C::RoleNotAllowed,
            [3, 0],
        ),
        (
            control(|h| h.features.required = 0b100),
            C::Features,
            [0b100, 0],
        ),
        (control(|h| h.features.offered = 0), C::Features, [0b01, 0]),
    ]
}

#[test]
fn each_wrong_claim_has_its_refusal_and_both_ends_name_it() {
    for (hello, code, numbers) in wrong_claims() {
        let (role, rank) = (hello.role, hello.rank);
        let outcome = shake_plain(hello, &policy());
        let mut refusal = Refusal::new(code, [numbers[0], numbers[1], 0, 0]);
        if code == RefusalCode::WrongNamespace {
            refusal.text = "other".into();
        }
        assert_eq!(
            outcome.server,
            Err(HandshakeError::Rejected {
                refusal: refusal.clone(),
                role,
                rank
            })
        );
        assert_eq!(outcome.client, Err(HandshakeError::RefusedByPeer(refusal)));
    }
}

#[test]
fn a_wrong_claim_without_the_token_learns_nothing() {
    let hello = Hello {
        namespace: "other".into(),
        ids: Ids::default(),
        ..control_hello()
    };
    let outcome = shake(hello, &JobToken::new([1; 32]), &policy(), &mut |_, _| {});
    assert_eq!(outcome.client, Err(HandshakeError::TokenRefused));
    // Neither challenge nor refusal reveals an id, a feature, a number or a text.
    assert_eq!(outcome.frames[1][24..], [0xbb; 32]);
    assert_eq!(outcome.frames[3][20..], {
        let mut body = vec![1, 0, 0, 0];
        body.resize(36, 0);
        body
    });
}

#[test]
fn only_who_tells_ids_is_asked_for_them() {
    let asks = Hello {
        ids: Ids::default(),
        ..control_hello()
    };
    let tells = ServerPolicy {
        tells_ids: true,
        ..policy()
    };
    assert_eq!(
        shake_plain(asks.clone(), &tells)
            .client
            .unwrap()
            .unwrap()
            .ids,
        IDS
    );
    assert!(shake_plain(asks, &policy()).server.is_err());
    let lane = Hello {
        ids: Ids::default(),
        ..lane_hello()
    };
    assert!(shake_plain(lane, &tells).server.is_err());
}

#[test]
fn the_last_word_is_the_callers() {
    let policy = policy();
    let mut bytes = Vec::new();
    let mut client = ClientHandshake::start(&policy.token, lane_hello(), &mut bytes).unwrap();
    let mut server = ServerHandshake::new([1; 32]);
    let no = Refusal::new(RefusalCode::UnknownSession, [8, 0, 0, 0]);
    let mut decoder = Decoder::unauthenticated();
    for last in [false, true] {
        assert_eq!(decoder.push(&bytes), bytes.len());
        let mut answer = Vec::new();
        let frame = decoder.next_frame().unwrap().unwrap();
        let stepped = server.step(&policy, frame, &mut answer, |_| Err(no.clone()));
        assert_eq!(stepped.is_err(), last);
        bytes.clear();
        let mut back = Decoder::unauthenticated();
        assert_eq!(back.push(&answer), answer.len());
        let stepped = client.step(back.next_frame().unwrap().unwrap(), &mut bytes);
        if last {
            assert_eq!(stepped, Err(HandshakeError::RefusedByPeer(no.clone())));
        }
    }
}

#[test]
fn another_version_is_named_at_both_ends() {
    // A client of version 9 with a longer, otherwise unknown hello.
    let mut future = Vec::new();
    frame::append(
        &mut future,
        kind::HELLO,
        &[&[9, 0, 0, 0], &[0xee; 700][..]].concat(),
    )
    .unwrap();
    let mut decoder = Decoder::unauthenticated();
    assert_eq!(decoder.push(&future), future.len());
    let mut answer = Vec::new();
    let stepped = ServerHandshake::new([1; 32]).step(
        &policy(),
        decoder.next_frame().unwrap().unwrap(),
        &mut answer,
        |_| Ok(()),
    );
    assert_eq!(stepped, Err(HandshakeError::Version { ours: 1, theirs: 9 }));
    // Header, refusing version 1, code 2, no text, numbers 1 and 9.
    assert_eq!(hex(&answer[16..24]), "0100000002000000");
    assert_eq!(hex(&answer[24..40]), "01000000000000000900000000000000");

    // A server of version 9 refuses this end, or challenges it in its way.
    for kind in [kind::REFUSED, kind::CHALLENGE] {
        let outcome = shake(
            control_hello(),
            &policy().token,
            &policy(),
            &mut |index, frame| {
                if index == 1 {
                    frame[8..10].copy_from_slice(&kind.to_le_bytes());
                    frame[16..24].copy_from_slice(&[9, 0, 0, 0, 2, 0, 0, 0]);
                    refit(frame);
                }
            },
        );
        assert_eq!(
            outcome.client,
            Err(HandshakeError::Version { ours: 1, theirs: 9 }),
            "{kind}"
        );
    }
}

#[test]
fn every_changed_byte_fails_with_a_right_check_too() {
    for refitted in [false, true] {
        let whole = shake_plain(lane_hello(), &policy()).frames;
        for (index, frame) in whole.iter().enumerate() {
            for at in 0..frame.len() {
                for flip in [0x01, 0x80, 0xff] {
                    let outcome =
                        shake(lane_hello(), &policy().token, &policy(), &mut |i, frame| {
                            if i == index {
                                frame[at] ^= flip;
                                if refitted && at >= HEADER_BYTES {
                                    refit(frame);
                                }
                            }
                        });
                    let by_server = matches!(outcome.server, Ok(Some(_)));
                    let by_client = matches!(outcome.client, Ok(Some(_)));
                    assert!(
                        !(by_server && by_client),
                        "frame {index} byte {at} flip {flip:#x}"
                    );
                    // The server accepts before the welcome goes out; no other process accepts.
                    assert!(
                        !by_client && (!by_server || index == 3),
                        "frame {index} byte {at}"
                    );
                }
            }
        }
    }
}

#[test]
fn every_cut_ends_without_a_decision() {
    let whole = shake_plain(lane_hello(), &policy()).frames;
    for (index, frame) in whole.iter().enumerate() {
        for len in 0..frame.len() {
            let outcome = shake(lane_hello(), &policy().token, &policy(), &mut |i, frame| {
                if i == index {
                    frame.truncate(len);
                }
            });
            assert!(!matches!(outcome.client, Ok(Some(_))));
            assert!(!matches!(outcome.server, Ok(Some(_))) || index == 3);
        }
    }
}

#[test]
fn a_recorded_handshake_is_refused() {
    let recorded = shake_plain(control_hello(), &policy()).frames;
    let mut server = ServerHandshake::new([0xbc; 32]);
    let mut out = Vec::new();
    for (frame, is_last) in [(&recorded[0], false), (&recorded[2], true)] {
        let mut decoder = Decoder::unauthenticated();
        assert_eq!(decoder.push(frame), frame.len());
        let frame = decoder.next_frame().unwrap().unwrap();
        let stepped = server.step(&policy(), frame, &mut out, |_| Ok(()));
        let expected = if is_last {
            Err(HandshakeError::PeerUnauthenticated)
        } else {
            Ok(None)
        };
        assert_eq!(stepped, expected);
    }
    // A recorded server does not convince a client with a random of its own, either.
    let hello = Hello {
        random: [0xab; 32],
        ..control_hello()
    };
    let outcome = shake(hello, &policy().token, &policy(), &mut |index, frame| {
        if index % 2 == 1 {
            frame.clone_from(&recorded[index]);
        }
    });
    assert_eq!(outcome.client, Err(HandshakeError::PeerUnauthenticated));
}

#[test]
fn an_hmac_sent_back_to_its_maker_is_refused() {
    // A server without the token answers the client's own proof as its proof.
    let mut proof = Vec::new();
    let outcome = shake(
        control_hello(),
        &policy().token,
        &policy(),
        &mut |index, frame| {
            if index == 2 {
                proof = frame[HEADER_BYTES..].to_vec();
            } else if index == 3 {
                let at = frame.len() - RANDOM_BYTES;
                frame[at..].copy_from_slice(&proof);
                refit(frame);
            }
        },
    );
    assert_eq!(outcome.client, Err(HandshakeError::PeerUnauthenticated));

    // A client without the token mirrors the server's welcome of another connection with a known
    // challenge: the label differs even if the transcript were the same.
    let token = policy().token;
    let transcript = b"the same bytes";
    let as_server = token.mac(SERVER_LABEL, transcript).finalize().into_bytes();
    assert!(
        token
            .mac(CLIENT_LABEL, transcript)
            .verify_slice(&as_server)
            .is_err()
    );
}

#[test]
fn messages_out_of_turn_end_it() {
    let frames = shake_plain(control_hello(), &policy()).frames;
    for wrong in [1, 2, 3] {
        let mut decoder = Decoder::unauthenticated();
        assert_eq!(decoder.push(&frames[wrong]), frames[wrong].len());
        let frame = decoder.next_frame().unwrap().unwrap();
        let mut server = ServerHandshake::new([0xbb; 32]);
        let mut out = Vec::new();
        assert!(server.step(&policy(), frame, &mut out, |_| Ok(())).is_err());
        let told = out.len();
        assert!(told > 0);
        let again = server.step(&policy(), frame, &mut out, |_| Ok(()));
        assert_eq!((again, out.len()), (Err(HandshakeError::Over), told));
    }
    // A welcome without a challenge before it.
    let outcome = shake(
        control_hello(),
        &policy().token,
        &policy(),
        &mut |index, frame| {
            if index == 1 {
                frame.clone_from(&frames[3]);
            }
        },
    );
    assert_eq!(
        outcome.client,
        Err(unexpected(kind::WELCOME, kind::CHALLENGE))
    );
}

#[test]
fn tokens_are_read_and_written_and_not_shown() {
    let token = JobToken::new(core::array::from_fn(|i| i as u8 * 8 + 3));
    let hex = token.to_hex();
    assert_eq!(hex.len(), 64);
    let read = |text: &str| JobToken::from_hex(text).map(|token| token.to_hex());
    assert_eq!(read(&format!("  {hex}\n")), Some(hex.clone()));
    for bad in ["", &hex[1..], &format!("{hex}0"), &hex.replace("03", "+3")] {
        assert_eq!(read(bad), None, "{bad}");
    }
    assert_eq!(format!("{token:?}"), "JobToken(..)");
}
