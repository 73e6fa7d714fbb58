//! Rows that are written once and read many times: in memory, in a temporary file, or both.

use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::os::unix::fs::FileExt as _;

use super::dataset::{Dataset, Row};
use super::error::{DataError, LineProblem};
use super::rng::SplitMix64;

/// Where a [`RowStore`] keeps its rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Storage {
    /// In memory, all rows.
    Memory,
    /// In a temporary file without a name, in the directory TMPDIR or /tmp.
    Disk,
    /// In memory up to this number of bytes; rows after that in a temporary file.
    Both {
        /// Largest number of bytes in memory: 12 an entry and 12 a row.
        memory_bytes: u64,
    },
}

/// Rows by number, and a cursor over them in an order that can be shuffled.
///
/// Memory on disk: 8 bytes a row for its offset, and 4 for the order.
#[derive(Debug)]
pub struct RowStore {
    storage: Storage,
    memory: Dataset,
    file: Option<BufWriter<File>>,
    /// Offset in the file of the end of each row there.
    ends: Vec<u64>,
    order: Vec<u32>,
    next: usize,
    bytes: Vec<u8>,
    keys: Vec<u64>,
    values: Vec<f32>,
    label: f32,
}

/// Bytes of a row without entries, in memory and in the file.
const ROW_BYTES: usize = 12;
const ENTRY_BYTES: usize = 12;

impl RowStore {
    /// Makes a store without rows. A file is made with the first row that needs it.
    pub fn new(storage: Storage) -> Self {
        Self {
            storage,
            memory: Dataset::new(),
            file: None,
            ends: Vec::new(),
            order: Vec::new(),
            next: 0,
            bytes: Vec::new(),
            keys: Vec::new(),
            values: Vec::new(),
            label: 0.0,
        }
    }

    /// Number of rows of the store.
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// Whether the store has no rows.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Number of rows that are on disk.
    pub fn on_disk(&self) -> usize {
        self.ends.len()
    }

    /// Appends a row.
    ///
    /// # Errors
    /// Keys that do not ascend strictly, keys and values that differ in number, an error of the temporary file.
    pub fn push(&mut self, label: f32, keys: &[u64], values: &[f32]) -> Result<(), DataError> {
        let row = self.len();
        let Ok(number) = u32::try_from(row) else {
            return Err(DataError::Row {
                row,
                problem: LineProblem::TooManyRows,
            });
        };
        let in_memory = match self.storage {
            Storage::Memory => true,
            Storage::Disk => false,
            Storage::Both { memory_bytes } => {
                let entries = self.memory.entries() + keys.len();
                let bytes = entries * ENTRY_BYTES + (self.memory.rows() + 1) * ROW_BYTES;
                // Rows stay in order: after the first one on disk all are.
                self.ends.is_empty() && bytes as u64 <= memory_bytes
            }
        };
        if in_memory {
            self.memory.push(label, keys, values)?;
        } else {
            Dataset::check(row, keys, values)?;
            self.spill(label, keys, values)
                .map_err(|e| spill("write", e))?;
        }
        self.order.push(number);
        Ok(())
    }

