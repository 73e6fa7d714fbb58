//! Versions of the data that a pull returns.

/// Versions of the elements that a pull wrote to its buffer.
///
/// | pull | `version` | `stores` |
/// |---|---|---|
/// | range of a table with snapshots, modes `Consistent`, `Hogwild`, `Snapshot` | known | not known |
/// | range of another table, mode `Consistent` | not known | known, unless a server copied a block |
/// | rows, modes `Consistent` and `Hogwild` | not known | known, unless a server copied a row |
/// | range, mode `Hogwild`; mode `Gather`; no elements | not known | not known |
///
/// A server copies what was being written at each of several reads, and the initial values of unknown
/// keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Pulled {
    /// Version of all elements: the ticks of the table's clock domain that are in them, and no later
    /// one. See `Client::wait_newer`.
    pub version: Option<u64>,
    /// Smallest and largest number of stores of the blocks or rows that were read.
    pub stores: Option<RangeVersions>,
}

/// Numbers of stores of blocks or rows. A new block or row has 1, and each change adds 1. If the two are
/// equal to those of an earlier pull of the same elements and to each other, nothing has changed between
/// the two pulls. Numbers of blocks wrap after 2^31 stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RangeVersions {
    /// Smallest number of stores.
    pub smallest: u64,
    /// Largest number of stores.
    pub largest: u64,
}

/// Collects the versions of what a pull reads.
#[derive(Debug, Clone, Copy)]
pub struct Seen {
    smallest: u64,
    largest: u64,
    /// Whether some elements came without a version.
    unknown: bool,
}

impl Default for Seen {
    fn default() -> Self {
        Self {
            smallest: u64::MAX,
            largest: 0,
            unknown: false,
        }
    }
}

impl Seen {
    /// Adds a block or row with this number of stores.
    #[inline(always)]
    pub fn add(&mut self, stores: u64) {
        self.smallest = self.smallest.min(stores);
        self.largest = self.largest.max(stores);
    }

    /// Notes that some elements came without a version.
    pub const fn lose(&mut self) {
        self.unknown = true;
    }

    /// The result of a pull without a version of all elements.
    #[inline]
    pub fn pulled(self) -> Pulled {
        let known = !self.unknown && self.smallest <= self.largest;
        Pulled {
            version: None,
            stores: known.then_some(RangeVersions {
                smallest: self.smallest,
                largest: self.largest,
            }),
        }
    }
}

impl Pulled {
    /// The result of a pull of elements that are all of one version.
    pub const fn of_version(version: u64) -> Self {
        Self {
            version: Some(version),
            stores: None,
        }
    }
}
