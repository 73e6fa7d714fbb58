//! Versions of range tables: waits for them, pulls of several tables at one version, and pins.

use std::time::Duration;

use tidewater_lanes::num::size;
use tidewater_protocol::ids::TableId;
use tidewater_protocol::layout::frame::{FrameHeader, FrameKind};
use tidewater_protocol::layout::reject::RejectReason;
use tidewater_protocol::mutants::{Mutant, on};
use tidewater_runtime::clock::Deadline;
use zerocopy::IntoBytes;

use super::Client;
use crate::clock::wait_version;
use crate::error::ClientError;
use crate::ids::HandleId;
use crate::lanes::{Lanes, Requests};
use crate::pull::{self, PullMode, PullOptions, Pulled, Reading, Want, request};
use crate::table::opened::Named;
use crate::table::state::TableState;
use crate::table::{Element, Table};

/// Pause before a pull of a group, or a pin of the newest version, is tried again at a newer version.
const PAUSE: Duration = Duration::from_micros(50);

/// Version of a table that this client has pinned at the servers, with the buffers that hold it.
#[derive(Debug)]
pub(super) struct Pin {
    handle: HandleId,
    version: u64,
    /// Buffer number of the version at each lane; `None` at lanes without a partition of the table.
    buffers: Vec<Option<usize>>,
    /// Number of calls of [`Client::pin`] without their [`Client::unpin`].
    holders: u32,
    /// Whether some appliers may have the end of the pin, and others not: no call reads the version any more.
    ends: bool,
}

impl Pin {
    fn is_of(&self, handle: HandleId, version: u64) -> bool {
        self.handle == handle && self.version == version
    }
}

/// Range of one table, with its destination, in a pull of several tables: [`Client::pull_group`].
///
/// # Example
/// ```
/// # use tidewater::{ClientError, GroupRange, JoinOptions, PullMode};
/// # use tidewater::{PullOptions, Reduce, SyncMode, TableBuilder};
/// # fn main() -> Result<(), ClientError> {
/// # let job = JoinOptions::embedded(1, 1).join()?.into_job().expect("a worker");
/// # let mut client = job.client(SyncMode::Asp)?;
/// let of = |name| TableBuilder::range::<f32>(name, 1, 4).at_clock(Reduce::Sum).snapshot();
/// let weights = client.create_table::<f32>(of("weights").spec())?;
/// let biases = client.create_table::<f32>(of("biases").spec())?;
/// client.tick()?;
/// let (mut w, mut b) = ([1.0; 4], [1.0; 2]);
/// let mut ranges = [GroupRange::new(&weights, 0, &mut w), GroupRange::new(&biases, 2, &mut b)];
/// let options = PullOptions::default().mode(PullMode::Snapshot);
/// client.pull_group(&mut ranges, options)?; // both as of one tick
/// assert_eq!((w, b), ([0.0; 4], [0.0; 2]));
/// # client.finish()
/// # }
/// ```
#[derive(Debug)]
pub struct GroupRange<'a> {
    named: Named,
    first: u64,
    out: &'a mut [u8],
}

impl<'a> GroupRange<'a> {
    /// Range of a table from element `first` on, with `out` as its destination and length.
    pub fn new<T: Element>(table: &Table<T>, first: u64, out: &'a mut [T]) -> Self {
        Self {
            named: table.named(),
            first,
            out: out.as_mut_bytes(),
        }
    }
}

/// Requests to pin a version, one for each applier with partitions of the table.
struct PinRequests<'a> {
    table: &'a TableState,
    version: u64,
    lanes: Vec<usize>,
    buffers: Vec<Option<usize>>,
}

