//! Files of saved models: damaged ones are never accepted as a model, hostile ones do no harm.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tempfile::TempDir;
use tidewater_checkpoint::decoders::{DECODERS, specs};
use tidewater_checkpoint::{
    Appliers, CheckpointError, Disk, MANIFEST_NAME, Manifest, OsDisk, PartReader, PartWriter,
    SaveRequest, SavedFile, SavedModel, SavedTable, commit, load_table, save_part,
};
use tidewater_engine::apply::engine::Engine;
use tidewater_engine::apply::table::Table;
use tidewater_engine::namespace::FrameSender;
use tidewater_engine::store::ServerMemory;
use tidewater_engine::store::ShardId;
use tidewater_engine::store::prealloc::Preallocator;
use tidewater_lanes::tcp::op::DECODERS as TCP;
use tidewater_protocol::ids::{ApplierId, Incarnation, PartitionId, ServerId, TableId, WorkerId};
use tidewater_protocol::layout::decoders::DECODERS as LAYOUT;
use tidewater_protocol::layout::frame::RowsPayload;
use tidewater_protocol::layout::frame::{FrameFlags, FrameHeader, FrameKind, PARTITION_ANY};
use tidewater_protocol::placement::{Owner, Placement};
use tidewater_protocol::table::{DType, Optimizer, PushOp, Shape, TableSpec};
use tidewater_protocol::wire::control::{CheckpointMark, TableInfo};
use tidewater_protocol::wire::decoders::DECODERS as WIRE;

use crate::fuzzing::{Random, mutate};
use crate::rig::CAPACITY;
use crate::search::decoders_below;

/// A complete load costs as much as reading this number of files.
const EXECS_PER_LOAD: u64 = 50;
/// Peak resident memory of all targets of this binary, in KiB.
const PEAK_KIB_MAX: u64 = 512 << 10;

/// The file system without waits for the disk.
#[derive(Clone, Copy)]
struct Fast;

impl Disk for Fast {
    fn create(&mut self, path: &Path) -> std::io::Result<fs::File> {
        OsDisk.create(path)
    }

    fn write(&mut self, file: &mut fs::File, bytes: &[u8]) -> std::io::Result<()> {
        OsDisk.write(file, bytes)
    }

    fn sync(&mut self, _: &fs::File, _: &Path) -> std::io::Result<()> {
        Ok(())
    }

    fn rename(&mut self, from: &Path, to: &Path) -> std::io::Result<()> {
        OsDisk.rename(from, to)
    }

    fn link(&mut self, from: &Path, to: &Path) -> std::io::Result<()> {
        OsDisk.link(from, to)
    }

    fn sync_dir(&mut self, _: &Path) -> std::io::Result<()> {
        Ok(())
    }

    fn remove(&mut self, path: &Path) -> std::io::Result<()> {
        OsDisk.remove(path)
    }
}

/// The only applier of a server, without a thread.
struct Server(RefCell<Engine>);

impl Appliers for Server {
    fn count(&self) -> u16 {
        1
    }

    fn run(&self, _: ApplierId, f: Box<dyn FnOnce(&mut Engine) + Send>) -> bool {
        f(&mut self.0.borrow_mut());
        true
    }

    fn wake(&self, _: ApplierId) {
        while self.0.borrow_mut().save_step() {}
    }

    fn save_bytes(&self) -> usize {
        CAPACITY
    }
}

/// Returns the tables of [`specs`], all of one applier.
fn tables() -> Vec<TableInfo> {
    let owner = Owner {
        server: ServerId(0),
        applier: ApplierId(0),
    };
    let info = |(id, spec): (u32, TableSpec)| TableInfo {
        id: TableId(id),
        placement: Placement(vec![owner; spec.partitions as usize]),
        spec,
    };
    (1..).zip(specs()).map(info).collect()
}

