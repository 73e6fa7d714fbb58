"""The class behind tidewater.data.torch_dataset: at the top of a module, so that processes of a loader can import it."""

from __future__ import annotations

from typing import Any, Iterator, Optional

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from .data import Batch, Reader, Tasks


class Rows(IterableDataset):
    """Batches of a reader as tensors."""

    def __init__(self, reader: Reader, columns: Optional[int]) -> None:
        super().__init__()
        self.reader, self.columns = reader, columns

    def __iter__(self) -> Iterator[tuple]:
        info = get_worker_info()
        part = self.reader if info is None else self.reader.part(info.id, info.num_workers)
        for batch in part:
            yield _tensors(batch, self.columns)


class TaskRows(IterableDataset):
    """Batches of tasks as tensors. A task is done when its last batch has been used."""

    def __init__(self, tasks: Tasks, columns: Optional[int]) -> None:
        super().__init__()
        self.tasks, self.columns = tasks, columns

    def __iter__(self) -> Iterator[tuple]:
        if get_worker_info() is not None:
            raise RuntimeError("tasks are of this process's session; use DataLoader(..., num_workers=0)")
        for task in self.tasks:
            for batch in task:
                yield _tensors(batch, self.columns)
            task.done()


def _tensors(batch: Batch, columns: Optional[int]) -> tuple:
    labels = torch.from_numpy(batch.labels)
    if columns is not None:
        return labels, torch.from_numpy(batch.dense(columns))
    width = int(batch.keys.max()) + 1 if batch.keys.size else 0
    parts = (batch.starts, batch.keys.astype(np.int64), batch.values)
    return labels, torch.sparse_csr_tensor(*map(torch.from_numpy, parts), size=(len(batch.labels), width))
