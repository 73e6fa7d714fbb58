//! Catalogue of a server's tables and jobs, and what clients see of them.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use tidewater_protocol::ids::{SessionId, TableId};
use tidewater_protocol::layout::hash::H64;
use tidewater_protocol::layout::row::{ROW_HEADER_BYTES, RowLayout};
use tidewater_protocol::limits::JOBS_MAX;
use tidewater_protocol::table::{DenseLayout, Shape, TableSpec};
use tidewater_protocol::wire::control::{ApplierPart, TableDescriptor};
use tidewater_runtime::sync::{AtomicBool, Ordering};

use super::ServerError;
use super::kept::{Kept, KeptSession};
use tidewater_engine::namespace::NamespaceId;
use tidewater_engine::store::StoreError;

/// State of a table on this server.
#[derive(Debug, Clone)]
pub(super) enum State {
    /// Being created; clients do not see it.
    Coming,
    /// In use; clients get this description of it.
    Alive(Arc<TableDescriptor>),
    /// Being freed or freed; clients get an error that says so.
    Released,
}

/// A table of the catalogue, with the namespace of its job.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) namespace: String,
    pub(super) spec: TableSpec,
    pub(super) state: State,
}

/// Tables of all namespaces, by table number, and the jobs.
#[derive(Debug, Default)]
pub(super) struct Catalogue {
    pub(super) entries: HashMap<TableId, Entry>,
    jobs: HashMap<String, Job>,
    /// Count of the job numbers given so far. In a server that starts with the previous process's memory it begins
    /// with the largest count in the numbers of the kept jobs.
    given: u64,
    /// Tables in the previous process's memory that are neither adopted nor released yet.
    pub(super) kept: BTreeMap<TableId, KeptTable>,
    /// Numbers of the previous process's jobs that have not been matched to a namespace.
    kept_jobs: Vec<NamespaceId>,
    /// Sessions of the previous server process, until the control thread takes them over.
    pub(super) kept_sessions: BTreeMap<SessionId, KeptSession>,
}

/// A table that a restarted server has found in the previous process's memory.
#[derive(Debug)]
pub(super) struct KeptTable {
    pub(super) job: NamespaceId,
    pub(super) spec: TableSpec,
    /// For each applier with a part of it: its partitions and the location of the part.
    pub(super) parts: Vec<(Vec<u32>, ApplierPart)>,
}

/// Number of low bits of a job's number that hold a count. The other bits are a hash of the namespace, by
/// which a restarted server finds the number of a namespace.
const COUNT_BITS: u32 = 24;
const COUNT_MASK: u64 = (1 << COUNT_BITS) - 1;

fn name_bits(namespace: &str) -> u64 {
    H64::new([0; 4]).finish_bytes(namespace.as_bytes()) & !COUNT_MASK
}

/// A job of this server: one namespace in use.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) id: NamespaceId,
    /// Number of its workers; 0 until the configuration or a session gives it.
    pub(super) workers: u32,
    /// Modules of functions that its clients have loaded, by name.
    pub(super) functions: HashMap<String, Box<[u8]>>,
    /// Set when the job ends, for commands that are on their way to appliers then.
    pub(super) has_ended: Arc<AtomicBool>,
}

/// Result of looking up a table number for a client of a namespace: none (also if it is being created), released, or
/// the description of a table in use.
pub(super) enum Seen {
    Nothing,
    Released,
    Table(Arc<TableDescriptor>),
}

impl Catalogue {
    /// Number of the job of a namespace; `None` if the server does not know the job.
    pub(super) fn job(&self, namespace: &str) -> Option<NamespaceId> {
        self.jobs.get(namespace).map(|job| job.id)
    }

    /// Mutable job of a namespace; `None` if the server does not know it.
    pub(super) fn job_mut(&mut self, namespace: &str) -> Option<&mut Job> {
        self.jobs.get_mut(namespace)
    }

    /// Namespaces of the jobs in use, by job number.
    pub(super) fn job_names(&self) -> HashMap<NamespaceId, String> {
        let jobs = self.jobs.iter();
        jobs.map(|(name, job)| (job.id, name.clone())).collect()
    }

