//! Typed table handles, and the client's state of each table.

pub mod any;
pub mod element;
pub(crate) mod opened;
pub(crate) mod state;

use std::marker::PhantomData;

use tidewater_protocol::ids::{DomainId, ServerId, TableId};
use tidewater_protocol::limits::{PARTITIONS_AUTO, VERSIONS_DEFAULT};
use tidewater_protocol::table::{
    Apply, DType, DenseLayout, Durability, GradientOptions, Init, KeyOptions, Optimizer, Reduce,
    Shape, TableSpec,
};

use crate::ids::HandleId;
pub use any::AnyTable;
pub use element::Element;
use opened::Named;

/// Typed handle of a table that a client created or opened. Calls of another client refuse it with
/// [`ClientError::Argument`](crate::ClientError::Argument), as do those of its own client after the release of the
/// table.
///
/// # Example
/// ```
/// # use tidewater::{ClientError, JoinOptions, PullOptions, SyncMode, TableBuilder};
/// # fn main() -> Result<(), ClientError> {
/// # let job = JoinOptions::embedded(1, 1).join()?.into_job().expect("a worker");
/// # let mut client = job.client(SyncMode::Asp)?;
/// let spec = TableBuilder::rows::<f32>("w", 100, 8).partitions(4);
/// let table = client.create_table::<f32>(spec.spec())?;
/// assert_eq!((table.dim(), table.partitions()), (8, 4));
/// client.release_table(table)?;
/// let late = client.pull_rows(&table, &[0], &mut [0.0; 8], PullOptions::default());
/// assert!(matches!(late, Err(ClientError::Argument { .. })));
/// # client.finish()
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Table<T> {
    handle: HandleId,
    id: TableId,
    index: usize,
    pub(crate) dim: usize,
    partitions: u32,
    element: PhantomData<T>,
}

impl<T: Element> Table<T> {
    pub(crate) const fn new(
        handle: HandleId,
        id: TableId,
        index: usize,
        dim: usize,
        partitions: u32,
    ) -> Self {
        Self {
            handle,
            id,
            index,
            dim,
            partitions,
            element: PhantomData,
        }
    }

    /// Untyped copy of the handle, which keeps the element type as a code.
    #[inline]
    pub(crate) const fn named(&self) -> Named {
        Named {
            handle: self.handle,
            index: self.index,
            id: self.id,
            dtype: T::DTYPE,
        }
    }

    /// Number of elements of a row (columns).
    pub const fn dim(&self) -> usize {
        self.dim
    }

    /// Number of the table's partitions, as given or as the coordinator chose it at creation.
    pub const fn partitions(&self) -> u32 {
        self.partitions
    }

    /// Number of the table, unique in the cluster.
    pub const fn id(&self) -> TableId {
        self.id
    }
}

/// Builder of a table definition ([`TableSpec`]). Defaults are those of a training job: plain SGD with rate 0.01 (no
/// optimizer for integers), zeros, pushes that take effect on arrival, NaN and infinity refused.
///
/// # Example
/// ```
/// # use tidewater::{ClientError, Init, JoinOptions, Optimizer};
/// # use tidewater::{PullOptions, PushOp, SyncMode, TableBuilder};
/// # fn main() -> Result<(), ClientError> {
/// # let job = JoinOptions::embedded(1, 1).join()?.into_job().expect("a worker");
/// # let mut client = job.client(SyncMode::Asp)?;
/// let spec = TableBuilder::sparse::<f32>("embedding", 2)
///     .optimizer(Optimizer::Sgd { lr: 0.5 })
///     .clip_value(1.0);
/// let table = client.create_table::<f32>(spec.spec())?;
/// let ticket = client.push_rows(&table, &[7], &[1.0, 8.0], PushOp::Gradient)?;
/// client.wait_applied(&ticket)?;
/// let mut row = [0.0; 2];
/// client.pull_rows(&table, &[7], &mut row, PullOptions::default())?;
/// assert_eq!(row, [-0.5, -0.5]);
/// # client.finish()
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct TableBuilder(TableSpec);

