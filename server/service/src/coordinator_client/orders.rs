//! The coordinator's orders, as a server carries them out.

use std::collections::BTreeSet;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;

use tidewater_protocol::ids::{TableId, WorkerId, WorkerThread};
use tidewater_protocol::wire::control::{
    CheckpointMark, Command, CommandReply, DomainClock, Members, ServerStatus, TableInfo,
    ThreadClock, WorkerState,
};
use tidewater_protocol::wire::refusal::{Refusal, RefusalCode};

use super::Enlisted;
use crate::model_files::{FileOrder, ModelFiles};
use tidewater_checkpoint::Appliers;

/// Operations by which a server carries out the coordinator's orders. Each call blocks until its work is done.
pub trait Orders {
    /// Returns access to the appliers, for the thread of a save or load.
    fn appliers(&self) -> Box<dyn Appliers + Send>;

    /// Creates this server's share of a table.
    ///
    /// # Errors
    /// The refusal that the coordinator gets; nothing is left of the table.
    fn create_table(&self, namespace: &str, table: &TableInfo) -> Result<(), Refusal>;

    /// Serves this server's share of a table again, from memory that its dead predecessor process has left.
    ///
    /// # Errors
    /// The refusal that the coordinator gets. The share stays in memory until the table is released.
    fn adopt_table(&self, namespace: &str, table: &TableInfo) -> Result<(), Refusal>;

    /// Releases this server's share of a table and frees its memory.
    ///
    /// # Errors
    /// The refusal that the coordinator gets.
    fn release_table(&self, id: TableId) -> Result<(), Refusal>;

    /// Loads a function from a module, for a job.
    ///
    /// # Errors
    /// The refusal that the coordinator gets; the server does not have the function then.
    fn load_function(&self, namespace: &str, name: &str, module: &[u8]) -> Result<(), Refusal>;

    /// Removes a worker from its job, so that no clock waits for it.
    ///
    /// # Errors
    /// The refusal that the coordinator gets.
    fn remove_worker(&self, namespace: &str, worker: WorkerId) -> Result<(), Refusal>;

    /// Applies the pushes, held until now, of a task that `thread` has finished. `delivery` numbers the task.
    ///
    /// # Errors
    /// The refusal that the coordinator gets.
    fn finish_task(
        &self,
        namespace: &str,
        thread: WorkerThread,
        delivery: u64,
    ) -> Result<(), Refusal>;

    /// Ends the sessions of a lost worker. Returns the highest clock of each of its threads in each domain.
    ///
    /// # Errors
    /// The refusal that the coordinator gets.
    fn lose_worker(&self, namespace: &str, worker: WorkerId) -> Result<Vec<ThreadClock>, Refusal>;

    /// Raises a lost worker's clocks to `clocks` on appliers where they are lower, so that all count equal ticks.
    ///
    /// # Errors
    /// The refusal that the coordinator gets.
    fn end_worker(
        &self,
        namespace: &str,
        worker: WorkerId,
        clocks: &[ThreadClock],
    ) -> Result<(), Refusal>;

    /// Holds a job's clocks: appliers consume no tick until `Self::admit`. Returns the highest clock by domain.
    ///
    /// # Errors
    /// The refusal that the coordinator gets.
    fn hold_clocks(&self, namespace: &str) -> Result<Vec<DomainClock>, Refusal>;

    /// Returns the highest clock of each domain of a job, without holding them.
    ///
    /// # Errors
    /// The refusal that the coordinator gets.
    fn read_clocks(&self, namespace: &str) -> Result<Vec<DomainClock>, Refusal>;

    /// Lets a job's held (stopped) clocks advance. `admitted`: a new member, if any, with its first clocks.
    ///
    /// # Errors
    /// The refusal that the coordinator gets.
    fn admit(
        &self,
        namespace: &str,
        admitted: Option<(WorkerId, Vec<DomainClock>)>,
    ) -> Result<(), Refusal>;

    /// Ends a job's sessions and clocks; the next job of that name starts with new clocks. Changes nothing
    /// while the job has tables.
    ///
    /// # Errors
    /// The refusal that the coordinator gets.
    fn end_job(&self, namespace: &str) -> Result<(), Refusal>;

    /// Reason why this server cannot continue; `None` while it can.
    fn failure(&self) -> Option<&str>;

    /// Descriptor that is readable once [`Self::failure`] returns a reason.
    fn failure_descriptor(&self) -> BorrowedFd<'_>;

