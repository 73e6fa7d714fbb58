from types import TracebackType
from typing import Any, Literal, Optional, Protocol, Sequence, Tuple, Type, TypeVar, Union, overload

import numpy as np
import numpy.typing as npt

__version__: str
PARTITIONS_DEFAULT: int

_Keys = Union[npt.NDArray[np.uint64], npt.NDArray[np.int64], Sequence[int]]
class _Tensor(Protocol):
    """What speaks DLPack: a torch.Tensor, for one."""

    def __dlpack__(self, **options: Any) -> Any: ...
    def __dlpack_device__(self) -> Tuple[int, int]: ...

_Out = TypeVar("_Out", bound=Union[np.ndarray, _Tensor])
_Named = Union[str, Tuple[Union[str, float], ...]]

class Error(RuntimeError):
    """The cluster said no, or something in it is wrong.

    Arguments are ValueError or TypeError, deadlines TimeoutError, lost processes ConnectionError.
    """

class ForkedError(Error):
    """The process was forked after the session was opened."""

class Session:
    """One worker's session with the servers of a job.

    Without `coordinator`, of the job that the environment names, or of the processes that mpirun, srun or
    their like started with this one; what is given wins over the environment. Times are seconds. `sync` is "asp", "bsp" or "ssp:S"; `transport` "auto", "shm", "tcp" or "verbs". As a context
    manager it finishes at the end, or says that the worker failed, and closes.
    """

    def __init__(
        self,
        coordinator: Optional[str] = None,
        token_file: Optional[str] = None,
        *,
        rank: Optional[int] = None,
        workers: Optional[int] = None,
        namespace: Optional[str] = None,
        sync: str = "asp",
        transport: Optional[str] = None,
        timeout: Optional[float] = None,
        clock_timeout: Optional[float] = None,
        join_timeout: Optional[float] = None,
    ) -> None: ...
    @property
    def rank(self) -> int: ...
    @property
    def workers(self) -> int: ...
    @property
    def servers(self) -> int: ...
    @property
    def transport(self) -> Optional[str]: ...
    @property
    def clock(self) -> int:
        """Iterations that this worker has ended."""
    def global_clock(self) -> int:
        """Iterations that all have ended, as every server reports."""
    def table(
        self,
        name: str,
        kind: Literal["sparse", "rows", "ranges"],
        *,
        dtype: npt.DTypeLike,
        cols: int,
        rows: int = 0,
        optimizer: Optional[_Named] = None,
        init: Optional[_Named] = None,
        seed: int = 0,
        effect: Literal["immediate", "clock_sum", "clock_mean"] = "immediate",
        domain: int = 0,
        partitions: int = 0,
        block_bytes: int = 16384,
        snapshot: bool = False,
        allow_not_finite: bool = False,
        weight_decay: float = 0.0,
        clip_value: Optional[float] = None,
        clip_norm: Optional[float] = None,
        initial_accumulator: float = 0.0,
        by_staleness: bool = False,
    ) -> Table:
        """Creates a table, or opens the equal one of that name.

        `optimizer` is "none", ("sgd", lr), ("momentum", lr, mu), ("nesterov", lr, mu), ("adagrad", lr, eps),
        ("row_adagrad", lr, eps), ("rmsprop", lr, decay, eps), ("adam", lr, beta1, beta2, eps),
        ("amsgrad", lr, beta1, beta2, eps), ("adamw", lr, beta1, beta2, eps, weight_decay) or
        ("ftrl", alpha, beta, l1, l2); `init` "zeros", ("constant", x), ("uniform", low, high) or
        ("normal", mean, std). `weight_decay` adds an L2 penalty to each gradient; `clip_value` bounds its
        elements, `clip_norm` the norm of a row. `by_staleness` divides the rate of a gradient by the ticks
        that the fastest worker is ahead. 0 `partitions`: their number is chosen from the size of the table
        and the servers; `Table.partitions` has it.
        """
    def open_table(self, name: str, dtype: npt.DTypeLike) -> Table:
        """Opens a table that exists and holds `dtype`."""
    def update(
        self,
        target: Table,
        expression: str,
        *,
        inputs: Sequence[Table] = (),
        parameters: Sequence[float] = (),
        range: Union[None, range, Tuple[int, int]] = None,
    ) -> Ticket:
        """Sets each element of `target` to the value of an expression, such as "p0 * x + y", on the servers.

        `x`, `y` and `z` are the elements of up to three `inputs` at the same place, `p0` to `p15` the
        `parameters`, `index` the element's index, row-major (in sparse tables, its column). Without inputs, `x`
        is the target. Inputs have the target's dtype, shape, block size and partitions; a sparse table is only
        combined with itself. `range` limits the call to elements of kind "ranges", or rows of kind "rows".

        Ordered like a push and applied exactly once. A piece of at most 256 KiB changes completely or not at all.
        ValueError with the byte of a wrong expression, for missing parameters, unlike inputs, a range outside the
        table, or a table that takes effect at ticks.
        """
    def reduce(
        self,
        target: Table,
        expression: str,
        reduction: Literal["sum", "min", "max", "and"] = "sum",
        *,
        inputs: Sequence[Table] = (),
        parameters: Sequence[float] = (),
        range: Union[None, range, Tuple[int, int]] = None,
    ) -> Union[None, float, int]:
        """Combines the values of an expression for all elements of `target`, on the servers.

        A float for float tables, an exact int for integer tables and "and", None for "min" and "max" of no
        element. Floats are summed in float64 with compensation: the same bits on any number of servers. The
        other arguments and errors are those of `update`.
        """
    def call_update(
        self,
        target: Table,
        name: str,
        arguments: Optional[bytes] = None,
        *,
        inputs: Sequence[Table] = (),
        parameters: Sequence[float] = (),
        range: Union[None, range, Tuple[int, int]] = None,
    ) -> Ticket:
        """Runs an update function that the servers' program registered under `name`. Error of the ticket when
        the servers have no such function, or it refuses.
        """
    def call_reduce(
        self,
        target: Table,
        name: str,
        arguments: Optional[bytes] = None,
        *,
        inputs: Sequence[Table] = (),
        parameters: Sequence[float] = (),
        range: Union[None, range, Tuple[int, int]] = None,
    ) -> list[bytes]:
        """Runs a reducing function that the servers' program registered under `name`: the results of all pieces,
        in the order of their elements. Error when the servers have no such function, or it refuses.
        """
    def tick(self, domain: int = 0) -> None:
        """Ends an iteration; under bsp and ssp it waits for slower workers and for the answers to all pushes.

        Error when a push was refused that was not waited for: the clock has not moved, and the push can be
        repaired. After that, and after TimeoutError, it can be repeated.
        """
    def barrier(self, name: str, timeout: Optional[float] = None) -> None:
        """Waits like `flush`, then until all workers have come here."""
    def flush(self) -> None:
        """Waits until everything that was pushed is applied. Error when a push was refused that was not
        waited for: the earliest, one push a call."""
    def progress(self) -> None:
        """Takes in what has arrived and sends what is left; never waits for an answer."""
    def save(self, directory: str, timeout: Optional[float] = None) -> Tuple[int, int]:
        """Saves all tables, on one worker between barriers; rows and bytes written."""
    def load(self, directory: str, timeout: Optional[float] = None) -> list[str]:
        """Loads a saved model's tables; their names, to be opened."""
    def counters(self) -> dict[str, int]:
        """What the session did so far: which path really ran."""
    def finish(self) -> None:
        """This worker is done, and no worker waits for it any more."""
    def fail(self, reason: str) -> None:
        """This worker cannot go on: the job ends and names the reason."""
    def close(self) -> None:
        """Gives connections and memory back. What was pushed stays pushed."""
    @property
    def closed(self) -> bool:
        """Whether the session was closed, by close() or the end of a `with`."""
    def __enter__(self) -> Session: ...
    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        value: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> bool: ...

