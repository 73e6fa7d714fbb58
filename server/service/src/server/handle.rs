//! The handle of other threads on a server: tables, workers, the appliers themselves. (long: one handle for all orders.)

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::ScopedJoinHandle;

use crossbeam_channel::{Receiver, Sender, bounded};
use tidewater_lanes::wake::{Arms, Reactor, Waker};
use tidewater_protocol::ids::{
    ApplierId, DomainId, Incarnation, PartitionId, ServerId, TableId, WorkerId, WorkerThread,
};
use tidewater_protocol::layout::LINE_BYTES;
use tidewater_protocol::layout::session::TICKET_WORD_BYTES;
use tidewater_protocol::limits::TABLES_MAX;
use tidewater_protocol::placement::Owner;
use tidewater_protocol::wire::control::{
    ApplierPart, DomainClock, Endpoints, Remote, ServerMember, TableInfo, ThreadClock,
};
use tidewater_topology::hostinfo;

use super::catalogue::{Catalogue, Entry, State, descriptor};
use super::control::ControlCommand;
use super::error::system;
use super::failure::Failure;
use super::{ServerConfig, ServerError};
use tidewater_clocks::FirstClocks;
use tidewater_engine::apply::command::{ApplierGone, ApplierHandle, Command};
use tidewater_engine::apply::engine::Engine;
use tidewater_engine::apply::table::Table;
use tidewater_engine::namespace::NamespaceId;
use tidewater_engine::store::ShardId;
use tidewater_engine::store::prealloc::Preallocator;
use tidewater_engine::store::{ServerMemory, StoreError};

/// State that all threads of a server share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) config: ServerConfig,
    pub(super) memory: Arc<ServerMemory>,
    pub(super) preallocator: Preallocator,
    /// One for each applier.
    pub(super) appliers: Vec<ApplierControl>,
    /// Why the server cannot continue, if an applier has ended.
    pub(super) failure: Failure,
    pub(super) endpoints: Endpoints,
    pub(super) host_id: String,
    pub(super) catalogue: Mutex<Catalogue>,
}

/// The control handle of one applier.
#[derive(Debug)]
pub(super) struct ApplierControl {
    pub(super) handle: ApplierHandle,
    /// The descriptors that the applier sleeps on: sockets of its lanes are added.
    pub(super) watch: Reactor,
    /// Completion queues of its lanes, which the applier arms before it sleeps.
    #[cfg_attr(
        not(any(feature = "verbs", feature = "verbs-dlopen")),
        expect(dead_code, reason = "read by `verbs`")
    )]
    pub(super) arms: Arms,
    pub(super) waker: Waker,
}

impl Shared {
    pub(super) fn catalogue(&self) -> MutexGuard<'_, Catalogue> {
        match self.catalogue.lock() {
            Ok(guard) => guard,
            Err(poisoned) => poisoned.into_inner(),
        }
    }

    /// The error of a call that an applier does not answer any more.
    pub(super) fn gone(&self) -> ServerError {
        match self.failure.get() {
            Some(why) => ServerError::Failed {
                server: self.config.server,
                why: why.to_owned(),
            },
            None => ApplierGone.into(),
        }
    }

    /// Sends a command to all appliers at once and waits for all answers, in the order of the
    /// appliers.
    pub(super) fn ask_all<T>(
        &self,
        mut make: impl FnMut(u16, Sender<T>) -> Command,
    ) -> Result<Vec<T>, ServerError> {
        let mut answers = Vec::with_capacity(self.appliers.len());
        for (a, crew) in (0..).zip(&self.appliers) {
            let (tx, rx) = bounded(1);
            crew.handle.send(make(a, tx)).map_err(|_| self.gone())?;
            answers.push(rx);
        }
        let wait = |rx: Receiver<T>| rx.recv().map_err(|_| self.gone());
        answers.into_iter().map(wait).collect()
    }
}

