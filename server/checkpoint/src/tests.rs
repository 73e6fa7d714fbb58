//! Round trips over other numbers of servers, damage, and crashes at every step of a save.

mod definitions;
mod disk;
mod incremental;
mod version_one;
mod version_two;

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use tidewater_engine::apply::engine::Engine;
use tidewater_protocol::ids::{DomainId, WorkerId, WorkerThread};
use tidewater_protocol::table::{Apply, DType, Optimizer, Shape, TableSpec};

use super::*;
use crate::testing::{Cluster, Model, read_all, spec, specs};

/// A disk that dies before its n-th step. What was not made durable is lost.
#[derive(Clone, Default)]
struct CutDisk(Arc<Mutex<Cut>>);

#[derive(Default)]
struct Cut {
    steps_left: Option<usize>,
    steps: usize,
    dead: bool,
    unsynced: Vec<PathBuf>,
    /// Renames that are not durable: from, to, and the previous content of `to`.
    renames: Vec<(PathBuf, PathBuf, Option<Vec<u8>>)>,
}

impl CutDisk {
    fn after(steps: usize) -> Self {
        Self(Arc::new(Mutex::new(Cut {
            steps_left: Some(steps),
            ..Cut::default()
        })))
    }

    fn steps(&self) -> usize {
        self.0.lock().unwrap().steps
    }

    fn step<T>(&self, f: impl FnOnce(&mut Cut) -> io::Result<T>) -> io::Result<T> {
        let cut = &mut *self.0.lock().unwrap();
        if !cut.dead && cut.steps_left == Some(cut.steps) {
            cut.dead = true;
            for (from, to, before) in cut.renames.drain(..).rev() {
                fs::rename(&to, &from).unwrap();
                if let Some(bytes) = before {
                    fs::write(&to, bytes).unwrap();
                }
            }
            for path in cut.unsynced.drain(..).filter(|path| path.exists()) {
                let file = File::options().write(true).open(&path).unwrap();
                file.set_len(file.metadata().unwrap().len() / 2).unwrap();
            }
        }
        if cut.dead {
            return Err(io::Error::other("the machine is dead"));
        }
        cut.steps += 1;
        f(cut)
    }
}

impl Disk for CutDisk {
    fn create(&mut self, path: &Path) -> io::Result<File> {
        self.step(|cut| {
            cut.unsynced.push(path.to_owned());
            File::create_new(path)
        })
    }

    fn write(&mut self, file: &mut File, bytes: &[u8]) -> io::Result<()> {
        self.step(|_| file.write_all(bytes))
    }

    fn sync(&mut self, _file: &File, path: &Path) -> io::Result<()> {
        self.step(|cut| {
            cut.unsynced.retain(|other| other != path);
            Ok(())
        })
    }

    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        self.step(|cut| {
            cut.renames
                .push((from.to_owned(), to.to_owned(), fs::read(to).ok()));
            // Bytes that were not synced are lost under the new name.
            cut.unsynced
                .iter_mut()
                .filter(|path| *path == from)
                .for_each(|p| to.clone_into(p));
            fs::rename(from, to)
        })
    }

    fn link(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        self.step(|_| fs::hard_link(from, to))
    }

    fn sync_dir(&mut self, _dir: &Path) -> io::Result<()> {
        self.step(|cut| {
            cut.renames.clear();
            Ok(())
        })
    }

    fn remove(&mut self, path: &Path) -> io::Result<()> {
        self.step(|cut| {
            cut.unsynced.retain(|other| other != path);
            fs::remove_file(path)
        })
    }
}

