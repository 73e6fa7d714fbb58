//! Saves and loads of a server, on threads of their own. A slow or hanging file system thus delays neither
//! other orders of the coordinator nor other jobs.
//!
//! Each job has one thread, which carries out its orders one after the other. A load is one order for
//! each table; the thread keeps the index of the model from one to the next, so that each file is opened
//! and its index read once.

use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use tidewater_engine::store::cut::SaveMemory;
use tidewater_lanes::wake::Waker;
use tidewater_protocol::ids::ServerId;
use tidewater_protocol::wire::control::{
    CheckpointMark, CommandReply, DomainClock, SavedPart, TableInfo,
};
use tidewater_protocol::wire::refusal::{Refusal, RefusalCode};
use tidewater_runtime::clock::Deadline;

use crate::panics::refuse_panic;
use tidewater_checkpoint::{
    self as checkpoint, Appliers, BegunSave, OsDisk, SaveRequest, SavedModel,
};

/// Time after an order for which the opened model is kept for the next load.
const KEEP_INDEX: Duration = Duration::from_secs(1);
/// Interval at which the end of threads is checked.
const POLL: Duration = Duration::from_millis(5);

/// Order of the coordinator that reads or writes files.
#[derive(Debug)]
pub(crate) enum FileOrder {
    /// Write this server's part of a save of these tables.
    Save {
        /// Tables of the job.
        tables: Vec<TableInfo>,
        /// Clocks of the cut, by domain.
        clocks: Vec<DomainClock>,
        /// The checkpoint that is taken; `None` for a save that a worker asks for.
        mark: Option<CheckpointMark>,
        /// Directory of the model.
        dir: PathBuf,
        /// The begun save, if the appliers already have their orders.
        begun: Option<BegunSave>,
    },
    /// Fill this server's share of a table.
    Load {
        /// Table to fill, created before.
        table: TableInfo,
        /// Directory of the model.
        dir: PathBuf,
    },
}

/// Threads that carry out a server's saves and loads: one for each job, which takes orders in turn, and one for each
/// status report. Collects their replies to the coordinator.
pub(crate) struct ModelFiles {
    server: ServerId,
    /// Channel to the thread of each job, by namespace.
    jobs: BTreeMap<String, Sender<(u64, FileOrder)>>,
    /// Handle for cancelling the last checkpoint of each job, which may have ended.
    checkpoints: BTreeMap<String, Arc<SaveMemory>>,
    threads: Vec<JoinHandle<()>>,
    done: Receiver<(u64, CommandReply)>,
    reply: Sender<(u64, CommandReply)>,
    waker: Waker,
}

impl ModelFiles {
    /// Makes an empty set, without threads. `waker` wakes the thread that takes the replies.
    pub(crate) fn new(server: ServerId, waker: Waker) -> Self {
        let (reply, done) = unbounded();
        Self {
            server,
            jobs: BTreeMap::new(),
            checkpoints: BTreeMap::new(),
            threads: Vec::new(),
            done,
            reply,
            waker,
        }
    }

    /// Passes order `id` to the thread of its job. If there is none, starts it with the access that `appliers`
    /// returns. Does not block: `Self::take_done` returns the reply later.
    ///
    /// # Errors
    /// The refusal of the order: no thread can be started, or the job's thread has panicked.
    pub(crate) fn order(
        &mut self,
        id: u64,
        namespace: &str,
        order: FileOrder,
        appliers: impl FnOnce() -> Box<dyn Appliers + Send>,
    ) -> Result<(), Refusal> {
        let Some(orders) = self.jobs.get(namespace) else {
            let (orders, taken) = unbounded();
            let thread = FileThread::new(self.server, appliers());
            let (reply, waker) = (self.reply.clone(), self.waker.clone());
            let name = std::thread::Builder::new().name("tw-files".into());
            let started = name
                .spawn(move || thread.run(&taken, &reply, &waker))
                .map_err(|error| {
                    let text = format!("cannot start a thread for files: {error}");
                    Refusal::new(RefusalCode::Io, [0; 4]).with_text(text)
                })?;
            self.threads.push(started);
            // The receiver is in the thread, which takes all orders before it ends.
            let _ = orders.send((id, order));
            self.jobs.insert(namespace.to_owned(), orders);
            return Ok(());
        };
        orders.send((id, order)).map_err(|_| {
            let text = "the thread for files has panicked: a defect, please report it";
            Refusal::new(RefusalCode::Io, [0; 4]).with_text(text)
        })
    }

