//! Servers without processes, threads or lanes, for tests that save and load their appliers; and a file system with
//! calls that fail or wait ([`faults`]). For tests of this crate and of the service.

pub mod faults;
mod specs;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use tidewater_engine::apply::engine::Engine;
use tidewater_engine::apply::records::RecordShape;
use tidewater_engine::apply::table::Table;
use tidewater_engine::store::ServerMemory;
use tidewater_engine::store::ShardId;
use tidewater_engine::store::prealloc::Preallocator;
use tidewater_protocol::ids::{ApplierId, Incarnation, ServerId, TableId, WorkerId};
use tidewater_protocol::layout::hash::mix64;
use tidewater_protocol::limits::SAVE_BYTES_DEFAULT;
use tidewater_protocol::placement::{Owner, Placement};
use tidewater_protocol::table::{Shape, TableSpec};
use tidewater_protocol::wire::control::{CheckpointMark, TableInfo};

use crate::{
    Appliers, CheckpointError, Disk, Manifest, PartReader, SaveRequest, SavedFile, SavedModel,
    SavedTable, commit, link_parts, load_table, note_settings, save_part,
};

pub use specs::{spec, specs};

/// The appliers of a server, without threads.
pub struct Local(
    /// Engine of each applier.
    pub RefCell<Vec<Engine>>,
);

impl Appliers for Local {
    fn count(&self) -> u16 {
        self.0.borrow().len() as u16
    }

    fn run(&self, applier: ApplierId, f: Box<dyn FnOnce(&mut Engine) + Send>) -> bool {
        self.0
            .borrow_mut()
            .get_mut(usize::from(applier.0))
            .map(f)
            .is_some()
    }

    fn wake(&self, applier: ApplierId) {
        let engine = &mut self.0.borrow_mut()[usize::from(applier.0)];
        while engine.save_step() {}
    }

    fn save_bytes(&self) -> usize {
        SAVE_BYTES_DEFAULT
    }
}

/// Every record of a model: (table, key) to (values, state).
pub type Model = BTreeMap<(String, u64), (Vec<u8>, Vec<u8>)>;

/// Servers with the tables of a job.
pub struct Cluster {
    /// Server of each number.
    pub servers: Vec<Local>,
    /// Tables of the job, with their places.
    pub tables: Vec<TableInfo>,
}

/// Step counts of a block of this number of elements: one, or those of two runs.
fn step_counts(block: u64, elements: u64) -> Vec<u64> {
    match block % 2 {
        0 => vec![block + 1],
        _ => vec![1 << 63 | 2, 3 << 16 | 4, 5 << 16 | (elements - 1)],
    }
}

impl Cluster {
    /// Makes servers with these numbers of appliers and the tables of [`specs`].
    pub fn new(appliers: &[u16]) -> Self {
        Self::of(specs(), appliers)
    }

    /// Makes servers with these numbers of appliers and these tables.
    pub fn of(specs: Vec<TableSpec>, appliers: &[u16]) -> Self {
        let tables = specs.into_iter().zip(1..).map(|(spec, id)| TableInfo {
            // Table numbers differ from cluster to cluster.
            id: TableId(id * 10 + appliers.len() as u32),
            placement: Placement::round_robin(spec.partitions, appliers),
            spec,
        });
        let tables: Vec<TableInfo> = tables.collect();
        let preallocator = Preallocator::start().unwrap();
        let server = |(server, &count): (usize, &u16)| {
            let incarnation = Incarnation(server as u64 + 1);
            let memory = Arc::new(ServerMemory::new(64 << 20, incarnation).unwrap());
            let engine = |applier: u16| {
                let workers = [WorkerId(0)];
                let mut engine = Engine::new(Arc::clone(&memory), applier.into(), workers).unwrap();
                for table in &tables {
                    let owner = Owner {
                        server: ServerId(server as u32),
                        applier: ApplierId(applier),
                    };
                    let spec = Arc::new(table.spec.clone());
                    let shard_id = ShardId::new(table.id, applier.into());
                    let mine = table.placement.owned_by(owner);
                    engine.add_table(
                        Table::new(&memory, &preallocator, shard_id, &spec, mine).unwrap(),
                    );
                }
                engine
            };
            Local(RefCell::new((0..count).map(engine).collect()))
        };
        let servers = appliers.iter().enumerate().map(server).collect();
        Self { servers, tables }
    }

