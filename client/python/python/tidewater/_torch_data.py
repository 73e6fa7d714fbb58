"""The class behind tidewater.data.torch_dataset: at the top of a module, so that processes of a loader can import it."""

from __future__ import annotations

from typing import Any, Iterator, Optional

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from .data import Batch, Reader


class Rows(IterableDataset):
    """Batches of a reader as tensors."""

    def __init__(self, reader: Reader, columns: Optional[int]) -> None:
        super().__init__()
        self.reader, self.columns = reader, columns

    def __iter__(self) -> Iterator[tuple]:
        info = get_worker_info()
        part = self.reader if info is None else self.reader.part(info.id, info.num_workers)
        for batch in part:
            yield torch.from_numpy(batch.labels), self._features(batch)

    def _features(self, batch: Batch) -> Any:
        if self.columns is not None:
            return torch.from_numpy(batch.dense(self.columns))
        width = int(batch.keys.max()) + 1 if batch.keys.size else 0
        parts = (batch.starts, batch.keys.astype(np.int64), batch.values)
        return torch.sparse_csr_tensor(*map(torch.from_numpy, parts), size=(len(batch.labels), width))