class Table:
    """A table of a session. Arrays are numpy's, or tensors that have `__dlpack__`; C-contiguous, on the CPU,
    of the table's dtype.
    """

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> Literal["sparse", "rows", "ranges"]: ...
    @property
    def cols(self) -> int: ...
    @property
    def rows(self) -> Optional[int]: ...
    @property
    def partitions(self) -> int: ...
    @property
    def dtype(self) -> np.dtype: ...
    @property
    def session(self) -> Session: ...
    @overload
    def pull(
        self,
        keys: Optional[_Keys] = None,
        out: None = None,
        *,
        first: int = 0,
        mode: Literal["consistent", "hogwild", "snapshot", "gather"] = "consistent",
        missing: Literal["create", "initial"] = "create",
        timeout: Optional[float] = None,
    ) -> np.ndarray: ...
    @overload
    def pull(
        self,
        keys: Optional[_Keys] = None,
        *,
        out: _Out,
        first: int = 0,
        mode: Literal["consistent", "hogwild", "snapshot", "gather"] = "consistent",
        missing: Literal["create", "initial"] = "create",
        timeout: Optional[float] = None,
    ) -> _Out:
        """Pulls rows by `keys` into `out`, of shape (len(keys), cols); of a table by ranges, as many
        elements as `out` has, from `first` on. Writes where the array is, and returns it; without
        `out`, a new one.
        """
    def push(
        self,
        values: Union[np.ndarray, _Tensor],
        keys: Optional[_Keys] = None,
        *,
        first: int = 0,
        op: Literal["sum", "assign", "gradient"] = "sum",
        weight: float = 1.0,
        encoding: Literal["exact", "bf16", "f16", "int8"] = "exact",
        block: int = 64,
    ) -> Ticket:
        """Pushes rows of shape (len(keys), cols), or elements from `first` on. Reads where the array is;
        it may be changed as soon as this returns.

        `weight` multiplies the learning rate of a gradient, and a sum; at the tick a mean is weighted by it.
        `encoding` rounds the values on their way; what it leaves out of a push is added to the next one of
        these elements. "int8" has one scale for each `block` elements.
        """
    def set_optimizer(self, optimizer: _Named) -> Ticket:
        """Sets the numbers of the table's rule: ("sgd", 0.01) of a table of "sgd". ValueError for another rule.

        The change stands between the pushes of this session; on a table of ticks it takes effect with the tick
        that ends the iteration, on every server.
        """
    def release(self) -> None:
        """Releases the table for everybody."""

class Ticket:
    """A push under way. Without waiting for it, a push that is refused is an error of the next
    `flush`, `tick`, `barrier` or `finish`."""

    def wait(self, timeout: Optional[float] = None) -> None:
        """Waits until the push is applied: pulls that start afterwards see it."""
    def done(self) -> bool:
        """Whether it is applied."""

class Walltime:
    """Ends a run before its batch system does: all workers at one step, with the model saved.

    From here on, while this or another one lives, SIGTERM and SIGUSR1 are noted and do not end the process; a
    handler of the program is called too. All workers make one, before their first step, and wait for each
    other. `every`: steps (ticks of domain 0) between two looks, the same on all workers.
    """

    def __init__(self, session: Session, every: int = 1) -> None: ...
    def over(self) -> bool:
        """At the start of each step, on all workers: whether the run ends here; with bsp and ssp at the same
        step for all, at most three looks after the signal.
        """
    def end(self) -> Optional[int]:
        """After the last step, on all workers, which wait for each other: the number of the signal for which
        the run ended, or None. Then save, and `sys.exit(128 + signal)`.
        """
