//! Memory of a server that its holder keeps, and what a restarted server finds in it: tables, rings, job
//! numbers.
//!
//! ```text
//! holder            reserves the files, forks the server
//! server            dies; its holder forks a successor, which inherits the mappings
//! successor         resumes its appliers; joins, and names the tables that it has
//! coordinator       orders it to adopt those that it knows, and to release the others
//! clients           attach their sessions again, recover each lane, send what was not applied
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tidewater_lanes::fabric::Inbox;
use tidewater_protocol::ids::{ApplierId, Incarnation, SessionId, TableId};
use tidewater_protocol::layout::ring::RingGeometry;
use tidewater_protocol::layout::session::inbox_bytes;
use tidewater_protocol::limits::RING_BYTES_MAX;
use tidewater_protocol::mutants::{self, Mutant};
use tidewater_protocol::wire::control::{Remote, TableInfo};
use tidewater_runtime::mem::Region;

use super::catalogue::{Entry, KeptTable, State, descriptor};
use super::handle::owned;
use super::{ServerError, ServerHandle};
use tidewater_engine::apply::applier::Applier;
use tidewater_engine::namespace::{FrameSender, NamespaceId};
use tidewater_engine::ring_reader::RingRecord;
use tidewater_engine::store::{MemoryFiles, ServerMemory, StoreError};

/// Server memory that a holder (the server's parent process) keeps when the server's process ends, so that a
/// successor can resume with it.
#[derive(Debug, Clone)]
pub struct HeldMemory {
    files: Arc<MemoryFiles>,
    /// Whether the memory comes from an earlier process of the server.
    resumes: bool,
}

impl HeldMemory {
    /// Wraps newly reserved memory, for the first server process that a holder (its parent process) starts.
    pub fn new(files: MemoryFiles) -> Self {
        Self {
            files: Arc::new(files),
            resumes: false,
        }
    }

    /// Returns the same memory marked for the successor of a dead server process.
    #[must_use]
    pub fn of_successor(&self) -> Self {
        Self {
            files: Arc::clone(&self.files),
            resumes: true,
        }
    }

    /// Whether the memory holds tables and sessions of an earlier process of the server, with which this one resumes.
    pub const fn resumes(&self) -> bool {
        self.resumes
    }

    pub(super) fn open(&self, incarnation: Incarnation) -> Result<ServerMemory, ServerError> {
        let files = self.files.share()?;
        Ok(match self.resumes {
            true => ServerMemory::resume(files, incarnation)?,
            false => ServerMemory::held(files, incarnation)?,
        })
    }
}

/// A session of the previous server process, rebuilt from its rings in the kept memory; its client has yet to return.
#[derive(Debug)]
pub(super) struct KeptSession {
    pub(super) sender: FrameSender,
    pub(super) ring_bytes: usize,
    /// Whether its frames carry a checksum, as they do over verbs.
    pub(super) check_frames: bool,
    /// Memory and status record of each ring, by applier number.
    pub(super) rings: Vec<(Inbox, Remote)>,
}

/// Content of the previous server process's memory: jobs, tables and sessions.
#[derive(Debug, Default)]
pub(super) struct Kept {
    pub(super) jobs: BTreeSet<NamespaceId>,
    pub(super) tables: BTreeMap<TableId, KeptTable>,
    pub(super) sessions: BTreeMap<SessionId, KeptSession>,
}

impl Kept {
    /// Adds the rings and tables that applier `number` has resumed. The caller passes the appliers in order.
    pub(super) fn add(&mut self, number: u16, applier: &mut Applier) {
        for ring in applier.rings() {
            self.jobs.insert(ring.sender.namespace);
            let inbox = ring.inbox().clone();
            let session = self
                .sessions
                .entry(ring.session)
                .or_insert_with(|| KeptSession {
                    sender: ring.sender,
                    ring_bytes: inbox.ring().bytes() as usize,
                    check_frames: ring.check_frames(),
                    rings: Vec::new(),
                });
            session.rings.push((inbox, ring.status()));
        }
        let engine = applier.engine();
        self.jobs.extend(engine.namespaces());
        for table in engine.tables() {
            self.jobs.insert(table.namespace);
            let kept = self.tables.entry(table.id).or_insert_with(|| KeptTable {
                job: table.namespace,
                spec: (*table.spec).clone(),
                parts: Vec::new(),
            });
            let part = table.describe(ApplierId(number));
            kept.parts.push((table.partitions().to_vec(), part));
        }
    }
}