/// Number of the table in [`specs`] from which rows can be removed.
fn sparse_table() -> TableId {
    let is_sparse = |table: &TableInfo| matches!(table.spec.shape, Shape::Sparse { .. });
    tables().into_iter().find(is_sparse).unwrap().id
}

impl Server {
    fn new() -> Self {
        let memory = Arc::new(ServerMemory::new(CAPACITY, Incarnation(1)).unwrap());
        let mut engine = Engine::new(Arc::clone(&memory), 0, [WorkerId(0)]).unwrap();
        for TableInfo { id, spec, .. } in tables() {
            let mine = (0..spec.partitions).map(PartitionId);
            let table = Table::new(
                &memory,
                &Preallocator::none(),
                ShardId::new(id, 0),
                &Arc::new(spec),
                mine,
            );
            engine.add_table(table.unwrap());
        }
        Self(RefCell::new(engine))
    }

    /// Pushes to every table: as a gradient where there is an optimizer.
    fn push(&self) {
        for TableInfo { id, spec, .. } in tables() {
            let op = match spec.optimizer {
                Optimizer::None => PushOp::Sum,
                _ => PushOp::Gradient,
            };
            let by_range = spec.name == "blocks";
            let (count, dim) = match spec.shape {
                Shape::Sparse { dim } => (8, dim as usize),
                Shape::Dense { rows, cols, .. } => (rows as usize, cols as usize),
            };
            let values = one(spec.dtype).repeat(count * dim);
            let payload = if by_range {
                [&0u64.to_le_bytes()[..], &values].concat()
            } else {
                let parts = RowsPayload::new(count, dim * spec.dtype.size(), false);
                let mut payload: Vec<u8> = (0..count as u64).flat_map(u64::to_le_bytes).collect();
                payload.resize(parts.values_at, 0);
                [payload, values].concat()
            };
            let header = FrameHeader {
                kind: if by_range {
                    FrameKind::PushDense
                } else {
                    FrameKind::PushRows
                },
                flags: FrameFlags {
                    op: Some(op),
                    dtype: Some(spec.dtype),
                    ..FrameFlags::default()
                },
                seq: 1,
                session: 0,
                payload_len: payload.len() as u32,
                count: count as u32,
                table: id.0,
                partition: if by_range { 0 } else { PARTITION_ANY },
                clock: 0,
                user_tag: 0,
                checksum: 0,
            };
            let sender = FrameSender::first(WorkerId(0));
            let done = self.0.borrow_mut().frame(sender, &header, &payload);
            assert!(done.is_ok(), "{}: {done:?}", spec.name);
        }
    }

    fn save(&self, dir: &Path, nonce: u64, mark: Option<CheckpointMark>) -> SavedFile {
        let request = SaveRequest {
            server: ServerId(0),
            tables: &tables(),
            clocks: &[],
            mark,
            dir,
            nonce,
        };
        let saved = save_part(self, Box::new(Fast), &request);
        saved.unwrap().file
    }

    fn load(&self, dir: &Path) -> Result<(), CheckpointError> {
        let model = SavedModel::open(dir)?;
        let mut tables = tables().into_iter();
        tables.try_for_each(|table| load_table(self, ServerId(0), &table, &model))
    }
}

fn one(dtype: DType) -> Vec<u8> {
    match dtype {
        DType::F32 => 1f32.to_le_bytes().to_vec(),
        DType::F64 => 1f64.to_le_bytes().to_vec(),
        _ => 1i32.to_le_bytes().to_vec(),
    }
}

fn manifest_of(files: Vec<SavedFile>) -> Manifest {
    let saved = |table: TableInfo| SavedTable {
        id: table.id.0,
        // As if the rate had been set where there is one.
        optimizer: (table.spec.optimizer != Optimizer::None)
            .then(|| table.spec.optimizer.with_rate(0.5)),
        spec: table.spec,
    };
    let tables = tables().into_iter().map(saved).collect();
    Manifest::new("fuzz".into(), tables, files)
}

