//! The open tables of a client, and the handles that name them.

use std::collections::BTreeSet;

use tidewater_protocol::ids::{DomainId, TableId};
use tidewater_protocol::mutants::{Mutant, on};
use tidewater_protocol::table::{Apply, DType};

use super::state::TableState;
use super::{Element, Table};
use crate::error::ClientError;
use crate::ids::{ClientNumber, HandleId};

/// Table handle without its static element type, as the client's functions pass it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) handle: HandleId,
    pub(crate) index: usize,
    pub(crate) id: TableId,
    pub(crate) dtype: DType,
}

/// Open tables of one client. The slot of a released table is reused.
#[derive(Debug)]
pub(crate) struct Tables {
    pub(crate) client: ClientNumber,
    serial: u32,
    slots: Vec<Option<TableState>>,
}

impl Tables {
    /// Makes an empty set of tables, with a new client number.
    pub(crate) fn new() -> Result<Self, ClientError> {
        Ok(Self {
            client: ClientNumber::next()?,
            serial: 0,
            slots: Vec::new(),
        })
    }

    /// Number of open tables in the set.
    pub(crate) fn len(&self) -> usize {
        self.open().count()
    }

    fn open(&self) -> impl Iterator<Item = &TableState> {
        self.slots.iter().flatten()
    }

    /// Finds an open table by its number in the cluster; `None` if this client has not opened it.
    pub(crate) fn by_id(&self, id: TableId) -> Option<&TableState> {
        self.open().find(|table| table.id == id)
    }

    /// Clock domains of the open tables that take effect at ticks; with `of`, only of that table.
    pub(crate) fn domains_at_clock(&self, of: Option<TableId>) -> BTreeSet<DomainId> {
        let at_clock = |t: &&TableState| matches!(t.spec.effect, Apply::AtTick(_));
        let meant = |t: &&TableState| of.is_none_or(|id| t.id == id);
        let tables = self.open().filter(at_clock).filter(meant);
        tables.map(|t| t.spec.domain).collect()
    }

    /// Makes the identifier of the next table opening. Fails after 2^32 - 1 openings.
    pub(crate) fn next_handle(&mut self) -> Result<HandleId, ClientError> {
        let serial = self.serial.checked_add(1);
        self.serial = serial.ok_or_else(|| {
            let made = self.serial;
            ClientError::Environment(
                format!("this client has opened {made} tables; make another").into(),
            )
        })?;
        Ok(HandleId::new(self.client, self.serial))
    }

    /// Adds a table to the set, in a free slot if there is one. An older table of the same name must have been
    /// released by another client: it is dropped, and its handle returned. `None` if there was no such table.
    pub(crate) fn add(&mut self, table: TableState) -> Option<HandleId> {
        let same = |slot: &&mut Option<TableState>| {
            slot.as_ref().is_some_and(|old| old.name() == table.name())
        };
        let dropped = self.slots.iter_mut().find(same).and_then(Option::take);
        match self.slots.iter_mut().find(|slot| slot.is_none()) {
            Some(slot) => *slot = Some(table),
            None => self.slots.push(Some(table)),
        }
        dropped.map(|old| old.handle)
    }

    /// Makes a typed handle of an open table; `None` if the table is not open.
    pub(crate) fn handle<T: Element>(&self, id: TableId) -> Option<Table<T>> {
        let is = |slot: &Option<TableState>| slot.as_ref().is_some_and(|table| table.id == id);
        let index = self.slots.iter().position(is)?;
        let table = self.slots[index].as_ref()?;
        let (dim, partitions) = (table.spec.dim(), table.spec.partitions);
        Some(Table::new(table.handle, id, index, dim, partitions))
    }

    /// Removes a table from the set, so that all handles of it become invalid; does nothing for an invalid handle.
    /// Sends nothing.
    pub(crate) fn remove(&mut self, named: Named) {
        if on(Mutant::ReleaseKeepsTable) {
            return;
        }
        if let Some(slot) = self.slots.get_mut(named.index)
            && slot
                .as_ref()
                .is_some_and(|table| table.handle == named.handle)
        {
            *slot = None;
        }
    }

    /// Finds the state of the table that a handle names.
    ///
    /// # Errors
    /// [`ClientError::Argument`] for a handle of another client, or of a released table.
    #[inline]
    pub(crate) fn find(&self, op: &'static str, named: Named) -> Result<&TableState, ClientError> {
        match self.slots.get(named.index) {
            Some(Some(table)) if is_meant(table, named.handle) => Ok(table),
            _ => Err(self.unknown(op, named)),
        }
    }

    /// Finds the state of the table that a handle names, mutably. [`ClientError::Argument`] for a handle of
    /// another client, or of a released table.
    #[inline]
    pub(crate) fn find_mut(
        &mut self,
        op: &'static str,
        named: Named,
    ) -> Result<&mut TableState, ClientError> {
        match self.slots.get(named.index) {
            Some(Some(table)) if is_meant(table, named.handle) => {}
            _ => return Err(self.unknown(op, named)),
        }
        match &mut self.slots[named.index] {
            Some(table) => Ok(table),
            None => unreachable!("place {} was looked at a line ago", named.index),
        }
    }

    /// Error of an invalid handle: names its table, and the table that this client has in its slot.
    #[cold]
    fn unknown(&self, op: &'static str, named: Named) -> ClientError {
        let Named { id, dtype, .. } = named;
        let (made, mine) = (named.handle.client(), u64::from(self.client.0));
        let known = self.by_id(id);
        let table = match known {
            Some(table) => table.name().to_owned(),
            None => format!("number {id}"),
        };
        let what = if made == mine {
            format!("the handle is of table {id} ({dtype:?}), which this client has released")
        } else {
            let here = match self.slots.get(named.index) {
                Some(Some(t)) => format!("\"{}\", table {} ({:?})", t.name(), t.id, t.spec.dtype),
                _ => "no table".into(),
            };
            format!(
                "the handle is of table {id} ({dtype:?}) of client {made}; this is client {mine}, \
                 which has {here} in that place. Open the table with the client that uses it"
            )
        };
        ClientError::Argument { op, table, what }
    }
}

#[inline]
fn is_meant(table: &TableState, handle: HandleId) -> bool {
    table.handle == handle || on(Mutant::ForeignHandle)
}
