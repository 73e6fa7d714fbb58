//! Tests of the corpus in `transport/lanes/tests/corpus`, which holds one seed of each message, made here. The encoding
//! of a protocol version must not drift, so the files are golden: a test compares them.
//! `TIDEWATER_WRITE_CORPUS=1` writes them after an intended change.

use std::fs;
use std::path::PathBuf;

use super::*;
use crate::wire::control::encode;
use crate::wire::control::samples::Gen;
use crate::wire::frame::HEADER_BYTES;
use crate::wire::refusal::{Refusal, RefusalCode};

/// The frames of each end in a successful handshake: the client's, then the server's.
fn handshake() -> [Vec<Vec<u8>>; 2] {
    let mut sent = [Vec::new(), Vec::new()];
    let mut out = Vec::new();
    let mut client = ClientHandshake::start(&policy().token, hello(), &mut out).unwrap();
    let mut server = ServerHandshake::new(SERVER_RANDOM);
    for last in [false, true] {
        sent[0].push(out.clone());
        let mut decoder = Decoder::unauthenticated();
        assert_eq!(decoder.push(&out), out.len());
        out.clear();
        let frame = decoder.next_frame().unwrap().unwrap();
        let admitted = server.step(&policy(), frame, &mut out, |_| Ok(())).unwrap();
        assert_eq!(admitted.is_some(), last);
        sent[1].push(out.clone());
        let mut decoder = Decoder::unauthenticated();
        assert_eq!(decoder.push(&out), out.len());
        out.clear();
        let welcome = client
            .step(decoder.next_frame().unwrap().unwrap(), &mut out)
            .unwrap();
        assert_eq!(welcome.is_some(), last);
    }
    sent
}

/// Frames as [`framed`] reads them.
fn unframed(frames: &[Vec<u8>]) -> Vec<u8> {
    let parts = frames.iter().map(|frame| {
        let body = &frame[HEADER_BYTES..];
        [&[frame[8], body.len() as u8][..], body].concat()
    });
    parts.collect::<Vec<_>>().concat()
}

fn bodies<M: Message>(messages: &[M]) -> Vec<Vec<u8>> {
    let body = |message| {
        let mut out = Vec::new();
        encode(7, message, &mut out).unwrap();
        out.split_off(HEADER_BYTES)
    };
    messages.iter().map(body).collect()
}

/// Seeds of every decoder of this module.
fn seeds() -> Vec<(&'static str, Vec<Vec<u8>>)> {
    let [client, server] = handshake();
    let body = |frame: &Vec<u8>| vec![frame[HEADER_BYTES..].to_vec()];
    let mut refused = Vec::new();
    let refusal = Refusal::new(RefusalCode::WrongEpoch, [4, 5, 0, 0]).with_text("too old");
    Refused {
        version: 1,
        refusal,
    }
    .encode(&mut refused);
    let stream = [&client[0][..], &server[0], &client[1], &server[1]].concat();
    let pieces = [0, 1, 15, 255].map(|piece| [&[piece][..], &stream].concat());
    let mut g = Gen(1);
    vec![
        ("frame", pieces.to_vec()),
        ("hello", body(&client[0])),
        ("challenge", body(&server[0])),
        ("proof", body(&client[1])),
        ("welcome", body(&server[1])),
        ("refused", vec![refused]),
        ("handshake-client", vec![unframed(&server)]),
        ("handshake-server", vec![unframed(&client)]),
        ("coordinator-request", bodies(&g.coordinator_requests())),
        ("coordinator-answer", bodies(&g.coordinator_answers())),
        ("order", bodies(&g.orders())),
        ("order-answer", bodies(&g.order_answers())),
        ("server-request", bodies(&g.server_requests())),
        ("server-answer", bodies(&g.server_answers())),
        ("notice", bodies(&g.notices())),
        ("job-token", vec![policy().token.to_hex().into_bytes()]),
    ]
}

#[test]
fn the_corpus_is_what_this_version_says() {
    let writes = std::env::var_os("TIDEWATER_WRITE_CORPUS").is_some();
    let corpus = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../lanes/tests/corpus");
    for (name, seeds) in seeds() {
        assert!(
            DECODERS.iter().any(|(listed, _)| *listed == name),
            "{name} is not listed"
        );
        for (number, seed) in seeds.iter().enumerate() {
            let path = corpus.join(name).join(format!("v1-{number:02}"));
            if writes {
                fs::create_dir_all(corpus.join(name)).unwrap();
                fs::write(&path, seed).unwrap();
            }
            let golden = fs::read(&path).unwrap_or_default();
            assert!(
                golden == *seed,
                "{} differs: the encoding changed. If that is meant, raise PROTOCOL_VERSION once \
                 it was released, and write the corpus with TIDEWATER_WRITE_CORPUS=1",
                path.display()
            );
        }
    }
}

#[test]
fn recorded_handshakes_reach_the_end() {
    // Otherwise the two targets would fuzz no more than the first message.
    let [client_sent, server_sent] = handshake();
    let mut client = ClientHandshake::start(&policy().token, hello(), &mut Vec::new()).unwrap();
    let mut server = ServerHandshake::new(SERVER_RANDOM);
    let mut ends = [false, false];
    let mut decoder = framed(&unframed(&server_sent));
    while let Ok(Some(frame)) = decoder.next_frame() {
        ends[0] = client.step(frame, &mut Vec::new()).unwrap().is_some();
    }
    let mut decoder = framed(&unframed(&client_sent));
    while let Ok(Some(frame)) = decoder.next_frame() {
        ends[1] = server
            .step(&policy(), frame, &mut Vec::new(), |_| Ok(()))
            .unwrap()
            .is_some();
    }
    assert_eq!(ends, [true, true]);
}
