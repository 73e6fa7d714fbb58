"""Training data: text, CSV and RecordIO files, compressed or not, divided among workers.

    import tidewater.data
    for batch in tidewater.data.open("train-*.gz", batch=256, part=rank, parts=workers):
        rows = table.pull(batch.keys)        # batch.labels, .starts, .keys, .values: numpy arrays

`path` is a file, a directory or a pattern. docs/DATA.md of the project describes formats, schemas and policies. Errors
of files are OSError, malformed records ValueError; both name the file, and a record its number and offset.
"""

from __future__ import annotations

import os
from typing import Any, Iterator, NamedTuple, Optional, Union

import numpy as np

from ._tidewater import RecordCursor, RowCursor

__all__ = ["Batch", "Reader", "open", "records", "torch_dataset"]


class Batch(NamedTuple):
    """Rows one after another: row `i` has the entries `starts[i]` to `starts[i + 1]` of `keys` and `values`."""

    labels: np.ndarray  # float32
    starts: np.ndarray  # int64, one more than labels
    keys: np.ndarray  # uint64, ascending in each row
    values: np.ndarray  # float32

    def row(self, index: int) -> tuple:
        """Label, keys and values of a row."""
        start, end = self.starts[index], self.starts[index + 1]
        return self.labels[index], self.keys[start:end], self.values[start:end]

    def dense(self, columns: int) -> np.ndarray:
        """The values as an array of `(rows, columns)`, with zeros between them. Keys are below `columns`."""
        if self.keys.size and self.keys.max() >= columns:
            raise ValueError(f"key {self.keys.max()} is not below {columns} columns")
        out = np.zeros((len(self.labels), columns), dtype=np.float32)
        out[np.repeat(np.arange(len(self.labels)), np.diff(self.starts)), self.keys.astype(np.int64)] = self.values
        return out


class Reader:
    """Iterable over the batches of a part. Each `iter` reads the files again, from their start."""

    def __init__(self, path: Union[str, os.PathLike], part: int, parts: int, batch: int, options: tuple) -> None:
        if batch < 1:
            raise ValueError(f"batch is {batch}; it is at least 1")
        self._path, self._part, self._parts = os.fspath(path), part, parts
        self._batch, self._options = batch, options
        self._cursor: Optional[RowCursor] = None

    def __iter__(self) -> Iterator[Batch]:
        self._cursor = cursor = RowCursor(self._path, self._part, self._parts, *self._options)
        while (batch := cursor.next_batch(self._batch)) is not None:
            yield Batch(*batch)

    def __getstate__(self) -> dict:
        return {**self.__dict__, "_cursor": None}

    @property
    def skipped(self) -> int:
        """Malformed records that the latest pass left out so far."""
        return 0 if self._cursor is None else self._cursor.skipped

    def part(self, part: int, parts: int) -> Reader:
        """Part `part` of `parts` of this part."""
        if not 0 <= part < parts:
            raise ValueError(f"there is no part {part} of {parts}; parts count from 0")
        return Reader(self._path, self._part * parts + part, self._parts * parts, self._batch, self._options)


def open(
    path: Union[str, os.PathLike],
    format: Optional[str] = None,
    *,
    schema: Optional[str] = None,
    labels: str = "raw",
    positive: Optional[float] = None,
    bad_records: str = "fail",
    part: int = 0,
    parts: int = 1,
    batch: int = 256,
) -> Reader:
    """Opens a part of files for reading in batches of at most `batch` rows.

    `format`: libsvm, libsvm0, libsvm-bare, dummy, dense, dense:C, csv; None detects libsvm and dummy, and is csv with a
    `schema`. `labels`: "raw", as they are, or "binary" (-1, 0 and +1, as 0 and 1); `positive` makes one class 1 and all
    others 0. `bad_records`: "fail", or "skip:RATIO", with an error at the end if more are malformed.
    """
    return Reader(path, part, parts, batch, (format, schema, labels, positive, bad_records))


def records(path: Union[str, os.PathLike], *, part: int = 0, parts: int = 1) -> Iterator[bytes]:
    """Iterates over the records of files as bytes: those of RecordIO, or lines without their ends."""
    return RecordCursor(os.fspath(path), part, parts)


def torch_dataset(reader: Reader, columns: Optional[int] = None) -> Any:
    """Makes a torch.utils.data.IterableDataset of a reader: use it with `DataLoader(..., batch_size=None)`.

    Processes of the loader divide the part among them. Items are pairs of labels and, with `columns`, dense tensors of
    `(rows, columns)`; without, sparse CSR tensors as wide as the largest key of the batch. Raises ImportError where
    PyTorch is not installed.
    """
    from ._torch_data import Rows

    return Rows(reader, columns)