/// How much a server holds at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeStatus {
    /// Number of sessions, including those with a cut connection.
    pub sessions: usize,
    /// Connections of the control thread, authenticated or not, without the lanes.
    pub connections: usize,
    /// Bytes of public memory in use, and bytes reserved.
    pub public_bytes: (usize, usize),
}

/// A handle on a running [`super::Server`]; clones share it. Its calls wait for the appliers, so do
/// not call them on an applier's or the control thread.
#[derive(Debug, Clone)]
pub struct ServerHandle {
    pub(super) shared: Arc<Shared>,
    pub(super) control: Sender<ControlCommand>,
    pub(super) waker: Waker,
}

impl ServerHandle {
    /// Addresses that the server listens on.
    pub fn endpoints(&self) -> &Endpoints {
        &self.shared.endpoints
    }

    /// Number of this start of the server.
    pub fn incarnation(&self) -> Incarnation {
        self.shared.config.incarnation
    }

    /// Number of applier threads.
    pub fn appliers(&self) -> u16 {
        self.shared.appliers.len() as u16
    }

    /// The public and private memory of the server.
    pub fn memory(&self) -> &Arc<ServerMemory> {
        &self.shared.memory
    }

    /// The server's entry in the list of members of its cluster.
    pub fn member(&self) -> ServerMember {
        ServerMember {
            id: self.shared.config.server,
            incarnation: self.incarnation(),
            host: hostinfo::host_name(),
            host_id: self.shared.host_id.clone(),
            endpoints: self.shared.endpoints.clone(),
            appliers: self.appliers(),
        }
    }

    /// Makes this server's part of a table. When it returns, the table can be described, pulled and
    /// pushed; calling it again with the same table changes nothing. Cost: dense tables are written
    /// completely, by one thread an applier.
    ///
    /// # Errors
    /// [`ServerError`]; nothing is left of the table then.
    pub fn create_table(&self, namespace: &str, info: &TableInfo) -> Result<(), ServerError> {
        // The process before died while it made the table: nothing has used it.
        self.release_kept(info.id)?;
        let Some(job) = self.reserve(namespace, info)? else {
            return Ok(());
        };
        let made = self.make(job, info);
        let mut catalogue = self.shared.catalogue();
        match made {
            Ok(parts) => {
                let table = Arc::new(descriptor(info.id, &info.spec, parts));
                if let Some(entry) = catalogue.entries.get_mut(&info.id) {
                    entry.state = State::Alive(table);
                }
                Ok(())
            }
            Err(e) => {
                catalogue.entries.remove(&info.id);
                Err(e)
            }
        }
    }

    /// Reserves the table's number and returns its job; `None` if the table is there already.
    fn reserve(
        &self,
        namespace: &str,
        info: &TableInfo,
    ) -> Result<Option<NamespaceId>, ServerError> {
        let spec = |why| ServerError::Spec {
            table: info.spec.name.clone(),
            why,
        };
        info.spec.validate().map_err(spec)?;
        let appliers = self.shared.appliers.len();
        let server = self.shared.config.server;
        let stray = |o: &&Owner| o.server == server && usize::from(o.applier.0) >= appliers;
        if let Some(owner) = info.placement.0.iter().find(stray) {
            return Err(ServerError::Config {
                what: "an applier in a table's placement",
                value: u64::from(owner.applier.0),
                must: "one of this server's",
            });
        }
        let mut catalogue = self.shared.catalogue();
        if let Some(entry) = catalogue.entries.get(&info.id) {
            let same = entry.namespace == namespace && entry.spec == info.spec;
            return match entry.state {
                State::Released if same => Err(ServerError::Released(info.id)),
                State::Alive(_) if same => Ok(None),
                _ => Err(ServerError::Differs {
                    id: info.id,
                    namespace: entry.namespace.clone(),
                    table: info.spec.name.clone(),
                }),
            };
        }
        let alive = |e: &&Entry| e.namespace == namespace && !matches!(e.state, State::Released);
        let have = catalogue.entries.values().filter(alive).count();
        if have >= TABLES_MAX {
            return Err(ServerError::Store(StoreError::Limit {
                what: "tables of a namespace",
                have: have as u64 + 1,
                limit: TABLES_MAX as u64,
            }));
        }
        let job = catalogue.open_job(namespace)?.id;
        let entry = Entry {
            namespace: namespace.to_owned(),
            spec: info.spec.clone(),
            state: State::Coming,
        };
        catalogue.entries.insert(info.id, entry);
        Ok(Some(job))
    }