    /// Sets the cluster's epoch, which rises when a server leaves. Peers that connect later must know it.
    fn set_epoch(&self, epoch: u64);

    /// Returns a closure that collects the server's status for operators. It may block for seconds.
    fn reporter(&self) -> Box<dyn FnOnce() -> ServerStatus + Send>;
}

impl Enlisted {
    fn make_table(
        &mut self,
        node: &dyn Orders,
        namespace: String,
        table: TableInfo,
    ) -> Result<(), Refusal> {
        node.create_table(&namespace, &table)?;
        self.tables.insert(table.id, (namespace, table));
        Ok(())
    }

    /// Carries an order out. `None` if a thread of `files` makes the reply: its `take_done` returns it later.
    pub(super) fn carry_out(
        &mut self,
        node: &dyn Orders,
        files: &mut ModelFiles,
        id: u64,
        order: Command,
    ) -> Result<Option<CommandReply>, Refusal> {
        match order {
            Command::CreateTable { namespace, table } => self.make_table(node, namespace, table)?,
            Command::AdoptTable { namespace, table } => {
                self.adopt_table(node, namespace, table)?;
            }
            Command::ReleaseTable { id } => {
                self.tables.remove(&id);
                node.release_table(id)?;
            }
            Command::LoadFunction {
                namespace,
                name,
                module,
            } => node.load_function(&namespace, &name, &module.0)?,
            Command::MembersChanged {
                namespace,
                members,
                admitted,
            } => {
                if members.workers.is_empty() {
                    files.end_job(&namespace);
                }
                // Before other workers are removed: the clocks that were held have not moved.
                self.admit(node, &namespace, admitted)?;
                self.members_changed(node, &namespace, &members)?;
            }
            Command::HoldClocks { namespace } => {
                let clocks = node.hold_clocks(&namespace)?;
                self.admits.insert(namespace.clone());
                self.held.insert(namespace);
                return Ok(Some(CommandReply::Clocks(clocks)));
            }
            Command::Save {
                namespace,
                dir,
                clocks,
                checkpoint,
            } => {
                let order = self.save(&namespace, dir, clocks, checkpoint);
                if checkpoint.is_some() {
                    self.held.remove(&namespace);
                    files.begin_checkpoint(id, &namespace, order, || node.appliers())?;
                } else {
                    files.order(id, &namespace, order, || node.appliers())?;
                }
                return Ok(None);
            }
            Command::CancelSave { namespace } => files.cancel_checkpoint(&namespace),
            Command::Load {
                id: table,
                name,
                dir,
            } => {
                let (namespace, order) = self.load(table, &name, dir)?;
                files.order(id, namespace, order, || node.appliers())?;
                return Ok(None);
            }
            Command::Shutdown => {}
            of_workers @ (Command::LoseWorker { .. }
            | Command::EndWorker { .. }
            | Command::ReadClocks { .. }
            | Command::FinishTask { .. }) => return about_workers(node, of_workers).map(Some),
            Command::Status => {
                // It may wait for seconds: clocks that are held must go on meanwhile.
                let report = node.reporter();
                files.answer_apart(id, || CommandReply::Status(Box::new(report())))?;
                return Ok(None);
            }
        }
        Ok(Some(CommandReply::Done))
    }

    /// Serves a table of the predecessor's memory again. A repeated order changes nothing.
    fn adopt_table(
        &mut self,
        node: &dyn Orders,
        namespace: String,
        table: TableInfo,
    ) -> Result<(), Refusal> {
        node.adopt_table(&namespace, &table)?;
        let known = self.tables.insert(table.id, (namespace.clone(), table));
        if known.is_none() {
            self.adopted.insert(namespace);
        }
        Ok(())
    }

