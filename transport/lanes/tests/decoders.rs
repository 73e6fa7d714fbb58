//! Completeness of the decoder registries. The test finds every function of `layout`, `wire` and `tcp` that
//! decodes external bytes or words in the source text. Each must be run by an entry of a registry that the
//! fuzzers use, or stand in a short list of exceptions with a reason.
#![allow(clippy::unwrap_used, reason = "a test's helpers")]

use std::collections::BTreeSet;
use std::path::Path;

use tidewater_lanes::tcp;
use tidewater_protocol::{layout, wire};

#[path = "support/search.rs"]
mod search;
use search::{decoders_below, found};

/// Entry of a registry, and the decoders that it runs.
const COVERED: &[(&str, &[&str])] = &[
    (
        "frame",
        &[
            "frame::Decoder::next_frame",
            "frame::split",
            "frame::u32_at",
        ],
    ),
    (
        "hello",
        &[
            "hello::Hello::decode",
            "hello::Role::from_code",
            "hello::Reader::new",
            "hello::version_of",
        ],
    ),
    ("challenge", &["hello::Challenge::decode"]),
    ("proof", &["hello::Proof::decode"]),
    ("welcome", &["hello::Welcome::decode"]),
    ("refused", &["hello::Refused::decode"]),
    ("handshake-client", &["handshake::ClientHandshake::step"]),
    (
        "handshake-server",
        &[
            "handshake::ServerHandshake::step",
            "handshake::same_version",
        ],
    ),
    (
        "coordinator-request",
        &[
            "impl Message for CoordinatorRequest",
            "coordinator::function",
            "coordinator::namespace",
            "coordinator::path",
        ],
    ),
    (
        "coordinator-answer",
        &[
            "impl Message for CoordinatorAnswer",
            "members::hosts",
            "error::name_at_most",
            "error::text_at_most",
        ],
    ),
    ("order", &["impl Message for Command"]),
    ("order-answer", &["impl Message for CommandReply"]),
    ("server-request", &["impl Message for ServerRequest"]),
    ("server-answer", &["impl Message for ServerAnswer"]),
    ("notice", &["impl Message for Notice", "mod::decode_body"]),
    ("job-token", &["handshake::JobToken::from_hex"]),
    (
        "lane-request",
        &["op::Request::from_bytes", "op::Header::from_bytes"],
    ),
    (
        "lane-reply",
        &["op::Reply::from_bytes", "op::RequestKind::from_code"],
    ),
    ("lane-entry", &["op::Entry::from_bytes"]),
    ("frame-header", &["frame::FrameHeader::from_line"]),
    (
        "frame-flags",
        &[
            "frame::FrameFlags::from_code",
            "frame::FrameKind::from_code",
        ],
    ),
    ("rows-payload", &["frame::RowsPayload::new"]),
    ("reply-header", &["reply::ReplyHeader::from_line"]),
    (
        "state-line",
        &["lines::StateLine::from_line", "mod::line_from_bytes"],
    ),
    ("clock-line", &["lines::ClockLine::from_line"]),
    ("snapshot-line", &["lines::SnapshotLine::from_line"]),
    (
        "reject-line",
        &[
            "lines::Reject::from_line",
            "lines::RejectCode::from_code",
            "reject::RowResource::from_code",
        ],
    ),
    ("checked-u64", &["lines::CheckedU64::value"]),
    ("tagged-u32", &["dense::TaggedU32::seq"]),
    ("extent-entry", &["extent::ExtentEntry::from_line"]),
    ("row", &["row::verify_row"]),
    ("ring-tail", &["ring::RingGeometry::tail_is_sane"]),
    ("key-cell", &["directory::KeyCell::from_bytes"]),
    (
        "function-call",
        &[
            "function::AtTickProblem::from_code",
            "function::FunctionCall::decode",
            "function::FunctionProblem::from_code",
            "function::FunctionTrap::from_code",
            "function::NamedRows::decode",
            "function::name_of",
        ],
    ),
    ("settings", &["settings::decode"]),
    (
        "scan",
        &["scan::ScanRequest::decode", "scan::ScanReply::decode"],
    ),
    (
        "encoded-values",
        &[
            "encoding::decode",
            "encoding::encoded_bytes",
            "encoding::EncodingCode::from_code",
        ],
    ),
];

/// Decoders found in the source without an entry of their own, with the reason.
const EXCEPTIONS: &[(&str, &str)] = &[
    ("mod::decode", "decode_body of a frame, and nothing else"),
    (
        "mod::decode_answer",
        "decode_body after a comparison of kinds",
    ),
    (
        "client_lane::TcpClientLane::early",
        "keeps bytes that came with the handshake for the lane's own parser",
    ),
    ("plan::fits", "checks the caller's own destination"),
    (
        "coordinator::worker_of",
        "the checks of a namespace and a rank, which the validation of an order runs",
    ),
    (
        "recv_direct::same_reads",
        "compares the caller's own reads with those it posted",
    ),
    (
        "receive::Post::take",
        "stores a payload whose place was checked with its header",
    ),
];

fn registered() -> BTreeSet<&'static str> {
    let all = wire::decoders::DECODERS
        .iter()
        .chain(tcp::op::DECODERS)
        .chain(layout::decoders::DECODERS);
    all.map(|(name, _)| *name).collect()
}

#[test]
fn every_decoder_is_fuzzed_or_excused() {
    let transport = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let folders = ["protocol/src/layout", "protocol/src/wire", "lanes/src/tcp"];
    let in_source = decoders_below(&folders.map(|folder| transport.join(folder)));
    assert!(
        in_source.len() >= 30,
        "the search finds too little: {in_source:?}"
    );
    let covered: BTreeSet<String> = COVERED
        .iter()
        .flat_map(|(_, runs)| *runs)
        .map(|f| (*f).to_owned())
        .collect();
    let excused: BTreeSet<String> = EXCEPTIONS.iter().map(|(f, _)| (*f).to_owned()).collect();
    let known = &covered | &excused;
    let missing: Vec<_> = in_source.difference(&known).collect();
    assert!(
        missing.is_empty(),
        "{missing:#?}: run each in an entry of a DECODERS table and name it in COVERED here"
    );
    let named = BTreeSet::from(["frame::RowsPayload::new".to_owned()]);
    let there = &in_source | &named;
    let gone: Vec<_> = known.difference(&there).collect();
    assert!(
        gone.is_empty(),
        "{gone:#?} are named here but not in the source"
    );
    assert!(covered.is_disjoint(&excused));
}

#[test]
fn every_entry_of_a_registry_says_what_it_runs() {
    let told: BTreeSet<&str> = COVERED.iter().map(|(entry, _)| *entry).collect();
    assert_eq!(told, registered());
}

/// The search itself finds decoders and no other functions.
#[test]
fn the_search_finds_decoders() {
    let text = "impl Foo {\n    pub const fn from_code(code: u16) -> Option<Self> {\n    }\n    \
                pub fn put(\n        to: &mut [u8],\n    ) -> Result<(), E> {\n    }\n}\n\
                pub fn take(\n    bytes: &[u8],\n) -> Option<Foo> {\n}\nimpl Message for Command {\n}\n";
    assert_eq!(
        found("foo", text),
        [
            "foo::Foo::from_code",
            "foo::take",
            "impl Message for Command"
        ]
    );
}
