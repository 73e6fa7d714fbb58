from types import TracebackType
from typing import Any, Iterator, List, Literal, Optional, Protocol, Sequence, Tuple, Type, TypeVar, Union, overload

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

def local(
    servers: int = 1,
    *,
    appliers: int = 1,
    capacity: Optional[int] = None,
    sync: str = "asp",
    transport: Optional[str] = None,
    timeout: Optional[float] = None,
    clock_timeout: Optional[float] = None,
) -> Session:
    """A cluster on threads of this process, and the session of its only worker. The end of the session, also by an
    exception, ends the cluster; its tables are gone unless saved. `appliers` threads and `capacity` bytes are those
    of each server. An Error in a process that belongs to a job, or that a launcher started with others.
    """

def begin(
    comm: Any,
    servers: int = 0,
    *,
    sync: str = "asp",
    transport: Optional[str] = None,
    timeout: Optional[float] = None,
    clock_timeout: Optional[float] = None,
    join_timeout: Optional[float] = None,
    ring_bytes: Optional[int] = None,
    memory_budget: Optional[int] = None,
    rdma_device: Optional[str] = None,
    rdma_timeout: Optional[int] = None,
    rdma_retries: Optional[int] = None,
    rdma_traffic_class: Optional[int] = None,
    rdma_service_level: Optional[int] = None,
    rdma_pkey: Union[int, str, None] = None,
    rdma_gid_index: Optional[int] = None,
    rdma_static_rate: Union[float, str, None] = None,
    rdma_flow_label: Optional[int] = None,
    rdma_ece: Optional[bool] = None,
) -> Session:
    """A job of the processes of an mpi4py communicator, which all call this: each is the worker of its rank, and
    `servers` of them, spread evenly, serve too, on threads; 0: all. It needs no variable and no file. The end of the
    session waits for the workers of all processes. Any object with Get_rank, Get_size and bcast will do.
    """