    /// Lets a job's held (stopped) clocks advance, with the new member `admitted` if there is one. A new member
    /// without a hold is a scheduled stay (join-to-leave interval), and is added. After a hold, first removes an
    /// earlier member of the rank. Skips orders that a restarted coordinator repeats. Does nothing if there is
    /// no hold, no adopted table and no new member.
    fn admit(
        &mut self,
        node: &dyn Orders,
        namespace: &str,
        admitted: Option<(WorkerId, Vec<DomainClock>)>,
    ) -> Result<(), Refusal> {
        let was_held = self.held.remove(namespace);
        let was_adopted = self.adopted.remove(namespace);
        if !was_held && !was_adopted && admitted.is_none() {
            return Ok(());
        }
        if let Some((rank, clocks)) = &admitted {
            let clocks = clocks.iter().map(|at| (at.domain, at.clock)).collect();
            let is_new = self.admits.remove(namespace);
            let is_known = !self.admitted.insert((namespace.to_owned(), *rank, clocks));
            if is_known && !is_new && self.return_address.is_some() {
                // The order was carried out before the coordinator was restarted. Only one with a journal is, and it
                // follows no schedule in which two stays of a rank are the same.
                return Ok(());
            }
            // The loss of the rank's member before may not have been announced. Without a hold this is a stay
            // of a schedule, and the member may be alive.
            if was_held || (is_new && self.return_address.is_some()) {
                node.remove_worker(namespace, *rank)?;
            }
            self.removed.remove(&(namespace.to_owned(), *rank));
        }
        node.admit(namespace, admitted)
    }

    fn members_changed(
        &mut self,
        node: &dyn Orders,
        namespace: &str,
        members: &Members,
    ) -> Result<(), Refusal> {
        node.set_epoch(members.epoch);
        if members.workers.is_empty() {
            self.removed.retain(|(job, _)| job != namespace);
            self.admitted.retain(|(job, ..)| job != namespace);
            return node.end_job(namespace);
        }
        for worker in take_ended(&mut self.removed, namespace, members) {
            self.admitted
                .retain(|(job, rank, _)| job != namespace || *rank != worker);
            node.remove_worker(namespace, worker)?;
        }
        Ok(())
    }

    fn save(
        &self,
        namespace: &str,
        dir: String,
        clocks: Vec<DomainClock>,
        mark: Option<CheckpointMark>,
    ) -> FileOrder {
        let of_job = self.tables.values().filter(|(job, _)| job == namespace);
        let tables = of_job.map(|(_, table)| table.clone());
        FileOrder::Save {
            tables: tables.filter(|t| !t.spec.is_transient()).collect(),
            clocks,
            mark,
            dir: PathBuf::from(dir),
            begun: None,
        }
    }

    fn load(&self, id: TableId, name: &str, dir: String) -> Result<(&str, FileOrder), Refusal> {
        let table = self
            .tables
            .get(&id)
            .filter(|(_, table)| table.spec.name == name);
        let numbers = [u64::from(id.0), 0, 0, 0];
        let found = table.ok_or_else(|| Refusal::new(RefusalCode::UnknownTable, numbers))?;
        let (namespace, table) = (&found.0, found.1.clone());
        let dir = PathBuf::from(dir);
        Ok((namespace, FileOrder::Load { table, dir }))
    }
}

/// Carries out an order about workers: their loss, their clocks, or a finished task. Panics for any other order.
fn about_workers(node: &dyn Orders, order: Command) -> Result<CommandReply, Refusal> {
    match order {
        Command::LoseWorker { namespace, worker } => node
            .lose_worker(&namespace, worker)
            .map(CommandReply::ThreadClocks),
        Command::EndWorker {
            namespace,
            worker,
            clocks,
        } => node
            .end_worker(&namespace, worker, &clocks)
            .map(|()| CommandReply::Done),
        Command::ReadClocks { namespace } => node.read_clocks(&namespace).map(CommandReply::Clocks),
        Command::FinishTask {
            namespace,
            worker,
            thread,
            delivery,
        } => {
            let thread = WorkerThread {
                rank: worker,
                thread,
            };
            node.finish_task(&namespace, thread, delivery)
                .map(|()| CommandReply::Done)
        }
        other => unreachable!("{other:?} is no order about workers"),
    }
}

/// Returns the workers of a job that have ended and are not yet in `removed`, the set of those already taken from the
/// clocks, and adds them to it. Takes a live worker out of `removed`: its rank has joined again.
pub(super) fn take_ended(
    removed: &mut BTreeSet<(String, WorkerId)>,
    namespace: &str,
    members: &Members,
) -> Vec<WorkerId> {
    let mut ended = Vec::new();
    for worker in &members.workers {
        let key = (namespace.to_owned(), worker.id);
        match worker.state {
            WorkerState::Expected => {}
            WorkerState::Live => {
                removed.remove(&key);
            }
            WorkerState::Finished | WorkerState::Lost => {
                if removed.insert(key) {
                    ended.push(worker.id);
                }
            }
        }
    }
    ended
}