/// Saved models: the manifest's text and the only part of each.
struct Corpus {
    manifests: Vec<Vec<u8>>,
    parts: Vec<Vec<u8>>,
    files: Vec<SavedFile>,
}

impl Corpus {
    fn new() -> Self {
        let (mut manifests, mut parts, mut files) = (Vec::new(), Vec::new(), Vec::new());
        let server = Server::new();
        for nonce in [1, u64::MAX] {
            let dir = tempfile::tempdir().unwrap();
            let file = server.save(dir.path(), nonce, None);
            commit(&mut Fast, dir.path(), &manifest_of(vec![file.clone()])).unwrap();
            manifests.push(fs::read(dir.path().join(MANIFEST_NAME)).unwrap());
            parts.push(fs::read(dir.path().join(&file.file)).unwrap());
            files.push(file);
            server.push();
        }
        let dir = tempfile::tempdir().unwrap();
        let mark = |number, extends| {
            let notes = true;
            Some(CheckpointMark {
                number,
                extends,
                notes,
            })
        };
        let base = server.save(dir.path(), 2, mark(1, None));
        server.push();
        let removed = server.0.borrow_mut().remove_row(sparse_table(), 3);
        assert!(removed.unwrap());
        let changed = SavedFile {
            extends: Some(base.file.clone()),
            ..server.save(dir.path(), 3, mark(2, Some(1)))
        };
        let manifest = manifest_of(vec![base, changed.clone()]);
        commit(&mut Fast, dir.path(), &manifest).unwrap();
        manifests.push(fs::read(dir.path().join(MANIFEST_NAME)).unwrap());
        parts.push(fs::read(dir.path().join(&changed.file)).unwrap());
        files.push(changed);
        Self {
            manifests,
            parts,
            files,
        }
    }

    /// Seed inputs for an entry of the registry.
    fn seeds(&self, entry: &str) -> Vec<Vec<u8>> {
        match entry {
            "model-manifest" => {
                let bare = |files| serde_json::to_vec(&manifest_of(files)).unwrap();
                let named = |name: &str| SavedFile {
                    file: name.into(),
                    ..self.files[0].clone()
                };
                let mut seeds = self.manifests.clone();
                seeds.push(bare(self.files.clone()));
                // A process that can write a manifest can name any file.
                seeds
                    .extend(["/etc/passwd", "../part-0-0.tidewater"].map(|f| bare(vec![named(f)])));
                seeds
            }
            "model-part" => self.parts.clone(),
            "model-records" => self.chunks(),
            other => panic!("{other} has no seeds"),
        }
    }

    /// Chunks of the parts, after the bytes that name their table and partition.
    fn chunks(&self) -> Vec<Vec<u8>> {
        let mut chunks = Vec::new();
        for (part, file) in self.parts.iter().zip(&self.files) {
            let reader = PartReader::new(&part[..], PathBuf::new(), file).unwrap();
            for chunk in reader.chunks() {
                let mut payload = Vec::new();
                reader.read(chunk, &mut payload).unwrap();
                let [table, partition] = [chunk.table - 1, chunk.partition].map(|n| n as u8);
                chunks.push([&[table, partition][..], &payload].concat());
            }
        }
        chunks
    }
}

fn mutated<'a>(input: &'a mut Vec<u8>, corpus: &[Vec<u8>], random: &mut Random) -> &'a [u8] {
    input.clear();
    input.extend_from_slice(&corpus[random.under(corpus.len())]);
    for _ in 0..1 + random.under(4) {
        mutate(input, corpus, random);
    }
    input
}

