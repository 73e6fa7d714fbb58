//! Every decoder of saved models, by name: what the fuzzers run, besides those of the transport.
//!
//! An entry takes any bytes, never panics and takes no more memory than the bytes and its limits. A
//! fuzzer cannot guess a checksum of 64 bits, so entries also put the right ones on their bytes:
//! any process that can write the file can do so too.

use std::path::{Path, PathBuf};

use tidewater_protocol::ids::{DomainId, PartitionId};
use tidewater_protocol::layout::LINE_BYTES;
use tidewater_protocol::layout::decoders::Decode;
use tidewater_protocol::table::{
    Apply, DType, DenseLayout, GradientOptions, Init, KeyOptions, Optimizer, Shape, TableSpec,
};

use crate::chunk::{Bytes, CHUNK, Line, REMOVED, fold, open, payload_check, seal};
use crate::load;
use crate::manifest::{MANIFEST_NAME, Manifest, SavedFile, part_name};
use crate::part::PartReader;

/// Name and function of each decoder of saved models, for the fuzzers. New entries go to the end: the `fuzz/`
/// crate names an entry by its position.
pub const DECODERS: &[(&str, Decode)] = &[
    ("model-manifest", manifest),
    ("model-part", part),
    ("model-records", records),
];

/// Decodes the bytes as a manifest file. If that fails, parses them as the JSON model without envelope,
/// encodes it with the right checksum and decodes the result.
fn manifest(bytes: &[u8]) {
    let path = Path::new(MANIFEST_NAME);
    let parse = |text: &[u8]| Manifest::from_text(text, path).ok();
    let model = match parse(bytes) {
        Some(manifest) => manifest,
        None => match serde_json::from_slice(bytes) {
            Ok(model) => model,
            Err(_) => return,
        },
    };
    let text = model.to_text().unwrap_or_default();
    let again = parse(text.as_bytes());
    if let Some(model) = &again {
        let is_inside = |file: &SavedFile| !file.file.contains('/');
        debug_assert!(model.files.iter().all(is_inside), "{:?}", model.files);
    }
    let is_valid = model.validate().is_ok();
    debug_assert_eq!(
        again,
        is_valid.then_some(model),
        "it is read as it is written"
    );
}

/// Decodes the bytes as a part file twice: unchanged, and with all checksums corrected.
fn part(bytes: &[u8]) {
    read_part(bytes);
    read_part(&sealed(bytes));
}

/// Opens the bytes as a part file and reads its chunks, to the last or to the first error.
fn read_part(bytes: &[u8]) {
    let line = |at: usize| {
        let line = bytes.get(at..)?.first_chunk();
        open(line?)
    };
    let head = line(0).unwrap_or_default();
    let end = bytes.len().checked_sub(LINE_BYTES).and_then(line);
    let end = end.unwrap_or_default();
    // As the manifest of such a file would name it.
    let expected = SavedFile {
        server: 0,
        file: part_name(head[2], head[1] as u32),
        rows: end[2],
        bytes: bytes.len() as u64,
        check: end[4],
        clocks: Vec::new(),
        // Of one that extends another, chunks of removed rows are read too.
        extends: Some(part_name(head[2], head[1] as u32)),
    };
    let Ok(reader) = PartReader::new(bytes, PathBuf::new(), &expected) else {
        return;
    };
    let mut payload = Vec::new();
    for chunk in reader.chunks().iter().filter(|chunk| chunk.table % 2 == 1) {
        if reader.read(chunk, &mut payload).is_err() {
            break;
        }
        for spec in &specs() {
            let partition = PartitionId(chunk.partition);
            let found = load::records(spec, partition, &payload);
            debug_assert!(found.is_none_or(|all| all.len() * 8 <= payload.len()));
            let removed = load::removed_keys(spec, partition, &payload);
            debug_assert!(removed.is_none_or(|keys| keys.len() * 8 == payload.len()));
        }
    }
    let taken = payload.len();
    debug_assert!(taken <= bytes.len(), "{taken} bytes for what is not there");
}

