"""Metrics of a program's own, by epoch: each worker adds values, and all workers get those of all.

    from tidewater.metrics import EpochMetrics
    metrics = EpochMetrics(loss="mean", records="sum", largest_step="max")
    for batch in batches:
        metrics.add("loss", loss, weight=len(batch))      # the mean over all rows of all workers
        metrics.add("records", len(batch))
    line = metrics.merge(session, epoch)                  # a dict, the same at every worker
    if session.rank == 0:
        print(json.dumps(line))

`line` is {"event": "metrics", "epoch": 1, "workers": 4, "metrics": {"loss": 0.31, ...}}; a metric without values is None.
"""

import dataclasses
import math
import zlib
from typing import Any, Callable, Optional, Sequence, Union

import numpy as np

__all__ = ["EpochMetrics", "Metric"]


@dataclasses.dataclass(frozen=True)
class Metric:
    """A metric of the program's own: `initial` numbers as its state, `merge(state, other)` that returns the merged state,
    and `calculate(state)` that returns the value or None. `initial` must be neutral, as 0 is for a sum and 1 for a product:
    it is merged once for each worker."""

    initial: Sequence[float]
    merge: Callable[[np.ndarray, np.ndarray], np.ndarray]
    calculate: Callable[[np.ndarray], Optional[float]]


def _finite(state: np.ndarray) -> Optional[float]:
    return float(state[0]) if np.isfinite(state[0]) else None


_KINDS = {
    "sum": Metric([0.0], np.add, lambda state: float(state[0])),
    "mean": Metric([0.0, 0.0], np.add, lambda state: float(state[0] / state[1]) if state[1] > 0 else None),
    "min": Metric([math.inf], np.minimum, _finite),
    "max": Metric([-math.inf], np.maximum, _finite),
}


class EpochMetrics:
    """Metrics by name: "sum", "mean" (by weights), "min", "max" or a `Metric`. Every worker defines the same ones in the
    same order."""

    def __init__(self, **kinds: Union[str, Metric]) -> None:
        if not kinds:
            raise ValueError("name at least one metric, for example EpochMetrics(loss='mean')")
        unknown = [f"{name}={kind!r}" for name, kind in kinds.items() if not isinstance(kind, Metric) and kind not in _KINDS]
        if unknown:
            raise ValueError(f"{', '.join(unknown)}: a metric is one of {', '.join(_KINDS)}, or a Metric")
        self._kinds = kinds
        self._metrics = {name: kind if isinstance(kind, Metric) else _KINDS[kind] for name, kind in kinds.items()}
        self._states = self._initial()

    def _initial(self) -> dict:
        return {name: np.array(metric.initial, dtype=np.float64) for name, metric in self._metrics.items()}

    def add(self, name: str, value: Any, weight: Optional[float] = None) -> None:
        """Adds a value, with a weight to a mean (1 without); or a state to a `Metric`. A value that is not finite or a
        negative weight is a ValueError, and changes nothing."""
        if name not in self._metrics:
            raise KeyError(f"no metric is named {name!r}; there are {', '.join(self._metrics)}")
        kind = self._kinds[name]
        if weight is not None and kind != "mean":
            raise ValueError(f"metric {name!r} takes no weight: only a mean does")
        if isinstance(kind, Metric):
            part = np.asarray(value, dtype=np.float64)
        else:
            number, factor = float(value), 1.0 if weight is None else float(weight)
            if factor < 0:
                raise ValueError(f"metric {name!r} has weight {factor}; weights are at least 0")
            part = np.array([number * factor, factor] if kind == "mean" else [number])
        state = self._states[name]
        if part.shape != state.shape:
            raise ValueError(f"metric {name!r} takes states of {state.size} numbers, not {part.size}")
        if not np.isfinite(part).all():
            raise ValueError(f"metric {name!r} cannot take {value!r}: not finite; the training may have diverged")
        self._states[name] = np.asarray(self._metrics[name].merge(state, part), dtype=np.float64)

    def merge(self, session: Any, epoch: int) -> dict:
        """The metrics of all workers, folded in the order of ranks; the next epoch begins with none. All workers call it,
        as `session.all_gather`. After an error the values are kept."""
        kinds = [(name, kind if isinstance(kind, str) else len(kind.initial)) for name, kind in self._kinds.items()]
        mine = np.concatenate([[float(zlib.crc32(repr(kinds).encode()))], *self._states.values()])
        rows = np.asarray(session.all_gather(mine)).reshape(-1, mine.size)
        for rank, row in zip(session.collective_ranks, rows):
            if row[0] != mine[0]:
                raise ValueError(f"worker {rank} has other metrics than this one; define the same ones in the same order")
        merged = self._initial()
        for row in rows:
            at = 1
            for name, metric in self._metrics.items():
                part = row[at : at + merged[name].size]
                merged[name] = np.asarray(metric.merge(merged[name], part), dtype=np.float64)
                at += part.size
        values = {name: metric.calculate(merged[name]) for name, metric in self._metrics.items()}
        self._states = self._initial()
        return {"event": "metrics", "epoch": epoch, "workers": len(rows), "metrics": values}
