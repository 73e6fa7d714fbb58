//! The blocks ```` ```golden-server NAME ```` of `docs/PROTOCOL.md` equal the bytes that this crate
//! writes into its memories.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that cannot go on fails"
)]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use tidewater_engine::store::ServerMemory;
use tidewater_engine::store::index::Index;
use tidewater_engine::store::memory::{BlockKind, BlockOwner};
use tidewater_engine::store::prealloc::Preallocator;
use tidewater_engine::store::redo::{Progress, Redo, RowPlace};
use tidewater_engine::store::redo_block::{BlockPlace, StatePiece};
use tidewater_protocol::ids::Incarnation;
use tidewater_protocol::layout::dense::TaggedU32;
use tidewater_runtime::mem::Region;
use tidewater_runtime::mem::versioned::{BlockVersions, RowHead};

const DIRECTORY_AT: usize = 8192;

fn bytes(region: &Region, at: usize, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    region.words(at, len).unwrap().copy_out(0, &mut out);
    out
}

fn structures() -> Vec<(&'static str, Vec<u8>)> {
    let memory = Arc::new(ServerMemory::new(64 << 20, Incarnation(0x0e0f_1011)).unwrap());
    let owner = |kind, part| BlockOwner {
        kind,
        table: 9,
        applier: 1,
        part,
    };
    let rows = memory
        .public
        .alloc(4096, owner(BlockKind::Extent, 2))
        .unwrap();
    let mut index = Index::new(
        Arc::clone(&memory),
        Preallocator::none(),
        owner(BlockKind::Index, 3),
    )
    .unwrap();
    index.insert(0xfeed_beef, 0x410, |_| 0).unwrap();
    let redo = Redo::new(Arc::clone(&memory), 1, 256, 64).unwrap();
    let place = RowPlace {
        row_at: rows.at + 32,
        state_at: 0x40_5000,
        key: 0xfeed_beef,
        salt: 7,
    };
    redo.commit(
        Progress { lsn: 77, row: 1 },
        place,
        RowHead {
            version: 8,
            checksum: 9,
        },
        &[1; 16],
        &[2; 8],
    )
    .unwrap();
    let (public, private) = (memory.public.region(), memory.private.region());
    let blocks = memory.private.directory().unwrap();
    let of = |kind: BlockKind| blocks.iter().find(|(_, o)| o[0] == kind as u32).unwrap().0;
    let (index_at, redo_at) = (of(BlockKind::Index), of(BlockKind::Redo));
    let buckets = bytes(private, index_at.at, index_at.len);
    let used = buckets
        .chunks(4)
        .find(|b| b.iter().any(|&x| x != 0))
        .unwrap();
    let row = bytes(private, redo_at.at, 64 + 16 + 8);
    commit_block(&redo);
    vec![
        ("superblock", bytes(public, 0, 64)),
        ("directory-entry", bytes(public, DIRECTORY_AT, 64)),
        ("index-bucket", used.to_vec()),
        ("redo-line", row),
        ("redo-block", bytes(private, redo_at.at, 128 + 16 + 8)),
    ]
}

fn commit_block(redo: &Redo) {
    let [writing, done] = [7, 8].map(|seq| TaggedU32::new(seq, 0x0102_0304_0506_0708).0);
    let state = StatePiece {
        at: 0x40_5000,
        len: 8,
    };
    let none = StatePiece::default();
    let place = BlockPlace {
        payload_at: 0x40_2040,
        version_at: 0x40_2028,
        versions: BlockVersions { writing, done },
        pieces: [state, none, none, none],
    };
    redo.commit_block(Progress { lsn: 78, row: 0 }, place, &[1; 16], &[2; 8])
        .unwrap();
}

fn hex(bytes: &[u8]) -> String {
    let mut out = String::new();
    for (n, line) in bytes.chunks(16).enumerate() {
        let digits: Vec<String> = line.iter().map(|b| format!("{b:02x}")).collect();
        let _ = writeln!(out, "{:04x}  {}", n * 16, digits.join(" "));
    }
    out
}

#[test]
fn golden_bytes_are_what_the_server_writes() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/PROTOCOL.md");
    let text = std::fs::read_to_string(path).unwrap();
    let told: BTreeMap<&str, &str> = text
        .split("\n```golden-server ")
        .skip(1)
        .filter_map(|rest| rest.split_once("```")?.0.split_once('\n'))
        .collect();
    let built = structures();
    let mut wrong = String::new();
    for (name, bytes) in &built {
        let hex = hex(bytes);
        if told.get(name) != Some(&hex.as_str()) {
            let _ = writeln!(wrong, "```golden-server {name}\n{hex}```");
        }
    }
    assert!(
        wrong.is_empty(),
        "docs/PROTOCOL.md lacks or contradicts:\n{wrong}"
    );
    assert_eq!(
        told.len(),
        built.len(),
        "bytes of nothing: {:?}",
        told.keys()
    );
}