    fn owner(&self, table: &TableInfo, key: u64) -> Owner {
        let shape = RecordShape::of(&table.spec, key).unwrap();
        table.placement.owner(shape.partition).unwrap()
    }

    /// Writes values and state from a seed into every dense record and 300 sparse rows.
    pub fn fill(&self, seed: u64) {
        for table in &self.tables {
            let keys: Vec<u64> = match table.spec.shape {
                Shape::Sparse { .. } => (0..300).map(|k| mix64(k + seed)).collect(),
                _ => (0..)
                    .take_while(|&k| RecordShape::of(&table.spec, k).is_some())
                    .collect(),
            };
            let all = |f: &dyn Fn(&mut Engine)| {
                let engines = self.servers.iter().map(|server| server.0.borrow_mut());
                engines.for_each(|mut engines| engines.iter_mut().for_each(f));
            };
            all(&|engine| engine.begin_restore(table.id).unwrap());
            for key in keys {
                let shape = RecordShape::of(&table.spec, key).unwrap();
                let word = mix64(seed ^ key) as u8;
                let values = vec![word; shape.values];
                let mut state: Vec<u8> = (0..shape.state)
                    .map(|i| word.wrapping_add(i as u8))
                    .collect();
                if shape.steps > 0 {
                    state.truncate(shape.state - 8);
                    let steps = step_counts(key, shape.steps as u64);
                    state.extend(steps.iter().flat_map(|word| word.to_le_bytes()));
                }
                let owner = self.owner(table, key);
                let mut engines = self.servers[owner.server.0 as usize].0.borrow_mut();
                let record = (key, &values[..], &state[..]);
                let engine = &mut engines[usize::from(owner.applier.0)];
                engine.restore(table.id, [record].into_iter()).unwrap();
            }
            all(&|engine| engine.end_restore(table.id).unwrap());
        }
    }

    /// Changes a few records of each table and removes a few rows of sparse ones, by random numbers.
    pub fn change(&self, seed: u64) {
        for table in &self.tables {
            let model = self.model();
            let own = model
                .iter()
                .filter(|((name, _), _)| *name == table.spec.name);
            for (n, ((_, key), (values, state))) in own.enumerate() {
                let random = mix64(seed ^ mix64(n as u64));
                let owner = self.owner(table, *key);
                let mut engines = self.servers[owner.server.0 as usize].0.borrow_mut();
                let engine = &mut engines[usize::from(owner.applier.0)];
                let is_sparse = matches!(table.spec.shape, Shape::Sparse { .. });
                match random % 10 {
                    0 => {
                        let values = vec![random as u8; values.len()];
                        let record = (*key, &values[..], &state[..]);
                        engine.begin_restore(table.id).unwrap();
                        engine.restore(table.id, [record].into_iter()).unwrap();
                        engine.end_restore(table.id).unwrap();
                    }
                    1 if is_sparse => assert!(engine.remove_row(table.id, *key).unwrap()),
                    _ => {}
                }
            }
        }
    }

    /// Copies every record of every table.
    pub fn model(&self) -> Model {
        let mut model = Model::new();
        for (s, server) in self.servers.iter().enumerate() {
            for (a, engine) in server.0.borrow_mut().iter_mut().enumerate() {
                for table in &self.tables {
                    let owner = Owner {
                        server: ServerId(s as u32),
                        applier: ApplierId(a as u16),
                    };
                    for partition in table.placement.owned_by(owner) {
                        let sink = |key, values: &[u8], state: &[u8]| {
                            let record = (values.to_vec(), state.to_vec());
                            let twice = model.insert((table.spec.name.clone(), key), record);
                            assert!(twice.is_none(), "{} {key}", table.spec.name);
                            Ok(())
                        };
                        let copied = engine.copy_records(table.id, partition, |e| e, sink);
                        copied.unwrap();
                    }
                }
            }
        }
        model
    }