/// Returns a copy of a part file's bytes with correct checksums, line numbers and nonces in all lines. Ends
/// at the first incomplete line.
fn sealed(bytes: &[u8]) -> Vec<u8> {
    let mut out = bytes.to_vec();
    let words_at = |at: usize| {
        let line: &Bytes = bytes.get(at..)?.first_chunk()?;
        let (words, _) = line.as_chunks::<8>();
        let mut all = [0; 7];
        for (word, bytes) in all.iter_mut().zip(words) {
            *word = u64::from_le_bytes(*bytes);
        }
        Some(all)
    };
    let Some(head) = words_at(0) else {
        return out;
    };
    let nonce = head[2];
    out[..LINE_BYTES].copy_from_slice(&seal(head));
    let (mut at, mut running) = (LINE_BYTES, nonce);
    for number in 1.. {
        let Some(mut words) = words_at(at) else {
            break;
        };
        let body = at + LINE_BYTES;
        let is_chunk = matches!(words[0], CHUNK | REMOVED);
        let len = usize::try_from(words[3]).unwrap_or(usize::MAX);
        let end = body.saturating_add(len).min(bytes.len());
        (words[5], words[6]) = (number, nonce);
        words[4] = if is_chunk {
            payload_check(nonce, number, &bytes[body..end])
        } else {
            running
        };
        let line = seal(words);
        out[at..body].copy_from_slice(&line);
        if let Some(Line::Chunk(chunk)) = Line::decode(&line, number, nonce) {
            running = fold(running, &chunk);
        }
        at = if is_chunk { end } else { body };
    }
    out
}

/// Decodes the payload of one chunk. The first byte selects one of the tables of `specs`, the second the
/// partition; the rest is the payload.
fn records(bytes: &[u8]) {
    let [table, partition, payload @ ..] = bytes else {
        return;
    };
    let specs = specs();
    let spec = &specs[usize::from(*table) % specs.len()];
    let partition = PartitionId(u32::from(*partition) % spec.partitions);
    if let Some(keys) = load::removed_keys(spec, partition, payload) {
        debug_assert_eq!(keys.len() * 8, payload.len(), "a byte too many or too few");
    }
    if let Some(all) = load::records(spec, partition, payload) {
        let parts = all
            .iter()
            .map(|(_, values, state)| 8 + values.len() + state.len());
        debug_assert_eq!(
            parts.sum::<usize>(),
            payload.len(),
            "a byte too many or too few"
        );
    }
}

/// Four table definitions for the fuzzers: sparse, dense rows, dense blocks, and a small dense table without
/// optimizer.
pub fn specs() -> [TableSpec; 4] {
    let spec = |name: &str, shape, dtype, optimizer| TableSpec {
        name: name.into(),
        shape,
        dtype,
        optimizer,
        init: Init::Zeros,
        seed: 1,
        effect: Apply::Immediate,
        finite_check: dtype == DType::F32,
        domain: DomainId(0),
        partitions: 3,
        gradient: GradientOptions::default(),
        redo: false,
        keys: KeyOptions::default(),
        versions: 2,
        durability: Default::default(),
        partition_servers: None,
        partition_starts: None,
    };
    let adam = Optimizer::Adam {
        lr: 0.1,
        beta1: 0.9,
        beta2: 0.999,
        eps: 1e-8,
    };
    let ftrl = Optimizer::Ftrl {
        alpha: 0.1,
        beta: 1.0,
        l1: 0.5,
        l2: 0.5,
    };
    let dense = |rows, cols, layout| Shape::Dense { rows, cols, layout };
    let blocks = DenseLayout::Blocks {
        block_bytes: 4096,
        snapshot: false,
    };
    [
        spec("sparse", Shape::Sparse { dim: 2 }, DType::F32, adam),
        spec("rows", dense(9, 2, DenseLayout::Rows), DType::F64, ftrl),
        spec("blocks", dense(100, 1, blocks), DType::F32, adam),
        spec(
            "few",
            dense(5, 1, DenseLayout::Rows),
            DType::I32,
            Optimizer::None,
        ),
    ]
}