impl ServerHandle {
    /// Numbers of the tables in the previous process's memory that are not adopted (served again) yet; `None` if this
    /// server did not start with such memory.
    pub fn kept_tables(&self) -> Option<Vec<TableId>> {
        let memory = self.shared.config.memory.as_ref();
        memory.filter(|memory| memory.resumes())?;
        let catalogue = self.shared.catalogue();
        Some(catalogue.kept.keys().copied().collect())
    }

    /// Serves again a table that is in the previous process's memory, so that clients can use it. Calling it again
    /// changes nothing.
    ///
    /// # Errors
    /// [`ServerError::NotKept`] when the memory has a differing table, or lacks a part of this server's share. What
    /// it has stays there until the table is released.
    pub fn adopt_table(&self, namespace: &str, info: &TableInfo) -> Result<(), ServerError> {
        let refuse = |why: String| ServerError::NotKept {
            table: info.spec.name.clone(),
            why,
        };
        let (server, appliers) = (self.shared.config.server, self.appliers());
        let mut catalogue = self.shared.catalogue();
        if let Some(entry) = catalogue.entries.get(&info.id)
            && entry.namespace == namespace
            && matches!(entry.state, State::Alive(_))
        {
            return Ok(());
        }
        let own = (0..appliers).map(|a| (a, owned(info, server, a)));
        let own: Vec<_> = own.filter(|(_, own)| !own.is_empty()).collect();
        let parts = match catalogue.kept.remove(&info.id) {
            None if own.is_empty() => Vec::new(),
            None => return Err(refuse("has none of it".into())),
            Some(kept) => {
                let have = kept.parts.iter().map(|(own, part)| (part.applier.0, own));
                let want = own.iter().map(|(a, own)| (*a, own));
                let is_complete = have.eq(want);
                let is_same = kept.spec == info.spec || mutants::on(Mutant::KeptTableUnchecked);
                let is_its = is_same && catalogue.adopt_job(namespace, kept.job);
                if !is_complete || !is_its {
                    let why = match is_its {
                        true => format!("has {} of {} parts", kept.parts.len(), own.len()),
                        false => format!("has table {:?} of job {:?}", kept.spec, kept.job),
                    };
                    // It stays, to be released.
                    catalogue.kept.insert(info.id, kept);
                    return Err(refuse(why));
                }
                kept.parts.into_iter().map(|(_, part)| part).collect()
            }
        };
        let table = Arc::new(descriptor(info.id, &info.spec, parts));
        let entry = Entry {
            namespace: namespace.to_owned(),
            spec: info.spec.clone(),
            state: State::Alive(table),
        };
        catalogue.entries.insert(info.id, entry);
        Ok(())
    }

    /// Releases a table of the previous process's memory that was not adopted. `false` if the memory does not have
    /// it.
    pub(super) fn release_kept(&self, id: TableId) -> Result<bool, ServerError> {
        // The lock ends before the appliers are asked.
        let kept = self.shared.catalogue().kept.remove(&id);
        if kept.is_some() {
            self.free_shares(id)?;
        }
        Ok(kept.is_some())
    }
}

/// Allocates memory for the ring of a session of the previous server process, before its client reattaches. The
/// client cannot map it.
pub(super) fn inbox_of(record: &RingRecord) -> Result<Inbox, StoreError> {
    let bytes = record.ring_bytes;
    let ring = RingGeometry::new(bytes as usize).filter(|_| bytes <= RING_BYTES_MAX as u64);
    let ring = ring.ok_or(StoreError::Limit {
        what: "bytes of a kept ring",
        have: bytes,
        limit: RING_BYTES_MAX as u64,
    })?;
    let region = Region::anonymous(inbox_bytes(bytes as usize))?;
    Ok(Inbox::new(Arc::new(region), 0, ring, record.session.0)?)
}
