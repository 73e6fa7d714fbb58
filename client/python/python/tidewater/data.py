"""Training data: text, CSV and RecordIO files, compressed or not, divided among workers.

    import tidewater.data
    for batch in tidewater.data.open("train-*.gz", batch=256, part=rank, parts=workers):
        rows = table.pull(batch.keys)        # batch.labels, .starts, .keys, .values: numpy arrays

`path` is a file, a directory or a pattern. docs/DATA.md of the project describes formats, schemas and policies. Errors
of files are OSError, malformed records ValueError; both name the file, and a record its number and offset.
"""

from __future__ import annotations

import numbers
import os
from typing import Any, Callable, Iterator, NamedTuple, Optional, Sequence, Union

import numpy as np

from ._tidewater import RecordCursor, RowCursor, Session, TaskQueue

__all__ = ["Batch", "Feed", "Reader", "Task", "Tasks", "feed", "open", "records", "tasks", "torch_dataset", "torch_tasks"]


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
    `schema`. `labels`: "raw", as they are, "binary" (-1, 0 and +1, as 0 and 1), "above:T" (1 above T, else 0), "sign:T"
    (+1 or -1) or "shift:N" (N is added); `positive` makes one class 1 and all others 0. `bad_records`: "fail", or "skip:RATIO", with an error at the end if more are malformed.
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


class Task:
    """A task of a queue: iterate over its batches (of record numbers, for a queue over a number of records), then call
    `done`. As a context it calls `done` at its end, and
    `failed` with the text of an exception, which it passes on."""

    def __init__(self, tasks: Tasks, described: tuple) -> None:
        self.number, self.kind, self.epoch, self.failures, self.path, self.first, self.end = described
        self._tasks = tasks

    def __iter__(self) -> Iterator[Union[Batch, np.ndarray]]:
        self._check_open()
        if self._tasks._queue.is_counted:
            records, size = self.record_numbers(), self._tasks.batch
            for at in range(0, len(records), size):
                self._check_open()
                yield records[at : at + size]
            return
        while (batch := self._tasks._queue.next_batch(self._tasks.batch)) is not None:
            yield Batch(*batch)
            self._check_open()

    def _check_open(self) -> None:
        if self._tasks._current is not self:
            raise ValueError(f"task {self.number} is not open any more; report each task before the next one is taken")

    def record_numbers(self) -> np.ndarray:
        """The record numbers of the task, as uint64: those of a map-style data set. With `record_seed` they are drawn
        from all records; all tasks of a pass have each number once. Empty for a task without records."""
        self._check_open()
        if self.kind in ("save", "end"):
            return np.empty(0, dtype=np.uint64)
        return self._tasks._queue.record_numbers()

    def done(self) -> bool:
        """Reports the task as finished. Returns whether it counts: False if it was taken back, or another worker
        finished it first; its pushes are dropped then."""
        self._check_open()
        return self._tasks._queue.done()

    def failed(self, reason: str) -> None:
        """Reports that the task failed by itself. Its pushes are dropped; after too many failures it is left out."""
        self._check_open()
        self._tasks._queue.failed(reason)

    def __enter__(self) -> Task:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if error is None:
            self.done()
        elif isinstance(error, Exception):
            self.failed(f"{kind.__name__}: {error}")


class Tasks:
    """Iterable over the tasks of a queue, each of which is one worker's. `for task in tasks: with task: ...`"""

    def __init__(self, queue: TaskQueue, batch: int, has_finals: bool) -> None:
        if batch < 1:
            raise ValueError(f"batch is {batch}; it is at least 1")
        self._queue, self.batch, self.has_finals = queue, batch, has_finals
        self._current: Optional[Task] = None

    def __iter__(self) -> Iterator[Task]:
        self._current = None
        while (described := self._queue.next()) is not None:
            self._current = task = Task(self, described)
            yield task
            self._current = None

    def status(self) -> dict:
        """Counters of the queue; `reasons` lists tasks that are left out: number, path, first, end, reason."""
        return self._queue.status()


