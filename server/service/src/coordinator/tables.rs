//! The table catalogue of the coordinator. A table exists when every server has created its share.

use std::collections::BTreeSet;

use tidewater_protocol::ids::{ServerId, TableId};
use tidewater_protocol::limits::{PARTITIONS_AUTO, TABLES_MAX};
use tidewater_protocol::mutants::{self, Mutant};
use tidewater_protocol::placement::{Placement, default_partitions};
use tidewater_protocol::table::difference::difference;
use tidewater_protocol::table::{Durability, TableSpec};
use tidewater_protocol::wire::control::{Command, CommandReply, CoordinatorAnswer, TableInfo};
use tidewater_protocol::wire::refusal::{Refusal, RefusalCode};
use tidewater_protocol::wire::spec::SpecError;

use super::state::{Asker, Coordinator, Purpose};
use tidewater_journal::Outcome;

/// Progress of a table's creation or release on the servers.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Creation waits until all servers have joined.
    Waiting,
    /// Servers are creating their shares: those in `missing` have not answered, those in `made` have succeeded.
    Making {
        missing: BTreeSet<ServerId>,
        made: Vec<ServerId>,
        refused: Option<Refusal>,
    },
    /// Created on all servers; a load is filling it.
    Filling,
    /// Clients can use it.
    Ready,
    /// Servers are releasing it; the set holds those that have not answered. Its name is free already.
    Releasing(BTreeSet<ServerId>),
}

/// A table of one job in the catalogue.
#[derive(Debug)]
pub(super) struct TableEntry {
    pub(super) namespace: String,
    pub(super) info: TableInfo,
    pub(super) stage: Stage,
    /// Requests that are answered when the table is ready or dropped, or is released.
    pub(super) askers: Vec<Asker>,
    /// Number of the load operation that creates it, if one does.
    pub(super) load: Option<u64>,
    /// Whether a worker requested its release before a restart of the coordinator and has yet to repeat the
    /// request.
    pub(super) awaits_asker: bool,
}

impl Coordinator {
    pub(super) fn create_table(
        &mut self,
        asker: Asker,
        namespace: &str,
        mut spec: TableSpec,
    ) -> Result<Option<CoordinatorAnswer>, Refusal> {
        if spec.is_library() {
            spec.durability = self.durability_beside(namespace, &spec);
        }
        if let Some(id) = self.table_named(namespace, &spec.name) {
            return self.table_when_ready(asker, id, Some(&spec));
        }
        let id = self.add_table(namespace, spec, None)?;
        self.give_way(namespace);
        if let Some(table) = self.tables.get_mut(&id) {
            table.askers.push(asker);
        }
        if self.is_complete() {
            self.make_table(id);
        }
        Ok(None)
    }

    /// Durability of a library table, which a call of the client creates by itself: that of the existing table
    /// of its name, if any. Else warm if all other tables of the job are warm (library tables do not count) and
    /// all connected servers have holders that can restart them: a cold table would end what warm ones promise.
    /// Else that of `spec`.
    fn durability_beside(&self, namespace: &str, spec: &TableSpec) -> Durability {
        if let Some(id) = self.table_named(namespace, &spec.name)
            && let Some(table) = self.tables.get(&id)
        {
            return table.info.spec.durability;
        }
        let mut tables = self.tables.values().map(|table| (table, &table.info.spec));
        let are_warm = tables.all(|(table, spec)| {
            table.namespace != namespace || spec.is_library() || spec.durability == Durability::Warm
        });
        let are_held = self.servers.values().all(|server| server.restarts > 0);
        match are_warm
            && are_held
            && !self.servers.is_empty()
            && !mutants::on(Mutant::LibraryTablesLost)
        {
            true => Durability::Warm,
            false => spec.durability,
        }
    }

    pub(super) fn open_table(
        &mut self,
        asker: Asker,
        namespace: &str,
        name: &str,
    ) -> Result<Option<CoordinatorAnswer>, Refusal> {
        let id = self.table_named(namespace, name).ok_or_else(|| {
            Refusal::new(RefusalCode::UnknownTable, [0; 4]).with_text(format!("\"{name}\""))
        })?;
        self.table_when_ready(asker, id, None)
    }

    pub(super) fn release_table(
        &mut self,
        asker: Asker,
        namespace: &str,
        id: TableId,
    ) -> Result<Option<CoordinatorAnswer>, Refusal> {
        let numbers = [u64::from(id.0), 0, 0, 0];
        // Tables of other jobs count as absent.
        let table = self
            .tables
            .get_mut(&id)
            .filter(|table| table.namespace == namespace);
        let table = table.ok_or_else(|| Refusal::new(RefusalCode::UnknownTable, numbers))?;
        match table.stage {
            Stage::Releasing(_) => {
                table.askers.push(asker);
                self.end_release(id);
            }
            Stage::Ready => {
                table.askers.push(asker);
                self.start_release(id);
                self.give_way(namespace);
            }
            Stage::Waiting | Stage::Making { .. } | Stage::Filling => {
                let refusal = Refusal::new(RefusalCode::BadRequest, numbers);
                return Err(refusal.with_text("the table is still being made"));
            }
        }
        Ok(None)
    }

