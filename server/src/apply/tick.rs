//! Ticks: a worker's clock moves; when the minimum moves, the iterations it closes take effect.
//!
//! Pushes of a closed iteration are reduced in rank order, row by row, and each row takes one
//! optimizer step: the bits depend neither on timing nor on who owns which partition. Only then is
//! the new minimum announced, so no reader at clock c sees an update of an iteration >= c.

use std::collections::BTreeMap;

use tidewater_transport::ids::{DomainId, WorkerId};
use tidewater_transport::layout::frame::{CLOCK_FINISHED, FrameHeader, RowsPayload};
use tidewater_transport::layout::reject::RejectReason;
use tidewater_transport::layout::row::Loc;
use tidewater_transport::planted::{self, Plant};
use tidewater_transport::table::{DType, PushOp, Reduce};

use super::Refusal;
use super::engine::{Effect, Engine};
use super::kernels::accumulate;
use super::pending::Held;
use super::push::word;
use super::reduce::{Ranks, tick_order};
use super::table::{Store, Table};
use crate::clocks::Moved;
use crate::namespace::{FrameSender, NamespaceId};

/// One thing's reduced pushes of one iteration: first the last assign, then the sums, then one
/// gradient step.
#[derive(Debug, Default)]
struct Reduced {
    assign: Option<Vec<u8>>,
    sum: Option<Vec<u8>>,
    gradient: Option<Vec<u8>>,
    ranks: Ranks,
}

impl Reduced {
    fn add(&mut self, dtype: DType, rank: WorkerId, op: PushOp, values: &[u8]) {
        let slot = match op {
            PushOp::Assign => {
                self.assign = Some(values.to_vec());
                return;
            }
            PushOp::Sum => &mut self.sum,
            PushOp::Gradient => {
                self.ranks.add(rank);
                &mut self.gradient
            }
        };
        match slot {
            Some(acc) => accumulate(dtype, acc, values),
            None => *slot = Some(values.to_vec()),
        }
    }

    /// What is to be applied, in order.
    fn steps(mut self, dtype: DType, reduce: Reduce) -> impl Iterator<Item = (PushOp, Vec<u8>)> {
        if let (Reduce::Mean, Some(g)) = (reduce, &mut self.gradient) {
            self.ranks.mean(dtype, g);
        }
        tick_order().into_iter().filter_map(move |op| {
            let values = match op {
                PushOp::Assign => self.assign.take(),
                PushOp::Sum => self.sum.take(),
                PushOp::Gradient => self.gradient.take(),
            };
            values.map(|values| (op, values))
        })
    }
}

impl Engine {
    pub(super) fn clock(
        &mut self,
        sender: FrameSender,
        header: &FrameHeader,
    ) -> Result<Effect, Refusal> {
        let told = header.clock;
        if !sender.clocked || header.partition >= 64 {
            return Err(RejectReason::BadClock {
                clock: told,
                expected: u64::MAX,
            });
        }
        let domain = DomainId(header.partition as u8);
        if told == CLOCK_FINISHED && !planted::on(Plant::FinishLeavesOneDomain) {
            // Of every domain: also of those that this worker never ticked in.
            self.remove_worker(sender.namespace, sender.rank);
            return Ok(Effect::Clock);
        }
        match self
            .clocks(sender.namespace)
            .tick(domain, sender.rank, told)
        {
            Ok(moved) => {
                self.advance(sender.namespace, moved);
                Ok(Effect::Clock)
            }
            Err(e) => Err(RejectReason::BadClock {
                clock: told,
                expected: e.expected,
            }),
        }
    }

    /// A worker of a job is gone: it is waited for no more.
    pub fn remove_worker(&mut self, namespace: NamespaceId, rank: WorkerId) {
        let moved = self.clocks(namespace).remove(rank);
        self.advance(namespace, moved);
    }

    fn advance(&mut self, namespace: NamespaceId, moved: impl IntoIterator<Item = Moved>) {
        for moved in moved {
            if planted::on(Plant::TickBeforeApply) {
                // The defect: announced now, applied at the next call.
                self.deferred.push((namespace, moved));
            } else {
                self.close(namespace, moved);
            }
            self.moved.push((namespace, moved.domain));
        }
    }