#[test]
fn a_model_survives_moves_to_other_numbers_of_servers_bit_by_bit() {
    let (dir, disk) = (tempfile::tempdir().unwrap(), CutDisk::default());
    let first = Cluster::new(&[2]);
    first.fill(1);
    let model = first.model();
    assert!(model.len() > 300 + 53, "{} records", model.len());
    first.save(&disk, dir.path(), 1).unwrap();
    for (nonce, appliers) in [(10, &[1, 2, 1][..]), (20, &[1, 3][..])] {
        let next = Cluster::new(appliers);
        next.load(dir.path()).unwrap();
        assert!(next.model() == model, "{appliers:?}");
        // Into the same directory: the files of the previous save are removed.
        let manifest = next.save(&disk, dir.path(), nonce).unwrap();
        assert_eq!(manifest.rows(), model.len() as u64);
        assert_eq!(read_manifest(dir.path()).unwrap(), manifest);
        let files = fs::read_dir(dir.path()).unwrap().count();
        assert_eq!(files, appliers.len() + 1);
    }
}

#[test]
fn a_crash_at_any_step_leaves_a_whole_model() {
    let old = Cluster::new(&[1, 1]);
    old.fill(1);
    let new = Cluster::new(&[2, 1]);
    new.fill(2);
    let (before, after) = (old.model(), new.model());
    let (mut kept, mut replaced) = (0, 0);
    for cut in 0.. {
        let dir = tempfile::tempdir().unwrap();
        old.save(&CutDisk::default(), dir.path(), 1).unwrap();
        let disk = CutDisk::after(cut);
        let saved = new.save(&disk, dir.path(), 10);
        let reader = Cluster::new(&[1]);
        reader
            .load(dir.path())
            .unwrap_or_else(|error| panic!("cut before step {cut}: {error}"));
        let model = reader.model();
        if saved.is_ok() {
            assert!(
                model == after,
                "cut before step {cut}: a save that was told is lost"
            );
            replaced += 1;
        } else if model == before {
            kept += 1;
        } else {
            panic!("cut before step {cut}: neither model, or one that was not told");
        }
        // The next save cleans up what was left.
        let last = old.save(&CutDisk::default(), dir.path(), 20).unwrap();
        assert_eq!(
            fs::read_dir(dir.path()).unwrap().count(),
            last.files.len() + 1,
            "cut {cut}"
        );
        if disk.steps() < cut {
            break;
        }
    }
    assert!(kept > 20 && replaced > 2, "{kept} {replaced}");
}

/// A saved model in a directory, and its parts' names.
fn saved() -> (tempfile::TempDir, Manifest, Model) {
    let dir = tempfile::tempdir().unwrap();
    let cluster = Cluster::new(&[1]);
    cluster.fill(1);
    let manifest = cluster.save(&CutDisk::default(), dir.path(), 1).unwrap();
    (dir, manifest, cluster.model())
}

#[test]
fn no_damaged_byte_of_a_part_is_taken_for_a_value() {
    let (dir, manifest, _) = saved();
    let path = dir.path().join(&manifest.files[0].file);
    let good = fs::read(&path).unwrap();
    let read = || -> Result<(), CheckpointError> {
        let manifest = read_manifest(dir.path())?;
        read_all(dir.path(), &manifest.files[0])
    };
    read().unwrap();
    // Every byte of the first lines, then one in 997, then the end.
    let spread = (0..good.len()).filter(|at| *at < 200 || at % 997 == 0 || at + 64 >= good.len());
    for at in spread.collect::<Vec<_>>() {
        let mut bad = good.clone();
        bad[at] ^= 0x10;
        fs::write(&path, &bad).unwrap();
        let error = read().expect_err("a damaged byte");
        assert!(error.to_string().contains("part-"), "byte {at}: {error}");
    }
    for len in [0, 1, 63, 64, 100, good.len() / 2, good.len() - 1] {
        fs::write(&path, &good[..len]).unwrap();
        let error = read().unwrap_err();
        assert!(
            matches!(error, CheckpointError::Length { .. }),
            "{len}: {error}"
        );
    }
    fs::write(&path, [&good[..], &[0]].concat()).unwrap();
    assert!(matches!(read(), Err(CheckpointError::Length { .. })));
    let head = chunk::Head {
        version: 9,
        server: 0,
        nonce: 1,
    };
    fs::write(&path, [&head.encode()[..], &good[64..]].concat()).unwrap();
    let error = read().unwrap_err();
    assert!(
        matches!(error, CheckpointError::Version { found: 9, .. }),
        "{error}"
    );
    fs::remove_file(&path).unwrap();
    assert!(matches!(read(), Err(CheckpointError::Missing { .. })));
}

