//! Copies rows from a server's appliers into a part file, and from part files into appliers.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, bounded, unbounded};
use tidewater_protocol::ids::{ApplierId, DomainId, PartitionId, ServerId, TableId};
use tidewater_protocol::limits::{CHUNK_BYTES, FILE_ORDERS_TIMEOUT};
use tidewater_protocol::mutants::{self, Mutant};
use tidewater_protocol::placement::Owner;
use tidewater_protocol::table::{Optimizer, TableSpec};
use tidewater_protocol::wire::control::{DomainClock, TableInfo, TableSetting};
use tidewater_protocol::wire::refusal::Refusal;
use tidewater_runtime::clock::{Deadline, unix_ms};

use crate::CheckpointError;
use crate::disk::Disk;
use crate::manifest::{MANIFEST_NAME, Manifest, SavedFile, SavedTable, read_manifest};
use crate::part::{ChunkIndex, PartReader, PartWriter};
use tidewater_engine::apply::engine::Engine;
use tidewater_engine::apply::records::RecordShape;
use tidewater_engine::apply::save::SaveOrder;
use tidewater_engine::store::cut::{SaveMemory, SavePiece};

/// Access of a save or load to the applier threads of one server.
pub trait Appliers {
    /// Number of appliers of the server.
    fn count(&self) -> u16;

    /// Runs `f` on an applier's thread between two frames and blocks until it has run. `false` if the applier
    /// has ended.
    fn run(&self, applier: ApplierId, f: Box<dyn FnOnce(&mut Engine) + Send>) -> bool;

    /// Wakes an applier so that it continues copying for a save. Does not wait for it. An implementation
    /// without threads steps the applier here.
    fn wake(&self, applier: ApplierId);

    /// Maximum number of bytes of a save's copies that wait in memory to be written.
    fn save_bytes(&self) -> usize;

    /// Lets the held clocks of a job advance again. Does nothing where no coordinator can hold clocks.
    ///
    /// # Errors
    /// The refusal that the coordinator gets.
    fn release_clocks(&self, _namespace: &str) -> Result<(), Refusal> {
        Ok(())
    }
}

/// Runs `f` on an applier's thread, blocks until it ends and returns its result. Fails with `ApplierGone` if
/// the applier has ended.
fn ask<T: Send + 'static>(
    appliers: &dyn Appliers,
    applier: u16,
    f: impl FnOnce(&mut Engine) -> T + Send + 'static,
) -> Result<T, CheckpointError> {
    let (tx, rx) = bounded(1);
    let job = move |engine: &mut Engine| {
        // The caller waits for it.
        let _ = tx.send(f(engine));
    };
    let ran = appliers.run(ApplierId(applier), Box::new(job));
    let result = rx.try_recv().ok().filter(|_| ran);
    result.ok_or(CheckpointError::ApplierGone { applier })
}

/// Parameters of one server's share of a save: tables, clocks, directory and nonce.
#[derive(Debug, Clone, Copy)]
pub struct SaveRequest<'a> {
    /// Number of the server that writes its part.
    pub server: ServerId,
    /// Tables to save.
    pub tables: &'a [TableInfo],
    /// Clocks of the cut, by domain. Each applier makes its cut when its minimum clocks have reached them.
    pub clocks: &'a [DomainClock],
    /// Directory into which the part file is written.
    pub dir: &'a Path,
    /// Random number that names the save; it must never have been used before.
    pub nonce: u64,
}

/// Result of a server's share of a save: the part file's manifest entry, changed optimizer settings, and the
/// time of the cut.
#[derive(Debug)]
pub struct SavedShare {
    /// File that was written.
    pub file: SavedFile,
    /// Optimizer settings that were changed after their table was created.
    pub settings: Vec<TableSetting>,
    /// Time of the first cut of an applier, in milliseconds since 1970.
    pub cut_ms: u64,
}

/// A save that the appliers have begun and for which no file is written yet: they copy rows until the memory limit is
/// reached. `write_part` continues it. Dropping it cancels the save.
#[derive(Debug)]
pub struct BegunSave {
    pieces: Receiver<(u16, SavePiece)>,
    memory: Arc<SaveMemory>,
    /// Whether the appliers may take any time to reach their cuts.
    is_patient: bool,
}

impl BegunSave {
    /// Returns the shared state of the save, with which another thread can cancel it. [`write_part`] then
    /// fails within 100 ms.
    pub fn cancel_handle(&self) -> Arc<SaveMemory> {
        Arc::clone(&self.memory)
    }
}

