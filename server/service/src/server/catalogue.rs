//! The tables of this server, and what clients see of them.

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

/// The state of a table.
#[derive(Debug, Clone)]
pub(super) enum State {
    /// Being created; no client sees it.
    Coming,
    /// In use; clients can describe it.
    Alive(Arc<TableDescriptor>),
    /// Being freed, or freed.
    Released,
}

/// One table with its namespace.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) namespace: String,
    pub(super) spec: TableSpec,
    pub(super) state: State,
}

/// The tables of all namespaces, by number.
#[derive(Debug, Default)]
pub(super) struct Catalogue {
    pub(super) entries: HashMap<TableId, Entry>,
    jobs: HashMap<String, Job>,
    /// Numbers given to jobs so far.
    given: u64,
    /// Tables of the process before, which the coordinator has not asked for.
    pub(super) kept: BTreeMap<TableId, KeptTable>,
    /// Numbers of jobs of the process before, of which nothing has come.
    kept_jobs: Vec<NamespaceId>,
    /// Sessions of the process before, for the control thread.
    pub(super) kept_sessions: BTreeMap<SessionId, KeptSession>,
}

/// A table that a server has from the memory of the process before it.
#[derive(Debug)]
pub(super) struct KeptTable {
    pub(super) job: NamespaceId,
    pub(super) spec: TableSpec,
    /// The part of each applier that has one, with its partitions.
    pub(super) parts: Vec<(Vec<u32>, ApplierPart)>,
}

/// Bits of a job's number that count jobs. The others are a hash of the namespace: a successor, which has the
/// numbers only, finds the one of a name.
const COUNT_BITS: u32 = 24;
const COUNT_MASK: u64 = (1 << COUNT_BITS) - 1;

fn name_bits(namespace: &str) -> u64 {
    H64::new([0; 4]).finish_bytes(namespace.as_bytes()) & !COUNT_MASK
}

/// One namespace in use.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) id: NamespaceId,
    /// Number of its workers; 0 until a session or the cluster says it.
    pub(super) workers: u32,
    /// Modules that its clients have loaded, by name.
    pub(super) functions: HashMap<String, Box<[u8]>>,
    /// Set at its end, for commands to appliers that are under way then.
    pub(super) has_ended: Arc<AtomicBool>,
}

/// What a client of a namespace sees under a table number.
pub(super) enum Seen {
    Nothing,
    Released,
    Table(Arc<TableDescriptor>),
}

impl Catalogue {
    /// The job of a namespace, if it is known here.
    pub(super) fn job(&self, namespace: &str) -> Option<NamespaceId> {
        self.jobs.get(namespace).map(|job| job.id)
    }

    /// The job of a namespace, for changes, if it is known here.
    pub(super) fn job_mut(&mut self, namespace: &str) -> Option<&mut Job> {
        self.jobs.get_mut(namespace)
    }

    /// The namespaces of the jobs in use.
    pub(super) fn job_names(&self) -> HashMap<NamespaceId, String> {
        let jobs = self.jobs.iter();
        jobs.map(|(name, job)| (job.id, name.clone())).collect()
    }

    /// The job of a namespace; registers it if it is new.
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

    /// A catalogue with what the process before has left.
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

    /// Gives the job of a namespace the number that it had in the process before. False if it has another one.
    pub(super) fn adopt_job(&mut self, namespace: &str, id: NamespaceId) -> bool {
        self.open_job(namespace).is_ok_and(|job| job.id == id)
    }

    /// Forgets a job that has no tables any more. Returns the number it had.
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

    /// Looks up a table. One of another namespace counts as absent.
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

/// Takes the number that the job of a namespace had in the process before; `None` if no number, or not only one,
/// can be it.
fn take_kept(kept: &mut Vec<NamespaceId>, namespace: &str) -> Option<NamespaceId> {
    let is_its = |id: &NamespaceId| id.0 & !COUNT_MASK == name_bits(namespace);
    let mut found = (0..).zip(kept.iter()).filter(|(_, id)| is_its(id));
    let (n, _) = found.next().filter(|_| found.next().is_none())?;
    Some(kept.swap_remove(n))
}

/// The descriptor of a table that has these parts.
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