/// With `TIDEWATER_FUZZ_EXPORT=DIR`, writes the seeds there for `cargo fuzz`. Each begins with a
/// byte for the decoder's position, which counts from the end of those of the transport.
fn export(position: usize, name: &str, seeds: &[Vec<u8>]) {
    let Ok(dir) = std::env::var("TIDEWATER_FUZZ_EXPORT") else {
        return;
    };
    fs::create_dir_all(&dir).unwrap();
    let index = WIRE.len() + TCP.len() + LAYOUT.len() + position;
    for (number, seed) in seeds.iter().enumerate() {
        let bytes = [&[index as u8][..], seed].concat();
        fs::write(Path::new(&dir).join(format!("{name}-{number}")), bytes).unwrap();
    }
}

/// Peak resident memory of this process, in KiB.
fn peak_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    line.unwrap()
        .split_whitespace()
        .nth(1)
        .unwrap()
        .parse()
        .unwrap()
}

#[test]
fn every_decoder_of_models_survives() {
    let corpus = Corpus::new();
    for (position, (name, decode)) in DECODERS.iter().enumerate() {
        let seeds = corpus.seeds(name);
        export(position, name, &seeds);
        for seed in seeds.iter().map(Vec::as_slice).chain([&[][..]]) {
            decode(seed);
        }
        crate::run(name, crate::execs(), Vec::new, |input, seed, exec| {
            let mut random = Random::of(seed, name, exec);
            decode(mutated(input, &seeds, &mut random));
        });
    }
    assert!(peak_kib() < PEAK_KIB_MAX, "peak memory {} KiB", peak_kib());
}

#[test]
fn no_damaged_file_is_taken_for_a_model() {
    let corpus = Corpus::new();
    let path = Path::new(MANIFEST_NAME);
    let good = |text: &Vec<u8>| Manifest::from_text(text, path).unwrap();
    let models: Vec<Manifest> = corpus.manifests.iter().map(good).collect();
    crate::run(
        "manifests",
        crate::execs(),
        Vec::new,
        |input, seed, exec| {
            let mut random = Random::of(seed, "manifests", exec);
            let text = mutated(input, &corpus.manifests, &mut random);
            // Blanks may differ, but nothing with a meaning.
            if let Ok(model) = Manifest::from_text(text, path) {
                assert!(models.contains(&model), "{model:?}");
            }
        },
    );
    let whole = |part: &[u8], file: &SavedFile| -> Result<(), CheckpointError> {
        let reader = PartReader::new(part, PathBuf::new(), file)?;
        let mut chunks = reader.chunks().iter();
        chunks.try_for_each(|chunk| reader.read(chunk, &mut Vec::new()))
    };
    for (part, file) in corpus.parts.iter().zip(&corpus.files) {
        whole(part, file).unwrap();
    }
    crate::run("parts", crate::execs(), Vec::new, |input, seed, exec| {
        let mut random = Random::of(seed, "parts", exec);
        let part = mutated(input, &corpus.parts, &mut random);
        let which = random.under(corpus.files.len());
        // A different length would be detected before anything else.
        let file = SavedFile {
            bytes: part.len() as u64,
            ..corpus.files[which].clone()
        };
        let taken = whole(part, &file).is_ok();
        assert!(
            !taken || part == corpus.parts[which],
            "a damaged part is taken"
        );
    });
}

/// A directory with a model and a part of valid format but hostile content.
struct Hostile {
    dir: TempDir,
    server: Server,
    chunks: Vec<Vec<u8>>,
    loaded: u64,
    refused: u64,
}