class Session:
    """One worker's session with the servers of a job.

    Without `coordinator`, of the job that the environment names, or of the processes that mpirun, srun or
    their like started with this one; what is given wins over the environment. Times are seconds. `sync` is "asp", "bsp" or "ssp:S"; `transport` "auto", "shm", "tcp" or "verbs". As a context
    manager it finishes at the end, or says that the worker failed, and closes. An `observer` only reads: it joins
    a running job at any time, has no rank, and no worker waits for it. `rdma_*` are the settings of queue pairs, as the
    flags of `tidewater run`; one out of its range is a ValueError that names the range.
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
        observer: bool = False,
        ring_bytes: Optional[int] = None,
        memory_budget: Optional[int] = None,
        rdma_device: Optional[str] = None,
        rdma_timeout: Optional[int] = None,
        rdma_retries: Optional[int] = None,
        rdma_traffic_class: Optional[int] = None,
        rdma_service_level: Optional[int] = None,
        rdma_pkey: Union[int, str, None] = None,
        rdma_gid_index: Optional[int] = None,
        rdma_static_rate: Union[float, str, None] = None,
        rdma_flow_label: Optional[int] = None,
        rdma_ece: Optional[bool] = None,
    ) -> None: ...
    @property
    def rank(self) -> int: ...
    @property
    def thread(self) -> int:
        """Number of the session's thread in its worker: 0 for the first session, more for siblings."""
    def sibling(self) -> "Session":
        """A session for a further thread of this worker. It ticks by itself; finish it before this one."""
    @property
    def workers(self) -> int: ...
    @property
    def servers(self) -> int: ...
    @property
    def server_appliers(self) -> List[int]:
        """Appliers of each server, by server number."""
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
        kind: Literal["sparse", "rows", "range"],
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
        redo: bool = False,
        versions: int = 2,
        expire_after: int = 0,
        admit_after: int = 0,
        durability: Literal["none", "warm"] = "none",
        partition_servers: Optional[Sequence[int]] = None,
        partition_starts: Optional[Sequence[int]] = None,
    ) -> Table:
        """Creates a table, or opens the equal one of that name.

        `optimizer` is "none", ("sgd", lr), ("momentum", lr, mu), ("nesterov", lr, mu), ("adagrad", lr, eps),
        ("row_adagrad", lr, eps), ("rmsprop", lr, decay, eps), ("adam", lr, beta1, beta2, eps),
        ("amsgrad", lr, beta1, beta2, eps), ("adamw", lr, beta1, beta2, eps, weight_decay),
        ("adadelta", lr, rho, eps), ("proximal_sgd", lr, l1), ("proximal_adagrad", lr, eps, l1) or
        ("ftrl", alpha, beta, l1, l2); `init` "zeros", ("constant", x), ("uniform", low, high),
        ("normal", mean, std), ("xavier_uniform", inputs, outputs), ("xavier_normal", inputs, outputs),
        ("kaiming_uniform", inputs) or ("kaiming_normal", inputs). `weight_decay` adds an L2 penalty to each gradient; `clip_value` bounds its
        elements, `clip_norm` the norm of a row. `by_staleness` divides the rate of a gradient by the ticks
        that the fastest worker is ahead. A table with `snapshot` has memory for 2 to 16 `versions`, that which is
        being built included; all but two can be pinned. A row of a "sparse" table is deleted `expire_after`
        ticks after its last push; `admit_after` is the push of a key that makes its row, those before are
        dropped. 0 `partitions`: their number is chosen from the size of the table and the servers;
        `Table.partitions` has it. `redo` makes appliers write each result into a redo record first, for
        measurements. A table with `durability` "warm" outlives a server process where a holder
        keeps the memory; other servers refuse it. `partition_servers[p]` is the server that owns partition p, from 0;
        its length is the number of partitions. Without it, partitions go to all servers in turn.
        `partition_starts[p]` is the first row of partition p of a table of "rows", or its first element of a "range", a
        multiple of the elements of a block, ascending from 0. Without it, partitions are near-equal. An empty list,
        another length than `partitions`, a server that is not there or a start out of place is an error, and no table
        is made.
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
        combined with itself. `range` limits the call to elements of kind "range", or rows of kind "rows".

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
    def load_function(self, name: str, module: bytes) -> None:
        """Makes a function of a WebAssembly module on all servers, for all sessions of this job, until it ends.
        `call_update` and `call_reduce` run it by its name. All workers may load the same module.

        `ValueError` for a name or a module over the limits, `tidewater.Error` where the servers load no functions
        (`--load-functions`), the module is not valid, or the name is taken. Returns when every server has it.
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
    def domain_sync(self, domain: int, sync: str) -> None:
        """Sets the synchronisation of a clock domain ("bsp", "asp", "ssp:S") for this session, in place of its
        own. Let all workers set the same before their first tick of the domain."""
    def barrier(self, name: str, timeout: Optional[float] = None) -> None:
        """Waits like `flush`, then until all workers have come here."""
    def pull_group(
        self, tables: Sequence[Table], timeout: Optional[float] = None
    ) -> Tuple[list[np.ndarray], Optional[int]]:
        """Pulls all of several range tables as of one version: the newest that all servers still have. The arrays
        and the version. The tables have snapshots and one clock domain.
        """
    def flush(self) -> None:
        """Waits until everything that was pushed is applied. Error when a push was refused that was not
        waited for: the earliest, one push a call."""
    def progress(self) -> None:
        """Takes in what has arrived and sends what is left; never waits for an answer."""
    def batch_pushes(self, frames: int) -> None:
        """Lets up to so many frames of pushes of rows leave for an applier together."""
    def save(self, directory: str, timeout: Optional[float] = None) -> Tuple[int, int]:
        """Saves all tables, on one worker between barriers; rows and bytes written."""
    def load(self, directory: str, timeout: Optional[float] = None) -> list[str]:
        """Loads a saved model's tables; their names, to be opened."""
    def start_barrier(self, name: str, timeout: Optional[float] = None) -> Call:
        """Arrives at a barrier like `barrier`; `finish` of the result waits for the other workers."""
    def start_save(self, directory: str, timeout: Optional[float] = None) -> Call:
        """Begins a save; pulls and pushes may follow at once. Under bsp and ssp a `tick` fails until it is over.
        `finish` of the result returns rows and bytes written."""
    def start_load(self, directory: str, timeout: Optional[float] = None) -> Call:
        """Begins a load; `finish` of the result returns the names of its tables."""
    def all_gather(self, values: np.ndarray) -> np.ndarray:
        """Values of all workers, in rank order: a new array of shape (workers, *values.shape).

        A collective call: all workers make it, with the same dtype and as many elements, up to 1 MiB each. No
        clock moves. What a worker waited for before is visible to all after it. TypeError or ValueError for an
        array that no table could hold; tidewater.Error at every worker when calls or lengths differ, or a worker
        has left, with the ranks.
        """
    @property
    def collective_ranks(self) -> list[int]:
        """Ranks of the workers of the last collective call, ascending: the first axis of `all_gather`. In a job of
        open size they are its members at the call."""
    def all_reduce(
        self,
        values: np.ndarray,
        op: Literal["sum", "min", "max", "product", "bit_and", "bit_or", "bit_xor"] = "sum",
    ) -> np.ndarray:
        """Replaces `values` by their reduction over all workers, element by element in rank order: the same bits
        at every worker. Returns `values`. Operations on bits are of integers. Otherwise like `all_gather`; after an exception they hold anything.
        """
    def broadcast(self, values: np.ndarray, root: int = 0) -> np.ndarray:
        """Replaces `values` by those of worker `root`. Returns `values`. Otherwise like `all_gather`; after an
        exception they hold anything.
        """
    def _check_job(self) -> None: ...
    def counters(self) -> dict[str, int]:
        """What the session did so far: which path really ran."""
    def finish(self) -> None:
        """This worker is done, and no worker waits for it any more."""
    def fail(self, reason: str) -> None:
        """This worker cannot go on: the job ends and names the reason."""
    def close(self) -> None:
        """Gives connections and memory back. What was pushed stays pushed. Servers in this process end at once."""
    def leave(self) -> None:
        """Finishes and closes, and waits for the workers of other processes if servers are in this one."""
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
    def kind(self) -> Literal["sparse", "rows", "range"]: ...
    @property
    def cols(self) -> int: ...
    @property
    def rows(self) -> Optional[int]: ...
    @property
    def partitions(self) -> int: ...
    @property
    def partition_servers(self) -> List[int]:
        """Number of the server that owns each partition."""
    @property
    def partition_starts(self) -> Optional[List[int]]:
        """First row ("rows") or element ("range") of each partition; None of a "sparse" table."""
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
    def pull_with_versions(
        self,
        keys: Optional[_Keys] = None,
        out: Union[np.ndarray, _Tensor, None] = None,
        *,
        first: int = 0,
        mode: Literal["consistent", "hogwild", "snapshot", "gather"] = "consistent",
        missing: Literal["create", "initial"] = "create",
        timeout: Optional[float] = None,
    ) -> Tuple[Union[np.ndarray, _Tensor], Pulled]:
        """Pulls like `pull`; the array and the versions of its elements, as far as they are known."""
    def start_pull(
        self,
        keys: Optional[_Keys] = None,
        *,
        first: int = 0,
        count: Optional[int] = None,
        mode: Literal["consistent", "hogwild", "snapshot", "gather"] = "consistent",
        missing: Literal["create", "initial"] = "create",
        timeout: Optional[float] = None,
    ) -> Pull:
        """Starts a pull of rows by `keys`, or of `count` elements from `first` on (all that follow). Its reads, of ranges
        up to 16 MiB, travel while the program goes on; the rest is read by `finish`. Up to 256 may be under way.
        """
    def pin(self, version: Optional[int] = None) -> int:
        """Pins a version of a table with snapshots, or its newest one; its number. `pull_pinned` reads it until
        `unpin`, or the end of the session, however slow this process is. No tick waits for it. Error with the
        versions that are kept, or when as many are pinned as can be."""
    def unpin(self, version: int) -> None:
        """Ends a pin of this session. A version that was pinned twice is unpinned twice."""
    def pull_pinned(
        self,
        version: int,
        out: Union[np.ndarray, _Tensor, None] = None,
        *,
        first: int = 0,
        timeout: Optional[float] = None,
    ) -> Union[np.ndarray, _Tensor]:
        """Pulls elements from `first` on of a pinned version into `out`; without `out`, all into a new array."""
    def wait_newer(self, version: int, timeout: Optional[float] = None) -> int:
        """Waits until a version newer than `version` is complete at all servers; the newest that is.

        The version of a table counts the ticks that all workers have completed in its clock domain. A pull that
        follows reads this version or a later one. For sessions that only read, too; it does not poll. TimeoutError
        names the table, the version and the ranks that have not ticked.
        """
    def wait_until(self, tick: int, timeout: Optional[float] = None) -> int:
        """Waits until version `tick`, or a newer one, is complete at all servers; the newest that is."""
    def push(
        self,
        values: Union[np.ndarray, _Tensor],
        keys: Optional[_Keys] = None,
        *,
        first: int = 0,
        op: Literal["sum", "assign", "gradient", "min", "max"] = "sum",
        weight: float = 1.0,
        encoding: Literal["exact", "bf16", "f16", "int8"] = "exact",
        block: int = 64,
    ) -> Ticket:
        """Pushes rows of shape (len(keys), cols), or elements from `first` on. Reads where the array is;
        it may be changed as soon as this returns.

        "min" and "max" keep the lesser or greater of value and element, on arrival; not for tables of ticks.
        `weight` multiplies the learning rate of a gradient, and a sum; at the tick a mean is weighted by it.
        `encoding` rounds the values on their way; what it leaves out of a push is added to the next one of
        these elements. "int8" has one scale for each `block` elements.
        """
    def set_optimizer(self, optimizer: _Named) -> Ticket:
        """Sets the numbers of the table's rule: ("sgd", 0.01) of a table of "sgd". ValueError for another rule.

        The change stands between the pushes of this session; on a table of ticks it takes effect with the tick
        that ends the iteration, on every server.
        """
    def schedule(self, schedule: Schedule, iteration: int) -> Ticket:
        """Sets the learning rate that `schedule` has in `iteration`, as `set_optimizer` does: before the pushes of
        the iteration, on one worker. After `Session.load` count the iterations of the whole training.
        """
    def delete(self, keys: _Keys) -> Ticket:
        """Deletes the rows of keys of a "sparse" table; keys without a row are left out.

        The deletion stands between the pushes of this session; on a table of ticks it takes effect with the tick,
        after the pushes before it. A pull of a deleted key returns initial values, or makes a new row.
        """
    def exists(self, keys: _Keys) -> npt.NDArray[np.bool_]:
        """Whether each key of a "sparse" table has a row. Creates nothing."""
    def count(self) -> int:
        """Number of stored keys of a "sparse" table, over all servers."""
    def scan(
        self, *, batch: int = 4096, rows: bool = False, partitions: Optional[Tuple[int, int]] = None
    ) -> Iterator[Any]:
        """Iterates over the stored keys of a "sparse" table: uint64 arrays of up to `batch` keys, in no order, or
        pairs of such an array and their `rows`. Workers share a scan by ranges of `partitions`.

        A key that is stored all the while comes once; one that is created or deleted meanwhile may come or not.
        """
    def release(self) -> None:
        """Releases the table for everybody."""

