//! Where the partitions of a dense table begin.

use std::ops::Deref;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// First row (tables by rows) or element (range tables) of each partition of a dense table. Clones share the list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<u64>", into = "Vec<u64>")]
pub struct PartitionStarts(Arc<[u64]>);

impl From<Vec<u64>> for PartitionStarts {
    fn from(starts: Vec<u64>) -> Self {
        Self(starts.into())
    }
}

impl From<PartitionStarts> for Vec<u64> {
    fn from(starts: PartitionStarts) -> Self {
        starts.0.to_vec()
    }
}

impl Deref for PartitionStarts {
    type Target = [u64];

    fn deref(&self) -> &[u64] {
        &self.0
    }
}
