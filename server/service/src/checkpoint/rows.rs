//! Copies rows from appliers to a part, and from parts to appliers.

use std::path::Path;
use std::sync::Arc;

use crossbeam_channel::bounded;
use tidewater_protocol::ids::{ApplierId, PartitionId, ServerId, TableId};
use tidewater_protocol::mutants::{self, Mutant};
use tidewater_protocol::placement::Owner;
use tidewater_protocol::table::TableSpec;
use tidewater_protocol::wire::control::{DomainClock, TableInfo, TableSetting};

use super::disk::Disk;
use super::error::CheckpointError;
use super::manifest::{MANIFEST_NAME, SavedFile, read_manifest};
use super::part::{PartReader, PartWriter};
use tidewater_engine::apply::engine::Engine;
use tidewater_engine::apply::records::RecordShape;
use tidewater_engine::apply::table::Table;

/// The appliers of a server, as a save or load reaches them.
pub trait Appliers {
    /// Number of appliers of the server.
    fn count(&self) -> u16;

    /// Runs `f` on an applier's thread between two frames and waits for its end; `false` if the
    /// applier has ended.
    fn run(&self, applier: ApplierId, f: Box<dyn FnOnce(&mut Engine) + Send>) -> bool;
}

/// Runs `f` on an applier's thread and returns its result.
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

/// A server's part of a save: its file, and the rules that differ from the definition of their table.
#[derive(Debug)]
pub struct SavedShare {
    /// File that was written.
    pub file: SavedFile,
    /// Rules set after their table was created.
    pub settings: Vec<TableSetting>,
}

/// Writes a server's part of a save: its share of `tables`, applier after applier. `nonce` must be
/// random. Each applier does nothing else while its share is written.
///
/// # Errors
/// [`CheckpointError`]; nothing of the part is left then, if it can be removed.
pub fn save_part(
    appliers: &dyn Appliers,
    disk: Box<dyn Disk>,
    server: ServerId,
    tables: &[TableInfo],
    dir: &Path,
    nonce: u64,
) -> Result<SavedShare, CheckpointError> {
    let mut settings: Vec<TableSetting> = Vec::new();
    let mut writer = PartWriter::create(disk, dir, server.0, nonce)?;
    let mut clocks: Vec<DomainClock> = Vec::new();
    for applier in 0..appliers.count() {
        let owner = Owner {
            server,
            applier: ApplierId(applier),
        };
        let shares: Vec<(TableId, Vec<PartitionId>)> = tables
            .iter()
            .map(|table| (table.id, table.placement.owned_by(owner).collect()))
            .collect();
        let (written, told, set) = ask(appliers, applier, move |engine| {
            // All tables of a save belong to one job. An applier without a share has no part in its
            // clocks.
            let of = |id: &TableId| Some(engine.table(*id)?.namespace);
            let namespace = shares.iter().map(|(id, _)| id).find_map(of);
            let set: Vec<TableSetting> = shares
                .iter()
                .filter(|(_, parts)| !parts.is_empty())
                .filter_map(|(id, _)| setting_of(engine.table(*id)?))
                .collect();
            let written = shares
                .into_iter()
                .try_fold(writer, |writer, (table, parts)| {
                    write_share(engine, writer, table, &parts)
                });
            let told = namespace.map(|namespace| engine.domain_clocks(namespace));
            (written, told.unwrap_or_default(), set)
        })?;
        writer = written?;
        for setting in set {
            if !settings.iter().any(|known| known.table == setting.table) {
                settings.push(setting);
            }
        }
        for (domain, clock) in told {
            match clocks.iter_mut().find(|known| known.domain == domain) {
                Some(known) if mutants::on(Mutant::NewestPartClocks) => {
                    known.clock = known.clock.max(clock);
                }
                Some(known) => known.clock = known.clock.min(clock),
                None => clocks.push(DomainClock { domain, clock }),
            }
        }
    }
    let part = writer.finish()?;
    let file = SavedFile {
        server: server.0,
        clocks,
        ..part
    };
    Ok(SavedShare { file, settings })
}

