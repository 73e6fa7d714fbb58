//! Functions that clients load: every server makes one of the module, and the client learns whether all
//! of them have it.
//!
//! Each load goes to the servers in the order in which it came, over connections that keep the order, and
//! a server carries out one order after the other. So all servers decide alike between two modules of one
//! name: the first is kept.

use std::collections::BTreeSet;

use tidewater_protocol::ids::ServerId;
use tidewater_protocol::wire::control::{Command, CommandReply, CoordinatorAnswer, ModuleBytes};
use tidewater_protocol::wire::refusal::Refusal;

use super::state::{Asker, Coordinator, Purpose, bad};
use super::tables::refusal_of;

/// A load under way.
#[derive(Debug)]
pub(super) struct FunctionLoad {
    asker: Asker,
    missing: BTreeSet<ServerId>,
    refused: Option<Refusal>,
}

impl Coordinator {
    /// Orders every server to make a function of a module.
    pub(super) fn load_function(
        &mut self,
        asker: Asker,
        namespace: &str,
        name: &str,
        module: &ModuleBytes,
    ) -> Result<(), Refusal> {
        if !self.is_complete() {
            return Err(bad("not all servers have joined; wait for them"));
        }
        let servers = self.joined_servers();
        self.last_function += 1;
        let load = FunctionLoad {
            asker,
            missing: servers.iter().copied().collect(),
            refused: None,
        };
        self.functions.insert(self.last_function, load);
        for server in servers {
            let order = Command::LoadFunction {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
                module: module.clone(),
            };
            self.order(server, Purpose::Function(self.last_function), order);
        }
        Ok(())
    }

    /// Notes that a server has made the function, or refuses the module.
    pub(super) fn function_loaded(&mut self, load: u64, server: ServerId, answer: CommandReply) {
        let Some(under_way) = self.functions.get_mut(&load) else {
            return;
        };
        under_way.missing.remove(&server);
        if answer != CommandReply::Done {
            let refusal = refusal_of(server, answer);
            under_way.refused.get_or_insert(refusal);
        }
        if !under_way.missing.is_empty() {
            return;
        }
        if let Some(FunctionLoad { asker, refused, .. }) = self.functions.remove(&load) {
            let answer = refused.map_or(CoordinatorAnswer::Done, CoordinatorAnswer::Refused);
            self.answer(asker, answer);
        }
    }
}