    /// Runs `work` on a new thread and makes its result the reply to order `id`, which `Self::take_done` returns
    /// later. Does not block.
    ///
    /// # Errors
    /// The refusal of the order: no thread can be started.
    pub(crate) fn answer_apart(
        &mut self,
        id: u64,
        work: impl FnOnce() -> CommandReply + Send + 'static,
    ) -> Result<(), Refusal> {
        let (reply, waker) = (self.reply.clone(), self.waker.clone());
        self.threads.retain(|thread| !thread.is_finished());
        let thread = std::thread::Builder::new().name("tw-status".into());
        let started = thread.spawn(move || {
            let done = refuse_panic(work).unwrap_or_else(CommandReply::Refused);
            // A server that has ended needs no reply.
            let _ = reply.send((id, done));
            waker.wake();
        });
        let started = started.map_err(|error| {
            let text = format!("cannot start a thread for a report: {error}");
            Refusal::new(RefusalCode::Io, [0; 4]).with_text(text)
        })?;
        self.threads.push(started);
        Ok(())
    }

    /// Blocks until all threads started so far have ended. For tests that have ordered only reports: the thread of a
    /// job does not end by itself.
    #[cfg(test)]
    pub(crate) fn end_reports(&mut self) {
        self.threads
            .drain(..)
            .for_each(|thread| thread.join().unwrap());
    }

    /// Begins a checkpoint: orders all appliers to save, lets the job's clocks, which the coordinator has stopped,
    /// advance again, and passes the writing to the job's thread. `Self::take_done` returns the reply.
    ///
    /// # Errors
    /// The refusal of the order; the clocks advance in this case too.
    pub(crate) fn begin_checkpoint(
        &mut self,
        id: u64,
        namespace: &str,
        order: FileOrder,
        appliers: impl Fn() -> Box<dyn Appliers + Send>,
    ) -> Result<(), Refusal> {
        let FileOrder::Save {
            tables,
            clocks,
            mark,
            dir,
            ..
        } = order
        else {
            return self.order(id, namespace, order, appliers);
        };
        let own = appliers();
        let request = SaveRequest {
            server: self.server,
            tables: &tables,
            clocks: &clocks,
            mark,
            dir: &dir,
            nonce: 0,
        };
        let begun = checkpoint::begin_save(&*own, &request, true);
        own.release_clocks(namespace)?;
        let begun = begun?;
        let end = begun.cancel_handle();
        self.checkpoints.insert(namespace.to_owned(), end);
        let begun = Some(begun);
        let order = FileOrder::Save {
            tables,
            clocks,
            mark,
            dir,
            begun,
        };
        self.order(id, namespace, order, appliers)
    }

    /// Cancels the checkpoint of a job that is under way, if any: its thread answers the order with a refusal.
    pub(crate) fn cancel_checkpoint(&mut self, namespace: &str) {
        if let Some(memory) = self.checkpoints.remove(namespace) {
            memory.cancel();
        }
    }

    /// Descriptor that becomes readable when a reply is ready.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.waker.as_fd()
    }

    /// Removes and returns the replies that are ready, each with the id of its order. Does not block.
    pub(crate) fn take_done(&mut self) -> Vec<(u64, CommandReply)> {
        self.waker.drain();
        self.done.try_iter().collect()
    }

    /// Cancels the checkpoint of a job that is over. Its thread ends after its queued orders.
    pub(crate) fn end_job(&mut self, namespace: &str) {
        self.cancel_checkpoint(namespace);
        self.jobs.remove(namespace);
        self.threads.retain(|thread| !thread.is_finished());
    }

    /// Cancels checkpoints and blocks until all threads have ended, or until `deadline`. A thread in a hanging file
    /// system is left behind; the part file that it writes is in no manifest and so in no model.
    pub(crate) fn end(mut self, deadline: Deadline) {
        self.jobs.clear();
        self.checkpoints.values().for_each(|memory| memory.cancel());
        for thread in self.threads {
            while !thread.is_finished() && !deadline.passed() {
                std::thread::sleep(POLL);
            }
            if thread.is_finished() && thread.join().is_err() {
                tracing::error!("a thread for files panicked: a defect, please report it");
            }
        }
    }
}

impl std::fmt::Debug for ModelFiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut s = f.debug_struct("ModelFiles");
        s.field("jobs", &self.jobs.keys()).finish_non_exhaustive()
    }
}

/// State of a job's thread for saves and loads.
pub(crate) struct FileThread {
    server: ServerId,
    appliers: Box<dyn Appliers + Send>,
    /// The model that was loaded last, with the index of its chunks.
    model: Option<SavedModel>,
}

impl FileThread {
    pub(crate) fn new(server: ServerId, appliers: Box<dyn Appliers + Send>) -> Self {
        Self {
            server,
            appliers,
            model: None,
        }
    }