class Pull:
    """A pull that was started by `Table.start_pull`."""

    def test(self) -> bool:
        """Whether `finish` would return without waiting for reads that are under way."""
    @overload
    def finish(self, out: None = None) -> np.ndarray: ...
    @overload
    def finish(self, out: _Out) -> _Out:
        """Waits for the pull and writes it to `out`, rows of shape (len(keys), cols) or as many elements as were asked
        for; returns `out`, without it a new array. After an exception it may be repeated, with another array.
        """
    def cancel(self) -> None:
        """Gives the pull up."""

class PushBuffer:
    """Updates of a table's rows, merged by key before they are pushed together.

    For a program with many small updates: each is an addition in local memory, and one push carries the sum of
    all that name a row. The buffer is pushed when it has `rows_max` rows (default 16384) or `bytes_max` bytes (4 MiB),
    and by `flush`. Rows below `threshold` in magnitude stay in it. Its rows belong to the iteration in which they
    are pushed: flush it before the tick. No pull sees them before. Rows of a buffer that is dropped are lost.

    `op` is "sum", "gradient", "min" or "max"; an optimizer sees the sum of several gradients as one. With the weight
    1/n, sums of n workers are their average. ValueError for a table by ranges.
    """

    def __init__(
        self,
        table: Table,
        op: Literal["sum", "gradient", "min", "max"] = "sum",
        *,
        rows_max: Optional[int] = None,
        bytes_max: Optional[int] = None,
        threshold: float = 0.0,
        weight: float = 1.0,
    ) -> None: ...
    @property
    def table(self) -> Table: ...
    @property
    def rows(self) -> int:
        """Number of distinct rows in the buffer."""
    @property
    def bytes(self) -> int:
        """Bytes of the keys and values in the buffer."""
    def add(self, values: Union[np.ndarray, _Tensor], keys: _Keys) -> None:
        """Adds updates of shape (len(keys), cols). Pushes the buffer when it is full; then the refusal of an
        earlier push is an exception, and the updates are in the buffer.
        """
    def flush(self) -> Ticket:
        """Pushes the rows of at least the threshold. The ticket is of all pushes since the last flush. After an
        exception, the rows that were not passed on are still in the buffer: a repeated flush pushes each row once.
        """
    def flush_all(self) -> Ticket:
        """Pushes all rows, whatever their magnitude."""
    def clear(self) -> int:
        """Drops all rows; returns their number."""