impl TableBuilder {
    fn of(name: &str, shape: Shape, dtype: DType) -> Self {
        let optimizer = if dtype.is_float() {
            Optimizer::Sgd { lr: 0.01 }
        } else {
            Optimizer::None
        };
        Self(TableSpec {
            name: name.to_owned(),
            shape,
            dtype,
            optimizer,
            init: Init::Zeros,
            seed: 0,
            effect: Apply::Immediate,
            finite_check: true,
            domain: DomainId(0),
            partitions: PARTITIONS_AUTO,
            gradient: GradientOptions::default(),
            redo: false,
            keys: KeyOptions::default(),
            versions: VERSIONS_DEFAULT,
            durability: Default::default(),
            partition_servers: None,
            partition_starts: None,
        })
    }

    /// Begins a sparse table: rows of `dim` elements by 64-bit key, created at the first push or pull of a key.
    pub fn sparse<T: Element>(name: &str, dim: u32) -> Self {
        Self::of(name, Shape::Sparse { dim }, T::DTYPE)
    }

    /// Begins a dense table of `rows` x `cols` elements, pulled and pushed by single rows in random order.
    pub fn rows<T: Element>(name: &str, rows: u64, cols: u32) -> Self {
        Self::of(
            name,
            Shape::Dense {
                rows,
                cols,
                layout: DenseLayout::Rows,
            },
            T::DTYPE,
        )
    }

    /// Begins a range table of `rows` x `cols` elements, pulled and pushed by ranges of elements, in blocks of 16
    /// KiB.
    pub fn range<T: Element>(name: &str, rows: u64, cols: u32) -> Self {
        let layout = DenseLayout::Blocks {
            block_bytes: 16 << 10,
            snapshot: false,
        };
        Self::of(name, Shape::Dense { rows, cols, layout }, T::DTYPE)
    }

    /// Sets the size of a block in bytes, a power of two. No effect but for range tables.
    #[must_use]
    pub fn block_bytes(mut self, bytes: u32) -> Self {
        if let Shape::Dense {
            layout: DenseLayout::Blocks { block_bytes, .. },
            ..
        } = &mut self.0.shape
        {
            *block_bytes = bytes;
        }
        self
    }

    /// Keeps snapshots of the table in two or more buffers, so that [`crate::PullMode::Snapshot`] can read it at one
    /// tick. For range tables with [`Self::at_clock`].
    #[must_use]
    pub fn snapshot(mut self) -> Self {
        if let Shape::Dense {
            layout: DenseLayout::Blocks { snapshot, .. },
            ..
        } = &mut self.0.shape
        {
            *snapshot = true;
        }
        self
    }

    /// Sets how many versions a table with [`Self::snapshot`] has memory for: 2 (the default) to 16, that
    /// which is being built included. All but two can be pinned, see [`Client::pin`](crate::Client::pin).
    #[must_use]
    pub fn versions(mut self, versions: u32) -> Self {
        self.0.versions = versions;
        self
    }

    /// Sets the optimizer: the update rule that servers apply to pushed gradients.
    #[must_use]
    pub fn optimizer(mut self, optimizer: Optimizer) -> Self {
        self.0.optimizer = optimizer;
        self
    }

    /// Sets all options of gradients (decay, clipping, accumulator, staleness) at once.
    #[must_use]
    pub fn gradient(mut self, options: GradientOptions) -> Self {
        self.0.gradient = options;
        self
    }

    /// Sets the weight decay: servers add `decay` times the parameter to each gradient (L2 penalty). For a decoupled
    /// decay use [`Optimizer::AdamW`].
    #[must_use]
    pub fn weight_decay(mut self, decay: f64) -> Self {
        self.0.gradient.weight_decay = decay;
        self
    }

    /// Clips gradients by value: servers bound the magnitude of each element to `bound`.
    #[must_use]
    pub fn clip_value(mut self, bound: f64) -> Self {
        self.0.gradient.clip_value = Some(bound);
        self
    }

    /// Clips gradients by norm: servers bound the Euclidean norm of a row's gradient to `bound` (tables of rows).
    #[must_use]
    pub fn clip_norm(mut self, bound: f64) -> Self {
        self.0.gradient.clip_norm = Some(bound);
        self
    }

