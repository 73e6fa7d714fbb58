//! The handle of other threads on a server: tables, workers, the appliers. (long: one handle for all orders.)

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

/// State of a server that all its threads share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) config: ServerConfig,
    pub(super) memory: Arc<ServerMemory>,
    pub(super) preallocator: Preallocator,
    /// Handle of each applier, by its number.
    pub(super) appliers: Vec<ApplierControl>,
    /// Reason why the server cannot continue, if an applier has failed.
    pub(super) failure: Failure,
    pub(super) endpoints: Endpoints,
    pub(super) host_id: String,
    pub(super) catalogue: Mutex<Catalogue>,
}

/// Handle on one applier's thread for the others: command channel, reactor and waker.
#[derive(Debug)]
pub(super) struct ApplierControl {
    pub(super) handle: ApplierHandle,
    /// Reactor of the descriptors on which the applier sleeps; sockets of its lanes are added.
    pub(super) watch: Reactor,
    /// Completion queues of its verbs lanes, which the applier arms before it sleeps.
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

    /// Makes the error of a call that an applier no longer answers: `Failed` with the reason if an applier has
    /// failed, else `Gone`, since the server ends.
    pub(super) fn gone(&self) -> ServerError {
        match self.failure.get() {
            Some(why) => ServerError::Failed {
                server: self.config.server,
                why: why.to_owned(),
            },
            None => ApplierGone.into(),
        }
    }

    /// Sends a command to every applier and blocks for all answers. Returns them in the order of the appliers. `make`
    /// builds the command of an applier, which answers through the sender. Fails if an applier has ended; the others
    /// may have carried their command out.
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

/// Counts of a server's sessions, connections and memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeStatus {
    /// Number of sessions, including those without a connection.
    pub sessions: usize,
    /// Number of control connections, authenticated or not; lanes do not count.
    pub connections: usize,
    /// Bytes of public memory in use, and the bytes reserved.
    pub public_bytes: (usize, usize),
}

