//! Every decoder of control messages and handshakes, by name. The fuzzers (`transport/lanes/tests/fuzz.rs`, `fuzz/`)
//! run this list, and those of other formats.
//!
//! An entry takes any bytes. It must return, without a panic and without holding more memory than the
//! decoder's limit. Add new entries at the end: a corpus file of the `fuzz/` crate names its entry by
//! position.

use super::control::{
    Command, CommandReply, CoordinatorAnswer, CoordinatorRequest, Message, Notice, ServerAnswer,
    ServerRequest, decode_body,
};
use super::frame::{self, Decoder};
use super::handshake::{ClientHandshake, JobToken, Namespaces, ServerHandshake, ServerPolicy};
use super::hello::{
    Challenge, Features, Hello, Ids, Proof, Purpose, RANDOM_BYTES, Refused, Role, Roles, Welcome,
};
use crate::ids::{ClusterId, Incarnation};

pub use crate::layout::decoders::Decode;

/// Name and function of each decoder of control messages and handshakes, for fuzzing. New entries go to the
/// end.
pub const DECODERS: &[(&str, Decode)] = &[
    ("frame", frames),
    ("hello", |bytes| drop(Hello::decode(bytes))),
    ("challenge", |bytes| drop(Challenge::decode(bytes))),
    ("proof", |bytes| drop(Proof::decode(bytes))),
    ("welcome", |bytes| drop(Welcome::decode(bytes))),
    ("refused", |bytes| drop(Refused::decode(bytes))),
    ("handshake-client", client),
    ("handshake-server", server),
    ("coordinator-request", control::<CoordinatorRequest>),
    ("coordinator-answer", control::<CoordinatorAnswer>),
    ("order", control::<Command>),
    ("order-answer", control::<CommandReply>),
    ("server-request", control::<ServerRequest>),
    ("server-answer", control::<ServerAnswer>),
    ("notice", control::<Notice>),
    ("job-token", token),
];

/// Decodes a stream of control frames, pushed in pieces. Of the first byte, bit 0 selects whether the peer is
/// authenticated, and the other bits the size of the pieces, 1 to 128 bytes.
fn frames(bytes: &[u8]) {
    let Some((&piece, bytes)) = bytes.split_first() else {
        return;
    };
    let mut decoder = Decoder::unauthenticated();
    if piece & 1 == 1 {
        decoder.trust();
    }
    for mut piece in bytes.chunks(usize::from(piece >> 1) + 1) {
        while !piece.is_empty() {
            piece = &piece[decoder.push(piece)..];
            loop {
                match decoder.next_frame() {
                    Ok(Some(_)) => {}
                    Ok(None) => break,
                    Err(_) => return,
                }
            }
        }
    }
}

/// Decodes a body and, if it is a valid message, encodes it again: any accepted message can be passed on.
fn control<M: Message>(bytes: &[u8]) {
    if let Ok((id, message)) = decode_body::<M>(bytes) {
        drop(super::control::encode(id, &message, &mut Vec::new()));
    }
}

fn token(bytes: &[u8]) {
    if let Ok(text) = core::str::from_utf8(bytes) {
        let _ = JobToken::from_hex(text);
    }
}

/// Builds a decoder filled with valid frames. `bytes` holds their bodies, each after one byte of kind and one of
/// length; what follows the first 2 KiB of frames is ignored. With it, fuzzers reach the handshake's state machines
/// without guessing a frame's checksum.
fn framed(bytes: &[u8]) -> Decoder {
    let mut out = Vec::new();
    let mut rest = bytes;
    while let [kind, len, tail @ ..] = rest {
        let (body, tail) = tail.split_at(tail.len().min(usize::from(*len)));
        // A body of at most 255 bytes is below every limit.
        drop(frame::append(&mut out, u16::from(*kind), body));
        if out.len() > 2048 {
            break;
        }
        rest = tail;
    }
    let mut decoder = Decoder::unauthenticated();
    let _ = decoder.push(&out);
    decoder
}

fn client(bytes: &[u8]) {
    let mut out = Vec::new();
    let Ok(mut client) = ClientHandshake::start(&policy().token, hello(), &mut out) else {
        return;
    };
    let mut decoder = framed(bytes);
    while let Ok(Some(frame)) = decoder.next_frame() {
        drop(client.step(frame, &mut out));
    }
}

fn server(bytes: &[u8]) {
    let policy = policy();
    let mut server = ServerHandshake::new(SERVER_RANDOM);
    let mut out = Vec::new();
    let mut decoder = framed(bytes);
    while let Ok(Some(frame)) = decoder.next_frame() {
        drop(server.step(&policy, frame, &mut out, |_| Ok(())));
    }
}

const IDS: Ids = Ids {
    cluster: ClusterId(1),
    epoch: 1,
    incarnation: Incarnation(1),
};
const SERVER_RANDOM: [u8; RANDOM_BYTES] = [3; RANDOM_BYTES];

/// Returns the hello of a fixed client, so that recorded handshakes verify.
fn hello() -> Hello {
    Hello {
        features: Features::default(),
        ids: IDS,
        namespace: "fuzz".into(),
        role: Role::Worker,
        rank: 0,
        purpose: Purpose::Control,
        random: [1; RANDOM_BYTES],
    }
}

/// Returns the policy of a fixed server with a test token.
fn policy() -> ServerPolicy {
    ServerPolicy {
        token: JobToken::new([2; 32]),
        features: Features::default(),
        ids: IDS,
        role: Role::Server,
        number: 0,
        namespaces: Namespaces::Any,
        control_roles: Roles::of(&[Role::Worker]),
        lane_roles: Roles::of(&[Role::Worker]),
        tells_ids: true,
    }
}

#[cfg(test)]
mod tests;
