//! Which checkpoints of a job hold all rows, and which extend the one before.
//!
//! The next checkpoint extends the last complete one while both have the same tables, and while the rows that have
//! changed are few: a load reads the parts of all. After a failure, and after a coordinator or a server has started
//! again, the next one holds all rows.

use std::collections::BTreeMap;

use tidewater_checkpoint::{EXTENDED_FILES_MAX, SavedFile, SavedTable};
use tidewater_protocol::wire::control::CheckpointMark;

use super::state::{Coordinator, Links};

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
    /// Bytes of the parts with all rows, over all servers.
    full: u64,
    /// Bytes of the parts that extend those with all rows, over all servers.
    changed: u64,
    /// Bytes of the parts that this checkpoint itself wrote, over all servers.
    last: u64,
}

impl Base {
    /// Whether the next checkpoint may extend this one: its servers have fewer than `full_every` parts each,
    /// and the parts with changes have at most half the bytes of those with all rows.
    const fn is_extensible(&self, full_every: usize) -> bool {
        self.parts < full_every && self.changed <= self.full / 2
    }

    /// Whether this checkpoint extends another one.
    pub(super) const fn extends(&self) -> bool {
        self.parts > 1
    }

    /// Part files of the checkpoint, for its manifest.
    pub(super) fn files(&self) -> &[SavedFile] {
        &self.files
    }
}

/// State of a job between two checkpoints.
#[derive(Debug, Default)]
pub(super) struct Increments {
    /// The last complete checkpoint; `None` before the first one, after a failure, and while one is under way.
    base: Option<Base>,
    /// Number of checkpoints with all rows before changes alone are tried again.
    wait: usize,
}

impl Increments {
    /// Begins checkpoint `number`. It extends the base if `wait` is 0 and the base is extensible with
    /// `full_every`, else it holds all rows. Removes the base.
    pub(super) fn begin(&mut self, number: u64, full_every: usize) -> Increment {
        let base = self.base.take().filter(|_| self.wait == 0);
        let base = base.filter(|base| base.is_extensible(full_every));
        let parts = base.as_ref().map_or(0, |base| base.parts) + 1;
        Increment {
            number,
            notes: parts < full_every && self.wait <= 1,
            base,
            is_ordered: false,
        }
    }

    /// Notes that the next `checkpoints` complete ones hold all rows, counting one under way.
    pub(super) const fn wait(&mut self, checkpoints: usize) {
        self.wait = checkpoints;
    }

    /// Notes the end of a checkpoint that is not complete. If no server has the order, the next one can still extend
    /// the one before.
    pub(super) fn give_back(&mut self, begun: Increment) {
        self.base = begun.base.filter(|_| !begun.is_ordered);
    }

    /// Notes a complete checkpoint, `base`, which the next one may extend. If it extends another one with more
    /// than half the bytes of the parts with all rows, the next `full_every` checkpoints hold all rows.
    pub(super) fn complete(&mut self, base: Base, full_every: usize) {
        self.wait = match base.extends() {
            true if base.last > base.full / 2 => full_every,
            true => 0,
            false => self.wait.saturating_sub(1),
        };
        self.base = Some(base);
    }
}

/// A checkpoint under way: which one it extends, and whether the next one may extend it.
#[derive(Debug)]
pub(super) struct Increment {
    number: u64,
    /// Whether servers note changes after it, so that the next checkpoint may extend this one.
    notes: bool,
    /// The checkpoint that this one extends; `None` if it holds all rows.
    base: Option<Base>,
    /// Whether a server may have made its cut, from which on it notes changes under this number.
    is_ordered: bool,
}

impl Increment {
    /// The parts of the checkpoint that this one may extend; `None` if it holds all rows.
    pub(super) fn links(&self) -> Option<Links> {
        let base = self.base.as_ref()?;
        Some(Links {
            from: base.dir.clone(),
            names: base.files.iter().map(|file| file.file.clone()).collect(),
        })
    }

    /// Makes this checkpoint hold all rows; the next one cannot extend it.
    pub(super) fn hold_all(&mut self) {
        (self.base, self.notes) = (None, false);
    }

    /// Makes the order for servers, given the tables that are saved and the number of servers. With other
    /// tables than those of the checkpoint before, or with more parts than a load should have open, this
    /// checkpoint holds all rows.
    pub(super) fn mark(&mut self, tables: &[SavedTable], servers: usize) -> CheckpointMark {
        let fits = |base: &Base| {
            let mut pairs = base.tables.iter().zip(tables);
            pairs.all(|(a, b)| a.id == b.id && a.spec == b.spec)
                && base.tables.len() == tables.len()
                && base.files.len() + servers <= EXTENDED_FILES_MAX
        };
        self.base = self.base.take().filter(fits);
        self.is_ordered = true;
        CheckpointMark {
            number: self.number,
            extends: self.base.as_ref().map(|base| base.number),
            notes: self.notes,
        }
    }

    /// Puts the parts of the checkpoint that it extends before its own `files`, and returns the whole as the base of
    /// the next checkpoint.
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
                last: own,
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
            last: own,
        }
    }
}

impl Coordinator {
    /// Makes the next `full_every` checkpoints of a job hold all rows, since the parts of the last one cannot
    /// be linked (`why`), and logs a warning.
    pub(super) fn cannot_extend(&mut self, namespace: &str, why: &str) {
        let full_every = self.checkpoint.as_ref().map_or(1, |p| p.full_every);
        if let Some(durable) = self.durable(namespace) {
            durable.increments.wait(full_every);
            tracing::warn!(
                namespace,
                why,
                "the next {full_every} checkpoints hold all rows: the parts of the one before cannot be linked into \
                 their directory; choose a file system with hard links, or --full-every 1"
            );
        }
    }
}
