//! Placement of a table's partitions by the user, and where they are.

use std::ops::Range;

use tidewater_protocol::placement::Owner;
use tidewater_protocol::table::TableSpec;

use super::Client;
use crate::error::ClientError;
use crate::table::{Element, Table, TableBuilder};

/// Decides which server owns each partition of a table, and how a dense table is cut into partitions. The client
/// that creates the table calls it once, in its own process, and sends the list: the coordinator and the servers
/// run none of its code. Closures with the parameters of [`Partitioner::partition_servers`] implement it.
///
/// All workers that create one table must get the same list. The coordinator refuses the creation of an existing
/// table with another list.
///
/// # Example
/// ```
/// use tidewater::{ClientError, JoinOptions, Partitioner, SyncMode, TableBuilder, TableSpec};
///
/// /// Two of three partitions are on the last server.
/// struct MostLast;
///
/// impl Partitioner for MostLast {
///     fn partition_servers(&self, _spec: &TableSpec, appliers: &[u16]) -> Vec<u32> {
///         let last = appliers.len() as u32 - 1;
///         (0..24).map(|p| if p % 3 == 0 { 0 } else { last }).collect()
///     }
/// }
///
/// # fn main() -> Result<(), ClientError> {
/// # let job = JoinOptions::embedded(2, 1).join()?.into_job().expect("a worker");
/// # let mut client = job.client(SyncMode::Asp)?;
/// let builder = TableBuilder::sparse::<f32>("embedding", 8).partition_by(&client, &MostLast);
/// let table = client.create_table::<f32>(builder.spec())?;
/// let owners = client.partition_owners(&table)?;
/// assert_eq!(owners.iter().filter(|owner| owner.server.0 == 1).count(), 16);
/// # client.finish()
/// # }
/// ```
pub trait Partitioner {
    /// Returns the number of the server of each partition, indexed by partition number: 1 to 4,096 entries, each
    /// below `appliers.len()`. `spec` is the definition of the table so far; its number of partitions is 0 if it is
    /// not given, and is then the length of the list. `appliers[s]` is the number of appliers of server `s`.
    ///
    /// A list that is not valid is refused at creation.
    fn partition_servers(&self, spec: &TableSpec, appliers: &[u16]) -> Vec<u32>;

    /// Returns the first row (tables by rows) or element (range tables) of each partition of a dense table, one
    /// for each entry of `partition_servers`' list; see [`TableBuilder::partition_starts`]. `None`, which the
    /// default returns, for near-equal partitions. Called after [`Partitioner::partition_servers`], with the
    /// same arguments.
    fn partition_starts(&self, _spec: &TableSpec, _appliers: &[u16]) -> Option<Vec<u64>> {
        None
    }
}

impl<F: Fn(&TableSpec, &[u16]) -> Vec<u32>> Partitioner for F {
    fn partition_servers(&self, spec: &TableSpec, appliers: &[u16]) -> Vec<u32> {
        self(spec, appliers)
    }
}

impl TableBuilder {
    /// Sets the server of each partition, and where it begins, to the lists that `partitioner` returns for this
    /// definition and the servers of `client`; see [`TableBuilder::partition_servers`] and
    /// [`TableBuilder::partition_starts`]. Calls it at once: set other options before.
    ///
    /// # Examples
    /// See [`Partitioner`].
    #[must_use]
    pub fn partition_by(self, client: &Client, partitioner: &impl Partitioner) -> Self {
        let appliers = client.server_appliers();
        let servers = partitioner.partition_servers(self.spec(), &appliers);
        let starts = partitioner.partition_starts(self.spec(), &appliers);
        let placed = self.partition_servers(&servers);
        match starts {
            Some(starts) => placed.partition_starts(&starts),
            None => placed,
        }
    }
}

impl Client {
    /// Server and applier that own each partition of a table, by partition number. Cost: an allocation of 8 bytes for
    /// each partition.
    ///
    /// # Errors
    /// [`ClientError::Argument`] for the handle of another client, or of a released table.
    ///
    /// # Examples
    /// See [`Partitioner`].
    pub fn partition_owners<T: Element>(
        &self,
        table: &Table<T>,
    ) -> Result<Vec<Owner>, ClientError> {
        let state = self.tables.find("partition_owners", table.named())?;
        let owner = |&lane: &usize| {
            let owner = self.lanes.owner(lane);
            owner.unwrap_or_else(|| unreachable!("a table has a partition at lane {lane}"))
        };
        Ok(state.lanes_of_partitions().iter().map(owner).collect())
    }

    /// Rows (tables by rows) or elements (range tables) of each partition of a dense table, by partition number. Cost:
    /// an allocation of 16 bytes for each partition.
    ///
    /// # Errors
    /// [`ClientError::Argument`] for a sparse table (a hash spreads its keys), for the handle of another client,
    /// or of a released table.
    ///
    /// # Examples
    /// See [`TableBuilder::partition_starts`].
    pub fn partition_ranges<T: Element>(
        &self,
        table: &Table<T>,
    ) -> Result<Vec<Range<u64>>, ClientError> {
        let op = "partition_ranges";
        let state = self.tables.find(op, table.named())?;
        let sparse = || state.wrong(op, "a sparse table has no ranges of rows".into());
        Ok(state.partition_bounds().ok_or_else(sparse)?.collect())
    }

    /// Number of appliers of each server of the job, by server number.
    pub fn server_appliers(&self) -> Vec<u16> {
        self.lanes.appliers_of_servers()
    }

    /// Checks that the job has all servers of a definition's partitions; otherwise fails with
    /// `ClientError::Argument`.
    pub(super) fn check_servers(
        &self,
        op: &'static str,
        spec: &TableSpec,
    ) -> Result<(), ClientError> {
        let servers = u32::try_from(self.lanes.servers()).unwrap_or(u32::MAX);
        spec.check_servers(servers)
            .map_err(|error| ClientError::Argument {
                op,
                table: spec.name.clone(),
                what: error.to_string(),
            })
    }
}
