//! Copies rows from part files into a server's appliers.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tidewater_engine::apply::records::RecordShape;
use tidewater_protocol::ids::{ApplierId, PartitionId, ServerId, TableId};
use tidewater_protocol::limits::CHUNK_BYTES;
use tidewater_protocol::placement::Owner;
use tidewater_protocol::table::{Shape, TableSpec};
use tidewater_protocol::wire::control::TableInfo;

use crate::CheckpointError;
use crate::manifest::{MANIFEST_NAME, Manifest, SavedFile, SavedTable, read_manifest};
use crate::part::{ChunkIndex, PartReader};
use crate::rows::{Appliers, ask};

/// A saved model opened for loading: its manifest, and the chunk index of each part file.
#[derive(Debug)]
pub struct SavedModel {
    dir: PathBuf,
    identity: Identity,
    manifest: Manifest,
    parts: Vec<IndexedPart>,
}

/// Identity of a manifest file, which every commit changes: device, inode, and change time in seconds and
/// nanoseconds.
type Identity = (u64, u64, i64, i64);

fn identity(dir: &Path) -> Result<Identity, CheckpointError> {
    let path = dir.join(MANIFEST_NAME);
    let found = fs::metadata(&path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => CheckpointError::Missing { path: path.clone() },
        _ => CheckpointError::io("look at", &path)(error),
    })?;
    Ok((found.dev(), found.ino(), found.ctime(), found.ctime_nsec()))
}

#[derive(Debug)]
struct IndexedPart {
    reader: PartReader,
    /// For each table number, positions of its chunks in the reader's index.
    tables: BTreeMap<u32, Vec<usize>>,
}

impl SavedModel {
    /// Opens the saved model of a directory: reads its manifest and the chunk index of each part file, once
    /// for all tables.
    ///
    /// # Errors
    /// [`CheckpointError`] names the file and the failed check.
    pub fn open(dir: &Path) -> Result<Self, CheckpointError> {
        // First: a manifest that is replaced from here on is noticed.
        let identity = identity(dir)?;
        let manifest = read_manifest(dir)?;
        let open = |file: &SavedFile| {
            let reader = PartReader::open(dir, file)?;
            let mut tables: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
            for (n, chunk) in reader.chunks().iter().enumerate() {
                tables.entry(chunk.table).or_default().push(n);
            }
            Ok(IndexedPart { reader, tables })
        };
        let parts = manifest.files.iter().map(open);
        let parts = parts.collect::<Result<_, CheckpointError>>()?;
        Ok(Self {
            dir: dir.to_owned(),
            identity,
            manifest,
            parts,
        })
    }

    /// Whether `dir` is the directory of this model and its manifest file has not been replaced since it was
    /// opened.
    pub fn is_current(&self, dir: &Path) -> bool {
        self.dir == dir && identity(dir).is_ok_and(|now| now == self.identity)
    }

    /// Finds the saved table of this name. An error if there is none, or if its definition differs from
    /// `spec`.
    fn table(&self, spec: &TableSpec) -> Result<&SavedTable, CheckpointError> {
        let refuse = |what: String| CheckpointError::Table {
            path: self.dir.join(MANIFEST_NAME),
            table: spec.name.clone(),
            what,
        };
        let mut tables = self.manifest.tables.iter();
        let saved = tables.find(|saved| saved.spec.name == spec.name);
        let saved = saved.ok_or_else(|| refuse("none of this name".into()))?;
        match saved.spec == *spec {
            true => Ok(saved),
            false => Err(refuse(format!("saved as {:?}", saved.spec))),
        }
    }
}

/// Fills this server's share of a table from a saved model; blocks until it is done. The table must have been
/// created with the saved definition. Reads, from the part files of all servers of the model, only chunks of
/// partitions that `server` owns now.
///
/// # Errors
/// [`CheckpointError`] names the file and the failed check. The table may then be partly filled, and must not be
/// used.
pub fn load_table(
    appliers: &dyn Appliers,
    server: ServerId,
    table: &TableInfo,
    model: &SavedModel,
) -> Result<(), CheckpointError> {
    let saved = model.table(&table.spec)?;
    let (id, optimizer) = (table.id, saved.optimizer);
    let store = |what| CheckpointError::Store { table: id.0, what };
    let mine: Vec<u16> = (0..appliers.count())
        .filter(|&a| {
            owns_any(
                table,
                Owner {
                    server,
                    applier: ApplierId(a),
                },
            )
        })
        .collect();
    for &applier in &mine {
        let begun = ask(appliers, applier, move |engine| {
            if let Some(optimizer) = optimizer {
                engine.set_optimizer(id, optimizer);
            }
            engine.begin_restore(id)
        })?;
        begun.map_err(store)?;
    }
    let mut filler = Filler::new(appliers, table);
    for part in &model.parts {
        let chunks = part.tables.get(&saved.id).into_iter().flatten();
        for &n in chunks {
            let chunk = &part.reader.chunks()[n];
            let owner = table.placement.owner(PartitionId(chunk.partition));
            if let Some(owner) = owner.filter(|owner| owner.server == server) {
                filler.fill(owner.applier.0, &part.reader, chunk)?;
            }
        }
    }
    filler.finish()?;
    for &applier in &mine {
        ask(appliers, applier, move |engine| engine.end_restore(id))?.map_err(store)?;
    }
    Ok(())
}