class CachedTable:
    """Rows of a table that are pulled again only when they are older than the staleness allows.

    Under "ssp:S" a row stays in use for S iterations; under "bsp" a row is pulled once an iteration; under "asp" every
    call pulls. A row shows this worker's pushes up to its pull; `forget` makes the next call pull it. At most
    `rows` rows are kept: the one that was pulled first gives way. ValueError for a table by ranges.
    """

    def __init__(self, table: Table, rows: int) -> None: ...
    @property
    def table(self) -> Table: ...
    @property
    def hits(self) -> int:
        """Number of rows that calls took from the cache."""
    @property
    def misses(self) -> int:
        """Number of rows that calls had to pull."""
    @property
    def rows(self) -> int:
        """Number of rows in the cache, usable or not."""
    @overload
    def pull(
        self,
        keys: _Keys,
        out: None = None,
        *,
        mode: Literal["consistent", "hogwild", "gather"] = "consistent",
        missing: Literal["create", "initial"] = "create",
        timeout: Optional[float] = None,
    ) -> np.ndarray: ...
    @overload
    def pull(
        self,
        keys: _Keys,
        *,
        out: _Out,
        mode: Literal["consistent", "hogwild", "gather"] = "consistent",
        missing: Literal["create", "initial"] = "create",
        timeout: Optional[float] = None,
    ) -> _Out:
        """Pulls like `Table.pull`, rows of the cache without a read."""
    def push(self, values: Union[np.ndarray, _Tensor], keys: _Keys, *, weight: float = 1.0) -> Ticket:
        """Pushes values of shape (len(keys), cols), which the servers add up, and adds them, times the weight, to
        the rows of the cache: an estimate of these rows, which the next pull from the servers replaces.
        """
    def forget(self, keys: _Keys) -> None:
        """Drops rows, so that the next call pulls them."""