#[test]
fn no_damaged_byte_of_a_manifest_changes_the_model() {
    let (dir, manifest, _) = saved();
    let path = dir.path().join(MANIFEST_NAME);
    let good = fs::read(&path).unwrap();
    let mut refused = 0;
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 1;
        fs::write(&path, &bad).unwrap();
        match read_manifest(dir.path()) {
            Ok(read) => assert_eq!(read, manifest, "byte {at}"),
            Err(error) => {
                assert!(error.to_string().contains(MANIFEST_NAME), "{error}");
                refused += 1;
            }
        }
    }
    assert!(refused > good.len() / 2, "{refused} of {}", good.len());
    for len in (0..good.len() - 1).step_by(7) {
        fs::write(&path, &good[..len]).unwrap();
        assert!(read_manifest(dir.path()).is_err(), "{len} bytes");
    }
    let other = String::from_utf8(good)
        .unwrap()
        .replace("\"tidewater_model\": 3", "\"tidewater_model\": 4");
    fs::write(&path, other).unwrap();
    let error = read_manifest(dir.path()).unwrap_err();
    assert!(
        matches!(error, CheckpointError::Version { found: 4, .. }),
        "{error}"
    );
    fs::remove_file(&path).unwrap();
    assert!(matches!(
        read_manifest(dir.path()),
        Err(CheckpointError::Missing { .. })
    ));
}

#[test]
fn a_table_with_another_definition_is_not_filled() {
    let (dir, ..) = saved();
    let mut cluster = Cluster::new(&[1]);
    cluster.tables[0].spec.seed = 5;
    let error = cluster.load(dir.path()).unwrap_err();
    assert!(
        matches!(&error, CheckpointError::Table { table, .. } if table == "sparse"),
        "{error}"
    );
    cluster.tables[0].spec.name = "unknown".into();
    let error = cluster.load(dir.path()).unwrap_err().to_string();
    assert!(
        error.contains("unknown") && error.contains("none of this name"),
        "{error}"
    );
}

#[test]
fn a_part_is_named_by_what_wrote_it() {
    // A part of another save with the right name and the right length.
    let (dir, manifest, _) = saved();
    let path = dir.path().join(&manifest.files[0].file);
    let other = tempfile::tempdir().unwrap();
    let cluster = Cluster::new(&[1]);
    cluster.fill(1);
    let second = cluster.save(&CutDisk::default(), other.path(), 2).unwrap();
    fs::copy(other.path().join(&second.files[0].file), &path).unwrap();
    let error = Cluster::new(&[1]).load(dir.path()).unwrap_err();
    assert!(error.to_string().contains("another save"), "{error}");
}

/// Appliers that have read their rings up to different clocks: a save records the least clock.
#[test]
fn clocks_of_a_part_are_the_slowest_appliers() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = Cluster::new(&[3]);
    let table = cluster.tables[0].id;
    for (applier, ticks) in [(0, 5), (1, 4), (2, 6)] {
        let engine = &mut cluster.servers[0].0.borrow_mut()[applier];
        let namespace = engine.table(table).unwrap().namespace;
        for clock in 1..=ticks {
            let clocks = engine.clocks(namespace);
            clocks
                .tick(DomainId(2), WorkerThread::first(WorkerId(0)), clock)
                .unwrap();
        }
    }
    let manifest = cluster.save(&CutDisk::default(), dir.path(), 1).unwrap();
    let found = manifest.clocks();
    let of_domain = |domain: u8| found.iter().find(|clock| clock.domain == DomainId(domain));
    assert_eq!(of_domain(2).map(|clock| clock.clock), Some(4), "{found:?}");
}