    /// Adds a table to the catalogue, without creating it on the servers. `load` is the load operation that
    /// creates it, if any. Returns its number. Refused without such a job, beyond `TABLES_MAX` per job, and
    /// with a partition on a server that this cluster does not have.
    pub(super) fn add_table(
        &mut self,
        namespace: &str,
        spec: TableSpec,
        load: Option<u64>,
    ) -> Result<TableId, Refusal> {
        let id = TableId(self.last_table + 1);
        let Some(job) = self.jobs.get_mut(namespace) else {
            return Err(super::state::bad("no such job"));
        };
        spec.check_servers(self.config.servers)
            .map_err(|error| bad_spec(&spec.name, &error))?;
        if job.tables.len() == TABLES_MAX {
            let most = TABLES_MAX as u64;
            let refusal = Refusal::new(RefusalCode::TooMany, [most + 1, most, 0, 0]);
            return Err(refusal.with_text("tables of a job"));
        }
        self.last_table = id.0;
        job.tables.insert(spec.name.clone(), id);
        let info = TableInfo {
            id,
            spec,
            placement: Placement(Vec::new()),
        };
        let (namespace, stage) = (namespace.to_owned(), Stage::Waiting);
        self.tables.insert(
            id,
            TableEntry {
                namespace,
                info,
                stage,
                askers: Vec::new(),
                load,
                awaits_asker: false,
            },
        );
        Ok(id)
    }

    pub(super) fn make_waiting_tables(&mut self) {
        let waiting = self
            .tables
            .iter()
            .filter(|(_, table)| table.stage == Stage::Waiting);
        for id in waiting.map(|(&id, _)| id).collect::<Vec<_>>() {
            self.make_table(id);
        }
    }

    /// Chooses the number of a table's partitions if it is automatic, assigns them to appliers, and orders
    /// every server to create its share. Drops a table with a partition on a server that this cluster does not
    /// have, and refuses the requests that wait for it.
    pub(super) fn make_table(&mut self, id: TableId) {
        let (appliers, servers) = (self.appliers(), self.joined_servers());
        let Some(table) = self.tables.get_mut(&id) else {
            return;
        };
        let spec = &mut table.info.spec;
        if spec.partitions == PARTITIONS_AUTO {
            spec.partitions = default_partitions(spec, &appliers);
        }
        if let Err(error) = spec.check_servers(appliers.len() as u32) {
            let (refusal, load) = (bad_spec(&spec.name, &error), table.load);
            self.drop_table(id, Vec::new(), &refusal);
            if let Some(op) = load {
                self.load_failed(op, refusal);
            }
            return;
        }
        table.info.placement = Placement::of_table(spec, &appliers);
        table.stage = Stage::Making {
            missing: servers.iter().copied().collect(),
            made: Vec::new(),
            refused: None,
        };
        let (namespace, info) = (table.namespace.clone(), table.info.clone());
        for server in servers {
            let order = Command::CreateTable {
                namespace: namespace.clone(),
                table: info.clone(),
            };
            self.order(server, Purpose::Create(id), order);
        }
    }

    /// Handles a server's answer to CreateTable. After the last answer the table is ready, is filled by its
    /// load, or is dropped because a server refused.
    pub(super) fn table_created(&mut self, id: TableId, server: ServerId, answer: CommandReply) {
        let Some(table) = self.tables.get_mut(&id) else {
            return;
        };
        let Stage::Making {
            missing,
            made,
            refused,
        } = &mut table.stage
        else {
            return;
        };
        missing.remove(&server);
        match answer {
            CommandReply::Done => made.push(server),
            other => {
                refused.get_or_insert(refusal_of(server, other));
            }
        }
        if !missing.is_empty() {
            return;
        }
        let (made, refused) = (std::mem::take(made), refused.take());
        match (refused, table.load) {
            (None, Some(op)) => {
                table.stage = Stage::Filling;
                self.load_table_made(op, id);
            }
            (None, None) => self.table_ready(id),
            (Some(refusal), load) => {
                self.drop_table(id, made, &refusal);
                if let Some(op) = load {
                    self.load_failed(op, refusal);
                }
            }
        }
    }

    /// Marks a table as ready and answers the requests that wait for it.
    pub(super) fn table_ready(&mut self, id: TableId) {
        let Some(table) = self.tables.get_mut(&id) else {
            return;
        };
        table.stage = Stage::Ready;
        table.load = None;
        let (askers, info) = (std::mem::take(&mut table.askers), table.info.clone());
        for asker in askers {
            self.answer(asker, CoordinatorAnswer::Table(info.clone()));
        }
    }

