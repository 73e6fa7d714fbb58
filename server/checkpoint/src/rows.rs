//! Copies rows from a server's appliers into a part file.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, bounded, unbounded};
use tidewater_protocol::ids::{ApplierId, DomainId, PartitionId, ServerId, TableId};
use tidewater_protocol::limits::FILE_ORDERS_TIMEOUT;
use tidewater_protocol::mutants::{self, Mutant};
use tidewater_protocol::placement::{Owner, partition_of_key};
use tidewater_protocol::table::Optimizer;
use tidewater_protocol::wire::control::{CheckpointMark, DomainClock, TableInfo, TableSetting};
use tidewater_protocol::wire::refusal::Refusal;
use tidewater_runtime::clock::{Deadline, unix_ms};

use crate::CheckpointError;
use crate::disk::Disk;
use crate::manifest::SavedFile;
use crate::part::PartWriter;
use tidewater_engine::apply::engine::Engine;
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
pub(crate) fn ask<T: Send + 'static>(
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
    /// Tables that are to be saved.
    pub tables: &'a [TableInfo],
    /// Clocks of the cut, by domain. Each applier makes its cut when its minimum clocks have reached them.
    pub clocks: &'a [DomainClock],
    /// The checkpoint that is taken; `None` for a save that a worker asks for.
    pub mark: Option<CheckpointMark>,
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
    let memory = &begun.memory;
    let mut deadline = Deadline::after(FILE_ORDERS_TIMEOUT);
    let mut uncut = usize::from(appliers.count()) * usize::from(begun.is_patient);
    let mut missing: BTreeSet<u16> = (0..appliers.count()).collect();
    let mut share = Share::default();
    wake_all(appliers);
    while !missing.is_empty() {
        let wait = CANCEL_POLL.min(deadline.left());
        let (from, piece) = match begun.pieces.recv_timeout(wait) {
            Ok(piece) => piece,
            Err(RecvTimeoutError::Timeout) if uncut > 0 && !memory.is_cancelled() => {
                deadline = Deadline::after(FILE_ORDERS_TIMEOUT);
                continue;
            }
            Err(error) => match end_of(error, &missing, begun, request, deadline) {
                Some(end) => return Err(end),
                None => continue,
            },
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
            SavePiece::Removed { table, keys } => {
                for (partition, keys) in by_partition(request.tables, table, keys) {
                    writer.removed(table.0, partition.0, &keys)?;
                }
            }
            SavePiece::Done => {
                missing.remove(&from);
            }
            SavePiece::ChangesUnknown { table, why } => {
                return Err(CheckpointError::ChangesUnknown {
                    table: table.0,
                    what: why,
                });
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

/// Sorts the keys of removed rows of a saved table by their partition.
fn by_partition(
    tables: &[TableInfo],
    id: TableId,
    keys: Vec<u64>,
) -> BTreeMap<PartitionId, Vec<u64>> {
    let table = tables.iter().find(|table| table.id == id);
    let Some(TableInfo { spec, .. }) = table else {
        unreachable!("table {id} is not in the order")
    };
    let mut all = BTreeMap::<_, Vec<u64>>::new();
    for key in keys {
        let partition = partition_of_key(key, spec.partitions);
        all.entry(partition).or_default().push(key);
    }
    all
}

/// Why no more copies of the `missing` appliers come, after the wait for one has ended with `error`. `None`: they may
/// still come.
fn end_of(
    error: RecvTimeoutError,
    missing: &BTreeSet<u16>,
    begun: &BegunSave,
    request: &SaveRequest<'_>,
    deadline: Deadline,
) -> Option<CheckpointError> {
    match error {
        // Each applier drops its end when it is done or has ended.
        RecvTimeoutError::Disconnected => {
            let first = missing.first().copied();
            first.map(|applier| CheckpointError::ApplierGone { applier })
        }
        RecvTimeoutError::Timeout if begun.memory.is_cancelled() => {
            Some(CheckpointError::Cancelled {
                path: request.dir.to_owned(),
            })
        }
        RecvTimeoutError::Timeout if !deadline.passed() => None,
        RecvTimeoutError::Timeout => Some(CheckpointError::Stalled {
            appliers: missing.iter().copied().collect(),
            seconds: FILE_ORDERS_TIMEOUT.as_secs(),
        }),
    }
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
            mark: request.mark,
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