/// Handle on a running [`super::Server`] for any thread; clones share the server. Most calls block until the
/// appliers answer, so an applier's or the control thread must not call them.
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

    /// Random number of this start of the server.
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

    /// The server's entry for the member list of its cluster.
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

    /// Creates this server's share of a table; blocks until clients can describe, pull and push it. Calling it
    /// again with the same table changes nothing. Frees a table of this number that the previous process's
    /// memory holds and that is not adopted. Cost: dense tables are written completely, by one thread for each
    /// applier.
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

    /// Validates a new table, enters it in the catalogue as being created, and returns the number of its job. `None`
    /// if the same table is in use already. An error leaves the catalogue unchanged.
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

    /// Creates the shares of all appliers in parallel, one thread each, since a dense table is written
    /// completely. After an error no share is left.
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

    /// Releases a table and frees its memory; blocks until that is done. Later frames for it are refused, and
    /// reads of its rows fail their checksum. Calling it again changes nothing.
    ///
    /// # Errors
    /// [`ServerError::UnknownTable`], also while it is being created; [`ServerError::Gone`] or
    /// [`ServerError::Failed`] when an applier has ended.
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

    /// Takes the shares of a table from the appliers, makes their rows and blocks invalid and frees their memory, on
    /// the calling thread. Values of rows stay in freed memory; public memory of a range table is zeroed. Appliers
    /// without a share are skipped.
    pub(super) fn free_shares(&self, id: TableId) -> Result<(), ServerError> {
        let taken = self.shared.ask_all(|_, tx| Command::TakeTable(id, tx))?;
        // Zeroing and freeing take long: do it here, not on the appliers.
        for table in taken.into_iter().flatten() {
            table.release()?;
        }
        Ok(())
    }

    /// Number, namespace and name of each table in use, in ascending order of numbers.
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

    /// Job number of a namespace, as in applied frames; `None` before the first table or session of the job.
    pub fn namespace(&self, name: &str) -> Option<NamespaceId> {
        self.shared.catalogue().job(name)
    }

    /// Removes a worker from a job, so that the job's clocks no longer wait for it; blocks until all appliers
    /// have.
    ///
    /// # Errors
    /// [`ServerError::Gone`] or [`ServerError::Failed`]: an applier has ended, and the server ends.
    /// [`ServerError::Store`] for a job too many.
    pub fn remove_worker(&self, namespace: &str, worker: WorkerId) -> Result<(), ServerError> {
        let job = self.shared.catalogue().open_job(namespace)?.id;
        self.shared
            .ask_all(|_, tx| Command::RemoveWorker(job, worker, tx))
            .map(drop)
    }

    /// Applies the pushes that a worker's thread has made for a finished task; appliers have held them until now.
    /// `delivery` numbers the task's assignment. Blocks until all appliers have. Calling it again changes nothing.
    ///
    /// # Errors
    /// [`ServerError::Gone`] or [`ServerError::Failed`]: an applier has ended, and the server ends.
    /// [`ServerError::Store`] for a job too many.
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

    /// Ends the sessions of a lost worker, so that none of its frames arrives later. Blocks; returns the
    /// highest clock of each of its threads in each domain, over all appliers, sorted by thread and domain.
    ///
    /// # Errors
    /// [`ServerError::Gone`] or [`ServerError::Failed`]: an applier has ended, and the server ends.
    /// [`ServerError::Store`] for a job too many.
    pub fn lose_worker(
        &self,
        namespace: &str,
        worker: WorkerId,
    ) -> Result<Vec<ThreadClock>, ServerError> {
        let job = self.shared.catalogue().open_job(namespace)?.id;
        // First: when a ring is dropped its last frames are consumed, also those that a device placed while it ended the
        // lane. The clocks that are read then are those of all frames.
        let (tx, rx) = bounded(1);
        self.command(ControlCommand::EndRank(job, worker, tx));
        for dropped in rx.recv().map_err(|_| self.shared.gone())? {
            dropped.recv().map_err(|_| self.shared.gone())?;
        }
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

    /// Raises the clocks of a lost worker to `clocks` on the appliers where they are lower, so that all appliers
    /// count the same ticks of it. Blocks until all have.
    ///
    /// # Errors
    /// [`ServerError::Gone`] or [`ServerError::Failed`]: an applier has ended, and the server ends.
    /// [`ServerError::Store`] for a job too many.
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

    /// Holds the clocks of a job: appliers consume no tick until [`Self::admit`]. Returns the highest clock
    /// of each domain at any applier.
    ///
    /// # Errors
    /// [`ServerError::Gone`] or [`ServerError::Failed`]: an applier has ended, and the server ends.
    /// [`ServerError::Store`] for a job too many.
    pub fn hold_clocks(&self, namespace: &str) -> Result<Vec<DomainClock>, ServerError> {
        let job = self.shared.catalogue().open_job(namespace)?.id;
        let held = self.shared.ask_all(|_, tx| Command::HoldClocks(job, tx))?;
        Ok(furthest_of(held))
    }

    /// Returns the highest clock of each domain of a job at any applier. The clocks keep advancing.
    ///
    /// # Errors
    /// [`ServerError::Gone`] or [`ServerError::Failed`]: an applier has ended, and the server ends.
    /// [`ServerError::Store`] for a job too many.
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

    /// Lets the clocks of a job, which `Self::hold_clocks` has stopped, advance; blocks until all appliers
    /// have. `admitted` is a new member with its first clocks, if any; sessions of an earlier worker of its
    /// rank end if the member begins now at all appliers.
    ///
    /// # Errors
    /// [`ServerError::Gone`] or [`ServerError::Failed`]: an applier has ended, and the server ends.
    /// [`ServerError::Store`] for a job too many.
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

    /// Ends a job that is over: its sessions and clocks end, and the next job of that name starts with new
    /// clocks. Changes nothing while the job has tables, or if the server does not know the job.
    ///
    /// # Errors
    /// [`ServerError::Gone`] or [`ServerError::Failed`]: an applier has ended, and the server ends.
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

    /// Runs `f` on an applier's thread between two frames and returns its result; blocks until it ends. The
    /// applier serves no frames meanwhile.
    ///
    /// # Errors
    /// [`ServerError::Gone`], also for an applier that does not exist; [`ServerError::Failed`] if one has failed.
    pub fn with_engine<T: Send + 'static>(
        &self,
        applier: ApplierId,
        f: impl FnOnce(&mut Engine) -> T + Send + 'static,
    ) -> Result<T, ServerError> {
        let crew = self.shared.appliers.get(usize::from(applier.0));
        let crew = crew.ok_or(ApplierGone)?;
        crew.handle.with(f).map_err(|_| self.shared.gone())
    }

    /// Reason why the server cannot continue, after an applier has failed; `None` before.
    pub fn failure(&self) -> Option<&str> {
        self.shared.failure.get()
    }

    /// Descriptor that becomes readable once [`Self::failure`] returns a reason.
    pub fn failure_descriptor(&self) -> BorrowedFd<'_> {
        self.shared.failure.descriptor()
    }

    /// Sets the cluster's epoch after a membership change; peers that connect later must know it. Does not
    /// block.
    pub fn set_epoch(&self, epoch: u64) {
        self.command(ControlCommand::Epoch(epoch));
    }

    /// Counts of the server's sessions, connections and memory; `None` once it has ended.
    pub fn status(&self) -> Option<NodeStatus> {
        let (tx, rx) = bounded(1);
        self.command(ControlCommand::Status(tx));
        rx.recv().ok()
    }

    /// Ends the control thread, which closes the control connections. The appliers are stopped by
    /// [`super::Server::join`] or the drop of the server. Does not block.
    pub fn shutdown(&self) {
        self.command(ControlCommand::Stop);
    }

    pub(super) fn command(&self, command: ControlCommand) {
        // A control thread that has ended needs no command.
        let _ = self.control.send(command);
        self.waker.wake();
    }
}

/// Partitions of a table that the applier `applier` of this server owns, in ascending order.
pub(super) fn owned(info: &TableInfo, server: ServerId, applier: u16) -> Vec<u32> {
    let mine = |o: &Owner| (o.server, o.applier) == (server, ApplierId(applier));
    let owners = (0..).zip(&info.placement.0);
    let own = owners.filter(|(_, o)| mine(o));
    own.map(|(partition, _)| partition).collect()
}

/// Runs `f` for each applier number on a new thread; blocks until all have ended. Returns the results in order
/// of the numbers. An error or panic of one does not stop the others; a panic becomes an error.
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

/// Kind of hardware that performs the atomic additions on a push counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Counts {
    /// Processors: the clients' over shared memory, the appliers' for TCP clients.
    Processors = 0,
    /// NICs. Their atomics are atomic only among each other: a concurrent increment by a processor can get
    /// lost.
    Nics = 1,
}

/// Location of the word in which clients count their pushes to an applier; `len` is 0 bytes if clients do not
/// count.
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

/// Highest clock of each domain over all appliers.
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