    /// Removes a table from the catalogue. Orders the servers `made`, which have created it, to release it, and
    /// refuses the requests that wait for it with `refusal`. Does not wait for the servers.
    pub(super) fn drop_table(&mut self, id: TableId, made: Vec<ServerId>, refusal: &Refusal) {
        let Some(table) = self.tables.remove(&id) else {
            return;
        };
        if let Some(job) = self.jobs.get_mut(&table.namespace) {
            job.tables.remove(&table.info.spec.name);
        }
        self.not_awaited(&table.namespace, id);
        self.release_on_return(id);
        for server in made {
            self.order(server, Purpose::Cleanup, Command::ReleaseTable { id });
        }
        for asker in table.askers {
            self.answer(asker, CoordinatorAnswer::Refused(refusal.clone()));
        }
    }

    pub(super) fn start_release(&mut self, id: TableId) {
        let servers = self.joined_servers();
        let Some(table) = self.tables.get_mut(&id) else {
            return;
        };
        table.stage = Stage::Releasing(servers.iter().copied().collect());
        if let Some(job) = self.jobs.get_mut(&table.namespace) {
            job.tables.remove(&table.info.spec.name);
        }
        for server in servers {
            self.order(server, Purpose::Release(id), Command::ReleaseTable { id });
        }
    }

    /// Handles a server's answer to ReleaseTable. A refusal counts as success, since that server does not
    /// have the table.
    pub(super) fn table_released(&mut self, id: TableId, server: ServerId) {
        let Some(table) = self.tables.get_mut(&id) else {
            return;
        };
        let Stage::Releasing(missing) = &mut table.stage else {
            return;
        };
        missing.remove(&server);
        self.end_release(id);
    }

    /// Stops waiting for the release of tables at `server`, which is gone with its memory.
    pub(super) fn release_without(&mut self, server: ServerId) {
        for id in self.releasing_at(server) {
            self.table_released(id, server);
        }
    }

    /// Tables that this server has yet to release.
    pub(super) fn releasing_at(&self, server: ServerId) -> Vec<TableId> {
        let awaits = |table: &TableEntry| matches!(&table.stage, Stage::Releasing(missing) if missing.contains(&server));
        let those = self.tables.iter().filter(|(_, table)| awaits(table));
        those.map(|(&id, _)| id).collect()
    }

    /// Removes a table that all servers have released, and answers the release requests. Does nothing while
    /// servers are missing, or a worker has yet to repeat its request.
    pub(super) fn end_release(&mut self, id: TableId) {
        let Some(table) = self.tables.get_mut(&id) else {
            return;
        };
        let is_awaited = table.awaits_asker && table.askers.is_empty();
        if matches!(&table.stage, Stage::Releasing(missing) if missing.is_empty()) && !is_awaited {
            let askers = std::mem::take(&mut table.askers);
            self.tables.remove(&id);
            for asker in askers {
                self.answer_once(asker, format!("release {id}"), Outcome::Done);
            }
        }
    }

    pub(super) fn table_named(&self, namespace: &str, name: &str) -> Option<TableId> {
        self.jobs.get(namespace)?.tables.get(name).copied()
    }

    /// Returns the table if it is ready; else queues the request, to be answered then, and returns `None`.
    /// Refused if `spec` differs from the table's definition. An automatic number of partitions that is not
    /// chosen yet becomes that of `spec`.
    fn table_when_ready(
        &mut self,
        asker: Asker,
        id: TableId,
        spec: Option<&TableSpec>,
    ) -> Result<Option<CoordinatorAnswer>, Refusal> {
        let numbers = [u64::from(id.0), 0, 0, 0];
        let Some(table) = self.tables.get_mut(&id) else {
            return Err(Refusal::new(RefusalCode::UnknownTable, numbers));
        };
        let have = &mut table.info.spec;
        if let Some(spec) = spec
            && have.partitions == PARTITIONS_AUTO
            && difference(spec, have).is_none()
        {
            // Their number is chosen when all servers have joined: until then a request may say it.
            have.partitions = spec.partitions;
        }
        if let Some(difference) = spec.and_then(|spec| difference(&table.info.spec, spec)) {
            return Err(Refusal::new(RefusalCode::TableDiffers, numbers).with_text(difference));
        }
        if table.stage == Stage::Ready {
            return Ok(Some(CoordinatorAnswer::Table(table.info.clone())));
        }
        table.askers.push(asker);
        Ok(None)
    }
}

/// Converts a server's refusal, or an answer of the wrong kind, into a refusal that names the server.
pub(super) fn refusal_of(server: ServerId, answer: CommandReply) -> Refusal {
    match answer {
        CommandReply::Refused(mut refusal) => {
            let text = std::mem::take(&mut refusal.text);
            refusal.with_text(format!("server {server}: {text}"))
        }
        _ => super::state::bad(&format!("server {server} answers another order")),
    }
}

/// Refusal of a table with a definition that is not valid in this cluster.
fn bad_spec(table: &str, error: &SpecError) -> Refusal {
    Refusal::new(RefusalCode::BadSpec, [0; 4]).with_text(format!("table \"{table}\": {error}"))
}
