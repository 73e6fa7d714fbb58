//! Functions that clients load: every server builds the function from the client's module, and the client
//! learns whether all servers have it.
//!
//! One load is under way at a time, so that no server's connection has to queue more than one module; equal
//! loads, as from all workers of a job, are carried out once. Loads take effect in the order in which they
//! came, so all servers decide alike between two modules of one name: the first is kept.

use std::collections::BTreeSet;

use tidewater_protocol::ids::ServerId;
use tidewater_protocol::wire::control::{Command, CommandReply, CoordinatorAnswer, ModuleBytes};
use tidewater_protocol::wire::refusal::{Refusal, RefusalCode};

use super::state::{Asker, Coordinator, Purpose, bad};
use super::tables::refusal_of;

/// A client's request to load a function into all servers. The first request in the queue is under way, the others
/// wait.
#[derive(Debug)]
pub(super) struct FunctionLoad {
    namespace: String,
    name: String,
    module: ModuleBytes,
    /// Client requests to answer; empty if their job has ended.
    askers: Vec<Asker>,
    /// Servers that have not answered the order; `None` before it is sent.
    missing: Option<BTreeSet<ServerId>>,
    /// The first refusal of a server, if any.
    refused: Option<Refusal>,
}

impl Coordinator {
    /// Queues the load of a module as function `name` on all servers. An equal load (job, name and module) that
    /// waits or is under way is shared. The client is answered when all servers have answered. Refused before
    /// all servers have joined, or without such a job.
    pub(super) fn load_function(
        &mut self,
        asker: Asker,
        namespace: &str,
        name: &str,
        module: ModuleBytes,
    ) -> Result<(), Refusal> {
        if !self.is_complete() {
            return Err(bad("not all servers have joined; wait for them"));
        }
        if !self.jobs.contains_key(namespace) {
            return Err(bad("no such job"));
        }
        let same = |load: &&mut FunctionLoad| {
            (load.namespace.as_str(), load.name.as_str()) == (namespace, name)
                && load.module == module
        };
        if let Some(load) = self.functions.values_mut().find(same) {
            load.askers.push(asker);
            return Ok(());
        }
        let load = FunctionLoad {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            module,
            askers: vec![asker],
            missing: None,
            refused: None,
        };
        self.last_function += 1;
        self.functions.insert(self.last_function, load);
        self.order_next_load();
        Ok(())
    }

    /// Orders all servers to load the function of the first waiting request, unless another function is being loaded or
    /// a server is missing.
    pub(super) fn order_next_load(&mut self) {
        if !self.is_complete() {
            return;
        }
        let servers = self.joined_servers();
        let Some(mut first) = self.functions.first_entry() else {
            return;
        };
        let (number, load) = (*first.key(), first.get_mut());
        if load.missing.is_some() {
            return;
        }
        load.missing = Some(servers.iter().copied().collect());
        let order = Command::LoadFunction {
            namespace: load.namespace.clone(),
            name: load.name.clone(),
            module: load.module.clone(),
        };
        for server in servers {
            self.order(server, Purpose::Function(number), order.clone());
        }
    }

    /// Handles the answer of `server` to the load with number `load`; ignores an unknown number. After the last
    /// server's answer the clients get `Done` or the first refusal, and the next load begins.
    pub(super) fn function_loaded(&mut self, load: u64, server: ServerId, answer: CommandReply) {
        let Some(under_way) = self.functions.get_mut(&load) else {
            return;
        };
        if answer != CommandReply::Done {
            let refusal = refusal_of(server, answer);
            under_way.refused.get_or_insert(refusal);
        }
        let missing = under_way.missing.get_or_insert_default();
        missing.remove(&server);
        if !missing.is_empty() {
            return;
        }
        let Some(FunctionLoad {
            askers, refused, ..
        }) = self.functions.remove(&load)
        else {
            unreachable!("load {load} is under way");
        };
        let answer = refused.map_or(CoordinatorAnswer::Done, CoordinatorAnswer::Refused);
        for asker in askers {
            self.answer(asker, answer.clone());
        }
        self.order_next_load();
    }

    /// Ends the wait of a function load for the answer of `server`, which has ended: the load is refused when the others
    /// have answered.
    pub(super) fn load_without(&mut self, server: ServerId) {
        let waits = |load: &FunctionLoad| {
            let missing = load.missing.as_ref();
            missing.is_some_and(|missing| missing.contains(&server))
        };
        let found = self.functions.iter().find(|(_, load)| waits(load));
        if let Some((&number, _)) = found {
            let numbers = [u64::from(server.0), 0, 0, 0];
            let refusal = Refusal::new(RefusalCode::PeerFailed, numbers)
                .with_text("it ended before it had the function; load it again");
            self.function_loaded(number, server, CommandReply::Refused(refusal));
        }
    }

    /// Drops the function loads of a job that ends. One under way stays until servers have answered, without an
    /// answer to clients. Returns the client requests of all of them, for the caller to refuse.
    pub(super) fn drop_loads(&mut self, namespace: &str) -> Vec<Asker> {
        let mut askers = Vec::new();
        self.functions.retain(|_, load| {
            let is_of_job = load.namespace == namespace;
            if is_of_job {
                askers.append(&mut load.askers);
            }
            !is_of_job || load.missing.is_some()
        });
        askers
    }
}
