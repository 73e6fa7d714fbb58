//! Rows in memory, and the order in which mini-batches visit them.

use std::num::NonZeroUsize;

use tidewater_protocol::limits;

use super::error::{DataError, LineProblem};
use super::rng::SplitMix64;

/// Sparse rows, one after another: 12 bytes an entry, 12 a row.
///
/// Keys of a row ascend strictly; values are finite when the rows came from a file.
#[derive(Debug, Clone, PartialEq)]
pub struct Dataset {
    labels: Vec<f32>,
    /// Row `i` has the entries `indptr[i]..indptr[i + 1]`.
    indptr: Vec<usize>,
    keys: Vec<u64>,
    values: Vec<f32>,
    skipped: u64,
    width: Option<u64>,
}

/// One row of a [`Dataset`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Row<'a> {
    /// Label of the row.
    pub label: f32,
    /// Keys of the row's features, strictly ascending.
    pub keys: &'a [u64],
    /// Values of the features, aligned with the keys.
    pub values: &'a [f32],
}

impl Default for Dataset {
    fn default() -> Self {
        Self::new()
    }
}

impl Dataset {
    /// Makes a set without rows.
    pub fn new() -> Self {
        Self {
            labels: Vec::new(),
            indptr: vec![0],
            keys: Vec::new(),
            values: Vec::new(),
            skipped: 0,
            width: None,
        }
    }

    /// Appends a row to the set.
    ///
    /// # Errors
    /// [`DataError::Row`] if the keys do not ascend strictly, or keys and values differ in number.
    pub fn push(&mut self, label: f32, keys: &[u64], values: &[f32]) -> Result<(), DataError> {
        Self::check(self.labels.len(), keys, values)?;
        self.push_checked(label, keys, values);
        Ok(())
    }

    /// Checks the keys and values of row `row`.
    pub(crate) fn check(row: usize, keys: &[u64], values: &[f32]) -> Result<(), DataError> {
        let refuse = |problem| DataError::Row { row, problem };
        if keys.len() != values.len() {
            return Err(refuse(LineProblem::KeysValuesMismatch));
        }
        if !keys.is_sorted_by(|a, b| a < b) {
            return Err(refuse(LineProblem::NotAscending));
        }
        Ok(())
    }

    /// Appends a row with keys and values known to be in order.
    pub(crate) fn push_checked(&mut self, label: f32, keys: &[u64], values: &[f32]) {
        self.labels.push(label);
        self.keys.extend_from_slice(keys);
        self.values.extend_from_slice(values);
        self.indptr.push(self.keys.len());
    }

    /// Frees memory that growing left over, and records how many malformed records were left out, and how many
    /// values a record has.
    pub(crate) fn finish(&mut self, skipped: u64, width: Option<u64>) {
        self.skipped = skipped;
        self.width = width;
        self.labels.shrink_to_fit();
        self.indptr.shrink_to_fit();
        self.keys.shrink_to_fit();
        self.values.shrink_to_fit();
    }

    /// Number of rows of the set.
    pub fn rows(&self) -> usize {
        self.labels.len()
    }

    /// Number of malformed records that the reader left out.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// Number of values that each record has; `None` for sparse records and for a set without rows.
    pub fn width(&self) -> Option<u64> {
        self.width
    }

    /// Number of entries in all rows.
    pub fn entries(&self) -> usize {
        self.keys.len()
    }

    /// The largest key, `None` without entries.
    pub fn max_key(&self) -> Option<u64> {
        self.keys.iter().copied().max()
    }

    /// All labels, in row order.
    pub fn labels(&self) -> &[f32] {
        &self.labels
    }

    /// Row `index`, `None` beyond the last one.
    pub fn row(&self, index: usize) -> Option<Row<'_>> {
        let entries = *self.indptr.get(index)?..*self.indptr.get(index + 1)?;
        Some(Row {
            label: self.labels[index],
            keys: &self.keys[entries.clone()],
            values: &self.values[entries],
        })
    }

    /// Iterates over all rows in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Row<'_>> {
        (0..self.rows()).map(|index| self.row_of_plan(index))
    }

    /// Row `index`, which must exist.
    fn row_of_plan(&self, index: usize) -> Row<'_> {
        let entries = self.indptr[index]..self.indptr[index + 1];
        Row {
            label: self.labels[index],
            keys: &self.keys[entries.clone()],
            values: &self.values[entries],
        }
    }
}

/// Some rows of a set, in the order in which a plan visits them.
#[derive(Debug, Clone, Copy)]
pub struct Batch<'a> {
    data: &'a Dataset,
    order: &'a [u32],
}

impl<'a> Batch<'a> {
    /// A batch without rows: the contribution of a worker with an exhausted part, while others
    /// continue.
    pub fn empty(data: &'a Dataset) -> Self {
        Self { data, order: &[] }
    }