    /// Sets the initial value of the accumulator in new rows' optimizer state ([`Optimizer::AdaGrad`],
    /// [`Optimizer::RowAdaGrad`], [`Optimizer::ProximalAdaGrad`]).
    #[must_use]
    pub fn initial_accumulator(mut self, first: f64) -> Self {
        self.0.gradient.initial_accumulator = first;
        self
    }

    /// Makes servers divide the learning rate of each gradient by its staleness, see
    /// [`GradientOptions::by_staleness`].
    #[must_use]
    pub fn by_staleness(mut self) -> Self {
        self.0.gradient.by_staleness = true;
        self
    }

    /// Sets the expiry of rows: servers delete a row that no push has touched for this number of ticks of the
    /// table's domain. Sparse tables only. Pulls, and functions of all rows, do not count. A tick examines one partition, so a row
    /// is deleted between `ticks` and `ticks` plus the number of partitions after its last push, at a tick that its
    /// key and that push decide. A load begins the count again.
    #[must_use]
    pub fn expire_after(mut self, ticks: u32) -> Self {
        self.0.keys.expire_after = ticks;
        self
    }

    /// Sets the admission threshold: servers create the row of a key at its push of this number, and drop the pushes
    /// before. Sparse tables that apply pushes on arrival only. Until then every pull returns the initial values and
    /// makes no row. Servers count in 1 MiB for a table and applier, by estimates: a key may get its row early or a
    /// few pushes late. They forget pushes in the course of 131,072 others of keys without a row.
    #[must_use]
    pub fn admit_after(mut self, pushes: u8) -> Self {
        self.0.keys.admit_after = pushes;
        self
    }

    /// Sets the initial values of elements, and the seed of random ones.
    #[must_use]
    pub fn init(mut self, init: Init, seed: u64) -> Self {
        self.0.init = init;
        self.0.seed = seed;
        self
    }

    /// Makes pushes take effect at the tick of the table's domain: for each row or block the last assignment, then
    /// all sums, then one step with the gradients, combined by `reduce`, in whichever order they were pushed. Within
    /// a kind the order is that of rank and thread: of additions, and for the last assignment.
    #[must_use]
    pub fn at_clock(mut self, reduce: Reduce) -> Self {
        self.0.effect = Apply::AtTick(reduce);
        self
    }

    /// Sets whether servers refuse push frames with NaN or infinity (default: yes).
    #[must_use]
    pub fn finite_check(mut self, check: bool) -> Self {
        self.0.finite_check = check;
        self
    }

    /// Makes appliers write each result into a redo record before they store it, so that the successor of a dead
    /// server can complete a half-written row (default: no). [`Durability::Warm`] implies it. Set it only to measure
    /// its cost, a second copy and a checksum for each row.
    #[must_use]
    pub fn redo(mut self, redo: bool) -> Self {
        self.0.redo = redo;
        self
    }

    /// Sets which state of the table outlives a server process (default: nothing). Servers refuse
    /// [`Durability::Warm`] unless a holder process keeps their memory (`tidewater server --restarts N`). If all
    /// tables of a job are warm, its workers go on by themselves when a server was killed.
    #[must_use]
    pub const fn durability(mut self, durability: Durability) -> Self {
        self.0.durability = durability;
        self
    }

    /// Sets the clock domain with the ticks at which the table's versions end (default 0).
    #[must_use]
    pub fn domain(mut self, domain: DomainId) -> Self {
        self.0.domain = domain;
        self
    }

    /// Sets the number of virtual partitions. By default the coordinator chooses it when the table is
    /// created, from its size and the servers' appliers, so that none is idle: 64 up to 8 appliers.
    /// [`Table::partitions`] reports it. Sums of elements combine the partitions in order: their last bits
    /// depend on the number. [`TableBuilder::partition_servers`] sets their servers.
    #[must_use]
    pub fn partitions(mut self, partitions: u32) -> Self {
        self.0.partitions = partitions;
        self
    }