    fn make(&self, job: NamespaceId, info: &TableInfo) -> Result<Vec<ApplierPart>, ServerError> {
        let tables = self.make_tables(info)?;
        let mut parts = Vec::with_capacity(tables.len());
        for (a, table) in tables {
            parts.push(table.describe(a));
            if let Some(crew) = self.shared.appliers.get(usize::from(a.0)) {
                let table = Box::new(table.of(job));
                let added = crew.handle.ask(|tx| Command::AddTable(table, tx));
                added.map_err(|_| self.shared.gone())?;
            }
        }
        Ok(parts)
    }

    /// Makes the shares of all appliers, one thread each: a dense table takes as long as writing
    /// it.
    fn make_tables(&self, info: &TableInfo) -> Result<Vec<(ApplierId, Table)>, ServerError> {
        let spec = Arc::new(info.spec.clone());
        let shared = &*self.shared;
        let share = |a: u16| -> Result<Option<Table>, ServerError> {
            let owned = owned(info, shared.config.server, a);
            if owned.is_empty() {
                return Ok(None);
            }
            let shard_id = ShardId::new(info.id, u32::from(a));
            let made = Table::new(
                &shared.memory,
                &shared.preallocator,
                shard_id,
                &spec,
                owned.into_iter().map(PartitionId),
            );
            made.map(Some).map_err(|source| ServerError::Table {
                table: spec.name.clone(),
                source,
            })
        };
        let made = in_parallel(shared.appliers.len() as u16, share);
        let mut tables = Vec::new();
        let mut failed = None;
        for (a, made) in (0..).map(ApplierId).zip(made) {
            match made {
                Ok(table) => tables.extend(table.map(|t| (a, t))),
                Err(e) => failed = Some(e),
            }
        }
        let Some(e) = failed else { return Ok(tables) };
        for (_, table) in tables {
            table.release()?;
        }
        Err(e)
    }

    /// Releases a table and frees its memory: frames for it are refused from now on, and rows that
    /// are still read fail their checksum. Calling it again changes nothing.
    ///
    /// # Errors
    /// [`ServerError::UnknownTable`]; [`ServerError::Gone`] when the server ends.
    pub fn release_table(&self, id: TableId) -> Result<(), ServerError> {
        {
            let mut catalogue = self.shared.catalogue();
            match catalogue.entries.get_mut(&id) {
                None => {
                    drop(catalogue);
                    return match self.release_kept(id)? {
                        true => Ok(()),
                        false => Err(ServerError::UnknownTable(id)),
                    };
                }
                Some(entry) => match entry.state {
                    State::Coming => return Err(ServerError::UnknownTable(id)),
                    State::Alive(_) => entry.state = State::Released,
                    State::Released => return Ok(()),
                },
            }
        }
        self.free_shares(id)
    }

    /// Takes the shares of a table from the appliers and frees them.
    pub(super) fn free_shares(&self, id: TableId) -> Result<(), ServerError> {
        let taken = self.shared.ask_all(|_, tx| Command::TakeTable(id, tx))?;
        // Zeroing and freeing take long: do it here, not on the appliers.
        for table in taken.into_iter().flatten() {
            table.release()?;
        }
        Ok(())
    }