    fn run(
        mut self,
        orders: &Receiver<(u64, FileOrder)>,
        reply_to: &Sender<(u64, CommandReply)>,
        waker: &Waker,
    ) {
        loop {
            let next = match self.model {
                Some(_) => orders.recv_timeout(KEEP_INDEX),
                None => orders.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match next {
                Ok((id, order)) => {
                    // A panic is answered like an error: the coordinator waits for each order. The
                    // order's file and index are dropped by it, and the index that is kept below.
                    let done = refuse_panic(|| self.carry_out(order));
                    if done.is_err() {
                        self.model = None;
                    }
                    let reply = done.flatten().unwrap_or_else(|refusal| {
                        match refusal.code {
                            // The coordinator has ended it.
                            RefusalCode::ShuttingDown => tracing::debug!(%refusal, "a save ends"),
                            _ => tracing::warn!(%refusal, "an order cannot be carried out"),
                        }
                        CommandReply::Refused(refusal)
                    });
                    // A server that has ended needs no reply.
                    let _ = reply_to.send((id, reply));
                    waker.wake();
                }
                Err(RecvTimeoutError::Timeout) => self.model = None,
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    pub(crate) fn carry_out(&mut self, order: FileOrder) -> Result<CommandReply, Refusal> {
        match order {
            FileOrder::Save {
                tables,
                clocks,
                mark,
                dir,
                begun,
            } => {
                self.model = None;
                let nonce = getrandom::u64().map_err(|error| {
                    let text = format!("no random bytes: {error}");
                    Refusal::new(RefusalCode::Io, [0; 4]).with_text(text)
                })?;
                let request = SaveRequest {
                    server: self.server,
                    tables: &tables,
                    clocks: &clocks,
                    mark,
                    dir: &dir,
                    nonce,
                };
                let part = self.save(&request, begun)?;
                Ok(CommandReply::Saved(part))
            }
            FileOrder::Load { table, dir } => {
                let model = match self.model.take() {
                    Some(model) if model.is_current(&dir) => model,
                    _ => SavedModel::open(&dir)?,
                };
                let loaded = checkpoint::load_table(&*self.appliers, self.server, &table, &model);
                self.model = Some(model);
                loaded?;
                Ok(CommandReply::Done)
            }
        }
    }

    fn save(
        &self,
        request: &SaveRequest<'_>,
        begun: Option<BegunSave>,
    ) -> Result<SavedPart, Refusal> {
        let (appliers, disk) = (&*self.appliers, Box::new(OsDisk));
        let share = match begun {
            Some(begun) => checkpoint::write_part(appliers, disk, request, begun)?,
            None => checkpoint::save_part(appliers, disk, request)?,
        };
        let checkpoint::SavedShare {
            file,
            settings,
            cut_ms,
        } = share;
        let checkpoint::SavedFile {
            server: _,
            file,
            rows,
            bytes,
            check,
            clocks,
            // The coordinator knows it.
            extends: _,
        } = file;
        Ok(SavedPart {
            file,
            rows,
            bytes,
            check,
            clocks,
            settings,
            cut_ms,
        })
    }
}

#[cfg(test)]
mod tests {
    mod orders;

    use tidewater_engine::apply::engine::Engine;
    use tidewater_protocol::ids::ApplierId;

    use super::*;

    /// Appliers that panic when they are used.
    struct Defect;

    impl Appliers for Defect {
        fn count(&self) -> u16 {
            panic!("no such applier")
        }

        fn run(&self, _: ApplierId, _: Box<dyn FnOnce(&mut Engine) + Send>) -> bool {
            panic!("no such applier")
        }

        fn wake(&self, _: ApplierId) {}

        fn save_bytes(&self) -> usize {
            1 << 20
        }
    }

    /// An order that panics is refused with the message, and so is the next one of the job.
    #[test]
    fn panic_of_file_thread_refuses_its_order() {
        let dir = tempfile::tempdir().unwrap();
        let mut files = ModelFiles::new(ServerId(0), Waker::new().unwrap());
        for id in 1..=2 {
            let save = FileOrder::Save {
                tables: Vec::new(),
                clocks: Vec::new(),
                mark: None,
                dir: dir.path().to_owned(),
                begun: None,
            };
            files.order(id, "job", save, || Box::new(Defect)).unwrap();
            let until = Deadline::after(Duration::from_secs(20));
            let done = loop {
                let done = files.take_done();
                if !done.is_empty() || until.passed() {
                    break done;
                }
                std::thread::sleep(POLL);
            };
            let [(of, CommandReply::Refused(refusal))] = &done[..] else {
                panic!("not refused: {done:?}");
            };
            assert_eq!((*of, refusal.code), (id, RefusalCode::Io));
            assert!(refusal.text.contains("no such applier"), "{refusal}");
        }
        files.end(Deadline::after(Duration::from_secs(20)));
    }
}
