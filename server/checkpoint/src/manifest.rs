//! The manifest of a saved model: its tables, and the part files that hold their rows.

use std::collections::{BTreeMap, BTreeSet};
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

use crate::CheckpointError;
use crate::chunk::{FORMAT_VERSION, FORMAT_VERSIONS};
use crate::disk::Disk;

/// Name of the manifest file in the directory of a saved model.
pub const MANIFEST_NAME: &str = "manifest.json";
const TEMPORARY_NAME: &str = "manifest.json.tmp";
/// Maximum number of part files of a model. A load has all of them open.
pub(crate) const FILES_MAX: usize = SERVERS_MAX as usize;
/// Maximum number of part files of a checkpoint that extends another one, so that a load stays below the usual limit of
/// open files (1,024).
pub const EXTENDED_FILES_MAX: usize = 256;
/// Seed word of the manifest's checksum.
const CHECK: u64 = u64::from_le_bytes(*b"manifest");

/// A table of a saved model: its number in the part files, its definition, and its optimizer if that was
/// changed later.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedTable {
    /// Table number in the part files.
    pub id: u32,
    /// Definition of the table.
    pub spec: TableSpec,
    /// Optimizer with the hyper-parameters at the save, if they were changed after the table was created;
    /// else `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub optimizer: Option<Optimizer>,
}

/// Manifest entry of a part file: the server that wrote it, its name, size, checksum, and clocks.
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
    /// Clock of each domain at which the rows were copied: the lowest of the server's appliers.
    pub clocks: Vec<DomainClock>,
    /// Name of the part that this one extends: it holds what has changed on its server since that part was written.
    /// `None`: it holds all rows of its server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extends: Option<String>,
}

/// Content of a manifest: the namespace of the job, the saved tables, and the part files that hold their
/// rows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Namespace of the job that saved it.
    pub namespace: String,
    /// Tables of the model.
    pub tables: Vec<SavedTable>,
    /// Part files: of each server one with all of its rows, and after it those that extend it.
    pub files: Vec<SavedFile>,
    /// Time of the cut in milliseconds since 1970, for a checkpoint; `None` for a save that a worker
    /// requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taken_ms: Option<u64>,
}

/// JSON object of the manifest file: format version, checksum and model.
#[derive(Debug, Serialize, Deserialize)]
struct Envelope<M> {
    tidewater_model: u64,
    check: String,
    model: M,
}

/// The part of the manifest file that every format version has: the version itself.
#[derive(Debug, Deserialize)]
struct AnyVersion {
    tidewater_model: u64,
}

impl Manifest {
    /// Makes a manifest of these tables and part files, without a time.
    pub const fn new(namespace: String, tables: Vec<SavedTable>, files: Vec<SavedFile>) -> Self {
        Self {
            namespace,
            tables,
            files,
            taken_ms: None,
        }
    }

    /// Number of rows and blocks in all part files, as the manifest states it. A row that has changed since a part that
    /// another extends counts twice.
    pub fn rows(&self) -> u64 {
        self.files
            .iter()
            .fold(0, |sum, file| sum.saturating_add(file.rows))
    }

    /// Part files that no other one extends, one for each server: those of the last cut.
    pub fn newest(&self) -> impl Iterator<Item = &SavedFile> {
        let extended = self.files.iter().filter_map(|file| file.extends.as_ref());
        let extended: BTreeSet<&String> = extended.collect();
        let files = self.files.iter();
        files.filter(move |file| !extended.contains(&file.file))
    }

    /// Clock of the model in each domain: the lowest of the newest part file of each server.
    pub fn clocks(&self) -> Vec<DomainClock> {
        let mut all: Vec<DomainClock> = Vec::new();
        for entry in self.newest().flat_map(|file| &file.clocks) {
            match all.iter_mut().find(|known| known.domain == entry.domain) {
                Some(known) => known.clock = known.clock.min(entry.clock),
                None => all.push(*entry),
            }
        }
        all
    }

    /// Parses a manifest's text and checks its size, version, checksum and values. `path` is named in errors.
    /// Does not open the part files.
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

