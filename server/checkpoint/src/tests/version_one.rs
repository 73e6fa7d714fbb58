//! A model of format version 1, written here byte by byte as `docs/FORMAT.md` defines it.

use tidewater_protocol::layout::hash::{H64, line_checksum};
use tidewater_protocol::table::{DenseLayout, Init, Reduce};

use super::*;

const NONCE: u64 = 0x0123_4567_89ab_cdef;
const VERSION: u64 = 1;
/// The table's number in the files.
const TABLE: u64 = 7;
/// Elements of a block of 4096 bytes, and of the last one.
const ELEMENTS: [usize; 2] = [1024, 476];
/// Step counts of the blocks.
const STEPS: [u64; 2] = [5, 300];

fn spec_of_table() -> TableSpec {
    let adam = Optimizer::Adam {
        lr: 0.001,
        beta1: 0.9,
        beta2: 0.999,
        eps: 1e-8,
    };
    let shape = Shape::Dense {
        rows: 1500,
        cols: 1,
        layout: DenseLayout::Blocks {
            block_bytes: 4096,
            snapshot: false,
        },
    };
    let mut spec = spec("v", shape, DType::F32, adam, Apply::Immediate);
    (spec.partitions, spec.init) = (2, Init::Zeros);
    spec
}

/// Appends the checksum to seven words.
fn line(words: [u64; 7]) -> Vec<u8> {
    let check = line_checksum(u64::from_le_bytes(*b"partline"), words[0], &words);
    let words = words.into_iter().chain([check]);
    words.flat_map(u64::to_le_bytes).collect()
}

fn floats(count: usize, value: impl Fn(usize) -> f32) -> impl Iterator<Item = u8> {
    let values: Vec<f32> = (0..count).map(value).collect();
    values.into_iter().flat_map(f32::to_le_bytes)
}

fn value(block: usize) -> impl Fn(usize) -> f32 {
    move |element| (block * 10_000 + element) as f32
}

/// Values and state of a block: its elements, Adam's two moments of each, one step count for all.
fn record(block: usize) -> (Vec<u8>, Vec<u8>) {
    let count = ELEMENTS[block];
    let values = floats(count, value(block)).collect();
    let moments = floats(count, |n| 0.5 + n as f32).chain(floats(count, |n| 0.25 + n as f32));
    (values, moments.chain(STEPS[block].to_le_bytes()).collect())
}

/// The part file, and its running checksum.
fn part() -> (Vec<u8>, u64) {
    let salt = u64::from_le_bytes(*b"partline");
    let magic = u64::from_le_bytes(*b"TWPART01");
    let mut bytes = line([magic, VERSION << 32, NONCE, 0, 0, 0, 0]);
    let mut running = NONCE;
    for (block, number) in [(0, 1), (1, 2)] {
        let (values, state) = record(block);
        let payload = [(block as u64).to_le_bytes().to_vec(), values, state].concat();
        let length = payload.len() as u64;
        let check = H64::new([NONCE, number, length, salt]).finish_bytes(&payload);
        let place = TABLE << 32 | block as u64;
        bytes.extend(line([1, place, 1, length, check, number, NONCE]));
        bytes.extend(&payload);
        running = H64::new([running, place, 1, check]).finish(&[length]);
    }
    bytes.extend(line([2, 2, 2, 0, running, 3, NONCE]));
    (bytes, running)
}

/// The canonical text of the model that its checksum covers, without blanks.
fn model_text(file: &str, bytes: usize, check: u64) -> String {
    let spec = r#"{"name":"v","shape":{"Dense":{"rows":1500,"cols":1,"layout":{"Blocks":{"block_bytes":4096,"snapshot":false}}}},"dtype":"F32","optimizer":{"Adam":{"lr":0.001,"beta1":0.9,"beta2":0.999,"eps":1e-8}},"init":"Zeros","seed":18446744073709551613,"effect":"Immediate","finite_check":true,"domain":3,"partitions":2}"#;
    let clocks = r#"[{"domain":0,"clock":9},{"domain":3,"clock":4}]"#;
    format!(
        r#"{{"namespace":"job","tables":[{{"id":{TABLE},"spec":{spec}}}],"files":[{{"server":0,"file":"{file}","rows":2,"bytes":{bytes},"check":{check},"clocks":{clocks}}}]}}"#
    )
}

/// Every element of a block has the block's step count. Values, moments and clocks are those of the
/// files. A later save has version 3.
#[test]
fn model_of_version_one_is_loaded() {
    let dir = tempfile::tempdir().unwrap();
    let (bytes, running) = part();
    let file = format!("part-{NONCE:016x}-0.tidewater");
    fs::write(dir.path().join(&file), &bytes).unwrap();
    let model = model_text(&file, bytes.len(), running);
    let manifest = u64::from_le_bytes(*b"manifest");
    let check = H64::new([manifest, VERSION, model.len() as u64, 0]).finish_bytes(model.as_bytes());
    let text =
        format!("{{\"tidewater_model\": 1, \"check\": \"{check:016x}\", \"model\": {model}}}\n");
    fs::write(dir.path().join("manifest.json"), text).unwrap();

    let manifest = read_manifest(dir.path()).unwrap();
    let clocks = manifest.clocks().into_iter();
    let clocks: Vec<_> = clocks.map(|c| (c.domain.0, c.clock)).collect();
    assert_eq!(clocks, [(0, 9), (3, 4)]);
    let expected: Model = (0..2)
        .map(|block| (("v".to_owned(), block as u64), record(block)))
        .collect();
    for appliers in [&[1][..], &[1, 1]] {
        let cluster = Cluster::of(vec![spec_of_table()], appliers);
        cluster.load(dir.path()).unwrap();
        assert_eq!(cluster.model(), expected);
        let again = tempfile::tempdir().unwrap();
        cluster.save(&CutDisk::default(), again.path(), 1).unwrap();
        let text = fs::read_to_string(again.path().join("manifest.json")).unwrap();
        assert!(text.contains("\"tidewater_model\": 3"), "{text}");
        let second = Cluster::of(vec![spec_of_table()], &[1]);
        second.load(again.path()).unwrap();
        assert_eq!(second.model(), expected);
    }
}

/// The words of a definition in a manifest are part of the format: a renamed variant would make every saved
/// model unreadable.
#[test]
fn definition_in_manifest_keeps_its_words() {
    let shape = Shape::Sparse { dim: 4 };
    let spec = spec(
        "v",
        shape,
        DType::F64,
        Optimizer::None,
        Apply::AtTick(Reduce::Mean),
    );
    let text = serde_json::to_string(&spec).unwrap();
    let expected = r#"{"name":"v","shape":{"Sparse":{"dim":4}},"dtype":"F64","optimizer":"None",
        "init":{"Uniform":{"low":-1.0,"high":1.0}},"seed":18446744073709551613,
        "effect":{"AtClock":"Mean"},"finite_check":true,"domain":3,"partitions":13}"#;
    assert_eq!(text, expected.split_whitespace().collect::<String>());
    assert_eq!(serde_json::from_str::<TableSpec>(&text).unwrap(), spec);
}
