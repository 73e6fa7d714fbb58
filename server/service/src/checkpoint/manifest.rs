//! The manifest: which files are the model, and their content.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tidewater_protocol::layout::hash::H64;
use tidewater_protocol::limits::{
    DOMAINS_MAX, MANIFEST_BYTES_MAX, NAMESPACE_BYTES_MAX, SERVERS_MAX, TABLES_MAX,
};
use tidewater_protocol::table::{Optimizer, TableSpec};
use tidewater_protocol::wire::control::{DomainClock, TableSetting};

use super::chunk::{FORMAT_VERSION, FORMAT_VERSIONS};
use super::disk::Disk;
use super::error::CheckpointError;

/// File name in a model's directory.
pub const MANIFEST_NAME: &str = "manifest.json";
const TEMPORARY_NAME: &str = "manifest.json.tmp";
/// Seed of the manifest's checksum.
const CHECK: u64 = u64::from_le_bytes(*b"manifest");

/// A saved table, with its number and definition.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedTable {
    /// Table number in the part files.
    pub id: u32,
    /// Definition of the table.
    pub spec: TableSpec,
    /// The rule at the save, if its hyper-parameters were set after the table was created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub optimizer: Option<Optimizer>,
}

/// A part file of a saved model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedFile {
    /// Number of the server that wrote it.
    pub server: u32,
    /// File name in the model's directory.
    pub file: String,
    /// Number of rows and blocks in it.
    pub rows: u64,
    /// Size of the file in bytes.
    pub bytes: u64,
    /// Running checksum over its chunks.
    pub check: u64,
    /// Clocks at which it was written: the least of the server's appliers.
    pub clocks: Vec<DomainClock>,
}

/// A saved model: its tables and the files that hold them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Namespace of the job that saved it.
    pub namespace: String,
    /// Tables of the model.
    pub tables: Vec<SavedTable>,
    /// Part files, one a server.
    pub files: Vec<SavedFile>,
    /// Milliseconds since 1970 at which it was taken, if it is a checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taken_ms: Option<u64>,
}

/// The content of the manifest file.
#[derive(Debug, Serialize, Deserialize)]
struct Envelope<M> {
    tidewater_model: u64,
    check: String,
    model: M,
}

/// The fields of every version.
#[derive(Debug, Deserialize)]
struct AnyVersion {
    tidewater_model: u64,
}

impl Manifest {
    /// Makes the manifest of these tables and files.
    pub const fn new(namespace: String, tables: Vec<SavedTable>, files: Vec<SavedFile>) -> Self {
        Self {
            namespace,
            tables,
            files,
            taken_ms: None,
        }
    }

    /// Number of rows and blocks in all files.
    pub fn rows(&self) -> u64 {
        self.files
            .iter()
            .fold(0, |sum, file| sum.saturating_add(file.rows))
    }

    /// The clocks of the model: in each domain the least of all files.
    pub fn clocks(&self) -> Vec<DomainClock> {
        let mut all: Vec<DomainClock> = Vec::new();
        for entry in self.files.iter().flat_map(|file| &file.clocks) {
            match all.iter_mut().find(|known| known.domain == entry.domain) {
                Some(known) => known.clock = known.clock.min(entry.clock),
                None => all.push(*entry),
            }
        }
        all
    }