impl Hostile {
    fn new() -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
            server: Server::new(),
            chunks: Corpus::new().chunks(),
            loaded: 0,
            refused: 0,
        }
    }

    /// Writes any records with every checksum right; then loads them and continues training.
    fn one(&mut self, seed: u64, exec: u64) {
        let mut random = Random::of(seed, "models", exec);
        let create = |nonce| PartWriter::create(Box::new(Fast), self.dir.path(), 0, nonce).unwrap();
        // One of three extends an empty part, and may remove rows.
        let base = (random.under(3) == 0).then(|| create(!exec).finish().unwrap());
        let mut part = create(exec);
        let mut input = Vec::new();
        for _ in 0..1 + random.under(3) {
            let is_whole = random.under(3) == 0;
            let chunk = if is_whole {
                &self.chunks[random.under(self.chunks.len())]
            } else {
                mutated(&mut input, &self.chunks, &mut random)
            };
            let [table, partition, payload @ ..] = chunk else {
                continue;
            };
            let (number, partition) = (u32::from(*table) + 1, u32::from(*partition));
            if base.is_some() && random.under(2) == 0 {
                let keys: Vec<u64> = payload
                    .as_chunks()
                    .0
                    .iter()
                    .map(|key| u64::from_le_bytes(*key))
                    .collect();
                part.removed(number, partition, &keys).unwrap();
                continue;
            }
            // As many records as fit; the bytes are random.
            let spec = &specs()[usize::from(*table) % specs().len()];
            let len = match spec.name.as_str() {
                "blocks" => payload.len().max(8),
                _ => 8 + record_bytes(spec),
            };
            for record in payload.chunks(len) {
                if record.len() >= 8 {
                    part.records(number, partition, 1, record).unwrap();
                }
            }
        }
        let file = SavedFile {
            extends: base.as_ref().map(|base| base.file.clone()),
            ..part.finish().unwrap()
        };
        let files = base.into_iter().chain([file]).collect();
        commit(&mut Fast, self.dir.path(), &manifest_of(files)).unwrap();
        match self.server.load(self.dir.path()) {
            Ok(()) => self.loaded += 1,
            Err(_) => self.refused += 1,
        }
        self.server.push();
        assert!(self.server.0.borrow().failed.is_none());
    }
}

/// Bytes of a row and its state in a record.
fn record_bytes(spec: &TableSpec) -> usize {
    let elements = spec.dim();
    elements * spec.dtype.size() + spec.optimizer.state_bytes(elements, spec.dtype)
}

#[test]
fn a_hostile_model_is_loaded_or_refused_and_training_goes_on() {
    let execs = crate::execs() / EXECS_PER_LOAD;
    let (mut loaded, mut refused) = (0, 0);
    crate::run("models", execs, Hostile::new, |hostile, seed, exec| {
        hostile.one(seed, exec);
        loaded += std::mem::take(&mut hostile.loaded);
        refused += std::mem::take(&mut hostile.refused);
    });
    println!("models: {loaded} loaded, {refused} refused");
    assert!(
        loaded > execs / 20 && refused > execs / 20,
        "{loaded} {refused}"
    );
}

/// Entries of the registry, and the functions that each runs.
const COVERED: &[(&str, &[&str])] = &[
    ("model-manifest", &["manifest::Manifest::from_text"]),
    (
        "model-part",
        &["chunk::Head::decode", "chunk::Line::decode"],
    ),
    ("model-records", &["load::records", "load::removed_keys"]),
];

/// Found by the search: a writer, an order without bytes, and a search among models that decodes manifests.
const EXCUSED: [&str; 4] = [
    "part::PartWriter::append",
    "part::PartWriter::records",
    "rows::release_clocks",
    "series::find",
];

#[test]
fn no_decoder_of_models_is_forgotten() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../checkpoint/src");
    let mut in_source = decoders_below(&[folder]);
    for excused in EXCUSED {
        assert!(in_source.remove(excused), "{excused}");
    }
    let covered = COVERED.iter().flat_map(|(_, runs)| *runs);
    let covered: BTreeSet<String> = covered.map(|name| (*name).to_owned()).collect();
    assert_eq!(
        in_source, covered,
        "run each in an entry of DECODERS and name it here"
    );
    let told: Vec<&str> = COVERED.iter().map(|(entry, _)| *entry).collect();
    let registered: Vec<&str> = DECODERS.iter().map(|(entry, _)| *entry).collect();
    assert_eq!(told, registered);
}