class Schedule:
    """Learning rate of each iteration, from 0: the same bits on every host. ValueError for a number out of range.

    `Table.schedule` sets the rate of a table. Rates are above 0.
    """

    @staticmethod
    def constant(rate: float) -> Schedule:
        """The same rate in every iteration."""
    @staticmethod
    def step(rate: float, factor: float, every: int) -> Schedule:
        """`rate * factor**k` in the k-th run of `every` iterations."""
    @staticmethod
    def inverse_sqrt(rate: float, warm_up: int) -> Schedule:
        """Grows linearly over `warm_up` iterations to `rate`, then falls as `rate * sqrt(warm_up / t)`."""
    @staticmethod
    def cosine(rate: float, last: float, iterations: int, warm_up: int = 0) -> Schedule:
        """Grows linearly over `warm_up` iterations to `rate`, then falls to `last` at `iterations` along half a
        cosine, and stays there.
        """
    def at(self, iteration: int) -> float:
        """Rate of an iteration."""

class Pulled:
    """Versions of the elements of a pull, None where they are not known."""

    @property
    def version(self) -> Optional[int]:
        """Ticks of the table's clock domain that are in all elements: of ranges of a table with snapshots."""
    @property
    def stores(self) -> Optional[Tuple[int, int]]:
        """Smallest and largest number of stores of the rows or blocks; a new one has 1. Not known of a table with
        snapshots, of what a server copied, and of ranges pulled with "hogwild"."""