class Feed:
    """Iterable over batches that may be of several tasks: `Batch`, or arrays of record numbers for a queue over a number
    of records. A batch is done when the next one is asked for: push what belongs to it before. Leave the loop early, and
    `done` reports the last batch. Each record comes at least once, and each task is finished once."""

    def __init__(self, tasks: Tasks, final: Optional[Callable[[str], None]]) -> None:
        if tasks.has_finals and final is None:
            raise ValueError("the queue has final tasks; give `final`, which is called with the kind of each")
        self._batch, self._final, self._is_in_final = tasks.batch, final, False
        self._feed = tasks._queue.feed()

    def __iter__(self) -> Iterator[Union[Batch, np.ndarray]]:
        self.done()
        while (found := self._feed.next_batch(self._batch)) is not None:
            kind, rows, records = found
            if kind is not None:
                self._is_in_final = True  # until it has succeeded; else it comes again
                self._final(kind)
                self._is_in_final = False
            elif rows is not None:
                yield Batch(*rows)
            elif records is not None:
                yield records
            self.done()

    def done(self) -> int:
        """Reports the last batch as done, if it is not. Returns the number of tasks that are finished by it. After a
        deadline it can be called again."""
        return 0 if self._is_in_final else self._feed.done()

    def status(self) -> dict:
        """As `Tasks.status`."""
        return self._feed.status()


def feed(tasks: Tasks, final: Optional[Callable[[str], None]] = None) -> Feed:
    """Makes a feed of tasks with `exactly_once=False`, which it takes over: batches of `batch` records go over the
    borders of tasks, and the next task is taken ahead of time. `final` is called with the kind of each final task."""
    return Feed(tasks, final)


def tasks(
    session: Session,
    data: Union[int, str, os.PathLike],
    name: str,
    task_size: int,
    format: Optional[str] = None,
    *,
    schema: Optional[str] = None,
    labels: str = "raw",
    positive: Optional[float] = None,
    bad_records: str = "fail",
    batch: int = 256,
    kind: str = "train",
    epochs: int = 1,
    strict_epochs: bool = False,
    seed: Optional[int] = None,
    record_seed: Optional[int] = None,
    finals: Sequence[str] = (),
    failures_max: int = 3,
    timeout: float = 300.0,
    exactly_once: bool = True,
    ticks: Optional[int] = None,
    allow_left_out: int = 0,
) -> Tasks:
    """Opens a queue of tasks over files, or over a number of records that the program reads itself (`data`): the coordinator hands them to the workers, and takes them back from those that
    are lost. All workers give the same arguments. `task_size` is in bytes of decompressed text, or in records of
    RecordIO in chunks.

    `seed` shuffles the tasks of each pass. `record_seed` shuffles single records of a number of records:
    `Task.record_numbers` has those of a task.

    With `exactly_once` servers hold what the session pushes for a task, and apply it when the task is done: all of it or
    nothing. Ticks, functions and deletions fail inside a task. Without it pushes take effect at once, and again with a
    task that is given again. `ticks` is the clock domain in which to tick after each task, for sessions with sync="bsp".
    `finals`: tasks without records at the end, "save" or "end". A task that fails `failures_max` times is left out; the
    end of the loop is an error if more than `allow_left_out` are.
    """
    reading = (format, schema, labels, positive, bad_records)
    queue = TaskQueue(
        session, int(data) if isinstance(data, numbers.Integral) else os.fspath(data), name, task_size, reading, kind=kind, epochs=epochs,
        strict_epochs=strict_epochs, seed=seed, record_seed=record_seed, finals=list(finals), failures_max=failures_max, timeout=timeout, exactly_once=exactly_once,
        ticks=ticks, allow_left_out=allow_left_out,
    )
    return Tasks(queue, batch, bool(finals))


def torch_tasks(tasks: Tasks, columns: Optional[int] = None) -> Any:
    """Makes a torch.utils.data.IterableDataset of tasks: use it with `DataLoader(..., batch_size=None)` and without
    processes of its own, since the session belongs to this one. A task is done when the batch after its last one is
    asked for: push what belongs to a batch before. Items are those of `torch_dataset`. Raises ImportError where PyTorch
    is not installed.
    """
    if tasks._queue.is_counted:
        raise ValueError("these tasks are of record numbers, without rows; use Task.record_numbers or feed")
    if tasks.has_finals:
        raise ValueError("the queue has final tasks, which a data set cannot carry out; use the tasks, or feed with `final`")
    from ._torch_data import TaskRows

    return TaskRows(tasks, columns)
