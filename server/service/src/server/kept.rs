//! The memory of a server that a holder keeps, and what a successor finds in it: tables, rings, numbers of jobs.
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

/// Memory that a holder keeps when the server's process ends.
#[derive(Debug, Clone)]
pub struct HeldMemory {
    files: Arc<MemoryFiles>,
    /// Whether a process before this one has used it.
    resumes: bool,
}

impl HeldMemory {
    /// New memory, for the first server of a holder.
    pub fn new(files: MemoryFiles) -> Self {
        Self {
            files: Arc::new(files),
            resumes: false,
        }
    }

    /// The same memory for the successor of a server that has died.
    #[must_use]
    pub fn of_successor(&self) -> Self {
        Self {
            files: Arc::clone(&self.files),
            resumes: true,
        }
    }

    /// Whether the server is a successor, which begins with this memory.
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

/// A session of the process before, as its rings say.
#[derive(Debug)]
pub(super) struct KeptSession {
    pub(super) sender: FrameSender,
    pub(super) ring_bytes: usize,
    /// Whether its frames carry a checksum: its lanes are over verbs.
    pub(super) check_frames: bool,
    /// Memory and status record of each ring, in the order of the appliers.
    pub(super) rings: Vec<(Inbox, Remote)>,
}

/// What a successor has found in its memory.
#[derive(Debug, Default)]
pub(super) struct Kept {
    pub(super) jobs: BTreeSet<NamespaceId>,
    pub(super) tables: BTreeMap<TableId, KeptTable>,
    pub(super) sessions: BTreeMap<SessionId, KeptSession>,
}

impl Kept {
    /// Adds what an applier has resumed, in the order of the appliers.
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
    /// The tables from the memory of the process before; `None` if this one began without memory.
    pub fn kept_tables(&self) -> Option<Vec<TableId>> {
        let memory = self.shared.config.memory.as_ref();
        memory.filter(|memory| memory.resumes())?;
        let catalogue = self.shared.catalogue();
        Some(catalogue.kept.keys().copied().collect())
    }

    /// Serves a table that this server has from the memory of the process before. Calling it again changes
    /// nothing.
    ///
    /// # Errors
    /// [`ServerError::NotKept`] when the memory has another table, or not all of this server's part.
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

    /// Releases what the memory of the process before has of a table that is not adopted. False if that is
    /// nothing.
    pub(super) fn release_kept(&self, id: TableId) -> Result<bool, ServerError> {
        // The lock ends before the appliers are asked.
        let kept = self.shared.catalogue().kept.remove(&id);
        if kept.is_some() {
            self.free_shares(id)?;
        }
        Ok(kept.is_some())
    }
}

/// Memory for the ring of a session that is not attached again yet. Its client maps none of it.
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
