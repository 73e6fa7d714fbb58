//! Saved models, read from their files.

use std::collections::BTreeMap;
use std::path::Path;

use tidewater_checkpoint::{PartReader, read_manifest};

/// Bytes of the row and of its optimizer state, by table and key.
pub(crate) type Rows = BTreeMap<(String, u64), Vec<u8>>;

/// Reads every record of every file of a model.
pub(crate) fn rows(dir: &Path) -> Rows {
    let manifest = read_manifest(dir).unwrap();
    let mut rows = Rows::new();
    let mut payload = Vec::new();
    for file in &manifest.files {
        let reader = PartReader::open(dir, file).unwrap();
        for chunk in reader.chunks() {
            let table = manifest.tables.iter().find(|table| table.id == chunk.table);
            let name = &table.unwrap().spec.name;
            reader.read(chunk, &mut payload).unwrap();
            let bytes = payload.len() / usize::try_from(chunk.records).unwrap();
            for record in payload.chunks(bytes) {
                let (key, rest) = record.split_first_chunk().unwrap();
                let key = (name.clone(), u64::from_le_bytes(*key));
                let before = rows.insert(key.clone(), rest.to_vec());
                assert_eq!(before, None, "{key:?} is there twice");
            }
        }
    }
    assert_eq!(rows.len() as u64, manifest.rows());
    rows
}

/// Number of a model's files.
pub(crate) fn files(dir: &Path) -> usize {
    read_manifest(dir).unwrap().files.len()
}