impl Requests for PinRequests<'_> {
    fn table(&self) -> (&str, TableId) {
        (self.table.name(), self.table.id)
    }

    fn len(&self) -> usize {
        self.lanes.len()
    }

    fn lane(&self, n: usize) -> usize {
        self.lanes[n]
    }

    fn header(&self, n: usize) -> FrameHeader {
        debug_assert!(n < self.lanes.len(), "request {n} of {}", self.lanes.len());
        FrameHeader {
            clock: self.version,
            ..request(self.table, FrameKind::Pin, 0, false)
        }
    }

    fn payload(&mut self, _: usize) -> &[u8] {
        &[]
    }

    fn answer(&mut self, n: usize, reply: &[u8]) -> Result<(), String> {
        let bytes = reply.try_into();
        let number = bytes.map_err(|_| format!("a reply of {} bytes to a pin", reply.len()))?;
        let number = u64::from_le_bytes(number);
        if number >= u64::from(self.table.spec.versions) {
            return Err(format!(
                "version {} in buffer {number} of {}",
                self.version, self.table.spec.versions
            ));
        }
        self.buffers[self.lanes[n]] = Some(size(number));
        Ok(())
    }
}

/// Lanes to the appliers that own partitions of a dense table, ascending.
fn lanes_of(table: &TableState) -> Vec<usize> {
    let parts = table.dense.iter().flatten();
    let mut lanes: Vec<usize> = parts.map(|part| part.lane).collect();
    lanes.sort_unstable();
    lanes.dedup();
    lanes
}

/// Checks that a table has snapshots; otherwise fails with `ClientError::Argument`.
fn check_snapshots(op: &'static str, table: &TableState) -> Result<(), ClientError> {
    if table
        .dense
        .iter()
        .flatten()
        .any(|part| part.snapshot.is_some())
    {
        return Ok(());
    }
    let what = "the table has no snapshots; create it with .snapshot()";
    Err(table.wrong(op, what.into()))
}

/// Sends UNPIN frames for a version to all appliers of a table, without waiting for answers. After an error some
/// appliers may have none; the call can be repeated.
fn send_unpins(
    lanes: &mut Lanes,
    table: &TableState,
    version: u64,
    deadline: Deadline,
) -> Result<(), ClientError> {
    let header = FrameHeader {
        clock: version,
        ..request(table, FrameKind::Unpin, 0, false)
    };
    for lane in lanes_of(table) {
        lanes.build(lane, header, 0, |_| {}, deadline)?;
    }
    lanes.send_all(deadline)
}

impl Client {
    /// Blocks until a version of `table` newer than `version` is complete at all appliers. Returns the newest
    /// complete version. A pull that follows reads this version or a later one.
    ///
    /// The version of a table is the number of ticks that all workers have completed in its clock domain.
    /// A pull of a snapshot returns the version of its elements, see [`Pulled::version`]. A table with
    /// pushes that take effect on arrival has at least the pushes of these ticks. The call is also for
    /// sessions that only read. It does not poll: an announcement of an applier ends the wait. Cost
    /// without a wait: one look at the clock record of each applier.
    ///
    /// # Errors
    /// A deadline that names the table, the version, and the ranks that have not ticked. The end of the
    /// job.
    ///
    /// # Examples
    /// ```
    /// # use std::time::Duration;
    /// # use tidewater::{ClientError, JoinOptions, Joined, PullMode, PullOptions, PushOp, Reduce};
    /// # use tidewater::{SyncMode, TableBuilder};
    /// # fn main() -> Result<(), ClientError> {
    /// # let Joined::Worker(job) = JoinOptions::embedded(1, 1).join()? else { return Ok(()) };
    /// let mut client = job.client(SyncMode::Asp)?;
    /// let spec = TableBuilder::range::<f32>("weights", 4, 4).at_clock(Reduce::Sum).snapshot();
    /// let table = client.create_table::<f32>(spec.spec())?;
    /// client.push_range(&table, 0, &[1.0; 16], PushOp::Sum)?;
    /// client.tick()?;
    ///
    /// let version = client.wait_newer(&table, 0, Duration::from_secs(30))?;
    /// let mut weights = [0.0; 16];
    /// let options = PullOptions::default().mode(PullMode::Snapshot);
    /// let pulled = client.pull_range(&table, 0, &mut weights, options)?;
    /// assert!(pulled.version >= Some(version));
    /// # Ok(())
    /// # }
    /// ```
    pub fn wait_newer<T: Element>(
        &mut self,
        table: &Table<T>,
        version: u64,
        timeout: Duration,
    ) -> Result<u64, ClientError> {
        let need = match on(Mutant::NewerIsSame) {
            true => version,
            false => version.saturating_add(1),
        };
        self.wait_for_version("wait_newer", table, need, timeout)
    }