    /// Sets the server of each partition: `servers[p]` is the number of the server that owns partition `p`, from 0.
    /// The partitions of a server go to its appliers in turn. Without a list, partitions go to all servers in turn.
    ///
    /// The length of the list is the number of partitions; [`TableBuilder::partitions`] can be left out. The keys of a
    /// sparse table are spread evenly by a hash; rows and ranges are cut evenly, or by
    /// [`TableBuilder::partition_starts`]. The list is part of the definition and of saved models: a model loads on
    /// clusters that have all servers of its lists. The inputs of a function have the list of its target.
    ///
    /// [`Client::create_table`](crate::Client::create_table) refuses an empty list, one with another length than the given number of partitions,
    /// and a server that does not exist.
    ///
    /// # Examples
    /// ```
    /// # use tidewater::{ClientError, JoinOptions, SyncMode, TableBuilder};
    /// # fn main() -> Result<(), ClientError> {
    /// # let job = JoinOptions::embedded(2, 1).join()?.into_job().expect("a worker");
    /// # let mut client = job.client(SyncMode::Asp)?;
    /// // One of four partitions on server 0, three on server 1.
    /// let spec = TableBuilder::rows::<f32>("w", 1000, 8).partition_servers(&[0, 1, 1, 1]);
    /// let table = client.create_table::<f32>(spec.spec())?;
    /// assert_eq!(table.partitions(), 4);
    ///
    /// let wrong = TableBuilder::rows::<f32>("v", 1000, 8).partition_servers(&[0, 7]);
    /// let refused = client.create_table::<f32>(wrong.spec()).unwrap_err();
    /// assert!(refused.to_string().contains("partition 1 to server 7"));
    /// # client.finish()
    /// # }
    /// ```
    #[must_use]
    pub fn partition_servers(mut self, servers: &[u32]) -> Self {
        self.0.partition_servers = Some(servers.iter().copied().map(ServerId).collect());
        self
    }

    /// Sets where each partition of a dense table begins: `starts[p]` is the first row of partition `p` (tables by
    /// rows), or its first element (range tables: a multiple of the elements of a block, `block_bytes` by the bytes of
    /// an element). The list begins with 0 and ascends; the last partition ends with the table. Without a list,
    /// partitions are near-equal.
    ///
    /// The length of the list is the number of partitions; [`TableBuilder::partitions`] can be left out. With
    /// [`TableBuilder::partition_servers`] each range is on the server of your choice. The list is part of the definition and of
    /// saved models. Cost: a row's partition is found by a binary search of the list, in place of one multiplication.
    ///
    /// [`Client::create_table`](crate::Client::create_table) refuses an empty list, one for a sparse table, one with another length than the given
    /// number of partitions, and a start that is not behind the one before it, not in the table, or inside a block.
    ///
    /// # Examples
    /// ```
    /// # use tidewater::{ClientError, JoinOptions, SyncMode, TableBuilder};
    /// # fn main() -> Result<(), ClientError> {
    /// # let job = JoinOptions::embedded(2, 1).join()?.into_job().expect("a worker");
    /// # let mut client = job.client(SyncMode::Asp)?;
    /// // The first 10 rows, which all workers use, are alone on server 1.
    /// let spec = TableBuilder::rows::<f32>("w", 1000, 8)
    ///     .partition_starts(&[0, 10, 500])
    ///     .partition_servers(&[1, 0, 0]);
    /// let table = client.create_table::<f32>(spec.spec())?;
    /// assert_eq!(client.partition_ranges(&table)?, [0..10, 10..500, 500..1000]);
    ///
    /// let wrong = TableBuilder::rows::<f32>("v", 1000, 8).partition_starts(&[0, 500, 500]);
    /// let refused = client.create_table::<f32>(wrong.spec()).unwrap_err();
    /// assert!(refused.to_string().contains("partition 2 at 500"));
    /// # client.finish()
    /// # }
    /// ```
    #[must_use]
    pub fn partition_starts(mut self, starts: &[u64]) -> Self {
        self.0.partition_starts = Some(starts.to_vec().into());
        self
    }

    /// Table definition built so far, for [`Client::create_table`](crate::Client::create_table).
    pub fn spec(&self) -> &TableSpec {
        &self.0
    }
}
