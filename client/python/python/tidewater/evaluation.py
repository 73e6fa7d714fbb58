"""Cost and gradient of a problem with data that all workers share, for solvers such as scipy's.

    space = tidewater.VectorSpace(session, "fit", dim)
    evaluation = tidewater.Evaluation(space, part)       # part(w) -> cost and gradient of this worker's data
    if session.rank > 0:
        evaluation.serve()                               # evaluates parts until rank 0 has finished
    else:
        found = scipy.optimize.minimize(evaluation.evaluate, np.zeros(dim), jac=True, method="L-BFGS-B")
        evaluation.finish()

The tables and their contents are those of Evaluation in Rust: `NAME/calls` has number, slot and generation of the vector
to evaluate; `NAME/done` the last call that each rank has answered; `NAME/costs` and `NAME/gradient/DIM/RANK` the results.
Rank 0 sums in rank order: the result has the same bits in each run and on any number of servers.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any, Callable, List, Optional, Tuple, Union

import numpy as np
import numpy.typing as npt

from ._tidewater import Error, Table
from .vector import Vector, VectorSpace

# Polls of a table between sleeps, and the sleep.
_POLLS, _SLEEP_S = 100, 50e-6
# Time between two checks of whether the job has ended.
_CHECK_S = 0.5
# Longest time until all workers have made their end.
_MEETING_S = 600.0
_FAILED = 1
# Slot of the call that ends the service.
_END = -1


class Evaluation:
    """A problem's evaluation by all workers of a job: each makes one, rank 0 evaluates, the others serve.

    `part(weights)` returns the cost of this worker's data and its gradient, an array of `space.dim` elements. It
    must not change `weights`. `timeout`: seconds that rank 0 waits for the parts of one evaluation.
    """

    def __init__(
        self,
        space: VectorSpace,
        part: Callable[[np.ndarray], Tuple[float, npt.ArrayLike]],
        *,
        timeout: float = 1800.0,
    ) -> None:
        session, name = space.session, space.name
        workers = session.workers
        self._space, self._session, self._part, self._timeout = space, session, part, timeout
        self._rank = session.rank
        self._ranks = np.arange(workers, dtype=np.uint64)

        def rows(of: str, rows: int) -> Table:
            return session.table(f"{name}/{of}", "rows", dtype=np.int64, rows=rows, cols=3, partitions=1)

        self._calls, self._done = rows("calls", 1), rows("done", workers)
        self._costs = session.table(
            f"{name}/costs",
            "rows",
            dtype=np.float64,
            rows=workers,
            cols=1,
            optimizer="none",
            allow_not_finite=True,
            partitions=1,
        )
        self._gradients = [space._table(f"gradient/{space.dim}/{rank}") for rank in range(workers)]
        # Numbers go on from an earlier use of the names. The row of calls is stable between the barriers: the
        # earlier use ended at every worker before the first; rank 0 calls after the second.
        session.barrier(f"{name}/evaluation", _MEETING_S)
        self._number = self._base = int(self._calls.pull([0])[0, 0])
        session.barrier(f"{name}/evaluation", _MEETING_S)
        self._finished = False
        self._evaluations = 0

    @property
    def evaluations(self) -> int:
        """Number of evaluations so far: passes over the data."""
        return self._evaluations

    def evaluate(self, weights: Union[npt.ArrayLike, Vector]) -> Tuple[float, Any]:
        """Cost and gradient at `weights`, summed over all workers; rank 0 calls it.

        The gradient of an array is an array, that of a Vector of the space a Vector. ValueError on another rank,
        after `finish`, or for a vector of another space; tidewater.Error, with its rank, when the part of another
        worker fails; TimeoutError with the ranks that have not answered. An exception of `part` here passes on.
        """
        if self._finished:
            raise ValueError(f'the evaluation of "{self._space.name}" is finished; make another')
        if self._rank != 0:
            raise ValueError(f"this is rank {self._rank}; rank 0 evaluates and the others serve")
        is_vector = isinstance(weights, Vector)
        if is_vector and weights.space is not self._space:
            raise ValueError(
                f'the vector is of the space "{weights.space.name}", which the other workers do not see; use one of '
                f'"{self._space.name}"'
            )
        point = weights if is_vector else self._space.from_array(weights)
        self._evaluations += 1
        self._number += 1
        # The elements are complete before the others see the number.
        self._session.flush()
        self._call(*point.id)
        self._answer(point.table, self._number)
        failed = self._wait_for(range(len(self._gradients)))
        if failed is not None:
            raise Error(f"the evaluation failed at worker {failed}; its own error says why")
        cost = float(sum(self._costs.pull(self._ranks)[:, 0].tolist()))
        total = self._space.zeros()
        self._session.update(total.table, "x", inputs=self._gradients[:1])
        for other in self._gradients[1:]:
            self._session.update(total.table, "x + y", inputs=[total.table, other])
        # Workers overwrite their gradients at the next call.
        self._session.flush()
        return cost, total if is_vector else total.pull()

    def serve(self) -> None:
        """Evaluates parts for rank 0 until it finishes; the other ranks call it.

        If `part` raises, rank 0 gets an error that names this worker, and the exception passes on. Raises
        ConnectionError at the end of the job.
        """
        if self._rank == 0:
            raise ValueError("this is rank 0, which evaluates; the others serve")
        while True:
            slot = self._next_call()
            if slot == _END:
                return self._report(self._number, 0)
            try:
                table = self._session.open_table(f"{self._space.name}/{slot}", self._space.dtype)
                self._answer(table, self._number)
            except BaseException:
                # Rank 0 learns of it by the row. This exception matters more than one of the report.
                with contextlib.suppress(Error, ConnectionError, TimeoutError):
                    self._report(self._number, _FAILED)
                raise

    def finish(self) -> None:
        """Ends the service of the other workers, and waits until they have left it; rank 0 calls it."""
        if self._finished:
            return
        self._finished = True
        self._number += 1
        self._call(_END, 0)
        # A worker that failed has left its service already.
        self._wait_for(range(1, len(self._gradients)))

    def _call(self, slot: int, generation: int) -> None:
        row = np.array([[self._number, slot, generation]], dtype=np.int64)
        self._calls.push(row, [0], op="assign").wait()

    def _report(self, number: int, failed: int) -> None:
        row = np.array([[number, failed, 0]], dtype=np.int64)
        self._done.push(row, [self._rank], op="assign").wait()

    def _answer(self, weights: Table, number: int) -> None:
        """Evaluates this worker's part, and publishes gradient, cost and number."""
        cost, gradient = self._part(weights.pull().ravel())
        tickets = [
            self._gradients[self._rank].push(self._space._elements(gradient), op="assign"),
            self._costs.push(np.array([[cost]], dtype=np.float64), [self._rank], op="assign"),
        ]
        # The number says that the others can be read.
        for ticket in tickets:
            ticket.wait()
        self._report(number, 0)

    def _next_call(self) -> int:
        """Waits for a call with a new number; returns its slot. The end of the job ends the wait."""
        call: List[int] = []

        def is_new() -> bool:
            call[:] = self._calls.pull([0])[0].tolist()
            return call[0] != self._number

        self._poll(is_new, None)
        self._number = call[0]
        return call[1]

    def _wait_for(self, ranks: range) -> Optional[int]:
        """Waits until `ranks` have answered the last call, or a worker has failed; returns the rank of that one."""
        failed: List[int] = []

        def is_answered() -> bool:
            done = self._done.pull(self._ranks).tolist()
            failed[:] = [r for r, row in enumerate(done) if row[1] == _FAILED and row[0] > self._base]
            return bool(failed) or all(done[rank][0] == self._number for rank in ranks)

        self._poll(is_answered, time.monotonic() + self._timeout)
        return failed[0] if failed else None

    def _poll(self, is_ready: Callable[[], bool], deadline: Optional[float]) -> None:
        polls, check = 0, time.monotonic() + _CHECK_S
        while not is_ready():
            polls += 1
            if polls % _POLLS == 0:
                self._session.progress()
                time.sleep(_SLEEP_S)
            now = time.monotonic()
            if now < check:
                continue
            check = now + _CHECK_S
            self._session._check_job()
            if deadline is not None and now >= deadline:
                done = self._done.pull(self._ranks)[:, 0].tolist()
                late = ", ".join(str(rank) for rank, number in enumerate(done) if number != self._number)
                raise TimeoutError(f"evaluate has waited {self._timeout} s for an answer of worker {late}")
