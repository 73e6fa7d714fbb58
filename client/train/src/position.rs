//! The position of a run in its training set. A saved model carries it: a run that loads the model
//! takes the steps that the saving run would have taken next.
//!
//! The position is a row of a table of its own, saved with the weights.

use tidewater_protocol::table::PushOp;

use super::all_gather::ASIDE;
use super::error::TrainError;
use tidewater::error::ClientError;
use tidewater::pull::PullOptions;
use tidewater::session::Client;
use tidewater::table::{Table, TableBuilder};

/// Name of the table: `i64`, one row.
pub const POSITION: &str = "tidewater-train/position";

/// Layout number of the row. A table that no run has written holds 0.
const LAYOUT: u64 = 1;
const CELLS: usize = 8;

/// The next step of a run: all workers take it together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Position {
    /// Number of completed epochs.
    pub(crate) epoch: u64,
    /// Number of completed steps of the next epoch.
    pub(crate) step: u64,
}

/// Parameters that decide, with the seed, the rows of a step. A position within an epoch is valid only
/// for a run with the same course.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Course {
    /// Number of steps of an epoch.
    pub(crate) steps: u64,
    /// Rows of the training set.
    pub(crate) rows: u64,
    /// Workers that share the rows.
    pub(crate) workers: u64,
    /// Rows of a worker's mini-batch.
    pub(crate) batch_rows: u64,
    /// Seed of the rows' order.
    pub(crate) seed: u64,
}

impl Course {
    /// Names and values of the fields that differ in `other`; `None` if it is the same course.
    pub(crate) fn difference(&self, other: &Self) -> Option<String> {
        let fields = [
            ("rows", self.rows, other.rows),
            ("workers", self.workers, other.workers),
            ("--batch", self.batch_rows, other.batch_rows),
            ("--seed", self.seed, other.seed),
            ("steps of an epoch", self.steps, other.steps),
        ];
        let differs = fields.iter().filter(|(_, ours, theirs)| ours != theirs);
        let text = differs.map(|(name, ours, theirs)| format!("{name} {ours}, now {theirs}"));
        let all: Vec<String> = text.collect();
        (!all.is_empty()).then(|| all.join("; "))
    }
}

/// A position in a checkpoint of the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Checkpoint {
    /// The next step of the run.
    pub(crate) at: Position,
    /// Epoch with which the run ends.
    pub(crate) end: u64,
    pub(crate) course: Course,
}

/// The position of a worker in a checkpoint: [`encode`]'s words and the last epoch of the command.
pub(crate) const CHECKPOINT_BYTES: usize = (CELLS + 1) * size_of::<u64>();

/// The bytes that a worker gives to [`Client::set_position`]: its position after a step, and the epoch with
/// which its run ends.
pub(crate) fn checkpoint(at: Position, end: u64, course: &Course) -> [u8; CHECKPOINT_BYTES] {
    let mut bytes = [0; CHECKPOINT_BYTES];
    let words = encode(at, course).into_iter().chain([end]);
    for (to, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *to = word.to_le_bytes();
    }
    bytes
}

/// Decodes [`checkpoint`].
///
/// # Errors
/// Why the bytes are of no run of this program.
pub(crate) fn from_checkpoint(bytes: &[u8]) -> Result<Checkpoint, String> {
    if bytes.len() != CHECKPOINT_BYTES {
        return Err(format!("a position of {} bytes", bytes.len()));
    }
    let mut words = [0; CELLS + 1];
    for (word, from) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
        *word = u64::from_le_bytes(*from);
    }
    let [cells @ .., end] = words;
    match decode(cells)? {
        Some((at, course)) => Ok(Checkpoint { at, end, course }),
        None => Err("a position of layout 0".into()),
    }
}

/// The table of the position.
#[derive(Debug)]
pub(crate) struct PositionTable(Table<i64>);

impl PositionTable {
    /// Creates the table, or opens the loaded one.
    pub(crate) fn new(client: &mut Client) -> Result<Self, ClientError> {
        let spec = TableBuilder::rows::<i64>(POSITION, 1, CELLS as u32)
            .domain(ASIDE)
            .partitions(1);
        Ok(Self(client.create_table(spec.spec())?))
    }

    /// Reads the position of the run that saved the model in `dir`; `None` for a model without one.
    pub(crate) fn read(
        &self,
        client: &mut Client,
        dir: &str,
    ) -> Result<Option<(Position, Course)>, TrainError> {
        let mut cells = [0i64; CELLS];
        client.pull_rows(&self.0, &[0], &mut cells, PullOptions::default())?;
        decode(cells.map(i64::cast_unsigned)).map_err(|what| TrainError::Position {
            dir: dir.to_owned(),
            what,
        })
    }

    /// Writes the position and waits until it is applied. One worker calls it, after the last step of
    /// all.
    pub(crate) fn write(
        &self,
        client: &mut Client,
        position: Position,
        course: &Course,
    ) -> Result<(), ClientError> {
        let cells = encode(position, course).map(u64::cast_signed);
        let ticket = client.push_rows(&self.0, &[0], &cells, PushOp::Assign)?;
        client.wait_applied(&ticket)
    }
}

const fn encode(at: Position, course: &Course) -> [u64; CELLS] {
    [
        LAYOUT,
        at.epoch,
        at.step,
        course.steps,
        course.rows,
        course.workers,
        course.batch_rows,
        course.seed,
    ]
}

fn decode(cells: [u64; CELLS]) -> Result<Option<(Position, Course)>, String> {
    let [layout, epoch, step, steps, rows, workers, batch_rows, seed] = cells;
    if layout == 0 {
        return Ok(None);
    }
    if layout != LAYOUT {
        return Err(format!(
            "its row has layout {layout}, this program reads {LAYOUT}"
        ));
    }
    if step >= steps.max(1) {
        return Err(format!("step {step} of an epoch of {steps}"));
    }
    let course = Course {
        steps,
        rows,
        workers,
        batch_rows,
        seed,
    };
    Ok(Some((Position { epoch, step }, course)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const COURSE: Course = Course {
        steps: 94,
        rows: 3000,
        workers: 2,
        batch_rows: 16,
        seed: u64::MAX,
    };

    #[test]
    fn position_survives_its_row() {
        let at = Position { epoch: 3, step: 93 };
        let cells = encode(at, &COURSE);
        assert_eq!(decode(cells), Ok(Some((at, COURSE))));
        assert_eq!(decode([0; CELLS]), Ok(None));
        for (cell, value, says) in [(0, 2, "layout 2"), (2, 94, "step 94 of an epoch of 94")] {
            let mut bad = cells;
            bad[cell] = value;
            let error = decode(bad).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn position_survives_a_checkpoint() {
        let at = Position { epoch: 3, step: 93 };
        let bytes = checkpoint(at, 7, &COURSE);
        let checkpoint = Checkpoint {
            at,
            end: 7,
            course: COURSE,
        };
        assert_eq!(from_checkpoint(&bytes), Ok(checkpoint));
        for bad in [&bytes[..64], &[0; CHECKPOINT_BYTES]] {
            assert!(from_checkpoint(bad).is_err());
        }
    }

    #[test]
    fn another_course_is_named_by_its_numbers() {
        assert_eq!(COURSE.difference(&COURSE), None);
        let other = Course {
            workers: 3,
            steps: 63,
            ..COURSE
        };
        let text = COURSE.difference(&other).unwrap();
        assert_eq!(text, "workers 2, now 3; steps of an epoch 94, now 63");
    }
}
