//! Which checkpoints of a job hold all rows, and which extend the one before.
//!
//! The next checkpoint extends the last complete one while both have the same tables, and while the rows that have
//! changed are few: a load reads the parts of all. After a failure, and after a coordinator or a server has started
//! again, the next one holds all rows.

use std::collections::BTreeMap;

use tidewater_checkpoint::{FILES_MAX, PARTS_MAX, SavedFile, SavedTable};
use tidewater_protocol::wire::control::CheckpointMark;

use super::state::Links;

/// The last complete checkpoint of a job, which the next one may extend.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Base {
    /// Number under which servers note what has changed since.
    number: u64,
    dir: String,
    /// All of its parts, in the order in which they are loaded.
    files: Vec<SavedFile>,
    tables: Vec<SavedTable>,
    /// Number of parts of one server: 1 for a checkpoint with all rows.
    parts: usize,
    /// Bytes of the parts with all rows, and of those that extend them.
    full: u64,
    changed: u64,
}

impl Base {
    /// Whether a checkpoint may extend it, if each of `full_every` holds all rows.
    fn is_extensible(&self, full_every: usize) -> bool {
        self.parts < full_every.min(PARTS_MAX) && self.changed <= self.full / 2
    }

    /// Part files of the checkpoint, for its manifest.
    pub(super) fn files(&self) -> &[SavedFile] {
        &self.files
    }

    /// The parts that a checkpoint needs that extends this one.
    pub(super) fn links(&self) -> Links {
        Links {
            from: self.dir.clone(),
            names: self.files.iter().map(|file| file.file.clone()).collect(),
        }
    }
}

/// State of a job between two checkpoints.
#[derive(Debug, Default)]
pub(super) struct Increments {
    /// The last complete checkpoint; `None` before the first one, after a failure, and while one is under way.
    base: Option<Base>,
    /// Number of checkpoints with all rows before changes alone are tried again: most rows had changed.
    wait: usize,
}

impl Increments {
    /// Takes the checkpoint that the next one may extend, if each of `full_every` holds all rows.
    pub(super) fn take(&mut self, full_every: usize) -> Option<Base> {
        let base = self.base.take().filter(|_| self.wait == 0)?;
        base.is_extensible(full_every).then_some(base)
    }

    /// Notes a complete checkpoint.
    pub(super) fn complete(&mut self, base: Base, full_every: usize) {
        self.wait = match base.parts {
            1 => self.wait.saturating_sub(1),
            _ if base.changed > base.full / 2 => full_every,
            _ => 0,
        };
        self.base = Some(base);
    }
}

/// A checkpoint that is under way, as far as it is one of several.
#[derive(Debug)]
pub(super) struct Increment {
    number: u64,
    /// The checkpoint that it extends.
    base: Option<Base>,
}

impl Increment {
    /// Makes checkpoint `number`, which may extend `base`.
    pub(super) const fn new(number: u64, base: Option<Base>) -> Self {
        Self { number, base }
    }

    /// Makes it one that holds all rows.
    pub(super) fn hold_all(&mut self) {
        self.base = None;
    }

    /// Whether it extends another one.
    pub(super) const fn extends(&self) -> bool {
        self.base.is_some()
    }

    /// The order for servers, given the tables that are saved. With other tables than those of the checkpoint before, or
    /// with more parts than a manifest takes, it holds all rows.
    pub(super) fn mark(&mut self, tables: &[SavedTable], servers: usize) -> CheckpointMark {
        let fits = |base: &Base| {
            let is_same = base.tables.iter().zip(tables);
            let is_same = base.tables.len() == tables.len()
                && is_same
                    .into_iter()
                    .all(|(a, b)| a.id == b.id && a.spec == b.spec);
            is_same && base.files.len() + servers <= FILES_MAX
        };
        self.base = self.base.take().filter(fits);
        CheckpointMark {
            number: self.number,
            extends: self.base.as_ref().map(|base| base.number),
        }
    }

    /// Puts the parts of the checkpoint that it extends before its own `files`, and returns the whole as the base of the
    /// next checkpoint.
    pub(super) fn complete(
        self,
        dir: String,
        tables: Vec<SavedTable>,
        files: Vec<SavedFile>,
    ) -> Base {
        let own = files.iter().map(|file| file.bytes);
        let own = own.fold(0, u64::saturating_add);
        let Some(base) = self.base else {
            return Base {
                number: self.number,
                dir,
                files,
                tables,
                parts: 1,
                full: own,
                changed: 0,
            };
        };
        let newest = base.files.iter().map(|file| (file.server, &file.file));
        let newest: BTreeMap<u32, &String> = newest.collect();
        let extending = files.into_iter().map(|file| SavedFile {
            extends: newest.get(&file.server).map(|name| (*name).clone()),
            ..file
        });
        let extending: Vec<SavedFile> = extending.collect();
        Base {
            number: self.number,
            dir,
            files: [base.files, extending].concat(),
            tables,
            parts: base.parts + 1,
            full: base.full,
            changed: base.changed.saturating_add(own),
        }
    }
}