    /// Numbers, namespaces and names of the tables in use, in ascending order.
    pub fn tables(&self) -> Vec<(TableId, String, String)> {
        let catalogue = self.shared.catalogue();
        let alive = |(id, e): (&TableId, &Entry)| {
            let row = (*id, e.namespace.clone(), e.spec.name.clone());
            matches!(e.state, State::Alive(_)).then_some(row)
        };
        let mut all: Vec<_> = catalogue.entries.iter().filter_map(alive).collect();
        all.sort_unstable();
        all
    }

    /// The number of a namespace in applied frames; `None` before its first table or session.
    pub fn namespace(&self, name: &str) -> Option<NamespaceId> {
        self.shared.catalogue().job(name)
    }

    /// Removes a worker of a job for good: the job's clocks no longer wait for it.
    ///
    /// # Errors
    /// [`ServerError::Gone`]; [`ServerError::Store`] for a job too many.
    pub fn remove_worker(&self, namespace: &str, worker: WorkerId) -> Result<(), ServerError> {
        let job = self.shared.catalogue().open_job(namespace)?.id;
        self.shared
            .ask_all(|_, tx| Command::RemoveWorker(job, worker, tx))
            .map(drop)
    }

    /// Applies the pushes of a finished task of a worker's thread, by the number of its delivery. Calling it again
    /// changes nothing.
    ///
    /// # Errors
    /// [`ServerError::Gone`]; [`ServerError::Store`] for a job too many.
    pub fn finish_task(
        &self,
        namespace: &str,
        thread: WorkerThread,
        delivery: u64,
    ) -> Result<(), ServerError> {
        let job = self.shared.catalogue().open_job(namespace)?.id;
        self.shared
            .ask_all(|_, tx| Command::FinishTask(job, thread, delivery, tx))
            .map(drop)
    }

    /// Ends the sessions of a lost worker; returns the furthest clock of each of its threads at any applier.
    /// From here on nothing of the worker arrives.
    ///
    /// # Errors
    /// [`ServerError::Gone`]; [`ServerError::Store`] for a job too many.
    pub fn lose_worker(
        &self,
        namespace: &str,
        worker: WorkerId,
    ) -> Result<Vec<ThreadClock>, ServerError> {
        let job = self.shared.catalogue().open_job(namespace)?.id;
        // First: commands to an applier are in order, so its clocks are those after the last frame.
        let (tx, rx) = bounded(1);
        self.command(ControlCommand::EndRank(job, worker, tx));
        rx.recv().map_err(|_| self.shared.gone())?;
        let read = |tx: Sender<_>| {
            Box::new(move |engine: &mut Engine| {
                // The caller waits for it.
                let _ = tx.send(engine.clocks_of(job, worker));
            })
        };
        let clocks = self.shared.ask_all(|_, tx| Command::With(read(tx)))?;
        let mut furthest: BTreeMap<(u32, DomainId), u64> = BTreeMap::new();
        for (thread, domain, clock) in clocks.into_iter().flatten() {
            let most = furthest.entry((thread.thread, domain)).or_default();
            *most = clock.max(*most);
        }
        let clock = |((thread, domain), clock)| ThreadClock {
            thread,
            domain,
            clock,
        };
        Ok(furthest.into_iter().map(clock).collect())
    }

    /// Completes the ticks of a lost worker that appliers lack.
    ///
    /// # Errors
    /// [`ServerError::Gone`]; [`ServerError::Store`] for a job too many.
    pub fn end_worker(
        &self,
        namespace: &str,
        worker: WorkerId,
        clocks: &[ThreadClock],
    ) -> Result<(), ServerError> {
        let job = self.shared.catalogue().open_job(namespace)?.id;
        let complete = |clocks: Vec<ThreadClock>, tx: Sender<()>| {
            Box::new(move |engine: &mut Engine| {
                for at in clocks {
                    let thread = WorkerThread {
                        rank: worker,
                        thread: at.thread,
                    };
                    engine.complete_tick(job, thread, at.domain, at.clock);
                }
                // The caller waits for it.
                let _ = tx.send(());
            })
        };
        let all = |_, tx| Command::With(complete(clocks.to_vec(), tx));
        self.shared.ask_all(all).map(drop)
    }