impl Drop for BegunSave {
    fn drop(&mut self) {
        self.memory.cancel();
    }
}

/// Interval at which the writing thread checks whether another thread has cancelled the save.
const CANCEL_POLL: Duration = Duration::from_millis(100);

/// Writes a server's part file of a save, on the calling thread, and blocks until it is durable; no manifest names it
/// yet. All appliers copy their rows at the same time, in steps between frames, and keep serving; see
/// `tidewater_engine::apply::save`. Memory: at most [`Appliers::save_bytes`] of copies, and one chunk.
///
/// # Errors
/// [`CheckpointError`]; nothing of the part is left then, if it can be removed.
pub fn save_part(
    appliers: &dyn Appliers,
    disk: Box<dyn Disk>,
    request: &SaveRequest<'_>,
) -> Result<SavedShare, CheckpointError> {
    // Before the appliers copy anything.
    let writer = PartWriter::create(disk, request.dir, request.server.0, request.nonce)?;
    let begun = begin_save(appliers, request, false)?;
    finish_part(appliers, writer, request, begun)
}

/// Orders all appliers of a server to save. When this returns, no applier passes the request's clocks without its
/// cut, the moment at which it copies the rows as they are. With `is_patient` the appliers may take any time to reach
/// these clocks; else `write_part` fails after a time limit.
///
/// # Errors
/// [`CheckpointError::ApplierGone`]. The save is cancelled at all appliers.
pub fn begin_save(
    appliers: &dyn Appliers,
    request: &SaveRequest<'_>,
    is_patient: bool,
) -> Result<BegunSave, CheckpointError> {
    let memory = Arc::new(SaveMemory::new(appliers.save_bytes()));
    match begin_copies(appliers, request, &memory) {
        Ok(pieces) => Ok(BegunSave {
            pieces,
            memory,
            is_patient,
        }),
        Err(error) => {
            memory.cancel();
            wake_all(appliers);
            Err(error)
        }
    }
}

/// Writes the part of a save that [`begin_save`] has begun, on the calling thread, as [`save_part`] does.
///
/// # Errors
/// As [`save_part`]; [`CheckpointError::Cancelled`].
pub fn write_part(
    appliers: &dyn Appliers,
    disk: Box<dyn Disk>,
    request: &SaveRequest<'_>,
    begun: BegunSave,
) -> Result<SavedShare, CheckpointError> {
    match PartWriter::create(disk, request.dir, request.server.0, request.nonce) {
        Ok(writer) => finish_part(appliers, writer, request, begun),
        Err(error) => {
            drop(begun);
            wake_all(appliers);
            Err(error)
        }
    }
}

fn finish_part(
    appliers: &dyn Appliers,
    writer: PartWriter,
    request: &SaveRequest<'_>,
    begun: BegunSave,
) -> Result<SavedShare, CheckpointError> {
    let saved = write_copies(appliers, writer, request, &begun);
    let saved = match saved {
        Err(_) if begun.memory.is_cancelled() => Err(CheckpointError::Cancelled {
            path: request.dir.to_owned(),
        }),
        saved => saved,
    };
    drop(begun);
    if saved.is_err() {
        wake_all(appliers);
    }
    saved
}