class Call:
    """A save, load or barrier that was started."""

    def test(self) -> bool:
        """Whether it is done: `finish` then returns at once. Waits up to 1 ms."""
    def finish(self) -> object:
        """Waits until it is done, and returns what the call without `start_` returns. ValueError if it is finished."""

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
        the run ended, or None. Then save, and `sys.exit(128 + signal)`, inside the `with` of the session or after it.
        """

class RowCursor:
    """Cursor over the rows of a part of files; `tidewater.data.open` makes it."""

    def __init__(
        self,
        path: str,
        part: int,
        parts: int,
        format: Optional[str],
        schema: Optional[str],
        labels: str,
        positive: Optional[float],
        bad_records: str,
    ) -> None: ...
    def next_batch(self, rows: int) -> Optional[Tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
        """Labels, starts, keys and values of the next rows, at most `rows`; None after the last one."""
    @property
    def skipped(self) -> int:
        """Malformed records that were left out so far."""

class TaskQueue:
    """Tasks of a queue; `tidewater.data.tasks` makes it."""

    def __init__(
        self,
        session: Session,
        data: Union[int, str],
        queue: str,
        task_size: int,
        reading: Tuple[Optional[str], Optional[str], str, Optional[float], str],
        *,
        kind: str,
        epochs: int,
        strict_epochs: bool,
        seed: Optional[int],
        record_seed: Optional[int],
        finals: list,
        failures_max: int,
        timeout: float,
        exactly_once: bool,
        ticks: Optional[int],
        allow_left_out: int,
    ) -> None: ...
    def next(self) -> Optional[Tuple[int, str, int, int, str, int, int]]:
        """Takes the next task: number, kind, epoch, failures, path, first, end; None after the last one."""
    def next_batch(self, rows: int) -> Optional[Tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
        """Labels, starts, keys and values of the task's next rows, at most `rows`; None after the last one."""
    def record_numbers(self) -> np.ndarray:
        """The record numbers of the task, as uint64."""
    @property
    def is_counted(self) -> bool:
        """Whether the program reads the records by number."""
    def feed(self) -> TaskFeed:
        """Makes a feed of the tasks, which the queue has no more."""
    def done(self) -> bool:
        """Reports the task as finished; whether it counts."""
    def failed(self, reason: str) -> None:
        """Reports that the task failed by itself."""
    def status(self) -> dict:
        """Counters of the queue, and under `reasons` the tasks that are left out."""

class TaskFeed:
    """Records of a queue in batches over its tasks; `tidewater.data.feed` makes it."""

    def next_batch(
        self, size: int
    ) -> Optional[
        Tuple[Optional[str], Optional[Tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]], Optional[np.ndarray]]
    ]:
        """Kind of a final task, or the next rows, or the next record numbers; None when the queue is over."""
    def done(self, records: int) -> int:
        """Reports records as done; returns the number of tasks that are finished by it."""
    def status(self) -> dict:
        """Counters of the queue, and under `reasons` the tasks that are left out."""

class RecordCursor:
    """Cursor over the records of a part of files, as bytes; `tidewater.data.records` makes it."""

    def __init__(self, path: str, part: int, parts: int) -> None: ...
    def __iter__(self) -> RecordCursor: ...
    def __next__(self) -> bytes: ...
