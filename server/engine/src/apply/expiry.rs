//! Rows that expire, at ticks.
//!
//! The tick that ends iteration `i` sweeps one partition, number `i` modulo the partitions of the table.
//! A row therefore expires at a tick that follows from its key and its last push alone: the same on every
//! run of BSP and on any number of servers. A tick looks at one partition's rows, on one applier.

use tidewater_protocol::ids::DomainId;
use tidewater_protocol::mutants::{self, Mutant};

use super::engine::Engine;
use super::table::Store;
use crate::namespace::NamespaceId;

impl Engine {
    /// Sets the ticks that tables with an expiry count: those completed when iteration `iteration` ends.
    pub(super) fn set_ticks(&mut self, namespace: NamespaceId, domain: DomainId, iteration: u64) {
        for table in self.tables.values_mut() {
            if (table.namespace, table.spec.domain) == (namespace, domain)
                && let Store::Sparse(shard) = &mut table.store
            {
                shard.set_ticks(iteration + 1);
            }
        }
    }

    /// Stamps the rows in `self.places`: a push of them has taken effect.
    pub(super) fn stamp_rows(&mut self, id: u32) {
        let Some(Store::Sparse(shard)) = self.tables.get(&id).map(|t| &t.store) else {
            return;
        };
        if mutants::on(Mutant::PushRenewsNothing) {
            return;
        }
        if let Err(e) = shard.stamp(&self.places) {
            self.fail(format_args!("rows of table {id} could not be stamped: {e}"));
        }
    }

    /// Deletes the rows that have expired when iteration `iteration` ends, after its steps.
    pub(super) fn expire(&mut self, namespace: NamespaceId, domain: DomainId, iteration: u64) {
        let mut keys = std::mem::take(&mut self.tick.keys);
        let mut ids = Vec::new();
        for table in self.tables.values() {
            let Store::Sparse(shard) = &table.store else {
                continue;
            };
            if shard.expires() && (table.namespace, table.spec.domain) == (namespace, domain) {
                ids.push((table.id.0, table.spec.partitions));
            }
        }
        for (id, partitions) in ids {
            let partition = (iteration % u64::from(partitions)) as u32;
            if mutants::on(Mutant::ExpiryOnOneServer) && partition % 2 == 1 {
                continue;
            }
            let Some(Store::Sparse(shard)) = self.tables.get(&id).map(|t| &t.store) else {
                unreachable!("table {id} is sparse");
            };
            keys.clear();
            if let Err(e) = shard.expired(partition, &mut keys) {
                self.fail(format_args!("rows of table {id} could not be read: {e}"));
            }
            self.delete_at_tick(id, iteration, &keys);
        }
        self.tick.keys = keys;
    }
}