fn write_copies(
    appliers: &dyn Appliers,
    mut writer: PartWriter,
    request: &SaveRequest<'_>,
    begun: &BegunSave,
) -> Result<SavedShare, CheckpointError> {
    let BegunSave { pieces, memory, .. } = begun;
    let mut deadline = Deadline::after(FILE_ORDERS_TIMEOUT);
    let mut uncut = match begun.is_patient {
        true => usize::from(appliers.count()),
        false => 0,
    };
    let mut missing: BTreeSet<u16> = (0..appliers.count()).collect();
    let mut share = Share::default();
    wake_all(appliers);
    while let Some(&applier) = missing.first() {
        let (from, piece) = match pieces.recv_timeout(CANCEL_POLL.min(deadline.left())) {
            Ok(piece) => piece,
            // Each applier drops its end when it is done or has ended.
            Err(RecvTimeoutError::Disconnected) => {
                return Err(CheckpointError::ApplierGone { applier });
            }
            Err(RecvTimeoutError::Timeout) if memory.is_cancelled() => {
                let path = request.dir.to_owned();
                return Err(CheckpointError::Cancelled { path });
            }
            Err(RecvTimeoutError::Timeout) if uncut > 0 => {
                deadline = Deadline::after(FILE_ORDERS_TIMEOUT);
                continue;
            }
            Err(RecvTimeoutError::Timeout) if !deadline.passed() => continue,
            Err(RecvTimeoutError::Timeout) => {
                return Err(CheckpointError::Stalled {
                    appliers: missing.iter().copied().collect(),
                    seconds: FILE_ORDERS_TIMEOUT.as_secs(),
                });
            }
        };
        match piece {
            SavePiece::Cut { clocks, settings } => {
                uncut = uncut.saturating_sub(1);
                share.add(clocks, settings);
            }
            SavePiece::Records {
                table,
                partition,
                records,
                bytes,
            } => {
                writer.records(table.0, partition, records, &bytes)?;
                if memory.written(bytes.len()) {
                    wake_all(appliers);
                }
            }
            SavePiece::Done => {
                missing.remove(&from);
            }
            SavePiece::Failed { table, why } => {
                return Err(CheckpointError::Store {
                    table: table.0,
                    what: why,
                });
            }
        }
    }
    let part = writer.finish()?;
    let file = SavedFile {
        server: request.server.0,
        clocks: share.clocks,
        ..part
    };
    Ok(SavedShare {
        file,
        settings: share.settings,
        cut_ms: share.cut_ms.unwrap_or_else(unix_ms),
    })
}

/// Orders every applier to copy its share, without waiting for the copies. Returns the channel on which they arrive,
/// each with its applier's number; it closes when all appliers are done.
fn begin_copies(
    appliers: &dyn Appliers,
    request: &SaveRequest<'_>,
    memory: &Arc<SaveMemory>,
) -> Result<Receiver<(u16, SavePiece)>, CheckpointError> {
    let (out, pieces) = unbounded();
    for applier in 0..appliers.count() {
        let owner = Owner {
            server: request.server,
            applier: ApplierId(applier),
        };
        let share = |table: &TableInfo| (table.id, table.placement.owned_by(owner).collect());
        let clocks = request.clocks.iter().map(|at| (at.domain, at.clock));
        let order = SaveOrder {
            applier,
            shares: request.tables.iter().map(share).collect(),
            clocks: clocks.collect(),
            out: out.clone(),
            memory: Arc::clone(memory),
        };
        ask(appliers, applier, move |engine| engine.begin_save(order))?;
    }
    Ok(pieces)
}

fn wake_all(appliers: &dyn Appliers) {
    (0..appliers.count()).for_each(|applier| appliers.wake(ApplierId(applier)));
}

/// Collected reports of the appliers at their cuts, the moments at which they begin to copy their rows.
#[derive(Default)]
struct Share {
    /// Lowest clock of each domain.
    clocks: Vec<DomainClock>,
    /// First reported optimizer setting of each table.
    settings: Vec<TableSetting>,
    /// Time of the first cut, in milliseconds since 1970.
    cut_ms: Option<u64>,
}

impl Share {
    fn add(&mut self, clocks: Vec<(DomainId, u64)>, settings: Vec<(TableId, Optimizer)>) {
        self.cut_ms.get_or_insert_with(unix_ms);
        for (table, optimizer) in settings {
            if !self.settings.iter().any(|known| known.table == table) {
                self.settings.push(TableSetting { table, optimizer });
            }
        }
        for (domain, clock) in clocks {
            match self.clocks.iter_mut().find(|known| known.domain == domain) {
                Some(known) if mutants::on(Mutant::NewestPartClocks) => {
                    known.clock = known.clock.max(clock);
                }
                Some(known) => known.clock = known.clock.min(clock),
                None => self.clocks.push(DomainClock { domain, clock }),
            }
        }
    }
}

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

/// Chunks that one applier stores in one step.
#[derive(Default)]
struct Batch {
    /// Partition and payload of each chunk.
    chunks: Vec<(u32, Vec<u8>)>,
    /// Length of all payloads in bytes.
    bytes: usize,
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
        let found = records(&self.spec, PartitionId(chunk.partition), &payload);
        if found.map(|records| records.len() as u64) != Some(chunk.records) {
            return Err(reader.damaged(chunk.at, "records of this chunk do not fit the table"));
        }
        let batch = self.waiting.entry(applier).or_default();
        batch.bytes += payload.len();
        batch.chunks.push((chunk.partition, payload));
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
            let all = |(partition, bytes): &(u32, Vec<u8>)| {
                let records = records(&spec, PartitionId(*partition), bytes).unwrap_or_default();
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
