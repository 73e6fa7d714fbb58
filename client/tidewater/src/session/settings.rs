//! Hyper-parameters that change while a table is trained.

use std::collections::BTreeSet;

use tidewater_protocol::layout::frame::FrameKind;
use tidewater_protocol::layout::settings::{self, SETTINGS_BYTES};
use tidewater_protocol::mutants::{Mutant, on};
use tidewater_protocol::table::Optimizer;
use tidewater_runtime::clock::Deadline;

use super::Client;
use crate::error::ClientError;
use crate::pull;
use crate::push::Ticket;
use crate::table::opened::Named;
use crate::table::{AnyTable, Element, Table};
use tidewater_bookkeeping::schedule::Schedule;

impl Client {
    /// Sets the hyper-parameters (learning rate and others) of a table's optimizer rule. Optimizer state stays.
    /// Returns when the frames are sent; the ticket reports when they are applied.
    ///
    /// The change stands between the pushes of this client. On a table of ticks it takes effect with the
    /// tick that ends this client's open iteration, for all gradients of that tick, at the same tick on
    /// every server. If several workers set numbers in one iteration, those of the highest rank
    /// count. On other tables each server applies the change when it arrives: gradients of this client
    /// before it use the old numbers, later ones the new ones. There, let one worker set them.
    ///
    /// The numbers are part of a saved model. The definition of the table stays as it is.
    ///
    /// # Errors
    /// [`ClientError::Argument`] for another rule than the table's, or a number out of its range, which
    /// the error names; nothing is sent then. A deadline when a ring stays full; then no server has the
    /// change, or the call can be repeated.
    ///
    /// # Example
    /// ```
    /// # fn main() -> Result<(), tidewater::ClientError> {
    /// use tidewater::{Client, Optimizer, Table};
    ///
    /// fn halve(client: &mut Client, table: &Table<f32>) -> Result<(), tidewater::ClientError> {
    ///     let slower = Optimizer::AdaGrad { lr: 0.05, eps: 1e-8 };
    ///     let ticket = client.set_optimizer(table, slower)?;
    ///     client.wait_applied(&ticket)
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_optimizer<T: Element>(
        &mut self,
        table: &Table<T>,
        optimizer: Optimizer,
    ) -> Result<Ticket, ClientError> {
        self.check_worker("set_optimizer")?;
        let state = self.tables.find("set_optimizer", table.named())?;
        let checked = state.spec.check_change(&optimizer);
        checked.map_err(|e| state.wrong("set_optimizer", e.to_string()))?;
        let deadline = self.deadline();
        let sent = self.send_settings(table.named(), &optimizer, deadline);
        let ticket = sent.map_err(|e| self.name_turns(Some(table.id()), e))?;
        self.tables.find_mut("set_optimizer", table.named())?.rule = optimizer;
        Ok(ticket)
    }

    /// Sets a table's learning rate to that of a schedule in `iteration`; other hyper-parameters are those that this
    /// client set last (at first, those of the definition). One worker calls it before the pushes of each iteration.
    ///
    /// After [`Client::load`] pass the iteration of the whole training: the loaded clock plus the ticks since. The
    /// rates, and so the bits, are then those of a run that never stopped. Hyper-parameters other than the rate that
    /// were changed before the save are not known to a new client: it sends those of the definition. Pass such a
    /// rule to [`Client::set_optimizer`] first.
    ///
    /// # Errors
    /// [`ClientError::Argument`] for a schedule that is not valid, see [`Schedule::validate`], and those of
    /// [`Client::set_optimizer`].
    pub fn schedule<T: Element>(
        &mut self,
        table: &Table<T>,
        schedule: &Schedule,
        iteration: u64,
    ) -> Result<Ticket, ClientError> {
        let state = self.tables.find("schedule", table.named())?;
        let valid = schedule.validate();
        valid.map_err(|error| state.wrong("schedule", error.to_string()))?;
        let rule = state.rule.with_rate(schedule.at(iteration));
        self.set_optimizer(table, rule)
    }

    /// Builds and sends a SETTINGS frame to every applier of a table, or to none: it first waits for room in all
    /// rings.
    fn send_settings(
        &mut self,
        table: Named,
        optimizer: &Optimizer,
        deadline: Deadline,
    ) -> Result<Ticket, ClientError> {
        let state = self.tables.find("set_optimizer", table)?;
        let lanes: BTreeSet<usize> = (0..state.spec.partitions)
            .filter_map(|partition| state.lane_of_partition(partition))
            .collect();
        let mut ticket = Ticket::of(self.tables.client, state.id);
        let mut header = pull::request(state, FrameKind::Settings, 0, false);
        header.clock = self.clock.stamp(state.spec.domain);
        let bytes = settings::encode(optimizer);
        self.lanes.counters.pushes += 1;
        self.lanes.wait_room_everywhere(SETTINGS_BYTES, deadline)?;
        let sent = match on(Mutant::SettingsToOneApplier) {
            true => 1,
            false => lanes.len(),
        };
        for lane in lanes.into_iter().take(sent) {
            let fill = |to: &mut [u8]| to.copy_from_slice(&bytes);
            let seq = self
                .lanes
                .build(lane, header, SETTINGS_BYTES, fill, deadline)?;
            ticket.add(lane, seq);
        }
        self.lanes.send_all(deadline)?;
        Ok(ticket)
    }
}

impl AnyTable {
    /// Sets the hyper-parameters of the table's optimizer rule; the ticket reports when they are applied.
    ///
    /// # Errors
    /// As [`Client::set_optimizer`].
    pub fn set_optimizer(
        self,
        client: &mut Client,
        optimizer: Optimizer,
    ) -> Result<Ticket, ClientError> {
        match &self {
            Self::F32(table) => client.set_optimizer(table, optimizer),
            Self::F64(table) => client.set_optimizer(table, optimizer),
            Self::I32(table) => client.set_optimizer(table, optimizer),
            Self::I64(table) => client.set_optimizer(table, optimizer),
        }
    }

    /// Sets the table's learning rate to that of a schedule in `iteration`.
    ///
    /// # Errors
    /// As [`Client::schedule`].
    pub fn schedule(
        self,
        client: &mut Client,
        schedule: &Schedule,
        iteration: u64,
    ) -> Result<Ticket, ClientError> {
        match &self {
            Self::F32(table) => client.schedule(table, schedule, iteration),
            Self::F64(table) => client.schedule(table, schedule, iteration),
            Self::I32(table) => client.schedule(table, schedule, iteration),
            Self::I64(table) => client.schedule(table, schedule, iteration),
        }
    }
}