    /// Number of rows of the batch.
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// Whether the batch has no rows.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// The rows, in the order of the plan.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = Row<'a>> + use<'a> {
        let data = self.data;
        self.order
            .iter()
            .map(move |&row| data.row_of_plan(row as usize))
    }
}

/// Visits every row of a set once per epoch, in mini-batches.
///
/// The order is a function of the set's size, the seed and the epoch, not of earlier epochs. A run that
/// continues at epoch 5 sees the same order as the uninterrupted one.
#[derive(Debug)]
pub struct BatchPlan<'a> {
    data: &'a Dataset,
    order: Vec<u32>,
    batch_rows: usize,
}

impl<'a> BatchPlan<'a> {
    /// Batches of `batch_rows` rows in file order; the last one may be smaller. 4 bytes a row.
    ///
    /// Rows past [`limits::DATA_PART_ROWS_MAX`] are not visited; the readers never return as many.
    pub fn new(data: &'a Dataset, batch_rows: NonZeroUsize) -> Self {
        let rows = data.rows().min(limits::DATA_PART_ROWS_MAX) as u32;
        Self {
            data,
            order: (0..rows).collect(),
            batch_rows: batch_rows.get(),
        }
    }

    /// Sorts the rows into the order of `(seed, epoch)`: a Fisher-Yates shuffle of file order.
    pub fn shuffle(&mut self, seed: u64, epoch: u64) {
        SplitMix64::keyed(seed, epoch).permute(&mut self.order);
    }

    /// Number of batches of an epoch.
    pub fn len(&self) -> usize {
        self.order.len().div_ceil(self.batch_rows)
    }

    /// Whether the plan has no batch: the set has no rows.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Batch `index` of the epoch. It has no rows from [`BatchPlan::len`] on, so that workers with
    /// parts of unequal size can take the same number of steps.
    pub fn batch(&self, index: usize) -> Batch<'_> {
        let rows = self.order.chunks(self.batch_rows).nth(index);
        Batch {
            data: self.data,
            order: rows.unwrap_or(&[]),
        }
    }

    /// The batches of the epoch.
    pub fn batches(&self) -> impl ExactSizeIterator<Item = Batch<'_>> {
        self.order.chunks(self.batch_rows).map(|order| Batch {
            data: self.data,
            order,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbered(rows: usize) -> Dataset {
        let mut data = Dataset::new();
        for row in 0..rows {
            data.push(row as f32, &[row as u64, 1 << 40], &[0.5, 1.0])
                .unwrap();
        }
        data
    }

    fn visited(plan: &BatchPlan<'_>) -> Vec<u32> {
        let rows = plan.batches().flat_map(|batch| batch.rows());
        rows.map(|row| row.label as u32).collect()
    }

    #[test]
    fn rows_come_back() {
        let data = numbered(3);
        assert_eq!((data.rows(), data.entries()), (3, 6));
        let row = data.row(2).unwrap();
        assert_eq!(
            (row.label, row.keys, row.values),
            (2.0, &[2, 1 << 40][..], &[0.5, 1.0][..])
        );
        assert_eq!(data.row(3), None);
        assert_eq!(data.row(usize::MAX - 1), None);
        assert_eq!(data.max_key(), Some(1 << 40));
        assert_eq!(data.iter().count(), 3);
        assert_eq!(Dataset::new().max_key(), None);
    }

    #[test]
    fn rows_out_of_order_are_refused() {
        let mut data = numbered(1);
        let refused = data.push(0.0, &[5, 5], &[1.0, 1.0]).unwrap_err();
        assert!(matches!(
            refused,
            DataError::Row {
                row: 1,
                problem: LineProblem::NotAscending
            }
        ));
        let refused = data.push(0.0, &[5], &[]).unwrap_err();
        assert!(refused.to_string().contains("one value for each key"));
        assert_eq!(data, numbered(1));
    }

    #[test]
    fn every_row_is_visited_once_an_epoch() {
        let data = numbered(103);
        let mut plan = BatchPlan::new(&data, NonZeroUsize::new(10).unwrap());
        assert_eq!(plan.len(), 11);
        assert_eq!(plan.batch(10).len(), 3);
        assert!(plan.batch(11).is_empty());
        let in_order: Vec<u32> = (0..103).collect();
        assert_eq!(visited(&plan), in_order);

        plan.shuffle(7, 3);
        let third = visited(&plan);
        assert_ne!(third, in_order);
        let mut sorted = third.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, in_order);

        plan.shuffle(7, 4);
        assert_ne!(visited(&plan), third);
        plan.shuffle(7, 3);
        assert_eq!(visited(&plan), third, "depends on more than seed and epoch");
    }

    #[test]
    fn an_empty_set_has_no_batches() {
        let data = Dataset::new();
        let mut plan = BatchPlan::new(&data, NonZeroUsize::MIN);
        plan.shuffle(1, 1);
        assert_eq!(plan.len(), 0);
        assert!(plan.is_empty() && plan.batch(0).is_empty() && Batch::empty(&data).is_empty());
    }
}