    /// Validates and reads a manifest's text; errors name it `path`. The files that it names are
    /// validated when they are read.
    ///
    /// # Errors
    /// [`CheckpointError`] names the file and the failed check.
    pub fn from_text(text: &[u8], path: &Path) -> Result<Self, CheckpointError> {
        let refuse = |what: String| CheckpointError::Manifest {
            path: path.to_owned(),
            what,
        };
        if text.len() as u64 > MANIFEST_BYTES_MAX {
            return Err(refuse(format!("more than {MANIFEST_BYTES_MAX} bytes")));
        }
        let version: AnyVersion = serde_json::from_slice(text)
            .map_err(|error| refuse(format!("no manifest of a saved model: {error}")))?;
        if !FORMAT_VERSIONS.contains(&version.tidewater_model) {
            let (found, expected) = (version.tidewater_model, FORMAT_VERSION);
            return Err(CheckpointError::Version {
                path: path.to_owned(),
                found,
                expected,
            });
        }
        let envelope: Envelope<Self> =
            serde_json::from_slice(text).map_err(|error| refuse(format!("damaged: {error}")))?;
        let manifest = envelope.model;
        let check = manifest
            .check(version.tidewater_model)
            .map_err(|error| refuse(error.to_string()))?;
        if check != envelope.check {
            return Err(refuse("its check does not fit: it was changed".into()));
        }
        manifest.validate().map_err(refuse)?;
        Ok(manifest)
    }

    /// Why the manifest is not valid, if it is not.
    pub(super) fn validate(&self) -> Result<(), String> {
        if self.tables.len() > TABLES_MAX || self.files.len() > SERVERS_MAX as usize {
            return Err(format!(
                "{} tables in {} files",
                self.tables.len(),
                self.files.len()
            ));
        }
        if !(1..=NAMESPACE_BYTES_MAX).contains(&self.namespace.len()) {
            return Err("the namespace is empty or too long".into());
        }
        let (mut ids, mut names) = (BTreeSet::new(), BTreeSet::new());
        for SavedTable {
            id,
            spec,
            optimizer,
        } in &self.tables
        {
            spec.validate()
                .map_err(|error| format!("table {id}: {error}"))?;
            if let Some(optimizer) = optimizer {
                spec.check_change(optimizer)
                    .map_err(|error| format!("table {id}: {error}"))?;
            }
            if !ids.insert(*id) || !names.insert(&spec.name) {
                return Err(format!("table {id} \"{}\" is there twice", spec.name));
            }
        }
        let mut files = BTreeSet::new();
        for file in &self.files {
            if !is_part_name(&file.file) || !files.insert(&file.file) {
                return Err(format!(
                    "{:?} is no name of a part, or there twice",
                    file.file
                ));
            }
            let known = |clock: &DomainClock| usize::from(clock.domain.0) < DOMAINS_MAX;
            if file.clocks.len() > DOMAINS_MAX || !file.clocks.iter().all(known) {
                return Err(format!("{} has clocks of unknown domains", file.file));
            }
        }
        Ok(())
    }

    /// Checksum of the model's one canonical text.
    fn check(&self, version: u64) -> io::Result<String> {
        let text = serde_json::to_vec(self).map_err(io::Error::other)?;
        let hash = H64::new([CHECK, version, text.len() as u64, 0]).finish_bytes(&text);
        Ok(format!("{hash:016x}"))
    }

    /// The manifest's text, with the checksum.
    pub(super) fn to_text(&self) -> io::Result<String> {
        let envelope = Envelope {
            tidewater_model: FORMAT_VERSION,
            check: self.check(FORMAT_VERSION)?,
            model: self,
        };
        serde_json::to_string_pretty(&envelope).map_err(io::Error::other)
    }
}

/// Notes rules that differ from their table's definition. Servers agree on them where a save has one
/// point in time; where they do not, the first answer counts.
pub(crate) fn note_settings(tables: &mut [SavedTable], settings: &[TableSetting]) {
    for setting in settings {
        let table = tables.iter_mut().find(|table| table.id == setting.table.0);
        if let Some(table) = table {
            table.optimizer.get_or_insert(setting.optimizer);
        }
    }
}

/// Reads and validates a directory's manifest. The files that it names are validated when they are
/// read.
///
/// # Errors
/// [`CheckpointError`] names the file and the failed check.
pub fn read_manifest(dir: &Path) -> Result<Manifest, CheckpointError> {
    let path = dir.join(MANIFEST_NAME);
    let file = File::open(&path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => CheckpointError::Missing { path: path.clone() },
        _ => CheckpointError::io("open", &path)(error),
    })?;
    let mut text = Vec::new();
    let read = file.take(MANIFEST_BYTES_MAX + 1).read_to_end(&mut text);
    read.map_err(CheckpointError::io("read", &path))?;
    Manifest::from_text(&text, &path)
}