    /// Holds the clocks of a job: no tick is consumed until [`Self::admit`]. Returns the furthest clock of
    /// each domain at any applier.
    ///
    /// # Errors
    /// [`ServerError::Gone`]; [`ServerError::Store`] for a job too many.
    pub fn hold_clocks(&self, namespace: &str) -> Result<Vec<DomainClock>, ServerError> {
        let job = self.shared.catalogue().open_job(namespace)?.id;
        let held = self.shared.ask_all(|_, tx| Command::HoldClocks(job, tx))?;
        Ok(furthest_of(held))
    }

    /// The furthest clock of each domain of a job, which goes on.
    ///
    /// # Errors
    /// [`ServerError::Gone`]; [`ServerError::Store`] for a job too many.
    pub fn read_clocks(&self, namespace: &str) -> Result<Vec<DomainClock>, ServerError> {
        let job = self.shared.catalogue().open_job(namespace)?.id;
        let read = |tx: Sender<Vec<(DomainId, u64)>>| {
            Box::new(move |engine: &mut Engine| {
                // The caller waits for it.
                let _ = tx.send(engine.clocks(job).furthest());
            })
        };
        let clocks = self.shared.ask_all(|_, tx| Command::With(read(tx)))?;
        Ok(furthest_of(clocks))
    }

    /// Lets the clocks of a job go on, with a worker that begins at these clocks if there is one.
    ///
    /// # Errors
    /// [`ServerError::Gone`]; [`ServerError::Store`] for a job too many.
    pub fn admit(
        &self,
        namespace: &str,
        admitted: Option<(WorkerId, Vec<DomainClock>)>,
    ) -> Result<(), ServerError> {
        let job = self.shared.catalogue().open_job(namespace)?.id;
        let admitted = admitted.map(|(rank, clocks)| {
            let first = clocks.iter().map(|at| (at.domain, at.clock));
            (rank, first.collect::<FirstClocks>())
        });
        let begin = self
            .shared
            .ask_all(|_, tx| Command::Admit(job, admitted.clone(), tx))?;
        if let (Some((rank, _)), true) = (admitted, begin.into_iter().all(|begins| begins)) {
            // Sessions that an earlier worker of the rank has left.
            let (tx, rx) = bounded(1);
            self.command(ControlCommand::EndRank(job, rank, tx));
            // A control thread that has ended has no sessions.
            let _ = rx.recv();
        }
        Ok(())
    }

    /// Ends a job that is over: its sessions end, and the next job of its name starts with new
    /// clocks. Changes nothing while the job has tables.
    ///
    /// # Errors
    /// [`ServerError::Gone`].
    pub fn end_job(&self, namespace: &str) -> Result<(), ServerError> {
        let job = self.shared.catalogue().end_job(namespace);
        let Some(job) = job else { return Ok(()) };
        let (tx, rx) = bounded(1);
        self.command(ControlCommand::EndSessions(job, tx));
        // A control thread that has ended has no sessions.
        let _ = rx.recv();
        self.shared
            .ask_all(|_, tx| Command::EndJob(job, tx))
            .map(drop)
    }

