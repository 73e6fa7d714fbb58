//! Hyper-parameters that change while a table is trained.
//!
//! A SETTINGS frame stands between the pushes of its sender, in every ring of the table. On a table
//! of pushes that take effect on arrival, it takes effect at that place. On a table of ticks it belongs
//! to the iteration in the frame, and is held like a push of it: the tick that closes the iteration
//! steps with the new numbers, on every applier. Of several, the last one of the highest
//! rank and thread counts.

use tidewater_protocol::ids::{DomainId, TableId};
use tidewater_protocol::layout::frame::{FrameHeader, FrameKind};
use tidewater_protocol::layout::settings::{self, SETTINGS_BYTES};
use tidewater_protocol::mutants::{self, Mutant};
use tidewater_protocol::table::Optimizer;

use super::Refusal;
use super::engine::{Effect, Engine};
use super::pending::Stream;
use super::push::{check_len, wrong_operation};
use crate::namespace::{FrameSender, NamespaceId};

impl Engine {
    pub(super) fn settings_frame(
        &mut self,
        sender: FrameSender,
        header: &FrameHeader,
        payload: &[u8],
    ) -> Result<Effect, Refusal> {
        let table = self.known(sender.namespace, header.table)?;
        check_len(payload, SETTINGS_BYTES)?;
        let optimizer = settings::decode(payload).filter(|optimizer| table.takes(optimizer));
        let optimizer = optimizer.ok_or_else(|| wrong_operation(header))?;
        if table.at_clock() && !mutants::on(Mutant::SettingsOnArrival) {
            let Some(staged) = self.admit(sender, header)? else {
                return Ok(Effect::Wait);
            };
            self.hold(sender, staged, header, payload)?;
            return Ok(Effect::Applied);
        }
        self.set_optimizer(TableId(header.table), optimizer);
        Ok(Effect::Applied)
    }

    /// Records the hyper-parameters in held SETTINGS frames of `streams`, in the order of the streams, for the
    /// end of the iteration. A later frame of a table replaces an earlier one.
    pub(super) fn note_settings(&mut self, streams: &[Stream]) {
        let mut payload = Vec::new();
        for held in streams.iter().flat_map(Stream::frames) {
            if held.header.kind != FrameKind::Settings {
                continue;
            }
            self.pending.payload(held, &mut payload);
            let Some(optimizer) = settings::decode(&payload) else {
                unreachable!("settings are held that were decoded before: {payload:?}");
            };
            self.settings.insert(held.header.table, optimizer);
        }
    }

    /// Sets the recorded hyper-parameters of the tables in a job's domain, and removes their records. Called
    /// when an iteration closes, before its steps.
    pub(super) fn apply_settings(&mut self, namespace: NamespaceId, domain: DomainId) {
        let tables = &self.tables;
        let of_domain = |id: &u32, _: &mut Optimizer| {
            let table = tables.get(id);
            table.is_some_and(|t| (t.namespace, t.spec.domain) == (namespace, domain))
        };
        let due: Vec<(u32, Optimizer)> = self.settings.extract_if(.., of_domain).collect();
        for (id, optimizer) in due {
            self.set_optimizer(TableId(id), optimizer);
        }
    }

    /// Sets the hyper-parameters of a table's optimizer, from a frame or a saved model. For a table that
    /// outlives the process, notes them in the journal first. No effect if the table is not here. A failure
    /// stops the applier.
    ///
    /// # Panics
    /// If the table cannot take them: callers ask [`Table::takes`](super::table::Table::takes) first.
    pub fn set_optimizer(&mut self, id: TableId, optimizer: Optimizer) {
        self.note_rule(id, optimizer);
        let Some(table) = self.tables.get_mut(&id.0) else {
            return;
        };
        if let Err(e) = table.set_optimizer(optimizer) {
            self.fail(format_args!("the rule of table {id} could not be set: {e}"));
        }
    }
}