fn owns_any(table: &TableInfo, owner: Owner) -> bool {
    table.placement.owned_by(owner).next().is_some()
}

/// Collects chunks for each applier and stores them in batches: waking a sleeping applier takes longer than
/// storing a small chunk.
struct Filler<'a> {
    appliers: &'a dyn Appliers,
    id: TableId,
    spec: Arc<TableSpec>,
    /// Chunks not yet stored, by applier.
    waiting: BTreeMap<u16, Batch>,
}

/// Chunks that one applier stores in one step, in their order.
#[derive(Default)]
struct Batch {
    chunks: Vec<Read>,
    /// Length of all payloads in bytes.
    bytes: usize,
}

/// A chunk that was read and checked.
struct Read {
    partition: u32,
    /// Whether the payload is the keys of removed rows.
    removed: bool,
    payload: Vec<u8>,
}

impl<'a> Filler<'a> {
    fn new(appliers: &'a dyn Appliers, table: &TableInfo) -> Self {
        Self {
            appliers,
            id: table.id,
            spec: Arc::new(table.spec.clone()),
            waiting: BTreeMap::new(),
        }
    }

    /// Reads and validates a chunk for an applier. Stores the applier's batch if it has at least
    /// `CHUNK_BYTES`, else keeps it.
    fn fill(
        &mut self,
        applier: u16,
        reader: &PartReader,
        chunk: &ChunkIndex,
    ) -> Result<(), CheckpointError> {
        let mut payload = Vec::new();
        reader.read(chunk, &mut payload)?;
        let partition = PartitionId(chunk.partition);
        let found = match chunk.removed {
            true => removed_keys(&self.spec, partition, &payload).map(|keys| keys.len()),
            false => records(&self.spec, partition, &payload).map(|records| records.len()),
        };
        if found.map(|found| found as u64) != Some(chunk.records) {
            return Err(reader.damaged(chunk.at, "records of this chunk do not fit the table"));
        }
        let batch = self.waiting.entry(applier).or_default();
        batch.bytes += payload.len();
        batch.chunks.push(Read {
            partition: chunk.partition,
            removed: chunk.removed,
            payload,
        });
        match batch.bytes >= CHUNK_BYTES {
            true => self.store(applier),
            false => Ok(()),
        }
    }

    fn store(&mut self, applier: u16) -> Result<(), CheckpointError> {
        let Some(Batch { chunks, .. }) = self.waiting.remove(&applier) else {
            return Ok(());
        };
        let (id, spec) = (self.id, Arc::clone(&self.spec));
        let stored = ask(self.appliers, applier, move |engine| {
            let all = |chunk: &Read| {
                let (partition, bytes) = (PartitionId(chunk.partition), &chunk.payload[..]);
                if chunk.removed {
                    let keys = removed_keys(&spec, partition, bytes);
                    return engine.restore_removed(id, &keys.unwrap_or_else(|| checked()));
                }
                let records = records(&spec, partition, bytes).unwrap_or_else(|| checked());
                engine.restore(id, records.into_iter())
            };
            chunks.iter().try_for_each(all)
        })?;
        stored.map_err(|what| CheckpointError::Store { table: id.0, what })
    }

    /// Stores the remaining batches of all appliers.
    fn finish(mut self) -> Result<(), CheckpointError> {
        while let Some((&applier, _)) = self.waiting.first_key_value() {
            self.store(applier)?;
        }
        Ok(())
    }
}

/// A payload that was checked when it was read is not what it was.
fn checked() -> ! {
    unreachable!("Filler::fill has checked the payload")
}

/// Decodes the payload of a chunk of removed rows. `None` if the table has no rows that are removed, or a key is not of
/// this partition.
pub(crate) fn removed_keys(
    spec: &TableSpec,
    partition: PartitionId,
    bytes: &[u8],
) -> Option<Vec<u64>> {
    let (keys, rest) = bytes.as_chunks();
    let keys: Vec<u64> = keys.iter().map(|key| u64::from_le_bytes(*key)).collect();
    let is_sparse = matches!(spec.shape, Shape::Sparse { .. });
    let own =
        |key: &u64| RecordShape::of(spec, *key).is_some_and(|shape| shape.partition == partition);
    (is_sparse && rest.is_empty() && keys.iter().all(own)).then_some(keys)
}

/// A decoded record of a chunk: key (or row index or block number), bytes of the values, bytes of the
/// optimizer state.
pub(crate) type Record<'a> = (u64, &'a [u8], &'a [u8]);

/// Decodes a chunk's payload into records of the table `spec`. `None` if the bytes are not complete records
/// of this partition.
pub(crate) fn records<'a>(
    spec: &TableSpec,
    partition: PartitionId,
    mut bytes: &'a [u8],
) -> Option<Vec<Record<'a>>> {
    let mut all = Vec::new();
    while let Some((key, rest)) = bytes.split_first_chunk() {
        let key = u64::from_le_bytes(*key);
        let shape = RecordShape::of(spec, key).filter(|shape| shape.partition == partition)?;
        let (values, rest) = rest.split_at_checked(shape.values)?;
        let (state, rest) = rest.split_at_checked(shape.state_of(rest)?)?;
        all.push((key, values, state));
        bytes = rest;
    }
    bytes.is_empty().then_some(all)
}