    /// Applies what a planted defect put off; nothing without one.
    pub fn apply_deferred(&mut self) {
        for (namespace, moved) in std::mem::take(&mut self.deferred) {
            self.close(namespace, moved);
        }
    }

    fn close(&mut self, namespace: NamespaceId, moved: Moved) {
        let domain = moved.domain;
        for iteration in moved.from..moved.to {
            let held = self.pending.take(namespace, domain, iteration);
            let mut tables: Vec<u32> = held.iter().map(|h| h.header.table).collect();
            tables.extend(self.snapshot_tables(namespace, domain));
            tables.sort_unstable();
            tables.dedup();
            for id in tables {
                let of_table: Vec<Held> = held
                    .iter()
                    .filter(|h| h.header.table == id)
                    .copied()
                    .collect();
                match self.tables.get(&id).map(|t| &t.store) {
                    Some(Store::Blocks(_)) => self.close_blocks(id, iteration, &of_table),
                    Some(_) => self.close_rows(id, &of_table),
                    None => {}
                }
            }
            self.pending.free(&held);
        }
    }

    fn snapshot_tables(&self, namespace: NamespaceId, domain: DomainId) -> Vec<u32> {
        let flips = |t: &&Table| match &t.store {
            Store::Blocks(b) => {
                (t.namespace, t.spec.domain) == (namespace, domain) && b.is_snapshot()
            }
            _ => false,
        };
        self.tables.values().filter(flips).map(|t| t.id.0).collect()
    }

    fn close_rows(&mut self, id: u32, held: &[Held]) {
        let Some(table) = self.tables.get(&id) else {
            return;
        };
        let (dtype, row_bytes) = (table.spec.dtype, table.spec.row_bytes());
        let mut rows: BTreeMap<u64, Reduced> = BTreeMap::new();
        let mut payload = std::mem::take(&mut self.scratch);
        for h in held {
            self.pending.payload(h, &mut payload);
            let Some(op) = h.header.flags.op else {
                continue;
            };
            let count = h.header.count as usize;
            let parts = RowsPayload::new(count, row_bytes, h.header.flags.locs);
            let values = payload.get(parts.values_at..).unwrap_or_default();
            for (row, values) in values.chunks_exact(row_bytes.max(1)).enumerate() {
                let key = word(&payload, row * 8);
                rows.entry(key).or_default().add(dtype, h.rank, op, values);
            }
        }
        self.scratch = payload;
        self.step_rows(id, rows);
    }

    fn step_rows(&mut self, id: u32, rows: BTreeMap<u64, Reduced>) {
        self.lsn += 1;
        let keys: Vec<u64> = rows.keys().copied().collect();
        // Rows exist since their pushes were held. One that was removed meanwhile is made again;
        // without memory for it an acknowledged push would be lost.
        let found = self.find_rows(id, keys.len(), |row| (keys[row], Loc::NONE));
        if let Err(reason) = found {
            self.fail(format_args!(
                "a tick of table {id} found no place for rows of acknowledged pushes ({reason:?}); \
                 raise --capacity"
            ));
            return;
        }
        let places = std::mem::take(&mut self.places);
        let Some(table) = self.tables.get_mut(&id) else {
            return;
        };
        let (dtype, reduce) = (table.spec.dtype, reduce_of(table));
        if let Some(writer) = table.rows() {
            for (row, (place, reduced)) in places.iter().zip(rows.into_values()).enumerate() {
                for (op, values) in reduced.steps(dtype, reduce) {
                    let progress = crate::store::redo::Progress {
                        lsn: self.lsn,
                        row: row as u32,
                    };
                    if let Err(e) = writer.apply(&self.redo, progress, *place, op, &values) {
                        let key = place.key;
                        let why = format!("key {key} of table {id} could not be stored: {e}");
                        return self.fail(why);
                    }
                }
            }
        }
        self.places = places;
    }
}

pub(super) fn reduce_of(table: &Table) -> Reduce {
    match table.spec.effect {
        tidewater_transport::table::Effect::AtClock(reduce) => reduce,
        tidewater_transport::table::Effect::Immediate => Reduce::Sum,
    }
}