    fn spill(&mut self, label: f32, keys: &[u64], values: &[f32]) -> io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            None => self.file.insert(BufWriter::new(tempfile::tempfile()?)),
        };
        file.write_all(&label.to_le_bytes())?;
        for key in keys {
            file.write_all(&key.to_le_bytes())?;
        }
        for value in values {
            file.write_all(&value.to_le_bytes())?;
        }
        let before = self.ends.last().copied().unwrap_or(0);
        self.ends
            .push(before + (4 + ENTRY_BYTES * keys.len()) as u64);
        Ok(())
    }

    /// Row `index`, `None` beyond the last one. A row on disk costs one read.
    ///
    /// # Errors
    /// An error of the temporary file.
    pub fn get(&mut self, index: usize) -> Result<Option<Row<'_>>, DataError> {
        let Some(on_disk) = index.checked_sub(self.memory.rows()) else {
            return Ok(self.memory.row(index));
        };
        let Some(&end) = self.ends.get(on_disk) else {
            return Ok(None);
        };
        let start = on_disk.checked_sub(1).map_or(0, |before| self.ends[before]);
        self.fetch(start, end).map_err(|e| spill("read", e))?;
        Ok(Some(Row {
            label: self.label,
            keys: &self.keys,
            values: &self.values,
        }))
    }

    fn fetch(&mut self, start: u64, end: u64) -> io::Result<()> {
        let file = self.file.as_mut().ok_or(io::ErrorKind::NotFound)?;
        file.flush()?;
        self.bytes.resize((end - start) as usize, 0);
        file.get_ref().read_exact_at(&mut self.bytes, start)?;
        let (label, entries) = self
            .bytes
            .split_first_chunk()
            .ok_or(io::ErrorKind::InvalidData)?;
        let (keys, values) = entries.split_at(entries.len() / ENTRY_BYTES * 8);
        self.label = f32::from_le_bytes(*label);
        self.keys.clear();
        self.values.clear();
        let keys = keys.as_chunks().0.iter();
        self.keys
            .extend(keys.map(|bytes| u64::from_le_bytes(*bytes)));
        let values = values.as_chunks().0.iter();
        self.values
            .extend(values.map(|bytes| f32::from_le_bytes(*bytes)));
        Ok(())
    }

    /// Sorts the order into that of `(seed, epoch)`, as [`BatchPlan::shuffle`](super::BatchPlan::shuffle) does, and
    /// moves the cursor to its start. On disk each row is then a read at another offset.
    pub fn shuffle(&mut self, seed: u64, epoch: u64) {
        SplitMix64::keyed(seed, epoch).permute(&mut self.order);
        self.next = 0;
    }

    /// Moves the cursor to the first row of the order.
    pub fn rewind(&mut self) {
        self.next = 0;
    }

    /// The next row in order; `None` after the last one, until [`RowStore::rewind`].
    ///
    /// # Errors
    /// An error of the temporary file.
    pub fn next_row(&mut self) -> Result<Option<Row<'_>>, DataError> {
        let Some(&row) = self.order.get(self.next) else {
            return Ok(None);
        };
        self.next += 1;
        self.get(row as usize)
    }
}

fn spill(operation: &'static str, source: io::Error) -> DataError {
    DataError::Spill { operation, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(storage: Storage) -> RowStore {
        let mut store = RowStore::new(storage);
        for row in 0..100u64 {
            let keys: Vec<u64> = (0..row % 7).map(|k| k << 40 | row).collect();
            let values: Vec<f32> = keys.iter().map(|k| *k as f32 + 0.5).collect();
            store.push(row as f32, &keys, &values).unwrap();
        }
        store
    }

    fn sequence(store: &mut RowStore) -> Vec<(f32, Vec<u64>, Vec<f32>)> {
        let mut rows = Vec::new();
        while let Some(row) = store.next_row().unwrap() {
            rows.push((row.label, row.keys.to_vec(), row.values.to_vec()));
        }
        rows
    }

    /// All kinds of storage give the same rows, in file order, shuffled and by number.
    #[test]
    fn every_storage_gives_the_same_sequence() {
        let mut memory = filled(Storage::Memory);
        let in_order = sequence(&mut memory);
        memory.shuffle(3, 4);
        let shuffled = sequence(&mut memory);
        assert_eq!((in_order.len(), memory.on_disk()), (100, 0));
        assert_ne!(in_order, shuffled);
        // The limit lies within a row.
        let both = Storage::Both {
            memory_bytes: 2_005,
        };
        for (storage, on_disk) in [(Storage::Disk, 100), (both, 59)] {
            let mut store = filled(storage);
            assert_eq!(store.on_disk(), on_disk, "{storage:?}");
            assert_eq!(sequence(&mut store), in_order);
            assert!(store.next_row().unwrap().is_none());
            store.rewind();
            assert_eq!(sequence(&mut store), in_order);
            store.shuffle(3, 4);
            assert_eq!(sequence(&mut store), shuffled);
            assert_eq!(store.get(57).unwrap().unwrap().label, 57.0);
            assert!(store.get(100).unwrap().is_none());
            let wrong = store.push(0.0, &[2, 2], &[1.0, 1.0]).unwrap_err();
            assert!(matches!(wrong, DataError::Row { row: 100, .. }), "{wrong}");
            assert_eq!(store.len(), 100);
        }
    }
}