    /// Saves all tables into a directory, with part names from the nonces `nonce ..`.
    ///
    /// # Errors
    /// See [`save_part`] and [`commit`].
    pub fn save<D: Disk + Clone + 'static>(
        &self,
        disk: &D,
        dir: &Path,
        nonce: u64,
    ) -> Result<Manifest, CheckpointError> {
        self.save_marked(disk, dir, nonce, None, &[])
    }

    /// Takes checkpoint `number` in a directory. With a base, the number, directory and manifest of another checkpoint,
    /// it extends that one.
    ///
    /// # Errors
    /// See [`link_parts`], [`save_part`] and [`commit`].
    pub fn checkpoint<D: Disk + Clone + 'static>(
        &self,
        disk: &D,
        dir: &Path,
        number: u64,
        base: Option<(u64, &Path, &Manifest)>,
    ) -> Result<Manifest, CheckpointError> {
        let (mut extends, mut before) = (None, &[][..]);
        if let Some((base, from, manifest)) = base {
            let names = manifest.files.iter().map(|file| file.file.clone());
            let names: Vec<String> = names.collect();
            link_parts(&mut disk.clone(), from, dir, &names)?;
            (extends, before) = (Some(base), &manifest.files[..]);
        }
        let mark = Some(CheckpointMark {
            number,
            extends,
            notes: true,
        });
        self.save_marked(disk, dir, number * 100, mark, before)
    }

    fn save_marked<D: Disk + Clone + 'static>(
        &self,
        disk: &D,
        dir: &Path,
        nonce: u64,
        mark: Option<CheckpointMark>,
        before: &[SavedFile],
    ) -> Result<Manifest, CheckpointError> {
        let saved = |t: &TableInfo| SavedTable {
            id: t.id.0,
            spec: t.spec.clone(),
            optimizer: None,
        };
        let mut tables: Vec<SavedTable> = self.tables.iter().map(saved).collect();
        let mut files = before.to_vec();
        for (s, server) in self.servers.iter().enumerate() {
            let request = SaveRequest {
                server: ServerId(s as u32),
                tables: &self.tables,
                clocks: &[],
                mark,
                dir,
                nonce: nonce + s as u64,
            };
            let share = save_part(server, Box::new(disk.clone()), &request)?;
            note_settings(&mut tables, &share.settings);
            let own = before.iter().rfind(|file| file.server == s as u32);
            files.push(SavedFile {
                extends: own.map(|file| file.file.clone()),
                ..share.file
            });
        }
        let manifest = Manifest::new("job".into(), tables, files);
        commit(&mut disk.clone(), dir, &manifest)?;
        Ok(manifest)
    }

    /// Loads all tables from a directory.
    ///
    /// # Errors
    /// See [`SavedModel::open`] and [`load_table`].
    pub fn load(&self, dir: &Path) -> Result<(), CheckpointError> {
        for (s, server) in self.servers.iter().enumerate() {
            let model = SavedModel::open(dir)?;
            for table in &self.tables {
                load_table(server, ServerId(s as u32), table, &model)?;
            }
        }
        Ok(())
    }
}

/// Reads all bytes of a part.
///
/// # Errors
/// A part that is missing, or damaged.
pub fn read_all(dir: &Path, file: &SavedFile) -> Result<(), CheckpointError> {
    let reader = PartReader::open(dir, file)?;
    let mut chunks = reader.chunks().iter();
    chunks.try_for_each(|chunk| reader.read(chunk, &mut Vec::new()))
}
