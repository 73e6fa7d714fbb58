//! A model of format version 2: a file of today without what version 3 adds.

use tidewater_protocol::layout::hash::H64;

use super::*;

#[test]
fn model_of_version_two_is_loaded() {
    let (dir, manifest, model) = saved();
    let path = dir.path().join(&manifest.files[0].file);
    let mut part = fs::read(&path).unwrap();
    let head = chunk::Head {
        version: 2,
        server: 0,
        nonce: 1,
    };
    part[..64].copy_from_slice(&head.encode());
    fs::write(&path, part).unwrap();
    let text = serde_json::to_string(&manifest).unwrap();
    assert!(!text.contains("extends"), "{text}");
    let seed = u64::from_le_bytes(*b"manifest");
    let check = H64::new([seed, 2, text.len() as u64, 0]).finish_bytes(text.as_bytes());
    let text =
        format!("{{\"tidewater_model\": 2, \"check\": \"{check:016x}\", \"model\": {text}}}\n");
    fs::write(dir.path().join(MANIFEST_NAME), text).unwrap();
    let cluster = Cluster::new(&[1, 2]);
    cluster.load(dir.path()).unwrap();
    assert!(cluster.model() == model);
}