    /// Blocks until version `tick` of `table`, or a newer one, is complete at all appliers, like
    /// [`Client::wait_newer`]. Returns the newest complete version.
    ///
    /// # Errors
    /// As [`Client::wait_newer`].
    pub fn wait_until<T: Element>(
        &mut self,
        table: &Table<T>,
        tick: u64,
        timeout: Duration,
    ) -> Result<u64, ClientError> {
        self.wait_for_version("wait_until", table, tick, timeout)
    }

    fn wait_for_version<T: Element>(
        &mut self,
        op: &'static str,
        table: &Table<T>,
        need: u64,
        timeout: Duration,
    ) -> Result<u64, ClientError> {
        let state = self.tables.find(op, table.named())?;
        self.lanes.keep_alive()?;
        let (lanes, deadline) = (&mut self.lanes, Deadline::after(timeout));
        wait_version(lanes, op, state.name(), state.spec.domain, need, deadline)
    }

    /// Pulls ranges of several tables at one version: the newest that every applier still holds for all of them.
    /// Blocks. The tables have snapshots and one clock domain. Returns the version; none without elements. Of
    /// `options` only the timeout has an effect. Cost: for each table a read of its snapshot records, then a
    /// pull of its range. If a version is replaced before all ranges are read, the call starts again at a newer
    /// one. Where ticks come faster than that, more [`TableBuilder::versions`](crate::TableBuilder::versions)
    /// keep a version longer.
    ///
    /// # Errors
    /// [`ClientError::Argument`] for a table without snapshots or of another domain, or a range outside of its
    /// table. [`ClientError::Deadline`], also when versions were replaced too early until the deadline. After an error
    /// the destinations may be partly overwritten, with values of different versions.
    pub fn pull_group(
        &mut self,
        ranges: &mut [GroupRange<'_>],
        options: PullOptions,
    ) -> Result<Pulled, ClientError> {
        let op = "pull_group";
        let deadline = Deadline::after(options.timeout);
        let mut domain = None;
        for range in &*ranges {
            let state = self.tables.find(op, range.named)?;
            check_snapshots(op, state)?;
            let (own, of_first) = (state.spec.domain, *domain.get_or_insert(state.spec.domain));
            if own != of_first {
                let what = format!(
                    "the table is of clock domain {own}, the first one of domain {of_first}; tables that \
                     share a version tick together"
                );
                return Err(state.wrong(op, what));
            }
        }
        let Some(domain) = domain else {
            return Ok(Pulled::default());
        };
        self.clock.gate(&mut self.lanes, domain)?;
        loop {
            let (table, version) = match self.try_group(ranges, deadline) {
                Ok(version) => return Ok(version.map_or_else(Pulled::default, Pulled::of_version)),
                Err(ClientError::VersionGone { table, version, .. }) => (table, version),
                Err(e) => return Err(e),
            };
            if deadline.passed() {
                let missing = format!(
                    "all {} tables at one version: version {version} of table \"{table}\" was replaced \
                     before it was read; give the tables more versions",
                    ranges.len()
                );
                return Err(ClientError::Deadline { op, missing });
            }
            self.lanes.sleep_briefly(PAUSE);
        }
    }

    fn try_group(
        &mut self,
        ranges: &mut [GroupRange<'_>],
        deadline: Deadline,
    ) -> Result<Option<u64>, ClientError> {
        let op = "pull_group";
        let mut newest: Option<u64> = None;
        for range in &*ranges {
            let state = self.tables.find(op, range.named)?;
            let (first, bytes) = (range.first, range.out.len());
            let scratch = &mut self.blocks;
            let found =
                pull::newest_version(&mut self.lanes, state, scratch, first, bytes, deadline)?;
            newest = match (newest, found) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
        }
        let Some(version) = newest else {
            return Ok(None);
        };
        for range in ranges {
            let state = self.tables.find(op, range.named)?;
            pull::pull_blocks(
                &mut self.lanes,
                state,
                &mut self.blocks,
                range.first,
                range.out,
                Reading {
                    mode: PullMode::Snapshot,
                    want: Want::At(version),
                },
                deadline,
            )?;
        }
        Ok(Some(version))
    }

    /// Pins a version of a table with snapshots, or its newest one (`None`): servers keep it until
    /// [`Client::unpin`]. Blocks for a round trip, and returns the number of the pinned version.
    /// [`Client::pull_pinned`] reads that version, however slow this client is. A pin delays no tick and no
    /// other client: it keeps one of the table's [`versions`](crate::TableBuilder::versions) from being used
    /// again, and all but two of them can be pinned, by all clients together. A pin also ends with the session,
    /// so that a dead process holds none. A version that is pinned twice is unpinned twice.
    ///
    /// # Errors
    /// [`ClientError::VersionGone`] with the versions that are kept; a refusal with the numbers when no further
    /// version can be pinned; a deadline or an interrupt. The call leaves no pin that can be read, and can be
    /// repeated. Servers that could not be reached until the deadline may keep the version meanwhile: the next pin of
    /// the table, or [`Client::unpin`], lets them go on.
    pub fn pin<T: Element>(
        &mut self,
        table: &Table<T>,
        version: Option<u64>,
    ) -> Result<u64, ClientError> {
        let op = "pin";
        let deadline = self.deadline();
        loop {
            let state = self.tables.find(op, table.named())?;
            check_snapshots(op, state)?;
            let wanted = match version {
                Some(version) => version,
                None => {
                    let bytes = size(state.spec.dense_bytes());
                    let scratch = &mut self.blocks;
                    let found =
                        pull::newest_version(&mut self.lanes, state, scratch, 0, bytes, deadline)?;
                    found.unwrap_or_else(|| unreachable!("a table with snapshots has blocks"))
                }
            };
            match self.pin_version(table.named(), wanted, deadline) {
                Ok(()) => return Ok(wanted),
                // The newest one of a moment ago was replaced.
                Err(ClientError::VersionGone { .. }) if version.is_none() && !deadline.passed() => {
                    self.lanes.sleep_briefly(PAUSE);
                }
                Err(e) => return Err(e),
            }
        }
    }

    fn pin_version(
        &mut self,
        named: Named,
        version: u64,
        deadline: Deadline,
    ) -> Result<(), ClientError> {
        let is_held = |pin: &&mut Pin| pin.is_of(named.handle, version) && !pin.ends;
        if let Some(pin) = self.pins.iter_mut().find(is_held) {
            pin.holders += 1;
            return Ok(());
        }
        self.end_pins(named, deadline)?;
        let table = self.tables.find("pin", named)?;
        let mut requests = PinRequests {
            table,
            version,
            lanes: lanes_of(table),
            buffers: vec![None; self.lanes.len()],
        };
        let pinned = self
            .lanes
            .request_all("wait for pins", &mut requests, deadline);
        let buffers = requests.buffers;
        if let Err(e) = pinned {
            // Some appliers may have pinned it: each gets the end behind the pin, in its ring.
            if let Err(error) = send_unpins(&mut self.lanes, table, version, deadline) {
                // The first error says more. A later call sends the ends again.
                tracing::debug!(%error, "the end of a pin that failed is not sent everywhere");
                self.pins.push(Pin {
                    handle: named.handle,
                    version,
                    buffers,
                    holders: 1,
                    ends: true,
                });
            }
            return Err(match e {
                ClientError::Rejected { table, reject, .. } if is_gone(reject.reason) => {
                    gone(table, version, reject.reason)
                }
                e => e,
            });
        }
        self.pins.push(Pin {
            handle: named.handle,
            version,
            buffers,
            holders: 1,
            ends: false,
        });
        Ok(())
    }

    /// Sends the ends of pins of a table that earlier calls could not send to all appliers: the versions would
    /// take the room of further pins.
    fn end_pins(&mut self, named: Named, deadline: Deadline) -> Result<(), ClientError> {
        let is_ending = |pin: &Pin| pin.handle == named.handle && pin.ends;
        while let Some(n) = self.pins.iter().position(is_ending) {
            let table = self.tables.find("pin", named)?;
            send_unpins(&mut self.lanes, table, self.pins[n].version, deadline)?;
            self.pins.swap_remove(n);
        }
        Ok(())
    }

    /// Pulls the elements from `first` on of a version that this client has pinned into `out`, as many as `out`
    /// holds, and blocks until they are there. Waits for no clock. Of `options` only the timeout has an effect.
    /// Cost: that of a pull of a snapshot without its first round trip.
    ///
    /// # Errors
    /// [`ClientError::Argument`] for a version that is not pinned by this client, or a range outside of the table;
    /// deadlines; the release of the table.
    pub fn pull_pinned<T: Element>(
        &mut self,
        table: &Table<T>,
        version: u64,
        first: u64,
        out: &mut [T],
        options: PullOptions,
    ) -> Result<Pulled, ClientError> {
        let named = table.named();
        let state = self.tables.find("pull_pinned", named)?;
        let deadline = Deadline::after(options.timeout);
        self.lanes.keep_alive()?;
        self.lanes.send_held(deadline)?;
        let is_held = |pin: &&Pin| pin.is_of(named.handle, version) && !pin.ends;
        let Some(pin) = self.pins.iter().find(is_held) else {
            return Err(unpinned("pull_pinned", state, version));
        };
        let want = Want::Pinned {
            version,
            buffers: &pin.buffers,
        };
        pull::pull_blocks(
            &mut self.lanes,
            state,
            &mut self.blocks,
            first,
            out.as_mut_bytes(),
            Reading {
                mode: PullMode::Snapshot,
                want,
            },
            deadline,
        )
    }

    /// Ends a pin of this client, without waiting for the servers. They may then use the memory of the version
    /// again. A version that was pinned twice stays pinned until the second call.
    ///
    /// # Errors
    /// [`ClientError::Argument`] for a version that is not pinned by this client; a deadline or an interrupt. Some
    /// servers may have ended the pin then: [`Client::pull_pinned`] refuses the version, and the call can be repeated.
    pub fn unpin<T: Element>(&mut self, table: &Table<T>, version: u64) -> Result<(), ClientError> {
        let (named, deadline) = (table.named(), self.deadline());
        let state = self.tables.find("unpin", named)?;
        let is_same = |pin: &Pin| pin.is_of(named.handle, version);
        let Some(n) = self.pins.iter().position(is_same) else {
            return Err(unpinned("unpin", state, version));
        };
        if self.pins[n].holders > 1 {
            self.pins[n].holders -= 1;
            return Ok(());
        }
        // After a failure the record stays, so that the call can be repeated; but an applier that has its UNPIN may
        // write to the buffer.
        self.pins[n].ends = true;
        send_unpins(&mut self.lanes, state, version, deadline)?;
        self.pins.swap_remove(n);
        Ok(())
    }

    /// Removes the records of this client's pins of a released table: the pins have ended with it. Sends nothing.
    pub(super) fn forget_pins(&mut self, handle: HandleId) {
        self.pins.retain(|pin| pin.handle != handle);
    }
}

const fn is_gone(reason: RejectReason) -> bool {
    matches!(reason, RejectReason::NotKept { .. })
}

fn gone(table: String, version: u64, reason: RejectReason) -> ClientError {
    let [oldest, newest] = reason.numbers();
    ClientError::VersionGone {
        table,
        version,
        oldest,
        newest,
    }
}

#[cold]
fn unpinned(op: &'static str, table: &TableState, version: u64) -> ClientError {
    let what = format!("version {version} is not pinned by this client; call pin first");
    table.wrong(op, what)
}