    /// Returns the job of a namespace; adds it if it is new. Fails beyond `JOBS_MAX` jobs.
    pub(super) fn open_job(&mut self, namespace: &str) -> Result<&mut Job, ServerError> {
        if !self.jobs.contains_key(namespace) {
            let have = self.jobs.len() as u64 + 1;
            if have > JOBS_MAX as u64 {
                return Err(ServerError::Store(StoreError::Limit {
                    what: "jobs at a time",
                    have,
                    limit: JOBS_MAX as u64,
                }));
            }
        }
        let (given, kept) = (&mut self.given, &mut self.kept_jobs);
        Ok(self.jobs.entry(namespace.to_owned()).or_insert_with(|| {
            let id = take_kept(kept, namespace).unwrap_or_else(|| {
                *given += 1;
                NamespaceId(name_bits(namespace) | *given & COUNT_MASK)
            });
            Job {
                id,
                workers: 0,
                functions: HashMap::new(),
                has_ended: Arc::default(),
            }
        }))
    }

    /// Makes the catalogue of a server that starts with the previous process's memory: `kept` is what the appliers
    /// found in it. Its tables are not in use until they are adopted.
    pub(super) fn keep(kept: Kept) -> Self {
        let counts = kept.jobs.iter().map(|id| id.0 & COUNT_MASK);
        Self {
            given: counts.max().unwrap_or(0),
            kept: kept.tables,
            kept_jobs: kept.jobs.into_iter().collect(),
            kept_sessions: kept.sessions,
            ..Self::default()
        }
    }

    /// Opens the job of a namespace, with the number that it had before the server's restart if exactly one
    /// kept number has the hash of its name. Returns whether the job has number `id`; `false` also if there are
    /// too many jobs.
    pub(super) fn adopt_job(&mut self, namespace: &str, id: NamespaceId) -> bool {
        self.open_job(namespace).is_ok_and(|job| job.id == id)
    }

    /// Removes a job that has no tables, and the entries of its released tables. Returns its number, also if
    /// only the previous server process knew the job; `None` if the job still has tables or is not known.
    pub(super) fn end_job(&mut self, namespace: &str) -> Option<NamespaceId> {
        let of_job = |e: &Entry| e.namespace == namespace && !matches!(e.state, State::Released);
        if self.entries.values().any(of_job) {
            return None;
        }
        self.entries.retain(|_, e| e.namespace != namespace);
        let Some(job) = self.jobs.remove(namespace) else {
            return take_kept(&mut self.kept_jobs, namespace);
        };
        // SYNC: job-ended, with the load in `ServerHandle::load_function`.
        job.has_ended.store(true, Ordering::Release);
        Some(job.id)
    }

    /// Looks up a table for a client of `namespace`. A table of another namespace, or one that is being created,
    /// counts as absent.
    pub(super) fn see(&self, namespace: &str, id: TableId) -> Seen {
        match self.entries.get(&id) {
            Some(entry) if entry.namespace == namespace => match &entry.state {
                State::Coming => Seen::Nothing,
                State::Alive(table) => Seen::Table(Arc::clone(table)),
                State::Released => Seen::Released,
            },
            _ => Seen::Nothing,
        }
    }
}

/// Removes and returns the number that the job of a namespace had before the server's restart. `None` unless
/// exactly one number has the hash of the namespace.
fn take_kept(kept: &mut Vec<NamespaceId>, namespace: &str) -> Option<NamespaceId> {
    let is_its = |id: &NamespaceId| id.0 & !COUNT_MASK == name_bits(namespace);
    let mut found = (0..).zip(kept.iter()).filter(|(_, id)| is_its(id));
    let (n, _) = found.next().filter(|_| found.next().is_none())?;
    Some(kept.swap_remove(n))
}

/// Makes the description of a table that clients get: byte sizes from its definition, and `parts`, the
/// location of each applier's share.
pub(super) fn descriptor(
    id: TableId,
    spec: &TableSpec,
    parts: Vec<ApplierPart>,
) -> TableDescriptor {
    let payload = spec.row_bytes();
    let (header, stride, block) = match spec.shape {
        Shape::Dense {
            layout: DenseLayout::Blocks { block_bytes, .. },
            ..
        } => (0, payload, block_bytes),
        _ => (ROW_HEADER_BYTES, RowLayout::new(payload).stride, 0),
    };
    TableDescriptor {
        id,
        header_bytes: header as u32,
        payload_bytes: payload as u32,
        stride_bytes: stride as u32,
        block_bytes: block,
        parts,
    }
}
