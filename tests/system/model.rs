//! Saved models, read from their files.

use std::collections::BTreeMap;
use std::path::Path;

use tidewater_service::checkpoint::{PartReader, read_manifest};

/// Bytes of the row and of its optimizer state, by table and key.
pub(crate) type Rows = BTreeMap<(String, u64), Vec<u8>>;

/// Reads every record of every file of a model.
pub(crate) fn rows(dir: &Path) -> Rows {
    let manifest = read_manifest(dir).unwrap();
    let mut rows = Rows::new();
    let mut payload = Vec::new();
    for file in &manifest.files {
        for table in &manifest.tables {
            let mut reader = PartReader::open(dir, file).unwrap();
            let mut read = |payload: &mut _| reader.next(|id, _| id == table.id, payload).unwrap();
            while let Some((_, records)) = read(&mut payload) {
                let bytes = payload.len() / usize::try_from(records).unwrap();
                for record in payload.chunks(bytes) {
                    let (key, rest) = record.split_first_chunk().unwrap();
                    let key = (table.spec.name.clone(), u64::from_le_bytes(*key));
                    let before = rows.insert(key.clone(), rest.to_vec());
                    assert_eq!(before, None, "{key:?} is there twice");
                }
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