/// Makes `manifest` the model of `dir`, durably, after its parts are; then removes the files of
/// older saves.
///
/// # Errors
/// A part is missing or short, or the file system fails. The directory then still holds the
/// previous model, unless the last step failed, which makes the change durable.
pub fn commit(disk: &mut dyn Disk, dir: &Path, manifest: &Manifest) -> Result<(), CheckpointError> {
    let path = dir.join(MANIFEST_NAME);
    let refuse = |what| CheckpointError::Manifest {
        path: path.clone(),
        what,
    };
    manifest.validate().map_err(refuse)?;
    for file in &manifest.files {
        part_length(dir, file)?;
    }
    let temporary = dir.join(TEMPORARY_NAME);
    let text = manifest
        .to_text()
        .map_err(CheckpointError::io("write", &path))?;
    if temporary.exists() {
        // Left by an interrupted save.
        disk.remove(&temporary)
            .map_err(CheckpointError::io("remove", &temporary))?;
    }
    let mut file = disk
        .create(&temporary)
        .map_err(CheckpointError::io("create", &temporary))?;
    disk.write(&mut file, text.as_bytes())
        .map_err(CheckpointError::io("write", &temporary))?;
    disk.sync(&file, &temporary)
        .map_err(CheckpointError::io("sync", &temporary))?;
    disk.rename(&temporary, &path)
        .map_err(CheckpointError::io("rename to", &path))?;
    disk.sync_dir(dir)
        .map_err(CheckpointError::io("sync", dir))?;
    sweep(disk, dir, manifest);
    Ok(())
}

/// Checks that a part is there with its full length. Returns its path.
pub(super) fn part_length(dir: &Path, file: &SavedFile) -> Result<PathBuf, CheckpointError> {
    let path = dir.join(&file.file);
    let found = match fs::metadata(&path) {
        Ok(metadata) => metadata.len(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(CheckpointError::Missing { path });
        }
        Err(error) => return Err(CheckpointError::io("look at", &path)(error)),
    };
    if found != file.bytes {
        let expected = file.bytes;
        return Err(CheckpointError::Length {
            path,
            found,
            expected,
        });
    }
    Ok(path)
}

/// Removes parts that `manifest` does not name. The next save sweeps what stays.
fn sweep(disk: &mut dyn Disk, dir: &Path, manifest: &Manifest) {
    let Ok(entries) = fs::read_dir(dir) else {
        return;
    };
    for name in entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()) {
        let part = name.strip_suffix(".tmp").unwrap_or(&name);
        let is_named = manifest.files.iter().any(|file| file.file == name);
        if is_part_name(part)
            && !is_named
            && let Err(error) = disk.remove(&dir.join(&name))
        {
            tracing::warn!(%error, name, "a file of an older save stays");
        }
    }
}

/// Name of a server's part of the save with this nonce.
pub(super) fn part_name(nonce: u64, server: u32) -> String {
    format!("part-{nonce:016x}-{server}.tidewater")
}

fn is_part_name(name: &str) -> bool {
    let parse = || {
        let rest = name.strip_prefix("part-")?.strip_suffix(".tidewater")?;
        let (nonce, server) = rest.split_once('-')?;
        let parsed = (u64::from_str_radix(nonce, 16).ok()?, server.parse().ok()?);
        Some(part_name(parsed.0, parsed.1) == name)
    };
    parse() == Some(true)
}

/// Removes parts of a save that failed, as far as that is possible.
pub(crate) fn abandon(disk: &mut dyn Disk, dir: &Path, files: &[String]) {
    for name in files.iter().filter(|name| is_part_name(name)) {
        if let Err(error) = disk.remove(&dir.join(name)) {
            tracing::warn!(%error, name, "a file of a failed save stays");
        }
    }
}