    /// Runs `f` on an applier's thread between two frames, to save, load or inspect. The applier
    /// does nothing else meanwhile.
    ///
    /// # Errors
    /// [`ServerError::Gone`], also for an applier that does not exist.
    pub fn with_engine<T: Send + 'static>(
        &self,
        applier: ApplierId,
        f: impl FnOnce(&mut Engine) -> T + Send + 'static,
    ) -> Result<T, ServerError> {
        let crew = self.shared.appliers.get(usize::from(applier.0));
        let crew = crew.ok_or(ApplierGone)?;
        crew.handle.with(f).map_err(|_| self.shared.gone())
    }

    /// Why the server cannot continue: an applier has ended outside of a shutdown.
    pub fn failure(&self) -> Option<&str> {
        self.shared.failure.get()
    }

    /// Descriptor that is readable once [`Self::failure`] returns a reason.
    pub fn failure_descriptor(&self) -> BorrowedFd<'_> {
        self.shared.failure.descriptor()
    }

    /// Sets the cluster's epoch after a change of membership: peers must know it from now on.
    pub fn set_epoch(&self, epoch: u64) {
        self.command(ControlCommand::Epoch(epoch));
    }

    /// How much the server holds; `None` once it has ended.
    pub fn status(&self) -> Option<NodeStatus> {
        let (tx, rx) = bounded(1);
        self.command(ControlCommand::Status(tx));
        rx.recv().ok()
    }

    /// Ends the server: connections close, appliers stop. Returns at once; [`super::Server::join`]
    /// waits.
    pub fn shutdown(&self) {
        self.command(ControlCommand::Stop);
    }

    pub(super) fn command(&self, command: ControlCommand) {
        // A control thread that has ended needs no command.
        let _ = self.control.send(command);
        self.waker.wake();
    }
}

/// Partitions of a table that an applier owns.
pub(super) fn owned(info: &TableInfo, server: ServerId, applier: u16) -> Vec<u32> {
    let mine = |o: &Owner| (o.server, o.applier) == (server, ApplierId(applier));
    let owners = (0..).zip(&info.placement.0);
    let own = owners.filter(|(_, o)| mine(o));
    own.map(|(partition, _)| partition).collect()
}

/// Runs `f` for each applier on a thread of its own.
pub(super) fn in_parallel<T: Send>(
    appliers: u16,
    f: impl Fn(u16) -> Result<T, ServerError> + Sync,
) -> Vec<Result<T, ServerError>> {
    const WHAT: &str = "make a table on a thread of its own";
    let f = &f;
    std::thread::scope(|scope| {
        let start = |a| {
            let thread = std::thread::Builder::new().name("tw-table".into());
            thread.spawn_scoped(scope, move || f(a))
        };
        let threads: Vec<_> = (0..appliers).map(start).collect();
        let finish = |started: std::io::Result<ScopedJoinHandle<'_, _>>| {
            let panicked = |_| system(WHAT)(std::io::Error::other("it panicked"));
            started.map_err(system(WHAT))?.join().map_err(panicked)?
        };
        threads.into_iter().map(finish).collect()
    })
}

/// Which hardware performs atomics on a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Counts {
    /// Processors: those of clients on shm, the appliers' for clients on tcp.
    Processors = 0,
    /// NICs. Their atomics are atomic only among themselves: an increment by a processor in the
    /// middle of one is lost.
    Nics = 1,
}

/// Location of the word in which clients count pushes to an applier; length 0 if they do not count.
pub(super) fn ticket(shared: &Shared, applier: u16, counts: Counts) -> Remote {
    let line = applier as u64 * LINE_BYTES as u64;
    Remote {
        key: shared.memory.counters_key,
        address: line + TICKET_WORD_BYTES * counts as u64,
        len: if shared.config.count_pushes {
            TICKET_WORD_BYTES
        } else {
            0
        },
    }
}

/// The furthest clock of each domain of all appliers.
fn furthest_of(appliers: Vec<Vec<(DomainId, u64)>>) -> Vec<DomainClock> {
    let mut furthest = FirstClocks::new();
    for (domain, clock) in appliers.into_iter().flatten() {
        let most = furthest.entry(domain).or_default();
        *most = clock.max(*most);
    }
    let furthest = furthest.into_iter();
    furthest
        .map(|(domain, clock)| DomainClock { domain, clock })
        .collect()
}