/// The rule of a table whose hyper-parameters were set.
fn setting_of(table: &Table) -> Option<TableSetting> {
    let (optimizer, table_id) = (table.optimizer(), table.id);
    (optimizer != table.spec.optimizer).then_some(TableSetting {
        table: table_id,
        optimizer,
    })
}

fn write_share(
    engine: &mut Engine,
    mut writer: PartWriter,
    table: TableId,
    partitions: &[PartitionId],
) -> Result<PartWriter, CheckpointError> {
    let other = |what| CheckpointError::Store {
        table: table.0,
        what,
    };
    for &partition in partitions {
        engine.copy_records((table, partition), other, |key, values, state| {
            writer.record((table.0, partition.0), key, values, state)
        })?;
    }
    Ok(writer)
}

/// Fills a server's share of a table that was created with the saved definition, from the files of
/// all servers of the saved model.
///
/// # Errors
/// [`CheckpointError`] names the file and the failed check; the table is then partly filled, and
/// must not be used.
pub fn load_table(
    appliers: &dyn Appliers,
    server: ServerId,
    table: &TableInfo,
    dir: &Path,
) -> Result<(), CheckpointError> {
    let manifest = read_manifest(dir)?;
    let refuse = |what: String| CheckpointError::Table {
        path: dir.join(MANIFEST_NAME),
        table: table.spec.name.clone(),
        what,
    };
    let saved = manifest
        .tables
        .iter()
        .find(|saved| saved.spec.name == table.spec.name);
    let saved = saved.ok_or_else(|| refuse("none of this name".into()))?;
    if saved.spec != table.spec {
        return Err(refuse(format!("saved as {:?}", saved.spec)));
    }
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
    for file in &manifest.files {
        load_file(appliers, server, table, saved.id, (dir, file))?;
    }
    for &applier in &mine {
        ask(appliers, applier, move |engine| engine.end_restore(id))?.map_err(store)?;
    }
    Ok(())
}

fn owns_any(table: &TableInfo, owner: Owner) -> bool {
    table.placement.owned_by(owner).next().is_some()
}

fn load_file(
    appliers: &dyn Appliers,
    server: ServerId,
    table: &TableInfo,
    saved: u32,
    (dir, file): (&Path, &SavedFile),
) -> Result<(), CheckpointError> {
    let spec = Arc::new(table.spec.clone());
    let mut reader = PartReader::open(dir, file)?;
    let owner_of = |partition| table.placement.owner(PartitionId(partition));
    let is_mine = |table, partition| {
        table == saved && owner_of(partition).is_some_and(|owner| owner.server == server)
    };
    let mut payload = Vec::new();
    while let Some((partition, count)) = reader.next(is_mine, &mut payload)? {
        let Some(owner) = owner_of(partition) else {
            continue;
        };
        let bytes = std::mem::take(&mut payload);
        let whole = records(&spec, PartitionId(partition), &bytes);
        if whole.map(|records| records.len() as u64) != Some(count) {
            return Err(reader.damaged(reader.at(), "records of this chunk do not fit the table"));
        }
        let (id, spec) = (table.id, Arc::clone(&spec));
        let (stored, bytes) = ask(appliers, owner.applier.0, move |engine| {
            let records = records(&spec, PartitionId(partition), &bytes).unwrap_or_default();
            (engine.restore(id, records.into_iter()), bytes)
        })?;
        stored.map_err(|what| CheckpointError::Store { table: id.0, what })?;
        payload = bytes;
    }
    Ok(())
}

/// A record of a chunk: key, values, state.
pub(super) type Record<'a> = (u64, &'a [u8], &'a [u8]);

/// The records of a chunk; `None` if the bytes are not complete records of this partition.
pub(super) fn records<'a>(
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