    /// Checks the manifest's values: limits, table definitions, unique numbers and names, file names,
    /// domains. The error text names the first violation.
    pub(crate) fn validate(&self) -> Result<(), String> {
        if self.tables.len() > TABLES_MAX || self.files.len() > FILES_MAX {
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
        // The newest part of each server so far.
        let mut newest = BTreeMap::new();
        for file in &self.files {
            let before = newest.insert(file.server, &file.file);
            if before != file.extends.as_ref() {
                return Err(format!(
                    "{} of server {} extends {:?}, and the part before it is {before:?}",
                    file.file, file.server, file.extends
                ));
            }
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

    /// Computes the checksum of the model's compact JSON, keyed with the format version, as 16 hexadecimal
    /// digits.
    fn check(&self, version: u64) -> io::Result<String> {
        let text = serde_json::to_vec(self).map_err(io::Error::other)?;
        let hash = H64::new([CHECK, version, text.len() as u64, 0]).finish_bytes(&text);
        Ok(format!("{hash:016x}"))
    }

    /// Encodes the manifest file's text: pretty-printed JSON with format version and checksum.
    pub(crate) fn to_text(&self) -> io::Result<String> {
        let envelope = Envelope {
            tidewater_model: FORMAT_VERSION,
            check: self.check(FORMAT_VERSION)?,
            model: self,
        };
        serde_json::to_string_pretty(&envelope).map_err(io::Error::other)
    }
}

/// Adds optimizer settings that servers reported to the manifest's tables. If two servers report different
/// settings for a table, the first one stays. Unknown tables are skipped.
pub fn note_settings(tables: &mut [SavedTable], settings: &[TableSetting]) {
    for setting in settings {
        let table = tables.iter_mut().find(|table| table.id == setting.table.0);
        if let Some(table) = table {
            table.optimizer.get_or_insert(setting.optimizer);
        }
    }
}

/// Reads, parses and validates the manifest of a directory. Does not open the part files.
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

/// Makes `manifest` the model of the directory `dir`: checks that its parts are there with their full
/// lengths, replaces the manifest file atomically, makes that durable, and then removes parts of older saves.
///
/// # Errors
/// The manifest is not valid, a part is missing or short, or the file system fails. The directory then still holds
/// the previous model, unless the last step failed, which makes the change durable.
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
    if text.len() as u64 > MANIFEST_BYTES_MAX {
        return Err(refuse(format!(
            "{} bytes, and no load accepts more than {MANIFEST_BYTES_MAX}; use fewer tables, or shorter lists of partitions",
            text.len()
        )));
    }
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

/// Gives the part files `names` of the directory `from` the same names in `to` (hard links), so that a checkpoint there
/// can extend them. Names that are there already are kept: a part's name is used once.
///
/// # Errors
/// The file system makes no such links. Links made before stay; the next save into the directory removes them.
pub fn link_parts(
    disk: &mut dyn Disk,
    from: &Path,
    to: &Path,
    names: &[String],
) -> Result<(), CheckpointError> {
    for name in names {
        let (old, new) = (from.join(name), to.join(name));
        match disk.link(&old, &new) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(CheckpointError::io("link to", &new)(error)),
            Ok(()) => {}
        }
    }
    Ok(())
}

/// Checks that a part file exists with the length that the manifest gives. Returns its path.
pub(crate) fn part_length(dir: &Path, file: &SavedFile) -> Result<PathBuf, CheckpointError> {
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

/// Removes the part files of `dir` that `manifest` does not name, temporary ones too. Failures are logged;
/// the next save tries again.
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

/// File name of a server's part in the save `nonce`, without directory.
pub(crate) fn part_name(nonce: u64, server: u32) -> String {
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

/// Removes the named part files of a failed save. Failures are logged.
pub fn abandon(disk: &mut dyn Disk, dir: &Path, files: &[String]) {
    for name in files.iter().filter(|name| is_part_name(name)) {
        if let Err(error) = disk.remove(&dir.join(name)) {
            tracing::warn!(%error, name, "a file of a failed save stays");
        }
    }
}
