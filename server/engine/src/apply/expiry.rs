//! Rows that expire, at ticks.
//!
//! The tick that ends iteration `i` sweeps one partition, number `i` modulo the partitions of the table.
//! A row therefore expires at a tick that follows from its key and its last push alone: the same on every
//! run of BSP and on any number of servers. A tick looks at one partition's rows, on one applier, in steps
//! like those of its sums. Rows that are made between two of them are new, and stay.

use tidewater_protocol::ids::DomainId;
use tidewater_protocol::mutants::{self, Mutant};

use super::engine::Engine;
use super::table::Store;
use crate::namespace::NamespaceId;

/// Number of slots of a partition that a tick examines for expired rows before it deletes those found.
const SLOTS_AT_ONCE: u64 = 512;
/// Number of examined slots that count as one row in the budget of a tick's step: an examination is cheaper.
const SLOTS_OF_A_ROW: u64 = 4;

impl Engine {
    /// Sets the tick count of a domain's sparse tables, by which rows expire: `iteration + 1` ticks are
    /// complete when `iteration` ends.
    pub(super) fn set_ticks(&mut self, namespace: NamespaceId, domain: DomainId, iteration: u64) {
        for table in self.tables.values_mut() {
            if (table.namespace, table.spec.domain) == (namespace, domain)
                && let Store::Sparse(shard) = &mut table.store
            {
                shard.set_ticks(iteration + 1);
            }
        }
    }

    /// Stamps the rows in `self.places` with the present tick, so that their time to expiry begins again.
    /// Called after a push of them has taken effect. No effect on a table without an expiry. A failure stops the
    /// applier.
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

    /// Deletes expired rows of the partition that is due when `iteration` ends (partitions take turns). Called
    /// after the steps of the iteration. Begins at slot `at` and advances `at`. Subtracts from `rows` a quarter
    /// of the slots examined and the rows deleted, and stops at 0. Returns whether all slots were examined;
    /// true also if no row of the table can expire or another applier owns the partition.
    pub(super) fn expire_some(
        &mut self,
        id: u32,
        iteration: u64,
        at: &mut u64,
        rows: &mut usize,
    ) -> bool {
        let mut keys = std::mem::take(&mut self.tick.keys);
        let done = loop {
            let table = self.tables.get(&id);
            let Some((Store::Sparse(shard), spec)) = table.map(|t| (&t.store, &t.spec)) else {
                break true;
            };
            let partition = (iteration % u64::from(spec.partitions)) as u32;
            let skipped = mutants::on(Mutant::ExpiryOnOneServer) && partition % 2 == 1;
            // Without slots the partition is another applier's.
            let slots = shard.slots(partition).unwrap_or_default();
            if !shard.expires() || skipped || *at >= slots {
                break true;
            }
            if *rows == 0 {
                break false;
            }
            let looked = *at..slots.min(*at + SLOTS_AT_ONCE);
            keys.clear();
            if let Err(e) = shard.expired(partition, looked.clone(), &mut self.places, &mut keys) {
                self.fail(format_args!("rows of table {id} could not be read: {e}"));
            }
            self.delete_at_tick(id, iteration, &keys);
            let cost = (looked.end - looked.start).div_ceil(SLOTS_OF_A_ROW) as usize + keys.len();
            *rows = rows.saturating_sub(cost);
            *at = looked.end;
        };
        self.tick.keys = keys;
        done
    }
}
