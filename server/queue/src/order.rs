//! How shards are cut into tasks, and in which order a pass gives them.

use serde::{Deserialize, Serialize};
use tidewater_protocol::layout::hash::mix64;
use tidewater_protocol::mutants::{Mutant, on};
use tidewater_protocol::wire::control::TaskShard;

/// The tasks of one pass: shard after shard, each cut from its beginning.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Cuts {
    shards: Vec<TaskShard>,
    /// Number of the first task of each shard.
    first: Vec<u64>,
    size: u64,
    tasks: u64,
}

impl Cuts {
    /// Cuts shards into tasks of `size`; the last one of a shard may be smaller, and an empty shard has none.
    pub(crate) fn new(shards: Vec<TaskShard>, size: u64) -> Self {
        let mut tasks = 0u64;
        let mut first = Vec::with_capacity(shards.len());
        for shard in &shards {
            first.push(tasks);
            tasks = tasks.saturating_add(shard.size().div_ceil(size.max(1)));
        }
        Self {
            shards,
            first,
            size,
            tasks,
        }
    }

    /// Number of tasks of a pass.
    pub(crate) const fn tasks(&self) -> u64 {
        self.tasks
    }

    /// The records of a task; `None` for a number that does not exist. Cost: a search among the shards.
    pub(crate) fn shard(&self, task: u64) -> Option<TaskShard> {
        if task >= self.tasks {
            return None;
        }
        // Shards without tasks have the number of the next one: the last of equal ones has the task.
        let at = self
            .first
            .partition_point(|&first| first <= task)
            .checked_sub(1)?;
        let (shard, before) = (self.shards.get(at)?, *self.first.get(at)?);
        let first = shard.first + (task - before) * self.size;
        Some(TaskShard {
            first,
            end: shard
                .end
                .min(first.saturating_add(self.size + u64::from(on(Mutant::TasksOverlap)))),
            ..shard.clone()
        })
    }
}

/// The order of a pass: numbers of tasks below `tasks`, shuffled by seed and pass, or as they are. Cost with a
/// seed: a sort of the tasks, and 4 bytes for each.
pub(crate) fn order(tasks: u32, seed: Option<u64>, epoch: u32) -> Vec<u32> {
    let mut order: Vec<u32> = (0..tasks).collect();
    if let Some(seed) = seed {
        let pass = mix64(seed ^ mix64(u64::from(epoch) + 1));
        // `mix64` is a bijection: no two tasks have equal keys.
        order.sort_unstable_by_key(|&task| mix64(pass ^ u64::from(task)));
    }
    order
}
